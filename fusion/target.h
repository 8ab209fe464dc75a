/* A target: the processors that code is made for. What they have, and the numbers that were tuned for them, each beside what was measured.
 *
 * A target is a file, fusion/target_NAME.c, and a row of OPQ_TARGETS. It says nothing of what a kernel computes: bits are the same on all.
 * Trees are made before it is known where they run, and all targets have the same: numbers of lowering are one set, opq_trees.
 */
#ifndef OPAQUE_FUSION_TARGET_H
#define OPAQUE_FUSION_TARGET_H

#include "opaque/opaque.h"

/* Instructions that not all targets have. Code generation has a form without for each but pairs. */
typedef enum opq_leaf {
    OPQ_LEAF_bit_masks = 1 << 0,    /* masks of lanes are registers of bits, and masked stores are as fast as others */
    OPQ_LEAF_i64_to_float = 1 << 1, /* vectors of i64 are converted */
    OPQ_LEAF_permute8 = 1 << 2,     /* a table of 8 f32 in a register (vpermps) */
    OPQ_LEAF_permute32 = 1 << 3,    /* of 32 in two (vpermt2ps), and of 8 in one, 16 lanes at a time */
    OPQ_LEAF_exponent = 1 << 4,     /* exponents of 16 f32 are set, and taken off (vscalefps, vgetexpps, vgetmantps) */
    OPQ_LEAF_pairs = 1 << 5,        /* the dot of two bf16 neighbours (vdpbf16ps): opq_pairs_step */
    OPQ_LEAF_quads = 1 << 6,        /* the dot of four bytes, u8 and i8 (vpdpbusd) */
    OPQ_LEAF_tiles = 1 << 7, /* 16 x 16 sums of 16 pairs of bf16, by opq_pairs_steps, or 16 quads of i8 (tdpbf16ps, tdpbssd) */
} opq_leaf;

/* What processors of a target may have besides. */
typedef struct opq_target_extra {
    const char *features; /* LLVM's */
    unsigned leaves;
    bool (*runs_here)(void);
} opq_target_extra;

/* The matrix engine. */
typedef struct opq_target_gemm {
    int turn_fmas;                      /* multiply-adds of a turn of a micro-kernel */
    int64_t rows_in_place;              /* of a left operand that is read as it lies */
    int64_t rows_b_in_place;            /* too few to pay for packing a row-major right operand */
    int64_t group_bytes;                /* a tile's row */
    int64_t amx_group_bytes;            /* likewise, of sums that tiles of AMX make */
    int64_t tile_panels;                /* row panels of OPQ_GEMM_ROWS_MAX rows that share a tile */
    int64_t block_bytes;                /* of k */
    int64_t l1_group_bytes;             /* of a right operand that is packed for one row panel, and used at once */
    int64_t small_b_bytes;              /* of a row-major right operand that stays near as it is */
    int64_t region_bytes;               /* of a left operand, packed at a time */
    int64_t serial_work;                /* multiply-adds that no second thread speeds up */
    int64_t block_work;                 /* least multiply-adds of a piece of a parallel loop */
    int64_t turned_k_min;               /* fewer do not pay for turning the result */
    double turned_gain;                 /* how many times fewer columns the transposed product computes, to pay */
    int64_t near_a_bytes, near_b_bytes; /* packed left rows at a time, where a right operand of so many bytes stays near */
    int64_t small_work, small_k;        /* multiply-adds, terms: of products as they lie (gemm_small.c) */
    int64_t window_copy_bytes;          /* of a padded copy of a window that is made at once */
    int64_t pack_ahead, pack_rows_ahead; /* elements along k, and rows of k of f32, that packers look ahead */
    int64_t widened_ahead;   /* bytes of each panel of i8 that is widened, which comes from memory, as a rule */
    int64_t pack_moved_rows; /* of a window, that are packed together */
    int64_t transpose_cycles, element_cycles; /* of packing: of a row of a square of vectors; of an element by itself */
    int64_t l1_way_bytes, l1_ways;
} opq_target_gemm;

/* Blocks of rows through several products (runtime/run_block.c). */
typedef struct opq_target_block {
    int64_t cache_bytes;                                        /* of all that stays in cache */
    int64_t rows_min, rows_max, causal_rows_max, epilogue_rows; /* of a block; of sums whose epilogue is made at once */
} opq_target_block;

typedef struct opq_target {
    const char *name;        /* as OPAQUE_CPU has it */
    const char *triple;      /* LLVM's; NULL: the host's */
    const char *cpu;         /* LLVM's model: a fixed one, so that a kernel is the same code on every host */
    const char *features;    /* of all, as LLVM has them */
    bool (*runs_here)(void); /* does this processor run its code? NULL: no processor that the library is built for does */
    opq_target_extra extra[4]; /* up to the first without features; each where those before it are */
    unsigned leaves;
    int vector_bytes, vector_registers; /* a vector has vector_bytes / 4 lanes, whatever its dtype */

    /* Elementwise loops. Costs are in instructions of a vector: opq_nest_cost. */
    struct {
        int four_below, two_below; /* cost of a body of which so many vectors run beside each other */
        int ahead;                 /* cost of a body whose next turn the processor does not see in time */
        int independent;           /* chains of such a body that hide its latency */
        int registers, code_max;   /* of all of them; instructions */
    } span;
    /* Strips of vectors around loops with folds, scans, products and unrolled sums. */
    struct {
        int vectors;             /* at most, of strips with products and of bodies beside each other */
        int row_vectors;         /* at most, of other strips, which read what lies side by side row after row */
        int cost_max, folds_max; /* of all vectors: instructions of a turn, accumulators */
        int unroll_cost_max;     /* instructions of all turns of a block that is unrolled */
        int long_behind;         /* cost of what follows a product that is compiled for all vectors and for one alone */
        int scan_tiled;          /* vectors where what is scanned is turned in tiles */
        int tiles_ahead;         /* that they look ahead */
        int sums;                /* accumulators of f32 of unrolled loops: at most OPQ_UNROLL_SUMS_MAX */
        int grouped;             /* multiplications of a group of their turns */
        int prefetch_rows, prefetch_places; /* turns that they look ahead, with lanes along places and elsewhere */
    } strip;
    int turn_per_chunk;      /* elements of a tiled loop's turn for each chunk (emit_chunks.c) */
    int prefetch_bytes;      /* that a contiguous loop looks ahead */
    int prefetch_short_rows; /* where a row is shorter: rows */
    int shared_math_weight; /* instructions of math functions of a kernel from which on they are called: emit_shared.c */

    opq_target_block block;
    opq_target_gemm gemm;
} opq_target;

/* From the fewest lanes to the most, those of one architecture one after the other. HOST: processors that the library itself runs on, for which it has
 * a matrix engine. */
#define OPQ_TARGETS(X) X(neon) OPQ_HOST_TARGETS(X)
#define OPQ_HOST_TARGETS(X) X(avx2) X(avx512)

#define X(name) extern const opq_target opq_target_##name;
OPQ_TARGETS(X)
#undef X

/* The row `at`, NULL behind the last. */
const opq_target *opq_target_at(int at);
/* By its name, or the architecture of its triple ("aarch64"); NULL: there is none. */
const opq_target *opq_target_find(const char *name);
static inline int opq_target_lanes(const opq_target *target) { return target->vector_bytes / 4; }

/* Lowering: which loop has the lanes, and what is left to the matrix engine. Where they were measured stands in target.c. */
typedef struct opq_tree_numbers {
    int64_t lanes;          /* that a loop is to fill */
    int64_t apart, turned;  /* cost of a vector whose elements lie apart, of tiles of them; side by side it is 1 */
    int64_t taps_max;       /* turns of a loop over places of a window that is unrolled around a product */
    int64_t tap_terms_min;  /* terms of such a product */
    int64_t scan_rows_min;  /* scans that go beside each other */
    int64_t crowded_bytes;  /* rows a multiple of this apart share a few sets of the first cache */
    int64_t whole_rows_min; /* rows, of which columns are folded row by row */
    int64_t far_bytes;      /* of a matrix that no cache near has */
    int64_t local_bytes,
        local_turns_min;        /* of what is kept of such columns, all together; fewer are no better than strips */
    int64_t row_max;            /* elements of a row that is kept until its last sweep */
    int64_t broadcast_work_max; /* instructions that are done again in a loop that they do not depend on */
    int64_t blocks_min;         /* chunks of a row alone that threads divide */
    int64_t short_loop, longer_loop; /* turns: fewer fill no vector; a loop so many times as long has the lanes instead */
    int64_t apart_max;               /* elements of each lane, where another loop than the last has the lanes */
    int64_t fold_cycles, fold_comparing_cycles, fold_arg_cycles; /* of short rows: lower_loops.c */
    int64_t dear_cycles, collect_cycles;
    int64_t tile_streams_max, stream_elements_min; /* tensors of so many elements that are streamed behind a product */
    int64_t thin_sum_max, thin_batch_min; /* of products that no engine packs for: terms, matrices for each element */
    int64_t vector_min;                   /* elements side by side that an engine packs around padding */
    int64_t small_work, vector_work;      /* multiply-adds of small products: of a matrix, of a vector */
    int64_t smallest;                     /* size of one alone, in each direction */
    int64_t chunks_together,
        tiled_bytes_max; /* chunks whose elements are brought into order at once; bytes of all that is folded of one */

    /* Graphs. */
    int64_t stack_min,
        stack_elements_max; /* parts of a small stack that becomes selects; elements of it, or of what one is written to */
    int64_t copied_bytes_min,
        copied_part; /* of a value that is computed where it is read; it is so many times its operands */
    int copied_ops_max, copied_index_ops_max; /* ops of it; where they make indices */
    int turned_readers_min, turned_readers_each,
        turned_lanes_min; /* products for which what they read across is turned, all and for each turn */
    int64_t block_width_max,
        block_rows_min; /* of operands, and of rows that are reduced, of a block of products (group_block.c) */
    int64_t window_copied,
        window_used; /* used : copied, as large as the uses of a window's elements, pays for a copy with its padding */
    int64_t pairs_work; /* multiply-adds of a product of halves, from which the matrix engine makes it */
    int64_t row_waits_max, wave_waits_max; /* bytes that wait for a reader in one wave of a plan: of a row, of all */
} opq_tree_numbers;
extern const opq_tree_numbers opq_trees;

/* Running, on all targets. */
typedef struct opq_run_numbers {
    int64_t serial_elements;    /* of a kernel, that no second thread speeds up */
    int64_t serial_product;     /* multiply-adds of each of several products, likewise */
    int64_t grain;              /* elements of a piece of a sort or a scatter */
    int64_t merge_max_per_byte; /* elements that are sorted by merging and not by digits, for each byte of a key */
    int64_t packed_count_min,
        packed_times; /* elements of a weight that is kept packed; of packed bytes, how many there may be of each */
    int64_t packed_bytes,
        packed_part; /* of views that a run uses once: these bytes, and a part of what the run before would have packed */
    int64_t near_input_bytes;                   /* all that a plan reads, where it stays in a cache from run to run */
    double run_pages_worth, packed_pages_worth; /* what huge pages may cost, in times of what small ones do */
    int pages_explored;                         /* of so many mappings one is of the other kind */
    double collapse_share;                      /* of the runs' time, in which small pages become huge */
} opq_run_numbers;
extern const opq_run_numbers opq_runs;

/* Memory on the stack, on all targets. */
enum {
    OPQ_TINY_WORK = 1024, /* multiply-adds, and elements of the result, of products without vectors (gemm_tiny.c) */
    OPQ_TINY_TILE = 64,   /* rows, and columns, of what the caller's function gets of such a product at once */
    OPQ_SMALL_TILE_BYTES = 8192,  /* of products as they lie (gemm_small.c) */
    OPQ_TURNED_BYTES = 192 * 128, /* of a tile's columns, at least two vectors (gemm_turned.c) */
    OPQ_INSERTION_MAX = 16,       /* elements that are sorted by insertion */
    OPQ_STAGE_BYTES = 512,        /* of a row of a left operand, by way of which rows some KiB apart are packed */
};

#endif
