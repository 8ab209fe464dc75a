/* Polynomials of one size or of two, with whole coefficients, through what plans for some sizes have. Internal to runtime/: plan_family.c. */
#ifndef OPAQUE_RUNTIME_POLYNOMIAL_H
#define OPAQUE_RUNTIME_POLYNOMIAL_H

#include "runtime/plan_family.h"

/* Where a polynomial is known: opq_plan_family_sizes() of the range. */
typedef struct opq_points {
    opq_family_range range;
    int count;
    int64_t size[OPQ_FAMILY_PLANS][OPQ_FAMILY_SIZES];
} opq_points;

/* Of one size n:     1, n - s0, (n - s0)(n - s1), as Newton has them.
 * Of two, u and v:   1, u - u0, v - v0, (u - u0)(v - v0) */
enum { OPQ_TERMS = 4 };
typedef int64_t opq_terms[OPQ_TERMS];

typedef struct opq_polynomial {
    int64_t of[OPQ_TERMS]; /* how often each term */
    bool real;             /* the number is a double with that value, as by what a mean divides */
} opq_polynomial;

void opq_points_terms(const opq_points *points, const int64_t *sizes, opq_terms out);
/* False: too large. */
bool opq_polynomial_at(const opq_polynomial *polynomial, const opq_terms terms, int64_t *out);
/* Through these values at the points. False: there is none. */
bool opq_polynomial_fit(const opq_points *points, const int64_t *value, opq_polynomial *out);

#endif
