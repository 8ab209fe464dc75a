/* Elementwise ops, casts and folds as vector instructions. Private to this folder. */
#ifndef OPAQUE_CODEGEN_EMIT_OPS_H
#define OPAQUE_CODEGEN_EMIT_OPS_H

#include "codegen_llvm/emit_value.h"

/* One elementwise row (ARITH, CMP or CALL); `dtype` is the computing dtype of the operands (where: of the last two).
 * OPQ_UNSUPPORTED if the row is not lowered for it. */
opq_status opq_emit_ewise(opq_emitter *e, opq_op op, opq_dtype dtype, const LLVMValueRef *operands,
                          LLVMValueRef *out_value) OPQ_MUST_CHECK;
/* A CMP row's comparison, of floats one that holds for NaN in either, too. */
LLVMValueRef opq_emit_compare(opq_emitter *e, opq_op op, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b);
/* A CALL row's function on any dtype by its name in the op table; NULL if there is none or not for this dtype. */
LLVMValueRef opq_emit_call(opq_emitter *e, const char *name, opq_dtype dtype, const LLVMValueRef *operands);
/* The same, as a call of a function that the module has once. */
LLVMValueRef opq_emit_shared(opq_emitter *e, const char *name, opq_dtype dtype, const LLVMValueRef *operands, int arity);
/* Decides, before anything is emitted, whether the kernel's math functions are such calls (emit_shared.c). */
struct opq_loops;
void opq_emit_share_math(opq_emitter *e, const struct opq_loops *k);

/* Between computing dtypes. */
LLVMValueRef opq_emit_cast(opq_emitter *e, opq_dtype from, opq_dtype to, LLVMValueRef x);
/* f32 rounded to f16 or bf16 and back. */
LLVMValueRef opq_emit_round(opq_emitter *e, opq_dtype narrow, LLVMValueRef x);
/* Between the computing dtype of `dtype` and its form in memory. */
LLVMValueRef opq_emit_widen(opq_emitter *e, opq_dtype dtype, LLVMValueRef memory);
LLVMValueRef opq_emit_narrow(opq_emitter *e, opq_dtype dtype, LLVMValueRef x);

/* (seed, offset) random numbers of these linear indices; op is uniform or normal, operands are (index, seed, offset),
 * i64. */
LLVMValueRef opq_emit_random(opq_emitter *e, opq_op op, const LLVMValueRef *operands);

/* ---- reductions. `dtype`: in which partial results are held */
LLVMValueRef opq_fold_identity(opq_emitter *e, opq_fold fold, opq_dtype dtype);
LLVMValueRef opq_fold_combine(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef a, LLVMValueRef b);
/* OPQ_LANES lanes in `count` vectors to a splat of the result, in halves. Overwrites `vectors`. */
LLVMValueRef opq_fold_lanes(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef *vectors, int count);

/* Of a fold whose result is a place: is x, which comes later, to replace the best so far? */
LLVMValueRef opq_fold_better(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef best, LLVMValueRef x);
/* i32: of lanes before their first element. */
LLVMValueRef opq_fold_no_place(opq_emitter *e, opq_fold fold);
/* Lanes in any order: the best value, of equals the one with the smallest index (unsigned), or the largest where equals are taken. Overwrites both
 * arrays with splats. */
void opq_fold_arg_lanes(opq_emitter *e, opq_fold fold, opq_dtype dtype, LLVMValueRef *vectors, LLVMValueRef *indices,
                        int count);

#endif
