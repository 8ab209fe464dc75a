/* Where values live: lifetimes, in-place updates, output buffers, and the arena of temporaries.
 *
 * The arena is a first fit by lifetime, in waves: values are placed in order of their first wave, each in the lowest gap that is large
 * enough between those alive at the same time.
 */
#include "runtime/plan_internal.h"

#include <string.h>

static void live_at(opq_plan *plan, int32_t id, int32_t wave)
{
    if (id < 0)
        return;
    opq_storage *storage = &plan->storage[opq_storage_base(plan->storage, id)];
    if (storage->first < 0 || wave < storage->first)
        storage->first = wave;
    if (wave > storage->last)
        storage->last = wave;
}

static void find_lifetimes(opq_plan *plan)
{
    const int32_t *use;
    bool written;
    for (int32_t w = 0; w < plan->wave_count; w++)
        for (int32_t s = plan->waves[w].first; s < plan->waves[w].first + plan->waves[w].count; s++)
            for (int i = 0; (use = opq_step_use(&plan->steps[s], i, &written)); i++)
                live_at(plan, *use, w);
}

static void rename_step(const opq_planner *p, opq_step *step)
{
    int32_t *use;
    bool written;
    for (int i = 0; (use = opq_step_use(step, i, &written)); i++)
        *use = opq_planner_final(p, *use);
    for (int i = 0; i < step->part_count; i++)
        rename_step(p, &step->parts[i]);
}

static bool is_part_of(const opq_planner *p, int32_t id, int32_t of)
{
    const opq_storage *storage = id >= 0 ? &p->plan->storage[id] : NULL;
    return storage && storage->home == OPQ_HOME_part && opq_planner_final(p, storage->index) == of;
}

/* A step that reads a part of what it changes may not see that it was written over. */
static bool reads_part(const opq_planner *p, opq_step *step, int32_t of)
{
    bool found = false, written;
    const int32_t *use;
    for (int i = 0; (use = opq_step_use(step, i, &written)); i++)
        found = found || is_part_of(p, *use, of);
    return found;
}

/* The old value dies here and is our own temporary: write over it. */
static void update_in_place(opq_planner *p, uint8_t *is_output)
{
    opq_plan *plan = p->plan;
    for (int32_t w = 0; w < plan->wave_count; w++) {
        opq_step *step = &plan->steps[plan->waves[w].first]; /* who copies is alone */
        int32_t from = opq_planner_final(p, step->copy_from);
        if (from < 0)
            continue;
        opq_storage *old = &plan->storage[from];
        if (old->home != OPQ_HOME_temporary || is_output[from] || old->last != w || reads_part(p, step, from))
            continue;
        rename_step(p, step);
        if (!opq_step_may_update(step, from, step->copy_to))
            continue;
        p->same_as[step->copy_to] = from;
        is_output[from] = is_output[step->copy_to]; /* a later update may not write over what is given out */
        if (plan->storage[step->copy_to].last > old->last)
            old->last = plan->storage[step->copy_to].last;
        plan->storage[step->copy_to].first = -1; /* it needs no place of its own */
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

static void rename_all(opq_planner *p)
{
    for (int32_t i = 0; i < p->plan->storage_count; i++)
        if (p->plan->storage[i].home == OPQ_HOME_part)
            p->plan->storage[i].index = opq_planner_final(p, p->plan->storage[i].index);
    for (int32_t s = 0; s < p->plan->step_count; s++)
        rename_step(p, &p->plan->steps[s]);
}

static opq_status place_outputs(opq_planner *p, const int32_t *outputs, int output_count)
{
    opq_plan *plan = p->plan;
    plan->output_count = output_count;
    plan->output_storage = opq_arena_alloc(&plan->arena, ((size_t)plan->output_count + 1) * sizeof *plan->output_storage);
    plan->buffer_bytes = opq_arena_alloc(&plan->arena, ((size_t)plan->output_count + 1) * sizeof *plan->buffer_bytes);
    if (plan->output_storage == NULL || plan->buffer_bytes == NULL)
        return opq_plan_no_memory();
    for (int i = 0; i < plan->output_count; i++) {
        int32_t id = opq_planner_final(p, outputs[i]);
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

/* ---- the arena */

/* What is free in it, by offset; the last gap has no end. */
typedef struct gap {
    int64_t begin, end;
} gap;

typedef struct gaps {
    gap *items;
    int count;
} gaps;

static void remove_gap(gaps *g, int at)
{
    g->count--;
    memmove(&g->items[at], &g->items[at + 1], (size_t)(g->count - at) * sizeof *g->items);
}

static void insert_gap(gaps *g, int at, int64_t begin, int64_t end)
{
    memmove(&g->items[at + 1], &g->items[at], (size_t)(g->count++ - at) * sizeof *g->items);
    g->items[at] = (gap){begin, end};
}

static int64_t rounded_up(int64_t bytes, int64_t to) { return (bytes + to - 1) & ~(to - 1); }

/* Less than 0: there is no such gap. */
static int64_t take(gaps *g, int64_t bytes, int64_t align)
{
    int at = 0;
    while (at < g->count && g->items[at].end - bytes < rounded_up(g->items[at].begin, align))
        at++;
    if (at == g->count)
        return -1;
    int64_t begin = g->items[at].begin, offset = rounded_up(begin, align);
    g->items[at].begin = offset + bytes;
    if (g->items[at].begin == g->items[at].end)
        remove_gap(g, at);
    if (begin < offset)
        insert_gap(g, at, begin, offset);
    return offset;
}

static void give_back(gaps *g, int64_t begin, int64_t end)
{
    int at = 0;
    while (g->items[at].begin < begin)
        at++;
    insert_gap(g, at, begin, end);
    for (int i = at; i >= 0 && i >= at - 1; i--) /* with the next one, and the one before with it */
        if (g->items[i].end == g->items[i + 1].begin) {
            g->items[i].end = g->items[i + 1].end;
            remove_gap(g, i + 1);
        }
}

/* What lies in one vector or less shares its cache line with others like it: loops over scalars make thousands. */
static int64_t alignment(int64_t bytes)
{
    int64_t align = 4;
    while (align < bytes && align < 64)
        align *= 2;
    return align;
}

static int64_t padded(int64_t bytes) { return rounded_up(bytes, alignment(bytes)); }

/* `born` and `dying`: per wave the first value whose life begins or ends there, then per value the next one. */
static opq_status place_by_wave(opq_plan *plan, int32_t *born, int32_t *dying, gaps *free_space)
{
    int32_t *next_born = born + plan->wave_count, *next_dying = dying + plan->wave_count;
    for (int32_t w = 0; w < plan->wave_count; w++)
        born[w] = dying[w] = -1;
    for (int32_t i = plan->storage_count - 1; i >= 0; i--) {
        const opq_storage *storage = &plan->storage[i];
        if (storage->home != OPQ_HOME_temporary || storage->first < 0 || storage->bytes == 0)
            continue;
        next_born[i] = born[storage->first];
        born[storage->first] = i;
        next_dying[i] = dying[storage->last];
        dying[storage->last] = i;
    }
    for (int32_t w = 0; w < plan->wave_count; w++) {
        for (int32_t i = born[w]; i >= 0; i = next_born[i]) {
            opq_storage *storage = &plan->storage[i];
            int64_t bytes = storage->bytes > INT64_MAX - 63 ? INT64_MAX : padded(storage->bytes);
            storage->offset = take(free_space, bytes, alignment(storage->bytes));
            if (storage->offset < 0)
                return opq_fail(
                    OPQ_NO_MEMORY,
                    "can't allocate memory: you tried to allocate %lld bytes besides %lld for other temporaries",
                    (long long)storage->bytes, (long long)plan->arena_bytes);
            if (storage->offset + bytes > plan->arena_bytes)
                plan->arena_bytes = storage->offset + bytes;
        }
        for (int32_t i = dying[w]; i >= 0; i = next_dying[i]) {
            const opq_storage *storage = &plan->storage[i];
            give_back(free_space, storage->offset, storage->offset + padded(storage->bytes));
        }
    }
    return OPQ_OK;
}

static opq_status place_temporaries(opq_planner *p)
{
    opq_plan *plan = p->plan;
    size_t room = (size_t)plan->wave_count + (size_t)plan->storage_count + 1;
    int32_t *lists = opq_arena_alloc(&p->scratch, room * 2 * sizeof *lists);
    gaps free_space = {opq_arena_alloc(&p->scratch, ((size_t)plan->storage_count + 2) * sizeof(gap)), 1};
    if (lists == NULL || free_space.items == NULL)
        return opq_plan_no_memory();
    free_space.items[0] = (gap){0, INT64_MAX};
    return place_by_wave(plan, lists, lists + room, &free_space);
}

opq_status opq_plan_storage(opq_planner *p, const int32_t *outputs, int output_count)
{
    opq_plan *plan = p->plan;
    uint8_t *is_output = opq_arena_alloc(&p->scratch, (size_t)plan->storage_count + 1);
    if (is_output == NULL)
        return opq_plan_no_memory();
    for (int i = 0; i < output_count; i++)
        if (outputs[i] >= 0)
            is_output[outputs[i]] = 1;
    for (int32_t i = 0; i < plan->storage_count; i++)
        plan->input_bytes += plan->storage[i].home == OPQ_HOME_input ? plan->storage[i].bytes : 0;
    find_lifetimes(plan);
    update_in_place(p, is_output);
    count_copies(plan);
    rename_all(p);
    OPQ_TRY(place_outputs(p, outputs, output_count));
    return place_temporaries(p);
}
