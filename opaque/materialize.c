/* From pending to computed: snapshot, key, plan (found or compiled), run, results. */
#include "opaque/log.h"
#include "opaque/snapshot.h"
#include "opaque/why.h"
#include "runtime/activity.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- one run */

typedef struct run {
    opq_ctx *ctx;
    opq_room *room;                    /* memory of what follows */
    opq_snapshot snapshot, any_offset; /* any_offset: for plans of any offsets of its views */
    const opq_snapshot *planned;       /* the one of them that the plan is for */
    opq_plan *plan, *lines;            /* lines: see plan_with_lines */
    bool reused, mixed, failed_apart;
    bool watched;     /* a profiler is told of it */
    bool whole_steps; /* a cell goes back to its last computed value, not to the last good write */
    opq_value **outputs;
    opq_buffer **inputs, **results;
    opq_number *scalars;
    struct opq_recorder *recorder;
    char *why;           /* there was no plan; for the recorder and the log */
    opq_value **dropped; /* room for what committing lets go, then for `again` */
    opq_value **again;   /* what cells went back to and is still to be computed */
    int again_count;
} run;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory"); }

static void copy_message(char *out, size_t size)
{
    strncpy(out, opq_error(), size - 1);
    out[size - 1] = 0;
}

static void *begin_activity(const run *r, opq_activity_kind kind, const char *name)
{
    return r->watched ? opq_activity_begin(&r->ctx->host, kind, name) : NULL;
}

static opq_status build_plan(run *r, opq_plan **out_plan)
{
    opq_graph *graph = NULL;
    opq_fusion fusion = opq_modes_get() & OPQ_MODE_UNFUSED ? OPQ_UNFUSED : OPQ_FUSED;
    OPQ_TRY(opq_snapshot_graph(r->planned, OPQ_OUTPUTS_stored, &graph));
    void *activity = begin_activity(r, OPQ_ACTIVITY_plan, NULL);
    opq_status status = opq_plan_compile(&r->ctx->runtime, graph, fusion, out_plan);
    opq_activity_end(&r->ctx->host, activity);
    opq_graph_destroy(graph);
    if (status == OPQ_OK)
        (*out_plan)->lines = opq_snapshot_lines(&r->snapshot);
    return status;
}

/* For a failure: a reused plan has the lines of the graph it was built for, so it is built again (nothing is compiled). */
static const opq_plan *plan_with_lines(void *data)
{
    run *r = data;
    char message[1024];
    if (!r->reused || r->lines)
        return r->lines;
    copy_message(message, sizeof message);
    opq_status status = build_plan(r, &r->lines);
    if (status != OPQ_OK)
        r->lines = NULL;
    (void)opq_fail(status, "%s", message); /* the failure that is told is the run's */
    return r->lines;
}

/* A profiler names the lines of this run, not those of the first that had the plan: it is built again, once for these lines. */
static void renew_lines(run *r)
{
    const opq_snapshot *s = r->planned;
    opq_plan *plan;
    if (r->plan->lines == opq_snapshot_lines(s) || build_plan(r, &plan) != OPQ_OK)
        return;
    opq_plan_cache_replace(r->ctx->plans, s->key, s->key_bytes, plan);
    opq_plan_release(r->plan);
    r->plan = plan;
}

/* There is no plan for these offsets. For the first ones of a graph there will be one, which says what the program said; other ones have
 * one together. */
static opq_status find_any_offset(run *r, unsigned salt)
{
    bool any;
    OPQ_TRY(opq_snapshot_without_offsets(&r->snapshot, &r->any_offset, &any));
    if (!any)
        return OPQ_OK;
    opq_snapshot *s = &r->any_offset;
    OPQ_TRY(opq_snapshot_key(s, salt));
    r->plan = opq_plan_cache_find(r->ctx->plans, s->key, s->key_bytes);
    if (r->plan || opq_views_seen(&r->ctx->views, s->key, s->key_bytes))
        r->planned = s;
    return OPQ_OK;
}

static opq_status find_plan(run *r)
{
    unsigned salt = opq_modes_get() & OPQ_MODE_UNFUSED ? 1 : 0;
    OPQ_TRY(opq_snapshot_key(&r->snapshot, salt));
    if (r->ctx->repro.dir)
        opq_repro_begin(&r->ctx->repro, &r->snapshot);
    r->planned = &r->snapshot;
    r->plan = opq_plan_cache_find(r->ctx->plans, r->snapshot.key, r->snapshot.key_bytes);
    if (r->plan == NULL)
        OPQ_TRY(find_any_offset(r, salt));
    const opq_snapshot *s = r->planned;
    r->reused = r->plan != NULL;
    if (r->reused) {
        atomic_fetch_add(&r->ctx->stats.plans_reused, 1);
        if (r->watched)
            renew_lines(r);
        if (opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG))
            opq_log("plan: reused, of %d ops on %d inputs", s->nodes.count, s->leaves.count);
        return OPQ_OK;
    }
    if (r->recorder || opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO))
        OPQ_TRY(opq_why(r->ctx->plans, &r->snapshot, &r->why));
    double start = now();
    OPQ_TRY(build_plan(r, &r->plan));
    opq_plan_log(r->plan, r->why, now() - start);
    atomic_fetch_add(&r->ctx->stats.plans_built, 1);
    atomic_fetch_add(&r->ctx->stats.kernels_compiled, r->plan->compiled);
    atomic_fetch_add(&r->ctx->stats.kernels_split, r->plan->fallback_count);
    atomic_fetch_add(&r->ctx->stats.compile_nanoseconds, (long long)((now() - start) * 1e9));
    opq_plan_cache_keep(r->ctx->plans, s->key, s->key_bytes, r->plan);
    return OPQ_OK;
}

static void note_launch(void *data, const opq_step *step, int32_t count, const opq_launch_times *times)
{
    run *r = data;
    bool call = step->kind == OPQ_KERNEL_extern;
    atomic_fetch_add(call ? &r->ctx->stats.extern_calls : &r->ctx->stats.kernels_run, 1);
    int64_t bytes_read = 0, bytes_written = 0;
    for (int32_t i = 0; i < count; i++) {
        bytes_read += step[i].bytes_read;
        bytes_written += step[i].bytes_written;
    }
    atomic_fetch_add(&r->ctx->stats.bytes_read, bytes_read);
    atomic_fetch_add(&r->ctx->stats.bytes_written, bytes_written);
    if (opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG))
        opq_log("launch: %s%s, %d kernels, %s, %.3f ms, %lld bytes read, %lld written", step->name,
                times->compile_seconds > 0 ? " (compiled now)" : "", count, step->shape, 1e3 * times->seconds,
                (long long)bytes_read, (long long)bytes_written);
    if (r->recorder)
        opq_recorder_launch(r->recorder, step, count, times);
}

static void drop_part(void *of) { opq_buffer_release(of); }

/* Memory of the leaves; of a view of one, from its first element on: a reference to be given back. */
static opq_status find_inputs(run *r)
{
    const opq_snapshot *s = r->planned;
    for (int i = 0; i < s->leaves.count; i++) {
        opq_buffer *buffer = s->leaves.items[i]->buffer;
        const opq_view *view = opq_snapshot_leaf_view(s, i);
        if (atomic_load_explicit(&buffer->taken, memory_order_relaxed))
            return opq_fail(OPQ_INVALID, "the value was being updated in place by another thread when this process was "
                                         "forked: it is lost here");
        r->inputs[i] = buffer;
        if (view == NULL)
            continue;
        r->inputs[i] = NULL;
        char *first = (char *)buffer->data + view->first * opq_dtype_bytes((opq_dtype)view->leaf.dtype);
        opq_buffer_retain(buffer);
        opq_status status = opq_pool_adopt(r->ctx->runtime.pool, first, (size_t)opq_type_bytes(&view->leaf), drop_part,
                                           buffer, &r->inputs[i]);
        if (status != OPQ_OK) {
            opq_buffer_release(buffer);
            return status;
        }
    }
    return OPQ_OK;
}

static void drop_inputs(const run *r)
{
    for (int i = 0; i < r->planned->leaves.count; i++)
        if (opq_snapshot_leaf_view(r->planned, i))
            opq_buffer_release(r->inputs[i]);
}

static opq_status execute(run *r)
{
    const opq_snapshot *s = r->planned;
    r->inputs = opq_room_take(r->room, (size_t)s->leaves.count * sizeof *r->inputs);
    r->results = opq_room_take(r->room, (size_t)s->outputs.count * sizeof *r->results);
    r->scalars = opq_room_take(r->room, (size_t)s->scalars.count * sizeof *r->scalars);
    if (r->inputs == NULL || r->results == NULL || r->scalars == NULL) {
        r->results = NULL;
        return out_of_memory();
    }
    memset(r->inputs, 0, (size_t)s->leaves.count * sizeof *r->inputs);
    for (int i = 0; i < s->scalars.count; i++)
        r->scalars[i] = s->scalars.items[i]->scalar;
    double start = now(), compiled = opq_gemm_compile_seconds(r->ctx->runtime.gemm);
    opq_run_call call = {.inputs = r->inputs,
                         .scalars = r->scalars,
                         .outputs = r->results,
                         .replaces = s->replaces.count > 0 ? s->replaces.items : NULL,
                         .note = note_launch,
                         .note_data = r,
                         .timed = r->recorder != NULL || opq_logs(OPQ_LOG_flush, OPQ_LOG_DEBUG),
                         .watched = r->watched,
                         .lines_of = plan_with_lines,
                         .lines_data = r,
                         .out_mixed = &r->mixed};
    opq_status status = find_inputs(r);
    if (status == OPQ_OK)
        status = opq_plan_run(&r->ctx->runtime, r->plan, &call);
    else
        r->results = NULL;
    drop_inputs(r);
    compiled = opq_gemm_compile_seconds(r->ctx->runtime.gemm) - compiled;
    atomic_fetch_add(&r->ctx->stats.compile_nanoseconds, (long long)(compiled * 1e9));
    atomic_fetch_add(&r->ctx->stats.run_nanoseconds, (long long)((now() - start - compiled) * 1e9));
    return status;
}

/* ---- results */

/* Has a run that never ended here (fork.c) begun to write over what the cell would go back to? */
static bool is_taken(const opq_cell *cell)
{
    const opq_value *oldest = cell->history_count > 0 ? cell->history[0] : NULL;
    return oldest && oldest->state == OPQ_VALUE_computed && atomic_load(&oldest->buffer->taken);
}

/* With the lock held. A cell whose new value failed goes back to the one before; a pending one is still to be computed, which may fail
 * in turn. After an optimizer's step it goes back to where the step began: half a step (decayed, but not updated) is no state that
 * anybody asked for. r->again has room for each holder, or is NULL if there is no memory to go back with. */
static void fail_value(run *r, opq_value *value, opq_status status, const char *message, int *dropped_count)
{
    char *copy = strdup(message);
    value->error = copy ? copy : strdup("");
    value->error_status = status;
    atomic_store_explicit(&value->state, OPQ_VALUE_failed, memory_order_release);
    opq_cells_settled(value);
    for (opq_cell *cell = r->again ? value->holders : NULL, *next; cell; cell = next) {
        next = cell->next_holder;
        if (is_taken(cell))
            continue;
        bool to_start = r->whole_steps && cell->history_count > 0 && cell->history[0]->state == OPQ_VALUE_computed;
        bool gap = cell->history_lost && cell->history_count == 1; /* writes on top of the oldest are gone */
        if (cell->history_count == 0 || (gap && cell->history[0]->state != OPQ_VALUE_computed))
            continue;
        while (to_start && cell->history_count > 1)
            r->dropped[(*dropped_count)++] = cell->history[--cell->history_count];
        opq_value *back = cell->history[--cell->history_count];
        opq_cell_hold(cell, back);
        atomic_fetch_sub(&value->refs, 1); /* the cell's; ours is still there */
        if (back->state == OPQ_VALUE_pending) {
            opq_value_retain(back);
            r->again[r->again_count++] = back;
        }
    }
}

static void compute_value(opq_value *value, opq_buffer *buffer, opq_value **dropped, int *count)
{
    value->buffer = buffer;
    atomic_store_explicit(&buffer->taken, false, memory_order_relaxed);
    opq_buffer_made(buffer, (opq_op)value->op, value->line);
    atomic_store_explicit(&value->state, OPQ_VALUE_computed, memory_order_release);
    opq_cells_settled(value);
    for (opq_cell *cell = value->holders; cell; cell = cell->next_holder)
        *count += opq_cell_forget(cell, dropped + *count);
}

static int count_holders(opq_value *const *values, int count)
{
    int total = 0;
    for (int i = 0; i < count; i++)
        for (const opq_cell *cell = values[i]->holders; cell; cell = cell->next_holder)
            total++;
    return total;
}

/* Results become leaves; results NULL: all failed. Payloads and operands go after the lock is let go. Returns `status`, with its message,
 * or OPQ_NO_MEMORY: then all failed as well, and the results are given back. */
static opq_status commit(run *r, opq_value *const *values, int value_count, opq_buffer *const *results,
                         opq_status status, const char *message)
{
    opq_ctx *ctx = r->ctx;
    opq_spin_lock(&ctx->lock);
    int holders = count_holders(values, value_count), count = 0;
    opq_value **dropped = r->dropped = opq_room_take(r->room, (size_t)holders * (OPQ_HISTORY_MAX + 1) * sizeof *dropped);
    r->again = dropped ? dropped + holders * OPQ_HISTORY_MAX : NULL;
    if (dropped == NULL && status == OPQ_OK) {
        status = OPQ_NO_MEMORY;
        message = "out of memory";
    }
    for (int i = 0; i < value_count; i++) {
        atomic_fetch_sub_explicit(&ctx->pending, 1, memory_order_relaxed);
        if (results && results[i] && dropped)
            compute_value(values[i], results[i], dropped, &count);
        else
            fail_value(r, values[i], status, message, &count);
    }
    opq_spin_unlock(&ctx->lock);
    for (int i = 0; i < value_count; i++)
        opq_value_drop_operands(values[i]);
    for (int i = 0; i < count; i++)
        opq_value_release(dropped[i]);
    for (int i = 0; i < value_count && results && dropped == NULL; i++)
        opq_buffer_release(results[i]);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s", message);
}

/* ---- the stages */

/* Moves the outputs that have results to the front; gives their number. */
static int computed_first(run *r, int count)
{
    int computed = 0;
    for (int i = 0; i < count; i++) {
        if (r->results == NULL || r->results[i] == NULL)
            continue;
        opq_value *value = r->outputs[i];
        r->outputs[i] = r->outputs[computed];
        r->outputs[computed] = value;
        opq_buffer *buffer = r->results[i];
        r->results[i] = NULL;
        r->results[computed++] = buffer;
    }
    return computed;
}

/* r->failed_apart: no plan could be built or started, or a kernel failed, which says nothing about each of its values: those without a
 * result are pending as before. */
static opq_status run_values(run *r, opq_value *const *values, int count, const opq_scope *scope)
{
    char message[1024];
    OPQ_TRY(opq_snapshot_collect(r->ctx, values, count, scope, r->room, &r->snapshot));
    const opq_snapshot *s = &r->snapshot;
    if (s->outputs.count == 0)
        return OPQ_OK;
    r->outputs = opq_room_take(r->room, (size_t)s->outputs.count * sizeof *r->outputs);
    if (r->outputs == NULL)
        return out_of_memory();
    for (int i = 0; i < s->outputs.count; i++)
        r->outputs[i] = opq_snapshot_output(s, i);
    r->mixed = true; /* until the run says something else */
    opq_status status = find_plan(r);
    if (status == OPQ_OK && r->recorder) {
        opq_recorder_plan(r->recorder, r->plan, r->why);
        r->why = NULL;
    }
    if (status == OPQ_OK)
        status = execute(r);
    if (status != OPQ_OK || r->ctx->repro.dir)
        status = opq_repro_end(&r->ctx->repro, s, r->plan != NULL, status);
    int computed = status == OPQ_OK ? s->outputs.count : computed_first(r, s->outputs.count);
    r->failed_apart = status != OPQ_OK && r->mixed && s->outputs.count - computed > 1;
    if (r->failed_apart)
        return computed ? commit(r, r->outputs, computed, r->results, OPQ_OK, "") : status;
    if (status != OPQ_OK)
        copy_message(message, sizeof message);
    return commit(r, r->outputs, s->outputs.count, r->results, status, message);
}

static void drop_run(run *r)
{
    free(r->why);
    opq_plan_release(r->plan);
    opq_plan_release(r->lines);
    opq_snapshot_unpin(&r->snapshot);
    for (int i = 0; i < r->again_count; i++)
        opq_value_release(r->again[i]);
    opq_room_drop(r->room);
}

static const opq_scope nothing_else = {OPQ_SCOPE_asked, 0, true};

/* One value with what it needs. What its cell goes back to if it fails is computed in turn, so that it holds the newest good value. */
static opq_status run_alone(opq_ctx *ctx, opq_value *value, const run *like)
{
    opq_room room;
    run r = {
        .ctx = ctx, .room = &room, .recorder = like->recorder, .watched = like->watched, .whole_steps = like->whole_steps};
    char message[1024];
    opq_room_init(&room);
    opq_status status = run_values(&r, &value, 1, &nothing_else);
    copy_message(message, sizeof message);
    if (value->state == OPQ_VALUE_pending)                   /* what it is made from failed earlier */
        (void)!commit(&r, &value, 1, NULL, status, message); /* it fails with the error that there is already */
    for (int i = 0; i < r.again_count; i++)
        (void)!run_alone(ctx, r.again[i], like);
    drop_run(&r);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s", message);
}

/* Each output that a failed run left, in record order: only what cannot be computed by itself fails. */
static opq_status run_one_by_one(run *r)
{
    const opq_codes *outputs = &r->snapshot.outputs;
    opq_status first = OPQ_OK;
    char message[1024] = "";
    for (int i = 0; i < outputs->count; i++) {
        opq_value *value = opq_snapshot_output(&r->snapshot, i);
        if (value->state != OPQ_VALUE_pending)
            continue;
        opq_status status = run_alone(r->ctx, value, r);
        if (status != OPQ_OK && first == OPQ_OK) {
            first = status;
            copy_message(message, sizeof message);
        }
    }
    return first == OPQ_OK ? OPQ_OK : opq_fail(first, "%s", message);
}

/* An error belongs to those who asked for what it spoiled. */
static opq_status error_of(opq_value *const *values, int count)
{
    for (int i = 0; i < count; i++)
        if (values[i]->state == OPQ_VALUE_failed)
            return opq_fail(values[i]->error_status, "%s", values[i]->error);
    return OPQ_OK;
}

static _Thread_local opq_ctx *running;
opq_ctx *opq_running(void) { return running; }

static opq_status run_locked(opq_ctx *ctx, opq_value *const *values, int count, const opq_scope *scope, opq_reason reason)
{
    opq_room room;
    run r = {.ctx = ctx,
             .room = &room,
             .recorder = opq_recorder_get(),
             .watched = opq_watched(&ctx->host),
             .whole_steps = reason == OPQ_REASON_optimizer_step};
    char message[1024];
    opq_room_init(&room);
    pthread_mutex_lock(&ctx->run_lock);
    running = ctx;
    void *activity = r.watched ? begin_activity(&r, OPQ_ACTIVITY_run, opq_reason_name(reason)) : NULL;
    opq_status status = run_values(&r, values, count, scope);
    if (r.failed_apart)
        status = run_one_by_one(&r);
    if (status != OPQ_OK)
        copy_message(message, sizeof message);
    for (int i = 0; i < r.again_count; i++)
        (void)!run_alone(ctx, r.again[i], &r);
    drop_run(&r);
    opq_activity_end(&ctx->host, activity);
    running = NULL;
    pthread_mutex_unlock(&ctx->run_lock);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s", message);
}

static opq_status check_allowed(opq_reason reason)
{
    if ((opq_modes_get() & OPQ_MODE_FORBID_SYNC) && opq_reason_hidden(reason))
        return opq_fail(OPQ_INVALID, "forbid_sync: pending work would run here (reason: %s)", opq_reason_name(reason));
    return OPQ_OK;
}

/* Does a user look at a value, so that all that stands before it has to be done? */
static bool observes(opq_reason reason)
{
    switch (reason) {
    case OPQ_REASON_item:
    case OPQ_REASON_copy_to_host:
    case OPQ_REASON_print:
    case OPQ_REASON_extern_now:
    case OPQ_REASON_collective:
    case OPQ_REASON_reinterpret:
    case OPQ_REASON_optimizer_step: return true;
    case OPQ_REASON_synchronize:
    case OPQ_REASON_bound:
    case OPQ_REASON_inspect:
    case OPQ_REASON_eager:
    case OPQ_REASON_COUNT: break;
    }
    return false;
}

opq_status opq_materialize(opq_ctx *ctx, opq_value *const *values, int count, opq_reason reason)
{
    bool any = false;
    opq_scope scope = {observes(reason) ? OPQ_SCOPE_origin : OPQ_SCOPE_asked, opq_origin_get(), true};
    for (int i = 0; i < count; i++)
        any = any || values[i]->state == OPQ_VALUE_pending;
    if (!any)
        return error_of(values, count);
    OPQ_TRY(check_allowed(reason));
    atomic_fetch_add(&ctx->stats.flushes[reason], 1);
    return run_locked(ctx, values, count, &scope, reason);
}

/* One run for each thread that recorded: what several threads happen to have pending at once would make a new plan each time. An error
 * in what another thread recorded waits for whoever reads the value. */
opq_status opq_synchronize(opq_ctx *ctx, opq_reason reason)
{
    opq_room room;
    uint32_t *origins;
    int count;
    char message[1024];
    opq_status own;
    opq_room_init(&room);
    message[0] = 0;
    own = opq_snapshot_origins(ctx, &room, &origins, &count);
    if (own == OPQ_OK && count > 0)
        own = check_allowed(reason);
    if (own != OPQ_OK)
        count = 0;
    if (count > 0)
        atomic_fetch_add(&ctx->stats.flushes[reason], 1);
    for (int i = 0; i < count; i++) {
        opq_scope scope = {OPQ_SCOPE_origin, origins[i], true};
        opq_status status = run_locked(ctx, NULL, 0, &scope, reason);
        if (status != OPQ_OK && origins[i] == opq_origin_get()) {
            own = status;
            copy_message(message, sizeof message);
        }
    }
    opq_room_drop(&room);
    return own == OPQ_OK || !*message ? own : opq_fail(own, "%s", message);
}

/* Once too much is pending, everything held runs, cut where the ops recorded last are those of the last cut: iterations of a loop then
 * are equal graphs. A sequence that does not repeat is cut at twice the bound. */
opq_status opq_bound_check(opq_ctx *ctx, opq_op op, const opq_type *type)
{
    int pending = atomic_load_explicit(&ctx->pending, memory_order_relaxed);
    uint64_t item = (uint64_t)op * 0x9e3779b97f4a7c15ull ^ (uint64_t)opq_type_count(type) * 0xc2b2ae3d27d4eb4full;
    unsigned at = atomic_load_explicit(&ctx->window_at, memory_order_relaxed) + 1;
    atomic_store_explicit(&ctx->window_at, at, memory_order_relaxed);
    atomic_store_explicit(&ctx->window[at % OPQ_WINDOW], item, memory_order_relaxed);
    if (pending < OPQ_PENDING_MAX)
        return OPQ_OK;
    uint64_t window = 0;
    for (unsigned i = 1; i <= OPQ_WINDOW; i++)
        window =
            window * 0x100000001b3ull ^ atomic_load_explicit(&ctx->window[(at + i) % OPQ_WINDOW], memory_order_relaxed);
    uint64_t cut = atomic_load_explicit(&ctx->cut_window, memory_order_relaxed);
    if (cut != 0 && window != cut && pending < 2 * OPQ_PENDING_MAX)
        return OPQ_OK;
    atomic_store_explicit(&ctx->cut_window, window, memory_order_relaxed);
    return opq_synchronize(ctx, OPQ_REASON_bound);
}
