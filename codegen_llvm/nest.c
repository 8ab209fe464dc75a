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
    const opq_kernel *k = n->kernel;
    const opq_access *access = &k->accesses[a];
    LLVMBuilderRef b = n->e->builder;
    int at = opq_access_dims(k, a);
    for (int l = 0; l < k->rank; l++)
        switch ((opq_stride)access->stride[l]) {
        case OPQ_STRIDE_zero: n->stride[a][l] = opq_i64(n->e, 0); break;
        case OPQ_STRIDE_one: n->stride[a][l] = opq_i64(n->e, 1); break;
        case OPQ_STRIDE_any: n->stride[a][l] = dim(n, at + 1 + l); break;
        }
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

void opq_nest_open(opq_nest *n, opq_emitter *e, const opq_kernel *kernel, const char *name)
{
    memset(n, 0, sizeof *n);
    n->e = e;
    n->kernel = kernel;
    n->status = OPQ_OK;
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
    for (int l = 0; l < kernel->rank; l++)
        n->extent[l] = dim(n, l);
    for (int a = 0; a < kernel->access_count; a++)
        open_access(n, a);
}

void opq_nest_bind(opq_nest *n, unsigned loops)
{
    LLVMBuilderRef b = n->e->builder;
    for (int a = 0; a < n->kernel->access_count; a++) {
        const opq_access *access = &n->kernel->accesses[a];
        LLVMValueRef sum = NULL;
        for (int l = 0; l < n->kernel->rank; l++) {
            if (!(loops >> l & 1) || access->stride[l] == OPQ_STRIDE_zero)
                continue;
            LLVMValueRef step =
                access->stride[l] == OPQ_STRIDE_one ? n->index[l] : LLVMBuildMul(b, n->index[l], n->stride[a][l], "");
            sum = sum ? LLVMBuildAdd(b, sum, step, "") : step;
        }
        if (!sum)
            continue;
        if (access->buffer < 0)
            n->address[a] = LLVMBuildAdd(b, n->address[a], sum, "");
        else
            n->address[a] = LLVMBuildGEP2(b, opq_memory_type(n->e, (opq_dtype)access->dtype), n->address[a], &sum, 1, "");
    }
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
