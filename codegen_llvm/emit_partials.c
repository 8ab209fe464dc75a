/* Carries of a schedule and the folds into them. One `by` a number is as many partial results, which folds take in turn.
 *
 *   of a vector loop   in registers, as vectors of accumulators that take turns, and folded behind the loop
 *   in a lane          in memory: [partial result][vector of the strip][lane]. Rows have no more turns than there are partial results, so that
 *                      none is cleared or read before it is folded, and those beyond the row, which change nothing, are left out
 *   of blocks          in memory; where there is one block, not even that: what it folded is the result
 *
 * argmax and argmin need no partial results. Lanes of a vector loop have their own, with 32-bit numbers of turns.
 */
#include "codegen_llvm/nest.h"

opq_fold opq_carry_fold(const opq_nest *n, int carry)
{
    return opq_op_lowering((opq_op)opq_nest_stmt(n, carry)->value.i)->fold;
}

static LLVMValueRef identity_of(const opq_nest *n, int carry)
{
    return opq_fold_identity(n->e, opq_carry_fold(n, carry), opq_carry_dtype(n, carry));
}

LLVMValueRef opq_carry_combine(opq_nest *n, int carry, LLVMValueRef a, LLVMValueRef b)
{
    opq_op op = (opq_op)opq_nest_stmt(n, carry)->value.i;
    LLVMValueRef value = a;
    if (!opq_op_scans(op))
        return opq_fold_combine(n->e, opq_carry_fold(n, carry), opq_carry_dtype(n, carry), a, b);
    opq_nest_fail(n, opq_emit_ewise(n->e, opq_op_lowering(op)->combine, opq_carry_dtype(n, carry),
                                    (LLVMValueRef[]){a, b}, &value));
    return value;
}

LLVMValueRef *opq_carry_turn(opq_nest *n, int carry) { return &n->turns[n->value - n->values + carry]; }

int opq_nest_folds(const opq_nest *n, int from, int to)
{
    int count = 0;
    for (int i = from; i < to; i++)
        count += opq_nest_stmt(n, i)->op == OPQ_STMT_fold;
    return count;
}

bool opq_nest_is_folding(const opq_nest *n, int i)
{
    int fold = opq_nest_stmt(n, i)->op == OPQ_STMT_fold ? i : i + 1;
    return opq_nest_stmt(n, fold)->op == OPQ_STMT_fold && n->k->origin[i] == n->k->origin[fold];
}

/* ---- in memory */

static LLVMValueRef pointer_to(opq_nest *n, int carry, LLVMValueRef partial)
{
    LLVMBuilderRef b = n->e->builder;
    if (n->vector >= 0) {
        partial = LLVMBuildMul(b, partial, opq_i64(n->e, (int64_t)n->strip * n->e->lanes), "");
        partial = LLVMBuildAdd(b, partial, opq_i64(n->e, (int64_t)n->copy * n->e->lanes), "");
    }
    return LLVMBuildGEP2(b, opq_memory_type(n->e, opq_carry_dtype(n, carry)), n->partials[carry], &partial, 1, "");
}

static LLVMValueRef load(opq_nest *n, int carry, LLVMValueRef partial, opq_stride stride)
{
    return opq_memory_load(n, opq_carry_dtype(n, carry), stride, NULL, pointer_to(n, carry, partial), NULL);
}

static void store(opq_nest *n, int carry, LLVMValueRef partial, opq_stride stride, LLVMValueRef value)
{
    opq_memory_store(n, opq_carry_dtype(n, carry), stride, NULL, pointer_to(n, carry, partial), NULL, value);
}

static void clear(opq_nest *n, int carry)
{
    for (int lane = 0; lane < OPQ_LANES; lane += n->e->lanes)
        store(n, carry, opq_i64(n->e, lane), OPQ_STRIDE_one, identity_of(n, carry));
}

static LLVMValueRef fold_parts(opq_nest *n, int carry)
{
    LLVMValueRef vectors[OPQ_TURN_MAX];
    int count = 0;
    for (int lane = 0; lane < OPQ_LANES; lane += n->e->lanes)
        vectors[count++] = load(n, carry, opq_i64(n->e, lane), OPQ_STRIDE_one);
    return opq_fold_lanes(n->e, opq_carry_fold(n, carry), opq_carry_dtype(n, carry), vectors, count);
}

static void fold_into(opq_nest *n, int carry, LLVMValueRef x)
{
    LLVMValueRef parts = opq_i64(n->e, opq_nest_stmt(n, carry)->by - 1);
    LLVMValueRef part = LLVMBuildAnd(n->e->builder, n->turn, parts, "");
    store(n, carry, part, OPQ_STRIDE_zero, opq_carry_combine(n, carry, load(n, carry, part, OPQ_STRIDE_zero), x));
}

void opq_partials_begin(opq_nest *n, int from, int to, LLVMValueRef several)
{
    for (int i = from; i < to; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_fold) {
            n->folds[opq_nest_stmt(n, i)->access] = several;
            clear(n, opq_nest_stmt(n, i)->access);
        }
}

void opq_partials_pass(opq_nest *n, int from, int to)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = opq_nest_stmt(n, i);
        if (stmt->op == OPQ_STMT_halves)
            n->value[i] = n->value[stmt->access];
        else
            n->value[stmt->access] = n->value[stmt->operand[0]];
    }
}

void opq_partials_fold(opq_nest *n, int from, int to)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = opq_nest_stmt(n, i);
        if (stmt->op == OPQ_STMT_fold) {
            fold_into(n, stmt->access, n->value[stmt->operand[0]]);
        } else if (n->partials[stmt->access]) {
            n->value[i] = fold_parts(n, stmt->access);
            clear(n, stmt->access);
        } else {
            n->value[i] = n->value[stmt->access];
        }
    }
}

/* Of all vectors of the strip, and of the `halves` that follow this one. */
static void fold_rows(opq_nest *n, int stmt)
{
    LLVMBuilderRef b = n->e->builder;
    int first = opq_nest_stmt(n, stmt)->access, parts = opq_nest_stmt(n, first)->by;
    for (int half = parts / 2; half > 0; half /= 2) {
        LLVMValueRef limit = opq_i64(n->e, half), more = LLVMBuildSub(b, n->folds[first], limit, "");
        opq_loop loop;
        opq_loop_begin(n, &loop, opq_i64(n->e, 0), opq_nest_smaller(n, more, limit), 1, NULL, 0);
        LLVMValueRef other = LLVMBuildAdd(b, loop.index, limit, "");
        for (int i = stmt; opq_nest_stmt(n, i)->op == OPQ_STMT_halves; i++)
            for (int copy = 0; copy < n->strip; copy++) {
                int carry = opq_nest_stmt(n, i)->access;
                opq_nest_use_copy(n, copy);
                LLVMValueRef x = load(n, carry, loop.index, OPQ_STRIDE_one);
                x = opq_carry_combine(n, carry, x, load(n, carry, other, OPQ_STRIDE_one));
                store(n, carry, loop.index, OPQ_STRIDE_one, x);
            }
        opq_nest_use_copy(n, 0);
        opq_loop_end(n, &loop, NULL);
    }
}

/* ---- statements */

/* Is it folded by a vector loop? */
static bool is_in_registers(const opq_nest *n, int carry)
{
    const opq_stmt *around = NULL;
    int fold = carry + 1;
    while (opq_nest_stmt(n, fold)->op != OPQ_STMT_fold || opq_nest_stmt(n, fold)->access != carry)
        fold++;
    for (int i = carry; i < fold; i++)
        if (opq_nest_is_loop(n, i) && opq_nest_stmt(n, i)->end > fold)
            around = opq_nest_stmt(n, i);
    return around->role == OPQ_LOOP_vector;
}

LLVMValueRef opq_emit_carry(opq_nest *n, int stmt)
{
    int parts = opq_nest_stmt(n, stmt)->by;
    if (opq_fold_is_arg(opq_carry_fold(n, stmt)))
        *opq_carry_turn(n, stmt) = opq_splat_int(n->e, opq_vector_type(n->e, OPQ_i64), 0);
    if (parts && n->copy == 0 && !is_in_registers(n, stmt)) {
        int64_t each = n->vector >= 0 ? (int64_t)n->strip * n->e->lanes : 1;
        n->partials[stmt] =
            opq_nest_stack(n, LLVMArrayType2(opq_memory_type(n->e, opq_carry_dtype(n, stmt)), (uint64_t)(parts * each)));
    }
    return identity_of(n, stmt);
}

/* Turns of this copy's lanes, from the first of the vector loop on. */
static LLVMValueRef lane_turns(opq_nest *n)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef i32 = LLVMInt32TypeInContext(n->e->context);
    LLVMValueRef first = LLVMBuildTrunc(b, LLVMBuildSub(b, n->index[n->vector], n->lanes_from, ""), i32, "");
    LLVMValueRef copy = opq_splat_int(n->e, opq_vector_of(n->e, i32), (int64_t)n->copy * n->e->lanes);
    return LLVMBuildAdd(b, opq_splat(n->e, first), LLVMBuildAdd(b, opq_lane_numbers(n->e, 32), copy, ""), "");
}

void opq_emit_fold(opq_nest *n, int stmt)
{
    int carry = opq_nest_stmt(n, stmt)->access;
    LLVMValueRef x = opq_nest_value(n, opq_nest_stmt(n, stmt)->operand[0]), before = opq_nest_value(n, carry);
    LLVMValueRef mask = n->lanes_from ? n->mask : NULL;
    if (n->partials[carry]) {
        store(n, carry, n->turn, OPQ_STRIDE_one, opq_carry_combine(n, carry, identity_of(n, carry), x));
    } else if (!opq_fold_is_arg(opq_carry_fold(n, carry))) {
        x = opq_carry_combine(n, carry, before, x);
        n->value[carry] = mask ? opq_select(n->e, mask, x, before) : x;
    } else {
        LLVMValueRef better = opq_fold_better(n->e, opq_carry_fold(n, carry), opq_carry_dtype(n, carry), before, x);
        LLVMValueRef *turn = opq_carry_turn(n, carry), now = n->lanes_from ? lane_turns(n) : opq_splat(n->e, n->turn);
        better = mask ? LLVMBuildAnd(n->e->builder, better, mask, "") : better;
        n->value[carry] = opq_select(n->e, better, x, before);
        *turn = opq_select(n->e, better, now, *turn);
    }
}

LLVMValueRef opq_emit_halves(opq_nest *n, int stmt)
{
    int carry = opq_nest_stmt(n, stmt)->access;
    LLVMValueRef one = opq_nest_value(n, carry);
    if (!n->partials[carry])
        return one;
    if (n->vector >= 0) {
        if (n->copy == 0 && opq_nest_stmt(n, stmt - 1)->op != OPQ_STMT_halves)
            fold_rows(n, stmt);
        return load(n, carry, opq_i64(n->e, 0), OPQ_STRIDE_one);
    }
    opq_fork fork;
    opq_fork_begin(n, &fork, n->folds[carry], &one, 1);
    one = fold_parts(n, carry);
    opq_fork_other(n, &fork);
    opq_fork_end(n, &fork);
    return one;
}

/* ---- vector loops */

typedef struct lanes {
    int loop, carry[OPQ_REDUCTION_MAX], count, turn, group; /* turn: vectors; group: values of each */
    void (*run)(opq_nest *n, void *data);
    void *data;
} lanes;

static bool is_arg(const opq_nest *n, const lanes *l, int c) { return opq_fold_is_arg(opq_carry_fold(n, l->carry[c])); }

static void find_carries(opq_nest *n, lanes *l)
{
    for (int i = l->loop + 1; i < opq_nest_stmt(n, l->loop)->end; i++) {
        if (opq_nest_stmt(n, i)->op != OPQ_STMT_fold)
            continue;
        if (l->count == OPQ_REDUCTION_MAX) {
            opq_nest_refuse(n, opq_nest_stmt(n, i));
            return;
        }
        l->carry[l->count++] = opq_nest_stmt(n, i)->access;
        l->group += 1 + is_arg(n, l, l->count - 1);
    }
}

static void start(const opq_nest *n, const lanes *l, LLVMValueRef *group)
{
    for (int c = 0; c < l->count; c++) {
        *group++ = identity_of(n, l->carry[c]);
        if (is_arg(n, l, c))
            *group++ = opq_fold_no_place(n->e, opq_carry_fold(n, l->carry[c]));
    }
}

/* One vector. */
static void run_vector(opq_nest *n, void *data, LLVMValueRef *group)
{
    const lanes *l = data;
    for (int c = 0, at = 0; c < l->count; c++) {
        n->value[l->carry[c]] = group[at++];
        if (is_arg(n, l, c))
            *opq_carry_turn(n, l->carry[c]) = group[at++];
    }
    if (l->run)
        l->run(n, l->data);
    for (int i = l->loop + 1; i < opq_nest_stmt(n, l->loop)->end; i++)
        if (!l->run || opq_nest_is_folding(n, i))
            opq_nest_run_one(n, i, i + 1);
    for (int c = 0, at = 0; c < l->count; c++) {
        group[at++] = n->value[l->carry[c]];
        if (is_arg(n, l, c))
            group[at++] = *opq_carry_turn(n, l->carry[c]);
    }
}

/* Lanes become one value; of argmax and argmin it is folded into what there was before the loop, whose first turn is number `first` of all. */
static void finish(opq_nest *n, const lanes *l, const LLVMValueRef *values, const LLVMValueRef *before, LLVMValueRef first)
{
    LLVMValueRef vectors[OPQ_TURN_MAX], turns[OPQ_TURN_MAX];
    for (int c = 0, at = 0; c < l->count; at += 1 + is_arg(n, l, c), c++) {
        opq_fold fold = opq_carry_fold(n, l->carry[c]);
        opq_dtype dtype = opq_carry_dtype(n, l->carry[c]);
        for (int t = 0; t < l->turn; t++) {
            vectors[t] = values[t * l->group + at];
            turns[t] = is_arg(n, l, c) ? values[t * l->group + at + 1] : NULL;
        }
        if (!is_arg(n, l, c)) {
            n->value[l->carry[c]] = opq_fold_lanes(n->e, fold, dtype, vectors, l->turn);
            continue;
        }
        opq_fold_arg_lanes(n->e, fold, dtype, vectors, turns, l->turn);
        LLVMValueRef turn = LLVMBuildZExt(n->e->builder, turns[0], opq_vector_type(n->e, OPQ_i64), "");
        turn = LLVMBuildAdd(n->e->builder, turn, opq_splat(n->e, first), "");
        LLVMValueRef better = opq_fold_better(n->e, fold, dtype, before[at], vectors[0]);
        n->value[l->carry[c]] = opq_select(n->e, better, vectors[0], before[at]);
        *opq_carry_turn(n, l->carry[c]) = opq_select(n->e, better, turn, before[at + 1]);
    }
}

static int copies_for(const lanes *l, int cost)
{
    int copies = l->turn;
    while (copies > 1 && copies * cost > 32)
        copies /= 2;
    return copies;
}

void opq_emit_partials(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to, void (*run)(opq_nest *n, void *data),
                       void *data)
{
    lanes l = {.loop = loop, .turn = OPQ_LANES / n->e->lanes, .run = run, .data = data};
    int cost = run ? 1 : opq_nest_cost(n, opq_nest_stmt(n, loop)->variable, loop + 1, opq_nest_stmt(n, loop)->end);
    LLVMValueRef values[OPQ_CARRIED_MAX], before[2 * OPQ_REDUCTION_MAX];
    find_carries(n, &l);
    for (int c = 0, at = 0; c < l.count; at += 1 + is_arg(n, &l, c), c++) {
        before[at] = opq_nest_value(n, l.carry[c]);
        before[at + 1] = *opq_carry_turn(n, l.carry[c]);
    }
    for (int t = 0; t < l.turn; t++)
        start(n, &l, values + t * l.group);
    opq_span span = {.loop = loop,
                     .copies = copies_for(&l, cost),
                     .rotate = l.turn,
                     .carried = l.turn * l.group,
                     .run = run_vector,
                     .data = &l};
    n->lanes_from = from;
    opq_nest_span(n, &span, from, to, values);
    n->lanes_from = NULL;
    finish(n, &l, values, before, n->before ? LLVMBuildAdd(n->e->builder, n->before, from, "") : from);
}
