/* The steps of all plans of an exported model. Internal to opaque/.
 *
 * Plans for other sizes are mostly alike, and so are the steps of one plan. Each kind of step stands in the tables once, as C; which steps a plan
 * has, and what numbers they have that others of their kind do not, is in a file of whole numbers, which exported/plans.c reads.
 */
#ifndef OPAQUE_OPAQUE_EXPORT_STEPS_H
#define OPAQUE_OPAQUE_EXPORT_STEPS_H

#include "opaque/export_plan.h"

typedef struct opq_step_kind {
    uint64_t hash;
    opq_text key;         /* the step with zeros for numbers, and how many these are */
    const opq_step *like; /* the first one */
    int count;
    int64_t *value;  /* of the first one's numbers */
    uint8_t *varies; /* per number */
} opq_step_kind;

typedef struct opq_step_kinds {
    opq_step_kind *items;
    int count;
    int32_t *of_step; /* of all plans, one after the other */
    int64_t step_count;
} opq_step_kinds;
/* The plan outlives the list; its codes are in theirs. */
opq_status opq_step_kinds_add(opq_step_kinds *kinds, const opq_plan *plan, const opq_code_list *codes) OPQ_MUST_CHECK;
void opq_step_kinds_write(const opq_step_kinds *kinds, const opq_code_list *codes, opq_text *text);
void opq_step_kinds_drop(opq_step_kinds *kinds);

/* Numbers as the file has them: those that need more than 32 bits take three. */
typedef struct opq_stream {
    int32_t *data;
    int64_t count;
    bool failed;
} opq_stream;
/* first: number of the plan's first step among those of all plans. */
opq_status opq_step_kinds_put(const opq_step_kinds *kinds, int64_t first, const opq_plan *plan,
                              opq_stream *stream) OPQ_MUST_CHECK;

#endif
