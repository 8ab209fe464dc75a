/* From pending to computed: cone, key, plan (found or compiled), run, results. */
#include "opaque/context.h"

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

typedef struct flight {
    opq_ctx *ctx;
    opq_cone cone;
    opq_plan *plan, *lines; /* lines: see plan_with_lines */
    bool reused;
    bool whole_steps; /* a cell goes back to its last computed value, not to the last good write */
    opq_buffer **inputs, **results;
    opq_number *scalars;
    struct opq_recorder *recorder;
    opq_value **dropped; /* room for what settling lets go, then for `again` */
    opq_value **again;   /* what cells went back to and is still to be computed */
    int again_count;
} flight;

static opq_status build_plan(flight *f, opq_plan **out_plan)
{
    opq_graph *graph = NULL;
    opq_fusion fusion = opq_modes_get() & OPQ_MODE_UNFUSED ? OPQ_UNFUSED : OPQ_FUSED;
    OPQ_TRY(opq_cone_graph(f->ctx, &f->cone, "g", &graph));
    opq_status status = opq_plan_compile(&f->ctx->runtime, graph, fusion, out_plan);
    opq_graph_destroy(graph);
    return status;
}

/* For a failure: a reused plan has the lines of the graph it was built for, so it is built again (nothing is compiled). */
static const opq_plan *plan_with_lines(void *data)
{
    flight *f = data;
    char message[1024];
    if (!f->reused || f->lines)
        return f->lines;
    strncpy(message, opq_error(), sizeof message - 1);
    message[sizeof message - 1] = 0;
    opq_status status = build_plan(f, &f->lines);
    if (status != OPQ_OK)
        f->lines = NULL;
    (void)opq_fail(status, "%s", message); /* the failure that is told is the run's */
    return f->lines;
}

static opq_status compile(flight *f)
{
    double start = now();
    OPQ_TRY(build_plan(f, &f->plan));
    atomic_fetch_add(&f->ctx->stats.plans_built, 1);
    atomic_fetch_add(&f->ctx->stats.kernels_compiled, f->plan->compiled);
    atomic_fetch_add(&f->ctx->stats.compile_nanoseconds, (long long)((now() - start) * 1e9));
    opq_plan_cache_keep(f->ctx->plans, f->cone.key, f->cone.key_bytes, f->plan);
    return OPQ_OK;
}

static void note_step(void *data, const opq_step *step, double seconds, double compile_seconds)
{
    flight *f = data;
    if (step->kind == OPQ_KERNEL_extern) {
        atomic_fetch_add(&f->ctx->stats.extern_calls, 1);
    } else {
        atomic_fetch_add(&f->ctx->stats.kernels_run, 1);
        atomic_fetch_add(&f->ctx->stats.bytes_read, step->bytes_read);
        atomic_fetch_add(&f->ctx->stats.bytes_written, step->bytes_written);
    }
    if (f->recorder)
        opq_recorder_step(f->recorder, step, seconds, compile_seconds);
}

static opq_status run(flight *f)
{
    const opq_cone *cone = &f->cone;
    f->inputs = calloc((size_t)(cone->leaf_count + cone->output_count) + 1, sizeof *f->inputs);
    f->scalars = calloc((size_t)cone->scalar_count + 1, sizeof *f->scalars);
    if (f->inputs == NULL || f->scalars == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    f->results = f->inputs + cone->leaf_count;
    for (int i = 0; i < cone->leaf_count; i++)
        f->inputs[i] = cone->leaves[i]->buffer;
    for (int i = 0; i < cone->scalar_count; i++)
        f->scalars[i] = cone->scalars[i]->scalar;
    double start = now(), compiled = opq_gemm_compile_seconds(f->ctx->runtime.gemm);
    opq_run_call call = {.inputs = f->inputs,
                         .scalars = f->scalars,
                         .outputs = f->results,
                         .note = note_step,
                         .note_data = f,
                         .timed = f->recorder != NULL,
                         .lines_of = plan_with_lines,
                         .lines_data = f};
    opq_status status = opq_plan_run(&f->ctx->runtime, f->plan, &call);
    compiled = opq_gemm_compile_seconds(f->ctx->runtime.gemm) - compiled;
    atomic_fetch_add(&f->ctx->stats.compile_nanoseconds, (long long)(compiled * 1e9));
    atomic_fetch_add(&f->ctx->stats.run_nanoseconds, (long long)((now() - start - compiled) * 1e9));
    return status;
}

/* With the lock held. A cell whose new value failed goes back to the one before; a pending one is still to be computed, which may fail
 * in turn. After an optimizer's step it goes back to where the step began: half a step (decayed, but not updated) is no state that
 * anybody asked for. f->again has room for each holder, or is NULL if there is no memory to go back with. */
static void fail_value(flight *f, opq_value *value, opq_status status, const char *message, int *dropped_count)
{
    char *copy = strdup(message);
    value->error = copy ? copy : strdup("");
    value->error_status = status;
    atomic_store_explicit(&value->state, OPQ_VALUE_failed, memory_order_release);
    for (opq_cell *cell = f->again ? value->holders : NULL, *next; cell; cell = next) {
        next = cell->next_holder;
        bool to_start = f->whole_steps && cell->history_count > 0 && cell->history[0]->state == OPQ_VALUE_computed;
        bool gap = cell->history_lost && cell->history_count == 1; /* writes on top of the oldest are gone */
        if (cell->history_count == 0 || (gap && cell->history[0]->state != OPQ_VALUE_computed))
            continue;
        while (to_start && cell->history_count > 1)
            f->dropped[(*dropped_count)++] = cell->history[--cell->history_count];
        opq_value *back = cell->history[--cell->history_count];
        opq_cell_hold(cell, back);
        atomic_fetch_sub(&value->refs, 1); /* the cell's; ours is still there */
        if (back->state == OPQ_VALUE_pending) {
            opq_value_retain(back);
            f->again[f->again_count++] = back;
        }
    }
}

static void compute_value(opq_value *value, opq_buffer *buffer, opq_value **dropped, int *count)
{
    value->buffer = buffer;
    atomic_store_explicit(&value->state, OPQ_VALUE_computed, memory_order_release);
    for (opq_cell *cell = value->holders; cell; cell = cell->next_holder)
        *count += opq_cell_forget(cell, dropped + *count);
}

static int count_holders(const opq_cone *cone)
{
    int total = 0;
    for (int i = 0; i < cone->output_count; i++)
        for (const opq_cell *cell = cone->outputs[i]->holders; cell; cell = cell->next_holder)
            total++;
    return total;
}

/* Results become leaves. Payloads and operands go after the lock is let go. */
static void settle(flight *f, opq_status status, const char *message)
{
    opq_ctx *ctx = f->ctx;
    const opq_cone *cone = &f->cone;
    opq_spin_lock(&ctx->lock);
    int holders = count_holders(cone), count = 0;
    opq_value **dropped = f->dropped = malloc(((size_t)holders * (OPQ_HISTORY_MAX + 1) + 1) * sizeof *dropped);
    f->again = dropped ? dropped + holders * OPQ_HISTORY_MAX : NULL;
    for (int i = 0; i < cone->output_count; i++) {
        opq_value *value = cone->outputs[i];
        atomic_fetch_sub_explicit(&ctx->pending, 1, memory_order_relaxed);
        if (f->results && f->results[i] && dropped)
            compute_value(value, f->results[i], dropped, &count);
        else
            fail_value(f, value, status == OPQ_OK ? OPQ_NO_MEMORY : status, message, &count);
    }
    opq_spin_unlock(&ctx->lock);
    for (int i = 0; i < cone->output_count; i++)
        opq_value_drop_operands(cone->outputs[i]);
    for (int i = 0; i < count; i++)
        opq_value_release(dropped[i]);
}

static void pin(const opq_cone *cone, bool hold)
{
    for (int i = 0; i < cone->output_count; i++)
        if (hold)
            opq_value_retain(cone->outputs[i]);
        else
            opq_value_release(cone->outputs[i]);
}

static opq_status fly(flight *f, opq_value *const *values, int count)
{
    opq_ctx *ctx = f->ctx;
    opq_spin_lock(&ctx->lock);
    opq_status status = opq_cone_collect(ctx, values, count, &f->cone);
    if (status == OPQ_OK && f->cone.output_count > 0)
        status = opq_cone_key(&f->cone, opq_modes_get() & OPQ_MODE_UNFUSED ? 1 : 0);
    if (status == OPQ_OK && f->cone.output_count > 0)
        pin(&f->cone, true);
    opq_spin_unlock(&ctx->lock);
    if (status != OPQ_OK || f->cone.output_count == 0)
        return status;
    f->plan = opq_plan_cache_find(ctx->plans, f->cone.key, f->cone.key_bytes);
    f->reused = f->plan != NULL;
    if (f->reused)
        atomic_fetch_add(&ctx->stats.plans_reused, 1);
    else
        status = compile(f);
    bool compiled = status == OPQ_OK;
    if (compiled && f->recorder)
        opq_recorder_plan(f->recorder, f->plan, f->reused);
    if (compiled)
        status = run(f);
    char message[1024];
    strncpy(message, opq_error(), sizeof message - 1);
    message[sizeof message - 1] = 0;
    settle(f, status, message);
    pin(&f->cone, false);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s", message);
}

static void end_flight(flight *f)
{
    opq_plan_release(f->plan);
    opq_plan_release(f->lines);
    opq_cone_drop(&f->cone);
    free(f->inputs);
    free(f->scalars);
    for (int i = 0; i < f->again_count; i++)
        opq_value_release(f->again[i]);
    free(f->dropped);
}

/* Computes what cells went back to, one after the other, so that those whose newest value failed hold the newest good one. */
static void recover(opq_ctx *ctx, opq_value *const *again, int count)
{
    for (int i = 0; i < count; i++) {
        flight f = {.ctx = ctx};
        opq_status status = fly(&f, &again[i], 1);
        opq_value *poisoned = again[i];
        if (poisoned->state == OPQ_VALUE_pending) { /* what it is made from failed earlier */
            opq_cone_drop(&f.cone);
            f.cone = (opq_cone){.outputs = &poisoned, .output_count = 1};
            settle(&f, status, opq_error());
            memset(&f.cone, 0, sizeof f.cone);
        }
        recover(ctx, f.again, f.again_count);
        end_flight(&f);
    }
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

opq_status opq_materialize(opq_ctx *ctx, opq_value *const *values, int count, opq_reason reason)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        any = any || values[i]->state == OPQ_VALUE_pending;
    if (!any)
        return error_of(values, count);
    if ((opq_modes_get() & OPQ_MODE_FORBID_SYNC) && opq_reason_hidden(reason))
        return opq_fail(OPQ_INVALID, "forbid_sync: pending work would run here (reason: %s)", opq_reason_name(reason));
    pthread_mutex_lock(&ctx->run_lock);
    running = ctx;
    flight f = {.ctx = ctx, .recorder = opq_recorder_get(), .whole_steps = reason == OPQ_REASON_optimizer_step};
    atomic_fetch_add(&ctx->stats.flushes[reason], 1);
    opq_status status = fly(&f, values, count);
    if (f.again_count > 0) {
        char message[1024];
        strncpy(message, opq_error(), sizeof message - 1);
        message[sizeof message - 1] = 0;
        recover(ctx, f.again, f.again_count);
        status = opq_fail(status, "%s", message);
    }
    end_flight(&f);
    running = NULL;
    pthread_mutex_unlock(&ctx->run_lock);
    return status;
}

/* ---- everything that is held */

static opq_status held_values(opq_ctx *ctx, opq_value ***out_values, int *out_count)
{
    int count = 0, at = 0;
    opq_spin_lock(&ctx->lock);
    for (const opq_cell *cell = ctx->cells; cell; cell = cell->next)
        count += cell->value && cell->value->state == OPQ_VALUE_pending;
    opq_value **values = malloc(((size_t)count + 1) * sizeof *values);
    for (const opq_cell *cell = ctx->cells; values && cell; cell = cell->next)
        if (cell->value && cell->value->state == OPQ_VALUE_pending) {
            values[at++] = cell->value;
            opq_value_retain(cell->value);
        }
    opq_spin_unlock(&ctx->lock);
    *out_values = values;
    *out_count = at;
    return values ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
}

/* A value whose ancestor failed earlier is passed over: its error waits for whoever reads it. */
static int without_failed(opq_ctx *ctx, opq_value **values, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++) {
        opq_cone cone;
        opq_spin_lock(&ctx->lock);
        bool good = opq_cone_collect(ctx, &values[i], 1, &cone) == OPQ_OK;
        opq_spin_unlock(&ctx->lock);
        opq_cone_drop(&cone);
        if (good)
            values[kept++] = values[i];
        else
            opq_value_release(values[i]);
    }
    return kept;
}

opq_status opq_synchronize(opq_ctx *ctx, opq_reason reason)
{
    opq_value **values;
    int count;
    OPQ_TRY(held_values(ctx, &values, &count));
    opq_cone cone;
    opq_spin_lock(&ctx->lock);
    bool poisoned = opq_cone_collect(ctx, values, count, &cone) != OPQ_OK;
    opq_spin_unlock(&ctx->lock);
    opq_cone_drop(&cone);
    if (poisoned)
        count = without_failed(ctx, values, count);
    opq_status status = opq_materialize(ctx, values, count, reason);
    for (int i = 0; i < count; i++)
        opq_value_release(values[i]);
    free(values);
    return status;
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
