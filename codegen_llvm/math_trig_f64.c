/* Of f64: sin and cos.
 *
 * Up to 2^30 x = n pi/2 + r with pi/2 in three parts: the first step is exact, of the second and third what is lost is kept, so that r is
 * right to twice f64's bits next to a multiple of pi/2, where r is small. Beyond, a block that runs only if some lane needs it.
 *
 * Exact reduction (after Payne and Hanek, 1983). x = m 2^s with an integer m, so whole multiples of 4 in 2/pi * 2^s do not matter. A table
 * has 2/pi * 2^s mod 4 for each group of 32 exponents as the sum of four doubles; a product and what it lost are exact by FMA. What is
 * large is reduced mod 4, the rest summed with what the sums lost: no f64 is closer than 2^-62 to a multiple of pi/2, and the absolute
 * error is below 2^-120.
 */
#include "codegen_llvm/math.h"
#include <math.h>

typedef struct angle {
    LLVMValueRef quadrant; /* i64, any integer */
    LLVMValueRef r, low;   /* x = quadrant * pi/2 + r + low */
} angle;

/* a + b, rounded, and what that lost */
static LLVMValueRef two_sum(opq_emitter *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef *out_low)
{
    LLVMValueRef sum = vadd(e, a, b), of_b = vsub(e, sum, a);
    *out_low = vadd(e, vsub(e, a, vsub(e, sum, of_b)), vsub(e, b, of_b));
    return sum;
}

static angle reduce(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef magic = f64(e, OPQ_MAGIC_F64), t = vfma(e, x, f64(e, OPQ_TWO_OVER_PI), magic),
                 minus_n = vsub(e, magic, t), lost;
    LLVMValueRef second = vmul(e, minus_n, f64(e, HALF_PI_F64_2));
    LLVMValueRef high = two_sum(e, vfma(e, minus_n, f64(e, HALF_PI_F64_1), x), second, &lost);
    lost = vadd(e, lost, vfma(e, minus_n, f64(e, HALF_PI_F64_2), vneg(e, second)));
    LLVMValueRef low = vfma(e, minus_n, f64(e, HALF_PI_F64_3), lost), r = vadd(e, high, low);
    return (angle){.quadrant = as_i64(e, t), .r = r, .low = vadd(e, vsub(e, high, r), low)};
}

static LLVMValueRef mod4(opq_emitter *e, LLVMValueRef x)
{
    return vfma(e, vround(e, vmul(e, x, f64(e, 0.25))), f64(e, -4), x);
}

/* The table, once in a module */
static LLVMValueRef windows(opq_emitter *e)
{
    enum { COUNT = sizeof TWO_OVER_PI_F64 / sizeof *TWO_OVER_PI_F64 };
    LLVMTypeRef element = LLVMDoubleTypeInContext(e->context);
    LLVMValueRef made = LLVMGetNamedGlobal(e->module, "two_over_pi"), values[COUNT];
    if (made)
        return made;
    for (int i = 0; i < COUNT; i++)
        values[i] = LLVMConstReal(element, TWO_OVER_PI_F64[i]);
    made = LLVMAddGlobal(e->module, LLVMArrayType2(element, COUNT), "two_over_pi");
    LLVMSetInitializer(made, LLVMConstArray2(element, values, COUNT));
    LLVMSetGlobalConstant(made, true);
    LLVMSetLinkage(made, LLVMPrivateLinkage);
    return made;
}

/* table[4 * index + part] of each lane; the lanes one after the other, as this is rare */
static LLVMValueRef look_up(opq_emitter *e, LLVMValueRef index, int part)
{
    LLVMTypeRef element = LLVMDoubleTypeInContext(e->context), i32_scalar = LLVMInt32TypeInContext(e->context);
    LLVMValueRef table = windows(e), result = LLVMGetPoison(f64_type(e)),
                 at = iadd(e, ishl(e, index, i64(e, 2)), i64(e, (uint64_t)part));
    for (int lane = 0; lane < e->lanes; lane++) {
        LLVMValueRef which = LLVMConstInt(i32_scalar, (unsigned)lane, false);
        LLVMValueRef place = LLVMBuildExtractElement(e->builder, at, which, "");
        LLVMValueRef value =
            LLVMBuildLoad2(e->builder, element, LLVMBuildGEP2(e->builder, element, table, &place, 1, ""), "");
        result = LLVMBuildInsertElement(e->builder, result, value, which, "");
    }
    return result;
}

/* For |x| >= 1; NaN past every finite number, garbage but no trap below. */
static angle reduce_exact(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef bits = as_i64(e, x), group = iand(e, ilshr(e, bits, i64(e, 57)), i64(e, 31));
    LLVMValueRef exponent = iadd(e, iand(e, ilshr(e, bits, i64(e, 52)), i64(e, 31)), i64(e, 1075));
    LLVMValueRef m = ior(e, iand(e, bits, i64(e, UINT64_C(0x800fffffffffffff))), ishl(e, exponent, i64(e, 52)));
    LLVMValueRef product[4], rest[4], lost[6], less;
    m = as_f64(e, m);
    for (int i = 0; i < 4; i++) {
        LLVMValueRef window = look_up(e, group, i);
        product[i] = vmul(e, m, window);
        rest[i] = vfma(e, m, window, vneg(e, product[i]));
    }
    LLVMValueRef sum = two_sum(e, mod4(e, product[0]), mod4(e, rest[0]), &lost[0]);
    sum = two_sum(e, sum, mod4(e, product[1]), &lost[1]);
    LLVMValueRef whole = vround(e, sum), low = f64(e, 0);
    sum = vsub(e, sum, whole);
    lost[2] = rest[1];
    lost[3] = product[2];
    lost[4] = rest[2];
    lost[5] = product[3];
    for (int i = 0; i < 6; i++) {
        sum = two_sum(e, sum, lost[i], &less);
        low = vadd(e, low, less);
    }
    LLVMValueRef high = vadd(e, sum, low), r = vmul(e, high, f64(e, HALF_PI_F64_1));
    low = vsub(e, low, vsub(e, high, sum));
    LLVMValueRef r_low = vfma(e, high, f64(e, HALF_PI_F64_2), vmul(e, low, f64(e, HALF_PI_F64_1)));
    r_low = vadd(e, vfma(e, high, f64(e, HALF_PI_F64_1), vneg(e, r)), r_low);
    return (angle){
        .quadrant = as_i64(e, vadd(e, whole, f64(e, OPQ_MAGIC_F64))), .r = vadd(e, r, vsub(e, x, x)), .low = r_low};
}

/* The quadrant's low bit exchanges sine and cosine, the next negates. */
static LLVMValueRef sin_of_angle(opq_emitter *e, angle a)
{
    LLVMValueRef one = f64(e, 1), z = vmul(e, a.r, a.r), h = vmul(e, z, f64(e, 0.5)), w = vsub(e, one, h);
    LLVMValueRef sine = vfma(e, vmul(e, a.r, z), POLY64(e, SIN_F64, z), vfma(e, vneg(e, h), a.low, a.low));
    LLVMValueRef cosine = vfma(e, vmul(e, z, z), POLY64(e, COS_F64, z), vmul(e, vneg(e, a.r), a.low));
    sine = vadd(e, a.r, sine);
    cosine = vadd(e, w, vadd(e, vsub(e, vsub(e, one, w), h), cosine));
    LLVMValueRef odd = icmp(e, LLVMIntNE, iand(e, a.quadrant, i64(e, 1)), i64(e, 0));
    LLVMValueRef sign = ishl(e, iand(e, a.quadrant, i64(e, 2)), i64(e, 62));
    return as_f64(e, ixor(e, as_i64(e, vselect(e, odd, cosine, sine)), sign));
}

static LLVMValueRef slow_sin(opq_emitter *e, LLVMValueRef x) { return sin_of_angle(e, reduce_exact(e, x)); }

static LLVMValueRef cos_of_angle(opq_emitter *e, angle a)
{
    a.quadrant = iadd(e, a.quadrant, i64(e, 1));
    return sin_of_angle(e, a);
}

static LLVMValueRef slow_cos(opq_emitter *e, LLVMValueRef x) { return cos_of_angle(e, reduce_exact(e, x)); }

static LLVMValueRef is_large(opq_emitter *e, LLVMValueRef x)
{
    return vcmp(e, LLVMRealOGT, vabs(e, x), f64(e, OPQ_TRIG_FAST_F64)); /* NaN is NaN on the fast way as well */
}

LLVMValueRef opq_math_sin_f64(opq_emitter *e, LLVMValueRef x)
{
    LLVMValueRef y = sin_of_angle(e, reduce(e, x));
    y = vselect(e, vcmp(e, LLVMRealOEQ, x, f64(e, 0)), x, y); /* for the sign of -0 */
    return with_slow_path(e, x, y, is_large(e, x), slow_sin);
}

LLVMValueRef opq_math_cos_f64(opq_emitter *e, LLVMValueRef x)
{
    return with_slow_path(e, x, cos_of_angle(e, reduce(e, x)), is_large(e, x), slow_cos);
}
