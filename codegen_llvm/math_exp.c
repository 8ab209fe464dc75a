/* exp, exp2, expm1, sigmoid, and the f64 exponentials that other files build on.
 *
 * All of them write x = n ln2 + r with |r| <= ln2/2 (Cody and Waite, 1980), take a polynomial in r
 * and scale by 2^n. The one hard idea is the rounding to n: t = x / ln2 + 1.5 * 2^23 leaves n in
 * the low bits of t, as an integer, for free. With a bias added to that number they are n + bias, which
 * shifted to its place is the exponent field of a float.
 */
#include "codegen_llvm/math.h"
#include "opaque/math_tables.h"

#define MAGIC32 0x1.8p23f /* adding it rounds to an integer and leaves that integer in the low mantissa bits */
#define MAGIC64 0x1.8p52
#define LOG2_E 0x1.71547652b82fep0
#define LN2_HIGH32 0x1.62e4p-1f /* 15 bits: n * LN2_HIGH32 is exact */
#define LN2_LOW32 0x1.7f7d1cp-20f
#define LN2_HIGH64 0x1.62e42fefa0000p-1
#define LN2_LOW64 0x1.cf79abc9e3b3ap-40

#define SCALE_BIAS 152 /* what scale() wants in t; even, so that halves round to the same n */

static bool has_scalef(const opq_emitter *e) { return e->cpu->avx512 && e->lanes == 16; }

/* p * 2^n with one rounding, p near 1, n in [-152, 129], t = MAGIC32 + SCALE_BIAS + n. Two factors: the first product is
 * exact, so only the second can round, also into denormals. The second factor's exponent field is (n + 152) / 2, which
 * makes it zero where the result is: below 2^-150. Multiplying by zero is fast, a product that underflows costs a
 * microcode assist of some hundred cycles, and masks of -inf are common. vscalefps is all of it in one instruction, but
 * for that, for any n: p may be NaN where the result is zero. */
static LLVMValueRef scale(opq_emitter *e, LLVMValueRef p, LLVMValueRef t)
{
    if (has_scalef(e)) {
        LLVMValueRef n = vsub(e, t, f32(e, MAGIC32 + SCALE_BIAS));
        p = vselect(e, vcmp(e, LLVMRealOLT, t, f32(e, MAGIC32 + SCALE_BIAS - 150)), f32(e, 0.0f), p);
        LLVMValueRef arguments[] = {
            p,
            n,
            p,
            LLVMConstInt(LLVMInt16TypeInContext(e->context), 0xffff, false),
            LLVMConstInt(LLVMInt32TypeInContext(e->context), 4, false), /* rounding as in MXCSR */
        };
        return intrinsic(e, "llvm.x86.avx512.mask.scalef.ps.512", false, arguments, 5);
    }
    LLVMValueRef bits = as_i32(e, t);
    LLVMValueRef second = iand(e, ishl(e, bits, i32(e, 22)), i32(e, 0x7f800000));
    /* The other field: n + 254 less this one */
    LLVMValueRef first = iadd(e, isub(e, ishl(e, bits, i32(e, 23)), second), i32(e, (254u - SCALE_BIAS) << 23));
    return vmul(e, vmul(e, p, as_f32(e, first)), as_f32(e, second));
}

/* x = n ln2 + r; t = n + bias + MAGIC32 */
static LLVMValueRef reduce(opq_emitter *e, LLVMValueRef x, int bias, LLVMValueRef *out_t)
{
    LLVMValueRef magic = f32(e, MAGIC32 + (float)bias);
    *out_t = vfma(e, x, f32(e, (float)LOG2_E), magic);
    LLVMValueRef minus_n = vsub(e, magic, *out_t);
    LLVMValueRef r = vfma(e, minus_n, f32(e, LN2_HIGH32), x);
    return vfma(e, minus_n, f32(e, LN2_LOW32), r);
}

/* exp(r) for |r| <= ln2/2 */
static LLVMValueRef exp_reduced(opq_emitter *e, LLVMValueRef r)
{
    LLVMValueRef q = POLY32(e, EXP32, r);
    q = vfma(e, q, r, f32(e, 1.0f));
    return vfma(e, q, r, f32(e, 1.0f));
}

LLVMValueRef opq_math_exp(opq_emitter *e, LLVMValueRef x)
{
    x = vmin(e, f32(e, 89.5f), x);
    if (!has_scalef(e))
        x = vmax(e, f32(e, -105.0f), x);
    LLVMValueRef t;
    LLVMValueRef r = reduce(e, x, SCALE_BIAS, &t);
    return scale(e, exp_reduced(e, r), t);
}

LLVMValueRef opq_math_exp2(opq_emitter *e, LLVMValueRef x)
{
    x = vmin(e, f32(e, 128.5f), x);
    if (!has_scalef(e))
        x = vmax(e, f32(e, -151.0f), x);
    LLVMValueRef magic = f32(e, MAGIC32 + SCALE_BIAS);
    LLVMValueRef t = vadd(e, x, magic);
    LLVMValueRef f = vsub(e, x, vsub(e, t, magic));
    return scale(e, vfma(e, POLY32(e, EXP2_32, f), f, f32(e, 1.0f)), t);
}

/* exp(x) - 1 = 2 (s q + (s - 1/2)) with q = expm1(r) and s = 2^(n-1): half the scale, so that n =
 * 128 does not overflow. */
LLVMValueRef opq_math_expm1(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef z = vmin(e, f32(e, 88.8f), x);
    z = vmax(e, f32(e, -20.0f), z);
    LLVMValueRef t;
    LLVMValueRef r = reduce(e, z, 126, &t);
    LLVMValueRef q = vfma(e, vmul(e, r, r), POLY32(e, EXPM1_32, r), r);
    LLVMValueRef s = as_f32(e, ishl(e, as_i32(e, t), i32(e, 23)));
    LLVMValueRef y = vfma(e, s, q, vsub(e, s, f32(e, 0.5f)));
    return vcopysign(e, vadd(e, y, y), x);
}

/* 1 / (1 + exp(-x)) with numerator and denominator times 2^-31, so that exp(105) does not overflow: 2^(n - 31) is a
 * normal number for every n. Past 40 the result is 1. */
LLVMValueRef opq_math_sigmoid(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef z = vmin(e, f32(e, 40.0f), x), t, one = f32(e, 0x1p-31f);
    LLVMValueRef r = reduce(e, vneg(e, vmax(e, f32(e, -105.0f), z)), 127 - 31, &t);
    LLVMValueRef s = as_f32(e, ishl(e, as_i32(e, t), i32(e, 23)));
    return vdiv(e, one, vfma(e, exp_reduced(e, r), s, one));
}

/* r * P(r) = expm1(r), and the scale 2^n */
static LLVMValueRef exp_parts_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_scale)
{
    LLVMValueRef t = vfma(e, x, f64(e, LOG2_E), f64(e, MAGIC64));
    LLVMValueRef minus_n = vsub(e, f64(e, MAGIC64), t);
    LLVMValueRef r = vfma(e, minus_n, f64(e, LN2_HIGH64), x);
    r = vfma(e, minus_n, f64(e, LN2_LOW64), r);
    *out_scale = as_f64(e, iadd(e, ishl(e, as_i64(e, t), i64(e, 52)), i64(e, 1023ull << 52)));
    return vmul(e, r, POLY64(e, EXPM1_64, r));
}

LLVMValueRef opq_math_exp_wide(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef s;
    LLVMValueRef q = exp_parts_f64(e, x, &s);
    return vfma(e, s, q, s);
}

LLVMValueRef opq_math_expm1_wide(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef s;
    LLVMValueRef q = exp_parts_f64(e, x, &s);
    return vfma(e, s, q, vsub(e, s, f64(e, 1.0)));
}
