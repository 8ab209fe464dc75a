/* One call of a capture: what its cells hold goes in, the plan runs, and what comes out goes to cells and to the caller. Nothing is written before
 * all is computed but memory that the plan may replace, which is from where no step can fail. */
#include "opaque/capture_plan.h"
#include "opaque/execution.h"
#include "graph/clock.h"
#include "graph/eval.h"
#include "runtime/activity.h"

#include <string.h>

typedef struct call {
    opq_capture *capture;
    const opq_capture_call *given;
    opq_value **held;     /* per cell: what it holds, a reference; NULL: nobody reads it */
    opq_buffer **inputs;  /* per leaf */
    int64_t *firsts;      /* per leaf: bytes of its buffer before it */
    opq_buffer **outputs; /* per output, references */
    opq_value **values;   /* per output, references */
    opq_number *numbers;
    int32_t *replaces;
    bool waits;
    opq_room room;
} call;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory"); }

static opq_status allocate(call *r)
{
    const opq_capture *c = r->capture;
    size_t pointers = (size_t)c->cell_count + (size_t)c->leaf_count + 2 * (size_t)c->output_count;
    void **all = opq_room_take(&r->room, pointers * sizeof *all);
    r->firsts = opq_room_take(&r->room, (size_t)c->leaf_count * sizeof *r->firsts);
    r->numbers = opq_room_take(&r->room, (size_t)c->number_count * sizeof *r->numbers);
    r->replaces = opq_room_take(&r->room, (size_t)c->output_count * sizeof *r->replaces);
    if (all == NULL || r->firsts == NULL || r->numbers == NULL || r->replaces == NULL)
        return out_of_memory();
    memset(all, 0, pointers * sizeof *all);
    r->held = (opq_value **)all;
    r->inputs = (opq_buffer **)all + c->cell_count;
    r->outputs = r->inputs + c->leaf_count;
    r->values = (opq_value **)(r->outputs + c->output_count);
    return OPQ_OK;
}

/* ---- what goes in */

static void let_go(call *r)
{
    for (int i = 0; i < r->capture->cell_count; i++) {
        opq_value_release(r->held[i]);
        r->held[i] = NULL;
    }
}

/* *out_pending: of what is still to be computed. */
static opq_status take(call *r, int *out_pending)
{
    const opq_capture *c = r->capture;
    opq_status status = OPQ_OK;
    *out_pending = 0;
    opq_spin_lock(&c->ctx->lock);
    for (int i = 0; i < c->cell_count && status == OPQ_OK; i++) {
        const opq_capture_cell *cell = &c->cells[i];
        opq_value *value = r->given->cells[i]->value;
        if ((cell->nothing && value) || (cell->bytes > 0 && value == NULL))
            status = OPQ_UNSUPPORTED;
        if (status != OPQ_OK || cell->bytes == 0)
            continue;
        *out_pending += value->state == OPQ_VALUE_pending;
        opq_value_retain(value);
        r->held[i] = value;
    }
    opq_spin_unlock(&c->ctx->lock);
    return status;
}

/* Computes what is pending, in one run. */
static opq_status compute(const call *r)
{
    opq_room room;
    int count = 0;
    opq_room_init(&room);
    opq_value **pending = opq_room_take(&room, (size_t)r->capture->cell_count * sizeof *pending);
    opq_status status = pending ? OPQ_OK : out_of_memory();
    for (int i = 0; i < r->capture->cell_count && pending; i++)
        if (r->held[i] && r->held[i]->state == OPQ_VALUE_pending)
            pending[count++] = r->held[i];
    if (pending)
        status = opq_materialize(r->capture->ctx, pending, count, OPQ_REASON_capture);
    opq_room_drop(&room);
    return status;
}

/* With run_lock held; it is let go meanwhile if something has to be computed first, for which there must be time. */
static opq_status take_computed(call *r, bool *out_ran)
{
    for (;;) {
        int pending;
        OPQ_TRY(take(r, &pending));
        if (pending == 0)
            return OPQ_OK;
        if (!r->waits) {
            *out_ran = false;
            return OPQ_OK;
        }
        opq_run_leave(r->capture->ctx);
        opq_status status = compute(r);
        let_go(r);
        opq_run_enter(r->capture->ctx);
        OPQ_TRY(status);
    }
}

static opq_status check(const call *r)
{
    const opq_capture *c = r->capture;
    for (int i = 0; i < c->cell_count; i++) {
        const opq_value *value = r->held[i];
        if (value == NULL)
            continue;
        if (value->state == OPQ_VALUE_failed)
            return opq_fail(value->error_status, "%s", value->error);
        int64_t bytes = opq_type_bytes(&value->type);
        bool moved = c->cells[i].shiftable && bytes > 0;
        if (value->type.dtype != c->cells[i].dtype || (!moved && bytes != c->cells[i].bytes))
            return OPQ_UNSUPPORTED;
        if (atomic_load_explicit(&value->buffer->taken, memory_order_relaxed))
            return opq_fail(OPQ_INVALID, "the value was being updated in place by another thread when this process was "
                                         "forked: it is lost here");
    }
    return OPQ_OK;
}

static opq_value *constant_of(const call *r, const opq_capture_leaf *leaf)
{
    return leaf->upload >= 0 ? r->given->uploads[leaf->upload] : leaf->constant;
}

static opq_status bind_leaves(call *r)
{
    const opq_capture *c = r->capture;
    for (int i = 0; i < c->leaf_count; i++) {
        const opq_capture_leaf *leaf = &c->leaves[i];
        opq_buffer *buffer = constant_of(r, leaf) ? constant_of(r, leaf)->buffer : r->held[leaf->cell]->buffer;
        int64_t first = leaf->first;
        if (leaf->cell >= 0 && !leaf->whole && r->given->shifts)
            first += r->given->shifts[leaf->cell];
        r->inputs[i] = buffer;
        r->firsts[i] = first;
        if (first != 0 && (first < 0 || first + leaf->bytes > (int64_t)buffer->bytes))
            return OPQ_UNSUPPORTED;
    }
    return OPQ_OK;
}

static void bind_numbers(const call *r)
{
    for (int i = 0; i < r->capture->number_count; i++) {
        const opq_capture_number *n = &r->capture->numbers[i];
        if (n->id < 0) {
            r->numbers[i] = n->value;
            continue;
        }
        opq_number value = opq_eval_rounded(n->dtypes[0], r->given->numbers[n->id]);
        for (int k = 1; k < n->count; k++)
            value = opq_eval_cast(n->dtypes[k - 1], n->dtypes[k], value);
        r->numbers[i] = value;
    }
}

/* Of the cell's value this call alone knows, besides the cell. */
static bool is_alone(const call *r, int32_t cell)
{
    const opq_value *value = r->held[cell];
    const opq_buffer *buffer = value->buffer;
    return value->holders == r->given->cells[cell] && value->holders->next_holder == NULL &&
           atomic_load(&value->refs) == 2 && atomic_load(&buffer->refs) == 1 &&
           (buffer->borrowed || (buffer->size_class >= 0 && !atomic_load(&buffer->lent)));
}

static void find_replaced(const call *r)
{
    const opq_capture *c = r->capture;
    opq_spin_lock(&c->ctx->lock);
    for (int i = 0; i < c->output_count; i++) {
        int32_t leaf = c->replaces[i];
        bool may = leaf >= 0 && r->firsts[leaf] == 0 && is_alone(r, c->leaves[leaf].cell) &&
                   (int64_t)r->inputs[leaf]->bytes == opq_type_bytes(&c->types[i]);
        r->replaces[i] = may ? leaf : -1;
    }
    opq_spin_unlock(&c->ctx->lock);
}

/* ---- what comes out */

static opq_status make_values(call *r)
{
    const opq_capture *c = r->capture;
    for (int i = 0; i < c->output_count; i++) {
        if (c->replaces[i] == OPQ_NOT_STORED)
            continue;
        atomic_store_explicit(&r->outputs[i]->taken, false, memory_order_relaxed);
        opq_buffer_made(r->outputs[i], (opq_op)c->ops[i], c->lines[i]);
        OPQ_TRY(opq_value_leaf(c->ctx, &c->types[i], r->outputs[i], &r->values[i]));
    }
    return OPQ_OK;
}

static opq_value *value_of(const call *r, const opq_capture_sink *sink)
{
    if (sink->output >= 0)
        return r->values[sink->output];
    const opq_capture_leaf *leaf = &r->capture->leaves[sink->leaf];
    return leaf->constant ? constant_of(r, leaf) : r->held[leaf->cell];
}

static opq_status give_result(const call *r, const opq_capture_sink *sink)
{
    opq_ctx *ctx = r->capture->ctx;
    opq_cell **result = &r->given->results[-1 - sink->cell];
    return sink->output < 0 && sink->leaf < 0 ? opq_cell_create(ctx, sink->bytes, result)
                                              : opq_cell_from_value(ctx, value_of(r, sink), result);
}

/* Cells of results first, which may fail. */
static opq_status give(call *r)
{
    const opq_capture *c = r->capture;
    opq_status status = make_values(r);
    int made = 0;
    for (int i = 0; i < c->sink_count && status == OPQ_OK; i++)
        if (c->sinks[i].cell < 0) {
            status = give_result(r, &c->sinks[i]);
            made = status == OPQ_OK ? i + 1 : made;
        }
    for (int i = 0; i < made && status != OPQ_OK; i++)
        if (c->sinks[i].cell < 0)
            opq_cell_release(r->given->results[-1 - c->sinks[i].cell]);
    for (int i = 0; i < c->sink_count && status == OPQ_OK; i++)
        if (c->sinks[i].cell >= 0) {
            opq_value *value = value_of(r, &c->sinks[i]);
            opq_value_retain(value);
            (void)opq_cell_replace_unseen(r->given->cells[c->sinks[i].cell], NULL, value);
        }
    return status;
}

static opq_status run_plan(call *r, opq_runner *runner)
{
    const opq_capture *c = r->capture;
    bool mixed;
    opq_run_call call = {.inputs = r->inputs,
                         .firsts = r->firsts,
                         .scalars = r->numbers,
                         .outputs = r->outputs,
                         .replaces = r->replaces,
                         .out_mixed = &mixed};
    const opq_tier tier = {.kind = OPQ_TIER_plan, .ops = c->op_count};
    if (runner->recorder)
        opq_recorder_plan(runner->recorder, c->plan, NULL, &tier);
    double start = opq_now();
    opq_status status = opq_runner_run(runner, c->plan, &call);
    double ran = opq_now() - start;
    atomic_fetch_add_explicit(&c->ctx->stats.run_nanoseconds, (long long)(ran * 1e9), memory_order_relaxed);
    opq_pool_tend(c->ctx->runtime.pool, ran);
    return status;
}

static opq_status run(call *r, opq_runner *runner, bool *out_ran)
{
    OPQ_TRY(take_computed(r, out_ran));
    if (!*out_ran)
        return OPQ_OK;
    OPQ_TRY(check(r));
    OPQ_TRY(bind_leaves(r));
    bind_numbers(r);
    find_replaced(r);
    if (r->capture->plan)
        OPQ_TRY(run_plan(r, runner));
    return give(r);
}

/* With run_lock held, which is let go. */
static opq_status run_locked(opq_capture *c, const opq_capture_call *given, bool waits, bool *out_ran)
{
    call r;
    memset(&r, 0, offsetof(call, room));
    r.capture = c;
    r.given = given;
    r.waits = waits;
    opq_room_init(&r.room);
    opq_runner runner = {c->ctx, &r.room, opq_recorder_get(), opq_watched(&c->ctx->host)};
    void *activity = runner.watched ? opq_activity_begin(&c->ctx->host, OPQ_ACTIVITY_run, "capture") : NULL;
    opq_status status = allocate(&r);
    bool allocated = status == OPQ_OK;
    *out_ran = true;
    if (allocated)
        status = run(&r, &runner, out_ran);
    opq_activity_end(&c->ctx->host, activity);
    opq_run_leave(c->ctx);
    atomic_fetch_add_explicit(&c->ctx->stats.captured_calls, status == OPQ_OK && *out_ran, memory_order_relaxed);
    for (int i = 0; i < c->output_count && allocated; i++) {
        opq_value_release(r.values[i]);
        opq_buffer_release(r.outputs[i]);
    }
    if (allocated)
        let_go(&r);
    opq_room_drop(&r.room);
    return status;
}

void opq_buffer_borrow(opq_buffer *buffer)
{
    buffer->borrowed = true;
    atomic_store(&buffer->lent, true);
}

opq_status opq_capture_run(opq_capture *c, const opq_capture_call *given)
{
    bool ran;
    opq_run_enter(c->ctx);
    return run_locked(c, given, true, &ran);
}

opq_status opq_capture_run_now(opq_capture *c, const opq_capture_call *given, bool *out_ran)
{
    *out_ran = c->small && opq_run_try_enter(c->ctx);
    return *out_ran ? run_locked(c, given, false, out_ran) : OPQ_OK;
}
