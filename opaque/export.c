/* Exported models: see export.h. Calls are planned like any graph; their kernels become objects. export_files.c has the rest. */
#include "opaque/capture_plan.h"
#include "opaque/capturing.h"
#include "opaque/exporter.h"
#include "codegen_llvm/codegen.h"
#include "runtime/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "export: out of memory"); }

opq_status opq_exporter_open(opq_ctx *ctx, const char *level, const char *folder, int size_count,
                             opq_exporter **out_exporter)
{
    opq_cpu cpu;
    if (level == NULL)
        level = opq_jit_cpu(ctx->runtime.jit)->target->name;
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
    opq_step_kinds_drop(&e->kinds);
    opq_compiler_destroy(e->compiler);
    free(e->folder);
    free(e);
}

/* ---- kernels */

static void need_tiles(opq_exporter *e, const opq_matmul_step *matmul)
{
    bool bytes = matmul->matrix[0].dtype == OPQ_i8 || matmul->matrix[1].dtype == OPQ_i8;
    if (matmul->dtype == OPQ_i32) {
        e->tiles[opq_cpu_has(&e->cpu, OPQ_LEAF_quads) ? OPQ_GEMM_QUADS : OPQ_GEMM_SHORTS] = true;
        return;
    }
    e->tiles[matmul->dtype == OPQ_f64 ? OPQ_GEMM_F64 : OPQ_GEMM_F32] = true;
    e->tiles[OPQ_GEMM_WIDENED] = e->tiles[OPQ_GEMM_WIDENED] || bytes; /* either operand may become the right one */
}

static opq_status add_code(opq_exporter *e, const opq_step *step)
{
    char symbol[32], path[OPQ_EXPORT_PATH_MAX];
    if (step->matmul)
        need_tiles(e, step->matmul);
    if (step->code == NULL || opq_code_list_find(&e->codes, step->code) >= 0)
        return OPQ_OK;
    OPQ_TRY(opq_export_grow((void **)&e->codes.items, e->codes.count, sizeof *e->codes.items));
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
            e->tiles[step->routine->type.dtype == OPQ_f64 ? OPQ_GEMM_F64 : OPQ_GEMM_F32] = true;
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
    OPQ_TRY(opq_export_grow((void **)&e->weights, e->weight_count, sizeof *e->weights));
    opq_export_weight *w = &e->weights[e->weight_count];
    *w = (opq_export_weight){.name = strdup(name), .type = *type, .value = value, .bytes = bytes};
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
        const opq_export_weight *w = &e->weights[i];
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
    OPQ_TRY(opq_export_grow((void **)&e->windows, e->window_count, sizeof *e->windows));
    e->windows[e->window_count] = (opq_export_window){weight, first, bytes};
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

static opq_status write_numbers(adding *a)
{
    const opq_capture *c = a->capture;
    opq_text *t = &a->e->calls;
    int draws = 0;
    opq_text_add(t, ".number_count = %d, .numbers = (opq_number[]){", c->number_count);
    for (int i = 0; i < c->number_count; i++)
        opq_text_add(t, "{%lldLL},", (long long)c->numbers[i].value.i);
    opq_text_add(t, "{0}}, .draws = (opq_exported_draw[]){");
    for (int i = 0; i < c->number_count; i++) {
        const opq_capture_number *n = &c->numbers[i];
        if (n->id < 0 || a->call->numbers[n->id].kind == OPQ_EXPORTED_constant)
            continue;
        if (n->count > 1)
            return opq_fail(OPQ_UNSUPPORTED, "it converts the state of a random generator to another dtype");
        opq_text_add(t, "{%d,%d,%lld},", i, a->call->numbers[n->id].kind == OPQ_EXPORTED_seed,
                     (long long)a->call->numbers[n->id].further);
        draws++;
    }
    opq_text_add(t, "{0}}, .draw_count = %d, .drawn = %lld", draws, (long long)a->call->drawn);
    a->e->seed = a->call->seed;
    a->e->offset = a->call->offset;
    return OPQ_OK;
}

/* Copies of weights that products read packed are made now, if this processor can; else runs make them. */
static opq_status add_packed(adding *a, const opq_plan *plan, const opq_step *step, int operand)
{
    opq_exporter *e = a->e;
    opq_export_packed p = {0};
    p.bytes = opq_step_packed(e->ctx->runtime.gemm, plan, step, operand, &p.key);
    unsigned differ = e->cpu.leaves ^ opq_jit_cpu(e->ctx->runtime.jit)->leaves;
    if ((p.key.to == OPQ_bf16 && (differ & OPQ_LEAF_pairs)) || (p.key.to == OPQ_f16 && (differ & OPQ_LEAF_tiles)) ||
        (p.key.to == OPQ_i32 && (differ & (OPQ_LEAF_quads | OPQ_LEAF_tiles))))
        return OPQ_OK;
    if (p.bytes == 0 || opq_step_reads_once(plan, step, operand))
        return OPQ_OK;
    p.window = a->windows[plan->storage[step->buffers[step->matmul->contract.operand[operand].buffer]].index];
    for (int i = 0; i < e->packed_count; i++)
        if (e->packed[i].window == p.window && opq_packed_key_same(&e->packed[i].key, &p.key))
            return OPQ_OK;
    if (p.window < 0)
        return OPQ_OK;
    OPQ_TRY(opq_export_grow((void **)&e->packed, e->packed_count, sizeof *e->packed));
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
        for (int p = step->block ? 1 : 0; p < step->part_count; p++) /* part 0 of a block is its rows */
            if (!step->block || !opq_block_product_sums(step->block, p - 1))
                OPQ_TRY(add_packed(a, plan, &step->parts[p], 1));
    }
    return OPQ_OK;
}

static bool packs_here(const opq_exporter *e) { return e->cpu.target == opq_jit_cpu(e->ctx->runtime.jit)->target; }

static opq_status write_call(adding *a, const opq_plan *plan, int number, int input_count)
{
    opq_text *t = &a->e->calls;
    opq_text_add(t, "  {.plan = %d, .sizes = ", plan ? number : -1);
    opq_write_ints(t, a->call->sizes, a->e->size_count);
    opq_text_add(t, ",\n    ");
    OPQ_TRY(write_leaves(a));
    write_sinks(a);
    OPQ_TRY(write_numbers(a));
    opq_text_add(t, ",\n    .input_bytes = (int64_t[]){");
    for (int i = 0; i < input_count; i++)
        opq_text_add(t, "%lld,", (long long)opq_type_bytes(&a->call->inputs[i]));
    opq_text_add(t, "0}, .output_sizes = (int64_t[]){");
    for (int i = 0; i < a->call->result_count; i++)
        for (int d = 0; d < a->call->outputs[i].rank; d++)
            opq_text_add(t, "%lld,", (long long)a->call->outputs[i].size[d]);
    opq_text_add(t, "0}},\n");
    if (plan && packs_here(a->e))
        OPQ_TRY(add_all_packed(a, plan));
    return OPQ_OK;
}

/* Of the graph, as the device would plan it. */
static opq_status plan_call(opq_exporter *e, const opq_graph *graph, opq_plan **out_plan)
{
    *out_plan = NULL;
    if (graph == NULL)
        return OPQ_OK;
    OPQ_TRY(opq_plan_compile(&e->ctx->runtime, graph, OPQ_FUSED, out_plan));
    opq_status status = opq_export_grow((void **)&e->held, e->held_count, sizeof *e->held);
    if (status != OPQ_OK) {
        opq_plan_release(*out_plan);
        return status;
    }
    e->held[e->held_count++] = *out_plan;
    OPQ_TRY(add_codes(e, *out_plan));
    return opq_step_kinds_add(&e->kinds, *out_plan, &e->codes);
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
