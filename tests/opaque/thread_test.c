/* Threads record and materialize on one context at once; a child process goes on from a fork at any moment. */
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each turn is another graph (a chain of `turn` negations and a sum), so that plans are built as well as found. */
static float chain(opq_ctx *ctx, int turn, float first)
{
    opq_value *value = leaf(ctx, first), *sum = NULL;
    for (int i = 0; i < turn; i++)
        value = op1(ctx, OPQ_OP_neg, value);
    expect_ok(opq_record_reduce(ctx, OPQ_OP_sum, &value, 1, (const int64_t[]){0}, 1, false, &sum));
    opq_value_release(value);
    expect_ok(opq_materialize(ctx, &sum, 1, OPQ_REASON_item));
    float result = *(const float *)opq_buffer_data(opq_value_buffer(sum));
    opq_value_release(sum);
    return result;
}

static float chain_expected(int turn, float first)
{
    float sum = first * N + N * (N - 1) / 2;
    return turn % 2 ? -sum : sum;
}

typedef struct worker {
    opq_ctx *ctx;
    opq_cell *shared;
    int number, turns, wrong;
} worker;

static void *work(void *data)
{
    worker *w = data;
    for (int i = 0; i < w->turns; i++) {
        float first = (float)(w->number * 1000 + i);
        w->wrong += chain(w->ctx, i % 7, first) != chain_expected(i % 7, first);
    }
    return NULL;
}

static void test_two_threads_run_graphs_of_their_own(void **state)
{
    worker workers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        workers[i] = (worker){.ctx = *state, .number = i, .turns = 200};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].wrong, 0);
    }
    assert_int_equal(stats_of(*state).plans_built + stats_of(*state).plans_reused, 400);
}

/* Reads the shared cell, whole; whatever the other thread has written, all elements must be of one write. */
static void *look(void *data)
{
    worker *w = data;
    for (int i = 0; i < w->turns; i++) {
        opq_value *value = read_window(w->ctx, w->shared, whole);
        expect_ok(opq_materialize(w->ctx, &value, 1, OPQ_REASON_item));
        const float *x = opq_buffer_data(opq_value_buffer(value));
        for (int k = 1; k < N; k++)
            w->wrong += x[k] - x[0] != (float)k;
        opq_value_release(value);
    }
    return NULL;
}

static void *add_one(void *data)
{
    worker *w = data;
    for (int i = 0; i < w->turns; i++)
        write_window(w->ctx, w->shared, whole,
                     op2(w->ctx, OPQ_OP_add, read_window(w->ctx, w->shared, whole), number(w->ctx, 1)));
    return NULL;
}

static void test_one_writes_and_one_reads(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cell = cell_of(ctx, leaf(ctx, 0));
    worker reader = {.ctx = ctx, .shared = cell, .turns = 200}, writer = {.ctx = ctx, .shared = cell, .turns = 2000};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, look, &reader), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, add_one, &writer), 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    assert_int_equal(reader.wrong, 0);
    expect_floats(ctx, read_window(ctx, cell, whole), FLOATS(2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007));
    opq_cell_release(cell);
}

/* Both want the same pending value: it is computed once. */
static void *want(void *data)
{
    opq_value *value = *(opq_value **)data;
    expect_ok(opq_materialize(*((opq_ctx **)data + 1), &value, 1, OPQ_REASON_item));
    return NULL;
}

static void test_two_threads_want_one_value(void **state)
{
    opq_ctx *ctx = *state;
    for (int i = 0; i < 50; i++) {
        opq_value *value = op1(ctx, OPQ_OP_neg, leaf(ctx, 0));
        void *data[] = {value, ctx};
        pthread_t threads[2];
        for (int t = 0; t < 2; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, want, data), 0);
        for (int t = 0; t < 2; t++)
            pthread_join(threads[t], NULL);
        expect_floats(ctx, value, FLOATS(-0.f, -1, -2, -3, -4, -5, -6, -7));
    }
    assert_int_equal(stats_of(ctx).kernels_run, 50);
}

/* ---- all that a thread can do, at once: nothing is compared but the counts, the build with ThreadSanitizer sees the rest */

enum { MANY = 4, SHARED_CELLS = 3 };

typedef struct everything {
    opq_ctx *ctx;
    opq_cell **cells; /* SHARED_CELLS, each a row of N numbers */
    uint64_t state;
} everything;

static uint64_t random_below(everything *e, uint64_t limit)
{
    e->state = e->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (e->state >> 33) % limit;
}

static void read_and_run(opq_ctx *ctx, opq_cell *cell)
{
    opq_value *value = op1(ctx, OPQ_OP_abs, read_window(ctx, cell, whole));
    expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_item));
    opq_value_release(value);
}

static void look_at(opq_ctx *ctx, opq_cell *cell)
{
    opq_value *value = read_window(ctx, cell, whole);
    opq_snapshot *snapshot = NULL;
    opq_graph *graph = NULL;
    expect_ok(opq_snapshot_take(ctx, &value, 1, &snapshot));
    expect_ok(opq_snapshot_graph(snapshot, OPQ_OUTPUTS_all, &graph));
    opq_graph_destroy(graph);
    opq_snapshot_drop(snapshot);
    opq_value_release(value);
}

static void report(opq_ctx *ctx, opq_cell *cell)
{
    opq_report *made = NULL;
    opq_report_begin(ctx);
    read_and_run(ctx, cell);
    expect_ok(opq_report_end(ctx, &made));
    opq_report_drop(made);
}

/* In place, the short way: x + x keeps every element a multiple of what it was. */
static void double_it(opq_ctx *ctx, opq_cell *cell)
{
    opq_type type = row_type();
    opq_cell *operands[] = {cell, cell};
    opq_status status = opq_cell_record(ctx, OPQ_OP_add, operands, NULL, 2, &type, NULL);
    assert_true(status == OPQ_OK || status == OPQ_UNSUPPORTED);
}

static void *do_everything(void *data)
{
    everything *e = data;
    opq_ctx *ctx = e->ctx;
    window half = {.rank = 1, .size = {4}, .stride = {1}, .offset = 2};
    opq_type type = row_type();
    for (int i = 0; i < 300; i++) {
        opq_cell *cell = e->cells[random_below(e, SHARED_CELLS)], *other = e->cells[random_below(e, SHARED_CELLS)];
        opq_cell *both[] = {cell, other}, *made = NULL;
        switch (random_below(e, 11)) {
        case 0: read_and_run(ctx, cell); break;
        case 1: look_at(ctx, cell); break;
        case 2: report(ctx, cell); break;
        case 3: double_it(ctx, cell); break;
        case 4: write_window(ctx, cell, half, read_window(ctx, other, half)); break;
        case 5: write_window(ctx, cell, whole, leaf(ctx, (float)i)); break;
        case 6: expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize)); break;
        case 7: (void)stats_of(ctx); break;
        case 8: opq_cache_empty(ctx); break;
        case 9: opq_stats_reset_peak(ctx); break;
        default:
            if (opq_cell_record(ctx, OPQ_OP_mul, both, NULL, 2, &type, &made) == OPQ_OK)
                opq_cell_release(made);
        }
    }
    return NULL;
}

static void test_everything_at_once(void **state)
{
    opq_ctx *ctx = *state;
    opq_cell *cells[SHARED_CELLS];
    everything each[MANY];
    pthread_t threads[MANY];
    for (int i = 0; i < SHARED_CELLS; i++)
        cells[i] = cell_of(ctx, leaf(ctx, (float)i));
    for (int i = 0; i < MANY; i++) {
        each[i] = (everything){ctx, cells, (uint64_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, do_everything, &each[i]), 0);
    }
    for (int i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
    expect_ok(opq_synchronize(ctx, OPQ_REASON_synchronize));
    for (int i = 0; i < SHARED_CELLS; i++) {
        read_and_run(ctx, cells[i]);
        opq_cell_release(cells[i]);
    }
}

/* ---- fork. Not under AddressSanitizer: its own allocator keeps its locks across a fork, and the child waits there. Not under
 * ThreadSanitizer: it does not support a child of several threads that goes on. */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__

enum { FORKS = 25, CHILD_SECONDS = 15 };

typedef struct noise {
    opq_ctx *ctx;
    atomic_int stop;
} noise;

/* Always inside some lock: records, compiles new kernels, allocates. */
static void *make_noise(void *data)
{
    noise *n = data;
    for (int i = 0; !atomic_load(&n->stop); i++)
        chain(n->ctx, i % 300, 1);
    return NULL;
}

/* In the child: new kernels, cached ones, and the memory of before. Anything that waits for a lost lock is ended by the alarm. */
static int child(opq_ctx *ctx, opq_value *before, int number)
{
    alarm(CHILD_SECONDS);
    if (opq_materialize(ctx, &before, 1, OPQ_REASON_item) != OPQ_OK)
        return 1;
    for (int i = 0; i < 3; i++)
        if (chain(ctx, 300 + number * 3 + i, 2) != chain_expected(300 + number * 3 + i, 2))
            return 2;
    return 0;
}

static void test_a_child_goes_on(void **state)
{
    opq_ctx *ctx = *state;
    noise n = {.ctx = ctx};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_noise, &n), 0);
    int bad = 0, status = 0;
    for (int i = 0; i < FORKS; i++) {
        opq_value *value = op1(ctx, OPQ_OP_exp, leaf(ctx, (float)i));
        usleep((useconds_t)(300 + i * 277)); /* not right behind our own run: in the middle of the other thread's */
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(ctx, value, i));
        assert_true(pid > 0);
        waitpid(pid, &status, 0);
        bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_item));
        opq_value_release(value);
        if (bad)
            break;
    }
    atomic_store(&n.stop, 1);
    pthread_join(thread, NULL);
    if (bad)
        fail_msg("a child ended with status %x (%s)", (unsigned)status,
                 WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "it hung" : "wrong result");
}

#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_context, drop_context)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_two_threads_run_graphs_of_their_own),
        TEST(test_one_writes_and_one_reads),
        TEST(test_two_threads_want_one_value),
        TEST(test_everything_at_once),
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
        TEST(test_a_child_goes_on),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
