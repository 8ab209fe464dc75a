/* Where the elements of a root are cut: see lower_space.c. */
#include "fusion/lower_cuts.h"

#include <string.h>

void opq_cuts_begin(opq_cutter *c, const opq_lower_request *request, bool permuted)
{
    memset(c, 0, offsetof(opq_cutter, seen));
    c->request = request;
    c->permuted = permuted;
}

bool opq_cuts_add(opq_cutter *c, int64_t cut)
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

void opq_stretches_append(opq_stretches *list, opq_stretch run)
{
    if (run.extent != 1 && list->count < OPQ_RUN_MAX)
        list->of[list->count++] = run;
}

/* Splits run `i` so that its inner part has `inner` turns. */
static bool split_run(opq_cutter *c, opq_stretches *list, int i, int64_t inner)
{
    opq_stretch *whole = &list->of[i];
    if (whole->stride == 0 || whole->extent % inner != 0 || list->count == OPQ_RUN_MAX ||
        !opq_cuts_add(c, whole->stride * inner))
        return false;
    memmove(whole + 1, whole, (size_t)(list->count - i) * sizeof *whole);
    list->count++;
    whole[0] = (opq_stretch){whole[0].extent / inner, whole[0].stride * inner};
    whole[1].extent = inner;
    return true;
}

bool opq_cuts_align(opq_cutter *c, opq_stretches *list, const opq_type *type, int *out_first)
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

static bool is_walked(const opq_cutter *c, opq_ref ref)
{
    const opq_lower_request *rq = c->request;
    if (is_view(rq, ref) && c->to_memory)
        return true;
    while (is_view(rq, ref))
        ref = opq_node_at(rq->graph, ref)->operand[0];
    bool stored = !rq->counts && opq_lower_has_memory(rq->group_of, rq->in_memory, ref);
    return rq->group_of[ref] == rq->group || (opq_node_class(opq_node_at(rq->graph, ref)) == OPQ_CLASS_IOTA && !stored);
}

static void add_seen(opq_cutter *c, uint64_t hash)
{
    uint32_t at = (uint32_t)(hash >> (64 - c->seen_bits));
    while (c->seen[at] != 0)
        at = (at + 1) % (1u << c->seen_bits);
    c->seen[at] = hash;
}

/* Small for a small kernel, which would take longer to clear it than to walk. */
static void widen_seen(opq_cutter *c)
{
    enum { FIRST_BITS = 4 };
    uint64_t before[1 << (OPQ_SEEN_BITS - 1)];
    size_t room = c->seen_bits > 0 ? (size_t)1 << c->seen_bits : 0;
    memcpy(before, c->seen, room * sizeof *before);
    c->seen_bits = c->seen_bits > 0 ? c->seen_bits + 1 : FIRST_BITS;
    memset(c->seen, 0, sizeof *c->seen << c->seen_bits);
    for (size_t i = 0; i < room; i++)
        if (before[i] != 0)
            add_seen(c, before[i]);
}

/* False if it was met with these runs before. */
static bool is_new(opq_cutter *c, opq_ref ref, const opq_stretches *list)
{
    uint64_t hash = (uint64_t)ref + 1;
    for (int i = 0; i < list->count; i++)
        hash = ((hash ^ (uint64_t)list->of[i].extent) * 0x9e3779b97f4a7c15u ^ (uint64_t)list->of[i].stride) *
               0xd6e8feb86659fd93u;
    if (c->seen_bits == 0 || (2 * c->seen_count >= 1 << c->seen_bits && c->seen_bits < OPQ_SEEN_BITS))
        widen_seen(c);
    for (uint32_t at = (uint32_t)(hash >> (64 - c->seen_bits)); c->seen[at] != 0; at = (at + 1) % (1u << c->seen_bits))
        if (c->seen[at] == hash)
            return false;
    if (c->seen_count == (1 << OPQ_SEEN_BITS) - 1)
        return false;
    add_seen(c, hash);
    c->seen_count++;
    return true;
}

/* The operand's dim e is the node's dim from[e]; where the extents differ (slices) or from[e] is -1 it is no run of the root. */
static void walk_dims(opq_cutter *c, opq_ref operand, const opq_type *type, const opq_stretches *list, const int *first,
                      const int *from)
{
    const opq_type *source = &opq_node_at(c->request->graph, operand)->type;
    opq_stretches order;
    order.count = 0; /* and not all of its room, for each node of each trial */
    for (int e = 0; e < source->rank; e++) {
        if (source->size[e] == 1)
            continue;
        if (from[e] < 0 || type->size[from[e]] != source->size[e])
            opq_stretches_append(&order, (opq_stretch){source->size[e], 0});
        else
            for (int r = first[from[e]]; r < first[from[e] + 1]; r++)
                opq_stretches_append(&order, list->of[r]);
    }
    opq_cuts_walk(c, operand, &order);
}

static void walk_view(opq_cutter *c, const opq_node *node, const opq_stretches *list, const int *first)
{
    int from[OPQ_RANK_MAX];
    int shift = node->type.rank - opq_node_at(c->request->graph, node->operand[0])->type.rank;
    if (node->op == OPQ_OP_strided)
        return;
    if (node->op == OPQ_OP_reshape) {
        opq_cuts_walk(c, node->operand[0], list);
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
static void walk_reduced(opq_cutter *c, const opq_node *node, const opq_stretches *list, const int *first)
{
    const opq_type *source = &opq_node_at(c->request->graph, node->operand[0])->type;
    opq_type reduced_type = *source;
    opq_stretches reduced = c->reduced, order = {0};
    int reduced_first[OPQ_RANK_MAX + 1];
    for (int d = 0; d < source->rank; d++)
        if (!opq_node_reduces(node, d))
            reduced_type.size[d] = 1;
    if (!opq_cuts_align(c, &reduced, &reduced_type, reduced_first))
        return;
    for (int d = 0; d < source->rank; d++) {
        bool reduces = opq_node_reduces(node, d);
        const int *range = reduces ? reduced_first : first;
        for (int r = range[d]; r < range[d + 1]; r++)
            opq_stretches_append(&order, (reduces ? &reduced : list)->of[r]);
    }
    opq_cuts_walk(c, node->operand[0], &order);
}

static void walk_index(opq_cutter *c, const opq_node *node, const opq_stretches *list, const int *first)
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

static void walk_operands(opq_cutter *c, const opq_node *node, const opq_stretches *list, const int *first)
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
    case OPQ_CLASS_ROUTINE:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: return;
    }
}

void opq_cuts_walk(opq_cutter *c, opq_ref ref, const opq_stretches *order)
{
    const opq_node *node = opq_node_at(c->request->graph, ref);
    int first[OPQ_RANK_MAX + 1];
    if (c->nesting == OPQ_NESTING_MAX || !is_walked(c, ref) || !is_new(c, ref, order))
        return;
    opq_stretches list;
    list.count = order->count;
    memcpy(list.of, order->of, (size_t)order->count * sizeof *order->of);
    if (!opq_cuts_align(c, &list, &node->type, first))
        return;
    c->nesting++;
    walk_operands(c, node, &list, first);
    c->nesting--;
}
