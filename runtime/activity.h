/* What a profiler is told of launches. */
#ifndef OPAQUE_RUNTIME_ACTIVITY_H
#define OPAQUE_RUNTIME_ACTIVITY_H

#include "runtime/plan.h"

/* One launch of `count` steps from `rows` on; NULL, if nobody wants to know. To be ended by the host's activity_end. */
void *opq_activity_launch(const opq_host *host, const opq_plan *plan, const opq_step *rows, int32_t count);

/* To the log: what the plan is and why it was made ("plan"), and what became kernels and what did not ("fusion"). `why` may be NULL. */
void opq_plan_log(const opq_plan *plan, const char *why, double seconds);

#endif
