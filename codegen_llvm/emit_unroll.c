/* Unrolled loops around a product's chain, inside a strip: a sum for each of their turns in registers, as many as there are, so that what
 * every turn needs is loaded once.
 *
 *   block of turns              as many as fit
 *     chain h { chain w {       what no turn changes, once; then each turn's own, and a fused multiply-add
 *       several w at once, without what tells whether elements are there, where all are: their conditions are linear, corners tell
 *       one w, guarded, elsewhere
 *     } }
 *     what is made of the sums
 *
 * A turn is a row (the unrolled loops but the last one) and a place in it: rows are where the innermost loop begins, and places are added to
 * its index, so that addresses are few.
 */
#include "codegen_llvm/emit_unroll.h"

#include <string.h>

/* ---- the innermost loop */

static void run_own(opq_unroll *p, int turn)
{
    opq_nest *n = p->n;
    opq_unroll_use_held(p, turn);
    for (int i = p->chain.loop[0] + 1; i < opq_nest_stmt(n, opq_unroll_last(&p->chain))->end; i++) {
        if (opq_nest_is_loop(n, i) || i == p->product || !opq_unroll_is_own(p, i))
            continue;
        if (!p->is_whole || !opq_unroll_asks_once(p, i)) {
            opq_unroll_run(p, i);
            continue;
        }
        for (int copy = 0; copy < n->strip; copy++)
            *opq_unroll_value(p, copy, i) = LLVMConstAllOnes(opq_vector_type(n->e, OPQ_bool));
    }
}

static void multiply_add(opq_unroll *p, int turn)
{
    opq_nest *n = p->n;
    const opq_stmt *product = opq_nest_stmt(n, p->product);
    LLVMValueRef *sum = p->sum + (turn - p->from) * n->strip;
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        sum[copy] =
            opq_fma(n->e, opq_nest_value(n, product->operand[0]), opq_nest_value(n, product->operand[1]), sum[copy]);
    }
    opq_nest_use_copy(n, 0);
}

/* Binds the innermost loop's index: `index`, and `more` behind it. */
static void bind_inner(opq_unroll *p, LLVMValueRef index, int more)
{
    opq_nest *n = p->n;
    int variable = opq_nest_stmt(n, opq_unroll_last(&p->chain))->variable;
    n->index[variable] = index;
    opq_nest_bind(n, 1u << variable);
    n->index[variable] = opq_i64(n->e, more);
    if (more)
        opq_nest_bind(n, 1u << variable);
}

/* Turn index + more of the innermost loop: all turns of the block. */
static void emit_turns(opq_unroll *p, LLVMValueRef index, int more)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    const opq_stmt *inner = opq_nest_stmt(n, opq_unroll_last(&p->chain));
    bind_inner(p, index, more);
    n->prefetch = true;
    for (int i = opq_unroll_last(&p->chain) + 1; i < inner->end; i++)
        if (i != p->product && !opq_unroll_is_own(p, i))
            opq_unroll_run(p, i);
    int places_of_row = opq_unroll_places(p), first_row = p->from / places_of_row;
    bool apart = opq_unroll_is_apart(p);
    for (int turn = p->from; turn < p->to; turn++) {
        opq_nest_return(n, &p->rows[turn / places_of_row - first_row]);
        bind_inner(p, index, more);
        opq_unroll_set_turn(p, turn);
        opq_nest_bind(n, 1u << opq_nest_stmt(n, opq_unroll_last(&p->turns))->variable);
        /* Others have been where the last row goes, if a turn of the loop is a row, and not several, as windows that lie apart have it. */
        n->prefetch = turn + 1 == p->to || (apart && (turn + 1) % places_of_row == 0);
        run_own(p, turn);
        multiply_add(p, turn);
    }
    n->prefetch = false;
    opq_nest_return(n, &places);
}

/* So many turns of the innermost loop as one, where all elements are there. */
static int group_of(const opq_unroll *p)
{
    int sums = (p->to - p->from) * p->n->strip, grouped = p->n->e->cpu->target->strip.grouped,
        most = opq_unroll_lanes_are_places(p, p->n->vector) ? grouped : 2 * grouped;
    return sums <= most / 4 ? 4 : sums <= most / 2 ? 2 : 1;
}

/* 1 if the next turns of the innermost loop are there, and all elements that they ask for. */
static LLVMValueRef ask_for_group(opq_unroll *p, LLVMValueRef index, int group)
{
    opq_nest *n = p->n;
    int variable = opq_nest_stmt(n, opq_unroll_last(&p->chain))->variable;
    LLVMValueRef last = LLVMBuildAdd(n->e->builder, index, opq_i64(n->e, group - 1), "");
    LLVMValueRef all =
        opq_nest_both(n, p->before, LLVMBuildICmp(n->e->builder, LLVMIntSLT, last, n->extent[variable], ""));
    for (int end = 0; end < (group > 1 ? 2 : 1); end++) {
        n->index[variable] = end ? last : index;
        all = opq_nest_both(n, all, opq_unroll_ask(p, true));
    }
    return all;
}

/* A group of turns where that can be, else one turn. The loop's step becomes as many. */
static void emit_group_or_one(opq_unroll *p, opq_loop *loop)
{
    opq_fork f;
    int group = group_of(p);
    opq_fork_begin(p->n, &f, ask_for_group(p, loop->index, group), p->sum, (p->to - p->from) * p->n->strip);
    p->is_whole = true;
    for (int i = 0; i < group; i++)
        emit_turns(p, loop->index, i);
    p->is_whole = false;
    opq_fork_other(p->n, &f);
    emit_turns(p, loop->index, 0);
    opq_fork_end(p->n, &f);
    loop->step = opq_fork_phi(p->n, &f, opq_i64(p->n->e, group), loop->step);
}

/* ---- the loops around it */

static void start_rows(opq_unroll *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    int first = p->from / opq_unroll_places(p);
    for (int row = first; row * opq_unroll_places(p) < p->to; row++) {
        opq_unroll_set_turn(p, row * opq_unroll_places(p));
        opq_nest_bind(n, opq_unroll_variables(p, false));
        p->rows[row - first] = opq_nest_places(n);
        opq_nest_return(n, &places);
    }
}

static void emit_level(opq_unroll *p, int level)
{
    opq_nest *n = p->n;
    bool innermost = level == p->chain.count - 1;
    int variable = opq_unroll_loop(n, &p->chain, level)->variable;
    opq_loop loop;
    if (innermost) {
        start_rows(p);
        p->before = opq_unroll_ask(p, false);
    }
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[variable], 1, p->sum, (p->to - p->from) * n->strip);
    opq_places places = opq_nest_places(n);
    n->index[variable] = loop.index;
    if (innermost) {
        emit_group_or_one(p, &loop);
    } else {
        opq_nest_bind(n, 1u << variable);
        for (int i = p->chain.loop[level] + 1; i < p->chain.loop[level + 1]; i++)
            if (!opq_unroll_is_own(p, i))
                opq_unroll_run(p, i);
        emit_level(p, level + 1);
    }
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, p->sum);
}

static void emit_chain(opq_unroll *p)
{
    opq_nest *n = p->n;
    LLVMValueRef lanes = opq_unroll_ask_for_lanes(p);
    int row = n->prefetch_row;
    n->prefetch_row = opq_nest_stmt(n, opq_unroll_last(&p->chain))->variable;
    const opq_target *t = n->e->cpu->target;
    n->prefetch_rows = opq_unroll_lanes_are_places(p, n->vector) ? t->strip.prefetch_rows : t->strip.prefetch_places;
    if (lanes) {
        opq_fork f;
        opq_fork_begin(n, &f, lanes, p->sum, (p->to - p->from) * n->strip);
        p->has_lanes = true;
        emit_level(p, 0);
        p->has_lanes = false;
        opq_fork_other(n, &f);
        emit_level(p, 0);
        opq_fork_end(n, &f);
    } else {
        emit_level(p, 0);
    }
    n->prefetch_row = row;
    n->prefetch_rows = OPQ_COLUMN_GROUP;
}

static void emit_block(opq_unroll *p)
{
    opq_nest *n = p->n;
    opq_places places = opq_nest_places(n);
    LLVMTypeRef type = opq_vector_type(n->e, (opq_dtype)opq_nest_stmt(n, p->product)->dtype);
    for (int s = 0; s < (p->to - p->from) * n->strip; s++)
        p->sum[s] = LLVMConstNull(type);
    opq_unroll_hold(p);
    emit_chain(p);
    for (int turn = p->from; turn < p->to; turn++) {
        opq_unroll_set_turn(p, turn);
        opq_nest_bind(n, opq_unroll_variables(p, true));
        opq_unroll_use_held(p, turn);
        for (int copy = 0; copy < n->strip; copy++) {
            opq_nest_use_copy(n, copy);
            opq_nest_define(n, p->product, p->sum[(turn - p->from) * n->strip + copy]);
        }
        opq_nest_use_copy(n, 0);
        opq_nest_run(n, opq_nest_stmt(n, p->chain.loop[0])->end, opq_nest_stmt(n, opq_unroll_last(&p->turns))->end);
        opq_nest_return(n, &places);
    }
}

/* ---- which loops */

/* Unrolled loops, the innermost of which has a chain as its only loop: false: others. */
static bool find_loops(opq_nest *n, int loop, opq_unroll *out)
{
    *out = (opq_unroll){.n = n, .product = -1, .count = 1};
    out->turns = opq_nest_chain(n->k, loop);
    int last = opq_unroll_last(&out->turns), end = n->k->stmts[last].end, chain = -1;
    for (int level = 0; level < out->turns.count; level++) {
        out->count *= (int)n->k->stmts[out->turns.loop[level]].value.i;
        for (int i = out->turns.loop[level] + 1; level + 1 < out->turns.count && i < out->turns.loop[level + 1]; i++)
            return false; /* it would be made for each turn inside, too */
    }
    for (int i = last + 1; i < end; i++) {
        if (n->k->stmts[i].op != OPQ_STMT_loop) {
            if (chain < 0 && out->held_count == OPQ_UNROLL_HELD_MAX)
                return false;
            if (chain < 0)
                out->held_stmt[out->held_count++] = i;
            continue;
        }
        if (chain >= 0 || n->k->stmts[i].role != OPQ_LOOP_chain)
            return false;
        chain = i;
        i = n->k->stmts[i].end - 1;
    }
    if (chain < 0)
        return false;
    out->chain = opq_nest_chain(n->k, chain);
    for (int i = chain; i < n->k->stmts[chain].end; i++) {
        if (opq_op_contracts(n->k->stmts[i].op))
            out->product = i;
        if (opq_op_checks(n->k->stmts[i].op) || n->k->stmts[i].op == OPQ_STMT_kept)
            return false;
    }
    return out->product >= 0;
}

static int sums_of(const opq_nest *n, int product)
{
    int sums = n->e->cpu->target->strip.sums;
    return opq_dtype_bytes((opq_dtype)opq_nest_stmt(n, product)->dtype) == 8 ? sums / 2 : sums;
}

int opq_unroll_width(opq_nest *n, int lanes, int loop)
{
    opq_unroll p;
    int width = n->e->cpu->target->strip.vectors;
    if (!find_loops(n, loop, &p))
        return 1;
    int most = sums_of(n, p.product), turns = p.count;
    if (turns * 2 > most && !opq_unroll_lanes_are_places(&p, lanes))
        turns = opq_unroll_places(&p);
    while (width > 1 && turns * width > most)
        width /= 2;
    return width;
}

bool opq_emit_unroll(opq_nest *n, int loop)
{
    opq_unroll p;
    if (n->rows >= 0 || !find_loops(n, loop, &p))
        return false;
    int most = sums_of(n, p.product) / n->strip, blocks = (p.count + most - 1) / most;
    for (int block = 0; block < blocks; block++) {
        p.from = p.count * block / blocks;
        p.to = p.count * (block + 1) / blocks;
        emit_block(&p);
    }
    return true;
}
