/* log, log2, log10, log1p, and the f64 logarithms that other files build on.
 *
 * x = 2^k m, with k and m cut out of the bits in integer arithmetic: subtracting the bits of the
 * lowest m first makes the exponent field itself count from there, so no comparison is needed to
 * centre m around 1.
 *
 * log is in f32 throughout, for speed. The others go through f64, where log(m) = 2
 * atanh((m-1)/(m+1)) has a short series.
 */
#include "codegen_llvm/math.h"
#include "opaque/math_tables.h"
#include <math.h>

#define LN2_HIGH32 0x1.62e4p-1f
#define LN2_LOW32 0x1.7f7d1cp-20f
#define LN2 0x1.62e42fefa39efp-1
#define LOG2_E 0x1.71547652b82fep0
#define LOG10_E 0x1.bcb7b1526e50ep-2
#define LOG10_2 0x1.34413509f79ffp-2

/* `y` where x is positive and finite; else what every logarithm gives there: log(0) = -inf, log(<0)
 * = NaN, inf and NaN as is. */
static LLVMValueRef fix_domain(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef inside = icmp(e, LLVMIntULT, isub(e, as_i32(e, x), i32(e, 1)), i32(e, 0x7f7fffff));
    LLVMValueRef negative = vcmp(e, LLVMRealOLT, x, f32(e, 0.0f));
    LLVMValueRef outside = vselect(e, negative, f32(e, NAN), x);
    outside = vselect(e, vcmp(e, LLVMRealOEQ, x, f32(e, 0.0f)), f32(e, -INFINITY), outside);
    return vselect(e, inside, y, outside);
}

/* k ln2 + log(1 + r), r in [-1/4, 1/2]: log(1 + r) = r - r^2/2 + r^3 q(r). */
static LLVMValueRef log_core(opq_emitter *e, LLVMValueRef k, LLVMValueRef r)
{
    LLVMValueRef r2 = vmul(e, r, r);
    LLVMValueRef q = vmul(e, POLY32(e, LOG32, r), r);
    q = vfma(e, q, r2, vmul(e, k, f32(e, LN2_LOW32)));
    q = vfma(e, r2, f32(e, -0.5f), q);
    return vfma(e, k, f32(e, LN2_HIGH32), vadd(e, r, q));
}

/* The same k and m by vgetexp and vgetmant, for <16 x float>. They take denormals as they are and
 * give -inf for 0, inf for inf and NaN below 0, so no fix is needed afterwards. */
static LLVMValueRef log_avx512(opq_emitter *e, LLVMValueRef x)
{
    LLVMTypeRef i32_scalar = LLVMInt32TypeInContext(e->context);
    LLVMValueRef all = LLVMConstInt(LLVMInt16TypeInContext(e->context), 0xffff, false);
    LLVMValueRef rounding = LLVMConstInt(i32_scalar, 4, false);          /* as in MXCSR */
    LLVMValueRef interval = LLVMConstInt(i32_scalar, 2 << 2 | 3, false); /* NaN below 0; [3/4, 3/2) */
    LLVMValueRef zero = f32(e, 0.0f), one = f32(e, 1.0f);
    LLVMValueRef m = intrinsic(e, "llvm.x86.avx512.mask.getmant.ps.512", false,
                               (LLVMValueRef[]){x, interval, zero, all, rounding}, 5);
    LLVMValueRef k =
        intrinsic(e, "llvm.x86.avx512.mask.getexp.ps.512", false, (LLVMValueRef[]){x, zero, all, rounding}, 4);
    k = vselect(e, vcmp(e, LLVMRealOLT, m, one), vadd(e, k, one), k);
    return log_core(e, k, vsub(e, m, one));
}

/* log of the positive normal number with these bits, less `power` times log 2 */
static LLVMValueRef log_of_bits(opq_emitter *e, LLVMValueRef bits, float power)
{
    LLVMValueRef k_shifted = iand(e, isub(e, bits, i32(e, 0x3f400000)), i32(e, 0xff800000)); /* the bits of 3/4 */
    LLVMValueRef r = vsub(e, as_f32(e, isub(e, bits, k_shifted)), f32(e, 1.0f));
    LLVMValueRef k = int_to_f32(e, iashr(e, k_shifted, i32(e, 23)));
    return log_core(e, power != 0 ? vsub(e, k, f32(e, power)) : k, r);
}

/* A denormal is its own bits times 2^-149; the conversion is exact and needs no slow denormal product. */
static LLVMValueRef slow_log(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef scaled = int_to_f32(e, as_i32(e, x));
    return fix_domain(e, x, log_of_bits(e, as_i32(e, scaled), 149));
}

LLVMValueRef opq_math_log(opq_emitter *e, LLVMValueRef x)
{
    if (e->cpu->avx512 && e->lanes == 16)
        return log_avx512(e, x);
    LLVMValueRef bits = as_i32(e, x);
    LLVMValueRef rare = icmp(e, LLVMIntUGE, isub(e, bits, i32(e, 0x00800000)), i32(e, 0x7f000000));
    return with_slow_path(e, x, log_of_bits(e, bits, 0), rare, slow_log);
}

/* The exponent of x relative to [sqrt(1/2), sqrt(2)), as f64, and x's bits with that exponent
 * removed. */
static LLVMValueRef split_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_k)
{
    const uint64_t one = 1023ull << 52, low = 0x3fe6a09e667f3bcd; /* the bits of 1 and of sqrt(1/2) */
    LLVMValueRef bits = as_i64(e, x);
    LLVMValueRef biased = ilshr(e, iadd(e, bits, i64(e, one - low)), i64(e, 52));
    LLVMValueRef k = i64_to_i32(e, biased);
    *out_k = int_to_f64(e, isub(e, k, i32(e, 1023)));
    return as_f64(e, iadd(e, isub(e, bits, ishl(e, biased, i64(e, 52))), i64(e, one)));
}

/* log(1 + r), r in [sqrt(1/2) - 1, sqrt(2) - 1) */
static LLVMValueRef log1p_core_f64(opq_emitter *e, LLVMValueRef r)
{
    LLVMValueRef s = vdiv(e, r, vadd(e, r, f64(e, 2.0)));
    return vmul(e, s, POLY64(e, LOG64, vmul(e, s, s)));
}

void opq_math_log_wide(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_k, LLVMValueRef *out_log_m)
{
    LLVMValueRef m = split_f64(e, x, out_k);
    *out_log_m = log1p_core_f64(e, vsub(e, m, f64(e, 1.0)));
}

LLVMValueRef opq_math_log1p_wide(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef k;
    LLVMValueRef m = split_f64(e, vadd(e, x, f64(e, 1.0)), &k);
    /* Where 1 + x needs no scaling, x itself is exact and 1 + x is not. */
    LLVMValueRef direct = vcmp(e, LLVMRealOEQ, k, f64(e, 0.0));
    LLVMValueRef r = vselect(e, direct, x, vsub(e, m, f64(e, 1.0)));
    return vfma(e, k, f64(e, LN2), log1p_core_f64(e, r));
}

LLVMValueRef opq_math_log2(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef k, log_m;
    opq_math_log_wide(e, widen(e, x), &k, &log_m);
    return fix_domain(e, x, narrow(e, vfma(e, log_m, f64(e, LOG2_E), k)));
}

LLVMValueRef opq_math_log10(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef k, log_m;
    opq_math_log_wide(e, widen(e, x), &k, &log_m);
    LLVMValueRef y = vfma(e, k, f64(e, LOG10_2), vmul(e, log_m, f64(e, LOG10_E)));
    return fix_domain(e, x, narrow(e, y));
}

LLVMValueRef opq_math_log1p(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef y = narrow(e, opq_math_log1p_wide(e, widen(e, x)));
    y = vselect(e, vcmp(e, LLVMRealOEQ, x, f32(e, -1.0f)), f32(e, -INFINITY), y);
    y = vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, -1.0f)), f32(e, NAN), y);
    /* inf and NaN as they are */
    y = vselect(e, vcmp(e, LLVMRealULT, x, f32(e, INFINITY)), y, x);
    y = vselect(e, vcmp(e, LLVMRealUNO, x, x), x, y);
    return vcopysign(e, y, x);
}
