/* Exported models: see export.h. Calls are planned like any graph; their kernels become objects, their weights one file, all else tables of C. */
#include "opaque/export.h"
#include "codegen_llvm/cpu.h"
#include "codegen_llvm/gemm_kernel.h"
#include "opaque/capture_plan.h"
#include "opaque/capturing.h"
#include "opaque/export_plan.h"
#include "runtime/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PAGE = 4096, PATH_MAX_BYTES = 4096, CONSTANT_ALIGN = 64 };

typedef struct weight {
    char *name;
    opq_type type;
    opq_value *value; /* a reference; its data are what is written. NULL: zeros */
    int64_t bytes, offset;
    bool state;
} weight;

typedef struct window {
    int32_t weight;
    int64_t first, bytes;
} window;

/* A packed copy of a window: what opq_step_packed says. */
typedef struct packed {
    int32_t window;
    opq_packed_key key;
    int64_t offset, bytes;
} packed;

struct opq_exporter {
    opq_ctx *ctx;
    opq_cpu cpu;
    struct opq_compiler *compiler;
    char *folder, level[16];
    opq_text calls, plans; /* initialisers */
    opq_code_list codes;
    opq_plan **held; /* whose codes these are */
    int held_count, size_count;
    weight *weights;
    int weight_count;
    window *windows;
    int window_count;
    packed *packed;
    int packed_count;
    bool tiles[2]; /* are there products summed in f32, in f64? */
};

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "export: out of memory"); }

opq_status opq_exporter_open(opq_ctx *ctx, const char *level, const char *folder, int size_count,
                             opq_exporter **out_exporter)
{
    opq_cpu cpu;
    if (level == NULL)
        level = opq_jit_cpu(ctx->runtime.jit)->avx512 ? "avx512" : "avx2";
    OPQ_TRY(opq_cpu_level(level, &cpu));
    opq_exporter *e = calloc(1, sizeof *e);
    if (e == NULL)
        return out_of_memory();
    e->ctx = ctx;
    e->cpu = cpu;
    e->size_count = size_count;
    snprintf(e->level, sizeof e->level, "%s", level);
    e->folder = strdup(folder);
    opq_status status = e->folder ? opq_compiler_create(&e->cpu, &e->compiler) : out_of_memory();
    if (status == OPQ_OK)
        *out_exporter = e;
    else
        opq_exporter_close(e);
    return status;
}

const char *opq_exporter_level(const opq_exporter *e) { return e->level; }

void opq_exporter_close(opq_exporter *e)
{
    if (e == NULL)
        return;
    for (int i = 0; i < e->weight_count; i++) {
        free(e->weights[i].name);
        opq_value_release(e->weights[i].value);
    }
    for (int i = 0; i < e->held_count; i++)
        opq_plan_release(e->held[i]);
    free(e->held);
    free(e->weights);
    free(e->windows);
    free(e->packed);
    free(e->codes.items);
    opq_text_drop(&e->calls);
    opq_text_drop(&e->plans);
    opq_compiler_destroy(e->compiler);
    free(e->folder);
    free(e);
}

/* Room for one more. */
static opq_status grow(void **items, int count, size_t size)
{
    bool full = (count & (count - 1)) == 0; /* a power of two, or 0 */
    void *grown = full ? realloc(*items, (count ? 2 * (size_t)count : 1) * size) : *items;
    if (grown == NULL)
        return out_of_memory();
    *items = grown;
    return OPQ_OK;
}

/* ---- kernels */

static opq_status add_code(opq_exporter *e, const opq_step *step)
{
    char symbol[32], path[PATH_MAX_BYTES];
    if (step->matmul)
        e->tiles[step->matmul->dtype == OPQ_f64] = true;
    if (step->code == NULL || opq_code_list_find(&e->codes, step->code) >= 0)
        return OPQ_OK;
    OPQ_TRY(grow((void **)&e->codes.items, e->codes.count, sizeof *e->codes.items));
    snprintf(symbol, sizeof symbol, "kernel_%d", e->codes.count);
    snprintf(path, sizeof path, "%s/%s.o", e->folder, symbol);
    OPQ_TRY(opq_codegen_object(e->compiler, opq_step_code_loops(step), symbol, path));
    e->codes.items[e->codes.count++] = step->code;
    return OPQ_OK;
}

static opq_status refuse_extern(const opq_step *step)
{
    const char *at = step->lines && *step->lines ? step->lines : NULL;
    return opq_fail(OPQ_UNSUPPORTED, "%s, recorded at %s, has no kernel of its own: PyTorch computes it", step->name,
                    at ? at : "an unknown place");
}

static opq_status add_codes(opq_exporter *e, const opq_plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) {
        const opq_step *step = &plan->steps[i];
        if (step->kind == OPQ_KERNEL_extern)
            return refuse_extern(step);
        if (step->routine && step->routine->op == OPQ_OP_grouped_matmul)
            e->tiles[step->routine->type.dtype == OPQ_f64] = true;
        for (int p = 0; p < step->part_count; p++)
            OPQ_TRY(add_code(e, &step->parts[p]));
        OPQ_TRY(add_code(e, step));
    }
    return OPQ_OK;
}

/* ---- weights */

static opq_status add_weight(opq_exporter *e, const char *name, const opq_type *type, opq_value *value, int64_t bytes,
                             int *out_index)
{
    OPQ_TRY(grow((void **)&e->weights, e->weight_count, sizeof *e->weights));
    weight *w = &e->weights[e->weight_count];
    *w = (weight){.name = strdup(name), .type = *type, .value = value, .bytes = bytes};
    if (w->name == NULL)
        return out_of_memory();
    if (value)
        opq_value_retain(value);
    *out_index = e->weight_count++;
    return OPQ_OK;
}

/* Equal data are one constant. */
static opq_status find_constant(opq_exporter *e, opq_value *value, int *out_index)
{
    int64_t bytes = opq_type_bytes(&value->type);
    char name[32];
    int constants = 0;
    for (int i = 0; i < e->weight_count; i++) {
        const weight *w = &e->weights[i];
        if (strncmp(w->name, "constant.", 9) != 0)
            continue;
        constants++;
        if (w->bytes == bytes && memcmp(w->value->buffer->data, value->buffer->data, (size_t)bytes) == 0) {
            *out_index = i;
            return OPQ_OK;
        }
    }
    snprintf(name, sizeof name, "constant.%d", constants);
    return add_weight(e, name, &value->type, value, bytes, out_index);
}

static opq_status find_weight(opq_exporter *e, const opq_exported_cell *cell, const opq_met *met, int *out_index)
{
    for (int i = 0; i < e->weight_count; i++)
        if (strcmp(e->weights[i].name, cell->name) == 0) {
            *out_index = i;
            return OPQ_OK;
        }
    opq_value *value = met->leaf ? met->leaf : met->before;
    if (value && value->state != OPQ_VALUE_computed)
        value = NULL;
    int64_t bytes = met->cell->bytes;
    if (value && opq_type_bytes(&value->type) != bytes)
        return opq_fail(OPQ_INTERNAL, "export: %s has %lld bytes, and holds %lld", cell->name, (long long)bytes,
                        (long long)opq_type_bytes(&value->type));
    return add_weight(e, cell->name, &cell->type, value, bytes, out_index);
}

static opq_status find_window(opq_exporter *e, int32_t weight, int64_t first, int64_t bytes, int *out_index)
{
    for (int i = 0; i < e->window_count; i++)
        if (e->windows[i].weight == weight && e->windows[i].first == first && e->windows[i].bytes == bytes) {
            *out_index = i;
            return OPQ_OK;
        }
    OPQ_TRY(grow((void **)&e->windows, e->window_count, sizeof *e->windows));
    e->windows[e->window_count] = (window){weight, first, bytes};
    *out_index = e->window_count++;
    return OPQ_OK;
}

/* ---- a call */

typedef struct adding {
    opq_exporter *e;
    const opq_capturing *capturing;
    const opq_capture *capture;
    const opq_export_call *call;
    int *weights; /* per cell, -1: an argument */
    int *windows; /* per leaf, -1: it is none */
} adding;

static opq_status find_weights(adding *a)
{
    const opq_capture *c = a->capture;
    for (int i = 0; i < c->cell_count; i++) {
        const opq_exported_cell *cell = &a->call->cells[i];
        a->weights[i] = -1;
        if (cell->argument >= 0 && c->cells[i].written)
            return opq_fail(OPQ_UNSUPPORTED, "it writes to argument %d", cell->argument);
        if (cell->argument >= 0)
            continue;
        OPQ_TRY(find_weight(a->e, cell, &a->capturing->met[i], &a->weights[i]));
        a->e->weights[a->weights[i]].state |= c->cells[i].written;
    }
    return OPQ_OK;
}

static opq_status write_leaves(adding *a)
{
    static const char *const sources[] = {"OPQ_FROM_argument", "OPQ_FROM_window", "OPQ_FROM_state"};
    opq_text *t = &a->e->calls;
    opq_text_add(t, ".leaf_count = %d, .leaves = (opq_exported_leaf[]){", a->capture->leaf_count);
    for (int i = 0; i < a->capture->leaf_count; i++) {
        const opq_capture_leaf *leaf = &a->capture->leaves[i];
        int weight = leaf->cell >= 0 ? a->weights[leaf->cell] : -1, source = 1, index = 0;
        a->windows[i] = -1;
        if (leaf->cell < 0)
            OPQ_TRY(find_constant(a->e, leaf->constant, &weight));
        if (weight < 0) {
            source = 0;
            index = a->call->cells[leaf->cell].argument;
        } else if (leaf->cell >= 0 && a->capture->cells[leaf->cell].written) {
            source = 2;
            index = weight;
        } else {
            OPQ_TRY(find_window(a->e, weight, leaf->first, leaf->bytes, &index));
            a->windows[i] = index;
        }
        opq_text_add(t, "{%s,%d,%lld,%lld},", sources[source], index, (long long)leaf->first, (long long)leaf->bytes);
    }
    opq_text_add(t, "{0}},\n    ");
    return OPQ_OK;
}

static int64_t sink_bytes(const opq_capture *c, const opq_capture_sink *sink)
{
    return sink->output >= 0 ? opq_type_bytes(&c->types[sink->output])
           : sink->leaf >= 0 ? c->leaves[sink->leaf].bytes
                             : sink->bytes;
}

static void write_sinks(adding *a)
{
    const opq_capture *c = a->capture;
    opq_text *t = &a->e->calls;
    opq_text_add(t, ".sink_count = %d, .sinks = (opq_exported_sink[]){", c->sink_count);
    for (int i = 0; i < c->sink_count; i++) {
        const opq_capture_sink *sink = &c->sinks[i];
        opq_text_add(t, "{%d,%d,%d,%d,%lld},", sink->cell < 0 ? -1 - sink->cell : -1,
                     sink->cell >= 0 ? a->weights[sink->cell] : -1, sink->output, sink->output >= 0 ? -1 : sink->leaf,
                     (long long)sink_bytes(c, sink));
    }
    opq_text_add(t, "{0}},\n    .replaces = (int32_t[]){");
    for (int i = 0; i < c->output_count; i++)
        opq_text_add(t, "%d,", c->replaces[i] >= 0 ? c->replaces[i] : -1);
    opq_text_add(t, "-1},\n    ");
}

/* As they are now: what the host computes does not change. */
static void write_numbers(adding *a)
{
    const opq_capture *c = a->capture;
    opq_text *t = &a->e->calls;
    opq_text_add(t, ".numbers = (opq_number[]){");
    for (int i = 0; i < c->number_count; i++)
        opq_text_add(t, "{%lldLL},", (long long)c->numbers[i].value.i);
    opq_text_add(t, "{0}}");
}

/* Copies of weights that products read packed are made now, if this processor can; else runs make them. */
static opq_status add_packed(adding *a, const opq_plan *plan, const opq_step *step, int operand)
{
    opq_exporter *e = a->e;
    packed p = {0};
    p.bytes = opq_step_packed(e->ctx->runtime.gemm, plan, step, operand, &p.key);
    if (p.bytes == 0)
        return OPQ_OK;
    p.window = a->windows[plan->storage[step->buffers[step->matmul->contract.operand[operand].buffer]].index];
    for (int i = 0; i < e->packed_count; i++)
        if (e->packed[i].window == p.window && opq_packed_key_same(&e->packed[i].key, &p.key))
            return OPQ_OK;
    if (p.window < 0)
        return OPQ_OK;
    OPQ_TRY(grow((void **)&e->packed, e->packed_count, sizeof *e->packed));
    e->packed[e->packed_count++] = p;
    return OPQ_OK;
}

static opq_status add_all_packed(adding *a, const opq_plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) {
        const opq_step *step = &plan->steps[i];
        if (step->matmul)
            OPQ_TRY(add_packed(a, plan, step, 0));
        if (step->matmul)
            OPQ_TRY(add_packed(a, plan, step, 1));
        for (int p = 0; p < step->part_count && !step->block; p++)
            OPQ_TRY(add_packed(a, plan, &step->parts[p], 1));
    }
    return OPQ_OK;
}

static bool packs_here(const opq_exporter *e) { return e->cpu.avx512 == opq_jit_cpu(e->ctx->runtime.jit)->avx512; }

static opq_status write_call(adding *a, const opq_plan *plan, int number, int input_count)
{
    opq_text *t = &a->e->calls;
    char name[32];
    snprintf(name, sizeof name, "plan_%d", number);
    opq_text_add(t, "  {.plan = %s%s, .sizes = ", plan ? "&" : "", plan ? name : "NULL");
    opq_write_ints(t, a->call->sizes, a->e->size_count);
    opq_text_add(t, ",\n    ");
    OPQ_TRY(write_leaves(a));
    write_sinks(a);
    write_numbers(a);
    opq_text_add(t, ",\n    .input_bytes = (int64_t[]){");
    for (int i = 0; i < input_count; i++)
        opq_text_add(t, "%lld,", (long long)opq_type_bytes(&a->call->inputs[i]));
    opq_text_add(t, "0}},\n");
    if (plan && packs_here(a->e))
        OPQ_TRY(add_all_packed(a, plan));
    if (plan)
        opq_write_plan(&a->e->plans, name, plan, &a->e->codes);
    return OPQ_OK;
}

/* Of the graph, as the device would plan it. */
static opq_status plan_call(opq_exporter *e, const opq_graph *graph, opq_plan **out_plan)
{
    *out_plan = NULL;
    if (graph == NULL)
        return OPQ_OK;
    OPQ_TRY(opq_plan_compile(&e->ctx->runtime, graph, OPQ_FUSED, out_plan));
    opq_status status = grow((void **)&e->held, e->held_count, sizeof *e->held);
    if (status != OPQ_OK) {
        opq_plan_release(*out_plan);
        return status;
    }
    e->held[e->held_count++] = *out_plan;
    return add_codes(e, *out_plan);
}

static opq_status add_read(adding *a, const opq_graph *graph)
{
    opq_plan *plan;
    a->weights = calloc((size_t)a->capture->cell_count + 1, sizeof *a->weights);
    a->windows = calloc((size_t)a->capture->leaf_count + 1, sizeof *a->windows);
    if (a->weights == NULL || a->windows == NULL)
        return out_of_memory();
    int number = a->e->held_count;
    OPQ_TRY(plan_call(a->e, graph, &plan));
    OPQ_TRY(find_weights(a));
    return write_call(a, plan, number, a->call->input_count);
}

opq_status opq_exporter_add(opq_exporter *e, opq_capturing *capturing, const opq_export_call *call)
{
    opq_graph *graph = NULL;
    opq_capture *capture = NULL;
    OPQ_TRY(opq_capture_read(capturing, call->results, call->result_count, &capture, &graph));
    adding a = {.e = e, .capturing = capturing, .capture = capture, .call = call};
    opq_status status = add_read(&a, graph);
    free(a.weights);
    free(a.windows);
    opq_graph_destroy(graph);
    opq_capture_drop(capture);
    return status;
}

/* ---- the file of weights */

static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

static int64_t place_weights(opq_exporter *e)
{
    int64_t at = 0;
    for (int i = 0; i < e->weight_count; i++) {
        weight *w = &e->weights[i];
        at = round_up(at, w->bytes >= PAGE ? PAGE : CONSTANT_ALIGN);
        w->offset = at;
        at += w->bytes;
    }
    for (int i = 0; i < e->packed_count; i++) {
        e->packed[i].offset = round_up(at, PAGE);
        at = e->packed[i].offset + e->packed[i].bytes;
    }
    return at;
}

typedef struct output {
    FILE *file;
    XXH3_state_t hash;
    int64_t at;
    bool failed;
} output;

static void put(output *out, const void *data, int64_t bytes)
{
    XXH3_128bits_update(&out->hash, data, (size_t)bytes);
    out->failed = out->failed || fwrite(data, 1, (size_t)bytes, out->file) != (size_t)bytes;
    out->at += bytes;
}

static void put_zeros(output *out, int64_t bytes)
{
    static const char zeros[PAGE];
    for (; bytes > 0; bytes -= PAGE)
        put(out, zeros, bytes < PAGE ? bytes : PAGE);
}

static opq_status put_packed(const opq_exporter *e, const packed *p, output *out)
{
    const window *w = &e->windows[p->window];
    const opq_value *value = e->weights[w->weight].value;
    opq_buffer *memory;
    OPQ_TRY(opq_pool_buffer(e->ctx->runtime.pool, (size_t)p->bytes, &memory));
    memset(memory->data, 0, (size_t)p->bytes);
    opq_status status =
        value ? opq_pack(e->ctx->runtime.gemm, &p->key, (const char *)value->buffer->data + w->first, memory->data)
              : OPQ_OK;
    put(out, memory->data, p->bytes);
    opq_buffer_release(memory);
    return status;
}

/* digest: 32 characters and their end. */
static opq_status write_weights(const opq_exporter *e, const char *path, char *digest)
{
    output out = {.file = fopen(path, "wb")};
    if (out.file == NULL)
        return opq_fail(OPQ_INVALID, "export: %s cannot be written", path);
    XXH3_128bits_reset(&out.hash);
    for (int i = 0; i < e->weight_count; i++) {
        const weight *w = &e->weights[i];
        put_zeros(&out, w->offset - out.at);
        if (w->value)
            put(&out, w->value->buffer->data, w->bytes);
        else
            put_zeros(&out, w->bytes);
    }
    opq_status status = OPQ_OK;
    for (int i = 0; i < e->packed_count && status == OPQ_OK; i++) {
        put_zeros(&out, e->packed[i].offset - out.at);
        status = put_packed(e, &e->packed[i], &out);
    }
    XXH128_hash_t hash = XXH3_128bits_digest(&out.hash);
    snprintf(digest, 33, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    put(&out, digest, 32);
    out.failed = fclose(out.file) != 0 || out.failed;
    OPQ_TRY(status);
    return out.failed ? opq_fail(OPQ_INVALID, "export: %s cannot be written", path) : OPQ_OK;
}

/* ---- the tables */

static void write_tensor(opq_text *t, const char *name, const opq_type *type)
{
    opq_text_add(t, "  {");
    opq_write_string(t, name);
    opq_text_add(t, ", \"%s\", %d, %d, ", opq_dtype_name((opq_dtype)type->dtype),
                 opq_dtype_bytes((opq_dtype)type->dtype), type->rank);
    opq_write_ints(t, type->size, type->rank);
    opq_text_add(t, "},\n");
}

static void write_info(opq_text *t, const opq_exporter *e, const opq_export_names *names)
{
    opq_text_add(t, "static const opaque_model_tensor inputs[] = {\n");
    for (int i = 0; i < names->input_count; i++)
        write_tensor(t, names->inputs[i].name, &names->inputs[i].type);
    opq_text_add(t, "  {0}};\nstatic const opaque_model_tensor outputs[] = {\n");
    for (int i = 0; i < names->output_count; i++)
        write_tensor(t, names->outputs[i].name, &names->outputs[i].type);
    opq_text_add(t, "  {0}};\nstatic const opaque_model_tensor weight_tensors[] = {\n");
    for (int i = 0; i < e->weight_count; i++)
        write_tensor(t, e->weights[i].name, &e->weights[i].type);
    opq_text_add(t, "  {0}};\nstatic const char *const sizes[] = {");
    for (int i = 0; i < e->size_count; i++) {
        opq_write_string(t, names->sizes[i]);
        opq_text_add(t, ", ");
    }
    opq_text_add(t,
                 "NULL};\nstatic const opaque_model_info info = {\"%s\", \"%s\", %d, %d, %d, %d, inputs, outputs, "
                 "weight_tensors, sizes};\n",
                 names->model, e->level, names->input_count, names->output_count, e->weight_count, e->size_count);
}

static void write_codes(opq_text *t, const opq_exporter *e)
{
    for (int i = 0; i < e->codes.count; i++)
        opq_text_add(
            t,
            "void kernel_%d(void *const *, const int64_t *, const opq_number *, int64_t, int64_t, void *, int64_t *);\n"
            "static const opq_code code_%d = {.fn = kernel_%d};\n",
            i, i, i);
}

static void write_memory(opq_text *t, const opq_exporter *e)
{
    opq_text_add(t, "static const opq_exported_weight weights[] = {");
    for (int i = 0; i < e->weight_count; i++)
        opq_text_add(t, "{%lld,%lld,%d},", (long long)e->weights[i].offset, (long long)e->weights[i].bytes,
                     e->weights[i].state);
    opq_text_add(t, "{0}};\nstatic const opq_exported_window windows[] = {");
    for (int i = 0; i < e->window_count; i++)
        opq_text_add(t, "{%d,%lld,%lld},", e->windows[i].weight, (long long)e->windows[i].first,
                     (long long)e->windows[i].bytes);
    opq_text_add(t, "{0}};\nstatic const opq_exported_packed packed[] = {");
    for (int i = 0; i < e->packed_count; i++) {
        const packed *p = &e->packed[i];
        opq_text_add(t, "{%d,{%d,%d,%d,%d,%lld,%lld,%lld,%lld,%lld},%lld,%lld},", p->window, (int)p->key.from,
                     (int)p->key.to, p->key.left, p->key.turned, (long long)p->key.rows, (long long)p->key.columns,
                     (long long)p->key.offset, (long long)p->key.row_stride, (long long)p->key.column_stride,
                     (long long)p->offset, (long long)p->bytes);
    }
    opq_text_add(t, "{0}};\n");
}

/* All tiles that products of these sums may need, whatever the sizes. */
static opq_status write_tiles(opq_text *t, const opq_exporter *e, int *out_count)
{
    static const opq_dtype dtypes[] = {OPQ_f32, OPQ_f64};
    opq_text rows = {0};
    opq_status status = OPQ_OK;
    *out_count = 0;
    for (int d = 0; d < 2; d++) {
        opq_gemm_tile_shape tile = {0};
        while (e->tiles[d] && status == OPQ_OK && opq_gemm_next_tile(&e->cpu, &tile)) {
            char symbol[48], path[PATH_MAX_BYTES];
            snprintf(symbol, sizeof symbol, "tile_%s_%d_%dx%d", opq_dtype_name(dtypes[d]), (int)tile.left, tile.rows,
                     tile.vectors);
            snprintf(path, sizeof path, "%s/%s.o", e->folder, symbol);
            status = opq_gemm_kernel_object(e->compiler, dtypes[d], &tile, symbol, path);
            opq_text_add(
                t,
                "void %s(const void *, int64_t, const void *, int64_t, int64_t, void *, int64_t, int64_t, int64_t, "
                "const void *, int64_t, const int64_t *, const int64_t *);\n",
                symbol);
            opq_text_add(&rows, "  {%d, {%d, %d, %d}, %s},\n", (int)dtypes[d], (int)tile.left, tile.rows, tile.vectors,
                         symbol);
            ++*out_count;
        }
    }
    opq_text_add(t, "static const opq_exported_tile tiles[] = {\n");
    opq_text_bytes(t, rows.data ? rows.data : "", rows.length);
    opq_text_add(t, "  {0}};\n");
    opq_text_drop(&rows);
    return status;
}

static opq_status write_tables(opq_exporter *e, const opq_export_names *names, const char *weights, opq_text *t)
{
    char digest[33];
    int tiles;
    int64_t bytes = place_weights(e);
    OPQ_TRY(write_weights(e, weights, digest));
    opq_text_add(t, "/* %s: what its calls run. Made by torch_opaque.export(). */\n#include \"exported/exported.h\"\n\n",
                 names->model);
    write_info(t, e, names);
    write_codes(t, e);
    OPQ_TRY(write_tiles(t, e, &tiles));
    write_memory(t, e);
    opq_text_bytes(t, e->plans.data ? e->plans.data : "", e->plans.length);
    opq_text_add(t, "static const opq_exported_call calls[] = {\n");
    opq_text_bytes(t, e->calls.data ? e->calls.data : "", e->calls.length);
    opq_text_add(
        t,
        "};\nconst opq_exported exported = {.info = &info, .weights = weights, .windows = windows, .window_count = %d, "
        ".packed = packed, .packed_count = %d, .calls = calls, .call_count = (int)(sizeof calls / sizeof *calls), "
        ".tiles = tiles, .tile_count = %d, "
        ".file_bytes = %lld, .digest = \"%s\"};\n",
        e->window_count, e->packed_count, tiles, (long long)bytes + 32, digest);
    return t->failed || e->plans.failed || e->calls.failed ? out_of_memory() : OPQ_OK;
}

opq_status opq_exporter_finish(opq_exporter *e, const opq_export_names *names, const char *weights)
{
    opq_text text = {0};
    char path[PATH_MAX_BYTES];
    snprintf(path, sizeof path, "%s/tables.c", e->folder);
    opq_status status = write_tables(e, names, weights, &text);
    FILE *file = status == OPQ_OK ? fopen(path, "w") : NULL;
    bool written = file && fwrite(text.data, 1, text.length, file) == text.length;
    if (file)
        written = fclose(file) == 0 && written;
    opq_text_drop(&text);
    return status != OPQ_OK || written ? status : opq_fail(OPQ_INVALID, "export: %s cannot be written", path);
}
