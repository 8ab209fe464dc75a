/* What a context's memory was used for, over time, and how much of it there may be. */
#ifndef OPAQUE_MEMORY_STATS_H
#define OPAQUE_MEMORY_STATS_H

#include "opaque/opaque.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Large: 2 MiB and more. */
typedef enum opq_memory_size { OPQ_MEMORY_all, OPQ_MEMORY_small, OPQ_MEMORY_large, OPQ_MEMORY_SIZES } opq_memory_size;
typedef struct opq_memory_counter {
    int64_t current, peak, allocated, freed; /* allocated - freed = current, if they were never reset */
} opq_memory_counter;
typedef struct opq_memory_counts {
    opq_memory_counter number, bytes;
} opq_memory_counts;
/* Buffers are what values have; blocks are what was taken from the system for them, live or kept to be used again. */
typedef struct opq_memory_stats {
    opq_memory_counts buffers[OPQ_MEMORY_SIZES], blocks[OPQ_MEMORY_SIZES];
    int64_t refused, retries; /* for want of memory; those that came through once what was kept had been given back */
} opq_memory_stats;

opq_memory_stats opq_memory_stats_read(opq_ctx *ctx);
void opq_memory_stats_reset(opq_ctx *ctx); /* what was allocated and freed since, and failures; not the peaks */
/* The part of the machine's memory that buffers may have, 0 to 1: what would be more is OPQ_NO_MEMORY. 1 at first. */
void opq_memory_limit(opq_ctx *ctx, double fraction);
double opq_memory_fraction(opq_ctx *ctx);

#ifdef __cplusplus
}
#endif

#endif
