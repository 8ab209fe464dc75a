/* From a kernel to code: found in the cache, or compiled. */
#include "codegen_llvm/cache.h"
#include "codegen_llvm/jit_job.h"
#include "codegen_llvm/nest.h"
#include "fusion/schedule.h"
#include "graph/clock.h"
#include "graph/fp_control.h"
#include "graph/progress.h"
#include "opaque/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <llvm/Config/llvm-config.h>
#include <xxhash.h>

/* ---- compiling
 * ------------------------------------------------------------------------------------------------------- */

static const char function_name[] = "opq_kernel";

static opq_status build(opq_emitter *e, void *data)
{
    const opq_loops *loops = data;
    opq_loops schedule;
    opq_arena arena = {0};
    opq_nest *n = opq_arena_alloc(&arena, sizeof *n);
    opq_status status = n ? opq_loops_verify(loops) : opq_fail(OPQ_NO_MEMORY, "no memory for kernel %s", loops->name);
    if (status == OPQ_OK)
        status = opq_schedule(loops, &arena, &schedule);
    if (status == OPQ_OK) {
        opq_emit_share_math(e, &schedule);
        status = opq_nest_open(n, e, &schedule, function_name, &arena);
    }
    if (status == OPQ_OK) {
        opq_emit_loops(n);
        LLVMBuildRetVoid(e->builder);
        status = n->status;
    }
    opq_arena_drop(&arena);
    return status;
}

static const char *title_of(const opq_loops *loops) { return loops->name ? loops->name : function_name; }

static opq_status keep(opq_jit *jit, uint64_t hash, const opq_text *key, double seconds, opq_jit_module module,
                       void *address, const opq_code **out_code)
{
    opq_code code = {.seconds = seconds, .bytes = module.bytes, .loaded = module.loaded};
    memcpy(&code.fn, &address, sizeof address);
    return opq_code_cache_keep(jit, hash, key, code, module, out_code);
}

static opq_status compile(opq_jit *jit, const opq_loops *loops, uint64_t hash, const opq_text *key,
                          const opq_code **out_code)
{
    double start = opq_now();
    void *address = NULL;
    opq_jit_module module;
    OPQ_TRY(opq_jit_function(jit, function_name, title_of(loops), build, (void *)loops, key, &module, &address));
    return keep(jit, hash, key, opq_now() - start, module, address, out_code);
}

static opq_status make_key(const opq_loops *loops, opq_text *key, uint64_t *out_hash)
{
    opq_loops_key(loops, key);
    if (key->failed) {
        opq_text_drop(key);
        return opq_fail(OPQ_NO_MEMORY, "no memory for the key of kernel %s", loops->name);
    }
    *out_hash = XXH3_64bits(key->data, key->length);
    return OPQ_OK;
}

static const opq_code *find(opq_jit *jit, const opq_loops *loops, uint64_t hash, const opq_text *key)
{
    const opq_code *code = opq_code_cache_find(opq_jit_cache(jit), hash, key);
    if (code && opq_logs(OPQ_LOG_compile, OPQ_LOG_DEBUG))
        opq_log("compile: %s is there already", title_of(loops));
    return code;
}

opq_status opq_codegen(opq_jit *jit, const opq_loops *loops, const opq_code **out_code, bool *out_fresh)
{
    opq_text key = {0};
    uint64_t hash = 0;
    OPQ_TRY(make_key(loops, &key, &hash));
    const opq_code *code = find(jit, loops, hash, &key);
    bool fresh = code == NULL;
    opq_status status = fresh ? compile(jit, loops, hash, &key, &code) : OPQ_OK;
    opq_text_drop(&key);
    OPQ_TRY(status);
    *out_code = code;
    *out_fresh = fresh;
    return OPQ_OK;
}

bool opq_codegen_has(opq_jit *jit, const opq_loops *loops)
{
    opq_text key = {0};
    uint64_t hash = 0;
    if (make_key(loops, &key, &hash) != OPQ_OK)
        return false;
    const opq_code *code = find(jit, loops, hash, &key);
    opq_text_drop(&key);
    if (code)
        opq_code_release(jit, code);
    return code != NULL;
}

/* ---- several at once */

/* A kernel that is not in the cache. */
typedef struct missing {
    opq_jit_job job;
    opq_text key;
    uint64_t hash;
    int first;      /* job that needs it */
    double seconds; /* of this thread: looking for it and linking it */
    opq_status status;
    char *message; /* malloc'd: a failure's, which may be another thread's; NULL: no memory for it */
} missing;

typedef struct batch {
    opq_jit *jit;
    opq_code_job *jobs;
    int count, kernel_count;
    missing *kernels;  /* NULL: none so far */
    int *kernel_of;    /* per job: the kernel that it needs, -1: it has its code */
    int *table;        /* of kernels by their hash, -1: none; open addressing */
    uint64_t mask;     /* its size, less one */
    missing **waiting; /* to be compiled: those that take longest first */
    int waiting_count;
    atomic_int next, done;
} batch;

static opq_status reserve(batch *b)
{
    uint64_t size = 2;
    while (size < 2 * (uint64_t)b->count)
        size *= 2;
    b->mask = size - 1;
    b->kernels = calloc((size_t)b->count, sizeof *b->kernels);
    b->kernel_of = malloc((size_t)b->count * sizeof *b->kernel_of);
    b->table = malloc(size * sizeof *b->table);
    b->waiting = malloc((size_t)b->count * sizeof(missing *));
    if (!b->kernels || !b->kernel_of || !b->table || !b->waiting)
        return opq_fail(OPQ_NO_MEMORY, "no memory for the kernels of a plan");
    for (int i = 0; i < b->count; i++)
        b->kernel_of[i] = -1;
    memset(b->table, 0xff, size * sizeof *b->table);
    return OPQ_OK;
}

static void drop(batch *b)
{
    for (int i = 0; i < b->kernel_count; i++) {
        opq_text_drop(&b->kernels[i].key);
        free(b->kernels[i].message);
    }
    free(b->kernels);
    free(b->kernel_of);
    free(b->table);
    free(b->waiting);
}

/* Takes the key. */
static int number_kernel(batch *b, int job, uint64_t hash, opq_text *key)
{
    const opq_loops *loops = b->jobs[job].loops;
    uint64_t at = hash & b->mask;
    for (; b->table[at] >= 0; at = (at + 1) & b->mask) {
        const missing *known = &b->kernels[b->table[at]];
        if (known->hash == hash && known->key.length == key->length &&
            memcmp(known->key.data, key->data, key->length) == 0) {
            opq_text_drop(key);
            return b->table[at];
        }
    }
    missing *made = &b->kernels[b->kernel_count];
    made->key = *key;
    made->hash = hash;
    made->first = job;
    made->job =
        (opq_jit_job){.module = {function_name, build, (void *)loops}, .title = title_of(loops), .key = &made->key};
    return b->table[at] = b->kernel_count++;
}

/* What is in the cache is taken, all else is numbered. */
static opq_status look_up(batch *b)
{
    for (int i = 0; i < b->count; i++) {
        opq_text key = {0};
        uint64_t hash = 0;
        OPQ_TRY(make_key(b->jobs[i].loops, &key, &hash));
        b->jobs[i].code = find(b->jit, b->jobs[i].loops, hash, &key);
        opq_status status = b->jobs[i].code || b->kernels ? OPQ_OK : reserve(b);
        if (b->jobs[i].code || status != OPQ_OK)
            opq_text_drop(&key);
        else
            b->kernel_of[i] = number_kernel(b, i, hash, &key);
        OPQ_TRY(status);
    }
    return OPQ_OK;
}

static void note(missing *kernel, opq_status status)
{
    kernel->status = status;
    kernel->message = status == OPQ_OK ? NULL : strdup(opq_error());
}

static int compare(const void *a, const void *b)
{
    size_t x = (*(missing *const *)a)->key.length, y = (*(missing *const *)b)->key.length;
    return (x < y) - (x > y);
}

/* On disk, or paid for. One that is refused ends it: it is the last kernel. */
static void find_objects(batch *b)
{
    for (int i = 0; i < b->kernel_count; i++) {
        missing *kernel = &b->kernels[i];
        double begun = opq_now();
        note(kernel, opq_jit_job_find(b->jit, &kernel->job));
        kernel->seconds = opq_now() - begun;
        if (kernel->status == OPQ_OK && !kernel->job.found)
            b->waiting[b->waiting_count++] = kernel;
        for (; kernel->status != OPQ_OK && b->kernel_count > i + 1; b->kernel_count--)
            opq_text_drop(&b->kernels[b->kernel_count - 1].key);
    }
    qsort(b->waiting, (size_t)b->waiting_count, sizeof *b->waiting, compare);
}

/* One of the threads: takes kernel after kernel, whatever its range is. */
static void compile_some(void *data, int64_t begin, int64_t end)
{
    batch *b = data;
    (void)begin;
    (void)end;
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT);
    for (int i; (i = atomic_fetch_add(&b->next, 1)) < b->waiting_count;) {
        note(b->waiting[i], opq_jit_job_compile(b->jit, &b->waiting[i]->job));
        opq_progress("compiling kernels", atomic_fetch_add(&b->done, 1) + 1, b->waiting_count);
    }
    opq_fp_control_set(control);
}

/* Returns which share of the seconds that they took passed meanwhile. */
static double compile_waiting(batch *b, const opq_host *host, int threads)
{
    double begun = opq_now(), seconds = 0;
    threads = b->waiting_count < threads ? b->waiting_count : threads;
    if (threads > 1)
        host->parallel_for(host->self, threads, 1, compile_some, b);
    else
        compile_some(b, 0, 1);
    double passed = opq_now() - begun;
    for (int i = 0; i < b->waiting_count; i++)
        seconds += b->waiting[i]->job.seconds;
    return passed < seconds ? passed / seconds : 1;
}

static opq_status link(batch *b, missing *kernel, double share, const opq_code **out_code)
{
    void *address = NULL;
    opq_jit_module module;
    double begun = opq_now();
    OPQ_TRY(opq_jit_job_link(b->jit, &kernel->job, share, &module, &address));
    kernel->seconds += opq_now() - begun;
    return keep(b->jit, kernel->hash, &kernel->key, kernel->seconds + share * kernel->job.seconds, module, address,
                out_code);
}

static void finish(batch *b, missing *kernel, double share)
{
    if (kernel->status == OPQ_OK)
        note(kernel, link(b, kernel, share, &b->jobs[kernel->first].code));
    else
        (void)opq_fail(kernel->status, "%s", kernel->message ? kernel->message : "out of memory");
    b->jobs[kernel->first].fresh = kernel->status == OPQ_OK;
    opq_jit_job_log(&kernel->job, kernel->seconds + kernel->job.seconds, kernel->status);
}

static opq_status make_missing(batch *b, const opq_host *host, int threads, int *out_failed)
{
    const missing *failed = NULL;
    unsigned control = opq_fp_control_set(OPQ_FP_DEFAULT); /* constants are folded once, for every run */
    find_objects(b);
    double share = compile_waiting(b, host, threads);
    for (int i = 0; i < b->kernel_count; i++) {
        finish(b, &b->kernels[i], share);
        if (b->kernels[i].status != OPQ_OK && failed == NULL)
            failed = &b->kernels[i];
    }
    opq_fp_control_set(control);
    for (int i = 0; i < b->count; i++)
        if (b->jobs[i].code == NULL && b->kernel_of[i] < b->kernel_count && b->kernels[b->kernel_of[i]].status == OPQ_OK) {
            const missing *kernel = &b->kernels[b->kernel_of[i]]; /* an earlier job has it, so it is there */
            b->jobs[i].code = find(b->jit, b->jobs[i].loops, kernel->hash, &kernel->key);
        }
    if (failed == NULL)
        return OPQ_OK;
    *out_failed = failed->first;
    return opq_fail(failed->status, "%s", failed->message ? failed->message : "out of memory");
}

static opq_status make_at_once(opq_jit *jit, const opq_host *host, int threads, opq_code_job *jobs, int count,
                               int *out_failed)
{
    batch b = {.jit = jit, .jobs = jobs, .count = count};
    opq_status status = look_up(&b);
    if (status == OPQ_OK && b.kernels)
        status = make_missing(&b, host, threads, out_failed);
    drop(&b);
    return status;
}

static opq_status make_one_by_one(opq_jit *jit, opq_code_job *jobs, int count, int *out_failed)
{
    for (int i = 0; i < count; i++) {
        if (opq_progress_stopped())
            return opq_fail(OPQ_INTERNAL, "planning was stopped");
        opq_status status = opq_codegen(jit, jobs[i].loops, &jobs[i].code, &jobs[i].fresh);
        if (status != OPQ_OK) {
            *out_failed = i;
            return status;
        }
        opq_progress("compiling kernels", i + 1, count);
    }
    return OPQ_OK;
}

opq_status opq_codegen_all(opq_jit *jit, const opq_host *host, opq_code_job *jobs, int count, int *out_failed)
{
    bool others = count > 1 && host && host->parallel_for && host->thread_count;
    int threads = others && opq_progress_awaited() && !opq_jit_is_watched(jit) ? host->thread_count(host->self) : 1;
    *out_failed = -1;
    return threads > 1 ? make_at_once(jit, host, threads, jobs, count, out_failed)
                       : make_one_by_one(jit, jobs, count, out_failed);
}

opq_status opq_codegen_object(opq_compiler *compiler, const opq_loops *loops, const char *symbol, const char *path)
{
    return opq_compiler_write(compiler, &(opq_module){function_name, build, (void *)loops}, symbol, path);
}

/* Takes the text. */
static opq_status add_text(const opq_loops *loops, char *text, opq_text *out_text)
{
    opq_text_bytes(out_text, text, strlen(text));
    free(text);
    return out_text->failed ? opq_fail(OPQ_NO_MEMORY, "no memory for the text of kernel %s", loops->name) : OPQ_OK;
}

opq_status opq_codegen_text(opq_compiler *compiler, const opq_loops *loops, const char *stage, opq_text *out_text)
{
    char *text = NULL;
    OPQ_TRY(opq_compiler_text(compiler, &(opq_module){function_name, build, (void *)loops}, stage, &text));
    return add_text(loops, text, out_text);
}

opq_status opq_codegen_print(opq_jit *jit, const opq_loops *loops, const char *stage, opq_text *out_text)
{
    char *text = NULL;
    OPQ_TRY(opq_jit_text(jit, function_name, build, (void *)loops, stage, &text));
    return add_text(loops, text, out_text);
}

void opq_codegen_describe(const opq_jit *jit, opq_text *text)
{
    const opq_cpu *cpu = opq_jit_cpu(jit);
    opq_text_add(text, ",\n\"llvm\": \"%s\",\n\"target\": \"%s\",\n\"features\": \"%s\"", LLVM_VERSION_STRING,
                 cpu->target->cpu, cpu->features);
}
