/* What passes of schedules share: a tree is rewritten, and of each statement it is known where in the kernel it comes from. Private to the passes. */
#ifndef OPAQUE_FUSION_SCHEDULE_PASS_H
#define OPAQUE_FUSION_SCHEDULE_PASS_H

#include "fusion/loop_rewrite.h"
#include "fusion/schedule.h"

typedef struct opq_pass {
    opq_rewriter rewriter;
    int16_t *origin; /* per statement of the result */
} opq_pass;

/* Rewrites all of a tree, into at most so many statements. Who runs it has set the rewriter's choose, finish and data. */
opq_status opq_pass_run(opq_pass *pass, const opq_loops *from, size_t most, opq_arena *arena,
                        opq_loops *out_schedule) OPQ_MUST_CHECK;
/* The next statement is what becomes of `stmt`: for `finish`. */
void opq_pass_came_from(opq_pass *pass, int stmt);
/* Appends a statement that comes from one; gives its number. */
int16_t opq_pass_push(opq_pass *pass, const opq_stmt *made, int from);
/* fold, halves, at. value: -1, but for a fold */
int16_t opq_pass_push_carried(opq_pass *pass, opq_stmt_op op, int from, int16_t carry, opq_dtype dtype, int16_t value);
/* The value itself if it has the dtype. */
int16_t opq_pass_push_cast(opq_pass *pass, int from, int16_t value, opq_dtype dtype);

bool opq_is_in_lane(const opq_loops *loops, int stmt); /* is there a vector loop around? */

#endif
