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

/* What the loops run over: the dims of a node, and for a product behind them the one that it sums over. */
typedef struct root {
    int rank;
    int64_t size[OPQ_SPACE_MAX];
    bool reduced[OPQ_SPACE_MAX];
    opq_ref product; /* or -1 */
} root;

static root root_of(const opq_type *type, const opq_node *reduce)
{
    root r = {.rank = type->rank, .product = -1};
    for (int d = 0; d < type->rank; d++) {
        r.size[d] = type->size[d];
        r.reduced[d] = reduce && opq_node_reduces(reduce, d);
    }
    return r;
}

static root root_of_product(const opq_graph *graph, opq_ref product)
{
    const opq_node *node = opq_node_at(graph, product);
    root r = root_of(&node->type, NULL);
    int summed = opq_lower_summed_dim(graph, product, 0);
    r.size[r.rank] = opq_node_at(graph, node->operand[0])->type.size[summed];
    r.reduced[r.rank++] = true;
    r.product = product;
    return r;
}

static int64_t root_count(const root *r)
{
    int64_t count = 1;
    for (int d = 0; d < r->rank; d++)
        count *= r->size[d];
    return count;
}

/* Cuts of the root's own dims: always there. */
static bool cut_root(cutter *c, const root *r)
{
    int64_t stride = root_count(r);
    if (!add_cut(c, stride))
        return false;
    for (int d = 0; d < r->rank; d++) {
        stride /= r->size[d];
        if (!add_cut(c, stride))
            return false;
        append(r->reduced[d] ? &c->reduced : &c->kept, (run){r->size[d], stride});
    }
    return true;
}

/* The matrices of a product come first: views of memory behind them are read in place only if the loops are cut as they are. */
static void cut_matrices(cutter *c, const root *r)
{
    const opq_graph *graph = c->request->graph;
    int64_t stride[OPQ_SPACE_MAX], inside = 1;
    for (int d = r->rank - 1; d >= 0; inside *= r->size[d--])
        stride[d] = inside;
    c->to_memory = true;
    for (int o = 0; o < 2; o++) {
        opq_ref operand = opq_node_at(graph, r->product)->operand[o];
        const opq_type *type = &opq_node_at(graph, operand)->type;
        int from[OPQ_RANK_MAX];
        runs order = {0};
        opq_lower_matrix_dims(graph, r->product, o, from);
        for (int e = 0; e < type->rank; e++)
            append(&order, (run){type->size[e], stride[from[e]]});
        walk(c, operand, &order);
    }
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

static void cut_group(cutter *c, opq_ref ref, const root *r)
{
    const opq_lower_request *rq = c->request;
    bool product = r->product >= 0;
    int64_t total = root_count(r), kept = product ? opq_type_count(&opq_node_at(rq->graph, ref)->type) : total;
    runs all = {0};
    append(&all, (run){total, 1});
    if (product)
        all = c->kept;
    for (int pass = 0; pass < 2; pass++) { /* members first: they have no other way, memory has */
        c->to_memory = pass == 1;
        c->seen_count = 0;
        memset(c->seen, 0, sizeof c->seen);
        walk(c, ref, &all);
        for (int i = 0; i < rq->stored_count; i++) {
            opq_permuted permuted;
            bool whole = opq_type_count(&opq_node_at(rq->graph, rq->stored[i])->type) == kept;
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

typedef struct nest {
    opq_space *space;
    uint8_t *role;
    bool column;
} nest;

static uint8_t role_of(const nest *n, const root *r, int d, bool inner_run)
{
    int behind = r->rank - 1 - d;
    if (r->product >= 0)
        return behind == 0 ? OPQ_ROLE_k : behind == 1 ? OPQ_ROLE_n : behind == 2 ? OPQ_ROLE_m : OPQ_ROLE_batch;
    return !r->reduced[d] ? OPQ_ROLE_kept : inner_run && !n->column ? OPQ_ROLE_reduced_inner : OPQ_ROLE_reduced_outer;
}

static bool push_loop(nest *n, int64_t extent, bool reduced, uint8_t role)
{
    opq_space *space = n->space;
    if (space->rank >= OPQ_SPACE_MAX)
        return false;
    space->extent[space->rank] = extent;
    space->reduced[space->rank] = reduced;
    n->role[space->rank++] = role;
    return true;
}

/* No element: nothing runs but the kept loops, for a reduction of nothing has a value. Any order of the reduced axes will do. */
static bool make_empty_space(nest *n, const root *r)
{
    int64_t reduced = 1;
    bool reduces = false;
    n->space->rank = 0;
    for (int d = 0; d < r->rank; d++) {
        reduced *= r->reduced[d] ? r->size[d] : 1;
        reduces = reduces || r->reduced[d];
        if (!r->reduced[d] && (r->size[d] != 1 || r->product >= 0) &&
            !push_loop(n, r->size[d], false, role_of(n, r, d, false)))
            return false;
    }
    return !reduces || push_loop(n, reduced, true, role_of(n, r, r->rank - 1, true));
}

/* Each dim of the root is whole loops: the cuts go no further than its own. A product's dims are loops although they may have one turn. */
static bool make_loops(nest *n, const root *r, const cutter *c)
{
    bool inner_run[OPQ_SPACE_MAX], inner = true; /* the run's groups take elements of all reduced axes in order */
    int64_t total = root_count(r), done = 1;
    int cut = c->cut_count - 1;
    for (int d = r->rank - 1; d >= 0; d--) {
        inner = inner && (r->reduced[d] || r->size[d] == 1);
        inner_run[d] = inner;
    }
    n->space->rank = 0;
    for (int d = 0; d < r->rank; d++) {
        uint8_t role = role_of(n, r, d, inner_run[d]);
        int64_t end = done * r->size[d];
        if (r->size[d] == 1 && r->product >= 0 && role != OPQ_ROLE_batch && !push_loop(n, 1, r->reduced[d], role))
            return false;
        for (; done < end; cut--) { /* cuts count elements inside: from the whole root down */
            int64_t inside = cut > 0 ? c->cuts[cut - 1] : 1;
            if (!push_loop(n, c->cuts[cut] / inside, r->reduced[d], role))
                return false;
            done = total / inside;
        }
    }
    return true;
}

static bool make_space(opq_lower_state *state, opq_ref ref, const root *r)
{
    cutter c = {.request = state->request, .permuted = r->product >= 0};
    nest n = {&state->space, state->role, state->column};
    if (root_count(r) == 0)
        return make_empty_space(&n, r);
    if (!cut_root(&c, r))
        return false;
    if (r->product >= 0)
        cut_matrices(&c, r);
    cut_group(&c, ref, r);
    return make_loops(&n, r, &c);
}

/* A reduction with only extents of 1 still needs its loop. */
static bool complete_reduced(opq_lower_state *state)
{
    nest n = {&state->space, state->role, state->column};
    uint8_t want = state->column ? OPQ_ROLE_reduced_outer : OPQ_ROLE_reduced_inner;
    for (int l = 0; l < state->space.rank; l++)
        if (state->role[l] == want)
            return true;
    return push_loop(&n, 1, true, want);
}

bool opq_lower_product_space(const opq_lower_request *request, opq_ref product, opq_space *out_space)
{
    uint8_t role[OPQ_SPACE_MAX];
    root r = root_of_product(request->graph, product);
    cutter c = {.request = request};
    nest n = {out_space, role, false};
    if (root_count(&r) == 0)
        return make_empty_space(&n, &r);
    if (!cut_root(&c, &r))
        return false;
    cut_matrices(&c, &r);
    return make_loops(&n, &r, &c);
}

opq_refusal opq_lower_space(opq_lower_state *state)
{
    const opq_lower_request *rq = state->request;
    members found = find_members(rq);
    opq_ref ref = found.largest;
    root r;
    if (found.scans && (found.reduce >= 0 || found.matmul >= 0))
        return OPQ_REFUSAL_scan;
    for (int i = 0; i < rq->stored_count; i++) {
        const opq_node *node = opq_node_at(state->graph, rq->stored[i]);
        opq_class class_ = opq_node_class(node);
        if (class_ != OPQ_CLASS_UPDATE && class_ != OPQ_CLASS_SCATTER)
            continue;
        if (rq->stored_count > 1 || found.matmul >= 0)
            return OPQ_REFUSAL_other_use;
        ref = node->operand[node->arity - 1];
        r = root_of(&opq_node_at(state->graph, ref)->type, NULL);
        return make_space(state, ref, &r) ? OPQ_REFUSAL_none : OPQ_REFUSAL_space;
    }
    if (found.matmul_count > 1)
        return OPQ_REFUSAL_two_matmuls;
    if (found.matmul >= 0 && found.reduce >= 0)
        return OPQ_REFUSAL_after_matmul;
    const opq_node *reduce = found.reduce >= 0 ? opq_node_at(state->graph, found.reduce) : NULL;
    if (reduce) {
        state->column = opq_node_int(reduce, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column;
        ref = reduce->operand[0];
    } else if (found.matmul >= 0) {
        state->out->matmul = ref = found.matmul;
    }
    r = found.matmul >= 0 ? root_of_product(state->graph, ref) : root_of(&opq_node_at(state->graph, ref)->type, reduce);
    return make_space(state, ref, &r) && (reduce == NULL || complete_reduced(state)) ? OPQ_REFUSAL_none
                                                                                     : OPQ_REFUSAL_space;
}
