/* A line on stderr where planning and compiling take long: after OPAQUE_PROGRESS seconds (default 3; 0: never), and again after as many. */
#ifndef OPAQUE_GRAPH_PROGRESS_H
#define OPAQUE_GRAPH_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Of this thread: from now on is counted. Returns when it began before, for opq_progress_end. */
int64_t opq_progress_begin(void);
void opq_progress_end(int64_t before);
/* `done` of `total` such are done. Cheap enough to be called for each. */
void opq_progress(const char *what, int64_t done, int64_t total);
/* This thread makes plans that nobody waits for: it prints no lines, and may be asked to stop. */
void opq_progress_stop_on(const atomic_bool *stop);
bool opq_progress_stopped(void);
/* Does somebody wait for what this thread makes? */
bool opq_progress_awaited(void);

#endif
