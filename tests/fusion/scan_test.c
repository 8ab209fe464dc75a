/* Scans in the text of loops: what a tree may say of them, and what it computes. */
#include "tests/fusion/loop_text.h"

#include <math.h>

#define KERNEL(body) "kernel @k(b0: f32, b1: out f32, b2: i64) over i, j {\n" body "}\n"
#define LOAD "      %2 = load f32 b0[d2 + i*d3 + j]\n"

static const loop_text texts[] = {
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD "      %3 = scan_add f32 %2 in f64\n    }\n  }\n"), NULL},
    {KERNEL("  vector i < d0 {\n    serial j < d1 {\n" LOAD
            "      %3 = scan_max f32 %2\n      %4 = scan_mul f32 %3\n    }\n  }\n"),
     NULL},
    {KERNEL("  parallel i < d0 {\n    vector j < d1 {\n" LOAD "      %3 = scan_add f32 %2\n    }\n  }\n"),
     "a scan outside of a serial loop"},
    {KERNEL("  parallel i < d0 {\n    lanes j < d1 {\n" LOAD "      %3 = scan_add f32 %2\n    }\n  }\n"),
     "a scan outside of a serial loop"},
    {KERNEL("  %0 = const f32 0x1p+0\n  %1 = scan_add f32 %0\n"), "a scan outside of a serial loop"},
    {KERNEL("  serial i < d0 {\n    %1 = load f32 b0[d2 + i*d3]\n    %2 = scan_add f32 %1\n    vector j < d1 {\n"
            "      store f32 b1[d7 + j], %2\n    }\n  }\n"),
     "a scan around a loop"},
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD "      %3 = scan_add f64 %2\n    }\n  }\n"),
     "an operand of another dtype"},
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD "      %3 = scan_add f32 %2 in i64\n    }\n  }\n"),
     "f32 is held in f64, or as it is"},
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n      %2 = load i64 b2[d2 + j]\n      %3 = scan_logaddexp i64 "
            "%2\n    }\n  }\n"),
     "integers are not scanned so"},
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD "      %3 = scan_add f32 %2, %2\n    }\n  }\n"),
     "a wrong number of operands"},
    {KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD
            "      %3 = scan_add f32 %2\n    }\n    store f32 b1[d7 + i], %3\n  }\n"),
     "an operand that is not in sight"},
};

static void test_texts(void **state)
{
    (void)state;
    expect_texts(texts, COUNT(texts));
}

static const char body[] =
    KERNEL("  parallel i < d0 {\n    serial j < d1 {\n" LOAD "      %3 = scan_add f32 %2 in f64\n"
           "      store f32 b1[d7 + i*d8 + j], %3\n    }\n  }\n");

/* It begins anew in each row, and what f32 would lose is held. */
static void test_what_is_held(void **state)
{
    (void)state;
    float in[2][4] = {{1, 0x1p30f, 1, -0x1p30f}, {-0.0f, 2, NAN, 1}}, out[2][4];
    const float want[2][4] = {{1, 0x1p30f, 0x1p30f, 2}, {0, 2, NAN, NAN}};
    const int64_t dims[] = {2, 4, 0, 4, 1, 0, 0, 0, 4, 1, 0, 0};
    void *const buffers[] = {in, out, in};
    opq_arena arena = {0};
    opq_loops loops;
    int64_t error[2];
    expect_ok(opq_loops_parse(body, strlen(body), &arena, &loops));
    expect_ok(opq_loops_eval(&loops, buffers, dims, NULL, error));
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            assert_true((out[i][j] == want[i][j] && !signbit(out[i][j])) || (isnan(out[i][j]) && isnan(want[i][j])));
    opq_arena_drop(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_what_is_held)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
