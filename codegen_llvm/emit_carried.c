/* Loops of a schedule that count blocks of a constant size, or run the turns of one, with what they carry: a value of each vector of the strip around
 * for each carry that is folded inside.
 *
 *   whole blocks    of the innermost size, whose turns are unrolled if they are little code
 *   the last one    with the turns that are left
 *
 * Of several loops that are one sequence, the indices are carried, too.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

enum { UNROLL_COST_MAX = 64 };

_Static_assert(2 * OPQ_REDUCTION_MAX * OPQ_STRIP_MAX + OPQ_LOOP_MAX <= OPQ_CARRIED_MAX, "what a loop in blocks carries");

/* ---- statements */

static opq_fold fold_of(const opq_nest *n, int carry)
{
    return opq_op_lowering((opq_op)opq_nest_stmt(n, carry)->value.i)->fold;
}

static LLVMValueRef *turn_of(opq_nest *n, int carry) { return &n->turns[n->value - n->values + carry]; }

LLVMValueRef opq_emit_carry(opq_nest *n, int stmt)
{
    if (opq_fold_is_arg(fold_of(n, stmt)))
        *turn_of(n, stmt) = opq_splat_int(n->e, opq_vector_type(n->e, OPQ_i64), 0);
    return opq_fold_identity(n->e, fold_of(n, stmt), (opq_dtype)opq_nest_stmt(n, stmt)->dtype);
}

void opq_emit_fold(opq_nest *n, int stmt)
{
    int carry = opq_nest_stmt(n, stmt)->access;
    opq_dtype dtype = (opq_dtype)opq_nest_stmt(n, stmt)->dtype;
    LLVMValueRef x = opq_nest_value(n, opq_nest_stmt(n, stmt)->operand[0]), before = opq_nest_value(n, carry);
    if (!opq_fold_is_arg(fold_of(n, carry))) {
        n->value[carry] = opq_fold_combine(n->e, fold_of(n, carry), dtype, before, x);
        return;
    }
    LLVMValueRef better = opq_fold_better(n->e, fold_of(n, carry), dtype, before, x), *turn = turn_of(n, carry);
    n->value[carry] = opq_select(n->e, better, x, before);
    *turn = opq_select(n->e, better, opq_splat(n->e, n->turn), *turn);
}

int opq_nest_folds(const opq_nest *n, int from, int to)
{
    int count = 0;
    for (int i = from; i < to; i++)
        count += opq_nest_stmt(n, i)->op == OPQ_STMT_fold;
    return count;
}

/* ---- what a loop carries */

typedef struct carried {
    opq_loop loop;
    int stmts[2 * OPQ_REDUCTION_MAX], count, values;
    LLVMValueRef value[OPQ_CARRIED_MAX];
} carried;

/* Values of the carries in the nest, or back into it. */
static void move(opq_nest *n, carried *c, bool into)
{
    int at = 0;
    for (int i = 0; i < c->count; i++)
        for (int copy = 0; copy < n->strip; copy++) {
            opq_nest_use_copy(n, copy);
            LLVMValueRef *of[2] = {&n->value[c->stmts[i]], turn_of(n, c->stmts[i])};
            for (int k = 0; k < 1 + opq_fold_is_arg(fold_of(n, c->stmts[i])); k++, at++)
                into ? (void)(*of[k] = c->value[at]) : (void)(c->value[at] = *of[k]);
        }
    opq_nest_use_copy(n, 0);
    c->values = at;
}

/* Carries before the loop that are folded in it. */
static void find_carried(const opq_nest *n, carried *c, int loop)
{
    c->count = 0;
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end; i++) {
        int carry = opq_nest_stmt(n, i)->op == OPQ_STMT_fold ? opq_nest_stmt(n, i)->access : loop;
        if (carry < loop && c->count < 2 * OPQ_REDUCTION_MAX)
            c->stmts[c->count++] = carry;
    }
}

/* `more` are carried besides: in initial values, out those of the turn; and at the end in the next ones. */
static void begin(opq_nest *n, carried *c, int loop, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *more, int count)
{
    find_carried(n, c, loop);
    move(n, c, false);
    memcpy(c->value + c->values, more, (size_t)count * sizeof *more);
    opq_loop_begin(n, &c->loop, from, to, 1, c->value, c->values + count);
    memcpy(more, c->value + c->values, (size_t)count * sizeof *more);
    move(n, c, true);
}

static void end(opq_nest *n, carried *c, LLVMValueRef *more, int count)
{
    move(n, c, false);
    memcpy(c->value + c->values, more, (size_t)count * sizeof *more);
    opq_loop_end(n, &c->loop, c->value);
    memcpy(more, c->value + c->values, (size_t)count * sizeof *more);
    move(n, c, true);
}

/* ---- the turns of a block */

typedef struct rows {
    int loop;
    opq_chain chain;
    opq_odometer odometer;
    int carried; /* indices: none of a loop alone, whose index is the turn */
} rows;

static void emit_row(opq_nest *n, const rows *r, LLVMValueRef turn, LLVMValueRef *index)
{
    int leaf = r->chain.loop[r->chain.count - 1];
    opq_places places = opq_nest_places(n);
    n->turn = turn;
    opq_nest_enter(n, &r->odometer, &r->chain, r->carried ? index : &turn);
    opq_emit_block(n, leaf + 1, opq_nest_stmt(n, leaf)->end);
    opq_nest_return(n, &places);
    if (r->carried)
        opq_odometer_next(n, &r->odometer, index);
}

/* Turns of the block that `within` counts. */
static void emit_rows(opq_nest *n, int loop)
{
    LLVMBuilderRef b = n->e->builder;
    rows r = {.loop = loop, .chain = opq_nest_chain(n->k, loop)};
    int leaf = r.chain.loop[r.chain.count - 1], row = n->prefetch_row;
    int64_t block = opq_loop_block(n->k, loop);
    int cost = opq_nest_cost(n, n->vector, leaf + 1, opq_nest_stmt(n, leaf)->end) * n->strip;
    r.odometer = opq_nest_odometer(n, &r.chain);
    r.carried = r.chain.count > 1 ? r.chain.count : 0;
    LLVMValueRef from = LLVMBuildMul(b, n->index[opq_nest_stmt(n, loop)->within - 1], opq_i64(n->e, block), "");
    LLVMValueRef to = LLVMBuildAdd(b, from, opq_i64(n->e, block), "");
    n->prefetch_row = opq_nest_stmt(n, leaf)->variable;
    if (n->whole && cost * block <= UNROLL_COST_MAX) {
        for (int64_t k = 0; k < block; k++)
            emit_row(n, &r, LLVMBuildAdd(b, from, opq_i64(n->e, k), ""), n->sequence);
    } else {
        carried c;
        if (!n->whole)
            to = opq_nest_smaller(n, to, opq_odometer_count(n, &r.odometer));
        begin(n, &c, loop, from, to, n->sequence, r.carried);
        emit_row(n, &r, c.loop.index, n->sequence);
        end(n, &c, n->sequence, r.carried);
    }
    n->prefetch_row = row;
}

/* ---- blocks */

static void emit_counted(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, int sequence)
{
    carried c;
    begin(n, &c, loop, from, to, n->sequence, sequence);
    n->index[opq_nest_stmt(n, loop)->variable] = c.loop.index;
    opq_emit_block(n, loop + 1, opq_nest_stmt(n, loop)->end);
    end(n, &c, n->sequence, sequence);
}

static LLVMValueRef divided(opq_nest *n, LLVMValueRef count, int64_t by, bool up)
{
    LLVMValueRef most = up ? LLVMBuildAdd(n->e->builder, count, opq_i64(n->e, by - 1), "") : count;
    return LLVMBuildUDiv(n->e->builder, most, opq_i64(n->e, by), "");
}

void opq_emit_blocks(opq_nest *n, int loop)
{
    LLVMBuilderRef b = n->e->builder;
    const opq_stmt *stmt = opq_nest_stmt(n, loop);
    if (!stmt->by) {
        emit_rows(n, loop);
        return;
    }
    int inner = loop + 1;
    while (!opq_nest_is_loop(n, inner))
        inner++;
    int first = inner; /* of the loops whose turns are counted */
    while (opq_nest_stmt(n, first)->by || !opq_nest_is_loop(n, first))
        first++;
    opq_chain chain = opq_nest_chain(n->k, first);
    opq_odometer odometer = opq_nest_odometer(n, &chain);
    LLVMValueRef count = opq_odometer_count(n, &odometer), from = opq_i64(n->e, 0);
    LLVMValueRef to = divided(n, count, stmt->by, true), whole = divided(n, count, stmt->by, false);
    int sequence = chain.count > 1 ? chain.count : 0;
    if (stmt->within) {
        int64_t blocks = opq_loop_block(n->k, loop) / stmt->by;
        from = LLVMBuildMul(b, n->index[stmt->within - 1], opq_i64(n->e, blocks), "");
        LLVMValueRef end_of_block = LLVMBuildAdd(b, from, opq_i64(n->e, blocks), "");
        to = opq_nest_smaller(n, end_of_block, to);
        whole = opq_nest_smaller(n, end_of_block, whole);
    } else {
        for (int i = 0; i < sequence; i++)
            n->sequence[i] = opq_i64(n->e, 0);
    }
    if (opq_nest_stmt(n, inner)->by) {
        emit_counted(n, loop, from, to, sequence);
        return;
    }
    n->whole = n->prefetch = true;
    emit_counted(n, loop, from, whole, sequence);
    n->whole = n->prefetch = false;
    emit_counted(n, loop, whole, to, sequence);
}
