/* What a kernel may have at most: stated here once, for lowering, code generation and the runtime.
 *
 * Lowering refuses a set of nodes that would need more, so that grouping makes several kernels of it. Code generation and the runtime
 * size their arrays by these numbers and refuse a kernel that does not keep them.
 *
 * A node alone, its operands in memory, always fits: at most 12 dims and one loop for a reduction of nothing, 3 operands, one result.
 */
#ifndef OPAQUE_FUSION_LIMITS_H
#define OPAQUE_FUSION_LIMITS_H

#include "opaque/opaque.h"

enum {
    OPQ_LOOP_MAX = 16,  /* loops of a kernel: as many as `depends` (lower_state.h) has bits */
    OPQ_BLOCKS_MAX = 4, /* loops of a schedule that count blocks: two levels of two loops, one in the other */
    OPQ_VARIABLE_MAX = OPQ_LOOP_MAX + OPQ_BLOCKS_MAX,
    OPQ_SPACE_MAX = OPQ_RANK_MAX +
        1,              /* loops before neighbours are merged: a node alone needs one per dim, a product one more */
    OPQ_BODY_MAX = 384, /* statements, each once */
    OPQ_ACCESS_MAX = OPQ_BODY_MAX, /* a statement has at most one */
    OPQ_BUFFER_MAX = 96,           /* arguments in memory */
    OPQ_SCALAR_MAX = 96,           /* arguments that are numbers */
    OPQ_SWEEP_MAX = 8,      /* reductions that need each other, one after another: each recomputes what the last did */
    OPQ_REDUCTION_MAX = 32, /* reductions of one sweep: each holds accumulators in its innermost loop */
    OPQ_ACROSS_MAX = 16, /* elements of a row that is reduced in a lane, beside others: a power of two, at most OPQ_LANES */
    OPQ_UNROLL_MAX = 64,      /* turns of loops that are made at once, one inside the other */
    OPQ_WINDOW_MAX = 3,       /* turns of a loop over a window that are part of the kernel */
    OPQ_ACROSS_ROWS_MIN = 16, /* such rows: as many as the widest vector has lanes */
    OPQ_PHASE_MAX = 8,        /* loops at the top, of which one is done before the next begins */
    OPQ_PRODUCTS_MAX = 8,     /* of one left operand, side by side */
    OPQ_MATRIX_GUARD_MAX = 3, /* padded dims of an operand that the matrix engine reads */
    OPQ_NESTING_MAX = 512,    /* steps from a stored node to memory: the walks are recursive */
    OPQ_FOLLOWED_MAX = 64,    /* views of views that are looked through; the next one is stored */
};

_Static_assert(OPQ_SPACE_MAX + 2 <= OPQ_LOOP_MAX,
               "an unmerged space and the loops of a reduction without any are a kernel");
_Static_assert(OPQ_FOLLOWED_MAX * 2 <= OPQ_NESTING_MAX, "a node alone never nests too deeply");

#endif
