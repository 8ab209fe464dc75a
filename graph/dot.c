/* A graph in Graphviz's language: boxes are ops, edges are values with their types, clusters are kernels. */
#include "graph/graph.h"

#include <string.h>

/* Inside a quoted string. */
static void add_escaped(opq_text *text, const char *from, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (from[i] == '"' || from[i] == '\\')
            opq_text_bytes(text, "\\", 1);
        opq_text_bytes(text, from + i, 1);
    }
}

static void add_node(opq_text *text, const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_text attrs = {0};
    opq_text_add(text, "  n%d [label=\"%%%d %s", ref, ref, opq_node_info(node)->name);
    opq_text_attrs(&attrs, node);
    if (attrs.length) {
        opq_text_add(text, "\\n{");
        add_escaped(text, attrs.data, attrs.length);
        opq_text_add(text, "}");
    }
    if (node->line) {
        opq_text_add(text, "\\n");
        add_escaped(text, node->line, strlen(node->line));
    }
    opq_text_add(text, "\"%s];\n", node->op == OPQ_OP_input ? ", style=rounded" : "");
    text->failed = text->failed || attrs.failed;
    opq_text_drop(&attrs);
}

static void add_edge(opq_text *text, const opq_graph *graph, opq_ref from, const char *to, int number)
{
    opq_text_add(text, "  n%d -> %s%d [label=\"", from, to, number);
    opq_text_type(text, &opq_node_at(graph, from)->type);
    opq_text_add(text, "\"];\n");
}

opq_status opq_graph_dot(const opq_graph *graph, char **out_text)
{
    opq_text text = {0};
    const opq_kernel_group *kernel = graph->kernels, *kernels_end = kernel + graph->kernel_count;
    opq_text_add(&text, "digraph opaque {\n  node [shape=box, fontname=\"monospace\"];\n");
    for (opq_ref n = 0; n < graph->count; n++) {
        if (kernel != kernels_end && kernel->first == n)
            opq_text_add(&text, "  subgraph cluster_%d {\n  label=\"%s %s\";\n", (int)(kernel - graph->kernels),
                         opq_kernel_kind_name(kernel->kind), kernel->name);
        add_node(&text, graph, n);
        if (kernel != kernels_end && kernel->first + kernel->count == n + 1) {
            opq_text_add(&text, "  }\n");
            kernel++;
        }
    }
    for (opq_ref n = 0; n < graph->count; n++)
        for (int k = 0; k < opq_node_at(graph, n)->arity; k++)
            add_edge(&text, graph, opq_node_at(graph, n)->operand[k], "n", n);
    for (int i = 0; i < graph->output_count; i++) {
        opq_text_add(&text, "  out%d [label=\"output %d\", style=rounded];\n", i, i);
        add_edge(&text, graph, graph->outputs[i], "out", i);
    }
    opq_text_add(&text, "}\n");
    return opq_text_take(&text, out_text);
}
