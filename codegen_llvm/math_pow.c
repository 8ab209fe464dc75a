/* pow and fmod.
 *
 * pow is 2^(y log2|x|) in f64, where the logarithm has 15 bits to spare for the largest exponent;
 * C99's special cases are arranged around it. fmod is exact, as C requires.
 */
#include "codegen_llvm/math.h"
#include <math.h>

#define LOG2_E 0x1.71547652b82fep0
#define LN2 0x1.62e42fefa39efp-1

/* log2|x| in f64, with -inf at 0 and inf at inf */
static LLVMValueRef log2_magnitude(opq_emitter *e, LLVMValueRef magnitude)
{
    LLVMValueRef k, log_m;
    opq_math_log_wide(e, widen(e, magnitude), &k, &log_m);
    LLVMValueRef y = vfma(e, log_m, f64(e, LOG2_E), k);
    y = vselect(e, vcmp(e, LLVMRealOEQ, magnitude, f32(e, 0.0f)), f64(e, -INFINITY), y);
    return vselect(e, vcmp(e, LLVMRealOEQ, magnitude, f32(e, INFINITY)), f64(e, INFINITY), y);
}

static LLVMValueRef is_integer(opq_emitter *e, LLVMValueRef y) { return vcmp(e, LLVMRealOEQ, vtrunc(e, y), y); }

LLVMValueRef opq_math_pow(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef one = f32(e, 1.0f), zero = f32(e, 0.0f);
    LLVMValueRef magnitude = vabs(e, x);
    LLVMValueRef p = vmul(e, log2_magnitude(e, magnitude), widen(e, y));
    p = vmax(e, f64(e, -200.0), vmin(e, f64(e, 200.0), p));
    LLVMValueRef result = narrow(e, opq_math_exp_wide(e, vmul(e, p, f64(e, LN2))));
    /* 1^y and (-1)^(+-inf): the product above may be 0 * inf */
    LLVMValueRef unit = vcmp(e, LLVMRealOEQ, magnitude, one);
    LLVMValueRef ordered = vcmp(e, LLVMRealORD, y, y);
    result = vselect(e, iand(e, unit, ordered), one, result);

    /* A negative base: an odd exponent gives a negative result, a fraction none. Infinities and
     * large floats are even. */
    LLVMValueRef integer = is_integer(e, y);
    LLVMValueRef even = is_integer(e, vmul(e, y, f32(e, 0.5f)));
    LLVMValueRef signs = vselect(e, iand(e, integer, inot(e, even)), vcopysign(e, one, x), one);
    result = vcopysign(e, result, signs);
    LLVMValueRef finite_negative = iand(e, vcmp(e, LLVMRealOLT, x, zero), vcmp(e, LLVMRealOGT, x, f32(e, -INFINITY)));
    result = vselect(e, iand(e, finite_negative, inot(e, integer)), f32(e, NAN), result);

    LLVMValueRef nan = vcmp(e, LLVMRealUNO, x, y);
    result = vselect(e, nan, f32(e, NAN), result);
    LLVMValueRef always_one = ior(e, vcmp(e, LLVMRealOEQ, x, one), vcmp(e, LLVMRealOEQ, y, zero));
    return vselect(e, always_one, one, result);
}

/* ---- fmod
 *
 * In f64, with a and b the magnitudes: q = trunc(a / b) is the true quotient or one off, and a - q
 * b is exact, because it is a multiple of b's last bit and at most 25 bits long. That needs q <
 * 2^53. Larger ratios (up to 2^277) are first reduced modulo b * 2^240, b * 2^192, ... b * 2^48,
 * each step by 48 bits; scaling b by a power of two changes nothing of the above.
 */

/* a mod b for a / b < 2^52; a as it is where a < b */
static LLVMValueRef remainder_step(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    LLVMValueRef q = vtrunc(e, vdiv(e, a, b));
    LLVMValueRef r = vfma(e, vneg(e, q), b, a);
    LLVMValueRef zero = f64(e, 0.0);
    r = vadd(e, r, vselect(e, vcmp(e, LLVMRealOLT, r, zero), b, zero));
    r = vsub(e, r, vselect(e, vcmp(e, LLVMRealOGE, r, b), b, zero));
    return vselect(e, vcmp(e, LLVMRealOLT, a, b), a, r);
}

/* The loop over the scales of b, entered when any lane needs it. Lanes that do not are unchanged by
 * it. */
static LLVMValueRef reduce_large_ratios(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    LLVMValueRef large = vcmp(e, LLVMRealOGE, a, vmul(e, b, f64(e, 0x1p48)));
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->builder);
    LLVMBasicBlockRef loop = new_block(e, "fmod.loop"), done = new_block(e, "fmod.done");
    LLVMBuildCondBr(e->builder, any(e, large), loop, done);

    LLVMPositionBuilderAtEnd(e->builder, loop);
    LLVMValueRef current = LLVMBuildPhi(e->builder, f64_type(e), "");
    LLVMValueRef divisor = LLVMBuildPhi(e->builder, f64_type(e), "");
    LLVMValueRef next = remainder_step(e, current, divisor);
    LLVMValueRef smaller = vmul(e, divisor, f64(e, 0x1p-48));
    LLVMValueRef again = vcmp(e, LLVMRealOGT, smaller, b);
    LLVMBuildCondBr(e->builder, any(e, again), loop, done);
    LLVMPositionBuilderAtEnd(e->builder, entry);
    LLVMValueRef terminator = LLVMGetBasicBlockTerminator(entry);
    LLVMPositionBuilderBefore(e->builder, terminator);
    LLVMValueRef top = vmul(e, b, f64(e, 0x1p240));
    LLVMAddIncoming(current, (LLVMValueRef[]){a, next}, (LLVMBasicBlockRef[]){entry, loop}, 2);
    LLVMAddIncoming(divisor, (LLVMValueRef[]){top, smaller}, (LLVMBasicBlockRef[]){entry, loop}, 2);

    LLVMPositionBuilderAtEnd(e->builder, done);
    LLVMValueRef result = LLVMBuildPhi(e->builder, f64_type(e), "");
    LLVMAddIncoming(result, (LLVMValueRef[]){a, next}, (LLVMBasicBlockRef[]){entry, loop}, 2);
    return result;
}

LLVMValueRef opq_math_fmod(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef zero = f32(e, 0.0f), infinity = f32(e, INFINITY);
    LLVMValueRef x_magnitude = vabs(e, x), y_magnitude = vabs(e, y);
    LLVMValueRef valid = iand(e, vcmp(e, LLVMRealOLT, x_magnitude, infinity), vcmp(e, LLVMRealOGT, y_magnitude, zero));
    /* Harmless operands where the answer is NaN, so that the arithmetic and the loop stay finite.
     */
    LLVMValueRef a = widen(e, vselect(e, valid, x_magnitude, zero));
    LLVMValueRef b = widen(e, vselect(e, valid, y_magnitude, f32(e, 1.0f)));
    LLVMValueRef r = remainder_step(e, reduce_large_ratios(e, a, b), b);
    return vselect(e, valid, vcopysign(e, narrow(e, r), x), f32(e, NAN));
}
