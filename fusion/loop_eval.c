/* Loops, interpreted: every loop in order, every fold over its collected elements by its rule.
 *
 * A value travels as an opq_number, one of a raw dtype as the address of its bytes.
 */
#include "fusion/loop.h"
#include "graph/eval.h"
#include "opaque/scalar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct list {
    opq_number *items;
    int64_t count, capacity;
} list;

typedef struct machine {
    const opq_loops *k;
    void *const *buffers;
    const int64_t *dims;
    const opq_number *scalars;
    int64_t *error;
    int64_t index[OPQ_VARIABLE_MAX];
    int reducing;       /* reducing loops around */
    int pairs;          /* they are of that role: opq_loop_pairs */
    opq_number *values; /* per statement */
    opq_number *held;   /* per statement: a scan's, from turn to turn; the turn that made a carry what it is */
    list *lists; /* per statement: a fold's elements, a local's contents; a carry: its partial results, and how often it was folded */
} machine;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory while evaluating loops"); }

static opq_status reserve(list *l, int64_t count)
{
    if (count <= l->capacity)
        return OPQ_OK;
    int64_t capacity = 2 * l->capacity > count ? 2 * l->capacity : count;
    opq_number *grown = realloc(l->items, (size_t)capacity * sizeof *grown);
    if (grown == NULL)
        return out_of_memory();
    l->items = grown;
    l->capacity = capacity;
    return OPQ_OK;
}

static bool is_raw(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_RAW; }

static opq_number zero_of(opq_dtype dtype)
{
    static const opq_raw128 zero;
    return (opq_number){.i = is_raw(dtype) ? (int64_t)(intptr_t)&zero : 0};
}

static opq_number operand(const machine *m, const opq_stmt *stmt, int o) { return m->values[stmt->operand[o]]; }

/* ---- memory */

static int64_t offset_of(const machine *m, const opq_stmt *stmt)
{
    int64_t offset = m->dims[opq_dims_of(m->k->rank, stmt->access)];
    for (int l = 0; l < m->k->rank; l++)
        offset = opq_add_i64(offset, opq_mul_i64(m->index[l], opq_loops_stride(m->k, m->dims, stmt->access, l)));
    return offset;
}

/* That of the first statement is told, as the code does. */
static void note(const machine *m, const opq_stmt *stmt, int64_t index)
{
    int64_t number = opq_loops_origin(m->k, (int)(stmt - m->k->stmts)) + 1;
    if (m->error[0] != 0 && m->error[0] <= number)
        return;
    m->error[0] = number;
    m->error[1] = index;
}

/* The index of a load_at and its kin moves the offset; false: it is out of range, which is noted. */
static bool move_at(const machine *m, const opq_stmt *stmt, int64_t *offset)
{
    const int64_t *dims = m->dims + opq_dims_of(m->k->rank, stmt->access);
    int64_t at = operand(m, stmt, 0).i, stride = dims[1 + m->k->rank], extent = dims[2 + m->k->rank];
    if (at < 0 || at >= extent) {
        note(m, stmt, at);
        return false;
    }
    *offset = opq_add_i64(*offset, opq_mul_i64(at, stride)); /* anywhere, for a check: nothing is read there */
    return true;
}

static opq_number load(const machine *m, const opq_stmt *stmt, int64_t offset)
{
    const opq_access *a = &m->k->accesses[stmt->access];
    opq_dtype dtype = (opq_dtype)a->dtype;
    char *data = m->buffers[a->buffer];
    if (is_raw(dtype))
        return (opq_number){.i = (int64_t)(intptr_t)(data + offset * opq_dtype_bytes(dtype))};
    return opq_eval_load(dtype, data, offset);
}

static void store(const machine *m, const opq_stmt *stmt, int64_t offset, opq_number x)
{
    const opq_access *a = &m->k->accesses[stmt->access];
    opq_dtype dtype = (opq_dtype)a->dtype;
    size_t bytes = (size_t)opq_dtype_bytes(dtype);
    char *data = m->buffers[a->buffer];
    if (is_raw(dtype))
        memmove(data + (size_t)offset * bytes, (const void *)(intptr_t)x.i, bytes);
    else
        opq_eval_store(dtype, data, offset, x);
}

static int64_t local_index(const machine *m, const opq_stmt *local)
{
    int64_t at = 0;
    for (int l = 0; l < m->k->rank; l++)
        if (local->variables >> l & 1)
            at = at * m->dims[l] + m->index[l];
    return at;
}

/* ---- statements */

static opq_status eval_op(const machine *m, const opq_stmt *stmt, opq_number *out)
{
    opq_op op = (opq_op)stmt->op;
    opq_dtype dtype = (opq_dtype)stmt->dtype;
    opq_number x[3];
    opq_dtype from = stmt->operand[0] >= 0 ? (opq_dtype)m->k->stmts[stmt->operand[0]].dtype : dtype;
    int arity = 0;
    for (; arity < 3 && stmt->operand[arity] >= 0; arity++)
        x[arity] = operand(m, stmt, arity);
    switch (opq_op_info_of(op)->class_) {
    case OPQ_CLASS_CONST: *out = is_raw(dtype) ? zero_of(dtype) : opq_eval_rounded(dtype, stmt->value); return OPQ_OK;
    case OPQ_CLASS_SCALAR: *out = opq_eval_rounded(dtype, m->scalars[stmt->value.i]); return OPQ_OK;
    case OPQ_CLASS_RANDOM: *out = opq_eval_random_element(op, x[0].i, x[1].i, x[2].i); return OPQ_OK;
    case OPQ_CLASS_CAST:
        *out = opq_eval_cast(from, dtype, x[0]);
        if (dtype == OPQ_f32 && opq_dtype_is_half((opq_dtype)stmt->value.i))
            *out = opq_eval_rounded((opq_dtype)stmt->value.i, *out);
        return OPQ_OK;
    default: break;
    }
    if (op == OPQ_OP_where) {
        *out = x[0].i != 0 ? x[1] : x[2];
        return OPQ_OK;
    }
    bool compares = opq_op_lowering(op)->kind == OPQ_LOWER_CMP || opq_op_info_of(op)->rule == OPQ_RULE_BOOL;
    OPQ_TRY(opq_eval_element(op, compares ? from : dtype, x, arity, out));
    *out = opq_eval_rounded(dtype, *out);
    return OPQ_OK;
}

static void eval_memory(const machine *m, const opq_stmt *stmt, opq_number *out)
{
    int64_t offset = offset_of(m, stmt);
    switch ((int)stmt->op) {
    case OPQ_STMT_load:
        *out = stmt->operand[0] >= 0 && operand(m, stmt, 0).i == 0 ? zero_of((opq_dtype)stmt->dtype)
                                                                   : load(m, stmt, offset);
        break;
    case OPQ_STMT_inside:
        *out = (opq_number){.i = offset >= 0 && offset < m->dims[opq_dims_of(m->k->rank, stmt->access) + 2 + m->k->rank]};
        break;
    case OPQ_STMT_number: *out = (opq_number){.i = offset}; break;
    case OPQ_STMT_store: store(m, stmt, offset, operand(m, stmt, 0)); break;
    case OPQ_STMT_check: (void)move_at(m, stmt, &offset); break;
    case OPQ_STMT_load_at:
        *out = move_at(m, stmt, &offset) ? load(m, stmt, offset) : zero_of((opq_dtype)stmt->dtype);
        break;
    case OPQ_STMT_store_add_at:
        if (move_at(m, stmt, &offset))
            store(m, stmt, offset, opq_eval_add((opq_dtype)stmt->dtype, load(m, stmt, offset), operand(m, stmt, 1)));
        break;
    }
}

static opq_fold fold_of(const opq_stmt *carry) { return opq_op_lowering((opq_op)carry->value.i)->fold; }

static opq_status eval_fold(machine *m, const opq_stmt *stmt)
{
    const opq_stmt *carry = &m->k->stmts[stmt->access];
    list *partials = &m->lists[stmt->access];
    opq_number *value = &m->values[stmt->access], x = operand(m, stmt, 0);
    opq_dtype dtype = (opq_dtype)carry->dtype;
    int64_t turn = partials->count++;
    if (carry->by)
        value = &partials->items[turn % carry->by];
    if (opq_op_scans((int)carry->value.i))
        return opq_eval_scan_next((opq_op)carry->value.i, dtype, dtype, x, value);
    if (!opq_fold_is_arg(fold_of(carry))) {
        *value = opq_eval_combine(fold_of(carry), dtype, *value, x);
    } else if (opq_eval_better(fold_of(carry), dtype, *value, x)) {
        *value = x;
        m->held[stmt->access] = (opq_number){.i = turn};
    }
    return OPQ_OK;
}

static opq_number eval_halves(machine *m, const opq_stmt *stmt)
{
    const opq_stmt *carry = &m->k->stmts[stmt->access];
    opq_number *items = m->lists[stmt->access].items;
    for (int half = carry->by / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            items[i] = opq_eval_combine(fold_of(carry), (opq_dtype)carry->dtype, items[i], items[i + half]);
    return items[0];
}

static opq_status eval_carried(machine *m, int i)
{
    const opq_stmt *stmt = &m->k->stmts[i];
    switch ((int)stmt->op) {
    case OPQ_STMT_carry:
        m->values[i] = opq_eval_identity(fold_of(stmt), (opq_dtype)stmt->dtype);
        m->held[i] = (opq_number){.i = 0};
        OPQ_TRY(reserve(&m->lists[i], stmt->by));
        for (int part = 0; part < stmt->by; part++)
            m->lists[i].items[part] = m->values[i];
        m->lists[i].count = 0;
        break;
    case OPQ_STMT_fold: return eval_fold(m, stmt);
    case OPQ_STMT_halves: m->values[i] = eval_halves(m, stmt); break;
    case OPQ_STMT_at: m->values[i] = m->held[stmt->access]; break;
    }
    return OPQ_OK;
}

/* What there is of a step becomes one. */
static void end_pairs(machine *m, int i)
{
    list *l = &m->lists[i];
    float x[OPQ_PAIRS_MAX], y[OPQ_PAIRS_MAX];
    for (int64_t k = 0; k < l->count; k += 2) {
        x[k / 2] = (float)l->items[k].f;
        y[k / 2] = (float)l->items[k + 1].f;
    }
    m->values[i].f = (double)opq_pairs_steps(m->pairs, x, y, (int)l->count / 2, (float)m->values[i].f);
    l->count = 0;
}

static opq_status add_pair(machine *m, int i, opq_number x, opq_number y)
{
    list *l = &m->lists[i];
    OPQ_TRY(reserve(l, (int64_t)4 * m->pairs));
    l->items[l->count++] = x;
    l->items[l->count++] = y;
    if (l->count == 4 * m->pairs)
        end_pairs(m, i);
    return OPQ_OK;
}

static opq_status eval_stmt(machine *m, int i)
{
    const opq_stmt *stmt = &m->k->stmts[i];
    if (stmt->op >= OPQ_STMT_carry)
        return eval_carried(m, i);
    if (stmt->op == OPQ_STMT_keep) {
        list *l = &m->lists[stmt->access];
        int64_t at = local_index(m, &m->k->stmts[stmt->access]);
        OPQ_TRY(reserve(l, at + 1));
        l->items[at] = operand(m, stmt, 0);
        return OPQ_OK;
    }
    if (stmt->op == OPQ_STMT_kept) {
        m->values[i] = m->lists[stmt->access].items[local_index(m, &m->k->stmts[stmt->access])];
        return OPQ_OK;
    }
    if (stmt->op == OPQ_STMT_nonzero) {
        if (operand(m, stmt, 0).i == 0)
            note(m, stmt, 0);
        return OPQ_OK;
    }
    if (stmt->op >= OPQ_OP_COUNT) {
        eval_memory(m, stmt, &m->values[i]);
        return OPQ_OK;
    }
    if (opq_op_scans(stmt->op)) {
        opq_dtype held = (opq_dtype)stmt->value.i, from = (opq_dtype)m->k->stmts[stmt->operand[0]].dtype;
        OPQ_TRY(opq_eval_scan_next((opq_op)stmt->op, held, from, operand(m, stmt, 0), &m->held[i]));
        m->values[i] = opq_eval_cast(held, (opq_dtype)stmt->dtype, m->held[i]);
        return OPQ_OK;
    }
    if (!opq_op_reduces(stmt->op))
        return eval_op(m, stmt, &m->values[i]);
    if (opq_op_contracts(stmt->op) && m->pairs)
        return add_pair(m, i, operand(m, stmt, 0), operand(m, stmt, 1));
    if (opq_op_contracts(stmt->op) && stmt->dtype == OPQ_i32) {
        opq_number product = opq_eval_mul(OPQ_i32, operand(m, stmt, 0), operand(m, stmt, 1));
        m->values[i] = opq_eval_add(OPQ_i32, m->values[i], product);
        return OPQ_OK;
    }
    if (opq_op_contracts(stmt->op)) {
        double x = operand(m, stmt, 0).f, y = operand(m, stmt, 1).f, *sum = &m->values[i].f;
        *sum = stmt->dtype == OPQ_f64 ? fma(x, y, *sum) : (double)fmaf((float)x, (float)y, (float)*sum);
        return OPQ_OK;
    }
    list *l = &m->lists[i];
    OPQ_TRY(reserve(l, l->count + 1));
    l->items[l->count++] = operand(m, stmt, 0);
    return OPQ_OK;
}

/* ---- loops */

/* The results of the folds in [from, to), whose innermost loop has `run` turns; 0: all of their elements are one run. */
static opq_status fold_all(machine *m, int from, int to, opq_tree tree, int64_t run)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &m->k->stmts[i];
        if (opq_op_contracts(stmt->op) && m->lists[i].count > 0)
            end_pairs(m, i);
        if (!opq_op_reduces(stmt->op) || opq_op_contracts(stmt->op))
            continue;
        opq_dtype operand = (opq_dtype)m->k->stmts[stmt->operand[0]].dtype;
        opq_fold fold = opq_op_lowering((opq_op)stmt->op)->fold;
        opq_eval_folding folding = {.fold = fold,
                                    .dtype = opq_eval_fold_dtype(fold, operand, (opq_dtype)stmt->dtype),
                                    .tree = tree,
                                    .run = run > 0 ? run : m->lists[i].count,
                                    .count = m->lists[i].count};
        for (int64_t k = 0; k < folding.count; k++)
            m->lists[i].items[k] = opq_eval_cast(operand, folding.dtype, m->lists[i].items[k]);
        m->values[i] = opq_eval_rounded((opq_dtype)stmt->dtype, opq_eval_fold(&folding, m->lists[i].items));
        m->lists[i].count = 0;
    }
    return OPQ_OK;
}

static opq_status eval_body(machine *m, int from, int to);

static opq_status eval_loop(machine *m, int i)
{
    const opq_stmt *loop = &m->k->stmts[i];
    opq_loop_role role = (opq_loop_role)loop->role;
    int64_t from, to, run;
    opq_loop_turns(m->k, i, m->dims, m->index, &from, &to);
    run = loop->within ? 0 : to - from;
    opq_status status = OPQ_OK;
    for (int k = i + 1; k < loop->end && m->reducing == 0 && opq_loop_contracts(role); k++)
        m->values[k] = (opq_number){.f = 0};
    for (int k = i + 1; k < loop->end; k++)
        if (opq_op_scans(m->k->stmts[k].op))
            m->held[k] = opq_eval_scan_start((opq_op)m->k->stmts[k].op, (opq_dtype)m->k->stmts[k].value.i);
    m->reducing += opq_loop_reduces(role);
    m->pairs = opq_loop_pairs(role);
    for (int64_t turn = from; turn < to && status == OPQ_OK; turn++) {
        m->index[loop->variable] = turn;
        status = eval_body(m, i + 1, loop->end);
    }
    m->index[loop->variable] = 0;
    m->reducing -= opq_loop_reduces(role);
    if (status != OPQ_OK || !opq_loop_reduces(role) || m->reducing > 0)
        return status;
    for (int k = i + 1; k < loop->end && !loop->within; k++)
        if (m->k->stmts[k].op == OPQ_STMT_loop)
            run = m->dims[m->k->stmts[k].variable];
    return fold_all(m, i + 1, loop->end, role == OPQ_LOOP_lanes ? OPQ_TREE_lanes : OPQ_TREE_column, run);
}

static opq_status eval_body(machine *m, int from, int to)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &m->k->stmts[i];
        if (stmt->op == OPQ_STMT_loop) {
            OPQ_TRY(eval_loop(m, i));
            i = stmt->end - 1;
        } else if (stmt->op != OPQ_STMT_local) {
            OPQ_TRY(eval_stmt(m, i));
        }
    }
    return OPQ_OK;
}

opq_status opq_loops_eval(const opq_loops *loops, void *const *buffers, const int64_t *dims, const opq_number *scalars,
                          int64_t out_error[2])
{
    machine m = {.k = loops, .buffers = buffers, .dims = dims, .scalars = scalars, .error = out_error};
    size_t count = (size_t)loops->stmt_count + 1;
    m.values = calloc(count, sizeof *m.values);
    m.held = calloc(count, sizeof *m.held);
    m.lists = calloc(count, sizeof *m.lists);
    out_error[0] = out_error[1] = 0;
    opq_status status = m.values && m.held && m.lists ? eval_body(&m, 0, loops->stmt_count) : out_of_memory();
    for (size_t i = 0; i < count && m.lists; i++)
        free(m.lists[i].items);
    free(m.values);
    free(m.held);
    free(m.lists);
    return status;
}
