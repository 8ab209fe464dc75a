/* A graph with its inputs, evaluated in one line: for the tests of the reference evaluator. */
#ifndef OPAQUE_TESTS_EVALUATION_H
#define OPAQUE_TESTS_EVALUATION_H

#include "tests/support.h"

#include "graph/eval.h"

#include <math.h>

#define INTS(...) ((const int64_t[]){__VA_ARGS__})
#define LENGTH(...) ((int)(sizeof(INTS(__VA_ARGS__)) / sizeof(int64_t)))
/* TYPE(f32, 2, 3) is f32[2,3]; SCALAR(f32) is f32[] */
#define TYPE(dtype, ...) opq_type_make(OPQ_##dtype, LENGTH(__VA_ARGS__), INTS(__VA_ARGS__))
#define SCALAR(dtype) opq_type_make(OPQ_##dtype, 0, NULL)
/* Attributes as compound literals. */
#define INT_ATTR(name, value) {.key = OPQ_ATTR_##name, .i = (value)}
#define INTS_ATTR(name, ...) {.key = OPQ_ATTR_##name, .count = LENGTH(__VA_ARGS__), .ints = INTS(__VA_ARGS__)}
#define ATTRS(...) ((const opq_attr[]){__VA_ARGS__}), (int)(sizeof((const opq_attr[]){__VA_ARGS__}) / sizeof(opq_attr))
#define NO_ATTRS NULL, 0

typedef struct evaluation {
    opq_graph *graph;
    const void *inputs[8];
    int input_count;
} evaluation;

static inline evaluation evaluation_begin(void)
{
    evaluation e = {0};
    expect_ok(opq_graph_create("test", &e.graph));
    return e;
}

static inline opq_ref input(evaluation *e, opq_type type, const void *data)
{
    opq_ref ref;
    expect_ok(opq_graph_input(e->graph, &type, &ref));
    e->inputs[e->input_count++] = data;
    return ref;
}

static inline opq_ref op(evaluation *e, opq_op which, const opq_ref *operands, int arity, const opq_attr *attrs, int count)
{
    opq_ref ref;
    expect_ok(opq_graph_op(e->graph, which, operands, arity, attrs, count, &ref));
    return ref;
}

static inline opq_ref op_typed(evaluation *e, opq_op which, opq_type type, const opq_ref *operands, int arity,
                               const opq_attr *attrs, int count)
{
    opq_ref ref;
    expect_ok(opq_graph_op_typed(e->graph, which, &type, operands, arity, attrs, count, &ref));
    return ref;
}

static inline opq_status try_evaluate(evaluation *e, opq_ref result, void *out)
{
    expect_ok(opq_graph_output(e->graph, result));
    opq_status status = opq_graph_eval(e->graph, e->inputs, (void *const[]){out});
    opq_graph_destroy(e->graph);
    return status;
}

/* Evaluates into `out` and drops the graph. */
static inline void evaluate(evaluation *e, opq_ref result, void *out) { expect_ok(try_evaluate(e, result, out)); }

/* Equal bit for bit, but that one NaN is as good as another. */
static inline bool same_float(double a, double b) { return a != a ? b != b : a == b && signbit(a) == signbit(b); }

#endif
