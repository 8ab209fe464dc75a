/* What the allocator counts, and the blocks that are live. */
#include "runtime/pool.h"

#include <stdlib.h>

int64_t opq_pool_live(const opq_pool *pool) { return atomic_load(&pool->live); }
int64_t opq_pool_reserved(const opq_pool *pool) { return atomic_load(&pool->reserved); }

opq_memory_stats opq_pool_stats(opq_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    opq_memory_stats stats = pool->stats;
    pthread_mutex_unlock(&pool->lock);
    return stats;
}

void opq_pool_reset_peak(opq_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (int i = 0; i < OPQ_MEMORY_SIZES; i++)
        for (int kind = 0; kind < 2; kind++) {
            opq_memory_counts *c = kind == 0 ? &pool->stats.buffers[i] : &pool->stats.blocks[i];
            c->number.peak = c->number.current;
            c->bytes.peak = c->bytes.current;
        }
    pthread_mutex_unlock(&pool->lock);
}

void opq_pool_reset_totals(opq_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (int i = 0; i < OPQ_MEMORY_SIZES; i++)
        for (int kind = 0; kind < 2; kind++) {
            opq_memory_counts *c = kind == 0 ? &pool->stats.buffers[i] : &pool->stats.blocks[i];
            c->number.allocated = c->number.freed = c->bytes.allocated = c->bytes.freed = 0;
        }
    pool->stats.refused = pool->stats.retries = 0;
    pthread_mutex_unlock(&pool->lock);
}

opq_status opq_pool_blocks(opq_pool *pool, opq_memory_block **out_blocks, int *out_count)
{
    int count = 0;
    pthread_mutex_lock(&pool->lock);
    for (const opq_buffer *b = pool->newest; b; b = b->older)
        count++;
    opq_memory_block *blocks = calloc((size_t)count + 1, sizeof *blocks), *block = blocks;
    for (const opq_buffer *b = blocks ? pool->newest : NULL; b; b = b->older) {
        uint64_t maker = atomic_load_explicit(&b->maker, memory_order_relaxed);
        size_t reserved = b->size_class >= 0 ? opq_pool_mapped_bytes(b->size_class) : b->bytes;
        *block++ = (opq_memory_block){.address = b->data,
                                      .bytes = (int64_t)b->bytes,
                                      .reserved = (int64_t)reserved,
                                      .op = maker ? opq_op_info_of((opq_op)((maker >> 32) - 1))->name : NULL,
                                      .line = (uint32_t)maker};
    }
    pthread_mutex_unlock(&pool->lock);
    if (blocks == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    *out_blocks = blocks;
    *out_count = count;
    return OPQ_OK;
}
