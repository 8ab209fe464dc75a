/* Reductions: the order of operations against loops written from the rule's text, and what each fold makes of odd values. */
#include "evaluation.h"

/* ---- the rule, once more: recursive where the evaluator loops */

typedef float (*fold_fn)(float, float);
static float add(float a, float b) { return a + b; }
static float larger(float a, float b) { return a > b || a != a ? a : b; }

/* One chunk: lane l is the sum of elements l, l + 64, ...; halves fold onto each other. */
static float chunk_lane(fold_fn fold, float start, const float *x, int count, int lane, int width)
{
    if (width == OPQ_LANES) {
        float sum = start;
        for (int k = lane; k < count; k += OPQ_LANES)
            sum = fold(sum, x[k]);
        return sum;
    }
    return fold(chunk_lane(fold, start, x, count, lane, 2 * width),
                chunk_lane(fold, start, x, count, lane + width, 2 * width));
}

static float by_lanes(fold_fn fold, float start, const float *x, int rows, int run)
{
    float segments[256];
    int count = 0;
    for (int r = 0; r < rows; r++)
        for (int at = 0; at < run; at += 4096)
            segments[count++] = chunk_lane(fold, start, x + r * run + at, run - at < 4096 ? run - at : 4096, 0, 1);
    if (count == 0)
        return start;
    return count == 1 ? segments[0] : by_lanes(fold, start, segments, 1, count);
}

static float by_column(const float *x, int stride, int count)
{
    float total = 0;
    for (int at = 0; at < count;) {
        float block = 0;
        for (int g = 0; g < 64 && at < count; g++) {
            float group = 0;
            for (int k = 0; k < 8 && at < count; k++, at++)
                group += x[at * stride];
            block += group;
        }
        total += block;
    }
    return total;
}

/* Values of all sizes and signs, so that another order gives other bits. */
static float *values(int count)
{
    float *x = malloc(((size_t)count + 1) * sizeof *x);
    uint32_t word = 12345;
    assert_non_null(x);
    for (int i = 0; i < count; i++) {
        word = word * 1664525 + 1013904223;
        x[i] = ldexpf((float)(word >> 8) * 0x1p-24f - 0.5f, (int)(word >> 3 & 15));
    }
    return x;
}

static void reduce(opq_op which, opq_type type, const void *x, const int64_t *axes, int axis_count, void *out)
{
    evaluation e = evaluation_begin();
    opq_ref ref = input(&e, type, x);
    const opq_attr attr = {.key = OPQ_ATTR_axes, .count = axis_count, .ints = axes};
    evaluate(&e, op(&e, which, &ref, 1, &attr, 1), out);
}

static void assert_same_bits(float got, float expect)
{
    if (memcmp(&got, &expect, sizeof got) != 0)
        fail_msg("%a, not %a", (double)got, (double)expect);
}

/* ---- order */

static const int sizes[] = {0, 1, 2, 63, 64, 65, 127, 4095, 4096, 4097, 8192, 10000, 300000};

static void row_sums_use_lanes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        float *x = values(2 * sizes[i]), out[2];
        reduce(OPQ_OP_sum, TYPE(f32, 2, sizes[i]), x, INTS(1), 1, out);
        assert_same_bits(out[0], by_lanes(add, 0, x, 1, sizes[i]));
        assert_same_bits(out[1], by_lanes(add, 0, x + sizes[i], 1, sizes[i]));
        free(x);
    }
}

/* The runs of adjacent inner axes are one; each index of the others begins a segment. */
static void segments_begin_at_outer_axes(void **state)
{
    (void)state;
    float *x = values(3 * 5 * 2100 * 2), picked[3 * 2100 * 2], out[5];
    reduce(OPQ_OP_sum, TYPE(f32, 3, 5, 2100, 2), x, INTS(0, 2, 3), 3, out);
    for (int j = 0; j < 5; j++) {
        for (int i = 0; i < 3; i++)
            memcpy(picked + i * 4200, x + (i * 5 + j) * 4200, 4200 * sizeof *x);
        assert_same_bits(out[j], by_lanes(add, 0, picked, 3, 4200));
    }
    reduce(OPQ_OP_sum, TYPE(f32, 3, 5, 2100, 2), x, INTS(0, 1, 2, 3), 4, out);
    assert_same_bits(out[0], by_lanes(add, 0, x, 1, 63000));
    free(x);
}

static void column_sums_use_groups_and_blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i + 1 < COUNT(sizes); i++) {
        float *x = values(3 * sizes[i]), out[3];
        reduce(OPQ_OP_sum, TYPE(f32, sizes[i], 3), x, INTS(0), 1, out);
        for (int j = 0; j < 3; j++)
            assert_same_bits(out[j], by_column(x + j, 3, sizes[i]));
        free(x);
    }
}

static void orders_differ_where_they_should(void **state)
{
    (void)state;
    float *x = values(10000);
    assert_true(by_lanes(add, 0, x, 1, 10000) != by_column(x, 1, 10000));
    assert_true(by_lanes(add, 0, x, 2, 5000) != by_lanes(add, 0, x, 1, 10000));
    free(x);
}

/* Which zero amax gives depends on the order, too. */
static void amax_of_zeros_follows_the_order(void **state)
{
    (void)state;
    float x[130], out;
    for (int i = 0; i < 130; i++)
        x[i] = i % 3 == 0 ? 0.0f : -0.0f;
    for (int64_t count = 1; count <= 130; count++) {
        reduce(OPQ_OP_amax, TYPE(f32, count), x, INTS(0), 1, &out);
        assert_same_bits(out, by_lanes(larger, -INFINITY, x, 1, (int)count));
    }
}

/* 2048 + 1 has no f16; 2048 + 1 + 1 has. */
static void halves_accumulate_in_f32(void **state)
{
    (void)state;
    const uint16_t x[] = {opq_f32_to_f16(2048), opq_f32_to_f16(1), opq_f32_to_f16(1)};
    const uint16_t y[] = {opq_f32_to_bf16(256), opq_f32_to_bf16(1), opq_f32_to_bf16(1)};
    uint16_t out;
    reduce(OPQ_OP_sum, TYPE(f16, 3), x, INTS(0), 1, &out);
    assert_int_equal(out, opq_f32_to_f16(2050));
    reduce(OPQ_OP_sum, TYPE(bf16, 3, 1), y, INTS(0), 1, &out);
    assert_int_equal(out, opq_f32_to_bf16(258));
}

/* ---- folds, over f32[n] */

static const struct {
    const char *op;
    float x[4];
    int count;
    float expect;
} folds[] = {
    {"sum", {-0.0f}, 1, 0.0f}, /* from the identity on */
    {"sum", {0}, 0, 0.0f},
    {"prod", {2, 3, 4}, 3, 24},
    {"prod", {0}, 0, 1},
    {"amax", {1, NAN, 3}, 3, NAN},
    {"amax", {-INFINITY}, 1, -INFINITY},
    {"amin", {1, 3, NAN}, 3, NAN},
    {"amin", {2, 1, 3}, 3, 1},
    {"mean", {1, 2, 6}, 3, 3},
    {"mean", {0}, 0, NAN},
    {"norm2", {3, 4}, 2, 5},
    {"logsumexp", {-INFINITY, -INFINITY}, 2, -INFINITY},
    {"logsumexp", {INFINITY, 0}, 2, INFINITY},
    {"count", {1, 2, 3, 4}, 4, 4},
};

static void folds_of_floats(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(folds); i++) {
        opq_op which;
        float out = 99;
        assert_true(opq_op_find(folds[i].op, strlen(folds[i].op), &which));
        reduce(which, TYPE(f32, folds[i].count), folds[i].x, INTS(0), 1, &out);
        if (!same_float((double)out, (double)folds[i].expect))
            fail_msg("row %zu: %s gives %g, not %g", i, folds[i].op, (double)out, (double)folds[i].expect);
    }
}

static const struct {
    const char *op;
    float x[4];
    int64_t expect;
} positions[] = {
    {"argmax", {1, 3, 3, 2}, 1},
    {"argmax", {1, NAN, 3, NAN}, 1},
    {"argmax", {0.0f, -0.0f, 0.0f, -1}, 0},
    {"argmin", {2, 1, 3, 1}, 1},
    {"argmin", {1, 0, NAN, NAN}, 2},
    {"argmin", {-0.0f, 0.0f, 1, 1}, 0},
    {"argmax", {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
};

static void positions_are_the_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(positions); i++) {
        opq_op which;
        int64_t out = -1;
        assert_true(opq_op_find(positions[i].op, strlen(positions[i].op), &which));
        reduce(which, TYPE(f32, 2, 2), positions[i].x, INTS(0, 1), 2, &out);
        assert_int_equal(out, positions[i].expect);
    }
}

static void positions_count_reduced_axes_only(void **state)
{
    (void)state;
    const int32_t x[2][3][2] = {{{1, 9}, {2, 8}, {3, 7}}, {{4, 6}, {5, 5}, {0, 4}}};
    int64_t out[3];
    reduce(OPQ_OP_argmax, TYPE(i32, 2, 3, 2), x, INTS(0, 2), 2, out);
    assert_int_equal(out[0], 1);
    assert_int_equal(out[1], 1);
    assert_int_equal(out[2], 1);
    reduce(OPQ_OP_argmin, TYPE(i32, 2, 3, 2), x, INTS(0, 2), 2, out);
    assert_int_equal(out[0], 0);
    assert_int_equal(out[1], 0);
    assert_int_equal(out[2], 2);
}

static void folds_of_integers(void **state)
{
    (void)state;
    const uint8_t bytes[] = {200, 100, 7};
    const int8_t signed_bytes[] = {-128, -5};
    const int8_t positive_bytes[] = {127, 100};
    const int64_t large[] = {INT64_MAX, 1};
    const float truth[] = {0, NAN};
    int64_t wide;
    uint8_t byte;
    int8_t signed_byte;
    reduce(OPQ_OP_sum, TYPE(u8, 3), bytes, INTS(0), 1, &wide);
    assert_int_equal(wide, 307);
    reduce(OPQ_OP_sum, TYPE(i64, 2), large, INTS(0), 1, &wide);
    assert_true(wide == INT64_MIN);
    reduce(OPQ_OP_prod, TYPE(u8, 3), bytes, INTS(0), 1, &wide);
    assert_int_equal(wide, 140000);
    reduce(OPQ_OP_amin, TYPE(u8, 3), bytes, INTS(0), 1, &byte);
    assert_int_equal(byte, 7);
    reduce(OPQ_OP_amax, TYPE(i8, 2), signed_bytes, INTS(0), 1, &signed_byte);
    assert_int_equal(signed_byte, -5);
    reduce(OPQ_OP_amin, TYPE(i8, 2), positive_bytes, INTS(0), 1, &signed_byte);
    assert_int_equal(signed_byte, 100);
    reduce(OPQ_OP_amin, TYPE(i64, 1), large, INTS(0), 1, &wide);
    assert_true(wide == INT64_MAX);
    reduce(OPQ_OP_any, TYPE(f32, 2), truth, INTS(0), 1, &byte);
    assert_int_equal(byte, 1);
    reduce(OPQ_OP_all, TYPE(f32, 2), truth, INTS(0), 1, &byte);
    assert_int_equal(byte, 0);
    reduce(OPQ_OP_all, TYPE(f32, 1), truth + 1, INTS(0), 1, &byte);
    assert_int_equal(byte, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_sums_use_lanes),
        cmocka_unit_test(segments_begin_at_outer_axes),
        cmocka_unit_test(column_sums_use_groups_and_blocks),
        cmocka_unit_test(orders_differ_where_they_should),
        cmocka_unit_test(amax_of_zeros_follows_the_order),
        cmocka_unit_test(halves_accumulate_in_f32),
        cmocka_unit_test(folds_of_floats),
        cmocka_unit_test(positions_are_the_first),
        cmocka_unit_test(positions_count_reduced_axes_only),
        cmocka_unit_test(folds_of_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
