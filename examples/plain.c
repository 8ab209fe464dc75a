/* A plain C program: builds y = relu(x @ w + b) row by row normalised, prints the graph, what it is fused to, runs it both ways
 * (machine code and the reference evaluator) and compares the bits. Links opaque, nothing of PyTorch.
 *
 *   find_package(Opaque REQUIRED)
 *   target_link_libraries(plain PRIVATE Opaque::opaque)
 */
#include "opaque/opaque.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, IN = 8, OUT = 16 };

/* y = r / (sum(r) + 1) over the last axis, r = relu(x @ w + b). */
static opq_status graph_build(opq_graph *g)
{
    const int64_t x_size[] = {ROWS, IN}, w_size[] = {IN, OUT}, b_size[] = {OUT}, last_axis[] = {1};
    const opq_type x_type = opq_type_make(OPQ_f32, 2, x_size);
    const opq_type w_type = opq_type_make(OPQ_f32, 2, w_size);
    const opq_type b_type = opq_type_make(OPQ_f32, 1, b_size);
    opq_ref x, w, b, product, sum, r, total, one, below, y;

    OPQ_TRY(opq_graph_input(g, &x_type, &x));
    OPQ_TRY(opq_graph_input(g, &w_type, &w));
    OPQ_TRY(opq_graph_input(g, &b_type, &b));
    OPQ_TRY(opq_graph_op(g, OPQ_OP_matmul, (opq_ref[]){x, w}, 2, NULL, 0, &product));
    OPQ_TRY(opq_graph_op(g, OPQ_OP_add, (opq_ref[]){product, b}, 2, NULL, 0, &sum));
    OPQ_TRY(opq_graph_op(g, OPQ_OP_relu, &sum, 1, NULL, 0, &r));

    const opq_attr axes = {.key = OPQ_ATTR_axes, .count = 1, .ints = last_axis};
    OPQ_TRY(opq_graph_op(g, OPQ_OP_sum, &r, 1, &axes, 1, &total));
    OPQ_TRY(opq_graph_scalar(g, OPQ_f32, (opq_number){.f = 1.0}, &one));
    OPQ_TRY(opq_graph_op(g, OPQ_OP_add, (opq_ref[]){total, one}, 2, NULL, 0, &below));
    OPQ_TRY(opq_graph_op(g, OPQ_OP_div, (opq_ref[]){r, below}, 2, NULL, 0, &y));
    return opq_graph_output(g, y);
}

static opq_status graph_show(const opq_graph *g)
{
    char *text;
    OPQ_TRY(opq_graph_print(g, &text));
    printf("recorded:\n%s\n", text);
    free(text);
    return OPQ_OK;
}

static opq_status program_show(const opq_program *program)
{
    char *text;
    OPQ_TRY(opq_program_print(program, "fused", &text));
    printf("fused:\n%s\n", text);
    free(text);
    return OPQ_OK;
}

static opq_status run_and_compare(opq_ctx *ctx, const opq_graph *g)
{
    float x[ROWS][IN], w[IN][OUT], b[OUT], y[ROWS][OUT], expected[ROWS][OUT];
    for (int i = 0; i < ROWS * IN; i++)
        (&x[0][0])[i] = (float)(i % 7 - 3) / 4;
    for (int i = 0; i < IN * OUT; i++)
        (&w[0][0])[i] = (float)(i % 11 - 5) / 8;
    for (int i = 0; i < OUT; i++)
        b[i] = (float)i / 16;
    const void *inputs[] = {x, w, b};

    opq_program *program;
    OPQ_TRY(opq_compile(ctx, g, OPQ_FUSED, &program));
    opq_status status = program_show(program);
    if (!status)
        status = opq_run(ctx, program, inputs, (void *[]){y});
    opq_program_release(program);
    if (!status)
        status = opq_graph_eval(g, inputs, (void *[]){expected});
    if (status)
        return status;

    printf("first row:");
    for (int i = 0; i < OUT; i++)
        printf(" %.4f", y[0][i]);
    bool same = !memcmp(y, expected, sizeof y);
    printf("\nsame bits as the reference evaluator: %s\n", same ? "yes" : "no");
    return same ? OPQ_OK : opq_fail(OPQ_INTERNAL, "machine code and reference evaluator differ");
}

int main(void)
{
    opq_ctx *ctx = NULL;
    opq_graph *graph = NULL;
    opq_status status = opq_ctx_create(NULL, &ctx);
    if (!status)
        status = opq_graph_create("plain", &graph);
    if (!status)
        status = graph_build(graph);
    if (!status)
        status = graph_show(graph);
    if (!status)
        status = run_and_compare(ctx, graph);
    if (status)
        fprintf(stderr, "plain: %s\n", opq_error());
    if (graph)
        opq_graph_destroy(graph);
    if (ctx)
        opq_ctx_destroy(ctx);
    return status != OPQ_OK;
}
