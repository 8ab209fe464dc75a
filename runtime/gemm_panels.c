/* What of an operand the engine packs, and as what: panels of numbers, or of words, as the rule of the sums has them. */
#include "codegen_llvm/cpu.h"
#include "runtime/gemm_amx.h"
#include "runtime/gemm_internal.h"
#include "runtime/gemm_isa.h"

#include <string.h>

int64_t gemm_packed_a_bytes(const gemm_run *run, int64_t first, int64_t last)
{
    return (gemm_row(run, last) - gemm_row(run, first)) * run->call.k * run->element_bytes;
}

/* An operand from k and a neighbour across on: of the left one its columns and rows, of the right one its rows and columns. */
static opq_pack_source pack_source(const gemm_run *run, bool left, int64_t batch, int64_t k, int64_t across)
{
    const opq_matrix *m = left ? &run->call.a : &run->call.b;
    int64_t k_stride = left ? m->column_stride : m->row_stride, across_stride = left ? m->row_stride : m->column_stride;
    const int64_t *k_at = left ? m->columns : m->rows, *across_at = left ? m->rows : m->columns;
    opq_pack_source source = {
        .word = gemm_word(run->rule) > 1 ? (int)gemm_word(run->rule) : 0,
        .swapped = run->rule == GEMM_SWAPPED ? 2
                   : run->rule == GEMM_APART ? OPQ_PAIRS_MAX
                                             : 0,
        .unsigned_bytes = left && run->rule == GEMM_QUADS,
        .data = opq_pack_at(m->data, m->dtype, batch * m->batch_stride + k * k_stride + across * across_stride),
        .from = m->dtype,
        .to = !left && run->rule == GEMM_WIDENED ? OPQ_i8 : run->call.dtype,
        .k_stride = k_stride,
        .across_stride = across_stride,
        .k_at = k_at ? k_at + k : NULL,
        .across_at = across_at ? across_at + across : NULL,
        .target = &run->cpu->target->gemm,
    };
    return source;
}

/* Rows whose words lie side by side, as they do, or rounded to pairs. */
static void copy_words(const opq_pack_source *s, int64_t terms, int64_t rows, char *out)
{
    size_t bytes = (size_t)(terms * opq_dtype_bytes(s->from));
    for (int64_t i = 0; i < rows; i++, out += OPQ_AMX_BYTES) {
        const void *row = opq_pack_at(s->data, s->from, opq_pack_k(s, 0) + opq_pack_across(s, i));
        if (s->from == OPQ_f32) {
            opq_pack_rounded_avx512(row, terms, (uint16_t *)(void *)out);
            continue;
        }
        memcpy(out, row, bytes);
        memset(out + bytes, 0, OPQ_AMX_BYTES - bytes);
    }
}

/* A panel of rows for tiles: sixteen words of each row, then the next ones. */
static void pack_tiles(const gemm_run *run, const opq_pack_source *source, int64_t terms, int64_t rows, char *out)
{
    int64_t step = 16 * gemm_word(run->rule);
    bool has_words = source->from == gemm_left_dtype(run) || (run->rule == GEMM_PAIRS16 && source->from == OPQ_f32);
    for (int64_t k = 0; k < terms; k += step, out += rows * OPQ_AMX_BYTES) {
        _Alignas(64) char words[OPQ_AMX_ROWS_MAX * OPQ_AMX_BYTES];
        opq_pack_source part = opq_pack_part_of(source, k, 0);
        int64_t count = gemm_min(step, terms - k), row_bytes = rows * run->element_bytes;
        if (has_words && opq_pack_run(&part, 0, count) == count) {
            copy_words(&part, count, rows, out);
            continue;
        }
        opq_gemm_pack(run->isa, &part, count, rows, (int)rows, words, 0);
        int64_t whole = gemm_ceil(count, gemm_word(run->rule));
        memset(words + whole * row_bytes, 0, (size_t)((16 - whole) * row_bytes));
        run->isa->turn(&run->cpu->target->gemm, 4, words, rows, 16, rows, out, 16);
    }
}

void gemm_pack_a_block(const gemm_run *run, int64_t batch, int64_t region_first, int64_t first, int64_t last,
                       int64_t k0, int64_t k, char *out)
{
    int64_t base = gemm_row(run, region_first), from = k0, terms = gemm_terms(run, &from, k);
    int64_t tall = gemm_min(run->call.m % run->row_panels, last), end; /* panels that are a row higher */
    for (int64_t p = first; p < last; p = end) {
        end = gemm_has_tiles(run->rule) ? p + 1 : p < tall ? tall : last; /* of like panels */
        int64_t row = gemm_row(run, p), height = gemm_row(run, p + 1) - row;
        opq_pack_source source = pack_source(run, true, batch, from, row);
        char *to = out + (row - base) * k * run->element_bytes;
        if (gemm_has_tiles(run->rule))
            pack_tiles(run, &source, terms, height, to);
        else
            opq_gemm_pack(run->isa, &source, terms, gemm_row(run, end) - row, (int)height, to,
                          k * height * run->element_bytes);
    }
}

void gemm_pack_a(const gemm_run *run, int64_t batch, int64_t region_first, int64_t region_last, int64_t first,
                 int64_t last, char *out)
{
    int64_t rows = gemm_row(run, region_last) - gemm_row(run, region_first);
    for (int64_t k0 = 0; k0 < run->call.k; k0 += run->k_block)
        gemm_pack_a_block(run, batch, region_first, first, last, k0, gemm_min(run->k_block, run->call.k - k0),
                          out + k0 * rows * run->element_bytes);
}

void gemm_pack_b_panels(const gemm_run *run, int64_t batch, int64_t first, int64_t last, int64_t k0, int64_t k,
                        char *out, int64_t panel_stride)
{
    int64_t column = first * run->panel, columns = gemm_min(last * run->panel, run->call.n) - column;
    int64_t terms = gemm_terms(run, &k0, k);
    opq_pack_source source = pack_source(run, false, batch, k0, column);
    if (k > 0 && columns > 0)
        opq_gemm_pack(run->isa, &source, terms, columns, run->panel, out, panel_stride);
    int64_t whole = gemm_ceil(terms, gemm_word(run->rule));
    for (int64_t p = first; p < last; p++, out += panel_stride) {
        if (run->rule == GEMM_QUADS)
            opq_pack_start_avx512(out, k, run->panel);
        if (gemm_has_tiles(run->rule))
            memset(out + whole * gemm_row_bytes(run), 0, (size_t)((k - whole) * gemm_row_bytes(run)));
    }
}
