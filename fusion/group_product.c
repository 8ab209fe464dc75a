/* Products of one left operand become one kernel, which packs it once: the projections of attention.
 *
 *        x                            matmul @q    x wq + bq          \
 *      / | \                          matmul @k    x wk + bk           }  one kernel of three parts, side by side
 *    wq wk wv                         matmul @v    relu(x wv)         /
 *
 * A part is a group as it was: a product with its epilogue. What is legal is that each lowers for the engine, and that their trees are one
 * kernel's (opq_loops_join).
 *
 * needs   all nodes placed, blocks made
 * keeps   every chain of multiply-adds, every rounding
 * not     thin products, which the engine does not make; epilogues that may fail: which part did would have to be known
 */
#include "fusion/group_state.h"

/* The products of one left operand: those of them that are one group so far. */
typedef struct family {
    opq_grouper *g;
    int32_t open; /* the group */
    opq_bound parts[OPQ_PRODUCTS_MAX];
    int count;
} family;

static bool has_edge(const opq_grouper *g, int32_t from, int32_t to)
{
    for (int i = 0; i < g->groups[from].count; i++)
        for (int32_t e = g->first_edge[g->groups[from].members[i]]; e >= 0; e = g->edges[e].next)
            if (g->result.group_of[g->edges[e].consumer] == to)
                return true;
    return false;
}

/* One product, and what cannot fail and is no reduction: that would be a block. */
static bool may_be_part(const opq_grouper *g, const opq_group *group)
{
    int products = 0;
    for (int i = 0; i < group->count; i++) {
        const opq_node *node = opq_node_at(g->in, group->members[i]);
        opq_class class_ = opq_node_class(node);
        products += class_ == OPQ_CLASS_MATMUL;
        if (class_ == OPQ_CLASS_REDUCE || class_ == OPQ_CLASS_INDEX || opq_node_divides(node))
            return false;
    }
    return products == 1;
}

/* Rows and sums are the same. */
static bool are_alike(const opq_grouper *g, opq_ref a, opq_ref b)
{
    const opq_node *x = opq_node_at(g->in, a), *y = opq_node_at(g->in, b);
    opq_type type = x->type;
    type.size[type.rank - 1] = y->type.size[y->type.rank - 1];
    return opq_type_equal(&type, &y->type) &&
           opq_node_int(x, OPQ_ATTR_transpose_a, 0) == opq_node_int(y, OPQ_ATTR_transpose_a, 0);
}

static opq_status lower_part(family *f, int32_t id, opq_bound *out_part, bool *out_fits)
{
    const opq_group *group = &f->g->groups[id];
    opq_lowered lowered;
    OPQ_TRY(opq_group_lower(f->g, group->members, group->count, (opq_lower_request){.group = id}, &f->g->scratch,
                            &lowered));
    *out_fits = lowered.refusal == OPQ_REFUSAL_none && lowered.matmul >= 0 && !lowered.direct;
    *out_part = (opq_bound){lowered.loops, lowered.dims, lowered.buffers, lowered.scalars};
    return OPQ_OK;
}

static opq_status try_part(family *f, int32_t id, bool *out_joined)
{
    const int32_t ids[] = {f->open, id};
    opq_bound joined;
    bool fits = true;
    *out_joined = false;
    if (f->count == OPQ_PRODUCTS_MAX || !opq_group_are_near(f->g, f->open, id) || has_edge(f->g, f->open, id) ||
        has_edge(f->g, id, f->open))
        return OPQ_OK;
    for (int i = f->count == 1 ? 0 : f->count; i <= f->count && fits; i++)
        OPQ_TRY(lower_part(f, i < f->count ? f->open : id, &f->parts[i], &fits));
    if (!fits)
        return OPQ_OK;
    opq_status status = opq_loops_join(f->parts, f->count + 1, &(opq_kept){0}, false, &f->g->scratch, &joined);
    if (status == OPQ_UNSUPPORTED)
        return OPQ_OK;
    OPQ_TRY(status);
    if (opq_order_has_cycle(f->g, -1, ids, 2))
        return OPQ_OK;
    *out_joined = true;
    f->count++;
    return opq_group_join(f->g, -1, ids, 2, (opq_fill){0});
}

static bool is_product_of(const opq_grouper *g, opq_ref n, opq_ref left)
{
    const opq_node *node = opq_node_at(g->in, n);
    return opq_node_class(node) == OPQ_CLASS_MATMUL && node->operand[0] == left && g->result.group_of[n] >= 0;
}

static opq_status join_products(family *f, opq_ref left)
{
    opq_grouper *g = f->g;
    opq_ref first = -1, before = -1;
    for (int32_t u = g->first_user[left]; u < g->first_user[left + 1]; u++) {
        opq_ref n = g->users[u];
        bool joined = false, again = n == before; /* by both operands */
        before = n;
        if (again || !is_product_of(g, n, left) || !may_be_part(g, &g->groups[g->result.group_of[n]]))
            continue;
        int32_t id = g->result.group_of[n];
        if (first >= 0 && are_alike(g, first, n))
            OPQ_TRY(try_part(f, id, &joined));
        if (joined)
            continue;
        first = n;
        f->open = id;
        f->count = 1;
    }
    opq_arena_drop(&f->g->scratch);
    return OPQ_OK;
}

opq_status opq_group_products(opq_grouper *g)
{
    family f = {.g = g};
    for (opq_ref n = 0; n < g->in->count; n++)
        OPQ_TRY(join_products(&f, n));
    return OPQ_OK;
}
