/* Runs a plan: one wave after the other, each on all threads.
 *
 * A failed step poisons what it would have written; steps that need poisoned values are passed over, all others run. Nothing a run
 * reads is written before no step can fail any more, so a failure costs only the values that depend on it.
 */
#include "runtime/run.h"
#include "fusion/target.h"
#include "runtime/parallel.h"
#include "runtime/room.h"
#include "runtime/undo.h"
#include "runtime/activity.h"
#include "graph/clock.h"

#include <stdlib.h>
#include <string.h>

opq_buffer *opq_run_buffer(const opq_run_state *run, int32_t id)
{
    const opq_storage *storage = &run->plan->storage[id];
    switch (storage->home) {
    case OPQ_HOME_input: return run->call->inputs[storage->index];
    case OPQ_HOME_output: return run->outputs[storage->index];
    case OPQ_HOME_temporary:
    case OPQ_HOME_part: break;
    }
    return NULL;
}

int64_t opq_run_first(const opq_run_state *run, int32_t id)
{
    const opq_storage *storage = &run->plan->storage[id];
    return run->call->firsts && storage->home == OPQ_HOME_input ? run->call->firsts[storage->index] : 0;
}

void *opq_run_data(const opq_run_state *run, int32_t id)
{
    if (id < 0)
        return NULL;
    const opq_storage *storage = &run->plan->storage[id];
    if (storage->home == OPQ_HOME_part)
        return (char *)opq_run_data(run, storage->index) + storage->offset;
    opq_buffer *buffer = opq_run_buffer(run, id);
    if (buffer)
        return (char *)buffer->data + opq_run_first(run, id);
    return run->arena ? (char *)run->arena->data + storage->offset : (void *)run->slots; /* no arena: nothing has bytes */
}

/* Most of what many small kernels read are temporaries: without a call for each, a tenth of their time less. */
void opq_run_bind(const opq_run_state *run, const opq_step *step, void **out_buffers, opq_number *out_scalars)
{
    const opq_storage *storage = run->plan->storage;
    char *arena = run->arena ? run->arena->data : NULL;
    for (int i = 0; i < step->loops.buffer_count; i++) {
        int32_t id = step->buffers[i];
        bool plain = arena && id >= 0 && storage[id].home == OPQ_HOME_temporary;
        out_buffers[i] = plain ? arena + storage[id].offset : opq_run_data(run, id);
    }
    for (int i = 0; i < step->loops.scalar_count; i++)
        out_scalars[i] = run->slots[step->scalars[i]];
}

/* ---- kernels */

typedef struct launch {
    const opq_step *step;
    void **buffers;
    const opq_number *scalars;
    int64_t first; /* number of the phase's first unit */
    opq_step_error *error;
} launch;

void opq_step_error_add(opq_step_error *error, const int64_t found[2])
{
    if (found[0] == 0)
        return;
    while (atomic_flag_test_and_set_explicit(&error->busy, memory_order_acquire))
        ;
    if (error->found[0] == 0 || found[0] < error->found[0])
        memcpy(error->found, found, sizeof error->found);
    atomic_flag_clear_explicit(&error->busy, memory_order_release);
}

void opq_run_code(const opq_step *step, void *const *buffers, const int64_t *dims, const opq_number *scalars,
                  int64_t begin, int64_t end, opq_step_error *error)
{
    void *scratch = step->scratch ? opq_thread_scratch((size_t)step->scratch) : NULL;
    int64_t found[2] = {step->scratch && scratch == NULL ? -1 : 0, 0};
    if (found[0] == 0)
        step->code->fn(buffers, dims, scalars, begin, end, scratch, found);
    opq_step_error_add(error, found);
}

static void run_units(void *data, int64_t begin, int64_t end)
{
    const launch *l = data;
    opq_run_code(l->step, l->buffers, l->step->dims, l->scalars, l->first + begin, l->first + end, l->error);
}

static opq_status run_kernel(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    void *buffers[OPQ_BUFFER_MAX];
    opq_number scalars[OPQ_SCALAR_MAX];
    opq_run_bind(run, step, buffers, scalars);
    int64_t work = step->bytes_read + step->bytes_written + step->flops;
    launch l = {step, buffers, scalars, 0, error};
    for (int p = 0; p < step->phases; p++) {
        int64_t units = step->units[p],
                grain = work < opq_runs.serial_elements ? units : units * opq_runs.serial_elements / work;
        opq_parallel_for(run->runtime->host, units, grain < 1 ? 1 : grain, run_units, &l);
        l.first += units;
    }
    return OPQ_OK;
}

/* ---- waves */

typedef struct wave_launch {
    const opq_run_state *run;
    const opq_wave *wave;
    int phase;
} wave_launch;

/* Units of the phase in the rows before. */
static int64_t units_before(const opq_wave *wave, int phase, int32_t row)
{
    return row > 0 ? wave->ends[phase * wave->count + row - 1] : 0;
}

static void run_row(const wave_launch *l, int32_t row, int64_t begin, int64_t end)
{
    void *buffers[OPQ_BUFFER_MAX];
    opq_number scalars[OPQ_SCALAR_MAX];
    const opq_wave *wave = l->wave;
    const opq_step *step = &l->run->plan->steps[wave->first + row];
    int64_t first = -units_before(wave, l->phase, row);
    for (int p = 0; p < l->phase; p++)
        first += wave->ends[p * wave->count + row] - units_before(wave, p, row);
    opq_run_bind(l->run, step, buffers, scalars);
    opq_run_code(step, buffers, step->dims, scalars, first + begin, first + end, &l->run->errors[row]);
}

/* Units [begin, end) of all rows, one after the other. */
static void run_rows(void *data, int64_t begin, int64_t end)
{
    const wave_launch *l = data;
    const int64_t *ends = l->wave->ends + l->phase * l->wave->count;
    int32_t low = 0, high = l->wave->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (ends[middle] > begin)
            high = middle;
        else
            low = middle + 1;
    }
    for (int32_t row = low; begin < end; row++) {
        int64_t stop = ends[row] < end ? ends[row] : end;
        if (stop > begin)
            run_row(l, row, begin, stop);
        begin = stop;
    }
}

static void run_wave(const opq_run_state *run, const opq_wave *wave)
{
    memset(run->errors, 0, (size_t)wave->count * sizeof *run->errors);
    for (int p = 0; p < wave->phases; p++) {
        wave_launch l = {run, wave, p};
        int64_t units = wave->ends[(p + 1) * wave->count - 1];
        int64_t grain = wave->work < opq_runs.serial_elements ? units : units * opq_runs.serial_elements / wave->work;
        opq_parallel_for(run->runtime->host, units, grain < 1 ? 1 : grain, run_rows, &l);
    }
}

/* ---- other steps */

/* Without code, as reference. */
static opq_status eval_kernel(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    void *buffers[OPQ_BUFFER_MAX];
    opq_number scalars[OPQ_SCALAR_MAX];
    opq_run_bind(run, step, buffers, scalars);
    return run->runtime->run_loops(&step->loops, buffers, step->dims, scalars, error->found);
}

static opq_status run_extern(const opq_run_state *run, const opq_step *step)
{
    const opq_host *host = run->runtime->host;
    const void **operands = malloc(((size_t)step->operand_count + 1) * sizeof *operands);
    void **results = malloc(((size_t)step->result_count + 1) * sizeof *results);
    opq_status status = operands && results ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int i = 0; i < step->operand_count && status == OPQ_OK; i++)
        operands[i] = opq_run_data(run, step->operands[i]);
    for (int i = 0; i < step->result_count && status == OPQ_OK; i++)
        results[i] = opq_run_data(run, step->results[i]);
    if (status == OPQ_OK)
        status = host->call_extern(host->self, step->payload, operands, results);
    free(operands);
    free(results);
    return status;
}

/* The same step of the same plan, with the lines of this call. */
static const opq_step *step_with_lines(const opq_run_state *run, const opq_step *step)
{
    const opq_plan *plan = run->call->lines_of ? run->call->lines_of(run->call->lines_data) : NULL;
    int64_t at = step - run->plan->steps;
    return plan && at < plan->step_count && plan->steps[at].check_count == step->check_count ? &plan->steps[at] : step;
}

/* error: number of the statement that failed + 1, the index it met. */
static const opq_check *failed_check(const opq_step *step, const opq_step *shown, const int64_t *error)
{
    const opq_step *part = step->block && step->code ? &step->parts[step->part_count - 1] : step;
    const opq_loops *loops = step->code ? opq_step_code_loops(part) : &step->loops;
    for (int i = 0; i < shown->check_count; i++)
        if (shown->checks[i].node == loops->stmts[error[0] - 1].node)
            return &shown->checks[i];
    return NULL;
}

/* A plan that was written down for its size is that of another one where words are made from the graph: it is built, for these. */
static opq_status value_error(const opq_run_state *given, const opq_step *step, const int64_t *error)
{
    if (error[0] < 0)
        return opq_fail(OPQ_NO_MEMORY, "%s: out of memory for scratch", step->name);
    if (given->plan->part_count > 0)
        return opq_fail(OPQ_INVALID, "%s: an index or a divisor is wrong", step->name);
    opq_run_state own = *given;
    const opq_run_state *run = &own;
    if (given->plan->like) {
        own.plan = given->call->lines_of ? given->call->lines_of(given->call->lines_data) : NULL;
        if (own.plan == NULL || own.plan->step_count != given->plan->step_count)
            return opq_fail(OPQ_INTERNAL, "%s: an index or a divisor is wrong, and there is no memory to say which",
                            step->name);
        step = &own.plan->steps[step - given->plan->steps];
    }
    const opq_step *shown = step_with_lines(run, step);
    const opq_check *check;
    int64_t index;
    int which;
    if (opq_fault_find(run, step, &which, &index))
        check = &shown->checks[which];
    else if ((check = failed_check(step, shown, error)))
        index = error[1];
    else
        return opq_fail(OPQ_INTERNAL, "%s: statement %lld failed, which checks nothing", step->name,
                        (long long)error[0] - 1);
    if (check->divides)
        return opq_fail(OPQ_INVALID, "%s: %s", check->text, check->says ? check->says : "ZeroDivisionError");
    const opq_type *indexed = &check->words.type;
    return opq_index_fail(&check->words, check->text, index,
                          check->words.axis < indexed->rank ? indexed->size[check->words.axis] : 1);
}

static opq_status extern_error(const opq_run_state *run, const opq_step *step, opq_status status)
{
    const opq_step *shown = step_with_lines(run, step);
    return *shown->lines ? opq_fail(status, "%s (recorded at %s)", opq_error(), shown->lines) : status;
}

static opq_status run_step(const opq_run_state *run, const opq_step *step)
{
    opq_step_error error = {.busy = ATOMIC_FLAG_INIT};
    if (step->copy_from >= 0 && opq_run_data(run, step->copy_to) != opq_run_data(run, step->copy_from))
        memcpy(opq_run_data(run, step->copy_to), opq_run_data(run, step->copy_from),
               (size_t)run->plan->storage[step->copy_to].bytes);
    if (step->kind == OPQ_KERNEL_extern || step->routine) {
        opq_status status = step->routine ? opq_run_routine(run, step) : run_extern(run, step);
        return status == OPQ_OK ? OPQ_OK : extern_error(run, step, status);
    }
    OPQ_TRY(step->code == NULL ? eval_kernel(run, step, &error)
            : step->block      ? opq_run_block(run, step, &error)
            : step->parts      ? opq_run_products(run, step, &error)
            : step->matmul     ? opq_run_matmul(run, step, &error)
                               : run_kernel(run, step, &error));
    return error.found[0] == 0 ? OPQ_OK : value_error(run, step, error.found);
}

/* ---- failures */

/* Has memory for what it writes: where an input lay, unless something has failed. A routine that would fail does so before. */
static opq_status make_ready(const opq_run_state *run, const opq_step *step, bool failed)
{
    opq_status status = step->routine ? opq_routine_check(run, step) : OPQ_OK;
    if (status != OPQ_OK)
        return extern_error(run, step, status);
    if (failed)
        return opq_run_own_outputs(run, step);
    if (step->copy_to >= 0 && run->plan->storage[step->copy_to].home == OPQ_HOME_output)
        opq_run_take_input(run, run->plan->storage[step->copy_to].index);
    return OPQ_OK;
}

static bool needs_bad(const opq_run_state *run, const opq_step *step)
{
    bool bad = step->copy_from >= 0 && run->bad[step->copy_from];
    for (int i = 0; i < step->loops.buffer_count; i++)
        bad = bad || (step->buffers[i] >= 0 && run->bad[step->buffers[i]] &&
                      (!step->loops.written[i] || step->kind == OPQ_KERNEL_update || step->kind == OPQ_KERNEL_index));
    for (int i = 0; i < step->operand_count; i++)
        bad = bad || run->bad[step->operands[i]];
    return bad;
}

/* What a run says in the end: the failure of the step recorded first. */
typedef struct failures {
    bool any;
    int32_t order;
    opq_status status;
    char message[1024];
} failures;

static void fail_step(const opq_run_state *run, const opq_step *step, opq_status status, failures *f)
{
    if (!f->any || step->order < f->order) {
        f->status = status;
        f->order = step->order;
        strncpy(f->message, opq_error(), sizeof f->message - 1);
        f->message[sizeof f->message - 1] = 0;
    }
    f->any = true;
    if (run->call->out_mixed && step->payload == NULL)
        *run->call->out_mixed = true;
    opq_step_mark_written(step, run->bad);
}

/* The clocks before a launch. */
static opq_launch_times clocks(const opq_run_state *run)
{
    if (run->call->note == NULL)
        return (opq_launch_times){0, 0};
    bool timed = run->call->timed;
    return (opq_launch_times){timed ? opq_now() : 0, timed ? opq_parallel_busy() : 0};
}

static void note(const opq_run_state *run, const opq_step *step, int32_t count, const opq_launch_times *before)
{
    opq_run_counts *counts = run->call->counts;
    if (counts)
        ++*(step->kind == OPQ_KERNEL_extern ? &counts->calls : &counts->kernels);
    for (int32_t i = 0; i < count && counts; i++) {
        counts->bytes_read += step[i].bytes_read;
        counts->bytes_written += step[i].bytes_written;
    }
    if (run->call->note == NULL)
        return;
    opq_launch_times t = clocks(run);
    t.seconds -= before->seconds;
    t.busy -= before->busy;
    run->call->note(run->call->note_data, step, count, &t);
}

static void *watch(const opq_run_state *run, const opq_step *rows, int32_t count)
{
    return run->call->watched ? opq_activity_launch(run->runtime->host, run->plan, rows, count) : NULL;
}

static void run_one(const opq_run_state *run, const opq_step *step, failures *f)
{
    if (f->any && needs_bad(run, step)) {
        opq_step_mark_written(step, run->bad);
        return;
    }
    opq_launch_times before = clocks(run);
    opq_status status = make_ready(run, step, f->any);
    void *activity = watch(run, step, 1);
    if (status == OPQ_OK)
        status = opq_undo_note_step(run, step);
    if (status == OPQ_OK)
        status = run_step(run, step);
    opq_activity_end(run->runtime->host, activity);
    if (status == OPQ_OK)
        note(run, step, 1, &before);
    else
        fail_step(run, step, status, f);
}

static void run_all(const opq_run_state *run, const opq_wave *wave, failures *f)
{
    const opq_step *rows = &run->plan->steps[wave->first];
    opq_launch_times before = clocks(run);
    void *activity = watch(run, rows, wave->count);
    run_wave(run, wave);
    opq_activity_end(run->runtime->host, activity);
    note(run, rows, wave->count, &before);
    for (int32_t r = 0; r < wave->count; r++)
        if (run->errors[r].found[0] != 0)
            fail_step(run, &rows[r], value_error(run, &rows[r], run->errors[r].found), f);
}

/* Once a step has failed, rows run one by one: some may need what there is not. */
static opq_status run_waves(const opq_run_state *run)
{
    failures f;
    f.any = false;
    bool joined = run->plan->part_count > 0; /* its parts run after a failure */
    for (int32_t w = 0; w < run->plan->wave_count && !(joined && f.any); w++) {
        const opq_wave *wave = &run->plan->waves[w];
        if (w == run->plan->sure_wave && !f.any)
            opq_run_take_inputs(run);
        if (wave->count > 1 && !f.any)
            run_all(run, wave, &f);
        else
            for (int32_t r = 0; r < wave->count; r++)
                run_one(run, &run->plan->steps[wave->first + r], &f);
    }
    return f.any ? opq_fail(f.status, "%s", f.message) : OPQ_OK;
}

opq_status opq_plan_run(opq_runtime *runtime, const opq_plan *plan, const opq_run_call *call)
{
    size_t count = (size_t)plan->buffer_count, storage = (size_t)plan->storage_count;
    opq_room room;
    opq_room_init(&room);
    opq_undo undo = {0};
    opq_run_state run = {.runtime = runtime, .plan = plan, .call = call, .undo = &undo};
    run.outputs = opq_room_take(&room, count * sizeof *run.outputs);
    run.slots = opq_room_take(&room, ((size_t)plan->slot_count + 1) * sizeof *run.slots);
    run.errors = opq_room_take(&room, (size_t)plan->row_max * sizeof *run.errors);
    run.takes = opq_room_take(&room, count * sizeof *run.takes);
    run.bad = opq_room_take(&room, storage);
    bool made = run.outputs && run.slots && run.errors && run.takes && run.bad;
    if (call->out_mixed)
        *call->out_mixed = true;
    for (int i = 0; i < plan->output_count; i++)
        call->outputs[i] = NULL;
    opq_status status = made ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
    if (made) {
        memset(run.outputs, 0, count * sizeof *run.outputs);
        memset(run.bad, 0, storage);
        status = opq_run_allocate(&run);
    }
    if (status == OPQ_OK) {
        if (call->out_mixed)
            *call->out_mixed = false;
        opq_parallel_watch(call->timed);
        status = run_waves(&run);
        opq_parallel_watch(false);
        if (status != OPQ_OK)
            opq_run_give_back(&run);
        opq_status given = opq_run_give_outputs(&run);
        status = status == OPQ_OK ? given : status;
    }
    for (size_t i = 0; i < count && made; i++)
        opq_buffer_release(run.outputs[i]);
    opq_buffer_release(run.arena);
    opq_undo_drop(&undo);
    opq_room_drop(&room);
    return status;
}
