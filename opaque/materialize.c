/* From pending to computed: snapshot, key, plan (found or compiled), run, results. */
#include "opaque/capturing.h"
#include "opaque/log.h"
#include "opaque/pieces.h"
#include "runtime/activity.h"
#include "graph/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- one run */

typedef struct run {
    opq_runner runner;
    opq_snapshot snapshot, captured; /* captured: as a captured function has it, if it is one's */
    opq_execution planned;           /* of all of it */
    bool has_plan;                   /* or each of its pieces has one: what fails then failed as it ran */
    bool mixed, failed_apart;
    bool comes_again; /* in pieces, or came so before */
    bool is_captured;
    bool whole_steps; /* a cell goes back to its last computed value, not to the last good write */
    opq_value **outputs;
    opq_buffer **results;
    opq_value **dropped; /* room for what committing lets go, then for `again` */
    opq_value **again;   /* what cells went back to and is still to be computed */
    int again_count;
    opq_room room; /* memory of all that */
} run;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory"); }

static void copy_message(char *out, size_t size)
{
    strncpy(out, opq_error(), size - 1);
    out[size - 1] = 0;
}

/* ---- the ways to run */

static const unsigned whole = OPQ_MODE_EAGER | OPQ_MODE_UNFUSED | OPQ_MODE_PLANNED;

/* Makes the plan that is wanted; *out_tier: how the run goes. What is limited first takes the kernels that are there, at once; what has to be compiled is
 * for the background, if somebody is there. */
static opq_status make_plan(run *r, const opq_tiers_graph *graph, opq_choice choice, opq_tier_kind *out_tier)
{
    opq_execution *p = &r->planned;
    const opq_allowance nothing = {0}, *allowance = choice.limited ? &choice.allowance : NULL;
    bool taken = false;
    if (choice.tier == OPQ_TIER_plan && allowance == NULL)
        return OPQ_OK; /* run_planned() makes it */
    if (choice.tier == OPQ_TIER_plan) {
        p->allowance = &nothing;
        OPQ_TRY(opq_execution_build(p));
    }
    if (p->plan == NULL)
        OPQ_TRY(opq_execution_build_in_background(p, graph, allowance, &taken));
    p->allowance = allowance;
    if (p->plan == NULL && !taken && allowance)
        OPQ_TRY(opq_execution_build(p));
    p->allowance = NULL;
    *out_tier = p->plan || !(taken || allowance) ? OPQ_TIER_plan : taken ? OPQ_TIER_background : OPQ_TIER_pieces;
    return OPQ_OK;
}

/* found: there is a plan for all of it. */
static opq_status choose_tier(run *r, bool found, opq_tier_kind *out_tier)
{
    opq_tiers *tiers = &r->runner.ctx->tiers;
    const opq_snapshot *s = r->planned.snapshot;
    *out_tier = OPQ_TIER_plan;
    if (r->runner.recorder || tiers->mode == OPQ_TIERS_off || opq_modes_get() & whole)
        return OPQ_OK;
    opq_tiers_graph graph = {0};
    if (!found)
        graph = opq_pieces_weighed(s);
    opq_choice choice = opq_tiers_choose(tiers, &graph, found);
    r->comes_again = choice.again;
    if ((found && choice.tier == OPQ_TIER_plan) || !opq_pieces_possible(s))
        return OPQ_OK;
    *out_tier = choice.tier;
    return choice.tier == OPQ_TIER_pieces || found ? OPQ_OK : make_plan(r, &graph, choice, out_tier);
}

/* What a run of it does when nobody looks. */
static opq_tier tier_of(const run *r, const opq_snapshot *s, bool found)
{
    opq_tiers_graph graph = opq_pieces_weighed(s);
    if (found)
        graph.seconds = 0;
    opq_tier tier = opq_tiers_known(&r->runner.ctx->tiers, &graph, found);
    if (tier.kind != OPQ_TIER_plan && opq_modes_get() & whole)
        tier.kind = OPQ_TIER_mode;
    else if (tier.kind != OPQ_TIER_plan && !opq_pieces_possible(s))
        tier.kind = OPQ_TIER_whole;
    else if (tier.kind == OPQ_TIER_pieces && opq_background_has(&r->runner.ctx->background, s->key, s->key_bytes))
        tier.kind = OPQ_TIER_background;
    return tier;
}

static _Thread_local opq_tier logged;
opq_tier opq_tier_logged(void) { return logged; }

static opq_status run_pieces(run *r, opq_tier_kind tier)
{
    opq_ctx *ctx = r->runner.ctx;
    const opq_snapshot *s = r->planned.snapshot;
    bool looked_at = opq_execution_is_looked_at(&r->planned);
    opq_plan *joined = looked_at ? NULL : r->planned.joined;
    if (opq_logs(OPQ_LOG_flush, OPQ_LOG_INFO))
        logged = tier_of(r, s, false);
    atomic_fetch_add(&ctx->stats.runs_in_pieces, 1);
    r->results = opq_room_take(&r->room, (size_t)s->outputs.count * sizeof *r->results);
    if (r->results == NULL)
        return out_of_memory();
    if (joined && opq_pieces_run_joined(&r->runner, s, joined, r->results)) {
        r->has_plan = true;
        r->mixed = false;
        return OPQ_OK;
    }
    opq_pieces_result result = {.outputs = r->results, .join = r->comes_again && !joined && !looked_at};
    opq_status status = opq_pieces_run(&r->runner, s, tier, &result);
    r->has_plan = result.planned;
    r->mixed = result.mixed;
    if (result.joined)
        opq_plan_cache_keep(ctx->plans, s->key, s->key_bytes, result.joined);
    opq_plan_release(result.joined);
    return status;
}

static opq_status run_planned(run *r)
{
    opq_execution *p = &r->planned;
    opq_tier unwatched = r->runner.recorder ? tier_of(r, p->snapshot, p->reused) : (opq_tier){0};
    if (p->plan == NULL)
        OPQ_TRY(opq_execution_build(p));
    r->has_plan = true;
    if (r->runner.recorder) {
        opq_recorder_plan(r->runner.recorder, p->plan, p->why, &unwatched);
        p->why = NULL;
    }
    opq_status status = opq_execution_run(p);
    r->results = p->results;
    r->mixed = p->mixed;
    return status;
}

static opq_status execute(run *r)
{
    opq_ctx *ctx = r->runner.ctx;
    opq_execution *p = &r->planned;
    bool found;
    opq_tier_kind tier;
    if (r->is_captured)
        OPQ_TRY(opq_snapshot_captured(&r->snapshot, &r->captured));
    *p = (opq_execution){.runner = &r->runner, .given = r->is_captured ? &r->captured : &r->snapshot, .in_place = true};
    OPQ_TRY(opq_execution_find(p, !r->is_captured, &found));
    if (ctx->repro.dir)
        opq_repro_begin(&ctx->repro, p);
    OPQ_TRY(choose_tier(r, found, &tier));
    return tier == OPQ_TIER_plan ? run_planned(r) : run_pieces(r, tier);
}

/* What was compiled meanwhile is not counted as running. */
static opq_status execute_timed(run *r)
{
    opq_ctx *ctx = r->runner.ctx;
    long long before = atomic_load(&ctx->stats.compile_nanoseconds);
    double start = opq_now();
    opq_status status = execute(r);
    long long compiling = atomic_load(&ctx->stats.compile_nanoseconds) - before;
    double ran = opq_now() - start - (double)compiling * 1e-9;
    atomic_fetch_add(&ctx->stats.run_nanoseconds, (long long)(ran * 1e9));
    opq_pool_tend(ctx->runtime.pool, ran);
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
    opq_ctx *ctx = r->runner.ctx;
    opq_spin_lock(&ctx->lock);
    int holders = count_holders(values, value_count), count = 0;
    opq_value **dropped = r->dropped = opq_room_take(&r->room, (size_t)holders * (OPQ_HISTORY_MAX + 1) * sizeof *dropped);
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
    opq_ctx *ctx = r->runner.ctx;
    OPQ_TRY(opq_snapshot_collect(ctx, values, count, scope, &r->room, &r->snapshot));
    const opq_snapshot *s = &r->snapshot;
    if (s->outputs.count == 0)
        return OPQ_OK;
    r->outputs = opq_room_take(&r->room, (size_t)s->outputs.count * sizeof *r->outputs);
    if (r->outputs == NULL)
        return out_of_memory();
    for (int i = 0; i < s->outputs.count; i++)
        r->outputs[i] = opq_snapshot_output(s, i);
    r->is_captured = scope->captured;
    r->mixed = true; /* until the run says something else */
    opq_status status = execute_timed(r);
    if (status != OPQ_OK || ctx->repro.dir)
        status = opq_repro_end(&ctx->repro, &r->planned, r->has_plan, status);
    int computed = status == OPQ_OK ? s->outputs.count : computed_first(r, s->outputs.count);
    r->failed_apart = status != OPQ_OK && r->mixed && s->outputs.count - computed > 1;
    if (r->failed_apart)
        return computed ? commit(r, r->outputs, computed, r->results, OPQ_OK, "") : status;
    if (status != OPQ_OK)
        copy_message(message, sizeof message);
    return commit(r, r->outputs, s->outputs.count, r->results, status, message);
}

static void start_run(run *r, opq_ctx *ctx, struct opq_recorder *recorder, bool watched, bool whole_steps)
{
    memset(r, 0, offsetof(run, room));
    opq_room_init(&r->room);
    r->room.spares = &ctx->spares;
    r->runner = (opq_runner){ctx, &r->room, recorder, watched};
    r->whole_steps = whole_steps;
}

static void drop_run(run *r)
{
    opq_execution_drop(&r->planned);
    opq_snapshot_unpin(&r->snapshot);
    for (int i = 0; i < r->again_count; i++)
        opq_value_release(r->again[i]);
    opq_room_drop(&r->room);
}

static const opq_scope nothing_else = {.kind = OPQ_SCOPE_asked, .runs = true};

/* One value with what it needs. What its cell goes back to if it fails is computed in turn, so that it holds the newest good value. */
static opq_status run_alone(opq_ctx *ctx, opq_value *value, const run *like)
{
    run r;
    char message[1024];
    start_run(&r, ctx, like->runner.recorder, like->runner.watched, like->whole_steps);
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
        opq_status status = run_alone(r->runner.ctx, value, r);
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

void opq_run_enter(opq_ctx *ctx)
{
    pthread_mutex_lock(&ctx->run_lock);
    running = ctx;
    opq_execution_collect(ctx);
}

bool opq_run_try_enter(opq_ctx *ctx)
{
    if (pthread_mutex_trylock(&ctx->run_lock) != 0)
        return false;
    running = ctx;
    opq_execution_collect(ctx);
    return true;
}

void opq_run_leave(opq_ctx *ctx)
{
    running = NULL;
    pthread_mutex_unlock(&ctx->run_lock);
}

opq_status opq_run_pending(opq_ctx *ctx, opq_value *const *values, int count, const opq_scope *scope, opq_reason reason)
{
    run r;
    char message[1024];
    start_run(&r, ctx, opq_recorder_get(), opq_watched(&ctx->host), reason == OPQ_REASON_optimizer_step);
    opq_run_enter(ctx);
    void *activity = r.runner.watched ? opq_activity_begin(&ctx->host, OPQ_ACTIVITY_run, opq_reason_name(reason)) : NULL;
    opq_status status = run_values(&r, values, count, scope);
    if (r.failed_apart)
        status = run_one_by_one(&r);
    if (status != OPQ_OK)
        copy_message(message, sizeof message);
    for (int i = 0; i < r.again_count; i++)
        (void)!run_alone(ctx, r.again[i], &r);
    drop_run(&r);
    opq_activity_end(&ctx->host, activity);
    opq_run_leave(ctx);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s", message);
}

static opq_status check_allowed(opq_ctx *ctx, opq_reason reason)
{
    OPQ_TRY(opq_capturing_forbids(ctx, reason));
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
    case OPQ_REASON_capture:
    case OPQ_REASON_COUNT: break;
    }
    return false;
}

static opq_status materialize(opq_ctx *ctx, opq_value *const *values, int count, opq_reason reason, bool captured)
{
    bool any = false;
    opq_scope scope = {.kind = observes(reason) ? OPQ_SCOPE_origin : OPQ_SCOPE_asked,
                       .origin = opq_origin_get(),
                       .runs = true,
                       .captured = captured};
    for (int i = 0; i < count; i++)
        any = any || values[i]->state == OPQ_VALUE_pending;
    if (!any)
        return error_of(values, count);
    OPQ_TRY(check_allowed(ctx, reason));
    atomic_fetch_add(&ctx->stats.flushes[reason], 1);
    return opq_run_pending(ctx, values, count, &scope, reason);
}

opq_status opq_materialize(opq_ctx *ctx, opq_value *const *values, int count, opq_reason reason)
{
    return materialize(ctx, values, count, reason, false);
}

opq_status opq_materialize_captured(opq_ctx *ctx, opq_value *const *values, int count)
{
    return materialize(ctx, values, count, OPQ_REASON_capture, true);
}

void opq_plans_wait(opq_ctx *ctx)
{
    opq_background_wait(&ctx->background);
    pthread_mutex_lock(&ctx->run_lock);
    opq_execution_collect(ctx);
    pthread_mutex_unlock(&ctx->run_lock);
}

void opq_plans_end(opq_ctx *ctx) { opq_background_end(&ctx->background); }

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
        own = check_allowed(ctx, reason);
    if (own != OPQ_OK)
        count = 0;
    if (count > 0)
        atomic_fetch_add(&ctx->stats.flushes[reason], 1);
    for (int i = 0; i < count; i++) {
        opq_scope scope = {.kind = OPQ_SCOPE_origin, .origin = origins[i], .runs = true};
        opq_status status = opq_run_pending(ctx, NULL, 0, &scope, reason);
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
    if (pending < OPQ_PENDING_MAX || opq_capturing_here(ctx))
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
