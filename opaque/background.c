/* See background.h. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "opaque/background.h"
#include "graph/progress.h"
#include "opaque/repro.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int threads_by_default(void)
{
    cpu_set_t set;
    int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return processors - 1 < OPQ_BACKGROUND_THREADS_MAX ? processors - 1 : OPQ_BACKGROUND_THREADS_MAX;
}

opq_status opq_background_init(opq_background *b, opq_runtime *runtime)
{
    const char *text = getenv("OPAQUE_BACKGROUND");
    char *end;
    b->runtime = runtime;
    b->threads_wanted = threads_by_default();
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->idle, NULL);
    if (text == NULL || !*text)
        return OPQ_OK;
    long count = strtol(text, &end, 10);
    if (*end || count < 0 || count > OPQ_BACKGROUND_THREADS_MAX)
        return opq_fail(OPQ_INVALID, "OPAQUE_BACKGROUND is \"%s\"; it is a number of threads from 0 to %d", text,
                        OPQ_BACKGROUND_THREADS_MAX);
    b->threads_wanted = (int)count;
    return OPQ_OK;
}

/* ---- jobs */

static void each_payload(const opq_graph *graph, void (*call)(void *self, void *payload), void *self)
{
    for (opq_ref n = 0; call && n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        if (node->op == OPQ_OP_extern && node->payload)
            call(self, node->payload);
    }
}

opq_job *opq_job_new(const opq_host *host, opq_graph *graph, const void *key, size_t key_bytes)
{
    opq_job *job = malloc(sizeof *job + key_bytes);
    if (job == NULL) {
        opq_graph_destroy(graph);
        return NULL;
    }
    *job = (opq_job){.graph = graph, .key_bytes = key_bytes};
    memcpy(job->key, key, key_bytes);
    each_payload(graph, host->retain_payload, host->self);
    return job;
}

void opq_job_drop(const opq_host *host, opq_job *job)
{
    opq_plan_release(job->plan);
    each_payload(job->graph, host->release_payload, host->self);
    opq_graph_destroy(job->graph);
    free(job->why);
    free(job->folder);
    free(job);
}

static void drop_all(const opq_host *host, opq_job *list)
{
    for (opq_job *job = list, *next; job; job = next) {
        next = job->next;
        opq_job_drop(host, job);
    }
}

static void unlink_job(opq_job **list, const opq_job *job)
{
    while (*list != job)
        list = &(*list)->next;
    *list = job->next;
}

static void push(opq_job **list, opq_job *job)
{
    job->next = *list;
    *list = job;
}

/* With the lock held: the one that gains most. */
static opq_job *take_best(opq_background *b)
{
    opq_job *best = b->waiting;
    for (opq_job *job = b->waiting; job; job = job->next)
        if (job->gain > best->gain)
            best = job;
    unlink_job(&b->waiting, best);
    b->waiting_count--;
    return best;
}

/* ---- the threads */

static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void work_on(const opq_background *b, opq_job *job)
{
    double start = processor_time();
    opq_compile_limit(job->limited ? &job->left : NULL);
    if (job->folder)
        opq_repro_mark(job->folder, "compiling", true);
    job->status = opq_plan_compile(b->runtime, job->graph, OPQ_FUSED, &job->plan);
    if (job->folder)
        opq_repro_mark(job->folder, "compiling", false);
    if (job->status == OPQ_OK)
        job->plan->lines = job->lines;
    else
        snprintf(job->message, sizeof job->message, "%s", opq_error());
    opq_compile_limit(NULL);
    job->seconds = processor_time() - start;
}

static void *run(void *of)
{
    opq_background *b = of;
    opq_progress_stop_on(&b->stop);
    pthread_mutex_lock(&b->lock);
    for (;;) {
        while (b->waiting == NULL && !b->stop)
            pthread_cond_wait(&b->work, &b->lock);
        if (b->stop)
            break;
        opq_job *job = take_best(b);
        push(&b->working, job);
        pthread_mutex_unlock(&b->lock);
        work_on(b, job);
        pthread_mutex_lock(&b->lock);
        unlink_job(&b->working, job);
        push(b->stop && job->plan == NULL ? &b->waiting : &b->done, job); /* stopped is not failed */
        atomic_store(&b->any_done, true);
        pthread_cond_broadcast(&b->idle);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* With the lock held. The program's signals are the program's. */
static void start_threads(opq_background *b)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (b->thread_count < b->threads_wanted && pthread_create(&b->threads[b->thread_count], NULL, run, b) == 0)
        b->thread_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void opq_background_end(opq_background *b)
{
    pthread_mutex_lock(&b->lock);
    int count = b->thread_count;
    b->thread_count = b->threads_wanted = 0;
    atomic_store(&b->stop, true);
    pthread_cond_broadcast(&b->work);
    pthread_mutex_unlock(&b->lock);
    for (int i = 0; i < count; i++)
        pthread_join(b->threads[i], NULL);
}

void opq_background_drop(opq_background *b)
{
    if (b->runtime == NULL)
        return; /* the context could not be made */
    opq_background_end(b);
    drop_all(b->runtime->host, b->waiting);
    drop_all(b->runtime->host, b->done);
    b->waiting = b->done = NULL;
    pthread_cond_destroy(&b->work);
    pthread_cond_destroy(&b->idle);
    pthread_mutex_destroy(&b->lock);
}

/* ---- the interface */

static bool is_in(const opq_job *list, const void *key, size_t key_bytes)
{
    for (const opq_job *job = list; job; job = job->next)
        if (job->key_bytes == key_bytes && memcmp(job->key, key, key_bytes) == 0)
            return true;
    return false;
}

bool opq_background_has(opq_background *b, const void *key, size_t key_bytes)
{
    pthread_mutex_lock(&b->lock);
    bool found = is_in(b->waiting, key, key_bytes) || is_in(b->working, key, key_bytes) || is_in(b->done, key, key_bytes);
    pthread_mutex_unlock(&b->lock);
    return found;
}

bool opq_background_add(opq_background *b, opq_job *job)
{
    pthread_mutex_lock(&b->lock);
    if (b->thread_count < b->threads_wanted)
        start_threads(b);
    bool taken = b->thread_count > 0 && b->waiting_count < OPQ_BACKGROUND_WAITING_MAX;
    if (taken) {
        push(&b->waiting, job);
        b->waiting_count++;
        pthread_cond_signal(&b->work);
    }
    pthread_mutex_unlock(&b->lock);
    return taken;
}

opq_job *opq_background_done(opq_background *b)
{
    if (!atomic_load_explicit(&b->any_done, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&b->lock);
    opq_job *done = b->done;
    b->done = NULL;
    atomic_store(&b->any_done, false);
    pthread_mutex_unlock(&b->lock);
    return done;
}

void opq_background_wait(opq_background *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->thread_count > 0 && (b->waiting || b->working))
        pthread_cond_wait(&b->idle, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

void opq_background_lock(opq_background *b) { pthread_mutex_lock(&b->lock); }
void opq_background_unlock(opq_background *b) { pthread_mutex_unlock(&b->lock); }

void opq_background_in_child(opq_background *b)
{
    b->working = NULL;
    b->thread_count = 0;
    pthread_cond_init(&b->work, NULL);
    pthread_cond_init(&b->idle, NULL);
}
