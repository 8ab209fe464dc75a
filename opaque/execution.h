/* A snapshot and the plan that runs it. Internal to opaque/; with run_lock held.
 *
 * Of a whole run, or of one piece of it (pieces.h), whose leaves may be results of other pieces.
 */
#ifndef OPAQUE_OPAQUE_EXECUTION_H
#define OPAQUE_OPAQUE_EXECUTION_H

#include "opaque/snapshot.h"

/* Who runs: the same for all pieces. */
typedef struct opq_runner {
    opq_ctx *ctx;
    opq_room *room;                /* memory of all that the run needs */
    struct opq_recorder *recorder; /* NULL: nobody looks */
    bool watched;                  /* a profiler is told of it */
} opq_runner;

typedef struct opq_execution {
    const opq_runner *runner;
    opq_snapshot *given;
    const opq_snapshot *snapshot; /* what the plan is for: `given` or any_offset */
    opq_snapshot any_offset;
    opq_plan *plan, *lines;         /* lines: that of an equal graph whose lines are this one's, for a failure */
    opq_plan *joined;               /* there is no plan, but those of its pieces as one */
    bool reused, mixed;             /* mixed: of the last run, see opq_run_call */
    bool in_place;                  /* outputs may take the memory of what they replace */
    bool bare;                      /* a plan is built without lines, which cost a fifth of planning one op */
    bool own_lines;                 /* a plan that was made for other lines is made again for those of the snapshot */
    bool piece, one_op;             /* of several ops; of one, whose plan is not counted */
    const opq_allowance *allowance; /* of making the plan; NULL: it takes what it takes */
    char *why; /* there was no plan: what tells it from the nearest, malloc'd; for the recorder and the log */
    opq_buffer *const *memory; /* per leaf; NULL: their values have it */
    opq_buffer **results;      /* per output of the snapshot, a reference, or NULL where a failed kernel was needed */
} opq_execution;

/* Ops whose planning takes what that of the snapshot does: its nodes, of recurrent ones so many for each step. */
int opq_ops_to_plan(const opq_snapshot *snapshot);
/* Makes the key of `given`, and looks for a plan; by_offset: or for one for any offsets of its views, which is for all but the first offsets
 * that the graph has. *out_found: there is one. */
opq_status opq_execution_find(opq_execution *execution, bool by_offset, bool *out_found) OPQ_MUST_CHECK;
/* Builds the plan that was not found, and keeps it in the cache. None, without an error, if there is an allowance that was too little. */
opq_status opq_execution_build(opq_execution *execution) OPQ_MUST_CHECK;
/* Builds it, and keeps it nowhere. An error if something would have to be compiled. */
opq_status opq_execution_try(opq_execution *execution) OPQ_MUST_CHECK;
/* Has it built in the background, where what saves most for what it takes comes first; allowance: as of an execution. *out_taken: false if nobody
 * builds there. */
opq_status opq_execution_build_in_background(opq_execution *execution, const opq_tiers_graph *weighed,
                                             const opq_allowance *allowance, bool *out_taken) OPQ_MUST_CHECK;
void opq_execution_collect(opq_ctx *ctx); /* plans that were built there go to the cache */
/* Is the memory of its leaves there? Of one that was being replaced when this process was forked it is not. */
opq_status opq_execution_check_leaves(const opq_snapshot *snapshot) OPQ_MUST_CHECK;
opq_status opq_execution_run(opq_execution *execution) OPQ_MUST_CHECK;
/* Does somebody look at plans, who sees the graphs that they were built from? */
bool opq_execution_is_looked_at(const opq_execution *execution);
void opq_execution_drop(const opq_execution *execution); /* without its results */
/* Runs a plan, for statistics, log, recorder and profiler. */
opq_status opq_runner_run(const opq_runner *runner, const opq_plan *plan, opq_run_call *call) OPQ_MUST_CHECK;

#endif
