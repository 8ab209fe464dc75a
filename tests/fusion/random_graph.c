/* The generator's numbers, inputs, elementwise rows and reductions; see random_structure.c for what moves elements about. */
#include "random_graph.h"

#include <math.h>

enum { ELEMENTS_MAX = 20000 };

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next(random_graph *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t random_below(random_graph *r, uint64_t limit) { return next(r) % limit; }

static bool chance(random_graph *r, int percent) { return random_below(r, 100) < (uint64_t)percent; }

/* ---- inputs */

static double real_element(random_graph *r)
{
    static const double odd[] = {0.0, -0.0, 1, -1, 0.5, INFINITY, -INFINITY, NAN, 1e-40, 3e38};
    if (r->special && chance(r, 15))
        return odd[random_below(r, COUNT(odd))];
    return ((double)random_below(r, 1 << 20) / (1 << 20) - 0.5) * 8;
}

static void fill(random_graph *r, opq_dtype dtype, void *data, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = next(r);
        int64_t small = (int64_t)(bits % 41) - 20;
        switch ((int)dtype) {
        case OPQ_bool: ((uint8_t *)data)[i] = bits & 1; break;
        case OPQ_u8: ((uint8_t *)data)[i] = (uint8_t)bits; break;
        case OPQ_i8: ((int8_t *)data)[i] = (int8_t)bits; break;
        case OPQ_i16: ((int16_t *)data)[i] = (int16_t)small; break;
        case OPQ_i32: ((int32_t *)data)[i] = r->special && bits % 31 == 0 ? INT32_MIN : (int32_t)small; break;
        case OPQ_i64: ((int64_t *)data)[i] = r->special && bits % 31 == 0 ? INT64_MIN : small; break;
        case OPQ_f16: ((uint16_t *)data)[i] = opq_f32_to_f16((float)real_element(r)); break;
        case OPQ_bf16: ((uint16_t *)data)[i] = opq_f32_to_bf16((float)real_element(r)); break;
        case OPQ_f32: ((float *)data)[i] = (float)real_element(r); break;
        case OPQ_f64: ((double *)data)[i] = real_element(r); break;
        }
    }
}

opq_ref random_input(random_graph *r, const opq_type *type)
{
    opq_ref ref;
    if (r->input_count == RANDOM_INPUTS)
        return -1;
    expect_ok(opq_graph_input(r->graph, type, &ref));
    size_t bytes = ((size_t)opq_type_bytes(type) + 127) / 64 * 64;
    void *data = aligned_alloc(64, bytes);
    assert_non_null(data);
    memset(data, 0, bytes);
    fill(r, (opq_dtype)type->dtype, data, opq_type_count(type));
    r->inputs[r->input_count++] = data;
    return ref;
}

static opq_dtype any_dtype(random_graph *r)
{
    static const opq_dtype others[] = {OPQ_f16, OPQ_bf16, OPQ_i64, OPQ_i32, OPQ_i16, OPQ_i8, OPQ_u8, OPQ_bool};
    if (chance(r, 70))
        return chance(r, 80) ? OPQ_f32 : OPQ_f64; /* both have all of softmax, gelu and their kind */
    return others[random_below(r, COUNT(others))];
}

static int64_t any_extent(random_graph *r)
{
    static const int64_t extents[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 100};
    return extents[random_below(r, COUNT(extents))];
}

/* Now and then a row longer than a chunk of the lanes rule, a long column, rows of some KiB, and nothing at all. */
static opq_type any_type(random_graph *r)
{
    opq_type type = {.dtype = (uint8_t)any_dtype(r), .rank = (uint8_t)(1 + random_below(r, 4))};
    for (int d = 0; d < type.rank; d++)
        type.size[d] = any_extent(r);
    if (chance(r, 5))
        type.size[random_below(r, type.rank)] = chance(r, 50) ? 4097 + (int64_t)random_below(r, 4200) : 513;
    if (chance(r, 5) && type.rank > 1)
        type.size[type.rank - 1] = 512 + 512 * (int64_t)random_below(r, 2);
    if (chance(r, 2))
        type.size[random_below(r, type.rank)] = 0;
    while (opq_type_count(&type) > ELEMENTS_MAX)
        type.size[random_below(r, type.rank)] = 1;
    return type;
}

opq_ref random_number(random_graph *r, opq_dtype dtype)
{
    static const double reals[] = {0.5, 1, 2, -1, 0.1, 3};
    opq_number number = {.i = (int64_t)random_below(r, 7) + 1};
    opq_ref ref;
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        number.f = reals[random_below(r, COUNT(reals))];
    if (chance(r, 50))
        expect_ok(opq_graph_const(r->graph, dtype, number, &ref));
    else
        expect_ok(opq_graph_scalar(r->graph, dtype, number, &ref));
    return ref;
}

/* ---- nodes */

/* Rows that give a half its exact result: nothing is rounded, or it is rounded once, at the end. */
static bool exact_on_halves(opq_op op)
{
    static const opq_op exact[] = {OPQ_OP_neg,   OPQ_OP_abs,    OPQ_OP_sign,   OPQ_OP_maximum,  OPQ_OP_minimum,
                                   OPQ_OP_where, OPQ_OP_floor,  OPQ_OP_ceil,   OPQ_OP_trunc,    OPQ_OP_amax,
                                   OPQ_OP_amin,  OPQ_OP_argmax, OPQ_OP_argmin, OPQ_OP_scan_max, OPQ_OP_scan_min};
    for (size_t i = 0; i < COUNT(exact); i++)
        if (exact[i] == op)
            return true;
    return opq_op_lowering(op)->kind == OPQ_LOWER_EXPAND || opq_op_lowering(op)->kind == OPQ_LOWER_CMP;
}

/* An expression with a number that the dtype does not have (relu6 of bool) cannot be expanded. */
static bool expands(opq_op op, const opq_type *types, int arity)
{
    opq_graph *graph = NULL, *expanded = NULL;
    opq_ref operands[8], ref;
    expect_ok(opq_graph_create("one", &graph));
    for (int k = 0; k < arity; k++)
        expect_ok(opq_graph_input(graph, &types[k], &operands[k]));
    expect_ok(opq_graph_op(graph, op, operands, arity, NULL, 0, &ref));
    bool fits = opq_graph_passes(graph, "expand", &expanded) == OPQ_OK;
    opq_graph_destroy(expanded);
    opq_graph_destroy(graph);
    return fits;
}

/* What the kernels compute: no transcendental function of integers, not all of f64, no matmul of integers but i8. */
static bool has_kernel(random_graph *r, opq_op op, const opq_ref *operands, int arity, const opq_attr *attrs,
                       int attr_count)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_type types[8], type;
    opq_dtype compute;
    if (arity > 8)
        return true;
    for (int k = 0; k < arity; k++)
        types[k] = opq_graph_type(r->graph, operands[k]);
    if (info->rule == OPQ_RULE_GIVEN)
        return true;
    opq_attr complete[OPQ_ATTR_COUNT];
    for (int i = 0; i < attr_count; i++)
        complete[i] = attrs[i];
    const opq_attr *axes = opq_attr_find(attrs, attr_count, OPQ_ATTR_axes);
    if (axes)
        complete[attr_count++] =
            (opq_attr){.key = OPQ_ATTR_tree, .i = opq_tree_for(types[0].rank, axes->ints, axes->count)};
    if (opq_infer(op, types, arity, complete, attr_count, NULL, &type, &compute) != OPQ_OK)
        return false;
    bool arithmetic = info->class_ == OPQ_CLASS_EWISE || info->class_ == OPQ_CLASS_REDUCE ||
                      info->class_ == OPQ_CLASS_COMPOSITE || info->class_ == OPQ_CLASS_MATMUL ||
                      info->class_ == OPQ_CLASS_SCATTER || info->class_ == OPQ_CLASS_SCAN;
    if (arithmetic && opq_dtype_is_half(compute) && !exact_on_halves(op) && !(r->rounds && op == OPQ_OP_matmul))
        return false;
    bool real = opq_dtype_kind_of(compute) == OPQ_KIND_FLOAT;
    if (info->class_ == OPQ_CLASS_EWISE && opq_op_lowering(op)->kind == OPQ_LOWER_EXPAND && !real &&
        !expands(op, types, arity))
        return false;
    if (info->class_ == OPQ_CLASS_MATMUL && !real && !(types[0].dtype == OPQ_i8 && types[1].dtype == OPQ_i8))
        return false;
    return opq_op_computes(op, compute);
}

/* An integer as a divisor: an odd one, unless it is a number that may be. */
static opq_ref nonzero(random_graph *r, opq_ref x)
{
    opq_ref operands[2] = {x}, ref;
    opq_dtype dtype = (opq_dtype)opq_graph_type(r->graph, x).dtype;
    const opq_node *node = opq_node_at(r->graph, x);
    const opq_attr *value = node->arity == 0 ? opq_node_attr(node, OPQ_ATTR_value) : NULL;
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT || (value && value->number.i != 0))
        return x;
    expect_ok(opq_graph_const(r->graph, dtype, (opq_number){.i = 1}, &operands[1]));
    expect_ok(opq_graph_op(r->graph, OPQ_OP_bitwise_or, operands, 2, NULL, 0, &ref));
    return ref;
}

opq_ref random_op(random_graph *r, opq_op op, const opq_ref *operands, int arity, const opq_attr *attrs, int attr_count)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_ref ref, division[2];
    for (int k = 0; k < arity; k++)
        if (operands[k] < 0)
            return -1;
    if (!has_kernel(r, op, operands, arity, attrs, attr_count))
        return -1;
    if (info->class_ == OPQ_CLASS_EWISE && (info->flags & OPQ_FLAG_CHECKED)) {
        division[0] = operands[0];
        division[1] = nonzero(r, operands[1]);
        operands = division;
    }
    return opq_graph_op(r->graph, op, operands, arity, attrs, attr_count, &ref) == OPQ_OK ? ref : -1;
}

opq_ref random_op_typed(random_graph *r, opq_op op, const opq_type *type, const opq_ref *operands, int arity,
                        const opq_attr *attrs, int attr_count)
{
    opq_ref ref;
    for (int k = 0; k < arity; k++)
        if (operands[k] < 0)
            return -1;
    expect_ok(opq_graph_op_typed(r->graph, op, type, operands, arity, attrs, attr_count, &ref));
    return ref;
}

static opq_ref any_ref(random_graph *r)
{
    /* Late values more often than early ones: deep graphs. */
    uint64_t a = random_below(r, (uint64_t)r->count), b = random_below(r, (uint64_t)r->count);
    return r->refs[a > b ? a : b];
}

/* A value that broadcasts with x to x's shape: x's shape, some dims 1, fewer dims, or a number. */
static opq_ref partner(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), other;
    for (int tries = 0; tries < 6; tries++) {
        opq_ref ref = any_ref(r);
        opq_type joined;
        other = opq_graph_type(r->graph, ref);
        if (opq_broadcast("partner", &type, &other, &joined) == OPQ_OK && opq_type_count(&joined) <= ELEMENTS_MAX)
            return ref;
    }
    if (chance(r, 50))
        return random_number(r, (opq_dtype)type.dtype);
    for (int d = 0; d < type.rank; d++)
        if (chance(r, 25))
            type.size[d] = 1;
    if (type.rank > 1 && chance(r, 25)) {
        memmove(type.size, type.size + 1, (size_t)--type.rank * sizeof *type.size);
        type.size[type.rank] = 0;
    }
    return random_input(r, &type);
}

/* A NaN's sign is nobody's promise. */
static opq_ref without_nan(random_graph *r, opq_ref x)
{
    opq_dtype dtype = (opq_dtype)opq_graph_type(r->graph, x).dtype;
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT)
        return x;
    return random_op(r, OPQ_OP_where,
                     (opq_ref[]){random_op(r, OPQ_OP_eq, (opq_ref[]){x, x}, 2, NULL, 0), x, random_number(r, dtype)}, 3,
                     NULL, 0);
}

static opq_ref elementwise(random_graph *r, opq_ref x)
{
    opq_op op = (opq_op)random_below(r, OPQ_OP_COUNT);
    const opq_op_info *info = opq_op_info_of(op);
    opq_ref operands[8] = {x};
    if (info->class_ != OPQ_CLASS_EWISE || op == OPQ_OP_masked_fill || op == OPQ_OP_causal_mask)
        return -1;
    for (int k = 1; k < info->arity; k++)
        operands[k] = partner(r, x);
    if (op == OPQ_OP_where)
        operands[0] = random_op(r, OPQ_OP_lt, (opq_ref[]){x, operands[1]}, 2, NULL, 0);
    if (op == OPQ_OP_signbit || op == OPQ_OP_copysign)
        operands[info->arity - 1] = without_nan(r, operands[info->arity - 1]);
    return random_op(r, op, operands, info->arity, NULL, 0);
}

opq_ref random_cast(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    type.dtype = (uint8_t)any_dtype(r);
    return random_op_typed(r, OPQ_OP_cast, &type, &x, 1, NULL, 0);
}

static opq_ref iota(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0)
        return -1;
    type.dtype = OPQ_i64;
    opq_attr axis = {.key = OPQ_ATTR_axis, .i = (int64_t)random_below(r, type.rank)};
    return random_op_typed(r, OPQ_OP_iota, &type, NULL, 0, &axis, 1);
}

static opq_ref noise(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x);
    opq_ref seed[2] = {random_number(r, OPQ_i64), random_number(r, OPQ_i64)};
    type.dtype = OPQ_f32;
    return random_op_typed(r, chance(r, 50) ? OPQ_OP_uniform : OPQ_OP_normal, &type, seed, 2, NULL, 0);
}

/* Reductions over some axes, alone and in the patterns of normalisations. */
static opq_ref reduction(random_graph *r, opq_ref x)
{
    static const opq_op ops[] = {OPQ_OP_sum,
                                 OPQ_OP_sum,
                                 OPQ_OP_prod,
                                 OPQ_OP_amax,
                                 OPQ_OP_amin,
                                 OPQ_OP_any,
                                 OPQ_OP_all,
                                 OPQ_OP_argmax,
                                 OPQ_OP_argmin,
                                 OPQ_OP_mean,
                                 OPQ_OP_var,
                                 OPQ_OP_norm2,
                                 OPQ_OP_logsumexp,
                                 OPQ_OP_softmax,
                                 OPQ_OP_softmax,
                                 OPQ_OP_softmax_backward,
                                 OPQ_OP_log_softmax,
                                 OPQ_OP_log_softmax_backward,
                                 OPQ_OP_layer_norm,
                                 OPQ_OP_layer_norm_plain,
                                 OPQ_OP_layer_norm_backward};
    opq_type type = opq_graph_type(r->graph, x);
    opq_op op = ops[random_below(r, COUNT(ops))];
    int64_t axes[OPQ_RANK_MAX];
    int count = 0;
    bool last = chance(r, 60);
    for (int d = 0; d < type.rank; d++)
        if (last ? d == type.rank - 1 : chance(r, 40))
            axes[count++] = d;
    if (count == 0)
        return -1;
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = count, .ints = axes};
    opq_ref operands[4] = {x, partner(r, x), partner(r, x), partner(r, x)};
    if (op == OPQ_OP_var || op == OPQ_OP_layer_norm_plain)
        operands[1] = random_number(r, (opq_dtype)type.dtype);
    if (op == OPQ_OP_layer_norm)
        operands[3] = random_number(r, (opq_dtype)type.dtype);
    opq_ref made = random_op(r, op, operands, opq_op_info_of(op)->arity, &attr, 1);
    if (made >= 0 && chance(r, 40)) /* the reduced value meets its operand again */
        made = random_op(r, chance(r, 50) ? OPQ_OP_sub : OPQ_OP_mul, (opq_ref[]){x, made}, 2, NULL, 0);
    return made;
}

static opq_ref backwards(random_graph *r, opq_ref x, int axis)
{
    opq_type type = opq_graph_type(r->graph, x);
    int64_t start[OPQ_RANK_MAX] = {0}, step[OPQ_RANK_MAX];
    for (int d = 0; d < type.rank; d++)
        step[d] = d == axis ? -1 : 1;
    start[axis] = type.size[axis] > 0 ? type.size[axis] - 1 : 0;
    const opq_attr attrs[] = {{.key = OPQ_ATTR_start, .count = type.rank, .ints = start},
                              {.key = OPQ_ATTR_step, .count = type.rank, .ints = step}};
    return random_op_typed(r, OPQ_OP_slice, &type, &x, 1, attrs, 2);
}

/* Along any axis, sometimes from its end, or a scan of a scan. */
static opq_ref scan(random_graph *r, opq_ref x)
{
    opq_op op = (opq_op)(OPQ_OP_scan_add + random_below(r, OPQ_OP_scan_logaddexp - OPQ_OP_scan_add + 1));
    opq_type type = opq_graph_type(r->graph, x);
    if (type.rank == 0)
        return -1;
    opq_attr axis = {.key = OPQ_ATTR_axis, .i = (int64_t)random_below(r, type.rank)};
    bool turned = chance(r, 30);
    opq_ref made = random_op(r, op, (opq_ref[]){turned ? backwards(r, x, (int)axis.i) : x}, 1, &axis, 1);
    if (made >= 0 && chance(r, 20))
        made = random_op(r, OPQ_OP_scan_max, &made, 1, &axis, 1);
    return made >= 0 && turned ? backwards(r, made, (int)axis.i) : made;
}

/* A value of x's type that lies in another order, or is the same along some dims. */
static opq_ref out_of_order(random_graph *r, opq_ref x)
{
    opq_type type = opq_graph_type(r->graph, x), from = type;
    int64_t dims[OPQ_RANK_MAX];
    for (int d = 0; d < type.rank; d++) {
        int other = (int)random_below(r, (uint64_t)d + 1);
        dims[d] = dims[other];
        dims[other] = d;
        type.size[d] = chance(r, 20) ? 1 : type.size[d];
    }
    for (int d = 0; d < type.rank; d++)
        from.size[dims[d]] = type.size[d];
    opq_ref input = random_input(r, &from);
    opq_attr attr = {.key = OPQ_ATTR_dims, .count = type.rank, .ints = dims};
    return input < 0 ? -1 : random_op_typed(r, OPQ_OP_permute, &type, &input, 1, &attr, 1);
}

/* Over all of a product whose elements do not lie as those of its operands. */
static opq_ref whole_product(random_graph *r, opq_ref x)
{
    static const opq_op ops[] = {OPQ_OP_sum,  OPQ_OP_sum, OPQ_OP_mean, OPQ_OP_amax,
                                 OPQ_OP_prod, OPQ_OP_any, OPQ_OP_norm2};
    opq_type type = opq_graph_type(r->graph, x);
    int64_t axes[OPQ_RANK_MAX];
    if (type.rank == 0)
        return -1;
    for (uint64_t n = 1 + random_below(r, 2); n > 0 && x >= 0; n--)
        x = random_op(r, chance(r, 50) ? OPQ_OP_mul : OPQ_OP_add, (opq_ref[]){x, out_of_order(r, x)}, 2, NULL, 0);
    for (int d = 0; d < type.rank; d++)
        axes[d] = d;
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = type.rank, .ints = axes};
    return x < 0 ? x : random_op(r, ops[random_below(r, COUNT(ops))], &x, 1, &attr, 1);
}

/* ---- graphs */

void random_keep(random_graph *r, opq_ref ref)
{
    if (ref < 0 || r->count == RANDOM_REFS)
        return;
    opq_type type = opq_graph_type(r->graph, ref);
    if (opq_type_count(&type) <= ELEMENTS_MAX)
        r->refs[r->count++] = ref;
}

/* Several results of one value, which share its memory: of the value and its square, over the same axes or none. */
static opq_ref siblings(random_graph *r, opq_ref x)
{
    static const opq_op ops[] = {OPQ_OP_sum,  OPQ_OP_amax, OPQ_OP_amin, OPQ_OP_argmax,
                                 OPQ_OP_prod, OPQ_OP_neg,  OPQ_OP_abs};
    opq_type type = opq_graph_type(r->graph, x);
    int64_t axes[OPQ_RANK_MAX];
    int count = 0;
    for (int d = 0; d < type.rank; d++)
        if (chance(r, 50))
            axes[count++] = d;
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = count, .ints = axes};
    for (uint64_t n = 1 + random_below(r, 3); n > 0; n--) {
        opq_op op = ops[random_below(r, COUNT(ops))];
        opq_ref operand = chance(r, 40) ? random_op(r, OPQ_OP_mul, (opq_ref[]){x, x}, 2, NULL, 0) : x;
        bool reduces = opq_op_info_of(op)->class_ == OPQ_CLASS_REDUCE;
        if (!reduces || count > 0)
            random_keep(r, random_op(r, op, &operand, 1, &attr, reduces));
    }
    return -1;
}

static void step(random_graph *r)
{
    static opq_ref (*const steps[])(random_graph *, opq_ref) = {elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                elementwise,
                                                                random_view,
                                                                random_view,
                                                                random_view,
                                                                random_view,
                                                                reduction,
                                                                reduction,
                                                                reduction,
                                                                scan,
                                                                scan,
                                                                random_cast,
                                                                random_update,
                                                                random_index,
                                                                random_scatter,
                                                                random_concat,
                                                                random_matmul,
                                                                random_routine,
                                                                iota,
                                                                noise,
                                                                random_pad,
                                                                random_pad,
                                                                random_pooling,
                                                                random_convolution,
                                                                siblings,
                                                                siblings,
                                                                random_attention,
                                                                whole_product,
                                                                whole_product,
                                                                random_views,
                                                                random_recurrent};
    random_keep(r, steps[random_below(r, COUNT(steps))](r, any_ref(r)));
}

/* Views of views of something small, with what reads them. */
static void view_step(random_graph *r)
{
    static opq_ref (*const readers[])(random_graph *, opq_ref) = {
        elementwise,   elementwise,   elementwise,   reduction,   scan,          random_index, random_scatter,
        random_matmul, random_matmul, random_update, random_cast, whole_product, iota,         random_pooling};
    opq_type type = {.dtype = OPQ_f32, .rank = (uint8_t)(1 + random_below(r, 3))};
    for (int d = 0; d < type.rank; d++)
        type.size[d] = chance(r, 40) ? 1 : 1 + (int64_t)random_below(r, 9);
    opq_ref x = chance(r, 50) ? random_input(r, &type) : any_ref(r);
    x = x < 0 ? any_ref(r) : x;
    x = random_views(r, chance(r, 20) ? iota(r, x) : chance(r, 50) ? elementwise(r, x) : x);
    random_keep(r, x);
    random_keep(r, x < 0 ? x : readers[random_below(r, COUNT(readers))](r, x));
}

random_graph random_graph_make(uint64_t seed)
{
    random_graph r = {.state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1};
    char name[32];
    snprintf(name, sizeof name, "seed%llu", (unsigned long long)seed);
    expect_ok(opq_graph_create(name, &r.graph));
    r.special = chance(&r, 30);
    opq_type type = any_type(&r);
    random_keep(&r, random_input(&r, &type));
    for (uint64_t n = random_below(&r, 2); n > 0; n--) {
        type = any_type(&r);
        random_keep(&r, random_input(&r, &type));
    }
    bool views = seed > RANDOM_VIEWS;
    for (uint64_t n = views ? 1 + random_below(&r, 4) : 4 + random_below(&r, 36); n > 0; n--)
        views ? view_step(&r) : step(&r);
    int outputs = 1 + (int)random_below(&r, RANDOM_OUTPUTS);
    for (int i = 0; i < outputs && i < r.count && r.graph->output_count < RANDOM_OUTPUTS; i++)
        expect_ok(opq_graph_output(r.graph, i == 0 ? r.refs[r.count - 1] : any_ref(&r)));
    return r;
}

void random_graph_drop(random_graph *r)
{
    opq_graph_destroy(r->graph);
    for (int i = 0; i < r->input_count; i++)
        free(r->inputs[i]);
}
