/* Shared by gemm.c (what runs where), gemm_set.c (calls that run at once), gemm_panels.c (what is packed) and gemm_block.c
 * (how a block is computed). */
#ifndef OPAQUE_RUNTIME_GEMM_INTERNAL_H
#define OPAQUE_RUNTIME_GEMM_INTERNAL_H

#include "codegen_llvm/gemm_kernel.h"
#include "runtime/gemm.h"

#include <pthread.h>
#include <stdatomic.h>

struct opq_gemm {
    const struct opq_cpu *cpu;
    const opq_host *host;
    const opq_gemm_tiles *tiles[OPQ_GEMM_ELEMENTS]; /* NULL: none */
};

/* Of sums whose operands are numbers of their dtype. */
static inline opq_gemm_element gemm_number(opq_dtype dtype) { return dtype == OPQ_f64 ? OPQ_GEMM_F64 : OPQ_GEMM_F32; }

/* What is packed as a run of k that the kernels go through one after the other. */
typedef enum gemm_rule {
    GEMM_CHAIN, /* k numbers */
    GEMM_PAIRS, /* half as many pairs of bf16, for the dot instruction */
    GEMM_SWAPPED, /* the same sums without that instruction: f32, of two neighbours the second one first, without denormals */
    GEMM_PAIRS16, /* pairs of bf16, sixteen by sixteen, for tiles (gemm_amx.h) */
    GEMM_APART,   /* the same sums without these: f32, of 32 neighbours the even ones first, without denormals */
    GEMM_BYTES,   /* quads of i8, sixteen by sixteen, for tiles */
    GEMM_WIDENED, /* k numbers, on the right i8 */
    GEMM_SHORTS,  /* of integers: half as many words of two i16 */
    GEMM_QUADS /* or a quarter as many of four u8 on the left, i8 + 128, and i8 on the right; sums begin with what that adds, less than 0 */
} gemm_rule;

/* One call, once its ways are chosen. Rows and columns are counted in panels: row panels' heights
 * differ by one at most; column panels have `panel` columns, the last may have fewer. */
typedef struct gemm_run {
    opq_gemm *gemm;
    const struct opq_cpu *cpu;
    const struct opq_gemm_isa *isa;
    opq_gemm_call call; /* k and packed_k as the rule has them */
    gemm_rule rule;
    int64_t terms;                  /* what k is in the operands */
    int element_bytes, right_bytes; /* of the sums, and of the right operand in panels */
    int lanes, panel;               /* panel: two vectors */
    int vectors;                    /* of the usual tile */
    int64_t row_panels, column_panels;
    int64_t tile_panels;  /* row panels that share a tile */
    int64_t group_panels; /* column panels that share a tile; a multiple of vectors / 2 */
    int64_t k_block;      /* of all but the last block of k */
    bool a_in_place, b_in_place;
    bool a_window;        /* a_in_place, by tables */
    opq_gemm_left window; /* then, how its rows lie in each panel */
    bool streams_b;       /* it is packed, and one row panel reads it from end to end: hardware fetches what comes */
    bool few_rows;        /* b is transposed in registers: see gemm_few_body.h */
    char *shared_a, *shared_b;         /* packed by all threads before the blocks start, or NULL */
    int64_t row_chunks, column_chunks; /* blocks per batch */
} gemm_run;

/* Calls that run at once. */
typedef struct gemm_set {
    gemm_run *runs;
    int count;
    atomic_int status; /* first failure of any thread */
} gemm_set;

static inline int64_t gemm_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Where a row panel begins: heights differ by one at most, the tall ones come first. */
static inline int64_t gemm_row(const gemm_run *run, int64_t row_panel)
{
    int64_t height = run->call.m / run->row_panels, tall = run->call.m % run->row_panels;
    return row_panel * height + (row_panel < tall ? row_panel : tall);
}
static inline int64_t gemm_row_bytes(const gemm_run *run) /* of a panel of b */
{
    return (int64_t)run->panel * run->right_bytes;
}
/* Of so many k of the kernels'; behind them are what sums begin with, if they do not with 0. */
static inline int64_t gemm_panel_rows(gemm_rule rule, int64_t k) { return k + (rule == GEMM_QUADS); }
static inline int64_t gemm_panel_bytes(const gemm_run *run, int64_t k)
{
    return gemm_panel_rows(run->rule, k) * gemm_row_bytes(run);
}
/* The name that opq_gemm_pack_b has for what the call packs. */
static inline opq_dtype gemm_packed_as(const opq_gemm_call *call)
{
    bool widened = !call->pairs && call->dtype == OPQ_f32 && call->b.dtype == OPQ_i8;
    return widened ? OPQ_i8 : opq_gemm_packed_name(call->dtype, call->pairs);
}
static inline int64_t gemm_word(gemm_rule rule) /* elements in one k of the kernels' */
{
    if (rule == GEMM_QUADS || rule == GEMM_BYTES)
        return 4;
    return rule == GEMM_PAIRS || rule == GEMM_PAIRS16 || rule == GEMM_SHORTS ? 2 : 1;
}
/* Do tiles make the sums? Their words are those of bf16 or i8, and come sixteen by sixteen. */
static inline bool gemm_has_tiles(gemm_rule rule) { return rule == GEMM_PAIRS16 || rule == GEMM_BYTES; }
static inline bool gemm_is_bf16(opq_dtype packed) { return packed == OPQ_bf16 || packed == OPQ_f16; }
/* Does the engine pack the left operand, or all of the right one? */
static inline bool gemm_packs_a(const gemm_run *run) { return !run->a_in_place && !run->call.packed_a; }
static inline bool gemm_packs_b(const gemm_run *run)
{
    return !run->b_in_place && !run->few_rows && !run->call.packed_b;
}
/* Is a block of k of the left operand packed where it is used, tile by tile, since one group of column panels is all that uses it? */
static inline bool gemm_packs_a_blocks(const gemm_run *run)
{
    return gemm_packs_a(run) && !run->shared_a && run->k_block < run->call.k &&
           gemm_ceil(run->column_panels, run->column_chunks) <= run->group_panels;
}
/* Right operands in a batch: one that all matrices have is packed once. */
static inline int64_t gemm_right_count(const gemm_run *run) { return run->call.b.batch_stride ? run->call.batch : 1; }
/* Elements [*k0, *k0 + the result) of the operands: k of the kernels' from *k0 on. */
static inline int64_t gemm_terms(const gemm_run *run, int64_t *k0, int64_t k)
{
    int64_t each = gemm_word(run->rule);
    *k0 *= each;
    return run->terms - *k0 < k * each ? run->terms - *k0 : k * each;
}
/* What operands are in memory that kernels of numbers read as they lie; raw8: there are none, all are packed. */
static inline opq_dtype gemm_as_it_lies(const opq_gemm_call *call) { return call->pairs ? OPQ_raw8 : call->dtype; }
/* And the left one, which kernels of words read, too. */
static inline opq_dtype gemm_left_dtype(const gemm_run *run)
{
    if (run->rule == GEMM_PAIRS || run->rule == GEMM_PAIRS16)
        return OPQ_bf16;
    return run->rule == GEMM_BYTES ? OPQ_i8 : gemm_as_it_lies(&run->call);
}
static inline bool gemm_has_tables(const opq_matrix *matrix) { return matrix->rows || matrix->columns; }
/* Rows without gaps, that need no conversion. */
static inline bool gemm_in_rows(const opq_matrix *matrix, opq_dtype dtype)
{
    return matrix->dtype == dtype && matrix->column_stride == 1 && !gemm_has_tables(matrix);
}
/* Vectors in a row of a tile of so many rows, at most `vectors`, so that it fits the registers. */
static inline int gemm_tile_vectors(const struct opq_cpu *cpu, int64_t rows, int64_t vectors)
{
    while (vectors > OPQ_GEMM_PANEL_VECTORS && rows > opq_gemm_rows_max(cpu, (int)vectors))
        vectors -= OPQ_GEMM_PANEL_VECTORS;
    return (int)vectors;
}
/* Column panels that the usual tile takes at once. */
static inline int64_t gemm_step_panels(const gemm_run *run) { return gemm_ceil(run->vectors, OPQ_GEMM_PANEL_VECTORS); }
static inline double gemm_work(const opq_gemm_call *call)
{
    return (double)call->batch * (double)call->m * (double)call->n * (double)call->k;
}
static inline int64_t gemm_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t gemm_lines(int64_t bytes) { return gemm_ceil(bytes, 64) * 64; } /* whole ones of a cache */

/* OPQ_INTERNAL: there is none, of a kind of element that a model was exported without. */
opq_status gemm_kernel_find(const opq_gemm *gemm, opq_gemm_element element, opq_gemm_left left, int rows, int vectors,
                            opq_gemm_kernel *out) OPQ_MUST_CHECK;

/* On the host's threads; `work` multiply-adds or bytes in all. */
void gemm_parallel(opq_gemm *gemm, int64_t count, double work, void (*body)(void *data, int64_t begin, int64_t end),
                   void *data);

/* Row panels [first, last) of one batch, packed: blocks of k, in each the panels [k][rows] one after the other. */
int64_t gemm_packed_a_bytes(const gemm_run *run, int64_t first, int64_t last);
/* Packs panels [first, last) of the region [region_first, region_last), which starts at `out`. */
void gemm_pack_a(const gemm_run *run, int64_t batch, int64_t region_first, int64_t region_last, int64_t first,
                 int64_t last, char *out);
/* Of these, k in [k0, k0 + k), a block that starts at `out`. */
void gemm_pack_a_block(const gemm_run *run, int64_t batch, int64_t region_first, int64_t first, int64_t last,
                       int64_t k0, int64_t k, char *out);
/* Packs column panels [first, last), rows [k0, k0 + k) of one batch: panels `panel_stride` bytes apart. */
void gemm_pack_b_panels(const gemm_run *run, int64_t batch, int64_t first, int64_t last, int64_t k0, int64_t k,
                        char *out, int64_t panel_stride);

static inline int64_t gemm_block_count(const gemm_run *run)
{
    return run->call.batch * run->row_chunks * run->column_chunks;
}
/* Computes blocks [begin, end) of all runs, one run after the other. */
void gemm_blocks(void *set, int64_t begin, int64_t end);

const struct opq_gemm_isa *gemm_isa(const struct opq_cpu *cpu);
/* gemm.c: calls with the same m and k, at once. */
opq_status gemm_run_regions(opq_gemm *gemm, const opq_gemm_call *calls, int count) OPQ_MUST_CHECK;

/* gemm_turned.c */
opq_matrix gemm_transposed(const opq_matrix *matrix);
bool gemm_is_turned(const opq_gemm_call *call);
opq_status gemm_run_turned(opq_gemm *gemm, const struct opq_cpu *cpu, const opq_gemm_call *call) OPQ_MUST_CHECK;

/* gemm_window.c: a left operand that is read in place by tables. */
typedef struct gemm_window {
    const char *data; /* element (i, k) is rows[i] + columns[k] elements behind */
    const int64_t *rows, *columns;
    char *copy; /* NULL, or room for the padded copy, of which [first, last) of the outermost dim are there */
    int64_t first, last;
} gemm_window;
/* Rows of a panel, at most so many, if they lie side by side in each, or by threes; 0: they do not. */
int64_t gemm_window_rows(const gemm_run *run, int64_t most, opq_gemm_left *out_left);
/* Is it better so than packed, for so many columns? */
bool gemm_is_window(opq_dtype dtype, const opq_matrix *left, int64_t n);
/* Room that gemm_window_begin needs, 64-byte aligned. */
int64_t gemm_window_bytes(const gemm_run *run);
void gemm_window_begin(const gemm_run *run, int64_t batch, char *room, gemm_window *out_window);
/* Of one matrix; 0: it has no padding. */
int64_t gemm_padded_bytes(const opq_matrix *matrix);
/* So many of them, rows x columns, become copies in a buffer of GEMM_SCRATCH_padded, which the caller releases. */
opq_status gemm_copy_padded(opq_gemm *gemm, int64_t batch, bool serial, int64_t rows, int64_t columns,
                            opq_matrix *matrix, void **out_copy) OPQ_MUST_CHECK;
/* Where its elements are for columns [k0, k0 + k). */
const char *gemm_window_data(const gemm_run *run, int64_t batch, int64_t k0, int64_t k, gemm_window *window);

/* gemm_small.c */
bool gemm_is_small(const struct opq_cpu *cpu, const opq_gemm_call *call);
opq_status gemm_run_small(opq_gemm *gemm, const struct opq_cpu *cpu, const opq_gemm_call *call) OPQ_MUST_CHECK;
/* gemm_tiny.c. A batch, m and n of at least 1. */
bool gemm_is_tiny(const opq_gemm_call *call);
void gemm_run_tiny(const opq_gemm_call *call);

/* gemm_set.c. Of a gemm_run: pieces are its row panels, or blocks of k of its groups of column panels, in all batches. */
void gemm_pack_shared_a(void *run, int64_t begin, int64_t end);
int64_t gemm_shared_b_count(const gemm_run *run); /* of one matrix */
void gemm_pack_shared_b(void *run, int64_t begin, int64_t end);
opq_status gemm_run_set(gemm_set *set) OPQ_MUST_CHECK;

/* Buffers that a thread keeps between calls: for what a call shares, for a block, and for padded copies. 64-byte
 * aligned. NULL: no memory. Release with the same slot. */
enum { GEMM_SCRATCH_shared, GEMM_SCRATCH_block, GEMM_SCRATCH_padded, GEMM_SCRATCH_COUNT };
void *gemm_scratch_acquire(int slot, int64_t bytes);
void gemm_scratch_release(int slot, void *buffer);

#endif
