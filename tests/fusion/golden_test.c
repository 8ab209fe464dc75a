/* Golden files: tests/golden/NAME.ir is a graph, the passes to run and the text that must come out; a new case is one file.
 *
 *   # what it shows
 *   # pass: expand,simplify,group
 *   graph @NAME { ... }
 *   # expect:
 *   graph @NAME { ... }
 *   # unfused %3 -> %5: recompute       after group: each edge between two kernels and the reason
 *
 * OPAQUE_UPDATE_GOLDEN=1 writes what comes out behind "# expect:"; read the difference before committing it. Besides the text, each
 * graph must print as it was parsed, and evaluate to the same bits before and after its passes.
 */
#include "tests/support.h"

#include "fusion/pass.h"

#include <glob.h>
#include <stdio.h>

static const char expect_mark[] = "# expect:\n", pass_mark[] = "# pass: ";

typedef struct golden {
    char *text, *expected; /* `expected` points into text, behind the mark */
    char passes[128];
} golden;

static char *file_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    size_t length = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(length + 1, 1);
    assert_int_equal(fread(text, 1, length, file), length);
    fclose(file);
    return text;
}

static golden golden_read(const char *path)
{
    golden g = {.text = file_text(path)};
    const char *pass = strstr(g.text, pass_mark);
    g.expected = strstr(g.text, expect_mark);
    if (pass == NULL || g.expected == NULL)
        fail_msg("%s: \"# pass: \" and \"# expect:\" are needed", path);
    sscanf(pass + strlen(pass_mark), "%127s", g.passes);
    g.expected += strlen(expect_mark);
    return g;
}

/* The graph before the mark. */
static opq_graph *golden_graph(const golden *g)
{
    opq_graph *graph = NULL;
    expect_ok(opq_graph_parse(g->text, (size_t)(g->expected - g->text) - strlen(expect_mark), &graph));
    return graph;
}

/* ---- passes */

/* "group" is run by itself, for its reasons. */
static opq_graph *run_passes(const opq_graph *graph, const char *passes, opq_unfused *unfused)
{
    opq_graph *out = NULL, *before = NULL;
    const char *last = strrchr(passes, ',');
    if (last == NULL || strcmp(last + 1, "group") != 0) {
        expect_ok(opq_graph_passes(graph, passes, &out));
        return out;
    }
    char first[128];
    snprintf(first, sizeof first, "%.*s", (int)(last - passes), passes);
    expect_ok(opq_graph_passes(graph, first, &before));
    expect_ok(opq_graph_create(graph->name, &out));
    expect_ok(opq_pass_group(before, OPQ_FUSED, out, unfused));
    opq_graph_destroy(before);
    return out;
}

static char *result_text(const opq_graph *graph, const opq_unfused *unfused)
{
    opq_text text = {0};
    char *printed = text_of_graph(graph), *result = NULL;
    opq_text_add(&text, "%s", printed);
    free(printed);
    for (int i = 0; i < unfused->count; i++) {
        const opq_unfused_edge *edge = &unfused->edges[i];
        opq_text_add(&text, "# unfused %%%d -> %%%d: %s\n", edge->producer, edge->consumer,
                     opq_refusal_name(edge->refusal));
    }
    expect_ok(opq_text_take(&text, &result));
    return result;
}

/* ---- meaning */

typedef struct arrays {
    void *data[16];
    int count;
} arrays;

static void *array_make(const opq_type *type)
{
    void *data = calloc((size_t)opq_type_bytes(type) + 1, 1);
    assert_non_null(data);
    return data;
}

/* Small different numbers; integers are 0, 1 and 2, which every index here allows. */
static arrays inputs_make(const opq_graph *graph)
{
    arrays a = {.count = opq_graph_input_count(graph)};
    assert_true(a.count <= (int)COUNT(a.data));
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_input_type(graph, i);
        a.data[i] = array_make(&type);
        for (int64_t k = 0; k < opq_type_count(&type); k++) {
            float value = (float)((k * 7 + i * 3) % 23 - 11) / 8;
            if (type.dtype == OPQ_f32)
                ((float *)a.data[i])[k] = value;
            else if (type.dtype == OPQ_f16)
                ((uint16_t *)a.data[i])[k] = opq_f32_to_f16(value);
            else if (type.dtype == OPQ_i64)
                ((int64_t *)a.data[i])[k] = (k + i) % 3;
            else
                fail_msg("no numbers for inputs of %s", opq_dtype_name((opq_dtype)type.dtype));
        }
    }
    return a;
}

static arrays outputs_make(const opq_graph *graph, const arrays *inputs)
{
    arrays a = {.count = opq_graph_output_count(graph)};
    assert_true(a.count <= (int)COUNT(a.data));
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        a.data[i] = array_make(&type);
    }
    expect_ok(opq_graph_eval(graph, (const void *const *)inputs->data, a.data));
    return a;
}

static void arrays_drop(arrays *a)
{
    for (int i = 0; i < a->count; i++)
        free(a->data[i]);
}

static void expect_same_meaning(const opq_graph *before, const opq_graph *after)
{
    arrays inputs = inputs_make(before), a = outputs_make(before, &inputs), b = outputs_make(after, &inputs);
    assert_int_equal(a.count, b.count);
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_output_type(before, i), other = opq_graph_output_type(after, i);
        assert_true(opq_type_equal(&type, &other));
        if (memcmp(a.data[i], b.data[i], (size_t)opq_type_bytes(&type)) != 0)
            fail_msg("output %d is another value after the passes", i);
    }
    arrays_drop(&inputs);
    arrays_drop(&a);
    arrays_drop(&b);
}

static void expect_round_trip(const opq_graph *graph)
{
    char *text = text_of_graph(graph);
    opq_graph *again = graph_of_text(text);
    char *same = text_of_graph(again);
    assert_string_equal(text, same);
    opq_graph_destroy(again);
    free(same);
    free(text);
}

/* ---- a case */

static void rewrite(const char *path, const golden *g, const char *result)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fprintf(file, "%.*s%s", (int)(g->expected - g->text), g->text, result);
    fclose(file);
}

static void test_golden(void **state)
{
    const char *path = *state;
    golden g = golden_read(path);
    opq_graph *graph = golden_graph(&g);
    opq_unfused unfused = {0};
    expect_ok(opq_graph_verify(graph));
    expect_round_trip(graph);
    opq_graph *after = run_passes(graph, g.passes, &unfused);
    expect_ok(opq_graph_verify(after));
    expect_round_trip(after);
    char *result = result_text(after, &unfused);
    if (getenv("OPAQUE_UPDATE_GOLDEN"))
        rewrite(path, &g, result);
    else if (strcmp(result, g.expected) != 0)
        fail_msg("%s: expected\n%sbut got\n%s", path, g.expected, result);
    expect_same_meaning(graph, after);
    free(result);
    free(unfused.edges);
    opq_graph_destroy(after);
    opq_graph_destroy(graph);
    free(g.text);
}

int main(void)
{
    glob_t files;
    if (glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files) != 0)
        return 1;
    struct CMUnitTest *tests = calloc(files.gl_pathc, sizeof *tests);
    for (size_t i = 0; i < files.gl_pathc; i++)
        tests[i] = (struct CMUnitTest){
            .name = strrchr(files.gl_pathv[i], '/') + 1, .test_func = test_golden, .initial_state = files.gl_pathv[i]};
    int failed = _cmocka_run_group_tests("golden", tests, files.gl_pathc, NULL, NULL);
    free(tests);
    globfree(&files);
    return failed;
}
