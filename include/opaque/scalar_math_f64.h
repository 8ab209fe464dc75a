/* exp and its kin for one f64: the formulas of codegen_llvm/math_*_f64.c, which explains them, without vectors.
 *
 * What opaque/scalar_math.h, which includes this, says of bits holds here as well.
 */
#ifndef OPAQUE_SCALAR_MATH_F64_H
#define OPAQUE_SCALAR_MATH_F64_H

#include "opaque/math_tables_f64.h"
#include "opaque/scalar.h"

/* Functions of one argument; of two there are pow and logaddexp. */
/* clang-format off */
#define OPQ_MATH1_F64(X)                                                                                               \
    X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tanh) X(erf) X(sigmoid)
/* clang-format on */

#define OPQ_LN2 0x1.62e42fefa39efp-1
#define OPQ_LOG2_E 0x1.71547652b82fep0
/* Adding it rounds to an integer and leaves that integer in the low mantissa bits. */
#define OPQ_MAGIC_F64 0x1.8p52
/* ln2 in two parts: n times the first is exact */
#define OPQ_LN2_HIGH_F64 0x1.62e42fefa0000p-1
#define OPQ_LN2_LOW_F64 0x1.cf79abc9e3b3ap-40

/* Horner's rule, lowest power first. */
static inline double opq_poly_f64(const double *table, int count, double x)
{
    double y = table[count - 1];
    for (int i = count - 2; i >= 0; i--)
        y = fma(y, x, table[i]);
    return y;
}

#define OPQ_POLY_F64(table, x) opq_poly_f64(table, (int)(sizeof(table) / sizeof((table)[0])), x)

/* The bounds stand first in these comparisons, so that NaN stays. */
static inline double opq_clamp_f64(double low, double x, double high)
{
    x = high < x ? high : x;
    return low > x ? low : x;
}

/* ---- exponentials: x = n ln2 + r, a polynomial in r, times 2^n */

#define OPQ_EXP_BIAS_F64 1078 /* what opq_exp_scale_f64 wants in t */

/* t = MAGIC + bias + n */
static inline double opq_exp_reduce_f64(double x, double bias, double *out_t)
{
    double magic = OPQ_MAGIC_F64 + bias;
    *out_t = fma(x, OPQ_LOG2_E, magic);
    double minus_n = magic - *out_t;
    return fma(minus_n, OPQ_LN2_LOW_F64, fma(minus_n, OPQ_LN2_HIGH_F64, x));
}

/* p * 2^n with one rounding, p near 1, n in [-1077, 1024]: the product with the first half of the scale is exact. */
static inline double opq_exp_scale_f64(double p, double t)
{
    uint64_t bits = opq_f64_bits(t), second = bits << 51 & UINT64_C(0x7ff0000000000000);
    uint64_t first = (bits << 52) - second + ((uint64_t)(2046 - OPQ_EXP_BIAS_F64) << 52);
    return p * opq_f64_of_bits(first) * opq_f64_of_bits(second);
}

/* 2^n of t = MAGIC + n + 1023 */
static inline double opq_power_of_f64(double t) { return opq_f64_of_bits(opq_f64_bits(t) << 52); }

/* expm1(r) for |r| <= ln2/2, less r */
static inline double opq_expm1_rest_f64(double r) { return r * r * OPQ_POLY_F64(EXP_F64, r); }
static inline double opq_expm1_reduced_f64(double r) { return fma(r * r, OPQ_POLY_F64(EXP_F64, r), r); }

static inline double opq_exp_f64(double x)
{
    double t, r = opq_exp_reduce_f64(opq_clamp_f64(-746, x, 710), OPQ_EXP_BIAS_F64, &t);
    return opq_exp_scale_f64(1 + opq_expm1_reduced_f64(r), t);
}

static inline double opq_exp2_f64(double x)
{
    x = opq_clamp_f64(-1076, x, 1024.5);
    double magic = OPQ_MAGIC_F64 + OPQ_EXP_BIAS_F64, t = x + magic, f = x - (t - magic);
    return opq_exp_scale_f64(fma(OPQ_POLY_F64(EXP2_F64, f), f, 1), t);
}

/* 2 (s e + (s r + (s - 1/2))) with e = expm1(r) - r and s = 2^(n-1): half the scale, so that n = 1024 does not overflow. */
static inline double opq_expm1_f64(double x)
{
    double t, r = opq_exp_reduce_f64(opq_clamp_f64(-40, x, 710), 1022, &t), s = opq_power_of_f64(t);
    double y = fma(s, opq_expm1_rest_f64(r), fma(s, r, s - 0.5));
    return fabs(x) < 0x1p-54 ? x : y + y; /* half a denormal loses a bit */
}

/* 1 / (1 + exp(-x)) with numerator and denominator times 2^-60, so that exp(745) does not overflow. Past 40 it is 1. */
static inline double opq_sigmoid_f64(double x)
{
    double t, r = opq_exp_reduce_f64(-opq_clamp_f64(-746, x, 40), 1023 - 60, &t), s = opq_power_of_f64(t);
    double high = s + 0x1p-60, low = s - high + 0x1p-60;
    return 0x1p-60 / (high + fma(s, r, fma(s, opq_expm1_rest_f64(r), low)));
}

/* -m / (2 + m) with m = expm1(-2|x|) as a sum of two numbers; one division, whose remainder is divided by the reciprocal. */
static inline double opq_tanh_f64(double x)
{
    double a = fabs(x), t, r = opq_exp_reduce_f64(-2 * (22 < a ? 22 : a), 1023, &t), s = opq_power_of_f64(t);
    double high = fma(s, r, s - 1), low = s * opq_expm1_rest_f64(r), m = high + low, m_low = low - (m - high);
    double d = 2 + m, d_low = m - (d - 2) + m_low, inverse = 1 / d, q = m * inverse;
    return copysign(fma(fma(-q, d, m) + fma(-q, d_low, m_low), inverse, q), x);
}

/* x + x P(x^2) up to 1; beyond 1 - exp(P(|x|)), where an error counts a fifth and less. */
static inline double opq_erf_f64(double x)
{
    double a = fabs(x);
    if (a < 1)
        return fma(x, OPQ_POLY_F64(ERF_F64, x * x), x);
    double g = OPQ_POLY_F64(ERF_TAIL_F64, 6 < a ? 6 : a), t, r = opq_exp_reduce_f64(g, 1023, &t);
    return copysign(fma(-opq_power_of_f64(t), 1 + opq_expm1_reduced_f64(r), 1), x);
}

/* ---- logarithms: x = 2^k m with m in [sqrt(1/2), sqrt(2)); with s = (m - 1) / (m + 1), log(m) is 2 atanh(s) */

/* k in the bits of 2^52 + k + 1023, and m */
static inline double opq_log_split_f64(double x, uint64_t *out_biased)
{
    const uint64_t one = UINT64_C(1023) << 52, low = UINT64_C(0x3fe6a09e667f3bcd); /* the bits of sqrt(1/2) */
    uint64_t bits = opq_f64_bits(x);
    *out_biased = (bits + (one - low)) >> 52;
    return opq_f64_of_bits(bits - (*out_biased << 52) + one);
}

static inline double opq_log_exponent_f64(uint64_t biased, double bias)
{
    return opq_f64_of_bits(biased | opq_f64_bits(0x1p52)) - (0x1p52 + bias);
}

/* k and f = m - 1 of positive x; a denormal is scaled by 2^54 first. */
static inline double opq_log_reduce_f64(double x, double *out_k)
{
    bool tiny = x < 0x1p-1022;
    uint64_t biased;
    double m = opq_log_split_f64(tiny ? x * 0x1p54 : x, &biased);
    *out_k = opq_log_exponent_f64(biased, tiny ? 1023 + 54 : 1023);
    return m - 1;
}

/* log(1 + f) = f - (h - s (h + R)) with h = f^2/2: gives h and s (h + R) + more. */
static inline double opq_log_rest_f64(double f, double more, double *out_h)
{
    double s = f / (f + 2), z = s * s;
    *out_h = f * 0.5 * f;
    return fma(s, fma(z, OPQ_POLY_F64(LOG_F64, z), *out_h), more);
}

/* `y` where x is positive and finite; else -inf of 0, NaN below, inf and NaN as they are. */
static inline double opq_log_domain_f64(double x, double y)
{
    if (x > 0 && x < (double)INFINITY)
        return y;
    return x == 0 ? -(double)INFINITY : x < 0 ? (double)NAN : x;
}

/* k ln2 + f - (h - rest), the larger ones first, exactly */
static inline double opq_log_sum_f64(double k, double f, double more)
{
    double h, rest = opq_log_rest_f64(f, fma(k, OPQ_LN2_LOW_F64, more), &h);
    double big = k * OPQ_LN2_HIGH_F64, high = big + f, low = f - (high - big);
    return high + (low + (rest - h));
}

static inline double opq_log_f64(double x)
{
    double k, f = opq_log_reduce_f64(x, &k);
    return opq_log_domain_f64(x, opq_log_sum_f64(k, f, 0));
}

/* log(x) / log(b) = k / log2(b) + log(m) * (1 / log(b)), with the constants and log(m) in two parts */
static inline double opq_log_base_f64(double x, double k_high, double k_low, double c_high, double c_low)
{
    double k, f = opq_log_reduce_f64(x, &k), h, rest = opq_log_rest_f64(f, 0, &h);
    double g = f - h, g_low = f - g - h + rest, high = g + g_low, low = g_low - (high - g);
    double p = high * c_high, p_low = fma(high, c_high, -p) + fma(high, c_low, low * c_high);
    double big = k * k_high, sum = big + p, sum_low = p - (sum - big);
    return opq_log_domain_f64(x, sum + (sum_low + fma(k, k_low, p_low)));
}

static inline double opq_log2_f64(double x) { return opq_log_base_f64(x, 1, 0, LOG2_E_F64_HIGH, LOG2_E_F64_LOW); }

static inline double opq_log10_f64(double x)
{
    return opq_log_base_f64(x, LOG10_2_F64_HIGH, LOG10_2_F64_LOW, LOG10_E_F64_HIGH, LOG10_E_F64_LOW);
}

/* u = 1 + x and what it lost, c: log(u) + c/u. With c scaled as m is and 1/m near 1 - f + f^2. Where k is 0, x itself is f. */
static inline double opq_log1p_f64(double x)
{
    double u = x + 1, back = u - 1, c = 1 - (u - back) + (x - back);
    uint64_t biased;
    double m = opq_log_split_f64(u, &biased), k = opq_log_exponent_f64(biased, 1023), f = m - 1;
    double twice_scale = opq_f64_of_bits((2047 - biased) << 52); /* 2^(1-k) */
    double more = c * twice_scale * fma(f * 0.5, f - 1, 0.5);
    double y = opq_log_sum_f64(k, k == 0 ? x : f, k == 0 ? 0 : more);
    if (!(x > -1 && x < (double)INFINITY))
        y = x == -1 ? -(double)INFINITY : x < -1 ? (double)NAN : x;
    return copysign(y, x);
}

/* ---- logaddexp */

/* 1/k!, and 2/(2k + 1) */
static const double OPQ_EXP_TAYLOR[14] = {
    1.0,
    1.0,
    1.0 / 2,
    1.0 / 6,
    1.0 / 24,
    1.0 / 120,
    1.0 / 720,
    1.0 / 5040.0,
    1.0 / 40320.0,
    1.0 / 362880.0,
    1.0 / 3628800.0,
    1.0 / 39916800.0,
    1.0 / 479001600.0,
    1.0 / 6227020800.0,
};
static const double OPQ_ATANH_TAYLOR[17] = {
    2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
    2.0 / 19, 2.0 / 21, 2.0 / 23, 2.0 / 25, 2.0 / 27, 2.0 / 29, 2.0 / 31, 2.0 / 33,
};
#define OPQ_LOGADDEXP_FAR (-700.0)

/* codegen_llvm/math_logaddexp.c */
static inline double opq_logaddexp_f64(double x, double y)
{
    double high = x > y ? x : y, low = x > y ? y : x, minus_d = x == y ? 0 : low - high;
    if (minus_d < OPQ_LOGADDEXP_FAR)
        return high;
    double t = fma(minus_d, OPQ_LOG2_E, OPQ_MAGIC_F64), minus_n = OPQ_MAGIC_F64 - t;
    double r = fma(minus_n, OPQ_LN2_LOW_F64, fma(minus_n, OPQ_LN2_HIGH_F64, minus_d));
    double scale = opq_f64_of_bits((opq_f64_bits(t) << 52) + (UINT64_C(1023) << 52));
    double power = scale * OPQ_POLY_F64(OPQ_EXP_TAYLOR, r), s = power / (power + 2);
    return high + s * OPQ_POLY_F64(OPQ_ATANH_TAYLOR, s * s);
}

/* ---- sine, cosine: x = n pi/2 + r up to 2^30, exact reduction beyond */

#define OPQ_TRIG_FAST_F64 0x1p30
#define OPQ_TWO_OVER_PI 0x1.45f306dc9c883p-1

/* x = quadrant * pi/2 + r + low */
typedef struct opq_angle_f64 {
    uint64_t quadrant;
    double r, low;
} opq_angle_f64;

/* a + b, rounded, and what that lost */
static inline double opq_two_sum_f64(double a, double b, double *out_low)
{
    double sum = a + b, of_b = sum - a;
    *out_low = a - (sum - of_b) + (b - of_b);
    return sum;
}

static inline opq_angle_f64 opq_trig_reduce_f64(double x)
{
    double t = fma(x, OPQ_TWO_OVER_PI, OPQ_MAGIC_F64), minus_n = OPQ_MAGIC_F64 - t;
    double second = minus_n * HALF_PI_F64_2, lost, high = opq_two_sum_f64(fma(minus_n, HALF_PI_F64_1, x), second, &lost);
    double low = fma(minus_n, HALF_PI_F64_3, lost + fma(minus_n, HALF_PI_F64_2, -second)), r = high + low;
    return (opq_angle_f64){.quadrant = opq_f64_bits(t), .r = r, .low = high - r + low};
}

static inline double opq_mod4_f64(double x) { return fma(rint(x * 0.25), -4, x); }

/* For |x| >= 1: x times a window of 2/pi that begins near its exponent. */
static inline opq_angle_f64 opq_trig_reduce_exact_f64(double x)
{
    uint64_t bits = opq_f64_bits(x), exponent = (bits >> 52 & 31) + 1075;
    const double *window = &TWO_OVER_PI_F64[(bits >> 57 & 31) * 4];
    double m = opq_f64_of_bits((bits & UINT64_C(0x800fffffffffffff)) | exponent << 52), product[4], lost[6];
    for (int i = 0; i < 4; i++)
        product[i] = m * window[i];
    double sum = opq_two_sum_f64(opq_mod4_f64(product[0]), opq_mod4_f64(fma(m, window[0], -product[0])), &lost[0]);
    sum = opq_two_sum_f64(sum, opq_mod4_f64(product[1]), &lost[1]);
    double whole = rint(sum), low = 0, less;
    sum -= whole;
    lost[2] = fma(m, window[1], -product[1]);
    lost[3] = product[2];
    lost[4] = fma(m, window[2], -product[2]);
    lost[5] = product[3];
    for (int i = 0; i < 6; i++) {
        sum = opq_two_sum_f64(sum, lost[i], &less);
        low += less;
    }
    double high = sum + low, r = high * HALF_PI_F64_1;
    low -= high - sum;
    return (opq_angle_f64){.quadrant = opq_f64_bits(whole + OPQ_MAGIC_F64),
                           .r = r,
                           .low = fma(high, HALF_PI_F64_1, -r) + fma(high, HALF_PI_F64_2, low * HALF_PI_F64_1)};
}

/* The quadrant's low bit exchanges sine and cosine, the next negates. */
static inline double opq_sin_of_angle_f64(opq_angle_f64 a)
{
    double z = a.r * a.r, h = z * 0.5, w = 1 - h;
    double sine = a.r + fma(a.r * z, OPQ_POLY_F64(SIN_F64, z), fma(-h, a.low, a.low));
    double cosine = w + (1 - w - h + fma(z * z, OPQ_POLY_F64(COS_F64, z), -a.r * a.low));
    double y = a.quadrant & 1 ? cosine : sine;
    return a.quadrant & 2 ? -y : y;
}

static inline double opq_trig_f64(double x, uint64_t quadrants)
{
    if (!(fabs(x) < (double)INFINITY))
        return (double)NAN;
    opq_angle_f64 a = fabs(x) > OPQ_TRIG_FAST_F64 ? opq_trig_reduce_exact_f64(x) : opq_trig_reduce_f64(x);
    a.quadrant += quadrants;
    return opq_sin_of_angle_f64(a);
}

static inline double opq_sin_f64(double x) { return x == 0 ? x : opq_trig_f64(x, 0); } /* 0 for the sign of -0 */
static inline double opq_cos_f64(double x) { return opq_trig_f64(x, 1); }

/* ---- pow: exp(y log|x|) with the logarithm and the product in two parts, and C99's special cases around it */

/* log(x) and what it lost, to about 2^-68; -inf of 0, inf of inf */
static inline double opq_log_pair_f64(double x, double *out_low)
{
    double k, f = opq_log_reduce_f64(x, &k), d = f + 2, d_low = f - (d - 2), inverse = 1 / d;
    double s = f * inverse, s_low = fma(-s, d_low, fma(-s, d, f)) * inverse;
    double z = s * s, z_low = fma(s + s, s_low, fma(s, s, -z));
    /* 2/3 + z (2/5 + ...) */
    double a = z * opq_poly_f64(LOG_TAIL_F64 + 1, 7, z), b = LOG_TAIL_F64[0] + a,
           b_low = LOG_TAIL_F64[0] - b + a + LOG_TAIL_F64_LOW;
    double q = z * b, q_low = fma(z_low, b, fma(z, b_low, fma(z, b, -q))), c = TWO_THIRDS_F64_HIGH + q;
    double c_low = TWO_THIRDS_F64_HIGH - c + q + (TWO_THIRDS_F64_LOW + q_low);
    double t = z * c, t_low = fma(z_low, c, fma(z, c_low, fma(z, c, -t)));
    double u = 2 + t, u_low = t - (u - 2) + t_low; /* log(m) = s u */
    double g = s * u, g_low = fma(s_low, u, fma(s, u_low, fma(s, u, -g)));
    double big = k * OPQ_LN2_HIGH_F64, high = big + g, low = g - (high - big) + fma(k, OPQ_LN2_LOW_F64, g_low);
    bool usual = x > 0 && x < (double)INFINITY;
    *out_low = usual ? low : 0;
    return usual ? high : x == 0 ? -(double)INFINITY : x;
}

/* exp(x + low), |low| a unit in the last place of x at most */
static inline double opq_exp_pair_f64(double x, double low)
{
    bool usual = fabs(x) < 1000;
    low = usual ? low : 0;
    x = opq_clamp_f64(-746, x, 710);
    double magic = OPQ_MAGIC_F64 + OPQ_EXP_BIAS_F64, t = fma(x, OPQ_LOG2_E, magic), minus_n = magic - t;
    double high = fma(minus_n, OPQ_LN2_HIGH_F64, x);
    low = fma(minus_n, OPQ_LN2_LOW_F64, low);
    double r = high + low, rest = fma(r * r, OPQ_POLY_F64(EXP_F64, r), high - r + low), p = 1 + r;
    return opq_exp_scale_f64(p + (1 - p + r + rest), t);
}

static inline double opq_pow_f64(double x, double y)
{
    if (x == 1 || y == 0)
        return 1;
    if (x != x || y != y)
        return (double)NAN;
    double low, log_x = opq_log_pair_f64(fabs(x), &low), p = y * log_x;
    double result = fabs(x) == 1 ? 1 : opq_exp_pair_f64(p, fma(y, low, fma(y, log_x, -p))); /* (-1)^inf: p is NaN */
    /* A negative base: an odd exponent gives a negative result, a fraction none. Large numbers are even. */
    bool integer = trunc(y) == y, even = trunc(y * 0.5) == y * 0.5;
    if (x < 0 && x > -(double)INFINITY && !integer)
        return (double)NAN;
    return integer && !even ? copysign(result, x) : result;
}

#endif
