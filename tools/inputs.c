/* inputs.json has a line for each input, of which the keys are looked up; nothing else of it is read. */
#include "inputs.h"

#include "graph/npy.h"
#include "opaque/scalar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct statistics {
    double min, max, mean;
    int64_t least, most; /* of integers, exactly */
    int64_t zeros, nans, infinities, negative_infinities;
} statistics;

opq_status array_make(const opq_type *type, void **out_data)
{
    size_t bytes = ((size_t)opq_type_bytes(type) + 127) / 64 * 64; /* never 0 bytes */
    *out_data = aligned_alloc(64, bytes);
    if (*out_data == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for a value of %zu bytes", bytes);
    memset(*out_data, 0, bytes);
    return OPQ_OK;
}

/* ---- random numbers */

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) { return (double)(next(state) >> 11) * 0x1p-53; }

/* Below the mean or above it, so often that the mean comes out. */
static double between(const statistics *s, uint64_t *state)
{
    double low = s->max > s->min ? (s->max - s->mean) / (s->max - s->min) : 1, part = uniform(state);
    return uniform(state) < low ? s->min + (s->mean - s->min) * part : s->mean + (s->max - s->mean) * part;
}

/* Rounded up as often as it takes for the same mean. */
static int64_t integer_between(const statistics *s, uint64_t *state)
{
    double x = between(s, state);
    x = floor(x + uniform(state));
    if (!(x > (double)s->least))
        return s->least;
    return x < (double)s->most ? (int64_t)x : s->most;
}

static void store(opq_dtype dtype, void *data, int64_t i, double x, int64_t n)
{
    switch (dtype) {
    case OPQ_bool: ((uint8_t *)data)[i] = n != 0; break;
    case OPQ_u8: ((uint8_t *)data)[i] = (uint8_t)n; break;
    case OPQ_i8: ((int8_t *)data)[i] = (int8_t)n; break;
    case OPQ_i16: ((int16_t *)data)[i] = (int16_t)n; break;
    case OPQ_i32: ((int32_t *)data)[i] = (int32_t)n; break;
    case OPQ_i64: ((int64_t *)data)[i] = n; break;
    case OPQ_f16: ((uint16_t *)data)[i] = opq_f32_to_f16((float)x); break;
    case OPQ_bf16: ((uint16_t *)data)[i] = opq_f32_to_bf16((float)x); break;
    case OPQ_f32: ((float *)data)[i] = (float)x; break;
    case OPQ_f64: ((double *)data)[i] = x; break;
    case OPQ_raw8:
    case OPQ_raw16:
    case OPQ_raw32:
    case OPQ_raw64:
    case OPQ_raw128:
    case OPQ_DTYPE_COUNT: break; /* never computed with: zeros do */
    }
}

/* As many of a number as there were, at any places. */
static void scatter(opq_dtype dtype, void *data, int64_t count, int64_t times, double x, uint64_t *state)
{
    for (int64_t i = 0; i < times && i < count; i++)
        store(dtype, data, (int64_t)(next(state) % (uint64_t)count), x, 0);
}

static void fill(const statistics *s, opq_dtype dtype, void *data, int64_t count, uint64_t state)
{
    bool real = opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT;
    for (int64_t i = 0; i < count; i++)
        store(dtype, data, i, real ? between(s, &state) : 0, real ? 0 : integer_between(s, &state));
    if (!real)
        return;
    scatter(dtype, data, count, s->zeros, 0, &state);
    scatter(dtype, data, count, s->nans, (double)NAN, &state);
    scatter(dtype, data, count, s->infinities, (double)INFINITY, &state);
    scatter(dtype, data, count, s->negative_infinities, -(double)INFINITY, &state);
}

opq_status input_invent(int seed, const opq_type *type, void **out_data)
{
    statistics small = {.min = -1, .max = 1};
    OPQ_TRY(array_make(type, out_data));
    fill(&small, (opq_dtype)type->dtype, *out_data, opq_type_count(type), (uint64_t)seed);
    return OPQ_OK;
}

/* ---- inputs.json */

/* The text behind `"key": ` in a line, or NULL. */
static const char *value_of(const char *line, const char *key)
{
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    const char *at = strstr(line, quoted);
    return at ? at + strlen(quoted) : NULL;
}

static double real_of(const char *line, const char *key)
{
    const char *at = value_of(line, key);
    double value = at ? strtod(at, NULL) : 0;
    return isfinite(value) ? value : 0;
}

static int64_t integer_of(const char *line, const char *key)
{
    const char *at = value_of(line, key);
    return at ? strtoll(at, NULL, 10) : 0;
}

/* What is no statistics of this type gives numbers that fit nothing, but nothing worse. */
static statistics statistics_of(const char *line, opq_dtype dtype)
{
    int bits = 8 * opq_dtype_bytes(dtype);
    bool is_signed = opq_dtype_kind_of(dtype) == OPQ_KIND_INT;
    statistics s = {.min = real_of(line, "min"),
                    .max = real_of(line, "max"),
                    .mean = real_of(line, "mean"),
                    .least = integer_of(line, "min"),
                    .most = integer_of(line, "max"),
                    .zeros = integer_of(line, "zeros"),
                    .nans = integer_of(line, "nan"),
                    .infinities = integer_of(line, "inf"),
                    .negative_infinities = integer_of(line, "-inf")};
    if (bits < 64 && !is_signed && s.least < 0)
        s.least = 0;
    if (s.least > s.most)
        s.most = s.least;
    return s;
}

/* The line of input `index`, in `line`. */
static bool find_line(FILE *file, int index, char *line, int size)
{
    char begin[40];
    snprintf(begin, sizeof begin, "{\"input\": %d,", index);
    while (fgets(line, size, file))
        if (strncmp(line, begin, strlen(begin)) == 0)
            return true;
    return false;
}

opq_status input_read(const char *dir, int index, const opq_type *type, void **out_data)
{
    char path[4096], line[1024];
    snprintf(path, sizeof path, "%s/inputs.json", dir);
    FILE *file = fopen(path, "r");
    bool found = file && find_line(file, index, line, sizeof line);
    if (file)
        fclose(file);
    snprintf(path, sizeof path, "%s/input%d.npy", dir, index);
    if (!found || access(path, F_OK) == 0)
        return opq_npy_read(path, type, out_data);
    if (value_of(line, "zeros") == NULL) /* its type alone */
        return input_invent(index, type, out_data);
    OPQ_TRY(array_make(type, out_data));
    statistics s = statistics_of(line, (opq_dtype)type->dtype);
    fill(&s, (opq_dtype)type->dtype, *out_data, opq_type_count(type), (uint64_t)index);
    return OPQ_OK;
}
