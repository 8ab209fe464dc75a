/* The functions of CALL rows, one number at a time: opaque/scalar.h and opaque/scalar_math.h on an opq_number.
 *
 * They are the definition: generated code gives the same bits. Only transcendental functions of f64 that no code is generated for
 * are the C library's. A divisor of 0 is an error that eval_ewise.c finds.
 */
#include "graph/eval.h"

#include "opaque/scalar_math.h"

static opq_number of_int(int64_t i) { return (opq_number){.i = i}; }
static opq_number of_float(double f) { return (opq_number){.f = f}; }

/* ---- exact functions */

#define UNARY(name)                                                                                                    \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x)                                                \
    {                                                                                                                  \
        if (!opq_eval_is_float(dtype))                                                                                 \
            return of_int(opq_##name##_i64(x[0].i));                                                                   \
        return of_float(dtype == OPQ_f64 ? opq_##name##_f64(x[0].f) : (double)opq_##name##_f32((float)x[0].f));        \
    }
#define BINARY(name)                                                                                                   \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x)                                                \
    {                                                                                                                  \
        if (!opq_eval_is_float(dtype))                                                                                 \
            return of_int(opq_##name##_i64(x[0].i, x[1].i));                                                           \
        return of_float(dtype == OPQ_f64 ? opq_##name##_f64(x[0].f, x[1].f)                                            \
                                         : (double)opq_##name##_f32((float)x[0].f, (float)x[1].f));                    \
    }
/* clang-format off */
UNARY(neg) UNARY(abs) UNARY(sign) UNARY(floor) UNARY(ceil) UNARY(trunc) UNARY(round)
BINARY(div_floor) BINARY(remainder) BINARY(fmod) BINARY(copysign) BINARY(nextafter) BINARY(maximum) BINARY(minimum)
/* clang-format on */
#undef UNARY
#undef BINARY

    /* The quotient is rounded to the dtype before it is cut: 1 / 0.1 is 10 in bf16, and 9.99 in f32. */
    static opq_number eval_div_trunc(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype))
        return of_int(opq_div_trunc_i64(x[0].i, x[1].i));
    opq_number quotient = opq_eval_arith(OPQ_ARITH_FDiv, dtype, x[0], x[1]);
    return of_float(trunc(opq_eval_rounded(dtype, quotient).f));
}

static opq_number eval_euclid(opq_dtype dtype, const opq_number *x)
{
    (void)dtype;
    return of_int(opq_euclid_i64(x[0].i, x[1].i));
}

static opq_number eval_signbit(opq_dtype dtype, const opq_number *x)
{
    return of_int(opq_eval_is_float(dtype) ? opq_signbit_f64(x[0].f) : opq_signbit_i64(x[0].i));
}

static opq_number eval_bitwise_not(opq_dtype dtype, const opq_number *x)
{
    return of_int(dtype == OPQ_bool ? opq_bitwise_not_bool(x[0].i) : opq_bitwise_not_i64(x[0].i));
}

static opq_number eval_sqrt(opq_dtype dtype, const opq_number *x)
{
    return of_float(dtype == OPQ_f64 ? sqrt(x[0].f) : (double)sqrtf((float)x[0].f));
}

/* ---- transcendental */

#define X(name)                                                                                                        \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x)                                                \
    {                                                                                                                  \
        return of_float(dtype == OPQ_f64 ? opq_##name##_f64(x[0].f) : (double)opq_##name##_f32((float)x[0].f));        \
    }
OPQ_MATH1_F64(X)
#undef X
#define X(name)                                                                                                        \
    static opq_number eval_##name(opq_dtype dtype, const opq_number *x)                                                \
    {                                                                                                                  \
        return of_float(dtype == OPQ_f64 ? name(x[0].f) : (double)opq_##name##_f32((float)x[0].f));                    \
    }
OPQ_MATH1_F32(X)
#undef X

static opq_number eval_atan2(opq_dtype dtype, const opq_number *x)
{
    return of_float(dtype == OPQ_f64 ? atan2(x[0].f, x[1].f) : (double)opq_atan2_f32((float)x[0].f, (float)x[1].f));
}

static opq_number eval_logaddexp(opq_dtype dtype, const opq_number *x)
{
    double y = opq_logaddexp_f64(x[0].f, x[1].f);
    return of_float(dtype == OPQ_f64 ? y : (double)(float)y);
}

/* Of integers: wraps; a negative exponent gives 0 but for the bases 1 and -1, whose powers are exact. */
static opq_number int_pow(int64_t base, int64_t exponent)
{
    bool unit = base == 1 || base == -1;
    uint64_t power = 1, square = (uint64_t)base;
    if (exponent < 0 && !unit)
        return of_int(0);
    for (uint64_t bits = (uint64_t)exponent; bits != 0; bits >>= 1, square *= square)
        if (bits & 1)
            power *= square;
    return of_int((int64_t)power);
}

static opq_number eval_pow(opq_dtype dtype, const opq_number *x)
{
    if (!opq_eval_is_float(dtype))
        return int_pow(x[0].i, x[1].i);
    return of_float(dtype == OPQ_f64 ? opq_pow_f64(x[0].f, x[1].f) : (double)opq_pow_f32((float)x[0].f, (float)x[1].f));
}

/* ---- by name */

static const struct {
    const char *name;
    opq_eval_fn *function;
} table[] = {
#define X(name) {#name, eval_##name},
    X(div_trunc) X(div_floor) X(remainder) X(fmod) X(euclid) X(neg) X(abs) X(sign) X(signbit) X(copysign) X(nextafter)
        X(maximum) X(minimum) X(bitwise_not) X(sqrt) X(floor) X(ceil) X(trunc) X(round) OPQ_MATH1(X) X(atan2) X(pow)
            X(logaddexp)
#undef X
};

opq_eval_fn *opq_eval_call(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].function;
    return NULL;
}
