/* Plans that threads in the background make: the program goes on in pieces, changes over between two runs, and neither a plan that fails, a fork,
 * nor the end of the context in the middle of one costs anything. */
#include "support.h"
#include "tests/folder.h"

#include "opaque/context.h"
#include "opaque/pieces.h"
#include "runtime/plan_internal.h"

#include <sys/wait.h>
#include <unistd.h>

enum { OPS = 30, RUNS = 8 };

/* ---- a thread in the background waits before its first kernel, or fails at it */

static pthread_t program;
static atomic_bool held, fails;
static atomic_int waits; /* threads that do */

opq_status __real_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step);
opq_status __wrap_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step);
opq_status __wrap_opq_plan_step(opq_planner *planner, int32_t kernel, opq_step *out_step)
{
    if (pthread_equal(pthread_self(), program))
        return __real_opq_plan_step(planner, kernel, out_step);
    atomic_fetch_add(&waits, 1);
    while (held)
        usleep(100);
    atomic_fetch_sub(&waits, 1);
    return fails ? opq_fail(OPQ_UNSUPPORTED, "the test has no plans") : __real_opq_plan_step(planner, kernel, out_step);
}

static void wait_for_a_thread(void)
{
    while (atomic_load(&waits) == 0)
        usleep(100);
}

/* ---- a program */

static call adds_two = {.add = 2};

/* A chain of ops around a call. */
static void run_chain(opq_ctx *ctx, float first)
{
    opq_value *value = leaf(ctx, first), *results[2];
    for (int i = 0; i < OPS; i++)
        value = op1(ctx, OPQ_OP_neg, value);
    record_call(ctx, &adds_two, value, results);
    opq_value_release(results[1]);
    value = op2(ctx, OPQ_OP_mul, results[0], number(ctx, 2));
    float expected[N];
    for (int i = 0; i < N; i++)
        expected[i] = 2 * (first + (float)i + 2);
    expect_floats(ctx, value, expected);
}

static void run_chains(opq_ctx *ctx, int count)
{
    for (int i = 0; i < count; i++)
        run_chain(ctx, (float)i);
}

static int make_model(void **state)
{
    program = pthread_self();
    setenv("OPAQUE_BACKGROUND", "2", 1);
    setenv("OPAQUE_REPRO", "off", 0); /* a test sets it before */
    if (make_context(state))
        return 1;
    opq_tiers *tiers = &((opq_ctx *)*state)->tiers;
    tiers->seconds_per_op = 1e-4; /* 3 ms for the chain, which is seen to be a loop's the third time */
    tiers->purse = 10;            /* and may compile what it needs */
    return 0;
}

static int drop_model(void **state)
{
    int failed = drop_context(state);
    return failed || adds_two.retained != 0;
}

static void test_the_program_goes_on_and_changes_over(void **state)
{
    opq_ctx *ctx = *state;
    held = true;
    run_chains(ctx, RUNS);
    wait_for_a_thread();
    run_chains(ctx, RUNS);
    opq_stats stats = stats_of(ctx);
    assert_int_equal(stats.runs_in_pieces, 2 * RUNS);
    assert_int_equal(stats.plans_built, 0);
    held = false;
    opq_plans_wait(ctx);
    run_chains(ctx, RUNS);
    stats = stats_of(ctx);
    assert_int_equal(stats.runs_in_pieces, 2 * RUNS);
    assert_int_equal(stats.plans_built, 1);
    assert_int_equal(stats.plans_in_background, 1);
    assert_true(stats.compile_seconds >= 0 && stats.run_seconds >= 0);
}

static void test_a_plan_that_fails_is_not_tried_again(void **state)
{
    opq_ctx *ctx = *state;
    fails = true;
    for (int i = 0; i < 3; i++) {
        run_chains(ctx, RUNS);
        opq_plans_wait(ctx);
    }
    fails = false;
    opq_stats stats = stats_of(ctx);
    assert_int_equal(stats.plans_failed, 1);
    assert_int_equal(stats.runs_in_pieces, 3 * RUNS);
}

static bool has_file(const char *in, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", in, name);
    return access(path, F_OK) == 0;
}

/* Its folder: DIR/000, or one among the temporary files. */
static void expect_a_folder(opq_ctx *ctx, const char *first, bool every)
{
    static const char *const files[] = {"graph.ir", "inputs.json", "kernels.txt", "environment.json", "error.txt"};
    char *last = NULL;
    expect_ok(opq_repro_last(ctx, &last));
    assert_true(every ? strcmp(last, first) == 0 : strstr(last, "/torch_opaque_") != NULL);
    for (size_t i = 0; i < COUNT(files); i++)
        assert_true(has_file(last, files[i]));
    assert_false(has_file(last, "compiling"));
    free(last);
}

static void test_a_plan_that_fails_can_be_repeated(void **state)
{
    char first[80];
    setenv("TMPDIR", folder, 1);
    snprintf(first, sizeof first, "%s/000", folder);
    for (int every = 0; every < 2; every++) {
        setenv("OPAQUE_REPRO", every ? folder : "", 1);
        assert_int_equal(make_model(state), 0);
        opq_ctx *ctx = *state;
        fails = held = true;
        run_chains(ctx, RUNS);
        wait_for_a_thread();
        assert_int_equal(has_file(first, "compiling"), every);
        held = false;
        opq_plans_wait(ctx);
        fails = false;
        assert_int_equal(stats_of(ctx).plans_failed, 1);
        expect_a_folder(ctx, first, every);
        assert_int_equal(drop_model(state), 0);
    }
    unsetenv("OPAQUE_REPRO");
    unsetenv("TMPDIR");
}

static void test_no_threads(void **state)
{
    opq_ctx *ctx = *state;
    ctx->background.threads_wanted = 0;
    run_chains(ctx, RUNS);
    opq_stats stats = stats_of(ctx);
    assert_int_equal(stats.plans_built, 1);
    assert_int_equal(stats.plans_in_background, 0);
    assert_true(stats.runs_in_pieces < RUNS);
}

enum { SINES = 10 };
static void run_sines(opq_ctx *ctx, int count)
{
    for (int run = 0; run < count; run++) {
        opq_value *value = leaf(ctx, 0);
        for (int i = 0; i < SINES; i++)
            value = op1(ctx, OPQ_OP_sin, value);
        expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_item));
        opq_value_release(value);
    }
}

/* A kernel that takes longer to compile than all runs have lost and will is not compiled, here or there; once there is enough it is. */
static void test_compiling_has_to_pay(void **state)
{
    opq_ctx *ctx = *state;
    ctx->tiers.seconds_per_op =
        1.2e-4; /* so that the third run has it tried, by a thread; what is to come is then 1.4 ms */
    for (int threads = 0; threads < 2; threads++) {
        ctx->background.threads_wanted = threads;
        opq_tiers_forget(&ctx->tiers, false);
        ctx->tiers.purse = -1;
        run_sines(ctx, 3);
        opq_plans_wait(ctx);
        run_sines(ctx, 1);
        opq_stats stats = stats_of(ctx);
        assert_int_equal(stats.plans_built + stats.plans_failed, 0);
        assert_int_equal(stats.runs_in_pieces, 4 * (threads + 1));
        assert_true(ctx->tiers.seconds_per_op > 1.2e-4); /* it was tried */
        ctx->tiers.seconds_per_op = 1.2e-4;
    }
    opq_tiers_forget(&ctx->tiers, false);
    ctx->tiers.purse = 10;
    run_sines(ctx, 3);
    opq_plans_wait(ctx);
    run_sines(ctx, 1);
    assert_int_equal(stats_of(ctx).plans_built, 1);
    assert_true(ctx->tiers.purse > 1 && ctx->tiers.purse < 10); /* what was not needed is back */
}

/* The allocator of the address sanitizer (GCC 12) takes no lock before a fork: there, no thread may be in it, so the only one is held. */
#ifdef __SANITIZE_ADDRESS__
enum { THREADS_AT_FORK = 1 };
#else
enum { THREADS_AT_FORK = 2 };
#endif

static void test_the_child_of_a_fork_goes_on(void **state)
{
    opq_ctx *ctx = *state;
    ctx->background.threads_wanted = THREADS_AT_FORK;
    held = true;
    run_chains(ctx, RUNS);
    wait_for_a_thread();
    pid_t child = fork();
    assert_true(child >= 0);
    held = false;
    if (child == 0) {
        alarm(100); /* not the parent's whole time */
        program = pthread_self();
        run_chains(ctx, RUNS);
        opq_plans_wait(ctx);
        run_chains(ctx, RUNS);
        opq_stats stats = stats_of(ctx);
        _exit(stats.plans_in_background == 1 && stats.runs_in_pieces <= 2 * RUNS + 1 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    opq_plans_wait(ctx);
    assert_int_equal(stats_of(ctx).plans_in_background, 1);
}

static void test_the_context_ends_in_the_middle(void **state)
{
    held = true;
    run_chains(*state, RUNS);
    wait_for_a_thread();
    held = false; /* drop_context ends it */
}

/* ---- the order */

static opq_job *job_of(opq_ctx *ctx, char key, double gain)
{
    opq_graph *graph = graph_of_text("graph @one {\n  %0 = input f32[8]\n  %1 = neg f32[8] %0\n  output %1\n}\n");
    opq_job *job = opq_job_new(&ctx->host, graph, &key, 1);
    job->gain = gain;
    return job;
}

static void test_most_gain_comes_first(void **state)
{
    opq_ctx *ctx = *state;
    opq_background *b = &ctx->background;
    b->threads_wanted = 1;
    held = true;
    assert_true(opq_background_add(b, job_of(ctx, 'a', 0)));
    wait_for_a_thread();
    for (int i = 0; i < 3; i++)
        assert_true(opq_background_add(b, job_of(ctx, "bcd" [i], (double[]) { 2, 3, 1 }[i])));
    assert_true(opq_background_has(b, "d", 1) && !opq_background_has(b, "e", 1));
    held = false;
    opq_background_wait(b);
    opq_job *job = opq_background_done(b);
    for (int i = 0; i < 4; i++) { /* the last one first */
        assert_non_null(job);
        assert_int_equal(job->key[0], "dbca"[i]);
        opq_job *next = job->next;
        opq_job_drop(&ctx->host, job);
        job = next;
    }
    assert_null(job);
}

/* ---- what the model weighs */

static opq_value *matrix(opq_ctx *ctx, int64_t rows, int64_t columns)
{
    opq_type type = opq_type_make(OPQ_f32, 2, (const int64_t[]){rows, columns});
    opq_buffer *buffer = NULL;
    opq_value *value = NULL;
    expect_ok(opq_buffer_create(ctx, (size_t)opq_type_bytes(&type), &buffer));
    memset(opq_buffer_data(buffer), 0, (size_t)opq_type_bytes(&type));
    expect_ok(opq_value_leaf(ctx, &type, buffer, &value));
    opq_buffer_release(buffer);
    return value;
}

/* Each step of a recurrent layer is planned; and what it makes is stored, so that of its bytes a plan saves none. */
static void test_a_recurrent_layer_is_dear_to_plan(void **state)
{
    enum { STEPS = 10, BATCH = 2, HIDDEN = 4 };
    opq_ctx *ctx = *state;
    opq_value *operands[] = {matrix(ctx, STEPS * BATCH, 4 * HIDDEN), matrix(ctx, BATCH, HIDDEN),
                             matrix(ctx, BATCH, HIDDEN), matrix(ctx, 4 * HIDDEN, HIDDEN)},
              *value = NULL;
    opq_snapshot *snapshot = NULL;
    expect_ok(opq_record(ctx, OPQ_OP_lstm, operands, 4, NULL, 0, &value));
    expect_ok(opq_snapshot_take(ctx, &value, 1, &snapshot));
    assert_true(opq_ops_to_plan(snapshot) > 2 * STEPS);
    assert_true(opq_pieces_saving(snapshot) < 2e-6);
    opq_snapshot_drop(snapshot);
    opq_value_release(value);
    for (size_t i = 0; i < COUNT(operands); i++)
        opq_value_release(operands[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_program_goes_on_and_changes_over, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_a_plan_that_fails_is_not_tried_again, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_a_plan_that_fails_can_be_repeated, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_no_threads, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_compiling_has_to_pay, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_the_child_of_a_fork_goes_on, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_the_context_ends_in_the_middle, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_a_recurrent_layer_is_dear_to_plan, make_model, drop_model),
        cmocka_unit_test_setup_teardown(test_most_gain_comes_first, make_model, drop_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
