#include "runtime/gemm_amx.h"

#include <immintrin.h>

#define ISA __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#define INLINE static inline __attribute__((always_inline)) ISA
enum { LINE = OPQ_AMX_BYTES, B_STRIDE = 2 * LINE };

/* Tiles 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of the right one. */
ISA void opq_amx_begin(int64_t rows)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.row_bytes[i] = LINE;
        shapes.rows[i] = (uint8_t)(i >= 6 || rows > OPQ_AMX_ROWS ? OPQ_AMX_ROWS : rows);
    }
    __asm__ volatile(""
                     :
                     : "r"(&shapes)
                     : "memory"); /* a compiler may believe that no more than a word of it is read */
    _tile_loadconfig(&shapes);
}

ISA void opq_amx_end(void) { _tile_release(); }

#define DOT(sum, a, b)                                                                                                 \
    do {                                                                                                               \
        if (bytes)                                                                                                     \
            _tile_dpbssd(sum, a, b);                                                                                   \
        else                                                                                                           \
            _tile_dpbf16ps(sum, a, b);                                                                                 \
    } while (0)

/* Sums 0 and 1 are side by side; 2 and 3 below them, or to the right. */
#define EACH_SUM(DO)                                                                                                   \
    do {                                                                                                               \
        DO(0, c0);                                                                                                     \
        if (vectors > 1)                                                                                               \
            DO(1, c0 + LINE);                                                                                          \
        if (tall)                                                                                                      \
            DO(2, c1);                                                                                                 \
        if (tall && vectors > 1)                                                                                       \
            DO(3, c1 + LINE);                                                                                          \
        if (vectors > 2) {                                                                                             \
            DO(2, c0 + 2 * LINE);                                                                                      \
            DO(3, c0 + 3 * LINE);                                                                                      \
        }                                                                                                              \
    } while (0)
#define ZERO(sum, at) _tile_zero(sum)
#define LOAD(sum, at) _tile_loadd(sum, at, w->c_stride)
#define STORE(sum, at) _tile_stored(sum, at, w->c_stride)

INLINE void multiply(const opq_amx_work *w, bool bytes, bool tall, int vectors)
{
    char *c0 = w->c, *c1 = c0 + (w->rows - OPQ_AMX_ROWS) * w->c_stride;
    const char *a = w->a, *b = w->b, *next = w->prefetch;
    int64_t below = (w->rows - OPQ_AMX_ROWS) * w->a_stride, stride = w->a_stride;
    if (w->accumulate)
        EACH_SUM(LOAD);
    else
        EACH_SUM(ZERO);
    for (int64_t k = 0; k < w->k; k += 16, a += w->a_step, b += 16 * B_STRIDE) {
        _tile_loadd(4, a, stride);
        if (tall)
            _tile_loadd(5, a + below, stride);
        _tile_loadd(6, b, B_STRIDE);
        if (vectors > 1)
            _tile_loadd(7, b + LINE, B_STRIDE);
        DOT(0, 4, 6);
        if (vectors > 1)
            DOT(1, 4, 7);
        if (tall)
            DOT(2, 5, 6);
        if (tall && vectors > 1)
            DOT(3, 5, 7);
        if (vectors > 2) {
            _tile_loadd(6, b + w->panel_stride, B_STRIDE);
            DOT(2, 4, 6);
            _tile_loadd(7, b + w->panel_stride + LINE, B_STRIDE);
            DOT(3, 4, 7);
        }
        for (int64_t i = 0; i < 16 * w->prefetch_step; i += LINE)
            _mm_prefetch(next + i, _MM_HINT_T1);
        next += 16 * w->prefetch_step;
    }
    EACH_SUM(STORE);
}

#define SHAPE(is_bytes, is_tall, count)                                                                                \
    if (w->bytes == is_bytes && (w->rows > OPQ_AMX_ROWS) == is_tall && w->vectors == count)                            \
        multiply(w, is_bytes, is_tall, count);
#define SHAPES(is_bytes)                                                                                               \
    SHAPE(is_bytes, true, 2)                                                                                           \
    SHAPE(is_bytes, true, 1) SHAPE(is_bytes, false, 4) SHAPE(is_bytes, false, 2) SHAPE(is_bytes, false, 1)

ISA void opq_amx_run(const opq_amx_work *w)
{
    SHAPES(false)
    SHAPES(true)
}
