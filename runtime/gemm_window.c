/* Left operands that are windows, read where they lie: a kernel gets a table of rows and one of columns, nothing is packed. Padding is first
 * copied around what lies in memory, zeros, so that no kernel asks for it: a ninth of what a 3 x 3 window packs.
 *
 *   convolution     [positions x window] x [window x channels out], which the caller wants transposed: gemm_turned.c
 *   its weights     [window x positions] x [positions x channels out], likewise
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_avx2.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_pack.h"

#include <string.h>

enum { COLUMNS_MIN = 2 }; /* with one, each element is used once */

bool gemm_is_window(opq_dtype dtype, const opq_matrix *left, int64_t n)
{
    return gemm_has_tables(left) && left->dtype == dtype && n >= COLUMNS_MIN && (left->guard_count == 0 || left->padded);
}

static int64_t aligned(int64_t bytes) { return gemm_ceil(bytes, 64) * 64; }

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
    return run->call.a.padded_columns[k] / part_count(run->call.a.padded);
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
    if (a->guard_count > 0)
        return aligned(copied_count(run) * run->element_bytes);
    return aligned(a->rows ? 0 : run->call.m * 8) + aligned(a->columns ? 0 : run->call.k * 8);
}

/* A row of the copy: `head` bytes of zeros, `bytes` from memory and `tail` zeros, all multiples of 4. Rows are short: no call is made. */
INLINE void copy_row(char *to, const char *from, int64_t head, int64_t bytes, int64_t tail)
{
    for (int64_t i = 0; i < head; i += 4)
        memset(to + i, 0, 4);
    to += head;
    if (bytes < 32)
        for (int64_t i = 0; i < bytes; i += 4)
            memcpy(to + i, from + i, 4);
    for (int64_t i = 0; i + 32 <= bytes; i += 32)
        memcpy(to + i, from + i, 32);
    if (bytes > 32)
        memcpy(to + bytes - 32, from + bytes - 32, 32);
    for (int64_t i = bytes; i < bytes + tail; i += 4)
        memset(to + i, 0, 4);
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
            copy_row(to, from, row.from * bytes, length, (row.count - row.to) * bytes);
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
static void copy_parts(const gemm_run *run, int64_t batch, int64_t first, int64_t last, char *to)
{
    const opq_matrix *a = &run->call.a;
    const char *from = opq_pack_at(a->data, a->dtype, batch * a->batch_stride + a->padded->offset);
    int64_t part = part_count(a->padded), bytes = run->element_bytes;
    if (a->padded->rank > 1) {
        copy_dims(a->padded, 0, first, last, part, from, bytes, to);
        return;
    }
    struct opq_padded_dim one[2] = {{.count = 1, .extent = 1}, a->padded->dim[0]};
    one[1].first += first;
    one[1].count = last - first;
    copy_plane(one, find_inside(one, 0, 1), from, bytes, to);
}

void gemm_window_begin(const gemm_run *run, int64_t batch, char *room, gemm_window *out)
{
    const opq_matrix *a = &run->call.a;
    *out = (gemm_window){.data = opq_pack_at(a->data, a->dtype, batch * a->batch_stride)};
    if (a->guard_count > 0) {
        out->copy = room;
        out->rows = a->padded_rows;
        out->columns = a->padded_columns;
        return;
    }
    out->rows = table(a->rows, run->call.m, a->row_stride, room);
    out->columns = table(a->columns, run->call.k, a->column_stride, room + aligned(a->rows ? 0 : run->call.m * 8));
}

const char *gemm_window_data(const gemm_run *run, int64_t batch, int64_t k0, int64_t k, gemm_window *window)
{
    if (!window->copy)
        return window->data;
    const opq_padded *padded = run->call.a.padded;
    bool parts = in_parts(run);
    int64_t first = parts ? part_of(run, k0) : 0, last = parts ? part_of(run, k0 + k - 1) + 1 : padded->dim[0].count;
    if (first < window->first || last > window->last) {
        copy_parts(run, batch, first, last, window->copy);
        window->first = first;
        window->last = last;
    }
    return window->copy - window->first * part_count(padded) * run->element_bytes;
}
