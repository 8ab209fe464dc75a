/* Rules of reductions, spelled out:
 *
 *   column i < d0 {              %a = carry sum f32                        lanes i < d0 {     %a = carry sum f32 by 64
 *     %2 = load ..               serial k by 64 {                            %2 = load ..     serial k by 4096 {
 *     %3 = sum f32 %2              %b = carry sum f32                        %3 = sum f32 %2    %b = carry sum f32 by 64
 *   }                              serial l by 8 in k {                    }                    serial l by 4096 in k {
 *                                    %c = carry sum f32                                           %c = carry sum f32 by 64
 *                                    serial i < d0 in l {                                         vector i < d0 in l {
 *                                      %2 = load ..                                                 %2 = load ..
 *                                      fold f32 %c, %2                                              fold f32 %c, %2
 *                                    }                                                            }
 *                                    fold f32 %b, %c                                              %4 = halves f32 %c
 *                                  }                                                              fold f32 %b, %4
 *                                  fold f32 %a, %b                                              }
 *                                }                                                              %5 = halves f32 %b
 *                                                                                               fold f32 %a, %5
 *                                                                                             }
 *                                                                                             %6 = halves f32 %a
 *
 * Loops one in the other are one sequence. Of `lanes` the blocks l are those of the innermost, for each turn of the loops around it, and the
 * blocks k are of these. In a block that the kernel counts itself, and of a short row in a lane, there is one carry. argmax and argmin are
 * folded along all of it, in order: one carry.
 */
#include "fusion/schedule_pass.h"

enum { BLOCKS = 2, LEVELS = BLOCKS + 1 };

typedef struct rule {
    int levels; /* of blocks */
    uint16_t by[BLOCKS];
    uint8_t partials;   /* results of which a carry has a part each; 0: it is one */
    bool innermost;     /* does the last level stand in the loops around the innermost? */
    opq_loop_role leaf; /* what the innermost becomes */
} rule;

static const rule column = {2, {OPQ_COLUMN_BLOCK / OPQ_COLUMN_GROUP, OPQ_COLUMN_GROUP}, 0, false, OPQ_LOOP_serial};
static const rule lanes = {2, {OPQ_CHUNK, OPQ_CHUNK}, OPQ_LANES, true, OPQ_LOOP_vector};
static const rule block = {0, {0}, OPQ_LANES, false, OPQ_LOOP_vector};
static const rule in_lane = {0, {0}, OPQ_ACROSS_MAX, false, OPQ_LOOP_serial};

typedef struct scheduler {
    opq_pass pass;
    int16_t (*carry)[LEVELS]; /* per statement of the meaning that folds: from the outermost level in; of an index only the first */
    const rule *rule;
    int loop;                 /* of the outermost that reduces, -1: outside */
    int open[BLOCKS], levels; /* of blocks, around */
} scheduler;

static bool is_arg(const opq_stmt *stmt) { return opq_fold_is_arg(opq_op_lowering((opq_op)stmt->op)->fold); }

/* What partial results are held in: for an index, what it is one of. */
static opq_dtype held_in(const opq_loops *k, const opq_stmt *stmt)
{
    return (opq_dtype)(is_arg(stmt) ? k->stmts[stmt->operand[0]].dtype : stmt->dtype);
}

/* What a level made. */
static int16_t push_value(scheduler *s, int from, int level)
{
    int16_t carry = s->carry[from][level];
    const opq_stmt *stmt = &s->pass.rewriter.from->stmts[from];
    return s->rule->partials && !is_arg(stmt)
               ? opq_pass_push_carried(&s->pass, OPQ_STMT_halves, from, carry, held_in(s->pass.rewriter.from, stmt), -1)
               : carry;
}

/* Of all reductions in a loop. */
static void push_carries(scheduler *s, int loop, int level)
{
    const opq_loops *k = s->pass.rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (!opq_op_reduces(stmt->op) || (level > 0 && is_arg(stmt)))
            continue;
        opq_stmt carry = opq_stmt_make(OPQ_STMT_carry);
        carry.dtype = (uint8_t)held_in(k, stmt);
        carry.by = is_arg(stmt) ? 0 : s->rule->partials;
        carry.value.i = stmt->op;
        s->carry[i][level] = opq_pass_push(&s->pass, &carry, i);
    }
}

/* The next level of blocks, around what is `loop` in the kernel. */
static void open_level(scheduler *s, int loop)
{
    int level = s->levels++, rank = s->pass.rewriter.to->rank;
    opq_stmt blocks = opq_stmt_make(OPQ_STMT_loop);
    blocks.role = OPQ_LOOP_serial;
    blocks.variable = (uint8_t)(rank + level);
    blocks.within = (uint8_t)(level > 0 ? rank + level : 0);
    blocks.by = s->rule->by[level];
    s->open[level] = opq_pass_push(&s->pass, &blocks, loop);
    push_carries(s, loop, level + 1);
}

static void close_level(scheduler *s, int loop)
{
    const opq_loops *k = s->pass.rewriter.from;
    int level = --s->levels;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        if (!opq_op_reduces(k->stmts[i].op) || is_arg(&k->stmts[i]))
            continue;
        int16_t value = push_value(s, i, level + 1);
        opq_pass_push_carried(&s->pass, OPQ_STMT_fold, i, s->carry[i][level], held_in(k, &k->stmts[i]), value);
    }
    s->pass.rewriter.to->stmts[s->open[level]].end = s->pass.rewriter.to->stmt_count;
}

/* Results are what the outermost carries are behind the loops. */
static void push_results(scheduler *s, int loop)
{
    const opq_loops *k = s->pass.rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++)
        if (opq_op_reduces(k->stmts[i].op))
            s->pass.rewriter.stmt[i] = is_arg(&k->stmts[i])
                                           ? opq_pass_push_carried(&s->pass, OPQ_STMT_at, i, s->carry[i][0], OPQ_i64, -1)
                                           : push_value(s, i, 0);
}

static bool schedule_loop(scheduler *s, int loop, const rule *rule)
{
    s->rule = rule;
    push_carries(s, loop, 0);
    while (s->levels < rule->levels - rule->innermost)
        open_level(s, loop);
    s->loop = loop;
    if (!opq_loops_rewrite(&s->pass.rewriter, loop, s->pass.rewriter.from->stmts[loop].end))
        return false;
    s->loop = -1;
    while (s->levels > 0)
        close_level(s, loop);
    push_results(s, loop);
    return true;
}

/* The innermost loop, with the level that stands around it. */
static bool schedule_innermost(scheduler *s, int loop)
{
    open_level(s, loop);
    if (!opq_loops_rewrite(&s->pass.rewriter, loop, s->pass.rewriter.from->stmts[loop].end))
        return false;
    close_level(s, loop);
    return true;
}

static void schedule_fold(scheduler *s, int i)
{
    const opq_loops *k = s->pass.rewriter.from;
    const opq_stmt *stmt = &k->stmts[i];
    int16_t value = s->pass.rewriter.stmt[stmt->operand[0]];
    opq_dtype held = held_in(k, stmt);
    value = opq_pass_push_cast(&s->pass, i, value, held);
    opq_pass_push_carried(&s->pass, OPQ_STMT_fold, i, s->carry[i][is_arg(stmt) ? 0 : s->rule->levels], held, value);
}

/* NULL: the loop stays what it is. */
static const rule *rule_of(const opq_loops *k, int loop)
{
    const opq_stmt *stmt = &k->stmts[loop];
    if (stmt->op != OPQ_STMT_loop || (stmt->role != OPQ_LOOP_column && stmt->role != OPQ_LOOP_lanes))
        return NULL;
    if (stmt->role == OPQ_LOOP_column)
        return &column;
    if (!opq_is_in_lane(k, loop))
        return stmt->within ? &block : &lanes;
    return opq_loop_has_loops(k, loop) || stmt->within ? NULL : &in_lane;
}

static opq_rewrite choose(void *data, int i)
{
    scheduler *s = data;
    const opq_loops *k = s->pass.rewriter.from;
    const rule *rule = s->loop < 0 ? rule_of(k, i) : NULL;
    if (rule)
        return schedule_loop(s, i, rule) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
    if (s->loop < 0)
        return OPQ_REWRITE_copy;
    if (k->stmts[i].op == OPQ_STMT_loop && s->levels < s->rule->levels && !opq_loop_has_loops(k, i))
        return schedule_innermost(s, i) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
    if (!opq_op_reduces(k->stmts[i].op))
        return OPQ_REWRITE_copy;
    schedule_fold(s, i);
    return OPQ_REWRITE_drop;
}

static void finish(void *data, int i, opq_stmt *to)
{
    scheduler *s = data;
    opq_pass_came_from(&s->pass, i);
    if (to->op != OPQ_STMT_loop || s->loop < 0)
        return;
    to->role = opq_loop_has_loops(s->pass.rewriter.from, i) ? OPQ_LOOP_serial : s->rule->leaf;
    if (s->levels > 0)
        to->within = (uint8_t)(s->pass.rewriter.to->rank + s->levels);
}

opq_status opq_schedule_reduce(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    enum { MORE = 3 * LEVELS + 2 }; /* statements for one that reduces; a loop has blocks beside */
    size_t most = 1 + BLOCKS;
    for (int i = 0; i < loops->stmt_count; i++)
        most += opq_op_reduces(loops->stmts[i].op) ? MORE : loops->stmts[i].op == OPQ_STMT_loop ? 1 + BLOCKS : 1;
    scheduler s = {.loop = -1, .pass.rewriter = {.data = &s, .choose = choose, .finish = finish}};
    s.carry = opq_arena_alloc(arena, ((size_t)loops->stmt_count + 1) * sizeof *s.carry);
    if (!s.carry)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling kernel %s", loops->name);
    return opq_pass_run(&s.pass, loops, most, arena, out_schedule);
}
