/* Few rows times a matrix whose columns are contiguous (a linear layer's weight, a matrix times a vector), with AVX-512.
 *
 * Packing would write and read b once more, for a b that is read only once. Here 16 columns x 16 k of b are transposed in
 * registers and used at once: lane j is column j, so that each element still is one chain over ascending k.
 */
#include "runtime/gemm_avx512.h"
#include "runtime/gemm_few.h"

enum {
    GROUPS = 2,  /* of 16 columns, in turns: one chain is not enough to be fast, more are too many streams from memory */
    AHEAD = 256, /* bytes of a column of b to prefetch ahead */
};

typedef struct columns {
    const char *b;
    int64_t offset[16]; /* bytes; columns that do not exist are read as copies of the last one */
    __mmask16 store;
} columns;

INLINE void multiply_k(const opq_few_rows *w, int rows, const __m512 column[16], int64_t k0, int64_t count, __m512 *sum)
{
    const float *a = w->a + k0 * w->a_k_stride;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        if (i < count)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[i * w->a_k_stride + r * w->a_row_stride]), column[i], sum[r]);
}

INLINE void multiply_columns(const opq_few_rows *w, int rows, opq_dtype from, const columns *group, int groups, int64_t first)
{
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    __m512 sum[GROUPS][OPQ_FEW_ROWS_MAX];
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            sum[g][r] = _mm512_setzero_ps();
    for (int64_t k0 = 0; k0 < w->k; k0 += 16)
        for (int g = 0; g < groups; g++) {
            int64_t count = w->k - k0;
            __m512 column[16];
            const char *b = group[g].b + k0 * bytes;
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                column[i] = load_f32(b + group[g].offset[i], from, (__mmask16)mask_of(count, 16));
                _mm_prefetch(b + group[g].offset[i] + AHEAD, _MM_HINT_T0);
            }
            transpose_f32(column);
            if (count >= 16)
                multiply_k(w, rows, column, k0, 16, sum[g]);
            else
                multiply_k(w, rows, column, k0, count, sum[g]);
        }
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            _mm512_mask_storeu_ps(w->c + r * w->c_row_stride + first + 16 * g, group[g].store, sum[g][r]);
}

INLINE void multiply(const opq_few_rows *w, int rows, opq_dtype from)
{
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    for (int64_t j = 0; j < w->columns; j += 16 * GROUPS) {
        columns group[GROUPS];
        int groups = 0;
        for (; groups < GROUPS && j + 16 * groups < w->columns; groups++) {
            int64_t first = j + 16 * groups, count = w->columns - first;
            group[groups].b = (const char *)w->b + first * w->b_column_stride * bytes;
            group[groups].store = (__mmask16)mask_of(count, 16);
            for (int i = 0; i < 16; i++)
                group[groups].offset[i] = (i < count ? i : count - 1) * w->b_column_stride * bytes;
        }
        multiply_columns(w, rows, from, group, groups, j);
    }
}

/* Rows and dtype are literals in each call, so that each inlines into its own loop. */
#define EACH(n)                                                                                                                \
    if (w->rows == n) {                                                                                                        \
        if (w->b_dtype == OPQ_f32)                                                                                             \
            multiply(w, n, OPQ_f32);                                                                                           \
        else if (w->b_dtype == OPQ_bf16)                                                                                       \
            multiply(w, n, OPQ_bf16);                                                                                          \
        else                                                                                                                   \
            multiply(w, n, OPQ_f16);                                                                                           \
    }

AVX512 void opq_gemm_few_rows(const opq_few_rows *w)
{
    EACH(1)
    EACH(2)
    EACH(3)
    EACH(4)
}
