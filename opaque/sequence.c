/* The order in which values were recorded. */
#include "opaque/snapshot.h"

#include <stdlib.h>
#include <string.h>

static int by_sequence(const void *a, const void *b)
{
    uint64_t x = (*(opq_value *const *)a)->sequence, y = (*(opq_value *const *)b)->sequence;
    return (x > y) - (x < y);
}

/* Each to its place by its number, where there are not many more numbers than values. False: there are, or no memory. */
static bool place(const opq_snapshot *s)
{
    const opq_list *nodes = &s->nodes;
    enum { SPARSE = 4 };
    uint64_t first = UINT64_MAX, last = 0;
    for (int i = 0; i < nodes->count; i++) {
        first = nodes->items[i]->sequence < first ? nodes->items[i]->sequence : first;
        last = nodes->items[i]->sequence > last ? nodes->items[i]->sequence : last;
    }
    size_t room = (size_t)(last - first + 1);
    opq_value **places = room <= (size_t)nodes->count * SPARSE ? opq_room_take(s->room, room * sizeof *places) : NULL;
    if (places == NULL)
        return false;
    memset(places, 0, room * sizeof *places);
    for (int i = 0; i < nodes->count; i++)
        places[nodes->items[i]->sequence - first] = nodes->items[i];
    for (size_t i = 0, count = 0; i < room; i++)
        if (places[i])
            nodes->items[count++] = places[i];
    return true;
}

/* Chains are met in descending order, held values of a loop in ascending order: only what is neither is sorted. */
void opq_snapshot_sort(const opq_snapshot *s)
{
    const opq_list *nodes = &s->nodes;
    bool ascending = true, descending = true;
    for (int i = 1; i < nodes->count && (ascending || descending); i++) {
        bool up = nodes->items[i - 1]->sequence < nodes->items[i]->sequence;
        ascending = ascending && up;
        descending = descending && !up;
    }
    for (int i = 0, k = nodes->count - 1; descending && i < k; i++, k--) {
        opq_value *swapped = nodes->items[i];
        nodes->items[i] = nodes->items[k];
        nodes->items[k] = swapped;
    }
    if (!ascending && !descending && !place(s))
        qsort(nodes->items, (size_t)nodes->count, sizeof *nodes->items, by_sequence);
}

uint64_t opq_sequence(const opq_ctx *ctx) { return atomic_load_explicit(&ctx->sequence, memory_order_relaxed); }

opq_status opq_held_since(opq_ctx *ctx, uint64_t sequence, opq_value ***out_values, int *out_count)
{
    uint32_t origin = opq_origin_get();
    opq_list held = {0};
    size_t count = 0;
    opq_spin_lock(&ctx->lock);
    for (const opq_cell *cell = ctx->pending_cells; cell; cell = cell->next)
        count++;
    held.items = malloc((count + 1) * sizeof *held.items);
    for (const opq_cell *cell = ctx->pending_cells; cell && held.items; cell = cell->next) {
        if (cell->value->origin != origin || cell->value->sequence < sequence)
            continue;
        opq_value_retain(cell->value);
        held.items[held.count++] = cell->value;
    }
    opq_spin_unlock(&ctx->lock);
    if (held.items == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the values that are held");
    if (held.count > 1)
        qsort(held.items, (size_t)held.count, sizeof *held.items, by_sequence);
    *out_values = held.items;
    *out_count = held.count;
    return OPQ_OK;
}
