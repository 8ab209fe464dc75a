/* Composite rows become primitives, concat becomes windows of one buffer, counts and reductions of nothing become numbers.
 *
 *   softmax %0 {axes=[1]}   ->   amax, sub, exp, sum, div
 *   concat %0, %1           ->   undefined; update with %0; update with %1      (each window is written by whoever computes it; of a
 *                                part that is a concat of the same axis, its parts; of few numbers where(place < 1, %0, %1))
 *   count %0 {axes=[1]}     ->   extent {value=768}                             (no operand: it follows from the shape)
 *   sum f32[0,8] {axes=[0]} ->   const 0; expand                                (of nothing: its kernel would have nothing to read)
 *
 * needs   verified graph
 * keeps   record order, lines, outputs, inputs
 * breaks  node numbers
 * not     merging what two expansions share (simplify)
 */
#include "fusion/pass.h"
#include "fusion/target.h"
#include "graph/eval.h"

#include <stdlib.h>
#include <string.h>

/* The number alone is 0-d; it stands where the count stood, so it gets the count's extents of 1 back. */
static opq_status expand_count(opq_graph *out, const opq_node *node, const opq_type *operand, opq_ref *out_ref)
{
    const opq_attr *axes = opq_node_attr(node, OPQ_ATTR_axes);
    opq_attr value = {.key = OPQ_ATTR_value};
    int64_t count = 1;
    for (int i = 0; axes && i < axes->count; i++)
        count *= operand->size[axes->ints[i]];
    value.is_int = opq_dtype_kind_of((opq_dtype)node->type.dtype) != OPQ_KIND_FLOAT;
    if (value.is_int)
        value.number.i = count;
    else
        value.number.f = (double)count;
    OPQ_TRY(opq_number_fit("extent", (opq_dtype)node->type.dtype, &value.number));
    opq_node extent = {.op = OPQ_OP_extent,
                       .attr_count = 1,
                       .attr = &value,
                       .line = node->line,
                       .provenance = node->provenance,
                       .type = opq_type_make((opq_dtype)node->type.dtype, 0, NULL)};
    OPQ_TRY(opq_graph_append(out, &extent, out_ref));
    if (node->type.rank == 0)
        return OPQ_OK;
    opq_node shaped = {.op = OPQ_OP_reshape,
                       .arity = 1,
                       .operand = out_ref,
                       .line = node->line,
                       .provenance = node->provenance,
                       .type = node->type};
    return opq_graph_append(out, &shaped, out_ref);
}

/* Some result, each of no elements. */
static bool reduces_nothing(const opq_graph *graph, const opq_node *node)
{
    opq_class class_ = opq_node_class(node);
    return (class_ == OPQ_CLASS_REDUCE || class_ == OPQ_CLASS_MATMUL) && opq_type_count(&node->type) > 0 &&
           opq_type_count(&opq_node_at(graph, node->operand[0])->type) == 0;
}

static opq_status expand_nothing(const opq_graph *in, opq_graph *out, const opq_node *node, opq_ref *out_ref)
{
    opq_dtype dtype = (opq_dtype)node->type.dtype, operand = (opq_dtype)opq_node_at(in, node->operand[0])->type.dtype;
    bool product = opq_node_class(node) == OPQ_CLASS_MATMUL;
    opq_eval_folding folding = {.fold = product ? OPQ_FOLD_sum : opq_op_lowering((opq_op)node->op)->fold};
    folding.dtype = opq_eval_fold_dtype(folding.fold, operand, dtype);
    OPQ_TRY(opq_graph_const(out, dtype, opq_eval_rounded(dtype, opq_eval_fold(&folding, NULL)), out_ref));
    opq_node shaped = {.op = OPQ_OP_expand,
                       .arity = 1,
                       .operand = out_ref,
                       .line = node->line,
                       .provenance = node->provenance,
                       .type = node->type};
    return opq_graph_append(out, &shaped, out_ref);
}

/* What a concat's operand is written at. */
typedef struct place {
    int axis;
    int64_t strides[OPQ_RANK_MAX], position;
} place;

static opq_status write_part(opq_graph *out, const opq_node *node, opq_ref operand, place *at, opq_ref *ref)
{
    opq_type window = opq_node_at(out, operand)->type;
    if (opq_type_count(&window) == 0)
        return OPQ_OK;
    opq_attr attrs[] = {
        {.key = OPQ_ATTR_offset, .i = at->position * at->strides[at->axis]},
        {.key = OPQ_ATTR_sizes, .count = window.rank, .ints = window.size},
        {.key = OPQ_ATTR_strides, .count = window.rank, .ints = at->strides},
    };
    opq_ref pair[] = {*ref, operand};
    opq_node update = {.op = OPQ_OP_update,
                       .arity = 2,
                       .operand = pair,
                       .attr_count = 3,
                       .attr = attrs,
                       .line = node->line,
                       .provenance = node->provenance,
                       .type = node->type,
                       .kernel = -1};
    at->position += window.size[at->axis];
    return opq_graph_append(out, &update, ref);
}

/* Operand k of a concat, or, if that is a concat of the same axis, its parts: how many. */
static int parts_of(const opq_graph *in, const opq_node *node, int k, const opq_ref **out_parts)
{
    const opq_node *part = opq_node_at(in, node->operand[k]);
    bool same = part->op == OPQ_OP_concat && opq_node_int(part, OPQ_ATTR_axis, 0) == opq_node_int(node, OPQ_ATTR_axis, 0);
    *out_parts = same ? part->operand : &node->operand[k];
    return same ? part->arity : 1;
}

enum { STACK_MAX = 16 };

/* Few numbers side by side, a matrix made of its entries or rows, say: a kernel for each would take longer than all of them. How many parts of one
 * size, parts of parts included; 0: it is nothing of that kind. */
static int small_stack(const opq_graph *in, const opq_node *node, const opq_ref *renamed, opq_ref parts[STACK_MAX])
{
    int64_t axis = opq_node_int(node, OPQ_ATTR_axis, 0), size = 0;
    int count = 0;
    if (node->type.rank == OPQ_RANK_MAX || opq_type_count(&node->type) > opq_trees.stack_elements_max ||
        opq_dtype_kind_of((opq_dtype)node->type.dtype) == OPQ_KIND_RAW)
        return 0;
    for (int k = 0; k < node->arity; k++) {
        const opq_ref *inside;
        for (int i = 0, n = parts_of(in, node, k, &inside); i < n; i++) {
            int64_t here = opq_node_at(in, inside[i])->type.size[axis];
            if (here == 0 || (size > 0 && here != size) || count == STACK_MAX)
                return 0;
            size = here;
            parts[count++] = renamed[inside[i]];
        }
    }
    return count < opq_trees.stack_min ? 0 : count;
}

/* A node of the concat's line; its type has the concat's dtype. */
static opq_status add_for(opq_graph *out, const opq_node *node, opq_op op, const opq_type *type, opq_ref *operands,
                          int arity, opq_ref *out_ref)
{
    opq_attr along = {.key = OPQ_ATTR_axis, .i = opq_node_int(node, OPQ_ATTR_axis, 0)};
    opq_node made = {.op = (uint16_t)op,
                     .arity = arity,
                     .operand = operands,
                     .attr_count = op == OPQ_OP_iota,
                     .attr = &along,
                     .line = node->line,
                     .provenance = node->provenance,
                     .type = *type,
                     .kernel = -1};
    return opq_graph_append(out, &made, out_ref);
}

/* where(place < 1, part 0, where(place < 2, part 1, ..)), which fuses like any elementwise op; places are a dim of their own. */
static opq_status select_parts(opq_graph *out, const opq_node *node, opq_ref *parts, int count, opq_ref *out_ref)
{
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    opq_type wide = node->type, part, places = opq_type_make(OPQ_i64, 0, NULL);
    memmove(wide.size + axis + 1, node->type.size + axis, (size_t)(node->type.rank - axis) * sizeof *wide.size);
    wide.rank = places.rank = (uint8_t)(node->type.rank + 1);
    wide.size[axis] = count;
    wide.size[axis + 1] /= count;
    part = wide;
    part.size[axis] = 1;
    for (int d = 0; d < wide.rank; d++)
        places.size[d] = d == axis ? count : 1;
    opq_ref place, pair[2], three[3], last;
    OPQ_TRY(add_for(out, node, OPQ_OP_iota, &places, NULL, 0, &place));
    places.dtype = OPQ_bool;
    OPQ_TRY(add_for(out, node, OPQ_OP_reshape, &part, &parts[count - 1], 1, &last));
    for (int k = count - 2; k >= 0; k--) {
        pair[0] = place;
        OPQ_TRY(opq_graph_const(out, OPQ_i64, (opq_number){.i = k + 1}, &pair[1]));
        OPQ_TRY(add_for(out, node, OPQ_OP_lt, &places, pair, 2, &three[0]));
        OPQ_TRY(add_for(out, node, OPQ_OP_reshape, &part, &parts[k], 1, &three[1]));
        three[2] = last;
        OPQ_TRY(add_for(out, node, OPQ_OP_where, &wide, three, 3, &last));
    }
    return add_for(out, node, OPQ_OP_reshape, &node->type, &last, 1, out_ref);
}

/* Parts of a part are written at once, not of its memory: whoever else wants the part has it besides. */
static opq_status expand_concat(const opq_graph *in, opq_graph *out, const opq_node *node, const opq_ref *renamed,
                                opq_ref *out_ref)
{
    opq_ref parts[STACK_MAX];
    int stacked = small_stack(in, node, renamed, parts);
    if (stacked > 0)
        return select_parts(out, node, parts, stacked, out_ref);
    place at = {.axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0)};
    int64_t stride = 1;
    for (int d = node->type.rank - 1; d >= 0; d--) {
        at.strides[d] = stride;
        stride *= node->type.size[d];
    }
    opq_node base = {
        .op = OPQ_OP_undefined, .line = node->line, .provenance = node->provenance, .type = node->type, .kernel = -1};
    OPQ_TRY(opq_graph_append(out, &base, out_ref));
    for (int k = 0; k < node->arity; k++) {
        const opq_ref *inside;
        for (int i = 0, n = parts_of(in, node, k, &inside); i < n; i++)
            OPQ_TRY(write_part(out, node, renamed[inside[i]], &at, out_ref));
    }
    return OPQ_OK;
}

/* One element of few that are all one number, as the gradient of x[i] is: a kernel for each would take longer than to select it where it is needed. */
static bool is_small_write(const opq_graph *graph, const opq_node *node)
{
    if (node->op != OPQ_OP_update || opq_type_count(&opq_node_at(graph, node->operand[1])->type) != 1 ||
        opq_type_count(&node->type) > opq_trees.stack_elements_max ||
        opq_dtype_kind_of((opq_dtype)node->type.dtype) == OPQ_KIND_RAW)
        return false;
    const opq_node *base = opq_node_at(graph, opq_strip_reshape(graph, node->operand[0]));
    if (base->op != OPQ_OP_expand)
        return false;
    opq_op number = (opq_op)opq_node_at(graph, base->operand[0])->op;
    return number == OPQ_OP_const || number == OPQ_OP_scalar;
}

/* where(place == offset, element, number) */
static opq_status select_element(const opq_graph *in, opq_graph *out, const opq_node *node, const opq_ref *renamed,
                                 opq_ref *out_ref)
{
    const opq_node *base = opq_node_at(in, opq_strip_reshape(in, node->operand[0]));
    opq_type places = opq_type_make(OPQ_i64, 1, (int64_t[]){opq_type_count(&node->type)}), flat = places, one = places;
    opq_ref equal[2], three[3] = {0, renamed[node->operand[1]], renamed[base->operand[0]]}, chosen;
    flat.dtype = one.dtype = node->type.dtype;
    one.size[0] = 1;
    OPQ_TRY(add_for(out, node, OPQ_OP_iota, &places, NULL, 0, &equal[0]));
    OPQ_TRY(opq_graph_const(out, OPQ_i64, (opq_number){.i = opq_node_int(node, OPQ_ATTR_offset, 0)}, &equal[1]));
    places.dtype = OPQ_bool;
    OPQ_TRY(add_for(out, node, OPQ_OP_eq, &places, equal, 2, &three[0]));
    OPQ_TRY(add_for(out, node, OPQ_OP_reshape, &one, &three[1], 1, &three[1]));
    OPQ_TRY(add_for(out, node, OPQ_OP_where, &flat, three, 3, &chosen));
    return add_for(out, node, OPQ_OP_reshape, &node->type, &chosen, 1, out_ref);
}

bool opq_expands(const opq_graph *graph, const opq_node *node)
{
    return node->op == OPQ_OP_count || node->op == OPQ_OP_concat || opq_node_is_composite(node) ||
           reduces_nothing(graph, node);
}

bool opq_graph_expands(const opq_graph *graph)
{
    bool any = false;
    for (opq_ref n = 0; n < graph->count && !any; n++)
        any = opq_expands(graph, opq_node_at(graph, n)) || is_small_write(graph, opq_node_at(graph, n));
    return any;
}

static opq_status expand_composites(const opq_graph *in, opq_graph *out, opq_ref *renamed, opq_ref *operands)
{
    for (opq_ref n = 0; n < in->count; n++) {
        const opq_node *node = opq_node_at(in, n);
        for (int k = 0; k < node->arity; k++)
            operands[k] = renamed[node->operand[k]];
        if (opq_node_is_composite(node))
            OPQ_TRY(opq_expand_wide(out, node, operands, &renamed[n]));
        else
            OPQ_TRY(opq_graph_copy_node(out, in, n, renamed, &renamed[n]));
    }
    for (int i = 0; i < in->output_count; i++)
        OPQ_TRY(opq_graph_output(out, renamed[in->outputs[i]]));
    return OPQ_OK;
}

/* What is left, those that expansions made with it. */
static opq_status expand_rest(const opq_graph *in, opq_graph *out, opq_ref *renamed, opq_ref *operands)
{
    (void)operands;
    for (opq_ref n = 0; n < in->count; n++) {
        const opq_node *node = opq_node_at(in, n);
        if (node->op == OPQ_OP_count)
            OPQ_TRY(expand_count(out, node, &opq_node_at(in, node->operand[0])->type, &renamed[n]));
        else if (node->op == OPQ_OP_concat)
            OPQ_TRY(expand_concat(in, out, node, renamed, &renamed[n]));
        else if (is_small_write(in, node))
            OPQ_TRY(select_element(in, out, node, renamed, &renamed[n]));
        else if (reduces_nothing(in, node))
            OPQ_TRY(expand_nothing(in, out, node, &renamed[n]));
        else
            OPQ_TRY(opq_graph_copy_node(out, in, n, renamed, &renamed[n]));
    }
    for (int i = 0; i < in->output_count; i++)
        OPQ_TRY(opq_graph_output(out, renamed[in->outputs[i]]));
    return OPQ_OK;
}

typedef opq_status expansion(const opq_graph *in, opq_graph *out, opq_ref *renamed, opq_ref *operands);

static opq_status walk_with(expansion *expand, const opq_graph *in, opq_graph *out)
{
    int32_t widest = 1;
    for (opq_ref n = 0; n < in->count; n++)
        widest = opq_node_at(in, n)->arity > widest ? opq_node_at(in, n)->arity : widest;
    opq_ref *renamed = malloc((size_t)(in->count + widest + 1) * sizeof *renamed);
    opq_status status =
        renamed ? expand(in, out, renamed, renamed + in->count) : opq_fail(OPQ_NO_MEMORY, "expand: out of memory");
    free(renamed);
    return status;
}

static bool has_composites(const opq_graph *graph)
{
    bool any = false;
    for (opq_ref n = 0; n < graph->count && !any; n++)
        any = opq_node_is_composite(opq_node_at(graph, n));
    return any;
}

opq_status opq_pass_expand(const opq_graph *in, opq_graph *out)
{
    opq_graph *middle = NULL;
    if (!has_composites(in))
        return walk_with(expand_rest, in, out);
    OPQ_TRY(opq_graph_create(in->name, &middle));
    opq_status status = walk_with(expand_composites, in, middle);
    if (status == OPQ_OK)
        status = walk_with(expand_rest, middle, out);
    opq_graph_destroy(middle);
    return status;
}
