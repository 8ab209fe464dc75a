/* Math functions as functions of the module, which a kernel with many of them calls.
 *
 * Inlined, a function is 20 to 200 instructions for each of its uses, and a body is there twice: for whole vectors and for the masked end.
 * The code generator's time grows with that, faster than linearly in long blocks. A call costs some cycles, and what lives across it is
 * spilled: kernels that are short enough to be made in some milliseconds have none.
 *
 * Such a function takes and returns vectors, which fastcc leaves in registers. It is private: there is no symbol, and the call needs no
 * relocation. What it computes is what is inlined elsewhere, to the bit.
 */
#include "codegen_llvm/emit_ops.h"
#include "fusion/loop.h"

#include <stdio.h>
#include <string.h>

enum { FASTCC = 8 /* llvm::CallingConv::Fast */, OPERANDS_MAX = 3, SYMBOL_MAX = 64 };

static LLVMValueRef find_function(const opq_emitter *e, const char *name, opq_dtype dtype, char symbol[static SYMBOL_MAX])
{
    snprintf(symbol, SYMBOL_MAX, "%s.%s.%d", name, opq_dtype_name(dtype), e->lanes);
    return LLVMGetNamedFunction(e->module, symbol);
}

static LLVMTypeRef type_of(const opq_emitter *e, opq_dtype dtype, int arity)
{
    LLVMTypeRef vector = opq_vector_type(e, dtype), types[OPERANDS_MAX] = {vector, vector, vector};
    return LLVMFunctionType(vector, types, (unsigned)arity, false);
}

/* NULL: there is no code for this dtype. Keeps the builder's place. */
static LLVMValueRef make_function(opq_emitter *e, const char *symbol, const char *name, opq_dtype dtype, int arity)
{
    LLVMValueRef function = LLVMAddFunction(e->module, symbol, type_of(e, dtype, arity)), around = e->function;
    LLVMValueRef operands[OPERANDS_MAX];
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->builder);
    LLVMSetLinkage(function, LLVMPrivateLinkage);
    LLVMSetFunctionCallConv(function, FASTCC);
    for (int i = 0; i < arity; i++)
        operands[i] = LLVMGetParam(function, (unsigned)i);
    e->function = function;
    LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(e->context, function, "entry"));
    LLVMValueRef value = opq_emit_call(e, name, dtype, operands);
    if (value)
        LLVMBuildRet(e->builder, value);
    else
        LLVMDeleteFunction(function);
    e->function = around;
    LLVMClearInsertionPosition(e->builder); /* what is deleted is not pointed at */
    if (here)
        LLVMPositionBuilderAtEnd(e->builder, here);
    return value ? function : NULL;
}

LLVMValueRef opq_emit_shared(opq_emitter *e, const char *name, opq_dtype dtype, const LLVMValueRef *operands, int arity)
{
    char symbol[SYMBOL_MAX];
    LLVMValueRef function = find_function(e, name, dtype, symbol);
    if (function == NULL)
        function = make_function(e, symbol, name, dtype, arity);
    if (function == NULL)
        return NULL;
    LLVMValueRef call =
        LLVMBuildCall2(e->builder, type_of(e, dtype, arity), function, (LLVMValueRef *)operands, (unsigned)arity, "");
    LLVMSetInstructionCallConv(call, FASTCC);
    return call;
}

/* ---- whether to */

static bool is_wide(LLVMValueRef instruction)
{
    LLVMTypeRef type = LLVMTypeOf(instruction);
    return LLVMGetTypeKind(type) == LLVMVectorTypeKind && opq_lane_bits(instruction) == 64;
}

/* What takes two registers counts twice. What is one block counts half: instructions of several such uses, and of vectors beside each other,
 * are scheduled among each other where they are inlined, which is worth some milliseconds. */
static int weight_of_function(LLVMValueRef function)
{
    int weight = 0;
    for (LLVMBasicBlockRef b = LLVMGetFirstBasicBlock(function); b; b = LLVMGetNextBasicBlock(b))
        for (LLVMValueRef i = LLVMGetFirstInstruction(b); i; i = LLVMGetNextInstruction(i))
            weight += is_wide(i) ? 2 : 1;
    return LLVMCountBasicBlocks(function) == 1 ? weight / 2 : weight;
}

static bool is_math(const opq_stmt *stmt) { return stmt->op < OPQ_OP_COUNT && opq_op_is_math((opq_op)stmt->op); }

/* Of one use. Makes the function, by which it is measured. */
static int weight_of(opq_emitter *e, const opq_stmt *stmt)
{
    char symbol[SYMBOL_MAX];
    const char *name = opq_op_lowering((opq_op)stmt->op)->text;
    LLVMValueRef function = find_function(e, name, (opq_dtype)stmt->dtype, symbol);
    if (function == NULL)
        function = make_function(e, symbol, name, (opq_dtype)stmt->dtype, opq_op_info_of((opq_op)stmt->op)->arity);
    return function ? weight_of_function(function) : 0;
}

static void delete_functions(opq_emitter *e)
{
    for (LLVMValueRef f = LLVMGetFirstFunction(e->module), next; f; f = next) {
        next = LLVMGetNextFunction(f);
        if (!LLVMIsDeclaration(f))
            LLVMDeleteFunction(f);
    }
}

void opq_emit_share_math(opq_emitter *e, const opq_loops *k)
{
    int weight = 0, most = e->cpu->target->shared_math_weight;
    for (int i = 0; i < k->stmt_count && weight <= most; i++)
        weight += is_math(&k->stmts[i]) ? weight_of(e, &k->stmts[i]) : 0;
    e->shares_math = weight > most;
    if (!e->shares_math)
        delete_functions(e);
}
