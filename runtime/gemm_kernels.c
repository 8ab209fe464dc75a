/* The micro-kernels that products run, compiled when they are first needed. */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"
#include "graph/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

opq_status opq_gemm_create(opq_jit *jit, const opq_host *host, opq_gemm **out_gemm)
{
    opq_gemm *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return opq_fail(OPQ_NO_MEMORY, "gemm: out of memory");
    gemm->cpu = opq_jit_cpu(jit);
    gemm->jit = jit;
    gemm->host = host;
    pthread_mutex_init(&gemm->lock, NULL);
    pthread_cond_init(&gemm->made, NULL);
    *out_gemm = gemm;
    return OPQ_OK;
}

void opq_gemm_destroy(opq_gemm *gemm)
{
    if (!gemm)
        return;
    opq_gemm_drop_kernels(gemm);
    pthread_cond_destroy(&gemm->made);
    pthread_mutex_destroy(&gemm->lock);
    free(gemm);
}

void opq_gemm_drop_kernels(opq_gemm *gemm)
{
    struct gemm_entry *first = &gemm->kernel[0][0][0][0];
    pthread_mutex_lock(&gemm->lock);
    for (size_t i = 0; i < sizeof gemm->kernel / sizeof *first; i++)
        if (atomic_exchange_explicit(&first[i].address, NULL, memory_order_relaxed))
            opq_jit_remove(gemm->jit, &first[i].module);
    pthread_mutex_unlock(&gemm->lock);
}

void opq_gemm_lock(opq_gemm *gemm) { pthread_mutex_lock(&gemm->lock); }

void opq_gemm_unlock(opq_gemm *gemm, bool in_child)
{
    struct gemm_entry *first = &gemm->kernel[0][0][0][0];
    for (size_t i = 0; in_child && i < sizeof gemm->kernel / sizeof *first; i++)
        first[i].is_being_made = false; /* who made it is not here */
    if (in_child) {
        gemm->making = 0;
        pthread_cond_init(&gemm->made, NULL);
    }
    pthread_mutex_unlock(&gemm->lock);
}

/* ---- kernels */

typedef struct kernel_key {
    char name[48];
    opq_gemm_element element;
    opq_gemm_left left;
    int rows, vectors;
} kernel_key;

static opq_status build_kernel(struct opq_emitter *e, void *data)
{
    const kernel_key *key = data;
    return opq_emit_gemm_kernel(e, key->name, key->element, key->left, key->rows, key->vectors);
}

/* Of several at once the time passes once. */
static void begin_making(opq_gemm *gemm, struct gemm_entry *entry)
{
    entry->is_being_made = true;
    if (gemm->making++ == 0)
        gemm->since = opq_now();
}

static void end_making(opq_gemm *gemm, struct gemm_entry *entry)
{
    entry->is_being_made = false;
    if (--gemm->making == 0)
        atomic_fetch_add(&gemm->compile_nanoseconds, (long long)((opq_now() - gemm->since) * 1e9));
    pthread_cond_broadcast(&gemm->made);
}

/* With the lock held, but not while it compiles. */
static opq_status make(opq_gemm *gemm, struct gemm_entry *entry, kernel_key *key)
{
    static const char *const names[] = {"packed", "rows", "window"}, *const elements[] = {"f32",     "f64",    "pairs",
                                                                                          "widened", "shorts", "quads"};
    void *address = NULL;
    begin_making(gemm, entry);
    pthread_mutex_unlock(&gemm->lock);
    snprintf(key->name, sizeof key->name, "gemm_%s_%s_%dx%d", elements[key->element], names[key->left], key->rows,
             key->vectors);
    opq_text name = {.data = key->name, .length = strlen(key->name)};
    opq_jit_module module;
    opq_status status = opq_jit_function(gemm->jit, key->name, key->name, build_kernel, key, &name, &module, &address);
    pthread_mutex_lock(&gemm->lock);
    if (status == OPQ_OK) {
        entry->module = module;
        atomic_store_explicit(&entry->address, address, memory_order_release);
    }
    end_making(gemm, entry);
    return status;
}

opq_status gemm_kernel_make(opq_gemm *gemm, opq_gemm_element element, opq_gemm_left left, int rows, int vectors,
                            void **out_address)
{
    struct gemm_entry *entry = &gemm->kernel[element][left][rows][vectors];
    kernel_key key = {.element = element, .left = left, .rows = rows, .vectors = vectors};
    opq_status status = OPQ_OK;
    pthread_mutex_lock(&gemm->lock);
    while (out_address && entry->is_being_made)
        pthread_cond_wait(&gemm->made, &gemm->lock);
    if (!entry->is_being_made && !atomic_load_explicit(&entry->address, memory_order_relaxed))
        status = make(gemm, entry, &key);
    if (out_address)
        *out_address = atomic_load_explicit(&entry->address, memory_order_relaxed);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

opq_status opq_gemm_make_kernels(opq_gemm *gemm)
{
    opq_gemm_kernel made;
    opq_gemm_tile_shape tile = {0};
    while (opq_gemm_next_tile(gemm->cpu, &tile)) {
        OPQ_TRY(gemm_kernel_find(gemm, OPQ_GEMM_F32, tile.left, tile.rows, tile.vectors, &made));
        if (opq_cpu_has(gemm->cpu, OPQ_LEAF_pairs) && tile.left != OPQ_GEMM_LEFT_WINDOW)
            OPQ_TRY(gemm_kernel_find(gemm, OPQ_GEMM_PAIRS, tile.left, tile.rows, tile.vectors, &made));
    }
    return OPQ_OK;
}
