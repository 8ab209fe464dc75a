/* AArch64 with Advanced SIMD: 32 registers of 4 f32, masks as vectors. Objects alone: the library is not built for it.
 *
 * Nothing was measured: numbers are those of AVX2, where an operand or an accumulator has half as many lanes and there are twice as many registers.
 */
#include "fusion/target.h"

const opq_target opq_target_neon = {
    .name = "neon",
    .triple = "aarch64-unknown-linux-gnu",
    .cpu = "generic",
    .features = "+neon",
    .leaves = OPQ_LEAF_i64_to_float,
    .vector_bytes = 16,
    .vector_registers = 32,

    .span = {.four_below = 8, .two_below = 24, .ahead = 96, .independent = 3, .registers = 28, .code_max = 1024},
    .strip =
        {
            .vectors = 4,
            .row_vectors = 4,
            .cost_max = 24,
            .folds_max = 16,
            .unroll_cost_max = 64,
            .long_behind = 24,
            .scan_tiled = 1,
            .tiles_ahead = 2,
            .sums = 28,
            .grouped = 28,
            .prefetch_rows = 32,
            .prefetch_places = 4,
        },
    .turn_per_chunk = 32,
    .prefetch_bytes = 2048,
    .prefetch_short_rows = 8,
    .shared_math_weight = 600,

    /* The engine packs with instructions of x86: its products are made as their trees stand, and this is not used. */
    .gemm = {.turn_fmas = 24, .rows_in_place = 6},
};
