/* Loads and transposes that packing and the products of few rows share. Only for files that choose AVX-512 by CPU. */
#ifndef OPAQUE_RUNTIME_GEMM_AVX512_H
#define OPAQUE_RUNTIME_GEMM_AVX512_H

#include "runtime/gemm_pack.h"

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) AVX512

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

INLINE __m512d load_f64(const void *at, opq_dtype from, __mmask8 mask)
{
    if (from == OPQ_f64)
        return _mm512_maskz_loadu_pd(mask, at);
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(mask, at));
}

INLINE unsigned mask_of(int64_t count, int lanes)
{
    return count <= 0 ? 0 : count >= lanes ? (1u << lanes) - 1 : (1u << count) - 1;
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

#endif
