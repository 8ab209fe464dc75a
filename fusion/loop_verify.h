/* What both halves of the verifier share: where they are in the tree. Private to loop_verify.c and loop_bounds.c. */
#ifndef OPAQUE_FUSION_LOOP_VERIFY_H
#define OPAQUE_FUSION_LOOP_VERIFY_H

#include "fusion/loop.h"

typedef struct verifier {
    const opq_loops *k;
    bool *seen;    /* statements in sight */
    int16_t *kept; /* per local: the first statement that kept something in each of its elements; 0: none */
    uint8_t (*kept_within)[OPQ_VARIABLE_MAX]; /* per local: `within` of the loops that kept it */
    int open[OPQ_VARIABLE_MAX], depth;
    uint32_t running; /* variables of the open loops */
    int at;           /* the statement */
} verifier;

opq_status opq_verifier_refuse(const verifier *v, const char *what);

#define NEED(condition, what)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return opq_verifier_refuse(v, what);                                                                       \
    } while (0)

/* Is a loop for lanes around? */
static inline bool in_lane(const verifier *v)
{
    bool found = false;
    for (int d = 0; d < v->depth; d++)
        found |= v->k->stmts[v->open[d]].role == OPQ_LOOP_vector;
    return found;
}

#endif
