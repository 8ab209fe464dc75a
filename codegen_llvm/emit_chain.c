/* A product of two loads in each lane: one chain of fused multiply-adds from +0 on, for every vector of a strip. */
#include "codegen_llvm/nest.h"

enum { HELD_MAX = 4 };

typedef struct part {
    opq_nest *n;
    opq_chain chain;
    int product; /* statement */
    LLVMValueRef sum[OPQ_STRIP_MAX];
    int unrolled; /* turns of the innermost loop, made without a loop; 0: it is counted */
    bool sliding;
    bool whole; /* every element is there */
    int held_count, held_stmt[HELD_MAX];
    LLVMValueRef held[OPQ_WINDOW_MAX][HELD_MAX][OPQ_STRIP_MAX]; /* conditions of each turn that the loops around it share */
} part;

static const opq_stmt *loop_of(const part *p, int level) { return opq_nest_stmt(p->n, p->chain.loop[level]); }

static int innermost(const part *p) { return p->chain.count - 1; }

static LLVMValueRef always(const part *p) { return LLVMConstAllOnes(opq_vector_type(p->n->e, OPQ_bool)); }

static LLVMValueRef *value_of(const part *p, int copy, int stmt)
{
    return &p->n->values[(size_t)copy * ((size_t)p->n->k->stmt_count + 1) + (size_t)stmt];
}

/* ---- the innermost loop */

static void multiply_add(part *p)
{
    opq_nest *n = p->n;
    const opq_stmt *product = opq_nest_stmt(n, p->product);
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        p->sum[copy] =
            opq_fma(n->e, opq_nest_value(n, product->operand[0]), opq_nest_value(n, product->operand[1]), p->sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}

static void run_one(part *p, int i)
{
    bool asks = opq_nest_stmt(p->n, i)->op == OPQ_STMT_inside;
    if (!p->whole || !asks)
        opq_nest_run(p->n, i, i + 1);
    for (int copy = 0; copy < p->n->strip && p->whole && asks; copy++)
        *value_of(p, copy, i) = always(p);
}

static void emit_turn(part *p, LLVMValueRef index, int turn)
{
    opq_nest *n = p->n;
    const opq_stmt *stmt = loop_of(p, innermost(p));
    opq_places places = opq_nest_places(n);
    n->index[stmt->variable] = index;
    opq_nest_bind(n, 1u << stmt->variable);
    for (int i = p->chain.loop[innermost(p)] + 1, h = 0; i < stmt->end; i++) {
        if (h < p->held_count && p->held_stmt[h] == i) {
            for (int copy = 0; copy < n->strip; copy++)
                *value_of(p, copy, i) = p->held[turn][h][copy];
            h++;
            continue;
        }
        run_one(p, i);
    }
    multiply_add(p);
    opq_nest_return(n, &places);
}

/* `tiles` begin at turn `from`; NULL: every turn from memory. */
static void emit_turns(part *p, const opq_tiles *tiles, LLVMValueRef from, LLVMValueRef to)
{
    opq_nest *n = p->n;
    opq_loop loop;
    opq_loop_begin(n, &loop, from, to, 1, p->sum, n->strip);
    if (tiles)
        opq_tiles_enter(n, tiles, LLVMBuildSub(n->e->builder, loop.index, from, ""));
    emit_turn(p, loop.index, 0);
    if (tiles)
        opq_tiles_enter(n, tiles, NULL);
    opq_loop_end(n, &loop, p->sum);
}

/* Turns [first, end), of which there may be fewer than a tile has. */
static void load_tiles(part *p, const opq_tiles *tiles, LLVMValueRef first, LLVMValueRef end)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef count = LLVMBuildSub(b, end, first, "");
    LLVMBasicBlockRef next = opq_nest_if(n, LLVMBuildICmp(b, LLVMIntEQ, count, opq_i64(n->e, n->e->lanes), ""));
    opq_tiles_load(n, tiles, first, NULL);
    next = opq_nest_else(n, next);
    opq_tiles_load(n, tiles, first, count);
    opq_nest_end_if(n, next);
}

static void emit_tiled(part *p, const opq_tiles *tiles, LLVMValueRef extent)
{
    opq_nest *n = p->n;
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), extent, n->e->lanes, p->sum, n->strip);
    LLVMValueRef end = LLVMBuildAdd(n->e->builder, loop.index, opq_i64(n->e, n->e->lanes), "");
    end = opq_nest_smaller(n, end, extent);
    load_tiles(p, tiles, loop.index, end);
    emit_turns(p, tiles, loop.index, end);
    opq_loop_end(n, &loop, p->sum);
}

static void emit_innermost(part *p)
{
    opq_nest *n = p->n;
    for (int turn = 0; turn < p->unrolled; turn++)
        emit_turn(p, opq_i64(n->e, turn), turn);
    if (p->unrolled)
        return;
    opq_tiles tiles = {0};
    LLVMValueRef extent = n->extent[loop_of(p, innermost(p))->variable];
    if (p->chain.count == 1)
        opq_tiles_open(n, p->chain.loop[0], &tiles);
    if (tiles.count > 0)
        emit_tiled(p, &tiles, extent);
    else
        emit_turns(p, NULL, opq_i64(n->e, 0), extent);
}

/* What tells which lanes are there, if the loops around do not change it. */
static void find_held(part *p)
{
    opq_nest *n = p->n;
    const opq_stmt *loop = loop_of(p, innermost(p));
    unsigned others = 0;
    for (int level = 0; level < innermost(p); level++)
        others |= 1u << loop_of(p, level)->variable;
    for (int i = p->chain.loop[innermost(p)] + 1; i < loop->end && p->held_count < HELD_MAX; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_inside && !(n->varies[i] & others))
            p->held_stmt[p->held_count++] = i;
}

/* Computes it for all turns of the unrolled loop. */
static void hold_conditions(part *p)
{
    opq_nest *n = p->n;
    const opq_stmt *loop = loop_of(p, innermost(p));
    opq_places places = opq_nest_places(n);
    for (int turn = 0; turn < p->unrolled; turn++) {
        n->index[loop->variable] = opq_i64(n->e, turn);
        opq_nest_bind(n, 1u << loop->variable);
        for (int h = 0; h < p->held_count; h++) {
            opq_nest_run(n, p->held_stmt[h], p->held_stmt[h] + 1);
            for (int copy = 0; copy < n->strip; copy++)
                p->held[turn][h][copy] = *value_of(p, copy, p->held_stmt[h]);
        }
        opq_nest_return(n, &places);
    }
}

/* ---- the loops around it */

/* Of rows beside each other: what the next ones will read of this row of the window. Of a window that is counted the last rows do: their windows reach
 * over what the others look ahead to. */
static void look_ahead(part *p)
{
    opq_nest *n = p->n;
    const opq_stmt *loop = loop_of(p, innermost(p));
    if (n->rows < 0 || n->strip == 1)
        return;
    for (int copy = p->unrolled ? 0 : n->strip - 2; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        for (int i = p->chain.loop[innermost(p)] + 1; i < loop->end; i++)
            if (opq_nest_stmt(n, i)->op == OPQ_STMT_load)
                opq_nest_look_ahead(n, opq_nest_stmt(n, i)->access);
    }
    opq_nest_use_copy(n, 0);
}

/* One way where `which` holds, else the other. */
static void emit_either(part *p, LLVMValueRef which, void (*one)(part *p), void (*other)(part *p))
{
    opq_fork fork;
    opq_fork_begin(p->n, &fork, which, p->sum, p->n->strip);
    one(p);
    opq_fork_other(p->n, &fork);
    other(p);
    opq_fork_end(p->n, &fork);
}

/* Conditions between the loops around the innermost one that are the same for all lanes: their number. */
static int find_uniform(const part *p, int *out_stmts)
{
    opq_nest *n = p->n;
    int count = 0;
    for (int i = p->chain.loop[0] + 1; i < p->chain.loop[innermost(p)] && count < HELD_MAX; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_inside && !opq_nest_varies(n, i))
            out_stmts[count++] = i;
    return count;
}

/* The innermost loop where all of these hold. */
static void emit_unguarded(part *p)
{
    int stmts[HELD_MAX], count = find_uniform(p, stmts), strip = p->n->strip;
    LLVMValueRef value[HELD_MAX][OPQ_STRIP_MAX];
    for (int s = 0; s < count; s++)
        for (int copy = 0; copy < strip; copy++) {
            value[s][copy] = *value_of(p, copy, stmts[s]);
            *value_of(p, copy, stmts[s]) = always(p);
        }
    emit_innermost(p);
    for (int s = 0; s < count; s++)
        for (int copy = 0; copy < strip; copy++)
            *value_of(p, copy, stmts[s]) = value[s][copy];
}

static void emit_guarded(part *p)
{
    opq_nest *n = p->n;
    int stmts[HELD_MAX], count = p->unrolled ? find_uniform(p, stmts) : 0;
    LLVMValueRef all = NULL;
    for (int s = 0; s < count; s++)
        for (int copy = 0; copy < n->strip; copy++) {
            LLVMValueRef holds = opq_lane(n->e, *value_of(p, copy, stmts[s]), 0);
            all = all ? LLVMBuildAnd(n->e->builder, all, holds, "") : holds;
        }
    if (all)
        emit_either(p, all, emit_unguarded, emit_innermost);
    else
        emit_innermost(p);
}

static void emit_level(part *p, int level)
{
    opq_nest *n = p->n;
    if (level == innermost(p)) {
        look_ahead(p);
        emit_guarded(p);
        return;
    }
    opq_loop loop;
    int variable = loop_of(p, level)->variable;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[variable], 1, p->sum, n->strip);
    opq_places places = opq_nest_places(n);
    n->index[variable] = loop.index;
    opq_nest_bind(n, 1u << variable);
    for (int i = p->chain.loop[level] + 1; i < p->chain.loop[level + 1]; i++)
        run_one(p, i);
    emit_level(p, level + 1);
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, p->sum);
}

/* 1 if a condition holds in all turns, lanes and copies: it is linear, so that its first and last numbers tell. */
static LLVMValueRef holds_everywhere(part *p, int stmt, int variable)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef all = NULL;
    opq_places places = opq_nest_places(n);
    for (int end = 0; end < 2; end++) {
        LLVMValueRef last = LLVMBuildSub(b, n->extent[variable], opq_i64(n->e, 1), "");
        n->index[variable] = end ? last : opq_i64(n->e, 0);
        opq_nest_bind(n, 1u << variable);
        for (int copy = 0; copy < n->strip; copy += n->strip > 1 ? n->strip - 1 : 1) {
            if (copy > 0 && !opq_nest_differs(n, stmt))
                continue;
            opq_nest_use_copy(n, copy);
            LLVMValueRef holds =
                opq_nest_varies(n, stmt) ? opq_nest_inside_all(n, stmt) : opq_lane(n->e, opq_nest_inside(n, stmt), 0);
            all = all ? LLVMBuildAnd(b, all, holds, "") : holds;
        }
        opq_nest_use_copy(n, 0);
        opq_nest_return(n, &places);
    }
    return all;
}

/* ---- rows that slide
 *
 * Where the next row of the window is the next row of the result's operand (fusion/lower_window.c), what is loaded for one serves up to three
 * rows of the result:
 *
 *   for t in rows + 2      a row of what is loaded, all of it inside
 *     for m in 3           its elements, once
 *       row c += weight[t - c][m] * element     ascending for each c: the chain's order
 */

/* Does the tree say so? */
static bool slides(const part *p)
{
    const opq_nest *n = p->n;
    return n->rows >= 0 && n->strip >= 2 && loop_of(p, 0)->variables == 1u << n->rows;
}

/* 1 if all conditions of the rows hold; NULL: there are none. */
static LLVMValueRef slides_here(part *p)
{
    LLVMValueRef all = NULL;
    int stmts[HELD_MAX], count = find_uniform(p, stmts);
    for (int s = 0; s < count; s++)
        all = opq_nest_both(p->n, all, holds_everywhere(p, stmts[s], loop_of(p, 0)->variable));
    return all;
}

/* The values of the body that move with the rows, or those that do not, at this place of the window, of a copy. */
static LLVMValueRef emit_element(part *p, bool moves, int copy, int row, int turn, int operand)
{
    opq_nest *n = p->n;
    const opq_stmt *outer = loop_of(p, 0), *inner = loop_of(p, 1);
    opq_places places = opq_nest_places(n);
    n->index[outer->variable] = opq_i64(n->e, row);
    n->index[inner->variable] = opq_i64(n->e, turn);
    opq_nest_use_copy(n, copy);
    opq_nest_bind_copy(n, 1u << outer->variable | 1u << inner->variable);
    for (int i = p->chain.loop[0] + 1, h = 0; i < inner->end; i++) {
        bool held = h < p->held_count && p->held_stmt[h] == i;
        if (held)
            n->value[i] = p->held[turn][h++][copy];
        else if (opq_nest_is_loop(n, i) || (n->varies[i] >> n->rows & 1) != moves)
            continue;
        else if (opq_nest_stmt(n, i)->op == OPQ_STMT_inside && !opq_nest_varies(n, i))
            n->value[i] = always(p);
        else
            opq_nest_run_one(n, i, i + 1);
    }
    LLVMValueRef value = opq_nest_value(n, operand);
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
    return value;
}

static void emit_sliding(part *p)
{
    opq_nest *n = p->n;
    const int16_t *operand = opq_nest_stmt(n, p->product)->operand;
    int moving = n->varies[operand[1]] >> n->rows & 1, rows = n->strip; /* moving: the operand that does, with the rows */
    int window = (int)loop_of(p, 0)->value.i;
    LLVMValueRef weight[OPQ_WINDOW_MAX][OPQ_WINDOW_MAX];
    for (int l = 0; l < window; l++)
        for (int m = 0; m < p->unrolled; m++)
            weight[l][m] = emit_element(p, false, 0, l, m, operand[!moving]);
    opq_places places = opq_nest_places(n);
    n->index[loop_of(p, 0)->variable] = opq_i64(n->e, window - 1);
    opq_nest_bind(n, 1u << loop_of(p, 0)->variable);
    look_ahead(p);
    opq_nest_return(n, &places);
    for (int t = 0; t < rows + window - 1; t++)
        for (int m = 0; m < p->unrolled; m++) {
            int copy = t < rows ? t : rows - 1;
            LLVMValueRef x = emit_element(p, true, copy, t - copy, m, operand[moving]);
            for (int c = 0; c < rows; c++)
                if (t - c >= 0 && t - c < window)
                    p->sum[c] = opq_fma(n->e, moving ? weight[t - c][m] : x, moving ? x : weight[t - c][m], p->sum[c]);
        }
}

/* 1 if all lanes of all rows are there in every turn of the unrolled loop. */
static LLVMValueRef all_there(part *p)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    int inner = loop_of(p, innermost(p))->variable;
    LLVMValueRef all = LLVMBuildICmp(b, LLVMIntSGE, n->remaining, opq_i64(n->e, n->e->lanes), "");
    for (int h = 0; h < p->held_count; h++)
        all = LLVMBuildAnd(b, all, holds_everywhere(p, p->held_stmt[h], inner), "");
    return all;
}

static void emit_rows_apart(part *p) { emit_level(p, 0); }

static void emit_masked(part *p)
{
    hold_conditions(p);
    LLVMValueRef here = p->sliding ? slides_here(p) : NULL;
    if (here)
        emit_either(p, here, emit_sliding, emit_rows_apart);
    else
        p->sliding ? emit_sliding(p) : emit_rows_apart(p);
}

/* Without a mask. */
static void emit_unmasked(part *p, void (*emit)(part *p))
{
    LLVMValueRef mask = p->n->mask, remaining = p->n->remaining;
    opq_nest_mask(p->n, NULL);
    emit(p);
    p->n->mask = mask;
    p->n->remaining = remaining;
}

static void emit_whole(part *p)
{
    for (int turn = 0; turn < p->unrolled; turn++)
        for (int h = 0; h < p->held_count; h++)
            for (int copy = 0; copy < p->n->strip; copy++)
                p->held[turn][h][copy] = always(p);
    emit_unmasked(p, p->sliding ? emit_sliding : emit_rows_apart);
}

/* ---- windows whose rows have 3 elements: these without a loop */

static void emit_unrolled(part *p)
{
    p->sliding = slides(p);
    find_held(p);
    if (p->n->rows < 0) {
        emit_masked(p);
        return;
    }
    LLVMValueRef whole = all_there(p);
    if (p->sliding)
        whole = opq_nest_both(p->n, whole, slides_here(p));
    emit_either(p, whole, emit_whole, emit_masked);
}

/* 1 if nothing is padding: NULL: it is not asked, or not of one loop at a time. */
static LLVMValueRef ask_for_all(part *p)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef all = NULL;
    for (int i = p->chain.loop[0] + 1; i < loop_of(p, 0)->end; i++) {
        int variable = -1, count = 0;
        for (int level = 0; level < p->chain.count; level++)
            if (n->varies[i] >> loop_of(p, level)->variable & 1) {
                variable = loop_of(p, level)->variable;
                count++;
            }
        if (opq_nest_is_loop(n, i) || opq_nest_stmt(n, i)->op != OPQ_STMT_inside)
            continue;
        if (count != 1)
            return NULL;
        LLVMValueRef holds = holds_everywhere(p, i, variable);
        all = all ? LLVMBuildAnd(b, all, holds, "") : holds;
    }
    if (all && n->remaining)
        all = LLVMBuildAnd(b, all, LLVMBuildICmp(b, LLVMIntSGE, n->remaining, opq_i64(n->e, n->e->lanes), ""), "");
    return all;
}

static void emit_inside(part *p)
{
    p->whole = true;
    emit_unmasked(p, emit_rows_apart);
    p->whole = false;
}

static void emit_counted(part *p)
{
    LLVMValueRef all = ask_for_all(p);
    if (all)
        emit_either(p, all, emit_inside, emit_rows_apart);
    else
        emit_rows_apart(p);
}

void opq_emit_chain(opq_nest *n, int loop)
{
    part p = {.n = n, .chain = opq_nest_chain(n->k, loop)};
    for (int i = loop; i < opq_nest_stmt(n, loop)->end; i++)
        if (opq_op_contracts(opq_nest_stmt(n, i)->op))
            p.product = i;
    LLVMTypeRef type = opq_vector_type(n->e, (opq_dtype)opq_nest_stmt(n, p.product)->dtype);
    for (int copy = 0; copy < n->strip; copy++)
        p.sum[copy] = LLVMConstNull(type);
    p.unrolled = (int)loop_of(&p, innermost(&p))->value.i;
    p.unrolled ? emit_unrolled(&p) : emit_counted(&p);
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_define(n, p.product, p.sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}
