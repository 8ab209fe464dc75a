/* From a group of nodes to a kernel: chooses the loops (lower_space.c), then emits every stored node over them.
 *
 *      stored nodes                 space                        body
 *   %9 f32[8,128,1]  ----+   [8,128 | 768]                 stores of %9, %12, and whatever
 *   %12 f32[1024,768] ---+   kept     reduced              they need, down to memory
 */
#include "fusion/lower_state.h"

#include <string.h>

static const struct {
    const char *name, *text, *remedy;
    bool acts;
} refusals[] = {
#define X(name, text, acts, remedy) {#name, text, remedy, acts},
    OPQ_REFUSALS(X)
#undef X
};
const char *opq_refusal_name(opq_refusal refusal) { return refusals[refusal].name; }
const char *opq_refusal_text(opq_refusal refusal) { return refusals[refusal].text; }
const char *opq_refusal_remedy(opq_refusal refusal) { return refusals[refusal].remedy; }
bool opq_refusal_acts(opq_refusal refusal) { return refusals[refusal].acts; }

bool opq_node_is_free(const opq_graph *graph, opq_ref ref)
{
    opq_class class_ = opq_node_class(opq_node_at(graph, ref));
    return class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR || class_ == OPQ_CLASS_IOTA ||
           class_ == OPQ_CLASS_VIEW;
}

opq_ref opq_lower_base(const opq_graph *graph, const int32_t *group_of, opq_ref ref)
{
    while (opq_node_class(opq_node_at(graph, ref)) == OPQ_CLASS_VIEW && group_of[ref] < 0)
        ref = opq_node_at(graph, ref)->operand[0];
    return ref;
}

static void begin(opq_lower_state *state, const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered)
{
    memset(state, 0, offsetof(opq_lower_state, body));
    state->request = request;
    state->graph = request->graph;
    state->arena = arena;
    state->out = out_lowered;
    state->at = state->guard = state->product = -1;
    state->at_node = -1;
    memset(state->bucket, 0xff, sizeof state->bucket);
}

opq_status opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered)
{
    opq_lower_state on_stack, *state = &on_stack; /* pages that are there already: it is much for a kernel of one op */
    memset(out_lowered, 0, sizeof *out_lowered);
    out_lowered->matmul = -1;
    begin(state, request, arena, out_lowered);

    if (!opq_lower_idle(request)) /* else: no loops, no statements, and any nodes go together */
        state->refusal = opq_lower_space(state);
    opq_lower_stored(state);
    opq_status status = OPQ_OK;
    if (state->no_memory)
        status = opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling a kernel");
    else if (state->refusal == OPQ_REFUSAL_none)
        status = opq_lower_finish(state);
    if (status == OPQ_OK && out_lowered->direct && out_lowered->loops.stmt_count > 0)
        opq_lower_window(&out_lowered->loops, out_lowered->dims);
    out_lowered->refusal = state->refusal;
    out_lowered->argument_count = state->buffer_count + state->scalar_count;
    for (int i = 0; i < state->body_count; i++)
        out_lowered->load_count += state->body[i].op == OPQ_STMT_load || state->body[i].op == OPQ_STMT_load_at;
    out_lowered->fill = state->memo_count > state->body_count * 2 ? (state->memo_count + 1) / 2 : state->body_count;
    opq_arena_drop(&state->maps);
    return status;
}

/* ---- rows */

/* The parallel loops from the top, as a mask of variables. */
static uint16_t unit_variables(const opq_loops *k)
{
    uint16_t mask = 0;
    for (int i = 0; i < k->stmt_count; i++) {
        if (k->stmts[i].op != OPQ_STMT_loop)
            continue;
        if (k->stmts[i].role != OPQ_LOOP_parallel)
            break;
        mask |= (uint16_t)(1u << k->stmts[i].variable);
    }
    return mask;
}

static bool access_walks_rows(const opq_lowered *lowered, int access, uint16_t units, int64_t columns)
{
    int64_t step = columns;
    if (columns > 1 && lowered->dims[lowered->loops.rank - 1] != columns) /* several rows as one */
        return false;
    for (int l = lowered->loops.rank - 1; l >= 0; l--) {
        bool unit = units >> l & 1;
        if (lowered->dims[l] != 1 &&
            opq_loops_stride(&lowered->loops, lowered->dims, access, l) != (unit ? step : columns > 1))
            return false;
        step *= unit ? lowered->dims[l] : 1;
    }
    return lowered->dims[opq_dims_of(lowered->loops.rank, access)] == 0;
}

bool opq_lowered_walks_rows(const opq_lowered *lowered, opq_ref node, int64_t columns)
{
    const opq_loops *k = &lowered->loops;
    uint16_t units = unit_variables(k);
    bool walks = true, any = false;
    if (__builtin_popcount(units) != k->rank - 1 || units >> (k->rank - 1) & 1)
        return false;
    for (int a = 0; a < k->access_count; a++)
        if (k->accesses[a].buffer >= 0 && lowered->buffers[k->accesses[a].buffer] == node) {
            any = true;
            walks = walks && access_walks_rows(lowered, a, units, columns);
        }
    return any && walks;
}
