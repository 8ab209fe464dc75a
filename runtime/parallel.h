/* Loops on the host's threads. */
#ifndef OPAQUE_RUNTIME_PARALLEL_H
#define OPAQUE_RUNTIME_PARALLEL_H

#include "opaque/opaque.h"

/* body over [0, count) in pieces of at least `grain`, on the host's threads if it has a loop for them. Every piece rounds and flushes
 * denormals as the calling thread does, so that results do not depend on which thread computes them. */
void opq_parallel_for(const opq_host *host, int64_t count, int64_t grain,
                      void (*body)(void *data, int64_t begin, int64_t end), void *data);

/* While it watches, a thread's loops are timed piece by piece. */
void opq_parallel_watch(bool on);
/* Seconds of processor that the calling thread's work took: its own time, but of each loop that it watched the time of the longest piece.
 * What differs from the clock's was waiting, as for a processor that another program had. */
double opq_parallel_busy(void);

#endif
