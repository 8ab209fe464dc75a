/* Several loops in one block: what the text of loops may say of them, and which turns each block has. */
#include "tests/fusion/loop_text.h"

#define KERNEL(body) "kernel @k(b0: f32, b1: out f32, b2: i64) over i, j, k {\n" body "}\n"
#define LOAD "        %3 = load f32 b0[d3 + j*d5 + k]\n"
#define FOLD "        %4 = sum f32 %3\n"
#define NEST(outer, inner, body)                                                                                       \
    KERNEL("  parallel i < d0 {\n    " outer " {\n      " inner " {\n" body "      }\n    }\n  }\n")

static const loop_text texts[] = {
    {NEST("lanes j < d1 in i", "lanes k < d2 in i", LOAD FOLD), NULL},
    {NEST("lanes k < d2 in i", "lanes j < d1 in i", LOAD FOLD), NULL},
    {NEST("lanes j < d1", "lanes k < d2 in i", LOAD FOLD), "reducing loops are all in one block, or none"},
    {NEST("lanes j < d1 in i", "lanes k < d2", LOAD FOLD), "reducing loops are all in one block, or none"},
    {NEST("vector j < d1 in i", "lanes k < d2 in i", LOAD FOLD), "loops in one block that do not reduce"},
    {NEST("vector j < d1 in i", "vector k < d2 in i", LOAD "        store f32 b1[d9 + k], %3\n"),
     "loops in one block that do not reduce"},
    {NEST("lanes j < d1 in i", "lanes k < d2 in i", LOAD FOLD "        store f32 b1[d9 + k], %3\n"),
     "more than values in several loops of a block"},
    {NEST("lanes j < d1 in i", "lanes k < d2 in i",
          "        %3 = load i64 b2[d3]\n        %4 = load_at f32 b0[d9 + %3*d13 < d14]\n        %5 = sum f32 %4\n"),
     "more than values in several loops of a block"},
};

static void test_texts(void **state)
{
    (void)state;
    expect_texts(texts, COUNT(texts));
}

/* Every element is in the block that its number says, and in the order of the numbers. */
static void test_turns(void **state)
{
    static const int64_t sizes[][2] = {{1, 1},    {3, 5},    {4096, 2}, {2, 4096},
                                       {70, 117}, {5000, 3}, {3, 5000}, {1, 8193}};
    (void)state;
    opq_arena arena = {0};
    opq_loops loops;
    expect_ok(opq_loops_parse(texts[0].text, strlen(texts[0].text), &arena, &loops));
    for (size_t s = 0; s < COUNT(sizes); s++) {
        int64_t total = sizes[s][0] * sizes[s][1], next = 0;
        int64_t dims[3] = {(total + OPQ_CHUNK - 1) / OPQ_CHUNK, sizes[s][0], sizes[s][1]}, index[OPQ_LOOP_MAX] = {0};
        for (index[0] = 0; index[0] < dims[0]; index[0]++) {
            int64_t from, to, first, last;
            index[1] = index[2] = 0;
            opq_loop_turns(&loops, 1, dims, index, &from, &to);
            for (index[1] = from; index[1] < to; index[1]++) {
                opq_loop_turns(&loops, 2, dims, index, &first, &last);
                assert_true(first < last);
                for (int64_t k = first; k < last; k++, next++) {
                    assert_int_equal(index[1] * dims[2] + k, next);
                    assert_int_equal(next / OPQ_CHUNK, index[0]);
                }
            }
        }
        assert_int_equal(next, total);
    }
    opq_arena_drop(&arena);
}

/* Rows whose lanes are other rows are short, and enough of them. */
static void test_rows_across(void **state)
{
    static const struct {
        int64_t rows, elements;
        bool right[2]; /* the rows inside or around */
    } cases[] = {{16, 16, {true, true}}, {4000, 2, {true, true}}, {15, 3, {true, false}}, {100, 17, {true, false}}};
    (void)state;
    for (size_t c = 0; c < 2 * COUNT(cases); c++) {
        const int64_t dims[9] = {1, cases[c / 2].elements, cases[c / 2].rows, 0, 0, 1, cases[c / 2].elements, 0, 0};
        const int64_t bytes[3] = {4 * dims[1] * dims[2], 0, 0};
        opq_arena arena = {0};
        opq_loops loops;
        const char *text =
            c % 2 ? NEST("lanes k < d2 in i", "lanes j < d1 in i", "        %3 = load f32 b0[d3 + j + k*d6]\n" FOLD)
                  : NEST("lanes j < d1 in i", "lanes k < d2 in i", "        %3 = load f32 b0[d3 + j + k*d6]\n" FOLD);
        expect_ok(opq_loops_parse(text, strlen(text), &arena, &loops));
        opq_status status = opq_loops_verify_bounds(&loops, dims, bytes);
        assert_int_equal(status, cases[c / 2].right[c % 2] ? OPQ_OK : OPQ_INVALID);
        opq_arena_drop(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_turns),
                                       cmocka_unit_test(test_rows_across)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
