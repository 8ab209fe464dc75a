/* Loads and transposes that packing and the products of few rows share. Only for files that choose AVX2 by CPU. */
#ifndef OPAQUE_RUNTIME_GEMM_AVX2_H
#define OPAQUE_RUNTIME_GEMM_AVX2_H

#include "runtime/gemm_pack.h"

#include <immintrin.h>
#include <string.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) AVX2

INLINE __m256 load_f32(const void *at, opq_dtype from, int64_t count)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    if (from == OPQ_f32) {
        if (count >= 8)
            return _mm256_loadu_ps(at);
        return _mm256_maskload_ps(at, _mm256_loadu_si256((const __m256i *)(ones + 8 - (count < 0 ? 0 : count))));
    }
    uint16_t part[8] = {0};
    if (count < 8)
        memcpy(part, at, count < 0 ? 0 : (size_t)(count * opq_pack_bytes(from)));
    if (from == OPQ_i8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(count < 8 ? (const __m128i *)part : at)));
    __m128i half = _mm_loadu_si128(count < 8 ? (const __m128i *)part : at);
    if (from == OPQ_f16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE __m256d load_f64(const void *at, int64_t count)
{
    static const int64_t ones[8] = {-1, -1, -1, -1};
    if (count >= 4)
        return _mm256_loadu_pd(at);
    return _mm256_maskload_pd(at, _mm256_loadu_si256((const __m256i *)(ones + 4 - (count < 0 ? 0 : count))));
}

INLINE void transpose_f32(__m256 r[8])
{
    __m256 s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            r[i + 2 * h] = _mm256_shuffle_ps(s[i + h], s[i + h + 2], 0x44);
            r[i + 2 * h + 1] = _mm256_shuffle_ps(s[i + h], s[i + h + 2], 0xee);
        }
    /* r[4g + c] holds, in half l, column 4l + c of rows 4g .. 4g+3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        __m256 low = r[c], high = r[4 + c];
        r[c] = _mm256_permute2f128_ps(low, high, 0x20);
        r[4 + c] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

INLINE void transpose_f64(__m256d r[4])
{
    __m256d s0 = _mm256_unpacklo_pd(r[0], r[1]), s1 = _mm256_unpackhi_pd(r[0], r[1]);
    __m256d s2 = _mm256_unpacklo_pd(r[2], r[3]), s3 = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(s0, s2, 0x20);
    r[1] = _mm256_permute2f128_pd(s1, s3, 0x20);
    r[2] = _mm256_permute2f128_pd(s0, s2, 0x31);
    r[3] = _mm256_permute2f128_pd(s1, s3, 0x31);
}

/* Stores a vector at `to`, no further than `end`. */
INLINE void store_f32(float *to, const float *end, __m256 value)
{
    float part[8];
    if (end - to >= 8) {
        _mm256_storeu_ps(to, value);
    } else if (end > to) {
        _mm256_storeu_ps(part, value);
        memcpy(to, part, (size_t)(end - to) * sizeof *to);
    }
}

#endif
