/* Plans of one graph for any value of one of its sizes, or of two: see plan_family.c. */
#ifndef OPAQUE_RUNTIME_PLAN_FAMILY_H
#define OPAQUE_RUNTIME_PLAN_FAMILY_H

#include "runtime/plan.h"

enum { OPQ_FAMILY_SIZES = 2, OPQ_FAMILY_PLANS = 6 };
typedef struct opq_plan_family opq_plan_family;

/* What varies: `count` sizes, one or two, each from low to high. */
typedef struct opq_family_range {
    int count;
    int64_t low[OPQ_FAMILY_SIZES], high[OPQ_FAMILY_SIZES];
} opq_family_range;

/* May it be of a family? */
bool opq_plan_family_possible(const opq_plan *plan);
/* The sizes that a family of this range is made of plans for; how many. 0: there are none, it is too small. */
int opq_plan_family_sizes(const opq_family_range *range, int64_t out_sizes[OPQ_FAMILY_PLANS][OPQ_FAMILY_SIZES]);
/* May these two be of one family, but for their numbers? */
bool opq_plan_family_alike(const opq_plan *a, const opq_plan *b);
/* Of plans for these sizes, in their order, each alike with the others. *out_family NULL: they are no family. */
opq_status opq_plan_family_make(opq_plan *const *plans, const opq_family_range *range,
                                opq_plan_family **out_family) OPQ_MUST_CHECK;
void opq_plan_family_drop(opq_plan_family *family);
/* Is this the family's plan for the sizes? */
bool opq_plan_family_has(const opq_plan_family *family, const int64_t *sizes, const opq_plan *plan);
/* Is it made like the family's plans, with other numbers than the family has for the sizes? It may well be made otherwise: then both are right. */
bool opq_plan_family_contradicts(const opq_plan_family *family, const int64_t *sizes, const opq_plan *plan);
/* For sizes in its range: with one reference. */
opq_status opq_plan_family_plan(const opq_plan_family *family, const int64_t *sizes, opq_plan **out_plan) OPQ_MUST_CHECK;

#endif
