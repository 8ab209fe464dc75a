/* The vector functions against libm in f64: special values, error bounds, the same bits on every
 * instruction set and width, and no undefined symbol.
 *
 *   OPAQUE_TEST_FULL=1    about 16 times as many arguments
 *   OPAQUE_TEST_REPORT=1  prints the measured error and the time per element, the source of
 * docs/accuracy.md
 */
#include "math_jit.h"
#include "math_special.h"
#include "graph/clock.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK 4096
#define PI 3.14159265358979323846

/* ---- what is compiled: narrow and wide vectors on both instruction sets */

static const struct {
    const char *label;
    bool avx512;
    int lanes;
} variants[] = {
    {"avx2x8", false, 8}, {"avx2x16", false, 16}, {"avx2x4", false, 4}, {"avx512x16", true, 16}, {"avx512x8", true, 8}};
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
    for (int i = 0; i < jit_count; i++)
        math_jit_destroy(&jits[i]);
    return 0;
}

static int find(const char *name)
{
    for (int i = 0; i < MATH_COUNT; i++)
        if (!strcmp(math_names[i], name))
            return i;
    fail_msg("no function %s", name);
    return 0;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Equal bits, except that any NaN equals any NaN. */
static bool same(float a, float b) { return to_bits(a) == to_bits(b) || (isnan(a) && isnan(b)); }

/* ---- the published bounds */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static const struct {
    const char *name;
    double (*reference)(double);
    double bound; /* ULP of the f32 result */
} accuracy[] = {
    {"exp", exp, 1},        {"exp2", exp2, 1},         {"expm1", expm1, 2},    {"log", log, 1},
    {"log2", log2, 0.51},   {"log10", log10, 0.51},    {"log1p", log1p, 0.51}, {"sin", sin, 2},
    {"cos", cos, 2},        {"tan", tan, 0.51},        {"asin", asin, 0.51},   {"acos", acos, 0.51},
    {"atan", atan, 0.51},   {"sinh", sinh, 0.51},      {"cosh", cosh, 0.51},   {"tanh", tanh, 2},
    {"asinh", asinh, 0.51}, {"acosh", acosh, 0.51},    {"atanh", atanh, 0.51}, {"erf", erf, 2.5},
    {"erfc", erfc, 0.51},   {"sigmoid", sigmoid, 2.5},
};

/* |got - exact| in units of the last place of the f32 nearest to exact. An infinity stands for
 * 2^128, the first value that f32 cannot have, so that rounding to it is an error like any other.
 */
static double ulp_error(float got, double exact)
{
    if (isnan(got) || isnan(exact))
        return isnan(got) && isnan(exact) ? 0 : INFINITY;
    const double top = 0x1p128;
    double value = isinf(got) ? copysign(top, got) : (double)got;
    if (fabs(exact) >= top)
        return value == copysign(top, exact) ? 0 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    if (exponent < -125)
        exponent = -125;
    return fabs(value - exact) / ldexp(1, exponent - 24);
}

static bool full(void) { return getenv("OPAQUE_TEST_FULL") != NULL; }
static bool report(void) { return getenv("OPAQUE_TEST_REPORT") != NULL; }

static float arguments[BLOCK], seconds[BLOCK], results[BLOCK], others[BLOCK];

/* Runs function f on the block in every variant; `results` has the first one's. */
static void run_all(int f)
{
    jits[0].function[f](arguments, seconds, results, BLOCK);
    for (int j = 1; j < jit_count; j++) {
        jits[j].function[f](arguments, seconds, others, BLOCK);
        for (int i = 0; i < BLOCK; i++)
            if (!same(results[i], others[i]))
                fail_msg("%s(%a, %a): %s gives %a, %s gives %a", math_names[f], (double)arguments[i],
                         (double)seconds[i], jits[0].label, (double)results[i], jits[j].label, (double)others[i]);
    }
}

/* Bit patterns in steps of an odd number: every exponent and both signs in equal shares. */
static void test_unary_accuracy(void **state)
{
    (void)state;
    const uint32_t step = full() ? 61 : 1009;
    for (size_t row = 0; row < sizeof accuracy / sizeof accuracy[0]; row++) {
        int f = find(accuracy[row].name);
        double worst = 0;
        float worst_at = 0;
        for (uint64_t bits = 7; bits < 1ull << 32; bits += (uint64_t)step * BLOCK) {
            for (int i = 0; i < BLOCK; i++)
                arguments[i] = from_bits((uint32_t)(bits + (uint64_t)i * step));
            run_all(f);
            for (int i = 0; i < BLOCK; i++) {
                double error = ulp_error(results[i], accuracy[row].reference((double)arguments[i]));
                if (error > worst) {
                    worst = error;
                    worst_at = arguments[i];
                }
            }
        }
        if (report())
            print_message("%-8s %.3f ULP at %a\n", accuracy[row].name, worst, (double)worst_at);
        if (!(worst <= accuracy[row].bound))
            fail_msg("%s: %.3f ULP at %a, the bound is %.2f", accuracy[row].name, worst, (double)worst_at,
                     accuracy[row].bound);
    }
}

/* Dense samples where most functions change most and the whole range has few. */
static void test_unary_dense(void **state)
{
    (void)state;
    for (size_t row = 0; row < sizeof accuracy / sizeof accuracy[0]; row++) {
        int f = find(accuracy[row].name);
        const uint32_t low = to_bits(0x1p-5f), count = to_bits(0x1p5f) - low, step = full() ? 7 : 509;
        double worst = 0;
        for (uint32_t offset = 0; offset < count; offset += step * BLOCK / 2) {
            for (int i = 0; i < BLOCK; i++)
                arguments[i] = from_bits((low + offset + (uint32_t)(i / 2) * step) | (i & 1 ? 0x80000000u : 0));
            run_all(f);
            for (int i = 0; i < BLOCK; i++)
                worst = fmax(worst, ulp_error(results[i], accuracy[row].reference((double)arguments[i])));
        }
        if (report())
            print_message("%-8s %.3f ULP on 1/32..32\n", accuracy[row].name, worst);
        if (!(worst <= accuracy[row].bound))
            fail_msg("%s: %.3f ULP on 1/32..32, the bound is %.2f", accuracy[row].name, worst, accuracy[row].bound);
    }
}

static void test_near_multiples_of_half_pi(void **state)
{
    (void)state;
    const char *names[] = {"sin", "cos", "tan"};
    double (*references[])(double) = {sin, cos, tan}, bounds[] = {2, 2, 0.51};
    for (int n = 0; n < 3; n++) {
        double worst = 0;
        for (int64_t start = 0; start < (full() ? 20000000 : 200000); start += BLOCK) {
            for (int i = 0; i < BLOCK; i++) {
                int64_t k = start + i;
                /* small multiples one by one, then in geometric steps up to 2^120 */
                double multiple = k < 40000 ? (double)k : exp2(fmod((double)k * 0.001937, 120));
                arguments[i] = (float)(trunc(multiple) * (PI / 2));
            }
            arguments[0] = 0x1.f37c8ap95f; /* 16367173 * 2^72, the closest of all to a multiple of pi/2 */
            run_all(find(names[n]));
            for (int i = 0; i < BLOCK; i++)
                worst = fmax(worst, ulp_error(results[i], references[n]((double)arguments[i])));
        }
        if (report())
            print_message("%-8s %.3f ULP near multiples of pi/2\n", names[n], worst);
        if (!(worst <= bounds[n]))
            fail_msg("%s: %.3f ULP near multiples of pi/2", names[n], worst);
    }
}

/* ---- special values, from math_special.h */

/* Runs one pair in every variant. */
static float evaluate(int f, float x, float y)
{
    for (int i = 0; i < BLOCK; i++) {
        arguments[i] = x;
        seconds[i] = y;
    }
    run_all(f);
    return results[0];
}

static void test_unary_special(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) {
        float got = evaluate(find(special[i].name), special[i].x, 0);
        if (!same(got, special[i].expected))
            fail_msg("%s(%g) = %a, expected %a", special[i].name, (double)special[i].x, (double)got,
                     (double)special[i].expected);
    }
    for (int f = 0; f < MATH_UNARY; f++)
        if (!isnan(evaluate(f, NAN, 0)) || !isnan(evaluate(f, from_bits(0xffc01234), 0)))
            fail_msg("%s(NaN) is not NaN", math_names[f]);
}

static void test_binary_special(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof special2 / sizeof special2[0]; i++) {
        float got = evaluate(find(special2[i].name), special2[i].x, special2[i].y);
        if (!same(got, special2[i].expected))
            fail_msg("%s(%g, %g) = %a, expected %a", special2[i].name, (double)special2[i].x, (double)special2[i].y,
                     (double)got, (double)special2[i].expected);
    }
}

/* ---- two arguments, pseudo-random */

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static double random_unit(void) { return random_bits() * 0x1p-32; }

/* Any two bit patterns, or exponents that give a result within range, or operands of similar size.
 */
static void random_pairs(int f, int64_t block)
{
    for (int i = 0; i < BLOCK; i++) {
        arguments[i] = from_bits(random_bits());
        seconds[i] = from_bits(random_bits());
        if (block % 3 == 1)
            seconds[i] = arguments[i] * (float)((random_unit() - 0.5) * 40);
        if (block % 3 == 2 && f == find("pow")) {
            arguments[i] = i % 2 ? fabsf(arguments[i]) : (float)exp2(random_unit() * 2 - 1);
            seconds[i] = (float)((random_unit() * 300 - 150) / log2(arguments[i]));
        }
        if (block % 6 == 5 && f == find("pow")) {
            arguments[i] = (float)(random_unit() * 40 - 20);
            seconds[i] = (float)(random_bits() % 61) - 30;
        }
    }
}

static void test_pow_atan2_accuracy(void **state)
{
    (void)state;
    const char *names[] = {"pow", "atan2"};
    double (*references[])(double, double) = {pow, atan2};
    for (int n = 0; n < 2; n++) {
        double worst = 0;
        for (int64_t block = 0; block < (full() ? 6000 : 120); block++) {
            random_pairs(find(names[n]), block);
            run_all(find(names[n]));
            for (int i = 0; i < BLOCK; i++)
                worst = fmax(worst, ulp_error(results[i], references[n]((double)arguments[i], (double)seconds[i])));
        }
        if (report())
            print_message("%-8s %.3f ULP\n", names[n], worst);
        if (!(worst <= 0.51))
            fail_msg("%s: %.3f ULP", names[n], worst);
    }
}

static void test_fmod_is_exact(void **state)
{
    (void)state;
    for (int64_t block = 0; block < (full() ? 6000 : 120); block++) {
        random_pairs(find("fmod"), block);
        run_all(find("fmod"));
        for (int i = 0; i < BLOCK; i++)
            if (!same(results[i], fmodf(arguments[i], seconds[i])))
                fail_msg("fmod(%a, %a) = %a", (double)arguments[i], (double)seconds[i], (double)results[i]);
    }
}

/* A lane's bits do not depend on its neighbours, even where some lanes take the slow path. */
static void test_lanes_are_independent(void **state)
{
    (void)state;
    static float mixed[BLOCK];
    for (int f = 0; f < MATH_COUNT; f++) {
        for (int i = 0; i < BLOCK; i++) {
            arguments[i] = from_bits(random_bits());
            seconds[i] = from_bits(random_bits());
        }
        run_all(f);
        memcpy(mixed, results, sizeof mixed);
        static float all_x[BLOCK], all_y[BLOCK];
        memcpy(all_x, arguments, sizeof all_x);
        memcpy(all_y, seconds, sizeof all_y);
        for (int i = 0; i < 64; i++)
            assert_true(same(mixed[i], evaluate(f, all_x[i], all_y[i])));
    }
}

/* The known-answer vectors of the Random123 distribution: index, seed, offset, the first word of the result. */
static void test_philox(void **state)
{
    (void)state;
    static const uint64_t known[3][4] = {
        {0, 0, 0, 0x6627e8d5},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0x408f276d},
        {0x85a308d3243f6a88, 0x299f31d0a4093822, 0x0370734413198a2e, 0xd16cfe09},
    };
    for (int j = 0; j < jit_count; j++) {
        uint64_t in[3 * 16];
        float out[16];
        int lanes = jits[j].lanes;
        for (int lane = 0; lane < lanes; lane++)
            for (int operand = 0; operand < 3; operand++)
                in[operand * lanes + lane] = known[lane % 3][operand];
        jits[j].uniform(in, out);
        for (int lane = 0; lane < lanes; lane++)
            assert_true(out[lane] == (float)(known[lane % 3][3] >> 8) * 0x1p-24f);
    }
}

static void test_no_undefined_symbols(void **state)
{
    (void)state;
    for (int j = 0; j < jit_count; j++)
        assert_int_equal(jits[j].undefined_symbols, 0);
}

/* The best of many passes over a block that fits L1, arguments in [-4, 4) or (0, 4) for the
 * logarithms' sake. */
static void report_times(void **state)
{
    (void)state;
    if (!report())
        skip();
    for (int f = 0; f < MATH_COUNT; f++) {
        print_message("%-8s", math_names[f]);
        for (int i = 0; i < BLOCK; i++) {
            arguments[i] = (float)(random_unit() * 8 - (strchr("lp", math_names[f][0]) ? 0 : 4));
            seconds[i] = (float)(random_unit() * 8 - 4);
        }
        for (int j = 0; j < jit_count; j++) {
            double best = INFINITY;
            for (int pass = 0; pass < 300; pass++) {
                double start = opq_now();
                for (int k = 0; k < 4; k++)
                    jits[j].function[f](arguments, seconds, results, 2048);
                best = fmin(best, opq_now() - start);
            }
            print_message("  %s %.3f ns", jits[j].label, best / (4 * 2048) * 1e9);
        }
        print_message("\n");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary_special),
        cmocka_unit_test(test_binary_special),
        cmocka_unit_test(test_unary_accuracy),
        cmocka_unit_test(test_unary_dense),
        cmocka_unit_test(test_near_multiples_of_half_pi),
        cmocka_unit_test(test_pow_atan2_accuracy),
        cmocka_unit_test(test_fmod_is_exact),
        cmocka_unit_test(test_lanes_are_independent),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_no_undefined_symbols),
        cmocka_unit_test(report_times),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
