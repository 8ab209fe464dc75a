/* Of f64: exp, exp2, expm1, sigmoid, tanh, erf.
 *
 * The method is that of math_exp.c: x = n ln2 + r, a polynomial in r, and n in the low bits of t = x / ln2 + 1.5 * 2^52. The polynomial is
 * in f64 itself, so what must not be lost is its rounding: expm1(r) is r + e with a small e, and both are added to what is large one
 * after the other, the small one first. No branch and no table; there is no scalef here, because vectors have twice a register's lanes.
 */
#include "codegen_llvm/math.h"

LLVMValueRef opq_math_exp_scale_f64(opq_emitter *e, LLVMValueRef p, LLVMValueRef t)
{
    LLVMValueRef bits = as_i64(e, t), second = iand(e, ishl(e, bits, i64(e, 51)), i64(e, UINT64_C(0x7ff0000000000000)));
    /* The other exponent field: n + 2046 less this one */
    LLVMValueRef first =
        iadd(e, isub(e, ishl(e, bits, i64(e, 52)), second), i64(e, (uint64_t)(2046 - OPQ_EXP_BIAS_F64) << 52));
    return vmul(e, vmul(e, p, as_f64(e, first)), as_f64(e, second));
}

static LLVMValueRef clamp(opq_emitter *e, double low, LLVMValueRef x, double high)
{
    return vmax(e, f64(e, low), vmin(e, f64(e, high), x));
}

/* x = n ln2 + r; t = n + bias + magic */
static LLVMValueRef reduce(opq_emitter *e, LLVMValueRef x, double bias, LLVMValueRef *out_t)
{
    LLVMValueRef magic = f64(e, OPQ_MAGIC_F64 + bias);
    *out_t = vfma(e, x, f64(e, OPQ_LOG2_E), magic);
    LLVMValueRef minus_n = vsub(e, magic, *out_t);
    return vfma(e, minus_n, f64(e, OPQ_LN2_LOW_F64), vfma(e, minus_n, f64(e, OPQ_LN2_HIGH_F64), x));
}

/* 2^n of t = n + 1023 + magic */
static LLVMValueRef power_of(opq_emitter *e, LLVMValueRef t) { return as_f64(e, ishl(e, as_i64(e, t), i64(e, 52))); }

/* expm1(r) less r, and expm1(r) */
static LLVMValueRef expm1_rest(opq_emitter *e, LLVMValueRef r) { return vmul(e, vmul(e, r, r), POLY64(e, EXP_F64, r)); }
static LLVMValueRef expm1_reduced(opq_emitter *e, LLVMValueRef r)
{
    return vfma(e, vmul(e, r, r), POLY64(e, EXP_F64, r), r);
}

LLVMValueRef opq_math_exp_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t, r = reduce(e, clamp(e, -746, x, 710), OPQ_EXP_BIAS_F64, &t);
    return opq_math_exp_scale_f64(e, vadd(e, f64(e, 1), expm1_reduced(e, r)), t);
}

LLVMValueRef opq_math_exp2_f64(opq_emitter *e, LLVMValueRef x)
{
    x = clamp(e, -1076, x, 1024.5);
    LLVMValueRef magic = f64(e, OPQ_MAGIC_F64 + OPQ_EXP_BIAS_F64), t = vadd(e, x, magic),
                 f = vsub(e, x, vsub(e, t, magic));
    return opq_math_exp_scale_f64(e, vfma(e, POLY64(e, EXP2_F64, f), f, f64(e, 1)), t);
}

/* 2 (s e + (s r + (s - 1/2))) with s = 2^(n-1): half the scale, so that n = 1024 does not overflow. */
LLVMValueRef opq_math_expm1_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t, r = reduce(e, clamp(e, -40, x, 710), 1022, &t), s = power_of(e, t);
    LLVMValueRef y = vfma(e, s, expm1_rest(e, r), vfma(e, s, r, vsub(e, s, f64(e, 0.5))));
    /* Half a denormal loses a bit. */
    return vselect(e, vcmp(e, LLVMRealOLT, vabs(e, x), f64(e, 0x1p-54)), x, vadd(e, y, y));
}

/* 1 / (1 + exp(-x)) with numerator and denominator times 2^-60, so that exp(745) does not overflow: 2^(n - 60) is a normal number for
 * every n. Past 40 the result is 1. */
LLVMValueRef opq_math_sigmoid_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t, r = reduce(e, vneg(e, clamp(e, -746, x, 40)), 1023 - 60, &t), s = power_of(e, t),
                    one = f64(e, 0x1p-60);
    LLVMValueRef high = vadd(e, s, one), low = vadd(e, vsub(e, s, high), one);
    return vdiv(e, one, vadd(e, high, vfma(e, s, r, vfma(e, s, expm1_rest(e, r), low))));
}

/* -m / (2 + m) with m = expm1(-2|x|) as a sum of two numbers. One division, of 1: what the quotient lacks is the exact remainder times the
 * reciprocal. */
LLVMValueRef opq_math_tanh_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef a = vmin(e, f64(e, 22), vabs(e, x)), t, r = reduce(e, vmul(e, f64(e, -2), a), 1023, &t),
                 s = power_of(e, t);
    LLVMValueRef high = vfma(e, s, r, vsub(e, s, f64(e, 1))), low = vmul(e, s, expm1_rest(e, r));
    LLVMValueRef m = vadd(e, high, low), m_low = vsub(e, low, vsub(e, m, high));
    LLVMValueRef d = vadd(e, f64(e, 2), m), d_low = vadd(e, vsub(e, m, vsub(e, d, f64(e, 2))), m_low);
    LLVMValueRef inverse = vdiv(e, f64(e, 1), d), q = vmul(e, m, inverse), minus_q = vneg(e, q);
    LLVMValueRef rest = vadd(e, vfma(e, minus_q, d, m), vfma(e, minus_q, d_low, m_low));
    return vcopysign(e, vfma(e, rest, inverse, q), x);
}

/* x + x P(x^2) up to 1; beyond 1 - exp(P(|x|)), where an error counts a fifth and less. */
LLVMValueRef opq_math_erf_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef a = vabs(e, x), near = vfma(e, x, POLY64(e, ERF_F64, vmul(e, x, x)), x);
    LLVMValueRef g = POLY64(e, ERF_TAIL_F64, vmin(e, f64(e, 6), a)), t, r = reduce(e, g, 1023, &t);
    LLVMValueRef power = vadd(e, f64(e, 1), expm1_reduced(e, r));
    LLVMValueRef far = vcopysign(e, vfma(e, vneg(e, power_of(e, t)), power, f64(e, 1)), x);
    return vselect(e, vcmp(e, LLVMRealOLT, a, f64(e, 1)), near, far);
}
