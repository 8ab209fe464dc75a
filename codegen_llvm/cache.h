/* Compiled kernels by their canonical bytes. Private to this folder: the cache is a member of the JIT and dies with it.
 */
#ifndef OPAQUE_CODEGEN_CACHE_H
#define OPAQUE_CODEGEN_CACHE_H

#include "codegen_llvm/codegen.h"

#include <pthread.h>

/* Open addressing; entries are never removed, so a found opq_code stays where it is. */
typedef struct opq_code_entry {
    uint64_t hash;
    size_t length;
    opq_code code;
    char key[]; /* length bytes */
} opq_code_entry;

typedef struct opq_code_cache {
    pthread_mutex_t lock;
    opq_code_entry **slots;
    size_t count, capacity; /* capacity: a power of two, or 0 */
} opq_code_cache;

void opq_code_cache_init(opq_code_cache *cache);
void opq_code_cache_drop(opq_code_cache *cache);

opq_code_cache *opq_jit_cache(opq_jit *jit);

#endif
