/* Products of few rows with a matrix whose columns are contiguous: see gemm_few_body.h. */
#ifndef OPAQUE_RUNTIME_GEMM_FEW_H
#define OPAQUE_RUNTIME_GEMM_FEW_H

#include "opaque/opaque.h"

enum { OPQ_FEW_ROWS_MAX = 4 };

/* c[rows x columns] = a[rows x k] * b[k x columns], f32 sums. Strides count elements; b's row stride is 1. */
typedef struct opq_few_rows {
    int rows; /* 1..OPQ_FEW_ROWS_MAX */
    int64_t columns, k;
    const float *a;
    int64_t a_row_stride, a_k_stride;
    const void *b;
    int64_t b_column_stride;
    opq_dtype b_dtype; /* f32, bf16, f16 */
    bool near;         /* b may be in cache, not read from memory */
    float *c;
    int64_t c_row_stride;
} opq_few_rows;
void opq_gemm_few_rows_avx512(const opq_few_rows *work);
void opq_gemm_few_rows_avx2(const opq_few_rows *work);

#endif
