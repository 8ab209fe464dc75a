/* exp and its kin for one f32 (scalar_math_f64.h: for one f64), and random numbers: the formulas of codegen_llvm/math_*.c, which explains
 * them, without vectors.
 *
 * Every function gives the bits of the generated code for every argument (of NaN: some NaN). They are IEEE additions, multiplications,
 * divisions, square roots and fused multiply-adds in a fixed order, rounded to nearest: compile with -ffp-contract=off. fmaf and fma must
 * have one rounding, as C says; -mfma makes them one instruction. Their accuracy is in docs/accuracy.md.
 */
#ifndef OPAQUE_SCALAR_MATH_H
#define OPAQUE_SCALAR_MATH_H

#include "opaque/math_tables.h"
#include "opaque/scalar_math_f64.h"

/* Functions of one argument that f64 does not have; of two there are pow and atan2. */
/* clang-format off */
#define OPQ_MATH1_F32(X) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(erfc)
/* clang-format on */
#define OPQ_MATH1(X) OPQ_MATH1_F64(X) OPQ_MATH1_F32(X)

#define OPQ_PI 0x1.921fb54442d18p+1
#define OPQ_HALF_PI 0x1.921fb54442d18p+0
/* Adding it rounds to an integer and leaves that integer in the low mantissa bits. */
#define OPQ_MAGIC_F32 0x1.8p23f
/* ln2 in two parts: n times the first is exact */
#define OPQ_LN2_HIGH_F32 0x1.62e4p-1f
#define OPQ_LN2_LOW_F32 0x1.7f7d1cp-20f

/* Horner's rule, lowest power first. */
static inline float opq_poly_f32(const float *table, int count, float x)
{
    float y = table[count - 1];
    for (int i = count - 2; i >= 0; i--)
        y = fmaf(y, x, table[i]);
    return y;
}

#define OPQ_POLY_F32(table, x) opq_poly_f32(table, (int)(sizeof(table) / sizeof((table)[0])), x)

/* ---- exponentials: x = n ln2 + r, a polynomial in r, times 2^n */

/* t = n + MAGIC */
static inline float opq_exp_reduce(float x, float *out_t)
{
    *out_t = fmaf(x, (float)OPQ_LOG2_E, OPQ_MAGIC_F32);
    float minus_n = OPQ_MAGIC_F32 - *out_t;
    return fmaf(minus_n, OPQ_LN2_LOW_F32, fmaf(minus_n, OPQ_LN2_HIGH_F32, x));
}

/* p * 2^n with one rounding, p near 1, n in [-152, 129]: the product with the first half of the scale is exact. */
static inline float opq_exp_scale(float p, float t)
{
    int32_t n = (int32_t)(opq_f32_bits(t) - opq_f32_bits(OPQ_MAGIC_F32)), half = n >> 1, rest = n - half;
    float first = opq_f32_of_bits((uint32_t)(half + 127) << 23), second = opq_f32_of_bits((uint32_t)(rest + 127) << 23);
    return p * first * second;
}

/* exp(r) for |r| <= ln2/2 */
static inline float opq_exp_reduced(float r) { return fmaf(fmaf(OPQ_POLY_F32(EXP32, r), r, 1), r, 1); }

/* The bounds stand first in these comparisons, so that NaN stays. */
static inline float opq_exp_f32(float x)
{
    x = 89.5f < x ? 89.5f : x;
    float t, r = opq_exp_reduce(-105 > x ? -105 : x, &t);
    return opq_exp_scale(opq_exp_reduced(r), t);
}

static inline float opq_exp2_f32(float x)
{
    x = 128.5f < x ? 128.5f : x;
    x = -151 > x ? -151 : x;
    float t = x + OPQ_MAGIC_F32, f = x - (t - OPQ_MAGIC_F32);
    return opq_exp_scale(fmaf(OPQ_POLY_F32(EXP2_32, f), f, 1), t);
}

/* 2 (s q + (s - 1/2)) with q = expm1(r) and s = 2^(n-1): half the scale, so that n = 128 does not overflow. */
static inline float opq_expm1_f32(float x)
{
    float z = 88.8f < x ? 88.8f : x, t;
    z = -20 > z ? -20 : z;
    float r = opq_exp_reduce(z, &t), q = fmaf(r * r, OPQ_POLY_F32(EXPM1_32, r), r);
    float s = opq_f32_of_bits((opq_f32_bits(t) << 23) + (126u << 23));
    float y = fmaf(s, q, s - 0.5f);
    return copysignf(y + y, x);
}

/* 1 / (1 + exp(-x)) with numerator and denominator times 2^-31, so that exp(105) does not overflow. Past 40 it is 1. */
static inline float opq_sigmoid_f32(float x)
{
    float z = 40 < x ? 40 : x, t, r = opq_exp_reduce(-(-105 > z ? -105 : z), &t);
    float s = opq_f32_of_bits((opq_f32_bits(t) << 23) + ((127u - 31) << 23));
    return 0x1p-31f / fmaf(opq_exp_reduced(r), s, 0x1p-31f);
}

/* expm1(r), and 2^n; |x| < 700 */
static inline double opq_exp_parts(double x, double *out_scale)
{
    double t = fma(x, OPQ_LOG2_E, OPQ_MAGIC_F64), minus_n = OPQ_MAGIC_F64 - t;
    double r = fma(minus_n, OPQ_LN2_LOW_F64, fma(minus_n, OPQ_LN2_HIGH_F64, x));
    *out_scale = opq_f64_of_bits((opq_f64_bits(t) << 52) + (UINT64_C(1023) << 52));
    return r * OPQ_POLY_F64(EXPM1_64, r);
}

/* Good for f32 results, not for f64 ones, and so are all functions of doubles below. */
static inline double opq_exp_wide(double x)
{
    double s, q = opq_exp_parts(x, &s);
    return fma(s, q, s);
}

static inline double opq_expm1_wide(double x)
{
    double s, q = opq_exp_parts(x, &s);
    return fma(s, q, s - 1);
}

/* ---- logarithms: x = 2^k m, k and m cut out of the bits */

/* `y` where x is positive and finite; else -inf of 0, NaN below, inf and NaN as they are. */
static inline float opq_log_domain(float x, float y)
{
    if (opq_f32_bits(x) - 1 < 0x7f7fffff)
        return y;
    return x == 0 ? -INFINITY : x < 0 ? NAN : x;
}

/* m in [3/4, 3/2) = 1 + r: log(1 + r) = r - r^2/2 + r^3 q(r). A denormal is its own bits times 2^-149. */
static inline float opq_log_f32(float x)
{
    bool denormal = x < 0x1p-126f;
    uint32_t bits = opq_f32_bits(denormal ? (float)(int32_t)opq_f32_bits(x) : x);
    uint32_t power = (bits - opq_f32_bits(0.75f)) & 0xff800000;
    float r = opq_f32_of_bits(bits - power) - 1;
    float k = (float)((int32_t)power >> 23) - (denormal ? 149.0f : 0.0f);
    float r2 = r * r, q = OPQ_POLY_F32(LOG32, r) * r;
    q = fmaf(r2, -0.5f, fmaf(q, r2, k * OPQ_LN2_LOW_F32));
    return opq_log_domain(x, fmaf(k, OPQ_LN2_HIGH_F32, r + q));
}

/* m in [sqrt(1/2), sqrt(2)) */
static inline double opq_log_split(double x, double *out_k)
{
    const uint64_t one = opq_f64_bits(1), low = 0x3fe6a09e667f3bcd; /* the bits of sqrt(1/2) */
    uint64_t bits = opq_f64_bits(x), biased = (bits + (one - low)) >> 52;
    *out_k = (double)((int32_t)(uint32_t)biased - 1023);
    return opq_f64_of_bits(bits - (biased << 52) + one);
}

/* log(1 + r), r in [sqrt(1/2) - 1, sqrt(2) - 1), as 2 atanh(s) */
static inline double opq_log1p_core(double r)
{
    double s = r / (r + 2);
    return s * OPQ_POLY_F64(LOG64, s * s);
}

/* k and log(m) */
static inline double opq_log_wide(double x, double *out_k)
{
    double m = opq_log_split(x, out_k);
    return opq_log1p_core(m - 1);
}

/* Where 1 + x needs no scaling, x itself is exact and 1 + x is not. */
static inline double opq_log1p_wide(double x)
{
    double k, m = opq_log_split(x + 1, &k);
    return fma(k, OPQ_LN2, opq_log1p_core(k == 0 ? x : m - 1));
}

static inline float opq_logaddexp_f32(float x, float y) { return (float)opq_logaddexp_f64((double)x, (double)y); }

static inline float opq_log2_f32(float x)
{
    double k, log_m = opq_log_wide((double)x, &k);
    return opq_log_domain(x, (float)fma(log_m, OPQ_LOG2_E, k));
}

static inline float opq_log10_f32(float x)
{
    const double log10_e = 0x1.bcb7b1526e50ep-2, log10_2 = 0x1.34413509f79ffp-2;
    double k, log_m = opq_log_wide((double)x, &k);
    return opq_log_domain(x, (float)fma(k, log10_2, log_m * log10_e));
}

static inline float opq_log1p_f32(float x)
{
    float y = (float)opq_log1p_wide((double)x);
    if (x == -1)
        y = -INFINITY;
    else if (x < -1)
        y = NAN;
    else if (!(x < INFINITY)) /* inf and NaN as they are */
        y = x;
    return copysignf(y, x);
}

/* ---- sine, cosine, tangent: x = n pi + r up to 30000, exact reduction beyond */

#define OPQ_TRIG_FAST 30000.0f

/* x = quadrant * pi/2 + r */
typedef struct opq_angle {
    uint32_t quadrant;
    double r;
} opq_angle;

static inline double opq_mod4(double x) { return fma(rint(x * 0.25), -4, x); }

/* |x| for 2^14 <= |x| < inf: its mantissa times a window of 2/pi that begins near its exponent. */
static inline opq_angle opq_trig_reduce_exact(float x)
{
    uint32_t bits = opq_f32_bits(x) & 0x7fffffff, group = bits >> 26;
    double m = (double)(((bits & 0x007fffff) | 0x00800000) << (bits >> 23 & 7)), product[4];
    for (int i = 0; i < 4; i++)
        product[i] = m * (double)TWO_OVER_PI[i][group];
    double leading = opq_mod4(product[0]) + opq_mod4(product[1]), whole = rint(leading);
    double fraction = leading - whole + (product[2] + product[3]);
    return (opq_angle){.quadrant = (uint32_t)(int32_t)whole, .r = fraction * OPQ_HALF_PI};
}

/* The quadrant's low bit exchanges sine and cosine, the next negates. */
static inline float opq_sin_of_angle(opq_angle a)
{
    double s = a.r * a.r, sine = a.r * OPQ_POLY_F64(SIN64, s), cosine = OPQ_POLY_F64(COS64, s);
    float y = (float)(a.quadrant & 1 ? cosine : sine);
    return a.quadrant & 2 ? -y : y;
}

static inline float opq_tan_of_angle(opq_angle a)
{
    double s = a.r * a.r, sine = a.r * OPQ_POLY_F64(SIN64, s), cosine = OPQ_POLY_F64(COS64, s);
    return (float)(a.quadrant & 1 ? -cosine / sine : sine / cosine);
}

/* x - h pi: the first step is exact, the others each add a part of pi. */
static inline float opq_trig_subtract(float x, float h)
{
    return fmaf(h, 0x1.ee59dap-49f, fmaf(h, 0x1.777a5cp-24f, fmaf(h, -0x1.921fb6p+1f, x)));
}

/* (-1)^n sin(r), |r| <= pi/2; n in the low bit of t */
static inline float opq_sin_core(float r, float t)
{
    float s = r * r;
    r = opq_f32_of_bits(opq_f32_bits(r) ^ opq_f32_bits(t) << 31);
    return fmaf(r * s, OPQ_POLY_F32(SIN32, s), r);
}

static inline float opq_sin_f32(float x)
{
    if (!(fabsf(x) < INFINITY))
        return NAN;
    if (fabsf(x) > OPQ_TRIG_FAST) {
        float y = opq_sin_of_angle(opq_trig_reduce_exact(x));
        return x < 0 ? -y : y;
    }
    float t = fmaf(x, 0x1.45f306p-2f, OPQ_MAGIC_F32);
    return x == 0 ? x : opq_sin_core(opq_trig_subtract(x, t - OPQ_MAGIC_F32), t); /* 0 for the sign of -0 */
}

/* -(-1)^n sin(x - (n + 1/2) pi) */
static inline float opq_cos_f32(float x)
{
    if (!(fabsf(x) < INFINITY))
        return NAN;
    if (fabsf(x) > OPQ_TRIG_FAST) {
        opq_angle a = opq_trig_reduce_exact(x);
        a.quadrant++;
        return opq_sin_of_angle(a);
    }
    float t = fmaf(x, 0x1.45f306p-2f, -0.5f) + OPQ_MAGIC_F32, h = t - OPQ_MAGIC_F32 + 0.5f;
    return opq_sin_core(-opq_trig_subtract(x, h), t);
}

static inline float opq_tan_f32(float x)
{
    if (!(fabsf(x) < INFINITY))
        return NAN;
    if (fabsf(x) > OPQ_TRIG_FAST) {
        float y = opq_tan_of_angle(opq_trig_reduce_exact(x));
        return x < 0 ? -y : y;
    }
    double z = (double)x, n = rint(z * 0x1.45f306dc9c883p-1);
    double r = fma(n, -0x1.1a62633145c07p-54, fma(n, -OPQ_HALF_PI, z));
    return x == 0 ? x : opq_tan_of_angle((opq_angle){.quadrant = (uint32_t)(int32_t)n, .r = r});
}

/* ---- inverse functions */

/* atan(y/x) in [0, pi/2] for y, x >= 0; 0/0 is 0, inf/inf is 1. */
static inline double opq_atan_of_quotient(double y, double x)
{
    bool steep = y > x;
    double numerator = steep ? x : y, denominator = steep ? y : x, t = numerator / denominator;
    if (denominator == 0)
        t = 0;
    else if (numerator == denominator)
        t = 1;
    double angle = t * OPQ_POLY_F64(ATAN64, t * t);
    return steep ? OPQ_HALF_PI - angle : angle;
}

static inline float opq_atan_f32(float x) { return copysignf((float)opq_atan_of_quotient((double)fabsf(x), 1), x); }

static inline float opq_atan2_f32(float y, float x)
{
    double angle = opq_atan_of_quotient((double)fabsf(y), (double)fabsf(x));
    if (x != x || y != y)
        return NAN;
    return copysignf((float)(opq_signbit_f32(x) ? OPQ_PI - angle : angle), y);
}

/* asin of t = |x| up to 1/2; past it of sqrt((1-t)/2), with asin(t) = pi/2 - 2 asin(of it). NaN past 1. */
static inline double opq_asin_core(double t)
{
    double s = t > 0.5 ? sqrt((1 - t) * 0.5) : t;
    return s * OPQ_POLY_F64(ASIN64, s * s);
}

static inline float opq_asin_f32(float x)
{
    double t = (double)fabsf(x), core = opq_asin_core(t);
    return copysignf((float)(t > 0.5 ? fma(core, -2, OPQ_HALF_PI) : core), x);
}

static inline float opq_acos_f32(float x)
{
    double t = (double)fabsf(x), core = opq_asin_core(t);
    if (t > 0.5)
        return (float)(x < 0 ? OPQ_PI - (core + core) : core + core);
    return (float)(OPQ_HALF_PI - (x < 0 ? -core : core));
}

/* ---- hyperbolic functions and the error function */

/* An odd function from its table, 1 from `top` on: the intervals are half octaves of 2 + scale |x|, and the first is centred on 0.
 * The last coefficient is the lower half of the one before. */
static inline float opq_odd_table(const float table[7][8], float scale, float top, float x)
{
    float t = top < fabsf(x) ? top : fabsf(x);
    uint32_t index = opq_f32_bits(fmaf(t, scale, 2)) >> 22 & 7;
    float d = t - table[6][index], pair = table[5][index];
    float y = fmaf(opq_f32_of_bits(opq_f32_bits(pair) << 16), d, pair);
    for (int p = 3; p > 0; p -= 2)
        y = fmaf(y, d * d, fmaf(table[p + 1][index], d, table[p][index]));
    return copysignf(fmaf(y, d, table[0][index]), x);
}

static inline float opq_tanh_f32(float x) { return opq_odd_table(TANH_TABLE, TANH_SCALE, TANH_TOP, x); }
static inline float opq_erf_f32(float x) { return opq_odd_table(ERF_TABLE, ERF_SCALE, ERF_TOP, x); }

/* At most 100: past that every result overflows f32 but not f64. */
static inline double opq_clamped_magnitude(float x) { return (double)(100 < fabsf(x) ? 100 : fabsf(x)); }

/* (m + m/(m+1)) / 2 with m = expm1(|x|): no cancellation near 0 */
static inline float opq_sinh_f32(float x)
{
    double m = opq_expm1_wide(opq_clamped_magnitude(x));
    return copysignf((float)((m + m / (m + 1)) * 0.5), x);
}

static inline float opq_cosh_f32(float x)
{
    double power = opq_exp_wide(opq_clamped_magnitude(x));
    return (float)((power + 1 / power) * 0.5);
}

/* log1p(t + t^2 / (1 + sqrt(t^2 + 1))), t = |x| */
static inline float opq_asinh_f32(float x)
{
    double t = (double)fabsf(x), t2 = t * t;
    float y = (float)opq_log1p_wide(t + t2 / (sqrt(t2 + 1) + 1));
    return fabsf(x) < INFINITY ? copysignf(y, x) : x;
}

/* log1p(t + sqrt(t^2 + 2t)), t = x - 1 */
static inline float opq_acosh_f32(float x)
{
    double t = (double)x - 1;
    if (!(x < INFINITY))
        return x;
    return x < 1 ? NAN : (float)opq_log1p_wide(t + sqrt(t * (t + 2)));
}

/* log1p(2t / (1 - t)) / 2, t = |x| */
static inline float opq_atanh_f32(float x)
{
    double t = (double)fabsf(x);
    float y = t < 1 ? (float)(opq_log1p_wide((t + t) / (1 - t)) * 0.5) : t == 1 ? INFINITY : NAN;
    return copysignf(y, x);
}

/* exp(-t^2) P((t-3)/(t+3)) / (1 + 2t), and 2 - erfc(-x) on the left. Past 10.1 it is below half of the least denormal. */
static inline float opq_erfc_f32(float x)
{
    double t = (double)(10.125f < fabsf(x) ? 10.125f : fabsf(x));
    double p = OPQ_POLY_F64(ERFC64, (t - 3) / (t + 3)), y = opq_exp_wide(-(t * t)) * p / fma(t, 2, 1);
    return (float)(x < 0 ? 2 - y : y);
}

/* ---- pow: 2^(y log2|x|), and C99's special cases around it */

static inline double opq_log2_magnitude(float magnitude)
{
    if (magnitude == 0)
        return -INFINITY;
    if (magnitude == INFINITY)
        return INFINITY;
    double k, log_m = opq_log_wide((double)magnitude, &k);
    return fma(log_m, OPQ_LOG2_E, k);
}

static inline float opq_pow_f32(float x, float y)
{
    if (x == 1 || y == 0)
        return 1;
    if (x != x || y != y)
        return NAN;
    double p = opq_log2_magnitude(fabsf(x)) * (double)y;
    p = 200 < p ? 200 : p;
    p = -200 > p ? -200 : p;
    float result = fabsf(x) == 1 ? 1 : (float)opq_exp_wide(p * OPQ_LN2); /* (-1)^inf: the product is 0 * inf */
    /* A negative base: an odd exponent gives a negative result, a fraction none. Large floats are even. */
    bool integer = truncf(y) == y, even = truncf(y * 0.5f) == y * 0.5f;
    if (x < 0 && x > -INFINITY && !integer)
        return NAN;
    return integer && !even ? copysignf(result, x) : result;
}

/* ---- random numbers: element `index` of the stream (seed, offset) */

/* Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. */
static inline void opq_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out_words[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p = UINT64_C(0xD2511F53) * c[0], q = UINT64_C(0xCD9E8D57) * c[2];
        uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k[0], (uint32_t)q, (uint32_t)(p >> 32) ^ c[3] ^ k[1],
                            (uint32_t)p};
        memcpy(c, next, sizeof c);
        k[0] += UINT32_C(0x9E3779B9);
        k[1] += UINT32_C(0xBB67AE85);
    }
    memcpy(out_words, c, sizeof c);
}

static inline void opq_random_words(int64_t index, int64_t seed, int64_t offset, uint32_t out_words[4])
{
    uint64_t i = (uint64_t)index, s = (uint64_t)seed, o = (uint64_t)offset;
    const uint32_t key[2] = {(uint32_t)s, (uint32_t)(s >> 32)};
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), (uint32_t)o, (uint32_t)(o >> 32)};
    opq_philox(counter, key, out_words);
}

/* [0, 1), a multiple of 2^-24 */
static inline float opq_uniform_f32(int64_t index, int64_t seed, int64_t offset)
{
    uint32_t words[4];
    opq_random_words(index, seed, offset, words);
    return (float)(words[0] >> 8) * 0x1p-24f;
}

/* Box and Muller 1958, the cosine branch; the first uniform number is in (0, 1] so that its logarithm is finite. */
static inline float opq_normal_f32(int64_t index, int64_t seed, int64_t offset)
{
    uint32_t words[4];
    opq_random_words(index, seed, offset, words);
    float u = ((float)(words[0] >> 8) + 1) * 0x1p-24f, v = (float)(words[1] >> 8) * 0x1p-24f;
    return sqrtf(-2 * opq_log_f32(u)) * opq_cos_f32((float)(2 * OPQ_PI) * v);
}

#endif
