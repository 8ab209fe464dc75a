/* Kernels and their schedules as C: what the system's compiler makes of them gives the bits of the loops evaluated and of the machine code, for
 * the golden graphs and for random ones, fused and unfused.
 *
 * All kernels of all graphs are printed, each once, compiled together and loaded. Then every program runs four times: with a context
 * that compiles, with one that evaluates loops, and with two that call the C, of kernels and of schedules. Besides there is a graph per dtype
 * with every row that has a function, reductions of many blocks, and graphs that fail.
 *
 *   OPAQUE_TEST_FULL=1    fifteen times as many random graphs
 */
#include "golden.h"
#include "random_graph.h"
#include "rows.h"

#include "codegen_c/codegen_c.h"
#include "graph/eval.h"
#include "opaque/context.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

enum { GRAPHS = 40, FULL_GRAPHS = 600, CASES_MAX = 4096, FILES_MAX = 16 };

typedef void kernel_function(void *const *buffers, const int64_t *dims, const opq_number *scalars, int64_t error[2]);

/* ---- every kernel once */

typedef struct kernel {
    char *text; /* under one name for all, to be found by */
    kernel_function *function;
} kernel;

static struct {
    kernel *items;
    int count, capacity;
} kernels;

typedef opq_status printer(const opq_loops *loops, const char *name, opq_text *out_text);

static char *printed(const opq_loops *loops, printer *print)
{
    opq_text text = {0};
    char *result = NULL;
    expect_ok(print(loops, "kernel", &text));
    expect_ok(opq_text_take(&text, &result));
    return result;
}

/* Its number; a new one if it was not seen yet. What folds nothing is the same as a schedule. */
static int kernel_of(const opq_loops *loops, printer *print)
{
    char *text = printed(loops, print);
    for (int i = 0; i < kernels.count; i++)
        if (strcmp(kernels.items[i].text, text) == 0) {
            free(text);
            return i;
        }
    if (kernels.count == kernels.capacity) {
        kernels.capacity = 2 * kernels.capacity + 64;
        kernels.items = realloc(kernels.items, (size_t)kernels.capacity * sizeof *kernels.items);
        assert_non_null(kernels.items);
    }
    kernels.items[kernels.count] = (kernel){.text = text};
    return kernels.count++;
}

/* ---- cases */

typedef struct test_case {
    opq_graph *graph;
    void *const *inputs;
    opq_fusion fusion;
    opq_program *program; /* of the context that calls the C */
} test_case;

static test_case cases[CASES_MAX];
static int case_count, golden_count, rows_count, failing_count; /* cases up to the last of a kind */
static opq_ctx *compiling, *evaluating, *calling, *scheduling;

static opq_status call_c(const opq_loops *loops, void *const *buffers, const int64_t *dims, const opq_number *scalars,
                         int64_t out_error[2])
{
    kernels.items[kernel_of(loops, opq_c_kernel)].function(buffers, dims, scalars, out_error);
    return OPQ_OK;
}

/* Columns of every second kernel the other way than they are compiled: row by row, or in strips. */
static opq_status other_schedule(const opq_loops *loops, const char *name, opq_text *out_text)
{
    opq_loops other = *loops;
    other.by_rows = loops->by_rows != (loops->stmt_count & 1);
    return opq_c_schedule(&other, name, out_text);
}

static opq_status call_schedule(const opq_loops *loops, void *const *buffers, const int64_t *dims,
                                const opq_number *scalars, int64_t out_error[2])
{
    kernels.items[kernel_of(loops, other_schedule)].function(buffers, dims, scalars, out_error);
    return OPQ_OK;
}

static void add_cases(opq_graph *graph, void *const *inputs)
{
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        assert_true(case_count < CASES_MAX);
        test_case *c = &cases[case_count++];
        *c = (test_case){.graph = graph, .inputs = inputs, .fusion = (opq_fusion)fusion};
        expect_ok(opq_compile(calling, graph, c->fusion, &c->program));
        const opq_plan *plan = (const opq_plan *)c->program;
        for (int s = 0; s < plan->step_count; s++) {
            if (plan->steps[s].kind == OPQ_KERNEL_extern || plan->steps[s].kind == OPQ_KERNEL_routine)
                continue;
            kernel_of(&plan->steps[s].loops, opq_c_kernel);
            kernel_of(&plan->steps[s].loops, other_schedule);
        }
    }
}

static void add_golden(const char *name, opq_graph *graph, arrays *inputs)
{
    (void)name;
    add_cases(graph, inputs->data);
}

static void add_rows(void)
{
    for (int dtype = 0; dtype < OPQ_DTYPE_COUNT; dtype++) {
        arrays inputs;
        opq_graph *graph = rows_graph((opq_dtype)dtype, &inputs);
        if (graph)
            add_cases(graph, inputs.data);
    }
}

/* ---- from text. Every input is 0, 1, 2, .. */

/* Bytes that are moved, also to where nothing was. */
static const char *const moving[] = {
    "graph @raw {\n  %0 = input raw128[4]\n  %1 = undefined raw128[]\n  %2 = expand raw128[3] %1\n"
    "  %3 = concat raw128[7] %0, %2 {axis=0}\n  output %3\n}\n",
    "graph @slice {\n  %0 = input raw16[4,3]\n  %1 = slice raw16[2,2] %0 {start=[1,0], step=[2,2]}\n  output %1\n}\n",
};

/* Of blocks of blocks, along one axis and along two that are one sequence, of numbers whose sums are rounded. */
static const char *const reducing[] = {
    "graph @lanes {\n  %0 = input f32[2,9001]\n  %1 = sum f32[2,1] %0 {axes=[1], tree=lanes}\n"
    "  %2 = argmax i64[2,1] %0 {axes=[1], tree=lanes}\n  output %1, %2\n}\n",
    "graph @sequence {\n  %0 = input f32[70,2,130]\n  %1 = sin f32[70,2,130] %0\n"
    "  %2 = sum f32[1,2,1] %1 {axes=[0,2], tree=lanes}\n  %3 = argmin i64[1,2,1] %1 {axes=[0,2], tree=lanes}\n"
    "  output %2, %3\n}\n",
    "graph @blocks {\n  %0 = input f16[3,2,9001]\n  %1 = sin f16[3,2,9001] %0\n"
    "  %2 = prod f16[1,2,1] %1 {axes=[0,2], tree=lanes}\n  %3 = sum f16[1,2,1] %1 {axes=[0,2], tree=lanes}\n"
    "  output %2, %3\n}\n",
    "graph @column {\n  %0 = input f32[1100,3]\n  %1 = sin f32[1100,3] %0\n"
    "  %2 = sum f32[1,3] %1 {axes=[0], tree=column}\n  %3 = argmax i64[1,3] %1 {axes=[0], tree=column}\n"
    "  output %2, %3\n}\n",
};

static const char *const failing[] = {
    "graph @raw {\n  %0 = input raw128[4]\n  %1 = input i64[6]\n  %2 = gather raw128[6] %0, %1 {axis=0}\n  output "
    "%2\n}\n",
    "graph @index {\n  %0 = input f32[2,3]\n  %1 = input i64[5]\n  %2 = index_select f32[5,3] %0, %1 {axis=0}\n  "
    "output %2\n}\n",
    "graph @gather {\n  %0 = input i8[4]\n  %1 = input i64[9]\n  %2 = neg i64[9] %1\n  %3 = gather i8[9] %0, %2 "
    "{axis=0}\n"
    "  output %3\n}\n",
    "graph @add {\n  %0 = input bf16[4]\n  %1 = input i64[9]\n  %2 = input bf16[9]\n"
    "  %3 = scatter_add bf16[4] %0, %1, %2 {axis=0}\n  output %3\n}\n",
    "graph @zero {\n  %0 = input i32[9]\n  %1 = input i32[9]\n  %2 = remainder i32[9] %0, %1\n  %3 = div_floor i32[9] "
    "%2, %1\n"
    "  output %3\n}\n",
};

static void add_texts(const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        opq_graph *graph = graph_of_text(texts[i]);
        arrays in = arrays_make(opq_graph_input_count(graph));
        for (int k = 0; k < in.count; k++) {
            opq_type type = opq_graph_input_type(graph, k);
            bool raw = opq_dtype_kind_of((opq_dtype)type.dtype) == OPQ_KIND_RAW;
            in.data[k] = array_make(&type);
            for (int64_t n = 0; n < (raw ? opq_type_bytes(&type) : opq_type_count(&type)); n++)
                opq_eval_store(raw ? OPQ_u8 : (opq_dtype)type.dtype, in.data[k], n,
                               raw ? (opq_number){.i = n}
                                   : opq_eval_cast(OPQ_i64, (opq_dtype)type.dtype, (opq_number){.i = n}));
        }
        add_cases(graph, in.data);
    }
}

static void add_random(void)
{
    int count = getenv("OPAQUE_TEST_FULL") ? FULL_GRAPHS : test_sample(GRAPHS);
    for (int seed = 1; seed <= count; seed++) {
        random_graph *r = malloc(sizeof *r);
        assert_non_null(r);
        *r = random_graph_make((uint64_t)seed);
        add_cases(r->graph, r->inputs);
    }
}

/* ---- the C, in as many files as there are processors */

static void print_file(const char *path, int first, int step)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    opq_text text = {0};
    opq_c_begin(&text);
    fputs(text.data, file);
    opq_text_drop(&text);
    for (int i = first; i < kernels.count; i += step) {
        const char *behind_name = strstr(kernels.items[i].text, "void kernel(") + strlen("void kernel");
        fprintf(file, "\nvoid kernel_%d%s", i, behind_name);
    }
    fclose(file);
}

static void load(const char *path, int first, int step)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fail_msg("%s", dlerror());
    for (int i = first; i < kernels.count; i += step) {
        char name[32];
        snprintf(name, sizeof name, "kernel_%d", i);
        kernels.items[i].function = (kernel_function *)(uintptr_t)dlsym(library, name);
        assert_non_null(kernels.items[i].function);
    }
}

static void compile_kernels(void)
{
    char folder[] = "/tmp/opaque_c_XXXXXX", command[8192] = "", path[64];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int files = processors < 1 ? 1 : processors > FILES_MAX ? FILES_MAX : (int)processors;
    assert_non_null(mkdtemp(folder));
    for (int f = 0; f < files; f++) {
        snprintf(path, sizeof path, "%s/%d.c", folder, f);
        print_file(path, f, files);
        size_t length = strlen(command);
        snprintf(command + length, sizeof command - length,
                 OPAQUE_CC " -O2 -ffp-contract=off -fopenmp-simd -Wall -Wextra -Werror -shared -fPIC -I " OPAQUE_INCLUDE
                           " -o %s/%d.so %s/%d.c -lm & ",
                 folder, f, folder, f);
    }
    strcat(command, "wait");
    assert_int_equal(system(command), 0);
    for (int f = 0; f < files; f++) {
        snprintf(path, sizeof path, "%s/%d.so", folder, f);
        load(path, f, files);
    }
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- tests */

static int setup(void **state)
{
    (void)state;
    expect_ok(opq_ctx_create(NULL, &compiling));
    expect_ok(opq_ctx_create(NULL, &evaluating));
    expect_ok(opq_ctx_create(NULL, &calling));
    expect_ok(opq_ctx_create(NULL, &scheduling));
    evaluating->runtime.run_loops = opq_loops_eval;
    calling->runtime.run_loops = call_c;
    scheduling->runtime.run_loops = call_schedule;
    golden_each(add_golden);
    golden_count = case_count;
    add_rows();
    add_texts(moving, COUNT(moving));
    add_texts(reducing, COUNT(reducing));
    rows_count = case_count;
    add_texts(failing, COUNT(failing));
    failing_count = case_count;
    add_random();
    compile_kernels();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < case_count; i++) {
        opq_program_release(cases[i].program);
        if (cases[i].fusion == OPQ_UNFUSED)
            opq_graph_destroy(cases[i].graph);
    }
    for (int i = 0; i < kernels.count; i++)
        free(kernels.items[i].text);
    free(kernels.items);
    opq_ctx_destroy(compiling);
    opq_ctx_destroy(evaluating);
    opq_ctx_destroy(calling);
    opq_ctx_destroy(scheduling);
    return 0;
}

static arrays run(opq_ctx *ctx, const test_case *c, const opq_program *program)
{
    arrays out = arrays_of_outputs(c->graph);
    expect_ok(opq_run(ctx, program, (const void *const *)c->inputs, out.data));
    return out;
}

static arrays compiled_and_run(opq_ctx *ctx, const test_case *c)
{
    opq_program *program = NULL;
    expect_ok(opq_compile(ctx, c->graph, c->fusion, &program));
    arrays out = run(ctx, c, program);
    opq_program_release(program);
    return out;
}

static void expect_same(const test_case *c, const char *stage, const arrays *got, const arrays *want, const char *what)
{
    for (int i = 0; i < want->count; i++) {
        opq_type type = opq_graph_output_type(c->graph, i);
        int64_t at = array_difference(&type, got->data[i], want->data[i]);
        if (at < 0)
            continue;
        char *text = NULL;
        expect_ok(opq_program_print(c->program, stage, &text));
        fputs(text, stderr);
        fail_msg("%s, %s: %s and %s differ in output %d, element %lld", c->graph->name,
                 c->fusion == OPQ_FUSED ? "fused" : "unfused", stage, what, i, (long long)at);
    }
}

static void compare(int from, int to)
{
    assert_true(from < to);
    for (int i = from; i < to; i++) {
        const test_case *c = &cases[i];
        arrays got = run(calling, c, c->program), scheduled = run(scheduling, c, c->program),
               loops = compiled_and_run(evaluating, c), code = compiled_and_run(compiling, c);
        expect_same(c, "c", &got, &loops, "loops");
        expect_same(c, "c", &got, &code, "code");
        expect_same(c, "schedule_c", &scheduled, &loops, "loops");
        arrays_drop(&got);
        arrays_drop(&scheduled);
        arrays_drop(&loops);
        arrays_drop(&code);
    }
    print_message("%d programs; %d different kernels in all\n", to - from, kernels.count);
}

static void test_golden_graphs(void **state)
{
    (void)state;
    compare(0, golden_count);
}

static void test_rows(void **state)
{
    (void)state;
    compare(golden_count, rows_count);
}

/* `length`: as much of the message as counts. */
static void expect_message(opq_ctx *ctx, const test_case *c, const char *message, size_t length)
{
    opq_program *program = NULL;
    arrays out = arrays_of_outputs(c->graph);
    expect_ok(opq_compile(ctx, c->graph, c->fusion, &program));
    if (opq_run(ctx, program, (const void *const *)c->inputs, out.data) == OPQ_OK)
        fail_msg("%s runs", c->graph->name);
    if (strncmp(opq_error(), message, length) != 0)
        fail_msg("\"%s\" and \"%s\"", opq_error(), message);
    opq_program_release(program);
    arrays_drop(&out);
}

/* All fail at the same op; which of the indices out of range is told depends on how a kernel is split. */
static void test_failing_graphs(void **state)
{
    (void)state;
    for (int i = rows_count; i < failing_count; i++) {
        char message[1024];
        arrays out = arrays_of_outputs(cases[i].graph);
        opq_status status = opq_run(calling, cases[i].program, (const void *const *)cases[i].inputs, out.data);
        assert_int_not_equal(status, OPQ_OK);
        snprintf(message, sizeof message, "%s", opq_error());
        expect_message(evaluating, &cases[i], message, sizeof message);
        expect_message(scheduling, &cases[i], message, sizeof message);
        const char *index = strstr(message, "index ");
        expect_message(compiling, &cases[i], message, index ? (size_t)(index - message) : sizeof message);
        arrays_drop(&out);
    }
}

static void test_random_graphs(void **state)
{
    (void)state;
    compare(failing_count, case_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_graphs), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_failing_graphs), cmocka_unit_test(test_random_graphs)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
