/* What compiling may take: allowance.h. */
#include "codegen_llvm/allowance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BYTES = 100 }; /* 10 ms */
static const char one[BYTES] = "one", other[BYTES] = "other";

static void expect_near(double actual, double expected)
{
    assert_true(actual > expected - 1e-9 && actual < expected + 1e-9);
}

static bool pay(opq_prices *prices, const char *key, opq_allowance *allowance)
{
    assert_null(opq_compile_limit(allowance));
    double price = -1;
    bool paid = opq_prices_pay(prices, key, BYTES, &price);
    assert_true(price >= 0);
    assert_int_equal(opq_compile_refused(), allowance && !paid);
    assert_ptr_equal(opq_compile_limit(NULL), allowance);
    return paid;
}

static void test_without_a_limit_all_is_compiled(void **state)
{
    (void)state;
    opq_prices prices = {0};
    assert_true(pay(&prices, one, NULL));
    assert_false(opq_compile_refused());
}

static void test_what_is_there_is_spent(void **state)
{
    (void)state;
    opq_prices prices = {0};
    opq_allowance allowance = {.seconds = 25e-3, .deposit = 12e-3};
    assert_true(pay(&prices, one, &allowance) && pay(&prices, other, &allowance));
    expect_near(allowance.seconds, 5e-3);
    expect_near(allowance.deposit, 5e-3); /* no more than there is */
    assert_false(pay(&prices, one, &allowance));
    expect_near(allowance.missing, 5e-3);
}

static void test_many_pay_for_one(void **state)
{
    (void)state;
    opq_prices prices = {0};
    for (int i = 1; i < 4; i++) {
        opq_allowance allowance = {.seconds = 4e-3, .deposit = 3e-3};
        assert_int_equal(pay(&prices, one, &allowance), i == 3);
        expect_near(allowance.seconds, i == 3 ? 0 : 1e-3);
        expect_near(allowance.missing, i == 3 ? 0 : (double[]){0, 6e-3, 3e-3}[i]);
    }
    opq_allowance allowance = {.seconds = 4e-3};
    assert_false(pay(&prices, one, &allowance)); /* it was for once */
}

static void test_prices_are_learnt(void **state)
{
    (void)state;
    opq_prices prices = {0};
    for (int i = 0; i < 100; i++)
        opq_prices_learn(&prices, BYTES, 1e-3, 0, 0);
    opq_allowance allowance = {.seconds = 1.1e-3};
    assert_true(pay(&prices, one, &allowance));
    opq_prices_learn(&prices, 0, 1, 0, 0); /* says nothing */
    assert_true(prices.seconds_per_byte < 1.1e-5);
}

/* Several are paid for before the first is compiled; of each, what the thread lost is taken in place of its price. */
static void test_what_was_lost_is_taken(void **state)
{
    (void)state;
    opq_prices prices = {0};
    opq_allowance allowance = {.seconds = 25e-3, .deposit = 25e-3};
    double first, second;
    assert_null(opq_compile_limit(&allowance));
    assert_true(opq_prices_pay(&prices, one, BYTES, &first) && opq_prices_pay(&prices, other, BYTES, &second));
    expect_near(first + second, 20e-3);
    opq_prices_learn(&prices, BYTES, 12e-3, first, 6e-3);
    opq_prices_learn(&prices, BYTES, 4e-3, second, 2e-3);
    expect_near(allowance.seconds, 17e-3);
    expect_near(allowance.deposit, 5e-3); /* of what was left when they were paid for */
    assert_ptr_equal(opq_compile_limit(NULL), &allowance);
    opq_prices_learn(&prices, BYTES, 1, 1, 1);
    expect_near(allowance.seconds, 17e-3); /* of another thread */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_a_limit_all_is_compiled),
        cmocka_unit_test(test_what_is_there_is_spent),
        cmocka_unit_test(test_many_pay_for_one),
        cmocka_unit_test(test_prices_are_learnt),
        cmocka_unit_test(test_what_was_lost_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
