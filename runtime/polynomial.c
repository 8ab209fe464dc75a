/* See polynomial.h. Of one size three points give a polynomial of degree two, and the fourth has to lie on it; of two sizes the four corners give one
 * that is linear in each, and two points have to lie on it.
 */
#include "runtime/polynomial.h"

static bool is_prime(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return true;
}

/* low, two primes between, high: those of the second size are other ones than those of the first, `taken`. */
static bool find_places(int64_t low, int64_t high, const int64_t *taken, int64_t out[4])
{
    out[0] = low;
    out[3] = high;
    for (int k = 1; k < 3; k++) {
        int64_t n = out[k - 1] + (high - low) / 3;
        while (!is_prime(n) || (taken && (n == taken[1] || n == taken[2])))
            n++;
        out[k] = n;
    }
    return out[0] < out[1] && out[2] < out[3];
}

int opq_plan_family_sizes(const opq_family_range *range, int64_t out_sizes[OPQ_FAMILY_PLANS][OPQ_FAMILY_SIZES])
{
    static const int OF_TWO[][OPQ_FAMILY_SIZES] = {{0, 0}, {3, 0}, {0, 3}, {3, 3}, {1, 2}, {2, 1}};
    int64_t at[OPQ_FAMILY_SIZES][4];
    for (int i = 0; i < range->count; i++)
        if (!find_places(range->low[i], range->high[i], i > 0 ? at[0] : NULL, at[i]))
            return 0;
    int count = range->count == 1 ? 4 : OPQ_FAMILY_PLANS;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < range->count; i++)
            out_sizes[k][i] = at[i][range->count == 1 ? k : OF_TWO[k][i]];
    return count;
}

void opq_points_terms(const opq_points *points, const int64_t *sizes, opq_terms out)
{
    const int64_t (*size)[OPQ_FAMILY_SIZES] = points->size;
    int64_t first = sizes[0] - size[0][0];
    bool one = points->range.count == 1;
    out[0] = 1;
    out[1] = first;
    out[2] = one ? first * (sizes[0] - size[1][0]) : sizes[1] - size[0][1];
    out[3] = one ? 0 : first * out[2];
}

bool opq_polynomial_at(const opq_polynomial *p, const opq_terms terms, int64_t *out)
{
    int64_t value = 0, part;
    for (int k = 0; k < OPQ_TERMS; k++)
        if (__builtin_mul_overflow(p->of[k], terms[k], &part) || __builtin_add_overflow(value, part, &value))
            return false;
    *out = value;
    return true;
}

static bool divide(int64_t a, int64_t b, int64_t by, int64_t *out)
{
    int64_t difference;
    if (__builtin_sub_overflow(a, b, &difference) || difference % by != 0)
        return false;
    *out = difference / by;
    return true;
}

static bool fit(const opq_points *points, const int64_t *value, opq_polynomial *p)
{
    const int64_t (*size)[OPQ_FAMILY_SIZES] = points->size;
    int64_t next;
    *p = (opq_polynomial){.of = {value[0]}};
    if (!divide(value[1], value[0], size[1][0] - size[0][0], &p->of[1]))
        return false;
    if (points->range.count == 1)
        return divide(value[2], value[1], size[2][0] - size[1][0], &next) &&
               divide(next, p->of[1], size[2][0] - size[0][0], &p->of[2]);
    return divide(value[2], value[0], size[2][1] - size[0][1], &p->of[2]) &&
           divide(value[3], value[2], size[3][0] - size[2][0], &next) &&
           divide(next, p->of[1], size[2][1] - size[0][1], &p->of[3]);
}

bool opq_polynomial_fit(const opq_points *points, const int64_t *value, opq_polynomial *out)
{
    if (!fit(points, value, out))
        return false;
    for (int k = 0; k < points->count; k++) {
        opq_terms terms;
        int64_t has;
        opq_points_terms(points, points->size[k], terms);
        if (!opq_polynomial_at(out, terms, &has) || has != value[k])
            return false;
    }
    return true;
}
