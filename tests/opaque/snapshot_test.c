/* Snapshots stay what they are while others record and run; keys tell graphs apart; an observation runs what stands before it. */
#include "support.h"

#include "opaque/context.h"

#include <pthread.h>
#include <stdatomic.h>

static int64_t built(opq_ctx *ctx) { return stats_of(ctx).plans_built; }
static bool pending(opq_ctx *ctx, opq_cell *cell)
{
    opq_value *value = read_window(ctx, cell, whole);
    bool result = opq_value_buffer(value) == NULL;
    opq_value_release(value);
    return result;
}

/* ---- keys */

/* Node 0 and leaf 0 are different operands, as are leaf 0 and scalar 0. */
static void test_sets_of_operands_differ(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *x = leaf(ctx, 1);
    opq_value *e = op1(ctx, OPQ_OP_neg, again(x));
    expect_floats(ctx, op2(ctx, OPQ_OP_add, again(e), again(e)), FLOATS(-2, -4, -6, -8, -10, -12, -14, -16));
    opq_value_release(e);
    e = op1(ctx, OPQ_OP_neg, again(x));
    expect_floats(ctx, op2(ctx, OPQ_OP_mul, again(x), again(e)), FLOATS(-1, -4, -9, -16, -25, -36, -49, -64));
    opq_value_release(e);
    e = op1(ctx, OPQ_OP_neg, again(x));
    expect_floats(ctx, op2(ctx, OPQ_OP_mul, again(e), again(e)), FLOATS(1, 4, 9, 16, 25, 36, 49, 64));
    opq_value_release(e);
    e = op1(ctx, OPQ_OP_neg, again(x));
    expect_floats(ctx, op2(ctx, OPQ_OP_add, again(x), again(e)), FLOATS(0, 0, 0, 0, 0, 0, 0, 0));
    opq_value_release(e);
    expect_floats(ctx, op2(ctx, OPQ_OP_add, again(x), number(ctx, 2)), FLOATS(3, 4, 5, 6, 7, 8, 9, 10));
    expect_floats(ctx, op2(ctx, OPQ_OP_add, again(x), again(x)), FLOATS(2, 4, 6, 8, 10, 12, 14, 16));
    assert_int_equal(built(ctx), 6);
    opq_value_release(x);
}

/* The number of a snapshot goes round; the one of new values belongs to none. */
static void test_numbers_of_snapshots_go_round(void **state)
{
    opq_ctx *ctx = *state;
    ctx->collections = UINT32_MAX - 1;
    for (int i = 0; i < 3; i++)
        expect_floats(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)), FLOATS(-1, -2, -3, -4, -5, -6, -7, -8));
}

/* ---- what a snapshot keeps */

static void test_a_snapshot_outlives_the_run(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *y = op2(ctx, OPQ_OP_mul, op1(ctx, OPQ_OP_neg, leaf(ctx, 0)), number(ctx, 3));
    opq_snapshot *snapshot = NULL;
    opq_graph *graph = NULL;
    char *before = NULL, *after = NULL;
    expect_ok(opq_snapshot_take(ctx, &y, 1, &snapshot));
    assert_int_equal(opq_snapshot_pending_count(snapshot), 2);
    assert_int_equal(opq_snapshot_leaf_count(snapshot), 1);
    expect_ok(opq_snapshot_graph(snapshot, OPQ_OUTPUTS_asked, &graph));
    expect_ok(opq_graph_print(graph, &before));
    opq_graph_destroy(graph);
    expect_floats(
        ctx, y, FLOATS(-0.f, -3, -6, -9, -12, -15, -18, -21)); /* computed, and released: nobody else holds its operands */
    expect_ok(opq_snapshot_graph(snapshot, OPQ_OUTPUTS_asked, &graph));
    expect_ok(opq_graph_print(graph, &after));
    expect_text(after, before, "the graph after the run");
    assert_int_equal(((const float *)opq_buffer_data(opq_value_buffer(opq_snapshot_leaf(snapshot, 0))))[5], 5);
    opq_graph_destroy(graph);
    opq_snapshot_drop(snapshot);
    free(before);
    free(after);
}

/* Asked for: in the order asked, also twice, also computed. All: behind them what a cell holds. Stored: each pending one once. */
static void test_outputs(void **state)
{
    opq_ctx *ctx = *state;
    opq_value *x = leaf(ctx, 0), *held = op1(ctx, OPQ_OP_neg, again(x)), *y = op1(ctx, OPQ_OP_abs, again(held));
    opq_cell *cell = cell_of(ctx, held);
    opq_value *asked[] = {y, x, y};
    opq_snapshot *snapshot = NULL;
    static const int counts[] = {[OPQ_OUTPUTS_asked] = 3, [OPQ_OUTPUTS_all] = 4, [OPQ_OUTPUTS_stored] = 2};
    expect_ok(opq_snapshot_take(ctx, asked, 3, &snapshot));
    for (int o = OPQ_OUTPUTS_asked; o <= OPQ_OUTPUTS_stored; o++) {
        opq_graph *graph = NULL;
        expect_ok(opq_snapshot_graph(snapshot, (opq_outputs)o, &graph));
        assert_int_equal(opq_graph_output_count(graph), counts[o]);
        opq_graph_destroy(graph);
    }
    opq_snapshot_drop(snapshot);
    opq_value_release(x);
    opq_value_release(y);
    opq_cell_release(cell);
}

/* ---- observations */

static void test_an_observation_runs_what_is_held(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cells[10];
    for (int i = 0; i < 10; i++)
        cells[i] = cell_of(ctx, op2(ctx, OPQ_OP_mul, leaf(ctx, (float)i), number(ctx, 2)));
    opq_value_release(op1(ctx, OPQ_OP_exp, leaf(ctx, 0))); /* nobody holds it: it never runs */
    expect_floats(ctx, read_window(ctx, cells[9], whole), FLOATS(18, 20, 22, 24, 26, 28, 30, 32));
    for (int i = 0; i < 10; i++)
        assert_false(pending(ctx, cells[i]));
    assert_int_equal(built(ctx) + stats_of(ctx).plans_reused, 1);
    for (int i = 0; i < 10; i++)
        opq_cell_release(cells[i]);
}

static void *record_held(void *data)
{
    opq_ctx *ctx = *(opq_ctx **)data;
    *((opq_cell **)data + 1) = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 0)));
    return NULL;
}

/* What another thread has half recorded waits for that thread, or for synchronize. */
static void test_another_thread_is_not_drawn_in(void **state)
{
    opq_ctx *ctx = *state;
    void *data[] = {ctx, NULL};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, record_held, data), 0);
    pthread_join(thread, NULL);
    opq_cell *other = data[1];
    expect_floats(ctx, op1(ctx, OPQ_OP_abs, leaf(ctx, 0)), FLOATS(0, 1, 2, 3, 4, 5, 6, 7));
    assert_true(pending(ctx, other));
    expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize));
    assert_false(pending(ctx, other));
    opq_cell_release(other);
}

/* An extern call fails; what is held besides is computed, and the call is done once. */
static void test_a_failure_among_the_held(void **state)
{
    opq_ctx *ctx = *state;
    static call bad = {.fails = true};
    opq_value *results[2];
    record_call(ctx, &bad, leaf(ctx, 0), results);
    opq_value_release(results[1]);
    opq_cell *failing = cell_of(ctx, results[0]), *good = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    opq_value *asked = op1(ctx, OPQ_OP_abs, leaf(ctx, 2));
    assert_int_equal(opq_materialize(ctx, &asked, 1, OPQ_REASON_item), OPQ_INVALID); /* errors appear in record order */
    assert_int_equal(bad.calls, 1);
    expect_floats(ctx, asked, FLOATS(2, 3, 4, 5, 6, 7, 8, 9));
    assert_false(pending(ctx, good));
    opq_cell_release(failing);
    opq_cell_release(good);
}

static void *record_failing(void *data)
{
    static call bad = {.fails = true};
    opq_value *results[2];
    record_call(*(opq_ctx **)data, &bad, leaf(*(opq_ctx **)data, 0), results);
    opq_value_release(results[1]);
    *((opq_cell **)data + 1) = cell_of(*(opq_ctx **)data, results[0]);
    return NULL;
}

/* It is told to whoever reads the value, not to a thread that waits for everything. */
static void test_an_error_of_another_thread(void **state)
{
    opq_ctx *ctx = *state;
    void *data[] = {ctx, NULL};
    pthread_t thread;
    opq_cell *own = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    assert_int_equal(pthread_create(&thread, NULL, record_failing, data), 0);
    pthread_join(thread, NULL);
    expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize));
    assert_false(pending(ctx, own));
    opq_value *failed = read_window(ctx, data[1], whole);
    assert_int_equal(opq_materialize(ctx, &failed, 1, OPQ_REASON_item), OPQ_INVALID);
    opq_value_release(failed);
    opq_cell_release(data[1]);
    opq_cell_release(own);
}

/* A huge value cannot be stored: it fails, and nothing else does. */
static void test_no_memory_for_one(void **state)
{
    opq_ctx *ctx = *state;
    const int64_t size[] = {(int64_t)1 << 45};
    opq_type type = opq_type_make(OPQ_f32, 1, size);
    opq_value *one = number(ctx, 1), *huge = NULL;
    expect_ok(opq_record_typed(ctx, OPQ_OP_expand, &type, &one, 1, NULL, 0, &huge));
    opq_value_release(one);
    opq_cell *failing = cell_of(ctx, op1(ctx, OPQ_OP_neg, huge)),
             *good = cell_of(ctx, op1(ctx, OPQ_OP_neg, leaf(ctx, 1)));
    opq_value *asked = op1(ctx, OPQ_OP_abs, leaf(ctx, 2));
    assert_int_equal(opq_materialize(ctx, &asked, 1, OPQ_REASON_item), OPQ_NO_MEMORY);
    expect_floats(ctx, asked, FLOATS(2, 3, 4, 5, 6, 7, 8, 9));
    expect_floats(ctx, read_window(ctx, good, whole), FLOATS(-1, -2, -3, -4, -5, -6, -7, -8));
    opq_cell_release(failing);
    opq_cell_release(good);
}

/* ---- threads */

typedef struct shared {
    opq_ctx *ctx;
    opq_cell *cell, *addend;
    opq_value *value;
    atomic_int stop, wrong;
    int number;
} shared;

enum { WRITES = 400, THREADS = 4 };

/* Each thread writes one element again and again; the others' stay. */
static void *write_element(void *data)
{
    shared *s = data;
    window element = {.rank = 1, .size = {1}, .stride = {1}, .offset = s->number};
    for (int i = 1; i <= WRITES; i++)
        write_window(s->ctx, s->cell, element,
                     op2(s->ctx, OPQ_OP_add, read_window(s->ctx, s->cell, element), number(s->ctx, 1)));
    return NULL;
}

static void test_writes_to_parts_all_land(void **state)
{
    opq_ctx *ctx = *state;
    shared each[THREADS];
    pthread_t threads[THREADS];
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    for (int t = 0; t < THREADS; t++) {
        each[t] = (shared){.ctx = ctx, .cell = cell, .number = t};
        assert_int_equal(pthread_create(&threads[t], NULL, write_element, &each[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(WRITES, WRITES + 1, WRITES + 2, WRITES + 3, 4, 5, 6, 7));
    opq_cell_release(cell);
}

/* In-place ops by the short way: a read, an op and a write that are one. */
static void *count_up(void *data)
{
    shared *s = data;
    opq_type type = row_type();
    opq_cell *operands[] = {s->cell, s->cell};
    for (int i = 0; i < 200; i++)
        expect_ok(opq_cell_record(s->ctx, OPQ_OP_maximum, operands, NULL, 2, &type, NULL));
    operands[1] = s->addend;
    for (int i = 0; i < WRITES; i++)
        expect_ok(opq_cell_record(s->ctx, OPQ_OP_add, operands, NULL, 2, &type, NULL));
    return NULL;
}

static void test_in_place_ops_all_count(void **state)
{
    opq_ctx *ctx = *state;
    shared each[THREADS];
    pthread_t threads[THREADS];
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    opq_value *zero = op2(ctx, OPQ_OP_mul, leaf(ctx, 0), number(ctx, 0));
    opq_cell *one = cell_of(ctx, op2(ctx, OPQ_OP_add, zero, number(ctx, 1)));
    for (int t = 0; t < THREADS; t++) {
        each[t] = (shared){.ctx = ctx, .cell = cell, .addend = one};
        assert_int_equal(pthread_create(&threads[t], NULL, count_up, &each[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    const float sum = WRITES * THREADS;
    expect_floats(ctx, read_window(ctx, cell, whole),
                  FLOATS(sum, sum + 1, sum + 2, sum + 3, sum + 4, sum + 5, sum + 6, sum + 7));
    opq_cell_release(cell);
    opq_cell_release(one);
}

/* Prints the graph of a value that the other threads compute and extend meanwhile. */
static void *inspect(void *data)
{
    shared *s = data;
    while (!atomic_load(&s->stop)) {
        opq_value *value = read_window(s->ctx, s->cell, whole);
        opq_snapshot *snapshot = NULL;
        opq_graph *graph = NULL;
        expect_ok(opq_snapshot_take(s->ctx, &value, 1, &snapshot));
        expect_ok(opq_snapshot_graph(snapshot, OPQ_OUTPUTS_all, &graph));
        if (opq_graph_verify(graph) != OPQ_OK)
            atomic_fetch_add(&s->wrong, 1);
        opq_graph_destroy(graph);
        opq_snapshot_drop(snapshot);
        opq_value_release(value);
    }
    return NULL;
}

/* Several threads want values that share pending ancestors, at once. */
static void *want_sum(void *data)
{
    shared *s = data;
    for (int i = 0; i < 100; i++) {
        opq_value *base = again(s->value);
        for (int k = 0; k <= (s->number + i) % 5; k++)
            base = op2(s->ctx, OPQ_OP_add, base, again(s->value));
        expect_ok(opq_materialize(s->ctx, &base, 1, OPQ_REASON_item));
        const float *got = opq_buffer_data(opq_value_buffer(base));
        for (int k = 0; k < N; k++)
            if (got[k] != (float)((s->number + i) % 5 + 2) * (float)(k + 1))
                atomic_fetch_add(&s->wrong, 1);
        opq_value_release(base);
    }
    return NULL;
}

static void test_threads_share_pending_values(void **state)
{
    opq_ctx *ctx = *state;
    for (int round = 0; round < 10; round++) {
        opq_value *value = leaf(ctx, 1);
        for (int i = 0; i < 20; i++)
            value = op1(ctx, OPQ_OP_neg, value);
        shared each[THREADS] = {0}, look = {.ctx = ctx, .cell = cell_of(ctx, op1(ctx, OPQ_OP_exp, again(value)))};
        pthread_t threads[THREADS], looking;
        assert_int_equal(pthread_create(&looking, NULL, inspect, &look), 0);
        for (int t = 0; t < THREADS; t++) {
            each[t] = (shared){.ctx = ctx, .value = value, .number = t};
            assert_int_equal(pthread_create(&threads[t], NULL, want_sum, &each[t]), 0);
        }
        for (int t = 0; t < THREADS; t++)
            pthread_join(threads[t], NULL);
        atomic_store(&look.stop, 1);
        pthread_join(looking, NULL);
        int wrong = atomic_load(&look.wrong);
        for (int t = 0; t < THREADS; t++)
            wrong += atomic_load(&each[t].wrong);
        assert_int_equal(wrong, 0);
        opq_cell_release(look.cell);
        opq_value_release(value);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_sets_of_operands_differ),
        TEST(test_numbers_of_snapshots_go_round),
        TEST(test_a_snapshot_outlives_the_run),
        TEST(test_outputs),
        TEST(test_an_observation_runs_what_is_held),
        TEST(test_another_thread_is_not_drawn_in),
        TEST(test_a_failure_among_the_held),
        TEST(test_an_error_of_another_thread),
        TEST(test_no_memory_for_one),
        TEST(test_writes_to_parts_all_land),
        TEST(test_in_place_ops_all_count),
        TEST(test_threads_share_pending_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
