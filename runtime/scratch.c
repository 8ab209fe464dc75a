/* Scratch memory of each thread. */
#define _GNU_SOURCE
#include "runtime/memory.h"

#include <pthread.h>
#include <stdlib.h>

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
