/* The evaluator on whole tensors: views, concat, index families, matrix products, random numbers. */
#include "evaluation.h"

#include "opaque/scalar_math.h"

/* ---- views of i32 0, 1, 2, ... */

static const struct {
    opq_op op;
    opq_type from, to;
    opq_attr attrs[2];
    int attr_count;
    int32_t expect[8];
} views[] = {
#define SHAPE(...)                                                                                                     \
    {                                                                                                                  \
        .dtype = OPQ_i32, .rank = LENGTH(__VA_ARGS__), .size = {__VA_ARGS__}                                           \
    }
    {OPQ_OP_permute, SHAPE(2, 3), SHAPE(3, 2), {INTS_ATTR(dims, 1, 0)}, 1, {0, 3, 1, 4, 2, 5}},
    {OPQ_OP_permute, SHAPE(1, 2, 3), SHAPE(3, 1, 2), {INTS_ATTR(dims, 2, 0, 1)}, 1, {0, 3, 1, 4, 2, 5}},
    {OPQ_OP_reshape, SHAPE(2, 3), SHAPE(3, 2), {{0}}, 0, {0, 1, 2, 3, 4, 5}},
    {OPQ_OP_expand, SHAPE(3, 1), SHAPE(3, 2), {{0}}, 0, {0, 0, 1, 1, 2, 2}},
    {OPQ_OP_expand, SHAPE(2), SHAPE(3, 2), {{0}}, 0, {0, 1, 0, 1, 0, 1}},
    {OPQ_OP_slice, SHAPE(4, 5), SHAPE(2, 2), {INTS_ATTR(start, 1, 0), INTS_ATTR(step, 2, 3)}, 2, {5, 8, 15, 18}},
    {OPQ_OP_strided, SHAPE(12), SHAPE(2, 3), {INT_ATTR(offset, 1), INTS_ATTR(strides, 4, 1)}, 2, {1, 2, 3, 5, 6, 7}},
    {OPQ_OP_strided, SHAPE(3, 4), SHAPE(2, 3), {INT_ATTR(offset, 0), INTS_ATTR(strides, 1, 2)}, 2, {0, 2, 4, 1, 3, 5}},
    {OPQ_OP_strided, SHAPE(3), SHAPE(4), {INT_ATTR(offset, 2), INTS_ATTR(strides, 0)}, 2, {2, 2, 2, 2}},
    {OPQ_OP_slice, SHAPE(4, 5), SHAPE(2, 2), {INTS_ATTR(start, 3, 4), INTS_ATTR(step, -2, -3)}, 2, {19, 16, 9, 6}},
    {OPQ_OP_pad,
     SHAPE(2, 2),
     SHAPE(2, 4),
     {INTS_ATTR(start, -1, 1), {.key = OPQ_ATTR_value, .number.i = 9}},
     2,
     {9, 2, 3, 9, 9, 9, 9, 9}},
    {OPQ_OP_slice, SHAPE(4), SHAPE(0), {INTS_ATTR(start, 4), INTS_ATTR(step, 1)}, 2, {0}},
};

static void views_follow_the_table(void **state)
{
    (void)state;
    int32_t x[20], out[8];
    for (int i = 0; i < 20; i++)
        x[i] = i;
    for (size_t i = 0; i < COUNT(views); i++) {
        evaluation e = evaluation_begin();
        opq_ref ref = input(&e, views[i].from, x);
        bool typed = views[i].op != OPQ_OP_permute;
        ref = typed ? op_typed(&e, views[i].op, views[i].to, &ref, 1, views[i].attrs, views[i].attr_count)
                    : op(&e, views[i].op, &ref, 1, views[i].attrs, views[i].attr_count);
        evaluate(&e, ref, out);
        if (memcmp(out, views[i].expect, (size_t)opq_type_bytes(&views[i].to)) != 0)
            fail_msg("row %zu: %s", i, opq_op_info_of(views[i].op)->name);
    }
}

/* complex numbers: bytes that are moved */
static void views_move_raw_bytes(void **state)
{
    (void)state;
    const uint64_t x[] = {1, 2, 3, 4}, expect[] = {1, 3, 2, 4};
    uint64_t out[4];
    evaluation e = evaluation_begin();
    opq_ref ref = input(&e, TYPE(raw64, 2, 2), x);
    evaluate(&e, op(&e, OPQ_OP_permute, &ref, 1, ATTRS(INTS_ATTR(dims, 1, 0))), out);
    assert_memory_equal(out, expect, sizeof expect);
}

static void update_writes_a_window(void **state)
{
    (void)state;
    const int32_t x[] = {0, 1, 2, 3, 4, 5}, value[] = {10, 20}, expect[] = {0, 10, 2, 3, 20, 5};
    int32_t out[6];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(i32, 2, 3), x), input(&e, TYPE(i32, 2), value)};
    evaluate(&e, op(&e, OPQ_OP_update, refs, 2, ATTRS(INT_ATTR(offset, 1), INTS_ATTR(sizes, 2), INTS_ATTR(strides, 3))),
             out);
    assert_memory_equal(out, expect, sizeof expect);
}

static void concat_along_the_inner_axis(void **state)
{
    (void)state;
    const int32_t a[] = {1, 2}, b[] = {3, 4, 5, 6}, expect[] = {1, 3, 4, 2, 5, 6};
    int32_t out[6];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(i32, 2, 1), a), input(&e, TYPE(i32, 2, 0), NULL), input(&e, TYPE(i32, 2, 2), b)};
    evaluate(&e, op(&e, OPQ_OP_concat, refs, 3, ATTRS(INT_ATTR(axis, 1))), out);
    assert_memory_equal(out, expect, sizeof expect);
}

/* ---- index families */

static void index_select_takes_a_shape(void **state)
{
    (void)state;
    const float x[] = {0, 1, 2, 3, 4, 5}, expect[] = {2, 0, 1, 1, 5, 3, 4, 4};
    const int64_t index[] = {2, 0, 1, 1};
    float out[8];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(f32, 2, 3), x), input(&e, TYPE(i64, 2, 2), index)};
    opq_ref ref = op(&e, OPQ_OP_index_select, refs, 2, ATTRS(INT_ATTR(axis, 1)));
    opq_type type = opq_graph_type(e.graph, ref), expect_type = TYPE(f32, 2, 2, 2);
    assert_true(opq_type_equal(&type, &expect_type));
    evaluate(&e, ref, out);
    assert_memory_equal(out, expect, sizeof expect);
}

static void gather_reads_along_the_axis(void **state)
{
    (void)state;
    const float x[] = {0, 1, 2, 3, 4, 5}, expect[] = {2, 0, 1, 1};
    const int64_t index[] = {2, 0, 1, 1};
    float out[4];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(f32, 2, 3), x), input(&e, TYPE(i64, 1, 4), index)};
    evaluate(&e, op(&e, OPQ_OP_gather, refs, 2, ATTRS(INT_ATTR(axis, 1))), out);
    assert_memory_equal(out, expect, sizeof expect);
}

static void index_add_adds_slices(void **state)
{
    (void)state;
    const int32_t x[] = {1, 2, 3, 4}, source[] = {10, 20, 30, 40, 50, 60};
    const int32_t expect_rows[] = {1 + 10 + 50, 2 + 20 + 60, 3 + 30, 4 + 40};
    const int64_t columns[] = {0, 1, 0}, rows[] = {0, 1, 0};
    int32_t out[4];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(i32, 2, 2), x), input(&e, TYPE(i64, 3), rows), input(&e, TYPE(i32, 3, 2), source)};
    evaluate(&e, op(&e, OPQ_OP_index_add, refs, 3, ATTRS(INT_ATTR(axis, 0))), out);
    assert_memory_equal(out, expect_rows, sizeof expect_rows);

    const int32_t expect_columns[] = {1 + 10 + 30, 2 + 20, 3 + 40 + 60, 4 + 50};
    e = evaluation_begin();
    opq_ref turned[] = {input(&e, TYPE(i32, 2, 2), x), input(&e, TYPE(i64, 3), columns),
                        input(&e, TYPE(i32, 2, 3), source)};
    evaluate(&e, op(&e, OPQ_OP_index_add, turned, 3, ATTRS(INT_ATTR(axis, 1))), out);
    assert_memory_equal(out, expect_columns, sizeof expect_columns);
}

/* The source may be larger than the index; what lies outside is not read. */
static void scatter_add_walks_the_index(void **state)
{
    (void)state;
    const int32_t x[] = {0, 0, 0, 0, 0, 0}, source[] = {1, 2, 99, 3, 4, 99}, expect[] = {0, 1 + 2, 0, 4, 0, 3};
    const int64_t index[] = {1, 1, 2, 0};
    int32_t out[6];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(i32, 2, 3), x), input(&e, TYPE(i64, 2, 2), index),
                      input(&e, TYPE(i32, 2, 3), source)};
    evaluate(&e, op(&e, OPQ_OP_scatter_add, refs, 3, ATTRS(INT_ATTR(axis, 1))), out);
    assert_memory_equal(out, expect, sizeof expect);
}

/* ((1e8 + 1) + 1) - 1e8 is 0 in f32, from the left; bf16 rounds at every step. */
static void additions_ascend_and_round_each_time(void **state)
{
    (void)state;
    const float x = 1e8f, source[] = {1, 1, -1e8f};
    const int64_t index[] = {0, 0, 0};
    float out = 7;
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(f32, 1), &x), input(&e, TYPE(i64, 3), index), input(&e, TYPE(f32, 3), source)};
    evaluate(&e, op(&e, OPQ_OP_scatter_add, refs, 3, ATTRS(INT_ATTR(axis, 0))), &out);
    assert_true(out == 0);

    const uint16_t half = opq_f32_to_bf16(256), ones[] = {opq_f32_to_bf16(1), opq_f32_to_bf16(1), opq_f32_to_bf16(1)};
    uint16_t half_out = 0;
    e = evaluation_begin();
    opq_ref halves[] = {input(&e, TYPE(bf16, 1), &half), input(&e, TYPE(i64, 3), index), input(&e, TYPE(bf16, 3), ones)};
    evaluate(&e, op(&e, OPQ_OP_index_add, halves, 3, ATTRS(INT_ATTR(axis, 0))), &half_out);
    assert_int_equal(half_out, half);
}

static const struct {
    opq_op op;
    int arity, axis;
    int64_t index;
    const char *message;
} out_of_range[] = {
    {OPQ_OP_gather, 2, 0, 9, "gather: index 9 is out of bounds for dimension 0 with size 4 of f32[4,2]"},
    {OPQ_OP_gather, 2, 0, -1, "gather: index -1 is out of bounds for dimension 0 with size 4 of f32[4,2]"},
    {OPQ_OP_gather, 2, 1, 2, "gather: index 2 is out of bounds for dimension 1 with size 2 of f32[4,2]"},
    {OPQ_OP_index_select, 2, 0, 4, "index_select: index 4 is out of bounds for dimension 0 with size 4 of f32[4,2]"},
    {OPQ_OP_index_add, 3, 0, -5, "index_add: index -5 is out of bounds for dimension 0 with size 4 of f32[4,2]"},
    {OPQ_OP_scatter_add, 3, 1, INT64_MAX,
     "scatter_add: index 9223372036854775807 is out of bounds for dimension 1 with size 2 of f32[4,2]"},
};

static void indices_are_checked(void **state)
{
    (void)state;
    const float x[8] = {0};
    for (size_t i = 0; i < COUNT(out_of_range); i++) {
        opq_op which = out_of_range[i].op;
        bool flat = which == OPQ_OP_index_select || which == OPQ_OP_index_add;
        opq_attr axis = INT_ATTR(axis, out_of_range[i].axis);
        float out[8];
        evaluation e = evaluation_begin();
        opq_ref refs[] = {input(&e, TYPE(f32, 4, 2), x),
                          input(&e, flat ? TYPE(i64, 1) : TYPE(i64, 1, 1), &out_of_range[i].index),
                          input(&e, flat ? TYPE(f32, 1, 2) : TYPE(f32, 1, 1), x)};
        opq_ref ref = op(&e, which, refs, out_of_range[i].arity, &axis, 1);
        opq_status expected = which == OPQ_OP_index_select ? OPQ_OUT_OF_RANGE : OPQ_INVALID; /* as PyTorch */
        assert_int_equal(try_evaluate(&e, ref, out), expected);
        assert_string_equal(opq_error(), out_of_range[i].message);
    }
}

static void the_message_names_the_line(void **state)
{
    (void)state;
    const float x = 0;
    const int64_t index = 3;
    float out;
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(f32, 1), &x), input(&e, TYPE(i64, 1), &index)};
    opq_ref ref = op(&e, OPQ_OP_gather, refs, 2, ATTRS(INT_ATTR(axis, 0)));
    e.graph->nodes[ref].line = "train.py:41";
    assert_int_equal(try_evaluate(&e, ref, &out), OPQ_INVALID);
    assert_string_equal(
        opq_error(),
        "gather (recorded at train.py:41): index 3 is out of bounds for dimension 0 with size 1 of f32[1]");
}

/* ---- matrix products */

enum { M = 3, K = 37, N = 4 };

static float a_at(int batch, int i, int k) { return (float)((batch * 31 + i * 7 + k * 13) % 17 - 8) / 3; }
static float b_at(int batch, int k, int j) { return (float)((batch * 29 + k * 5 + j * 11) % 19 - 9) / 7; }

static void matmul_is_an_fma_chain(void **state)
{
    (void)state;
    for (int turns = 0; turns < 4; turns++) {
        bool turn_a = turns & 1, turn_b = turns & 2;
        float a[2 * M * K], b[K * N], out[2 * M * N];
        for (int batch = 0; batch < 2; batch++)
            for (int i = 0; i < M; i++)
                for (int k = 0; k < K; k++)
                    a[batch * M * K + (turn_a ? k * M + i : i * K + k)] = a_at(batch, i, k);
        for (int k = 0; k < K; k++)
            for (int j = 0; j < N; j++)
                b[turn_b ? j * K + k : k * N + j] = b_at(0, k, j);

        evaluation e = evaluation_begin();
        opq_ref refs[] = {input(&e, turn_a ? TYPE(f32, 2, K, M) : TYPE(f32, 2, M, K), a),
                          input(&e, turn_b ? TYPE(f32, N, K) : TYPE(f32, K, N), b)};
        evaluate(&e, op(&e, OPQ_OP_matmul, refs, 2, ATTRS(INT_ATTR(transpose_a, turn_a), INT_ATTR(transpose_b, turn_b))),
                 out);
        for (int n = 0; n < 2 * M * N; n++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum = fmaf(a_at(n / (M * N), n / N % M, k), b_at(0, k, n % N), sum);
            assert_memory_equal(&out[n], &sum, sizeof sum);
        }
    }
}

/* Of two products the second one is added first; no denormals, not even behind a sum that fmaf rounds up to the smallest normal number. */
static void matmul_by_pairs(void **state)
{
    (void)state;
    static const struct {
        float a[5], b[5], pairs, chain;
        int count;
    } rows[] = {
        {{0, 1, -1, 1}, {0, 1, 1, 0x1p-25f}, 0, 0x1p-25f, 4},
        {{1, 1, -1}, {1, 0x1p-25f, 1}, 0, 0, 3},
        {{0, 0x1p-126f, 0x1p-75f}, {0, 1, -0x1.8p-76f}, 0, 0x1p-126f, 3}, /* 3/4 of a place below */
        {{0, 0x1p-126f, 0x1p-75f}, {0, 1, -0x1p-76f}, 0x1p-126f, 0x1p-126f, 3},
        {{0x1p-126f, 1}, {1, 0x1p-130f}, 0x1p-126f, 0x1p-126f + 0x1p-130f, 2},
        {{-0x1p-126f}, {0x1p-3f}, -0.0f, -0x1p-129f, 1},
        {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, 55, 55, 5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pairs = 0; pairs < 2; pairs++) {
            uint16_t a[5], b[5], out, expect = opq_f32_to_bf16(pairs ? rows[i].pairs : rows[i].chain);
            int count = rows[i].count;
            for (int k = 0; k < count; k++)
                a[k] = opq_f32_to_bf16(rows[i].a[k]), b[k] = opq_f32_to_bf16(rows[i].b[k]);
            evaluation e = evaluation_begin();
            opq_ref refs[] = {input(&e, TYPE(bf16, 1, count), a), input(&e, TYPE(bf16, count, 1), b)};
            evaluate(&e, op(&e, OPQ_OP_matmul, refs, 2, ATTRS(INT_ATTR(pairs, pairs))), &out);
            if (out != expect)
                fail_msg("row %d, pairs %d: %a", (int)i, pairs, opq_bf16_to_f32(out));
        }
}

static void matmul_broadcasts_batches(void **state)
{
    (void)state;
    const int32_t a[] = {1, 2, 3}, b[] = {10, 20}, expect[] = {10, 20, 20, 40, 30, 60};
    int32_t out[6];
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(i32, 3, 1, 1, 1), a), input(&e, TYPE(i32, 2, 1, 1), b)};
    evaluate(&e, op(&e, OPQ_OP_matmul, refs, 2, NO_ATTRS), out);
    assert_memory_equal(out, expect, sizeof expect);
}

/* One rounding at the end: twice 3/8 of an ULP of bf16 is lost if each step rounds. */
static void matmul_of_other_dtypes(void **state)
{
    (void)state;
    const uint16_t a[] = {opq_f32_to_bf16(1), opq_f32_to_bf16(0x3p-10f), opq_f32_to_bf16(0x3p-10f)};
    const uint16_t ones[] = {opq_f32_to_bf16(1), opq_f32_to_bf16(1), opq_f32_to_bf16(1)};
    uint16_t half = 0;
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(bf16, 1, 3), a), input(&e, TYPE(bf16, 3, 1), ones)};
    evaluate(&e, op(&e, OPQ_OP_matmul, refs, 2, NO_ATTRS), &half);
    assert_int_equal(half, opq_f32_to_bf16(1 + 0x1p-7f));

    const int8_t x[] = {100, 100}, y[] = {2, 1};
    int32_t sum = 0;
    e = evaluation_begin();
    opq_ref bytes[] = {input(&e, TYPE(i8, 1, 2), x), input(&e, TYPE(i8, 2, 1), y)};
    evaluate(&e, op(&e, OPQ_OP_matmul, bytes, 2, NO_ATTRS), &sum);
    assert_int_equal(sum, 300);

    const int16_t z[] = {30000, 30000}, w[] = {2, 1};
    int16_t wrapped = 0;
    e = evaluation_begin();
    opq_ref shorts[] = {input(&e, TYPE(i16, 1, 2), z), input(&e, TYPE(i16, 2, 1), w)};
    evaluate(&e, op(&e, OPQ_OP_matmul, shorts, 2, NO_ATTRS), &wrapped);
    assert_int_equal(wrapped, 24464);

    /* the square of 1 + 2^-30 keeps its last term until it is added */
    const double u[] = {-1, 1 + 0x1p-30}, v[] = {1 + 0x1p-29, 1 + 0x1p-30};
    double wide = 0;
    e = evaluation_begin();
    opq_ref doubles[] = {input(&e, TYPE(f64, 1, 2), u), input(&e, TYPE(f64, 2, 1), v)};
    evaluate(&e, op(&e, OPQ_OP_matmul, doubles, 2, NO_ATTRS), &wide);
    assert_true(wide == 0x1p-60);
}

static void matmul_over_nothing_is_zero(void **state)
{
    (void)state;
    float out[2] = {7, 7};
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, TYPE(f32, 2, 0), NULL), input(&e, TYPE(f32, 0, 1), NULL)};
    evaluate(&e, op(&e, OPQ_OP_matmul, refs, 2, NO_ATTRS), out);
    assert_true(out[0] == 0 && out[1] == 0);
}

/* ---- random numbers */

/* Known answers published with Random123. */
static const struct {
    uint32_t counter[4], key[2], words[4];
} philox[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void philox_known_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(philox); i++) {
        uint32_t words[4];
        opq_philox(philox[i].counter, philox[i].key, words);
        assert_memory_equal(words, philox[i].words, sizeof words);
    }
}

static void draw(opq_op which, int64_t seed, int64_t offset, opq_type type, float *out)
{
    evaluation e = evaluation_begin();
    opq_ref refs[] = {input(&e, SCALAR(i64), &seed), input(&e, SCALAR(i64), &offset)};
    evaluate(&e, op_typed(&e, which, type, refs, 2, NO_ATTRS), out);
}

static void uniform_takes_the_first_word(void **state)
{
    (void)state;
    float out[4], all[2];
    draw(OPQ_OP_uniform, 0, 0, TYPE(f32, 2, 2), out);
    assert_true(out[0] == (float)(0x6627e8d5 >> 8) * 0x1p-24f);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t words[4];
        opq_philox((const uint32_t[]){i, 0, 0, 0}, (const uint32_t[]){0, 0}, words);
        assert_true(out[i] == (float)(words[0] >> 8) * 0x1p-24f);
        assert_true(out[i] >= 0 && out[i] < 1);
    }
    /* seed and offset are 64 bits wide and go where they should */
    uint32_t words[4];
    opq_philox((const uint32_t[]){1, 0, 5, 6}, (const uint32_t[]){3, 4}, words);
    draw(OPQ_OP_uniform, (INT64_C(4) << 32) + 3, (INT64_C(6) << 32) + 5, TYPE(f32, 2), all);
    assert_true(all[1] == (float)(words[0] >> 8) * 0x1p-24f);
}

static void normal_has_the_moments(void **state)
{
    (void)state;
    enum { SAMPLES = 20000 };
    static float out[SAMPLES];
    double sum = 0, squares = 0;
    draw(OPQ_OP_normal, 42, 7, TYPE(f32, SAMPLES), out);
    for (int i = 0; i < SAMPLES; i++) {
        assert_true(isfinite(out[i]));
        sum += (double)out[i];
        squares += (double)out[i] * (double)out[i];
    }
    assert_true(fabs(sum / SAMPLES) < 0.03);
    assert_true(fabs(squares / SAMPLES - 1) < 0.05);

    double u = ((double)(0x6627e8d5 >> 8) + 1) * 0x1p-24, v = (double)(0xe169c58d >> 8) * 0x1p-24;
    draw(OPQ_OP_normal, 0, 0, TYPE(f32, 1), out);
    assert_true(fabs((double)out[0] - sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v)) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_follow_the_table),
        cmocka_unit_test(views_move_raw_bytes),
        cmocka_unit_test(update_writes_a_window),
        cmocka_unit_test(concat_along_the_inner_axis),
        cmocka_unit_test(index_select_takes_a_shape),
        cmocka_unit_test(gather_reads_along_the_axis),
        cmocka_unit_test(index_add_adds_slices),
        cmocka_unit_test(scatter_add_walks_the_index),
        cmocka_unit_test(additions_ascend_and_round_each_time),
        cmocka_unit_test(indices_are_checked),
        cmocka_unit_test(the_message_names_the_line),
        cmocka_unit_test(matmul_is_an_fma_chain),
        cmocka_unit_test(matmul_by_pairs),
        cmocka_unit_test(matmul_broadcasts_batches),
        cmocka_unit_test(matmul_of_other_dtypes),
        cmocka_unit_test(matmul_over_nothing_is_zero),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(uniform_takes_the_first_word),
        cmocka_unit_test(normal_has_the_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
