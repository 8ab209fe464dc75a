/* Routines: ops that a function of the runtime computes over whole buffers. Each gives the bits of graph/eval_routine.c. */
#ifndef OPAQUE_RUNTIME_ROUTINE_H
#define OPAQUE_RUNTIME_ROUTINE_H

#include "runtime/run.h"

/* One call: operands and result, dense and row-major. */
typedef struct opq_routine {
    const opq_run_state *run;
    const opq_step *step;
    const opq_node *node;
    const char *name; /* what an error names */
    const opq_type *type[3];
    const void *data[3];
    void *out;
} opq_routine;

opq_status opq_routine_grouped_matmul(const opq_routine *call) OPQ_MUST_CHECK;
opq_status opq_routine_argsort(const opq_routine *call) OPQ_MUST_CHECK;
opq_status opq_routine_scatter_check(const opq_routine *call) OPQ_MUST_CHECK;
void opq_routine_scatter(const opq_routine *call); /* out: holds operand 0 already; the check has passed */

#endif
