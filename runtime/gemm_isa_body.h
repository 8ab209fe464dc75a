/* What gemm_isa.h has for each instruction set, of the bodies for f32 and f64. No include guard, as they. Dtypes are literals in each call, so
 * that each inlines into its own loop.
 */
#define EACH_DTYPE(DO) DO(f32, f32) DO(f32, bf16) DO(f32, f16) DO(f32, i8) DO(f64, f64) DO(f64, f32)

#define PANEL(to_dtype, from_dtype)                                                                                    \
    if (s->to == OPQ_##to_dtype && s->from == OPQ_##from_dtype) {                                                      \
        if (s->across_stride == 1)                                                                                     \
            copy_panel_##to_dtype(s, OPQ_##from_dtype, k, across, width, out);                                         \
        else                                                                                                           \
            transpose_panel_##to_dtype(s, OPQ_##from_dtype, opq_pack_bytes(OPQ_##from_dtype), k, across, width, out,   \
                                       width);                                                                         \
        return true;                                                                                                   \
    }

ISA static bool panel(const opq_pack_source *s, int64_t k, int64_t across, int width, void *out)
{
    if (s->k_at || (s->across_stride != 1 && s->k_stride != 1))
        return false;
    EACH_DTYPE(PANEL)
    return false;
}

#define MOVES(to_dtype, from_dtype)                                                                                    \
    if (s->to == OPQ_##to_dtype && s->from == OPQ_##from_dtype) {                                                      \
        copy_moves_##to_dtype(s, OPQ_##from_dtype, k, moves, count, width, out);                                       \
        return true;                                                                                                   \
    }

ISA static bool moves(const opq_pack_source *s, int64_t k, const opq_pack_move *moves, int count, int width, void *out)
{
    EACH_DTYPE(MOVES)
    return false;
}

ISA static void turn(const opq_target_gemm *target, int bytes, const void *from, int64_t ld, int64_t rows,
                     int64_t columns, void *to, int64_t to_ld)
{
    opq_pack_source source = {.data = from, .k_stride = 1, .across_stride = ld, .target = target};
    if (bytes == 4)
        transpose_panel_f32(&source, OPQ_f32, 4, columns, rows, rows, to, to_ld);
    else
        transpose_panel_f64(&source, OPQ_f64, 8, columns, rows, rows, to, to_ld);
}

#define FEW_ROWS(count, dtype)                                                                                         \
    if (w->rows == count && w->b_dtype == OPQ_##dtype)                                                                 \
        multiply(w, count, OPQ_##dtype);
#define EACH_ROWS(dtype) FEW_ROWS(1, dtype) FEW_ROWS(2, dtype) FEW_ROWS(3, dtype) FEW_ROWS(4, dtype)

ISA static void few_rows(const opq_few_rows *w)
{
    EACH_ROWS(f32)
    EACH_ROWS(bf16)
    EACH_ROWS(f16)
}
