/* Folders from which a run can be repeated: which runs get one, what is in it, and that writing it disturbs nothing. */
#include "support.h"
#include "tests/folder.h"

#include <dirent.h>

static opq_status call_status;
static bool was_running;

/* ---- files */

static bool exists(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* In `out`, ended by a 0. */
static void read_file(const char *name, char *out, size_t size)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, size - 1, file)] = 0;
    fclose(file);
}

static void expect_in_file(const char *name, const char *part)
{
    char text[8192];
    read_file(name, text, sizeof text);
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in %s: %s", part, name, text);
}

static int count_entries(void)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* ---- contexts */

static opq_status make_call(void *self, void *payload, const void *const *operands, void *const *results)
{
    (void)self;
    (void)payload;
    was_running = exists("000/running");
    if (call_status != OPQ_OK)
        return opq_fail(call_status, "the call broke");
    for (int r = 0; r < 2; r++)
        if (results[r])
            memcpy(results[r], operands[0], N * sizeof(float));
    return OPQ_OK;
}

static const opq_host host = {.call_extern = make_call,
                              .retain_payload = retain_payload,
                              .release_payload = release_payload,
                              .versions = "a host \"1.0\""};

static int make_world(void **state)
{
    call_status = OPQ_OK;
    was_running = false;
    unsetenv("OPAQUE_REPRO");
    unsetenv("OPAQUE_REPRO_INPUTS");
    return make_folder(state) || setenv("TMPDIR", folder, 1);
}

static opq_ctx *context(const char *repro)
{
    opq_ctx *ctx = NULL;
    if (repro)
        setenv("OPAQUE_REPRO", repro, 1);
    expect_ok(opq_ctx_create(&host, &ctx));
    return ctx;
}

static opq_status run(opq_ctx *ctx, opq_value *value)
{
    opq_status status = opq_materialize(ctx, &value, 1, OPQ_REASON_item);
    opq_value_release(value);
    return status;
}

static opq_value *called(opq_ctx *ctx, opq_value *x)
{
    static call c; /* outlives every context */
    opq_value *results[2];
    record_call(ctx, &c, x, results);
    opq_value_release(results[1]);
    return results[0];
}

/* ---- OPAQUE_REPRO=DIR */

static void test_every_plan_is_written_once(void **state)
{
    (void)state;
    opq_ctx *ctx = context(folder);
    for (int i = 0; i < 3; i++) {
        expect_ok(run(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, (float)i))));
        expect_ok(run(ctx, op1(ctx, OPQ_OP_exp, leaf(ctx, (float)i))));
    }
    assert_int_equal(count_entries(), 2);
    expect_in_file("000/graph.ir", "%1 = neg f32[8] %0");
    expect_in_file("001/graph.ir", "%1 = exp f32[8] %0");
    expect_in_file("001/kernels.txt", "kernel @exp_0(");
    expect_in_file("000/inputs.json",
                   "{\"input\": 0, \"dtype\": \"f32\", \"shape\": [8], \"min\": 0, \"max\": 7, \"mean\": 3.5, "
                   "\"zeros\": 1, \"nan\": 0, \"inf\": 0, \"-inf\": 0}");
    expect_in_file("000/environment.json", "\"host\": \"a host \\\"1.0\\\"\"");
    expect_in_file("000/environment.json", "\"replay\": \"opq-opt --reduce .\"");
    assert_false(exists("000/input0.npy"));
    assert_false(exists("000/error.txt"));
    opq_ctx_destroy(ctx);
}

static void test_another_process_does_not_overwrite(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        opq_ctx *ctx = context(folder);
        expect_ok(run(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 0))));
        opq_ctx_destroy(ctx);
    }
    assert_int_equal(count_entries(), 2);
}

static void test_the_run_in_progress_is_marked(void **state)
{
    (void)state;
    opq_ctx *ctx = context(folder);
    expect_ok(run(ctx, called(ctx, leaf(ctx, 0))));
    assert_true(was_running);
    assert_false(exists("000/running"));
    was_running = false;
    expect_ok(run(ctx, called(ctx, leaf(ctx, 0)))); /* the plan is there already */
    assert_true(was_running);
    assert_false(exists("000/running"));
    opq_ctx_destroy(ctx);
}

static void test_values_on_request(void **state)
{
    (void)state;
    char bytes[256];
    setenv("OPAQUE_REPRO_INPUTS", "1", 1);
    opq_ctx *ctx = context(folder);
    opq_modes_set(OPQ_MODE_UNFUSED);
    expect_ok(run(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 3))));
    opq_modes_set(0);
    read_file("000/input0.npy", bytes, sizeof bytes);
    assert_memory_equal(bytes + 128, FLOATS(3, 4, 5, 6, 7, 8, 9, 10), N * sizeof(float));
    expect_in_file("000/environment.json", "opq-opt --reduce . --unfused");
    opq_ctx_destroy(ctx);
}

static void test_the_number_is_bounded(void **state)
{
    (void)state;
    opq_ctx *ctx = context(folder);
    for (int i = 0; i < 105; i++) {
        opq_value *value = leaf(ctx, 1);
        for (int k = 0; k <= i; k++)
            value = op1(ctx, OPQ_OP_neg, value);
        expect_ok(run(ctx, value));
    }
    assert_int_equal(count_entries(), 100);
    opq_ctx_destroy(ctx);
}

/* The run is what matters. */
static void test_nowhere_to_write(void **state)
{
    (void)state;
    opq_ctx *ctx = context("/proc/nowhere");
    for (int i = 0; i < 2; i++) {
        opq_value *value = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
        expect_floats(ctx, value, FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
    }
    opq_ctx_destroy(ctx);
}

/* ---- failures */

static void expect_last(opq_ctx *ctx, const char *part)
{
    char *last = NULL;
    expect_ok(opq_repro_last(ctx, &last));
    assert_true(*part ? strstr(last, part) != NULL : *last == 0);
    free(last);
}

static void test_our_failure_is_written(void **state)
{
    (void)state;
    opq_ctx *ctx = context(NULL);
    expect_last(ctx, "");
    expect_ok(run(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 0))));
    assert_int_equal(count_entries(), 0);
    call_status = OPQ_INTERNAL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run(ctx, called(ctx, leaf(ctx, 0))), OPQ_INTERNAL);
        assert_non_null(strstr(opq_error(), "the call broke; to repeat it: "));
        assert_non_null(strstr(opq_error(), folder));
    }
    assert_int_equal(count_entries(), 1);
    expect_last(ctx, "/torch_opaque_");
    char *last = NULL, path[256];
    expect_ok(opq_repro_last(ctx, &last));
    snprintf(path, sizeof path, "%s/error.txt", last + strlen(folder) + 1);
    expect_in_file(path, "the call broke\n");
    free(last);
    opq_ctx_destroy(ctx);
}

static void test_the_inputs_are_those_that_failed(void **state)
{
    (void)state;
    opq_ctx *ctx = context(folder);
    expect_ok(run(ctx, called(ctx, leaf(ctx, 0))));
    expect_in_file("000/inputs.json", "\"min\": 0, \"max\": 7");
    call_status = OPQ_INTERNAL;
    assert_int_equal(run(ctx, called(ctx, leaf(ctx, 20))), OPQ_INTERNAL);
    expect_in_file("000/inputs.json", "\"min\": 20, \"max\": 27");
    expect_in_file("000/error.txt", "the call broke\n");
    assert_int_equal(count_entries(), 1);
    opq_ctx_destroy(ctx);
}

static void test_a_failed_plan_is_written(void **state)
{
    (void)state;
    opq_ctx *ctx = NULL;
    const opq_host mute = {.retain_payload = retain_payload, .release_payload = release_payload};
    expect_ok(opq_ctx_create(&mute, &ctx));
    assert_int_not_equal(run(ctx, called(ctx, leaf(ctx, 0))), OPQ_OK);
    assert_non_null(strstr(opq_error(), "; to repeat it: "));
    assert_int_equal(count_entries(), 1);
    opq_ctx_destroy(ctx);
}

static void test_the_users_failure_is_not(void **state)
{
    (void)state;
    static const opq_status statuses[] = {OPQ_INVALID, OPQ_OUT_OF_RANGE, OPQ_UNSUPPORTED, OPQ_NO_MEMORY};
    opq_ctx *ctx = context(NULL);
    for (size_t i = 0; i < COUNT(statuses); i++) {
        call_status = statuses[i];
        assert_int_equal(run(ctx, called(ctx, leaf(ctx, 0))), statuses[i]);
        assert_string_equal(opq_error(), "the call broke");
    }
    assert_int_equal(count_entries(), 0);
    opq_ctx_destroy(ctx);
}

static void test_off(void **state)
{
    (void)state;
    opq_ctx *ctx = context("off");
    call_status = OPQ_INTERNAL;
    assert_int_equal(run(ctx, called(ctx, leaf(ctx, 0))), OPQ_INTERNAL);
    assert_string_equal(opq_error(), "the call broke");
    assert_int_equal(count_entries(), 0);
    expect_last(ctx, "");
    opq_ctx_destroy(ctx);
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_world, drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(test_every_plan_is_written_once),
        test(test_another_process_does_not_overwrite),
        test(test_the_run_in_progress_is_marked),
        test(test_values_on_request),
        test(test_the_number_is_bounded),
        test(test_nowhere_to_write),
        test(test_our_failure_is_written),
        test(test_the_inputs_are_those_that_failed),
        test(test_a_failed_plan_is_written),
        test(test_the_users_failure_is_not),
        test(test_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
