/* Blocks of multiples of a cache line, cut from slabs; what is given back waits in a list by size. */
#include "opaque/value_pool.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, SLAB = 64 << 10 };

void opq_value_pool_init(opq_value_pool *pool)
{
#if defined(__SANITIZE_ADDRESS__)
    pool->apart = true;
#else
    pool->apart = false;
#endif
}

static char *cut(opq_value_pool *pool, size_t bytes)
{
    if (pool->at == NULL || (size_t)(pool->end - pool->at) < bytes) {
        char *slab = aligned_alloc(LINE, SLAB);
        if (slab == NULL)
            return NULL;
        *(void **)slab = pool->slabs;
        pool->slabs = slab;
        pool->at = slab + LINE;
        pool->end = slab + SLAB;
    }
    char *block = pool->at;
    pool->at += bytes;
    return block;
}

void *opq_value_pool_take(opq_value_pool *pool, size_t bytes, int *out_class)
{
    int size_class = (int)((bytes + LINE - 1) / LINE) - 1;
    *out_class = !pool->apart && size_class < OPQ_VALUE_CLASSES ? size_class : -1;
    if (*out_class < 0)
        return malloc(bytes);
    opq_spin_lock(&pool->lock);
    void **block = pool->free[size_class];
    if (block) {
        char *next = pool->free[size_class] = *block;
        for (int i = 0; i <= size_class && next; i++) /* it lay there for as long as a run takes */
            __builtin_prefetch(next + i * LINE, 1);
    } else
        block = (void **)cut(pool, ((size_t)size_class + 1) * LINE);
    pool->live += block != NULL;
    opq_spin_unlock(&pool->lock);
    return block;
}

void opq_value_pool_give(opq_value_pool *pool, void *block, int size_class)
{
    if (size_class < 0) {
        free(block);
        return;
    }
    opq_spin_lock(&pool->lock);
    *(void **)block = pool->free[size_class];
    pool->free[size_class] = block;
    pool->live--;
    opq_spin_unlock(&pool->lock);
}

static void drop(void *slabs)
{
    for (void *slab = slabs, *next; slab; slab = next) {
        next = *(void **)slab;
        free(slab);
    }
}

void opq_value_pool_trim(opq_value_pool *pool)
{
    void *slabs = NULL;
    opq_spin_lock(&pool->lock);
    if (pool->live == 0) {
        slabs = pool->slabs;
        pool->slabs = NULL;
        pool->at = pool->end = NULL;
        memset(pool->free, 0, sizeof pool->free);
    }
    opq_spin_unlock(&pool->lock);
    drop(slabs);
}

void opq_value_pool_drop(opq_value_pool *pool) { drop(pool->slabs); }
