/* The caching allocator: see memory.h.
 *
 * Size classes are four per power of two from 64 bytes on, so at most a fifth is wasted. Blocks of 2 MiB and more are mapped on their
 * own, aligned for huge pages; smaller ones come from the C library. What is cached counts against a quarter of the machine's memory,
 * packed copies of operands (packed.h) against an eighth.
 */
#define _GNU_SOURCE
#include "runtime/memory.h"
#include "opaque/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLASS_COUNT = 4 * 44, HUGE_PAGE = 2 << 20, SMALLEST = 64 };

struct opq_pool {
    pthread_mutex_t lock;
    atomic_int refs;               /* one for the owner, one per live buffer */
    opq_buffer *free[CLASS_COUNT]; /* with their memory, linked */
    opq_buffer *newest;            /* live ones */
    size_t cached, cache_limit;
    atomic_llong live, peak, reserved, reserved_peak;
    opq_packed_cache packed;
};

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
    return size_class < CLASS_COUNT ? size_class : CLASS_COUNT - 1;
}

static size_t mapped_bytes(int size_class)
{
    size_t bytes = class_bytes(size_class);
    return bytes < HUGE_PAGE ? bytes : (bytes + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

static void count(atomic_llong *now, atomic_llong *highest, int64_t bytes)
{
    int64_t sum = atomic_fetch_add(now, bytes) + bytes;
    long long peak = atomic_load(highest);
    while (sum > peak && !atomic_compare_exchange_weak(highest, &peak, sum))
        ;
}

static void count_live(opq_pool *pool, int64_t bytes) { count(&pool->live, &pool->peak, bytes); }
static void count_reserved(opq_pool *pool, int64_t bytes) { count(&pool->reserved, &pool->reserved_peak, bytes); }

static void *map_memory(int size_class)
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

static void *map_block(opq_pool *pool, int size_class)
{
    void *data = map_memory(size_class);
    if (data)
        count_reserved(pool, (int64_t)mapped_bytes(size_class));
    if (mapped_bytes(size_class) >= HUGE_PAGE && opq_logs(OPQ_LOG_memory, OPQ_LOG_INFO))
        opq_log("memory: %s %zu bytes from the system, %lld reserved", data ? "took" : "did not get",
                mapped_bytes(size_class), (long long)atomic_load(&pool->reserved));
    return data;
}

static void free_buffer(opq_pool *pool, opq_buffer *buffer)
{
    size_t bytes = mapped_bytes(buffer->size_class);
    count_reserved(pool, -(int64_t)bytes);
    if (bytes >= HUGE_PAGE && opq_logs(OPQ_LOG_memory, OPQ_LOG_INFO))
        opq_log("memory: gave %zu bytes back to the system, %lld reserved", bytes,
                (long long)atomic_load(&pool->reserved));
    if (bytes < HUGE_PAGE)
        free(buffer->data);
    else
        munmap(buffer->data, bytes);
    free(buffer);
}

/* The number after `name` in a file of the system; -1 if there is none ("max"). */
static int64_t number_in(const char *path, const char *name)
{
    int64_t number = -1;
    char line[256];
    size_t length = strlen(name);
    FILE *file = fopen(path, "r");
    while (file && number < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%" SCNd64, &number) != 1)
            break;
    if (file)
        fclose(file);
    return number;
}

static int64_t group_limit(void) { return number_in("/sys/fs/cgroup/memory.max", ""); }

static int64_t machine_bytes(void)
{
    int64_t total = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), limit = group_limit();
    return limit > 0 && limit < total ? limit : total;
}

void opq_machine_memory(int64_t *out_available, int64_t *out_total)
{
    int64_t kibibytes = number_in("/proc/meminfo", "MemAvailable:"), limit = group_limit();
    int64_t available = kibibytes >= 0 ? kibibytes * 1024 : (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
    if (limit > 0) {
        /* Pages that files of the group fill are given back when they are needed. */
        int64_t used = number_in("/sys/fs/cgroup/memory.current", ""),
                files = number_in("/sys/fs/cgroup/memory.stat", "inactive_file ");
        int64_t left = limit - (used > 0 ? used : 0) + (files > 0 ? files : 0);
        available = left < available ? left : available;
    }
    *out_available = available > 0 ? available : 0;
    *out_total = machine_bytes();
}

opq_status opq_pool_create(opq_pool **out_pool)
{
    opq_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    pthread_mutex_init(&pool->lock, NULL);
    atomic_init(&pool->refs, 1);
    int64_t machine = machine_bytes();
    pool->cache_limit = (size_t)machine / 4;
    opq_packed_init(&pool->packed, machine / 8);
    *out_pool = pool;
    return OPQ_OK;
}

void opq_pool_trim(opq_pool *pool)
{
    opq_packed_shrink(pool, 0);
    pthread_mutex_lock(&pool->lock);
    for (int c = 0; c < CLASS_COUNT; c++)
        while (pool->free[c]) {
            opq_buffer *next = pool->free[c]->next;
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

opq_status opq_pool_check(opq_pool *pool, int64_t bytes)
{
    int64_t room = machine_bytes() - atomic_load(&pool->live);
    if (bytes < 0 || bytes > room)
        return opq_fail(
            OPQ_NO_MEMORY,
            "can't allocate memory: you tried to allocate %lld bytes. Error code 12 (Cannot allocate memory)",
            (long long)bytes);
    opq_packed_shrink(pool, room - bytes);
    return OPQ_OK;
}

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
}

static void unlink_live(opq_pool *pool, const opq_buffer *buffer)
{
    *(buffer->newer ? &buffer->newer->older : &pool->newest) = buffer->older;
    if (buffer->older)
        buffer->older->newer = buffer->newer;
}

/* ---- */

/* With nothing but its memory. */
static void begin_life(opq_pool *pool, opq_buffer *buffer, size_t bytes, int size_class, bool cached)
{
    void *data = buffer->data;
    memset(buffer, 0, sizeof *buffer);
    atomic_init(&buffer->refs, 1);
    buffer->pool = pool;
    buffer->data = data;
    buffer->bytes = bytes;
    buffer->capacity = class_bytes(size_class);
    buffer->size_class = size_class;
    buffer->cached = cached;
    if (!cached)
        link_live(pool, buffer);
}

static opq_buffer *take_buffer(opq_pool *pool, size_t bytes, bool cached)
{
    int size_class = class_of(bytes);
    pthread_mutex_lock(&pool->lock);
    opq_buffer *found = pool->free[size_class];
    if (found) {
        pool->free[size_class] = found->next;
        pool->cached -= mapped_bytes(size_class);
        begin_life(pool, found, bytes, size_class, cached);
    }
    pthread_mutex_unlock(&pool->lock);
    if (found)
        return found;
    opq_buffer *made = malloc(sizeof *made);
    void *data = made ? map_block(pool, size_class) : NULL;
    if (made && data == NULL) {
        opq_pool_trim(pool);
        data = map_block(pool, size_class);
    }
    if (data == NULL) {
        free(made);
        return NULL;
    }
    made->data = data;
    pthread_mutex_lock(&pool->lock);
    begin_life(pool, made, bytes, size_class, cached);
    pthread_mutex_unlock(&pool->lock);
    return made;
}

static opq_status make_buffer(opq_pool *pool, size_t bytes, bool cached, opq_buffer **out_buffer)
{
    opq_buffer *buffer = take_buffer(pool, bytes, cached);
    if (buffer == NULL)
        return opq_fail(
            OPQ_NO_MEMORY,
            "can't allocate memory: you tried to allocate %zu bytes. Error code 12 (Cannot allocate memory)", bytes);
    atomic_fetch_add(&pool->refs, 1);
    if (!cached)
        count_live(pool, (int64_t)bytes);
    log_buffer(pool, buffer, "made");
    *out_buffer = buffer;
    return OPQ_OK;
}

opq_status opq_pool_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    if (bytes >= HUGE_PAGE)
        OPQ_TRY(opq_pool_check(pool, (int64_t)bytes));
    return make_buffer(pool, bytes, false, out_buffer);
}

opq_status opq_pool_cache_buffer(opq_pool *pool, size_t bytes, opq_buffer **out_buffer)
{
    return make_buffer(pool, bytes, true, out_buffer);
}

opq_packed_cache *opq_pool_packed(opq_pool *pool) { return &pool->packed; }

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
    count_reserved(pool, (int64_t)bytes);
    pthread_mutex_lock(&pool->lock);
    link_live(pool, buffer);
    pthread_mutex_unlock(&pool->lock);
    *out_buffer = buffer;
    return OPQ_OK;
}

void opq_buffer_retain(opq_buffer *buffer) { atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed); }

void opq_buffer_lend(opq_buffer *buffer)
{
    atomic_store(&buffer->lent, true);
    opq_buffer_retain(buffer);
}

void opq_buffer_settle(opq_buffer *buffer) { atomic_store(&buffer->lent, false); }

static void give_back(opq_pool *pool, opq_buffer *buffer)
{
    size_t bytes = mapped_bytes(buffer->size_class);
    pthread_mutex_lock(&pool->lock);
    bool keep = pool->cached + bytes <= pool->cache_limit;
    if (!buffer->cached)
        unlink_live(pool, buffer);
    if (keep) {
        buffer->next = pool->free[buffer->size_class];
        pool->free[buffer->size_class] = buffer;
        pool->cached += bytes;
    }
    pthread_mutex_unlock(&pool->lock);
    if (!keep)
        free_buffer(pool, buffer);
}

static void drop_adopted(opq_pool *pool, opq_buffer *buffer)
{
    count_reserved(pool, -(int64_t)buffer->bytes);
    pthread_mutex_lock(&pool->lock);
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
    if (!buffer->cached)
        count_live(pool, -(int64_t)buffer->bytes);
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
int64_t opq_pool_live(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->live); }
int64_t opq_pool_peak(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->peak); }
int64_t opq_pool_reserved(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->reserved); }
int64_t opq_pool_reserved_peak(const opq_pool *pool) { return atomic_load(&((opq_pool *)pool)->reserved_peak); }
void opq_pool_reset_peak(opq_pool *pool)
{
    atomic_store(&pool->peak, atomic_load(&pool->live));
    atomic_store(&pool->reserved_peak, atomic_load(&pool->reserved));
}

opq_status opq_pool_blocks(opq_pool *pool, opq_memory_block **out_blocks, int *out_count)
{
    int count = 0;
    pthread_mutex_lock(&pool->lock);
    for (const opq_buffer *b = pool->newest; b; b = b->older)
        count++;
    opq_memory_block *blocks = calloc((size_t)count + 1, sizeof *blocks), *block = blocks;
    for (const opq_buffer *b = blocks ? pool->newest : NULL; b; b = b->older) {
        uint64_t maker = atomic_load_explicit(&b->maker, memory_order_relaxed);
        size_t reserved = b->size_class >= 0 ? mapped_bytes(b->size_class) : b->bytes;
        *block++ = (opq_memory_block){.address = b->data,
                                      .bytes = (int64_t)b->bytes,
                                      .reserved = (int64_t)reserved,
                                      .op = maker ? opq_op_info_of((opq_op)((maker >> 32) - 1))->name : NULL,
                                      .line = (uint32_t)maker};
    }
    pthread_mutex_unlock(&pool->lock);
    if (blocks == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    *out_blocks = blocks;
    *out_count = count;
    return OPQ_OK;
}

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
