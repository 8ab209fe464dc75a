/* Packed copies of right operands: when they are made, what tells them apart, how much they may take, when they go. */
#include "tests/support.h"

#include "runtime/plan.h"

#include <pthread.h>

enum { ROWS = 256, COLUMNS = 64, WHOLE = ROWS * COLUMNS * 4 };

static int make_pool(void **state) { return opq_pool_create((opq_pool **)state) != OPQ_OK; }

static int drop_pool(void **state)
{
    bool empty = opq_pool_live(*state) == 0 && opq_packed_bytes(*state) == 0;
    opq_pool_destroy(*state);
    return !empty;
}

static opq_buffer *weight(opq_pool *pool)
{
    opq_buffer *buffer = NULL;
    expect_ok(opq_pool_buffer(pool, WHOLE, &buffer));
    return buffer;
}

/* Rows [row, row + rows) of an f32 weight. */
static opq_packed_key slice(int64_t row, int64_t rows)
{
    return (opq_packed_key){.from = OPQ_f32,
                            .to = OPQ_f32,
                            .rows = rows,
                            .columns = COLUMNS,
                            .offset = row * COLUMNS,
                            .row_stride = COLUMNS,
                            .column_stride = 1};
}

/* What a matmul does. */
static bool use(opq_buffer *buffer, const opq_packed_key *key)
{
    bool wanted;
    int64_t bytes = key->rows * key->columns * opq_dtype_bytes(key->to);
    opq_buffer *memory = opq_packed_find(buffer, key, bytes, false, &wanted);
    bool found = memory != NULL;
    if (wanted) {
        expect_ok(opq_pool_cache_buffer(buffer->pool, (size_t)bytes, &memory));
        opq_packed_keep(buffer, key, memory);
    }
    opq_buffer_release(memory);
    return found;
}

static void test_the_second_use_packs(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key key = slice(0, ROWS);
    assert_false(use(w, &key));
    assert_int_equal(opq_packed_bytes(*state), 0);
    assert_false(use(w, &key));
    assert_int_equal(opq_packed_bytes(*state), WHOLE);
    assert_true(use(w, &key));
    assert_int_equal(opq_pool_live(*state), WHOLE); /* the weight alone */
    opq_buffer_release(w);
    assert_int_equal(opq_packed_bytes(*state), 0);
}

/* Of views that each run uses once a run packs some: no run waits for all. What a run uses again it packs at once. */
static void test_runs_take_turns(void **state)
{
    enum { COUNT_OF = 24, BIG_ROWS = 8192, BIG = BIG_ROWS * COLUMNS * 4 }; /* 2 MiB */
    opq_buffer *w[COUNT_OF];
    opq_packed_key key = slice(0, BIG_ROWS);
    for (int i = 0; i < COUNT_OF; i++)
        expect_ok(opq_pool_buffer(*state, BIG, &w[i]));
    int64_t before = 0;
    for (int run = 0; run < 6; run++) {
        for (int i = 0; i < COUNT_OF; i++)
            use(w[i], &key);
        opq_packed_next_run(opq_pool_packed(*state));
        int64_t made = opq_packed_bytes(*state) - before;
        assert_in_range(made, run == 0 ? 0 : run < 3 ? 16 << 20 : 0, run == 0 ? 0 : 24 << 20);
        before += made;
    }
    assert_int_equal(before, COUNT_OF * BIG);
    for (int i = 0; i < COUNT_OF; i++)
        opq_buffer_release(w[i]);
    for (int i = 0; i < COUNT_OF; i++) {
        expect_ok(opq_pool_buffer(*state, BIG, &w[i]));
        use(w[i], &key), use(w[i], &key);
        assert_true(use(w[i], &key));
    }
    for (int i = 0; i < COUNT_OF; i++)
        opq_buffer_release(w[i]);
}

/* A view has one record, from its first use on: as many as a buffer remembers all keep their copies. */
static void test_a_view_has_one_record(void **state)
{
    opq_buffer *w = weight(*state);
    for (int turn = 0; turn < 3; turn++)
        for (int64_t row = 0; row < ROWS; row++) {
            opq_packed_key key = slice(row, 1);
            assert_int_equal(use(w, &key), turn == 2);
        }
    opq_buffer_release(w);
}

/* Each field of the key makes another copy. */
static void test_views_are_told_apart(void **state)
{
    opq_packed_key first = slice(0, 16), other[9];
    for (size_t i = 0; i < COUNT(other); i++)
        other[i] = first;
    other[0].from = OPQ_bf16;
    other[1].to = OPQ_f64;
    other[2].rows = 8;
    other[3].columns = 32;
    other[4].offset = 1;
    other[5].row_stride = 1;
    other[6].column_stride = 2;
    other[7].left = true;
    other[8].turned = true;
    for (size_t i = 0; i < COUNT(other); i++) {
        opq_buffer *w = weight(*state);
        for (int turn = 0; turn < 3; turn++)
            assert_int_equal(use(w, &first), turn == 2);
        for (int turn = 0; turn < 3; turn++)
            if (use(w, &other[i]) != (turn == 2))
                fail_msg("field %d, turn %d", (int)i, turn);
        assert_true(use(w, &first));
        opq_buffer_release(w);
    }
}

/* Copies of all slices of a buffer take no more than one of the whole, and those that are there stay in a loop over all. */
static void test_slices_share_the_bytes_of_the_whole(void **state)
{
    opq_buffer *w = weight(*state);
    int found = 0;
    for (int turn = 0; turn < 4; turn++)
        for (int64_t row = 0; row + 64 <= ROWS; row++) {
            opq_packed_key key = slice(row, 64);
            found += use(w, &key);
            assert_true(opq_packed_bytes(*state) <= WHOLE);
        }
    assert_int_equal(opq_packed_bytes(*state), WHOLE);
    assert_int_equal(found, 2 * (ROWS / 64));
    opq_buffer_release(w);
}

/* A training step reads a weight as it is and transposed: each of the two has a copy, and neither drives the other out. */
static void test_both_directions_have_room(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key forward = slice(0, ROWS), backward = forward;
    backward.rows = COLUMNS, backward.columns = ROWS, backward.row_stride = 1, backward.column_stride = COLUMNS;
    int found = 0;
    for (int turn = 0; turn < 4; turn++)
        found += use(w, &forward) + use(w, &backward);
    assert_int_equal(found, 4);
    assert_int_equal(opq_packed_bytes(*state), 2 * WHOLE);
    opq_buffer_release(w);
}

/* What was used longest ago makes way once another view is used twice without it. */
static void test_new_views_replace_old_ones(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key old = slice(0, ROWS), new = slice(1, ROWS - 1);
    for (int i = 0; i < 3; i++)
        use(w, &old);
    assert_false(use(w, &new));
    assert_false(use(w, &new));
    assert_true(use(w, &new));
    assert_true(opq_packed_bytes(*state) <= WHOLE);
    assert_false(use(w, &old));
    opq_buffer_release(w);
}

/* Narrow operands are packed as f32: the share is that of the packed whole. */
static void test_half_operands_have_room(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key key = slice(0, 2 * ROWS);
    key.from = OPQ_f16;
    for (int turn = 0; turn < 3; turn++)
        assert_int_equal(use(w, &key), turn == 2);
    assert_int_equal(opq_packed_bytes(*state), 2 * WHOLE);
    opq_buffer_release(w);
}

static void test_a_pool_has_a_bound(void **state)
{
    opq_pool_packed(*state)->max_bytes = 2 * WHOLE;
    opq_buffer *w[4];
    opq_packed_key key = slice(0, ROWS);
    for (size_t i = 0; i < COUNT(w); i++) {
        w[i] = weight(*state);
        for (int turn = 0; turn < 3; turn++)
            assert_int_equal(use(w[i], &key), turn == 2);
        assert_true(opq_packed_bytes(*state) <= 2 * WHOLE);
    }
    assert_false(use(w[0], &key));
    assert_true(use(w[2], &key));
    assert_true(use(w[3], &key));
    for (size_t i = 0; i < COUNT(w); i++)
        opq_buffer_release(w[i]);
}

static void test_a_copy_in_use_outlives_the_cache(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key key = slice(0, ROWS);
    use(w, &key);
    use(w, &key);
    bool wanted;
    opq_buffer *memory = opq_packed_find(w, &key, WHOLE, false, &wanted);
    assert_non_null(memory);
    assert_false(wanted);
    opq_pool_trim(*state);
    assert_int_equal(opq_packed_bytes(*state), 0);
    memset(memory->data, 1, WHOLE);
    opq_buffer_release(w);
    memset(memory->data, 2, WHOLE);
    opq_buffer_release(memory);
}

static void test_memory_that_runs_short_takes_them(void **state)
{
    opq_buffer *w = weight(*state);
    opq_packed_key key = slice(0, ROWS);
    use(w, &key);
    use(w, &key);
    expect_ok(opq_pool_check(*state, 1 << 20));
    assert_int_equal(opq_packed_bytes(*state), WHOLE);
    int64_t most = 1;
    while (opq_pool_check(*state, most * 2) == OPQ_OK)
        most *= 2;
    for (int64_t step = most; step > 0; step /= 2)
        if (opq_pool_check(*state, most + step) == OPQ_OK)
            most += step;
    assert_int_equal(opq_packed_bytes(*state), 0);
    opq_buffer_release(w);
}

/* Two threads use, one trims; the weight of the second goes in each turn. */
typedef struct worker {
    opq_pool *pool;
    opq_buffer *shared;
    int kind;
} worker;

static void *churn(void *data)
{
    worker *w = data;
    for (int i = 0; i < 3000; i++) {
        if (w->kind == 0) {
            opq_packed_key key = slice(i % 100, 64);
            use(w->shared, &key);
        } else if (w->kind == 1) {
            opq_buffer *own = weight(w->pool);
            opq_packed_key key = slice(0, ROWS);
            for (int turn = 0; turn < 3; turn++)
                use(own, &key);
            opq_buffer_release(own);
        } else {
            opq_pool_trim(w->pool);
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    opq_pool_packed(*state)->max_bytes = WHOLE + WHOLE / 2;
    opq_buffer *shared = weight(*state);
    pthread_t threads[4];
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){*state, shared, i % 3};
        assert_int_equal(pthread_create(&threads[i], NULL, churn, &workers[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    opq_buffer_release(shared);
}

/* ---- with the engine: the copy is used, and it is that of the right view */

typedef struct machine {
    opq_host host;
    opq_runtime runtime;
} machine;

static void start(machine *m)
{
    memset(m, 0, sizeof *m);
    m->runtime.host = &m->host;
    expect_ok(opq_pool_create(&m->runtime.pool));
    expect_ok(opq_jit_create(&m->runtime.jit));
    expect_ok(opq_gemm_create(opq_jit_cpu(m->runtime.jit), &m->host, &m->runtime.gemm));
}

static void stop(machine *m)
{
    assert_int_equal(opq_pool_live(m->runtime.pool), 0);
    assert_int_equal(opq_packed_bytes(m->runtime.pool), 0);
    opq_gemm_destroy(m->runtime.gemm);
    opq_jit_destroy(m->runtime.jit);
    opq_pool_destroy(m->runtime.pool);
}

static opq_plan *product(machine *m, const char *text)
{
    opq_graph *graph = graph_of_text(text);
    opq_plan *plan = NULL;
    expect_ok(opq_plan_compile(&m->runtime, graph, OPQ_FUSED, &plan));
    opq_graph_destroy(graph);
    return plan;
}

/* Bits of element (0, 0) of x times w. */
static int first_of(machine *m, opq_plan *plan, opq_buffer *x, opq_buffer *w)
{
    opq_buffer *inputs[] = {x, w}, *output = NULL;
    opq_run_call call = {.inputs = inputs, .outputs = &output};
    expect_ok(opq_plan_run(&m->runtime, plan, &call));
    int first = *(const uint16_t *)output->data;
    opq_buffer_release(output);
    return first;
}

#define PRODUCT(dtype)                                                                                                 \
    "graph @g {\n  %0 = input " dtype "[64,64]\n  %1 = input " dtype "[64,64]\n  %2 = matmul " dtype                   \
    "[64,64] %0, %1\n  output %2\n}\n"

static opq_buffer *filled(machine *m, uint16_t bits)
{
    opq_buffer *buffer = NULL;
    expect_ok(opq_pool_buffer(m->runtime.pool, 64 * 64 * 2, &buffer));
    for (int i = 0; i < 64 * 64; i++)
        ((uint16_t *)buffer->data)[i] = bits;
    return buffer;
}

/* The bits of w are 1 in f16 and 2^-7 in bf16: with x = 1 the products are 64 and 1/2. */
static void test_a_buffer_read_as_two_dtypes(void **state)
{
    (void)state;
    machine m;
    start(&m);
    opq_plan *half = product(&m, PRODUCT("f16")), *brain = product(&m, PRODUCT("bf16"));
    opq_buffer *half_one = filled(&m, 0x3c00), *brain_one = filled(&m, 0x3f80), *w = filled(&m, 0x3c00);
    for (int turn = 0; turn < 3; turn++)
        assert_int_equal(first_of(&m, half, half_one, w), 0x5400);
    assert_true(opq_packed_bytes(m.runtime.pool) > 0); /* else this tests nothing */
    for (int turn = 0; turn < 3; turn++)
        assert_int_equal(first_of(&m, brain, brain_one, w), 0x3f00);
    assert_int_equal(first_of(&m, half, half_one, w), 0x5400);
    opq_plan_release(half);
    opq_plan_release(brain);
    opq_buffer_release(half_one);
    opq_buffer_release(brain_one);
    opq_buffer_release(w);
    stop(&m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_pool, drop_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_the_second_use_packs),
        TEST(test_runs_take_turns),
        TEST(test_a_view_has_one_record),
        TEST(test_views_are_told_apart),
        TEST(test_slices_share_the_bytes_of_the_whole),
        TEST(test_both_directions_have_room),
        TEST(test_new_views_replace_old_ones),
        TEST(test_half_operands_have_room),
        TEST(test_a_pool_has_a_bound),
        TEST(test_a_copy_in_use_outlives_the_cache),
        TEST(test_memory_that_runs_short_takes_them),
        TEST(test_threads),
        cmocka_unit_test(test_a_buffer_read_as_two_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
