// Vectors that are written like numbers: lanes<float> is a value of e->lanes floats in the module being made, and a + b appends the
// instruction that adds. math.cpp reads opaque/math_*.def with these types.
//
// A constant knows no emitter until it meets a value that does; then it is a splat of it. So `x + 1` and `f64 low = 0` mean what they
// mean in C. Only correctly rounded instructions, without fast-math flags: LLVM folds nothing that changes a bit.
#ifndef OPAQUE_CODEGEN_LANES_H
#define OPAQUE_CODEGEN_LANES_H

// What emit.h includes has templates in C++, which its extern "C" must not see.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string.h>
#include <type_traits>
extern "C" {
#include "codegen_llvm/emit_ops.h"
}

namespace
{

template <typename T> LLVMTypeRef scalar_type(opq_emitter *e)
{
    if constexpr (std::is_same_v<T, float>)
        return LLVMFloatTypeInContext(e->context);
    else if constexpr (std::is_same_v<T, double>)
        return LLVMDoubleTypeInContext(e->context);
    else
        return LLVMIntTypeInContext(e->context, 8 * sizeof(T));
}

template <typename T> LLVMTypeRef vector_type(opq_emitter *e) { return opq_vector_of(e, scalar_type<T>(e)); }

// The instruction that makes To of From; a signed integer and its unsigned twin are one.
template <typename From, typename To> LLVMValueRef converted(opq_emitter *e, LLVMValueRef x)
{
    constexpr bool from_float = std::is_floating_point_v<From>, to_float = std::is_floating_point_v<To>;
    constexpr bool wider = sizeof(To) > sizeof(From);
    static_assert(from_float == to_float || (std::is_signed_v<From> && std::is_signed_v<To>), "cast to i32 between");
    if constexpr (sizeof(To) == sizeof(From) && from_float == to_float)
        return x;
    else if constexpr (from_float && to_float)
        return LLVMBuildCast(e->builder, wider ? LLVMFPExt : LLVMFPTrunc, x, vector_type<To>(e), "");
    else if constexpr (to_float)
        return LLVMBuildSIToFP(e->builder, x, vector_type<To>(e), "");
    else if constexpr (from_float)
        return LLVMBuildFPToSI(e->builder, x, vector_type<To>(e), ""); // poison where the value does not fit
    else
        return LLVMBuildCast(e->builder, wider ? LLVMZExt : LLVMTrunc, x, vector_type<To>(e), "");
}

// bool: what comparisons give, <lanes x i1>
template <typename T> struct lanes {
    static constexpr bool is_float = std::is_floating_point_v<T>;
    opq_emitter *e = nullptr; // of a value
    LLVMValueRef v = nullptr;
    T constant{}; // where there is no value

    lanes() = default;
    lanes(opq_emitter *emitter, LLVMValueRef value) : e(emitter), v(value) {}
    lanes(T value)
        requires(!std::is_same_v<T, bool>)
        : constant(value)
    {
    }
    template <typename From> explicit lanes(lanes<From> x) : e(x.e), v(converted<From, T>(x.e, x.v)) {}

    LLVMValueRef in(opq_emitter *emitter) const
    {
        if (v)
            return v;
        LLVMTypeRef type = vector_type<T>(emitter);
        return is_float ? opq_splat_float(emitter, type, (double)constant)
                        : opq_splat_int(emitter, type, (int64_t)constant);
    }

    static lanes made(LLVMOpcode code, lanes a, lanes b)
    {
        opq_emitter *e = a.e ? a.e : b.e;
        return {e, LLVMBuildBinOp(e->builder, code, a.in(e), b.in(e), "")};
    }
    static lanes<bool> compared(LLVMRealPredicate real, LLVMIntPredicate integer, lanes a, lanes b)
    {
        opq_emitter *e = a.e ? a.e : b.e;
        return {e, is_float ? LLVMBuildFCmp(e->builder, real, a.in(e), b.in(e), "")
                            : LLVMBuildICmp(e->builder, integer, a.in(e), b.in(e), "")};
    }

    friend lanes operator+(lanes a, lanes b) { return made(is_float ? LLVMFAdd : LLVMAdd, a, b); }
    friend lanes operator-(lanes a, lanes b) { return made(is_float ? LLVMFSub : LLVMSub, a, b); }
    friend lanes operator*(lanes a, lanes b) { return made(is_float ? LLVMFMul : LLVMMul, a, b); }
    friend lanes operator/(lanes a, lanes b) { return made(LLVMFDiv, a, b); }
    friend lanes operator-(lanes a) { return {a.e, LLVMBuildFNeg(a.e->builder, a.v, "")}; }
    friend lanes operator&(lanes a, lanes b) { return made(LLVMAnd, a, b); }
    friend lanes operator|(lanes a, lanes b) { return made(LLVMOr, a, b); }
    friend lanes operator^(lanes a, lanes b) { return made(LLVMXor, a, b); }
    friend lanes operator<<(lanes a, lanes b) { return made(LLVMShl, a, b); }
    friend lanes operator>>(lanes a, lanes b) { return made(std::is_signed_v<T> ? LLVMAShr : LLVMLShr, a, b); }
    friend lanes<bool> operator&&(lanes a, lanes b) { return made(LLVMAnd, a, b); }
    friend lanes<bool> operator||(lanes a, lanes b) { return made(LLVMOr, a, b); }

    static constexpr bool is_signed = std::is_signed_v<T>;
    friend lanes<bool> operator==(lanes a, lanes b) { return compared(LLVMRealOEQ, LLVMIntEQ, a, b); }
    friend lanes<bool> operator!=(lanes a, lanes b) { return compared(LLVMRealUNE, LLVMIntNE, a, b); }
    friend lanes<bool> operator<(lanes a, lanes b)
    {
        return compared(LLVMRealOLT, is_signed ? LLVMIntSLT : LLVMIntULT, a, b);
    }
    friend lanes<bool> operator>(lanes a, lanes b)
    {
        return compared(LLVMRealOGT, is_signed ? LLVMIntSGT : LLVMIntUGT, a, b);
    }
    friend lanes<bool> operator<=(lanes a, lanes b)
    {
        return compared(LLVMRealOLE, is_signed ? LLVMIntSLE : LLVMIntULE, a, b);
    }
    friend lanes<bool> operator>=(lanes a, lanes b)
    {
        return compared(LLVMRealOGE, is_signed ? LLVMIntSGE : LLVMIntUGE, a, b);
    }
    friend lanes<bool> isunordered(lanes a, lanes b) { return compared(LLVMRealUNO, LLVMIntNE, a, b); }

    friend lanes opq_select(lanes<bool> condition, lanes yes, lanes no)
    {
        opq_emitter *e = condition.e;
        return {e, LLVMBuildSelect(e->builder, condition.v, yes.in(e), no.in(e), "")};
    }
};

using f32 = lanes<float>;
using f64 = lanes<double>;
using i32 = lanes<int32_t>;
using u32 = lanes<uint32_t>;
using u64 = lanes<uint64_t>;
using mask = lanes<bool>;

// A comparison is turned round itself, which is the instruction that one would write.
inline mask operator!(mask a)
{
    if (LLVMIsAFCmpInst(a.v)) {
        const LLVMRealPredicate inverse = (LLVMRealPredicate)(LLVMRealPredicateTrue - LLVMGetFCmpPredicate(a.v));
        return {a.e, LLVMBuildFCmp(a.e->builder, inverse, LLVMGetOperand(a.v, 0), LLVMGetOperand(a.v, 1), "")};
    }
    return {a.e, LLVMBuildNot(a.e->builder, a.v, "")};
}

// ---- functions: intrinsics of one vector type, and only ones that become instructions

template <typename T, typename... Rest> lanes<T> intrinsic(const char *name, lanes<T> first, Rest... rest)
{
    opq_emitter *e = first.e;
    ((e = e ? e : rest.e), ...);
    LLVMValueRef arguments[] = {first.in(e), rest.in(e)...};
    LLVMTypeRef type = LLVMTypeOf(arguments[0]);
    return {e, opq_intrinsic(e, name, &type, 1, arguments, 1 + (int)sizeof...(rest))};
}

inline f32 fmaf(f32 a, f32 b, f32 c) { return intrinsic("llvm.fma", a, b, c); }
inline f64 fma(f64 a, f64 b, f64 c) { return intrinsic("llvm.fma", a, b, c); }
inline f32 fabsf(f32 x) { return intrinsic("llvm.fabs", x); }
inline f64 fabs(f64 x) { return intrinsic("llvm.fabs", x); }
inline f32 sqrtf(f32 x) { return intrinsic("llvm.sqrt", x); }
inline f64 sqrt(f64 x) { return intrinsic("llvm.sqrt", x); }
inline f32 truncf(f32 x) { return intrinsic("llvm.trunc", x); }
inline f64 trunc(f64 x) { return intrinsic("llvm.trunc", x); }
inline f64 rint(f64 x) { return intrinsic("llvm.roundeven", x); }
inline f32 copysignf(f32 magnitude, f32 sign) { return intrinsic("llvm.copysign", magnitude, sign); }
inline f64 copysign(f64 magnitude, f64 sign) { return intrinsic("llvm.copysign", magnitude, sign); }

template <typename To, typename From> lanes<To> same_bits(lanes<From> x)
{
    return {x.e, LLVMBuildBitCast(x.e->builder, x.v, vector_type<To>(x.e), "")};
}

inline u32 opq_f32_bits(f32 x) { return same_bits<uint32_t>(x); }
inline f32 opq_f32_of_bits(u32 x) { return same_bits<float>(x); }
inline u64 opq_f64_bits(f64 x) { return same_bits<uint64_t>(x); }
inline f64 opq_f64_of_bits(u64 x) { return same_bits<double>(x); }

// ---- control

// Is any lane of the mask set? A scalar i1.
inline LLVMValueRef any(mask x)
{
    LLVMTypeRef bits = LLVMIntTypeInContext(x.e->context, (unsigned)x.e->lanes);
    LLVMValueRef word = LLVMBuildBitCast(x.e->builder, x.v, bits, "");
    return LLVMBuildICmp(x.e->builder, LLVMIntNE, word, LLVMConstNull(bits), "");
}

inline LLVMBasicBlockRef new_block(opq_emitter *e, const char *name)
{
    return LLVMAppendBasicBlockInContext(e->context, e->function, name);
}

// `usual`, but slow() in the lanes of `rare`, in a block of its own that is skipped without them
template <typename T, typename Slow> lanes<T> with_slow_path(mask rare, Slow slow, lanes<T> usual)
{
    opq_emitter *e = rare.e;
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->builder);
    LLVMBasicBlockRef slow_block = new_block(e, "math.slow"), done = new_block(e, "math.done");
    LLVMBuildCondBr(e->builder, any(rare), slow_block, done);

    LLVMPositionBuilderAtEnd(e->builder, slow_block);
    LLVMValueRef values[] = {usual.v, opq_select(rare, slow(), usual).v};
    LLVMBasicBlockRef from[] = {entry, LLVMGetInsertBlock(e->builder)};
    LLVMBuildBr(e->builder, done);

    LLVMPositionBuilderAtEnd(e->builder, done);
    LLVMValueRef result = LLVMBuildPhi(e->builder, LLVMTypeOf(usual.v), "");
    LLVMAddIncoming(result, values, from, 2);
    return {e, result};
}

} // namespace

#endif
