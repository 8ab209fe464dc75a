/* A product's tree, divided between an engine that makes tiles and what is made of a tile.
 *
 *   parallel b { parallel m { vector n {                     parallel m { vector n {
 *     chain k { %1 = load..; %2 = load..; %3 = matmul }        %3 = load tile
 *     %5 = add %3, %4; store %5                                %5 = add %3, %4; store %5
 *   } } }                                                    } }
 *
 * Of one column it is the transposed product, one row, so that what is made of it goes along vectors; a * b is b * a.
 */
#include "fusion/loop_rewrite.h"

#include <string.h>

/* Loops that are one index of a matrix, from outside in. */
typedef struct axis {
    int count, variable[OPQ_LOOP_MAX];
} axis;

typedef struct splitter {
    const opq_loops *k;
    const int64_t *dims;
    opq_contract *out;
    axis batch, m, n, sum;
    bool turned;     /* rows are the tree's columns, and the left operand is its right one */
    int chain;       /* the statement of the first loop that sums */
    int16_t row;     /* turned: the epilogue's loop of one turn */
    int16_t *stmt;   /* per statement: in the epilogue */
    int16_t *access; /* per access: in the epilogue, -1 */
    bool *matrix;    /* per access: of an operand, or of a condition of it */
    bool *needed;    /* per statement: by what is stored, besides the product's own */
    opq_access *accesses;
    int guard_access[OPQ_MATRIX_GUARD_MAX]; /* of the operand whose guards were bound last */
} splitter;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory while dividing a product"); }

static int64_t stride_of(const splitter *s, int access, int variable)
{
    return opq_loops_stride(s->k, s->dims, access, variable);
}

static int64_t extent_of(const splitter *s, const axis *loops)
{
    int64_t extent = 1;
    for (int i = 0; i < loops->count; i++)
        extent *= s->dims[loops->variable[i]];
    return extent;
}

static void push_loop(axis *loops, int variable) { loops->variable[loops->count++] = variable; }

/* What is loaded, which may be widened. */
static const opq_stmt *operand_stmt(const splitter *s, int o)
{
    const opq_stmt *operand = &s->k->stmts[s->k->stmts[s->out->product].operand[s->turned ? 1 - o : o]];
    return operand->op == OPQ_OP_cast ? &s->k->stmts[operand->operand[0]] : operand;
}

static int operand_access(const splitter *s, int o)
{
    const opq_stmt *load = operand_stmt(s, o);
    return load->op == OPQ_INSTR_load ? load->access : -1;
}

/* Does an access walk loops as one? */
static bool walks_as_one(const splitter *s, int access, const axis *loops)
{
    for (int i = 1; i < loops->count; i++)
        if (stride_of(s, access, loops->variable[i - 1]) !=
            stride_of(s, access, loops->variable[i]) * s->dims[loops->variable[i]])
            return false;
    return true;
}

static bool epilogue_walks_as_one(const splitter *s, const axis *loops)
{
    for (int a = 0; a < s->k->access_count; a++)
        if (!s->matrix[a] && !walks_as_one(s, a, loops))
            return false;
    return true;
}

/* Rows of the matrix are the innermost parallel loop, and those around it as far as the right operand stands still and the epilogue walks
 * them as one. */
static void take_rows(splitter *s)
{
    axis around = s->batch;
    while (around.count > 0) {
        int variable = around.variable[around.count - 1];
        axis rows = {.count = s->m.count + 1, .variable = {variable}};
        memcpy(rows.variable + 1, s->m.variable, (size_t)s->m.count * sizeof *rows.variable);
        if (s->m.count > 0 && (stride_of(s, operand_access(s, 1), variable) != 0 || !epilogue_walks_as_one(s, &rows)))
            break;
        s->m = rows;
        around.count--;
    }
    s->batch = around;
}

static void mark_matrix(splitter *s, int stmt)
{
    const opq_stmt *of = &s->k->stmts[stmt];
    if (of->access >= 0)
        s->matrix[of->access] = true;
    for (int o = 0; o < 3; o++)
        if (of->operand[o] >= 0)
            mark_matrix(s, of->operand[o]);
}

/* The epilogue has what its stores and checks need. */
static void mark_needed(splitter *s)
{
    for (int i = s->k->stmt_count - 1; i >= 0; i--) {
        const opq_stmt *stmt = &s->k->stmts[i];
        s->needed[i] = s->needed[i] || !opq_stmt_gives(stmt->op);
        for (int o = 0; o < 3 && s->needed[i] && i != s->out->product; o++)
            if (stmt->operand[o] >= 0)
                s->needed[stmt->operand[o]] = true;
    }
}

/* To one row from one column, if the operands are matrices by strides, without conditions. */
static void turn(splitter *s)
{
    bool plain = extent_of(s, &s->n) == 1 && extent_of(s, &s->m) > 1;
    for (int o = 0; o < 2; o++)
        plain = plain && operand_stmt(s, o)->operand[0] < 0 && walks_as_one(s, operand_access(s, o), &s->sum);
    if (!plain || !walks_as_one(s, operand_access(s, 0), &s->m))
        return;
    axis rows = s->m;
    s->m = s->n;
    s->n = rows;
    s->turned = true;
}

/* The product, the loops that sum it, and the others. */
static bool find_loops(splitter *s, bool may_turn)
{
    s->chain = -1;
    for (int i = 0; i < s->k->stmt_count; i++) {
        const opq_stmt *stmt = &s->k->stmts[i];
        if (opq_op_contracts(stmt->op))
            s->out->product = i;
        if (stmt->op != OPQ_STMT_loop)
            continue;
        bool chain = opq_loop_contracts((opq_loop_role)stmt->role);
        s->out->pairs = stmt->role == OPQ_LOOP_pairs || s->out->pairs;
        if (!chain && s->chain >= 0)
            return false;
        if (chain && s->chain < 0)
            s->chain = i;
        push_loop(chain ? &s->sum : stmt->role == OPQ_LOOP_vector ? &s->n : &s->batch, stmt->variable);
    }
    if (s->chain < 0 || s->n.count == 0 || s->batch.count == 0 || operand_access(s, 0) < 0 || operand_access(s, 1) < 0)
        return false;
    for (int o = 0; o < 2; o++)
        mark_matrix(s, s->k->stmts[s->out->product].operand[o]);
    mark_needed(s);
    if (!epilogue_walks_as_one(s, &s->n))
        return false;
    take_rows(s);
    if (may_turn)
        turn(s);
    s->out->batch_rank = s->batch.count;
    for (int b = 0; b < s->batch.count; b++)
        s->out->batch_extent[b] = s->dims[s->batch.variable[b]];
    s->out->m = extent_of(s, &s->m);
    s->out->n = extent_of(s, &s->n);
    s->out->k = extent_of(s, &s->sum);
    return true;
}

/* `from`, and from there on what loops move by; strides: per variable. */
static opq_status fill_table(const splitter *s, opq_arena *arena, const int64_t *strides, const axis *loops,
                             int64_t from, const int64_t **out_table)
{
    int64_t count = extent_of(s, loops), filled = 1;
    int64_t *table = opq_arena_alloc(arena, ((size_t)count + 1) * sizeof *table);
    *out_table = table;
    if (table == NULL)
        return out_of_memory();
    table[0] = from;
    for (int i = loops->count - 1; i >= 0 && count > 0; i--) {
        int variable = loops->variable[i];
        int64_t extent = s->dims[variable];
        for (int64_t j = filled; j < filled * extent; j++)
            table[j] = table[j - filled] + strides[variable];
        filled *= extent;
    }
    return OPQ_OK;
}

/* By what an access moves. */
static opq_status make_table(const splitter *s, opq_arena *arena, int access, const axis *loops, int64_t from,
                             const int64_t **out_table)
{
    int64_t strides[OPQ_LOOP_MAX];
    for (int i = 0; i < loops->count; i++)
        strides[loops->variable[i]] = stride_of(s, access, loops->variable[i]);
    return fill_table(s, arena, strides, loops, from, out_table);
}

/* One stride for all loops, or a table. */
static opq_status bind_axis(const splitter *s, opq_arena *arena, int access, const axis *loops, bool table,
                            int64_t *out_stride, const int64_t **out_offsets)
{
    bool as_one = walks_as_one(s, access, loops) && !table;
    *out_stride = as_one ? stride_of(s, access, loops->variable[loops->count - 1]) : 0;
    *out_offsets = NULL;
    return as_one ? OPQ_OK : make_table(s, arena, access, loops, 0, out_offsets);
}

/* Conditions joined by `and`: a table each. */
static opq_status bind_guards(splitter *s, opq_arena *arena, int o, int condition)
{
    const opq_stmt *stmt = &s->k->stmts[condition];
    int *count = &s->out->operand[o].guard_count;
    if (stmt->op == OPQ_OP_bitwise_and) {
        OPQ_TRY(bind_guards(s, arena, o, stmt->operand[0]));
        return bind_guards(s, arena, o, stmt->operand[1]);
    }
    bool fits = stmt->op == OPQ_INSTR_inside && *count < OPQ_MATRIX_GUARD_MAX;
    for (int b = 0; b < s->batch.count && fits; b++)
        fits = stride_of(s, stmt->access, s->batch.variable[b]) == 0;
    if (!fits)
        return opq_fail(OPQ_UNSUPPORTED, "kernel %s: an operand of its product is no padded matrix", s->k->name);
    const int64_t *dims = s->dims + opq_dims_of(s->k->rank, stmt->access);
    s->guard_access[*count] = stmt->access;
    opq_matrix_guard *guard = &s->out->operand[o].guard[(*count)++];
    guard->extent = dims[2 + s->k->rank];
    OPQ_TRY(make_table(s, arena, stmt->access, o == 0 ? &s->m : &s->sum, dims[0], &guard->rows));
    return make_table(s, arena, stmt->access, o == 0 ? &s->sum : &s->n, 0, &guard->columns);
}

/* ---- the copy with its padding */

/* Its elements are used more than once, or it would be better to pack the operand. */
enum { COPIED = 3, USED = 4 };

/* A copy while its dims are found: one for each guard, one for each loop that no guard follows. */
typedef struct padding {
    opq_padded padded;
    int access, guard_count;
    int dim_of[OPQ_LOOP_MAX];      /* per variable: its dim, -1 */
    int64_t step_of[OPQ_LOOP_MAX]; /* and how far it moves there */
} padding;

/* Loops are of one dim each, and move in memory as there. */
static bool add_loops(const splitter *s, const axis *loops, padding *p)
{
    for (int i = 0; i < loops->count; i++) {
        int variable = loops->variable[i], dim = -1;
        int64_t stride = stride_of(s, p->access, variable), step = 1, count = s->dims[variable];
        for (int g = 0; g < p->guard_count; g++) {
            int64_t along = stride_of(s, s->guard_access[g], variable);
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
static bool is_summed(const splitter *s, const padding *p, const int64_t *strides)
{
    int64_t part = p->padded.count / p->padded.dim[0].count;
    int count = 0, outermost = s->sum.variable[0];
    for (int v = 0; v < OPQ_LOOP_MAX; v++)
        count += strides[v] >= part;
    return count == 1 && strides[outermost] >= part;
}

/* Needs the guards. */
static opq_status bind_padded(splitter *s, opq_arena *arena, int o)
{
    const axis *rows = o == 0 ? &s->m : &s->sum, *columns = o == 0 ? &s->sum : &s->n;
    const opq_matrix_guard *guard = s->out->operand[o].guard;
    padding p = {.access = operand_access(s, o), .guard_count = s->out->operand[o].guard_count};
    int64_t strides[OPQ_LOOP_MAX];
    memset(p.dim_of, 0xff, sizeof p.dim_of);
    for (int g = 0; g < p.guard_count; g++)
        p.padded.dim[p.padded.rank++] =
            (struct opq_padded_dim){.first = guard[g].rows[0], .count = 1, .extent = guard[g].extent};
    if (!add_loops(s, rows, &p) || !add_loops(s, columns, &p))
        return OPQ_OK;
    lay_out(&p, strides);
    p.padded.summed = is_summed(s, &p, strides);
    if (p.padded.count * USED > extent_of(s, rows) * extent_of(s, columns) * COPIED)
        return OPQ_OK;
    opq_padded *padded = opq_arena_alloc(arena, sizeof *padded);
    if (padded == NULL)
        return out_of_memory();
    *padded = p.padded;
    s->out->operand[o].padded = padded;
    OPQ_TRY(fill_table(s, arena, strides, rows, 0, &s->out->operand[o].padded_rows));
    return fill_table(s, arena, strides, columns, 0, &s->out->operand[o].padded_columns);
}

static opq_status bind_operand(splitter *s, opq_arena *arena, int o)
{
    int access = operand_access(s, o);
    const axis *across = o == 0 ? &s->n : &s->m;
    s->out->operand[o].buffer = s->k->accesses[access].buffer;
    s->out->operand[o].dtype = (opq_dtype)s->k->accesses[access].dtype;
    s->out->operand[o].offset = s->dims[opq_dims_of(s->k->rank, access)];
    int condition = operand_stmt(s, o)->operand[0];
    OPQ_TRY(bind_axis(s, arena, access, o == 0 ? &s->m : &s->sum, condition >= 0, &s->out->operand[o].row_stride,
                      &s->out->operand[o].rows));
    OPQ_TRY(bind_axis(s, arena, access, o == 0 ? &s->sum : &s->n, condition >= 0, &s->out->operand[o].column_stride,
                      &s->out->operand[o].columns));
    if (condition >= 0) {
        OPQ_TRY(bind_guards(s, arena, o, condition));
        OPQ_TRY(bind_padded(s, arena, o));
    }
    for (int b = 0; b < s->out->batch_rank; b++)
        s->out->operand[o].batch_stride[b] = stride_of(s, access, s->batch.variable[b]);
    for (int i = 0; i < across->count; i++)
        if (stride_of(s, access, across->variable[i]) != 0)
            return opq_fail(OPQ_UNSUPPORTED, "kernel %s: an operand of its product is no matrix", s->k->name);
    return OPQ_OK;
}

static int64_t tile_stride(const splitter *s, int access, const axis *loops)
{
    return stride_of(s, access, loops->variable[loops->count - 1]);
}

static int16_t take_access(splitter *s, int access)
{
    if (access < 0 || s->access[access] >= 0)
        return (int16_t)(access < 0 ? -1 : s->access[access]);
    opq_access *taken = &s->accesses[s->out->epilogue.access_count];
    int64_t along[2] = {tile_stride(s, access, &s->m), tile_stride(s, access, &s->n)};
    *taken = s->k->accesses[access];
    memset(taken->stride, 0, sizeof taken->stride);
    for (int l = 0; l < 2; l++)
        taken->stride[l] = along[l] == 0 ? OPQ_STRIDE_zero : l == 1 && along[l] == 1 ? OPQ_STRIDE_one : OPQ_STRIDE_any;
    return s->access[access] = (int16_t)s->out->epilogue.access_count++;
}

static void push_tile(splitter *s)
{
    opq_loops *epilogue = &s->out->epilogue;
    opq_stmt load = opq_stmt_make(OPQ_INSTR_load);
    load.dtype = s->k->stmts[s->out->product].dtype;
    load.access = (int16_t)epilogue->access_count++;
    s->accesses[load.access] =
        (opq_access){.buffer = (int16_t)s->out->tile, .dtype = load.dtype, .stride = {OPQ_STRIDE_any, OPQ_STRIDE_one}};
    s->stmt[s->out->product] = opq_loops_push(epilogue, &load);
}

/* The loop around all of a turned product. */
static void push_row(splitter *s)
{
    opq_stmt row = opq_stmt_make(OPQ_STMT_loop);
    row.role = OPQ_LOOP_parallel;
    s->row = opq_loops_push(&s->out->epilogue, &row);
}

/* Of the batch, and of loops that are one or of one turn, the body goes on. */
static opq_rewrite choose(void *data, int i)
{
    splitter *s = data;
    const opq_stmt *stmt = &s->k->stmts[i];
    if (i == s->chain) {
        push_tile(s);
        return OPQ_REWRITE_drop;
    }
    if (stmt->op != OPQ_STMT_loop)
        return s->needed[i] ? OPQ_REWRITE_copy : OPQ_REWRITE_drop;
    bool column = stmt->variable == s->n.variable[0], row = stmt->variable == s->m.variable[0];
    if (column && s->turned)
        push_row(s);
    return column || (row && !s->turned) ? OPQ_REWRITE_copy : OPQ_REWRITE_body;
}

/* What stands around both loops stands in the inner one if they change places. */
static void finish(void *data, int i, opq_stmt *to)
{
    splitter *s = data;
    (void)i;
    if (to->op == OPQ_STMT_loop) {
        to->variable = to->variable == s->n.variable[0];
        to->role = s->turned ? OPQ_LOOP_vector : to->role;
    } else if (opq_stmt_walks(to)) {
        to->access = take_access(s, to->access);
    }
}

static void make_epilogue(splitter *s)
{
    opq_loops *epilogue = &s->out->epilogue;
    const opq_rewriter rewriter = {s->k, epilogue, s->stmt, s, choose, finish};
    (void)opq_loops_rewrite(&rewriter, 0, s->k->stmt_count);
    if (s->turned)
        epilogue->stmts[s->row].end = epilogue->stmts[s->row + 1].end;
}

static opq_status set_dims(splitter *s, opq_arena *arena)
{
    opq_contract *out = s->out;
    int rank = out->epilogue.rank, count = out->epilogue.access_count, batch = out->batch_rank;
    out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(rank, count) * sizeof *out->dims);
    out->batch_strides = opq_arena_alloc(arena, (size_t)(count * batch + 1) * sizeof *out->batch_strides);
    if (out->dims == NULL || out->batch_strides == NULL)
        return out_of_memory();
    memset(out->dims, 0, (size_t)opq_dims_of(rank, count) * sizeof *out->dims);
    memset(out->batch_strides, 0, (size_t)(count * batch + 1) * sizeof *out->batch_strides);
    out->dims[0] = out->m;
    out->dims[1] = out->n;
    for (int a = 0; a < s->k->access_count; a++) {
        if (s->access[a] < 0)
            continue;
        const int64_t *from = s->dims + opq_dims_of(s->k->rank, a);
        int64_t *to = out->dims + opq_dims_of(rank, s->access[a]);
        to[0] = from[0];
        to[1] = tile_stride(s, a, &s->m);
        to[2] = tile_stride(s, a, &s->n);
        to[3] = from[1 + s->k->rank];
        to[4] = from[2 + s->k->rank];
        for (int b = 0; b < batch; b++)
            out->batch_strides[s->access[a] * batch + b] = stride_of(s, a, s->batch.variable[b]);
    }
    return OPQ_OK;
}

static opq_status make_room(splitter *s, opq_arena *arena)
{
    const opq_loops *k = s->k;
    opq_loops *epilogue = &s->out->epilogue;
    size_t stmts = (size_t)k->stmt_count + 2, accesses = (size_t)k->access_count + 1;
    s->stmt = opq_arena_alloc(arena, stmts * sizeof *s->stmt);
    s->matrix = opq_arena_alloc(arena, accesses * sizeof *s->matrix);
    s->needed = opq_arena_alloc(arena, stmts * sizeof *s->needed);
    s->access = opq_arena_alloc(arena, accesses * sizeof *s->access);
    s->accesses = opq_arena_alloc(arena, accesses * sizeof *s->accesses);
    *epilogue = (opq_loops){.name = k->name,
                            .rank = 2,
                            .buffer_count = k->buffer_count + 1,
                            .scalar_count = k->scalar_count,
                            .accesses = s->accesses};
    epilogue->stmts = opq_arena_alloc(arena, stmts * sizeof *epilogue->stmts);
    epilogue->written = opq_arena_alloc(arena, (size_t)epilogue->buffer_count);
    if (!s->stmt || !s->access || !s->matrix || !s->needed || !s->accesses || !epilogue->stmts || !epilogue->written)
        return out_of_memory();
    memcpy(epilogue->written, k->written, (size_t)k->buffer_count);
    epilogue->written[k->buffer_count] = 0;
    memset(s->access, 0xff, accesses * sizeof *s->access);
    memset(s->matrix, 0, accesses * sizeof *s->matrix);
    memset(s->needed, 0, stmts * sizeof *s->needed);
    return OPQ_OK;
}

opq_status opq_loops_contract(const opq_loops *loops, const int64_t *dims, bool may_turn, opq_arena *arena,
                              opq_contract *out_contract)
{
    splitter s = {.k = loops, .dims = dims, .out = out_contract};
    memset(out_contract, 0, sizeof *out_contract);
    out_contract->tile = loops->buffer_count;
    OPQ_TRY(make_room(&s, arena));
    if (!find_loops(&s, may_turn))
        return opq_fail(OPQ_UNSUPPORTED, "kernel %s is not one product of two matrices", loops->name);
    OPQ_TRY(bind_operand(&s, arena, 0));
    OPQ_TRY(bind_operand(&s, arena, 1));
    make_epilogue(&s);
    return set_dims(&s, arena);
}
