/* The functions of CALL rows, one number at a time.
 *
 * Exact functions (everything above "transcendental" below) are the definition: generated code gives the same bits.
 * Transcendental functions go through the C library in double and are rounded once; generated code may differ by a few ULP.
 *
 * Integer division never traps. A divisor of 0 is an error that eval_ewise.c finds. The smallest integer divided by -1 wraps
 * to itself, with remainder 0.
 */
#include "graph/eval.h"

#include <math.h>
#include <string.h>

static opq_number of_int(int64_t i) { return (opq_number){.i = i}; }
static opq_number of_float(double f) { return (opq_number){.f = f}; }
static opq_number real(opq_dtype dtype, double f) { return of_float(dtype == OPQ_f64 ? f : (double)(float)f); }

/* ---- division, after ATen's div_floor_floating, div_floor_integer, remainder and fmod kernels */

#define FLOAT_DIVISION(real_type, suffix)                                                                              \
    static real_type remainder_##real_type(real_type a, real_type b)                                                   \
    {                                                                                                                  \
        real_type mod = fmod##suffix(a, b);                                                                            \
        return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;                                                       \
    }                                                                                                                  \
    static real_type floor_##real_type(real_type a, real_type b)                                                       \
    {                                                                                                                  \
        if (b == 0)                                                                                                    \
            return a / b;                                                                                              \
        real_type mod = fmod##suffix(a, b);                                                                            \
        real_type quotient = (a - mod) / b;                                                                            \
        if (mod != 0 && (b < 0) != (mod < 0))                                                                          \
            quotient -= 1;                                                                                             \
        if (quotient == 0)                                                                                             \
            return copysign##suffix(0, a / b);                                                                         \
        real_type whole = floor##suffix(quotient);                                                                     \
        return quotient - whole > (real_type)0.5 ? whole + 1 : whole;                                                  \
    }
FLOAT_DIVISION(float, f)
FLOAT_DIVISION(double, )

/* a / b and a % b as C has them, without its traps */
static int64_t int_div(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static int64_t int_mod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

/* The quotient is rounded to the dtype before it is cut: 1 / 0.1 is 10 in bf16, and 9.99 in f32. */
static opq_number eval_div_trunc(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype))
        return of_int(int_div(x[0].i, x[1].i));
    opq_number quotient = opq_eval_arith(OPQ_ARITH_FDiv, dtype, x[0], x[1]);
    return of_float(trunc(opq_eval_rounded(dtype, quotient).f));
}

static opq_number eval_div_floor(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype)) {
        int64_t mod = int_mod(x[0].i, x[1].i);
        return of_int(int_div(x[0].i, x[1].i) - (mod != 0 && (mod < 0) != (x[1].i < 0)));
    }
    return of_float(dtype == OPQ_f64 ? floor_double(x[0].f, x[1].f) : (double)floor_float((float)x[0].f, (float)x[1].f));
}

static opq_number eval_remainder(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype)) {
        int64_t mod = int_mod(x[0].i, x[1].i);
        return of_int(mod != 0 && (mod < 0) != (x[1].i < 0) ? mod + x[1].i : mod);
    }
    return of_float(dtype == OPQ_f64 ? remainder_double(x[0].f, x[1].f)
                                     : (double)remainder_float((float)x[0].f, (float)x[1].f));
}

static opq_number eval_fmod(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype))
        return of_int(int_mod(x[0].i, x[1].i));
    return of_float(fmod(x[0].f, x[1].f)); /* exact, so that the width does not matter */
}

/* ---- sign, order, rounding, bits */

static opq_number eval_neg(opq_dtype dtype, const opq_number *x)
{
    return opq_eval_is_float(dtype) ? of_float(-x[0].f) : of_int((int64_t)(0 - (uint64_t)x[0].i));
}

static opq_number eval_abs(opq_dtype dtype, const opq_number *x)
{
    if (opq_eval_is_float(dtype))
        return of_float(fabs(x[0].f));
    return x[0].i < 0 ? eval_neg(dtype, x) : x[0];
}

/* NaN and both zeros give +0, as torch.sign does. */
static opq_number eval_sign(opq_dtype dtype, const opq_number *x)
{
    if (opq_eval_is_float(dtype))
        return of_float((double)((x[0].f > 0) - (x[0].f < 0)));
    return of_int((x[0].i > 0) - (x[0].i < 0));
}

static opq_number eval_signbit(opq_dtype dtype, const opq_number *x)
{
    return of_int(opq_eval_is_float(dtype) ? signbit(x[0].f) != 0 : x[0].i < 0);
}

static opq_number eval_copysign(opq_dtype dtype, const opq_number *x)
{
    if (opq_eval_is_float(dtype))
        return of_float(copysign(x[0].f, x[1].f));
    opq_number magnitude = eval_abs(dtype, x);
    return x[1].i < 0 ? eval_neg(dtype, &magnitude) : magnitude;
}

static opq_number eval_maximum(opq_dtype dtype, const opq_number *x) { return opq_eval_max(dtype, x[0], x[1]); }
static opq_number eval_minimum(opq_dtype dtype, const opq_number *x) { return opq_eval_min(dtype, x[0], x[1]); }

static opq_number eval_bitwise_not(opq_dtype dtype, const opq_number *x)
{
    return of_int(dtype == OPQ_bool ? !x[0].i : ~x[0].i);
}

static opq_number eval_sqrt(opq_dtype dtype, const opq_number *x)
{
    return of_float(dtype == OPQ_f64 ? sqrt(x[0].f) : (double)sqrtf((float)x[0].f));
}

/* Exact, and integers stay as they are. `rint` is half to even in the default rounding mode. */
#define ROUNDING(name, function)                                                                                       \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x)                                                \
    {                                                                                                                  \
        return opq_eval_is_float(dtype) ? of_float(function(x[0].f)) : x[0];                                           \
    }
ROUNDING(floor, floor)
ROUNDING(ceil, ceil)
ROUNDING(trunc, trunc)
ROUNDING(round, rint)

/* ---- transcendental */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* clang-format off */
#define MATH1(X)                                                                                                       \
    X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh)      \
    X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(erf) X(erfc) X(sigmoid)
/* clang-format on */
#define X(name)                                                                                                        \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x) { return real(dtype, name(x[0].f)); }
MATH1(X)
#undef X

static opq_number eval_atan2(opq_dtype dtype, const opq_number *x) { return real(dtype, atan2(x[0].f, x[1].f)); }

/* Of integers: wraps; a negative exponent gives 0 but for the bases 1 and -1, whose powers are exact. */
static opq_number eval_pow(opq_dtype dtype, const opq_number *x)
{
    if (opq_eval_is_float(dtype))
        return real(dtype, pow(x[0].f, x[1].f));
    bool unit = x[0].i == 1 || x[0].i == -1;
    uint64_t power = 1, base = (uint64_t)x[0].i, exponent = (uint64_t)x[1].i;
    if (x[1].i < 0 && !unit)
        return of_int(0);
    for (; exponent != 0; exponent >>= 1, base *= base)
        if (exponent & 1)
            power *= base;
    return of_int((int64_t)power);
}

/* ---- by name */

static const struct {
    const char *name;
    opq_eval_fn *function;
} table[] = {
#define X(name) {#name, eval_##name},
    X(div_trunc) X(div_floor) X(remainder) X(fmod) X(neg) X(abs) X(sign) X(signbit) X(copysign) X(maximum) X(minimum)
        X(bitwise_not) X(sqrt) X(floor) X(ceil) X(trunc) X(round) MATH1(X) X(atan2) X(pow)
#undef X
};

opq_eval_fn *opq_eval_call(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].function;
    return NULL;
}
