/* Packing with AVX2: the same two ways as gemm_pack_avx512.c, with blocks of 8 x 8 (f64: 4 x 4). Masked stores are slow on many
 * CPUs and full ones would run over into a panel that another thread writes, so short rows are stored whole, one over the start
 * of the next, and only the end of the panel element by element. */
#include "runtime/gemm_avx2.h"
#include "runtime/gemm_pack.h"

/* As store_f32. */
INLINE void store_f64(double *to, const double *end, __m256d value)
{
    double part[4];
    if (end - to >= 4) {
        _mm256_storeu_pd(to, value);
    } else if (end > to) {
        _mm256_storeu_pd(part, value);
        memcpy(to, part, (size_t)(end - to) * sizeof *to);
    }
}

/* Rows of floats but the last ones, with what lies behind them: between elements of the matrix, so it may be read. */
INLINE int64_t copy_whole_rows_f32(const float *row, int64_t stride, int64_t k, int width, int vectors, float *out)
{
    int64_t rows = k - 1 - (vectors * 8 - 1) / width; /* what is stored over the end of a row is in the panel */
    rows = stride >= 8 * vectors ? rows : 0;
    for (int64_t p = 0; p < rows; p++, row += stride, out += width)
        for (int v = 0; v < vectors; v++)
            _mm256_storeu_ps(out + 8 * v, _mm256_loadu_ps(row + 8 * v));
    return rows > 0 ? rows : 0;
}

/* Rows are stored in ascending order, each over the surplus of the one before; two vectors of one row likewise. */
INLINE void copy_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    const float *end = out + k * width;
    const char *row = s->data;
    int64_t bytes = opq_pack_bytes(from), p = 0;
    if (from == OPQ_f32)
        p = width > 8 ? copy_whole_rows_f32(s->data, s->k_stride, k, width, 2, out)
                      : copy_whole_rows_f32(s->data, s->k_stride, k, width, 1, out);
    row += p * s->k_stride * bytes;
    out += p * width;
    for (; p < k; p++, row += s->k_stride * bytes, out += width)
        for (int j = 0; j < width; j += 8)
            store_f32(out + j, end, load_f32(j < across ? row + j * bytes : row, from, across - j));
}

INLINE void copy_panel_f64(const opq_pack_source *s, int64_t k, int64_t across, int width, double *out)
{
    const double *end = out + k * width;
    const double *row = s->data;
    for (int64_t p = 0; p < k; p++, row += s->k_stride, out += width)
        for (int j = 0; j < width; j += 4)
            store_f64(out + j, end, load_f64(j < across ? row + j : row, across - j));
}

/* Whole blocks, of neighbours that are all there: 8 x 8 at a time from rows at a stride. The next panel's lines are asked for: hardware does
 * not follow so many short rows. The rows of k that it did. */
INLINE int64_t transpose_blocks_f32(const opq_pack_source *s, int64_t k, int width, int vectors, float *out)
{
    int64_t stride = s->across_stride, p = 0;
    for (; p + 8 <= k; p += 8)
        for (int v = 0; v < vectors; v++) {
            const float *at = (const float *)s->data + 8 * v * stride + p;
            float *to = out + p * width + 8 * v;
            __m256 r[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                r[i] = _mm256_loadu_ps(at + i * stride);
                if (p % 16 == 0)
                    _mm_prefetch((const char *)(at + (width + i) * stride), _MM_HINT_T0);
            }
            transpose_f32(r);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                _mm256_storeu_ps(to + i * width, r[i]);
        }
    return p;
}

/* A transposed block of k rows spans one vector across; the next vector's rows would be overwritten by this one's surplus only
 * beyond `width`, so the vectors go from left to right within one block of k. */
INLINE void transpose_vectors_f32(const opq_pack_source *s, opq_dtype from, int64_t first, int64_t k, int64_t across,
                                  int width, int vectors, float *out)
{
    const float *end = out + k * width;
    int64_t bytes = opq_pack_bytes(from);
    for (int64_t p = first; p < k; p += 8) {
        __m256 r[2][8];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                int64_t j = 8 * v + i < across ? 8 * v + i : across - 1;
                const char *at = (const char *)s->data + (opq_pack_across(s, j) + p) * bytes;
                r[v][i] = load_f32(at, from, k - p);
            }
            transpose_f32(r[v]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                if (p + i < k)
                    store_f32(out + (p + i) * width + 8 * v, end, r[v][i]);
    }
}

INLINE void transpose_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    bool plain = from == OPQ_f32 && !s->across_at && across == width && width % 8 == 0;
    int64_t done = plain ? transpose_blocks_f32(s, k, width, width / 8, out) : 0;
    if (width > 8)
        transpose_vectors_f32(s, from, done, k, across, width, 2, out);
    else
        transpose_vectors_f32(s, from, done, k, across, width, 1, out);
}

INLINE void transpose_vectors_f64(const opq_pack_source *s, int64_t k, int64_t across, int width, int vectors, double *out)
{
    const double *end = out + k * width, *data = s->data;
    for (int64_t p = 0; p < k; p += 4) {
        __m256d r[2][4];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                int64_t j = 4 * v + i < across ? 4 * v + i : across - 1;
                r[v][i] = load_f64(data + opq_pack_across(s, j) + p, k - p);
            }
            transpose_f64(r[v]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                if (p + i < k)
                    store_f64(out + (p + i) * width + 4 * v, end, r[v][i]);
    }
}

INLINE void transpose_panel_f64(const opq_pack_source *s, int64_t k, int64_t across, int width, double *out)
{
    if (width > 4)
        transpose_vectors_f64(s, k, across, width, 2, out);
    else
        transpose_vectors_f64(s, k, across, width, 1, out);
}

/* Moves are stored in ascending order, each over the surplus of the one before. */
INLINE void copy_moves(const opq_pack_source *s, opq_dtype from, int64_t k, const opq_pack_move *moves, int count,
                       int width, float *out)
{
    int64_t bytes = opq_pack_bytes(from);
    const float *end = out + k * width;
    for (int64_t p = 0; p < k; p++, out += width) {
        const char *row = (const char *)s->data + opq_pack_k(s, p) * bytes;
        for (int m = 0; m < count; m++) {
            const opq_pack_move *move = &moves[m];
            const char *at = row + move->from * bytes;
            int64_t reach = move->apart ? 2 * move->count - 1 : move->count;
            __m256 value = load_f32(at, from, reach);
            if (move->apart) {
                __m256 high = load_f32(reach > 8 ? at + 8 * bytes : at, from, reach - 8);
                __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(value, high, 0x88));
                value = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
            }
            store_f32(out + move->to, end, value);
        }
    }
}

AVX2 bool opq_pack_moves_avx2(const opq_pack_source *s, int64_t k, const opq_pack_move *moves, int count, int width,
                              float *out)
{
    if (s->to != OPQ_f32)
        return false;
    if (s->from == OPQ_f32)
        copy_moves(s, OPQ_f32, k, moves, count, width, out);
    else if (s->from == OPQ_bf16)
        copy_moves(s, OPQ_bf16, k, moves, count, width, out);
    else if (s->from == OPQ_f16)
        copy_moves(s, OPQ_f16, k, moves, count, width, out);
    else
        return false;
    return true;
}

AVX2 void opq_turn_avx2(const float *from, int64_t ld, int64_t rows, int64_t columns, float *to, int64_t to_ld)
{
    int64_t whole_rows = rows - rows % 8, whole_columns = columns - columns % 8;
    for (int64_t j = 0; j < whole_columns; j += 8)
        for (int64_t i = 0; i < whole_rows; i += 8) {
            __m256 r[8];
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++)
                r[v] = _mm256_loadu_ps(from + (i + v) * ld + j);
            transpose_f32(r);
#pragma GCC unroll 8
            for (int v = 0; v < 8; v++)
                _mm256_storeu_ps(to + (j + v) * to_ld + i, r[v]);
        }
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = j < whole_columns ? whole_rows : 0; i < rows; i++)
            to[j * to_ld + i] = from[i * ld + j];
}

#define EACH_F32(dtype)                                                                                                \
    if (s->to == OPQ_f32 && s->from == dtype) {                                                                        \
        if (s->across_stride == 1)                                                                                     \
            copy_panel_f32(s, dtype, k, across, width, out);                                                           \
        else                                                                                                           \
            transpose_panel_f32(s, dtype, k, across, width, out);                                                      \
        return true;                                                                                                   \
    }

AVX2 bool opq_pack_panel_avx2(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    if (s->k_at || (s->across_stride != 1 && s->k_stride != 1))
        return false;
    EACH_F32(OPQ_f32)
    EACH_F32(OPQ_bf16)
    EACH_F32(OPQ_f16)
    EACH_F32(OPQ_i8)
    if (s->to != OPQ_f64 || s->from != OPQ_f64)
        return false;
    if (s->across_stride == 1)
        copy_panel_f64(s, k, across, width, out);
    else
        transpose_panel_f64(s, k, across, width, out);
    return true;
}
