/* A product's tree, divided between an engine that makes tiles and what is made of a tile.
 *
 *   parallel b { parallel m { vector n {                     parallel m { vector n {
 *     chain k { %1 = load..; %2 = load..; %3 = matmul }        %3 = load tile
 *     %5 = add %3, %4; store %5                                %5 = add %3, %4; store %5
 *   } } }                                                    } }
 */
#include "fusion/loop.h"

#include <string.h>

typedef struct splitter {
    const opq_loops *k;
    const int64_t *dims;
    opq_contract *out;
    int m, n, chain;         /* variables; chain: its statement */
    int batch[OPQ_LOOP_MAX]; /* variables */
    int16_t *stmt;           /* per statement: in the epilogue */
    int16_t *access;         /* per access: in the epilogue, -1 */
    opq_access *accesses;
} splitter;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory while dividing a product"); }

static int64_t stride_of(const splitter *s, int access, int variable)
{
    return opq_loops_stride(s->k, s->dims, access, variable);
}

/* The chain with its product, the two loops around it, and the others, which are batch. */
static bool find_loops(splitter *s)
{
    int open[OPQ_LOOP_MAX], depth = 0, found = -1;
    for (int i = 0; i < s->k->stmt_count; i++) {
        if (opq_op_contracts(s->k->stmts[i].op))
            s->out->product = i;
        if (s->k->stmts[i].op != OPQ_STMT_loop)
            continue;
        if (found >= 0)
            return false;
        if (s->k->stmts[i].role == OPQ_LOOP_chain)
            found = i;
        else
            open[depth++] = s->k->stmts[i].variable;
    }
    if (found < 0 || depth < 2)
        return false;
    s->chain = found;
    s->m = open[depth - 2];
    s->n = open[depth - 1];
    s->out->batch_rank = depth - 2;
    for (int b = 0; b < depth - 2; b++) {
        s->batch[b] = open[b];
        s->out->batch_extent[b] = s->dims[open[b]];
    }
    s->out->m = s->dims[s->m];
    s->out->n = s->dims[s->n];
    s->out->k = s->dims[s->k->stmts[found].variable];
    return true;
}

static bool bind_operand(splitter *s, int o)
{
    const opq_stmt *product = &s->k->stmts[s->out->product], *load = &s->k->stmts[product->operand[o]];
    if (load->op != OPQ_INSTR_load)
        return false;
    int summed = s->k->stmts[s->chain].variable;
    int64_t along = stride_of(s, load->access, o == 0 ? s->m : s->n), across = stride_of(s, load->access, summed);
    s->out->operand[o].buffer = s->k->accesses[load->access].buffer;
    s->out->operand[o].dtype = (opq_dtype)s->k->accesses[load->access].dtype;
    s->out->operand[o].offset = s->dims[opq_dims_of(s->k->rank, load->access)];
    s->out->operand[o].row_stride = o == 0 ? along : across;
    s->out->operand[o].column_stride = o == 0 ? across : along;
    for (int b = 0; b < s->out->batch_rank; b++)
        s->out->operand[o].batch_stride[b] = stride_of(s, load->access, s->batch[b]);
    return stride_of(s, load->access, o == 0 ? s->n : s->m) == 0;
}

static int16_t take_access(splitter *s, int access)
{
    if (access < 0 || s->access[access] >= 0)
        return (int16_t)(access < 0 ? -1 : s->access[access]);
    opq_access *taken = &s->accesses[s->out->epilogue.access_count];
    int64_t along[2] = {stride_of(s, access, s->m), stride_of(s, access, s->n)};
    *taken = s->k->accesses[access];
    memset(taken->stride, 0, sizeof taken->stride);
    for (int l = 0; l < 2; l++)
        taken->stride[l] = along[l] == 0 ? OPQ_STRIDE_zero : l == 1 && along[l] == 1 ? OPQ_STRIDE_one : OPQ_STRIDE_any;
    return s->access[access] = (int16_t)s->out->epilogue.access_count++;
}

static void push_tile(splitter *s)
{
    opq_loops *epilogue = &s->out->epilogue;
    uint8_t dtype = s->k->stmts[s->out->product].dtype;
    s->accesses[epilogue->access_count] =
        (opq_access){.buffer = (int16_t)s->out->tile, .dtype = dtype, .stride = {OPQ_STRIDE_any, OPQ_STRIDE_one}};
    s->stmt[s->out->product] = (int16_t)epilogue->stmt_count;
    epilogue->stmts[epilogue->stmt_count++] = (opq_stmt){.op = OPQ_INSTR_load,
                                                         .dtype = dtype,
                                                         .operand = {-1, -1, -1},
                                                         .access = (int16_t)epilogue->access_count++,
                                                         .node = -1};
}

static void copy_body(splitter *s, int from, int to)
{
    opq_loops *epilogue = &s->out->epilogue;
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &s->k->stmts[i];
        if (i == s->chain) {
            push_tile(s);
            i = stmt->end - 1;
            continue;
        }
        if (stmt->op == OPQ_STMT_loop && stmt->variable != s->m && stmt->variable != s->n)
            continue; /* a batch loop: its body goes on */
        int at = epilogue->stmt_count++;
        s->stmt[i] = (int16_t)at;
        epilogue->stmts[at] = *stmt;
        if (stmt->op == OPQ_STMT_loop) {
            epilogue->stmts[at].variable = stmt->variable == s->n;
            copy_body(s, i + 1, stmt->end);
            epilogue->stmts[at].end = epilogue->stmt_count;
            i = stmt->end - 1;
            continue;
        }
        epilogue->stmts[at].access = take_access(s, stmt->access);
        for (int o = 0; o < 3; o++)
            if (stmt->operand[o] >= 0)
                epilogue->stmts[at].operand[o] = s->stmt[stmt->operand[o]];
    }
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
        to[1] = stride_of(s, a, s->m);
        to[2] = stride_of(s, a, s->n);
        to[3] = from[1 + s->k->rank];
        to[4] = from[2 + s->k->rank];
        for (int b = 0; b < batch; b++)
            out->batch_strides[s->access[a] * batch + b] = stride_of(s, a, s->batch[b]);
    }
    return OPQ_OK;
}

static opq_status make_room(splitter *s, opq_arena *arena)
{
    const opq_loops *k = s->k;
    opq_loops *epilogue = &s->out->epilogue;
    size_t stmts = (size_t)k->stmt_count + 1, accesses = (size_t)k->access_count + 1;
    s->stmt = opq_arena_alloc(arena, stmts * sizeof *s->stmt);
    s->access = opq_arena_alloc(arena, accesses * sizeof *s->access);
    s->accesses = opq_arena_alloc(arena, accesses * sizeof *s->accesses);
    *epilogue = (opq_loops){.name = k->name,
                            .rank = 2,
                            .buffer_count = k->buffer_count + 1,
                            .scalar_count = k->scalar_count,
                            .accesses = s->accesses};
    epilogue->stmts = opq_arena_alloc(arena, stmts * sizeof *epilogue->stmts);
    epilogue->written = opq_arena_alloc(arena, (size_t)epilogue->buffer_count);
    if (!s->stmt || !s->access || !s->accesses || !epilogue->stmts || !epilogue->written)
        return out_of_memory();
    memcpy(epilogue->written, k->written, (size_t)k->buffer_count);
    epilogue->written[k->buffer_count] = 0;
    memset(s->access, 0xff, accesses * sizeof *s->access);
    return OPQ_OK;
}

opq_status opq_loops_contract(const opq_loops *loops, const int64_t *dims, opq_arena *arena, opq_contract *out_contract)
{
    splitter s = {.k = loops, .dims = dims, .out = out_contract};
    memset(out_contract, 0, sizeof *out_contract);
    out_contract->tile = loops->buffer_count;
    if (!find_loops(&s) || !bind_operand(&s, 0) || !bind_operand(&s, 1))
        return opq_fail(OPQ_UNSUPPORTED, "kernel %s is not one product of two matrices", loops->name);
    OPQ_TRY(make_room(&s, arena));
    copy_body(&s, 0, loops->stmt_count);
    return set_dims(&s, arena);
}
