/* Products of few rows with AVX-512: see gemm_few_body.h. */
#include "runtime/gemm_avx512.h"
#include "runtime/gemm_few.h"

#define LANES 16
#define UNROLL_LANES _Pragma("GCC unroll 16")
#define VECTOR __m512
#define FILL(x) _mm512_set1_ps(x)
#define MULTIPLY_ADD(a, b, c) _mm512_fmadd_ps(a, b, c)
#define LOAD(at, from, count) load_f32(at, from, (__mmask16)mask_of(count, 16))
#define STORE(at, count, value) _mm512_mask_storeu_ps(at, (__mmask16)mask_of(count, 16), value)
#include "runtime/gemm_few_body.h"

AVX512 void opq_gemm_few_rows_avx512(const opq_few_rows *w)
{
    FEW_ROWS(1)
    FEW_ROWS(2)
    FEW_ROWS(3)
    FEW_ROWS(4)
}
