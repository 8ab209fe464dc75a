/* The table of targets, and the numbers by which trees are made, wherever they run, and plans are run. */
#include "fusion/target.h"

#include <string.h>

static const opq_target *const targets[] = {
#define X(name) &opq_target_##name,
    OPQ_TARGETS(X)
#undef X
};

enum { TARGETS = sizeof targets / sizeof *targets };

const opq_target *opq_target_at(int at) { return at >= 0 && at < TARGETS ? targets[at] : NULL; }

static bool is_architecture(const opq_target *target, const char *name)
{
    size_t length = strlen(name);
    return target->triple && strncmp(target->triple, name, length) == 0 && target->triple[length] == '-';
}

const opq_target *opq_target_find(const char *name)
{
    for (int i = 0; i < TARGETS; i++)
        if (strcmp(targets[i]->name, name) == 0 || is_architecture(targets[i], name))
            return targets[i];
    return NULL;
}

/* What has no figure was not measured apart. */
const opq_tree_numbers opq_trees = {
    .lanes = 16,
    /* 100 rank-one updates of 32 x 32 took 127 us with lanes along one loop always, 31 so; of 8 x 8 28 and
     * 15; kinematics of 35 joints 36 and 28. */
    .apart = 20,
    .turned = 4,
    .taps_max = 16,
    .tap_terms_min = 10,
    .scan_rows_min = 8,
    /* Row by row in place of strip by strip, on AVX-512 and AVX2: sums of 1024 x 1024 take 53 us and not 98, of 16 x 4096 5.9 and 7.4, of 4096 x 768
     * 157 and 200, of 4 x 100000 40 and 26; two sums of 1024 x 256 19.3 and 18.7; variances of 1024 x 1024 114 and 190, of 1000 x 3000 341 and 305. */
    .crowded_bytes = 2048,
    .whole_rows_min = 16,
    .far_bytes = 4 << 20,
    /* Half of a small first cache. 4096 x 4096 in pieces of 2048 columns 3.1 ms, 1024 3.3, 512 4.3, 256 4.8; strips 6.3 (in C, AVX-512). */
    .local_bytes = 16384,
    .local_turns_min = 256,
    .row_max = 128 * 1024,
    .broadcast_work_max = 16,
    .blocks_min = 16,
    .short_loop = 5,
    .longer_loop = 4,
    .apart_max = 64,
    /* Cycles of one row, measured. */
    .fold_cycles = 20,
    .fold_comparing_cycles = 30,
    .fold_arg_cycles = 100,
    .dear_cycles = 16,
    .collect_cycles = 1,
    /* Adam behind the gradients of a GPT-2 block, six large tensors: 22 ms of its step as the products' epilogue, 6 as a kernel of its own. */
    .tile_streams_max = 4,
    .stream_elements_min = 1 << 18,
    .thin_sum_max = 256,
    .thin_batch_min = 8,
    .vector_min = 8,
    /* The way to the engine is 3,800 instructions. 200 steps of tanh(W x) of 64 x 64 took 196 us by it and take 30 so, of 16 x 16 94 and 12; a
     * Kalman filter of 50 steps with 16 states 207 and 85. */
    .small_work = 16384,
    .vector_work = 32768,
    .smallest = 16,
    .chunks_together = 16,
    .tiled_bytes_max = 16, /* more of them do not stay in cache */
    .stack_min = 3,
    .stack_elements_max = 256,
    .copied_bytes_min = 1 << 20, /* smaller values stay in cache */
    .copied_part = 4,
    .copied_ops_max = 3,
    .copied_index_ops_max = 12, /* with views */
    .turned_readers_min = 3,
    .turned_readers_each = 4,
    .turned_lanes_min = 4,
    .block_width_max = 256,
    .block_rows_min = 16,
    .window_copied = 3,
    .window_used = 4,
    .pairs_work = 1 << 15,
    /* A row of more is worth a launch of its own, and more in a wave would leave the cache. */
    .row_waits_max = 64 << 10,
    .wave_waits_max = 8 << 20,
};

const opq_run_numbers opq_runs = {
    .serial_elements = 32 * 1024,
    .serial_product = 1 << 20,
    .grain = 4096,
    .merge_max_per_byte = 24,
    .packed_count_min = 64 * 64,
    .packed_times = 4,
    .packed_bytes = 16 << 20,
    .packed_part = 8,
    .near_input_bytes = 16 << 20,
    /* A packed copy is read from end to end by every run: 2 MiB of it in small pages cost a virtual machine .8 ms more each time, where huge ones took
     * 1.3 ms more at the first touch (weights of GPT-2 on Emerald Rapids; the host of another one took 5 more). */
    .run_pages_worth = 1,
    .packed_pages_worth = 3,
    .pages_explored = 16,
    .collapse_share = 0.5,
};
