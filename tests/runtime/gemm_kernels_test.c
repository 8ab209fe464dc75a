/* Micro-kernels are made when they are first needed: those of one product by all threads that compute it, each once. The linker puts the function below
 * in front of the compiler, see CMakeLists.txt.
 */
#include "tests/runtime/machine.h"

#include "tests/codegen/wrapped_compiler.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 2, ROWS = 27, COLUMNS = 300, DEPTH = 400 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls, inside;
    int together;      /* a call waits until so many are inside at once; it fails if they do not come */
    bool fails, stays; /* stays: until the process ends */
} compiler = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

opq_status __wrap_opq_compiler_object(opq_compiler *c, const opq_module *module, const char *symbol,
                                      LLVMMemoryBufferRef *out_object)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    opq_status status = compiler.fails ? opq_fail(OPQ_CODEGEN, "the test has no %s", module->name) : OPQ_OK;
    pthread_mutex_lock(&compiler.lock);
    compiler.calls++;
    compiler.inside++;
    pthread_cond_broadcast(&compiler.changed);
    while (compiler.stays)
        pthread_cond_wait(&compiler.changed, &compiler.lock);
    while (compiler.inside < compiler.together && status == OPQ_OK)
        if (pthread_cond_timedwait(&compiler.changed, &compiler.lock, &limit) != 0)
            status = opq_fail(OPQ_INTERNAL, "no other thread compiles");
    compiler.together = 0;
    pthread_cond_broadcast(&compiler.changed);
    pthread_mutex_unlock(&compiler.lock);
    if (status == OPQ_OK)
        status = __real_opq_compiler_object(c, module, symbol, out_object);
    pthread_mutex_lock(&compiler.lock);
    compiler.inside--;
    pthread_mutex_unlock(&compiler.lock);
    return status;
}

/* ---- the host */

typedef struct piece {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    int64_t begin, end;
} piece;

static void *run_piece(void *of)
{
    const piece *p = of;
    p->body(p->data, p->begin, p->end);
    return NULL;
}

static void parallel_for(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data)
{
    pthread_t thread;
    piece second = {body, data, count / THREADS, count};
    (void)self;
    (void)grain;
    assert_int_equal(pthread_create(&thread, NULL, run_piece, &second), 0);
    body(data, 0, count / THREADS);
    pthread_join(thread, NULL);
}

static int thread_count(void *self)
{
    (void)self;
    return THREADS;
}

static int make_machine(void **state)
{
    compiler.calls = compiler.together = 0;
    compiler.fails = compiler.stays = false;
    int failed = create_machine(state, parallel_for);
    if (!failed)
        ((machine *)*state)->host.thread_count = thread_count;
    return failed;
}

/* ---- products */

static float left[ROWS * DEPTH], right[DEPTH * COLUMNS], product[ROWS * COLUMNS];

/* More rows than a tile has, and no whole number of vectors: of tiles there are several kinds. */
static opq_status multiply(machine *m)
{
    for (int i = 0; i < ROWS * DEPTH; i++)
        left[i] = (float)(i % 7);
    for (int i = 0; i < DEPTH * COLUMNS; i++)
        right[i] = (float)(i % 5);
    opq_gemm_call call = {
        .dtype = OPQ_f32, .batch = 1, .m = ROWS, .n = COLUMNS, .k = DEPTH, .c = product, .c_row_stride = COLUMNS};
    call.a = (opq_matrix){.data = left, .row_stride = DEPTH, .column_stride = 1, .dtype = OPQ_f32};
    call.b = (opq_matrix){.data = right, .row_stride = COLUMNS, .column_stride = 1, .dtype = OPQ_f32};
    return opq_gemm_run(m->runtime.gemm, &call);
}

static void expect_product(void)
{
    for (int i = 0; i < ROWS; i += 13)
        for (int j = 0; j < COLUMNS; j += 23) {
            float sum = 0;
            for (int k = 0; k < DEPTH; k++)
                sum += left[i * DEPTH + k] * right[k * COLUMNS + j];
            assert_true(product[i * COLUMNS + j] == sum);
        }
}

static void test_threads_share_the_kernels(void **state)
{
    machine *m = *state;
    compiler.together = THREADS;
    expect_ok(multiply(m));
    expect_product();
    int calls = compiler.calls;
    assert_true(calls >= THREADS);
    expect_ok(multiply(m));
    assert_int_equal(compiler.calls, calls);
    opq_gemm_drop_kernels(m->runtime.gemm);
    m->host.parallel_for = NULL; /* alone it needs the same */
    compiler.calls = 0;
    expect_ok(multiply(m));
    expect_product();
    assert_int_equal(compiler.calls, calls);
}

static void test_what_failed_is_tried_again(void **state)
{
    compiler.fails = true;
    assert_int_equal(multiply(*state), OPQ_CODEGEN);
    compiler.fails = false;
    expect_ok(multiply(*state));
    expect_product();
}

static void *multiply_for_ever(void *of)
{
    (void)!multiply(of);
    return NULL;
}

/* Kernels that another thread was making when the process was forked are made by the child. */
static void test_a_child_waits_for_nobody(void **state)
{
    machine *m = *state;
    pthread_t thread;
    int status;
    m->host.parallel_for = NULL;
    compiler.stays = true;
    assert_int_equal(pthread_create(&thread, NULL, multiply_for_ever, m), 0);
    pthread_mutex_lock(&compiler.lock);
    while (compiler.inside == 0)
        pthread_cond_wait(&compiler.changed, &compiler.lock);
    opq_gemm_lock(m->runtime.gemm);
    opq_jit_lock(m->runtime.jit);
    pid_t child = fork();
    opq_jit_unlock(m->runtime.jit, child == 0);
    opq_gemm_unlock(m->runtime.gemm, child == 0);
    compiler.stays = false;
    pthread_cond_broadcast(&compiler.changed);
    pthread_mutex_unlock(&compiler.lock);
    if (child == 0) {
        alarm(60);
        pthread_cond_init(&compiler.changed, NULL); /* it knows of a thread that waited */
        _exit(multiply(m) == OPQ_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_join(thread, NULL);
    expect_product();
}

int main(void)
{
    setenv("OPAQUE_CACHE", "off", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_threads_share_the_kernels, make_machine, drop_machine),
        cmocka_unit_test_setup_teardown(test_what_failed_is_tried_again, make_machine, drop_machine),
        cmocka_unit_test_setup_teardown(test_a_child_waits_for_nobody, make_machine, drop_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
