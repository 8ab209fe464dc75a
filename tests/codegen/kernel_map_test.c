/* map kernels against the reference evaluator: every row with an instruction of its own, every cast, strides, sizes,
 * masks. */
#include "kernel_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const opq_dtype dtypes[] = {OPQ_bool, OPQ_u8,  OPQ_i8,   OPQ_i16, OPQ_i32,
                                   OPQ_i64,  OPQ_f16, OPQ_bf16, OPQ_f32, OPQ_f64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes, COUNT = 45 * 45 + 3 };

/* A graph of one op over dense inputs; false if the op refuses these dtypes or would cast them first. */
static bool make_graph(opq_op op, opq_dtype dtype, opq_graph **out_graph, opq_type *out_type)
{
    const opq_op_info *info = opq_op_info_of(op);
    int64_t size[1] = {COUNT};
    opq_ref inputs[3], result;
    assert_int_equal(opq_graph_create("op", out_graph), OPQ_OK);
    for (int i = 0; i < info->arity; i++) {
        opq_type type = opq_type_make(op == OPQ_OP_where && i == 0 ? OPQ_bool : dtype, 1, size);
        assert_int_equal(opq_graph_input(*out_graph, &type, &inputs[i]), OPQ_OK);
    }
    if (opq_graph_op(*out_graph, op, inputs, info->arity, NULL, 0, &result) != OPQ_OK || result != info->arity) {
        opq_graph_destroy(*out_graph);
        return false;
    }
    assert_int_equal(opq_graph_output(*out_graph, result), OPQ_OK);
    *out_type = opq_graph_type(*out_graph, result);
    return true;
}

/* 0 becomes 1. */
static void make_divisor(opq_dtype dtype, char *data, int count)
{
    static const char zero[8];
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    for (int i = 0; i < count; i++)
        if (memcmp(data + (size_t)i * bytes, zero, bytes) == 0)
            data[(size_t)i * bytes] = 1;
}

static bool text_has(const body *b, const char *words)
{
    opq_text text = {0};
    opq_arena arena = {0};
    opq_loops loops = body_loops(b, &arena);
    assert_int_equal(opq_codegen_print(wide_jit(), &loops, "llvm", &text), OPQ_OK);
    bool found = strstr(text.data, words) != NULL;
    opq_text_drop(&text);
    opq_arena_drop(&arena);
    return found;
}

/* `uses`: how many times the op is there; the last result is stored. */
static void check_op(opq_op op, opq_dtype dtype, int uses)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_graph *graph;
    opq_type type;
    if (op == OPQ_OP_div_trunc &&
        computing(dtype) != dtype) /* the evaluator rounds the quotient before it cuts; a body must say so */
        return;
    if (!make_graph(op, dtype, &graph, &type))
        return;
    body b;
    launch l = {.any_nan = opq_op_is_math(op) ? dtype : OPQ_bool};
    int operands[3] = {-1, -1, -1};
    const void *inputs[3];
    body_start(&b, OPQ_KERNEL_map, "k");
    for (int i = 0; i < info->arity; i++) {
        opq_dtype from = op == OPQ_OP_where && i == 0 ? OPQ_bool : dtype;
        operands[i] = body_load(&b, i, from, "1");
        l.buffers[i] = buffer_make((size_t)(COUNT * opq_dtype_bytes(from)));
        fill_special(from, l.buffers[i].data, COUNT, i == 0 ? 1 : 45);
        if (i == 1 && (info->flags & OPQ_FLAG_CHECKED) && opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT)
            make_divisor(from, l.buffers[i].data, COUNT);
        inputs[i] = l.buffers[i].data;
    }
    opq_dtype to = (opq_dtype)type.dtype;
    int result = -1;
    for (int i = 0; i < uses; i++)
        result = body_op(&b, op, computing(to), operands[0], operands[1], operands[2]);
    body_store(&b, result, info->arity, to, "1");
    if (uses > 1)
        assert_true(text_has(&b, "call fastcc"));
    l.buffers[info->arity] = buffer_make((size_t)(COUNT * opq_dtype_bytes(to)));
    l.buffer_count = info->arity + 1;
    launch_dims(&l, &b, (int64_t[]){COUNT});
    launch_run(&l, &b, NULL);
    void *expected = malloc((size_t)(COUNT * opq_dtype_bytes(to)));
    evaluate(graph, inputs, expected);
    assert_same(to, l.buffers[info->arity].data, expected, COUNT, info->name);
    free(expected);
    launch_drop(&l);
    opq_graph_destroy(graph);
}

static void test_ops(void **state)
{
    (void)state;
    int rows = 0;
    for (int op = 0; op < OPQ_OP_COUNT; op++) {
        const opq_op_info *info = opq_op_info_of((opq_op)op);
        opq_lowering_kind kind = opq_op_lowering((opq_op)op)->kind;
        bool has_instruction = kind == OPQ_LOWER_ARITH || kind == OPQ_LOWER_CMP || kind == OPQ_LOWER_CALL;
        if (info->class_ != OPQ_CLASS_EWISE || !has_instruction)
            continue;
        rows++;
        for (int d = 0; d < DTYPES; d++)
            if (opq_op_computes((opq_op)op, dtypes[d]))
                check_op((opq_op)op, dtypes[d], 1);
    }
    assert_true(rows > 50);
}

/* Where a kernel has many math functions they are called: the same bits as inlined ones. */
static void test_shared_math(void **state)
{
    (void)state;
    int checked = 0;
    for (int op = 0; op < OPQ_OP_COUNT; op++)
        for (int d = 0; d < DTYPES; d++) {
            bool computes = (dtypes[d] == OPQ_f32 || dtypes[d] == OPQ_f64) && opq_op_computes((opq_op)op, dtypes[d]);
            if (!computes || !opq_op_is_math((opq_op)op))
                continue;
            check_op((opq_op)op, dtypes[d], 100);
            checked++;
        }
    assert_true(checked > 30);
    body b;
    body_start(&b, OPQ_KERNEL_map, "k");
    body_store(&b, body_op(&b, OPQ_OP_exp, OPQ_f32, body_load(&b, 0, OPQ_f32, "1"), -1, -1), 1, OPQ_f32, "1");
    assert_false(text_has(&b, "call fastcc")); /* one is inlined */
}

static void check_cast(opq_dtype from, opq_dtype to)
{
    body b;
    launch l = {.buffer_count = 2};
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, from, "1");
    body_store(&b, from == to ? x : body_cast(&b, x, to), 1, to, "1");
    l.buffers[0] = buffer_make((size_t)(COUNT * opq_dtype_bytes(from)));
    l.buffers[1] = buffer_make((size_t)(COUNT * opq_dtype_bytes(to)));
    fill_special(from, l.buffers[0].data, 100, 1);
    fill_random(from, l.buffers[0].data + 100 * opq_dtype_bytes(from), COUNT - 100, 1);
    launch_dims(&l, &b, (int64_t[]){COUNT});
    launch_run(&l, &b, NULL);

    opq_graph *graph;
    opq_ref input, result;
    opq_type from_type = opq_type_make(from, 1, (int64_t[]){COUNT}), to_type = opq_type_make(to, 1, (int64_t[]){COUNT});
    assert_int_equal(opq_graph_create("cast", &graph), OPQ_OK);
    assert_int_equal(opq_graph_input(graph, &from_type, &input), OPQ_OK);
    assert_int_equal(opq_graph_op_typed(graph, OPQ_OP_cast, &to_type, &input, 1, NULL, 0, &result), OPQ_OK);
    assert_int_equal(opq_graph_output(graph, result), OPQ_OK);
    void *expected = malloc((size_t)(COUNT * opq_dtype_bytes(to)));
    const void *inputs[1] = {l.buffers[0].data};
    evaluate(graph, inputs, expected);
    assert_same(to, l.buffers[1].data, expected, COUNT, opq_dtype_name(from));
    free(expected);
    opq_graph_destroy(graph);
    launch_drop(&l);
}

/* Any exponents, and near multiples: quotients of up to 2^2098, whose remainders are exact all the same. */
static void test_fmod(void **state)
{
    enum { PAIRS = 1 << 16 };
    (void)state;
    body b;
    launch l = {.buffer_count = 3, .any_nan = OPQ_f64};
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, OPQ_f64, "1"), y = body_load(&b, 1, OPQ_f64, "1");
    body_store(&b, body_op(&b, OPQ_OP_fmod, OPQ_f64, x, y, -1), 2, OPQ_f64, "1");
    for (int i = 0; i < 3; i++)
        l.buffers[i] = buffer_make(PAIRS * sizeof(double));
    uint64_t bits[2] = {1, 2};
    double *operand[2] = {(double *)l.buffers[0].data, (double *)l.buffers[1].data}, *expected;
    for (int i = 0; i < PAIRS; i++) {
        for (int o = 0; o < 2; o++) {
            bits[o] = bits[o] * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            uint64_t mixed = bits[o] ^ bits[o] >> 29;
            memcpy(&operand[o][i], &mixed, sizeof mixed);
        }
        if (i % 4 == 1) /* a multiple, or the number below or above one */
            operand[0][i] =
                nextafter(operand[1][i] * (double)(bits[0] >> (11 + bits[1] % 53)), i % 8 == 1 ? INFINITY : 0);
        if (i % 4 == 2) /* denormal */
            operand[1][i] = ldexp((double)(bits[1] >> 40), -1074);
    }
    expected = malloc(PAIRS * sizeof *expected);
    for (int i = 0; i < PAIRS; i++)
        expected[i] = fmod(operand[0][i], operand[1][i]);
    launch_dims(&l, &b, (int64_t[]){PAIRS});
    launch_run(&l, &b, NULL);
    assert_same(OPQ_f64, l.buffers[2].data, expected, PAIRS, "fmod");
    free(expected);
    launch_drop(&l);
}

static void test_casts(void **state)
{
    (void)state;
    for (int from = 0; from < DTYPES; from++)
        for (int to = 0; to < DTYPES; to++)
            check_cast(dtypes[from], dtypes[to]);
}

/* A rounding cast in the middle of a body. */
static void test_rounding(void **state)
{
    (void)state;
    for (int narrow = OPQ_f16; narrow <= OPQ_bf16; narrow++) {
        body b;
        launch l = {.buffer_count = 2};
        body_start(&b, OPQ_KERNEL_map, "k");
        body_store(&b, body_cast(&b, body_load(&b, 0, OPQ_f32, "1"), (opq_dtype)narrow), 1, OPQ_f32, "1");
        for (int i = 0; i < 2; i++)
            l.buffers[i] = buffer_make(COUNT * sizeof(float));
        fill_special(OPQ_f32, l.buffers[0].data, 100, 1);
        fill_random(OPQ_f32, (float *)l.buffers[0].data + 100, COUNT - 100, 2);
        launch_dims(&l, &b, (int64_t[]){COUNT});
        launch_run(&l, &b, NULL);
        float expected[COUNT], *x = (float *)l.buffers[0].data;
        for (int i = 0; i < COUNT; i++)
            expected[i] =
                narrow == OPQ_f16 ? opq_f16_to_f32(opq_f32_to_f16(x[i])) : opq_bf16_to_f32(opq_f32_to_bf16(x[i]));
        assert_same(OPQ_f32, l.buffers[1].data, expected, COUNT, "rounding");
        launch_drop(&l);
    }
}

/* Every size from 1 to 130: no lane too many is read or written. Buffers end at an unreadable page. */
static void check_sizes(opq_dtype dtype)
{
    body b;
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, dtype, "1");
    body_store(&b, opq_dtype_kind_of(dtype) == OPQ_KIND_RAW ? x : body_op(&b, OPQ_OP_add, computing(dtype), x, x, -1),
               1, dtype, "1");
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    for (int64_t size = 1; size <= 130; size++) {
        launch l = {.buffer_count = 2};
        l.buffers[0] = buffer_make((size_t)size * bytes);
        l.buffers[1] = buffer_make((size_t)size * bytes);
        fill_random(dtype, l.buffers[0].data, size, 3);
        launch_dims(&l, &b, &size);
        launch_run(&l, &b, NULL);
        if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
            assert_memory_equal(l.buffers[0].data, l.buffers[1].data, (size_t)size * bytes);
        launch_drop(&l);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < OPQ_DTYPE_COUNT; dtype++)
        check_sizes((opq_dtype)dtype);
}

/* out[i, j, k] = a[k, i] + b[j] - c[i, j, 0] + number(i, j, k), every stride class on every loop, all dtypes in memory.
 */
static void check_strides(opq_dtype dtype, int64_t rows, int64_t middle, int64_t columns)
{
    body b;
    launch l = {.buffer_count = 4};
    body_start(&b, OPQ_KERNEL_map, "kkk");
    int x = body_load(&b, 0, dtype, "10*"), y = body_load(&b, 1, dtype, "0*0"), z = body_load(&b, 2, dtype, "**0");
    int number = body_number(&b, "**1"), sum = body_op(&b, OPQ_OP_add, computing(dtype), x, y, -1);
    sum = body_op(&b, OPQ_OP_sub, computing(dtype), sum, z, -1);
    sum = body_op(&b, OPQ_OP_add, computing(dtype), sum, body_cast(&b, number, computing(dtype)), -1);
    body_store(&b, sum, 3, dtype, "*1*"); /* out is [i, k, j] in memory */
    int64_t sizes[4] = {columns * rows, middle * 3 + 2, rows * middle * 2, rows * columns * middle};
    for (int i = 0; i < 4; i++) {
        l.buffers[i] = buffer_make((size_t)(sizes[i] * opq_dtype_bytes(dtype)));
        fill_random(dtype, l.buffers[i].data, sizes[i], (unsigned)i);
    }
    launch_dims(&l, &b, (int64_t[]){rows, middle, columns});
    launch_access(&l, &b, 0, 0, (int64_t[]){rows});
    launch_access(&l, &b, 1, 2, (int64_t[]){3});
    launch_access(&l, &b, 2, 1, (int64_t[]){2 * middle, 2});
    launch_access(&l, &b, 3, 5, (int64_t[]){100, 1000});
    launch_access(&l, &b, 4, 0, (int64_t[]){columns * middle, middle});
    launch_run(&l, &b, NULL);
    if (dtype == OPQ_f32)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < middle; j++)
                for (int64_t k = 0; k < columns; k++) {
                    const float *p = (float *)l.buffers[0].data, *q = (float *)l.buffers[1].data,
                                *r = (float *)l.buffers[2].data;
                    float expected = p[k * rows + i] + q[2 + 3 * j] - r[1 + 2 * middle * i + 2 * j] +
                                     (float)(5 + 100 * i + 1000 * j + k);
                    assert_same(OPQ_f32, (float *)l.buffers[3].data + (i * columns + k) * middle + j, &expected, 1,
                                "strides");
                }
    launch_drop(&l);
}

static void test_strides(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        check_strides(dtypes[d], 1, 1, 1);
        check_strides(dtypes[d], 3, 5, 37);
        check_strides(dtypes[d], 2, 4, 130);
    }
}

/* out[b, i, j] = a[b, j, i]: read across, in tiles. */
static void check_transpose(opq_dtype dtype, int64_t batch, int64_t rows, int64_t columns)
{
    body b;
    launch l = {.buffer_count = 2};
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    body_start(&b, OPQ_KERNEL_map, "kkk");
    body_store(&b, body_load(&b, 0, dtype, "*1*"), 1, dtype, "**1");
    for (int i = 0; i < 2; i++)
        l.buffers[i] = buffer_make((size_t)(batch * rows * columns) * bytes);
    fill_random(dtype, l.buffers[0].data, batch * rows * columns, 8);
    launch_dims(&l, &b, (int64_t[]){batch, rows, columns});
    launch_access(&l, &b, 0, 0, (int64_t[]){rows * columns, rows});
    launch_access(&l, &b, 1, 0, (int64_t[]){rows * columns, columns});
    launch_run(&l, &b, NULL);
    for (int64_t k = 0; k < batch; k++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                assert_memory_equal(l.buffers[1].data + (size_t)((k * rows + i) * columns + j) * bytes,
                                    l.buffers[0].data + (size_t)((k * columns + j) * rows + i) * bytes, bytes);
    launch_drop(&l);
}

static void test_transpose(void **state)
{
    (void)state;
    static const opq_dtype copied[] = {OPQ_u8, OPQ_raw16, OPQ_f32, OPQ_i64, OPQ_raw128};
    for (int d = 0; d < 5; d++) {
        check_transpose(copied[d], 1, 1, 1);
        check_transpose(copied[d], 2, 16, 64);
        check_transpose(copied[d], 3, 17, 65);
        check_transpose(copied[d], 2, 50, 131);
    }
}

/* out[i, j] = a[i, columns - 1 - j], also where a row has fewer elements than there are lanes: without a load for each of them. */
static void check_backwards(opq_dtype dtype, int64_t rows, int64_t columns)
{
    body b;
    launch l = {.buffer_count = 2};
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    body_start(&b, OPQ_KERNEL_map, "kk");
    body_store(&b, body_load(&b, 0, dtype, "*<"), 1, dtype, "*1");
    assert_false(text_has(&b, "gather"));
    for (int i = 0; i < 2; i++)
        l.buffers[i] = buffer_make((size_t)(rows * columns) * bytes);
    fill_random(dtype, l.buffers[0].data, rows * columns, 9);
    launch_dims(&l, &b, (int64_t[]){rows, columns});
    launch_access(&l, &b, 0, columns - 1, (int64_t[]){columns});
    launch_access(&l, &b, 1, 0, (int64_t[]){columns});
    launch_run(&l, &b, NULL);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            assert_memory_equal(l.buffers[1].data + (size_t)(i * columns + j) * bytes,
                                l.buffers[0].data + (size_t)((i + 1) * columns - 1 - j) * bytes, bytes);
    launch_drop(&l);
}

static void test_backwards(void **state)
{
    (void)state;
    static const opq_dtype copied[] = {OPQ_u8, OPQ_raw16, OPQ_f32, OPQ_i64};
    for (int d = 0; d < 4; d++) {
        check_backwards(copied[d], 1, 1);
        check_backwards(copied[d], 5, 9);
        check_backwards(copied[d], 3, 131);
    }
}

static void test_scalars(void **state)
{
    (void)state;
    body b;
    launch l = {.buffer_count = 3};
    body_start(&b, OPQ_KERNEL_map, "k");
    int s = body_op(&b, OPQ_OP_scalar, OPQ_f32, -1, -1, -1), t = body_op(&b, OPQ_OP_scalar, OPQ_i32, -1, -1, -1);
    b.body[s].value.i = 1;
    b.body[t].value.i = 0;
    body_store(&b, s, 0, OPQ_f32, "1");
    body_store(&b, t, 1, OPQ_i32, "1");
    body_store(&b, body_const(&b, OPQ_f64, (opq_number){.f = 0.1}), 2, OPQ_f64, "1");
    for (int i = 0; i < 3; i++)
        l.buffers[i] = buffer_make(77 * 8 >> (i < 2));
    l.scalars[0].i = -5;
    l.scalars[1].f = 0.25;
    launch_dims(&l, &b, (int64_t[]){77});
    launch_run(&l, &b, NULL);
    for (int i = 0; i < 77; i++) {
        assert_true(((float *)l.buffers[0].data)[i] == 0.25f);
        assert_int_equal(((int32_t *)l.buffers[1].data)[i], -5);
        assert_true(((double *)l.buffers[2].data)[i] == 0.1);
    }
    launch_drop(&l);
}

/* An index that counts up against a number that is the same for all, on either side; limits within a vector and far from it. */
static void test_compared_numbers(void **state)
{
    (void)state;
    enum { COUNT = 77, FIRST = 1000, OPS = 4 };
    static const opq_op ops[OPS] = {OPQ_OP_lt, OPQ_OP_le, OPQ_OP_gt, OPQ_OP_ge};
    static const int64_t far[] = {INT64_MIN, INT64_MIN + 1, 0, INT64_MAX - 1, INT64_MAX};
    body b;
    launch l = {.buffer_count = 2 * OPS};
    body_start(&b, OPQ_KERNEL_map, "k");
    int number = body_number(&b, "1"), limit = body_op(&b, OPQ_OP_scalar, OPQ_i64, -1, -1, -1);
    for (int i = 0; i < 2 * OPS; i++) {
        int left = i % 2 ? limit : number, right = i % 2 ? number : limit;
        body_store(&b, body_op(&b, ops[i / 2], OPQ_bool, left, right, -1), i, OPQ_bool, "1");
        l.buffers[i] = buffer_make(COUNT);
    }
    launch_dims(&l, &b, (int64_t[]){COUNT});
    launch_access(&l, &b, 0, FIRST, NULL);
    for (int k = 0; k < COUNT + 4 + 5; k++) {
        int64_t at = k < COUNT + 4 ? FIRST - 2 + k : far[k - COUNT - 4];
        l.scalars[0].i = at;
        launch_run(&l, &b, NULL);
        for (int i = 0; i < 2 * OPS * COUNT; i++) {
            int which = i / COUNT;
            int64_t x = FIRST + i % COUNT, left = which % 2 ? at : x, right = which % 2 ? x : at;
            bool expect[OPS] = {left<right, left <= right, left> right, left >= right};
            assert_int_equal(((bool *)l.buffers[which].data)[i % COUNT], expect[which / 2]);
        }
    }
    launch_drop(&l);
}

/* a * b + c is two roundings. */
static void test_no_contraction(void **state)
{
    (void)state;
    body b;
    launch l = {.buffer_count = 2};
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, OPQ_f32, "1");
    body_store(&b, body_op(&b, OPQ_OP_sub, OPQ_f32, body_op(&b, OPQ_OP_mul, OPQ_f32, x, x, -1), x, -1), 1, OPQ_f32, "1");
    for (int i = 0; i < 2; i++)
        l.buffers[i] = buffer_make(1000 * sizeof(float));
    fill_random(OPQ_f32, l.buffers[0].data, 1000, 9);
    launch_dims(&l, &b, (int64_t[]){1000});
    launch_run(&l, &b, NULL);
    for (int i = 0; i < 1000; i++) {
        float value = ((float *)l.buffers[0].data)[i];
        volatile float product = value * value;
        float expected = product - value;
        assert_same(OPQ_f32, (float *)l.buffers[1].data + i, &expected, 1, "x * x - x");
    }
    launch_drop(&l);
}

/* x = x * y + y, 60 times: each waits for the one before, and four vectors wait beside each other. */
static void test_long_chain(void **state)
{
    (void)state;
    enum { LENGTH = 1000, PAIRS = 60 };
    body b;
    launch l = {.buffer_count = 3};
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, OPQ_f32, "1"), y = body_load(&b, 1, OPQ_f32, "1");
    for (int i = 0; i < PAIRS; i++)
        x = body_op(&b, OPQ_OP_add, OPQ_f32, body_op(&b, OPQ_OP_mul, OPQ_f32, x, y, -1), y, -1);
    body_store(&b, x, 2, OPQ_f32, "1");
    for (int i = 0; i < 3; i++)
        l.buffers[i] = buffer_make(LENGTH * sizeof(float));
    fill_random(OPQ_f32, l.buffers[0].data, LENGTH, 9);
    fill_random(OPQ_f32, l.buffers[1].data, LENGTH, 10);
    launch_dims(&l, &b, (int64_t[]){LENGTH});
    launch_run(&l, &b, NULL);
    for (int i = 0; i < LENGTH; i++) {
        float value = ((float *)l.buffers[0].data)[i], other = ((float *)l.buffers[1].data)[i];
        for (int k = 0; k < PAIRS; k++) {
            volatile float product = value * other;
            value = product + other;
        }
        assert_same(OPQ_f32, (float *)l.buffers[2].data + i, &value, 1, "chain");
    }
    opq_arena arena = {0};
    opq_loops loops = body_loops(&b, &arena);
    opq_text text = {0};
    int count = 0;
    assert_int_equal(opq_codegen_print(wide_jit(), &loops, "llvm", &text), OPQ_OK);
    for (const char *at = text.data; (at = strstr(at, "fmul")); at++)
        count++;
    assert_int_equal(count, PAIRS * (4 + 1)); /* the last vectors are a loop of their own */
    free(text.data);
    opq_arena_drop(&arena);
    launch_drop(&l);
}

static void test_cache(void **state)
{
    (void)state;
    const opq_code *first, *again, *other;
    bool fresh;
    body b, c;
    body_start(&b, OPQ_KERNEL_map, "k");
    body_store(&b, body_const(&b, OPQ_f32, (opq_number){.f = 3.5}), 0, OPQ_f32, "1");
    c = b;
    opq_arena arena = {0};
    opq_loops loops = body_loops(&b, &arena), same = body_loops(&c, &arena);
    same.name = "another name";
    assert_int_equal(opq_codegen(wide_jit(), &loops, &first, &fresh), OPQ_OK);
    assert_true(fresh);
    assert_int_equal(opq_codegen(wide_jit(), &same, &again, &fresh), OPQ_OK);
    assert_true(!fresh && again == first);
    c.body[0].value.f = 4.5;
    loops = body_loops(&c, &arena);
    assert_int_equal(opq_codegen(wide_jit(), &loops, &other, &fresh), OPQ_OK);
    assert_true(fresh && other != first);
    opq_arena_drop(&arena);
}

/* What cannot be generated is an answer, not an abort. */
static void test_unsupported(void **state)
{
    (void)state;
    const opq_code *code;
    bool fresh;
    body b;
    body_start(&b, OPQ_KERNEL_map, "k");
    body_store(&b, body_op(&b, OPQ_OP_tan, OPQ_f64, body_load(&b, 0, OPQ_f64, "1"), -1, -1), 1, OPQ_f64, "1");
    opq_arena arena = {0};
    opq_loops loops = body_loops(&b, &arena);
    assert_int_equal(opq_codegen(wide_jit(), &loops, &code, &fresh), OPQ_UNSUPPORTED);
    body_start(&b, OPQ_KERNEL_map, "k");
    int x = body_load(&b, 0, OPQ_f64, "1"), y = body_load(&b, 1, OPQ_f32, "1");
    body_store(&b, body_op(&b, OPQ_OP_add, OPQ_f64, x, y, -1), 1, OPQ_f64, "1");
    loops = body_loops(&b, &arena);
    assert_int_equal(opq_codegen(wide_jit(), &loops, &code, &fresh), OPQ_INVALID);
    opq_arena_drop(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops),     cmocka_unit_test(test_shared_math),    cmocka_unit_test(test_fmod),
        cmocka_unit_test(test_casts),   cmocka_unit_test(test_rounding),       cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_strides), cmocka_unit_test(test_transpose),      cmocka_unit_test(test_backwards),
        cmocka_unit_test(test_scalars), cmocka_unit_test(test_no_contraction), cmocka_unit_test(test_long_chain),
        cmocka_unit_test(test_cache),   cmocka_unit_test(test_unsupported),    cmocka_unit_test(test_compared_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
