/* The loop nest of a kernel: drops loops of one turn, merges neighbours that every access walks as one, orders them by role, and
 * decides sweep, spill and depth of each instruction.
 *
 * Merging never crosses a role, and the innermost run of reduced axes must become one loop: the order of additions is a promise
 * about logical axes (opq_tree), not about memory.
 */
#include "fusion/lower_state.h"

#include <string.h>

enum { ROW_MAX = 128 * 1024, BROADCAST_WORK_MAX = 16 };

typedef struct loops {
    int count;
    int source[OPQ_LOOP_MAX]; /* innermost fine loop of this loop: its coefs are the strides; -1: made up */
    int64_t extent[OPQ_LOOP_MAX];
    uint8_t role[OPQ_LOOP_MAX];
} loops;

static void refuse(opq_lower_state *state, opq_refusal refusal)
{
    if (state->refusal == OPQ_REFUSAL_none)
        state->refusal = refusal;
}

static int64_t coef(const opq_lower_state *state, int access, int source)
{
    return source < 0 ? 0 : state->affines[access].coef[source];
}

static bool walk_as_one(const opq_lower_state *state, const loops *l, int outer, int inner)
{
    for (int a = 0; a < state->access_count; a++)
        if (coef(state, a, l->source[outer]) != coef(state, a, l->source[inner]) * l->extent[inner])
            return false;
    return true;
}

static bool keeps_single_turn(uint8_t role) { return role == OPQ_ROLE_m || role == OPQ_ROLE_n; }

/* Loops of more than one turn in fine order, neighbours of one role merged. */
static void merge_loops(opq_lower_state *state, loops *out)
{
    out->count = 0;
    for (int l = 0; l < state->space.rank; l++) {
        if (state->space.extent[l] == 1 && !keeps_single_turn(state->role[l]))
            continue;
        int at = out->count;
        out->source[at] = l;
        out->extent[at] = state->space.extent[l];
        out->role[at] = state->role[l];
        if (at > 0 && out->role[at - 1] == out->role[at] && walk_as_one(state, out, at - 1, at)) {
            out->extent[at - 1] *= out->extent[at];
            out->source[at - 1] = l;
        } else {
            out->count++;
        }
    }
}

static void need_loop(loops *l, uint8_t role)
{
    for (int i = 0; i < l->count; i++)
        if (l->role[i] == role)
            return;
    l->source[l->count] = -1;
    l->extent[l->count] = 1;
    l->role[l->count++] = role;
}

static void take(loops *to, const loops *from, int i)
{
    to->source[to->count] = from->source[i];
    to->extent[to->count] = from->extent[i];
    to->role[to->count++] = from->role[i];
}

static void take_role(loops *to, const loops *from, uint8_t role)
{
    for (int i = 0; i < from->count; i++)
        if (from->role[i] == role)
            take(to, from, i);
}

/* [kept.., reduced.., one kept]: the kept loops inside all reduced ones are the vector axis. */
static void order_column(opq_lower_state *state, loops *out)
{
    loops in;
    bool after = true;
    for (int l = state->space.rank - 1; l >= 0; l--) {
        after = after && !state->space.reduced[l];
        if (after)
            state->role[l] = OPQ_ROLE_inner_kept;
    }
    merge_loops(state, &in);
    need_loop(&in, OPQ_ROLE_inner_kept);
    need_loop(&in, OPQ_ROLE_reduced_outer);
    int last = 0;
    for (int i = 0; i < in.count; i++)
        if (in.role[i] == OPQ_ROLE_inner_kept)
            last = i;
    out->count = 0;
    take_role(out, &in, OPQ_ROLE_kept);
    for (int i = 0; i < last; i++)
        if (in.role[i] == OPQ_ROLE_inner_kept)
            take(out, &in, i);
    take_role(out, &in, OPQ_ROLE_reduced_outer);
    take(out, &in, last);
}

static void order_row(opq_lower_state *state, loops *out)
{
    loops in;
    merge_loops(state, &in);
    need_loop(&in, OPQ_ROLE_reduced_inner);
    out->count = 0;
    take_role(out, &in, OPQ_ROLE_kept);
    take_role(out, &in, OPQ_ROLE_reduced_outer);
    int before = out->count;
    take_role(out, &in, OPQ_ROLE_reduced_inner);
    if (out->count != before + 1)
        refuse(state, OPQ_REFUSAL_view);
}

static int count_role(const loops *l, uint8_t role)
{
    int count = 0;
    for (int i = 0; i < l->count; i++)
        count += l->role[i] == role;
    return count;
}

/* With a 2-d right operand the batch dims are more rows, if the left operand and every epilogue access walk them as rows. */
static bool merge_batch(opq_lower_state *state)
{
    const opq_node *node = opq_node_at(state->graph, state->out->matmul);
    opq_matrix_view a;
    int batch = node->type.rank - 2;
    if (batch == 0 || opq_node_at(state->graph, node->operand[1])->type.rank != 2 ||
        !opq_lower_matrix(state->graph, state->request->group_of, state->out->matmul, 0, &a))
        return false;
    int64_t step = a.row_stride * node->type.size[batch];
    for (int d = batch - 1; d >= 0; d--) {
        if (node->type.size[d] != 1 && a.batch_stride[d] != step)
            return false;
        step *= node->type.size[d];
    }
    uint8_t before[OPQ_SPACE_MAX];
    memcpy(before, state->role, sizeof before);
    for (int l = 0; l < state->space.rank; l++)
        if (state->role[l] == OPQ_ROLE_batch)
            state->role[l] = OPQ_ROLE_m;
    loops merged;
    merge_loops(state, &merged);
    if (count_role(&merged, OPQ_ROLE_m) == 1)
        return true;
    memcpy(state->role, before, sizeof before);
    return false;
}

static opq_status order_matmul(opq_lower_state *state, loops *out)
{
    loops in;
    merge_batch(state);
    merge_loops(state, &in);
    if (count_role(&in, OPQ_ROLE_m) != 1 || count_role(&in, OPQ_ROLE_n) != 1) {
        refuse(state, OPQ_REFUSAL_view);
        return OPQ_OK;
    }
    opq_lowered *lowered = state->out;
    int batch = count_role(&in, OPQ_ROLE_batch);
    lowered->batch_rank = batch;
    lowered->batch_strides = opq_arena_alloc(state->arena, (size_t)(batch * state->access_count + 1) * sizeof(int64_t));
    if (lowered->batch_strides == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while scheduling a kernel");
    for (int i = 0; i < batch; i++) {
        lowered->batch_extent[i] = in.extent[i];
        for (int a = 0; a < state->access_count; a++)
            lowered->batch_strides[a * batch + i] = coef(state, a, in.source[i]);
    }
    out->count = 0;
    take_role(out, &in, OPQ_ROLE_m);
    take_role(out, &in, OPQ_ROLE_n);
    return OPQ_OK;
}

/* ---- instructions */

static bool is_cheap(const opq_instr *instr)
{
    return instr->op >= OPQ_OP_COUNT || (opq_op_info_of((opq_op)instr->op)->flags & OPQ_FLAG_CHEAP) != 0;
}

static void set_depends(opq_lower_state *state, const opq_kernel *kernel)
{
    uint16_t reduced = opq_kernel_reduced_mask(kernel);
    for (int i = 0; i < state->instr_count; i++) {
        opq_instr *instr = &state->instrs[i];
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
        if (instr->op ==
            OPQ_INSTR_store_add_at) /* adds once for each turn, also where every turn adds the same to the same place */
            instr->depends = (uint16_t)((1u << kernel->rank) - 1);
    }
}

/* Which sweeps evaluate an instruction; a dear one that later sweeps need is kept in a spill slot. */
static void set_spills(opq_lower_state *state, opq_kernel *kernel)
{
    uint16_t reduced = opq_kernel_reduced_mask(kernel);
    uint64_t needed[OPQ_BODY_MAX] = {0};
    for (int i = state->instr_count - 1; i >= 0; i--) {
        opq_instr *instr = &state->instrs[i];
        bool root = opq_instr_is_root(instr) || opq_instr_reduces(instr);
        uint64_t own = 1ull << instr->sweep;
        uint64_t need = root ? own : needed[i];
        bool element = (instr->depends & reduced) != 0, innermost = instr->depends >> (kernel->rank - 1) & 1;
        if (!root && innermost && kernel->kind == OPQ_KERNEL_row && !is_cheap(instr) && (need & ~own) != 0) {
            instr->spill = kernel->spill_count++;
            need = own;
        }
        for (int k = 0; k < 3; k++)
            if (instr->operand[k] >= 0)
                needed[instr->operand[k]] |= need;
        if (instr->sweep + 1 > kernel->sweep_count)
            kernel->sweep_count = (int16_t)(instr->sweep + 1);
        if (element && (need & ~1ull) != 0 && state->out->row_count > ROW_MAX && !state->request->decided)
            refuse(state, OPQ_REFUSAL_row_size);
    }
}

/* Dear work inside a loop that it does not depend on is done again on each turn. A node alone has nobody to share its work with. */
static void check_recompute(opq_lower_state *state, const opq_kernel *kernel, const loops *l)
{
    int again = 0;
    if (state->request->member_count == 1 || state->request->decided)
        return;
    for (int i = 0; i < state->instr_count; i++) {
        const opq_instr *instr = &state->instrs[i];
        int depth = kernel->rank - 1;
        while (depth > 0 && !(instr->depends >> depth & 1))
            depth--;
        bool repeated = false;
        for (int outer = 0; outer < depth && instr->depends != 0; outer++)
            repeated = repeated || (!(instr->depends >> outer & 1) && l->extent[outer] > 1 && !kernel->reduced[outer]);
        if (repeated && instr->op < OPQ_OP_COUNT && instr->operand[0] >= 0) {
            again++;
            if (!is_cheap(instr) || again > BROADCAST_WORK_MAX)
                refuse(state, OPQ_REFUSAL_recompute);
        }
    }
}

static opq_status copy_out(opq_lower_state *state, const loops *l)
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
            dims[1 + i] = coef(state, a, l->source[i]);
        dims[1 + kernel->rank] = state->affines[a].coef[OPQ_AT];
        dims[2 + kernel->rank] = dims[1 + kernel->rank] ? state->at_extents[a] : 0;
    }
    return OPQ_OK;
}

static void set_strides(opq_lower_state *state, opq_kernel *kernel, const loops *l)
{
    for (int a = 0; a < state->access_count; a++)
        for (int i = 0; i < kernel->rank; i++) {
            int64_t stride = coef(state, a, l->source[i]);
            bool vector = i == kernel->rank - 1;
            state->accesses[a].stride[i] = stride == 0             ? OPQ_STRIDE_zero
                                           : vector && stride == 1 ? OPQ_STRIDE_one
                                                                   : OPQ_STRIDE_any;
        }
    kernel->accesses = state->accesses;
}

opq_status opq_lower_finish(opq_lower_state *state)
{
    opq_kernel *kernel = &state->kernel;
    loops l = {0};
    bool reduces = false;
    state->out->row_count = 1;
    for (int i = 0; i < state->space.rank; i++) {
        reduces = reduces || state->space.reduced[i];
        state->out->row_count *= state->space.reduced[i] ? state->space.extent[i] : 1;
    }
    if (state->out->matmul >= 0)
        OPQ_TRY(order_matmul(state, &l));
    else if (reduces && state->column)
        order_column(state, &l);
    else if (reduces)
        order_row(state, &l);
    else
        merge_loops(state, &l);
    if (l.count == 0)
        need_loop(&l, OPQ_ROLE_kept);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;

    kernel->kind = reduces              ? (state->column ? OPQ_KERNEL_column : OPQ_KERNEL_row)
                   : state->out->serial ? OPQ_KERNEL_index
                                        : OPQ_KERNEL_map;
    kernel->rank = (uint8_t)l.count;
    kernel->sweep_count = 1;
    kernel->buffer_count = (int16_t)state->buffer_count;
    kernel->scalar_count = (int16_t)state->scalar_count;
    kernel->access_count = (int16_t)state->access_count;
    kernel->instr_count = (int16_t)state->instr_count;
    for (int i = 0; i < l.count; i++)
        kernel->reduced[i] = l.role[i] == OPQ_ROLE_reduced_outer || l.role[i] == OPQ_ROLE_reduced_inner;
    set_strides(state, kernel, &l);
    kernel->instrs = state->instrs;
    set_depends(state, kernel);
    if (opq_kernel_excess(kernel)) /* the body and the arguments kept their limits while they were emitted */
        refuse(state, OPQ_REFUSAL_reductions);
    if (state->refusal != OPQ_REFUSAL_none)
        return OPQ_OK;
    set_spills(state, kernel);
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

bool opq_lower_matrix(const opq_graph *graph, const int32_t *group_of, opq_ref matmul, int operand,
                      opq_matrix_view *out_view)
{
    const opq_node *node = opq_node_at(graph, matmul);
    opq_ref ref = node->operand[operand];
    opq_type type = opq_node_at(graph, ref)->type;
    int batch = node->type.rank - 2, rank = type.rank;
    bool transposed = opq_node_int(node, operand == 0 ? OPQ_ATTR_transpose_a : OPQ_ATTR_transpose_b, 0) != 0;
    if (batch + 2 > OPQ_SPACE_MAX)
        return false;
    opq_space space = {.rank = batch + 2};
    opq_index_map map, next;
    memset(&map, 0, sizeof map);
    for (int b = 0; b < batch; b++)
        space.extent[b] = node->type.size[b];
    space.extent[batch] = type.size[rank - (transposed ? 1 : 2)];
    space.extent[batch + 1] = type.size[rank - (transposed ? 2 : 1)];
    for (int d = 0; d < rank - 2; d++)
        if (type.size[d] != 1)
            map.dim[d].coef[batch - (rank - 2) + d] = 1;
    map.dim[rank - (transposed ? 1 : 2)].coef[batch] = 1;
    map.dim[rank - (transposed ? 2 : 1)].coef[batch + 1] = 1;

    opq_affine linear = opq_affine_linear(&map, &type);
    bool exact = true;
    while (opq_node_class(opq_node_at(graph, ref)) == OPQ_CLASS_VIEW && group_of[ref] < 0) {
        const opq_node *view = opq_node_at(graph, ref);
        ref = view->operand[0];
        if (!exact && view->op == OPQ_OP_reshape) /* the same dense elements */
            continue;
        if (!exact)
            return false;
        exact = opq_affine_view(graph, view, &map, &space, &next, &linear) == OPQ_THROUGH_map;
        map = next;
        if (exact)
            linear = opq_affine_linear(&map, &opq_node_at(graph, ref)->type);
    }
    if (opq_node_is_free(graph, ref) && group_of[ref] < 0)
        return false;
    for (int v = 0; v < OPQ_VARIABLES; v++)
        if (linear.coef[v] < 0) /* panels are packed forwards */
            return false;
    memset(out_view, 0, sizeof *out_view);
    out_view->memory = ref;
    out_view->offset = linear.offset;
    out_view->row_stride = linear.coef[batch];
    out_view->column_stride = linear.coef[batch + 1];
    for (int b = 0; b < batch; b++)
        out_view->batch_stride[b] = linear.coef[b];
    return true;
}
