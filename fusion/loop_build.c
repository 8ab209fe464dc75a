/* A flat kernel becomes a tree. Its loops are entered from outside in; an instruction stands in the innermost loop that it depends on, in
 * the order of the body. Reductions cut the body in sweeps: each sweep enters the reduced loops once more, and computes again what it
 * needs, but for what was kept in a local.
 *
 *   map, index   kept loops
 *   row          kept loops { sweep { reduced loops } .. }
 *   column       kept loops but the last { last kept loop { sweep { reduced loops } .. } }
 *   scan         kept loops { scanned loop }
 *   across       as column, where rows are so short that each has a lane
 *   matmul       batch loops { m { n { k } } }, where each may be several loops; or those of a thin product { lanes { unrolled { k } } }
 */
#include "fusion/loop_rewrite.h"

#include <string.h>

typedef struct builder {
    const opq_kernel *kernel;
    opq_loops *out;
    uint16_t reduced; /* mask */
    int order[OPQ_LOOP_MAX], outer,
        unrolled;                /* loops from outside in; how many of them are kept; of these, inside the lanes' */
    int16_t stmt[OPQ_BODY_MAX];  /* the statement that has an instruction's value now, -1 */
    int16_t local[OPQ_BODY_MAX]; /* per spill slot: its statement, -1 */
} builder;

static const char *const role_names[] = {"parallel", "each",   "vector", "unroll", "serial",
                                         "lanes",    "column", "chain",  "pairs"};
const char *opq_loop_role_name(opq_loop_role role) { return role_names[role]; }

static opq_stmt *push(builder *b, int op)
{
    opq_stmt made = opq_stmt_make(op);
    return &b->out->stmts[opq_loops_push(b->out, &made)];
}

static bool is_inside(const builder *b, int i) { return (b->kernel->instrs[i].depends & b->reduced) != 0; }

/* The depth at which an instruction stands: how many of the loops in order are around it. */
static int depth_of(const builder *b, int i)
{
    const opq_instr *instr = &b->kernel->instrs[i];
    int depth = 0;
    for (int d = 0; d < b->kernel->rank; d++)
        if (instr->depends >> b->order[d] & 1)
            depth = d + 1;
    bool late = instr->sweep > 0 || opq_instr_is_root(instr); /* both once per turn of the kept loops */
    return late && depth < b->outer ? b->outer : depth;
}

static void emit(builder *b, int i)
{
    const opq_instr *instr = &b->kernel->instrs[i];
    int number = b->out->stmt_count;
    opq_stmt *stmt = push(b, instr->op);
    stmt->dtype = instr->dtype;
    stmt->value = instr->value;
    stmt->node = instr->node;
    for (int o = 0; o < 3; o++)
        stmt->operand[o] = instr->operand[o] < 0 ? -1 : b->stmt[instr->operand[o]];
    if (opq_instr_has_access(instr))
        stmt->access = instr->access;
    b->stmt[i] = (int16_t)number;
    if (instr->spill >= 0) {
        opq_stmt *keep = push(b, OPQ_STMT_keep);
        keep->dtype = instr->dtype;
        keep->operand[0] = (int16_t)number;
        keep->access = b->local[instr->spill];
    }
}

static void fill(builder *b, int i)
{
    const opq_instr *instr = &b->kernel->instrs[i];
    b->stmt[i] = (int16_t)b->out->stmt_count;
    opq_stmt *kept = push(b, OPQ_STMT_kept);
    kept->dtype = instr->dtype;
    kept->access = b->local[instr->spill];
}

/* ---- sweeps */

static bool is_filled(const builder *b, int i, int sweep)
{
    const opq_instr *instr = &b->kernel->instrs[i];
    return instr->spill >= 0 && instr->sweep < sweep && is_inside(b, i);
}

/* What the reduced loops of a sweep compute; false: nothing. */
static bool needs(const builder *b, int sweep, bool *out_needed)
{
    bool any = false;
    memset(out_needed, 0, (size_t)b->kernel->instr_count * sizeof *out_needed);
    for (int i = b->kernel->instr_count - 1; i >= 0; i--) {
        const opq_instr *instr = &b->kernel->instrs[i];
        bool own = instr->sweep == sweep, root = opq_instr_is_root(instr) || instr->spill >= 0;
        if (own && (opq_instr_reduces(instr) || (root && is_inside(b, i))))
            out_needed[i] = true;
        any |= out_needed[i];
        if (!out_needed[i] || is_filled(b, i, sweep))
            continue;
        for (int o = 0; o < 3; o++)
            if (instr->operand[o] >= 0 && is_inside(b, instr->operand[o]))
                out_needed[instr->operand[o]] = true;
    }
    return any;
}

static opq_loop_role role_of(const builder *b, int depth, bool folds)
{
    int l = b->order[depth];
    bool innermost = depth == b->kernel->rank - 1;
    if (b->kernel->kind == OPQ_KERNEL_index)
        return OPQ_LOOP_serial;
    if (b->kernel->kind == OPQ_KERNEL_scan && b->reduced >> l & 1)
        return OPQ_LOOP_serial;
    bool matmul = b->kernel->kind == OPQ_KERNEL_matmul, column = b->kernel->kind == OPQ_KERNEL_column;
    if (b->reduced >> l & 1 && folds)
        return matmul   ? (b->kernel->pairs ? OPQ_LOOP_pairs : OPQ_LOOP_chain)
               : column ? OPQ_LOOP_column
                        : OPQ_LOOP_lanes;
    int behind = b->outer - b->unrolled;
    if (depth >= behind && depth < b->outer)
        return OPQ_LOOP_unroll;
    bool last = depth < behind && depth >= behind - (matmul ? b->kernel->columns : 1);
    bool lanes = column || matmul || b->kernel->across ? last : innermost;
    return lanes ? OPQ_LOOP_vector : b->reduced >> l & 1 ? OPQ_LOOP_each : OPQ_LOOP_parallel;
}

static int open_loop(builder *b, int depth, bool folds)
{
    opq_stmt *loop = push(b, OPQ_STMT_loop);
    loop->role = (uint8_t)role_of(b, depth, folds);
    loop->variable = (uint8_t)b->order[depth];
    loop->within = b->kernel->blocks && depth > 0; /* in loop 0 */
    loop->value.i = b->kernel->turns[loop->variable];
    return b->out->stmt_count - 1;
}

static void close_loop(builder *b, int loop) { b->out->stmts[loop].end = b->out->stmt_count; }

/* Reductions stand last in the innermost loop. */
static void emit_reduced(builder *b, int depth, int sweep, const bool *needed, bool folds)
{
    for (int i = 0; i < b->kernel->instr_count; i++)
        if (needed[i] && is_inside(b, i) && depth_of(b, i) == depth)
            is_filled(b, i, sweep) ? fill(b, i) : emit(b, i);
    if (depth < b->kernel->rank) {
        int loop = open_loop(b, depth, folds);
        emit_reduced(b, depth + 1, sweep, needed, folds);
        close_loop(b, loop);
        return;
    }
    for (int i = 0; i < b->kernel->instr_count; i++)
        if (needed[i] && opq_instr_reduces(&b->kernel->instrs[i]))
            emit(b, i);
}

static void emit_sweep(builder *b, int sweep)
{
    bool needed[OPQ_BODY_MAX], folds = false;
    for (int i = 0; i < b->kernel->instr_count; i++) {
        const opq_instr *instr = &b->kernel->instrs[i];
        bool reduces = opq_instr_reduces(instr);
        if (!is_inside(b, i) && !reduces && instr->sweep == sweep && depth_of(b, i) == b->outer)
            emit(b, i);
        folds |= reduces && instr->sweep == sweep;
    }
    if (b->outer == b->kernel->rank || !needs(b, sweep, needed))
        return;
    emit_reduced(b, b->outer, sweep, needed, folds);
}

static void emit_locals(builder *b)
{
    for (int i = 0; i < b->kernel->instr_count; i++) {
        const opq_instr *instr = &b->kernel->instrs[i];
        if (instr->spill < 0)
            continue;
        b->local[instr->spill] = (int16_t)b->out->stmt_count;
        opq_stmt *local = push(b, OPQ_STMT_local);
        local->dtype = instr->dtype;
        local->variables = b->reduced;
    }
}

static void emit_kept(builder *b, int depth)
{
    if (depth == b->outer) {
        emit_locals(b);
        for (int sweep = 0; sweep < b->kernel->sweep_count || sweep == 0; sweep++)
            emit_sweep(b, sweep);
        return;
    }
    for (int i = 0; i < b->kernel->instr_count; i++)
        if (!opq_instr_reduces(&b->kernel->instrs[i]) && depth_of(b, i) == depth)
            emit(b, i);
    int loop = open_loop(b, depth, false);
    emit_kept(b, depth + 1);
    close_loop(b, loop);
}

/* ---- blocks of a row alone
 *
 *   parallel i { lanes j in i { .. fold }  store its result }  lanes i { load; fold again }  the rest
 *
 * A block is a chunk of the rule `lanes`, whose results go through the rule once more: the bits are those of one loop. Where the row is not
 * one loop, those that it is stand in each other: `lanes j in i { lanes k in i { .. fold } }`.
 */

static void store_results(builder *b, bool again)
{
    const opq_kernel *k = b->kernel;
    int16_t access = k->own_access;
    for (int i = 0; i < k->instr_count; i++) {
        const opq_instr *instr = &k->instrs[i];
        if (!opq_instr_reduces(instr))
            continue;
        int operand = again ? b->out->stmt_count : b->stmt[i];
        opq_stmt *moved = push(b, again ? OPQ_INSTR_load : OPQ_INSTR_store);
        moved->dtype = instr->dtype;
        moved->access = access++;
        if (!again) {
            moved->operand[0] = (int16_t)operand;
            continue;
        }
        b->stmt[i] = (int16_t)b->out->stmt_count;
        opq_stmt *fold = push(b, instr->op);
        fold->dtype = instr->dtype;
        fold->operand[0] = (int16_t)operand;
    }
}

/* Loop 0, which counts them. */
static int open_blocks(builder *b, opq_loop_role role)
{
    opq_stmt *loop = push(b, OPQ_STMT_loop);
    loop->role = (uint8_t)role;
    return b->out->stmt_count - 1;
}

/* What is not inside, without folds: what the blocks may need, or the rest. */
static void emit_of_row(builder *b, bool late)
{
    for (int i = 0; i < b->kernel->instr_count; i++) {
        const opq_instr *instr = &b->kernel->instrs[i];
        if (!is_inside(b, i) && !opq_instr_reduces(instr) && late == (instr->sweep > 0 || opq_instr_is_root(instr)))
            emit(b, i);
    }
}

static void emit_blocks(builder *b)
{
    bool needed[OPQ_BODY_MAX];
    needs(b, 0, needed);
    emit_of_row(b, false);
    int blocks = open_blocks(b, OPQ_LOOP_parallel);
    emit_reduced(b, 1, 0, needed, true);
    store_results(b, false);
    close_loop(b, blocks);
    int again = open_blocks(b, OPQ_LOOP_lanes);
    store_results(b, true);
    close_loop(b, again);
    emit_of_row(b, true);
}

/* ---- the kernel */

static void order_loops(builder *b)
{
    int count = 0;
    for (int pass = 0; pass < 3; pass++) { /* kept, unrolled, reduced */
        int before = count;
        for (int l = 0; l < b->kernel->rank; l++)
            if (b->kernel->reduced[l] == (pass == 2) && (pass == 2 || (b->kernel->turns[l] > 0) == (pass == 1)))
                b->order[count++] = l;
        b->unrolled = pass == 1 ? count - before : b->unrolled;
        b->outer = pass == 1 ? count : b->outer;
    }
    if (b->kernel->blocks && b->kernel->across) { /* elements keep their order, whichever loop has the lanes */
        b->order[count - 1] = b->kernel->rank - 2;
        b->order[count - 2] = b->kernel->rank - 1;
    }
}

/* Each sweep may make all of the body again, and keep or fill a value beside it. */
static opq_status make_room(builder *b, opq_arena *arena)
{
    const opq_kernel *k = b->kernel;
    int sweeps = k->sweep_count > 0 ? k->sweep_count : 1;
    int capacity = sweeps * (2 * k->instr_count + k->rank) + k->rank + k->spill_count + 1;
    capacity += k->blocks ? 3 * k->instr_count : 0;
    b->out->stmts = opq_arena_alloc(arena, (size_t)capacity * sizeof *b->out->stmts);
    b->out->written = opq_arena_alloc(arena, (size_t)k->buffer_count + 1);
    if (b->out->stmts == NULL || b->out->written == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while building loops");
    memset(b->out->written, 0, (size_t)k->buffer_count + 1);
    return OPQ_OK;
}

opq_status opq_loops_build(const opq_kernel *kernel, opq_arena *arena, opq_loops *out_loops)
{
    builder b;
    memset(&b, 0, offsetof(builder, stmt));
    b.kernel = kernel;
    b.out = out_loops;
    b.reduced = opq_kernel_reduced_mask(kernel);
    *out_loops = (opq_loops){.name = kernel->name,
                             .rank = kernel->rank,
                             .buffer_count = kernel->buffer_count,
                             .scalar_count = kernel->scalar_count,
                             .access_count = kernel->access_count,
                             .by_rows = kernel->by_rows,
                             .accesses = kernel->accesses};
    OPQ_TRY(make_room(&b, arena));
    memset(b.stmt, 0xff, (size_t)kernel->instr_count * sizeof *b.stmt);
    memset(b.local, 0xff, (size_t)kernel->spill_count * sizeof *b.local);
    order_loops(&b);
    for (int i = 0; i < kernel->instr_count; i++) {
        const opq_instr *instr = &kernel->instrs[i];
        if ((instr->op == OPQ_INSTR_store || instr->op == OPQ_INSTR_store_add_at) &&
            kernel->accesses[instr->access].buffer >= 0)
            out_loops->written[kernel->accesses[instr->access].buffer] = 1;
    }
    for (int i = kernel->own_buffer; kernel->blocks && i < kernel->buffer_count; i++)
        out_loops->written[i] = OPQ_BUFFER_own;
    if (kernel->blocks)
        emit_blocks(&b);
    else
        emit_kept(&b, 0);
    return OPQ_OK;
}
