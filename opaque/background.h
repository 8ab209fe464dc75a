/* Threads that make plans while the program goes on without them. Internal to opaque/. Thread-safe but for what says otherwise.
 *
 * A job is a graph under its key, copied from the snapshot: it holds no values. The plan is kept by who collects it, between two runs, so that these threads
 * never call the host, whose locks the program may have. They block signals, a fork waits for the kernel that one of them compiles (what they were at
 * work on is lost to the child), and the end of the process waits for that, too.
 */
#ifndef OPAQUE_OPAQUE_BACKGROUND_H
#define OPAQUE_OPAQUE_BACKGROUND_H

#include "codegen_llvm/allowance.h"
#include "runtime/plan.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct opq_job {
    struct opq_job *next;
    opq_graph *graph; /* its payloads are retained */
    double gain;      /* who has most is made first */
    int ops;
    uint64_t lines;
    char *why, *folder; /* malloc'd, or NULL: the folder (repro.h) has a file `compiling` while this is being made */
    bool limited;
    opq_allowance given; /* if so */
    /* what came of it */
    opq_allowance left;
    opq_plan *plan; /* NULL: the status and the message have the reason, or the allowance */
    opq_status status;
    double seconds; /* of processor time */
    char message[256];
    size_t key_bytes;
    unsigned char key[];
} opq_job;

enum { OPQ_BACKGROUND_THREADS_MAX = 4, OPQ_BACKGROUND_WAITING_MAX = 64 };
typedef struct opq_background {
    opq_runtime *runtime;
    int threads_wanted;
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t work, idle;
    pthread_t threads[OPQ_BACKGROUND_THREADS_MAX];
    int thread_count, waiting_count;
    opq_job *waiting, *working, *done;
    atomic_bool stop, any_done;
} opq_background;

/* Reads OPAQUE_BACKGROUND: how many threads; by default one less than there are processors for this process, and four at most. */
opq_status opq_background_init(opq_background *background, opq_runtime *runtime) OPQ_MUST_CHECK;
void opq_background_end(opq_background *background); /* of the threads, which never come again */
/* What waits is dropped. */
void opq_background_drop(opq_background *background);
/* Is the plan of this key being made, or made and not yet collected? */
bool opq_background_has(opq_background *background, const void *key, size_t key_bytes);
/* Takes the job, but for when it is false: there is no thread, or too many jobs wait. */
bool opq_background_add(opq_background *background, opq_job *job);
/* The jobs that are done, linked, for the caller: NULL, and cheap, if there are none. */
opq_job *opq_background_done(opq_background *background);
/* Until no job waits or is worked on. */
void opq_background_wait(opq_background *background);
/* graph: its payloads are retained. NULL without memory; then the graph is dropped. */
opq_job *opq_job_new(const opq_host *host, opq_graph *graph, const void *key, size_t key_bytes);
void opq_job_drop(const opq_host *host, opq_job *job);

/* Around a fork. */
void opq_background_lock(opq_background *background);
void opq_background_unlock(opq_background *background);
void opq_background_in_child(opq_background *background); /* it is locked; nobody works here */

#endif
