/* The rest of a kernel once its loops are ordered (lower_order.c): strides, what is kept between sweeps, and the loops of short rows and of long
 * rows alone.
 */
#include "fusion/lower_state.h"
#include "fusion/target.h"
#include "graph/eval.h"

#include <string.h>

static bool is_inside(const opq_lower_loops *l, int loop) { return opq_role_is_inside(l->role[loop]); }

/* A row alone that is several loops. */
static bool is_sequence(const opq_lower_loops *l)
{
    int first = opq_lower_has_blocks(l);
    return l->count > 1 + first && is_inside(l, first) && is_inside(l, l->count - 1);
}

static bool is_cheap(const opq_stmt *stmt)
{
    return stmt->op >= OPQ_OP_COUNT || (opq_op_info_of((opq_op)stmt->op)->flags & OPQ_FLAG_CHEAP) != 0;
}

/* ---- the body */

void opq_lower_place(opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    uint16_t inside = opq_lower_inside(l);
    state->sweep_count = 1;
    for (int i = 0; i < state->body_count; i++) {
        const opq_stmt *stmt = &state->body[i];
        int sweep = 0;
        uint16_t depends = 0;
        for (int o = 0; o < 3; o++) {
            int operand = stmt->operand[o];
            if (operand < 0)
                continue;
            int behind = state->sweep[operand] + opq_op_reduces(state->body[operand].op);
            sweep = behind > sweep ? behind : sweep; /* one too many is refused later, whatever its number */
            depends |= state->depends[operand];
        }
        for (int v = 0; stmt->access >= 0 && v < l->count; v++)
            depends |= (uint16_t)((state->accesses[stmt->access].stride[v] != OPQ_STRIDE_zero) << v);
        if (opq_op_reduces(stmt->op))
            depends &= (uint16_t)~inside;
        if (opq_op_scans(stmt->op))
            depends |= inside;
        if (stmt->op == OPQ_STMT_store_add_at) /* adds in each turn, also where all add the same to the same place */
            depends = (uint16_t)((1u << l->count) - 1);
        state->depends[i] = depends;
        state->sweep[i] = (uint8_t)sweep;
        state->sweep_count = sweep >= state->sweep_count ? sweep + 1 : state->sweep_count;
    }
}

void opq_lower_sweeps(opq_lower_state *state, bool choose)
{
    const opq_lower_loops *l = &state->loops;
    uint16_t inside = opq_lower_inside(l);
    int last = l->count - 1;
    memset(state->sweeps, 0, (size_t)state->body_count);
    for (int i = state->body_count - 1; i >= 0; i--) {
        const opq_stmt *stmt = &state->body[i];
        uint8_t own = (uint8_t)(1u << state->sweep[i]);
        state->keeps[i] = state->keeps[i] && !choose;
        if (opq_stmt_is_root(stmt->op) || opq_op_reduces(stmt->op) || (state->depends[i] & inside) == 0)
            state->sweeps[i] = own;
        else if (choose && l->role[last] == OPQ_ROLE_reduced_inner && state->depends[i] >> last & 1 && !is_cheap(stmt))
            state->keeps[i] = (state->sweeps[i] & ~own) != 0;
        state->sweeps[i] |= state->keeps[i] ? own : 0;
        for (int o = 0; o < 3; o++)
            if (stmt->operand[o] >= 0)
                state->sweeps[stmt->operand[o]] |= state->keeps[i] ? own : state->sweeps[i];
    }
}

/* Elements that later sweeps compute or read once more. */
static void check_row_size(opq_lower_state *state)
{
    int64_t row;
    (void)opq_lower_index(&state->space, false, true, &row);
    for (int i = 0; i < state->body_count && row > opq_trees.row_max; i++) {
        unsigned sweeps = state->keeps[i] ? 1u << state->sweep[i] : state->sweeps[i];
        if ((state->depends[i] & opq_lower_inside(&state->loops)) != 0 && sweeps > 1)
            opq_lower_lose(state, OPQ_REFUSAL_row_size);
    }
}

/* Is it done again on turns of a loop that it does not depend on? In a sequence any of them may be the innermost one. */
static bool is_repeated(uint16_t depends, const opq_lower_loops *l)
{
    int depth = l->count - 1;
    bool repeated = false, sequence = is_sequence(l);
    while (depth > 0 && !(depends >> depth & 1) && !sequence)
        depth--;
    for (int loop = opq_lower_has_blocks(l); loop < depth + sequence && depends != 0; loop++)
        repeated = repeated || (!(depends >> loop & 1) && l->extent[loop] > 1 && (sequence || !is_inside(l, loop)));
    return repeated;
}

/* Dear work inside a loop that it does not depend on is done again on each turn, or, where that loop has the lanes and is short, for one
 * element at a time. */
static void check_recompute(opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int again = 0, last = l->count - 1;
    bool few_lanes = state->column && l->extent[last] < opq_trees.short_loop;
    uint16_t inside = opq_lower_inside(l);
    for (int i = 0; i < state->body_count; i++) {
        const opq_stmt *stmt = &state->body[i];
        uint16_t depends = state->depends[i];
        bool computes = stmt->op < OPQ_OP_COUNT && stmt->operand[0] >= 0;
        if (few_lanes && computes && (depends & inside) != 0 && !(depends >> last & 1))
            opq_lower_lose(state, OPQ_REFUSAL_recompute);
        if (computes && is_repeated(depends, l)) {
            again++;
            if (!is_cheap(stmt) || again > opq_trees.broadcast_work_max)
                opq_lower_lose(state, OPQ_REFUSAL_recompute);
        }
    }
}

/* More sweeps, or reductions and scans in one, than a kernel may have. All other limits were kept while the body was emitted. */
static bool has_too_many_folds(const opq_lower_state *state)
{
    int folds[OPQ_SWEEP_MAX] = {0};
    bool many = state->sweep_count > OPQ_SWEEP_MAX;
    for (int i = 0; i < state->body_count && !many; i++)
        if (opq_op_reduces(state->body[i].op) || opq_op_scans(state->body[i].op))
            many = ++folds[state->sweep[i]] > OPQ_REDUCTION_MAX;
    return many;
}

/* ---- short rows */

/* Cycles of a row, measured: alone, each reduction folds the lanes of its vector and a dear statement fills few of them; beside others,
 * elements that do not lie side by side are collected. */
static bool pays_across(const opq_lower_state *state, int64_t elements, int rows)
{
    int64_t alone = 0, beside = 0;
    for (int i = 0; i < state->body_count; i++) {
        const opq_stmt *stmt = &state->body[i];
        int64_t stride = stmt->access < 0 ? 0 : opq_lower_stride(state, stmt->access, rows);
        if (stride != 0 && stride != 1)
            beside += elements * opq_trees.collect_cycles;
        if (opq_op_reduces(stmt->op)) {
            opq_fold fold = opq_op_lowering((opq_op)stmt->op)->fold;
            bool compares = opq_fold_info_of(fold)->held == OPQ_HELD_operand;
            alone += opq_fold_is_arg(fold) ? opq_trees.fold_arg_cycles
                     : compares            ? opq_trees.fold_comparing_cycles
                                           : opq_trees.fold_cycles;
        } else if (stmt->op < OPQ_OP_COUNT && !is_cheap(stmt)) {
            alone += opq_trees.dear_cycles;
        }
    }
    return beside <= alone;
}

/* Many rows of a few elements, which lie in memory so that they are loaded lane by lane. */
static bool row_goes_across(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int last = l->count - 1, rows = last - 1;
    if (state->request->by_row || rows < 0 || l->role[last] != OPQ_ROLE_reduced_inner || is_inside(l, rows) ||
        l->extent[last] > OPQ_ACROSS_MAX || l->extent[rows] < OPQ_ACROSS_ROWS_MIN)
        return false;
    for (int a = 0; a < state->access_count; a++) {
        int64_t stride = opq_lower_stride(state, a, rows);
        if (stride != 0 && stride != 1 && opq_dtype_bytes((opq_dtype)state->accesses[a].dtype) < 4)
            return false;
    }
    return pays_across(state, l->extent[last], rows);
}

/* In a sequence, too, where the rows of its last loop are short: those of a few elements, and those that do not lie side by side. */
static bool sequence_goes_across(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int last = l->count - 1;
    int64_t few = l->extent[last], apart = 0, beside = 0;
    if (!is_sequence(l) || few > OPQ_ACROSS_MAX || l->extent[last - 1] < OPQ_ACROSS_ROWS_MIN)
        return false;
    for (int a = 0; a < state->access_count; a++) {
        int64_t in_row = opq_lower_stride(state, a, last), of_rows = opq_lower_stride(state, a, last - 1);
        apart += in_row < -1 || in_row >= OPQ_STRIDE_any;
        beside += of_rows < -1 || of_rows >= OPQ_STRIDE_any;
    }
    return few < opq_trees.short_loop ? beside <= apart : apart > 0 && beside <= apart;
}

/* Elements one by one, of which the last loop has a few: another loop has the lanes, and those behind it run in each. That before it, if it is
 * longer; else the innermost that fills a vector, of which not too much lies apart. -1: none. */
static int find_longer(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int last = l->count - 1;
    if (opq_lower_inside(l) != 0 || state->serial || last < 1 || l->extent[last] >= opq_trees.short_loop)
        return -1;
    if (l->extent[last - 1] >= opq_trees.longer_loop * l->extent[last])
        return last - 1;
    int64_t inside = l->extent[last] * l->extent[last - 1];
    for (int i = last - 2; i >= 0 && inside <= opq_trees.apart_max; inside *= l->extent[i--])
        if (l->extent[i] >= opq_trees.lanes)
            return i;
    return -1;
}

/* The loop that has the lanes instead of the last one; -1: none. */
static int find_lanes(const opq_lower_state *state)
{
    return row_goes_across(state) || sequence_goes_across(state) ? state->loops.count - 2 : find_longer(state);
}

/* Loop `lanes` becomes the last. Of a sequence, whose elements keep their order, it goes on standing outside of the one behind it. */
static void go_across(opq_lower_state *state, int lanes)
{
    opq_lower_loops *l = &state->loops;
    bool sequence = is_sequence(l);
    for (int i = 0; i < l->count; i++)
        if (i < lanes && sequence)
            l->role[i] = OPQ_ROLE_reduced_outer;
        else if (i > lanes && !is_inside(l, i))
            l->role[i] = OPQ_ROLE_each;
    l->role[lanes] = sequence ? OPQ_ROLE_reduced_lanes : OPQ_ROLE_lanes;
    opq_lower_sort(state);
}

/* ---- blocks of a long row alone */

/* One pass over its elements makes all reductions, and what they make is combined as they are. Of a sequence of loops nothing else may be
 * made: some elements may be computed more than once. */
static bool can_have_blocks(const opq_lower_state *state)
{
    int folds = 0;
    bool sequence = is_sequence(&state->loops);
    for (int i = 0; i < state->body_count; i++) {
        const opq_stmt *stmt = &state->body[i];
        bool late = state->sweep[i] > 0, varies = state->depends[i] != 0;
        if (opq_op_checks(stmt->op) || stmt->op == OPQ_STMT_nonzero || (late && varies) ||
            (opq_stmt_is_root(stmt->op) && varies && sequence))
            return false;
        if (!opq_op_reduces(stmt->op))
            continue;
        opq_fold fold = opq_op_lowering((opq_op)stmt->op)->fold;
        opq_dtype operand = (opq_dtype)state->body[stmt->operand[0]].dtype, result = (opq_dtype)stmt->dtype;
        if (opq_fold_is_arg(fold) || late || opq_eval_fold_dtype(fold, operand, result) != result)
            return false;
        folds++;
    }
    return state->buffer_count + folds <= OPQ_BUFFER_MAX && state->access_count + folds <= OPQ_ACCESS_MAX;
}

static bool is_long_row(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    return !state->request->by_row && l->count == 1 && l->role[0] == OPQ_ROLE_reduced_inner &&
           l->extent[0] >= opq_trees.blocks_min * OPQ_CHUNK;
}

/* A loop over blocks around those of the row, and for each reduction a buffer of a result for each block. */
static void make_blocks(opq_lower_state *state)
{
    opq_lower_loops *l = &state->loops;
    int64_t elements = 1;
    for (int i = 0; i < l->count; i++)
        elements *= l->extent[i];
    opq_lower_need(state, OPQ_ROLE_blocks);
    l->extent[l->count - 1] = (elements + OPQ_CHUNK - 1) / OPQ_CHUNK;
    opq_lower_sort(state);
    for (int i = 0; i < state->body_count; i++) {
        if (!opq_op_reduces(state->body[i].op))
            continue;
        int access = state->access_count++, buffer = state->buffer_count++;
        state->accesses[access] = (opq_access){.buffer = (int16_t)buffer, .dtype = state->body[i].dtype};
        state->affines[access] = (opq_affine){0};
        state->at_extents[access] = 0;
        state->buffers[buffer] = -1;
        state->written[buffer] = OPQ_BUFFER_own;
    }
}

/* ---- the kernel */

static void set_strides(opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int lanes = l->count - 1; /* the loop for them */
    while (state->out->direct && l->role[lanes] == OPQ_ROLE_k)
        lanes--;
    for (int a = 0; a < state->access_count; a++)
        for (int i = 0; i < l->count; i++) {
            int64_t stride = opq_lower_stride(state, a, i);
            bool apart = opq_lower_stride(state, a, lanes) >= OPQ_STRIDE_any;
            bool turned = l->role[i] == OPQ_ROLE_scan || (state->out->direct && l->role[i] == OPQ_ROLE_k && apart);
            bool vector = i == lanes || turned || l->role[i] == OPQ_ROLE_blocks || (is_sequence(l) && is_inside(l, i));
            bool baked = stride == 0 || (vector && stride > 0 && stride < OPQ_STRIDE_any);
            bool back = vector && stride == -1;
            state->accesses[a].stride[i] = (uint8_t)(baked ? stride : back ? OPQ_STRIDE_back : OPQ_STRIDE_any);
        }
    opq_lower_place(state);
}

/* Columns of one matrix, or of several. A strip of them is near when its next sweep begins, unless its rows share a few sets of the cache; whole rows
 * are read anew by each sweep, but as fast as memory gives them. */
static bool is_best_by_rows(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    uint32_t sweeps = 0;
    bool crowded = false, far = false;
    int columns = l->count - 1, rows = columns - 1;
    if (!state->column || opq_lower_inside(l) != 1u << rows || l->extent[columns] < OPQ_LANES ||
        l->extent[rows] < opq_trees.whole_rows_min)
        return false;
    for (int i = 0; i < state->body_count; i++)
        if (state->depends[i] >> rows & 1 || opq_op_reduces(state->body[i].op))
            sweeps |= 1u << state->sweep[i];
    for (int a = 0; a < state->access_count; a++) {
        int64_t row = opq_lower_stride(state, a, rows) * opq_dtype_bytes((opq_dtype)state->accesses[a].dtype);
        crowded = crowded || (row != 0 && row % opq_trees.crowded_bytes == 0);
        far = far || row >= opq_trees.far_bytes / l->extent[rows];
    }
    bool once = (sweeps & (sweeps - 1)) == 0;
    return crowded || (far && once);
}

/* Rows of a tile lie pages apart in a large tensor. With several of these that takes longer than a kernel of its own, which goes through each from
 * its beginning and may write where it reads: as Adam's update of a weight does, behind the product that is its gradient. */
static bool has_many_streams(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    int64_t elements = 1;
    int count = 0;
    if (state->out->matmul < 0)
        return false;
    for (int i = 0; i < l->count; i++)
        elements *= l->role[i] == OPQ_ROLE_k ? 1 : l->extent[i];
    for (int a = 0; a < state->access_count && elements >= opq_trees.stream_elements_min; a++) {
        bool walks = true;
        for (int i = 0; i < l->count && walks; i++)
            walks = l->role[i] == OPQ_ROLE_k ? opq_lower_stride(state, a, i) == 0
                                             : l->extent[i] == 1 || opq_lower_stride(state, a, i) != 0;
        for (int b = 0; b < a && walks; b++)
            walks = state->accesses[b].buffer != state->accesses[a].buffer;
        count += walks;
    }
    return count > opq_trees.tile_streams_max;
}

static opq_status copy_out(opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    opq_lowered *out = state->out;
    opq_arena *arena = state->arena;
    out->buffers = opq_arena_copy(arena, state->buffers, (size_t)state->buffer_count * sizeof *state->buffers);
    out->scalars = opq_arena_copy(arena, state->scalars, (size_t)state->scalar_count * sizeof *state->scalars);
    out->dims = opq_arena_room(arena, (size_t)opq_dims_of(l->count, state->access_count) * sizeof *out->dims);
    if (!out->buffers || !out->scalars || !out->dims)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while lowering a kernel");
    for (int i = 0; i < l->count; i++)
        out->dims[i] = l->extent[i];
    for (int a = 0; a < state->access_count; a++) {
        int64_t *dims = out->dims + opq_dims_of(l->count, a);
        dims[0] = state->affines[a].offset;
        for (int i = 0; i < l->count; i++)
            dims[1 + i] = opq_lower_stride(state, a, i);
        dims[1 + l->count] = state->affines[a].coef[OPQ_AT];
        dims[2 + l->count] = state->at_extents[a];
    }
    OPQ_TRY(opq_lower_tree(state, arena, &out->loops));
    out->loops.by_rows = is_best_by_rows(state);
    return OPQ_OK;
}

/* Which loop has the lanes, and whether there are blocks. */
static opq_status make_kernel(opq_lower_state *state)
{
    int lanes = find_lanes(state);
    bool blocks = (is_sequence(&state->loops) || is_long_row(state)) && can_have_blocks(state);
    if (lanes >= 0)
        go_across(state, lanes);
    if (blocks)
        make_blocks(state);
    if (lanes >= 0 || blocks) {
        set_strides(state);
        opq_lower_sweeps(state, true);
    }
    return copy_out(state);
}

opq_status opq_lower_finish(opq_lower_state *state)
{
    opq_lower_order(state);
    if (state->out->matmul >= 0 && state->buffer_count == OPQ_BUFFER_MAX) /* its epilogue has one more: the tile */
        opq_lower_refuse(state, OPQ_REFUSAL_buffers);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;
    if (has_many_streams(state))
        opq_lower_lose(state, OPQ_REFUSAL_streams);
    set_strides(state);
    if (is_sequence(&state->loops) && (state->request->by_row || !can_have_blocks(state)))
        opq_lower_refuse(state, OPQ_REFUSAL_view);
    if (has_too_many_folds(state))
        opq_lower_refuse(state, OPQ_REFUSAL_reductions);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;
    opq_lower_sweeps(state, true);
    check_row_size(state);
    check_recompute(state);
    return state->arena ? make_kernel(state) : OPQ_OK;
}
