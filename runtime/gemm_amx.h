/* The tiles of AMX: up to 16 x 16 sums, to which one instruction adds sixteen words of each row times those of each column.
 *
 * What it adds is opq_pairs_steps of 16 pairs of bf16, denormals and all, whatever MXCSR says (compared on Emerald Rapids on 26 million
 * sums: no bit differed), or of i8 to i32.
 */
#ifndef OPAQUE_RUNTIME_GEMM_AMX_H
#define OPAQUE_RUNTIME_GEMM_AMX_H

#include "opaque/opaque.h"

enum {
    OPQ_AMX_ROWS = 16,
    OPQ_AMX_ROWS_MAX = 2 * OPQ_AMX_ROWS,
    OPQ_AMX_VECTORS_MAX = 4,
    OPQ_AMX_BYTES = 64 /* of a row */
};

/* c[rows x 16 vectors] of a[rows x k] and b[k x 16 vectors], k counted in words of 4 bytes, a multiple of 16. Strides in bytes. */
typedef struct opq_amx_work {
    bool bytes;      /* words of four i8, else of two bf16 */
    bool accumulate; /* the sums start from c */
    int vectors;     /* 1, 2, or with up to 16 rows 4 */
    int64_t rows, k; /* more than 16 rows: the last 16 of them are a tile, too */
    const void *a;   /* sixteen words of a row side by side; the next ones a_step behind */
    int64_t a_stride, a_step;
    const void *b; /* rows of words, of panels of two vectors */
    int64_t panel_stride;
    void *c;
    int64_t c_stride;
    const char *prefetch; /* moves by prefetch_step for each word; need not be valid */
    int64_t prefetch_step;
} opq_amx_work;

/* Around calls on this thread, with so many rows, or 16 if there are more. Needs OPQ_LEAF_tiles. */
void opq_amx_begin(int64_t rows);
void opq_amx_run(const opq_amx_work *work);
void opq_amx_end(void);

#endif
