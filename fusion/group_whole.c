/* A small graph of elementwise ops and reductions, of which all but one are needed by others, is tried as one kernel before its nodes are
 * placed one by one: what a composite op became. One trial says what a trial for each node would say in the end, and planning such an op
 * is mostly trials.
 */
#include "fusion/group_state.h"

enum { WHOLE_MAX = 24 };

/* The member that the operand is, or looks at; -1. */
static int member_behind(const opq_grouper *g, opq_ref operand, const opq_ref *members, int count)
{
    int i = count - 1;
    while (opq_node_class(opq_node_at(g->in, operand)) == OPQ_CLASS_VIEW)
        operand = opq_node_at(g->in, operand)->operand[0];
    while (i >= 0 && members[i] != operand)
        i--;
    return i;
}

/* How many there are; 0: the graph is no such. */
static int find_members(const opq_grouper *g, opq_ref *out_members)
{
    int count = 0, reductions = 0;
    uint32_t needed = 0;
    for (opq_ref n = 0; n < g->in->count; n++) {
        const opq_node *node = opq_node_at(g->in, n);
        bool reduces = opq_node_class(node) == OPQ_CLASS_REDUCE, is_free = opq_node_is_free(g->in, n);
        if (node->op != OPQ_OP_input && !is_free) {
            if ((!reduces && !opq_class_is_elementwise(opq_node_class(node))) || count == WHOLE_MAX)
                return 0;
            for (int k = 0; k < node->arity; k++) {
                int member = member_behind(g, node->operand[k], out_members, count);
                needed |= member >= 0 ? 1u << member : 0;
            }
            out_members[count++] = n;
            reductions += reduces;
        } else if (g->is_output[n] || g->result.in_memory[n]) {
            return 0;
        }
    }
    return reductions > 0 && needed == (1u << (count - 1)) - 1 ? count : 0;
}

opq_status opq_group_whole(opq_grouper *g, bool *out_whole)
{
    opq_ref members[WHOLE_MAX], stored[WHOLE_MAX];
    opq_lowered lowered;
    opq_lower_request request = {.graph = g->in,
                                 .group_of = g->result.group_of,
                                 .in_memory = g->result.in_memory,
                                 .members = members,
                                 .member_count = find_members(g, members),
                                 .stored = stored};
    *out_whole = false;
    if (request.member_count == 0)
        return OPQ_OK;
    for (int i = 0; i < request.member_count; i++) {
        g->result.group_of[members[i]] = request.group;
        if (g->is_output[members[i]])
            stored[request.stored_count++] = members[i];
    }
    OPQ_TRY(opq_lower(&request, NULL, &lowered));
    *out_whole = lowered.refusal == OPQ_REFUSAL_none && lowered.loss == OPQ_REFUSAL_none;
    for (int i = 0; i < request.member_count && !*out_whole; i++)
        g->result.group_of[members[i]] = -1;
    g->group_count = *out_whole;
    return OPQ_OK;
}
