/* Views, update and concat: elements move, nothing is computed. All of it by bytes, so that every dtype works. */
#include "graph/eval.h"

#include <string.h>

void opq_eval_coords(const opq_type *type, int64_t index, int64_t *out_coords)
{
    for (int d = type->rank - 1; d >= 0; d--) {
        out_coords[d] = index % type->size[d];
        index /= type->size[d];
    }
}

int64_t opq_eval_index(const opq_type *type, const int64_t *coords)
{
    int64_t index = 0;
    for (int d = 0; d < type->rank; d++)
        index = index * type->size[d] + coords[d];
    return index;
}

int64_t opq_eval_broadcast(const opq_type *operand, const opq_type *result, int64_t index)
{
    if (operand->rank == 0)
        return 0;
    if (opq_shape_equal(operand, result))
        return index;
    int64_t at = 0, scale = 1;
    for (int d = 1; d <= operand->rank; d++) {
        int64_t extent = operand->size[operand->rank - d], size = result->size[result->rank - d];
        if (extent != 1)
            at += index % size * scale;
        scale *= extent;
        index /= size;
    }
    return at;
}

static void copy_element(const opq_type *type, void *to, int64_t to_index, const void *from, int64_t from_index)
{
    size_t bytes = (size_t)opq_dtype_bytes((opq_dtype)type->dtype);
    memcpy((char *)to + (size_t)to_index * bytes, (const char *)from + (size_t)from_index * bytes, bytes);
}

static const int64_t *ints(const opq_node *node, opq_attr_key key)
{
    const opq_attr *attr = opq_node_attr(node, key);
    return attr ? attr->ints : NULL;
}

/* Element of a dense buffer that a window's coordinates reach. */
static int64_t strided_index(const opq_node *node, int rank, const int64_t *coords)
{
    const int64_t *strides = ints(node, OPQ_ATTR_strides);
    int64_t at = opq_node_int(node, OPQ_ATTR_offset, 0);
    for (int d = 0; d < rank; d++)
        at += coords[d] * strides[d];
    return at;
}

/* -1: around the operand. */
static int64_t padded_index(const opq_node *node, const opq_type *operand, int64_t index)
{
    int64_t coords[OPQ_RANK_MAX];
    opq_eval_coords(&node->type, index, coords);
    for (int d = 0; d < node->type.rank; d++) {
        coords[d] -= ints(node, OPQ_ATTR_start)[d];
        if (coords[d] < 0 || coords[d] >= operand->size[d])
            return -1;
    }
    return opq_eval_index(operand, coords);
}

static int64_t view_source(const opq_node *node, const opq_type *operand, int64_t index)
{
    int64_t coords[OPQ_RANK_MAX], from[OPQ_RANK_MAX];
    opq_eval_coords(&node->type, index, coords);
    if (node->op == OPQ_OP_strided)
        return strided_index(node, node->type.rank, coords);

    const int64_t *dims = ints(node, OPQ_ATTR_dims), *start = ints(node, OPQ_ATTR_start),
                  *step = ints(node, OPQ_ATTR_step);
    for (int d = 0; d < node->type.rank; d++)
        if (node->op == OPQ_OP_permute)
            from[dims[d]] = coords[d];
        else
            from[d] = (start ? start[d] : 0) + coords[d] * (step ? step[d] : 1);
    return opq_eval_index(operand, from);
}

opq_status opq_eval_view(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = i;
        if (node->op == OPQ_OP_expand)
            from = opq_eval_broadcast(x->type, &node->type, i);
        else if (node->op == OPQ_OP_pad)
            from = padded_index(node, x->type, i);
        else if (node->op != OPQ_OP_reshape)
            from = view_source(node, x->type, i);
        if (from < 0)
            opq_eval_store((opq_dtype)node->type.dtype, out, i, opq_node_attr(node, OPQ_ATTR_value)->number);
        else
            copy_element(&node->type, out, i, x->data, from);
    }
    return OPQ_OK;
}

/* Where windows overlap themselves the last element in row-major order stays. */
opq_status opq_eval_update(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t bytes = opq_type_bytes(&node->type), count = opq_type_count(x[1].type);
    const opq_attr *sizes = opq_node_attr(node, OPQ_ATTR_sizes);
    opq_type window = opq_type_make((opq_dtype)node->type.dtype, sizes ? sizes->count : 0, sizes ? sizes->ints : NULL);
    if (bytes > 0)
        memcpy(out, x[0].data, (size_t)bytes);
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX];
        opq_eval_coords(&window, i, coords);
        copy_element(&node->type, out, strided_index(node, window.rank, coords), x[1].data, i);
    }
    return OPQ_OK;
}

opq_status opq_eval_concat(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t axis = opq_node_int(node, OPQ_ATTR_axis, 0), start = 0;
    for (int k = 0; k < node->arity; k++) {
        int64_t count = opq_type_count(x[k].type);
        for (int64_t i = 0; i < count; i++) {
            int64_t coords[OPQ_RANK_MAX];
            opq_eval_coords(x[k].type, i, coords);
            coords[axis] += start;
            copy_element(&node->type, out, opq_eval_index(&node->type, coords), x[k].data, i);
        }
        start += x[k].type->size[axis];
    }
    return OPQ_OK;
}
