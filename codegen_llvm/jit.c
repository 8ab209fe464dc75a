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
#include "codegen_llvm/jit_job.h"
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
    snprintf(jit->processor, sizeof jit->processor, "%s %s", jit->cpu.target->cpu, jit->cpu.features);
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
static opq_status link_object(opq_jit *jit, const opq_jit_job *job, LLVMMemoryBufferRef object,
                              LLVMOrcResourceTrackerRef tracker, void **out_address)
{
    LLVMOrcLLJITRef orc = jit->orc;
    const char *name = job->module.name;
    LLVMErrorRef error = tracker ? LLVMOrcLLJITAddObjectFileWithRT(orc, tracker, object)
                                 : LLVMOrcLLJITAddObjectFile(orc, LLVMOrcLLJITGetMainJITDylib(orc), object);
    OPQ_TRY(from_error(name, error));
    LLVMOrcExecutorAddress address = 0;
    OPQ_TRY(from_error(name, LLVMOrcLLJITLookup(orc, &address, job->symbol)));
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

static void name_symbol(opq_jit_job *job)
{
    snprintf(job->symbol, sizeof job->symbol, "%.64s_%0*d", job->title, DIGITS, 0);
}

static opq_status number_symbol(opq_jit *jit, opq_jit_job *job, LLVMMemoryBufferRef object)
{
    char *data = (char *)LLVMGetBufferStart(object), digits[DIGITS + 1];
    size_t length = strlen(job->symbol), size = LLVMGetBufferSize(object);
    char *at = memmem(data, size, job->symbol, length + 1);
    if (at == NULL)
        return opq_fail(OPQ_INTERNAL, "%s: the object has no symbol %s", job->module.name, job->symbol);
    memset(digits, 0, sizeof digits);
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)jit->next_name++);
    for (; at; at = memmem(at + length, size - (size_t)(at + length - data), job->symbol, length + 1))
        memcpy(at + length - DIGITS, digits, DIGITS);
    memcpy(job->symbol + length - DIGITS, digits, DIGITS);
    return OPQ_OK;
}

static opq_status link_checked(opq_jit *jit, const opq_jit_job *job, LLVMMemoryBufferRef object,
                               opq_jit_module *out_module, void **out_address)
{
    size_t size = LLVMGetBufferSize(object), bytes = loaded_bytes(LLVMGetBufferStart(object));
    char *copy = opq_debug_wanted() ? malloc(size) : NULL; /* linking takes the object */
    if (copy)
        memcpy(copy, LLVMGetBufferStart(object), size);
    LLVMOrcResourceTrackerRef tracker =
        out_module ? LLVMOrcJITDylibCreateResourceTracker(LLVMOrcLLJITGetMainJITDylib(jit->orc)) : NULL;
    opq_status status = link_object(jit, job, object, tracker, out_address);
    opq_debug_entry *debug = status == OPQ_OK && copy ? opq_debug_add(copy, size, job->symbol, *out_address) : NULL;
    free(copy);
    if (status == OPQ_OK && out_module)
        *out_module = (opq_jit_module){.tracker = tracker, .bytes = bytes, .loaded = job->found, .debug = debug};
    else if (tracker)
        remove_tracked(jit, tracker);
    return status;
}

static opq_status load_object(opq_jit *jit, opq_jit_job *job, LLVMMemoryBufferRef object, opq_jit_module *out_module,
                              void **out_address)
{
    opq_status status = opq_object_check(object, job->module.name);
    if (status == OPQ_OK)
        status = number_symbol(jit, job, object);
    if (status == OPQ_OK)
        return link_checked(jit, job, object, out_module, out_address);
    LLVMDisposeMemoryBuffer(object);
    return status;
}

/* ---- from disk or from the compiler */

static opq_store_key store_key(const opq_jit *jit, const opq_jit_job *job)
{
    return (opq_store_key){jit->processor, job->key ? job->key->data : NULL, job->key ? job->key->length : 0};
}

/* One in so many objects from the user's folder is compiled again: equal sources have equal bytes. */
enum { CHECK_EVERY = 64 };

static bool is_right(opq_jit *jit, const opq_jit_job *job, const opq_store_object *found)
{
    LLVMMemoryBufferRef object = NULL;
    if (opq_compiler_object(&jit->compiler, &job->module, found->symbol, &object) != OPQ_OK)
        return false;
    bool same =
        LLVMGetBufferSize(object) == found->bytes && memcmp(LLVMGetBufferStart(object), found->data, found->bytes) == 0;
    LLVMDisposeMemoryBuffer(object);
    return same;
}

/* The lock is not held while an object is compiled. */
static void find_object(opq_jit *jit, opq_jit_job *job)
{
    opq_store_object found;
    opq_store_key key = store_key(jit, job);
    pthread_mutex_lock(&jit->lock);
    bool known = jit->store && job->key && opq_store_find(jit->store, &key, &found);
    bool check = known && !found.packaged && jit->loads++ % CHECK_EVERY == CHECK_EVERY - 1;
    pthread_mutex_unlock(&jit->lock);
    if (!known)
        return;
    memcpy(job->symbol, found.symbol, sizeof job->symbol);
    job->found = !check || is_right(jit, job, &found);
    if (job->found) {
        job->object = LLVMCreateMemoryBufferWithMemoryRangeCopy(found.data, found.bytes, "opaque");
    } else {
        pthread_mutex_lock(&jit->lock);
        opq_store_refuse(jit->store, &key);
        pthread_mutex_unlock(&jit->lock);
    }
    free(found.memory);
}

opq_status opq_jit_job_find(opq_jit *jit, opq_jit_job *job)
{
    find_object(jit, job);
    if (job->found || job->key == NULL)
        return OPQ_OK;
    pthread_mutex_lock(&jit->lock);
    bool paid = opq_prices_pay(&jit->prices, job->key->data, job->key->length, &job->price);
    pthread_mutex_unlock(&jit->lock);
    return paid ? OPQ_OK : opq_fail(OPQ_CODEGEN, "%s: compiling it takes more than it is to save", job->title);
}

opq_status opq_jit_job_compile(opq_jit *jit, opq_jit_job *job)
{
    double begun = opq_now();
    name_symbol(job);
    OPQ_TRY(opq_compiler_object(&jit->compiler, &job->module, job->symbol, &job->object));
    job->seconds = opq_now() - begun;
    return OPQ_OK;
}

/* With the lock held. */
static void keep_object(opq_jit *jit, const opq_jit_job *job, double share)
{
    opq_store_key key = store_key(jit, job);
    opq_store_object made = {.data = LLVMGetBufferStart(job->object), .bytes = LLVMGetBufferSize(job->object)};
    if (job->key == NULL)
        return;
    opq_prices_learn(&jit->prices, job->key->length, job->seconds, job->price, share * job->seconds);
    memcpy(made.symbol, job->symbol, sizeof made.symbol);
    if (jit->store)
        opq_store_keep(jit->store, &key, &made);
}

opq_status opq_jit_job_link(opq_jit *jit, opq_jit_job *job, double share, opq_jit_module *out_module, void **out_address)
{
    LLVMMemoryBufferRef object = job->object;
    pthread_mutex_lock(&jit->lock);
    if (!job->found)
        keep_object(jit, job, share);
    job->object = NULL;
    opq_status status = start(jit);
    if (status == OPQ_OK)
        status = load_object(jit, job, object, out_module, out_address);
    else
        LLVMDisposeMemoryBuffer(object);
    pthread_mutex_unlock(&jit->lock);
    return status;
}

void opq_jit_job_log(const opq_jit_job *job, double seconds, opq_status status)
{
    if (opq_logs(OPQ_LOG_compile, OPQ_LOG_INFO))
        opq_log("compile: %s, %.3f ms%s%s", job->title, 1e3 * seconds,
                status == OPQ_OK ? "" : ", failed: ", status == OPQ_OK ? "" : opq_error());
}

bool opq_jit_is_watched(const opq_jit *jit) { return opq_watched(jit->host); }

static opq_status make_function(opq_jit *jit, opq_jit_job *job, opq_jit_module *out_module, void **out_address)
{
    OPQ_TRY(opq_jit_job_find(jit, job));
    if (!job->found)
        OPQ_TRY(opq_jit_job_compile(jit, job));
    return opq_jit_job_link(jit, job, 1, out_module, out_address);
}

opq_status opq_jit_function(opq_jit *jit, const char *name, const char *title,
                            opq_status (*build)(opq_emitter *e, void *data), void *data, const opq_text *key,
                            opq_jit_module *out_module, void **out_address)
{
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT); /* constants are folded once, for every run */
    opq_activity activity = {.kind = OPQ_ACTIVITY_compile, .name = title};
    opq_jit_job job = {.module = {name, build, data}, .title = title, .key = key};
    void *open = opq_jit_is_watched(jit) ? jit->host->activity_begin(jit->host->self, &activity) : NULL;
    double begun = opq_now();
    opq_status status = make_function(jit, &job, out_module, out_address);
    if (open)
        jit->host->activity_end(jit->host->self, open);
    opq_jit_job_log(&job, opq_now() - begun, status);
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
