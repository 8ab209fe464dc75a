/* Integers divided by 0: an error wherever a division is made and nowhere else, in every kind of kernel, fused or not, on any number of
 * threads; the evaluator agrees. */
#include "tests/runtime/machine.h"

#include <pthread.h>
#include <stdio.h>

enum { MOST = 4096 };

typedef struct piece {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    int64_t begin, end;
} piece;

static void *run_piece(void *arg)
{
    const piece *p = arg;
    p->body(p->data, p->begin, p->end);
    return NULL;
}

/* Two threads, whatever the grain. */
static void parallel_for(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data)
{
    (void)self;
    (void)grain;
    piece other = {body, data, count / 2, count};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_piece, &other), 0);
    body(data, 0, count / 2);
    pthread_join(thread, NULL);
}

static int make_machine(void **state) { return create_machine(state, parallel_for); }

/* Runs the graph on its inputs; outputs are compared with the evaluator's and released. */
static opq_status run(machine *m, const opq_graph *graph, opq_fusion fusion, void *const *inputs)
{
    static char expected[4][MOST * 8];
    void *wanted[4] = {expected[0], expected[1], expected[2], expected[3]};
    opq_buffer *adopted[4] = {0}, *outputs[4] = {0};
    opq_plan *plan = NULL;
    opq_status evaluated = opq_graph_eval(graph, (const void *const *)inputs, wanted);
    expect_ok(opq_plan_compile(&m->runtime, graph, fusion, &plan));
    for (int i = 0; i < opq_graph_input_count(graph); i++) {
        opq_type type = opq_graph_input_type(graph, i);
        expect_ok(opq_pool_adopt(m->runtime.pool, inputs[i], (size_t)opq_type_bytes(&type), NULL, NULL, &adopted[i]));
    }
    opq_run_call call = {.inputs = adopted, .outputs = outputs};
    opq_status status = opq_plan_run(&m->runtime, plan, &call);
    if (status != evaluated)
        fail_msg("%s, fusion %d: the evaluator gives %d, the plan %d (%s)", graph->name, fusion, evaluated, status,
                 opq_error());
    for (int i = 0; i < opq_graph_output_count(graph); i++) {
        opq_type type = opq_graph_output_type(graph, i);
        if (status == OPQ_OK && memcmp(outputs[i]->data, wanted[i], (size_t)opq_type_bytes(&type)) != 0)
            fail_msg("%s, fusion %d: output %d differs", graph->name, fusion, i);
        opq_buffer_release(outputs[i]);
    }
    for (int i = 0; i < opq_graph_input_count(graph); i++)
        opq_buffer_release(adopted[i]);
    opq_plan_release(plan);
    return status;
}

static void expect_both(machine *m, const char *text, void *const *inputs, opq_status expected)
{
    opq_graph *graph = graph_of_text(text);
    opq_fusion ways[] = {OPQ_FUSED, OPQ_UNFUSED};
    for (int f = 0; f < 2; f++)
        if (run(m, graph, ways[f], inputs) != expected)
            fail_msg("%s, fusion %d: expected status %d (%s)", graph->name, f, expected, opq_error());
    opq_graph_destroy(graph);
}

static void put(opq_dtype dtype, void *data, int64_t index, int64_t value)
{
    switch (opq_dtype_bytes(dtype)) {
    case 1: ((int8_t *)data)[index] = (int8_t)value; break;
    case 2: ((int16_t *)data)[index] = (int16_t)value; break;
    case 4: ((int32_t *)data)[index] = (int32_t)value; break;
    default: ((int64_t *)data)[index] = value; break;
    }
}

static const char *const ops[] = {"div_trunc", "div_floor", "remainder", "fmod"};

/* Every length up to three vectors and every place: a tail's masked lanes divide nothing, and none that counts is missed. What lies
 * behind the operands is 0. */
static void test_every_lane(void **state)
{
    static const opq_dtype dtypes[] = {OPQ_u8, OPQ_i8, OPQ_i16, OPQ_i32, OPQ_i64};
    static int64_t x[128], y[128];
    for (size_t op = 0; op < COUNT(ops); op++)
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (int length = 1; length <= 50; length += op == 1 && d == 3 ? 1 : 7) {
                char text[256];
                const char *name = opq_dtype_name(dtypes[d]);
                snprintf(text, sizeof text,
                         "graph @%s_%s_%d {\n  %%0 = input %s[%d]\n  %%1 = input %s[%d]\n  %%2 = %s %s[%d] %%0, %%1\n"
                         "  output %%2\n}\n",
                         ops[op], name, length, name, length, name, length, ops[op], name, length);
                memset(x, 0, sizeof x);
                memset(y, 0, sizeof y);
                for (int i = 0; i < length; i++) {
                    put(dtypes[d], x, i, i * 5 - 40);
                    put(dtypes[d], y, i, i % 7 == 3 ? -1 : i + 1);
                }
                opq_graph *graph = graph_of_text(text);
                expect_ok(run(*state, graph, OPQ_FUSED, (void *const[]){x, y}));
                for (int place = 0; place < length; place += 1 + length / 6) {
                    put(dtypes[d], y, place, 0);
                    if (run(*state, graph, OPQ_FUSED, (void *const[]){x, y}) != OPQ_INVALID)
                        fail_msg("%s: the 0 at %d is not seen", graph->name, place);
                    put(dtypes[d], y, place, 1);
                }
                opq_graph_destroy(graph);
            }
}

/* The smallest number by -1 wraps; x86 would trap. */
static void test_limits(void **state)
{
    int32_t x[] = {INT32_MIN, INT32_MAX, INT32_MIN, 0}, y[] = {-1, -1, 1, INT32_MIN};
    for (size_t op = 0; op < COUNT(ops); op++) {
        char text[160];
        snprintf(
            text,
            sizeof text, "graph @limits {\n  %%0 = input i32[4]\n  %%1 = input i32[4]\n  %%2 = %s i32[4] %%0, %%1\n  output %%2\n}\n",
            ops[op]);
        expect_both(*state, text, (void *const[]){x, y}, OPQ_OK);
    }
}

/* What divides, with a divisor y[0..n) of which one is 0, in kernels of every kind. */
static const char *const graphs[] = {
    "graph @where {\n  %0 = input i32[100]\n  %1 = input i32[100]\n  %2 = div_floor i32[100] %0, %1\n"
    "  %3 = const i32[] {value=0}\n  %4 = eq bool[100] %1, %3\n  %5 = where i32[100] %4, %0, %2\n  output %5\n}\n",
    "graph @row {\n  %0 = input i32[10,10]\n  %1 = input i32[10,10]\n  %2 = remainder i32[10,10] %0, %1\n"
    "  %3 = amax i32[10,1] %2 {axes=[1], tree=lanes}\n  output %3\n}\n",
    "graph @column {\n  %0 = input i32[10,10]\n  %1 = input i32[10,10]\n  %2 = remainder i32[10,10] %0, %1\n"
    "  %3 = amax i32[1,10] %2 {axes=[0], tree=column}\n  output %3\n}\n",
    "graph @sweeps {\n  %0 = input i32[10,10]\n  %1 = input i32[10,10]\n"
    "  %2 = amax i32[10,1] %0 {axes=[1], tree=lanes}\n  %3 = add i32[10,10] %0, %2\n"
    "  %4 = fmod i32[10,10] %3, %1\n  %5 = add i32[10,10] %4, %2\n  output %5\n}\n",
    "graph @broadcast {\n  %0 = input i32[100]\n  %1 = input i32[100]\n  %2 = slice i32[1] %1 {start=[77], step=[1]}\n"
    "  %3 = div_trunc i32[100] %0, %2\n  output %3\n}\n",
    "graph @by_row {\n  %0 = input i32[100,3]\n  %1 = input i32[100]\n  %2 = reshape i32[100,1] %1\n"
    "  %3 = div_trunc i32[100,3] %0, %2\n  output %3\n}\n",
    "graph @part {\n  %0 = input i32[100]\n  %1 = input i32[100]\n  %2 = div_floor i32[100] %0, %1\n"
    "  %3 = slice i32[10] %2 {start=[0], step=[1]}\n  %4 = neg i32[10] %3\n  output %4\n}\n",
    "graph @gathered {\n  %0 = input i32[100]\n  %1 = input i32[100]\n  %2 = div_floor i32[100] %0, %1\n"
    "  %3 = iota i64[5] {axis=0}\n  %4 = index_select i32[5] %2, %3 {axis=0}\n  output %4\n}\n",
    "graph @turned {\n  %0 = input i32[10,10]\n  %1 = input i32[10,10]\n  %2 = div_floor i32[10,10] %0, %1\n"
    "  %3 = permute i32[10,10] %2 {dims=[1,0]}\n  %4 = add i32[10,10] %3, %0\n  output %4\n}\n",
};

static void test_every_kind_of_kernel(void **state)
{
    static int32_t x[300], y[300];
    for (size_t g = 0; g < COUNT(graphs); g++) {
        for (int i = 0; i < 300; i++) {
            x[i] = i * 37 - 1000;
            y[i] = i % 11 - 20;
        }
        expect_both(*state, graphs[g], (void *const[]){x, y}, OPQ_OK);
        y[77] = 0;
        expect_both(*state, graphs[g], (void *const[]){x, y}, OPQ_INVALID);
    }
}

/* No element, no division: also where the divisor has elements. */
static void test_nothing_to_divide(void **state)
{
    static const char *const empty[] = {
        "graph @empty {\n  %0 = input i32[0]\n  %1 = input i32[1]\n  %2 = div_floor i32[0] %0, %1\n  output %2\n}\n",
        "graph @empty_rows {\n  %0 = input i32[3,0]\n  %1 = input i32[3,1]\n  %2 = div_floor i32[3,0] %0, %1\n"
        "  %3 = cast i64[3,0] %2\n  %4 = sum i64[3,1] %3 {axes=[1], tree=lanes}\n  output %4\n}\n",
        "graph @empty_columns {\n  %0 = input i32[0,3]\n  %1 = input i32[1,3]\n  %2 = div_floor i32[0,3] %0, %1\n"
        "  %3 = cast i64[0,3] %2\n  %4 = sum i64[1,3] %3 {axes=[0], tree=column}\n  output %4\n}\n",
    };
    static int32_t none[16];
    for (size_t i = 0; i < COUNT(empty); i++)
        expect_both(*state, empty[i], (void *const[]){none, none}, OPQ_OK);
}

/* Floats divide by 0. */
static void test_floats_are_not_checked(void **state)
{
    float x[] = {1, 0, -1, 5}, y[] = {0, 0, 0, 2};
    for (size_t op = 0; op < COUNT(ops); op++) {
        char text[160];
        snprintf(text, sizeof text,
                 "graph @floats {\n  %%0 = input f32[4]\n  %%1 = input f32[4]\n  %%2 = %s f32[4] %%0, %%1\n"
                 "  %%3 = eq bool[4] %%2, %%2\n  output %%3\n}\n",
                 ops[op]);
        expect_both(*state, text, (void *const[]){x, y}, OPQ_OK);
    }
}

/* One kernel, two divisions: the message has the line of the one that failed; of both, the first's. What does not depend on it is good. */
static void test_messages(void **state)
{
    static const char *const messages[] = {NULL, "div_floor (recorded at a.py:3): ZeroDivisionError",
                                           "remainder (recorded at a.py:4): ZeroDivisionError",
                                           "div_floor (recorded at a.py:3): ZeroDivisionError"};
    enum { N = 40000 }; /* enough for two threads */
    static int32_t x[N], y[N], z[N];
    machine *m = *state;
    opq_graph *graph =
        graph_of_text("graph @g {\n  %0 = input i32[40000]\n  %1 = input i32[40000]\n  %2 = input i32[40000]\n"
                      "  %3 = div_floor i32[40000] %0, %1  # a.py:3\n  %4 = remainder i32[40000] %3, %2  # a.py:4\n"
                      "  %5 = cast i64[40000] %0\n  %6 = sum i64[1] %5 {axes=[0], tree=lanes}\n  output %4, %6\n}\n");
    opq_plan *plan = NULL;
    expect_ok(opq_plan_compile(&m->runtime, graph, OPQ_FUSED, &plan));
    opq_graph_destroy(graph);
    for (int i = 0; i < N; i++)
        x[i] = y[i] = z[i] = 1;
    for (int which = 0; which < 4; which++) {
        opq_buffer *inputs[3], *outputs[2];
        void *data[] = {x, y, z};
        y[30000] = !(which & 1); /* in the second thread's part, the other in the first's */
        z[7] = !(which & 2);
        for (int i = 0; i < 3; i++)
            expect_ok(opq_pool_adopt(m->runtime.pool, data[i], sizeof x, NULL, NULL, &inputs[i]));
        opq_run_call call = {.inputs = inputs, .outputs = outputs};
        if (messages[which])
            expect_failure(opq_plan_run(&m->runtime, plan, &call), OPQ_INVALID, messages[which]);
        else
            expect_ok(opq_plan_run(&m->runtime, plan, &call));
        assert_int_equal(outputs[0] == NULL, which != 0);
        assert_int_equal(*(const int64_t *)outputs[1]->data, N);
        for (int i = 0; i < 2; i++)
            opq_buffer_release(outputs[i]);
        for (int i = 0; i < 3; i++)
            opq_buffer_release(inputs[i]);
    }
    opq_plan_release(plan);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, drop_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_lane),
        TEST(test_limits),
        TEST(test_every_kind_of_kernel),
        TEST(test_nothing_to_divide),
        TEST(test_floats_are_not_checked),
        TEST(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
