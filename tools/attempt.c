/* The child compiles, runs, compares and leaves what it found in memory that it shares with its parent. */
#define _GNU_SOURCE
#include "attempt.h"

#include "inputs.h"
#include "opaque/scalar.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- comparing */

static bool is_half(int dtype) { return dtype == OPQ_f16 || dtype == OPQ_bf16; }

static bool computes_in_halves(const opq_graph *graph)
{
    for (opq_ref n = 0; n < graph->count; n++)
        if (is_half(opq_node_at(graph, n)->type.dtype) && opq_node_class(opq_node_at(graph, n)) != OPQ_CLASS_INPUT)
            return true;
    return false;
}

static double real_at(opq_dtype dtype, const void *data, int64_t i)
{
    switch ((int)dtype) {
    case OPQ_f16: return (double)opq_f16_to_f32(((const uint16_t *)data)[i]);
    case OPQ_bf16: return (double)opq_bf16_to_f32(((const uint16_t *)data)[i]);
    case OPQ_f32: return (double)((const float *)data)[i];
    case OPQ_f64: return ((const double *)data)[i];
    }
    return 0;
}

/* A sixteenth of the largest number in it: more than halves lose by rounding in a few ops. */
static double allowed(opq_dtype dtype, const void *expected, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = fabs(real_at(dtype, expected, i));
        largest = isfinite(x) && x > largest ? x : largest;
    }
    return largest / 16;
}

/* The first element that differs, -1: none. */
static int64_t difference(const opq_type *type, const void *got, const void *expected, bool halves)
{
    opq_dtype dtype = (opq_dtype)type->dtype;
    bool real = opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT;
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    int64_t count = opq_type_count(type);
    if (count == 0 || (halves && !real) || memcmp(got, expected, bytes * (size_t)count) == 0)
        return -1;
    double limit = halves ? allowed(dtype, expected, count) : 0;
    for (int64_t i = 0; i < count; i++) {
        if (memcmp((const char *)got + bytes * (size_t)i, (const char *)expected + bytes * (size_t)i, bytes) == 0)
            continue;
        double x = real_at(dtype, got, i), y = real_at(dtype, expected, i);
        bool near = halves && (!isfinite(x) || !isfinite(y) || fabs(x - y) <= limit);
        if (!near && !(real && isnan(x) && isnan(y)))
            return i;
    }
    return -1;
}

static uint64_t bits_at(opq_dtype dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    memcpy(&bits, (const char *)data + bytes * (size_t)i, bytes < sizeof bits ? bytes : sizeof bits);
    return bits;
}

static void compare(const opq_graph *graph, void *const *got, void *const *expected, attempt *a)
{
    bool halves = computes_in_halves(graph);
    for (int i = 0; i < opq_graph_output_count(graph); i++) {
        opq_type type = opq_graph_output_type(graph, i);
        int64_t at = difference(&type, got[i], expected[i], halves);
        if (at < 0)
            continue;
        a->result = ATTEMPT_differs;
        a->output = i;
        a->element = at;
        a->got = bits_at((opq_dtype)type.dtype, got[i], at);
        a->expected = bits_at((opq_dtype)type.dtype, expected[i], at);
        return;
    }
}

/* ---- the child. What it allocates goes with it. */

static opq_status run(const opq_graph *graph, opq_fusion fusion, void *const *inputs, void ***out_outputs)
{
    opq_ctx *ctx;
    opq_program *program;
    void **outputs = calloc((size_t)opq_graph_output_count(graph) + 1, sizeof *outputs);
    if (outputs == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int i = 0; i < opq_graph_output_count(graph); i++) {
        opq_type type = opq_graph_output_type(graph, i);
        OPQ_TRY(array_make(&type, &outputs[i]));
    }
    OPQ_TRY(opq_ctx_create(NULL, &ctx));
    OPQ_TRY(opq_compile(ctx, graph, fusion, &program));
    OPQ_TRY(opq_run(ctx, program, (const void *const *)inputs, outputs));
    *out_outputs = outputs;
    return OPQ_OK;
}

/* What a crash prints is of no use to who sees it forty times. */
static void be_silent(void)
{
    int nothing = open("/dev/null", O_WRONLY);
    if (nothing >= 0)
        dup2(nothing, STDERR_FILENO);
}

static void child(const opq_graph *graph, opq_fusion fusion, void *const *inputs, void *const *expected, attempt *a)
{
    void **outputs = NULL;
    be_silent();
    a->status = run(graph, fusion, inputs, &outputs);
    if (a->status == OPQ_OK) {
        a->result = ATTEMPT_agrees;
        compare(graph, outputs, expected, a);
    } else {
        a->result = ATTEMPT_fails;
        snprintf(a->message, sizeof a->message, "%s", opq_error());
    }
}

/* ---- the parent */

opq_status attempt_run(const opq_graph *graph, opq_fusion fusion, void *const *inputs, void *const *expected,
                       int seconds, attempt *out_attempt)
{
    attempt *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    fflush(NULL);
    pid_t process = fork();
    if (process == 0) {
        alarm((unsigned)seconds);
        child(graph, fusion, inputs, expected, shared);
        _exit(0);
    }
    int status = 0;
    pid_t ended = process;
    while (process > 0 && (ended = waitpid(process, &status, 0)) < 0 && errno == EINTR)
        continue;
    *out_attempt = *shared;
    munmap(shared, sizeof *shared);
    if (process < 0 || ended < 0)
        return opq_fail(OPQ_INTERNAL, "no process could be made: %s", strerror(errno));
    if (WIFSIGNALED(status)) {
        out_attempt->signal = WTERMSIG(status);
        out_attempt->result = out_attempt->signal == SIGALRM ? ATTEMPT_hangs : ATTEMPT_crashes;
    } else if (WEXITSTATUS(status) != 0) /* a sanitizer, or something in LLVM, ended it */
        out_attempt->result = ATTEMPT_crashes;
    return OPQ_OK;
}

bool attempt_same(const attempt *a, const attempt *b)
{
    return a->result == b->result && (a->result != ATTEMPT_fails || a->status == b->status);
}

void attempt_print(const attempt *a, char *out, size_t size)
{
    switch (a->result) {
    case ATTEMPT_agrees: snprintf(out, size, "agrees"); break;
    case ATTEMPT_differs:
        snprintf(out, size, "differs: output %d, element %lld is 0x%llx, the reference evaluator has 0x%llx", a->output,
                 (long long)a->element, (unsigned long long)a->got, (unsigned long long)a->expected);
        break;
    case ATTEMPT_fails: snprintf(out, size, "fails: %s", a->message); break;
    case ATTEMPT_crashes:
        snprintf(out, size, "crashes: %s", a->signal ? strsignal(a->signal) : "the process ended");
        break;
    case ATTEMPT_hangs: snprintf(out, size, "hangs"); break;
    }
}
