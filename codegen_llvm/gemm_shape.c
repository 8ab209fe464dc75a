/* Which tiles fit the registers of a processor. */
#include "codegen_llvm/cpu.h"
#include "codegen_llvm/gemm_kernel.h"

int opq_gemm_vector_bytes(const opq_cpu *cpu) { return cpu->target->vector_bytes; }

int opq_gemm_rows_max(const opq_cpu *cpu, int vectors)
{
    int registers = cpu->target->vector_registers;
    if (vectors < 1 || vectors > OPQ_GEMM_VECTORS_MAX)
        return 0;
    int rows = (registers - 1 - vectors) / vectors;
    return rows < OPQ_GEMM_ROWS_MAX ? rows : OPQ_GEMM_ROWS_MAX;
}

static int rows_max(const opq_cpu *cpu, const opq_gemm_tile_shape *tile)
{
    int most = opq_gemm_rows_max(cpu, tile->vectors), in_place = (int)cpu->target->gemm.rows_in_place;
    if (tile->left >= OPQ_GEMM_LEFT_THREES)
        return tile->vectors > OPQ_GEMM_PANEL_VECTORS ? 0 : most;
    return tile->left != OPQ_GEMM_LEFT_PACKED && most > in_place ? in_place : most;
}

bool opq_gemm_next_tile(const opq_cpu *cpu, opq_gemm_tile_shape *tile)
{
    if (tile->vectors == 0)
        tile->vectors = 1;
    tile->rows++;
    while (tile->rows > rows_max(cpu, tile)) {
        tile->rows = 1;
        tile->vectors += 1 + (tile->vectors > 1);
        if (tile->vectors > OPQ_GEMM_VECTORS_MAX) {
            tile->vectors = 1;
            tile->left++;
        }
        if (tile->left == OPQ_GEMM_LEFTS)
            return false;
    }
    return true;
}
