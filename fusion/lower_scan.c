/* Scans: a running fold whose value is seen in each turn of its loop.
 *
 *   cumsum(x * x, 1) / n        parallel i { .. serial j { load; mul; scan_add; div; store } }
 *   flip(cumsum(flip(x)))       the same from the last turn to the first: the loop is turned round
 *
 * The loop runs over the whole axis of every scan of the kernel, in order; whatever else moves along that axis is computed in the same turn.
 * What is read of a scan at other places (part of the axis, at indices) has it from memory.
 */
#include "fusion/lower_state.h"

/* Does the index run over all of `size`, in order or (out_back) against it? */
static bool runs_over(const opq_lower_state *state, const opq_affine *index, int64_t size, bool *out_back)
{
    int64_t stride = 1;
    *out_back = index->offset == size - 1 && size > 1;
    if (index->coef[OPQ_AT] != 0 || (index->offset != 0 && !*out_back))
        return false;
    for (int l = state->space.rank - 1; l >= 0; l--) {
        if (index->coef[l] == 0)
            continue;
        if (index->coef[l] != (*out_back ? -stride : stride))
            return false;
        stride *= state->space.extent[l];
    }
    return stride == size;
}

/* Marks the loops of the axis; false: another scan of the kernel has others. */
static bool mark_loops(opq_lower_state *state, const opq_affine *index, bool back)
{
    bool again = state->scans;
    for (int l = 0; l < state->space.rank; l++) {
        bool along = index->coef[l] != 0;
        if (again && along != (state->space.role[l] == OPQ_ROLE_scan))
            return false;
        state->space.role[l] = along ? OPQ_ROLE_scan : state->space.role[l];
    }
    if (again && back != state->scans_back)
        return false;
    state->scans = true;
    state->scans_back = back;
    return true;
}

int opq_lower_scan(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    bool back;
    if (state->guard >= 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_scan);
    opq_lower_repeats(state, node, map);
    if (!runs_over(state, &map->dim[axis], node->type.size[axis], &back) || !mark_loops(state, &map->dim[axis], back))
        return opq_lower_refuse(state, OPQ_REFUSAL_scan);
    for (int d = 0; d < node->type.rank; d++)
        for (int v = 0; d != axis && v < OPQ_VARIABLES; v++)
            if (map->dim[d].coef[v] != 0 && (v == OPQ_AT || state->space.role[v] == OPQ_ROLE_scan))
                return opq_lower_refuse(state, OPQ_REFUSAL_scan);
    int operand = opq_lower_emit(state, node->operand[0], map);
    opq_stmt scan = opq_lower_stmt(node->op, opq_compute_dtype(node->type.dtype), operand, -1);
    scan.value.i = opq_scan_dtype((opq_op)node->op, (opq_dtype)node->type.dtype);
    return opq_lower_push(state, &scan);
}

void opq_lower_turn_scans(opq_lower_state *state)
{
    for (int l = 0; l < state->space.rank && state->scans_back; l++) {
        if (state->space.role[l] != OPQ_ROLE_scan)
            continue;
        for (int a = 0; a < state->access_count; a++) {
            state->affines[a].offset += state->affines[a].coef[l] * (state->space.extent[l] - 1);
            state->affines[a].coef[l] = -state->affines[a].coef[l];
        }
    }
}
