/* What a profiler is told: see opq_activity. */
#ifndef OPAQUE_RUNTIME_ACTIVITY_H
#define OPAQUE_RUNTIME_ACTIVITY_H

#include "runtime/plan.h"

/* Of a host that watches. NULL if nobody wants to know. */
static inline void *opq_activity_begin(const opq_host *host, opq_activity_kind kind, const char *name)
{
    opq_activity activity = {.kind = kind, .name = name};
    return host->activity_begin(host->self, &activity);
}

static inline void opq_activity_end(const opq_host *host, void *open)
{
    if (open)
        host->activity_end(host->self, open);
}

/* One launch of `count` steps from `rows` on; NULL as above. */
void *opq_activity_launch(const opq_host *host, const opq_plan *plan, const opq_step *rows, int32_t count);

/* To the log: what the plan is and why it was made ("plan"), and what became kernels and what did not ("fusion"). `why` may be NULL. */
void opq_plan_log(const opq_plan *plan, const char *why, double seconds);

#endif
