/* The iteration space of a kernel: the loops every stored node of a group runs over.
 *
 * It comes from the operand of a reduction, from a matmul, or from the largest stored node (the root), cut finely enough that the
 * shapes met on the way to memory are merges of its loops: [1024,768] and [8,128,768] meet in [8,128,768].
 *
 *   root [7,16]                      loops 7 | 16
 *     %5 add [7,16]                  the same order: runs [7 every 16] [16 every 1]
 *     %4 permute [7,16]
 *     %3 mul [16,7]                  another order:  runs [16 every 1] [7 every 16]
 *     %2 reshape [4,4,7] -> [16,7]   a cut inside the first run: loops 7 | 4 | 4
 *
 * A walk from the stored nodes carries, for each node, the runs of root elements that its row-major order is made of, so a shape
 * behind a permute is cut where it lies in the root and not where it would lie in its own order. A cut that would straddle an earlier
 * one is left out: the node that wanted it is refused when it is emitted, or read from memory, where no cut is needed.
 */
#include "fusion/lower_state.h"

#include <string.h>

/* What decides about the loops: a reduction, a matmul, or the largest stored node. */
typedef struct members {
    opq_ref largest, reduce, matmul; /* -1: none */
    int matmul_count;
    bool scans;
} members;

static members find_members(const opq_lower_request *rq)
{
    const opq_graph *graph = rq->graph;
    members found = {rq->stored[0], -1, -1, 0, false};
    int64_t most = -1;
    for (int i = 0; i < rq->member_count; i++) {
        opq_ref n = rq->members[i];
        opq_class class_ = opq_node_class(opq_node_at(graph, n));
        if (class_ == OPQ_CLASS_REDUCE && n > found.reduce)
            found.reduce = n;
        found.scans |= class_ == OPQ_CLASS_SCAN;
        if (class_ == OPQ_CLASS_MATMUL) {
            found.matmul = n;
            found.matmul_count++;
        }
    }
    for (int i = 0; i < rq->stored_count; i++) {
        int64_t count = opq_type_count(&opq_node_at(graph, rq->stored[i])->type);
        if (count >= most) {
            most = count;
            found.largest = rq->stored[i];
        }
    }
    return found;
}

/* ---- cuts */

enum { RUN_MAX = 2 * OPQ_RANK_MAX, SEEN_BITS = 10 };

/* `extent` elements, `stride` root elements apart. Stride 0: not a run of the root (sliced, gathered), cannot be cut. */
typedef struct run {
    int64_t extent, stride;
} run;

/* The row-major order of a node, outermost first. */
typedef struct runs {
    int count;
    run of[RUN_MAX];
} runs;

typedef struct cutter {
    const opq_lower_request *request;
    bool permuted;  /* stored views follow the loops, not the loops them */
    bool to_memory; /* follow views of memory too, not only those of members */
    int cut_count;
    int64_t cuts[OPQ_SPACE_MAX]; /* ascending, each divides the next; the last is the whole root */
    runs kept, reduced;          /* of the root */
    int nesting;                 /* of walk */
    int seen_count;
    uint64_t seen[1 << SEEN_BITS]; /* hashes of (node, runs) */
} cutter;

static bool add_cut(cutter *c, int64_t cut)
{
    int at = 0;
    while (at < c->cut_count && c->cuts[at] < cut)
        at++;
    if (cut == 1 || (at < c->cut_count && c->cuts[at] == cut))
        return true;
    if (c->cut_count == OPQ_SPACE_MAX || (at > 0 && cut % c->cuts[at - 1] != 0) ||
        (at < c->cut_count && c->cuts[at] % cut != 0))
        return false;
    memmove(&c->cuts[at + 1], &c->cuts[at], (size_t)(c->cut_count - at) * sizeof *c->cuts);
    c->cuts[at] = cut;
    c->cut_count++;
    return true;
}

static void append(runs *list, run run)
{
    if (run.extent != 1 && list->count < RUN_MAX)
        list->of[list->count++] = run;
}

/* Splits run `i` so that its inner part has `inner` turns. */
static bool split_run(cutter *c, runs *list, int i, int64_t inner)
{
    run *whole = &list->of[i];
    if (whole->stride == 0 || whole->extent % inner != 0 || list->count == RUN_MAX || !add_cut(c, whole->stride * inner))
        return false;
    memmove(whole + 1, whole, (size_t)(list->count - i) * sizeof *whole);
    list->count++;
    whole[0] = (run){whole[0].extent / inner, whole[0].stride * inner};
    whole[1].extent = inner;
    return true;
}

/* Makes every dim of `type` whole runs; out_first[d] is the first run of dim d, out_first[rank] their count. */
static bool align(cutter *c, runs *list, const opq_type *type, int *out_first)
{
    int64_t inside = 1, want = 1;
    int i = list->count - 1;
    for (int d = type->rank - 1; d >= 0; d--) {
        want *= type->size[d];
        while (i >= 0 && inside < want) {
            if (want < inside * list->of[i].extent) {
                if (want % inside != 0 || !split_run(c, list, i, want / inside))
                    return false;
                i++; /* the inner part of the two */
            }
            inside *= list->of[i--].extent;
        }
    }
    if (inside != want || i >= 0)
        return false;
    for (int d = 0, r = 0; d < type->rank; d++) {
        out_first[d] = r;
        for (int64_t turns = 1; turns < type->size[d]; r++)
            turns *= list->of[r].extent;
    }
    out_first[type->rank] = list->count;
    return true;
}

static bool is_view(const opq_lower_request *rq, opq_ref ref)
{
    return opq_node_class(opq_node_at(rq->graph, ref)) == OPQ_CLASS_VIEW &&
           (rq->group_of[ref] == rq->group || !opq_lower_has_memory(rq->group_of, rq->in_memory, ref));
}

static bool is_walked(const cutter *c, opq_ref ref)
{
    const opq_lower_request *rq = c->request;
    if (is_view(rq, ref) && c->to_memory)
        return true;
    while (is_view(rq, ref))
        ref = opq_node_at(rq->graph, ref)->operand[0];
    bool stored = opq_lower_has_memory(rq->group_of, rq->in_memory, ref);
    return rq->group_of[ref] == rq->group || (opq_node_class(opq_node_at(rq->graph, ref)) == OPQ_CLASS_IOTA && !stored);
}

/* False if it was met with these runs before. */
static bool is_new(cutter *c, opq_ref ref, const runs *list)
{
    uint64_t hash = (uint64_t)ref + 1;
    for (int i = 0; i < list->count; i++)
        hash = ((hash ^ (uint64_t)list->of[i].extent) * 0x9e3779b97f4a7c15u ^ (uint64_t)list->of[i].stride) *
               0xd6e8feb86659fd93u;
    uint32_t at = (uint32_t)(hash >> (64 - SEEN_BITS));
    for (; c->seen[at] != 0; at = (at + 1) % (1 << SEEN_BITS))
        if (c->seen[at] == hash)
            return false;
    if (c->seen_count == (1 << SEEN_BITS) - 1)
        return false;
    c->seen[at] = hash;
    c->seen_count++;
    return true;
}

static void walk(cutter *c, opq_ref ref, const runs *order);

/* The operand's dim e is the node's dim from[e]; where the extents differ (slices) or from[e] is -1 it is no run of the root. */
static void walk_dims(cutter *c, opq_ref operand, const opq_type *type, const runs *list, const int *first,
                      const int *from)
{
    const opq_type *source = &opq_node_at(c->request->graph, operand)->type;
    runs order;
    order.count = 0; /* and not all of its room, for each node of each trial */
    for (int e = 0; e < source->rank; e++) {
        if (source->size[e] == 1)
            continue;
        if (from[e] < 0 || type->size[from[e]] != source->size[e])
            append(&order, (run){source->size[e], 0});
        else
            for (int r = first[from[e]]; r < first[from[e] + 1]; r++)
                append(&order, list->of[r]);
    }
    walk(c, operand, &order);
}

static void walk_view(cutter *c, const opq_node *node, const runs *list, const int *first)
{
    int from[OPQ_RANK_MAX];
    int shift = node->type.rank - opq_node_at(c->request->graph, node->operand[0])->type.rank;
    if (node->op == OPQ_OP_strided)
        return;
    if (node->op == OPQ_OP_reshape) {
        walk(c, node->operand[0], list);
        return;
    }
    for (int d = 0; d < node->type.rank; d++) {
        if (node->op == OPQ_OP_permute)
            from[opq_node_attr(node, OPQ_ATTR_dims)->ints[d]] = d;
        else if (d >= shift)
            from[d - shift] = d;
    }
    walk_dims(c, node->operand[0], &node->type, list, first, from);
}

/* The operand of a reduction: the node's own runs for what is kept, the root's for what is reduced. */
static void walk_reduced(cutter *c, const opq_node *node, const runs *list, const int *first)
{
    const opq_type *source = &opq_node_at(c->request->graph, node->operand[0])->type;
    opq_type reduced_type = *source;
    runs reduced = c->reduced, order = {0};
    int reduced_first[OPQ_RANK_MAX + 1];
    for (int d = 0; d < source->rank; d++)
        if (!opq_node_reduces(node, d))
            reduced_type.size[d] = 1;
    if (!align(c, &reduced, &reduced_type, reduced_first))
        return;
    for (int d = 0; d < source->rank; d++) {
        bool reduces = opq_node_reduces(node, d);
        const int *range = reduces ? reduced_first : first;
        for (int r = range[d]; r < range[d + 1]; r++)
            append(&order, (reduces ? &reduced : list)->of[r]);
    }
    walk(c, node->operand[0], &order);
}

static void walk_index(cutter *c, const opq_node *node, const runs *list, const int *first)
{
    const opq_type *index = &opq_node_at(c->request->graph, node->operand[1])->type;
    const opq_type *source = &opq_node_at(c->request->graph, node->operand[0])->type;
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0), from[OPQ_RANK_MAX];
    bool select = node->op == OPQ_OP_index_select;
    for (int d = 0; d < index->rank; d++)
        from[d] = select ? axis + d : d;
    walk_dims(c, node->operand[1], &node->type, list, first, from);
    for (int d = 0; d < source->rank; d++)
        from[d] = d == axis ? -1 : select && d > axis ? d + index->rank - 1 : d;
    walk_dims(c, node->operand[0], &node->type, list, first, from);
}

static void walk_operands(cutter *c, const opq_node *node, const runs *list, const int *first)
{
    int from[OPQ_RANK_MAX];
    switch (opq_node_class(node)) {
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_SCAN:
        for (int k = 0; k < node->arity; k++) {
            int rank = opq_node_at(c->request->graph, node->operand[k])->type.rank;
            for (int e = 0; e < rank; e++)
                from[e] = e + node->type.rank - rank;
            walk_dims(c, node->operand[k], &node->type, list, first, from);
        }
        return;
    case OPQ_CLASS_VIEW: walk_view(c, node, list, first); return;
    case OPQ_CLASS_REDUCE: walk_reduced(c, node, list, first); return;
    case OPQ_CLASS_INDEX: walk_index(c, node, list, first); return;
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR:
    case OPQ_CLASS_IOTA:
    case OPQ_CLASS_RANDOM:
    case OPQ_CLASS_UPDATE:
    case OPQ_CLASS_CONCAT:
    case OPQ_CLASS_SCATTER:
    case OPQ_CLASS_MATMUL:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: return;
    }
}

static void walk(cutter *c, opq_ref ref, const runs *order)
{
    const opq_node *node = opq_node_at(c->request->graph, ref);
    int first[OPQ_RANK_MAX + 1];
    if (c->nesting == OPQ_NESTING_MAX || !is_walked(c, ref) || !is_new(c, ref, order))
        return;
    runs list;
    list.count = order->count;
    memcpy(list.of, order->of, (size_t)order->count * sizeof *order->of);
    if (!align(c, &list, &node->type, first))
        return;
    c->nesting++;
    walk_operands(c, node, &list, first);
    c->nesting--;
}

/* Cuts of the root's own dims: always there. */
static bool cut_root(cutter *c, const opq_type *type, const opq_node *reduce)
{
    int64_t stride = opq_type_count(type);
    if (!add_cut(c, stride))
        return false;
    for (int d = 0; d < type->rank; d++) {
        stride /= type->size[d];
        if (!add_cut(c, stride))
            return false;
        append(reduce && opq_node_reduces(reduce, d) ? &c->reduced : &c->kept, (run){type->size[d], stride});
    }
    return true;
}

/* A stored view of what the group makes: cuts where it permutes the base's runs. */
static void cut_permuted(cutter *c, const opq_permuted *p, const runs *all)
{
    runs list = *all;
    for (int i = 0; i < p->count; i++) {
        const opq_node *node = opq_node_at(c->request->graph, p->view[i]);
        int first[OPQ_RANK_MAX + 1];
        runs order = {0};
        if (node->op != OPQ_OP_permute)
            continue;
        if (!align(c, &list, &opq_node_at(c->request->graph, node->operand[0])->type, first))
            return;
        for (int d = 0; d < node->type.rank; d++)
            for (int64_t e = opq_node_attr(node, OPQ_ATTR_dims)->ints[d], r = first[e]; r < first[e + 1]; r++)
                append(&order, list.of[r]);
        list = order;
    }
}

static void cut_group(cutter *c, opq_ref root, const opq_type *type)
{
    const opq_lower_request *rq = c->request;
    int64_t total = opq_type_count(type);
    runs all = {0};
    append(&all, (run){total, 1});
    for (int pass = 0; pass < 2; pass++) { /* members first: they have no other way, memory has */
        c->to_memory = pass == 1;
        c->seen_count = 0;
        memset(c->seen, 0, sizeof c->seen);
        walk(c, root, &all);
        for (int i = 0; i < rq->stored_count; i++) {
            opq_permuted permuted;
            bool whole = opq_type_count(&opq_node_at(rq->graph, rq->stored[i])->type) == total;
            if (c->permuted && whole && opq_lower_permuted(rq, rq->stored[i], &permuted)) {
                cut_permuted(c, &permuted, &all);
                walk(c, permuted.base, &all);
            } else {
                walk(c, rq->stored[i], whole ? &all : &c->kept);
            }
        }
    }
}

/* ---- loops */

/* No element: nothing runs but the kept loops, for a reduction of nothing has a value. Any order of the reduced axes will do. */
static bool make_empty_space(opq_lower_state *state, const opq_type *type, const opq_node *reduce)
{
    opq_space *space = &state->space;
    int64_t reduced = 1;
    space->rank = 0;
    for (int d = 0; d < type->rank; d++) {
        if (reduce && opq_node_reduces(reduce, d)) {
            reduced *= type->size[d];
        } else if (type->size[d] != 1) {
            if (space->rank >= OPQ_SPACE_MAX)
                return false;
            space->extent[space->rank] = type->size[d];
            space->reduced[space->rank] = false;
            state->role[space->rank++] = OPQ_ROLE_kept;
        }
    }
    if (reduce == NULL)
        return true;
    if (space->rank >= OPQ_SPACE_MAX)
        return false;
    space->extent[space->rank] = reduced;
    space->reduced[space->rank] = true;
    state->role[space->rank++] = state->column ? OPQ_ROLE_reduced_outer : OPQ_ROLE_reduced_inner;
    return true;
}

static bool make_space(opq_lower_state *state, opq_ref root, const opq_node *reduce)
{
    const opq_lower_request *rq = state->request;
    const opq_type *type = &opq_node_at(state->graph, root)->type;
    int64_t extents[OPQ_SPACE_MAX];
    opq_space *space = &state->space;
    cutter c = {.request = rq, .permuted = state->out->matmul >= 0};
    int rank = 0;
    if (opq_type_count(type) == 0)
        return make_empty_space(state, type, reduce);
    if (!cut_root(&c, type, reduce))
        return false;
    cut_group(&c, root, type);
    for (int64_t inside = 1; rank < c.cut_count; inside = c.cuts[rank++])
        extents[rank] = c.cuts[rank] / inside;
    space->rank = rank;
    int d = type->rank - 1;
    int64_t inside = 1;
    bool inner_run = !state->column; /* its groups take elements of all reduced axes in order */
    for (int l = 0; l < rank; l++) { /* innermost first */
        while (d > 0 && (type->size[d] == 1 || inside == type->size[d])) {
            inside = 1;
            d--;
        }
        bool reduced = reduce && opq_node_reduces(reduce, d);
        inner_run = inner_run && reduced;
        inside *= extents[l];
        space->extent[rank - 1 - l] = extents[l];
        space->reduced[rank - 1 - l] = reduced;
        state->role[rank - 1 - l] =
            reduced ? (inner_run ? OPQ_ROLE_reduced_inner : OPQ_ROLE_reduced_outer) : OPQ_ROLE_kept;
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

/* Loops of a matmul are [batch.., m, n, k]; extents of 1 keep their loop. */
static bool make_matmul_space(opq_lower_state *state, opq_ref root)
{
    const opq_node *node = opq_node_at(state->graph, root);
    if (!make_space(state, root, NULL))
        return false;
    opq_space *space = &state->space;
    int64_t n = node->type.size[node->type.rank - 1], m = node->type.size[node->type.rank - 2], inside = 1;
    opq_space fine = *space;
    int l = fine.rank - 1, at = OPQ_SPACE_MAX - 2; /* the last is k */
    int64_t extent[OPQ_SPACE_MAX];
    uint8_t role[OPQ_SPACE_MAX];
    const int64_t want[2] = {n, m};
    const opq_type *left = &opq_node_at(state->graph, node->operand[0])->type;
    extent[at + 1] = left->size[left->rank - (opq_node_int(node, OPQ_ATTR_transpose_a, 0) ? 2 : 1)];
    role[at + 1] = OPQ_ROLE_k;
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
        space->reduced[i] = state->role[i] == OPQ_ROLE_k;
    }
    return true;
}

opq_refusal opq_lower_space(opq_lower_state *state)
{
    const opq_lower_request *rq = state->request;
    members found = find_members(rq);
    bool made;
    if (found.scans && (found.reduce >= 0 || found.matmul >= 0))
        return OPQ_REFUSAL_scan;
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
