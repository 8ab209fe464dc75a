/* Per-thread buffers for packed panels. First touch of fresh pages costs several times the packing itself, so a thread keeps its
 * buffer between calls, up to a bound. Huge pages make no product faster, and where a host has to find them the first one much slower. */
#include "runtime/gemm_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { PAGE = 4096 };
#define KEPT_BYTES ((int64_t)64 << 20)

typedef struct slot {
    void *data;
    int64_t bytes;
    bool busy;
} slot;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

static void drop(void *slots)
{
    for (int i = 0; i < GEMM_SCRATCH_COUNT; i++)
        free(((slot *)slots)[i].data);
    free(slots);
}

static void make_key(void) { have_key = pthread_key_create(&key, drop) == 0; }

static slot *slot_of_thread(int index)
{
    pthread_once(&once, make_key);
    if (!have_key)
        return NULL;
    slot *slots = pthread_getspecific(key);
    if (!slots) {
        slots = calloc(GEMM_SCRATCH_COUNT, sizeof *slots);
        if (slots && pthread_setspecific(key, slots)) {
            free(slots);
            slots = NULL;
        }
    }
    return slots ? &slots[index] : NULL;
}

static void *allocate(int64_t bytes, int64_t *out_bytes)
{
    *out_bytes = (bytes + PAGE - 1) & -(int64_t)PAGE;
    return aligned_alloc(PAGE, (size_t)*out_bytes);
}

void *gemm_scratch_acquire(int index, int64_t bytes)
{
    slot *s = slot_of_thread(index);
    int64_t size;
    /* Busy: a tile callback multiplies matrices itself. */
    if (!s || s->busy || bytes > KEPT_BYTES)
        return allocate(bytes, &size);
    if (s->bytes < bytes) {
        free(s->data);
        s->data = allocate(bytes, &s->bytes);
        if (!s->data)
            s->bytes = 0;
    }
    s->busy = s->data != NULL;
    return s->data;
}

void gemm_scratch_release(int index, void *buffer)
{
    slot *s = slot_of_thread(index);
    if (s && s->data == buffer)
        s->busy = false;
    else
        free(buffer);
}
