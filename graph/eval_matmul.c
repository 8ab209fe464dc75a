/* Matrix products: every result element is one chain of fused multiply-adds over ascending k, from +0 on.
 *
 * f16 and bf16 are widened, run as an f32 chain and are rounded once, unless the result is f32; or, of bf16 and f32, go by pairs (opq_pairs_steps).
 * i8 is widened: to the other operand's dtype, or of two to i32. Integers multiply and add in their width; of bool the
 * product is and, the sum or.
 */
#include "graph/eval.h"

#include <math.h>

/* One operand, read as a stack of matrices. */
typedef struct matrix {
    const opq_eval_value *value;
    opq_type batch;      /* its leading dims */
    int64_t row, column; /* strides of the logical matrix, transposed or not */
    int64_t size;
} matrix;

static opq_type leading_dims(const opq_type *type)
{
    return opq_type_make((opq_dtype)type->dtype, type->rank - 2, type->size);
}

static matrix matrix_of(const opq_eval_value *value, bool transposed)
{
    const int64_t *size = value->type->size + value->type->rank - 2;
    return (matrix){.value = value,
                    .batch = leading_dims(value->type),
                    .row = transposed ? 1 : size[1],
                    .column = transposed ? size[1] : 1,
                    .size = size[0] * size[1]};
}

/* i8 and halves are widened. */
static opq_number element(opq_dtype dtype, const matrix *x, int64_t at)
{
    opq_dtype from = (opq_dtype)x->value->type->dtype;
    opq_number value = opq_eval_load(from, x->value->data, at);
    return from == dtype ? value : opq_eval_cast(from, dtype, value);
}

static opq_number dot(opq_dtype dtype, const matrix *a, int64_t at_a, const matrix *b, int64_t at_b, int64_t count)
{
    bool is_float = opq_eval_is_float(dtype);
    opq_number sum = is_float ? (opq_number){.f = 0} : (opq_number){.i = 0};
    for (int64_t k = 0; k < count; k++) {
        opq_number x = element(dtype, a, at_a + k * a->column), y = element(dtype, b, at_b + k * b->row);
        if (!is_float)
            sum = opq_eval_add(dtype, sum, opq_eval_mul(dtype, x, y));
        else if (dtype == OPQ_f64)
            sum.f = fma(x.f, y.f, sum.f);
        else
            sum.f = (double)fmaf((float)x.f, (float)y.f, (float)sum.f);
    }
    return sum;
}

static opq_number dot_pairs(int pairs, const matrix *a, int64_t at_a, const matrix *b, int64_t at_b, int64_t count)
{
    float sum = 0, x[OPQ_PAIRS_MAX], y[OPQ_PAIRS_MAX];
    for (int64_t k = 0; k < count; k += 2 * pairs) {
        int terms = count - k < 2 * pairs ? (int)(count - k) : 2 * pairs;
        for (int i = 0; i < terms; i++) {
            x[i] = (float)element(OPQ_f32, a, at_a + (k + i) * a->column).f;
            y[i] = (float)element(OPQ_f32, b, at_b + (k + i) * b->row).f;
        }
        sum = opq_pairs_steps(pairs, x, y, terms, sum);
    }
    return (opq_number){.f = (double)sum};
}

opq_status opq_eval_matmul(const opq_node *node, const opq_eval_value *x, void *out)
{
    const opq_type *type = &node->type;
    opq_dtype dtype = (opq_dtype)type->dtype;
    if (x[0].type->rank < 2 || x[1].type->rank < 2 || type->rank < 2 || opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
        return opq_fail(OPQ_INVALID, "matmul: needs matrices of numbers");

    bool transpose_a = opq_node_int(node, OPQ_ATTR_transpose_a, 0) != 0;
    bool transpose_b = opq_node_int(node, OPQ_ATTR_transpose_b, 0) != 0;
    int pairs = (int)opq_node_int(node, OPQ_ATTR_pairs, 0);
    matrix a = matrix_of(&x[0], transpose_a), b = matrix_of(&x[1], transpose_b);
    int64_t inner = x[0].type->size[x[0].type->rank - (transpose_a ? 2 : 1)];
    int64_t rows = type->size[type->rank - 2], columns = type->size[type->rank - 1];
    opq_type batch = leading_dims(type);
    int64_t matrices = opq_type_count(type) > 0 ? opq_type_count(&batch) : 0;

    for (int64_t m = 0; m < matrices; m++) {
        int64_t at_a = opq_eval_broadcast(&a.batch, &batch, m) * a.size;
        int64_t at_b = opq_eval_broadcast(&b.batch, &batch, m) * b.size;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++) {
                int64_t from_a = at_a + i * a.row, from_b = at_b + j * b.column;
                opq_eval_store(dtype, out, (m * rows + i) * columns + j,
                               pairs ? dot_pairs(pairs, &a, from_a, &b, from_b, inner)
                                     : dot(dtype, &a, from_a, &b, from_b, inner));
            }
    }
    return OPQ_OK;
}
