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
    switch (opq_fold_info_of(fold)->identity) {
    case OPQ_IDENTITY_zero: return LLVMConstNull(type);
    case OPQ_IDENTITY_one:
        return opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT ? opq_splat_float(e, type, 1) : opq_splat_int(e, type, 1);
    case OPQ_IDENTITY_least: return limit(e, dtype, false);
    case OPQ_IDENTITY_greatest: return limit(e, dtype, true);
    }
    return NULL;
}

LLVMValueRef opq_fold_combine(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b)
{
    LLVMValueRef value = NULL;
    opq_status status = opq_emit_ewise(e, opq_fold_info_of(fold)->combine, dtype, (LLVMValueRef[]){a, b}, &value);
    return status == OPQ_OK ? value : NULL;
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

/* ---- places ------------------------------------------------------------------------------------------------------ */

static LLVMValueRef is_nan(opq_emitter *e, LLVMValueRef x) { return LLVMBuildFCmp(e->builder, LLVMRealUNO, x, x, ""); }

LLVMValueRef opq_fold_better(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef best, LLVMValueRef x)
{
    LLVMBuilderRef b = e->builder;
    LLVMValueRef takes = opq_emit_compare(e, opq_fold_info_of(fold)->takes, dtype, x, best);
    if (!opq_is_float(x))
        return takes;
    /* for NaN in either, and then not once the best is NaN */
    LLVMValueRef ordered = LLVMBuildFCmp(b, LLVMRealORD, best, best, "");
    return LLVMBuildAnd(b, takes, opq_fold_takes_equals(fold) ? LLVMBuildOr(b, ordered, is_nan(e, x), "") : ordered, "");
}

LLVMValueRef opq_fold_no_place(opq_emitter *e, opq_fold fold)
{
    return opq_splat_int(e, opq_vector_type(e, OPQ_i32), opq_fold_takes_equals(fold) ? 0 : -1);
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
    bool last = opq_fold_takes_equals(fold);
    if (last)
        better = LLVMBuildAnd(b, better, LLVMBuildNot(b, equal, ""), "");
    LLVMValueRef of_equals = LLVMBuildICmp(b, last ? LLVMIntUGT : LLVMIntULT, at, *index, "");
    LLVMValueRef replace = LLVMBuildOr(b, better, LLVMBuildAnd(b, equal, of_equals, ""), "");
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
