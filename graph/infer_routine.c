/* Shapes of routines. */
#include "graph/infer.h"

static opq_status infer_grouped(const opq_inference *call, opq_type *out_type)
{
    const opq_type *a = &call->operands[0], *b = &call->operands[1], *ends = &call->operands[2];
    bool turn_a, turn_b;
    OPQ_TRY(opq_infer_flag(call, OPQ_ATTR_transpose_a, &turn_a));
    OPQ_TRY(opq_infer_flag(call, OPQ_ATTR_transpose_b, &turn_b));
    OPQ_TRY(opq_infer_want_index(call, 2));
    bool rows = b->rank == 3;
    if (a->rank != 2 || (b->rank != 2 && !rows) || ends->rank != 1 || a->dtype != b->dtype)
        return opq_fail(OPQ_INVALID, "%s: takes a matrix, one or a batch of them of its dtype, and ends, got %s, %s, %s",
                        call->info->name, opq_shape_name(a).text, opq_shape_name(b).text, opq_shape_name(ends).text);
    int64_t m = a->size[turn_a], k = a->size[!turn_a];
    int64_t l = b->size[b->rank - 2 + turn_b], n = b->size[b->rank - 1 - turn_b];
    if (k != l || (rows && b->size[0] != ends->size[0]))
        return opq_fail(OPQ_INVALID, "%s: shapes %s and %s do not fit %lld groups", call->info->name,
                        opq_shape_name(a).text, opq_shape_name(b).text, (long long)ends->size[0]);
    int64_t sizes[] = {ends->size[0], m, n};
    *out_type = opq_type_make((opq_dtype)a->dtype, rows ? 2 : 3, sizes + rows);
    return OPQ_OK;
}

opq_status opq_infer_routine(const opq_inference *call, opq_type *out_type)
{
    int axis;
    if (call->op == OPQ_OP_grouped_matmul)
        return infer_grouped(call, out_type);
    if (call->op != OPQ_OP_argsort && call->op != OPQ_OP_argsort_down)
        return opq_infer_scatter(call, out_type);
    *out_type = call->operands[0];
    return opq_infer_axis(call, out_type->rank, &axis);
}
