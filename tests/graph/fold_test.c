/* The folds of opaque/kernel.h, which take one element after the other, against the evaluator's, which has them all: the same tree. */
#include "evaluation.h"

#include "opaque/kernel.h"

typedef opq_number fold_function(const opq_number *x, int64_t count, int64_t run);

#define FOLD(row, dtype, real, member)                                                                                 \
    static opq_number lanes_##row##_##dtype(const opq_number *x, int64_t count, int64_t run)                           \
    {                                                                                                                  \
        opq_lanes_##row##_##dtype fold = opq_lanes_##row##_##dtype##_begin(run);                                       \
        for (int64_t k = 0; k < count; k++)                                                                            \
            opq_lanes_##row##_##dtype##_add(&fold, (real)x[k].member);                                                 \
        return (opq_number){.member = opq_lanes_##row##_##dtype##_end(&fold)};                                         \
    }                                                                                                                  \
    static opq_number column_##row##_##dtype(const opq_number *x, int64_t count, int64_t run)                          \
    {                                                                                                                  \
        (void)run;                                                                                                     \
        opq_column_##row##_##dtype fold = opq_column_##row##_##dtype##_begin();                                        \
        for (int64_t k = 0; k < count; k++)                                                                            \
            opq_column_##row##_##dtype##_add(&fold, (real)x[k].member);                                                \
        return (opq_number){.member = opq_column_##row##_##dtype##_end(&fold)};                                        \
    }
#define ARG(row, dtype, real, member)                                                                                  \
    static opq_number lanes_##row##_##dtype(const opq_number *x, int64_t count, int64_t run)                           \
    {                                                                                                                  \
        (void)run;                                                                                                     \
        opq_##row##_##dtype fold = opq_##row##_##dtype##_begin();                                                      \
        for (int64_t k = 0; k < count; k++)                                                                            \
            opq_##row##_##dtype##_add(&fold, (real)x[k].member);                                                       \
        return (opq_number){.i = opq_##row##_##dtype##_end(&fold)};                                                    \
    }
/* clang-format off */
#define FOLDS(X)                                                                                                       \
    X(sum, f32, float, f) X(sum, f64, double, f) X(sum, i64, int64_t, i)                                               \
    X(prod, f32, float, f) X(prod, f64, double, f) X(prod, i64, int64_t, i)                                            \
    X(amax, f32, float, f) X(amax, f64, double, f) X(amax, i64, int64_t, i) X(amax, i32, int32_t, i)                   \
    X(amax, i16, int16_t, i) X(amax, i8, int8_t, i) X(amax, u8, uint8_t, i) X(amax, bool, bool, i)                     \
    X(amin, f32, float, f) X(amin, f64, double, f) X(amin, i64, int64_t, i) X(amin, i32, int32_t, i)                   \
    X(amin, i16, int16_t, i) X(amin, i8, int8_t, i) X(amin, u8, uint8_t, i) X(amin, bool, bool, i)                     \
    X(any, bool, bool, i) X(all, bool, bool, i)
#define ARGS(X)                                                                                                        \
    X(argmax, f32, float, f) X(argmax, f64, double, f) X(argmax, i64, int64_t, i)                                      \
    X(argmin, f32, float, f) X(argmin, f64, double, f) X(argmin, i64, int64_t, i)
/* clang-format on */
FOLDS(FOLD)
ARGS(ARG)

static const struct {
    opq_op op;
    opq_dtype dtype;
    fold_function *lanes, *column;
} folds[] = {
#define X(row, dtype, real, member) {OPQ_OP_##row, OPQ_##dtype, lanes_##row##_##dtype, column_##row##_##dtype},
    FOLDS(X)
#undef X
#define X(row, dtype, real, member) {OPQ_OP_##row, OPQ_##dtype, lanes_##row##_##dtype, lanes_##row##_##dtype},
        ARGS(X)
#undef X
};

/* Small numbers whose sums round, now and then something special. */
static opq_number element(opq_dtype dtype, uint64_t n)
{
    uint64_t bits = n * UINT64_C(0x9e3779b97f4a7c15);
    bits ^= bits >> 29;
    if (!opq_eval_is_float(dtype))
        return opq_eval_rounded(dtype, (opq_number){.i = (int64_t)(bits * 3)});
    double x = (double)(int64_t)(bits % 2000001) / 1000000 - 1;
    return opq_eval_rounded(dtype, (opq_number){.f = bits % 1009 == 0 ? -0.0 : x + (x < 0 ? -0.5 : 0.5)});
}

static void check(const opq_number *x, opq_number *scratch, int64_t count, int64_t run)
{
    for (size_t f = 0; f < COUNT(folds); f++) {
        for (int tree = OPQ_TREE_lanes; tree <= OPQ_TREE_column; tree++) {
            opq_eval_folding folding = {.fold = opq_op_lowering(folds[f].op)->fold,
                                        .dtype = folds[f].dtype,
                                        .tree = (opq_tree)tree,
                                        .run = run,
                                        .count = count};
            for (int64_t k = 0; k < count; k++)
                scratch[k] = opq_eval_is_float(folds[f].dtype)
                                 ? opq_eval_rounded(folds[f].dtype, x[k])
                                 : opq_eval_rounded(folds[f].dtype, (opq_number){.i = x[k].i >> 7});
            opq_number got = (tree == OPQ_TREE_lanes ? folds[f].lanes : folds[f].column)(scratch, count, run);
            opq_number want = opq_eval_fold(&folding, scratch);
            if (got.i != want.i && !(opq_eval_is_float(folds[f].dtype) && got.f != got.f && want.f != want.f))
                fail_msg("%s of %s, %s, %lld elements in runs of %lld: %a (%lld), not %a (%lld)",
                         opq_op_info_of(folds[f].op)->name, opq_dtype_name(folds[f].dtype), opq_tree_name((opq_tree)tree),
                         (long long)count, (long long)run, got.f, (long long)got.i, want.f, (long long)want.i);
        }
    }
}

static void test_counts(void **state)
{
    (void)state;
    static const int64_t counts[][2] = {/* runs of so many elements, how many */
                                        {0, 0},    {1, 1},     {2, 1},    {7, 1},    {8, 1},    {9, 1},    {63, 1},
                                        {64, 1},   {65, 1},    {511, 1},  {512, 1},  {513, 1},  {4095, 1}, {4096, 1},
                                        {4097, 1}, {8192, 1},  {8193, 1}, {1, 64},   {1, 4096}, {1, 4097}, {3, 1500},
                                        {64, 65},  {100, 100}, {4096, 3}, {4097, 3}, {5000, 3}, {1, 8200}};
    const int64_t most = 20000;
    opq_number *x = malloc((size_t)most * sizeof *x), *scratch = malloc((size_t)most * sizeof *scratch);
    assert_true(x != NULL && scratch != NULL);
    for (int64_t k = 0; k < most; k++)
        x[k] = element(OPQ_f64, (uint64_t)k + 1);
    for (size_t i = 0; i < COUNT(counts); i++)
        check(x, scratch, counts[i][0] * counts[i][1], counts[i][0]);
    x[5000].f = NAN;
    x[6000].f = -NAN;
    check(x, scratch, 8000, 8000);
    check(x + 5000, scratch, 3, 3);
    for (int64_t k = 0; k < 70; k++)
        x[k].f = k % 3 == 1 ? 0.0 : -0.0;
    check(x, scratch, 70, 70);
    check(x, scratch, 1, 1);
    free(x);
    free(scratch);
}

/* Results of chunks fill a chunk of their own: 4096^2 elements and one. */
static void test_three_levels(void **state)
{
    (void)state;
    const int64_t count = (int64_t)OPQ_CHUNK * OPQ_CHUNK + 1;
    opq_number *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    opq_lanes_sum_f32 fold = opq_lanes_sum_f32_begin(count);
    for (int64_t k = 0; k < count; k++) {
        x[k] = element(OPQ_f32, (uint64_t)k);
        opq_lanes_sum_f32_add(&fold, (float)x[k].f);
    }
    opq_eval_folding folding = {
        .fold = OPQ_FOLD_sum, .dtype = OPQ_f32, .tree = OPQ_TREE_lanes, .run = count, .count = count};
    assert_true(opq_eval_fold(&folding, x).f == (double)opq_lanes_sum_f32_end(&fold));
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_three_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
