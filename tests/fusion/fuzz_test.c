/* Thousands of mutations of the golden files: whatever the text is, parser, verifier, passes and evaluator answer with a status.
 * OPAQUE_FUZZ_SECONDS=n: others of them for so long, of which some are compiled and run as well.
 *
 * A text is refused with a place ("line 3, column 8: ..."), or it is a graph: then it prints and parses back byte for byte and its
 * passes give verified graphs. Deterministic; made for the build with AddressSanitizer, which sees a byte read past the text's end.
 */
#include "mutation.h"
#include "tests/support.h"

#include "fusion/pass.h"
#include "graph/clock.h"

#include <glob.h>
#include <stdio.h>

enum { MUTATIONS = 2000, FULL_MUTATIONS = 40000, EVAL_ELEMENTS = 1 << 14, COMPILED_MAX = 300 };

static const char *const words[] = {"add",
                                    "softmax",
                                    "matmul",
                                    "update",
                                    "index_select",
                                    "concat",
                                    "reshape",
                                    "extern",
                                    "input",
                                    "const",
                                    "f64",
                                    "bool",
                                    "raw128",
                                    "i64",
                                    "axes",
                                    "tree",
                                    "lanes",
                                    "column",
                                    "kernel map @k {",
                                    "}",
                                    "output %0",
                                    "{axis=0}",
                                    "%0",
                                    "[]",
                                    "[1,1,1,1,1,1,1,1,1,1,1,1,1]",
                                    "inf",
                                    "nan",
                                    "# x",
                                    "\n",
                                    "graph @g {",
                                    ", "};

/* ---- what must hold */

static void expect_round_trip(const opq_graph *graph)
{
    char *printed = text_of_graph(graph);
    opq_graph *again = graph_of_text(printed);
    char *same = text_of_graph(again);
    assert_string_equal(printed, same);
    opq_graph_destroy(again);
    free(printed);
    free(same);
}

static bool is_small(const opq_graph *graph)
{
    for (opq_ref n = 0; n < graph->count; n++)
        if (opq_type_count(&opq_node_at(graph, n)->type) > EVAL_ELEMENTS)
            return false;
    return true;
}

/* Zeros in, room for what comes out: inputs, then outputs. */
static void **arrays_make(const opq_graph *graph, int count)
{
    int inputs = opq_graph_input_count(graph);
    void **data = calloc((size_t)count + 1, sizeof *data);
    assert_non_null(data);
    for (int i = 0; i < count; i++) {
        opq_type type = i < inputs ? opq_graph_input_type(graph, i) : opq_graph_output_type(graph, i - inputs);
        data[i] = calloc((size_t)opq_type_bytes(&type) + (opq_type_bytes(&type) == 0), 1);
        assert_non_null(data[i]);
    }
    return data;
}

static void arrays_drop(void **data, int count)
{
    for (int i = 0; i < count; i++)
        free(data[i]);
    free(data);
}

/* Any status, with a message. */
static opq_status evaluate(const opq_graph *graph)
{
    int inputs = opq_graph_input_count(graph), count = inputs + opq_graph_output_count(graph);
    void **data = arrays_make(graph, count);
    opq_status status = opq_graph_eval(graph, (const void *const *)data, data + inputs);
    assert_true(status == OPQ_OK || strlen(opq_error()) > 0);
    arrays_drop(data, count);
    return status;
}

/* What the evaluator computes runs, fused or not, or is refused; nothing is an internal error. Machine code stays as long as its
 * context, so there is a new one from time to time. */
static void compile_and_run(const opq_graph *graph, opq_status evaluated)
{
    static opq_ctx *ctx;
    static int compiled;
    if (ctx && compiled % COMPILED_MAX == 0) {
        opq_ctx_destroy(ctx);
        ctx = NULL;
    }
    if (ctx == NULL)
        expect_ok(opq_ctx_create(NULL, &ctx));
    compiled++;
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        int inputs = opq_graph_input_count(graph), count = inputs + opq_graph_output_count(graph);
        void **data = arrays_make(graph, count);
        opq_program *program = NULL;
        opq_status status = opq_compile(ctx, graph, (opq_fusion)fusion, &program);
        if (status == OPQ_OK) {
            status = opq_run(ctx, program, (const void *const *)data, data + inputs);
            opq_program_release(program);
            if ((status == OPQ_OK) != (evaluated == OPQ_OK))
                fail_msg("evaluated: status %d; run: status %d, %s\n%s", evaluated, status, opq_error(),
                         text_of_graph(graph));
        } else if (status != OPQ_UNSUPPORTED && status != OPQ_INVALID) {
            fail_msg("compile: status %d, %s\n%s", status, opq_error(), text_of_graph(graph));
        }
        arrays_drop(data, count);
    }
}

/* In any order, and any number of times. */
static const char *pass_list(char out[64])
{
    static const char *const names[] = {"expand,", "simplify,", "group,", "unfused,"};
    out[0] = 0;
    for (uint64_t n = 1 + below(4); n > 0; n--)
        strcat(out, names[below(COUNT(names))]);
    return out;
}

static void run_passes(const opq_graph *graph)
{
    static const char *const passes[] = {"expand,simplify,group", "expand,simplify,unfused", NULL};
    for (size_t i = 0; i < COUNT(passes); i++) {
        opq_graph *out = NULL;
        char any[64];
        if (opq_graph_passes(graph, passes[i] ? passes[i] : pass_list(any), &out) == OPQ_OK)
            expect_ok(opq_graph_verify(out));
        opq_graph_destroy(out);
    }
}

static int accepted, refused;

static void check(const text *t, bool compiled)
{
    char *exact = malloc(t->length ? t->length : 1); /* no byte more: reading past the end is an error that is seen */
    assert_non_null(exact);
    memcpy(exact, t->data, t->length);
    opq_graph *graph = NULL;
    opq_status status = opq_graph_parse(exact, t->length, &graph);
    free(exact);
    if (status != OPQ_OK) {
        refused++;
        if (strncmp(opq_error(), "line ", 5) != 0)
            fail_msg("no place in \"%s\" for\n%.*s", opq_error(), (int)t->length, t->data);
        return;
    }
    accepted++;
    if (opq_graph_verify(graph) == OPQ_OK) {
        expect_round_trip(graph);
        run_passes(graph);
        opq_status status = is_small(graph) ? evaluate(graph) : OPQ_UNSUPPORTED;
        if (compiled && is_small(graph))
            compile_and_run(graph, status);
    }
    opq_graph_destroy(graph);
}

static void load(const char *path, text *out)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    out->length = fread(out->data, 1, sizeof out->data / 2, file);
    fclose(file);
    for (size_t at = 0; at + 9 < out->length; at++) /* the graph in front; what is expected of it is a text of its own */
        if (memcmp(out->data + at, "# expect:", 9) == 0)
            out->length = at;
}

static void test_mutations(void **state)
{
    (void)state;
    static text original, mutated;
    glob_t files;
    int count = getenv("OPAQUE_TEST_FULL") ? FULL_MUTATIONS : test_sample(MUTATIONS);
    assert_int_equal(glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        random_state = i + 1;
        load(files.gl_pathv[i], &original);
        check(&original, false);
        for (int n = 0; n < count; n++) {
            mutated = original;
            mutate(&mutated, words, COUNT(words));
            check(&mutated, false);
        }
    }
    globfree(&files);
    assert_true(accepted > refused / 20); /* else the mutations are too wild to reach what lies behind the parser */
    assert_true(refused > accepted / 20);
}

/* Each round goes on with its own numbers; a failure shows the graph. */
static void test_for_a_time(void **state)
{
    (void)state;
    static text original, mutated;
    const char *seconds = getenv("OPAQUE_FUZZ_SECONDS");
    glob_t files;
    if (seconds == NULL)
        skip();
    double end = opq_now() + atof(seconds);
    assert_int_equal(glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files), 0);
    for (uint64_t round = 1; opq_now() < end; round++) {
        const char *path = files.gl_pathv[round % files.gl_pathc];
        random_state = round << 32;
        load(path, &original);
        for (int n = 0; n < 50; n++) {
            mutated = original;
            mutate(&mutated, words, COUNT(words));
            check(&mutated, n % 10 == 0);
        }
    }
    globfree(&files);
}

static void test_garbage(void **state)
{
    (void)state;
    static text t;
    random_state = 1;
    for (int n = 0; n < 3000; n++) {
        t.length = below(200);
        for (size_t i = 0; i < t.length; i++)
            t.data[i] = n % 2 ? (char)below(256) : "graph @{}%=[],. \n0123456789xfadd"[below(32)];
        check(&t, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutations), cmocka_unit_test(test_garbage),
                                       cmocka_unit_test(test_for_a_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
