/* Few rows times a matrix whose columns are contiguous (a linear layer's weight, a matrix times a vector). No include guard: the
 * files for each instruction set define what is in capitals and include this.
 *
 * Packing would write and read b once more, for a b that is read only once. Here LANES columns x LANES k of b are transposed in
 * registers and used at once: lane j is column j, so that each element still is one chain over ascending k.
 */
/* GROUPS of LANES columns in turns, where one chain of b in cache would wait for its sums; from memory more streams are slower. */
enum { GROUPS = 2, LINE = 64 /* bytes */ };

typedef struct columns {
    const char *b;
    int64_t offset[LANES]; /* bytes; columns that do not exist are read as copies of the last one */
    int64_t count;         /* at most LANES are stored */
} columns;

INLINE void multiply_k(const opq_few_rows *w, int rows, const VECTOR column[LANES], int64_t k0, int64_t count, VECTOR *sum)
{
    const float *a = w->a + k0 * w->a_k_stride;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (i < count)
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r] = fma_f32(fill_f32(a[i * w->a_k_stride + r * w->a_row_stride]), column[i], sum[r]);
}

/* From memory the LANES columns behind these, which lie there in one piece, come while these are used: their share for one step of k. As
 * they are read later, each from its own place, hardware would follow them only after some lines of each. */
INLINE void prefetch_next(const opq_few_rows *w, const char *b, int64_t k0, int64_t bytes)
{
    const char *next = b + LANES * bytes * (w->k + k0);
#pragma GCC unroll 16
    for (int i = 0; i < LANES * LANES * bytes / LINE; i++)
        _mm_prefetch(next + (int64_t)i * LINE, _MM_HINT_T1);
}

/* `count` of k, LANES at most, of the LANES columns at `b`. */
INLINE void multiply_block(const opq_few_rows *w, int rows, opq_dtype from, const char *b, const int64_t *offset,
                           int64_t k0, int64_t count, VECTOR *sum)
{
    VECTOR column[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        column[i] = load_f32(b + offset[i], from, first_f32(count));
    transpose_f32(column);
    multiply_k(w, rows, column, k0, count, sum);
}

INLINE void multiply_columns(const opq_few_rows *w, int rows, opq_dtype from, const columns *group, int groups,
                             int64_t first)
{
    int64_t bytes = opq_pack_bytes(from);
    bool from_memory = !w->near && w->b_column_stride == w->k;
    VECTOR sum[GROUPS][OPQ_FEW_ROWS_MAX];
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            sum[g][r] = fill_f32(0);
    int64_t k0 = 0;
    for (; k0 + LANES <= w->k; k0 += LANES)
        for (int g = 0; g < groups; g++) {
            if (from_memory)
                prefetch_next(w, group[g].b, k0, bytes);
            multiply_block(w, rows, from, group[g].b + k0 * bytes, group[g].offset, k0, LANES, sum[g]);
        }
    for (int g = 0; g < groups && k0 < w->k; g++)
        multiply_block(w, rows, from, group[g].b + k0 * bytes, group[g].offset, k0, w->k - k0, sum[g]);
    for (int g = 0; g < groups; g++)
        for (int r = 0; r < rows; r++)
            store_f32(w->c + r * w->c_row_stride + first + LANES * g, first_f32(group[g].count), sum[g][r]);
}

INLINE void multiply_all(const opq_few_rows *w, int rows, opq_dtype from, int most)
{
    int64_t bytes = opq_pack_bytes(from);
    for (int64_t j = 0; j < w->columns; j += LANES * most) {
        columns group[GROUPS];
        int groups = 0;
        for (; groups < most && j + LANES * groups < w->columns; groups++) {
            int64_t first = j + LANES * groups, count = w->columns - first;
            group[groups].b = (const char *)w->b + first * w->b_column_stride * bytes;
            group[groups].count = count;
            for (int i = 0; i < LANES; i++)
                group[groups].offset[i] = (i < count ? i : count - 1) * w->b_column_stride * bytes;
        }
        multiply_columns(w, rows, from, group, groups, j);
    }
}

/* Several rows are as many chains. */
INLINE void multiply(const opq_few_rows *w, int rows, opq_dtype from)
{
    if (rows == 1 && w->near)
        multiply_all(w, rows, from, GROUPS);
    else
        multiply_all(w, rows, from, 1);
}
