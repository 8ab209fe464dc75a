/* What a run writes over in its inputs, so that they are as they were if it fails. Internal to runtime/. */
#ifndef OPAQUE_RUNTIME_UNDO_H
#define OPAQUE_RUNTIME_UNDO_H

#include "runtime/run.h"

typedef struct opq_undo {
    char *log;
    size_t used, capacity; /* bytes */
    bool needed;           /* by an output of the run */
} opq_undo;
/* The storage of which a step changes a part that can be told before it runs, -1: there is none. access: the kernel's store. */
int32_t opq_undo_target(const opq_step *step, int *out_access);
/* Is it an output that lies where an input lay, of which the plan says that what is written over is to be remembered? */
bool opq_undo_covers(const opq_run_state *run, int32_t storage);
/* Before a step runs: what it is going to write over there. */
opq_status opq_undo_note_step(const opq_run_state *run, const opq_step *step) OPQ_MUST_CHECK;
void opq_undo_all(opq_undo *undo);
void opq_undo_drop(opq_undo *undo);

#endif
