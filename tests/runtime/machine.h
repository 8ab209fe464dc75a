/* What tests of plans run on: a host, a pool, a compiler and the matmul engine; and plans of graphs. */
#ifndef OPAQUE_TESTS_RUNTIME_MACHINE_H
#define OPAQUE_TESTS_RUNTIME_MACHINE_H

#include "tests/support.h"

#include "codegen_llvm/cache.h"
#include "runtime/plan.h"

typedef struct machine {
    opq_host host;
    opq_runtime runtime;
} machine;

typedef void (*machine_loop)(void *self, int64_t count, int64_t grain,
                             void (*body)(void *data, int64_t begin, int64_t end), void *data);

/* For a fixture's setup. `loop` NULL: without threads. */
static inline int create_machine(void **state, machine_loop loop)
{
    machine *m = calloc(1, sizeof *m);
    *state = m;
    if (m == NULL)
        return 1;
    m->host.parallel_for = loop;
    m->runtime.host = &m->host;
    return opq_pool_create(&m->runtime.pool) || opq_jit_create(&m->runtime.jit) ||
           opq_gemm_create(opq_jit_cpu(m->runtime.jit), &m->host, &m->runtime.gemm);
}

/* Fails if a buffer is left, or a kernel in use. */
static inline int drop_machine(void **state)
{
    machine *m = *state;
    const opq_code_cache *codes = opq_jit_cache(m->runtime.jit);
    bool empty = opq_pool_live(m->runtime.pool) == 0 && codes->bytes == codes->idle_bytes;
    opq_gemm_destroy(m->runtime.gemm);
    opq_jit_destroy(m->runtime.jit);
    opq_pool_destroy(m->runtime.pool);
    free(m);
    return !empty;
}

/* The graph is freed. */
static inline opq_plan *plan_of_graph(machine *m, opq_graph *graph)
{
    opq_plan *plan = NULL;
    expect_ok(opq_plan_compile(&m->runtime, graph, OPQ_FUSED, &plan));
    opq_graph_destroy(graph);
    return plan;
}

#endif
