/* What a kernel stores: where each element of a stored node goes, and the statements that make it. */
#include "fusion/lower_state.h"

#include <string.h>

/* Nothing to store: no element, or a write through an empty window. Such a node gets no statement: without loops that it moves along
 * it would be stored once for each turn of the others. */
static bool is_idle(const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_class class_ = opq_node_class(node);
    bool window = class_ == OPQ_CLASS_UPDATE || class_ == OPQ_CLASS_SCATTER;
    return opq_type_count(window ? &opq_node_at(graph, node->operand[node->arity - 1])->type : &node->type) == 0;
}

bool opq_lower_idle(const opq_lower_request *rq)
{
    for (int i = 0; i < rq->stored_count; i++)
        if (!is_idle(rq->graph, rq->stored[i]))
            return false;
    return true;
}

/* A stored node runs over all loops, or (a reduction's result) over the kept ones, in row-major order. False: refused. */
static bool stored_map(opq_lower_state *state, const opq_type *type, opq_index_map *out_map)
{
    int64_t turns, count = opq_type_count(type);
    bool product = state->out->matmul >= 0; /* the loop that it sums over is its own */
    opq_affine linear = opq_lower_index(&state->space, true, !product, &turns);
    if (count != turns && !product)
        linear = opq_lower_index(&state->space, true, false, &turns);
    memset(out_map, 0, sizeof *out_map);
    if (count == turns && opq_affine_split(&linear, &state->space, type, out_map))
        return true;
    return opq_lower_refuse(state, OPQ_REFUSAL_space) >= 0;
}

/* Element `map` of `value` goes to `address` of what is stored. */
static void emit_store(opq_lower_state *state, opq_ref ref, opq_ref value, const opq_index_map *map,
                       const opq_affine *address)
{
    opq_dtype dtype = (opq_dtype)opq_node_at(state->graph, ref)->type.dtype;
    opq_stmt store = opq_lower_stmt(OPQ_STMT_store, opq_compute_dtype(dtype), opq_lower_emit(state, value, map), -1);
    if (store.operand[0] >= 0)
        opq_lower_move(state, &store, ref, dtype, address);
}

/* Is it computed for others, each element in one turn of all loops? Then it is stored as they have it: rows of a permuted view that is summed. */
static bool find_made(const opq_lower_state *state, opq_ref ref, opq_index_map *out_map)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    int64_t turns;
    (void)opq_lower_index(&state->space, true, true, &turns);
    memset(out_map, 0, sizeof *out_map);
    for (int i = 0; i < state->memo_count && turns == opq_type_count(&node->type); i++) {
        const opq_memo *memo = &state->memos[i];
        if (memo->node != ref || memo->at >= 0 || memo->guard >= 0)
            continue;
        memcpy(out_map->dim, memo->dim, (size_t)node->type.rank * sizeof *memo->dim);
        if (opq_lower_covers(state, node, out_map))
            return true;
    }
    return false;
}

static void emit_stored(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    opq_index_map map;
    if (!find_made(state, ref, &map) && !stored_map(state, &node->type, &map))
        return;
    opq_affine address = opq_affine_linear(&map, &node->type);
    emit_store(state, ref, ref, &map, &address);
}

/* update: the loops run over the window; the rest of the buffer is there already. */
static void emit_update(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    const opq_type *window = &opq_node_at(state->graph, node->operand[1])->type;
    opq_index_map map;
    if (!stored_map(state, window, &map))
        return;
    opq_affine address = opq_affine_strided(node, &map, window->rank);
    emit_store(state, ref, node->operand[1], &map, &address);
}

/* index_add, scatter_add: the loops run over what is added, in row-major order, one after the other. */
static void emit_scatter(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    const opq_type *added = &opq_node_at(state->graph, node->operand[2])->type;
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    opq_index_map map, index_map, target;
    if (!stored_map(state, added, &map))
        return;
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
    opq_stmt store = opq_lower_stmt(OPQ_STMT_store_add_at, opq_compute_dtype(node->type.dtype), index, value);
    state->space.extent[OPQ_AT] = node->type.size[axis];
    store.node = ref;
    opq_lower_move(state, &store, ref, node->type.dtype, &address);
    state->serial = true;
}

/* ---- views of a product: its loops stay as they are, and the elements go where the view has them */

bool opq_lower_permuted(const opq_lower_request *rq, opq_ref stored, opq_permuted *out)
{
    opq_ref ref = stored;
    int count = 0;
    while (opq_node_class(opq_node_at(rq->graph, ref)) == OPQ_CLASS_VIEW) {
        const opq_node *node = opq_node_at(rq->graph, ref);
        bool elsewhere = rq->group_of[ref] != rq->group && opq_lower_has_memory(rq->group_of, rq->in_memory, ref);
        if (elsewhere || count == OPQ_FOLLOWED_MAX || (node->op != OPQ_OP_permute && node->op != OPQ_OP_reshape))
            return false;
        out->view[count++] = ref;
        ref = node->operand[0];
    }
    for (int i = 0; i < count / 2; i++) {
        opq_ref swapped = out->view[i];
        out->view[i] = out->view[count - 1 - i];
        out->view[count - 1 - i] = swapped;
    }
    out->base = ref;
    out->count = count;
    return count > 0 && rq->group_of[ref] == rq->group;
}

/* Where element `map` of the base is in the view's dense memory. */
static bool permuted_address(const opq_lower_state *state, const opq_permuted *p, const opq_index_map *map,
                             opq_affine *out_address)
{
    opq_index_map at = *map, next;
    const opq_type *type = &opq_node_at(state->graph, p->base)->type;
    *out_address = opq_affine_linear(&at, type);
    for (int i = 0; i < p->count; i++) {
        const opq_node *node = opq_node_at(state->graph, p->view[i]);
        memset(&next, 0, sizeof next);
        if (node->op == OPQ_OP_permute)
            for (int d = 0; d < node->type.rank; d++)
                next.dim[d] = at.dim[opq_node_attr(node, OPQ_ATTR_dims)->ints[d]];
        else if (i + 1 < p->count && !opq_affine_split(out_address, &state->space, &node->type, &next))
            return false;
        at = next;
        if (node->op == OPQ_OP_permute)
            *out_address = opq_affine_linear(&at, &node->type);
    }
    return true;
}

static bool emit_permuted(opq_lower_state *state, opq_ref ref)
{
    opq_permuted permuted;
    opq_index_map map;
    opq_affine address;
    if (state->out->matmul < 0 || !opq_lower_permuted(state->request, ref, &permuted))
        return false;
    if (!stored_map(state, &opq_node_at(state->graph, permuted.base)->type, &map))
        return true;
    if (!permuted_address(state, &permuted, &map, &address))
        return opq_lower_refuse(state, OPQ_REFUSAL_view) < 0;
    emit_store(state, ref, permuted.base, &map, &address);
    return true;
}

static void emit_root(opq_lower_state *state, opq_ref ref)
{
    opq_class class_ = opq_node_class(opq_node_at(state->graph, ref));
    if (class_ == OPQ_CLASS_UPDATE)
        emit_update(state, ref);
    else if (class_ == OPQ_CLASS_SCATTER)
        emit_scatter(state, ref);
    else if (!emit_permuted(state, ref))
        emit_stored(state, ref);
}

/* Elements may be computed in any order: after all that has one. */
static bool has_any_order(const opq_lower_state *state, opq_ref ref)
{
    opq_class class_ = opq_node_class(opq_node_at(state->graph, ref));
    return state->out->matmul < 0 && (class_ == OPQ_CLASS_EWISE || class_ == OPQ_CLASS_CAST);
}

void opq_lower_stored(opq_lower_state *state)
{
    const opq_lower_request *rq = state->request;
    for (int any = 0; any < 2; any++)
        for (int i = 0; i < rq->stored_count && state->refusal == OPQ_REFUSAL_none; i++)
            if (has_any_order(state, rq->stored[i]) == any && !is_idle(rq->graph, rq->stored[i]))
                emit_root(state, rq->stored[i]);
}
