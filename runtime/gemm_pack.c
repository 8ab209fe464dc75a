/* The plain way to pack, and the choice of the fast ones. */
#include "runtime/gemm_pack.h"

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

static bool is_there(const opq_pack_source *s, int64_t k, int64_t across)
{
    for (int g = 0; g < s->guard_count; g++) {
        int64_t at = s->guard[g].k[k] + s->guard[g].across[across];
        if (at < 0 || at >= s->guard[g].extent)
            return false;
    }
    return true;
}

static void pack_panel_plain(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < width; j++) {
            bool there = j < across && is_there(s, i, j);
            double value = there ? element(s->data, s->from, opq_pack_k(s, i) + opq_pack_across(s, j)) : 0;
            if (s->to == OPQ_f64)
                ((double *)out)[i * width + j] = value;
            else
                ((float *)out)[i * width + j] = (float)value;
        }
}

/* ---- windows: what lies at no stride */

enum { RUNS_MAX = 2 * 64 / 4, PERIOD_MAX = 64 };
_Static_assert(OPQ_PACK_MOVES_MAX >= RUNS_MAX + 4, "a run takes one move, or one more for each vector");
enum { TRANSPOSE_COST = 6, ELEMENT_COST = 4 }; /* cycles: of a row of a square of vectors; of an element by itself */

/* The elements of a run that are there in row k. */
static void find_inside(const opq_pack_guard *guards, int count, const opq_pack_run *run, int64_t k, opq_pack_part *out)
{
    int64_t first = 0, end = run->count;
    for (int g = 0; g < count; g++) {
        int64_t at = guards[g].k[k] + run->at[g], left = guards[g].extent - at, step = run->step[g];
        if (at >= 0 && (run->count - 1) * step < left)
            continue; /* most are inside, and divisions take long */
        if (step == 0) {
            end = 0;
            continue;
        }
        int64_t from = at < 0 ? (step - 1 - at) / step : 0, to = left <= 0 ? 0 : (left + step - 1) / step;
        first = from > first ? from : first;
        end = to < end ? to : end;
    }
    *out = (opq_pack_part){(int)(first < end ? first : end), (int)end};
}

/* Does neighbour j go on as the run does? The second one says how. */
static bool goes_on(const opq_pack_source *s, opq_pack_run *run, int64_t j)
{
    int64_t offset = opq_pack_across(s, j);
    bool second = run->count == 1 && offset > run->offset;
    if (second)
        run->stride = offset - run->offset;
    if (offset != run->offset + run->count * run->stride)
        return false;
    for (int g = 0; g < s->guard_count; g++) {
        int64_t step = s->guard[g].across[j] - s->guard[g].across[j - 1];
        if (step < 0 || (!second && step != run->step[g]))
            return false;
        run->step[g] = step;
    }
    return true;
}

static int find_runs(const opq_pack_source *s, int64_t across, opq_pack_run *out_runs)
{
    int count = 0;
    for (int j = 0; j < across; j++) {
        if (count > 0 && goes_on(s, &out_runs[count - 1], j)) {
            out_runs[count - 1].count++;
            continue;
        }
        opq_pack_run *run = &out_runs[count++];
        *run = (opq_pack_run){.first = j, .count = 1, .offset = opq_pack_across(s, j), .stride = 1};
        for (int g = 0; g < s->guard_count; g++)
            run->at[g] = s->guard[g].across[j];
    }
    return count;
}

/* From k on, elements along k that lie side by side, and of which each guard counts all as one or one after the other. */
static int64_t run_along_k(const opq_pack_source *s, int64_t k, int64_t end)
{
    int64_t length = 1;
    for (; k + length < end; length++) {
        if (opq_pack_k(s, k + length) != opq_pack_k(s, k) + length)
            break;
        bool alike = true;
        for (int g = 0; g < s->guard_count && alike; g++) {
            const int64_t *at = s->guard[g].k + k;
            int64_t step = at[length] - at[length - 1];
            alike = step >= 0 && (length == 1 || step == at[1] - at[0]);
        }
        if (!alike)
            break;
    }
    return length;
}

bool opq_pack_find_runs(const opq_pack_source *s, int64_t k, int32_t *out_lengths, int most)
{
    int count = 0;
    for (int64_t i = 0; i < k; i += out_lengths[count++]) {
        if (count == most)
            return false;
        out_lengths[count] = (int32_t)run_along_k(s, i, k);
    }
    return true;
}

/* Of `length` elements along k, which are there for each neighbour. */
static void find_there(const opq_pack_source *s, int64_t k, int64_t length, int64_t across, opq_pack_part *out_there)
{
    for (int64_t j = 0; j < across; j++) {
        opq_pack_guard guard[OPQ_MATRIX_GUARD_MAX];
        opq_pack_run run = {.count = (int)length};
        for (int g = 0; g < s->guard_count; g++) {
            guard[g] = (opq_pack_guard){.extent = s->guard[g].extent, .k = &s->guard[g].across[j]};
            run.at[g] = s->guard[g].k[k];
            run.step[g] = length > 1 ? s->guard[g].k[k + 1] - s->guard[g].k[k] : 0;
        }
        find_inside(guard, s->guard_count, &run, 0, &out_there[j]);
    }
}

static int row_cost(const opq_pack_run *runs, int count)
{
    int cost = 0;
    for (int r = 0; r < count; r++)
        cost += runs[r].stride == 1 ? 2 : runs[r].stride == 2 ? 4 : ELEMENT_COST * runs[r].count;
    return cost;
}

/* What neighbours add to a guard, at least and at most. */
typedef struct reach {
    int64_t low, high;
} reach;

static void find_reach(const opq_pack_source *s, int64_t across, reach *out_reach)
{
    for (int g = 0; g < s->guard_count; g++) {
        const int64_t *at = s->guard[g].across;
        out_reach[g] = (reach){at[0], at[0]};
        for (int64_t j = 1; j < across; j++) {
            out_reach[g].low = at[j] < out_reach[g].low ? at[j] : out_reach[g].low;
            out_reach[g].high = at[j] > out_reach[g].high ? at[j] : out_reach[g].high;
        }
    }
}

/* Is every element of row k there? */
static bool row_there(const opq_pack_source *s, const reach *reach, int64_t k)
{
    for (int g = 0; g < s->guard_count; g++)
        if (s->guard[g].k[k] + reach[g].low < 0 || s->guard[g].k[k] + reach[g].high >= s->guard[g].extent)
            return false;
    return true;
}

/* And of rows [first, end)? */
static bool all_there(const opq_pack_source *s, int64_t first, int64_t end, int64_t across)
{
    reach reach[OPQ_MATRIX_GUARD_MAX];
    find_reach(s, across, reach);
    for (int64_t i = first; i < end; i++)
        if (!row_there(s, reach, i))
            return false;
    return true;
}

/* After how many rows the guards begin again, all along k (the taps of a convolution, for each channel). k: they do not, or later. */
static int64_t find_period(const opq_pack_source *s, int64_t k)
{
    int64_t period = 1;
    for (int64_t i = 1; i < k; i++)
        for (int g = 0; g < s->guard_count; g++)
            if (s->guard[g].k[i] != s->guard[g].k[i - period]) {
                if (i >= PERIOD_MAX)
                    return k;
                period = i + 1;
                break;
            }
    return period;
}

/* The vectors of a run, of which `part` is there. */
static int add_moves(const opq_pack_run *run, const opq_pack_part *part, int lanes, opq_pack_move *out_moves)
{
    int count = 0, step = run->stride <= 2 ? lanes : 1;
    for (int j = 0; j < run->count; j += step, count++) {
        int64_t first = run->stride * (part->from - j), end = run->stride * (part->to - 1 - j) + 1;
        bool apart = run->stride == 2 && step > 1;
        opq_pack_move *move = &out_moves[count];
        move->from = run->offset + j * run->stride;
        move->to = run->first + j;
        move->store = opq_pack_bits(0, step > 1 ? run->count - j : 1, lanes);
        move->load = step > 1 ? opq_pack_bits(first, end, lanes) : part->from <= j && j < part->to;
        move->more = apart ? opq_pack_bits(first - lanes, end - lanes, lanes) : 0;
        move->apart = apart;
    }
    return count;
}

/* Rows [i, i + rows): the first ones have the moves of each of `period`, then over and over. */
static bool pack_rows(bool avx512, const opq_pack_source *s, int64_t i, int64_t rows, const opq_pack_move *moves,
                      const int *first, int period, int width, float *out)
{
    opq_pack_source part = *s;
    part.data = opq_pack_at(s->data, s->from, s->k_at ? 0 : i * s->k_stride);
    part.k_at = s->k_at ? s->k_at + i : NULL;
    return (avx512 ? opq_pack_moves_avx512 : opq_pack_moves_avx2)(&part, rows, moves, first, period, width,
                                                                  out + i * width);
}

/* What of each run is there in row k. */
static void find_parts(const opq_pack_source *s, int64_t k, const opq_pack_run *runs, int count, opq_pack_part *out_parts)
{
    for (int r = 0; r < count; r++)
        find_inside(s->guard, s->guard_count, &runs[r], k, &out_parts[r]);
}

static int add_row(const opq_pack_run *runs, const opq_pack_part *parts, int count, int lanes, opq_pack_move *out_moves)
{
    int moves = 0;
    for (int r = 0; r < count; r++)
        moves += add_moves(&runs[r], &parts[r], lanes, &out_moves[moves]);
    return moves;
}

static bool pack_periodic(bool avx512, const opq_pack_source *s, int64_t k, const opq_pack_run *runs, int count,
                          int period, int width, float *out)
{
    opq_pack_move moves[PERIOD_MAX * OPQ_PACK_MOVES_MAX];
    opq_pack_part parts[RUNS_MAX];
    int first[PERIOD_MAX + 1] = {0};
    for (int p = 0; p < period && p < k; p++) {
        find_parts(s, p, runs, count, parts);
        first[p + 1] = first[p] + add_row(runs, parts, count, avx512 ? 16 : 8, &moves[first[p]]);
    }
    return pack_rows(avx512, s, 0, k, moves, first, period, width, out);
}

/* Is the same there of row k as of the row before? Of that `parts` say what, or of this one then. *whole: all of it is there. */
static bool goes_on_as(const opq_pack_source *s, const reach *reach, int64_t k, const opq_pack_run *runs, int count,
                       bool *whole, opq_pack_part *parts)
{
    opq_pack_part before[RUNS_MAX];
    bool was_whole = *whole;
    *whole = row_there(s, reach, k);
    if (was_whole && *whole)
        return true;
    memcpy(before, parts, (size_t)count * sizeof *parts);
    find_parts(s, k, runs, count, parts);
    return memcmp(before, parts, (size_t)count * sizeof *parts) == 0;
}

/* Neighbouring rows of which the same is there (a row of an image, but for its ends) are made together. */
static bool pack_stretches(bool avx512, const opq_pack_source *s, int64_t k, const opq_pack_run *runs, int count,
                           int64_t across, int width, float *out)
{
    opq_pack_move moves[OPQ_PACK_MOVES_MAX];
    opq_pack_part parts[RUNS_MAX];
    reach reach[OPQ_MATRIX_GUARD_MAX];
    bool whole = false, done = true;
    find_reach(s, across, reach);
    find_parts(s, 0, runs, count, parts);
    for (int64_t i = 0, end; i < k && done; i = end) {
        int first[] = {0, add_row(runs, parts, count, avx512 ? 16 : 8, moves)};
        for (end = i + 1; end < k && goes_on_as(s, reach, end, runs, count, &whole, parts);)
            end++;
        done = pack_rows(avx512, s, i, end - i, moves, first, 1, width, out);
    }
    return done;
}

static bool pack_runs(bool avx512, const opq_pack_source *s, int64_t k, const opq_pack_run *runs, int count,
                      int64_t across, int width, float *out)
{
    if (s->to != OPQ_f32)
        return false;
    int64_t period = s->period ? s->period : find_period(s, k);
    bool periodic = period <= PERIOD_MAX;
    if (all_there(s, 0, periodic ? period : k, across))
        return pack_periodic(avx512, s, k, runs, count, 1, width, out);
    return periodic ? pack_periodic(avx512, s, k, runs, count, (int)period, width, out)
                    : pack_stretches(avx512, s, k, runs, count, across, width, out);
}

/* Row by row, or where elements along k lie side by side, from these by transposition. */
static bool pack_window(bool avx512, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    opq_pack_run runs[RUNS_MAX];
    opq_pack_part there[RUNS_MAX];
    const int32_t *known = s->run_lengths;
    int lanes = avx512 ? 16 : 8, squares = (width + lanes - 1) / lanes;
    int64_t first = known ? known[0] : run_along_k(s, 0, k < lanes ? k : lanes);
    first = first < lanes ? first : lanes;
    int count = find_runs(s, across, runs);
    if (s->to != OPQ_f32 && s->guard_count > 0)
        return false;
    if (row_cost(runs, count) <= TRANSPOSE_COST * lanes * squares / first)
        return pack_runs(avx512, s, k, runs, count, across, width, out);
    for (int64_t i = 0, length; i < k; i += length) {
        opq_pack_source part = *s;
        length = known ? *known++ : run_along_k(s, i, k);
        if (!all_there(s, i, i + 1, across) || !all_there(s, i + length - 1, i + length, across)) {
            find_there(s, i, length, across, there);
            part.there = there;
        }
        part.data = opq_pack_at(s->data, s->from, opq_pack_k(s, i));
        part.k_stride = 1;
        part.k_at = NULL;
        if (!(avx512 ? opq_pack_panel_avx512 : opq_pack_panel_avx2)(&part, length, across, width,
                                                                    (char *)out + i * width * opq_dtype_bytes(s->to)))
            return false;
    }
    return true;
}

void opq_pack_panel(bool avx512, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    bool done = s->k_at || s->across_at
                    ? pack_window(avx512, s, k, across, width, out)
                    : (avx512 ? opq_pack_panel_avx512 : opq_pack_panel_avx2)(s, k, across, width, out);
    if (!done)
        pack_panel_plain(s, k, across, width, out);
}

/* ---- all of them */

enum { STRIP_AVX2 = 16, STRIP_AVX512 = 32 };

opq_pack_source opq_pack_part_of(const opq_pack_source *s, int64_t i, int64_t j)
{
    opq_pack_source part = *s;
    part.data = opq_pack_at(s->data, s->from, i * s->k_stride + j * s->across_stride);
    part.k_at = s->k_at ? s->k_at + i : NULL;
    part.across_at = s->across_at ? s->across_at + j : NULL;
    for (int g = 0; g < s->guard_count; g++) {
        part.guard[g].k = s->guard[g].k + i;
        part.guard[g].across = s->guard[g].across + j;
    }
    return part;
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
 * in a set than it has ways. Then some panels' part of the strip is copied first: 1.2 to 2.1 times as fast on Zen 4. */
enum { WAY_BYTES = 4096, WAYS = 8, STAGE_BYTES = 512, STAGE_STEP = STAGE_BYTES + 64 };

static bool is_crowded(const opq_pack_source *s, int width, int64_t strip)
{
    int64_t bytes = opq_dtype_bytes(s->from);
    return !s->k_at && !s->across_at && s->guard_count == 0 && width * bytes % 64 != 0 &&
           width * bytes <= STAGE_BYTES && s->k_stride * bytes % (2 * WAYS * WAY_BYTES / strip) == 0;
}

static void fill_stage(const opq_pack_source *s, int64_t rows, int64_t across, char *stage)
{
    int64_t bytes = opq_dtype_bytes(s->from), step = s->k_stride * bytes, width = across * bytes;
    const char *at = s->data;
    for (int64_t r = 0; r < rows; r++, at += step, stage += STAGE_STEP) {
        for (int64_t i = 0; i < width; i += 64) /* of the next strip */
            __builtin_prefetch(at + rows * step + i);
        memcpy(stage, at, (size_t)width);
    }
}

static void pack_part(bool avx512, const opq_pack_source *part, int64_t rows, int64_t columns, int width, void *to)
{
    int64_t each = part->word ? part->word : 1;
    if (part->word || part->to == OPQ_i8)
        opq_pack_narrow(avx512, part, rows, columns, width, to);
    else
        opq_pack_panel(avx512, part, rows, columns, width, to);
    if (part->swapped)
        swap_rows(rows, width, to);
    for (int64_t w = 0; part->unsigned_bytes && w < (rows + each - 1) / each * width; w++)
        ((uint32_t *)to)[w] ^= 0x80808080;
}

/* Rows of k that all panels take before the next ones where neighbours across lie side by side: a page, or a line of the cache, is visited
 * once, not once per panel. So few that their lines stay in L1, whatever their stride. An even number of rows. */
void opq_gemm_pack(bool avx512, const opq_pack_source *source, int64_t k, int64_t across, int width, void *out,
                   int64_t panel_stride)
{
    int64_t row_bytes = (int64_t)width * opq_dtype_bytes(source->to), each = source->word ? source->word : 1;
    bool strips = source->across_stride == 1 && across > width && !source->run_lengths;
    int64_t step = !strips ? k : avx512 ? STRIP_AVX512 : STRIP_AVX2;
    bool crowded = strips && is_crowded(source, width, step);
    char stage[STRIP_AVX512 * STAGE_STEP];
    int64_t bytes = opq_dtype_bytes(source->from), staged = STAGE_BYTES / (width * bytes) * width; /* across */
    int64_t period = source->guard_count > 0 && across > width ? find_period(source, k) : 0;       /* for all panels */
    for (int64_t i = 0; i < k; i += step)
        for (int64_t j = 0, panel = 0; j < across; j += width, panel++) {
            opq_pack_source part = opq_pack_part_of(source, i, j);
            part.period = period;
            int64_t rows = k - i < step ? k - i : step, columns = across - j < width ? across - j : width;
            if (crowded && j % staged == 0)
                fill_stage(&part, rows, across - j < staged ? across - j : staged, stage);
            if (crowded) {
                part.data = stage + j % staged * bytes;
                part.k_stride = STAGE_STEP / bytes;
            }
            pack_part(avx512, &part, rows, columns, width, (char *)out + panel * panel_stride + i / each * row_bytes);
        }
}
