/* Rematerialization: a large value of a few cheap ops on small operands, which several kernels need, is computed in each of them instead of
 * once, stored and read again. Distances of all pairs, [n,1,3] - [1,n,3], are n * n * 3 numbers made of n * 3.
 *
 *   k0: d = a - b            stored          k0: d = a - b
 *       s = sum(d * d)                =>         s = sum(d * d)
 *   k1: f = sum(d * s)       reads d         k1: f = sum((a - b) * s)
 *
 * needs   a graph, and how it was grouped
 * keeps   every value and every rounding
 * breaks  node numbers: copies of nodes stand before the first node of the other kernel that reads them
 * not     through views of the value, of graph outputs, for products
 */
#include "fusion/pass.h"
#include "fusion/target.h"

#include <stdlib.h>
#include <string.h>

enum {
    KERNELS_MAX = 3,  /* besides its own */
    OPERANDS_MAX = 3, /* of elementwise ops */
};

typedef struct copies {
    int count;
    int32_t group[KERNELS_MAX];
    opq_ref ref[KERNELS_MAX];
} copies;

typedef struct remat {
    const opq_graph *in;
    const int32_t *group_of;
    copies *of; /* per node; count < 0: it stays as it is */
    opq_graph *out;
    opq_ref *renamed;
} remat;

static int64_t bytes_of(const remat *r, opq_ref ref) { return opq_type_bytes(&opq_node_at(r->in, ref)->type); }

static bool is_cheap(const opq_node *node)
{
    return opq_class_is_elementwise(opq_node_class(node)) && (opq_op_info_of((opq_op)node->op)->flags & OPQ_FLAG_CHEAP);
}

/* Of the value and what its kernel computes for it, down to what is in memory: at most `ops`. Adds up the bytes of that. */
static bool is_small(const remat *r, opq_ref ref, int *ops, int64_t *bytes)
{
    const opq_node *node = opq_node_at(r->in, ref);
    if (!is_cheap(node) || --*ops < 0)
        return false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref base = opq_lower_base(r->in, r->group_of, node->operand[k]);
        if (r->group_of[base] != r->group_of[ref])
            *bytes += opq_node_class(opq_node_at(r->in, base)) == OPQ_CLASS_IOTA ? 0 : bytes_of(r, base);
        else if (base != node->operand[k] || !is_small(r, base, ops, bytes))
            return false;
    }
    return true;
}

static bool may_copy(const opq_node *reader)
{
    opq_class class_ = opq_node_class(reader);
    return opq_class_is_elementwise(class_) || class_ == OPQ_CLASS_REDUCE;
}

/* The other kernels that read each value. */
static void find_readers(remat *r)
{
    for (opq_ref u = 0; u < r->in->count; u++) {
        const opq_node *reader = opq_node_at(r->in, u);
        for (int k = 0; k < reader->arity; k++) {
            copies *of = &r->of[reader->operand[k]];
            int32_t group = r->group_of[u];
            if (group == r->group_of[reader->operand[k]] || of->count < 0)
                continue;
            int at = 0;
            while (at < of->count && of->group[at] != group)
                at++;
            if (at == KERNELS_MAX || !may_copy(reader)) {
                of->count = -1;
                continue;
            }
            of->group[at] = group;
            of->ref[at] = -1;
            of->count += at == of->count;
        }
    }
    for (int i = 0; i < r->in->output_count; i++)
        r->of[opq_strip_reshape(r->in, r->in->outputs[i])].count = -1;
}

static bool find_values(remat *r)
{
    bool any = false;
    find_readers(r);
    for (opq_ref n = 0; n < r->in->count; n++) {
        int ops = opq_trees.copied_ops_max;
        int64_t bytes = 0;
        if (r->of[n].count <= 0)
            continue;
        if (r->group_of[n] < 0 || bytes_of(r, n) < opq_trees.copied_bytes_min || !is_small(r, n, &ops, &bytes) ||
            bytes * opq_trees.copied_part > bytes_of(r, n))
            r->of[n].count = -1;
        any = any || r->of[n].count > 0;
    }
    return any;
}

/* ---- the graph with copies */

static opq_status copy_value(remat *r, opq_ref ref, opq_ref *out_ref)
{
    const opq_node *node = opq_node_at(r->in, ref);
    opq_ref before[OPERANDS_MAX];
    for (int k = 0; k < node->arity; k++) {
        before[k] = r->renamed[node->operand[k]];
        if (r->group_of[node->operand[k]] == r->group_of[ref])
            OPQ_TRY(copy_value(r, node->operand[k], &r->renamed[node->operand[k]]));
    }
    OPQ_TRY(opq_graph_copy_node(r->out, r->in, ref, r->renamed, out_ref));
    for (int k = node->arity - 1; k >= 0; k--)
        r->renamed[node->operand[k]] = before[k];
    return OPQ_OK;
}

static opq_status copy_reader(remat *r, opq_ref n)
{
    const opq_node *node = opq_node_at(r->in, n);
    opq_ref before[OPERANDS_MAX];
    for (int k = 0; k < node->arity && may_copy(node); k++) {
        opq_ref operand = node->operand[k];
        copies *of = &r->of[operand];
        before[k] = r->renamed[operand];
        for (int i = 0; i < of->count; i++) {
            if (of->group[i] != r->group_of[n])
                continue;
            if (of->ref[i] < 0)
                OPQ_TRY(copy_value(r, operand, &of->ref[i]));
            r->renamed[operand] = of->ref[i];
        }
    }
    opq_ref made;
    OPQ_TRY(opq_graph_copy_node(r->out, r->in, n, r->renamed, &made));
    for (int k = node->arity - 1; k >= 0 && may_copy(node); k--)
        r->renamed[node->operand[k]] = before[k];
    r->renamed[n] = made;
    return OPQ_OK;
}

static opq_status copy_all(remat *r)
{
    for (opq_ref n = 0; n < r->in->count; n++)
        OPQ_TRY(copy_reader(r, n));
    for (int i = 0; i < r->in->output_count; i++)
        OPQ_TRY(opq_graph_output(r->out, r->renamed[r->in->outputs[i]]));
    return OPQ_OK;
}

opq_status opq_rematerialize(const opq_graph *in, const opq_grouping *grouping, opq_graph **out_copy)
{
    remat r = {.in = in, .group_of = grouping->group_of};
    opq_status status = OPQ_OK;
    *out_copy = NULL;
    r.of = calloc((size_t)in->count + 1, sizeof *r.of);
    r.renamed = malloc(((size_t)in->count + 1) * sizeof *r.renamed);
    if (r.of == NULL || r.renamed == NULL)
        status = opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    else if (find_values(&r))
        status = opq_graph_create(in->name, &r.out);
    if (r.out)
        status = copy_all(&r);
    free(r.of);
    free(r.renamed);
    *out_copy = r.out;
    return status;
}

/* ---- masks made of indices alone: each elementwise op has its own, so that kernels need not share one in memory */

typedef struct indices {
    const opq_graph *in;
    opq_graph *out;
    opq_ref *renamed;
    int32_t *uses;
} indices;

static bool is_index_leaf(const opq_node *node)
{
    opq_class class_ = opq_node_class(node);
    return class_ == OPQ_CLASS_IOTA || class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR;
}

/* And numbers. `out_any`: is there an index in it? */
static bool is_of_indices(const opq_graph *in, opq_ref ref, int *ops, bool *out_any)
{
    const opq_node *node = opq_node_at(in, ref);
    *out_any = *out_any || opq_node_class(node) == OPQ_CLASS_IOTA;
    if (is_index_leaf(node))
        return true;
    if ((!is_cheap(node) && opq_node_class(node) != OPQ_CLASS_VIEW) || --*ops < 0)
        return false;
    for (int k = 0; k < node->arity; k++)
        if (!is_of_indices(in, node->operand[k], ops, out_any))
            return false;
    return true;
}

static opq_status copy_indices(indices *c, opq_ref ref, opq_ref *out_ref)
{
    const opq_node *node = opq_node_at(c->in, ref);
    opq_ref before[OPERANDS_MAX], operand;
    *out_ref = c->renamed[ref];
    if (is_index_leaf(node))
        return OPQ_OK;
    for (int k = 0; k < node->arity; k++) {
        before[k] = c->renamed[node->operand[k]];
        OPQ_TRY(copy_indices(c, node->operand[k], &operand));
        c->renamed[node->operand[k]] = operand;
    }
    OPQ_TRY(opq_graph_copy_node(c->out, c->in, ref, c->renamed, out_ref));
    for (int k = node->arity - 1; k >= 0; k--)
        c->renamed[node->operand[k]] = before[k];
    return OPQ_OK;
}

/* The first reader takes the value itself. */
static opq_status copy_with_indices(indices *c, opq_ref n)
{
    const opq_node *node = opq_node_at(c->in, n);
    opq_ref made;
    for (int k = 0; k < node->arity && may_copy(node); k++) {
        opq_ref operand = node->operand[k];
        int ops = opq_trees.copied_index_ops_max;
        bool any = false, is_mask = opq_node_at(c->in, operand)->type.dtype == OPQ_bool;
        if (is_mask && c->uses[operand]++ > 0 && is_of_indices(c->in, operand, &ops, &any) && any)
            OPQ_TRY(copy_indices(c, operand, &c->renamed[operand]));
    }
    OPQ_TRY(opq_graph_copy_node(c->out, c->in, n, c->renamed, &made));
    c->renamed[n] = made;
    return OPQ_OK;
}

static bool has_indices(const opq_graph *in)
{
    bool any = false;
    for (opq_ref n = 0; n < in->count && !any; n++)
        any = opq_node_class(opq_node_at(in, n)) == OPQ_CLASS_IOTA;
    return any;
}

opq_status opq_rematerialize_indices(const opq_graph *in, opq_graph **out_copy)
{
    indices c = {.in = in};
    opq_status status = OPQ_OK;
    *out_copy = NULL;
    if (!has_indices(in))
        return OPQ_OK;
    c.renamed = malloc(((size_t)in->count + 1) * sizeof *c.renamed);
    c.uses = calloc((size_t)in->count + 1, sizeof *c.uses);
    if (c.renamed == NULL || c.uses == NULL)
        status = opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    else
        status = opq_graph_create(in->name, &c.out);
    for (opq_ref n = 0; n < in->count && status == OPQ_OK; n++)
        status = copy_with_indices(&c, n);
    for (int i = 0; i < in->output_count && status == OPQ_OK; i++)
        status = opq_graph_output(c.out, c.renamed[in->outputs[i]]);
    free(c.renamed);
    free(c.uses);
    *out_copy = c.out;
    return status;
}
