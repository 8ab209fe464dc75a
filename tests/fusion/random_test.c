/* Random graphs: fused, unfused, the reference evaluator and its loops give the same bits.
 *
 *   OPAQUE_TEST_FULL=1    5,000 graphs of each sort
 *   OPAQUE_TEST_SEED=n    this graph alone, with its text
 */
#include "arrays.h"
#include "random_graph.h"

#include "opaque/opaque.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { GRAPHS = 200, VIEW_GRAPHS = 100, FULL_GRAPHS = 5000 };

static opq_ctx *ctx;
static opq_ctx *evaluating, *scheduling; /* their kernels are not compiled */
static volatile uint64_t current_seed;

/* ---- running */

/* All that was grouped is made as it was. */
static opq_status expect_no_fallback(const opq_program *program)
{
    char *json = NULL;
    opq_status status = opq_program_print(program, "json", &json);
    const char *list = status == OPQ_OK ? strstr(json, "\"fallbacks\": ") : NULL;
    if (list && strncmp(list, "\"fallbacks\": []", 15) != 0)
        status = opq_fail(OPQ_UNSUPPORTED, "fell back: %s", list);
    free(json);
    return status;
}

static opq_status try_compiled(const opq_graph *graph, void *const *inputs, opq_fusion fusion, arrays *out)
{
    opq_program *program = NULL;
    *out = arrays_of_outputs(graph);
    opq_status status = opq_compile(ctx, graph, fusion, &program);
    if (status == OPQ_OK)
        status = expect_no_fallback(program);
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

/* ---- comparing */

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
        wrong = array_difference(&type, fused.data[i], plain.data[i]) >= 0;
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
        int64_t at = array_difference(&type, a->data[i], b->data[i]);
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

/* The same kernels, evaluated statement by statement. */
static arrays through_loops(opq_ctx *through, const opq_graph *graph, void *const *inputs, opq_fusion fusion)
{
    opq_ctx *compiling = ctx;
    ctx = through;
    arrays out = compiled(graph, inputs, fusion);
    ctx = compiling;
    return out;
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
    arrays fused = compiled(r.graph, r.inputs, OPQ_FUSED);
    struct {
        arrays got;
        const char *what;
    } others[] = {
        {compiled(r.graph, r.inputs, OPQ_UNFUSED), "unfused and fused"},
        {arrays_evaluated(r.graph, r.inputs), "evaluator and fused"},
        {arrays_evaluated(expanded, r.inputs), "evaluator of the expanded graph and fused"},
        {through_loops(evaluating, r.graph, r.inputs, OPQ_FUSED), "loops and fused"},
        {through_loops(scheduling, r.graph, r.inputs, OPQ_FUSED), "schedules and fused"},
        {through_loops(evaluating, r.graph, r.inputs, OPQ_UNFUSED), "loops unfused and fused"},
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        expect_same(r.graph, r.inputs, &others[i].got, &fused, others[i].what);
        arrays_drop(&others[i].got);
    }
    arrays_drop(&fused);
    opq_graph_destroy(expanded);
    random_graph_drop(&r);
}

static void check_seeds(uint64_t above, uint64_t few)
{
    uint64_t count = getenv("OPAQUE_TEST_FULL") ? FULL_GRAPHS : (uint64_t)test_sample((int)few);
    for (uint64_t n = 1; n <= count; n++)
        check_seed(above + n, false);
}

static void test_random_graphs(void **state)
{
    (void)state;
    const char *seed = getenv("OPAQUE_TEST_SEED");
    if (seed)
        check_seed(strtoull(seed, NULL, 10), true);
    else
        check_seeds(0, GRAPHS);
}

static void test_random_views(void **state)
{
    (void)state;
    if (getenv("OPAQUE_TEST_SEED") == NULL)
        check_seeds(RANDOM_VIEWS, VIEW_GRAPHS);
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
    setenv("OPAQUE_EXECUTOR", "schedule", 1);
    failed = opq_ctx_create(&host, &scheduling) != OPQ_OK || failed;
    unsetenv("OPAQUE_EXECUTOR");
    return failed || opq_ctx_create(&host, &ctx) != OPQ_OK;
}

static int drop_context(void **state)
{
    (void)state;
    opq_ctx_destroy(ctx);
    opq_ctx_destroy(evaluating);
    opq_ctx_destroy(scheduling);
    return 0;
}

/* opq_fusion_random test_random_views: that one alone. */
int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_random_views)};
    if (count > 1)
        cmocka_set_test_filter(arguments[1]);
    signal(SIGILL, on_crash);
    signal(SIGFPE, on_crash);
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
