/* Graphs as JSON, for tools that are not C. docs/ir.md documents it; `schema` and `version` head every document.
 *
 *   {"op": "sum", "dtype": "f32", "shape": [128,1], "operands": [3], "attrs": {"axes": [1], "tree": "lanes"}, "line": "model.py:12"}
 */
#include "graph/graph.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void opq_json_string(opq_text *text, const char *string)
{
    opq_text_bytes(text, "\"", 1);
    for (const char *c = string; *c; c++) {
        if (*c == '"' || *c == '\\')
            opq_text_add(text, "\\%c", *c);
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            opq_text_add(text, "\\u%04x", *c);
        else
            opq_text_bytes(text, c, 1);
    }
    opq_text_bytes(text, "\"", 1);
}

/* Decimal and exact, with a point in every locale. JSON has no infinities and no NaN: those are strings. */
void opq_json_float(opq_text *text, double value)
{
    char digits[40];
    bool pointed = false;
    if (!isfinite(value)) {
        opq_text_add(text, "\"%s\"", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    snprintf(digits, sizeof digits, "%.17g", value);
    for (const char *c = digits; *c; c++) {
        bool usual = (*c >= '0' && *c <= '9') || *c == '-' || *c == '+' || *c == 'e';
        if (usual || !pointed)
            opq_text_bytes(text, usual ? c : ".", 1);
        pointed = pointed || !usual;
    }
}

static void add_ints(opq_text *text, const int64_t *ints, int count)
{
    opq_text_bytes(text, "[", 1);
    for (int i = 0; i < count; i++)
        opq_text_add(text, "%s%" PRId64, i ? "," : "", ints[i]);
    opq_text_bytes(text, "]", 1);
}

static void add_refs(opq_text *text, const opq_ref *refs, int count)
{
    opq_text_bytes(text, "[", 1);
    for (int i = 0; i < count; i++)
        opq_text_add(text, "%s%d", i ? "," : "", refs[i]);
    opq_text_bytes(text, "]", 1);
}

static void add_attr(opq_text *text, const opq_attr *attr)
{
    opq_attr_key key = (opq_attr_key)attr->key;
    opq_text_add(text, "\"%s\": ", opq_attr_name(key));
    switch (opq_attr_kind_of(key)) {
    case OPQ_ATTR_KIND_INT: opq_text_add(text, "%" PRId64, attr->i); break;
    case OPQ_ATTR_KIND_INTS: add_ints(text, attr->ints, attr->count); break;
    case OPQ_ATTR_KIND_STR: opq_json_string(text, attr->str); break;
    case OPQ_ATTR_KIND_WORD: opq_json_string(text, opq_tree_name((opq_tree)attr->i)); break;
    case OPQ_ATTR_KIND_NUMBER:
        if (attr->is_int)
            opq_text_add(text, "%" PRId64, attr->number.i);
        else
            opq_json_float(text, attr->number.f);
        break;
    }
}

static void add_member(opq_text *text, const char *key, const char *value)
{
    opq_text_add(text, ", \"%s\": ", key);
    opq_json_string(text, value ? value : "");
}

/* What a call of the program recorded last: the node that stands for it. */
typedef struct call_node {
    uint32_t call;
    opq_ref node;
} call_node;
typedef struct call_list {
    call_node *items;
    int32_t count;
} call_list;

static int by_call(const void *a, const void *b)
{
    const call_node *x = a, *y = b;
    return x->call != y->call ? (x->call > y->call) - (x->call < y->call) : x->node - y->node;
}

/* False: no memory. */
static bool list_calls(const opq_graph *graph, call_list *out_calls)
{
    *out_calls = (call_list){.items = malloc(((size_t)graph->count + 1) * sizeof *out_calls->items)};
    for (opq_ref n = 0; n < graph->count && out_calls->items; n++) {
        const opq_provenance *p = opq_node_at(graph, n)->provenance;
        if (p && p->call)
            out_calls->items[out_calls->count++] = (call_node){p->call, n};
    }
    if (out_calls->items)
        qsort(out_calls->items, (size_t)out_calls->count, sizeof *out_calls->items, by_call);
    return out_calls->items != NULL;
}

static opq_ref last_node_of(const call_list *calls, uint32_t call)
{
    int32_t low = 0, high = calls->count; /* calls[low - 1] <= call < calls[high] */
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (calls->items[middle].call <= call)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && calls->items[low - 1].call == call ? calls->items[low - 1].node : -1;
}

static void add_origin(opq_text *text, const opq_node *node, const call_list *calls)
{
    const opq_provenance *p = node->provenance;
    add_member(text, "line", p ? p->part[OPQ_LINE_place] : node->line);
    if (p == NULL)
        return;
    add_member(text, "module", p->part[OPQ_LINE_module]);
    add_member(text, "source", p->part[OPQ_LINE_source]);
    add_member(text, "library", p->part[OPQ_LINE_library]);
    add_member(text, "recorded", opq_op_info_of(p->op)->name);
    opq_text_add(text, ", \"call\": %u", p->call);
    if (p->forward)
        opq_text_add(text, ", \"backward\": true");
    opq_ref forward = p->forward ? last_node_of(calls, p->forward) : -1;
    if (forward >= 0)
        opq_text_add(text, ", \"forward\": %d", forward);
}

static void add_node(opq_text *text, const opq_graph *graph, opq_ref ref, const call_list *calls, const bool *inlined)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_text line = {0};
    opq_text_add(text, "{\"op\": \"%s\", \"dtype\": \"%s\", \"shape\": ", opq_node_info(node)->name,
                 opq_dtype_name((opq_dtype)node->type.dtype));
    add_ints(text, node->type.size, node->type.rank);
    opq_text_add(text, ", \"operands\": ");
    add_refs(text, node->operand, node->arity);
    opq_text_add(text, ", \"attrs\": {");
    for (int i = 0; i < node->attr_count; i++) {
        opq_text_add(text, "%s", i ? ", " : "");
        add_attr(text, &node->attr[i]);
    }
    opq_text_add(text, "}, \"bytes\": %" PRId64 ", \"kernel\": %d", opq_type_bytes(&node->type), node->kernel);
    if (node->op == OPQ_OP_input)
        add_member(text, "name", node->line);
    else
        add_origin(text, node, calls);
    opq_text_node(&line, graph, ref, inlined);
    opq_text_add(text, ", \"text\": ");
    opq_json_string(text, line.data ? line.data : "");
    opq_text_bytes(text, "}", 1);
    text->failed = text->failed || line.failed;
    opq_text_drop(&line);
}

void opq_json_begin(opq_text *text, const opq_graph *graph)
{
    call_list calls = {0};
    bool *inlined = opq_text_inlined(graph);
    if (inlined == NULL || !list_calls(graph, &calls)) {
        text->failed = true;
        free(inlined);
        return;
    }
    opq_text_add(text, "{\"schema\": \"opaque.graph\", \"version\": 1, \"name\": ");
    opq_json_string(text, graph->name);
    opq_text_add(text, ",\n\"nodes\": [");
    for (opq_ref n = 0; n < graph->count; n++) {
        opq_text_add(text, n ? ",\n" : "\n");
        add_node(text, graph, n, &calls, inlined);
    }
    free(calls.items);
    free(inlined);
    opq_text_add(text, "],\n\"outputs\": ");
    add_refs(text, graph->outputs, graph->output_count);
}

void opq_json_kernel(opq_text *text, const opq_graph *graph, int32_t kernel)
{
    opq_text_add(text, "\n{\"kind\": \"%s\", \"name\": ", opq_kernel_kind_name(graph->kernels[kernel].kind));
    opq_json_string(text, graph->kernels[kernel].name);
}

opq_status opq_graph_json(const opq_graph *graph, char **out_text)
{
    opq_text text = {0};
    opq_json_begin(&text, graph);
    opq_text_add(&text, ",\n\"kernels\": [");
    for (int32_t k = 0; k < graph->kernel_count; k++) {
        opq_text_add(&text, k ? "," : "");
        opq_json_kernel(&text, graph, k);
        opq_text_add(&text, "}");
    }
    opq_text_add(&text, "], \"unfused\": []}\n");
    return opq_text_take(&text, out_text);
}
