/* Which loops a kernel has, and in which order: drops loops of one turn, merges neighbours that every access walks as one, and orders them
 * by role.
 *
 * Merging never crosses a role, and the innermost run of reduced axes must become one loop, or the blocks of several: the order of additions
 * is a promise about logical axes (opq_tree), not about memory.
 */
#include "fusion/lower_state.h"
#include "fusion/target.h"

#include <string.h>

static void refuse(opq_lower_state *state, opq_refusal refusal)
{
    if (state->refusal == OPQ_REFUSAL_none)
        state->refusal = refusal;
}

int64_t opq_order_stride(const opq_lower_state *state, int access, int source)
{
    return source < 0 ? 0 : state->affines[access].coef[source];
}

static bool walk_as_one(const opq_lower_state *state, const opq_order *l, int outer, int inner)
{
    for (int a = 0; a < state->access_count; a++)
        if (opq_order_stride(state, a, l->source[outer]) !=
            opq_order_stride(state, a, l->source[inner]) * l->extent[inner])
            return false;
    return true;
}

static bool keeps_single_turn(uint8_t role)
{
    return role == OPQ_ROLE_scan || role == OPQ_ROLE_m || role == OPQ_ROLE_n || role == OPQ_ROLE_k;
}

/* Loops of more than one turn in fine order, neighbours of one role merged. */
static void merge_loops(opq_lower_state *state, opq_order *out)
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

void opq_order_need(opq_order *l, uint8_t role)
{
    for (int i = 0; i < l->count; i++)
        if (l->role[i] == role)
            return;
    l->source[l->count] = -1;
    l->extent[l->count] = 1;
    l->role[l->count++] = role;
}

void opq_order_take(opq_order *to, const opq_order *from, int i)
{
    to->source[to->count] = from->source[i];
    to->extent[to->count] = from->extent[i];
    to->role[to->count++] = from->role[i];
}

static void take_role(opq_order *to, const opq_order *from, uint8_t role)
{
    for (int i = 0; i < from->count; i++)
        if (from->role[i] == role)
            opq_order_take(to, from, i);
}

/* [kept.., reduced.., one kept]: the kept loops inside all reduced ones are the vector axis. */
static void order_column(opq_lower_state *state, opq_order *out)
{
    opq_order in;
    bool after = true;
    for (int l = state->space.rank - 1; l >= 0; l--) {
        after = after && !state->space.reduced[l];
        if (after)
            state->role[l] = OPQ_ROLE_inner_kept;
    }
    merge_loops(state, &in);
    opq_order_need(&in, OPQ_ROLE_inner_kept);
    opq_order_need(&in, OPQ_ROLE_reduced_outer);
    int last = 0;
    for (int i = 0; i < in.count; i++)
        if (in.role[i] == OPQ_ROLE_inner_kept)
            last = i;
    out->count = 0;
    take_role(out, &in, OPQ_ROLE_kept);
    for (int i = 0; i < last; i++)
        if (in.role[i] == OPQ_ROLE_inner_kept)
            opq_order_take(out, &in, i);
    take_role(out, &in, OPQ_ROLE_reduced_outer);
    opq_order_take(out, &in, last);
}

static void order_row(opq_lower_state *state, opq_order *out)
{
    opq_order in;
    merge_loops(state, &in);
    opq_order_need(&in, OPQ_ROLE_reduced_inner);
    out->count = 0;
    take_role(out, &in, OPQ_ROLE_kept);
    take_role(out, &in, OPQ_ROLE_reduced_outer);
    int before = out->count;
    take_role(out, &in, OPQ_ROLE_reduced_inner);
    if (out->count > before + 1 && before > 0) /* only a row alone has blocks */
        refuse(state, OPQ_REFUSAL_view);
}

static int count_role(const opq_order *l, uint8_t role)
{
    int count = 0;
    for (int i = 0; i < l->count; i++)
        count += l->role[i] == role;
    return count;
}

/* Rows of a scan are lanes, side by side where the last loop is one of rows. So few of them that most lanes had none are scanned one by one. */
static void order_scan(opq_lower_state *state, opq_kernel *kernel, opq_order *out)
{
    opq_order in;
    int lanes = -1;
    opq_lower_turn_scans(state);
    merge_loops(state, &in);
    for (int i = 0; i < in.count; i++) {
        bool longer = lanes < 0 || i == in.count - 1 || in.extent[i] > in.extent[lanes];
        if (in.role[i] == OPQ_ROLE_kept && in.extent[i] >= opq_trees.scan_rows_min && longer)
            lanes = i;
    }
    opq_order_need(&in, OPQ_ROLE_scan);
    if (count_role(&in, OPQ_ROLE_scan) != 1 || state->out->serial)
        refuse(state, OPQ_REFUSAL_scan);
    out->count = 0;
    for (int i = 0; i < in.count; i++)
        if (in.role[i] == OPQ_ROLE_kept && i != lanes)
            opq_order_take(out, &in, i);
    take_role(out, &in, OPQ_ROLE_scan);
    if (lanes >= 0)
        opq_order_take(out, &in, lanes);
    kernel->across = lanes >= 0;
}

/* The batch dims are more rows, if every access walks them as rows: the right operand not at all. */
static void merge_batch(opq_lower_state *state)
{
    uint8_t before[OPQ_SPACE_MAX];
    memcpy(before, state->role, sizeof before);
    for (int l = 0; l < state->space.rank; l++)
        if (state->role[l] == OPQ_ROLE_batch)
            state->role[l] = OPQ_ROLE_m;
    opq_order merged;
    merge_loops(state, &merged);
    if (count_role(&merged, OPQ_ROLE_m) != 1)
        memcpy(state->role, before, sizeof before);
}

/* The accesses of an operand, and of the conditions under which it has an element. */
static void mark_matrix(const opq_lower_state *state, int instr, bool *out_matrix)
{
    const opq_instr *of = &state->instrs[instr];
    if (of->access >= 0)
        out_matrix[of->access] = true;
    for (int o = 0; o < 3; o++)
        if (of->operand[o] >= 0)
            mark_matrix(state, of->operand[o], out_matrix);
}

/* Only the product's operands may walk its columns as several loops: a tile's are one. */
static bool columns_are_one(const opq_lower_state *state, const opq_order *l)
{
    bool matrix[OPQ_ACCESS_MAX] = {false};
    for (int i = 0; i < state->instr_count; i++)
        for (int o = 0; o < 2 && opq_op_contracts(state->instrs[i].op); o++)
            mark_matrix(state, state->instrs[i].operand[o], matrix);
    for (int i = 1; i < l->count; i++)
        for (int a = 0; l->role[i - 1] == OPQ_ROLE_n && l->role[i] == OPQ_ROLE_n && a < state->access_count; a++)
            if (!matrix[a] &&
                opq_order_stride(state, a, l->source[i - 1]) != opq_order_stride(state, a, l->source[i]) * l->extent[i])
                return false;
    return true;
}

/* The product's operands are not both loads, perhaps widened, from where the engine could take them. */
static bool needs_chain(const opq_lower_state *state, bool thin)
{
    for (int i = 0; i < state->instr_count; i++)
        for (int o = 0; o < 2 && opq_op_contracts(state->instrs[i].op); o++) {
            const opq_instr *load = &state->instrs[state->instrs[i].operand[o]];
            load = load->op == OPQ_OP_cast ? &state->instrs[load->operand[0]] : load;
            if (load->op != OPQ_INSTR_load || (load->operand[0] >= 0 && thin))
                return true;
            for (int l = 0; l < state->space.rank; l++)
                if (opq_order_stride(state, load->access, l) < 0)
                    return true;
        }
    return false;
}

/* An operand of the product whose elements lie apart along `lanes`, and side by side along the sum: tiles of it are turned, each once. */
static bool is_turned(const opq_lower_state *state, const opq_order *l, int access, int lanes)
{
    int sum = -1;
    bool once = opq_order_stride(state, access, l->source[lanes]) >= OPQ_STRIDE_any, operand = false;
    for (int i = 0; i < l->count; i++) {
        if (l->role[i] == OPQ_ROLE_k)
            sum = sum == -1 ? i : -2;
        else
            once = once && opq_order_stride(state, access, l->source[i]) != 0;
    }
    for (int i = 0; i < state->instr_count; i++)
        for (int o = 0; o < 2 && opq_op_contracts(state->instrs[i].op); o++) {
            const opq_instr *of = &state->instrs[state->instrs[i].operand[o]];
            operand |= of->op == OPQ_INSTR_load && of->access == access && of->operand[0] < 0;
        }
    return once && operand && sum >= 0 && opq_order_stride(state, access, l->source[sum]) == 1;
}

/* Is it made here, or one of many that an engine would begin with one by one? Another that was given is better read by the engine, which makes
 * all products of one operand at once. */
static bool may_turn(const opq_lower_state *state, const opq_order *l, int access)
{
    opq_ref memory = state->buffers[state->accesses[access].buffer];
    int loops = 0;
    for (int i = 0; i < l->count; i++)
        loops += l->role[i] == OPQ_ROLE_kept;
    return (memory >= 0 && opq_node_at(state->graph, memory)->op != OPQ_OP_input) ||
           (loops > 1 && opq_lower_is_smallest(state->graph, state->out->matmul));
}

/* About what a vector of an access takes whose lanes are so far apart. */
static int64_t lanes_cost(const opq_lower_state *state, const opq_order *l, int access, int lanes, bool all)
{
    int64_t stride = opq_order_stride(state, access, l->source[lanes]);
    if (stride == 0 || stride == 1)
        return 1;
    if (stride > 0 && stride < OPQ_STRIDE_any)
        return 3;
    return is_turned(state, l, access, lanes) && (!all || may_turn(state, l, access)) ? opq_trees.turned
                                                                                      : opq_trees.apart;
}

/* The loop for the lanes: that of the cheapest vectors, of which a longer one needs fewer. all: none whose lanes lie apart. -1: none. */
static int chain_lanes(const opq_lower_state *state, const opq_order *l, bool all)
{
    int64_t elements = 1, least = INT64_MAX;
    int best = -1;
    for (int i = 0; i < l->count; i++)
        elements *= l->role[i] == OPQ_ROLE_kept ? l->extent[i] : 1;
    for (int i = 0; i < l->count; i++) {
        int64_t cost = 0;
        bool apart = false;
        for (int a = 0; a < state->access_count && l->role[i] == OPQ_ROLE_kept; a++) {
            int64_t of = lanes_cost(state, l, a, i, all);
            cost += of;
            apart |= of == opq_trees.apart;
        }
        if (l->role[i] != OPQ_ROLE_kept || (all && apart))
            continue;
        int64_t extent = l->extent[i] ? l->extent[i] : 1;
        cost *= elements / extent * ((extent + opq_trees.lanes - 1) / opq_trees.lanes);
        if (cost < least) {
            least = cost;
            best = i;
        }
    }
    return best;
}

/* Does an operand of the product, or whether it has an element, change along a loop? */
static bool operand_moves(const opq_lower_state *state, int instr, int source)
{
    const opq_instr *of = &state->instrs[instr];
    bool moves = of->access >= 0 && opq_order_stride(state, of->access, source) != 0;
    for (int o = 0; o < 3 && !moves; o++)
        moves = of->operand[o] >= 0 && operand_moves(state, of->operand[o], source);
    return moves;
}

/* The taps of a window that long sums are made for (a gradient of weights): one operand serves all of them. */
static bool is_tap(const opq_lower_state *state, const opq_order *l, int loop)
{
    bool moves[2] = {true, true};
    for (int i = 0; i < state->instr_count; i++)
        for (int o = 0; o < 2 && opq_op_contracts(state->instrs[i].op); o++)
            moves[o] = operand_moves(state, state->instrs[i].operand[o], l->source[loop]);
    return l->role[loop] == OPQ_ROLE_kept && l->extent[loop] <= opq_trees.taps_max && moves[0] != moves[1];
}

/* The last of the loops before the lanes' that are taps, as many as are made at once. */
static void unroll_taps(opq_lower_state *state, const opq_order *l)
{
    int64_t terms = 1, turns = 1;
    int lanes = 0;
    for (int i = 0; i < l->count; i++) {
        terms *= l->role[i] == OPQ_ROLE_k ? l->extent[i] : 1;
        lanes = l->role[i] == OPQ_ROLE_k ? lanes : i;
    }
    for (int i = lanes - 1; i >= 0 && terms >= opq_trees.tap_terms_min && is_tap(state, l, i); i--) {
        turns *= l->extent[i];
        if (turns > OPQ_UNROLL_MAX || turns > terms)
            break;
        state->kernel.turns[i] = (uint8_t)l->extent[i];
    }
}

/* A product of one row, or one column, for each of many matrices, or a small one: a chain in each lane, without an engine. */
static bool order_chain(opq_lower_state *state, bool thin, opq_order *out)
{
    uint8_t before[OPQ_SPACE_MAX];
    opq_order in;
    bool small = !thin && opq_lower_is_small(state->graph, state->out->matmul) && !needs_chain(state, true);
    if (state->request->by_row || !(thin || small))
        return false;
    memcpy(before, state->role, sizeof before);
    for (int l = 0; l < state->space.rank; l++)
        if (state->role[l] != OPQ_ROLE_k)
            state->role[l] = OPQ_ROLE_kept;
    merge_loops(state, &in);
    int lanes = chain_lanes(state, &in, !needs_chain(state, thin));
    if (lanes < 0) {
        memcpy(state->role, before, sizeof before);
        return false;
    }
    out->count = 0;
    for (int i = 0; i < in.count; i++)
        if (in.role[i] == OPQ_ROLE_kept && i != lanes)
            opq_order_take(out, &in, i);
    opq_order_take(out, &in, lanes);
    take_role(out, &in, OPQ_ROLE_k);
    state->kernel.columns = 1;
    state->out->direct = true;
    unroll_taps(state, out);
    return true;
}

static void order_matmul(opq_lower_state *state, opq_order *out)
{
    bool thin = opq_lower_is_thin(state->graph, state->out->matmul);
    if (order_chain(state, thin, out))
        return;
    if (needs_chain(state, thin)) {
        refuse(state, OPQ_REFUSAL_view);
        return;
    }
    merge_batch(state);
    merge_loops(state, out);
    if (!columns_are_one(state, out))
        refuse(state, OPQ_REFUSAL_view);
    state->kernel.columns = (uint8_t)count_role(out, OPQ_ROLE_n);
}

void opq_order_loops(opq_lower_state *state, bool reduces, opq_order *out)
{
    if (state->out->matmul >= 0)
        order_matmul(state, out);
    else if (state->scans)
        order_scan(state, &state->kernel, out);
    else if (reduces && state->column)
        order_column(state, out);
    else if (reduces)
        order_row(state, out);
    else
        merge_loops(state, out);
}
