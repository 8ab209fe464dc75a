/* The walk over a tree: which schedule each loop gets.
 *
 * Threads divide units: indices of the parallel loops from the top, and inside them strips of 64 elements of a vector loop that has
 * loops inside. A tree that is one vector loop is divided by its elements; a serial one is one unit.
 */
#include "codegen_llvm/codegen.h"
#include "codegen_llvm/nest.h"

#include <string.h>

static bool has_chain(const opq_loops *k, int loop)
{
    for (int i = loop + 1; i < k->stmts[loop].end; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].role == OPQ_LOOP_chain)
            return true;
    return false;
}

/* ---- vectors */

/* Independent vectors in flight hide latency. A processor looks ahead to the next turns of a body of some instructions, but sees the end
 * of a long one too late: if that is a chain in which each waits for the one before, vectors go beside each other as registers allow. */
static opq_span plan_span(const opq_nest *n, int loop)
{
    const opq_target *t = n->e->cpu->target;
    const opq_stmt *stmt = opq_nest_stmt(n, loop);
    int cost = opq_nest_cost(n, stmt->variable, loop + 1, stmt->end), path, live;
    opq_span span = {.loop = loop, .copies = cost <= t->span.four_below ? 4 : cost <= t->span.two_below ? 2 : 1};
    if (stmt->role == OPQ_LOOP_serial)
        span.copies = 1;
    else if (cost > t->span.ahead && opq_nest_path(n, stmt->variable, loop + 1, stmt->end, &path, &live))
        while (span.copies < t->strip.vectors && span.copies * cost < t->span.independent * path &&
               2 * span.copies * live <= t->span.registers && 2 * span.copies * cost <= t->span.code_max)
            span.copies *= 2, span.beside = true;
    return span;
}

/* Lanes of a serial loop add one after the other: see opq_nest_store_add_at. */
static void emit_vectors(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to)
{
    opq_span span = plan_span(n, loop);
    opq_nest_span(n, &span, from, to, NULL);
}

/* What follows a chain is so much code that fewer copies of it are compiled: all vectors, or one. Products at the sizes of windows pay for more. */
static bool is_long_behind(const opq_nest *n, int strip)
{
    int end = opq_nest_stmt(n, strip)->end, variable = opq_nest_stmt(n, strip)->variable;
    for (int i = strip + 1; i < end; i++) {
        const opq_stmt *loop = opq_nest_stmt(n, i);
        if (opq_nest_is_loop(n, i) && loop->role == OPQ_LOOP_chain)
            return !opq_loop_has_loops(n->k, i) &&
                   opq_nest_cost(n, variable, loop->end, end) > n->e->cpu->target->strip.long_behind;
    }
    return false;
}

/* Does a lane's element of some access in the strip lie apart from the next one's? */
static bool has_lanes_apart(const opq_nest *n, int strip)
{
    const opq_stmt *loop = opq_nest_stmt(n, strip);
    for (int i = strip + 1; i < loop->end; i++) {
        const opq_stmt *stmt = opq_nest_stmt(n, i);
        if (opq_stmt_walks(stmt) && n->k->accesses[stmt->access].buffer >= 0 &&
            n->k->accesses[stmt->access].stride[loop->variable] > OPQ_STRIDE_one)
            return true;
    }
    return false;
}

/* Accumulators of the inner two levels and the operands are to fit the registers: 8 of each on AVX-512. */
static int width_for(opq_nest *n, int strip)
{
    const opq_target *t = n->e->cpu->target;
    bool rows = !has_chain(n->k, strip) && !has_lanes_apart(n, strip);
    int width = rows ? t->strip.row_vectors : t->strip.vectors, variable = opq_nest_stmt(n, strip)->variable;
    for (int i = strip + 1; i < opq_nest_stmt(n, strip)->end; i++) {
        if (opq_nest_is_loop(n, i) && opq_nest_stmt(n, i)->role == OPQ_LOOP_unroll)
            return opq_unroll_width(n, variable, i);
        if (!opq_nest_is_loop(n, i) || opq_loop_has_loops(n->k, i))
            continue;
        int end = opq_nest_stmt(n, i)->end, cost = opq_nest_cost(n, variable, i + 1, end);
        int count = opq_nest_folds(n, i + 1, end), most = opq_scan_width(n, strip, i);
        while (width > most || (width > 1 && (cost * width > t->strip.cost_max || count * width > t->strip.folds_max)))
            width /= 2;
    }
    return width;
}

void opq_emit_inside(opq_nest *n, int strip, LLVMValueRef first)
{
    const opq_stmt *loop = opq_nest_stmt(n, strip);
    opq_places places = opq_nest_places(n);
    n->index[loop->variable] = first;
    opq_nest_bind(n, 1u << loop->variable);
    n->vector = loop->variable;
    n->vector_bound = true;
    opq_nest_enter_locals(n, strip + 1, loop->end);
    opq_emit_block(n, strip + 1, loop->end);
    n->vector_bound = false;
    n->vector = -1;
    opq_nest_return(n, &places);
}

/* The vectors of a strip side by side, from element `first`. */
static void emit_part(opq_nest *n, int strip, int width, LLVMValueRef first)
{
    opq_nest_copy_values(n, width);
    n->strip = width;
    opq_emit_inside(n, strip, first);
    n->strip = 1;
}

static void emit_strip(opq_nest *n, int strip, LLVMValueRef from, LLVMValueRef to)
{
    LLVMBuilderRef b = n->e->builder;
    int width = width_for(n, strip);
    int64_t elements = (int64_t)width * n->e->lanes;
    LLVMValueRef whole = LLVMBuildAnd(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, -elements), "");
    whole = LLVMBuildAdd(b, from, whole, "");
    opq_loop loop;
    opq_loop_begin(n, &loop, from, whole, elements, NULL, 0);
    emit_part(n, strip, width, loop.index);
    opq_loop_end(n, &loop, NULL);
    /* Half as many vectors once more: short rows are what chains are for. */
    if ((width > 2 && has_chain(n->k, strip) && !is_long_behind(n, strip)) || width > n->e->cpu->target->strip.vectors) {
        LLVMValueRef half = LLVMBuildAnd(b, LLVMBuildSub(b, to, whole, ""), opq_i64(n->e, -elements / 2), "");
        half = LLVMBuildAdd(b, whole, half, "");
        opq_loop_begin(n, &loop, whole, half, elements / 2, NULL, 0);
        emit_part(n, strip, width / 2, loop.index);
        opq_loop_end(n, &loop, NULL);
        whole = half;
    }
    opq_loop_begin(n, &loop, whole, to, n->e->lanes, NULL, 0);
    opq_nest_mask(n, LLVMBuildSub(b, to, loop.index, ""));
    emit_part(n, strip, 1, loop.index);
    opq_nest_mask(n, NULL);
    opq_loop_end(n, &loop, NULL);
}

/* ---- loops inside units */

/* Blocks of `turns` of the turns [from, to): where each begins and ends. `whole`: has each all of them? */
static void emit_blocks_of(opq_nest *n, int stmt, LLVMValueRef from, LLVMValueRef to, int64_t turns, bool whole)
{
    const opq_stmt *loop = opq_nest_stmt(n, stmt);
    opq_loop blocks;
    opq_loop_begin(n, &blocks, from, to, turns, NULL, 0);
    LLVMValueRef next = LLVMBuildAdd(n->e->builder, blocks.index, opq_i64(n->e, turns), "");
    n->first[loop->variable] = blocks.index;
    n->behind[loop->variable] = whole ? next : opq_nest_smaller(n, next, to);
    n->whole[loop->variable] = whole ? turns : 0;
    opq_emit_block(n, stmt + 1, loop->end);
    n->first[loop->variable] = NULL;
    opq_loop_end(n, &blocks, NULL);
}

/* A loop that counts blocks, which other loops stand between or which are independent. Those of a few turns in order are known to be whole, but for
 * the last. */
static void emit_tiles(opq_nest *n, int stmt, LLVMValueRef from, LLVMValueRef to)
{
    LLVMBuilderRef b = n->e->builder;
    const opq_stmt *loop = opq_nest_stmt(n, stmt);
    int64_t turns;
    (void)opq_loop_counted(n->k, stmt, &turns);
    if (loop->role == OPQ_LOOP_serial && loop->by == turns) {
        LLVMValueRef rest = LLVMBuildURem(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, turns), "");
        LLVMValueRef last = LLVMBuildSub(b, to, rest, "");
        emit_blocks_of(n, stmt, from, last, turns, true);
        from = last;
    }
    emit_blocks_of(n, stmt, from, to, turns, false);
}

/* Do the blocks that a loop counts stand in others, which turn in each of these? */
static bool is_around_others(const opq_nest *n, int stmt)
{
    uint32_t counted = 0;
    for (int i = stmt; i < opq_nest_stmt(n, stmt)->end; i++) {
        const opq_stmt *loop = opq_nest_stmt(n, i);
        if (opq_nest_is_loop(n, i) && i > stmt && !(loop->within && counted >> (loop->within - 1) & 1))
            return true;
        if (opq_nest_is_loop(n, i))
            counted |= 1u << loop->variable;
    }
    return false;
}

static void emit_counted(opq_nest *n, int stmt, LLVMValueRef from, LLVMValueRef to)
{
    const opq_stmt *loop = opq_nest_stmt(n, stmt);
    opq_loop counted;
    opq_loop_begin(n, &counted, from, to, 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    n->index[loop->variable] = counted.index;
    opq_nest_bind(n, 1u << loop->variable);
    opq_emit_block(n, stmt + 1, loop->end);
    opq_nest_return(n, &places);
    opq_loop_end(n, &counted, NULL);
}

static void emit_loop(opq_nest *n, int stmt)
{
    const opq_stmt *loop = opq_nest_stmt(n, stmt);
    if (loop->role == OPQ_LOOP_unroll && n->vector >= 0 && opq_emit_unroll(n, stmt))
        return;
    if (loop->by && loop->role == OPQ_LOOP_serial && !is_around_others(n, stmt)) {
        opq_emit_blocks(n, stmt);
        return;
    }
    int64_t turns;
    LLVMValueRef from = opq_i64(n->e, 0);
    LLVMValueRef to = n->extent[opq_nest_stmt(n, opq_loop_counted(n->k, stmt, &turns))->variable];
    if (loop->within && n->first[loop->within - 1]) {
        from = n->first[loop->within - 1];
        to = n->behind[loop->within - 1];
    } else if (loop->within) {
        from = LLVMBuildMul(n->e->builder, n->index[loop->within - 1], opq_i64(n->e, OPQ_CHUNK), "");
        to = opq_nest_smaller(n, LLVMBuildAdd(n->e->builder, from, opq_i64(n->e, OPQ_CHUNK), ""), to);
    }
    if (loop->by) {
        emit_tiles(n, stmt, from, to);
        return;
    }
    bool leaf = !opq_loop_has_loops(n->k, stmt), outside = n->vector < 0;
    bool folds = leaf && opq_nest_folds(n, stmt + 1, loop->end) > 0;
    if (folds && loop->role == OPQ_LOOP_vector && outside && opq_nest_scans(n, stmt + 1, loop->end) > 0)
        opq_emit_scan_row(n, stmt, from, to);
    else if (folds && loop->role == OPQ_LOOP_vector && outside)
        opq_emit_partials(n, stmt, from, to, NULL, NULL);
    else if (folds && loop->role == OPQ_LOOP_serial && !loop->within)
        opq_emit_turns(n, stmt);
    else if (folds && loop->role == OPQ_LOOP_serial && n->first[loop->within - 1])
        opq_emit_block_turns(n, stmt, from, to, n->whole[loop->within - 1]);
    else if (loop->role == OPQ_LOOP_chain && !outside)
        opq_emit_chain(n, stmt);
    else if (opq_loop_reduces((opq_loop_role)loop->role) || (loop->role == OPQ_LOOP_serial && loop->within))
        opq_nest_refuse(n, loop);
    else if (leaf && outside && (loop->role == OPQ_LOOP_vector || loop->role == OPQ_LOOP_serial))
        emit_vectors(n, stmt, from, to);
    else if (loop->role == OPQ_LOOP_vector && outside)
        emit_strip(n, stmt, from, to);
    else
        emit_counted(n, stmt, from, to);
}

void opq_emit_block(opq_nest *n, int from, int to)
{
    while (from < to && n->status == OPQ_OK) {
        int next = from;
        while (next < to && !opq_nest_is_loop(n, next))
            next++;
        opq_nest_run(n, from, next);
        if (next < to)
            emit_loop(n, next);
        from = next < to ? opq_nest_stmt(n, next)->end : to;
    }
}

/* ---- units */

/* One strip of 64 elements. */
static void emit_strip_unit(opq_nest *n, int strip, LLVMValueRef number)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef from = LLVMBuildMul(b, number, opq_i64(n->e, OPQ_LANES), "");
    LLVMValueRef to = LLVMBuildAdd(b, from, opq_i64(n->e, OPQ_LANES), "");
    emit_strip(n, strip, from, opq_nest_smaller(n, to, n->extent[opq_nest_stmt(n, strip)->variable]));
}

/* The rows of a unit; what is around them is bound. */
static void emit_row_block(opq_nest *n, const opq_chain *chain, int strip, LLVMValueRef number)
{
    LLVMBuilderRef b = n->e->builder;
    int rows = chain->loop[chain->count - 1];
    if (chain->count > 1)
        opq_nest_run(n, chain->loop[chain->count - 2] + 1, rows);
    LLVMValueRef from = LLVMBuildMul(b, number, opq_i64(n->e, OPQ_ROW_BLOCK), "");
    LLVMValueRef to = LLVMBuildAdd(b, from, opq_i64(n->e, OPQ_ROW_BLOCK), "");
    int width = width_for(n, strip);
    opq_emit_rows(n, rows, strip, width, is_long_behind(n, strip) ? width : 2, from,
                  opq_nest_smaller(n, to, n->extent[opq_nest_stmt(n, rows)->variable]));
}

/* Blocks of so many of an odometer's last extent, instead of it or beside what is there. */
static void divide(opq_nest *n, opq_odometer *odometer, int at, LLVMValueRef extent, int64_t size)
{
    LLVMBuilderRef b = n->e->builder;
    odometer->rank = at + 1;
    odometer->variable[at] = -1;
    odometer->extent[at] =
        LLVMBuildUDiv(b, LLVMBuildAdd(b, extent, opq_i64(n->e, size - 1), ""), opq_i64(n->e, size), "");
}

/* The last loop of [from, to), if it counts blocks of a vector loop, whose strips are units, as in the kernel other loops are in it; else -1. */
static int tiles_of(const opq_loops *k, int from, int to)
{
    int64_t turns;
    while (from < to && k->stmts[from].op != OPQ_STMT_loop)
        from++;
    bool last = from < to && k->stmts[from].end == to, others = false;
    if (!last || k->stmts[from].role != OPQ_LOOP_each || !k->stmts[from].by ||
        k->stmts[opq_loop_counted(k, from, &turns)].role != OPQ_LOOP_vector)
        return -1;
    for (int i = from + 1; i < to; i++)
        others = others || (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].within != k->stmts[from].variable + 1);
    return others ? from : -1;
}

/* Of all strips that are units and follow each other in one turn of the chain, whose body begins at `from`: the loop `tiles`. */
static void emit_unit_tiles(opq_nest *n, const opq_chain *chain, int from, int tiles)
{
    LLVMBuilderRef b = n->e->builder;
    int64_t turns;
    LLVMValueRef extent = n->extent[opq_nest_stmt(n, opq_loop_counted(n->k, tiles, &turns))->variable];
    LLVMValueRef lanes = opq_i64(n->e, OPQ_LANES), one = opq_i64(n->e, 1), zero = opq_i64(n->e, 0);
    LLVMValueRef strips = LLVMBuildUDiv(b, LLVMBuildAdd(b, extent, opq_i64(n->e, OPQ_LANES - 1), ""), lanes, "");
    LLVMValueRef last = LLVMBuildUDiv(b, LLVMBuildSub(b, n->end, one, ""), strips, "");
    opq_odometer odometer = opq_nest_odometer(n, chain);
    opq_units units;
    opq_units_begin(n, &units, &odometer, LLVMBuildUDiv(b, n->begin, strips, ""), LLVMBuildAdd(b, last, one, ""));
    opq_places places = opq_nest_places(n);
    opq_nest_enter(n, &odometer, chain, units.index);
    opq_nest_run(n, from, tiles);
    LLVMValueRef before = LLVMBuildMul(b, units.loop.index, strips, "");
    LLVMValueRef first = opq_nest_larger(n, LLVMBuildSub(b, n->begin, before, ""), zero);
    LLVMValueRef behind = LLVMBuildSub(b, n->end, before, "");
    emit_tiles(n, tiles, LLVMBuildMul(b, first, lanes, ""),
               opq_nest_smaller(n, LLVMBuildMul(b, behind, lanes, ""), extent));
    opq_nest_return(n, &places);
    opq_units_end(n, &units);
}

/* The body of the parallel loops, [from, to), in which `strip` may be the only loop. */
static void emit_units(opq_nest *n, const opq_chain *chain, int from, int to)
{
    int strip = opq_strip_of(n->k, from, to), last = chain->count - 1, tiles = tiles_of(n->k, from, to);
    if (tiles >= 0) {
        emit_unit_tiles(n, chain, from, tiles);
        return;
    }
    bool rows = opq_rows_fit(n->k, chain, strip);
    opq_chain around = *chain;
    opq_odometer odometer = opq_nest_odometer(n, chain);
    if (rows)
        divide(n, &odometer, last, odometer.extent[last], OPQ_ROW_BLOCK), around.count--;
    else if (strip >= 0)
        divide(n, &odometer, last + 1, n->extent[opq_nest_stmt(n, strip)->variable], OPQ_LANES);
    opq_units units;
    opq_units_begin(n, &units, &odometer, n->begin, n->end);
    opq_places places = opq_nest_places(n);
    opq_nest_enter(n, &odometer, &around, units.index);
    if (rows) {
        emit_row_block(n, chain, strip, units.index[last]);
    } else if (strip >= 0) {
        opq_nest_run(n, from, strip);
        emit_strip_unit(n, strip, units.index[last + 1]);
    } else {
        opq_emit_block(n, from, to);
    }
    opq_nest_return(n, &places);
    opq_units_end(n, &units);
}

/* Does this loop count the blocks of nested ones, and makes nothing before them? */
static bool counts_chunks(const opq_loops *k, int loop)
{
    int body = opq_chunks_nest(k, loop), end = k->stmts[loop].end;
    return body < end && k->stmts[body].op == OPQ_STMT_loop && k->stmts[body].within == k->stmts[loop].variable + 1 &&
           opq_loop_shares_block(k, body, false) && !opq_tree_has_loops(k, k->stmts[body].end, end);
}

/* [from, to) begins with a loop. */
static void emit_phase(opq_nest *n, int from, int to)
{
    const opq_stmt *loop = opq_nest_stmt(n, from);
    opq_chain chain = {0};
    if (loop->role == OPQ_LOOP_parallel && loop->by) {
        emit_tiles(n, from, n->begin, n->end);
    } else if (loop->role == OPQ_LOOP_parallel && counts_chunks(n->k, from)) {
        opq_emit_chunks(n, from);
    } else if (loop->role == OPQ_LOOP_parallel) {
        chain = opq_nest_chain(n->k, from);
        int last = chain.loop[chain.count - 1];
        emit_units(n, &chain, last + 1, opq_nest_stmt(n, last)->end);
    } else if (opq_strip_of(n->k, from, to) >= 0 || tiles_of(n->k, from, to) >= 0) {
        emit_units(n, &chain, from, to);
    } else if (loop->role == OPQ_LOOP_vector && opq_nest_folds(n, from, loop->end) == 0) {
        emit_vectors(n, from, n->begin, n->end);
    } else {
        opq_emit_block(n, from, to);
    }
}

/* ---- phases */

/* Units begin..end of the phase from unit `first` on, if there are such. */
static LLVMValueRef emit_some(opq_nest *n, const opq_phases *p, int phase, LLVMValueRef first, LLVMValueRef begin,
                              LLVMValueRef end)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef zero = opq_i64(n->e, 0), units = opq_i64(n->e, 1);
    const opq_stmt *loop = opq_nest_stmt(n, p->from[phase]);
    if (loop->op == OPQ_STMT_loop && loop->by) {
        opq_nest_refuse(n, loop);
    } else if (loop->op == OPQ_STMT_loop && loop->role == OPQ_LOOP_parallel) {
        opq_chain chain = opq_nest_chain(n->k, p->from[phase]);
        opq_odometer odometer = opq_nest_odometer(n, &chain);
        units = opq_odometer_count(n, &odometer);
        int last = chain.loop[chain.count - 1];
        int end = opq_nest_stmt(n, last)->end;
        if (opq_strip_of(n->k, last + 1, end) >= 0 || tiles_of(n->k, last + 1, end) >= 0)
            opq_nest_refuse(n, loop);
    }
    n->begin = LLVMBuildSub(b, begin, first, "");
    n->begin = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, n->begin, zero, ""), zero, n->begin, "");
    n->end = opq_nest_smaller(n, LLVMBuildSub(b, end, first, ""), units);
    LLVMBasicBlockRef next = opq_nest_if(n, LLVMBuildICmp(b, LLVMIntSLT, n->begin, n->end, ""));
    opq_places places = opq_nest_places(n);
    if (loop->op == OPQ_STMT_loop)
        emit_phase(n, p->from[phase], p->from[phase + 1]);
    else
        opq_emit_block(n, p->from[phase], p->from[phase + 1]);
    opq_nest_return(n, &places);
    opq_nest_end_if(n, next);
    return LLVMBuildAdd(b, first, units, "");
}

/* Phases meet in memory alone: one does not see the other's values. */
static bool are_apart(const opq_loops *k, const opq_phases *p)
{
    for (int phase = 0; phase < p->count; phase++)
        for (int i = p->from[phase]; i < p->from[phase + 1]; i++)
            for (int o = 0; o < 3; o++)
                if (k->stmts[i].operand[o] >= p->from[0] && k->stmts[i].operand[o] < p->from[phase])
                    return false;
    return true;
}

void opq_emit_loops(opq_nest *n)
{
    opq_phases p = opq_loops_find_phases(n->k);
    opq_nest_run(n, 0, p.from[0]);
    if (p.from[0] == n->k->stmt_count)
        return;
    if (p.count == 1) {
        emit_phase(n, p.from[0], n->k->stmt_count);
        return;
    }
    if (!are_apart(n->k, &p))
        opq_nest_refuse(n, opq_nest_stmt(n, p.from[1]));
    LLVMValueRef first = opq_i64(n->e, 0), begin = n->begin, end = n->end;
    for (int phase = 0; phase < p.count; phase++)
        first = emit_some(n, &p, phase, first, begin, end);
}

/* ---- launching */

int64_t opq_loops_scratch(const opq_loops *loops, const int64_t *dims)
{
    int64_t bytes = 0, chunks = 0; /* of several nests one after another */
    for (int i = 0; i < loops->stmt_count; i++) {
        const opq_stmt *local = &loops->stmts[i];
        if (local->op != OPQ_STMT_local || opq_local_blocks(loops, i) >= 0)
            continue;
        int64_t elements = 1;
        for (int l = 0; l < loops->rank; l++)
            elements *= local->variables >> l & 1 ? dims[l] : 1;
        bytes += opq_dtype_bytes((opq_dtype)local->dtype) * ((elements + 2 * OPQ_LANES - 1) & -(int64_t)OPQ_LANES);
    }
    for (int i = 0; i < loops->stmt_count; i++)
        if (opq_loop_shares_block(loops, i, false) && !opq_loop_shares_block(loops, i, true))
            chunks = opq_chunks_scratch(loops, i) > chunks ? opq_chunks_scratch(loops, i) : chunks;
    return bytes + chunks;
}
