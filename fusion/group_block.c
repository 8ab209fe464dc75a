/* Blocks: two products and the rows between them become one kernel.
 *
 *   s = q k^T        [batch, m, t]      what `second` reads is `weights`, made of s by row operations over t;
 *   e = exp(s - max) [batch, m, t]      neither is needed anywhere else, so both can stay in cache, some rows of m at a time
 *   o = e v          [batch, m, n]
 *
 * needs   groups as opq_pass_group leaves them: the first product alone, the rows in one group, the second with its epilogue
 * keeps   every rounding: rows are whole, nothing is rescaled
 * not     a first product that the rows share with others (training keeps the weights), halves, a transposed left operand
 */
#include "fusion/group_state.h"

#include <stdlib.h>
#include <string.h>

typedef struct finder {
    opq_grouper *g;
    const opq_graph *in;
    const opq_grouping *grouping;
    int32_t *first, *next; /* per node: a list of uses */
    opq_ref *user;         /* per use; -1: the caller */
    uint8_t *viewed;       /* per use: through more than reshapes */
    int32_t use_count;
    int32_t *begin;   /* per group, and one more: where its members begin, before blocks are made */
    opq_ref *members; /* ascending in each group */
} finder;

static opq_class class_of(const finder *f, opq_ref n) { return opq_node_class(opq_node_at(f->in, n)); }

static void add_use(finder *f, opq_ref user, opq_ref ref)
{
    bool viewed = false;
    while (class_of(f, ref) == OPQ_CLASS_VIEW && f->grouping->group_of[ref] < 0) {
        viewed |= opq_node_at(f->in, ref)->op != OPQ_OP_reshape;
        ref = opq_node_at(f->in, ref)->operand[0];
    }
    f->user[f->use_count] = user;
    f->viewed[f->use_count] = viewed;
    f->next[f->use_count] = f->first[ref];
    f->first[ref] = f->use_count++;
}

/* Counted, then placed from the last to the first. */
static void find_members(finder *f)
{
    const int32_t *group_of = f->grouping->group_of;
    int32_t *begin = f->begin;
    memset(begin, 0, ((size_t)f->grouping->group_count + 2) * sizeof *begin);
    for (opq_ref n = 0; n < f->in->count; n++)
        if (group_of[n] >= 0)
            begin[group_of[n]]++;
    for (int group = 0; group < f->grouping->group_count; group++)
        begin[group + 1] += begin[group];
    for (opq_ref n = f->in->count - 1; n >= 0; n--)
        if (group_of[n] >= 0)
            f->members[--begin[group_of[n]]] = n;
}

static int size_of(const finder *f, int32_t group) { return f->begin[group + 1] - f->begin[group]; }

static bool is_in_block(const finder *f, int32_t group) { return f->g->groups[group].count != size_of(f, group); }

static opq_status find_uses(finder *f)
{
    const opq_graph *in = f->in;
    size_t uses = (size_t)in->output_count + 1;
    for (opq_ref n = 0; n < in->count; n++)
        uses += (size_t)opq_node_at(in, n)->arity;
    size_t nodes = (size_t)in->count + 1;
    f->first = malloc((2 * nodes + 2 * uses + (size_t)f->grouping->group_count + 2) * sizeof *f->first);
    f->viewed = malloc(uses);
    if (f->first == NULL || f->viewed == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    f->next = f->first + nodes;
    f->user = f->next + uses;
    f->members = f->user + uses;
    f->begin = f->members + nodes;
    memset(f->first, 0xff, nodes * sizeof *f->first);
    find_members(f);
    for (opq_ref n = 0; n < in->count; n++) {
        bool free_view = class_of(f, n) == OPQ_CLASS_VIEW && f->grouping->group_of[n] < 0;
        for (int k = 0; k < opq_node_at(in, n)->arity && !free_view; k++)
            add_use(f, n, opq_node_at(in, n)->operand[k]);
    }
    for (int i = 0; i < in->output_count; i++)
        add_use(f, -1, in->outputs[i]);
    return OPQ_OK;
}

/* Is everybody who uses `ref` as it lies in memory one of this group, or the node `also`? */
static bool used_only_by(const finder *f, opq_ref ref, int32_t group, opq_ref also)
{
    for (int32_t u = f->first[ref]; u >= 0; u = f->next[u])
        if (f->user[u] < 0 || f->viewed[u] || (f->user[u] != also && f->grouping->group_of[f->user[u]] != group))
            return false;
    return true;
}

/* [batch.., m, t] of f32, the same m and t. */
static bool same_matrices(const opq_type *a, const opq_type *b)
{
    return a->rank >= 2 && b->rank >= 2 && a->dtype == OPQ_f32 && b->dtype == OPQ_f32 &&
           a->size[a->rank - 1] == b->size[b->rank - 1] && a->size[a->rank - 2] == b->size[b->rank - 2] &&
           opq_type_count(a) == opq_type_count(b) && opq_type_count(a) > 0;
}

/* The product that the group's rows are made of: the only one, with a group of its own; -1. */
static opq_ref find_first(const finder *f, int32_t rows, const opq_type *weights)
{
    opq_ref found = -1;
    bool reduces = false;
    for (int32_t i = f->begin[rows]; i < f->begin[rows + 1]; i++) {
        opq_ref n = f->members[i];
        opq_class class_ = class_of(f, n);
        reduces |= class_ == OPQ_CLASS_REDUCE;
        bool fails = opq_node_divides(opq_node_at(f->in, n));
        if (fails || (class_ != OPQ_CLASS_EWISE && class_ != OPQ_CLASS_CAST && class_ != OPQ_CLASS_REDUCE &&
                      class_ != OPQ_CLASS_RANDOM))
            return -1;
        for (int k = 0; k < opq_node_at(f->in, n)->arity; k++) {
            opq_ref ref = opq_strip_reshape(f->in, opq_node_at(f->in, n)->operand[k]);
            if (class_of(f, ref) != OPQ_CLASS_MATMUL || ref == found ||
                f->g->groups[f->grouping->group_of[ref]].count != 1 ||
                !same_matrices(&opq_node_at(f->in, ref)->type, weights))
                continue;
            if (found >= 0)
                return -1;
            found = ref;
        }
    }
    return reduces ? found : -1;
}

/* What the rows make for others besides must not come back into the second product by another way: node numbers grow along every way. */
static bool comes_back(const finder *f, int32_t rows, int32_t last)
{
    opq_ref end = f->members[f->begin[last + 1] - 1];
    for (int32_t i = f->begin[rows]; i < f->begin[rows + 1]; i++)
        for (int32_t u = f->first[f->members[i]]; u >= 0; u = f->next[u]) {
            int32_t group = f->user[u] < 0 ? rows : f->grouping->group_of[f->user[u]];
            if (group != rows && group != last && f->user[u] < end)
                return true;
        }
    return false;
}

static bool used_by(const finder *f, opq_ref ref, int32_t group)
{
    for (int32_t u = f->first[ref]; u >= 0; u = f->next[u])
        if (f->user[u] >= 0 && f->grouping->group_of[f->user[u]] == group)
            return true;
    return false;
}

/* Lowers a group as the plan will; `out_stored` has room for its members. */
static opq_status lower_group(const finder *f, int32_t group, opq_ref *out_stored, opq_arena *arena,
                              opq_lowered *out_lowered)
{
    opq_lower_request request = {.graph = f->in,
                                 .group_of = f->grouping->group_of,
                                 .group = group,
                                 .in_memory = f->grouping->in_memory,
                                 .members = f->members + f->begin[group],
                                 .member_count = size_of(f, group),
                                 .stored = out_stored,
                                 .by_row = true,
                                 .decided = true};
    for (int i = 0; i < request.member_count; i++)
        if (!used_only_by(f, request.members[i], group, -1))
            out_stored[request.stored_count++] = request.members[i];
    return opq_lower(&request, arena, out_lowered);
}

/* The three groups of a block that may be. */
typedef struct block {
    opq_ref first, weights;
    int32_t group[3]; /* product, rows, product */
} block;

static bool used_inside(const finder *f, opq_ref ref, const block *b)
{
    for (int32_t u = f->first[ref]; u >= 0; u = f->next[u]) {
        int32_t group = f->user[u] < 0 ? -1 : f->grouping->group_of[f->user[u]];
        if (group != b->group[1] && group != b->group[2])
            return false;
    }
    return true;
}

/* Do the rows walk product and weights row by row, and do all three go through the rows in one order? */
static opq_status lower_block(const finder *f, const block *b, opq_ref *stored, opq_arena *arena, bool *out_fits)
{
    int64_t columns = opq_node_at(f->in, b->weights)->type.size[opq_node_at(f->in, b->weights)->type.rank - 1];
    opq_kept kept = {.ids = {b->first, b->weights}, .count = OPQ_KEPT_ROWS};
    opq_bound parts[3], joined;
    *out_fits = false;
    for (int i = 0; i < 3; i++) {
        opq_lowered lowered;
        OPQ_TRY(lower_group(f, b->group[i], stored, arena, &lowered));
        if (lowered.refusal != OPQ_REFUSAL_none)
            return OPQ_OK;
        parts[i] = (opq_bound){lowered.loops, lowered.dims, lowered.buffers, lowered.scalars};
        if (i != 1)
            continue;
        if (!opq_lowered_walks_rows(&lowered, b->first, columns) ||
            !opq_lowered_walks_rows(&lowered, b->weights, columns))
            return OPQ_OK;
        for (int n = 0; n < size_of(f, b->group[1]); n++) {
            opq_ref ref = f->members[f->begin[b->group[1]] + n];
            if (ref == b->weights || !used_by(f, ref, b->group[2]))
                continue;
            if (!opq_lowered_walks_rows(&lowered, ref, 1) || kept.count == OPQ_KEPT_MAX)
                return OPQ_OK;
            if (used_inside(f, ref, b))
                kept.ids[kept.count++] = ref;
        }
    }
    opq_status status = opq_loops_join(parts, &kept, arena, &joined);
    *out_fits = status == OPQ_OK;
    return status == OPQ_UNSUPPORTED ? OPQ_OK : status;
}

static opq_status block_fits(const finder *f, const block *b, bool *out_fits)
{
    int most = 0;
    for (int i = 0; i < 3; i++)
        most = size_of(f, b->group[i]) > most ? size_of(f, b->group[i]) : most;
    opq_ref *stored = malloc((size_t)most * sizeof *stored);
    if (stored == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    opq_arena arena = {0};
    opq_status status = lower_block(f, b, stored, &arena, out_fits);
    opq_arena_drop(&arena);
    free(stored);
    return status;
}

static opq_status try_block(finder *f, opq_ref second)
{
    const opq_node *node = opq_node_at(f->in, second);
    int32_t last = f->grouping->group_of[second];
    opq_ref weights = opq_strip_reshape(f->in, node->operand[0]);
    int32_t rows = f->grouping->group_of[weights];
    const opq_type *type = &opq_node_at(f->in, weights)->type;
    if (rows < 0 || rows == last || is_in_block(f, rows) || is_in_block(f, last) ||
        opq_node_int(node, OPQ_ATTR_transpose_a, 0) || class_of(f, weights) == OPQ_CLASS_MATMUL ||
        !same_matrices(type, &opq_node_at(f->in, node->operand[0])->type) || !used_only_by(f, weights, rows, second))
        return OPQ_OK;
    opq_ref first = find_first(f, rows, type);
    if (first < 0 || !used_only_by(f, first, rows, -1) || comes_back(f, rows, last))
        return OPQ_OK;
    bool fits = false;
    block b = {.first = first, .weights = weights, .group = {f->grouping->group_of[first], rows, last}};
    OPQ_TRY(block_fits(f, &b, &fits));
    const int32_t joined[] = {last, rows, b.group[0]};
    if (!fits || opq_order_has_cycle(f->g, -1, joined, 3))
        return OPQ_OK;
    return opq_group_join(f->g, -1, joined, 3, (opq_fill){0});
}

opq_status opq_group_blocks(opq_grouper *g)
{
    const opq_graph *in = g->in;
    const opq_grouping *grouping = &g->result;
    finder f = {.g = g, .in = in, .grouping = grouping};
    opq_status status = find_uses(&f);
    for (opq_ref n = 0; n < in->count && status == OPQ_OK; n++)
        if (class_of(&f, n) == OPQ_CLASS_MATMUL && grouping->group_of[n] >= 0)
            status = try_block(&f, n);
    free(f.first);
    free(f.viewed);
    return status;
}
