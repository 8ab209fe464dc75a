/* Element types, from dtypes.def, and the type of a value: dtype and sizes. */
#include "graph/graph.h"

#include <string.h>

static const struct {
    const char *name;
    int bytes;
    opq_dtype_kind kind;
} dtypes[OPQ_DTYPE_COUNT] = {
#define DTYPE(name, bits, kind, c_type, torch) [OPQ_##name] = {#name, (bits) / 8, OPQ_KIND_##kind},
#include "opaque/dtypes.def"
#undef DTYPE
};

#define DTYPE(name, bits, kind, c_type, torch) _Static_assert(sizeof(c_type) * 8 == (bits), #name);
#include "opaque/dtypes.def"
#undef DTYPE

const char *opq_dtype_name(opq_dtype dtype) { return dtypes[dtype].name; }

bool opq_dtype_find(const char *name, size_t length, opq_dtype *out_dtype)
{
    for (int d = 0; d < OPQ_DTYPE_COUNT; d++)
        if (strlen(dtypes[d].name) == length && !memcmp(dtypes[d].name, name, length)) {
            *out_dtype = (opq_dtype)d;
            return true;
        }
    return false;
}

int opq_dtype_bytes(opq_dtype dtype) { return dtypes[dtype].bytes; }

opq_dtype_kind opq_dtype_kind_of(opq_dtype dtype) { return dtypes[dtype].kind; }

opq_type opq_type_make(opq_dtype dtype, int rank, const int64_t *size)
{
    opq_type type = {.dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    for (int d = 0; d < rank; d++)
        type.size[d] = size[d];
    return type;
}

int64_t opq_type_count(const opq_type *type)
{
    int64_t count = 1;
    for (int d = 0; d < type->rank; d++)
        count *= type->size[d];
    return count;
}

int64_t opq_type_bytes(const opq_type *type) { return opq_type_count(type) * opq_dtype_bytes((opq_dtype)type->dtype); }

bool opq_shape_equal(const opq_type *a, const opq_type *b)
{
    return a->rank == b->rank && !memcmp(a->size, b->size, a->rank * sizeof *a->size);
}

bool opq_type_equal(const opq_type *a, const opq_type *b) { return a->dtype == b->dtype && opq_shape_equal(a, b); }

/* Empty extents count as one: then strides and partial products cannot overflow either. */
opq_status opq_type_check(const char *op, const opq_type *type)
{
    if (type->dtype >= OPQ_DTYPE_COUNT)
        return opq_fail(OPQ_INVALID, "%s: no dtype has number %d", op, type->dtype);
    if (type->rank > OPQ_RANK_MAX)
        return opq_fail(OPQ_INVALID, "%s: %d dimensions are more than %d", op, type->rank, OPQ_RANK_MAX);
    int64_t bytes = opq_dtype_bytes((opq_dtype)type->dtype);
    for (int d = 0; d < type->rank; d++) {
        if (type->size[d] < 0)
            return opq_fail(OPQ_INVALID, "%s: negative extent in %s", op, opq_shape_name(type).text);
        if (type->size[d] > 1 && __builtin_mul_overflow(bytes, type->size[d], &bytes))
            return opq_fail(OPQ_INVALID, "%s: shape %s is too large", op, opq_shape_name(type).text);
    }
    return OPQ_OK;
}
