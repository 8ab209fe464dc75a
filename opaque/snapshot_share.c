/* Equal numbers and equal views of leaves as one: for a captured function, in whose calls what is equal stays so. A loop of a thousand steps that
 * multiplies by .9 has one number then, not a thousand that each call hands over and each kernel takes. A graph that is recorded anew keeps them
 * apart: its plan serves others, in which they differ. */
#define XXH_INLINE_ALL
#include "opaque/capture_plan.h"
#include "opaque/capturing.h"
#include "opaque/snapshot.h"

#include <string.h>
#include <xxhash.h>

/* What makes two of them equal. Without padding, as bytes are compared. */
typedef struct number_key {
    opq_number constant;
    int32_t id, count, dtypes[OPQ_CAPTURE_CASTS];
} number_key;

typedef struct leaf_key {
    const opq_value *leaf;
    int64_t first, span; /* of a view */
    int64_t number;      /* of what is no view, -1 */
} leaf_key;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory for what a graph reads"); }

/* Per key the number of the first that is equal, counting these alone. */
static opq_status find_firsts(opq_room *room, const void *keys, size_t bytes, int32_t count, int32_t **out_first)
{
    uint32_t size = 16;
    while (size < (uint32_t)count)
        size *= 2;
    int32_t *head = opq_room_take(room, ((size_t)size + 2 * (size_t)count) * sizeof *head), firsts = 0;
    if (head == NULL)
        return out_of_memory();
    int32_t *next = head + size, *first = next + count;
    memset(head, -1, size * sizeof *head);
    for (int32_t i = 0; i < count; i++) {
        const char *key = (const char *)keys + (size_t)i * bytes;
        int32_t *list = &head[XXH3_64bits(key, bytes) & (size - 1)], at = *list;
        while (at >= 0 && memcmp((const char *)keys + (size_t)at * bytes, key, bytes) != 0)
            at = next[at];
        first[i] = at < 0 ? firsts++ : first[at];
        if (at >= 0)
            continue;
        next[i] = *list;
        *list = i;
    }
    *out_first = first;
    return OPQ_OK;
}

static opq_status first_numbers(const opq_snapshot *s, int32_t **out_first)
{
    number_key *keys = opq_room_take(s->room, ((size_t)s->scalars.count + 1) * sizeof *keys);
    if (keys == NULL)
        return out_of_memory();
    memset(keys, 0, (size_t)s->scalars.count * sizeof *keys);
    for (int i = 0; i < s->scalars.count; i++) {
        const opq_value *value = s->scalars.items[i];
        opq_dtype dtypes[OPQ_CAPTURE_CASTS] = {0};
        keys[i].id = opq_value_number_id(value, dtypes, OPQ_CAPTURE_CASTS, &keys[i].count);
        if (keys[i].id < 0) {
            keys[i].constant = value->scalar;
            dtypes[0] = (opq_dtype)value->type.dtype;
            keys[i].count = 1;
        }
        for (int k = 0; k < keys[i].count && k < OPQ_CAPTURE_CASTS; k++)
            keys[i].dtypes[k] = dtypes[k];
    }
    return find_firsts(s->room, keys, sizeof *keys, s->scalars.count, out_first);
}

static opq_status first_leaves(const opq_snapshot *s, int32_t **out_first)
{
    leaf_key *keys = opq_room_take(s->room, ((size_t)s->leaves.count + 1) * sizeof *keys);
    if (keys == NULL)
        return out_of_memory();
    for (int i = 0; i < s->leaves.count; i++) {
        const opq_view *view = opq_snapshot_leaf_view(s, i);
        keys[i] = (leaf_key){s->leaves.items[i], view ? view->first : 0, view ? opq_type_count(&view->leaf) : 0,
                             view ? -1 : i};
    }
    return find_firsts(s->room, keys, sizeof *keys, s->leaves.count, out_first);
}

static void renumber(opq_codes *codes, int set, const int32_t *first)
{
    for (int i = 0; i < codes->count; i++)
        if (opq_code_set(codes->items[i]) == set)
            codes->items[i] = opq_code_make(set, first[opq_code_number(codes->items[i])]);
}

static bool copy_codes(opq_room *room, opq_codes *codes)
{
    int32_t *items = opq_room_take(room, ((size_t)codes->count + 1) * sizeof *items);
    if (items)
        memcpy(items, codes->items, (size_t)codes->count * sizeof *items);
    codes->items = items;
    return items != NULL;
}

/* The firsts of the items, in order. */
static int keep_firsts(opq_value *const *from, int count, const int32_t *first, opq_value **out)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (first[i] == kept)
            out[kept++] = from[i];
    return kept;
}

static opq_status share(const opq_snapshot *s, opq_snapshot *out)
{
    int32_t *leaf, *number;
    OPQ_TRY(first_leaves(s, &leaf));
    OPQ_TRY(first_numbers(s, &number));
    *out = *s;
    out->key = NULL;
    out->key_bytes = out->key_capacity = 0;
    size_t leaves = (size_t)s->leaves.count + 1;
    out->leaves.items = opq_room_take(s->room, leaves * sizeof *out->leaves.items);
    out->scalars.items = opq_room_take(s->room, ((size_t)s->scalars.count + 1) * sizeof *out->scalars.items);
    out->view_of_leaf = s->view_of_leaf ? opq_room_take(s->room, leaves * sizeof(opq_view *)) : NULL;
    if (!out->leaves.items || !out->scalars.items || (s->view_of_leaf && !out->view_of_leaf) ||
        !copy_codes(s->room, &out->operands) || !copy_codes(s->room, &out->asked) || !copy_codes(s->room, &out->replaces))
        return out_of_memory();
    for (int i = s->leaves.count - 1; i >= 0 && s->view_of_leaf; i--)
        out->view_of_leaf[leaf[i]] = s->view_of_leaf[i];
    out->leaves.count = keep_firsts(s->leaves.items, s->leaves.count, leaf, out->leaves.items);
    out->scalars.count = keep_firsts(s->scalars.items, s->scalars.count, number, out->scalars.items);
    renumber(&out->operands, OPQ_SET_leaf, leaf);
    renumber(&out->operands, OPQ_SET_scalar, number);
    renumber(&out->asked, OPQ_SET_leaf, leaf);
    for (int i = 0; i < out->replaces.count; i++)
        if (s->replaces.items[i] >= 0)
            out->replaces.items[i] = leaf[s->replaces.items[i]];
    return OPQ_OK;
}

opq_status opq_snapshot_captured(const opq_snapshot *s, opq_snapshot *out_snapshot)
{
    opq_snapshot any_offset;
    bool any;
    OPQ_TRY(opq_snapshot_without_offsets(s, &any_offset, &any));
    return share(any ? &any_offset : s, out_snapshot);
}
