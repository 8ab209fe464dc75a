/* One line after another, so that it can be read in a file as well. */
#include "graph/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static _Thread_local int64_t begun, next; /* nanoseconds; 0: nothing is being made */

static _Thread_local const atomic_bool *stop; /* NULL: somebody waits */

void opq_progress_stop_on(const atomic_bool *flag) { stop = flag; }

bool opq_progress_stopped(void) { return stop && atomic_load_explicit(stop, memory_order_relaxed); }

bool opq_progress_awaited(void) { return stop == NULL; }

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds between two lines. */
static int64_t interval(void)
{
    static atomic_llong known = -1;
    int64_t found = atomic_load_explicit(&known, memory_order_relaxed);
    if (found >= 0)
        return found;
    const char *text = getenv("OPAQUE_PROGRESS");
    double seconds = text && *text ? strtod(text, NULL) : 3.0;
    found = seconds > 0 && seconds < 1e9 ? (int64_t)(seconds * 1e9) : 0;
    atomic_store_explicit(&known, found, memory_order_relaxed);
    return found;
}

int64_t opq_progress_begin(void)
{
    int64_t before = begun;
    if (before == 0 && !stop && interval() > 0) {
        begun = now();
        next = begun + interval();
    }
    return before;
}

void opq_progress_end(int64_t before) { begun = before; }

void opq_progress(const char *what, int64_t done, int64_t total)
{
    int64_t time = begun ? now() : 0;
    if (begun == 0 || time < next)
        return;
    next = time + interval();
    fprintf(stderr, "[opaque] %s for %.3g s: %lld of %lld done (OPAQUE_PROGRESS=0 silences this)\n", what,
            (double)(time - begun) * 1e-9, (long long)done, (long long)total);
}
