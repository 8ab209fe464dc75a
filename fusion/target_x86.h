/* Numbers that the targets of x86 share: they were tuned on processors that have both. Where there is no figure, none is on record. */
#ifndef OPAQUE_FUSION_TARGET_X86_H
#define OPAQUE_FUSION_TARGET_X86_H

/* Of opq_target, from turn_per_chunk on, and of its gemm.
 *
 * turn_per_chunk        some tiles in each direction
 * prefetch_short_rows   4 to 16 are alike on Zen 5: 64 of 2304 columns 2.0 to 2.4 times as fast as with none, their sums 3.7, rows of 28 elements 1.7 to 4.4,
 *                       pools 3.5 to 6.5
 * shared_math_weight    some 9 sin or 40 tanh. Below, inlined code is up to a fifth faster (16 sin, 24 tanh) and compiles in some tens of milliseconds;
 *                       from 30 functions on it is no faster, and 50 sin compile in 12 ms in place of 260
 * turn_fmas             as many as hide the loop: half of what was compiled before
 * rows_in_place         kernels run out of address registers beyond
 * tile_panels           x 14 rows x group_bytes = 70 KB: within L2, next to the operands
 * block_bytes           panels of the left operand stay in L1, of the right one in L2
 * small_b_bytes         stays in L1
 * small_work            to choose how 16 x 16 is cut took four times as long as that product
 * small_k               a row of the left operand stays in L1
 * pack_ahead            a line at a time of each row
 * widened_ahead         one row on Zen 5 with AVX-512, 45 MB: 41 GB/s with 2048, 50 with 3072, 53 with 4096, 42 with 8192; 360 MB: 35, 35, 33, 31. With AVX2
 *                       30 of 45 MB with any
 * pack_moved_rows       they stay in L1
 * l1_ways               Zen 4's, fewer than others have. To pack rows some KiB apart, of which more would be in a set, by way of a copy was 1.2 to 2.1
 *                       times as fast there
 */
#define OPQ_TARGET_X86_NUMBERS                                                                                         \
    .turn_per_chunk = 32, .prefetch_bytes = 2048, .prefetch_short_rows = 8, .shared_math_weight = 600,                 \
    .block = {.cache_bytes = 640 << 10, .rows_min = 16, .rows_max = 256, .causal_rows_max = 32, .epilogue_rows = 64}
#define OPQ_TARGET_X86_GEMM                                                                                            \
    .turn_fmas = 24, .rows_in_place = 6, .rows_b_in_place = 42, .group_bytes = 512, .tile_panels = 10,                 \
    .block_bytes = 2048, .l1_group_bytes = 32 << 10, .small_b_bytes = 32 << 10, .region_bytes = 16 << 20,              \
    .serial_work = 1 << 18, .block_work = 1 << 16, .turned_k_min = 64, .turned_gain = 1.12, .near_a_bytes = 256 << 10, \
    .near_b_bytes = 768 << 10, .small_work = 1 << 17, .small_k = 512, .window_copy_bytes = 1 << 20, .pack_ahead = 64,  \
    .widened_ahead = 3072, .pack_moved_rows = 128, .transpose_cycles = 6, .element_cycles = 4, .l1_way_bytes = 4096,   \
    .l1_ways = 8

#endif
