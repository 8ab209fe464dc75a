/* The checked way into a graph: types are inferred, and every operand is brought to the dtype its row computes in, so
 * that no later stage has to know promotion. A dtype is only ever changed by a `cast` node.
 */
#include "graph/graph.h"

#include <inttypes.h>

static opq_status integer_fits(const char *op, opq_dtype dtype, int64_t value)
{
    int bits = opq_dtype_bytes(dtype) * 8;
    bool is_signed = opq_dtype_kind_of(dtype) == OPQ_KIND_INT;
    int64_t high = bits == 64 ? INT64_MAX : ((int64_t)1 << (bits - is_signed)) - 1;
    int64_t low = is_signed ? -high - 1 : 0;
    if (value < low || value > high)
        return opq_fail(OPQ_INVALID, "%s: %" PRId64 " does not fit %s", op, value, opq_dtype_name(dtype));
    return OPQ_OK;
}

opq_status opq_number_fit(const char *op, opq_dtype dtype, opq_number *number)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_BOOL: number->i = number->i != 0; return OPQ_OK;
    case OPQ_KIND_UINT:
    case OPQ_KIND_INT: return integer_fits(op, dtype, number->i);
    case OPQ_KIND_FLOAT:
        if (dtype == OPQ_f16)
            number->f = (double)opq_f16_to_f32(opq_f32_to_f16((float)number->f));
        else if (dtype == OPQ_bf16)
            number->f = (double)opq_bf16_to_f32(opq_f32_to_bf16((float)number->f));
        else if (dtype == OPQ_f32)
            number->f = (double)(float)number->f;
        return OPQ_OK;
    case OPQ_KIND_RAW: break;
    }
    return opq_fail(OPQ_INVALID, "%s: not implemented for %s", op, opq_dtype_name(dtype));
}

opq_status opq_graph_input(opq_graph *graph, const opq_type *type, opq_ref *out_ref)
{
    opq_node node = {.op = OPQ_OP_input, .type = *type};
    OPQ_TRY(opq_type_check("input", type));
    node.type.weak = 0;
    return opq_graph_append(graph, &node, out_ref);
}

static opq_status append_number(opq_graph *graph, opq_op op, opq_dtype dtype, opq_number value, opq_ref *out_ref)
{
    OPQ_TRY(opq_number_fit(opq_op_info_of(op)->name, dtype, &value));
    opq_attr attr = {.key = OPQ_ATTR_value, .is_int = opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT, .number = value};
    opq_node node = {.op = (uint16_t)op, .type = opq_type_make(dtype, 0, NULL), .attr = &attr, .attr_count = 1};
    return opq_graph_append(graph, &node, out_ref);
}

opq_status opq_graph_const(opq_graph *graph, opq_dtype dtype, opq_number value, opq_ref *out_ref)
{
    return append_number(graph, OPQ_OP_const, dtype, value, out_ref);
}

opq_status opq_graph_scalar(opq_graph *graph, opq_dtype dtype, opq_number value, opq_ref *out_ref)
{
    return append_number(graph, OPQ_OP_scalar, dtype, value, out_ref);
}

/* ---- attributes: sorted, `tree` added, transpose_x=0 and pairs=0 left out, so that equal nodes are equal */

typedef struct attr_list {
    opq_attr attr[OPQ_ATTR_COUNT];
    int count;
} attr_list;

static bool says_nothing(const opq_attr *attr)
{
    bool flag = attr->key == OPQ_ATTR_transpose_a || attr->key == OPQ_ATTR_transpose_b || attr->key == OPQ_ATTR_pairs;
    return flag && attr->i == 0;
}

static opq_status sort_attrs(const char *op, const opq_attr *attrs, int count, attr_list *out_list)
{
    out_list->count = 0;
    for (int i = 0; i < count; i++) {
        int at = out_list->count;
        if (attrs[i].key >= OPQ_ATTR_COUNT)
            return opq_fail(OPQ_INVALID, "%s: has no attribute of that number", op);
        if (opq_attr_find(out_list->attr, out_list->count, (opq_attr_key)attrs[i].key))
            return opq_fail(OPQ_INVALID, "%s: attribute %s given twice", op, opq_attr_name((opq_attr_key)attrs[i].key));
        if (says_nothing(&attrs[i]))
            continue;
        for (; at > 0 && out_list->attr[at - 1].key > attrs[i].key; at--)
            out_list->attr[at] = out_list->attr[at - 1];
        out_list->attr[at] = attrs[i];
        out_list->count++;
    }
    return OPQ_OK;
}

/* `list` has room: keys are unique and `tree` is not among them. */
static void add_tree(attr_list *list, opq_op op, const opq_type *operand)
{
    const opq_attr *axes = opq_attr_find(list->attr, list->count, OPQ_ATTR_axes);
    bool wants = opq_op_attrs(op).required >> OPQ_ATTR_tree & 1;
    if (!wants || !axes || opq_attr_find(list->attr, list->count, OPQ_ATTR_tree))
        return;
    opq_attr tree = {.key = OPQ_ATTR_tree, .i = opq_tree_for(operand->rank, axes->ints, axes->count)};
    int at = list->count++;
    for (; at > 0 && list->attr[at - 1].key > tree.key; at--)
        list->attr[at] = list->attr[at - 1];
    list->attr[at] = tree;
}

/* ---- operands */

/* Casts operand `index` to `dtype`; an operand that stands twice is cast once. */
static opq_status cast_operand(opq_graph *graph, const opq_ref *given, opq_ref *operands, int index, opq_dtype dtype)
{
    for (int i = 0; i < index; i++)
        if (given[i] == given[index] && opq_graph_type(graph, operands[i]).dtype == dtype) {
            operands[index] = operands[i];
            return OPQ_OK;
        }
    opq_node cast = {.op = OPQ_OP_cast, .arity = 1, .operand = &given[index], .type = opq_graph_type(graph, given[index])};
    cast.type.dtype = (uint8_t)dtype;
    cast.type.weak = 0;
    return opq_graph_append(graph, &cast, &operands[index]);
}

/* `types` and `cast` have room for all operands. */
static opq_status build_with(opq_graph *graph, opq_op op, const opq_type *given, const opq_ref *operands, int arity,
                             const opq_attr *attrs, int attr_count, opq_type *types, opq_ref *cast, opq_ref *out_ref)
{
    const char *name = opq_op_info_of(op)->name;
    for (int i = 0; i < arity; i++) {
        if (operands[i] < 0 || operands[i] >= graph->count)
            return opq_fail(OPQ_INVALID, "%s: no node %%%d in a graph of %d", name, operands[i], graph->count);
        types[i] = opq_graph_type(graph, operands[i]);
        cast[i] = operands[i];
    }

    attr_list list;
    opq_dtype compute;
    opq_node node = {.op = (uint16_t)op, .arity = arity, .operand = cast};
    OPQ_TRY(sort_attrs(name, attrs, attr_count, &list));
    OPQ_TRY(opq_infer(op, types, arity, list.attr, list.count, given, &node.type, &compute));
    if (arity > 0)
        add_tree(&list, op, &types[0]);
    for (int i = 0; i < arity; i++)
        if (opq_operand_needs_cast(op, i, (opq_dtype)types[i].dtype, compute))
            OPQ_TRY(cast_operand(graph, operands, cast, i, compute));
    node.attr = list.attr;
    node.attr_count = (uint16_t)list.count;
    return opq_graph_append(graph, &node, out_ref);
}

static opq_status build(opq_graph *graph, opq_op op, const opq_type *given, const opq_ref *operands, int arity,
                        const opq_attr *attrs, int attr_count, opq_ref *out_ref)
{
    enum { FEW = 8 };
    opq_type few_types[FEW], *types = few_types;
    opq_ref few_refs[FEW], *cast = few_refs;
    if (!opq_op_exists((int)op) || arity < 0)
        return opq_fail(OPQ_INVALID, "no op has number %d and %d operands", (int)op, arity);
    opq_class class_ = opq_op_info_of(op)->class_;
    if (class_ == OPQ_CLASS_SCALAR || (class_ == OPQ_CLASS_CONST && op != OPQ_OP_undefined))
        return opq_fail(OPQ_INVALID, "%s: has a builder of its own", opq_op_info_of(op)->name);
    if (arity > FEW) {
        types = opq_arena_alloc(&graph->arena, (size_t)arity * sizeof *types);
        cast = opq_arena_alloc(&graph->arena, (size_t)arity * sizeof *cast);
        if (!types || !cast)
            return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph");
    }
    return build_with(graph, op, given, operands, arity, attrs, attr_count, types, cast, out_ref);
}

opq_status opq_graph_op(opq_graph *graph, opq_op op, const opq_ref *operands, int arity, const opq_attr *attrs,
                        int attr_count, opq_ref *out_ref)
{
    return build(graph, op, NULL, operands, arity, attrs, attr_count, out_ref);
}

opq_status opq_graph_op_typed(opq_graph *graph, opq_op op, const opq_type *type, const opq_ref *operands, int arity,
                              const opq_attr *attrs, int attr_count, opq_ref *out_ref)
{
    return build(graph, op, type, operands, arity, attrs, attr_count, out_ref);
}
