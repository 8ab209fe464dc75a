/* Recording: types are inferred, operands cast, one value made. Nothing runs here, but for the bound on pending nodes. */
#include "codegen_llvm/cpu.h"
#include "graph/eval.h"
#include "opaque/context.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 16 };

static _Thread_local uint32_t current_line, current_call, current_forward;
static _Thread_local unsigned current_modes;
static _Thread_local uint32_t current_origin;
static atomic_uint last_origin;

void opq_line_set(uint32_t line) { current_line = line; }
void opq_call_set(uint32_t call, uint32_t forward)
{
    current_call = call;
    current_forward = forward;
}
void opq_call_note(opq_value *value)
{
    value->line = current_line;
    value->call = current_call;
    value->forward = current_forward;
}
void opq_modes_set(unsigned modes) { current_modes = modes; }
unsigned opq_modes_get(void) { return current_modes; }
void opq_origin_set(uint32_t origin) { current_origin = origin; }
uint32_t opq_origin_get(void)
{
    while (current_origin == 0)
        current_origin = atomic_fetch_add_explicit(&last_origin, 1, memory_order_relaxed) + 1;
    return current_origin;
}

/* What the kernels cannot compute although the op's rule allows it. */
static opq_status check_native(opq_op op, const opq_type *operands, opq_dtype compute)
{
    const opq_op_info *info = opq_op_info_of(op);
    bool product = info->class_ == OPQ_CLASS_MATMUL;
    bool bytes = product && operands[0].dtype == OPQ_i8 && operands[1].dtype == OPQ_i8;
    bool real = opq_dtype_kind_of(compute) == OPQ_KIND_FLOAT;
    if (!opq_op_computes(op, compute) || (product && !real && !bytes))
        return opq_fail(OPQ_UNSUPPORTED, "%s: no native kernel for %s", info->name, opq_dtype_name(compute));
    return OPQ_OK;
}

/* A number takes the dtype it is used in: no cast in the kernel. */
static opq_status cast_scalar(opq_ctx *ctx, opq_value *value, opq_dtype dtype, opq_value **out_value)
{
    opq_number number = opq_eval_cast((opq_dtype)value->type.dtype, dtype, value->scalar);
    if (value->attr_count == 0 && value->arity == 0)
        return opq_value_scalar(ctx, dtype, number, value->type.weak, out_value);
    opq_type type = value->type; /* of a number that is given at each call: capturing.h */
    type.dtype = (uint8_t)dtype;
    OPQ_TRY(opq_value_new(ctx, OPQ_OP_scalar, &type, &value, 1, NULL, 0, out_value));
    (*out_value)->scalar = number;
    return OPQ_OK;
}

opq_status opq_record_cast(opq_ctx *ctx, opq_value *value, opq_dtype dtype, opq_value **out_value)
{
    if (value->type.dtype == dtype) {
        opq_value_retain(value);
        *out_value = value;
        return OPQ_OK;
    }
    if (value->op == OPQ_OP_scalar && value->state == OPQ_VALUE_pending)
        return cast_scalar(ctx, value, dtype, out_value);
    opq_type type = value->type;
    type.dtype = (uint8_t)dtype;
    type.weak = 0;
    return opq_record_typed(ctx, OPQ_OP_cast, &type, &value, 1, NULL, 0, out_value);
}

static void release_all(opq_value **values, int count)
{
    for (int i = 0; i < count; i++)
        opq_value_release(values[i]);
}

/* Casts what promotes; `out` gets one reference each. */
static opq_status cast_operands(opq_ctx *ctx, opq_op op, opq_value *const *operands, int arity, opq_dtype compute,
                                opq_value **out)
{
    for (int k = 0; k < arity; k++) {
        opq_status status = OPQ_OK;
        if (opq_operand_needs_cast(op, k, (opq_dtype)operands[k]->type.dtype, compute)) {
            status = opq_record_cast(ctx, operands[k], compute, &out[k]);
        } else {
            opq_value_retain(operands[k]);
            out[k] = operands[k];
        }
        if (status != OPQ_OK) {
            release_all(out, k);
            return status;
        }
    }
    return OPQ_OK;
}

/* A number that is known to be 0 is refused at the line, any other divisor when it is computed. */
static opq_status check_divisor(opq_op op, const opq_type *type, const opq_value *divisor)
{
    bool number = divisor->op == OPQ_OP_scalar && divisor->state == OPQ_VALUE_pending;
    opq_dtype_kind kind = opq_dtype_kind_of((opq_dtype)type->dtype);
    if (kind == OPQ_KIND_FLOAT || !number || divisor->scalar.i != 0 || opq_type_count(type) == 0)
        return OPQ_OK;
    return opq_fail(OPQ_INVALID, "%s: ZeroDivisionError", opq_op_info_of(op)->name);
}

static opq_status record(opq_ctx *ctx, opq_op op, const opq_type *given, opq_value *const *operands, int arity,
                         const opq_attr *attrs, int attr_count, opq_value **out_value)
{
    opq_type few_types[FEW], type;
    opq_value *few_casts[FEW];
    opq_dtype compute = OPQ_f32;
    few_types[0] = (opq_type){0}; /* of no operands */
    opq_type *types = arity <= FEW ? few_types : malloc((size_t)arity * sizeof *types);
    opq_value **casts = arity <= FEW ? few_casts : malloc((size_t)arity * sizeof *casts);
    opq_status status = types && casts ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory while recording");
    for (int k = 0; k < arity && status == OPQ_OK; k++)
        types[k] = operands[k]->type;
    if (status == OPQ_OK)
        status = opq_infer(op, types, arity, attrs, attr_count, given, &type, &compute);
    if (status == OPQ_OK)
        status = check_native(op, types, compute);
    if (status == OPQ_OK)
        status = opq_bound_check(ctx, op, &type);
    if (status == OPQ_OK)
        status = cast_operands(ctx, op, operands, arity, compute, casts);
    if (status == OPQ_OK) {
        const opq_op_info *info = opq_op_info_of(op);
        type.weak = 0;
        if (info->class_ == OPQ_CLASS_EWISE && (info->flags & OPQ_FLAG_CHECKED))
            status = check_divisor(op, &type, casts[1]);
        if (status == OPQ_OK)
            status = opq_value_new(ctx, op, &type, casts, arity, attrs, attr_count, out_value);
        release_all(casts, arity);
    }
    if (types != few_types)
        free(types);
    if (casts != few_casts)
        free(casts);
    if (status == OPQ_OK)
        atomic_fetch_add_explicit(&ctx->stats.ops_recorded, 1, memory_order_relaxed);
    return status;
}

/* Attributes with the reduction order filled in where a row has axes. */
opq_status opq_record(opq_ctx *ctx, opq_op op, opq_value *const *operands, int arity, const opq_attr *attrs,
                      int attr_count, opq_value **out_value)
{
    const opq_attr *axes = opq_attr_find(attrs, attr_count, OPQ_ATTR_axes);
    if (axes == NULL || opq_attr_find(attrs, attr_count, OPQ_ATTR_tree) || arity == 0 || attr_count >= OPQ_ATTR_COUNT)
        return record(ctx, op, NULL, operands, arity, attrs, attr_count, out_value);
    opq_attr with_tree[OPQ_ATTR_COUNT];
    memcpy(with_tree, attrs, (size_t)attr_count * sizeof *attrs);
    with_tree[attr_count] =
        (opq_attr){.key = OPQ_ATTR_tree, .i = opq_tree_for(operands[0]->type.rank, axes->ints, axes->count)};
    return record(ctx, op, NULL, operands, arity, with_tree, attr_count + 1, out_value);
}

void opq_products_set(opq_ctx *ctx, opq_products products) { atomic_store(&ctx->products, (int)products); }

opq_products opq_products_get(const opq_ctx *ctx) { return (opq_products)atomic_load(&ctx->products); }

/* Pairs of a step of products that go by such: as is set, or as the processor has an instruction for; 0: none do. */
static int pairs_wanted(const opq_ctx *ctx)
{
    const struct opq_cpu *cpu = opq_jit_cpu(ctx->runtime.jit);
    switch (opq_products_get(ctx)) {
    case OPQ_PRODUCTS_auto: break;
    case OPQ_PRODUCTS_chain: return 0;
    case OPQ_PRODUCTS_pairs: return 1;
    case OPQ_PRODUCTS_pairs16: return 16;
    }
    return opq_cpu_has(cpu, OPQ_LEAF_tiles) ? 16 : opq_cpu_has(cpu, OPQ_LEAF_pairs) ? 1 : 0;
}

/* Does it go by pairs? By what the graph says alone, whatever is fused and however it runs. */
static bool goes_by_pairs(const opq_type *a, const opq_type *b, bool transpose_a, bool transpose_b, bool rounded)
{
    if (a->rank < 2 || b->rank < 2)
        return false;
    int64_t m = a->size[a->rank - (transpose_a ? 1 : 2)], k = a->size[a->rank - (transpose_a ? 2 : 1)];
    int64_t n = b->size[b->rank - (transpose_b ? 2 : 1)], of_a = opq_type_count(a), of_b = opq_type_count(b);
    bool halves = a->dtype == OPQ_bf16 && b->dtype == OPQ_bf16;
    if (!halves && !rounded)
        return false;
    if (m > 1 && n > 1 && (double)m * (double)n * (double)k >= (double)opq_trees.pairs_work)
        return true;
    if (of_b == k * n)
        return n > 1 && k > 0 && of_a / k > 1 && (double)of_a * (double)n >= (double)opq_trees.pairs_work;
    return n > 1 && m > 1 && of_a == m * k && (double)m * (double)of_b >= (double)opq_trees.pairs_work;
}

int opq_products_pairs(const opq_ctx *ctx, const opq_type *a, const opq_type *b, bool transpose_a, bool transpose_b,
                       bool rounded)
{
    return goes_by_pairs(a, b, transpose_a, transpose_b, rounded) ? pairs_wanted(ctx) : 0;
}

opq_status opq_record_product(opq_ctx *ctx, opq_value *a, opq_value *b, bool transpose_a, bool transpose_b,
                              bool rounded, opq_value **out_value)
{
    opq_attr attrs[3];
    int count = 0, pairs = opq_products_pairs(ctx, &a->type, &b->type, transpose_a, transpose_b, rounded);
    if (pairs)
        attrs[count++] = (opq_attr){.key = OPQ_ATTR_pairs, .i = pairs};
    if (transpose_a)
        attrs[count++] = (opq_attr){.key = OPQ_ATTR_transpose_a, .i = 1};
    if (transpose_b)
        attrs[count++] = (opq_attr){.key = OPQ_ATTR_transpose_b, .i = 1};
    return opq_record(ctx, OPQ_OP_matmul, (opq_value *[]){a, b}, 2, attrs, count, out_value);
}

opq_status opq_record_typed(opq_ctx *ctx, opq_op op, const opq_type *type, opq_value *const *operands, int arity,
                            const opq_attr *attrs, int attr_count, opq_value **out_value)
{
    return record(ctx, op, type, operands, arity, attrs, attr_count, out_value);
}

opq_status opq_record_extern(opq_ctx *ctx, const char *key, void *payload, opq_value *const *operands, int arity,
                             const opq_type *result_types, int result_count, opq_value **out_values)
{
    opq_attr attrs[] = {{.key = OPQ_ATTR_key, .str = key}, {.key = OPQ_ATTR_result, .i = result_count}};
    opq_value *call = NULL;
    static const opq_type none = {.dtype = OPQ_raw8, .rank = 1};
    opq_status status =
        opq_value_new(ctx, OPQ_OP_extern, result_count ? &result_types[0] : &none, operands, arity, attrs, 2, &call);
    if (status != OPQ_OK) {
        if (ctx->host.release_payload)
            ctx->host.release_payload(ctx->host.self, payload);
        return status;
    }
    call->payload = payload;
    for (int i = 0; i < result_count && status == OPQ_OK; i++) {
        opq_attr result = {.key = OPQ_ATTR_result, .i = i};
        status = opq_value_new(ctx, OPQ_OP_extern_result, &result_types[i], &call, 1, &result, 1, &out_values[i]);
        if (status != OPQ_OK)
            release_all(out_values, i);
    }
    opq_value_release(call);
    if (status == OPQ_OK)
        atomic_fetch_add_explicit(&ctx->stats.ops_recorded, 1, memory_order_relaxed);
    return status;
}

opq_status opq_record_reshape(opq_ctx *ctx, opq_value *value, int rank, const int64_t *size, opq_value **out_value)
{
    if (rank > OPQ_RANK_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "reshape: %d dimensions, at most %d", rank, OPQ_RANK_MAX);
    opq_type type = opq_type_make((opq_dtype)value->type.dtype, rank, size);
    if (opq_shape_equal(&type, &value->type)) {
        opq_value_retain(value);
        *out_value = value;
        return OPQ_OK;
    }
    return opq_record_typed(ctx, OPQ_OP_reshape, &type, &value, 1, NULL, 0, out_value);
}

opq_status opq_record_expand(opq_ctx *ctx, opq_value *value, int rank, const int64_t *size, opq_value **out_value)
{
    if (rank > OPQ_RANK_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "expand: %d dimensions, at most %d", rank, OPQ_RANK_MAX);
    opq_type type = opq_type_make((opq_dtype)value->type.dtype, rank, size);
    if (opq_shape_equal(&type, &value->type)) {
        opq_value_retain(value);
        *out_value = value;
        return OPQ_OK;
    }
    return opq_record_typed(ctx, OPQ_OP_expand, &type, &value, 1, NULL, 0, out_value);
}

opq_status opq_record_reduce(opq_ctx *ctx, opq_op op, opq_value *const *operands, int arity, const int64_t *axes,
                             int axis_count, bool keepdim, opq_value **out_value)
{
    opq_attr attr = {.key = OPQ_ATTR_axes, .count = axis_count, .ints = axes};
    opq_value *kept;
    OPQ_TRY(opq_record(ctx, op, operands, arity, &attr, 1, &kept));
    if (keepdim) {
        *out_value = kept;
        return OPQ_OK;
    }
    int64_t size[OPQ_RANK_MAX];
    int rank = 0, next = 0;
    for (int d = 0; d < kept->type.rank; d++) {
        if (next < axis_count && axes[next] == d)
            next++;
        else
            size[rank++] = kept->type.size[d];
    }
    opq_status status = opq_record_reshape(ctx, kept, rank, size, out_value);
    opq_value_release(kept);
    return status;
}
