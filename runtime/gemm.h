/* Matrix multiplication: c[batch] = a[batch] * b[batch] on packed panels and generated register-tile kernels.
 *
 * Every element of the result is one chain of fused multiply-adds over ascending k that starts from zero, rounded to the
 * accumulation dtype at each step: acc = fma(a[i,k], b[k,j], acc). Shapes, strides, batching, threads and instruction set
 * change which code runs, never the bits. Of matrices that are rounded to bf16 it may also be one chain of steps of two products each, or of 32: opq_pairs_steps in
 * scalar.h. Products of i8 are summed in i32, modulo 2^32. Processors with AVX512_BF16 have an instruction for the first, those with AMX for the others; elsewhere the f32 kernels take them in that order. (Which of two NaN operands gives its payload is not covered.)
 */
#ifndef OPAQUE_RUNTIME_GEMM_H
#define OPAQUE_RUNTIME_GEMM_H

#include "fusion/loop.h"

/* Thread-safe. Borrows cpu and host (which may be NULL): both outlive it. */
typedef struct opq_gemm opq_gemm;
struct opq_cpu;
opq_status opq_gemm_create(const struct opq_cpu *cpu, const opq_host *host, opq_gemm **out_gemm) OPQ_MUST_CHECK;
void opq_gemm_destroy(opq_gemm *gemm);

/* An operand. Strides count elements, are >= 0 and may be 0 (broadcast). Rows or columns that lie at no stride have a table: row i begins
 * rows[i] elements behind `data`, and row_stride is 0. */
typedef struct opq_matrix {
    const void *data;
    int64_t row_stride, column_stride, batch_stride;
    opq_dtype dtype; /* f32, f64, f16, bf16, i8; converted to the accumulation dtype, f64 only to f64, i8 not to f64 */
    const int64_t *rows, *columns;
    const opq_padded *padded; /* NULL, or both tables are of a copy of this kind, zeros around what is in memory */
} opq_matrix;
/* Moves to a row. */
static inline void opq_matrix_skip(opq_matrix *matrix, int64_t row)
{
    matrix->data = (const char *)matrix->data + row * matrix->row_stride * opq_dtype_bytes(matrix->dtype);
    matrix->rows = matrix->rows ? matrix->rows + row : NULL;
}

/* Rows [row, row + rows) x columns [column, column + columns) of batch `batch` are final: `tile` holds them in the accumulation
 * dtype, rows `ld` elements apart, valid during the call. Called once for every element, from several threads, on disjoint
 * blocks; a block is at most about 140 rows x 768 bytes. */
typedef void (*opq_gemm_tile)(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                              const void *tile, int64_t ld);

typedef struct opq_gemm_call {
    opq_dtype dtype; /* accumulation: f32 or f64; i32 of two i8 matrices */
    int pairs; /* not 0: f32 sums of matrices of bf16, i8, or f32 that is rounded to bf16, by steps of so many pairs, 1 or 16; of several calls with `accumulate` all but the last have whole ones */
    int64_t batch, m, n, k; /* >= 0; k == 0 gives zeros */
    opq_matrix a, b;        /* m x k, k x n */
    void *c;                /* if tile == NULL: m x n, accumulation dtype, unit column stride; overlaps no operand */
    int64_t c_row_stride, c_batch_stride;
    opq_gemm_tile tile;
    void *tile_data;
    bool accumulate;      /* with tile == NULL: the sums start from c, and go on as if they had never been stored */
    bool serial;          /* the caller runs several calls at once: one block, on this thread */
    const void *packed_a; /* from opq_gemm_pack_a with the same dtype, m and k; every batch uses it. NULL: a is read */
    bool turned;          /* as it was packed; then packed_b is not used */
    const void *packed_b; /* from opq_gemm_pack_b with the same dtype, n or more, and packed_k; every batch uses it. NULL: b is read. It has b.dtype in any case */
    int64_t packed_k;     /* 0: k */
} opq_gemm_call;

/* The name that packed operands have: of the dtype of the sums, of bf16 for `pairs` of 1, of f16 for those of 16. */
static inline opq_dtype opq_gemm_packed_name(opq_dtype dtype, int pairs)
{
    return pairs == 16 ? OPQ_f16 : pairs ? OPQ_bf16 : dtype;
}
/* OPQ_INVALID: dtypes, a rule that they have not, or negative sizes. OPQ_NO_MEMORY, OPQ_CODEGEN: blocks may have been written and tiles called.
 * With tile == NULL a batch that shares b and has a and c dense is folded into m. */
opq_status opq_gemm_run(opq_gemm *gemm, const opq_gemm_call *call) OPQ_MUST_CHECK;
/* Calls that do not need each other, at once; a left operand that several of the same m and k have in common is packed once. */
opq_status opq_gemm_run_beside(opq_gemm *gemm, const opq_gemm_call *calls, int count) OPQ_MUST_CHECK;

/* b in the layout that the kernels read, for operands used many times: panels of two vectors of columns, [n/panel][k][panel]. The
 * buffer has opq_gemm_packed_bytes bytes and should be 64-byte aligned; its layout depends on the CPU. b->batch_stride is not used.
 * dtype: opq_gemm_packed_name; i8: of i8, for sums of f32. */
int64_t opq_gemm_packed_bytes(const opq_gemm *gemm, opq_dtype dtype, int64_t k, int64_t n);
opq_status opq_gemm_pack_b(opq_gemm *gemm, opq_dtype dtype, const opq_matrix *b, int64_t k, int64_t n,
                           void *out) OPQ_MUST_CHECK;
/* The same for a. *out_turned: for the transposed product, of which it is the right operand; better where n columns leave much of their
 * last vectors empty, or b is a window that can be read in place. 0 bytes: so few rows, or so many, that no packed copy serves. */
int64_t opq_gemm_packed_left_bytes(const opq_gemm *gemm, opq_dtype dtype, const opq_matrix *b, int64_t m, int64_t n,
                                   int64_t k, bool *out_turned);
opq_status opq_gemm_pack_a(opq_gemm *gemm, opq_dtype dtype, const opq_matrix *a, int64_t m, int64_t k, bool turned,
                           void *out) OPQ_MUST_CHECK;

#endif
