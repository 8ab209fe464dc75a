/* The caching allocator: see memory.h.
 *
 * Size classes are four per power of two from 64 bytes on, so at most a fifth is wasted. Blocks of 2 MiB and more are mapped on their
 * own, aligned for huge pages; smaller ones come from the C library. What is cached counts against a quarter of the machine's memory,
 * packed copies of operands (packed.h) against an eighth.
 *
 * How much memory there is stands in a file of the control group, and may change. It is read for each block that is mapped, which costs
 * more than to read it, and before anything is refused; not for blocks that are used again.
 */
#define _GNU_SOURCE
#include "runtime/pool.h"
#include "fusion/target.h"
#include "opaque/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HUGE_PAGE = OPQ_HUGE_PAGE, SMALLEST = 64 };

static size_t class_bytes(int size_class)
{
    size_t power = (size_t)SMALLEST << (size_class / 4);
    return power + power / 4 * (size_t)(size_class % 4);
}

/* The smallest that holds so many. */
static int class_of(size_t bytes)
{
    if (bytes <= SMALLEST)
        return 0;
    int power = 63 - __builtin_clzll((bytes - 1) / SMALLEST);
    int quarter = (int)(((bytes - 1) >> power) / (SMALLEST / 4)) - 4;
    int size_class = 4 * power + quarter + 1;
    return size_class < OPQ_POOL_CLASSES ? size_class : OPQ_POOL_CLASSES - 1;
}

size_t opq_pool_mapped_bytes(int size_class)
{
    size_t bytes = class_bytes(size_class);
    return bytes < HUGE_PAGE ? bytes : (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

/* ---- counting, with the lock held */

static void add(opq_memory_counter *counter, int64_t change)
{
    counter->current += change;
    if (change < 0) {
        counter->freed -= change;
        return;
    }
    counter->allocated += change;
    if (counter->current > counter->peak)
        counter->peak = counter->current;
}

/* `way` 1: one more, -1: one less. */
static void count(opq_memory_counts *counts, size_t bytes, int way)
{
    opq_memory_size size = bytes < HUGE_PAGE ? OPQ_MEMORY_small : OPQ_MEMORY_large;
    for (int i = 0; i < 2; i++) {
        opq_memory_counts *c = &counts[i == 0 ? OPQ_MEMORY_all : size];
        add(&c->number, way);
        add(&c->bytes, way * (int64_t)bytes);
    }
}

static void count_live(opq_pool *pool, const opq_buffer *buffer, int way)
{
    count(pool->stats.buffers, buffer->bytes, way);
    atomic_fetch_add(&pool->live, way * (int64_t)buffer->bytes);
}

static void count_reserved(opq_pool *pool, size_t bytes, int way)
{
    count(pool->stats.blocks, bytes, way);
    atomic_fetch_add(&pool->reserved, way * (int64_t)bytes);
}

/* ---- blocks of the system */

enum use { USE_value, USE_run, USE_packed, USES };

static void *map_memory(opq_pool *pool, int size_class, enum use use, size_t *out_small)
{
    size_t bytes = opq_pool_mapped_bytes(size_class);
    void *data = NULL;
    *out_small = 0;
    if (bytes < HUGE_PAGE)
        return posix_memalign(&data, 64, (bytes + 63) & ~(size_t)63) == 0 ? data : NULL;
    const double worth[USES] = {[USE_run] = opq_runs.run_pages_worth, [USE_packed] = opq_runs.packed_pages_worth};
    return opq_pages_map(&pool->pages, bytes, worth[use], out_small);
}

static void *map_block(opq_pool *pool, int size_class, enum use use, size_t *out_small)
{
    void *data = map_memory(pool, size_class, use, out_small);
    if (opq_pool_mapped_bytes(size_class) >= HUGE_PAGE && opq_logs(OPQ_LOG_memory, OPQ_LOG_INFO))
        opq_log("memory: %s %zu bytes from the system, %zu in small pages (2 MiB small: %.2f ms, huge: %.2f ms), %lld "
                "reserved",
                data ? "took" : "did not get", opq_pool_mapped_bytes(size_class), *out_small,
                1e3 * pool->pages.touch[0], 1e3 * pool->pages.touch[1], (long long)atomic_load(&pool->reserved));
    return data;
}

/* Whose block is no longer counted. */
static void free_buffer(opq_pool *pool, opq_buffer *buffer)
{
    size_t bytes = opq_pool_mapped_bytes(buffer->size_class);
    if (bytes >= HUGE_PAGE && opq_logs(OPQ_LOG_memory, OPQ_LOG_INFO))
        opq_log("memory: gave %zu bytes back to the system, %lld reserved", bytes,
                (long long)atomic_load(&pool->reserved));
    if (bytes < HUGE_PAGE)
        free(buffer->data);
    else
        opq_pages_unmap(buffer->data, bytes);
    atomic_fetch_sub(&pool->small, (long long)buffer->small);
    free(buffer);
}

opq_status opq_pool_create(opq_pool **out_pool)
{
    opq_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    pthread_mutex_init(&pool->lock, NULL);
    atomic_init(&pool->refs, 1);
    int64_t machine = opq_machine_bytes();
    atomic_init(&pool->machine, machine);
    atomic_init(&pool->fraction, 1);
    pool->cache_limit = (size_t)machine / 4;
    opq_packed_init(&pool->packed, machine / 8);
    *out_pool = pool;
    return OPQ_OK;
}

void opq_pool_trim(opq_pool *pool)
{
    opq_packed_shrink(pool, 0);
    pthread_mutex_lock(&pool->lock);
    for (int c = 0; c < OPQ_POOL_CLASSES; c++)
        while (pool->free[c]) {
            opq_buffer *next = pool->free[c]->next;
            count_reserved(pool, opq_pool_mapped_bytes(c), -1);
            free_buffer(pool, pool->free[c]);
            pool->free[c] = next;
        }
    pool->cached = 0;
    pthread_mutex_unlock(&pool->lock);
}

static void drop_pool(opq_pool *pool)
{
    if (atomic_fetch_sub(&pool->refs, 1) != 1)
        return;
    opq_pool_trim(pool);
    opq_packed_destroy(&pool->packed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void opq_pool_destroy(opq_pool *pool)
{
    if (pool)
        drop_pool(pool);
}

/* ---- limits */

static int64_t limit_of(const opq_pool *pool)
{
    return (int64_t)((double)atomic_load(&pool->machine) * atomic_load(&pool->fraction));
}

static opq_status refuse(opq_pool *pool, size_t bytes)
{
    char why[128] = "";
    double fraction = atomic_load(&pool->fraction);
    pthread_mutex_lock(&pool->lock);
    pool->stats.refused++;
    pthread_mutex_unlock(&pool->lock);
    if (fraction < 1)
        snprintf(why, sizeof why, "; %lld bytes are live and this process may have %lld (%g of the memory there is)",
                 (long long)atomic_load(&pool->live), (long long)limit_of(pool), fraction);
    return opq_fail(OPQ_NO_MEMORY,
                    "can't allocate memory: you tried to allocate %zu bytes. Error code 12 (Cannot allocate memory)%s",
                    bytes, why);
}

static bool fits(const opq_pool *pool, int64_t bytes)
{
    return bytes >= 0 && bytes <= limit_of(pool) - atomic_load(&pool->live);
}

/* Reads again how much there is, which may have changed. */
static bool fits_now(opq_pool *pool, int64_t bytes)
{
    atomic_store(&pool->machine, opq_machine_bytes());
    return fits(pool, bytes);
}

opq_status opq_pool_check(opq_pool *pool, int64_t bytes)
{
    if (!fits(pool, bytes) && !fits_now(pool, bytes))
        return refuse(pool, (size_t)bytes);
    if (bytes >= HUGE_PAGE)
        opq_packed_shrink(pool, limit_of(pool) - atomic_load(&pool->live) - bytes);
    return OPQ_OK;
}

void opq_pool_limit(opq_pool *pool, double fraction) { atomic_store(&pool->fraction, fraction); }
double opq_pool_fraction(const opq_pool *pool) { return atomic_load(&pool->fraction); }

static void log_buffer(const opq_pool *pool, const opq_buffer *buffer, const char *what)
{
    if (opq_logs(OPQ_LOG_memory, OPQ_LOG_DEBUG))
        opq_log("memory: %s %s of %zu bytes, %lld live", what, buffer->cached ? "a packed copy" : "a buffer",
                buffer->bytes, (long long)atomic_load(&pool->live));
}

/* ---- live buffers, with the lock held */

static void link_live(opq_pool *pool, opq_buffer *buffer)
{
    buffer->newer = NULL;
    buffer->older = pool->newest;
    if (pool->newest)
        pool->newest->newer = buffer;
    pool->newest = buffer;
    count_live(pool, buffer, 1);
}

static void unlink_live(opq_pool *pool, const opq_buffer *buffer)
{
    count_live(pool, buffer, -1);
    *(buffer->newer ? &buffer->newer->older : &pool->newest) = buffer->older;
    if (buffer->older)
        buffer->older->newer = buffer->newer;
}

/* ---- */

/* With nothing but its memory. */
static void begin_life(opq_pool *pool, opq_buffer *buffer, size_t bytes, int size_class, enum use use)
{
    void *data = buffer->data;
    size_t small = buffer->small;
    memset(buffer, 0, sizeof *buffer);
    atomic_init(&buffer->refs, 1);
    buffer->pool = pool;
    buffer->data = data;
    buffer->small = small;
    buffer->bytes = bytes;
    buffer->capacity = class_bytes(size_class);
    buffer->size_class = size_class;
    buffer->cached = use == USE_packed;
    if (!buffer->cached)
        link_live(pool, buffer);
}

static opq_buffer *take_buffer(opq_pool *pool, size_t bytes, enum use use)
{
    bool cached = use == USE_packed;
    size_t small;
    int size_class = class_of(bytes);
    pthread_mutex_lock(&pool->lock);
    opq_buffer *found = pool->free[size_class];
    if (found) {
        pool->free[size_class] = found->next;
        pool->cached -= opq_pool_mapped_bytes(size_class);
        begin_life(pool, found, bytes, size_class, use);
    }
    pthread_mutex_unlock(&pool->lock);
    if (found)
        return found;
    size_t block = opq_pool_mapped_bytes(size_class);
    if (block >= HUGE_PAGE && !cached && !fits_now(pool, (int64_t)bytes))
        return NULL;
    bool cramped = (int64_t)block > limit_of(pool) - atomic_load(&pool->reserved);
    if (cached && cramped)
        return NULL;
    opq_buffer *made = malloc(sizeof *made);
    void *data = made && !cramped ? map_block(pool, size_class, use, &small) : NULL;
    if (made && data == NULL) { /* what is cached goes first */
        opq_pool_trim(pool);
        data = map_block(pool, size_class, use, &small);
    }
    if (data == NULL) {
        free(made);
        return NULL;
    }
    made->data = data;
    made->small = small;
    pthread_mutex_lock(&pool->lock);
    pool->stats.retries += cramped;
    count_reserved(pool, block, 1);
    atomic_fetch_add(&pool->small, (long long)made->small);
    begin_life(pool, made, bytes, size_class, use);
    pthread_mutex_unlock(&pool->lock);
    return made;
}

static opq_status make_buffer(opq_pool *pool, size_t bytes, enum use use, opq_buffer **out_buffer)
{
    opq_buffer *buffer = take_buffer(pool, bytes, use);
    if (buffer == NULL)
        return use == USE_packed ? opq_fail(OPQ_NO_MEMORY, "out of memory for a packed copy") : refuse(pool, bytes);
    atomic_fetch_add(&pool->refs, 1);
    log_buffer(pool, buffer, "made");
    *out_buffer = buffer;
    return OPQ_OK;
}

opq_status opq_pool_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    OPQ_TRY(opq_pool_check(pool, (int64_t)bytes));
    return make_buffer(pool, bytes, USE_value, out_buffer);
}

opq_status opq_pool_run_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    OPQ_TRY(opq_pool_check(pool, (int64_t)bytes));
    return make_buffer(pool, bytes, USE_run, out_buffer);
}

opq_status opq_pool_cache_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    return make_buffer(pool, bytes, USE_packed, out_buffer);
}

opq_packed_cache *opq_pool_packed(opq_pool *pool) { return &pool->packed; }

opq_status opq_pool_adopt(opq_pool *pool, void *data, size_t bytes, void (*drop)(void *), void *arg,
                          opq_buffer **out_buffer)
{
    static char nothing[64];
    if (opq_pool_fraction(pool) < 1)
        OPQ_TRY(opq_pool_check(pool, (int64_t)bytes));
    opq_buffer *buffer = malloc(sizeof *buffer);
    if (buffer == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    *buffer = (opq_buffer){.refs = 1,
                           .pool = pool,
                           .data = data ? data : nothing,
                           .bytes = bytes,
                           .capacity = bytes,
                           .size_class = -1,
                           .drop = drop,
                           .drop_arg = arg};
    atomic_fetch_add(&pool->refs, 1);
    pthread_mutex_lock(&pool->lock);
    count_reserved(pool, bytes, 1);
    link_live(pool, buffer);
    pthread_mutex_unlock(&pool->lock);
    *out_buffer = buffer;
    return OPQ_OK;
}

static void drop_part(void *of) { opq_buffer_release(of); }

opq_status opq_buffer_part(opq_buffer *buffer, int64_t first, int64_t bytes, opq_buffer **out_part)
{
    opq_buffer_retain(buffer);
    *out_part = buffer;
    if (first == 0)
        return OPQ_OK;
    opq_status status =
        opq_pool_adopt(buffer->pool, (char *)buffer->data + first, (size_t)bytes, drop_part, buffer, out_part);
    if (status != OPQ_OK) {
        *out_part = NULL;
        opq_buffer_release(buffer);
    }
    return status;
}

/* ---- small pages that become huge, with both locks held */

static opq_buffer *any_with_small(const opq_pool *pool)
{
    for (opq_buffer *b = pool->newest; b; b = b->older)
        if (b->small > 0)
            return b;
    for (int c = 0; c < OPQ_POOL_CLASSES; c++)
        for (opq_buffer *b = pool->free[c]; b; b = b->next)
            if (b->small > 0)
                return b;
    return opq_packed_small(&pool->packed);
}

void opq_pool_tend(opq_pool *pool, double seconds)
{
    /* The first runs may be all there are. A pause when there is nothing to be done and still something left. */
    enum { FIRST_RUNS = 4, PAUSE = 100 };
    opq_packed_next_run(&pool->packed);
    if (atomic_load_explicit(&pool->small, memory_order_relaxed) == 0)
        return;
    opq_pool_lock(pool);
    pool->credit += ++pool->runs > FIRST_RUNS ? opq_runs.collapse_share * seconds : 0;
    while (pool->credit > pool->pages.collapse) {
        opq_buffer *buffer = any_with_small(pool);
        if (buffer == NULL) {
            pool->credit = 0;
            pool->runs = -PAUSE;
            break;
        }
        pool->credit -= opq_pages_collapse(&pool->pages, (char *)buffer->data +
                                                             opq_pool_mapped_bytes(buffer->size_class) - buffer->small);
        buffer->small -= HUGE_PAGE;
        atomic_fetch_sub(&pool->small, HUGE_PAGE);
    }
    opq_pool_unlock(pool);
}

/* ---- */

void opq_buffer_retain(opq_buffer *buffer) { atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed); }

void opq_buffer_lend(opq_buffer *buffer)
{
    atomic_store(&buffer->lent, true);
    opq_buffer_retain(buffer);
}

void opq_buffer_settle(opq_buffer *buffer) { atomic_store(&buffer->lent, false); }

static void give_back(opq_pool *pool, opq_buffer *buffer)
{
    size_t bytes = opq_pool_mapped_bytes(buffer->size_class);
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->cached + bytes <= pool->cache_limit;
    if (!buffer->cached)
        unlink_live(pool, buffer);
    if (keep) {
        buffer->next = pool->free[buffer->size_class];
        pool->free[buffer->size_class] = buffer;
        pool->cached += bytes;
    } else {
        count_reserved(pool, bytes, -1);
    }
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        free_buffer(pool, buffer);
}

static void drop_adopted(opq_pool *pool, opq_buffer *buffer)
{
    pthread_mutex_lock(&pool->lock);
    count_reserved(pool, buffer->bytes, -1);
    unlink_live(pool, buffer);
    pthread_mutex_unlock(&pool->lock);
    if (buffer->drop)
        buffer->drop(buffer->drop_arg);
    free(buffer);
}

void opq_buffer_release(opq_buffer *buffer)
{
    if (buffer == NULL || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    opq_pool *pool = buffer->pool;
    opq_packed_forget(buffer);
    log_buffer(pool, buffer, "dropped");
    if (buffer->size_class >= 0)
        give_back(pool, buffer);
    else
        drop_adopted(pool, buffer);
    drop_pool(pool);
}

void opq_pool_lock(opq_pool *pool)
{
    pthread_mutex_lock(&pool->packed.lock);
    pthread_mutex_lock(&pool->lock);
}

void opq_pool_unlock(opq_pool *pool)
{
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->packed.lock);
}
