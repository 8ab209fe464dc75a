/* Random paddings, and windows of them: products, as convolutions are, and reductions, as pooling is. */
#include "random_graph.h"

static bool chance(random_graph *r, int percent) { return random_below(r, 100) < (uint64_t)percent; }

static bool is_computed(const opq_type *type) { return opq_dtype_kind_of((opq_dtype)type->dtype) != OPQ_KIND_RAW; }

static opq_ref padded(random_graph *r, opq_ref x, const opq_type *out, int64_t *start, opq_number value)
{
    opq_attr attrs[] = {
        {.key = OPQ_ATTR_start, .count = out->rank, .ints = start},
        {.key = OPQ_ATTR_value, .is_int = opq_dtype_kind_of((opq_dtype)out->dtype) != OPQ_KIND_FLOAT, .number = value}};
    return random_op_typed(r, OPQ_OP_pad, out, &x, 1, attrs, 2);
}

opq_ref random_pad(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), out = type;
    int64_t start[OPQ_RANK_MAX] = {0};
    opq_number value = {.i = 0};
    if (!is_computed(&type))
        return -1;
    for (int d = 0; d < type.rank; d++) {
        if (chance(r, 50))
            continue;
        start[d] = (int64_t)random_below(r, 5) - (type.size[d] > 1 ? 1 : 0);
        out.size[d] = type.size[d] + start[d] + (int64_t)random_below(r, 4) - (type.size[d] > 2 ? 1 : 0);
    }
    if (opq_dtype_kind_of((opq_dtype)type.dtype) == OPQ_KIND_FLOAT)
        value.f = chance(r, 50) ? 0.0 : chance(r, 50) ? -0.0 : 2.5;
    else
        value.i = type.dtype == OPQ_bool ? chance(r, 50) : (int64_t)random_below(r, 3);
    return padded(r, x, &out, start, value);
}

/* What is there of x as an image [batch, channels, height, width]. */
static opq_ref image(random_graph *r, opq_ref x, opq_type *out_type)
{
    opq_type type = opq_graph_type(r->graph, x);
    int64_t count = opq_type_count(&type), size[4] = {1, 1, 1, 1};
    if (count < 4 || opq_dtype_kind_of((opq_dtype)type.dtype) != OPQ_KIND_FLOAT)
        return -1;
    for (int d = 3; d > 0; d--) {
        int64_t left = count / (size[1] * size[2] * size[3]), most = left < 40 ? left : 40;
        size[d] = 1 + (int64_t)random_below(r, (uint64_t)most);
        while (left % size[d] != 0)
            size[d]--;
    }
    size[0] = count / (size[1] * size[2] * size[3]);
    if (size[0] > 8)
        return -1;
    *out_type = opq_type_make((opq_dtype)type.dtype, 4, size);
    return random_op_typed(r, OPQ_OP_reshape, out_type, &x, 1, NULL, 0);
}

/* Windows [batch, channels, taps, taps, places, places] of a padded image, or channels-last [batch, places, places, taps, taps, channels]. */
static opq_ref windows(random_graph *r, opq_ref x, bool last, bool zero, opq_type *out_type)
{
    opq_type type, wide;
    x = image(r, x, &type);
    if (x < 0)
        return -1;
    int first = last ? 1 : 2;
    int64_t start[4] = {0}, strides[4], steps[6], size[6], places[2], taps[2], stride[2], dilation[2];
    opq_number value = {.f = zero ? 0 : -1.5};
    wide = type;
    for (int i = 0; i < 2; i++) {
        int64_t low = (int64_t)random_below(r, 3);
        start[first + i] = low;
        wide.size[first + i] += low + (int64_t)random_below(r, 3);
        taps[i] = 1 + (int64_t)random_below(r, 3);
        dilation[i] = 1 + (int64_t)random_below(r, 2);
        stride[i] = 1 + (int64_t)random_below(r, 3);
        int64_t room = wide.size[first + i] - (taps[i] - 1) * dilation[i] - 1;
        if (room < 0)
            return -1;
        places[i] = room / stride[i] + 1;
    }
    x = padded(r, x, &wide, start, value);
    strides[3] = 1;
    for (int d = 2; d >= 0; d--)
        strides[d] = strides[d + 1] * wide.size[d + 1];
    int channel = last ? 3 : 1;
    for (int i = 0; i < 2; i++) {
        int tap = last ? 3 + i : 2 + i, place = last ? 1 + i : 4 + i;
        size[tap] = taps[i], steps[tap] = strides[first + i] * dilation[i];
        size[place] = places[i], steps[place] = strides[first + i] * stride[i];
    }
    size[0] = wide.size[0], steps[0] = strides[0];
    size[last ? 5 : 1] = wide.size[channel], steps[last ? 5 : 1] = strides[channel];
    *out_type = opq_type_make((opq_dtype)type.dtype, 6, size);
    opq_attr attrs[] = {{.key = OPQ_ATTR_offset, .i = 0}, {.key = OPQ_ATTR_strides, .count = 6, .ints = steps}};
    return x < 0 ? -1 : random_op_typed(r, OPQ_OP_strided, out_type, &x, 1, attrs, 2);
}

opq_ref random_pooling(random_graph *r, opq_ref x)
{
    static const opq_op ops[] = {OPQ_OP_amax, OPQ_OP_sum, OPQ_OP_argmax};
    opq_type type;
    int64_t axes[] = {2, 3};
    x = windows(r, x, false, chance(r, 40), &type);
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = 2, .ints = axes};
    return x < 0 ? -1 : random_op(r, ops[random_below(r, 3)], &x, 1, &attr, 1);
}

opq_ref random_convolution(random_graph *r, opq_ref x)
{
    opq_type type;
    bool last = chance(r, 40), deep = !last && chance(r, 30); /* deep: a channel for each group */
    x = windows(r, x, last, !chance(r, 20), &type);
    if (x < 0)
        return -1;
    int64_t channels = type.size[last ? 5 : 1], taps = type.size[last ? 3 : 2] * type.size[last ? 4 : 3];
    int64_t places = opq_type_count(&type) / (type.size[0] * channels * taps);
    int64_t outer = deep ? 1 : 1 + (int64_t)random_below(r, 20), terms = deep ? taps : channels * taps;
    opq_type matrix = opq_type_make((opq_dtype)type.dtype, 3, (int64_t[]){type.size[0], terms, places});
    opq_type weight = opq_type_make((opq_dtype)type.dtype, 2, (int64_t[]){outer, terms});
    if (deep) {
        matrix = opq_type_make((opq_dtype)type.dtype, 4, (int64_t[]){type.size[0], channels, taps, places});
        weight = opq_type_make((opq_dtype)type.dtype, 3, (int64_t[]){channels, 1, taps});
    } else if (last) {
        matrix = opq_type_make((opq_dtype)type.dtype, 3, (int64_t[]){type.size[0], places, terms});
    }
    x = random_op_typed(r, OPQ_OP_reshape, &matrix, &x, 1, NULL, 0);
    opq_ref w = x < 0 ? -1 : random_input(r, &weight);
    opq_attr turned = {.key = OPQ_ATTR_transpose_b, .i = 1};
    opq_ref made = x < 0 || w < 0 ? -1
                   : last         ? random_op(r, OPQ_OP_matmul, (opq_ref[]){x, w}, 2, &turned, 1)
                                  : random_op(r, OPQ_OP_matmul, (opq_ref[]){w, x}, 2, NULL, 0);
    return made >= 0 && chance(r, 50) ? random_op(r, OPQ_OP_relu, &made, 1, NULL, 0) : made;
}
