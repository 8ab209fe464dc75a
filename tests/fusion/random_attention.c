/* Random attention, and gradients of it: products of rows, what is computed of them row by row, and products that take it, also such as
 * sum over rows. Whole or causal, of one matrix or of several.
 */
#include "random_graph.h"

static bool chance(random_graph *r, int percent) { return random_below(r, 100) < (uint64_t)percent; }

static opq_ref with_size(random_graph *r, const opq_type *like, int64_t rows, int64_t columns)
{
    opq_type type = *like;
    type.size[type.rank - 2] = rows;
    type.size[type.rank - 1] = columns;
    return random_input(r, &type);
}

static opq_ref binary(random_graph *r, opq_op op, opq_ref x, opq_ref y)
{
    return x < 0 || y < 0 ? -1 : random_op(r, op, (opq_ref[]){x, y}, 2, NULL, 0);
}

/* By the rule that this graph has. */
static opq_ref product(random_graph *r, opq_ref x, opq_ref y, bool turn_x, bool turn_y)
{
    opq_attr attrs[] = {{.key = OPQ_ATTR_transpose_a, .i = turn_x},
                        {.key = OPQ_ATTR_transpose_b, .i = turn_y},
                        {.key = OPQ_ATTR_pairs, .i = r->attention_pairs}};
    return x < 0 || y < 0 ? -1 : random_op(r, OPQ_OP_matmul, (opq_ref[]){x, y}, 2, attrs, 3);
}

/* An operand that may be a widened half. */
static opq_ref perhaps_half(random_graph *r, opq_ref x)
{
    opq_type wide = x < 0 ? (opq_type){0} : opq_graph_type(r->graph, x), half = wide;
    half.dtype = r->attention_pairs ? OPQ_bf16 : r->attention_half;
    if (x < 0 || wide.dtype != OPQ_f32 || half.dtype == OPQ_f32 || chance(r, 20))
        return x;
    x = random_op_typed(r, OPQ_OP_cast, &half, &x, 1, NULL, 0);
    return x < 0 ? x : random_op_typed(r, OPQ_OP_cast, &wide, &x, 1, NULL, 0);
}

static opq_ref over_columns(random_graph *r, opq_op op, opq_ref x)
{
    int64_t last = x < 0 ? 0 : opq_graph_type(r->graph, x).rank - 1;
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = 1, .ints = &last};
    return x < 0 ? -1 : random_op(r, op, &x, 1, &attr, 1);
}

/* x where the column is at most the row, else -inf. */
static opq_ref causal(random_graph *r, opq_ref x)
{
    if (x < 0)
        return -1;
    opq_type type = opq_graph_type(r->graph, x), index = opq_type_make(OPQ_i64, 2, &type.size[type.rank - 2]);
    opq_ref indices[2];
    for (int axis = 1; axis >= 0; axis--) {
        opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
        indices[1 - axis] = random_op_typed(r, OPQ_OP_iota, &index, NULL, 0, &attr, 1);
    }
    opq_ref operands[2] = {x, binary(r, OPQ_OP_le, indices[0], indices[1])};
    return operands[1] < 0 ? -1 : random_op_typed(r, OPQ_OP_causal_mask, &type, operands, 2, NULL, 0);
}

/* Without a softmax: products of elements of a product, which sum over its rows, of one right operand for each matrix or for all. */
static opq_ref of_elements(random_graph *r, opq_ref scores, const opq_type *type, int64_t rows)
{
    opq_ref bent = scores < 0 ? -1 : random_op(r, chance(r, 50) ? OPQ_OP_sigmoid : OPQ_OP_exp, &scores, 1, NULL, 0),
            made = -1;
    for (int i = 1 + chance(r, 50); i > 0; i--) {
        opq_type right = *type;
        if (chance(r, 30))
            right = opq_type_make(OPQ_f32, 2, &type->size[type->rank - 2]);
        random_keep(r, made);
        made = product(r, bent, with_size(r, &right, rows, 1 + (int64_t)random_below(r, 40)), true, false);
    }
    return made;
}

opq_ref random_attention(random_graph *r, opq_ref q)
{
    int64_t sizes[4] = {1 + (int64_t)random_below(r, 3), 1 + (int64_t)random_below(r, 2), 10, 4};
    opq_type type = opq_graph_type(r->graph, q);
    if (type.dtype != OPQ_f32 || type.rank < 2 || opq_type_count(&type) == 0) {
        sizes[2] = 1 + (int64_t)random_below(r, 40);
        sizes[3] = 1 + (int64_t)random_below(r, 20);
        type = opq_type_make(OPQ_f32, 4, sizes);
        q = random_input(r, &type);
    }
    if (r->input_count + 6 > RANDOM_INPUTS || q < 0)
        return -1;
    int64_t rows = type.size[type.rank - 2], depth = type.size[type.rank - 1];
    int64_t columns = 1 + (int64_t)random_below(r, 60), width = 1 + (int64_t)random_below(r, 20);
    static const opq_dtype halves[] = {OPQ_f32, OPQ_f32, OPQ_f16, OPQ_bf16};
    r->attention_pairs = chance(r, 30) ? (chance(r, 50) ? 1 : 16) : 0;
    r->attention_half = halves[random_below(r, 4)];
    q = perhaps_half(r, q);
    opq_ref k = perhaps_half(r, with_size(r, &type, columns, depth)),
            v = perhaps_half(r, with_size(r, &type, columns, width));
    opq_ref scores = product(r, q, k, false, true);
    if (chance(r, 20))
        return of_elements(r, scores, &type, rows);
    scores = chance(r, 50) ? causal(r, scores) : binary(r, OPQ_OP_mul, scores, random_number(r, OPQ_f32));
    opq_ref largest = over_columns(r, OPQ_OP_amax, scores);
    opq_ref weights = random_op(r, OPQ_OP_exp, (opq_ref[]){binary(r, OPQ_OP_sub, scores, largest)}, 1, NULL, 0);
    opq_ref out = binary(r, OPQ_OP_div, product(r, weights, v, false, false), over_columns(r, OPQ_OP_sum, weights));
    if (out < 0 || chance(r, 40))
        return out;
    random_keep(r, out);
    opq_ref grad = perhaps_half(r, with_size(r, &type, rows, width)),
            total = chance(r, 50) ? with_size(r, &type, rows, 1) : largest;
    weights = random_op(r, OPQ_OP_exp, (opq_ref[]){binary(r, OPQ_OP_sub, scores, total)}, 1, NULL, 0);
    opq_ref mean = over_columns(r, OPQ_OP_sum, binary(r, OPQ_OP_mul, grad, out));
    opq_ref slope = binary(r, OPQ_OP_mul, weights, binary(r, OPQ_OP_sub, product(r, grad, v, false, true), mean));
    random_keep(r, chance(r, 70) ? product(r, slope, k, false, false) : -1);
    random_keep(r, chance(r, 70) ? product(r, slope, q, true, false) : -1);
    return product(r, weights, grad, true, false);
}
