/* What loads ask memory for before it is needed. Hardware follows long streams; short rows, rows read beside each other and lanes that lie apart it
 * does not.
 *
 *   along a loop of lanes      the target's prefetch_bytes
 *   down rows                  some turns of the loop whose turns are rows (n->prefetch_row)
 *   a loop that is short       some turns of the first loop around it that moves the access: known where the kernel begins
 */
#include "codegen_llvm/nest.h"

void opq_nest_prefetch(opq_nest *n, LLVMValueRef pointer, int ahead)
{
    LLVMTypeRef type = LLVMTypeOf(pointer);
    LLVMValueRef bytes = opq_i64(n->e, ahead);
    if (ahead > 0)
        pointer = LLVMBuildGEP2(n->e->builder, LLVMInt8TypeInContext(n->e->context), pointer, &bytes, 1, "");
    LLVMValueRef args[4] = {pointer, opq_int(n->e, 32, 0), opq_int(n->e, 32, 3), opq_int(n->e, 32, 1)};
    opq_intrinsic(n->e, "llvm.prefetch", &type, 1, args, 4);
}

/* Do the lanes of an access lie near each other? */
static bool is_near(const opq_nest *n, int access)
{
    opq_stride stride = opq_nest_stride(n, access);
    return stride != OPQ_STRIDE_zero && stride != OPQ_STRIDE_any;
}

/* Bytes of so many turns of a loop; NULL: the access does not move with it. */
static LLVMValueRef turns_ahead(opq_nest *n, int access, int variable, int turns)
{
    const opq_access *a = &n->k->accesses[access];
    LLVMValueRef bytes = opq_i64(n->e, (int64_t)turns * opq_dtype_bytes((opq_dtype)a->dtype));
    bool moves = a->stride[variable] == OPQ_STRIDE_any;
    return moves ? LLVMBuildMul(n->e->builder, bytes, n->stride[access][variable], "") : NULL;
}

/* Bytes that a load looks ahead along the stream: some of it, or some rows down where rows are what comes next; NULL: it does not. */
static LLVMValueRef stream_ahead(opq_nest *n, int access)
{
    int64_t bytes = n->e->cpu->target->prefetch_bytes;
    if (n->prefetch_row >= 0)
        return turns_ahead(n, access, n->prefetch_row, n->prefetch_rows);
    return opq_i64(n->e, opq_nest_stride(n, access) == OPQ_STRIDE_back ? -bytes : bytes);
}

/* Of the first loop around it that moves the access. */
static LLVMValueRef rows_ahead(opq_nest *n, int access, int loop)
{
    LLVMValueRef ahead = NULL;
    for (int i = loop - 1; i >= 0 && !ahead; i--)
        if (opq_nest_is_loop(n, i) && opq_nest_stmt(n, i)->end > loop)
            ahead = turns_ahead(n, access, opq_nest_stmt(n, i)->variable, n->e->cpu->target->prefetch_short_rows);
    return ahead;
}

/* What is the same for the whole kernel is made where it begins. */
static LLVMBasicBlockRef go_to_start(const opq_nest *n)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(n->e->builder);
    LLVMValueRef end = LLVMGetBasicBlockTerminator(n->start);
    if (end)
        LLVMPositionBuilderBefore(n->e->builder, end);
    return here;
}

void opq_nest_find_ahead(opq_nest *n, int loop)
{
    LLVMBuilderRef b = n->e->builder;
    const opq_target *t = n->e->cpu->target;
    const opq_stmt *stmt = opq_nest_stmt(n, loop);
    LLVMBasicBlockRef here = go_to_start(n);
    for (int i = loop + 1; i < stmt->end; i++) {
        int access = opq_nest_stmt(n, i)->access;
        if (opq_nest_stmt(n, i)->op != OPQ_STMT_load || !is_near(n, access))
            continue;
        LLVMValueRef along = stream_ahead(n, access), rows = rows_ahead(n, access, loop);
        if (!rows || !along)
            continue;
        int64_t bytes = opq_dtype_bytes((opq_dtype)n->k->accesses[access].dtype);
        int64_t most = n->prefetch_row < 0 ? t->prefetch_bytes / bytes : n->prefetch_rows;
        LLVMValueRef is_short = LLVMBuildICmp(b, LLVMIntSLE, n->extent[stmt->variable], opq_i64(n->e, most), "");
        if (n->prefetch_row < 0)
            rows = opq_nest_larger(n, rows, along);
        n->ahead[access] = LLVMBuildSelect(b, is_short, rows, along, "");
    }
    LLVMPositionBuilderAtEnd(b, here);
}

void opq_nest_look_ahead(opq_nest *n, int access)
{
    LLVMTypeRef byte = LLVMInt8TypeInContext(n->e->context);
    LLVMValueRef ahead = n->ahead[access] ? n->ahead[access] : is_near(n, access) ? stream_ahead(n, access) : NULL;
    LLVMValueRef address = n->address[access];
    opq_stride stride = opq_nest_stride(n, access);
    if (!ahead)
        return;
    bool known = LLVMIsAConstantInt(ahead) != NULL; /* else one register, in this order: what does not move */
    if (!known)
        n->address[access] = LLVMBuildGEP2(n->e->builder, byte, address, &ahead, 1, "");
    LLVMValueRef pointer = opq_nest_pointer(n, access, NULL);
    n->address[access] = address;
    if (known)
        pointer = LLVMBuildGEP2(n->e->builder, byte, pointer, &ahead, 1, "");
    opq_nest_prefetch(n, pointer, 0);
    if (stride > OPQ_STRIDE_one && stride < OPQ_STRIDE_any) /* lanes that lie apart are in two lines */
        opq_nest_prefetch(n, pointer, n->e->lanes * opq_dtype_bytes((opq_dtype)n->k->accesses[access].dtype));
}
