/* Trials: can groups be one kernel? What is legal is what opq_lower accepts. */
#include "fusion/group_state.h"

#include <stdlib.h>

bool opq_is_one_of(const int32_t *ids, int count, int32_t id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

bool opq_group_stores(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    if (g->is_output[n])
        return true;
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
        if (g->edges[e].from_memory || !opq_is_one_of(ids, count, g->result.group_of[g->edges[e].consumer]))
            return true;
    }
    return false;
}

static int descending(const void *a, const void *b)
{
    opq_ref x = *(const opq_ref *)a, y = *(const opq_ref *)b;
    return (x < y) - (x > y);
}

void opq_group_sort(opq_ref *members, int count) { qsort(members, (size_t)count, sizeof *members, descending); }

opq_status opq_group_collect(opq_grouper *g, opq_ref n, const int32_t *ids, int count, int *out_total)
{
    int total = n >= 0, at = 0;
    for (int i = 0; i < count; i++)
        total += g->groups[ids[i]].count;
    if (total > g->trial_capacity) {
        opq_ref *grown = realloc(g->trial, (size_t)total * 2 * sizeof *grown);
        if (grown == NULL)
            return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
        g->trial = grown;
        g->trial_capacity = total * 2;
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            g->trial[at++] = g->groups[ids[i]].members[k];
    if (count > 1)
        opq_group_sort(g->trial, at);
    if (n >= 0)
        g->trial[at] = n; /* nodes come in reverse */
    *out_total = total;
    return OPQ_OK;
}

void opq_group_restore(opq_grouper *g, const int32_t *ids, int count)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            g->result.group_of[g->groups[ids[i]].members[k]] = ids[i];
}

opq_status opq_group_lower(opq_grouper *g, const opq_ref *members, int count, opq_lower_request request,
                           opq_arena *arena, opq_lowered *out_lowered)
{
    opq_ref *own = opq_arena_alloc(&g->scratch, 2 * (size_t)count * sizeof *own), *stored = own + count;
    if (own == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    for (int i = count - 1; i >= 0; i--) {
        if (g->result.group_of[members[i]] != request.group)
            continue;
        own[request.member_count++] = members[i];
        if (opq_group_stores(g, members[i], &request.group, 1))
            stored[request.stored_count++] = members[i];
    }
    request.graph = g->in;
    request.group_of = g->result.group_of;
    request.in_memory = g->result.in_memory;
    request.members = own;
    request.stored = stored;
    return opq_lower(&request, arena, out_lowered);
}

opq_status opq_group_measure(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill *out_fill,
                             opq_refusal *out_refusal)
{
    int total = 0;
    opq_lowered lowered;
    OPQ_TRY(opq_group_collect(g, n, ids, count, &total));
    for (int i = 0; i < total; i++)
        g->result.group_of[g->trial[i]] = ids[0];
    opq_status status = opq_group_lower(g, g->trial, total, (opq_lower_request){.group = ids[0]}, NULL, &lowered);
    *out_refusal = lowered.loss != OPQ_REFUSAL_none ? lowered.loss : lowered.refusal;
    *out_fill = (opq_fill){lowered.fill, lowered.argument_count, lowered.load_count};
    opq_arena_drop(&g->scratch);
    opq_group_restore(g, ids + 1, count - 1);
    if (n >= 0)
        g->result.group_of[n] = -1;
    return status;
}

static bool read_from_memory(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next)
        if (g->edges[e].from_memory && opq_is_one_of(ids, count, g->result.group_of[g->edges[e].consumer]))
            return true;
    return false;
}

/* A member takes n, or what another of these groups makes, from memory: it must be there before the kernel that would make it starts. */
static bool reads_own_result(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    if (n >= 0 && read_from_memory(g, n, ids, count))
        return true;
    for (int i = 0; i < count && count > 1; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            if (read_from_memory(g, g->groups[ids[i]].members[k], ids, count))
                return true;
    return false;
}

opq_status opq_group_try(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill *out_fill,
                         opq_refusal *out_refusal)
{
    *out_refusal = OPQ_REFUSAL_none;
    if (reads_own_result(g, n, ids, count))
        *out_refusal = OPQ_REFUSAL_other_use;
    else if (opq_order_has_cycle(g, n, ids, count))
        *out_refusal = OPQ_REFUSAL_cycle;
    else if (n < 0 || count > 1 || !opq_group_joins_plainly(g, n, ids[0], out_fill))
        return opq_group_measure(g, n, ids, count, out_fill, out_refusal);
    return OPQ_OK;
}
