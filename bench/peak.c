/* What a core can do: additions fused to multiplications, and additions of arrays. bench/machine.py compiles this for the
 * processor that the rows run on and calls it in their process. */
#include <immintrin.h>
#include <stddef.h>

#ifdef __AVX512F__
#define WIDTH 64
#else
#define WIDTH 32
#endif

typedef float vector __attribute__((vector_size(WIDTH)));

/* Twelve chains hide the latency and fit into 16 registers; they differ, or a compiler would make one of them. Returns the operations
 * done; *out keeps them from being dropped. */
double multiply_add(long rounds, float *out)
{
    vector sum[12] = {0}, factor = {0}, total = {0};
    factor += *out;
    for (int i = 0; i < 12; i++)
        sum[i] += (float)i;
    for (long r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++)
            sum[i] = sum[i] * factor + factor;
    for (int i = 0; i < 12; i++)
        total += sum[i];
    *out = total[0];
    return (double)rounds * 12 * 2 * (WIDTH / sizeof(float));
}

/* The sum goes around the caches: the faster way where it does not fit into them. Arrays of whole vectors, aligned. */
void add_arrays_around(size_t count, long rounds, const float *restrict a, const float *restrict b, float *restrict out)
{
    for (long r = 0; r < rounds; r++) {
        for (size_t i = 0; i < count; i += 8)
            _mm256_stream_ps(out + i, _mm256_add_ps(_mm256_load_ps(a + i), _mm256_load_ps(b + i)));
        _mm_sfence();
    }
}

void add_arrays(size_t count, long rounds, const float *restrict a, const float *restrict b, float *restrict out)
{
    for (long r = 0; r < rounds; r++) {
        for (size_t i = 0; i < count; i++)
            out[i] = a[i] + b[i];
        __asm__ volatile("" ::: "memory");
    }
}

/* Nothing is fetched only to be overwritten, and four places at a time keep more of it under way: the faster way where memory is the
 * limit. b is left alone. */
void add_in_place(size_t count, long rounds, const float *restrict a, const float *restrict b, float *restrict out)
{
    (void)b;
    const size_t part = count / 4;
    for (long r = 0; r < rounds; r++) {
        for (size_t i = 0; i < part; i += 16)
            for (size_t p = 0; p < 4; p++)
                for (size_t k = 0; k < 16; k++)
                    out[p * part + i + k] += a[p * part + i + k];
        __asm__ volatile("" ::: "memory");
    }
}
