/* Routines by their plainest loops. */
#include "graph/eval.h"

#include <math.h>
#include <string.h>

/* ---- products by groups */

typedef struct matrix {
    const char *data;
    int64_t row, column; /* strides */
} matrix;

static matrix matrix_of(const opq_eval_value *value, bool transposed)
{
    int64_t width = value->type->size[value->type->rank - 1];
    return (matrix){value->data, transposed ? 1 : width, transposed ? width : 1};
}

static opq_number dot(opq_dtype dtype, const matrix *a, int64_t at_a, const matrix *b, int64_t at_b, int64_t count)
{
    opq_number sum = {.f = 0};
    for (int64_t k = 0; k < count; k++) {
        double x = opq_eval_load(dtype, a->data, at_a + k * a->column).f;
        double y = opq_eval_load(dtype, b->data, at_b + k * b->row).f;
        sum.f = dtype == OPQ_f64 ? fma(x, y, sum.f) : (double)fmaf((float)x, (float)y, (float)sum.f);
    }
    return sum;
}

/* With a batch of right operands group g has its rows of the result, else its part of what is summed over. */
static opq_status grouped_matmul(const opq_node *node, const opq_eval_value *x, void *out)
{
    opq_dtype dtype = (opq_dtype)node->type.dtype;
    bool turn_a = opq_node_int(node, OPQ_ATTR_transpose_a, 0), turn_b = opq_node_int(node, OPQ_ATTR_transpose_b, 0);
    matrix a = matrix_of(&x[0], turn_a), b = matrix_of(&x[1], turn_b);
    bool rows = x[1].type->rank == 3;
    int64_t m = x[0].type->size[turn_a], k = x[0].type->size[!turn_a], n = node->type.size[node->type.rank - 1];
    const int64_t *ends = x[2].data;
    OPQ_TRY(opq_eval_groups(opq_node_info(node)->name, ends, x[2].type->size[0], rows ? m : k));
    memset(out, 0, (size_t)opq_type_bytes(&node->type));
    for (int64_t g = 0, begin = 0; g < x[2].type->size[0]; begin = ends[g++])
        for (int64_t i = rows ? begin : 0; i < (rows ? ends[g] : m); i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t at_a = i * a.row + (rows ? 0 : begin * a.column);
                int64_t at_b = j * b.column + (rows ? g * k * n : begin * b.row);
                opq_eval_store(dtype, out, (rows ? i : g * m + i) * n + j,
                               dot(dtype, &a, at_a, &b, at_b, rows ? k : ends[g] - begin));
            }
    return OPQ_OK;
}

opq_status opq_eval_groups(const char *name, const int64_t *ends, int64_t count, int64_t extent)
{
    for (int64_t g = 0; g < count; g++)
        if (ends[g] < (g > 0 ? ends[g - 1] : 0) || ends[g] > extent)
            return opq_fail(OPQ_INVALID, "%s: offsets must ascend and be from 0 to %lld, got %lld at %lld", name,
                            (long long)extent, (long long)ends[g], (long long)g);
    return OPQ_OK;
}

/* ---- sorting */

/* Is y to stand before x? */
static bool goes_first(opq_dtype dtype, bool down, opq_number x, opq_number y)
{
    if (!opq_eval_is_float(dtype))
        return down ? y.i > x.i : y.i < x.i;
    bool nan_x = x.f != x.f, nan_y = y.f != y.f;
    if (nan_x || nan_y)
        return down ? nan_y && !nan_x : nan_x && !nan_y;
    return down ? y.f > x.f : y.f < x.f;
}

static opq_status argsort(const opq_node *node, const opq_eval_value *x, int64_t *out)
{
    opq_dtype dtype = (opq_dtype)x[0].type->dtype;
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    int64_t along = x[0].type->size[axis], inner = 1, count = opq_type_count(x[0].type);
    for (int d = axis + 1; d < x[0].type->rank; d++)
        inner *= x[0].type->size[d];
    for (int64_t row = 0; along > 0 && row < count / along; row++) {
        int64_t base = row / inner * along * inner + row % inner;
        for (int64_t i = 0; i < along; i++) {
            int64_t at = i;
            for (; at > 0; at--) {
                int64_t before = out[base + (at - 1) * inner];
                if (!goes_first(dtype, node->op == OPQ_OP_argsort_down,
                                opq_eval_load(dtype, x[0].data, base + before * inner),
                                opq_eval_load(dtype, x[0].data, base + i * inner)))
                    break;
                out[base + at * inner] = before;
            }
            out[base + at * inner] = i;
        }
    }
    return OPQ_OK;
}

opq_status opq_eval_routine(const opq_node *node, const opq_eval_value *x, void *out)
{
    if (node->op == OPQ_OP_grouped_matmul)
        return grouped_matmul(node, x, out);
    if (node->op == OPQ_OP_argsort || node->op == OPQ_OP_argsort_down)
        return argsort(node, x, out);
    return opq_eval_scatter(node, x, out);
}
