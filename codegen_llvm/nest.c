/* The function, its arguments, and the addresses of its accesses. */
#include "codegen_llvm/nest.h"

#include <string.h>

void opq_nest_fail(opq_nest *n, opq_status status)
{
    if (n->status == OPQ_OK)
        n->status = status;
}

LLVMBasicBlockRef opq_nest_block(opq_nest *n, const char *name)
{
    return LLVMAppendBasicBlockInContext(n->e->context, n->e->function, name);
}

/* In the entry block, so that it is part of the frame. */
LLVMValueRef opq_nest_stack(opq_nest *n, LLVMTypeRef type)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(b), entry = LLVMGetEntryBasicBlock(n->e->function);
    LLVMPositionBuilderBefore(b, LLVMGetFirstInstruction(entry));
    LLVMValueRef memory = LLVMBuildAlloca(b, type, "");
    LLVMSetAlignment(memory, 64);
    LLVMPositionBuilderAtEnd(b, here);
    return memory;
}

static LLVMTypeRef function_type(opq_emitter *e)
{
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), i64 = LLVMInt64TypeInContext(e->context);
    LLVMTypeRef parameters[7] = {pointer, pointer, pointer, i64, i64, pointer, pointer};
    return LLVMFunctionType(LLVMVoidTypeInContext(e->context), parameters, 7, false);
}

/* dims[at], an int64 */
static LLVMValueRef dim(opq_nest *n, int at)
{
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context);
    LLVMValueRef index = opq_i64(n->e, at);
    return LLVMBuildLoad2(n->e->builder, i64, LLVMBuildGEP2(n->e->builder, i64, n->dims, &index, 1, ""), "");
}

static void open_access(opq_nest *n, int a)
{
    const opq_loops *k = n->k;
    const opq_access *access = &k->accesses[a];
    LLVMBuilderRef b = n->e->builder;
    int at = opq_dims_of(k->rank, a);
    for (int l = 0; l < k->rank; l++)
        n->stride[a][l] = access->stride[l] == OPQ_STRIDE_any
                              ? dim(n, at + 1 + l)
                              : opq_i64(n->e, access->stride[l] == OPQ_STRIDE_back ? -1 : access->stride[l]);
    LLVMValueRef offset = dim(n, at);
    if (access->buffer < 0) {
        n->address[a] = offset;
        return;
    }
    LLVMTypeRef pointer = LLVMPointerTypeInContext(n->e->context, 0);
    LLVMValueRef slot = opq_i64(n->e, access->buffer);
    LLVMValueRef buffer = LLVMBuildLoad2(b, pointer, LLVMBuildGEP2(b, pointer, n->buffers, &slot, 1, ""), "");
    n->address[a] = LLVMBuildGEP2(b, opq_memory_type(n->e, (opq_dtype)access->dtype), buffer, &offset, 1, "");
}

/* Locals of a block are part of the frame. Others follow each other in the scratch memory, see opq_loops_scratch. Each has room for what the last
 * vector writes too far. */
static void open_locals(opq_nest *n)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef at = opq_i64(n->e, 0);
    for (int i = 0; i < n->k->stmt_count; i++) {
        const opq_stmt *local = opq_nest_stmt(n, i);
        if (local->op != OPQ_STMT_local)
            continue;
        int64_t turns;
        int blocks = opq_local_blocks(n->k, i);
        if (blocks >= 0) {
            (void)opq_loop_counted(n->k, blocks, &turns);
            LLVMTypeRef element = opq_memory_type(n->e, (opq_dtype)local->dtype);
            n->local[i] = opq_nest_stack(n, LLVMArrayType2(element, (uint64_t)turns + OPQ_LANES));
            continue;
        }
        LLVMValueRef room = opq_i64(n->e, 1);
        for (int l = 0; l < n->k->rank; l++)
            if (local->variables >> l & 1)
                room = LLVMBuildMul(b, room, n->extent[l], "");
        room =
            LLVMBuildAnd(b, LLVMBuildAdd(b, room, opq_i64(n->e, 2 * OPQ_LANES - 1), ""), opq_i64(n->e, -OPQ_LANES), "");
        n->local[i] = LLVMBuildGEP2(b, LLVMInt8TypeInContext(n->e->context), n->scratch, &at, 1, "");
        at = LLVMBuildAdd(b, at, LLVMBuildMul(b, room, opq_i64(n->e, opq_dtype_bytes((opq_dtype)local->dtype)), ""), "");
    }
    n->behind_locals = LLVMBuildGEP2(b, LLVMInt8TypeInContext(n->e->context), n->scratch, &at, 1, "");
}

static opq_status open_statements(opq_nest *n, opq_arena *arena)
{
    size_t count = (size_t)n->k->stmt_count + 1, rows = 2 * OPQ_STRIP_MAX + 6, values = count * sizeof(LLVMValueRef);
    n->varies = opq_arena_alloc(arena, count * sizeof *n->varies);
    n->values = opq_arena_alloc(arena, rows * values);
    if (!n->varies || !n->values)
        return opq_fail(OPQ_NO_MEMORY, "no memory for kernel %s", n->k->name);
    memset(n->values, 0, rows * values);
    n->value = n->values;
    n->at_offset = n->values + OPQ_STRIP_MAX * count;
    n->at_valid = n->at_offset + count;
    n->local = n->at_valid + count;
    n->local_row = n->local + count;
    n->partials = n->local_row + count;
    n->folds = n->partials + count;
    n->turns = n->folds + count;
    opq_loops_find_varies(n->k, n->varies);
    for (int i = 0; i < n->k->stmt_count; i++)
        n->has_at = n->has_at || opq_op_checks(opq_nest_stmt(n, i)->op);
    return OPQ_OK;
}

opq_status opq_nest_open(opq_nest *n, opq_emitter *e, const opq_loops *loops, const char *name, opq_arena *arena)
{
    memset(n, 0, sizeof *n);
    n->e = e;
    n->k = loops;
    n->status = OPQ_OK;
    n->vector = n->prefetch_row = n->rows = -1;
    n->prefetch_rows = OPQ_COLUMN_GROUP;
    n->address = n->addresses[0];
    n->strip = 1;
    OPQ_TRY(open_statements(n, arena));
    e->function = LLVMAddFunction(e->module, name, function_type(e));
    LLVMPositionBuilderAtEnd(e->builder, opq_nest_block(n, "entry"));
    LLVMValueRef *parameters[7] = {&n->buffers, &n->dims, &n->scalars, &n->begin, &n->end, &n->scratch, &n->error};
    for (unsigned i = 0; i < 7; i++)
        *parameters[i] = LLVMGetParam(e->function, i);
    LLVMBasicBlockRef none = opq_nest_block(n, "none"), some = opq_nest_block(n, "some");
    LLVMBuildCondBr(e->builder, LLVMBuildICmp(e->builder, LLVMIntSLT, n->begin, n->end, ""), some, none);
    LLVMPositionBuilderAtEnd(e->builder, none);
    LLVMBuildRetVoid(e->builder);
    LLVMPositionBuilderAtEnd(e->builder, some);
    for (int l = 0; l < loops->rank; l++)
        n->extent[l] = dim(n, l);
    for (int a = 0; a < loops->access_count; a++)
        open_access(n, a);
    open_locals(n);
    n->start = LLVMGetInsertBlock(e->builder);
    return OPQ_OK;
}

/* Elements from turn 0 to the index; NULL: none. Indices of turns that are made one by one are constants. */
static LLVMValueRef step_to(opq_nest *n, int access, int variable)
{
    LLVMValueRef index = n->index[variable], stride = n->stride[access][variable];
    bool known = LLVMIsAConstantInt(index) != NULL;
    if (known && LLVMConstIntGetSExtValue(index) == 0)
        return NULL;
    if (n->k->accesses[access].stride[variable] == OPQ_STRIDE_one)
        return index;
    return known && LLVMConstIntGetSExtValue(index) == 1 ? stride : LLVMBuildMul(n->e->builder, index, stride, "");
}

void opq_nest_bind_copy(opq_nest *n, unsigned variables)
{
    LLVMBuilderRef b = n->e->builder;
    for (int a = 0; a < n->k->access_count; a++) {
        const opq_access *access = &n->k->accesses[a];
        LLVMValueRef sum = NULL;
        for (int l = 0; l < n->k->rank; l++) {
            if (!(variables >> l & 1) || access->stride[l] == OPQ_STRIDE_zero)
                continue;
            LLVMValueRef step = step_to(n, a, l);
            sum = sum && step ? LLVMBuildAdd(b, sum, step, "") : step ? step : sum;
        }
        if (!sum)
            continue;
        if (access->buffer < 0)
            n->address[a] = LLVMBuildAdd(b, n->address[a], sum, "");
        else
            n->address[a] = LLVMBuildGEP2(b, opq_memory_type(n->e, (opq_dtype)access->dtype), n->address[a], &sum, 1, "");
    }
}

void opq_nest_bind(opq_nest *n, unsigned variables)
{
    if (n->rows < 0) {
        opq_nest_bind_copy(n, variables);
        return;
    }
    for (int copy = n->strip - 1; copy >= 0; copy--) {
        opq_nest_use_copy(n, copy);
        opq_nest_bind_copy(n, variables);
    }
}

opq_places opq_nest_places(const opq_nest *n)
{
    opq_places places;
    memcpy(places.address, n->addresses, sizeof places.address);
    return places;
}

void opq_nest_return(opq_nest *n, const opq_places *places)
{
    memcpy(n->addresses, places->address, sizeof places->address);
}

void opq_nest_mask(opq_nest *n, LLVMValueRef remaining)
{
    n->remaining = remaining;
    n->mask = NULL;
    if (!remaining)
        return;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef lanes = opq_splat(n->e, LLVMBuildTrunc(b, remaining, LLVMInt32TypeInContext(n->e->context), ""));
    n->mask = LLVMBuildICmp(b, LLVMIntSLT, opq_lane_numbers(n->e, 32), lanes, "");
}
