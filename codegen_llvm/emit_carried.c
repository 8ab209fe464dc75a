/* Loops of a schedule in which carries are folded, in blocks of a constant size or not. What they carry is a value of each vector of the strip around
 * for each of these. The innermost is a vector loop (emit_partials.c), or counts
 *
 *   whole blocks    of the innermost size, whose turns are unrolled if they are little code
 *   the last one    with the turns that are left
 *
 * A place is a number of turns of the innermost loops that are one sequence. Of several, their indices are carried, too.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

_Static_assert(2 * OPQ_REDUCTION_MAX * OPQ_STRIP_MAX + OPQ_LOOP_MAX <= OPQ_CARRIED_MAX,
               "what a loop in blocks carries");

/* ---- what a loop carries */

typedef struct carried {
    opq_loop loop;
    int stmts[OPQ_REDUCTION_MAX], count, values;
    LLVMValueRef value[OPQ_CARRIED_MAX];
} carried;

/* Values of the carries in the nest, or back into it. */
static void move(opq_nest *n, carried *c, bool into)
{
    int at = 0;
    for (int i = 0; i < c->count; i++)
        for (int copy = 0; copy < n->strip; copy++) {
            opq_nest_use_copy(n, copy);
            LLVMValueRef *of[2] = {&n->value[c->stmts[i]], opq_carry_turn(n, c->stmts[i])};
            for (int k = 0; k < 1 + opq_fold_is_arg(opq_carry_fold(n, c->stmts[i])); k++, at++)
                into ? (void)(*of[k] = c->value[at]) : (void)(c->value[at] = *of[k]);
        }
    opq_nest_use_copy(n, 0);
    c->values = at;
}

/* Carries before the loop that are folded in it, but for those in memory. */
static void find_carried(opq_nest *n, carried *c, int loop)
{
    c->count = 0;
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end; i++) {
        const opq_stmt *fold = opq_nest_stmt(n, i);
        if (fold->op != OPQ_STMT_fold || fold->access > loop || (n->partials[fold->access] && n->vector < 0))
            continue;
        if (c->count < OPQ_REDUCTION_MAX)
            c->stmts[c->count++] = fold->access;
        else
            opq_nest_refuse(n, fold);
    }
}

/* The indices of a sequence are carried besides. */
static void begin(opq_nest *n, carried *c, int loop, LLVMValueRef from, LLVMValueRef to, int64_t step, bool sure)
{
    size_t indices = (size_t)n->sequence_rank * sizeof *n->sequence;
    find_carried(n, c, loop);
    for (int i = 0; i < c->count && n->vector >= 0; i++)
        n->folds[c->stmts[i]] = LLVMBuildSub(n->e->builder, to, from, "");
    move(n, c, false);
    memcpy(c->value + c->values, n->sequence, indices);
    (sure ? opq_loop_begin_sure : opq_loop_begin)(n, &c->loop, from, to, step, c->value, c->values + n->sequence_rank);
    memcpy(n->sequence, c->value + c->values, indices);
    move(n, c, true);
}

static void end(opq_nest *n, carried *c)
{
    size_t indices = (size_t)n->sequence_rank * sizeof *n->sequence;
    move(n, c, false);
    memcpy(c->value + c->values, n->sequence, indices);
    opq_loop_end(n, &c->loop, c->value);
    memcpy(n->sequence, c->value + c->values, indices);
    move(n, c, true);
}

/* ---- turns */

/* A turn of the loop `leaf`. Where all is there that lanes ask for, as in the middle of a window's row, without masks. */
static void emit_leaf(opq_nest *n, int leaf)
{
    int from = leaf + 1, to = opq_nest_stmt(n, leaf)->end;
    bool asks =
        n->rows < 0 && n->vector >= 0 && !opq_loop_has_loops(n->k, leaf); /* what stands in others changes with them */
    LLVMValueRef all = asks ? opq_nest_ask_lanes(n, from, to) : NULL;
    opq_fork fork;
    carried c = {0};
    if (all)
        find_carried(n, &c, leaf);
    move(n, &c, false);
    if (!all || c.values > OPQ_FORK_MAX) {
        opq_emit_block(n, from, to);
        return;
    }
    for (int way = 0; way < 2; way++) {
        way ? opq_fork_other(n, &fork) : opq_fork_begin(n, &fork, all, c.value, c.values);
        n->has_lanes = !way;
        move(n, &c, true);
        opq_emit_block(n, from, to);
        move(n, &c, false);
    }
    opq_fork_end(n, &fork);
    move(n, &c, true);
}

/* Turn number `turn` of all, whose indices are carried if they are several. */
static void emit_row(opq_nest *n, const opq_chain *chain, const opq_odometer *odometer, LLVMValueRef turn)
{
    int leaf = chain->loop[chain->count - 1];
    opq_places places = opq_nest_places(n);
    n->turn = turn;
    opq_nest_enter(n, odometer, chain, n->sequence_rank ? n->sequence : &turn);
    emit_leaf(n, leaf);
    opq_nest_return(n, &places);
    if (n->sequence_rank)
        opq_odometer_next(n, odometer, n->sequence);
}

/* `tiles` begin at turn `from`; NULL: every turn from memory. */
static void emit_each(opq_nest *n, int loop, const opq_tiles *tiles, LLVMValueRef from, LLVMValueRef to)
{
    opq_chain chain = opq_nest_chain(n->k, loop);
    opq_odometer odometer = opq_nest_odometer(n, &chain);
    carried c;
    begin(n, &c, loop, from, to, 1, false);
    if (tiles)
        opq_tiles_enter(n, tiles, LLVMBuildSub(n->e->builder, c.loop.index, from, ""));
    emit_row(n, &chain, &odometer, c.loop.index);
    if (tiles)
        opq_tiles_enter(n, tiles, NULL);
    end(n, &c);
}

/* Turns [from, to), which are a whole block of so many; 0: of any number. */
static void emit_rows(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, int64_t block)
{
    opq_chain chain = opq_nest_chain(n->k, loop);
    opq_odometer odometer = opq_nest_odometer(n, &chain);
    int leaf = chain.loop[chain.count - 1], row = n->prefetch_row;
    int cost = opq_nest_cost(n, n->vector, leaf + 1, opq_nest_stmt(n, leaf)->end) * n->strip;
    n->prefetch_row = opq_nest_stmt(n, leaf)->variable;
    opq_nest_find_ahead(n, leaf);
    if (block && cost * block <= n->e->cpu->target->strip.unroll_cost_max) {
        for (int64_t k = 0; k < block; k++)
            emit_row(n, &chain, &odometer, LLVMBuildAdd(n->e->builder, from, opq_i64(n->e, k), ""));
    } else {
        emit_each(n, loop, NULL, from, to);
    }
    memset(n->ahead, 0, sizeof n->ahead);
    n->prefetch_row = row;
}

/* Turns [0, whole), tile after tile. */
static void emit_tiled(opq_nest *n, int loop, const opq_tiles *tiles, LLVMValueRef whole)
{
    carried c;
    begin(n, &c, loop, opq_i64(n->e, 0), whole, n->e->lanes, false);
    n->prefetch = true;
    opq_tiles_load(n, tiles, c.loop.index, NULL);
    n->prefetch = false;
    LLVMValueRef next = LLVMBuildAdd(n->e->builder, c.loop.index, opq_i64(n->e, n->e->lanes), "");
    emit_each(n, loop, tiles, c.loop.index, next);
    opq_tiles_store(n, tiles, c.loop.index);
    end(n, &c);
}

void opq_emit_turns(opq_nest *n, int loop)
{
    int row = n->prefetch_row, variable = opq_nest_stmt(n, loop)->variable;
    LLVMValueRef from = opq_i64(n->e, 0);
    bool scans = opq_nest_scans(n, loop + 1, opq_nest_stmt(n, loop)->end) > 0;
    opq_tiles tiles = {0};
    n->sequence_rank = 0;
    if (scans)
        opq_tiles_open(n, loop, &tiles);
    if (tiles.count > 0) {
        from = LLVMBuildAnd(n->e->builder, n->extent[variable], opq_i64(n->e, -(int64_t)n->e->lanes), "");
        emit_tiled(n, loop, &tiles, from);
    }
    n->prefetch_row = variable;
    n->prefetch = scans;
    emit_each(n, loop, NULL, from, n->extent[variable]);
    n->prefetch = false;
    n->prefetch_row = row;
}

void opq_emit_block_turns(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, int64_t turns)
{
    n->sequence_rank = 0;
    emit_rows(n, loop, from, to, turns);
}

/* ---- blocks */

/* What a loop that counts blocks runs. */
typedef struct blocks {
    const opq_stmt *stmt;
    opq_chain of; /* the loops of whose turns they are */
    int64_t step; /* places of a turn */
    bool nest;    /* are they of blocks alone? */
    bool count;   /* is the last of the loops one that counts blocks? */
} blocks;

static blocks blocks_of(const opq_nest *n, int loop)
{
    blocks found = {.stmt = opq_nest_stmt(n, loop), .step = opq_nest_stmt(n, loop)->by};
    for (int i = loop + 1; i < found.stmt->end; i++)
        if (opq_nest_is_loop(n, i) && opq_nest_stmt(n, i)->within == found.stmt->variable + 1)
            found.of.loop[found.of.count++] = i;
    found.count = opq_nest_stmt(n, found.of.loop[found.of.count - 1])->by > 0;
    found.nest = found.count && found.of.count == 1;
    if (found.nest)
        found.step *= blocks_of(n, found.of.loop[0]).step;
    return found;
}

static LLVMValueRef count_places(opq_nest *n, const blocks *of);

static opq_odometer odometer_of(opq_nest *n, const opq_chain *chain)
{
    LLVMBuilderRef b = n->e->builder;
    opq_odometer odometer = {.rank = chain->count};
    for (int i = 0; i < chain->count; i++) {
        const opq_stmt *loop = opq_nest_stmt(n, chain->loop[i]);
        odometer.variable[i] = loop->by ? -1 : loop->variable;
        if (!loop->by) {
            odometer.extent[i] = n->extent[loop->variable];
            continue;
        }
        blocks of = blocks_of(n, chain->loop[i]);
        LLVMValueRef all = LLVMBuildAdd(b, count_places(n, &of), opq_i64(n->e, of.step - 1), "");
        odometer.extent[i] = LLVMBuildUDiv(b, all, opq_i64(n->e, of.step), "");
    }
    return odometer;
}

static LLVMValueRef count_places(opq_nest *n, const blocks *of)
{
    if (of->nest) {
        blocks inner = blocks_of(n, of->of.loop[0]);
        return count_places(n, &inner);
    }
    opq_odometer odometer = odometer_of(n, &of->of);
    return opq_odometer_count(n, &odometer);
}

static int self(const opq_nest *n, const blocks *loop) { return (int)(loop->stmt - n->k->stmts); }

static int behind_inner(const opq_nest *n, const blocks *loop) { return opq_nest_stmt(n, loop->of.loop[0])->end; }

/* ---- blocks of blocks of a vector loop: all that are in blocks run in one loop */

/* What stands behind one in its blocks, of which it was number `turn`; and, where it was the last of a block of those, behind that one. */
static void fold_up(opq_nest *n, const blocks *outer, const blocks *inner, LLVMValueRef turn, LLVMValueRef is_last)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef by = opq_i64(n->e, outer->stmt->by), next = LLVMBuildAdd(b, turn, opq_i64(n->e, 1), "");
    n->turn = turn;
    opq_partials_fold(n, behind_inner(n, inner), inner->stmt->end);
    LLVMValueRef whole = LLVMBuildICmp(b, LLVMIntEQ, LLVMBuildURem(b, next, by, ""), opq_i64(n->e, 0), "");
    LLVMBasicBlockRef end_if = opq_nest_if(n, LLVMBuildOr(b, whole, is_last, ""));
    n->turn = LLVMBuildUDiv(b, turn, by, "");
    opq_partials_fold(n, behind_inner(n, outer), outer->stmt->end);
    opq_nest_end_if(n, end_if);
}

/* The vector loop in a block, whose first place is `first`. */
static void emit_block(opq_nest *n, const blocks *inner, LLVMValueRef first, LLVMValueRef all)
{
    LLVMValueRef next = LLVMBuildAdd(n->e->builder, first, opq_i64(n->e, inner->step), "");
    opq_nest_run(n, self(n, inner) + 1, inner->of.loop[0]);
    opq_emit_partials(n, inner->of.loop[0], first, opq_nest_smaller(n, next, all), NULL, NULL);
}

/* Turn number `turn` of the sequence, whose last loop is in blocks. */
static void emit_block_of(opq_nest *n, const opq_chain *chain, const blocks *inner, LLVMValueRef all)
{
    LLVMBuilderRef b = n->e->builder;
    int last = chain->count - 1;
    opq_odometer odometer = odometer_of(n, chain);
    LLVMValueRef before = opq_i64(n->e, 0);
    opq_places places = opq_nest_places(n);
    opq_nest_enter(n, &odometer, chain, n->sequence);
    for (int i = 0; i < last; i++)
        before = LLVMBuildAdd(b, LLVMBuildMul(b, before, odometer.extent[i], ""), n->sequence[i], "");
    n->before = LLVMBuildMul(b, before, all, "");
    emit_block(n, inner, LLVMBuildMul(b, n->sequence[last], opq_i64(n->e, inner->step), ""), all);
    n->before = NULL;
    opq_nest_return(n, &places);
    opq_odometer_next(n, &odometer, n->sequence);
}

static void emit_vector_blocks(opq_nest *n, const blocks *outer)
{
    LLVMBuilderRef b = n->e->builder;
    int chain_end = outer->of.count - 1, folds = opq_nest_folds(n, behind_inner(n, outer), outer->stmt->end);
    blocks inner = blocks_of(n, outer->of.loop[chain_end]);
    int64_t step = outer->nest ? inner.step : 1;
    LLVMValueRef places = count_places(n, outer), all = count_places(n, &inner), zero = opq_i64(n->e, 0);
    LLVMValueRef several = LLVMBuildICmp(b, LLVMIntSGT, places, opq_i64(n->e, step), "");
    carried c;
    opq_nest_run(n, self(n, outer) + 1, outer->of.loop[0]);
    if (folds) {
        LLVMBasicBlockRef end_if = opq_nest_if(n, several);
        opq_partials_begin(n, behind_inner(n, &inner), inner.stmt->end, several);
        opq_partials_begin(n, behind_inner(n, outer), outer->stmt->end, several);
        opq_nest_end_if(n, end_if);
    }
    begin(n, &c, self(n, outer), zero, places, step, true);
    if (outer->nest)
        emit_block(n, &inner, c.loop.index, all);
    else
        emit_block_of(n, &outer->of, &inner, all);
    if (folds) {
        LLVMBasicBlockRef end_if = opq_nest_if(n, several);
        LLVMValueRef next = LLVMBuildAdd(b, c.loop.index, opq_i64(n->e, step), "");
        LLVMValueRef turn = LLVMBuildUDiv(b, c.loop.index, opq_i64(n->e, step), "");
        fold_up(n, outer, &inner, turn, LLVMBuildICmp(b, LLVMIntSGE, next, places, ""));
        opq_nest_end_if(n, end_if);
        opq_partials_pass(n, behind_inner(n, &inner), inner.stmt->end);
        opq_partials_pass(n, behind_inner(n, outer), outer->stmt->end);
    }
    end(n, &c);
}

/* ---- blocks of rows */

static void emit_blocks(opq_nest *n, const blocks *loop, LLVMValueRef from, LLVMValueRef to);

/* What stands in a loop that counts blocks, for that of the places [from, to). */
static void emit_body(opq_nest *n, const blocks *loop, LLVMValueRef from, LLVMValueRef to, bool whole)
{
    int inner = loop->of.loop[0];
    opq_nest_run(n, self(n, loop) + 1, inner);
    if (loop->nest) {
        blocks of = blocks_of(n, inner);
        emit_blocks(n, &of, from, to);
    } else {
        emit_rows(n, inner, from, to, whole ? loop->step : 0);
    }
    opq_emit_block(n, behind_inner(n, loop), loop->stmt->end);
}

/* All blocks of the places [from, to). */
static void emit_blocks(opq_nest *n, const blocks *loop, LLVMValueRef from, LLVMValueRef to)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef step = opq_i64(n->e, loop->step), end_of_whole = to;
    if (!loop->nest)
        end_of_whole = LLVMBuildSub(b, to, LLVMBuildURem(b, LLVMBuildSub(b, to, from, ""), step, ""), "");
    carried c;
    begin(n, &c, self(n, loop), from, end_of_whole, loop->step, false);
    LLVMValueRef next = LLVMBuildAdd(b, c.loop.index, step, "");
    n->prefetch = !loop->nest;
    emit_body(n, loop, c.loop.index, loop->nest ? opq_nest_smaller(n, next, to) : next, !loop->nest);
    end(n, &c);
    if (!loop->nest)
        emit_body(n, loop, end_of_whole, to, false);
    n->prefetch = false;
}

void opq_emit_blocks(opq_nest *n, int loop)
{
    blocks outer = blocks_of(n, loop), inner = outer;
    while (inner.count)
        inner = blocks_of(n, inner.of.loop[inner.of.count - 1]);
    bool vector = opq_nest_stmt(n, inner.of.loop[0])->role == OPQ_LOOP_vector;
    const opq_chain *sequence = vector ? &outer.of : &inner.of;
    n->sequence_rank = sequence->count > 1 ? sequence->count : 0;
    for (int i = 0; i < n->sequence_rank; i++)
        n->sequence[i] = opq_i64(n->e, 0);
    if (vector && !outer.count)
        opq_nest_refuse(n, outer.stmt);
    else if (vector)
        emit_vector_blocks(n, &outer);
    else
        emit_blocks(n, &outer, opq_i64(n->e, 0), count_places(n, &outer));
}
