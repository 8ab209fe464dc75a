/* Builder helpers of the vector functions (math_*.c), and what those files share.
 *
 * Every value is a vector of e->lanes elements. The helpers keep the formulas readable: vfma(e, a,
 * b, c) is a * b + c with one rounding. They are static inline and unprefixed because only math_*.c
 * and philox.c include this file.
 *
 * Bits. Everything is built from correctly rounded IEEE operations and integer operations in a
 * fixed order, so a result depends on the argument alone: not on the host, the number of lanes or
 * the other lanes. Where AVX-512 has a faster instruction (scalef, two-register permutes), it is
 * used only with the same result. Estimates (rcp, rsqrt) are never used.
 *
 * NaN. vmin and vmax return the second operand when either is NaN, as the machine does: the
 * constant goes first.
 */
#ifndef OPAQUE_CODEGEN_MATH_H
#define OPAQUE_CODEGEN_MATH_H

#include "codegen_llvm/emit.h"
#include <assert.h>
#include <string.h>

/* ---- types and constants */

#define TYPE(name, scalar)                                                                                             \
    static inline LLVMTypeRef name(opq_emitter *e) { return LLVMVectorType(scalar(e->context), (unsigned)e->lanes); }
TYPE(f32_type, LLVMFloatTypeInContext)
TYPE(f64_type, LLVMDoubleTypeInContext)
TYPE(i32_type, LLVMInt32TypeInContext)
TYPE(i64_type, LLVMInt64TypeInContext)
#undef TYPE

#define OPQ_MAX_LANES 64

static inline LLVMValueRef splat(opq_emitter *e, LLVMValueRef scalar)
{
    LLVMValueRef elements[OPQ_MAX_LANES];
    assert(e->lanes <= OPQ_MAX_LANES);
    for (int i = 0; i < e->lanes; i++)
        elements[i] = scalar;
    return LLVMConstVector(elements, (unsigned)e->lanes);
}

static inline LLVMValueRef f32(opq_emitter *e, float value)
{
    return splat(e, LLVMConstReal(LLVMFloatTypeInContext(e->context), (double)value));
}

static inline LLVMValueRef f64(opq_emitter *e, double value)
{
    return splat(e, LLVMConstReal(LLVMDoubleTypeInContext(e->context), value));
}

static inline LLVMValueRef i32(opq_emitter *e, uint32_t value)
{
    return splat(e, LLVMConstInt(LLVMInt32TypeInContext(e->context), value, false));
}

static inline LLVMValueRef i64(opq_emitter *e, uint64_t value)
{
    return splat(e, LLVMConstInt(LLVMInt64TypeInContext(e->context), value, false));
}

/* ---- floating point, f32 or f64 alike */

#define BINARY(name, build)                                                                                            \
    static inline LLVMValueRef name(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)                                    \
    {                                                                                                                  \
        return build(e->builder, a, b, "");                                                                            \
    }
BINARY(vadd, LLVMBuildFAdd)
BINARY(vsub, LLVMBuildFSub)
BINARY(vmul, LLVMBuildFMul)
BINARY(vdiv, LLVMBuildFDiv)

static inline LLVMValueRef vneg(opq_emitter *e, LLVMValueRef a) { return LLVMBuildFNeg(e->builder, a, ""); }

/* An intrinsic that is overloaded on its (first) operand's type when `overloaded`. Only ones that
 * become instructions. */
static inline LLVMValueRef intrinsic(opq_emitter *e, const char *name, bool overloaded, LLVMValueRef *arguments,
                                     unsigned count)
{
    LLVMTypeRef type = LLVMTypeOf(arguments[0]);
    unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMValueRef callee = LLVMGetIntrinsicDeclaration(e->module, id, &type, overloaded);
    return LLVMBuildCall2(e->builder, LLVMGlobalGetValueType(callee), callee, arguments, count, "");
}

static inline LLVMValueRef vfma(opq_emitter *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c)
{
    return intrinsic(e, "llvm.fma", true, (LLVMValueRef[]){a, b, c}, 3);
}

#define UNARY(name, llvm_name)                                                                                         \
    static inline LLVMValueRef name(opq_emitter *e, LLVMValueRef a) { return intrinsic(e, llvm_name, true, &a, 1); }
UNARY(vsqrt, "llvm.sqrt")
UNARY(vabs, "llvm.fabs")
UNARY(vtrunc, "llvm.trunc")
UNARY(vround, "llvm.roundeven")
#undef UNARY

static inline LLVMValueRef vcopysign(opq_emitter *e, LLVMValueRef magnitude, LLVMValueRef sign)
{
    return intrinsic(e, "llvm.copysign", true, (LLVMValueRef[]){magnitude, sign}, 2);
}

static inline LLVMValueRef vcmp(opq_emitter *e, LLVMRealPredicate predicate, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildFCmp(e->builder, predicate, a, b, "");
}

static inline LLVMValueRef vselect(opq_emitter *e, LLVMValueRef mask, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildSelect(e->builder, mask, a, b, "");
}

static inline LLVMValueRef vmin(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    return vselect(e, vcmp(e, LLVMRealOLT, a, b), a, b);
}

static inline LLVMValueRef vmax(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    return vselect(e, vcmp(e, LLVMRealOGT, a, b), a, b);
}

/* Polynomials by Horner's rule with FMAs, lowest power first. */
static inline LLVMValueRef poly_f32(opq_emitter *e, const float *table, int count, LLVMValueRef x)
{
    LLVMValueRef y = f32(e, table[count - 1]);
    for (int i = count - 2; i >= 0; i--)
        y = vfma(e, y, x, f32(e, table[i]));
    return y;
}

static inline LLVMValueRef poly_f64(opq_emitter *e, const double *table, int count, LLVMValueRef x)
{
    LLVMValueRef y = f64(e, table[count - 1]);
    for (int i = count - 2; i >= 0; i--)
        y = vfma(e, y, x, f64(e, table[i]));
    return y;
}

#define POLY32(e, table, x) poly_f32(e, table, (int)(sizeof(table) / sizeof((table)[0])), x)
#define POLY64(e, table, x) poly_f64(e, table, (int)(sizeof(table) / sizeof((table)[0])), x)

/* ---- integers and masks */

BINARY(iadd, LLVMBuildAdd)
BINARY(isub, LLVMBuildSub)
BINARY(iand, LLVMBuildAnd)
BINARY(ior, LLVMBuildOr)
BINARY(ixor, LLVMBuildXor)
BINARY(ishl, LLVMBuildShl)
BINARY(ilshr, LLVMBuildLShr)
BINARY(iashr, LLVMBuildAShr)
#undef BINARY

static inline LLVMValueRef inot(opq_emitter *e, LLVMValueRef a) { return LLVMBuildNot(e->builder, a, ""); }

static inline LLVMValueRef icmp(opq_emitter *e, LLVMIntPredicate predicate, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildICmp(e->builder, predicate, a, b, "");
}

/* Is any lane of the mask set? A scalar i1. */
static inline LLVMValueRef any(opq_emitter *e, LLVMValueRef mask)
{
    LLVMTypeRef bits = LLVMIntTypeInContext(e->context, (unsigned)e->lanes);
    LLVMValueRef word = LLVMBuildBitCast(e->builder, mask, bits, "");
    return LLVMBuildICmp(e->builder, LLVMIntNE, word, LLVMConstInt(bits, 0, false), "");
}

/* ---- conversions */

#define CONVERT(name, build, type)                                                                                     \
    static inline LLVMValueRef name(opq_emitter *e, LLVMValueRef a) { return build(e->builder, a, type(e), ""); }
CONVERT(as_f32, LLVMBuildBitCast, f32_type)
CONVERT(as_f64, LLVMBuildBitCast, f64_type)
CONVERT(as_i32, LLVMBuildBitCast, i32_type)
CONVERT(as_i64, LLVMBuildBitCast, i64_type)
CONVERT(widen, LLVMBuildFPExt, f64_type)
CONVERT(narrow, LLVMBuildFPTrunc, f32_type)
CONVERT(int_to_f32, LLVMBuildSIToFP, f32_type)
CONVERT(int_to_f64, LLVMBuildSIToFP, f64_type)
CONVERT(f64_to_i32, LLVMBuildFPToSI, i32_type) /* poison where the value does not fit */
CONVERT(i64_to_i32, LLVMBuildTrunc, i32_type)
CONVERT(i32_to_i64, LLVMBuildZExt, i64_type)
#undef CONVERT

/* Appends a block to the function being built. */
static inline LLVMBasicBlockRef new_block(opq_emitter *e, const char *name)
{
    return LLVMAppendBasicBlockInContext(e->context, e->function, name);
}

/* `fast`, but slow(x) in the lanes of `rare`, in a block of its own that is skipped without them. */
static inline LLVMValueRef with_slow_path(opq_emitter *e, LLVMValueRef x, LLVMValueRef fast, LLVMValueRef rare,
                                          LLVMValueRef (*slow)(opq_emitter *, LLVMValueRef))
{
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->builder);
    LLVMBasicBlockRef slow_block = new_block(e, "math.slow"), done = new_block(e, "math.done");
    LLVMBuildCondBr(e->builder, any(e, rare), slow_block, done);

    LLVMPositionBuilderAtEnd(e->builder, slow_block);
    LLVMValueRef y = vselect(e, rare, slow(e, x), fast);
    LLVMBuildBr(e->builder, done);

    LLVMPositionBuilderAtEnd(e->builder, done);
    LLVMValueRef result = LLVMBuildPhi(e->builder, LLVMTypeOf(fast), "");
    LLVMAddIncoming(result, (LLVMValueRef[]){fast, y}, (LLVMBasicBlockRef[]){entry, slow_block}, 2);
    return result;
}

/* ---- shared by the files */

/* table[index & 31], f32 lanes from i32 lanes; for tables that live in registers across a loop. */
LLVMValueRef opq_math_lookup32(opq_emitter *e, const float table[32], LLVMValueRef index);

/* exp and expm1 in f64 for results in f32: relative error below 2^-36; |x| < 700. NaN stays NaN. */
LLVMValueRef opq_math_exp_wide(opq_emitter *e, LLVMValueRef x);
LLVMValueRef opq_math_expm1_wide(opq_emitter *e, LLVMValueRef x);

/* x = 2^out_k * m with m in [sqrt(1/2), sqrt(2)): gives k and log(m) in f64, relative error below
 * 2^-43. x is positive, finite and normal in f64, as every positive f32 is. */
void opq_math_log_wide(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_k, LLVMValueRef *out_log_m);
/* log(1 + x) in f64 for finite x > -1, relative error below 2^-40. */
LLVMValueRef opq_math_log1p_wide(opq_emitter *e, LLVMValueRef x);

/* The parts of the functions of f64; formulas and accuracy: opaque/scalar_math_f64.h. k and f = m - 1 of positive x = 2^k m. */
LLVMValueRef opq_math_log_reduce_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_k);
/* p * 2^n with one rounding, p near 1, n in [-1077, 1024], t = OPQ_MAGIC_F64 + OPQ_EXP_BIAS_F64 + n */
LLVMValueRef opq_math_exp_scale_f64(opq_emitter *e, LLVMValueRef p, LLVMValueRef t);

#endif
