/* Grouping: which nodes become one kernel.
 *
 * Nodes are visited in reverse record order, so all consumers of a node are placed before it. A node first tries to join all of its
 * consumers' groups at once (they become one), then each of them alone; where it cannot, it starts a group of its own.
 *
 *        x                     visit   div   -> g0
 *       / \                            sum   -> g0   (row: div's iteration space, cut into kept and reduced loops)
 *     exp  |                           exp   -> g0
 *     / \  |                           amax? -> g0
 *   sum  \ |                   What is legal is what opq_lower accepts; its refusal is the reason kept for the edge.
 *     \   \|
 *      div
 *
 * needs   expanded, simplified graph
 * keeps   every node, every rounding; a node is in one group
 * breaks  node numbers (build_fused orders groups topologically)
 * not     duplicating a node into two groups; joining groups that only share an input (group_sibling.c)
 */
#include "fusion/group_state.h"
#include "graph/progress.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONSUMER_GROUPS_MAX = 8,
};

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "group: out of memory"); }

/* ---- groups */

static int32_t new_group(opq_grouper *g)
{
    opq_order_new(&g->order, &g->groups[g->group_count]);
    return g->group_count++;
}

static opq_status add_member(opq_grouper *g, opq_group *group, opq_ref n)
{
    if (group->count == group->capacity) {
        group->capacity = group->capacity ? group->capacity * 2 : 4;
        opq_ref *grown = opq_arena_alloc(&g->memory, (size_t)group->capacity * sizeof *grown);
        if (grown == NULL)
            return out_of_memory();
        if (group->count > 0)
            memcpy(grown, group->members, (size_t)group->count * sizeof *grown);
        group->members = grown;
    }
    group->members[group->count++] = n;
    return OPQ_OK;
}

/* n, if there is one, and all members go to the first group. */
static opq_status join(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill fill)
{
    opq_group *target = &g->groups[ids[0]];
    target->plain = n >= 0 && (target->count == 0 ? opq_group_is_plain(g, n) : opq_group_stays_plain(g, n, ids, count));
    for (int i = 1; i < count; i++) {
        opq_group *from = &g->groups[ids[i]];
        for (int k = 0; k < from->count; k++) {
            OPQ_TRY(add_member(g, target, from->members[k]));
            g->result.group_of[from->members[k]] = ids[0];
        }
        from->count = 0;
    }
    if (count > 1)
        opq_group_sort(target->members, target->count);
    target->fill = fill;
    if (n < 0)
        return OPQ_OK;
    g->result.group_of[n] = ids[0];
    return add_member(g, target, n);
}

/* Node classes whose value can be made inside a consumer's kernel. */
static bool can_join(const opq_node *node)
{
    switch (opq_node_class(node)) {
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_REDUCE:
    case OPQ_CLASS_SCAN:
    case OPQ_CLASS_RANDOM:
    case OPQ_CLASS_INDEX:
    case OPQ_CLASS_MATMUL: return true;
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR:
    case OPQ_CLASS_IOTA:
    case OPQ_CLASS_VIEW:
    case OPQ_CLASS_UPDATE:
    case OPQ_CLASS_CONCAT:
    case OPQ_CLASS_SCATTER:
    case OPQ_CLASS_ROUTINE:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: break;
    }
    return false;
}

/* A call of a function that reads whole buffers: no kernel. */
static bool is_call(const opq_node *node)
{
    return opq_node_class(node) == OPQ_CLASS_EXTERN || opq_node_class(node) == OPQ_CLASS_ROUTINE;
}

static bool takes_members(const opq_node *node) { return !is_call(node) && opq_node_class(node) != OPQ_CLASS_MATMUL; }

opq_status opq_group_join(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill fill)
{
    opq_order_join(g, ids, count);
    return join(g, n, ids, count, fill);
}

static opq_status try_groups(opq_grouper *g, opq_ref n, const int32_t *ids, int count, bool *out_joined)
{
    opq_refusal refusal;
    opq_fill fill;
    OPQ_TRY(opq_group_try(g, n, ids, count, &fill, &refusal));
    *out_joined = refusal == OPQ_REFUSAL_none;
    if (*out_joined)
        return opq_group_join(g, n, ids, count, fill);
    g->refusal[n] = refusal;
    return OPQ_OK;
}

/* A matmul sees its epilogue from the tile only when nobody needs the raw product: storing it too would cost what fusing saves. */
static bool must_stay_alone(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    return opq_node_class(opq_node_at(g->in, n)) == OPQ_CLASS_MATMUL && opq_group_stores(g, n, ids, count);
}

static opq_status place_alone(opq_grouper *g, opq_ref n)
{
    int32_t id = new_group(g);
    opq_refusal refusal = OPQ_REFUSAL_none;
    const opq_node *node = opq_node_at(g->in, n);
    opq_fill fill = opq_group_fill_of(node);
    bool follows = opq_node_class(node) == OPQ_CLASS_VIEW;
    fill.body += 2; /* it is stored, and no operand of anything */
    fill.operands += 2;
    for (int k = 0; k < node->arity; k++)
        follows = follows || opq_is_computed_inside(g, node->operand[k]);
    /* a row of several dims is one stride, too */
    bool one_stride = g->fusion == OPQ_UNFUSED && opq_node_class(node) != OPQ_CLASS_REDUCE && opq_reads_strides(g, n);
    if (follows && !is_call(node) && !one_stride)
        for (bool again = true; again;) {
            OPQ_TRY(opq_group_measure(g, n, &id, 1, &fill, &refusal));
            again = false;
            if (refusal != OPQ_REFUSAL_none)
                OPQ_TRY(opq_store_views(g, n, &again));
        }
    return join(g, n, &id, 1, fill);
}

static opq_status place(opq_grouper *g, opq_ref n)
{
    int32_t ids[CONSUMER_GROUPS_MAX];
    int count = 0;
    const opq_node *node = opq_node_at(g->in, n);
    bool joined = false;
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
        int32_t id = g->result.group_of[g->edges[e].consumer];
        bool known = g->edges[e].from_memory || !takes_members(opq_node_at(g->in, g->edges[e].consumer));
        for (int i = 0; i < count; i++)
            known = known || ids[i] == id;
        if (!known && count < CONSUMER_GROUPS_MAX)
            ids[count++] = id;
    }
    opq_refusal kept = g->fusion == OPQ_FUSED ? opq_group_keeps_to_tile(g, n) : OPQ_REFUSAL_none;
    g->refusal[n] = count == 0 && g->first_edge[n] >= 0 ? OPQ_REFUSAL_boundary : kept;
    if (g->fusion == OPQ_FUSED && kept == OPQ_REFUSAL_none && can_join(node)) {
        if (count > 1 && !must_stay_alone(g, n, ids, count))
            OPQ_TRY(try_groups(g, n, ids, count, &joined));
        for (int i = 0; i < count && !joined; i++)
            if (!must_stay_alone(g, n, &ids[i], 1))
                OPQ_TRY(try_groups(g, n, &ids[i], 1, &joined));
            else
                g->refusal[n] = OPQ_REFUSAL_other_use;
    }
    if (!joined)
        OPQ_TRY(place_alone(g, n));
    return opq_add_edges_of(g, n);
}

static opq_status place_all(opq_grouper *g)
{
    opq_bound_views(g);
    for (opq_ref n = 0; n < g->in->count && g->single; n++)
        g->result.in_memory[n] = opq_node_class(opq_node_at(g->in, n)) == OPQ_CLASS_VIEW;
    opq_find_users(g);
    for (int i = 0; i < g->in->output_count; i++) {
        opq_ref ref = opq_strip_reshape(g->in, g->in->outputs[i]);
        const opq_node *node = opq_node_at(g->in, ref);
        g->result.in_memory[ref] = opq_node_is_free(g->in, ref) && node->op != OPQ_OP_undefined;
        g->is_output[node->op == OPQ_OP_extern_result ? node->operand[0] : ref] = 1;
    }
    bool whole = false;
    if (g->fusion == OPQ_FUSED)
        OPQ_TRY(opq_group_whole(g, &whole));
    for (opq_ref n = g->in->count - 1; n >= 0 && !whole; n--) {
        bool wanted = g->first_edge[n] >= 0 || g->is_output[n] || g->result.in_memory[n];
        const opq_node *node = opq_node_at(g->in, n);
        if (!wanted || node->op == OPQ_OP_input || node->op == OPQ_OP_extern_result ||
            (opq_node_is_free(g->in, n) && !g->result.in_memory[n]))
            continue;
        OPQ_TRY(place(g, n));
        opq_progress("grouping ops into kernels", g->in->count - n, g->in->count);
    }
    return OPQ_OK;
}

static opq_status note_unfused(const opq_grouper *g, opq_unfused *unfused)
{
    for (opq_ref n = 0; n < g->in->count; n++)
        for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
            opq_ref consumer = g->edges[e].consumer;
            if (g->result.group_of[n] == g->result.group_of[consumer])
                continue;
            if (unfused->count == unfused->capacity) {
                unfused->capacity = unfused->capacity ? unfused->capacity * 2 : 64;
                opq_unfused_edge *grown = realloc(unfused->edges, (size_t)unfused->capacity * sizeof *grown);
                if (grown == NULL)
                    return out_of_memory();
                unfused->edges = grown;
            }
            opq_refusal refusal =
                g->edges[e].from_memory || g->refusal[n] == OPQ_REFUSAL_none ? OPQ_REFUSAL_boundary : g->refusal[n];
            unfused->edges[unfused->count++] = (opq_unfused_edge){g->renamed[n], g->renamed[consumer], refusal, 0};
        }
    return OPQ_OK;
}

static opq_status allocate(opq_grouper *g)
{
    size_t count = (size_t)g->in->count + 1, uses = 0;
    for (opq_ref n = 0; n < g->in->count; n++)
        uses += (size_t)opq_node_at(g->in, n)->arity;
    int32_t **const numbers[] = {&g->result.group_of, &g->first_edge, &g->first_need,
                                 &g->needs_end,       &g->first_user, &g->renamed};
    bool ok = true;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ok = (*numbers[i] = opq_arena_alloc(&g->memory, count * sizeof **numbers[i])) && ok;
    for (int direction = 0; direction < OPQ_DIRECTIONS; direction++) {
        g->order.front[direction].groups = opq_arena_alloc(&g->memory, count * sizeof *g->order.front[direction].groups);
        ok = ok && g->order.front[direction].groups;
    }
    g->users = opq_arena_alloc(&g->memory, (uses + 1) * sizeof *g->users);
    g->readers = opq_arena_alloc(&g->memory, (uses + count) * sizeof *g->readers);
    g->groups = opq_arena_alloc(&g->memory, count * sizeof *g->groups);
    g->refusal = opq_arena_alloc(&g->memory, count * sizeof *g->refusal);
    g->is_output = opq_arena_alloc(&g->memory, count);
    g->searched = opq_arena_alloc(&g->memory, count);
    g->result.in_memory = opq_arena_alloc(&g->memory, count);
    if (!ok || !g->users || !g->readers || !g->groups || !g->refusal || !g->is_output || !g->searched ||
        !g->result.in_memory)
        return out_of_memory();
    opq_order_begin(&g->order);
    memset(g->first_edge, 0xff, count * sizeof *g->first_edge);
    memset(g->result.group_of, 0xff, count * sizeof *g->result.group_of);
    return OPQ_OK;
}

/* ---- the pass */

static opq_status group_nodes(opq_grouper *g)
{
    opq_status status = allocate(g);
    if (status == OPQ_OK)
        status = place_all(g);
    g->result.group_count = g->group_count;
    if (g->fusion == OPQ_UNFUSED || g->group_count < 2) /* nobody to join */
        return status;
    if (status == OPQ_OK)
        status = opq_group_blocks(g);
    if (status == OPQ_OK)
        status = opq_group_siblings(g);
    if (status == OPQ_OK)
        status = opq_group_products(g);
    return status;
}

static void drop(opq_grouper *g)
{
    free(g->edges);
    free(g->trial);
    opq_arena_drop(&g->scratch);
    opq_arena_drop(&g->memory);
}

/* Of what kernels make for each other. */
static int64_t stored_bytes(const opq_grouper *g)
{
    int64_t bytes = 0;
    for (opq_ref n = 0; n < g->in->count; n++)
        if (g->result.group_of[n] >= 0 && opq_group_stores(g, n, &g->result.group_of[n], 1))
            bytes += opq_type_bytes(&opq_node_at(g->in, n)->type);
    return bytes;
}

/* With values computed again where that leaves less to store. */
static opq_status group_again(opq_grouper *g, opq_graph **out_copy)
{
    if (g->group_count < 2)
        return OPQ_OK;
    OPQ_TRY(opq_rematerialize(g->in, &g->result, out_copy));
    if (*out_copy == NULL)
        return OPQ_OK;
    opq_grouper again = {.in = *out_copy, .fusion = g->fusion};
    opq_status status = group_nodes(&again);
    if (status == OPQ_OK && stored_bytes(&again) < stored_bytes(g)) {
        opq_grouper first = *g;
        *g = again;
        again = first;
    }
    drop(&again);
    return status;
}

static opq_status check_expanded(const opq_graph *in)
{
    for (opq_ref n = 0; n < in->count; n++)
        if (opq_expands(in, opq_node_at(in, n)))
            return opq_fail(OPQ_INVALID, "group: %%%d = %s was not expanded: the pass expand comes first", (int)n,
                            opq_node_info(opq_node_at(in, n))->name);
    return OPQ_OK;
}

/* One op has nobody to be fused with, but for views of it that are stored. */
static bool is_alone(const opq_graph *graph)
{
    for (int i = 0; i < graph->output_count; i++)
        if (opq_node_is_free(graph, opq_strip_reshape(graph, graph->outputs[i])))
            return false;
    return opq_graph_is_one_op(graph);
}

opq_status opq_pass_group(const opq_graph *in, opq_fusion fusion, opq_graph *out, opq_unfused *out_unfused)
{
    if (is_alone(in))
        fusion = OPQ_UNFUSED;
    opq_grouper g = {.in = in, .fusion = fusion};
    opq_graph *turned = NULL, *own = NULL, *copy = NULL;
    opq_status status = check_expanded(in);
    if (status == OPQ_OK && fusion == OPQ_FUSED) {
        status = opq_turn_operands(in, &turned);
        g.in = turned ? turned : in;
    }
    if (status == OPQ_OK && fusion == OPQ_FUSED) {
        status = opq_rematerialize_indices(g.in, &own);
        g.in = own ? own : g.in;
    }
    if (status == OPQ_OK)
        status = group_nodes(&g);
    if (status == OPQ_OK && fusion == OPQ_FUSED)
        status = group_again(&g, &copy);
    if (status == OPQ_OK)
        status = opq_build_fused(g.in, &g.result, out, g.renamed);
    if (status == OPQ_OK && out_unfused)
        status = note_unfused(&g, out_unfused);
    drop(&g);
    opq_graph_destroy(copy);
    opq_graph_destroy(own);
    opq_graph_destroy(turned);
    return status;
}

opq_status opq_pass_single(const opq_graph *in, opq_graph *out, opq_ref *out_renamed)
{
    opq_grouper g = {.in = in, .fusion = OPQ_UNFUSED, .single = true};
    opq_status status = group_nodes(&g);
    if (status == OPQ_OK)
        status = opq_build_fused(in, &g.result, out, out_renamed);
    drop(&g);
    return status;
}
