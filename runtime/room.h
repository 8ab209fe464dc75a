/* Memory of one call: from the caller's stack while it fits, then the C library's, given back at once. A run of a few ops allocates
 * nothing else; malloc for each of its lists took longer than such a run.
 */
#ifndef OPAQUE_RUNTIME_ROOM_H
#define OPAQUE_RUNTIME_ROOM_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { OPQ_ROOM_BYTES = 2048, OPQ_ROOM_ALIGN = 16, OPQ_ROOM_BLOCK = 64 << 10, OPQ_ROOM_SPARE_MAX = 32 };

typedef struct opq_room_block {
    struct opq_room_block *next;
    size_t bytes;
    _Alignas(OPQ_ROOM_ALIGN) char data[];
} opq_room_block;

/* Blocks of OPQ_ROOM_BLOCK that rooms gave back, for those that come. Whoever uses a room with spares has them alone. */
typedef struct opq_room_spares {
    opq_room_block *blocks;
    int count;
} opq_room_spares;

typedef struct opq_room {
    char *at, *end;
    opq_room_block *blocks;
    opq_room_spares *spares; /* NULL: none */
    _Alignas(OPQ_ROOM_ALIGN) char first[OPQ_ROOM_BYTES];
} opq_room;

static inline void opq_room_init(opq_room *room)
{
    room->at = room->first;
    room->end = room->first + sizeof room->first;
    room->blocks = NULL;
    room->spares = NULL;
}

static inline opq_room_block *opq_room_block_take(opq_room *room, size_t bytes)
{
    opq_room_spares *spares = room->spares;
    if (bytes <= OPQ_ROOM_BLOCK && spares && spares->blocks) {
        opq_room_block *block = spares->blocks;
        spares->blocks = block->next;
        spares->count--;
        return block;
    }
    bytes = bytes > OPQ_ROOM_BLOCK ? bytes : OPQ_ROOM_BLOCK;
    opq_room_block *block = malloc(sizeof *block + bytes);
    if (block)
        block->bytes = bytes;
    return block;
}

static inline void opq_room_block_give(opq_room_spares *spares, opq_room_block *block)
{
    if (spares == NULL || block->bytes != OPQ_ROOM_BLOCK || spares->count >= OPQ_ROOM_SPARE_MAX) {
        free(block);
        return;
    }
    block->next = spares->blocks;
    spares->blocks = block;
    spares->count++;
}

/* Not cleared. NULL without memory. */
static inline void *opq_room_take(opq_room *room, size_t bytes)
{
    bytes = (bytes + OPQ_ROOM_ALIGN - 1) / OPQ_ROOM_ALIGN * OPQ_ROOM_ALIGN;
    if ((size_t)(room->end - room->at) < bytes) {
        opq_room_block *block = opq_room_block_take(room, bytes);
        if (block == NULL)
            return NULL;
        block->next = room->blocks;
        room->blocks = block;
        room->at = block->data;
        room->end = block->data + block->bytes;
    }
    char *taken = room->at;
    room->at += bytes;
    return taken;
}

/* Room for `bytes` more behind the `used` ones at *memory, of which there are *capacity; what grows is moved. False without memory. */
static inline bool opq_room_extend(opq_room *room, void **memory, size_t used, size_t *capacity, size_t bytes)
{
    if (used + bytes <= *capacity)
        return true;
    size_t grown = (used + bytes) * 2;
    void *moved = opq_room_take(room, grown);
    if (moved == NULL)
        return false;
    if (used > 0)
        memcpy(moved, *memory, used);
    *memory = moved;
    *capacity = grown;
    return true;
}

static inline void opq_room_drop(opq_room *room)
{
    while (room->blocks) {
        opq_room_block *next = room->blocks->next;
        opq_room_block_give(room->spares, room->blocks);
        room->blocks = next;
    }
}

static inline void opq_room_spares_drop(opq_room_spares *spares)
{
    while (spares->blocks) {
        opq_room_block *next = spares->blocks->next;
        free(spares->blocks);
        spares->blocks = next;
    }
    spares->count = 0;
}

#endif
