/* Where values live: lifetimes, in-place updates, output buffers, and the arena of temporaries.
 *
 * The arena is a first fit by lifetime: values are placed in order of their first step, each in the lowest gap that no value alive at
 * the same time covers.
 */
#include "runtime/plan_internal.h"

#include <stdlib.h>

static void live_at(opq_plan *plan, int32_t id, int32_t step)
{
    if (id < 0)
        return;
    opq_storage *storage = &plan->storage[id];
    if (storage->first < 0 || step < storage->first)
        storage->first = step;
    if (step > storage->last)
        storage->last = step;
}

static void find_lifetimes(opq_plan *plan)
{
    for (int32_t s = 0; s < plan->step_count; s++) {
        opq_step *step = &plan->steps[s];
        for (int i = 0; i < step->kernel.buffer_count; i++)
            live_at(plan, step->buffers[i], s);
        for (int i = 0; i < step->operand_count; i++)
            live_at(plan, step->operands[i], s);
        for (int i = 0; i < step->result_count; i++)
            live_at(plan, step->results[i], s);
        for (int i = 0; step->matmul && i < 2; i++)
            live_at(plan, step->matmul->operand[i], s);
        live_at(plan, step->copy_from, s);
        live_at(plan, step->copy_to, s);
    }
}

static int32_t final_of(const opq_planner *p, int32_t id)
{
    while (id >= 0 && p->same_as[id] != id)
        id = p->same_as[id];
    return id;
}

/* The old value dies here and is our own temporary: write over it. */
static void update_in_place(opq_planner *p, uint8_t *is_output)
{
    opq_plan *plan = p->plan;
    for (int32_t s = 0; s < plan->step_count; s++) {
        opq_step *step = &plan->steps[s];
        int32_t from = final_of(p, step->copy_from);
        if (from < 0)
            continue;
        opq_storage *old = &plan->storage[from];
        bool reads_it = false;
        for (int i = 0; i < step->kernel.buffer_count; i++)
            reads_it = reads_it || final_of(p, step->buffers[i]) == from;
        if (old->home != OPQ_HOME_temporary || is_output[from] || old->last != s || reads_it)
            continue;
        p->same_as[step->copy_to] = from;
        is_output[from] = is_output[step->copy_to]; /* a later update may not write over what is given out */
        if (plan->storage[step->copy_to].last > old->last)
            old->last = plan->storage[step->copy_to].last;
        step->copy_from = step->copy_to = -1;
    }
}

/* Updates that are not in place begin with a copy of the old value. */
static void count_copies(opq_plan *plan)
{
    for (int32_t s = 0; s < plan->step_count; s++) {
        opq_step *step = &plan->steps[s];
        if (step->copy_from < 0)
            continue;
        step->bytes_read += plan->storage[step->copy_to].bytes;
        step->bytes_written += plan->storage[step->copy_to].bytes;
    }
}

static void rename_list(const opq_planner *p, int32_t *ids, int count)
{
    for (int i = 0; i < count; i++)
        ids[i] = final_of(p, ids[i]);
}

static void rename_all(opq_planner *p)
{
    for (int32_t s = 0; s < p->plan->step_count; s++) {
        opq_step *step = &p->plan->steps[s];
        rename_list(p, step->buffers, step->kernel.buffer_count);
        rename_list(p, step->operands, step->operand_count);
        if (step->matmul)
            rename_list(p, step->matmul->operand, 2);
        rename_list(p, &step->copy_from, 1); /* results and copies become nothing else */
    }
}

static opq_status place_outputs(opq_planner *p)
{
    opq_plan *plan = p->plan;
    plan->output_count = p->graph->output_count;
    plan->output_storage = opq_arena_alloc(&plan->arena, ((size_t)plan->output_count + 1) * sizeof *plan->output_storage);
    plan->buffer_bytes = opq_arena_alloc(&plan->arena, ((size_t)plan->output_count + 1) * sizeof *plan->buffer_bytes);
    if (plan->output_storage == NULL || plan->buffer_bytes == NULL)
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    for (int i = 0; i < plan->output_count; i++) {
        int32_t id = final_of(p, opq_planner_storage(p, p->graph->outputs[i]));
        plan->output_storage[i] = id;
        if (id < 0)
            return opq_fail(OPQ_INTERNAL, "plan: output %d is nowhere", i);
        opq_storage *storage = &plan->storage[id];
        if (storage->home == OPQ_HOME_temporary) {
            storage->home = OPQ_HOME_output;
            storage->index = plan->buffer_count;
            plan->buffer_bytes[plan->buffer_count++] = storage->bytes;
        }
    }
    return OPQ_OK;
}

static int by_first_step(const void *a, const void *b)
{
    const opq_storage *x = *(opq_storage *const *)a, *y = *(opq_storage *const *)b;
    return x->first != y->first ? (x->first > y->first) - (x->first < y->first) : (x > y) - (x < y);
}

static opq_status place_temporaries(opq_plan *plan)
{
    opq_storage **order = malloc(((size_t)plan->storage_count + 1) * 2 * sizeof *order);
    if (order == NULL)
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    opq_storage **placed = order + plan->storage_count + 1; /* alive ones, by offset */
    int count = 0, alive = 0;
    for (int32_t i = 0; i < plan->storage_count; i++)
        if (plan->storage[i].home == OPQ_HOME_temporary && plan->storage[i].first >= 0)
            order[count++] = &plan->storage[i];
    qsort(order, (size_t)count, sizeof *order, by_first_step);
    for (int i = 0; i < count; i++) {
        opq_storage *storage = order[i];
        int kept = 0, at = 0;
        for (int k = 0; k < alive; k++)
            if (placed[k]->last >= storage->first)
                placed[kept++] = placed[k];
        alive = kept;
        int64_t offset = 0, bytes = (storage->bytes + 63) & ~(int64_t)63;
        for (; at < alive && placed[at]->offset < offset + bytes; at++)
            offset = placed[at]->offset + ((placed[at]->bytes + 63) & ~(int64_t)63);
        for (int k = alive; k > at; k--)
            placed[k] = placed[k - 1];
        placed[at] = storage;
        alive++;
        storage->offset = offset;
        if (offset + bytes > plan->arena_bytes)
            plan->arena_bytes = offset + bytes;
    }
    free(order);
    return OPQ_OK;
}

opq_status opq_plan_storage(opq_planner *p)
{
    opq_plan *plan = p->plan;
    uint8_t *is_output = calloc((size_t)plan->storage_count + 1, 1);
    if (is_output == NULL)
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    for (int i = 0; i < p->graph->output_count; i++) {
        int32_t id = opq_planner_storage(p, p->graph->outputs[i]);
        if (id >= 0)
            is_output[id] = 1;
    }
    find_lifetimes(plan);
    update_in_place(p, is_output);
    free(is_output);
    count_copies(plan);
    rename_all(p);
    OPQ_TRY(place_outputs(p));
    return place_temporaries(plan);
}
