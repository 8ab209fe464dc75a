/* Joins plans: see plan_join.h. What a graph does that runs in pieces again and again is then one run of one plan, with all that lies between its pieces
 * in one arena.
 *
 *   %2 = mv %0 %1      [mv]      storage  b0 b1 | t0      one plan, of two steps:  b0 b1 t0 o0
 *   %3 = add %2 %1     [add]     storage  b0 b1 | o0
 *
 * needs   plans that are built
 * keeps   steps, their code and their order: all of a part before the next one
 * not     rows of one launch out of several parts; packed copies of what one part gives another
 */
#include "runtime/plan_join.h"
#include "runtime/plan_internal.h"

#include <string.h>

typedef struct joiner {
    opq_planner planner;
    const opq_join *join;
    int32_t **ids; /* per part, per storage of its plan: that of the joined plan */
    int32_t order; /* of the next part's first step */
} joiner;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "joined plans: out of memory"); }

/* ---- storage */

static bool reserve(joiner *j)
{
    opq_plan *plan = j->planner.plan;
    const opq_join *join = j->join;
    size_t storages = (size_t)join->input_count, steps = 0, waves = 0, slots = 0;
    for (int k = 0; k < join->part_count; k++) {
        const opq_plan *part = join->parts[k].plan;
        storages += (size_t)part->storage_count;
        steps += (size_t)part->step_count;
        waves += (size_t)part->wave_count;
        slots += (size_t)part->slot_count;
    }
    opq_arena *arena = &plan->arena, *scratch = &j->planner.scratch;
    plan->parts = opq_arena_alloc(arena, ((size_t)join->part_count + 1) * sizeof *plan->parts);
    plan->storage = opq_arena_alloc(arena, (storages + 1) * sizeof *plan->storage);
    plan->steps = opq_arena_alloc(arena, (steps + 1) * sizeof *plan->steps);
    plan->waves = opq_arena_alloc(arena, (waves + 1) * sizeof *plan->waves);
    plan->slot_source = opq_arena_alloc(arena, (slots + 1) * sizeof *plan->slot_source);
    plan->slot_value = opq_arena_alloc(arena, (slots + 1) * sizeof *plan->slot_value);
    j->planner.same_as = opq_arena_alloc(scratch, (storages + 1) * sizeof *j->planner.same_as);
    j->ids = opq_arena_alloc(scratch, ((size_t)join->part_count + 1) * sizeof *j->ids);
    return plan->parts && plan->storage && plan->steps && plan->waves && plan->slot_source && plan->slot_value &&
           j->planner.same_as && j->ids;
}

static int32_t add_storage(joiner *j, opq_home home, int32_t index, int64_t offset, int64_t bytes)
{
    opq_plan *plan = j->planner.plan;
    int32_t id = plan->storage_count++;
    plan->storage[id] =
        (opq_storage){.home = home, .index = index, .offset = offset, .bytes = bytes, .first = -1, .last = -1};
    j->planner.same_as[id] = id;
    return id;
}

static void add_inputs(joiner *j)
{
    for (int i = 0; i < j->join->input_count; i++)
        (void)add_storage(j, OPQ_HOME_input, i, 0, j->join->input_bytes[i]);
    j->planner.plan->input_count = j->join->input_count;
}

static int32_t output_of(const joiner *j, int32_t part, int32_t number)
{
    return j->ids[part][j->join->parts[part].plan->output_storage[number]];
}

/* All of what it is taken from, or a part of it. */
static int32_t find_source(joiner *j, const opq_join_source *source)
{
    const opq_storage *storage = j->planner.plan->storage;
    int32_t base = source->part == OPQ_JOIN_INPUTS ? source->number : output_of(j, source->part, source->number);
    if (source->first == 0 && source->bytes == storage[base].bytes)
        return base;
    bool part = storage[base].home == OPQ_HOME_part;
    return add_storage(j, OPQ_HOME_part, part ? storage[base].index : base,
                       source->first + (part ? storage[base].offset : 0), source->bytes);
}

static opq_status number_storage(joiner *j, int k)
{
    const opq_join_part *part = &j->join->parts[k];
    int32_t count = part->plan->storage_count;
    int32_t *ids = j->ids[k] = opq_arena_alloc(&j->planner.scratch, ((size_t)count + 1) * sizeof *ids);
    if (ids == NULL)
        return out_of_memory();
    for (int32_t i = 0; i < count; i++) {
        const opq_storage *storage = &part->plan->storage[i];
        bool input = storage->home == OPQ_HOME_input;
        if (input && part->inputs[storage->index].bytes != storage->bytes)
            return opq_fail(OPQ_INTERNAL, "joined plans: input %d of part %d has another size", storage->index, k);
        ids[i] = input ? find_source(j, &part->inputs[storage->index])
                       : add_storage(j, OPQ_HOME_temporary, 0, 0, storage->bytes);
    }
    return OPQ_OK;
}

/* ---- steps */

static bool own(opq_plan *plan, int32_t **list, int count)
{
    *list = opq_arena_copy(&plan->arena, *list, (size_t)count * sizeof **list);
    return *list != NULL;
}

/* Numbers of storage below 0 stay. */
static bool copy_step(opq_plan *plan, const int32_t *ids, const opq_step *from, opq_step *made)
{
    int32_t *use;
    bool written;
    *made = *from;
    made->fresh = false;
    if (!own(plan, &made->buffers, made->loops.buffer_count) || !own(plan, &made->operands, made->operand_count) ||
        !own(plan, &made->results, made->result_count) || !own(plan, &made->scalars, made->loops.scalar_count))
        return false;
    for (int i = 0; (use = opq_step_use(made, i, &written)); i++)
        *use = *use < 0 ? *use : ids[*use];
    for (int i = 0; i < made->loops.scalar_count; i++)
        made->scalars[i] += plan->slot_count;
    if (made->part_count > 0)
        made->parts = opq_arena_copy(&plan->arena, from->parts, (size_t)made->part_count * sizeof *made->parts);
    for (int i = 0; i < made->part_count; i++)
        if (made->parts == NULL || !copy_step(plan, ids, &from->parts[i], &made->parts[i]))
            return false;
    if (made->copy_from >= 0) { /* counted again where it is still a copy */
        made->bytes_read -= plan->storage[made->copy_to].bytes;
        made->bytes_written -= plan->storage[made->copy_to].bytes;
    }
    return true;
}

static opq_status add_part(joiner *j, int k)
{
    opq_plan *plan = j->planner.plan;
    const opq_join_part *part = &j->join->parts[k];
    const opq_plan *from = part->plan;
    OPQ_TRY(number_storage(j, k));
    for (int32_t s = 0; s < from->step_count; s++) {
        opq_step *made = &plan->steps[plan->step_count + s];
        if (!copy_step(plan, j->ids[k], &from->steps[s], made))
            return out_of_memory();
        made->order += j->order;
    }
    for (int32_t w = 0; w < from->wave_count; w++) {
        opq_wave *made = &plan->waves[plan->wave_count++];
        *made = from->waves[w];
        made->first += plan->step_count;
    }
    for (int32_t i = 0; i < from->slot_count; i++) {
        bool given = from->slot_source[i] >= 0;
        plan->slot_source[plan->slot_count + i] = given ? part->scalars[from->slot_source[i]] : -1;
        plan->slot_value[plan->slot_count + i] = from->slot_value[i];
    }
    j->order += from->step_count;
    plan->step_count += from->step_count;
    plan->slot_count += from->slot_count;
    plan->row_max = from->row_max > plan->row_max ? from->row_max : plan->row_max;
    opq_plan_retain(part->plan);
    plan->parts[plan->part_count++] = part->plan;
    return OPQ_OK;
}

/* ---- the whole */

static opq_status find_outputs(joiner *j, int32_t **out_ids)
{
    const opq_join *join = j->join;
    int32_t *ids = opq_arena_alloc(&j->planner.scratch, ((size_t)join->output_count + 1) * sizeof *ids);
    *out_ids = ids;
    if (ids == NULL)
        return out_of_memory();
    for (int i = 0; i < join->output_count; i++) {
        ids[i] = output_of(j, join->outputs[i].part, join->outputs[i].number);
        if (j->planner.plan->storage[ids[i]].home == OPQ_HOME_part)
            return opq_fail(OPQ_UNSUPPORTED, "joined plans: output %d is a part of an input", i);
    }
    return OPQ_OK;
}

static opq_status join_all(joiner *j)
{
    int32_t *outputs;
    if (!reserve(j))
        return out_of_memory();
    add_inputs(j);
    for (int k = 0; k < j->join->part_count; k++)
        OPQ_TRY(add_part(j, k));
    OPQ_TRY(find_outputs(j, &outputs));
    OPQ_TRY(opq_plan_storage(&j->planner, outputs, j->join->output_count));
    return opq_plan_replacements(&j->planner);
}

opq_status opq_plan_join(const opq_runtime *runtime, const opq_join *join, opq_plan **out_plan)
{
    opq_plan *plan;
    OPQ_TRY(opq_plan_new(runtime, &plan));
    joiner j = {.planner.plan = plan, .join = join};
    opq_status status = join_all(&j);
    opq_arena_drop(&j.planner.scratch);
    if (status == OPQ_OK)
        *out_plan = plan;
    else
        opq_plan_release(plan);
    return status;
}
