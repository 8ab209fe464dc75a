/* sin, cos, tan and the inverse functions.
 *
 * sin and cos up to 30000 reduce by multiples of pi in f32, with pi in three parts; beyond, a block
 * that runs only if some lane needs it reduces exactly (below). The lane's own size decides which
 * result it takes, so its bits do not depend on its neighbours. tan and the inverse functions are
 * rarer and go through f64.
 *
 * Exact reduction (after Payne and Hanek, 1983). x = m 2^s with an integer m, so whole multiples of
 * 8 in 2/pi * 2^s do not matter. A table has 2/pi * 2^(8g-150) mod 8 for each group g of eight
 * exponents, as four chunks of 24 bits: m times a chunk is exact in f64. After the leading products
 * are reduced mod 4 the sum is the quadrant and the fraction, with an absolute error below 2^-61;
 * no f32 comes closer than 2^-31 to a multiple of pi/2.
 */
#include "codegen_llvm/math.h"
#include "opaque/math_tables.h"
#include <math.h>

#define MAGIC32 0x1.8p23f
#define PI_1 0x1.921fb6p+1f /* three floats that add up to pi */
#define PI_2 -0x1.777a5cp-24f
#define PI_3 -0x1.ee59dap-49f
#define ONE_OVER_PI 0x1.45f306p-2f
#define PI 0x1.921fb54442d18p+1
#define HALF_PI 0x1.921fb54442d18p+0
#define HALF_PI_LOW 0x1.1a62633145c07p-54
#define TWO_OVER_PI64 0x1.45f306dc9c883p-1
#define FAST_LIMIT 30000.0f

typedef struct angle {
    LLVMValueRef quadrant; /* i32, any integer */
    LLVMValueRef r;        /* f64; x = quadrant * pi/2 + r */
} angle;

static LLVMValueRef mod4(opq_emitter *e, LLVMValueRef x)
{
    return vfma(e, vround(e, vmul(e, x, f64(e, 0.25))), f64(e, -4.0), x);
}

/* |x| reduced exactly, for 2^14 <= |x| < inf; NaN past it, garbage but no trap below. */
static angle reduce_exact(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef bits = as_i32(e, vabs(e, x));
    LLVMValueRef m = ior(e, iand(e, bits, i32(e, 0x007fffff)), i32(e, 0x00800000));
    m = ishl(e, m, iand(e, ilshr(e, bits, i32(e, 23)), i32(e, 7)));
    m = int_to_f64(e, m);
    LLVMValueRef group = ilshr(e, bits, i32(e, 26));
    LLVMValueRef product[4];
    for (int i = 0; i < 4; i++)
        product[i] = vmul(e, m, widen(e, opq_math_lookup32(e, TWO_OVER_PI[i], group)));
    LLVMValueRef leading = vadd(e, mod4(e, product[0]), mod4(e, product[1])); /* exact: 2^3 down to 2^-45 */
    LLVMValueRef whole = vround(e, leading);
    LLVMValueRef fraction = vadd(e, vsub(e, leading, whole), vadd(e, product[2], product[3]));
    angle result = {
        .quadrant = f64_to_i32(e, whole),
        .r = vfma(e, fraction, f64(e, HALF_PI), widen(e, vsub(e, x, x))), /* x - x is 0, or NaN */
    };
    return result;
}

/* sin(|x|) or its cosine from the reduced angle: the quadrant's low bit exchanges the two, the next
 * negates. */
static LLVMValueRef sin_of_angle(opq_emitter *e, angle a)
{
    LLVMValueRef s = vmul(e, a.r, a.r);
    LLVMValueRef sine = vmul(e, a.r, POLY64(e, SIN64, s));
    LLVMValueRef cosine = POLY64(e, COS64, s);
    LLVMValueRef odd = icmp(e, LLVMIntNE, iand(e, a.quadrant, i32(e, 1)), i32(e, 0));
    LLVMValueRef y = as_i32(e, narrow(e, vselect(e, odd, cosine, sine)));
    return as_f32(e, ixor(e, y, ishl(e, iand(e, a.quadrant, i32(e, 2)), i32(e, 30))));
}

static LLVMValueRef slow_sin(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef y = as_i32(e, sin_of_angle(e, reduce_exact(e, x)));
    return as_f32(e, ixor(e, y, iand(e, as_i32(e, x), i32(e, 0x80000000))));
}

static LLVMValueRef slow_cos(opq_emitter *e, LLVMValueRef x)
{
    angle a = reduce_exact(e, x);
    a.quadrant = iadd(e, a.quadrant, i32(e, 1));
    return sin_of_angle(e, a);
}

static LLVMValueRef is_large(opq_emitter *e, LLVMValueRef x)
{
    return vcmp(e, LLVMRealUGT, vabs(e, x), f32(e, FAST_LIMIT));
}

/* x - h pi, h an integer or a half-integer: the first step is exact, the others each add a part of
 * pi. */
static LLVMValueRef subtract_multiple_of_pi(opq_emitter *e, LLVMValueRef x, LLVMValueRef h)
{
    LLVMValueRef r = vfma(e, h, f32(e, -PI_1), x);
    r = vfma(e, h, f32(e, -PI_2), r);
    return vfma(e, h, f32(e, -PI_3), r);
}

/* (-1)^n sin(r), |r| <= pi/2; n in the low bit of t */
static LLVMValueRef sin_core(opq_emitter *e, LLVMValueRef r, LLVMValueRef t)
{
    LLVMValueRef s = vmul(e, r, r);
    r = as_f32(e, ixor(e, as_i32(e, r), ishl(e, as_i32(e, t), i32(e, 31))));
    return vfma(e, vmul(e, r, s), POLY32(e, SIN32, s), r);
}

LLVMValueRef opq_math_sin(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = vfma(e, x, f32(e, ONE_OVER_PI), f32(e, MAGIC32));
    LLVMValueRef n = vsub(e, t, f32(e, MAGIC32));
    LLVMValueRef y = sin_core(e, subtract_multiple_of_pi(e, x, n), t);
    /* r + r^3 q loses the sign of -0, whose two terms have opposite signs. */
    y = vselect(e, vcmp(e, LLVMRealOEQ, x, f32(e, 0.0f)), x, y);
    return with_slow_path(e, x, y, is_large(e, x), slow_sin);
}

/* cos(x) = -(-1)^n sin(x - (n + 1/2) pi) */
LLVMValueRef opq_math_cos(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef t = vfma(e, x, f32(e, ONE_OVER_PI), f32(e, -0.5f));
    t = vadd(e, t, f32(e, MAGIC32));
    LLVMValueRef h = vadd(e, vsub(e, t, f32(e, MAGIC32)), f32(e, 0.5f));
    LLVMValueRef y = sin_core(e, vneg(e, subtract_multiple_of_pi(e, x, h)), t);
    return with_slow_path(e, x, y, is_large(e, x), slow_cos);
}

static LLVMValueRef tan_of_angle(opq_emitter *e, angle a)
{
    LLVMValueRef s = vmul(e, a.r, a.r);
    LLVMValueRef sine = vmul(e, a.r, POLY64(e, SIN64, s));
    LLVMValueRef cosine = POLY64(e, COS64, s);
    LLVMValueRef odd = icmp(e, LLVMIntNE, iand(e, a.quadrant, i32(e, 1)), i32(e, 0));
    LLVMValueRef numerator = vselect(e, odd, vneg(e, cosine), sine);
    return narrow(e, vdiv(e, numerator, vselect(e, odd, sine, cosine)));
}

static LLVMValueRef slow_tan(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef y = as_i32(e, tan_of_angle(e, reduce_exact(e, x)));
    return as_f32(e, ixor(e, y, iand(e, as_i32(e, x), i32(e, 0x80000000))));
}

LLVMValueRef opq_math_tan(opq_emitter *e, LLVMValueRef x)
{
    /* A larger or non-finite lane takes the slow result; here it only has to convert to an integer
     * safely. */
    LLVMValueRef inside = vcmp(e, LLVMRealOLE, vabs(e, x), f32(e, FAST_LIMIT));
    LLVMValueRef z = widen(e, vselect(e, inside, x, f32(e, 0.0f)));
    LLVMValueRef n = vround(e, vmul(e, z, f64(e, TWO_OVER_PI64)));
    LLVMValueRef r = vfma(e, n, f64(e, -HALF_PI), z);
    angle a = {
        .quadrant = f64_to_i32(e, n),
        .r = vfma(e, n, f64(e, -HALF_PI_LOW), r),
    };
    LLVMValueRef y = tan_of_angle(e, a);
    y = vselect(e, vcmp(e, LLVMRealOEQ, x, f32(e, 0.0f)), x, y);
    return with_slow_path(e, x, y, is_large(e, x), slow_tan);
}

/* ---- inverse functions */

/* atan(y/x) in [0, pi/2] for y, x >= 0, in f64; 0/0 is 0, inf/inf is 1. */
static LLVMValueRef atan_of_quotient(opq_emitter *e, LLVMValueRef y, LLVMValueRef x)
{
    LLVMValueRef steep = vcmp(e, LLVMRealOGT, y, x);
    LLVMValueRef numerator = vselect(e, steep, x, y);
    LLVMValueRef denominator = vselect(e, steep, y, x);
    LLVMValueRef t = vdiv(e, numerator, denominator);
    t = vselect(e, vcmp(e, LLVMRealOEQ, numerator, denominator), f64(e, 1.0), t);
    t = vselect(e, vcmp(e, LLVMRealOEQ, denominator, f64(e, 0.0)), f64(e, 0.0), t);
    LLVMValueRef angle = vmul(e, t, POLY64(e, ATAN64, vmul(e, t, t)));
    return vselect(e, steep, vsub(e, f64(e, HALF_PI), angle), angle);
}

LLVMValueRef opq_math_atan(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef y = atan_of_quotient(e, widen(e, vabs(e, x)), f64(e, 1.0));
    return vcopysign(e, narrow(e, y), x);
}

LLVMValueRef opq_math_atan2(opq_emitter *e, LLVMValueRef y, LLVMValueRef x)
{
    LLVMValueRef angle = atan_of_quotient(e, widen(e, vabs(e, y)), widen(e, vabs(e, x)));
    LLVMValueRef left = icmp(e, LLVMIntSLT, as_i32(e, x), i32(e, 0)); /* -0 counts */
    angle = vselect(e, left, vsub(e, f64(e, PI), angle), angle);
    LLVMValueRef result = vcopysign(e, narrow(e, angle), y);
    return vselect(e, vcmp(e, LLVMRealUNO, y, x), f32(e, NAN), result);
}

/* asin(t) for t in [0, 1/2], f64 */
static LLVMValueRef asin_core(opq_emitter *e, LLVMValueRef t) { return vmul(e, t, POLY64(e, ASIN64, vmul(e, t, t))); }

/* The polynomial's argument for t = |x|: t up to 1/2, then sqrt((1-t)/2), which has asin(t) = pi/2
 * - 2 asin(of it). NaN past 1. */
static LLVMValueRef asin_argument(opq_emitter *e, LLVMValueRef t, LLVMValueRef *out_upper)
{
    *out_upper = vcmp(e, LLVMRealOGT, t, f64(e, 0.5));
    LLVMValueRef root = vsqrt(e, vmul(e, vsub(e, f64(e, 1.0), t), f64(e, 0.5)));
    return vselect(e, *out_upper, root, t);
}

LLVMValueRef opq_math_asin(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef upper;
    LLVMValueRef core = asin_core(e, asin_argument(e, widen(e, vabs(e, x)), &upper));
    LLVMValueRef y = vselect(e, upper, vfma(e, core, f64(e, -2.0), f64(e, HALF_PI)), core);
    return vcopysign(e, narrow(e, y), x);
}

LLVMValueRef opq_math_acos(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef upper;
    LLVMValueRef core = asin_core(e, asin_argument(e, widen(e, vabs(e, x)), &upper));
    LLVMValueRef negative = vcmp(e, LLVMRealOLT, x, f32(e, 0.0f));
    /* Up to 1/2: pi/2 - asin(x). Past it: 2 core, or pi - 2 core on the left. */
    LLVMValueRef inner = vsub(e, f64(e, HALF_PI), vselect(e, negative, vneg(e, core), core));
    LLVMValueRef twice = vadd(e, core, core);
    LLVMValueRef outer = vselect(e, negative, vsub(e, f64(e, PI), twice), twice);
    return narrow(e, vselect(e, upper, outer, inner));
}
