/* log(exp(x) + exp(y)) in f64: the larger one, and log1p(exp(-d)) of how far d the other lies below.
 *
 * exp(-d) is in (0, 1], and log(1 + t) = 2 atanh(t / (2 + t)) with an argument of at most 1/3: nothing cancels, and both are Taylor series.
 */
#include "codegen_llvm/math.h"
#include "opaque/scalar_math.h"

LLVMValueRef opq_math_logaddexp_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef y)
{
    LLVMValueRef high = vselect(e, vcmp(e, LLVMRealOGT, x, y), x, y), low = vselect(e, vcmp(e, LLVMRealOGT, x, y), y, x);
    LLVMValueRef minus_d = vselect(e, vcmp(e, LLVMRealOEQ, x, y), f64(e, 0), vsub(e, low, high)); /* also of infinities */
    LLVMValueRef far = vcmp(e, LLVMRealOLT, minus_d, f64(e, OPQ_LOGADDEXP_FAR)), magic = f64(e, OPQ_MAGIC_F64);
    LLVMValueRef near = vselect(e, far, f64(e, 0), minus_d);
    LLVMValueRef t = vfma(e, near, f64(e, OPQ_LOG2_E), magic), minus_n = vsub(e, magic, t);
    LLVMValueRef r = vfma(e, minus_n, f64(e, OPQ_LN2_LOW_F64), vfma(e, minus_n, f64(e, OPQ_LN2_HIGH_F64), near));
    LLVMValueRef scale = as_f64(e, iadd(e, ishl(e, as_i64(e, t), i64(e, 52)), i64(e, UINT64_C(1023) << 52)));
    LLVMValueRef power = vmul(e, scale, POLY64(e, OPQ_EXP_TAYLOR, r));
    LLVMValueRef s = vdiv(e, power, vadd(e, power, f64(e, 2)));
    LLVMValueRef more = vmul(e, s, POLY64(e, OPQ_ATANH_TAYLOR, vmul(e, s, s)));
    return vselect(e, far, high, vadd(e, high, more));
}
