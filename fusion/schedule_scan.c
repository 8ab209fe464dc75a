/* Scans, spelled out:
 *
 *   serial i < d0 {                      %a = carry cumsum f64
 *     %2 = load f32 ..                   serial i < d0 {              (a vector loop where no other is around)
 *     %3 = cumsum f32 %2 in f64            %2 = load f32 ..
 *     store f32 .., %3                     %3 = cast f64 %2
 *   }                                      fold f64 %a, %3
 *                                          %4 = cast f32 %a
 *                                          store f32 .., %4
 *                                        }
 */
#include "fusion/schedule_pass.h"

typedef struct scheduler {
    opq_pass pass;
    int16_t *carry; /* per statement that scans */
    int loop;       /* with scans, whose body this is; -1: none */
} scheduler;

static bool has_scans(const opq_loops *k, int from, int to)
{
    for (int i = from; i < to; i++)
        if (opq_op_scans(k->stmts[i].op))
            return true;
    return false;
}

static bool schedule_loop(scheduler *s, int loop)
{
    const opq_loops *k = s->pass.rewriter.from;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        if (!opq_op_scans(k->stmts[i].op))
            continue;
        opq_stmt carry = opq_stmt_make(OPQ_STMT_carry);
        carry.dtype = (uint8_t)k->stmts[i].value.i;
        carry.value.i = k->stmts[i].op;
        s->carry[i] = opq_pass_push(&s->pass, &carry, i);
    }
    s->loop = loop;
    bool done = opq_loops_rewrite(&s->pass.rewriter, loop, k->stmts[loop].end);
    s->loop = -1;
    return done;
}

static void schedule_scan(scheduler *s, int i)
{
    const opq_stmt *stmt = &s->pass.rewriter.from->stmts[i];
    opq_dtype held = (opq_dtype)stmt->value.i;
    int16_t value = opq_pass_push_cast(&s->pass, i, s->pass.rewriter.stmt[stmt->operand[0]], held);
    opq_pass_push_carried(&s->pass, OPQ_STMT_fold, i, s->carry[i], held, value);
    s->pass.rewriter.stmt[i] = opq_pass_push_cast(&s->pass, i, s->carry[i], (opq_dtype)stmt->dtype);
}

static opq_rewrite choose(void *data, int i)
{
    scheduler *s = data;
    const opq_loops *k = s->pass.rewriter.from;
    const opq_stmt *stmt = &k->stmts[i];
    if (stmt->op == OPQ_STMT_loop && s->loop < 0 && stmt->role == OPQ_LOOP_serial && !opq_loop_has_loops(k, i) &&
        has_scans(k, i + 1, stmt->end))
        return schedule_loop(s, i) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
    if (!opq_op_scans(stmt->op))
        return OPQ_REWRITE_copy;
    schedule_scan(s, i);
    return OPQ_REWRITE_drop;
}

static void finish(void *data, int i, opq_stmt *to)
{
    scheduler *s = data;
    opq_pass_came_from(&s->pass, i);
    if (i == s->loop && !opq_is_in_lane(s->pass.rewriter.from, i))
        to->role = OPQ_LOOP_vector;
}

opq_status opq_schedule_scan(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    enum { MORE = 3 }; /* statements for one that scans */
    size_t most = (size_t)loops->stmt_count;
    *out_schedule = *loops;
    if (!has_scans(loops, 0, loops->stmt_count))
        return OPQ_OK;
    for (int i = 0; i < loops->stmt_count; i++)
        most += opq_op_scans(loops->stmts[i].op) ? MORE : 0;
    scheduler s = {.loop = -1, .pass.rewriter = {.data = &s, .choose = choose, .finish = finish}};
    s.carry = opq_arena_alloc(arena, ((size_t)loops->stmt_count + 1) * sizeof *s.carry);
    if (!s.carry)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling kernel %s", loops->name);
    return opq_pass_run(&s.pass, loops, most, arena, out_schedule);
}
