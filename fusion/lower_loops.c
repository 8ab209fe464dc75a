/* The rest of a kernel once its loops are ordered (lower_order.c): sweep, spill and depth of each instruction, and the loops of short rows and
 * of long rows alone.
 */
#include "fusion/lower_state.h"
#include "fusion/target.h"
#include "graph/eval.h"

#include <string.h>

static void refuse(opq_lower_state *state, opq_refusal refusal)
{
    if (state->refusal == OPQ_REFUSAL_none)
        state->refusal = refusal;
}

/* ---- instructions */

/* Of a row kernel's: the row alone is several loops. */
static bool is_sequence(const opq_kernel *kernel)
{
    return kernel->kind == OPQ_KERNEL_row && kernel->rank > 1 + kernel->blocks && kernel->reduced[kernel->blocks] &&
           kernel->reduced[kernel->rank - 1];
}

static bool is_cheap(const opq_instr *instr)
{
    return instr->op >= OPQ_OP_COUNT || (opq_op_info_of((opq_op)instr->op)->flags & OPQ_FLAG_CHEAP) != 0;
}

static void set_depends(opq_lower_state *state, const opq_kernel *kernel)
{
    uint16_t reduced = opq_kernel_reduced_mask(kernel);
    for (int i = 0; i < state->instr_count; i++) {
        opq_instr *instr = &state->instrs[i];
        instr->depends = 0;
        instr->sweep = 0;
        for (int k = 0; k < 3; k++) {
            if (instr->operand[k] < 0)
                continue;
            const opq_instr *operand = &state->instrs[instr->operand[k]];
            int sweep = operand->sweep + (opq_instr_reduces(operand) ? 1 : 0);
            instr->depends |= operand->depends;
            if (sweep > instr->sweep) /* one too many is refused later, whatever its number */
                instr->sweep = (uint8_t)(sweep < OPQ_SWEEP_MAX ? sweep : OPQ_SWEEP_MAX);
        }
        for (int l = 0; instr->access >= 0 && l < kernel->rank; l++)
            if (kernel->accesses[instr->access].stride[l] != OPQ_STRIDE_zero)
                instr->depends |= (uint16_t)(1u << l);
        if (opq_instr_reduces(instr))
            instr->depends &= (uint16_t)~reduced;
        if (opq_op_scans(instr->op))
            instr->depends |= reduced;
        if (instr->op ==
            OPQ_INSTR_store_add_at) /* adds once for each turn, also where every turn adds the same to the same place */
            instr->depends = (uint16_t)((1u << kernel->rank) - 1);
    }
}

/* Which sweeps evaluate an instruction; a dear one that later sweeps need is kept in a spill slot. */
static void set_spills(opq_lower_state *state, opq_kernel *kernel)
{
    uint16_t reduced = opq_kernel_reduced_mask(kernel);
    uint64_t needed[OPQ_BODY_MAX];
    memset(needed, 0, (size_t)state->instr_count * sizeof *needed);
    for (int i = state->instr_count - 1; i >= 0; i--) {
        opq_instr *instr = &state->instrs[i];
        bool root = opq_instr_is_root(instr) || opq_instr_reduces(instr);
        uint64_t own = 1ull << instr->sweep;
        uint64_t need = root ? own : needed[i];
        bool element = (instr->depends & reduced) != 0, innermost = instr->depends >> (kernel->rank - 1) & 1;
        if (!root && innermost && kernel->kind == OPQ_KERNEL_row && !kernel->across && !is_cheap(instr) &&
            (need & ~own) != 0) {
            instr->spill = kernel->spill_count++;
            need = own;
        }
        for (int k = 0; k < 3; k++)
            if (instr->operand[k] >= 0)
                needed[instr->operand[k]] |= need;
        if (instr->sweep + 1 > kernel->sweep_count)
            kernel->sweep_count = (int16_t)(instr->sweep + 1);
        if (element && (need & ~1ull) != 0 && state->out->row_count > opq_trees.row_max && !state->request->decided)
            refuse(state, OPQ_REFUSAL_row_size);
    }
}

/* Is it done again on turns of a loop that it does not depend on? In a sequence any of them may be the innermost one. */
static bool is_repeated(const opq_instr *instr, const opq_kernel *kernel, const opq_order *l)
{
    int depth = kernel->rank - 1;
    bool repeated = false, sequence = is_sequence(kernel);
    while (depth > 0 && !(instr->depends >> depth & 1) && !sequence)
        depth--;
    for (int loop = kernel->blocks; loop < depth + sequence && instr->depends != 0; loop++)
        repeated =
            repeated || (!(instr->depends >> loop & 1) && l->extent[loop] > 1 && (sequence || !kernel->reduced[loop]));
    return repeated;
}

/* Dear work inside a loop that it does not depend on is done again on each turn, or, where that loop has the lanes and is short, for one
 * element at a time. A node alone has nobody to share its work with. */
static void check_recompute(opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    int again = 0, last = kernel->rank - 1;
    bool few_lanes = kernel->kind == OPQ_KERNEL_column && l->extent[last] < opq_trees.short_loop;
    uint16_t reduced = opq_kernel_reduced_mask(kernel);
    if (state->request->member_count == 1 || state->request->decided)
        return;
    for (int i = 0; i < state->instr_count; i++) {
        const opq_instr *instr = &state->instrs[i];
        bool computes = instr->op < OPQ_OP_COUNT && instr->operand[0] >= 0;
        if (few_lanes && computes && (instr->depends & reduced) != 0 && !(instr->depends >> last & 1))
            refuse(state, OPQ_REFUSAL_recompute);
        if (computes && is_repeated(instr, kernel, l)) {
            again++;
            if (!is_cheap(instr) || again > opq_trees.broadcast_work_max)
                refuse(state, OPQ_REFUSAL_recompute);
        }
    }
}

/* ---- short rows */

/* Cycles of a row, measured: alone, each reduction folds the lanes of its vector and a dear instruction fills few of them; beside others,
 * elements that do not lie side by side are collected. */
static bool pays_across(const opq_lower_state *state, int64_t elements, int rows)
{
    int64_t alone = 0, beside = 0;
    for (int i = 0; i < state->instr_count; i++) {
        const opq_instr *instr = &state->instrs[i];
        int64_t stride = instr->access < 0 ? 0 : opq_order_stride(state, instr->access, rows);
        if (stride != 0 && stride != 1)
            beside += elements * opq_trees.collect_cycles;
        if (opq_instr_reduces(instr)) {
            opq_fold fold = opq_op_lowering((opq_op)instr->op)->fold;
            bool compares = opq_fold_info_of(fold)->held == OPQ_HELD_operand;
            alone += opq_fold_is_arg(fold) ? opq_trees.fold_arg_cycles
                     : compares            ? opq_trees.fold_comparing_cycles
                                           : opq_trees.fold_cycles;
        } else if (instr->op < OPQ_OP_COUNT && !is_cheap(instr)) {
            alone += opq_trees.dear_cycles;
        }
    }
    return beside <= alone;
}

/* Many rows of a few elements, which lie in memory so that they are loaded lane by lane. */
static bool may_go_across(const opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    int reduced = 0, last = l->count - 1;
    for (int i = 0; i <= last; i++)
        reduced += kernel->reduced[i];
    if (!state->request->decided || state->request->by_row || kernel->kind != OPQ_KERNEL_row || reduced != 1 ||
        last < 1 || l->extent[last] > OPQ_ACROSS_MAX || l->extent[last - 1] < OPQ_ACROSS_ROWS_MIN)
        return false;
    for (int a = 0; a < state->access_count; a++) {
        int64_t stride = opq_order_stride(state, a, l->source[last - 1]);
        if (stride != 0 && stride != 1 && opq_dtype_bytes((opq_dtype)state->accesses[a].dtype) < 4)
            return false;
    }
    return pays_across(state, l->extent[last], l->source[last - 1]);
}

/* In a sequence, too, where the rows of its last loop are short: those of a few elements, and those that do not lie side by side. */
static bool sequence_goes_across(const opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    int last = l->count - 1;
    int64_t few = l->extent[last], apart = 0, beside = 0;
    if (!state->request->decided || few > OPQ_ACROSS_MAX || l->extent[last - 1] < OPQ_ACROSS_ROWS_MIN)
        return false;
    for (int a = 0; a < kernel->access_count; a++) {
        int64_t in_row = opq_order_stride(state, a, l->source[last]),
                of_rows = opq_order_stride(state, a, l->source[last - 1]);
        apart += in_row < -1 || in_row >= OPQ_STRIDE_any;
        beside += of_rows < -1 || of_rows >= OPQ_STRIDE_any;
    }
    return few < opq_trees.short_loop ? beside <= apart : apart > 0 && beside <= apart;
}

/* Elements one by one, of which the last loop has a few: another loop has the lanes, and those behind it run in each. That before it, if it is
 * longer; else the innermost that fills a vector, of which not too much lies apart. -1: none. */
static int find_longer(const opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    int last = l->count - 1;
    if (!state->request->decided || kernel->kind != OPQ_KERNEL_map || last < 1 || l->extent[last] >= opq_trees.short_loop)
        return -1;
    if (l->extent[last - 1] >= opq_trees.longer_loop * l->extent[last])
        return last - 1;
    int64_t inside = l->extent[last] * l->extent[last - 1];
    for (int i = last - 2; i >= 0 && inside <= opq_trees.apart_max; inside *= l->extent[i--])
        if (l->extent[i] >= opq_trees.lanes)
            return i;
    return -1;
}

/* Loop `lanes` has them. */
static void go_across(opq_kernel *kernel, opq_order *l, int lanes)
{
    opq_order in = *l;
    kernel->across = true;
    l->count = lanes;
    for (int i = lanes + 1; i < in.count; i++) {
        in.role[i] = OPQ_ROLE_reduced_inner; /* inside the lanes, if nothing is reduced, too */
        opq_order_take(l, &in, i);
    }
    opq_order_take(l, &in, lanes);
}

/* ---- blocks of a long row alone */

/* One pass over its elements makes all reductions, and what they make is combined as they are. Of a sequence of loops nothing else may be
 * made: some elements may be computed more than once. */
static bool can_have_blocks(const opq_lower_state *state, const opq_kernel *kernel)
{
    int folds = 0;
    for (int i = 0; i < state->instr_count; i++) {
        const opq_instr *instr = &state->instrs[i];
        if (opq_instr_checks(instr) || instr->op == OPQ_INSTR_nonzero || (instr->sweep > 0 && instr->depends != 0) ||
            (opq_instr_is_root(instr) && instr->depends != 0 && is_sequence(kernel)))
            return false;
        if (!opq_instr_reduces(instr))
            continue;
        opq_fold fold = opq_op_lowering((opq_op)instr->op)->fold;
        opq_dtype operand = (opq_dtype)state->instrs[instr->operand[0]].dtype, result = (opq_dtype)instr->dtype;
        if (opq_fold_is_arg(fold) || instr->sweep > 0 || opq_eval_fold_dtype(fold, operand, result) != result)
            return false;
        folds++;
    }
    return state->buffer_count + folds <= OPQ_BUFFER_MAX && state->access_count + folds <= OPQ_ACCESS_MAX;
}

static bool is_long_row(const opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    return state->request->decided && !state->request->by_row && kernel->kind == OPQ_KERNEL_row && l->count == 1 &&
           l->extent[0] >= opq_trees.blocks_min * OPQ_CHUNK;
}

/* A loop over blocks around those of the row, and for each reduction a buffer of a result for each block. */
static void make_blocks(opq_lower_state *state, opq_kernel *kernel, opq_order *l)
{
    opq_order row = *l;
    int64_t elements = 1;
    l->count = 0;
    opq_order_need(l, OPQ_ROLE_kept);
    for (int i = 0; i < row.count; i++) {
        opq_order_take(l, &row, i);
        elements *= row.extent[i];
    }
    l->extent[0] = (elements + OPQ_CHUNK - 1) / OPQ_CHUNK;
    kernel->blocks = true;
    kernel->own_buffer = kernel->buffer_count;
    kernel->own_access = kernel->access_count;
    for (int i = 0; i < state->instr_count; i++) {
        if (!opq_instr_reduces(&state->instrs[i]))
            continue;
        opq_affine nowhere = {0};
        state->accesses[state->access_count] =
            (opq_access){.buffer = (int16_t)state->buffer_count, .dtype = state->instrs[i].dtype};
        state->at_extents[state->access_count] = 0;
        state->affines[state->access_count++] = nowhere;
        state->buffers[state->buffer_count++] = -1;
    }
    kernel->buffer_count = (int16_t)state->buffer_count;
    kernel->access_count = (int16_t)state->access_count;
}

static opq_status copy_out(opq_lower_state *state, const opq_order *l)
{
    opq_lowered *out = state->out;
    const opq_kernel *kernel = &state->kernel;
    opq_arena *arena = state->arena;
    out->buffers = opq_arena_copy(arena, state->buffers, (size_t)(state->buffer_count + 1) * sizeof *state->buffers);
    out->scalars = opq_arena_copy(arena, state->scalars, (size_t)(state->scalar_count + 1) * sizeof *state->scalars);
    out->dims = opq_arena_alloc(arena, (size_t)opq_dims_of(kernel->rank, kernel->access_count) * sizeof *out->dims);
    if (!out->buffers || !out->scalars || !out->dims)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling a kernel");
    for (int i = 0; i < kernel->rank; i++)
        out->dims[i] = l->extent[i];
    for (int a = 0; a < state->access_count; a++) {
        int64_t *dims = out->dims + opq_dims_of(kernel->rank, a);
        dims[0] = state->affines[a].offset;
        for (int i = 0; i < kernel->rank; i++)
            dims[1 + i] = opq_order_stride(state, a, l->source[i]);
        dims[1 + kernel->rank] = state->affines[a].coef[OPQ_AT];
        dims[2 + kernel->rank] = state->at_extents[a];
        if (kernel->blocks && a >= kernel->own_access)
            dims[1] = 1;
    }
    return OPQ_OK;
}

static void set_strides(opq_lower_state *state, opq_kernel *kernel, const opq_order *l)
{
    int lanes = kernel->rank - 1; /* the loop for them */
    while (state->out->direct && l->role[lanes] == OPQ_ROLE_k)
        lanes--;
    for (int a = 0; a < state->access_count; a++)
        for (int i = 0; i < kernel->rank; i++) {
            int64_t stride = opq_order_stride(state, a, l->source[i]);
            bool apart = opq_order_stride(state, a, l->source[lanes]) >= OPQ_STRIDE_any;
            bool turned = l->role[i] == OPQ_ROLE_scan || (state->out->direct && l->role[i] == OPQ_ROLE_k && apart);
            bool vector = i == lanes || turned || (is_sequence(kernel) && kernel->reduced[i]);
            bool baked = stride == 0 || (vector && stride > 0 && stride < OPQ_STRIDE_any);
            bool back = vector && stride == -1;
            state->accesses[a].stride[i] = (uint8_t)(baked ? stride : back ? OPQ_STRIDE_back : OPQ_STRIDE_any);
        }
    for (int a = kernel->own_access; kernel->blocks && a < state->access_count; a++)
        state->accesses[a].stride[0] = OPQ_STRIDE_one;
    kernel->accesses = state->accesses;
}

/* What follows from the loops for the kernel and its instructions. */
static void set_loops(opq_lower_state *state, opq_kernel *kernel, const opq_order *l)
{
    kernel->rank = (uint8_t)l->count;
    kernel->sweep_count = 1;
    for (int i = 0; i < l->count; i++)
        kernel->reduced[i] = l->role[i] == OPQ_ROLE_reduced_outer || l->role[i] == OPQ_ROLE_reduced_inner ||
                             l->role[i] == OPQ_ROLE_scan || l->role[i] == OPQ_ROLE_k;
    set_strides(state, kernel, l);
    set_depends(state, kernel);
}

/* Columns of one matrix, or of several. A strip of them is near when its next sweep begins, unless its rows share a few sets of the cache; whole rows
 * are read anew by each sweep, but as fast as memory gives them. */
static bool is_best_by_rows(const opq_lower_state *state, const opq_kernel *kernel, const opq_order *l)
{
    uint32_t sweeps = 0;
    bool crowded = false, far = false;
    int columns = l->count - 1, rows = columns - 1;
    if (!state->request->decided || kernel->kind != OPQ_KERNEL_column || opq_kernel_reduced_mask(kernel) != 1u << rows ||
        l->extent[columns] < OPQ_LANES || l->extent[rows] < opq_trees.whole_rows_min)
        return false;
    for (int i = 0; i < state->instr_count; i++)
        if (state->instrs[i].depends >> rows & 1 || opq_instr_reduces(&state->instrs[i]))
            sweeps |= 1u << state->instrs[i].sweep;
    for (int a = 0; a < state->access_count; a++) {
        int64_t row = opq_order_stride(state, a, l->source[rows]) * opq_dtype_bytes((opq_dtype)state->accesses[a].dtype);
        crowded = crowded || (row != 0 && row % opq_trees.crowded_bytes == 0);
        far = far || row >= opq_trees.far_bytes / l->extent[rows];
    }
    bool once = (sweeps & (sweeps - 1)) == 0;
    return crowded || (far && once);
}

/* Rows of a tile lie pages apart in a large tensor. With several of these that takes longer than a kernel of its own, which goes through each from
 * its beginning and may write where it reads: as Adam's update of a weight does, behind the product that is its gradient. */
static bool has_many_streams(const opq_lower_state *state, const opq_order *l)
{
    int64_t elements = 1;
    int count = 0;
    if (state->out->matmul < 0 || state->request->decided)
        return false;
    for (int i = 0; i < l->count; i++)
        elements *= l->role[i] == OPQ_ROLE_k ? 1 : l->extent[i];
    for (int a = 0; a < state->access_count && elements >= opq_trees.stream_elements_min; a++) {
        bool walks = true;
        for (int i = 0; i < l->count && walks; i++)
            walks = l->role[i] == OPQ_ROLE_k ? opq_order_stride(state, a, l->source[i]) == 0
                                             : l->extent[i] == 1 || opq_order_stride(state, a, l->source[i]) != 0;
        for (int b = 0; b < a && walks; b++)
            walks = state->accesses[b].buffer != state->accesses[a].buffer;
        count += walks;
    }
    return count > opq_trees.tile_streams_max;
}

opq_status opq_lower_finish(opq_lower_state *state)
{
    opq_kernel *kernel = &state->kernel;
    opq_order l = {0};
    bool reduces = false, matmul = state->out->matmul >= 0;
    state->out->row_count = 1;
    for (int i = 0; i < state->space.rank && !matmul; i++) {
        reduces = reduces || state->space.reduced[i];
        state->out->row_count *= state->space.reduced[i] ? state->space.extent[i] : 1;
    }
    opq_order_loops(state, reduces, &l);
    if (matmul && state->buffer_count == OPQ_BUFFER_MAX) /* its epilogue has one more: the tile */
        refuse(state, OPQ_REFUSAL_buffers);
    if (has_many_streams(state, &l))
        refuse(state, OPQ_REFUSAL_streams);
    if (l.count == 0)
        opq_order_need(&l, OPQ_ROLE_kept);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;

    kernel->pairs = matmul && opq_lower_is_pairs(state->graph, state->out->matmul);
    kernel->kind = matmul               ? OPQ_KERNEL_matmul
                   : state->scans       ? OPQ_KERNEL_scan
                   : reduces            ? (state->column ? OPQ_KERNEL_column : OPQ_KERNEL_row)
                   : state->out->serial ? OPQ_KERNEL_index
                                        : OPQ_KERNEL_map;
    kernel->buffer_count = (int16_t)state->buffer_count;
    kernel->scalar_count = (int16_t)state->scalar_count;
    kernel->access_count = (int16_t)state->access_count;
    kernel->instr_count = (int16_t)state->instr_count;
    kernel->instrs = state->instrs;
    set_loops(state, kernel, &l);
    int longer = find_longer(state, kernel, &l);
    bool across = may_go_across(state, kernel, &l) || longer >= 0, sequence = is_sequence(kernel);
    bool blocks = (sequence || is_long_row(state, kernel, &l)) && can_have_blocks(state, kernel);
    if (sequence && (!blocks || state->request->by_row))
        refuse(state, OPQ_REFUSAL_view);
    if (across || (sequence && sequence_goes_across(state, kernel, &l)))
        go_across(kernel, &l, longer >= 0 ? longer : l.count - 2);
    if (blocks)
        make_blocks(state, kernel, &l);
    if (across || blocks)
        set_loops(state, kernel, &l);
    if (opq_kernel_excess(kernel)) /* the body and the arguments kept their limits while they were emitted */
        refuse(state, OPQ_REFUSAL_reductions);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;
    set_spills(state, kernel);
    kernel->by_rows = is_best_by_rows(state, kernel, &l);
    check_recompute(state, kernel, &l);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;
    kernel->accesses =
        opq_arena_copy(state->arena, state->accesses, (size_t)(state->access_count + 1) * sizeof *state->accesses);
    if (kernel->accesses == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling a kernel");
    OPQ_TRY(copy_out(state, &l));
    return state->request->decided ? opq_loops_build(kernel, state->arena, &state->out->loops) : OPQ_OK;
}
