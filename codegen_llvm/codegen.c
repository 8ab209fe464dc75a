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

static void emit_nest(opq_nest *n)
{
    switch ((opq_kernel_kind)n->kernel->kind) {
    case OPQ_KERNEL_map:
    case OPQ_KERNEL_index: opq_emit_map(n); return;
    case OPQ_KERNEL_row: opq_emit_row(n); return;
    case OPQ_KERNEL_column: opq_emit_column(n); return;
    case OPQ_KERNEL_matmul:
    case OPQ_KERNEL_concat:
    case OPQ_KERNEL_update:
    case OPQ_KERNEL_extern:
    case OPQ_KERNEL_KIND_COUNT: break;
    }
    opq_nest_fail(n, opq_fail(OPQ_INTERNAL, "no code is generated for kernels of kind %d", n->kernel->kind));
}

static opq_status build(opq_emitter *e, void *data)
{
    const opq_kernel *kernel = data;
    const char *excess = opq_kernel_excess(kernel);
    if (excess)
        return opq_fail(OPQ_UNSUPPORTED, "kernel %s: the number of its %s", kernel->name, excess);
    opq_nest *n = malloc(sizeof *n);
    if (!n)
        return opq_fail(OPQ_NO_MEMORY, "no memory for kernel %s", kernel->name);
    opq_nest_open(n, e, kernel, function_name);
    opq_status status = opq_nest_plan(n);
    if (status == OPQ_OK) {
        emit_nest(n);
        LLVMBuildRetVoid(e->builder);
        status = n->status;
    }
    free(n);
    return status;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static opq_status compile(opq_jit *jit, const opq_kernel *kernel, uint64_t hash, const opq_text *key,
                          const opq_code **out_code)
{
    double start = now();
    void *address = NULL;
    OPQ_TRY(opq_jit_function(jit, function_name, build, (void *)kernel, &address));
    opq_code code = {.seconds = now() - start};
    memcpy(&code.fn, &address, sizeof address);
    return keep(opq_jit_cache(jit), hash, key, code, out_code);
}

opq_status opq_codegen(opq_jit *jit, const opq_kernel *kernel, const opq_code **out_code, bool *out_fresh)
{
    opq_text key = {0};
    opq_kernel_key(kernel, &key);
    if (key.failed) {
        opq_text_drop(&key);
        return opq_fail(OPQ_NO_MEMORY, "no memory for the key of kernel %s", kernel->name);
    }
    uint64_t hash = XXH3_64bits(key.data, key.length);
    const opq_code *code = look_up(opq_jit_cache(jit), hash, &key);
    opq_status status = OPQ_OK;
    *out_fresh = !code;
    if (!code)
        status = compile(jit, kernel, hash, &key, &code);
    opq_text_drop(&key);
    if (status == OPQ_OK)
        *out_code = code;
    return status;
}

opq_status opq_codegen_print(opq_jit *jit, const opq_kernel *kernel, const char *stage, opq_text *out_text)
{
    char *text = NULL;
    OPQ_TRY(opq_jit_text(jit, function_name, build, (void *)kernel, stage, &text));
    opq_text_bytes(out_text, text, strlen(text));
    free(text);
    return out_text->failed ? opq_fail(OPQ_NO_MEMORY, "no memory for the text of kernel %s", kernel->name) : OPQ_OK;
}

/* ---- launching
 * ------------------------------------------------------------------------------------------------------- */

int64_t opq_kernel_units(const opq_kernel *kernel, const int64_t *dims)
{
    int last = kernel->rank - 1;
    if (kernel->kind == OPQ_KERNEL_index)
        return 1;
    if (kernel->kind == OPQ_KERNEL_map && kernel->rank == 1)
        return dims[0];
    int64_t units = 1;
    bool tiled = opq_kernel_tiled(kernel);
    for (int l = 0; l < last - tiled; l++)
        units *= kernel->reduced[l] ? 1 : dims[l];
    if (tiled)
        units *= (dims[last - 1] + OPQ_TILE_LINES - 1) / OPQ_TILE_LINES;
    if (kernel->kind == OPQ_KERNEL_column)
        units *= (dims[last] + OPQ_LANES - 1) / OPQ_LANES;
    return units;
}

int opq_spill_bytes(const opq_kernel *kernel, int slot)
{
    for (int i = 0; i < kernel->instr_count; i++)
        if (kernel->instrs[i].spill == slot)
            return opq_dtype_bytes((opq_dtype)kernel->instrs[i].dtype);
    return 0;
}

/* Slots hold the row's elements in order; whole vectors are written, up to 63 elements past the end of the last reduced
 * loop. */
int64_t opq_kernel_scratch(const opq_kernel *kernel, const int64_t *dims)
{
    int64_t elements = 1, bytes = 0;
    for (int l = 0; l < kernel->rank; l++)
        elements *= kernel->reduced[l] ? dims[l] : 1;
    for (int slot = 0; slot < kernel->spill_count; slot++)
        bytes += opq_spill_bytes(kernel, slot);
    return bytes * ((elements + 2 * OPQ_LANES - 1) & -(int64_t)OPQ_LANES);
}
