/* Rows of which the elements right of the diagonal need not be computed: a softmax behind where(column <= row, x, -inf).
 *
 * What is known of those elements is followed from node to node. A row that has a NaN or nothing but -inf is all NaN from there on, with
 * these elements or without.
 */
#include "fusion/lower.h"
#include "fusion/pass.h"

#include <math.h>
#include <stdlib.h>

typedef enum known { UNKNOWN, MINUS_INFINITY, ZERO } known;

/* The index along an axis of a matrix, counted from the last; as a float it is exact. */
static bool is_index(const opq_graph *graph, opq_ref ref, int axis, const opq_type *matrix)
{
    const opq_node *node = opq_node_at(graph, ref);
    if (node->op == OPQ_OP_cast && node->type.dtype == OPQ_f32)
        node = opq_node_at(graph, node->operand[0]);
    int rank = node->type.rank;
    return node->op == OPQ_OP_iota && rank >= 2 && opq_node_int(node, OPQ_ATTR_axis, 0) == rank - axis &&
           node->type.size[rank - 1] == matrix->size[matrix->rank - 1] &&
           node->type.size[rank - 2] == matrix->size[matrix->rank - 2] && node->type.size[rank - axis] < 1 << 24;
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

/* false: a reduction that those elements have a part in. */
static bool follow(const opq_graph *graph, opq_ref begin, opq_ref ref, known *k)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_ref first = node->arity > 0 ? opq_strip_reshape(graph, node->operand[0]) : -1;
    known of = first >= begin ? k[first - begin] : UNKNOWN;
    k[ref - begin] = UNKNOWN;
    if (opq_node_class(node) == OPQ_CLASS_REDUCE)
        return (node->op == OPQ_OP_amax && of == MINUS_INFINITY) || (node->op == OPQ_OP_sum && of == ZERO);
    if (node->op == OPQ_OP_where && masks_the_upper_part(graph, node))
        k[ref - begin] = MINUS_INFINITY;
    else if (node->op == OPQ_OP_sub && of == MINUS_INFINITY && is_reduced(graph, node->operand[1], OPQ_OP_amax, first))
        k[ref - begin] = MINUS_INFINITY;
    else if (node->op == OPQ_OP_exp && of == MINUS_INFINITY)
        k[ref - begin] = ZERO;
    else if (node->op == OPQ_OP_div && of == ZERO && is_reduced(graph, node->operand[1], OPQ_OP_sum, first))
        k[ref - begin] = ZERO;
    return true;
}

bool opq_block_is_causal(const opq_graph *graph, opq_ref begin, opq_ref end, opq_ref weights)
{
    known *k = calloc((size_t)(end - begin) + 1, sizeof *k);
    bool causal = k != NULL; /* without memory it is computed in full */
    for (opq_ref n = begin; n < end && causal; n++)
        causal = follow(graph, begin, n, k);
    causal = causal && k[weights - begin] == ZERO;
    free(k);
    return causal;
}
