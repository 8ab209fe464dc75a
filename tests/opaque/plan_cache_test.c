/* The plan cache: keys, order of use, both bounds, and plans that are in use when they have to go. */
#include "tests/runtime/machine.h"

#include "opaque/plan_cache.h"
#include "runtime/plan_join.h"

#include <pthread.h>
#include <stdio.h>

static int make_machine(void **state) { return create_machine(state, NULL); }

static opq_plan *plan_of(machine *m)
{
    return plan_of_graph(m, graph_of_text("graph @g {\n  %0 = input f32[8]\n  %1 = neg f32[8] %0\n  output %1\n}\n"));
}

static opq_plan *joined_plan(machine *m)
{
    const opq_join_source source = {OPQ_JOIN_INPUTS, 0, 0, 8 * 4};
    const opq_join_part part = {plan_of(m), &source, NULL};
    const int64_t bytes = 8 * 4;
    const opq_join_output output = {0, 0};
    opq_plan *plan;
    expect_ok(opq_plan_join(&m->runtime, &(opq_join){&part, 1, &bytes, 1, &output, 1}, &plan));
    opq_plan_release(part.plan);
    return plan;
}

static opq_plan_cache *cache_of(size_t max_count, size_t max_bytes)
{
    opq_plan_cache *cache = NULL;
    expect_ok(opq_plan_cache_create(max_count, max_bytes, &cache));
    return cache;
}

/* A new plan under the key; what it is, for comparing only. */
static const opq_plan *keep_new(machine *m, opq_plan_cache *cache, const char *key)
{
    opq_plan *plan = plan_of(m);
    opq_plan_cache_keep(cache, key, strlen(key), plan);
    opq_plan_release(plan);
    return plan;
}

static const opq_plan *find(opq_plan_cache *cache, const char *key)
{
    opq_plan *plan = opq_plan_cache_find(cache, key, strlen(key));
    opq_plan_release(plan);
    return plan;
}

static void test_keys_are_compared_whole(void **state)
{
    opq_plan_cache *cache = cache_of(8, SIZE_MAX);
    const opq_plan *plan = keep_new(*state, cache, "abc");
    assert_ptr_equal(find(cache, "abc"), plan);
    assert_null(find(cache, "ab"));
    assert_null(find(cache, "abd"));
    assert_null(find(cache, ""));
    opq_plan_cache_destroy(cache);
}

static void test_a_known_key_keeps_its_plan(void **state)
{
    opq_plan_cache *cache = cache_of(8, SIZE_MAX);
    const opq_plan *plan = keep_new(*state, cache, "a");
    size_t bytes = opq_plan_cache_bytes(cache);
    keep_new(*state, cache, "a");
    assert_ptr_equal(find(cache, "a"), plan);
    assert_int_equal(opq_plan_cache_count(cache), 1);
    assert_int_equal(opq_plan_cache_bytes(cache), bytes);
    opq_plan_cache_destroy(cache);
}

/* A joined one makes place for one that is not, but not the other way round. */
static void test_a_joined_plan_makes_place(void **state)
{
    opq_plan_cache *cache = cache_of(8, SIZE_MAX);
    opq_plan *joined = joined_plan(*state);
    opq_plan_cache_keep(cache, "a", 1, joined);
    assert_ptr_equal(find(cache, "a"), joined);
    const opq_plan *plan = keep_new(*state, cache, "a");
    assert_ptr_equal(find(cache, "a"), plan);
    assert_int_equal(joined->refs, 1);
    size_t bytes = opq_plan_cache_bytes(cache);
    opq_plan_cache_keep(cache, "a", 1, joined);
    assert_ptr_equal(find(cache, "a"), plan);
    assert_int_equal(opq_plan_cache_count(cache), 1);
    assert_int_equal(opq_plan_cache_bytes(cache), bytes);
    opq_plan_release(joined);
    opq_plan_cache_destroy(cache);
}

static void test_the_least_recently_used_goes(void **state)
{
    opq_plan_cache *cache = cache_of(3, SIZE_MAX);
    const opq_plan *a = keep_new(*state, cache, "a");
    keep_new(*state, cache, "b");
    const opq_plan *c = keep_new(*state, cache, "c");
    assert_ptr_equal(find(cache, "a"), a); /* used: b is the oldest now */
    const opq_plan *d = keep_new(*state, cache, "d");
    assert_null(find(cache, "b"));
    assert_ptr_equal(find(cache, "a"), a);
    assert_ptr_equal(find(cache, "c"), c);
    assert_ptr_equal(find(cache, "d"), d);
    assert_int_equal(opq_plan_cache_count(cache), 3);
    opq_plan_cache_destroy(cache);
}

static void test_bytes_are_bounded(void **state)
{
    opq_plan_cache *unbounded = cache_of(1000, SIZE_MAX);
    keep_new(*state, unbounded, "000");
    size_t one = opq_plan_cache_bytes(unbounded), most = 5 * one + one / 2;
    opq_plan_cache_destroy(unbounded);
    opq_plan *plan = plan_of(*state);
    assert_true(one >= opq_plan_bytes(plan) + 3);
    opq_plan_release(plan);
    opq_plan_cache *cache = cache_of(1000, most);
    for (int i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof key, "%03d", i);
        keep_new(*state, cache, key);
        assert_true(opq_plan_cache_bytes(cache) <= most);
    }
    assert_int_equal(opq_plan_cache_count(cache), 5);
    assert_non_null(find(cache, "099"));
    assert_non_null(find(cache, "095"));
    assert_null(find(cache, "094"));
    opq_plan_cache_destroy(cache);
}

/* Larger than the whole bound: kept alone, else a loop would build it again and again. */
static void test_a_plan_larger_than_the_bound_is_kept_alone(void **state)
{
    opq_plan_cache *cache = cache_of(8, 1);
    keep_new(*state, cache, "a");
    const opq_plan *b = keep_new(*state, cache, "b");
    assert_null(find(cache, "a"));
    assert_ptr_equal(find(cache, "b"), b);
    opq_plan_cache_clear(cache);
    assert_int_equal(opq_plan_cache_count(cache), 0);
    assert_int_equal(opq_plan_cache_bytes(cache), 0);
    assert_null(find(cache, "b"));
    opq_plan_cache_destroy(cache);
}

static void test_a_plan_in_use_outlives_its_entry(void **state)
{
    machine *m = *state;
    opq_plan_cache *cache = cache_of(1, SIZE_MAX);
    keep_new(m, cache, "a");
    opq_plan *used = opq_plan_cache_find(cache, "a", 1);
    keep_new(m, cache, "b");
    assert_null(find(cache, "a"));
    float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    opq_buffer *input = NULL, *output = NULL;
    expect_ok(opq_pool_adopt(m->runtime.pool, in, sizeof in, NULL, NULL, &input));
    opq_run_call call = {.inputs = &input, .outputs = &output};
    expect_ok(opq_plan_run(&m->runtime, used, &call));
    assert_true(((const float *)output->data)[7] == -8);
    opq_buffer_release(input);
    opq_buffer_release(output);
    opq_plan_release(used);
    opq_plan_cache_destroy(cache);
}

typedef struct worker {
    opq_plan_cache *cache;
    opq_plan *plan;
    int number;
} worker;

static void *churn(void *data)
{
    worker *w = data;
    for (int i = 0; i < 20000; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", (i * 7 + w->number) % 12);
        opq_plan *found = opq_plan_cache_find(w->cache, key, strlen(key));
        if (found == NULL)
            opq_plan_cache_keep(w->cache, key, strlen(key), w->plan);
        opq_plan_release(found);
        if (i % 5000 == 0)
            opq_plan_cache_clear(w->cache);
    }
    return NULL;
}

static void test_a_plan_is_replaced(void **state)
{
    opq_plan_cache *cache = cache_of(8, SIZE_MAX);
    opq_plan *first = plan_of(*state), *second = plan_of(*state);
    opq_plan_cache_keep(cache, "a", 1, first);
    size_t bytes = opq_plan_cache_bytes(cache);
    opq_plan_cache_replace(cache, "b", 1, second); /* is not there: nothing happens */
    assert_int_equal(opq_plan_cache_count(cache), 1);
    opq_plan_cache_replace(cache, "a", 1, second);
    assert_int_equal(atomic_load(&first->refs), 1);
    assert_int_equal(atomic_load(&second->refs), 2);
    assert_int_equal(opq_plan_cache_bytes(cache), bytes - opq_plan_bytes(first) + opq_plan_bytes(second));
    opq_plan *found = opq_plan_cache_find(cache, "a", 1);
    assert_ptr_equal(found, second);
    opq_plan_release(found);
    opq_plan_cache_destroy(cache);
    assert_int_equal(atomic_load(&second->refs), 1);
    opq_plan_release(first);
    opq_plan_release(second);
}

static void test_threads(void **state)
{
    opq_plan_cache *cache = cache_of(8, SIZE_MAX);
    worker workers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        workers[i] = (worker){cache, plan_of(*state), i};
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &workers[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_true(opq_plan_cache_count(cache) <= 8);
    opq_plan_cache_destroy(cache);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(atomic_load(&workers[i].plan->refs), 1);
        opq_plan_release(workers[i].plan);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_machine, drop_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_keys_are_compared_whole),
        TEST(test_a_known_key_keeps_its_plan),
        TEST(test_a_joined_plan_makes_place),
        TEST(test_the_least_recently_used_goes),
        TEST(test_bytes_are_bounded),
        TEST(test_a_plan_larger_than_the_bound_is_kept_alone),
        TEST(test_a_plan_in_use_outlives_its_entry),
        TEST(test_a_plan_is_replaced),
        TEST(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
