/* LSTMs and GRUs: a direction of a layer in its steps.
 *
 *   lstm (sums, h, c, w)              h of all steps         sum    = sums[t] + h w^T
 *   lstm_states                       c of all steps         c, h   = f * c + i * g, o * tanh(c)
 *   lstm_sums                         sum of all steps       i f g o = sigmoid, sigmoid, tanh, sigmoid of its quarters
 *   lstm_backward (grad, sum, c of all, c, grad of the last c, w)       of sums
 *   lstm_backward_state                                                 of the first c
 *   gru (sums, h, w, b)               h of all steps         past   = h w^T + b
 *   gru_sums                          past of all steps      r, z, n = sigmoid, sigmoid of sums + past; tanh(sums + r * past)
 *                                                            h      = n + z * (h - n)
 *   gru_backward (grad, sums, past of all, h of all, h, w)   of sums
 *   gru_backward_hidden                                      of past
 *   gru_backward_state                                       of the first h
 *
 * The results of one direction are rows of their own, whose expansions are the same but for what they give: simplify makes them one.
 * "All steps" are rows, a step's beside each other, in the order of time; `reverse`: the last step is the first. A weight of no columns: one
 * step, in whose sums (GRU: in b) the product is already. (Hochreiter and Schmidhuber 1997 with forget gates; Cho et al. 2014, as in cuDNN:
 * the reset gate scales the product.)
 */
#include "graph/recurrent.h"

#include <stdlib.h>
#include <string.h>

/* S: of all steps, [steps * batch, gates * hidden]; O: [steps * batch, hidden]; C: [batch, hidden]; H: [batch, k]; W: [gates * hidden, k];
 * B: broadcasts to [batch, gates * hidden]. k is hidden, or 0. */
typedef struct recurrent {
    int gates;
    const char *operands;
    char result;
} recurrent;

static const recurrent *recurrent_of(int op)
{
    static const recurrent lstm = {4, "SHCW", 'O'}, lstm_sums = {4, "SHCW", 'S'}, lstm_backward = {4, "OSOCCW", 'S'},
                           lstm_backward_state = {4, "OSOCCW", 'C'}, gru = {3, "SCWB", 'O'}, gru_sums = {3, "SCWB", 'S'},
                           gru_backward = {3, "OSSOCW", 'S'}, gru_backward_state = {3, "OSSOCW", 'C'};
    switch (op) {
    case OPQ_OP_lstm:
    case OPQ_OP_lstm_states: return &lstm;
    case OPQ_OP_lstm_sums: return &lstm_sums;
    case OPQ_OP_lstm_backward: return &lstm_backward;
    case OPQ_OP_lstm_backward_state: return &lstm_backward_state;
    case OPQ_OP_gru: return &gru;
    case OPQ_OP_gru_sums: return &gru_sums;
    case OPQ_OP_gru_backward:
    case OPQ_OP_gru_backward_hidden: return &gru_backward;
    case OPQ_OP_gru_backward_state: return &gru_backward_state;
    default: return NULL;
    }
}

bool opq_op_is_recurrent(int op) { return recurrent_of(op) != NULL; }

static int place_of(const recurrent *r, char kind) { return (int)(strchr(r->operands, kind) - r->operands); }

void opq_recurrent_operands(int op, int *out_steps, int *out_step)
{
    const recurrent *r = recurrent_of(op);
    *out_steps = place_of(r, 'S');
    *out_step = place_of(r, 'C');
}

/* ---- shapes */

static opq_type type_of(const recurrent *r, char kind, opq_dtype dtype, int64_t steps, int64_t batch, int64_t hidden,
                        int64_t k)
{
    int64_t rows = kind == 'W' ? r->gates * hidden : kind == 'S' || kind == 'O' ? steps * batch : batch;
    int64_t columns = kind == 'H' || kind == 'W' ? k : kind == 'S' || kind == 'B' ? r->gates * hidden : hidden;
    return opq_type_make(dtype, 2, (const int64_t[]){rows, columns});
}

static opq_status check_operand(const opq_inference *call, int operand, const opq_type *want)
{
    const opq_type *type = &call->operands[operand];
    bool broadcasts = recurrent_of(call->op)->operands[operand] == 'B';
    opq_type both = *want;
    if (broadcasts)
        OPQ_TRY(opq_broadcast(call->info->name, want, type, &both));
    if (!opq_shape_equal(broadcasts ? &both : type, want))
        return opq_fail(OPQ_INVALID, "%s: operand %d is %s, not %s", call->info->name, operand,
                        opq_shape_name(type).text, opq_shape_name(want).text);
    return OPQ_OK;
}

opq_status opq_infer_recurrent(const opq_inference *call, opq_type *out_type)
{
    const recurrent *r = recurrent_of(call->op);
    OPQ_TRY(opq_infer_pairs(call));
    const opq_type *sums = &call->operands[place_of(r, 'S')], *state = &call->operands[place_of(r, 'C')],
                   *weight = &call->operands[place_of(r, 'W')];
    if (sums->rank != 2 || state->rank != 2 || weight->rank != 2 || state->size[0] == 0 || sums->size[0] == 0 ||
        sums->size[0] % state->size[0] != 0)
        return opq_fail(OPQ_INVALID, "%s: sums %s, states %s and weight %s are not of steps, batch and hidden state",
                        call->info->name, opq_shape_name(sums).text, opq_shape_name(state).text,
                        opq_shape_name(weight).text);
    int64_t batch = state->size[0], hidden = state->size[1], steps = sums->size[0] / batch, k = weight->size[1];
    if (k != hidden && (k != 0 || steps != 1))
        return opq_fail(OPQ_INVALID, "%s: weight %s for a hidden state of %lld", call->info->name,
                        opq_shape_name(weight).text, (long long)hidden);
    for (int i = 0; i < call->arity; i++) {
        opq_type want = type_of(r, r->operands[i], call->compute, steps, batch, hidden, k);
        OPQ_TRY(check_operand(call, i, &want));
    }
    *out_type = type_of(r, r->result, call->compute, steps, batch, hidden, k);
    return OPQ_OK;
}

/* ---- steps: values are made until one cannot be, which `status` keeps */

typedef struct walk {
    opq_graph *graph;
    const opq_ref *x; /* operands */
    opq_status status;
    opq_dtype dtype;
    opq_op op;
    int gates;
    int64_t steps, batch, hidden;
    int64_t pairs;        /* the rule of its products */
    bool reverse, recurs; /* recurs: a step's product is made here */
} walk;

static opq_ref apply(walk *w, opq_op op, const opq_ref *operands, int arity, opq_attr_key key, int64_t number)
{
    opq_attr attr = {.key = (uint8_t)key, .i = number};
    opq_ref ref = 0;
    if (w->status == OPQ_OK)
        w->status = opq_graph_op(w->graph, op, operands, arity, &attr, key != OPQ_ATTR_COUNT, &ref);
    return ref;
}

static opq_ref unary(walk *w, opq_op op, opq_ref a) { return apply(w, op, &a, 1, OPQ_ATTR_COUNT, 0); }

static opq_ref binary(walk *w, opq_op op, opq_ref a, opq_ref b)
{
    return apply(w, op, (opq_ref[]){a, b}, 2, OPQ_ATTR_COUNT, 0);
}

static opq_ref add(walk *w, opq_ref a, opq_ref b) { return binary(w, OPQ_OP_add, a, b); }

static opq_ref mul(walk *w, opq_ref a, opq_ref b) { return binary(w, OPQ_OP_mul, a, b); }

/* sigmoid_backward, tanh_backward: in primitives, as a pass that expands leaves them. */
static opq_ref backward(walk *w, opq_op op, opq_ref grad, opq_ref result)
{
    opq_ref operands[] = {grad, result}, ref = 0;
    if (w->status != OPQ_OK)
        return ref;
    opq_node node = {.op = (uint16_t)op, .arity = 2, .kernel = -1, .operand = operands};
    node.type = opq_node_at(w->graph, grad)->type;
    w->status = opq_expand_node(w->graph, &node, operands, &ref);
    return ref;
}

static opq_ref window(walk *w, opq_ref of, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    const int64_t start[] = {row, column}, step[] = {1, 1}, size[] = {rows, columns};
    opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = 2, .ints = start},
                        {.key = OPQ_ATTR_step, .count = 2, .ints = step}};
    opq_type type = opq_type_make(w->dtype, 2, size);
    opq_ref ref = 0;
    if (w->status == OPQ_OK)
        w->status = opq_graph_op_typed(w->graph, OPQ_OP_slice, &type, &of, 1, attrs, 2, &ref);
    return ref;
}

static int64_t time_of(const walk *w, int64_t step) { return w->reverse ? w->steps - 1 - step : step; }

static opq_ref rows_of(walk *w, int operand, int64_t step)
{
    if (w->status != OPQ_OK)
        return 0;
    return window(w, w->x[operand], time_of(w, step) * w->batch, w->batch, 0,
                  opq_node_at(w->graph, w->x[operand])->type.size[1]);
}

static opq_ref gate_of(walk *w, opq_ref of, int gate)
{
    return window(w, of, 0, w->batch, gate * w->hidden, w->hidden);
}

/* ---- gradients of the gates of all steps, in the memory that has them in the end: gate by gate they are written there, and read there, a
 * step at a time, by the product of the step before. The read is a view of memory, which no pass takes for what was written. */

static opq_ref gates_of_all(walk *w)
{
    const int64_t size[] = {w->steps * w->batch, w->gates * w->hidden};
    opq_type type = opq_type_make(w->dtype, 2, size);
    opq_ref ref = 0;
    if (w->status == OPQ_OK)
        w->status = opq_graph_op_typed(w->graph, OPQ_OP_undefined, &type, NULL, 0, NULL, 0, &ref);
    return ref;
}

static opq_ref write_step(walk *w, opq_ref all, int64_t step, const opq_ref *gates)
{
    const int64_t width = w->gates * w->hidden, size[] = {w->batch, w->hidden}, strides[] = {width, 1};
    for (int g = 0; g < w->gates && w->status == OPQ_OK; g++) {
        opq_attr attrs[] = {{.key = OPQ_ATTR_offset, .i = time_of(w, step) * w->batch * width + g * w->hidden},
                            {.key = OPQ_ATTR_sizes, .count = 2, .ints = size},
                            {.key = OPQ_ATTR_strides, .count = 2, .ints = strides}};
        opq_type type = opq_node_at(w->graph, all)->type;
        w->status = opq_graph_op_typed(w->graph, OPQ_OP_update, &type, (opq_ref[]){all, gates[g]}, 2, attrs, 3, &all);
    }
    return all;
}

static opq_ref read_step(walk *w, opq_ref all, int64_t step)
{
    if (w->status != OPQ_OK)
        return 0;
    const int64_t width = w->gates * w->hidden, size[] = {w->batch, width}, strides[] = {width, 1};
    opq_attr attrs[] = {{.key = OPQ_ATTR_offset, .i = time_of(w, step) * w->batch * width},
                        {.key = OPQ_ATTR_strides, .count = 2, .ints = strides}};
    opq_type type = opq_type_make(w->dtype, 2, size);
    opq_ref ref = 0;
    w->status = opq_graph_op_typed(w->graph, OPQ_OP_strided, &type, &all, 1, attrs, 2, &ref);
    return ref;
}

static opq_ref product(walk *w, opq_ref a, opq_ref weight, bool transposed)
{
    opq_attr attrs[] = {{.key = OPQ_ATTR_pairs, .i = w->pairs}, {.key = OPQ_ATTR_transpose_b, .i = transposed}};
    opq_ref ref = 0;
    if (w->status == OPQ_OK)
        w->status = opq_graph_op(w->graph, OPQ_OP_matmul, (opq_ref[]){a, weight}, 2, attrs, 2, &ref);
    return ref;
}

/* ---- LSTM */

static void lstm_gates(walk *w, opq_ref sum, opq_ref *gates)
{
    for (int g = 0; g < 4; g++)
        gates[g] = unary(w, g == 2 ? OPQ_OP_tanh : OPQ_OP_sigmoid, gate_of(w, sum, g));
}

static void lstm_forward(walk *w, opq_ref *parts)
{
    opq_ref h = w->x[1], c = w->x[2], gates[4];
    for (int64_t i = 0; i < w->steps; i++) {
        opq_ref sum = rows_of(w, 0, i);
        if (w->recurs)
            sum = add(w, sum, product(w, h, w->x[3], true));
        lstm_gates(w, sum, gates);
        c = add(w, mul(w, gates[1], c), mul(w, gates[0], gates[2]));
        h = mul(w, gates[3], unary(w, OPQ_OP_tanh, c));
        parts[time_of(w, i)] = w->op == OPQ_OP_lstm ? h : w->op == OPQ_OP_lstm_states ? c : sum;
    }
}

/* Gives the gradient of the first state; *all: of the gates of all steps. */
static opq_ref lstm_backward(walk *w, opq_ref *all)
{
    opq_ref grad_c = w->x[4], gates[4];
    *all = gates_of_all(w);
    for (int64_t i = w->steps - 1; i >= 0; i--) {
        opq_ref grad_h = rows_of(w, 0, i), before = i > 0 ? rows_of(w, 2, i - 1) : w->x[3];
        if (i < w->steps - 1)
            grad_h = add(w, grad_h, product(w, read_step(w, *all, i + 1), w->x[5], false));
        lstm_gates(w, rows_of(w, 1, i), gates);
        opq_ref in = gates[0], forget = gates[1], cell = gates[2], out = gates[3];
        opq_ref outside = unary(w, OPQ_OP_tanh, rows_of(w, 2, i));
        opq_ref of_out = backward(w, OPQ_OP_sigmoid_backward, mul(w, grad_h, outside), out);
        opq_ref of_cell = add(w, backward(w, OPQ_OP_tanh_backward, mul(w, grad_h, out), outside), grad_c);
        opq_ref grads[] = {backward(w, OPQ_OP_sigmoid_backward, mul(w, of_cell, cell), in),
                           backward(w, OPQ_OP_sigmoid_backward, mul(w, of_cell, before), forget),
                           backward(w, OPQ_OP_tanh_backward, mul(w, of_cell, in), cell), of_out};
        *all = write_step(w, *all, i, grads);
        grad_c = mul(w, of_cell, forget);
    }
    return grad_c;
}

/* ---- GRU */

typedef struct gru_gates {
    opq_ref reset, update, fresh, share; /* share: the hidden state's part of fresh, which reset scales */
} gru_gates;

static gru_gates gru_gates_of(walk *w, opq_ref sum, opq_ref past)
{
    gru_gates g;
    g.reset = unary(w, OPQ_OP_sigmoid, add(w, gate_of(w, sum, 0), gate_of(w, past, 0)));
    g.update = unary(w, OPQ_OP_sigmoid, add(w, gate_of(w, sum, 1), gate_of(w, past, 1)));
    g.share = gate_of(w, past, 2);
    g.fresh = unary(w, OPQ_OP_tanh, add(w, gate_of(w, sum, 2), mul(w, g.reset, g.share)));
    return g;
}

static void gru_forward(walk *w, opq_ref *parts)
{
    opq_ref h = w->x[1];
    for (int64_t i = 0; i < w->steps; i++) {
        opq_ref past = w->x[3];
        if (w->recurs)
            past = add(w, product(w, h, w->x[2], true), past);
        gru_gates g = gru_gates_of(w, rows_of(w, 0, i), past);
        h = add(w, g.fresh, mul(w, g.update, binary(w, OPQ_OP_sub, h, g.fresh)));
        parts[time_of(w, i)] = w->op == OPQ_OP_gru ? h : past;
    }
}

static opq_ref gru_backward(walk *w, opq_ref *all)
{
    opq_ref grad_h = -1, inputs = gates_of_all(w), hidden = gates_of_all(w);
    for (int64_t i = w->steps - 1; i >= 0; i--) {
        opq_ref own = rows_of(w, 0, i), before = i > 0 ? rows_of(w, 3, i - 1) : w->x[4];
        grad_h = grad_h < 0 ? own : add(w, own, grad_h);
        gru_gates g = gru_gates_of(w, rows_of(w, 1, i), rows_of(w, 2, i));
        opq_ref kept = mul(w, grad_h, g.update);
        opq_ref of_fresh = backward(w, OPQ_OP_tanh_backward, binary(w, OPQ_OP_sub, grad_h, kept), g.fresh);
        opq_ref moved = mul(w, grad_h, binary(w, OPQ_OP_sub, before, g.fresh));
        opq_ref from_input[] = {backward(w, OPQ_OP_sigmoid_backward, mul(w, of_fresh, g.share), g.reset),
                                backward(w, OPQ_OP_sigmoid_backward, moved, g.update), of_fresh};
        opq_ref from_hidden[] = {from_input[0], from_input[1], mul(w, of_fresh, g.reset)};
        hidden = write_step(w, hidden, i, from_hidden);
        if (w->op == OPQ_OP_gru_backward)
            inputs = write_step(w, inputs, i, from_input);
        grad_h = w->recurs ? add(w, product(w, read_step(w, hidden, i), w->x[5], false), kept) : kept;
    }
    *all = w->op == OPQ_OP_gru_backward ? inputs : hidden;
    return grad_h;
}

/* ---- entry */

opq_status opq_expand_recurrent(opq_graph *graph, const opq_node *node, const opq_ref *operands, opq_ref *out_ref)
{
    const recurrent *r = recurrent_of(node->op);
    const opq_type *state = &opq_node_at(graph, operands[place_of(r, 'C')])->type,
                   *sums = &opq_node_at(graph, operands[place_of(r, 'S')])->type;
    walk w = {.graph = graph,
              .x = operands,
              .dtype = (opq_dtype)sums->dtype,
              .op = (opq_op)node->op,
              .gates = r->gates,
              .steps = sums->size[0] / state->size[0],
              .batch = state->size[0],
              .hidden = state->size[1],
              .pairs = opq_node_int(node, OPQ_ATTR_pairs, 0),
              .reverse = opq_node_int(node, OPQ_ATTR_reverse, 0) != 0,
              .recurs = opq_node_at(graph, operands[place_of(r, 'W')])->type.size[1] == state->size[1]};
    if (r->operands[0] != 'S') {
        opq_ref all = 0, first = r->gates == 4 ? lstm_backward(&w, &all) : gru_backward(&w, &all);
        *out_ref = r->result == 'C' ? first : all;
        return w.status;
    }
    opq_ref *parts = malloc((size_t)w.steps * sizeof *parts);
    if (parts == NULL)
        return opq_fail(OPQ_NO_MEMORY, "%s: out of memory", opq_node_info(node)->name);
    r->gates == 4 ? lstm_forward(&w, parts) : gru_forward(&w, parts);
    *out_ref = apply(&w, OPQ_OP_concat, parts, (int)w.steps, OPQ_ATTR_axis, 0);
    free(parts);
    return w.status;
}
