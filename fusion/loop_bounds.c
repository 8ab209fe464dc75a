/* Does a verified tree keep its promises with these arguments? Every access stays in its buffer, also where conditions keep it there, and
 * no two turns store to one element (adding to one is another matter): loops in order run as vectors, too.
 */
#include "fusion/loop_verify.h"

#include <math.h>

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

/* What stands in a condition as `inside`, in the order of the text. */
typedef struct bounds {
    int count, met_count;
    const opq_stmt *of[BOUNDS_MAX], *met[2 * BOUNDS_MAX];
} bounds;

/* A statement may be an operand of many: it is looked at once. */
static void find_bounds(const verifier *v, int condition, bounds *found)
{
    const opq_stmt *stmt = &v->k->stmts[condition];
    for (int i = 0; i < found->met_count; i++)
        if (found->met[i] == stmt)
            return;
    if (found->met_count == 2 * BOUNDS_MAX || found->count == BOUNDS_MAX)
        return;
    found->met[found->met_count++] = stmt;
    if (stmt->op == OPQ_STMT_inside)
        found->of[found->count++] = stmt;
    for (int o = 0; o < 2 && stmt->op == OPQ_OP_bitwise_and; o++)
        find_bounds(v, stmt->operand[o], found);
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

/* How far apart the ends are: of the terms, and of what the loops add. */
static double width_of(const verifier *v, const sum *s, const int64_t *dims)
{
    double width = (double)s->high - (double)s->low;
    for (int l = 0; l < v->k->rank; l++)
        width += v->running >> l & 1 ? fabs((double)s->step[l]) * (double)(dims[l] - 1) : 0;
    return width;
}

/* What moves in a direction, as a term of its own of `stride` for each, instead of in the steps of the loops. */
static sum with_term(const verifier *v, const sum *s, const int64_t *direction, int64_t stride, int64_t low, int64_t high)
{
    sum moved = *s;
    int64_t part = 0;
    for (int l = 0; l < v->k->rank; l++) {
        moved.overflow |= __builtin_mul_overflow(stride, direction[l], &part);
        moved.overflow |= __builtin_sub_overflow(moved.step[l], part, &moved.step[l]);
    }
    if (!moved.overflow)
        add_term(&moved, stride, low, high - low + 1);
    return moved;
}

/* Where the access is made, what moves the number of bounds[which] is within all bounds that move in its direction: a term of its own,
 * where that tells more than the loops do. */
static void bound_by(const verifier *v, const opq_stmt *const *bounds, int count, int which, const int64_t *dims, sum *s)
{
    int rank = v->k->rank;
    int64_t direction[OPQ_LOOP_MAX], other[OPQ_LOOP_MAX], low, high;
    const int64_t *own = dims + opq_dims_of(rank, bounds[which]->access);
    if (direction_of(v, dims, bounds[which]->access, direction) == 0) {
        s->any = s->any && own[0] >= 0 && own[0] < own[2 + rank];
        return;
    }
    range_of(v, direction, dims, s, &low, &high);
    for (int i = 0; i < count; i++) {
        const int64_t *of = dims + opq_dims_of(rank, bounds[i]->access);
        int64_t factor = direction_of(v, dims, bounds[i]->access, other);
        if (factor != 0 && memcmp(direction, other, (size_t)rank * sizeof *other) == 0)
            narrow(of[0], factor, of[2 + rank], &low, &high, &s->overflow);
    }
    s->any = s->any && low <= high;
    for (int l = 0; l < rank && s->any && !s->overflow; l++) {
        if (!(v->running >> l & 1) || direction[l] == 0 || s->step[l] == 0 || s->step[l] % direction[l] != 0)
            continue;
        sum moved = with_term(v, s, direction, s->step[l] / direction[l], low, high);
        if (!moved.overflow && width_of(v, &moved, dims) < width_of(v, s, dims))
            *s = moved;
    }
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
    bounds found = {0};
    if (stmt->op == OPQ_STMT_load && stmt->operand[0] >= 0)
        find_bounds(v, stmt->operand[0], &found);
    for (int i = found.count - 1; i >= 0;
         i--) /* of paddings around paddings the innermost, which is of the memory itself, stands last */
        bound_by(v, found.of, found.count, i, dims, &s);
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

/* Does it name another element in each turn of the loops along which it moves? Each stride is larger than all that smaller ones reach. */
static bool names_apart(const verifier *v, int access, const int64_t *dims)
{
    int64_t reached = 0, next;
    uint16_t left = 0;
    for (int d = 0; d < v->depth; d++) {
        const opq_stmt *loop = &v->k->stmts[v->open[d]];
        if (dims[loop->variable] > 1 && moves(v, access, loop->variable, dims))
            left |= (uint16_t)(1u << loop->variable);
    }
    while (left != 0) {
        int smallest = -1;
        int64_t least = INT64_MAX;
        for (int l = 0; l < v->k->rank; l++) {
            int64_t stride = opq_loops_stride(v->k, dims, access, l);
            if (left >> l & 1 && stride != INT64_MIN && (stride < 0 ? -stride : stride) <= least) {
                smallest = l;
                least = stride < 0 ? -stride : stride;
            }
        }
        if (smallest < 0 || least <= reached || __builtin_mul_overflow(least, dims[smallest] - 1, &next) ||
            __builtin_add_overflow(reached, next, &reached))
            return false;
        left &= (uint16_t)~(1u << smallest);
    }
    return true;
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
    if (stmt->op != OPQ_STMT_store)
        return OPQ_OK;
    NEED(names_apart(v, stmt->access, dims), "two turns store one element");
    for (int d = 0; d < v->depth; d++) {
        const opq_stmt *loop = &v->k->stmts[v->open[d]];
        int l = loop->variable;
        bool stays = !moves(v, stmt->access, l, dims);
        for (int inner = d + 1; inner < v->depth; inner++) { /* from block to block */
            const opq_stmt *of = &v->k->stmts[v->open[inner]];
            stays = stays && (of->within != l + 1 || !moves(v, stmt->access, of->variable, dims));
        }
        NEED(dims[l] <= 1 || !stays, "two turns store one element");
    }
    return OPQ_OK;
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

/* Blocks that a loop counts all have turns: of the outermost of the loops in one block, with all that are inside it. */
static opq_status check_blocks(const verifier *v, int at, const int64_t *dims)
{
    const opq_stmt *loop = &v->k->stmts[at];
    int64_t turns = dims[loop->variable];
    if (!loop->within || opq_loop_shares_block(v->k, at, true))
        return OPQ_OK;
    for (int i = at + 1; i < loop->end; i++)
        if (v->k->stmts[i].op == OPQ_STMT_loop && v->k->stmts[i].within == loop->within)
            NEED(!__builtin_mul_overflow(turns, dims[v->k->stmts[i].variable], &turns),
                 "more turns than there are numbers");
    NEED(dims[loop->within - 1] <= turns / OPQ_CHUNK + (turns % OPQ_CHUNK != 0), "a block without turns");
    return OPQ_OK;
}

/* Has one of the loops around no turn? */
static bool no_turns(const verifier *v, const int64_t *dims)
{
    bool none = false;
    for (int d = 0; d < v->depth; d++)
        none |= dims[v->k->stmts[v->open[d]].variable] == 0;
    return none;
}

/* Does a turn of a loop move as one of that does which it slides along? */
static opq_status check_slides(const verifier *v, int loop, const int64_t *dims)
{
    const opq_stmt *stmts = v->k->stmts, *window = &stmts[loop];
    int along = window->variables ? __builtin_ctz(window->variables) : -1;
    for (int i = loop + 1; i < window->end && along >= 0; i++) {
        if (!opq_stmt_walks(&stmts[i]))
            continue;
        int64_t rows = opq_loops_stride(v->k, dims, stmts[i].access, along);
        NEED(rows == 0 || rows == opq_loops_stride(v->k, dims, stmts[i].access, window->variable),
             "a window that does not slide");
    }
    return OPQ_OK;
}

static opq_status check_bounds(verifier *v, int from, int to, const int64_t *dims, const int64_t *bytes)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &v->k->stmts[i];
        v->at = i;
        if (stmt->op == OPQ_STMT_loop) {
            NEED(dims[stmt->variable] >= 0, "a negative extent");
            NEED(stmt->value.i == 0 || dims[stmt->variable] == stmt->value.i, "another number of turns");
            OPQ_TRY(check_slides(v, i, dims));
            NEED(stmt->role != OPQ_LOOP_lanes || !in_lane(v) || dims[stmt->variable] <= OPQ_ACROSS_MAX,
                 "a long row in one lane");
            NEED(dims[stmt->variable] > 0 || !opq_loop_reduces((opq_loop_role)stmt->role) || no_turns(v, dims),
                 "a reduction of nothing");
            OPQ_TRY(check_across(v, stmt, dims));
            OPQ_TRY(check_blocks(v, i, dims));
            v->open[v->depth++] = i;
            v->running |= (uint16_t)(1u << stmt->variable);
            OPQ_TRY(check_bounds(v, i + 1, stmt->end, dims, bytes));
            v->running &= (uint16_t)~(1u << stmt->variable);
            v->depth--;
            i = stmt->end - 1;
        } else if (stmt->op >= OPQ_OP_COUNT && stmt->op <= OPQ_STMT_nonzero && stmt->access >= 0 &&
                   v->k->accesses[stmt->access].buffer >= 0) {
            OPQ_TRY(check_reach(v, stmt, dims, bytes));
        }
    }
    return OPQ_OK;
}

opq_status opq_loops_verify_bounds(const opq_loops *loops, const int64_t *dims, const int64_t *bytes)
{
    verifier v = {.k = loops};
    for (int i = 0; i < opq_loops_dims_count(loops); i++)
        if (dims[i] == INT64_MIN) /* whose opposite is no number */
            return opq_verifier_refuse(&v, "an argument past all memory");
    return check_bounds(&v, 0, loops->stmt_count, dims, bytes);
}
