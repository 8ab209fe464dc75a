/* What the runtime takes from parts of the library that an exported model has not: it compiles nothing, is not profiled, and has no graph. */
#include "exported/exported.h"
#include "runtime/activity.h"
#include "runtime/run.h"

void *opq_activity_launch(const opq_host *host, const opq_plan *plan, const opq_step *rows, int32_t count)
{
    (void)host, (void)plan, (void)rows, (void)count;
    return NULL;
}

/* An error then tells the value that the kernel met first. */
bool opq_fault_find(const opq_run_state *run, const opq_step *step, int *out_check, int64_t *out_index)
{
    (void)run, (void)step, (void)out_check, (void)out_index;
    return false;
}
