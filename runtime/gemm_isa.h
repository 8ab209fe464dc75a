/* What the engine does itself with vectors, once for each instruction set: gemm_avx2.c and gemm_avx512.c include gemm_pack_body.h,
 * gemm_few_body.h and gemm_isa_body.h, each with its own types.
 */
#ifndef OPAQUE_RUNTIME_GEMM_ISA_H
#define OPAQUE_RUNTIME_GEMM_ISA_H

#include "runtime/gemm_pack.h"

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

/* A vector of a row: `count` elements from `from` on (of the source, counted from where the row begins), every one or every second, go to
 * `to`. */
typedef struct opq_pack_move {
    int64_t from;
    int32_t to, count;
    bool apart;
} opq_pack_move;

struct opq_gemm_isa {
    int vector_bytes;
    /* One panel with `across` <= width elements per row. False if source's strides or dtypes have no fast way. */
    bool (*panel)(const opq_pack_source *source, int64_t k, int64_t across, int width, void *out);
    /* k rows of `width`, all made by these moves in ascending order. Likewise. */
    bool (*moves)(const opq_pack_source *source, int64_t k, const opq_pack_move *moves, int count, int width, void *out);
    /* The same of rows of words, of pairs of bf16, the last one of one if k is odd. NULL: none has. */
    void (*word_moves)(const opq_pack_source *source, int64_t k, const opq_pack_move *moves, int count, int width,
                       void *out);
    /* A panel of words, whole ones, and of pairs one of an odd last k where neighbours across lie side by side, where f32 is rounded, too. Likewise; NULL: none has. */
    bool (*words)(const opq_pack_source *source, int64_t k, int64_t across, int width, void *out);
    /* rows x columns elements of 4 or 8 bytes, rows ld elements apart, become columns x rows. */
    void (*turn)(const opq_target_gemm *target, int bytes, const void *from, int64_t ld, int64_t rows, int64_t columns,
                 void *to, int64_t to_ld);
    void (*few_rows)(const opq_few_rows *work);
};
extern const opq_gemm_isa opq_gemm_avx2, opq_gemm_avx512;

/* Rounded to bf16, zeros up to a multiple of 32 behind them. Needs AVX512_BF16. */
void opq_pack_rounded_avx512(const float *x, int64_t count, uint16_t *out);
/* Behind k rows of words of four i8: what sums begin with, so that 128 more in each byte on the left adds nothing. Needs AVX512_VNNI. */
void opq_pack_start_avx512(void *panel, int64_t k, int width);

#endif
