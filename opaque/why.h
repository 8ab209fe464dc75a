/* Why a graph had no plan. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_WHY_H
#define OPAQUE_OPAQUE_WHY_H

#include "opaque/plan_cache.h"
#include "opaque/snapshot.h"

/* "shape [64,8] -> [71,8] of operand 0 of matmul at model.py:12": what tells a snapshot, whose key is made, from the nearest of the plans
 * used last. The text is malloc'd. */
opq_status opq_why(opq_plan_cache *plans, const opq_snapshot *snapshot, char **out_text) OPQ_MUST_CHECK;

#endif
