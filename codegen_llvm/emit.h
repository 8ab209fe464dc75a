/* What every emitter needs: where instructions go, how wide vectors are, what the host may execute.
 *
 * A vector value has `lanes` elements of one computing dtype: <16 x float>, <16 x i64>, <16 x i1> for bool. LLVM splits what is
 * wider than a register. f16 and bf16 are computed as f32.
 */
#ifndef OPAQUE_CODEGEN_EMIT_H
#define OPAQUE_CODEGEN_EMIT_H

#include "codegen_llvm/cpu.h"
#include "graph/graph.h"
#include "opaque/scalar_math.h"
#include <llvm-c/Core.h>

enum { OPQ_MIN_LANES = 4 };

typedef struct opq_emitter {
    LLVMContextRef context;
    LLVMModuleRef module;
    LLVMBuilderRef builder;
    LLVMValueRef function;
    int lanes; /* the target's; at least OPQ_MIN_LANES */
    const opq_cpu *cpu;
    bool shares_math; /* math functions are called: see emit_shared.c */
} opq_emitter;

/* ---- our own vector functions (math.cpp), f32 in and out, or f64 where the name says so; results are those of opaque/scalar_math.h on
 * every host that has FMA */
#define X(name) LLVMValueRef opq_math_##name(opq_emitter *e, LLVMValueRef x);
OPQ_MATH1(X)
#undef X
#define X(name) LLVMValueRef opq_math_##name##_f64(opq_emitter *e, LLVMValueRef x);
OPQ_MATH1_F64(X)
#undef X
LLVMValueRef opq_math_pow_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef opq_math_pow(opq_emitter *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef opq_math_atan2(opq_emitter *e, LLVMValueRef y, LLVMValueRef x);
LLVMValueRef opq_math_logaddexp_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef opq_math_fmod(opq_emitter *e, LLVMValueRef x, LLVMValueRef y);
LLVMValueRef opq_math_fmod_f64(opq_emitter *e, LLVMValueRef x, LLVMValueRef y);

#endif
