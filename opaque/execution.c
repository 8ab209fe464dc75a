/* Finds or builds the plan of a snapshot, and runs it: see execution.h. */
#include "opaque/execution.h"
#include "graph/clock.h"
#include "graph/recurrent.h"
#include "opaque/log.h"
#include "opaque/why.h"
#include "runtime/activity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory"); }

static unsigned salt(void) { return opq_modes_get() & OPQ_MODE_UNFUSED ? 1 : 0; }

int opq_ops_to_plan(const opq_snapshot *s)
{
    enum { OF_A_STEP = 4 };
    int64_t ops = s->nodes.count;
    for (int i = 0; i < s->nodes.count; i++) {
        const opq_value *node = s->nodes.items[i];
        int steps, step;
        if (!opq_op_is_recurrent(node->op))
            continue;
        opq_recurrent_operands(node->op, &steps, &step);
        ops += OF_A_STEP * (node->operands[steps]->type.size[0] / node->operands[step]->type.size[0]);
    }
    return ops < INT32_MAX ? (int)ops : INT32_MAX;
}

/* ---- plans */

static opq_status compile_plan(const opq_execution *p, bool bare, opq_plan **out_plan)
{
    opq_ctx *ctx = p->runner->ctx;
    opq_graph *graph = NULL;
    opq_fusion fusion = opq_modes_get() & OPQ_MODE_UNFUSED ? OPQ_UNFUSED : OPQ_FUSED;
    OPQ_TRY(opq_snapshot_graph(p->snapshot, bare ? OPQ_OUTPUTS_bare : OPQ_OUTPUTS_stored, &graph));
    void *activity = p->runner->watched ? opq_activity_begin(&ctx->host, OPQ_ACTIVITY_plan, NULL) : NULL;
    opq_status status = opq_plan_compile(&ctx->runtime, graph, fusion, out_plan);
    opq_activity_end(&ctx->host, activity);
    opq_graph_destroy(graph);
    if (status == OPQ_OK && !bare)
        (*out_plan)->lines = opq_snapshot_lines(p->snapshot);
    return status;
}

/* For a failure: a reused plan has the lines of the graph it was built for, so it is built again (nothing is compiled). */
static const opq_plan *plan_with_lines(void *data)
{
    opq_execution *p = data;
    char message[1024];
    if ((!p->reused && !p->bare) || p->lines)
        return p->lines;
    snprintf(message, sizeof message, "%s", opq_error());
    opq_status status = compile_plan(p, false, &p->lines);
    if (status != OPQ_OK)
        p->lines = NULL;
    (void)opq_fail(status, "%s", message); /* the failure that is told is the run's */
    return p->lines;
}

/* Who looks is told the lines of this run, not those of the first that had the plan: it is built again, once for these lines. */
static void renew_lines(opq_execution *p)
{
    const opq_snapshot *s = p->snapshot;
    opq_plan *plan;
    if (p->plan->lines == opq_snapshot_lines(s) || compile_plan(p, false, &plan) != OPQ_OK)
        return;
    opq_plan_cache_replace(p->runner->ctx->plans, s->key, s->key_bytes, plan);
    opq_plan_release(p->plan);
    p->plan = plan;
}

static opq_plan *look_up(const opq_execution *p, const opq_snapshot *s)
{
    return opq_plan_cache_find(p->runner->ctx->plans, s->key, s->key_bytes);
}

/* The same for any offsets of its views, if it has any. */
static opq_status look_for_any_offset(opq_execution *p, bool *out_any)
{
    OPQ_TRY(opq_snapshot_without_offsets(p->given, &p->any_offset, out_any));
    if (!*out_any)
        return OPQ_OK;
    OPQ_TRY(opq_snapshot_key(&p->any_offset, salt()));
    p->plan = look_up(p, &p->any_offset);
    if (p->plan)
        p->snapshot = &p->any_offset;
    return OPQ_OK;
}

static opq_status look_for_given(opq_execution *p)
{
    OPQ_TRY(opq_snapshot_key(p->given, salt()));
    p->plan = look_up(p, p->given);
    return OPQ_OK;
}

/* For the first offsets of a graph there will be a plan of their own, which says what the program said; other ones have one together, which is looked
 * for first where graphs of the same ops had it last, as each key takes as long as some launches. */
static opq_status look_for_exact(opq_execution *p)
{
    opq_views *views = &p->runner->ctx->views;
    uint32_t kind = opq_snapshot_kind(p->given), *last = &views->moving[kind % OPQ_VIEWS];
    bool any = false, first = *last == kind && !opq_execution_is_looked_at(p);
    if (first)
        OPQ_TRY(look_for_any_offset(p, &any));
    if (p->plan)
        return OPQ_OK;
    OPQ_TRY(look_for_given(p));
    if (p->plan == NULL && !first)
        OPQ_TRY(look_for_any_offset(p, &any));
    if (any)
        *last = p->snapshot == p->given ? 0 : kind;
    if (any && p->plan == NULL && opq_views_moved(views, &p->any_offset, p->given))
        p->snapshot = &p->any_offset;
    return OPQ_OK;
}

opq_status opq_execution_find(opq_execution *p, bool by_offset, bool *out_found)
{
    p->snapshot = p->given;
    OPQ_TRY(by_offset ? look_for_exact(p) : look_for_given(p));
    if (p->plan && p->plan->part_count > 0) {
        p->joined = p->plan;
        p->plan = NULL;
    }
    *out_found = p->reused = p->plan != NULL;
    if (!p->reused)
        return OPQ_OK;
    atomic_fetch_add_explicit(&p->runner->ctx->stats.plans_reused, !p->one_op, memory_order_relaxed);
    if (p->runner->watched || p->runner->recorder || p->own_lines)
        renew_lines(p);
    if (opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG))
        opq_log("plan: reused, of %d ops on %d inputs", p->snapshot->nodes.count, p->snapshot->leaves.count);
    return OPQ_OK;
}

/* A plan that was made, in so many seconds. */
static void note_plan(opq_ctx *ctx, const opq_plan *plan, const char *why, double seconds)
{
    opq_plan_log(plan, why, seconds);
    atomic_fetch_add(&ctx->stats.kernels_compiled, plan->compiled);
    atomic_fetch_add(&ctx->stats.kernels_loaded, plan->loaded);
    atomic_fetch_add(&ctx->stats.kernels_split, plan->fallback_count);
    atomic_fetch_add(&ctx->stats.compile_nanoseconds, (long long)(seconds * 1e9));
}

/* For who looks. */
static opq_status find_why(const opq_execution *p, char **out_why)
{
    bool wanted = p->runner->recorder || opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO);
    return wanted ? opq_why(p->runner->ctx->plans, p->given, out_why) : OPQ_OK; /* with the offsets that the program has */
}

/* Of making a plan: what it took to plan, and of an allowance what is left. */
static void note_costs(opq_ctx *ctx, int ops, double seconds, bool piece, const opq_plan *plan)
{
    if (piece)
        opq_tiers_planned_piece(&ctx->tiers, ops, seconds, plan->compiled > 0);
    else
        opq_tiers_planned(&ctx->tiers, ops, seconds - plan->compile_seconds, false);
}

/* An allowance of nothing was a look at what is there. */
static void note_refusal(opq_ctx *ctx, int ops, double seconds, bool piece, const opq_allowance *given,
                         const opq_allowance *left)
{
    atomic_fetch_add(&ctx->stats.compile_nanoseconds, (long long)(seconds * 1e9));
    if (given->seconds <= 0)
        return;
    if (piece)
        opq_tiers_planned_piece(&ctx->tiers, ops, seconds + left->missing, false);
    else
        opq_tiers_planned(&ctx->tiers, ops, seconds + left->missing, true);
    if (opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO))
        opq_log("plan: of %d ops, not made yet: it lacks %.2f ms for a kernel that has to be compiled, they go on in "
                "pieces",
                ops, 1e3 * left->missing);
}

/* Of what making a plan took, what was not compiling. */
static double planning_of(double seconds, const opq_allowance *given, const opq_allowance *left)
{
    double planning = seconds - (given->seconds - left->seconds);
    return planning > 0 ? planning : 0;
}

opq_status opq_execution_build(opq_execution *p)
{
    opq_ctx *ctx = p->runner->ctx;
    opq_allowance left = p->allowance ? *p->allowance : (opq_allowance){0};
    const opq_snapshot *s = p->snapshot;
    if (p->why == NULL)
        OPQ_TRY(find_why(p, &p->why));
    double start = opq_now();
    opq_allowance *before = opq_compile_limit(p->allowance ? &left : NULL);
    opq_status status = compile_plan(p, p->bare, &p->plan);
    opq_compile_limit(before);
    int ops = opq_ops_to_plan(s);
    double seconds = opq_now() - start;
    if (p->allowance) {
        opq_tiers_take(&ctx->tiers, p->allowance);
        opq_tiers_settle(&ctx->tiers, s->key, s->key_bytes, p->allowance, &left,
                         planning_of(seconds, p->allowance, &left));
    }
    if (left.missing > 0) {
        note_refusal(ctx, ops, seconds, p->piece, p->allowance, &left);
        p->plan = NULL;
        return OPQ_OK;
    }
    OPQ_TRY(status);
    note_plan(ctx, p->plan, p->why, seconds);
    note_costs(ctx, ops, seconds, p->piece, p->plan);
    atomic_fetch_add(&ctx->stats.plans_built, !p->one_op);
    opq_plan_cache_keep(ctx->plans, s->key, s->key_bytes, p->plan);
    return OPQ_OK;
}

opq_status opq_execution_try(opq_execution *p)
{
    opq_allowance nothing = {0}, *before = opq_compile_limit(&nothing);
    opq_status status = compile_plan(p, true, &p->plan);
    opq_compile_limit(before);
    return status;
}

/* ---- plans that a thread in the background makes */

opq_status opq_execution_build_in_background(opq_execution *p, const opq_tiers_graph *weighed,
                                             const opq_allowance *allowance, bool *out_taken)
{
    opq_ctx *ctx = p->runner->ctx;
    const opq_snapshot *s = p->snapshot;
    opq_graph *graph;
    *out_taken = opq_background_has(&ctx->background, s->key, s->key_bytes);
    if (*out_taken)
        return OPQ_OK;
    OPQ_TRY(opq_snapshot_graph(s, OPQ_OUTPUTS_stored, &graph));
    opq_job *job = opq_job_new(&ctx->host, graph, s->key, s->key_bytes);
    if (job == NULL)
        return out_of_memory();
    job->gain = weighed->seconds / weighed->ops;
    job->ops = weighed->ops;
    job->lines = opq_snapshot_lines(s);
    job->limited = allowance != NULL;
    if (allowance)
        job->given = job->left = *allowance;
    const char *folder = opq_repro_folder(&ctx->repro, p);
    job->folder = folder ? strdup(folder) : NULL;
    opq_status status = find_why(p, &job->why);
    *out_taken = status == OPQ_OK && opq_background_add(&ctx->background, job);
    if (!*out_taken)
        opq_job_drop(&ctx->host, job);
    else if (allowance)
        opq_tiers_take(&ctx->tiers, allowance);
    return status;
}

static void note_failure(opq_ctx *ctx, const opq_job *job)
{
    const char *folder = opq_repro_failed_apart(ctx, job);
    atomic_fetch_add(&ctx->stats.plans_failed, 1);
    opq_tiers_refuse(&ctx->tiers, job->key, job->key_bytes);
    if (opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO))
        opq_log("plan: of %d ops, could not be made in the background, they go on in pieces: %s%s%s", job->ops,
                job->message, folder ? "; to repeat it: " : "", folder ? folder : "");
}

static void collect(opq_ctx *ctx, const opq_job *job)
{
    if (job->limited)
        opq_tiers_settle(&ctx->tiers, job->key, job->key_bytes, &job->given, &job->left,
                         planning_of(job->seconds, &job->given, &job->left));
    if (job->left.missing > 0) {
        note_refusal(ctx, job->ops, job->seconds, false, &job->given, &job->left);
        return;
    }
    if (job->plan == NULL) {
        note_failure(ctx, job);
        return;
    }
    note_plan(ctx, job->plan, job->why, job->seconds);
    note_costs(ctx, job->ops, job->seconds, false, job->plan);
    atomic_fetch_add(&ctx->stats.plans_built, 1);
    atomic_fetch_add(&ctx->stats.plans_in_background, 1);
    opq_plan_cache_keep(ctx->plans, job->key, job->key_bytes, job->plan);
}

void opq_execution_collect(opq_ctx *ctx)
{
    for (opq_job *job = opq_background_done(&ctx->background), *next; job; job = next) {
        next = job->next;
        collect(ctx, job);
        opq_job_drop(&ctx->host, job);
    }
}

void opq_execution_drop(const opq_execution *p)
{
    free(p->why);
    opq_plan_release(p->plan);
    opq_plan_release(p->joined);
    opq_plan_release(p->lines);
}

bool opq_execution_is_looked_at(const opq_execution *p)
{
    return p->runner->watched || p->runner->recorder || opq_modes_get() & OPQ_MODE_UNFUSED ||
           opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG) || opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG);
}

/* ---- running */

static void note_launch(void *data, const opq_step *step, int32_t count, const opq_launch_times *times)
{
    const opq_runner *runner = data;
    int64_t bytes_read = 0, bytes_written = 0;
    for (int32_t i = 0; i < count; i++) {
        bytes_read += step[i].bytes_read;
        bytes_written += step[i].bytes_written;
    }
    if (opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG))
        opq_log("launch: %s, %d kernels, %s, %.3f ms, %lld bytes read, %lld written", step->name, count,
                opq_type_name(step->largest).text, 1e3 * times->seconds, (long long)bytes_read, (long long)bytes_written);
    if (runner->recorder)
        opq_recorder_launch(runner->recorder, step, count, times);
}

opq_status opq_runner_run(const opq_runner *runner, const opq_plan *plan, opq_run_call *call)
{
    opq_ctx *ctx = runner->ctx;
    opq_run_counts counts = {0};
    bool each = runner->recorder || opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG);
    call->counts = &counts;
    call->note = each ? note_launch : NULL;
    call->note_data = (void *)runner;
    call->timed = each;
    call->watched = runner->watched;
    opq_status status = opq_plan_run(&ctx->runtime, plan, call);
    atomic_fetch_add(&ctx->stats.kernels_run, counts.kernels);
    atomic_fetch_add(&ctx->stats.extern_calls, counts.calls);
    atomic_fetch_add(&ctx->stats.bytes_read, counts.bytes_read);
    atomic_fetch_add(&ctx->stats.bytes_written, counts.bytes_written);
    return status;
}

opq_status opq_execution_check_leaves(const opq_snapshot *s)
{
    for (int i = 0; i < s->leaves.count; i++)
        if (atomic_load_explicit(&s->leaves.items[i]->buffer->taken, memory_order_relaxed))
            return opq_fail(OPQ_INVALID, "the value was being updated in place by another thread when this process was "
                                         "forked: it is lost here");
    return OPQ_OK;
}

/* Memory of the leaves, and how much of it is before those that are views. */
static opq_status find_inputs(const opq_execution *p, opq_buffer **out_inputs, int64_t *out_firsts)
{
    const opq_snapshot *s = p->snapshot;
    if (p->memory == NULL)
        OPQ_TRY(opq_execution_check_leaves(s));
    for (int i = 0; i < s->leaves.count; i++) {
        const opq_view *view = opq_snapshot_leaf_view(s, i);
        out_inputs[i] = p->memory ? p->memory[i] : s->leaves.items[i]->buffer;
        out_firsts[i] = view ? view->first * opq_dtype_bytes((opq_dtype)view->leaf.dtype) : 0;
    }
    return OPQ_OK;
}

opq_status opq_execution_run(opq_execution *p)
{
    const opq_snapshot *s = p->snapshot;
    opq_room *room = p->runner->room;
    opq_buffer **results = opq_room_take(room, (size_t)s->outputs.count * sizeof *results);
    opq_number *scalars = opq_room_take(room, (size_t)s->scalars.count * sizeof *scalars);
    opq_buffer **inputs = opq_room_take(room, (size_t)s->leaves.count * sizeof *inputs);
    int64_t *firsts = opq_room_take(room, (size_t)s->leaves.count * sizeof *firsts);
    p->results = NULL;
    p->mixed = true; /* until the run says something else */
    if (inputs == NULL || firsts == NULL || results == NULL || scalars == NULL)
        return out_of_memory();
    for (int i = 0; i < s->scalars.count; i++)
        scalars[i] = s->scalars.items[i]->scalar;
    opq_run_call call = {.inputs = inputs,
                         .firsts = firsts,
                         .scalars = scalars,
                         .outputs = results,
                         .replaces = p->in_place && s->replaces.count > 0 ? s->replaces.items : NULL,
                         .lines_of = plan_with_lines,
                         .lines_data = p,
                         .out_mixed = &p->mixed};
    OPQ_TRY(find_inputs(p, inputs, firsts));
    p->results = results;
    return opq_runner_run(p->runner, p->plan, &call);
}
