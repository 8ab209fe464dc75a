/* A direction of a recurrent layer as one node: all steps of an LSTM or a GRU, or their gradients. Private to graph/. */
#ifndef OPAQUE_GRAPH_RECURRENT_H
#define OPAQUE_GRAPH_RECURRENT_H

#include "graph/infer.h"

bool opq_op_is_recurrent(int op);
/* Of which of its operands are the rows those of all steps, and of which those of one? */
void opq_recurrent_operands(int op, int *out_steps, int *out_step);
opq_status opq_infer_recurrent(const opq_inference *call, opq_type *out_type) OPQ_MUST_CHECK;
opq_status opq_expand_recurrent(opq_graph *graph, const opq_node *node, const opq_ref *operands,
                                opq_ref *out_ref) OPQ_MUST_CHECK;

#endif
