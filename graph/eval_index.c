/* Indexed reads and additions. An index is checked where it is used; a negative one is out of range, too. */
#include "graph/eval.h"
#include "graph/index_error.h"

#include <string.h>

static opq_status out_of_bounds(const opq_node *node, const opq_type *indexed, int64_t index, int64_t size)
{
    opq_index_words words = opq_index_words_of(node, indexed);
    opq_text subject = {0};
    opq_index_subject(&subject, node);
    opq_status status = opq_index_fail(&words, subject.failed ? opq_node_info(node)->name : subject.data, index, size);
    opq_text_drop(&subject);
    return status;
}

/* Index number i of operand 1, checked against the extent of operand 0 along the node's axis. */
static opq_status checked_index(const opq_node *node, const opq_eval_value *x, int64_t i, int64_t *out_index)
{
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    int64_t size = axis < x[0].type->rank ? x[0].type->size[axis] : 1;
    *out_index = opq_eval_load((opq_dtype)x[1].type->dtype, x[1].data, i).i;
    return *out_index >= 0 && *out_index < size ? OPQ_OK : out_of_bounds(node, x[0].type, *out_index, size);
}

static int64_t extent(const opq_type *type, int begin, int end)
{
    int64_t product = 1;
    for (int d = begin; d < end && d < type->rank; d++)
        product *= type->size[d];
    return product;
}

static opq_status index_select(const opq_node *node, const opq_eval_value *x, void *out)
{
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    int64_t outer = extent(x[0].type, 0, axis), along = extent(x[0].type, axis, axis + 1);
    int64_t inner = extent(x[0].type, axis + 1, OPQ_RANK_MAX), picked = opq_type_count(x[1].type);
    size_t bytes = (size_t)inner * (size_t)opq_dtype_bytes((opq_dtype)node->type.dtype);
    for (int64_t i = 0; i < picked; i++) {
        int64_t at;
        OPQ_TRY(checked_index(node, x, i, &at));
        for (int64_t o = 0; o < outer && bytes > 0; o++)
            memcpy((char *)out + (size_t)(o * picked + i) * bytes,
                   (const char *)x[0].data + (size_t)(o * along + at) * bytes, bytes);
    }
    return OPQ_OK;
}

static opq_status gather(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t axis = opq_node_int(node, OPQ_ATTR_axis, 0), count = opq_type_count(&node->type);
    size_t bytes = (size_t)opq_dtype_bytes((opq_dtype)node->type.dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX + 1];
        opq_eval_coords(x[1].type, i, coords);
        OPQ_TRY(checked_index(node, x, i, &coords[axis]));
        int64_t from = opq_eval_index(x[0].type, coords);
        memcpy((char *)out + (size_t)i * bytes, (const char *)x[0].data + (size_t)from * bytes, bytes);
    }
    return OPQ_OK;
}

opq_status opq_eval_select(const opq_node *node, const opq_eval_value *x, void *out)
{
    return node->op == OPQ_OP_gather ? gather(node, x, out) : index_select(node, x, out);
}

static opq_number combined(const opq_node *node, opq_dtype dtype, opq_number a, opq_number b)
{
    switch (node->op) {
    case OPQ_OP_scatter_prod: return opq_eval_mul(dtype, a, b);
    case OPQ_OP_scatter_amax: return opq_eval_max(dtype, a, b);
    case OPQ_OP_scatter_amin: return opq_eval_min(dtype, a, b);
    default: return opq_eval_add(dtype, a, b);
    }
}

/* Sets, or combines in the dtype of the result, rounding at every step, in row-major order of what is added. */
static void add_at(const opq_node *node, void *out, int64_t to, const opq_eval_value *addend, int64_t from)
{
    opq_dtype dtype = (opq_dtype)node->type.dtype;
    if (node->op == OPQ_OP_index_set || node->op == OPQ_OP_scatter_set) {
        size_t bytes = (size_t)opq_dtype_bytes(dtype);
        memcpy((char *)out + (size_t)to * bytes, (const char *)addend->data + (size_t)from * bytes, bytes);
        return;
    }
    opq_number sum = combined(node, dtype, opq_eval_load(dtype, out, to), opq_eval_load(dtype, addend->data, from));
    opq_eval_store(dtype, out, to, sum);
}

static opq_status index_add(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t axis = opq_node_int(node, OPQ_ATTR_axis, 0), count = opq_type_count(x[2].type);
    for (int64_t i = 0; i < opq_type_count(x[1].type); i++) {
        int64_t unused;
        OPQ_TRY(checked_index(node, x, i, &unused));
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX + 1] = {0};
        opq_eval_coords(x[2].type, i, coords);
        OPQ_TRY(checked_index(node, x, coords[axis], &coords[axis]));
        add_at(node, out, opq_eval_index(&node->type, coords), &x[2], i);
    }
    return OPQ_OK;
}

static opq_status scatter_add(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t axis = opq_node_int(node, OPQ_ATTR_axis, 0), count = opq_type_count(x[1].type);
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX + 1] = {0};
        opq_eval_coords(x[1].type, i, coords);
        int64_t from = opq_eval_index(x[2].type, coords);
        OPQ_TRY(checked_index(node, x, i, &coords[axis]));
        add_at(node, out, opq_eval_index(&node->type, coords), &x[2], from);
    }
    return OPQ_OK;
}

opq_status opq_eval_scatter(const opq_node *node, const opq_eval_value *x, void *out)
{
    int64_t bytes = opq_type_bytes(&node->type);
    if (opq_dtype_kind_of((opq_dtype)node->type.dtype) == OPQ_KIND_RAW)
        return opq_fail(OPQ_INVALID, "%s: not defined for %s", opq_node_info(node)->name,
                        opq_dtype_name((opq_dtype)node->type.dtype));
    if (bytes > 0)
        memcpy(out, x[0].data, (size_t)bytes);
    return node->op == OPQ_OP_index_add || node->op == OPQ_OP_index_set ? index_add(node, x, out)
                                                                        : scatter_add(node, x, out);
}
