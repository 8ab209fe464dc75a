/* Packing with AVX-512. Neighbours across are contiguous: copy. Neighbours along k are contiguous: transpose 16 x 16 (f64: 8 x 8)
 * blocks in registers. Edges are masked; rows that do not exist are read as copies of the last one, so nothing branches. */
#include "runtime/gemm_avx512.h"
#include "runtime/gemm_pack.h"

/* Elements to prefetch ahead along a row that is read 64 bytes at a time, once for every 16 rows. */
enum { AHEAD = 64 };
/* Rows of k to prefetch ahead: hardware does not follow short runs a row apart. */
enum { ROWS_AHEAD = 32 };
/* Rows of a window that are made together: they stay in L1. */
enum { MOVED_ROWS = 128 };

/* Elements of `bytes` bytes, strides counting `unit`. */
INLINE void transpose_panel(const opq_pack_source *s, opq_dtype from, int64_t bytes, int64_t unit, int64_t k,
                            int64_t across, int width, float *out)
{
    for (int64_t j = 0; j < across; j += 16) {
        const char *first = s->data;
        int64_t offset[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            offset[i] = opq_pack_across(s, j + i < across ? j + i : across - 1) * unit;
        __mmask16 store = (__mmask16)mask_of(width - j, 16);
        for (int64_t p = 0; p < k; p += 16) {
            __mmask16 load = (__mmask16)mask_of(k - p, 16);
            __m512 r[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                r[i] = load_f32(first + offset[i] + p * bytes, from, load);
                _mm_prefetch(first + offset[i] + (p + AHEAD) * bytes, _MM_HINT_T0);
            }
            transpose_f32(r);
            float *to = out + p * width + j;
            if (k - p >= 16) {
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++)
                    _mm512_mask_storeu_ps(to + i * width, store, r[i]);
            } else {
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++)
                    if (p + i < k)
                        _mm512_mask_storeu_ps(to + i * width, store, r[i]);
            }
        }
    }
}

INLINE void transpose_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    int64_t bytes = opq_pack_bytes(from);
    transpose_panel(s, from, bytes, bytes, k, across, width, out);
}

INLINE void transpose_panel_f64(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width,
                                double *out)
{
    int64_t bytes = from == OPQ_f64 ? 8 : 4;
    for (int64_t j = 0; j < across; j += 8) {
        const char *first = s->data;
        __mmask8 store = (__mmask8)mask_of(width - j, 8);
        for (int64_t p = 0; p < k; p += 8) {
            __mmask8 load = (__mmask8)mask_of(k - p, 8);
            __m512d r[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                r[i] =
                    load_f64(first + (opq_pack_across(s, j + i < across ? j + i : across - 1) + p) * bytes, from, load);
            transpose_f64(r);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++)
                if (p + i < k)
                    _mm512_mask_storeu_pd(out + (p + i) * width + j, store, r[i]);
        }
    }
}

INLINE void copy_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    __mmask16 load0 = (__mmask16)mask_of(across, 16), load1 = (__mmask16)mask_of(across - 16, 16);
    __mmask16 store0 = (__mmask16)mask_of(width, 16), store1 = (__mmask16)mask_of(width - 16, 16);
    const char *row = s->data;
    int64_t bytes = opq_pack_bytes(from);
    for (int64_t p = 0; p < k; p++, row += s->k_stride * bytes, out += width) {
        _mm_prefetch(row + ROWS_AHEAD * s->k_stride * bytes, _MM_HINT_T0);
        if (load1)
            _mm_prefetch(row + (ROWS_AHEAD * s->k_stride + 16) * bytes, _MM_HINT_T0);
        _mm512_mask_storeu_ps(out, store0, load_f32(row, from, load0));
        if (store1)
            _mm512_mask_storeu_ps(out + 16, store1, load_f32(load1 ? row + 16 * bytes : row, from, load1));
    }
}

INLINE void copy_panel_f64(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, double *out)
{
    __mmask8 load0 = (__mmask8)mask_of(across, 8), load1 = (__mmask8)mask_of(across - 8, 8);
    __mmask8 store0 = (__mmask8)mask_of(width, 8), store1 = (__mmask8)mask_of(width - 8, 8);
    const char *row = s->data;
    int64_t bytes = from == OPQ_f64 ? 8 : 4;
    for (int64_t p = 0; p < k; p++, row += s->k_stride * bytes, out += width) {
        _mm512_mask_storeu_pd(out, store0, load_f64(row, from, load0));
        if (store1)
            _mm512_mask_storeu_pd(out + 8, store1, load_f64(load1 ? row + 8 * bytes : row, from, load1));
    }
}

/* Sixteen pairs of neighbours along k. */
INLINE __m512i load_pairs(const char *low, const char *high, __mmask16 there, bool both)
{
    __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, low));
    __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(both ? there : 0, high));
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

INLINE void join_rows(const opq_pack_source *s, int64_t k, int64_t across, int width, uint32_t *out)
{
    __mmask16 load0 = (__mmask16)mask_of(across, 16), load1 = (__mmask16)mask_of(across - 16, 16);
    __mmask16 store0 = (__mmask16)mask_of(width, 16), store1 = (__mmask16)mask_of(width - 16, 16);
    const char *row = s->data;
    int64_t bytes = s->k_stride * 2;
    for (int64_t p = 0; p < k; p += 2, row += 2 * bytes, out += width) {
        bool both = p + 1 < k;
        _mm_prefetch(row + ROWS_AHEAD * bytes, _MM_HINT_T0);
        _mm_prefetch(row + (ROWS_AHEAD + 1) * bytes, _MM_HINT_T0);
        _mm512_mask_storeu_epi32(out, store0, load_pairs(row, row + bytes, load0, both));
        if (store1)
            _mm512_mask_storeu_epi32(out + 16, store1, load_pairs(row + 32, row + bytes + 32, load1, both));
    }
}

AVX512 bool opq_pack_pairs_avx512(const opq_pack_source *s, int64_t k, int64_t across, int width, uint32_t *out)
{
    if (s->k_at || s->from != OPQ_bf16)
        return false;
    if (s->across_stride == 1 && !s->across_at)
        join_rows(s, k, across, width, out);
    else if (s->k_stride == 1)
        transpose_panel(s, OPQ_f32, 4, 2, k / 2, across, width, (float *)out);
    else
        return false;
    return true;
}

AVX512 bool opq_pack_quads_avx512(const opq_pack_source *s, int64_t k, int64_t across, int width, uint32_t *out)
{
    if (s->k_at || s->from != OPQ_i8 || s->k_stride != 1)
        return false;
    transpose_panel(s, OPQ_f32, 4, 1, k / 4, across, width, (float *)out);
    return true;
}

__attribute__((target("avx512f,avx512vnni"))) void opq_pack_start_avx512(void *panel, int64_t k, int width)
{
    for (int j = 0; j < width; j += 16) {
        __m512i sum = _mm512_setzero_si512();
        char *at = (char *)panel + (int64_t)j * 4;
        for (int64_t i = 0; i < k; i++, at += (int64_t)width * 4)
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)128), _mm512_loadu_si512(at));
        _mm512_storeu_si512(at, _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
}

/* One move of `count` rows from row `first` on. */
INLINE void copy_move(const opq_pack_source *s, opq_dtype from, int64_t first, int64_t count, const opq_pack_move *move,
                      int width, float *out)
{
    int64_t bytes = opq_pack_bytes(from), reach = move->apart ? 2 * move->count - 1 : move->count;
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const char *data = (const char *)s->data + move->from * bytes;
    const __mmask16 load = (__mmask16)mask_of(reach, 16), more = (__mmask16)mask_of(reach - 16, 16),
                    store = (__mmask16)mask_of(move->count, 16);
    float *to = out + first * width + move->to;
    for (int64_t i = 0; i < count; i++) {
        const char *at = data + opq_pack_k(s, first + i) * bytes;
        __m512 value = load_f32(at, from, load);
        if (move->apart)
            value = _mm512_permutex2var_ps(value, even, load_f32(at + 16 * bytes, from, more));
        _mm512_mask_storeu_ps(to + i * width, store, value);
    }
}

/* Some rows at a time, and of those each move for all of them: its masks stay in registers. */
INLINE void copy_moves(const opq_pack_source *s, opq_dtype from, int64_t k, const opq_pack_move *moves, int count,
                       int width, float *out)
{
    for (int64_t first = 0; first < k; first += MOVED_ROWS)
        for (int m = 0; m < count; m++)
            copy_move(s, from, first, k - first < MOVED_ROWS ? k - first : MOVED_ROWS, &moves[m], width, out);
}

AVX512 bool opq_pack_moves_avx512(const opq_pack_source *s, int64_t k, const opq_pack_move *moves, int count, int width,
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

/* The dtype is a literal in each call, so that each inlines into its own loop. */
#define EACH(dtype, copy, transpose, type)                                                                             \
    if (s->from == dtype) {                                                                                            \
        if (s->across_stride == 1)                                                                                     \
            copy(s, dtype, k, across, width, (type *)out);                                                             \
        else                                                                                                           \
            transpose(s, dtype, k, across, width, (type *)out);                                                        \
        return true;                                                                                                   \
    }

AVX512 bool opq_pack_panel_avx512(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    if (s->k_at || (s->across_stride != 1 && s->k_stride != 1))
        return false;
    if (s->to == OPQ_f32) {
        EACH(OPQ_f32, copy_panel_f32, transpose_panel_f32, float)
        EACH(OPQ_bf16, copy_panel_f32, transpose_panel_f32, float)
        EACH(OPQ_f16, copy_panel_f32, transpose_panel_f32, float)
        EACH(OPQ_i8, copy_panel_f32, transpose_panel_f32, float)
    } else {
        EACH(OPQ_f64, copy_panel_f64, transpose_panel_f64, double)
        EACH(OPQ_f32, copy_panel_f64, transpose_panel_f64, double)
    }
    return false;
}
