/* A loop on several threads for programs that bring none: workers that wait for the next loop, first awake for a moment, then asleep. One
 * loop at a time has them; a loop that comes meanwhile, from another thread or from inside, runs where it is. */
#include "exported/exported.h"
#include "graph/fp_control.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { AWAKE_TURNS = 20000 };

typedef void (*loop_body)(void *data, int64_t begin, int64_t end);

typedef struct worker {
    opq_threads *threads;
    int index;
    pthread_t thread;
} worker;

struct opq_threads {
    int count;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint loop; /* number of the loop that runs */
    atomic_int left;  /* workers that are not done with it */
    atomic_flag busy;
    atomic_bool ends;
    loop_body body;
    void *data;
    int64_t total, pieces;
    unsigned control;
    worker workers[];
};

static void run_piece(const opq_threads *t, int64_t piece)
{
    if (piece < t->pieces)
        t->body(t->data, t->total * piece / t->pieces, t->total * (piece + 1) / t->pieces);
}

static unsigned next_loop(opq_threads *t, unsigned seen)
{
    for (int i = 0; i < AWAKE_TURNS; i++) {
        unsigned now = atomic_load_explicit(&t->loop, memory_order_acquire);
        if (now != seen || atomic_load(&t->ends))
            return now;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->loop) == seen && !atomic_load(&t->ends))
        pthread_cond_wait(&t->wake, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return atomic_load(&t->loop);
}

static void *work(void *data)
{
    worker *w = data;
    opq_threads *t = w->threads;
    for (unsigned seen = 0;;) {
        seen = next_loop(t, seen);
        if (atomic_load(&t->ends))
            return NULL;
        (void)opq_fp_control_set(t->control);
        run_piece(t, w->index);
        atomic_fetch_sub_explicit(&t->left, 1, memory_order_release);
    }
}

static void run_on_all(opq_threads *t, int64_t count, int64_t pieces, loop_body body, void *data)
{
    t->body = body;
    t->data = data;
    t->total = count;
    t->pieces = pieces;
    t->control = opq_fp_control();
    atomic_store(&t->left, t->count - 1);
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->loop, 1);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    run_piece(t, 0);
    while (atomic_load_explicit(&t->left, memory_order_acquire) > 0)
        __builtin_ia32_pause();
}

static void parallel_for(void *self, int64_t count, int64_t grain, loop_body body, void *data)
{
    opq_threads *t = self;
    int64_t pieces = grain > 0 ? (count + grain - 1) / grain : count;
    pieces = pieces < t->count ? pieces : t->count;
    if (pieces <= 1 || atomic_flag_test_and_set_explicit(&t->busy, memory_order_acquire)) {
        if (count > 0)
            body(data, 0, count);
        return;
    }
    run_on_all(t, count, pieces, body, data);
    atomic_flag_clear_explicit(&t->busy, memory_order_release);
}

static int thread_count(void *self) { return ((const opq_threads *)self)->count; }

void opq_threads_destroy(opq_threads *t)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->ends, true);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
    for (int i = 1; i < t->count; i++)
        pthread_join(t->workers[i].thread, NULL);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

opq_status opq_threads_create(int count, opq_threads **out_threads)
{
    opq_threads *t = calloc(1, sizeof *t + (size_t)count * sizeof *t->workers);
    if (t == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    t->count = 1;
    atomic_flag_clear(&t->busy);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    for (; t->count < count; t->count++) {
        worker *w = &t->workers[t->count];
        *w = (worker){.threads = t, .index = t->count};
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            opq_threads_destroy(t);
            return opq_fail(OPQ_NO_MEMORY, "a thread could not be started");
        }
    }
    *out_threads = t;
    return OPQ_OK;
}

opq_host opq_threads_host(opq_threads *threads)
{
    return (opq_host){.self = threads, .parallel_for = parallel_for, .thread_count = thread_count};
}
