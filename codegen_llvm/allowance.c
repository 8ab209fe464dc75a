/* See allowance.h. */
#define XXH_INLINE_ALL
#include "codegen_llvm/allowance.h"

#include <xxhash.h>

/* Of an AVX2 machine; a few kernels later it is this one's. */
static const double FIRST_SECONDS_PER_BYTE = 0.1e-3, WEIGHT = 0.1;

static _Thread_local opq_allowance *limit;

opq_allowance *opq_compile_limit(opq_allowance *allowance)
{
    opq_allowance *before = limit;
    limit = allowance;
    return before;
}

bool opq_compile_is_look(void) { return limit && limit->seconds <= 0; }

bool opq_compile_refused(void) { return limit && limit->missing > 0; }

static double per_byte(const opq_prices *prices)
{
    return prices->seconds_per_byte > 0 ? prices->seconds_per_byte : FIRST_SECONDS_PER_BYTE;
}

static struct opq_deposit *look_up(opq_prices *prices, const void *key, size_t bytes)
{
    uint64_t hash = XXH3_64bits(key, bytes);
    struct opq_deposit *found = &prices->deposits[hash % OPQ_DEPOSITS];
    if (found->key != hash)
        *found = (struct opq_deposit){.key = hash};
    return found;
}

static void spend(double seconds)
{
    limit->seconds -= seconds;
    limit->deposit = limit->deposit < limit->seconds ? limit->deposit : limit->seconds;
}

bool opq_prices_pay(opq_prices *prices, const void *key, size_t bytes, double *out_price)
{
    *out_price = 0;
    if (limit == NULL)
        return true;
    struct opq_deposit *paid = look_up(prices, key, bytes);
    double price = (double)bytes * per_byte(prices) - paid->seconds;
    price = price > 0 ? price : 0;
    if (price <= limit->seconds) {
        *out_price = price;
        spend(price);
        paid->seconds = 0;
        return true;
    }
    limit->missing = price - limit->seconds;
    limit->deposit = limit->deposit > 0 ? limit->deposit : 0;
    limit->seconds -= limit->deposit;
    paid->seconds += limit->deposit;
    limit->deposit = 0;
    return false;
}

void opq_prices_learn(opq_prices *prices, size_t bytes, double seconds, double price, double lost)
{
    if (limit)
        spend(lost - price);
    if (bytes > 0)
        prices->seconds_per_byte = per_byte(prices) + WEIGHT * (seconds / (double)bytes - per_byte(prices));
}
