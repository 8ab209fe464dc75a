/* Blocks: products, the rows that are made of them, and products of these become one kernel.
 *
 *   s = q k^T        [batch, m, t]     of both, what has rows over t is needed nowhere else, so that it stays in cache, some rows of m at
 *   e = exp(s - max) [batch, m, t]     a time
 *   o = e v          [batch, m, n]
 *
 *   p = exp(q k^T - l)            the gradients: two first products, and of the second ones those with a transposed left operand sum over
 *   d = p (g v^T - mean)          rows, block by block: the sums stay in cache, too, so k's width and theirs are those of a head
 *   d k, d^T q, p^T g
 *
 * needs   groups as opq_pass_group leaves them: products with rows as their epilogues or without, the second ones with their own
 * keeps   every rounding: rows are whole, nothing is rescaled, and sums over rows go on from block to block
 * not     rows over t that others need (training keeps the weights of a softmax that was composed), halves
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

enum { GROUPS_MAX = 8, WIDTH_MAX = 256, ROWS_MIN = 16 };

/* A block that may be. */
typedef struct block {
    const opq_type *type; /* of what has rows */
    int32_t group[GROUPS_MAX];
    int count, rows_count; /* the first of them have rows; the others are second products */
    opq_ref *members;      /* of all, ascending */
    int member_count;
    opq_block_parts parts;
    bool reduces;
} block;

static bool has_rows(const finder *f, const block *b, opq_ref ref)
{
    return same_matrices(&opq_node_at(f->in, ref)->type, b->type);
}

static bool is_inside(const block *b, int32_t group)
{
    for (int i = 0; i < b->count; i++)
        if (b->group[i] == group)
            return true;
    return false;
}

static bool add(const finder *f, block *b, int32_t group)
{
    if (is_inside(b, group))
        return true;
    if (group < 0 || b->count == GROUPS_MAX || is_in_block(f, group))
        return false;
    b->group[b->count++] = group;
    return true;
}

/* What rows may consist of. Products with rows among what they need belong to them. */
static bool add_first(const finder *f, block *b, opq_ref n)
{
    const opq_node *node = opq_node_at(f->in, n);
    opq_class class_ = opq_node_class(node);
    b->reduces |= class_ == OPQ_CLASS_REDUCE;
    if (opq_node_divides(node) || (class_ == OPQ_CLASS_MATMUL && !has_rows(f, b, n)) ||
        (!opq_class_is_elementwise(class_) && class_ != OPQ_CLASS_REDUCE && class_ != OPQ_CLASS_RANDOM &&
         class_ != OPQ_CLASS_MATMUL))
        return false;
    for (int k = 0; k < node->arity && class_ != OPQ_CLASS_MATMUL; k++) {
        opq_ref ref = opq_strip_reshape(f->in, node->operand[k]);
        if (class_of(f, ref) == OPQ_CLASS_MATMUL && has_rows(f, b, ref) && !add(f, b, f->grouping->group_of[ref]))
            return false;
    }
    return true;
}

static bool is_rows(const block *b, int32_t group)
{
    for (int i = 0; i < b->rows_count; i++)
        if (b->group[i] == group)
            return true;
    return false;
}

/* A sum over the rows of each matrix, but with one right operand for several of them: the engine takes these as one matrix. */
static bool shares_right(const finder *f, const opq_node *product)
{
    const opq_type *type = &product->type;
    opq_ref right = opq_lower_base(f->in, f->grouping->group_of, product->operand[1]);
    int64_t k = opq_node_at(f->in, product->operand[0])->type.size[type->rank - 2];
    int64_t all = type->size[type->rank - 2] == 0 ? 0 : opq_type_count(type) / type->size[type->rank - 2] * k;
    return opq_node_int(product, OPQ_ATTR_transpose_a, 0) && opq_type_count(&opq_node_at(f->in, right)->type) < all;
}

/* Does the user multiply it from the right? */
static bool takes(const finder *f, const block *b, opq_ref user, opq_ref n)
{
    const opq_node *node = user < 0 ? NULL : opq_node_at(f->in, user);
    return node && opq_node_class(node) == OPQ_CLASS_MATMUL && class_of(f, n) != OPQ_CLASS_MATMUL &&
           !shares_right(f, node) && opq_strip_reshape(f->in, node->operand[0]) == n &&
           opq_strip_reshape(f->in, node->operand[1]) != n && has_rows(f, b, node->operand[0]);
}

/* What has rows and is multiplied is needed by nobody else but the rows, and what the first products make by them alone. */
static bool add_second(const finder *f, block *b, opq_ref n)
{
    bool taken = false, other = false;
    for (int32_t u = f->first[n]; u >= 0; u = f->next[u]) {
        opq_ref user = f->user[u];
        if (user >= 0 && !f->viewed[u] && is_rows(b, f->grouping->group_of[user]))
            continue;
        if (f->viewed[u] || !takes(f, b, user, n))
            other = true;
        else if (!add(f, b, f->grouping->group_of[user]))
            return false;
        else
            taken = true;
    }
    return !other || (!taken && class_of(f, n) != OPQ_CLASS_MATMUL);
}

/* Does a second product take its right operand, which has to be there as a whole, from the block? */
static bool takes_right(const finder *f, const block *b)
{
    const int32_t *group_of = f->grouping->group_of;
    for (int i = b->rows_count; i < b->count; i++)
        for (int32_t m = f->begin[b->group[i]]; m < f->begin[b->group[i] + 1]; m++) {
            const opq_node *node = opq_node_at(f->in, f->members[m]);
            int32_t of = opq_node_class(node) == OPQ_CLASS_MATMUL
                             ? group_of[opq_lower_base(f->in, group_of, node->operand[1])]
                             : -1;
            for (int k = 0; k < b->count; k++)
                if (of >= 0 && b->group[k] == of)
                    return true;
        }
    return false;
}

static bool find_groups(const finder *f, opq_ref weights, block *b)
{
    b->type = &opq_node_at(f->in, weights)->type;
    if (!has_rows(f, b, weights) || b->type->size[b->type->rank - 1] < 2 || !add(f, b, f->grouping->group_of[weights]))
        return false;
    for (int i = 0; i < b->count; i++)
        for (int32_t m = f->begin[b->group[i]]; m < f->begin[b->group[i] + 1]; m++)
            if (!add_first(f, b, f->members[m]))
                return false;
    b->rows_count = b->count;
    for (int i = 0; i < b->rows_count; i++)
        for (int32_t m = f->begin[b->group[i]]; m < f->begin[b->group[i] + 1]; m++)
            if (has_rows(f, b, f->members[m]) && !add_second(f, b, f->members[m]))
                return false;
    return b->count > b->rows_count && !takes_right(f, b);
}

static int by_number(const void *a, const void *b) { return *(const opq_ref *)a - *(const opq_ref *)b; }

static opq_status collect(const finder *f, block *b)
{
    for (int i = 0; i < b->count; i++)
        b->member_count += size_of(f, b->group[i]);
    b->members = malloc((size_t)b->member_count * sizeof *b->members);
    if (b->members == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    int count = 0;
    for (int i = 0; i < b->count; i++)
        for (int32_t m = f->begin[b->group[i]]; m < f->begin[b->group[i] + 1]; m++)
            b->members[count++] = f->members[m];
    qsort(b->members, (size_t)count, sizeof *b->members, by_number);
    return OPQ_OK;
}

/* ---- what the plan will make of it */

/* Lowers a part as the plan will. */
static opq_status lower_part(const finder *f, const block *b, int32_t part, opq_arena *arena, opq_lowered *out_lowered)
{
    opq_ref *members = malloc(2 * (size_t)b->member_count * sizeof *members);
    if (members == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    opq_lower_request request = {.graph = f->in,
                                 .group_of = f->grouping->group_of,
                                 .group = part,
                                 .in_memory = f->grouping->in_memory,
                                 .members = members,
                                 .stored = members + b->member_count,
                                 .by_row = true,
                                 .decided = true};
    for (int i = 0; i < b->member_count; i++)
        if (f->grouping->group_of[b->members[i]] == part) {
            members[request.member_count++] = b->members[i];
            if (!used_only_by(f, b->members[i], part, -1))
                members[b->member_count + request.stored_count++] = b->members[i];
        }
    opq_status status = opq_lower(&request, arena, out_lowered);
    free(members);
    return status;
}

/* Who needs what the rows make: other parts, or somebody else. */
typedef struct needs {
    bool parts, other, foreign; /* foreign: not as a row */
} needs;

static needs needs_of(const finder *f, const block *b, opq_ref ref, int32_t rows)
{
    needs result = {0};
    bool matrix = has_rows(f, b, ref);
    for (int32_t u = f->first[ref]; u >= 0; u = f->next[u]) {
        int32_t group = f->user[u] < 0 ? -1 : f->grouping->group_of[f->user[u]];
        int second = group - rows - 1 - b->parts.first_count;
        result.other |= group < rows;
        result.parts |= group > rows;
        result.foreign |= group > rows && (second < 0 || (!matrix && opq_block_sums_rows(f->in, &b->parts, second)));
    }
    return result;
}

/* Part 0: is all that the products make and take walked row by row, and what their epilogues need once for each row? That is kept, unless
 * somebody else needs it. */
static bool walks_rows(const finder *f, const block *b, int32_t rows, const opq_lowered *lowered, opq_kept *kept)
{
    int64_t columns = b->type->size[b->type->rank - 1];
    for (int i = 0; i < b->parts.first_count; i++)
        if (!opq_lowered_walks_rows(lowered, b->parts.first[i], columns))
            return false;
    for (int i = 0; i < b->member_count; i++) {
        opq_ref ref = b->members[i];
        needs by = needs_of(f, b, ref, rows);
        if (f->grouping->group_of[ref] != rows || !by.parts)
            continue;
        bool matrix = has_rows(f, b, ref);
        if (by.foreign || !opq_lowered_walks_rows(lowered, ref, matrix ? columns : 1))
            return false;
        if (matrix || by.other)
            continue;
        if (kept->count == OPQ_KEPT_MAX)
            return false;
        kept->ids[kept->count++] = ref;
    }
    return true;
}

/* One that the engine makes. Of several second products none may fail: which one did would have to be known. */
static bool is_product(const finder *f, const block *b, const opq_lowered *lowered, opq_ref ref, bool nested)
{
    const opq_type *type = &opq_node_at(f->in, ref)->type;
    const opq_node *node = opq_node_at(f->in, ref);
    int64_t columns = b->type->size[b->type->rank - 1], rows = b->type->size[b->type->rank - 2];
    int64_t k = opq_node_at(f->in, node->operand[0])->type.size[opq_lower_summed_dim(f->in, ref, 0)];
    if (opq_lower_needs_engine(f->in, ref)) /* what stays in cache is f32 */
        return false;
    if (lowered->matmul != ref || lowered->direct || nested)
        return lowered->matmul == ref && !lowered->direct;
    for (int i = 0; i < b->member_count; i++)
        if (opq_node_info(opq_node_at(f->in, b->members[i]))->flags & OPQ_FLAG_CHECKED)
            return false;
    return rows >= ROWS_MIN && columns >= ROWS_MIN && (has_rows(f, b, ref) ? k : type->size[type->rank - 1]) <= WIDTH_MAX;
}

static opq_status lower_parts(const finder *f, block *b, int32_t rows, opq_arena *arena, bool *out_fits)
{
    opq_bound part[OPQ_BLOCK_PARTS_MAX], joined;
    opq_kept kept = {.count = opq_block_matrices(f->in, &b->parts, kept.ids)};
    bool nested = opq_block_is_nested(f->in, &b->parts);
    int count = opq_block_part_count(&b->parts);
    *out_fits = false;
    for (int i = 0; i < count; i++) {
        opq_lowered lowered;
        OPQ_TRY(lower_part(f, b, rows + i, arena, &lowered));
        if (lowered.refusal != OPQ_REFUSAL_none ||
            !(i == 0 ? walks_rows(f, b, rows, &lowered, &kept)
                     : is_product(f, b, &lowered, opq_block_product(&b->parts, i), nested)))
            return OPQ_OK;
        part[i] = (opq_bound){lowered.loops, lowered.dims, lowered.buffers, lowered.scalars};
    }
    opq_status status = opq_block_join(f->in, &b->parts, part, &kept, arena, &joined);
    *out_fits = status == OPQ_OK;
    return status == OPQ_UNSUPPORTED ? OPQ_OK : status;
}

/* Rows that are reduced; or several matrices, for threads to share: of one, sums over rows are better made at once. */
static bool pays(const finder *f, const block *b)
{
    const int64_t *size = &b->type->size[b->type->rank - 2];
    return opq_block_is_nested(f->in, &b->parts) ? b->reduces : opq_type_count(b->type) > size[0] * size[1];
}

/* Its nodes have groups of the parts meanwhile. */
static opq_status block_fits(const finder *f, block *b, bool *out_fits)
{
    int32_t *group_of = f->grouping->group_of, rows = f->grouping->group_count, *before;
    opq_arena arena = {0};
    opq_status status = OPQ_OK;
    *out_fits = false;
    before = malloc((size_t)b->member_count * sizeof *before);
    if (before == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    for (int i = 0; i < b->member_count; i++)
        before[i] = group_of[b->members[i]];
    if (opq_block_split(f->in, group_of, b->members, b->member_count, rows, &b->parts) && pays(f, b))
        status = lower_parts(f, b, rows, &arena, out_fits);
    for (int i = 0; i < b->member_count; i++)
        group_of[b->members[i]] = before[i];
    opq_arena_drop(&arena);
    free(before);
    return status;
}

static opq_status try_block(finder *f, opq_ref second)
{
    opq_ref weights = opq_strip_reshape(f->in, opq_node_at(f->in, second)->operand[0]);
    block b = {0};
    bool fits = false;
    if (f->grouping->group_of[weights] < 0 || is_in_block(f, f->grouping->group_of[second]) ||
        !find_groups(f, weights, &b))
        return OPQ_OK;
    OPQ_TRY(collect(f, &b));
    opq_status status = block_fits(f, &b, &fits);
    free(b.members);
    if (status != OPQ_OK || !fits || opq_order_has_cycle(f->g, -1, b.group, b.count))
        return status;
    return opq_group_join(f->g, -1, b.group, b.count, (opq_fill){0});
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
