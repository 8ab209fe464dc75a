/* The allocator's state, for memory.c and memory_stats.c. */
#ifndef OPAQUE_RUNTIME_POOL_H
#define OPAQUE_RUNTIME_POOL_H

#include "runtime/memory.h"

#include <pthread.h>

enum { OPQ_POOL_CLASSES = 4 * 44 }; /* of sizes */

struct opq_pool {
    pthread_mutex_t lock;
    atomic_int refs;                    /* one for the owner, one per live buffer */
    opq_buffer *free[OPQ_POOL_CLASSES]; /* with their memory, linked */
    opq_buffer *newest;                 /* live ones */
    size_t cached, cache_limit;
    opq_memory_stats stats;
    atomic_llong live, reserved; /* as in stats, for who has no lock */
    atomic_llong machine;        /* bytes there are, when they were read last */
    _Atomic(double) fraction;    /* of them that buffers may have */
    opq_packed_cache packed;
    opq_pages pages;
    atomic_llong small; /* bytes of blocks in small pages */
    double credit;      /* seconds for making them huge */
    int runs;           /* since there are any */
};
size_t opq_pool_mapped_bytes(int size_class); /* of a block of the system */

#endif
