/* Vector values: types, constants, splats, shuffles, intrinsics. */
#include "codegen_llvm/emit_value.h"

#include <string.h>

/* ---- types ------------------------------------------------------------------------------------------------------- */

LLVMTypeRef opq_lane_type(const opq_emitter *e, opq_dtype dtype)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_BOOL: return LLVMInt1TypeInContext(e->context);
    case OPQ_KIND_UINT:
    case OPQ_KIND_INT:
    case OPQ_KIND_RAW: return LLVMIntTypeInContext(e->context, 8 * (unsigned)opq_dtype_bytes(dtype));
    case OPQ_KIND_FLOAT:
        return dtype == OPQ_f64 ? LLVMDoubleTypeInContext(e->context) : LLVMFloatTypeInContext(e->context);
    }
    return NULL;
}

LLVMTypeRef opq_memory_type(const opq_emitter *e, opq_dtype dtype)
{
    if (dtype == OPQ_f32 || dtype == OPQ_f64)
        return opq_lane_type(e, dtype);
    return LLVMIntTypeInContext(e->context, 8 * (unsigned)opq_dtype_bytes(dtype));
}

LLVMTypeRef opq_vector_of(const opq_emitter *e, LLVMTypeRef lane) { return LLVMVectorType(lane, (unsigned)e->lanes); }

LLVMTypeRef opq_vector_type(const opq_emitter *e, opq_dtype dtype) { return opq_vector_of(e, opq_lane_type(e, dtype)); }

static LLVMTypeKind lane_kind(LLVMValueRef vector) { return LLVMGetTypeKind(LLVMGetElementType(LLVMTypeOf(vector))); }

bool opq_is_float(LLVMValueRef vector) { return lane_kind(vector) != LLVMIntegerTypeKind; }

bool opq_is_bool(LLVMValueRef vector) { return !opq_is_float(vector) && opq_lane_bits(vector) == 1; }

int opq_lane_bits(LLVMValueRef vector)
{
    switch (lane_kind(vector)) {
    case LLVMFloatTypeKind: return 32;
    case LLVMDoubleTypeKind: return 64;
    default: /* LLVM's enum: vectors here hold nothing else */
        return (int)LLVMGetIntTypeWidth(LLVMGetElementType(LLVMTypeOf(vector)));
    }
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

LLVMValueRef opq_int(const opq_emitter *e, int bits, int64_t value)
{
    return LLVMConstInt(LLVMIntTypeInContext(e->context, (unsigned)bits), (unsigned long long)value, true);
}

LLVMValueRef opq_i64(const opq_emitter *e, int64_t value) { return opq_int(e, 64, value); }

static LLVMValueRef repeat(const opq_emitter *e, LLVMValueRef constant)
{
    LLVMValueRef lanes[64];
    for (int i = 0; i < e->lanes; i++)
        lanes[i] = constant;
    return LLVMConstVector(lanes, (unsigned)e->lanes);
}

LLVMValueRef opq_splat_int(opq_emitter *e, LLVMTypeRef vector, int64_t value)
{
    return repeat(e, LLVMConstInt(LLVMGetElementType(vector), (unsigned long long)value, true));
}

LLVMValueRef opq_splat_float(opq_emitter *e, LLVMTypeRef vector, double value)
{
    return repeat(e, LLVMConstReal(LLVMGetElementType(vector), value));
}

LLVMValueRef opq_splat_number(opq_emitter *e, opq_dtype dtype, opq_number value)
{
    LLVMTypeRef type = opq_vector_type(e, dtype);
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        return opq_splat_float(e, type, value.f);
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_BOOL)
        return opq_splat_int(e, type, value.i != 0);
    return opq_splat_int(e, type, value.i);
}

LLVMValueRef opq_lane_numbers(opq_emitter *e, int bits)
{
    LLVMValueRef lanes[64];
    for (int i = 0; i < e->lanes; i++)
        lanes[i] = opq_int(e, bits, i);
    return LLVMConstVector(lanes, (unsigned)e->lanes);
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

LLVMValueRef opq_splat(opq_emitter *e, LLVMValueRef scalar)
{
    LLVMTypeRef type = opq_vector_of(e, LLVMTypeOf(scalar));
    LLVMTypeRef i32 = LLVMInt32TypeInContext(e->context);
    LLVMValueRef first = LLVMBuildInsertElement(e->builder, LLVMGetPoison(type), scalar, LLVMConstInt(i32, 0, false), "");
    return LLVMBuildShuffleVector(e->builder, first, LLVMGetPoison(type), LLVMConstNull(opq_vector_of(e, i32)), "");
}

LLVMValueRef opq_lane(opq_emitter *e, LLVMValueRef vector, int lane)
{
    return LLVMBuildExtractElement(e->builder, vector, opq_int(e, 32, lane), "");
}

LLVMValueRef opq_select(opq_emitter *e, LLVMValueRef condition, LLVMValueRef yes, LLVMValueRef no)
{
    return LLVMBuildSelect(e->builder, condition, yes, no, "");
}

LLVMValueRef opq_intrinsic(opq_emitter *e, const char *name, LLVMTypeRef *types, int type_count, LLVMValueRef *args,
                           int arg_count)
{
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMValueRef function = LLVMGetIntrinsicDeclaration(e->module, id, types, (size_t)type_count);
    return LLVMBuildCall2(e->builder, LLVMGlobalGetValueType(function), function, args, (unsigned)arg_count, "");
}

LLVMValueRef opq_fma(opq_emitter *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    LLVMTypeRef type = LLVMTypeOf(a);
    LLVMValueRef args[3] = {a, b, c};
    if (!opq_is_float(a))
        return LLVMBuildAdd(e->builder, LLVMBuildMul(e->builder, a, b, ""), c, "");
    return opq_intrinsic(e, "llvm.fma", &type, 1, args, 3);
}
