/* Digits with a point and an exponent, whatever the locale. 19 digits count; one division of exact numbers is within an ULP of double. */
#include "graph/expr_number.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { EXPONENT_MAX = 10000 }; /* beyond any of double */

/* e-5; without digits the letter is a name's. */
static const char *read_exponent(const char *at, int *out_exponent)
{
    const char *digit = at + 1;
    int exponent = 0;
    *out_exponent = 0;
    if (*at != 'e' && *at != 'E')
        return at;
    bool minus = *digit == '-';
    digit += minus || *digit == '+';
    if (!isdigit((unsigned char)*digit))
        return at;
    for (; isdigit((unsigned char)*digit); digit++)
        exponent = exponent < EXPONENT_MAX ? exponent * 10 + (*digit - '0') : exponent;
    *out_exponent = minus ? -exponent : exponent;
    return digit;
}

const char *opq_expression_number(const char *at, double *out_number)
{
    uint64_t mantissa = 0;
    int scale = 0, exponent;
    bool fraction = false;
    for (;; at++) {
        if (*at == '.' && !fraction)
            fraction = true;
        else if (!isdigit((unsigned char)*at))
            break;
        else if (mantissa < UINT64_C(1000000000000000000)) {
            mantissa = mantissa * 10 + (uint64_t)(*at - '0');
            scale += fraction;
        } else
            scale -= !fraction;
    }
    at = read_exponent(at, &exponent);
    scale -= exponent;
    long double power = 1;
    for (int i = 0; i < abs(scale) && i < EXPONENT_MAX; i++)
        power *= 10;
    *out_number = (double)(scale < 0 ? (long double)mantissa * power : (long double)mantissa / power);
    return at;
}
