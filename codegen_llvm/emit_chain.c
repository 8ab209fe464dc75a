/* A product of two loads in each lane: one chain of fused multiply-adds from +0 on, for every vector of a strip. */
#include "codegen_llvm/math.h"
#include "codegen_llvm/nest.h"

#include <string.h>

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

static void emit_level(part *p, int level)
{
    opq_nest *n = p->n;
    const opq_stmt *stmt = opq_nest_stmt(n, p->chain.loop[level]);
    LLVMValueRef address[OPQ_ACCESS_MAX];
    bool innermost = level == p->chain.count - 1;
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[stmt->variable], 1, p->sum, n->strip);
    memcpy(address, n->address, sizeof address);
    n->index[stmt->variable] = loop.index;
    opq_nest_bind(n, 1u << stmt->variable);
    opq_nest_run(n, p->chain.loop[level] + 1, innermost ? stmt->end : p->chain.loop[level + 1]);
    if (!innermost)
        emit_level(p, level + 1);
    for (int copy = 0; copy < n->strip && innermost; copy++) {
        opq_nest_use_copy(n, copy);
        p->sum[copy] = multiply_add(n, opq_nest_stmt(n, p->product), p->sum[copy]);
    }
    opq_nest_use_copy(n, 0);
    memcpy(n->address, address, sizeof address);
    opq_loop_end(n, &loop, p->sum);
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
    emit_level(&p, 0);
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_define(n, p.product, p.sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}
