/* Bump allocation: blocks in a list, newest first, zeroed, dropped whole. */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20 };

struct opq_arena_block {
    struct opq_arena_block *next;
    size_t capacity;
    _Alignas(ALIGN) char data[];
};

static bool grow(opq_arena *arena, size_t bytes)
{
    size_t capacity = arena->blocks ? arena->blocks->capacity * 2 : FIRST_BLOCK;
    if (capacity > LARGEST_BLOCK)
        capacity = LARGEST_BLOCK;
    if (capacity < bytes)
        capacity = bytes;
    struct opq_arena_block *block = calloc(1, sizeof *block + capacity);
    if (!block)
        return false;
    block->capacity = capacity;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->used = 0;
    return true;
}

void *opq_arena_alloc(opq_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!arena->blocks || arena->blocks->capacity - arena->used < bytes)
        if (!grow(arena, bytes))
            return NULL;
    void *result = arena->blocks->data + arena->used;
    arena->used += bytes;
    return result;
}

void *opq_arena_copy(opq_arena *arena, const void *data, size_t bytes)
{
    void *copy = opq_arena_alloc(arena, bytes);
    if (copy && bytes)
        memcpy(copy, data, bytes);
    return copy;
}

char *opq_arena_text(opq_arena *arena, const char *text) { return opq_arena_copy(arena, text, strlen(text) + 1); }

size_t opq_arena_bytes(const opq_arena *arena)
{
    size_t bytes = 0;
    for (const struct opq_arena_block *block = arena->blocks; block; block = block->next)
        bytes += sizeof *block + block->capacity;
    return bytes;
}

void opq_arena_drop(opq_arena *arena)
{
    while (arena->blocks) {
        struct opq_arena_block *block = arena->blocks;
        arena->blocks = block->next;
        free(block);
    }
    arena->used = 0;
}
