/* A matmul step: the engine makes tiles, the kernel's body turns each into results while it is in L1.
 *
 * The body was lowered over loops [m, n] and reads the product through an access to buffer `tile`. For each tile its offsets move to the
 * tile's corner and that access becomes the tile itself; nothing is compiled per size. A right operand that comes back unchanged (a
 * weight) is packed at its second use and kept with its buffer.
 */
#include "runtime/run.h"

#include <stdlib.h>
#include <string.h>

/* Of a kernel over [m, n]: see opq_kernel_dims_count. */
enum { TILE_RANK = 2, DIMS_MAX = TILE_RANK + OPQ_ACCESS_MAX * (TILE_RANK + 3) };
static const int64_t PACKED_MAX = (int64_t)1 << 30;

typedef struct tiles {
    const opq_step *step;
    void *buffers[OPQ_BUFFER_MAX];
    opq_number scalars[OPQ_SCALAR_MAX];
    int64_t scratch, first_batch;
    int64_t *error;
} tiles;

static void run_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                     const void *tile, int64_t ld)
{
    const tiles *t = data;
    const opq_kernel *kernel = &t->step->kernel;
    const opq_matmul_step *matmul = t->step->matmul;
    int64_t dims[DIMS_MAX], index[OPQ_LOOP_MAX];
    void *buffers[OPQ_BUFFER_MAX];
    memcpy(dims, t->step->dims, (size_t)opq_kernel_dims_count(kernel) * sizeof *dims);
    memcpy(buffers, t->buffers, (size_t)kernel->buffer_count * sizeof *buffers);
    batch += t->first_batch;
    for (int i = matmul->batch_rank - 1; i >= 0; i--) {
        index[i] = batch % matmul->batch_extent[i];
        batch /= matmul->batch_extent[i];
    }
    dims[0] = rows;
    dims[1] = columns;
    for (int a = 0; a < kernel->access_count; a++) {
        int64_t *access = dims + opq_access_dims(kernel, a);
        if (kernel->accesses[a].buffer == matmul->tile) {
            access[0] = 0;
            access[1] = ld;
            access[2] = 1;
            continue;
        }
        access[0] += row * access[1] + column * access[2];
        for (int i = 0; i < matmul->batch_rank; i++)
            access[0] += index[i] * matmul->batch_strides[a * matmul->batch_rank + i];
    }
    buffers[matmul->tile] = (void *)tile;
    void *scratch = t->scratch ? opq_thread_scratch((size_t)t->scratch) : NULL;
    t->step->code->fn(buffers, dims, t->scalars, 0, opq_kernel_units(kernel, dims), scratch, t->error);
}

/* The packed form kept with the buffer, made at the second use; NULL to read the operand as it is. */
static const void *packed_right(const opq_run_state *run, const opq_matmul_step *matmul)
{
    opq_buffer *buffer = opq_run_buffer(run, matmul->operand[1]);
    const opq_matrix *b = &matmul->matrix[1];
    bool shared = run->plan->storage[matmul->operand[1]].home == OPQ_HOME_input &&
                  (matmul->batch == 1 || b->batch_stride == 0) && matmul->outer_rank == 0;
    if (!shared || matmul->k * matmul->n < 64 * 64)
        return NULL;
    for (opq_packed *packed = atomic_load(&buffer->packed); packed; packed = packed->next)
        if (packed->k == matmul->k && packed->n == matmul->n && packed->offset == matmul->offset[1] &&
            packed->row_stride == b->row_stride && packed->column_stride == b->column_stride &&
            packed->dtype == (int)matmul->dtype)
            return packed->memory->data;
    int64_t bytes = opq_gemm_packed_bytes(run->runtime->gemm, matmul->dtype, matmul->k, matmul->n);
    if (atomic_fetch_add(&buffer->matmul_uses, 1) < 1 || opq_pool_live(run->runtime->pool) + bytes > PACKED_MAX * 8 ||
        bytes > PACKED_MAX)
        return NULL;
    opq_packed *made = calloc(1, sizeof *made);
    opq_matrix from = *b;
    from.data = (const char *)buffer->data + matmul->offset[1] * opq_dtype_bytes(b->dtype);
    if (made == NULL || opq_pool_buffer(run->runtime->pool, (size_t)bytes, &made->memory) != OPQ_OK ||
        opq_gemm_pack_b(run->runtime->gemm, matmul->dtype, &from, matmul->k, matmul->n, made->memory->data) != OPQ_OK) {
        if (made)
            opq_buffer_release(made->memory);
        free(made);
        return NULL;
    }
    made->k = matmul->k;
    made->n = matmul->n;
    made->offset = matmul->offset[1];
    made->row_stride = b->row_stride;
    made->column_stride = b->column_stride;
    made->dtype = (int)matmul->dtype;
    made->next = atomic_load(&buffer->packed);
    while (!atomic_compare_exchange_weak(&buffer->packed, &made->next, made))
        ;
    return made->memory->data;
}

/* The product itself is the result, with rows as the engine writes them. */
static bool stores_plainly(const opq_step *step, int *out_access)
{
    const opq_kernel *kernel = &step->kernel;
    if (kernel->instr_count != 2 || kernel->instrs[1].op != OPQ_INSTR_store)
        return false;
    *out_access = kernel->instrs[1].access;
    const opq_access *access = &kernel->accesses[*out_access];
    return access->dtype == step->matmul->dtype && access->stride[1] != OPQ_STRIDE_any && step->matmul->batch_rank <= 1;
}

opq_status opq_run_matmul(const opq_run_state *run, const opq_step *step, int64_t *error)
{
    const opq_matmul_step *matmul = step->matmul;
    tiles t = {.step = step, .error = error, .scratch = opq_kernel_scratch(&step->kernel, step->dims)};
    opq_run_bind(run, step, t.buffers, t.scalars);
    opq_gemm_call call = {.dtype = matmul->dtype,
                          .batch = matmul->batch,
                          .m = matmul->m,
                          .n = matmul->n,
                          .k = matmul->k,
                          .a = matmul->matrix[0],
                          .b = matmul->matrix[1],
                          .packed_b = packed_right(run, matmul)};
    int64_t outer_count = 1;
    for (int i = 0; i < matmul->outer_rank; i++)
        outer_count *= matmul->outer_extent[i];
    int access = 0;
    bool plain = stores_plainly(step, &access);
    for (int64_t outer = 0; outer < outer_count; outer++) {
        const char *data[2];
        for (int k = 0; k < 2; k++) {
            int64_t offset = matmul->offset[k], rest = outer;
            for (int i = matmul->outer_rank - 1; i >= 0; i--) {
                offset += rest % matmul->outer_extent[i] * matmul->outer_stride[k][i];
                rest /= matmul->outer_extent[i];
            }
            data[k] =
                (const char *)opq_run_data(run, matmul->operand[k]) + offset * opq_dtype_bytes(matmul->matrix[k].dtype);
        }
        call.a.data = data[0];
        call.b.data = data[1];
        t.first_batch = outer * matmul->batch;
        if (plain) {
            const int64_t *dims = step->dims + opq_access_dims(&step->kernel, access);
            int64_t batch_stride = matmul->batch_rank ? matmul->batch_strides[access] : 0;
            call.c_row_stride = dims[1] ? dims[1] : matmul->n;
            call.c_batch_stride = batch_stride;
            call.c = (char *)t.buffers[step->kernel.accesses[access].buffer] +
                     (dims[0] + t.first_batch * batch_stride) * opq_dtype_bytes(matmul->dtype);
        } else {
            call.tile = run_tile;
            call.tile_data = &t;
        }
        OPQ_TRY(opq_gemm_run(run->runtime->gemm, &call));
    }
    return OPQ_OK;
}
