/* A context with a host that can fail on demand, and values and cells in one line each: for the tests of the recording core. */
#ifndef OPAQUE_TESTS_OPAQUE_SUPPORT_H
#define OPAQUE_TESTS_OPAQUE_SUPPORT_H

#include "tests/support.h"

#include "opaque/record.h"

#include <stdio.h>

enum { N = 8 };

/* The payload of an extern call: what it does, and how often it was done. Results are copies of operand 0 plus `add`. Static in tests:
 * a cached plan holds its payloads as long as the context. */
typedef struct call {
    float add;
    bool fails;
    int calls, retained;
} call;

static inline opq_status call_extern(void *self, void *payload, const void *const *operands, void *const *results)
{
    call *c = payload;
    (void)self;
    c->calls++;
    if (c->fails)
        return opq_fail(OPQ_INVALID, "the call failed");
    for (int r = 0; r < 2; r++)
        for (int i = 0; results[r] && i < N; i++)
            ((float *)results[r])[i] = ((const float *)operands[0])[i] + c->add * (float)(r + 1);
    return OPQ_OK;
}

static inline void retain_payload(void *self, void *payload)
{
    (void)self;
    __atomic_fetch_add(&((call *)payload)->retained, 1, __ATOMIC_RELAXED);
}

static inline void release_payload(void *self, void *payload)
{
    (void)self;
    __atomic_fetch_sub(&((call *)payload)->retained, 1, __ATOMIC_RELAXED);
}

static const opq_host test_host = {
    .call_extern = call_extern, .retain_payload = retain_payload, .release_payload = release_payload};

static inline int make_context(void **state) { return opq_ctx_create(&test_host, (opq_ctx **)state) != OPQ_OK; }

/* Whatever a test did: nothing stays allocated, no cell, no buffer. */
static inline int drop_context(void **state)
{
    opq_ctx *ctx = *state;
    opq_stats stats;
    opq_stats_read(ctx, &stats);
    if (stats.bytes_allocated != 0)
        fprintf(stderr, "%lld bytes still allocated\n", (long long)stats.bytes_allocated);
    opq_modes_set(0);
    opq_ctx_destroy(ctx);
    return stats.bytes_allocated != 0;
}

static inline opq_stats stats_of(opq_ctx *ctx)
{
    opq_stats stats;
    opq_stats_read(ctx, &stats);
    return stats;
}

static inline opq_type row_type(void)
{
    const int64_t size[] = {N};
    return opq_type_make(OPQ_f32, 1, size);
}

/* A leaf of N numbers: first, first + 1, ... */
static inline opq_value *leaf(opq_ctx *ctx, float first)
{
    opq_type type = row_type();
    opq_buffer *buffer = NULL;
    opq_value *value = NULL;
    expect_ok(opq_buffer_create(ctx, N * sizeof(float), &buffer));
    for (int i = 0; i < N; i++)
        ((float *)opq_buffer_data(buffer))[i] = first + (float)i;
    expect_ok(opq_value_leaf(ctx, &type, buffer, &value));
    opq_buffer_release(buffer);
    return value;
}

/* Records an op; takes over the operands' references. */
static inline opq_value *op1(opq_ctx *ctx, opq_op op, opq_value *x)
{
    opq_value *value = NULL;
    expect_ok(opq_record(ctx, op, &x, 1, NULL, 0, &value));
    opq_value_release(x);
    return value;
}

static inline opq_value *op2(opq_ctx *ctx, opq_op op, opq_value *x, opq_value *y)
{
    opq_value *operands[] = {x, y}, *value = NULL;
    expect_ok(opq_record(ctx, op, operands, 2, NULL, 0, &value));
    opq_value_release(x);
    opq_value_release(y);
    return value;
}

static inline opq_value *again(opq_value *value)
{
    opq_value_retain(value);
    return value;
}

static inline opq_value *number(opq_ctx *ctx, double x)
{
    opq_value *value = NULL;
    expect_ok(opq_value_scalar(ctx, OPQ_f32, (opq_number){.f = x}, true, &value));
    return value;
}

/* A call with two results of N numbers; takes over x. */
static inline void record_call(opq_ctx *ctx, call *c, opq_value *x, opq_value **out_values)
{
    opq_type types[] = {row_type(), row_type()};
    c->retained++;
    expect_ok(opq_record_extern(ctx, "test.call", c, &x, 1, types, 2, out_values));
    opq_value_release(x);
}

static inline opq_cell *cell_of(opq_ctx *ctx, opq_value *value)
{
    opq_cell *cell = NULL;
    expect_ok(opq_cell_from_value(ctx, value, &cell));
    opq_value_release(value);
    return cell;
}

/* A window of f32 on a cell. */
typedef struct window {
    int rank;
    int64_t size[4], stride[4], offset;
} window;

static inline opq_geometry geometry_of(const window *w)
{
    return (opq_geometry){.dtype = OPQ_f32, .rank = w->rank, .size = w->size, .stride = w->stride, .offset = w->offset};
}

static const window whole = {.rank = 1, .size = {N}, .stride = {1}};

static inline opq_value *read_window(opq_ctx *ctx, opq_cell *cell, window w)
{
    opq_geometry geometry = geometry_of(&w);
    opq_value *value = NULL;
    expect_ok(opq_cell_read(ctx, cell, &geometry, &value));
    return value;
}

/* Takes over value. */
static inline void write_window(opq_ctx *ctx, opq_cell *cell, window w, opq_value *value)
{
    opq_geometry geometry = geometry_of(&w);
    expect_ok(opq_cell_write(ctx, cell, &geometry, value));
    opq_value_release(value);
}

/* Materializes and compares; takes over value. */
static inline void expect_floats(opq_ctx *ctx, opq_value *value, const float *expected)
{
    opq_type type = opq_value_type(value);
    expect_ok(opq_materialize(ctx, &value, 1, OPQ_REASON_copy_to_host));
    const float *got = opq_buffer_data(opq_value_buffer(value));
    for (int64_t i = 0; i < opq_type_count(&type); i++)
        if (got[i] != expected[i])
            fail_msg("element %d: expected %g, got %g", (int)i, (double)expected[i], (double)got[i]);
    opq_value_release(value);
}

#define FLOATS(...) ((const float[]){__VA_ARGS__})

#endif
