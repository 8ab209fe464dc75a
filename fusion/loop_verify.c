/* Does a tree keep its promises? What stands in the tree alone; loop_bounds.c is what its arguments make of it. */
#include "fusion/loop_verify.h"

#include <stdlib.h>
#include <string.h>

opq_status opq_verifier_refuse(const verifier *v, const char *what)
{
    return opq_fail(OPQ_INVALID, "kernel %s: statement %d: %s", v->k->name ? v->k->name : "", v->at, what);
}

static opq_dtype operand_dtype(const verifier *v, const opq_stmt *stmt, int o)
{
    return (opq_dtype)v->k->stmts[stmt->operand[o]].dtype;
}

static bool is_raw(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_RAW; }

/* ---- statements by themselves */

static opq_status check_operands(const verifier *v, const opq_stmt *stmt, int count)
{
    for (int o = 0; o < 3; o++) {
        int operand = stmt->operand[o];
        NEED((operand >= 0) == (o < count), "a wrong number of operands");
        NEED(operand < v->at && (operand < 0 || v->seen[operand]), "an operand that is not in sight");
        NEED(operand < 0 || opq_stmt_gives(v->k->stmts[operand].op), "an operand without a value");
    }
    return OPQ_OK;
}

static opq_status check_ewise(const verifier *v, const opq_stmt *stmt, const opq_op_info *info)
{
    OPQ_TRY(check_operands(v, stmt, info->arity));
    NEED(opq_op_lowering((opq_op)stmt->op)->kind != OPQ_LOWER_EXPAND, "an op that is made of others");
    int first = stmt->op == OPQ_OP_where;
    bool gives_bool = opq_op_lowering((opq_op)stmt->op)->kind == OPQ_LOWER_CMP || info->rule == OPQ_RULE_BOOL;
    opq_dtype dtype = gives_bool ? operand_dtype(v, stmt, 0) : (opq_dtype)stmt->dtype;
    NEED(!first || operand_dtype(v, stmt, 0) == OPQ_bool, "a condition that is no bool");
    NEED(!gives_bool || stmt->dtype == OPQ_bool, "the result is bool");
    NEED(!is_raw(dtype) || first, "raw words are not computed with");
    for (int o = first; o < info->arity; o++)
        NEED(operand_dtype(v, stmt, o) == dtype, "an operand of another dtype");
    return OPQ_OK;
}

/* What an operand of a product is in memory; raw8: it is nothing that is loaded, or widened. */
static opq_dtype in_memory(const verifier *v, int i)
{
    const opq_stmt *load = &v->k->stmts[i];
    bool widened = load->op == OPQ_OP_cast;
    load = widened ? &v->k->stmts[load->operand[0]] : load;
    opq_dtype dtype = load->op == OPQ_STMT_load ? (opq_dtype)v->k->accesses[load->access].dtype : OPQ_raw8;
    return !widened || dtype == OPQ_i8 ? dtype : OPQ_raw8;
}

/* A fold stands in the innermost of reducing loops, all of one rule and nothing between them but values. */
static opq_status check_fold(const verifier *v, const opq_stmt *stmt)
{
    opq_fold fold = opq_op_lowering((opq_op)stmt->op)->fold;
    bool product = opq_op_contracts(stmt->op);
    OPQ_TRY(check_operands(v, stmt, product ? 2 : 1));
    const opq_stmt *loop = v->depth ? &v->k->stmts[v->open[v->depth - 1]] : NULL;
    NEED(loop && opq_loop_reduces((opq_loop_role)loop->role), "a reduction outside of reducing loops");
    for (int i = v->at; i < loop->end; i++)
        NEED(v->k->stmts[i].op != OPQ_STMT_loop, "a reduction around a loop");
    NEED(product == opq_loop_contracts((opq_loop_role)loop->role),
         "products stand in chains or pairs, and nothing else does");
    opq_dtype operand = operand_dtype(v, stmt, 0), result = (opq_dtype)stmt->dtype;
    bool arg = opq_fold_is_arg(fold);
    opq_held held = opq_fold_info_of(fold)->held;
    NEED(!is_raw(operand) && !is_raw(result), "raw words are not computed with");
    for (int o = 0; o < 2 && product; o++) {
        NEED(operand_dtype(v, stmt, o) == result, "an operand of another dtype");
        opq_dtype memory = in_memory(v, stmt->operand[o]);
        bool bytes = result == OPQ_i32 && memory == OPQ_i8;
        NEED(bytes || opq_dtype_kind_of(result) == OPQ_KIND_FLOAT, "a product is one of floats, or i32 of i8");
        NEED(!opq_loop_pairs((opq_loop_role)loop->role) || result == OPQ_f32, "pairs are summed in f32");
    }
    NEED(!arg || result == OPQ_i64, "an index is i64");
    NEED(held != OPQ_HELD_truth || result == OPQ_bool, "the result is bool");
    NEED(held != OPQ_HELD_operand || arg || result == operand, "an operand of another dtype");
    return OPQ_OK;
}

/* A scan stands in a loop without loops inside, which runs in order. */
static opq_status check_scan(const verifier *v, const opq_stmt *stmt)
{
    OPQ_TRY(check_operands(v, stmt, 1));
    const opq_stmt *loop = v->depth ? &v->k->stmts[v->open[v->depth - 1]] : NULL;
    NEED(loop && loop->role == OPQ_LOOP_serial, "a scan outside of a serial loop");
    for (int i = (int)(loop - v->k->stmts) + 1; i < loop->end; i++)
        NEED(v->k->stmts[i].op != OPQ_STMT_loop, "a scan around a loop");
    NEED(!is_raw((opq_dtype)stmt->dtype), "raw words are not computed with");
    NEED(operand_dtype(v, stmt, 0) == stmt->dtype, "an operand of another dtype");
    NEED(stmt->value.i == stmt->dtype || (stmt->dtype == OPQ_f32 && stmt->value.i == OPQ_f64),
         "f32 is held in f64, or as it is");
    const opq_op_info *info = opq_op_info_of((opq_op)stmt->op);
    bool real = opq_dtype_kind_of((opq_dtype)stmt->dtype) == OPQ_KIND_FLOAT;
    NEED(real || !(info->flags & OPQ_FLAG_NOINT), "integers are not scanned so");
    NEED(real || info->rule != OPQ_RULE_SUM || stmt->dtype == OPQ_i64, "the result is i64");
    return OPQ_OK;
}

static opq_status check_op(const verifier *v, const opq_stmt *stmt)
{
    const opq_op_info *info = opq_op_info_of((opq_op)stmt->op);
    opq_dtype dtype = (opq_dtype)stmt->dtype;
    NEED(dtype == opq_compute_dtype(dtype), "nothing is computed in this dtype");
    switch (info->class_) {
    case OPQ_CLASS_CONST: return check_operands(v, stmt, 0);
    case OPQ_CLASS_SCALAR:
        NEED(stmt->value.i >= 0 && stmt->value.i < v->k->scalar_count, "no such scalar");
        return check_operands(v, stmt, 0);
    case OPQ_CLASS_CAST:
        OPQ_TRY(check_operands(v, stmt, 1));
        NEED(!is_raw(operand_dtype(v, stmt, 0)) && !is_raw(dtype), "raw words are not computed with");
        return OPQ_OK;
    case OPQ_CLASS_RANDOM:
        OPQ_TRY(check_operands(v, stmt, 3));
        NEED(dtype == OPQ_f32, "the result is f32");
        for (int o = 0; o < 3; o++)
            NEED(operand_dtype(v, stmt, o) == OPQ_i64, "an operand of another dtype");
        return OPQ_OK;
    case OPQ_CLASS_EWISE: return check_ewise(v, stmt, info);
    case OPQ_CLASS_SCAN: return check_scan(v, stmt);
    case OPQ_CLASS_REDUCE:
    case OPQ_CLASS_MATMUL: return check_fold(v, stmt);
    default: return opq_verifier_refuse(v, "this op does not stand in a kernel");
    }
}

/* ---- memory */

static opq_status check_access(const verifier *v, const opq_stmt *stmt, bool buffer)
{
    NEED(stmt->access >= 0 && stmt->access < v->k->access_count, "no such access");
    const opq_access *a = &v->k->accesses[stmt->access];
    NEED(a->buffer < v->k->buffer_count && (a->buffer >= 0) == buffer, buffer ? "no such buffer" : "a buffer");
    for (int l = 0; l < v->k->rank; l++)
        NEED(a->stride[l] == OPQ_STRIDE_zero || v->running >> l & 1, "an access along a variable of no loop around");
    opq_dtype moved = is_raw((opq_dtype)a->dtype) ? (opq_dtype)a->dtype : opq_compute_dtype((opq_dtype)a->dtype);
    NEED(!buffer || stmt->op == OPQ_STMT_check || stmt->dtype == moved, "memory of another dtype");
    return OPQ_OK;
}

static bool in_order(const verifier *v)
{
    for (int d = 0; d < v->depth; d++)
        if (v->k->stmts[v->open[d]].role != OPQ_LOOP_serial)
            return false;
    return true;
}

static opq_status check_memory(const verifier *v, const opq_stmt *stmt)
{
    int op = stmt->op;
    bool written = op == OPQ_STMT_store || op == OPQ_STMT_store_add_at;
    int operands = op == OPQ_STMT_store_add_at || op == OPQ_STMT_nonzero ? 2 : written || opq_op_checks(op) ? 1 : 0;
    if (op == OPQ_STMT_load && stmt->operand[0] >= 0)
        operands = 1;
    OPQ_TRY(check_operands(v, stmt, operands));
    if (op == OPQ_STMT_nonzero) {
        opq_dtype_kind kind = opq_dtype_kind_of(operand_dtype(v, stmt, 0));
        NEED(kind != OPQ_KIND_FLOAT && kind != OPQ_KIND_RAW, "a divisor that is no integer");
        return OPQ_OK;
    }
    OPQ_TRY(check_access(v, stmt, op != OPQ_STMT_number && op != OPQ_STMT_check && op != OPQ_STMT_inside));
    NEED(op != OPQ_STMT_load || operands == 0 || operand_dtype(v, stmt, 0) == OPQ_bool, "a condition that is no bool");
    NEED(op != OPQ_STMT_inside || stmt->dtype == OPQ_bool, "the result is bool");
    NEED(!opq_op_checks(op) || operand_dtype(v, stmt, 0) == OPQ_i64, "an index that is not i64");
    NEED(op != OPQ_STMT_number || stmt->dtype == OPQ_i64, "a number is i64");
    NEED(!written || operand_dtype(v, stmt, operands - 1) == stmt->dtype, "an operand of another dtype");
    NEED(!written || v->k->written[v->k->accesses[stmt->access].buffer], "a store into a buffer that is not out");
    NEED(op != OPQ_STMT_store_add_at || in_order(v),
         "adding to an element that is found at run time needs serial loops");
    return OPQ_OK;
}

/* The lanes are the last of a local's variables, and its loops run inside its own. */
static opq_status check_local(verifier *v, const opq_stmt *stmt)
{
    bool keeps = stmt->op == OPQ_STMT_keep;
    int local = stmt->access;
    OPQ_TRY(check_operands(v, stmt, keeps));
    NEED(local >= 0 && local < v->at && v->k->stmts[local].op == OPQ_STMT_local && v->seen[local], "no such local");
    NEED(stmt->dtype == v->k->stmts[local].dtype, "a local of another dtype");
    NEED(!keeps || operand_dtype(v, stmt, 0) == stmt->dtype, "an operand of another dtype");
    NEED((v->k->stmts[local].variables & ~v->running) == 0, "a local's variable has no loop around");
    const opq_stmt *loop = &v->k->stmts[v->open[v->depth - 1]];
    NEED(v->k->stmts[local].variables >> loop->variable == 1, "the innermost loop is not of the local's last variable");
    NEED(keeps || v->kept[local], "nothing was kept there yet");
    for (int d = 0; d < v->depth; d++) {
        const opq_stmt *around = &v->k->stmts[v->open[d]];
        uint8_t *within = &v->kept_within[local][around->variable];
        if (keeps && v->kept[local] == 0)
            *within = around->within > v->k->rank ? 0 : around->within; /* blocks of constant sizes are all there */
        NEED(keeps || *within == 0 || *within == around->within ||
                 !(v->k->stmts[local].variables >> around->variable & 1),
             "only blocks of what is read were kept");
    }
    if (v->kept[local] == 0)
        v->kept[local] = (int16_t)v->at;
    return OPQ_OK;
}

/* Behind a loop that has perhaps no turn, nothing is kept in locals from before it, but for what all of its turns kept. */
static void forget_kept(verifier *v, int loop)
{
    for (int i = 0; i < loop && !v->k->stmts[loop].by; i++) /* blocks are of turns inside */
        if (v->kept[i] > loop && !(v->k->stmts[i].variables >> v->k->stmts[loop].variable & 1))
            v->kept[i] = 0;
}

/* ---- schedules */

/* A fold stands inside of a loop behind the carry, which is what it was before the loop until then. */
static opq_status check_carried(const verifier *v, const opq_stmt *stmt)
{
    NEED(v->k->scheduled, "a carried value outside of a schedule");
    if (stmt->op == OPQ_STMT_carry) {
        int op = (int)stmt->value.i;
        bool scans = opq_op_scans(op);
        NEED(op >= 0 && (scans || (opq_op_reduces(op) && !opq_op_contracts(op))), "an op that does not fold");
        NEED(stmt->dtype == opq_compute_dtype((opq_dtype)stmt->dtype) && !is_raw((opq_dtype)stmt->dtype),
             "nothing is computed in this dtype");
        opq_fold fold = opq_op_lowering((opq_op)stmt->value.i)->fold;
        NEED(stmt->dtype == OPQ_bool || opq_fold_info_of(fold)->held != OPQ_HELD_truth, "the result is bool");
        NEED(stmt->by == 0 || (!scans && !opq_fold_is_arg(fold) && (stmt->by == OPQ_LANES || stmt->by == OPQ_ACROSS_MAX)),
             "there are no such partial results");
        return check_operands(v, stmt, 0);
    }
    int carry = stmt->access;
    OPQ_TRY(check_operands(v, stmt, stmt->op == OPQ_STMT_fold));
    NEED(carry >= 0 && carry < v->at && v->k->stmts[carry].op == OPQ_STMT_carry && v->seen[carry], "no such carry");
    const opq_stmt *of = &v->k->stmts[carry];
    if (stmt->op == OPQ_STMT_at) {
        NEED(opq_fold_is_arg(opq_op_lowering((opq_op)of->value.i)->fold) && stmt->dtype == OPQ_i64,
             "only a fold that compares has an index, of i64");
        return OPQ_OK;
    }
    NEED(stmt->op != OPQ_STMT_halves || of->by > 0, "halves of one value");
    NEED(stmt->dtype == of->dtype && (stmt->op == OPQ_STMT_halves || operand_dtype(v, stmt, 0) == stmt->dtype),
         "an operand of another dtype");
    if (stmt->op == OPQ_STMT_halves)
        return OPQ_OK;
    NEED(v->depth && v->open[v->depth - 1] > carry, "a fold outside of the loops behind its carry");
    for (int d = 0; d < v->depth; d++)
        NEED(v->open[d] < carry || v->k->stmts[v->open[d]].role != OPQ_LOOP_vector || of->by == OPQ_LANES ||
                 opq_op_scans((int)of->value.i) || opq_fold_is_arg(opq_op_lowering((opq_op)of->value.i)->fold),
             "lanes fold into one value");
    return OPQ_OK;
}

/* Blocks of a constant number of turns. */
static opq_status check_blocks(const verifier *v, const opq_stmt *loop)
{
    bool independent = loop->role == OPQ_LOOP_parallel || loop->role == OPQ_LOOP_each;
    NEED(v->k->scheduled && (independent || loop->role == OPQ_LOOP_serial),
         "blocks of a constant size outside of a schedule's serial and independent loops");
    NEED(loop->variable >= v->k->rank && loop->variable < v->k->rank + OPQ_BLOCKS_MAX,
         "a variable that has an argument");
    int inside = 0, variable = -1;
    for (int i = v->at + 1; i < loop->end; i++) {
        const opq_stmt *stmt = &v->k->stmts[i];
        if (stmt->op != OPQ_STMT_loop || stmt->within != loop->variable + 1)
            continue;
        inside += variable != stmt->variable;
        variable = stmt->variable;
        NEED(!independent || stmt->role == OPQ_LOOP_each || stmt->role == OPQ_LOOP_vector ||
                 stmt->role == OPQ_LOOP_parallel,
             "independent blocks of turns that are not");
    }
    NEED(inside > 0, "blocks of nothing");
    NEED(inside == 1 || !independent, "independent blocks of several loops");
    return OPQ_OK;
}

/* ---- loops */

static opq_status check_block(verifier *v, int from, int to);

/* Loops that are in one block are a sequence. What stands in them, before the innermost, is computed in each of the blocks of a constant size in which its
 * turn is; in those that the kernel counts anywhere, and more often. */
static opq_status check_shared_block(const verifier *v, const opq_stmt *loop)
{
    bool scheduled = v->k->scheduled && (loop->role == OPQ_LOOP_serial || loop->role == OPQ_LOOP_vector);
    bool constant = loop->within > v->k->rank;
    NEED(scheduled || loop->role == OPQ_LOOP_lanes, "loops in one block that do not reduce");
    if (scheduled && !opq_loop_shares_block(v->k, v->at, false))
        return OPQ_OK;
    for (int i = v->at + 1; i < loop->end; i++) {
        int op = v->k->stmts[i].op;
        if (scheduled && op == OPQ_STMT_loop) {
            NEED(v->k->stmts[i].end == loop->end, "in a loop of a sequence stands the next, as the last");
            break;
        }
        NEED(!constant || op != OPQ_STMT_store_add_at, "an addition that is made more than once");
        NEED(constant || op == OPQ_STMT_loop || (opq_stmt_gives(op) && !opq_op_checks(op) && op != OPQ_STMT_kept),
             "more than values in several loops of a block");
    }
    return OPQ_OK;
}

/* Of the unrolled loops around: how often is what stands here made at once? */
static int64_t turns_around(const verifier *v)
{
    int64_t turns = 1;
    for (int d = 0; d < v->depth; d++)
        if (v->k->stmts[v->open[d]].role == OPQ_LOOP_unroll)
            turns *= v->k->stmts[v->open[d]].value.i;
    return turns;
}

/* A chain sums one product; what stands beside it gives values for it. */
static opq_status check_chain(const verifier *v, const opq_stmt *loop)
{
    int products = 0;
    for (int i = v->at + 1; i < loop->end; i++) {
        int op = v->k->stmts[i].op;
        NEED(op == OPQ_STMT_loop || opq_stmt_gives(op), "more than values in a chain");
        products += opq_op_contracts(op);
    }
    NEED(products == 1, "a chain of no product, or of several");
    return OPQ_OK;
}

/* A number of turns that is part of the kernel. */
static opq_status check_turns(const verifier *v, const opq_stmt *loop)
{
    bool chain = loop->role == OPQ_LOOP_chain;
    NEED(loop->role != OPQ_LOOP_unroll || (loop->value.i > 0 && turns_around(v) * loop->value.i <= OPQ_UNROLL_MAX),
         "too many turns, or none, to make them at once");
    NEED(loop->role == OPQ_LOOP_unroll || loop->value.i == 0 || (chain && loop->value.i == OPQ_WINDOW_MAX),
         "no such loop has this number of turns");
    NEED(!loop->variables || (chain && loop->value.i > 0 && (loop->variables & (loop->variables - 1)) == 0 &&
                              v->running & loop->variables),
         "it slides along no loop around it");
    return OPQ_OK;
}

static opq_status check_loop(verifier *v, const opq_stmt *loop, int to)
{
    int at = v->at;
    const opq_stmt *around = v->depth ? &v->k->stmts[v->open[v->depth - 1]] : NULL;
    bool reduces = opq_loop_reduces((opq_loop_role)loop->role);
    bool inner = around && opq_loop_reduces((opq_loop_role)around->role);
    NEED(loop->end > at && loop->end <= to, "a loop that ends elsewhere");
    NEED(loop->role <= OPQ_LOOP_pairs16, "no such role");
    OPQ_TRY(check_turns(v, loop));
    NEED((loop->variable < v->k->rank) == (loop->by == 0), "blocks of no size, or a variable of no argument");
    NEED(!(v->running >> loop->variable & 1), "this variable has a loop already");
    if (loop->by)
        OPQ_TRY(check_blocks(v, loop));
    NEED(!inner || (loop->role == around->role && loop->end == around->end),
         "in a reducing loop stands one of its kind, as the last");
    NEED(!inner || loop->within == around->within, "reducing loops are all in one block, or none");
    NEED(!loop->within || (loop->within <= OPQ_VARIABLE_MAX && v->running >> (loop->within - 1) & 1),
         "no loop counts the blocks of this one");
    NEED(!loop->within || loop->role == OPQ_LOOP_lanes || loop->role == OPQ_LOOP_vector ||
             (v->k->scheduled &&
              (loop->role == OPQ_LOOP_serial || loop->role == OPQ_LOOP_each || loop->role == OPQ_LOOP_parallel)),
         "such a loop has no blocks");
    NEED((loop->role != OPQ_LOOP_column && !opq_loop_contracts((opq_loop_role)loop->role)) || in_lane(v),
         "a column or chain outside of a vector loop");
    if (opq_loop_contracts((opq_loop_role)loop->role))
        OPQ_TRY(check_chain(v, loop));
    if (opq_loop_shares_block(v->k, at, false) || opq_loop_shares_block(v->k, at, true))
        OPQ_TRY(check_shared_block(v, loop));
    NEED(around || loop->end == v->k->stmt_count || loop->role != OPQ_LOOP_vector, "threads divide the last loop");
    v->open[v->depth++] = at;
    v->running |= 1u << loop->variable;
    OPQ_TRY(check_block(v, at + 1, loop->end));
    v->running &= ~(1u << loop->variable);
    v->depth--;
    forget_kept(v, at);
    for (int i = at + 1; i < loop->end; i++) /* a fold's result is there when all its loops are done */
        v->seen[i] = reduces && !inner && opq_op_reduces(v->k->stmts[i].op);
    return OPQ_OK;
}

static opq_status check_block(verifier *v, int from, int to)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &v->k->stmts[i];
        v->at = i;
        NEED(stmt->dtype < OPQ_DTYPE_COUNT, "no such dtype");
        if (stmt->op == OPQ_STMT_loop) {
            OPQ_TRY(check_loop(v, stmt, to));
            i = stmt->end - 1;
            continue;
        }
        if (stmt->op < OPQ_OP_COUNT)
            OPQ_TRY(check_op(v, stmt));
        else if (stmt->op <= OPQ_STMT_nonzero)
            OPQ_TRY(check_memory(v, stmt));
        else if (stmt->op >= OPQ_STMT_carry)
            OPQ_TRY(check_carried(v, stmt));
        else if (stmt->op == OPQ_STMT_local)
            NEED(stmt->variables != 0 && !(stmt->variables & v->running) && stmt->variables >> v->k->rank == 0,
                 "a local has the variables of loops inside");
        else
            OPQ_TRY(check_local(v, stmt));
        v->seen[i] = opq_stmt_gives(stmt->op) ? !opq_op_reduces(stmt->op) : stmt->op == OPQ_STMT_local;
    }
    return OPQ_OK;
}

opq_status opq_loops_verify(const opq_loops *loops)
{
    verifier v = {.k = loops};
    if (loops->rank < 1 || loops->rank > OPQ_LOOP_MAX)
        return opq_fail(OPQ_INVALID, "kernel %s: %d variables", loops->name ? loops->name : "", loops->rank);
    size_t count = (size_t)loops->stmt_count + 1;
    v.seen = calloc(count, sizeof *v.seen);
    v.kept = calloc(count, sizeof *v.kept);
    v.kept_within = calloc(count, sizeof *v.kept_within);
    opq_status status = v.seen && v.kept && v.kept_within
                            ? check_block(&v, 0, loops->stmt_count)
                            : opq_fail(OPQ_NO_MEMORY, "out of memory while verifying loops");
    if (status == OPQ_OK && opq_loops_find_phases(loops).count > OPQ_PHASE_MAX)
        status = opq_fail(OPQ_INVALID, "kernel %s: more than %d phases", loops->name ? loops->name : "", OPQ_PHASE_MAX);
    free(v.seen);
    free(v.kept);
    free(v.kept_within);
    return status;
}
