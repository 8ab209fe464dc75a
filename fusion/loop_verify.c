/* Does a tree keep its promises? First what stands in the tree alone, then what its arguments make of it. */
#include "fusion/loop.h"

#include <stdlib.h>
#include <string.h>

typedef struct verifier {
    const opq_loops *k;
    bool *seen;   /* statements in sight */
    bool *filled; /* locals that something was kept in */
    int open[OPQ_LOOP_MAX], depth;
    uint16_t running; /* variables of the open loops */
    int at;           /* the statement */
} verifier;

static opq_status refuse(const verifier *v, const char *what)
{
    return opq_fail(OPQ_INVALID, "kernel %s: statement %d: %s", v->k->name ? v->k->name : "", v->at, what);
}

#define NEED(condition, what)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return refuse(v, what);                                                                                    \
    } while (0)

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
    NEED(product == (loop->role == OPQ_LOOP_chain), "products stand in chains, and nothing else does");
    opq_dtype operand = operand_dtype(v, stmt, 0), result = (opq_dtype)stmt->dtype;
    bool arg = opq_fold_is_arg(fold), logic = fold == OPQ_FOLD_or || fold == OPQ_FOLD_and;
    NEED(!is_raw(operand) && !is_raw(result), "raw words are not computed with");
    NEED(!product || opq_dtype_kind_of(result) == OPQ_KIND_FLOAT, "a product is one of floats");
    for (int o = 0; o < 2 && product; o++)
        NEED(operand_dtype(v, stmt, o) == result, "an operand of another dtype");
    NEED(!arg || result == OPQ_i64, "an index is i64");
    NEED(!logic || result == OPQ_bool, "the result is bool");
    NEED((fold != OPQ_FOLD_max && fold != OPQ_FOLD_min) || result == operand, "an operand of another dtype");
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
    default: return refuse(v, "this op does not stand in a kernel");
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
    NEED(!buffer || stmt->op == OPQ_INSTR_check || stmt->dtype == moved, "memory of another dtype");
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
    bool written = op == OPQ_INSTR_store || op == OPQ_INSTR_store_add_at;
    int operands = op == OPQ_INSTR_store_add_at || op == OPQ_INSTR_nonzero ? 2 : written || opq_op_checks(op) ? 1 : 0;
    if (op == OPQ_INSTR_load && stmt->operand[0] >= 0)
        operands = 1;
    OPQ_TRY(check_operands(v, stmt, operands));
    if (op == OPQ_INSTR_nonzero) {
        opq_dtype_kind kind = opq_dtype_kind_of(operand_dtype(v, stmt, 0));
        NEED(kind != OPQ_KIND_FLOAT && kind != OPQ_KIND_RAW, "a divisor that is no integer");
        return OPQ_OK;
    }
    OPQ_TRY(check_access(v, stmt, op != OPQ_INSTR_number && op != OPQ_INSTR_check && op != OPQ_INSTR_inside));
    NEED(op != OPQ_INSTR_load || operands == 0 || operand_dtype(v, stmt, 0) == OPQ_bool, "a condition that is no bool");
    NEED(op != OPQ_INSTR_inside || stmt->dtype == OPQ_bool, "the result is bool");
    NEED(!opq_op_checks(op) || operand_dtype(v, stmt, 0) == OPQ_i64, "an index that is not i64");
    NEED(op != OPQ_INSTR_number || stmt->dtype == OPQ_i64, "a number is i64");
    NEED(!written || operand_dtype(v, stmt, operands - 1) == stmt->dtype, "an operand of another dtype");
    NEED(!written || v->k->written[v->k->accesses[stmt->access].buffer], "a store into a buffer that is not out");
    NEED(op != OPQ_INSTR_store_add_at || in_order(v),
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
    NEED(keeps || v->filled[local], "nothing was kept there yet");
    v->filled[local] = true;
    return OPQ_OK;
}

/* ---- loops */

static opq_status check_block(verifier *v, int from, int to);

/* Loops that are in one block reduce, and what stands in them can be computed anywhere, and more than once. */
static opq_status check_shared_block(const verifier *v, const opq_stmt *loop)
{
    NEED(loop->role == OPQ_LOOP_lanes, "loops in one block that do not reduce");
    for (int i = v->at + 1; i < loop->end; i++) {
        int op = v->k->stmts[i].op;
        NEED(op == OPQ_STMT_loop || (opq_stmt_gives(op) && !opq_op_checks(op) && op != OPQ_STMT_kept),
             "more than values in several loops of a block");
    }
    return OPQ_OK;
}

static opq_status check_loop(verifier *v, const opq_stmt *loop, int to)
{
    int at = v->at;
    const opq_stmt *around = v->depth ? &v->k->stmts[v->open[v->depth - 1]] : NULL;
    bool reduces = opq_loop_reduces((opq_loop_role)loop->role);
    bool inner = around && opq_loop_reduces((opq_loop_role)around->role);
    NEED(loop->end > at && loop->end <= to, "a loop that ends elsewhere");
    NEED(loop->role <= OPQ_LOOP_chain, "no such role");
    NEED(loop->variable < v->k->rank && !(v->running >> loop->variable & 1), "this variable has a loop already");
    NEED(!inner || (loop->role == around->role && loop->end == around->end),
         "in a reducing loop stands one of its kind, as the last");
    NEED(!inner || loop->within == around->within, "reducing loops are all in one block, or none");
    NEED(!loop->within || (loop->within <= v->k->rank && v->running >> (loop->within - 1) & 1),
         "no loop counts the blocks of this one");
    NEED(!loop->within || loop->role == OPQ_LOOP_lanes || loop->role == OPQ_LOOP_vector, "such a loop has no blocks");
    if (opq_loop_shares_block(v->k, at, false) || opq_loop_shares_block(v->k, at, true))
        OPQ_TRY(check_shared_block(v, loop));
    NEED(around || loop->end == v->k->stmt_count || loop->role != OPQ_LOOP_vector, "threads divide the last loop");
    v->open[v->depth++] = at;
    v->running |= (uint16_t)(1u << loop->variable);
    OPQ_TRY(check_block(v, at + 1, loop->end));
    v->running &= (uint16_t)~(1u << loop->variable);
    v->depth--;
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
        else if (stmt->op <= OPQ_INSTR_nonzero)
            OPQ_TRY(check_memory(v, stmt));
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
    v.seen = calloc(2 * (size_t)loops->stmt_count + 1, sizeof *v.seen);
    if (v.seen == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while verifying loops");
    v.filled = v.seen + loops->stmt_count;
    opq_status status = check_block(&v, 0, loops->stmt_count);
    free(v.seen);
    return status;
}

/* ---- with arguments */

/* An access as a sum: from `offset` on, `step` along each running variable, and terms within [low, high]. */
typedef struct sum {
    int64_t offset, step[OPQ_LOOP_MAX], low, high;
    bool any, overflow; /* any: is there a turn? */
} sum;

/* Adds a number of [from, from + extent) times a stride. */
static void add_term(sum *s, int64_t stride, int64_t from, int64_t extent)
{
    int64_t first = 0, span = 0;
    s->any = s->any && extent > 0;
    if (extent <= 0)
        return;
    s->overflow |= __builtin_mul_overflow(stride, from, &first);
    s->overflow |= __builtin_mul_overflow(stride, extent - 1, &span);
    s->overflow |= __builtin_add_overflow(s->offset, first, &s->offset);
    s->overflow |= __builtin_add_overflow(span < 0 ? s->low : s->high, span, span < 0 ? &s->low : &s->high);
}

enum { BOUNDS_MAX = 32 };

/* What stands in a condition as `inside`. */
static void find_bounds(const verifier *v, int condition, const opq_stmt **bounds, int *count)
{
    const opq_stmt *stmt = &v->k->stmts[condition];
    if (stmt->op == OPQ_INSTR_inside && *count < BOUNDS_MAX)
        bounds[(*count)++] = stmt;
    for (int o = 0; o < 2 && stmt->op == OPQ_OP_bitwise_and; o++)
        find_bounds(v, stmt->operand[o], bounds, count);
}

/* How a number moves with the loops: factor * direction, whose numbers have no common divisor, the first one above 0. Factor 0: not. */
static int64_t direction_of(const verifier *v, const int64_t *dims, int access, int64_t *out_direction)
{
    int64_t divisor = 0, sign = 0;
    for (int l = 0; l < v->k->rank; l++) {
        int64_t a = opq_loops_stride(v->k, dims, access, l), b = divisor;
        out_direction[l] = a;
        sign = sign == 0 ? (a > 0) - (a < 0) : sign;
        while (b != 0) {
            int64_t rest = a % b;
            a = b;
            b = rest;
        }
        divisor = a < 0 ? -a : a;
    }
    for (int l = 0; l < v->k->rank && divisor != 0; l++)
        out_direction[l] /= sign * divisor;
    return sign * divisor;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/* Narrows [low, high], which moves `of` by `factor` for each, to where offset + factor * it is in [0, extent). */
static void narrow(int64_t offset, int64_t factor, int64_t extent, int64_t *low, int64_t *high, bool *overflow)
{
    int64_t first, last;
    *overflow |= __builtin_sub_overflow(0, offset, &first);
    *overflow |= __builtin_add_overflow(first, extent - 1, &last);
    if (*overflow)
        return;
    int64_t from = factor > 0 ? -floor_div(-first, factor) : -floor_div(-last, factor);
    int64_t to = factor > 0 ? floor_div(last, factor) : floor_div(first, factor);
    *low = from > *low ? from : *low;
    *high = to < *high ? to : *high;
}

/* What moves in a direction: from the turns of the loops. */
static void range_of(const verifier *v, const int64_t *direction, const int64_t *dims, sum *s, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int l = 0; l < v->k->rank; l++) {
        int64_t span = 0;
        if (direction[l] == 0)
            continue;
        s->overflow |= __builtin_mul_overflow(direction[l], dims[l] - 1, &span);
        s->overflow |= __builtin_add_overflow(span < 0 ? *low : *high, span, span < 0 ? low : high);
    }
}

/* Where the access is made, what moves the number of bounds[which] is within all bounds that move in its direction: a term of its own. */
static void bound_by(const verifier *v, const opq_stmt **bounds, int count, int which, const int64_t *dims, sum *s)
{
    int rank = v->k->rank;
    int64_t direction[OPQ_LOOP_MAX], other[OPQ_LOOP_MAX], stride = 0, part = 0, low, high;
    const int64_t *own = dims + opq_dims_of(rank, bounds[which]->access);
    if (direction_of(v, dims, bounds[which]->access, direction) == 0) {
        s->any = s->any && own[0] >= 0 && own[0] < own[2 + rank];
        return;
    }
    for (int l = 0; l < rank && stride == 0; l++)
        if (v->running >> l & 1 && direction[l] != 0 && s->step[l] % direction[l] == 0)
            stride = s->step[l] / direction[l];
    if (stride == 0)
        return;
    for (int l = 0; l < rank; l++) {
        s->overflow |= __builtin_mul_overflow(stride, direction[l], &part);
        s->overflow |= __builtin_sub_overflow(s->step[l], part, &s->step[l]);
    }
    range_of(v, direction, dims, s, &low, &high);
    for (int i = 0; i < count; i++) {
        const int64_t *of = dims + opq_dims_of(rank, bounds[i]->access);
        int64_t factor = direction_of(v, dims, bounds[i]->access, other);
        if (factor != 0 && memcmp(direction, other, (size_t)rank * sizeof *other) == 0)
            narrow(of[0], factor, of[2 + rank], &low, &high, &s->overflow);
    }
    if (!s->overflow)
        add_term(s, stride, low, high >= low ? high - low + 1 : 0);
}

/* The elements that an access reaches: [out_low, out_high]; false: none, a loop around has no turn. OPQ_INVALID: past int64. */
static opq_status reach(const verifier *v, const opq_stmt *stmt, const int64_t *dims, bool *out_any, int64_t *out_low,
                        int64_t *out_high)
{
    int rank = v->k->rank;
    const int64_t *of = dims + opq_dims_of(rank, stmt->access);
    sum s = {.offset = of[0], .any = true};
    for (int l = 0; l < rank; l++)
        s.step[l] = v->running >> l & 1 ? opq_loops_stride(v->k, dims, stmt->access, l) : 0;
    const opq_stmt *bounds[BOUNDS_MAX];
    int count = 0;
    if (stmt->op == OPQ_INSTR_load && stmt->operand[0] >= 0)
        find_bounds(v, stmt->operand[0], bounds, &count);
    for (int i = count - 1; i >= 0;
         i--) /* of paddings around paddings the innermost, which is of the memory itself, stands last */
        bound_by(v, bounds, count, i, dims, &s);
    for (int l = 0; l < rank; l++)
        if (v->running >> l & 1)
            add_term(&s, s.step[l], 0, dims[l]);
    if (opq_op_checks(stmt->op))
        add_term(&s, of[1 + rank], 0, of[2 + rank]);
    s.overflow |= __builtin_add_overflow(s.low, s.offset, out_low);
    s.overflow |= __builtin_add_overflow(s.high, s.offset, out_high);
    *out_any = s.any;
    NEED(!s.overflow, "an access past all memory");
    return OPQ_OK;
}

static bool moves(const verifier *v, int access, int variable, const int64_t *dims)
{
    return opq_loops_stride(v->k, dims, access, variable) != 0;
}

static opq_status check_reach(const verifier *v, const opq_stmt *stmt, const int64_t *dims, const int64_t *bytes)
{
    const opq_access *a = &v->k->accesses[stmt->access];
    int64_t low = 0, high = 0;
    bool any = false;
    OPQ_TRY(reach(v, stmt, dims, &any, &low, &high));
    if (!any)
        return OPQ_OK;
    NEED(low >= 0 && high < bytes[a->buffer] / opq_dtype_bytes((opq_dtype)a->dtype), "an access outside of its buffer");
    if (stmt->op != OPQ_INSTR_store)
        return OPQ_OK;
    for (int d = 0; d < v->depth; d++) {
        const opq_stmt *loop = &v->k->stmts[v->open[d]];
        int l = loop->variable;
        bool stays = !moves(v, stmt->access, l, dims);
        for (int inner = d + 1; inner < v->depth; inner++) { /* from block to block */
            const opq_stmt *of = &v->k->stmts[v->open[inner]];
            stays = stays && (of->within != l + 1 || !moves(v, stmt->access, of->variable, dims));
        }
        NEED(loop->role == OPQ_LOOP_serial || dims[l] <= 1 || !stays, "turns that are independent store one element");
    }
    return OPQ_OK;
}

/* Is a loop for lanes around? */
static bool in_lane(const verifier *v)
{
    bool found = false;
    for (int d = 0; d < v->depth; d++)
        found |= v->k->stmts[v->open[d]].role == OPQ_LOOP_vector;
    return found;
}

/* A loop in a block with the last of the variables around it: rows of a few elements, as many as there are lanes. */
static opq_status check_across(const verifier *v, const opq_stmt *loop, const int64_t *dims)
{
    const opq_stmt *around = v->depth ? &v->k->stmts[v->open[v->depth - 1]] : NULL;
    bool across = around && loop->within && around->within == loop->within && around->variable > loop->variable;
    NEED(!across || (dims[loop->variable] <= OPQ_ACROSS_MAX && dims[around->variable] >= OPQ_ACROSS_ROWS_MIN),
         "a long row in one lane");
    return OPQ_OK;
}

static opq_status check_bounds(verifier *v, int from, int to, const int64_t *dims, const int64_t *bytes)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &v->k->stmts[i];
        v->at = i;
        if (stmt->op == OPQ_STMT_loop) {
            NEED(dims[stmt->variable] >= 0, "a negative extent");
            NEED(stmt->role != OPQ_LOOP_lanes || !in_lane(v) || dims[stmt->variable] <= OPQ_ACROSS_MAX,
                 "a long row in one lane");
            OPQ_TRY(check_across(v, stmt, dims));
            v->open[v->depth++] = i;
            v->running |= (uint16_t)(1u << stmt->variable);
            OPQ_TRY(check_bounds(v, i + 1, stmt->end, dims, bytes));
            v->running &= (uint16_t)~(1u << stmt->variable);
            v->depth--;
            i = stmt->end - 1;
        } else if (stmt->op >= OPQ_OP_COUNT && stmt->op <= OPQ_INSTR_nonzero && stmt->access >= 0 &&
                   v->k->accesses[stmt->access].buffer >= 0) {
            OPQ_TRY(check_reach(v, stmt, dims, bytes));
        }
    }
    return OPQ_OK;
}

opq_status opq_loops_verify_bounds(const opq_loops *loops, const int64_t *dims, const int64_t *bytes)
{
    verifier v = {.k = loops};
    return check_bounds(&v, 0, loops->stmt_count, dims, bytes);
}
