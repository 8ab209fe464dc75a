/* What is read through views and paddings. */
#include "fusion/lower_state.h"

#include <math.h>

bool opq_lower_guard(opq_lower_state *state, const opq_affine *index, int64_t extent)
{
    opq_stmt inside = opq_lower_stmt(OPQ_STMT_inside, OPQ_bool, -1, -1);
    if (index->coef[OPQ_AT] != 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_boundary) >= 0;
    int guard = opq_lower_move(state, &inside, -1, OPQ_i64, index);
    if (guard >= 0)
        state->at_extents[inside.access] = extent;
    if (guard >= 0 && state->guard >= 0)
        guard = opq_lower_op(state, OPQ_OP_bitwise_and, OPQ_bool, state->guard, guard);
    state->guard = (int16_t)guard;
    return guard >= 0;
}

bool opq_pad_is_zero(const opq_node *pad)
{
    opq_number value = opq_node_attr(pad, OPQ_ATTR_value)->number;
    bool real = opq_dtype_kind_of((opq_dtype)pad->type.dtype) == OPQ_KIND_FLOAT;
    return real ? value.f == 0 && !signbit(value.f) : value.i == 0;
}

/* Is it a part of the condition `guard` already? */
static bool is_guarded(const opq_lower_state *state, int guard, const opq_affine *index, int64_t extent)
{
    const opq_stmt *stmt = guard < 0 ? NULL : &state->body[guard];
    if (stmt == NULL || stmt->op == OPQ_STMT_inside)
        return stmt && state->at_extents[stmt->access] == extent &&
               opq_affine_equal(&state->affines[stmt->access], index);
    return is_guarded(state, stmt->operand[0], index, extent) || is_guarded(state, stmt->operand[1], index, extent);
}

/* Conditions of all indices that are not inside of `type` at every turn. */
static bool guard_dims(opq_lower_state *state, const opq_type *type, const opq_index_map *map)
{
    for (int d = 0; d < type->rank; d++)
        if (!opq_affine_inside(&map->dim[d], &state->space, type->size[d]) &&
            !is_guarded(state, state->guard, &map->dim[d], type->size[d]) &&
            !opq_lower_guard(state, &map->dim[d], type->size[d]))
            return false;
    return true;
}

/* A condition of an index says little of the parts that it is split into: they have conditions of their own, by which a load is seen to be
 * within its buffer. */
static int emit_split(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    int16_t outer = state->guard;
    if (outer >= 0 && !guard_dims(state, &opq_node_at(state->graph, node->operand[0])->type, map))
        return -1;
    int operand = opq_lower_emit(state, node->operand[0], map);
    state->guard = outer;
    return operand;
}

/* What lies behind is computed where there is something, and chosen there; a load alone gives a 0 elsewhere. */
static int emit_pad(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    const opq_type *source = &opq_node_at(state->graph, node->operand[0])->type;
    int16_t outer = state->guard;
    if (!guard_dims(state, source, map))
        return -1;
    int16_t guard = state->guard;
    int operand = opq_lower_emit(state, node->operand[0], map);
    state->guard = outer;
    if (operand < 0 || guard == outer)
        return operand;
    if (opq_pad_is_zero(node) && state->body[operand].op == OPQ_STMT_load && state->body[operand].operand[0] == guard)
        return operand;
    int other = opq_lower_const(state, node);
    opq_stmt chosen = opq_lower_stmt(OPQ_OP_where, opq_compute_dtype(node->type.dtype), guard, operand);
    chosen.operand[2] = (int16_t)other;
    return opq_lower_push(state, &chosen);
}

int opq_lower_view(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    opq_index_map operand_map;
    opq_affine linear;
    switch (opq_affine_view(state->graph, node, map, &state->space, &operand_map, &linear)) {
    case OPQ_THROUGH_map: return opq_lower_emit(state, node->operand[0], &operand_map);
    case OPQ_THROUGH_split: return emit_split(state, node, &operand_map);
    case OPQ_THROUGH_pad: return emit_pad(state, node, &operand_map);
    case OPQ_THROUGH_linear: break;
    }
    opq_ref source = node->operand[0];
    while (opq_node_at(state->graph, source)->op == OPQ_OP_reshape &&
           !opq_lower_is_stored(state, source)) /* the same dense elements */
        source = opq_node_at(state->graph, source)->operand[0];
    opq_class class_ = opq_node_class(opq_node_at(state->graph, source));
    if (class_ == OPQ_CLASS_IOTA && !opq_lower_is_stored(state, source))
        return opq_lower_iota(state, opq_node_at(state->graph, source), &linear);
    bool memory = state->request->group_of[source] != state->request->group && !opq_node_is_free(state->graph, source);
    if (class_ == OPQ_CLASS_VIEW || class_ == OPQ_CLASS_IOTA)
        memory = opq_lower_is_stored(state, source) && state->request->group_of[source] != state->request->group;
    return memory ? opq_lower_load(state, source, &linear) : opq_lower_refuse(state, OPQ_REFUSAL_view);
}
