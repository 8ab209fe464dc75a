/* What several small products read across its rows is turned once, for all of them.
 *
 *   matmul f32[64,1] %w, %x      a lane for each row of w: 64 elements are 64 places      for each of many steps
 *
 *   %t = cast f32[64,64] (permute %w)                                                     once
 *   matmul f32[64,1] %t, %x {transpose_a=1}      a lane for each column of t: a vector is loaded
 *
 * A family is what is made of each other element by element (w = w + u v', step after step): it is made turned from its inputs on.
 *
 * needs   small products, which no engine packs operands for (opq_lower_is_small)
 * keeps   every sum: its terms and their order
 * not     what few products read: turning takes about what one of these loses
 */
#include "fusion/lower_state.h"
#include "fusion/pass.h"
#include "fusion/target.h"

#include <stdlib.h>
#include <string.h>

/* Of its first member, to which the others lead. */
typedef struct family {
    opq_ref first;
    int32_t readers; /* products that read across rows */
    int32_t turns;   /* members that have to be turned: inputs, and each use by somebody else */
    bool bound;      /* something of another kind goes into it, as large */
} family;

typedef struct turner {
    const opq_graph *in;
    opq_graph *out;
    opq_ref *renamed, *turned; /* per node of `in`, in `out`; -1: not yet */
    int32_t *readers;
    family *families; /* per node of `in` */
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
    return last && node->type.size[o ? rank - 1 : rank - 2] >= opq_trees.turned_lanes_min && operand->type.size[summed] > 1
               ? o
               : -1;
}

static bool has_readers(const opq_graph *graph)
{
    int count = 0;
    opq_ref base;
    for (opq_ref n = 0; n < graph->count && count < opq_trees.turned_readers_min; n++)
        count += crossed_operand(graph, n, &base) >= 0;
    return count == opq_trees.turned_readers_min;
}

/* ---- families */

static bool is_computed(const opq_node *node)
{
    return node->type.rank >= 2 && opq_class_is_elementwise(opq_node_class(node));
}

static bool is_member(const opq_node *node)
{
    return is_computed(node) || (node->type.rank >= 2 && node->op == OPQ_OP_input);
}

static bool is_as_large(const opq_type *a, const opq_type *b)
{
    return a->rank == b->rank && memcmp(a->size, b->size, (size_t)a->rank * sizeof *a->size) == 0;
}

/* Turned it is no copy: of its last two dims at most one has several elements. */
static bool is_line(const opq_type *type)
{
    return type->rank < 2 || type->size[type->rank - 1] == 1 || type->size[type->rank - 2] == 1;
}

static family *family_of(const turner *t, opq_ref n)
{
    while (t->families[n].first != n)
        n = t->families[n].first = t->families[t->families[n].first].first;
    return &t->families[n];
}

static void join(turner *t, opq_ref a, opq_ref b)
{
    family *of = family_of(t, a), *other = family_of(t, b);
    family *first = of < other ? of : other, *later = of < other ? other : of;
    first->bound |= later->bound;
    later->first = first->first;
}

static void find_families(turner *t)
{
    for (opq_ref n = 0; n < t->in->count; n++)
        t->families[n].first = n;
    for (opq_ref n = 0; n < t->in->count; n++) {
        const opq_node *node = opq_node_at(t->in, n);
        for (int o = 0; o < node->arity && is_computed(node); o++) {
            const opq_node *operand = opq_node_at(t->in, node->operand[o]);
            bool large = is_as_large(&node->type, &operand->type);
            if (large && is_member(operand))
                join(t, n, node->operand[o]);
            else if (large || !is_line(&operand->type))
                family_of(t, n)->bound = true;
        }
    }
}

/* Is there anything to turn? */
static bool count_readers(turner *t)
{
    bool any = false;
    for (opq_ref n = 0; n < t->in->count; n++) {
        opq_ref base = -1;
        const opq_node *node = opq_node_at(t->in, n);
        int crossed = crossed_operand(t->in, n, &base);
        if (crossed >= 0)
            any = ++t->readers[base] >= opq_trees.turned_readers_min || any;
        if (node->op == OPQ_OP_input)
            family_of(t, n)->turns++;
        for (int o = 0; o < node->arity; o++) {
            const opq_node *operand = opq_node_at(t->in, node->operand[o]);
            family *of = family_of(t, node->operand[o]);
            if (o == crossed && base == node->operand[o])
                any = ++of->readers >= opq_trees.turned_readers_min || any;
            else if (!is_computed(node) || !is_as_large(&node->type, &operand->type))
                of->turns++;
        }
    }
    for (int i = 0; i < t->in->output_count; i++)
        family_of(t, t->in->outputs[i])->turns++;
    return any;
}

static bool is_made_turned(const turner *t, opq_ref n)
{
    const family *of = family_of(t, n);
    return is_member(opq_node_at(t->in, n)) && !of->bound && of->readers >= opq_trees.turned_readers_min &&
           of->readers >= opq_trees.turned_readers_each * of->turns;
}

/* ---- the copy */

static opq_type turned_type(const opq_type *type)
{
    opq_type turned = *type;
    turned.size[type->rank - 1] = type->size[type->rank - 2];
    turned.size[type->rank - 2] = type->size[type->rank - 1];
    return turned;
}

/* Of `from`, a node of the copy. */
static opq_status turn(turner *t, opq_ref from, const opq_node *reader, opq_ref *out_turned)
{
    const opq_type type = opq_node_at(t->out, from)->type;
    int64_t dims[OPQ_RANK_MAX];
    for (int d = 0; d < type.rank; d++)
        dims[d] = swapped(d, type.rank);
    opq_attr along = {.key = OPQ_ATTR_dims, .is_int = true, .count = type.rank, .ints = dims};
    opq_node node = {.op = OPQ_OP_permute,
                     .arity = 1,
                     .operand = &from,
                     .attr_count = 1,
                     .attr = &along,
                     .line = reader->line,
                     .provenance = reader->provenance,
                     .type = turned_type(&type),
                     .kernel = -1};
    opq_ref view;
    OPQ_TRY(opq_graph_append(t->out, &node, &view));
    node.op = OPQ_OP_cast;
    node.operand = &view;
    node.attr_count = 0;
    return opq_graph_append(t->out, &node, out_turned);
}

static opq_status need_turned(turner *t, opq_ref n, const opq_node *reader)
{
    return t->turned[n] >= 0 ? OPQ_OK : turn(t, t->renamed[n], reader, &t->turned[n]);
}

/* As it lies in the graph, of what was made turned. */
static opq_status need_straight(turner *t, opq_ref n, const opq_node *reader)
{
    return t->renamed[n] >= 0 ? OPQ_OK : turn(t, t->turned[n], reader, &t->renamed[n]);
}

/* An operand that is broadcast along one of the last two dims, or both: along the other one. */
static opq_status turn_line(turner *t, opq_ref n, const opq_node *reader, opq_ref *out_turned)
{
    OPQ_TRY(need_straight(t, n, reader));
    const opq_type type = opq_node_at(t->in, n)->type;
    *out_turned = t->renamed[n];
    if (opq_type_count(&type) == 1 && type.rank <= 1)
        return OPQ_OK;
    int rank = reader->type.rank, more = rank - type.rank;
    int64_t size[OPQ_RANK_MAX];
    for (int d = 0; d < rank; d++)
        size[d] = d < more ? 1 : type.size[d - more];
    opq_type wide = opq_type_make((opq_dtype)type.dtype, rank, size);
    wide.weak = type.weak;
    opq_node node = {.op = OPQ_OP_reshape,
                     .arity = 1,
                     .operand = &t->renamed[n],
                     .line = reader->line,
                     .provenance = reader->provenance,
                     .type = turned_type(&wide),
                     .kernel = -1};
    return opq_graph_append(t->out, &node, out_turned);
}

static opq_status make_turned(turner *t, opq_ref n)
{
    opq_ref operands[OPQ_OPERANDS_MAX];
    opq_node node = *opq_node_at(t->in, n);
    for (int o = 0; o < node.arity; o++) {
        opq_ref from = node.operand[o];
        bool large = is_as_large(&node.type, &opq_node_at(t->in, from)->type);
        OPQ_TRY(large ? need_turned(t, from, &node) : turn_line(t, from, &node, &operands[o]));
        operands[o] = large ? t->turned[from] : operands[o];
    }
    node.operand = operands;
    node.type = turned_type(&node.type);
    return opq_graph_append(t->out, &node, &t->turned[n]);
}

static opq_status copy_product(turner *t, opq_ref n, int o, opq_ref base)
{
    const opq_node *product = opq_node_at(t->in, n);
    OPQ_TRY(need_turned(t, base, product));
    OPQ_TRY(need_straight(t, product->operand[!o], product));
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

static opq_status copy_one(turner *t, opq_ref n)
{
    opq_ref base;
    const opq_node *node = opq_node_at(t->in, n);
    int o = crossed_operand(t->in, n, &base);
    if (is_computed(node) && is_made_turned(t, n))
        return make_turned(t, n);
    if (o >= 0 && (t->readers[base] >= opq_trees.turned_readers_min || is_made_turned(t, base)))
        return copy_product(t, n, o, base);
    for (int k = 0; k < node->arity; k++)
        OPQ_TRY(need_straight(t, node->operand[k], node));
    return opq_graph_copy_node(t->out, t->in, n, t->renamed, &t->renamed[n]);
}

static opq_status copy_all(turner *t)
{
    for (opq_ref n = 0; n < t->in->count; n++)
        OPQ_TRY(copy_one(t, n));
    for (int i = 0; i < t->in->output_count; i++) {
        opq_ref output = t->in->outputs[i];
        OPQ_TRY(need_straight(t, output, opq_node_at(t->in, output)));
        OPQ_TRY(opq_graph_output(t->out, t->renamed[output]));
    }
    return OPQ_OK;
}

opq_status opq_turn_operands(const opq_graph *in, opq_graph **out_copy)
{
    turner t = {.in = in};
    size_t count = (size_t)in->count + 1;
    opq_status status = OPQ_OK;
    *out_copy = NULL;
    if (!has_readers(in))
        return OPQ_OK;
    t.renamed = malloc(2 * count * sizeof *t.renamed);
    t.turned = t.renamed + count;
    t.readers = calloc(count, sizeof *t.readers);
    t.families = calloc(count, sizeof *t.families);
    if (t.renamed == NULL || t.readers == NULL || t.families == NULL)
        status = opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    if (status == OPQ_OK) {
        find_families(&t);
        status = count_readers(&t) ? opq_graph_create(in->name, &t.out) : OPQ_OK;
    }
    for (size_t n = 0; n < count && t.out; n++)
        t.renamed[n] = t.turned[n] = -1;
    if (t.out)
        status = copy_all(&t);
    free(t.renamed);
    free(t.readers);
    free(t.families);
    *out_copy = t.out;
    return status;
}
