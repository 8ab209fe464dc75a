/* Packing with AVX2: the same two ways as gemm_pack_avx512.c, with blocks of 8 x 8 (f64: 4 x 4). Masked stores are slow on many
 * CPUs and full ones would run over into a panel that another thread writes, so short rows are stored whole, one over the start
 * of the next, and only the end of the panel element by element. */
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
        memcpy(part, at, count < 0 ? 0 : (size_t)count * 2);
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

/* Rows are stored in ascending order, each over the surplus of the one before; two vectors of one row likewise. */
INLINE void copy_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    const float *end = out + k * width;
    const char *row = s->data;
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    for (int64_t p = 0; p < k; p++, row += s->k_stride * bytes, out += width)
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

/* A transposed block of k rows spans one vector across; the next vector's rows would be overwritten by this one's surplus only
 * beyond `width`, so the vectors go from left to right within one block of k. */
INLINE void transpose_panel_f32(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, float *out)
{
    const float *end = out + k * width;
    int64_t bytes = from == OPQ_f32 ? 4 : 2;
    for (int64_t p = 0; p < k; p += 8) {
        __m256 r[2][8];
        int vectors = width > 8 ? 2 : 1;
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                int64_t j = 8 * v + i < across ? 8 * v + i : across - 1;
                r[v][i] = load_f32((const char *)s->data + (j * s->across_stride + p) * bytes, from, k - p);
            }
            transpose_f32(r[v]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                if (v < vectors && p + i < k)
                    store_f32(out + (p + i) * width + 8 * v, end, r[v][i]);
    }
}

INLINE void transpose_panel_f64(const opq_pack_source *s, int64_t k, int64_t across, int width, double *out)
{
    const double *end = out + k * width, *data = s->data;
    for (int64_t p = 0; p < k; p += 4) {
        __m256d r[2][4];
        int vectors = width > 4 ? 2 : 1;
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                int64_t j = 4 * v + i < across ? 4 * v + i : across - 1;
                r[v][i] = load_f64(data + j * s->across_stride + p, k - p);
            }
            transpose_f64(r[v]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++)
                if (v < vectors && p + i < k)
                    store_f64(out + (p + i) * width + 4 * v, end, r[v][i]);
    }
}

#define EACH_F32(dtype)                                                                                                        \
    if (s->to == OPQ_f32 && s->from == dtype) {                                                                                \
        if (s->across_stride == 1)                                                                                             \
            copy_panel_f32(s, dtype, k, across, width, out);                                                                   \
        else                                                                                                                   \
            transpose_panel_f32(s, dtype, k, across, width, out);                                                              \
        return true;                                                                                                           \
    }

AVX2 bool opq_pack_panel_avx2(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    if (s->across_stride != 1 && s->k_stride != 1)
        return false;
    EACH_F32(OPQ_f32)
    EACH_F32(OPQ_bf16)
    EACH_F32(OPQ_f16)
    if (s->to != OPQ_f64 || s->from != OPQ_f64)
        return false;
    if (s->across_stride == 1)
        copy_panel_f64(s, k, across, width, out);
    else
        transpose_panel_f64(s, k, across, width, out);
    return true;
}
