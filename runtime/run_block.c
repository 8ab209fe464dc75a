/* A block step: some rows at a time through first products, row kernel and second products, while they are in cache.
 *
 * The row kernel and the epilogues were made for whole tensors. What stays in cache is found at the same indices: their pointers are moved
 * back by the rows before. Second products that sum over rows go on with their sums from block to block; then a thread does all blocks of a
 * matrix, in order, and their epilogues follow the last one.
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"
#include "runtime/packed.h"
#include "runtime/parallel.h"
#include "runtime/run.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

static const float FAR_FROM_OVERFLOW = 0x1p100f, LARGEST_BF16 = 0x1.fep127f;

typedef struct block_run {
    const opq_run_state *run;
    const opq_step *step;
    const opq_block *block;
    opq_step_error *error;
    opq_tiles tiles[OPQ_BLOCK_SECOND_MAX];
    void *buffers[OPQ_BUFFER_MAX]; /* of the rows */
    opq_number scalars[OPQ_SCALAR_MAX];
    int64_t matrix_rows, blocks;            /* rows of a matrix that all products have; blocks of a matrix */
    int64_t rows;                           /* of a block but the last */
    opq_buffer *kept[OPQ_BLOCK_MATRIX_MAX]; /* packed copies of right operands that stay with their buffers, or NULL; references */
    bool serial, causal;
    atomic_int status;
    /* Of a thread's memory: where locals begin, and what a product has for all blocks of a matrix, its sums or other packed copies. */
    int64_t matrix_bytes, local_bytes, locals_at, own_at[OPQ_BLOCK_MATRIX_MAX], own_bytes[OPQ_BLOCK_MATRIX_MAX], bytes;
} block_run;

static const opq_target_block *numbers_of(const block_run *r) { return &r->run->runtime->gemm->cpu->target->block; }

static int product_count(const block_run *r) { return r->block->first_count + r->block->second_count; }

/* First ones, then second ones. */
static const opq_step *product_of(const block_run *r, int i) { return &r->step->parts[1 + i]; }

static const opq_contract *contract_of(const block_run *r, int i) { return &product_of(r, i)->matmul->contract; }

static opq_dtype packed_name(const block_run *r, int i)
{
    return opq_gemm_packed_name(product_of(r, i)->matmul->dtype, contract_of(r, i)->pairs);
}

static bool sums_rows(const block_run *r, int i) { return opq_block_product_sums(r->block, i); }

/* Of each of its matrices. */
static int64_t rows_of(const block_run *r, int i)
{
    return sums_rows(r, i) ? contract_of(r, i)->k : contract_of(r, i)->m;
}

/* Of one thread. */
typedef struct memory {
    char *data;
    bool full; /* an operand of this matrix has an infinity or NaN, which times 0 is not nothing, or is near overflow */
} memory;

static float *matrix_of(const block_run *r, const memory *m, int matrix)
{
    return (float *)(m->data + r->block->matrix[matrix].place * r->matrix_bytes);
}

static float *taken_by(const block_run *r, const memory *m, int i)
{
    return matrix_of(r, m, r->block->taken[i - r->block->first_count]);
}

static const void *packed_for(const block_run *r, const memory *m, int i)
{
    if (r->kept[i])
        return r->kept[i]->data;
    return r->own_bytes[i] > 0 && !sums_rows(r, i) ? m->data + r->own_at[i] : NULL;
}

/* ---- operands of a matrix */

/* Of the matrix that row `row` is of; the left one from that row on. */
static opq_matrix operand_of(const block_run *r, int i, int o, int64_t row)
{
    opq_matrix matrix;
    opq_run_operand(r->run, product_of(r, i), o, row / rows_of(r, i), row % rows_of(r, i), &matrix);
    matrix.batch_stride = 0;
    return matrix;
}

#define ISA __attribute__((target("avx2,f16c")))

/* Eight elements as f32. */
ISA static inline __m256i load(const void *x, opq_dtype dtype)
{
    if (dtype == OPQ_f32)
        return _mm256_loadu_si256(x);
    __m128i half = _mm_loadu_si128(x);
    return dtype == OPQ_f16 ? _mm256_castps_si256(_mm256_cvtph_ps(half))
                            : _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

/* Of elements side by side, in the order of the magnitudes. */
ISA static int32_t largest_bits(const char *x, opq_dtype dtype, int64_t count)
{
    enum { LANES = 8 };
    const __m256i magnitude = _mm256_set1_epi32(INT32_MAX);
    __m256i found = _mm256_setzero_si256();
    int32_t lane[LANES] = {0}, largest = 0;
    int64_t bytes = opq_dtype_bytes(dtype);
    for (; count >= LANES; count -= LANES, x += LANES * bytes)
        found = _mm256_max_epi32(found, _mm256_and_si256(load(x, dtype), magnitude));
    memcpy(lane, x, (size_t)(count * bytes));
    found = _mm256_max_epi32(found, _mm256_and_si256(load(lane, dtype), magnitude));
    _mm256_storeu_si256((__m256i *)lane, found);
    for (int l = 0; l < LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

/* Magnitude; infinity for NaN, too, and for what is no float of at most 32 bits in rows and columns. */
static float largest_of(const opq_matrix *x, int64_t rows, int64_t columns)
{
    const int32_t infinity = 0x7f800000;
    bool turned = x->column_stride != 1, known = x->dtype == OPQ_f32 || opq_dtype_is_half(x->dtype);
    int64_t lines = turned ? columns : rows, length = turned ? rows : columns;
    int64_t line_stride = turned ? x->column_stride : x->row_stride, stride = turned ? x->row_stride : 1;
    int64_t runs = stride == 1 ? 1 : length; /* of a line: all of it, or an element */
    int32_t found = known && !x->rows && !x->columns ? 0 : infinity;
    float largest;
    for (int64_t i = 0; i < lines * runs && found < infinity; i++) {
        const char *run =
            (const char *)x->data + (i / runs * line_stride + i % runs * stride) * opq_dtype_bytes(x->dtype);
        int32_t bits = largest_bits(run, x->dtype, length / runs);
        found = bits > found ? bits : found;
    }
    found = found < infinity ? found : infinity;
    memcpy(&largest, &found, sizeof largest);
    return largest;
}

/* Must all columns be computed of this matrix? */
static bool needs_all(const block_run *r, int64_t first_row)
{
    for (int i = 0; i < product_count(r); i++) {
        const opq_contract *c = contract_of(r, i);
        opq_matrix right = operand_of(r, i, 1, first_row), left;
        float largest = 0;
        if (i >= r->block->first_count || r->block->sampled)
            largest = largest_of(&right, c->k, c->n);
        if (i < r->block->first_count && r->block->sampled) {
            left = operand_of(r, i, 0, first_row);
            largest *= largest_of(&left, r->matrix_rows, c->k) * (float)c->k;
            if (!(largest < FAR_FROM_OVERFLOW)) /* NaN: infinity times 0 */
                return true;
        }
        if (!(largest <= LARGEST_BF16)) /* an infinity, or rounded to it */
            return true;
    }
    return false;
}

/* Begins a matrix. */
static opq_status begin_matrix(const block_run *r, memory *m, int64_t first_row)
{
    m->full = r->causal && needs_all(r, first_row);
    for (int i = 0; i < product_count(r); i++) {
        const opq_matmul_step *product = product_of(r, i)->matmul;
        opq_matrix right = operand_of(r, i, 1, first_row);
        if (sums_rows(r, i))
            memset(m->data + r->own_at[i], 0, (size_t)r->own_bytes[i]);
        else if (r->own_bytes[i] > 0)
            OPQ_TRY(opq_gemm_pack_b(r->run->runtime->gemm, packed_name(r, i), &right, product->contract.k,
                                    product->contract.n, m->data + r->own_at[i]));
    }
    return OPQ_OK;
}

/* ---- rows */

/* Pointer to what is kept of the rows from `row` on, as if all rows were there. */
static void *shifted(void *kept, int64_t row, int64_t row_bytes)
{
    return (void *)((uintptr_t)kept - (uintptr_t)(row * row_bytes));
}

static void place_locals(const block_run *r, const opq_step *part, const memory *m, int64_t row, void **buffers)
{
    for (int i = 0; i < part->loops.buffer_count; i++) {
        int local = -2 - part->buffers[i];
        if (local >= 0 && local < r->block->local_count) /* elements of up to 8 bytes, each by its own */
            buffers[i] = shifted(m->data + r->locals_at + local * r->local_bytes, row,
                                 opq_dtype_bytes(opq_loops_buffer_dtype(&part->loops, i)));
    }
}

enum { DIMS_MAX = OPQ_LOOP_MAX + OPQ_ACCESS_MAX * (OPQ_LOOP_MAX + 3) };

static void run_rows(block_run *r, const memory *m, int64_t row, int64_t rows, int64_t columns)
{
    const opq_block *block = r->block;
    const opq_step *part = &r->step->parts[0];
    void *buffers[OPQ_BUFFER_MAX];
    int64_t row_bytes = block->row_stride * (int64_t)sizeof(float), dims[DIMS_MAX];
    memcpy(dims, part->dims, (size_t)opq_loops_dims_count(&part->loops) * sizeof *dims);
    dims[part->loops.rank - 1] = columns;
    memcpy(buffers, r->buffers, (size_t)part->loops.buffer_count * sizeof *buffers);
    place_locals(r, part, m, row, buffers);
    for (int i = 0; i < block->matrix_count; i++)
        buffers[block->matrix[i].buffer] = shifted(matrix_of(r, m, i), row, row_bytes);
    opq_run_code(part, buffers, dims, r->scalars, row, row + rows, r->error);
}

/* Is the element right of the diagonal 0 in each row, of all that is taken? */
static bool sample_is_zero(const block_run *r, const memory *m, int64_t row, int64_t rows)
{
    for (int t = 0; t < r->block->second_count; t++)
        for (int64_t i = 0; i < rows; i++) {
            int64_t column = row % r->matrix_rows + i + 1;
            if (column < r->block->columns &&
                taken_by(r, m, r->block->first_count + t)[i * r->block->row_stride + column] != 0)
                return false;
        }
    return true;
}

/* ---- products */

static opq_gemm_call call_of(const block_run *r, int i, const memory *m, int64_t row, int64_t rows)
{
    const opq_contract *c = contract_of(r, i);
    return (opq_gemm_call){.dtype = product_of(r, i)->matmul->dtype,
                           .pairs = c->pairs,
                           .batch = 1,
                           .m = rows,
                           .n = c->n,
                           .k = c->k,
                           .b = operand_of(r, i, 1, row),
                           .packed_b = packed_for(r, m, i),
                           .packed_k = c->k,
                           .serial = r->serial};
}

static opq_status make(const block_run *r, const memory *m, int i, int64_t row, int64_t rows, int64_t columns)
{
    opq_gemm_call call = call_of(r, i, m, row, rows);
    call.n = columns;
    call.a = operand_of(r, i, 0, row);
    call.c = matrix_of(r, m, i);
    call.c_row_stride = r->block->row_stride;
    return opq_gemm_run(r->run->runtime->gemm, &call);
}

static opq_status take(block_run *r, const memory *m, int i, int64_t row, int64_t rows, int64_t columns)
{
    opq_gemm_call call = call_of(r, i, m, row, rows);
    opq_tiles tiles = r->tiles[i - r->block->first_count];
    call.a =
        (opq_matrix){.data = taken_by(r, m, i), .row_stride = r->block->row_stride, .column_stride = 1, .dtype = OPQ_f32};
    call.k = columns;
    if (sums_rows(r, i)) {
        call.a.column_stride = call.a.row_stride;
        call.a.row_stride = 1;
        opq_matrix_skip(&call.b, row % r->matrix_rows);
        call.m = columns;
        call.k = rows;
        call.c = m->data + r->own_at[i];
        call.c_row_stride = call.n;
        call.accumulate = true;
        return opq_gemm_run(r->run->runtime->gemm, &call);
    }
    place_locals(r, product_of(r, i), m, row, tiles.buffers);
    tiles.first_batch = row / rows_of(r, i);
    tiles.first_row = row % rows_of(r, i);
    call.tile = opq_run_tile;
    call.tile_data = &tiles;
    return opq_gemm_run(r->run->runtime->gemm, &call);
}

static opq_status run_one(block_run *r, const memory *m, int64_t row, int64_t rows)
{
    int first = r->block->first_count;
    int64_t all = r->block->columns, columns = all;
    if (r->causal && !m->full) /* and one more: the sample */
        columns = gemm_min(gemm_ceil(row % r->matrix_rows + rows + r->block->sampled, 16) * 16, all);
    for (bool done = false; !done;) {
        for (int i = 0; i < first; i++)
            OPQ_TRY(make(r, m, i, row, rows, columns));
        run_rows(r, m, row, rows, columns);
        done = columns == all || !r->block->sampled || sample_is_zero(r, m, row, rows);
        columns = done ? columns : all;
    }
    for (int i = first; i < product_count(r); i++)
        OPQ_TRY(take(r, m, i, row, rows, columns));
    return OPQ_OK;
}

/* Epilogues of what was summed over the rows of a matrix. */
static void end_matrix(block_run *r, const memory *m, int64_t first_row)
{
    int64_t rows = numbers_of(r)->epilogue_rows;
    for (int i = r->block->first_count; i < product_count(r); i++) {
        const opq_contract *c = contract_of(r, i);
        const float *sums = (const float *)(m->data + r->own_at[i]);
        for (int64_t at = 0; at < c->m && sums_rows(r, i); at += rows)
            opq_run_tile(&r->tiles[i - r->block->first_count], first_row / r->matrix_rows, at,
                         gemm_min(rows, c->m - at), 0, c->n, sums + at * c->n, c->n);
    }
}

/* Blocks [at, end) of a matrix. */
static opq_status run_blocks(block_run *r, memory *m, int64_t first_row, int64_t at, int64_t end, bool begins)
{
    if (begins)
        OPQ_TRY(begin_matrix(r, m, first_row));
    for (; at < end; at++) {
        int64_t row = at * r->rows;
        OPQ_TRY(run_one(r, m, first_row + row, gemm_min(r->rows, r->matrix_rows - row)));
    }
    if (r->block->sums)
        end_matrix(r, m, first_row);
    return OPQ_OK;
}

/* A unit is a block; a matrix, if anything is summed over its rows. */
static void run_units(void *data, int64_t begin, int64_t end)
{
    block_run *r = data;
    memory m = {.data = gemm_scratch_acquire(0, r->bytes)};
    opq_status status = m.data ? OPQ_OK : OPQ_NO_MEMORY;
    int64_t count = r->block->sums ? r->blocks : 1;
    for (int64_t i = begin; i < end && status == OPQ_OK; i++) {
        int64_t first = i * count, at = first % r->blocks;
        status = run_blocks(r, &m, first / r->blocks * r->matrix_rows, at, at + count, i == begin || at == 0);
    }
    if (m.data)
        gemm_scratch_release(0, m.data);
    int none = OPQ_OK;
    if (status != OPQ_OK)
        atomic_compare_exchange_strong(&r->status, &none, (int)status);
}

/* ---- the step */

static void find_blocks(block_run *r)
{
    const opq_block *block = r->block;
    const opq_target_block *t = numbers_of(r);
    int64_t row_bytes = block->row_stride * (int64_t)sizeof(float);
    r->matrix_rows = INT64_MAX;
    for (int i = 0; i < product_count(r); i++)
        r->matrix_rows = gemm_min(r->matrix_rows, rows_of(r, i));
    r->causal = block->causal == r->matrix_rows;
    int64_t most = t->cache_bytes / (row_bytes * (block->place_count > 1 && block->sums ? block->place_count : 1));
    most = most < t->rows_min ? t->rows_min : gemm_min(most, r->causal ? t->causal_rows_max : t->rows_max);
    int64_t step = 1; /* of the rule of sums over rows: those of a block go on with whole ones */
    for (int i = 0; i < product_count(r); i++)
        step = sums_rows(r, i) && 2 * contract_of(r, i)->pairs > step ? 2 * contract_of(r, i)->pairs : step;
    r->rows = gemm_ceil(gemm_ceil(r->matrix_rows, gemm_ceil(r->matrix_rows, most)), step) * step;
    r->blocks = gemm_ceil(r->matrix_rows, r->rows);
    r->matrix_bytes = gemm_lines(r->rows * row_bytes);
    r->local_bytes = gemm_lines(r->rows * 8);
}

static void divide_memory(block_run *r)
{
    r->locals_at = r->block->place_count * r->matrix_bytes;
    r->bytes = r->locals_at + r->block->local_count * r->local_bytes;
    for (int i = 0; i < product_count(r); i++) {
        const opq_contract *c = contract_of(r, i);
        int64_t bytes = 0;
        if (sums_rows(r, i))
            bytes = c->m * c->n * (int64_t)sizeof(float);
        else if (r->kept[i] == NULL && r->blocks > 1)
            bytes = opq_gemm_packed_bytes(r->run->runtime->gemm, packed_name(r, i), c->k, c->n);
        r->own_at[i] = r->bytes;
        r->own_bytes[i] = gemm_lines(bytes);
        r->bytes += r->own_bytes[i];
    }
}

opq_status opq_run_block(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    block_run r = {.run = run, .step = step, .block = step->block, .error = error};
    for (int i = 0; i < step->block->second_count; i++) {
        const opq_step *second = product_of(&r, step->block->first_count + i);
        r.tiles[i] = (opq_tiles){.step = second, .error = error};
        opq_run_bind(run, second, r.tiles[i].buffers, r.tiles[i].scalars);
    }
    opq_run_bind(run, &step->parts[0], r.buffers, r.scalars);
    for (int i = 0; i < product_count(&r); i++)
        r.kept[i] = sums_rows(&r, i) ? NULL : opq_run_packed_operand(run, product_of(&r, i), 1, NULL);
    find_blocks(&r);
    divide_memory(&r);
    int64_t matrices = r.block->count / r.matrix_rows, units = matrices * (r.block->sums ? 1 : r.blocks);
    r.serial = units > 1;
    opq_parallel_for(run->runtime->host, units, 1, run_units, &r);
    for (int i = 0; i < product_count(&r); i++)
        opq_buffer_release(r.kept[i]);
    opq_status status = (opq_status)atomic_load(&r.status);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s: a block could not be computed", step->name);
}
