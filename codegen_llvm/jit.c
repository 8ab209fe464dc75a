/* The JIT: takes an object from disk or from the compiler, checks it, hands it to ORC.
 *
 * The object is made by module.c and not inside ORC because it must be looked at before it is linked: an undefined symbol means that LLVM turned an
 * instruction into a call (fmodf, memset, a half conversion), which is a bug in an emitter, never something to resolve
 * against the process.
 */
#define _GNU_SOURCE /* memmem */
#include "codegen_llvm/jit.h"
#include "codegen_llvm/allowance.h"
#include "codegen_llvm/cache.h"
#include "codegen_llvm/debug.h"
#include "codegen_llvm/emit.h"
#include "codegen_llvm/module.h"
#include "codegen_llvm/store.h"
#include "graph/clock.h"
#include "graph/fp_control.h"
#include "opaque/log.h"

#include <llvm-c/LLJIT.h>

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opq_jit {
    opq_cpu cpu;
    const opq_host *host; /* or NULL */
    opq_code_cache cache;
    opq_compiler compiler;
    pthread_mutex_t lock; /* everything below */
    LLVMOrcLLJITRef orc;
    opq_store *store; /* NULL: none */
    char processor[OPQ_STORE_PROCESSOR_MAX];
    opq_prices prices;
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
    opq_compiler_init(&jit->compiler, &jit->cpu);
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
    opq_compiler_drop(&jit->compiler);
    opq_store_close(jit->store);
    pthread_mutex_destroy(&jit->lock);
    free(jit);
}

void opq_jit_set_host(opq_jit *jit, const opq_host *host) { jit->host = host; }

void opq_jit_lock(opq_jit *jit)
{
    opq_compiler_lock(&jit->compiler);
    pthread_mutex_lock(&jit->lock);
    pthread_mutex_lock(&jit->cache.lock);
}

void opq_jit_unlock(opq_jit *jit, bool in_child)
{
    pthread_mutex_unlock(&jit->cache.lock);
    pthread_mutex_unlock(&jit->lock);
    opq_compiler_unlock(&jit->compiler, in_child);
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

/* With the lock held. */
static opq_status start(opq_jit *jit)
{
    opq_llvm_start();
    return jit->orc ? OPQ_OK : from_error("starting ORC", LLVMOrcCreateLLJIT(&jit->orc, NULL));
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

/* A function on its way from an object to an address. */
typedef struct linking {
    opq_jit *jit;
    char symbol[OPQ_STORE_SYMBOL_MAX];
} linking;

/* Takes the buffer, also when it fails. Without a tracker for good: to release one of what is to stay corrupts LLVM 19's heap, where
 * ObjectLinkingLayer::handleTransferResources holds a reference into a map that it then lets grow. */
static opq_status link_object(linking *c, const char *name, LLVMMemoryBufferRef object,
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

static void name_symbol(linking *c, const char *title)
{
    snprintf(c->symbol, sizeof c->symbol, "%.64s_%0*d", title, DIGITS, 0);
}

static opq_status number_symbol(linking *c, const char *name, LLVMMemoryBufferRef object)
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

static opq_status link_checked(linking *c, const char *name, LLVMMemoryBufferRef object, opq_jit_module *out_module,
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

static opq_status load_object(linking *c, const char *name, LLVMMemoryBufferRef object, opq_jit_module *out_module,
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
    opq_module module;
    const char *title;
    const opq_text *key; /* NULL: the object is not kept on disk */
} source;

/* ---- from disk or from the compiler */

static opq_store_key store_key(const opq_jit *jit, const source *s)
{
    return (opq_store_key){jit->processor, s->key ? s->key->data : NULL, s->key ? s->key->length : 0};
}

/* One in so many objects from the user's folder is compiled again: equal sources have equal bytes. */
enum { CHECK_EVERY = 64 };

static bool is_right(opq_jit *jit, const source *s, const opq_store_object *found)
{
    LLVMMemoryBufferRef object = NULL;
    if (opq_compiler_object(&jit->compiler, &s->module, found->symbol, &object) != OPQ_OK)
        return false;
    bool same =
        LLVMGetBufferSize(object) == found->bytes && memcmp(LLVMGetBufferStart(object), found->data, found->bytes) == 0;
    LLVMDisposeMemoryBuffer(object);
    return same;
}

/* NULL: there is none. The lock is not held while an object is compiled. */
static LLVMMemoryBufferRef find_object(opq_jit *jit, linking *c, const source *s)
{
    opq_store_object found;
    opq_store_key key = store_key(jit, s);
    LLVMMemoryBufferRef object = NULL;
    pthread_mutex_lock(&jit->lock);
    bool known = jit->store && s->key && opq_store_find(jit->store, &key, &found);
    bool check = known && !found.packaged && jit->loads++ % CHECK_EVERY == CHECK_EVERY - 1;
    pthread_mutex_unlock(&jit->lock);
    if (!known)
        return NULL;
    memcpy(c->symbol, found.symbol, sizeof c->symbol);
    if (!check || is_right(jit, s, &found)) {
        object = LLVMCreateMemoryBufferWithMemoryRangeCopy(found.data, found.bytes, "opaque");
    } else {
        pthread_mutex_lock(&jit->lock);
        opq_store_refuse(jit->store, &key);
        pthread_mutex_unlock(&jit->lock);
    }
    free(found.memory);
    return object;
}

/* With the lock held. */
static void keep_object(const opq_jit *jit, const linking *c, const source *s, LLVMMemoryBufferRef object)
{
    opq_store_key key = store_key(jit, s);
    opq_store_object made = {.data = LLVMGetBufferStart(object), .bytes = LLVMGetBufferSize(object)};
    if (!jit->store || !s->key)
        return;
    memcpy(made.symbol, c->symbol, sizeof made.symbol);
    opq_store_keep(jit->store, &key, &made);
}

static opq_status compile_object(opq_jit *jit, linking *c, const source *s, LLVMMemoryBufferRef *out_object)
{
    pthread_mutex_lock(&jit->lock);
    bool paid = s->key == NULL || opq_prices_pay(&jit->prices, s->key->data, s->key->length);
    pthread_mutex_unlock(&jit->lock);
    if (!paid)
        return opq_fail(OPQ_CODEGEN, "%s: compiling it takes more than it is to save", s->title);
    double begun = opq_now();
    name_symbol(c, s->title);
    OPQ_TRY(opq_compiler_object(&jit->compiler, &s->module, c->symbol, out_object));
    pthread_mutex_lock(&jit->lock);
    if (s->key)
        opq_prices_learn(&jit->prices, s->key->length, opq_now() - begun);
    pthread_mutex_unlock(&jit->lock);
    return OPQ_OK;
}

static opq_status make_function(opq_jit *jit, const source *s, opq_jit_module *out_module, void **out_address)
{
    linking c = {.jit = jit};
    LLVMMemoryBufferRef object = find_object(jit, &c, s);
    bool found = object != NULL;
    if (!found)
        OPQ_TRY(compile_object(jit, &c, s, &object));
    pthread_mutex_lock(&jit->lock);
    if (!found)
        keep_object(jit, &c, s, object);
    opq_status status = start(jit);
    if (status == OPQ_OK)
        status = load_object(&c, s->module.name, object, out_module, out_address);
    else
        LLVMDisposeMemoryBuffer(object);
    pthread_mutex_unlock(&jit->lock);
    if (status == OPQ_OK && out_module)
        out_module->loaded = found;
    return status;
}

opq_status opq_jit_function(opq_jit *jit, const char *name, const char *title,
                            opq_status (*build)(opq_emitter *e, void *data), void *data, const opq_text *key,
                            opq_jit_module *out_module, void **out_address)
{
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT); /* constants are folded once, for every run */
    opq_activity activity = {.kind = OPQ_ACTIVITY_compile, .name = title};
    void *open = opq_watched(jit->host) ? jit->host->activity_begin(jit->host->self, &activity) : NULL;
    double begun = opq_now();
    opq_status status = make_function(jit, &(source){{name, build, data}, title, key}, out_module, out_address);
    if (open)
        jit->host->activity_end(jit->host->self, open);
    if (opq_logs(OPQ_LOG_compile, OPQ_LOG_INFO))
        opq_log("compile: %s, %.3f ms%s%s", title, 1e3 * (opq_now() - begun),
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

opq_status opq_jit_text(opq_jit *jit, const char *name, opq_status (*build)(opq_emitter *e, void *data), void *data,
                        const char *stage, char **out_text)
{
    return opq_compiler_text(&jit->compiler, &(opq_module){name, build, data}, stage, out_text);
}
