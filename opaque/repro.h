/* Folders from which a run can be repeated with opq-opt: docs/bugs.md says what is in them. Internal to opaque/.
 *
 * A run that fails for a reason that is ours is written, and with OPAQUE_REPRO=DIR every distinct plan, before it is compiled and run:
 * what ends the process has left its folder behind, and in it a file `running`, or `compiling` if it was a plan that a thread in the
 * background was making. What cannot be written stops no run.
 */
#ifndef OPAQUE_OPAQUE_REPRO_H
#define OPAQUE_OPAQUE_REPRO_H

#include "opaque/opaque.h"

struct opq_execution;
struct opq_job;

enum { OPQ_REPRO_MAX = 100, OPQ_REPRO_FAILURES_MAX = 8 };

/* Of a context; with its run_lock held. */
typedef struct opq_repro {
    char *dir;   /* every plan is written here; NULL: failures only, each into a temporary folder */
    bool off;    /* nothing is written */
    bool values; /* of inputs, not only their statistics */
    int count;
    struct opq_written {
        uint64_t key; /* hash of the snapshot's */
        char *folder;
    } written[OPQ_REPRO_MAX];
    const struct opq_written *running, *failed; /* the run in progress, the last that failed; NULL: none */
} opq_repro;

opq_status opq_repro_init(opq_repro *repro) OPQ_MUST_CHECK; /* reads the environment variables */
void opq_repro_drop(opq_repro *repro);
/* Before a run, whose key is made: that of its plan. */
void opq_repro_begin(opq_repro *repro, const struct opq_execution *run);
/* After it. `planned`: there was a plan to run. Returns `status`; the message of a failure that was written says where. */
opq_status opq_repro_end(opq_repro *repro, const struct opq_execution *run, bool planned,
                         opq_status status) OPQ_MUST_CHECK;
/* The folder that opq_repro_begin made for this plan, or NULL. */
const char *opq_repro_folder(opq_repro *repro, const struct opq_execution *run);
/* A plan could not be made in the background, where there are no inputs: of them, types alone are written. Its folder; NULL: it is not written. */
const char *opq_repro_failed_apart(opq_ctx *ctx, const struct opq_job *job);
/* Makes the empty file, or removes it. Any thread, without the lock. */
void opq_repro_mark(const char *folder, const char *name, bool present);

#endif
