/* Planning takes four times as long for four times as many nodes, up to a logarithm and caches that no longer hold them: for graphs in
 * which one tensor is read at many places, many values are alive, many views are stored, and for training steps, where what the way
 * forward makes is needed on the way back.
 */
#include "tests/support.h"

#include "graph/graph.h"

#include <stdio.h>
#include <time.h>

enum { NODES = 6000, MORE = 4, ROUNDS = 12 };
static const double GROWTH_MAX = 7; /* a quadratic part takes 16 */

static opq_ctx *ctx;

/* ---- graphs of about `n` nodes */

typedef struct writer {
    opq_text text;
    int count; /* of nodes */
} writer;

/* One node; gives its number. */
OPQ_PRINTF(2, 3) static int node(writer *w, const char *format, ...)
{
    char line[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    opq_text_add(&w->text, "  %%%d = %s\n", w->count, line);
    return w->count++;
}

static int matmuls(writer *w, int n)
{
    int x = node(w, "input f32[8,8]"), weight = node(w, "input f32[8,8]");
    for (int i = 0; i < n; i++)
        x = node(w, "matmul f32[8,8] %%%d, %%%d", x, weight);
    return x;
}

static int slices(writer *w, int n)
{
    int all = node(w, "input f32[%d,4]", n), sum = node(w, "slice f32[1,4] %%%d {start=[0,0], step=[1,1]}", all);
    for (int i = 1; i < n / 2; i++) {
        int part = node(w, "slice f32[1,4] %%%d {start=[%d,0], step=[1,1]}", all, i);
        sum = node(w, "add f32[1,4] %%%d, %%%d", sum, part);
    }
    return sum;
}

/* All products are there before the first is used. */
static int alive(writer *w, int n)
{
    int x = node(w, "input f32[8,8]"), first = w->count;
    for (int i = 0; i < n / 3; i++) {
        int number = node(w, "scalar f32[] {value=0x%x.0p+0}", i + 1),
            scaled = node(w, "mul f32[8,8] %%%d, %%%d", x, number);
        node(w, "matmul f32[8,8] %%%d, %%%d", scaled, scaled);
    }
    for (int i = 0; i < n / 3; i++)
        x = node(w, "matmul f32[8,8] %%%d, %%%d", x, first + i * 3 + 2);
    return x;
}

static int windows(writer *w, int n)
{
    int x = node(w, "input f32[4,6]");
    for (int i = 0; i < n / 2; i++) {
        int window = node(w, "strided f32[5,4] %%%d {offset=1, strides=[2,3]}", x);
        x = node(w, "strided f32[4,6] %%%d {offset=2, strides=[3,1]}", window);
    }
    return x;
}

static int concats(writer *w, int n)
{
    int x = node(w, "input f32[2]");
    for (int i = 0; i < n / 4; i++) {
        int both = node(w, "concat f32[4] %%%d, %%%d {axis=0}", x, x);
        x = node(w, "slice f32[2] %%%d {start=[1], step=[1]}", both);
    }
    return x;
}

/* Layers forward, back, and a step of their weight. */
static int training(writer *w, int n)
{
    enum { LAYER_NODES = 11 };
    int layers = n / LAYER_NODES, made[NODES * MORE / LAYER_NODES];
    int x = node(w, "input f32[8,8]"), weight = node(w, "input f32[8,8]"), rate = node(w, "scalar f32[] {value=0x1p-6}");
    for (int i = 0; i < layers; i++) {
        made[i] = x;
        int total = node(w, "sum f32[8,1] %%%d {axes=[1], tree=lanes}", x);
        int part = node(w, "div f32[8,8] %%%d, %%%d", x, total);
        int product = node(w, "matmul f32[8,8] %%%d, %%%d", part, weight);
        int positive = node(w, "relu f32[8,8] %%%d", product);
        x = node(w, "add f32[8,8] %%%d, %%%d", positive, x);
    }
    int stepped = weight;
    for (int i = layers - 1; i >= 0; i--) {
        int scaled = node(w, "mul f32[8,8] %%%d, %%%d", x, made[i]);
        int back = node(w, "matmul f32[8,8] %%%d, %%%d {transpose_b=1}", scaled, weight);
        int of_weight = node(w, "matmul f32[8,8] %%%d, %%%d {transpose_a=1}", made[i], scaled);
        int step = node(w, "mul f32[8,8] %%%d, %%%d", of_weight, rate);
        stepped = node(w, "sub f32[8,8] %%%d, %%%d", stepped, step);
        x = node(w, "add f32[8,8] %%%d, %%%d", x, back);
    }
    return node(w, "add f32[8,8] %%%d, %%%d", stepped, x);
}

static const struct {
    const char *name;
    int (*make)(writer *w, int n);
} families[] = {{"matmuls", matmuls}, {"slices", slices},   {"alive", alive},
                {"windows", windows}, {"concats", concats}, {"training", training}};

static opq_graph *graph_of(size_t family, int n)
{
    writer w = {0};
    char *data = NULL;
    opq_text_add(&w.text, "graph @g {\n");
    int last = families[family].make(&w, n);
    opq_text_add(&w.text, "  output %%%d\n}\n", last);
    expect_ok(opq_text_take(&w.text, &data));
    opq_graph *graph = graph_of_text(data);
    free(data);
    return graph;
}

/* ---- the test */

static double planning_seconds(const opq_graph *graph)
{
    opq_program *program = NULL;
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    expect_ok(opq_compile(ctx, graph, OPQ_FUSED, &program));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    opq_program_release(program);
    return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
}

static double smaller(double a, double b) { return a < b ? a : b; }

/* The first round compiles; a busy machine gets several chances. */
static void test_growth(void **state)
{
    (void)state;
    for (size_t f = 0; f < COUNT(families); f++) {
        opq_graph *graph = graph_of(f, NODES), *more = graph_of(f, NODES * MORE);
        double seconds = 1e9, more_seconds = 1e9;
        for (int round = 0; round < 3 || (round < ROUNDS && more_seconds > GROWTH_MAX * seconds); round++) {
            seconds = smaller(seconds, planning_seconds(graph));
            more_seconds = smaller(more_seconds, planning_seconds(more));
        }
        print_message("%s: %.4f s, %.4f s\n", families[f].name, seconds, more_seconds);
        if (more_seconds > GROWTH_MAX * seconds)
            fail_msg("%s: %d nodes take %.3f s, %d times as many %.3f s", families[f].name, NODES, seconds, MORE,
                     more_seconds);
        opq_graph_destroy(graph);
        opq_graph_destroy(more);
    }
}

static int make_ctx(void **state)
{
    (void)state;
    return opq_ctx_create(NULL, &ctx) != OPQ_OK;
}

static int drop_ctx(void **state)
{
    (void)state;
    opq_ctx_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth)};
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
