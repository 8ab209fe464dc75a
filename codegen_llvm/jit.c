/* The JIT: builds a module, compiles it to an object in memory, checks the object, hands it to ORC.
 *
 * Modules are final-form IR, so there is no IR pass pipeline, only the code generator. The object is made here and not
 * inside ORC because it must be looked at before it is linked: an undefined symbol means that LLVM turned an
 * instruction into a call (fmodf, memset, a half conversion), which is a bug in an emitter, never something to resolve
 * against the process.
 */
#define _GNU_SOURCE /* memmem */
#include "codegen_llvm/jit.h"
#include "codegen_llvm/cache.h"
#include "codegen_llvm/debug.h"
#include "codegen_llvm/emit.h"
#include "codegen_llvm/emit_object.h"
#include "codegen_llvm/store.h"
#include "graph/fp_control.h"
#include "opaque/log.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct opq_jit {
    opq_cpu cpu;
    const opq_host *host; /* or NULL */
    opq_code_cache cache;
    pthread_mutex_t lock; /* everything below */
    LLVMTargetMachineRef machine;
    LLVMOrcLLJITRef orc;
    opq_store *store; /* NULL: none */
    char processor[OPQ_STORE_PROCESSOR_MAX];
    uint64_t next_name, loads;
    int removed; /* modules, since their names were cleared */
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

opq_status opq_jit_create(opq_jit **out_jit)
{
    opq_jit *jit = calloc(1, sizeof *jit);
    if (!jit)
        return opq_fail(OPQ_NO_MEMORY, "no memory for the JIT");
    opq_status status = opq_cpu_detect(&jit->cpu);
    if (status != OPQ_OK) {
        free(jit);
        return status;
    }
    pthread_mutex_init(&jit->lock, NULL);
    opq_code_cache_init(&jit->cache);
    snprintf(jit->processor, sizeof jit->processor, "%s %s", jit->cpu.name, jit->cpu.features);
    jit->store = opq_store_open();
    *out_jit = jit;
    return OPQ_OK;
}

void opq_jit_destroy(opq_jit *jit)
{
    if (!jit)
        return;
    opq_code_cache_drop(jit, &jit->cache);
    if (jit->orc)
        LLVMConsumeError(LLVMOrcDisposeLLJIT(jit->orc));
    if (jit->machine)
        LLVMDisposeTargetMachine(jit->machine);
    opq_store_close(jit->store);
    pthread_mutex_destroy(&jit->lock);
    free(jit);
}

void opq_jit_set_host(opq_jit *jit, const opq_host *host) { jit->host = host; }

void opq_jit_lock(opq_jit *jit)
{
    pthread_mutex_lock(&jit->lock);
    pthread_mutex_lock(&jit->cache.lock);
}

void opq_jit_unlock(opq_jit *jit)
{
    pthread_mutex_unlock(&jit->cache.lock);
    pthread_mutex_unlock(&jit->lock);
}

const struct opq_cpu *opq_jit_cpu(const opq_jit *jit) { return &jit->cpu; }

opq_code_cache *opq_jit_cache(opq_jit *jit) { return &jit->cache; }

/* NULL is success, as LLVM has it. */
static opq_status from_error(const char *doing, LLVMErrorRef error)
{
    if (!error)
        return OPQ_OK;
    char *message = LLVMGetErrorMessage(error);
    opq_status status = opq_fail(OPQ_CODEGEN, "%s: %s", doing, message);
    LLVMDisposeErrorMessage(message);
    return status;
}

/* Once per process, because LLVM's targets are global to it. */
static void start_llvm(void)
{
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeX86AsmParser();
}

static opq_status start_machine(opq_jit *jit)
{
    if (jit->machine)
        return OPQ_OK;
    char *triple = LLVMGetDefaultTargetTriple(), *message = NULL;
    LLVMTargetRef target = NULL;
    opq_status status = OPQ_OK;
    if (LLVMGetTargetFromTriple(triple, &target, &message)) {
        status = opq_fail(OPQ_CODEGEN, "no LLVM target for %s: %s", triple, message);
        LLVMDisposeMessage(message);
    } else {
        jit->machine = LLVMCreateTargetMachine(target, triple, jit->cpu.name, jit->cpu.features,
                                               LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelDefault);
        if (!jit->machine)
            status = opq_fail(OPQ_CODEGEN, "LLVM makes no target machine for %s", triple);
    }
    LLVMDisposeMessage(triple);
    return status;
}

/* The first function pays for it; a machine is there only once something is compiled. */
static opq_status start(opq_jit *jit)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_llvm);
    return jit->orc ? OPQ_OK : from_error("starting ORC", LLVMOrcCreateLLJIT(&jit->orc, NULL));
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

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
static void add_attributes(const opq_jit *jit, LLVMContextRef context, LLVMModuleRef module)
{
    unsigned nounwind = LLVMGetEnumAttributeKindForName("nounwind", 8);
    for (LLVMValueRef f = LLVMGetFirstFunction(module); f; f = LLVMGetNextFunction(f)) {
        if (LLVMIsDeclaration(f))
            continue;
        add_attribute(context, f, "target-cpu", jit->cpu.name);
        add_attribute(context, f, "target-features", jit->cpu.features);
        add_attribute(context, f, "prefer-vector-width", jit->cpu.avx512 ? "512" : "256");
        LLVMAddAttributeAtIndex(f, (LLVMAttributeIndex)LLVMAttributeFunctionIndex,
                                LLVMCreateEnumAttribute(context, nounwind, 0));
    }
}

typedef struct compilation {
    opq_jit *jit;
    diagnostics diagnostics;
    opq_emitter emitter;
    char symbol[96];
} compilation;

static void begin(compilation *c, opq_jit *jit)
{
    c->jit = jit;
    c->emitter = (opq_emitter){0};
    c->diagnostics.failed = false;
    c->emitter.context = LLVMContextCreate();
    c->emitter.module = LLVMModuleCreateWithNameInContext("opaque", c->emitter.context);
    c->emitter.builder = LLVMCreateBuilderInContext(c->emitter.context);
    c->emitter.lanes = jit->cpu.avx512 ? 16 : 8;
    c->emitter.cpu = &jit->cpu;
    LLVMContextSetDiagnosticHandler(c->emitter.context, on_diagnostic, &c->diagnostics);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(jit->machine);
    char *triple = LLVMGetTargetMachineTriple(jit->machine);
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

/* Builds the module and checks it. */
static opq_status fill(compilation *c, const char *name, opq_status (*build)(opq_emitter *e, void *data), void *data)
{
    OPQ_TRY(build(&c->emitter, data));
    if (!LLVMGetNamedFunction(c->emitter.module, name))
        return opq_fail(OPQ_INTERNAL, "the module has no function %s", name);
    add_attributes(c->jit, c->emitter.context, c->emitter.module);
    char *message = NULL;
    opq_status status = OPQ_OK;
    if (LLVMVerifyModule(c->emitter.module, LLVMReturnStatusAction, &message))
        status = opq_fail(OPQ_CODEGEN, "%s: LLVM refuses the module: %s", name, message);
    LLVMDisposeMessage(message);
    return status;
}

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static opq_status check_symbols(const char *object, size_t size, const char *name)
{
    Elf64_Ehdr header;
    if (size < sizeof header)
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

static opq_status emit(compilation *c, const char *name, LLVMCodeGenFileType type, LLVMMemoryBufferRef *out_buffer)
{
    if (!opq_emit_object(c->jit->machine, c->emitter.module, type, out_buffer))
        return opq_fail(OPQ_CODEGEN, "%s: LLVM's target machine makes no such file", name);
    if (c->diagnostics.failed) {
        LLVMDisposeMemoryBuffer(*out_buffer);
        return opq_fail(OPQ_CODEGEN, "%s: %s", name, c->diagnostics.message);
    }
    return OPQ_OK;
}

/* Sections that are loaded, each kind in pages of its own. */
static size_t loaded_bytes(const char *object)
{
    enum { PAGE = 4096, PROTECTIONS = SHF_WRITE | SHF_EXECINSTR };
    Elf64_Ehdr header;
    size_t bytes[PROTECTIONS + 1] = {0}, total = 0;
    memcpy(&header, object, sizeof header);
    for (unsigned s = 0; s < header.e_shnum; s++) {
        Elf64_Shdr section;
        memcpy(&section, object + header.e_shoff + s * sizeof section, sizeof section);
        if (section.sh_flags & SHF_ALLOC)
            bytes[section.sh_flags & PROTECTIONS] += section.sh_size;
    }
    for (int i = 0; i <= PROTECTIONS; i++)
        total += (bytes[i] + PAGE - 1) / PAGE * PAGE;
    return total;
}

/* Takes the buffer, also when it fails. Without a tracker for good: to release one of what is to stay corrupts LLVM 19's heap, where
 * ObjectLinkingLayer::handleTransferResources holds a reference into a map that it then lets grow. */
static opq_status link_object(compilation *c, const char *name, LLVMMemoryBufferRef object,
                              LLVMOrcResourceTrackerRef tracker, void **out_address)
{
    LLVMOrcLLJITRef orc = c->jit->orc;
    LLVMErrorRef error = tracker ? LLVMOrcLLJITAddObjectFileWithRT(orc, tracker, object)
                                 : LLVMOrcLLJITAddObjectFile(orc, LLVMOrcLLJITGetMainJITDylib(orc), object);
    OPQ_TRY(from_error(name, error));
    LLVMOrcExecutorAddress address = 0;
    OPQ_TRY(from_error(name, LLVMOrcLLJITLookup(orc, &address, c->symbol)));
    *out_address = (void *)(uintptr_t)address;
    return OPQ_OK;
}

static void remove_tracked(opq_jit *jit, LLVMOrcResourceTrackerRef tracker)
{
    LLVMConsumeError(LLVMOrcResourceTrackerRemove(tracker));
    LLVMOrcReleaseResourceTracker(tracker);
    /* Names of what is gone stay in ORC's pool. Looking for them is work for each name that lives: not every time. */
    jit->removed = (jit->removed + 1) % 256;
    if (jit->removed == 0)
        LLVMOrcSymbolStringPoolClearDeadEntries(
            LLVMOrcExecutionSessionGetSymbolStringPool(LLVMOrcLLJITGetExecutionSession(jit->orc)));
}

/* Objects have names that end with so many zeros; where one is linked they become a number, because names there are unique: the string ends
 * earlier. */
enum { DIGITS = 16 };

static void name_symbol(compilation *c, const char *title)
{
    snprintf(c->symbol, sizeof c->symbol, "%.64s_%0*d", title, DIGITS, 0);
}

static opq_status number_symbol(compilation *c, const char *name, LLVMMemoryBufferRef object)
{
    char *data = (char *)LLVMGetBufferStart(object), digits[DIGITS + 1];
    size_t length = strlen(c->symbol), size = LLVMGetBufferSize(object);
    char *at = memmem(data, size, c->symbol, length + 1);
    if (at == NULL)
        return opq_fail(OPQ_INTERNAL, "%s: the object has no symbol %s", name, c->symbol);
    memset(digits, 0, sizeof digits);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)c->jit->next_name++);
    for (; at; at = memmem(at + length, size - (size_t)(at + length - data), c->symbol, length + 1))
        memcpy(at + length - DIGITS, digits, DIGITS);
    memcpy(c->symbol + length - DIGITS, digits, DIGITS);
    return OPQ_OK;
}

static opq_status link_checked(compilation *c, const char *name, LLVMMemoryBufferRef object, opq_jit_module *out_module,
                               void **out_address)
{
    size_t size = LLVMGetBufferSize(object), bytes = loaded_bytes(LLVMGetBufferStart(object));
    char *copy = opq_debug_wanted() ? malloc(size) : NULL; /* linking takes the object */
    if (copy)
        memcpy(copy, LLVMGetBufferStart(object), size);
    LLVMOrcResourceTrackerRef tracker =
        out_module ? LLVMOrcJITDylibCreateResourceTracker(LLVMOrcLLJITGetMainJITDylib(c->jit->orc)) : NULL;
    opq_status status = link_object(c, name, object, tracker, out_address);
    opq_debug_entry *debug = status == OPQ_OK && copy ? opq_debug_add(copy, size, c->symbol, *out_address) : NULL;
    free(copy);
    if (status == OPQ_OK && out_module)
        *out_module = (opq_jit_module){.tracker = tracker, .bytes = bytes, .debug = debug};
    else if (tracker)
        remove_tracked(c->jit, tracker);
    return status;
}

static opq_status load_object(compilation *c, const char *name, LLVMMemoryBufferRef object, opq_jit_module *out_module,
                              void **out_address)
{
    opq_status status = check_symbols(LLVMGetBufferStart(object), LLVMGetBufferSize(object), name);
    if (status == OPQ_OK)
        status = number_symbol(c, name, object);
    if (status == OPQ_OK)
        return link_checked(c, name, object, out_module, out_address);
    LLVMDisposeMemoryBuffer(object);
    return status;
}

/* What a function is made of. */
typedef struct source {
    const char *name, *title;
    opq_status (*build)(opq_emitter *e, void *data);
    void *data;
    const opq_text *key; /* NULL: the object is not kept on disk */
} source;

/* c->symbol is its name. */
static opq_status make_object(opq_jit *jit, compilation *c, const source *s, LLVMMemoryBufferRef *out_object)
{
    OPQ_TRY(start_machine(jit));
    begin(c, jit);
    opq_status status = fill(c, s->name, s->build, s->data);
    if (status == OPQ_OK) {
        LLVMSetValueName2(LLVMGetNamedFunction(c->emitter.module, s->name), c->symbol, strlen(c->symbol));
        status = emit(c, s->name, LLVMObjectFile, out_object);
    }
    end(c);
    return status;
}

/* One in so many objects from disk is compiled again: equal sources have equal bytes. */
enum { CHECK_EVERY = 64 };

static bool is_right(opq_jit *jit, compilation *c, const source *s, const opq_store_object *found)
{
    LLVMMemoryBufferRef object = NULL;
    if (jit->loads++ % CHECK_EVERY != CHECK_EVERY - 1)
        return true;
    if (make_object(jit, c, s, &object) != OPQ_OK)
        return false;
    bool same =
        LLVMGetBufferSize(object) == found->bytes && memcmp(LLVMGetBufferStart(object), found->data, found->bytes) == 0;
    LLVMDisposeMemoryBuffer(object);
    return same;
}

static LLVMMemoryBufferRef find_object(opq_jit *jit, compilation *c, const source *s, const opq_store_key *key)
{
    opq_store_object found;
    LLVMMemoryBufferRef object = NULL;
    if (!jit->store || !s->key || !opq_store_find(jit->store, key, &found))
        return NULL;
    memcpy(c->symbol, found.symbol, sizeof c->symbol);
    if (is_right(jit, c, s, &found))
        object = LLVMCreateMemoryBufferWithMemoryRangeCopy(found.data, found.bytes, "opaque");
    else
        opq_store_refuse(jit->store, key);
    free(found.memory);
    return object;
}

static opq_status make_and_keep(opq_jit *jit, compilation *c, const source *s, const opq_store_key *key,
                                LLVMMemoryBufferRef *out_object)
{
    name_symbol(c, s->title);
    OPQ_TRY(make_object(jit, c, s, out_object));
    if (!jit->store || !s->key)
        return OPQ_OK;
    opq_store_object made = {.data = LLVMGetBufferStart(*out_object), .bytes = LLVMGetBufferSize(*out_object)};
    memcpy(made.symbol, c->symbol, sizeof made.symbol);
    opq_store_keep(jit->store, key, &made);
    return OPQ_OK;
}

static opq_status make_function(opq_jit *jit, const source *s, opq_jit_module *out_module, void **out_address)
{
    compilation c = {.jit = jit};
    opq_store_key key = {jit->processor, s->key ? s->key->data : NULL, s->key ? s->key->length : 0};
    OPQ_TRY(start(jit));
    LLVMMemoryBufferRef object = find_object(jit, &c, s, &key);
    bool found = object != NULL;
    if (!found)
        OPQ_TRY(make_and_keep(jit, &c, s, &key, &object));
    OPQ_TRY(load_object(&c, s->name, object, out_module, out_address));
    if (out_module)
        out_module->loaded = found;
    return OPQ_OK;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

opq_status opq_jit_function(opq_jit *jit, const char *name, const char *title,
                            opq_status (*build)(opq_emitter *e, void *data), void *data, const opq_text *key,
                            opq_jit_module *out_module, void **out_address)
{
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT); /* constants are folded once, for every run */
    opq_activity activity = {.kind = OPQ_ACTIVITY_compile, .name = title};
    void *open = opq_watched(jit->host) ? jit->host->activity_begin(jit->host->self, &activity) : NULL;
    double begun = now();
    pthread_mutex_lock(&jit->lock);
    opq_status status = make_function(jit, &(source){name, title, build, data, key}, out_module, out_address);
    pthread_mutex_unlock(&jit->lock);
    if (open)
        jit->host->activity_end(jit->host->self, open);
    if (opq_logs(OPQ_LOG_compile, OPQ_LOG_INFO))
        opq_log("compile: %s, %.3f ms%s%s", title, 1e3 * (now() - begun),
                status == OPQ_OK ? "" : ", failed: ", status == OPQ_OK ? "" : opq_error());
    opq_fp_control_set(control);
    return status;
}

void opq_jit_remove(opq_jit *jit, const opq_jit_module *module)
{
    pthread_mutex_lock(&jit->lock);
    opq_debug_remove(module->debug);
    remove_tracked(jit, module->tracker);
    pthread_mutex_unlock(&jit->lock);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static opq_status write_text(compilation *c, const char *name, const char *stage, char **out_text)
{
    char *text = NULL;
    LLVMMemoryBufferRef buffer = NULL;
    if (strcmp(stage, "llvm") == 0) {
        char *printed = LLVMPrintModuleToString(c->emitter.module);
        text = strdup(printed);
        LLVMDisposeMessage(printed);
    } else {
        OPQ_TRY(emit(c, name, LLVMAssemblyFile, &buffer));
        text = strndup(LLVMGetBufferStart(buffer), LLVMGetBufferSize(buffer));
        LLVMDisposeMemoryBuffer(buffer);
    }
    *out_text = text;
    return text ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "no memory for the text of %s", name);
}

opq_status opq_jit_text(opq_jit *jit, const char *name, opq_status (*build)(opq_emitter *e, void *data), void *data,
                        const char *stage, char **out_text)
{
    if (strcmp(stage, "llvm") != 0 && strcmp(stage, "asm") != 0)
        return opq_fail(OPQ_INVALID, "no stage \"%s\"; known are llvm and asm", stage);
    pthread_mutex_lock(&jit->lock);
    opq_status status = start(jit);
    if (status == OPQ_OK)
        status = start_machine(jit);
    if (status == OPQ_OK) {
        compilation c;
        begin(&c, jit);
        status = fill(&c, name, build, data);
        if (status == OPQ_OK)
            status = write_text(&c, name, stage, out_text);
        end(&c);
    }
    pthread_mutex_unlock(&jit->lock);
    return status;
}
