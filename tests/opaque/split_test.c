/* What cannot be made as one kernel is one for each of its ops; all others stay as they are, and it is counted and told. */
#include "support.h"

#include "runtime/plan_internal.h"
#include "tests/fusion/arrays.h"

static const char *refused; /* kernels whose names begin so, of several ops */

opq_status __real_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step);
opq_status __wrap_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step);
opq_status __wrap_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step)
{
    const char *name = planner->graph->kernels[kernel].name;
    if (refused && strncmp(name, refused, strlen(refused)) == 0 && opq_kernel_splits(planner->graph, kernel))
        return opq_fail(OPQ_UNSUPPORTED, "the test has no %s", name);
    return __real_opq_plan_step(planner, kernel, out_step);
}

static const char text[] = "graph @two {\n"
                           "  %0 = input f32[4,6]\n"
                           "  %1 = input f32[5,3]\n"
                           "  %2 = scalar f32[] {value=3}\n"
                           "  %3 = const f32[] {value=2}\n"
                           "  %4 = mul f32[4,6] %0, %2\n"
                           "  %5 = reshape f32[24] %4\n"
                           "  %6 = pad f32[24] %5 {start=[1], value=0.5}\n"
                           "  %7 = reshape f32[4,6] %6\n"
                           "  %8 = maximum f32[4,6] %7, %3\n"
                           "  %9 = sum f32[4,1] %8 {axes=[1], tree=lanes}\n"
                           "  %10 = iota i64[5,3] {axis=0}\n"
                           "  %11 = cast f32[5,3] %10\n"
                           "  %12 = sub f32[5,3] %1, %11\n"
                           "  %13 = abs f32[5,3] %12\n"
                           "  %14 = expand f32[4,6] %9\n"
                           "  %15 = sub f32[4,6] %14, %4\n"
                           "  output %9, %13, %15\n"
                           "}\n";

static char *json_of(const opq_program *program)
{
    char *json = NULL;
    expect_ok(opq_program_print(program, "json", &json));
    return json;
}

static int count_of(const char *in, const char *what)
{
    int count = 0;
    for (; (in = strstr(in, what)); in += strlen(what))
        count++;
    return count;
}

/* Kernels of the graph, with those refused that begin so; values are the evaluator's whatever they are. */
static char *planned(opq_ctx *ctx, const char *kernels)
{
    opq_graph *graph = graph_of_text(text);
    opq_program *program = NULL;
    float x[24], y[15];
    void *inputs[] = {x, y};
    for (int i = 0; i < 24; i++)
        x[i] = (float)(i * 7 % 11) - 4;
    for (int i = 0; i < 15; i++)
        y[i] = (float)(i * 5 % 13);
    refused = kernels;
    expect_ok(opq_compile(ctx, graph, OPQ_FUSED, &program));
    refused = NULL;
    arrays got = arrays_of_outputs(graph), wanted = arrays_evaluated(graph, inputs);
    expect_ok(opq_run(ctx, program, (const void *const *)inputs, got.data));
    for (int i = 0; i < got.count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        assert_int_equal(array_difference(&type, got.data[i], wanted.data[i]), -1);
    }
    char *json = json_of(program);
    arrays_drop(&got);
    arrays_drop(&wanted);
    opq_program_release(program);
    opq_graph_destroy(graph);
    return json;
}

static void test_the_others_stay_fused(void **state)
{
    char *whole = planned(*state, NULL);
    assert_non_null(strstr(whole, "\"fallbacks\": []"));
    assert_null(strstr(whole, "not_made"));
    int kernels = count_of(whole, "\"launch\": ");
    assert_non_null(strstr(whole, "\"sub_abs_"));
    free(whole);
    char *split = planned(*state, "maximum_"); /* pad, maximum, sum, and what is made of it */
    assert_non_null(strstr(split, "\"fallbacks\": [\n{\"kernel\": \"maximum_"));
    assert_non_null(strstr(split, "\"reason\": \"the test has no maximum_"));
    assert_int_equal(count_of(split, "the test has no"), 1);
    assert_non_null(strstr(split, "not_made"));
    assert_non_null(strstr(split, ".sum_"));
    assert_non_null(strstr(split, "\"sub_abs_"));
    assert_null(strstr(split, ".abs_"));
    assert_true(count_of(split, "\"launch\": ") >= kernels + 4);
    free(split);
}

/* The row is grouped first, when nobody wants to read the iota from memory, where its dims are no loops of a whole row. */
static void test_an_iota_that_is_stored_later(void **state)
{
    opq_graph *graph = graph_of_text("graph @stored_later {\n"
                                     "  %0 = input i64[7,1,1,4]\n"
                                     "  %1 = iota i64[1,1,4] {axis=0}\n"
                                     "  %2 = update i64[1,1,4] %1, %1 {offset=0, sizes=[1,1,4], strides=[4,4,1]}\n"
                                     "  %3 = mul i64[7,1,1,4] %0, %0\n"
                                     "  %4 = argmax i64[1,1,1,1] %3 {axes=[0,3], tree=lanes}\n"
                                     "  %5 = add i64[1,1,1,4] %4, %1\n"
                                     "  %6 = mul i64[7,1,1,4] %5, %0\n"
                                     "  output %6, %2\n"
                                     "}\n");
    opq_program *program = NULL;
    expect_ok(opq_compile(*state, graph, OPQ_FUSED, &program));
    char *json = json_of(program);
    assert_non_null(strstr(json, "\"fallbacks\": []"));
    free(json);
    opq_program_release(program);
    opq_graph_destroy(graph);
}

static void test_all_of_them(void **state)
{
    char *split = planned(*state, "");
    assert_non_null(strstr(split, ".abs_"));
    assert_int_equal(count_of(split, "the test has no"), count_of(split, "{\"kernel\": "));
    assert_true(count_of(split, "the test has no") >= 2);
    free(split);
}

static void test_a_run_counts_it(void **state)
{
    opq_ctx *ctx = *state;
    long long before = (long long)stats_of(ctx).kernels_split;
    refused = "neg_";
    opq_value *x = op1(ctx, OPQ_OP_abs, op1(ctx, OPQ_OP_neg, leaf(ctx, -2)));
    expect_ok(opq_materialize(ctx, &x, 1, OPQ_REASON_item));
    refused = NULL;
    assert_int_equal(stats_of(ctx).kernels_split - before, 1);
    assert_true(((const float *)opq_buffer_data(opq_value_buffer(x)))[0] == 2);
    opq_value_release(x);
    opq_stats_reset(ctx);
    assert_int_equal(stats_of(ctx).kernels_split, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_others_stay_fused, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_an_iota_that_is_stored_later, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_all_of_them, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_a_run_counts_it, make_context, drop_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
