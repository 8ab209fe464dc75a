/* What reductions are made of: identities, combining, folding 64 lanes in halves. graph/eval_reduce.c defines the
 * results. */
#include "codegen_llvm/emit_ops.h"

#include <math.h>

static bool is_signed(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_INT; }

/* The largest number of the dtype, or the smallest; infinities for floats. */
static LLVMValueRef limit(opq_emitter *e, opq_dtype dtype, bool largest)
{
    LLVMTypeRef type = opq_vector_type(e, dtype);
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        return opq_splat_float(e, type, largest ? (double)INFINITY : -(double)INFINITY);
    if (!is_signed(dtype))
        return opq_splat_int(e, type, largest ? -1 : 0);
    uint64_t smallest = UINT64_MAX << (8 * opq_dtype_bytes(dtype) - 1);
    return opq_splat_int(e, type, (int64_t)(largest ? ~smallest : smallest));
}

LLVMValueRef opq_fold_identity(opq_emitter *e, opq_fold fold, opq_dtype dtype)
{
    LLVMTypeRef type = opq_vector_type(e, dtype);
    switch (fold) {
    case OPQ_FOLD_sum:
    case OPQ_FOLD_or: return LLVMConstNull(type);
    case OPQ_FOLD_prod:
        return opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT ? opq_splat_float(e, type, 1) : opq_splat_int(e, type, 1);
    case OPQ_FOLD_and: return opq_splat_int(e, type, -1);
    case OPQ_FOLD_max:
    case OPQ_FOLD_argmax: return limit(e, dtype, false);
    case OPQ_FOLD_min:
    case OPQ_FOLD_argmin: return limit(e, dtype, true);
    }
    return NULL;
}

LLVMValueRef opq_fold_combine(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    const LLVMValueRef operands[2] = {a, b};
    LLVMValueRef value = NULL;
    switch (fold) {
    case OPQ_FOLD_sum: return opq_emit_ewise(e, OPQ_OP_add, dtype, operands, &value) == OPQ_OK ? value : NULL;
    case OPQ_FOLD_prod: return opq_emit_ewise(e, OPQ_OP_mul, dtype, operands, &value) == OPQ_OK ? value : NULL;
    case OPQ_FOLD_max: return opq_emit_call(e, "maximum", dtype, operands);
    case OPQ_FOLD_min: return opq_emit_call(e, "minimum", dtype, operands);
    case OPQ_FOLD_or: return LLVMBuildOr(e->builder, a, b, "");
    case OPQ_FOLD_and: return LLVMBuildAnd(e->builder, a, b, "");
    case OPQ_FOLD_argmax:
    case OPQ_FOLD_argmin: break;
    }
    return NULL;
}

/* Lane i gets lane i + by; what comes in above is nobody's. */
static LLVMValueRef shift_down(opq_emitter *e, LLVMValueRef x, int by)
{
    LLVMValueRef lanes[64];
    for (int i = 0; i < e->lanes; i++)
        lanes[i] = opq_int(e, 32, i + by < e->lanes ? i + by : i);
    return LLVMBuildShuffleVector(e->builder, x, LLVMGetPoison(LLVMTypeOf(x)),
                                  LLVMConstVector(lanes, (unsigned)e->lanes), "");
}

LLVMValueRef opq_fold_lanes(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef *vectors, int count)
{
    for (; count > 1; count /= 2)
        for (int i = 0; i < count / 2; i++)
            vectors[i] = opq_fold_combine(e, fold, dtype, vectors[i], vectors[i + count / 2]);
    LLVMValueRef all = vectors[0];
    for (int half = e->lanes / 2; half > 0; half /= 2)
        all = opq_fold_combine(e, fold, dtype, all, shift_down(e, all, half));
    return opq_splat(e, opq_lane(e, all, 0));
}

/* ---- argmax, argmin ---------------------------------------------------------------------------------------------- */

static LLVMValueRef is_nan(opq_emitter *e, LLVMValueRef x) { return LLVMBuildFCmp(e->builder, LLVMRealUNO, x, x, ""); }

LLVMValueRef opq_fold_better(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef best, LLVMValueRef x)
{
    bool largest = fold == OPQ_FOLD_argmax;
    if (!opq_is_float(x)) {
        LLVMIntPredicate more =
            is_signed(dtype) ? (largest ? LLVMIntSGT : LLVMIntSLT) : (largest ? LLVMIntUGT : LLVMIntULT);
        return LLVMBuildICmp(e->builder, more, x, best, "");
    }
    /* "greater or unordered" is one instruction: true for NaN in either, and then false once the best is NaN */
    LLVMValueRef more = LLVMBuildFCmp(e->builder, largest ? LLVMRealUGT : LLVMRealULT, x, best, "");
    return LLVMBuildAnd(e->builder, more, LLVMBuildFCmp(e->builder, LLVMRealORD, best, best, ""), "");
}

static void arg_combine(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef *best, LLVMValueRef *index,
                        LLVMValueRef x, LLVMValueRef at)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef better = opq_fold_better(e, fold, dtype, *best, x), equal;
    if (opq_is_float(x)) {
        LLVMValueRef both = LLVMBuildAnd(b, is_nan(e, x), is_nan(e, *best), "");
        equal = LLVMBuildOr(b, LLVMBuildFCmp(b, LLVMRealOEQ, x, *best, ""), both, "");
    } else {
        equal = LLVMBuildICmp(b, LLVMIntEQ, x, *best, "");
    }
    LLVMValueRef earlier = LLVMBuildAnd(b, equal, LLVMBuildICmp(b, LLVMIntULT, at, *index, ""), "");
    LLVMValueRef replace = LLVMBuildOr(b, better, earlier, "");
    *best = opq_select(e, replace, x, *best);
    *index = opq_select(e, replace, at, *index);
}

void opq_fold_arg_lanes(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef *vectors, LLVMValueRef *indices,
                        int count)
{
    for (; count > 1; count /= 2)
        for (int i = 0; i < count / 2; i++)
            arg_combine(e, fold, dtype, &vectors[i], &indices[i], vectors[i + count / 2], indices[i + count / 2]);
    for (int half = e->lanes / 2; half > 0; half /= 2)
        arg_combine(e, fold, dtype, &vectors[0], &indices[0], shift_down(e, vectors[0], half),
                    shift_down(e, indices[0], half));
    vectors[0] = opq_splat(e, opq_lane(e, vectors[0], 0));
    indices[0] = opq_splat(e, opq_lane(e, indices[0], 0));
}
