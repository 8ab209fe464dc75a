/* Waves: which steps are one launch, that what they need stands before them, that they share no memory, what a failed row costs; and
 * outputs that take the place of inputs.
 */
#include "tests/runtime/machine.h"

#include <stdio.h>

/* From the back, in small pieces: no piece may count on one before it. */
static void backwards(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                      void *data)
{
    (void)self;
    (void)grain;
    for (int64_t end = count; end > 0; end -= end < 3 ? end : 3)
        body(data, end < 3 ? 0 : end - 3, end);
}

static int make_machine(void **state) { return create_machine(state, backwards); }

/* ---- what waves are */

static bool reads(const opq_step *step, int32_t storage)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == storage && !step->loops.written[i])
            return true;
    return step->copy_from == storage;
}

static bool writes(const opq_step *step, int32_t storage)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == storage && step->loops.written[i])
            return true;
    return false;
}

/* Rows have one code; no step reads or overwrites what one of its own wave or a later one writes, but in its own place. */
static void expect_sound_waves(const opq_plan *plan)
{
    int32_t steps = 0;
    for (int32_t w = 0; w < plan->wave_count; w++) {
        const opq_wave *wave = &plan->waves[w];
        assert_int_equal(wave->first, steps);
        steps += wave->count;
        for (int32_t a = wave->first; a < steps; a++) {
            assert_ptr_equal(plan->steps[a].code, plan->steps[wave->first].code);
            for (int32_t id = 0; id < plan->storage_count; id++)
                for (int32_t b = wave->first; b < plan->step_count && writes(&plan->steps[a], id); b++)
                    if (b != a && b < steps && (writes(&plan->steps[b], id) || reads(&plan->steps[b], id)))
                        fail_msg("rows %d and %d of a wave share storage %d", a, b, id);
            for (int32_t b = steps; b < plan->step_count; b++)
                for (int32_t id = 0; id < plan->storage_count; id++)
                    if (writes(&plan->steps[b], id) && reads(&plan->steps[a], id) && !writes(&plan->steps[a], id) &&
                        plan->storage[id].first >= w)
                        fail_msg("step %d reads storage %d, which step %d makes", a, id, b);
        }
    }
    assert_int_equal(steps, plan->step_count);
}

/* Temporaries of steps that are one launch, or of which one stands between the other's, have memory of their own. */
static void expect_sound_arena(const opq_plan *plan)
{
    int32_t *first = malloc(((size_t)plan->storage_count + 1) * 2 * sizeof *first), *last = first + plan->storage_count;
    assert_non_null(first);
    for (int32_t id = 0; id < plan->storage_count; id++) {
        first[id] = last[id] = -1;
        for (int32_t w = 0; w < plan->wave_count; w++)
            for (int32_t s = plan->waves[w].first; s < plan->waves[w].first + plan->waves[w].count; s++)
                if (reads(&plan->steps[s], id) || writes(&plan->steps[s], id)) {
                    first[id] = first[id] < 0 ? w : first[id];
                    last[id] = w;
                }
    }
    for (int32_t i = 0; i < plan->storage_count; i++)
        for (int32_t k = 0; k < i; k++) {
            const opq_storage *a = &plan->storage[i], *b = &plan->storage[k];
            bool both = a->home == OPQ_HOME_temporary && b->home == OPQ_HOME_temporary && first[i] >= 0 && first[k] >= 0;
            if (both && first[k] <= last[i] && first[i] <= last[k] && a->offset < b->offset + b->bytes &&
                b->offset < a->offset + a->bytes)
                fail_msg("temporaries %d and %d are alive in one wave and overlap", i, k);
        }
    free(first);
}

enum { ROWS = 20, SIZE = 5 };

typedef struct writer {
    opq_text text;
    int next;
} writer;

static int add(writer *w, const char *line, int a, int b)
{
    opq_text_add(&w->text, "  %%%d = ", w->next);
    opq_text_add(&w->text, line, a, b);
    opq_text_add(&w->text, "\n");
    return w->next++;
}

static opq_graph *graph_of(writer *w, const int *outputs, int count)
{
    char *text = NULL;
    for (int i = 0; i < count; i++)
        opq_text_add(&w->text, "%s%%%d", i ? ", " : "  output ", outputs[i]);
    opq_text_add(&w->text, "\n}\n");
    expect_ok(opq_text_take(&w->text, &text));
    opq_graph *graph = graph_of_text(text);
    free(text);
    return graph;
}

static writer begin(void)
{
    writer w = {.next = 0};
    opq_text_add(&w.text, "graph @g {\n");
    return w;
}

/* Two kernels: over the rows of x, and then over the columns of what it is times their maximum. */
static int scaled(writer *w, int x)
{
    int rows = add(w, "amax f32[5,1] %%%d {axes=[1], tree=lanes}", x, 0);
    rows = add(w, "expand f32[5,5] %%%d", rows, 0);
    rows = add(w, "mul f32[5,5] %%%d, %%%d", x, rows);
    return add(w, "amax f32[1,5] %%%d {axes=[0], tree=column}", rows, 0);
}

/* A product, of rows by rows: the engine makes it, because no loop has vectors of both operands. */
static int multiplied(writer *w, int x, int by)
{
    int y = add(w, "mul f32[5,5] %%%d, %%%d", x, by);
    return add(w, "matmul f32[5,5] %%%d, %%%d {transpose_b=1}", y, y);
}

/* Each row: two kernels, a product, which is no row, and a kernel; temporaries stand between. */
static opq_graph *chains(void)
{
    writer w = begin();
    int input[ROWS], output[ROWS];
    for (int r = 0; r < ROWS; r++)
        input[r] = add(&w, "input f32[5,5]", 0, 0);
    for (int r = 0; r < ROWS; r++) {
        int x = add(&w, "exp f32[5,5] %%%d", input[r], 0);
        x = multiplied(&w, x, scaled(&w, x));
        x = add(&w, "amax f32[1,5] %%%d {axes=[0], tree=column}", x, 0);
        output[r] = add(&w, "permute f32[5,1] %%%d {dims=[1,0]}", x, 0);
    }
    return graph_of(&w, output, ROWS);
}

static opq_status run(machine *m, const opq_plan *plan, void *const *inputs, opq_buffer **outputs)
{
    opq_buffer *adopted[2 * ROWS + 2] = {0};
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

static void test_rows_of_chains(void **state)
{
    machine *m = *state;
    static float x[ROWS][SIZE * SIZE];
    void *inputs[ROWS];
    opq_buffer *outputs[ROWS];
    opq_plan *plan = plan_of_graph(m, chains());
    expect_sound_waves(plan);
    expect_sound_arena(plan);
    assert_int_equal(plan->row_max, ROWS);
    assert_int_equal(plan->wave_count,
                     1 + 1 + plan->step_count - 2 * ROWS); /* steps move forward only, and not past a product */
    for (int r = 0; r < ROWS; r++) {
        inputs[r] = x[r];
        for (int i = 0; i < SIZE * SIZE; i++)
            x[r][i] = (float)((r * 7 + i * 3) % 11) / 8;
    }
    expect_ok(run(m, plan, inputs, outputs));
    for (int r = 0; r < ROWS; r++) {
        opq_plan *alone = NULL;
        writer w = begin();
        int v = add(&w, "input f32[5,5]", 0, 0);
        v = add(&w, "exp f32[5,5] %%%d", v, 0);
        v = multiplied(&w, v, scaled(&w, v));
        v = add(&w, "amax f32[1,5] %%%d {axes=[0], tree=column}", v, 0);
        opq_buffer *expected = NULL;
        alone = plan_of_graph(m, graph_of(&w, &v, 1));
        expect_ok(run(m, alone, &inputs[r], &expected));
        assert_memory_equal(outputs[r]->data, expected->data, SIZE * sizeof(float));
        opq_buffer_release(expected);
        opq_buffer_release(outputs[r]);
        opq_plan_release(alone);
    }
    opq_plan_release(plan);
}

/* Each reads what the one before made: equal code, but no wave. */
static void test_a_chain_is_no_wave(void **state)
{
    machine *m = *state;
    writer w = begin();
    int x = add(&w, "input f32[8]", 0, 0), made[6];
    for (int i = 0; i < 6; i++)
        made[i] = add(&w, "exp f32[8] %%%d", i ? made[i - 1] : x, 0);
    opq_plan *plan = plan_of_graph(m, graph_of(&w, made, 6));
    expect_sound_waves(plan);
    opq_plan_release(plan);
    w = begin();
    x = add(&w, "input f32[8,8]", 0, 0);
    int last = x;
    for (int i = 0; i < 6; i++) { /* a view between keeps them apart */
        int t = add(&w, "matmul f32[8,8] %%%d, %%%d", last, x);
        t = add(&w, "sum f32[8,1] %%%d {axes=[1], tree=lanes}", t, 0);
        last = add(&w, "expand f32[8,8] %%%d", t, 0);
        made[i] = t;
    }
    plan = plan_of_graph(m, graph_of(&w, made, 6));
    expect_sound_waves(plan);
    assert_int_equal(plan->row_max, 1);
    assert_int_equal(plan->wave_count, plan->step_count);
    opq_plan_release(plan);
}

/* Rows of several lengths, one of them empty of work for most pieces. */
static void test_rows_of_several_sizes(void **state)
{
    machine *m = *state;
    static const int sizes[] = {3, 20000, 1, 64, 5000, 2};
    enum { COUNT_ROWS = COUNT(sizes) };
    static float x[COUNT_ROWS][20000];
    void *inputs[COUNT_ROWS];
    int input[COUNT_ROWS], output[COUNT_ROWS];
    opq_buffer *outputs[COUNT_ROWS];
    writer w = begin();
    for (int r = 0; r < COUNT_ROWS; r++) {
        input[r] = add(&w, "input f32[%d]", sizes[r], 0);
        inputs[r] = x[r];
        for (int i = 0; i < sizes[r]; i++)
            x[r][i] = (float)(r * 1000 + i);
    }
    for (int r = 0; r < COUNT_ROWS; r++) {
        char line[64];
        snprintf(line, sizeof line, "neg f32[%d] %%%%%%d", sizes[r]);
        output[r] = add(&w, line, input[r], 0);
    }
    opq_plan *plan = plan_of_graph(m, graph_of(&w, output, COUNT_ROWS));
    expect_sound_waves(plan);
    expect_ok(run(m, plan, inputs, outputs));
    for (int r = 0; r < COUNT_ROWS; r++) {
        for (int i = 0; i < sizes[r]; i++)
            assert_true(((float *)outputs[r]->data)[i] == -x[r][i]);
        opq_buffer_release(outputs[r]);
    }
    opq_plan_release(plan);
}

/* ---- failures */

static void test_a_failed_row(void **state)
{
    machine *m = *state;
    enum { MANY = 6 };
    writer w = begin();
    int data[MANY], at[MANY], output[2 * MANY];
    for (int r = 0; r < MANY; r++) {
        data[r] = add(&w, "input f32[4,4]", 0, 0);
        at[r] = add(&w, "input i64[2]", 0, 0);
    }
    for (int r = 0; r < MANY; r++) {
        output[r] = add(&w, "index_select f32[2,4] %%%d, %%%d {axis=0}", data[r], at[r]);
        output[MANY + r] = add(&w, "matmul f32[2,2] %%%d, %%%d {transpose_b=1}", output[r], output[r]);
    }
    opq_plan *plan = plan_of_graph(m, graph_of(&w, output, 2 * MANY));
    assert_int_equal(plan->row_max, MANY);
    expect_sound_waves(plan);
    static float x[MANY][16];
    static int64_t index[MANY][2];
    void *inputs[2 * MANY];
    opq_buffer *outputs[2 * MANY];
    for (int r = 0; r < MANY; r++) {
        inputs[2 * r] = x[r];
        inputs[2 * r + 1] = index[r];
        for (int i = 0; i < 16; i++)
            x[r][i] = (float)(r + i);
        index[r][0] = r % 4;
        index[r][1] = 1;
    }
    index[2][1] = 7;
    index[4][0] = -9;
    expect_failure(run(m, plan, inputs, outputs), OPQ_OUT_OF_RANGE,
                   "index_select: index 7 is out of bounds for dimension 0 with size 4 of f32[4,4]");
    for (int r = 0; r < MANY; r++) {
        bool good = r != 2 && r != 4;
        assert_true((outputs[r] != NULL) == good && (outputs[MANY + r] != NULL) == good);
        if (good)
            assert_true(((float *)outputs[r]->data)[4] == x[r][4]);
        opq_buffer_release(outputs[r]);
        opq_buffer_release(outputs[MANY + r]);
    }
    opq_plan_release(plan);
}

/* ---- outputs in the place of inputs */

static const struct {
    const char *what, *text;
    enum {
        REMEMBERED = 2
    } replaced; /* may output 0 lie where input 0 lay? REMEMBERED: what is written over is remembered */
} replacements[] = {
    {"elementwise", "  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = mul f32[8] %0, %1\n  output %2\n", true},
    {"from another input",
     "  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = exp f32[8] %1\n  %3 = exp f32[8] %0\n  output %2, %3\n", false},
    {"beside it",
     "  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = exp f32[8] %1\n  %3 = mul f32[8] %2, %0\n  output %2, %3\n", false},
    {"read backwards", "  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = slice f32[8] %0 {start=[7], step=[-1]}\n  %3 = mul f32[8] %2, %1\n  output %3\n",
     false},
    {"read twice", "  %0 = input f32[8]\n  %1 = input f32[8]\n  %2 = slice f32[8] %0 {start=[7], step=[-1]}\n  %3 = mul f32[8] %2, %0\n  output %3\n",
     false},
    {"read as rows and written as columns",
     "  %0 = input f32[4,4]\n  %1 = permute f32[4,4] %0 {dims=[1,0]}\n  %2 = exp f32[4,4] %1\n  output %2\n", false},
    {"of another width", "  %0 = input f32[8]\n  %1 = cast f64[8] %0\n  output %1\n", false},
    {"read again later",
     "  %0 = input f32[4,4]\n  %1 = exp f32[4,4] %0\n  %2 = matmul f32[4,4] %1, %0\n  output %1, %2\n", false},
    {"an output itself", "  %0 = input f32[8]\n  %1 = exp f32[8] %0\n  output %1, %0\n", false},
    {"a part of it", "  %0 = input f32[4,4]\n  %1 = input f32[4]\n  %2 = update f32[4,4] %0, %1 {offset=8, sizes=[4], strides=[1]}\n  output %2\n",
     true},
    {"a part of it, made of another part",
     "  %0 = input f32[4,4]\n  %1 = slice f32[1,4] %0 {start=[1, 0], step=[1, 1]}\n"
     "  %2 = update f32[4,4] %0, %1 {offset=8, sizes=[1, 4], strides=[4, 1]}\n  output %2\n",
     false},
    {"a part of it, made of the same part",
     "  %0 = input f32[4,4]\n  %1 = slice f32[1,4] %0 {start=[2, 0], step=[1, 1]}\n  %2 = neg f32[1,4] %1\n"
     "  %3 = update f32[4,4] %0, %2 {offset=8, sizes=[1, 4], strides=[4, 1]}\n  output %3\n",
     true},
    {"a part of it, which is read before and may fail later",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = update f32[4,4] %0, %1 {offset=8, sizes=[1, 4], strides=[4, "
     "1]}\n"
     "  %3 = sum f32[4,1] %0 {axes=[1], tree=lanes}\n  %4 = matmul f32[4,4] %3, %1\n  output %2, %4\n",
     false},
    {"a part of it, while something else may fail later",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = update f32[4,4] %0, %1 {offset=8, sizes=[1, 4], strides=[4, "
     "1]}\n"
     "  %3 = matmul f32[4,4] %2, %2\n  output %2, %3\n",
     true},
    {"a part of it, and the old value stays",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = update f32[4,4] %0, %1 {offset=8, sizes=[1, 4], strides=[4, "
     "1]}\n"
     "  output %2, %0\n",
     false},
    {"a part of it at an index",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = input i64[1]\n  %3 = index_add f32[4,4] %0, %2, %1 "
     "{axis=0}\n"
     "  output %3\n",
     false},
    {"set at indices, read and set at others, while something else may fail later",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = input i64[1]\n  %3 = index_set f32[4,4] %0, %2, %1 "
     "{axis=0}\n"
     "  %4 = matmul f32[4,4] %3, %3\n  %5 = slice f32[1,4] %4 {start=[1,0], step=[1,1]}\n"
     "  %6 = index_set f32[4,4] %3, %2, %5 {axis=0}\n  %7 = matmul f32[4,4] %6, %6\n  output %6, %7\n",
     REMEMBERED},
    {"set at indices, and a part",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = input i64[1]\n  %3 = index_set f32[4,4] %0, %2, %1 "
     "{axis=0}\n"
     "  %4 = matmul f32[4,4] %3, %3\n  %5 = slice f32[1,4] %4 {start=[1,0], step=[1,1]}\n"
     "  %6 = update f32[4,4] %3, %5 {offset=8, sizes=[1, 4], strides=[4, 1]}\n  %7 = matmul f32[4,4] %6, %6\n"
     "  output %6, %7\n",
     REMEMBERED},
    {"set at indices, and read again later",
     "  %0 = input f32[4,4]\n  %1 = input f32[1,4]\n  %2 = input i64[1]\n  %3 = index_set f32[4,4] %0, %2, %1 "
     "{axis=0}\n"
     "  %4 = matmul f32[4,4] %3, %0\n  output %3, %4\n",
     false},
    {"something fails later", "  %0 = input f32[8]\n  %1 = input i64[2]\n  %2 = exp f32[8] %0\n  %3 = index_select f32[2] %2, %1 {axis=0}\n  output %2, %3\n",
     false},
};

static void test_replacements(void **state)
{
    for (size_t i = 0; i < COUNT(replacements); i++) {
        char text[512];
        snprintf(text, sizeof text, "graph @g {\n%s}\n", replacements[i].text);
        opq_plan *plan = plan_of_graph(*state, graph_of_text(text));
        const opq_replacement *made = opq_plan_replacement(plan, plan->storage[plan->output_storage[0]].index, 0);
        int found = made && made->remembers ? REMEMBERED : made != NULL;
        if (found != (int)replacements[i].replaced)
            fail_msg("%s: %d", replacements[i].what, found);
        opq_plan_release(plan);
    }
}

/* In place, the same bits; and only where the caller says so. */
static void test_in_place(void **state)
{
    machine *m = *state;
    opq_plan *plan = plan_of_graph(m, graph_of_text("graph @g {\n  %0 = input f32[300]\n  %1 = input f32[300]\n"
                                                    "  %2 = mul f32[300] %0, %1\n  output %2\n}\n"));
    for (int32_t replaced = -1; replaced < 2; replaced++) {
        opq_buffer *inputs[2], *output = NULL;
        for (int i = 0; i < 2; i++) {
            expect_ok(opq_pool_buffer(m->runtime.pool, 300 * sizeof(float), &inputs[i]));
            for (int k = 0; k < 300; k++)
                ((float *)inputs[i]->data)[k] = (float)(k + i);
        }
        opq_run_call call = {.inputs = inputs, .outputs = &output, .replaces = &replaced};
        expect_ok(opq_plan_run(&m->runtime, plan, &call));
        assert_true((replaced >= 0 ? inputs[replaced] : NULL) == (replaced >= 0 ? output : NULL));
        assert_true(replaced >= 0 || (output != inputs[0] && output != inputs[1]));
        for (int k = 0; k < 300; k++)
            assert_true(((float *)output->data)[k] == (float)k * (float)(k + 1));
        opq_buffer_release(output);
        opq_buffer_release(inputs[0]);
        opq_buffer_release(inputs[1]);
    }
    opq_plan_release(plan);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, drop_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rows_of_chains), TEST(test_a_chain_is_no_wave), TEST(test_rows_of_several_sizes),
        TEST(test_a_failed_row),   TEST(test_replacements),       TEST(test_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
