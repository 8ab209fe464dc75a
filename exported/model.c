/* A model: its weights mapped, its plan run. See exported.h. */
#define _GNU_SOURCE
#include "exported/exported.h"
#include "codegen_llvm/cpu.h"
#include "graph/clock.h"
#include "runtime/memory.h"
#include "runtime/room.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct opaque_model {
    const opq_exported *what;
    opq_cpu cpu;
    opq_threads *threads;
    opq_host host;
    opq_pool *pool;
    opq_gemm gemm;
    opq_runtime runtime;
    char *file;                 /* mapped */
    opq_buffer **windows;       /* on the file */
    opq_buffer **states;        /* per weight, NULL: it is none */
    _Atomic(opq_plan *) *plans; /* per call, NULL: it was not called yet */
    uint64_t seed, offset;      /* of the random stream */
    bool has_state;
    pthread_mutex_t lock; /* of the state and the stream */
};

static int code_of(opq_status status)
{
    switch (status) {
    case OPQ_OK: return OPAQUE_MODEL_OK;
    case OPQ_INVALID:
    case OPQ_OUT_OF_RANGE:
    case OPQ_SINGULAR: return OPAQUE_MODEL_INVALID;
    case OPQ_UNSUPPORTED: return OPAQUE_MODEL_UNSUPPORTED;
    case OPQ_NO_MEMORY: return OPAQUE_MODEL_NO_MEMORY;
    case OPQ_CODEGEN:
    case OPQ_INTERNAL: break;
    }
    return OPAQUE_MODEL_INTERNAL;
}

const char *opq_exported_error(void) { return opq_error(); }

/* ---- opening */

static opq_status check_processor(opaque_model *m)
{
    const char *needs = m->what->info->cpu;
    OPQ_TRY(opq_cpu_level(needs, &m->cpu));
    if (opq_cpu_runs(&m->cpu))
        return OPQ_OK;
    return opq_fail(OPQ_UNSUPPORTED, "%s was exported for processors with %s, which this one is not",
                    m->what->info->name, needs);
}

static int file_error(const char *path, const char *what)
{
    (void)opq_fail(OPQ_INVALID, "%s: %s", path, what);
    return OPAQUE_MODEL_FILE;
}

/* Pages of the file that nobody writes are shared by all processes. */
static int map_file(opaque_model *m, const char *path)
{
    int64_t bytes = m->what->file_bytes;
    struct stat status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return file_error(path, strerror(errno));
    if (fstat(file, &status) != 0 || (int64_t)status.st_size != bytes) {
        close(file);
        return file_error(path, "it has another size than the model's weights");
    }
    void *mapped = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return file_error(path, strerror(errno));
    m->file = mapped;
    if (memcmp(m->file + bytes - OPQ_EXPORTED_DIGEST, m->what->digest, OPQ_EXPORTED_DIGEST) != 0)
        return file_error(path, "these are not the model's weights");
    return OPAQUE_MODEL_OK;
}

/* LIBRARY.weights, beside LIBRARY.so. */
static int map_own_file(opaque_model *m)
{
    char path[4096];
    Dl_info found;
    if (dladdr(m->what, &found) == 0 || found.dli_fname == NULL)
        return file_error("weights", "it is not known where the library lies");
    size_t length = strlen(found.dli_fname);
    if (length > 3 && strcmp(found.dli_fname + length - 3, ".so") == 0)
        length -= 3;
    if (length + sizeof ".weights" > sizeof path)
        return file_error(found.dli_fname, "the path is too long");
    memcpy(path, found.dli_fname, length);
    memcpy(path + length, ".weights", sizeof ".weights");
    return map_file(m, path);
}

static opq_status make_buffers(opaque_model *m)
{
    const opq_exported *what = m->what;
    m->windows = calloc((size_t)what->window_count + 1, sizeof *m->windows);
    m->states = calloc((size_t)what->info->weight_count + 1, sizeof *m->states);
    m->plans = calloc((size_t)what->call_count, sizeof *m->plans);
    if (m->windows == NULL || m->states == NULL || m->plans == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int i = 0; i < what->window_count; i++) {
        const opq_exported_window *w = &what->windows[i];
        OPQ_TRY(opq_pool_adopt(m->pool, m->file + what->weights[w->weight].offset + w->first, (size_t)w->bytes, NULL,
                               NULL, &m->windows[i]));
    }
    for (int i = 0; i < what->info->weight_count; i++) {
        const opq_exported_weight *weight = &what->weights[i];
        if (!weight->state)
            continue;
        OPQ_TRY(opq_pool_buffer(m->pool, (size_t)weight->bytes, &m->states[i]));
        memcpy(m->states[i]->data, m->file + weight->offset, (size_t)weight->bytes);
        m->has_state = true;
    }
    return OPQ_OK;
}

/* What the file has packed already, no run packs. */
static opq_status keep_packed(opaque_model *m)
{
    for (int i = 0; i < m->what->packed_count; i++) {
        const opq_exported_packed *p = &m->what->packed[i];
        opq_buffer *memory;
        OPQ_TRY(opq_pool_adopt(m->pool, m->file + p->offset, (size_t)p->bytes, NULL, NULL, &memory));
        opq_packed_keep(m->windows[p->window], &p->key, memory);
        opq_buffer_release(memory);
    }
    return OPQ_OK;
}

static opq_status prepare(opaque_model *m, int threads)
{
    if (threads > 1) {
        OPQ_TRY(opq_threads_create(threads, &m->threads));
        m->host = opq_threads_host(m->threads);
    }
    OPQ_TRY(opq_pool_create(&m->pool));
    m->gemm.cpu = &m->cpu;
    m->gemm.host = &m->host;
    memcpy(m->gemm.tiles, m->what->tiles, sizeof m->gemm.tiles);
    m->runtime = (opq_runtime){.host = &m->host, .pool = m->pool, .gemm = &m->gemm};
    OPQ_TRY(make_buffers(m));
    return keep_packed(m);
}

static void drop_plan(opq_plan *plan)
{
    opq_arena arena = plan ? plan->arena : (opq_arena){0}; /* the plan is in it */
    opq_arena_drop(&arena);
}

void opq_exported_close(opaque_model *m)
{
    if (m == NULL)
        return;
    for (int i = 0; m->windows && i < m->what->window_count; i++)
        opq_buffer_release(m->windows[i]);
    for (int i = 0; m->states && i < m->what->info->weight_count; i++)
        opq_buffer_release(m->states[i]);
    for (int i = 0; m->plans && i < m->what->call_count; i++)
        drop_plan(atomic_load(&m->plans[i]));
    free(m->plans);
    free(m->windows);
    free(m->states);
    if (m->pool)
        opq_pool_destroy(m->pool);
    opq_threads_destroy(m->threads);
    if (m->file)
        munmap(m->file, (size_t)m->what->file_bytes);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

int opq_exported_open(const opq_exported *what, const char *weights, int threads, opaque_model **out_model)
{
    *out_model = NULL;
    if (threads < 1)
        return code_of(opq_fail(OPQ_INVALID, "%d threads", threads));
    opaque_model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return code_of(opq_fail(OPQ_NO_MEMORY, "out of memory"));
    m->what = what;
    m->seed = what->seed;
    m->offset = what->offset;
    for (int i = 0; i < what->call_count; i++)
        m->has_state |= what->calls[i].draw_count > 0;
    pthread_mutex_init(&m->lock, NULL);
    int code = code_of(check_processor(m));
    if (code == OPAQUE_MODEL_OK && what->file_bytes > 0)
        code = weights ? map_file(m, weights) : map_own_file(m);
    if (code == OPAQUE_MODEL_OK)
        code = code_of(prepare(m, threads));
    if (code == OPAQUE_MODEL_OK)
        *out_model = m;
    else
        opq_exported_close(m);
    return code;
}

void opq_exported_seed(opaque_model *m, uint64_t seed)
{
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    m->seed = seed;
    m->offset = 0;
    pthread_mutex_unlock(&m->lock);
}

/* ---- running */

typedef struct run {
    opaque_model *model;
    const opq_exported_call *call;
    const opq_plan *plan; /* NULL: nothing is computed */
    const void *const *inputs;
    void *const *outputs;
    opq_buffer **leaves, **made; /* made: per output */
    opq_buffer **into;           /* per output: the caller's memory */
    int32_t *replaces;
    opq_number *numbers;
    opq_room room;
} run;

static int compare_sizes(const opq_exported *what, const int64_t *a, const int64_t *b)
{
    int i = 0;
    while (i < what->info->size_count && a[i] == b[i])
        i++;
    return i == what->info->size_count ? 0 : a[i] < b[i] ? -1 : 1;
}

static const opq_exported_call *find_call(const opq_exported *what, const int64_t *sizes)
{
    int low = 0, high = what->call_count - 1;
    while (low <= high) {
        int middle = (low + high) / 2, order = compare_sizes(what, sizes, what->calls[middle].sizes);
        if (order == 0)
            return &what->calls[middle];
        if (order < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return NULL;
}

/* Of the call: made when it is first needed, by whoever comes first. */
static opq_status find_plan(run *r)
{
    if (r->call->plan < 0)
        return OPQ_OK;
    const opq_exported *what = r->model->what;
    _Atomic(opq_plan *) *at = &r->model->plans[r->call - what->calls];
    opq_plan *found = atomic_load(at), *made;
    if (found == NULL) {
        OPQ_TRY(opq_exported_plan(what, r->call->plan, &made));
        if (atomic_compare_exchange_strong(at, &found, made))
            found = made;
        else
            drop_plan(made);
    }
    r->plan = found;
    return OPQ_OK;
}

static opq_status allocate(run *r)
{
    OPQ_TRY(find_plan(r));
    size_t outputs = r->plan ? (size_t)r->plan->output_count : 0;
    size_t pointers = (size_t)r->call->leaf_count + 2 * outputs;
    opq_buffer **all = opq_room_take(&r->room, (pointers + 1) * sizeof *all);
    r->replaces = opq_room_take(&r->room, (outputs + 1) * sizeof *r->replaces);
    r->numbers = opq_room_take(&r->room, ((size_t)r->call->number_count + 1) * sizeof *r->numbers);
    if (all == NULL || r->replaces == NULL || r->numbers == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    memset(all, 0, pointers * sizeof *all);
    r->leaves = all;
    r->made = all + r->call->leaf_count;
    r->into = r->made + outputs;
    return OPQ_OK;
}

/* A window of a weight that other calls write to is a part of the state. */
static opq_exported_leaf resolve(const opaque_model *m, const opq_exported_leaf *leaf)
{
    const opq_exported_window *w = leaf->source == OPQ_FROM_window ? &m->what->windows[leaf->index] : NULL;
    if (w == NULL || !m->what->weights[w->weight].state)
        return *leaf;
    return (opq_exported_leaf){OPQ_FROM_state, w->weight, w->first, w->bytes};
}

static opq_status bind_leaf(const run *r, const opq_exported_leaf *given, opq_buffer **out)
{
    opaque_model *m = r->model;
    opq_exported_leaf leaf = resolve(m, given);
    opq_buffer *held = leaf.source == OPQ_FROM_window  ? m->windows[leaf.index]
                       : leaf.source == OPQ_FROM_state ? m->states[leaf.index]
                                                       : NULL;
    if (held && (leaf.source == OPQ_FROM_window || leaf.bytes == (int64_t)held->bytes)) {
        opq_buffer_retain(held);
        *out = held;
        return OPQ_OK;
    }
    const char *data = held ? held->data : r->inputs[leaf.index];
    return opq_pool_adopt(m->pool, (char *)data + leaf.first, (size_t)leaf.bytes, NULL, NULL, out);
}

/* What becomes a part of the state as it is, outlives the caller's memory. */
static opq_status own_leaf(run *r, int leaf)
{
    opq_buffer *given = r->leaves[leaf], *own;
    if (given->size_class >= 0)
        return OPQ_OK;
    OPQ_TRY(opq_pool_buffer(r->model->pool, given->bytes, &own));
    memcpy(own->data, given->data, given->bytes);
    opq_buffer_release(given);
    r->leaves[leaf] = own;
    return OPQ_OK;
}

/* Memory of the caller is none of the state's. */
static bool becomes_state(const opq_exported_call *call, int output)
{
    for (int i = 0; i < call->sink_count; i++)
        if (call->sinks[i].state >= 0 && call->sinks[i].output == output)
            return true;
    return false;
}

static opq_status bind(run *r)
{
    const opq_exported_call *call = r->call;
    for (int i = 0; i < call->leaf_count; i++)
        OPQ_TRY(bind_leaf(r, &call->leaves[i], &r->leaves[i]));
    for (int i = 0; i < call->sink_count; i++)
        if (call->sinks[i].state >= 0 && call->sinks[i].leaf >= 0)
            OPQ_TRY(own_leaf(r, call->sinks[i].leaf));
    for (int i = 0; i < call->sink_count; i++) {
        const opq_exported_sink *sink = &call->sinks[i];
        if (sink->result >= 0 && sink->output >= 0 && r->into[sink->output] == NULL && sink->bytes > 0 &&
            !becomes_state(call, sink->output))
            OPQ_TRY(opq_pool_adopt(r->model->pool, r->outputs[sink->result], (size_t)sink->bytes, NULL, NULL,
                                   &r->into[sink->output]));
    }
    for (int i = 0; r->plan && i < r->plan->output_count; i++) {
        int32_t leaf = call->replaces[i]; /* of the state, which alone has it but for this run */
        r->replaces[i] = leaf >= 0 && atomic_load(&r->leaves[leaf]->refs) == 2 ? leaf : -1;
    }
    return OPQ_OK;
}

static void bind_numbers(const run *r)
{
    const opq_exported_call *call = r->call;
    memcpy(r->numbers, call->numbers, (size_t)call->number_count * sizeof *r->numbers);
    for (int i = 0; i < call->draw_count; i++) {
        const opq_exported_draw *draw = &call->draws[i];
        r->numbers[draw->number].i =
            (int64_t)(draw->is_seed ? r->model->seed : r->model->offset + (uint64_t)draw->further);
    }
}

static void give(const run *r)
{
    for (int i = 0; i < r->call->sink_count; i++) {
        const opq_exported_sink *sink = &r->call->sinks[i];
        const opq_buffer *from = sink->output >= 0 ? r->made[sink->output]
                                 : sink->leaf >= 0 ? r->leaves[sink->leaf]
                                                   : NULL;
        if (from && sink->result >= 0 && from->data != r->outputs[sink->result])
            memcpy(r->outputs[sink->result], from->data, (size_t)sink->bytes);
    }
    for (int i = 0; i < r->call->sink_count; i++) {
        const opq_exported_sink *sink = &r->call->sinks[i];
        if (sink->state < 0)
            continue;
        opq_buffer *made = sink->output >= 0 ? r->made[sink->output] : r->leaves[sink->leaf];
        opq_buffer_retain(made);
        opq_buffer_release(r->model->states[sink->state]);
        r->model->states[sink->state] = made;
        atomic_store(&made->taken, false);
    }
}

static opq_status run_call(run *r)
{
    OPQ_TRY(allocate(r));
    OPQ_TRY(bind(r));
    bind_numbers(r);
    if (r->plan) {
        opq_run_call call = {
            .inputs = r->leaves, .scalars = r->numbers, .outputs = r->made, .replaces = r->replaces, .into = r->into};
        double start = opq_now();
        OPQ_TRY(opq_plan_run(&r->model->runtime, r->plan, &call));
        opq_pool_tend(r->model->pool, opq_now() - start);
    }
    give(r);
    if (r->call->drawn > 0) /* else runs do not wait for each other */
        r->model->offset += (uint64_t)r->call->drawn;
    return OPQ_OK;
}

static void drop(run *r)
{
    int outputs = r->plan ? r->plan->output_count : 0;
    for (int i = 0; r->leaves && i < r->call->leaf_count; i++)
        opq_buffer_release(r->leaves[i]);
    for (int i = 0; r->leaves && i < outputs; i++) {
        opq_buffer_release(r->made[i]);
        opq_buffer_release(r->into[i]);
    }
    opq_room_drop(&r->room);
}

static opq_status check_pointers(const opq_exported_call *call, const opaque_model_info *info,
                                 const void *const *inputs, void *const *outputs)
{
    for (int i = 0; i < info->input_count; i++)
        if (call->input_bytes[i] > 0 && (inputs == NULL || inputs[i] == NULL))
            return opq_fail(OPQ_INVALID, "input %s is missing", info->inputs[i].name);
    for (int i = 0; i < call->sink_count; i++) {
        int result = call->sinks[i].result;
        if (result >= 0 && call->sinks[i].bytes > 0 && (outputs == NULL || outputs[result] == NULL))
            return opq_fail(OPQ_INVALID, "output %s is missing", info->outputs[result].name);
    }
    return OPQ_OK;
}

/* NULL: an error. */
static const opq_exported_call *call_for(const opq_exported *what, const int64_t *sizes)
{
    const opaque_model_info *info = what->info;
    const opq_exported_call *call = info->size_count == 0 || sizes ? find_call(what, sizes) : NULL;
    if (call == NULL)
        (void)opq_fail(OPQ_UNSUPPORTED, "%s was not exported for these sizes", info->name);
    return call;
}

int opq_exported_shape(const opq_exported *what, const int64_t *sizes, int output, int64_t *out_size)
{
    const opaque_model_info *info = what->info;
    const opq_exported_call *call = call_for(what, sizes);
    if (call == NULL)
        return OPAQUE_MODEL_UNSUPPORTED;
    if (output < 0 || output >= info->output_count)
        return code_of(opq_fail(OPQ_INVALID, "%s has no output %d", info->name, output));
    const int64_t *size = call->output_sizes;
    for (int i = 0; i < output; i++)
        size += info->outputs[i].rank;
    for (int d = 0; d < info->outputs[output].rank; d++)
        out_size[d] = size[d];
    return OPAQUE_MODEL_OK;
}

int opq_exported_run(opaque_model *m, const int64_t *sizes, const void *const *inputs, void *const *outputs)
{
    if (m == NULL)
        return code_of(opq_fail(OPQ_INVALID, "no model is open"));
    const opaque_model_info *info = m->what->info;
    const opq_exported_call *call = call_for(m->what, sizes);
    if (call == NULL)
        return OPAQUE_MODEL_UNSUPPORTED;
    opq_status status = check_pointers(call, info, inputs, outputs);
    if (status != OPQ_OK)
        return code_of(status);
    run r = {.model = m, .call = call, .inputs = inputs, .outputs = outputs};
    opq_room_init(&r.room);
    if (m->has_state)
        pthread_mutex_lock(&m->lock);
    status = run_call(&r);
    drop(&r);
    if (m->has_state)
        pthread_mutex_unlock(&m->lock);
    return code_of(status);
}

const void *opq_exported_weight_data(opaque_model *m, int index)
{
    if (m == NULL || index < 0 || index >= m->what->info->weight_count)
        return NULL;
    return m->states[index] ? m->states[index]->data : m->file + m->what->weights[index].offset;
}
