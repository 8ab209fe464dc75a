/* What the runtime takes from parts of the library that an exported model has not: it compiles nothing, is not profiled, and has no graph. */
#include "exported/exported.h"
#include "runtime/activity.h"
#include "runtime/run.h"

opq_status gemm_kernel_make(opq_gemm *gemm, opq_gemm_element element, opq_gemm_left left, int rows, int vectors,
                            void **out_address)
{
    (void)gemm, (void)left, (void)out_address;
    return opq_fail(OPQ_INTERNAL, "there is no kernel for tiles of %d rows and %d vectors of element %d", rows, vectors,
                    (int)element);
}

void gemm_kernel_make_ahead(opq_gemm *gemm, opq_gemm_element element, opq_gemm_left left, int rows, int vectors)
{
    (void)gemm, (void)element, (void)left, (void)rows, (void)vectors;
}

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
