/* The clock by which everything is timed. */
#ifndef OPAQUE_GRAPH_CLOCK_H
#define OPAQUE_GRAPH_CLOCK_H

#include <time.h>

/* Seconds, of no particular beginning; they never go back. */
static inline double opq_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
