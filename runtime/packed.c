/* The cache of packed operands: see packed.h.
 *
 * Every view that was used lately has a record in its buffer's list; those that are packed have memory and are in the pool's list by last
 * use as well. References to memory are given back without the lock, because that takes the pool's lock.
 */
#include "runtime/packed.h"
#include "fusion/target.h"
#include "runtime/memory.h"

#include <stdlib.h>

enum { RECORDS_MAX = 256 }; /* per buffer: more views than that in a row are not worth remembering */

struct opq_packed {
    opq_packed *next; /* of the buffer */
    opq_packed_key key;
    uint64_t used;
    opq_buffer *owner;  /* borrowed: it drops its records before it goes */
    opq_buffer *memory; /* NULL: used once, or not admitted */
    opq_packed *newer, *older;
};

void opq_packed_init(opq_packed_cache *cache, int64_t max_bytes)
{
    *cache = (opq_packed_cache){.max_bytes = max_bytes, .allowed = opq_runs.packed_bytes};
    pthread_mutex_init(&cache->lock, NULL);
}

void opq_packed_destroy(opq_packed_cache *cache) { pthread_mutex_destroy(&cache->lock); }

/* ---- records, with the lock held */

bool opq_packed_key_same(const opq_packed_key *a, const opq_packed_key *b)
{
    return a->from == b->from && a->to == b->to && a->left == b->left && a->turned == b->turned && a->rows == b->rows &&
           a->columns == b->columns && a->offset == b->offset && a->row_stride == b->row_stride &&
           a->column_stride == b->column_stride;
}

static opq_packed *look_up(const opq_buffer *buffer, const opq_packed_key *key)
{
    opq_packed *p = atomic_load(&buffer->packed);
    while (p && !opq_packed_key_same(&p->key, key))
        p = p->next;
    return p;
}

static void unlink_use(opq_packed_cache *cache, opq_packed *p)
{
    *(p->newer ? &p->newer->older : &cache->newest) = p->older;
    *(p->older ? &p->older->newer : &cache->oldest) = p->newer;
}

static void link_newest(opq_packed_cache *cache, opq_packed *p)
{
    p->newer = NULL;
    p->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = p;
    cache->newest = p;
}

/* The record stays. The memory is put in front of `list`, whose links are free in a buffer without views of its own. */
static void take_memory(opq_packed_cache *cache, opq_packed *p, opq_buffer **list)
{
    unlink_use(cache, p);
    cache->bytes -= (int64_t)p->memory->bytes;
    p->memory->next = *list;
    *list = p->memory;
    p->memory = NULL;
}

static void release_list(opq_buffer *list)
{
    for (opq_buffer *memory = list, *next; memory; memory = next) {
        next = memory->next;
        opq_buffer_release(memory);
    }
}

/* A new record, in place of the one used longest ago if there are too many. NULL: no memory. */
static opq_packed *add_record(opq_packed_cache *cache, opq_buffer *buffer, const opq_packed_key *key, opq_buffer **list)
{
    int count = 0;
    opq_packed *oldest = NULL;
    for (opq_packed *p = atomic_load(&buffer->packed); p; p = p->next, count++)
        if (oldest == NULL || p->used < oldest->used)
            oldest = p;
    opq_packed *record = count < RECORDS_MAX ? calloc(1, sizeof *record) : oldest;
    if (record == NULL)
        return NULL;
    if (record == oldest && record->memory)
        take_memory(cache, record, list);
    record->key = *key;
    record->owner = buffer;
    if (record != oldest) {
        record->next = atomic_load(&buffer->packed);
        atomic_store(&buffer->packed, record);
    }
    return record;
}

/* ---- room */

/* As the operand of one side, in the same order? */
static bool same_direction(const opq_packed_key *a, const opq_packed_key *b)
{
    return a->left == b->left && (a->row_stride == 1) == (b->row_stride == 1);
}

/* The bytes of the buffer's copies that are read in the key's direction, and which of them was used longest ago. */
static int64_t copies_of(const opq_buffer *buffer, const opq_packed_key *key, opq_packed **out_oldest)
{
    int64_t bytes = 0;
    *out_oldest = NULL;
    for (opq_packed *p = atomic_load(&buffer->packed); p; p = p->next) {
        if (p->memory == NULL || !same_direction(&p->key, key))
            continue;
        bytes += (int64_t)p->memory->bytes;
        if (*out_oldest == NULL || p->used < (*out_oldest)->used)
            *out_oldest = p;
    }
    return bytes;
}

/* Makes room for `bytes` more of this buffer by dropping copies last used before `used`; false if that is not enough. */
static bool make_room(opq_packed_cache *cache, opq_buffer *buffer, const opq_packed_key *key, int64_t bytes,
                      uint64_t used, opq_buffer **list)
{
    int64_t share = (int64_t)buffer->bytes / opq_dtype_bytes(key->from) * opq_dtype_bytes(key->to);
    share = share > bytes ? share : bytes; /* rows are padded to whole panels: one copy is always within its share */
    opq_packed *oldest;
    while (copies_of(buffer, key, &oldest) + bytes > share) {
        if (oldest == NULL || oldest->used >= used)
            return false;
        take_memory(cache, oldest, list);
    }
    while (cache->bytes + bytes > cache->max_bytes) {
        if (cache->oldest == NULL || cache->oldest->used >= used)
            return false;
        take_memory(cache, cache->oldest, list);
    }
    return true;
}

/* May this run pack the view, which was used before? Counts it if so. */
static bool is_its_turn(opq_packed_cache *cache, const opq_packed *view, int64_t bytes, bool in_run)
{
    if (view->used > cache->run_began || in_run)
        return view->used > cache->run_began;
    bool may = cache->allowed > 0;
    *(may ? &cache->allowed : &cache->refused) += may ? -bytes : bytes;
    return may;
}

void opq_packed_next_run(opq_packed_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    cache->allowed =
        (cache->allowed < 0 ? cache->allowed : 0) + opq_runs.packed_bytes + cache->refused / opq_runs.packed_part;
    cache->refused = 0;
    cache->run_began = cache->clock;
    pthread_mutex_unlock(&cache->lock);
}

/* ---- the interface */

opq_buffer *opq_packed_find(opq_buffer *buffer, const opq_packed_key *key, int64_t bytes, bool in_run, bool *out_wanted)
{
    *out_wanted = false;
    if (atomic_load(&buffer->lent))
        return NULL;
    opq_packed_cache *cache = opq_pool_packed(buffer->pool);
    opq_buffer *list = NULL, *memory = NULL;
    pthread_mutex_lock(&cache->lock);
    opq_packed *found = look_up(buffer, key);
    opq_packed *record = found ? found : add_record(cache, buffer, key, &list);
    *out_wanted = found && !found->memory && is_its_turn(cache, found, bytes, in_run) &&
                  make_room(cache, buffer, key, bytes, found->used, &list);
    if (record)
        record->used = ++cache->clock;
    if (record && record->memory) {
        memory = record->memory;
        opq_buffer_retain(memory);
        unlink_use(cache, record);
        link_newest(cache, record);
    }
    pthread_mutex_unlock(&cache->lock);
    release_list(list);
    return memory;
}

void opq_packed_keep(opq_buffer *buffer, const opq_packed_key *key, opq_buffer *memory)
{
    opq_packed_cache *cache = opq_pool_packed(buffer->pool);
    opq_buffer *list = NULL;
    pthread_mutex_lock(&cache->lock);
    opq_packed *record = look_up(buffer, key);
    if (record == NULL)
        record = add_record(cache, buffer, key, &list);
    if (record && record->memory == NULL) {
        opq_buffer_retain(memory);
        record->memory = memory;
        record->used = ++cache->clock;
        link_newest(cache, record);
        cache->bytes += (int64_t)memory->bytes;
    }
    pthread_mutex_unlock(&cache->lock);
    release_list(list);
}

opq_buffer *opq_packed_small(const opq_packed_cache *cache)
{
    opq_packed *p = cache->newest;
    while (p && p->memory->small == 0)
        p = p->older;
    return p ? p->memory : NULL;
}

void opq_packed_forget(opq_buffer *buffer)
{
    if (atomic_load(&buffer->packed) == NULL)
        return;
    opq_packed_cache *cache = opq_pool_packed(buffer->pool);
    opq_buffer *list = NULL;
    pthread_mutex_lock(&cache->lock);
    for (opq_packed *p = atomic_exchange(&buffer->packed, NULL), *next; p; p = next) {
        next = p->next;
        if (p->memory)
            take_memory(cache, p, &list);
        free(p);
    }
    pthread_mutex_unlock(&cache->lock);
    release_list(list);
}

void opq_packed_shrink(opq_pool *pool, int64_t bytes)
{
    opq_packed_cache *cache = opq_pool_packed(pool);
    opq_buffer *list = NULL;
    pthread_mutex_lock(&cache->lock);
    while (cache->oldest && cache->bytes > bytes)
        take_memory(cache, cache->oldest, &list);
    pthread_mutex_unlock(&cache->lock);
    release_list(list);
}

int64_t opq_packed_bytes(const opq_pool *pool)
{
    opq_packed_cache *cache = opq_pool_packed((opq_pool *)pool);
    pthread_mutex_lock(&cache->lock);
    int64_t bytes = cache->bytes;
    pthread_mutex_unlock(&cache->lock);
    return bytes;
}
