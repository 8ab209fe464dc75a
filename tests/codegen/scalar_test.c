/* opaque/scalar_math.h against the vector functions: the same bits for every argument, on every instruction set. One NaN is as good as
 * another.
 *
 * Built twice: as the evaluator is, where the C library's fma computes, and with the host's fma instruction, which is fast enough for
 *
 *   OPAQUE_TEST_FULL=1    all 2^32 arguments of the functions of one argument, on all threads
 */
#include "math_jit.h"

#include "opaque/scalar_math.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCK = 4096, THREADS_MAX = 64 };

/* ---- both sides */

#define X(name)                                                                                                        \
    static void scalar_##name(const float *x, const float *y, float *out, int64_t count)                               \
    {                                                                                                                  \
        (void)y;                                                                                                       \
        for (int64_t i = 0; i < count; i++)                                                                            \
            out[i] = opq_##name##_f32(x[i]);                                                                           \
    }
OPQ_MATH1(X)
#undef X
#define X(name)                                                                                                        \
    static void scalar_##name(const float *x, const float *y, float *out, int64_t count)                               \
    {                                                                                                                  \
        for (int64_t i = 0; i < count; i++)                                                                            \
            out[i] = opq_##name##_f32(x[i], y[i]);                                                                     \
    }
X(pow)
X(atan2)
X(fmod)
#undef X
#define X(name) scalar_##name,
static math_function *const scalar[MATH_COUNT] = {OPQ_MATH1(X) X(pow) X(atan2) X(fmod)};
#undef X

static math_jit jits[2];
static int jit_count;

static int setup(void **state)
{
    (void)state;
    if (!math_jit_create(&jits[jit_count++], "avx2", false, 8))
        return -1;
    if (math_host_has_avx512())
        return math_jit_create(&jits[jit_count++], "avx512", true, 16) ? 0 : -1;
    print_message("AVX-512 is not compared: the host lacks F, BW, DQ or VL\n");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (jit_count > 0)
        math_jit_destroy(&jits[--jit_count]);
    return 0;
}

/* ---- a block of arguments */

typedef struct block {
    float x[BLOCK], y[BLOCK], want[BLOCK], got[BLOCK];
    char failure[256]; /* the first */
} block;

/* As a comparison without branches: false if any element differs. */
static bool same_bits(const float *a, const float *b)
{
    uint32_t differ = 0;
    for (int i = 0; i < BLOCK; i++)
        differ |= (opq_f32_bits(a[i]) != opq_f32_bits(b[i])) & ((a[i] == a[i]) | (b[i] == b[i]));
    return differ == 0;
}

static void compare(int f, block *b)
{
    scalar[f](b->x, b->y, b->got, BLOCK);
    for (int j = 0; j < jit_count; j++) {
        jits[j].function[f](b->x, b->y, b->want, BLOCK);
        if (same_bits(b->got, b->want))
            continue;
        for (int i = 0; i < BLOCK && !b->failure[0]; i++)
            if (opq_f32_bits(b->got[i]) != opq_f32_bits(b->want[i]) &&
                (b->got[i] == b->got[i] || b->want[i] == b->want[i]))
                snprintf(b->failure, sizeof b->failure, "%s(%a, %a) is %a, %s gives %a", math_names[f], (double)b->x[i],
                         (double)b->y[i], (double)b->got[i], jits[j].label, (double)b->want[i]);
    }
}

static void expect_same(int f, block *b)
{
    compare(f, b);
    if (b->failure[0])
        fail_msg("%s", b->failure);
}

/* ---- one argument */

/* Between the intervals of tanh and erf, half octaves of 2 + scale * x */
#define EDGES(scale)                                                                                                   \
    1 / (scale), 2 / (scale), 4 / (scale), 6 / (scale), 10 / (scale), 14 / (scale), 22 / (scale), 30 / (scale)

/* Where a formula changes, and what is special; with the three numbers on either side, and their negatives. */
/* clang-format off */
static const float places[] = {
    0, 0x1p-126f, 0x1p-24f, 0x1p-12f, 0x1p-8f, 0.25f, 0x1.6a09e6p-1f, 0.5f, 0.75f, 1, 1.5f, 0x1.6a09e6p+0f, 2, 4,
    EDGES(TANH_SCALE), TANH_TOP, EDGES(ERF_SCALE), ERF_TOP, 10.06f, 10.125f, 16, 20, 30000, 40, 87.33f, 88.72f, 88.8f,
    89.41f, 89.5f, 100, 103.97f, 104, 104.32f, 105, 126, 127, 128, 128.5f, 149, 150, 151, 0x1p23f, 0x1p24f, 0x1p31f,
    0x1p63f, 0x1p64f, 0x1p90f, 0x1p126f, 0x1.fffffep127f, INFINITY, NAN, 0x1.f37c8ap95f,
};
/* clang-format on */
enum { PLACES = sizeof places / sizeof *places, NEAR = 7, SPECIALS = PLACES * NEAR * 2 };

static float special(int i)
{
    float x = opq_f32_of_bits(opq_f32_bits(places[i / 2 / NEAR]) + (uint32_t)(i / 2 % NEAR) - 3);
    return i & 1 ? -x : x;
}

static void test_special_places(void **state)
{
    (void)state;
    static block b;
    for (int i = 0; i < BLOCK; i++)
        b.x[i] = special(i % SPECIALS);
    for (int f = 0; f < MATH_UNARY; f++)
        expect_same(f, &b);
}

/* Bit patterns in steps of an odd number: every exponent and both signs in equal shares. */
static void test_sampled_arguments(void **state)
{
    (void)state;
    static block b;
    const uint32_t step = 4093;
    for (int f = 0; f < MATH_UNARY; f++)
        for (uint64_t bits = (uint64_t)f; bits < UINT64_C(1) << 32; bits += (uint64_t)step * BLOCK) {
            for (int i = 0; i < BLOCK; i++)
                b.x[i] = opq_f32_of_bits((uint32_t)(bits + (uint64_t)i * step));
            expect_same(f, &b);
        }
}

#if defined __FMA__ && !defined __SANITIZE_ADDRESS__
static const bool fast = true;
#else
static const bool fast = false;
#endif
static atomic_int next_function;

static void *every_argument(void *data)
{
    block *b = data;
    for (int f; (f = atomic_fetch_add(&next_function, 1)) < MATH_UNARY && !b->failure[0];)
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32 && !b->failure[0]; bits += BLOCK) {
            for (int i = 0; i < BLOCK; i++)
                b->x[i] = opq_f32_of_bits((uint32_t)bits + (uint32_t)i);
            compare(f, b);
        }
    return NULL;
}

static void test_every_argument(void **state)
{
    (void)state;
    if (!fast || !getenv("OPAQUE_TEST_FULL"))
        skip();
    static block blocks[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = cores < 1 ? 1 : cores > THREADS_MAX ? THREADS_MAX : (int)cores;
    for (int t = 0; t < count; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, every_argument, &blocks[t]), 0);
    for (int t = 0; t < count; t++)
        pthread_join(threads[t], NULL);
    for (int t = 0; t < count; t++)
        if (blocks[t].failure[0])
            fail_msg("%s", blocks[t].failure);
}

/* ---- two arguments */

static uint32_t random_bits(void)
{
    static uint64_t random_state = 1;
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void test_pairs_of_special_places(void **state)
{
    (void)state;
    static block b;
    for (int f = MATH_UNARY; f < MATH_COUNT; f++)
        for (int first = 0; first < SPECIALS * SPECIALS; first += BLOCK) {
            for (int i = 0; i < BLOCK; i++) {
                b.x[i] = special((first + i) / SPECIALS % SPECIALS);
                b.y[i] = special((first + i) % SPECIALS);
            }
            expect_same(f, &b);
        }
}

/* Any two patterns; operands of similar size; a base and an exponent whose power is in range, and small integers. */
static void test_sampled_pairs(void **state)
{
    (void)state;
    static block b;
    for (int f = MATH_UNARY; f < MATH_COUNT; f++)
        for (int n = 0; n < (getenv("OPAQUE_TEST_FULL") ? 12000 : 240); n++) {
            for (int i = 0; i < BLOCK; i++) {
                float unit = (float)random_bits() * 0x1p-32f;
                b.x[i] = opq_f32_of_bits(random_bits());
                b.y[i] = n % 4 == 1 ? b.x[i] * (unit - 0.5f) * 40 : opq_f32_of_bits(random_bits());
                if (n % 4 == 2)
                    b.y[i] = (unit * 300 - 150) / log2f(fabsf(b.x[i]));
                if (n % 4 == 3) {
                    b.x[i] = unit * 40 - 20;
                    b.y[i] = (float)(random_bits() % 61) - 30;
                }
            }
            expect_same(f, &b);
        }
}

/* In f64: against long double, in units of the last place of the largest of the result and the operands that count. */
static void test_logaddexp(void **state)
{
    (void)state;
    double worst = 0;
    for (int i = 0; i < 1000000; i++) {
        double unit = (double)random_bits() * 0x1p-32, scale = exp2((double)(random_bits() % 24) - 12);
        double x = (unit - 0.5) * scale, y = x + ((double)random_bits() * 0x1p-32 - 0.5) * (i % 3 ? 8 : 800);
        double got = opq_logaddexp_f64(x, y), high = x > y ? x : y, low = x > y ? y : x;
        long double more = log1pl(expl((long double)low - (long double)high)), want = (long double)high + more;
        double largest = fmax(fmax(fabs((double)want), fabs(high)), (double)more);
        double unit_of_it = nextafter(largest, INFINITY) - largest;
        worst = fmax(worst, (double)fabsl((long double)got - want) / unit_of_it);
        assert_true(got == opq_logaddexp_f64(y, x));
    }
    if (!(worst <= 4))
        fail_msg("logaddexp: %.3f ULP", worst);
    if (getenv("OPAQUE_TEST_REPORT"))
        print_message("logaddexp %.3f ULP\n", worst);
    const double inf = (double)INFINITY;
    assert_true(opq_logaddexp_f64(-inf, -inf) == -inf && opq_logaddexp_f64(inf, inf) == inf);
    assert_true(opq_logaddexp_f64(-inf, 2) == 2 && opq_logaddexp_f64(0, -inf) == 0 && opq_logaddexp_f64(-inf, inf) == inf);
    assert_true(isnan(opq_logaddexp_f64((double)NAN, 1)) && isnan(opq_logaddexp_f64(inf, (double)NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_special_places), cmocka_unit_test(test_sampled_arguments),
        cmocka_unit_test(test_every_argument), cmocka_unit_test(test_pairs_of_special_places),
        cmocka_unit_test(test_sampled_pairs),  cmocka_unit_test(test_logaddexp),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
