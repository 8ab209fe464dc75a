/* Text to loops, one line at a time. Anyone may write the text, so nothing is trusted: every number must be one that the kernel can have
 * and name something that was made before. The rest is opq_loops_verify's.
 */
#include "fusion/loop.h"
#include "graph/reader.h"

#include <string.h>

enum { STMTS_MAX = 1 << 14, DEPTH_MAX = OPQ_VARIABLE_MAX };

typedef struct parser {
    opq_reader r;
    opq_loops *out;
    opq_access *accesses;
    uint8_t buffer_dtype[OPQ_BUFFER_MAX];
    int open[DEPTH_MAX], depth;
    uint32_t running;          /* variables of the open loops */
    bool used[OPQ_ACCESS_MAX]; /* accesses that a statement has */
} parser;

static opq_status fail(const parser *p, const char *what)
{
    return opq_reader_fail(&p->r, OPQ_INVALID, p->r.at, "%s", what);
}

static opq_status line_end(parser *p)
{
    const char *dropped;
    return opq_reader_line_end(&p->r, &dropped);
}

static opq_status number_below(parser *p, int limit, int *out_number)
{
    int64_t number = 0;
    OPQ_TRY(opq_reader_int(&p->r, &number));
    if (number < 0 || number >= limit)
        return fail(p, "a number that is too large");
    *out_number = (int)number;
    return OPQ_OK;
}

static bool is_name(const char *name, const char *word, size_t length)
{
    return strlen(name) == length && memcmp(name, word, length) == 0;
}

static opq_status read_dtype(parser *p, uint8_t *out_dtype)
{
    const char *word;
    size_t length;
    opq_dtype dtype;
    OPQ_TRY(opq_reader_word(&p->r, &word, &length));
    if (!opq_dtype_find(word, length, &dtype))
        return fail(p, "no such dtype");
    *out_dtype = (uint8_t)dtype;
    return OPQ_OK;
}

/* A schedule's loops have more. */
static opq_status read_variable(parser *p, int *out_variable)
{
    opq_reader_blanks(&p->r);
    for (int l = 0; l < p->out->rank + (p->out->scheduled ? OPQ_BLOCKS_MAX : 0); l++)
        if (opq_reader_peek(&p->r) == opq_loop_letter(l)) {
            *out_variable = l;
            p->r.at++;
            return OPQ_OK;
        }
    return fail(p, "a variable of the kernel expected");
}

static opq_status read_value(parser *p, int16_t *out_stmt)
{
    int number = 0;
    OPQ_TRY(opq_reader_want(&p->r, "%"));
    OPQ_TRY(number_below(p, p->out->stmt_count, &number));
    *out_stmt = (int16_t)number;
    return OPQ_OK;
}

/* d<number>, which has to be `expected`. */
static opq_status want_argument(parser *p, int expected)
{
    int number = 0;
    OPQ_TRY(opq_reader_want(&p->r, "d"));
    OPQ_TRY(number_below(p, opq_dims_of(OPQ_LOOP_MAX, OPQ_ACCESS_MAX), &number));
    return number == expected ? OPQ_OK : fail(p, "another argument expected");
}

/* ---- accesses */

static opq_status read_running(parser *p, int *out_variable)
{
    OPQ_TRY(read_variable(p, out_variable));
    if (*out_variable >= p->out->rank)
        return fail(p, "an access does not walk blocks");
    return p->running >> *out_variable & 1 ? OPQ_OK : fail(p, "no loop of this variable is around");
}

/* One of "i", "i*d4" or "%3*d5 < d6" behind " + ". */
static opq_status read_term(parser *p, opq_stmt *stmt, opq_access *access, int dims, bool at)
{
    if (at && opq_reader_take(&p->r, "%")) {
        p->r.at--;
        OPQ_TRY(read_value(p, &stmt->operand[0]));
        OPQ_TRY(opq_reader_want(&p->r, "*"));
        OPQ_TRY(want_argument(p, dims + 1 + p->out->rank));
        OPQ_TRY(opq_reader_want(&p->r, "<"));
        return want_argument(p, dims + 2 + p->out->rank);
    }
    int variable = 0;
    OPQ_TRY(read_running(p, &variable));
    access->stride[variable] = OPQ_STRIDE_one;
    if (!opq_reader_take(&p->r, "*"))
        return OPQ_OK;
    int baked = OPQ_STRIDE_any;
    if (opq_reader_peek(&p->r) != 'd') {
        OPQ_TRY(number_below(p, OPQ_STRIDE_any, &baked));
        access->stride[variable] = (uint8_t)baked;
        return baked > OPQ_STRIDE_one ? OPQ_OK : fail(p, "a stride of 0 or 1 is written otherwise");
    }
    access->stride[variable] = OPQ_STRIDE_any;
    return want_argument(p, dims + 1 + variable);
}

/* "j" behind " - ". */
static opq_status read_back(parser *p, opq_access *access)
{
    int variable = 0;
    OPQ_TRY(read_running(p, &variable));
    access->stride[variable] = OPQ_STRIDE_back;
    return OPQ_OK;
}

static opq_status read_access(parser *p, opq_stmt *stmt)
{
    opq_access access = {.buffer = -1, .dtype = OPQ_i64};
    bool at = opq_op_checks(stmt->op);
    int dims = 0, buffer = -1, first = opq_dims_of(p->out->rank, 0), width = opq_dims_of(p->out->rank, 1) - first;
    if (opq_reader_take(&p->r, "b")) {
        OPQ_TRY(number_below(p, p->out->buffer_count, &buffer));
        access.dtype = p->buffer_dtype[buffer];
    }
    access.buffer = (int16_t)buffer;
    OPQ_TRY(opq_reader_want(&p->r, "["));
    OPQ_TRY(opq_reader_want(&p->r, "d"));
    OPQ_TRY(number_below(p, opq_dims_of(p->out->rank, OPQ_ACCESS_MAX), &dims));
    if (dims < first || (dims - first) % width != 0)
        return fail(p, "no access has its offset there");
    stmt->access = (int16_t)((dims - first) / width);
    for (;;) {
        if (opq_reader_take(&p->r, "+"))
            OPQ_TRY(read_term(p, stmt, &access, dims, at));
        else if (opq_reader_take(&p->r, "-"))
            OPQ_TRY(read_back(p, &access));
        else
            break;
    }
    if (stmt->op == OPQ_STMT_inside) {
        OPQ_TRY(opq_reader_want(&p->r, "<"));
        OPQ_TRY(want_argument(p, dims + 2 + p->out->rank));
    }
    OPQ_TRY(opq_reader_want(&p->r, "]"));
    if (at && stmt->operand[0] < 0)
        return fail(p, "an index expected");
    const opq_access *other = &p->accesses[stmt->access];
    if (p->used[stmt->access] && (other->buffer != access.buffer || other->dtype != access.dtype ||
                                  memcmp(other->stride, access.stride, sizeof access.stride) != 0))
        return fail(p, "these arguments are those of another access");
    p->used[stmt->access] = true;
    p->accesses[stmt->access] = access;
    if (stmt->access >= p->out->access_count)
        p->out->access_count = stmt->access + 1;
    return OPQ_OK;
}

/* e1[i, j]: `number` is the local's. */
static opq_status read_local(parser *p, int *out_number, uint16_t *out_variables)
{
    OPQ_TRY(opq_reader_want(&p->r, "e"));
    OPQ_TRY(number_below(p, p->out->stmt_count + 1, out_number));
    OPQ_TRY(opq_reader_want(&p->r, "["));
    *out_variables = 0;
    do {
        int variable = 0;
        OPQ_TRY(read_variable(p, &variable));
        if (variable >= p->out->rank)
            return fail(p, "a local has no blocks");
        *out_variables |= (uint16_t)(1u << variable);
    } while (opq_reader_take(&p->r, ","));
    return opq_reader_want(&p->r, "]");
}

/* ---- statements */

static opq_status push(parser *p, opq_stmt **out_stmt)
{
    if (p->out->stmt_count == STMTS_MAX)
        return fail(p, "too many statements");
    *out_stmt = &p->out->stmts[p->out->stmt_count];
    **out_stmt = (opq_stmt){.operand = {-1, -1, -1}, .access = -1, .node = -1};
    return OPQ_OK;
}

static opq_status read_op(parser *p, bool has_value, opq_stmt *stmt)
{
    const char *word;
    size_t length;
    opq_op op;
    OPQ_TRY(opq_reader_word(&p->r, &word, &length));
    for (int i = OPQ_STMT_load; i <= OPQ_STMT_nonzero; i++)
        if (is_name(opq_stmt_name(i), word, length)) {
            stmt->op = (uint16_t)i;
            return opq_stmt_gives(i) == has_value ? OPQ_OK
                                                  : fail(p, has_value ? "this gives no value" : "this gives a value");
        }
    if (!opq_op_find(word, length, &op) || !has_value)
        return fail(p, "no such statement");
    stmt->op = (uint16_t)op;
    return OPQ_OK;
}

static opq_status read_constant(parser *p, opq_stmt *stmt)
{
    opq_class class_ = stmt->op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)stmt->op)->class_ : OPQ_CLASS_COUNT;
    int slot = 0;
    uint8_t narrow = 0;
    if (class_ == OPQ_CLASS_CONST)
        return opq_reader_number(&p->r, (opq_dtype)stmt->dtype, &stmt->value);
    if (class_ == OPQ_CLASS_SCALAR) {
        OPQ_TRY(opq_reader_want(&p->r, "s"));
        OPQ_TRY(number_below(p, OPQ_SCALAR_MAX, &slot));
        stmt->value.i = slot;
        if (slot >= p->out->scalar_count)
            p->out->scalar_count = slot + 1;
    } else if (class_ == OPQ_CLASS_CAST && opq_reader_take(&p->r, "to")) {
        OPQ_TRY(read_dtype(p, &narrow));
        stmt->value.i = narrow;
    } else if (class_ == OPQ_CLASS_SCAN) {
        narrow = stmt->dtype;
        if (opq_reader_take(&p->r, "in"))
            OPQ_TRY(read_dtype(p, &narrow));
        stmt->value.i = narrow;
    }
    return OPQ_OK;
}

static opq_status read_memory(parser *p, opq_stmt *stmt)
{
    if (opq_reader_peek(&p->r) != 'e')
        return stmt->op >= OPQ_OP_COUNT && stmt->op != OPQ_STMT_nonzero ? read_access(p, stmt) : OPQ_OK;
    int local = 0;
    uint16_t named;
    OPQ_TRY(read_local(p, &local, &named));
    if (local >= p->out->stmt_count || p->out->stmts[local].op != OPQ_STMT_local ||
        p->out->stmts[local].variables != named)
        return fail(p, "no such local");
    if (stmt->op != OPQ_STMT_load && stmt->op != OPQ_STMT_store)
        return fail(p, "locals are loaded and stored");
    stmt->op = stmt->op == OPQ_STMT_load ? OPQ_STMT_kept : OPQ_STMT_keep;
    stmt->access = (int16_t)local;
    return OPQ_OK;
}

/* Behind "carry ", "fold ", "halves " or "at ". */
static opq_status read_carried(parser *p, int op, opq_stmt *stmt)
{
    const char *word;
    size_t length;
    opq_op folds = OPQ_OP_COUNT;
    if (op == OPQ_STMT_carry) {
        OPQ_TRY(opq_reader_word(&p->r, &word, &length));
        if (!opq_op_find(word, length, &folds) || opq_op_contracts(folds) ||
            !(opq_op_reduces(folds) || opq_op_scans(folds)))
            return fail(p, "an op that folds expected");
        stmt->value.i = folds;
    }
    stmt->op = (uint16_t)op;
    OPQ_TRY(read_dtype(p, &stmt->dtype));
    opq_reader_blanks(&p->r);
    int by = 0;
    if (op != OPQ_STMT_carry)
        OPQ_TRY(read_value(p, &stmt->access));
    else if (opq_reader_take(&p->r, "by "))
        OPQ_TRY(number_below(p, UINT16_MAX, &by));
    stmt->by = (uint16_t)by;
    if (op == OPQ_STMT_fold) {
        OPQ_TRY(opq_reader_want(&p->r, ","));
        opq_reader_blanks(&p->r);
        OPQ_TRY(read_value(p, &stmt->operand[0]));
    }
    p->out->stmt_count++;
    return line_end(p);
}

static opq_status read_stmt(parser *p)
{
    opq_stmt *stmt = NULL;
    int number = 0, count;
    OPQ_TRY(push(p, &stmt));
    bool has_value = opq_reader_take(&p->r, "%");
    if (has_value) {
        OPQ_TRY(number_below(p, STMTS_MAX, &number));
        if (number != p->out->stmt_count)
            return fail(p, "values are numbered by their statements");
        OPQ_TRY(opq_reader_want(&p->r, "="));
    }
    if (!has_value && opq_reader_take(&p->r, "fold "))
        return read_carried(p, OPQ_STMT_fold, stmt);
    if (has_value && opq_reader_take(&p->r, "carry "))
        return read_carried(p, OPQ_STMT_carry, stmt);
    if (has_value && opq_reader_take(&p->r, "halves "))
        return read_carried(p, OPQ_STMT_halves, stmt);
    if (has_value && opq_reader_take(&p->r, "at "))
        return read_carried(p, OPQ_STMT_at, stmt);
    OPQ_TRY(read_op(p, has_value, stmt));
    OPQ_TRY(read_dtype(p, &stmt->dtype));
    opq_reader_blanks(&p->r);
    OPQ_TRY(read_memory(p, stmt));
    bool at = stmt->operand[0] >= 0;
    bool more = stmt->access < 0 || opq_reader_take(&p->r, ",");
    for (count = at; more && count < 3; count++) {
        opq_reader_blanks(&p->r);
        if (opq_reader_peek(&p->r) != '%')
            break;
        OPQ_TRY(read_value(p, &stmt->operand[count]));
        more = opq_reader_take(&p->r, ",");
    }
    OPQ_TRY(read_constant(p, stmt));
    p->out->stmt_count++;
    return line_end(p);
}

/* ---- loops */

static opq_status open_loop(parser *p, int role)
{
    opq_stmt *loop = NULL;
    int variable = 0, within = -1, along = -1, turns = 0, by = 0;
    OPQ_TRY(push(p, &loop));
    OPQ_TRY(read_variable(p, &variable));
    if (p->depth == DEPTH_MAX || p->running >> variable & 1)
        return fail(p, "this variable has a loop already");
    if (variable >= p->out->rank) {
        OPQ_TRY(opq_reader_want(&p->r, "by"));
        opq_reader_blanks(&p->r);
        OPQ_TRY(number_below(p, OPQ_CHUNK + 1, &by));
    } else {
        OPQ_TRY(opq_reader_want(&p->r, "<"));
        opq_reader_blanks(&p->r);
        bool fixed = role == OPQ_LOOP_unroll || opq_reader_peek(&p->r) != 'd';
        OPQ_TRY(fixed ? number_below(p, OPQ_UNROLL_MAX + 1, &turns) : want_argument(p, variable));
    }
    if (opq_reader_take(&p->r, "along"))
        OPQ_TRY(read_variable(p, &along));
    if (opq_reader_take(&p->r, "in"))
        OPQ_TRY(read_variable(p, &within));
    OPQ_TRY(opq_reader_want(&p->r, "{"));
    loop->op = OPQ_STMT_loop;
    loop->within = (uint8_t)(within + 1);
    loop->role = (uint8_t)role;
    loop->value.i = turns;
    loop->by = (uint16_t)by;
    loop->variables = (uint16_t)(along >= 0 ? 1u << along : 0);
    loop->variable = (uint8_t)variable;
    p->running |= 1u << variable;
    p->open[p->depth++] = p->out->stmt_count++;
    return line_end(p);
}

static void close_loop(parser *p)
{
    opq_stmt *loop = &p->out->stmts[p->open[--p->depth]];
    loop->end = p->out->stmt_count;
    p->running &= ~(1u << loop->variable);
}

static opq_status read_local_line(parser *p)
{
    opq_stmt *local = NULL;
    int number = 0;
    OPQ_TRY(push(p, &local));
    local->op = OPQ_STMT_local;
    OPQ_TRY(read_dtype(p, &local->dtype));
    OPQ_TRY(read_local(p, &number, &local->variables));
    if (number != p->out->stmt_count)
        return fail(p, "a local is numbered by its statement");
    p->out->stmt_count++;
    return line_end(p);
}

/* A loop, a local or a statement, by its first word. */
static opq_status read_line(parser *p)
{
    size_t start = p->r.at, length;
    const char *word;
    if (opq_reader_peek(&p->r) == '%')
        return read_stmt(p);
    OPQ_TRY(opq_reader_word(&p->r, &word, &length));
    for (int role = OPQ_LOOP_parallel; role <= OPQ_LOOP_pairs16; role++)
        if (is_name(opq_loop_role_name((opq_loop_role)role), word, length))
            return open_loop(p, role);
    if (is_name("local", word, length))
        return read_local_line(p);
    p->r.at = start;
    return read_stmt(p);
}

static opq_status read_body(parser *p)
{
    for (;;) {
        opq_reader_blanks(&p->r);
        if (!opq_reader_take(&p->r, "}")) {
            OPQ_TRY(read_line(p));
            continue;
        }
        OPQ_TRY(line_end(p));
        if (p->depth == 0)
            return OPQ_OK;
        close_loop(p);
    }
}

static opq_status read_head(parser *p, char *name)
{
    p->out->scheduled = opq_reader_take(&p->r, "schedule");
    if (!p->out->scheduled)
        OPQ_TRY(opq_reader_want(&p->r, "kernel"));
    OPQ_TRY(opq_reader_want(&p->r, "@"));
    OPQ_TRY(opq_reader_name(&p->r, name));
    OPQ_TRY(opq_reader_want(&p->r, "("));
    while (!opq_reader_take(&p->r, ")")) {
        int number = 0, buffer = p->out->buffer_count;
        if (buffer > 0)
            OPQ_TRY(opq_reader_want(&p->r, ","));
        OPQ_TRY(opq_reader_want(&p->r, "b"));
        OPQ_TRY(number_below(p, OPQ_BUFFER_MAX, &number));
        if (number != buffer)
            return fail(p, "buffers are numbered in order");
        OPQ_TRY(opq_reader_want(&p->r, ":"));
        p->out->written[buffer] = opq_reader_take(&p->r, "out ")   ? OPQ_BUFFER_out
                                  : opq_reader_take(&p->r, "own ") ? OPQ_BUFFER_own
                                                                   : OPQ_BUFFER_in;
        OPQ_TRY(read_dtype(p, &p->buffer_dtype[buffer]));
        p->out->buffer_count++;
    }
    OPQ_TRY(opq_reader_want(&p->r, "over"));
    do {
        opq_reader_blanks(&p->r);
        if (p->out->rank == OPQ_LOOP_MAX || opq_reader_peek(&p->r) != opq_loop_letter(p->out->rank))
            return fail(p, "variables are i, j, k, ..");
        p->r.at++;
        p->out->rank++;
    } while (opq_reader_take(&p->r, ","));
    p->out->by_rows = opq_reader_take(&p->r, "by rows");
    OPQ_TRY(opq_reader_want(&p->r, "{"));
    return line_end(p);
}

opq_status opq_loops_parse(const char *text, size_t length, opq_arena *arena, opq_loops *out_loops)
{
    parser *p = opq_arena_alloc(arena, sizeof *p);
    char *name = opq_arena_alloc(arena, 256);
    *out_loops = (opq_loops){.name = name,
                             .written = opq_arena_alloc(arena, OPQ_BUFFER_MAX),
                             .stmts = opq_arena_alloc(arena, STMTS_MAX * sizeof *out_loops->stmts)};
    opq_access *accesses = opq_arena_alloc(arena, OPQ_ACCESS_MAX * sizeof *accesses);
    if (!p || !name || !out_loops->written || !out_loops->stmts || !accesses)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while reading loops");
    memset(p, 0, sizeof *p);
    memset(accesses, 0, OPQ_ACCESS_MAX * sizeof *accesses);
    for (int a = 0; a < OPQ_ACCESS_MAX; a++) /* numbers that nothing uses are of no buffer */
        accesses[a].buffer = -1;
    p->r = (opq_reader){.text = text, .length = length, .arena = arena};
    p->out = out_loops;
    p->accesses = accesses;
    out_loops->accesses = accesses;
    OPQ_TRY(read_head(p, name));
    OPQ_TRY(read_body(p));
    return p->r.at == length ? opq_loops_verify(out_loops) : fail(p, "one kernel, and nothing behind it");
}
