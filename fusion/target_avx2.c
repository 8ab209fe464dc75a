/* x86-64 with AVX2, FMA and F16C: 16 registers of 8 f32. */
#include "fusion/target.h"
#include "fusion/target_x86.h"

#if defined(__x86_64__)
static bool runs_here(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#else
#define runs_here NULL
#endif

const opq_target opq_target_avx2 = {
    .name = "avx2",
    .cpu = "haswell",
    .features = "+avx2,+fma,+f16c,+bmi,+bmi2",
    .runs_here = runs_here,
    /* Its masked stores take 120 cycles on a Zen EPYC: a pad of (8, 16, 24, 24) 210 us with them, 75 without. */
    .leaves = OPQ_LEAF_permute8,
    .vector_bytes = 32,
    .vector_registers = 16,

    /* Not measured apart, but for what has a figure. */
    .span = {.four_below = 8, .two_below = 24, .ahead = 96, .independent = 3, .registers = 14, .code_max = 1024},
    .strip =
        {
            .vectors = 4,
            /* Of reductions over columns on Zen 4: 1024 x 512 1.54 times as fast as with 4, 128 x 3072 1.58, of products 1.74, of maxima 1.23,
             * variances 1.31, 4096 x 4096 1.28, 128 x 784 and 4096 x 32 the same. Where lanes lie apart 4 are faster: rows of 4 on Emerald
             * Rapids 1.1 ms of a million, with 8 1.25. */
            .row_vectors = 8,
            .cost_max = 24,
            .folds_max = 8,
            .unroll_cost_max = 64,
            .long_behind = 24, /* a small product with gelu: 32 ms to compile with copies of each width, 26 with two */
            .scan_tiled = 1,
            .tiles_ahead = 2, /* as for AVX-512: from 1 to 3 it is the same on Zen 4 */
            .sums = 13,
            .grouped = 28,
            .prefetch_rows = 32,
            .prefetch_places = 4, /* measured, but no figure is on record */
        },
    OPQ_TARGET_X86_NUMBERS,
    .gemm = {OPQ_TARGET_X86_GEMM},
};
