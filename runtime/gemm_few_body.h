/* Few rows times a matrix whose columns are contiguous (a linear layer's weight, a matrix times a vector). No include guard: the
 * files for each instruction set define what is in capitals and include this.
 *
 * Packing would write and read b once more, for a b that is read only once. Here LANES columns x LANES k of b are transposed in
 * registers and used at once: lane j is column j, so that each element still is one chain over ascending k.
 */
enum {
    GROUPS = 2, /* of LANES columns, in turns: one chain is not enough to be fast, more are too many streams from memory */
    AHEAD = 256, /* bytes of a column of b to prefetch ahead */
};

typedef struct columns {
    const char *b;
    int64_t offset[LANES]; /* bytes; columns that do not exist are read as copies of the last one */
    int64_t count;         /* at most LANES are stored */
} columns;

INLINE void multiply_k(const opq_few_rows *w, int rows, const VECTOR column[LANES], int64_t k0, int64_t count, VECTOR *sum)
{
    const float *a = w->a + k0 * w->a_k_stride;
    UNROLL_LANES
    for (int i = 0; i < LANES; i++)
        if (i < count)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r] = MULTIPLY_ADD(FILL(a[i * w->a_k_stride + r * w->a_row_stride]), column[i], sum[r]);
}

INLINE void multiply_columns(const opq_few_rows *w, int rows, opq_dtype from, const columns *group, int groups,
                             int64_t first)
{
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    VECTOR sum[GROUPS][OPQ_FEW_ROWS_MAX];
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            sum[g][r] = FILL(0);
    for (int64_t k0 = 0; k0 < w->k; k0 += LANES)
        for (int g = 0; g < groups; g++) {
            int64_t count = w->k - k0;
            VECTOR column[LANES];
            const char *b = group[g].b + k0 * bytes;
            UNROLL_LANES
            for (int i = 0; i < LANES; i++) {
                column[i] = LOAD(b + group[g].offset[i], from, count);
                _mm_prefetch(b + group[g].offset[i] + AHEAD, _MM_HINT_T0);
            }
            transpose_f32(column);
            if (count >= LANES)
                multiply_k(w, rows, column, k0, LANES, sum[g]);
            else
                multiply_k(w, rows, column, k0, count, sum[g]);
        }
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            STORE(w->c + r * w->c_row_stride + first + LANES * g, group[g].count, sum[g][r]);
}

INLINE void multiply(const opq_few_rows *w, int rows, opq_dtype from)
{
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    for (int64_t j = 0; j < w->columns; j += LANES * GROUPS) {
        columns group[GROUPS];
        int groups = 0;
        for (; groups < GROUPS && j + LANES * groups < w->columns; groups++) {
            int64_t first = j + LANES * groups, count = w->columns - first;
            group[groups].b = (const char *)w->b + first * w->b_column_stride * bytes;
            group[groups].count = count;
            for (int i = 0; i < LANES; i++)
                group[groups].offset[i] = (i < count ? i : count - 1) * w->b_column_stride * bytes;
        }
        multiply_columns(w, rows, from, group, groups, j);
    }
}

/* Rows and dtype are literals in each call, so that each inlines into its own loop. */
#define FEW_ROWS(n)                                                                                                    \
    if (w->rows == n) {                                                                                                \
        if (w->b_dtype == OPQ_f32)                                                                                     \
            multiply(w, n, OPQ_f32);                                                                                   \
        else if (w->b_dtype == OPQ_bf16)                                                                               \
            multiply(w, n, OPQ_bf16);                                                                                  \
        else                                                                                                           \
            multiply(w, n, OPQ_f16);                                                                                   \
    }
