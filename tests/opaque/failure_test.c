/* A step that fails: what depends on it fails with it and says why, a cell goes back to its last good value, nothing else notices. */
#include "support.h"

/* A call that fails, and both of its results. */
static opq_value *failing(opq_ctx *ctx, call *c, opq_value *x)
{
    opq_value *results[2];
    record_call(ctx, c, x, results);
    opq_value_release(results[1]);
    return results[0];
}

static void expect_status(opq_ctx *ctx, opq_value *value, opq_status status, const char *part)
{
    assert_int_equal(opq_materialize(ctx, &value, 1, OPQ_REASON_item), status);
    if (strstr(opq_error(), part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, opq_error());
    opq_value_release(value);
}

static void expect_error(opq_ctx *ctx, opq_value *value, const char *part)
{
    expect_status(ctx, value, OPQ_INVALID, part);
}

static void test_a_failed_value_keeps_its_error(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_value *value = failing(ctx, &c, leaf(ctx, 0));
    expect_error(ctx, again(value), "the call failed");
    expect_error(ctx, value, "the call failed");
    assert_int_equal(c.calls, 1);
}

static void test_dependents_are_poisoned(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_value *bad = failing(ctx, &c, leaf(ctx, 0));
    opq_cell *direct = cell_of(ctx, op1(ctx, OPQ_OP_neg, again(bad)));
    opq_cell *behind = cell_of(ctx, op2(ctx, OPQ_OP_add, read_window(ctx, direct, whole), leaf(ctx, 0)));
    expect_error(ctx, bad, "the call failed");
    opq_value *later = op1(ctx, OPQ_OP_neg, read_window(ctx, behind, whole)); /* recorded after the failure */
    expect_error(ctx, later, "the call failed");
    expect_error(ctx, read_window(ctx, direct, whole), "the call failed");
    assert_int_equal(c.calls, 1);
    opq_cell_release(direct);
    opq_cell_release(behind);
}

static void test_others_are_untouched(void **state)
{
    opq_ctx *ctx = *state;
    static call bad = {.fails = true}, good = {.add = 1};
    opq_value *x = leaf(ctx, 0), *results[2];
    opq_cell *input = cell_of(ctx, again(x)), *fails = cell_of(ctx, failing(ctx, &bad, again(x)));
    record_call(ctx, &good, x, results);
    opq_cell *called = cell_of(ctx, results[0]), *negated = cell_of(ctx, op1(ctx, OPQ_OP_neg, results[1]));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_synchronize), OPQ_INVALID);
    assert_int_equal(good.calls, 1);
    expect_floats(ctx, read_window(ctx, called, whole), FLOATS(1, 2, 3, 4, 5, 6, 7, 8));
    expect_floats(ctx, read_window(ctx, negated, whole), FLOATS(-2, -3, -4, -5, -6, -7, -8, -9));
    expect_floats(ctx, read_window(ctx, input, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    assert_int_equal(good.calls, 1);                         /* it was good the first time */
    expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize)); /* it raised once; the failed cell waits for who reads it */
    expect_error(ctx, read_window(ctx, fails, whole), "the call failed");
    opq_cell *cells[] = {input, fails, called, negated};
    for (size_t i = 0; i < COUNT(cells); i++)
        opq_cell_release(cells[i]);
}

static void test_a_cell_goes_back(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    window half = {.rank = 1, .size = {4}, .stride = {1}};
    write_window(ctx, cell, half, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, half))); /* good, but not computed yet */
    write_window(ctx, cell, whole, failing(ctx, &c, read_window(ctx, cell, whole)));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_synchronize), OPQ_INVALID);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(-0.f, -1, -2, -3, 4, 5, 6, 7));
    c.fails = false; /* and goes on from there */
    write_window(ctx, cell, whole, failing(ctx, &c, read_window(ctx, cell, whole)));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, -1, -2, -3, 4, 5, 6, 7));
    opq_cell_release(cell);
}

static void test_a_failed_cell_read_as_another_dtype(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, failing(ctx, &c, leaf(ctx, 0)));
    opq_geometry bits = geometry_of(&whole);
    opq_value *read = NULL;
    bits.dtype = OPQ_i32;
    expect_failure(opq_cell_read(ctx, cell, &bits, &read), OPQ_INVALID, "the call failed");
    opq_cell_release(cell);
}

/* Nobody is asked to compute a cell again that has no earlier value. */
static void test_a_new_cell_stays_failed(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, failing(ctx, &c, leaf(ctx, 0)));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_synchronize), OPQ_INVALID);
    expect_error(ctx, read_window(ctx, cell, whole), "the call failed");
    write_window(ctx, cell, whole, leaf(ctx, 3)); /* a whole new value heals it */
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(3, 4, 5, 6, 7, 8, 9, 10));
    opq_cell_release(cell);
}

/* Writes on top of a failed one fail with it, and the cell goes back to before all of them. */
static void test_writes_behind_a_failure(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    write_window(ctx, cell, whole, failing(ctx, &c, read_window(ctx, cell, whole)));
    for (int i = 0; i < 6; i++)
        write_window(ctx, cell, whole, op2(ctx, OPQ_OP_add, read_window(ctx, cell, whole), number(ctx, 1)));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_synchronize), OPQ_INVALID);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    opq_cell_release(cell);
}

/* Half a step of an optimizer is no state: the cell goes back to before all of it, not to the last write that was good. */
static void test_half_a_step(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    for (int i = 0; i < 2; i++)
        write_window(ctx, cell, whole, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, whole)));
    write_window(ctx, cell, whole, failing(ctx, &c, read_window(ctx, cell, whole)));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_optimizer_step), OPQ_INVALID);
    opq_value *back = opq_cell_value(cell);
    assert_non_null(opq_value_buffer(back)); /* it was there already */
    expect_floats(ctx, back, FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    opq_cell_release(cell);
}

/* More writes than a cell remembers: which was the newest good one is not known any more, and an older value would be a silent loss. */
static void test_too_many_writes_behind_a_failure(void **state)
{
    opq_ctx *ctx = *state;
    static call c = {.fails = true};
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    write_window(ctx, cell, whole, failing(ctx, &c, read_window(ctx, cell, whole)));
    for (int i = 0; i < 40; i++)
        write_window(ctx, cell, whole, op2(ctx, OPQ_OP_add, read_window(ctx, cell, whole), number(ctx, 1)));
    assert_int_equal(opq_synchronize(ctx, OPQ_REASON_synchronize), OPQ_INVALID);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7)); /* the last computed value */
    opq_cell_release(cell);
}

/* ---- an index out of range: found when it runs, named with its line */

static size_t line_text(void *self, uint32_t line, opq_line_part part, char *out, size_t size)
{
    (void)self;
    if (part != OPQ_LINE_place)
        return 0;
    return (size_t)snprintf(out, size, "train.py:%u", line);
}

static opq_value *row_at(opq_ctx *ctx, opq_value *x, int64_t index)
{
    opq_value *at = NULL, *made = NULL;
    expect_ok(opq_value_scalar(ctx, OPQ_i64, (opq_number){.i = index}, false, &at));
    opq_attr axis = {.key = OPQ_ATTR_axis, .i = 0};
    opq_value *operands[] = {x, at};
    expect_ok(opq_record(ctx, OPQ_OP_index_select, operands, 2, &axis, 1, &made));
    opq_value_release(x);
    opq_value_release(at);
    return made;
}

static void test_an_index_out_of_range(void **state)
{
    (void)state;
    opq_ctx *ctx = NULL;
    const opq_host host = {.line_text = line_text};
    expect_ok(opq_ctx_create(&host, &ctx));
    opq_line_set(41);
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0)), *other = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 0)));
    opq_value *bad = row_at(ctx, read_window(ctx, cell, whole), N);
    opq_line_set(0);
    expect_status(ctx, bad, OPQ_OUT_OF_RANGE, "index 8 is out of bounds for dimension 0 with size 8");
    assert_non_null(strstr(opq_error(), "train.py:41"));
    expect_floats(ctx, row_at(ctx, read_window(ctx, cell, whole), N - 1), FLOATS(7));
    expect_status(ctx, row_at(ctx, read_window(ctx, cell, whole), -1), OPQ_OUT_OF_RANGE, "index -1 is out of bounds");
    expect_status(ctx, row_at(ctx, read_window(ctx, cell, whole), (int64_t)1 << 45), OPQ_OUT_OF_RANGE,
                  "is out of bounds");
    expect_floats(ctx, read_window(ctx, other, whole), FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
    opq_cell_release(cell);
    opq_cell_release(other);
    assert_int_equal(stats_of(ctx).bytes_allocated, 0);
    opq_ctx_destroy(ctx);
}

/* The plan is that of an earlier line; what is told is this call and its line. */
static void test_a_call_that_fails_later(void **state)
{
    (void)state;
    opq_ctx *ctx = NULL;
    static call c = {.add = 1};
    opq_host host = test_host;
    host.line_text = line_text;
    expect_ok(opq_ctx_create(&host, &ctx));
    opq_line_set(40);
    expect_floats(ctx, failing(ctx, &c, leaf(ctx, 0)), FLOATS(1, 2, 3, 4, 5, 6, 7, 8));
    opq_line_set(41);
    c.fails = true;
    expect_error(ctx, failing(ctx, &c, leaf(ctx, 0)), "the call failed (recorded at train.py:41)");
    opq_line_set(0);
    assert_int_equal(stats_of(ctx).plans_reused, 1);
    opq_ctx_destroy(ctx);
}

/* ---- refused when recorded */

static void test_refused_ops_leave_nothing(void **state)
{
    opq_ctx *ctx = *state;
    const int64_t size[] = {3};
    opq_value *x = leaf(ctx, 0), *part = NULL, *made = NULL;
    window short_window = {.rank = 1, .size = {3}, .stride = {1}};
    opq_cell *cell = cell_of(ctx, again(x));
    part = read_window(ctx, cell, short_window);
    opq_value *pair[] = {x, part};
    assert_int_equal(opq_record(ctx, OPQ_OP_add, pair, 2, NULL, 0, &made), OPQ_INVALID);
    assert_int_equal(opq_record_reshape(ctx, x, 1, size, &made), OPQ_INVALID);
    opq_value_release(part);
    opq_value_release(x);
    opq_cell_release(cell);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_failed_value_keeps_its_error),
        TEST(test_dependents_are_poisoned),
        TEST(test_others_are_untouched),
        TEST(test_a_cell_goes_back),
        TEST(test_a_new_cell_stays_failed),
        TEST(test_writes_behind_a_failure),
        TEST(test_a_failed_cell_read_as_another_dtype),
        TEST(test_half_a_step),
        TEST(test_too_many_writes_behind_a_failure),
        cmocka_unit_test(test_an_index_out_of_range),
        cmocka_unit_test(test_a_call_that_fails_later),
        TEST(test_refused_ops_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
