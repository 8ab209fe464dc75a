/* Random numbers: element i depends on (seed, offset, i) alone, so that any order and any thread count gives the same.
 *
 * Philox4x32-10 with the counter (i low, i high, offset low, offset high) and the key (seed low, seed high).
 */
#include "graph/eval.h"

#include <math.h>

void opq_eval_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out_words[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p = UINT64_C(0xD2511F53) * c[0], q = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q, (uint32_t)(p >> 32) ^ c[3] ^ k[1],
                            (uint32_t)p};
        for (int i = 0; i < 4; i++)
            c[i] = next[i];
        k[0] += UINT32_C(0x9E3779B9);
        k[1] += UINT32_C(0xBB67AE85);
    }
    for (int i = 0; i < 4; i++)
        out_words[i] = c[i];
}

/* [0, 1), a multiple of 2^-24 */
static double uniform(const uint32_t words[4]) { return (double)(words[0] >> 8) * 0x1p-24; }

/* Box and Muller 1958, the cosine branch; the first uniform number is in (0, 1] so that its logarithm is finite. */
static double normal(const uint32_t words[4])
{
    double u = ((double)(words[0] >> 8) + 1) * 0x1p-24, v = (double)(words[1] >> 8) * 0x1p-24;
    return (double)(float)(sqrt(-2 * log(u)) * cos(6.28318530717958647693 * v));
}

opq_number opq_eval_random_element(opq_op op, uint64_t seed, uint64_t offset, uint64_t index)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)offset, (uint32_t)(offset >> 32)};
    uint32_t words[4];
    opq_eval_philox(counter, key, words);
    return (opq_number){.f = op == OPQ_OP_uniform ? uniform(words) : normal(words)};
}

opq_status opq_eval_random(const opq_node *node, const opq_eval_value *x, void *out)
{
    uint64_t seed = (uint64_t)opq_eval_load((opq_dtype)x[0].type->dtype, x[0].data, 0).i;
    uint64_t offset = (uint64_t)opq_eval_load((opq_dtype)x[1].type->dtype, x[1].data, 0).i;
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++)
        opq_eval_store((opq_dtype)node->type.dtype, out, i,
                       opq_eval_random_element((opq_op)node->op, seed, offset, (uint64_t)i));
    return OPQ_OK;
}
