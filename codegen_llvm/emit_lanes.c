/* Reducing by the rule `lanes`: the innermost of the loops is the vector axis.
 *
 *   segments: (index of the outer loops, chunk of 4096 of the innermost), in row-major order
 *     segment   64 lanes as `turn` vectors of accumulators, taking turns; folded in halves at its end
 *
 * Segment results follow the rule once more: they go to 64 lanes in memory, those are folded every 4096 segments into
 * 64 further lanes, which are folded at the end. Two such levels are enough for 2^36 elements. A row of one segment
 * skips all that: its result stands, because identities are neutral.
 *
 * argmax and argmin need no rule. Within a segment they keep 32-bit indices, per row a 64-bit one.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

enum { UPPER = 2 };

typedef struct sweep {
    opq_chain chain;       /* the last one is the vector axis */
    int leaf, count, turn; /* turn: vectors of accumulators per reduction */
    opq_reduction reductions[OPQ_REDUCTION_MAX];
    LLVMValueRef lanes[OPQ_REDUCTION_MAX][UPPER]; /* 64 elements each: segment results, folded segment results */
    LLVMValueRef row;                             /* elements before this index of the outer loops */
    LLVMValueRef segment_start;                   /* on the innermost loop */
    void (*run)(opq_nest *n, void *data, LLVMValueRef *group); /* gives the operands; NULL: the body does */
    void *data;
} sweep;

/* Per reduction one value between segments, and for arg reductions an index after it. */
typedef struct results {
    LLVMValueRef value[2 * OPQ_REDUCTION_MAX];
} results;

static int results_count(const sweep *s)
{
    int count = 0;
    for (int r = 0; r < s->count; r++)
        count += s->reductions[r].is_arg ? 2 : 1;
    return count;
}

/* ---- inside a segment */

static LLVMValueRef under_mask(opq_nest *n, LLVMValueRef next, LLVMValueRef before)
{
    return n->mask ? opq_select(n->e, n->mask, next, before) : next;
}

/* Index in the segment of this copy's lanes. */
static LLVMValueRef lane_indices(opq_nest *n, const sweep *s)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMTypeRef i32 = LLVMInt32TypeInContext(n->e->context);
    LLVMValueRef first = LLVMBuildTrunc(b, LLVMBuildSub(b, n->index[n->vector], s->segment_start, ""), i32, "");
    LLVMValueRef copy = opq_splat_int(n->e, opq_vector_of(n->e, i32), (int64_t)n->copy * n->e->lanes);
    return LLVMBuildAdd(b, opq_splat(n->e, first), LLVMBuildAdd(b, opq_lane_numbers(n->e, 32), copy, ""), "");
}

/* One vector of each operand into its accumulators. */
static void accumulate(opq_nest *n, void *data, LLVMValueRef *group)
{
    const sweep *s = data;
    for (int r = 0; r < s->count; r++) {
        const opq_reduction *red = &s->reductions[r];
        LLVMValueRef x = opq_reduction_operand(n, red);
        if (red->is_arg) {
            LLVMValueRef better = opq_fold_better(n->e, red->fold, red->dtype, group[0], x);
            if (n->mask)
                better = LLVMBuildAnd(n->e->builder, better, n->mask, "");
            group[0] = opq_select(n->e, better, x, group[0]);
            group[1] = opq_select(n->e, better, lane_indices(n, s), group[1]);
            group += 2;
            continue;
        }
        group[0] = under_mask(n, opq_fold_combine(n->e, red->fold, red->dtype, group[0], x), group[0]);
        group++;
    }
}

static void start_lanes(opq_nest *n, const sweep *s, LLVMValueRef *group)
{
    for (int r = 0; r < s->count; r++) {
        *group++ = opq_fold_identity(n->e, s->reductions[r].fold, s->reductions[r].dtype);
        if (s->reductions[r].is_arg)
            *group++ = opq_splat_int(n->e, opq_vector_type(n->e, OPQ_i32), -1);
    }
}

/* Folds the lanes of one segment; arg results join the row's best at once. */
static void fold_segment(opq_nest *n, const sweep *s, LLVMValueRef *lanes, LLVMValueRef base, results *io)
{
    int group = results_count(s), at = 0;
    for (int r = 0; r < s->count; r++) {
        const opq_reduction *red = &s->reductions[r];
        LLVMValueRef vectors[64], indices[64];
        for (int t = 0; t < s->turn; t++) {
            vectors[t] = lanes[t * group + at];
            indices[t] = red->is_arg ? lanes[t * group + at + 1] : NULL;
        }
        if (!red->is_arg) {
            io->value[at++] = opq_fold_lanes(n->e, red->fold, red->dtype, vectors, s->turn);
            continue;
        }
        opq_fold_arg_lanes(n->e, red->fold, red->dtype, vectors, indices, s->turn);
        LLVMValueRef index = LLVMBuildZExt(n->e->builder, indices[0], opq_vector_type(n->e, OPQ_i64), "");
        index = LLVMBuildAdd(n->e->builder, index, opq_splat(n->e, base), "");
        LLVMValueRef better = opq_fold_better(n->e, red->fold, red->dtype, io->value[at], vectors[0]);
        io->value[at] = opq_select(n->e, better, vectors[0], io->value[at]);
        io->value[at + 1] = opq_select(n->e, better, index, io->value[at + 1]);
        at += 2;
    }
}

/* ---- between segments */

static LLVMValueRef upper_pointer(opq_nest *n, const sweep *s, const opq_reduction *red, int level, LLVMValueRef lane)
{
    LLVMValueRef lanes = s->lanes[red - s->reductions][level];
    return LLVMBuildGEP2(n->e->builder, opq_memory_type(n->e, red->dtype), lanes, &lane, 1, "");
}

static void clear_upper(opq_nest *n, const sweep *s, const opq_reduction *red, int level)
{
    LLVMValueRef identity = opq_fold_identity(n->e, red->fold, red->dtype);
    for (int lane = 0; lane < OPQ_LANES; lane += n->e->lanes)
        opq_memory_store(n, red->dtype, OPQ_STRIDE_one, NULL, upper_pointer(n, s, red, level, opq_i64(n->e, lane)),
                         NULL, identity);
}

static LLVMValueRef fold_upper(opq_nest *n, const sweep *s, const opq_reduction *red, int level)
{
    LLVMValueRef vectors[64];
    int count = 0;
    for (int lane = 0; lane < OPQ_LANES; lane += n->e->lanes)
        vectors[count++] = opq_memory_load(n, red->dtype, OPQ_STRIDE_one, NULL,
                                           upper_pointer(n, s, red, level, opq_i64(n->e, lane)), NULL);
    return opq_fold_lanes(n->e, red->fold, red->dtype, vectors, count);
}

static void add_upper(opq_nest *n, const sweep *s, const opq_reduction *red, int level, LLVMValueRef number,
                      LLVMValueRef value)
{
    LLVMValueRef lane = LLVMBuildAnd(n->e->builder, number, opq_i64(n->e, OPQ_LANES - 1), "");
    LLVMValueRef pointer = upper_pointer(n, s, red, level, lane);
    LLVMValueRef old = opq_memory_load(n, red->dtype, OPQ_STRIDE_zero, NULL, pointer, NULL);
    opq_memory_store(n, red->dtype, OPQ_STRIDE_zero, NULL, pointer, NULL,
                     opq_fold_combine(n->e, red->fold, red->dtype, old, value));
}

/* Calls `body` for every reduction with a tree, at its place among the results. */
#define FOR_TREES(s, red, at)                                                                                          \
    int at = 0;                                                                                                        \
    for (const opq_reduction *red = (s)->reductions; red < (s)->reductions + (s)->count;                               \
         at += red->is_arg ? 2 : 1, red++)                                                                             \
        if (!red->is_arg)

/* if (segments > 1) segment `number`'s results go up; a full or last chunk of segments goes up once more. */
static void raise_segment(opq_nest *n, const sweep *s, LLVMValueRef segments, LLVMValueRef number, const results *r)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMBasicBlockRef many = opq_nest_block(n, "segment"), full = opq_nest_block(n, "segments"),
                      next = opq_nest_block(n, "next");
    LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSGT, segments, opq_i64(n->e, 1), ""), many, next);
    LLVMPositionBuilderAtEnd(b, many);
    FOR_TREES(s, red, at)
    add_upper(n, s, red, 0, number, r->value[at]);
    LLVMValueRef done = LLVMBuildAdd(b, number, opq_i64(n->e, 1), "");
    LLVMValueRef low = LLVMBuildAnd(b, done, opq_i64(n->e, OPQ_CHUNK - 1), "");
    LLVMValueRef is_full = LLVMBuildOr(b, LLVMBuildICmp(b, LLVMIntEQ, low, opq_i64(n->e, 0), ""),
                                       LLVMBuildICmp(b, LLVMIntEQ, done, segments, ""), "");
    LLVMBuildCondBr(b, is_full, full, next);
    LLVMPositionBuilderAtEnd(b, full);
    LLVMValueRef chunk = LLVMBuildUDiv(b, number, opq_i64(n->e, OPQ_CHUNK), "");
    FOR_TREES(s, red2, at2)
    {
        add_upper(n, s, red2, 1, chunk, fold_upper(n, s, red2, 0));
        clear_upper(n, s, red2, 0);
        (void)at2;
    }
    LLVMBuildBr(b, next);
    LLVMPositionBuilderAtEnd(b, next);
}

/* Before the first segment (`clear`) or after the last, if there are several. */
static void with_upper(opq_nest *n, const sweep *s, LLVMValueRef segments, bool clear, results *io)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMBasicBlockRef before = LLVMGetInsertBlock(b), many = opq_nest_block(n, "many"), next = opq_nest_block(n, "row");
    LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSGT, segments, opq_i64(n->e, 1), ""), many, next);
    LLVMPositionBuilderAtEnd(b, many);
    results folded = *io;
    FOR_TREES(s, red, at)
    {
        if (clear) {
            clear_upper(n, s, red, 0);
            clear_upper(n, s, red, 1);
        } else {
            folded.value[at] = fold_upper(n, s, red, 1);
        }
    }
    many = LLVMGetInsertBlock(b);
    LLVMBuildBr(b, next);
    LLVMPositionBuilderAtEnd(b, next);
    if (clear)
        return;
    FOR_TREES(s, red2, at2)
    {
        (void)red2;
        LLVMValueRef phi = LLVMBuildPhi(b, LLVMTypeOf(folded.value[at2]), "");
        LLVMAddIncoming(phi, (LLVMValueRef[]){io->value[at2], folded.value[at2]}, (LLVMBasicBlockRef[]){before, many}, 2);
        io->value[at2] = phi;
    }
}

/* ---- a sweep */

static int copies_for(const sweep *s, int cost)
{
    int copies = s->turn;
    while (copies > 1 && copies * cost > 32)
        copies /= 2;
    return copies;
}

static void run_given(opq_nest *n, void *data, LLVMValueRef *group)
{
    const sweep *s = data;
    s->run(n, s->data, group);
}

static void emit_segment(opq_nest *n, sweep *s, LLVMValueRef from, LLVMValueRef to, results *io)
{
    int group = results_count(s), variable = opq_nest_stmt(n, s->leaf)->variable;
    int cost = s->run ? 1 : opq_nest_cost(n, variable, s->leaf + 1, opq_nest_stmt(n, s->leaf)->end);
    LLVMValueRef lanes[OPQ_CARRIED_MAX];
    opq_span span = {.loop = s->leaf,
                     .copies = copies_for(s, cost),
                     .rotate = s->turn,
                     .carried = s->turn * group,
                     .run = s->run ? run_given : NULL,
                     .after = accumulate,
                     .data = s};
    s->segment_start = from;
    for (int t = 0; t < s->turn; t++)
        start_lanes(n, s, lanes + t * group);
    opq_nest_span(n, &span, from, to, lanes);
    fold_segment(n, s, lanes, LLVMBuildAdd(n->e->builder, s->row, from, ""), io);
}

/* Of this index of the outer loops: its segments. */
static void emit_innermost(opq_nest *n, sweep *s, LLVMValueRef outer, LLVMValueRef segments, results *io)
{
    LLVMBuilderRef b = n->e->builder;
    int group = results_count(s);
    LLVMValueRef extent = n->extent[opq_nest_stmt(n, s->leaf)->variable], chunk = opq_i64(n->e, OPQ_CHUNK);
    s->row = LLVMBuildMul(b, outer, extent, "");
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), extent, OPQ_CHUNK, io->value, group);
    LLVMValueRef end = LLVMBuildAdd(b, loop.index, chunk, "");
    end = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, end, extent, ""), end, extent, "");
    emit_segment(n, s, loop.index, end, io);
    LLVMValueRef per_outer = LLVMBuildUDiv(b, LLVMBuildAdd(b, extent, opq_i64(n->e, OPQ_CHUNK - 1), ""), chunk, "");
    LLVMValueRef number =
        LLVMBuildAdd(b, LLVMBuildMul(b, outer, per_outer, ""), LLVMBuildUDiv(b, loop.index, chunk, ""), "");
    raise_segment(n, s, segments, number, io);
    opq_loop_end(n, &loop, io->value);
}

/* Without outer loops there is one index of them. */
static void emit_outer(opq_nest *n, sweep *s, const opq_odometer *odometer, LLVMValueRef segments, results *io)
{
    LLVMValueRef zero = opq_i64(n->e, 0), carried[OPQ_LOOP_MAX + 2 * OPQ_REDUCTION_MAX];
    int rank = odometer->rank, group = results_count(s);
    if (rank == 0) {
        emit_innermost(n, s, zero, segments, io);
        return;
    }
    for (int i = 0; i < rank; i++)
        carried[i] = zero;
    memcpy(carried + rank, io->value, (size_t)group * sizeof *carried);
    opq_loop loop;
    opq_loop_begin(n, &loop, zero, opq_odometer_count(n, odometer), 1, carried, rank + group);
    opq_places places = opq_nest_places(n);
    opq_nest_enter(n, odometer, &s->chain, carried);
    memcpy(io->value, carried + rank, (size_t)group * sizeof *carried);
    emit_innermost(n, s, loop.index, segments, io);
    opq_nest_return(n, &places);
    opq_odometer_next(n, odometer, carried);
    memcpy(carried + rank, io->value, (size_t)group * sizeof *carried);
    opq_loop_end(n, &loop, carried);
    memcpy(io->value, carried + rank, (size_t)group * sizeof *carried);
}

/* Finds the reductions and gives them their lanes on the stack. */
static void plan_sweep(opq_nest *n, int loop, sweep *s)
{
    s->chain = opq_nest_chain(n->k, loop);
    s->leaf = s->chain.loop[s->chain.count - 1];
    s->turn = OPQ_LANES / n->e->lanes;
    s->count = opq_nest_reductions(n, s->leaf + 1, opq_nest_stmt(n, s->leaf)->end, s->reductions);
    for (int r = 0; r < s->count; r++) {
        LLVMTypeRef lanes = LLVMArrayType2(opq_memory_type(n->e, s->reductions[r].dtype), OPQ_LANES);
        for (int level = 0; level < UPPER && !s->reductions[r].is_arg; level++)
            s->lanes[r][level] = opq_nest_stack(n, lanes);
    }
}

static void start_results(opq_nest *n, const sweep *s, results *io)
{
    int at = 0;
    for (int r = 0; r < s->count; r++) {
        io->value[at++] = opq_fold_identity(n->e, s->reductions[r].fold, s->reductions[r].dtype);
        if (s->reductions[r].is_arg)
            io->value[at++] = opq_splat_int(n->e, opq_vector_type(n->e, OPQ_i64), 0);
    }
}

static void define_results(opq_nest *n, const sweep *s, const results *io)
{
    int at = 0;
    for (int r = 0; r < s->count; at += s->reductions[r].is_arg ? 2 : 1, r++)
        opq_nest_define(n, s->reductions[r].stmt, io->value[s->reductions[r].is_arg ? at + 1 : at]);
}

void opq_emit_lanes(opq_nest *n, int loop)
{
    sweep s;
    results io;
    LLVMBuilderRef b = n->e->builder;
    plan_sweep(n, loop, &s);
    s.run = NULL;
    opq_odometer outer = opq_nest_odometer(n, &s.chain);
    outer.rank--;
    LLVMValueRef segments = LLVMBuildAdd(b, n->extent[outer.variable[outer.rank]], opq_i64(n->e, OPQ_CHUNK - 1), "");
    segments = LLVMBuildUDiv(b, segments, opq_i64(n->e, OPQ_CHUNK), "");
    if (outer.rank)
        segments = LLVMBuildMul(b, opq_odometer_count(n, &outer), segments, "");
    start_results(n, &s, &io);
    with_upper(n, &s, segments, true, &io);
    emit_outer(n, &s, &outer, segments, &io);
    with_upper(n, &s, segments, false, &io);
    define_results(n, &s, &io);
}

void opq_emit_chunk(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to,
                    void (*run)(opq_nest *n, void *data, LLVMValueRef *group), void *data)
{
    sweep s;
    results io;
    plan_sweep(n, loop, &s);
    s.run = run;
    s.data = data;
    start_results(n, &s, &io);
    s.row = opq_i64(n->e, 0);
    emit_segment(n, &s, from, to, &io);
    define_results(n, &s, &io);
}
