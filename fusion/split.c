/* A kernel that cannot be made becomes one of each of its nodes, and of each view in it: these read memory alone, so they always can. All
 * other kernels stay as they are.
 *
 *   kernel 3: mul, pad, exp, sum     ->     kernels 3 to 6
 *   kernel 4                         ->     kernel 7
 */
#include "fusion/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct splitter {
    const opq_graph *in;
    int32_t kernel;
    opq_graph *part, *single, *out; /* the kernel's nodes as a graph; the same with a kernel for each; all */
    opq_ref *to_part, *to_out;      /* per node of `in`, -1 */
    opq_ref *to_single;             /* per node of `part` */
    opq_ref *from_single;           /* per node of `single`: in `out` */
    opq_ref *outside;               /* what stands before the kernels of `single`: in `in` */
    int32_t outside_count;
} splitter;

static bool is_number(const opq_node *node)
{
    return node->kernel < 0 && (opq_node_class(node) == OPQ_CLASS_CONST || opq_node_class(node) == OPQ_CLASS_SCALAR);
}

bool opq_kernel_splits(const opq_graph *fused, int32_t kernel)
{
    const opq_kernel_group *group = &fused->kernels[kernel];
    int count = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        count += opq_node_class(opq_node_at(fused, n)) != OPQ_CLASS_IOTA;
    return count > 1 && group->kind != OPQ_KERNEL_extern;
}

/* A value that the kernel takes from outside is an input of its graph, a number is itself. */
static opq_status take_outside(splitter *s, opq_ref ref)
{
    const opq_node *node = opq_node_at(s->in, ref);
    if (s->to_part[ref] >= 0)
        return OPQ_OK;
    s->outside[s->outside_count++] = ref;
    return is_number(node) ? opq_graph_append(s->part, node, &s->to_part[ref])
                           : opq_graph_input(s->part, &node->type, &s->to_part[ref]);
}

static opq_status make_part(splitter *s)
{
    const opq_kernel_group *group = &s->in->kernels[s->kernel];
    opq_ref end = group->first + group->count;
    for (opq_ref n = group->first; n < end; n++)
        for (int k = 0; k < opq_node_at(s->in, n)->arity; k++) {
            opq_ref operand = opq_node_at(s->in, n)->operand[k];
            if (operand < group->first || operand >= end)
                OPQ_TRY(take_outside(s, operand));
        }
    for (opq_ref n = group->first; n < end; n++)
        OPQ_TRY(opq_graph_copy_node(s->part, s->in, n, s->to_part, &s->to_part[n]));
    for (opq_ref n = group->first; n < end; n++) /* all of them: a kernel for each */
        OPQ_TRY(opq_graph_output(s->part, s->to_part[n]));
    return OPQ_OK;
}

static opq_status copy_kernel(splitter *s, const opq_graph *from, int32_t kernel, const char *name, opq_ref *renamed)
{
    const opq_kernel_group *group = &from->kernels[kernel];
    opq_ref first = s->out->count;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        OPQ_TRY(opq_graph_copy_node(s->out, from, n, renamed, &renamed[n]));
    return opq_graph_add_kernel(s->out, group->kind, name, first, group->count);
}

static opq_status copy_single(splitter *s)
{
    const opq_kernel_group *group = &s->in->kernels[s->kernel];
    char name[240];
    for (int32_t i = 0; i < s->outside_count; i++)
        s->from_single[s->to_single[s->to_part[s->outside[i]]]] = s->to_out[s->outside[i]];
    for (int32_t k = 0; k < s->single->kernel_count; k++) {
        snprintf(name, sizeof name, "%.160s.%.70s", group->name, s->single->kernels[k].name);
        OPQ_TRY(copy_kernel(s, s->single, k, name, s->from_single));
    }
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        s->to_out[n] = s->from_single[s->to_single[s->to_part[n]]];
    return OPQ_OK;
}

/* Between the kernels stand inputs, numbers, and reshapes of outputs. */
static opq_status copy_all(splitter *s)
{
    for (opq_ref n = 0; n < s->in->count; n++) {
        int32_t kernel = opq_node_at(s->in, n)->kernel;
        if (kernel < 0) {
            OPQ_TRY(opq_graph_copy_node(s->out, s->in, n, s->to_out, &s->to_out[n]));
            continue;
        }
        if (kernel == s->kernel)
            OPQ_TRY(copy_single(s));
        else
            OPQ_TRY(copy_kernel(s, s->in, kernel, s->in->kernels[kernel].name, s->to_out));
        n = s->in->kernels[kernel].first + s->in->kernels[kernel].count - 1;
    }
    for (int i = 0; i < s->in->output_count; i++)
        OPQ_TRY(opq_graph_output(s->out, s->to_out[s->in->outputs[i]]));
    return OPQ_OK;
}

/* Edges have new ends, and those within the kernel are edges now. */
static opq_status renew_edges(const splitter *s, opq_unfused *edges)
{
    const opq_kernel_group *group = &s->in->kernels[s->kernel];
    int most = edges->count;
    for (int i = 0; i < edges->count; i++) {
        edges->edges[i].producer = s->to_out[edges->edges[i].producer];
        edges->edges[i].consumer = s->to_out[edges->edges[i].consumer];
    }
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        most += opq_node_at(s->in, n)->arity;
    opq_unfused_edge *grown = realloc(edges->edges, ((size_t)most + 1) * sizeof *grown);
    if (grown == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    edges->edges = grown;
    edges->capacity = most + 1;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        for (int k = 0; k < opq_node_at(s->in, n)->arity; k++) {
            opq_ref from = s->to_out[opq_node_at(s->in, n)->operand[k]], to = s->to_out[n];
            int32_t maker = opq_node_at(s->in, opq_node_at(s->in, n)->operand[k])->kernel;
            if (maker == s->kernel && opq_node_at(s->out, from)->kernel != opq_node_at(s->out, to)->kernel)
                grown[edges->count++] =
                    (opq_unfused_edge){.producer = from, .consumer = to, .refusal = OPQ_REFUSAL_not_made};
        }
    return OPQ_OK;
}

static opq_status split(splitter *s, opq_unfused *edges)
{
    const opq_kernel_group *group = &s->in->kernels[s->kernel];
    size_t count = (size_t)s->in->count + 1;
    int32_t operands = 1;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        operands += opq_node_at(s->in, n)->arity;
    s->to_part = malloc((2 * count + (size_t)operands) * sizeof *s->to_part);
    if (s->to_part == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    memset(s->to_part, 0xff, count * sizeof *s->to_part);
    s->to_out = s->to_part + count;
    s->outside = s->to_out + count;
    OPQ_TRY(opq_graph_create(s->in->name, &s->part));
    OPQ_TRY(make_part(s));
    OPQ_TRY(opq_graph_create(s->in->name, &s->single));
    s->to_single = malloc((size_t)s->part->count * 3 * sizeof *s->to_single);
    if (s->to_single == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    s->from_single = s->to_single + s->part->count;
    OPQ_TRY(opq_pass_single(s->part, s->single, s->to_single));
    OPQ_TRY(opq_graph_create(s->in->name, &s->out));
    OPQ_TRY(copy_all(s));
    return renew_edges(s, edges);
}

opq_status opq_split_kernel(const opq_graph *fused, int32_t kernel, opq_unfused *edges, opq_graph **out_graph)
{
    splitter s = {.in = fused, .kernel = kernel};
    opq_status status = split(&s, edges);
    free(s.to_part);
    free(s.to_single);
    opq_graph_destroy(s.part);
    opq_graph_destroy(s.single);
    if (status != OPQ_OK)
        opq_graph_destroy(s.out);
    else
        *out_graph = s.out;
    return status;
}
