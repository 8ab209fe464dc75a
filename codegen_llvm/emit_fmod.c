/* fmod of f64, lane by lane on the x87 unit.
 *
 * fprem subtracts an exact multiple of the divisor and says (C2) whether it is done; an f64 is exact in 80 bits, and so
 * is the remainder. Special values come out as C has them. The vector form used for f32 needs twice the precision of
 * its operands, which f64 lacks.
 */
#include "codegen_llvm/emit_ops.h"

#include <string.h>

static LLVMValueRef remainder_80(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    static const char code[] = "1:\n\tfprem\n\tfnstsw %ax\n\ttestb $$4, %ah\n\tjnz 1b";
    static const char constraints[] = "={st},{st},{st(1)},~{ax},~{flags},~{fpsr}";
    LLVMTypeRef type = LLVMX86FP80TypeInContext(e->context), types[2] = {type, type};
    LLVMTypeRef function = LLVMFunctionType(type, types, 2, false);
    LLVMValueRef assembly = LLVMGetInlineAsm(function, code, strlen(code), constraints, strlen(constraints), false,
                                             false, LLVMInlineAsmDialectATT, false);
    LLVMValueRef operands[2] = {LLVMBuildFPExt(e->builder, a, type, ""), LLVMBuildFPExt(e->builder, b, type, "")};
    LLVMValueRef result = LLVMBuildCall2(e->builder, function, assembly, operands, 2, "");
    return LLVMBuildFPTrunc(e->builder, result, LLVMTypeOf(a), "");
}

LLVMValueRef opq_emit_fmod64(opq_emitter *e, LLVMValueRef a, LLVMValueRef b)
{
    LLVMBuilderRef builder = e->builder;
    LLVMTypeRef i32 = LLVMInt32TypeInContext(e->context);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(builder);
    LLVMBasicBlockRef loop = LLVMAppendBasicBlockInContext(e->context, e->function, "lane");
    LLVMBasicBlockRef done = LLVMAppendBasicBlockInContext(e->context, e->function, "lanes");
    LLVMBuildBr(builder, loop);
    LLVMPositionBuilderAtEnd(builder, loop);
    LLVMValueRef lane = LLVMBuildPhi(builder, i32, ""), result = LLVMBuildPhi(builder, LLVMTypeOf(a), "");
    LLVMValueRef one =
        remainder_80(e, LLVMBuildExtractElement(builder, a, lane, ""), LLVMBuildExtractElement(builder, b, lane, ""));
    LLVMValueRef filled = LLVMBuildInsertElement(builder, result, one, lane, "");
    LLVMValueRef next = LLVMBuildAdd(builder, lane, LLVMConstInt(i32, 1, false), "");
    LLVMAddIncoming(lane, (LLVMValueRef[]){LLVMConstInt(i32, 0, false), next}, (LLVMBasicBlockRef[]){before, loop}, 2);
    LLVMAddIncoming(result, (LLVMValueRef[]){LLVMConstNull(LLVMTypeOf(a)), filled}, (LLVMBasicBlockRef[]){before, loop},
                    2);
    LLVMValueRef more = LLVMBuildICmp(builder, LLVMIntULT, next, LLVMConstInt(i32, (unsigned)e->lanes, false), "");
    LLVMBuildCondBr(builder, more, loop, done);
    LLVMPositionBuilderAtEnd(builder, done);
    return filled;
}
