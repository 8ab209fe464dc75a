/* An operand that several small products read across its rows is turned once, for all of them.
 *
 *   matmul f32[64,1] %w, %x      a lane for each row of w: 64 elements are 64 places      for each of many steps
 *
 *   %t = cast f32[64,64] (permute %w)                                                     once
 *   matmul f32[64,1] %t, %x {transpose_a=1}      a lane for each column of t: a vector is loaded
 *
 * needs   small products, which no engine packs operands for (opq_lower_is_small)
 * keeps   every sum: its terms and their order
 * not     operands that few products read: turning takes about what one of these loses
 */
#include "fusion/lower_state.h"
#include "fusion/pass.h"

#include <stdlib.h>

enum { READERS_MIN = 3, LANES_MIN = 4 };

typedef struct turner {
    const opq_graph *in;
    opq_graph *out;
    opq_ref *renamed, *turned; /* turned: per node of `in`, in `out`; -1: not yet */
    int32_t *readers;
} turner;

/* Of a permutation that swaps the last two dims. */
static int64_t swapped(int dim, int rank) { return dim < rank - 2 ? dim : 2 * rank - 3 - dim; }

static bool swaps_last(const opq_node *permute)
{
    const opq_attr *dims = opq_node_attr(permute, OPQ_ATTR_dims);
    int rank = permute->type.rank;
    for (int d = 0; d < rank; d++)
        if (dims->ints[d] != swapped(d, rank))
            return false;
    return rank >= 2;
}

/* The operand of a small product along whose rows there would be lanes, and what it is a view of, whose rows are what is summed. -1: none. */
static int crossed_operand(const opq_graph *graph, opq_ref n, opq_ref *out_base)
{
    const opq_node *node = opq_node_at(graph, n);
    if (node->op != OPQ_OP_matmul || !opq_lower_is_small(graph, n))
        return -1;
    int rank = node->type.rank, o = node->type.size[rank - 1] > 1;
    const opq_node *operand = opq_node_at(graph, node->operand[o]);
    int summed = opq_lower_summed_dim(graph, n, o);
    bool last = summed == operand->type.rank - 1;
    *out_base = node->operand[o];
    if (operand->op == OPQ_OP_permute && swaps_last(operand)) {
        *out_base = operand->operand[0];
        last = !last;
    }
    return last && node->type.size[o ? rank - 1 : rank - 2] >= LANES_MIN && operand->type.size[summed] > 1 ? o : -1;
}

static bool has_products(const opq_graph *graph)
{
    int count = 0;
    for (opq_ref n = 0; n < graph->count && count < READERS_MIN; n++)
        count += opq_node_at(graph, n)->op == OPQ_OP_matmul;
    return count == READERS_MIN;
}

static bool count_readers(turner *t)
{
    bool any = false;
    opq_ref base;
    for (opq_ref n = 0; n < t->in->count; n++)
        if (crossed_operand(t->in, n, &base) >= 0)
            any = ++t->readers[base] >= READERS_MIN || any;
    return any;
}

static opq_status turn(turner *t, opq_ref base, const opq_node *reader)
{
    const opq_node *of = opq_node_at(t->in, base);
    int rank = of->type.rank;
    int64_t dims[OPQ_RANK_MAX];
    for (int d = 0; d < rank; d++)
        dims[d] = swapped(d, rank);
    opq_attr along = {.key = OPQ_ATTR_dims, .is_int = true, .count = rank, .ints = dims};
    opq_node node = {.op = OPQ_OP_permute,
                     .arity = 1,
                     .operand = &t->renamed[base],
                     .attr_count = 1,
                     .attr = &along,
                     .line = reader->line,
                     .provenance = reader->provenance,
                     .type = of->type,
                     .kernel = -1};
    node.type.size[rank - 1] = of->type.size[rank - 2];
    node.type.size[rank - 2] = of->type.size[rank - 1];
    opq_ref view;
    OPQ_TRY(opq_graph_append(t->out, &node, &view));
    node.op = OPQ_OP_cast;
    node.operand = &view;
    node.attr_count = 0;
    return opq_graph_append(t->out, &node, &t->turned[base]);
}

static opq_status copy_product(turner *t, opq_ref n, int o, opq_ref base)
{
    const opq_node *product = opq_node_at(t->in, n);
    if (t->turned[base] < 0)
        OPQ_TRY(turn(t, base, product));
    opq_ref operands[2] = {t->renamed[product->operand[0]], t->renamed[product->operand[1]]};
    opq_attr attrs[2];
    opq_node node = *product;
    bool transposed[2] = {opq_node_int(product, OPQ_ATTR_transpose_a, 0) != 0,
                          opq_node_int(product, OPQ_ATTR_transpose_b, 0) != 0};
    operands[o] = t->turned[base];
    transposed[o] = o == 0; /* what is summed is the dim before the last now */
    node.operand = operands;
    node.attr = attrs;
    node.attr_count = 0;
    for (int k = 0; k < 2; k++)
        if (transposed[k])
            attrs[node.attr_count++] =
                (opq_attr){.key = k ? OPQ_ATTR_transpose_b : OPQ_ATTR_transpose_a, .is_int = true, .i = 1};
    return opq_graph_append(t->out, &node, &t->renamed[n]);
}

static opq_status copy_all(turner *t)
{
    for (opq_ref n = 0; n < t->in->count; n++) {
        opq_ref base;
        int o = crossed_operand(t->in, n, &base);
        OPQ_TRY(o >= 0 && t->readers[base] >= READERS_MIN
                    ? copy_product(t, n, o, base)
                    : opq_graph_copy_node(t->out, t->in, n, t->renamed, &t->renamed[n]));
    }
    for (int i = 0; i < t->in->output_count; i++)
        OPQ_TRY(opq_graph_output(t->out, t->renamed[t->in->outputs[i]]));
    return OPQ_OK;
}

opq_status opq_turn_operands(const opq_graph *in, opq_graph **out_copy)
{
    turner t = {.in = in};
    size_t count = (size_t)in->count + 1;
    opq_status status = OPQ_OK;
    *out_copy = NULL;
    if (!has_products(in))
        return OPQ_OK;
    t.renamed = malloc(2 * count * sizeof *t.renamed);
    t.turned = t.renamed + count;
    t.readers = calloc(count, sizeof *t.readers);
    if (t.renamed == NULL || t.readers == NULL)
        status = opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    else if (count_readers(&t))
        status = opq_graph_create(in->name, &t.out);
    for (size_t n = 0; n < count && t.out; n++)
        t.turned[n] = -1;
    if (t.out)
        status = copy_all(&t);
    free(t.renamed);
    free(t.readers);
    *out_copy = t.out;
    return status;
}
