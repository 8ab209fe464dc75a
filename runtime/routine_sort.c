/* argsort, which is stable: short rows by insertion, those of some dozens by merging such runs, each step without a jump that could be guessed wrong,
 * longer ones by their digits, least significant first. A digit that all have in common is passed over: few distinct integers are one pass.
 */
#include "runtime/routine.h"

#include "opaque/scalar.h"
#include "fusion/target.h"
#include "runtime/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, RUN = 8, KEY_BYTES = 8 };

/* Keys order as unsigned integers what the op orders. */
typedef struct item {
    uint64_t key;
    int64_t at;
} item;

typedef struct sorter {
    const opq_routine *call;
    opq_dtype dtype;
    uint64_t flip; /* all bits: descending */
    int64_t along, inner;
    bool failed;
} sorter;

/* Both zeros are one number, and all NaN the largest. */
static uint64_t key_of_f64(double x)
{
    uint64_t bits = opq_f64_bits(x + 0.0);
    if (x != x)
        return UINT64_MAX;
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

static uint64_t key_of_f32(float x)
{
    uint32_t bits = opq_f32_bits(x + 0.0F);
    if (x != x)
        return UINT32_MAX;
    return bits >> 31 ? ~bits : bits | (uint32_t)1 << 31;
}

/* NULL is no dtype: raw ones are refused before. */
static uint64_t key_at(opq_dtype dtype, const void *data, int64_t i)
{
    enum { SIGN = 1 };
    switch (dtype) {
    case OPQ_f64: return key_of_f64(((const double *)data)[i]);
    case OPQ_f32: return key_of_f32(((const float *)data)[i]);
    case OPQ_f16: return key_of_f32(opq_f16_to_f32(((const uint16_t *)data)[i])) >> 13;
    case OPQ_bf16: return key_of_f32(opq_bf16_to_f32(((const uint16_t *)data)[i])) >> 16;
    case OPQ_i64: return (uint64_t)((const int64_t *)data)[i] ^ (uint64_t)SIGN << 63;
    case OPQ_i32: return (uint32_t)((const int32_t *)data)[i] ^ (uint32_t)SIGN << 31;
    case OPQ_i16: return (uint16_t)(((const uint16_t *)data)[i] ^ (uint16_t)SIGN << 15);
    case OPQ_i8: return (uint8_t)(((const uint8_t *)data)[i] ^ (uint8_t)SIGN << 7);
    default: return ((const uint8_t *)data)[i];
    }
}

static void insertion_sort(item *items, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        item x = items[i];
        int64_t j = i;
        for (; j > 0 && items[j - 1].key > x.key; j--)
            items[j] = items[j - 1];
        items[j] = x;
    }
}

static void merge(const item *a, const item *a_end, const item *b, const item *b_end, item *out)
{
    while (a < a_end && b < b_end) {
        int64_t later = b->key < a->key;
        *out++ = a[(b - a) & -later]; /* compilers make a jump of a choice */
        a += 1 - later;
        b += later;
    }
    memcpy(out, a, (size_t)(a_end - a) * sizeof *out);
    memcpy(out + (a_end - a), b, (size_t)(b_end - b) * sizeof *out);
}

/* What is sorted lies in `items` or in `other`: that is returned. */
static item *merge_sort(item *items, item *other, int64_t count)
{
    for (int64_t i = 0; i < count; i += RUN)
        insertion_sort(items + i, count - i < RUN ? count - i : RUN);
    for (int64_t run = RUN; run < count; run *= 2) {
        for (int64_t i = 0; i < count; i += 2 * run) {
            int64_t middle = i + run < count ? i + run : count, end = middle + run < count ? middle + run : count;
            merge(items + i, items + middle, items + middle, items + end, other + i);
        }
        item *swapped = items;
        items = other;
        other = swapped;
    }
    return items;
}

/* So does it here. Keys differ in their first `bytes` bytes. */
static item *radix_sort(item *items, item *other, int64_t count, int bytes)
{
    int64_t histogram[KEY_BYTES][DIGITS];
    memset(histogram, 0, (size_t)bytes * sizeof *histogram);
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < bytes; d++)
            histogram[d][items[i].key >> d * DIGIT_BITS & (DIGITS - 1)]++;
    for (int d = 0; d < bytes; d++) {
        int64_t *place = histogram[d], sum = 0;
        if (place[items[0].key >> d * DIGIT_BITS & (DIGITS - 1)] == count)
            continue;
        for (int i = 0; i < DIGITS; i++) {
            int64_t n = place[i];
            place[i] = sum;
            sum += n;
        }
        for (int64_t i = 0; i < count; i++)
            other[place[items[i].key >> d * DIGIT_BITS & (DIGITS - 1)]++] = items[i];
        item *swapped = items;
        items = other;
        other = swapped;
    }
    return items;
}

static void sort_rows(void *data, int64_t begin, int64_t end)
{
    sorter *s = data;
    int64_t n = s->along, *out = s->call->out;
    int bytes = s->dtype == OPQ_f16 ? 3 : opq_dtype_bytes(s->dtype); /* of keys: f16's have more digits than it */
    item few[OPQ_INSERTION_MAX], *items = n <= OPQ_INSERTION_MAX ? few : malloc(2 * (size_t)n * sizeof *items);
    if (items == NULL) {
        s->failed = true;
        return;
    }
    for (int64_t row = begin; row < end; row++) {
        int64_t base = row / s->inner * n * s->inner + row % s->inner;
        for (int64_t i = 0; i < n; i++)
            items[i] = (item){key_at(s->dtype, s->call->data[0], base + i * s->inner) ^ s->flip, i};
        const item *sorted = items;
        if (n <= OPQ_INSERTION_MAX)
            insertion_sort(items, n);
        else if (n <= opq_runs.merge_max_per_byte * bytes)
            sorted = merge_sort(items, items + n, n);
        else
            sorted = radix_sort(items, items + n, n, bytes);
        for (int64_t i = 0; i < n; i++)
            out[base + i * s->inner] = sorted[i].at;
    }
    if (items != few)
        free(items);
}

opq_status opq_routine_argsort(const opq_routine *c)
{
    int axis = (int)opq_node_int(c->node, OPQ_ATTR_axis, 0);
    int64_t count = opq_type_count(c->type[0]);
    sorter s = {.call = c,
                .dtype = (opq_dtype)c->type[0]->dtype,
                .flip = c->node->op == OPQ_OP_argsort_down ? UINT64_MAX : 0,
                .along = c->type[0]->size[axis],
                .inner = 1};
    for (int d = axis + 1; d < c->type[0]->rank; d++)
        s.inner *= c->type[0]->size[d];
    if (count == 0)
        return OPQ_OK;
    opq_parallel_for(c->run->runtime->host, count / s.along, 1 + opq_runs.grain / s.along, sort_rows, &s);
    return s.failed ? opq_fail(OPQ_NO_MEMORY, "%s: out of memory", c->name) : OPQ_OK;
}
