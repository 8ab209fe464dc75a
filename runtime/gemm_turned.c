/* The transposed product: of one column, where each vector would hold one useful element; where a copy of the left operand was made for
 * it; and where the right operand is a window, which is read in place as a left one (gemm_window.c). What it gives is turned back tile by tile.
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_isa.h"

typedef struct turned_call {
    const opq_gemm_call *call;
    const struct opq_cpu *cpu;
} turned_call;

static void turned_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                        const void *tile, int64_t ld)
{
    const turned_call *t = data;
    const opq_gemm_call *call = t->call;
    _Alignas(64) char turned[OPQ_TURNED_BYTES];
    const opq_gemm_isa *isa = gemm_isa(t->cpu);
    int bytes = opq_dtype_bytes(call->dtype);
    int64_t most = OPQ_TURNED_BYTES / bytes / columns / 16 * 16;
    if (!call->tile) {
        char *c = (char *)call->c + (batch * call->c_batch_stride + column * call->c_row_stride + row) * bytes;
        isa->turn(&t->cpu->target->gemm, bytes, tile, ld, rows, columns, c, call->c_row_stride);
    } else if (rows == 1) {
        call->tile(call->tile_data, batch, column, columns, row, 1, tile, 1);
    } else {
        for (int64_t i = 0; i < rows; i += most) {
            int64_t count = gemm_min(most, rows - i);
            isa->turn(&t->cpu->target->gemm, bytes, (const char *)tile + i * ld * bytes, ld, count, columns, turned,
                      count);
            call->tile(call->tile_data, batch, column, columns, row + i, count, turned, count);
        }
    }
}

opq_matrix gemm_transposed(const opq_matrix *m)
{
    opq_matrix turned = *m;
    turned.row_stride = m->column_stride;
    turned.column_stride = m->row_stride;
    turned.rows = m->columns;
    turned.columns = m->rows;
    return turned;
}

/* The right operand is a window as a left one; and so may be the left one: then the smaller one is packed. */
static bool has_window_right(const opq_gemm_call *call)
{
    opq_dtype lies = gemm_as_it_lies(call);
    opq_matrix right = gemm_transposed(&call->b);
    bool smaller = call->n < call->m && !call->a.padded && !call->b.padded;
    return gemm_is_window(lies, &right, call->m) && !(smaller && gemm_is_window(lies, &call->a, call->n));
}

bool gemm_is_turned(const opq_gemm_call *call)
{
    bool can = !call->accumulate && !call->packed_a && !call->packed_b;
    return call->turned || (can && ((call->n == 1 && call->m > 1) || has_window_right(call)));
}

opq_status gemm_run_turned(opq_gemm *gemm, const struct opq_cpu *cpu, const opq_gemm_call *call)
{
    opq_gemm_call turned = *call;
    turned_call data = {call, cpu};
    turned.m = call->n;
    turned.n = call->m;
    turned.a = gemm_transposed(&call->b);
    turned.b = gemm_transposed(&call->a);
    turned.packed_a = NULL;
    turned.packed_b = call->packed_a;
    turned.packed_k = 0;
    turned.c_row_stride = call->m;
    if (call->tile || call->n > 1 || call->c_row_stride != 1) {
        turned.tile = turned_tile;
        turned.tile_data = &data;
    }
    return gemm_run_regions(gemm, &turned, 1);
}
