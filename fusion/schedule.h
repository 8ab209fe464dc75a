/* Schedules: how a kernel runs, as a tree (`scheduled`, fusion/loop.h) of which code is made. A list of passes, each a tree in and a tree out, of the
 * same bits. Sizes are in no schedule, as in no tree.
 */
#ifndef OPAQUE_FUSION_SCHEDULE_H
#define OPAQUE_FUSION_SCHEDULE_H

#include "fusion/loop.h"

/* All passes, over a verified tree. `arena` holds the result, which borrows what `loops` borrows. OPQ_INTERNAL: a pass made what the verifier
 * refuses. */
opq_status opq_schedule(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule) OPQ_MUST_CHECK;

/* As `opq_loops_print`, of the schedule of a tree, as it is after the pass of that name; NULL: after all. OPQ_INVALID: no pass has that
 * name. */
opq_status opq_schedule_print(const opq_loops *loops, const char *after, opq_text *out_text) OPQ_MUST_CHECK;
/* Runs the schedule of a tree statement by statement: the same bits as opq_loops_eval gives. */
opq_loops_run opq_schedule_eval OPQ_MUST_CHECK;

/* Passes in their order, each opq_schedule_NAME in a file of its own, fusion/schedule_NAME.c.
 *
 *   reduce    rules of reductions spelled out: carries of all, of blocks, of blocks in these
 *   scan      what scans hold becomes a carry; outside of strips their loop becomes a vector loop, whose lanes fold in order
 *   columns   of a kernel `by rows`: the lanes' loop goes inside of those that count blocks, and what lanes carried is kept in locals
 */
#define OPQ_SCHEDULE_PASSES(X) X(reduce) X(scan) X(columns)

typedef opq_status opq_schedule_pass(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule);
#define X(name) opq_schedule_pass opq_schedule_##name OPQ_MUST_CHECK;
OPQ_SCHEDULE_PASSES(X)
#undef X

#endif
