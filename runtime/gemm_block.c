/* Computes one block of a product: a range of row panels times a range of column panels.
 *
 *   for each group of column panels
 *     for each block of k                        b: packed here, shared, or in place; stays in L2
 *       for each tile of row panels              a: packed before, in place, or packed here where no other group uses it
 *                                                c: in place, or a scratch tile that the callback gets after the last block of k
 *         for each step of column panels         its part of b is streamed once per, or packed here for one row panel
 *           row panel: kernel                    the sums continue from c: still one chain per element
 */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_amx.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_isa.h"

#include <immintrin.h>
#include <string.h>

enum { DEFAULT_CSR = 0x1f80 }; /* all exceptions masked, to nearest even */
enum { EDGE_BYTES = OPQ_GEMM_ROWS_MAX * OPQ_GEMM_VECTORS_MAX * 64 };

/* Where one block of k of an operand is; both are empty when k is 0. */
typedef struct left_view {
    const char *data; /* panel: data + row * row_bytes, rows counted within the region */
    int64_t row_bytes;
    int64_t first_row; /* of the region */
    opq_gemm_left kind;
    const int64_t *rows, *columns; /* of a window: of its row 0, of this k */
} left_view;

typedef struct right_view {
    const char *data; /* row k of panel p: data + k * k_bytes + p * panel_bytes */
    int64_t k_bytes, panel_bytes;
    int64_t start; /* 0, or what sums begin with is so many bytes behind the first row */
    bool packs;    /* it is room for what each step packs */
    int64_t panel; /* then, the first one */
} right_view;

typedef struct block {
    gemm_run *run;
    int64_t batch;
    int64_t row_first, row_last;                 /* row panels */
    const char *packed_a;                        /* region of packed row panels, NULL if in place */
    int64_t region_first, region_last, region_k; /* region_k: its first k */
    gemm_window window;
    char *room; /* for packed rows */
    char *packed_b, *tile, *edge;
} block;

static left_view left_of(block *w, int64_t k0, int64_t k)
{
    const gemm_run *run = w->run;
    const opq_matrix *a = &run->call.a;
    if (run->a_window)
        return (left_view){.data = gemm_window_data(run, w->batch, k0, k, &w->window),
                           .kind = run->window,
                           .rows = w->window.rows,
                           .columns = w->window.columns + k0};
    if (run->a_in_place) {
        int64_t from = k0;
        (void)gemm_terms(run, &from, k);
        return (left_view){.data = opq_pack_at(a->data, a->dtype, w->batch * a->batch_stride + from),
                           .row_bytes = a->row_stride * opq_dtype_bytes(a->dtype),
                           .kind = OPQ_GEMM_LEFT_ROWS};
    }
    int64_t base = gemm_row(run, w->region_first), rows = gemm_row(run, w->region_last) - base;
    return (left_view){.data = w->packed_a + (k0 - w->region_k) * rows * run->element_bytes,
                       .row_bytes = k * run->element_bytes,
                       .first_row = base,
                       .kind = OPQ_GEMM_LEFT_PACKED};
}

/* Vectors of a tile for `columns` columns: few variants, so that few are compiled. */
static int vectors_for(const gemm_run *run, int64_t columns)
{
    int64_t vectors = gemm_ceil(columns, run->lanes);
    if (vectors > 2)
        vectors = gemm_ceil(vectors, 2) * 2;
    return (int)gemm_min(vectors, run->vectors);
}

/* Does no tile of a group of so many columns read behind the last one? */
static bool reads_whole_vectors(const gemm_run *run, int64_t columns)
{
    int64_t rest = columns % ((int64_t)run->vectors * run->lanes);
    return rest == 0 || vectors_for(run, rest) * run->lanes == rest;
}

/* One row panel uses what is packed of the right operand at once: each step's is put in the same place, near. */
static bool packs_steps(const gemm_run *run) { return run->row_panels == 1; }

/* Row panels that are packed and multiplied before the next ones, of a block: few, so that they stay in cache, if that reads only a b that
 * stays there too. */
static int64_t panels_at_once(const gemm_run *run)
{
    const opq_gemm_call *call = &run->call;
    const opq_target_gemm *t = &run->cpu->target->gemm;
    int64_t panels = gemm_ceil(run->row_panels, run->row_chunks);
    if (!gemm_packs_a(run) || run->shared_a || gemm_packs_a_blocks(run) ||
        call->k * call->n * run->element_bytes > t->near_b_bytes)
        return panels;
    int64_t bytes = gemm_ceil(call->m, run->row_panels) * call->k * run->element_bytes;
    return gemm_min(panels, t->near_a_bytes / (bytes + 1) + 1);
}

/* Is all that a block needs of b packed here, for one after the other of these? */
static bool keeps_b(const gemm_run *run)
{
    return gemm_packs_b(run) && !run->shared_b && panels_at_once(run) < gemm_ceil(run->row_panels, run->row_chunks);
}

/* Group [first, last) of column panels, rows [k0, k0 + k). Packs it unless it is packed already or good as it is. */
static right_view right_of(const block *w, int64_t first, int64_t last, int64_t k0, int64_t k)
{
    const gemm_run *run = w->run;
    const opq_matrix *b = &run->call.b;
    int64_t row_bytes = gemm_row_bytes(run), whole = run->call.k;
    if (run->call.packed_b && run->call.packed_k > 0)
        whole = run->call.packed_k;
    int64_t panel_bytes = gemm_panel_bytes(run, whole);
    int64_t offset = first * panel_bytes + k0 * row_bytes, start = run->rule == GEMM_QUADS ? whole * row_bytes : 0;
    right_view view = {.k_bytes = row_bytes, .panel_bytes = panel_bytes, .start = k0 == 0 ? start : 0};
    if (run->call.packed_b || run->shared_b || keeps_b(run)) {
        int64_t matrix = w->batch % gemm_right_count(run) * run->column_panels;
        view.data = run->call.packed_b ? run->call.packed_b
                    : run->shared_b    ? run->shared_b + matrix * panel_bytes
                                       : w->packed_b;
        view.data += offset;
        return view;
    }
    if (run->b_in_place && reads_whole_vectors(run, gemm_min(last * run->panel, run->call.n) - first * run->panel)) {
        const void *data =
            opq_pack_at(b->data, b->dtype, w->batch * b->batch_stride + k0 * b->row_stride + first * run->panel);
        return (right_view){.data = data, .k_bytes = b->row_stride * run->element_bytes, .panel_bytes = row_bytes};
    }
    view = (right_view){.data = w->packed_b,
                        .k_bytes = row_bytes,
                        .panel_bytes = gemm_panel_bytes(run, k),
                        .start = run->rule == GEMM_QUADS ? k * row_bytes : 0,
                        .packs = packs_steps(run),
                        .panel = first};
    if (!view.packs)
        gemm_pack_b_panels(run, w->batch, first, last, k0, k, w->packed_b, view.panel_bytes);
    return view;
}

/* One kernel's share: rows from `row` on of the left operand, times the panel `at` of the right one. */
typedef struct piece {
    opq_gemm_kernel kernel; /* NULL: tiles of AMX */
    const left_view *a;
    const right_view *b;
    int64_t row, rows, k;
    int vectors;
    const char *at;
} piece;

static void run_kernel(const block *w, const piece *p, char *c, int64_t c_bytes, bool accumulate, const char *next,
                       int64_t next_step)
{
    const left_view *a = p->a;
    const right_view *b = p->b;
    const char *left = a->data + (p->row - a->first_row) * a->row_bytes;
    if (p->kernel) {
        p->kernel(left, a->row_bytes, p->at, b->k_bytes, b->panel_bytes, c, c_bytes, p->k, accumulate, next, next_step,
                  a->rows ? a->rows + p->row : NULL, a->columns);
        return;
    }
    bool packed = a->kind == OPQ_GEMM_LEFT_PACKED;
    opq_amx_run(&(opq_amx_work){.bytes = w->run->rule == GEMM_BYTES,
                                .accumulate = accumulate,
                                .vectors = p->vectors,
                                .rows = p->rows,
                                .k = p->k,
                                .a = left,
                                .a_stride = packed ? OPQ_AMX_BYTES : a->row_bytes,
                                .a_step = packed ? p->rows * OPQ_AMX_BYTES : OPQ_AMX_BYTES,
                                .b = p->at,
                                .panel_stride = b->panel_bytes,
                                .c = c,
                                .c_stride = c_bytes,
                                .prefetch = next,
                                .prefetch_step = next_step});
}

/* A tile that sticks out of c goes through a buffer. */
static void run_edge(const block *w, const piece *p, char *c, int64_t c_bytes, int64_t columns, bool accumulate)
{
    size_t width = (size_t)(columns * w->run->element_bytes);
    int64_t edge_bytes = (int64_t)p->vectors * w->run->lanes * w->run->element_bytes;
    for (int64_t i = 0; accumulate && i < p->rows; i++)
        memcpy(w->edge + i * edge_bytes, c + i * c_bytes, width);
    run_kernel(w, p, w->edge, edge_bytes, accumulate, p->at, 0);
    for (int64_t i = 0; i < p->rows; i++)
        memcpy(c + i * c_bytes, w->edge + i * edge_bytes, width);
}

/* Not inlined, or it may move out of where denormals are 0. */
__attribute__((noinline)) static void add_up(const float *even, const float *odd, int64_t columns, float *c)
{
    for (int64_t j = 0; j < columns; j++)
        c[j] += even[j] + odd[j];
}

/* By steps of sixteen pairs, without tiles: of each step the sums of the first ones and of the second ones by themselves. */
static void run_apart(const block *w, piece p, char *c, int64_t c_bytes, int64_t columns, bool more)
{
    const gemm_run *run = w->run;
    left_view a = *p.a;
    int64_t edge_bytes = (int64_t)p.vectors * run->lanes * run->element_bytes, left = p.k;
    p.a = &a;
    p.k = OPQ_PAIRS_MAX / 2;
    for (int64_t i = 0; i < p.rows && !more; i++)
        memset(c + i * c_bytes, 0, (size_t)(columns * run->element_bytes));
    for (; left > 0; left -= OPQ_PAIRS_MAX) {
        for (int odd = 0; odd < 2; odd++, p.at += p.k * p.b->k_bytes, a.data += p.k * p.rows * run->element_bytes)
            run_kernel(w, &p, w->edge + odd * EDGE_BYTES, edge_bytes, false, p.at, 0);
        for (int64_t i = 0; i < p.rows; i++) {
            const char *even = w->edge + i * edge_bytes;
            add_up((const void *)even, (const void *)(even + EDGE_BYTES), columns, (void *)(c + i * c_bytes));
        }
    }
}

/* MXCSR around kernels that stand in for an instruction, which takes and gives no denormal numbers, whatever MXCSR says. */
static bool stands_in(const gemm_run *run) { return run->rule == GEMM_SWAPPED || run->rule == GEMM_APART; }

static unsigned begin_swapped(const gemm_run *run)
{
    unsigned before = _mm_getcsr();
    if (stands_in(run))
        _mm_setcsr(DEFAULT_CSR | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    return before;
}

static void end_swapped(const gemm_run *run, unsigned before)
{
    if (stands_in(run))
        _mm_setcsr(before);
}

static opq_gemm_element element_of(const gemm_run *run)
{
    switch (run->rule) {
    case GEMM_CHAIN:
    case GEMM_SWAPPED:
    case GEMM_APART:
    case GEMM_PAIRS16: /* and bytes: no kernel of these */
    case GEMM_BYTES: break;
    case GEMM_PAIRS: return OPQ_GEMM_PAIRS;
    case GEMM_WIDENED: return OPQ_GEMM_WIDENED;
    case GEMM_SHORTS: return OPQ_GEMM_SHORTS;
    case GEMM_QUADS: return OPQ_GEMM_QUADS;
    }
    return gemm_number(run->call.dtype);
}

/* Sums in c begin with a row of the panels from `at` on, which is added to what is there if there is more. */
static void start_sums(const gemm_run *run, const right_view *b, const char *at, char *c, int64_t c_bytes, int64_t rows,
                       int64_t columns, bool more)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += run->panel) {
            const uint32_t *from = (const uint32_t *)(const void *)(at + j / run->panel * b->panel_bytes + b->start);
            uint32_t *to = (uint32_t *)(void *)(c + i * c_bytes) + j;
            int64_t count = gemm_min(run->panel, columns - j);
            if (!more)
                memcpy(to, from, (size_t)count * sizeof *to);
            for (int64_t l = 0; l < count && more; l++)
                to[l] += from[l];
        }
}

/* What kernels ask for, each its share, while others use what was asked for before. */
typedef struct ahead {
    const char *at; /* NULL: nothing */
    int64_t share;  /* bytes */
} ahead;

/* Tiles wait for both operands: once the right one's panels have passed by, the next row panels are asked for while [first, last) pass. */
static ahead rows_ahead(const block *w, int64_t first, int64_t last, const left_view *a, int64_t steps)
{
    const gemm_run *run = w->run;
    if (!gemm_has_tiles(run->rule) || first == w->row_first || a->kind != OPQ_GEMM_LEFT_PACKED)
        return (ahead){NULL, 0};
    int64_t row = gemm_row(run, last),
            end = gemm_row(run, gemm_min(last + run->tile_panels, gemm_min(w->row_last, w->region_last)));
    return (ahead){a->data + (row - a->first_row) * a->row_bytes, (end - row) * a->row_bytes / (steps * (last - first))};
}

/* The panels of the columns from j on, at most a step of them. */
static const char *step_of(const block *w, const right_view *b, int64_t j, int64_t columns, int64_t k0, int64_t k)
{
    const gemm_run *run = w->run;
    int64_t panel = j / run->panel, last = gemm_min(panel + gemm_step_panels(run), gemm_ceil(columns, run->panel));
    if (!b->packs)
        return b->data + panel * b->panel_bytes;
    gemm_pack_b_panels(run, w->batch, b->panel + panel, b->panel + last, k0, k, w->packed_b, b->panel_bytes);
    return w->packed_b;
}

/* One tile, one block of k. c: its row panels' first row, the group's first column. */
static opq_status run_tile(const block *w, int64_t first, int64_t last, const left_view *a, const right_view *b,
                           int64_t columns, char *c, int64_t c_bytes, bool whole_vectors, int64_t k0, int64_t k)
{
    const gemm_run *run = w->run;
    bool more = k0 > 0 || run->call.accumulate;
    opq_gemm_element element = element_of(run);
    int64_t top = gemm_row(run, first), step = (int64_t)run->vectors * run->lanes;
    ahead left = rows_ahead(w, first, last, a, gemm_ceil(columns, step));
    for (int64_t j = 0; j < columns; j += step) {
        int64_t wide = gemm_min(step, columns - j), panels = gemm_step_panels(run);
        int vectors = vectors_for(run, wide);
        const char *at = step_of(w, b, j, columns, k0, k);
        ahead right = {at + panels * b->panel_bytes,
                       run->streams_b || b->packs ? 0 : panels * k * b->k_bytes / (last - first)};
        ahead *next = left.at ? &left : &right;
        for (int64_t p = first; p < last; p++, next->at += next->share) {
            int64_t row = gemm_row(run, p), rows = gemm_row(run, p + 1) - row;
            char *to = c + (row - top) * c_bytes + j * run->element_bytes;
            piece piece = {.a = a, .b = b, .row = row, .rows = rows, .k = k, .vectors = vectors, .at = at};
            if (!gemm_has_tiles(run->rule))
                OPQ_TRY(gemm_kernel_find(run->gemm, element, a->kind, (int)rows, vectors, &piece.kernel));
            if (b->start)
                start_sums(run, b, at, to, c_bytes, rows, wide, more);
            bool accumulate = more || b->start;
            unsigned csr = begin_swapped(run);
            if (run->rule == GEMM_APART)
                run_apart(w, piece, to, c_bytes, wide, more);
            else if (whole_vectors || wide == (int64_t)vectors * run->lanes)
                run_kernel(w, &piece, to, c_bytes, accumulate, next->at, gemm_ceil(next->share, k + 1));
            else
                run_edge(w, &piece, to, c_bytes, wide, accumulate);
            end_swapped(run, csr);
        }
    }
    return OPQ_OK;
}

/* The group's columns for a product of few rows: b as it is, all of k at once. */
static void run_few_rows(block *w, int64_t column, int64_t columns, char *c, int64_t c_row_stride)
{
    const gemm_run *run = w->run;
    const opq_gemm_call *call = &run->call;
    left_view a = left_of(w, 0, call->k);
    opq_few_rows work = {
        .rows = (int)call->m, .columns = columns, .k = call->k, .c = (float *)c, .c_row_stride = c_row_stride};
    work.a = (const float *)a.data;
    work.a_row_stride = run->a_in_place ? call->a.row_stride : 1;
    work.a_k_stride = run->a_in_place ? 1 : call->m;
    work.b = opq_pack_at(call->b.data, call->b.dtype, w->batch * call->b.batch_stride + column * call->b.column_stride);
    work.b_column_stride = call->b.column_stride;
    work.b_dtype = call->b.dtype;
    work.near = call->k * call->n * opq_dtype_bytes(call->b.dtype) <= run->cpu->target->gemm.near_b_bytes;
    /* One row from memory: half as many columns at once, so that half as much lies between what is read and what is fetched, is 6 % faster on
     * Zen 4. */
    bool half = call->m == 1 && !work.near;
    (half ? &opq_gemm_avx2 : run->isa)->few_rows(&work);
}

static void pack_block(block *w, int64_t first, int64_t last, int64_t k0, int64_t k)
{
    w->region_first = first;
    w->region_last = last;
    w->region_k = k0;
    gemm_pack_a_block(w->run, w->batch, first, first, last, k0, k, w->room);
    w->packed_a = w->room;
}

static opq_status run_group(block *w, int64_t first, int64_t last)
{
    const gemm_run *run = w->run;
    const opq_gemm_call *call = &run->call;
    int64_t column = first * run->panel, columns = gemm_min(last * run->panel, call->n) - column;
    int64_t top = gemm_row(run, w->row_first), tile_ld = run->group_panels * run->panel;
    int64_t c_bytes = (call->tile ? tile_ld : call->c_row_stride) * run->element_bytes, k0 = 0;
    do {
        int64_t k = gemm_min(run->k_block, call->k - k0);
        right_view b = {0};
        if (!run->few_rows)
            b = right_of(w, first, last, k0, k);
        for (int64_t p = w->row_first; p < w->row_last; p += run->tile_panels) {
            int64_t end = gemm_min(p + run->tile_panels, w->row_last), row = gemm_row(run, p);
            if (gemm_packs_a_blocks(run))
                pack_block(w, p, end, k0, k);
            left_view a = left_of(w, k0, k);
            char *c = w->tile;
            if (!call->tile)
                c = (char *)call->c +
                    (w->batch * call->c_batch_stride + row * call->c_row_stride + column) * run->element_bytes;
            else if (run->k_block < call->k)
                c += (row - top) * c_bytes;
            if (run->few_rows)
                run_few_rows(w, column, columns, c, c_bytes / run->element_bytes);
            else
                OPQ_TRY(run_tile(w, p, end, &a, &b, columns, c, c_bytes, call->tile != NULL, k0, k));
            if (call->tile && k0 + k >= call->k)
                call->tile(call->tile_data, w->batch, row, gemm_row(run, end) - row, column, columns, c, tile_ld);
        }
        k0 += k;
    } while (k0 < call->k);
    return OPQ_OK;
}

static int64_t round_up(int64_t bytes)
{
    return gemm_ceil(bytes, 4096) * 4096 + 192; /* off the page grid: the buffers do not fight for the same cache sets */
}

static int64_t chunk_rows_bytes(const gemm_run *run)
{
    if (run->a_window)
        return gemm_window_bytes(run);
    if (!gemm_packs_a(run) || run->shared_a)
        return 0;
    bool blocks = gemm_packs_a_blocks(run);
    int64_t panels = blocks ? run->tile_panels : panels_at_once(run);
    return panels * gemm_ceil(run->call.m, run->row_panels) * (blocks ? run->k_block : run->call.k) * run->element_bytes;
}

static int64_t group_bytes(const gemm_run *run)
{
    if (run->call.packed_b || run->shared_b || run->few_rows)
        return 0;
    if (keeps_b(run))
        return run->column_panels * gemm_panel_bytes(run, run->call.k);
    return (packs_steps(run) ? gemm_step_panels(run) : run->group_panels) * gemm_panel_bytes(run, run->k_block);
}

static int64_t tile_bytes(const gemm_run *run)
{
    if (!run->call.tile)
        return 0;
    /* Sums that continue over blocks of k need all rows at once, else one tile serves all. */
    int64_t panels = gemm_ceil(run->row_panels, run->row_chunks);
    if (run->k_block >= run->call.k)
        panels = gemm_min(panels, run->tile_panels);
    return panels * gemm_ceil(run->call.m, run->row_panels) * run->group_panels * run->panel * run->element_bytes;
}

static int64_t scratch_bytes(const gemm_run *run)
{
    return round_up(chunk_rows_bytes(run)) + round_up(group_bytes(run)) + round_up(tile_bytes(run)) + 2 * EDGE_BYTES;
}

/* The left operand for the block's rows: packed before, or here. */
static void place_left(block *w)
{
    const gemm_run *run = w->run;
    w->region_first = 0;
    w->region_last = run->row_panels;
    if (run->a_window) {
        gemm_window_begin(run, w->batch, w->room, &w->window);
    } else if (run->shared_a) {
        w->packed_a = run->shared_a + w->batch * gemm_packed_a_bytes(run, 0, run->row_panels);
    } else if (run->call.packed_a) {
        w->packed_a = run->call.packed_a;
    } else if (!run->a_in_place && !gemm_packs_a_blocks(run)) {
        w->region_first = w->row_first;
        w->region_last = w->row_last;
        w->packed_a = w->room;
        gemm_pack_a(run, w->batch, w->row_first, w->row_last, w->row_first, w->row_last, w->room);
    }
}

static opq_status run_block(gemm_run *run, int64_t index, char *scratch)
{
    block w = {.run = run, .room = scratch};
    int64_t column_chunk = index % run->column_chunks, rest = index / run->column_chunks;
    int64_t row_chunk = rest % run->row_chunks;
    w.batch = rest / run->row_chunks;
    int64_t row_first = row_chunk * run->row_panels / run->row_chunks;
    int64_t row_last = (row_chunk + 1) * run->row_panels / run->row_chunks, rows = panels_at_once(run);
    int64_t first = column_chunk * run->column_panels / run->column_chunks;
    int64_t last = (column_chunk + 1) * run->column_panels / run->column_chunks;

    w.packed_b = scratch + round_up(chunk_rows_bytes(run));
    w.tile = w.packed_b + round_up(group_bytes(run));
    w.edge = w.tile + round_up(tile_bytes(run));
    if (keeps_b(run)) {
        int64_t bytes = gemm_panel_bytes(run, run->call.k);
        gemm_pack_b_panels(run, w.batch, first, last, 0, run->call.k, w.packed_b + first * bytes, bytes);
    }
    for (int64_t r = row_first; r < row_last; r += rows) {
        w.row_first = r;
        w.row_last = gemm_min(r + rows, row_last);
        place_left(&w);
        for (int64_t p = first; p < last; p += run->group_panels)
            OPQ_TRY(run_group(&w, p, gemm_min(p + run->group_panels, last)));
    }
    return OPQ_OK;
}

void gemm_blocks(void *data, int64_t begin, int64_t end)
{
    gemm_set *set = data;
    int64_t bytes = 0, first = 0;
    for (int r = 0; r < set->count; r++) {
        int64_t needed = scratch_bytes(&set->runs[r]);
        bytes = needed > bytes ? needed : bytes;
    }
    char *scratch = gemm_scratch_acquire(GEMM_SCRATCH_block, bytes);
    int status = scratch ? OPQ_OK : OPQ_NO_MEMORY;
    for (int r = 0; r < set->count; r++) {
        int64_t last = first + gemm_block_count(&set->runs[r]);
        bool tiles = gemm_has_tiles(set->runs[r].rule) && begin < last && end > first;
        if (tiles)
            opq_amx_begin(set->runs[r].call.m);
        for (int64_t i = begin > first ? begin : first; i < gemm_min(end, last) && status == OPQ_OK; i++)
            status = run_block(&set->runs[r], i - first, scratch);
        if (tiles)
            opq_amx_end();
        first = last;
    }
    if (scratch)
        gemm_scratch_release(GEMM_SCRATCH_block, scratch);
    int none = OPQ_OK;
    if (status != OPQ_OK)
        atomic_compare_exchange_strong(&set->status, &none, status);
}
