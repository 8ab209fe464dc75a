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
 * needs   all nodes placed: products with rows as their epilogues or without, the second ones with their own
 * keeps   every rounding: rows are whole, nothing is rescaled, and sums over rows go on from block to block
 * not     rows over t that others need (training keeps the weights of a softmax that was composed), or that are halves; operands may be such
 */
#include "fusion/group_state.h"
#include "fusion/target.h"

enum { GROUPS_MAX = 8 };

/* A block that may be. */
typedef struct block {
    opq_grouper *g;
    const opq_graph *in;
    const int32_t *group_of;
    const opq_type *type; /* of what has rows */
    int32_t group[GROUPS_MAX];
    int count, rows_count;  /* the first of them have rows; the others are second products */
    const opq_ref *members; /* of all, descending */
    int member_count;
    int32_t rows; /* id of part 0 while the members have groups of the parts */
    opq_parts parts;
    bool reduces;
} block;

static opq_class class_of(const block *b, opq_ref n) { return opq_node_class(opq_node_at(b->in, n)); }

/* [batch.., m, t] of f32, the same m and t. */
static bool has_rows(const block *b, opq_ref ref)
{
    const opq_type *x = &opq_node_at(b->in, ref)->type, *y = b->type;
    return x->rank >= 2 && y->rank >= 2 && x->dtype == OPQ_f32 && y->dtype == OPQ_f32 &&
           x->size[x->rank - 1] == y->size[y->rank - 1] && x->size[x->rank - 2] == y->size[y->rank - 2] &&
           opq_type_count(x) == opq_type_count(y) && opq_type_count(x) > 0;
}

static bool add(block *b, int32_t group)
{
    if (opq_is_one_of(b->group, b->count, group))
        return true;
    if (group < 0 || b->count == GROUPS_MAX || b->g->groups[group].block)
        return false;
    b->group[b->count++] = group;
    return true;
}

/* What rows may consist of. Products with rows among what they need belong to them. */
static bool add_first(block *b, opq_ref n)
{
    const opq_node *node = opq_node_at(b->in, n);
    opq_class class_ = opq_node_class(node);
    b->reduces |= class_ == OPQ_CLASS_REDUCE;
    if (class_ == OPQ_CLASS_MATMUL)
        return has_rows(b, n);
    if (opq_node_divides(node) ||
        (!opq_class_is_elementwise(class_) && class_ != OPQ_CLASS_REDUCE && class_ != OPQ_CLASS_RANDOM))
        return false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref ref = opq_strip_reshape(b->in, node->operand[k]);
        if (class_of(b, ref) == OPQ_CLASS_MATMUL && has_rows(b, ref) && !add(b, b->group_of[ref]))
            return false;
    }
    return true;
}

/* A sum over the rows of each matrix, but with one right operand for several of them: the engine takes these as one matrix. */
static bool shares_right(const block *b, const opq_node *product)
{
    const opq_type *type = &product->type;
    opq_ref right = opq_lower_base(b->in, b->group_of, product->operand[1]);
    int64_t k = opq_node_at(b->in, product->operand[0])->type.size[type->rank - 2];
    int64_t all = type->size[type->rank - 2] == 0 ? 0 : opq_type_count(type) / type->size[type->rank - 2] * k;
    return opq_node_int(product, OPQ_ATTR_transpose_a, 0) && opq_type_count(&opq_node_at(b->in, right)->type) < all;
}

/* Does the user multiply it from the right? */
static bool takes(const block *b, opq_ref user, opq_ref n)
{
    const opq_node *node = opq_node_at(b->in, user);
    return opq_node_class(node) == OPQ_CLASS_MATMUL && class_of(b, n) != OPQ_CLASS_MATMUL && !shares_right(b, node) &&
           opq_strip_reshape(b->in, node->operand[0]) == n && opq_strip_reshape(b->in, node->operand[1]) != n &&
           has_rows(b, node->operand[0]);
}

/* What has rows and is multiplied is needed by nobody else but the rows, and what the first products make by them alone. */
static bool add_second(block *b, opq_ref n)
{
    bool taken = false, other = b->g->is_output[n];
    if (!has_rows(b, n))
        return true;
    for (int32_t e = b->g->first_edge[n]; e >= 0; e = b->g->edges[e].next) {
        const opq_edge *edge = &b->g->edges[e];
        int32_t group = b->group_of[edge->consumer];
        if (!edge->viewed && opq_is_one_of(b->group, b->rows_count, group))
            continue;
        if (edge->viewed || !takes(b, edge->consumer, n))
            other = true;
        else if (!add(b, group))
            return false;
        else
            taken = true;
    }
    return !other || (!taken && class_of(b, n) != OPQ_CLASS_MATMUL);
}

/* Of a second product the right operand has to be there as a whole. */
static bool takes_right_from_outside(block *b, opq_ref n)
{
    const opq_node *node = opq_node_at(b->in, n);
    int32_t group = opq_node_class(node) == OPQ_CLASS_MATMUL
                        ? b->group_of[opq_lower_base(b->in, b->group_of, node->operand[1])]
                        : -1;
    return !opq_is_one_of(b->group, b->count, group);
}

/* Is it so of all members of groups [from, to), of which there may be more meanwhile? */
static bool all(block *b, int from, const int *to, bool (*is_so)(block *b, opq_ref n))
{
    for (int i = from; i < *to; i++) {
        const opq_group *group = &b->g->groups[b->group[i]];
        for (int m = 0; m < group->count; m++)
            if (!is_so(b, group->members[m]))
                return false;
    }
    return true;
}

static bool find_groups(block *b, opq_ref weights)
{
    b->type = &opq_node_at(b->in, weights)->type;
    if (!has_rows(b, weights) || b->type->size[b->type->rank - 1] < 2 || !add(b, b->group_of[weights]) ||
        !all(b, 0, &b->count, add_first))
        return false;
    b->rows_count = b->count;
    return all(b, 0, &b->rows_count, add_second) && b->count > b->rows_count &&
           all(b, b->rows_count, &b->count, takes_right_from_outside);
}

/* ---- what the plan will make of it */

/* Who needs what the rows make: other parts, or somebody else. */
typedef struct needs {
    bool parts, other, foreign; /* foreign: not as a row */
} needs;

static needs needs_of(const block *b, opq_ref ref)
{
    needs by = {.other = b->g->is_output[ref]};
    bool matrix = has_rows(b, ref);
    for (int32_t e = b->g->first_edge[ref]; e >= 0; e = b->g->edges[e].next) {
        int product = b->group_of[b->g->edges[e].consumer] - b->rows - 1;
        by.other |= product < -1;
        by.parts |= product >= 0;
        by.foreign |= product >= 0 &&
                      (product < b->parts.first_count || (!matrix && opq_block_sums_rows(b->in, &b->parts, product)));
    }
    return by;
}

/* Part 0: is all that the products make and take walked row by row, and what their epilogues need once for each row? That is kept, unless
 * somebody else needs it. */
static bool walks_rows(const block *b, const opq_lowered *lowered, opq_kept *kept)
{
    int64_t columns = b->type->size[b->type->rank - 1];
    for (int i = 0; i < b->parts.first_count; i++)
        if (!opq_lowered_walks_rows(lowered, b->parts.product[i], columns))
            return false;
    for (int i = b->member_count - 1; i >= 0; i--) {
        opq_ref ref = b->members[i];
        needs by = needs_of(b, ref);
        if (b->group_of[ref] != b->rows || !by.parts)
            continue;
        bool matrix = has_rows(b, ref);
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
static bool is_product(const block *b, const opq_lowered *lowered, opq_ref ref, bool nested)
{
    const opq_type *type = &opq_node_at(b->in, ref)->type;
    const opq_node *node = opq_node_at(b->in, ref);
    int64_t columns = b->type->size[b->type->rank - 1], rows = b->type->size[b->type->rank - 2];
    int64_t k = opq_node_at(b->in, node->operand[0])->type.size[opq_lower_summed_dim(b->in, ref, 0)];
    if (opq_lower_takes_bytes(b->in, ref)) /* what stays in cache is f32 */
        return false;
    if (lowered->matmul != ref || lowered->direct || nested)
        return lowered->matmul == ref && !lowered->direct;
    for (int i = 0; i < b->member_count; i++)
        if (opq_node_info(opq_node_at(b->in, b->members[i]))->flags & OPQ_FLAG_CHECKED)
            return false;
    return rows >= opq_trees.block_rows_min && columns >= opq_trees.block_rows_min &&
           (has_rows(b, ref) ? k : type->size[type->rank - 1]) <= opq_trees.block_width_max;
}

/* Does a second product, or what is made of it, need another one? Each is made by itself, and stored if it is an output. */
static bool need_each_other(const block *b)
{
    for (int i = 0; i < b->member_count; i++) {
        int part = b->group_of[b->members[i]] - b->rows - 1;
        for (int32_t e = b->g->first_edge[b->members[i]]; part >= b->parts.first_count && e >= 0;
             e = b->g->edges[e].next) {
            int user = b->group_of[b->g->edges[e].consumer] - b->rows - 1;
            if (user >= b->parts.first_count && user < b->parts.count && user != part)
                return true;
        }
    }
    return false;
}

static opq_status lower_parts(block *b, bool *out_fits)
{
    opq_arena *arena = &b->g->scratch;
    opq_bound part[OPQ_PRODUCTS_MAX], joined;
    opq_kept kept = {.count = opq_block_matrices(b->in, &b->parts, kept.ids)};
    bool nested = opq_block_is_nested(b->in, &b->parts);
    *out_fits = false;
    for (int i = 0; i <= b->parts.count; i++) {
        opq_lower_request request = {.group = b->rows + i, .by_row = true};
        opq_lowered lowered;
        OPQ_TRY(opq_group_lower(b->g, b->members, b->member_count, request, arena, &lowered));
        if (lowered.refusal != OPQ_REFUSAL_none ||
            !(i == 0 ? walks_rows(b, &lowered, &kept) : is_product(b, &lowered, b->parts.product[i - 1], nested)))
            return OPQ_OK;
        part[i] = (opq_bound){lowered.loops, lowered.dims, lowered.buffers, lowered.scalars};
    }
    opq_status status = opq_parts_join(b->in, &b->parts, part, &kept, arena, &joined);
    *out_fits = status == OPQ_OK;
    return status == OPQ_UNSUPPORTED ? OPQ_OK : status;
}

/* Rows that are reduced; or several matrices, for threads to share: of one, sums over rows are better made at once. */
static bool pays(const block *b)
{
    const int64_t *size = &b->type->size[b->type->rank - 2];
    return opq_block_is_nested(b->in, &b->parts) ? b->reduces : opq_type_count(b->type) > size[0] * size[1];
}

/* Its nodes have groups of the parts meanwhile. */
static opq_status block_fits(block *b, bool *out_fits)
{
    opq_grouper *g = b->g;
    OPQ_TRY(opq_group_collect(g, -1, b->group, b->count, &b->member_count));
    b->members = g->trial;
    opq_status status = OPQ_OK;
    if (opq_parts_split(b->in, g->result.group_of, b->members, b->member_count, b->rows, &b->parts) && pays(b) &&
        !need_each_other(b))
        status = lower_parts(b, out_fits);
    opq_group_restore(g, b->group, b->count);
    opq_arena_drop(&g->scratch);
    return status;
}

static opq_status try_block(opq_grouper *g, opq_ref second)
{
    block b = {.g = g, .in = g->in, .group_of = g->result.group_of, .rows = g->group_count};
    opq_ref weights = opq_strip_reshape(g->in, opq_node_at(g->in, second)->operand[0]);
    bool fits = false;
    if (b.group_of[weights] < 0 || g->groups[b.group_of[second]].block || !find_groups(&b, weights))
        return OPQ_OK;
    OPQ_TRY(block_fits(&b, &fits));
    if (!fits || opq_order_has_cycle(g, -1, b.group, b.count))
        return OPQ_OK;
    g->groups[b.group[0]].block = true;
    return opq_group_join(g, -1, b.group, b.count, (opq_fill){0});
}

opq_status opq_group_blocks(opq_grouper *g)
{
    for (opq_ref n = 0; n < g->in->count; n++)
        if (opq_node_class(opq_node_at(g->in, n)) == OPQ_CLASS_MATMUL && g->result.group_of[n] >= 0)
            OPQ_TRY(try_block(g, n));
    return OPQ_OK;
}
