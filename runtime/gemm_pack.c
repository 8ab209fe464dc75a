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
            double value = j < across ? element(s->data, s->from, i * s->k_stride + j * s->across_stride) : 0;
            if (s->to == OPQ_f64)
                ((double *)out)[i * width + j] = value;
            else
                ((float *)out)[i * width + j] = (float)value;
        }
}

static void pack_panel(bool avx512, const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    if (!(avx512 ? opq_pack_panel_avx512 : opq_pack_panel_avx2)(s, k, across, width, out))
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
            pack_panel(avx512, &part, k - i < step ? k - i : step, across - j < width ? across - j : width, width,
                       (char *)out + panel * panel_stride + i * row_bytes);
        }
}
