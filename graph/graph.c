/* Graphs: nodes and lists in growable arrays, the rest, the graph itself too, in its arena. Appending, copying, reading.
 * The checked way in, which infers types and inserts casts, is build.c. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static opq_status no_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph"); }

bool opq_name_valid(const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_' && c != '.' && c != '-')
            return false;
    }
    return length > 0 && length < 256;
}

/* ---- arrays: the first elements are in the arena, so that a small graph is one block of it; more are the C library's */

enum { FEW = 16 };

static void drop(void *array, int32_t capacity)
{
    if (capacity > FEW)
        free(array);
}

static size_t bytes_of(int32_t capacity, size_t bytes) { return capacity > FEW ? (size_t)capacity * bytes : 0; }

/* Room for one more element of `bytes` bytes. */
static opq_status grow(opq_graph *graph, void **array, int32_t count, int32_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return OPQ_OK;
    if (count > INT32_MAX / 2)
        return opq_fail(OPQ_UNSUPPORTED, "a graph of more than %d nodes", count);
    int32_t more = *capacity ? *capacity * 2 : FEW;
    void *moved = *capacity == 0 ? opq_arena_room(&graph->arena, (size_t)more * bytes)
                                 : realloc(*capacity > FEW ? *array : NULL, (size_t)more * bytes);
    if (!moved)
        return no_memory();
    if (*capacity == FEW)
        memcpy(moved, *array, (size_t)count * bytes);
    *array = moved;
    *capacity = more;
    return OPQ_OK;
}

/* ---- graphs */

opq_status opq_graph_create(const char *name, opq_graph **out_graph)
{
    if (!name || !opq_name_valid(name))
        return opq_fail(OPQ_INVALID, "a graph cannot be named '%s'", name ? name : "");
    opq_arena arena = {0};
    opq_graph *graph = opq_arena_alloc(&arena, sizeof *graph); /* in the first block of its own arena */
    char *copy = opq_arena_text(&arena, name);
    if (!graph || !copy) {
        opq_arena_drop(&arena);
        return no_memory();
    }
    *graph = (opq_graph){.name = copy, .arena = arena};
    *out_graph = graph;
    return OPQ_OK;
}

void opq_graph_destroy(opq_graph *graph)
{
    if (!graph)
        return;
    drop(graph->nodes, graph->capacity);
    drop(graph->outputs, graph->output_capacity);
    drop(graph->kernels, graph->kernel_capacity);
    opq_arena arena = graph->arena;
    opq_arena_drop(&arena);
}

size_t opq_graph_bytes(const opq_graph *graph)
{
    return bytes_of(graph->capacity, sizeof *graph->nodes) + bytes_of(graph->output_capacity, sizeof *graph->outputs) +
           bytes_of(graph->kernel_capacity, sizeof *graph->kernels) + opq_arena_bytes(&graph->arena);
}

/* ---- appending */

static opq_status copy_attrs(opq_graph *graph, opq_node *node)
{
    if (!node->attr_count) {
        node->attr = NULL;
        return OPQ_OK;
    }
    opq_attr *attrs = opq_arena_copy(&graph->arena, node->attr, node->attr_count * sizeof *attrs);
    if (!attrs)
        return no_memory();
    for (int i = 0; i < node->attr_count; i++) {
        opq_attr_kind kind = opq_attr_kind_of((opq_attr_key)attrs[i].key);
        if (kind == OPQ_ATTR_KIND_INTS) {
            attrs[i].ints = opq_arena_copy(&graph->arena, attrs[i].ints, (size_t)attrs[i].count * sizeof *attrs[i].ints);
            if (!attrs[i].ints)
                return no_memory();
        }
        if (kind == OPQ_ATTR_KIND_STR) {
            attrs[i].str = opq_arena_text(&graph->arena, attrs[i].str);
            if (!attrs[i].str)
                return no_memory();
        }
    }
    node->attr = attrs;
    return OPQ_OK;
}

/* A line is printed as a comment and must stay one. */
static opq_status copy_line(opq_graph *graph, const char *line, const char **out_line)
{
    *out_line = NULL;
    if (!line || !*line)
        return OPQ_OK;
    char *copy = opq_arena_text(&graph->arena, line);
    if (!copy)
        return no_memory();
    for (char *c = copy; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    *out_line = copy;
    return OPQ_OK;
}

opq_status opq_graph_copy_origin(opq_graph *graph, const opq_node *node, const char **out_line,
                                 const opq_provenance **out_provenance)
{
    *out_provenance = NULL;
    OPQ_TRY(copy_line(graph, node->line, out_line));
    if (node->provenance == NULL)
        return OPQ_OK;
    opq_provenance *copy = opq_arena_copy(&graph->arena, node->provenance, sizeof *copy);
    if (!copy)
        return no_memory();
    for (int p = 0; p < OPQ_LINE_PARTS; p++)
        OPQ_TRY(copy_line(graph, copy->part[p], &copy->part[p]));
    *out_provenance = copy;
    return OPQ_OK;
}

opq_status opq_graph_append(opq_graph *graph, const opq_node *node, opq_ref *out_ref)
{
    opq_node copy = *node;
    copy.kernel = -1;
    OPQ_TRY(grow(graph, (void **)&graph->nodes, graph->count, &graph->capacity, sizeof *graph->nodes));
    copy.operand = opq_arena_copy(&graph->arena, node->operand, (size_t)node->arity * sizeof *node->operand);
    if (!copy.operand)
        return no_memory();
    OPQ_TRY(copy_attrs(graph, &copy));
    OPQ_TRY(opq_graph_copy_origin(graph, node, &copy.line, &copy.provenance));
    graph->nodes[graph->count] = copy;
    *out_ref = graph->count++;
    return OPQ_OK;
}

opq_status opq_graph_copy_node(opq_graph *graph, const opq_graph *in, opq_ref n, const opq_ref *renamed, opq_ref *out_ref)
{
    OPQ_TRY(opq_graph_append(graph, opq_node_at(in, n), out_ref));
    opq_ref *operand = (opq_ref *)graph->nodes[*out_ref].operand; /* ours since the append */
    for (int i = 0; i < graph->nodes[*out_ref].arity; i++)
        operand[i] = renamed[operand[i]];
    return OPQ_OK;
}

void opq_graph_keep(opq_graph *graph, const bool *kept, opq_ref *renamed)
{
    opq_ref count = 0;
    for (opq_ref n = 0; n < graph->count; n++) {
        if (!kept[n])
            continue;
        opq_ref *operand = (opq_ref *)graph->nodes[n].operand; /* ours since the append */
        for (int i = 0; i < graph->nodes[n].arity; i++)
            operand[i] = renamed[operand[i]];
        renamed[n] = count;
        if (count != n)
            graph->nodes[count] = graph->nodes[n];
        count++;
    }
    graph->count = count;
    for (int i = 0; i < graph->output_count; i++)
        graph->outputs[i] = renamed[graph->outputs[i]];
}

opq_status opq_graph_output(opq_graph *graph, opq_ref ref)
{
    if (ref < 0 || ref >= graph->count)
        return opq_fail(OPQ_INVALID, "output: no node %%%d in a graph of %d", ref, graph->count);
    OPQ_TRY(grow(graph, (void **)&graph->outputs, graph->output_count, &graph->output_capacity, sizeof *graph->outputs));
    graph->outputs[graph->output_count++] = ref;
    return OPQ_OK;
}

/* ---- kernels */

static const char *const kernel_kinds[OPQ_KERNEL_KIND_COUNT] = {
    [OPQ_KERNEL_map] = "map",     [OPQ_KERNEL_row] = "row",         [OPQ_KERNEL_column] = "column",
    [OPQ_KERNEL_index] = "index", [OPQ_KERNEL_matmul] = "matmul",   [OPQ_KERNEL_concat] = "concat",
    [OPQ_KERNEL_scan] = "scan",   [OPQ_KERNEL_update] = "update",   [OPQ_KERNEL_extern] = "extern",
    [OPQ_KERNEL_block] = "block", [OPQ_KERNEL_routine] = "routine",
};

const char *opq_kernel_kind_name(opq_kernel_kind kind) { return kernel_kinds[kind]; }

opq_status opq_graph_add_kernel(opq_graph *graph, opq_kernel_kind kind, const char *name, opq_ref first, int32_t count)
{
    opq_ref free_from = 0;
    if (graph->kernel_count) {
        const opq_kernel_group *last = &graph->kernels[graph->kernel_count - 1];
        free_from = last->first + last->count;
    }
    if (!opq_name_valid(name))
        return opq_fail(OPQ_INVALID, "a kernel cannot be named '%s'", name);
    if (count < 1 || first < free_from || first > graph->count - count)
        return opq_fail(OPQ_INVALID, "kernel %s: %d nodes from %%%d, but %%%d .. %%%d are free", name, count, first,
                        free_from, graph->count - 1);
    OPQ_TRY(grow(graph, (void **)&graph->kernels, graph->kernel_count, &graph->kernel_capacity, sizeof *graph->kernels));
    const char *copy = opq_arena_text(&graph->arena, name);
    if (!copy)
        return no_memory();
    for (opq_ref n = first; n < first + count; n++)
        graph->nodes[n].kernel = graph->kernel_count;
    graph->kernels[graph->kernel_count++] = (opq_kernel_group){kind, first, count, copy};
    return OPQ_OK;
}

/* ---- reading */

opq_type opq_graph_type(const opq_graph *graph, opq_ref ref) { return graph->nodes[ref].type; }

int opq_graph_input_count(const opq_graph *graph)
{
    int count = 0;
    for (opq_ref n = 0; n < graph->count; n++)
        count += opq_node_class(&graph->nodes[n]) == OPQ_CLASS_INPUT;
    return count;
}

int opq_graph_output_count(const opq_graph *graph) { return graph->output_count; }

/* NULL: there are fewer. */
static opq_node *input_of(const opq_graph *graph, int index)
{
    for (opq_ref n = 0; n < graph->count; n++)
        if (opq_node_class(&graph->nodes[n]) == OPQ_CLASS_INPUT && index-- == 0)
            return &graph->nodes[n];
    return NULL;
}

opq_type opq_graph_input_type(const opq_graph *graph, int index)
{
    const opq_node *input = input_of(graph, index);
    return input ? input->type : (opq_type){0};
}

opq_status opq_graph_name_input(opq_graph *graph, int index, const char *name)
{
    opq_node *input = input_of(graph, index);
    if (input == NULL)
        return opq_fail(OPQ_INVALID, "graph %s has no input %d", graph->name, index);
    return copy_line(graph, name, &input->line);
}

opq_type opq_graph_output_type(const opq_graph *graph, int index) { return graph->nodes[graph->outputs[index]].type; }
