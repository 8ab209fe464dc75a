/* Plain groups, which a node joins without a trial: one shape, elementwise, views of memory alone. */
#include "fusion/group_state.h"

enum {
    PLAIN_OPERANDS_MAX = OPQ_BUFFER_MAX < OPQ_SCALAR_MAX ? OPQ_BUFFER_MAX : OPQ_SCALAR_MAX,
    PLAIN_MEMBERS_MAX = OPQ_NESTING_MAX - 4, /* a chain of them, a view and memory */
};

opq_fill opq_group_fill_of(const opq_node *node)
{
    return (opq_fill){node->arity + opq_node_divides(node), node->arity - 1, 0};
}

/* A number, or loaded: from memory, through views that need no other loops than the dims of the result. */
static bool is_plain_operand(const opq_grouper *g, opq_ref ref)
{
    const opq_node *operand = opq_node_at(g->in, ref);
    opq_class class_ = opq_node_class(operand);
    if (class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR)
        return operand->type.rank == 0;
    if (operand->op == OPQ_OP_slice || operand->op == OPQ_OP_permute || operand->op == OPQ_OP_expand)
        ref = operand->operand[0];
    return !opq_node_is_free(g->in, ref);
}

/* Elementwise over such operands, of which one moves with all loops: else it would be computed again in those that it does not. */
bool opq_group_is_plain(const opq_grouper *g, opq_ref n)
{
    const opq_node *node = opq_node_at(g->in, n);
    bool moves = false;
    if (!opq_class_is_elementwise(opq_node_class(node)))
        return false;
    for (int k = 0; k < node->arity; k++) {
        const opq_node *operand = opq_node_at(g->in, node->operand[k]);
        if (!is_plain_operand(g, node->operand[k]))
            return false;
        moves = moves || (operand->op != OPQ_OP_expand && opq_shape_equal(&operand->type, &node->type));
    }
    return moves;
}

/* No view stands between n and what these groups compute of it. */
static bool feeds_directly(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next)
        if (!g->edges[e].direct && opq_is_one_of(ids, count, g->result.group_of[g->edges[e].consumer]))
            return false;
    return true;
}

bool opq_group_stays_plain(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    const opq_type *type = &opq_node_at(g->in, n)->type;
    for (int i = 0; i < count; i++) {
        const opq_group *group = &g->groups[ids[i]];
        if (!group->plain || !opq_shape_equal(type, &opq_node_at(g->in, group->members[0])->type))
            return false;
        for (int k = 0; k < group->count && count > 1; k++)
            if (!feeds_directly(g, group->members[k], ids, count))
                return false;
    }
    return opq_group_is_plain(g, n) && feeds_directly(g, n, ids, count);
}

bool opq_group_joins_plainly(const opq_grouper *g, opq_ref n, int32_t id, opq_fill *out_fill)
{
    const opq_group *group = &g->groups[id];
    opq_fill more = opq_group_fill_of(opq_node_at(g->in, n));
    *out_fill = (opq_fill){group->fill.body + more.body, group->fill.operands + more.operands, 0};
    return out_fill->body <= OPQ_BODY_MAX && out_fill->operands <= PLAIN_OPERANDS_MAX &&
           group->count < PLAIN_MEMBERS_MAX && opq_group_stays_plain(g, n, &id, 1) && !opq_group_stores(g, n, &id, 1);
}
