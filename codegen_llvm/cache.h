/* Compiled kernels by their canonical bytes. Private to this folder: the cache is a member of the JIT and dies with it.
 *
 * An entry counts who uses its code. Code that nobody uses is idle: it stays while idle code is at most `idle_max` bytes, so that plans
 * which take turns do not compile; what has been idle longest goes first.
 */
#ifndef OPAQUE_CODEGEN_CACHE_H
#define OPAQUE_CODEGEN_CACHE_H

#include "codegen_llvm/codegen.h"

#include <pthread.h>

enum { OPQ_CODE_BUCKETS = 4096, OPQ_CODE_IDLE_MAX = 16 << 20 };

typedef struct opq_code_entry {
    opq_code code;                        /* the first member: what users hold is the entry */
    struct opq_code_entry *next;          /* in the bucket */
    struct opq_code_entry *newer, *older; /* of the idle ones, by when they became so */
    int refs;
    opq_jit_module module;
    uint64_t hash;
    size_t length;
    char key[]; /* length bytes */
} opq_code_entry;

typedef struct opq_code_cache {
    pthread_mutex_t lock;
    size_t count, bytes, idle_bytes, idle_max;
    opq_code_entry *newest, *oldest; /* idle */
    opq_code_entry *buckets[OPQ_CODE_BUCKETS];
} opq_code_cache;

void opq_code_cache_init(opq_code_cache *cache);
/* Before ORC goes. Code that is still in use goes too. */
void opq_code_cache_drop(opq_jit *jit, opq_code_cache *cache);
/* A reference to the code under this key, or NULL. Keys are compared whole. */
const opq_code *opq_code_cache_find(opq_code_cache *cache, uint64_t hash, const opq_text *key);
/* Takes over the module, also on failure, and gives a reference. If another thread made the same kernel meanwhile, then to that one. */
opq_status opq_code_cache_keep(opq_jit *jit, uint64_t hash, const opq_text *key, opq_code code, opq_jit_module module,
                               const opq_code **out_code) OPQ_MUST_CHECK;

opq_code_cache *opq_jit_cache(opq_jit *jit);

#endif
