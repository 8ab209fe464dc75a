/* f16 and bf16 as f32 and back, in integers: the same bits on every host and compiler.
 *
 * Rounding to nearest even adds "half of the last kept place, less one if the kept part is even" below the cut and lets the
 * carry run: out of the mantissa into the exponent, and from the largest finite number into infinity, both of which are right.
 */
#include "graph/graph.h"

#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bits >> shift, rounded to nearest even; 1 <= shift <= 31 */
static uint32_t shift_even(uint32_t bits, int shift)
{
    uint32_t odd = (bits >> shift) & 1;
    return (bits + ((UINT32_C(1) << (shift - 1)) - 1) + odd) >> shift;
}

float opq_bf16_to_f32(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t opq_f32_to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if (value != value)
        return (uint16_t)((bits >> 16) | 0x40); /* quiet: a NaN whose payload lies below the cut must not become infinity */
    return (uint16_t)shift_even(bits, 16);
}

float opq_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t mantissa = half & 0x3ff;

    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) { /* zero or denormal: mantissa * 2^-24, exact in f32 */
        float magnitude = (float)mantissa * 0x1p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t opq_f32_to_f16(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    int exponent = (int)(magnitude >> 23);

    if (value != value)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (exponent >= 143) /* 2^16 and above, infinity included */
        return (uint16_t)(sign | 0x7c00);
    if (exponent >= 113) /* normal in f16; 65520 and above carry into infinity */
        return (uint16_t)(sign | shift_even(magnitude - (UINT32_C(112) << 23), 13));
    if (exponent < 102) /* below half of the smallest denormal */
        return sign;
    return (uint16_t)(sign | shift_even((magnitude & 0x7fffff) | 0x800000, 126 - exponent));
}
