/* Plans of one graph for any value of one of its sizes: see plan_family.c. */
#ifndef OPAQUE_RUNTIME_PLAN_FAMILY_H
#define OPAQUE_RUNTIME_PLAN_FAMILY_H

#include "runtime/plan.h"

enum { OPQ_FAMILY_PLANS = 4 };
typedef struct opq_plan_family opq_plan_family;

/* May it be of a family? */
bool opq_plan_family_possible(const opq_plan *plan);
/* Of plans for ascending sizes: the ends of its range are the first and the last one. *out_family NULL: they are no family. */
opq_status opq_plan_family_make(opq_plan *const plans[OPQ_FAMILY_PLANS], const int64_t sizes[OPQ_FAMILY_PLANS],
                                opq_plan_family **out_family) OPQ_MUST_CHECK;
void opq_plan_family_drop(opq_plan_family *family);
/* Is this the family's plan for the size? */
bool opq_plan_family_has(const opq_plan_family *family, int64_t size, const opq_plan *plan);
/* Is it made like the family's plans, with other numbers than the family has for the size? It may well be made otherwise: then both are right. */
bool opq_plan_family_contradicts(const opq_plan_family *family, int64_t size, const opq_plan *plan);
/* For a size in its range: with one reference. */
opq_status opq_plan_family_plan(const opq_plan_family *family, int64_t size, opq_plan **out_plan) OPQ_MUST_CHECK;

#endif
