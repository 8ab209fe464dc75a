/* Hand-built kernels and buffers that end at an unreadable page, for the tests of the code generator. */
#ifndef OPAQUE_TESTS_KERNEL_SUPPORT_H
#define OPAQUE_TESTS_KERNEL_SUPPORT_H

#include "codegen_llvm/codegen.h"
#include "fusion/lower_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { BUFFERS = 8 };

/* Loops, accesses and a body, of which lowering makes the tree. */
typedef opq_lower_state body;

/* `loops` names each loop: 'k' kept, 'r' reduced. */
void body_start(body *b, opq_kernel_kind kind, const char *loops);
/* strides per loop: '0', '1', '<' (-1) or '*'. Each gives the number of the statement. */
int body_load(body *b, int buffer, opq_dtype memory, const char *strides);
int body_load_at(body *b, int index, int buffer, opq_dtype memory, const char *strides);
int body_store(body *b, int value, int buffer, opq_dtype memory, const char *strides);
int body_store_add_at(body *b, int index, int value, int buffer, opq_dtype memory, const char *strides);
int body_number(body *b, const char *strides);
int body_op(body *b, opq_op op, opq_dtype dtype, int x, int y, int z);
int body_const(body *b, opq_dtype dtype, opq_number value);
int body_cast(body *b, int x, opq_dtype to);
void body_keep(body *b, int stmt); /* for later sweeps */
opq_loops body_loops(const body *b, opq_arena *arena);

opq_dtype computing(opq_dtype dtype);

typedef struct buffer {
    char *map, *data;
    size_t mapped, bytes;
} buffer;
buffer buffer_make(size_t bytes);
buffer buffer_of(const void *data, size_t bytes);
void buffer_check(const buffer *b); /* nothing was written in front */
void buffer_drop(buffer *b);

/* Runs the kernel whole and in uneven pieces, on the widest vectors and on AVX2; all four must agree bit for bit in
 * every buffer. Leaves the results in the buffers. error may be NULL: then there must be none. */
typedef struct launch {
    int64_t dims[256];
    opq_number scalars[8];
    buffer buffers[BUFFERS];
    int buffer_count;
    opq_dtype any_nan; /* a float dtype: buffers are of it, and a NaN may have any sign and payload */
} launch;
void launch_dims(launch *l, const body *b, const int64_t *extents);
/* strides of '*' loops in order, elements */
void launch_access(launch *l, const body *b, int access, int64_t offset, const int64_t *strides);
void launch_at(launch *l, const body *b, int access, int64_t stride, int64_t extent);
void launch_run(launch *l, const body *b, int64_t *out_error);
void launch_drop(launch *l);
opq_jit *wide_jit(void);

/* Equal bits, except that every NaN equals every other. */
void assert_same(opq_dtype dtype, const void *got, const void *expected, int64_t count, const char *what);
/* Values that matter to a dtype, then others: element i of a stream. */
void fill_special(opq_dtype dtype, void *data, int64_t count, int64_t step);
void fill_random(opq_dtype dtype, void *data, int64_t count, unsigned seed);
/* Evaluates a graph of one output. */
void evaluate(const opq_graph *graph, const void *const *inputs, void *output);

#endif
