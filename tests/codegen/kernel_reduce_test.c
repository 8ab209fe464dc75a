/* row and column kernels against the reference evaluator: the order of additions, special values, sizes around every
 * boundary. */
#include "kernel_support.h"

#include <stdlib.h>
#include <string.h>

static const opq_op reductions[] = {OPQ_OP_sum, OPQ_OP_prod, OPQ_OP_amax,   OPQ_OP_amin,
                                    OPQ_OP_any, OPQ_OP_all,  OPQ_OP_argmax, OPQ_OP_argmin};
enum { REDUCTIONS = sizeof reductions / sizeof *reductions };

/* The result of `op` over axes of a dense input, by the evaluator. */
static void reference(opq_op op, const opq_type *type, const int64_t *axes, int axis_count, const void *input,
                      void *output, opq_dtype *out_dtype)
{
    opq_graph *graph;
    opq_ref x, result;
    opq_attr attrs[2] = {{.key = OPQ_ATTR_axes, .count = axis_count, .ints = axes},
                         {.key = OPQ_ATTR_tree, .i = opq_tree_for(type->rank, axes, axis_count)}};
    assert_int_equal(opq_graph_create("reduce", &graph), OPQ_OK);
    assert_int_equal(opq_graph_input(graph, type, &x), OPQ_OK);
    if (opq_graph_op(graph, op, &x, 1, attrs, 2, &result) != OPQ_OK)
        fail_msg("%s", opq_error());
    assert_int_equal(opq_graph_output(graph, result), OPQ_OK);
    *out_dtype = (opq_dtype)opq_graph_type(graph, result).dtype;
    evaluate(graph, &input, output);
    opq_graph_destroy(graph);
}

/* load, cast as the row demands, reduce, store. */
static void reduce_body(body *b, opq_kernel_kind kind, const char *loops, opq_op op, opq_dtype dtype, opq_dtype result,
                        const char *from, const char *to)
{
    body_start(b, kind, loops);
    int x = body_load(b, 0, dtype, from);
    bool widens = op == OPQ_OP_sum || op == OPQ_OP_prod;
    if (widens && computing(dtype) != computing(result))
        x = body_cast(b, x, result);
    body_store(b, body_op(b, op, computing(result), x, -1, -1), 1, result, to);
}

static void fill(opq_op op, opq_dtype dtype, void *data, int64_t count, unsigned seed)
{
    fill_random(dtype, data, count, seed);
    if (op == OPQ_OP_any)
        memset(data, 0, (size_t)(count * opq_dtype_bytes(dtype)) - (seed % 2 ? 0 : (size_t)opq_dtype_bytes(dtype)));
    if (op == OPQ_OP_argmax || op == OPQ_OP_argmin) /* repeats, so that the first one counts; sometimes special values */
        for (int64_t i = 0; i < count; i++)
            memcpy((char *)data + i * opq_dtype_bytes(dtype), (char *)data + i % 17 * opq_dtype_bytes(dtype),
                   (size_t)opq_dtype_bytes(dtype));
    if (seed % 3 == 2)
        fill_special(dtype, data, count < 45 ? count : 45, 1);
}

static void check_row(opq_op op, opq_dtype dtype, int64_t rows, int64_t columns, unsigned seed)
{
    body b;
    launch l = {.buffer_count = 2};
    opq_dtype result;
    opq_type type = opq_type_make(dtype, 2, (int64_t[]){rows, columns});
    l.buffers[0] = buffer_make((size_t)(rows * columns * opq_dtype_bytes(dtype)));
    fill(op, dtype, l.buffers[0].data, rows * columns, seed);
    char *expected = malloc((size_t)rows * 16);
    reference(op, &type, (int64_t[]){1}, 1, l.buffers[0].data, expected, &result);
    l.buffers[1] = buffer_make((size_t)(rows * opq_dtype_bytes(result)));
    reduce_body(&b, OPQ_KERNEL_row, "kr", op, dtype, result, "*1", "10");
    launch_dims(&l, &b, (int64_t[]){rows, columns});
    launch_access(&l, &b, 0, 0, (int64_t[]){columns});
    l.any_nan = result == OPQ_f32 ? OPQ_f32 : OPQ_bool;
    launch_run(&l, &b, NULL);
    assert_same(result, l.buffers[1].data, expected, rows, opq_op_info_of(op)->name);
    free(expected);
    launch_drop(&l);
}

static void test_row_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1,   2,   5,    16,   63,   64,   65,   100,  127,
                                    128, 129, 1000, 4095, 4096, 4097, 4160, 8192, 10000};
    for (int op = 0; op < REDUCTIONS; op++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (unsigned seed = 0; seed < 3; seed++)
                check_row(reductions[op], OPQ_f32, 3, sizes[i], seed);
}

static void test_row_dtypes(void **state)
{
    (void)state;
    static const opq_dtype dtypes[] = {OPQ_bool, OPQ_u8, OPQ_i8, OPQ_i16, OPQ_i32, OPQ_i64, OPQ_f16, OPQ_bf16, OPQ_f64};
    for (int op = 0; op < REDUCTIONS; op++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (unsigned seed = 0; seed < 3; seed++) {
                check_row(reductions[op], dtypes[d], 2, 77, seed);
                check_row(reductions[op], dtypes[d], 2, 4200, seed);
            }
}

/* More than 4096 segments: three levels of lanes. */
static void test_row_levels(void **state)
{
    (void)state;
    check_row(OPQ_OP_sum, OPQ_f32, 1, 4096 * 4097 + 5, 0);
    check_row(OPQ_OP_amax, OPQ_u8, 1, 4096 * 4096, 1);
}

static void test_row_empty(void **state)
{
    (void)state;
    body b;
    launch l = {.buffer_count = 2, .buffers = {buffer_make(0), buffer_make(5 * sizeof(float))}};
    reduce_body(&b, OPQ_KERNEL_row, "kr", OPQ_OP_prod, OPQ_f32, OPQ_f32, "*1", "10");
    launch_dims(&l, &b, (int64_t[]){5, 0});
    launch_run(&l, &b, NULL);
    for (int i = 0; i < 5; i++)
        assert_true(((float *)l.buffers[1].data)[i] == 1.0f);
    launch_drop(&l);
}

/* a[x, kept, y, z] over x, y and z, where (y, z) do not join because the kernel sees them as two loops with a gap:
 * segments are (x, y) times chunks of z. The dense graph that has those segments keeps a dim between y and z; here of
 * two equal halves. */
static void check_row_loops(opq_op op, int64_t x, int64_t kept, int64_t y, int64_t z)
{
    body b;
    launch l = {.buffer_count = 2};
    opq_dtype result;
    opq_type type = opq_type_make(OPQ_f32, 5, (int64_t[]){x, kept, y, 2, z});
    int64_t count = x * kept * y * z;
    l.buffers[0] = buffer_make((size_t)count * sizeof(float));
    fill(op, OPQ_f32, l.buffers[0].data, count, 4);
    float *halves = malloc((size_t)count * 2 * sizeof *halves);
    for (int64_t i = 0; i < count * 2; i++)
        halves[i] = ((float *)l.buffers[0].data)[i / (2 * z) * z + i % z];
    char *expected = malloc((size_t)kept * 2 * 8);
    reference(op, &type, (int64_t[]){0, 2, 4}, 3, halves, expected, &result);
    free(halves);
    int bytes = opq_dtype_bytes(result);
    for (int64_t k = 0; k < kept; k++)
        memmove(expected + k * bytes, expected + 2 * k * bytes, (size_t)bytes);
    l.buffers[1] = buffer_make((size_t)(kept * opq_dtype_bytes(result)));
    reduce_body(&b, OPQ_KERNEL_row, "krrr", op, OPQ_f32, result, "***1", "1000");
    launch_dims(&l, &b, (int64_t[]){kept, x, y, z});
    launch_access(&l, &b, 0, 0, (int64_t[]){y * z, kept * y * z, z});
    launch_run(&l, &b, NULL);
    assert_same(result, l.buffers[1].data, expected, kept, "several reduced loops");
    free(expected);
    launch_drop(&l);
}

static void test_row_loops(void **state)
{
    (void)state;
    static const opq_op ops[] = {OPQ_OP_sum, OPQ_OP_amin, OPQ_OP_argmax};
    for (int i = 0; i < 3; i++) {
        check_row_loops(ops[i], 1, 2, 1, 7);
        check_row_loops(ops[i], 3, 2, 5, 7);
        check_row_loops(ops[i], 2, 3, 3, 4100);
        check_row_loops(ops[i], 7, 1, 11, 70);
        check_row_loops(ops[i], 70, 2, 70, 3);
    }
}

/* m = amax(a); e = (a - m)^2; out = e / sum(e), with e kept between the sweeps. */
static void check_sweeps(const char *loops, opq_kernel_kind kind, opq_dtype dtype, int64_t rows, int64_t columns,
                         bool keep)
{
    bool row = kind == OPQ_KERNEL_row;
    body b;
    launch l = {.buffer_count = 2};
    const int64_t axes[1] = {row ? 1 : 0};
    opq_type type = opq_type_make(dtype, 2, (int64_t[]){rows, columns});
    int64_t count = rows * columns, bytes = count * opq_dtype_bytes(dtype);
    for (int i = 0; i < 2; i++)
        l.buffers[i] = buffer_make((size_t)bytes);
    fill_random(dtype, l.buffers[0].data, count, 5);

    body_start(&b, kind, loops);
    int a = body_load(&b, 0, dtype, "*1"), m = body_op(&b, OPQ_OP_amax, dtype, a, -1, -1);
    int d = body_op(&b, OPQ_OP_sub, dtype, a, m, -1), e = body_op(&b, OPQ_OP_mul, dtype, d, d, -1);
    if (keep)
        body_keep(&b, e);
    int s = body_op(&b, OPQ_OP_sum, dtype, e, -1, -1);
    body_store(&b, body_op(&b, OPQ_OP_div, dtype, e, s, -1), 1, dtype, "*1");
    assert_int_equal(b.sweep_count, 3);
    launch_dims(&l, &b, (int64_t[]){rows, columns});
    launch_access(&l, &b, 0, 0, &columns);
    launch_access(&l, &b, 1, 0, &columns);
    launch_run(&l, &b, NULL);

    opq_graph *graph;
    opq_ref r[6];
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = 1, .ints = axes};
    attr.ints = axes;
    opq_attr attrs[2] = {attr, {.key = OPQ_ATTR_tree, .i = opq_tree_for(2, axes, 1)}};
    assert_int_equal(opq_graph_create("sweeps", &graph), OPQ_OK);
    assert_int_equal(opq_graph_input(graph, &type, &r[0]), OPQ_OK);
    assert_int_equal(opq_graph_op(graph, OPQ_OP_amax, r, 1, attrs, 2, &r[1]), OPQ_OK);
    assert_int_equal(opq_graph_op(graph, OPQ_OP_sub, r, 2, NULL, 0, &r[2]), OPQ_OK);
    assert_int_equal(opq_graph_op(graph, OPQ_OP_mul, (opq_ref[]){r[2], r[2]}, 2, NULL, 0, &r[3]), OPQ_OK);
    assert_int_equal(opq_graph_op(graph, OPQ_OP_sum, &r[3], 1, attrs, 2, &r[4]), OPQ_OK);
    assert_int_equal(opq_graph_op(graph, OPQ_OP_div, &r[3], 2, NULL, 0, &r[5]), OPQ_OK);
    assert_int_equal(opq_graph_output(graph, r[5]), OPQ_OK);
    void *expected = malloc((size_t)bytes);
    const void *inputs[1] = {l.buffers[0].data};
    evaluate(graph, inputs, expected);
    assert_same(dtype, l.buffers[1].data, expected, count, "three sweeps");
    free(expected);
    opq_graph_destroy(graph);
    launch_drop(&l);
}

static void test_sweeps(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 7, 64, 100, 513, 4099, 10000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int keep = 0; keep < 2; keep++) {
            check_sweeps("kr", OPQ_KERNEL_row, OPQ_f32, 5, sizes[i], keep);
            check_sweeps("kr", OPQ_KERNEL_row, OPQ_f64, 5, sizes[i], keep);
        }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_sweeps("rk", OPQ_KERNEL_column, OPQ_f32, sizes[i], 5, false);
        check_sweeps("rk", OPQ_KERNEL_column, OPQ_f64, sizes[i], 133, false);
    }
}

/* a[outer, rows, columns] over rows. */
static void check_column(opq_op op, opq_dtype dtype, int64_t outer, int64_t rows, int64_t columns, unsigned seed)
{
    body b;
    launch l = {.buffer_count = 2};
    opq_dtype result;
    opq_type type = opq_type_make(dtype, 3, (int64_t[]){outer, rows, columns});
    int64_t count = outer * rows * columns;
    l.buffers[0] = buffer_make((size_t)(count * opq_dtype_bytes(dtype)));
    fill(op, dtype, l.buffers[0].data, count, seed);
    char *expected = malloc((size_t)(outer * columns) * 8);
    reference(op, &type, (int64_t[]){1}, 1, l.buffers[0].data, expected, &result);
    l.buffers[1] = buffer_make((size_t)(outer * columns * opq_dtype_bytes(result)));
    reduce_body(&b, OPQ_KERNEL_column, "krk", op, dtype, result, "**1", "*01");
    launch_dims(&l, &b, (int64_t[]){outer, rows, columns});
    launch_access(&l, &b, 0, 0, (int64_t[]){rows * columns, columns});
    launch_access(&l, &b, 1, 0, (int64_t[]){columns});
    l.any_nan = result == OPQ_f32 ? OPQ_f32 : OPQ_bool;
    launch_run(&l, &b, NULL);
    assert_same(result, l.buffers[1].data, expected, outer * columns, opq_op_info_of(op)->name);
    free(expected);
    launch_drop(&l);
}

static void test_column(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 7, 8, 9, 511, 512, 513, 1100}, columns[] = {1, 15, 16, 64, 65, 133};
    static const opq_dtype dtypes[] = {OPQ_bool, OPQ_u8, OPQ_i8, OPQ_i32, OPQ_i64, OPQ_f16, OPQ_bf16, OPQ_f64};
    for (int op = 0; op < REDUCTIONS; op++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
                check_column(reductions[op], OPQ_f32, 2, rows[r], columns[c], (unsigned)(r + c));
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            check_column(reductions[op], dtypes[d], 2, 77, 83, (unsigned)d);
        check_column(reductions[op], OPQ_f32, 2, 21, 4500, 1); /* several tiles of rows */
        check_column(reductions[op], OPQ_f64, 1, 70, 2100, 2);
    }
}

/* Two reduced loops, a[x, gap, y, columns]: rows in row-major order. */
static void test_column_loops(void **state)
{
    (void)state;
    const int64_t x = 30, y = 43, columns = 70;
    body b;
    launch l = {.buffer_count = 2};
    opq_dtype result;
    opq_type type = opq_type_make(OPQ_f32, 3, (int64_t[]){x, y, columns});
    l.buffers[0] = buffer_make((size_t)(x * y * columns) * sizeof(float));
    l.buffers[1] = buffer_make((size_t)columns * sizeof(float));
    fill_random(OPQ_f32, l.buffers[0].data, x * y * columns, 6);
    float expected[70];
    reference(OPQ_OP_sum, &type, (int64_t[]){0, 1}, 2, l.buffers[0].data, expected, &result);
    reduce_body(&b, OPQ_KERNEL_column, "rrk", OPQ_OP_sum, OPQ_f32, OPQ_f32, "**1", "001");
    launch_dims(&l, &b, (int64_t[]){x, y, columns});
    launch_access(&l, &b, 0, 0, (int64_t[]){y * columns, columns});
    launch_run(&l, &b, NULL);
    assert_same(OPQ_f32, l.buffers[1].data, expected, columns, "two reduced loops");
    launch_drop(&l);
}

/* Several reductions of several dtypes in one sweep, and strided rows. */
static void test_row_mixed(void **state)
{
    (void)state;
    const int64_t rows = 4, columns = 4500;
    body b;
    launch l = {.buffer_count = 4};
    l.buffers[0] = buffer_make((size_t)(rows * columns) * sizeof(float));
    l.buffers[1] = buffer_make((size_t)rows * sizeof(float));
    l.buffers[2] = buffer_make((size_t)rows * sizeof(int64_t));
    l.buffers[3] = buffer_make((size_t)rows * sizeof(double));
    fill_random(OPQ_f32, l.buffers[0].data, rows * columns, 7);
    body_start(&b, OPQ_KERNEL_row, "kr");
    int x = body_load(&b, 0, OPQ_f32, "1*");
    body_store(&b, body_op(&b, OPQ_OP_sum, OPQ_f32, x, -1, -1), 1, OPQ_f32, "10");
    body_store(&b, body_op(&b, OPQ_OP_argmin, OPQ_i64, x, -1, -1), 2, OPQ_i64, "10");
    body_store(&b, body_op(&b, OPQ_OP_sum, OPQ_f64, body_cast(&b, x, OPQ_f64), -1, -1), 3, OPQ_f64, "10");
    launch_dims(&l, &b, (int64_t[]){rows, columns});
    launch_access(&l, &b, 0, 0, &rows);
    launch_run(&l, &b, NULL);

    float *turned = malloc((size_t)(rows * columns) * sizeof *turned), sums[4];
    double *wide = malloc((size_t)(rows * columns) * sizeof *wide), wide_sums[4];
    int64_t least[4];
    opq_dtype result;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            wide[i * columns + k] = (double)(turned[i * columns + k] = ((float *)l.buffers[0].data)[k * rows + i]);
    opq_type type = opq_type_make(OPQ_f32, 2, (int64_t[]){rows, columns}), wide_type = type;
    wide_type.dtype = OPQ_f64;
    reference(OPQ_OP_sum, &type, (int64_t[]){1}, 1, turned, sums, &result);
    reference(OPQ_OP_argmin, &type, (int64_t[]){1}, 1, turned, least, &result);
    reference(OPQ_OP_sum, &wide_type, (int64_t[]){1}, 1, wide, wide_sums, &result);
    assert_same(OPQ_f32, l.buffers[1].data, sums, rows, "sum");
    assert_same(OPQ_i64, l.buffers[2].data, least, rows, "argmin");
    assert_same(OPQ_f64, l.buffers[3].data, wide_sums, rows, "wide sum");
    free(turned);
    free(wide);
    launch_drop(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_sizes), cmocka_unit_test(test_row_dtypes), cmocka_unit_test(test_row_levels),
        cmocka_unit_test(test_row_empty), cmocka_unit_test(test_row_loops),  cmocka_unit_test(test_row_mixed),
        cmocka_unit_test(test_sweeps),    cmocka_unit_test(test_column),     cmocka_unit_test(test_column_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
