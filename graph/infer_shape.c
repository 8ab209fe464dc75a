/* Shape rules of views, of writes through them, of concat and the index families, and of matmul.
 *
 * Extents come from users and from text: sums and products are checked, never assumed to fit.
 */
#include "graph/infer.h"

#include <inttypes.h>

static opq_status want_ints(const opq_inference *call, opq_attr_key key, int count, const int64_t **out_ints)
{
    const opq_attr *attr = opq_infer_attr(call, key);
    if (attr->count != count)
        return opq_fail(OPQ_INVALID, "%s: %s has %d values for %d dimensions", call->info->name, opq_attr_name(key),
                        attr->count, count);
    *out_ints = attr->ints;
    return OPQ_OK;
}

/* ---- views */

static opq_status infer_permute(const opq_inference *call, opq_type *out_type)
{
    const opq_type *in = &call->operands[0];
    const int64_t *dims = NULL;
    unsigned seen = 0;
    OPQ_TRY(want_ints(call, OPQ_ATTR_dims, in->rank, &dims));
    *out_type = *in;
    for (int d = 0; d < in->rank; d++) {
        if (dims[d] < 0 || dims[d] >= in->rank)
            return opq_fail(OPQ_INVALID, "%s: dim %" PRId64 " out of range for %d dimensions", call->info->name,
                            dims[d], in->rank);
        if (seen & 1u << dims[d])
            return opq_fail(OPQ_INVALID, "%s: dim %" PRId64 " appears twice", call->info->name, dims[d]);
        seen |= 1u << dims[d];
        out_type->size[d] = in->size[dims[d]];
    }
    return OPQ_OK;
}

static opq_status infer_reshape(const opq_inference *call)
{
    const opq_type *in = &call->operands[0], *out = call->given;
    if (opq_type_count(in) != opq_type_count(out))
        return opq_fail(OPQ_INVALID, "%s: shape %s does not become %s (%" PRId64 " and %" PRId64 " elements)",
                        call->info->name, opq_shape_name(in).text, opq_shape_name(out).text, opq_type_count(in),
                        opq_type_count(out));
    return OPQ_OK;
}

static opq_status infer_expand(const opq_inference *call)
{
    const opq_type *in = &call->operands[0], *out = call->given;
    int front = out->rank - in->rank;
    bool fits = front >= 0;
    for (int d = 0; fits && d < in->rank; d++)
        fits = in->size[d] == 1 || in->size[d] == out->size[front + d];
    if (!fits)
        return opq_fail(OPQ_INVALID, "%s: shape %s does not expand to %s", call->info->name, opq_shape_name(in).text,
                        opq_shape_name(out).text);
    return OPQ_OK;
}

static opq_status infer_slice(const opq_inference *call)
{
    const opq_type *in = &call->operands[0], *out = call->given;
    const int64_t *start = NULL, *step = NULL;
    if (in->rank != out->rank)
        return opq_fail(OPQ_INVALID, "%s: shape %s has no slice %s", call->info->name, opq_shape_name(in).text,
                        opq_shape_name(out).text);
    OPQ_TRY(want_ints(call, OPQ_ATTR_start, in->rank, &start));
    OPQ_TRY(want_ints(call, OPQ_ATTR_step, in->rank, &step));
    for (int d = 0; d < in->rank; d++) {
        int64_t last = 0;
        bool fits = start[d] >= 0 && start[d] <= in->size[d] && step[d] != 0;
        if (fits && out->size[d] > 0)
            fits = start[d] < in->size[d] && !__builtin_mul_overflow(out->size[d] - 1, step[d], &last) &&
                   last < in->size[d] - start[d] && last >= -start[d];
        if (!fits)
            return opq_fail(OPQ_INVALID,
                            "%s: %" PRId64 " elements from %" PRId64 " by %" PRId64 " do not fit axis %d of %s",
                            call->info->name, out->size[d], start[d], step[d], d, opq_shape_name(in).text);
    }
    return OPQ_OK;
}

static opq_status infer_pad(const opq_inference *call)
{
    const opq_type *in = &call->operands[0], *out = call->given;
    const int64_t *start = NULL;
    if (in->rank != out->rank)
        return opq_fail(OPQ_INVALID, "%s: shape %s is not %s with something around it", call->info->name,
                        opq_shape_name(out).text, opq_shape_name(in).text);
    OPQ_TRY(want_ints(call, OPQ_ATTR_start, in->rank, &start));
    for (int d = 0; d < in->rank; d++)
        if (start[d] < -in->size[d] || start[d] > out->size[d])
            return opq_fail(OPQ_INVALID, "%s: axis %d of %s has no place %" PRId64, call->info->name, d,
                            opq_shape_name(out).text, start[d]);
    return OPQ_OK;
}

/* The window offset + sum of index * stride lies in [0, count). An empty window needs no element. */
static opq_status check_window(const opq_inference *call, const opq_type *window)
{
    const opq_type *in = &call->operands[0];
    const int64_t *strides = NULL;
    OPQ_TRY(want_ints(call, OPQ_ATTR_strides, window->rank, &strides));
    int64_t last = opq_infer_attr(call, OPQ_ATTR_offset)->i, span;
    bool fits = last >= 0;
    for (int d = 0; d < window->rank && fits; d++)
        fits = strides[d] >= 0;
    if (fits && opq_type_count(window) == 0)
        return OPQ_OK;
    for (int d = 0; d < window->rank && fits; d++)
        fits = !__builtin_mul_overflow(window->size[d] - 1, strides[d], &span) &&
               !__builtin_add_overflow(last, span, &last);
    if (!fits || last >= opq_type_count(in)) {
        opq_type shown = opq_type_make(OPQ_i64, window->rank, strides);
        return opq_fail(OPQ_INVALID,
                        "%s: window %s with strides %s at %" PRId64 " does not fit the %" PRId64 " elements of %s",
                        call->info->name, opq_shape_name(window).text, opq_shape_name(&shown).text,
                        opq_infer_attr(call, OPQ_ATTR_offset)->i, opq_type_count(in), opq_shape_name(in).text);
    }
    return OPQ_OK;
}

opq_status opq_infer_view(const opq_inference *call, opq_type *out_type)
{
    if (call->given && call->given->dtype != call->operands[0].dtype)
        return opq_fail(OPQ_INVALID, "%s: keeps the dtype, got %s for %s", call->info->name,
                        opq_dtype_name((opq_dtype)call->given->dtype),
                        opq_dtype_name((opq_dtype)call->operands[0].dtype));
    switch ((int)call->op) {
    case OPQ_OP_permute: return infer_permute(call, out_type);
    case OPQ_OP_reshape: return infer_reshape(call);
    case OPQ_OP_expand: return infer_expand(call);
    case OPQ_OP_slice: return infer_slice(call);
    case OPQ_OP_strided: return check_window(call, call->given);
    case OPQ_OP_pad: return infer_pad(call);
    }
    return opq_fail(OPQ_INTERNAL, "%s: no shape rule", call->info->name);
}

opq_status opq_infer_update(const opq_inference *call, opq_type *out_type)
{
    const opq_type *in = &call->operands[0], *value = &call->operands[1];
    const int64_t *sizes = NULL;
    OPQ_TRY(want_ints(call, OPQ_ATTR_sizes, value->rank, &sizes));
    opq_type window = opq_type_make((opq_dtype)in->dtype, value->rank, sizes);
    if (!opq_shape_equal(&window, value))
        return opq_fail(OPQ_INVALID, "%s: window %s takes no value of shape %s", call->info->name,
                        opq_shape_name(&window).text, opq_shape_name(value).text);
    if (in->dtype != value->dtype)
        return opq_fail(OPQ_INVALID, "%s: the value must be %s, got %s", call->info->name,
                        opq_dtype_name((opq_dtype)in->dtype), opq_dtype_name((opq_dtype)value->dtype));
    OPQ_TRY(check_window(call, &window));
    const int64_t *strides = opq_infer_attr(call, OPQ_ATTR_strides)->ints;
    for (int d = 0; d < window.rank; d++)
        if (strides[d] == 0 && window.size[d] > 1)
            return opq_fail(OPQ_INVALID, "%s: more than one element of window %s is at the same place (axis %d)",
                            call->info->name, opq_shape_name(&window).text, d);
    *out_type = *in;
    return OPQ_OK;
}

/* ---- concat and the index families */

/* Equal ranks, and extents equal but on `axis`. */
static opq_status want_alike(const opq_inference *call, const opq_type *a, const opq_type *b, int axis)
{
    bool alike = a->rank == b->rank;
    for (int d = 0; d < a->rank && alike; d++)
        alike = d == axis || a->size[d] == b->size[d];
    if (!alike)
        return opq_fail(OPQ_INVALID, "%s: shapes %s and %s differ outside axis %d", call->info->name,
                        opq_shape_name(a).text, opq_shape_name(b).text, axis);
    return OPQ_OK;
}

opq_status opq_infer_concat(const opq_inference *call, opq_type *out_type)
{
    const opq_type *operands = call->operands;
    int axis;
    OPQ_TRY(opq_infer_axis(call, operands[0].rank, &axis));
    *out_type = operands[0];
    for (int i = 1; i < call->arity; i++) {
        OPQ_TRY(want_alike(call, &operands[0], &operands[i], axis));
        if (__builtin_add_overflow(out_type->size[axis], operands[i].size[axis], &out_type->size[axis]))
            return opq_fail(OPQ_INVALID, "%s: axis %d is too large", call->info->name, axis);
    }
    return OPQ_OK;
}

/* `small` has the rank of `large` and no extent beyond it but on `axis` (-1: none excepted). */
static opq_status want_within(const opq_inference *call, const opq_type *small, const opq_type *large, int axis)
{
    bool within = small->rank == large->rank;
    for (int d = 0; d < small->rank && within; d++)
        within = d == axis || small->size[d] <= large->size[d];
    if (within)
        return OPQ_OK;
    if (axis < 0)
        return opq_fail(OPQ_INVALID, "%s: index %s does not lie within %s", call->info->name,
                        opq_shape_name(small).text, opq_shape_name(large).text);
    return opq_fail(OPQ_INVALID, "%s: index %s does not lie within %s apart from axis %d", call->info->name,
                    opq_shape_name(small).text, opq_shape_name(large).text, axis);
}

static opq_status infer_index_select(const opq_inference *call, int axis, opq_type *out_type)
{
    const opq_type *a = &call->operands[0], *index = &call->operands[1];
    int rank = a->rank - 1 + index->rank;
    if (rank > OPQ_RANK_MAX)
        return opq_fail(OPQ_INVALID, "%s: %d dimensions are more than %d", call->info->name, rank, OPQ_RANK_MAX);
    *out_type = (opq_type){.rank = (uint8_t)rank};
    for (int d = 0; d < rank; d++)
        out_type->size[d] = d < axis                 ? a->size[d]
                            : d < axis + index->rank ? index->size[d - axis]
                                                     : a->size[d - index->rank + 1];
    return OPQ_OK;
}

opq_status opq_infer_index(const opq_inference *call, opq_type *out_type)
{
    const opq_type *a = &call->operands[0], *index = &call->operands[1];
    int axis;
    OPQ_TRY(opq_infer_want_index(call, 1));
    OPQ_TRY(opq_infer_axis(call, a->rank, &axis));
    if (call->op == OPQ_OP_index_select)
        return infer_index_select(call, axis, out_type);
    OPQ_TRY(want_within(call, index, a, axis));
    *out_type = *index;
    return OPQ_OK;
}

opq_status opq_infer_scatter(const opq_inference *call, opq_type *out_type)
{
    const opq_type *a = &call->operands[0], *index = &call->operands[1], *source = &call->operands[2];
    int axis;
    OPQ_TRY(opq_infer_want_index(call, 1));
    OPQ_TRY(opq_infer_axis(call, a->rank, &axis));
    if (a->dtype != source->dtype)
        return opq_fail(OPQ_INVALID, "%s: self and source must have the same dtype, got %s and %s", call->info->name,
                        opq_dtype_name((opq_dtype)a->dtype), opq_dtype_name((opq_dtype)source->dtype));
    *out_type = *a;
    if (call->op != OPQ_OP_index_add && call->op != OPQ_OP_index_set) {
        OPQ_TRY(want_within(call, index, source, -1));
        return want_within(call, index, a, axis);
    }
    OPQ_TRY(want_alike(call, a, source, axis));
    if (index->rank != 1 || index->size[0] != source->size[axis])
        return opq_fail(OPQ_INVALID, "%s: index %s does not number axis %d of %s", call->info->name,
                        opq_shape_name(index).text, axis, opq_shape_name(source).text);
    return OPQ_OK;
}

/* ---- matmul */

opq_status opq_infer_flag(const opq_inference *call, opq_attr_key key, bool *out_flag)
{
    const opq_attr *attr = opq_infer_attr(call, key);
    *out_flag = attr && attr->i;
    if (attr && attr->i != 0 && attr->i != 1)
        return opq_fail(OPQ_INVALID, "%s: %s must be 0 or 1", call->info->name, opq_attr_name(key));
    return OPQ_OK;
}

opq_status opq_infer_pairs(const opq_inference *call)
{
    const opq_attr *pairs = opq_infer_attr(call, OPQ_ATTR_pairs);
    bool rounded = call->compute == OPQ_bf16 || call->compute == OPQ_f32;
    for (int i = 0; i < call->arity; i++)
        rounded = rounded && call->operands[i].dtype != OPQ_f16;
    if (pairs && pairs->i != 0 && pairs->i != 1 && pairs->i != 16)
        return opq_fail(OPQ_INVALID, "%s: pairs must be 0, 1 or 16", call->info->name);
    if (pairs && pairs->i && !rounded)
        return opq_fail(OPQ_INVALID, "%s: pairs are of bf16 operands, or of f32 ones that are rounded to bf16",
                        call->info->name);
    return OPQ_OK;
}

opq_status opq_infer_matmul(const opq_inference *call, opq_type *out_type)
{
    const opq_type *a = &call->operands[0], *b = &call->operands[1];
    bool turn_a, turn_b;
    OPQ_TRY(opq_infer_pairs(call));
    OPQ_TRY(opq_infer_flag(call, OPQ_ATTR_transpose_a, &turn_a));
    OPQ_TRY(opq_infer_flag(call, OPQ_ATTR_transpose_b, &turn_b));
    if (a->rank < 2 || b->rank < 2)
        return opq_fail(OPQ_INVALID, "%s: takes matrices, got shapes %s and %s", call->info->name,
                        opq_shape_name(a).text, opq_shape_name(b).text);
    int64_t m = a->size[a->rank - 2 + turn_a], k = a->size[a->rank - 1 - turn_a];
    int64_t l = b->size[b->rank - 2 + turn_b], n = b->size[b->rank - 1 - turn_b];
    if (k != l)
        return opq_fail(OPQ_INVALID,
                        "%s: mat1 and mat2 shapes cannot be multiplied (%" PRId64 "x%" PRId64 " and %" PRId64
                        "x%" PRId64 ")",
                        call->info->name, m, k, l, n);
    opq_type batch_a = *a, batch_b = *b;
    batch_a.rank -= 2;
    batch_b.rank -= 2;
    OPQ_TRY(opq_broadcast(call->info->name, &batch_a, &batch_b, out_type));
    out_type->size[out_type->rank++] = m;
    out_type->size[out_type->rank++] = n;
    return OPQ_OK;
}
