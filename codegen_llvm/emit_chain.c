/* A product of two loads in each lane: one chain of fused multiply-adds from +0 on, for every vector of a strip. */
#include "codegen_llvm/math.h"
#include "codegen_llvm/nest.h"

#include <string.h>

enum { WINDOW_RANK = 2, UNROLLED = 3 };

typedef struct part {
    opq_nest *n;
    opq_chain chain;
    int product; /* statement */
    LLVMValueRef sum[OPQ_STRIP_MAX];
} part;

static LLVMValueRef multiply_add(opq_nest *n, const opq_stmt *product, LLVMValueRef sum)
{
    const LLVMValueRef operands[3] = {n->value[product->operand[0]], n->value[product->operand[1]], sum};
    return vfma(n->e, operands[0], operands[1], operands[2]);
}

/* The statements of a turn of a loop, which begin at its index. */
static void emit_turn(part *p, int level, LLVMValueRef index, void (*inside)(part *p, int level))
{
    opq_nest *n = p->n;
    const opq_stmt *stmt = opq_nest_stmt(n, p->chain.loop[level]);
    bool innermost = level == p->chain.count - 1;
    LLVMValueRef address[OPQ_ACCESS_MAX];
    memcpy(address, n->address, sizeof address);
    n->index[stmt->variable] = index;
    opq_nest_bind(n, 1u << stmt->variable);
    opq_nest_run(n, p->chain.loop[level] + 1, innermost ? stmt->end : p->chain.loop[level + 1]);
    if (!innermost)
        inside(p, level + 1);
    for (int copy = 0; copy < n->strip && innermost; copy++) {
        opq_nest_use_copy(n, copy);
        p->sum[copy] = multiply_add(n, opq_nest_stmt(n, p->product), p->sum[copy]);
    }
    opq_nest_use_copy(n, 0);
    memcpy(n->address, address, sizeof address);
}

static void emit_counted(part *p, int level)
{
    opq_nest *n = p->n;
    opq_loop loop;
    int variable = opq_nest_stmt(n, p->chain.loop[level])->variable;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[variable], 1, p->sum, n->strip);
    emit_turn(p, level, loop.index, emit_counted);
    opq_loop_end(n, &loop, p->sum);
}

static void emit_unrolled(part *p, int level)
{
    for (int turn = 0; turn < UNROLLED; turn++)
        emit_turn(p, level, opq_i64(p->n->e, turn), emit_unrolled);
}

/* Windows of 3 x 3 without loops: what tells which of their columns are there is computed once for all rows. */
static void emit_window(part *p)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef fits = NULL, zero[OPQ_STRIP_MAX], sum[OPQ_STRIP_MAX];
    for (int level = 0; level < p->chain.count; level++) {
        LLVMValueRef extent = n->extent[opq_nest_stmt(n, p->chain.loop[level])->variable];
        LLVMValueRef is = LLVMBuildICmp(b, LLVMIntEQ, extent, opq_i64(n->e, UNROLLED), "");
        fits = fits ? LLVMBuildAnd(b, fits, is, "") : is;
    }
    LLVMBasicBlockRef unrolled = opq_nest_block(n, "window"), counted = opq_nest_block(n, "taps"),
                      behind = opq_nest_block(n, "summed");
    LLVMBuildCondBr(b, fits, unrolled, counted);
    memcpy(zero, p->sum, sizeof zero);
    LLVMPositionBuilderAtEnd(b, unrolled);
    emit_unrolled(p, 0);
    unrolled = LLVMGetInsertBlock(b);
    LLVMBuildBr(b, behind);
    memcpy(sum, p->sum, sizeof sum);
    memcpy(p->sum, zero, sizeof zero);
    LLVMPositionBuilderAtEnd(b, counted);
    emit_counted(p, 0);
    counted = LLVMGetInsertBlock(b);
    LLVMBuildBr(b, behind);
    LLVMPositionBuilderAtEnd(b, behind);
    for (int copy = 0; copy < n->strip; copy++) {
        LLVMValueRef phi = LLVMBuildPhi(b, LLVMTypeOf(sum[copy]), "");
        LLVMAddIncoming(phi, (LLVMValueRef[]){sum[copy], p->sum[copy]}, (LLVMBasicBlockRef[]){unrolled, counted}, 2);
        p->sum[copy] = phi;
    }
}

void opq_emit_chain(opq_nest *n, int loop)
{
    part p = {.n = n, .chain = opq_nest_chain(n->k, loop)};
    for (int i = loop; i < opq_nest_stmt(n, loop)->end; i++)
        if (opq_op_contracts(opq_nest_stmt(n, i)->op))
            p.product = i;
    LLVMTypeRef type = opq_vector_type(n->e, (opq_dtype)opq_nest_stmt(n, p.product)->dtype);
    for (int copy = 0; copy < n->strip; copy++)
        p.sum[copy] = LLVMConstNull(type);
    if (p.chain.count == WINDOW_RANK)
        emit_window(&p);
    else
        emit_counted(&p, 0);
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_define(n, p.product, p.sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}
