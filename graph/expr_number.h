/* Numbers of expressions. Private to graph/. */
#ifndef OPAQUE_GRAPH_EXPR_NUMBER_H
#define OPAQUE_GRAPH_EXPR_NUMBER_H

/* Reads 2, 0.5, .5, 1e-6 at a digit or point, and gives where it ends. */
const char *opq_expression_number(const char *at, double *out_number);

#endif
