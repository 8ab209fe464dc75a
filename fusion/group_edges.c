/* Edges of grouping: from a placed node to the nodes whose values it needs, through free views; and views that get memory after all. */
#include "fusion/group_state.h"

#include <stdlib.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "group: out of memory"); }

static opq_status add_edge(opq_grouper *g, opq_ref producer, opq_ref consumer, bool from_memory, bool direct)
{
    if (g->edge_count == g->edge_capacity) {
        g->edge_capacity = g->edge_capacity ? g->edge_capacity * 2 : 256;
        opq_edge *grown = realloc(g->edges, (size_t)g->edge_capacity * sizeof *grown);
        if (grown == NULL)
            return out_of_memory();
        g->edges = grown;
    }
    g->edges[g->edge_count] = (opq_edge){consumer, g->first_edge[producer], from_memory, direct};
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
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        bool from_memory = opq_operand_from_memory(node, k), direct = true;
        for (; is_followed(g, ref); ref = opq_node_at(g->in, ref)->operand[0])
            direct = false;
        if (opq_node_at(g->in, ref)->op == OPQ_OP_extern_result)
            ref = opq_node_at(g->in, ref)->operand[0];
        const opq_node *producer = opq_node_at(g->in, ref);
        if (producer->op != OPQ_OP_input && (!opq_node_is_free(g->in, ref) || g->result.in_memory[ref]))
            OPQ_TRY(add_edge(g, ref, consumer, from_memory, direct));
    }
    return OPQ_OK;
}

static bool follows(const opq_grouper *g, opq_ref consumer, opq_ref view)
{
    const opq_node *node = opq_node_at(g->in, consumer);
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        while (ref > view && is_followed(g, ref))
            ref = opq_node_at(g->in, ref)->operand[0];
        if (ref == view)
            return true;
    }
    return false;
}

static void unlink_operands(opq_grouper *g, opq_ref consumer)
{
    const opq_node *node = opq_node_at(g->in, consumer);
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        while (is_followed(g, ref))
            ref = opq_node_at(g->in, ref)->operand[0];
        if (opq_node_at(g->in, ref)->op == OPQ_OP_extern_result)
            ref = opq_node_at(g->in, ref)->operand[0];
        int32_t *at = &g->first_edge[ref];
        while (*at >= 0)
            if (g->edges[*at].consumer == consumer)
                *at = g->edges[*at].next;
            else
                at = &g->edges[*at].next;
    }
}

/* A view or iota gets memory of its own, for `reader`, which is not linked yet. Those already placed that looked through it need it from
 * now on, and no longer what lies behind. */
static opq_status store_view(opq_grouper *g, opq_ref view, opq_ref reader)
{
    if (g->result.in_memory[view])
        return OPQ_OK;
    opq_ref *users = malloc(((size_t)(g->in->count - view) + 1) * sizeof *users);
    int count = 0;
    if (users == NULL)
        return out_of_memory();
    for (opq_ref n = view + 1; n < g->in->count; n++)
        if (n != reader && g->result.group_of[n] >= 0 && follows(g, n, view)) {
            unlink_operands(g, n);
            users[count++] = n;
        }
    g->result.in_memory[view] = 1;
    opq_status status = OPQ_OK;
    for (int i = 0; i < count && status == OPQ_OK; i++)
        status = link_operands(g, users[i]);
    free(users);
    return status;
}

opq_status opq_add_edges_of(opq_grouper *g, opq_ref consumer)
{
    const opq_node *node = opq_node_at(g->in, consumer);
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = node->operand[k];
        opq_matrix_view view;
        if (!opq_operand_from_memory(node, k))
            continue;
        if (opq_node_class(node) == OPQ_CLASS_MATMUL) {
            if (opq_node_is_free(g->in, ref) && !opq_lower_matrix(g->in, g->result.group_of, consumer, k, &view))
                OPQ_TRY(store_view(g, ref, consumer));
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

opq_status opq_store_views(opq_grouper *g, opq_ref n, bool *out_stored)
{
    const opq_node *node = opq_node_at(g->in, n);
    bool stored = false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = opq_node_class(node) == OPQ_CLASS_VIEW ? n : node->operand[k];
        for (; opq_node_class(opq_node_at(g->in, ref)) == OPQ_CLASS_VIEW; ref = opq_node_at(g->in, ref)->operand[0])
            if (opq_node_at(g->in, ref)->op == OPQ_OP_reshape && is_followed(g, opq_node_at(g->in, ref)->operand[0])) {
                OPQ_TRY(store_view(g, opq_node_at(g->in, ref)->operand[0], n));
                stored = true;
                break;
            }
    }
    for (int k = 0; k < node->arity && !stored; k++)
        if (opq_is_computed_inside(g, node->operand[k])) {
            OPQ_TRY(store_view(g, node->operand[k], n));
            stored = true;
        }
    *out_stored = stored;
    return OPQ_OK;
}
