/* Packed copies of the operands of matmuls, kept with the buffers they were made from. Thread-safe.
 *
 * A buffer changes only where an output takes its place (run.c), which drops the copies, so a view of one that comes back (a weight) need
 * not be packed by every matmul: it is packed at its second use. Where that is in another run (all weights of a model in its second one), a
 * run packs some of them, the next ones the others: all at once takes longer than several runs.
 * Copies are a cache. The copies of one buffer that are read in one direction (a weight in a forward pass, its transpose in a backward
 * pass) together take what one of the whole buffer would take, so that a buffer used in slices costs no more than one used whole; all
 * copies of a pool together are bounded by a share of the machine's memory. A copy makes way only for a view whose last use is later than
 * its own: else a loop over more views than there is room for would pack each of them again in every turn. Copies go with their buffer,
 * when the pool is trimmed, and when memory runs short.
 *
 * They are no tensors: opq_pool_live does not count them, opq_packed_bytes does.
 */
#ifndef OPAQUE_RUNTIME_PACKED_H
#define OPAQUE_RUNTIME_PACKED_H

#include "opaque/opaque.h"

#include <pthread.h>

struct opq_buffer;
struct opq_pool;

/* Everything that opq_gemm_pack_a and opq_gemm_pack_b read besides the memory itself. A buffer may be read as several dtypes. */
typedef struct opq_packed_key {
    opq_dtype from, to; /* of the elements in memory; of the sums */
    bool left, turned;  /* turned: for the transposed product */
    int64_t rows, columns;
    int64_t offset, row_stride, column_stride; /* in elements of `from` */
} opq_packed_key;

bool opq_packed_key_same(const opq_packed_key *a, const opq_packed_key *b);

typedef struct opq_packed opq_packed;

/* Part of a pool. */
typedef struct opq_packed_cache {
    pthread_mutex_t lock;        /* also every buffer's list */
    opq_packed *newest, *oldest; /* those with memory */
    int64_t bytes, max_bytes;
    int64_t allowed, refused; /* bytes in this run: that may still be packed; that would have been */
    uint64_t clock, run_began;
} opq_packed_cache;

void opq_packed_init(opq_packed_cache *cache, int64_t max_bytes);
void opq_packed_destroy(opq_packed_cache *cache);

/* Notes a use of the view by a matmul. in_run: it is packed only where one run uses it several times. Gives the packed copy, with a reference: it lasts until that is released, whatever the cache does.
 * NULL: there is none; *out_wanted then says whether to make one, of `bytes` bytes, and opq_packed_keep it. The caller holds a reference
 * to the buffer. */
struct opq_buffer *opq_packed_find(struct opq_buffer *buffer, const opq_packed_key *key, int64_t bytes, bool in_run,
                                   bool *out_wanted);
/* Takes a reference of its own. If another thread was faster, its copy stays. */
void opq_packed_keep(struct opq_buffer *buffer, const opq_packed_key *key, struct opq_buffer *memory);

/* A run is over. */
void opq_packed_next_run(opq_packed_cache *cache);
/* The memory of one that has small pages (memory.h), for who holds the lock. NULL: none has. */
struct opq_buffer *opq_packed_small(const opq_packed_cache *cache);
/* The buffer is about to go, or to be written. */
void opq_packed_forget(struct opq_buffer *buffer);
/* Drops the copies used longest ago until at most so many bytes are left. */
void opq_packed_shrink(struct opq_pool *pool, int64_t bytes);
int64_t opq_packed_bytes(const struct opq_pool *pool);

#endif
