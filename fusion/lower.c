/* From a group of nodes to a kernel: chooses the loops, then emits every stored node over them.
 *
 *      stored nodes                 space                        body
 *   %9 f32[8,128,1]  ----+   [8,128 | 768]                 stores of %9, %12, and whatever
 *   %12 f32[1024,768] ---+   kept     reduced              they need, down to memory
 *
 * The space comes from the operand of a reduction, from a matmul, or from the largest stored node, cut finely enough that every
 * full-sized shape in the group is a merge of its loops: [1024,768] and [8,128,768] meet in [8,128,768].
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
    case OPQ_CLASS_CONST: case OPQ_CLASS_SCALAR: case OPQ_CLASS_IOTA: case OPQ_CLASS_VIEW: return true;
    case OPQ_CLASS_INPUT: case OPQ_CLASS_REDUCE: case OPQ_CLASS_RANDOM: case OPQ_CLASS_EWISE: case OPQ_CLASS_CAST: case OPQ_CLASS_UPDATE: case OPQ_CLASS_CONCAT:
    case OPQ_CLASS_INDEX: case OPQ_CLASS_SCATTER: case OPQ_CLASS_MATMUL: case OPQ_CLASS_COMPOSITE: case OPQ_CLASS_EXTERN: case OPQ_CLASS_COUNT:
        break;
    }
    return false;
}

/* ---- the space */

/* What decides about the loops: a reduction, a matmul, or the largest member. */
typedef struct members {
    opq_ref largest, reduce, matmul; /* -1: none */
    int matmul_count;
} members;

static members find_members(const opq_lower_request *rq)
{
    const opq_graph *graph = rq->graph;
    members found = {rq->stored[0], -1, -1, 0};
    int64_t most = -1;
    for (opq_ref n = rq->stored[rq->stored_count - 1]; n >= 0; n--) {
        const opq_node *node = opq_node_at(graph, n);
        if (rq->group_of[n] != rq->group)
            continue;
        if (opq_node_class(node) == OPQ_CLASS_REDUCE && found.reduce < 0)
            found.reduce = n;
        if (opq_node_class(node) == OPQ_CLASS_MATMUL) {
            found.matmul = n;
            found.matmul_count++;
        }
        if (opq_type_count(&node->type) > most) {
            most = opq_type_count(&node->type);
            found.largest = n;
        }
    }
    return found;
}

static int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Cuts of a shape: the products of its trailing extents. */
static int add_cuts(const opq_type *type, int64_t *cuts, int count, int limit)
{
    int64_t product = 1;
    for (int d = type->rank - 1; d >= 0 && count < limit; d--) {
        product *= type->size[d];
        if (type->size[d] != 1)
            cuts[count++] = product;
    }
    return count;
}

enum { CUTS_MAX = 256 };

/* Shapes of the views that lead from node `ref` to memory, where they are as large as the space. What lies behind a permute is cut in
 * another order: its shapes say nothing about these loops. */
static int add_view_cuts(const opq_lower_request *rq, opq_ref ref, int64_t total, int64_t *cuts, int count)
{
    for (;;) {
        const opq_node *node = opq_node_at(rq->graph, ref);
        bool followed = opq_node_class(node) == OPQ_CLASS_VIEW && (rq->group_of[ref] < 0 || rq->group_of[ref] == rq->group);
        if (opq_type_count(&node->type) == total)
            count = add_cuts(&node->type, cuts, count, CUTS_MAX);
        if (!followed || node->op == OPQ_OP_permute)
            return count;
        ref = node->operand[0];
    }
}

static int collect_cuts(const opq_lower_request *rq, const opq_type *type, bool views, int64_t *cuts)
{
    int64_t total = opq_type_count(type);
    int count = add_cuts(type, cuts, 0, CUTS_MAX);
    for (opq_ref n = 0; n <= rq->stored[rq->stored_count - 1] && total > 0; n++) {
        if (rq->group_of[n] != rq->group)
            continue;
        const opq_node *node = opq_node_at(rq->graph, n);
        if (opq_type_count(&node->type) == total && !opq_shape_equal(&node->type, type))
            count = add_cuts(&node->type, cuts, count, CUTS_MAX);
        for (int k = 0; views && k < node->arity; k++)
            count = add_view_cuts(rq, node->operand[k], total, cuts, count);
    }
    qsort(cuts, (size_t)count, sizeof *cuts, compare_int64);
    return count;
}

/* Loops between the cuts, innermost first; -1 if a cut does not divide the next. */
static int loops_between(const int64_t *cuts, int count, int64_t *extents)
{
    int64_t before = 1;
    int rank = 0;
    for (int i = 0; i < count; i++) {
        if (cuts[i] == before)
            continue;
        if (cuts[i] % before != 0 || rank >= OPQ_SPACE_MAX)
            return -1;
        extents[rank++] = cuts[i] / before;
        before = cuts[i];
    }
    return rank;
}

static int loops_of_nothing(const opq_type *type, int64_t *extents)
{
    int rank = 0; /* nothing runs, but a reduction of nothing has a value */
    for (int d = type->rank - 1; d >= 0; d--)
        if (type->size[d] != 1 && rank < OPQ_SPACE_MAX)
            extents[rank++] = type->size[d];
    return rank;
}

static bool make_space(opq_lower_state *state, opq_ref root, const opq_node *reduce)
{
    const opq_lower_request *rq = state->request;
    const opq_type *type = &opq_node_at(state->graph, root)->type;
    int64_t cuts[CUTS_MAX], extents[CUTS_MAX], total = opq_type_count(type);
    opq_space *space = &state->space;
    int rank = total == 0 ? loops_of_nothing(type, extents) : loops_between(cuts, collect_cuts(rq, type, true, cuts), extents);
    if (rank < 0)
        rank = loops_between(cuts, collect_cuts(rq, type, false, cuts), extents);
    if (rank < 0)
        return false;
    space->rank = rank;
    int d = type->rank - 1;
    int64_t inside = 1;
    bool inner_run = true;
    for (int l = 0; l < rank; l++) { /* innermost first */
        while (d > 0 && (type->size[d] == 1 || inside == type->size[d])) {
            inner_run = inner_run && reduce && opq_node_reduces(reduce, d);
            inside = 1;
            d--;
        }
        bool reduced = reduce && opq_node_reduces(reduce, d);
        inner_run = inner_run && reduced;
        inside *= extents[l];
        if (total == 0)
            inside = type->size[d];
        space->extent[rank - 1 - l] = extents[l];
        space->reduced[rank - 1 - l] = reduced;
        state->role[rank - 1 - l] = reduced ? (inner_run ? OPQ_ROLE_reduced_inner : OPQ_ROLE_reduced_outer) : OPQ_ROLE_kept;
    }
    return true;
}

/* Fine loops must not straddle a border between kept and reduced dims: with cuts at every dim of the root they cannot. A reduction
 * with only extents of 1 still needs its loop. */
static bool complete_reduced(opq_lower_state *state)
{
    opq_space *space = &state->space;
    uint8_t want = state->column ? OPQ_ROLE_reduced_outer : OPQ_ROLE_reduced_inner;
    for (int l = 0; l < space->rank; l++)
        if (state->role[l] == want)
            return true;

    if (space->rank >= OPQ_SPACE_MAX)
        return false;
    space->extent[space->rank] = 1;
    space->reduced[space->rank] = true;
    state->role[space->rank++] = want;
    return true;
}

/* Loops of a matmul are [batch.., m, n]; extents of 1 keep their loop. */
static bool make_matmul_space(opq_lower_state *state, opq_ref root)
{
    const opq_node *node = opq_node_at(state->graph, root);
    if (!make_space(state, root, NULL))
        return false;
    opq_space *space = &state->space;
    int64_t n = node->type.size[node->type.rank - 1], m = node->type.size[node->type.rank - 2], inside = 1;
    opq_space fine = *space;
    int l = fine.rank - 1, at = OPQ_SPACE_MAX - 1;
    int64_t extent[OPQ_SPACE_MAX];
    uint8_t role[OPQ_SPACE_MAX];
    const int64_t want[2] = {n, m};
    for (int step = 0; step < 2; step++, inside = 1) {
        uint8_t this_role = step == 0 ? OPQ_ROLE_n : OPQ_ROLE_m;
        if (want[step] == 1) {
            extent[at] = 1;
            role[at--] = this_role;
            continue;
        }
        for (; l >= 0 && inside < want[step] && at >= 0; l--) {
            inside *= fine.extent[l];
            extent[at] = fine.extent[l];
            role[at--] = this_role;
        }
        if (inside != want[step])
            return false;
    }
    for (; l >= 0 && at >= 0; l--) {
        extent[at] = fine.extent[l];
        role[at--] = OPQ_ROLE_batch;
    }
    if (l >= 0)
        return false;
    space->rank = OPQ_SPACE_MAX - 1 - at;
    for (int i = 0; i < space->rank; i++) {
        space->extent[i] = extent[at + 1 + i];
        state->role[i] = role[at + 1 + i];
        space->reduced[i] = false;
    }
    return true;
}

/* ---- stores */

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
    return opq_affine_split(&linear, space, type, out_map) || count == 0;
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
    store.access = (int16_t)opq_lower_access(state, ref, node->type.dtype, true, &address);
    if (store.access >= 0)
        opq_lower_push(state, &store);
    state->out->serial = true;
}

static opq_refusal lower_space(opq_lower_state *state)
{
    const opq_lower_request *rq = state->request;
    members found = find_members(rq);
    bool made;
    for (int i = 0; i < rq->stored_count; i++) {
        const opq_node *node = opq_node_at(state->graph, rq->stored[i]);
        opq_class class_ = opq_node_class(node);
        if (class_ != OPQ_CLASS_UPDATE && class_ != OPQ_CLASS_SCATTER)
            continue;
        if (rq->stored_count > 1 || found.matmul >= 0)
            return OPQ_REFUSAL_other_use;
        return make_space(state, node->operand[node->arity - 1], NULL) ? OPQ_REFUSAL_none : OPQ_REFUSAL_space;
    }
    if (found.matmul_count > 1)
        return OPQ_REFUSAL_two_matmuls;
    if (found.matmul >= 0 && found.reduce >= 0)
        return OPQ_REFUSAL_after_matmul;
    if (found.reduce >= 0) {
        const opq_node *node = opq_node_at(state->graph, found.reduce);
        state->column = opq_node_int(node, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column;
        made = make_space(state, node->operand[0], node) && complete_reduced(state);
    } else if (found.matmul >= 0) {
        state->out->matmul = found.matmul;
        made = make_matmul_space(state, found.matmul);
    } else {
        made = make_space(state, found.largest, NULL);
    }
    return made ? OPQ_REFUSAL_none : OPQ_REFUSAL_space;
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
    memset(state->bucket, 0xff, sizeof state->bucket);
    out_lowered->matmul = out_lowered->tile = -1;

    state->refusal = lower_space(state);
    for (int i = 0; i < request->stored_count && state->refusal == OPQ_REFUSAL_none; i++) {
        opq_class class_ = opq_node_class(opq_node_at(request->graph, request->stored[i]));
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
