/* When work runs: not before a value is needed, once for a graph that was seen before, and at the bound on what is pending. */
#include "support.h"

#include <time.h>

static opq_value *sum_of_squares(opq_ctx *ctx, opq_value *x)
{
    opq_value *squares = op2(ctx, OPQ_OP_mul, again(x), x), *sum = NULL;
    expect_ok(opq_record_reduce(ctx, OPQ_OP_sum, &squares, 1, (const int64_t[]){0}, 1, false, &sum));
    opq_value_release(squares);
    return sum;
}

static void test_nothing_runs_before_it_is_needed(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *sum = sum_of_squares(ctx, leaf(ctx, 1));
    opq_stats before = stats_of(ctx);
    assert_null(opq_value_buffer(sum));
    assert_int_equal(before.ops_recorded, 3); /* mul, sum, the reshape that drops the axis */
    assert_int_equal(before.kernels_run + before.kernels_compiled + before.plans_built, 0);
    expect_floats(ctx, sum, FLOATS(204));
    opq_stats after = stats_of(ctx);
    assert_int_equal(after.kernels_run, 1);
    assert_int_equal(after.plans_built, 1);
    assert_int_equal(after.flushes[OPQ_REASON_copy_to_host], 1);
}

static void test_what_nobody_holds_never_runs(void **state)
{
    opq_ctx *ctx = *state;
    opq_value_release(sum_of_squares(ctx, leaf(ctx, 1)));
    expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize));
    assert_int_equal(stats_of(ctx).kernels_run, 0);
}

static void test_a_value_is_computed_once(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *sum = sum_of_squares(ctx, leaf(ctx, 0));
    expect_floats(ctx, again(sum), FLOATS(140));
    expect_floats(ctx, sum, FLOATS(140));
    assert_int_equal(stats_of(ctx).kernels_run, 1);
}

static void test_an_equal_graph_is_not_compiled_again(void **state)
{
    opq_ctx *ctx = *state;
    expect_floats(ctx, sum_of_squares(ctx, leaf(ctx, 1)), FLOATS(204));
    opq_stats first = stats_of(ctx);
    expect_floats(ctx, sum_of_squares(ctx, leaf(ctx, 0)), FLOATS(140));
    opq_stats second = stats_of(ctx);
    assert_int_equal(second.plans_built, first.plans_built);
    assert_int_equal(second.kernels_compiled, first.kernels_compiled);
    assert_int_equal(second.plans_reused, first.plans_reused + 1);
}

static void test_scalars_are_no_part_of_the_key(void **state)
{
    opq_ctx *ctx = *state;
    for (int i = 0; i < 3; i++) { /* 0 and 1 too: a warm-up passes through them */
        float expected[N];
        for (int k = 0; k < N; k++)
            expected[k] = (float)(k + 1) * (float)i;
        expect_floats(ctx, op2(ctx, OPQ_OP_mul, leaf(ctx, 1), number(ctx, i)), expected);
    }
    assert_int_equal(stats_of(ctx).plans_built, 1);
}

/* x + x and x + y are different graphs, although every op and type is the same. */
static void test_operands_are_part_of_the_key(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *x = leaf(ctx, 0);
    expect_floats(ctx, op2(ctx, OPQ_OP_add, again(x), again(x)), FLOATS(0, 2, 4, 6, 8, 10, 12, 14));
    expect_floats(ctx, op2(ctx, OPQ_OP_add, x, leaf(ctx, 1)), FLOATS(1, 3, 5, 7, 9, 11, 13, 15));
    assert_int_equal(stats_of(ctx).plans_built, 2);
}

static void test_held_ancestors_are_stored_too(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *y = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
    opq_cell *cell = cell_of(ctx, again(y));
    expect_floats(ctx, sum_of_squares(ctx, again(y)), FLOATS(140));
    assert_non_null(opq_value_buffer(y));
    opq_value_release(y);
    opq_cell_release(cell);
}

/* A loop that nobody looks at: it runs at the bound, in equal pieces, and what is pending never grows beyond twice the bound. */
static void test_a_long_loop_is_cut(void **state)
{
    opq_ctx *ctx = *state;
    enum { TURNS = 40000 };
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    for (int i = 0; i < TURNS; i++)
        write_window(ctx, cell, whole, op2(ctx, OPQ_OP_add, read_window(ctx, cell, whole), number(ctx, 1)));
    opq_stats stats = stats_of(ctx);
    assert_true(stats.flushes[OPQ_REASON_bound] >= 1);
    assert_true(stats.flushes[OPQ_REASON_bound] <= 8);
    float expected[N];
    for (int k = 0; k < N; k++)
        expected[k] = (float)(k + TURNS);
    expect_floats(ctx, read_window(ctx, cell, whole), expected);
    opq_cell_release(cell);
}

/* A chain of this length must neither recurse when it is walked nor when it is dropped. */
static void test_a_long_chain_is_dropped(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *value = leaf(ctx, 0);
    for (int i = 0; i < 200000; i++)
        value = op1(ctx, OPQ_OP_neg, value);
    opq_value_release(value);
}

static void test_eager_runs_at_once(void **state)
{
    opq_ctx *ctx = *state;
    opq_modes_set(OPQ_MODE_EAGER);
    opq_value *y = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
    opq_cell *cell = cell_of(ctx, again(y));
    assert_non_null(opq_value_buffer(y));
    opq_value_release(y);
    opq_cell_release(cell);
}

static void test_forbid_sync_refuses(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *y = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
    opq_modes_set(OPQ_MODE_FORBID_SYNC);
    expect_failure(opq_materialize(ctx, &y, 1, OPQ_REASON_item), OPQ_INVALID,
                   "forbid_sync: pending work would run here (reason: item)");
    opq_modes_set(0);
    expect_floats(ctx, y, FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
}

static void test_unfused_is_another_plan_with_the_same_bits(void **state)
{
    opq_ctx *ctx = *state;
    for (int unfused = 0; unfused < 2; unfused++) {
        opq_modes_set(unfused ? OPQ_MODE_UNFUSED : 0);
        expect_floats(ctx, sum_of_squares(ctx, leaf(ctx, 1)), FLOATS(204));
    }
    opq_stats stats = stats_of(ctx);
    assert_int_equal(stats.plans_built, 2);
    assert_int_equal(stats.kernels_run, 3); /* one, then two */
}

/* ---- calls through the host */

static void test_results_of_a_call(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.add = 1};
    opq_value *results[2];
    record_call(ctx, &c, op1(ctx, OPQ_OP_neg, leaf(ctx, 0)), results);
    assert_int_equal(stats_of(ctx).ops_recorded, 2); /* a call is one, whatever it returns */
    assert_int_equal(c.calls, 0);
    expect_floats(ctx, op2(ctx, OPQ_OP_mul, results[0], results[1]), FLOATS(2, 0, 0, 2, 6, 12, 20, 30));
    assert_int_equal(c.calls, 1);
    assert_int_equal(stats_of(ctx).extern_calls, 1);
    opq_ctx_destroy(ctx); /* the cached plan holds the payload */
    assert_int_equal(c.retained, 0);
    assert_int_equal(make_context(state), 0);
}

/* The update works in the memory that the call wrote. */
static void test_a_result_written_over(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.add = 1};
    static const window half = {.rank = 1, .size = {4}, .stride = {2}};
    opq_value *results[2];
    record_call(ctx, &c, leaf(ctx, 0), results);
    opq_value_release(results[1]);
    opq_cell *cell = cell_of(ctx, results[0]);
    write_window(ctx, cell, half, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, half)));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(-1, 2, -3, 4, -5, 6, -7, 8));
    opq_cell_release(cell);
}

static void test_a_call_that_nobody_wants(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.add = 1};
    opq_value *results[2];
    record_call(ctx, &c, leaf(ctx, 0), results);
    assert_int_equal(c.retained, 1);
    opq_value_release(results[0]);
    opq_value_release(results[1]);
    assert_int_equal(c.calls, 0);
    assert_int_equal(c.retained, 0);
}

static void test_one_result_of_a_call(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.add = 1};
    opq_value *results[2];
    record_call(ctx, &c, leaf(ctx, 0), results);
    opq_value_release(results[0]);
    expect_floats(ctx, results[1], FLOATS(2, 3, 4, 5, 6, 7, 8, 9));
}

/* ---- memory */

static void test_explicit_allocations_are_checked(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = NULL;
    assert_int_equal(opq_cell_create(ctx, (int64_t)1 << 40, &cell), OPQ_NO_MEMORY);
    assert_non_null(strstr(opq_error(), "1099511627776 bytes"));
    expect_failure(opq_cell_create(ctx, -1, &cell), OPQ_INVALID, "a storage of -1 bytes");
}

/* A result larger than the machine fails when it is computed, and nothing else does. */
static void test_a_result_without_memory(void **state)
{
    opq_ctx *ctx = *state;
    const int64_t size[] = {1 << 20, 1 << 20};
    opq_type type = opq_type_make(OPQ_f32, 2, size);
    opq_value *one = number(ctx, 1), *huge = NULL, *small = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
    expect_ok(opq_record_typed(ctx, OPQ_OP_expand, &type, &one, 1, NULL, 0, &huge));
    opq_value_release(one);
    assert_int_equal(opq_materialize(ctx, &huge, 1, OPQ_REASON_item), OPQ_NO_MEMORY);
    assert_int_equal(opq_materialize(ctx, &huge, 1, OPQ_REASON_item), OPQ_NO_MEMORY);
    opq_value_release(huge);
    expect_floats(ctx, small, FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
}

static void test_memory_is_counted(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *x = leaf(ctx, 0), *y = op1(ctx, OPQ_OP_neg, again(x));
    assert_int_equal(stats_of(ctx).bytes_allocated, N * 4);
    expect_ok(opq_materialize(ctx, &y, 1, OPQ_REASON_item));
    assert_int_equal(stats_of(ctx).bytes_allocated, 2 * N * 4);
    opq_value_release(x);
    assert_int_equal(stats_of(ctx).bytes_allocated, N * 4); /* a computed value lets go of its operands */
    opq_value_release(y);
    assert_int_equal(stats_of(ctx).bytes_peak, 2 * N * 4);
    opq_stats_reset(ctx);
    assert_int_equal(stats_of(ctx).bytes_peak, 0);
}

/* A call may draw random numbers or print: equal calls are not one call. */
static void test_equal_calls_all_run(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.add = 1};
    opq_value *x = leaf(ctx, 0), *first[2], *second[2];
    record_call(ctx, &c, again(x), first);
    record_call(ctx, &c, x, second);
    opq_value_release(first[1]);
    opq_value_release(second[1]);
    expect_floats(ctx, op2(ctx, OPQ_OP_add, first[0], second[0]), FLOATS(2, 4, 6, 8, 10, 12, 14, 16));
    assert_int_equal(c.calls, 2);
}

/* Times are differences, and a plan found again costs none of the first kind. */
static void test_seconds_are_those_that_passed(void **state)
{
    opq_ctx *ctx = *state;
    struct timespec start, end;
    for (int turn = 0; turn < 2; turn++) {
        opq_stats_reset(ctx);
        clock_gettime(CLOCK_MONOTONIC, &start);
        opq_value *value = op1(ctx, OPQ_OP_exp, leaf(ctx, 0));
        expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_item));
        clock_gettime(CLOCK_MONOTONIC, &end);
        opq_value_release(value);
        double passed = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
        opq_stats stats = stats_of(ctx);
        assert_true(stats.run_seconds > 0 && stats.compile_seconds >= 0);
        assert_true(stats.run_seconds + stats.compile_seconds <= passed);
        assert_int_equal(stats.compile_seconds > 0, turn == 0);
    }
}

/* -1 beside u8 is 255, 300 is 44. */
static void test_numbers_wrap(void **state)
{
    opq_ctx *ctx = *state;
    static const struct {
        opq_dtype from, to;
        opq_number given;
        int64_t want;
    } cases[] = {
        {OPQ_i64, OPQ_u8, {.i = -1}, 255},   {OPQ_i64, OPQ_u8, {.i = 300}, 44},
        {OPQ_i64, OPQ_i8, {.i = 128}, -128}, {OPQ_i64, OPQ_i32, {.i = INT64_C(1) << 40}, 0},
        {OPQ_i64, OPQ_bool, {.i = -3}, 1},   {OPQ_u8, OPQ_u8, {.i = -1}, 255},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        opq_value *weak = NULL, *one = NULL;
        expect_ok(opq_value_scalar(ctx, cases[i].from, cases[i].given, true, &weak));
        expect_ok(opq_record_cast(ctx, weak, cases[i].to, &one));
        opq_value *wide = NULL;
        expect_ok(opq_record_expand(ctx, one, 1, &(int64_t){1}, &wide));
        opq_value *result = NULL;
        expect_ok(opq_record_cast(ctx, wide, OPQ_i64, &result));
        expect_ok(opq_materialize(ctx, &result, 1, OPQ_REASON_item));
        assert_int_equal(*(const int64_t *)opq_buffer_data(opq_value_buffer(result)), cases[i].want);
        opq_value *values[] = {weak, one, wide, result};
        for (size_t k = 0; k < 4; k++)
            opq_value_release(values[k]);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_nothing_runs_before_it_is_needed),
        TEST(test_what_nobody_holds_never_runs),
        TEST(test_a_value_is_computed_once),
        TEST(test_an_equal_graph_is_not_compiled_again),
        TEST(test_scalars_are_no_part_of_the_key),
        TEST(test_operands_are_part_of_the_key),
        TEST(test_held_ancestors_are_stored_too),
        TEST(test_a_long_loop_is_cut),
        TEST(test_a_long_chain_is_dropped),
        TEST(test_eager_runs_at_once),
        TEST(test_forbid_sync_refuses),
        TEST(test_unfused_is_another_plan_with_the_same_bits),
        TEST(test_results_of_a_call),
        TEST(test_a_result_written_over),
        TEST(test_a_call_that_nobody_wants),
        TEST(test_one_result_of_a_call),
        TEST(test_explicit_allocations_are_checked),
        TEST(test_a_result_without_memory),
        TEST(test_memory_is_counted),
        TEST(test_equal_calls_all_run),
        TEST(test_seconds_are_those_that_passed),
        TEST(test_numbers_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
