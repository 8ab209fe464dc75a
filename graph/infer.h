/* What the parts of opq_infer share. Private to graph/infer*.c. */
#ifndef OPAQUE_GRAPH_INFER_H
#define OPAQUE_GRAPH_INFER_H

#include "graph/graph.h"

typedef struct opq_inference {
    opq_op op;
    const opq_op_info *info;
    const opq_type *operands;
    int arity;
    const opq_attr *attrs;
    int attr_count;
    const opq_type *given; /* NULL unless the row's rule is GIVEN, or it is a matmul's */
    opq_dtype compute;
} opq_inference;

static inline const opq_attr *opq_infer_attr(const opq_inference *call, opq_attr_key key)
{
    return opq_attr_find(call->attrs, call->attr_count, key);
}

/* Each fills in rank and sizes of out_type and checks what its class asks of operands beyond promotion. */
opq_status opq_infer_view(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_update(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_concat(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_index(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_scatter(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_flag(const opq_inference *call, opq_attr_key key, bool *out_flag) OPQ_MUST_CHECK;
opq_status opq_infer_pairs(const opq_inference *call) OPQ_MUST_CHECK; /* the rule of its products */
opq_status opq_infer_matmul(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_routine(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_infer_composite(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
/* `op` is the reducing row; `operand` its operand, which inside an expression is none of call->operands. */
opq_status opq_infer_reduce(const opq_inference *call, opq_op op, const opq_type *operand,
                            opq_type *out_type) OPQ_MUST_CHECK;
/* The value of `axis`, checked against `rank`. */
opq_status opq_infer_axis(const opq_inference *call, int rank, int *out_axis) OPQ_MUST_CHECK;
/* An operand of indices must be i64. */
opq_status opq_infer_want_index(const opq_inference *call, int operand) OPQ_MUST_CHECK;

#endif
