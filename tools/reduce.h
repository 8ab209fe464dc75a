/* Shrinks a graph that goes wrong to the fewest nodes that still do: see reduce.c. */
#ifndef OPAQUE_TOOLS_REDUCE_H
#define OPAQUE_TOOLS_REDUCE_H

#include "graph/graph.h"

/* `dir` has the graph's inputs. Writes dir/reduced/graph.ir and its inputs and prints the text to standard output, what is being tried to
 * standard error. An attempt that takes longer than `seconds` hangs. OPQ_INVALID: nothing goes wrong. */
opq_status reduce(const opq_graph *graph, opq_fusion fusion, const char *dir, int seconds) OPQ_MUST_CHECK;

#endif
