/* What a run has written over in inputs that its outputs take (plan_replace.c), a log: bytes, then where they were. */
#include "runtime/undo.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    char *at;
    size_t bytes;
} entry;

static opq_status note(opq_undo *undo, void *at, size_t bytes)
{
    const entry e = {at, bytes};
    size_t needed = undo->used + bytes + sizeof e;
    if (needed > undo->capacity) {
        size_t capacity = needed + needed / 2 + 4096;
        char *grown = realloc(undo->log, capacity);
        if (grown == NULL)
            return opq_fail(OPQ_NO_MEMORY, "out of memory");
        undo->log = grown;
        undo->capacity = capacity;
    }
    memcpy(undo->log + undo->used, at, bytes);
    memcpy(undo->log + undo->used + bytes, &e, sizeof e);
    undo->used = needed;
    return OPQ_OK;
}

/* The last one first: what was written over twice is as it was at first. */
void opq_undo_all(opq_undo *undo)
{
    while (undo->used > 0) {
        entry e;
        memcpy(&e, undo->log + undo->used - sizeof e, sizeof e);
        undo->used -= e.bytes + sizeof e;
        memcpy(e.at, undo->log + undo->used, e.bytes);
    }
}

void opq_undo_drop(opq_undo *undo) { free(undo->log); }

/* The elements that a kernel stores through its access `a`; the last loop whose elements lie side by side is one entry. */
static opq_status note_window(opq_undo *undo, const opq_step *step, int a, char *memory)
{
    const opq_loops *k = &step->loops;
    int64_t item = opq_dtype_bytes((opq_dtype)k->accesses[a].dtype), first = step->dims[opq_dims_of(k->rank, a)];
    int64_t extent[OPQ_LOOP_MAX], stride[OPQ_LOOP_MAX], index[OPQ_LOOP_MAX] = {0}, side = 1, count = 1;
    int rank = 0;
    for (int l = 0; l < k->rank; l++) {
        int64_t moves = opq_loops_stride(k, step->dims, a, l);
        count *= step->dims[l] > 0;
        if (moves == 1 && side == 1)
            side = step->dims[l];
        else if (moves != 0)
            extent[rank] = step->dims[l], stride[rank++] = moves;
    }
    for (bool more = count > 0; more;) {
        int64_t at = first;
        for (int l = 0; l < rank; l++)
            at += index[l] * stride[l];
        OPQ_TRY(note(undo, memory + at * item, (size_t)(side * item)));
        more = false;
        for (int l = rank - 1; l >= 0 && !more; l--) {
            more = ++index[l] < extent[l];
            index[l] = more ? index[l] : 0;
        }
    }
    return OPQ_OK;
}

/* The lines of an index_set, whose indices have been looked at. */
static opq_status note_lines(opq_undo *undo, const opq_run_state *run, const opq_step *step)
{
    const opq_type *type = &step->routine->type, *source = &opq_node_at(step->graph, step->routine->operand[2])->type;
    const int64_t *at = opq_run_data(run, step->operands[1]);
    int axis = (int)opq_node_int(step->routine, OPQ_ATTR_axis, 0);
    int64_t rows = 1, bytes = opq_dtype_bytes((opq_dtype)type->dtype), count = source->size[axis];
    for (int d = 0; d < axis; d++)
        rows *= type->size[d];
    for (int d = axis + 1; d < type->rank; d++)
        bytes *= type->size[d];
    char *out = opq_run_data(run, step->results[0]);
    for (int64_t r = 0; r < rows && bytes > 0; r++)
        for (int64_t i = 0; i < count; i++)
            OPQ_TRY(note(undo, out + (r * type->size[axis] + at[i]) * bytes, (size_t)bytes));
    return OPQ_OK;
}

int32_t opq_undo_target(const opq_step *step, int *out_access)
{
    const opq_loops *k = &step->loops;
    int found = -1, count = 0;
    *out_access = -1;
    if (step->routine)
        return step->routine->op == OPQ_OP_index_set ? step->results[0] : -1;
    if (step->kind != OPQ_KERNEL_update || step->block || step->matmul || step->parts)
        return -1;
    for (int a = 0; a < k->access_count; a++)
        if (k->written[k->accesses[a].buffer] == OPQ_BUFFER_out)
            found = a, count++;
    *out_access = found;
    return count == 1 ? step->buffers[k->accesses[found].buffer] : -1;
}

bool opq_undo_covers(const opq_run_state *run, int32_t id)
{
    const opq_storage *storage = &run->plan->storage[id];
    int32_t input = storage->home == OPQ_HOME_output ? run->takes[storage->index] : -1;
    return input >= 0 && run->outputs[storage->index] == run->call->inputs[input] &&
           opq_plan_replacement(run->plan, storage->index, input)->remembers;
}

opq_status opq_undo_note_step(const opq_run_state *run, const opq_step *step)
{
    int access;
    int32_t target = run->undo->needed ? opq_undo_target(step, &access) : -1;
    if (target < 0 || !opq_undo_covers(run, target))
        return OPQ_OK;
    return step->routine ? note_lines(run->undo, run, step)
                         : note_window(run->undo, step, access, opq_run_data(run, target));
}
