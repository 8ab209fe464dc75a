/* Memory that a run writes, and what becomes of it: buffers of its own, an arena, and outputs in the place of inputs. */
#include "runtime/run.h"
#include "runtime/packed.h"
#include "runtime/undo.h"

/* ---- outputs in the place of inputs */

/* Products of this run may have left packed copies of the old value, which nobody reads any more. */
void opq_run_take_input(const opq_run_state *run, int32_t output)
{
    if (run->takes[output] < 0 || run->outputs[output])
        return;
    run->outputs[output] = run->call->inputs[run->takes[output]];
    opq_buffer_retain(run->outputs[output]);
    atomic_store(&run->outputs[output]->taken, true);
    opq_packed_forget(run->outputs[output]);
}

/* No step can fail any more, and none has. */
void opq_run_take_inputs(const opq_run_state *run)
{
    for (int32_t i = 0; i < run->plan->buffer_count; i++)
        opq_run_take_input(run, i);
}

static opq_status own_output(const opq_run_state *run, int32_t id)
{
    const opq_storage *storage = id >= 0 ? &run->plan->storage[id] : NULL;
    if (storage == NULL || storage->home != OPQ_HOME_output || run->outputs[storage->index])
        return OPQ_OK;
    return opq_pool_run_buffer(run->runtime->pool, (size_t)storage->bytes, (opq_buffer **)&run->outputs[storage->index]);
}

/* After a failure: what the step writes has memory of its own. */
opq_status opq_run_own_outputs(const opq_run_state *run, const opq_step *step)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        OPQ_TRY(own_output(run, step->buffers[i]));
    for (int i = 0; i < step->result_count; i++)
        OPQ_TRY(own_output(run, step->results[i]));
    return OPQ_OK;
}

/* ---- memory, and results */

opq_status opq_run_allocate(opq_run_state *run)
{
    const opq_plan *plan = run->plan;
    if (plan->arena_bytes > 0)
        OPQ_TRY(opq_pool_run_buffer(run->runtime->pool, (size_t)plan->arena_bytes, &run->arena));
    for (int i = 0; i < plan->buffer_count; i++)
        run->takes[i] = -1;
    for (int i = 0; i < plan->output_count && run->call->replaces; i++) {
        const opq_storage *storage = &plan->storage[plan->output_storage[i]];
        int32_t input = run->call->replaces[i];
        const opq_replacement *found =
            storage->home == OPQ_HOME_output && input >= 0 ? opq_plan_replacement(plan, storage->index, input) : NULL;
        if (found == NULL)
            continue;
        run->takes[storage->index] = input;
        run->undo->needed = run->undo->needed || found->remembers;
    }
    for (int i = 0; i < plan->output_count && run->call->into; i++) {
        const opq_storage *storage = &plan->storage[plan->output_storage[i]];
        opq_buffer *into = run->call->into[i];
        if (into && storage->home == OPQ_HOME_output && run->takes[storage->index] < 0 && !run->outputs[storage->index]) {
            run->outputs[storage->index] = into;
            opq_buffer_retain(into);
        }
    }
    for (int i = 0; i < plan->buffer_count; i++)
        if (run->takes[i] < 0 && run->outputs[i] == NULL)
            OPQ_TRY(opq_pool_run_buffer(run->runtime->pool, (size_t)plan->buffer_bytes[i], &run->outputs[i]));
    for (int i = 0; i < plan->slot_count; i++)
        run->slots[i] = plan->slot_source[i] >= 0 && run->call->scalars ? run->call->scalars[plan->slot_source[i]]
                                                                        : plan->slot_value[i];
    return OPQ_OK;
}

/* After a failure: inputs that were written over, and what was written there is computed again. */
void opq_run_give_back(const opq_run_state *run)
{
    if (run->undo->used > 0 && run->call->out_mixed)
        *run->call->out_mixed = true;
    opq_undo_all(run->undo);
    for (int i = 0; i < run->plan->output_count; i++) {
        int32_t id = run->plan->output_storage[i];
        if (!opq_undo_covers(run, id))
            continue;
        run->bad[id] = 1;
        atomic_store(&run->outputs[run->plan->storage[id].index]->taken, false);
    }
}

opq_status opq_run_give_outputs(const opq_run_state *run)
{
    opq_status status = OPQ_OK;
    for (int i = 0; i < run->plan->output_count && status == OPQ_OK; i++) {
        int32_t id = run->plan->output_storage[i];
        opq_buffer *buffer = run->bad[id] ? NULL : opq_run_buffer(run, id);
        if (buffer)
            status =
                opq_buffer_part(buffer, opq_run_first(run, id), run->plan->storage[id].bytes, &run->call->outputs[i]);
    }
    return status;
}
