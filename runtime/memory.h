/* Host memory: a caching allocator and the refcounted buffers it hands out.
 *
 * Fresh pages cost more than anything done with them (4 KiB pages first touched at 3 GB/s), so freed blocks are kept by size class and
 * used again; large blocks ask for huge pages, or for what costs less at first (pages.h). Contents are never cleared. Thread-safe.
 */
#ifndef OPAQUE_RUNTIME_MEMORY_H
#define OPAQUE_RUNTIME_MEMORY_H

#include "opaque/memory_stats.h"
#include "runtime/packed.h"
#include "runtime/pages.h"
#include <stdatomic.h>

typedef struct opq_pool opq_pool;

typedef struct opq_buffer {
    atomic_int refs;
    opq_pool *pool;
    void *data; /* 64-byte aligned when ours */
    size_t bytes, capacity;
    int size_class; /* -1: adopted */
    size_t small;   /* so many bytes at its end are small pages that would be huge ones */
    void (*drop)(void *);
    void *drop_arg;
    atomic_bool lent;                 /* somebody outside writes to it: no packed copies */
    bool borrowed;                    /* adopted for a call, which may write where its cell alone has it */
    bool cached;                      /* a packed copy: not counted as live */
    atomic_bool taken;                /* a run writes its output over the contents */
    _Atomic(opq_packed *) packed;     /* views that were right operands: packed.h */
    struct opq_buffer *next;          /* of free ones, and of packed copies on their way out */
    struct opq_buffer *newer, *older; /* live ones of the pool, but for packed copies */
    _Atomic(uint64_t) maker;          /* what its contents are made by, see opq_buffer_made; 0: not known */
} opq_buffer;

opq_status opq_pool_create(opq_pool **out_pool) OPQ_MUST_CHECK;
/* Buffers still alive keep the pool's memory alive. */
void opq_pool_destroy(opq_pool *pool);
opq_status opq_pool_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer) OPQ_MUST_CHECK;
/* For what a run makes. */
opq_status opq_pool_run_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer) OPQ_MUST_CHECK;
/* For a packed copy. */
opq_status opq_pool_cache_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer) OPQ_MUST_CHECK;
opq_packed_cache *opq_pool_packed(opq_pool *pool);
opq_status opq_pool_adopt(opq_pool *pool, void *data, size_t bytes, void (*drop)(void *), void *arg,
                          opq_buffer **out_buffer) OPQ_MUST_CHECK;
/* `bytes` of a buffer from `first` on, as a buffer that holds it; from 0 on: itself. */
opq_status opq_buffer_part(opq_buffer *buffer, int64_t first, int64_t bytes, opq_buffer **out_part) OPQ_MUST_CHECK;
/* OPQ_NO_MEMORY if the machine or its control group cannot hold `bytes` more: malloc would succeed and the kernel kill us later. */
opq_status opq_pool_check(opq_pool *pool, int64_t bytes) OPQ_MUST_CHECK;
void opq_pool_trim(opq_pool *pool); /* drops packed copies and returns free blocks to the system */
/* After a run that took so long: makes small pages huge for half of that; the next one may pack. */
void opq_pool_tend(opq_pool *pool, double seconds);
void opq_pool_lock(opq_pool *pool); /* also that of the packed copies; around a fork */
void opq_pool_unlock(opq_pool *pool);
/* Of the memory there is live buffers may have this part, 0 to 1. */
void opq_pool_limit(opq_pool *pool, double fraction);
double opq_pool_fraction(const opq_pool *pool);
int64_t opq_pool_live(const opq_pool *pool);
/* Live buffers, adopted ones among them, and cached blocks, in whole blocks. */
int64_t opq_pool_reserved(const opq_pool *pool);
opq_memory_stats opq_pool_stats(opq_pool *pool);
void opq_pool_reset_peak(opq_pool *pool);   /* what is now */
void opq_pool_reset_totals(opq_pool *pool); /* what was allocated and freed, and failures: 0 */
/* Memory of the machine, or of the control group this process lives in if that is less. Reads files: some 10 us. */
int64_t opq_machine_bytes(void);
void opq_machine_memory(int64_t *out_available, int64_t *out_total);

void opq_buffer_retain(opq_buffer *buffer);
void opq_buffer_release(opq_buffer *buffer);
/* A reference for somebody outside who will write, and when is not known: until opq_buffer_settle() no packed form is made. Only while the
 * caller alone has the buffer, and it has no packed form. */
void opq_buffer_lend(opq_buffer *buffer);
void opq_buffer_settle(opq_buffer *buffer);

/* Op and source line of the value that lies in it, for who looks at memory. */
static inline void opq_buffer_made(opq_buffer *buffer, opq_op op, uint32_t line)
{
    atomic_store_explicit(&buffer->maker, ((uint64_t)op + 1) << 32 | line, memory_order_relaxed);
}
/* Live buffers but for packed copies, newest first: a malloc'd array. */
opq_status opq_pool_blocks(opq_pool *pool, opq_memory_block **out_blocks, int *out_count) OPQ_MUST_CHECK;

/* Scratch of the calling thread: at least `bytes`, 64-byte aligned, valid until the next call in this thread; NULL without memory. */
void *opq_thread_scratch(size_t bytes);

#endif
