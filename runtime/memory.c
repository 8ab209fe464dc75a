/* The caching allocator: see memory.h.
 *
 * Size classes are four per power of two from 64 bytes on, so at most a fifth is wasted. Blocks of 2 MiB and more are mapped on their
 * own, aligned for huge pages; smaller ones come from the C library. What is cached counts against a quarter of the machine's memory.
 */
#define _GNU_SOURCE
#include "runtime/memory.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLASS_COUNT = 4 * 44, HUGE_PAGE = 2 << 20, SMALLEST = 64 };

typedef struct block {
    struct block *next;
} block;

struct opq_pool {
    pthread_mutex_t lock;
    atomic_int refs; /* one for the owner, one per live buffer */
    block *free[CLASS_COUNT];
    size_t cached, cache_limit;
    atomic_llong live, peak;
};

static size_t class_bytes(int size_class)
{
    size_t power = (size_t)SMALLEST << (size_class / 4);
    return power + power / 4 * (size_t)(size_class % 4);
}

static int class_of(size_t bytes)
{
    int low = 0, high = CLASS_COUNT - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (class_bytes(middle) >= bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static size_t mapped_bytes(int size_class)
{
    size_t bytes = class_bytes(size_class);
    return bytes < HUGE_PAGE ? bytes : (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

static void *map_block(int size_class)
{
    size_t bytes = mapped_bytes(size_class);
    void *data = NULL;
    if (bytes < HUGE_PAGE)
        return posix_memalign(&data, 64, (bytes + 63) & ~(size_t)63) == 0 ? data : NULL;
    char *base =
        mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (aligned > base)
        munmap(base, (size_t)(aligned - base));
    munmap(aligned + bytes, (size_t)(base + HUGE_PAGE - aligned));
    madvise(aligned, bytes, MADV_HUGEPAGE);
    return aligned;
}

static void unmap_block(void *data, int size_class)
{
    size_t bytes = mapped_bytes(size_class);
    if (bytes < HUGE_PAGE)
        free(data);
    else
        munmap(data, bytes);
}

static int64_t machine_bytes(void)
{
    int64_t total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), limit;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    if (file) {
        if (fscanf(file, "%ld", &limit) == 1 && limit > 0 && limit < total)
            total = limit;
        fclose(file);
    }
    return total;
}

opq_status opq_pool_create(opq_pool **out_pool)
{
    opq_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    pthread_mutex_init(&pool->lock, NULL);
    atomic_init(&pool->refs, 1);
    pool->cache_limit = (size_t)machine_bytes() / 4;
    *out_pool = pool;
    return OPQ_OK;
}

void opq_pool_trim(opq_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    for (int c = 0; c < CLASS_COUNT; c++)
        while (pool->free[c]) {
            block *next = pool->free[c]->next;
            unmap_block(pool->free[c], c);
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
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void opq_pool_destroy(opq_pool *pool)
{
    if (pool)
        drop_pool(pool);
}

opq_status opq_pool_check(opq_pool *pool, int64_t bytes)
{
    if (bytes < 0 || bytes > machine_bytes() - atomic_load(&pool->live))
        return opq_fail(
            OPQ_NO_MEMORY,
            "can't allocate memory: you tried to allocate %lld bytes. Error code 12 (Cannot allocate memory)",
            (long long)bytes);
    return OPQ_OK;
}

static void count_live(opq_pool *pool, int64_t bytes)
{
    int64_t live = atomic_fetch_add(&pool->live, bytes) + bytes;
    long long peak = atomic_load(&pool->peak);
    while (live > peak && !atomic_compare_exchange_weak(&pool->peak, &peak, live))
        ;
}

static void *take_block(opq_pool *pool, int size_class)
{
    pthread_mutex_lock(&pool->lock);
    block *found = pool->free[size_class];
    if (found) {
        pool->free[size_class] = found->next;
        pool->cached -= mapped_bytes(size_class);
    }
    pthread_mutex_unlock(&pool->lock);
    if (found)
        return found;
    void *data = map_block(size_class);
    if (data == NULL) {
        opq_pool_trim(pool);
        data = map_block(size_class);
    }
    return data;
}

opq_status opq_pool_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    int size_class = class_of(bytes ? bytes : 1);
    if (bytes >= HUGE_PAGE)
        OPQ_TRY(opq_pool_check(pool, (int64_t)bytes));
    opq_buffer *buffer = calloc(1, sizeof *buffer);
    void *data = buffer ? take_block(pool, size_class) : NULL;
    if (data == NULL) {
        free(buffer);
        return opq_fail(
            OPQ_NO_MEMORY,
            "can't allocate memory: you tried to allocate %zu bytes. Error code 12 (Cannot allocate memory)", bytes);
    }
    atomic_init(&buffer->refs, 1);
    buffer->pool = pool;
    buffer->data = data;
    buffer->bytes = bytes;
    buffer->capacity = class_bytes(size_class);
    buffer->size_class = size_class;
    atomic_fetch_add(&pool->refs, 1);
    count_live(pool, (int64_t)bytes);
    *out_buffer = buffer;
    return OPQ_OK;
}

opq_status opq_pool_adopt(opq_pool *pool, void *data, size_t bytes, void (*drop)(void *), void *arg,
                          opq_buffer **out_buffer)
{
    static char nothing[64];
    opq_buffer *buffer = calloc(1, sizeof *buffer);
    if (buffer == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    atomic_init(&buffer->refs, 1);
    buffer->pool = pool;
    buffer->data = data ? data : nothing;
    buffer->bytes = buffer->capacity = bytes;
    buffer->size_class = -1;
    buffer->drop = drop;
    buffer->drop_arg = arg;
    atomic_fetch_add(&pool->refs, 1);
    count_live(pool, (int64_t)bytes);
    *out_buffer = buffer;
    return OPQ_OK;
}

void opq_buffer_retain(opq_buffer *buffer) { atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed); }

void opq_buffer_lend(opq_buffer *buffer)
{
    atomic_store(&buffer->matmul_uses, INT_MIN / 2); /* the use that packs is 2^30 uses away */
    opq_buffer_retain(buffer);
}

void opq_buffer_settle(opq_buffer *buffer) { atomic_store(&buffer->matmul_uses, 0); }

static void give_back(opq_pool *pool, void *data, int size_class)
{
    size_t bytes = mapped_bytes(size_class);
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->cached + bytes <= pool->cache_limit;
    if (keep) {
        block *freed = data;
        freed->next = pool->free[size_class];
        pool->free[size_class] = freed;
        pool->cached += bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        unmap_block(data, size_class);
}

void opq_buffer_release(opq_buffer *buffer)
{
    if (buffer == NULL || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) != 1)
        return;
    opq_pool *pool = buffer->pool;
    for (opq_packed *packed = atomic_load(&buffer->packed), *next; packed; packed = next) {
        next = packed->next;
        opq_buffer_release(packed->memory);
        free(packed);
    }
    count_live(pool, -(int64_t)buffer->bytes);
    if (buffer->size_class >= 0)
        give_back(pool, buffer->data, buffer->size_class);
    else if (buffer->drop)
        buffer->drop(buffer->drop_arg);
    free(buffer);
    drop_pool(pool);
}

void opq_pool_lock(opq_pool *pool) { pthread_mutex_lock(&pool->lock); }
void opq_pool_unlock(opq_pool *pool) { pthread_mutex_unlock(&pool->lock); }
int64_t opq_pool_live(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->live); }
int64_t opq_pool_peak(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->peak); }
void opq_pool_reset_peak(opq_pool *pool) { atomic_store(&pool->peak, atomic_load(&pool->live)); }

/* ---- scratch per thread */

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
typedef struct scratch {
    size_t bytes;
    void *data;
} scratch;

static void drop_scratch(void *arg)
{
    scratch *held = arg;
    free(held->data);
    free(held);
}

static void make_key(void) { pthread_key_create(&scratch_key, drop_scratch); }

void *opq_thread_scratch(size_t bytes)
{
    pthread_once(&scratch_once, make_key);
    scratch *held = pthread_getspecific(scratch_key);
    if (held == NULL) {
        held = calloc(1, sizeof *held);
        if (held == NULL || pthread_setspecific(scratch_key, held) != 0) {
            free(held);
            return NULL;
        }
    }
    if (held->bytes < bytes) {
        free(held->data);
        held->data = NULL;
        held->bytes = 0;
        if (posix_memalign(&held->data, 64, (bytes + 4095) & ~(size_t)4095) != 0)
            return held->data = NULL;
        held->bytes = (bytes + 4095) & ~(size_t)4095;
    }
    return held->data;
}
