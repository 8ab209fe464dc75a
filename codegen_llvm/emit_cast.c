/* Casts between computing dtypes, and the way to and from memory.
 *
 * Floats out of an integer's range: LLVM's fptosi is poison there, so such lanes are cut out before and set after.
 * Results are those of cvttsd2si: the smallest integer of 64 bits (i64), or of 32 bits, whose low bits are i16's, i8's
 * and u8's result. Only u8 of an f64 takes the low bits of the 64; for an f32 both agree, since what exceeds 32 bits is
 * a multiple of 256.
 *
 * bf16 is rounded in integers: without AVX512-BF16 LLVM makes 16 calls of a vector fptrunc, and with it flushes
 * denormals.
 */
#include "codegen_llvm/emit_ops.h"

static LLVMValueRef bits_of(opq_emitter *e, LLVMValueRef x, int bits)
{
    return LLVMBuildBitCast(e->builder, x, opq_vector_of(e, LLVMIntTypeInContext(e->context, (unsigned)bits)), "");
}

/* Truncation to 32 or 64 bits. Above `low` is above the smallest integer or rounds to it, which gives the same result.
 */
static LLVMValueRef float_to_int(opq_emitter *e, LLVMValueRef x, int bits)
{
    LLVMTypeRef from = LLVMTypeOf(x), to = opq_vector_of(e, LLVMIntTypeInContext(e->context, (unsigned)bits));
    double low = bits == 32 ? -0x1p31 - 1 : -0x1p63 - 1, high = bits == 32 ? 0x1p31 : 0x1p63;
    LLVMValueRef above = LLVMBuildFCmp(e->builder, LLVMRealOGT, x, opq_splat_float(e, from, low), "");
    LLVMValueRef below = LLVMBuildFCmp(e->builder, LLVMRealOLT, x, opq_splat_float(e, from, high), "");
    LLVMValueRef fits = LLVMBuildAnd(e->builder, above, below, "");
    LLVMValueRef whole = LLVMBuildFPToSI(e->builder, opq_select(e, fits, x, LLVMConstNull(from)), to, "");
    return opq_select(e, fits, whole, opq_splat_int(e, to, (int64_t)(UINT64_MAX << (bits - 1))));
}

static LLVMValueRef from_float(opq_emitter *e, opq_dtype from, opq_dtype to, LLVMValueRef x)
{
    LLVMTypeRef type = opq_vector_type(e, to);
    switch (opq_dtype_kind_of(to)) {
    case OPQ_KIND_BOOL: return LLVMBuildFCmp(e->builder, LLVMRealUNE, x, LLVMConstNull(LLVMTypeOf(x)), "");
    case OPQ_KIND_UINT:
        x = float_to_int(e, x, from == OPQ_f64 ? 64 : 32);
        return LLVMBuildTrunc(e->builder, x, type, "");
    case OPQ_KIND_INT:
        x = float_to_int(e, x, to == OPQ_i64 ? 64 : 32);
        return LLVMBuildIntCast2(e->builder, x, type, true, "");
    case OPQ_KIND_FLOAT:
    case OPQ_KIND_RAW: break;
    }
    return LLVMBuildFPCast(e->builder, x, type, "");
}

LLVMValueRef opq_emit_cast(opq_emitter *e, opq_dtype from, opq_dtype to, LLVMValueRef x)
{
    LLVMTypeRef type = opq_vector_type(e, to);
    if (LLVMTypeOf(x) == type)
        return x;
    if (opq_is_float(x))
        return from_float(e, from, to, x);
    bool is_signed = opq_dtype_kind_of(from) == OPQ_KIND_INT;
    if (to == OPQ_bool)
        return LLVMBuildICmp(e->builder, LLVMIntNE, x, LLVMConstNull(LLVMTypeOf(x)), "");
    if (opq_dtype_kind_of(to) == OPQ_KIND_FLOAT)
        return LLVMBuildCast(e->builder, is_signed ? LLVMSIToFP : LLVMUIToFP, x, type, "");
    return LLVMBuildIntCast2(e->builder, x, type, is_signed, "");
}

/* ---- f16, bf16 --------------------------------------------------------------------------------------------------- */

/* The upper half of the result is the bf16. Half of the last kept place less one, plus one if that place is odd; NaN is
 * made quiet instead, because the sum could carry it into infinity. */
static LLVMValueRef bf16_bits(opq_emitter *e, LLVMValueRef x)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef bits = bits_of(e, x, 32);
    LLVMTypeRef type = LLVMTypeOf(bits);
    LLVMValueRef odd =
        LLVMBuildAnd(b, LLVMBuildLShr(b, bits, opq_splat_int(e, type, 16), ""), opq_splat_int(e, type, 1), "");
    LLVMValueRef rounded = LLVMBuildAdd(b, LLVMBuildAdd(b, bits, opq_splat_int(e, type, 0x7fff), ""), odd, "");
    LLVMValueRef quiet = LLVMBuildOr(b, bits, opq_splat_int(e, type, 0x400000), "");
    return opq_select(e, LLVMBuildFCmp(b, LLVMRealUNO, x, x, ""), quiet, rounded);
}

LLVMValueRef opq_emit_widen(opq_emitter *e, opq_dtype dtype, LLVMValueRef memory)
{
    LLVMBuilderRef b = e->builder;
    if (dtype == OPQ_bool)
        return LLVMBuildICmp(b, LLVMIntNE, memory, LLVMConstNull(LLVMTypeOf(memory)), "");
    if (dtype == OPQ_f16) {
        LLVMTypeRef half = opq_vector_of(e, LLVMHalfTypeInContext(e->context));
        return LLVMBuildFPExt(b, LLVMBuildBitCast(b, memory, half, ""), opq_vector_type(e, OPQ_f32), "");
    }
    if (dtype == OPQ_bf16) {
        LLVMTypeRef wide = opq_vector_type(e, OPQ_i32);
        LLVMValueRef bits = LLVMBuildShl(b, LLVMBuildZExt(b, memory, wide, ""), opq_splat_int(e, wide, 16), "");
        return LLVMBuildBitCast(b, bits, opq_vector_type(e, OPQ_f32), "");
    }
    return memory;
}

LLVMValueRef opq_emit_narrow(opq_emitter *e, opq_dtype dtype, LLVMValueRef x)
{
    LLVMBuilderRef b = e->builder;
    LLVMTypeRef type = opq_vector_of(e, opq_memory_type(e, dtype));
    if (dtype == OPQ_bool)
        return LLVMBuildZExt(b, x, type, "");
    if (dtype == OPQ_f16)
        return LLVMBuildBitCast(b, LLVMBuildFPTrunc(b, x, opq_vector_of(e, LLVMHalfTypeInContext(e->context)), ""),
                                type, "");
    if (dtype == OPQ_bf16) {
        LLVMValueRef bits = bf16_bits(e, x);
        return LLVMBuildTrunc(b, LLVMBuildLShr(b, bits, opq_splat_int(e, LLVMTypeOf(bits), 16), ""), type, "");
    }
    return x;
}

LLVMValueRef opq_emit_round(opq_emitter *e, opq_dtype narrow, LLVMValueRef x)
{
    if (narrow != OPQ_bf16)
        return opq_emit_widen(e, narrow, opq_emit_narrow(e, narrow, x));
    LLVMValueRef bits = bf16_bits(e, x);
    LLVMValueRef cut = LLVMBuildAnd(e->builder, bits, opq_splat_int(e, LLVMTypeOf(bits), (int64_t)0xffff0000), "");
    return LLVMBuildBitCast(e->builder, cut, LLVMTypeOf(x), "");
}
