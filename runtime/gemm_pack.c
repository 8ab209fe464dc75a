/* The plain way to pack, and the choice of the fast ones. */
#include "runtime/gemm_isa.h"

#include <string.h>

static double element(const void *data, opq_dtype dtype, int64_t index)
{
    const void *at = opq_pack_at(data, dtype, index);
    if (dtype == OPQ_f32)
        return *(const float *)at;
    if (dtype == OPQ_f64)
        return *(const double *)at;
    if (dtype == OPQ_i8)
        return *(const int8_t *)at;
    if (dtype == OPQ_f16)
        return opq_f16_to_f32(*(const uint16_t *)at);
    if (dtype == OPQ_bf16)
        return opq_bf16_to_f32(*(const uint16_t *)at);
    return 0;
}

static void pack_panel_plain(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < width; j++) {
            double value = j < across ? element(s->data, s->from, opq_pack_k(s, i) + opq_pack_across(s, j)) : 0;
            if (s->to == OPQ_f64)
                ((double *)out)[i * width + j] = value;
            else
                ((float *)out)[i * width + j] = (float)value;
        }
}

/* ---- windows: what lies at no stride */

enum { RUNS_MAX = 2 * 64 / 4, MOVES_MAX = RUNS_MAX + 4 }; /* a run takes one move, or one more for each vector */

/* Neighbours across that lie at one stride: elements [first, first + count) of a row, `stride` apart, the first one at `offset`. */
typedef struct run {
    int first, count;
    int64_t offset, stride;
} run;

/* The second one of a run says how it goes on. */
static int find_runs(const opq_pack_source *s, int64_t across, run *out_runs)
{
    int count = 0;
    int64_t next = 0;
    for (int j = 0; j < across; j++) {
        run *last = count > 0 ? &out_runs[count - 1] : NULL;
        int64_t offset = opq_pack_across(s, j);
        if (last && last->count == 1 && offset > last->offset) {
            last->stride = offset - last->offset;
            next = offset;
        }
        if (last && offset == next) {
            last->count++;
            next += last->stride;
        } else {
            out_runs[count++] = (run){.first = j, .count = 1, .offset = offset, .stride = 1};
            next = offset + 1;
        }
    }
    return count;
}

int64_t opq_pack_run(const opq_pack_source *s, int64_t k, int64_t end)
{
    int64_t length = !s->k_at && s->k_stride == 1 ? end - k : 1;
    while (k + length < end && opq_pack_k(s, k + length) == opq_pack_k(s, k) + length)
        length++;
    return length;
}

static int64_t row_cost(const opq_target_gemm *target, const run *runs, int count)
{
    int64_t cost = 0;
    for (int r = 0; r < count; r++)
        cost += runs[r].stride == 1 ? 2 : runs[r].stride == 2 ? 4 : target->element_cycles * runs[r].count;
    return cost;
}

/* The vectors of a row. */
static int find_moves(const run *runs, int count, int lanes, opq_pack_move *out_moves)
{
    int moves = 0;
    for (int r = 0; r < count; r++) {
        int step = runs[r].stride <= 2 ? lanes : 1;
        for (int j = 0; j < runs[r].count; j += step)
            out_moves[moves++] = (opq_pack_move){.from = runs[r].offset + j * runs[r].stride,
                                                 .to = runs[r].first + j,
                                                 .count = runs[r].count - j < step ? runs[r].count - j : step,
                                                 .apart = runs[r].stride == 2};
    }
    return moves;
}

static bool pack_rows(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, const opq_pack_move *moves,
                      int count, int width, void *out)
{
    if (!s->word)
        return isa->moves(s, k, moves, count, width, out);
    isa->word_moves(s, k, moves, count, width, out);
    return true;
}

/* k elements that lie side by side. */
static bool pack_run(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    opq_pack_source part = *s;
    part.data = opq_pack_at(s->data, s->from, opq_pack_k(s, 0));
    part.k_stride = 1;
    part.k_at = NULL;
    return (s->word ? isa->words : isa->panel)(&part, k, across, width, out);
}

/* Row by row, or where elements along k lie side by side, from these by transposition. A pair of which one ends such a run is a row. */
bool opq_pack_window(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    run runs[RUNS_MAX];
    opq_pack_move moves[MOVES_MAX];
    int lanes = isa->vector_bytes / opq_dtype_bytes(s->to), squares = (width + lanes - 1) / lanes;
    int64_t first = opq_pack_run(s, 0, k < lanes ? k : lanes), word = s->word ? s->word : 1;
    int count = find_runs(s, across, runs);
    bool rows = row_cost(s->target, runs, count) <= s->target->transpose_cycles * lanes * squares / first;
    count = find_moves(runs, count, lanes, moves);
    if (rows)
        return pack_rows(isa, s, k, moves, count, width, out);
    bool done = true;
    for (int64_t i = 0, length; i < k && done; i += length) {
        opq_pack_source part = opq_pack_part_of(s, i, 0);
        void *to = (char *)out + i / word * width * opq_dtype_bytes(s->to);
        length = opq_pack_run(s, i, k) / word * word;
        if (length > 0) {
            done = pack_run(isa, &part, length, across, width, to);
        } else {
            length = k - i < word ? k - i : word;
            done = pack_rows(isa, &part, length, moves, count, width, to);
        }
    }
    return done;
}

void opq_pack_panel(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    bool done =
        s->k_at || s->across_at ? opq_pack_window(isa, s, k, across, width, out) : isa->panel(s, k, across, width, out);
    if (!done)
        pack_panel_plain(s, k, across, width, out);
}

/* ---- all of them */

opq_pack_source opq_pack_part_of(const opq_pack_source *s, int64_t i, int64_t j)
{
    opq_pack_source part = *s;
    part.data = opq_pack_at(s->data, s->from, i * s->k_stride + j * s->across_stride);
    part.k_at = s->k_at ? s->k_at + i : NULL;
    part.across_at = s->across_at ? s->across_at + j : NULL;
    return part;
}

/* Of each 32 packed rows the even ones first. */
static void part_rows(int64_t k, int width, float *rows)
{
    float odd[16 * RUNS_MAX];
    for (int64_t p = 0; p < k; p += 32, rows += 32 * width) {
        size_t bytes = (size_t)width * sizeof *rows;
        if (k - p < 32)
            memset(rows + (k - p) * width, 0, (size_t)(32 - (k - p)) * bytes);
        for (int i = 0; i < 32; i++)
            memmove(i % 2 ? odd + i / 2 * width : rows + i / 2 * width, rows + i * width, bytes);
        memcpy(rows + 16 * width, odd, 16 * bytes);
    }
}

/* To bf16, as opq_pairs_steps does. */
static void round_rows(int64_t count, float *x)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = opq_round_bf16(opq_no_denormal(x[i]));
}

/* Exchanges neighbours of packed rows. */
static void swap_rows(int64_t k, int width, float *rows)
{
    for (int64_t p = 0; p < k; p += 2, rows += 2 * width) {
        if (p + 1 == k)
            memset(rows + width, 0, (size_t)width * sizeof *rows);
        for (int j = 0; j < width; j++) {
            float first = rows[j];
            rows[j] = rows[width + j];
            rows[width + j] = first;
        }
    }
}

/* Rows some KiB apart are in the same sets of L1, which drop a line before the next panel asks for the rest of it if more of a strip's rows are
 * in a set than it has ways. Then some panels' part of the strip is copied first. */
enum { STRIP_MAX = 32, STAGE_STEP = OPQ_STAGE_BYTES + 64 };

static bool is_crowded(const opq_pack_source *s, int64_t k, int width, int64_t strip)
{
    int64_t bytes = opq_dtype_bytes(s->from), step = k > 1 ? opq_pack_k(s, 1) - opq_pack_k(s, 0) : 1;
    return !s->across_at && (s->k_at || width * bytes % 64 != 0) && width * bytes <= OPQ_STAGE_BYTES &&
           step * bytes % (2 * s->target->l1_ways * s->target->l1_way_bytes / strip) == 0;
}

/* `rows` of k, of so many that there are. */
static void fill_stage(const opq_pack_source *s, int64_t rows, int64_t k, int64_t across, char *stage)
{
    int64_t bytes = opq_dtype_bytes(s->from), width = across * bytes;
    for (int64_t r = 0; r < rows; r++, stage += STAGE_STEP) {
        const char *next = opq_pack_at(s->data, s->from, opq_pack_k(s, r + rows < k ? r + rows : r));
        for (int64_t i = 0; i < width; i += 64) /* of the next strip */
            __builtin_prefetch(next + i);
        memcpy(stage, opq_pack_at(s->data, s->from, opq_pack_k(s, r)), (size_t)width);
    }
}

static void pack_part(const opq_gemm_isa *isa, const opq_pack_source *part, int64_t rows, int64_t columns, int width,
                      void *to)
{
    int64_t each = part->word ? part->word : 1;
    if (part->word || part->to == OPQ_i8)
        opq_pack_narrow(isa, part, rows, columns, width, to);
    else
        opq_pack_panel(isa, part, rows, columns, width, to);
    if (part->swapped && part->from == OPQ_f32)
        round_rows(rows * width, to);
    if (part->swapped)
        (part->swapped == 2 ? swap_rows : part_rows)(rows, width, to);
    for (int64_t w = 0; part->unsigned_bytes && w < (rows + each - 1) / each * width; w++)
        ((uint32_t *)to)[w] ^= 0x80808080;
}

/* Rows of k that all panels take before the next ones where neighbours across lie side by side: a page, or a line of the cache, is visited
 * once, not once per panel. So few that their lines stay in L1, whatever their stride. An even number of rows. */
void opq_gemm_pack(const opq_gemm_isa *isa, const opq_pack_source *source, int64_t k, int64_t across, int width,
                   void *out, int64_t panel_stride)
{
    int64_t row_bytes = (int64_t)width * opq_dtype_bytes(source->to), each = source->word ? source->word : 1;
    bool strips = source->across_stride == 1 && across > width;
    int64_t step = !strips ? k : source->swapped > isa->vector_bytes / 2 ? source->swapped : isa->vector_bytes / 2;
    bool crowded = strips && is_crowded(source, k, width, step);
    _Alignas(64) char stage[STRIP_MAX * STAGE_STEP];
    int64_t bytes = opq_dtype_bytes(source->from), staged = OPQ_STAGE_BYTES / (width * bytes) * width; /* across */
    for (int64_t i = 0; i < k; i += step)
        for (int64_t j = 0, panel = 0; j < across; j += width, panel++) {
            opq_pack_source part = opq_pack_part_of(source, i, j);
            int64_t rows = k - i < step ? k - i : step, columns = across - j < width ? across - j : width;
            if (crowded && j % staged == 0)
                fill_stage(&part, rows, k - i, across - j < staged ? across - j : staged, stage);
            if (crowded) {
                part.data = stage + j % staged * bytes;
                part.k_stride = STAGE_STEP / bytes;
                part.k_at = NULL;
            }
            pack_part(isa, &part, rows, columns, width, (char *)out + panel * panel_stride + i / each * row_bytes);
        }
}
