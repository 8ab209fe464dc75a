/* Packing of panels, for an instruction set and a type of elements. No include guard: gemm_avx2.c and gemm_avx512.c define what is in capitals
 * and include this, which undefines what is of the type.
 *
 * Neighbours across are contiguous: copy. Neighbours along k are contiguous: transpose LANES x LANES blocks in registers. Rows that do not
 * exist are read as copies of the last one, so nothing branches.
 */

/* LANES neighbours, of each k, LANES at most, become rows `ld` apart. If a `line` begins here, the one `ahead` bytes behind is asked for. */
INLINE void OF(turn_block)(const char *at, const int64_t offset[LANES], opq_dtype from, int64_t k, int64_t ahead,
                           bool line, MASK lanes, TYPE *to, int64_t ld)
{
    VECTOR r[LANES];
    MASK there = OF(first)(k);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        r[i] = OF(load)(at + offset[i], from, there);
        if (line)
            _mm_prefetch(at + offset[i] + ahead, _MM_HINT_T0);
    }
    OF(transpose)(r);
    if (k >= LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            OF(store)(to + i * ld, lanes, r[i]);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (i < k)
            OF(store)(to + i * ld, lanes, r[i]);
}

/* To rows of `width`, `ld` apart. Offsets across count `unit` bytes. TURNED vectors of a row at a time: those of a line. */
INLINE void OF(transpose_panel)(const opq_pack_source *s, opq_dtype from, int64_t unit, int64_t k, int64_t across,
                                int64_t width, TYPE *out, int64_t ld)
{
    int64_t bytes = opq_pack_bytes(from), ahead = s->target->pack_ahead * bytes;
    for (int64_t j = 0; j < across; j += TURNED * LANES) {
        int64_t offset[TURNED * LANES];
#pragma GCC unroll 16
        for (int i = 0; i < TURNED * LANES; i++)
            offset[i] = opq_pack_across(s, j + i < across ? j + i : across - 1) * unit;
        for (int64_t p = 0; p < k; p += LANES)
            for (int64_t v = 0; v < TURNED && j + v * LANES < across; v++) {
                const char *data = (const char *)s->data + p * bytes;
                const int64_t *neighbours = offset + v * LANES;
                TYPE *to = out + p * ld + j + v * LANES;
                int64_t lanes = width - j - v * LANES;
                if (!WHOLE_BLOCKS || k - p < LANES || lanes < LANES)
                    OF(turn_block)(data, neighbours, from, k - p, ahead, true, OF(first)(lanes), to, ld);
                else if (p * bytes % 64 == 0)
                    OF(turn_block)(data, neighbours, from, LANES, ahead, true, OF(first)(LANES), to, ld);
                else
                    OF(turn_block)(data, neighbours, from, LANES, ahead, false, OF(first)(LANES), to, ld);
            }
    }
}

/* Rows [first, end) of a panel of one or two vectors. */
INLINE void OF(copy_rows)(const opq_pack_source *s, opq_dtype from, int64_t first, int64_t end, int64_t across,
                          int width, int vectors, bool whole, TYPE *out)
{
    int64_t bytes = opq_pack_bytes(from), step = s->k_stride * bytes;
    int64_t ahead = sizeof(TYPE) == 4 ? s->target->pack_rows_ahead * step : 0;
    MASK load0 = OF(first)(whole ? LANES : across), load1 = OF(first)(whole ? LANES : across - LANES);
    MASK store0 = OF(first)(whole ? LANES : width), store1 = OF(first)(whole ? LANES : width - LANES);
    const char *row = (const char *)s->data + first * step;
    int64_t second = whole || across > LANES ? LANES * bytes : 0;
    out += first * width;
    for (int64_t p = first; p < end; p++, row += step, out += width) {
        if (ahead)
            _mm_prefetch(row + ahead, _MM_HINT_T0);
        if (ahead && second)
            _mm_prefetch(row + ahead + second, _MM_HINT_T0);
        OF(store)(out, store0, OF(load)(row, from, load0));
        if (vectors > 1)
            OF(store)(out + LANES, store1, OF(load)(row + second, from, load1));
    }
}

/* Without masks, where what is stored over the end of a row is in the panel, and stored over by the next row, and what is read behind it is
 * between elements of the matrix. */
INLINE void OF(copy_panel)(const opq_pack_source *s, opq_dtype from, int64_t k, int64_t across, int width, TYPE *out)
{
    int vectors = width > LANES ? 2 : 1;
    int64_t whole = k - 1 - (vectors * LANES - 1) / width;
    whole = OF(WHOLE_ROWS) && s->k_stride >= vectors * LANES && whole > 0 ? whole : 0;
    if (vectors > 1)
        OF(copy_rows)(s, from, 0, whole, across, width, 2, true, out);
    else
        OF(copy_rows)(s, from, 0, whole, across, width, 1, true, out);
    OF(copy_rows)(s, from, whole, k, across, width, vectors, false, out);
}

/* Some rows at a time, and of those each move for all of them: its masks stay in registers. */
INLINE void OF(copy_moves)(const opq_pack_source *s, opq_dtype from, int64_t k, const opq_pack_move *moves, int count,
                           int width, TYPE *out)
{
    int64_t bytes = opq_pack_bytes(from), together = s->target->pack_moved_rows;
    for (int64_t begin = 0; begin < k; begin += together)
        for (int m = 0; m < count; m++) {
            const opq_pack_move move = moves[m];
            int64_t end = k - begin < together ? k : begin + together, reach = move.count * (move.apart ? 2 : 1);
            MASK low = OF(first)(move.apart ? reach - 1 : reach), high = OF(first)(reach - 1 - LANES);
            MASK lanes = OF(first)(move.count);
            const char *data = (const char *)s->data + move.from * bytes;
            int64_t behind = reach > LANES ? LANES * bytes : 0;
            for (int64_t p = begin; p < end; p++) {
                const char *at = data + opq_pack_k(s, p) * bytes;
                VECTOR value = OF(load)(at, from, low);
                if (move.apart)
                    value = OF(even)(value, OF(load)(at + behind, from, high));
                OF(store)(out + p * width + move.to, lanes, value);
            }
        }
}

#undef OF
#undef TYPE
#undef VECTOR
#undef LANES
