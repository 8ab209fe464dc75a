/* Captures: what was recorded for cells is done again, with what the cells hold then. */
#include "support.h"

#include "opaque/capture.h"
#include "opaque/capture_plan.h"

typedef struct captured {
    opq_capturing *capturing;
    opq_capture *capture;
} captured;

static void begin(opq_ctx *ctx, captured *c) { expect_ok(opq_capturing_begin(ctx, NULL, &c->capturing)); }

/* Ends it, makes the capture, and does what was recorded. */
static void end(captured *c, opq_cell *const *results, int count)
{
    opq_capturing_end(c->capturing);
    expect_ok(opq_capture_make(c->capturing, results, count, &c->capture, NULL));
    expect_ok(opq_capture_first_run(c->capturing, results, count));
    opq_capturing_drop(c->capturing);
    c->capturing = NULL;
}

static opq_value *held(opq_ctx *ctx, opq_cell *cell) { return read_window(ctx, cell, whole); }

/* y = x * 2 + w; w = y */
static void record_step(opq_ctx *ctx, opq_cell *x, opq_cell *w, opq_cell **out_y)
{
    opq_value *twice = op2(ctx, OPQ_OP_mul, held(ctx, x), number(ctx, 2));
    opq_value *y = op2(ctx, OPQ_OP_add, twice, held(ctx, w));
    expect_ok(opq_cell_from_value(ctx, y, out_y));
    write_window(ctx, w, whole, y);
}

static void test_a_call_reads_cells_anew(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 0)), *w = cell_of(ctx, leaf(ctx, 10)), *y, *made = NULL;
    begin(ctx, &c);
    record_step(ctx, x, w, &y);
    assert_int_equal(opq_capturing_cell_count(c.capturing), 2);
    assert_ptr_equal(opq_capturing_cell(c.capturing, 0), x);
    assert_int_equal(opq_capturing_find(c.capturing, w), 1);
    assert_true(opq_capturing_wrote(c.capturing, 1) && !opq_capturing_wrote(c.capturing, 0));
    assert_true(opq_capturing_made_it(c.capturing, y));
    end(&c, &y, 1);
    expect_floats(ctx, held(ctx, w), FLOATS(10, 13, 16, 19, 22, 25, 28, 31));
    write_window(ctx, w, whole, leaf(ctx, 1));
    int64_t recorded = stats_of(ctx).ops_recorded;
    opq_cell *cells[] = {x, w};
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells, .results = &made}));
    assert_int_equal(stats_of(ctx).ops_recorded, recorded);
    expect_floats(ctx, held(ctx, made), FLOATS(1, 4, 7, 10, 13, 16, 19, 22));
    expect_floats(ctx, held(ctx, w), FLOATS(1, 4, 7, 10, 13, 16, 19, 22));
    opq_cell_release(made);
    opq_cell_release(y);
    opq_capture_drop(c.capture);
    opq_cell_release(x);
    opq_cell_release(w);
}

/* The cells of a call may be others; what is pending in them is computed. */
static void test_other_cells(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 0)), *w = cell_of(ctx, leaf(ctx, 10)), *y, *made = NULL;
    opq_cell *x2 = cell_of(ctx, op2(ctx, OPQ_OP_add, leaf(ctx, 0), number(ctx, 1))), *w2 = cell_of(ctx, leaf(ctx, 0));
    begin(ctx, &c);
    record_step(ctx, x, w, &y);
    end(&c, &y, 1);
    opq_cell *cells[] = {x2, w2};
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells, .results = &made}));
    expect_floats(ctx, held(ctx, w2), FLOATS(2, 5, 8, 11, 14, 17, 20, 23));
    expect_floats(ctx, held(ctx, w), FLOATS(10, 13, 16, 19, 22, 25, 28, 31));
    for (opq_cell **cell = (opq_cell *[]){x, w, y, made, x2, w2, NULL}; *cell; cell++)
        opq_cell_release(*cell);
    opq_capture_drop(c.capture);
}

/* Two cells hold one value: each is read by itself. */
static void test_cells_that_hold_one_value(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_value *value = leaf(ctx, 1);
    opq_cell *a = cell_of(ctx, again(value)), *b = cell_of(ctx, value), *y, *made = NULL;
    begin(ctx, &c);
    opq_value *minuend = held(ctx, a), *difference = op2(ctx, OPQ_OP_sub, minuend, held(ctx, b));
    expect_ok(opq_cell_from_value(ctx, difference, &y));
    opq_value_release(difference);
    end(&c, &y, 1);
    write_window(ctx, b, whole, leaf(ctx, 0));
    opq_cell *cells[] = {a, b};
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells, .results = &made}));
    expect_floats(ctx, held(ctx, made), FLOATS(1, 1, 1, 1, 1, 1, 1, 1));
    for (opq_cell **cell = (opq_cell *[]){a, b, y, made, NULL}; *cell; cell++)
        opq_cell_release(*cell);
    opq_capture_drop(c.capture);
}

/* A number is the caller's, through all casts. */
static void test_numbers(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 1)), *y, *made = NULL;
    opq_value *rate;
    begin(ctx, &c);
    expect_ok(opq_value_number(ctx, OPQ_f64, (opq_number){.f = 2}, true, 0, &rate));
    opq_value *scaled = op2(ctx, OPQ_OP_mul, held(ctx, x), rate);
    expect_ok(opq_cell_from_value(ctx, scaled, &y));
    opq_value_release(scaled);
    end(&c, &y, 1);
    expect_floats(ctx, held(ctx, y), FLOATS(2, 4, 6, 8, 10, 12, 14, 16));
    opq_number numbers[] = {{.f = 0.5}};
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = &x, .numbers = numbers, .results = &made}));
    expect_floats(ctx, held(ctx, made), FLOATS(.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4));
    for (opq_cell **cell = (opq_cell *[]){x, y, made, NULL}; *cell; cell++)
        opq_cell_release(*cell);
    opq_capture_drop(c.capture);
}

/* y = (x[1] * 3 + x[1] + 3 - x[2]) * rate * rate: two views and two numbers, however often they are read, and the first call has the plan of all. */
static void test_what_is_equal_is_read_once(void **state)
{
    static const window second = {.rank = 1, .size = {1}, .stride = {1}, .offset = 1},
                        third = {.rank = 1, .size = {1}, .stride = {1}, .offset = 2};
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 1)), *y, *made = NULL;
    opq_value *rate;
    begin(ctx, &c);
    opq_value *value = op2(ctx, OPQ_OP_mul, read_window(ctx, x, second), number(ctx, 3));
    value = op2(ctx, OPQ_OP_add, value, read_window(ctx, x, second));
    value = op2(ctx, OPQ_OP_add, value, number(ctx, 3));
    value = op2(ctx, OPQ_OP_sub, value, read_window(ctx, x, third));
    for (int i = 0; i < 2; i++) {
        expect_ok(opq_value_number(ctx, OPQ_f32, (opq_number){.f = 2}, true, 0, &rate));
        value = op2(ctx, OPQ_OP_mul, value, rate);
    }
    expect_ok(opq_cell_from_value(ctx, value, &y));
    opq_value_release(value);
    int64_t built = stats_of(ctx).plans_built, reused = stats_of(ctx).plans_reused;
    end(&c, &y, 1);
    assert_int_equal(c.capture->plan->slot_count, 2);
    assert_int_equal(c.capture->plan->input_count, 3); /* and x itself */
    assert_int_equal(stats_of(ctx).plans_built, built + 1);
    assert_int_equal(stats_of(ctx).plans_reused, reused + 1);
    static const window only = {.rank = 1, .size = {1}, .stride = {1}};
    expect_floats(ctx, read_window(ctx, y, only), FLOATS(32));
    opq_number numbers[] = {{.f = 10}};
    write_window(ctx, x, whole, leaf(ctx, 0));
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = &x, .numbers = numbers, .results = &made}));
    expect_floats(ctx, read_window(ctx, made, only), FLOATS(500));
    for (opq_cell **cell = (opq_cell *[]){x, y, made, NULL}; *cell; cell++)
        opq_cell_release(*cell);
    opq_capture_drop(c.capture);
}

static void test_values_cannot_be_looked_at(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 1));
    begin(ctx, &c);
    opq_value *y = op1(ctx, OPQ_OP_neg, held(ctx, x));
    assert_int_equal(opq_materialize(ctx, &y, 1, OPQ_REASON_item), OPQ_INVALID);
    opq_capturing *second;
    assert_int_equal(opq_capturing_begin(ctx, NULL, &second), OPQ_INVALID);
    opq_capturing_drop(c.capturing);
    expect_floats(ctx, y, FLOATS(-1, -2, -3, -4, -5, -6, -7, -8));
    opq_cell_release(x);
}

static void test_what_escapes_is_told(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 1)), *found[2];
    begin(ctx, &c);
    opq_cell *kept = cell_of(ctx, op1(ctx, OPQ_OP_neg, held(ctx, x)));
    opq_cell *result = cell_of(ctx, op1(ctx, OPQ_OP_abs, held(ctx, x)));
    opq_cell_release(cell_of(ctx, op1(ctx, OPQ_OP_exp, held(ctx, x))));
    assert_int_equal(opq_capturing_escaped(c.capturing, &result, 1, found, 2), 1);
    assert_ptr_equal(found[0], kept);
    opq_cell_release(found[0]);
    opq_capturing_drop(c.capturing);
    for (opq_cell **cell = (opq_cell *[]){x, kept, result, NULL}; *cell; cell++)
        opq_cell_release(*cell);
}

/* A cell of another size is refused, and nothing happens. A failing step neither. */
static void test_what_does_not_fit(void **state)
{
    static call fails = {.add = 1};
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 1)), *w = cell_of(ctx, leaf(ctx, 0)), *made = NULL;
    begin(ctx, &c);
    opq_value *called[2];
    record_call(ctx, &fails, held(ctx, x), called);
    opq_value_release(called[1]);
    write_window(ctx, w, whole, op2(ctx, OPQ_OP_add, called[0], held(ctx, w)));
    assert_int_equal(opq_capturing_find(c.capturing, w), 1);
    end(&c, NULL, 0);
    expect_floats(ctx, held(ctx, w), FLOATS(2, 4, 6, 8, 10, 12, 14, 16));
    opq_cell *small, *cells[] = {x, w};
    expect_ok(opq_cell_create(ctx, 4, &small));
    assert_int_equal(opq_capture_run(c.capture, &(opq_capture_call){.cells = (opq_cell *[]){small, w}, .results = &made}),
                     OPQ_UNSUPPORTED);
    fails.fails = true;
    assert_int_equal(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells, .results = &made}), OPQ_INVALID);
    expect_floats(ctx, held(ctx, w), FLOATS(2, 4, 6, 8, 10, 12, 14, 16));
    fails.fails = false;
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells, .results = &made}));
    expect_floats(ctx, held(ctx, w), FLOATS(4, 7, 10, 13, 16, 19, 22, 25));
    for (opq_cell **cell = (opq_cell *[]){x, w, small, NULL}; *cell; cell++)
        opq_cell_release(*cell);
    opq_capture_drop(c.capture);
}

/* Who has read before keeps what it read, though the memory would do for the new value. */
static void test_readers_keep_their_values(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *w = cell_of(ctx, leaf(ctx, 0));
    begin(ctx, &c);
    write_window(ctx, w, whole, op2(ctx, OPQ_OP_add, held(ctx, w), number(ctx, 1)));
    end(&c, NULL, 0);
    opq_value *reader = held(ctx, w);
    for (int i = 0; i < 3; i++)
        expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = &w}));
    expect_floats(ctx, held(ctx, w), FLOATS(4, 5, 6, 7, 8, 9, 10, 11));
    expect_floats(ctx, reader, FLOATS(1, 2, 3, 4, 5, 6, 7, 8));
    opq_cell_release(w);
    opq_capture_drop(c.capture);
}

/* x and y exchange what they hold: no kernel, two sinks that are leaves. */
static void test_cells_exchange_values(void **state)
{
    opq_ctx *ctx = *state;
    captured c;
    opq_cell *x = cell_of(ctx, leaf(ctx, 0)), *y = cell_of(ctx, leaf(ctx, 10));
    begin(ctx, &c);
    opq_value *a = held(ctx, x), *b = held(ctx, y);
    write_window(ctx, x, whole, b);
    write_window(ctx, y, whole, a);
    end(&c, NULL, 0);
    opq_cell *cells[] = {x, y};
    write_window(ctx, x, whole, leaf(ctx, 5));
    expect_ok(opq_capture_run(c.capture, &(opq_capture_call){.cells = cells}));
    expect_floats(ctx, held(ctx, y), FLOATS(5, 6, 7, 8, 9, 10, 11, 12));
    expect_floats(ctx, held(ctx, x), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    opq_cell_release(x);
    opq_cell_release(y);
    opq_capture_drop(c.capture);
}

static void test_captures_are_compared(void **state)
{
    opq_ctx *ctx = *state;
    captured c[3];
    opq_cell *x = cell_of(ctx, leaf(ctx, 0)), *y;
    for (int i = 0; i < 3; i++) {
        begin(ctx, &c[i]);
        opq_value *sum = op2(ctx, OPQ_OP_add, held(ctx, x), number(ctx, i < 2 ? 1 : 2));
        expect_ok(opq_cell_from_value(ctx, sum, &y));
        opq_value_release(sum);
        end(&c[i], &y, 1);
        opq_cell_release(y);
    }
    int which = -1;
    assert_int_equal(opq_capture_compare(c[0].capture, c[1].capture, &which), OPQ_CAPTURE_same);
    assert_int_equal(opq_capture_compare(c[0].capture, c[2].capture, &which), OPQ_CAPTURE_number);
    assert_int_equal(which, 0);
    for (int i = 0; i < 3; i++)
        opq_capture_drop(c[i].capture);
    opq_cell_release(x);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_call_reads_cells_anew),    TEST(test_other_cells),
        TEST(test_cells_that_hold_one_value),  TEST(test_numbers),
        TEST(test_what_is_equal_is_read_once), TEST(test_values_cannot_be_looked_at),
        TEST(test_what_escapes_is_told),       TEST(test_what_does_not_fit),
        TEST(test_readers_keep_their_values),  TEST(test_cells_exchange_values),
        TEST(test_captures_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
