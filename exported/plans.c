/* A plan from its numbers, which stand one after the other as opaque/export_steps.c puts them:
 *
 *   counts    of steps, waves, rows of a wave at most, storage, inputs, outputs, buffers, replacements; the first sure wave; slots
 *   arena     its bytes
 *   steps     its kind, and those numbers that vary in the kind
 *   waves     how many steps; of more than one: phases, work, ends of the phases
 *   storage   home, index, offset, bytes, first and last wave; then storage per output; bytes and first replacement per buffer; replacements
 *   slots     source per slot; then value per slot
 */
#include "exported/exported.h"
#include "runtime/step_numbers.h"

typedef struct reader {
    const int32_t *at;
    opq_arena arena;
    bool failed;
} reader;

static int64_t next(reader *r)
{
    int32_t word = *r->at++;
    if (word != OPQ_NUMBER_WIDE)
        return word;
    uint64_t low = (uint32_t)r->at[0], high = (uint32_t)r->at[1];
    r->at += 2;
    return (int64_t)(low | high << 32);
}

static void *room(reader *r, int64_t count, size_t size)
{
    void *data = opq_arena_alloc(&r->arena, ((size_t)count + 1) * size);
    r->failed |= data == NULL;
    return data;
}

static int32_t *read_int32s(reader *r, int64_t count)
{
    int32_t *data = room(r, count, sizeof *data);
    for (int64_t i = 0; data && i < count; i++)
        data[i] = (int32_t)next(r);
    return data;
}

/* ---- steps */

typedef struct placing {
    opq_step_visitor visitor;
    reader *reader;
    const int32_t *varies;
    int64_t at; /* number of the next one visited */
} placing;

static void *copy(opq_step_visitor *visitor, const void *data, int64_t bytes)
{
    reader *r = ((placing *)visitor)->reader;
    void *made = opq_arena_copy(&r->arena, data, (size_t)bytes);
    r->failed |= made == NULL;
    return made;
}

static void place_sizes(opq_step_visitor *visitor, int64_t *first, int64_t count)
{
    placing *p = (placing *)visitor;
    for (; !p->reader->failed && *p->varies >= 0 && *p->varies < p->at + count; p->varies++)
        first[*p->varies - p->at] = next(p->reader);
    p->at += count;
}

static void place_places(opq_step_visitor *visitor, int32_t *first, int64_t count)
{
    placing *p = (placing *)visitor;
    for (; !p->reader->failed && *p->varies >= 0 && *p->varies < p->at + count; p->varies++)
        first[*p->varies - p->at] = (int32_t)next(p->reader);
    p->at += count;
}

static void read_steps(reader *r, const opq_exported *what, opq_plan *plan)
{
    plan->steps = room(r, plan->step_count, sizeof *plan->steps);
    for (int32_t i = 0; i < plan->step_count && !r->failed; i++) {
        const opq_exported_step *kind = &what->steps[next(r)];
        placing p = {
            .visitor = {.sizes = place_sizes, .places = place_places, .own = copy}, .reader = r, .varies = kind->varies};
        plan->steps[i] = *kind->like;
        opq_step_visit(&p.visitor, &plan->steps[i]);
    }
}

static void read_waves(reader *r, opq_plan *plan)
{
    plan->waves = room(r, plan->wave_count, sizeof *plan->waves);
    for (int32_t i = 0, first = 0; i < plan->wave_count && !r->failed; i++) {
        opq_wave *wave = &plan->waves[i];
        wave->first = first;
        wave->count = (int32_t)next(r);
        first += wave->count;
        if (wave->count == 1)
            continue;
        wave->phases = (int)next(r);
        wave->work = next(r);
        int64_t ends = (int64_t)wave->phases * wave->count;
        wave->ends = room(r, ends, sizeof *wave->ends);
        for (int64_t k = 0; wave->ends && k < ends; k++)
            wave->ends[k] = next(r);
    }
}

static void read_storage(reader *r, opq_plan *plan)
{
    plan->storage = room(r, plan->storage_count, sizeof *plan->storage);
    for (int32_t i = 0; i < plan->storage_count && !r->failed; i++) {
        opq_storage *one = &plan->storage[i];
        one->home = (opq_home)next(r);
        one->index = (int32_t)next(r);
        one->offset = next(r);
        one->bytes = next(r);
        one->first = (int32_t)next(r);
        one->last = (int32_t)next(r);
    }
    plan->output_storage = read_int32s(r, plan->output_count);
    plan->buffer_bytes = room(r, plan->buffer_count, sizeof *plan->buffer_bytes);
    for (int32_t i = 0; i < plan->buffer_count && !r->failed; i++)
        plan->buffer_bytes[i] = next(r);
    plan->first_replacement = read_int32s(r, plan->buffer_count);
    plan->replacements = room(r, plan->replacement_count, sizeof *plan->replacements);
    for (int32_t i = 0; i < plan->replacement_count && !r->failed; i++) {
        plan->replacements[i].input = (int32_t)next(r);
        plan->replacements[i].next = (int32_t)next(r);
        plan->replacements[i].remembers = (int32_t)next(r);
    }
}

static void read_slots(reader *r, opq_plan *plan)
{
    plan->slot_source = read_int32s(r, plan->slot_count);
    plan->slot_value = room(r, plan->slot_count, sizeof *plan->slot_value);
    for (int32_t i = 0; i < plan->slot_count && !r->failed; i++)
        plan->slot_value[i].i = next(r);
}

opq_status opq_exported_plan(const opq_exported *what, int plan, opq_plan **out_plan)
{
    reader r = {.at = what->numbers + what->plans[plan]};
    opq_plan *made = room(&r, 1, sizeof *made);
    if (made) {
        int32_t *counts[] = {&made->step_count,  &made->wave_count,   &made->row_max,      &made->storage_count,
                             &made->input_count, &made->output_count, &made->buffer_count, &made->replacement_count,
                             &made->sure_wave,   &made->slot_count};
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            *counts[i] = (int32_t)next(&r);
        made->arena_bytes = next(&r);
        made->input_bytes = next(&r);
        read_steps(&r, what, made);
    }
    if (!r.failed)
        read_waves(&r, made);
    if (!r.failed)
        read_storage(&r, made);
    if (!r.failed)
        read_slots(&r, made);
    if (r.failed) {
        opq_arena_drop(&r.arena);
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    }
    made->arena = r.arena;
    *out_plan = made;
    return OPQ_OK;
}
