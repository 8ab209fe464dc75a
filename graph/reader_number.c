/* Numbers in text IR. Hexadecimal floats are exact and are what print.c writes; decimal ones are for people. */
#include "graph/reader.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

/* Behind "0x": digits[.digits]p[+-]digits. */
static opq_status read_hex(opq_reader *r, size_t start, double *out_value)
{
    uint64_t mantissa = 0;
    int scale = 0, digits = 0;
    bool point = false;
    for (;; r->at++) {
        char c = opq_reader_peek(r);
        int digit = hex_digit(c);
        if (c == '.' && !point) {
            point = true;
            continue;
        }
        if (digit < 0)
            break;
        if (mantissa >> 56 || scale < -100000)
            return opq_reader_fail(r, OPQ_INVALID, start, "more digits than a double has");
        mantissa = mantissa * 16 + (uint64_t)digit;
        scale -= 4 * point;
        digits++;
    }
    if (digits == 0)
        return opq_reader_fail(r, OPQ_INVALID, start, "expected a hexadecimal float");
    OPQ_TRY(opq_reader_want(r, "p"));
    (void)opq_reader_take(r, "+");
    int64_t exponent;
    OPQ_TRY(opq_reader_int(r, &exponent));
    if (exponent > 100000 || exponent < -100000)
        return opq_reader_fail(r, OPQ_INVALID, start, "exponent out of range");
    *out_value = ldexp((double)mantissa, (int)exponent + scale);
    if (isinf(*out_value))
        return opq_reader_fail(r, OPQ_INVALID, start, "number out of range");
    return OPQ_OK;
}

/* strtod, but with a point for a point whatever the program's locale is. */
static bool to_double(const char *text, double *out_value, char **out_end)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return false;
    locale_t before = uselocale(plain);
    *out_value = strtod(text, out_end);
    uselocale(before);
    freelocale(plain);
    return true;
}

/* A sign belongs to the number only as that of the exponent. */
static bool is_decimal(char c, char before)
{
    return (c >= '0' && c <= '9') || c == '.' || c == 'e' || ((c == '+' || c == '-') && before == 'e');
}

static opq_status read_decimal(opq_reader *r, size_t start, double *out_value)
{
    char text[64], *end;
    size_t length = 0;
    for (; is_decimal(opq_reader_peek(r), length ? text[length - 1] : 0); r->at++) {
        if (length == sizeof text - 1)
            return opq_reader_fail(r, OPQ_INVALID, start, "more than %zu characters of a number", sizeof text - 1);
        text[length++] = opq_reader_peek(r);
    }
    text[length] = 0;
    if (length == 0 || text[0] == 'e')
        return opq_reader_fail(r, OPQ_INVALID, start, "expected a number");
    if (!to_double(text, out_value, &end))
        return opq_fail(OPQ_NO_MEMORY, "out of memory for a locale");
    if (*end)
        return opq_reader_fail(r, OPQ_INVALID, start, "expected a number");
    if (isinf(*out_value))
        return opq_reader_fail(r, OPQ_INVALID, start, "number out of range");
    return OPQ_OK;
}

/* Behind "nan": nothing, or all 64 bits in parentheses. */
static opq_status read_nan(opq_reader *r, size_t start, bool negative, double *out_value)
{
    uint64_t bits = (uint64_t)0x7ff8 << 48;
    if (opq_reader_take(r, "(0x")) {
        int digits = 0;
        bits = 0;
        for (int digit; digits < 16 && (digit = hex_digit(opq_reader_peek(r))) >= 0; digits++, r->at++)
            bits = bits * 16 + (uint64_t)digit;
        OPQ_TRY(opq_reader_want(r, ")"));
        if (digits != 16 || negative)
            return opq_reader_fail(r, OPQ_INVALID, start, "expected nan(0x...) with 16 digits and no sign");
    }
    bits |= (uint64_t)negative << 63;
    memcpy(out_value, &bits, sizeof bits);
    if (!isnan(*out_value))
        return opq_reader_fail(r, OPQ_INVALID, start, "the bits are no NaN");
    return OPQ_OK;
}

opq_status opq_reader_number(opq_reader *r, opq_dtype dtype, opq_number *out_number)
{
    opq_reader_blanks(r);
    size_t start = r->at;
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT) {
        OPQ_TRY(opq_reader_int(r, &out_number->i));
    } else {
        bool negative = opq_reader_take(r, "-");
        if (opq_reader_take(r, "nan"))
            return read_nan(r, start, negative, &out_number->f);
        if (opq_reader_take(r, "inf"))
            out_number->f = INFINITY;
        else if (opq_reader_take(r, "0x"))
            OPQ_TRY(read_hex(r, start, &out_number->f));
        else
            OPQ_TRY(read_decimal(r, start, &out_number->f));
        if (negative)
            out_number->f = -out_number->f;
    }
    if (opq_number_fit("value", dtype, out_number) != OPQ_OK)
        return opq_reader_fail(r, OPQ_INVALID, start, "%s", opq_error());
    return OPQ_OK;
}
