/* Shared by plan.c (steps), plan_step.c (one kernel to one step) and plan_storage.c (where values live). */
#ifndef OPAQUE_RUNTIME_PLAN_INTERNAL_H
#define OPAQUE_RUNTIME_PLAN_INTERNAL_H

#include "runtime/plan.h"
#include "runtime/routine.h"

typedef struct opq_planner {
    bool dry; /* for its numbers: no code is generated */
    opq_runtime *runtime;
    opq_plan *plan;
    const opq_graph *graph;
    uint8_t *stored;     /* per node: in memory after its kernel */
    int32_t *group_of;   /* as opq_lower reads it */
    int32_t *storage_of; /* per node, -1 */
    int32_t *slot_of;    /* per node: scalar slot, -1 */
    int32_t *same_as;    /* per storage: works in place of; itself otherwise */
    int32_t storage_capacity;
    int32_t failed; /* the kernel that is being made a step, or became none; -1 */
    struct opq_code_wanted *wanted, *last_wanted;
    int wanted_count;
    opq_arena scratch; /* what only building needs */
} opq_planner;

/* Without steps, in the first block of its own arena. */
opq_status opq_plan_new(const opq_runtime *runtime, opq_plan **out_plan) OPQ_MUST_CHECK;
static inline opq_status opq_plan_no_memory(void) { return opq_fail(OPQ_NO_MEMORY, "plan: out of memory"); }
int32_t opq_planner_storage(const opq_planner *planner,
                            opq_ref ref); /* of a node or what it reshapes; -1: undefined memory */
/* What it became where updates went in place. */
static inline int32_t opq_planner_final(const opq_planner *planner, int32_t storage)
{
    while (storage >= 0 && planner->same_as[storage] != storage)
        storage = planner->same_as[storage];
    return storage;
}
/* A temporary that is no node's. */
opq_status opq_planner_add_storage(opq_planner *planner, int64_t bytes, int32_t *out_id) OPQ_MUST_CHECK;
opq_status opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step) OPQ_MUST_CHECK;
/* Steps that lack their code, in order. (plan_code.c) */
typedef struct opq_code_wanted {
    opq_step *step;
    int32_t kernel;
    struct opq_code_wanted *next;
} opq_code_wanted;
opq_status opq_planner_want_code(opq_planner *planner, opq_step *step) OPQ_MUST_CHECK;
/* When all steps exist: gives each its code, and counts what was compiled. */
opq_status opq_planner_compile(opq_planner *planner) OPQ_MUST_CHECK;
/* Phases, units and scratch, of what its code is made of and of its numbers: no run has to read the tree. */
void opq_step_measure(opq_step *step);
/* The loops of those nodes of a kernel that are a group, with their arguments and code. In memory is what has a storage; number below -1: in cache. */
opq_status opq_planner_lower(opq_planner *planner, int32_t kernel, int32_t group, opq_lowered *out_lowered,
                             opq_step *step) OPQ_MUST_CHECK;
/* Memory for buffers between phases, as far as their accesses reach. */
opq_status opq_planner_own(opq_planner *planner, opq_step *step) OPQ_MUST_CHECK;
/* A step's loops with their arguments, and a step of such. */
static inline opq_bound opq_step_bound(const opq_step *step)
{
    return (opq_bound){step->loops, step->dims, step->buffers, step->scalars};
}
static inline void opq_step_bind(opq_step *step, const opq_bound *bound)
{
    step->loops = bound->loops;
    step->dims = bound->dims;
    step->buffers = bound->buffers;
    step->scalars = bound->scalars;
}
/* Number `at` of what a step reads and writes: where the step has its storage, which may be -1. NULL: there are no more. */
static inline int32_t *opq_step_use(opq_step *step, int at, bool *out_written)
{
    *out_written = false;
    if (at < step->loops.buffer_count) {
        *out_written = step->loops.written[at] != OPQ_BUFFER_in;
        return &step->buffers[at];
    }
    at -= step->loops.buffer_count;
    if (at < step->operand_count)
        return &step->operands[at];
    at -= step->operand_count;
    *out_written = at != step->result_count;
    if (at < step->result_count)
        return &step->results[at];
    at -= step->result_count;
    return at == 0 ? &step->copy_from : at == 1 ? &step->copy_to : NULL;
}
/* Counts the work of a step's loops, and checks that they stay in their buffers. */
opq_status opq_planner_check(const opq_planner *planner, opq_step *step) OPQ_MUST_CHECK;
opq_status opq_plan_parts_step(opq_planner *planner, int32_t kernel, opq_step *step) OPQ_MUST_CHECK; /* plan_parts.c */
/* After all steps exist: which are one launch, and the order of launches. */
opq_status opq_plan_waves(opq_planner *planner) OPQ_MUST_CHECK;
/* After that: lifetimes, in-place updates, outputs (their storages), arena. */
opq_status opq_plan_storage(opq_planner *planner, const int32_t *outputs, int output_count) OPQ_MUST_CHECK;
opq_status opq_plan_replacements(opq_planner *planner) OPQ_MUST_CHECK;
/* And then, of a plan that is looked at: what each edge between two kernels would save. (plan_edges.c) */
opq_status opq_plan_edges(opq_planner *planner) OPQ_MUST_CHECK;
/* Do its loops stay in the plan's memory? */
opq_status opq_step_verify_bounds(const opq_plan *plan, const opq_step *step) OPQ_MUST_CHECK;
/* A buffer is read or written as much as its accesses walk of it, at most whole. It must have a storage. */
int64_t opq_step_buffer_bytes(const opq_plan *plan, const opq_step *step, int buffer);
/* May storage `made`, an update of `old`, lie where that does: does the step read at most the elements that it writes? */
bool opq_step_may_update(const opq_step *step, int32_t old, int32_t made);

#endif
