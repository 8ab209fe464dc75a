/* What a tree may not say: reductions outside of lanes, reads of what nobody kept, arguments of two accesses, more phases than there are.
 * And conditions that share their parts, which take no longer than others.
 */
#include "fusion/schedule.h"
#include "tests/fusion/loop_text.h"

#define KERNEL(body) "kernel @k(b0: f32, b1: out f32) over i, j, k {\n" body "}\n"
#define PAIRS(rest)                                                                                                    \
    "kernel @k(b0: bf16, b1: out f32) over i, j, k {\n  vector j < d1 {\n    pairs i < d0 {\n" LOAD rest "}\n"
#define LOAD "      %2 = load f32 b0[d3 + i*d4 + j]\n"
#define WINDOW(outer, inner)                                                                                           \
    "kernel @k(b0: f32, b1: out f32) over i, j, k, l {\n  parallel i < d0 {\n    vector j < d1 {\n      chain k "      \
    "< " outer " {\n        chain l < " inner " {\n          %4 = load f32 b0[d4 + i*d5 + j + k*d7 + l*d8]\n"          \
    "          %5 = matmul f32 %4, %4\n        }\n      }\n      store f32 b1[d11 + i*d12 + j], %5\n    }\n  }\n}\n"
#define KEPT(loop, keeping, reading)                                                                                   \
    KERNEL("  parallel i < d0 {\n    local f32 e1[j]\n    %2 = load f32 b0[d3]\n" loop keeping                         \
           "      store f32 e1[j], %2\n    }\n" reading)
#define READ_6 "      %6 = load f32 e1[j]\n      store f32 b1[d9 + j], %6\n    }\n  }\n"
#define READ_7 "      %7 = load f32 e1[j]\n      store f32 b1[d9 + j], %7\n    }\n  }\n"
#define SCHEDULE(before, blocks, inside, behind)                                                                       \
    "schedule @k(b0: f32, b1: out f32) over i, j, k {\n  vector j < d1 {\n" before "    serial l by 8" blocks " {\n"   \
    "      serial i < d0 in l {\n        %4 = load f32 b0[d3 + i*d4 + j]\n" inside "      }\n    }\n" behind           \
    "  }\n}\n"
#define SUM "    %1 = carry sum f32\n"
#define FOLD "        fold f32 %1, %4\n"
#define LANES(by, reads)                                                                                               \
    "schedule @k(b0: f32, b1: out f32) over i, j, k {\n  parallel i < d0 {\n    %1 = carry sum f32 " by "\n"           \
    "    vector j < d1 {\n      %3 = load f32 b0[d3 + i*d4 + j]\n      fold f32 %1, %3\n    }\n    %5 = " reads        \
    " f32 %1\n  }\n}\n"
#define SEQUENCE(inside)                                                                                               \
    "schedule @k(b0: f32, b1: out f32) over i, j, k {\n  serial i < d0 {\n    %1 = carry sum f32 by 64\n"              \
    "    serial l by 4096 {\n      serial j < d1 in l {\n        %4 = load f32 b0[d3 + i*d4 + j]\n" inside             \
    "        serial m by 4096 in l {\n          vector k < d2 in m {\n            fold f32 %1, %4\n          }\n"      \
    "        }\n      }\n    }\n  }\n}\n"
#define TILES(outer, rows, columns)                                                                                    \
    "schedule @k(b0: f32, b1: out f32) over i, j {\n  " outer " k by 4 {\n    each l by 64 {\n      " rows             \
    " i < d0 in k {\n        " columns " j < d1 in l {\n          %4 = load f32 b0[d2 + i*d3 + j]\n"                   \
    "          store f32 b1[d7 + i*d8 + j], %4\n        }\n      }\n    }\n  }\n}\n"
#define ROWS(second)                                                                                                   \
    "schedule @k(b0: f32, b1: out f32) over i, j by rows {\n  each k by 256 {\n    local f32 e1[j]\n"                  \
    "    vector j < d1 in k {\n      %3 = load f32 b0[d2 + j]\n      store f32 e1[j], %3\n    }\n    vector " second   \
    " in k {\n    }\n  }\n}\n"
#define PHASE "  parallel i < d0 {\n  }\n"

static const loop_text texts[] = {
    {KERNEL("  parallel i < d0 {\n    column j < d1 {\n" LOAD "      %3 = sum f32 %2\n    }\n  }\n"),
     "a column or chain outside of a vector loop"},
    {KERNEL("  parallel i < d0 {\n    chain j < d1 {\n" LOAD "      %3 = matmul f32 %2, %2\n    }\n  }\n"),
     "a column or chain outside of a vector loop"},
    {KERNEL("  vector j < d1 {\n    column i < d0 {\n" LOAD "      %3 = sum f32 %2\n    }\n  }\n"), NULL},
    {KERNEL("  vector j < d1 {\n    chain i < d0 {\n" LOAD "      %3 = matmul f32 %2, %2\n    }\n  }\n"), NULL},
    {PAIRS("      %3 = matmul f32 %2, %2\n    }\n  }\n"), NULL},
    {PAIRS("      %3 = neg f32 %2\n      %4 = matmul f32 %2, %3\n    }\n  }\n"), NULL},
    {PAIRS("      %3 = sum f32 %2\n    }\n  }\n"), "a chain of no product, or of several"},
    {KERNEL("  vector j < d1 {\n    pairs i < d0 {\n" LOAD "      %3 = matmul f32 %2, %2\n    }\n  }\n"), NULL},
    {KERNEL("  parallel i < d0 {\n    pairs j < d1 {\n" LOAD "      %3 = matmul f32 %2, %2\n    }\n  }\n"),
     "a column or chain outside of a vector loop"},
    {KERNEL("  vector j < d1 {\n    chain i < d0 {\n" LOAD
            "      %3 = cast f64 %2\n      %4 = matmul f32 %2, %3\n    }\n  }\n"),
     "an operand of another dtype"},
    {KERNEL("  vector j < d1 {\n    column i < d0 {\n" LOAD "      %3 = sum f32 %2\n    }\n    column i < d0 {\n"
            "      %5 = sum f32 %2\n    }\n  }\n"),
     "an operand that is not in sight"},
    {KERNEL("  vector j < d1 {\n    chain i < d0 {\n" LOAD "    }\n  }\n"), "a chain of no product, or of several"},
    {KERNEL("  vector j < d1 {\n    chain i < d0 {\n" LOAD
            "      %3 = matmul f32 %2, %2\n      %4 = matmul f32 %2, %2\n    }\n  }\n"),
     "a chain of no product, or of several"},
    {KERNEL("  vector j < d1 {\n    chain i < d0 {\n" LOAD
            "      store f32 b1[d9 + i*d10 + j], %2\n      %4 = matmul f32 %2, %2\n    }\n  }\n"),
     "more than values in a chain"},
    {WINDOW("d2", "3"), NULL},
    {WINDOW("3 along i", "3"), NULL},
    {WINDOW("3", "2"), "no such loop has this number of turns"},
    {WINDOW("3 along k", "3"), "it slides along no loop around it"},
    {WINDOW("d2 along i", "3"), "it slides along no loop around it"},
    {KERNEL("  vector j < 3 {\n  }\n"), "no such loop has this number of turns"},

    {KEPT("", "    vector j < d1 {\n", "    vector j < d1 {\n" READ_6), NULL},
    {KEPT("", "    vector j < d1 in i {\n", "    vector j < d1 in i {\n" READ_6), NULL},
    {KEPT("", "    vector j < d1 in i {\n", "    vector j < d1 {\n" READ_6), "only blocks of what is read were kept"},
    {KEPT("    serial k < d2 {\n", "    vector j < d1 {\n", "    }\n    vector j < d1 {\n" READ_7),
     "nothing was kept there yet"},
    {KEPT("    serial k < d2 {\n", "    vector j < d1 {\n",
          "    vector j < d1 {\n      %7 = load f32 e1[j]\n      store f32 b1[d9 + j], %7\n    }\n    }\n  }\n"),
     NULL},

    {KERNEL("  vector i < d0 {\n    %1 = load f32 b0[d3 + i]\n    store f32 b1[d3 + i], %1\n  }\n"),
     "these arguments are those of another access"},
    {KERNEL("  vector i < d0 {\n    %1 = load f32 b0[d3 + i]\n    %2 = load f32 b0[d3]\n  }\n"),
     "these arguments are those of another access"},

    {SCHEDULE(SUM, "", FOLD, "    store f32 b1[d9 + j], %1\n"), NULL},
    {KERNEL("  vector j < d1 {\n" SUM "  }\n"), "a carried value outside of a schedule"},
    {KERNEL("  vector j < d1 {\n    serial l by 8 {\n      serial i < d0 in l {\n      }\n    }\n  }\n"),
     "a variable of the kernel expected"},
    {SCHEDULE(SUM, "", "        fold f64 %1, %4\n", ""), "an operand of another dtype"},
    {SCHEDULE(SUM, "", "        fold f32 %4, %4\n", ""), "no such carry"},
    {SCHEDULE(SUM, "", "", "    fold f32 %1, %1\n"), "a fold outside of the loops behind its carry"},
    {SCHEDULE(SUM, "", FOLD, "    %6 = at i64 %1\n"), "only a fold that compares has an index"},
    {SCHEDULE("    %1 = carry argmax f32\n", "", FOLD, "    %6 = at i64 %1\n"), NULL},
    {SCHEDULE("    %1 = carry any f32\n", "", FOLD, ""), "the result is bool"},
    {SCHEDULE("    %1 = carry exp f32\n", "", FOLD, ""), "an op that folds expected"},
    {"schedule @k(b0: f32) over i {\n  serial j by 0 {\n    serial i < d0 in j {\n    }\n  }\n}\n",
     "blocks of no size"},
    {TILES("each", "each", "vector"), NULL},
    {TILES("serial", "each", "vector"), NULL},
    {ROWS("j < d1"), NULL},
    {ROWS("i < d0"), "independent blocks of several loops"},
    {"kernel @k(b0: f32) over i by columns {\n}\n", "expected '{'"},
    {TILES("each", "each", "lanes"), "independent blocks of turns that are not"},
    {TILES("vector", "each", "vector"), "blocks of a constant size outside"},
    {TILES("each", "serial", "vector"), "independent blocks of turns that are not"},
    {"schedule @k(b0: f32) over i, j {\n  each k by 8 {\n    each i < d0 in k {\n      vector j < d1 in k {\n      }\n "
     "   }\n  }\n}\n",
     "independent blocks of several loops"},
    {"schedule @k(b0: f32) over i {\n  serial j by 8 {\n    serial i < d0 {\n    }\n  }\n}\n", "blocks of nothing"},
    {SCHEDULE("    %1 = carry sum f32 by 48\n", "", FOLD, "    %6 = halves f32 %1\n"), "no such partial results"},
    {SCHEDULE("    %1 = carry argmax f32 by 64\n", "", FOLD, "    %6 = at i64 %1\n"), "no such partial results"},
    {SCHEDULE("    %1 = carry sum f32 by 16\n", "", FOLD, "    %6 = halves f32 %1\n"), NULL},
    {SCHEDULE("    %1 = carry sum f32 by 16\n", "", FOLD, "    %6 = halves f64 %1\n"), "an operand of another dtype"},
    {SCHEDULE(SUM, "", FOLD, "    %6 = halves f32 %1\n"), "halves of one value"},
    {SEQUENCE("        store f32 b1[d9 + i*d10 + j], %4\n"), NULL},
    {SEQUENCE("        %5 = cast i64 %4\n        store_add_at f32 b1[d9 + i*d10 + %5*d13 < d14], %4\n"),
     "an addition that is made more than once"},
    {LANES("by 64", "halves"), NULL},
    {LANES("by 16", "halves"), "lanes fold into one value"},
    {"schedule @k(b0: f32) over i {\n  serial j by 8 {\n    serial i < d0 in j {\n      %2 = load f32 b0[d1 + j]\n    "
     "}\n  }\n}\n",
     "an access does not walk blocks"},

    {KERNEL(PHASE PHASE PHASE PHASE PHASE PHASE PHASE PHASE), NULL},
    {KERNEL(PHASE PHASE PHASE PHASE PHASE PHASE PHASE PHASE PHASE), "more than 8 phases"},
};

static void test_texts(void **state)
{
    (void)state;
    expect_texts(texts, COUNT(texts));
}

/* %k = bitwise_and %k-1, %k-1, two hundred times: each is looked at once. */
static void test_shared_conditions(void **state)
{
    (void)state;
    opq_text text = {0};
    opq_arena arena = {0};
    opq_loops loops;
    const int64_t dims[] = {4, 1, 1, 0, 1, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
    const int64_t bytes[] = {16, 16};
    opq_text_add(&text, "kernel @k(b0: f32, b1: out f32) over i, j, k {\n  vector i < d0 {\n");
    opq_text_add(&text, "    %%1 = inside bool [d3 + i < d8]\n");
    for (int n = 2; n < 200; n++)
        opq_text_add(&text, "    %%%d = bitwise_and bool %%%d, %%%d\n", n, n - 1, n - 1);
    opq_text_add(&text, "    %%200 = load f32 b0[d9 + i], %%199\n    store f32 b1[d15 + i], %%200\n  }\n}\n");
    expect_ok(opq_loops_parse(text.data, text.length, &arena, &loops));
    expect_ok(opq_loops_verify_bounds(&loops, dims, bytes));
    opq_arena_drop(&arena);
    opq_text_drop(&text);
}

/* Arguments that no run has. */
static void test_arguments(void **state)
{
    static const struct {
        int at;
        int64_t number;
        const char *error;
    } cases[] = {{0, 4, NULL},
                 {1, 0, "a reduction of nothing"},
                 {4, INT64_MIN, "an argument past all memory"},
                 {8, 0, "two turns store one element"},
                 {0, -1, "a negative extent"}};
    (void)state;
    const char *body = "kernel @k(b0: f32, b1: out f32) over i, j {\n  parallel i < d0 {\n    lanes j < d1 {\n"
                       "      %2 = load f32 b0[d2 + i*d3 + j]\n      %3 = sum f32 %2\n    }\n    store f32 b1[d7 + "
                       "i*d8], %3\n  }\n}\n";
    opq_arena arena = {0};
    opq_loops loops;
    expect_ok(opq_loops_parse(body, strlen(body), &arena, &loops));
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t dims[] = {4, 3, 0, 3, 1, 0, 0, 0, 1, 0, 0, 0};
        const int64_t bytes[] = {48, 16};
        dims[cases[i].at] = cases[i].number;
        opq_status status = opq_loops_verify_bounds(&loops, dims, bytes);
        if (cases[i].error == NULL)
            expect_ok(status);
        else if (status != OPQ_INVALID || strstr(opq_error(), cases[i].error) == NULL)
            fail_msg("d%d = %lld: %s", cases[i].at, (long long)cases[i].number,
                     status == OPQ_OK ? "accepted" : opq_error());
    }
    opq_arena_drop(&arena);
}

/* Of a window: as many turns as its tree has, and it slides. */
static void test_arguments_of_windows(void **state)
{
    static const struct {
        int at;
        int64_t number;
        const char *error;
    } cases[] = {{0, 4, NULL}, {3, 2, "another number of turns"}, {7, 5, "a window that does not slide"}};
    (void)state;
    const char *body = WINDOW("3 along i", "3");
    opq_arena arena = {0};
    opq_loops loops;
    expect_ok(opq_loops_parse(body, strlen(body), &arena, &loops));
    for (size_t i = 0; i < COUNT(cases); i++) {
        int64_t dims[] = {4, 5, 3, 3, 0, 7, 1, 7, 1, 0, 0, 0, 5, 1, 0, 0, 0, 0};
        const int64_t bytes[] = {1 << 20, 1 << 20};
        dims[cases[i].at] = cases[i].number;
        opq_status status = opq_loops_verify_bounds(&loops, dims, bytes);
        if (cases[i].error == NULL)
            expect_ok(status);
        else if (status != OPQ_INVALID || strstr(opq_error(), cases[i].error) == NULL)
            fail_msg("d%d: %s", cases[i].at, status == OPQ_OK ? "accepted" : opq_error());
    }
    opq_arena_drop(&arena);
}

/* A column's number is read, replaced where it lies, and needed once more: b2 is b1. */
static void test_columns_in_place(void **state)
{
    (void)state;
    static const char text[] = "kernel @k(b0: f32, b1: f32, b2: out f32, b3: out f32) over i, j by rows {\n"
                               "  vector j < d1 {\n"
                               "    %1 = load f32 b1[d7 + j]\n"
                               "    %2 = add f32 %1, %1\n"
                               "    store f32 b2[d12 + j], %2\n"
                               "    column i < d0 {\n"
                               "      %5 = load f32 b0[d2 + i*d3 + j]\n"
                               "      %6 = sub f32 %5, %1\n"
                               "      %7 = sum f32 %6\n"
                               "    }\n"
                               "    store f32 b3[d17 + j], %7\n"
                               "  }\n"
                               "}\n";
    static const int64_t dims[] = {2, 3, 0, 3, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0};
    float x[] = {1, 2, 3, 10, 20, 30}, b[] = {1, 1, 2}, sums[3] = {0};
    void *buffers[] = {x, b, b, sums};
    int64_t error[2];
    opq_arena arena = {0};
    opq_loops loops;
    expect_ok(opq_loops_parse(text, strlen(text), &arena, &loops));
    expect_ok(opq_schedule_eval(&loops, buffers, dims, NULL, error));
    opq_arena_drop(&arena);
    assert_memory_equal(sums, ((float[]){9, 20, 29}), sizeof sums);
    assert_memory_equal(b, ((float[]){2, 2, 4}), sizeof b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_shared_conditions),
                                       cmocka_unit_test(test_arguments), cmocka_unit_test(test_arguments_of_windows),
                                       cmocka_unit_test(test_columns_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
