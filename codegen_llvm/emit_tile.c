/* Rows in lanes: a turn's elements lie a row apart, and the turns of a row side by side. As many turns as there are lanes are a tile, which is
 * loaded row by row, transposed, and lies then where each turn finds its lanes side by side; what is stored goes the other way.
 *
 *   memory      row 0: a0 a1 a2 a3       tile      turn 0: a0 b0 c0 d0
 *               row 1: b0 b1 b2 b3   ->            turn 1: a1 b1 c1 d1
 *
 * Elements are transposed as they are computed, in 4 or 8 bytes.
 */
#include "codegen_llvm/nest.h"

#include <stdio.h>
#include <string.h>

static LLVMTypeRef element_type(const opq_emitter *e, opq_dtype dtype)
{
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT || opq_dtype_bytes(dtype) == 8)
        return opq_lane_type(e, dtype);
    return LLVMInt32TypeInContext(e->context);
}

bool opq_stmt_tiles(const opq_loops *k, int stmt, int lanes, int turns)
{
    const opq_stmt *use = &k->stmts[stmt];
    if ((use->op != OPQ_STMT_load && use->op != OPQ_STMT_store) || opq_dtype_bytes((opq_dtype)use->dtype) > 8)
        return false;
    if (use->op == OPQ_STMT_load && use->operand[0] >= 0) /* a tile has no lanes without an element */
        return false;
    const uint8_t *stride = k->accesses[use->access].stride;
    return stride[lanes] == OPQ_STRIDE_any && (stride[turns] == OPQ_STRIDE_one || stride[turns] == OPQ_STRIDE_back);
}

void opq_tiles_open(opq_nest *n, int loop, opq_tiles *out_tiles)
{
    out_tiles->count = 0;
    out_tiles->variable = opq_nest_stmt(n, loop)->variable;
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end && out_tiles->count < OPQ_TILE_MAX; i++) {
        const opq_stmt *stmt = opq_nest_stmt(n, i);
        if (!opq_stmt_tiles(n->k, i, n->vector, out_tiles->variable))
            continue;
        uint64_t elements = (uint64_t)n->e->lanes * (uint64_t)n->e->lanes * (uint64_t)n->strip;
        out_tiles->memory[out_tiles->count] =
            opq_nest_stack(n, LLVMArrayType2(element_type(n->e, (opq_dtype)stmt->dtype), elements));
        out_tiles->stmt[out_tiles->count++] = i;
    }
}

/* ---- a turn */

static LLVMValueRef place(opq_nest *n, opq_dtype dtype, LLVMValueRef memory, LLVMValueRef turn, int copy)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef at = LLVMBuildMul(b, turn, opq_i64(n->e, (int64_t)n->strip * n->e->lanes), "");
    at = LLVMBuildAdd(b, at, opq_i64(n->e, (int64_t)copy * n->e->lanes), "");
    return LLVMBuildGEP2(b, element_type(n->e, dtype), memory, &at, 1, "");
}

void opq_tiles_enter(opq_nest *n, const opq_tiles *tiles, LLVMValueRef turn)
{
    for (int t = 0; t < tiles->count; t++) {
        const opq_stmt *stmt = opq_nest_stmt(n, tiles->stmt[t]);
        n->tile[stmt->access] = turn ? place(n, (opq_dtype)stmt->dtype, tiles->memory[t], turn, 0) : NULL;
    }
}

/* Whole vectors lie at multiples of what 4-byte lanes take. */
static LLVMValueRef load_vector(opq_nest *n, LLVMTypeRef element, LLVMValueRef place)
{
    LLVMValueRef load = LLVMBuildLoad2(n->e->builder, opq_vector_of(n->e, element), place, "");
    LLVMSetAlignment(load, (unsigned)n->e->lanes * 4);
    return load;
}

static void store_vector(opq_nest *n, LLVMValueRef vector, LLVMValueRef place)
{
    LLVMSetAlignment(LLVMBuildStore(n->e->builder, vector, place), (unsigned)n->e->lanes * 4);
}

static LLVMValueRef of_copy(opq_nest *n, opq_dtype dtype, LLVMValueRef tile)
{
    return place(n, dtype, tile, opq_i64(n->e, 0), n->copy);
}

static LLVMValueRef narrow(opq_nest *n, opq_dtype dtype, LLVMValueRef x)
{
    LLVMTypeRef type = opq_vector_type(n->e, dtype);
    return LLVMTypeOf(x) == type ? x : LLVMBuildTrunc(n->e->builder, x, type, "");
}

static LLVMValueRef widen(opq_nest *n, opq_dtype dtype, LLVMValueRef x)
{
    LLVMTypeRef type = opq_vector_of(n->e, element_type(n->e, dtype));
    return LLVMTypeOf(x) == type ? x : LLVMBuildZExt(n->e->builder, x, type, "");
}

LLVMValueRef opq_tile_lanes(opq_nest *n, opq_dtype dtype, LLVMValueRef tile)
{
    return narrow(n, dtype, load_vector(n, element_type(n->e, dtype), of_copy(n, dtype, tile)));
}

void opq_tile_keep(opq_nest *n, opq_dtype dtype, LLVMValueRef tile, LLVMValueRef value)
{
    store_vector(n, widen(n, dtype, value), of_copy(n, dtype, tile));
}

/* ---- all turns */

/* Swaps bit `by` of a row's number with that of an element's. */
static void swap_bit(opq_nest *n, LLVMValueRef *rows, int by)
{
    int lanes = n->e->lanes;
    LLVMValueRef low[OPQ_LANES], high[OPQ_LANES];
    for (int i = 0; i < lanes; i++) {
        low[i] = opq_int(n->e, 32, i & by ? lanes + (i ^ by) : i);
        high[i] = opq_int(n->e, 32, i & by ? lanes + i : i ^ by);
    }
    LLVMValueRef low_mask = LLVMConstVector(low, (unsigned)lanes), high_mask = LLVMConstVector(high, (unsigned)lanes);
    for (int i = 0; i < lanes; i++) {
        if (i & by)
            continue;
        LLVMValueRef a = rows[i], b = rows[i | by];
        rows[i] = LLVMBuildShuffleVector(n->e->builder, a, b, low_mask, "");
        rows[i | by] = LLVMBuildShuffleVector(n->e->builder, a, b, high_mask, "");
    }
}

static LLVMValueRef row_of(opq_emitter *e, LLVMTypeRef element, LLVMValueRef function, unsigned parameter, int row)
{
    LLVMValueRef at = LLVMBuildMul(e->builder, LLVMGetParam(function, parameter + 1), opq_i64(e, row), "");
    return LLVMBuildGEP2(e->builder, element, LLVMGetParam(function, parameter), &at, 1, "");
}

/* A function of its own, once for all tiles of these elements: (first row, elements from row to row, where to, and from row to row there). */
static LLVMValueRef transposer(opq_nest *n, LLVMTypeRef element)
{
    opq_emitter *e = n->e;
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), i64 = LLVMInt64TypeInContext(e->context);
    LLVMTypeRef arguments[4] = {pointer, i64, pointer, i64};
    LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->context), arguments, 4, false);
    const char *name = LLVMGetTypeKind(element) == LLVMFloatTypeKind    ? "transpose_f32"
                       : LLVMGetTypeKind(element) == LLVMDoubleTypeKind ? "transpose_f64"
                       : LLVMGetIntTypeWidth(element) == 64             ? "transpose_i64"
                                                                        : "transpose_i32";
    LLVMValueRef function = LLVMGetNamedFunction(e->module, name), rows[OPQ_LANES];
    if (function)
        return function;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(e->builder);
    function = LLVMAddFunction(e->module, name, type);
    LLVMSetLinkage(function, LLVMInternalLinkage);
    LLVMPositionBuilderAtEnd(e->builder, LLVMAppendBasicBlockInContext(e->context, function, "entry"));
    for (int i = 0; i < e->lanes; i++) {
        rows[i] = LLVMBuildLoad2(e->builder, opq_vector_of(e, element), row_of(e, element, function, 0, i), "");
        LLVMSetAlignment(rows[i], 1); /* of a tensor, maybe */
        /* Read once: rows of a tensor may all be in one set of the cache, which halves of them, read apart, would have left between. */
        LLVMSetVolatile(rows[i], true);
    }
    for (int by = e->lanes / 2; by > 0; by /= 2)
        swap_bit(n, rows, by);
    for (int i = 0; i < e->lanes; i++)
        store_vector(n, rows[i], row_of(e, element, function, 2, i));
    LLVMBuildRetVoid(e->builder);
    LLVMPositionBuilderAtEnd(e->builder, here);
    return function;
}

/* This copy's part of a tile, in place, or from rows so many elements apart. */
static void transpose(opq_nest *n, opq_dtype dtype, LLVMValueRef memory, LLVMValueRef from, LLVMValueRef step)
{
    LLVMValueRef function = transposer(n, element_type(n->e, dtype)), to = of_copy(n, dtype, memory);
    LLVMValueRef apart = opq_i64(n->e, (int64_t)n->strip * n->e->lanes);
    LLVMValueRef args[4] = {from ? from : to, from ? step : apart, to, apart};
    LLVMBuildCall2(n->e->builder, LLVMGlobalGetValueType(function), function, args, 4, "");
}

/* Of a row that is not there, none. */
static LLVMValueRef row_mask(opq_nest *n, int row)
{
    if (!n->mask)
        return NULL;
    LLVMValueRef there = LLVMBuildICmp(n->e->builder, LLVMIntSGT, n->remaining, opq_i64(n->e, row), "");
    return opq_splat(n->e, there);
}

/* The first `count` turns of a row, as they lie in memory; NULL: all. */
static LLVMValueRef turn_mask(opq_nest *n, const opq_tiles *tiles, int access, LLVMValueRef count)
{
    LLVMBuilderRef b = n->e->builder;
    if (!count)
        return NULL;
    LLVMValueRef lanes = opq_lane_numbers(n->e, 32);
    if (n->k->accesses[access].stride[tiles->variable] == OPQ_STRIDE_back)
        lanes = LLVMBuildSub(b, opq_splat(n->e, opq_int(n->e, 32, n->e->lanes - 1)), lanes, "");
    count = opq_splat(n->e, LLVMBuildTrunc(b, count, LLVMInt32TypeInContext(n->e->context), ""));
    return LLVMBuildICmp(b, LLVMIntSLT, lanes, count, "");
}

/* The first of the tile's elements of a row in memory: backwards it is that of the last turn. */
static LLVMValueRef row_pointer(opq_nest *n, const opq_tiles *tiles, int access, int row)
{
    LLVMBuilderRef b = n->e->builder;
    const opq_access *a = &n->k->accesses[access];
    LLVMValueRef at = LLVMBuildMul(b, opq_nest_step(n, access), opq_i64(n->e, row), "");
    if (a->stride[tiles->variable] == OPQ_STRIDE_back)
        at = LLVMBuildSub(b, at, opq_i64(n->e, n->e->lanes - 1), "");
    return LLVMBuildGEP2(b, opq_memory_type(n->e, (opq_dtype)a->dtype), opq_nest_pointer(n, access, NULL), &at, 1, "");
}

/* A row's elements as its turns have them. */
static LLVMValueRef in_turns(opq_nest *n, const opq_tiles *tiles, int access, LLVMValueRef row)
{
    LLVMValueRef turned[OPQ_LANES];
    if (n->k->accesses[access].stride[tiles->variable] != OPQ_STRIDE_back)
        return row;
    for (int i = 0; i < n->e->lanes; i++)
        turned[i] = opq_int(n->e, 32, n->e->lanes - 1 - i);
    return LLVMBuildShuffleVector(n->e->builder, row, row, LLVMConstVector(turned, (unsigned)n->e->lanes), "");
}

static void load_tile(opq_nest *n, const opq_tiles *tiles, int t, LLVMValueRef count)
{
    const opq_stmt *stmt = opq_nest_stmt(n, tiles->stmt[t]);
    opq_dtype dtype = (opq_dtype)stmt->dtype, memory = (opq_dtype)n->k->accesses[stmt->access].dtype;
    bool as_is = opq_memory_type(n->e, memory) == element_type(n->e, dtype) &&
                 n->k->accesses[stmt->access].stride[tiles->variable] == OPQ_STRIDE_one;
    if (as_is && !n->mask && !count) {
        LLVMValueRef from = opq_nest_pointer(n, stmt->access, NULL);
        int ahead = n->e->cpu->target->strip.tiles_ahead * n->e->lanes * (int)opq_dtype_bytes(memory);
        for (int r = 0; r < n->e->lanes && n->prefetch; r++) /* hardware follows fewer streams */
            opq_nest_prefetch(n, row_pointer(n, tiles, stmt->access, r), ahead);
        transpose(n, dtype, tiles->memory[t], from, opq_nest_step(n, stmt->access));
        return;
    }
    LLVMValueRef turns = turn_mask(n, tiles, stmt->access, count);
    for (int r = 0; r < n->e->lanes; r++) {
        LLVMValueRef from = row_pointer(n, tiles, stmt->access, r), mask = opq_nest_both(n, turns, row_mask(n, r));
        LLVMValueRef row = widen(n, dtype, opq_memory_load(n, memory, OPQ_STRIDE_one, NULL, from, mask));
        row = in_turns(n, tiles, stmt->access, row);
        store_vector(n, row, place(n, dtype, tiles->memory[t], opq_i64(n->e, r), n->copy));
    }
    transpose(n, dtype, tiles->memory[t], NULL, NULL);
}

static void store_tile(opq_nest *n, const opq_tiles *tiles, int t)
{
    const opq_stmt *stmt = opq_nest_stmt(n, tiles->stmt[t]);
    opq_dtype dtype = (opq_dtype)stmt->dtype, memory = (opq_dtype)n->k->accesses[stmt->access].dtype;
    LLVMTypeRef element = element_type(n->e, dtype);
    transpose(n, dtype, tiles->memory[t], NULL, NULL);
    for (int r = 0; r < n->e->lanes; r++) {
        LLVMValueRef row = load_vector(n, element, place(n, dtype, tiles->memory[t], opq_i64(n->e, r), n->copy));
        row = narrow(n, dtype, in_turns(n, tiles, stmt->access, row));
        opq_memory_store(n, memory, OPQ_STRIDE_one, NULL, row_pointer(n, tiles, stmt->access, r), row_mask(n, r), row);
    }
}

static void move(opq_nest *n, const opq_tiles *tiles, LLVMValueRef first, LLVMValueRef count, int op)
{
    opq_places places = opq_nest_places(n);
    n->index[tiles->variable] = first;
    opq_nest_bind(n, 1u << tiles->variable);
    for (int t = 0; t < tiles->count; t++)
        for (int copy = 0; copy < n->strip && opq_nest_stmt(n, tiles->stmt[t])->op == op; copy++) {
            opq_nest_use_copy(n, copy);
            op == OPQ_STMT_load ? load_tile(n, tiles, t, count) : store_tile(n, tiles, t);
        }
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
}

void opq_tiles_load(opq_nest *n, const opq_tiles *tiles, LLVMValueRef first, LLVMValueRef count)
{
    move(n, tiles, first, count, OPQ_STMT_load);
}

void opq_tiles_store(opq_nest *n, const opq_tiles *tiles, LLVMValueRef first)
{
    move(n, tiles, first, NULL, OPQ_STMT_store);
}

/* ---- rows of a few elements: each of them of as many rows as there are lanes becomes row after row */

enum { INTERLEAVED_MAX = 4 };

/* Vector `part` of `count` interleaved ones. */
static LLVMValueRef interleaved(opq_nest *n, const LLVMValueRef *vectors, int count, int part)
{
    LLVMValueRef all = vectors[0], from[OPQ_LANES];
    for (int v = 0; v < count; v++) {
        for (int i = 0; i < n->e->lanes; i++) {
            int at = part * n->e->lanes + i;
            from[i] = opq_int(n->e, 32, at % count == v ? n->e->lanes + at / count : i);
        }
        LLVMValueRef mask = LLVMConstVector(from, (unsigned)n->e->lanes);
        all = LLVMBuildShuffleVector(n->e->builder, all, vectors[v], mask, "");
    }
    return all;
}

static void interleave_few(opq_nest *n, LLVMTypeRef element, LLVMValueRef from, LLVMValueRef to, int count)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef vectors[INTERLEAVED_MAX];
    for (int pass = 0; pass < 2; pass++)
        for (int v = 0; v < count; v++) {
            LLVMValueRef at = opq_i64(n->e, (int64_t)v * n->e->lanes);
            LLVMValueRef place = LLVMBuildGEP2(b, element, pass == 0 ? from : to, &at, 1, "");
            LLVMValueRef moved = pass == 0 ? vectors[v] = LLVMBuildLoad2(b, opq_vector_of(n->e, element), place, "")
                                           : LLVMBuildStore(b, interleaved(n, vectors, count, v), place);
            LLVMSetAlignment(moved, 1);
        }
}

/* Element by element, of which there may be more. */
static void interleave_many(opq_nest *n, LLVMTypeRef element, LLVMValueRef from, LLVMValueRef to, LLVMValueRef count)
{
    LLVMBuilderRef b = n->e->builder;
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), count, 1, NULL, 0);
    LLVMValueRef at = LLVMBuildMul(b, loop.index, opq_i64(n->e, n->e->lanes), "");
    LLVMValueRef place = LLVMBuildGEP2(b, element, from, &at, 1, "");
    LLVMValueRef vector = LLVMBuildLoad2(b, opq_vector_of(n->e, element), place, "");
    LLVMSetAlignment(vector, 1);
    at = loop.index;
    for (int lane = 0; lane < n->e->lanes; lane++) {
        LLVMBuildStore(b, opq_lane(n->e, vector, lane), LLVMBuildGEP2(b, element, to, &at, 1, ""));
        at = LLVMBuildAdd(b, at, count, "");
    }
    opq_loop_end(n, &loop, NULL);
}

/* A function of its own, as `transposer`: (from, to, count). */
static LLVMValueRef interleaver(opq_nest *n, LLVMTypeRef element)
{
    opq_emitter *e = n->e;
    LLVMBuilderRef b = e->builder;
    LLVMTypeRef pointer = LLVMPointerTypeInContext(e->context, 0), i64 = LLVMInt64TypeInContext(e->context);
    LLVMTypeRef type =
        LLVMFunctionType(LLVMVoidTypeInContext(e->context), (LLVMTypeRef[]){pointer, pointer, i64}, 3, false);
    char name[64], *of = LLVMPrintTypeToString(element);
    snprintf(name, sizeof name, "interleave_%s", of);
    LLVMDisposeMessage(of);
    LLVMValueRef function = LLVMGetNamedFunction(e->module, name), outer = e->function;
    if (function)
        return function;
    LLVMBasicBlockRef here = LLVMGetInsertBlock(b);
    function = e->function = LLVMAddFunction(e->module, name, type);
    LLVMSetLinkage(function, LLVMInternalLinkage);
    LLVMValueRef from = LLVMGetParam(function, 0), to = LLVMGetParam(function, 1), count = LLVMGetParam(function, 2);
    LLVMPositionBuilderAtEnd(b, opq_nest_block(n, "entry"));
    LLVMBasicBlockRef many = opq_nest_block(n, "many");
    LLVMValueRef chosen = LLVMBuildSwitch(b, count, many, INTERLEAVED_MAX);
    for (int few = 2; few <= INTERLEAVED_MAX; few++) {
        LLVMBasicBlockRef block = opq_nest_block(n, "few");
        LLVMAddCase(chosen, opq_i64(e, few), block);
        LLVMPositionBuilderAtEnd(b, block);
        interleave_few(n, element, from, to, few);
        LLVMBuildRetVoid(b);
    }
    LLVMPositionBuilderAtEnd(b, many);
    interleave_many(n, element, from, to, count);
    LLVMBuildRetVoid(b);
    LLVMPositionBuilderAtEnd(b, here);
    e->function = outer;
    return function;
}

void opq_interleave(opq_nest *n, LLVMTypeRef element, LLVMValueRef from, LLVMValueRef to, LLVMValueRef count)
{
    LLVMValueRef function = interleaver(n, element), args[3] = {from, to, count};
    LLVMBuildCall2(n->e->builder, LLVMGlobalGetValueType(function), function, args, 3, "");
}
