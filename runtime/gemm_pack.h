/* Packing of matrix operands into panels: what the micro-kernels read, in the order in which they read it.
 *
 * A panel holds `width` neighbours across (rows of the left operand, columns of the right one) for every k: [k][width].
 * Both operands are the same problem with the roles of their strides swapped, so one function packs both.
 * Two or four neighbours along k may be one element, a word of 4 bytes, the first one below.
 */
#ifndef OPAQUE_RUNTIME_GEMM_PACK_H
#define OPAQUE_RUNTIME_GEMM_PACK_H

#include "fusion/target.h"
#include "graph/graph.h"

typedef struct opq_gemm_isa opq_gemm_isa; /* gemm_isa.h */

/* As opq_dtype_bytes. Inlined: `from` is a literal where it counts. */
static inline int64_t opq_pack_bytes(opq_dtype from)
{
    return from == OPQ_f64 ? 8 : from == OPQ_f32 ? 4 : from == OPQ_i8 ? 1 : 2;
}

/* Part of an operand. Strides count elements of `from`. */
typedef struct opq_pack_source {
    const void *data;   /* element (k = 0, across = 0) */
    opq_dtype from, to; /* from: f32, f64, f16, bf16, i8 (others give zeros); to: f32 or f64, of i8 also i8, or words */
    int64_t k_stride, across_stride;
    const int64_t *k_at, *across_at; /* where each k, or neighbour, begins: NULL, or instead of a stride */
    int word; /* not 0: a row of a panel has words of so many k, 2 bf16 (to: f32), 2 i16 or 4 i8 (to: i32), zeros where there are none */
    bool unsigned_bytes; /* of i8: each is 128 more */
    int swapped; /* not 0: to f32, of two k the second one comes first, 0 if it is missing; 32: of so many the even ones, zeros for missing ones */
    const opq_target_gemm *target;
} opq_pack_source;

/* Packs k x `across` elements into panels of `width`, `panel_stride` bytes apart, rows width elements apart. The last panel may be
 * partial: what its rows have left over is unspecified. `width` is two vectors of the instruction set, or at most that with
 * across == width.
 * Reads nothing before the first or behind the last of the k x across elements and writes nothing outside the panels. k, across >= 1. */
void opq_gemm_pack(const opq_gemm_isa *isa, const opq_pack_source *source, int64_t k, int64_t across, int width,
                   void *out, int64_t panel_stride);

/* The same from row i of k and neighbour j on. */
opq_pack_source opq_pack_part_of(const opq_pack_source *source, int64_t i, int64_t j);
/* One panel: numbers, or words and what is narrower than f32. */
void opq_pack_panel(const opq_gemm_isa *isa, const opq_pack_source *source, int64_t k, int64_t across, int width,
                    void *out);
/* How many from k on, before `end`, lie side by side. */
int64_t opq_pack_run(const opq_pack_source *source, int64_t k, int64_t end);
/* A panel of neighbours, or k, that lie at no stride. False: no fast way. */
bool opq_pack_window(const opq_gemm_isa *isa, const opq_pack_source *source, int64_t k, int64_t across, int width,
                     void *out);
void opq_pack_narrow(const opq_gemm_isa *isa, const opq_pack_source *source, int64_t k, int64_t across, int width,
                     char *out);

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
