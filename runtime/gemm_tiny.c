/* Products of so few multiply-adds that finding a kernel and its tiles takes several times as long: loops over operands as they lie, at any
 * strides. Four columns at a time (or rows, where there are more of these) hide the latency of a multiply-add.
 */
#include "runtime/gemm_internal.h"

#include <math.h>

/* One matrix of the batch; strides in elements. */
typedef struct tiny {
    int64_t m, n, k;
    int64_t a_row, a_column, b_row, b_column, c_row, c_column;
    bool accumulate;
} tiny;

bool gemm_is_tiny(const opq_gemm_call *call)
{
    double elements = (double)call->batch * (double)call->m * (double)call->n;
    opq_dtype dtype = gemm_as_it_lies(call);
    return gemm_work(call) <= OPQ_TINY_WORK && elements <= OPQ_TINY_WORK && call->a.dtype == dtype &&
           call->b.dtype == dtype && !call->packed_a && !call->packed_b && !gemm_has_tables(&call->a) &&
           !gemm_has_tables(&call->b) && (!call->tile || (call->m <= OPQ_TINY_TILE && call->n <= OPQ_TINY_TILE));
}

/* c^T = b^T a^T: the same sums. */
static tiny turn(tiny t)
{
    return (tiny){t.n, t.m, t.k, t.b_column, t.b_row, t.a_column, t.a_row, t.c_column, t.c_row, t.accumulate};
}

#define COLUMNS(type, fma, width)                                                                                      \
    do {                                                                                                               \
        type sum[width];                                                                                               \
        for (int w = 0; w < (width); w++)                                                                              \
            sum[w] = t->accumulate ? c_row[(j + w) * t->c_column] : 0;                                                 \
        for (int64_t k = 0; k < t->k; k++)                                                                             \
            for (int w = 0; w < (width); w++)                                                                          \
                sum[w] = fma(a_row[k * t->a_column], b[k * t->b_row + (j + w) * t->b_column], sum[w]);                 \
        for (int w = 0; w < (width); w++)                                                                              \
            c_row[(j + w) * t->c_column] = sum[w];                                                                     \
    } while (0)
#define MATRIX(name, type, fma)                                                                                         \
    __attribute__((target("avx2,fma"))) static void name(const tiny *t, const void *left, const void *right, void *out) \
    {                                                                                                                   \
        const type *a = left, *b = right;                                                                               \
        type *c = out;                                                                                                  \
        for (int64_t i = 0; i < t->m; i++) {                                                                            \
            const type *a_row = a + i * t->a_row;                                                                       \
            type *c_row = c + i * t->c_row;                                                                             \
            int64_t j = 0;                                                                                              \
            for (; j + 4 <= t->n; j += 4)                                                                               \
                COLUMNS(type, fma, 4);                                                                                  \
            switch (t->n - j) {                                                                                         \
            case 3: COLUMNS(type, fma, 3); break;                                                                       \
            case 2: COLUMNS(type, fma, 2); break;                                                                       \
            case 1: COLUMNS(type, fma, 1); break;                                                                       \
            }                                                                                                           \
        }                                                                                                               \
    }
MATRIX(matrix_f32, float, fmaf)
MATRIX(matrix_f64, double, fma)

void gemm_run_tiny(const opq_gemm_call *call)
{
    _Alignas(64) double tile[OPQ_TINY_WORK];
    void (*matrix)(const tiny *, const void *, const void *, void *) = call->dtype == OPQ_f32 ? matrix_f32 : matrix_f64;
    int64_t bytes = opq_dtype_bytes(call->dtype);
    bool turned = call->n < call->m;
    tiny t = {.m = call->m,
              .n = call->n,
              .k = call->k,
              .a_row = call->a.row_stride,
              .a_column = call->a.column_stride,
              .b_row = call->b.row_stride,
              .b_column = call->b.column_stride,
              .c_row = call->tile ? call->n : call->c_row_stride,
              .c_column = 1,
              .accumulate = call->accumulate && !call->tile};
    if (turned)
        t = turn(t);
    for (int64_t i = 0; i < call->batch; i++) {
        const char *a = (const char *)call->a.data + i * call->a.batch_stride * bytes;
        const char *b = (const char *)call->b.data + i * call->b.batch_stride * bytes;
        void *c = call->tile ? (char *)tile : (char *)call->c + i * call->c_batch_stride * bytes;
        matrix(&t, turned ? b : a, turned ? a : b, c);
        if (call->tile)
            call->tile(call->tile_data, i, 0, call->m, 0, call->n, tile, call->n);
    }
}
