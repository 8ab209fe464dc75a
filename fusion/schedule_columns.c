/* Columns in sweeps over rows. Lanes of a strip carry what they fold down all rows, of each of which the strip reads a piece, some KiB behind the
 * last. Inside of the loops that count blocks the vector loop reads a few rows whole; what lanes carry from block to block is in a local, of as
 * many columns as stay in the first cache:
 *
 *   vector j < d1 {                        each m by 2048 {
 *     %1 = carry sum f32                     local f32 e1[j]
 *     serial k by 64 {                       vector j < d1 in m {
 *       %3 = carry sum f32                     %3 = const f32 0x0p+0
 *       serial l by 8 in k {                   store f32 e1[j], %3
 *         %5 = carry sum f32                 }
 *         serial i < d0 in l {               serial k by 64 {
 *           %7 = load ..                       local f32 e6[j]
 *           fold f32 %5, %7                    ..
 *         }                                    serial l by 8 in k {
 *         fold f32 %3, %5                        vector j < d1 in m {
 *       }                                          %12 = carry sum f32
 *       fold f32 %1, %3                            serial i < d0 in l {
 *     }                                              ..
 *     store f32 .., %1                             }
 *   }                                              %16 = load f32 e6[j]
 *                                                  %17 = add f32 %16, %12
 *                                                  store f32 e6[j], %17
 *
 * What stands in a row in one body, between these loops, is a part: a vector loop of its own. A value of one part that another needs is kept in a
 * local, or read again. The vector loop goes inside of loops over rows that fold nothing, too, which follow the folds: norms, softmax.
 */
#include "fusion/schedule_pass.h"
#include "fusion/target.h"
#include "graph/eval.h"

#include <string.h>

typedef struct scheduler {
    opq_pass pass;
    int strip;      /* the vector loop */
    int columns;    /* turns of a block of it */
    int blocks;     /* the loop that counts these, in the result */
    int *part;      /* per statement in it: the first one of its part; 0: of none */
    int *imported;  /* per statement: the last part that it was brought to */
    bool *crosses;  /* per statement: is it used in another part? */
    int16_t *local; /* of those */
    bool stores_early;
} scheduler;

/* ---- parts */

static bool counts_blocks(const opq_stmt *stmt) { return stmt->op == OPQ_STMT_loop && stmt->by > 0; }

/* Does the vector loop go inside of it? */
static bool is_outside(const opq_stmt *stmt)
{
    return counts_blocks(stmt) || (stmt->op == OPQ_STMT_loop && stmt->role == OPQ_LOOP_each);
}

static int end_of(const opq_loops *k, int i) { return k->stmts[i].op == OPQ_STMT_loop ? k->stmts[i].end : i + 1; }

static void find_parts(scheduler *s, const opq_loops *k, int from, int to)
{
    int part = 0;
    for (int i = from; i < to; i = end_of(k, i)) {
        if (is_outside(&k->stmts[i])) {
            find_parts(s, k, i + 1, k->stmts[i].end);
            part = 0;
            continue;
        }
        part = part ? part : i;
        for (int inside = i; inside < end_of(k, i); inside++)
            s->part[inside] = part;
    }
}

static bool is_elsewhere(const scheduler *s, int used, int by)
{
    return used > s->strip && s->part[used] != s->part[by];
}

static void find_crossing(scheduler *s, const opq_loops *k)
{
    for (int i = s->strip + 1; i < k->stmts[s->strip].end; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        for (int o = 0; o < 3; o++)
            if (is_elsewhere(s, stmt->operand[o], i))
                s->crosses[stmt->operand[o]] = true;
        if (stmt->op == OPQ_STMT_fold && is_elsewhere(s, stmt->access, i))
            s->crosses[stmt->access] = true;
    }
}

/* Is a part followed by others that stores? The memory may be that of something that is read. */
static bool stores_early(const scheduler *s, const opq_loops *k)
{
    for (int i = s->strip + 1; i < k->stmt_count; i++)
        if (k->stmts[i].op == OPQ_STMT_store && s->part[i] != s->part[k->stmt_count - 1])
            return true;
    return false;
}

/* Is it as well read again? */
static bool is_read_again(const scheduler *s, const opq_loops *k, int i)
{
    const opq_stmt *stmt = &k->stmts[i];
    if (stmt->op < OPQ_OP_COUNT)
        return opq_op_info_of((opq_op)stmt->op)->class_ == OPQ_CLASS_CONST ||
               opq_op_info_of((opq_op)stmt->op)->class_ == OPQ_CLASS_SCALAR;
    return stmt->op == OPQ_STMT_load && stmt->operand[0] < 0 && !s->stores_early &&
           k->written[k->accesses[stmt->access].buffer] == OPQ_BUFFER_in;
}

static bool is_kept(const scheduler *s, const opq_loops *k, int i) { return s->crosses[i] && !is_read_again(s, k, i); }

/* ---- is it done? */

/* Loops that count blocks of one loop each, others without loops inside, and nothing that tells of the first turn that failed. */
static bool may_stand(const opq_loops *k, int i)
{
    const opq_stmt *stmt = &k->stmts[i];
    if (stmt->op == OPQ_STMT_loop)
        return !opq_loop_shares_block(k, i, false) && (stmt->by || !opq_loop_has_loops(k, i)) &&
               (stmt->role == OPQ_LOOP_serial || stmt->role == OPQ_LOOP_each);
    if (stmt->op > OPQ_STMT_nonzero)
        return stmt->op == OPQ_STMT_carry || stmt->op == OPQ_STMT_fold;
    return !opq_op_checks(stmt->op) && stmt->op != OPQ_STMT_nonzero;
}

static opq_fold fold_of(const opq_stmt *carry) { return opq_op_lowering((opq_op)carry->value.i)->fold; }

/* Of a carry: is it one value, which nobody reads until all is folded? */
static bool may_be_kept(const opq_stmt *stmt)
{
    bool carry = stmt->op == OPQ_STMT_carry;
    bool plain = !carry || !(stmt->by || opq_op_scans((int)stmt->value.i) || opq_fold_is_arg(fold_of(stmt)));
    return plain && opq_dtype_kind_of((opq_dtype)stmt->dtype) != OPQ_KIND_RAW;
}

/* The strip that threads divide, of columns that are folded in blocks. -1: there is none */
static int strip_of(const opq_loops *k)
{
    int strip = 0, blocks = 0;
    while (strip < k->stmt_count && (k->stmts[strip].op != OPQ_STMT_loop || k->stmts[strip].role == OPQ_LOOP_parallel))
        strip++;
    if (!k->by_rows || strip == k->stmt_count || k->stmts[strip].role != OPQ_LOOP_vector ||
        k->stmts[strip].end != k->stmt_count)
        return -1;
    for (int i = strip + 1; i < k->stmt_count; i++) {
        if (!may_stand(k, i))
            return -1;
        blocks += counts_blocks(&k->stmts[i]);
    }
    return blocks ? strip : -1;
}

/* Columns of which all that is kept is at hand; 0: too few, or it cannot be kept. */
static int count_columns(const scheduler *s, const opq_loops *k)
{
    int bytes = 0;
    for (int i = s->strip + 1; i < k->stmt_count; i++) {
        if (!is_kept(s, k, i))
            continue;
        if (!may_be_kept(&k->stmts[i]))
            return 0;
        bytes += (int)opq_dtype_bytes((opq_dtype)k->stmts[i].dtype);
    }
    int columns = bytes ? (int)opq_trees.local_bytes / bytes / OPQ_LANES * OPQ_LANES : 0;
    return columns < opq_trees.local_turns_min ? 0 : columns < OPQ_CHUNK ? columns : OPQ_CHUNK;
}

/* ---- parts become loops */

static int16_t push_kept(scheduler *s, int i)
{
    opq_stmt kept = opq_stmt_make(OPQ_STMT_kept);
    kept.dtype = s->pass.rewriter.from->stmts[i].dtype;
    kept.access = s->local[i];
    return opq_pass_push(&s->pass, &kept, i);
}

static void push_keep(scheduler *s, int i, int16_t value)
{
    opq_stmt keep = opq_stmt_make(OPQ_STMT_keep);
    keep.dtype = s->pass.rewriter.from->stmts[i].dtype;
    keep.access = s->local[i];
    keep.operand[0] = value;
    (void)opq_pass_push(&s->pass, &keep, i);
}

/* Of what is made in a part and used in others. */
static void push_locals(scheduler *s, int part, int end)
{
    const opq_loops *k = s->pass.rewriter.from;
    for (int i = part; i < end; i++) {
        if (!is_kept(s, k, i))
            continue;
        opq_stmt local = opq_stmt_make(OPQ_STMT_local);
        local.dtype = k->stmts[i].dtype;
        local.variables = (uint16_t)(1u << k->stmts[s->strip].variable);
        s->local[i] = opq_pass_push(&s->pass, &local, i);
    }
}

/* What other parts made and this one uses. */
static void push_imports(scheduler *s, int part, int end)
{
    const opq_loops *k = s->pass.rewriter.from;
    for (int i = part; i < end; i++)
        for (int o = 0; o < 3; o++) {
            int used = k->stmts[i].operand[o];
            if (!is_elsewhere(s, used, i) || s->imported[used] == part)
                continue;
            s->imported[used] = part;
            s->pass.rewriter.stmt[used] =
                is_kept(s, k, used) ? push_kept(s, used) : opq_pass_push(&s->pass, &k->stmts[used], used);
        }
}

static void begin_carry(scheduler *s, int carry)
{
    const opq_stmt *stmt = &s->pass.rewriter.from->stmts[carry];
    opq_stmt identity = opq_stmt_make(OPQ_OP_const);
    identity.dtype = stmt->dtype;
    identity.value = opq_eval_identity(fold_of(stmt), (opq_dtype)stmt->dtype);
    push_keep(s, carry, opq_pass_push(&s->pass, &identity, carry));
}

static void fold_into(scheduler *s, int fold)
{
    const opq_stmt *stmt = &s->pass.rewriter.from->stmts[fold], *carry = &s->pass.rewriter.from->stmts[stmt->access];
    opq_stmt combine = opq_stmt_make(opq_fold_info_of(fold_of(carry))->combine);
    combine.dtype = carry->dtype;
    combine.operand[0] = push_kept(s, stmt->access);
    combine.operand[1] = s->pass.rewriter.stmt[stmt->operand[0]];
    push_keep(s, stmt->access, opq_pass_push(&s->pass, &combine, fold));
}

static void push_statement(scheduler *s, int i)
{
    const opq_loops *k = s->pass.rewriter.from;
    const opq_stmt *stmt = &k->stmts[i];
    if (stmt->op == OPQ_STMT_carry && s->crosses[i]) {
        begin_carry(s, i);
        return;
    }
    if (stmt->op == OPQ_STMT_fold && is_elsewhere(s, stmt->access, i)) {
        fold_into(s, i);
        return;
    }
    opq_rewriter copy = s->pass.rewriter;
    copy.choose = NULL;
    (void)opq_loops_rewrite(&copy, i, end_of(k, i)); /* nothing fails */
    if (is_kept(s, k, i))
        push_keep(s, i, s->pass.rewriter.stmt[i]);
}

static int16_t open_columns(scheduler *s)
{
    opq_stmt loop = s->pass.rewriter.from->stmts[s->strip];
    loop.within = (uint8_t)(1 + s->pass.rewriter.to->stmts[s->blocks].variable);
    return opq_pass_push(&s->pass, &loop, s->strip);
}

static void push_part(scheduler *s, int part)
{
    const opq_loops *k = s->pass.rewriter.from;
    int end = part;
    while (end < k->stmt_count && s->part[end] == part)
        end++;
    push_locals(s, part, end);
    int16_t loop = open_columns(s);
    push_imports(s, part, end);
    for (int i = part; i < end; i = end_of(k, i))
        push_statement(s, i);
    s->pass.rewriter.to->stmts[loop].end = s->pass.rewriter.to->stmt_count;
}

/* ---- the pass */

static void push_blocks(scheduler *s)
{
    const opq_loops *k = s->pass.rewriter.from;
    opq_stmt blocks = opq_stmt_make(OPQ_STMT_loop);
    blocks.role = OPQ_LOOP_each;
    blocks.by = (uint16_t)s->columns;
    blocks.variable = (uint8_t)k->rank;
    for (int i = s->strip; i < k->stmt_count; i++)
        if (counts_blocks(&k->stmts[i]) && k->stmts[i].variable >= blocks.variable)
            blocks.variable = (uint8_t)(k->stmts[i].variable + 1);
    s->blocks = opq_pass_push(&s->pass, &blocks, s->strip);
    (void)opq_loops_rewrite(&s->pass.rewriter, s->strip + 1, k->stmt_count);
    s->pass.rewriter.to->stmts[s->blocks].end = s->pass.rewriter.to->stmt_count;
}

static opq_rewrite choose(void *data, int i)
{
    scheduler *s = data;
    if (i == s->strip)
        push_blocks(s);
    else if (i < s->strip || !s->part[i])
        return OPQ_REWRITE_copy;
    else if (s->part[i] == i)
        push_part(s, i);
    return OPQ_REWRITE_drop;
}

static void finish(void *data, int i, opq_stmt *to)
{
    (void)to;
    opq_pass_came_from(&((scheduler *)data)->pass, i);
}

opq_status opq_schedule_columns(const opq_loops *loops, opq_arena *arena, opq_loops *out_schedule)
{
    enum { MORE = 8 }; /* statements for one, of which each may be a part that uses three values of others */
    size_t count = (size_t)loops->stmt_count + 1;
    scheduler s = {.strip = strip_of(loops), .pass.rewriter = {.data = &s, .choose = choose, .finish = finish}};
    *out_schedule = *loops;
    if (s.strip < 0)
        return OPQ_OK;
    int *numbers = opq_arena_alloc(arena, 2 * count * sizeof *numbers);
    s.crosses = opq_arena_alloc(arena, count * sizeof *s.crosses);
    s.local = opq_arena_alloc(arena, count * sizeof *s.local);
    if (!numbers || !s.crosses || !s.local)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling kernel %s", loops->name);
    memset(numbers, 0, 2 * count * sizeof *numbers);
    memset(s.crosses, 0, count * sizeof *s.crosses);
    s.part = numbers;
    s.imported = numbers + count;
    find_parts(&s, loops, s.strip + 1, loops->stmt_count);
    find_crossing(&s, loops);
    s.stores_early = stores_early(&s, loops);
    s.columns = count_columns(&s, loops);
    return s.columns ? opq_pass_run(&s.pass, loops, MORE * count, arena, out_schedule) : OPQ_OK;
}
