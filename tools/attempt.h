/* One run of a graph in a process of its own, compared with what it should give. */
#ifndef OPAQUE_TOOLS_ATTEMPT_H
#define OPAQUE_TOOLS_ATTEMPT_H

#include "graph/graph.h"

typedef enum attempt_result {
    ATTEMPT_agrees,
    ATTEMPT_differs,
    ATTEMPT_fails,   /* compiling or running gave `status` */
    ATTEMPT_crashes, /* by `signal` */
    ATTEMPT_hangs,
} attempt_result;

typedef struct attempt {
    attempt_result result;
    opq_status status;
    int signal;
    int output; /* differs: the first that does, and its first element that does, which has these bits */
    int64_t element;
    uint64_t got, expected;
    char message[1024];
} attempt;

/* `expected` has what the reference evaluator makes of the graph, bit for bit, but that one NaN is as good as another. A graph that
 * computes in f16 or bf16 keeps f32 between its nodes: there only a difference that is large for the output counts, and only of
 * floats. OPQ_NO_MEMORY, OPQ_INTERNAL: no process could be made. */
opq_status attempt_run(const opq_graph *graph, opq_fusion fusion, void *const *inputs, void *const *expected,
                       int seconds, attempt *out_attempt) OPQ_MUST_CHECK;
/* Do they go wrong in the same way? */
bool attempt_same(const attempt *a, const attempt *b);
/* "differs: output 0, element 17 ..." */
void attempt_print(const attempt *a, char *out, size_t size);

#endif
