/* Builds a plan: numbers what is in memory, turns each kernel of the fused graph into a step, places values. */
#include "runtime/plan_internal.h"
#include "codegen_llvm/allowance.h"
#include "graph/fp_control.h"
#include "graph/progress.h"

#include <stdlib.h>
#include <string.h>

int32_t opq_planner_storage(const opq_planner *planner, opq_ref ref)
{
    while (planner->storage_of[ref] < 0 && opq_node_at(planner->graph, ref)->op == OPQ_OP_reshape)
        ref = opq_node_at(planner->graph, ref)->operand[0];
    return planner->storage_of[ref];
}

/* Undefined contents need memory only where somebody looks at it: a call, or the caller. */
static void store_undefined(opq_planner *p, opq_ref ref)
{
    ref = opq_strip_reshape(p->graph, ref);
    if (opq_node_at(p->graph, ref)->op == OPQ_OP_undefined && opq_node_at(p->graph, ref)->kernel < 0)
        p->stored[ref] = 1;
}

/* A node is in memory if somebody outside its kernel, or a call, or the caller wants it. */
static void mark_stored(opq_planner *p)
{
    const opq_graph *graph = p->graph;
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        if (node->op == OPQ_OP_input || node->op == OPQ_OP_extern_result)
            p->stored[n] = 1;
        for (int k = 0; k < node->arity; k++)
            if (opq_node_at(graph, node->operand[k])->kernel != node->kernel)
                p->stored[node->operand[k]] = 1;
    }
    for (int i = 0; i < graph->output_count; i++)
        p->stored[opq_strip_reshape(graph, graph->outputs[i])] = 1;
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        bool free_node = opq_node_is_free(graph, n);
        if ((node->kernel < 0 && node->op != OPQ_OP_input) || node->op == OPQ_OP_extern)
            p->stored[n] = 0;
        p->group_of[n] = node->kernel >= 0 && (!free_node || p->stored[n]) ? node->kernel : -1;
    }
    for (int i = 0; i < graph->output_count; i++)
        store_undefined(p, graph->outputs[i]);
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        bool calls = node->op == OPQ_OP_extern || opq_node_class(node) == OPQ_CLASS_ROUTINE;
        for (int k = 0; calls && k < node->arity; k++)
            store_undefined(p, node->operand[k]);
    }
}

static opq_status reserve_storage(opq_planner *p, int32_t capacity)
{
    opq_plan *plan = p->plan;
    opq_storage *storage = opq_arena_alloc(&plan->arena, (size_t)capacity * sizeof *storage);
    int32_t *same_as = opq_arena_alloc(&plan->arena, (size_t)capacity * sizeof *same_as);
    if (storage == NULL || same_as == NULL)
        return opq_plan_no_memory();
    if (p->storage_capacity > 0) {
        memcpy(storage, plan->storage, (size_t)plan->storage_count * sizeof *storage);
        memcpy(same_as, p->same_as, (size_t)plan->storage_count * sizeof *same_as);
    }
    plan->storage = storage;
    p->same_as = same_as;
    p->storage_capacity = capacity;
    return OPQ_OK;
}

opq_status opq_planner_add_storage(opq_planner *p, int64_t bytes, int32_t *out_id)
{
    opq_plan *plan = p->plan;
    if (plan->storage_count == p->storage_capacity)
        OPQ_TRY(reserve_storage(p, 2 * p->storage_capacity));
    *out_id = plan->storage_count++;
    plan->storage[*out_id] = (opq_storage){.home = OPQ_HOME_temporary, .bytes = bytes, .first = -1, .last = -1};
    p->same_as[*out_id] = *out_id;
    return OPQ_OK;
}

static opq_status number_storage(opq_planner *p)
{
    opq_plan *plan = p->plan;
    int32_t inputs = 0, slots = 0;
    for (opq_ref n = 0; n < p->graph->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        p->storage_of[n] = p->slot_of[n] = -1;
        if (p->stored[n])
            p->storage_of[n] = plan->storage_count++;
        if (opq_node_class(node) == OPQ_CLASS_SCALAR)
            p->slot_of[n] = slots++;
    }
    plan->slot_count = slots;
    OPQ_TRY(reserve_storage(p, plan->storage_count + 1));
    plan->slot_source = opq_arena_alloc(&plan->arena, ((size_t)slots + 1) * sizeof *plan->slot_source);
    plan->slot_value = opq_arena_alloc(&plan->arena, ((size_t)slots + 1) * sizeof *plan->slot_value);
    if (!plan->slot_source || !plan->slot_value)
        return opq_plan_no_memory();
    for (opq_ref n = 0; n < p->graph->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        if (p->slot_of[n] >= 0) {
            const opq_attr *value = opq_node_attr(node, OPQ_ATTR_value);
            plan->slot_source[p->slot_of[n]] = (int32_t)(intptr_t)node->payload - 1;
            if (value)
                plan->slot_value[p->slot_of[n]] = value->number;
        }
        if (p->storage_of[n] < 0)
            continue;
        opq_storage *storage = &plan->storage[p->storage_of[n]];
        *storage =
            (opq_storage){.home = OPQ_HOME_temporary, .bytes = opq_type_bytes(&node->type), .first = -1, .last = -1};
        if (node->op == OPQ_OP_input) {
            storage->home = OPQ_HOME_input;
            storage->index = inputs++;
        }
        p->same_as[p->storage_of[n]] = p->storage_of[n];
    }
    plan->input_count = inputs;
    return OPQ_OK;
}

static opq_status build_steps(opq_planner *p)
{
    opq_plan *plan = p->plan;
    plan->steps = opq_arena_alloc(&plan->arena, ((size_t)p->graph->kernel_count + 1) * sizeof *plan->steps);
    if (plan->steps == NULL)
        return opq_plan_no_memory();
    for (int32_t k = 0; k < p->graph->kernel_count; k++) {
        opq_step *step = &plan->steps[plan->step_count];
        if (opq_progress_stopped())
            return opq_fail(OPQ_INTERNAL, "planning was stopped");
        p->failed = k;
        OPQ_TRY(opq_plan_step(p, k, step));
        p->failed = -1;
        plan->step_count++;
        opq_progress("planning kernels", plan->step_count, p->graph->kernel_count);
    }
    return OPQ_OK;
}

static opq_status place(opq_planner *p)
{
    int count = p->graph->output_count;
    int32_t *outputs = opq_arena_alloc(&p->scratch, ((size_t)count + 1) * sizeof *outputs);
    if (outputs == NULL)
        return opq_plan_no_memory();
    for (int i = 0; i < count; i++)
        outputs[i] = opq_planner_storage(p, p->graph->outputs[i]);
    return opq_plan_storage(p, outputs, count);
}

static opq_status build(opq_planner *p)
{
    size_t count = (size_t)p->graph->count + 1;
    p->stored = opq_arena_alloc(&p->scratch, count);
    p->group_of = opq_arena_alloc(&p->scratch, count * 3 * sizeof *p->group_of);
    if (p->stored == NULL || p->group_of == NULL)
        return opq_plan_no_memory();
    p->storage_of = p->group_of + count;
    p->slot_of = p->storage_of + count;
    OPQ_TRY(opq_kernels_verify(p->graph));
    mark_stored(p);
    OPQ_TRY(number_storage(p));
    OPQ_TRY(build_steps(p));
    OPQ_TRY(opq_planner_compile(p));
    OPQ_TRY(opq_plan_waves(p));
    OPQ_TRY(place(p));
    OPQ_TRY(opq_plan_edges(p));
    return opq_plan_replacements(p);
}

opq_status opq_plan_new(const opq_runtime *runtime, opq_plan **out_plan)
{
    opq_arena arena = {0};
    opq_plan *plan = opq_arena_alloc(&arena, sizeof *plan);
    if (plan == NULL)
        return opq_plan_no_memory();
    plan->arena = arena;
    atomic_init(&plan->refs, 1);
    plan->host = runtime->host;
    plan->jit = runtime->jit;
    *out_plan = plan;
    return OPQ_OK;
}

/* The plan takes over `fused` and `unfused`; not on failure. *out_failed: the kernel that became no step, or -1. */
static opq_status build_plan(opq_runtime *runtime, opq_graph *fused, const opq_unfused *unfused, bool dry,
                             int32_t *out_failed, opq_plan **out_plan)
{
    opq_plan *plan;
    *out_failed = -1;
    OPQ_TRY(opq_plan_new(runtime, &plan));
    plan->dry = dry;
    plan->unfused = *unfused;
    opq_planner planner = {.runtime = runtime, .plan = plan, .graph = fused, .dry = dry, .failed = -1};
    opq_status status = build(&planner);
    opq_arena_drop(&planner.scratch);
    *out_failed = planner.failed;
    if (status != OPQ_OK) {
        plan->unfused = (opq_unfused){0};
        opq_plan_release(plan);
        return status;
    }
    plan->graph = fused;
    *out_plan = plan;
    return OPQ_OK;
}

void opq_plan_retain(opq_plan *plan) { atomic_fetch_add(&plan->refs, 1); }

void opq_plan_release(opq_plan *plan)
{
    if (plan == NULL || atomic_fetch_sub(&plan->refs, 1) != 1)
        return;
    opq_plan *like = plan->like;
    bool joined = plan->part_count > 0;
    for (int32_t i = 0; i < plan->step_count && like == NULL && !joined; i++)
        if (plan->steps[i].payload && plan->host && plan->host->release_payload)
            plan->host->release_payload(plan->host->self, plan->steps[i].payload);
    for (const opq_code_use *use = plan->codes; use; use = use->next)
        opq_code_release(plan->jit, use->code);
    opq_graph_destroy(like ? NULL : plan->graph);
    for (int32_t i = 0; i < plan->part_count; i++)
        opq_plan_release(plan->parts[i]);
    free(plan->unfused.edges);
    opq_arena arena = plan->arena;
    opq_arena_drop(&arena);
    opq_plan_release(like);
}

size_t opq_plan_bytes(const opq_plan *plan)
{
    size_t code = 0;
    if (plan->like) /* all but its arena is that one's */
        return opq_arena_bytes(&plan->arena);
    for (int32_t i = 0; i < plan->part_count; i++)
        code += opq_plan_bytes(plan->parts[i]);
    if (plan->part_count > 0)
        return opq_arena_bytes(&plan->arena) + code;
    for (const opq_code_use *use = plan->codes; use; use = use->next)
        code += use->code->bytes;
    return opq_arena_bytes(&plan->arena) + opq_graph_bytes(plan->graph) + code +
           (size_t)plan->unfused.capacity * sizeof *plan->unfused.edges;
}

/* A fused graph on its way to a plan. */
typedef struct fusing {
    opq_graph *graph;
    opq_unfused unfused;
    opq_arena arena; /* of the fallbacks, the last one first */
    const opq_fallback *fallbacks;
    int32_t count;
} fusing;

static opq_status add_fallback(opq_arena *arena, const char *kernel, const char *reason, const opq_fallback **list)
{
    opq_fallback *made = opq_arena_alloc(arena, sizeof *made);
    if (made == NULL)
        return opq_plan_no_memory();
    *made = (opq_fallback){opq_arena_text(arena, kernel), opq_arena_text(arena, reason), *list};
    *list = made;
    return made->kernel && made->reason ? OPQ_OK : opq_plan_no_memory();
}

/* What could not be one kernel is one for each node. */
static opq_status fall_back(fusing *f, int32_t kernel)
{
    opq_graph *split = NULL;
    OPQ_TRY(add_fallback(&f->arena, f->graph->kernels[kernel].name, opq_error(), &f->fallbacks));
    f->count++;
    OPQ_TRY(opq_split_kernel(f->graph, kernel, &f->unfused, &split));
    opq_graph_destroy(f->graph);
    f->graph = split;
    return OPQ_OK;
}

/* A group is accepted before all views around it are known to be stored or not; what it finds in the end may not lower. */
static opq_status build_fused(opq_runtime *runtime, fusing *f, bool dry, opq_plan **out_plan)
{
    for (;;) {
        int32_t failed;
        opq_status status = build_plan(runtime, f->graph, &f->unfused, dry, &failed, out_plan);
        if (status == OPQ_OK || status == OPQ_NO_MEMORY || failed < 0 || opq_compile_refused() ||
            !opq_kernel_splits(f->graph, failed))
            return status;
        OPQ_TRY(fall_back(f, failed));
    }
}

static opq_status keep_fallbacks(opq_plan *plan, const fusing *f)
{
    for (const opq_fallback *from = f->fallbacks; from; from = from->next)
        OPQ_TRY(add_fallback(&plan->arena, from->kernel, from->reason, &plan->fallbacks));
    plan->fallback_count = f->count;
    return OPQ_OK;
}

static opq_status group_and_build(opq_runtime *runtime, const opq_graph *simple, opq_fusion fusion, bool dry,
                                  opq_plan **out_plan)
{
    fusing f = {0};
    opq_plan *plan = NULL;
    opq_status status = opq_graph_create(simple->name, &f.graph);
    if (status == OPQ_OK)
        status = opq_pass_group(simple, fusion, f.graph, &f.unfused);
    if (status == OPQ_OK)
        status = build_fused(runtime, &f, dry, &plan);
    if (status != OPQ_OK) {
        opq_graph_destroy(f.graph);
        free(f.unfused.edges);
    } else if ((status = keep_fallbacks(plan, &f)) != OPQ_OK) {
        opq_plan_release(plan);
    } else {
        *out_plan = plan;
    }
    opq_arena_drop(&f.arena);
    return status;
}

static opq_status compile(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion, bool dry, opq_plan **out_plan)
{
    opq_graph *expanded = NULL, *simple = NULL;
    opq_status status = OPQ_OK;
    if (opq_graph_expands(graph)) { /* else it would be copied */
        status = opq_graph_create(graph->name, &expanded);
        if (status == OPQ_OK)
            status = opq_pass_expand(graph, expanded);
    }
    if (status == OPQ_OK)
        status = opq_graph_create(graph->name, &simple);
    if (status == OPQ_OK)
        status = opq_pass_simplify(expanded ? expanded : graph, simple);
    opq_graph_destroy(expanded);
    if (status == OPQ_OK)
        status = group_and_build(runtime, simple, fusion, dry, out_plan);
    opq_graph_destroy(simple);
    return status;
}

/* A plan is run under any floating-point control: what passes compute of constants does not depend on the one in force here. */
static opq_status compile_anywhere(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion, bool dry,
                                   opq_plan **out_plan)
{
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT);
    int64_t before = opq_progress_begin();
    opq_status status = compile(runtime, graph, fusion, dry, out_plan);
    opq_progress_end(before);
    opq_fp_control_set(control);
    return status;
}

opq_status opq_plan_compile(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion, opq_plan **out_plan)
{
    return compile_anywhere(runtime, graph, fusion, false, out_plan);
}

opq_status opq_plan_only(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion, opq_plan **out_plan)
{
    return compile_anywhere(runtime, graph, fusion, true, out_plan);
}

opq_status opq_plan_traffic(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion, int64_t *out_bytes)
{
    opq_plan *plan;
    OPQ_TRY(opq_plan_only(runtime, graph, fusion, &plan));
    *out_bytes = 0;
    for (int32_t i = 0; i < plan->step_count; i++)
        *out_bytes += plan->steps[i].bytes_read + plan->steps[i].bytes_written;
    opq_plan_release(plan);
    return OPQ_OK;
}
