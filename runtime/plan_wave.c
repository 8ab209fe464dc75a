/* Waves: steps with the same code that do not need each other are one launch, whose rows they are.
 *
 *     record order     a1 b1 c1 a2 b2 c2 a3 b3 c3      b needs a, c needs b; equal letters, equal code
 *     waves            [a1 a2 a3] [b1 b2 b3] [c1 c2 c3]
 *
 * A step goes into the first wave of its code that stands behind every wave it needs, or begins a wave behind all others: so steps move
 * forward only, and the order of waves is one in which each finds what it needs. Values are not placed yet: each is written once, and a
 * step needs another if it reads what that one writes. Memory is given by waves afterwards (plan_storage.c), so that rows of a wave share
 * none.
 *
 * What is made earlier waits longer for its reader, and in the cache that the reader would have found it in. So a step that others read
 * moves only if it writes little, and a wave of such steps is bounded.
 *
 * needs   steps with code and storage
 * keeps   what each step computes; the record order of steps that are alone
 * breaks  the order of steps (opq_step.order has it)
 * not     kernels that are evaluated (OPAQUE_EXECUTOR=reference); sinking a step to a later wave of its code: what follows a product of each
 *         row stays apart; products, whose engine has the threads for itself; calls; steps that copy an old value before they write, which could be done in
 *         place where they stand
 */
#define XXH_INLINE_ALL
#include "fusion/target.h"
#include "runtime/plan_internal.h"

#include <string.h>
#include <xxhash.h>

typedef struct pool {
    opq_planner *p;
    int32_t *made_in; /* per storage: its wave, -1 */
    uint8_t *read;    /* per storage: by a step */
    int32_t *code_of; /* per step: number of its code, -1: it is no row */
    int32_t *first;   /* per code: where its waves begin in `waves_of` */
    int32_t *count;   /* per code: waves so far */
    int32_t *waves_of;
    int32_t *next_open; /* per wave: the next of its code with room, by number in the code's list; itself if it has room */
    int64_t *waits;     /* per wave: bytes that wait for a reader */
    int32_t *wave_of; /* per step */
    int32_t wave_count;
} pool;

/* ---- codes */

static bool can_be_row(const opq_planner *p, const opq_step *step)
{
    return (step->code || (p->dry && !p->runtime->run_loops)) && step->kind != OPQ_KERNEL_extern && !step->routine &&
           !step->block && !step->matmul && !step->parts && step->copy_from < 0;
}

/* Equal for equal code, which a dry plan does not have; never 0. */
static opq_status identify(const opq_step *step, uint64_t *out_identity)
{
    opq_text key = {0};
    *out_identity = (uint64_t)(uintptr_t)step->code;
    if (step->code)
        return OPQ_OK;
    opq_loops_key(&step->loops, &key);
    *out_identity = XXH3_64bits(key.data, key.length) | 1;
    bool failed = key.failed;
    opq_text_drop(&key);
    return failed ? opq_plan_no_memory() : OPQ_OK;
}

/* Numbers codes by first use. */
static opq_status number_codes(pool *w, uint64_t *table, uint32_t capacity, int32_t *numbers, int32_t *out_count)
{
    *out_count = 0;
    for (int32_t s = 0; s < w->p->plan->step_count; s++) {
        const opq_step *step = &w->p->plan->steps[s];
        uint64_t identity;
        w->code_of[s] = -1;
        if (!can_be_row(w->p, step))
            continue;
        OPQ_TRY(identify(step, &identity));
        uint32_t at = (uint32_t)((identity >> 4) * 0x9e3779b97f4a7c15ull >> 32) & (capacity - 1);
        while (table[at] && table[at] != identity)
            at = (at + 1) & (capacity - 1);
        if (table[at] == 0) {
            table[at] = identity;
            numbers[at] = (*out_count)++;
        }
        w->code_of[s] = numbers[at];
    }
    return OPQ_OK;
}

static opq_status find_codes(pool *w)
{
    int32_t steps = w->p->plan->step_count, at = 0;
    uint32_t capacity = 16;
    while (capacity < 2 * (uint32_t)steps)
        capacity *= 2;
    uint64_t *table = opq_arena_alloc(&w->p->scratch, capacity * sizeof *table);
    int32_t *numbers = opq_arena_alloc(&w->p->scratch, capacity * sizeof *numbers);
    int32_t codes;
    if (table == NULL || numbers == NULL)
        return opq_plan_no_memory();
    OPQ_TRY(number_codes(w, table, capacity, numbers, &codes));
    for (int32_t s = 0; s < steps; s++) /* no code has more waves than steps */
        if (w->code_of[s] >= 0)
            w->count[w->code_of[s]]++;
    for (int32_t c = 0; c < codes; c++) {
        w->first[c] = at;
        at += w->count[c];
        w->count[c] = 0;
    }
    return OPQ_OK;
}

/* ---- choosing */

/* The last wave that the step needs, -1: none. */
static int32_t last_needed(const pool *w, opq_step *step)
{
    int32_t behind = -1;
    const int32_t *use;
    bool written;
    for (int i = 0; (use = opq_step_use(step, i, &written)); i++)
        if (*use >= 0 && w->made_in[*use] > behind)
            behind = w->made_in[*use];
    return behind;
}

static int64_t bytes_waiting(const pool *w, const opq_step *step)
{
    int64_t bytes = 0;
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->loops.written[i] && step->buffers[i] >= 0 && w->read[step->buffers[i]])
            bytes += w->p->plan->storage[step->buffers[i]].bytes;
    return bytes;
}

/* The first from number `from` of a code's list on that has room; `count`: none. */
static int32_t find_open(const pool *w, const int32_t *list, int32_t count, int32_t from)
{
    int32_t open = from;
    while (open < count && w->next_open[list[open]] != open)
        open = w->next_open[list[open]];
    for (int32_t i = from; i < open;) {
        int32_t next = w->next_open[list[i]];
        w->next_open[list[i]] = open;
        i = next;
    }
    return open;
}

static int32_t new_wave(pool *w) { return w->wave_count++; }

static int32_t choose_wave(pool *w, int32_t s)
{
    opq_step *step = &w->p->plan->steps[s];
    int32_t code = w->code_of[s], behind = last_needed(w, step);
    if (code < 0)
        return new_wave(w);
    int32_t *list = w->waves_of + w->first[code], low = 0, high = w->count[code];
    int64_t waits = bytes_waiting(w, step);
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (list[middle] > behind)
            high = middle;
        else
            low = middle + 1;
    }
    int32_t at = waits > opq_trees.row_waits_max ? w->count[code] : find_open(w, list, w->count[code], low);
    if (at == w->count[code]) {
        int32_t wave = new_wave(w);
        list[w->count[code]++] = wave;
        w->next_open[wave] = at;
    }
    w->waits[list[at]] += waits;
    if (w->waits[list[at]] > opq_trees.wave_waits_max - opq_trees.row_waits_max)
        w->next_open[list[at]] = at + 1;
    return list[at];
}

static void choose(pool *w)
{
    const opq_plan *plan = w->p->plan;
    const int32_t *use;
    bool written;
    for (int32_t s = 0; s < plan->step_count; s++)
        for (int i = 0; (use = opq_step_use(&plan->steps[s], i, &written)); i++)
            if (*use >= 0 && !written)
                w->read[*use] = 1;
    for (int32_t s = 0; s < plan->step_count; s++) {
        w->wave_of[s] = choose_wave(w, s);
        for (int i = 0; (use = opq_step_use(&plan->steps[s], i, &written)); i++)
            if (*use >= 0 && written)
                w->made_in[*use] = w->wave_of[s];
    }
}

/* ---- what is launched */

static opq_status count_units(opq_plan *plan, opq_wave *wave)
{
    const opq_step *rows = &plan->steps[wave->first];
    wave->phases = rows->phases;
    wave->ends = opq_arena_alloc(&plan->arena, (size_t)wave->phases * (size_t)wave->count * sizeof *wave->ends);
    if (wave->ends == NULL)
        return opq_plan_no_memory();
    for (int32_t r = 0; r < wave->count; r++) {
        for (int p = 0; p < wave->phases; p++)
            wave->ends[p * wave->count + r] = rows[r].units[p] + (r > 0 ? wave->ends[p * wave->count + r - 1] : 0);
        wave->work += rows[r].bytes_read + rows[r].bytes_written + rows[r].flops;
    }
    return OPQ_OK;
}

/* Steps by wave, and in a wave as they were. */
static opq_status sort_steps(pool *w)
{
    opq_plan *plan = w->p->plan;
    opq_step *before = opq_arena_copy(&w->p->scratch, plan->steps, (size_t)plan->step_count * sizeof *before);
    plan->waves = opq_arena_alloc(&plan->arena, ((size_t)w->wave_count + 1) * sizeof *plan->waves);
    if (before == NULL || plan->waves == NULL)
        return opq_plan_no_memory();
    plan->wave_count = w->wave_count;
    for (int32_t s = 0; s < plan->step_count; s++)
        plan->waves[w->wave_of[s]].count++;
    for (int32_t i = 0; i < w->wave_count; i++) {
        plan->waves[i + 1].first = plan->waves[i].first + plan->waves[i].count;
        plan->row_max = plan->waves[i].count > plan->row_max ? plan->waves[i].count : plan->row_max;
        plan->waves[i].count = 0;
    }
    for (int32_t s = 0; s < plan->step_count; s++) {
        opq_wave *wave = &plan->waves[w->wave_of[s]];
        plan->steps[wave->first + wave->count++] = before[s];
    }
    for (int32_t i = 0; i < w->wave_count; i++)
        if (plan->waves[i].count > 1)
            OPQ_TRY(count_units(plan, &plan->waves[i]));
    return OPQ_OK;
}

opq_status opq_plan_waves(opq_planner *p)
{
    const opq_plan *plan = p->plan;
    size_t steps = (size_t)plan->step_count + 1, storages = (size_t)plan->storage_count + 1;
    pool w = {.p = p};
    w.waits = opq_arena_alloc(&p->scratch, steps * sizeof *w.waits);
    w.made_in = opq_arena_alloc(&p->scratch, (storages + 6 * steps) * sizeof *w.made_in);
    w.read = opq_arena_alloc(&p->scratch, storages);
    if (w.waits == NULL || w.made_in == NULL || w.read == NULL)
        return opq_plan_no_memory();
    memset(w.made_in, -1, storages * sizeof *w.made_in);
    w.count = w.made_in + storages;
    w.code_of = w.count + steps;
    w.first = w.code_of + steps;
    w.waves_of = w.first + steps;
    w.next_open = w.waves_of + steps;
    w.wave_of = w.next_open + steps;
    OPQ_TRY(find_codes(&w));
    choose(&w);
    return sort_steps(&w);
}
