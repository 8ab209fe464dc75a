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

_Static_assert(2 * OPQ_REDUCTION_MAX * OPQ_STRIP_MAX + OPQ_LOOP_MAX <= OPQ_CARRIED_MAX,
               "what a loop in blocks carries");

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
            LLVMValueRef *of[2] = {&n->value[c->stmts[i]], turn_of(n, c->stmts[i])};
            for (int k = 0; k < 1 + opq_fold_is_arg(fold_of(n, c->stmts[i])); k++, at++)
                into ? (void)(*of[k] = c->value[at]) : (void)(c->value[at] = *of[k]);
        }
    opq_nest_use_copy(n, 0);
    c->values = at;
}

/* Carries before the loop that are folded in it. */
static void find_carried(opq_nest *n, carried *c, int loop)
{
    c->count = 0;
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end; i++) {
        const opq_stmt *fold = opq_nest_stmt(n, i);
        if (fold->op != OPQ_STMT_fold || fold->access > loop)
            continue;
        if (c->count < OPQ_REDUCTION_MAX)
            c->stmts[c->count++] = fold->access;
        else
            opq_nest_refuse(n, fold);
    }
}

/* The indices of a sequence are carried besides. */
static void begin(opq_nest *n, carried *c, int loop, LLVMValueRef from, LLVMValueRef to, int64_t step)
{
    size_t indices = (size_t)n->sequence_rank * sizeof *n->sequence;
    find_carried(n, c, loop);
    move(n, c, false);
    memcpy(c->value + c->values, n->sequence, indices);
    opq_loop_begin(n, &c->loop, from, to, step, c->value, c->values + n->sequence_rank);
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

/* ---- the turns of a block */

/* Turn number `turn` of all, whose indices are carried if they are several. */
static void emit_row(opq_nest *n, const opq_chain *chain, const opq_odometer *odometer, LLVMValueRef turn)
{
    int leaf = chain->loop[chain->count - 1];
    opq_places places = opq_nest_places(n);
    n->turn = turn;
    opq_nest_enter(n, odometer, chain, n->sequence_rank ? n->sequence : &turn);
    opq_emit_block(n, leaf + 1, opq_nest_stmt(n, leaf)->end);
    opq_nest_return(n, &places);
    if (n->sequence_rank)
        opq_odometer_next(n, odometer, n->sequence);
}

/* Turns [from, to), which are a whole block if `whole`. */
static void emit_rows(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, bool whole)
{
    opq_chain chain = opq_nest_chain(n->k, loop);
    opq_odometer odometer = opq_nest_odometer(n, &chain);
    int leaf = chain.loop[chain.count - 1], row = n->prefetch_row;
    int64_t block = opq_loop_block(n->k, loop);
    int cost = opq_nest_cost(n, n->vector, leaf + 1, opq_nest_stmt(n, leaf)->end) * n->strip;
    n->prefetch_row = opq_nest_stmt(n, leaf)->variable;
    if (whole && cost * block <= UNROLL_COST_MAX) {
        for (int64_t k = 0; k < block; k++)
            emit_row(n, &chain, &odometer, LLVMBuildAdd(n->e->builder, from, opq_i64(n->e, k), ""));
    } else {
        carried c;
        begin(n, &c, loop, from, to, 1);
        emit_row(n, &chain, &odometer, c.loop.index);
        end(n, &c);
    }
    n->prefetch_row = row;
}

/* ---- blocks */

static void emit_turns(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to);

static int first_loop(const opq_nest *n, int loop)
{
    int i = loop + 1;
    while (!opq_nest_is_loop(n, i))
        i++;
    return i;
}

/* What stands in a loop that counts blocks, for that of the turns [from, to). */
static void emit_body(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, bool whole)
{
    int inner = first_loop(n, loop);
    opq_nest_run(n, loop + 1, inner);
    if (opq_nest_stmt(n, inner)->by)
        emit_turns(n, inner, from, to);
    else
        emit_rows(n, inner, from, to, whole);
    opq_emit_block(n, opq_nest_stmt(n, inner)->end, opq_nest_stmt(n, loop)->end);
}

/* All blocks of the turns [from, to). */
static void emit_turns(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to)
{
    LLVMBuilderRef b = n->e->builder;
    int64_t by = opq_nest_stmt(n, loop)->by;
    bool innermost = !opq_nest_stmt(n, first_loop(n, loop))->by;
    LLVMValueRef left = LLVMBuildURem(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, by), "");
    LLVMValueRef end_of_whole = innermost ? LLVMBuildSub(b, to, left, "") : to;
    carried c;
    begin(n, &c, loop, from, end_of_whole, by);
    LLVMValueRef next = LLVMBuildAdd(b, c.loop.index, opq_i64(n->e, by), "");
    n->prefetch = innermost;
    emit_body(n, loop, c.loop.index, innermost ? next : opq_nest_smaller(n, next, to), innermost);
    n->prefetch = false;
    end(n, &c);
    if (innermost)
        emit_body(n, loop, end_of_whole, to, false);
}

void opq_emit_blocks(opq_nest *n, int loop)
{
    int first = first_loop(n, loop);
    while (opq_nest_stmt(n, first)->by)
        first = first_loop(n, first);
    opq_chain chain = opq_nest_chain(n->k, first);
    opq_odometer odometer = opq_nest_odometer(n, &chain);
    n->sequence_rank = chain.count > 1 ? chain.count : 0;
    for (int i = 0; i < n->sequence_rank; i++)
        n->sequence[i] = opq_i64(n->e, 0);
    emit_turns(n, loop, opq_i64(n->e, 0), opq_odometer_count(n, &odometer));
}
