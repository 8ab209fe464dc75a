/* From a kernel to code: the cache, what a launch needs to know, and the choice of the loop nest. */
#include "codegen_llvm/cache.h"
#include "codegen_llvm/nest.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- cache
 * ----------------------------------------------------------------------------------------------------------- */

void opq_code_cache_init(opq_code_cache *cache)
{
    *cache = (opq_code_cache){0};
    pthread_mutex_init(&cache->lock, NULL);
}

void opq_code_cache_drop(opq_code_cache *cache)
{
    for (size_t i = 0; i < cache->capacity; i++)
        free(cache->slots[i]);
    free(cache->slots);
    pthread_mutex_destroy(&cache->lock);
}

/* The key's slot, or the empty one where it belongs. There is always an empty one. */
static opq_code_entry **find_slot(opq_code_entry **slots, size_t capacity, uint64_t hash, const opq_text *key)
{
    size_t at = hash & (capacity - 1);
    while (slots[at] && !(slots[at]->hash == hash && slots[at]->length == key->length &&
                          memcmp(slots[at]->key, key->data, key->length) == 0))
        at = (at + 1) & (capacity - 1);
    return &slots[at];
}

static opq_status make_room(opq_code_cache *cache)
{
    if (2 * (cache->count + 1) <= cache->capacity)
        return OPQ_OK;
    size_t capacity = cache->capacity ? 2 * cache->capacity : 256;
    opq_code_entry **slots = calloc(capacity, sizeof *slots);
    if (!slots)
        return opq_fail(OPQ_NO_MEMORY, "no memory for the code cache");
    for (size_t i = 0; i < cache->capacity; i++) {
        if (!cache->slots[i])
            continue;
        size_t at = cache->slots[i]->hash & (capacity - 1);
        while (slots[at])
            at = (at + 1) & (capacity - 1);
        slots[at] = cache->slots[i];
    }
    free(cache->slots);
    cache->slots = slots;
    cache->capacity = capacity;
    return OPQ_OK;
}

static const opq_code *look_up(opq_code_cache *cache, uint64_t hash, const opq_text *key)
{
    pthread_mutex_lock(&cache->lock);
    opq_code_entry *entry = cache->capacity ? *find_slot(cache->slots, cache->capacity, hash, key) : NULL;
    pthread_mutex_unlock(&cache->lock);
    return entry ? &entry->code : NULL;
}

/* Another thread may have compiled the same kernel meanwhile; then that one is used. */
static opq_status keep(opq_code_cache *cache, uint64_t hash, const opq_text *key, opq_code code, const opq_code **out_code)
{
    opq_code_entry *entry = malloc(sizeof *entry + key->length);
    if (!entry)
        return opq_fail(OPQ_NO_MEMORY, "no memory for a code cache entry");
    entry->hash = hash;
    entry->length = key->length;
    entry->code = code;
    memcpy(entry->key, key->data, key->length);
    pthread_mutex_lock(&cache->lock);
    opq_status status = make_room(cache);
    opq_code_entry **slot = status == OPQ_OK ? find_slot(cache->slots, cache->capacity, hash, key) : NULL;
    if (slot && !*slot) {
        *slot = entry;
        entry = NULL;
        cache->count++;
    }
    if (slot)
        *out_code = &(*slot)->code;
    pthread_mutex_unlock(&cache->lock);
    free(entry);
    return status;
}

/* ---- compiling
 * ------------------------------------------------------------------------------------------------------- */

static const char function_name[] = "opq_kernel";

static opq_status build(opq_emitter *e, void *data)
{
    const opq_loops *loops = data;
    opq_arena arena = {0};
    opq_nest *n = opq_arena_alloc(&arena, sizeof *n);
    opq_status status = n ? opq_loops_verify(loops) : opq_fail(OPQ_NO_MEMORY, "no memory for kernel %s", loops->name);
    if (status == OPQ_OK)
        status = opq_nest_open(n, e, loops, function_name, &arena);
    if (status == OPQ_OK) {
        opq_emit_loops(n);
        LLVMBuildRetVoid(e->builder);
        status = n->status;
    }
    opq_arena_drop(&arena);
    return status;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static opq_status compile(opq_jit *jit, const opq_loops *loops, uint64_t hash, const opq_text *key,
                          const opq_code **out_code)
{
    double start = now();
    void *address = NULL;
    OPQ_TRY(opq_jit_function(jit, function_name, build, (void *)loops, &address));
    opq_code code = {.seconds = now() - start};
    memcpy(&code.fn, &address, sizeof address);
    return keep(opq_jit_cache(jit), hash, key, code, out_code);
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
    const opq_code *code = look_up(opq_jit_cache(jit), hash, &key);
    opq_status status = OPQ_OK;
    *out_fresh = !code;
    if (!code)
        status = compile(jit, loops, hash, &key, &code);
    opq_text_drop(&key);
    if (status == OPQ_OK)
        *out_code = code;
    return status;
}

opq_status opq_codegen_print(opq_jit *jit, const opq_loops *loops, const char *stage, opq_text *out_text)
{
    char *text = NULL;
    OPQ_TRY(opq_jit_text(jit, function_name, build, (void *)loops, stage, &text));
    opq_text_bytes(out_text, text, strlen(text));
    free(text);
    return out_text->failed ? opq_fail(OPQ_NO_MEMORY, "no memory for the text of kernel %s", loops->name) : OPQ_OK;
}
