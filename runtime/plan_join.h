/* Plans one after the other as one plan. Internal to runtime/ and opaque/. */
#ifndef OPAQUE_RUNTIME_PLAN_JOIN_H
#define OPAQUE_RUNTIME_PLAN_JOIN_H

#include "runtime/plan.h"

enum { OPQ_JOIN_INPUTS = -1 }; /* in place of a part */

/* What an input of a part is: input `number` of the joined plan, or output `number` of an earlier part; of it so many bytes from the first on. */
typedef struct opq_join_source {
    int32_t part, number;
    int64_t first, bytes;
} opq_join_source;

typedef struct opq_join_part {
    opq_plan *plan;
    const opq_join_source *inputs;
    const int32_t *scalars; /* per number that the part's caller gives: which of the joined plan's it is */
} opq_join_part;

typedef struct opq_join_output {
    int32_t part, number;
} opq_join_output;

typedef struct opq_join {
    const opq_join_part *parts;
    int part_count;
    const int64_t *input_bytes; /* of all inputs of the joined plan */
    int input_count;
    const opq_join_output *outputs;
    int output_count;
} opq_join;

/* The parts' steps in their order; it holds the parts. It says nothing of what fails in it (its graph is NULL, and a run ends with the first failure):
 * who wants to know runs the parts. OPQ_UNSUPPORTED: an output would be a part of an input. */
opq_status opq_plan_join(const opq_runtime *runtime, const opq_join *join, opq_plan **out_plan) OPQ_MUST_CHECK;

#endif
