/* The cone of some values: every pending ancestor, in record order; its canonical key; its graph.
 *
 * Leaves and scalars are numbered by first use, so that two iterations of a loop whose tensors were made in another order are the same
 * graph. A value that a live cell holds is stored with what was asked for: else a loop x = f(x) would grow by one f at each look.
 */
#include "opaque/context.h"

#include <stdlib.h>
#include <string.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory while collecting the graph"); }

static opq_status push(opq_value ***list, int *count, int *capacity, opq_value *value)
{
    if (*count == *capacity) {
        int grown = *capacity ? *capacity * 2 : 128;
        opq_value **moved = realloc(*list, (size_t)grown * sizeof *moved);
        if (moved == NULL)
            return out_of_memory();
        *list = moved;
        *capacity = grown;
    }
    (*list)[(*count)++] = value;
    return OPQ_OK;
}

static int by_sequence(const void *a, const void *b)
{
    uint64_t x = (*(opq_value *const *)a)->sequence, y = (*(opq_value *const *)b)->sequence;
    return (x > y) - (x < y);
}

/* Depth first with a stack of our own; the order comes from the sequence numbers afterwards. */
static opq_status walk(opq_ctx *ctx, opq_value *const *values, int count, opq_cone *cone)
{
    opq_value **stack = NULL;
    int depth = 0, capacity = 0;
    opq_status status = OPQ_OK;
    uint64_t mark = ++ctx->mark;
    for (int i = 0; i < count && status == OPQ_OK; i++)
        status = push(&stack, &depth, &capacity, values[i]);
    while (depth > 0 && status == OPQ_OK) {
        opq_value *value = stack[--depth];
        if (value->mark == mark || value->state != OPQ_VALUE_pending || value->op == OPQ_OP_scalar)
            continue;
        value->mark = mark;
        status = push(&cone->nodes, &cone->node_count, &cone->node_capacity, value);
        for (int k = value->arity - 1; k >= 0 && status == OPQ_OK; k--)
            status = push(&stack, &depth, &capacity, value->operands[k]);
    }
    free(stack);
    bool sorted = true;
    for (int i = 1; i < cone->node_count; i++)
        sorted = sorted && cone->nodes[i - 1]->sequence < cone->nodes[i]->sequence;
    if (!sorted)
        qsort(cone->nodes, (size_t)cone->node_count, sizeof *cone->nodes, by_sequence);
    return status;
}

/* What depends on a failed value fails with it; the rest of the cone goes on. */
static opq_status drop_failed(opq_ctx *ctx, opq_value *const *values, int count, opq_cone *cone)
{
    const opq_value *cause = NULL;
    uint64_t bad = ++ctx->mark;
    int kept = 0;
    for (int i = 0; i < cone->node_count; i++) {
        opq_value *node = cone->nodes[i];
        bool failed = false;
        for (int k = 0; k < node->arity; k++) {
            const opq_value *operand = node->operands[k];
            if (operand->state == OPQ_VALUE_failed)
                cause = operand;
            failed = failed || operand->state == OPQ_VALUE_failed ||
                     (operand->mark == bad && operand->state == OPQ_VALUE_pending);
        }
        if (failed)
            node->mark = bad;
        else
            cone->nodes[kept++] = node;
    }
    cone->node_count = kept;
    for (int i = 0; i < count; i++) {
        if (values[i]->state == OPQ_VALUE_failed)
            cause = values[i];
        if (cause &&
            (values[i]->state == OPQ_VALUE_failed || (values[i]->mark == bad && values[i]->state == OPQ_VALUE_pending)))
            return opq_fail(cause->error_status, "%s", cause->error);
    }
    return OPQ_OK;
}

static bool is_requested(opq_value *const *values, int count, const opq_value *value)
{
    for (int i = 0; i < count; i++)
        if (values[i] == value)
            return true;
    return false;
}

opq_status opq_cone_collect(opq_ctx *ctx, opq_value *const *values, int count, opq_cone *cone)
{
    memset(cone, 0, sizeof *cone);
    OPQ_TRY(walk(ctx, values, count, cone));
    OPQ_TRY(drop_failed(ctx, values, count, cone));
    for (int i = 0; i < cone->node_count; i++) {
        opq_value *node = cone->nodes[i];
        node->number = i;
        bool wanted = node->holders != NULL || (count <= 64 && is_requested(values, count, node));
        if (wanted && node->op != OPQ_OP_extern)
            OPQ_TRY(push(&cone->outputs, &cone->output_count, &cone->output_capacity, node));
    }
    for (int i = 0; count > 64 && i < count; i++) /* many: all of them held by cells (synchronize) or few enough above */
        if (values[i]->state == OPQ_VALUE_pending && values[i]->holders == NULL)
            OPQ_TRY(push(&cone->outputs, &cone->output_count, &cone->output_capacity, values[i]));
    uint64_t seen = ++ctx->mark;
    for (int i = 0; i < cone->node_count; i++)
        for (int k = 0; k < cone->nodes[i]->arity; k++) {
            opq_value *operand = cone->nodes[i]->operands[k];
            if (operand->mark == seen || (operand->state == OPQ_VALUE_pending && operand->op != OPQ_OP_scalar))
                continue;
            operand->mark = seen;
            if (operand->state == OPQ_VALUE_computed) {
                operand->number = cone->leaf_count;
                OPQ_TRY(push(&cone->leaves, &cone->leaf_count, &cone->leaf_capacity, operand));
            } else {
                operand->number = cone->scalar_count;
                OPQ_TRY(push(&cone->scalars, &cone->scalar_count, &cone->scalar_capacity, operand));
            }
        }
    return OPQ_OK;
}

/* ---- key */

static opq_status add_bytes(opq_cone *cone, const void *data, size_t bytes)
{
    if (cone->key_bytes + bytes > cone->key_capacity) {
        size_t capacity = cone->key_capacity ? cone->key_capacity * 2 : 16384;
        while (capacity < cone->key_bytes + bytes)
            capacity *= 2;
        unsigned char *grown = realloc(cone->key, capacity);
        if (grown == NULL)
            return out_of_memory();
        cone->key = grown;
        cone->key_capacity = capacity;
    }
    memcpy(cone->key + cone->key_bytes, data, bytes);
    cone->key_bytes += bytes;
    return OPQ_OK;
}

static opq_status add_attrs(opq_cone *cone, const opq_value *value)
{
    for (int i = 0; i < value->attr_count; i++) {
        const opq_attr *attr = &value->attrs[i];
        int32_t head[2] = {attr->key, attr->count};
        OPQ_TRY(add_bytes(cone, head, sizeof head));
        switch (opq_attr_kind_of((opq_attr_key)attr->key)) {
        case OPQ_ATTR_KIND_INTS: OPQ_TRY(add_bytes(cone, attr->ints, (size_t)attr->count * sizeof *attr->ints)); break;
        case OPQ_ATTR_KIND_STR: OPQ_TRY(add_bytes(cone, attr->str, strlen(attr->str) + 1)); break;
        case OPQ_ATTR_KIND_INT:
        case OPQ_ATTR_KIND_WORD:
        case OPQ_ATTR_KIND_NUMBER: OPQ_TRY(add_bytes(cone, &attr->i, sizeof attr->i)); break;
        }
    }
    return OPQ_OK;
}

/* Which set an operand is in and its number there; scalars carry their dtype, leaves get their types at the end. */
static int32_t operand_code(const opq_value *operand)
{
    if (operand->state == OPQ_VALUE_computed)
        return operand->number * 4 + 1;
    if (operand->op == OPQ_OP_scalar)
        return operand->number * 4 + 2;
    return operand->number * 4;
}

opq_status opq_cone_key(opq_cone *cone, unsigned salt)
{
    int32_t head[5] = {(int32_t)salt, cone->node_count, cone->leaf_count, cone->scalar_count, cone->output_count};
    OPQ_TRY(add_bytes(cone, head, sizeof head));
    for (int i = 0; i < cone->node_count; i++) {
        const opq_value *node = cone->nodes[i];
        int32_t fixed[4] = {node->op | node->attr_count << 16, node->arity, node->type.dtype, node->type.rank};
        OPQ_TRY(add_bytes(cone, fixed, sizeof fixed));
        OPQ_TRY(add_bytes(cone, node->type.size, (size_t)node->type.rank * sizeof *node->type.size));
        for (int k = 0; k < node->arity; k++) {
            int32_t code = operand_code(node->operands[k]);
            OPQ_TRY(add_bytes(cone, &code, sizeof code));
        }
        OPQ_TRY(add_attrs(cone, node));
    }
    for (int i = 0; i < cone->leaf_count; i++) {
        const opq_type *type = &cone->leaves[i]->type;
        int32_t fixed[2] = {type->dtype, type->rank};
        OPQ_TRY(add_bytes(cone, fixed, sizeof fixed));
        OPQ_TRY(add_bytes(cone, type->size, (size_t)type->rank * sizeof *type->size));
    }
    for (int i = 0; i < cone->scalar_count; i++)
        OPQ_TRY(add_bytes(cone, &cone->scalars[i]->type.dtype, sizeof cone->scalars[i]->type.dtype));
    for (int i = 0; i < cone->output_count; i++)
        OPQ_TRY(add_bytes(cone, &cone->outputs[i]->number, sizeof cone->outputs[i]->number));
    return OPQ_OK;
}

/* ---- graph */

static const char *line_text(opq_ctx *ctx, uint32_t line, char *out, size_t size)
{
    if (line == 0 || ctx->host.line_text == NULL)
        return NULL;
    size_t length = ctx->host.line_text(ctx->host.self, line, out, size);
    return length > 0 && length < size ? out : NULL;
}

static opq_status add_leaves(const opq_cone *cone, opq_graph *graph, opq_ref *refs, opq_ref *scalar_refs)
{
    for (int i = 0; i < cone->leaf_count; i++)
        OPQ_TRY(opq_graph_input(graph, &cone->leaves[i]->type, &refs[i]));
    for (int i = 0; i < cone->scalar_count; i++) {
        const opq_value *scalar = cone->scalars[i];
        opq_number value = scalar->scalar;
        OPQ_TRY(opq_number_fit("scalar", (opq_dtype)scalar->type.dtype, &value));
        opq_attr attr = {.key = OPQ_ATTR_value,
                         .is_int = opq_dtype_kind_of((opq_dtype)scalar->type.dtype) != OPQ_KIND_FLOAT,
                         .number = value};
        opq_type type = scalar->type;
        type.weak = 0;
        opq_node node = {
            .op = OPQ_OP_scalar, .attr = &attr, .attr_count = 1, .type = type, .payload = (void *)(intptr_t)(i + 1)};
        OPQ_TRY(opq_graph_append(graph, &node, &scalar_refs[i]));
    }
    return OPQ_OK;
}

static opq_status add_nodes(opq_ctx *ctx, const opq_cone *cone, opq_graph *graph, opq_ref *node_refs,
                            const opq_ref *leaf_refs, const opq_ref *scalar_refs)
{
    opq_status status = OPQ_OK;
    opq_ref *operands = NULL;
    int widest = 0;
    for (int i = 0; i < cone->node_count && status == OPQ_OK; i++) {
        const opq_value *value = cone->nodes[i];
        char line[256];
        if (value->arity > widest) {
            widest = value->arity;
            free(operands);
            operands = malloc((size_t)widest * sizeof *operands);
            if (operands == NULL)
                return out_of_memory();
        }
        for (int k = 0; k < value->arity; k++) {
            const opq_value *operand = value->operands[k];
            operands[k] = operand->state == OPQ_VALUE_computed ? leaf_refs[operand->number]
                          : operand->op == OPQ_OP_scalar       ? scalar_refs[operand->number]
                                                               : node_refs[operand->number];
        }
        opq_node node = {.op = value->op,
                         .arity = value->arity,
                         .operand = operands,
                         .attr = value->attrs,
                         .attr_count = value->attr_count,
                         .type = value->type,
                         .line = line_text(ctx, value->line, line, sizeof line),
                         .payload = value->op == OPQ_OP_extern ? value->payload : NULL};
        status = opq_graph_append(graph, &node, &node_refs[i]);
    }
    free(operands);
    return status;
}

opq_status opq_cone_graph(opq_ctx *ctx, const opq_cone *cone, const char *name, opq_graph **out_graph)
{
    size_t count = (size_t)cone->node_count + (size_t)cone->leaf_count + (size_t)cone->scalar_count + 1;
    opq_graph *graph = NULL;
    OPQ_TRY(opq_graph_create(name, &graph));
    opq_ref *refs = malloc(count * sizeof *refs);
    opq_status status = refs ? OPQ_OK : out_of_memory();
    opq_ref *leaf_refs = refs + cone->node_count, *scalar_refs = leaf_refs + cone->leaf_count;
    if (status == OPQ_OK)
        status = add_leaves(cone, graph, leaf_refs, scalar_refs);
    if (status == OPQ_OK)
        status = add_nodes(ctx, cone, graph, refs, leaf_refs, scalar_refs);
    for (int i = 0; status == OPQ_OK && i < cone->output_count; i++)
        status = opq_graph_output(graph, refs[cone->outputs[i]->number]);
    free(refs);
    if (status != OPQ_OK) {
        opq_graph_destroy(graph);
        return status;
    }
    *out_graph = graph;
    return OPQ_OK;
}

void opq_cone_drop(opq_cone *cone)
{
    free(cone->nodes);
    free(cone->leaves);
    free(cone->scalars);
    free(cone->outputs);
    free(cone->key);
}
