/* Indices read at run time, and random numbers, against plain loops. */
#include "kernel_support.h"

#include "opaque/scalar_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 11, INDICES = 37 };

static void fill_indices(int64_t *indices, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        indices[i] = (i * 7 + i / 5) % TABLE;
}

/* out[i, j] = table[indices[i], j]: the index is the same for all lanes. */
static void check_rows(opq_dtype dtype, int64_t width, const char *table_strides, int64_t bad)
{
    body b;
    launch l = {.buffer_count = 3};
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    bool turned = strcmp(table_strides, "0*") == 0;
    l.buffers[0] = buffer_make(INDICES * sizeof(int64_t));
    l.buffers[1] = buffer_make((size_t)(TABLE * width) * bytes);
    l.buffers[2] = buffer_make((size_t)(INDICES * width) * bytes);
    int64_t *indices = (int64_t *)l.buffers[0].data;
    fill_indices(indices, INDICES);
    fill_random(dtype, l.buffers[1].data, TABLE * width, 1);
    if (bad != 0)
        indices[20] = bad;
    body_start(&b, OPQ_KERNEL_map, "kk");
    int at = body_load(&b, 0, OPQ_i64, "10"), x = body_load_at(&b, at, 1, dtype, table_strides);
    body_store(&b, x, 2, dtype, "*1");
    launch_dims(&l, &b, (int64_t[]){INDICES, width});
    int64_t table = TABLE, error[2];
    launch_access(&l, &b, 1, 0, &table);
    launch_at(&l, &b, 1, turned ? 1 : width, TABLE);
    launch_access(&l, &b, 2, 0, &width);
    launch_run(&l, &b, error);
    assert_int_equal(error[0], bad ? 1 + x : 0);
    assert_int_equal(error[1], bad);
    for (int64_t i = 0; i < INDICES; i++)
        for (int64_t j = 0; j < width && !(bad && i == 20); j++)
            assert_memory_equal(
                l.buffers[2].data + (size_t)(i * width + j) * bytes,
                l.buffers[1].data + (size_t)(turned ? j * TABLE + indices[i] : indices[i] * width + j) * bytes, bytes);
    launch_drop(&l);
}

/* out[j] = sum of table[indices[i], j]: what is wrong is told by its number in the kernel, whose schedule has more statements. */
static void check_summed(int64_t bad)
{
    enum { WIDTH = 21 };
    body b;
    launch l = {.buffer_count = 3};
    l.buffers[0] = buffer_make(INDICES * sizeof(int64_t));
    l.buffers[1] = buffer_make(TABLE * WIDTH * sizeof(float));
    l.buffers[2] = buffer_make(WIDTH * sizeof(float));
    int64_t *indices = (int64_t *)l.buffers[0].data, width = WIDTH, error[2];
    fill_indices(indices, INDICES);
    fill_random(OPQ_f32, l.buffers[1].data, TABLE * WIDTH, 3);
    if (bad)
        indices[20] = bad;
    body_start(&b, OPQ_KERNEL_column, "rk");
    int at = body_load(&b, 0, OPQ_i64, "10"), x = body_load_at(&b, at, 1, OPQ_f32, "01");
    int sum = body_op(&b, OPQ_OP_sum, OPQ_f32, x, -1, -1);
    body_store(&b, sum, 2, OPQ_f32, "01");
    launch_dims(&l, &b, (int64_t[]){INDICES, width});
    launch_at(&l, &b, 1, width, TABLE);
    launch_run(&l, &b, error);
    assert_int_equal(error[0], bad ? 1 + x : 0);
    assert_int_equal(error[1], bad);
    launch_drop(&l);
}

/* out[i] = table[indices[i], i]: an index per lane. */
static void check_lanes(opq_dtype dtype, int64_t bad)
{
    body b;
    launch l = {.buffer_count = 3};
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    l.buffers[0] = buffer_make(INDICES * sizeof(int64_t));
    l.buffers[1] = buffer_make(TABLE * INDICES * bytes);
    l.buffers[2] = buffer_make(INDICES * bytes);
    int64_t *indices = (int64_t *)l.buffers[0].data, error[2];
    fill_indices(indices, INDICES);
    fill_random(dtype, l.buffers[1].data, TABLE * INDICES, 2);
    if (bad)
        indices[INDICES - 1] = bad; /* in the masked tail */
    body_start(&b, OPQ_KERNEL_map, "k");
    int at = body_load(&b, 0, OPQ_i64, "1"), x = body_load_at(&b, at, 1, dtype, "1");
    body_store(&b, x, 2, dtype, "1");
    launch_dims(&l, &b, (int64_t[]){INDICES});
    launch_at(&l, &b, 1, INDICES, TABLE);
    launch_run(&l, &b, error);
    assert_int_equal(error[0], bad ? 1 + x : 0);
    assert_int_equal(error[1], bad);
    for (int64_t i = 0; i < INDICES - (bad != 0); i++)
        assert_memory_equal(l.buffers[2].data + (size_t)i * bytes,
                            l.buffers[1].data + (size_t)(indices[i] * INDICES + i) * bytes, bytes);
    launch_drop(&l);
}

static void test_load_at(void **state)
{
    (void)state;
    static const int64_t bad[] = {0, TABLE, -1, INT64_MIN, INT64_MAX};
    for (int dtype = 0; dtype < OPQ_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            if (dtype == OPQ_f16) /* a signalling NaN comes out quiet */
                continue;
            if (dtype != OPQ_bool)
                check_rows((opq_dtype)dtype, 70, "01", bad[i]);
            check_rows((opq_dtype)dtype, 5, "0*", bad[i]);
            check_summed(bad[i]);
            check_lanes((opq_dtype)dtype, bad[i]);
        }
}

/* An empty table: every index is bad and nothing is read. */
static void test_empty_table(void **state)
{
    (void)state;
    for (int uniform = 0; uniform < 2; uniform++) {
        body b;
        launch l = {.buffer_count = 3,
                    .buffers = {buffer_make(3 * sizeof(int64_t)), buffer_make(0), buffer_make(30 * sizeof(float))}};
        memset(l.buffers[0].data, 0, l.buffers[0].bytes);
        body_start(&b, OPQ_KERNEL_map, "kk");
        int at = body_load(&b, 0, OPQ_i64, uniform ? "10" : "01"),
            x = body_load_at(&b, at, 1, OPQ_f32, uniform ? "01" : "10");
        body_store(&b, x, 2, OPQ_f32, "*1");
        int64_t inner = uniform ? 10 : 3, error[2];
        launch_dims(&l, &b, (int64_t[]){30 / inner, inner});
        launch_at(&l, &b, 1, 10, 0);
        launch_access(&l, &b, 2, 0, &inner);
        launch_run(&l, &b, error);
        assert_int_equal(error[0], 1 + x);
        assert_int_equal(error[1], 0);
        launch_drop(&l);
    }
}

static void add_into(opq_dtype dtype, char *to, const char *from)
{
    float a, b;
    uint16_t x, y;
    if (dtype == OPQ_f32) {
        memcpy(&a, to, sizeof a);
        memcpy(&b, from, sizeof b);
        a += b;
        memcpy(to, &a, sizeof a);
    } else if (dtype == OPQ_bf16) {
        memcpy(&x, to, sizeof x);
        memcpy(&y, from, sizeof y);
        x = opq_f32_to_bf16(opq_bf16_to_f32(x) + opq_bf16_to_f32(y));
        memcpy(to, &x, sizeof x);
    } else {
        *to = (char)(*to + *from);
    }
}

/* table[indices[i], j] += a[i, j]: rows in ascending order, whole vectors. Or, turned, table[j, indices[i]] and indices
 * per lane. */
static void check_add(opq_dtype dtype, int64_t width, bool lanes, int64_t bad)
{
    body b;
    launch l = {.buffer_count = 3};
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    l.buffers[0] = buffer_make(INDICES * sizeof(int64_t));
    l.buffers[1] = buffer_make((size_t)(INDICES * width) * bytes);
    l.buffers[2] = buffer_make((size_t)(TABLE * width) * bytes);
    int64_t *indices = (int64_t *)l.buffers[0].data, error[2], one[2];
    fill_indices(indices, INDICES);
    if (bad)
        indices[20] = bad;
    fill_random(dtype, l.buffers[1].data, INDICES * width, 3);
    fill_random(dtype, l.buffers[2].data, TABLE * width, 4);
    char *expected = malloc(l.buffers[2].bytes);
    memcpy(expected, l.buffers[2].data, l.buffers[2].bytes);
    for (int64_t i = 0; i < INDICES; i++)
        for (int64_t j = 0; j < width && !(bad && i == 20); j++)
            add_into(dtype, expected + (size_t)(indices[i] * width + j) * bytes,
                     l.buffers[1].data + (size_t)(i * width + j) * bytes);
    body_start(&b, OPQ_KERNEL_index, "kk");
    int at = body_load(&b, 0, OPQ_i64, lanes ? "01" : "10"), x = body_load(&b, 1, dtype, lanes ? "1*" : "*1");
    int add = body_store_add_at(&b, at, x, 2, dtype, lanes ? "10" : "01");
    launch_dims(&l, &b, lanes ? (int64_t[]){width, INDICES} : (int64_t[]){INDICES, width});
    one[0] = width;
    launch_access(&l, &b, 1, 0, one);
    launch_at(&l, &b, 2, width, TABLE);
    launch_run(&l, &b, error);
    assert_int_equal(error[0], bad ? 1 + add : 0);
    assert_same(dtype, l.buffers[2].data, expected, TABLE * width, lanes ? "index per lane" : "index per row");
    free(expected);
    launch_drop(&l);
}

static void test_store_add_at(void **state)
{
    (void)state;
    static const opq_dtype dtypes[] = {OPQ_f32, OPQ_bf16, OPQ_i8};
    for (int d = 0; d < 3; d++)
        for (int lanes = 0; lanes < 2; lanes++)
            for (int64_t bad = -1; bad <= TABLE; bad += TABLE + 1) {
                check_add(dtypes[d], 1, lanes, 0);
                check_add(dtypes[d], 70, lanes, 0);
                check_add(dtypes[d], 5, lanes, bad);
            }
}

static void test_random(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    const int64_t first = ((int64_t)1 << 32) - 500; /* the index carries into its upper word */
    body b;
    launch l = {.buffer_count = 3};
    body_start(&b, OPQ_KERNEL_map, "k");
    int index = body_number(&b, "1"), seed = body_op(&b, OPQ_OP_scalar, OPQ_i64, -1, -1, -1);
    int offset = body_load(&b, 2, OPQ_i64, "0");
    body_store(&b, body_op(&b, OPQ_OP_uniform, OPQ_f32, index, seed, offset), 0, OPQ_f32, "1");
    body_store(&b, body_op(&b, OPQ_OP_normal, OPQ_f32, index, seed, offset), 1, OPQ_f32, "1");
    for (int i = 0; i < 2; i++)
        l.buffers[i] = buffer_make(COUNT * sizeof(float));
    int64_t offset_value = 5;
    l.buffers[2] = buffer_of(&offset_value, sizeof offset_value);
    l.scalars[0].i = 0x123456789abc;
    launch_dims(&l, &b, (int64_t[]){COUNT});
    launch_access(&l, &b, 0, first, NULL);
    launch_run(&l, &b, NULL);
    double mean = 0, square = 0;
    for (int i = 0; i < COUNT; i++) {
        double u = (double)((float *)l.buffers[0].data)[i], x = (double)((float *)l.buffers[1].data)[i];
        assert_true(u >= 0 && u < 1 && u * 0x1p24 == floor(u * 0x1p24) && isfinite(x));
        assert_true(u == (double)opq_uniform_f32(first + i, l.scalars[0].i, offset_value));
        assert_true(x == (double)opq_normal_f32(first + i, l.scalars[0].i, offset_value));
        mean += x / COUNT;
        square += x * x / COUNT;
    }
    assert_true(fabs(mean) < 0.15 && fabs(square - 1) < 0.25);
    launch_drop(&l);
}

/* The first numbers of the evaluator's stream. */
static void test_random_stream(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    opq_number seed = {.i = 42}, offset = {.i = 7};
    opq_graph *graph;
    opq_ref r[2], result;
    opq_type type = opq_type_make(OPQ_f32, 1, (int64_t[]){COUNT});
    float expected[COUNT];
    assert_int_equal(opq_graph_create("random", &graph), OPQ_OK);
    assert_int_equal(opq_graph_const(graph, OPQ_i64, seed, &r[0]), OPQ_OK);
    assert_int_equal(opq_graph_const(graph, OPQ_i64, offset, &r[1]), OPQ_OK);
    assert_int_equal(opq_graph_op_typed(graph, OPQ_OP_uniform, &type, r, 2, NULL, 0, &result), OPQ_OK);
    assert_int_equal(opq_graph_output(graph, result), OPQ_OK);
    evaluate(graph, NULL, expected);
    opq_graph_destroy(graph);
    body b;
    launch l = {.buffer_count = 1, .buffers = {buffer_make(sizeof expected)}};
    body_start(&b, OPQ_KERNEL_map, "k");
    int index = body_number(&b, "1"), s = body_const(&b, OPQ_i64, seed), o = body_const(&b, OPQ_i64, offset);
    body_store(&b, body_op(&b, OPQ_OP_uniform, OPQ_f32, index, s, o), 0, OPQ_f32, "1");
    launch_dims(&l, &b, (int64_t[]){COUNT});
    launch_run(&l, &b, NULL);
    assert_same(OPQ_f32, l.buffers[0].data, expected, COUNT, "uniform");
    launch_drop(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load_at), cmocka_unit_test(test_empty_table),   cmocka_unit_test(test_store_add_at),
        cmocka_unit_test(test_random),  cmocka_unit_test(test_random_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
