/* Register-tile micro-kernels of matrix multiplication: rows x (vectors * lanes) elements of C stay in registers over all of K.
 *
 * Every element is one chain of fused multiply-adds over ascending k, or of steps of two bf16 each (OPQ_GEMM_PAIRS), or a sum of integers. Which
 * tile computes it cannot change its bits.
 */
#ifndef OPAQUE_CODEGEN_GEMM_KERNEL_H
#define OPAQUE_CODEGEN_GEMM_KERNEL_H

#include "fusion/target.h"

struct opq_cpu;

/* What lies in memory as an element of either operand: a number, or neighbours along k in a word, the first one lowest. */
typedef enum opq_gemm_element {
    OPQ_GEMM_F32, /* their names are these in lower case, in the build, too */
    OPQ_GEMM_F64,
    OPQ_GEMM_PAIRS,   /* two bf16, which the processor's dot instruction adds to an f32 (opq_pairs_step in scalar.h) */
    OPQ_GEMM_WIDENED, /* f32 on the left, i8 on the right, which is widened */
    OPQ_GEMM_SHORTS,  /* two i16, whose products are added to an i32: none is -0x8000 */
    OPQ_GEMM_QUADS,   /* four u8 on the left, i8 on the right, which AVX512_VNNI adds to an i32 */
    OPQ_GEMM_ELEMENTS
} opq_gemm_element;

/* Where the left operand's element (i, k) is: packed [k][rows] without gaps, in rows `a_stride` bytes apart, rows[i] + columns[k] elements
 * behind a; then each third row, or the first, may be all whose number is read: those that follow lie beside it. */
typedef enum opq_gemm_left {
    OPQ_GEMM_LEFT_PACKED,
    OPQ_GEMM_LEFT_ROWS,
    OPQ_GEMM_LEFT_WINDOW,
    OPQ_GEMM_LEFT_THREES,
    OPQ_GEMM_LEFT_BESIDE,
    OPQ_GEMM_LEFTS
} opq_gemm_left;

enum {
    OPQ_GEMM_PANEL_VECTORS = 2, /* vectors in one row of a panel of the right operand */
    OPQ_GEMM_ROWS_MAX = 14,
    OPQ_GEMM_VECTORS_MAX = 8,
    OPQ_GEMM_THREE = 3,
};

/* A tile. All strides are in bytes. Row k of panel p of the right operand is at
 * b + k * b_stride + p * b_panel_stride and is read whole: the elements of two vectors (of one if the kernel has one). c gets rows x vectors*lanes
 * elements, rows c_stride apart; they are also the start of the sums if accumulate != 0. k may be 0.
 * `prefetch` moves by prefetch_step for each k and is touched on the way; it need not be a valid address. Only windows, of the last
 * three kinds, have rows and columns, and no a_stride. */
typedef void (*opq_gemm_kernel)(const void *a, int64_t a_stride, const void *b, int64_t b_stride, int64_t b_panel_stride,
                                void *c, int64_t c_stride, int64_t k, int64_t accumulate, const void *prefetch,
                                int64_t prefetch_step, const int64_t *rows, const int64_t *columns);

/* The tiles that products may need: turns of two vectors or one. Moves to the next, from 0 on; false: that was the last. */
typedef struct opq_gemm_tile_shape {
    opq_gemm_left left;
    int rows, vectors;
} opq_gemm_tile_shape;
bool opq_gemm_next_tile(const struct opq_cpu *cpu, opq_gemm_tile_shape *tile);
/* Bytes of a vector register: 64 with AVX-512, else 32. */
int opq_gemm_vector_bytes(const struct opq_cpu *cpu);
/* Largest number of rows whose tile fits the registers with this many vectors (1..OPQ_GEMM_VECTORS_MAX), 0 if none. */
int opq_gemm_rows_max(const struct opq_cpu *cpu, int vectors);

/* All tiles of one kind of element, made when the library is built (tools/gemm-tiles.c): opq_gemm_left, rows, vectors. NULL: it does not fit the
 * registers, or the target has no such element. */
typedef opq_gemm_kernel opq_gemm_tiles[OPQ_GEMM_LEFTS][OPQ_GEMM_ROWS_MAX + 1][OPQ_GEMM_VECTORS_MAX + 1];
/* opq_gemm_tiles_avx2_f32 and so on, for all of OPQ_HOST_TARGETS. */
#define X(target)                                                                                                      \
    extern const opq_gemm_tiles opq_gemm_tiles_##target##_f32, opq_gemm_tiles_##target##_f64,                          \
        opq_gemm_tiles_##target##_pairs, opq_gemm_tiles_##target##_widened, opq_gemm_tiles_##target##_shorts,          \
        opq_gemm_tiles_##target##_quads;
OPQ_HOST_TARGETS(X)
#undef X
const char *opq_gemm_element_name(opq_gemm_element element);
/* An object that has those of a target. OPQ_INVALID: none of the host has that name, or the file cannot be written. */
opq_status opq_gemm_tiles_object(const char *target, opq_gemm_element element, const char *path) OPQ_MUST_CHECK;

#endif
