/* Packing of matrix operands into panels: what the micro-kernels read, in the order in which they read it.
 *
 * A panel holds `width` neighbours across (rows of the left operand, columns of the right one) for every k: [k][width].
 * Both operands are the same problem with the roles of their strides swapped, so one function packs both.
 */
#ifndef OPAQUE_RUNTIME_GEMM_PACK_H
#define OPAQUE_RUNTIME_GEMM_PACK_H

#include "fusion/limits.h"
#include "graph/graph.h"

/* An element is there if k[i] + across[j] is in [0, extent); else it is 0. */
typedef struct opq_pack_guard {
    int64_t extent;
    const int64_t *k, *across;
} opq_pack_guard;

/* Part of an operand. Strides count elements of `from`. */
typedef struct opq_pack_source {
    const void *data;   /* element (k = 0, across = 0) */
    opq_dtype from, to; /* from: f32, f64, f16, bf16 (others give zeros); to: f32 or f64 */
    int64_t k_stride, across_stride;
    const int64_t *k_at, *across_at; /* where each k, or neighbour, begins: NULL, or instead of a stride */
    int guard_count;                 /* then both are tables */
    opq_pack_guard guard[OPQ_MATRIX_GUARD_MAX];
    const int64_t *from_k,
        *to_k; /* of a part with neighbours along k: per neighbour, where there are elements; NULL: everywhere */
} opq_pack_source;

/* Packs k x `across` elements into panels of `width`, `panel_stride` bytes apart, rows width elements apart. The last panel may be
 * partial: what its rows have left over is unspecified. `width` is two vectors of the instruction set, or at most that with
 * across == width.
 * Reads nothing outside the k x across elements and writes nothing outside the panels. k, across >= 1. */
void opq_gemm_pack(bool avx512, const opq_pack_source *source, int64_t k, int64_t across, int width, void *out,
                   int64_t panel_stride);

/* Neighbours across that lie at one stride: elements [first, first + count) of a row, `stride` apart, the first one at `offset`. */
typedef struct opq_pack_run {
    int first, count;
    int64_t offset, stride;
    int64_t at[OPQ_MATRIX_GUARD_MAX],
        step[OPQ_MATRIX_GUARD_MAX]; /* of each guard: what the first one adds, and each more */
} opq_pack_run;

/* [out_from, out_to) of a run are there in row k. */
static inline void opq_pack_inside(const opq_pack_guard *guards, int count, const opq_pack_run *run, int64_t k,
                                   int64_t *out_from, int64_t *out_to)
{
    *out_from = 0;
    *out_to = run->count;
    for (int g = 0; g < count; g++) {
        int64_t at = guards[g].k[k] + run->at[g], left = guards[g].extent - at, step = run->step[g];
        if (step == 0) {
            if (at < 0 || left <= 0)
                *out_to = 0;
            continue;
        }
        int64_t from = at < 0 ? (step == 1 ? -at : (step - 1 - at) / step) : 0;
        int64_t to = left <= 0 ? 0 : step == 1 ? left : (left + step - 1) / step;
        *out_from = from > *out_from ? from : *out_from;
        *out_to = to < *out_to ? to : *out_to;
    }
}

/* One panel with `across` <= width elements per row, by instruction set. False if source's strides or dtypes have no fast way. */
bool opq_pack_panel_avx512(const opq_pack_source *source, int64_t k, int64_t across, int width, void *out);
bool opq_pack_panel_avx2(const opq_pack_source *source, int64_t k, int64_t across, int width, void *out);
/* The same row by row, each a list of runs in ascending order. False: another dtype than to f32. */
bool opq_pack_runs_avx512(const opq_pack_source *source, int64_t k, const opq_pack_run *runs, int count, int width,
                          float *out);
bool opq_pack_runs_avx2(const opq_pack_source *source, int64_t k, const opq_pack_run *runs, int count, int width,
                        float *out);
static inline int64_t opq_pack_k(const opq_pack_source *s, int64_t k) { return s->k_at ? s->k_at[k] : k * s->k_stride; }
static inline int64_t opq_pack_across(const opq_pack_source *s, int64_t j)
{
    return s->across_at ? s->across_at[j] : j * s->across_stride;
}

/* Element `index` of a vector of floats of any dtype. */
static inline const void *opq_pack_at(const void *data, opq_dtype dtype, int64_t index)
{
    return (const char *)data + index * opq_dtype_bytes(dtype);
}

#endif
