/* From a group of nodes to a kernel: chooses the loops (lower_space.c), then emits every stored node over them.
 *
 *      stored nodes                 space                        body
 *   %9 f32[8,128,1]  ----+   [8,128 | 768]                 stores of %9, %12, and whatever
 *   %12 f32[1024,768] ---+   kept     reduced              they need, down to memory
 */
#include "fusion/lower_state.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define X(name, text) #name,
    OPQ_REFUSALS(X)
#undef X
};
static const char *const texts[] = {
#define X(name, text) text,
    OPQ_REFUSALS(X)
#undef X
};
const char *opq_refusal_name(opq_refusal refusal) { return names[refusal]; }
const char *opq_refusal_text(opq_refusal refusal) { return texts[refusal]; }

bool opq_node_is_free(const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    switch (opq_node_class(node)) {
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR:
    case OPQ_CLASS_IOTA:
    case OPQ_CLASS_VIEW: return true;
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_REDUCE:
    case OPQ_CLASS_RANDOM:
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_UPDATE:
    case OPQ_CLASS_CONCAT:
    case OPQ_CLASS_INDEX:
    case OPQ_CLASS_SCATTER:
    case OPQ_CLASS_MATMUL:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: break;
    }
    return false;
}

/* ---- stores */

/* Nothing to store: no element, or a write through an empty window. Such a node gets no instruction: without loops that it moves along
 * it would be stored once for each turn of the others. */
static bool is_idle(const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_class class_ = opq_node_class(node);
    bool window = class_ == OPQ_CLASS_UPDATE || class_ == OPQ_CLASS_SCATTER;
    return opq_type_count(window ? &opq_node_at(graph, node->operand[node->arity - 1])->type : &node->type) == 0;
}

static bool all_idle(const opq_lower_request *rq)
{
    for (int i = 0; i < rq->stored_count; i++)
        if (!is_idle(rq->graph, rq->stored[i]))
            return false;
    return true;
}

/* A stored node runs over all loops, or (a reduction's result) over the kept ones, in row-major order. */
static bool stored_map(const opq_lower_state *state, const opq_type *type, opq_index_map *out_map)
{
    const opq_space *space = &state->space;
    int64_t all = 1, kept = 1;
    for (int l = 0; l < space->rank; l++) {
        all *= space->extent[l];
        kept *= space->reduced[l] ? 1 : space->extent[l];
    }
    int64_t count = opq_type_count(type), stride = 1;
    bool over_all = count == all;
    if (!over_all && count != kept)
        return false;
    opq_affine linear = {0};
    for (int l = space->rank - 1; l >= 0; l--) {
        if (space->reduced[l] && !over_all)
            continue;
        linear.coef[l] = space->extent[l] == 1 ? 0 : stride;
        stride *= space->extent[l];
    }
    return opq_affine_split(&linear, space, type, out_map);
}

static void push_store(opq_lower_state *state, opq_ref ref, int value, const opq_affine *address)
{
    opq_dtype dtype = (opq_dtype)opq_node_at(state->graph, ref)->type.dtype;
    opq_instr store = opq_lower_blank(OPQ_INSTR_store, opq_compute_dtype(dtype));
    store.operand[0] = (int16_t)value;
    store.access = (int16_t)opq_lower_access(state, ref, dtype, true, address);
    if (store.access >= 0)
        opq_lower_push(state, &store);
}

static void emit_stored(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    opq_index_map map;
    memset(&map, 0, sizeof map);
    if (!stored_map(state, &node->type, &map)) {
        state->refusal = OPQ_REFUSAL_space;
        return;
    }
    int value = opq_lower_emit(state, ref, &map);
    opq_affine address = opq_affine_linear(&map, &node->type);
    if (value >= 0)
        push_store(state, ref, value, &address);
}

/* update: the loops run over the window; the rest of the buffer is there already. */
static void emit_update(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    const opq_type *window = &opq_node_at(state->graph, node->operand[1])->type;
    const opq_attr *strides = opq_node_attr(node, OPQ_ATTR_strides);
    opq_index_map map;
    memset(&map, 0, sizeof map);
    if (!stored_map(state, window, &map)) {
        state->refusal = OPQ_REFUSAL_space;
        return;
    }
    opq_affine address = {.offset = opq_node_int(node, OPQ_ATTR_offset, 0)};
    for (int d = 0; d < window->rank; d++) {
        address.offset += map.dim[d].offset * strides->ints[d];
        for (int v = 0; v < OPQ_VARIABLES; v++)
            address.coef[v] += map.dim[d].coef[v] * strides->ints[d];
    }
    int value = opq_lower_emit(state, node->operand[1], &map);
    if (value >= 0)
        push_store(state, ref, value, &address);
}

/* index_add, scatter_add: the loops run over what is added, in row-major order, one after the other. */
static void emit_scatter(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    const opq_type *added = &opq_node_at(state->graph, node->operand[2])->type;
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    opq_index_map map, index_map, target;
    memset(&map, 0, sizeof map);
    if (!stored_map(state, added, &map)) {
        state->refusal = OPQ_REFUSAL_space;
        return;
    }
    index_map = target = map;
    if (node->op == OPQ_OP_index_add)
        index_map.dim[0] = map.dim[axis];
    memset(&target.dim[axis], 0, sizeof target.dim[axis]);
    target.dim[axis].coef[OPQ_AT] = 1;
    int index = opq_lower_emit(state, node->operand[1], &index_map);
    int value = index < 0 ? -1 : opq_lower_emit(state, node->operand[2], &map);
    if (value < 0)
        return;
    opq_affine address = opq_affine_linear(&target, &node->type);
    opq_instr store = opq_lower_blank(OPQ_INSTR_store_add_at, opq_compute_dtype(node->type.dtype));
    state->space.extent[OPQ_AT] = node->type.size[axis];
    store.operand[0] = (int16_t)index;
    store.operand[1] = (int16_t)value;
    store.node = ref;
    store.access = (int16_t)opq_lower_access(state, ref, node->type.dtype, true, &address);
    if (store.access >= 0)
        opq_lower_push(state, &store);
    state->out->serial = true;
}

opq_status opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered)
{
    opq_lower_state *state = malloc(sizeof *state);
    if (state == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling a kernel");
    memset(out_lowered, 0, sizeof *out_lowered);
    memset(state, 0, offsetof(opq_lower_state, instrs));
    state->request = request;
    state->graph = request->graph;
    state->arena = arena;
    state->out = out_lowered;
    state->at = -1;
    state->at_node = -1;
    memset(state->bucket, 0xff, sizeof state->bucket);
    out_lowered->matmul = out_lowered->tile = -1;

    if (!all_idle(request)) /* else: no loops, no instructions, and any nodes go together */
        state->refusal = opq_lower_space(state);
    for (int i = 0; i < request->stored_count && state->refusal == OPQ_REFUSAL_none; i++) {
        opq_class class_ = opq_node_class(opq_node_at(request->graph, request->stored[i]));
        if (is_idle(request->graph, request->stored[i]))
            continue;
        if (class_ == OPQ_CLASS_UPDATE)
            emit_update(state, request->stored[i]);
        else if (class_ == OPQ_CLASS_SCATTER)
            emit_scatter(state, request->stored[i]);
        else
            emit_stored(state, request->stored[i]);
    }
    opq_status status = OPQ_OK;
    if (state->refusal == OPQ_REFUSAL_none)
        status = opq_lower_finish(state);
    out_lowered->refusal = state->refusal;
    free(state);
    return status;
}
