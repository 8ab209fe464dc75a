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
 * not     duplicating a node into two groups; joining groups that only share an input
 */
#include "fusion/group_state.h"

#include <stdlib.h>
#include <string.h>

enum { FAST_BODY_MAX = 300, FAST_OPERAND_MAX = 64, CONSUMER_GROUPS_MAX = 8 };

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "group: out of memory"); }

/* ---- groups */

static bool in_set(const uint64_t *set, int i) { return set[i / 64] >> (i % 64) & 1; }

static opq_status new_group(opq_grouper *g, int32_t *out_id)
{
    opq_group *made = &g->groups[g->group_count];
    *out_id = g->group_count++;
    if (g->fusion == OPQ_UNFUSED) /* nobody asks who needs whom, and a set per node is much memory */
        return OPQ_OK;
    made->after = calloc((size_t)g->words, sizeof *made->after);
    return made->after ? OPQ_OK : out_of_memory();
}

static opq_status add_member(opq_group *group, opq_ref n)
{
    if (group->count == group->capacity) {
        group->capacity = group->capacity ? group->capacity * 2 : 8;
        opq_ref *grown = realloc(group->members, (size_t)group->capacity * sizeof *grown);
        if (grown == NULL)
            return out_of_memory();
        group->members = grown;
    }
    group->members[group->count++] = n;
    return OPQ_OK;
}

static void put_in(uint64_t *set, int i) { set[i / 64] |= 1ull << (i % 64); }
static void take_out(uint64_t *set, int i) { set[i / 64] &= ~(1ull << (i % 64)); }

static void unite(const opq_grouper *g, uint64_t *set, const uint64_t *extra)
{
    for (int w = 0; w < g->words; w++)
        set[w] |= extra[w];
}

/* `id` is now needed by the groups of `extra`; so is whatever `id` needs. Nodes come in reverse order: that is seldom any group. */
static void needed_by(opq_grouper *g, int32_t id, const uint64_t *extra)
{
    unite(g, g->groups[id].after, extra);
    for (int32_t i = 0; i < g->group_count && g->groups[id].needs_some; i++)
        if (in_set(g->groups[i].after, id))
            unite(g, g->groups[i].after, extra);
}

static bool needs(const opq_grouper *g, int32_t later, int32_t earlier)
{
    return in_set(g->groups[earlier].after, later);
}

/* Is there another group that needs `earlier` and that `later` needs? */
static bool needs_through_another(const opq_grouper *g, int32_t later, int32_t earlier)
{
    const uint64_t *after = g->groups[earlier].after;
    for (int w = 0; w < g->words; w++)
        for (uint64_t bits = after[w]; bits; bits &= bits - 1) {
            int32_t via = w * 64 + __builtin_ctzll(bits);
            if (via != later && via != earlier && !g->groups[via].dead && needs(g, later, via))
                return true;
        }
    return false;
}

static bool is_one_of(const int32_t *ids, int count, int32_t id)
{
    for (int i = 0; i < count; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static bool used_outside(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    if (g->is_output[n])
        return true;
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
        if (g->edges[e].from_memory || !is_one_of(ids, count, g->result.group_of[g->edges[e].consumer]))
            return true;
    }
    return false;
}

static bool makes_cycle(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    for (int i = 0; i < count; i++) {
        for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
            int32_t group = g->result.group_of[g->edges[e].consumer];
            if (!is_one_of(ids, count, group) && needs(g, ids[i], group))
                return true;
        }
        for (int k = 0; k < count; k++) /* a direct need becomes an inner edge; one through a third group stays */
            if (k != i && needs_through_another(g, ids[i], ids[k]))
                return true;
    }
    return false;
}

/* ---- trying */

static int descending(const void *a, const void *b)
{
    opq_ref x = *(const opq_ref *)a, y = *(const opq_ref *)b;
    return (x < y) - (x > y);
}

static opq_status try_lower(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_refusal *out_refusal)
{
    int total = 1, stored_count = 0;
    for (int i = 0; i < count; i++)
        total += g->groups[ids[i]].count;
    opq_ref *members = malloc((size_t)total * 2 * sizeof *members);
    if (members == NULL)
        return out_of_memory();
    opq_ref *stored = members + total;
    int at = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            members[at++] = g->groups[ids[i]].members[k];
    members[at++] = n;
    qsort(members, (size_t)total, sizeof *members, descending);
    for (int i = 0; i < total; i++)
        g->result.group_of[members[i]] = ids[0];
    for (int i = total - 1; i >= 0; i--)
        if (used_outside(g, members[i], ids, 1))
            stored[stored_count++] = members[i];
    opq_lower_request request = {g->in, g->result.group_of, ids[0], g->result.in_memory, stored, stored_count, false};
    opq_lowered lowered;
    opq_status status = opq_lower(&request, &g->scratch, &lowered);
    *out_refusal = lowered.refusal;
    opq_arena_drop(&g->scratch);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            g->result.group_of[g->groups[ids[i]].members[k]] = ids[i];
    g->result.group_of[n] = -1;
    free(members);
    return status;
}

/* An elementwise node that only feeds an elementwise group, straight from memory or numbers: so it has the shape of all of that. */
static bool joins_plainly(const opq_grouper *g, opq_ref n, int32_t id)
{
    const opq_node *node = opq_node_at(g->in, n);
    const opq_group *group = &g->groups[id];
    opq_class class_ = opq_node_class(node);
    if (!group->plain || (class_ != OPQ_CLASS_EWISE && class_ != OPQ_CLASS_CAST) || group->body + 4 > FAST_BODY_MAX ||
        group->operands + node->arity > FAST_OPERAND_MAX || g->is_output[n])
        return false;
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next)
        if (g->result.group_of[g->edges[e].consumer] != id || !g->edges[e].direct || g->edges[e].from_memory)
            return false;
    return true;
}

static bool is_plain_node(const opq_grouper *g, opq_ref n)
{
    const opq_node *node = opq_node_at(g->in, n);
    opq_class class_ = opq_node_class(node);
    for (int k = 0; k < node->arity; k++) {
        const opq_node *operand = opq_node_at(g->in, node->operand[k]);
        bool free = opq_node_is_free(g->in, node->operand[k]), number = free && operand->type.rank == 0;
        if (!number && (free || !opq_shape_equal(&operand->type, &node->type))) /* views, iota: some loops do not move them */
            return false;
    }
    return class_ == OPQ_CLASS_EWISE || class_ == OPQ_CLASS_CAST;
}

static opq_status join(opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    opq_group *target = &g->groups[ids[0]];
    for (int i = 1; i < count; i++) {
        opq_group *from = &g->groups[ids[i]];
        for (int k = 0; k < from->count; k++) {
            OPQ_TRY(add_member(target, from->members[k]));
            g->result.group_of[from->members[k]] = ids[0];
        }
        target->body += from->body;
        target->operands += from->operands;
        target->plain = target->plain && from->plain;
        unite(g, target->after, from->after);
        target->needs_some = target->needs_some || from->needs_some;
        for (int32_t other = 0; other < g->group_count; other++)
            if (in_set(g->groups[other].after, ids[i]))
                put_in(g->groups[other].after, ids[0]);
        from->dead = true;
        from->count = 0;
    }
    if (count > 1) {
        qsort(target->members, (size_t)target->count, sizeof *target->members, descending);
        for (int i = 0; i < count; i++) /* it does not need itself */
            take_out(target->after, ids[i]);
        needed_by(g, ids[0], target->after);
    }
    target->plain = (target->count == 0 || target->plain) && is_plain_node(g, n);
    target->body += 2;
    target->operands += opq_node_at(g->in, n)->arity;
    OPQ_TRY(add_member(target, n));
    g->result.group_of[n] = ids[0];
    if (g->fusion == OPQ_UNFUSED)
        return OPQ_OK;
    uint64_t *users = calloc((size_t)g->words, sizeof *users);
    if (users == NULL)
        return out_of_memory();
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
        int32_t user = g->result.group_of[g->edges[e].consumer];
        if (user != ids[0] && !in_set(users, user)) {
            unite(g, users, g->groups[user].after);
            put_in(users, user);
            g->groups[user].needs_some = true;
        }
    }
    needed_by(g, ids[0], users);
    free(users);
    return OPQ_OK;
}

/* Node classes whose value can be made inside a consumer's kernel. */
static bool can_join(const opq_node *node)
{
    switch (opq_node_class(node)) {
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_REDUCE:
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
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: break;
    }
    return false;
}

static bool takes_members(const opq_node *node)
{
    return opq_node_class(node) != OPQ_CLASS_EXTERN && opq_node_class(node) != OPQ_CLASS_MATMUL;
}

static bool read_from_memory(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next)
        if (g->edges[e].from_memory && is_one_of(ids, count, g->result.group_of[g->edges[e].consumer]))
            return true;
    return false;
}

/* A member takes n, or what another of these groups makes, from memory: it must be there before the kernel that would make it starts. */
static bool reads_own_result(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    if (read_from_memory(g, n, ids, count))
        return true;
    for (int i = 0; i < count && count > 1; i++)
        for (int k = 0; k < g->groups[ids[i]].count; k++)
            if (read_from_memory(g, g->groups[ids[i]].members[k], ids, count))
                return true;
    return false;
}

static opq_status try_groups(opq_grouper *g, opq_ref n, const int32_t *ids, int count, bool *out_joined)
{
    opq_refusal refusal = OPQ_REFUSAL_none;
    *out_joined = false;
    if (reads_own_result(g, n, ids, count)) {
        refusal = OPQ_REFUSAL_other_use;
    } else if (makes_cycle(g, n, ids, count)) {
        refusal = OPQ_REFUSAL_cycle;
    } else if (count > 1 || !joins_plainly(g, n, ids[0]) || !is_plain_node(g, n)) {
        OPQ_TRY(try_lower(g, n, ids, count, &refusal));
    }
    if (refusal != OPQ_REFUSAL_none) {
        g->refusal[n] = refusal;
        return OPQ_OK;
    }
    *out_joined = true;
    return join(g, n, ids, count);
}

/* A matmul sees its epilogue from the tile only when nobody needs the raw product: storing it too would cost what fusing saves. */
static bool must_stay_alone(const opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    return opq_node_class(opq_node_at(g->in, n)) == OPQ_CLASS_MATMUL && used_outside(g, n, ids, count);
}

static opq_status place_alone(opq_grouper *g, opq_ref n)
{
    int32_t id;
    opq_refusal refusal = OPQ_REFUSAL_none;
    const opq_node *node = opq_node_at(g->in, n);
    bool follows = opq_node_class(node) == OPQ_CLASS_VIEW;
    OPQ_TRY(new_group(g, &id));
    for (int k = 0; k < node->arity; k++)
        follows = follows || opq_is_computed_inside(g, node->operand[k]);
    if (follows && opq_node_class(node) != OPQ_CLASS_EXTERN)
        for (bool again = true; again;) {
            OPQ_TRY(try_lower(g, n, &id, 1, &refusal));
            again = false;
            if (refusal != OPQ_REFUSAL_none)
                OPQ_TRY(opq_store_views(g, n, &again));
        }
    g->groups[id].plain = true;
    return join(g, n, &id, 1);
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
    g->refusal[n] = count == 0 && g->first_edge[n] >= 0 ? OPQ_REFUSAL_boundary : OPQ_REFUSAL_none;
    if (g->fusion == OPQ_FUSED && can_join(node)) {
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
    for (int i = 0; i < g->in->output_count; i++) {
        opq_ref ref = opq_strip_reshape(g->in, g->in->outputs[i]);
        const opq_node *node = opq_node_at(g->in, ref);
        g->result.in_memory[ref] = opq_node_is_free(g->in, ref) && node->op != OPQ_OP_undefined;
        g->is_output[node->op == OPQ_OP_extern_result ? node->operand[0] : ref] = 1;
    }
    for (opq_ref n = g->in->count - 1; n >= 0; n--) {
        bool wanted = g->first_edge[n] >= 0 || g->is_output[n] || g->result.in_memory[n];
        const opq_node *node = opq_node_at(g->in, n);
        if (!wanted || node->op == OPQ_OP_input || node->op == OPQ_OP_extern_result ||
            (opq_node_is_free(g->in, n) && !g->result.in_memory[n]))
            continue;
        OPQ_TRY(place(g, n));
    }
    return OPQ_OK;
}

static opq_status note_unfused(const opq_grouper *g, const opq_ref *renamed, opq_unfused *unfused)
{
    for (opq_ref n = 0; n < g->in->count; n++)
        for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next) {
            opq_ref consumer = g->edges[e].consumer;
            if (g->result.group_of[n] == g->result.group_of[consumer] && !g->edges[e].from_memory)
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
            unfused->edges[unfused->count++] = (opq_unfused_edge){renamed[n], renamed[consumer], refusal};
        }
    return OPQ_OK;
}

opq_status opq_pass_group(const opq_graph *in, opq_fusion fusion, opq_graph *out, opq_unfused *out_unfused)
{
    size_t count = (size_t)in->count + 1;
    opq_grouper g = {.in = in, .fusion = fusion, .words = (int)(count / 64 + 1)};
    g.groups = calloc(count, sizeof *g.groups);
    g.first_edge = malloc(count * sizeof *g.first_edge);
    g.is_output = calloc(count, 1);
    g.refusal = calloc(count, sizeof *g.refusal);
    g.result.group_of = malloc(count * sizeof *g.result.group_of);
    g.result.in_memory = calloc(count, 1);
    opq_ref *renamed = malloc(count * sizeof *renamed);
    bool ok = g.groups && g.first_edge && g.is_output && g.refusal && g.result.group_of && g.result.in_memory && renamed;
    opq_status status = ok ? OPQ_OK : out_of_memory();
    if (status == OPQ_OK) {
        memset(g.first_edge, 0xff, count * sizeof *g.first_edge);
        memset(g.result.group_of, 0xff, count * sizeof *g.result.group_of);
        status = place_all(&g);
    }
    g.result.group_count = g.group_count;
    if (status == OPQ_OK)
        status = opq_build_fused(in, &g.result, out, renamed);
    if (status == OPQ_OK && out_unfused)
        status = note_unfused(&g, renamed, out_unfused);
    for (int i = 0; g.groups && i < g.group_count; i++) {
        free(g.groups[i].members);
        free(g.groups[i].after);
    }
    free(g.groups);
    free(g.edges);
    free(g.first_edge);
    free(g.is_output);
    free(g.refusal);
    free(g.result.group_of);
    free(g.result.in_memory);
    free(renamed);
    opq_arena_drop(&g.scratch);
    return status;
}
