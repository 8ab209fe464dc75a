/* Steps that move elements: views of every kind, writes through them, gathers, scatters, concat, and matmul. */
#include "random_graph.h"

static bool chance(random_graph *r, int percent) { return random_below(r, 100) < (uint64_t)percent; }

/* ---- views */

static opq_ref permute(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    int64_t dims[OPQ_RANK_MAX];
    for (int d = 0; d < type.rank; d++) {
        int other = (int)random_below(r, (uint64_t)d + 1);
        dims[d] = dims[other];
        dims[other] = d;
    }
    opq_attr attr = {.key = OPQ_ATTR_dims, .count = type.rank, .ints = dims};
    return random_op(r, OPQ_OP_permute, &x, 1, &attr, 1);
}

/* A window of x's dims: first index, step and count of each. */
typedef struct window {
    int64_t start[OPQ_RANK_MAX], step[OPQ_RANK_MAX];
    opq_type type;
} window;

static window any_window(random_graph *r, const opq_type *type)
{
    window w = {.type = *type};
    for (int d = 0; d < type->rank; d++) {
        w.step[d] = 1;
        if (type->size[d] == 0 || chance(r, 40))
            continue;
        w.start[d] = (int64_t)random_below(r, (uint64_t)type->size[d]);
        w.step[d] = 1 + (int64_t)random_below(r, 3);
        int64_t room = (type->size[d] - w.start[d] + w.step[d] - 1) / w.step[d];
        w.type.size[d] = chance(r, 70) ? room : 1 + (int64_t)random_below(r, (uint64_t)room);
    }
    return w;
}

static opq_ref slice(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    window w = any_window(r, &type);
    for (int d = 0; d < type.rank; d++)
        if (w.type.size[d] > 0 && chance(r, 25)) { /* the same elements from the last to the first */
            w.start[d] += (w.type.size[d] - 1) * w.step[d];
            w.step[d] = -w.step[d];
        }
    opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = type.rank, .ints = w.start},
                        {.key = OPQ_ATTR_step, .count = type.rank, .ints = w.step}};
    return random_op_typed(r, OPQ_OP_slice, &w.type, &x, 1, attrs, 2);
}

static opq_ref expand(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    int front = (int)random_below(r, 2);
    if (type.rank + front > 6)
        return -1;
    memmove(type.size + front, type.size, (size_t)type.rank * sizeof *type.size);
    type.rank = (uint8_t)(type.rank + front);
    for (int d = 0; d < type.rank; d++)
        if (d < front || (type.size[d] == 1 && chance(r, 60)))
            type.size[d] = 1 + (int64_t)random_below(r, 9);
    return opq_type_count(&type) > 20000 ? -1 : random_op_typed(r, OPQ_OP_expand, &type, &x, 1, NULL, 0);
}

/* Splits and joins dims: each new extent is a divisor of what is left. */
static opq_ref reshape(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), shaped = {.dtype = type.dtype};
    int64_t left = opq_type_count(&type);
    if (left == 0)
        return -1;
    while (left > 1 && shaped.rank < 4) {
        int64_t factor = 1 + (int64_t)random_below(r, (uint64_t)left);
        while (left % factor != 0)
            factor--;
        shaped.size[shaped.rank++] = factor;
        left /= factor;
    }
    if (left > 1)
        shaped.size[shaped.rank++] = left;
    return random_op_typed(r, OPQ_OP_reshape, &shaped, &x, 1, NULL, 0);
}

/* Any strides at all over the dense elements, as as_strided has them; windows of a read may overlap. */
static opq_ref strided(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), out = {.dtype = type.dtype, .rank = (uint8_t)(1 + random_below(r, 3))};
    int64_t strides[OPQ_RANK_MAX], count = opq_type_count(&type);
    if (count == 0)
        return -1;
    int64_t offset = (int64_t)random_below(r, (uint64_t)(count / 4 + 1)), room = count - 1 - offset;
    for (int d = 0; d < out.rank; d++) {
        strides[d] = (int64_t)random_below(r, 12);
        int64_t most = strides[d] == 0 ? 4 : room / strides[d] / out.rank;
        out.size[d] = 1 + (int64_t)random_below(r, (uint64_t)(most < 20 ? most + 1 : 20));
    }
    opq_attr attrs[] = {{.key = OPQ_ATTR_offset, .i = offset},
                        {.key = OPQ_ATTR_strides, .count = out.rank, .ints = strides}};
    return random_op_typed(r, OPQ_OP_strided, &out, &x, 1, attrs, 2);
}

opq_ref random_view(random_graph *r, opq_ref x)
{
    static opq_ref (*const views[])(random_graph *, opq_ref) = {permute, permute, slice,  expand,
                                                                reshape, reshape, strided};
    return views[random_below(r, COUNT(views))](r, x);
}

/* The first elements along an axis behind the last. */
static opq_ref roll(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    int64_t start[OPQ_RANK_MAX] = {0}, step[OPQ_RANK_MAX];
    if (opq_type_count(&type) < 2)
        return -1;
    int axis = (int)random_below(r, type.rank);
    int64_t size = type.size[axis], shift = (int64_t)random_below(r, (uint64_t)size);
    opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = type.rank, .ints = start},
                        {.key = OPQ_ATTR_step, .count = type.rank, .ints = step}};
    opq_attr along = {.key = OPQ_ATTR_axis, .i = axis};
    for (int d = 0; d < type.rank; d++)
        step[d] = 1;
    type.size[axis] = shift;
    opq_ref first = random_op_typed(r, OPQ_OP_slice, &type, &x, 1, attrs, 2);
    start[axis] = shift;
    type.size[axis] = size - shift;
    opq_ref rest = random_op_typed(r, OPQ_OP_slice, &type, &x, 1, attrs, 2);
    return random_op(r, OPQ_OP_concat, (opq_ref[]){rest, first}, 2, &along, 1);
}

/* Its elements one after another, each several times. */
static opq_ref repeat(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), wide = type, flat = {.dtype = type.dtype, .rank = 1};
    int64_t times = 1 + (int64_t)random_below(r, 4), count = opq_type_count(&type);
    if (type.rank > 5 || count * times > 4000)
        return -1;
    type.size[type.rank++] = 1;
    wide = type;
    wide.size[wide.rank - 1] = times;
    flat.size[0] = count * times;
    x = random_op_typed(r, OPQ_OP_reshape, &type, &x, 1, NULL, 0);
    x = random_op_typed(r, OPQ_OP_expand, &wide, &x, 1, NULL, 0);
    return random_op_typed(r, OPQ_OP_reshape, &flat, &x, 1, NULL, 0);
}

/* Some of them upon each other, paddings above all, now and then kept in between. */
opq_ref random_views(random_graph *r, opq_ref x)
{
    static opq_ref (*const views[])(random_graph *, opq_ref) = {random_pad, random_pad, random_pad, reshape,    reshape,
                                                                reshape,    expand,     slice,      permute,    strided,
                                                                repeat,     repeat,     roll,       random_cast};
    if (x < 0)
        return -1;
    for (uint64_t n = 3 + random_below(r, 4); n > 0; n--) {
        opq_ref next = views[random_below(r, COUNT(views))](r, x);
        opq_type type = opq_graph_type(r->graph, next >= 0 ? next : x);
        if (next < 0 || opq_type_count(&type) > 4000)
            continue;
        x = next;
        if (chance(r, 12))
            random_keep(r, x);
    }
    return x;
}

/* ---- updates: x with a window replaced, the window read in another order than it lies */

static void strides_of(const opq_type *type, int64_t *out_strides)
{
    int64_t stride = 1;
    for (int d = type->rank - 1; d >= 0; d--) {
        out_strides[d] = stride;
        stride *= type->size[d];
    }
}

static opq_ref same_shape(random_graph *r, const opq_type *type)
{
    for (int tries = 0; tries < 8; tries++) {
        opq_ref ref = r->refs[random_below(r, (uint64_t)r->count)];
        opq_type other = opq_graph_type(r->graph, ref);
        if (opq_type_equal(&other, type))
            return ref;
    }
    return random_input(r, type);
}

opq_ref random_update(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    window w = any_window(r, &type);
    int64_t dense[OPQ_RANK_MAX], strides[OPQ_RANK_MAX], offset = 0;
    strides_of(&type, dense);
    for (int d = 0; d < type.rank; d++) {
        offset += w.start[d] * dense[d];
        strides[d] = w.step[d] * dense[d];
    }
    if (type.rank > 1 && chance(r, 30)) { /* x.t()[...] = value */
        int64_t size = w.type.size[0], stride = strides[0];
        w.type.size[0] = w.type.size[1];
        strides[0] = strides[1];
        w.type.size[1] = size;
        strides[1] = stride;
    }
    opq_attr attrs[] = {{.key = OPQ_ATTR_offset, .i = offset},
                        {.key = OPQ_ATTR_sizes, .count = type.rank, .ints = w.type.size},
                        {.key = OPQ_ATTR_strides, .count = type.rank, .ints = strides}};
    opq_attr read[] = {attrs[0], attrs[2]};
    opq_ref value = opq_type_count(&type) > 0 && chance(r, 60)
                        ? random_op_typed(r, OPQ_OP_strided, &w.type, &x, 1, read, 2)
                        : same_shape(r, &w.type);
    if (value >= 0 && chance(r, 60)) /* x[...] += number */
        value = random_op(r, OPQ_OP_maximum, (opq_ref[]){value, random_number(r, (opq_dtype)type.dtype)}, 2, NULL, 0);
    return random_op(r, OPQ_OP_update, (opq_ref[]){x, value}, 2, attrs, 3);
}

/* ---- indices in range: any integers modulo the extent, or a flip */

static opq_ref number(random_graph *r, int64_t value)
{
    opq_ref ref;
    expect_ok(opq_graph_const(r->graph, OPQ_i64, (opq_number){.i = value}, &ref));
    return ref;
}

static opq_ref indices(random_graph *r, const opq_type *shape, int axis, int64_t extent)
{
    opq_type type = *shape;
    type.dtype = OPQ_i64;
    if (extent == 0)
        return -1;
    if (type.rank > 0 && type.size[axis] == extent && chance(r, 40)) {
        opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
        opq_ref up = random_op_typed(r, OPQ_OP_iota, &type, NULL, 0, &attr, 1);
        return random_op(r, OPQ_OP_sub, (opq_ref[]){number(r, extent - 1), up}, 2, NULL, 0);
    }
    return random_op(r, OPQ_OP_remainder, (opq_ref[]){random_input(r, &type), number(r, extent)}, 2, NULL, 0);
}

opq_ref random_index(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0)
        return -1;
    int axis = (int)random_below(r, type.rank);
    opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
    opq_type wanted = type;
    bool gather = chance(r, 50);
    if (!gather) {
        wanted.rank = (uint8_t)random_below(r, 3);
        for (int d = 0; d < wanted.rank; d++)
            wanted.size[d] = chance(r, 40) ? type.size[axis] : 1 + (int64_t)random_below(r, 6);
    } else if (chance(r, 50)) {
        wanted.size[axis] = 1 + (int64_t)random_below(r, 9);
    }
    opq_ref index = indices(r, &wanted, gather ? axis : 0, type.size[axis]);
    return random_op(r, gather ? OPQ_OP_gather : OPQ_OP_index_select, (opq_ref[]){x, index}, 2, &attr, 1);
}

opq_ref random_scatter(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0 || type.dtype == OPQ_bool || opq_type_count(&type) > 6000)
        return -1;
    int axis = (int)random_below(r, type.rank);
    opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
    opq_type added = type;
    added.size[axis] = 1 + (int64_t)random_below(r, 9);
    opq_ref source = same_shape(r, &added), index;
    if (chance(r, 50)) {
        opq_type line = opq_type_make(OPQ_i64, 1, &added.size[axis]);
        index = indices(r, &line, 0, type.size[axis]);
        return random_op(r, OPQ_OP_index_add, (opq_ref[]){x, index, source}, 3, &attr, 1);
    }
    index = indices(r, &added, axis, type.size[axis]);
    return random_op(r, OPQ_OP_scatter_add, (opq_ref[]){x, index, source}, 3, &attr, 1);
}

/* Groups that end where a multiple of `step` does, or with the operand. */
static opq_ref random_ends(random_graph *r, int64_t groups, int64_t step, int64_t extent)
{
    opq_attr along = {.key = OPQ_ATTR_axis, .i = 0};
    opq_type type = opq_type_make(OPQ_i64, 1, &groups);
    opq_ref up = random_op_typed(r, OPQ_OP_iota, &type, NULL, 0, &along, 1);
    opq_ref times = random_op(r, OPQ_OP_mul, (opq_ref[]){up, number(r, step)}, 2, NULL, 0);
    return random_op(r, OPQ_OP_minimum, (opq_ref[]){times, number(r, extent)}, 2, NULL, 0);
}

static opq_ref random_grouped(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), right = type;
    bool turn_a = chance(r, 50), turn_b = chance(r, 50), rows = chance(r, 50);
    int64_t groups = 1 + (int64_t)random_below(r, 4), n = 1 + (int64_t)random_below(r, 20);
    int64_t m = type.size[turn_a], k = type.size[!turn_a], extent = rows ? m : k;
    int64_t sizes[] = {groups, turn_b ? n : k, turn_b ? k : n};
    right = opq_type_make((opq_dtype)type.dtype, rows ? 3 : 2, sizes + !rows);
    opq_ref b = same_shape(r, &right), ends = random_ends(r, groups, (int64_t)random_below(r, 8), extent);
    opq_attr attrs[] = {{.key = OPQ_ATTR_transpose_a, .i = turn_a}, {.key = OPQ_ATTR_transpose_b, .i = turn_b}};
    return random_op(r, OPQ_OP_grouped_matmul, (opq_ref[]){x, b, ends}, 3, attrs, 2);
}

opq_ref random_routine(random_graph *r, opq_ref x)
{
    static const opq_op combining[] = {OPQ_OP_scatter_prod, OPQ_OP_scatter_amax, OPQ_OP_scatter_amin, OPQ_OP_scatter_set};
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0 || opq_type_count(&type) > 6000)
        return -1;
    if (type.rank == 2 && (type.dtype == OPQ_f32 || type.dtype == OPQ_f64) && chance(r, 50))
        return random_grouped(r, x);
    int axis = (int)random_below(r, type.rank);
    opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
    if (chance(r, 50) || type.dtype == OPQ_bool)
        return random_op(r, chance(r, 50) ? OPQ_OP_argsort : OPQ_OP_argsort_down, &x, 1, &attr, 1);
    opq_type added = type;
    added.size[axis] = 1 + (int64_t)random_below(r, 9);
    opq_ref source = same_shape(r, &added);
    if (chance(r, 40)) {
        opq_type line = opq_type_make(OPQ_i64, 1, &added.size[axis]);
        opq_ref places = indices(r, &line, 0, type.size[axis]);
        return random_op(r, OPQ_OP_index_set, (opq_ref[]){x, places, source}, 3, &attr, 1);
    }
    opq_ref index = indices(r, &added, axis, type.size[axis]);
    return random_op(r, combining[random_below(r, 4)], (opq_ref[]){x, index, source}, 3, &attr, 1);
}

opq_ref random_concat(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0)
        return -1;
    int axis = (int)random_below(r, type.rank), count = 1 + (int)random_below(r, 3);
    opq_attr attr = {.key = OPQ_ATTR_axis, .i = axis};
    opq_ref parts[4] = {x};
    for (int i = 1; i < count; i++) {
        opq_type part = type;
        part.size[axis] = chance(r, 30) ? type.size[axis] : 1 + (int64_t)random_below(r, 5);
        parts[i] = same_shape(r, &part);
    }
    return random_op(r, OPQ_OP_concat, parts, count, &attr, 1);
}

/* ---- matmul: x with another matrix, either transposed, batches broadcast */

/* What a product widens. */
static opq_ref bytes(random_graph *r, const opq_type *type)
{
    opq_type of = *type;
    of.dtype = OPQ_i8;
    return same_shape(r, &of);
}

static opq_ref product(random_graph *r, opq_ref x, bool turn_a)
{
    opq_type type = opq_graph_type(r->graph, x), other;
    if (type.rank < 2)
        return -1;
    bool turn_b = chance(r, 50);
    int64_t k = type.size[type.rank - 1 - turn_a],
            n = chance(r, 20) ? 1 : 1 + (int64_t)random_below(r, chance(r, 40) ? 300 : 40);
    other = type;
    if (chance(r, 40)) {
        other.rank = 2;
        memset(other.size, 0, sizeof other.size);
    } else if (other.rank > 2 && chance(r, 40)) {
        other.size[0] = 1;
    }
    other.size[other.rank - 2] = turn_b ? n : k;
    other.size[other.rank - 1] = turn_b ? k : n;
    opq_ref y = type.dtype == OPQ_i8 || chance(r, 15) ? bytes(r, &other) : same_shape(r, &other);
    opq_attr attrs[] = {{.key = OPQ_ATTR_transpose_a, .i = turn_a},
                        {.key = OPQ_ATTR_transpose_b, .i = turn_b},
                        {.key = OPQ_ATTR_pairs, .i = chance(r, 50) ? 1 : 16}};
    int attr_count = chance(r, type.dtype == OPQ_bf16 ? 70 : type.dtype == OPQ_f32 ? 10 : 0) ? 3 : 2;
    r->rounds =
        type.dtype == OPQ_bf16 && r->graph->output_count == 0; /* one is read where it was rounded, not on its tile */
    opq_ref made = random_op(r, OPQ_OP_matmul, (opq_ref[]){x, y}, 2, attrs, attr_count);
    if (made >= 0 && r->rounds)
        expect_ok(opq_graph_output(r->graph, made));
    r->rounds = false;
    if (made >= 0 && chance(r, 50)) { /* bias */
        opq_type bias = opq_type_make((opq_dtype)opq_graph_type(r->graph, made).dtype, 1, &n);
        made = random_op(r, OPQ_OP_add, (opq_ref[]){made, same_shape(r, &bias)}, 2, NULL, 0);
    }
    if (made >= 0 && n == 1 && !turn_a && type.dtype != OPQ_i8 &&
        chance(r, 70)) { /* a reflection: x - (x v) w, as large as x */
        opq_type row = opq_type_make((opq_dtype)type.dtype, 1, &k);
        made = random_op(r, OPQ_OP_mul, (opq_ref[]){made, same_shape(r, &row)}, 2, NULL, 0);
        if (made >= 0)
            made = random_op(r, OPQ_OP_sub, (opq_ref[]){x, made}, 2, NULL, 0);
    }
    return made;
}

enum { SQUARE_MAX = 300 };

/* A recurrence: steps that read a square matrix, as it lies or across its rows, from the left or from the right; now and then it is another one from
 * step to step. */
static opq_ref recurrence(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    bool left = chance(r, 50), turn = chance(r, 50);
    if (type.rank < 2)
        return -1;
    int64_t k = type.size[type.rank - (left ? 2 : 1)];
    if (k > SQUARE_MAX)
        return -1;
    opq_type square = opq_type_make((opq_dtype)type.dtype, 2, (int64_t[]){k, k});
    opq_ref w = same_shape(r, &square);
    bool changes = chance(r, 50), vector = type.rank == 2 && type.size[left ? 1 : 0] == 1;
    opq_attr attr = {.key = left ? OPQ_ATTR_transpose_a : OPQ_ATTR_transpose_b, .i = turn};
    for (uint64_t n = 2 + random_below(r, 6); n > 0 && x >= 0 && w >= 0; n--) {
        x = random_op(r, OPQ_OP_matmul, left ? (opq_ref[]){w, x} : (opq_ref[]){x, w}, 2, &attr, 1);
        if (x >= 0 && chance(r, 50))
            x = random_op(r, OPQ_OP_tanh, &x, 1, NULL, 0);
        if (x >= 0 && w >= 0 && changes)
            w = vector ? random_op(r, OPQ_OP_sub, (opq_ref[]){w, x}, 2, NULL, 0)
                       : random_op(r, OPQ_OP_tanh, &w, 1, NULL, 0);
    }
    return x;
}

/* Now and then several of one left operand, or of bf16. */
opq_ref random_matmul(random_graph *r, opq_ref x)
{
    bool turn_a = chance(r, 30);
    opq_type type = opq_graph_type(r->graph, x);
    if (chance(r, 25))
        return recurrence(r, x);
    if (type.dtype == OPQ_f32 && chance(r, 30)) { /* by pairs or as a chain */
        type.dtype = OPQ_bf16;
        x = random_op_typed(r, OPQ_OP_cast, &type, &x, 1, NULL, 0);
    }
    if (type.dtype == OPQ_f32 && chance(r, 15)) {
        type.dtype = OPQ_i8;
        x = random_op_typed(r, OPQ_OP_cast, &type, &x, 1, NULL, 0);
    }
    while (chance(r, 40))
        random_keep(r, product(r, x, turn_a));
    return product(r, x, turn_a);
}
