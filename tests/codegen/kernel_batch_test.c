/* Several kernels at once: on several threads, equal ones once, errors in the order of the jobs. The linker puts the functions below in front of the
 * compiler, the JIT's linking and the allocations of this program, see CMakeLists.txt.
 */
#include "codegen_llvm/allowance.h"
#include "codegen_llvm/cache.h"
#include "codegen_llvm/jit_job.h"
#include "graph/progress.h"
#include "kernel_support.h"
#include "tests/codegen/wrapped_compiler.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { JOBS = 6, THREADS = 2 };

/* ---- the compiler */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls, inside;    /* calls: all; inside: now */
    int together;         /* a call waits until so many are inside at once; fewer: it fails */
    const char *fails[2]; /* kernels' names */
} compiler = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local bool inside_llvm;
static long long until_failure = -1; /* allocations of this thread that still work; negative: all work */

/* The first of those that fail does so last. */
static opq_status note_call(const char *name)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 20;
    opq_status status = OPQ_OK;
    pthread_mutex_lock(&compiler.lock);
    compiler.calls++;
    compiler.inside++;
    pthread_cond_broadcast(&compiler.changed);
    while (compiler.inside < compiler.together && status == OPQ_OK)
        if (pthread_cond_timedwait(&compiler.changed, &compiler.lock, &limit) != 0)
            status = opq_fail(OPQ_INTERNAL, "no other thread compiles");
    compiler.together = 0; /* those that wait have seen each other */
    pthread_cond_broadcast(&compiler.changed);
    pthread_mutex_unlock(&compiler.lock);
    for (int i = 0; i < 2; i++)
        if (compiler.fails[i] && strcmp(name, compiler.fails[i]) == 0) {
            nanosleep(&(struct timespec){.tv_nsec = i == 0 ? 20000000 : 0}, NULL);
            status = opq_fail(OPQ_CODEGEN, "the test has no %s", name);
        }
    return status;
}

opq_status __wrap_opq_compiler_object(opq_compiler *c, const opq_module *module, const char *symbol,
                                      LLVMMemoryBufferRef *out_object)
{
    bool before = inside_llvm;
    inside_llvm = true;
    opq_status status = note_call(((const opq_loops *)module->data)->name);
    if (status == OPQ_OK)
        status = __real_opq_compiler_object(c, module, symbol, out_object);
    pthread_mutex_lock(&compiler.lock);
    compiler.inside--;
    pthread_mutex_unlock(&compiler.lock);
    inside_llvm = before;
    return status;
}

opq_status __real_opq_jit_job_link(opq_jit *jit, opq_jit_job *job, double share, opq_jit_module *out_module,
                                   void **out_address);
opq_status __wrap_opq_jit_job_link(opq_jit *jit, opq_jit_job *job, double share, opq_jit_module *out_module,
                                   void **out_address);
opq_status __wrap_opq_jit_job_link(opq_jit *jit, opq_jit_job *job, double share, opq_jit_module *out_module,
                                   void **out_address)
{
    inside_llvm = true;
    opq_status status = __real_opq_jit_job_link(jit, job, share, out_module, out_address);
    inside_llvm = false;
    return status;
}

/* LLVM ends the process when it has no memory: what it asks for it gets. */
static bool fails(void) { return !inside_llvm && until_failure >= 0 && until_failure-- == 0; }

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *data, size_t size);
void *__wrap_realloc(void *data, size_t size) { return fails() ? NULL : __real_realloc(data, size); }

/* ---- the host */

typedef struct piece {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    int64_t begin;
} piece;

static int loops_asked, threads_told;

static void *run_piece(void *of)
{
    const piece *p = of;
    inside_llvm = true; /* allocations of other threads do not fail */
    p->body(p->data, p->begin, p->begin + 1);
    return NULL;
}

static void parallel_for(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data)
{
    pthread_t thread;
    (void)self;
    loops_asked++;
    assert_int_equal(grain, 1);
    assert_int_equal(count, THREADS);
    piece other = {body, data, 1};
    assert_int_equal(pthread_create(&thread, NULL, run_piece, &other), 0);
    body(data, 0, 1);
    pthread_join(thread, NULL);
}

static int thread_count(void *self)
{
    (void)self;
    return threads_told;
}

static const opq_host host = {.parallel_for = parallel_for, .thread_count = thread_count};

/* ---- kernels: each stores a number, and is called by it */

typedef struct jobs {
    opq_jit *jit;
    opq_arena arena;
    char names[JOBS][8];
    body bodies[JOBS];
    opq_loops loops[JOBS];
    opq_code_job of[JOBS];
    int count, failed;
} jobs;

static opq_loops loops_of(int number, body *b, opq_arena *arena)
{
    body_start(b, OPQ_KERNEL_map, "k");
    body_store(b, body_const(b, OPQ_f32, (opq_number){.f = number}), 0, OPQ_f32, "1");
    return body_loops(b, arena);
}

static float stored_by(const opq_code *code)
{
    opq_arena arena = {0};
    float x = 0;
    void *buffers[] = {&x};
    launch l = {0};
    body b;
    opq_loops loops = loops_of(0, &b, &arena);
    launch_dims(&l, &b, (const int64_t[]){1});
    int64_t error[2] = {0};
    code->fn(buffers, l.dims, NULL, 0, opq_loops_units(&loops, l.dims), NULL, error);
    opq_arena_drop(&arena);
    return x;
}

/* A job for each digit. */
static opq_status make(jobs *j, opq_jit *jit, const char *digits)
{
    *j = (jobs){.jit = jit, .count = (int)strlen(digits)};
    for (int i = 0; i < j->count; i++) {
        snprintf(j->names[i], sizeof j->names[i], "k%c", digits[i]);
        j->loops[i] = loops_of(digits[i] - '0', &j->bodies[i], &j->arena);
        j->loops[i].name = j->names[i];
        j->of[i].loops = &j->loops[i];
    }
    loops_asked = compiler.calls = 0;
    return opq_codegen_all(jit, &host, j->of, j->count, &j->failed);
}

/* Code of the jobs without is not made, that of all others is right, and nothing has a reference afterwards. */
static void check(jobs *j, const char *digits, const char *without, const char *fresh)
{
    for (int i = 0; i < j->count; i++) {
        assert_int_equal(j->of[i].code == NULL, strchr(without, '0' + i) != NULL);
        assert_int_equal(j->of[i].fresh, strchr(fresh, '0' + i) != NULL);
        if (j->of[i].code == NULL)
            continue;
        assert_true(stored_by(j->of[i].code) == (float)(digits[i] - '0'));
        opq_code_release(j->jit, j->of[i].code);
    }
    assert_int_equal(opq_jit_cache(j->jit)->bytes, opq_jit_cache(j->jit)->idle_bytes);
    opq_arena_drop(&j->arena);
}

static int make_jit(void **state)
{
    compiler.together = 0;
    memset(compiler.fails, 0, sizeof compiler.fails);
    threads_told = THREADS;
    return opq_jit_create((opq_jit **)state) != OPQ_OK;
}

static int drop_jit(void **state)
{
    opq_jit_destroy(*state);
    return 0;
}

/* ---- tests */

static void expect_made(opq_status status)
{
    if (status != OPQ_OK)
        fail_msg("%s", opq_error());
}

static void test_two_threads_compile(void **state)
{
    jobs j;
    compiler.together = THREADS;
    expect_made(make(&j, *state, "123"));
    assert_int_equal(j.failed, -1);
    assert_int_equal(compiler.calls, 3);
    assert_int_equal(loops_asked, 1);
    for (int i = 0; i < 3; i++)
        assert_true(j.of[i].code->seconds > 0 && !j.of[i].code->loaded);
    check(&j, "123", "", "012");
    expect_made(make(&j, *state, "321")); /* nobody is asked for what is there */
    assert_int_equal(compiler.calls + loops_asked, 0);
    check(&j, "321", "", "");
    expect_made(make(&j, *state, "143")); /* nor for one alone */
    assert_int_equal(loops_asked, 0);
    assert_int_equal(compiler.calls, 1);
    check(&j, "143", "", "1");
}

static void test_equal_kernels_are_compiled_once(void **state)
{
    jobs j;
    expect_made(make(&j, *state, "12121"));
    assert_int_equal(compiler.calls, 2);
    assert_ptr_equal(j.of[0].code, j.of[2].code);
    assert_ptr_equal(j.of[1].code, j.of[3].code);
    check(&j, "12121", "", "01");
}

/* The first one that fails does so after the other. What is good is there for the next try. */
static void test_the_first_failure_is_told(void **state)
{
    jobs j;
    compiler.fails[0] = "k2";
    compiler.fails[1] = "k4";
    assert_int_equal(make(&j, *state, "12342"), OPQ_CODEGEN);
    assert_int_equal(j.failed, 1);
    assert_string_equal(opq_error(), "the test has no k2");
    check(&j, "12342", "134", "02");
    compiler.fails[0] = compiler.fails[1] = NULL;
    expect_made(make(&j, *state, "12342"));
    assert_int_equal(compiler.calls, 2);
    check(&j, "12342", "", "13");
}

static void test_one_thread_goes_in_order(void **state)
{
    jobs j;
    threads_told = 1;
    compiler.fails[0] = "k3";
    assert_int_equal(make(&j, *state, "12134"), OPQ_CODEGEN);
    assert_int_equal(j.failed, 3);
    assert_int_equal(compiler.calls, 3);
    assert_int_equal(loops_asked, 0);
    check(&j, "12134", "34", "01");
}

/* What is paid for before one is refused is compiled, what comes behind it is not. */
static void test_an_allowance_ends_it(void **state)
{
    jobs j;
    opq_text key = {0};
    opq_arena arena = {0};
    body b;
    opq_loops loops = loops_of(1, &b, &arena);
    opq_loops_key(&loops, &key);
    double price = (double)key.length * 0.1e-3; /* of each, before one was compiled */
    opq_allowance allowance = {.seconds = 2.5 * price};
    assert_null(opq_compile_limit(&allowance));
    assert_int_equal(make(&j, *state, "12345"), OPQ_CODEGEN);
    assert_true(opq_compile_refused());
    assert_ptr_equal(opq_compile_limit(NULL), &allowance);
    assert_int_equal(j.failed, 2);
    assert_int_equal(compiler.calls, 2);
    assert_non_null(strstr(opq_error(), "k3: compiling it takes more than it is to save"));
    assert_true(allowance.missing > 0.4 * price && allowance.missing < 0.6 * price);
    assert_true(allowance.seconds < 2.5 * price &&
                allowance.seconds != 0.5 * price); /* what it took, not what was foreseen */
    check(&j, "12345", "234", "01");
    opq_text_drop(&key);
    opq_arena_drop(&arena);
}

/* A profiler is told of each kernel on the thread that it looks at. */
static int activities;
static bool watched(void *self) { return self == NULL; }
static void *begin_activity(void *self, const opq_activity *activity)
{
    (void)self;
    assert_int_equal(activity->kind, OPQ_ACTIVITY_compile);
    activities++;
    return &activities;
}
static void end_activity(void *self, void *open)
{
    (void)self;
    assert_ptr_equal(open, &activities);
}

static void test_who_looks_sees_one_after_the_other(void **state)
{
    static const unsigned char watching = 1;
    opq_host looking = host;
    jobs j;
    looking.watching = &watching;
    looking.watched = watched;
    looking.activity_begin = begin_activity;
    looking.activity_end = end_activity;
    opq_jit_set_host(*state, &looking);
    activities = 0;
    expect_made(make(&j, *state, "123"));
    assert_int_equal(loops_asked, 0);
    assert_int_equal(activities, 3);
    check(&j, "123", "", "012");
}

/* A thread that nobody waits for leaves the host's threads to those who run, and may be stopped between two kernels. */
static void test_in_the_background(void **state)
{
    atomic_bool stop = false;
    jobs j;
    opq_progress_stop_on(&stop);
    expect_made(make(&j, *state, "12"));
    assert_int_equal(loops_asked, 0);
    check(&j, "12", "", "01");
    stop = true;
    assert_int_equal(make(&j, *state, "12"), OPQ_INTERNAL);
    assert_int_equal(j.failed, -1);
    check(&j, "12", "01", "");
    opq_progress_stop_on(NULL);
}

/* Each allocation fails once. */
static void test_without_memory(void **state)
{
    bool failed = true;
    (void)state;
    for (int number = 0; failed; number++) {
        jobs j;
        opq_jit *jit;
        expect_made(opq_jit_create(&jit));
        assert_true(number < 200);
        until_failure = number;
        opq_status status = make(&j, jit, "121");
        failed = until_failure < 0;
        until_failure = -1;
        assert_true(status == OPQ_OK || (status == OPQ_NO_MEMORY && failed));
        for (int i = 0; i < j.count; i++) {
            assert_true(status != OPQ_OK || j.of[i].code);
            if (j.of[i].code)
                opq_code_release(jit, j.of[i].code);
        }
        opq_arena_drop(&j.arena);
        expect_made(make(&j, jit, "121"));
        for (int i = 0; i < j.count; i++)
            j.of[i].fresh = false;
        check(&j, "121", "", "");
        opq_jit_destroy(jit);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_jit, drop_jit)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_two_threads_compile),       TEST(test_equal_kernels_are_compiled_once),
        TEST(test_the_first_failure_is_told), TEST(test_one_thread_goes_in_order),
        TEST(test_an_allowance_ends_it),      TEST(test_who_looks_sees_one_after_the_other),
        TEST(test_in_the_background),         TEST(test_without_memory),
    };
    setenv("OPAQUE_CACHE", "off", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
