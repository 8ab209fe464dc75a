/* What the tests over tests/golden/ share: reading a file, numbers for its inputs, a test per file. golden_test.c says what a file is. */
#ifndef OPAQUE_TESTS_FUSION_GOLDEN_H
#define OPAQUE_TESTS_FUSION_GOLDEN_H

#include "tests/fusion/arrays.h"

#include <glob.h>
#include <stdio.h>

static const char expect_mark[] = "# expect:\n", pass_mark[] = "# pass: ";

typedef struct golden {
    char *text, *expected; /* `expected` points into text, behind the mark */
    char passes[128];
} golden;

static inline char *file_text(const char *path)
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

static inline golden golden_read(const char *path)
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
static inline opq_graph *golden_graph(const golden *g)
{
    opq_graph *graph = NULL;
    expect_ok(opq_graph_parse(g->text, (size_t)(g->expected - g->text) - strlen(expect_mark), &graph));
    return graph;
}

/* Small different numbers; integers are 0, 1 and 2, which every index here allows. */
static inline void golden_fill(const opq_type *type, int number, void *data)
{
    for (int64_t k = 0; k < opq_type_count(type); k++) {
        float value = (float)((k * 7 + number * 3) % 23 - 11) / 8;
        if (type->dtype == OPQ_f32)
            ((float *)data)[k] = value;
        else if (type->dtype == OPQ_f16)
            ((uint16_t *)data)[k] = opq_f32_to_f16(value);
        else if (type->dtype == OPQ_bf16)
            ((uint16_t *)data)[k] = opq_f32_to_bf16(value);
        else if (type->dtype == OPQ_i8)
            ((int8_t *)data)[k] = (int8_t)(k % 5 ? value * 8 : -128);
        else if (type->dtype == OPQ_i64)
            ((int64_t *)data)[k] = (k + number) % 3;
        else
            fail_msg("no numbers for inputs of %s", opq_dtype_name((opq_dtype)type->dtype));
    }
}

static inline arrays golden_inputs(const opq_graph *graph)
{
    arrays a = arrays_make(opq_graph_input_count(graph));
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_input_type(graph, i);
        a.data[i] = array_make(&type);
        golden_fill(&type, i, a.data[i]);
    }
    return a;
}

/* The graph of each file with its inputs, which `use` owns. */
static inline void golden_each(void (*use)(const char *name, opq_graph *graph, arrays *inputs))
{
    glob_t files;
    assert_int_equal(glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        golden file = golden_read(files.gl_pathv[i]);
        opq_graph *graph = golden_graph(&file);
        arrays inputs = golden_inputs(graph);
        use(strrchr(files.gl_pathv[i], '/') + 1, graph, &inputs);
        free(file.text);
    }
    globfree(&files);
}

/* A test for each file, whose path is its state; for each of a sample of them: see test_sample(). */
static inline int golden_main(const char *group, CMUnitTestFunction test, bool sampled)
{
    glob_t files;
    if (glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files) != 0)
        return 1;
    struct CMUnitTest *tests = calloc(files.gl_pathc, sizeof *tests);
    size_t every = sampled ? files.gl_pathc / (size_t)test_sample((int)files.gl_pathc) : 1, count = 0;
    for (size_t i = 0; i < files.gl_pathc; i += every)
        tests[count++] = (struct CMUnitTest){
            .name = strrchr(files.gl_pathv[i], '/') + 1, .test_func = test, .initial_state = files.gl_pathv[i]};
    int failed = _cmocka_run_group_tests(group, tests, count, NULL, NULL);
    free(tests);
    globfree(&files);
    return failed;
}

#endif
