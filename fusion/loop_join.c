/* Three trees become one: a product's rows are made, walked and multiplied again, all of a row before the next.
 *
 *   parallel i { vector n { chain k { .. } store scores } }         parallel i {
 *   parallel i { lanes j { load scores; .. } .. store weights }       local e0[j], e1[j]
 *   parallel i { vector n { chain k { load weights; .. } .. } }       vector j { chain k { .. } store e0[j] }
 *                                                                     lanes j { load e0[j]; .. } .. store e1[j]
 *                                                                     vector l { chain j { load e1[j]; .. } .. }
 *                                                                   }
 * What is one loop over rows here may be two there, in the same order of rows: the loops of the result are cut so finely that each of
 * theirs is some of them. What one tree makes for the next is kept: a row of it in a local, an element of it as a value.
 */
#include "fusion/loop_rewrite.h"

#include <string.h>

enum { PARTS = 3, COLUMN = 0, INNER = 1, LAST = 2, FIXED = 3 };

typedef struct joiner {
    const opq_bound *part;
    int which;
    const opq_kept *kept;
    opq_bound *out;
    opq_access *accesses;
    int cut_count;
    int64_t cuts[OPQ_LOOP_MAX];               /* ascending: rows of one turn of each loop, and of all */
    int64_t rows_inside[PARTS][OPQ_LOOP_MAX]; /* per variable of a part: rows of one turn, 0: it counts no rows */
    int inner[PARTS][OPQ_LOOP_MAX];           /* else which of the fixed ones it is */
    int16_t *stmt, *access;                   /* per statement and access of the part: in the result */
    int16_t at[OPQ_KEPT_MAX];                 /* per kept one: its local or value */
} joiner;

static int units(const joiner *j) { return j->cut_count > 1 ? j->cut_count - 1 : 1; }

/* Loops of the result that count rows come first, the outermost before the others. */
static int64_t rows_of_turn(const joiner *j, int variable) { return j->cuts[units(j) - 1 - variable]; }

static int64_t extent_of(const joiner *j, int variable)
{
    return j->cut_count > 1 ? j->cuts[units(j) - variable] / rows_of_turn(j, variable) : 1;
}

/* ---- loops */

static bool add_cut(joiner *j, int64_t cut)
{
    int at = 0;
    while (at < j->cut_count && j->cuts[at] < cut)
        at++;
    if (at < j->cut_count && j->cuts[at] == cut)
        return true;
    if (j->cut_count > OPQ_LOOP_MAX - FIXED || (at > 0 && cut % j->cuts[at - 1] != 0) ||
        (at < j->cut_count && j->cuts[at] % cut != 0))
        return false;
    memmove(&j->cuts[at + 1], &j->cuts[at], (size_t)(j->cut_count - at) * sizeof *j->cuts);
    j->cuts[at] = cut;
    j->cut_count++;
    return true;
}

/* Parallel loops count rows. */
static bool find_loops(joiner *j, const opq_bound *part, int which, int64_t *out_rows)
{
    int nest[OPQ_LOOP_MAX], depth = 0, chains = 0, vectors = 0;
    for (int i = 0; i < part->loops.stmt_count; i++) {
        const opq_stmt *loop = &part->loops.stmts[i];
        if (loop->op != OPQ_STMT_loop)
            continue;
        bool chain = loop->role == OPQ_LOOP_chain;
        if (loop->role == OPQ_LOOP_pairs) /* of what stays in f32 between the trees */
            return false;
        chains += chain;
        vectors += loop->role == OPQ_LOOP_vector;
        if (which != 1 && (chains > 1 || vectors > 1)) /* matrices that are windows */
            return false;
        if (loop->role == OPQ_LOOP_parallel)
            nest[depth++] = loop->variable;
        else
            j->inner[which][loop->variable] = which == 0            ? (chain ? INNER : COLUMN)
                                              : chain || which == 1 ? COLUMN
                                                                    : LAST;
    }
    *out_rows = 1;
    while (depth-- > 0) {
        j->rows_inside[which][nest[depth]] = *out_rows;
        *out_rows *= part->dims[nest[depth]];
        if (!add_cut(j, *out_rows))
            return false;
    }
    return true;
}

/* ---- arguments */

int opq_bound_take_buffer(opq_bound *to, const opq_bound *from, int buffer)
{
    int32_t id = from->buffers[buffer];
    uint8_t written = from->loops.written[buffer];
    for (int i = 0; i < to->loops.buffer_count; i++)
        if (to->buffers[i] == id && to->loops.written[i] == written)
            return i;
    to->buffers[to->loops.buffer_count] = id;
    to->loops.written[to->loops.buffer_count] = written;
    return to->loops.buffer_count++;
}

int opq_bound_take_scalar(opq_bound *to, const opq_bound *from, int64_t scalar)
{
    for (int i = 0; i < to->loops.scalar_count; i++)
        if (to->scalars[i] == from->scalars[scalar])
            return i;
    to->scalars[to->loops.scalar_count] = from->scalars[scalar];
    return to->loops.scalar_count++;
}

static int find_kept(const joiner *j, int access)
{
    int buffer = j->part->loops.accesses[access].buffer;
    for (int i = 0; i < j->kept->count && buffer >= 0; i++)
        if (j->part->buffers[buffer] == j->kept->ids[i])
            return i;
    return -1;
}

/* Along a variable of the result: that of the part's loop which it is a piece of. */
static int64_t joined_stride(const joiner *j, int access, int variable)
{
    const opq_loops *k = &j->part->loops;
    for (int v = 0; v < k->rank; v++) {
        int64_t rows = j->rows_inside[j->which][v];
        if (variable >= units(j)) {
            if (rows == 0 && j->inner[j->which][v] == variable - units(j))
                return opq_loops_stride(k, j->part->dims, access, v);
            continue;
        }
        int64_t turn = rows_of_turn(j, variable);
        if (rows > 0 && turn >= rows && turn < rows * j->part->dims[v])
            return opq_loops_stride(k, j->part->dims, access, v) * (turn / rows);
    }
    return 0;
}

static int16_t take_access(joiner *j, int access)
{
    opq_loops *out = &j->out->loops;
    const opq_access *from = &j->part->loops.accesses[access];
    if (j->access[access] >= 0)
        return j->access[access];
    int at = out->access_count++, rank = j->part->loops.rank;
    const int64_t *given = j->part->dims + opq_dims_of(rank, access);
    int64_t *dims = j->out->dims + opq_dims_of(out->rank, at);
    j->accesses[at] = (opq_access){.buffer = -1, .dtype = from->dtype};
    if (from->buffer >= 0)
        j->accesses[at].buffer = (int16_t)opq_bound_take_buffer(j->out, j->part, from->buffer);
    dims[0] = given[0];
    for (int l = 0; l < out->rank; l++) {
        int64_t stride = dims[1 + l] = joined_stride(j, access, l);
        bool one = stride == 1 && l >= units(j);
        j->accesses[at].stride[l] = stride == 0 ? OPQ_STRIDE_zero : one ? OPQ_STRIDE_one : OPQ_STRIDE_any;
    }
    dims[1 + out->rank] = given[1 + rank];
    dims[2 + out->rank] = given[2 + rank];
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
static opq_rewrite choose(void *data, int i)
{
    joiner *j = data;
    const opq_stmt *stmt = &j->part->loops.stmts[i];
    if (stmt->op == OPQ_STMT_loop)
        return stmt->role == OPQ_LOOP_parallel ? OPQ_REWRITE_body : OPQ_REWRITE_copy;
    int kept = opq_stmt_walks(stmt) ? find_kept(j, stmt->access) : -1;
    return kept < 0 ? OPQ_REWRITE_copy : copy_kept(j, i, kept) ? OPQ_REWRITE_drop : OPQ_REWRITE_failed;
}

static void finish(void *data, int i, opq_stmt *to)
{
    joiner *j = data;
    (void)i;
    if (to->op == OPQ_STMT_loop)
        to->variable = (uint8_t)(units(j) + j->inner[j->which][to->variable]);
    else if (to->op == OPQ_STMT_local)
        to->variables = (uint16_t)(1u << (units(j) + COLUMN));
    else if (to->op == OPQ_OP_scalar)
        to->value.i = opq_bound_take_scalar(j->out, j->part, to->value.i);
    else if (opq_stmt_walks(to))
        to->access = take_access(j, to->access);
}

static void open_rows(joiner *j)
{
    opq_stmt loop = opq_stmt_make(OPQ_STMT_loop), local = opq_stmt_make(OPQ_STMT_local);
    loop.role = OPQ_LOOP_parallel;
    for (int l = 0; l < units(j); l++) {
        loop.variable = (uint8_t)l;
        opq_loops_push(&j->out->loops, &loop);
    }
    local.dtype = OPQ_f32;
    local.variables = (uint16_t)(1u << (units(j) + COLUMN));
    for (int i = 0; i < OPQ_KEPT_ROWS; i++)
        j->at[i] = opq_loops_push(&j->out->loops, &local);
}

/* ---- the tree */

typedef struct totals {
    int stmts, accesses, buffers, scalars;
} totals;

static opq_status make_room(joiner *j, const opq_bound parts[PARTS], opq_arena *arena)
{
    totals all = {.stmts = OPQ_LOOP_MAX + OPQ_KEPT_ROWS};
    for (int which = 0; which < PARTS; which++) {
        all.stmts += parts[which].loops.stmt_count;
        all.accesses += parts[which].loops.access_count;
        all.buffers += parts[which].loops.buffer_count;
        all.scalars += parts[which].loops.scalar_count;
    }
    if (all.stmts > INT16_MAX || all.accesses > OPQ_ACCESS_MAX || all.buffers > OPQ_BUFFER_MAX ||
        all.scalars > OPQ_SCALAR_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "loops: too many arguments in one kernel");
    opq_loops *out = &j->out->loops;
    int rank = units(j) + FIXED;
    j->stmt = opq_arena_alloc(arena, (size_t)all.stmts * sizeof *j->stmt);
    j->access = opq_arena_alloc(arena, ((size_t)all.accesses + 1) * sizeof *j->access);
    j->accesses = opq_arena_alloc(arena, ((size_t)all.accesses + 1) * sizeof *j->accesses);
    j->out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(rank, all.accesses) * sizeof *j->out->dims);
    j->out->buffers = opq_arena_alloc(arena, ((size_t)all.buffers + 1) * sizeof *j->out->buffers);
    j->out->scalars = opq_arena_alloc(arena, ((size_t)all.scalars + 1) * sizeof *j->out->scalars);
    *out = (opq_loops){.name = parts[0].loops.name, .rank = rank, .accesses = j->accesses};
    out->stmts = opq_arena_alloc(arena, (size_t)all.stmts * sizeof *out->stmts);
    out->written = opq_arena_alloc(arena, (size_t)all.buffers + 1);
    if (!j->stmt || !j->access || !j->accesses || !j->out->dims || !j->out->buffers || !j->out->scalars ||
        !out->stmts || !out->written)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while joining loops");
    return OPQ_OK;
}

opq_status opq_loops_join(const opq_bound parts[PARTS], const opq_kept *kept, opq_arena *arena, opq_bound *out_joined)
{
    joiner j = {.kept = kept, .out = out_joined, .cut_count = 1, .cuts = {1}};
    int64_t rows[PARTS];
    memset(j.at, 0xff, sizeof j.at);
    for (int which = 0; which < PARTS; which++)
        if (!find_loops(&j, &parts[which], which, &rows[which]) || rows[which] != rows[0])
            return opq_fail(OPQ_UNSUPPORTED, "loops: rows that are counted in several ways");
    OPQ_TRY(make_room(&j, parts, arena));
    for (int l = 0; l < units(&j); l++)
        out_joined->dims[l] = extent_of(&j, l);
    open_rows(&j);
    for (j.which = 0; j.which < PARTS; j.which++) {
        j.part = &parts[j.which];
        memset(j.access, 0xff, (size_t)j.part->loops.access_count * sizeof *j.access);
        for (int v = 0; v < j.part->loops.rank; v++)
            if (j.rows_inside[j.which][v] == 0)
                out_joined->dims[units(&j) + j.inner[j.which][v]] = j.part->dims[v];
        const opq_rewriter rewriter = {&j.part->loops, &out_joined->loops, j.stmt, &j, choose, finish};
        if (!opq_loops_rewrite(&rewriter, 0, j.part->loops.stmt_count))
            return opq_fail(OPQ_UNSUPPORTED, "loops: a kept value is read before it is there");
    }
    for (int l = 0; l < units(&j); l++)
        out_joined->loops.stmts[l].end = out_joined->loops.stmt_count;
    return OPQ_OK;
}
