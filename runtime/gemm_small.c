/* Products so small that choosing how to cut and pack them takes longer than they do: both operands as they lie, one kernel after the
 * other, on this thread. Needs columns that fill whole vectors; all else goes the other way, to the same bits.
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"

static int lanes_of(const struct opq_cpu *cpu, opq_dtype dtype)
{
    return opq_gemm_vector_bytes(cpu) / opq_dtype_bytes(dtype);
}

bool gemm_is_small(const struct opq_cpu *cpu, const opq_gemm_call *call)
{
    const opq_target_gemm *t = &cpu->target->gemm;
    int64_t lanes = lanes_of(cpu, call->dtype), most = OPQ_GEMM_VECTORS_MAX * lanes;
    bool whole = call->n == lanes || (call->n <= most && call->n % (OPQ_GEMM_PANEL_VECTORS * lanes) == 0);
    opq_dtype dtype = gemm_as_it_lies(call);
    return whole && !call->packed_a && !call->packed_b && gemm_in_rows(&call->a, dtype) &&
           gemm_in_rows(&call->b, dtype) && call->k <= t->small_k && gemm_work(call) <= (double)t->small_work &&
           (!call->tile || call->m * call->n * opq_dtype_bytes(call->dtype) <= OPQ_SMALL_TILE_BYTES);
}

/* a, b and c of one matrix of the batch; c's rows are c_bytes apart. */
static opq_status run_matrix(opq_gemm *gemm, const struct opq_cpu *cpu, const opq_gemm_call *call, const char *a,
                             const char *b, char *c, int64_t c_bytes)
{
    int64_t bytes = opq_dtype_bytes(call->dtype), vector = opq_gemm_vector_bytes(cpu), width = call->n * bytes;
    int64_t a_bytes = call->a.row_stride * bytes, b_bytes = call->b.row_stride * bytes;
    int64_t tiles = gemm_ceil(call->m, cpu->target->gemm.rows_in_place), rows = call->m / tiles, longer = call->m % tiles;
    int64_t step = gemm_tile_vectors(cpu, longer ? rows + 1 : rows, width / vector) * vector;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t count = t < longer ? rows + 1 : rows;
        for (int64_t at = 0; at < width; at += step) {
            opq_gemm_kernel kernel;
            int vectors = (int)(gemm_min(step, width - at) / vector);
            OPQ_TRY(gemm_kernel_find(gemm, gemm_number(call->dtype), OPQ_GEMM_LEFT_ROWS, (int)count, vectors, &kernel));
            kernel(a, a_bytes, b + at, b_bytes, OPQ_GEMM_PANEL_VECTORS * vector, c + at, c_bytes, call->k,
                   call->accumulate, b, 0, NULL, NULL);
        }
        a += count * a_bytes;
        c += count * c_bytes;
    }
    return OPQ_OK;
}

opq_status gemm_run_small(opq_gemm *gemm, const struct opq_cpu *cpu, const opq_gemm_call *call)
{
    _Alignas(64) char tile[OPQ_SMALL_TILE_BYTES];
    int64_t bytes = opq_dtype_bytes(call->dtype), ld = call->tile ? call->n : call->c_row_stride;
    for (int64_t i = 0; i < call->batch; i++) {
        char *c = call->tile ? tile : (char *)call->c + i * call->c_batch_stride * bytes;
        OPQ_TRY(run_matrix(gemm, cpu, call, (const char *)call->a.data + i * call->a.batch_stride * bytes,
                           (const char *)call->b.data + i * call->b.batch_stride * bytes, c, ld * bytes));
        if (call->tile)
            call->tile(call->tile_data, i, 0, call->m, 0, call->n, tile, ld);
    }
    return OPQ_OK;
}
