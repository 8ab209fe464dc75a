/* A body (opq_lower_state) becomes a tree. Loops are entered from outside in; a statement stands in the innermost loop that it depends on, in the
 * order of the body. Each sweep enters the loops inside once more, and computes again what it needs, but for what was kept in a local.
 *
 *   map, index   kept loops
 *   row          kept loops { sweep { reduced loops } .. }
 *   column       kept loops but the last { last kept loop { sweep { reduced loops } .. } }
 *   scan         kept loops { scanned loop }
 *   matmul       batch loops { m { n { k } } }, where each may be several loops; or those of a thin product { lanes { taps { k } } }
 *
 * A row alone may have blocks:
 *
 *   parallel i { lanes j in i { .. fold }  store its result }  lanes i { load; fold again }  the rest
 *
 * A block is a chunk of the rule `lanes`, whose results go through the rule once more: the bits are those of one loop. Where the row is not
 * one loop, those that it is stand in each other: `lanes j in i { lanes k in i { .. fold } }`.
 */
#include "fusion/lower_state.h"

#include <string.h>

/* Depths of what stands behind all else in the innermost loop, and behind the loops of a row alone. */
enum { FOLDS = OPQ_LOOP_MAX + 1, BEHIND };

typedef struct builder {
    const opq_lower_state *state;
    opq_loops *out;
    int nest[OPQ_LOOP_MAX], outer; /* loops from outside in; how many of them are kept */
    int16_t opened[OPQ_LOOP_MAX];  /* their statements */
    int sweep;                     /* that is made */
    unsigned folds, loops;         /* bit s: sweep s reduces, enters the loops inside */
    uint8_t depth[OPQ_BODY_MAX];   /* how many loops are around */
    int16_t stmt[OPQ_BODY_MAX];    /* that has the value now */
    int16_t local[OPQ_BODY_MAX];   /* that keeps it */
} builder;

/* ---- where statements stand */

static int depth_of(const builder *b, int i)
{
    const opq_lower_state *state = b->state;
    int depth = 0;
    if (opq_op_reduces(state->body[i].op))
        return FOLDS;
    for (int d = 0; d < state->loops.count; d++)
        if (state->depends[i] >> b->nest[d] & 1)
            depth = d + 1;
    bool late = state->sweep[i] > 0 || opq_stmt_is_root(state->body[i].op); /* both once per turn of the kept loops */
    if (late && depth < b->outer)
        return opq_lower_has_blocks(&state->loops) ? BEHIND : b->outer;
    return depth;
}

static void place(builder *b)
{
    const opq_lower_state *state = b->state;
    int count = 0;
    for (int role = 0; role < OPQ_ROLE_COUNT; role++)
        for (int v = 0; v < state->loops.count; v++)
            if (state->loops.role[v] == role) {
                b->outer += !opq_role_is_inside(role);
                b->nest[count++] = v;
            }
    for (int i = 0; i < state->body_count; i++) {
        bool folds = opq_op_reduces(state->body[i].op);
        b->depth[i] = (uint8_t)depth_of(b, i);
        b->folds |= folds ? state->sweeps[i] : 0;
        b->loops |= folds || (state->depends[i] & opq_lower_inside(&state->loops)) != 0 ? state->sweeps[i] : 0;
    }
}

/* ---- statements */

static opq_stmt *push(builder *b, int op, opq_dtype dtype)
{
    opq_stmt made = opq_lower_stmt(op, dtype, -1, -1);
    return &b->out->stmts[opq_loops_push(b->out, &made)];
}

static void emit(builder *b, int i)
{
    const opq_stmt *stmt = &b->state->body[i];
    bool keeps = b->state->keeps[i], filled = keeps && b->state->sweep[i] < b->sweep;
    opq_stmt made = filled ? opq_lower_stmt(OPQ_STMT_kept, (opq_dtype)stmt->dtype, -1, -1) : *stmt;
    if (filled)
        made.access = b->local[i];
    for (int o = 0; o < 3; o++)
        if (made.operand[o] >= 0)
            made.operand[o] = b->stmt[made.operand[o]];
    b->stmt[i] = opq_loops_push(b->out, &made);
    if (keeps && !filled) {
        opq_stmt *keep = push(b, OPQ_STMT_keep, (opq_dtype)stmt->dtype);
        keep->operand[0] = b->stmt[i];
        keep->access = b->local[i];
    }
}

static void emit_at(builder *b, int depth)
{
    for (int i = 0; i < b->state->body_count; i++)
        if (b->depth[i] == depth && (depth == BEHIND || b->state->sweeps[i] >> b->sweep & 1))
            emit(b, i);
}

static void emit_locals(builder *b)
{
    for (int i = 0; i < b->state->body_count; i++)
        if (b->state->keeps[i]) {
            b->local[i] = (int16_t)b->out->stmt_count;
            push(b, OPQ_STMT_local, (opq_dtype)b->state->body[i].dtype)->variables = opq_lower_inside(&b->state->loops);
        }
}

/* ---- loops */

static opq_loop_role role_of(const builder *b, int loop)
{
    const opq_lower_state *state = b->state;
    if (state->serial)
        return OPQ_LOOP_serial;
    switch ((opq_role)state->loops.role[loop]) {
    case OPQ_ROLE_blocks:
    case OPQ_ROLE_kept:
    case OPQ_ROLE_inner_kept:
    case OPQ_ROLE_batch:
    case OPQ_ROLE_m: return OPQ_LOOP_parallel;
    case OPQ_ROLE_n:
    case OPQ_ROLE_lanes: return OPQ_LOOP_vector;
    case OPQ_ROLE_tap: return OPQ_LOOP_unroll;
    case OPQ_ROLE_each: return OPQ_LOOP_each;
    case OPQ_ROLE_reduced_outer:
    case OPQ_ROLE_reduced_inner:
    case OPQ_ROLE_reduced_lanes:
        if (b->folds >> b->sweep & 1)
            return state->column ? OPQ_LOOP_column : OPQ_LOOP_lanes;
        return loop == state->loops.count - 1 ? OPQ_LOOP_vector : OPQ_LOOP_each;
    case OPQ_ROLE_scan: return OPQ_LOOP_serial;
    case OPQ_ROLE_k:
    case OPQ_ROLE_COUNT: break;
    }
    return opq_lower_product_role(state->graph, state->out->matmul);
}

static void open_loop(builder *b, int depth)
{
    const opq_lower_loops *l = &b->state->loops;
    int variable = b->nest[depth];
    b->opened[depth] = (int16_t)b->out->stmt_count;
    opq_stmt *loop = push(b, OPQ_STMT_loop, 0);
    loop->role = (uint8_t)role_of(b, variable);
    loop->variable = (uint8_t)variable;
    loop->within = opq_lower_has_blocks(l) && depth > 0; /* in loop 0 */
    loop->value.i = l->role[variable] == OPQ_ROLE_tap ? l->extent[variable] : 0;
}

/* Loops [from, to), each behind what stands before it. */
static void open_loops(builder *b, int from, int to)
{
    for (int depth = from; depth < to; depth++) {
        emit_at(b, depth);
        open_loop(b, depth);
    }
}

static void close_loops(builder *b, int from, int to)
{
    for (int depth = from; depth < to; depth++)
        b->out->stmts[b->opened[depth]].end = b->out->stmt_count;
}

/* ---- sweeps */

static void emit_sweeps(builder *b)
{
    open_loops(b, 0, b->outer);
    emit_locals(b);
    for (b->sweep = 0; b->sweep < b->state->sweep_count; b->sweep++) {
        int to = b->loops >> b->sweep & 1 ? b->state->loops.count : b->outer;
        open_loops(b, b->outer, to);
        emit_at(b, to);
        emit_at(b, FOLDS);
        close_loops(b, b->outer, to);
    }
    close_loops(b, 0, b->outer);
}

/* ---- blocks */

/* Results of a block go to memory, or (`again`) from there into the folds of all blocks. */
static void move_results(builder *b, bool again)
{
    const opq_lower_state *state = b->state;
    int16_t access = 0;
    while (!opq_lower_is_own(state, access))
        access++;
    for (int i = 0; i < state->body_count; i++) {
        const opq_stmt *stmt = &state->body[i];
        if (!opq_op_reduces(stmt->op))
            continue;
        opq_stmt moved =
            opq_lower_stmt(again ? OPQ_STMT_load : OPQ_STMT_store, (opq_dtype)stmt->dtype, again ? -1 : b->stmt[i], -1);
        moved.access = access++;
        int16_t number = opq_loops_push(b->out, &moved);
        if (!again)
            continue;
        opq_stmt fold = opq_lower_stmt(stmt->op, (opq_dtype)stmt->dtype, number, -1);
        b->stmt[i] = opq_loops_push(b->out, &fold);
    }
}

static void emit_blocks(builder *b)
{
    int all = b->state->loops.count;
    open_loops(b, 0, all);
    emit_at(b, all);
    emit_at(b, FOLDS);
    close_loops(b, 1, all);
    move_results(b, false);
    close_loops(b, 0, 1);
    open_loop(b, 0);
    b->out->stmts[b->opened[0]].role = OPQ_LOOP_lanes;
    move_results(b, true);
    close_loops(b, 0, 1);
    emit_at(b, BEHIND);
}

/* ---- the kernel */

/* Each sweep may make all of the body again. What is kept has a local and is put there; what blocks fold is stored, loaded and folded again. */
static opq_status begin(builder *b, opq_arena *arena)
{
    const opq_lower_state *state = b->state;
    int count = state->body_count, rank = state->loops.count;
    int besides = opq_lower_has_blocks(&state->loops) ? 3 : state->sweep_count > 1 ? 2 : 0;
    int capacity = state->sweep_count * (count + rank) + rank + besides * count;
    *b->out = (opq_loops){
        .rank = rank,
        .buffer_count = state->buffer_count,
        .scalar_count = state->scalar_count,
        .access_count = state->access_count,
        .accesses = opq_arena_copy(arena, state->accesses, (size_t)state->access_count * sizeof *state->accesses),
        .written = opq_arena_copy(arena, state->written, (size_t)state->buffer_count),
        .stmts = opq_arena_room(arena, (size_t)capacity * sizeof *b->out->stmts)};
    if (!b->out->accesses || !b->out->written || !b->out->stmts)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while lowering a kernel");
    return OPQ_OK;
}

opq_status opq_lower_tree(const opq_lower_state *state, opq_arena *arena, opq_loops *out_loops)
{
    builder b;
    memset(&b, 0, offsetof(builder, depth));
    b.state = state;
    b.out = out_loops;
    OPQ_TRY(begin(&b, arena));
    place(&b);
    if (opq_lower_has_blocks(&state->loops))
        emit_blocks(&b);
    else
        emit_sweeps(&b);
    return OPQ_OK;
}
