/* Vectors of AVX2. Masks are counts of lanes. */
#include "runtime/gemm_isa.h"

#include <immintrin.h>
#include <string.h>

#define ISA __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) ISA
#define MASK int64_t
/* Stores over the start of the next row pay for f32, and whole blocks without counts; two vectors are a line. */
enum { WHOLE_ROWS_f32 = 1, WHOLE_ROWS_f64 = 0, WHOLE_BLOCKS = 1, TURNED = 2 };

INLINE int64_t first_f32(int64_t count) { return count < 0 ? 0 : count > 8 ? 8 : count; }
INLINE int64_t first_f64(int64_t count) { return count < 0 ? 0 : count > 4 ? 4 : count; }

/* So many bytes, fewer than 16, and zeros. In registers: what is stored in pieces is slow to load. */
INLINE __m128i load_part(const char *at, int64_t bytes)
{
    uint64_t low = 0, high = 0;
    uint32_t first, last;
    if (bytes >= 8) {
        memcpy(&low, at, 8);
        memcpy(&high, at + bytes - 8, 8);
        high = high >> 8 * (15 - bytes) >> 8;
    } else if (bytes >= 4) {
        memcpy(&first, at, 4);
        memcpy(&last, at + bytes - 4, 4);
        low = first | (uint64_t)last << 8 * (bytes - 4);
    } else {
        for (int64_t i = 0; i < bytes; i++)
            low |= (uint64_t)(uint8_t)at[i] << 8 * i;
    }
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}

INLINE __m256 load_f32(const void *at, opq_dtype from, int64_t count)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    if (from == OPQ_f32 && count == 8)
        return _mm256_loadu_ps(at);
    if (from == OPQ_f32)
        return _mm256_maskload_ps(at, _mm256_loadu_si256((const __m256i *)(ones + 8 - count)));
    if (from == OPQ_i8) {
        __m128i bytes = count == 8 ? _mm_loadl_epi64(at) : load_part(at, count);
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    __m128i half = count == 8 ? _mm_loadu_si128(at) : load_part(at, 2 * count);
    if (from == OPQ_f16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE __m256d load_f64(const void *at, opq_dtype from, int64_t count)
{
    static const int64_t ones[8] = {-1, -1, -1, -1};
    if (from == OPQ_f32)
        return _mm256_cvtps_pd(count == 4 ? _mm_loadu_ps(at) : _mm_castsi128_ps(load_part(at, 4 * count)));
    if (count == 4)
        return _mm256_loadu_pd(at);
    return _mm256_maskload_pd(at, _mm256_loadu_si256((const __m256i *)(ones + 4 - count)));
}

/* In pieces: masked stores are slow on many CPUs. */
INLINE void store_f32(float *to, int64_t lanes, __m256 value)
{
    __m128 part = _mm256_castps256_ps128(value);
    if (lanes == 8) {
        _mm256_storeu_ps(to, value);
        return;
    }
    if (lanes & 4) {
        _mm_storeu_ps(to, part);
        part = _mm256_extractf128_ps(value, 1);
    }
    if (lanes & 2) {
        _mm_storel_pi((__m64 *)(void *)(to + (lanes & 4)), part);
        part = _mm_movehl_ps(part, part);
    }
    if (lanes & 1)
        _mm_store_ss(to + (lanes & 6), part);
}

INLINE void store_f64(double *to, int64_t lanes, __m256d value)
{
    __m128d part = _mm256_castpd256_pd128(value);
    if (lanes == 4) {
        _mm256_storeu_pd(to, value);
        return;
    }
    if (lanes & 2) {
        _mm_storeu_pd(to, part);
        part = _mm256_extractf128_pd(value, 1);
    }
    if (lanes & 1)
        _mm_store_sd(to + (lanes & 2), part);
}

/* Elements 0, 2, 4 ... of two vectors. */
INLINE __m256 even_f32(__m256 low, __m256 high)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(low, high, 0x88)), 0xd8));
}
INLINE __m256d even_f64(__m256d low, __m256d high)
{
    return _mm256_permute4x64_pd(_mm256_unpacklo_pd(low, high), 0xd8);
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

INLINE __m256 fill_f32(float x) { return _mm256_set1_ps(x); }
INLINE __m256 fma_f32(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }

#define OF(name) name##_f32
#define TYPE float
#define VECTOR __m256
#define LANES 8
#include "runtime/gemm_few_body.h"
#include "runtime/gemm_pack_body.h"
#define OF(name) name##_f64
#define TYPE double
#define VECTOR __m256d
#define LANES 4
#include "runtime/gemm_pack_body.h"
#include "runtime/gemm_isa_body.h"

const opq_gemm_isa opq_gemm_avx2 = {
    .vector_bytes = 32, .panel = panel, .moves = moves, .turn = turn, .few_rows = few_rows};
