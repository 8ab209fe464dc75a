/* Elements: loading, storing, casting, and the arithmetic of the dtype's own width.
 *
 * Integers wrap: computed in 64 bits and cut by opq_eval_store. bool after arithmetic is
 * "not zero": add is or, mul is and, sub is exclusive or.
 */
#include "graph/eval.h"

static opq_number of_int(int64_t i) { return (opq_number){.i = i}; }
static opq_number of_float(double f) { return (opq_number){.f = f}; }

opq_number opq_eval_load(opq_dtype dtype, const void *data, int64_t index)
{
    switch (dtype) {
    case OPQ_bool: return of_int(((const uint8_t *)data)[index] != 0);
    case OPQ_u8: return of_int(((const uint8_t *)data)[index]);
    case OPQ_i8: return of_int(((const int8_t *)data)[index]);
    case OPQ_i16: return of_int(((const int16_t *)data)[index]);
    case OPQ_i32: return of_int(((const int32_t *)data)[index]);
    case OPQ_i64: return of_int(((const int64_t *)data)[index]);
    case OPQ_f16: return of_float((double)opq_f16_to_f32(((const uint16_t *)data)[index]));
    case OPQ_bf16: return of_float((double)opq_bf16_to_f32(((const uint16_t *)data)[index]));
    case OPQ_f32: return of_float((double)((const float *)data)[index]);
    case OPQ_f64: return of_float(((const double *)data)[index]);
    case OPQ_raw8:
    case OPQ_raw16:
    case OPQ_raw32:
    case OPQ_raw64:
    case OPQ_raw128:
    case OPQ_DTYPE_COUNT: break;
    }
    return of_int(0);
}

void opq_eval_store(opq_dtype dtype, void *data, int64_t index, opq_number x)
{
    switch (dtype) {
    case OPQ_bool: ((uint8_t *)data)[index] = x.i != 0; break;
    case OPQ_u8: ((uint8_t *)data)[index] = (uint8_t)x.i; break;
    case OPQ_i8: ((int8_t *)data)[index] = (int8_t)x.i; break;
    case OPQ_i16: ((int16_t *)data)[index] = (int16_t)x.i; break;
    case OPQ_i32: ((int32_t *)data)[index] = (int32_t)x.i; break;
    case OPQ_i64: ((int64_t *)data)[index] = x.i; break;
    case OPQ_f16: ((uint16_t *)data)[index] = opq_f32_to_f16((float)x.f); break;
    case OPQ_bf16: ((uint16_t *)data)[index] = opq_f32_to_bf16((float)x.f); break;
    case OPQ_f32: ((float *)data)[index] = (float)x.f; break;
    case OPQ_f64: ((double *)data)[index] = x.f; break;
    case OPQ_raw8:
    case OPQ_raw16:
    case OPQ_raw32:
    case OPQ_raw64:
    case OPQ_raw128:
    case OPQ_DTYPE_COUNT: break;
    }
}

opq_number opq_eval_rounded(opq_dtype dtype, opq_number x)
{
    opq_raw128 one;
    opq_eval_store(dtype, &one, 0, x);
    return opq_eval_load(dtype, &one, 0);
}

/* ---- casts */

/* Float to integer truncates. What i64 cannot hold becomes INT64_MIN, what i32 cannot hold INT32_MIN; i8 and i16 are the low
 * bits of the i32, u8 those of the i64 (which differ for f64 operands only). These are PyTorch's results on x86. */
static opq_number float_cast(opq_dtype to, double x)
{
    switch (opq_dtype_kind_of(to)) {
    case OPQ_KIND_BOOL: return of_int(x != 0);
    case OPQ_KIND_UINT: return of_int(opq_f64_to_i64(x));
    case OPQ_KIND_INT: return of_int(to == OPQ_i64 ? opq_f64_to_i64(x) : opq_f64_to_i32(x));
    case OPQ_KIND_FLOAT: return of_float(x);
    case OPQ_KIND_RAW: break;
    }
    return of_int(0);
}

opq_number opq_eval_cast(opq_dtype from, opq_dtype to, opq_number x)
{
    if (opq_eval_is_float(from))
        return opq_eval_rounded(to, float_cast(to, x.f));
    if (!opq_eval_is_float(to))
        return opq_eval_rounded(to, x);
    if (to == OPQ_f64)
        return of_float((double)x.i);
    /* Straight to float: by way of double a large i64 would be rounded twice. */
    return opq_eval_rounded(to, of_float((double)(float)x.i));
}

/* ---- arithmetic */

static opq_number float_arith(opq_arith code, opq_dtype dtype, double a, double b)
{
    bool is_double = dtype == OPQ_f64;
    float x = (float)a, y = (float)b;
    switch (code) {
    case OPQ_ARITH_FAdd: return of_float(is_double ? a + b : (double)(x + y));
    case OPQ_ARITH_FSub: return of_float(is_double ? a - b : (double)(x - y));
    case OPQ_ARITH_FMul: return of_float(is_double ? a * b : (double)(x * y));
    case OPQ_ARITH_FDiv: return of_float(is_double ? a / b : (double)(x / y));
    case OPQ_ARITH_None:
    case OPQ_ARITH_Add:
    case OPQ_ARITH_Sub:
    case OPQ_ARITH_Mul:
    case OPQ_ARITH_And:
    case OPQ_ARITH_Or:
    case OPQ_ARITH_Xor: break;
    }
    return of_float(0);
}

static int64_t int_arith(opq_arith code, int64_t a, int64_t b)
{
    switch (code) {
    case OPQ_ARITH_Add: return opq_add_i64(a, b);
    case OPQ_ARITH_Sub: return opq_sub_i64(a, b);
    case OPQ_ARITH_Mul: return opq_mul_i64(a, b);
    case OPQ_ARITH_And: return a & b;
    case OPQ_ARITH_Or: return a | b;
    case OPQ_ARITH_Xor: return a ^ b;
    case OPQ_ARITH_None:
    case OPQ_ARITH_FAdd:
    case OPQ_ARITH_FSub:
    case OPQ_ARITH_FMul:
    case OPQ_ARITH_FDiv: break;
    }
    return 0;
}

opq_number opq_eval_arith(opq_arith code, opq_dtype dtype, opq_number a, opq_number b)
{
    if (opq_eval_is_float(dtype))
        return float_arith(code, dtype, a.f, b.f);
    return opq_eval_rounded(dtype, of_int(int_arith(code, a.i, b.i)));
}

opq_number opq_eval_add(opq_dtype dtype, opq_number a, opq_number b)
{
    return opq_eval_arith(opq_eval_is_float(dtype) ? OPQ_ARITH_FAdd : OPQ_ARITH_Add, dtype, a, b);
}

opq_number opq_eval_mul(opq_dtype dtype, opq_number a, opq_number b)
{
    return opq_eval_arith(opq_eval_is_float(dtype) ? OPQ_ARITH_FMul : OPQ_ARITH_Mul, dtype, a, b);
}

opq_number opq_eval_max(opq_dtype dtype, opq_number a, opq_number b)
{
    return opq_eval_is_float(dtype) ? of_float(opq_maximum_f64(a.f, b.f)) : of_int(opq_maximum_i64(a.i, b.i));
}

opq_number opq_eval_min(opq_dtype dtype, opq_number a, opq_number b)
{
    return opq_eval_is_float(dtype) ? of_float(opq_minimum_f64(a.f, b.f)) : of_int(opq_minimum_i64(a.i, b.i));
}
