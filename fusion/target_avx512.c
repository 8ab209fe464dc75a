/* x86-64 with AVX-512 F, BW, DQ, VL and CD: 32 registers of 16 f32, masks of bits; and with what later ones have besides, AMX at last, whose tiles
 * the matrix engine has (runtime/gemm_amx.c).
 */
#define _DEFAULT_SOURCE /* syscall */
#include "fusion/target.h"
#include "fusion/target_x86.h"

#if defined(__x86_64__)
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool runs_here(void)
{
    __builtin_cpu_init();
    return opq_target_avx2.runs_here() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}

static bool has_quads(void) { return __builtin_cpu_supports("avx512vnni"); }

static bool has_pairs(void) { return __builtin_cpu_supports("avx512bf16"); }

/* Linux lets a process use the AMX tiles only after it has asked; the answer holds for all its threads. */
static bool has_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return has_pairs() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
           __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#else
#define runs_here NULL
#define has_quads NULL
#define has_pairs NULL
#define has_tiles NULL
#endif

const opq_target opq_target_avx512 = {
    .name = "avx512",
    .cpu = "skylake-avx512",
    .features = "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd,+fma,+f16c",
    .runs_here = runs_here,
    .extra = {{"+avx512vnni", OPQ_LEAF_quads, has_quads},
              {"+avx512bf16", OPQ_LEAF_pairs, has_pairs},
              {"+amx-tile,+amx-bf16,+amx-int8", OPQ_LEAF_tiles, has_tiles}},
    .leaves = OPQ_LEAF_bit_masks | OPQ_LEAF_i64_to_float | OPQ_LEAF_permute8 | OPQ_LEAF_permute32 | OPQ_LEAF_exponent,
    .vector_bytes = 64,
    .vector_registers = 32,

    /* Not measured apart, but for what has a figure. */
    .span = {.four_below = 8, .two_below = 24, .ahead = 96, .independent = 3, .registers = 14, .code_max = 1024},
    .strip =
        {
            .vectors = 4,
            .row_vectors = 4, /* 8 are no faster: 4.2 ms of 4096 x 4096 on Zen 4 */
            .cost_max = 24,
            .folds_max = 8,
            .unroll_cost_max = 64,
            .long_behind = 24, /* a small product with gelu: 32 ms to compile with copies of each width, 26 with two */
            .scan_tiled = 2,
            /* Cumulative sums of rows of 4096 on Zen 4: 13.0 ms without, 12.2 with 1, 11.7 with 2, 12.0 with 3; maxima 10.9, 9.3, 9.3, 10.2. */
            .tiles_ahead = 2,
            .sums = 28,
            .grouped = 28,
            .prefetch_rows = 32,
            .prefetch_places = 4, /* of AVX2: not measured apart */
        },
    OPQ_TARGET_X86_NUMBERS,
    /* Hardware does not follow short runs a row apart. */
    .gemm = {OPQ_TARGET_X86_GEMM, .pack_rows_ahead = 32,
             /* bf16 of 1024 x 1024 x 1024 on Emerald Rapids: 1.72 ms with 512, 1.59 with 1024, 1.73 with 2048, 1.96 with 4096; blocks of k of 1024
              * (block_bytes) 1.59, of 512 1.70, of 256 1.72. */
             .amx_group_bytes = 1024},
};
