/* Shared by contract.c and contract_operand.c. */
#ifndef OPAQUE_FUSION_CONTRACT_STATE_H
#define OPAQUE_FUSION_CONTRACT_STATE_H

#include "fusion/loop.h"

/* Loops that are one index of a matrix, from outside in. */
typedef struct opq_axis {
    int count, variable[OPQ_LOOP_MAX];
} opq_axis;

typedef struct opq_splitter {
    const opq_loops *k;
    const int64_t *dims;
    opq_contract *out;
    opq_axis batch, m, n, sum;
    bool turned;     /* rows are the tree's columns, and the left operand is its right one */
    int chain;       /* the statement of the first loop that sums */
    int16_t row;     /* turned: the epilogue's loop of one turn */
    int16_t *stmt;   /* per statement: in the epilogue */
    int16_t *access; /* per access: in the epilogue, -1 */
    bool *matrix;    /* per access: of an operand, or of a condition of it */
    bool *needed;    /* per statement: by what is stored, besides the product's own */
    opq_access *accesses;
} opq_splitter;

static inline opq_status opq_contract_no_memory(void)
{
    return opq_fail(OPQ_NO_MEMORY, "out of memory while dividing a product");
}

static inline int64_t opq_contract_stride_of(const opq_splitter *s, int access, int variable)
{
    return opq_loops_stride(s->k, s->dims, access, variable);
}

static inline int64_t opq_contract_extent_of(const opq_splitter *s, const opq_axis *loops)
{
    int64_t extent = 1;
    for (int i = 0; i < loops->count; i++)
        extent *= s->dims[loops->variable[i]];
    return extent;
}

/* What is loaded, which may be widened. */
static inline const opq_stmt *opq_contract_operand_stmt(const opq_splitter *s, int o)
{
    const opq_stmt *operand = &s->k->stmts[s->k->stmts[s->out->product].operand[s->turned ? 1 - o : o]];
    return operand->op == OPQ_OP_cast ? &s->k->stmts[operand->operand[0]] : operand;
}

static inline int opq_contract_operand_access(const opq_splitter *s, int o)
{
    const opq_stmt *load = opq_contract_operand_stmt(s, o);
    return load->op == OPQ_STMT_load ? load->access : -1;
}

/* Does an access walk loops as one? */
static inline bool opq_contract_walks_as_one(const opq_splitter *s, int access, const opq_axis *loops)
{
    for (int i = 1; i < loops->count; i++)
        if (opq_contract_stride_of(s, access, loops->variable[i - 1]) !=
            opq_contract_stride_of(s, access, loops->variable[i]) * s->dims[loops->variable[i]])
            return false;
    return true;
}

/* Where operand o is, by strides or by tables; with the padding around it. */
opq_status opq_contract_bind_operand(opq_splitter *s, opq_arena *arena, int o) OPQ_MUST_CHECK;

#endif
