/* Kernels and schedules as C: the loops of fusion/loop.h for people and for any C compiler. What the C includes is opaque/kernel.h. */
#ifndef OPAQUE_CODEGEN_C_H
#define OPAQUE_CODEGEN_C_H

#include "fusion/loop.h"

/* What stands before the kernels of a file. */
void opq_c_begin(opq_text *out_text);
/* One function; `name` is brought to what C allows. OPQ_UNSUPPORTED where an op has no function for its dtype in opaque/scalar.h:
 * transcendental ones of f64 and powers of integers. */
opq_status opq_c_kernel(const opq_loops *loops, const char *name, opq_text *out_text) OPQ_MUST_CHECK;
/* The same of the schedule of a kernel (fusion/schedule.h): how it runs. */
opq_status opq_c_schedule(const opq_loops *loops, const char *name, opq_text *out_text) OPQ_MUST_CHECK;

#endif
