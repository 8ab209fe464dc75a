/* Random graphs: fused, unfused and the reference evaluator give the same bits.
 *
 * Transcendental functions have a tolerance against the evaluator (docs/accuracy.md), and what follows from them would need a wider
 * one. So their values are cut out: the compiled graph gives each as an output of its own, it is compared with the evaluator's within
 * the promised error, and the evaluator goes on from the compiled value. Everything else is exact.
 *
 *   OPAQUE_TEST_FULL=1    twenty-five times as many graphs
 *   OPAQUE_TEST_SEED=n    this graph alone, with its text
 */
#include "random_graph.h"

#include "opaque/opaque.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { GRAPHS = 200, FULL_GRAPHS = 5000, CUTS_MAX = 200 };

static opq_ctx *ctx;
static opq_ctx *evaluating; /* its kernels are not compiled */
static volatile uint64_t current_seed;

/* ---- running */

typedef struct arrays {
    void **data;
    int count;
} arrays;

static arrays arrays_make(const opq_graph *graph)
{
    arrays a = {calloc((size_t)opq_graph_output_count(graph) + 1, sizeof *a.data), opq_graph_output_count(graph)};
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        size_t bytes = ((size_t)opq_type_bytes(&type) + 127) / 64 * 64;
        a.data[i] = aligned_alloc(64, bytes);
        memset(a.data[i], 0xa5, bytes);
    }
    return a;
}

static void arrays_drop(arrays *a)
{
    for (int i = 0; i < a->count; i++)
        free(a->data[i]);
    free(a->data);
}

static arrays evaluated(const opq_graph *graph, void *const *inputs)
{
    arrays out = arrays_make(graph);
    expect_ok(opq_graph_eval(graph, (const void *const *)inputs, out.data));
    return out;
}

static opq_status try_compiled(const opq_graph *graph, void *const *inputs, opq_fusion fusion, arrays *out)
{
    opq_program *program = NULL;
    *out = arrays_make(graph);
    opq_status status = opq_compile(ctx, graph, fusion, &program);
    if (status == OPQ_OK)
        status = opq_run(ctx, program, (const void *const *)inputs, out->data);
    if (program)
        opq_program_release(program);
    return status;
}

/* Pieces as small as allowed, the last one first: what a kernel gives may not depend on how it is split. */
static void split_backwards(void *self, int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *data)
{
    (void)self;
    for (int64_t end = count; end > 0; end -= grain)
        body(data, end > grain ? end - grain : 0, end);
}

/* ---- comparing. One NaN is as good as another. */

static bool is_nan(opq_dtype dtype, const void *data, int64_t i)
{
    switch ((int)dtype) {
    case OPQ_f16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7c00;
    case OPQ_bf16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7f80;
    case OPQ_f32: return ((const float *)data)[i] != ((const float *)data)[i];
    case OPQ_f64: return ((const double *)data)[i] != ((const double *)data)[i];
    }
    return false;
}

/* The first element that differs, -1 if none does. */
static int64_t difference(const opq_type *type, const void *a, const void *b)
{
    opq_dtype dtype = (opq_dtype)type->dtype;
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    int64_t count = opq_type_count(type);
    if (count == 0 || memcmp(a, b, bytes * (size_t)count) == 0)
        return -1;
    for (int64_t i = 0; i < count; i++)
        if (memcmp((const char *)a + bytes * (size_t)i, (const char *)b + bytes * (size_t)i, bytes) != 0 &&
            !(is_nan(dtype, a, i) && is_nan(dtype, b, i)))
            return i;
    return -1;
}

static void show(const opq_graph *graph)
{
    opq_graph *small = NULL;
    expect_ok(opq_graph_passes(graph, "simplify", &small));
    char *text = text_of_graph(small);
    fputs(text, stderr); /* cmocka cuts its messages */
    free(text);
    opq_graph_destroy(small);
}

/* What one node depends on, for a failure to be small. */
static opq_graph *prefix(const opq_graph *graph, opq_ref last)
{
    opq_graph *part = NULL;
    opq_ref *same = malloc(((size_t)graph->count + 1) * sizeof *same);
    expect_ok(opq_graph_create(graph->name, &part));
    for (opq_ref n = 0; n < graph->count; n++)
        if (n <= last || opq_node_at(graph, n)->op == OPQ_OP_input)
            expect_ok(opq_graph_copy_node(part, graph, n, same, &same[n]));
    expect_ok(opq_graph_output(part, same[last]));
    free(same);
    return part;
}

static bool goes_wrong(const opq_graph *graph, void *const *inputs)
{
    arrays fused, plain;
    bool wrong = try_compiled(graph, inputs, OPQ_FUSED, &fused) != OPQ_OK;
    wrong = try_compiled(graph, inputs, OPQ_UNFUSED, &plain) != OPQ_OK || wrong;
    for (int i = 0; i < fused.count && !wrong; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        wrong = difference(&type, fused.data[i], plain.data[i]) >= 0;
    }
    arrays_drop(&fused);
    arrays_drop(&plain);
    return wrong;
}

static void show_smallest(const opq_graph *graph, void *const *inputs)
{
    for (opq_ref n = 0; n < graph->count; n++) {
        if (opq_node_at(graph, n)->op == OPQ_OP_undefined || opq_node_class(opq_node_at(graph, n)) == OPQ_CLASS_UPDATE)
            continue; /* differs where it is undefined */
        opq_graph *part = prefix(graph, n);
        bool found = goes_wrong(part, inputs);
        if (found)
            show(part);
        opq_graph_destroy(part);
        if (found)
            return;
    }
    show(graph); /* only several outputs together show it, or only the evaluator differs */
}

static arrays compiled(const opq_graph *graph, void *const *inputs, opq_fusion fusion)
{
    arrays out;
    if (try_compiled(graph, inputs, fusion, &out) != OPQ_OK) {
        char message[1024];
        snprintf(message, sizeof message, "%s", opq_error());
        show_smallest(graph, inputs);
        fail_msg("seed %llu: %s: %s", (unsigned long long)current_seed, fusion == OPQ_FUSED ? "fused" : "unfused",
                 message);
    }
    return out;
}

static void expect_same(const opq_graph *graph, void *const *inputs, const arrays *a, const arrays *b, const char *what)
{
    for (int i = 0; i < b->count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        int64_t at = difference(&type, a->data[i], b->data[i]);
        if (at < 0)
            continue;
        show_smallest(graph, inputs);
        size_t bytes = (size_t)opq_dtype_bytes((opq_dtype)type.dtype);
        uint64_t x = 0, y = 0;
        memcpy(&x, (char *)a->data[i] + bytes * (size_t)at, bytes);
        memcpy(&y, (char *)b->data[i] + bytes * (size_t)at, bytes);
        fail_msg("seed %llu: %s, output %d element %lld: %llx and %llx", (unsigned long long)current_seed, what, i,
                 (long long)at, (unsigned long long)x, (unsigned long long)y);
    }
}

/* ---- the cut at transcendental functions */

/* In units of the last place, measured against a correctly rounded result: docs/accuracy.md's promise and half a unit. -1: exact. */
static int tolerance(const opq_node *node)
{
    if (!(opq_node_info(node)->flags & OPQ_FLAG_MATH32) || opq_op_lowering((opq_op)node->op)->kind != OPQ_LOWER_CALL)
        return -1;
    switch (node->op) {
    case OPQ_OP_sigmoid: return 3;
    case OPQ_OP_expm1:
    case OPQ_OP_sin:
    case OPQ_OP_cos:
    case OPQ_OP_tanh:
    case OPQ_OP_erf: return 2;
    }
    return 1;
}

static int64_t ordered(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & INT32_MAX) : bits;
}

static void expect_near(const opq_node *node, const float *got, const float *exact)
{
    for (int64_t i = 0; i < opq_type_count(&node->type); i++) {
        if (got[i] != got[i] && exact[i] != exact[i])
            continue;
        int64_t distance = ordered(got[i]) - ordered(exact[i]);
        if (distance < 0)
            distance = -distance;
        if ((got[i] != got[i]) != (exact[i] != exact[i]) || distance > tolerance(node))
            fail_msg("seed %llu: %s gives %a, the evaluator %a", (unsigned long long)current_seed,
                     opq_node_info(node)->name, (double)got[i], (double)exact[i]);
    }
}

typedef struct cut {
    const opq_graph *graph; /* expanded */
    opq_ref at[CUTS_MAX];
    int count;
} cut;

static cut find_cuts(const opq_graph *graph)
{
    cut c = {.graph = graph};
    for (opq_ref n = 0; n < graph->count; n++)
        if (tolerance(opq_node_at(graph, n)) >= 0) {
            assert_true(c.count < CUTS_MAX);
            c.at[c.count++] = n;
        }
    return c;
}

/* The graph with every cut value as an output behind its own. */
static opq_graph *with_cut_values(const cut *c)
{
    opq_graph *wide = NULL;
    opq_ref *same = malloc(((size_t)c->graph->count + 1) * sizeof *same);
    expect_ok(opq_graph_create(c->graph->name, &wide));
    for (opq_ref n = 0; n < c->graph->count; n++)
        expect_ok(opq_graph_copy_node(wide, c->graph, n, same, &same[n]));
    for (int i = 0; i < c->graph->output_count; i++)
        expect_ok(opq_graph_output(wide, c->graph->outputs[i]));
    for (int i = 0; i < c->count; i++)
        expect_ok(opq_graph_output(wide, c->at[i]));
    free(same);
    return wide;
}

/* The graph that takes the cut values as inputs and computes each cut node only to show it. Inputs come in the order of their nodes:
 * `out_inputs` pairs them. */
static opq_graph *after_cuts(const cut *c, void *const *inputs, void *const *values, void **out_inputs)
{
    opq_graph *rest = NULL;
    opq_ref *renamed = malloc(((size_t)c->graph->count + 1) * sizeof *renamed), computed[CUTS_MAX];
    int next = 0, taken = 0, given = 0;
    expect_ok(opq_graph_create(c->graph->name, &rest));
    for (opq_ref n = 0; n < c->graph->count; n++) {
        const opq_node *node = opq_node_at(c->graph, n);
        if (node->op == OPQ_OP_input)
            out_inputs[taken++] = inputs[given++];
        expect_ok(opq_graph_copy_node(rest, c->graph, n, renamed, &renamed[n]));
        if (next < c->count && c->at[next] == n) {
            computed[next] = renamed[n];
            expect_ok(opq_graph_input(rest, &node->type, &renamed[n]));
            out_inputs[taken++] = values[next++];
        }
    }
    for (int i = 0; i < c->graph->output_count; i++)
        expect_ok(opq_graph_output(rest, renamed[c->graph->outputs[i]]));
    for (int i = 0; i < c->count; i++)
        expect_ok(opq_graph_output(rest, computed[i]));
    free(renamed);
    return rest;
}

/* The same kernels, evaluated statement by statement. */
static arrays through_loops(const opq_graph *graph, void *const *inputs)
{
    opq_ctx *compiling = ctx;
    ctx = evaluating;
    arrays out = compiled(graph, inputs, OPQ_FUSED);
    ctx = compiling;
    return out;
}

/* `fused` is what the graph itself gave. */
static void check_against_evaluator(const opq_graph *expanded, void *const *inputs, const arrays *fused)
{
    cut c = find_cuts(expanded);
    void *rest_inputs[RANDOM_INPUTS + CUTS_MAX];
    int own = expanded->output_count;
    opq_graph *wide = with_cut_values(&c);
    arrays shown = compiled(wide, inputs, OPQ_FUSED);
    expect_same(expanded, inputs, &shown, fused, "fused with and without more outputs");
    opq_graph *rest = after_cuts(&c, inputs, shown.data + own, rest_inputs);
    arrays exact = evaluated(rest, rest_inputs);
    for (int i = 0; i < c.count; i++)
        expect_near(opq_node_at(expanded, c.at[i]), shown.data[own + i], exact.data[own + i]);
    expect_same(expanded, inputs, &exact, fused, "evaluator and fused");
    arrays looped = through_loops(rest, rest_inputs);
    expect_same(expanded, inputs, &looped, fused, "loops and fused");
    arrays_drop(&looped);
    arrays_drop(&exact);
    arrays_drop(&shown);
    opq_graph_destroy(rest);
    opq_graph_destroy(wide);
}

/* ---- the test */

static void check_seed(uint64_t seed, bool print)
{
    current_seed = seed;
    random_graph r = random_graph_make(seed);
    opq_graph *expanded = NULL;
    if (print)
        show(r.graph);
    expect_ok(opq_graph_verify(r.graph));
    expect_ok(opq_graph_passes(r.graph, "expand", &expanded));
    arrays fused = compiled(r.graph, r.inputs, OPQ_FUSED), unfused = compiled(r.graph, r.inputs, OPQ_UNFUSED);
    expect_same(r.graph, r.inputs, &unfused, &fused, "unfused and fused");
    arrays as_is = evaluated(r.graph, r.inputs), as_expanded = evaluated(expanded, r.inputs);
    expect_same(r.graph, r.inputs, &as_is, &as_expanded, "evaluator before and after expand");
    check_against_evaluator(expanded, r.inputs, &fused);
    arrays_drop(&as_is);
    arrays_drop(&as_expanded);
    arrays_drop(&fused);
    arrays_drop(&unfused);
    opq_graph_destroy(expanded);
    random_graph_drop(&r);
}

static void test_random_graphs(void **state)
{
    (void)state;
    const char *seed = getenv("OPAQUE_TEST_SEED");
    if (seed) {
        check_seed(strtoull(seed, NULL, 10), true);
        return;
    }
    uint64_t count = getenv("OPAQUE_TEST_FULL") ? FULL_GRAPHS : GRAPHS;
    for (uint64_t n = 1; n <= count; n++)
        check_seed(n, false);
}

/* A crash says which graph it was. */
static void on_crash(int number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "crash at seed %llu\n", (unsigned long long)current_seed);
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}

static int make_context(void **state)
{
    (void)state;
    static const opq_host host = {.parallel_for = split_backwards};
    setenv("OPAQUE_EXECUTOR", "reference", 1);
    bool failed = opq_ctx_create(&host, &evaluating) != OPQ_OK;
    unsetenv("OPAQUE_EXECUTOR");
    return failed || opq_ctx_create(&host, &ctx) != OPQ_OK;
}

static int drop_context(void **state)
{
    (void)state;
    opq_ctx_destroy(ctx);
    opq_ctx_destroy(evaluating);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs)};
    signal(SIGILL, on_crash);
    signal(SIGFPE, on_crash);
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
