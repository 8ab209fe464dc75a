/* From a kernel to code: found in the cache, or compiled. */
#include "codegen_llvm/cache.h"
#include "codegen_llvm/module.h"
#include "codegen_llvm/nest.h"
#include "fusion/schedule.h"
#include "opaque/log.h"
#include "graph/clock.h"

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

static opq_status compile(opq_jit *jit, const opq_loops *loops, uint64_t hash, const opq_text *key,
                          const opq_code **out_code)
{
    double start = opq_now();
    void *address = NULL;
    opq_jit_module module;
    OPQ_TRY(opq_jit_function(jit, function_name, loops->name ? loops->name : function_name, build, (void *)loops, key,
                             &module, &address));
    opq_code code = {.seconds = opq_now() - start, .bytes = module.bytes, .loaded = module.loaded};
    memcpy(&code.fn, &address, sizeof address);
    return opq_code_cache_keep(jit, hash, key, code, module, out_code);
}

opq_status opq_codegen(opq_jit *jit, const opq_loops *loops, const opq_code **out_code, bool *out_fresh)
{
    opq_text key = {0};
    opq_loops_key(loops, &key);
    if (key.failed) {
        opq_text_drop(&key);
        return opq_fail(OPQ_NO_MEMORY, "no memory for the key of kernel %s", loops->name);
    }
    uint64_t hash = XXH3_64bits(key.data, key.length);
    const opq_code *code = opq_code_cache_find(opq_jit_cache(jit), hash, &key);
    opq_status status = OPQ_OK;
    *out_fresh = !code;
    if (!code)
        status = compile(jit, loops, hash, &key, &code);
    else if (opq_logs(OPQ_LOG_compile, OPQ_LOG_DEBUG))
        opq_log("compile: %s is there already", loops->name ? loops->name : function_name);
    opq_text_drop(&key);
    if (status == OPQ_OK)
        *out_code = code;
    return status;
}

opq_status opq_codegen_object(opq_compiler *compiler, const opq_loops *loops, const char *symbol, const char *path)
{
    return opq_compiler_write(compiler, &(opq_module){function_name, build, (void *)loops}, symbol, path);
}

opq_status opq_codegen_print(opq_jit *jit, const opq_loops *loops, const char *stage, opq_text *out_text)
{
    char *text = NULL;
    OPQ_TRY(opq_jit_text(jit, function_name, build, (void *)loops, stage, &text));
    opq_text_bytes(out_text, text, strlen(text));
    free(text);
    return out_text->failed ? opq_fail(OPQ_NO_MEMORY, "no memory for the text of kernel %s", loops->name) : OPQ_OK;
}

void opq_codegen_describe(const opq_jit *jit, opq_text *text)
{
    const opq_cpu *cpu = opq_jit_cpu(jit);
    opq_text_add(text, ",\n\"llvm\": \"%s\",\n\"target\": \"%s\",\n\"features\": \"%s\"", LLVM_VERSION_STRING,
                 cpu->name, cpu->features);
}
