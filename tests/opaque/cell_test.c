/* Cells: a window is written and read through any other window of the same cell, and who read before keeps what it read. */
#include "support.h"

static const window matrix = {.rank = 2, .size = {2, 4}, .stride = {4, 1}};
static const window transposed = {.rank = 2, .size = {4, 2}, .stride = {1, 4}};
static const window odd = {.rank = 1, .size = {4}, .stride = {2}, .offset = 1};

static void test_a_write_through_a_view_shows_in_the_base(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    write_window(ctx, cell, odd, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, odd)));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, -1, 2, -3, 4, -5, 6, -7));
    opq_cell_release(cell);
}

static void test_a_write_to_the_base_shows_in_a_view(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    write_window(ctx, cell, whole, leaf(ctx, 10));
    expect_floats(ctx, read_window(ctx, cell, transposed), FLOATS(10, 14, 11, 15, 12, 16, 13, 17));
    opq_cell_release(cell);
}

static void test_a_reader_keeps_what_it_read(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    opq_value *before = read_window(ctx, cell, odd);
    write_window(ctx, cell, whole, leaf(ctx, 10));
    write_window(ctx, cell, odd, op2(ctx, OPQ_OP_mul, again(before), number(ctx, 2)));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(10, 2, 12, 6, 14, 10, 16, 14));
    expect_floats(ctx, before, FLOATS(1, 3, 5, 7));
    opq_cell_release(cell);
}

/* The transposed window covers the cell: what is written is the value permuted back, not an update. */
static void test_a_transposed_write(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    opq_value *value = read_window(ctx, cell, matrix);
    const int64_t size[] = {4, 2};
    opq_value *shaped = NULL;
    expect_ok(opq_record_reshape(ctx, value, 2, size, &shaped));
    opq_value_release(value);
    write_window(ctx, cell, transposed, op1(ctx, OPQ_OP_neg, shaped));
    expect_floats(ctx, read_window(ctx, cell, transposed), FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(-0.f, -2, -4, -6, -1, -3, -5, -7));
    opq_cell_release(cell);
}

/* x[i] = i one by one: every write is an update of the one before; all of it is one run. */
static void test_many_updates_are_one_run(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = NULL;
    expect_ok(opq_cell_create(ctx, N * sizeof(float), &cell));
    for (int i = 0; i < N; i++) {
        window one = {.rank = 1, .size = {1}, .stride = {1}, .offset = i};
        const int64_t size[] = {1};
        opq_type type = opq_type_make(OPQ_f32, 1, size);
        opq_value *x = number(ctx, i), *value = NULL;
        expect_ok(opq_record_typed(ctx, OPQ_OP_expand, &type, &x, 1, NULL, 0, &value));
        opq_value_release(x);
        write_window(ctx, cell, one, value);
    }
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    assert_int_equal(stats_of(ctx).plans_built, 1);
    opq_cell_release(cell);
}

/* Both the tensor as it was and as it became are wanted: the second write may not happen in the first one's memory. */
static void test_an_update_leaves_the_value_before(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    window first = {.rank = 1, .size = {2}, .stride = {1}}, last = {.rank = 1, .size = {2}, .stride = {1}, .offset = 6};
    write_window(ctx, cell, first, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, first)));
    write_window(ctx, cell, last, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, last)));
    opq_cell *kept = cell_of(ctx, read_window(ctx, cell, whole));
    write_window(ctx, cell, odd, op2(ctx, OPQ_OP_mul, read_window(ctx, cell, odd), number(ctx, 10)));
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(-0.f, -10, 2, 30, 4, 50, -6, -70));
    expect_floats(ctx, read_window(ctx, kept, whole), FLOATS(-0.f, -1, 2, 3, 4, 5, -6, -7));
    opq_cell_release(kept);
    opq_cell_release(cell);
}

/* Two cells hold one value until both are updated, in one run: only one of them may have its memory. */
static void test_updates_of_two_cells_with_one_value(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *x = leaf(ctx, 0);
    opq_cell *one = cell_of(ctx, again(x)), *other = cell_of(ctx, x);
    write_window(ctx, one, whole, op2(ctx, OPQ_OP_mul, read_window(ctx, one, whole), number(ctx, 2)));
    write_window(ctx, other, whole, op2(ctx, OPQ_OP_add, read_window(ctx, other, whole), number(ctx, 1)));
    expect_floats(ctx, read_window(ctx, one, whole), FLOATS(0, 2, 4, 6, 8, 10, 12, 14));
    expect_floats(ctx, read_window(ctx, other, whole), FLOATS(1, 2, 3, 4, 5, 6, 7, 8));
    opq_cell_release(other);
    opq_cell_release(one);
}

static void test_another_dtype_reads_the_bytes(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    const int64_t size[] = {N}, stride[] = {1};
    opq_geometry bits = {.dtype = OPQ_i32, .rank = 1, .size = size, .stride = stride};
    opq_value *value = NULL;
    expect_ok(opq_cell_read(ctx, cell, &bits, &value));
    expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_item));
    assert_int_equal(*(int32_t *)opq_buffer_data(opq_value_buffer(value)), (int32_t)0xbf800000);
    assert_int_equal(stats_of(ctx).flushes[OPQ_REASON_reinterpret], 1);
    opq_value_release(value);
    opq_cell_release(cell);
}

/* 8 floats and one more, seen as doubles: of 4.5 the last half stays, whether anything was written before or not. */
static void test_what_lies_behind_the_last_element_stays(void **state)
{
    opq_ctx *ctx = *state;
    const int64_t one[] = {1}, nine[] = {9}, step[] = {1};
    opq_geometry second = {.dtype = OPQ_f64, .rank = 1, .size = one, .stride = step, .offset = 1};
    opq_geometry all = {.dtype = OPQ_f32, .rank = 1, .size = nine, .stride = step};
    opq_type type = opq_type_make(OPQ_f64, 1, one);
    for (int written = 0; written < 2; written++) {
        opq_cell *cell = NULL;
        expect_ok(opq_cell_create(ctx, 9 * sizeof(float), &cell));
        window tail = {.rank = 1, .size = {N}, .stride = {1}, .offset = 1},
               head = {.rank = 1, .size = {N}, .stride = {1}};
        opq_value *value = NULL, *two;
        if (written) {
            write_window(ctx, cell, tail, leaf(ctx, 1));
        } else { /* as doubles first */
            expect_ok(opq_cell_read(ctx, cell, &second, &value));
            opq_value_release(value);
        }
        expect_ok(opq_value_scalar(ctx, OPQ_f64, (opq_number){.f = 2}, false, &two));
        expect_ok(opq_record_typed(ctx, OPQ_OP_expand, &type, &two, 1, NULL, 0, &value));
        opq_value_release(two);
        expect_ok(opq_cell_write(ctx, cell, &second, value));
        opq_value_release(value);
        float high = 2; /* the upper half of 2.0 */
        expect_floats(ctx, read_window(ctx, cell, tail),
                      written ? FLOATS(1, 0, high, 4, 5, 6, 7, 8) : FLOATS(0, 0, high, 0, 0, 0, 0, 0));
        expect_floats(ctx, op1(ctx, OPQ_OP_neg, read_window(ctx, cell, tail)),
                      written ? FLOATS(-1, -0.f, -high, -4, -5, -6, -7, -8)
                              : FLOATS(-0.f, -0.f, -high, -0.f, -0.f, -0.f, -0.f, -0.f));
        write_window(ctx, cell, head, leaf(ctx, 10));
        expect_floats(ctx, read_window(ctx, cell, tail), FLOATS(11, 12, 13, 14, 15, 16, 17, written ? 8 : 0));
        opq_value *nine_values = NULL;
        expect_ok(opq_cell_read(ctx, cell, &all, &nine_values));
        opq_value_release(nine_values);
        opq_cell_release(cell);
    }
}

static void test_resize_keeps_the_prefix(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    window half = {.rank = 1, .size = {4}, .stride = {1}};
    expect_ok(opq_cell_resize(ctx, cell, 100 * sizeof(float)));
    assert_int_equal(opq_cell_bytes(cell), 400);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    expect_ok(opq_cell_resize(ctx, cell, 4 * sizeof(float)));
    expect_floats(ctx, read_window(ctx, cell, half), FLOATS(0, 1, 2, 3));
    assert_int_equal(opq_cell_resize(ctx, cell, (int64_t)1 << 42), OPQ_NO_MEMORY);
    expect_floats(ctx, read_window(ctx, cell, half), FLOATS(0, 1, 2, 3));
    opq_cell_release(cell);
}

/* ---- memory lent to a writer outside */

static opq_buffer *lend(opq_ctx *ctx, opq_cell *cell)
{
    opq_buffer *buffer = NULL;
    expect_ok(opq_cell_lend(ctx, cell, OPQ_f32, OPQ_REASON_collective, &buffer));
    return buffer;
}

static void write_nines(opq_buffer *buffer)
{
    for (int i = 0; i < N; i++)
        ((float *)opq_buffer_data(buffer))[i] = 9;
}

static void test_lent_memory_is_what_the_cell_holds(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    opq_buffer *buffer = lend(ctx, cell);
    assert_float_equal(((float *)opq_buffer_data(buffer))[7], -8, 0);
    opq_value *recorded = op1(ctx, OPQ_OP_neg, read_window(ctx, cell, whole)); /* read after it is written: sees it */
    write_nines(buffer);
    opq_buffer_settle(buffer);
    opq_buffer_release(buffer);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(9, 9, 9, 9, 9, 9, 9, 9));
    expect_floats(ctx, recorded, FLOATS(-9, -9, -9, -9, -9, -9, -9, -9));
    opq_cell_release(cell);
}

static void test_lending_copies_only_for_other_readers(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    opq_buffer *first = lend(ctx, cell);
    const void *memory = opq_buffer_data(first);
    opq_buffer_release(first);
    opq_buffer *second = lend(ctx, cell);
    assert_ptr_equal(opq_buffer_data(second), memory);
    opq_buffer_release(second);

    opq_cell *shares = cell_of(ctx, read_window(ctx, cell, whole));        /* another tensor with this value */
    opq_value *reader = op1(ctx, OPQ_OP_neg, read_window(ctx, cell, odd)); /* pending */
    opq_buffer *third = lend(ctx, cell);
    assert_ptr_not_equal(opq_buffer_data(third), memory);
    write_nines(third);
    opq_buffer *fourth = lend(ctx, cell); /* the first borrower still has its memory */
    assert_ptr_not_equal(opq_buffer_data(fourth), opq_buffer_data(third));
    opq_buffer_release(third);
    opq_buffer_release(fourth);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(9, 9, 9, 9, 9, 9, 9, 9));
    expect_floats(ctx, read_window(ctx, shares, whole), FLOATS(-1, -2, -3, -4, -5, -6, -7, -8));
    expect_floats(ctx, reader, FLOATS(2, 4, 6, 8));
    opq_cell_release(shares);
    opq_cell_release(cell);
}

static void test_lending_what_was_never_written_or_was_resized(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = NULL;
    expect_ok(opq_cell_create(ctx, N * sizeof(float), &cell));
    opq_buffer *buffer = lend(ctx, cell);
    write_nines(buffer);
    opq_buffer_release(buffer);
    expect_ok(opq_cell_resize(ctx, cell, 2 * N * sizeof(float)));
    buffer = lend(ctx, cell);
    assert_true(opq_buffer_bytes(buffer) >= 2 * N * sizeof(float));
    opq_buffer_release(buffer);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(9, 9, 9, 9, 9, 9, 9, 9));
    opq_cell_release(cell);
}

/* A failed value has no memory to lend; the error is its own. */
static void test_lending_a_failed_value(void **state)
{
    static call failing = {.fails = true};
    opq_ctx *ctx = *state;
    opq_value *results[2];
    opq_buffer *buffer = NULL;
    record_call(ctx, &failing, leaf(ctx, 0), results);
    opq_cell *cell = cell_of(ctx, results[0]);
    opq_value_release(results[1]);
    assert_int_equal(opq_cell_lend(ctx, cell, OPQ_f32, OPQ_REASON_collective, &buffer), OPQ_INVALID);
    assert_non_null(strstr(opq_error(), "the call failed"));
    opq_cell_release(cell);
}

/* ---- what is refused leaves the cell as it was */

static void expect_refused_write(opq_ctx *ctx, opq_cell *cell, window w, opq_value *value, opq_status status,
                                 const char *part)
{
    opq_geometry geometry = geometry_of(&w);
    assert_int_equal(opq_cell_write(ctx, cell, &geometry, value), status);
    assert_non_null(strstr(opq_error(), part));
    opq_value_release(value);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
}

static void test_refused_windows(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    window late = {.rank = 1, .size = {N}, .stride = {1}, .offset = 1},
           early = {.rank = 1, .size = {N}, .stride = {1}, .offset = -1};
    window overlapping = {.rank = 1, .size = {N}, .stride = {0}}, shorter = {.rank = 1, .size = {N - 1}, .stride = {1}};
    expect_refused_write(ctx, cell, late, leaf(ctx, 9), OPQ_INVALID, "out of bounds for storage of size 32");
    expect_refused_write(ctx, cell, early, leaf(ctx, 9), OPQ_INVALID, "out of bounds");
    expect_refused_write(ctx, cell, overlapping, leaf(ctx, 9), OPQ_INVALID, "single memory location");
    expect_refused_write(ctx, cell, shorter, leaf(ctx, 9), OPQ_INTERNAL, "another dtype or shape");
    opq_geometry geometry = geometry_of(&late);
    opq_value *value = NULL;
    assert_int_equal(opq_cell_read(ctx, cell, &geometry, &value), OPQ_INVALID);
    opq_cell_release(cell);
}

static void test_an_empty_write_is_nothing(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    window none = {.rank = 1, .size = {0}, .stride = {1}, .offset = N};
    opq_value *empty = read_window(ctx, cell, none);
    write_window(ctx, cell, none, empty);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    opq_cell_release(cell);
}

/* A comparison makes a cell of bytes, and never takes the place of what it compares. */
static void test_the_short_way_of_a_test(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cells[] = {cell_of(ctx, leaf(ctx, 0)), cell_of(ctx, leaf(ctx, 3))}, *made = NULL;
    opq_type type = row_type();
    write_window(ctx, cells[1], odd, read_window(ctx, cells[0], odd));
    opq_value *shown = read_window(ctx, cells[1], whole), *compared = NULL;
    expect_ok(opq_materialize(ctx, &shown, 1, OPQ_REASON_item));
    opq_value_release(shown);
    assert_int_equal(opq_cell_record(ctx, OPQ_OP_eq, cells, NULL, 2, &type, NULL), OPQ_UNSUPPORTED);
    expect_ok(opq_cell_record(ctx, OPQ_OP_eq, cells, NULL, 2, &type, &made));
    assert_int_equal(opq_cell_bytes(made), N);
    opq_geometry bytes = geometry_of(&whole);
    bytes.dtype = OPQ_bool;
    expect_ok(opq_cell_read(ctx, made, &bytes, &compared));
    expect_ok(opq_materialize(ctx, &compared, 1, OPQ_REASON_item));
    assert_memory_equal(opq_buffer_data(opq_value_buffer(compared)), "\0\1\0\1\0\1\0\1", N);
    opq_value_release(compared);
    opq_cell *all[] = {cells[0], cells[1], made};
    for (size_t i = 0; i < COUNT(all); i++)
        opq_cell_release(all[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_write_through_a_view_shows_in_the_base),
        TEST(test_a_write_to_the_base_shows_in_a_view),
        TEST(test_a_reader_keeps_what_it_read),
        TEST(test_a_transposed_write),
        TEST(test_many_updates_are_one_run),
        TEST(test_an_update_leaves_the_value_before),
        TEST(test_updates_of_two_cells_with_one_value),
        TEST(test_another_dtype_reads_the_bytes),
        TEST(test_what_lies_behind_the_last_element_stays),
        TEST(test_resize_keeps_the_prefix),
        TEST(test_refused_windows),
        TEST(test_an_empty_write_is_nothing),
        TEST(test_lent_memory_is_what_the_cell_holds),
        TEST(test_lending_copies_only_for_other_readers),
        TEST(test_lending_what_was_never_written_or_was_resized),
        TEST(test_lending_a_failed_value),
        TEST(test_the_short_way_of_a_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
