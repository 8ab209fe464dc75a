/* Random numbers: element i depends on (seed, offset, i) alone, so that any order and any thread count gives the same. */
#include "graph/eval.h"

#include "opaque/scalar_math.h"

opq_number opq_eval_random_element(opq_op op, int64_t index, int64_t seed, int64_t offset)
{
    float x = op == OPQ_OP_uniform ? opq_uniform_f32(index, seed, offset) : opq_normal_f32(index, seed, offset);
    return (opq_number){.f = (double)x};
}

opq_status opq_eval_random(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t seed = opq_eval_load((opq_dtype)x[0].type->dtype, x[0].data, 0).i;
    int64_t offset = opq_eval_load((opq_dtype)x[1].type->dtype, x[1].data, 0).i;
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++)
        opq_eval_store((opq_dtype)node->type.dtype, out, i, opq_eval_random_element((opq_op)node->op, i, seed, offset));
    return OPQ_OK;
}
