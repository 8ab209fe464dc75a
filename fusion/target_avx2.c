/* x86-64 with AVX2, FMA and F16C: 16 registers of 8 f32. */
#include "fusion/target.h"

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
            .cost_max = 24,
            .folds_max = 8,
            .unroll_cost_max = 64,
            .long_behind = 24, /* a small product with gelu: 32 ms to compile with copies of each width, 26 with two */
            .scan_tiled = 1,
            .sums = 13,
            .grouped = 28,
            .prefetch_rows = 32,
            .prefetch_places = 4, /* measured, but no figure is on record */
        },
    .turn_per_chunk = 32, /* some tiles in each direction */
    .prefetch_bytes = 2048,
    /* Some 9 sin or 40 tanh. Below, inlined code is up to a fifth faster (16 sin, 24 tanh) and compiles in some tens of milliseconds; from 30
     * functions on it is no faster, and 50 sin compile in 12 ms in place of 260. */
    .shared_math_weight = 600,

    /* Where there is no figure, none is on record. */
    .gemm =
        {
            .turn_fmas = 24,    /* as many as hide the loop: half of what was compiled before */
            .rows_in_place = 6, /* kernels run out of address registers beyond */
            .rows_b_in_place = 42,
            .group_bytes = 512,
            .tile_panels = 10,   /* x 14 rows x group_bytes = 70 KB: within L2, next to the operands */
            .block_bytes = 2048, /* panels of the left operand stay in L1, of the right one in L2 */
            .l1_group_bytes = 32 << 10,
            .small_b_bytes = 32 << 10, /* stays in L1 */
            .region_bytes = 16 << 20,
            .serial_work = 1 << 18,
            .block_work = 1 << 16,
            .turned_k_min = 64,
            .turned_gain = 1.12,
            .near_a_bytes = 256 << 10,
            .near_b_bytes = 768 << 10,
            .small_work = 1 << 17, /* to choose how 16 x 16 is cut took four times as long as that product */
            .small_k = 512,        /* a row of the left operand stays in L1 */
            .window_copy_bytes = 1 << 20,
        },
};
