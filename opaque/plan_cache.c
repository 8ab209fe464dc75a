/* The plan cache: a hash table whose entries are also a list in order of use. */
#define XXH_INLINE_ALL
#include "opaque/plan_cache.h"
#include "opaque/snapshot.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 8192 };

typedef struct entry {
    struct entry *next;          /* in the bucket */
    struct entry *newer, *older; /* by last use */
    uint64_t hash;
    size_t bytes, key_bytes;
    opq_plan *plan;
    unsigned char key[];
} entry;

struct opq_plan_cache {
    pthread_mutex_t lock;
    size_t max_count, max_bytes, count, bytes;
    entry *newest, *oldest;
    entry *buckets[BUCKETS];
};

opq_status opq_plan_cache_create(size_t max_count, size_t max_bytes, opq_plan_cache **out_cache)
{
    opq_plan_cache *cache = calloc(1, sizeof *cache);
    if (cache == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    pthread_mutex_init(&cache->lock, NULL);
    cache->max_count = max_count;
    cache->max_bytes = max_bytes;
    *out_cache = cache;
    return OPQ_OK;
}

void opq_plan_cache_destroy(opq_plan_cache *cache)
{
    if (cache == NULL)
        return;
    opq_plan_cache_clear(cache);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

void opq_plan_cache_lock(opq_plan_cache *cache) { pthread_mutex_lock(&cache->lock); }
void opq_plan_cache_unlock(opq_plan_cache *cache) { pthread_mutex_unlock(&cache->lock); }

/* ---- entries, with the lock held */

static void unlink_use(opq_plan_cache *cache, entry *e)
{
    *(e->newer ? &e->newer->older : &cache->newest) = e->older;
    *(e->older ? &e->older->newer : &cache->oldest) = e->newer;
}

static void link_newest(opq_plan_cache *cache, entry *e)
{
    e->newer = NULL;
    e->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

static entry *look_up(const opq_plan_cache *cache, uint64_t hash, const void *key, size_t key_bytes)
{
    for (entry *e = cache->buckets[hash % BUCKETS]; e; e = e->next)
        if (e->hash == hash && e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0)
            return e;
    return NULL;
}

static void take_out(opq_plan_cache *cache, entry *e)
{
    entry **at = &cache->buckets[e->hash % BUCKETS];
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlink_use(cache, e);
    cache->count--;
    cache->bytes -= e->bytes;
}

static entry *take_out_oldest(opq_plan_cache *cache, entry *list)
{
    entry *e = cache->oldest;
    take_out(cache, e);
    e->next = list;
    return e;
}

/* Gives the plan that it had. */
static opq_plan *exchange(opq_plan_cache *cache, entry *e, opq_plan *plan)
{
    opq_plan *before = e->plan;
    opq_plan_retain(plan);
    e->plan = plan;
    cache->bytes += opq_plan_bytes(plan) - opq_plan_bytes(before);
    e->bytes += opq_plan_bytes(plan) - opq_plan_bytes(before);
    return before;
}

/* Without the lock: the last reference to a plan gives payloads back to the host. */
static void drop(entry *list)
{
    for (entry *e = list, *next; e; e = next) {
        next = e->next;
        opq_plan_release(e->plan);
        free(e);
    }
}

/* ---- the interface */

opq_plan *opq_plan_cache_find(opq_plan_cache *cache, const void *key, size_t key_bytes)
{
    uint64_t hash = XXH3_64bits(key, key_bytes);
    pthread_mutex_lock(&cache->lock);
    entry *found = look_up(cache, hash, key, key_bytes);
    opq_plan *plan = found ? found->plan : NULL;
    if (found) {
        unlink_use(cache, found);
        link_newest(cache, found);
        opq_plan_retain(plan);
    }
    pthread_mutex_unlock(&cache->lock);
    return plan;
}

void opq_plan_cache_keep(opq_plan_cache *cache, const void *key, size_t key_bytes, opq_plan *plan)
{
    entry *made = malloc(sizeof *made + key_bytes), *dropped = NULL;
    if (made == NULL)
        return;
    *made = (entry){.hash = XXH3_64bits(key, key_bytes), .key_bytes = key_bytes, .plan = plan};
    memcpy(made->key, key, key_bytes);
    made->bytes = sizeof *made + key_bytes + opq_plan_bytes(plan);
    pthread_mutex_lock(&cache->lock);
    entry *known = look_up(cache, made->hash, key, key_bytes);
    bool better = known && known->plan->part_count > 0 && plan->part_count == 0;
    opq_plan *before = better ? exchange(cache, known, plan) : NULL;
    if (!known) {
        while (cache->count > 0 && (cache->count >= cache->max_count || cache->bytes + made->bytes > cache->max_bytes))
            dropped = take_out_oldest(cache, dropped);
        opq_plan_retain(plan);
        link_newest(cache, made);
        made->next = cache->buckets[made->hash % BUCKETS];
        cache->buckets[made->hash % BUCKETS] = made;
        cache->count++;
        cache->bytes += made->bytes;
    }
    pthread_mutex_unlock(&cache->lock);
    drop(dropped);
    opq_plan_release(before);
    if (known)
        free(made);
}

void opq_plan_cache_each(opq_plan_cache *cache, bool (*look)(void *data, const void *key, size_t key_bytes), void *data)
{
    pthread_mutex_lock(&cache->lock);
    const entry *e = cache->newest;
    while (e && look(data, e->key, e->key_bytes))
        e = e->older;
    pthread_mutex_unlock(&cache->lock);
}

void opq_plan_cache_replace(opq_plan_cache *cache, const void *key, size_t key_bytes, opq_plan *plan)
{
    opq_plan *before = NULL;
    pthread_mutex_lock(&cache->lock);
    entry *found = look_up(cache, XXH3_64bits(key, key_bytes), key, key_bytes);
    if (found)
        before = exchange(cache, found, plan);
    pthread_mutex_unlock(&cache->lock);
    opq_plan_release(before);
}

void opq_plan_cache_clear(opq_plan_cache *cache)
{
    entry *dropped = NULL;
    pthread_mutex_lock(&cache->lock);
    while (cache->oldest)
        dropped = take_out_oldest(cache, dropped);
    pthread_mutex_unlock(&cache->lock);
    drop(dropped);
}

size_t opq_plan_cache_count(opq_plan_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    size_t count = cache->count;
    pthread_mutex_unlock(&cache->lock);
    return count;
}

size_t opq_plan_cache_bytes(opq_plan_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    size_t bytes = cache->bytes;
    pthread_mutex_unlock(&cache->lock);
    return bytes;
}

bool opq_views_moved(opq_views *views, const opq_snapshot *any, const opq_snapshot *given)
{
    enum { COUNT = sizeof views->hash / sizeof *views->hash };
    uint64_t hash = XXH3_64bits(any->key, any->key_bytes), first = XXH3_64bits(given->key, given->key_bytes);
    for (size_t i = 0; i < COUNT; i++)
        if (views->hash[i] == hash)
            return views->first[i] != first;
    views->hash[views->at % COUNT] = hash;
    views->first[views->at++ % COUNT] = first;
    return false;
}
