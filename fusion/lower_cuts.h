/* Runs of a root's elements, and where they are cut into loops: for lower_space.c. */
#ifndef OPAQUE_FUSION_LOWER_CUTS_H
#define OPAQUE_FUSION_LOWER_CUTS_H

#include "fusion/lower_state.h"

enum { OPQ_RUN_MAX = 2 * OPQ_RANK_MAX, OPQ_SEEN_BITS = 10 };

/* `extent` elements, `stride` root elements apart. Stride 0: not a run of the root (sliced, gathered), cannot be cut. */
typedef struct opq_stretch {
    int64_t extent, stride;
} opq_stretch;

/* The row-major order of a node, outermost first. */
typedef struct opq_stretches {
    int count;
    opq_stretch of[OPQ_RUN_MAX];
} opq_stretches;

typedef struct opq_cutter {
    const opq_lower_request *request;
    bool permuted;  /* stored views follow the loops, not the loops them */
    bool to_memory; /* follow views of memory too, not only those of members */
    int cut_count;
    int64_t cuts[OPQ_SPACE_MAX]; /* ascending, each divides the next; the last is the whole root */
    opq_stretches kept, reduced; /* of the root */
    int nesting;                 /* of walk */
    int seen_count, seen_bits;
    uint64_t seen[1 << OPQ_SEEN_BITS]; /* hashes of (node, runs); the first 1 << seen_bits are set, if there are any */
} opq_cutter;

void opq_cuts_begin(opq_cutter *c, const opq_lower_request *request, bool permuted);
/* One more, unless it straddles an earlier one: false. */
bool opq_cuts_add(opq_cutter *c, int64_t cut);
void opq_stretches_append(opq_stretches *list, opq_stretch run);
/* Makes every dim of `type` whole runs; out_first[d] is the first run of dim d, out_first[rank] their count. */
bool opq_cuts_align(opq_cutter *c, opq_stretches *list, const opq_type *type, int *out_first);
/* Cuts as `ref` and all that it is made of need it; `order`: of its elements. */
void opq_cuts_walk(opq_cutter *c, opq_ref ref, const opq_stretches *order);

#endif
