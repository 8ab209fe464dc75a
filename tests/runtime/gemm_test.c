/* Matrix multiplication against its definition, bit by bit: one chain of fused multiply-adds over ascending k per element, or of pairs.
 *
 * Operands lie in buffers of exactly the bytes that they span, up against a page that may not be touched; results are framed by
 * canaries. Every case runs serially, on 3 threads, through a tile function and from a packed right operand.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "codegen_llvm/cpu.h"
#include "graph/graph.h"
#include "opaque/kernel.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_isa.h"
#include "tests/support.h"

#include <math.h>
#include <pthread.h>
#include <sys/mman.h>

enum { PAGE = 4096, THREADS = 3, CANARY = 0x5a };

/* ---- a host with threads */

typedef struct piece {
    void (*body)(void *data, int64_t begin, int64_t end);
    void *data;
    int64_t begin, end;
} piece;

static void *run_piece(void *data)
{
    const piece *p = data;
    p->body(p->data, p->begin, p->end);
    return NULL;
}

static int threads = 1;

static void parallel_for(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data)
{
    pthread_t thread[THREADS];
    piece p[THREADS];
    (void)self, (void)grain;
    if (threads == 1) {
        body(data, 0, count);
        return;
    }
    /* Pieces smaller than asked for: more ways to go wrong. */
    for (int i = 0; i < THREADS; i++) {
        p[i] = (piece){body, data, count * i / THREADS, count * (i + 1) / THREADS};
        assert_int_equal(pthread_create(&thread[i], NULL, run_piece, &p[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static int thread_count(void *self)
{
    (void)self;
    return threads;
}

static const opq_host host = {.parallel_for = parallel_for, .thread_count = thread_count};
static opq_cpu cpu;
static opq_gemm *gemm;

static int setup(void **state)
{
    (void)state;
    return opq_cpu_detect(&cpu) != OPQ_OK || opq_gemm_create(&cpu, &host, &gemm) != OPQ_OK;
}

/* As the processor is; as if it had no tiles; nor the dots of words. */
enum { WAYS = 3 };
static int way;
static void set_way(int to)
{
    way = to;
    unsigned lacks = way == 0 ? 0 : way == 1 ? OPQ_LEAF_tiles : OPQ_LEAF_tiles | OPQ_LEAF_pairs | OPQ_LEAF_quads;
    opq_gemm_destroy(gemm);
    assert_int_equal(opq_cpu_detect(&cpu), OPQ_OK);
    cpu.leaves &= ~lacks;
    assert_int_equal(opq_gemm_create(&cpu, &host, &gemm), OPQ_OK);
}

static int teardown(void **state)
{
    (void)state;
    opq_gemm_destroy(gemm);
    return 0;
}

/* ---- buffers */

typedef struct guarded {
    char *map;
    size_t map_bytes;
    void *data; /* ends where the forbidden page begins */
} guarded;

static guarded guarded_make(int64_t bytes)
{
    guarded g;
    size_t pages = ((size_t)bytes + PAGE - 1) / PAGE;
    g.map_bytes = (pages + 2) * PAGE;
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + (pages + 1) * PAGE, PAGE, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map, PAGE, PROT_NONE), 0);
    g.data = g.map + (pages + 1) * PAGE - bytes;
    return g;
}

static uint32_t seed = 1;

static double random_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return ((int32_t)seed >> 8) * 0x1p-22; /* in [-2, 2): 24 bits, so that products round */
}

static double value_at(const void *data, opq_dtype dtype, int64_t i)
{
    switch ((int)dtype) {
    case OPQ_f64: return ((const double *)data)[i];
    case OPQ_f16: return opq_f16_to_f32(((const uint16_t *)data)[i]);
    case OPQ_bf16: return opq_bf16_to_f32(((const uint16_t *)data)[i]);
    case OPQ_i8: return ((const int8_t *)data)[i];
    default: return ((const float *)data)[i];
    }
}

static void fill(void *data, opq_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double v = random_value();
        float f = (float)v;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        if (dtype == OPQ_f64)
            ((double *)data)[i] = v + v * 0x1p-30;
        else if (dtype == OPQ_f32)
            ((float *)data)[i] = i % 97 == 5 ? -0.0f : f;
        else if (dtype == OPQ_i8) /* all of them, and more of the least: of two of these products are largest */
            ((int8_t *)data)[i] = (int8_t)(i % 3 ? (int32_t)(seed >> 24) - 128 : -128);
        else if (dtype == OPQ_bf16)
            ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
        else /* f16: any sign and mantissa, exponents around 1, now and then denormal */
            ((uint16_t *)data)[i] = (uint16_t)((seed & 0x83ff) | (i % 61 == 7 ? 0 : 0x3800 + (seed >> 16 & 0x400)));
    }
}

/* ---- one case */

typedef enum layout {
    ROWS,
    COLUMNS,
    ROWS_PADDED,
    COLUMNS_PADDED,
    STRIDED,
    BROADCAST,
    WINDOWS,         /* columns in runs of 14, as the places of a convolution */
    WINDOWS_APART,   /* of 9, two elements apart */
    WINDOWS_ACROSS,  /* rows in runs of 21, columns in runs of 3 */
    WINDOWS_COLUMNS, /* rows at one stride, columns in runs of 5, seven apart */
    PADDED_PLACES,   /* rows are taps of 2 x 3 in an image with zeros around it, columns its places, 11 to a row */
    PADDED_APART,    /* every second place */
    PADDED_TAPS,     /* the other way round: rows are places */
    LAYOUTS,
    CROWDED_COLUMNS, /* each a run, some KiB behind the last, sixteen times */
    CROWDED_ROWS,
} layout;

typedef struct sample {
    int64_t batch, m, n, k;
    layout a, b;
    opq_dtype dtype, a_dtype, b_dtype;
} sample;

static int pairs; /* the rule of samples */

/* right: as the right operand of the call, or of the transposed one. */
static opq_dtype packed_dtype(const sample *s, opq_dtype operand, bool right)
{
    bool widened = !pairs && right && s->dtype == OPQ_f32 && operand == OPQ_i8;
    return widened ? OPQ_i8 : opq_gemm_packed_name(s->dtype, pairs);
}

enum { TABLE_MAX = 1 << 13, TABLES = 16 };
static int64_t tables[TABLES][TABLE_MAX];
static int table_count;

/* Runs of `length` elements, `step` apart, each `room` behind the last; the end of all in out_end. */
static const int64_t *table_make(int64_t count, int64_t length, int64_t step, int64_t room, int64_t *out_end)
{
    int64_t *table = tables[table_count++ % TABLES];
    assert_true(count <= TABLE_MAX);
    for (int64_t i = 0; i < count; i++)
        table[i] = i / length * room + i % length * step;
    *out_end += count > 0 ? table[count - 1] : 0;
    return table;
}

enum { COPIES = 4 };
static opq_padded copies[COPIES];
static int copy_count;
static int reused = 3; /* bits of padded operands that are copied block by block where they are read in place */

static opq_matrix window_make(layout how, opq_dtype dtype, int64_t batch, int64_t rows, int64_t columns, guarded *out)
{
    opq_matrix x = {.dtype = dtype};
    int64_t last = 0;
    if (how == WINDOWS_ACROSS)
        x.rows = table_make(rows, 21, 1, 29, &last), x.columns = table_make(columns, 3, 1, 40, &last);
    else if (how == WINDOWS_COLUMNS)
        x.row_stride = 1, last = rows ? rows - 1 : 0, x.columns = table_make(columns, 5, 7, 36, &last);
    else if (how == WINDOWS_APART)
        x.rows = table_make(rows, 3, 1, 31, &last), x.columns = table_make(columns, 9, 2, 44, &last);
    else
        x.rows = table_make(rows, 3, 1, 31, &last), x.columns = table_make(columns, 14, 1, 16, &last);
    int64_t span = rows && columns ? last + 1 : 0;
    x.batch_stride = span;
    *out = guarded_make(span * batch * opq_dtype_bytes(dtype));
    fill(out->data, dtype, span * batch);
    x.data = out->data;
    return x;
}

/* Where elements are in memory, and whether they are: rows[i] + columns[j] of each dim in [0, extent). */
typedef struct place {
    const int64_t *rows, *columns;
    int64_t extent;
} place;
enum { PLACE_MEMORY, PLACE_DIMS = 3 }; /* the memory has no extent */
static place places_of[COPIES][PLACE_DIMS];

/* Images of which only what is there has memory: padding of one on each side. */
static opq_matrix padded_make(layout how, opq_dtype dtype, int64_t batch, int64_t rows, int64_t columns, guarded *out)
{
    enum { PLACES = 11, TAPS = 6 };
    opq_matrix x = {.dtype = dtype};
    int64_t step = how == PADDED_APART ? 2 : 1, taps = how == PADDED_TAPS ? columns : rows;
    int64_t places = how == PADDED_TAPS ? rows : columns;
    int64_t height = (places + PLACES - 1) / PLACES * step - (step - 1), width = PLACES * step - (step - 1);
    int64_t copied_height = height + 1, copied_width = width + 2, images = (taps + TAPS - 1) / TAPS;
    int64_t *of_taps[4], *of_places[4]; /* in memory, of each guard, in the copy */
    for (int t = 0; t < 4; t++)
        of_taps[t] = tables[table_count++ % TABLES], of_places[t] = tables[table_count++ % TABLES];
    assert_true(taps <= TABLE_MAX && places <= TABLE_MAX);
    for (int64_t i = 0; i < taps; i++) {
        of_taps[1][i] = i % TAPS / 3 - 1;
        of_taps[2][i] = i % 3 - 1;
        of_taps[0][i] = (i / TAPS * height + of_taps[1][i]) * width + of_taps[2][i];
        of_taps[3][i] = (i / TAPS * copied_height + of_taps[1][i] + 1) * copied_width + of_taps[2][i] + 1;
    }
    for (int64_t i = 0; i < places; i++) {
        of_places[1][i] = i / PLACES * step;
        of_places[2][i] = i % PLACES * step;
        of_places[0][i] = of_places[1][i] * width + of_places[2][i];
        of_places[3][i] = of_places[1][i] * copied_width + of_places[2][i];
    }
    bool turned = how == PADDED_TAPS;
    const int64_t extents[PLACE_DIMS] = {0, height, width};
    for (int d = 0; d < PLACE_DIMS; d++)
        places_of[copy_count % COPIES][d] = (place){.extent = extents[d],
                                                    .rows = turned ? of_places[d] : of_taps[d],
                                                    .columns = turned ? of_taps[d] : of_places[d]};
    x.rows = turned ? of_places[3] : of_taps[3];
    x.columns = turned ? of_taps[3] : of_places[3];
    opq_padded *padded = &copies[copy_count++ % COPIES];
    *padded = (opq_padded){
        .rank = 3,
        .dim = {{height * width, 0, images, images}, {width, -1, copied_height, height}, {1, -1, copied_width, width}},
        .count = images * copied_height * copied_width};
    x.padded = padded;
    x.batch_stride = images * height * width;
    *out = guarded_make(x.batch_stride * batch * opq_dtype_bytes(dtype));
    fill(out->data, dtype, x.batch_stride * batch);
    x.data = out->data;
    return x;
}

static opq_matrix crowded_make(layout how, opq_dtype dtype, int64_t batch, int64_t rows, int64_t columns, guarded *out)
{
    opq_matrix x = {.dtype = dtype};
    bool of_rows = how == CROWDED_ROWS;
    int64_t run = of_rows ? columns : rows, count = of_rows ? rows : columns, last = 0, span = 1;
    const int64_t *table = table_make(count, 16, 8192, run + 3, &last);
    for (int64_t i = 0; i < count; i++)
        span = table[i] + run > span ? table[i] + run : span;
    *(of_rows ? &x.rows : &x.columns) = table;
    *(of_rows ? &x.column_stride : &x.row_stride) = 1;
    x.batch_stride = span;
    *out = guarded_make(span * batch * opq_dtype_bytes(dtype));
    fill(out->data, dtype, span * batch);
    x.data = out->data;
    return x;
}

static opq_matrix matrix_make(layout how, opq_dtype dtype, int64_t batch, int64_t rows, int64_t columns, guarded *out)
{
    opq_matrix x = {.dtype = dtype};
    if (how > LAYOUTS)
        return crowded_make(how, dtype, batch, rows, columns, out);
    if (how >= PADDED_PLACES)
        return padded_make(how, dtype, batch, rows, columns, out);
    if (how >= WINDOWS)
        return window_make(how, dtype, batch, rows, columns, out);
    int64_t pad = how == ROWS_PADDED || how == COLUMNS_PADDED ? 5 : 0;
    if (how == STRIDED)
        x.column_stride = 2, x.row_stride = 2 * columns + 3;
    else if (how == COLUMNS || how == COLUMNS_PADDED)
        x.row_stride = 1, x.column_stride = rows + pad;
    else
        x.column_stride = 1, x.row_stride = columns + pad;
    int64_t span = rows && columns ? (rows - 1) * x.row_stride + (columns - 1) * x.column_stride + 1 : 0;
    x.batch_stride = how == BROADCAST ? 0 : how == ROWS || how == COLUMNS ? rows * columns : span + 1;
    int64_t count = span && batch ? span + (batch - 1) * x.batch_stride : 0;
    *out = guarded_make(count * opq_dtype_bytes(dtype));
    fill(out->data, dtype, count);
    x.data = out->data;
    return x;
}

static double matrix_at(const opq_matrix *x, int64_t batch, int64_t row, int64_t column)
{
    const place *p = x->padded ? places_of[x->padded - copies] : NULL;
    for (int d = 1; p && d < PLACE_DIMS; d++) {
        int64_t inside = p[d].rows[row] + p[d].columns[column];
        if (inside < 0 || inside >= p[d].extent)
            return 0;
    }
    if (p)
        return value_at(x->data, x->dtype,
                        batch * x->batch_stride + p[PLACE_MEMORY].rows[row] + p[PLACE_MEMORY].columns[column]);
    int64_t at = batch * x->batch_stride + (x->rows ? x->rows[row] : row * x->row_stride);
    return value_at(x->data, x->dtype, at + (x->columns ? x->columns[column] : column * x->column_stride));
}

static void reference(const opq_gemm_call *call, char *c)
{
    for (int64_t l = 0; l < call->batch; l++)
        for (int64_t i = 0; i < call->m; i++)
            for (int64_t j = 0; j < call->n; j++) {
                double wide = 0;
                float narrow = 0;
                uint32_t whole = 0;
                opq_pairs steps = {0};
                for (int64_t k = 0; k < call->k && call->pairs; k++)
                    opq_pairs_add(&steps, (float)matrix_at(&call->a, l, i, k), (float)matrix_at(&call->b, l, k, j),
                                  call->pairs);
                narrow = opq_pairs_end(&steps, call->pairs);
                for (int64_t k = 0; k < call->k && !call->pairs; k++) {
                    double a = matrix_at(&call->a, l, i, k), b = matrix_at(&call->b, l, k, j);
                    if (call->dtype == OPQ_f64)
                        wide = fma(a, b, wide);
                    else if (call->dtype == OPQ_i32)
                        whole += (uint32_t)((int32_t)a * (int32_t)b);
                    else
                        narrow = fmaf((float)a, (float)b, narrow);
                }
                int64_t at = (l * call->m + i) * call->n + j;
                if (call->dtype == OPQ_f64)
                    ((double *)c)[at] = wide;
                else if (call->dtype == OPQ_i32)
                    ((uint32_t *)c)[at] = whole;
                else
                    ((float *)c)[at] = narrow;
            }
}

typedef struct collector {
    const opq_gemm_call *call;
    char *c;
    unsigned char *times; /* per element */
} collector;

static void collect(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                    const void *tile, int64_t ld)
{
    const collector *to = data;
    size_t bytes = (size_t)opq_dtype_bytes(to->call->dtype);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = (batch * to->call->m + row + i) * to->call->n + column + j;
            memcpy(to->c + (size_t)at * bytes, (const char *)tile + (size_t)(i * ld + j) * bytes, bytes);
            to->times[at]++;
        }
}

static void check_same(const sample *s, const char *how, const char *expect, const char *got, int64_t stride)
{
    size_t row = (size_t)(s->n * opq_dtype_bytes(s->dtype));
    for (int64_t i = 0; i < s->batch * s->m; i++)
        if (memcmp(expect + (size_t)i * row, got + i * stride, row))
            fail_msg("%s, %d threads: row %d differs: batch %d, %d x %d x %d, layouts %d %d, dtypes %d %d %d", how,
                     threads, (int)i, (int)s->batch, (int)s->m, (int)s->n, (int)s->k, s->a, s->b, s->dtype, s->a_dtype,
                     s->b_dtype);
}

/* Into c whose rows are 3 elements apart from each other: the gaps must survive. */
static void check_direct(const sample *s, const char *how, opq_gemm_call call, const char *expect)
{
    int64_t bytes = opq_dtype_bytes(s->dtype), rows = s->batch * s->m;
    call.c_row_stride = s->n + (s->k % 2 ? 3 : 0);
    call.c_batch_stride = s->m * call.c_row_stride;
    int64_t size = (rows ? rows * call.c_row_stride : 0) * bytes;
    char *c = malloc((size_t)size + 2 * PAGE);
    memset(c, CANARY, (size_t)size + 2 * PAGE);
    call.c = c + PAGE;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    check_same(s, how, expect, call.c, call.c_row_stride * bytes);
    for (int64_t i = 0; i < PAGE; i++)
        assert_true(c[i] == CANARY && c[PAGE + size + i] == CANARY);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = s->n * bytes; j < call.c_row_stride * bytes; j++)
            assert_true(((char *)call.c)[i * call.c_row_stride * bytes + j] == CANARY);
    free(c);
}

static void check_tiles(const sample *s, const char *how, opq_gemm_call call, const char *expect)
{
    size_t count = (size_t)(s->batch * s->m * s->n), bytes = (size_t)opq_dtype_bytes(s->dtype);
    collector to = {&call, calloc(count + 1, bytes), calloc(count + 1, 1)};
    opq_gemm_call with = call;
    with.tile = collect;
    with.tile_data = &to;
    assert_int_equal(opq_gemm_run(gemm, &with), OPQ_OK);
    check_same(s, how, expect, to.c, s->n * (int64_t)bytes);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(to.times[i], 1);
    free(to.c);
    free(to.times);
}

/* With copies of operands that are not read any more. */
static void check_packed_left(const sample *s, opq_gemm_call call, const void *packed_b, const char *expect)
{
    bool better;
    int64_t bytes =
        opq_gemm_packed_left_bytes(gemm, packed_dtype(s, s->a_dtype, false), &call.b, s->m, s->n, s->k, &better);
    for (int turned = 0; turned < 2 && (s->batch == 1 || (s->batch > 1 && call.a.batch_stride == 0)); turned++) {
        if (!turned && (bytes == 0 || better))
            continue;
        opq_dtype to = packed_dtype(s, s->a_dtype, turned);
        guarded left = guarded_make(turned ? opq_gemm_packed_bytes(gemm, to, s->k, s->m) : bytes);
        assert_int_equal(opq_gemm_pack_a(gemm, to, &call.a, s->m, s->k, turned, left.data), OPQ_OK);
        opq_gemm_call with = call;
        with.packed_a = left.data, with.a.data = NULL, with.turned = turned;
        check_direct(s, turned ? "turned" : "packed a", with, expect);
        check_tiles(s, turned ? "turned, tiles" : "packed a, tiles", with, expect);
        with.packed_b = packed_b;
        if (packed_b)
            check_tiles(s, "packed a and b", with, expect);
        munmap(left.map, left.map_bytes);
    }
}

static void check_packed(const sample *s, opq_gemm_call call, const char *expect)
{
    guarded right = {0};
    if (s->batch == 1 || (s->batch > 1 && call.b.batch_stride == 0)) {
        opq_dtype to = packed_dtype(s, s->b_dtype, true);
        right = guarded_make(opq_gemm_packed_bytes(gemm, to, s->k, s->n));
        assert_int_equal(opq_gemm_pack_b(gemm, to, &call.b, s->k, s->n, right.data), OPQ_OK);
    }
    check_packed_left(s, call, right.data, expect);
    if (right.map) {
        call.packed_b = right.data, call.b.data = NULL;
        check_direct(s, "packed b", call, expect);
        check_tiles(s, "packed b, tiles", call, expect);
        munmap(right.map, right.map_bytes);
    }
}

/* The first third of k, then the sums go on. */
static void check_accumulated(const sample *s, opq_gemm_call call, const char *expect)
{
    int64_t count = s->batch * s->m * s->n, bytes = opq_dtype_bytes(s->dtype),
            k = pairs ? s->k / 3 / (2 * pairs) * 2 * pairs : s->k / 3;
    call.c = calloc((size_t)count + 1, (size_t)bytes);
    call.c_row_stride = s->n;
    call.c_batch_stride = s->m * s->n;
    call.accumulate = true;
    call.k = k;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    call.k = s->k - k;
    call.a.columns = call.a.columns ? call.a.columns + k : NULL;
    call.b.rows = call.b.rows ? call.b.rows + k : NULL;
    call.a.data = (const char *)call.a.data + k * call.a.column_stride * opq_dtype_bytes(call.a.dtype);
    call.b.data = (const char *)call.b.data + k * call.b.row_stride * opq_dtype_bytes(call.b.dtype);
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    check_same(s, "accumulated", expect, call.c, s->n * bytes);
    free(call.c);
}

static void reuse(opq_padded *padded, bool again, bool summed)
{
    padded->reused = again && padded->count > 0;
    padded->summed = summed;
}

static void check(const sample *s)
{
    guarded a, b;
    opq_gemm_call call = {.dtype = s->dtype, .pairs = pairs, .batch = s->batch, .m = s->m, .n = s->n, .k = s->k};
    call.a = matrix_make(s->a, s->a_dtype, s->batch, s->m, s->k, &a);
    call.b = matrix_make(s->b, s->b_dtype, s->batch, s->k, s->n, &b);
    if (call.a.padded)
        reuse((opq_padded *)call.a.padded, reused & 1, s->a == PADDED_TAPS);
    if (call.b.padded)
        reuse((opq_padded *)call.b.padded, reused & 2, s->b != PADDED_TAPS);
    char *expect = calloc((size_t)(s->batch * s->m * s->n) + 1, 8);
    reference(&call, expect);
    for (threads = 1; threads <= THREADS; threads += THREADS - 1) {
        check_direct(s, "direct", call, expect);
        check_tiles(s, "tiles", call, expect);
        check_packed(s, call, expect);
        check_accumulated(s, call, expect);
    }
    threads = 1;
    free(expect);
    munmap(a.map, a.map_bytes);
    munmap(b.map, b.map_bytes);
}

/* ---- tables */

static const int64_t shapes[][4] = {
    /* batch, m, n, k */
    {1, 0, 5, 7},    {1, 5, 0, 7},     {1, 5, 7, 0},     {0, 5, 7, 3},     {1, 1, 1, 0},    {1, 1, 1, 1},
    {1, 1, 1, 100},  {1, 2, 1, 33},    {1, 1, 2, 16},    {1, 1, 17, 31},   {1, 1, 300, 65}, {1, 2, 100, 40},
    {1, 3, 33, 17},  {1, 3, 225, 40},  {1, 4, 64, 130},  {1, 5, 129, 9},   {1, 6, 96, 70},  {1, 7, 31, 5},
    {1, 16, 16, 16}, {4, 13, 96, 5},   {2, 1, 128, 20},  {1, 19, 64, 100}, {5, 3, 32, 0},   {1, 128, 16, 3},
    {1, 8, 128, 64}, {1, 13, 65, 66},  {1, 14, 32, 16},  {1, 15, 47, 3},   {1, 29, 16, 18}, {1, 57, 1, 90},
    {1, 300, 1, 7},  {1, 150, 130, 5}, {1, 33, 70, 300}, {1, 64, 64, 64},  {3, 5, 20, 9},   {3, 1, 33, 20},
    {7, 20, 20, 32}, {2, 17, 140, 33},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const opq_dtype dtypes[][3] = {
    {OPQ_f32, OPQ_f32, OPQ_f32},   {OPQ_f64, OPQ_f64, OPQ_f64},
    {OPQ_f32, OPQ_bf16, OPQ_bf16}, {OPQ_f32, OPQ_f16, OPQ_f16},
    {OPQ_f32, OPQ_f32, OPQ_bf16},  {OPQ_f32, OPQ_f16, OPQ_f32},
    {OPQ_f64, OPQ_f32, OPQ_f64},   {OPQ_f32, OPQ_f32, OPQ_i8},
    {OPQ_f32, OPQ_i8, OPQ_bf16},   {OPQ_i32, OPQ_i8, OPQ_i8},
    {OPQ_f32, OPQ_bf16, OPQ_i8},   {OPQ_f32, OPQ_f32, OPQ_bf16}, /* by pairs: f32 is rounded */
    {OPQ_f32, OPQ_f32, OPQ_f32},
};

static void check_shapes(int which)
{
    /* A sample of the layouts is enough for conversions, and for what has run whole without sanitizers. */
    int every = (which > 0 ? 3 : 1) * (test_sample(4) < 4 ? 3 : 1) * (way > 0 || pairs > 1 ? 2 : 1);
    for (int i = 0; i < SHAPES; i++)
        for (int a = 0; a < LAYOUTS; a++)
            for (int b = 0; b < LAYOUTS; b++) {
                const int64_t *s = shapes[i];
                if ((a + b + i) % every)
                    continue;
                sample one = {
                    s[0], s[1], s[2], s[3], (layout)a, (layout)b, dtypes[which][0], dtypes[which][1], dtypes[which][2]};
                reused = (a + b + i) % 4;
                check(&one);
            }
    reused = 3;
}

static void check_all(const sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check(&samples[i]);
}

static void test_f32(void **state)
{
    (void)state;
    check_shapes(0);
}
static void test_f64(void **state)
{
    (void)state;
    check_shapes(1);
    check_shapes(6);
}
static void test_pairs(void **state)
{
    (void)state;
    static const sample large[] = {
        {1, 150, 300, 2201, ROWS, COLUMNS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 150, 131, 2200, COLUMNS, ROWS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 20, 700, 1200, ROWS, ROWS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 3, 603, 1003, ROWS, COLUMNS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 1, 900, 1500, ROWS, COLUMNS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 900, 1, 1500, ROWS, ROWS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {2, 300, 60, 100, ROWS, BROADCAST, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 9, 300, 6001, ROWS, PADDED_PLACES, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 1024, 40, 37, COLUMNS, ROWS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 150, 300, 2201, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_bf16},
        {1, 150, 131, 2200, COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 512, 70, 99, CROWDED_COLUMNS, CROWDED_ROWS, OPQ_f32, OPQ_bf16, OPQ_bf16},
        {1, 512, 70, 99, CROWDED_COLUMNS, CROWDED_ROWS, OPQ_f32, OPQ_f32, OPQ_bf16},
    };
    for (int w = 0; w < WAYS; w++) {
        set_way(w);
        for (pairs = 1; pairs <= 16; pairs += 15) {
            check_shapes(2);
            check_shapes(w % 2 ? 11 : 12);
            check_all(large, sizeof large / sizeof *large);
        }
    }
    set_way(0);
    pairs = 0;
}
static void test_bytes(void **state)
{
    (void)state;
    static const sample large[] = {
        {1, 150, 300, 2201, ROWS, COLUMNS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 150, 131, 4402, COLUMNS, ROWS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 2048, 40, 37, COLUMNS, ROWS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 1, 603, 2003, ROWS, COLUMNS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 603, 1, 2003, ROWS, ROWS, OPQ_i32, OPQ_i8, OPQ_i8},
        {2, 300, 60, 100, ROWS, BROADCAST, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 150, 131, 1201, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_i8},
        {1, 1, 603, 9003, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_i8},
        {1, 603, 1, 1003, ROWS, ROWS, OPQ_f32, OPQ_i8, OPQ_f32},
        {2, 300, 60, 100, ROWS, BROADCAST, OPQ_f32, OPQ_bf16, OPQ_i8},
    };
    for (int w = 0; w < WAYS; w++) {
        set_way(w);
        for (int which = 7; which < 10; which++)
            check_shapes(which);
        check_all(large, sizeof large / sizeof *large);
        for (pairs = 1; pairs <= 16; pairs += 15)
            check_shapes(10);
        pairs = 0;
    }
    set_way(0);
}

static void test_half(void **state)
{
    (void)state;
    check_shapes(2);
    check_shapes(3);
    check_shapes(4);
    check_shapes(5);
}

/* Several blocks of k, several tiles, several groups, and enough work for threads to share. */
static void test_large(void **state)
{
    (void)state;
    static const sample large[] = {
        {1, 150, 300, 1100, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 150, 131, 1100, COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 450, 40, 530, ROWS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 20, 700, 600, ROWS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 1, 900, 1500, ROWS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 1, 900, 1500, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_bf16},
        {1, 900, 1, 1500, ROWS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 1, 603, 1003, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32}, /* few rows, b from memory */
        {1, 3, 603, 1003, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 4, 603, 1003, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f16},
        {1, 11, 400, 700, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 9, 300, 6001, ROWS, PADDED_PLACES, OPQ_f32, OPQ_f32, OPQ_f32}, /* copied in parts */
        {2, 300, 140, 6001, PADDED_TAPS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 20, 6001, 300, COLUMNS, PADDED_TAPS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 160, 100, 600, ROWS, COLUMNS, OPQ_f64, OPQ_f64, OPQ_f64},
        {5, 100, 100, 32, ROWS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {2, 300, 60, 100, ROWS_PADDED, BROADCAST, OPQ_f32, OPQ_f32, OPQ_f32},
        {2, 300, 60, 100, ROWS, BROADCAST, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 5000, 3, 1000, ROWS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 512, 131, 70, COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32}, /* rows of k some KiB apart: packed by way of a stage */
        {2, 1024, 40, 33, COLUMNS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 256, 40, 33, COLUMNS, ROWS, OPQ_f64, OPQ_f64, OPQ_f64},
        {1, 512, 40, 33, COLUMNS, ROWS, OPQ_f64, OPQ_f64, OPQ_f64},
        {1, 1024, 40, 37, COLUMNS, ROWS, OPQ_f32, OPQ_bf16, OPQ_f32},
        {1, 512, 131, 70, CROWDED_COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32}, /* by tables, too */
        {2, 40, 300, 700, COLUMNS, CROWDED_ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 300, 300, 600, CROWDED_COLUMNS, CROWDED_ROWS, OPQ_f64, OPQ_f64, OPQ_f64},
        {1, 300, 140, 90, CROWDED_COLUMNS, CROWDED_ROWS, OPQ_f32, OPQ_bf16, OPQ_f16},
        {1, 300, 140, 90, CROWDED_COLUMNS, CROWDED_ROWS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 300, 100, 1500, COLUMNS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32}, /* blocks of k packed tile by tile */
        {3, 40, 30, 5000, COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {1, 300, 100, 1500, COLUMNS, COLUMNS, OPQ_i32, OPQ_i8, OPQ_i8},
        {1, 900, 140, 600, COLUMNS, ROWS, OPQ_f32, OPQ_f32, OPQ_f32}, /* a right operand that is kept for all rows */
        {2, 600, 300, 300, COLUMNS, COLUMNS, OPQ_f32, OPQ_f32, OPQ_f32},
        {2, 90, 40, 3000, WINDOWS_COLUMNS, WINDOWS, OPQ_f32, OPQ_f32, OPQ_f32},
        {8, 60, 300, 1100, ROWS, BROADCAST, OPQ_f32, OPQ_f32, OPQ_f32}, /* packed for all matrices, in pieces of k */
    };
    check_all(large, sizeof large / sizeof *large);
}

/* A row's bits do not depend on how many rows it is computed with. */
static void test_rows_alone(void **state)
{
    (void)state;
    enum { M = 29, N = 75, K = 50 };
    guarded a, b;
    opq_matrix x = matrix_make(ROWS, OPQ_f32, 1, M, K, &a), w = matrix_make(COLUMNS, OPQ_f32, 1, K, N, &b);
    float whole[M * N], part[M * N];
    opq_gemm_call call = {
        .dtype = OPQ_f32, .batch = 1, .m = M, .n = N, .k = K, .a = x, .b = w, .c = whole, .c_row_stride = N};
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    for (int64_t rows = 1; rows <= M; rows++) {
        call.m = rows;
        call.c = part;
        assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
        assert_memory_equal(part, whole, (size_t)rows * N * sizeof *part);
    }
    munmap(a.map, a.map_bytes);
    munmap(b.map, b.map_bytes);
}

/* Of long sums, blocks of k are packed where one group of columns is all that uses them; of two windows, the smaller one is packed. */
static void test_what_is_packed(void **state)
{
    (void)state;
    const int64_t at[2] = {0, 5};
    gemm_run run = {.gemm = gemm, .call = {.k = 5000}, .k_block = 512, .column_panels = 4, .column_chunks = 1};
    run.group_panels = 4;
    assert_true(gemm_packs_a_blocks(&run));
    run.group_panels = 2;
    assert_false(gemm_packs_a_blocks(&run));
    run.column_chunks = 2;
    assert_true(gemm_packs_a_blocks(&run));
    assert_int_equal(gemm_shared_b_count(&run), 2 * 10);
    run.rule = GEMM_QUADS; /* a panel's sums begin with what all of it adds */
    assert_int_equal(gemm_shared_b_count(&run), 2);
    run.call.k = 512;
    assert_false(gemm_packs_a_blocks(&run));
    opq_matrix x = {.dtype = OPQ_f32, .columns = at}, y = {.dtype = OPQ_f32, .rows = at};
    opq_gemm_call call = {.dtype = OPQ_f32, .batch = 1, .m = 256, .n = 64, .k = 2, .a = x, .b = y};
    assert_false(gemm_is_turned(&call));
    call.m = 64;
    call.n = 256;
    assert_true(gemm_is_turned(&call));
    call.a.columns = NULL;
    call.m = 1024;
    assert_true(gemm_is_turned(&call));
    call.b.column_stride = 1; /* runs of its rows are copied */
    assert_false(gemm_is_turned(&call));
}

/* How rows of a window lie in the panels of tiles: places of an image beside each other, taps of three columns by threes. */
static void test_window_rows(void **state)
{
    (void)state;
    enum { M = 144 };
    static const struct {
        int64_t m, period, most, rows; /* the table begins anew after so many */
        opq_gemm_left left;
    } cases[] = {
        {96, 32, 14, 8, OPQ_GEMM_LEFT_BESIDE},  {112, 28, 14, 14, OPQ_GEMM_LEFT_BESIDE},
        {M, 3, 14, 12, OPQ_GEMM_LEFT_THREES},   {27, 3, 14, 9, OPQ_GEMM_LEFT_THREES},
        {37, 37, 14, 14, OPQ_GEMM_LEFT_BESIDE}, {26, 13, 6, 1, OPQ_GEMM_LEFT_BESIDE},
        {M, 1, 14, 1, OPQ_GEMM_LEFT_BESIDE},    {20, 3, 14, 0, OPQ_GEMM_LEFT_WINDOW},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t at[M];
        for (int64_t j = 0; j < cases[i].m; j++)
            at[j] = j / cases[i].period * 50 + j % cases[i].period;
        gemm_run run = {.call = {.m = cases[i].m, .a.rows = at}};
        opq_gemm_left left;
        assert_int_equal(gemm_window_rows(&run, cases[i].most, &left), cases[i].rows);
        assert_true(cases[i].rows == 0 || left == cases[i].left);
    }
}

/* Windows of bf16 become pairs as they are, row by row or by transposition, also where a pair lies in two runs along k. */
static void test_windows_of_pairs(void **state)
{
    (void)state;
    enum { K = 21, ACROSS = 32 };
    static uint16_t data[4096];
    int64_t k_at[K], across_at[ACROSS];
    static uint32_t out[(K + 1) / 2 * ACROSS];
    const opq_gemm_isa *isa = gemm_isa(&cpu);
    for (int i = 0; i < 4096; i++)
        data[i] = (uint16_t)(i | 0x3000);
    for (int how = 0; how < 4 && isa->word_moves; how++) {
        for (int64_t i = 0; i < K; i++)
            k_at[i] = how % 2 ? i / 7 * 40 + i % 7 : i * 90;
        for (int64_t j = 0; j < ACROSS; j++)
            across_at[j] = how % 2 ? j * 100 : j / 20 * 55 + j % 20 * (how == 2 ? 2 : 1);
        opq_pack_source source = {.data = data,
                                  .from = OPQ_bf16,
                                  .to = OPQ_f32,
                                  .k_at = k_at,
                                  .across_at = across_at,
                                  .word = 2,
                                  .target = &cpu.target->gemm};
        assert_true(opq_pack_window(isa, &source, K, ACROSS, ACROSS, out));
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < ACROSS; j++)
                assert_int_equal(out[i / 2 * ACROSS + j] >> i % 2 * 16 & 0xffff, data[k_at[i] + across_at[j]]);
        assert_int_equal(out[K / 2 * ACROSS] >> 16, 0);
    }
}

/* Several calls at once, into c or tiles, two with one left operand and one with another, give what each gives alone. */
static void check_beside(const int64_t *shape, layout left, bool tiles, const int64_t *columns)
{
    enum { CALLS = 4 };
    guarded a[2], b[CALLS];
    opq_gemm_call calls[CALLS];
    collector to[CALLS];
    char *alone[CALLS], *c[CALLS];
    opq_matrix x[2];
    for (int i = 0; i < 2; i++)
        x[i] = matrix_make(left, OPQ_f32, shape[0], shape[1], shape[2], &a[i]);
    for (int i = 0; i < CALLS; i++) {
        size_t count = (size_t)(shape[0] * shape[1] * columns[i]);
        opq_gemm_call call = {
            .dtype = OPQ_f32, .batch = shape[0], .m = shape[1], .n = columns[i], .k = shape[2], .a = x[i == 2]};
        call.b = matrix_make(i % 2 ? ROWS : COLUMNS, OPQ_f32, shape[0], shape[2], columns[i], &b[i]);
        alone[i] = calloc(count + 1, sizeof(float));
        c[i] = calloc(count + 1, sizeof(float));
        call.c = alone[i];
        call.c_row_stride = call.n;
        call.c_batch_stride = call.m * call.n;
        assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
        calls[i] = call;
        calls[i].c = c[i];
        to[i] = (collector){&calls[i], c[i], calloc(count + 1, 1)};
        if (tiles && i != 1) {
            calls[i].tile = collect;
            calls[i].tile_data = &to[i];
        }
    }
    assert_int_equal(opq_gemm_run_beside(gemm, calls, CALLS), OPQ_OK);
    for (int i = 0; i < CALLS; i++) {
        assert_memory_equal(c[i], alone[i], (size_t)(shape[0] * shape[1] * columns[i]) * sizeof(float));
        free(c[i]);
        free(alone[i]);
        free(to[i].times);
        munmap(b[i].map, b[i].map_bytes);
    }
    for (int i = 0; i < 2; i++)
        munmap(a[i].map, a[i].map_bytes);
}

static void test_beside(void **state)
{
    (void)state;
    static const int64_t operands[][3] = {/* batch, m, k */
                                          {1, 1, 700}, {1, 5, 64},    {1, 13, 900},   {1, 40, 0},
                                          {1, 150, 5}, {1, 150, 700}, {3, 20, 33},    {0, 3, 3},
                                          {2, 70, 90}, {1, 0, 5},     {1, 4500, 1000}};
    static const int64_t widths[][4] = {{40, 300, 70, 7}, {64, 64, 64, 64}, {40, 1, 3, 40}};
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (threads = 1; threads <= THREADS; threads += THREADS - 1)
                for (int how = 0; how < (operands[i][1] > 1000 ? 1 : 4); how++)
                    check_beside(operands[i], how % 2 ? COLUMNS : ROWS, how / 2, widths[w]);
    threads = 1;
}

/* Any bits: denormals, infinities, sums that are too small for a normal number, and NaN, whose payload is not covered. */
static void check_any_bits(int rule, bool numbers)
{
    enum { M = 23, N = 70, K = 43 };
    static uint16_t a[M * K], b[K * N];
    static float wide[M * K];
    static float expect[M * N], c[M * N];
    opq_gemm_call call = {.dtype = OPQ_f32, .pairs = rule, .batch = 1, .m = M, .n = N, .c = c, .c_row_stride = N};
    call.a = (opq_matrix){.data = a, .row_stride = K, .column_stride = 1, .dtype = OPQ_bf16};
    call.b = (opq_matrix){.data = b, .row_stride = N, .column_stride = 1, .dtype = OPQ_bf16};
    for (int turn = 0; turn < 300; turn++) {
        int least = turn % 3 ? 0 : 56,
            most = turn % 3 == 2 ? 255 : 72; /* exponents; of products about the smallest ones */
        for (int i = 0; i < M * K + K * N; i++) {
            (void)random_value();
            uint32_t exponent = (uint32_t)least + (seed >> 12) % (uint32_t)(most - least + 1);
            uint16_t bits = (uint16_t)((seed >> 24 & 0x7f) | exponent << 7 | (seed >> 8 & 0x8000));
            if (i < M * K)
                a[i] = bits;
            else
                b[i - M * K] = bits;
            if (i < M * K)
                wide[i] = opq_f32_of_bits((uint32_t)bits << 16 | (seed >> 3 & 0xffff));
        }
        if (numbers) { /* rounded, denormals as they are */
            call.a.data = wide;
            call.a.dtype = OPQ_f32;
        }
        call.k = 1 + turn % K;
        reference(&call, (char *)expect);
        assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
        for (int i = 0; i < M * N; i++)
            if (opq_f32_bits(c[i]) != opq_f32_bits(expect[i]) && !(isnan(c[i]) && isnan(expect[i])))
                fail_msg("turn %d, k %d: element %d is %a, not %a", turn, (int)call.k, i, c[i], expect[i]);
    }
}

static void test_pairs_of_any_bits(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        set_way(w);
        for (int numbers = 0; numbers < 2; numbers++) {
            check_any_bits(1, numbers);
            check_any_bits(16, numbers);
        }
    }
    set_way(0);
}

/* The second product of a pair comes first: 1 + 2^-25 is 1. */
static void test_order_of_pairs(void **state)
{
    (void)state;
    uint16_t a[4] = {0, 0x3f80, 0xbf80, 0x3f80}, b[4] = {0, 0x3f80, 0x3f80, 0x3300}; /* 0, 1, -1, 1; 0, 1, 1, 2^-25 */
    float c[1];
    opq_gemm_call call = {.dtype = OPQ_f32, .pairs = 1, .batch = 1, .m = 1, .n = 1, .k = 4, .c = c, .c_row_stride = 1};
    call.a = (opq_matrix){.data = a, .row_stride = 4, .column_stride = 1, .dtype = OPQ_bf16};
    call.b = (opq_matrix){.data = b, .row_stride = 1, .column_stride = 1, .dtype = OPQ_bf16};
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0);
    call.pairs = 16; /* first ones -1, second ones 1 + 2^-25 */
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0);
    call.pairs = 0;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0x1p-25f);
    uint16_t tiny[2] = {0x0080, 0x0001}, half[2] = {0x3f00, 0x3f80}; /* 2^-126 / 2 + 2^-133 */
    call.k = 2;
    call.a.data = tiny;
    call.b.data = half;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0x1p-127f + 0x1p-133f);
    call.pairs = 1;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0);
}

/* Not a number, infinities and a sum that only a fused chain gets right. */
static void test_special(void **state)
{
    (void)state;
    float a[3] = {INFINITY, 0x1.000002p0f, -0.0f}, b[3] = {0, 0x1.000002p0f, 1}, c[1];
    opq_gemm_call call = {.dtype = OPQ_f32, .batch = 1, .m = 1, .n = 1, .k = 3, .c = c, .c_row_stride = 1};
    call.a = (opq_matrix){.data = a, .row_stride = 3, .column_stride = 1, .dtype = OPQ_f32};
    call.b = (opq_matrix){.data = b, .row_stride = 1, .column_stride = 1, .dtype = OPQ_f32};
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(isnan(c[0]));
    a[0] = -0x1.000004p0f;
    b[0] = 1;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0x1p-46f);
    call.a.data = a + 2;
    call.k = 1;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_OK);
    assert_true(c[0] == 0 && !signbit(c[0])); /* 0 + -0 * x */
}

static void test_invalid(void **state)
{
    (void)state;
    float x[1] = {1};
    opq_matrix one = {.data = x, .row_stride = 1, .column_stride = 1, .dtype = OPQ_f32}, wide = one, whole = one;
    wide.dtype = OPQ_f64;
    whole.dtype = OPQ_i32;
    opq_gemm_call call = {
        .dtype = OPQ_f32, .batch = 1, .m = 1, .n = 1, .k = 1, .a = one, .b = wide, .c = x, .c_row_stride = 1};
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    call.b = whole;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    call.b = one;
    call.m = -1;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    assert_int_equal(opq_gemm_run_beside(gemm, &call, 1), OPQ_INVALID);
    call.m = 1;
    call.pairs = 1; /* of f16 */
    call.b.dtype = OPQ_f16;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    call.b = one;
    call.pairs = 0;
    call.dtype = OPQ_bf16;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    assert_int_equal(opq_gemm_pack_b(gemm, OPQ_f32, &wide, 1, 1, x), OPQ_INVALID);
    opq_matrix byte = one;
    byte.dtype = OPQ_i8;
    assert_int_equal(opq_gemm_pack_b(gemm, OPQ_f32, &byte, 1, 1, x), OPQ_INVALID); /* calls would read i8 */
    assert_int_equal(opq_gemm_pack_b(gemm, OPQ_i8, &one, 1, 1, x), OPQ_INVALID);
    call.dtype = OPQ_f64;
    call.a.dtype = OPQ_f64;
    call.b = byte;
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
    call.dtype = OPQ_i32; /* of f64 and i8 */
    assert_int_equal(opq_gemm_run(gemm, &call), OPQ_INVALID);
}

/* The build made every tile that products may need, of each kind of element that this processor has. */
static void test_tiles(void **state)
{
    (void)state;
    opq_gemm_kernel kernel;
    for (int e = 0; e < OPQ_GEMM_ELEMENTS; e++) {
        bool has = (e != OPQ_GEMM_PAIRS || opq_cpu_has(&cpu, OPQ_LEAF_pairs)) &&
                   (e != OPQ_GEMM_QUADS || opq_cpu_has(&cpu, OPQ_LEAF_quads));
        for (opq_gemm_tile_shape tile = {0}; has && opq_gemm_next_tile(&cpu, &tile);)
            assert_int_equal(gemm_kernel_find(gemm, (opq_gemm_element)e, tile.left, tile.rows, tile.vectors, &kernel),
                             OPQ_OK);
    }
    assert_int_equal(
        gemm_kernel_find(gemm, OPQ_GEMM_F32, OPQ_GEMM_LEFT_PACKED, OPQ_GEMM_ROWS_MAX, OPQ_GEMM_VECTORS_MAX, &kernel),
        OPQ_INTERNAL); /* no registers for that */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_pairs_of_any_bits),
        cmocka_unit_test(test_order_of_pairs),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_beside),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_what_is_packed),
        cmocka_unit_test(test_window_rows),
        cmocka_unit_test(test_windows_of_pairs),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_invalid),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
