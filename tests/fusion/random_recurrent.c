/* Random directions of LSTMs and GRUs, forward and back, and slices of what they give. */
#include "random_graph.h"

static bool chance(random_graph *r, int percent) { return random_below(r, 100) < (uint64_t)percent; }

static opq_ref matrix(random_graph *r, opq_dtype dtype, int64_t rows, int64_t columns)
{
    opq_type type = opq_type_make(dtype, 2, (const int64_t[]){rows, columns});
    return random_input(r, &type);
}

/* One row of the direction, and perhaps some rows of its result. */
static opq_ref direction(random_graph *r, opq_op op, const opq_ref *operands, const opq_attr *rule)
{
    int arity = opq_op_info_of(op)->arity;
    for (int i = 0; i < arity; i++)
        if (operands[i] < 0)
            return -1;
    opq_ref all = random_op(r, op, operands, arity, rule, 2);
    if (all < 0 || chance(r, 50))
        return all;
    random_keep(r, all);
    opq_type type = opq_graph_type(r->graph, all);
    int64_t rows = type.size[0], start[] = {(int64_t)random_below(r, (uint64_t)rows), 0}, step[] = {1, 1};
    type.size[0] = 1 + (int64_t)random_below(r, (uint64_t)(rows - start[0]));
    opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = 2, .ints = start},
                        {.key = OPQ_ATTR_step, .count = 2, .ints = step}};
    return random_op_typed(r, OPQ_OP_slice, &type, &all, 1, attrs, 2);
}

static opq_ref lstm(random_graph *r, const opq_attr *rule, opq_dtype dtype, int64_t steps, int64_t batch,
                    int64_t hidden, int64_t k)
{
    opq_ref c = matrix(r, dtype, batch, hidden), w = matrix(r, dtype, 4 * hidden, k);
    opq_ref x[] = {matrix(r, dtype, steps * batch, 4 * hidden), matrix(r, dtype, batch, k), c, w};
    opq_ref all = direction(r, OPQ_OP_lstm, x, rule);
    if (all < 0 || chance(r, 30))
        return all;
    random_keep(r, all);
    opq_ref states = random_op(r, OPQ_OP_lstm_states, x, 4, rule, 2),
            sums = random_op(r, OPQ_OP_lstm_sums, x, 4, rule, 2);
    opq_ref back[] = {matrix(r, dtype, steps * batch, hidden), sums, states, c, matrix(r, dtype, batch, hidden), w};
    random_keep(r, chance(r, 50) ? direction(r, OPQ_OP_lstm_backward_state, back, rule) : -1);
    return direction(r, OPQ_OP_lstm_backward, back, rule);
}

static opq_ref gru(random_graph *r, const opq_attr *rule, opq_dtype dtype, int64_t steps, int64_t batch, int64_t hidden,
                   int64_t k)
{
    opq_ref h = matrix(r, dtype, batch, hidden), w = matrix(r, dtype, 3 * hidden, k);
    opq_ref x[] = {matrix(r, dtype, steps * batch, 3 * hidden), h, w, matrix(r, dtype, k ? 1 : batch, 3 * hidden)};
    opq_ref all = direction(r, OPQ_OP_gru, x, rule);
    if (all < 0 || chance(r, 30))
        return all;
    random_keep(r, all);
    opq_ref past = random_op(r, OPQ_OP_gru_sums, x, 4, rule, 2);
    opq_ref back[] = {matrix(r, dtype, steps * batch, hidden), x[0], past,
                      matrix(r, dtype, steps * batch, hidden), h,    w};
    random_keep(r, chance(r, 50) ? direction(r, OPQ_OP_gru_backward_hidden, back, rule) : -1);
    random_keep(r, chance(r, 50) ? direction(r, OPQ_OP_gru_backward_state, back, rule) : -1);
    return direction(r, OPQ_OP_gru_backward, back, rule);
}

opq_ref random_recurrent(random_graph *r, opq_ref x)
{
    (void)x;
    if (r->input_count + 8 > RANDOM_INPUTS)
        return -1;
    int64_t steps = 1 + (int64_t)random_below(r, 4), batch = 1 + (int64_t)random_below(r, 3),
            hidden = 1 + (int64_t)random_below(r, 17), k = steps == 1 && chance(r, 50) ? 0 : hidden;
    opq_dtype dtype = chance(r, 80) ? OPQ_f32 : OPQ_f64;
    int64_t pairs = chance(r, 50) ? 1 : 16;
    const opq_attr rule[] = {{.key = OPQ_ATTR_pairs, .i = chance(r, 30) ? pairs : 0},
                             {.key = OPQ_ATTR_reverse, .i = chance(r, 30)}};
    return (chance(r, 50) ? lstm : gru)(r, rule, dtype, steps, batch, hidden, k);
}
