/* Elementwise rows of the op table as vector instructions. No fast-math flag, no nsw: graph/eval_*.c defines the
 * results.
 *
 * A function gets operands of one dtype and gives NULL if it is not lowered for it. Integer division never traps and is
 * never poison: divisors 0 and -1 of the smallest integer are replaced by 1 first, also in lanes that nobody looks at.
 */
#include "codegen_llvm/emit_ops.h"

#include <string.h>

typedef LLVMValueRef emit_fn(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x);

static LLVMValueRef zero_like(LLVMValueRef x) { return LLVMConstNull(LLVMTypeOf(x)); }

static LLVMValueRef unary(opq_emitter *e, const char *intrinsic, LLVMValueRef x)
{
    LLVMTypeRef type = LLVMTypeOf(x);
    return opq_intrinsic(e, intrinsic, &type, 1, &x, 1);
}

static LLVMValueRef fcmp(opq_emitter *e, LLVMRealPredicate predicate, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildFCmp(e->builder, predicate, a, b, "");
}

static LLVMValueRef icmp(opq_emitter *e, LLVMIntPredicate predicate, LLVMValueRef a, LLVMValueRef b)
{
    return LLVMBuildICmp(e->builder, predicate, a, b, "");
}

static bool is_signed(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_INT; }

/* ---- ARITH, CMP -------------------------------------------------------------------------------------------------- */

/* On i1, addition is or: bool is "not zero" after arithmetic. */
static LLVMValueRef arith(opq_emitter *e, opq_arith code, LLVMValueRef a, LLVMValueRef b)
{
    LLVMBuilderRef builder = e->builder;
    switch (code) {
    case OPQ_ARITH_FAdd: return LLVMBuildFAdd(builder, a, b, "");
    case OPQ_ARITH_FSub: return LLVMBuildFSub(builder, a, b, "");
    case OPQ_ARITH_FMul: return LLVMBuildFMul(builder, a, b, "");
    case OPQ_ARITH_FDiv: return LLVMBuildFDiv(builder, a, b, "");
    case OPQ_ARITH_Add: return opq_is_bool(a) ? LLVMBuildOr(builder, a, b, "") : LLVMBuildAdd(builder, a, b, "");
    case OPQ_ARITH_Sub: return opq_is_bool(a) ? LLVMBuildXor(builder, a, b, "") : LLVMBuildSub(builder, a, b, "");
    case OPQ_ARITH_Mul: return opq_is_bool(a) ? LLVMBuildAnd(builder, a, b, "") : LLVMBuildMul(builder, a, b, "");
    case OPQ_ARITH_And: return LLVMBuildAnd(builder, a, b, "");
    case OPQ_ARITH_Or: return LLVMBuildOr(builder, a, b, "");
    case OPQ_ARITH_Xor: return LLVMBuildXor(builder, a, b, "");
    case OPQ_ARITH_None: break;
    }
    return NULL;
}

#define REAL(name) [OPQ_CMP_##name] = LLVMReal##name
#define INT(name) [OPQ_CMP_##name] = LLVMInt##name
static const int predicates[] = {REAL(OEQ), REAL(UNE), REAL(OLT), REAL(OLE), REAL(OGT), REAL(OGE), INT(EQ),  INT(NE),
                                 INT(SLT),  INT(SLE),  INT(SGT),  INT(SGE),  INT(ULT),  INT(ULE),  INT(UGT), INT(UGE)};
#undef REAL
#undef INT

/* Float codes come first. */
static LLVMValueRef compare(opq_emitter *e, opq_cmp code, LLVMValueRef a, LLVMValueRef b)
{
    if (code == OPQ_CMP_None)
        return NULL;
    if (code <= OPQ_CMP_OGE)
        return fcmp(e, (LLVMRealPredicate)predicates[code], a, b);
    return icmp(e, (LLVMIntPredicate)predicates[code], a, b);
}

LLVMValueRef opq_emit_compare(opq_emitter *e, opq_op op, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    opq_cmp code = (opq_cmp)opq_lowering_code(opq_op_lowering(op), dtype);
    return opq_is_float(a) ? fcmp(e, (LLVMRealPredicate)(predicates[code] | LLVMRealUNO), a, b) : compare(e, code, a, b);
}

/* ---- sign, order, rounding --------------------------------------------------------------------------------------- */

static LLVMValueRef emit_neg(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    (void)dtype;
    if (opq_is_bool(x[0]))
        return x[0];
    return opq_is_float(x[0]) ? LLVMBuildFNeg(e->builder, x[0], "") : LLVMBuildSub(e->builder, zero_like(x[0]), x[0], "");
}

static LLVMValueRef emit_abs(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (opq_is_float(x[0]))
        return unary(e, "llvm.fabs", x[0]);
    if (!is_signed(dtype))
        return x[0];
    return opq_select(e, icmp(e, LLVMIntSLT, x[0], zero_like(x[0])), emit_neg(e, dtype, x), x[0]);
}

static LLVMValueRef emit_sign(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMValueRef zero = zero_like(x[0]);
    if (opq_is_float(x[0])) {
        LLVMValueRef one = opq_splat_float(e, LLVMTypeOf(x[0]), 1), less = opq_splat_float(e, LLVMTypeOf(x[0]), -1);
        LLVMValueRef below = opq_select(e, fcmp(e, LLVMRealOLT, x[0], zero), less, zero);
        return opq_select(e, fcmp(e, LLVMRealOGT, x[0], zero), one, below);
    }
    if (opq_is_bool(x[0]))
        return x[0];
    LLVMValueRef one = opq_splat_int(e, LLVMTypeOf(x[0]), 1);
    LLVMValueRef not_zero = opq_select(e, icmp(e, LLVMIntNE, x[0], zero), one, zero);
    if (!is_signed(dtype))
        return not_zero;
    return opq_select(e, icmp(e, LLVMIntSLT, x[0], zero), opq_splat_int(e, LLVMTypeOf(x[0]), -1), not_zero);
}

static LLVMValueRef emit_signbit(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (!opq_is_float(x[0]) && !is_signed(dtype))
        return opq_splat_int(e, opq_vector_type(e, OPQ_bool), 0);
    LLVMTypeRef bits = opq_vector_of(e, LLVMIntTypeInContext(e->context, (unsigned)opq_lane_bits(x[0])));
    return icmp(e, LLVMIntSLT, LLVMBuildBitCast(e->builder, x[0], bits, ""), LLVMConstNull(bits));
}

static LLVMValueRef emit_copysign(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (opq_is_float(x[0])) {
        LLVMTypeRef type = LLVMTypeOf(x[0]);
        LLVMValueRef args[2] = {x[0], x[1]};
        return opq_intrinsic(e, "llvm.copysign", &type, 1, args, 2);
    }
    LLVMValueRef magnitude = emit_abs(e, dtype, x);
    if (!is_signed(dtype))
        return magnitude;
    return opq_select(e, icmp(e, LLVMIntSLT, x[1], zero_like(x[1])), emit_neg(e, dtype, &magnitude), magnitude);
}

/* One unit in the last place up or down is one up or down in the bits; from a zero the first number with the sign of where it goes. */
static LLVMValueRef emit_nextafter(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    (void)dtype;
    if (!opq_is_float(x[0]))
        return NULL;
    LLVMTypeRef real = LLVMTypeOf(x[0]);
    LLVMTypeRef bits = opq_vector_of(e, LLVMIntTypeInContext(e->context, (unsigned)opq_lane_bits(x[0])));
    LLVMValueRef zero = LLVMConstNull(real), from = LLVMBuildBitCast(e->builder, x[0], bits, "");
    LLVMValueRef away = icmp(e, LLVMIntEQ, fcmp(e, LLVMRealOLT, x[0], x[1]), fcmp(e, LLVMRealOGT, x[0], zero));
    LLVMValueRef step = opq_select(e, away, opq_splat_int(e, bits, 1), opq_splat_int(e, bits, -1));
    LLVMValueRef next = LLVMBuildBitCast(e->builder, LLVMBuildAdd(e->builder, from, step, ""), real, "");
    LLVMValueRef least = LLVMBuildBitCast(e->builder, opq_splat_int(e, bits, 1), real, "");
    next = opq_select(e, fcmp(e, LLVMRealOEQ, x[0], zero), emit_copysign(e, dtype, (LLVMValueRef[]){least, x[1]}), next);
    next = opq_select(e, fcmp(e, LLVMRealOEQ, x[0], x[1]), x[1], next);
    return opq_select(e, fcmp(e, LLVMRealUNO, x[0], x[1]), LLVMBuildFAdd(e->builder, x[0], x[1], ""), next);
}

/* a > b or a is NaN ? a : b. The select of a comparison is one maxps; the second select is needed for NaN only. */
static LLVMValueRef extreme(opq_emitter *e, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b, bool largest)
{
    if (!opq_is_float(a)) {
        LLVMIntPredicate more =
            is_signed(dtype) ? (largest ? LLVMIntSGT : LLVMIntSLT) : (largest ? LLVMIntUGT : LLVMIntULT);
        return opq_select(e, icmp(e, more, a, b), a, b);
    }
    LLVMValueRef chosen = opq_select(e, fcmp(e, largest ? LLVMRealOGT : LLVMRealOLT, a, b), a, b);
    return opq_select(e, fcmp(e, LLVMRealUNO, a, a), a, chosen);
}

static LLVMValueRef emit_maximum(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    return extreme(e, dtype, x[0], x[1], true);
}

static LLVMValueRef emit_minimum(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    return extreme(e, dtype, x[0], x[1], false);
}

static LLVMValueRef emit_bitwise_not(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    (void)dtype;
    return opq_is_float(x[0]) ? NULL : LLVMBuildNot(e->builder, x[0], "");
}

static LLVMValueRef emit_where(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    (void)dtype;
    return opq_select(e, x[0], x[1], x[2]);
}

static LLVMValueRef emit_sqrt(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    (void)dtype;
    return opq_is_float(x[0]) ? unary(e, "llvm.sqrt", x[0]) : NULL;
}

/* Integers stay as they are. */
#define ROUNDING(name, intrinsic)                                                                                      \
    static LLVMValueRef emit_##name(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)                            \
    {                                                                                                                  \
        (void)dtype;                                                                                                   \
        return opq_is_float(x[0]) ? unary(e, intrinsic, x[0]) : x[0];                                                  \
    }
ROUNDING(floor, "llvm.floor")
ROUNDING(ceil, "llvm.ceil")
ROUNDING(trunc, "llvm.trunc")
ROUNDING(round, "llvm.roundeven")

/* ---- division ---------------------------------------------------------------------------------------------------- */

/* b without 0, and without -1 where a / b would overflow. Where b is 0 the result is never seen: see opq_nest_nonzero. */
static LLVMValueRef safe_divisor(opq_emitter *e, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    LLVMTypeRef type = LLVMTypeOf(a);
    LLVMValueRef unsafe = icmp(e, LLVMIntEQ, b, zero_like(b));
    if (is_signed(dtype)) {
        LLVMValueRef smallest = opq_splat_int(e, type, (int64_t)(UINT64_MAX << (opq_lane_bits(a) - 1)));
        LLVMValueRef overflow = LLVMBuildAnd(e->builder, icmp(e, LLVMIntEQ, a, smallest),
                                             icmp(e, LLVMIntEQ, b, opq_splat_int(e, type, -1)), "");
        unsafe = LLVMBuildOr(e->builder, unsafe, overflow, "");
    }
    return opq_select(e, unsafe, opq_splat_int(e, type, 1), b);
}

/* a / b with a safe divisor. x86 divides integers one at a time; up to 32 bits the f64 quotient, cut, is exact. */
static LLVMValueRef divide_safe(opq_emitter *e, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    if (opq_lane_bits(a) > 32)
        return LLVMBuildSDiv(e->builder, a, b, "");
    LLVMTypeRef wide = opq_vector_type(e, OPQ_f64);
    LLVMOpcode widen = is_signed(dtype) ? LLVMSIToFP : LLVMUIToFP;
    LLVMValueRef quotient = LLVMBuildFDiv(e->builder, LLVMBuildCast(e->builder, widen, a, wide, ""),
                                          LLVMBuildCast(e->builder, widen, b, wide, ""), "");
    LLVMValueRef whole = LLVMBuildFPToSI(e->builder, quotient, opq_vector_type(e, OPQ_i32), "");
    return LLVMBuildIntCast2(e->builder, whole, LLVMTypeOf(a), true, "");
}

/* a mod b as C has it; `out_quotient` is a / b. */
static LLVMValueRef int_mod(opq_emitter *e, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b, LLVMValueRef *out_quotient)
{
    LLVMValueRef divisor = safe_divisor(e, dtype, a, b);
    *out_quotient = divide_safe(e, dtype, a, divisor);
    return LLVMBuildSub(e->builder, a, LLVMBuildMul(e->builder, *out_quotient, divisor, ""), "");
}

/* Has the remainder the wrong sign for a floored division? */
static LLVMValueRef signs_differ(opq_emitter *e, opq_dtype dtype, LLVMValueRef mod, LLVMValueRef b)
{
    LLVMValueRef zero = zero_like(mod);
    if (opq_is_float(mod)) {
        LLVMValueRef differ =
            LLVMBuildXor(e->builder, fcmp(e, LLVMRealOLT, b, zero), fcmp(e, LLVMRealOLT, mod, zero), "");
        return LLVMBuildAnd(e->builder, fcmp(e, LLVMRealUNE, mod, zero), differ, "");
    }
    if (!is_signed(dtype))
        return opq_splat_int(e, opq_vector_type(e, OPQ_bool), 0);
    LLVMValueRef differ = icmp(e, LLVMIntSLT, LLVMBuildXor(e->builder, mod, b, ""), zero);
    return LLVMBuildAnd(e->builder, icmp(e, LLVMIntNE, mod, zero), differ, "");
}

static LLVMValueRef emit_fmod(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMValueRef quotient;
    if (opq_is_bool(x[0]))
        return zero_like(x[0]);
    if (!opq_is_float(x[0]))
        return int_mod(e, dtype, x[0], x[1], &quotient);
    return dtype == OPQ_f64 ? opq_math_fmod_f64(e, x[0], x[1]) : opq_math_fmod(e, x[0], x[1]);
}

/* In turns, until all lanes are done: one that is keeps its 0 and its result. */
static LLVMValueRef emit_euclid(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMBuilderRef builder = e->builder;
    LLVMTypeRef type = LLVMTypeOf(x[0]);
    LLVMValueRef quotient;
    LLVMBasicBlockRef before = LLVMGetInsertBlock(builder);
    LLVMBasicBlockRef turn = LLVMAppendBasicBlockInContext(e->context, e->function, "euclid");
    LLVMBasicBlockRef done = LLVMAppendBasicBlockInContext(e->context, e->function, "euclid_done");
    LLVMBuildBr(builder, turn);
    LLVMPositionBuilderAtEnd(builder, turn);
    LLVMValueRef a = LLVMBuildPhi(builder, type, ""), b = LLVMBuildPhi(builder, type, "");
    LLVMValueRef ended = icmp(e, LLVMIntEQ, a, zero_like(a));
    LLVMValueRef rest = opq_select(e, ended, a, int_mod(e, dtype, b, a, &quotient)), last = opq_select(e, ended, b, a);
    LLVMBasicBlockRef end = LLVMGetInsertBlock(builder);
    LLVMAddIncoming(a, (LLVMValueRef[]){x[0], rest}, (LLVMBasicBlockRef[]){before, end}, 2);
    LLVMAddIncoming(b, (LLVMValueRef[]){x[1], last}, (LLVMBasicBlockRef[]){before, end}, 2);
    LLVMTypeRef mask = LLVMIntTypeInContext(e->context, (unsigned)e->lanes);
    LLVMValueRef more = LLVMBuildBitCast(builder, icmp(e, LLVMIntNE, rest, zero_like(rest)), mask, "");
    LLVMBuildCondBr(builder, LLVMBuildICmp(builder, LLVMIntNE, more, LLVMConstNull(mask), ""), turn, done);
    LLVMPositionBuilderAtEnd(builder, done);
    return last;
}

static LLVMValueRef emit_remainder(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMValueRef mod = emit_fmod(e, dtype, x);
    if (opq_is_bool(x[0]))
        return mod;
    LLVMValueRef differ = signs_differ(e, dtype, mod, x[1]);
    LLVMValueRef moved =
        opq_is_float(mod) ? LLVMBuildFAdd(e->builder, mod, x[1], "") : LLVMBuildAdd(e->builder, mod, x[1], "");
    return opq_select(e, differ, moved, mod);
}

static LLVMValueRef emit_div_trunc(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (opq_is_float(x[0]))
        return unary(e, "llvm.trunc", LLVMBuildFDiv(e->builder, x[0], x[1], ""));
    if (opq_is_bool(x[0])) /* 1 / 1 is 1, all else 0 */
        return LLVMBuildAnd(e->builder, x[0], x[1], "");
    LLVMValueRef quotient;
    int_mod(e, dtype, x[0], x[1], &quotient);
    return quotient;
}

/* ATen's div_floor_floating, which corrects the quotient of the exact remainder. */
static LLVMValueRef floor_float(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMBuilderRef b = e->builder;
    LLVMTypeRef type = LLVMTypeOf(x[0]);
    LLVMValueRef zero = zero_like(x[0]), one = opq_splat_float(e, type, 1), plain = LLVMBuildFDiv(b, x[0], x[1], "");
    LLVMValueRef mod = emit_fmod(e, dtype, x);
    LLVMValueRef quotient = LLVMBuildFDiv(b, LLVMBuildFSub(b, x[0], mod, ""), x[1], "");
    quotient = opq_select(e, signs_differ(e, dtype, mod, x[1]), LLVMBuildFSub(b, quotient, one, ""), quotient);
    LLVMValueRef whole = unary(e, "llvm.floor", quotient);
    LLVMValueRef up = fcmp(e, LLVMRealOGT, LLVMBuildFSub(b, quotient, whole, ""), opq_splat_float(e, type, 0.5));
    whole = opq_select(e, up, LLVMBuildFAdd(b, whole, one, ""), whole);
    LLVMValueRef signed_zero = emit_copysign(e, dtype, (LLVMValueRef[]){zero, plain});
    LLVMValueRef result = opq_select(e, fcmp(e, LLVMRealOEQ, quotient, zero), signed_zero, whole);
    return opq_select(e, fcmp(e, LLVMRealOEQ, x[1], zero), plain, result);
}

static LLVMValueRef emit_div_floor(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (opq_is_float(x[0]))
        return floor_float(e, dtype, x);
    if (opq_is_bool(x[0]))
        return emit_div_trunc(e, dtype, x);
    LLVMValueRef quotient, mod = int_mod(e, dtype, x[0], x[1], &quotient);
    LLVMValueRef less = LLVMBuildSub(e->builder, quotient, opq_splat_int(e, LLVMTypeOf(quotient), 1), "");
    return opq_select(e, signs_differ(e, dtype, mod, x[1]), less, quotient);
}

/* ---- transcendental ---------------------------------------------------------------------------------------------- */

#define X(name)                                                                                                        \
    static LLVMValueRef emit_##name(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)                            \
    {                                                                                                                  \
        return dtype == OPQ_f64 ? opq_math_##name##_f64(e, x[0]) : dtype == OPQ_f32 ? opq_math_##name(e, x[0]) : NULL; \
    }
OPQ_MATH1_F64(X)
#undef X
#define X(name)                                                                                                        \
    static LLVMValueRef emit_##name(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)                            \
    {                                                                                                                  \
        return dtype == OPQ_f32 ? opq_math_##name(e, x[0]) : NULL;                                                     \
    }
OPQ_MATH1_F32(X)
#undef X

static LLVMValueRef emit_pow(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    if (dtype == OPQ_f64)
        return opq_math_pow_f64(e, x[0], x[1]);
    return dtype == OPQ_f32 ? opq_math_pow(e, x[0], x[1]) : NULL;
}

static LLVMValueRef emit_atan2(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    return dtype == OPQ_f32 ? opq_math_atan2(e, x[0], x[1]) : NULL;
}

static LLVMValueRef emit_logaddexp(opq_emitter *e, opq_dtype dtype, const LLVMValueRef *x)
{
    LLVMValueRef wide[2];
    for (int i = 0; i < 2; i++)
        wide[i] = opq_emit_cast(e, dtype, OPQ_f64, x[i]);
    return opq_emit_cast(e, OPQ_f64, dtype, opq_math_logaddexp_f64(e, wide[0], wide[1]));
}

/* ---- by name ----------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    emit_fn *emit;
} calls[] = {
#define X(name) {#name, emit_##name},
    X(div_trunc) X(div_floor) X(remainder) X(fmod) X(euclid) X(neg) X(abs) X(sign) X(signbit) X(copysign) X(nextafter)
        X(maximum) X(minimum) X(bitwise_not) X(where) X(sqrt) X(floor) X(ceil) X(trunc) X(round) OPQ_MATH1(X) X(pow)
            X(atan2) X(logaddexp)
#undef X
};

LLVMValueRef opq_emit_call(opq_emitter *e, const char *name, opq_dtype dtype, const LLVMValueRef *operands)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(calls[i].name, name) == 0)
            return calls[i].emit(e, dtype, operands);
    return NULL;
}

opq_status opq_emit_ewise(opq_emitter *e, opq_op op, opq_dtype dtype, const LLVMValueRef *operands,
                          LLVMValueRef *out_value)
{
    const opq_lowering *lowering = opq_op_lowering(op);
    LLVMValueRef value = NULL;
    switch (lowering->kind) {
    case OPQ_LOWER_ARITH:
        value = arith(e, (opq_arith)opq_lowering_code(lowering, dtype), operands[0], operands[1]);
        break;
    case OPQ_LOWER_CMP:
        value = compare(e, (opq_cmp)opq_lowering_code(lowering, dtype), operands[0], operands[1]);
        break;
    case OPQ_LOWER_CALL:
        value = e->shares_math && opq_op_is_math(op)
                    ? opq_emit_shared(e, lowering->text, dtype, operands, opq_op_info_of(op)->arity)
                    : opq_emit_call(e, lowering->text, dtype, operands);
        break;
    case OPQ_LOWER_NATIVE:
    case OPQ_LOWER_FOLD:
    case OPQ_LOWER_SCAN:
    case OPQ_LOWER_EXPAND: break;
    }
    if (!value)
        return opq_fail(OPQ_UNSUPPORTED, "%s is not generated for %s", opq_op_info_of(op)->name, opq_dtype_name(dtype));
    *out_value = value;
    return OPQ_OK;
}
