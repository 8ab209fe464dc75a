/* tanh and erf by table; sinh, cosh, the inverse hyperbolic functions and erfc through f64.
 *
 * The table is the one hard idea: it has only eight intervals, because one permute of AVX2 finds one of eight numbers in
 * a register, and of AVX-512 too. Their widths grow with |x| as a float's spacing does: the exponent's low bits and the
 * first mantissa bit of 2 + scale |x| are the interval. There is no division, no exponential, no branch, and one method
 * for both instruction sets.
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

/* `count` lanes with the table's entries, again from its start after `period` of them */
static LLVMValueRef table_part(opq_emitter *e, const float *table, int period, int count)
{
    LLVMValueRef elements[16];
    for (int i = 0; i < count; i++)
        elements[i] = LLVMConstReal(LLVMFloatTypeInContext(e->context), (double)table[i % period]);
    return LLVMConstVector(elements, (unsigned)count);
}

static LLVMValueRef permute8(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 8, 8), index};
    return intrinsic(e, "llvm.x86.avx2.permps", false, arguments, 2);
}

static LLVMValueRef lookup8_avx512(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 8, 16), index};
    return intrinsic(e, "llvm.x86.avx512.permvar.sf.512", false, arguments, 2);
}

static LLVMValueRef lookup32_avx512(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef arguments[] = {table_part(e, table, 16, 16), index, table_part(e, table + 16, 16, 16)};
    return intrinsic(e, "llvm.x86.avx512.vpermi2var.ps.512", false, arguments, 3);
}

/* vpermps looks at three bits; bits 3 and 4 choose among four results, as the sign that vblendvps
 * looks at. */
static LLVMValueRef lookup32_avx2(opq_emitter *e, const float *table, LLVMValueRef index)
{
    LLVMValueRef part[4];
    for (int i = 0; i < 4; i++)
        part[i] = permute8(e, table + 8 * i, index);
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

typedef LLVMValueRef lookup_fn(opq_emitter *e, const float *table, LLVMValueRef index);

/* Of all lanes, `step` of them at a time */
static LLVMValueRef lookup(opq_emitter *e, lookup_fn *find, int step, const float *table, LLVMValueRef index)
{
    LLVMValueRef result = NULL;
    for (int first = 0; first < e->lanes; first += step) {
        LLVMValueRef part = find(e, table, slice(e, index, first, step));
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

LLVMValueRef opq_math_lookup32(opq_emitter *e, const float table[32], LLVMValueRef index)
{
    return e->cpu->avx512 ? lookup(e, lookup32_avx512, 16, table, index) : lookup(e, lookup32_avx2, 8, table, index);
}

/* table[index & 7] */
static LLVMValueRef lookup8(opq_emitter *e, const float table[8], LLVMValueRef index)
{
    bool wide = e->cpu->avx512 && e->lanes % 16 == 0;
    return wide ? lookup(e, lookup8_avx512, 16, table, index) : lookup(e, permute8, 8, table, index);
}

/* An odd function that is 1 from `top` on. Interval 0 is centred on 0, where the constant term is 0: small arguments and
 * -0 lose nothing. The last coefficient is so small a part that half a float is enough; its other half is in the one
 * before, which it does not disturb. */
static LLVMValueRef odd_table(opq_emitter *e, const float table[7][8], float scale, float top, LLVMValueRef x)
{
    LLVMValueRef t = vmin(e, f32(e, top), vabs(e, x));
    LLVMValueRef index = ilshr(e, as_i32(e, vfma(e, t, f32(e, scale), f32(e, 2.0f))), i32(e, 22));
    LLVMValueRef d = vsub(e, t, lookup8(e, table[6], index));
    LLVMValueRef d2 = vmul(e, d, d), pair = lookup8(e, table[5], index);
    LLVMValueRef y = vfma(e, as_f32(e, ishl(e, as_i32(e, pair), i32(e, 16))), d, pair);
    for (int p = 3; p > 0; p -= 2)
        y = vfma(e, y, d2, vfma(e, lookup8(e, table[p + 1], index), d, lookup8(e, table[p], index)));
    y = vfma(e, y, d, lookup8(e, table[0], index));
    return as_f32(e, ior(e, as_i32(e, y), iand(e, as_i32(e, x), i32(e, 0x80000000)))); /* y >= 0 */
}

LLVMValueRef opq_math_tanh(opq_emitter *e, LLVMValueRef x) { return odd_table(e, TANH_TABLE, TANH_SCALE, TANH_TOP, x); }
LLVMValueRef opq_math_erf(opq_emitter *e, LLVMValueRef x) { return odd_table(e, ERF_TABLE, ERF_SCALE, ERF_TOP, x); }

/* ---- through f64 */

/* |x| in f64, at most 100: past that every result overflows f32 but not f64. */
static LLVMValueRef clamped_magnitude(opq_emitter *e, LLVMValueRef x)
{
    return widen(e, vmin(e, f32(e, 100.0f), vabs(e, x)));
}

/* (m + m/(m+1)) / 2 with m = expm1(|x|): no cancellation near 0 */
LLVMValueRef opq_math_sinh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef m = opq_math_expm1_wide(e, clamped_magnitude(e, x));
    LLVMValueRef y = vadd(e, m, vdiv(e, m, vadd(e, m, f64(e, 1.0))));
    return vcopysign(e, narrow(e, vmul(e, y, f64(e, 0.5))), x);
}

LLVMValueRef opq_math_cosh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef power = opq_math_exp_wide(e, clamped_magnitude(e, x));
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
    LLVMValueRef y = narrow(e, opq_math_log1p_wide(e, u));
    LLVMValueRef finite = vcmp(e, LLVMRealOLT, vabs(e, x), f32(e, INFINITY));
    return vselect(e, finite, vcopysign(e, y, x), x);
}

/* log1p(t + sqrt(t^2 + 2t)), t = x - 1, which is exact in f64 where it matters */
LLVMValueRef opq_math_acosh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = vsub(e, widen(e, x), f64(e, 1.0));
    LLVMValueRef root = vsqrt(e, vmul(e, t, vadd(e, t, f64(e, 2.0))));
    LLVMValueRef y = narrow(e, opq_math_log1p_wide(e, vadd(e, t, root)));
    y = vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, 1.0f)), f32(e, NAN), y);
    return vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, INFINITY)), y, x);
}

/* log1p(2t / (1 - t)) / 2, t = |x| */
LLVMValueRef opq_math_atanh(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef magnitude = vabs(e, x);
    LLVMValueRef t = widen(e, magnitude);
    LLVMValueRef u = vdiv(e, vadd(e, t, t), vsub(e, f64(e, 1.0), t));
    LLVMValueRef y = narrow(e, vmul(e, opq_math_log1p_wide(e, u), f64(e, 0.5)));
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
    LLVMValueRef power = opq_math_exp_wide(e, vneg(e, vmul(e, t, t)));
    LLVMValueRef y = vdiv(e, vmul(e, power, p), vfma(e, t, f64(e, 2.0), f64(e, 1.0)));
    LLVMValueRef negative = vcmp(e, LLVMRealOLT, x, f32(e, 0.0f));
    return narrow(e, vselect(e, negative, vsub(e, f64(e, 2.0), y), y));
}
