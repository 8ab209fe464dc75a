/* Named passes over graphs, for opq-opt, tests and inspection; the compiler runs the same ones. */
#include "fusion/pass.h"

#include <string.h>

opq_ref opq_strip_reshape(const opq_graph *graph, opq_ref ref)
{
    while (opq_node_at(graph, ref)->op == OPQ_OP_reshape)
        ref = opq_node_at(graph, ref)->operand[0];
    return ref;
}

bool opq_window_overlaps(const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    return node->op == OPQ_OP_strided &&
           opq_type_count(&node->type) > opq_type_count(&opq_node_at(graph, node->operand[0])->type);
}

static opq_status run_pass(const char *name, size_t length, const opq_graph *in, opq_graph *out)
{
    static const struct {
        const char *name;
        opq_status (*run)(const opq_graph *, opq_graph *);
    } simple[] = {
        {"expand", opq_pass_expand},
        {"simplify", opq_pass_simplify},
    };
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (strlen(simple[i].name) == length && memcmp(simple[i].name, name, length) == 0)
            return simple[i].run(in, out);
    if (length == 5 && memcmp(name, "group", 5) == 0)
        return opq_pass_group(in, OPQ_FUSED, out, NULL);
    if (length == 7 && memcmp(name, "unfused", 7) == 0)
        return opq_pass_group(in, OPQ_UNFUSED, out, NULL);
    return opq_fail(OPQ_INVALID, "no pass is called \"%.*s\"; there are expand, simplify, group, unfused", (int)length,
                    name);
}

opq_status opq_graph_passes(const opq_graph *graph, const char *passes, opq_graph **out_graph)
{
    opq_graph *current = NULL;
    opq_status status = opq_graph_verify(graph);
    for (const char *at = passes; status == OPQ_OK && *at;) {
        size_t length = strcspn(at, ",");
        opq_graph *next = NULL;
        status = opq_graph_create(graph->name, &next);
        if (status == OPQ_OK)
            status = run_pass(at, length, current ? current : graph, next);
        if (status == OPQ_OK)
            status = opq_graph_verify(next);
        opq_graph_destroy(current);
        current = next;
        at += length + (at[length] == ',');
    }
    if (status == OPQ_OK && current == NULL)
        status = opq_fail(OPQ_INVALID, "no pass given");
    if (status != OPQ_OK) {
        opq_graph_destroy(current);
        return status;
    }
    *out_graph = current;
    return OPQ_OK;
}
