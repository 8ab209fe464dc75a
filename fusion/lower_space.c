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
#include "fusion/lower_cuts.h"

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

/* What the loops run over: the dims of a node, and for a product behind them the one that it sums over. */
typedef struct root {
    int rank;
    int64_t size[OPQ_SPACE_MAX];
    bool reduced[OPQ_SPACE_MAX], column; /* column: by that rule */
    opq_ref product;                     /* or -1 */
} root;

static root root_of(const opq_type *type, const opq_node *reduce)
{
    root r = {.rank = type->rank, .product = -1};
    r.column = reduce && opq_node_int(reduce, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column;
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
static bool cut_root(opq_cutter *c, const root *r)
{
    int64_t stride = root_count(r);
    if (!opq_cuts_add(c, stride))
        return false;
    for (int d = 0; d < r->rank; d++) {
        stride /= r->size[d];
        if (!opq_cuts_add(c, stride))
            return false;
        opq_stretches_append(r->reduced[d] ? &c->reduced : &c->kept, (opq_stretch){r->size[d], stride});
    }
    return true;
}

/* The matrices of a product come first: views of memory behind them are read in place only if the loops are cut as they are. */
static void cut_matrices(opq_cutter *c, const root *r)
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
        opq_stretches order = {0};
        opq_lower_matrix_dims(graph, r->product, o, from);
        for (int e = 0; e < type->rank; e++)
            opq_stretches_append(&order, (opq_stretch){type->size[e], stride[from[e]]});
        opq_cuts_walk(c, operand, &order);
    }
}

/* A stored view of what the group makes: cuts where it permutes the base's runs. */
static void cut_permuted(opq_cutter *c, const opq_permuted *p, const opq_stretches *all)
{
    opq_stretches list = *all;
    for (int i = 0; i < p->count; i++) {
        const opq_node *node = opq_node_at(c->request->graph, p->view[i]);
        int first[OPQ_RANK_MAX + 1];
        opq_stretches order = {0};
        if (node->op != OPQ_OP_permute)
            continue;
        if (!opq_cuts_align(c, &list, &opq_node_at(c->request->graph, node->operand[0])->type, first))
            return;
        for (int d = 0; d < node->type.rank; d++)
            for (int64_t e = opq_node_attr(node, OPQ_ATTR_dims)->ints[d], r = first[e]; r < first[e + 1]; r++)
                opq_stretches_append(&order, list.of[r]);
        list = order;
    }
}

static void cut_group(opq_cutter *c, opq_ref ref, const root *r)
{
    const opq_lower_request *rq = c->request;
    bool product = r->product >= 0;
    int64_t total = root_count(r), kept = product ? opq_type_count(&opq_node_at(rq->graph, ref)->type) : total;
    opq_stretches all = {0};
    opq_stretches_append(&all, (opq_stretch){total, 1});
    if (product)
        all = c->kept;
    for (int pass = 0; pass < 2; pass++) { /* members first: they have no other way, memory has */
        c->to_memory = pass == 1;
        c->seen_count = c->seen_bits = 0;
        opq_cuts_walk(c, ref, &all);
        for (int i = 0; i < rq->stored_count; i++) {
            opq_permuted permuted;
            bool whole = opq_type_count(&opq_node_at(rq->graph, rq->stored[i])->type) == kept;
            if (c->permuted && whole && opq_lower_permuted(rq, rq->stored[i], &permuted)) {
                cut_permuted(c, &permuted, &all);
                opq_cuts_walk(c, permuted.base, &all);
            } else {
                opq_cuts_walk(c, rq->stored[i], whole ? &all : &c->kept);
            }
        }
    }
}

/* ---- loops */

static opq_role role_of(const root *r, int d, bool inner_run)
{
    int behind = r->rank - 1 - d;
    if (r->product >= 0)
        return behind == 0 ? OPQ_ROLE_k : behind == 1 ? OPQ_ROLE_n : behind == 2 ? OPQ_ROLE_m : OPQ_ROLE_batch;
    return !r->reduced[d] ? OPQ_ROLE_kept : inner_run && !r->column ? OPQ_ROLE_reduced_inner : OPQ_ROLE_reduced_outer;
}

static bool push_loop(opq_space *space, int64_t extent, opq_role role)
{
    if (space->rank >= OPQ_SPACE_MAX)
        return false;
    space->extent[space->rank] = extent;
    space->role[space->rank++] = (uint8_t)role;
    return true;
}

/* No element: nothing runs but the kept loops, for a reduction of nothing has a value. Any order of the reduced axes will do. */
static bool make_empty_space(const root *r, opq_space *out_space)
{
    int64_t elements = 1;
    int reduced = -1;
    out_space->rank = 0;
    for (int d = 0; d < r->rank; d++) {
        elements *= r->reduced[d] ? r->size[d] : 1;
        reduced = r->reduced[d] ? d : reduced;
        if (!r->reduced[d] && (r->size[d] != 1 || r->product >= 0) &&
            !push_loop(out_space, r->size[d], role_of(r, d, false)))
            return false;
    }
    return reduced < 0 || push_loop(out_space, elements, role_of(r, reduced, true));
}

/* Each dim of the root is whole loops: the cuts go no further than its own. A product's dims are loops although they may have one turn. */
static bool make_loops(const root *r, const opq_cutter *c, opq_space *out_space)
{
    bool inner_run[OPQ_SPACE_MAX], inner = true; /* the run's groups take elements of all reduced axes in order */
    int64_t total = root_count(r), done = 1;
    int cut = c->cut_count - 1;
    for (int d = r->rank - 1; d >= 0; d--) {
        inner = inner && (r->reduced[d] || r->size[d] == 1);
        inner_run[d] = inner;
    }
    out_space->rank = 0;
    for (int d = 0; d < r->rank; d++) {
        opq_role role = role_of(r, d, inner_run[d]);
        int64_t end = done * r->size[d];
        if (r->size[d] == 1 && r->product >= 0 && role != OPQ_ROLE_batch && !push_loop(out_space, 1, role))
            return false;
        for (; done < end; cut--) { /* cuts count elements inside: from the whole root down */
            int64_t inside = cut > 0 ? c->cuts[cut - 1] : 1;
            if (!push_loop(out_space, c->cuts[cut] / inside, role))
                return false;
            done = total / inside;
        }
    }
    return true;
}

/* ref < 0: cut as the product's matrices alone need it. */
static bool make_space(const opq_lower_request *request, opq_ref ref, const root *r, opq_space *out_space)
{
    opq_cutter c;
    if (root_count(r) == 0)
        return make_empty_space(r, out_space);
    opq_cuts_begin(&c, request, r->product >= 0);
    if (!cut_root(&c, r))
        return false;
    if (r->product >= 0)
        cut_matrices(&c, r);
    if (ref >= 0)
        cut_group(&c, ref, r);
    return make_loops(r, &c, out_space);
}

/* A reduction with only extents of 1 still needs its loop. */
static bool complete_reduced(opq_lower_state *state)
{
    opq_role want = state->column ? OPQ_ROLE_reduced_outer : OPQ_ROLE_reduced_inner;
    for (int l = 0; l < state->space.rank; l++)
        if (state->space.role[l] == want)
            return true;
    return push_loop(&state->space, 1, want);
}

bool opq_lower_product_space(const opq_lower_request *request, opq_ref product, opq_space *out_space)
{
    root r = root_of_product(request->graph, product);
    return make_space(request, -1, &r, out_space);
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
        return make_space(rq, ref, &r, &state->space) ? OPQ_REFUSAL_none : OPQ_REFUSAL_space;
    }
    if (found.matmul_count > 1)
        return OPQ_REFUSAL_two_matmuls;
    if (found.matmul >= 0 && found.reduce >= 0)
        return OPQ_REFUSAL_after_matmul;
    const opq_node *reduce = found.reduce >= 0 ? opq_node_at(state->graph, found.reduce) : NULL;
    if (reduce)
        ref = reduce->operand[0];
    else if (found.matmul >= 0)
        state->out->matmul = ref = found.matmul;
    r = found.matmul >= 0 ? root_of_product(state->graph, ref) : root_of(&opq_node_at(state->graph, ref)->type, reduce);
    state->column = r.column;
    return make_space(rq, ref, &r, &state->space) && (reduce == NULL || complete_reduced(state)) ? OPQ_REFUSAL_none
                                                                                                 : OPQ_REFUSAL_space;
}
