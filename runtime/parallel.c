/* The host's parallel loop under the floating-point control of the thread that asks for it. */
#include "runtime/parallel.h"
#include "graph/fp_control.h"

typedef struct loop {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    unsigned control;
} loop;

/* The thread is lent: what it had is put back. */
static void run_piece(void *data, int64_t begin, int64_t end)
{
    const loop *l = data;
    unsigned before = opq_fp_control_set(l->control);
    l->body(l->data, begin, end);
    opq_fp_control_set(before);
}

void opq_parallel_for(const opq_host *host, int64_t count, int64_t grain,
                      void (*body)(void *data, int64_t begin, int64_t end), void *data)
{
    if (count <= grain || host == NULL || host->parallel_for == NULL) {
        body(data, 0, count);
        return;
    }
    loop l = {body, data, opq_fp_control()};
    host->parallel_for(host->self, count, grain, run_piece, &l);
}
