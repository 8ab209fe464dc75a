/* The matrix engine of a process: its tiles are those of the processor's target. */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_internal.h"

#include <stdlib.h>

static const struct {
    const opq_target *target;
    const opq_gemm_tiles *tiles[OPQ_GEMM_ELEMENTS];
} targets[] = {
#define X(name)                                                                                                        \
    {&opq_target_##name,                                                                                               \
     {&opq_gemm_tiles_##name##_f32, &opq_gemm_tiles_##name##_f64, &opq_gemm_tiles_##name##_pairs,                      \
      &opq_gemm_tiles_##name##_widened, &opq_gemm_tiles_##name##_shorts, &opq_gemm_tiles_##name##_quads}},
    OPQ_HOST_TARGETS(X)
#undef X
};

opq_status opq_gemm_create(const opq_cpu *cpu, const opq_host *host, opq_gemm **out_gemm)
{
    opq_gemm *gemm = calloc(1, sizeof *gemm);
    if (!gemm)
        return opq_fail(OPQ_NO_MEMORY, "gemm: out of memory");
    *gemm = (opq_gemm){.cpu = cpu, .host = host};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        for (int e = 0; e < OPQ_GEMM_ELEMENTS && targets[i].target == cpu->target; e++)
            gemm->tiles[e] = targets[i].tiles[e];
    *out_gemm = gemm;
    return OPQ_OK;
}

void opq_gemm_destroy(opq_gemm *gemm) { free(gemm); }
