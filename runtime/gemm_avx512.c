/* Vectors of AVX-512. Masks are bits. */
#include "runtime/gemm_isa.h"

#include <immintrin.h>

#define ISA __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,f16c")))
#define BF16 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,f16c,avx512bf16")))
#define INLINE static inline __attribute__((always_inline)) ISA
#define MASK __mmask16
enum { WHOLE_ROWS_f32 = 0, WHOLE_ROWS_f64 = 0, WHOLE_BLOCKS = 0, TURNED = 1 };

INLINE __mmask16 mask_of(int64_t count, int lanes)
{
    return (__mmask16)(count <= 0 ? 0 : count >= lanes ? (1u << lanes) - 1 : (1u << count) - 1);
}
INLINE __mmask16 first_f32(int64_t count) { return mask_of(count, 16); }
INLINE __mmask16 first_f64(int64_t count) { return mask_of(count, 8); }

INLINE __m512 load_f32(const void *at, opq_dtype from, __mmask16 mask)
{
    if (from == OPQ_f32)
        return _mm512_maskz_loadu_ps(mask, at);
    if (from == OPQ_i8)
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, at)));
    __m256i half = _mm256_maskz_loadu_epi16(mask, at);
    if (from == OPQ_f16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __m512d load_f64(const void *at, opq_dtype from, __mmask16 mask)
{
    if (from == OPQ_f64)
        return _mm512_maskz_loadu_pd((__mmask8)mask, at);
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps((__mmask8)mask, at));
}

INLINE void store_f32(float *to, __mmask16 lanes, __m512 value) { _mm512_mask_storeu_ps(to, lanes, value); }
INLINE void store_f64(double *to, __mmask16 lanes, __m512d value) { _mm512_mask_storeu_pd(to, (__mmask8)lanes, value); }

/* Elements 0, 2, 4 ... of two vectors. */
INLINE __m512 even_f32(__m512 low, __m512 high)
{
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_ps(low, even, high);
}
INLINE __m512d even_f64(__m512d low, __m512d high)
{
    return _mm512_permutex2var_pd(low, _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0), high);
}

/* Transposes r[i] lane j <-> r[j] lane i. */
INLINE void transpose_f32(__m512 r[16])
{
    __m512 s[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512d x = _mm512_castps_pd(s[i + h]), y = _mm512_castps_pd(s[i + h + 2]);
            r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
            r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
        }
    /* r[4g + c] holds, in 128-bit lane l, column 4l + c of rows 4g .. 4g+3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m512 low01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x44), high01 = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xee);
        __m512 low23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x44),
               high23 = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xee);
        s[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
        s[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
        s[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
        s[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = s[i];
}

INLINE void transpose_f64(__m512d r[8])
{
    __m512d s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    /* s[2g + c] holds, in 128-bit lane l, column 2l + c of rows 2g, 2g+1. */
#pragma GCC unroll 2
    for (int c = 0; c < 2; c++) {
        __m512d low01 = _mm512_shuffle_f64x2(s[c], s[2 + c], 0x44), high01 = _mm512_shuffle_f64x2(s[c], s[2 + c], 0xee);
        __m512d low23 = _mm512_shuffle_f64x2(s[4 + c], s[6 + c], 0x44),
                high23 = _mm512_shuffle_f64x2(s[4 + c], s[6 + c], 0xee);
        r[c] = _mm512_shuffle_f64x2(low01, low23, 0x88);
        r[2 + c] = _mm512_shuffle_f64x2(low01, low23, 0xdd);
        r[4 + c] = _mm512_shuffle_f64x2(high01, high23, 0x88);
        r[6 + c] = _mm512_shuffle_f64x2(high01, high23, 0xdd);
    }
}

INLINE __m512 fill_f32(float x) { return _mm512_set1_ps(x); }
INLINE __m512 fma_f32(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }

#define OF(name) name##_f32
#define TYPE float
#define VECTOR __m512
#define LANES 16
#include "runtime/gemm_few_body.h"
#include "runtime/gemm_pack_body.h"
#define OF(name) name##_f64
#define TYPE double
#define VECTOR __m512d
#define LANES 8
#include "runtime/gemm_pack_body.h"
#include "runtime/gemm_isa_body.h"

/* ---- words */

/* Sixteen pairs of neighbours along k. */
INLINE __m512i load_pairs(const char *low, const char *high, __mmask16 there, bool both)
{
    __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, low));
    __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(both ? there : 0, high));
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

INLINE void join_rows(const opq_pack_source *s, int64_t k, int64_t across, int width, uint32_t *out)
{
    __mmask16 load0 = first_f32(across), load1 = first_f32(across - 16);
    __mmask16 store0 = first_f32(width), store1 = first_f32(width - 16);
    const char *row = s->data;
    int64_t bytes = s->k_stride * 2;
    for (int64_t p = 0; p < k; p += 2, row += 2 * bytes, out += width) {
        bool both = p + 1 < k;
        _mm_prefetch(row + s->target->pack_rows_ahead * bytes, _MM_HINT_T0);
        _mm_prefetch(row + (s->target->pack_rows_ahead + 1) * bytes, _MM_HINT_T0);
        _mm512_mask_storeu_epi32(out, store0, load_pairs(row, row + bytes, load0, both));
        if (store1)
            _mm512_mask_storeu_epi32(out + 16, store1, load_pairs(row + 32, row + bytes + 32, load1, both));
    }
}

/* The pairs [k, end) of one move. Not both: there is one, of which the second is missing. */
INLINE void join_move(const opq_pack_source *s, const opq_pack_move *move, int64_t k, int64_t end, bool both, int width,
                      uint32_t *to)
{
    int64_t reach = move->count * (move->apart ? 2 : 1);
    __mmask16 low = first_f32(move->apart ? reach - 1 : reach), high = first_f32(reach - 1 - 16);
    __mmask16 lanes = first_f32(move->count);
    const char *data = opq_pack_at(s->data, OPQ_bf16, move->from);
    to += k / 2 * width + move->to;
    for (; k < end; k += 2, to += width) {
        const char *first = data + opq_pack_k(s, k) * 2, *second = both ? data + opq_pack_k(s, k + 1) * 2 : first;
        __m512i words = load_pairs(first, second, low, both);
        if (move->apart)
            words = _mm512_castps_si512(even_f32(_mm512_castsi512_ps(words),
                                                 _mm512_castsi512_ps(load_pairs(first + 32, second + 32, high, both))));
        _mm512_mask_storeu_epi32(to, lanes, words);
    }
}

ISA static void join_moves(const opq_pack_source *s, int64_t k, const opq_pack_move *moves, int count, int width,
                           void *out)
{
    int64_t together = s->target->pack_moved_rows, whole = k / 2 * 2;
    for (int64_t begin = 0; begin < whole; begin += together) {
        int64_t end = whole - begin < together ? whole : begin + together;
        for (int m = 0; m < count; m++)
            join_move(s, &moves[m], begin, end, true, width, out);
    }
    for (int m = 0; m < count && whole < k; m++)
        join_move(s, &moves[m], whole, k, false, width, out);
}

/* The same of numbers, which are rounded. */
BF16 static void join_numbers(const opq_pack_source *s, int64_t k, int64_t across, int width, uint32_t *out)
{
    const float *row = s->data;
    for (int64_t p = 0; p < k; p += 2, row += 2 * s->k_stride, out += width)
        for (int j = 0; j < width; j += 16) {
            __mmask16 there = first_f32(across - j);
            __m256bh first = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, row + j));
            __m256bh second = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(p + 1 < k ? there : 0, row + s->k_stride + j));
            __m512i words = _mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)first),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)second), 16));
            _mm512_mask_storeu_epi32(out + j, first_f32(width - j), words);
        }
}

BF16 void opq_pack_rounded_avx512(const float *x, int64_t count, uint16_t *out)
{
    for (int64_t i = 0; i < count; i += 32, out += 32) {
        __m512 low = _mm512_maskz_loadu_ps(first_f32(count - i), x + i);
        __m512 high = _mm512_maskz_loadu_ps(first_f32(count - i - 16), x + i + 16);
        _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

ISA static bool words(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    bool pairs = s->word == 2 && s->from == OPQ_bf16, quads = s->word == 4 && s->from == OPQ_i8;
    bool numbers = s->word == 2 && s->from == OPQ_f32, rows = s->across_stride == 1 && !s->across_at;
    if (s->k_at || (!pairs && !numbers && !quads))
        return false;
    if (numbers && rows)
        join_numbers(s, k, across, width, out);
    else if (pairs && rows)
        join_rows(s, k, across, width, out);
    else if (!numbers && s->k_stride == 1)
        transpose_panel_f32(s, OPQ_f32, pairs ? 2 : 1, k / s->word, across, width, out, width);
    else
        return false;
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

const opq_gemm_isa opq_gemm_avx512 = {.vector_bytes = 64,
                                      .panel = panel,
                                      .moves = moves,
                                      .word_moves = join_moves,
                                      .words = words,
                                      .turn = turn,
                                      .few_rows = few_rows};
