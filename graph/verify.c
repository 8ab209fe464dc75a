/* Every invariant of the IR. Whoever builds a graph keeps them, and nobody checks them again downstream:
 *
 *   nodes     operands come before their user; arity, attributes and type are what the op's row says, and operands that
 *             promote already have the dtype in which the row computes
 *   kernels   runs of adjacent nodes, in order, disjoint; a node knows its kernel; none reads from memory what it makes itself
 *   outputs   name nodes
 *
 * Types are not trusted but inferred again.
 */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static opq_status check_number(const char *op, const opq_type *type, const opq_attr *attr)
{
    opq_number fitted = attr->number;
    bool is_int = opq_dtype_kind_of((opq_dtype)type->dtype) != OPQ_KIND_FLOAT;
    if (attr->is_int != is_int)
        return opq_fail(OPQ_INVALID, "%s: the value of a %s is %s integer", op, opq_dtype_name((opq_dtype)type->dtype),
                        is_int ? "an" : "no");
    OPQ_TRY(opq_number_fit(op, (opq_dtype)type->dtype, &fitted));
    if (memcmp(&fitted, &attr->number, sizeof fitted))
        return opq_fail(OPQ_INVALID, "%s: the value is no %s", op, opq_dtype_name((opq_dtype)type->dtype));
    return OPQ_OK;
}

static opq_status check_attrs(const opq_node *node)
{
    const char *op = opq_node_info(node)->name;
    for (int i = 0; i < node->attr_count; i++) {
        const opq_attr *attr = &node->attr[i];
        if (attr->key >= OPQ_ATTR_COUNT)
            return opq_fail(OPQ_INVALID, "%s: has no attribute of that number", op);
        opq_attr_key key = (opq_attr_key)attr->key;
        if (i > 0 && attr[-1].key >= attr->key)
            return opq_fail(OPQ_INVALID, "%s: attributes are not sorted at %s", op, opq_attr_name(key));
        bool fits = true;
        switch (opq_attr_kind_of(key)) {
        case OPQ_ATTR_KIND_INT: fits = key != OPQ_ATTR_result || attr->i >= 0; break;
        case OPQ_ATTR_KIND_INTS: fits = attr->count >= 0 && (attr->ints || !attr->count); break;
        case OPQ_ATTR_KIND_STR: fits = attr->str; break;
        case OPQ_ATTR_KIND_WORD: fits = attr->i == OPQ_TREE_lanes || attr->i == OPQ_TREE_column; break;
        case OPQ_ATTR_KIND_NUMBER: OPQ_TRY(check_number(op, &node->type, attr)); break;
        }
        if (!fits)
            return opq_fail(OPQ_INVALID, "%s: attribute %s has no such value", op, opq_attr_name(key));
    }
    if ((opq_op_attrs((opq_op)node->op).required >> OPQ_ATTR_tree & 1) && !opq_node_attr(node, OPQ_ATTR_tree))
        return opq_fail(OPQ_INVALID, "%s: attribute tree missing", op);
    return OPQ_OK;
}

static opq_status check_type(const opq_node *node, const opq_type *operands)
{
    const opq_op_info *info = opq_node_info(node);
    const opq_type *given = info->rule == OPQ_RULE_GIVEN || info->class_ == OPQ_CLASS_MATMUL ? &node->type : NULL;
    opq_type type;
    opq_dtype compute;
    OPQ_TRY(opq_infer((opq_op)node->op, operands, node->arity, node->attr, node->attr_count, given, &type, &compute));
    if (!opq_type_equal(&type, &node->type))
        return opq_fail(OPQ_INVALID, "%s: gives %s%s, not %s%s", info->name, opq_dtype_name((opq_dtype)type.dtype),
                        opq_shape_name(&type).text, opq_dtype_name((opq_dtype)node->type.dtype),
                        opq_shape_name(&node->type).text);
    for (int i = 0; i < node->arity; i++)
        if (opq_operand_needs_cast((opq_op)node->op, i, (opq_dtype)operands[i].dtype, compute))
            return opq_fail(OPQ_INVALID, "%s: operand %d is %s and needs a cast to %s", info->name, i,
                            opq_dtype_name((opq_dtype)operands[i].dtype), opq_dtype_name(compute));
    return OPQ_OK;
}

static opq_status check_operands(const opq_graph *graph, opq_ref ref, opq_type *out_types)
{
    const opq_node *node = opq_node_at(graph, ref);
    const opq_op_info *info = opq_node_info(node);
    for (int i = 0; i < node->arity; i++) {
        if (node->operand[i] < 0 || node->operand[i] >= ref)
            return opq_fail(OPQ_INVALID, "%s: operand %%%d does not come before %%%d", info->name, node->operand[i], ref);
        out_types[i] = opq_node_at(graph, node->operand[i])->type;
        bool result_of = info->class_ == OPQ_CLASS_EXTERN && info->arity == 1;
        if (result_of && opq_node_at(graph, node->operand[i])->op != OPQ_OP_extern)
            return opq_fail(OPQ_INVALID, "%s: %%%d is no extern call", info->name, node->operand[i]);
    }
    return OPQ_OK;
}

static opq_status check_node(const opq_graph *graph, opq_ref ref, opq_type *types)
{
    const opq_node *node = opq_node_at(graph, ref);
    OPQ_TRY(opq_type_check(opq_node_info(node)->name, &node->type));
    OPQ_TRY(check_operands(graph, ref, types));
    OPQ_TRY(check_attrs(node));
    return check_type(node, types);
}

opq_status opq_node_verify(const opq_graph *graph, opq_ref ref)
{
    enum { FEW = 8 };
    const opq_node *node = opq_node_at(graph, ref);
    if (!opq_op_exists(node->op))
        return opq_fail(OPQ_INVALID, "no op has number %d", node->op);
    if (node->arity < 0)
        return opq_fail(OPQ_INVALID, "%s: negative arity", opq_node_info(node)->name);
    if (node->arity <= FEW) {
        opq_type types[FEW];
        return check_node(graph, ref, types);
    }
    opq_type *types = malloc((size_t)node->arity * sizeof *types);
    if (!types)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the types of %d operands", node->arity);
    opq_status status = check_node(graph, ref, types);
    free(types);
    return status;
}

/* What the kernel takes from memory must be there before it starts. */
static opq_status check_reads(const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    for (int k = 0; k < node->arity && node->op != OPQ_OP_extern_result; k++) {
        opq_ref from = node->operand[k];
        if (!opq_operand_from_memory(node, k))
            continue;
        while (opq_node_class(opq_node_at(graph, from)) == OPQ_CLASS_VIEW && graph->nodes[from].kernel == node->kernel)
            from = opq_node_at(graph, from)->operand[0];
        bool block = graph->kernels[node->kernel].kind == OPQ_KERNEL_block; /* it makes its operand row by row */
        if (graph->nodes[from].kernel == node->kernel && !(block && k == 0 && opq_node_class(node) == OPQ_CLASS_MATMUL))
            return opq_fail(OPQ_INVALID, "kernel %s: %%%d takes %%%d from memory, which the same kernel makes",
                            graph->kernels[node->kernel].name, ref, from);
    }
    return OPQ_OK;
}

opq_status opq_kernels_verify(const opq_graph *graph)
{
    opq_ref free_from = 0;
    for (int k = 0; k < graph->kernel_count; k++) {
        const opq_kernel_group *kernel = &graph->kernels[k];
        if ((unsigned)kernel->kind >= OPQ_KERNEL_KIND_COUNT || !kernel->name || !opq_name_valid(kernel->name))
            return opq_fail(OPQ_INVALID, "kernel %d: no such kind or name", k);
        if (kernel->count < 1 || kernel->first < free_from || kernel->first > graph->count - kernel->count)
            return opq_fail(OPQ_INVALID, "kernel %s: %d nodes from %%%d overlap or leave the graph", kernel->name,
                            kernel->count, kernel->first);
        free_from = kernel->first + kernel->count;
        for (opq_ref n = kernel->first; n < free_from; n++)
            if (graph->nodes[n].kernel != k)
                return opq_fail(OPQ_INVALID, "kernel %s: %%%d does not know that it is in it", kernel->name, n);
        for (opq_ref n = kernel->first; n < free_from; n++)
            OPQ_TRY(check_reads(graph, n));
    }
    int grouped = 0, claimed = 0;
    for (opq_ref n = 0; n < graph->count; n++)
        claimed += graph->nodes[n].kernel != -1;
    for (int k = 0; k < graph->kernel_count; k++)
        grouped += graph->kernels[k].count;
    if (claimed != grouped)
        return opq_fail(OPQ_INVALID, "%d nodes name a kernel, %d are in one", claimed, grouped);
    return OPQ_OK;
}

opq_status opq_graph_verify(const opq_graph *graph)
{
    for (opq_ref n = 0; n < graph->count; n++) {
        opq_status status = opq_node_verify(graph, n);
        if (status != OPQ_OK)
            return opq_fail(status, "%%%d: %s", n, opq_error());
    }
    OPQ_TRY(opq_kernels_verify(graph));
    for (int i = 0; i < graph->output_count; i++)
        if (graph->outputs[i] < 0 || graph->outputs[i] >= graph->count)
            return opq_fail(OPQ_INVALID, "output %d: no node %%%d in a graph of %d", i, graph->outputs[i], graph->count);
    return OPQ_OK;
}
