/* The functions of f64: against long double, whose error is a thousandth of a unit here; generated code against opaque/scalar_math.h
 * bit by bit on every instruction set and width; special values.
 *
 *   OPAQUE_TEST_FULL=1    about 16 times as many arguments
 *   OPAQUE_TEST_REPORT=1  prints the measured error and the time per element, the source of docs/accuracy.md
 */
#include "math_jit.h"

#include "opaque/scalar_math.h"
#include "graph/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 4096 };

/* ---- what is compared */

static const struct {
    const char *label;
    bool avx512;
    int lanes;
} variants[] = {{"avx2x8", false, 8}, {"avx2x4", false, 4}, {"avx512x16", true, 16}, {"avx512x8", true, 8}};
enum { VARIANTS = sizeof variants / sizeof variants[0] };
static math_jit jits[VARIANTS];
static int jit_count;

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < VARIANTS; i++) {
        if (variants[i].avx512 && !math_host_has_avx512()) {
            print_message("%s is not compared: the host lacks AVX-512 F, BW, DQ or VL\n", variants[i].label);
            continue;
        }
        if (!math_jit_create(&jits[jit_count++], variants[i].label, variants[i].avx512, variants[i].lanes))
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (jit_count > 0)
        math_jit_destroy(&jits[--jit_count]);
    return 0;
}

static long double sigmoidl(long double x) { return 1 / (1 + expl(-x)); }

/* The published bounds, and where the function changes most */
static const struct {
    double (*scalar)(double);
    long double (*reference)(long double);
    double low, high, bound;
} rows[] = {
#define X(name, low, high, bound) {opq_##name##_f64, name##l, low, high, bound}
    X(exp, -746, 710, 1), X(exp2, -1076, 1025, 1), X(expm1, -45, 45, 2), X(log, 0, 4, 1),
    X(log2, 0, 4, 1),     X(log10, 0, 4, 1),       X(log1p, -1, 4, 1),   X(sin, -100, 100, 1),
    X(cos, -100, 100, 1), X(tanh, -20, 20, 2),     X(erf, -6, 6, 1.5),   X(sigmoid, -746, 40, 2),
#undef X
};
_Static_assert(sizeof rows / sizeof rows[0] == MATH_F64_UNARY, "a row for each function in the order of OPQ_MATH1_F64");
static const double pow_bound = 1;

static bool full(void) { return getenv("OPAQUE_TEST_FULL") != NULL; }
static bool report(void) { return getenv("OPAQUE_TEST_REPORT") != NULL; }

/* |got - exact| in units of the last place of the f64 nearest to exact; an infinity is right where f64 has no such number. */
static double ulp_error(double got, long double exact)
{
    if (isnan(got) || isnanl(exact))
        return isnan(got) && isnanl(exact) ? 0 : (double)INFINITY;
    if (isinf(got) || isinf((double)exact))
        return got == (double)exact ? 0 : (double)INFINITY;
    int exponent;
    frexpl(exact, &exponent);
    if (exponent < -1021)
        exponent = -1021;
    return (double)(fabsl((long double)got - exact) / ldexpl(1, exponent - 53));
}

static uint64_t random_bits(void)
{
    static uint64_t random_state = 1;
    uint64_t half[2];
    for (int i = 0; i < 2; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        half[i] = random_state >> 32;
    }
    return half[0] << 32 | half[1];
}

static double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

static double arguments[BLOCK], seconds[BLOCK], results[BLOCK], others[BLOCK];

/* Equal bits, except that any NaN equals any NaN. */
static bool same(double a, double b) { return opq_f64_bits(a) == opq_f64_bits(b) || (isnan(a) && isnan(b)); }

/* `results` of the scalar function, and the generated ones are the same. */
static void run_all(int f)
{
    for (int i = 0; i < BLOCK; i++)
        results[i] = f < MATH_F64_UNARY ? rows[f].scalar(arguments[i]) : opq_pow_f64(arguments[i], seconds[i]);
    for (int j = 0; j < jit_count; j++) {
        jits[j].function_f64[f](arguments, seconds, others, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            if (!same(results[i], others[i]))
                fail_msg("%s(%a, %a) is %a, %s gives %a", math_f64_names[f], arguments[i], seconds[i], results[i],
                         jits[j].label, others[i]);
    }
}

static void expect_bound(int f, double worst, double x, double y, double bound, const char *where)
{
    if (report())
        print_message("%-8s %.3f ULP at %a, %a%s\n", math_f64_names[f], worst, x, y, where);
    if (!(worst <= bound))
        fail_msg("%s: %.3f ULP at %a, %a%s, the bound is %.2f", math_f64_names[f], worst, x, y, where, bound);
}

/* ---- one argument */

/* Any bits; all over the range; around 0; any size within it; near 1 or near multiples of pi/2. */
static double draw(int f, int kind)
{
    double unit = random_unit(), sign = random_bits() & 1 && rows[f].low < 0 ? -1 : 1;
    if (kind == 1)
        return rows[f].low + (rows[f].high - rows[f].low) * unit;
    if (kind == 2)
        return sign * 3 * unit;
    if (kind == 3)
        return sign * ldexp(1 + unit, (int)(random_bits() % 40) - 30);
    if (kind == 4 && (rows[f].scalar == opq_sin_f64 || rows[f].scalar == opq_cos_f64))
        return sign * trunc(ldexp(1 + unit, (int)(random_bits() % 90))) * OPQ_HALF_PI;
    if (kind == 4)
        return 1 + (unit - 0.5) * ldexp(1, -(int)(random_bits() % 52));
    return opq_f64_of_bits(random_bits());
}

static void test_unary_accuracy(void **state)
{
    (void)state;
    const int blocks = full() ? 5000 : 300;
    for (int f = 0; f < MATH_F64_UNARY; f++) {
        double worst = 0, worst_at = 0;
        for (int block = 0; block < blocks; block++) {
            for (int i = 0; i < BLOCK; i++)
                arguments[i] = draw(f, block % 5);
            run_all(f);
            for (int i = 0; i < BLOCK; i++) {
                double error = ulp_error(results[i], rows[f].reference((long double)arguments[i]));
                if (error > worst) {
                    worst = error;
                    worst_at = arguments[i];
                }
            }
        }
        expect_bound(f, worst, worst_at, 0, rows[f].bound, "");
    }
}

/* The one closest of all to a multiple of pi/2, and the largest numbers */
static void test_far_angles(void **state)
{
    (void)state;
    static const struct {
        double x, sine, cosine; /* correctly rounded */
    } known[] = {
        {0x1.6ac5b262ca1ffp+849, 0x1p+0, -0x1.14ae72e6ba22fp-61},
        {0x1.fffffffffffffp+1023, 0x1.452fc98b34e97p-8, -0x1.fffe62ecfab75p-1},
        {0x1p+1023, 0x1.205248cbdb760p-1, -0x1.a719f26c232bfp-1},
        {0x1p+30, -0x1.3c12353728cafp-1, 0x1.92cb46a920144p-1},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        for (int k = 0; k < BLOCK; k++)
            arguments[k] = k & 1 ? -known[i].x : known[i].x;
        for (int f = 0; f < MATH_F64_UNARY; f++) {
            if (rows[f].scalar != opq_sin_f64 && rows[f].scalar != opq_cos_f64)
                continue;
            run_all(f);
            double want = rows[f].scalar == opq_sin_f64 ? known[i].sine : known[i].cosine;
            if (!(ulp_error(results[0], (long double)want) <= 1))
                fail_msg("%s(%a) is %a, not %a", math_f64_names[f], arguments[0], results[0], want);
            assert_true(results[1] == (rows[f].scalar == opq_sin_f64 ? -results[0] : results[0]));
        }
    }
}

/* Where a formula changes, and what is special; with the three numbers on either side, and their negatives. */
/* clang-format off */
static const double places[] = {
    0, 0x1p-1022, 0x1p-1000, 0x1p-500, 0x1p-54, 0x1p-53, 0x1p-28, 0.25, 0x1.62e42fefa39efp-2, 0x1.6a09e667f3bcdp-2, 0.5,
    0x1.6a09e667f3bcdp-1, 0.75, 1, 0x1.6a09e667f3bcdp+0, 1.5, 2, 3, OPQ_HALF_PI, OPQ_PI, 6, 10, 19, 22, 36, 36.7, 37.4, 40, 52,
    53, 54, 708.4, 709.78271289338397, 710, 744.4, 745.13321910194122, 746, 1000, 1022, 1023, 1024, 1024.5, 1074, 1075, 1076, 2000,
    0x1p30, 0x1p31, 0x1p32, 0x1p52, 0x1p53, 0x1p54, 0x1p60, 0x1p63, 0x1p64, 0x1p500, 0x1p1023, 0x1.fffffffffffffp1023,
    (double)INFINITY, (double)NAN, 0x1.6ac5b262ca1ffp+849,
};
/* clang-format on */
enum { PLACES = sizeof places / sizeof *places, NEAR = 7, SPECIALS = PLACES * NEAR * 2 };

static double special(int i)
{
    double x = opq_f64_of_bits(opq_f64_bits(places[i / 2 / NEAR]) + (uint64_t)(i / 2 % NEAR) - 3);
    return isnan(x) ? (double)NAN : i & 1 ? -x : x; /* the C library knows signalling ones */
}

static void test_special_places(void **state)
{
    (void)state;
    for (int i = 0; i < BLOCK; i++)
        arguments[i] = special(i % SPECIALS);
    for (int f = 0; f < MATH_F64_UNARY; f++) {
        run_all(f);
        for (int i = 0; i < SPECIALS; i++)
            if (!(ulp_error(results[i], rows[f].reference((long double)arguments[i])) <= rows[f].bound))
                fail_msg("%s(%a) is %a", math_f64_names[f], arguments[i], results[i]);
        if (rows[f].scalar(0.0) == 0)
            assert_true(opq_signbit_f64(rows[f].scalar(-0.0)) && !opq_signbit_f64(rows[f].scalar(0.0)));
    }
}

/* ---- two arguments */

/* Any two patterns; a power in range of any base; of a base near 1; small integers. */
static void test_pow_accuracy(void **state)
{
    (void)state;
    double worst = 0, worst_x = 0, worst_y = 0;
    for (int block = 0; block < (full() ? 5000 : 300); block++) {
        for (int i = 0; i < BLOCK; i++) {
            double x = fabs(opq_f64_of_bits(random_bits())), unit = random_unit();
            if (block % 4 == 2)
                x = exp2(random_unit() * 2 - 1);
            arguments[i] = block % 4 == 3 ? unit * 40 - 20 : block % 4 == 0 ? opq_f64_of_bits(random_bits()) : x;
            seconds[i] = block % 4 == 0 ? opq_f64_of_bits(random_bits()) : (unit * 2200 - 1100) / log2(x);
            if (block % 4 == 3)
                seconds[i] = (double)(random_bits() % 61) - 30;
        }
        run_all(MATH_F64_UNARY);
        for (int i = 0; i < BLOCK; i++) {
            double error = ulp_error(results[i], powl((long double)arguments[i], (long double)seconds[i]));
            if (error > worst) {
                worst = error;
                worst_x = arguments[i];
                worst_y = seconds[i];
            }
        }
    }
    expect_bound(MATH_F64_UNARY, worst, worst_x, worst_y, pow_bound, "");
}

static void test_pow_special(void **state)
{
    (void)state;
    for (int first = 0; first < SPECIALS * SPECIALS; first += BLOCK) {
        for (int i = 0; i < BLOCK; i++) {
            arguments[i] = special((first + i) / SPECIALS % SPECIALS);
            seconds[i] = special((first + i) % SPECIALS);
        }
        run_all(MATH_F64_UNARY);
        for (int i = 0; i < BLOCK; i++) {
            double want = pow(arguments[i], seconds[i]);
            if (!(same(results[i], want) ||
                  (ulp_error(results[i], (long double)want) <= 1.5 && want != 0 && isfinite(want))))
                fail_msg("pow(%a, %a) is %a, not %a", arguments[i], seconds[i], results[i], want);
        }
    }
}

/* ---- lanes, symbols, times */

/* A lane's bits do not depend on its neighbours, even where some lanes take the slow path. */
static void test_lanes_are_independent(void **state)
{
    (void)state;
    static double x[BLOCK], mixed[BLOCK];
    for (int f = 0; f < MATH_F64_UNARY; f++) {
        for (int i = 0; i < BLOCK; i++)
            x[i] = arguments[i] = i % 3 ? opq_f64_of_bits(random_bits()) : random_unit() * 8;
        run_all(f);
        memcpy(mixed, results, sizeof mixed);
        for (int i = 0; i < 64; i++) {
            for (int k = 0; k < BLOCK; k++)
                arguments[k] = x[i];
            run_all(f);
            assert_true(same(mixed[i], results[0]));
        }
    }
}

static void test_no_undefined_symbols(void **state)
{
    (void)state;
    for (int j = 0; j < jit_count; j++)
        assert_int_equal(jits[j].undefined_symbols, 0);
}

/* The best of many passes over a block that fits L1, arguments in [-4, 4), or (0, 4) for logarithms and pow. */
static void report_times(void **state)
{
    (void)state;
    if (!report())
        skip();
    for (int f = 0; f < MATH_F64_COUNT; f++) {
        print_message("%-8s", math_f64_names[f]);
        for (int i = 0; i < BLOCK; i++) {
            arguments[i] = random_unit() * 8 - (strchr("lp", math_f64_names[f][0]) ? 0 : 4);
            seconds[i] = random_unit() * 8 - 4;
        }
        for (int j = 0; j < jit_count; j++) {
            double best = (double)INFINITY;
            for (int pass = 0; pass < 300; pass++) {
                double start = opq_now();
                for (int k = 0; k < 8; k++)
                    jits[j].function_f64[f](arguments, seconds, results, 1024);
                best = fmin(best, opq_now() - start);
            }
            print_message("  %s %.3f ns", jits[j].label, best / (8 * 1024) * 1e9);
        }
        print_message("\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary_accuracy),       cmocka_unit_test(test_far_angles),
        cmocka_unit_test(test_special_places),       cmocka_unit_test(test_pow_accuracy),
        cmocka_unit_test(test_pow_special),          cmocka_unit_test(test_lanes_are_independent),
        cmocka_unit_test(test_no_undefined_symbols), cmocka_unit_test(report_times),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
