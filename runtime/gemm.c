/* Which way a product goes: tile shape, what is packed and by whom, how the work is cut for threads. See gemm_block.c for the work.
 *
 *   small              operands as they lie, on this thread: gemm_small.c, gemm_tiny.c. Else:
 *   tiles of AMX       32 rows x 2 vectors, up to 16 rows x 4, of bf16 by steps of sixteen pairs, and of i8
 *   rows <= 6          wide tiles (1 x 8 vectors, ... 6 x 4): enough independent chains to hide the latency of an FMA
 *   else               14 x 2 vectors (AVX2: 6 x 2), rows split evenly: 128 = 8 x 13 + 2 x 12
 *   left operand       in place if it is row-major and small, or a window (gemm_window.c), else packed where it is used, block by block of k if one
 *                      group of columns is all that uses it; by the caller if it comes back
 *   right operand      up to 4 rows: transposed in registers if its columns are contiguous (gemm_few_body.h)
 *                      up to 42 rows: in place if it is row-major; else packed where it is used, or first by all threads (gemm_set.c)
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm.h"
#include "runtime/gemm_amx.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_isa.h"
#include "runtime/parallel.h"

#include <string.h>

opq_status gemm_kernel_find(const opq_gemm *gemm, opq_gemm_element element, opq_gemm_left left, int rows, int vectors,
                            opq_gemm_kernel *out)
{
    *out = gemm->tiles[element] ? (*gemm->tiles[element])[left][rows][vectors] : NULL;
    return *out ? OPQ_OK
                : opq_fail(OPQ_INTERNAL, "there is no tile of %d rows and %d vectors of element %d", rows, vectors,
                           (int)element);
}

/* ---- plan */

const opq_gemm_isa *gemm_isa(const struct opq_cpu *cpu)
{
    return opq_gemm_vector_bytes(cpu) == opq_gemm_avx512.vector_bytes ? &opq_gemm_avx512 : &opq_gemm_avx2;
}

static opq_dtype sums_of(opq_dtype packed) { return gemm_is_bf16(packed) || packed == OPQ_i8 ? OPQ_f32 : packed; }

static gemm_rule rule_of(const opq_gemm *gemm, opq_dtype packed)
{
    bool tiles = opq_cpu_has(gemm->cpu, OPQ_LEAF_tiles);
    if (packed == OPQ_bf16)
        return opq_cpu_has(gemm->cpu, OPQ_LEAF_pairs) ? GEMM_PAIRS : GEMM_SWAPPED;
    if (packed == OPQ_f16)
        return tiles ? GEMM_PAIRS16 : GEMM_APART;
    if (packed == OPQ_i32 && tiles)
        return GEMM_BYTES;
    if (packed == OPQ_i32)
        return opq_cpu_has(gemm->cpu, OPQ_LEAF_quads) ? GEMM_QUADS : GEMM_SHORTS;
    return packed == OPQ_i8 ? GEMM_WIDENED : GEMM_CHAIN;
}

/* k as the kernels count it. */
static int64_t steps_of(gemm_rule rule, int64_t k)
{
    if (gemm_has_tiles(rule))
        return gemm_ceil(k, 16 * gemm_word(rule)) * 16;
    int64_t step = rule == GEMM_APART ? OPQ_PAIRS_MAX : rule == GEMM_SWAPPED ? 2 : 1;
    return gemm_ceil(k, gemm_word(rule) * step) * step;
}

static gemm_run run_make(opq_gemm *gemm, const opq_gemm_call *call)
{
    gemm_run run = {.gemm = gemm, .cpu = gemm->cpu, .call = *call, .element_bytes = opq_dtype_bytes(call->dtype)};
    run.rule = rule_of(gemm, gemm_packed_as(call));
    run.right_bytes = run.rule == GEMM_WIDENED ? 1 : run.element_bytes;
    run.terms = call->k;
    run.call.k = steps_of(run.rule, call->k);
    run.call.packed_k = steps_of(run.rule, call->packed_k);
    run.isa = gemm_isa(run.cpu);
    run.lanes = run.isa->vector_bytes / run.element_bytes;
    run.panel = OPQ_GEMM_PANEL_VECTORS * run.lanes;
    return run;
}

static int64_t thread_count(const opq_gemm *gemm)
{
    const opq_host *host = gemm->host;
    if (!host || !host->parallel_for)
        return 1;
    int count = host->thread_count ? host->thread_count(host->self) : 1;
    return count > 1 ? count : 1;
}

/* Cuts each batch into row_chunks x column_chunks blocks so that every thread gets work and the slowest gets the least. What a
 * chunk costs besides multiplying is its operands' packing or reading: about as much as a few rows or columns more. */
static void plan_chunks(gemm_run *run)
{
    const opq_gemm_call *call = &run->call;
    run->row_chunks = run->column_chunks = 1;
    int64_t threads =
        call->serial || gemm_work(call) < (double)run->cpu->target->gemm.serial_work ? 1 : thread_count(run->gemm);
    if (threads == 1)
        return;
    double best = 0;
    int64_t most = gemm_ceil(threads, gemm_min(call->batch, threads)) * 2;
    for (int64_t columns = 1; columns <= gemm_min(run->column_panels, most); columns++)
        for (int64_t rows = 1; rows <= gemm_min(run->row_panels, gemm_ceil(most, columns)); rows++) {
            int64_t chunk_rows = gemm_ceil(run->row_panels, rows) * gemm_ceil(call->m, run->row_panels);
            int64_t chunk_columns = gemm_ceil(run->column_panels, columns) * run->panel;
            double turns = (double)gemm_ceil(call->batch * rows * columns, threads);
            double cost = turns * ((double)chunk_rows + 8) * ((double)chunk_columns + 16);
            if (best == 0 || cost < best) {
                best = cost;
                run->row_chunks = rows;
                run->column_chunks = columns;
            }
        }
}

/* Can the kernels read the left operand as it lies? */
static bool reads_rows(const gemm_run *run, const opq_matrix *a)
{
    return gemm_in_rows(a, gemm_left_dtype(run)) && run->terms == run->call.k * gemm_word(run->rule);
}

/* Of the left operand, in a panel. */
static int64_t panel_rows(const gemm_run *run)
{
    int64_t most = opq_gemm_rows_max(run->cpu, OPQ_GEMM_PANEL_VECTORS);
    if (gemm_has_tiles(run->rule))
        return OPQ_AMX_ROWS_MAX;
    return run->a_in_place ? gemm_min(most, run->cpu->target->gemm.rows_in_place) : most;
}

/* More, if kernels need no address for each of them. */
static int64_t window_rows(gemm_run *run, int64_t most)
{
    int64_t vectors = gemm_min(gemm_ceil(run->call.n, run->lanes), OPQ_GEMM_PANEL_VECTORS);
    int64_t rows = gemm_window_rows(run, opq_gemm_rows_max(run->cpu, (int)vectors), &run->window);
    if (rows > most && run->call.m > most)
        return rows;
    run->window = OPQ_GEMM_LEFT_WINDOW;
    return most;
}

/* In the row of a tile of so many rows. */
static int tile_vectors(const gemm_run *run, int64_t rows)
{
    if (gemm_has_tiles(run->rule))
        return rows > OPQ_AMX_ROWS ? OPQ_AMX_VECTORS_MAX / 2 : OPQ_AMX_VECTORS_MAX;
    return gemm_tile_vectors(run->cpu, rows, OPQ_GEMM_VECTORS_MAX);
}

static void plan_tile(gemm_run *run)
{
    const opq_gemm_call *call = &run->call;
    const opq_target_gemm *t = &run->cpu->target->gemm;
    int64_t b_bytes = call->k * call->n * run->element_bytes;
    run->a_window = !call->packed_a && gemm_is_window(gemm_as_it_lies(call), &call->a, call->n);
    run->a_in_place = run->a_window || (reads_rows(run, &call->a) && !call->packed_a &&
                                        (call->m <= t->rows_in_place || call->n * run->element_bytes <= t->group_bytes));
    int64_t most = panel_rows(run);
    most = run->a_window ? window_rows(run, most) : most;
    run->row_panels = gemm_ceil(call->m, most);
    run->column_panels = gemm_ceil(call->n, run->panel);

    run->vectors = tile_vectors(run, gemm_ceil(call->m, run->row_panels));
    int64_t step = gemm_step_panels(run), group_bytes = gemm_has_tiles(run->rule) ? t->amx_group_bytes : t->group_bytes;
    run->group_panels = gemm_ceil(group_bytes / (run->panel * run->element_bytes), step) * step;
    run->tile_panels = t->tile_panels * (int64_t)OPQ_GEMM_ROWS_MAX / most;

    run->few_rows = call->dtype == OPQ_f32 && run->rule == GEMM_CHAIN && call->m <= OPQ_FEW_ROWS_MAX && call->k > 0 &&
                    !call->packed_b && !call->accumulate && !run->a_window && call->b.row_stride == 1 &&
                    call->b.column_stride != 1 && !gemm_has_tables(&call->b);
    run->b_in_place =
        gemm_in_rows(&call->b, gemm_as_it_lies(call)) && (call->m <= t->rows_b_in_place || b_bytes <= t->small_b_bytes);
}

/* Needs the chunks. */
static void plan_k(gemm_run *run)
{
    const opq_gemm_call *call = &run->call;
    const opq_target_gemm *t = &run->cpu->target->gemm;
    int64_t most = t->block_bytes / run->element_bytes;
    run->streams_b = run->row_panels == 1 && call->packed_b && call->k > 0 &&
                     call->m * call->k * run->element_bytes <= t->l1_group_bytes;
    if (run->few_rows || run->streams_b)
        most = call->k;
    else if (run->row_panels == 1 && !run->b_in_place && !call->packed_b)
        most = t->l1_group_bytes / (gemm_step_panels(run) * gemm_row_bytes(run));
    /* Equal blocks, whole steps of the kernels' unrolled loop, of the packers' transposes, and of GEMM_APART. */
    int64_t blocks = gemm_ceil(call->k, most);
    run->k_block = blocks > 1 ? gemm_ceil(gemm_ceil(call->k, blocks), 32) * 32 : call->k;
}

/* ---- parts */

void gemm_parallel(opq_gemm *gemm, int64_t count, double work, void (*body)(void *data, int64_t begin, int64_t end),
                   void *data)
{
    int64_t grain = (int64_t)((double)count * (double)gemm->cpu->target->gemm.block_work / (work + 1)) + 1;
    opq_parallel_for(gemm->host, count, grain, body, data);
}

/* Moves to where a part of the batch, or of the rows, starts for a caller's tile function. */
typedef struct shifted {
    opq_gemm_tile tile;
    void *data;
    int64_t batch, row;
} shifted;

static void shifted_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                         const void *tile, int64_t ld)
{
    const shifted *s = data;
    s->tile(s->data, batch + s->batch, row + s->row, rows, column, columns, tile, ld);
}

/* Regions of rows bound the memory for packed a. */
static int64_t region_count(const opq_gemm *gemm, opq_dtype dtype, int64_t m, int64_t k)
{
    int64_t row_bytes = (k > 0 ? k : 1) * opq_dtype_bytes(dtype), most = gemm->cpu->target->gemm.region_bytes;
    if (m * row_bytes <= most)
        return 1;
    int64_t region = most / row_bytes + 1;
    return gemm_ceil(m, region > 256 ? region : 256);
}

/* Rows [row, end) of a call. */
static gemm_run run_part(opq_gemm *gemm, const opq_gemm_call *call, int64_t row, int64_t end, shifted *out_shift)
{
    gemm_run run = run_make(gemm, call);
    *out_shift = (shifted){.tile = call->tile, .data = call->tile_data, .row = row};
    run.call.m = end - row;
    opq_matrix_skip(&run.call.a, row);
    if (call->tile && row > 0) {
        run.call.tile = shifted_tile;
        run.call.tile_data = out_shift;
    } else if (!call->tile) {
        run.call.c = (char *)call->c + row * call->c_row_stride * opq_dtype_bytes(call->dtype);
    }
    plan_tile(&run);
    plan_chunks(&run);
    plan_k(&run);
    return run;
}

/* Of calls with the same m and k. */
opq_status gemm_run_regions(opq_gemm *gemm, const opq_gemm_call *calls, int count)
{
    bool window = gemm_is_window(gemm_as_it_lies(calls), &calls->a, calls->n);
    int64_t regions = window ? 1 : region_count(gemm, calls->dtype, calls->m, calls->k);
    for (int64_t i = 0; i < regions; i++) {
        gemm_run runs[OPQ_PRODUCTS_MAX];
        shifted shift[OPQ_PRODUCTS_MAX];
        for (int c = 0; c < count; c++)
            runs[c] = run_part(gemm, &calls[c], i * calls->m / regions, (i + 1) * calls->m / regions, &shift[c]);
        gemm_set set = {.runs = runs, .count = count};
        OPQ_TRY(gemm_run_set(&set));
    }
    return OPQ_OK;
}

/* ---- entry points */

static opq_status invalid(void)
{
    return opq_fail(OPQ_INVALID, "gemm: sizes must be >= 0 and operands of a floating dtype no wider than the sums");
}

static bool operand_fits(opq_dtype dtype, opq_dtype operand)
{
    bool narrow = operand == OPQ_f32 || operand == OPQ_f16 || operand == OPQ_bf16;
    return dtype == OPQ_f64 ? narrow || operand == OPQ_f64 : operand == OPQ_i8 || (dtype == OPQ_f32 && narrow);
}

/* i8 is a bf16, too; f32 is rounded to it. */
static bool is_pairs_of(opq_dtype operand) { return operand == OPQ_bf16 || operand == OPQ_f32 || operand == OPQ_i8; }

static opq_status check(const opq_gemm_call *call)
{
    bool sizes = call->batch >= 0 && call->m >= 0 && call->n >= 0 && call->k >= 0;
    if (!sizes || (call->dtype != OPQ_f32 && call->dtype != OPQ_f64 && call->dtype != OPQ_i32) ||
        (!call->packed_a && !operand_fits(call->dtype, call->a.dtype)) ||
        (!call->packed_b && !operand_fits(call->dtype, call->b.dtype)))
        return invalid();
    bool fits = call->dtype == OPQ_f32 && (call->packed_a || is_pairs_of(call->a.dtype)) &&
                (call->packed_b || is_pairs_of(call->b.dtype));
    if (call->pairs && !fits)
        return opq_fail(OPQ_INVALID, "gemm: pairs are of bf16, or of f32");
    return OPQ_OK;
}

/* Is the batch one matrix of more rows? */
static bool folds(const opq_gemm_call *call)
{
    bool one_b = call->packed_b || call->b.batch_stride == 0;
    return call->batch > 1 && !call->tile && one_b && !call->packed_a && !call->a.rows &&
           call->a.batch_stride == call->m * call->a.row_stride && call->c_batch_stride == call->m * call->c_row_stride;
}

static opq_status run(opq_gemm *gemm, const opq_gemm_call *call)
{
    if (gemm_is_small(gemm->cpu, call))
        return gemm_run_small(gemm, gemm->cpu, call);
    if (gemm_is_tiny(call)) {
        gemm_run_tiny(call);
        return OPQ_OK;
    }
    if (gemm_is_turned(call))
        return gemm_run_turned(gemm, gemm->cpu, call);
    return gemm_run_regions(gemm, call, 1);
}

/* Is the operand read, with padding that blocks do not copy? */
static bool is_padded(const opq_gemm_call *call, int o)
{
    const opq_matrix *x = o == 0 ? &call->a : &call->b;
    if (!x->padded || x->padded->count <= 0 || (o == 0 ? call->packed_a != NULL : call->packed_b && !call->turned))
        return false;
    bool left = (o == 1) == gemm_is_turned(call);
    return !left || !gemm_is_window(gemm_as_it_lies(call), x, o == 0 ? call->n : call->m);
}

/* Copies with the padding first, of so many matrices at a time as shall be in memory. */
static opq_status run_padded(opq_gemm *gemm, const opq_gemm_call *call)
{
    int64_t each = gemm_padded_bytes(&call->a) + gemm_padded_bytes(&call->b) + 1, bytes = opq_dtype_bytes(call->dtype);
    int64_t most = gemm->cpu->target->gemm.region_bytes / each + thread_count(gemm);
    opq_status status = OPQ_OK;
    for (int64_t i = 0; i < call->batch && status == OPQ_OK; i += most) {
        opq_gemm_call part = *call;
        shifted shift = {.tile = call->tile, .data = call->tile_data, .batch = i};
        void *copy[2] = {NULL, NULL};
        part.batch = gemm_min(most, call->batch - i);
        part.c = call->tile ? NULL : (char *)call->c + i * call->c_batch_stride * bytes;
        part.tile = call->tile ? shifted_tile : NULL;
        part.tile_data = &shift;
        for (int o = 1; o >= 0 && status == OPQ_OK; o--) { /* a copy on the right may be a window, and turn the product */
            opq_matrix *x = o == 0 ? &part.a : &part.b;
            x->data = opq_pack_at(x->data, x->dtype, i * x->batch_stride);
            if (is_padded(&part, o))
                status = gemm_copy_padded(gemm, part.batch, call->serial, o == 0 ? call->m : call->k,
                                          o == 0 ? call->k : call->n, x, &copy[o]);
        }
        status = status == OPQ_OK ? run(gemm, &part) : status;
        for (int o = 0; o < 2; o++)
            if (copy[o])
                gemm_scratch_release(GEMM_SCRATCH_padded, copy[o]);
    }
    return status;
}

opq_status opq_gemm_run(opq_gemm *gemm, const opq_gemm_call *call)
{
    OPQ_TRY(check(call));
    if (call->batch == 0 || call->m == 0 || call->n == 0)
        return OPQ_OK;
    opq_gemm_call folded;
    if (folds(call)) {
        folded = *call;
        folded.m *= call->batch;
        folded.batch = 1;
        call = &folded;
    }
    return is_padded(call, 0) || is_padded(call, 1) ? run_padded(gemm, call) : run(gemm, call);
}

opq_status opq_gemm_run_beside(opq_gemm *gemm, const opq_gemm_call *calls, int count)
{
    bool beside = count <= OPQ_PRODUCTS_MAX;
    for (int c = 0; c < count; c++) {
        OPQ_TRY(check(&calls[c]));
        beside = beside && calls[c].n > 1 && !gemm_is_turned(&calls[c]) && !is_padded(&calls[c], 0) &&
                 !is_padded(&calls[c], 1) && calls[c].batch > 0 && calls[c].m > 0 && calls[c].m == calls->m &&
                 calls[c].k == calls->k && calls[c].dtype == calls->dtype && calls[c].pairs == calls->pairs;
    }
    if (beside && count > 0)
        return gemm_run_regions(gemm, calls, count);
    for (int c = 0; c < count; c++)
        OPQ_TRY(opq_gemm_run(gemm, &calls[c]));
    return OPQ_OK;
}

int64_t opq_gemm_packed_bytes(const opq_gemm *gemm, opq_dtype dtype, int64_t k, int64_t n)
{
    gemm_rule rule = rule_of(gemm, dtype);
    int64_t panel = OPQ_GEMM_PANEL_VECTORS * opq_gemm_vector_bytes(gemm->cpu) / opq_dtype_bytes(sums_of(dtype));
    int64_t bytes = opq_dtype_bytes(dtype == OPQ_i8 ? OPQ_i8 : sums_of(dtype));
    return gemm_ceil(n, panel) * panel * bytes * gemm_panel_rows(rule, steps_of(rule, k));
}

static opq_status check_packed(opq_dtype dtype, const opq_matrix *matrix, int64_t rows, int64_t columns)
{
    bool fits = gemm_is_bf16(dtype) ? is_pairs_of(matrix->dtype)
                : dtype == OPQ_i8   ? matrix->dtype == OPQ_i8
                                    : operand_fits(dtype, matrix->dtype);
    bool known = sums_of(dtype) == OPQ_f32 || dtype == OPQ_f64 || dtype == OPQ_i32;
    if (rows < 0 || columns < 0 || !known || !fits)
        return invalid();
    return OPQ_OK;
}

/* Columns that so many take up: the last tile has whole vectors, up to its own two by two. */
static int64_t padded_columns(int64_t columns, int lanes)
{
    int64_t vectors = gemm_ceil(columns, lanes);
    return (vectors > OPQ_GEMM_PANEL_VECTORS ? gemm_ceil(vectors, 2) * 2 : vectors) * lanes;
}

int64_t opq_gemm_packed_left_bytes(const opq_gemm *gemm, opq_dtype dtype, const opq_matrix *b, int64_t m, int64_t n,
                                   int64_t k, bool *out_turned)
{
    const struct opq_cpu *cpu = gemm->cpu;
    const opq_target_gemm *t = &cpu->target->gemm;
    gemm_rule rule = rule_of(gemm, dtype);
    int lanes = opq_gemm_vector_bytes(cpu) / opq_dtype_bytes(sums_of(dtype)),
        rows = gemm_has_tiles(rule) ? OPQ_AMX_ROWS_MAX : opq_gemm_rows_max(cpu, OPQ_GEMM_PANEL_VECTORS);
    opq_matrix right = gemm_transposed(b);
    *out_turned =
        (!gemm_is_bf16(dtype) && gemm_is_window(dtype, &right, m)) ||
        (k >= t->turned_k_min && !gemm_has_tiles(rule) &&
         (double)padded_columns(n, lanes) * (double)m > t->turned_gain * (double)padded_columns(m, lanes) * (double)n);
    if (*out_turned)
        return opq_gemm_packed_bytes(gemm, dtype, k, m);
    k = steps_of(rule, k);
    return m > rows && region_count(gemm, sums_of(dtype), m, k) == 1 ? m * k * opq_dtype_bytes(sums_of(dtype)) : 0;
}

static void pack_right(opq_gemm *gemm, opq_gemm_call *call, const opq_matrix *b, int64_t k, int64_t n, void *out)
{
    call->n = n;
    call->k = k;
    call->b = *b;
    gemm_run run = run_make(gemm, call);
    run.shared_b = out;
    run.column_panels = gemm_ceil(n, run.panel);
    run.group_panels = gemm->cpu->target->gemm.group_bytes / (run.panel * run.element_bytes);
    run.k_block = gemm->cpu->target->gemm.block_bytes / run.element_bytes;
    gemm_parallel(gemm, gemm_shared_b_count(&run), (double)k * (double)n, gemm_pack_shared_b, &run);
}

static void pack_left(opq_gemm *gemm, opq_gemm_call *call, const opq_matrix *a, int64_t m, int64_t k, void *out)
{
    call->m = m;
    call->n = 1;
    call->k = k;
    call->a = *a;
    call->packed_a = out;
    gemm_run run = run_make(gemm, call);
    run.shared_a = out;
    plan_tile(&run);
    plan_k(&run);
    gemm_parallel(gemm, run.row_panels, (double)k * (double)m, gemm_pack_shared_a, &run);
}

static opq_status pack(opq_gemm *gemm, opq_dtype dtype, bool left, const opq_matrix *matrix, int64_t rows,
                       int64_t columns, void *out)
{
    opq_gemm_call call = {.dtype = sums_of(dtype), .pairs = dtype == OPQ_f16 ? 16 : dtype == OPQ_bf16, .batch = 1};
    opq_matrix x = *matrix;
    void *copy = NULL;
    OPQ_TRY(check_packed(dtype, matrix, rows, columns));
    if (rows == 0 || columns == 0)
        return OPQ_OK;
    if (x.padded)
        OPQ_TRY(gemm_copy_padded(gemm, 1, false, rows, columns, &x, &copy));
    (left ? pack_left : pack_right)(gemm, &call, &x, rows, columns, out);
    if (copy)
        gemm_scratch_release(GEMM_SCRATCH_padded, copy);
    return OPQ_OK;
}

opq_status opq_gemm_pack_b(opq_gemm *gemm, opq_dtype dtype, const opq_matrix *b, int64_t k, int64_t n, void *out)
{
    if (dtype == OPQ_f32 && b->dtype == OPQ_i8) /* calls would read it as i8 */
        return invalid();
    return pack(gemm, dtype, false, b, k, n, out);
}

opq_status opq_gemm_pack_a(opq_gemm *gemm, opq_dtype dtype, const opq_matrix *a, int64_t m, int64_t k, bool turned,
                           void *out)
{
    opq_matrix right = gemm_transposed(a);
    return turned ? opq_gemm_pack_b(gemm, dtype, &right, k, m, out) : pack(gemm, dtype, true, a, m, k, out);
}
