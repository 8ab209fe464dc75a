/* See module.h.
 *
 * Modules are final-form IR, so there is no IR pass pipeline, only the code generator.
 */
#define _GNU_SOURCE /* pthread_rwlockattr_setkind_np */
#include "codegen_llvm/module.h"
#include "codegen_llvm/codegen.h"
#include "codegen_llvm/emit.h"
#include "codegen_llvm/emit_object.h"
#include "graph/fp_control.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Target.h>

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- target machines */

/* A fork does not wait for ever while several threads compile. */
static void init_compiling(opq_compiler *compiler)
{
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&compiler->compiling, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

void opq_compiler_init(opq_compiler *compiler, const opq_cpu *cpu)
{
    *compiler = (opq_compiler){.cpu = cpu};
    init_compiling(compiler);
    pthread_mutex_init(&compiler->lock, NULL);
}

void opq_compiler_drop(opq_compiler *compiler)
{
    for (int i = 0; i < compiler->idle_count; i++)
        LLVMDisposeTargetMachine(compiler->idle[i]);
    pthread_rwlock_destroy(&compiler->compiling);
    pthread_mutex_destroy(&compiler->lock);
}

void opq_compiler_lock(opq_compiler *compiler)
{
    pthread_rwlock_wrlock(&compiler->compiling);
    pthread_mutex_lock(&compiler->lock);
}

void opq_compiler_unlock(opq_compiler *compiler, bool in_child)
{
    pthread_mutex_unlock(&compiler->lock);
    if (in_child)
        init_compiling(compiler); /* it knows of threads that waited */
    else
        pthread_rwlock_unlock(&compiler->compiling);
}

static void start_targets(void)
{
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86AsmParser();
}

void opq_llvm_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_targets);
}

static opq_status make_machine(const opq_cpu *cpu, LLVMTargetMachineRef *out_machine)
{
    const char *foreign = cpu->target->triple;
    opq_llvm_start();
    if (foreign)
        opq_llvm_start_others();
    char *triple = foreign ? LLVMCreateMessage(foreign) : LLVMGetDefaultTargetTriple(), *message = NULL;
    LLVMTargetRef target = NULL;
    opq_status status = OPQ_OK;
    if (LLVMGetTargetFromTriple(triple, &target, &message)) {
        status = opq_fail(OPQ_CODEGEN, "no LLVM target for %s: %s", triple, message);
        LLVMDisposeMessage(message);
    } else {
        *out_machine = LLVMCreateTargetMachine(target, triple, cpu->target->cpu, cpu->features, LLVMCodeGenLevelDefault,
                                               LLVMRelocPIC, LLVMCodeModelDefault);
        if (!*out_machine)
            status = opq_fail(OPQ_CODEGEN, "LLVM makes no target machine for %s", triple);
    }
    LLVMDisposeMessage(triple);
    return status;
}

static opq_status take_machine(opq_compiler *compiler, LLVMTargetMachineRef *out_machine)
{
    pthread_mutex_lock(&compiler->lock);
    *out_machine = compiler->idle_count > 0 ? compiler->idle[--compiler->idle_count] : NULL;
    pthread_mutex_unlock(&compiler->lock);
    return *out_machine ? OPQ_OK : make_machine(compiler->cpu, out_machine);
}

static void give_machine_back(opq_compiler *compiler, LLVMTargetMachineRef machine)
{
    pthread_mutex_lock(&compiler->lock);
    bool kept = compiler->idle_count < OPQ_MACHINES_IDLE;
    if (kept)
        compiler->idle[compiler->idle_count++] = machine;
    pthread_mutex_unlock(&compiler->lock);
    if (!kept)
        LLVMDisposeTargetMachine(machine);
}

opq_status opq_compiler_create(const opq_cpu *cpu, opq_compiler **out_compiler)
{
    *out_compiler = malloc(sizeof **out_compiler);
    if (*out_compiler == NULL)
        return opq_fail(OPQ_NO_MEMORY, "no memory for a compiler");
    opq_compiler_init(*out_compiler, cpu);
    return OPQ_OK;
}

void opq_compiler_destroy(opq_compiler *compiler)
{
    if (compiler)
        opq_compiler_drop(compiler);
    free(compiler);
}

/* ---- modules */

/* LLVM's own handler prints and exits; this one keeps the first message. */
typedef struct diagnostics {
    bool failed;
    char message[512];
} diagnostics;

static void on_diagnostic(LLVMDiagnosticInfoRef info, void *data)
{
    diagnostics *seen = data;
    if (LLVMGetDiagInfoSeverity(info) != LLVMDSError || seen->failed)
        return;
    char *text = LLVMGetDiagInfoDescription(info);
    seen->failed = true;
    snprintf(seen->message, sizeof seen->message, "%s", text);
    LLVMDisposeMessage(text);
}

static void add_attribute(LLVMContextRef context, LLVMValueRef function, const char *key, const char *value)
{
    LLVMAttributeRef attribute =
        LLVMCreateStringAttribute(context, key, (unsigned)strlen(key), value, (unsigned)strlen(value));
    LLVMAddAttributeAtIndex(function, (LLVMAttributeIndex)LLVMAttributeFunctionIndex, attribute);
}

/* Every function: which instructions it may use, whole registers, no unwind tables. */
static void add_attributes(const opq_cpu *cpu, LLVMContextRef context, LLVMModuleRef module)
{
    unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    char width[16];
    snprintf(width, sizeof width, "%d", 8 * cpu->target->vector_bytes);
    for (LLVMValueRef f = LLVMGetFirstFunction(module); f; f = LLVMGetNextFunction(f)) {
        if (LLVMIsDeclaration(f))
            continue;
        add_attribute(context, f, "target-cpu", cpu->target->cpu);
        add_attribute(context, f, "target-features", cpu->features);
        add_attribute(context, f, "prefer-vector-width", width);
        LLVMAddAttributeAtIndex(f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                                LLVMCreateEnumAttribute(context, nounwind, 0));
    }
}

typedef struct compilation {
    const opq_cpu *cpu;
    LLVMTargetMachineRef machine;
    diagnostics diagnostics;
    opq_emitter emitter;
} compilation;

static void begin(compilation *c)
{
    c->emitter = (opq_emitter){0};
    c->diagnostics.failed = false;
    c->emitter.context = LLVMContextCreate();
    c->emitter.module = LLVMModuleCreateWithNameInContext("opaque", c->emitter.context);
    c->emitter.builder = LLVMCreateBuilderInContext(c->emitter.context);
    c->emitter.lanes = opq_target_lanes(c->cpu->target);
    c->emitter.cpu = c->cpu;
    LLVMContextSetDiagnosticHandler(c->emitter.context, on_diagnostic, &c->diagnostics);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(c->machine);
    char *triple = LLVMGetTargetMachineTriple(c->machine);
    LLVMSetModuleDataLayout(c->emitter.module, layout);
    LLVMSetTarget(c->emitter.module, triple);
    LLVMDisposeMessage(triple);
    LLVMDisposeTargetData(layout);
}

static void end(compilation *c)
{
    LLVMDisposeBuilder(c->emitter.builder);
    LLVMDisposeModule(c->emitter.module);
    LLVMContextDispose(c->emitter.context);
}

/* Its function, or what it defines instead. */
static LLVMValueRef named(const compilation *c, const char *name)
{
    LLVMValueRef function = LLVMGetNamedFunction(c->emitter.module, name);
    return function ? function : LLVMGetNamedGlobal(c->emitter.module, name);
}

/* Builds the module and checks it. */
static opq_status fill(compilation *c, const opq_module *module)
{
    OPQ_TRY(module->build(&c->emitter, module->data));
    if (!named(c, module->name))
        return opq_fail(OPQ_INTERNAL, "the module defines no %s", module->name);
    add_attributes(c->cpu, c->emitter.context, c->emitter.module);
    char *message = NULL;
    opq_status status = OPQ_OK;
    if (LLVMVerifyModule(c->emitter.module, LLVMReturnStatusAction, &message))
        status = opq_fail(OPQ_CODEGEN, "%s: LLVM refuses the module: %s", module->name, message);
    LLVMDisposeMessage(message);
    return status;
}

static opq_status emit(compilation *c, const char *name, LLVMCodeGenFileType type, LLVMMemoryBufferRef *out_buffer)
{
    if (!opq_emit_object(c->machine, c->emitter.module, type, out_buffer))
        return opq_fail(OPQ_CODEGEN, "%s: LLVM's target machine makes no such file", name);
    if (c->diagnostics.failed) {
        LLVMDisposeMemoryBuffer(*out_buffer);
        return opq_fail(OPQ_CODEGEN, "%s: %s", name, c->diagnostics.message);
    }
    return OPQ_OK;
}

/* ---- what is made of them */

/* Calls `use` with the module. */
static opq_status with_module(opq_compiler *compiler, const opq_module *module,
                              opq_status (*use)(compilation *c, const opq_module *module, void *data), void *data)
{
    compilation c = {.cpu = compiler->cpu};
    pthread_rwlock_rdlock(&compiler->compiling);
    opq_status status = take_machine(compiler, &c.machine);
    if (status == OPQ_OK) {
        begin(&c);
        status = fill(&c, module);
        if (status == OPQ_OK)
            status = use(&c, module, data);
        end(&c);
        give_machine_back(compiler, c.machine);
    }
    pthread_rwlock_unlock(&compiler->compiling);
    return status;
}

typedef struct wanted {
    const char *symbol, *stage;
    LLVMMemoryBufferRef object;
    char *text;
} wanted;

static opq_status make_object(compilation *c, const opq_module *module, void *data)
{
    wanted *w = data;
    LLVMSetValueName2(named(c, module->name), w->symbol, strlen(w->symbol));
    return emit(c, module->name, LLVMObjectFile, &w->object);
}

opq_status opq_compiler_object(opq_compiler *compiler, const opq_module *module, const char *symbol,
                               LLVMMemoryBufferRef *out_object)
{
    wanted w = {.symbol = symbol};
    OPQ_TRY(with_module(compiler, module, make_object, &w));
    *out_object = w.object;
    return OPQ_OK;
}

opq_status opq_object_check(LLVMMemoryBufferRef buffer, const char *name)
{
    const char *object = LLVMGetBufferStart(buffer);
    Elf64_Ehdr header;
    if (LLVMGetBufferSize(buffer) < sizeof header)
        return opq_fail(OPQ_CODEGEN, "%s: the object is cut short", name);
    memcpy(&header, object, sizeof header);
    for (unsigned s = 0; s < header.e_shnum; s++) {
        Elf64_Shdr section, strings;
        memcpy(&section, object + header.e_shoff + s * sizeof section, sizeof section);
        if (section.sh_type != SHT_SYMTAB)
            continue;
        memcpy(&strings, object + header.e_shoff + section.sh_link * sizeof strings, sizeof strings);
        for (size_t i = 1; i < section.sh_size / sizeof(Elf64_Sym); i++) { /* symbol 0 is reserved and undefined */
            Elf64_Sym symbol;
            memcpy(&symbol, object + section.sh_offset + i * sizeof symbol, sizeof symbol);
            if (symbol.st_shndx == SHN_UNDEF)
                return opq_fail(OPQ_CODEGEN, "%s: generated code calls %s", name,
                                object + strings.sh_offset + symbol.st_name);
        }
    }
    return OPQ_OK;
}

opq_status opq_compiler_write(opq_compiler *compiler, const opq_module *module, const char *symbol, const char *path)
{
    LLVMMemoryBufferRef object;
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT); /* constants are folded once, for every run */
    opq_status status = opq_compiler_object(compiler, module, symbol, &object);
    opq_fp_control_set(control);
    OPQ_TRY(status);
    status = opq_object_check(object, module->name);
    FILE *file = status == OPQ_OK ? fopen(path, "wb") : NULL;
    size_t size = LLVMGetBufferSize(object);
    bool written = file && fwrite(LLVMGetBufferStart(object), 1, size, file) == size;
    if (file)
        written = fclose(file) == 0 && written;
    LLVMDisposeMemoryBuffer(object);
    OPQ_TRY(status);
    return written ? OPQ_OK : opq_fail(OPQ_INVALID, "%s cannot be written", path);
}

static opq_status make_text(compilation *c, const opq_module *module, void *data)
{
    wanted *w = data;
    if (strcmp(w->stage, "llvm") == 0) {
        char *printed = LLVMPrintModuleToString(c->emitter.module);
        w->text = strdup(printed);
        LLVMDisposeMessage(printed);
    } else {
        OPQ_TRY(emit(c, module->name, LLVMAssemblyFile, &w->object));
        w->text = strndup(LLVMGetBufferStart(w->object), LLVMGetBufferSize(w->object));
        LLVMDisposeMemoryBuffer(w->object);
    }
    return w->text ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "no memory for the text of %s", module->name);
}

opq_status opq_compiler_text(opq_compiler *compiler, const opq_module *module, const char *stage, char **out_text)
{
    wanted w = {.stage = stage};
    if (strcmp(stage, "llvm") != 0 && strcmp(stage, "asm") != 0)
        return opq_fail(OPQ_INVALID, "no stage \"%s\"; known are llvm and asm", stage);
    OPQ_TRY(with_module(compiler, module, make_text, &w));
    *out_text = w.text;
    return OPQ_OK;
}
