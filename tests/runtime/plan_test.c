/* Plans: where values live, what works in place, what a run gives when memory is short or a step fails. */
#include "tests/runtime/machine.h"

#include <glob.h>
#include <stdio.h>
#include <time.h>

static int make_machine(void **state) { return create_machine(state, NULL); }

static opq_plan *plan_of(machine *m, const char *text) { return plan_of_graph(m, graph_of_text(text)); }

/* ---- the arena */

/* That of a vector, or of a cache line: what fits in either lies in one. */
static int64_t alignment_of(int64_t bytes)
{
    return bytes > 32 ? 64 : bytes > 16 ? 32 : bytes > 8 ? 16 : bytes > 4 ? 8 : 4;
}

/* Values alive at the same step have memory of their own, aligned, inside the arena. */
static void expect_sound_arena(const opq_plan *plan, const char *what)
{
    for (int32_t i = 0; i < plan->storage_count; i++) {
        const opq_storage *a = &plan->storage[i];
        if (a->home != OPQ_HOME_temporary || a->first < 0)
            continue;
        if (a->offset % alignment_of(a->bytes) != 0 || a->offset < 0 || a->offset + a->bytes > plan->arena_bytes)
            fail_msg("%s: a temporary at %lld of %lld bytes", what, (long long)a->offset, (long long)a->bytes);
        for (int32_t k = 0; k < i; k++) {
            const opq_storage *b = &plan->storage[k];
            bool alive = b->home == OPQ_HOME_temporary && b->first >= 0 && b->first <= a->last && a->first <= b->last;
            if (alive && a->bytes > 0 && b->bytes > 0 && a->offset < b->offset + b->bytes &&
                b->offset < a->offset + a->bytes)
                fail_msg("%s: two live temporaries overlap at %lld", what, (long long)a->offset);
        }
    }
}

static void test_arenas_of_the_golden_files(void **state)
{
    glob_t files;
    int with_arena = 0;
    assert_int_equal(glob(OPAQUE_GOLDEN "/*.ir", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        static char text[1 << 16];
        FILE *file = fopen(files.gl_pathv[i], "rb");
        assert_non_null(file);
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        *strstr(text, "# expect:") = 0;
        opq_plan *plan = plan_of(*state, text);
        expect_sound_arena(plan, files.gl_pathv[i]);
        with_arena += plan->arena_bytes > 0;
        opq_plan_release(plan);
    }
    globfree(&files);
    assert_true(with_arena > 5);
}

static opq_ref matmul(opq_graph *graph, opq_ref x, opq_ref y)
{
    opq_ref ref;
    expect_ok(opq_graph_op(graph, OPQ_OP_matmul, (opq_ref[]){x, y}, 2, NULL, 0, &ref));
    return ref;
}

/* x @ w @ w @ ...: two products are alive at a time, however many there are. */
static void test_an_arena_is_used_again(void **state)
{
    const int64_t size[] = {16, 16};
    opq_type type = opq_type_make(OPQ_f32, 2, size);
    for (int count = 3; count <= 30; count += 9) {
        opq_graph *graph = NULL;
        opq_ref x, w;
        expect_ok(opq_graph_create("chain", &graph));
        expect_ok(opq_graph_input(graph, &type, &x));
        expect_ok(opq_graph_input(graph, &type, &w));
        for (int i = 0; i < count; i++)
            x = matmul(graph, x, w);
        expect_ok(opq_graph_output(graph, x));
        opq_plan *plan = plan_of_graph(*state, graph);
        assert_int_equal(plan->step_count, count);
        assert_int_equal(plan->arena_bytes, 2 * 16 * 16 * 4);
        expect_sound_arena(plan, "chain");
        opq_plan_release(plan);
    }
}

/* A thousand scalars are not a thousand cache lines. */
static void test_scalars_lie_side_by_side(void **state)
{
    opq_plan *plan = plan_of(*state, "graph @g {\n"
                                     "  %0 = input f32[4096]\n"
                                     "  %1 = input f32[5000]\n"
                                     "  %2 = input f32[3000]\n"
                                     "  %3 = sum f32[1] %0 {axes=[0], tree=lanes}\n"
                                     "  %4 = sum f32[1] %1 {axes=[0], tree=lanes}\n"
                                     "  %5 = mul f32[3000] %2, %3\n"
                                     "  %6 = mul f32[3000] %5, %4\n"
                                     "  output %6\n"
                                     "}\n");
    int scalars = 0;
    expect_sound_arena(plan, "scalars");
    for (int32_t i = 0; i < plan->storage_count; i++) {
        const opq_storage *storage = &plan->storage[i];
        if (storage->home != OPQ_HOME_temporary || storage->bytes != 4 || storage->first < 0)
            continue;
        scalars++;
        assert_in_range(storage->offset, 0, 63);
    }
    assert_int_equal(scalars, 2);
    opq_plan_release(plan);
}

/* ---- in place */

static const struct {
    const char *what, *text;
    int copies; /* steps that copy the old value first */
} updates[] = {
    {"a temporary that dies: in place",
     "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  %2 = const f32[] {value=0x1p+0}\n  %3 = expand f32[2] %2\n"
     "  %4 = update f32[8] %1, %3 {offset=0, sizes=[2], strides=[1]}\n  output %4\n",
     0},
    {"an input: never written",
     "  %0 = input f32[8]\n  %1 = const f32[] {value=0x1p+0}\n  %2 = expand f32[2] %1\n"
     "  %3 = update f32[8] %0, %2 {offset=0, sizes=[2], strides=[1]}\n  output %3\n",
     1},
    {"the old value is an output too",
     "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  %2 = const f32[] {value=0x1p+0}\n  %3 = expand f32[2] %2\n"
     "  %4 = update f32[8] %1, %3 {offset=0, sizes=[2], strides=[1]}\n  output %4, %1\n",
     1},
    {"the old value is read later",
     "  %0 = input f32[8,8]\n  %1 = exp f32[8,8] %0\n  %2 = const f32[] {value=0x1p+0}\n  %3 = expand f32[2] %2\n"
     "  %4 = update f32[8,8] %1, %3 {offset=0, sizes=[2], strides=[1]}\n  %5 = matmul f32[8,8] %4, %1\n  output %5\n",
     1},
    {"the window reads the old value in another order",
     "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  %2 = strided f32[4] %1 {offset=2, strides=[1]}\n"
     "  %3 = update f32[8] %1, %2 {offset=0, sizes=[4], strides=[2]}\n  output %3\n",
     1},
    {"two updates in a row",
     "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  %2 = const f32[] {value=0x1p+0}\n  %3 = expand f32[2] %2\n"
     "  %4 = update f32[8] %1, %3 {offset=0, sizes=[2], strides=[1]}\n"
     "  %5 = update f32[8] %4, %3 {offset=4, sizes=[2], strides=[1]}\n  output %5\n",
     0},
    {"the value between is an output: the second update copies",
     "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  %2 = const f32[] {value=0x1p+0}\n  %3 = expand f32[2] %2\n"
     "  %4 = update f32[8] %1, %3 {offset=0, sizes=[2], strides=[1]}\n"
     "  %5 = update f32[8] %4, %3 {offset=4, sizes=[2], strides=[1]}\n  output %5, %4\n",
     1},
    {"undefined contents are not copied",
     "  %0 = input f32[4]\n  %1 = undefined f32[8]\n  %2 = update f32[8] %1, %0 {offset=0, sizes=[4], strides=[1]}\n"
     "  %3 = update f32[8] %2, %0 {offset=4, sizes=[4], strides=[1]}\n  output %3\n",
     0},
};

static void test_updates_in_place(void **state)
{
    for (size_t i = 0; i < COUNT(updates); i++) {
        char text[1024];
        int copies = 0;
        snprintf(text, sizeof text, "graph @g {\n%s}\n", updates[i].text);
        opq_plan *plan = plan_of(*state, text);
        for (int32_t s = 0; s < plan->step_count; s++)
            copies += plan->steps[s].copy_from >= 0;
        if (copies != updates[i].copies)
            fail_msg("%s: %d copies", updates[i].what, copies);
        expect_sound_arena(plan, updates[i].what);
        opq_plan_release(plan);
    }
}

/* ---- outputs and runs */

/* Inputs are adopted; gives the outputs, to be released. */
static opq_status run(machine *m, const opq_plan *plan, void *const *inputs, opq_buffer **outputs)
{
    opq_buffer *adopted[4] = {0};
    for (int i = 0; i < plan->input_count; i++) {
        opq_type type = opq_graph_input_type(plan->graph, i);
        expect_ok(opq_pool_adopt(m->runtime.pool, inputs[i], (size_t)opq_type_bytes(&type), NULL, NULL, &adopted[i]));
    }
    opq_run_call call = {.inputs = adopted, .outputs = outputs};
    opq_status status = opq_plan_run(&m->runtime, plan, &call);
    for (int i = 0; i < plan->input_count; i++)
        opq_buffer_release(adopted[i]);
    return status;
}

/* Parts of no elements leave nothing but an undefined value, which a routine reads. */
static void test_a_routine_of_undefined(void **state)
{
    opq_plan *plan = plan_of(*state, "graph @g {\n  %0 = input f32[0,4]\n  %1 = concat f32[0,8] %0, %0 {axis=1}\n"
                                     "  %2 = input f32[2,8]\n  %3 = input i64[1]\n"
                                     "  %4 = grouped_matmul f32[1,0,2] %1, %2, %3 {transpose_b=1}\n  output %4\n}\n");
    assert_non_null(plan);
    opq_plan_release(plan);
}

static void test_equal_outputs_share_memory(void **state)
{
    opq_plan *plan = plan_of(*state, "graph @g {\n  %0 = input f32[4]\n  %1 = neg f32[4] %0\n  %2 = reshape f32[2,2] "
                                     "%1\n  output %1, %2, %1, %0\n}\n");
    float x[] = {1, 2, 3, 4};
    opq_buffer *outputs[4];
    assert_int_equal(plan->buffer_count, 1);
    expect_ok(run(*state, plan, (void *const[]){x}, outputs));
    assert_ptr_equal(outputs[0], outputs[1]);
    assert_ptr_equal(outputs[0], outputs[2]);
    assert_ptr_equal(outputs[3]->data, x); /* an input that is an output is the caller's buffer */
    for (int i = 0; i < 4; i++)
        opq_buffer_release(outputs[i]);
    opq_plan_release(plan);
}

/* A run that cannot have its memory fails before its first step, with no output; the plan is good for another one. */
static void test_no_memory(void **state)
{
    static const char *const texts[] = {
        "graph @output {\n  %0 = input f32[1]\n  %1 = expand f32[1048576,1048576] %0\n  output %1\n}\n",
        "graph @arena {\n  %0 = input f32[1]\n  %1 = expand f32[1048576,1048576] %0\n  %2 = neg f32[1048576,1048576] "
        "%1\n"
        "  %3 = slice f32[1048576,1] %2 {start=[0,0], step=[1,1]}\n  %4 = matmul f32[1,1] %3, %3 {transpose_a=1}\n  "
        "output %4\n}\n",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        float x[] = {1};
        opq_buffer *outputs[] = {(opq_buffer *)state};
        opq_plan *plan = plan_of(*state, texts[i]);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(run(*state, plan, (void *const[]){x}, outputs), OPQ_NO_MEMORY);
            assert_null(outputs[0]);
        }
        opq_plan_release(plan);
    }
}

/* A division that says what does not hold where its divisor is 0. */
static void test_words_of_a_check(void **state)
{
    opq_plan *plan = plan_of(*state, "graph @g {\n  %0 = input i32[3]\n  %1 = input i32[3]\n"
                                     "  %2 = div_trunc i32[3] %0, %1 {key=\"op: all are there\"}  # a.py:3\n"
                                     "  %3 = div_trunc i32[3] %0, %1 {key=\"op\"}  # a.py:4\n  output %2, %3\n}\n");
    int32_t x[] = {1, 2, 3}, y[] = {1, 0, 1};
    opq_buffer *outputs[2];
    expect_failure(run(*state, plan, (void *const[]){x, y}, outputs), OPQ_INVALID,
                   "op (recorded at a.py:3): all are there");
    opq_plan_release(plan);
}

/* More than can be counted is refused, and not placed somewhere. */
static void test_temporaries_beyond_all_numbers(void **state)
{
    opq_plan *plan = NULL;
    opq_graph *graph = graph_of_text(
        "graph @g {\n  %0 = input f32[1]\n  %1 = expand f32[1073741824,1073741824] %0\n"
        "  %2 = scan_add f32[1073741824,1073741824] %1 {axis=1}\n  %3 = scan_add f32[1073741824,1073741824] %2 "
        "{axis=0}\n"
        "  %4 = scan_add f32[1073741824,1073741824] %3 {axis=1}\n  %5 = add f32[1073741824,1073741824] %4, %2\n"
        "  %6 = sum f32[1,1] %5 {axes=[0,1], tree=lanes}\n  output %6\n}\n");
    machine *m = *state;
    expect_failure(
        opq_plan_compile(&m->runtime, graph, OPQ_UNFUSED, &plan), OPQ_NO_MEMORY,
        "can't allocate memory: you tried to allocate 4611686018427387904 bytes besides 4611686018427387904 for "
        "other temporaries");
    assert_null(plan);
    opq_graph_destroy(graph);
}

/* The step with a bad index spoils what depends on it; the rest of the run is done. */
static void test_a_failed_step(void **state)
{
    opq_plan *plan = plan_of(
        *state,
        "graph @g {\n  %0 = input f32[4]\n  %1 = input i64[2]\n  %2 = index_select f32[2] %0, %1 {axis=0}  # a.py:3\n"
        "  %3 = sum f32[1] %2 {axes=[0], tree=lanes}\n  %4 = exp f32[4] %0\n  output %3, %4\n}\n");
    float x[] = {0, 0, 0, 0};
    int64_t bad[] = {0, 4}, good[] = {3, 0};
    opq_buffer *outputs[2];
    expect_failure(run(*state, plan, (void *const[]){x, bad}, outputs), OPQ_OUT_OF_RANGE,
                   "index_select (recorded at a.py:3): index 4 is out of bounds for dimension 0 with size 4 of f32[4]");
    assert_null(outputs[0]);
    assert_non_null(outputs[1]);
    assert_true(((float *)outputs[1]->data)[3] == 1);
    opq_buffer_release(outputs[1]);
    expect_ok(run(*state, plan, (void *const[]){x, good}, outputs));
    opq_buffer_release(outputs[0]);
    opq_buffer_release(outputs[1]);
    opq_plan_release(plan);
}

static void count_steps(void *data, const opq_step *step, int32_t count, const opq_launch_times *times)
{
    (void)count;
    (void)times;
    *(int64_t *)data += step->bytes_written;
}

static void test_notes(void **state)
{
    machine *m = *state;
    opq_plan *plan = plan_of(m, "graph @g {\n  %0 = input f32[1024]\n  %1 = neg f32[1024] %0\n  output %1\n}\n");
    static float x[1024];
    int64_t written = 0;
    opq_buffer *input = NULL, *output = NULL;
    expect_ok(opq_pool_adopt(m->runtime.pool, x, sizeof x, NULL, NULL, &input));
    opq_run_call call = {.inputs = &input, .outputs = &output, .note = count_steps, .note_data = &written};
    expect_ok(opq_plan_run(&m->runtime, plan, &call));
    assert_int_equal(written, sizeof x);
    opq_buffer_release(input);
    opq_buffer_release(output);
    opq_plan_release(plan);
}

/* A host whose threads another program has: its loops wait, and the thread that asks spins in the meantime. */
static void spin_for_20_ms(void *self, int64_t count, int64_t grain,
                           void (*body)(void *data, int64_t begin, int64_t end), void *data)
{
    (void)self;
    (void)grain;
    struct timespec begin, t;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do
        clock_gettime(CLOCK_MONOTONIC, &t);
    while ((t.tv_sec - begin.tv_sec) * 1000000000 + (t.tv_nsec - begin.tv_nsec) < 20000000);
    body(data, 0, count / 2);
    body(data, count / 2, count);
}

static void keep_times(void *data, const opq_step *step, int32_t count, const opq_launch_times *times)
{
    (void)step;
    (void)count;
    *(opq_launch_times *)data = *times;
}

static void test_waiting_is_no_work(void **state)
{
    machine *m = *state;
    m->host.parallel_for = spin_for_20_ms;
    enum { COUNT = 1 << 20 };
    float *x = calloc(COUNT, sizeof *x);
    assert_non_null(x);
    opq_plan *plan =
        plan_of(m, "graph @g {\n  %0 = input f32[1024,1024]\n  %1 = exp f32[1024,1024] %0\n  output %1\n}\n");
    opq_launch_times times = {0, 0};
    opq_buffer *input = NULL, *output = NULL;
    expect_ok(opq_pool_adopt(m->runtime.pool, x, COUNT * sizeof *x, NULL, NULL, &input));
    opq_run_call call = {.inputs = &input, .outputs = &output, .note = keep_times, .note_data = &times, .timed = true};
    for (int i = 0; i < 2; i++) { /* the second without fresh memory */
        expect_ok(opq_plan_run(&m->runtime, plan, &call));
        opq_buffer_release(output);
    }
    assert_true(times.seconds >= 0.02);
    assert_true(times.busy > 20e-6); /* a piece of half a million exponentials */
    assert_true(times.busy < times.seconds / 2);
    opq_buffer_release(input);
    opq_plan_release(plan);
    free(x);
}

static void test_calls_without_a_host(void **state)
{
    machine *m = *state;
    opq_plan *plan = NULL;
    opq_graph *graph = graph_of_text("graph @g {\n  %0 = input f32[4]\n  %1 = extern f32[4] %0 {key=\"f\", result=1}\n"
                                     "  %2 = extern_result f32[4] %1 {result=0}\n  output %2\n}\n");
    expect_failure(opq_plan_compile(&m->runtime, graph, OPQ_FUSED, &plan), OPQ_UNSUPPORTED,
                   "extern: nobody here can call f");
    opq_graph_destroy(graph);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, drop_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_arenas_of_the_golden_files),
        TEST(test_an_arena_is_used_again),
        TEST(test_scalars_lie_side_by_side),
        TEST(test_updates_in_place),
        TEST(test_a_routine_of_undefined),
        TEST(test_equal_outputs_share_memory),
        TEST(test_no_memory),
        TEST(test_words_of_a_check),
        TEST(test_temporaries_beyond_all_numbers),
        TEST(test_a_failed_step),
        TEST(test_notes),
        TEST(test_waiting_is_no_work),
        TEST(test_calls_without_a_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
