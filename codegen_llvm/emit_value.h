/* Vector values: types, constants, splats, shuffles, intrinsics. Private to this folder. */
#ifndef OPAQUE_CODEGEN_EMIT_VALUE_H
#define OPAQUE_CODEGEN_EMIT_VALUE_H

#include "codegen_llvm/emit.h"

/* One element as computed in: i1 for bool, f32 for f16 and bf16, an integer of that width for raw. */
LLVMTypeRef opq_lane_type(const opq_emitter *e, opq_dtype dtype);
/* One element in memory: i8 for bool, i16 for f16 and bf16. */
LLVMTypeRef opq_memory_type(const opq_emitter *e, opq_dtype dtype);
LLVMTypeRef opq_vector_type(const opq_emitter *e, opq_dtype dtype);
LLVMTypeRef opq_vector_of(const opq_emitter *e, LLVMTypeRef lane);

LLVMValueRef opq_int(const opq_emitter *e, int bits, int64_t value); /* scalars */
LLVMValueRef opq_i64(const opq_emitter *e, int64_t value);
LLVMValueRef opq_splat(opq_emitter *e, LLVMValueRef scalar);
LLVMValueRef opq_splat_int(opq_emitter *e, LLVMTypeRef vector, int64_t value); /* constants */
LLVMValueRef opq_splat_float(opq_emitter *e, LLVMTypeRef vector, double value);
LLVMValueRef opq_splat_number(opq_emitter *e, opq_dtype dtype, opq_number value);
LLVMValueRef opq_lane_numbers(opq_emitter *e, int bits); /* 0, 1, 2, ... */
LLVMValueRef opq_lane(opq_emitter *e, LLVMValueRef vector, int lane);
LLVMValueRef opq_select(opq_emitter *e, LLVMValueRef condition, LLVMValueRef yes, LLVMValueRef no);
LLVMValueRef opq_intrinsic(opq_emitter *e, const char *name, LLVMTypeRef *types, int type_count, LLVMValueRef *args,
                           int arg_count);
LLVMValueRef opq_fma(opq_emitter *e, LLVMValueRef a, LLVMValueRef b,
                     LLVMValueRef c); /* a * b + c with one rounding; integers wrap */

/* Is the value's lane type a float (double)? */
bool opq_is_float(LLVMValueRef vector);
bool opq_is_bool(LLVMValueRef vector);
int opq_lane_bits(LLVMValueRef vector);

#endif
