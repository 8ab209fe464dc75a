/* Random graphs that are right by construction: every index in range, no value undefined, and no result that the promise of equal
 * bits leaves open. The same seed gives the same graph on every machine.
 *
 * What is left open, and so never generated: arithmetic rows straight on f16 and bf16 (a kernel keeps f32 between them; rows with an
 * expression round once and are generated), the sign bit of a NaN, windows of an update that overlap themselves.
 */
#ifndef OPAQUE_TESTS_RANDOM_GRAPH_H
#define OPAQUE_TESTS_RANDOM_GRAPH_H

#include <stdio.h>

#include "tests/support.h"

#include "graph/graph.h"

enum { RANDOM_INPUTS = 48, RANDOM_REFS = 96, RANDOM_OUTPUTS = 6 };

typedef struct random_graph {
    uint64_t state; /* of the generator of numbers */
    opq_graph *graph;
    void *inputs[RANDOM_INPUTS]; /* 64-byte aligned, filled */
    int input_count;
    opq_ref refs[RANDOM_REFS]; /* values to go on from */
    int count;
    bool rounds;              /* a product of bf16 may be drawn */
    int attention_pairs;      /* the rule of the products of one attention */
    opq_dtype attention_half; /* what its operands may be widened from, or f32 */
    bool special;             /* inputs hold NaN, infinities and signed zeros */
} random_graph;

/* Above this seed: of views of views, above paddings, and what reads them. */
#define RANDOM_VIEWS (UINT64_C(1) << 32)
random_graph random_graph_make(uint64_t seed);
void random_graph_drop(random_graph *r);
void random_keep(random_graph *r, opq_ref ref); /* to go on from, if it is one and not too large */
uint64_t random_below(random_graph *r, uint64_t limit);

/* random_structure.c: one random step each; they give -1 if nothing fits. */
opq_ref random_view(random_graph *r, opq_ref x);
opq_ref random_views(random_graph *r, opq_ref x); /* of views */
opq_ref random_update(random_graph *r, opq_ref x);
opq_ref random_index(random_graph *r, opq_ref x);
opq_ref random_scatter(random_graph *r, opq_ref x);
opq_ref random_routine(random_graph *r, opq_ref x);
opq_ref random_concat(random_graph *r, opq_ref x);
opq_ref random_matmul(random_graph *r, opq_ref x);

/* random_window.c: the same. */
opq_ref random_pad(random_graph *r, opq_ref x);
opq_ref random_pooling(random_graph *r, opq_ref x);
opq_ref random_convolution(random_graph *r, opq_ref x);

/* random_attention.c: the same. */
opq_ref random_attention(random_graph *r, opq_ref x);

/* random_recurrent.c: the same. */
opq_ref random_recurrent(random_graph *r, opq_ref x);

/* What these files build with. */
opq_ref random_input(random_graph *r, const opq_type *type);
opq_ref random_number(random_graph *r, opq_dtype dtype);
opq_ref random_cast(random_graph *r, opq_ref x);
opq_ref random_op(random_graph *r, opq_op op, const opq_ref *operands, int arity, const opq_attr *attrs, int attr_count);
opq_ref random_op_typed(random_graph *r, opq_op op, const opq_type *type, const opq_ref *operands, int arity,
                        const opq_attr *attrs, int attr_count);

#endif
