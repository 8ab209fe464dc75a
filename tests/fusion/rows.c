/* See rows.h. */
#include "rows.h"

#include "graph/eval.h"

#include <math.h>

enum { ROWS_ELEMENTS = 17 * 17 + 3 };

static void fill(const opq_type *type, int64_t every, bool zeros, void *data)
{
    static const double reals[17] = {0,    -0.0,  1,    -1,    0.5,  -1.5,     2.5,       3,  -7.25,
                                     1e10, 1e-40, 3e38, 32768, -129, INFINITY, -INFINITY, NAN};
    static const int64_t integers[17] = {0,   1,      -1,    2,     7,         -7,        100,       127,      -128,
                                         255, -32768, 32767, 65537, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX};
    for (int64_t i = 0; i < opq_type_count(type); i++) {
        int at = (int)(i / every % 17);
        opq_number x = {.i = integers[at]};
        if (opq_dtype_kind_of((opq_dtype)type->dtype) == OPQ_KIND_FLOAT)
            x.f = reals[at];
        opq_eval_store((opq_dtype)type->dtype, data, i, x);
        if (!zeros && opq_eval_load((opq_dtype)type->dtype, data, i).i == 0)
            opq_eval_store((opq_dtype)type->dtype, data, i, (opq_number){.i = 1});
    }
}

/* An op of inputs %0 and %1, of a condition %2 and them, or of %0 and a divisor %3; false: not for this dtype. */
static bool add_row(opq_graph *graph, opq_op op, opq_dtype dtype)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_lowering_kind kind = opq_op_lowering(op)->kind;
    bool has_function = kind == OPQ_LOWER_ARITH || kind == OPQ_LOWER_CMP || kind == OPQ_LOWER_CALL;
    bool real = opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT;
    bool computes = opq_op_computes(op, dtype);
    opq_ref operands[3] = {0, info->flags & OPQ_FLAG_CHECKED && !real ? 3 : 1, 0}, ref;
    if (info->class_ != OPQ_CLASS_EWISE || !has_function || !computes)
        return false;
    if (op == OPQ_OP_where)
        memcpy(operands, (opq_ref[]){2, 0, 1}, sizeof operands);
    if (opq_graph_op(graph, op, operands, info->arity, NULL, 0, &ref) != OPQ_OK)
        return false;
    expect_ok(opq_graph_output(graph, ref));
    return true;
}

static void add_casts(opq_graph *graph)
{
    for (int to = 0; to < OPQ_DTYPE_COUNT; to++) {
        opq_type type = opq_graph_type(graph, 0);
        opq_ref x = 0, ref;
        type.dtype = (uint8_t)to;
        if (opq_dtype_kind_of((opq_dtype)to) == OPQ_KIND_RAW)
            continue;
        expect_ok(opq_graph_op_typed(graph, OPQ_OP_cast, &type, &x, 1, NULL, 0, &ref));
        expect_ok(opq_graph_output(graph, ref));
    }
}

opq_graph *rows_graph(opq_dtype dtype, arrays *out_inputs)
{
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
        return NULL;
    opq_graph *graph = NULL;
    arrays in = arrays_make(4);
    int rows = 0;
    expect_ok(opq_graph_create("rows", &graph));
    for (int i = 0; i < in.count; i++) {
        opq_type type = opq_type_make(i == 2 ? OPQ_bool : dtype, 1, (int64_t[]){ROWS_ELEMENTS});
        opq_ref ref;
        expect_ok(opq_graph_input(graph, &type, &ref));
        in.data[i] = array_make(&type);
        fill(&type, i == 0 ? 1 : 17, i != 3, in.data[i]);
    }
    for (int op = 0; op < OPQ_OP_COUNT; op++)
        rows += add_row(graph, (opq_op)op, dtype);
    assert_true(rows >= 15);
    add_casts(graph);
    *out_inputs = in;
    return graph;
}
