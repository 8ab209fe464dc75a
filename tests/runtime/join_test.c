/* Joined plans: what is a part of what, what lies in whose place, what a failure leaves. */
#include "tests/runtime/machine.h"

#include "runtime/plan_join.h"

static int make_machine(void **state) { return create_machine(state, NULL); }

enum { SIZE = 8, BYTES = SIZE * 4 };

static const char doubles[] = "graph @g {\n  %0 = input f32[8]\n  %1 = add f32[8] %0, %0\n  output %1\n}\n",
                  halves[] = "graph @g {\n  %0 = input f32[4]\n  %1 = add f32[4] %0, %0\n  output %1\n}\n",
                  gives[] = "graph @g {\n  %0 = input f32[4]\n  output %0\n}\n",
                  updates[] =
                      "graph @g {\n  %0 = input f32[8]\n  %1 = const f32[] {value=0x1p+0}\n  %2 = expand f32[2] %1\n"
                      "  %3 = update f32[8] %0, %2 {offset=1, sizes=[2], strides=[1]}\n  output %3\n}\n",
                  takes[] = "graph @g {\n  %0 = input f32[8]\n  %1 = input f32[2]\n"
                            "  %2 = update f32[8] %0, %1 {offset=1, sizes=[2], strides=[1]}\n  output %2\n}\n",
                  picks[] = "graph @g {\n  %0 = input f32[8]\n  %1 = input i64[2]\n"
                            "  %2 = gather f32[2] %0, %1 {axis=0}\n  output %2\n}\n";

/* f32[8] 0, 1, .. */
static opq_buffer *numbers(machine *m)
{
    opq_buffer *buffer;
    expect_ok(opq_pool_run_buffer(m->runtime.pool, BYTES, &buffer));
    for (int i = 0; i < SIZE; i++)
        ((float *)buffer->data)[i] = (float)i;
    return buffer;
}

static opq_plan *part_of(machine *m, const char *text) { return plan_of_graph(m, graph_of_text(text)); }

typedef struct joined {
    opq_join_part parts[3];
    opq_join_source inputs[3][2];
    opq_join_output outputs[2];
    int64_t bytes[2];
    int count, output_count;
} joined;

static void add(machine *m, joined *j, const char *text, opq_join_source first, opq_join_source second)
{
    opq_join_source *inputs = j->inputs[j->count];
    inputs[0] = first;
    inputs[1] = second;
    j->parts[j->count++] = (opq_join_part){part_of(m, text), inputs, NULL};
}

static opq_status join(machine *m, joined *j, opq_plan **out_plan)
{
    opq_join all = {j->parts, j->count, j->bytes, j->bytes[1] ? 2 : 1, j->outputs, j->output_count};
    opq_status status = opq_plan_join(&m->runtime, &all, out_plan);
    for (int k = 0; k < j->count; k++) /* the joined plan holds them */
        opq_plan_release(j->parts[k].plan);
    return status;
}

static const opq_join_source whole = {OPQ_JOIN_INPUTS, 0, 0, BYTES}, none = {0};

static void expect_row(const opq_buffer *buffer, const float *expected, int count)
{
    for (int i = 0; i < count; i++)
        if (((const float *)buffer->data)[i] != expected[i])
            fail_msg("element %d is %g", i, (double)((const float *)buffer->data)[i]);
}

/* The second part reads the middle of what the first made, which then is no output and lies in the arena. */
static void test_a_part_of_what_another_made(void **state)
{
    machine *m = *state;
    joined j = {.bytes = {BYTES}, .outputs = {{1, 0}}, .output_count = 1};
    opq_plan *plan;
    opq_buffer *input = numbers(m), *output;
    add(m, &j, doubles, whole, none);
    add(m, &j, halves, (opq_join_source){0, 0, 2 * 4, 4 * 4}, none);
    expect_ok(join(m, &j, &plan));
    opq_run_call call = {.inputs = &input, .outputs = &output};
    expect_ok(opq_plan_run(&m->runtime, plan, &call));
    expect_row(output, (float[]){8, 12, 16, 20}, 4);
    assert_int_equal(plan->step_count, 2);
    assert_true(plan->arena_bytes > 0);
    assert_true(opq_plan_bytes(plan) > opq_plan_bytes(plan->parts[0]) + opq_plan_bytes(plan->parts[1]));
    opq_buffer_release(output);
    opq_buffer_release(input);
    opq_plan_release(plan);
}

static void test_an_output_that_is_a_part_is_refused(void **state)
{
    joined j = {.bytes = {BYTES}, .outputs = {{0, 0}}, .output_count = 1};
    opq_plan *plan;
    add(*state, &j, gives, (opq_join_source){OPQ_JOIN_INPUTS, 0, 4, 4 * 4}, none);
    expect_failure(join(*state, &j, &plan), OPQ_UNSUPPORTED, "joined plans: output 0 is a part of an input");
}

/* What a part of an earlier value reads behind its update is the old value. */
static void test_an_update_of_what_others_read(void **state)
{
    machine *m = *state;
    joined j = {.bytes = {BYTES}, .outputs = {{1, 0}, {2, 0}}, .output_count = 2};
    opq_plan *plan;
    opq_buffer *input = numbers(m), *outputs[2];
    add(m, &j, doubles, whole, none);
    add(m, &j, updates, (opq_join_source){0, 0, 0, BYTES}, none);
    add(m, &j, halves, (opq_join_source){0, 0, 0, 4 * 4}, none);
    expect_ok(join(m, &j, &plan));
    opq_run_call call = {.inputs = &input, .outputs = outputs};
    expect_ok(opq_plan_run(&m->runtime, plan, &call));
    expect_row(outputs[0], (float[]){0, 1, 1, 6, 8, 10, 12, 14}, 8);
    expect_row(outputs[1], (float[]){0, 4, 8, 12}, 4);
    opq_buffer_release(outputs[0]);
    opq_buffer_release(outputs[1]);
    opq_buffer_release(input);
    opq_plan_release(plan);
}

/* An update of what nobody else reads is in place, but not if what it writes is a part of that. */
static void test_an_update_that_reads_a_part(void **state)
{
    const opq_join_source sources[] = {{OPQ_JOIN_INPUTS, 0, 0, 2 * 4}, {0, 0, 0, 2 * 4}};
    for (int part = 0; part < 2; part++) {
        joined j = {.bytes = {BYTES}, .outputs = {{1, 0}}, .output_count = 1};
        opq_plan *plan;
        add(*state, &j, doubles, whole, none);
        add(*state, &j, takes, (opq_join_source){0, 0, 0, BYTES}, sources[part]);
        expect_ok(join(*state, &j, &plan));
        assert_int_equal(plan->steps[1].copy_from >= 0, part);
        opq_plan_release(plan);
    }
}

/* An input that nobody needs afterwards: not while a part of it is still read, and not before all that may fail has gone well. */
static void test_inputs_are_replaced_last(void **state)
{
    machine *m = *state;
    for (int fails = 0; fails < 2; fails++) {
        joined j = {.bytes = {BYTES, 2 * 8}, .outputs = {{0, 0}, {1, 0}}, .output_count = 2};
        const opq_join_source index = {OPQ_JOIN_INPUTS, 1, 0, 2 * 8};
        opq_plan *plan;
        opq_buffer *inputs[2] = {numbers(m)}, *outputs[2];
        expect_ok(opq_pool_run_buffer(m->runtime.pool, 2 * 8, &inputs[1]));
        memcpy(inputs[1]->data, (int64_t[]){3, 99}, 2 * 8);
        add(m, &j, updates, whole, none);
        if (fails)
            add(m, &j, picks, (opq_join_source){0, 0, 0, BYTES}, index);
        else
            add(m, &j, halves, (opq_join_source){OPQ_JOIN_INPUTS, 0, 0, 4 * 4}, none);
        expect_ok(join(m, &j, &plan));
        opq_run_call call = {.inputs = inputs, .outputs = outputs, .replaces = (int32_t[]){0, -1}};
        opq_status status = opq_plan_run(&m->runtime, plan, &call);
        assert_int_equal(status, fails ? OPQ_INVALID : OPQ_OK);
        expect_row(inputs[0], (float[]){0, 1, 2, 3, 4, 5, 6, 7}, 8);
        if (!fails)
            expect_row(outputs[1], (float[]){0, 2, 4, 6}, 4);
        for (int i = 0; i < 2; i++) {
            opq_buffer_release(outputs[i]);
            opq_buffer_release(inputs[i]);
        }
        opq_plan_release(plan);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, drop_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_a_part_of_what_another_made),
                                       TEST(test_an_output_that_is_a_part_is_refused),
                                       TEST(test_an_update_of_what_others_read), TEST(test_an_update_that_reads_a_part),
                                       TEST(test_inputs_are_replaced_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
