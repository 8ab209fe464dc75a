/* Windows on dense values. A window that is a permute, an expand, a slice or a reshape is recorded as such, so that graphs read like
 * the program; what is none of these is `strided`. All of them are the same to the kernels.
 */
#include "opaque/context.h"

#include <string.h>

bool opq_geometry_contiguous(const opq_geometry *geometry)
{
    int64_t stride = 1;
    for (int d = geometry->rank - 1; d >= 0; d--) {
        if (geometry->size[d] != 1 && geometry->stride[d] != stride)
            return false;
        stride *= geometry->size[d];
    }
    return true;
}

/* Dims by descending stride; extents of 1 keep their place relative to the dim before them. */
static void sort_dims(const opq_geometry *geometry, int64_t *order)
{
    for (int d = 0; d < geometry->rank; d++)
        order[d] = d;
    for (int i = 1; i < geometry->rank; i++)
        for (int k = i; k > 0; k--) {
            int64_t a = order[k - 1], b = order[k];
            if (geometry->size[a] == 1 || geometry->size[b] == 1 || geometry->stride[a] >= geometry->stride[b])
                break;
            order[k - 1] = b;
            order[k] = a;
        }
}

/* As sort_dims, but sure: extents of 1 go last when they are in the way. */
static void sort_dims_strictly(const opq_geometry *geometry, int64_t *order)
{
    int count = 0;
    for (int d = 0; d < geometry->rank; d++)
        if (geometry->size[d] != 1)
            order[count++] = d;
    for (int i = 1; i < count; i++)
        for (int k = i; k > 0 && geometry->stride[order[k - 1]] < geometry->stride[order[k]]; k--) {
            int64_t swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    for (int d = 0; d < geometry->rank; d++)
        if (geometry->size[d] == 1)
            order[count++] = d;
}

static bool dense_in_order(const opq_geometry *geometry, const int64_t *order, int64_t count)
{
    int64_t stride = 1;
    for (int i = geometry->rank - 1; i >= 0; i--) {
        int64_t size = geometry->size[order[i]];
        if (size != 1 && geometry->stride[order[i]] != stride)
            return false;
        stride *= size;
    }
    return stride == count;
}

bool opq_geometry_covers(const opq_geometry *geometry, int64_t count, int64_t *out_order)
{
    if (geometry->offset != 0)
        return false;
    sort_dims(geometry, out_order);
    if (dense_in_order(geometry, out_order, count))
        return true;
    sort_dims_strictly(geometry, out_order);
    return dense_in_order(geometry, out_order, count);
}

bool opq_geometry_overlaps(const opq_geometry *geometry)
{
    int64_t order[OPQ_RANK_MAX], reach = 0;
    sort_dims_strictly(geometry, order);
    for (int i = geometry->rank - 1; i >= 0; i--) {
        int64_t size = geometry->size[order[i]], stride = geometry->stride[order[i]];
        if (size <= 1)
            continue;
        if (stride <= reach)
            return true;
        reach += (size - 1) * stride;
    }
    return false;
}

/* ---- views by name */

static opq_status record_view(opq_ctx *ctx, opq_op op, opq_value *value, const opq_type *type, const opq_attr *attrs,
                              int count, opq_value **out)
{
    return opq_record_typed(ctx, op, type, &value, 1, attrs, count, out);
}

static opq_status strided(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry, opq_value **out_value)
{
    opq_type type = opq_type_make(geometry->dtype, geometry->rank, geometry->size);
    opq_attr attrs[] = {
        {.key = OPQ_ATTR_offset, .i = geometry->offset},
        {.key = OPQ_ATTR_strides, .count = geometry->rank, .ints = geometry->stride},
    };
    return record_view(ctx, OPQ_OP_strided, value, &type, attrs, 2, out_value);
}

/* Dense but for order: the value in memory order, then permuted. */
static opq_status permuted(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry, const int64_t *order,
                           opq_value **out_value)
{
    int64_t size[OPQ_RANK_MAX], dims[OPQ_RANK_MAX];
    for (int i = 0; i < geometry->rank; i++) {
        size[i] = geometry->size[order[i]];
        dims[order[i]] = i;
    }
    opq_value *ordered;
    OPQ_TRY(opq_record_reshape(ctx, value, geometry->rank, size, &ordered));
    opq_attr attr = {.key = OPQ_ATTR_dims, .count = geometry->rank, .ints = dims};
    opq_status status = opq_record(ctx, OPQ_OP_permute, &ordered, 1, &attr, 1, out_value);
    opq_value_release(ordered);
    return status;
}

/* Each window dim walks one dim of the value, in order; the others stand still. False: it is not like that. */
static bool slice_of(const opq_type *type, const opq_geometry *geometry, int64_t *start, int64_t *step, int64_t *size)
{
    int64_t stride[OPQ_RANK_MAX], rest = geometry->offset, dense = 1;
    int next = 0;
    for (int d = type->rank - 1; d >= 0; d--) {
        stride[d] = dense;
        dense *= type->size[d];
    }
    for (int d = 0; d < type->rank; d++) {
        start[d] = rest / stride[d];
        rest %= stride[d];
        step[d] = size[d] = 1;
        while (next < geometry->rank && geometry->size[next] == 1)
            next++;
        if (next < geometry->rank && geometry->stride[next] >= stride[d] && geometry->stride[next] % stride[d] == 0) {
            step[d] = geometry->stride[next] / stride[d];
            size[d] = geometry->size[next++];
        }
        if (start[d] + (size[d] - 1) * step[d] >= type->size[d])
            return false;
    }
    while (next < geometry->rank && geometry->size[next] == 1)
        next++;
    return next == geometry->rank;
}

static opq_status sliced(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry, const int64_t *start,
                         const int64_t *step, const int64_t *size, opq_value **out_value)
{
    int rank = value->type.rank;
    opq_type type = opq_type_make(geometry->dtype, rank, size);
    opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = rank, .ints = start},
                        {.key = OPQ_ATTR_step, .count = rank, .ints = step}};
    opq_value *slice;
    OPQ_TRY(record_view(ctx, OPQ_OP_slice, value, &type, attrs, 2, &slice));
    opq_status status = opq_record_reshape(ctx, slice, geometry->rank, geometry->size, out_value);
    opq_value_release(slice);
    return status;
}

/* Strides of 0 are an expand around the rest. */
static opq_status expanded(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry, opq_value **out_value)
{
    int64_t size[OPQ_RANK_MAX];
    for (int d = 0; d < geometry->rank; d++)
        size[d] = geometry->stride[d] == 0 ? 1 : geometry->size[d];
    opq_geometry inner = *geometry;
    opq_value *narrow;
    inner.size = size;
    OPQ_TRY(opq_geometry_view(ctx, value, &inner, &narrow));
    opq_status status = opq_record_expand(ctx, narrow, geometry->rank, geometry->size, out_value);
    opq_value_release(narrow);
    return status;
}

opq_status opq_geometry_view(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry, opq_value **out_value)
{
    int64_t count = opq_type_count(&value->type), order[OPQ_RANK_MAX], start[OPQ_RANK_MAX], step[OPQ_RANK_MAX],
            size[OPQ_RANK_MAX];
    opq_type type = opq_type_make(geometry->dtype, geometry->rank, geometry->size);
    if (opq_type_count(&type) == 0) {
        if (count == 0)
            return opq_record_reshape(ctx, value, geometry->rank, geometry->size, out_value);
        return opq_record_typed(ctx, OPQ_OP_undefined, &type, NULL, 0, NULL, 0, out_value);
    }
    if (geometry->offset == 0 && opq_type_count(&type) == count && opq_geometry_contiguous(geometry))
        return opq_record_reshape(ctx, value, geometry->rank, geometry->size, out_value);
    for (int d = 0; d < geometry->rank; d++)
        if (geometry->stride[d] == 0 && geometry->size[d] > 1)
            return expanded(ctx, value, geometry, out_value);
    if (opq_geometry_covers(geometry, count, order))
        return permuted(ctx, value, geometry, order, out_value);
    if (value->type.rank > 0 && slice_of(&value->type, geometry, start, step, size))
        return sliced(ctx, value, geometry, start, step, size, out_value);
    return strided(ctx, value, geometry, out_value);
}
