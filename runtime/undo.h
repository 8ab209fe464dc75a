/* What a run writes over in its inputs, so that they are as they were if it fails. Internal to runtime/. */
#ifndef OPAQUE_RUNTIME_UNDO_H
#define OPAQUE_RUNTIME_UNDO_H

#include "runtime/run.h"

typedef struct opq_undo {
    char *log;
    size_t used, capacity; /* bytes */
} opq_undo;
opq_status opq_undo_note(opq_undo *undo, void *at, size_t bytes) OPQ_MUST_CHECK;
/* The storage of which a step changes a part that can be told before it runs, -1: there is none. access: the kernel's store. */
int32_t opq_undo_target(const opq_step *step, int *out_access);
/* Before such a step runs where an input lies, and the plan says that it is to be remembered. */
opq_status opq_undo_note_step(opq_undo *undo, const opq_run_state *run, const opq_step *step) OPQ_MUST_CHECK;
void opq_undo_all(opq_undo *undo);
void opq_undo_drop(opq_undo *undo);

#endif
