/* What the ops of the table do to one number, in plain C: conversions, integer arithmetic, division, order, rounding.
 *
 * The reference evaluator computes with these functions, and printed kernels (graph(stage="c")) include this file; generated code gives the
 * same bits. No dependence on the host but IEEE arithmetic, rounded to nearest: compile with -ffp-contract=off.
 *
 * A function's suffix is the type in which it computes: f32 (f16 and bf16, too), f64, or i64 for every integer and bool, whose result the
 * caller cuts to its own type. What needs no function is C's own operator: + on floats, < on everything.
 */
#ifndef OPAQUE_SCALAR_H
#define OPAQUE_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* ---- bits */

#define OPQ_BITS(name, real, word)                                                                                     \
    static inline word opq_##name##_bits(real value)                                                                   \
    {                                                                                                                  \
        word bits;                                                                                                     \
        memcpy(&bits, &value, sizeof bits);                                                                            \
        return bits;                                                                                                   \
    }                                                                                                                  \
    static inline real opq_##name##_of_bits(word bits)                                                                 \
    {                                                                                                                  \
        real value;                                                                                                    \
        memcpy(&value, &bits, sizeof value);                                                                           \
        return value;                                                                                                  \
    }
OPQ_BITS(f32, float, uint32_t)
OPQ_BITS(f64, double, uint64_t)
#undef OPQ_BITS

/* ---- f16 and bf16 as f32 and back, in integers: round to nearest even, NaN stays NaN
 *
 * Rounding to nearest even adds "half of the last kept place, less one if the kept part is even" below the cut and lets the
 * carry run: out of the mantissa into the exponent, and from the largest finite number into infinity, both of which are right.
 */

/* bits >> shift, rounded to nearest even; 1 <= shift <= 31 */
static inline uint32_t opq_shift_even(uint32_t bits, int shift)
{
    uint32_t odd = (bits >> shift) & 1;
    return (bits + ((UINT32_C(1) << (shift - 1)) - 1) + odd) >> shift;
}

static inline float opq_bf16_to_f32(uint16_t bits) { return opq_f32_of_bits((uint32_t)bits << 16); }

static inline uint16_t opq_f32_to_bf16(float value)
{
    uint32_t bits = opq_f32_bits(value);
    if (value != value)
        return (uint16_t)((bits >> 16) | 0x40); /* quiet: a NaN whose payload lies below the cut must not become infinity */
    return (uint16_t)opq_shift_even(bits, 16);
}

static inline float opq_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t mantissa = half & 0x3ff;

    if (exponent == 0x1f)
        return opq_f32_of_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) { /* zero or denormal: mantissa * 2^-24, exact in f32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return opq_f32_of_bits(sign | opq_f32_bits(magnitude));
    }
    return opq_f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t opq_f32_to_f16(float value)
{
    uint32_t bits = opq_f32_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    int exponent = (int)(magnitude >> 23);

    if (value != value)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (exponent >= 143) /* 2^16 and above, infinity included */
        return (uint16_t)(sign | 0x7c00);
    if (exponent >= 113) /* normal in f16; 65520 and above carry into infinity */
        return (uint16_t)(sign | opq_shift_even(magnitude - (UINT32_C(112) << 23), 13));
    if (exponent < 102) /* below half of the smallest denormal */
        return sign;
    return (uint16_t)(sign | opq_shift_even((magnitude & 0x7fffff) | 0x800000, 126 - exponent));
}

/* Rounded to the narrow type, and as f32 again. */
static inline float opq_round_f16(float x) { return opq_f16_to_f32(opq_f32_to_f16(x)); }
static inline float opq_round_bf16(float x) { return opq_bf16_to_f32(opq_f32_to_bf16(x)); }

/* ---- the rule "pairs" of products of bf16: what AVX512_BF16 does
 *
 * A step takes two elements of either operand: sum = fma(x[1], y[1], sum), then sum = fma(x[0], y[0], sum): the second product first. Each is
 * rounded to nearest even; a denormal that goes in is 0, and what comes out too small for a normal number is 0, both of its sign. Too small is
 * what would be so with any exponent: of what lies less than a quarter of a place below 0x1p-126 fmaf makes that number, which it stays. */
static inline float opq_no_denormal(float value)
{
    return (opq_f32_bits(value) & 0x7f800000) ? value : copysignf(0, value);
}

static inline float opq_pairs_fma(float x, float y, float sum)
{
    float a = opq_no_denormal(x), b = opq_no_denormal(y), c = opq_no_denormal(sum), result = fmaf(a, b, c);
    /* The sum is exact in f64 wherever it is that small. */
    if (fabsf(result) <= 0x1p-126f && fabs((double)a * b + c) < 0x1.ffffffp-127)
        return copysignf(0, result);
    return result;
}

static inline float opq_pairs_step(float x0, float x1, float y0, float y1, float sum)
{
    return opq_pairs_fma(x0, y0, opq_pairs_fma(x1, y1, sum));
}

/* ---- and "pairs16": what AMX does
 *
 * A step takes sixteen pairs. From +0 on, the products of the first ones of each are added up, one fma after the other, and those of the second
 * ones; then both sums to each other, and that to what there was. All of it is rounded as above. */
enum { OPQ_PAIRS_MAX = 2 * 16 };

static inline float opq_pairs_sum(float x, float y)
{
    return opq_no_denormal(opq_no_denormal(x) + opq_no_denormal(y)); /* exact, where it is a denormal */
}

/* A step of either rule, of `pairs` pairs (1 or 16): the products of `count` elements, of zeros behind them. What is no bf16 is rounded to
 * it, a denormal to 0, as VCVTNEPS2BF16 does. */
static inline float opq_pairs_steps(int pairs, const float *x, const float *y, int count, float sum)
{
    float a[OPQ_PAIRS_MAX] = {0}, b[OPQ_PAIRS_MAX] = {0}, part[2] = {0, 0};
    for (int i = 0; i < count; i++) {
        a[i] = opq_round_bf16(opq_no_denormal(x[i]));
        b[i] = opq_round_bf16(opq_no_denormal(y[i]));
    }
    if (pairs == 1)
        return opq_pairs_step(a[0], a[1], b[0], b[1], sum);
    for (int i = 0; i < OPQ_PAIRS_MAX; i++)
        part[i % 2] = opq_pairs_fma(a[i], b[i], part[i % 2]);
    return opq_pairs_sum(sum, opq_pairs_sum(part[0], part[1]));
}

/* ---- float to integer, as cvttss2si does it: NaN and what does not fit become the smallest integer */

static inline int64_t opq_f64_to_i64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
static inline int32_t opq_f64_to_i32(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }

/* ---- integers: wrap, and division never traps
 *
 * Division by 0 gives 0; that it is an error is found elsewhere. The smallest integer divided by -1 wraps to itself, with remainder 0.
 */

static inline int64_t opq_add_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t opq_sub_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static inline int64_t opq_mul_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static inline int64_t opq_neg_i64(int64_t a) { return opq_sub_i64(0, a); }

static inline int64_t opq_div_trunc_i64(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    return b == -1 ? opq_neg_i64(a) : a / b;
}

static inline int64_t opq_fmod_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

static inline int64_t opq_div_floor_i64(int64_t a, int64_t b)
{
    int64_t mod = opq_fmod_i64(a, b);
    return opq_div_trunc_i64(a, b) - (mod != 0 && (mod < 0) != (b < 0));
}

static inline int64_t opq_remainder_i64(int64_t a, int64_t b)
{
    int64_t mod = opq_fmod_i64(a, b);
    return mod != 0 && (mod < 0) != (b < 0) ? mod + b : mod;
}

static inline int64_t opq_euclid_i64(int64_t a, int64_t b)
{
    while (a != 0) {
        int64_t rest = opq_fmod_i64(b, a);
        b = a;
        a = rest;
    }
    return b;
}

static inline int64_t opq_abs_i64(int64_t a) { return a < 0 ? opq_neg_i64(a) : a; }
static inline int64_t opq_sign_i64(int64_t a) { return (a > 0) - (a < 0); }
static inline bool opq_signbit_i64(int64_t a) { return a < 0; }
static inline int64_t opq_copysign_i64(int64_t a, int64_t b)
{
    return b < 0 ? opq_neg_i64(opq_abs_i64(a)) : opq_abs_i64(a);
}
static inline int64_t opq_nextafter_i64(int64_t a, int64_t b)
{
    return a < b ? a + 1 : a > b ? a - 1 : a;
} /* no row has it */
static inline int64_t opq_maximum_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t opq_minimum_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t opq_bitwise_not_i64(int64_t a) { return ~a; }
static inline bool opq_bitwise_not_bool(bool a) { return !a; }
static inline int64_t opq_floor_i64(int64_t a) { return a; }
static inline int64_t opq_ceil_i64(int64_t a) { return a; }
static inline int64_t opq_trunc_i64(int64_t a) { return a; }
static inline int64_t opq_round_i64(int64_t a) { return a; }

/* ---- floats
 *
 * Division after ATen's div_floor_floating, remainder and fmod kernels; C's fmod is exact everywhere. maximum and minimum: NaN in either
 * operand wins; of equal operands, which only differ as -0 and +0, the second is the result, as x86's maxps has it. NaN and both zeros have
 * the sign +0, as torch.sign gives it. rint is half to even in the default rounding mode.
 * Of signbit GCC 12 makes vector code that it cannot assemble.
 */
#define OPQ_FLOAT(name, real, suffix)                                                                                  \
    static inline real opq_fmod_##name(real a, real b) { return fmod##suffix(a, b); }                                  \
    static inline real opq_remainder_##name(real a, real b)                                                            \
    {                                                                                                                  \
        real mod = fmod##suffix(a, b);                                                                                 \
        return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;                                                       \
    }                                                                                                                  \
    static inline real opq_div_trunc_##name(real a, real b) { return trunc##suffix(a / b); }                           \
    static inline real opq_div_floor_##name(real a, real b)                                                            \
    {                                                                                                                  \
        if (b == 0)                                                                                                    \
            return a / b;                                                                                              \
        real mod = fmod##suffix(a, b);                                                                                 \
        real quotient = (a - mod) / b;                                                                                 \
        if (mod != 0 && (b < 0) != (mod < 0))                                                                          \
            quotient -= 1;                                                                                             \
        if (quotient == 0)                                                                                             \
            return copysign##suffix(0, a / b);                                                                         \
        real whole = floor##suffix(quotient);                                                                          \
        return quotient - whole > (real)0.5 ? whole + 1 : whole;                                                       \
    }                                                                                                                  \
    static inline real opq_neg_##name(real a) { return -a; }                                                           \
    static inline real opq_abs_##name(real a) { return fabs##suffix(a); }                                              \
    static inline real opq_sign_##name(real a) { return (real)((a > 0) - (a < 0)); }                                   \
    static inline bool opq_signbit_##name(real a) { return opq_##name##_bits(a) >> (8 * sizeof(real) - 1) != 0; }      \
    static inline real opq_copysign_##name(real a, real b) { return copysign##suffix(a, b); }                          \
    static inline real opq_nextafter_##name(real a, real b) { return nextafter##suffix(a, b); }                        \
    static inline real opq_maximum_##name(real a, real b) { return a > b || a != a ? a : b; }                          \
    static inline real opq_minimum_##name(real a, real b) { return a < b || a != a ? a : b; }                          \
    static inline real opq_sqrt_##name(real a) { return sqrt##suffix(a); }                                             \
    static inline real opq_floor_##name(real a) { return floor##suffix(a); }                                           \
    static inline real opq_ceil_##name(real a) { return ceil##suffix(a); }                                             \
    static inline real opq_trunc_##name(real a) { return trunc##suffix(a); }                                           \
    static inline real opq_round_##name(real a) { return rint##suffix(a); }
OPQ_FLOAT(f32, float, f)
OPQ_FLOAT(f64, double, )
#undef OPQ_FLOAT

#endif
