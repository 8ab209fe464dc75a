/* Left operands that are windows, read where they lie: a kernel gets a table of rows and one of columns, nothing is packed. Padding is first
 * copied around what lies in memory, zeros, so that no kernel asks for it: a ninth of what a 3 x 3 window packs. Blocks do that, each for
 * itself; of operands that are packed, or whose elements are used once, it is done before, by all threads.
 *
 *   convolution     [positions x window] x [window x channels out], which the caller wants transposed: gemm_turned.c
 *   its weights     [window x positions] x [positions x channels out], likewise
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_pack.h"

#include <string.h>

enum { COLUMNS_MIN = 2 }; /* with one, each element is used once */

bool gemm_is_window(opq_dtype dtype, const opq_matrix *left, int64_t n)
{
    if (!left->rows && left->row_stride == 1 && !left->padded) /* packing copies runs of it */
        return false;
    return gemm_has_tables(left) && left->dtype == dtype && n >= COLUMNS_MIN && (!left->padded || left->padded->reused);
}

/* Of a table: after so many numbers, each one more than that before, it begins anew, always; 0: it does not. */
static int64_t find_period(const int64_t *table, int64_t count)
{
    int64_t period = 1;
    while (period < count && table[period] == table[period - 1] + 1)
        period++;
    for (int64_t i = 1; i < count; i++)
        if (i % period != 0 && table[i] != table[i - 1] + 1)
            return 0;
    return count % period == 0 ? period : 0;
}

int64_t gemm_window_rows(const gemm_run *run, int64_t most, opq_gemm_left *out_left)
{
    const opq_matrix *a = &run->call.a;
    int64_t m = run->call.m, period = a->rows ? find_period(a->rows, m) : a->row_stride == 1 ? m : 0;
    bool threes = period == OPQ_GEMM_THREE;
    int64_t whole = threes ? m / OPQ_GEMM_THREE : period, step = threes ? OPQ_GEMM_THREE : 1;
    *out_left = threes ? OPQ_GEMM_LEFT_THREES : OPQ_GEMM_LEFT_BESIDE;
    for (most /= step; period > 0 && period < m && whole % most != 0;)
        most--;
    return period > 0 ? most * step : 0;
}

/* Is the copy made block by block of k, as the outermost dim goes? */
static bool in_parts(const gemm_run *run)
{
    const opq_padded *padded = run->call.a.padded;
    return padded->summed && padded->count * run->element_bytes > run->cpu->target->gemm.window_copy_bytes &&
           run->k_block < run->call.k;
}

/* Elements of the copy that one index of the outermost dim is. */
static int64_t part_count(const opq_padded *padded) { return padded->count / padded->dim[0].count; }

static int64_t part_of(const gemm_run *run, int64_t k)
{
    return run->call.a.columns[k] / part_count(run->call.a.padded);
}

static int64_t copied_count(const gemm_run *run)
{
    const opq_padded *padded = run->call.a.padded;
    int64_t most = 0;
    if (!in_parts(run))
        return padded->count;
    for (int64_t k = 0; k < run->call.k; k += run->k_block) {
        int64_t last = gemm_min(k + run->k_block, run->call.k) - 1, parts = part_of(run, last) - part_of(run, k) + 1;
        most = parts > most ? parts : most;
    }
    return most * part_count(padded);
}

int64_t gemm_window_bytes(const gemm_run *run)
{
    const opq_matrix *a = &run->call.a;
    if (a->padded)
        return gemm_lines(copied_count(run) * run->element_bytes);
    return gemm_lines(a->rows ? 0 : run->call.m * 8) + gemm_lines(a->columns ? 0 : run->call.k * 8);
}

/* Short rows: no call is made. */
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline void zero_bytes(char *to, int64_t bytes)
{
    for (; bytes >= 4; bytes -= 4, to += 4)
        memset(to, 0, 4);
    if (bytes & 2)
        memset(to, 0, 2);
    if (bytes & 1)
        to[bytes & 2] = 0;
}

AVX2 static inline void copy_bytes(char *to, const char *from, int64_t bytes)
{
    int64_t i = 0;
    for (; i + 32 <= bytes; i += 32)
        memcpy(to + i, from + i, 32);
    if (bytes > 32) {
        memcpy(to + bytes - 32, from + bytes - 32, 32);
        return;
    }
    for (; i + 4 <= bytes; i += 4)
        memcpy(to + i, from + i, 4);
    for (; i < bytes; i++)
        to[i] = from[i];
}

/* Indices of a dim, of which the copy has [0, count): those in [from, to) are in memory, where `at` is the first of them. */
typedef struct inside {
    int64_t from, to, count, at;
} inside;

static inside find_inside(const struct opq_padded_dim *dim, int64_t begin, int64_t end)
{
    int64_t first = dim->first + begin, last = gemm_min(dim->first + end, dim->extent), at = first < 0 ? 0 : first;
    inside p = {.from = gemm_min(at - first, end - begin), .count = end - begin, .at = at};
    p.to = last > at ? p.from + last - at : p.from;
    return p;
}

/* The last two dims. */
AVX2 static void copy_plane(const struct opq_padded_dim *dim, inside rows, const char *from, int64_t bytes, char *to)
{
    inside row = find_inside(&dim[1], 0, dim[1].count);
    int64_t step = dim->stride * bytes, width = row.count * bytes, length = (row.to - row.from) * bytes;
    from += rows.at * step + row.at * dim[1].stride * bytes;
    memset(to, 0, (size_t)(rows.from * width));
    to += rows.from * width;
    for (int64_t r = rows.from; r < rows.to; r++, from += step, to += width) {
        if (dim[1].stride == 1) {
            zero_bytes(to, row.from * bytes);
            copy_bytes(to + row.from * bytes, from, length);
            zero_bytes(to + row.to * bytes, (row.count - row.to) * bytes);
            continue;
        }
        memset(to, 0, (size_t)width);
        for (int64_t i = row.from; i < row.to; i++)
            memcpy(to + i * bytes, from + (i - row.from) * dim[1].stride * bytes, (size_t)bytes);
    }
    memset(to, 0, (size_t)((rows.count - rows.to) * width));
}

/* Dim d and those inside, two at least, [begin, end) of what the copy has of it, `block` elements for each index; `from` is where all of them are 0. */
static void copy_dims(const opq_padded *p, int d, int64_t begin, int64_t end, int64_t block, const char *from,
                      int64_t bytes, char *to)
{
    const struct opq_padded_dim *dim = &p->dim[d];
    inside here = find_inside(dim, begin, end);
    if (d + 2 == p->rank) {
        copy_plane(dim, here, from, bytes, to);
        return;
    }
    memset(to, 0, (size_t)(here.from * block * bytes));
    to += here.from * block * bytes;
    from += here.at * dim->stride * bytes;
    for (int64_t i = here.from; i < here.to; i++, to += block * bytes, from += dim->stride * bytes)
        copy_dims(p, d + 1, 0, dim[1].count, block / dim[1].count, from, bytes, to);
    memset(to, 0, (size_t)((here.count - here.to) * block * bytes));
}

static const int64_t *table(const int64_t *known, int64_t count, int64_t stride, char *room)
{
    int64_t *made = (int64_t *)room;
    if (known)
        return known;
    for (int64_t i = 0; i < count; i++)
        made[i] = i * stride;
    return made;
}

/* Indices [first, last) of the outermost dim. */
static void copy_parts(const opq_matrix *x, int64_t batch, int64_t first, int64_t last, char *to)
{
    const char *from = opq_pack_at(x->data, x->dtype, batch * x->batch_stride + x->padded->offset);
    int64_t bytes = opq_dtype_bytes(x->dtype);
    if (x->padded->rank > 1) {
        copy_dims(x->padded, 0, first, last, part_count(x->padded), from, bytes, to);
        return;
    }
    struct opq_padded_dim one[2] = {{.count = 1, .extent = 1}, x->padded->dim[0]};
    one[1].first += first;
    one[1].count = last - first;
    copy_plane(one, find_inside(one, 0, 1), from, bytes, to);
}

void gemm_window_begin(const gemm_run *run, int64_t batch, char *room, gemm_window *out)
{
    const opq_matrix *a = &run->call.a;
    *out = (gemm_window){.data = opq_pack_at(a->data, a->dtype, batch * a->batch_stride)};
    out->copy = a->padded ? room : NULL;
    out->rows = table(a->rows, run->call.m, a->row_stride, room);
    out->columns = table(a->columns, run->call.k, a->column_stride, room + gemm_lines(a->rows ? 0 : run->call.m * 8));
}

const char *gemm_window_data(const gemm_run *run, int64_t batch, int64_t k0, int64_t k, gemm_window *window)
{
    if (!window->copy)
        return window->data;
    const opq_padded *padded = run->call.a.padded;
    bool parts = in_parts(run);
    int64_t first = parts ? part_of(run, k0) : 0, last = parts ? part_of(run, k0 + k - 1) + 1 : padded->dim[0].count;
    if (first < window->first || last > window->last) {
        copy_parts(&run->call.a, batch, first, last, window->copy);
        window->first = first;
        window->last = last;
    }
    return window->copy - window->first * part_count(padded) * run->element_bytes;
}

/* ---- before a call */

typedef struct whole_copy {
    const opq_matrix *matrix;
    int64_t parts; /* of each */
    char *to;
} whole_copy;

static void copy_whole(void *data, int64_t begin, int64_t end)
{
    const whole_copy *c = data;
    const opq_padded *padded = c->matrix->padded;
    int64_t each = padded->dim[0].count / c->parts, bytes = padded->count / c->parts * opq_dtype_bytes(c->matrix->dtype);
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i % c->parts * each;
        copy_parts(c->matrix, i / c->parts, first, first + each, c->to + i * bytes);
    }
}

int64_t gemm_padded_bytes(const opq_matrix *x)
{
    return (x->padded ? x->padded->count : 0) * opq_dtype_bytes(x->dtype);
}

/* A table of equal steps is a stride. */
static void straighten(opq_matrix *x, const int64_t **table, int64_t count, int64_t *out_stride)
{
    const int64_t *at = *table, step = count > 1 ? at[1] - at[0] : 0;
    for (int64_t i = 1; i < count; i++)
        if (at[i] - at[i - 1] != step)
            return;
    x->data = opq_pack_at(x->data, x->dtype, at[0]);
    *out_stride = step;
    *table = NULL;
}

opq_status gemm_copy_padded(opq_gemm *gemm, int64_t batch, bool serial, int64_t rows, int64_t columns, opq_matrix *x,
                            void **out_copy)
{
    int64_t copies = x->batch_stride ? batch : 1, bytes = copies * gemm_padded_bytes(x);
    whole_copy c = {x, x->padded->rank > 1 ? x->padded->dim[0].count : 1,
                    gemm_scratch_acquire(GEMM_SCRATCH_padded, bytes)};
    if (!c.to)
        return opq_fail(OPQ_NO_MEMORY, "gemm: no memory for %lld bytes of a padded operand", (long long)bytes);
    if (serial)
        copy_whole(&c, 0, copies * c.parts);
    else
        gemm_parallel(gemm, copies * c.parts, (double)bytes, copy_whole, &c);
    x->data = *out_copy = c.to;
    x->batch_stride = x->batch_stride ? x->padded->count : 0;
    x->padded = NULL;
    straighten(x, &x->rows, rows, &x->row_stride);
    straighten(x, &x->columns, columns, &x->column_stride);
    return OPQ_OK;
}
