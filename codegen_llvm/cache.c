/* The cache of compiled kernels: a hash table, whose entries are also a list while nobody uses them. */
#include "codegen_llvm/cache.h"

#include <stdlib.h>
#include <string.h>

void opq_code_cache_init(opq_code_cache *cache)
{
    *cache = (opq_code_cache){.idle_max = OPQ_CODE_IDLE_MAX};
    pthread_mutex_init(&cache->lock, NULL);
}

/* ---- entries, with the lock held */

static opq_code_entry *look_up(const opq_code_cache *cache, uint64_t hash, const opq_text *key)
{
    for (opq_code_entry *e = cache->buckets[hash % OPQ_CODE_BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->length == key->length && memcmp(e->key, key->data, key->length) == 0)
            return e;
    return NULL;
}

static void unlink_idle(opq_code_cache *cache, opq_code_entry *e)
{
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
    cache->idle_bytes -= e->code.bytes;
}

static void link_idle(opq_code_cache *cache, opq_code_entry *e)
{
    e->newer = NULL;
    e->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
    cache->idle_bytes += e->code.bytes;
}

static const opq_code *retain(opq_code_cache *cache, opq_code_entry *e)
{
    if (e->refs++ == 0)
        unlink_idle(cache, e);
    return &e->code;
}

static opq_code_entry *take_out_oldest(opq_code_cache *cache, opq_code_entry *list)
{
    opq_code_entry *e = cache->oldest, **at = &cache->buckets[e->hash % OPQ_CODE_BUCKETS];
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_idle(cache, e);
    cache->count--;
    cache->bytes -= e->code.bytes;
    e->next = list;
    return e;
}

/* ---- without it: the JIT has a lock of its own, which is never taken inside this one but around a fork */

static void drop(opq_jit *jit, opq_code_entry *list)
{
    for (opq_code_entry *e = list, *next; e; e = next) {
        next = e->next;
        opq_jit_remove(jit, &e->module);
        free(e);
    }
}

void opq_code_cache_drop(opq_jit *jit, opq_code_cache *cache)
{
    for (int i = 0; i < OPQ_CODE_BUCKETS; i++)
        drop(jit, cache->buckets[i]);
    pthread_mutex_destroy(&cache->lock);
}

const opq_code *opq_code_cache_find(opq_code_cache *cache, uint64_t hash, const opq_text *key)
{
    pthread_mutex_lock(&cache->lock);
    opq_code_entry *found = look_up(cache, hash, key);
    const opq_code *code = found ? retain(cache, found) : NULL;
    pthread_mutex_unlock(&cache->lock);
    return code;
}

opq_status opq_code_cache_keep(opq_jit *jit, uint64_t hash, const opq_text *key, opq_code code, opq_jit_module module,
                               const opq_code **out_code)
{
    opq_code_cache *cache = opq_jit_cache(jit);
    opq_code_entry *made = malloc(sizeof *made + key->length);
    if (!made) {
        opq_jit_remove(jit, &module);
        return opq_fail(OPQ_NO_MEMORY, "no memory for a code cache entry");
    }
    *made = (opq_code_entry){.code = code, .refs = 1, .module = module, .hash = hash, .length = key->length};
    memcpy(made->key, key->data, key->length);
    pthread_mutex_lock(&cache->lock);
    opq_code_entry *known = look_up(cache, hash, key);
    if (known) {
        *out_code = retain(cache, known);
    } else {
        *out_code = &made->code;
        made->next = cache->buckets[hash % OPQ_CODE_BUCKETS];
        cache->buckets[hash % OPQ_CODE_BUCKETS] = made;
        cache->count++;
        cache->bytes += code.bytes;
    }
    pthread_mutex_unlock(&cache->lock);
    if (known)
        drop(jit, made);
    return OPQ_OK;
}

void opq_code_release(opq_jit *jit, const opq_code *code)
{
    opq_code_cache *cache = opq_jit_cache(jit);
    opq_code_entry *entry = (opq_code_entry *)code, *dropped = NULL;
    pthread_mutex_lock(&cache->lock);
    if (--entry->refs == 0)
        link_idle(cache, entry);
    while (cache->idle_bytes > cache->idle_max)
        dropped = take_out_oldest(cache, dropped);
    pthread_mutex_unlock(&cache->lock);
    drop(jit, dropped);
}

void opq_code_drop_idle(opq_jit *jit)
{
    opq_code_cache *cache = opq_jit_cache(jit);
    opq_code_entry *dropped = NULL;
    pthread_mutex_lock(&cache->lock);
    while (cache->oldest)
        dropped = take_out_oldest(cache, dropped);
    pthread_mutex_unlock(&cache->lock);
    drop(jit, dropped);
}

void opq_code_usage(opq_jit *jit, int64_t *out_kernels, int64_t *out_bytes)
{
    opq_code_cache *cache = opq_jit_cache(jit);
    pthread_mutex_lock(&cache->lock);
    *out_kernels = (int64_t)cache->count;
    *out_bytes = (int64_t)cache->bytes;
    pthread_mutex_unlock(&cache->lock);
}
