/* Bump allocation: blocks in a list, newest first, dropped whole. What is given is zeroed. A thread keeps some of the first blocks that it dropped:
 * a plan of one op makes seven arenas, and allocating these took a third of its time. */
#include "graph/graph.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 20, SPARES_MAX = 16 };

struct opq_arena_block {
    struct opq_arena_block *next;
    size_t capacity;
    _Alignas(ALIGN) char data[];
};

/* ---- blocks that a thread keeps */

typedef struct spares {
    struct opq_arena_block *first;
    int count;
} spares;

static pthread_key_t spares_key; /* ends them with their thread */
static _Thread_local spares *mine;

static void free_spares(void *of)
{
    spares *kept = of;
    while (kept->first) {
        struct opq_arena_block *block = kept->first;
        kept->first = block->next;
        free(block);
    }
    free(kept);
    mine = NULL;
}

static void make_key(void) { (void)pthread_key_create(&spares_key, free_spares); }

static spares *find_spares(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (mine)
        return mine;
    pthread_once(&once, make_key);
    mine = calloc(1, sizeof *mine);
    if (mine && pthread_setspecific(spares_key, mine) != 0) {
        free(mine);
        mine = NULL;
    }
    return mine;
}

static struct opq_arena_block *take_block(size_t capacity)
{
    if (capacity == FIRST_BLOCK && mine && mine->first) {
        struct opq_arena_block *block = mine->first;
        mine->first = block->next;
        mine->count--;
        return block;
    }
    struct opq_arena_block *block = malloc(sizeof *block + capacity);
    if (block)
        block->capacity = capacity;
    return block;
}

static void give_block(struct opq_arena_block *block)
{
    spares *kept = block->capacity == FIRST_BLOCK ? find_spares() : NULL;
    if (kept == NULL || kept->count == SPARES_MAX) {
        free(block);
        return;
    }
    block->next = kept->first;
    kept->first = block;
    kept->count++;
}

/* ---- arenas */

static bool add_block(opq_arena *arena, size_t capacity)
{
    struct opq_arena_block *block = take_block(capacity);
    if (!block)
        return false;
    block->next = arena->blocks;
    arena->blocks = block;
    arena->used = 0;
    return true;
}

static bool grow(opq_arena *arena, size_t bytes)
{
    bool grows = arena->blocks && arena->blocks->next; /* the second is one that threads keep, too */
    size_t capacity = grows ? arena->blocks->capacity * 2 : FIRST_BLOCK;
    if (capacity > LARGEST_BLOCK)
        capacity = LARGEST_BLOCK;
    return add_block(arena, capacity < bytes ? bytes : capacity);
}

bool opq_arena_begin(opq_arena *arena, size_t bytes) { return add_block(arena, (bytes + ALIGN - 1) / ALIGN * ALIGN); }

void *opq_arena_room(opq_arena *arena, size_t bytes)
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

void *opq_arena_alloc(opq_arena *arena, size_t bytes)
{
    void *result = opq_arena_room(arena, bytes);
    return result ? memset(result, 0, bytes) : NULL;
}

void *opq_arena_copy(opq_arena *arena, const void *data, size_t bytes)
{
    void *copy = opq_arena_room(arena, bytes);
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

size_t opq_arena_given(const opq_arena *arena)
{
    size_t bytes = arena->used;
    for (const struct opq_arena_block *block = arena->blocks ? arena->blocks->next : NULL; block; block = block->next)
        bytes += block->capacity;
    return bytes;
}

void opq_arena_drop(opq_arena *arena)
{
    while (arena->blocks) {
        struct opq_arena_block *block = arena->blocks;
        arena->blocks = block->next;
        give_block(block);
    }
    arena->used = 0;
}
