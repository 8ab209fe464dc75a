/* A product's tree, divided between an engine that makes tiles and what is made of a tile.
 *
 *   parallel b { parallel m { vector n {                     parallel m { vector n {
 *     chain k { %1 = load..; %2 = load..; %3 = matmul }        %3 = load tile
 *     %5 = add %3, %4; store %5                                %5 = add %3, %4; store %5
 *   } } }                                                    } }
 *
 * Of one column it is the transposed product, one row, so that what is made of it goes along vectors; a * b is b * a.
 */
#include "fusion/contract_state.h"
#include "fusion/loop_rewrite.h"

#include <string.h>

static void push_loop(opq_axis *loops, int variable) { loops->variable[loops->count++] = variable; }

static bool epilogue_walks_as_one(const opq_splitter *s, const opq_axis *loops)
{
    for (int a = 0; a < s->k->access_count; a++)
        if (!s->matrix[a] && !opq_contract_walks_as_one(s, a, loops))
            return false;
    return true;
}

/* Rows of the matrix are the innermost parallel loop, and those around it as far as the right operand stands still and the epilogue walks
 * them as one. */
static void take_rows(opq_splitter *s)
{
    opq_axis around = s->batch;
    while (around.count > 0) {
        int variable = around.variable[around.count - 1];
        opq_axis rows = {.count = s->m.count + 1, .variable = {variable}};
        memcpy(rows.variable + 1, s->m.variable, (size_t)s->m.count * sizeof *rows.variable);
        if (s->m.count > 0 && (opq_contract_stride_of(s, opq_contract_operand_access(s, 1), variable) != 0 ||
                               !epilogue_walks_as_one(s, &rows)))
            break;
        s->m = rows;
        around.count--;
    }
    s->batch = around;
}

static void mark_matrix(opq_splitter *s, int stmt)
{
    const opq_stmt *of = &s->k->stmts[stmt];
    if (of->access >= 0)
        s->matrix[of->access] = true;
    for (int o = 0; o < 3; o++)
        if (of->operand[o] >= 0)
            mark_matrix(s, of->operand[o]);
}

/* The epilogue has what its stores and checks need. */
static void mark_needed(opq_splitter *s)
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
static void turn(opq_splitter *s)
{
    bool plain = opq_contract_extent_of(s, &s->n) == 1 && opq_contract_extent_of(s, &s->m) > 1;
    for (int o = 0; o < 2; o++)
        plain = plain && opq_contract_operand_stmt(s, o)->operand[0] < 0 &&
                opq_contract_walks_as_one(s, opq_contract_operand_access(s, o), &s->sum);
    if (!plain || !opq_contract_walks_as_one(s, opq_contract_operand_access(s, 0), &s->m))
        return;
    opq_axis rows = s->m;
    s->m = s->n;
    s->n = rows;
    s->turned = true;
}

/* The product, the loops that sum it, and the others. */
static bool find_loops(opq_splitter *s, bool may_turn)
{
    s->chain = -1;
    for (int i = 0; i < s->k->stmt_count; i++) {
        const opq_stmt *stmt = &s->k->stmts[i];
        if (opq_op_contracts(stmt->op))
            s->out->product = i;
        if (stmt->op != OPQ_STMT_loop)
            continue;
        bool chain = opq_loop_contracts((opq_loop_role)stmt->role);
        if (chain)
            s->out->pairs = opq_loop_pairs((opq_loop_role)stmt->role);
        if (!chain && s->chain >= 0)
            return false;
        if (chain && s->chain < 0)
            s->chain = i;
        push_loop(chain ? &s->sum : stmt->role == OPQ_LOOP_vector ? &s->n : &s->batch, stmt->variable);
    }
    if (s->chain < 0 || s->n.count == 0 || s->batch.count == 0 || opq_contract_operand_access(s, 0) < 0 ||
        opq_contract_operand_access(s, 1) < 0)
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
    s->out->m = opq_contract_extent_of(s, &s->m);
    s->out->n = opq_contract_extent_of(s, &s->n);
    s->out->k = opq_contract_extent_of(s, &s->sum);
    return true;
}

static int64_t tile_stride(const opq_splitter *s, int access, const opq_axis *loops)
{
    return opq_contract_stride_of(s, access, loops->variable[loops->count - 1]);
}

static int16_t take_access(opq_splitter *s, int access)
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

static void push_tile(opq_splitter *s)
{
    opq_loops *epilogue = &s->out->epilogue;
    opq_stmt load = opq_stmt_make(OPQ_STMT_load);
    load.dtype = s->k->stmts[s->out->product].dtype;
    load.access = (int16_t)epilogue->access_count++;
    s->accesses[load.access] =
        (opq_access){.buffer = (int16_t)s->out->tile, .dtype = load.dtype, .stride = {OPQ_STRIDE_any, OPQ_STRIDE_one}};
    s->stmt[s->out->product] = opq_loops_push(epilogue, &load);
}

/* The loop around all of a turned product. */
static void push_row(opq_splitter *s)
{
    opq_stmt row = opq_stmt_make(OPQ_STMT_loop);
    row.role = OPQ_LOOP_parallel;
    s->row = opq_loops_push(&s->out->epilogue, &row);
}

/* Of the batch, and of loops that are one or of one turn, the body goes on. */
static opq_rewrite choose(void *data, int i)
{
    opq_splitter *s = data;
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
    opq_splitter *s = data;
    (void)i;
    if (to->op == OPQ_STMT_loop) {
        to->variable = to->variable == s->n.variable[0];
        to->role = s->turned ? OPQ_LOOP_vector : to->role;
    } else if (opq_stmt_walks(to)) {
        to->access = take_access(s, to->access);
    }
}

static void make_epilogue(opq_splitter *s)
{
    opq_loops *epilogue = &s->out->epilogue;
    const opq_rewriter rewriter = {s->k, epilogue, s->stmt, s, choose, finish};
    (void)opq_loops_rewrite(&rewriter, 0, s->k->stmt_count);
    if (s->turned)
        epilogue->stmts[s->row].end = epilogue->stmts[s->row + 1].end;
}

static opq_status set_dims(opq_splitter *s, opq_arena *arena)
{
    opq_contract *out = s->out;
    int rank = out->epilogue.rank, count = out->epilogue.access_count, batch = out->batch_rank;
    out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(rank, count) * sizeof *out->dims);
    out->batch_strides = opq_arena_alloc(arena, (size_t)(count * batch + 1) * sizeof *out->batch_strides);
    if (out->dims == NULL || out->batch_strides == NULL)
        return opq_contract_no_memory();
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
            out->batch_strides[s->access[a] * batch + b] = opq_contract_stride_of(s, a, s->batch.variable[b]);
    }
    return OPQ_OK;
}

static opq_status make_room(opq_splitter *s, opq_arena *arena)
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
        return opq_contract_no_memory();
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
    opq_splitter s = {.k = loops, .dims = dims, .out = out_contract};
    memset(out_contract, 0, sizeof *out_contract);
    out_contract->tile = loops->buffer_count;
    OPQ_TRY(make_room(&s, arena));
    if (!find_loops(&s, may_turn))
        return opq_fail(OPQ_UNSUPPORTED, "kernel %s is not one product of two matrices", loops->name);
    OPQ_TRY(opq_contract_bind_operand(&s, arena, 0));
    OPQ_TRY(opq_contract_bind_operand(&s, arena, 1));
    make_epilogue(&s);
    return set_dims(&s, arena);
}
