/* The peaks of this machine, for shares of the roofline. */
#ifndef OPAQUE_RUNTIME_ROOFLINE_H
#define OPAQUE_RUNTIME_ROOFLINE_H

#include "runtime/plan.h"

/* Measures for some tens of milliseconds on the threads that kernels run on. */
opq_status opq_roofline_measure(const opq_runtime *runtime, opq_roofline *out_roofline) OPQ_MUST_CHECK;

#endif
