/* Plans of ops for sizes that did not come before: see sizes.c. Internal to opaque/; with run_lock held. */
#ifndef OPAQUE_OPAQUE_SIZES_H
#define OPAQUE_OPAQUE_SIZES_H

#include "opaque/opaque.h"

#include <stdint.h>

struct opq_execution;

enum { OPQ_SIZES_BUCKETS = 512 };
typedef struct opq_sizes {
    struct opq_shape *shapes[OPQ_SIZES_BUCKETS];
    int count;
    int64_t families, written, compared; /* made; plans by them; of these, built as well and compared */
} opq_sizes;

/* Makes the plan that opq_execution_find() did not find: by a family of plans for other sizes, or builds it. */
opq_status opq_sizes_build(opq_sizes *sizes, struct opq_execution *execution) OPQ_MUST_CHECK;
void opq_sizes_forget(opq_sizes *sizes);

#endif
