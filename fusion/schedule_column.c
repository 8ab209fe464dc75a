/* Reducing by the rule `column`, spelled out:
 *
 *   column i < d0 {              %a = carry sum f32
 *     %2 = load ..               serial k by 512 {                     blocks of OPQ_COLUMN_BLOCK turns of all that is reduced
 *     %3 = sum f32 %2              %b = carry sum f32
 *   }                              serial l by 8 in k {                groups of OPQ_COLUMN_GROUP
 *                                    %c = carry sum f32
 *                                    serial i < d0 in l {
 *                                      %2 = load ..
 *                                      fold f32 %c, %2
 *                                    }
 *                                    fold f32 %b, %c
 *                                  }
 *                                  fold f32 %a, %b
 *                                }
 *
 * Loops one in the other are one sequence. argmax and argmin are folded along it, in order: one carry.
 */
#include "fusion/loop_rewrite.h"
#include "fusion/schedule.h"

enum { LEVELS = OPQ_BLOCKS_MAX + 1 };
static const uint16_t level_by[OPQ_BLOCKS_MAX] = {OPQ_COLUMN_BLOCK, OPQ_COLUMN_GROUP};

typedef struct scheduler {
    opq_rewriter rewriter;
    int16_t *origin; /* per statement of the result */
    int16_t (*carry)[LEVELS]; /* per statement of the meaning that folds: from the outermost level in; of an index only the first */
    int loop;                 /* of the outermost that reduces, -1: outside */
} scheduler;

static bool is_arg(const opq_stmt *stmt) { return opq_fold_is_arg(opq_op_lowering((opq_op)stmt->op)->fold); }

static int16_t push(scheduler *s, const opq_stmt *stmt, int from)
{
    s->origin[s->rewriter.to->stmt_count] = (int16_t)from;
    return opq_loops_push(s->rewriter.to, stmt);
}

/* What partial results are held in: for an index, what it is one of. */
static opq_dtype held_in(const opq_loops *k, const opq_stmt *stmt)
{
    return (opq_dtype)(is_arg(stmt) ? k->stmts[stmt->operand[0]].dtype : stmt->dtype);
}

static int16_t push_fold(scheduler *s, int from, int16_t carry, int16_t value)
{
    opq_stmt fold = opq_stmt_make(OPQ_STMT_fold);
    fold.dtype = s->rewriter.to->stmts[carry].dtype;
    fold.access = carry;
    fold.operand[0] = value;
    return push(s, &fold, from);
}

/* Of all reductions in a loop. */
static void push_carries(scheduler *s, int loop, int level)
{
    const opq_loops *k = s->rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (!opq_op_reduces(stmt->op) || (level > 0 && is_arg(stmt)))
            continue;
        opq_stmt carry = opq_stmt_make(OPQ_STMT_carry);
        carry.dtype = (uint8_t)held_in(k, stmt);
        carry.value.i = stmt->op;
        s->carry[i][level] = push(s, &carry, i);
    }
}

static void fold_levels(scheduler *s, int loop, int level)
{
    const opq_loops *k = s->rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++)
        if (opq_op_reduces(k->stmts[i].op) && !is_arg(&k->stmts[i]))
            push_fold(s, i, s->carry[i][level], s->carry[i][level + 1]);
}

/* Results are what the outermost carries are behind the loops. */
static void push_results(scheduler *s, int loop)
{
    const opq_loops *k = s->rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        if (!opq_op_reduces(k->stmts[i].op))
            continue;
        s->rewriter.stmt[i] = s->carry[i][0];
        if (!is_arg(&k->stmts[i]))
            continue;
        opq_stmt at = opq_stmt_make(OPQ_STMT_at);
        at.dtype = OPQ_i64;
        at.access = s->carry[i][0];
        s->rewriter.stmt[i] = push(s, &at, i);
    }
}

static bool schedule_loop(scheduler *s, int loop)
{
    opq_loops *to = s->rewriter.to;
    int block[OPQ_BLOCKS_MAX];
    push_carries(s, loop, 0);
    for (int level = 0; level < OPQ_BLOCKS_MAX; level++) {
        opq_stmt blocks = opq_stmt_make(OPQ_STMT_loop);
        blocks.role = OPQ_LOOP_serial;
        blocks.variable = (uint8_t)(to->rank + level);
        blocks.within = (uint8_t)(level > 0 ? to->rank + level : 0);
        blocks.by = level_by[level];
        block[level] = push(s, &blocks, loop);
        push_carries(s, loop, level + 1);
    }
    s->loop = loop;
    if (!opq_loops_rewrite(&s->rewriter, loop, s->rewriter.from->stmts[loop].end))
        return false;
    s->loop = -1;
    for (int level = OPQ_BLOCKS_MAX - 1; level >= 0; level--) {
        fold_levels(s, loop, level);
        to->stmts[block[level]].end = to->stmt_count;
    }
    push_results(s, loop);
    return true;
}

static void schedule_fold(scheduler *s, int i)
{
    const opq_loops *k = s->rewriter.from;
    const opq_stmt *stmt = &k->stmts[i];
    int16_t value = s->rewriter.stmt[stmt->operand[0]];
    opq_dtype held = held_in(k, stmt);
    if (k->stmts[stmt->operand[0]].dtype != held) {
        opq_stmt cast = opq_stmt_make(OPQ_OP_cast);
        cast.dtype = (uint8_t)held;
        cast.operand[0] = value;
        value = push(s, &cast, i);
    }
    push_fold(s, i, s->carry[i][is_arg(stmt) ? 0 : LEVELS - 1], value);
}

static opq_rewrite choose(void *data, int i)
{
    scheduler *s = data;
    const opq_stmt *stmt = &s->rewriter.from->stmts[i];
    if (stmt->op == OPQ_STMT_loop && stmt->role == OPQ_LOOP_column && s->loop < 0)
        return schedule_loop(s, i) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
    if (s->loop < 0 || !opq_op_reduces(stmt->op))
        return OPQ_REWRITE_copy;
    schedule_fold(s, i);
    return OPQ_REWRITE_drop;
}

static void finish(void *data, int i, opq_stmt *to)
{
    scheduler *s = data;
    s->origin[s->rewriter.to->stmt_count] = (int16_t)i;
    if (to->op == OPQ_STMT_loop && s->loop >= 0) {
        to->role = OPQ_LOOP_serial;
        to->within = (uint8_t)(s->rewriter.to->rank + OPQ_BLOCKS_MAX);
    }
}

opq_status opq_schedule_column(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    enum { MORE = 2 * LEVELS + 2 }; /* statements for one that reduces; a loop has blocks beside */
    size_t most = 1 + OPQ_BLOCKS_MAX;
    for (int i = 0; i < loops->stmt_count; i++)
        most += opq_op_reduces(loops->stmts[i].op)    ? MORE
                : loops->stmts[i].op == OPQ_STMT_loop ? 1 + OPQ_BLOCKS_MAX
                                                      : 1;
    scheduler s = {.loop = -1};
    s.origin = opq_arena_alloc(arena, most * sizeof *s.origin);
    s.carry = opq_arena_alloc(arena, ((size_t)loops->stmt_count + 1) * sizeof *s.carry);
    *out_schedule = *loops;
    out_schedule->scheduled = true;
    out_schedule->origin = s.origin;
    out_schedule->stmt_count = 0;
    out_schedule->stmts = opq_arena_alloc(arena, most * sizeof *out_schedule->stmts);
    s.rewriter = (opq_rewriter){.from = loops, .to = out_schedule, .data = &s, .choose = choose, .finish = finish};
    s.rewriter.stmt = opq_arena_alloc(arena, ((size_t)loops->stmt_count + 1) * sizeof *s.rewriter.stmt);
    if (!s.origin || !s.carry || !out_schedule->stmts || !s.rewriter.stmt)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling kernel %s", loops->name);
    (void)opq_loops_rewrite(&s.rewriter, 0, loops->stmt_count);
    return OPQ_OK;
}
