/* f16 and bf16: every pattern there and back, and what rounds. */
#include "evaluation.h"

static void f16_patterns_survive(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = opq_f16_to_f32((uint16_t)bits);
        if (value != value)
            assert_int_equal(opq_f32_to_f16(value), bits | 0x200); /* quiet, with sign and payload */
        else
            assert_int_equal(opq_f32_to_f16(value), bits);
    }
}

static void bf16_patterns_survive(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = opq_bf16_to_f32((uint16_t)bits);
        if (value != value)
            assert_int_equal(opq_f32_to_bf16(value), bits | 0x40);
        else
            assert_int_equal(opq_f32_to_bf16(value), bits);
    }
}

static const struct {
    float value;
    uint16_t f16, bf16;
} known[] = {
    {0.0f, 0x0000, 0x0000},
    {-0.0f, 0x8000, 0x8000},
    {1.0f, 0x3c00, 0x3f80},
    {-2.0f, 0xc000, 0xc000},
    {65504.0f, 0x7bff, 0x4780},
    {65519.99f, 0x7bff, 0x4780},
    {65520.0f, 0x7c00, 0x4780}, /* the tie goes to even, which is infinity */
    {-1e30f, 0xfc00, 0xf14a},
    {0x1p-14f, 0x0400, 0x3880},
    {0x1p-24f, 0x0001, 0x3380},
    {0x1p-25f, 0x0000, 0x3300}, /* tie to zero */
    {0x1.000002p-25f, 0x0001, 0x3300},
    {0x1.8p-24f, 0x0002, 0x33c0},   /* tie to even */
    {0x1.ffcp-15f, 0x0400, 0x3880}, /* from the largest denormal into the normal numbers */
    {1 + 0x1p-11f, 0x3c00, 0x3f80},
    {1 + 0x3p-11f, 0x3c02, 0x3f80},
    {1 + 0x1p-8f, 0x3c04, 0x3f80},
    {1 + 0x3p-8f, 0x3c0c, 0x3f82},
    {3.4028235e38f, 0x7c00, 0x7f80},
    {INFINITY, 0x7c00, 0x7f80},
    {0x1p-149f, 0x0000, 0x0000},
    {0x1p-133f, 0x0000, 0x0001},
};

static void known_values_round(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(known); i++) {
        assert_int_equal(opq_f32_to_f16(known[i].value), known[i].f16);
        assert_int_equal(opq_f32_to_bf16(known[i].value), known[i].bf16);
    }
}

/* A NaN whose payload lies in the bits that are cut. */
static void nan_stays_nan(void **state)
{
    (void)state;
    const uint32_t bits[] = {0x7f800001, 0xff800001, 0x7fffffff};
    for (size_t i = 0; i < COUNT(bits); i++) {
        float value;
        memcpy(&value, &bits[i], sizeof value);
        assert_true(isnan(opq_f16_to_f32(opq_f32_to_f16(value))));
        assert_true(isnan(opq_bf16_to_f32(opq_f32_to_bf16(value))));
    }
}

#ifdef __FLT16_MANT_DIG__
static void agrees_with_the_compiler(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093) {
        uint32_t word = (uint32_t)bits;
        uint16_t expect;
        float value;
        memcpy(&value, &word, sizeof value);
        if (value != value)
            continue;
        _Float16 half = (_Float16)value;
        memcpy(&expect, &half, sizeof expect);
        assert_int_equal(opq_f32_to_f16(value), expect);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_patterns_survive),     cmocka_unit_test(bf16_patterns_survive),
        cmocka_unit_test(known_values_round),       cmocka_unit_test(nan_stays_nan),
#ifdef __FLT16_MANT_DIG__
        cmocka_unit_test(agrees_with_the_compiler),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
