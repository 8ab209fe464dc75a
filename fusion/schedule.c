/* See schedule.h and schedule_pass.h. */
#include "fusion/schedule_pass.h"

#include <string.h>

/* ---- for passes */

opq_status opq_pass_run(opq_pass *pass, const opq_loops *from, size_t most, opq_arena *arena, opq_loops *out_schedule)
{
    *out_schedule = *from;
    out_schedule->scheduled = true;
    out_schedule->stmt_count = 0;
    out_schedule->stmts = opq_arena_alloc(arena, (most + 1) * sizeof *out_schedule->stmts);
    out_schedule->origin = pass->origin = opq_arena_alloc(arena, (most + 1) * sizeof *pass->origin);
    pass->rewriter.from = from;
    pass->rewriter.to = out_schedule;
    pass->rewriter.stmt = opq_arena_alloc(arena, ((size_t)from->stmt_count + 1) * sizeof *pass->rewriter.stmt);
    if (!out_schedule->stmts || !pass->origin || !pass->rewriter.stmt)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling kernel %s", from->name);
    (void)opq_loops_rewrite(&pass->rewriter, 0, from->stmt_count);
    return OPQ_OK;
}

void opq_pass_came_from(opq_pass *pass, int stmt)
{
    pass->origin[pass->rewriter.to->stmt_count] = (int16_t)opq_loops_origin(pass->rewriter.from, stmt);
}

int16_t opq_pass_push(opq_pass *pass, const opq_stmt *made, int from)
{
    opq_pass_came_from(pass, from);
    return opq_loops_push(pass->rewriter.to, made);
}

int16_t opq_pass_push_carried(opq_pass *pass, opq_stmt_op op, int from, int16_t carry, opq_dtype dtype, int16_t value)
{
    opq_stmt made = opq_stmt_make(op);
    made.dtype = (uint8_t)dtype;
    made.access = carry;
    made.operand[0] = value;
    return opq_pass_push(pass, &made, from);
}

int16_t opq_pass_push_cast(opq_pass *pass, int from, int16_t value, opq_dtype dtype)
{
    if (pass->rewriter.to->stmts[value].dtype == dtype)
        return value;
    opq_stmt cast = opq_stmt_make(OPQ_OP_cast);
    cast.dtype = (uint8_t)dtype;
    cast.operand[0] = value;
    return opq_pass_push(pass, &cast, from);
}

bool opq_is_in_lane(const opq_loops *k, int stmt)
{
    for (int i = 0; i < stmt; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].role == OPQ_LOOP_vector && k->stmts[i].end > stmt)
            return true;
    return false;
}

/* ---- all of them */

static const struct {
    const char *name;
    opq_schedule_pass *run;
} passes[] = {
#define X(name) {#name, opq_schedule_##name},
    OPQ_SCHEDULE_PASSES(X)
#undef X
};

static opq_status refuse(const char *name)
{
    opq_text known = {0};
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++)
        opq_text_add(&known, "%s%s", i ? ", " : "", passes[i].name);
    opq_status status = opq_fail(OPQ_INVALID, "no pass of schedules is called \"%s\"; there are %s", name,
                                 known.failed ? "" : known.data);
    opq_text_drop(&known);
    return status;
}

/* Threads divide what they do in the kernel, which alone says in how many units. */
static bool divides_alike(const opq_loops *kernel, const opq_loops *made)
{
    uint32_t divided[2] = {0};
    int blocks = 0, loops = 0;
    for (int of = 0; of < 2; of++) {
        const opq_loops *k = of ? made : kernel;
        int64_t turns;
        for (int i = 0; i < k->stmt_count; i++)
            if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].role == OPQ_LOOP_parallel) {
                divided[of] |= 1u << k->stmts[opq_loop_counted(k, i, &turns)].variable;
                blocks += k->stmts[i].by > 0;
                loops += of == 0;
            }
    }
    return divided[0] == divided[1] && (blocks == 0 || loops == 1);
}

/* after: the last of the passes; NULL: all are run. */
static opq_status schedule(const opq_loops *loops, const char *after, opq_arena *arena, opq_loops *out_schedule)
{
    bool found = after == NULL;
    *out_schedule = *loops;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        opq_loops from = *out_schedule;
        OPQ_TRY(passes[i].run(&from, arena, out_schedule));
        found = found || strcmp(passes[i].name, after) == 0;
        if (after && found)
            break;
    }
    if (!found)
        return refuse(after);
    opq_status status = opq_loops_verify(out_schedule);
    if (status == OPQ_OK && !divides_alike(loops, out_schedule))
        status = opq_fail(OPQ_INTERNAL, "threads divide another loop, or one of several in blocks");
    if (status != OPQ_OK && status != OPQ_NO_MEMORY)
        return opq_fail(OPQ_INTERNAL, "the schedule of kernel %s: %s", loops->name ? loops->name : "", opq_error());
    return status;
}

opq_status opq_schedule(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    return schedule(loops, NULL, arena, out_schedule);
}

opq_status opq_schedule_print(const opq_loops *loops, const char *after, opq_text *out_text)
{
    opq_arena arena = {0};
    opq_loops made;
    opq_status status = schedule(loops, after, &arena, &made);
    if (status == OPQ_OK)
        opq_loops_print(&made, out_text);
    opq_arena_drop(&arena);
    return status;
}

opq_status opq_schedule_eval(const opq_loops *loops, void *const *buffers, const int64_t *dims,
                             const opq_number *scalars, int64_t out_error[2])
{
    opq_arena arena = {0};
    opq_loops made;
    opq_status status = opq_schedule(loops, &arena, &made);
    if (status == OPQ_OK)
        status = opq_loops_eval(&made, buffers, dims, scalars, out_error);
    opq_arena_drop(&arena);
    return status;
}
