/* Trees become one, over variables, buffers and scalars that they share. Phases: one after the other.
 *
 *   parallel i { vector j { chain k { .. } .. store b2 } }        variables are one where role and extent are
 *   parallel i { vector j { chain k { .. } .. store b4 } }
 *
 * Nested: a product's rows are made, walked and multiplied again, all of a row before the next.
 *
 *   parallel i { vector n { chain k { .. } store scores } }         parallel i {
 *   parallel i { lanes j { load scores; .. } .. store weights }       local e0[j], e1[j]
 *   parallel i { vector n { chain k { load weights; .. } .. } }       vector j { chain k { .. } store e0[j] }
 *                                                                     lanes j { load e0[j]; .. } .. store e1[j]
 *                                                                     vector l { chain j { load e1[j]; .. } .. }
 *                                                                   }
 * What is one loop over rows here may be two there, in the same order of rows: the loops of the result are cut so finely that each of
 * theirs is some of them. What one tree makes for the next is kept: a row of it in a local, an element of it as a value. Phases have
 * buffers of their own for it.
 */
#include "fusion/loop_rewrite.h"

#include <string.h>

/* Of a nested tree, behind the loops over rows. */
enum { COLUMN, INNER, LAST, FIXED };

/* A turn of a variable of the result is so many turns of one of the part. */
typedef struct counted {
    int variable; /* -1: the part does not have it */
    int64_t turns;
} counted;

typedef struct joiner {
    const opq_bound *part;
    const opq_kept *kept;
    opq_bound *out;
    opq_access *accesses;
    counted counted[OPQ_LOOP_MAX]; /* per variable of the result */
    int16_t *stmt, *access;        /* per statement and access of the part: in the result */
    uint8_t role[OPQ_LOOP_MAX];    /* phases: per variable of the result */
    bool nested;
    int rows_rank;              /* nested: variables that count rows, the outermost first */
    int64_t cuts[OPQ_LOOP_MAX]; /* all rows, then rows of a turn of each of these */
    int16_t at[OPQ_KEPT_MAX];   /* per kept one: its local or value */
} joiner;

static opq_status too_many(const char *what)
{
    return opq_fail(OPQ_UNSUPPORTED, "loops: too many %s in one kernel", what);
}

/* ---- variables */

static void begin_part(joiner *j, const opq_bound *part)
{
    j->part = part;
    for (int v = 0; v < OPQ_LOOP_MAX; v++)
        j->counted[v] = (counted){-1, 0};
}

static uint8_t role_of(const opq_loops *k, int variable)
{
    for (int i = 0; i < k->stmt_count; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].variable == variable)
            return k->stmts[i].role;
    return OPQ_LOOP_each; /* it moves nothing */
}

/* Each is the first that fits and that no variable of the part has yet, or a new one. */
static bool take_variables(joiner *j, const opq_bound *part)
{
    begin_part(j, part);
    opq_loops *out = &j->out->loops;
    for (int v = 0; v < part->loops.rank; v++) {
        uint8_t role = role_of(&part->loops, v);
        int at = 0;
        while (at < out->rank &&
               (j->role[at] != role || j->out->dims[at] != part->dims[v] || j->counted[at].variable >= 0))
            at++;
        if (at == OPQ_LOOP_MAX)
            return false;
        out->rank += at == out->rank;
        j->role[at] = role;
        j->out->dims[at] = part->dims[v];
        j->counted[at] = (counted){v, 1};
    }
    return true;
}

static uint8_t joined_variable(const joiner *j, int variable)
{
    int at = 0;
    while (at < OPQ_LOOP_MAX - 1 && j->counted[at].variable != variable)
        at++;
    return (uint8_t)at;
}

/* ---- variables of a nested tree */

static bool counts_rows(const opq_stmt *stmt) { return stmt->op == OPQ_STMT_loop && stmt->role == OPQ_LOOP_parallel; }

/* That the loops from a statement on go through. */
static int64_t rows_inside(const opq_bound *part, int from)
{
    int64_t rows = 1;
    for (int i = from; i < part->loops.stmt_count; i++)
        rows *= counts_rows(&part->loops.stmts[i]) ? part->dims[part->loops.stmts[i].variable] : 1;
    return rows;
}

/* Between the cuts that there are, if one is a multiple of the next. */
static bool add_cut(joiner *j, int64_t cut)
{
    int at = 0;
    while (j->cuts[at] > cut)
        at++;
    if (j->cuts[at] == cut)
        return true;
    if (j->rows_rank == OPQ_LOOP_MAX - FIXED || cut % j->cuts[at] != 0 || (at > 0 && j->cuts[at - 1] % cut != 0))
        return false;
    memmove(&j->cuts[at + 1], &j->cuts[at], (size_t)(++j->rows_rank - at) * sizeof *j->cuts);
    j->cuts[at] = cut;
    return true;
}

static bool find_rows(joiner *j, const opq_bound *part, bool product)
{
    int chains = 0, columns = 0;
    for (int i = 0; i < part->loops.stmt_count; i++) {
        const opq_stmt *loop = &part->loops.stmts[i];
        if (loop->op != OPQ_STMT_loop)
            continue;
        bool chain = opq_loop_contracts((opq_loop_role)loop->role);
        chains += chain;
        columns += !chain && !counts_rows(loop);
        if ((product && (chains > 1 || columns > 1)) /* matrices that are windows */ ||
            (counts_rows(loop) && !add_cut(j, rows_inside(part, i))))
            return false;
    }
    return true;
}

static int fixed_of(int which, const opq_stmt *loop)
{
    bool chain = opq_loop_contracts((opq_loop_role)loop->role);
    return which == 0 && chain ? INNER : which == 2 && !chain ? LAST : COLUMN;
}

static void cut_variables(joiner *j, const opq_bound *part, int which)
{
    begin_part(j, part);
    for (int i = 0; i < part->loops.stmt_count; i++) {
        const opq_stmt *loop = &part->loops.stmts[i];
        if (loop->op != OPQ_STMT_loop)
            continue;
        int at = j->rows_rank + fixed_of(which, loop);
        int64_t inside = rows_inside(part, i + 1), extent = part->dims[loop->variable];
        if (!counts_rows(loop)) {
            j->counted[at] = (counted){loop->variable, 1};
            j->out->dims[at] = extent;
            continue;
        }
        for (int l = 0; l < j->rows_rank; l++)
            if (j->cuts[l + 1] >= inside && j->cuts[l + 1] < inside * extent)
                j->counted[l] = (counted){loop->variable, j->cuts[l + 1] / inside};
    }
}

/* ---- arguments */

static int find_kept(const joiner *j, int buffer)
{
    for (int i = 0; i < j->kept->count && buffer >= 0; i++)
        if (j->part->buffers[buffer] == j->kept->ids[i])
            return i;
    return -1;
}

/* The same for the same id. */
static int16_t take_buffer(joiner *j, int buffer)
{
    opq_bound *out = j->out;
    int32_t id = j->part->buffers[buffer];
    uint8_t use = find_kept(j, buffer) < 0 ? j->part->loops.written[buffer] : OPQ_BUFFER_own;
    int at = 0;
    while (at < out->loops.buffer_count && (out->buffers[at] != id || out->loops.written[at] != use))
        at++;
    out->buffers[at] = id;
    out->loops.written[at] = use;
    out->loops.buffer_count += at == out->loops.buffer_count;
    return (int16_t)at;
}

static int take_scalar(joiner *j, int64_t scalar)
{
    opq_bound *out = j->out;
    int at = 0;
    while (at < out->loops.scalar_count && out->scalars[at] != j->part->scalars[scalar])
        at++;
    out->scalars[at] = j->part->scalars[scalar];
    out->loops.scalar_count += at == out->loops.scalar_count;
    return at;
}

/* Inside a row of a nested tree, steps of one element are told from others. */
static uint8_t stride_of(const joiner *j, const opq_access *from, int variable, int64_t stride)
{
    int of = j->counted[variable].variable;
    if (!j->nested)
        return of < 0 ? OPQ_STRIDE_zero : from->stride[of];
    return stride == 0 ? OPQ_STRIDE_zero : stride == 1 && variable >= j->rows_rank ? OPQ_STRIDE_one : OPQ_STRIDE_any;
}

static int16_t take_access(joiner *j, int access)
{
    opq_loops *out = &j->out->loops;
    const opq_loops *k = &j->part->loops;
    const opq_access *from = &k->accesses[access];
    if (j->access[access] >= 0)
        return j->access[access];
    int at = out->access_count++;
    const int64_t *given = j->part->dims + opq_dims_of(k->rank, access);
    int64_t *dims = j->out->dims + opq_dims_of(out->rank, at);
    j->accesses[at] = (opq_access){.buffer = -1, .dtype = from->dtype};
    if (from->buffer >= 0)
        j->accesses[at].buffer = take_buffer(j, from->buffer);
    dims[0] = given[0];
    for (int l = 0; l < out->rank; l++) {
        const counted *c = &j->counted[l];
        int64_t stride = c->variable < 0 ? 0 : opq_loops_stride(k, j->part->dims, access, c->variable) * c->turns;
        j->accesses[at].stride[l] = stride_of(j, from, l, stride);
        dims[1 + l] = stride;
    }
    memcpy(&dims[1 + out->rank], &given[1 + k->rank], 2 * sizeof *dims);
    return j->access[access] = (int16_t)at;
}

/* ---- statements */

/* A local for a row; the value itself, where the next tree reads one element of each row. */
static bool copy_kept(joiner *j, int i, int kept)
{
    const opq_stmt *stmt = &j->part->loops.stmts[i];
    bool local = kept < OPQ_KEPT_ROWS, stores = stmt->op == OPQ_STMT_store;
    if (!local && stores)
        j->at[kept] = j->stmt[stmt->operand[0]];
    if (!local) {
        j->stmt[i] = j->at[kept];
        return stores || j->at[kept] >= 0;
    }
    opq_stmt moved = opq_stmt_make(stores ? OPQ_STMT_keep : OPQ_STMT_kept);
    moved.dtype = stmt->dtype;
    moved.access = j->at[kept];
    if (stores)
        moved.operand[0] = j->stmt[stmt->operand[0]];
    j->stmt[i] = opq_loops_push(&j->out->loops, &moved);
    return true;
}

/* Of loops over rows only the bodies are left. */
static opq_rewrite choose_nested(void *data, int i)
{
    joiner *j = data;
    const opq_stmt *stmt = &j->part->loops.stmts[i];
    if (stmt->op == OPQ_STMT_loop)
        return counts_rows(stmt) ? OPQ_REWRITE_body : OPQ_REWRITE_copy;
    int kept = opq_stmt_walks(stmt) ? find_kept(j, j->part->loops.accesses[stmt->access].buffer) : -1;
    return kept < 0 ? OPQ_REWRITE_copy : copy_kept(j, i, kept) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
}

static void finish(void *data, int i, opq_stmt *to)
{
    joiner *j = data;
    const opq_stmt *from = &j->part->loops.stmts[i];
    to->variables = 0;
    for (int v = 0; v < j->part->loops.rank; v++) /* of a local */
        if (from->variables >> v & 1)
            to->variables |= (uint16_t)(1u << joined_variable(j, v));
    if (to->op == OPQ_STMT_loop)
        to->variable = joined_variable(j, from->variable);
    else if (to->op == OPQ_OP_scalar)
        to->value.i = take_scalar(j, from->value.i);
    else if (opq_stmt_walks(to))
        to->access = take_access(j, from->access);
}

static bool copy_part(joiner *j)
{
    const opq_loops *k = &j->part->loops;
    const opq_rewriter rewriter = {k, &j->out->loops, j->stmt, j, j->nested ? choose_nested : NULL, finish};
    memset(j->access, 0xff, (size_t)k->access_count * sizeof *j->access);
    for (int a = 0; a < k->access_count && !j->nested; a++)
        take_access(j, a);
    return opq_loops_rewrite(&rewriter, 0, k->stmt_count);
}

/* ---- the tree */

static opq_status make_room(joiner *j, const opq_bound *parts, int count, opq_arena *arena)
{
    int stmts = OPQ_LOOP_MAX + OPQ_KEPT_ROWS, accesses = 0, buffers = 0, scalars = 0;
    for (int i = 0; i < count; i++) {
        stmts += parts[i].loops.stmt_count;
        accesses += parts[i].loops.access_count;
        buffers += parts[i].loops.buffer_count;
        scalars += parts[i].loops.scalar_count;
    }
    if (stmts > INT16_MAX || accesses > OPQ_ACCESS_MAX || buffers > OPQ_BUFFER_MAX || scalars > OPQ_SCALAR_MAX)
        return too_many("arguments");
    opq_bound *out = j->out;
    j->stmt = opq_arena_alloc(arena, (size_t)stmts * sizeof *j->stmt);
    j->access = opq_arena_alloc(arena, ((size_t)accesses + 1) * sizeof *j->access);
    j->accesses = opq_arena_alloc(arena, ((size_t)accesses + 1) * sizeof *j->accesses);
    out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(OPQ_LOOP_MAX, accesses) * sizeof *out->dims);
    out->buffers = opq_arena_alloc(arena, ((size_t)buffers + 1) * sizeof *out->buffers);
    out->scalars = opq_arena_alloc(arena, ((size_t)scalars + 1) * sizeof *out->scalars);
    out->loops = (opq_loops){.name = parts[0].loops.name, .accesses = j->accesses};
    out->loops.stmts = opq_arena_alloc(arena, (size_t)stmts * sizeof *out->loops.stmts);
    out->loops.written = opq_arena_alloc(arena, (size_t)buffers + 1);
    if (!j->stmt || !j->access || !j->accesses || !out->dims || !out->buffers || !out->scalars || !out->loops.stmts ||
        !out->loops.written)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while joining loops");
    return OPQ_OK;
}

static void open_rows(joiner *j)
{
    opq_stmt loop = opq_stmt_make(OPQ_STMT_loop), local = opq_stmt_make(OPQ_STMT_local);
    loop.role = OPQ_LOOP_parallel;
    for (int l = 0; l < j->rows_rank; l++) {
        loop.variable = (uint8_t)l;
        opq_loops_push(&j->out->loops, &loop);
        j->out->dims[l] = j->cuts[l] / j->cuts[l + 1];
    }
    local.dtype = OPQ_f32;
    local.variables = (uint16_t)(1u << (j->rows_rank + COLUMN));
    for (int i = 0; i < OPQ_KEPT_ROWS; i++)
        j->at[i] = opq_loops_push(&j->out->loops, &local);
}

static opq_status join_nested(joiner *j, const opq_bound parts[3])
{
    opq_loops *out = &j->out->loops;
    j->cuts[0] = 1;
    for (int which = 0; which < 3; which++)
        if (!find_rows(j, &parts[which], which != 1) || rows_inside(&parts[which], 0) != rows_inside(&parts[0], 0))
            return opq_fail(OPQ_UNSUPPORTED, "loops: rows that are counted in several ways");
    if (j->rows_rank == 0)
        j->cuts[++j->rows_rank] = 1;
    out->rank = j->rows_rank + FIXED;
    memset(j->at, 0xff, sizeof j->at);
    open_rows(j);
    for (int which = 0; which < 3; which++) {
        cut_variables(j, &parts[which], which);
        if (!copy_part(j))
            return opq_fail(OPQ_UNSUPPORTED, "loops: a kept value is read before it is there");
    }
    for (int l = 0; l < j->rows_rank; l++)
        out->stmts[l].end = out->stmt_count;
    return OPQ_OK;
}

static opq_status join_phases(joiner *j, const opq_bound *parts, int count)
{
    for (int i = 0; i < count; i++)
        if (!take_variables(j, &parts[i]))
            return too_many("loops");
    for (int i = 0; i < count; i++) {
        (void)take_variables(j, &parts[i]); /* they are all there, and found again */
        (void)copy_part(j);
    }
    return OPQ_OK;
}

opq_status opq_loops_join(const opq_bound *parts, int count, const opq_kept *kept, bool nested, opq_arena *arena,
                          opq_bound *out_joined)
{
    joiner j = {.kept = kept, .out = out_joined, .nested = nested};
    OPQ_TRY(make_room(&j, parts, count, arena));
    return nested ? join_nested(&j, parts) : join_phases(&j, parts, count);
}
