/* opq-opt: reads text IR, runs passes, prints, evaluates, compiles, runs. No PyTorch, no BLAS.
 *
 *   opq-opt [FILE] [--passes=a,b] [--verify] [--print]    FILE "-" or none: standard input
 *   opq-opt [FILE] --emit=fused|json|kernels|schedule|c|schedule_c|llvm|asm
 *                                                         what the graph compiles to
 *   opq-opt [FILE] --target=T --emit=llvm|asm|obj [--out=DIR]
 *                                                         the kernels' code for avx2, avx512 or aarch64; obj: DIR/kernel_N.o, each with a
 *                                                         function of that name, which takes what opq_kernel_fn does (codegen_llvm/codegen.h)
 *   opq-opt [FILE] --schedule [--after=PASS]              how its kernels run: after all passes of schedules, or one, as reduce
 *   opq-opt [FILE] --compile                              says whether it compiles, and how long that took
 *   opq-opt [FILE] --run DIR | --eval-kernels DIR | --eval DIR
 *                                                         input0.npy, ... -> out0.npy, ... in DIR; FILE defaults to DIR/graph.ir
 *   opq-opt [FILE] --reduce DIR [--timeout=SECONDS]       a graph that --run gets wrong -> DIR/reduced, the fewest nodes that it gets wrong
 *   --unfused                                             --emit, --compile, --run, --eval-kernels, --reduce: grouping off
 *
 * --run compiles, --eval-kernels evaluates the loops of the kernels that --run compiles, --eval every node of the graph. An input that has
 * no file, but statistics in DIR/inputs.json, is random numbers that fit these. Exit status: 0, 1 for a failure (message on standard
 * error), 2 for usage.
 */
#include "graph/npy.h"
#include "inputs.h"
#include "reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ATTEMPT_SECONDS = 60 };

typedef struct options {
    const char *file, *passes, *emit, *run, *eval, *eval_kernels, *reduce, *timeout, *after, *target, *out;
    bool print, verify, compile;
    opq_fusion fusion;
} options;

static int usage(void)
{
    fputs("usage: opq-opt [FILE] [--passes=a,b] [--verify] [--print] [--unfused] [--compile]\n"
          "               [--emit=fused|json|kernels|schedule|c|schedule_c|llvm|asm] [--schedule [--after=PASS]]\n"
          "               [--target=avx2|avx512|aarch64 --emit=llvm|asm|obj [--out=DIR]]\n"
          "               [--run DIR | --eval-kernels DIR | --eval DIR] [--reduce DIR [--timeout=SECONDS]]\n",
          stderr);
    return 2;
}

static bool starts(const char *text, const char *prefix, const char **out_rest)
{
    size_t length = strlen(prefix);
    if (strncmp(text, prefix, length))
        return false;
    *out_rest = text + length;
    return true;
}

static bool options_read(int count, char **args, options *out)
{
    for (int i = 1; i < count; i++) {
        const char *arg = args[i];
        if (starts(arg, "--passes=", &out->passes) || starts(arg, "--emit=", &out->emit) ||
            starts(arg, "--run=", &out->run) || starts(arg, "--eval=", &out->eval) ||
            starts(arg, "--eval-kernels=", &out->eval_kernels) || starts(arg, "--reduce=", &out->reduce) ||
            starts(arg, "--timeout=", &out->timeout) || starts(arg, "--after=", &out->after) ||
            starts(arg, "--target=", &out->target) || starts(arg, "--out=", &out->out))
            continue;
        if (!strcmp(arg, "--print"))
            out->print = true;
        else if (!strcmp(arg, "--verify"))
            out->verify = true;
        else if (!strcmp(arg, "--compile"))
            out->compile = true;
        else if (!strcmp(arg, "--schedule"))
            out->emit = "schedule";
        else if (!strcmp(arg, "--unfused"))
            out->fusion = OPQ_UNFUSED;
        else if (!strcmp(arg, "--run") && i + 1 < count)
            out->run = args[++i];
        else if (!strcmp(arg, "--eval") && i + 1 < count)
            out->eval = args[++i];
        else if (!strcmp(arg, "--eval-kernels") && i + 1 < count)
            out->eval_kernels = args[++i];
        else if (!strcmp(arg, "--reduce") && i + 1 < count)
            out->reduce = args[++i];
        else if ((arg[0] != '-' || !arg[1]) && !out->file)
            out->file = arg;
        else
            return false;
    }
    int ways = (out->run != NULL) + (out->eval != NULL) + (out->eval_kernels != NULL) + (out->reduce != NULL);
    bool schedule = out->emit && !strcmp(out->emit, "schedule");
    bool object = out->emit && !strcmp(out->emit, "obj");
    if (out->target ? !out->emit || ways || out->compile || object != (out->out != NULL) : object || out->out)
        return false;
    if (ways > 1 || (out->timeout && atoi(out->timeout) < 1) || (out->after && !schedule))
        return false;
    if (!out->verify && !out->compile && !out->emit && ways == 0)
        out->print = true;
    return true;
}

/* ---- text in ----------------------------------------------------------------------------------------------------- */

/* All of `file`, malloc'd. */
static opq_status text_read(FILE *file, const char *name, char **out_text, size_t *out_length)
{
    size_t length = 0, room = 1 << 16;
    char *text = malloc(room);
    while (text) {
        length += fread(text + length, 1, room - length, file);
        if (length < room)
            break;
        char *larger = realloc(text, room *= 2);
        if (!larger)
            free(text);
        text = larger;
    }
    if (!text)
        return opq_fail(OPQ_NO_MEMORY, "%s: out of memory", name);
    if (ferror(file)) {
        free(text);
        return opq_fail(OPQ_INVALID, "%s: cannot be read", name);
    }
    *out_text = text;
    *out_length = length;
    return OPQ_OK;
}

static opq_status graph_read(const options *o, opq_graph **out_graph)
{
    const char *dir = o->run ? o->run : o->eval ? o->eval : o->eval_kernels ? o->eval_kernels : o->reduce;
    char path[4096];
    snprintf(path, sizeof path, "%s", o->file ? o->file : "-");
    if (!o->file && dir)
        snprintf(path, sizeof path, "%s/graph.ir", dir);
    bool standard = !strcmp(path, "-");
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file)
        return opq_fail(OPQ_INVALID, "%s: cannot be opened", path);
    char *text = NULL;
    size_t length = 0;
    opq_status status = text_read(file, path, &text, &length);
    if (!standard)
        fclose(file);
    if (!status)
        status = opq_graph_parse(text, length, out_graph);
    free(text);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct arrays {
    void **in, **out;
    int in_count, out_count;
} arrays;

static void arrays_drop(arrays *a)
{
    for (int i = 0; a->in && i < a->in_count; i++)
        free(a->in[i]);
    for (int i = 0; a->out && i < a->out_count; i++)
        free(a->out[i]);
    free(a->in);
    free(a->out);
}

/* Reads the inputs, makes room for the outputs. */
static opq_status arrays_make(const opq_graph *graph, const char *dir, arrays *out)
{
    out->in_count = opq_graph_input_count(graph);
    out->out_count = opq_graph_output_count(graph);
    out->in = calloc((size_t)out->in_count + 1, sizeof *out->in);
    out->out = calloc((size_t)out->out_count + 1, sizeof *out->out);
    if (!out->in || !out->out)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int i = 0; i < out->in_count; i++) {
        opq_type type = opq_graph_input_type(graph, i);
        OPQ_TRY(input_read(dir, i, &type, &out->in[i]));
    }
    for (int i = 0; i < out->out_count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        OPQ_TRY(array_make(&type, &out->out[i]));
    }
    return OPQ_OK;
}

static opq_status outputs_write(const opq_graph *graph, const char *dir, const arrays *a)
{
    for (int i = 0; i < a->out_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/out%d.npy", dir, i);
        opq_type type = opq_graph_output_type(graph, i);
        OPQ_TRY(opq_npy_write(path, &type, a->out[i]));
    }
    return OPQ_OK;
}

/* `program` NULL: the reference evaluator. */
static opq_status execute(opq_ctx *ctx, const opq_graph *graph, const opq_program *program, const char *dir)
{
    arrays a = {0};
    opq_status status = arrays_make(graph, dir, &a);
    const void *const *in = (const void *const *)a.in;
    if (!status)
        status = program ? opq_run(ctx, program, in, a.out) : opq_graph_eval(graph, in, a.out);
    if (!status)
        status = outputs_write(graph, dir, &a);
    arrays_drop(&a);
    return status;
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static opq_status compile(opq_ctx *ctx, const opq_graph *graph, const options *o, opq_program **out_program)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    OPQ_TRY(opq_compile(ctx, graph, o->fusion, out_program));
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (o->compile) {
        double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
        fprintf(stderr, "compiled in %.3f s\n", seconds);
    }
    return OPQ_OK;
}

static opq_status program_use(opq_ctx *ctx, const opq_graph *graph, const options *o)
{
    opq_program *program = NULL;
    opq_status status = compile(ctx, graph, o, &program);
    if (!status && o->emit) {
        char *text = NULL, stage[64];
        snprintf(stage, sizeof stage, "%s%s%.32s", o->emit, o->after ? ":" : "", o->after ? o->after : "");
        status = opq_program_print(program, stage, &text);
        if (!status)
            fputs(text, stdout);
        free(text);
    }
    if (!status && (o->run || o->eval_kernels))
        status = execute(ctx, graph, program, o->run ? o->run : o->eval_kernels);
    if (program)
        opq_program_release(program);
    return status;
}

/* For a processor on which it need not be able to run. */
static opq_status target_emit(opq_ctx *ctx, const opq_graph *graph, const options *o)
{
    opq_program *program = NULL;
    char *text = NULL;
    OPQ_TRY(opq_program_plan(ctx, graph, o->fusion, &program));
    opq_status status = o->out ? opq_program_objects(program, o->target, o->out)
                               : opq_program_print_for(program, o->target, o->emit, &text);
    if (text)
        fputs(text, stdout);
    free(text);
    opq_program_release(program);
    return status;
}

static opq_status graph_use(const opq_graph *graph, const options *o)
{
    if (o->verify)
        OPQ_TRY(opq_graph_verify(graph));
    if (o->print) {
        char *text;
        OPQ_TRY(opq_graph_print(graph, &text));
        fputs(text, stdout);
        free(text);
    }
    if (o->reduce)
        return reduce(graph, o->fusion, o->reduce, o->timeout ? atoi(o->timeout) : ATTEMPT_SECONDS);
    if (o->eval)
        return execute(NULL, graph, NULL, o->eval);
    if (!o->emit && !o->run && !o->eval_kernels && !o->compile)
        return OPQ_OK;
    if (o->eval_kernels)
        setenv("OPAQUE_EXECUTOR", "reference", 1);
    opq_ctx *ctx;
    OPQ_TRY(opq_ctx_create(NULL, &ctx));
    opq_status status = o->target ? target_emit(ctx, graph, o) : program_use(ctx, graph, o);
    opq_ctx_destroy(ctx);
    return status;
}

int main(int count, char **args)
{
    options o = {.fusion = OPQ_FUSED};
    if (!options_read(count, args, &o))
        return usage();
    opq_graph *graph = NULL, *changed = NULL;
    opq_status status = graph_read(&o, &graph);
    if (!status && o.passes) {
        status = opq_graph_passes(graph, o.passes, &changed);
        if (!status) {
            opq_graph_destroy(graph);
            graph = changed;
        }
    }
    if (!status)
        status = graph_use(graph, &o);
    if (graph)
        opq_graph_destroy(graph);
    if (status)
        fprintf(stderr, "opq-opt: %s\n", opq_error());
    return status != OPQ_OK;
}
