/* The inputs of a folder: input0.npy, ... as torch_opaque.dump() writes them; where one is missing, random numbers that fit the
 * statistics of inputs.json, the same ones each time.
 */
#ifndef OPAQUE_TOOLS_INPUTS_H
#define OPAQUE_TOOLS_INPUTS_H

#include "opaque/opaque.h"

/* A malloc'd buffer for a value, aligned as the runtime wants it, all 0. */
opq_status array_make(const opq_type *type, void **out_data) OPQ_MUST_CHECK;
opq_status input_read(const char *dir, int index, const opq_type *type, void **out_data) OPQ_MUST_CHECK;
/* Where nothing is known of a value: small floats, zeros for the others, which are in range whatever they are an index of. */
opq_status input_invent(int seed, const opq_type *type, void **out_data) OPQ_MUST_CHECK;

#endif
