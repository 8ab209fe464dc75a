/* Rows of which the elements right of the diagonal need not be computed: a softmax behind where(column <= row, x, -inf).
 *
 * What is known of those elements is followed from node to node. A row that has a NaN or nothing but -inf is all NaN from there on, with
 * these elements or without: that is enough where products take its elements, but not where they sum over rows.
 */
#include "fusion/lower.h"
#include "fusion/pass.h"

#include <math.h>
#include <stdlib.h>

typedef enum known { UNKNOWN, MINUS_INFINITY, ZERO } known;

/* The index along an axis of a matrix, counted from the last. */
static bool is_index(const opq_graph *graph, opq_ref ref, int axis, const opq_type *matrix)
{
    const opq_node *node = opq_node_at(graph, ref);
    int rank = node->type.rank;
    return node->op == OPQ_OP_iota && rank >= 2 && opq_node_int(node, OPQ_ATTR_axis, 0) == rank - axis &&
           node->type.size[rank - 1] == matrix->size[matrix->rank - 1] &&
           node->type.size[rank - 2] == matrix->size[matrix->rank - 2];
}

static bool masks_the_upper_part(const opq_graph *graph, const opq_node *where)
{
    const opq_node *mask = opq_node_at(graph, where->operand[0]), *other = opq_node_at(graph, where->operand[2]);
    const opq_attr *value = opq_node_attr(other, OPQ_ATTR_value);
    return where->op == OPQ_OP_where && where->type.rank >= 2 && mask->op == OPQ_OP_le &&
           is_index(graph, mask->operand[0], 1, &where->type) && is_index(graph, mask->operand[1], 2, &where->type) &&
           other->op == OPQ_OP_const && value && isinf(value->number.f) && value->number.f < 0;
}

/* Is `ref` the reduction of `of` over the columns by this op? */
static bool is_reduced(const opq_graph *graph, opq_ref ref, opq_op op, opq_ref of)
{
    const opq_node *node = opq_node_at(graph, opq_strip_reshape(graph, ref));
    return node->op == op && opq_strip_reshape(graph, node->operand[0]) == of;
}

typedef struct follower {
    const opq_graph *graph;
    const opq_parts *parts;
    opq_ref begin;
    known *k;     /* per node from `begin` on */
    bool sampled; /* what is known depends on row values, which a sample of each row shows to be finite */
} follower;

/* One for each row, or for all. */
static bool is_row_value(const follower *f, opq_ref ref)
{
    const opq_type *type = &opq_node_at(f->graph, ref)->type;
    return type->rank == 0 || type->size[type->rank - 1] == 1;
}

/* A first product, moved by row values: finite where these are, as long as the products are far from overflow. */
static bool is_bounded(const follower *f, opq_ref ref)
{
    const opq_node *node = opq_node_at(f->graph, ref);
    while ((node->op == OPQ_OP_sub || node->op == OPQ_OP_add) && is_row_value(f, node->operand[1])) {
        ref = opq_strip_reshape(f->graph, node->operand[0]);
        node = opq_node_at(f->graph, ref);
    }
    for (int i = 0; i < f->parts->first_count; i++)
        if (f->parts->product[i] == ref)
            return true;
    return false;
}

static known known_of(const follower *f, opq_ref ref) { return ref >= f->begin ? f->k[ref - f->begin] : UNKNOWN; }

/* Of ops that need row values or products to be finite. */
static known follow_sampled(follower *f, const opq_node *node, opq_ref first, known of)
{
    opq_ref second = node->arity > 1 ? opq_strip_reshape(f->graph, node->operand[1]) : -1;
    known result = UNKNOWN;
    if (node->op == OPQ_OP_sub && of == MINUS_INFINITY && is_row_value(f, node->operand[1]))
        result = MINUS_INFINITY;
    if (node->op == OPQ_OP_mul &&
        ((of == ZERO && is_bounded(f, second)) || (known_of(f, second) == ZERO && is_bounded(f, first))))
        result = ZERO;
    f->sampled |= result != UNKNOWN;
    return result;
}

/* false: a reduction that those elements have a part in. */
static bool follow(follower *f, opq_ref ref)
{
    const opq_graph *graph = f->graph;
    const opq_node *node = opq_node_at(graph, ref);
    opq_ref first = node->arity > 0 ? opq_strip_reshape(graph, node->operand[0]) : -1;
    known of = known_of(f, first), *k = &f->k[ref - f->begin];
    *k = UNKNOWN;
    if (opq_node_class(node) == OPQ_CLASS_REDUCE)
        return (node->op == OPQ_OP_amax && of == MINUS_INFINITY) || (node->op == OPQ_OP_sum && of == ZERO);
    if (node->op == OPQ_OP_where && masks_the_upper_part(graph, node))
        *k = MINUS_INFINITY;
    else if (node->op == OPQ_OP_sub && of == MINUS_INFINITY && is_reduced(graph, node->operand[1], OPQ_OP_amax, first))
        *k = MINUS_INFINITY;
    else if (node->op == OPQ_OP_exp && of == MINUS_INFINITY)
        *k = ZERO;
    else if (node->op == OPQ_OP_div && of == ZERO && is_reduced(graph, node->operand[1], OPQ_OP_sum, first))
        *k = ZERO;
    else
        *k = follow_sampled(f, node, first, of);
    return true;
}

bool opq_block_is_causal(const opq_graph *graph, const opq_ref *members, int count, const opq_parts *parts,
                         bool *out_sampled)
{
    follower f = {.graph = graph, .parts = parts, .begin = members[0]};
    f.k = calloc((size_t)(members[count - 1] - members[0]) + 1, sizeof *f.k);
    bool causal = f.k != NULL; /* without memory it is computed in full */
    for (int i = 0; i < count && causal; i++)
        causal = follow(&f, members[i]);
    for (int i = parts->first_count; i < parts->count && causal; i++) {
        opq_ref taken = opq_block_taken(graph, parts, i);
        causal = taken <= members[count - 1] && known_of(&f, taken) == ZERO;
        f.sampled |= opq_block_sums_rows(graph, parts, i); /* a row of NaN is a part of every sum */
    }
    free(f.k);
    *out_sampled = f.sampled;
    return causal;
}
