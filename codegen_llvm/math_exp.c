/* exp, exp2, expm1, sigmoid, and the f64 exponentials that other files build on.
 *
 * All of them write x = n ln2 + r with |r| <= ln2/2 (Cody and Waite, 1980), take a polynomial in r
 * and scale by 2^n. The one hard idea is the rounding to n: t = x / ln2 + 1.5 * 2^23 leaves n in
 * the low bits of t, as an integer, for free.
 */
#include "codegen_llvm/math.h"
#include "opaque/math_tables.h"

#define MAGIC32                                                                                                        \
    0x1.8p23f /* adding it rounds to an integer and leaves that integer in the low mantissa bits   \
               */
#define MAGIC64 0x1.8p52
#define LOG2_E 0x1.71547652b82fep0
#define LN2_HIGH32 0x1.62e4p-1f /* 15 bits: n * LN2_HIGH32 is exact */
#define LN2_LOW32 0x1.7f7d1cp-20f
#define LN2_HIGH64 0x1.62e42fefa0000p-1
#define LN2_LOW64 0x1.cf79abc9e3b3ap-40

/* p * 2^n with one rounding, p near 1, n = t - MAGIC32 in [-152, 129]. Two factors, each a normal
 * number: the first product is exact, so only the second can round, also into denormals. vscalefps
 * does the same in one instruction. */
static LLVMValueRef scale(opq_emitter *e, LLVMValueRef p, LLVMValueRef t)
{
    if (e->cpu->avx512 && e->lanes == 16) {
        LLVMValueRef arguments[] = {
            p,
            vsub(e, t, f32(e, MAGIC32)),
            p,
            LLVMConstInt(LLVMInt16TypeInContext(e->context), 0xffff, false),
            LLVMConstInt(LLVMInt32TypeInContext(e->context), 4, false), /* rounding as in MXCSR */
        };
        return intrinsic(e, "llvm.x86.avx512.mask.scalef.ps.512", false, arguments, 5);
    }
    LLVMValueRef n = isub(e, as_i32(e, t), i32(e, 0x4b400000)); /* the bits of MAGIC32 */
    LLVMValueRef half = iashr(e, n, i32(e, 1));
    LLVMValueRef rest = isub(e, n, half);
    LLVMValueRef first = as_f32(e, ishl(e, iadd(e, half, i32(e, 127)), i32(e, 23)));
    LLVMValueRef second = as_f32(e, ishl(e, iadd(e, rest, i32(e, 127)), i32(e, 23)));
    return vmul(e, vmul(e, p, first), second);
}

/* x = n ln2 + r; t = n + MAGIC32 */
static LLVMValueRef reduce(opq_emitter *e, LLVMValueRef x, LLVMValueRef *out_t)
{
    *out_t = vfma(e, x, f32(e, (float)LOG2_E), f32(e, MAGIC32));
    LLVMValueRef minus_n = vsub(e, f32(e, MAGIC32), *out_t);
    LLVMValueRef r = vfma(e, minus_n, f32(e, LN2_HIGH32), x);
    return vfma(e, minus_n, f32(e, LN2_LOW32), r);
}

/* exp for x in [-105, 89.5] or NaN */
static LLVMValueRef exp_core(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t;
    LLVMValueRef r = reduce(e, x, &t);
    LLVMValueRef q = POLY32(e, EXP32, r);
    q = vfma(e, q, r, f32(e, 1.0f));
    q = vfma(e, q, r, f32(e, 1.0f));
    /* Below -104 the result rounds to zero. Scaling a zero is fast; scaling into the underflow
     * costs a microcode assist of some hundred cycles, and masks of -inf are common. */
    q = vselect(e, vcmp(e, LLVMRealOLT, x, f32(e, -104.0f)), f32(e, 0.0f), q);
    return scale(e, q, t);
}

LLVMValueRef opq_math_exp(opq_emitter *e, LLVMValueRef x)
{
    x = vmin(e, f32(e, 89.5f), x);
    x = vmax(e, f32(e, -105.0f), x);
    return exp_core(e, x);
}

LLVMValueRef opq_math_exp2(opq_emitter *e, LLVMValueRef x)
{
    x = vmin(e, f32(e, 128.5f), x);
    x = vmax(e, f32(e, -151.0f), x);
    LLVMValueRef t = vadd(e, x, f32(e, MAGIC32));
    LLVMValueRef f = vsub(e, x, vsub(e, t, f32(e, MAGIC32)));
    LLVMValueRef p = vfma(e, POLY32(e, EXP2_32, f), f, f32(e, 1.0f));
    p = vselect(e, vcmp(e, LLVMRealOLE, x, f32(e, -150.0f)), f32(e, 0.0f), p);
    return scale(e, p, t);
}

/* exp(x) - 1 = 2 (s q + (s - 1/2)) with q = expm1(r) and s = 2^(n-1): half the scale, so that n =
 * 128 does not overflow. */
LLVMValueRef opq_math_expm1(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef z = vmin(e, f32(e, 88.8f), x);
    z = vmax(e, f32(e, -20.0f), z);
    LLVMValueRef t;
    LLVMValueRef r = reduce(e, z, &t);
    LLVMValueRef q = vfma(e, vmul(e, r, r), POLY32(e, EXPM1_32, r), r);
    LLVMValueRef s = as_f32(e, iadd(e, ishl(e, as_i32(e, t), i32(e, 23)), i32(e, 126u << 23)));
    LLVMValueRef y = vfma(e, s, q, vsub(e, s, f32(e, 0.5f)));
    return vcopysign(e, vadd(e, y, y), x);
}

/* exp(-|x|) never overflows: (x < 0 ? e : 1) / (1 + e). */
LLVMValueRef opq_math_sigmoid(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef negative = vcmp(e, LLVMRealOLT, x, f32(e, 0.0f));
    LLVMValueRef z = vneg(e, vabs(e, x));
    /* On the positive side everything past 40 is 1: stay away from the slow denormals. */
    z = vmax(e, vselect(e, negative, f32(e, -105.0f), f32(e, -40.0f)), z);
    LLVMValueRef power = exp_core(e, z);
    return vdiv(e, vselect(e, negative, power, f32(e, 1.0f)), vadd(e, power, f32(e, 1.0f)));
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

LLVMValueRef opq_math_exp_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef s;
    LLVMValueRef q = exp_parts_f64(e, x, &s);
    return vfma(e, s, q, s);
}

LLVMValueRef opq_math_expm1_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef s;
    LLVMValueRef q = exp_parts_f64(e, x, &s);
    return vfma(e, s, q, vsub(e, s, f64(e, 1.0)));
}
