/* A graph of a dtype with every row that has a function and every cast, on special values. */
#ifndef OPAQUE_TESTS_FUSION_ROWS_H
#define OPAQUE_TESTS_FUSION_ROWS_H

#include "tests/fusion/arrays.h"

/* NULL: the dtype is raw. */
opq_graph *rows_graph(opq_dtype dtype, arrays *out_inputs);

#endif
