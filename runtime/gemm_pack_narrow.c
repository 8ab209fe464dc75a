/* Panels of words, and of what is narrower than f32. */
#include "runtime/gemm_isa.h"
#include "opaque/scalar.h"

#include <immintrin.h>
#include <string.h>

enum { STRIP = 64, WIDTH_MAX = 2 * 64 / 4 };

/* Two or four integers. */
static inline uint32_t integers(const float *x, int64_t stride, int count)
{
    uint32_t word = 0;
    for (int i = count - 1; i >= 0; i--)
        word = word << 32 / count | ((uint32_t)(int32_t)x[i * stride] & UINT32_MAX >> (32 - 32 / count));
    return word;
}

/* k rows of `width` numbers side by side. */
static void narrow_rows(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int width, const float *rows,
                        void *out)
{
    opq_pack_source numbers = {
        .data = rows, .from = OPQ_f32, .to = OPQ_f32, .k_stride = width, .across_stride = 1, .word = 2, .target = s->target};
    if (s->to == OPQ_f32) { /* pairs, which only those instruction sets have that join them */
        (void)isa->words(&numbers, k, width, width, out);
        return;
    }
    if (s->word == 0)
        for (int64_t i = 0; i < k * width; i++)
            ((int8_t *)out)[i] = (int8_t)(int32_t)rows[i];
    uint32_t *words = out;
    for (int64_t i = 0; s->word > 0 && i < k; i += s->word, rows += s->word * width, words += width)
        for (int j = 0; j < width; j++)
            words[j] = integers(rows + j, width, s->word);
}

/* By way of f32, some rows at a time. */
static void pack_narrow_plain(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int64_t across, int width,
                              char *out)
{
    _Alignas(64) float rows[STRIP * WIDTH_MAX];
    int64_t word = s->word ? s->word : 1, row_bytes = (int64_t)width * opq_dtype_bytes(s->to);
    for (int64_t i = 0; i < k; i += STRIP) {
        int64_t count = k - i < STRIP ? k - i : STRIP, more = (word - count % word) % word;
        opq_pack_source part = opq_pack_part_of(s, i, 0);
        part.to = OPQ_f32;
        part.word = 0;
        opq_pack_panel(isa, &part, count, across, width, rows);
        memset(rows + count * width, 0, (size_t)(more * width) * sizeof *rows);
        narrow_rows(isa, s, count, width, rows, out + i / word * row_bytes);
    }
}

/* Of i8: 16 x 16 bytes, rows side by side along k. Interleaving each row with that eight behind it, four times, transposes them. */
static void transpose_bytes(const opq_pack_source *s, int64_t k, int64_t j, int64_t across, int8_t *out, int width)
{
    __m128i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        int64_t neighbour = j + i < across ? j + i : across - 1;
        r[i] = _mm_loadu_si128(opq_pack_at(s->data, OPQ_i8, k + neighbour * s->across_stride));
    }
#pragma GCC unroll 4
    for (int round = 0; round < 4; round++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            t[2 * i] = _mm_unpacklo_epi8(r[i], r[i + 8]);
            t[2 * i + 1] = _mm_unpackhi_epi8(r[i], r[i + 8]);
        }
        memcpy(r, t, sizeof r);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm_storeu_si128((__m128i *)(void *)(out + (k + i) * width + j), r[i]);
}

/* Numbers of i8 as they are; the rows that have such a way. A width of whole vectors of bytes. */
static int64_t pack_bytes(const opq_pack_source *s, int64_t k, int64_t across, int width, int8_t *out)
{
    int64_t done = 0;
    if (s->from != OPQ_i8 || s->k_at || s->across_at)
        return 0;
    for (; s->across_stride == 1 && done < k; done++) {
        const char *row = opq_pack_at(s->data, OPQ_i8, done * s->k_stride);
        for (int64_t j = 0; j + 16 <= across; j += 16)
            memcpy(out + done * width + j, row + j, 16);
        for (int64_t j = across / 16 * 16; j < across; j++)
            out[done * width + j] = (int8_t)row[j];
    }
    for (; s->k_stride == 1 && width % 16 == 0 && done + 16 <= k; done += 16)
        for (int64_t j = 0; j < across; j += 16)
            transpose_bytes(s, done, j, across, out, width);
    return done;
}

/* Whole words may have a fast way, and of pairs an odd one behind them. */
void opq_pack_narrow(const opq_gemm_isa *isa, const opq_pack_source *s, int64_t k, int64_t across, int width, char *out)
{
    int64_t fast = 0, word = s->word ? s->word : 1;
    bool pairs = word == 2 && s->from == OPQ_bf16;
    if (pairs && (s->k_at || s->across_at) && isa->word_moves && opq_pack_window(isa, s, k, across, width, out))
        return;
    if (s->to == OPQ_i8)
        fast = pack_bytes(s, k, across, width, (int8_t *)out);
    else if (isa->words)
        fast = word == 2 && s->across_stride == 1 ? k : k - k % word;
    if (s->to != OPQ_i8 && fast > 0 && !isa->words(s, fast, across, width, out))
        fast = 0;
    opq_pack_source rest = opq_pack_part_of(s, fast, 0);
    if (fast < k)
        pack_narrow_plain(isa, &rest, k - fast, across, width, out + fast / word * width * opq_dtype_bytes(s->to));
}
