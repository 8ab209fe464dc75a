/* Rows of the op table that were made at run time. Private to graph/. */
#ifndef OPAQUE_GRAPH_DEFINE_H
#define OPAQUE_GRAPH_DEFINE_H

#include "graph/graph.h"

typedef struct opq_defined_row {
    opq_op_info info;
    opq_lowering lowering;
} opq_defined_row;

/* Of a number from OPQ_OP_DEFINED on; NULL: none yet. */
const opq_defined_row *opq_defined_row_of(opq_op op);
bool opq_defined_find(const char *name, size_t length, opq_op *out_op);

#endif
