/* Scans: element j is what came before it, combined with operand element j. In ascending order, from the identity on.
 *
 * From element to element f32 is held in f64 where combining rounds, f16 and bf16 always in f32, as PyTorch's CPU kernels hold them. What is
 * held is rounded to the dtype of the result for each element.
 */
#include "graph/eval.h"

opq_number opq_eval_scan_start(opq_op op, opq_dtype held) { return opq_eval_identity(opq_op_lowering(op)->fold, held); }

opq_status opq_eval_scan_next(opq_op op, opq_dtype held, opq_dtype from, opq_number x, opq_number *value)
{
    opq_number pair[2] = {*value, opq_eval_cast(from, held, x)};
    OPQ_TRY(opq_eval_element(opq_op_lowering(op)->combine, held, pair, 2, value));
    *value = opq_eval_rounded(held, *value);
    return OPQ_OK;
}

opq_status opq_eval_scan(const opq_node *node, const opq_eval_value *x, void *out)
{
    opq_op op = (opq_op)node->op;
    opq_dtype dtype = (opq_dtype)node->type.dtype, from = (opq_dtype)x->type->dtype, held = opq_scan_dtype(op, dtype);
    int64_t count = opq_type_count(&node->type), axis = opq_node_int(node, OPQ_ATTR_axis, 0), step = 1;
    for (int d = node->type.rank - 1; d > axis; d--)
        step *= node->type.size[d];
    for (int64_t first = 0; first < count; first++) {
        if (first / step % node->type.size[axis] != 0)
            continue;
        opq_number value = opq_eval_scan_start(op, held);
        for (int64_t j = 0; j < node->type.size[axis]; j++) {
            OPQ_TRY(opq_eval_scan_next(op, held, from, opq_eval_load(from, x->data, first + j * step), &value));
            opq_eval_store(dtype, out, first + j * step, opq_eval_cast(held, dtype, value));
        }
    }
    return OPQ_OK;
}
