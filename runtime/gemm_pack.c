/* The plain way to pack, and the choice of the fast ones. */
#include "runtime/gemm_pack.h"

/* Rows of k that all panels take before the next ones: a page of a row-major operand is visited once, not once per panel. */
enum { STRIP = 32 };

static double element(const void *data, opq_dtype dtype, int64_t index)
{
    const void *at = opq_pack_at(data, dtype, index);
    if (dtype == OPQ_f32)
        return *(const float *)at;
    if (dtype == OPQ_f64)
        return *(const double *)at;
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

enum {
    RUNS_MAX = 2 * 64 / 4,
    TRANSPOSED = 16,
    TRANSPOSE_COST = 200
}; /* TRANSPOSE_COST: of 2 x 16 x 16 elements, in cycles */

static int find_runs(const opq_pack_source *s, int64_t across, opq_pack_run *out_runs)
{
    int count = 0;
    for (int j = 0; j < across; j++) {
        int64_t offset = opq_pack_across(s, j);
        opq_pack_run *last = count > 0 ? &out_runs[count - 1] : NULL;
        if (last && last->count == 1 && offset > last->offset)
            last->stride = offset - last->offset;
        if (last && offset == last->offset + last->count * last->stride)
            last->count++;
        else
            out_runs[count++] = (opq_pack_run){.first = j, .count = 1, .offset = offset, .stride = 1};
    }
    return count;
}

/* From k on, elements along k that lie side by side. */
static int64_t run_along_k(const opq_pack_source *s, int64_t k, int64_t end)
{
    int64_t length = 1;
    while (k + length < end && opq_pack_k(s, k + length) == opq_pack_k(s, k) + length)
        length++;
    return length;
}

static int row_cost(const opq_pack_run *runs, int count)
{
    int cost = 0;
    for (int r = 0; r < count; r++)
        cost += runs[r].stride == 1 ? 2 : runs[r].stride == 2 ? 4 : runs[r].count;
    return cost;
}

/* Row by row, or where elements along k lie side by side, from these by transposition. */
static bool pack_window(bool avx512, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    opq_pack_run runs[RUNS_MAX];
    int64_t first = run_along_k(s, 0, k < TRANSPOSED ? k : TRANSPOSED);
    int count = find_runs(s, across, runs);
    if (row_cost(runs, count) <= TRANSPOSE_COST / first)
        return s->to == OPQ_f32 && (avx512 ? opq_pack_runs_avx512 : opq_pack_runs_avx2)(s, k, runs, count, width, out);
    for (int64_t i = 0, length; i < k; i += length) {
        opq_pack_source part = *s;
        length = run_along_k(s, i, k);
        part.data = opq_pack_at(s->data, s->from, opq_pack_k(s, i));
        part.k_stride = 1;
        part.k_at = NULL;
        if (!(avx512 ? opq_pack_panel_avx512 : opq_pack_panel_avx2)(&part, length, across, width,
                                                                    (char *)out + i * width * opq_dtype_bytes(s->to)))
            return false;
    }
    return true;
}

static void pack_panel(bool avx512, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    bool done = s->k_at || s->across_at
                    ? pack_window(avx512, s, k, across, width, out)
                    : (avx512 ? opq_pack_panel_avx512 : opq_pack_panel_avx2)(s, k, across, width, out);
    if (!done)
        pack_panel_plain(s, k, across, width, out);
}

void opq_gemm_pack(bool avx512, const opq_pack_source *source, int64_t k, int64_t across, int width, void *out,
                   int64_t panel_stride)
{
    int64_t row_bytes = (int64_t)width * opq_dtype_bytes(source->to);
    int64_t step = source->across_stride == 1 && across > width ? STRIP : k;
    for (int64_t i = 0; i < k; i += step)
        for (int64_t j = 0, panel = 0; j < across; j += width, panel++) {
            opq_pack_source part = *source;
            part.data = opq_pack_at(source->data, source->from, i * source->k_stride + j * source->across_stride);
            part.k_at = source->k_at ? source->k_at + i : NULL;
            part.across_at = source->across_at ? source->across_at + j : NULL;
            pack_panel(avx512, &part, k - i < step ? k - i : step, across - j < width ? across - j : width, width,
                       (char *)out + panel * panel_stride + i * row_bytes);
        }
}
