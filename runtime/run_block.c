/* A block step: some rows at a time through product, row kernel and product, while they are in cache.
 *
 * The row kernel and the epilogue were made for whole tensors. What stays in cache is found at the same indices: their pointers are moved
 * back by the rows before.
 */
#include "runtime/gemm_internal.h"
#include "runtime/parallel.h"
#include "runtime/run.h"

#include <string.h>

enum { CACHE_BYTES = 384 << 10, ROWS_MIN = 16, ROWS_MAX = 256, ROWS_CAUSAL_MAX = 64 };

typedef struct block_run {
    const opq_run_state *run;
    const opq_block *block;
    opq_tiles tiles;
    void *buffers[OPQ_BUFFER_MAX]; /* of the rows */
    opq_number scalars[OPQ_SCALAR_MAX];
    int64_t matrix_rows, block_rows, blocks; /* rows of a matrix that both products have; of a block; blocks of a matrix */
    int64_t packed_bytes[2]; /* right operands, packed once for all blocks of a matrix; 0: as they are */
    int64_t weights_bytes, local_bytes, rows_scratch;
    bool serial, causal;
    atomic_int status;
} block_run;

static const opq_step *product_of(const block_run *r, int which)
{
    return which == 0 ? r->block->first : r->block->second;
}

static int64_t round_up(int64_t bytes) { return gemm_ceil(bytes, 64) * 64; }

/* Memory of one thread. */
typedef struct memory {
    char *scores, *weights, *local, *packed[2], *end;
    bool full; /* a right operand of this matrix has an infinity or NaN, which times 0 is not nothing */
} memory;

static memory divide(const block_run *r, char *start)
{
    memory m = {.scores = start};
    m.weights = r->block->in_place ? start : start + r->weights_bytes;
    m.local = m.weights + r->weights_bytes;
    m.packed[0] = m.local + r->block->local_count * r->local_bytes;
    m.packed[1] = m.packed[0] + r->packed_bytes[0];
    m.end = m.packed[1] + r->packed_bytes[1];
    return m;
}

static opq_matrix operand_at(const block_run *r, const opq_step *product, int o, int64_t batch, int64_t row)
{
    opq_matrix matrix;
    opq_run_operand(r->run, product, o, batch, row, &matrix);
    matrix.batch_stride = 0;
    return matrix;
}

static bool is_finite(const opq_matrix *x, int64_t rows, int64_t columns)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            uint32_t bits;
            memcpy(&bits, (const float *)x->data + i * x->row_stride + j * x->column_stride, sizeof bits);
            found |= (bits & 0x7f800000) == 0x7f800000;
        }
    return found == 0;
}

/* Begins a matrix. */
static opq_status pack(const block_run *r, memory *m, int64_t first_row)
{
    for (int i = 0; i < 2; i++) {
        const opq_step *product = product_of(r, i);
        const opq_contract *c = &product->matmul->contract;
        opq_matrix right = operand_at(r, product, 1, first_row / c->m, 0);
        if (i == 1 && r->causal)
            m->full = right.dtype != OPQ_f32 || !is_finite(&right, c->k, c->n);
        if (r->packed_bytes[i] > 0)
            OPQ_TRY(opq_gemm_pack_b(r->run->runtime->gemm, product->matmul->dtype, &right, c->k, c->n, m->packed[i]));
    }
    return OPQ_OK;
}

static opq_gemm_call call_of(const block_run *r, int which, const memory *m, int64_t row, int64_t rows)
{
    const opq_step *product = product_of(r, which);
    const opq_contract *c = &product->matmul->contract;
    opq_gemm_call call = {.dtype = product->matmul->dtype,
                          .batch = 1,
                          .m = rows,
                          .n = c->n,
                          .k = c->k,
                          .b = operand_at(r, product, 1, row / c->m, 0),
                          .packed_b = r->packed_bytes[which] ? m->packed[which] : NULL,
                          .packed_k = c->k,
                          .serial = r->serial};
    return call;
}

/* Pointer to what is kept of the rows from `row` on, as if all rows were there. */
static void *shifted(char *kept, int64_t row, int64_t row_bytes)
{
    return (void *)((uintptr_t)kept - (uintptr_t)(row * row_bytes));
}

static void place_locals(const block_run *r, const opq_step *step, const memory *m, int64_t row, void **buffers)
{
    for (int i = 0; i < step->loops.buffer_count; i++) {
        int local = -2 - step->buffers[i];
        if (local >= 0 && local < r->block->local_count) /* elements of up to 8 bytes, each by its own */
            buffers[i] = shifted(m->local + local * r->local_bytes, row,
                                 opq_dtype_bytes(opq_loops_buffer_dtype(&step->loops, i)));
    }
}

enum { DIMS_MAX = OPQ_LOOP_MAX + OPQ_ACCESS_MAX * (OPQ_LOOP_MAX + 3) };

static void run_rows(block_run *r, const memory *m, int64_t row, int64_t rows, int64_t columns)
{
    const opq_block *block = r->block;
    const opq_step *step = block->rows;
    void *buffers[OPQ_BUFFER_MAX];
    int64_t row_bytes = block->row_stride * (int64_t)sizeof(float), found[2] = {0, 0}, dims[DIMS_MAX];
    memcpy(dims, step->dims, (size_t)opq_loops_dims_count(&step->loops) * sizeof *dims);
    dims[step->loops.rank - 1] = columns;
    memcpy(buffers, r->buffers, (size_t)step->loops.buffer_count * sizeof *buffers);
    place_locals(r, step, m, row, buffers);
    buffers[block->scores] = shifted(m->scores, row, row_bytes);
    buffers[block->weights] = shifted(m->weights, row, row_bytes);
    void *scratch = r->rows_scratch ? opq_thread_scratch((size_t)r->rows_scratch) : NULL;
    if (r->rows_scratch && scratch == NULL)
        found[0] = -1;
    else
        step->code->fn(buffers, dims, r->scalars, row, row + rows, scratch, found);
    opq_step_error_add(r->tiles.error, found);
}

static opq_status run_one(block_run *r, const memory *m, int64_t row, int64_t rows)
{
    int64_t first_m = r->block->first->matmul->contract.m, second_m = r->block->second->matmul->contract.m;
    opq_gemm *gemm = r->run->runtime->gemm;
    int64_t columns = r->block->columns;
    if (r->causal && !m->full)
        columns = gemm_min(gemm_ceil(row % r->matrix_rows + rows, 16) * 16, columns);
    opq_gemm_call call = call_of(r, 0, m, row, rows);
    call.n = columns;
    call.a = operand_at(r, r->block->first, 0, row / first_m, row % first_m);
    call.c = m->scores;
    call.c_row_stride = r->block->row_stride;
    OPQ_TRY(opq_gemm_run(gemm, &call));
    run_rows(r, m, row, rows, columns);
    opq_tiles tiles = r->tiles;
    place_locals(r, r->block->second, m, row, tiles.buffers);
    tiles.first_batch = row / second_m;
    tiles.first_row = row % second_m;
    call = call_of(r, 1, m, row, rows);
    call.k = columns;
    call.a = (opq_matrix){.data = m->weights, .row_stride = r->block->row_stride, .column_stride = 1, .dtype = OPQ_f32};
    call.tile = opq_run_tile;
    call.tile_data = &tiles;
    return opq_gemm_run(gemm, &call);
}

static void run_blocks(void *data, int64_t begin, int64_t end)
{
    block_run *r = data;
    char *scratch = gemm_scratch_acquire(0, divide(r, NULL).end - (char *)NULL);
    opq_status status = scratch ? OPQ_OK : OPQ_NO_MEMORY;
    memory m = divide(r, scratch);
    for (int64_t i = begin; i < end && status == OPQ_OK; i++) {
        int64_t first = i / r->blocks * r->matrix_rows, at = i % r->blocks;
        int64_t row = at * r->matrix_rows / r->blocks, to = (at + 1) * r->matrix_rows / r->blocks;
        if (i == begin || at == 0)
            status = pack(r, &m, first);
        if (status == OPQ_OK)
            status = run_one(r, &m, first + row, to - row);
    }
    if (scratch)
        gemm_scratch_release(0, scratch);
    int none = OPQ_OK;
    if (status != OPQ_OK)
        atomic_compare_exchange_strong(&r->status, &none, (int)status);
}

static void plan(block_run *r)
{
    int64_t row_bytes = r->block->row_stride * (int64_t)sizeof(float);
    r->matrix_rows = gemm_min(product_of(r, 0)->matmul->contract.m, product_of(r, 1)->matmul->contract.m);
    r->causal = r->block->causal == r->matrix_rows;
    int64_t most = CACHE_BYTES / row_bytes;
    most = most < ROWS_MIN ? ROWS_MIN : gemm_min(most, r->causal ? ROWS_CAUSAL_MAX : ROWS_MAX);
    r->blocks = gemm_ceil(r->matrix_rows, most);
    r->block_rows = gemm_ceil(r->matrix_rows, r->blocks);
    for (int i = 0; i < 2 && r->blocks > 1; i++) {
        const opq_matmul_step *product = product_of(r, i)->matmul;
        r->packed_bytes[i] = round_up(
            opq_gemm_packed_bytes(r->run->runtime->gemm, product->dtype, product->contract.k, product->contract.n));
    }
    r->weights_bytes = round_up(r->block_rows * row_bytes);
    r->local_bytes = round_up(r->block_rows * 8);
}

opq_status opq_run_block(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    const opq_step *rows = step->block->rows;
    const opq_step *second = step->block->second;
    const opq_contract *c = &second->matmul->contract;
    block_run r = {.run = run,
                   .block = step->block,
                   .tiles = {.step = second, .error = error, .scratch = opq_loops_scratch(&c->epilogue, c->dims)},
                   .rows_scratch = opq_loops_scratch(&rows->loops, rows->dims)};
    opq_run_bind(run, second, r.tiles.buffers, r.tiles.scalars);
    opq_run_bind(run, rows, r.buffers, r.scalars);
    plan(&r);
    int64_t units = r.block->count / r.matrix_rows * r.blocks;
    r.serial = units > 1;
    opq_parallel_for(run->runtime->host, units, 1, run_blocks, &r);
    opq_status status = (opq_status)atomic_load(&r.status);
    return status == OPQ_OK ? OPQ_OK : opq_fail(status, "%s: a block could not be computed", step->name);
}
