/* Writing runs down. What a folder holds, then which runs get one. */
#define XXH_INLINE_ALL
#include "opaque/repro.h"
#include "graph/npy.h"
#include "opaque/execution.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { PATH_BYTES = 4096 };

/* ---- one folder */

static opq_status text_write(const char *folder, const char *name, const char *text)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return opq_fail(OPQ_INVALID, "%s: %s", path, strerror(errno));
    bool written = fputs(text, file) >= 0;
    if (fclose(file) || !written)
        return opq_fail(OPQ_INVALID, "%s: cannot be written", path);
    return OPQ_OK;
}

/* Takes over `text`. */
static opq_status text_write_made(const char *folder, const char *name, opq_text *text)
{
    char *made = NULL;
    opq_status status = opq_text_take(text, &made);
    if (status == OPQ_OK)
        status = text_write(folder, name, made);
    free(made);
    return status;
}

static opq_status graph_write(const opq_graph *graph, const char *folder)
{
    char *text = NULL;
    OPQ_TRY(opq_graph_print(graph, &text));
    opq_status status = text_write(folder, "graph.ir", text);
    free(text);
    return status;
}

static void inputs_begin(opq_text *text)
{
    opq_text_add(text, "{\"schema\": \"opaque.inputs\", \"version\": 1, \"inputs\": [");
}

/* One line for each input: tools/inputs.c reads it line by line. */
static void inputs_add(opq_text *text, int index, const opq_type *type, const void *data)
{
    opq_text_add(text, "%s\n{\"input\": %d, ", index ? "," : "", index);
    opq_statistics_add(text, type, data);
    opq_text_bytes(text, "}", 1);
}

static opq_status inputs_end(opq_text *text, const char *folder)
{
    opq_text_add(text, "]}\n");
    return text_write_made(folder, "inputs.json", text);
}

static opq_status inputs_write(const opq_snapshot *s, const char *folder, bool values)
{
    opq_text text = {0};
    inputs_begin(&text);
    for (int i = 0; i < s->leaves.count; i++)
        inputs_add(&text, i, &s->leaves.items[i]->type, s->leaves.items[i]->buffer->data);
    opq_status status = inputs_end(&text, folder);
    for (int i = 0; i < s->leaves.count && values && status == OPQ_OK; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/input%d.npy", folder, i);
        status = opq_npy_write(path, &s->leaves.items[i]->type, s->leaves.items[i]->buffer->data);
    }
    return status;
}

static opq_status environment_write(opq_ctx *ctx, const char *folder, opq_fusion fusion)
{
    opq_text text = {0};
    opq_environment_add(&text, ctx);
    opq_text_add(&text, ",\n\"replay\": \"opq-opt --reduce .%s\"}\n", fusion == OPQ_FUSED ? "" : " --unfused");
    return text_write_made(folder, "environment.json", &text);
}

/* Without what the inputs are: a plan is made of a graph alone. */
static opq_status input_types_write(const opq_graph *graph, const char *folder)
{
    opq_text text = {0};
    int count = 0;
    inputs_begin(&text);
    for (opq_ref n = 0; n < graph->count; n++)
        if (opq_node_at(graph, n)->op == OPQ_OP_input) {
            opq_type type = opq_graph_type(graph, n);
            inputs_add(&text, count++, &type, NULL);
        }
    return inputs_end(&text, folder);
}

/* Of a plan without machine code: LLVM may be what fails. */
static opq_status plan_write(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, const char *folder)
{
    opq_program *program = NULL;
    char *text = NULL;
    OPQ_TRY(opq_program_plan(ctx, graph, fusion, &program));
    opq_status status = opq_program_print(program, "kernels", &text);
    if (status == OPQ_OK)
        status = text_write(folder, "kernels.txt", text);
    opq_program_release(program);
    free(text);
    return status;
}

static opq_status kernels_write(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, const char *folder)
{
    opq_status status = plan_write(ctx, graph, fusion, folder);
    if (status == OPQ_OK || status == OPQ_NO_MEMORY)
        return status;
    char message[1024];
    snprintf(message, sizeof message, "%s\n", opq_error());
    return text_write(folder, "error.txt", message); /* that there is no plan is what the folder is for */
}

/* s: of the run; NULL: there was none. */
static opq_status files_write(opq_ctx *ctx, const opq_graph *graph, const opq_snapshot *s, opq_fusion fusion,
                              const char *folder, bool values)
{
    OPQ_TRY(graph_write(graph, folder));
    OPQ_TRY(environment_write(ctx, folder, fusion));
    OPQ_TRY(s ? inputs_write(s, folder, values) : input_types_write(graph, folder));
    return kernels_write(ctx, graph, fusion, folder);
}

opq_status opq_snapshot_write(const opq_snapshot *s, const opq_graph *graph, opq_fusion fusion, const char *folder,
                              bool values)
{
    return files_write(s->ctx, graph, s, fusion, folder, values);
}

/* ---- which runs */

opq_status opq_repro_init(opq_repro *repro)
{
    const char *dir = getenv("OPAQUE_REPRO"), *values = getenv("OPAQUE_REPRO_INPUTS");
    *repro = (opq_repro){.off = dir && strcmp(dir, "off") == 0};
    repro->values = values && *values && strcmp(values, "0") != 0;
    if (dir == NULL || *dir == 0 || repro->off)
        return OPQ_OK;
    repro->dir = strdup(dir);
    return repro->dir ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
}

void opq_repro_drop(opq_repro *repro)
{
    for (int i = 0; i < repro->count; i++)
        free(repro->written[i].folder);
    free(repro->dir);
}

/* DIR/000, or the first number that nobody has: other processes write there as well. */
static opq_status folder_make_numbered(const opq_repro *repro, char *out, size_t size)
{
    enum { NUMBERS = 10000 };
    if (mkdir(repro->dir, 0777) && errno != EEXIST)
        return opq_fail(OPQ_INVALID, "%s: %s", repro->dir, strerror(errno));
    for (int number = repro->count; number < NUMBERS; number++) {
        snprintf(out, size, "%s/%03d", repro->dir, number);
        if (mkdir(out, 0777) == 0)
            return OPQ_OK;
        if (errno != EEXIST)
            break;
    }
    return opq_fail(OPQ_INVALID, "%s: %s", out, strerror(errno));
}

static opq_status folder_make_temporary(char *out, size_t size)
{
    const char *temporary = getenv("TMPDIR");
    snprintf(out, size, "%s/torch_opaque_XXXXXX", temporary && *temporary ? temporary : "/tmp");
    return mkdtemp(out) ? OPQ_OK : opq_fail(OPQ_INVALID, "%s: %s", out, strerror(errno));
}

static opq_status run_write(const opq_snapshot *s, const char *folder, bool values)
{
    opq_graph *graph = NULL;
    opq_fusion fusion = opq_modes_get() & OPQ_MODE_UNFUSED ? OPQ_UNFUSED : OPQ_FUSED;
    OPQ_TRY(opq_snapshot_graph(s, OPQ_OUTPUTS_stored, &graph));
    opq_status status = opq_snapshot_write(s, graph, fusion, folder, values);
    opq_graph_destroy(graph);
    return status;
}

static uint64_t key_of(const opq_execution *run) { return XXH3_64bits(run->snapshot->key, run->snapshot->key_bytes); }

static struct opq_written *find(opq_repro *repro, uint64_t key)
{
    for (int i = 0; i < repro->count; i++)
        if (repro->written[i].key == key)
            return &repro->written[i];
    return NULL;
}

/* NULL: there are enough, or no folder could be made, which is said once. */
static struct opq_written *add(opq_repro *repro, uint64_t key)
{
    char folder[PATH_BYTES - 64];
    if (repro->off || repro->count == (repro->dir ? OPQ_REPRO_MAX : OPQ_REPRO_FAILURES_MAX))
        return NULL;
    opq_status status =
        repro->dir ? folder_make_numbered(repro, folder, sizeof folder) : folder_make_temporary(folder, sizeof folder);
    char *copy = status == OPQ_OK ? strdup(folder) : NULL;
    if (copy == NULL) {
        fprintf(stderr, "[opaque] no run is written from now on: %s\n", status ? opq_error() : "out of memory");
        repro->off = true;
        return NULL;
    }
    struct opq_written *made = &repro->written[repro->count++];
    *made = (struct opq_written){key, copy};
    return made;
}

static void write_to(const opq_repro *repro, const opq_snapshot *s, const struct opq_written *to)
{
    if (run_write(s, to->folder, repro->values) != OPQ_OK)
        fprintf(stderr, "[opaque] the run is not written whole: %s\n", opq_error());
}

void opq_repro_mark(const char *folder, const char *name, bool present)
{
    char path[PATH_BYTES];
    if (present && text_write(folder, name, "") != OPQ_OK)
        fprintf(stderr, "[opaque] %s\n", opq_error());
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!present)
        unlink(path);
}

void opq_repro_begin(opq_repro *repro, const opq_execution *run)
{
    struct opq_written *to = find(repro, key_of(run));
    if (to == NULL && (to = add(repro, key_of(run))) != NULL)
        write_to(repro, run->given, to);
    repro->running = to;
    if (to)
        opq_repro_mark(to->folder, "running", true);
}

/* A graph that was recorded is one that can be compiled, or its recording should have been refused. */
static bool is_ours(bool planned, opq_status status)
{
    if (status == OPQ_OK || status == OPQ_NO_MEMORY)
        return false;
    return !planned || status == OPQ_INTERNAL || status == OPQ_CODEGEN;
}

static void error_write(opq_repro *repro, const struct opq_written *run, const char *message)
{
    opq_text text = {0};
    opq_text_add(&text, "%s\n", message);
    if (text_write_made(run->folder, "error.txt", &text) != OPQ_OK)
        fprintf(stderr, "[opaque] %s\n", opq_error());
    repro->failed = run;
}

/* Written again where the plan has a folder: its inputs were those of another run. */
static opq_status failure_write(opq_repro *repro, const opq_execution *run, opq_status status)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", opq_error());
    struct opq_written *to = find(repro, key_of(run));
    if (to == NULL)
        to = add(repro, key_of(run));
    if (to) {
        write_to(repro, run->given, to);
        error_write(repro, to, message);
        return opq_fail(status, "%s; to repeat it: %s, docs/bugs.md", message, to->folder);
    }
    return opq_fail(status, "%s", message);
}

opq_status opq_repro_end(opq_repro *repro, const opq_execution *run, bool planned, opq_status status)
{
    if (repro->running)
        opq_repro_mark(repro->running->folder, "running", false);
    repro->running = NULL;
    return is_ours(planned, status) && !repro->off ? failure_write(repro, run, status) : status;
}

const char *opq_repro_folder(opq_repro *repro, const opq_execution *run)
{
    const struct opq_written *to = repro->dir ? find(repro, key_of(run)) : NULL;
    return to ? to->folder : NULL;
}

const char *opq_repro_failed_apart(opq_ctx *ctx, const opq_job *job)
{
    opq_repro *repro = &ctx->repro;
    if (!is_ours(false, job->status) || repro->off)
        return NULL;
    uint64_t key = XXH3_64bits(job->key, job->key_bytes);
    const struct opq_written *run = find(repro, key);
    if (run == NULL) {
        run = add(repro, key);
        if (run && files_write(ctx, job->graph, NULL, OPQ_FUSED, run->folder, false) != OPQ_OK)
            fprintf(stderr, "[opaque] the plan is not written whole: %s\n", opq_error());
    }
    if (run)
        error_write(repro, run, job->message);
    return run ? run->folder : NULL;
}

opq_status opq_repro_last(opq_ctx *ctx, char **out_folder)
{
    pthread_mutex_lock(&ctx->run_lock);
    const struct opq_written *failed = ctx->repro.failed;
    *out_folder = strdup(failed ? failed->folder : "");
    pthread_mutex_unlock(&ctx->run_lock);
    return *out_folder ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
}
