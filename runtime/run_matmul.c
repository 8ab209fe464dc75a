/* A matmul step: the engine makes tiles, the epilogue turns each into results while it is in L1.
 *
 * The epilogue runs over loops [m, n] and reads the product through an access to buffer `tile`. For each tile its offsets move to the
 * tile's corner and that access becomes the tile itself; nothing is compiled per size. An operand that comes back unchanged (a
 * weight) is packed at its second use and kept with its buffer: packed.h.
 */
#include "fusion/target.h"
#include "runtime/run.h"

#include <stdlib.h>
#include <string.h>

/* Of a kernel over [m, n]: see opq_loops_dims_count. */
enum { TILE_RANK = 2, DIMS_MAX = TILE_RANK + OPQ_ACCESS_MAX * (TILE_RANK + 3) };

void opq_run_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  const void *tile, int64_t ld)
{
    const opq_tiles *t = data;
    const opq_contract *contract = &t->step->matmul->contract;
    const opq_loops *loops = &contract->epilogue;
    int64_t dims[DIMS_MAX], index[OPQ_LOOP_MAX];
    void *buffers[OPQ_BUFFER_MAX];
    memcpy(dims, contract->dims, (size_t)opq_loops_dims_count(loops) * sizeof *dims);
    memcpy(buffers, t->buffers, (size_t)loops->buffer_count * sizeof *buffers);
    batch += t->first_batch;
    row += t->first_row;
    for (int i = contract->batch_rank - 1; i >= 0; i--) {
        index[i] = batch % contract->batch_extent[i];
        batch /= contract->batch_extent[i];
    }
    dims[0] = rows;
    dims[1] = columns;
    for (int a = 0; a < loops->access_count; a++) {
        int64_t *access = dims + opq_dims_of(TILE_RANK, a);
        if (loops->accesses[a].buffer == contract->tile) {
            access[0] = 0;
            access[1] = ld;
            access[2] = 1;
            continue;
        }
        access[0] += row * access[1] + column * access[2];
        for (int i = 0; i < contract->batch_rank; i++)
            access[0] += index[i] * contract->batch_strides[a * contract->batch_rank + i];
    }
    buffers[contract->tile] = (void *)tile;
    opq_run_code(t->step, buffers, dims, t->scalars, 0, opq_loops_units(loops, dims), t->error);
}

void opq_run_operand(const opq_run_state *run, const opq_step *step, int o, int64_t batch, int64_t row,
                     opq_matrix *out_matrix)
{
    const opq_matmul_step *matmul = step->matmul;
    *out_matrix = matmul->matrix[o];
    int64_t offset = matmul->contract.operand[o].offset, rest = 0;
    if (batch > 0) {
        offset += batch % matmul->batch * out_matrix->batch_stride;
        rest = batch / matmul->batch;
    }
    for (int i = matmul->outer_rank - 1; i >= 0 && rest > 0; i--) {
        offset += rest % matmul->outer_extent[i] * matmul->outer_stride[o][i];
        rest /= matmul->outer_extent[i];
    }
    const char *data = opq_run_data(run, step->buffers[matmul->contract.operand[o].buffer]);
    out_matrix->data = data + offset * opq_dtype_bytes(out_matrix->dtype);
    if (o == 0 && row > 0)
        opq_matrix_skip(out_matrix, row);
}

static int64_t element_count(const opq_matmul_step *matmul, int o)
{
    return matmul->contract.k * (o == 0 ? matmul->contract.m : matmul->contract.n);
}

/* May be worth keeping packed: an operand that every batch shares, not small, a window of a buffer that outlives the run, and not blown
 * up by a stride of 0. */
static bool worth_packing(const opq_matmul_step *matmul, int o, const opq_storage *storage)
{
    const opq_matrix *x = &matmul->matrix[o];
    int64_t count = element_count(matmul, o);
    return count >= opq_runs.packed_count_min && !x->rows && !x->columns && storage->home == OPQ_HOME_input &&
           (matmul->batch == 1 || x->batch_stride == 0) && matmul->outer_rank == 0 &&
           count * opq_dtype_bytes(x->dtype) <= storage->bytes;
}

bool opq_step_reads_once(const opq_plan *plan, const opq_step *step, int o)
{
    const opq_contract *c = &step->matmul->contract;
    return (o == 0 ? c->n : c->m) == 1 && plan->input_bytes > opq_runs.near_input_bytes &&
           step->matmul->matrix[o].dtype != OPQ_i8; /* what packing turns takes longer than memory */
}

/* Of copies that would take so many bytes. */
static bool may_pack(const opq_packed_key *key, int64_t bytes)
{
    int64_t count = key->rows * key->columns; /* rows of whole panels */
    return bytes > 0 && bytes <= opq_runs.packed_times * count * opq_dtype_bytes(key->to);
}

opq_status opq_pack(opq_gemm *gemm, const opq_packed_key *key, const void *data, void *out)
{
    opq_matrix from = {.data = (const char *)data + key->offset * opq_dtype_bytes(key->from),
                       .row_stride = key->row_stride,
                       .column_stride = key->column_stride,
                       .dtype = key->from};
    return key->left ? opq_gemm_pack_a(gemm, key->to, &from, key->rows, key->columns, key->turned, out)
                     : opq_gemm_pack_b(gemm, key->to, &from, key->rows, key->columns, out);
}

opq_buffer *opq_run_packed(const opq_run_state *run, int32_t id, const opq_packed_key *key, int64_t bytes, bool in_run)
{
    if (!may_pack(key, bytes))
        return NULL;
    opq_buffer *buffer = opq_run_buffer(run, id);
    opq_packed_key of = *key; /* in the buffer */
    of.offset += opq_run_first(run, id) / opq_dtype_bytes(key->from);
    bool wanted;
    opq_buffer *packed = opq_packed_find(buffer, &of, bytes, in_run, &wanted);
    if (!wanted || opq_pool_cache_buffer(run->runtime->pool, (size_t)bytes, &packed) != OPQ_OK)
        return packed;
    if (opq_pack(run->runtime->gemm, &of, buffer->data, packed->data) != OPQ_OK) {
        opq_buffer_release(packed);
        return NULL;
    }
    opq_packed_keep(buffer, &of, packed);
    return packed;
}

int64_t opq_step_packed(const opq_gemm *gemm, const opq_plan *plan, const opq_step *step, int o, opq_packed_key *out_key)
{
    const opq_matmul_step *matmul = step->matmul;
    const opq_contract *c = &matmul->contract;
    const opq_matrix *x = &matmul->matrix[o];
    opq_dtype to = opq_gemm_packed_name(matmul->dtype, c->pairs);
    bool left = o == 0, turned = false;
    if (x->dtype == OPQ_i8 && to == OPQ_f32 && !left)
        to = OPQ_i8;
    if (x->dtype == OPQ_i8 && to != OPQ_i8 && to != OPQ_i32) /* it would be larger than what it is made of */
        return 0;
    if (!worth_packing(matmul, o, &plan->storage[step->buffers[c->operand[o].buffer]]))
        return 0;
    int64_t bytes = left ? opq_gemm_packed_left_bytes(gemm, to, &matmul->matrix[1], c->m, c->n, c->k, &turned)
                         : opq_gemm_packed_bytes(gemm, to, c->k, c->n);
    *out_key = (opq_packed_key){.from = x->dtype,
                                .to = to,
                                .left = left,
                                .turned = turned,
                                .rows = left ? c->m : c->k,
                                .columns = left ? c->k : c->n,
                                .offset = c->operand[o].offset,
                                .row_stride = x->row_stride,
                                .column_stride = x->column_stride};
    return may_pack(out_key, bytes) ? bytes : 0;
}

opq_buffer *opq_run_packed_operand(const opq_run_state *run, const opq_step *step, int o, bool *out_turned)
{
    opq_packed_key key;
    int64_t bytes = opq_step_packed(run->runtime->gemm, run->plan, step, o, &key);
    if (bytes == 0)
        return NULL;
    if (o == 0)
        *out_turned = key.turned;
    return opq_run_packed(run, step->buffers[step->matmul->contract.operand[o].buffer], &key, bytes,
                          opq_step_reads_once(run->plan, step, o));
}

/* The product itself is the result, with rows as the engine writes them: load of the tile, store, in two loops. */
static bool stores_plainly(const opq_matmul_step *matmul, int *out_access)
{
    const opq_loops *loops = &matmul->contract.epilogue;
    const opq_stmt *store = &loops->stmts[loops->stmt_count - 1];
    if (loops->stmt_count != TILE_RANK + 2 || store->op != OPQ_STMT_store)
        return false;
    *out_access = store->access;
    const opq_access *access = &loops->accesses[*out_access];
    return access->dtype == matmul->dtype && access->stride[1] != OPQ_STRIDE_any && matmul->contract.batch_rank <= 1;
}

/* The engine writes where the store would, from batch `first` on. */
static void write_plainly(const opq_tiles *t, int access, int64_t first, opq_gemm_call *call)
{
    const opq_contract *c = &t->step->matmul->contract;
    const int64_t *dims = c->dims + opq_dims_of(TILE_RANK, access);
    call->c_row_stride = dims[1] ? dims[1] : c->n;
    call->c_batch_stride = c->batch_rank ? c->batch_strides[access] : 0;
    call->c = (char *)t->buffers[c->epilogue.accesses[access].buffer] +
              (dims[0] + first * call->c_batch_stride) * opq_dtype_bytes(call->dtype);
}

/* A product while its step runs. */
typedef struct product {
    opq_tiles tiles;
    opq_gemm_call call;
    opq_buffer *left, *right; /* packed: references, or NULL */
    int64_t outer_count;
    int access; /* that the engine stores through, -1: the epilogue does */
} product;

/* alone: of several, which share the left operand, none has a packed copy of it. */
static void begin(const opq_run_state *run, const opq_step *step, bool alone, opq_step_error *error, product *out)
{
    const opq_matmul_step *matmul = step->matmul;
    const opq_contract *c = &matmul->contract;
    out->tiles.step = step; /* not all of it: its arrays are long */
    out->tiles.first_batch = out->tiles.first_row = 0;
    out->tiles.error = error;
    opq_run_bind(run, step, out->tiles.buffers, out->tiles.scalars);
    out->call = (opq_gemm_call){.dtype = matmul->dtype, .pairs = c->pairs, .batch = matmul->batch};
    out->call.m = c->m;
    out->call.n = c->n;
    out->call.k = c->k;
    bool turned = false;
    out->left = alone ? opq_run_packed_operand(run, step, 0, &turned) : NULL;
    out->call.packed_a = out->left ? out->left->data : NULL;
    out->call.turned = out->left && turned;
    out->right = out->call.turned ? NULL : opq_run_packed_operand(run, step, 1, NULL);
    out->call.packed_b = out->right ? out->right->data : NULL;
    out->outer_count = 1;
    for (int i = 0; i < matmul->outer_rank; i++)
        out->outer_count *= matmul->outer_extent[i];
    if (!stores_plainly(matmul, &out->access))
        out->access = -1;
}

static void end(const product *p)
{
    opq_buffer_release(p->left);
    opq_buffer_release(p->right);
}

/* The call number `outer`. */
static void aim(const opq_run_state *run, product *p, int64_t outer)
{
    const opq_step *step = p->tiles.step;
    p->tiles.first_batch = outer * step->matmul->batch;
    opq_run_operand(run, step, 0, p->tiles.first_batch, 0, &p->call.a);
    opq_run_operand(run, step, 1, p->tiles.first_batch, 0, &p->call.b);
    if (p->access >= 0) {
        write_plainly(&p->tiles, p->access, p->tiles.first_batch, &p->call);
    } else {
        p->call.tile = opq_run_tile;
        p->call.tile_data = &p->tiles;
    }
}

opq_status opq_run_matmul(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    product p;
    begin(run, step, true, error, &p);
    opq_status status = OPQ_OK;
    for (int64_t outer = 0; outer < p.outer_count && status == OPQ_OK; outer++) {
        aim(run, &p, outer);
        status = opq_gemm_run(run->runtime->gemm, &p.call);
    }
    end(&p);
    return status;
}

opq_status opq_run_products(const opq_run_state *run, const opq_step *step, opq_step_error *error)
{
    product of[OPQ_PRODUCTS_MAX];
    opq_gemm_call calls[OPQ_PRODUCTS_MAX];
    bool single = true; /* each is one call */
    opq_status status = OPQ_OK;
    for (int i = 0; i < step->part_count; i++) {
        begin(run, &step->parts[i], false, error, &of[i]);
        single = single && of[i].outer_count == 1;
    }
    for (int i = 0; i < step->part_count && single; i++) {
        aim(run, &of[i], 0);
        calls[i] = of[i].call;
    }
    if (single)
        status = opq_gemm_run_beside(run->runtime->gemm, calls, step->part_count);
    for (int i = 0; i < step->part_count; i++) {
        end(&of[i]);
        if (!single && status == OPQ_OK)
            status = opq_run_matmul(run, &step->parts[i], error);
    }
    return status;
}
