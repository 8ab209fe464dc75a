/* The files of an exported model: its weights, one after the other, and the tables that say what its calls run. */
#include "opaque/exporter.h"
#include "codegen_llvm/gemm_kernel.h"
#include "runtime/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PAGE = 4096, CONSTANT_ALIGN = 64 };

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "export: out of memory"); }

/* ---- weights */

static int64_t round_up(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

static int64_t place_weights(opq_exporter *e)
{
    int64_t at = 0;
    for (int i = 0; i < e->weight_count; i++) {
        opq_export_weight *w = &e->weights[i];
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

static opq_status put_packed(const opq_exporter *e, const opq_export_packed *p, output *out)
{
    const opq_export_window *w = &e->windows[p->window];
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
        const opq_export_weight *w = &e->weights[i];
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
        const opq_export_packed *p = &e->packed[i];
        opq_text_add(t, "{%d,{%d,%d,%d,%d,%lld,%lld,%lld,%lld,%lld},%lld,%lld},", p->window, (int)p->key.from,
                     (int)p->key.to, p->key.left, p->key.turned, (long long)p->key.rows, (long long)p->key.columns,
                     (long long)p->key.offset, (long long)p->key.row_stride, (long long)p->key.column_stride,
                     (long long)p->offset, (long long)p->bytes);
    }
    opq_text_add(t, "{0}};\n");
}

/* Tiles of the elements that products have. */
static void write_tiles(opq_text *t, const opq_exporter *e)
{
    opq_text_add(t, "static const opq_gemm_tiles *const tiles[OPQ_GEMM_ELEMENTS] = {");
    for (int element = 0; element < OPQ_GEMM_ELEMENTS; element++)
        opq_text_add(t, e->tiles[element] ? "&opq_gemm_tiles_%s_%s," : "NULL,", e->cpu.target->name,
                     opq_gemm_element_name((opq_gemm_element)element));
    opq_text_add(t, "};\n");
}

/* The file of numbers becomes a part of the library as it is: initialisers of some millions take a compiler minutes. */
static opq_status write_numbers(opq_text *t, const opq_exporter *e)
{
    char path[OPQ_EXPORT_PATH_MAX];
    opq_stream stream = {0};
    int64_t first = 0;
    opq_status status = OPQ_OK;
    snprintf(path, sizeof path, "%s/numbers", e->folder);
    opq_text_add(t, "static const int64_t plans[] = {");
    for (int i = 0; i < e->held_count && status == OPQ_OK; i++) {
        opq_text_add(t, "%lld,", (long long)stream.count);
        status = opq_step_kinds_put(&e->kinds, first, e->held[i], &stream);
        first += e->held[i]->step_count;
    }
    opq_text_add(t,
                 "0};\n__asm__(\".section .rodata\\n.balign 4\\n.hidden opaque_numbers\\nopaque_numbers:\\n"
                 ".incbin \\\"%s\\\"\\n.previous\");\nextern const int32_t opaque_numbers[];\n",
                 path);
    FILE *file = status == OPQ_OK ? fopen(path, "wb") : NULL;
    size_t count = (size_t)stream.count;
    bool written = file && fwrite(stream.data ? stream.data : (int32_t *)"", sizeof *stream.data, count, file) == count;
    if (file)
        written = fclose(file) == 0 && written;
    free(stream.data);
    return status != OPQ_OK || written ? status : opq_fail(OPQ_INVALID, "export: %s cannot be written", path);
}

static opq_status write_tables(opq_exporter *e, const opq_export_names *names, const char *weights, opq_text *t)
{
    char digest[33];
    int64_t bytes = place_weights(e);
    OPQ_TRY(write_weights(e, weights, digest));
    opq_text_add(t, "/* %s: what its calls run. Made by torch_opaque.export(). */\n#include \"exported/exported.h\"\n\n",
                 names->model);
    write_info(t, e, names);
    write_codes(t, e);
    write_tiles(t, e);
    write_memory(t, e);
    opq_step_kinds_write(&e->kinds, &e->codes, t);
    OPQ_TRY(write_numbers(t, e));
    opq_text_add(t, "static const opq_exported_call calls[] = {\n");
    opq_text_bytes(t, e->calls.data ? e->calls.data : "", e->calls.length);
    opq_text_add(
        t,
        "};\nconst opq_exported exported = {.info = &info, .weights = weights, .windows = windows, .window_count = %d, "
        ".packed = packed, .packed_count = %d, .steps = steps, .plans = plans, .numbers = opaque_numbers, .calls = "
        "calls, .call_count = (int)(sizeof calls / sizeof *calls), "
        ".tiles = tiles, "
        ".seed = %lluULL, .offset = %lluULL, .file_bytes = %lld, .digest = \"%s\"};\n",
        e->window_count, e->packed_count, (unsigned long long)e->seed, (unsigned long long)e->offset,
        (long long)bytes + 32, digest);
    return t->failed || e->calls.failed ? out_of_memory() : OPQ_OK;
}

opq_status opq_exporter_finish(opq_exporter *e, const opq_export_names *names, const char *weights)
{
    opq_text text = {0};
    char path[OPQ_EXPORT_PATH_MAX];
    snprintf(path, sizeof path, "%s/tables.c", e->folder);
    opq_status status = write_tables(e, names, weights, &text);
    FILE *file = status == OPQ_OK ? fopen(path, "w") : NULL;
    bool written = file && fwrite(text.data, 1, text.length, file) == text.length;
    if (file)
        written = fclose(file) == 0 && written;
    opq_text_drop(&text);
    return status != OPQ_OK || written ? status : opq_fail(OPQ_INVALID, "export: %s cannot be written", path);
}
