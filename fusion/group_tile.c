/* What stays on the tile of a product.
 *
 * Windows that overlap read an element several times, and a kernel of them computes it as often as it reads it. What ends such a chain is
 * stored once if it comes from a product: there it is an epilogue, which costs nothing. What is written into a part of another value is
 * no epilogue (a product's kernel writes all of a buffer); what comes before it can be one.
 *
 *   convolution -> norm -> relu | -> max_pool
 *   matmul -> add bias | -> update
 */
#include "fusion/group_state.h"

enum { STEPS_MAX = 64 };

static int64_t count_of(const opq_grouper *g, opq_ref n) { return opq_type_count(&opq_node_at(g->in, n)->type); }

static bool is_view(const opq_grouper *g, opq_ref n)
{
    return opq_node_class(opq_node_at(g->in, n)) == OPQ_CLASS_VIEW && !g->result.in_memory[n];
}

static int32_t user_count(const opq_grouper *g, opq_ref n) { return g->first_user[n + 1] - g->first_user[n]; }

/* Why no kernel of n's only user is a product's: a window whose places overlap, or a part of something that is written. */
static opq_refusal past_tile(const opq_grouper *g, opq_ref n)
{
    for (int steps = 0; steps < STEPS_MAX && user_count(g, n) == 1; steps++) {
        opq_ref user = g->users[g->first_user[n]];
        const opq_node *node = opq_node_at(g->in, user);
        if (opq_node_class(node) == OPQ_CLASS_UPDATE && node->operand[node->arity - 1] == n)
            return OPQ_REFUSAL_boundary;
        if (!is_view(g, user))
            return OPQ_REFUSAL_none;
        if (opq_window_overlaps(g->in, user))
            return OPQ_REFUSAL_recompute;
        n = user;
    }
    return OPQ_REFUSAL_none;
}

static bool is_elementwise(const opq_grouper *g, opq_ref n)
{
    return opq_class_is_elementwise(opq_node_class(opq_node_at(g->in, n)));
}

/* Is n made of a product's elements, one by one, and of what is broadcast to them? */
static bool comes_from_product(const opq_grouper *g, opq_ref n)
{
    for (int steps = 0; steps < STEPS_MAX; steps++) {
        const opq_node *node = opq_node_at(g->in, n);
        if (opq_node_class(node) == OPQ_CLASS_MATMUL)
            return true;
        if (!is_elementwise(g, n) && node->op != OPQ_OP_reshape)
            return false;
        opq_ref next = -1;
        for (int k = 0; k < node->arity && next < 0; k++)
            if (count_of(g, node->operand[k]) == count_of(g, n) && user_count(g, node->operand[k]) == 1)
                next = node->operand[k];
        if (next < 0)
            return false;
        n = next;
    }
    return false;
}

opq_refusal opq_group_keeps_to_tile(const opq_grouper *g, opq_ref n)
{
    opq_refusal refusal = is_elementwise(g, n) ? past_tile(g, n) : OPQ_REFUSAL_none;
    return refusal != OPQ_REFUSAL_none && comes_from_product(g, n) ? refusal : OPQ_REFUSAL_none;
}
