/* Inputs and outputs of a graph, for the tests that run one in several ways. */
#ifndef OPAQUE_TESTS_FUSION_ARRAYS_H
#define OPAQUE_TESTS_FUSION_ARRAYS_H

#include "tests/support.h"

#include "graph/graph.h"

typedef struct arrays {
    void **data;
    int count;
} arrays;

static inline arrays arrays_make(int count)
{
    arrays a = {calloc((size_t)count + 1, sizeof *a.data), count};
    assert_non_null(a.data);
    return a;
}

/* Aligned, filled with what is no result. */
static inline void *array_make(const opq_type *type)
{
    size_t bytes = ((size_t)opq_type_bytes(type) + 127) / 64 * 64;
    void *data = aligned_alloc(64, bytes);
    assert_non_null(data);
    memset(data, 0xa5, bytes);
    return data;
}

static inline arrays arrays_of_outputs(const opq_graph *graph)
{
    arrays a = arrays_make(opq_graph_output_count(graph));
    for (int i = 0; i < a.count; i++) {
        opq_type type = opq_graph_output_type(graph, i);
        a.data[i] = array_make(&type);
    }
    return a;
}

static inline void arrays_drop(arrays *a)
{
    for (int i = 0; i < a->count; i++)
        free(a->data[i]);
    free(a->data);
}

static inline arrays arrays_evaluated(const opq_graph *graph, void *const *inputs)
{
    arrays out = arrays_of_outputs(graph);
    expect_ok(opq_graph_eval(graph, (const void *const *)inputs, out.data));
    return out;
}

static inline bool element_is_nan(opq_dtype dtype, const void *data, int64_t i)
{
    switch ((int)dtype) {
    case OPQ_f16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7c00;
    case OPQ_bf16: return (((const uint16_t *)data)[i] & 0x7fff) > 0x7f80;
    case OPQ_f32: return ((const float *)data)[i] != ((const float *)data)[i];
    case OPQ_f64: return ((const double *)data)[i] != ((const double *)data)[i];
    }
    return false;
}

/* The first element that differs, -1 if none does. One NaN is as good as another. */
static inline int64_t array_difference(const opq_type *type, const void *a, const void *b)
{
    opq_dtype dtype = (opq_dtype)type->dtype;
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    int64_t count = opq_type_count(type);
    if (count == 0 || memcmp(a, b, bytes * (size_t)count) == 0)
        return -1;
    for (int64_t i = 0; i < count; i++)
        if (memcmp((const char *)a + bytes * (size_t)i, (const char *)b + bytes * (size_t)i, bytes) != 0 &&
            !(element_is_nan(dtype, a, i) && element_is_nan(dtype, b, i)))
            return i;
    return -1;
}

#endif
