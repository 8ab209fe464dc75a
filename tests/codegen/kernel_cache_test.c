/* The cache of compiled kernels: what is used stays, what is idle stays within a bound, what went is made again. */
#include "codegen_llvm/cache.h"
#include "kernel_support.h"

#include <pthread.h>

static int make_jit(void **state) { return opq_jit_create((opq_jit **)state) != OPQ_OK; }

static int drop_jit(void **state)
{
    opq_jit_destroy(*state);
    return 0;
}

/* The code of a kernel that stores a number, and what it stores. */
static const opq_code *code_of(opq_jit *jit, double number, bool *out_fresh)
{
    const opq_code *code;
    opq_arena arena = {0};
    body b;
    body_start(&b, OPQ_KERNEL_map, "k");
    body_store(&b, body_const(&b, OPQ_f32, (opq_number){.f = number}), 0, OPQ_f32, "1");
    opq_loops loops = body_loops(&b, &arena);
    if (opq_codegen(jit, &loops, &code, out_fresh) != OPQ_OK)
        fail_msg("%s", opq_error());
    opq_arena_drop(&arena);
    return code;
}

static float stored_by(const opq_code *code)
{
    opq_arena arena = {0};
    float x = 0;
    void *buffers[] = {&x};
    launch l = {0};
    body b;
    body_start(&b, OPQ_KERNEL_map, "k");
    body_store(&b, body_const(&b, OPQ_f32, (opq_number){0}), 0, OPQ_f32, "1");
    launch_dims(&l, &b, (const int64_t[]){1});
    opq_loops loops = body_loops(&b, &arena);
    int64_t error[2] = {0};
    code->fn(buffers, l.dims, NULL, 0, opq_loops_units(&loops, l.dims), NULL, error);
    opq_arena_drop(&arena);
    return x;
}

static bool is_kept(opq_jit *jit, double number)
{
    bool fresh;
    opq_code_release(jit, code_of(jit, number, &fresh));
    return !fresh;
}

static int64_t kept(opq_jit *jit)
{
    int64_t kernels, bytes;
    opq_code_usage(jit, &kernels, &bytes);
    assert_true((kernels == 0) == (bytes == 0));
    return kernels;
}

static void test_idle_code_is_found_again(void **state)
{
    opq_jit *jit = *state;
    bool fresh;
    const opq_code *code = code_of(jit, 3, &fresh);
    assert_true(fresh && code->bytes >= 4096);
    opq_code_release(jit, code);
    assert_int_equal(kept(jit), 1);
    assert_true(is_kept(jit, 3));
}

static void test_what_is_used_stays(void **state)
{
    opq_jit *jit = *state;
    bool fresh;
    opq_jit_cache(jit)->idle_max = 0;
    const opq_code *first = code_of(jit, 3, &fresh), *again = code_of(jit, 3, &fresh);
    assert_ptr_equal(first, again);
    assert_false(is_kept(jit, 4));
    opq_code_release(jit, first);
    assert_int_equal(kept(jit), 1);
    assert_true(stored_by(again) == 3);
    opq_code_release(jit, again);
    assert_int_equal(kept(jit), 0);
    again = code_of(jit, 3, &fresh);
    assert_true(fresh && stored_by(again) == 3);
}

static void test_the_longest_idle_goes(void **state)
{
    opq_jit *jit = *state;
    assert_false(is_kept(jit, 0));
    assert_false(is_kept(jit, 1));
    assert_false(is_kept(jit, 2));
    opq_jit_cache(jit)->idle_max = opq_jit_cache(jit)->bytes;
    assert_true(is_kept(jit, 0));
    assert_false(is_kept(jit, 3)); /* 1 goes */
    assert_int_equal(kept(jit), 3);
    assert_true(is_kept(jit, 0) && is_kept(jit, 2) && is_kept(jit, 3));
    assert_false(is_kept(jit, 1));
}

/* More than the modules after which names are cleared. */
static void test_code_is_made_again_and_again(void **state)
{
    opq_jit *jit = *state;
    bool fresh;
    opq_jit_cache(jit)->idle_max = 0;
    const opq_code *held = code_of(jit, -1, &fresh);
    for (int i = 0; i < 300; i++) {
        const opq_code *code = code_of(jit, i % 3, &fresh);
        assert_true(fresh && stored_by(code) == (float)(i % 3));
        opq_code_release(jit, code);
    }
    assert_true(stored_by(held) == -1);
    assert_int_equal(kept(jit), 1);
}

typedef struct worker {
    opq_jit *jit;
    int number, wrong;
} worker;

static void *churn(void *data)
{
    worker *w = data;
    bool fresh;
    for (int i = 0; i < 100; i++) {
        int number = (i * 5 + w->number) % 4;
        const opq_code *code = code_of(w->jit, number, &fresh);
        w->wrong += stored_by(code) != (float)number;
        opq_code_release(w->jit, code);
    }
    return NULL;
}

static void test_threads(void **state)
{
    opq_jit *jit = *state;
    opq_jit_cache(jit)->idle_max = 4096;
    worker workers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = (worker){jit, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    assert_true(opq_jit_cache(jit)->bytes <= 4096);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_jit, drop_jit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_idle_code_is_found_again),
        TEST(test_what_is_used_stays),
        TEST(test_the_longest_idle_goes),
        TEST(test_code_is_made_again_and_again),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
