/* Which outputs may lie where an input lay. The caller of a run says which inputs nobody needs afterwards (opq_run_call.replaces); here is
 * said where that is possible: what is then read and written is one stream of memory in place of two, and no second copy is held.
 *
 *     parallel a < d0
 *       %0 = load b0[a]         an element is read where its new value is stored, in the same turn, and the new value comes from it:
 *       %1 = mul %0, s0         no order of turns, lanes or threads reads what was already overwritten
 *       store b1[a], %1
 *
 * A run that fails is done again in parts, from its inputs. So a step replaces only behind the last one that may fail.
 *
 * An update, big[k] = row, of which nobody else reads the old value, has nothing to copy then; what fails elsewhere does not need the old
 * value either, so that it replaces it at once, as long as nothing that writes there may fail. Where somebody may need it, the few elements
 * that are written over are remembered until the run has come to its end (undo.c): one cache of all layers is written by each of them and
 * read in between.
 *
 * needs   waves, lifetimes, outputs
 * keeps   everything; what is found is only permitted
 * not     kernels that read an element more than once; inputs that a later step reads
 */
#include "runtime/plan_internal.h"
#include "runtime/undo.h"

#include <stdlib.h>
#include <string.h>

typedef struct finder {
    opq_plan *plan;
    int32_t *wave;    /* per storage: the last that reads it */
    int32_t *readers; /* per storage: how many steps of that wave do */
    int32_t *uses;    /* per storage: arguments of steps that it is */
    uint8_t *unsure;  /* per storage: a step that may fail writes it */
    uint8_t *untold;  /* per storage: a step writes it that cannot tell where before it runs */
    uint8_t *read;    /* per storage: by a step so far that does not write it */
    uint8_t *between; /* per storage: it was read so, and then written once more: what is computed again finds it as it is in the end */
    int32_t capacity;
} finder;

static bool may_fail(const opq_step *step)
{
    return step->code == NULL || step->kind == OPQ_KERNEL_extern || step->block || step->matmul || step->parts ||
           step->check_count > 0 || step->scratch > 0;
}

static bool writes(const opq_step *step, int32_t storage)
{
    bool found = false;
    for (int i = 0; i < step->loops.buffer_count; i++)
        found = found || (step->loops.written[i] == OPQ_BUFFER_out && step->buffers[i] == storage);
    for (int i = 0; i < step->result_count; i++)
        found = found || step->results[i] == storage;
    return found;
}

static void find_between(finder *f, const opq_step *step, const int32_t *ids, int count)
{
    for (int i = 0; i < count; i++) {
        int32_t id = opq_storage_base(f->plan->storage, ids[i]);
        if (id < 0)
            continue;
        bool written = writes(step, id);
        f->between[id] |= written && f->read[id];
        f->read[id] |= !written;
    }
}

static void count_reader(finder *f, int32_t storage, int32_t wave)
{
    storage = opq_storage_base(f->plan->storage, storage);
    if (storage < 0)
        return;
    if (f->wave[storage] != wave)
        f->readers[storage] = 0;
    f->wave[storage] = wave;
    f->readers[storage]++;
    f->uses[storage]++;
}

static void find_readers(finder *f)
{
    opq_plan *plan = f->plan;
    for (int32_t w = 0; w < plan->wave_count; w++)
        for (int32_t s = plan->waves[w].first; s < plan->waves[w].first + plan->waves[w].count; s++) {
            const opq_step *step = &plan->steps[s];
            int access;
            for (int i = 0; i < step->loops.buffer_count; i++)
                count_reader(f, step->buffers[i], w);
            for (int i = 0; i < step->operand_count; i++)
                count_reader(f, step->operands[i], w);
            count_reader(f, step->copy_from, w);
            find_between(f, step, step->buffers, step->loops.buffer_count);
            find_between(f, step, step->operands, step->operand_count);
            find_between(f, step, step->results, step->result_count);
            if (opq_undo_target(step, &access) < 0)
                opq_step_mark_written(step, f->untold);
            if (!may_fail(step))
                continue;
            plan->sure_wave = w + 1;
            if (step->routine == NULL || step->copy_to < 0) /* else it fails before it writes */
                opq_step_mark_written(step, f->unsure);
        }
}

/* ---- one kernel */

/* The only access of a buffer; -1: there are several. */
static int only_access(const opq_loops *k, int buffer)
{
    int found = -1;
    for (int a = 0; a < k->access_count; a++) {
        if (k->accesses[a].buffer != buffer)
            continue;
        if (found >= 0)
            return -1;
        found = a;
    }
    return found;
}

/* The only statement with an access; -1: there are several, or it is another op. */
static int only_stmt(const opq_loops *k, int access, int op)
{
    int found = -1;
    for (int i = 0; i < k->stmt_count; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (!opq_stmt_walks(stmt) || stmt->access != access)
            continue;
        if (found >= 0 || stmt->op != op)
            return -1;
        found = i;
    }
    return found;
}

static bool same_elements(const opq_step *step, int a, int b)
{
    const opq_loops *k = &step->loops;
    if (k->accesses[a].dtype != k->accesses[b].dtype ||
        step->dims[opq_dims_of(k->rank, a)] != step->dims[opq_dims_of(k->rank, b)])
        return false;
    for (int l = 0; l < k->rank; l++)
        if (opq_loops_stride(k, step->dims, a, l) != opq_loops_stride(k, step->dims, b, l))
            return false;
    return true;
}

/* No loop begins or ends between them. */
static bool in_one_body(const opq_loops *k, int first, int last)
{
    for (int i = 0; i < last; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && (i > first || (k->stmts[i].end > first && k->stmts[i].end <= last)))
            return false;
    return true;
}

/* Is the value stored made from the one loaded? */
static bool comes_from(const opq_loops *k, int store, int load)
{
    uint8_t *needed = calloc((size_t)k->stmt_count, 1);
    if (needed == NULL)
        return false;
    needed[store] = 1;
    for (int i = store; i > load; i--)
        for (int o = 0; o < 3 && needed[i]; o++)
            if (k->stmts[i].operand[o] >= 0)
                needed[k->stmts[i].operand[o]] = 1;
    bool found = needed[load];
    free(needed);
    return found;
}

static bool may_replace(const opq_step *step, int from, int to)
{
    const opq_loops *k = &step->loops;
    int read = only_access(k, from), written = only_access(k, to);
    if (read < 0 || written < 0 || !same_elements(step, read, written))
        return false;
    int load = only_stmt(k, read, OPQ_STMT_load), store = only_stmt(k, written, OPQ_STMT_store);
    return load >= 0 && store > load && in_one_body(k, load, store) && comes_from(k, store, load);
}

bool opq_step_may_update(const opq_step *step, int32_t old, int32_t made)
{
    int to = -1;
    for (int i = 1; i < step->operand_count; i++) /* of a routine; operand 0 is what it changes */
        if (step->operands[i] == old)
            return false;
    for (int i = 0; i < step->loops.buffer_count; i++)
        to = step->buffers[i] == made ? i : to;
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == old && (to < 0 || !may_replace(step, i, to)))
            return false;
    return true;
}

static opq_status permit(finder *f, int32_t buffer, int32_t input, bool remembers)
{
    opq_plan *plan = f->plan;
    if (plan->replacement_count == f->capacity) {
        int32_t capacity = f->capacity ? f->capacity * 2 : 4;
        opq_replacement *grown = opq_arena_alloc(&plan->arena, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return opq_plan_no_memory();
        if (plan->replacement_count > 0)
            memcpy(grown, plan->replacements, (size_t)plan->replacement_count * sizeof *grown);
        plan->replacements = grown;
        f->capacity = capacity;
    }
    plan->replacements[plan->replacement_count++] = (opq_replacement){input, plan->first_replacement[buffer], remembers};
    plan->first_replacement[buffer] = plan->replacement_count - 1;
    return OPQ_OK;
}

/* The old value is an input that no other step knows, or none behind the last that may fail; this one reads at most where it writes. Where a joined plan
 * fails its parts run, from its inputs: a step that has been done is done again then, on its own result. Nobody may have read that before it
 * was written once more, which what is computed again would find. Else what is written over has to be remembered. */
static opq_status look_at_update(finder *f, const opq_step *step, int32_t wave, const uint8_t *is_output)
{
    const opq_plan *plan = f->plan;
    int32_t old = step->copy_from, made = step->copy_to;
    bool repeats = step->routine && step->routine->op != OPQ_OP_scatter_prod;
    int reads = 0;
    for (int i = 0; i < step->loops.buffer_count; i++)
        reads += step->buffers[i] == old;
    for (int i = 0; i < step->operand_count; i++)
        reads += step->operands[i] == old;
    bool only = (plan->part_count == 0 || repeats) && f->uses[old] == 1 + reads && !f->between[made];
    bool last = f->wave[old] == wave && f->readers[old] == 1 + reads;
    bool replaces = !f->unsure[made] && (wave >= plan->sure_wave ? last : only), remembers = last && !f->untold[made];
    if (plan->storage[old].home != OPQ_HOME_input || plan->storage[made].home != OPQ_HOME_output || is_output[old] ||
        plan->storage[old].bytes != plan->storage[made].bytes || !(replaces || remembers) ||
        !opq_step_may_update(step, old, made))
        return OPQ_OK;
    return permit(f, plan->storage[made].index, plan->storage[old].index, !replaces);
}

static opq_status look_at(finder *f, const opq_step *step, int32_t wave, const uint8_t *is_output)
{
    const opq_plan *plan = f->plan;
    const opq_loops *k = &step->loops;
    if (step->copy_from >= 0)
        return look_at_update(f, step, wave, is_output);
    if (step->kind != OPQ_KERNEL_map || wave < plan->sure_wave)
        return OPQ_OK;
    for (int to = 0; to < k->buffer_count; to++) {
        if (!k->written[to] || step->buffers[to] < 0 || plan->storage[step->buffers[to]].home != OPQ_HOME_output)
            continue;
        for (int from = 0; from < k->buffer_count; from++) {
            int32_t id = step->buffers[from];
            if (k->written[from] || id < 0 || plan->storage[id].home != OPQ_HOME_input || is_output[id] ||
                f->wave[id] != wave || f->readers[id] != 1 ||
                plan->storage[id].bytes != plan->storage[step->buffers[to]].bytes || !may_replace(step, from, to))
                continue;
            OPQ_TRY(permit(f, plan->storage[step->buffers[to]].index, plan->storage[id].index, false));
        }
    }
    return OPQ_OK;
}

static opq_status look_at_all(finder *f, const uint8_t *is_output)
{
    const opq_plan *plan = f->plan;
    for (int32_t w = 0; w < plan->wave_count; w++)
        for (int32_t r = 0; r < plan->waves[w].count; r++)
            OPQ_TRY(look_at(f, &plan->steps[plan->waves[w].first + r], w, is_output));
    return OPQ_OK;
}

opq_status opq_plan_replacements(opq_planner *p)
{
    opq_plan *plan = p->plan;
    size_t storages = (size_t)plan->storage_count + 1, buffers = (size_t)plan->buffer_count + 1;
    finder f = {.plan = plan, .wave = opq_arena_alloc(&p->scratch, storages * (3 * sizeof *f.wave + 5))};
    plan->first_replacement = opq_arena_alloc(&plan->arena, buffers * sizeof *plan->first_replacement);
    if (f.wave == NULL || plan->first_replacement == NULL)
        return opq_plan_no_memory();
    f.readers = f.wave + storages;
    f.uses = f.readers + storages;
    f.unsure = (uint8_t *)(f.uses + storages);
    f.untold = f.unsure + storages;
    f.read = f.untold + storages;
    f.between = f.read + storages;
    uint8_t *is_output = f.between + storages;
    memset(f.wave, -1, storages * sizeof *f.wave);
    memset(plan->first_replacement, -1, buffers * sizeof *plan->first_replacement);
    find_readers(&f);
    for (int32_t i = 0; i < plan->output_count; i++)
        is_output[plan->output_storage[i]] = 1;
    return look_at_all(&f, is_output);
}
