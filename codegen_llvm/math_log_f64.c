/* Of f64: log, log2, log10, log1p, and pow.
 *
 * x = 2^k m with m in [sqrt(1/2), sqrt(2)), and with f = m - 1 and s = f / (2 + f)
 *
 *     log(m) = 2 atanh(s) = f - (h - s (h + R(s^2))),  h = f^2 / 2
 *
 * which is f, exactly, and small corrections. pow needs eleven bits more, because y log(x) is up to 745 and its absolute error becomes the
 * result's relative one: there s, the first three terms of the series, the logarithm and the product are sums of two numbers.
 */
#include "codegen_llvm/math.h"
#include <math.h>

/* k in the bits of 2^52 + k + 1023, and m; f64 from integers without a conversion, which AVX2 lacks */
static LLVMValueRef split(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_biased)
{
    const uint64_t one = UINT64_C(1023) << 52, low = UINT64_C(0x3fe6a09e667f3bcd); /* the bits of sqrt(1/2) */
    LLVMValueRef bits = as_i64(e, x);
    *out_biased = ilshr(e, iadd(e, bits, i64(e, one - low)), i64(e, 52));
    return as_f64(e, iadd(e, isub(e, bits, ishl(e, *out_biased, i64(e, 52))), i64(e, one)));
}

static LLVMValueRef exponent_of(opq_emitter *e, LLVMValueRef biased, LLVMValueRef bias)
{
    return vsub(e, as_f64(e, ior(e, biased, i64(e, UINT64_C(1075) << 52))), bias);
}

LLVMValueRef opq_math_log_reduce_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_k)
{
    LLVMValueRef tiny = vcmp(e, LLVMRealOLT, x, f64(e, 0x1p-1022)), biased;
    LLVMValueRef m = split(e, vselect(e, tiny, vmul(e, x, f64(e, 0x1p54)), x), &biased);
    *out_k = exponent_of(e, biased, vselect(e, tiny, f64(e, 0x1p52 + 1023 + 54), f64(e, 0x1p52 + 1023)));
    return vsub(e, m, f64(e, 1));
}

/* h, and s (h + R) + more */
static LLVMValueRef rest_of(opq_emitter *e, LLVMValueRef f, LLVMValueRef more, LLVMValueRef *out_h)
{
    LLVMValueRef s = vdiv(e, f, vadd(e, f, f64(e, 2))), z = vmul(e, s, s);
    *out_h = vmul(e, vmul(e, f, f64(e, 0.5)), f);
    return vfma(e, s, vfma(e, z, POLY64(e, LOG_F64, z), *out_h), more);
}

static LLVMValueRef is_positive(opq_emitter *e, LLVMValueRef x)
{
    return iand(e, vcmp(e, LLVMRealOGT, x, f64(e, 0)), vcmp(e, LLVMRealOLT, x, f64(e, (double)INFINITY)));
}

/* `y` where x is positive and finite; else -inf of 0, NaN below, inf and NaN as they are */
static LLVMValueRef fix_domain(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef outside = vselect(e, vcmp(e, LLVMRealOLT, x, f64(e, 0)), f64(e, (double)NAN), x);
    outside = vselect(e, vcmp(e, LLVMRealOEQ, x, f64(e, 0)), f64(e, -(double)INFINITY), outside);
    return vselect(e, is_positive(e, x), y, outside);
}

/* k ln2 + f - (h - rest); the sum of the two larger ones is exact. */
static LLVMValueRef sum_of(opq_emitter *e, LLVMValueRef k, LLVMValueRef f, LLVMValueRef more)
{
    LLVMValueRef h,
        rest = rest_of(e, f, more ? vfma(e, k, f64(e, OPQ_LN2_LOW_F64), more) : vmul(e, k, f64(e, OPQ_LN2_LOW_F64)), &h);
    LLVMValueRef big = vmul(e, k, f64(e, OPQ_LN2_HIGH_F64)), high = vadd(e, big, f), low = vsub(e, f, vsub(e, high, big));
    return vadd(e, high, vadd(e, low, vsub(e, rest, h)));
}

LLVMValueRef opq_math_log_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef k, f = opq_math_log_reduce_f64(e, x, &k);
    return fix_domain(e, x, sum_of(e, k, f, NULL));
}

/* k / log2(b) + log(m) * (1 / log(b)), with the constants and log(m) in two parts */
static LLVMValueRef log_base(opq_emitter *e, LLVMValueRef x, double k_high, double k_low, double c_high, double c_low)
{
    LLVMValueRef k, f = opq_math_log_reduce_f64(e, x, &k), h, rest = rest_of(e, f, f64(e, 0), &h);
    LLVMValueRef g = vsub(e, f, h), g_low = vadd(e, vsub(e, vsub(e, f, g), h), rest);
    LLVMValueRef high = vadd(e, g, g_low), low = vsub(e, g_low, vsub(e, high, g));
    LLVMValueRef p = vmul(e, high, f64(e, c_high)), p_low = vfma(e, high, f64(e, c_high), vneg(e, p));
    p_low = vadd(e, p_low, vfma(e, high, f64(e, c_low), vmul(e, low, f64(e, c_high))));
    LLVMValueRef big = vmul(e, k, f64(e, k_high)), sum = vadd(e, big, p), sum_low = vsub(e, p, vsub(e, sum, big));
    return fix_domain(e, x, vadd(e, sum, vadd(e, sum_low, vfma(e, k, f64(e, k_low), p_low))));
}

LLVMValueRef opq_math_log2_f64(opq_emitter *e, LLVMValueRef x)
{
    return log_base(e, x, 1, 0, LOG2_E_F64_HIGH, LOG2_E_F64_LOW);
}

LLVMValueRef opq_math_log10_f64(opq_emitter *e, LLVMValueRef x)
{
    return log_base(e, x, LOG10_2_F64_HIGH, LOG10_2_F64_LOW, LOG10_E_F64_HIGH, LOG10_E_F64_LOW);
}

/* u = 1 + x and what it lost, c: log(u) + c/u, with c scaled as m is, and 1/m near 1 - f + f^2. Where k is 0, x itself is f. */
LLVMValueRef opq_math_log1p_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef one = f64(e, 1), zero = f64(e, 0), u = vadd(e, x, one), back = vsub(e, u, one), biased;
    LLVMValueRef c = vadd(e, vsub(e, one, vsub(e, u, back)), vsub(e, x, back));
    LLVMValueRef m = split(e, u, &biased), k = exponent_of(e, biased, f64(e, 0x1p52 + 1023)), f = vsub(e, m, one);
    LLVMValueRef twice_scale = as_f64(e, ishl(e, isub(e, i64(e, 2047), biased), i64(e, 52))); /* 2^(1-k) */
    LLVMValueRef half_inverse = vfma(e, vmul(e, f, f64(e, 0.5)), vsub(e, f, one), f64(e, 0.5));
    LLVMValueRef more = vmul(e, vmul(e, c, twice_scale), half_inverse), direct = vcmp(e, LLVMRealOEQ, k, zero);
    LLVMValueRef y = sum_of(e, k, vselect(e, direct, x, f), vselect(e, direct, zero, more));
    LLVMValueRef outside = vselect(e, vcmp(e, LLVMRealOLT, x, f64(e, -1)), f64(e, (double)NAN), x);
    outside = vselect(e, vcmp(e, LLVMRealOEQ, x, f64(e, -1)), f64(e, -(double)INFINITY), outside);
    LLVMValueRef inside = iand(e, vcmp(e, LLVMRealOGT, x, f64(e, -1)), vcmp(e, LLVMRealOLT, x, f64(e, (double)INFINITY)));
    return vcopysign(e, vselect(e, inside, y, outside), x);
}

/* ---- pow */

/* log(x) and what it lost, to about 2^-68; -inf of 0, inf of inf */
static LLVMValueRef log_pair(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_low)
{
    LLVMValueRef k, f = opq_math_log_reduce_f64(e, x, &k), two = f64(e, 2), third = f64(e, TWO_THIRDS_F64_HIGH);
    LLVMValueRef d = vadd(e, f, two), d_low = vsub(e, f, vsub(e, d, two)), inverse = vdiv(e, f64(e, 1), d);
    LLVMValueRef s = vmul(e, f, inverse), minus_s = vneg(e, s);
    LLVMValueRef s_low = vmul(e, vfma(e, minus_s, d_low, vfma(e, minus_s, d, f)), inverse);
    LLVMValueRef z = vmul(e, s, s), z_low = vfma(e, vadd(e, s, s), s_low, vfma(e, s, s, vneg(e, z)));
    /* 2/3 + z (2/5 + ...) */
    LLVMValueRef fifth = f64(e, LOG_TAIL_F64[0]), a = vmul(e, z, poly_f64(e, LOG_TAIL_F64 + 1, 7, z)),
                 b = vadd(e, fifth, a);
    LLVMValueRef b_low = vadd(e, vadd(e, vsub(e, fifth, b), a), f64(e, LOG_TAIL_F64_LOW)), q = vmul(e, z, b);
    LLVMValueRef q_low = vfma(e, z_low, b, vfma(e, z, b_low, vfma(e, z, b, vneg(e, q)))), c = vadd(e, third, q);
    LLVMValueRef c_low = vadd(e, vadd(e, vsub(e, third, c), q), vadd(e, f64(e, TWO_THIRDS_F64_LOW), q_low));
    LLVMValueRef t = vmul(e, z, c), t_low = vfma(e, z_low, c, vfma(e, z, c_low, vfma(e, z, c, vneg(e, t))));
    LLVMValueRef u = vadd(e, two, t), u_low = vadd(e, vsub(e, t, vsub(e, u, two)), t_low); /* log(m) = s u */
    LLVMValueRef g = vmul(e, s, u), g_low = vfma(e, s_low, u, vfma(e, s, u_low, vfma(e, s, u, vneg(e, g))));
    LLVMValueRef big = vmul(e, k, f64(e, OPQ_LN2_HIGH_F64)), high = vadd(e, big, g);
    LLVMValueRef low = vadd(e, vsub(e, g, vsub(e, high, big)), vfma(e, k, f64(e, OPQ_LN2_LOW_F64), g_low));
    LLVMValueRef usual = is_positive(e, x), zero = f64(e, 0);
    *out_low = vselect(e, usual, low, zero);
    return vselect(e, usual, high, vselect(e, vcmp(e, LLVMRealOEQ, x, zero), f64(e, -(double)INFINITY), x));
}

/* exp(x + low), |low| a unit in the last place of x at most */
static LLVMValueRef exp_pair(opq_emitter *e, LLVMValueRef x, LLVMValueRef low)
{
    low = vselect(e, vcmp(e, LLVMRealOLT, vabs(e, x), f64(e, 1000)), low, f64(e, 0));
    x = vmax(e, f64(e, -746), vmin(e, f64(e, 710), x));
    LLVMValueRef magic = f64(e, OPQ_MAGIC_F64 + OPQ_EXP_BIAS_F64), t = vfma(e, x, f64(e, OPQ_LOG2_E), magic);
    LLVMValueRef minus_n = vsub(e, magic, t), high = vfma(e, minus_n, f64(e, OPQ_LN2_HIGH_F64), x);
    low = vfma(e, minus_n, f64(e, OPQ_LN2_LOW_F64), low);
    LLVMValueRef r = vadd(e, high, low);
    LLVMValueRef rest = vfma(e, vmul(e, r, r), POLY64(e, EXP_F64, r), vadd(e, vsub(e, high, r), low));
    LLVMValueRef one = f64(e, 1), p = vadd(e, one, r);
    return opq_math_exp_scale_f64(e, vadd(e, p, vadd(e, vadd(e, vsub(e, one, p), r), rest)), t);
}

static LLVMValueRef is_integer(opq_emitter *e, LLVMValueRef y) { return vcmp(e, LLVMRealOEQ, vtrunc(e, y), y); }

LLVMValueRef opq_math_pow_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef one = f64(e, 1), zero = f64(e, 0), nan = f64(e, (double)NAN), magnitude = vabs(e, x), low;
    LLVMValueRef log_x = log_pair(e, magnitude, &low), p = vmul(e, y, log_x);
    LLVMValueRef p_low = vfma(e, y, low, vfma(e, y, log_x, vneg(e, p)));
    /* (-1)^(+-inf): p is NaN */
    LLVMValueRef result = vselect(e, vcmp(e, LLVMRealOEQ, magnitude, one), one, exp_pair(e, p, p_low));

    /* A negative base: an odd exponent gives a negative result, a fraction none. Infinities and large numbers are even. */
    LLVMValueRef integer = is_integer(e, y), even = is_integer(e, vmul(e, y, f64(e, 0.5)));
    result = vselect(e, iand(e, integer, inot(e, even)), vcopysign(e, result, x), result);
    LLVMValueRef finite_negative =
        iand(e, vcmp(e, LLVMRealOLT, x, zero), vcmp(e, LLVMRealOGT, x, f64(e, -(double)INFINITY)));
    result = vselect(e, iand(e, finite_negative, inot(e, integer)), nan, result);
    result = vselect(e, vcmp(e, LLVMRealUNO, x, y), nan, result);
    return vselect(e, ior(e, vcmp(e, LLVMRealOEQ, x, one), vcmp(e, LLVMRealOEQ, y, zero)), one, result);
}
