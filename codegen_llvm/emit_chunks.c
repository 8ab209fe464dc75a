/* Chunks of a row that is several loops, `serial i in c { vector j in c { .. } }`. A chunk begins and ends anywhere in the innermost loop, and
 * what it folds need not lie side by side. So that is brought into order first, in memory that stays in cache, for some chunks at a time;
 * from there they are folded as others are.
 *
 *   rows     the innermost loop has the lanes; it may have fewer turns
 *   tiles    where accesses lie apart along it and side by side along another: as many turns of that one as there are lanes, whose
 *            elements are transposed (emit_tile.c)
 *   across   rows of a few elements, `serial k in c { vector j in c { .. } }`: the loop around has the lanes, as the last variable
 *
 * No lane is masked where a vector can begin earlier, and rows may be whole. So some elements are computed twice, or are not of these chunks:
 * nothing of them is stored, or may fail.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

typedef struct chunks {
    opq_chain chain;
    int leaf, tiled; /* last of the chain; along which tiles lie side by side, -1: none */
    bool across;
    int count, operand[OPQ_REDUCTION_MAX];  /* statements of the nest that are folded */
    LLVMValueRef memory[OPQ_REDUCTION_MAX]; /* of each, where the chunks begin */
    LLVMValueRef inside[OPQ_LOOP_MAX];      /* elements of one turn, for each of the chain */
    LLVMValueRef first, last;               /* elements of the chunks: [first, last) */
    LLVMValueRef place;                     /* of turn 0 of the loop with the lanes, behind `first` */
    LLVMValueRef lanes[OPQ_REDUCTION_MAX];  /* across: memory for a vector of each element */
} chunks;

/* ---- what there is */

/* Of the kernel or of its schedule, where an operand may be cast first: the same, for who launches knows the kernel. */
static int find_operands(const opq_loops *k, int nest, int *out_operand)
{
    int count = 0;
    for (int i = nest + 1; i < k->stmts[nest].end; i++) {
        if (!opq_op_reduces(k->stmts[i].op) && k->stmts[i].op != OPQ_STMT_fold)
            continue;
        int operand = k->stmts[i].operand[0];
        if (k->origin && operand > nest && k->origin[operand] == k->origin[i])
            operand = k->stmts[operand].operand[0];
        bool known = operand < nest;
        for (int o = 0; o < count && !known; o++)
            known = out_operand[o] == operand;
        if (!known && count < OPQ_REDUCTION_MAX)
            out_operand[count++] = operand;
    }
    return count;
}

/* The loops in one block. */
static opq_chain chain_of(const opq_loops *k, int nest)
{
    opq_chain chain = {0};
    for (int i = nest; i < k->stmts[nest].end; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].within == k->stmts[nest].within)
            chain.loop[chain.count++] = i;
    return chain;
}

int opq_chunks_nest(const opq_loops *k, int loop)
{
    do
        loop++;
    while (loop < k->stmt_count && k->stmts[loop].op == OPQ_STMT_carry);
    return loop;
}

/* The loop of the chain along which most of what lies apart lies side by side. */
static int find_tiled(const opq_loops *k, const opq_chain *chain, int64_t bytes)
{
    int leaf = chain->count - 1, best = -1, most = 1, nest = chain->loop[0];
    for (int level = 0; level < leaf && bytes <= opq_trees.tiled_bytes_max; level++) {
        int tiles = 0;
        for (int i = nest + 1; i < k->stmts[nest].end; i++)
            tiles += opq_stmt_tiles(k, i, k->stmts[chain->loop[leaf]].variable, k->stmts[chain->loop[level]].variable);
        if (tiles >= most) {
            best = level;
            most = tiles;
        }
    }
    return best;
}

static int64_t folded_bytes(const opq_loops *k, const int *operand, int count)
{
    int64_t bytes = 0;
    for (int o = 0; o < count; o++)
        bytes += opq_dtype_bytes((opq_dtype)k->stmts[operand[o]].dtype);
    return bytes;
}

/* Around the chunks is room for the whole turn of a tiled loop, and for lanes that do not count. */
static int64_t room_for(int tiled) { return ((tiled >= 0 ? opq_trees.chunks_together : 1) + 2) * (int64_t)OPQ_CHUNK; }

int64_t opq_chunks_scratch(const opq_loops *k, int nest)
{
    int operand[OPQ_REDUCTION_MAX], count = find_operands(k, nest, operand);
    opq_chain chain = chain_of(k, nest);
    int64_t bytes = folded_bytes(k, operand, count);
    return bytes * room_for(find_tiled(k, &chain, bytes));
}

static int variable_of(const opq_nest *n, const chunks *c, int level)
{
    return opq_nest_stmt(n, c->chain.loop[level])->variable;
}

static void plan_chunks(opq_nest *n, int nest, chunks *c)
{
    LLVMBuilderRef b = n->e->builder;
    *c = (chunks){.chain = chain_of(n->k, nest)};
    c->count = find_operands(n->k, nest, c->operand);
    c->leaf = c->chain.count - 1;
    c->across = variable_of(n, c, c->leaf) < variable_of(n, c, c->leaf - 1);
    c->tiled = find_tiled(n->k, &c->chain, folded_bytes(n->k, c->operand, c->count));
    LLVMValueRef inside = opq_i64(n->e, 1);
    for (int level = c->leaf; level >= 0; level--) {
        c->inside[level] = inside;
        inside = LLVMBuildMul(b, inside, n->extent[opq_nest_stmt(n, c->chain.loop[level])->variable], "");
    }
    LLVMValueRef at = opq_i64(n->e, OPQ_CHUNK), memory = n->behind_locals;
    for (int o = 0; o < c->count; o++) {
        opq_dtype dtype = (opq_dtype)opq_nest_stmt(n, c->operand[o])->dtype;
        c->memory[o] = LLVMBuildGEP2(b, opq_memory_type(n->e, dtype), memory, &at, 1, "");
        LLVMValueRef bytes = opq_i64(n->e, room_for(c->tiled) * opq_dtype_bytes(dtype));
        memory = LLVMBuildGEP2(b, LLVMInt8TypeInContext(n->e->context), memory, &bytes, 1, "");
    }
}

/* ---- in order */

/* A turn's element is the one that follows those of the turns before it, and `before`. */
static LLVMValueRef behind(opq_nest *n, const chunks *c, int level, LLVMValueRef before, LLVMValueRef turn)
{
    return LLVMBuildAdd(n->e->builder, before, LLVMBuildMul(n->e->builder, turn, c->inside[level], ""), "");
}

static LLVMTypeRef memory_type(const opq_nest *n, const chunks *c, int o)
{
    return opq_memory_type(n->e, (opq_dtype)opq_nest_stmt(n, c->operand[o])->dtype);
}

/* What is folded goes where the chunks have it, `at` elements behind their first. */
static void keep_at(opq_nest *n, const chunks *c, const LLVMValueRef *memory, LLVMValueRef at)
{
    for (int o = 0; o < c->count; o++) {
        LLVMValueRef to = LLVMBuildGEP2(n->e->builder, memory_type(n, c, o), memory[o], &at, 1, "");
        opq_memory_store(n, (opq_dtype)opq_nest_stmt(n, c->operand[o])->dtype, OPQ_STRIDE_one, NULL, to, NULL,
                         opq_nest_value(n, c->operand[o]));
    }
}

/* The lanes of this copy. What those that do not count write is written again by the next row. */
static void keep(opq_nest *n, const chunks *c)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef lane = LLVMBuildAdd(b, n->index[n->vector], opq_i64(n->e, (int64_t)n->copy * n->e->lanes), "");
    keep_at(n, c, c->memory, LLVMBuildAdd(b, c->place, lane, ""));
}

/* What stands in a loop, and in those in it, but for the folds. */
static void run_values(opq_nest *n, int loop)
{
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end; i++)
        if (!opq_nest_is_folding(n, i))
            opq_nest_run_one(n, i, i + 1);
}

static void enter(opq_nest *n, const chunks *c, int level, LLVMValueRef turn)
{
    n->index[variable_of(n, c, level)] = turn;
    opq_nest_bind(n, 1u << variable_of(n, c, level));
}

/* The last vector before `to`, of a loop of at least as many turns as there are lanes. */
static LLVMValueRef last_vector(opq_nest *n, LLVMValueRef to)
{
    return opq_nest_larger(n, LLVMBuildSub(n->e->builder, to, opq_i64(n->e, n->e->lanes), ""), opq_i64(n->e, 0));
}

/* ---- tiles */

typedef struct tile_run {
    chunks *c;
    opq_tiles tiles;
    LLVMValueRef before, from, to; /* elements before the tiled loop; its turns */
} tile_run;

/* As many turns as there are lanes, from `first` on, each of one vector. */
static void emit_tile(opq_nest *n, tile_run *t, LLVMValueRef at, LLVMValueRef first)
{
    const chunks *c = t->c;
    LLVMBuilderRef b = n->e->builder;
    int loop = c->chain.loop[c->tiled];
    opq_loop turns;
    opq_tiles_load(n, &t->tiles, first, NULL);
    opq_loop_begin(n, &turns, first, LLVMBuildAdd(b, first, opq_i64(n->e, n->e->lanes), ""), 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    enter(n, c, c->tiled, turns.index);
    opq_tiles_enter(n, &t->tiles, LLVMBuildSub(b, turns.index, first, ""));
    run_values(n, loop);
    keep_at(n, c, c->memory, behind(n, c, c->tiled, at, turns.index));
    opq_tiles_enter(n, &t->tiles, NULL);
    opq_nest_return(n, &places);
    opq_loop_end(n, &turns, NULL);
}

/* All tiles of the vector at `lane`, which is of elements from `at` on of each turn: memory is read along them. */
static void emit_tiles_of(opq_nest *n, tile_run *t, LLVMValueRef at, LLVMValueRef lane)
{
    const chunks *c = t->c;
    opq_loop loop;
    opq_places places = opq_nest_places(n);
    enter(n, c, c->leaf, lane);
    n->vector_bound = true;
    at = LLVMBuildAdd(n->e->builder, LLVMBuildSub(n->e->builder, t->before, c->first, ""), at, "");
    at = LLVMBuildAdd(n->e->builder, at, lane, "");
    opq_loop_begin(n, &loop, t->from, t->to, n->e->lanes, NULL, 0);
    emit_tile(n, t, at, opq_nest_smaller(n, loop.index, last_vector(n, t->to)));
    opq_loop_end(n, &loop, NULL);
    n->vector_bound = false;
    opq_nest_return(n, &places);
}

/* The loops inside the tiled one, whole. */
static void emit_tile_row(opq_nest *n, tile_run *t, int level, LLVMValueRef at)
{
    chunks *c = t->c;
    LLVMValueRef zero = opq_i64(n->e, 0), extent = n->extent[variable_of(n, c, level)];
    opq_loop loop;
    if (level < c->leaf) {
        opq_loop_begin(n, &loop, zero, extent, 1, NULL, 0);
        opq_places places = opq_nest_places(n);
        enter(n, c, level, loop.index);
        emit_tile_row(n, t, level + 1, behind(n, c, level, at, loop.index));
        opq_nest_return(n, &places);
        opq_loop_end(n, &loop, NULL);
        return;
    }
    opq_loop_begin(n, &loop, zero, extent, n->e->lanes, NULL, 0);
    emit_tiles_of(n, t, at, opq_nest_smaller(n, loop.index, last_vector(n, extent)));
    opq_loop_end(n, &loop, NULL);
}

/* Turns [from, to) of the tiled loop, at least as many as there are lanes; the last tiles may overlap those before. */
static void emit_tiles(opq_nest *n, chunks *c, LLVMValueRef before, LLVMValueRef from, LLVMValueRef to)
{
    tile_run t = {.c = c, .before = before, .from = from, .to = to};
    n->vector = variable_of(n, c, c->leaf);
    opq_tiles_open(n, c->chain.loop[c->tiled], &t.tiles);
    emit_tile_row(n, &t, c->tiled + 1, opq_i64(n->e, 0));
    n->vector = -1;
}

/* ---- rows */

/* Whole vectors from `from` on, `copies` at a time: where they end. */
static LLVMValueRef emit_vectors(opq_nest *n, chunks *c, LLVMValueRef from, LLVMValueRef to, int copies)
{
    LLVMBuilderRef b = n->e->builder;
    int row = c->chain.loop[c->leaf], elements = copies * n->e->lanes;
    opq_loop loop;
    LLVMValueRef whole = LLVMBuildAnd(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, -(int64_t)elements), "");
    whole = LLVMBuildAdd(b, from, whole, "");
    opq_loop_begin(n, &loop, from, whole, elements, NULL, 0);
    n->index[n->vector] = loop.index;
    n->prefetch = true;
    for (n->copy = 0; n->copy < copies; n->copy++) {
        run_values(n, row);
        keep(n, c);
    }
    n->copy = 0;
    n->prefetch = false;
    opq_loop_end(n, &loop, NULL);
    return whole;
}

/* Elements [from, to) of a row that has at least as many as there are lanes. */
static void emit_row(opq_nest *n, chunks *c, LLVMValueRef from, LLVMValueRef to)
{
    int row = c->chain.loop[c->leaf];
    int cost = opq_nest_cost(n, variable_of(n, c, c->leaf), row + 1, opq_nest_stmt(n, row)->end);
    opq_loop last;
    n->vector = variable_of(n, c, c->leaf);
    from = emit_vectors(n, c, from, to, cost <= 8 ? 4 : 2);
    from = emit_vectors(n, c, from, to, 1);
    opq_loop_begin(n, &last, from, to, n->e->lanes, NULL, 0);
    n->index[n->vector] = last_vector(n, to);
    run_values(n, row);
    keep(n, c);
    opq_loop_end(n, &last, NULL);
    n->vector = -1;
}

/* Rows [from, to) that have fewer, each in one vector. */
static void emit_narrow_rows(opq_nest *n, chunks *c, LLVMValueRef before, LLVMValueRef from, LLVMValueRef to)
{
    int loop = c->chain.loop[c->leaf - 1];
    opq_loop rows;
    n->vector = variable_of(n, c, c->leaf);
    n->index[n->vector] = opq_i64(n->e, 0);
    opq_nest_mask(n, n->extent[n->vector]);
    opq_loop_begin(n, &rows, from, to, 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    enter(n, c, c->leaf - 1, rows.index);
    c->place = LLVMBuildSub(n->e->builder, behind(n, c, c->leaf - 1, before, rows.index), c->first, "");
    run_values(n, loop);
    keep(n, c);
    opq_nest_return(n, &places);
    opq_loop_end(n, &rows, NULL);
    opq_nest_mask(n, NULL);
    n->vector = -1;
}

/* ---- across */

/* As many rows as there are lanes, from `first` on: their elements one by one, and then row by row. */
static void emit_rows_across(opq_nest *n, chunks *c, LLVMValueRef before, LLVMValueRef first)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef extent = n->extent[variable_of(n, c, c->leaf)];
    int rows = c->chain.loop[c->leaf - 1];
    opq_loop loop;
    n->index[n->vector] = first;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), extent, 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    enter(n, c, c->leaf, loop.index);
    run_values(n, rows);
    keep_at(n, c, c->lanes, LLVMBuildMul(b, loop.index, opq_i64(n->e, n->e->lanes), ""));
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, NULL);
    LLVMValueRef at = LLVMBuildSub(b, behind(n, c, c->leaf - 1, before, first), c->first, "");
    for (int o = 0; o < c->count; o++) {
        LLVMTypeRef type = memory_type(n, c, o);
        opq_interleave(n, type, c->lanes[o], LLVMBuildGEP2(b, type, c->memory[o], &at, 1, ""), extent);
    }
}

static void emit_across(opq_nest *n, chunks *c, LLVMValueRef before, LLVMValueRef from, LLVMValueRef to)
{
    opq_loop loop;
    for (int o = 0; o < c->count; o++)
        c->lanes[o] = opq_nest_stack(n, LLVMArrayType2(memory_type(n, c, o), (uint64_t)(OPQ_ACROSS_MAX * n->e->lanes)));
    n->vector = variable_of(n, c, c->leaf - 1);
    opq_loop_begin(n, &loop, from, to, n->e->lanes, NULL, 0);
    emit_rows_across(n, c, before, opq_nest_smaller(n, loop.index, last_vector(n, to)));
    opq_loop_end(n, &loop, NULL);
    n->vector = -1;
}

/* ---- loop by loop */

static void emit_level(opq_nest *n, chunks *c, int level, LLVMValueRef before);

static void emit_turns(opq_nest *n, chunks *c, int level, LLVMValueRef before, LLVMValueRef from, LLVMValueRef to)
{
    opq_loop loop;
    opq_loop_begin(n, &loop, from, to, 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    enter(n, c, level, loop.index);
    opq_nest_run(n, c->chain.loop[level] + 1, c->chain.loop[level + 1]);
    emit_level(n, c, level + 1, behind(n, c, level, before, loop.index));
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, NULL);
}

static LLVMValueRef at_least_lanes(opq_nest *n, LLVMValueRef count)
{
    return LLVMBuildICmp(n->e->builder, LLVMIntSGE, count, opq_i64(n->e, n->e->lanes), "");
}

/* The loop's turns that have elements of the chunks; `before`: elements before its first. */
static void emit_level(opq_nest *n, chunks *c, int level, LLVMValueRef before)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef inside = c->inside[level];
    LLVMValueRef from = opq_nest_larger(n, LLVMBuildSub(b, c->first, before, ""), opq_i64(n->e, 0));
    LLVMValueRef to = LLVMBuildSub(b, c->last, before, "");
    if (level < c->leaf) {
        from = LLVMBuildUDiv(b, from, inside, "");
        to = LLVMBuildAdd(b, to, LLVMBuildSub(b, inside, opq_i64(n->e, 1), ""), "");
        to = LLVMBuildUDiv(b, to, inside, "");
    }
    to = opq_nest_smaller(n, to, n->extent[variable_of(n, c, level)]);
    if (level == c->leaf) {
        c->place = LLVMBuildSub(b, before, c->first, "");
        emit_row(n, c, from, to);
        return;
    }
    LLVMValueRef wide = at_least_lanes(n, n->extent[variable_of(n, c, c->leaf)]);
    if (level == c->leaf - 1 && c->across) {
        emit_across(n, c, before, from, to);
        return;
    }
    LLVMBasicBlockRef tiled = NULL, narrow = NULL;
    if (level == c->tiled) {
        LLVMValueRef fits = LLVMBuildICmp(b, LLVMIntSLE, inside, opq_i64(n->e, OPQ_CHUNK), "");
        fits = LLVMBuildAnd(b, fits, at_least_lanes(n, LLVMBuildSub(b, to, from, "")), "");
        tiled = opq_nest_if(n, LLVMBuildAnd(b, fits, wide, ""));
        emit_tiles(n, c, before, from, to);
        tiled = opq_nest_else(n, tiled);
    }
    if (level == c->leaf - 1) {
        narrow = opq_nest_if(n, LLVMBuildNot(b, wide, ""));
        emit_narrow_rows(n, c, before, from, to);
        narrow = opq_nest_else(n, narrow);
    }
    emit_turns(n, c, level, before, from, to);
    if (narrow)
        opq_nest_end_if(n, narrow);
    if (tiled)
        opq_nest_end_if(n, tiled);
}

/* ---- chunks */

/* Lanes of what lies in order. */
static void load_kept(opq_nest *n, void *data)
{
    const chunks *c = data;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef at = LLVMBuildAdd(b, n->index[n->vector], opq_i64(n->e, (int64_t)n->copy * n->e->lanes), "");
    for (int o = 0; o < c->count; o++) {
        opq_dtype dtype = (opq_dtype)opq_nest_stmt(n, c->operand[o])->dtype;
        LLVMValueRef from = LLVMBuildGEP2(b, opq_memory_type(n->e, dtype), c->memory[o], &at, 1, "");
        n->value[c->operand[o]] = opq_memory_load(n, dtype, OPQ_STRIDE_one, NULL, from, NULL);
    }
}

static LLVMValueRef element_of(opq_nest *n, const chunks *c, LLVMValueRef chunk)
{
    LLVMValueRef extent = n->extent[variable_of(n, c, 0)];
    LLVMValueRef all = LLVMBuildMul(n->e->builder, c->inside[0], extent, "");
    return opq_nest_smaller(n, LLVMBuildMul(n->e->builder, chunk, opq_i64(n->e, OPQ_CHUNK), ""), all);
}

static void fill(opq_nest *n, chunks *c, LLVMValueRef from, LLVMValueRef to)
{
    c->first = element_of(n, c, from);
    c->last = element_of(n, c, to);
    emit_level(n, c, 0, opq_i64(n->e, 0));
}

static void fold(opq_nest *n, chunks *c, LLVMValueRef chunk)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef next = LLVMBuildAdd(b, chunk, opq_i64(n->e, 1), "");
    LLVMValueRef from = LLVMBuildSub(b, element_of(n, c, chunk), c->first, "");
    LLVMValueRef to = LLVMBuildSub(b, element_of(n, c, next), c->first, "");
    opq_emit_partials(n, c->chain.loop[c->leaf], from, to, load_kept, c);
}

void opq_emit_chunks(opq_nest *n, int loop)
{
    chunks c;
    LLVMBuilderRef b = n->e->builder;
    int nest = opq_chunks_nest(n->k, loop), variable = opq_nest_stmt(n, loop)->variable;
    LLVMValueRef together = opq_i64(n->e, 1);
    opq_loop some, one;
    plan_chunks(n, nest, &c);
    if (c.tiled >= 0) {
        together = LLVMBuildUDiv(b, c.inside[c.tiled], opq_i64(n->e, n->e->cpu->target->turn_per_chunk), "");
        together = opq_nest_smaller(n, opq_nest_larger(n, together, opq_i64(n->e, 1)),
                                    opq_i64(n->e, opq_trees.chunks_together));
    }
    opq_loop_begin(n, &some, n->begin, n->end, 1, NULL, 0);
    some.step = together;
    LLVMValueRef to = opq_nest_smaller(n, LLVMBuildAdd(b, some.index, together, ""), n->end);
    fill(n, &c, some.index, to);
    opq_loop_begin(n, &one, some.index, to, 1, NULL, 0);
    opq_places places = opq_nest_places(n);
    n->index[variable] = one.index;
    opq_nest_bind(n, 1u << variable);
    opq_nest_run(n, loop + 1, nest);
    fold(n, &c, one.index);
    opq_nest_run(n, opq_nest_stmt(n, nest)->end, opq_nest_stmt(n, loop)->end);
    opq_nest_return(n, &places);
    opq_loop_end(n, &one, NULL);
    opq_loop_end(n, &some, NULL);
}
