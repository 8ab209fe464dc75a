#include "math_jit.h"
#include "codegen_llvm/emit_ops.h"
#include <elf.h>
#include <llvm-c/Analysis.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <stdio.h>
#include <string.h>

typedef LLVMValueRef unary_emitter(opq_emitter *, LLVMValueRef);
typedef LLVMValueRef binary_emitter(opq_emitter *, LLVMValueRef, LLVMValueRef);

#define X(name) #name,
const char *const math_names[MATH_COUNT] = {OPQ_MATH1(X) "pow", "atan2", "fmod"};
#undef X
#define X(name) #name,
const char *const math_f64_names[MATH_F64_COUNT] = {OPQ_MATH1_F64(X) "pow"};
#undef X
#define X(name) opq_math_##name##_f64,
static unary_emitter *const unary_f64[] = {OPQ_MATH1_F64(X)};
#undef X
_Static_assert(sizeof(unary_f64) / sizeof(unary_f64[0]) == MATH_F64_UNARY, "MATH_F64_UNARY");
#define X(name) opq_math_##name,
static unary_emitter *const unary[] = {OPQ_MATH1(X)};
#undef X
static binary_emitter *const binary[] = {opq_math_pow, opq_math_atan2, opq_math_fmod};
_Static_assert(sizeof(unary) / sizeof(unary[0]) == MATH_UNARY, "MATH_UNARY");

bool math_host_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static void function_begin(opq_emitter *e, const char *name, LLVMTypeRef type)
{
    e->function = LLVMAddFunction(e->module, name, type);
    LLVMAttributeRef width = LLVMCreateStringAttribute(e->context, "prefer-vector-width", 19,
                                                       e->cpu->target == &opq_target_avx512 ? "512" : "256", 3);
    LLVMAddAttributeAtIndex(e->function, LLVMAttributeFunctionIndex, width);
    LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(e->context, e->function, "entry"));
}

static LLVMValueRef element(opq_emitter *e, LLVMTypeRef type, unsigned parameter, LLVMValueRef index)
{
    return LLVMBuildGEP2(e->builder, type, LLVMGetParam(e->function, parameter), &index, 1, "");
}

static LLVMValueRef load(opq_emitter *e, LLVMTypeRef scalar, unsigned parameter, LLVMValueRef index)
{
    LLVMTypeRef vector = LLVMVectorType(scalar, (unsigned)e->lanes);
    LLVMValueRef value = LLVMBuildLoad2(e->builder, vector, element(e, scalar, parameter, index), "");
    LLVMSetAlignment(value, 4);
    return value;
}

static void store(opq_emitter *e, LLVMTypeRef scalar, LLVMValueRef value, unsigned parameter, LLVMValueRef index)
{
    LLVMSetAlignment(LLVMBuildStore(e->builder, value, element(e, scalar, parameter, index)), 4);
}

static LLVMValueRef apply(opq_emitter *e, int which, bool wide, LLVMTypeRef scalar, LLVMValueRef i)
{
    LLVMValueRef x = load(e, scalar, 0, i);
    if (wide)
        return which < MATH_F64_UNARY ? unary_f64[which](e, x) : opq_math_pow_f64(e, x, load(e, scalar, 1, i));
    return which < MATH_UNARY ? unary[which](e, x) : binary[which - MATH_UNARY](e, x, load(e, scalar, 1, i));
}

static void emit_math(opq_emitter *e, int which, bool wide)
{
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), i64 = LLVMInt64TypeInContext(e->context);
    LLVMTypeRef scalar = wide ? LLVMDoubleTypeInContext(e->context) : LLVMFloatTypeInContext(e->context);
    LLVMTypeRef nothing = LLVMVoidTypeInContext(e->context);
    LLVMTypeRef parameters[] = {pointer, pointer, pointer, i64};
    char name[32];
    snprintf(name, sizeof name, wide ? "test_%s_f64" : "test_%s", wide ? math_f64_names[which] : math_names[which]);
    function_begin(e, name, LLVMFunctionType(nothing, parameters, 4, false));
    LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->builder);
    LLVMBasicBlockRef loop = LLVMAppendBasicBlockInContext(e->context, e->function, "loop");
    LLVMBasicBlockRef done = LLVMAppendBasicBlockInContext(e->context, e->function, "done");
    LLVMBuildBr(e->builder, loop);

    LLVMPositionBuilderAtEnd(e->builder, loop);
    LLVMValueRef i = LLVMBuildPhi(e->builder, i64, "");
    store(e, scalar, apply(e, which, wide, scalar, i), 2, i);
    LLVMValueRef next = LLVMBuildAdd(e->builder, i, LLVMConstInt(i64, (unsigned)e->lanes, false), "");
    LLVMValueRef more = LLVMBuildICmp(e->builder, LLVMIntSLT, next, LLVMGetParam(e->function, 3), "");
    LLVMValueRef starts[] = {LLVMConstInt(i64, 0, false), next};
    LLVMBasicBlockRef blocks[] = {entry, LLVMGetInsertBlock(e->builder)};
    LLVMAddIncoming(i, starts, blocks, 2);
    LLVMBuildCondBr(e->builder, more, loop, done);
    LLVMPositionBuilderAtEnd(e->builder, done);
    LLVMBuildRetVoid(e->builder);
}

static void emit_uniform(opq_emitter *e)
{
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), i64 = LLVMInt64TypeInContext(e->context);
    LLVMTypeRef f32 = LLVMFloatTypeInContext(e->context), nothing = LLVMVoidTypeInContext(e->context);
    function_begin(e, "test_uniform", LLVMFunctionType(nothing, (LLVMTypeRef[]){pointer, pointer}, 2, false));
    LLVMValueRef operands[3];
    for (int i = 0; i < 3; i++)
        operands[i] = load(e, i64, 0, LLVMConstInt(i64, (unsigned)(i * e->lanes), false));
    store(e, f32, opq_emit_random(e, OPQ_OP_uniform, operands), 1, LLVMConstInt(i64, 0, false));
    LLVMBuildRetVoid(e->builder);
}

/* Every undefined symbol of the object but the null one. */
static int count_undefined(LLVMMemoryBufferRef object)
{
    const char *data = LLVMGetBufferStart(object);
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)data;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(data + header->e_shoff);
    int undefined = 0;
    for (int s = 0; s < header->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(data + sections[s].sh_offset);
        const char *names = data + sections[sections[s].sh_link].sh_offset;
        for (size_t i = 1; i < sections[s].sh_size / sizeof(Elf64_Sym); i++) {
            if (symbols[i].st_shndx != SHN_UNDEF)
                continue;
            fprintf(stderr, "undefined symbol: %s\n", names + symbols[i].st_name);
            undefined++;
        }
    }
    return undefined;
}

static bool failed(LLVMErrorRef error)
{
    if (!error)
        return false;
    char *message = LLVMGetErrorMessage(error);
    fprintf(stderr, "LLVM: %s\n", message);
    LLVMDisposeErrorMessage(message);
    return true;
}

static LLVMMemoryBufferRef compile(LLVMModuleRef module, const opq_cpu *cpu)
{
    char *message = NULL, *triple = LLVMGetDefaultTargetTriple();
    LLVMTargetRef target;
    LLVMMemoryBufferRef object = NULL;
    if (LLVMVerifyModule(module, LLVMPrintMessageAction, NULL) || LLVMGetTargetFromTriple(triple, &target, &message)) {
        LLVMDisposeMessage(triple);
        return NULL;
    }
    LLVMTargetMachineRef machine = LLVMCreateTargetMachine(target, triple, cpu->target->cpu, cpu->features,
                                                           LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelSmall);
    LLVMSetTarget(module, triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
    LLVMSetModuleDataLayout(module, layout);
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, module, LLVMObjectFile, &message, &object)) {
        fprintf(stderr, "LLVM: %s\n", message);
        object = NULL;
    }
    LLVMDisposeTargetData(layout);
    LLVMDisposeTargetMachine(machine);
    LLVMDisposeMessage(triple);
    return object;
}

static bool load_object(math_jit *jit, LLVMMemoryBufferRef object)
{
    LLVMOrcLLJITRef orc;
    if (failed(LLVMOrcCreateLLJIT(&orc, NULL)))
        return false;
    jit->jit = orc;
    if (failed(LLVMOrcLLJITAddObjectFile(orc, LLVMOrcLLJITGetMainJITDylib(orc), object)))
        return false;
    LLVMOrcExecutorAddress address;
    for (int i = 0; i < MATH_COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "test_%s", math_names[i]);
        if (failed(LLVMOrcLLJITLookup(orc, &address, name)))
            return false;
        jit->function[i] = (math_function *)(uintptr_t)address;
    }
    for (int i = 0; i < MATH_F64_COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "test_%s_f64", math_f64_names[i]);
        if (failed(LLVMOrcLLJITLookup(orc, &address, name)))
            return false;
        jit->function_f64[i] = (math_function_f64 *)(uintptr_t)address;
    }
    if (failed(LLVMOrcLLJITLookup(orc, &address, "test_uniform")))
        return false;
    jit->uniform = (uniform_function *)(uintptr_t)address;
    return true;
}

bool math_jit_create(math_jit *jit, const char *label, bool avx512, int lanes)
{
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    const opq_target *target = avx512 ? &opq_target_avx512 : &opq_target_avx2;
    opq_cpu cpu = {.target = target, .leaves = target->leaves};
    *jit = (math_jit){.label = label, .lanes = lanes};
    opq_emitter e = {.context = LLVMContextCreate(), .lanes = lanes, .cpu = &cpu};
    e.module = LLVMModuleCreateWithNameInContext(label, e.context);
    e.builder = LLVMCreateBuilderInContext(e.context);
    for (int i = 0; i < MATH_COUNT; i++)
        emit_math(&e, i, false);
    for (int i = 0; i < MATH_F64_COUNT; i++)
        emit_math(&e, i, true);
    emit_uniform(&e);
    LLVMMemoryBufferRef object = compile(e.module, &cpu);
    LLVMDisposeBuilder(e.builder);
    LLVMDisposeModule(e.module);
    LLVMContextDispose(e.context);
    if (!object)
        return false;
    jit->undefined_symbols = count_undefined(object);
    return load_object(jit, object);
}

void math_jit_destroy(math_jit *jit)
{
    if (jit->jit)
        failed(LLVMOrcDisposeLLJIT(jit->jit));
    jit->jit = NULL;
}
