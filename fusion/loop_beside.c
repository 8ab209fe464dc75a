/* Trees become one whose phases they are: products that a kernel makes of one left operand, each with its epilogue.
 *
 *   parallel i { vector j { chain k { .. } .. store b2 } }        one after the other, over variables that they share where role and
 *   parallel i { vector j { chain k { .. } .. store b4 } }        extent are the same; buffers and scalars are shared, too
 */
#include "fusion/loop_rewrite.h"

#include <string.h>

typedef struct joiner {
    const opq_bound *part;
    opq_bound *out;
    opq_access *accesses;
    uint8_t role[OPQ_LOOP_MAX];     /* per variable of the result */
    uint8_t variable[OPQ_LOOP_MAX]; /* per variable of the part: of the result */
    int16_t first_access, *stmt;    /* stmt: per statement of the part: in the result */
} joiner;

static uint8_t role_of(const opq_loops *k, int variable)
{
    for (int i = 0; i < k->stmt_count; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].variable == variable)
            return k->stmts[i].role;
    return OPQ_LOOP_each; /* it moves nothing */
}

/* The first that no variable of the part has yet, or a new one. */
static bool take_variable(joiner *j, int variable)
{
    opq_loops *out = &j->out->loops;
    uint8_t role = role_of(&j->part->loops, variable);
    int at = 0;
    for (; at < out->rank; at++) {
        bool fits = j->role[at] == role && j->out->dims[at] == j->part->dims[variable];
        for (int v = 0; v < variable; v++)
            fits = fits && j->variable[v] != at;
        if (fits)
            break;
    }
    if (at == OPQ_LOOP_MAX)
        return false;
    if (at == out->rank) {
        j->role[at] = role;
        j->out->dims[at] = j->part->dims[variable];
        out->rank++;
    }
    j->variable[variable] = (uint8_t)at;
    return true;
}

/* `rank` is that of the whole result. */
static void take_access(joiner *j, int access, int rank)
{
    opq_loops *out = &j->out->loops;
    const opq_loops *k = &j->part->loops;
    const opq_access *from = &k->accesses[access];
    opq_access *to = &j->accesses[out->access_count];
    const int64_t *given = j->part->dims + opq_dims_of(k->rank, access);
    int64_t *dims = j->out->dims + opq_dims_of(rank, out->access_count++);
    *to = (opq_access){.buffer = -1, .dtype = from->dtype};
    if (from->buffer >= 0)
        to->buffer = (int16_t)opq_bound_take_buffer(j->out, j->part, from->buffer);
    memset(dims, 0, (size_t)(rank + 3) * sizeof *dims);
    dims[0] = given[0];
    for (int v = 0; v < k->rank; v++) {
        to->stride[j->variable[v]] = from->stride[v];
        dims[1 + j->variable[v]] = given[1 + v];
    }
    dims[1 + rank] = given[1 + k->rank];
    dims[2 + rank] = given[2 + k->rank];
}

static void finish(void *data, int i, opq_stmt *to)
{
    joiner *j = data;
    (void)i;
    if (to->op == OPQ_STMT_loop)
        to->variable = j->variable[to->variable];
    else if (to->op == OPQ_OP_scalar)
        to->value.i = opq_bound_take_scalar(j->out, j->part, to->value.i);
    else if (opq_stmt_walks(to))
        to->access = (int16_t)(to->access + j->first_access);
}

static opq_status make_room(joiner *j, const opq_bound *parts, int count, opq_arena *arena)
{
    int stmts = 1, accesses = 1, buffers = 1, scalars = 1;
    for (int i = 0; i < count; i++) {
        stmts += parts[i].loops.stmt_count;
        accesses += parts[i].loops.access_count;
        buffers += parts[i].loops.buffer_count;
        scalars += parts[i].loops.scalar_count;
    }
    if (stmts > INT16_MAX || accesses > OPQ_ACCESS_MAX || buffers > OPQ_BUFFER_MAX || scalars > OPQ_SCALAR_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "loops: too many arguments in one kernel");
    opq_bound *out = j->out;
    j->accesses = opq_arena_alloc(arena, (size_t)accesses * sizeof *j->accesses);
    j->stmt = opq_arena_alloc(arena, (size_t)stmts * sizeof *j->stmt);
    out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(OPQ_LOOP_MAX, accesses) * sizeof *out->dims);
    out->buffers = opq_arena_alloc(arena, (size_t)buffers * sizeof *out->buffers);
    out->scalars = opq_arena_alloc(arena, (size_t)scalars * sizeof *out->scalars);
    out->loops = (opq_loops){.name = parts[0].loops.name, .accesses = j->accesses};
    out->loops.stmts = opq_arena_alloc(arena, (size_t)stmts * sizeof *out->loops.stmts);
    out->loops.written = opq_arena_alloc(arena, (size_t)buffers);
    if (!j->accesses || !j->stmt || !out->dims || !out->buffers || !out->scalars || !out->loops.stmts ||
        !out->loops.written)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while joining loops");
    return OPQ_OK;
}

static bool take_variables(joiner *j, const opq_bound *part)
{
    j->part = part;
    for (int v = 0; v < part->loops.rank; v++)
        if (!take_variable(j, v))
            return false;
    return true;
}

opq_status opq_loops_beside(const opq_bound *parts, int count, opq_arena *arena, opq_bound *out_joined)
{
    joiner j = {.out = out_joined};
    OPQ_TRY(make_room(&j, parts, count, arena));
    for (int i = 0; i < count; i++)
        if (!take_variables(&j, &parts[i]))
            return opq_fail(OPQ_UNSUPPORTED, "loops: too many loops in one kernel");
    int rank = out_joined->loops.rank;
    for (int i = 0; i < count; i++) {
        take_variables(&j, &parts[i]); /* they are all there, and found again */
        j.first_access = (int16_t)out_joined->loops.access_count;
        for (int a = 0; a < parts[i].loops.access_count; a++)
            take_access(&j, a, rank);
        const opq_rewriter rewriter = {&parts[i].loops, &out_joined->loops, j.stmt, &j, NULL, finish};
        (void)opq_loops_rewrite(&rewriter, 0, parts[i].loops.stmt_count);
    }
    return OPQ_OK;
}
