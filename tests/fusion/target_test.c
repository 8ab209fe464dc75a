/* Code for targets of other architectures gives the evaluator's bits: kernels of the golden graphs, of a graph per dtype with every row
 * on special values (rows.h), and of random graphs, fused and unfused.
 *
 * Programs run with a context that evaluates the loops of each kernel, and the result is compared with the evaluator of graphs. What each kernel got and
 * gave is written to a file. Each kernel, also of a product, which the engine would run, becomes an object; a runner (target_runner.c), compiled by the
 * target's compiler, is linked with all of them and launches them under an emulator.
 *
 * Two kinds of kernels have no code there, and are not launched: products of bf16 by the rules `pairs` and `pairs16`, where the target lacks its instruction, and
 * those of several products, which the engine runs in parts; their nodes one by one are launched like those of any graph.
 *
 *   OPAQUE_TEST_FULL=1    1,000 random graphs
 */
#include "golden.h"
#include "random_graph.h"
#include "rows.h"
#include "target_case.h"

#include "codegen_llvm/codegen.h"
#include "codegen_llvm/cpu.h"
#include "graph/eval.h"
#include "opaque/context.h"

#include <sys/stat.h>
#include <unistd.h>

enum { GRAPHS = 20, FULL_GRAPHS = 1000, LAUNCHES_MAX = 6 /* of a kernel */, COMMAND_MAX = 4096 };

typedef struct emulated {
    const char *target, *compiler, *emulator, *packages;
} emulated;

static const emulated emulators[] = {
    {"aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64", "qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross"},
};

/* ---- kernels, each once */

typedef struct kernel {
    opq_text key;
    char graph[32];
    int launches;
    bool left_out, refused; /* left_out: it may be */
} kernel;

static struct {
    kernel *items;
    int count, capacity;
} kernels;

static const emulated *on;
static char folder[] = "/tmp/opaque_target_XXXXXX";
static opq_cpu cpu;
static struct opq_compiler *compiler;
static FILE *launches;
static int64_t launch_count;
static opq_ctx *recording;
static const opq_plan *running;
static const char *running_name;
static bool all_same;

static bool has_pairs(const opq_loops *loops)
{
    for (int i = 0; i < loops->stmt_count; i++)
        if (loops->stmts[i].op == OPQ_STMT_loop && opq_loop_pairs((opq_loop_role)loops->stmts[i].role))
            return true;
    return false;
}

static const opq_step *step_of(const opq_loops *loops)
{
    for (int s = 0; s < running->step_count; s++)
        if (&running->steps[s].loops == loops)
            return &running->steps[s];
    fail_msg("%s: no step of the plan runs these loops", running_name);
    return NULL;
}

static void make_object(const opq_loops *loops, int number)
{
    char path[128], symbol[32];
    kernel *k = &kernels.items[number];
    snprintf(symbol, sizeof symbol, "kernel_%d", number);
    snprintf(path, sizeof path, "%s/%d.o", folder, number);
    k->refused = opq_codegen_object(compiler, loops, symbol, path) != OPQ_OK;
    if (k->refused && !k->left_out) {
        opq_text text = {0};
        opq_loops_print(loops, &text);
        fputs(text.data, stderr);
        fail_msg("%s of %s: %s", loops->name, running_name, opq_error());
    }
}

static int kernel_of(const opq_loops *loops)
{
    opq_text key = {0};
    opq_loops_key(loops, &key);
    assert_false(key.failed);
    for (int i = 0; i < kernels.count; i++)
        if (kernels.items[i].key.length == key.length && memcmp(kernels.items[i].key.data, key.data, key.length) == 0) {
            opq_text_drop(&key);
            return i;
        }
    if (kernels.count == kernels.capacity) {
        kernels.capacity = 2 * kernels.capacity + 64;
        kernels.items = realloc(kernels.items, (size_t)kernels.capacity * sizeof *kernels.items);
        assert_non_null(kernels.items);
    }
    kernels.items[kernels.count] = (kernel){.key = key, .left_out = has_pairs(loops) || step_of(loops)->part_count > 0};
    snprintf(kernels.items[kernels.count].graph, sizeof kernels.items->graph, "%s", running_name);
    make_object(loops, kernels.count);
    return kernels.count++;
}

/* ---- launches */

static void put(const void *data, size_t bytes)
{
    static const char zeros[8];
    assert_int_equal(fwrite(data, 1, bytes, launches), bytes);
    assert_int_equal(fwrite(zeros, 1, (8 - bytes % 8) % 8, launches), (8 - bytes % 8) % 8);
}

static void put_word(int64_t word) { put(&word, sizeof word); }

typedef struct memory {
    char *data, *before;
    int64_t bytes;
} memory;

typedef struct launch {
    memory memories[OPQ_BUFFER_MAX];
    target_buffer buffers[OPQ_BUFFER_MAX];
    int memory_count, buffer_count;
} launch;

/* The memory with these bytes; those that overlap it become one with it. */
static void add_memory(launch *l, char *data, int64_t bytes)
{
    memory made = {.data = data, .bytes = bytes};
    for (int i = 0; i < l->memory_count;) {
        memory *m = &l->memories[i];
        if (made.data >= m->data + m->bytes || m->data >= made.data + made.bytes) {
            i++;
            continue;
        }
        char *end = made.data + made.bytes > m->data + m->bytes ? made.data + made.bytes : m->data + m->bytes;
        made.data = made.data < m->data ? made.data : m->data;
        made.bytes = end - made.data;
        *m = l->memories[--l->memory_count];
        i = 0;
    }
    l->memories[l->memory_count++] = made;
}

/* An empty one may begin where another does. */
static int64_t memory_with(const launch *l, const char *data, int64_t bytes)
{
    for (int i = 0; i < l->memory_count; i++)
        if (data >= l->memories[i].data && data + bytes <= l->memories[i].data + l->memories[i].bytes)
            return i;
    fail_msg("%s: a buffer without memory", running_name);
    return -1;
}

static launch launch_begin(const opq_loops *loops, void *const *buffers)
{
    const opq_step *step = step_of(loops);
    launch l = {.buffer_count = loops->buffer_count};
    for (int b = 0; b < loops->buffer_count; b++)
        add_memory(&l, buffers[b], running->storage[step->buffers[b]].bytes);
    for (int b = 0; b < loops->buffer_count; b++) {
        opq_dtype dtype = opq_loops_buffer_dtype(loops, b);
        int64_t bytes = running->storage[step->buffers[b]].bytes;
        target_buffer *out = &l.buffers[b];
        *out = (target_buffer){.memory = memory_with(&l, buffers[b], bytes), .dtype = dtype};
        out->first = (char *)buffers[b] - l.memories[out->memory].data;
        out->element_bytes = opq_dtype_bytes(dtype);
        out->bytes = bytes / out->element_bytes * out->element_bytes;
        out->use = loops->written[b] == OPQ_BUFFER_in    ? TARGET_READ
                   : loops->written[b] == OPQ_BUFFER_out ? TARGET_WRITTEN
                                                         : TARGET_OWN;
    }
    for (int i = 0; i < l.memory_count; i++) {
        l.memories[i].before = malloc((size_t)l.memories[i].bytes + 1);
        memcpy(l.memories[i].before, l.memories[i].data, (size_t)l.memories[i].bytes);
    }
    return l;
}

static void launch_end(launch *l, const opq_loops *loops, int number, const int64_t *dims, const opq_number *scalars)
{
    int64_t units[OPQ_PHASE_MAX];
    int phases = opq_loops_phases(loops, dims, units), dim_count = opq_loops_dims_count(loops);
    const int64_t head[TARGET_HEAD] = {number,
                                       l->memory_count,
                                       l->buffer_count,
                                       dim_count,
                                       loops->scalar_count,
                                       phases,
                                       opq_loops_scratch(loops, dims)};
    bool wanted = !kernels.items[number].refused && kernels.items[number].launches++ < LAUNCHES_MAX;
    if (wanted)
        put(head, sizeof head);
    for (int i = 0; i < l->memory_count; i++) {
        const memory *m = &l->memories[i];
        if (wanted) {
            put_word(m->bytes);
            put_word((int64_t)((uintptr_t)m->data % TARGET_ALIGN));
            put(m->before, (size_t)m->bytes);
            put(m->data, (size_t)m->bytes);
        }
        free(m->before);
    }
    if (!wanted)
        return;
    put(l->buffers, (size_t)l->buffer_count * sizeof *l->buffers);
    put(dims, (size_t)dim_count * sizeof *dims);
    put(scalars, (size_t)loops->scalar_count * sizeof *scalars);
    put(units, (size_t)phases * sizeof *units);
    launch_count++;
}

static opq_status record_launch(const opq_loops *loops, void *const *buffers, const int64_t *dims,
                                const opq_number *scalars, int64_t out_error[2])
{
    int number = kernel_of(loops);
    launch l = launch_begin(loops, buffers);
    opq_status status = opq_loops_eval(loops, buffers, dims, scalars, out_error);
    launch_end(&l, loops, number, dims, scalars);
    return status;
}

static void record(const opq_graph *graph, void *const *inputs, const char *name)
{
    arrays want = arrays_evaluated(graph, inputs);
    running_name = name;
    for (int fusion = OPQ_FUSED; fusion <= OPQ_UNFUSED; fusion++) {
        opq_program *program = NULL;
        expect_ok(opq_compile(recording, graph, (opq_fusion)fusion, &program));
        running = (const opq_plan *)program;
        arrays got = arrays_of_outputs(graph);
        expect_ok(opq_run(recording, program, (const void *const *)inputs, got.data));
        for (int i = 0; i < got.count; i++) {
            opq_type type = opq_graph_output_type(graph, i);
            assert_int_equal(array_difference(&type, got.data[i], want.data[i]), -1);
        }
        arrays_drop(&got);
        opq_program_release(program);
    }
    arrays_drop(&want);
}

static void record_golden(const char *name, opq_graph *graph, arrays *inputs)
{
    record(graph, inputs->data, name);
    arrays_drop(inputs);
    opq_graph_destroy(graph);
}

static void record_rows(void)
{
    for (int dtype = 0; dtype < OPQ_DTYPE_COUNT; dtype++) {
        char name[32];
        arrays inputs;
        opq_graph *graph = rows_graph((opq_dtype)dtype, &inputs);
        if (graph == NULL)
            continue;
        snprintf(name, sizeof name, "rows of %s", opq_dtype_name((opq_dtype)dtype));
        record(graph, inputs.data, name);
        arrays_drop(&inputs);
        opq_graph_destroy(graph);
    }
}

static void record_random(void)
{
    int count = getenv("OPAQUE_TEST_FULL") ? FULL_GRAPHS : test_sample(GRAPHS);
    for (int seed = 1; seed <= count; seed++) {
        char name[32];
        random_graph r = random_graph_make((uint64_t)seed);
        snprintf(name, sizeof name, "random graph %d", seed);
        record(r.graph, r.inputs, name);
        random_graph_drop(&r);
    }
}

/* ---- the target */

static void command(const char *format, ...)
{
    char text[COMMAND_MAX];
    va_list arguments;
    va_start(arguments, format);
    assert_true(vsnprintf(text, sizeof text, format, arguments) < (int)sizeof text);
    va_end(arguments);
    if (system(text) != 0)
        fail_msg("failed: %s", text);
}

static void need(const char *program)
{
    char text[256];
    snprintf(text, sizeof text, "command -v %s > /dev/null", program);
    if (system(text) != 0)
        fail_msg("%s is needed: apt-get install %s", program, on->packages);
}

/* Also the names of the objects, which are too many for a command. */
static void write_table(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/table.c", folder);
    FILE *table = fopen(path, "w");
    snprintf(path, sizeof path, "%s/objects", folder);
    FILE *objects = fopen(path, "w");
    assert_true(table && objects);
    for (int i = 0; i < kernels.count; i++)
        if (!kernels.items[i].refused) {
            fprintf(table, "void kernel_%d(void);\n", i);
            fprintf(objects, "%s/%d.o\n", folder, i);
        }
    fputs("void (*const kernels[])(void) = {\n", table);
    for (int i = 0; i < kernels.count; i++)
        kernels.items[i].refused ? fputs("0,\n", table) : fprintf(table, "kernel_%d,\n", i);
    fputs("};\n", table);
    fclose(table);
    fclose(objects);
}

static void compare(void)
{
    int left_out = 0;
    for (int i = 0; i < kernels.count; i++)
        left_out += kernels.items[i].refused;
    write_table();
    put_word(-1);
    assert_int_equal(fclose(launches), 0);
    command("%s -O1 -static -ffp-contract=off -Wall -Wextra -Werror -I " OPAQUE_INCLUDE " -I " OPAQUE_TESTS
            " -o %s/runner " OPAQUE_TESTS "/target_runner.c %s/table.c @%s/objects",
            on->compiler, folder, folder, folder);
    command("%s %s/runner %s/launches > %s/result || { cat %s/result >&2; false; }", on->emulator, folder, folder,
            folder, folder);
    all_same = true;
    print_message("%s: %lld launches of %d kernels, %d left out\n", on->target, (long long)launch_count, kernels.count,
                  left_out);
}

static void test_kernels(void **state)
{
    (void)state;
    golden_each(record_golden);
    record_rows();
    record_random();
    compare();
}

static int setup(void **state)
{
    char path[128];
    (void)state;
    on = &emulators[0];
    need(on->compiler);
    need(on->emulator);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/launches", folder);
    launches = fopen(path, "wb");
    assert_non_null(launches);
    expect_ok(opq_cpu_foreign(on->target, &cpu));
    expect_ok(opq_compiler_create(&cpu, &compiler));
    expect_ok(opq_ctx_create(NULL, &recording));
    recording->runtime.run_loops = record_launch;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < kernels.count; i++)
        opq_text_drop(&kernels.items[i].key);
    free(kernels.items);
    opq_ctx_destroy(recording);
    opq_compiler_destroy(compiler);
    if (all_same)
        command("rm -r %s", folder);
    else
        print_message("the kernels and their launches are in %s\n", folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
