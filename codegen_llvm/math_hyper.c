/* tanh and erf by table; sinh, cosh, the inverse hyperbolic functions and erfc through f64.
 *
 * The table is the one hard idea: the two top mantissa bits and the three low exponent bits of |x|
 * select one of 32 intervals, whose six polynomial coefficients come from in-register permutes.
 * There is no division, no exponential and no branch.
 */
#include "codegen_llvm/math.h"
#include "opaque/math_tables.h"
#include <math.h>

/* ---- table lookup */

/* A slice of `count` lanes of v from lane `first`; lanes beyond the end of v are undefined. */
static LLVMValueRef slice(opq_emitter *e, LLVMValueRef v, int first, int count)
{
    int lanes = (int)LLVMGetVectorSize(LLVMTypeOf(v));
    if (first == 0 && count == lanes)
        return v;
    LLVMTypeRef i32_scalar = LLVMInt32TypeInContext(e->context);
    LLVMValueRef mask[OPQ_MAX_LANES];
    for (int i = 0; i < count; i++)
        mask[i] = first + i < lanes ? LLVMConstInt(i32_scalar, (unsigned)(first + i), false) : LLVMGetPoison(i32_scalar);
    return LLVMBuildShuffleVector(e->builder, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(mask, (unsigned)count),
                                  "");
}

static LLVMValueRef table_part(opq_emitter *e, const float *table, int count)
{
    LLVMValueRef elements[16];
    for (int i = 0; i < count; i++)
        elements[i] = LLVMConstReal(LLVMFloatTypeInContext(e->context), (double)table[i]);
    return LLVMConstVector(elements, (unsigned)count);
}

static LLVMValueRef lookup_avx512(opq_emitter *e, const float table[32], LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 16), index, table_part(e, table + 16, 16)};
    return intrinsic(e, "llvm.x86.avx512.vpermi2var.ps.512", false, arguments, 3);
}

/* vpermps looks at three bits; bits 3 and 4 choose among four results, as the sign that vblendvps
 * looks at. */
static LLVMValueRef lookup_avx2(opq_emitter *e, const float table[32], LLVMValueRef index)
{
    LLVMValueRef part[4];
    for (int i = 0; i < 4; i++) {
        LLVMValueRef arguments[] = {table_part(e, table + 8 * i, 8), index};
        part[i] = intrinsic(e, "llvm.x86.avx2.permps", false, arguments, 2);
    }
    LLVMTypeRef type = LLVMTypeOf(index);
    LLVMTypeRef i32_scalar = LLVMInt32TypeInContext(e->context);
    LLVMValueRef bit[2];
    for (int i = 0; i < 2; i++) {
        LLVMValueRef amount[8];
        for (int lane = 0; lane < 8; lane++)
            amount[lane] = LLVMConstInt(i32_scalar, (unsigned)(28 - i), false);
        LLVMValueRef sign = ishl(e, index, LLVMConstVector(amount, 8));
        bit[i] = icmp(e, LLVMIntSLT, sign, LLVMConstNull(type));
    }
    LLVMValueRef low = vselect(e, bit[0], part[1], part[0]);
    LLVMValueRef high = vselect(e, bit[0], part[3], part[2]);
    return vselect(e, bit[1], high, low);
}

LLVMValueRef opq_math_lookup32(opq_emitter *e, const float table[32], LLVMValueRef index)
{
    const int step = e->cpu->avx512 ? 16 : 8;
    LLVMValueRef result = NULL;
    for (int first = 0; first < e->lanes; first += step) {
        LLVMValueRef part = slice(e, index, first, step);
        part = e->cpu->avx512 ? lookup_avx512(e, table, part) : lookup_avx2(e, table, part);
        if (!result) {
            result = part;
            continue;
        }
        LLVMValueRef mask[OPQ_MAX_LANES];
        for (int i = 0; i < first + step; i++)
            mask[i] = LLVMConstInt(LLVMInt32TypeInContext(e->context), (unsigned)i, false);
        part = slice(e, part, 0, first);
        result = LLVMBuildShuffleVector(e->builder, result, part, LLVMConstVector(mask, (unsigned)(first + step)), "");
    }
    return slice(e, result, 0, e->lanes);
}

/* An odd function from its octave table: intervals of 1/4 octave from 2^-4 to 2^4, and [0, 5/64) as
 * interval 0, which is centred on 0. There the constant coefficient is d itself, so small arguments
 * and -0 lose nothing. */
static LLVMValueRef odd_table(opq_emitter *e, const float table[6][32], LLVMValueRef x)
{
    LLVMValueRef t = vmin(e, f32(e, 15.9f), vabs(e, x));
    LLVMValueRef small = vcmp(e, LLVMRealOLT, t, f32(e, 0.078125f));
    LLVMValueRef bits = as_i32(e, vmax(e, f32(e, 0.0625f), t));
    LLVMValueRef index = ilshr(e, bits, i32(e, 21));
    LLVMValueRef centre = as_f32(e, ior(e, iand(e, bits, i32(e, 0xffe00000)), i32(e, 0x00100000)));
    LLVMValueRef d = vsub(e, t, vselect(e, small, f32(e, 0.0f), centre));
    LLVMValueRef y = opq_math_lookup32(e, table[5], index);
    for (int p = 4; p > 0; p--)
        y = vfma(e, y, d, opq_math_lookup32(e, table[p], index));
    y = vfma(e, y, d, vselect(e, small, d, opq_math_lookup32(e, table[0], index)));
    return vcopysign(e, y, x);
}

LLVMValueRef opq_math_tanh(opq_emitter *e, LLVMValueRef x) { return odd_table(e, TANH_TABLE, x); }
LLVMValueRef opq_math_erf(opq_emitter *e, LLVMValueRef x) { return odd_table(e, ERF_TABLE, x); }

/* ---- through f64 */

/* |x| in f64, at most 100: past that every result overflows f32 but not f64. */
static LLVMValueRef clamped_magnitude(opq_emitter *e, LLVMValueRef x)
{
    return widen(e, vmin(e, f32(e, 100.0f), vabs(e, x)));
}

/* (m + m/(m+1)) / 2 with m = expm1(|x|): no cancellation near 0 */
LLVMValueRef opq_math_sinh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef m = opq_math_expm1_f64(e, clamped_magnitude(e, x));
    LLVMValueRef y = vadd(e, m, vdiv(e, m, vadd(e, m, f64(e, 1.0))));
    return vcopysign(e, narrow(e, vmul(e, y, f64(e, 0.5))), x);
}

LLVMValueRef opq_math_cosh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef power = opq_math_exp_f64(e, clamped_magnitude(e, x));
    LLVMValueRef y = vadd(e, power, vdiv(e, f64(e, 1.0), power));
    return narrow(e, vmul(e, y, f64(e, 0.5)));
}

/* log1p(t + t^2 / (1 + sqrt(t^2 + 1))), t = |x|; t^2 does not overflow f64 */
LLVMValueRef opq_math_asinh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = widen(e, vabs(e, x));
    LLVMValueRef t2 = vmul(e, t, t);
    LLVMValueRef root = vsqrt(e, vadd(e, t2, f64(e, 1.0)));
    LLVMValueRef u = vadd(e, t, vdiv(e, t2, vadd(e, root, f64(e, 1.0))));
    LLVMValueRef y = narrow(e, opq_math_log1p_f64(e, u));
    LLVMValueRef finite = vcmp(e, LLVMRealOLT, vabs(e, x), f32(e, INFINITY));
    return vselect(e, finite, vcopysign(e, y, x), x);
}

/* log1p(t + sqrt(t^2 + 2t)), t = x - 1, which is exact in f64 where it matters */
LLVMValueRef opq_math_acosh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = vsub(e, widen(e, x), f64(e, 1.0));
    LLVMValueRef root = vsqrt(e, vmul(e, t, vadd(e, t, f64(e, 2.0))));
    LLVMValueRef y = narrow(e, opq_math_log1p_f64(e, vadd(e, t, root)));
    y = vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, 1.0f)), f32(e, NAN), y);
    return vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, INFINITY)), y, x);
}

/* log1p(2t / (1 - t)) / 2, t = |x| */
LLVMValueRef opq_math_atanh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef magnitude = vabs(e, x);
    LLVMValueRef t = widen(e, magnitude);
    LLVMValueRef u = vdiv(e, vadd(e, t, t), vsub(e, f64(e, 1.0), t));
    LLVMValueRef y = narrow(e, vmul(e, opq_math_log1p_f64(e, u), f64(e, 0.5)));
    LLVMValueRef edge = vselect(e, vcmp(e, LLVMRealOEQ, magnitude, f32(e, 1.0f)), f32(e, INFINITY), f32(e, NAN));
    y = vselect(e, vcmp(e, LLVMRealOLT, magnitude, f32(e, 1.0f)), y, edge);
    return vcopysign(e, y, x);
}

/* erfc(t) = exp(-t^2) P((t-3)/(t+3)) / (1 + 2t) for t >= 0 (the substitution of Shepherd and
 * Laframboise, 1981), and 2 - erfc(-x) on the left. Past 10.1 the result is below half of the least
 * denormal. */
LLVMValueRef opq_math_erfc(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = widen(e, vmin(e, f32(e, 10.125f), vabs(e, x)));
    LLVMValueRef u = vdiv(e, vsub(e, t, f64(e, 3.0)), vadd(e, t, f64(e, 3.0)));
    LLVMValueRef p = POLY64(e, ERFC64, u);
    LLVMValueRef power = opq_math_exp_f64(e, vneg(e, vmul(e, t, t)));
    LLVMValueRef y = vdiv(e, vmul(e, power, p), vfma(e, t, f64(e, 2.0), f64(e, 1.0)));
    LLVMValueRef negative = vcmp(e, LLVMRealOLT, x, f32(e, 0.0f));
    return narrow(e, vselect(e, negative, vsub(e, f64(e, 2.0), y), y));
}
