/* Result types: first the dtype, from the row's rule and PyTorch's promotion, then the shape, from its class.
 *
 * Rules take types and attributes, never nodes, so that recording, passes, the parser and the verifier all ask the same
 * function.
 */
#include "graph/infer.h"

#include <inttypes.h>

/* ---- promotion */

static bool is_float(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT; }

/* bool < integers < floats; raw bytes above all, so that they surface in the result and are refused there. */
static int category(opq_dtype dtype)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_BOOL: return 0;
    case OPQ_KIND_UINT:
    case OPQ_KIND_INT: return 1;
    case OPQ_KIND_FLOAT: return 2;
    case OPQ_KIND_RAW: return 3;
    }
    return 3;
}

static opq_dtype promote_pair(opq_dtype a, opq_dtype b)
{
    if (category(a) != category(b))
        return category(a) > category(b) ? a : b;
    opq_dtype low = a < b ? a : b, high = a < b ? b : a;
    if (low == OPQ_u8 && high == OPQ_i8)
        return OPQ_i16;
    if (low == OPQ_f16 && high == OPQ_bf16)
        return OPQ_f32;
    return high;
}

/* One of PyTorch's three groups of operands. A Python number counts with the default dtype of its kind. */
enum { GROUP_DIMENSIONED, GROUP_ZERO, GROUP_WEAK, GROUP_COUNT };

opq_dtype opq_promote(const opq_type *types, int count)
{
    bool seen[GROUP_COUNT] = {false};
    opq_dtype group[GROUP_COUNT] = {OPQ_bool, OPQ_bool, OPQ_bool};
    for (int i = 0; i < count; i++) {
        int g = types[i].weak ? GROUP_WEAK : types[i].rank == 0 ? GROUP_ZERO : GROUP_DIMENSIONED;
        opq_dtype dtype = (opq_dtype)types[i].dtype;
        if (types[i].weak && category(dtype) == 1)
            dtype = OPQ_i64;
        if (types[i].weak && category(dtype) == 2)
            dtype = OPQ_f32;
        group[g] = seen[g] ? promote_pair(group[g], dtype) : dtype;
        seen[g] = true;
    }
    opq_dtype result = OPQ_bool;
    bool any = false;
    for (int g = GROUP_COUNT - 1; g >= 0; g--) {
        if (!seen[g])
            continue;
        result = !any || category(group[g]) >= category(result) ? group[g] : result;
        any = true;
    }
    return result;
}

bool opq_operand_promotes(opq_op op, int index)
{
    const opq_op_info *info = opq_op_info_of(op);
    switch (info->rule) {
    case OPQ_RULE_SAME:
    case OPQ_RULE_FLOAT:
    case OPQ_RULE_BOOL:
    case OPQ_RULE_SUM:
    case OPQ_RULE_INDEX: return true;
    case OPQ_RULE_WHERE: return index > 0;
    case OPQ_RULE_FIRST: return false;
    case OPQ_RULE_GIVEN: /* masked_fill, causal_mask: operand 0 names the dtype, operand 1 is the condition */
        return info->class_ == OPQ_CLASS_EWISE && index != 1;
    }
    return false;
}

bool opq_product_widens(opq_op op, opq_dtype operand, opq_dtype compute)
{
    if (opq_op_info_of(op)->class_ != OPQ_CLASS_MATMUL)
        return false;
    return operand == OPQ_i8 ? compute != OPQ_f64 : opq_dtype_is_half(operand) && compute == OPQ_f32;
}

bool opq_operand_needs_cast(opq_op op, int index, opq_dtype operand, opq_dtype compute)
{
    return operand != compute && opq_operand_promotes(op, index) && !opq_product_widens(op, operand, compute);
}

opq_tree opq_tree_for(int rank, const int64_t *axes, int count)
{
    return count == 0 || axes[count - 1] == rank - 1 ? OPQ_TREE_lanes : OPQ_TREE_column;
}

/* ---- dtype of compute and result */

static opq_status check_condition(const opq_inference *call, int operand)
{
    opq_dtype dtype = (opq_dtype)call->operands[operand].dtype;
    if (dtype != OPQ_bool)
        return opq_fail(OPQ_INVALID, "%s: the condition must be bool, got %s", call->info->name, opq_dtype_name(dtype));
    return OPQ_OK;
}

/* Which dtypes the row computes in. Moving bytes about is not computing. */
static opq_status check_dtype(const opq_inference *call, opq_dtype dtype)
{
    const opq_lowering *lowering = opq_op_lowering(call->op);
    bool absent = false;
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_FLOAT:
        absent = (call->info->flags & OPQ_FLAG_NOFLOAT) ||
                 (lowering->kind == OPQ_LOWER_ARITH && lowering->for_float == OPQ_ARITH_None);
        break;
    case OPQ_KIND_BOOL: absent = call->info->flags & (OPQ_FLAG_NOINT | OPQ_FLAG_NOBOOL); break;
    case OPQ_KIND_UINT:
    case OPQ_KIND_INT: absent = call->info->flags & OPQ_FLAG_NOINT; break;
    case OPQ_KIND_RAW:
        absent = call->info->class_ == OPQ_CLASS_EWISE || call->info->class_ == OPQ_CLASS_REDUCE ||
                 call->info->class_ == OPQ_CLASS_COMPOSITE || call->info->class_ == OPQ_CLASS_MATMUL ||
                 call->info->class_ == OPQ_CLASS_SCATTER || call->info->class_ == OPQ_CLASS_SCAN ||
                 call->info->class_ == OPQ_CLASS_ROUTINE;
        for (int i = 0; i < call->arity; i++)
            absent |= call->info->class_ == OPQ_CLASS_CONCAT && call->operands[i].dtype != dtype;
        break;
    }
    if (absent)
        return opq_fail(OPQ_INVALID, "%s: not implemented for %s", call->info->name, opq_dtype_name(dtype));
    return OPQ_OK;
}

static opq_status infer_dtype(opq_inference *call, opq_dtype *out_dtype)
{
    const opq_type *operands = call->operands;
    opq_dtype first = call->arity > 0 ? (opq_dtype)operands[0].dtype : OPQ_f32;
    opq_dtype dtype = first;
    switch (call->info->rule) {
    case OPQ_RULE_SAME:
    case OPQ_RULE_FLOAT:
    case OPQ_RULE_BOOL:
    case OPQ_RULE_SUM:
    case OPQ_RULE_INDEX: dtype = opq_promote(operands, call->arity); break;
    case OPQ_RULE_WHERE:
        OPQ_TRY(check_condition(call, 0));
        dtype = opq_promote(operands + 1, call->arity - 1);
        break;
    case OPQ_RULE_FIRST: break;
    case OPQ_RULE_GIVEN:
        if (call->info->class_ == OPQ_CLASS_EWISE)
            OPQ_TRY(check_condition(call, 1));
        else
            dtype = (opq_dtype)call->given->dtype;
        break;
    }
    OPQ_TRY(check_dtype(call, dtype));
    *out_dtype = dtype;
    call->compute = dtype;
    if (call->info->class_ == OPQ_CLASS_MATMUL && dtype == OPQ_i8)
        *out_dtype = call->compute = OPQ_i32;
    if (call->given && opq_product_widens(call->op, dtype, (opq_dtype)call->given->dtype)) /* the sums as they are */
        *out_dtype = call->compute = (opq_dtype)call->given->dtype;
    bool reduces = call->info->class_ == OPQ_CLASS_REDUCE;
    if (call->info->rule == OPQ_RULE_FLOAT && !is_float(dtype))
        *out_dtype = call->compute = OPQ_f32;
    if (call->info->rule == OPQ_RULE_SUM && !is_float(dtype))
        *out_dtype = call->compute = OPQ_i64;
    if (call->info->rule == OPQ_RULE_INDEX)
        *out_dtype = OPQ_i64;
    if (call->info->rule == OPQ_RULE_BOOL)
        *out_dtype = OPQ_bool;
    if (call->info->rule == OPQ_RULE_BOOL && reduces)
        call->compute = OPQ_bool; /* `or` and `and` fold truth values */
    if (call->info->rule == OPQ_RULE_GIVEN && call->arity > 0 && call->info->class_ != OPQ_CLASS_EWISE)
        call->compute = first;
    return OPQ_OK;
}

/* ---- shape */

opq_status opq_broadcast(const char *op, const opq_type *a, const opq_type *b, opq_type *out_type)
{
    if (b->rank == 0 || opq_shape_equal(a, b)) {
        *out_type = *a;
        return OPQ_OK;
    }
    int rank = a->rank > b->rank ? a->rank : b->rank;
    opq_type result = {.dtype = a->dtype, .rank = (uint8_t)rank};
    for (int d = 0; d < rank; d++) {
        int in_a = d - (rank - a->rank), in_b = d - (rank - b->rank);
        int64_t x = in_a < 0 ? 1 : a->size[in_a], y = in_b < 0 ? 1 : b->size[in_b];
        if (x != y && x != 1 && y != 1)
            return opq_fail(OPQ_INVALID, "%s: shapes %s and %s do not broadcast (axis %d: %" PRId64 " and %" PRId64 ")",
                            op, opq_shape_name(a).text, opq_shape_name(b).text, d, x, y);
        result.size[d] = x == 1 ? y : x;
    }
    *out_type = result;
    return OPQ_OK;
}

static opq_status infer_ewise(const opq_inference *call, opq_type *out_type)
{
    *out_type = call->operands[0];
    for (int i = 1; i < call->arity; i++)
        OPQ_TRY(opq_broadcast(call->info->name, out_type, &call->operands[i], out_type));
    return OPQ_OK;
}

opq_status opq_infer_reduce(const opq_inference *call, opq_op op, const opq_type *operand, opq_type *out_type)
{
    const opq_attr *axes = opq_infer_attr(call, OPQ_ATTR_axes);
    const opq_lowering *lowering = opq_op_lowering(op);
    bool needs_element = lowering->kind == OPQ_LOWER_FOLD && opq_fold_info_of(lowering->fold)->held == OPQ_HELD_operand;
    *out_type = *operand;
    for (int i = 0; i < axes->count; i++) {
        int64_t axis = axes->ints[i];
        if (axis < 0 || axis >= operand->rank)
            return opq_fail(OPQ_INVALID, "%s: axis %" PRId64 " out of range for %d dimensions", call->info->name, axis,
                            operand->rank);
        if (i > 0 && axis <= axes->ints[i - 1])
            return opq_fail(OPQ_INVALID, "%s: axes must ascend, axis %" PRId64 " follows %" PRId64, call->info->name,
                            axis, axes->ints[i - 1]);
        if (needs_element && operand->size[axis] == 0)
            return opq_fail(OPQ_INVALID, "%s: expected reduction dim %" PRId64 " of %s to have non-zero size",
                            call->info->name, axis, opq_shape_name(operand).text);
        out_type->size[axis] = 1;
    }
    if (lowering->kind == OPQ_LOWER_NATIVE) /* count: the same number everywhere */
        for (int d = 0; d < operand->rank; d++)
            out_type->size[d] = 1;
    return OPQ_OK;
}

opq_status opq_infer_axis(const opq_inference *call, int rank, int *out_axis)
{
    int64_t axis = opq_infer_attr(call, OPQ_ATTR_axis)->i;
    if (axis < 0 || axis >= rank)
        return opq_fail(OPQ_INVALID, "%s: axis %" PRId64 " out of range for %d dimensions", call->info->name, axis, rank);
    *out_axis = (int)axis;
    return OPQ_OK;
}

opq_status opq_infer_want_index(const opq_inference *call, int operand)
{
    opq_dtype dtype = (opq_dtype)call->operands[operand].dtype;
    if (dtype != OPQ_i64)
        return opq_fail(OPQ_INVALID, "%s: operand %d must be i64, got %s", call->info->name, operand,
                        opq_dtype_name(dtype));
    return OPQ_OK;
}

static opq_status infer_number(const opq_inference *call)
{
    if (call->given->rank != 0)
        return opq_fail(OPQ_INVALID, "%s: has no dimensions, got %s", call->info->name, opq_shape_name(call->given).text);
    if (opq_dtype_kind_of((opq_dtype)call->given->dtype) == OPQ_KIND_RAW)
        return opq_fail(OPQ_INVALID, "%s: not implemented for %s", call->info->name,
                        opq_dtype_name((opq_dtype)call->given->dtype));
    return OPQ_OK;
}

static opq_status want_dtype(const opq_inference *call, opq_dtype dtype)
{
    if (call->given->dtype != dtype)
        return opq_fail(OPQ_INVALID, "%s: gives %s, not %s", call->info->name, opq_dtype_name(dtype),
                        opq_dtype_name((opq_dtype)call->given->dtype));
    return OPQ_OK;
}

static opq_status infer_random(const opq_inference *call)
{
    for (int i = 0; i < call->arity; i++) {
        OPQ_TRY(opq_infer_want_index(call, i));
        if (call->operands[i].rank != 0)
            return opq_fail(OPQ_INVALID, "%s: operand %d has no dimensions, got %s", call->info->name, i,
                            opq_shape_name(&call->operands[i]).text);
    }
    return want_dtype(call, OPQ_f32);
}

static opq_status infer_cast(const opq_inference *call)
{
    const opq_type *from = &call->operands[0], *to = call->given;
    if (!opq_shape_equal(from, to))
        return opq_fail(OPQ_INVALID, "%s: shape %s does not become %s", call->info->name, opq_shape_name(from).text,
                        opq_shape_name(to).text);
    bool raw = opq_dtype_kind_of((opq_dtype)from->dtype) == OPQ_KIND_RAW ||
               opq_dtype_kind_of((opq_dtype)to->dtype) == OPQ_KIND_RAW;
    if (raw && from->dtype != to->dtype)
        return opq_fail(OPQ_INVALID, "%s: %s does not convert to %s", call->info->name,
                        opq_dtype_name((opq_dtype)from->dtype), opq_dtype_name((opq_dtype)to->dtype));
    return OPQ_OK;
}

static opq_status infer_shape(const opq_inference *call, opq_type *out_type)
{
    int axis;
    if (call->given)
        *out_type = *call->given;
    switch (call->info->class_) {
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_EXTERN: return OPQ_OK;
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR: return call->op == OPQ_OP_undefined ? OPQ_OK : infer_number(call);
    case OPQ_CLASS_IOTA: OPQ_TRY(want_dtype(call, OPQ_i64)); return opq_infer_axis(call, out_type->rank, &axis);
    case OPQ_CLASS_RANDOM: return infer_random(call);
    case OPQ_CLASS_EWISE: return infer_ewise(call, out_type);
    case OPQ_CLASS_CAST: return infer_cast(call);
    case OPQ_CLASS_VIEW: return opq_infer_view(call, out_type);
    case OPQ_CLASS_UPDATE: return opq_infer_update(call, out_type);
    case OPQ_CLASS_REDUCE: return opq_infer_reduce(call, call->op, &call->operands[0], out_type);
    case OPQ_CLASS_SCAN: *out_type = call->operands[0]; return opq_infer_axis(call, out_type->rank, &axis);
    case OPQ_CLASS_CONCAT: return opq_infer_concat(call, out_type);
    case OPQ_CLASS_INDEX: return opq_infer_index(call, out_type);
    case OPQ_CLASS_SCATTER: return opq_infer_scatter(call, out_type);
    case OPQ_CLASS_MATMUL: return opq_infer_matmul(call, out_type);
    case OPQ_CLASS_ROUTINE: return opq_infer_routine(call, out_type);
    case OPQ_CLASS_COMPOSITE: return opq_infer_composite(call, out_type);
    case OPQ_CLASS_COUNT: break;
    }
    return opq_fail(OPQ_INTERNAL, "%s: no shape rule", call->info->name);
}

/* ---- the whole */

static opq_status check_attrs(const opq_inference *call)
{
    opq_attr_set set = opq_op_attrs(call->op);
    unsigned seen = 0;
    for (int i = 0; i < call->attr_count; i++) {
        unsigned bit = call->attrs[i].key < OPQ_ATTR_COUNT ? 1u << call->attrs[i].key : 0;
        if (!(bit & (set.required | set.optional)))
            return opq_fail(OPQ_INVALID, "%s: has no attribute %s", call->info->name,
                            bit ? opq_attr_name((opq_attr_key)call->attrs[i].key) : "of that number");
        if (seen & bit)
            return opq_fail(OPQ_INVALID, "%s: attribute %s given twice", call->info->name,
                            opq_attr_name((opq_attr_key)call->attrs[i].key));
        seen |= bit;
    }
    unsigned missing = set.required & ~seen & ~(1u << OPQ_ATTR_tree);
    if (missing)
        return opq_fail(OPQ_INVALID, "%s: attribute %s missing", call->info->name,
                        opq_attr_name((opq_attr_key)__builtin_ctz(missing)));
    return OPQ_OK;
}

static opq_status check_arity(const opq_op_info *info, int arity)
{
    bool needs_one = info->arity < 0 && info->class_ == OPQ_CLASS_CONCAT;
    if ((info->arity >= 0 && arity != info->arity) || arity < 0)
        return opq_fail(OPQ_INVALID, "%s: takes %d operands, got %d", info->name, info->arity, arity);
    if (needs_one && arity == 0)
        return opq_fail(OPQ_INVALID, "%s: takes at least one operand", info->name);
    return OPQ_OK;
}

opq_status opq_infer(opq_op op, const opq_type *operands, int arity, const opq_attr *attrs, int attr_count,
                     const opq_type *given, opq_type *out_type, opq_dtype *out_compute)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_inference call = {op, info, operands, arity, attrs, attr_count, NULL, OPQ_f32};
    OPQ_TRY(check_arity(info, arity));
    OPQ_TRY(check_attrs(&call));
    if (given)
        OPQ_TRY(opq_type_check(info->name, given));
    if (info->rule == OPQ_RULE_GIVEN && info->class_ != OPQ_CLASS_EWISE) {
        if (!given)
            return opq_fail(OPQ_INVALID, "%s: the result type must be given", info->name);
        call.given = given;
    }
    if (info->class_ == OPQ_CLASS_MATMUL)
        call.given = given;
    opq_dtype dtype;
    opq_type type = {0};
    OPQ_TRY(infer_dtype(&call, &dtype));
    OPQ_TRY(infer_shape(&call, &type));
    type.dtype = (uint8_t)dtype;
    type.weak = 0;
    OPQ_TRY(opq_type_check(info->name, &type));
    if (given && !opq_type_equal(given, &type))
        return opq_fail(OPQ_INVALID, "%s: gives %s%s, not %s%s", info->name, opq_dtype_name(dtype),
                        opq_shape_name(&type).text, opq_dtype_name((opq_dtype)given->dtype), opq_shape_name(given).text);
    *out_type = type;
    *out_compute = call.compute;
    return OPQ_OK;
}
