/* Edges of grouping: from a placed node to the nodes whose values it needs, through free views; and views that get memory after all. */
#include "fusion/group_state.h"

#include <stdlib.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "group: out of memory"); }

static opq_status add_edge(opq_grouper *g, opq_ref producer, opq_edge edge)
{
    if (g->edge_count == g->edge_capacity) {
        g->edge_capacity = g->edge_capacity ? g->edge_capacity * 2 : 16;
        opq_edge *grown = realloc(g->edges, (size_t)g->edge_capacity * sizeof *grown);
        if (grown == NULL)
            return out_of_memory();
        g->edges = grown;
    }
    edge.producer = producer;
    edge.next = g->first_edge[producer];
    edge.previous = -1;
    if (edge.next >= 0)
        g->edges[edge.next].previous = g->edge_count;
    g->edges[g->edge_count] = edge;
    g->first_edge[producer] = g->edge_count++;
    return OPQ_OK;
}

static bool is_followed(const opq_grouper *g, opq_ref ref)
{
    return opq_node_class(opq_node_at(g->in, ref)) == OPQ_CLASS_VIEW && !g->result.in_memory[ref];
}

static opq_status link_operands(opq_grouper *g, opq_ref consumer)
{
    const opq_node *node = opq_node_at(g->in, consumer);
    g->first_need[consumer] = g->edge_count;
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        opq_edge edge = {.consumer = consumer, .from_memory = opq_operand_from_memory(node, k), .direct = true};
        for (; is_followed(g, ref); ref = opq_node_at(g->in, ref)->operand[0]) {
            edge.direct = false;
            edge.viewed |= opq_node_at(g->in, ref)->op != OPQ_OP_reshape;
        }
        if (opq_node_at(g->in, ref)->op == OPQ_OP_extern_result)
            ref = opq_node_at(g->in, ref)->operand[0];
        const opq_node *producer = opq_node_at(g->in, ref);
        if (producer->op != OPQ_OP_input && (!opq_node_is_free(g->in, ref) || g->result.in_memory[ref]))
            OPQ_TRY(add_edge(g, ref, edge));
    }
    g->needs_end[consumer] = g->edge_count;
    return OPQ_OK;
}

static void unlink_operands(opq_grouper *g, opq_ref consumer)
{
    for (int32_t e = g->first_need[consumer]; e < g->needs_end[consumer]; e++) {
        const opq_edge *edge = &g->edges[e];
        *(edge->previous < 0 ? &g->first_edge[edge->producer] : &g->edges[edge->previous].next) = edge->next;
        if (edge->next >= 0)
            g->edges[edge->next].previous = edge->previous;
    }
}

void opq_find_users(opq_grouper *g)
{
    for (opq_ref n = 0; n < g->in->count; n++)
        for (int k = 0; k < opq_node_at(g->in, n)->arity; k++)
            g->first_user[opq_node_at(g->in, n)->operand[k]]++;
    for (opq_ref n = 0; n < g->in->count; n++)
        g->first_user[n + 1] += g->first_user[n];
    for (opq_ref n = g->in->count - 1; n >= 0; n--)
        for (int k = 0; k < opq_node_at(g->in, n)->arity; k++)
            g->users[--g->first_user[opq_node_at(g->in, n)->operand[k]]] = n;
}

static int ascending(const void *a, const void *b)
{
    opq_ref x = *(const opq_ref *)a, y = *(const opq_ref *)b;
    return (x > y) - (x < y);
}

/* The placed nodes that look through `view`, ascending, each once: in g->readers. */
static int find_readers(opq_grouper *g, opq_ref view, opq_ref reader)
{
    opq_ref *readers = g->readers, *views = g->readers + g->first_user[g->in->count];
    int count = 0, view_count = 1, kept = 0;
    views[0] = view;
    for (int i = 0; i < view_count; i++)
        for (int32_t u = g->first_user[views[i]]; u < g->first_user[views[i] + 1]; u++)
            if (is_followed(g, g->users[u]))
                views[view_count++] = g->users[u];
            else if (g->result.group_of[g->users[u]] >= 0 && g->users[u] != reader)
                readers[count++] = g->users[u];
    qsort(readers, (size_t)count, sizeof *readers, ascending);
    for (int i = 0; i < count; i++)
        if (kept == 0 || readers[kept - 1] != readers[i])
            readers[kept++] = readers[i];
    return kept;
}

/* A view or iota gets memory of its own, for `reader`, which is not linked yet. Those already placed that looked through it need it from
 * now on, and no longer what lies behind. */
static opq_status store_view(opq_grouper *g, opq_ref view, opq_ref reader)
{
    if (g->result.in_memory[view])
        return OPQ_OK;
    int count = find_readers(g, view, reader);
    for (int i = 0; i < count; i++)
        unlink_operands(g, g->readers[i]);
    g->result.in_memory[view] = 1;
    for (int i = 0; i < count; i++)
        OPQ_TRY(link_operands(g, g->readers[i]));
    return OPQ_OK;
}

/* What the engine cannot read through gets memory: a padding, or all that the operand sees. */
static opq_status store_matrix(opq_grouper *g, opq_ref product, int operand)
{
    opq_ref ref = opq_node_at(g->in, product)->operand[operand], padding = ref;
    const uint8_t *in_memory = g->result.in_memory;
    if (!opq_node_is_free(g->in, ref) || opq_lower_is_matrix(g->in, g->result.group_of, in_memory, product, operand))
        return OPQ_OK;
    while (is_followed(g, padding) && opq_node_at(g->in, padding)->op != OPQ_OP_pad)
        padding = opq_node_at(g->in, padding)->operand[0];
    if (is_followed(g, padding)) {
        OPQ_TRY(store_view(g, padding, product));
        if (opq_lower_is_matrix(g->in, g->result.group_of, in_memory, product, operand))
            return OPQ_OK;
    }
    return store_view(g, ref, product);
}

opq_status opq_add_edges_of(opq_grouper *g, opq_ref consumer)
{
    const opq_node *node = opq_node_at(g->in, consumer);
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        if (!opq_operand_from_memory(node, k))
            continue;
        if (opq_node_class(node) == OPQ_CLASS_MATMUL) {
            OPQ_TRY(store_matrix(g, consumer, k));
        } else {
            ref = opq_strip_reshape(g->in, ref);
            if (opq_node_is_free(g->in, ref) && opq_node_at(g->in, ref)->op != OPQ_OP_undefined)
                OPQ_TRY(store_view(g, ref, consumer));
        }
    }
    return link_operands(g, consumer);
}

/* Not a reshape: it is no work to look through, and an output that is one shares the memory below it. */
void opq_bound_views(opq_grouper *g)
{
    int32_t *depth = g->first_edge; /* unused as yet */
    for (opq_ref n = 0; n < g->in->count; n++) {
        const opq_node *node = opq_node_at(g->in, n);
        depth[n] = is_followed(g, n) ? depth[node->operand[0]] + 1 : 0;
        if (depth[n] > OPQ_FOLLOWED_MAX && node->op != OPQ_OP_reshape) {
            g->result.in_memory[n] = 1;
            depth[n] = 0;
        }
    }
    for (opq_ref n = 0; n < g->in->count; n++)
        depth[n] = -1;
}

bool opq_is_computed_inside(const opq_grouper *g, opq_ref ref)
{
    return is_followed(g, ref) || (opq_node_at(g->in, ref)->op == OPQ_OP_iota && !g->result.in_memory[ref]);
}

/* Along each dim of any walk over it; a reshape and a window are so of dense memory. */
static bool is_stride(const opq_grouper *g, const opq_node *view)
{
    bool dense = !opq_is_computed_inside(g, view->operand[0]);
    return view->op != OPQ_OP_pad && (dense || (view->op != OPQ_OP_reshape && view->op != OPQ_OP_strided));
}

bool opq_reads_strides(const opq_grouper *g, opq_ref n)
{
    const opq_node *node = opq_node_at(g->in, n);
    bool strides = opq_node_class(node) != OPQ_CLASS_VIEW || is_stride(g, node);
    for (int k = 0; k < node->arity && strides; k++)
        for (opq_ref ref = node->operand[k]; strides && opq_is_computed_inside(g, ref);) {
            const opq_node *inside = opq_node_at(g->in, ref);
            strides = inside->op != OPQ_OP_iota && is_stride(g, inside);
            ref = strides ? inside->operand[0] : ref;
        }
    return strides;
}

static bool is_unsearched(const opq_grouper *g, opq_ref ref)
{
    return opq_node_class(opq_node_at(g->in, ref)) == OPQ_CLASS_VIEW && !g->searched[ref];
}

/* The view under the first reshape of one from here on, or -1; then there never will be one, and nobody searches here again. */
static opq_ref view_under_reshape(opq_grouper *g, opq_ref from)
{
    for (opq_ref ref = from; is_unsearched(g, ref); ref = opq_node_at(g->in, ref)->operand[0])
        if (opq_node_at(g->in, ref)->op == OPQ_OP_reshape && is_followed(g, opq_node_at(g->in, ref)->operand[0]))
            return opq_node_at(g->in, ref)->operand[0];
    for (opq_ref ref = from; is_unsearched(g, ref); ref = opq_node_at(g->in, ref)->operand[0])
        g->searched[ref] = 1;
    return -1;
}

opq_status opq_store_views(opq_grouper *g, opq_ref n, bool *out_stored)
{
    const opq_node *node = opq_node_at(g->in, n);
    bool stored = false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref view = view_under_reshape(g, opq_node_class(node) == OPQ_CLASS_VIEW ? n : node->operand[k]);
        if (view >= 0)
            OPQ_TRY(store_view(g, view, n));
        stored = stored || view >= 0;
    }
    for (int k = 0; k < node->arity && !stored; k++)
        if (opq_is_computed_inside(g, node->operand[k])) {
            OPQ_TRY(store_view(g, node->operand[k], n));
            stored = true;
        }
    *out_stored = stored;
    return OPQ_OK;
}
