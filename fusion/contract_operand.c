/* Operands of a product as an engine takes them: a stride for rows and for columns, or tables where these are several loops, of what is in
 * memory or of a copy of it with its padding around.
 */
#include "fusion/contract_state.h"
#include "fusion/target.h"

#include <string.h>

/* What loops move by; strides: per variable. */
static opq_status fill_table(const opq_splitter *s, opq_arena *arena, const int64_t *strides, const opq_axis *loops,
                             const int64_t **out_table)
{
    int64_t count = opq_contract_extent_of(s, loops), filled = 1;
    int64_t *table = opq_arena_alloc(arena, ((size_t)count + 1) * sizeof *table);
    *out_table = table;
    if (table == NULL)
        return opq_contract_no_memory();
    table[0] = 0;
    for (int i = loops->count - 1; i >= 0 && count > 0; i--) {
        int variable = loops->variable[i];
        int64_t extent = s->dims[variable];
        for (int64_t j = filled; j < filled * extent; j++)
            table[j] = table[j - filled] + strides[variable];
        filled *= extent;
    }
    return OPQ_OK;
}

/* One stride for all loops, or a table. */
static opq_status bind_axis(const opq_splitter *s, opq_arena *arena, int access, const opq_axis *loops,
                            int64_t *out_stride, const int64_t **out_offsets)
{
    int64_t strides[OPQ_LOOP_MAX];
    if (opq_contract_walks_as_one(s, access, loops)) {
        *out_stride = opq_contract_stride_of(s, access, loops->variable[loops->count - 1]);
        return OPQ_OK;
    }
    for (int i = 0; i < loops->count; i++)
        strides[loops->variable[i]] = opq_contract_stride_of(s, access, loops->variable[i]);
    return fill_table(s, arena, strides, loops, out_offsets);
}

static opq_status bind_strides(const opq_splitter *s, opq_arena *arena, int o)
{
    int access = opq_contract_operand_access(s, o);
    OPQ_TRY(bind_axis(s, arena, access, o == 0 ? &s->m : &s->sum, &s->out->operand[o].row_stride,
                      &s->out->operand[o].rows));
    return bind_axis(s, arena, access, o == 0 ? &s->sum : &s->n, &s->out->operand[o].column_stride,
                     &s->out->operand[o].columns);
}

/* ---- the copy with its padding */

/* A copy while its dims are found: one for each guard, one for each loop that no guard follows. */
typedef struct padding {
    opq_padded padded;
    int access, guard_count;
    int guard_access[OPQ_MATRIX_GUARD_MAX]; /* the index that has to be inside */
    int dim_of[OPQ_LOOP_MAX];               /* per variable: its dim, -1 */
    int64_t step_of[OPQ_LOOP_MAX];          /* and how far it moves there */
} padding;

static opq_status refuse(const opq_splitter *s)
{
    return opq_fail(OPQ_UNSUPPORTED, "kernel %s: an operand of its product is no padded matrix", s->k->name);
}

/* Conditions joined by `and`: a dim each. */
static opq_status add_guards(const opq_splitter *s, int condition, padding *p)
{
    const opq_stmt *stmt = &s->k->stmts[condition];
    if (stmt->op == OPQ_OP_bitwise_and) {
        OPQ_TRY(add_guards(s, stmt->operand[0], p));
        return add_guards(s, stmt->operand[1], p);
    }
    bool fits = stmt->op == OPQ_STMT_inside && p->guard_count < OPQ_MATRIX_GUARD_MAX;
    for (int b = 0; b < s->batch.count && fits; b++)
        fits = opq_contract_stride_of(s, stmt->access, s->batch.variable[b]) == 0;
    if (!fits)
        return refuse(s);
    const int64_t *dims = s->dims + opq_dims_of(s->k->rank, stmt->access);
    p->guard_access[p->guard_count++] = stmt->access;
    p->padded.dim[p->padded.rank++] =
        (struct opq_padded_dim){.first = dims[0], .count = 1, .extent = dims[2 + s->k->rank]};
    return OPQ_OK;
}

/* Loops are of one dim each, and move in memory as there. */
static bool add_loops(const opq_splitter *s, const opq_axis *loops, padding *p)
{
    for (int i = 0; i < loops->count; i++) {
        int variable = loops->variable[i], dim = -1;
        int64_t stride = opq_contract_stride_of(s, p->access, variable), step = 1, count = s->dims[variable];
        for (int g = 0; g < p->guard_count; g++) {
            int64_t along = opq_contract_stride_of(s, p->guard_access[g], variable);
            if (along < 0 || (along > 0 && (dim >= 0 || stride % along != 0)))
                return false;
            if (along > 0) {
                dim = g;
                step = along;
            }
        }
        p->dim_of[variable] = dim;
        p->step_of[variable] = step;
        if (dim < 0 && stride == 0)
            continue;
        if (dim < 0 && p->padded.rank == OPQ_LOOP_MAX)
            return false;
        if (dim < 0)
            p->padded.dim[dim = p->dim_of[variable] = p->padded.rank++] =
                (struct opq_padded_dim){.stride = stride, .count = 1, .extent = count};
        struct opq_padded_dim *d = &p->padded.dim[dim];
        if (d->stride != 0 && d->stride != stride / step)
            return false;
        d->stride = stride / step;
        d->count += step * (count - 1);
    }
    return true;
}

/* Dims in the order of memory, and what each loop moves by in the copy. */
static void lay_out(padding *p, int64_t *out_strides)
{
    opq_padded *padded = &p->padded;
    int order[OPQ_LOOP_MAX];
    int64_t stride[OPQ_LOOP_MAX];
    for (int d = 0; d < padded->rank; d++) {
        int at = d;
        for (; at > 0 && padded->dim[order[at - 1]].stride < padded->dim[d].stride; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    struct opq_padded_dim dim[OPQ_LOOP_MAX];
    padded->count = 1;
    for (int i = padded->rank - 1; i >= 0; i--) {
        dim[i] = padded->dim[order[i]];
        stride[order[i]] = padded->count;
        padded->count *= dim[i].count;
        padded->offset -= dim[i].stride * (order[i] < p->guard_count ? dim[i].first : 0);
    }
    memcpy(padded->dim, dim, (size_t)padded->rank * sizeof *dim);
    for (int v = 0; v < OPQ_LOOP_MAX; v++)
        out_strides[v] = p->dim_of[v] < 0 ? 0 : p->step_of[v] * stride[p->dim_of[v]];
}

/* Is dim 0 of the copy, whose loops' strides are known, the outermost summed loop's? */
static bool is_summed(const opq_splitter *s, const padding *p, const int64_t *strides)
{
    int64_t part = p->padded.count / p->padded.dim[0].count;
    int count = 0, outermost = s->sum.variable[0];
    for (int v = 0; v < OPQ_LOOP_MAX; v++)
        count += strides[v] >= part;
    return count == 1 && strides[outermost] >= part;
}

static opq_status bind_padded(opq_splitter *s, opq_arena *arena, int o, int condition)
{
    const opq_axis *rows = o == 0 ? &s->m : &s->sum, *columns = o == 0 ? &s->sum : &s->n;
    padding p = {.access = opq_contract_operand_access(s, o)};
    int64_t strides[OPQ_LOOP_MAX];
    memset(p.dim_of, 0xff, sizeof p.dim_of);
    OPQ_TRY(add_guards(s, condition, &p));
    if (!add_loops(s, rows, &p) || !add_loops(s, columns, &p))
        return refuse(s);
    lay_out(&p, strides);
    p.padded.summed = is_summed(s, &p, strides);
    p.padded.reused = p.padded.count > 0 && p.padded.count * opq_trees.window_used <=
                                                opq_contract_extent_of(s, rows) * opq_contract_extent_of(s, columns) *
                                                    opq_trees.window_copied;
    opq_padded *padded = opq_arena_alloc(arena, sizeof *padded);
    if (padded == NULL)
        return opq_contract_no_memory();
    *padded = p.padded;
    s->out->operand[o].padded = padded;
    OPQ_TRY(fill_table(s, arena, strides, rows, &s->out->operand[o].rows));
    return fill_table(s, arena, strides, columns, &s->out->operand[o].columns);
}

opq_status opq_contract_bind_operand(opq_splitter *s, opq_arena *arena, int o)
{
    int access = opq_contract_operand_access(s, o);
    const opq_axis *across = o == 0 ? &s->n : &s->m;
    s->out->operand[o].buffer = s->k->accesses[access].buffer;
    s->out->operand[o].dtype = (opq_dtype)s->k->accesses[access].dtype;
    s->out->operand[o].offset = s->dims[opq_dims_of(s->k->rank, access)];
    int condition = opq_contract_operand_stmt(s, o)->operand[0];
    if (condition >= 0)
        OPQ_TRY(bind_padded(s, arena, o, condition));
    else
        OPQ_TRY(bind_strides(s, arena, o));
    for (int b = 0; b < s->out->batch_rank; b++)
        s->out->operand[o].batch_stride[b] = opq_contract_stride_of(s, access, s->batch.variable[b]);
    for (int i = 0; i < across->count; i++)
        if (opq_contract_stride_of(s, access, across->variable[i]) != 0)
            return opq_fail(OPQ_UNSUPPORTED, "kernel %s: an operand of its product is no matrix", s->k->name);
    return OPQ_OK;
}
