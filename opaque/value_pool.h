/* Memory of values. They come and go by thousands in each iteration of a loop, and are walked in record order: blocks of one size, beside
 * each other, used again. Internal to opaque/. Thread-safe.
 */
#ifndef OPAQUE_OPAQUE_VALUE_POOL_H
#define OPAQUE_OPAQUE_VALUE_POOL_H

#include "opaque/spin.h"

#include <stdbool.h>
#include <stddef.h>

enum { OPQ_VALUE_CLASSES = 8 }; /* larger blocks are the C library's */
typedef struct opq_value_pool {
    opq_spin lock;
    void *free[OPQ_VALUE_CLASSES];
    void *slabs; /* all of them; given back with the pool */
    char *at, *end;
    long live;
    bool apart; /* each block is the C library's: a sanitizer sees who uses one too long, a test counts them */
} opq_value_pool;

void opq_value_pool_init(opq_value_pool *pool); /* of zeros */
/* NULL without memory. `out_class` goes back with the block. */
void *opq_value_pool_take(opq_value_pool *pool, size_t bytes, int *out_class);
void opq_value_pool_give(opq_value_pool *pool, void *block, int size_class);
void opq_value_pool_trim(opq_value_pool *pool); /* gives slabs back if no block is in use */
void opq_value_pool_drop(opq_value_pool *pool);

#endif
