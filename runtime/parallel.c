/* The host's parallel loop under the floating-point control of the thread that asks for it. */
#include "runtime/parallel.h"
#include "graph/fp_control.h"

#include <stdatomic.h>
#include <time.h>

typedef struct loop {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    unsigned control;
    bool watched;
    _Atomic int64_t longest; /* piece, in nanoseconds of its processor */
} loop;

static _Thread_local struct {
    bool on;
    int64_t idle; /* nanoseconds of this thread's processor that were no work, since it began; below 0 where other threads did more */
} watch;

static int64_t processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void opq_parallel_watch(bool on) { watch.on = on; }
double opq_parallel_busy(void) { return 1e-9 * (double)(processor_time() - watch.idle); }

/* The thread is lent: what it had is put back. */
static void run_piece(void *data, int64_t begin, int64_t end)
{
    loop *l = data;
    int64_t start = l->watched ? processor_time() : 0;
    unsigned before = opq_fp_control_set(l->control);
    l->body(l->data, begin, end);
    opq_fp_control_set(before);
    if (!l->watched)
        return;
    int64_t took = processor_time() - start, longest = atomic_load(&l->longest);
    while (took > longest && !atomic_compare_exchange_weak(&l->longest, &longest, took))
        ;
}

void opq_parallel_for(const opq_host *host, int64_t count, int64_t grain,
                      void (*body)(void *data, int64_t begin, int64_t end), void *data)
{
    if (count <= grain || host == NULL || host->parallel_for == NULL) {
        body(data, 0, count);
        return;
    }
    loop l = {body, data, opq_fp_control(), watch.on, 0};
    int64_t start = l.watched ? processor_time() : 0;
    host->parallel_for(host->self, count, grain, run_piece, &l);
    if (l.watched)
        watch.idle += processor_time() - start - atomic_load(&l.longest);
}
