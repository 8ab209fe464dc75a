#define _GNU_SOURCE
#include "kernel_support.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- kernels
 * --------------------------------------------------------------------------------------------------------- */

void body_start(body *b, opq_kernel_kind kind, const char *loops)
{
    memset(b, 0, sizeof *b);
    b->column = kind == OPQ_KERNEL_column;
    b->serial = kind == OPQ_KERNEL_index;
    b->scalar_count = 8;
    b->loops.count = (int)strlen(loops);
    for (int l = 0; loops[l]; l++)
        b->loops.role[l] = loops[l] == 'r' ? OPQ_ROLE_reduced_inner : loops[l + 1] ? OPQ_ROLE_kept : OPQ_ROLE_lanes;
}

opq_dtype computing(opq_dtype dtype) { return dtype == OPQ_f16 || dtype == OPQ_bf16 ? OPQ_f32 : dtype; }

static int add(body *b, opq_stmt stmt)
{
    stmt.node = b->body_count;
    int number = opq_lower_push(b, &stmt);
    assert_true(number >= 0);
    opq_lower_place(b);
    opq_lower_sweeps(b, false);
    return number;
}

static int16_t access_of(body *b, int buffer, opq_dtype memory, const char *strides, bool written)
{
    opq_access *a = &b->accesses[b->access_count];
    assert_true((int)strlen(strides) == b->loops.count && b->access_count < OPQ_ACCESS_MAX);
    a->buffer = (int16_t)buffer;
    a->dtype = (uint8_t)memory;
    for (int l = 0; strides[l]; l++)
        a->stride[l] = strides[l] == '0'   ? OPQ_STRIDE_zero
                       : strides[l] == '1' ? OPQ_STRIDE_one
                       : strides[l] == '<' ? OPQ_STRIDE_back
                                           : OPQ_STRIDE_any;
    if (written)
        b->written[buffer] = OPQ_BUFFER_out;
    if (buffer >= b->buffer_count)
        b->buffer_count = buffer + 1;
    return (int16_t)b->access_count++;
}

static int move(body *b, int op, int x, int y, int buffer, opq_dtype memory, const char *strides)
{
    opq_stmt stmt = opq_lower_stmt(op, computing(memory), x, y);
    stmt.access = access_of(b, buffer, memory, strides, opq_stmt_is_root(op));
    return add(b, stmt);
}

int body_load(body *b, int buffer, opq_dtype memory, const char *strides)
{
    return move(b, OPQ_STMT_load, -1, -1, buffer, memory, strides);
}

int body_load_at(body *b, int index, int buffer, opq_dtype memory, const char *strides)
{
    return move(b, OPQ_STMT_load_at, index, -1, buffer, memory, strides);
}

int body_store(body *b, int value, int buffer, opq_dtype memory, const char *strides)
{
    return move(b, OPQ_STMT_store, value, -1, buffer, memory, strides);
}

int body_store_add_at(body *b, int index, int value, int buffer, opq_dtype memory, const char *strides)
{
    return move(b, OPQ_STMT_store_add_at, index, value, buffer, memory, strides);
}

int body_number(body *b, const char *strides) { return move(b, OPQ_STMT_number, -1, -1, -1, OPQ_i64, strides); }

int body_op(body *b, opq_op op, opq_dtype dtype, int x, int y, int z)
{
    opq_stmt stmt = opq_lower_stmt(op, dtype, x, y);
    stmt.operand[2] = (int16_t)z;
    return add(b, stmt);
}

int body_const(body *b, opq_dtype dtype, opq_number value)
{
    opq_stmt stmt = opq_lower_stmt(OPQ_OP_const, dtype, -1, -1);
    stmt.value = value;
    return add(b, stmt);
}

int body_cast(body *b, int x, opq_dtype to)
{
    opq_stmt cast = opq_lower_stmt(OPQ_OP_cast, computing(to), x, -1);
    if (computing(to) != to)
        cast.value.i = to;
    return add(b, cast);
}

void body_keep(body *b, int stmt) { b->keeps[stmt] = true; }

/* ---- buffers
 * --------------------------------------------------------------------------------------------------------- */

buffer buffer_make(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page + page;
    buffer b = {.mapped = size + page, .bytes = bytes};
    b.map = mmap(NULL, b.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(b.map != MAP_FAILED);
    assert_int_equal(mprotect(b.map + size, page, PROT_NONE), 0);
    memset(b.map, 0xA5, size);
    b.data = b.map + size - bytes;
    return b;
}

buffer buffer_of(const void *data, size_t bytes)
{
    buffer b = buffer_make(bytes);
    memcpy(b.data, data, bytes);
    return b;
}

void buffer_check(const buffer *b)
{
    for (const char *p = b->map; p < b->data; p++)
        assert_int_equal((uint8_t)*p, 0xA5);
}

void buffer_drop(buffer *b)
{
    if (b->map)
        munmap(b->map, b->mapped);
    b->map = NULL;
}

/* ---- launches
 * -------------------------------------------------------------------------------------------------------- */

void launch_dims(launch *l, const body *b, const int64_t *extents)
{
    memset(l->dims, 0, sizeof l->dims);
    for (int i = 0; i < b->loops.count; i++)
        l->dims[i] = extents[i];
}

void launch_access(launch *l, const body *b, int access, int64_t offset, const int64_t *strides)
{
    int64_t *at = l->dims + opq_dims_of(b->loops.count, access);
    *at++ = offset;
    for (int i = 0; i < b->loops.count; i++)
        at[i] = b->accesses[access].stride[i] == OPQ_STRIDE_any ? *strides++ : INT64_C(0x5555555555); /* never read */
}

void launch_at(launch *l, const body *b, int access, int64_t stride, int64_t extent)
{
    int64_t *at = l->dims + opq_dims_of(b->loops.count, access) + 1 + b->loops.count;
    at[0] = stride;
    at[1] = extent;
}

static opq_jit *jits[2];

static opq_jit *jit_for(int level)
{
    if (!jits[level]) {
        if (level == 1)
            setenv("OPAQUE_CPU", "avx2", 1);
        assert_int_equal(opq_jit_create(&jits[level]), OPQ_OK);
        unsetenv("OPAQUE_CPU");
    }
    return jits[level];
}

opq_loops body_loops(const body *b, opq_arena *arena)
{
    opq_loops loops;
    if (opq_lower_tree(b, arena, &loops) != OPQ_OK)
        fail_msg("%s", opq_error());
    loops.name = "test";
    return loops;
}

opq_jit *wide_jit(void) { return jit_for(0); }

/* way: bit 0: in pieces; 1: AVX2; 2: columns the other way, row by row or in strips */
enum { PIECES = 1, AVX2 = 2, OTHER_WAY = 4, WAYS = 8 };

static void run_once(const launch *l, const body *b, int way, void *const *buffers, int64_t *error)
{
    int level = (way & AVX2) != 0;
    const opq_code *code;
    bool fresh;
    opq_arena arena = {0};
    opq_loops loops = body_loops(b, &arena);
    loops.by_rows = loops.by_rows != ((way & OTHER_WAY) != 0);
    if (opq_codegen(jit_for(level), &loops, &code, &fresh) != OPQ_OK)
        fail_msg("%s", opq_error());
    int64_t units = opq_loops_units(&loops, l->dims);
    buffer scratch = buffer_make((size_t)opq_loops_scratch(&loops, l->dims));
    for (int64_t begin = 0, step = way & PIECES ? 1 : units; begin < units; begin += step, step = step * 2 + 1)
        code->fn(buffers, l->dims, l->scalars, begin, begin + step < units ? begin + step : units, scratch.data, error);
    if (error[0] > 0) /* a statement: tests know the body */
        error[0] = 1 + loops.stmts[error[0] - 1].node;
    opq_code_release(jit_for(level), code);
    buffer_drop(&scratch);
    opq_arena_drop(&arena);
}

void launch_run(launch *l, const body *b, int64_t *out_error)
{
    static buffer results[WAYS][BUFFERS];
    int ways = b->column ? WAYS : OTHER_WAY;
    for (int way = 0; way < ways; way++) {
        void *buffers[BUFFERS];
        int64_t error[2] = {0, 0};
        for (int i = 0; i < l->buffer_count; i++) {
            results[way][i] = buffer_of(l->buffers[i].data, l->buffers[i].bytes);
            buffers[i] = results[way][i].data;
        }
        run_once(l, b, way, buffers, error);
        for (int i = 0; i < l->buffer_count; i++) {
            buffer_check(&results[way][i]);
            if (opq_dtype_kind_of(l->any_nan) == OPQ_KIND_FLOAT)
                assert_same(l->any_nan, results[way][i].data, results[0][i].data,
                            (int64_t)l->buffers[i].bytes / opq_dtype_bytes(l->any_nan), "NaN apart");
            else if (memcmp(results[way][i].data, results[0][i].data, l->buffers[i].bytes) != 0)
                fail_msg("buffer %d differs: way %d (see kernel_support.c)", i, way);
        }
        if (out_error)
            memcpy(out_error, error, sizeof error);
        else
            assert_int_equal(error[0], 0);
    }
    for (int i = 0; i < l->buffer_count; i++)
        memcpy(l->buffers[i].data, results[0][i].data, l->buffers[i].bytes);
    for (int way = 0; way < ways; way++)
        for (int i = 0; i < l->buffer_count; i++)
            buffer_drop(&results[way][i]);
}

void launch_drop(launch *l)
{
    for (int i = 0; i < l->buffer_count; i++)
        buffer_drop(&l->buffers[i]);
    l->buffer_count = 0;
}

/* ---- values
 * ---------------------------------------------------------------------------------------------------------- */

static double as_float(opq_dtype dtype, const char *p)
{
    uint16_t half;
    float single;
    double wide;
    memcpy(&half, p, sizeof half);
    if (dtype == OPQ_f16)
        return (double)opq_f16_to_f32(half);
    if (dtype == OPQ_bf16)
        return (double)opq_bf16_to_f32(half);
    if (dtype == OPQ_f32) {
        memcpy(&single, p, sizeof single);
        return (double)single;
    }
    memcpy(&wide, p, sizeof wide);
    return wide;
}

void assert_same(opq_dtype dtype, const void *got, const void *expected, int64_t count, const char *what)
{
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    bool is_float = opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT;
    for (int64_t i = 0; i < count; i++) {
        const char *g = (const char *)got + (size_t)i * bytes, *e = (const char *)expected + (size_t)i * bytes;
        if (memcmp(g, e, bytes) == 0 || (is_float && isnan(as_float(dtype, g)) && isnan(as_float(dtype, e))))
            continue;
        uint64_t a = 0, b = 0;
        memcpy(&a, g, bytes < 8 ? bytes : 8);
        memcpy(&b, e, bytes < 8 ? bytes : 8);
        fail_msg("%s, %s, element %lld of %lld: %llx, not %llx (%g, not %g)", what, opq_dtype_name(dtype), (long long)i,
                 (long long)count, (unsigned long long)a, (unsigned long long)b, is_float ? as_float(dtype, g) : 0,
                 is_float ? as_float(dtype, e) : 0);
    }
}

static const double special_floats[] = {0.0,
                                        -0.0,
                                        1,
                                        -1,
                                        INFINITY,
                                        -INFINITY,
                                        NAN,
                                        0.5,
                                        -0.5,
                                        1.5,
                                        2.5,
                                        -2.5,
                                        3,
                                        -3,
                                        7.25,
                                        -7.25,
                                        0x1p-149,
                                        -0x1p-149,
                                        0x1p-126,
                                        0x1.fffffep-127,
                                        0x1.fffffep127,
                                        -0x1.fffffep127,
                                        0x1p31,
                                        -0x1p31,
                                        0x1p63,
                                        -0x1p63,
                                        0x1.fffffep30,
                                        255,
                                        256,
                                        -129,
                                        32768,
                                        -32769,
                                        65504,
                                        65520,
                                        0x1.01p0,
                                        0x1.0180p0,
                                        0x1.018p-20,
                                        0.1,
                                        -1e10,
                                        1e20,
                                        3e9,
                                        -3e9,
                                        8388607.5,
                                        8388608.5,
                                        4503599627370497.5};
static const int64_t special_ints[] = {0,
                                       1,
                                       -1,
                                       2,
                                       -2,
                                       3,
                                       -3,
                                       7,
                                       -7,
                                       10,
                                       127,
                                       -128,
                                       128,
                                       255,
                                       256,
                                       32767,
                                       -32768,
                                       65535,
                                       INT32_MAX,
                                       INT32_MIN,
                                       (int64_t)1 << 32,
                                       INT64_MAX,
                                       INT64_MIN,
                                       INT64_MAX - 1,
                                       INT64_MIN + 1,
                                       1000003,
                                       -1000003,
                                       16777217,
                                       33554433};

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static void put(opq_dtype dtype, void *data, int64_t i, double f, int64_t n)
{
    char *at = (char *)data + (size_t)i * (size_t)opq_dtype_bytes(dtype);
    float single = (float)f;
    uint16_t half = dtype == OPQ_f16 ? opq_f32_to_f16(single) : opq_f32_to_bf16(single);
    if (dtype == OPQ_f32)
        memcpy(at, &single, sizeof single);
    else if (dtype == OPQ_f64)
        memcpy(at, &f, sizeof f);
    else if (dtype == OPQ_f16 || dtype == OPQ_bf16)
        memcpy(at, &half, sizeof half);
    else if (dtype == OPQ_bool)
        *at = (char)(n & 1);
    else
        for (int byte = 0; byte < opq_dtype_bytes(dtype); byte += 8)
            memcpy(at + byte, &n, (size_t)(opq_dtype_bytes(dtype) < 8 ? opq_dtype_bytes(dtype) : 8));
}

void fill_special(opq_dtype dtype, void *data, int64_t count, int64_t step)
{
    const int64_t floats = (int64_t)(sizeof special_floats / sizeof *special_floats);
    const int64_t ints = (int64_t)(sizeof special_ints / sizeof *special_ints);
    for (int64_t i = 0; i < count; i++)
        put(dtype, data, i, special_floats[i / step % floats], special_ints[i / step % ints]);
}

void fill_random(opq_dtype dtype, void *data, int64_t count, unsigned seed)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = mix((uint64_t)i + ((uint64_t)seed << 32) + 1);
        put(dtype, data, i, ldexp((double)(int64_t)bits, -60), (int64_t)bits);
    }
}

void evaluate(const opq_graph *graph, const void *const *inputs, void *output)
{
    void *outputs[1] = {output};
    if (opq_graph_eval(graph, inputs, outputs) != OPQ_OK)
        fail_msg("%s", opq_error());
}
