/* Machine code goes with the plans that used it.
 *
 *   OPAQUE_TEST_FULL=1    ten times as many graphs
 */
#include "support.h"

#include "codegen_llvm/cache.h"
#include "opaque/context.h"

#include <math.h>
#include <pthread.h>

enum { PLANS = 16, IDLE = 16, DIGITS = 6, KINDS = 4, THREADS = 2 };

/* Graph `which` is a chain of ops, one for each of its digits. */
static opq_value *chain(opq_ctx *ctx, int which, opq_value *x)
{
    for (int i = 0; i < DIGITS; i++, which /= KINDS) {
        switch (which % KINDS) {
        case 0: x = op1(ctx, OPQ_OP_neg, x); break;
        case 1: x = op1(ctx, OPQ_OP_abs, x); break;
        case 2: x = op2(ctx, OPQ_OP_add, x, again(x)); break;
        default: x = op2(ctx, OPQ_OP_sub, x, number(ctx, 3)); break;
        }
    }
    return x;
}

static float chain_expected(int which, float x)
{
    for (int i = 0; i < DIGITS; i++, which /= KINDS)
        x = which % KINDS == 0 ? -x : which % KINDS == 1 ? fabsf(x) : which % KINDS == 2 ? x + x : x - 3;
    return x;
}

static bool is_right(opq_ctx *ctx, int which)
{
    opq_value *x = chain(ctx, which, leaf(ctx, -2));
    bool right = opq_materialize(ctx, &x, 1, OPQ_REASON_item) == OPQ_OK;
    const float *got = right ? opq_buffer_data(opq_value_buffer(x)) : NULL;
    for (int i = 0; i < N; i++)
        right = right && got[i] == chain_expected(which, (float)i - 2);
    opq_value_release(x);
    return right;
}

/* Of the process's memory. Each module has some of its own. */
static int mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static size_t bound_code(opq_ctx *ctx)
{
    assert_true(is_right(ctx, 0));
    size_t one = (size_t)stats_of(ctx).bytes_code;
    assert_true(stats_of(ctx).kernels_kept == 1 && one >= 4096);
    opq_plan_cache_destroy(ctx->plans);
    expect_ok(opq_plan_cache_create(PLANS, SIZE_MAX, &ctx->plans));
    opq_jit_cache(ctx->runtime.jit)->idle_max = IDLE * one;
    return one;
}

typedef struct worker {
    opq_ctx *ctx;
    int first, count, wrong;
} worker;

/* Each graph twice, far apart: the second time its code was evicted. */
static void *work(void *data)
{
    worker *w = data;
    for (int i = 0; i < 2 * w->count; i++)
        w->wrong += !is_right(w->ctx, w->first + i % w->count);
    return NULL;
}

static void test_code_is_bounded(void **state)
{
    opq_ctx *ctx = *state;
    size_t one = bound_code(ctx);
    int before = mappings(), count = getenv("OPAQUE_TEST_FULL") ? 1500 : 150;
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){ctx, i * count / 2, count, 0}; /* half of the graphs are those of the other thread too */
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    opq_stats stats = stats_of(ctx);
    assert_true(stats.kernels_compiled > 2 * count);
    assert_in_range(stats.kernels_kept, PLANS, PLANS + IDLE);
    assert_true((size_t)stats.bytes_code <= (PLANS + IDLE) * 2 * one);
    assert_true(mappings() <= before + 2 * (PLANS + IDLE) + 32); /* 32: of the threads */
}

static void test_plans_give_code_back(void **state)
{
    opq_ctx *ctx = *state;
    opq_jit_cache(ctx->runtime.jit)->idle_max = 0;
    assert_true(is_right(ctx, 1) && is_right(ctx, 2));
    assert_int_equal(stats_of(ctx).kernels_kept, 2);
    opq_plan_cache_clear(ctx->plans);
    assert_int_equal(stats_of(ctx).kernels_kept, 0);
    assert_int_equal(stats_of(ctx).bytes_code, 0);
    assert_true(is_right(ctx, 1));
}

/* Plans alone, or the code, too. */
static void test_what_is_forgotten(void **state)
{
    opq_ctx *ctx = *state;
    assert_true(is_right(ctx, 1) && is_right(ctx, 1));
    opq_stats first = stats_of(ctx);
    opq_forget(ctx, false);
    assert_true(is_right(ctx, 1));
    opq_stats planned = stats_of(ctx);
    assert_int_equal(planned.plans_built, first.plans_built + 1);
    assert_int_equal(planned.kernels_compiled + planned.kernels_loaded, first.kernels_compiled + first.kernels_loaded);
    opq_forget(ctx, true);
    assert_int_equal(stats_of(ctx).kernels_kept, 0);
    assert_true(is_right(ctx, 1));
    assert_int_equal(stats_of(ctx).kernels_compiled + stats_of(ctx).kernels_loaded,
                     planned.kernels_compiled + planned.kernels_loaded + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_code_is_bounded, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_plans_give_code_back, make_context, drop_context),
        cmocka_unit_test_setup_teardown(test_what_is_forgotten, make_context, drop_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
