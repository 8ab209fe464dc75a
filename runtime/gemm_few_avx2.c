/* Products of few rows with AVX2: see gemm_few_body.h. */
#include "runtime/gemm_avx2.h"
#include "runtime/gemm_few.h"

#define LANES 8
#define UNROLL_LANES _Pragma("GCC unroll 8")
#define VECTOR __m256
#define FILL(x) _mm256_set1_ps(x)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define LOAD(at, from, count) load_f32(at, from, count)
#define STORE(at, count, value) store_f32(at, (at) + (count), value)
#include "runtime/gemm_few_body.h"

AVX2 void opq_gemm_few_rows_avx2(const opq_few_rows *w)
{
    FEW_ROWS(1)
    FEW_ROWS(2)
    FEW_ROWS(3)
    FEW_ROWS(4)
}
