/* A compiler that goes wrong. OPQ_BROKEN="WAY OP [OP]": it does where a node of the (first) OP is read by one of the second, in
 * the graph with its composite ops expanded.
 *
 *   value   that node's result is a little too large
 *   fail    compiling fails
 *   crash   the process ends by SIGSEGV
 *   hang    compiling never ends
 */
#include "graph/graph.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

opq_status __real_opq_compile(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, opq_program **out_program);
opq_status __wrap_opq_compile(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, opq_program **out_program);

typedef struct broken {
    char way[8], op[32], reader[32];
} broken;

static bool is_op(const opq_graph *graph, opq_ref n, const char *name)
{
    return strcmp(opq_node_info(opq_node_at(graph, n))->name, name) == 0;
}

/* Is this the node whose result is wrong? */
static bool is_broken(const broken *b, const opq_graph *graph, opq_ref n)
{
    const opq_node *node = opq_node_at(graph, n);
    if (!*b->reader)
        return is_op(graph, n, b->op);
    for (int k = 0; k < node->arity && is_op(graph, n, b->reader); k++)
        if (is_op(graph, node->operand[k], b->op))
            return true;
    return false;
}

static opq_status enlarge(opq_graph *graph, opq_ref *ref)
{
    opq_ref operands[2] = {*ref};
    OPQ_TRY(opq_graph_const(graph, (opq_dtype)opq_graph_type(graph, *ref).dtype, (opq_number){.f = 1.001}, &operands[1]));
    return opq_graph_op(graph, OPQ_OP_mul, operands, 2, NULL, 0, ref);
}

static opq_status go_wrong(const broken *b)
{
    if (strcmp(b->way, "crash") == 0)
        raise(SIGSEGV);
    if (strcmp(b->way, "hang") == 0)
        for (;;)
            pause();
    return strcmp(b->way, "fail") == 0 ? opq_fail(OPQ_INTERNAL, "broken: %s", b->op) : OPQ_OK;
}

static opq_status rewrite(const broken *b, const opq_graph *graph, opq_graph *out, opq_ref *renamed)
{
    for (opq_ref n = 0; n < graph->count; n++) {
        OPQ_TRY(opq_graph_copy_node(out, graph, n, renamed, &renamed[n]));
        if (!is_broken(b, graph, n))
            continue;
        OPQ_TRY(go_wrong(b));
        if (strcmp(b->way, "value") == 0)
            OPQ_TRY(enlarge(out, &renamed[n]));
    }
    for (int i = 0; i < graph->output_count; i++)
        OPQ_TRY(opq_graph_output(out, renamed[graph->outputs[i]]));
    return OPQ_OK;
}

opq_status __wrap_opq_compile(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, opq_program **out_program)
{
    broken b = {0};
    const char *how = getenv("OPQ_BROKEN");
    opq_graph *expanded = NULL, *changed = NULL;
    if (how == NULL || sscanf(how, "%7s %31s %31s", b.way, b.op, b.reader) < 2)
        abort();
    OPQ_TRY(opq_graph_passes(graph, "expand", &expanded));
    opq_ref *renamed = calloc((size_t)expanded->count + 1, sizeof *renamed);
    opq_status status = renamed ? opq_graph_create(graph->name, &changed) : OPQ_NO_MEMORY;
    if (status == OPQ_OK)
        status = rewrite(&b, expanded, changed, renamed);
    if (status == OPQ_OK)
        status = __real_opq_compile(ctx, changed, fusion, out_program);
    opq_graph_destroy(expanded);
    opq_graph_destroy(changed);
    free(renamed);
    return status;
}
