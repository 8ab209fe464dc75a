/* Which loops a kernel has, and in which order: drops loops of one turn, merges neighbours that every access walks as one, and orders them
 * by role.
 *
 * Merging never crosses a role, and the innermost run of reduced axes must become one loop, or the blocks of several: the order of additions
 * is a promise about logical axes (opq_tree), not about memory.
 */
#include "fusion/lower_state.h"
#include "fusion/target.h"

bool opq_lower_is_own(const opq_lower_state *state, int access)
{
    int buffer = state->accesses[access].buffer;
    return buffer >= 0 && state->written[buffer] == OPQ_BUFFER_own;
}

int64_t opq_lower_stride(const opq_lower_state *state, int access, int l)
{
    int source = state->loops.source[l];
    if (state->loops.role[l] == OPQ_ROLE_blocks)
        return opq_lower_is_own(state, access);
    return source < 0 ? 0 : state->affines[access].coef[source];
}

static bool walk_as_one(const opq_lower_state *state, int outer, int inner)
{
    for (int a = 0; a < state->access_count; a++)
        if (opq_lower_stride(state, a, outer) != opq_lower_stride(state, a, inner) * state->loops.extent[inner])
            return false;
    return true;
}

static bool keeps_single_turn(opq_role role)
{
    return role == OPQ_ROLE_scan || role == OPQ_ROLE_m || role == OPQ_ROLE_n || role == OPQ_ROLE_k;
}

/* Loops of more than one turn in fine order, neighbours of one role merged. as: per role of the space; NULL: as it is. */
static void merge_loops(opq_lower_state *state, const uint8_t *as)
{
    opq_lower_loops *out = &state->loops;
    out->count = 0;
    for (int l = 0; l < state->space.rank; l++) {
        uint8_t role = as ? as[state->space.role[l]] : state->space.role[l];
        if (state->space.extent[l] == 1 && !keeps_single_turn(role))
            continue;
        int at = out->count;
        out->source[at] = l;
        out->extent[at] = state->space.extent[l];
        out->role[at] = role;
        if (at > 0 && out->role[at - 1] == role && walk_as_one(state, at - 1, at)) {
            out->extent[at - 1] *= out->extent[at];
            out->source[at - 1] = l;
        } else {
            out->count++;
        }
    }
}

void opq_lower_need(opq_lower_state *state, opq_role role)
{
    opq_lower_loops *l = &state->loops;
    for (int i = 0; i < l->count; i++)
        if (l->role[i] == role)
            return;
    l->source[l->count] = -1;
    l->extent[l->count] = 1;
    l->role[l->count++] = (uint8_t)role;
}

void opq_lower_sort(opq_lower_state *state)
{
    opq_lower_loops in = state->loops, *l = &state->loops;
    l->count = 0;
    for (int role = 0; l->count < in.count; role++)
        for (int i = 0; i < in.count; i++) {
            bool lanes = in.role[i] == OPQ_ROLE_lanes || in.role[i] == OPQ_ROLE_reduced_lanes;
            if (role != (lanes ? OPQ_ROLE_COUNT : in.role[i]))
                continue;
            l->source[l->count] = in.source[i];
            l->extent[l->count] = in.extent[i];
            l->role[l->count++] = in.role[i];
        }
}

static int count_role(const opq_lower_state *state, opq_role role)
{
    int count = 0;
    for (int i = 0; i < state->loops.count; i++)
        count += state->loops.role[i] == role;
    return count;
}

/* [kept.., reduced.., one kept]: the kept loops inside all reduced ones are the vector axis. */
static void order_column(opq_lower_state *state)
{
    opq_lower_loops *l = &state->loops;
    int last = 0;
    for (int i = state->space.rank - 1; i >= 0 && !opq_role_reduces(state->space.role[i]); i--)
        state->space.role[i] = OPQ_ROLE_inner_kept;
    merge_loops(state, NULL);
    opq_lower_need(state, OPQ_ROLE_inner_kept);
    opq_lower_need(state, OPQ_ROLE_reduced_outer);
    for (int i = 0; i < l->count; i++)
        last = l->role[i] == OPQ_ROLE_inner_kept ? i : last;
    l->role[last] = OPQ_ROLE_lanes;
    opq_lower_sort(state);
}

static void order_row(opq_lower_state *state)
{
    merge_loops(state, NULL);
    opq_lower_need(state, OPQ_ROLE_reduced_inner);
    opq_lower_sort(state);
    int inner = count_role(state, OPQ_ROLE_reduced_inner);
    if (inner > 1 && inner < state->loops.count) /* only a row alone has blocks */
        opq_lower_refuse(state, OPQ_REFUSAL_view);
}

/* Rows of a scan are lanes, side by side where the last loop is one of rows. So few of them that most lanes had none are scanned one by one. */
static void order_scan(opq_lower_state *state)
{
    opq_lower_loops *l = &state->loops;
    int lanes = -1;
    opq_lower_turn_scans(state);
    merge_loops(state, NULL);
    for (int i = 0; i < l->count; i++) {
        bool longer = lanes < 0 || i == l->count - 1 || l->extent[i] > l->extent[lanes];
        if (l->role[i] == OPQ_ROLE_kept && l->extent[i] >= opq_trees.scan_rows_min && longer)
            lanes = i;
    }
    opq_lower_need(state, OPQ_ROLE_scan);
    if (count_role(state, OPQ_ROLE_scan) != 1 || state->serial)
        opq_lower_refuse(state, OPQ_REFUSAL_scan);
    if (lanes >= 0)
        l->role[lanes] = OPQ_ROLE_lanes;
    opq_lower_sort(state);
}

/* An operand of the product. */
static const opq_stmt *operand_of(const opq_lower_state *state, int o)
{
    return &state->body[state->body[state->product].operand[o]];
}

/* The accesses of an operand, and of the conditions under which it has an element. */
static void mark_matrix(const opq_lower_state *state, const opq_stmt *of, bool *out_matrix)
{
    if (of->access >= 0)
        out_matrix[of->access] = true;
    for (int o = 0; o < 3; o++)
        if (of->operand[o] >= 0)
            mark_matrix(state, &state->body[of->operand[o]], out_matrix);
}

/* Only the product's operands may walk its columns as several loops: a tile's are one. */
static bool columns_are_one(const opq_lower_state *state)
{
    const opq_lower_loops *l = &state->loops;
    bool matrix[OPQ_ACCESS_MAX] = {false};
    for (int o = 0; o < 2; o++)
        mark_matrix(state, operand_of(state, o), matrix);
    for (int i = 1; i < l->count; i++)
        for (int a = 0; l->role[i - 1] == OPQ_ROLE_n && l->role[i] == OPQ_ROLE_n && a < state->access_count; a++)
            if (!matrix[a] && opq_lower_stride(state, a, i - 1) != opq_lower_stride(state, a, i) * l->extent[i])
                return false;
    return true;
}

/* The product's operands are not both loads, perhaps widened, from where the engine could take them. */
static bool needs_chain(const opq_lower_state *state, bool thin)
{
    for (int o = 0; o < 2; o++) {
        const opq_stmt *load = operand_of(state, o);
        load = load->op == OPQ_OP_cast ? &state->body[load->operand[0]] : load;
        if (load->op != OPQ_STMT_load || (load->operand[0] >= 0 && thin))
            return true;
        for (int l = 0; l < state->space.rank; l++)
            if (state->affines[load->access].coef[l] < 0)
                return true;
    }
    return false;
}

/* An operand of the product whose elements lie apart along `lanes`, and side by side along the sum: tiles of it are turned, each once. */
static bool is_turned(const opq_lower_state *state, int access, int lanes)
{
    const opq_lower_loops *l = &state->loops;
    int sum = -1;
    bool once = opq_lower_stride(state, access, lanes) >= OPQ_STRIDE_any, operand = false;
    for (int i = 0; i < l->count; i++) {
        if (l->role[i] == OPQ_ROLE_k)
            sum = sum == -1 ? i : -2;
        else
            once = once && opq_lower_stride(state, access, i) != 0;
    }
    for (int o = 0; o < 2; o++) {
        const opq_stmt *of = operand_of(state, o);
        operand |= of->op == OPQ_STMT_load && of->access == access && of->operand[0] < 0;
    }
    return once && operand && sum >= 0 && opq_lower_stride(state, access, sum) == 1;
}

/* Is it made here, or one of many that an engine would begin with one by one? Another that was given is better read by the engine, which makes
 * all products of one operand at once. */
static bool may_turn(const opq_lower_state *state, int access)
{
    opq_ref memory = state->buffers[state->accesses[access].buffer];
    return (memory >= 0 && opq_node_at(state->graph, memory)->op != OPQ_OP_input) ||
           (count_role(state, OPQ_ROLE_kept) > 1 && opq_lower_is_smallest(state->graph, state->out->matmul));
}

/* About what a vector of an access takes whose lanes are so far apart. */
static int64_t lanes_cost(const opq_lower_state *state, int access, int lanes, bool all)
{
    int64_t stride = opq_lower_stride(state, access, lanes);
    if (stride == 0 || stride == 1)
        return 1;
    if (stride > 0 && stride < OPQ_STRIDE_any)
        return 3;
    return is_turned(state, access, lanes) && (!all || may_turn(state, access)) ? opq_trees.turned : opq_trees.apart;
}

/* The loop for the lanes: that of the cheapest vectors, of which a longer one needs fewer. all: none whose lanes lie apart. -1: none. */
static int chain_lanes(const opq_lower_state *state, bool all)
{
    const opq_lower_loops *l = &state->loops;
    int64_t elements = 1, least = INT64_MAX;
    int best = -1;
    for (int i = 0; i < l->count; i++)
        elements *= l->role[i] == OPQ_ROLE_kept ? l->extent[i] : 1;
    for (int i = 0; i < l->count; i++) {
        int64_t cost = 0;
        bool apart = false;
        for (int a = 0; a < state->access_count && l->role[i] == OPQ_ROLE_kept; a++) {
            int64_t of = lanes_cost(state, a, i, all);
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
static bool operand_moves(const opq_lower_state *state, const opq_stmt *of, int loop)
{
    bool moves = of->access >= 0 && opq_lower_stride(state, of->access, loop) != 0;
    for (int o = 0; o < 3 && !moves; o++)
        moves = of->operand[o] >= 0 && operand_moves(state, &state->body[of->operand[o]], loop);
    return moves;
}

/* The taps of a window that long sums are made for (a gradient of weights): one operand serves all of them. */
static bool is_tap(const opq_lower_state *state, int loop)
{
    const opq_lower_loops *l = &state->loops;
    return l->role[loop] == OPQ_ROLE_kept && l->extent[loop] <= opq_trees.taps_max &&
           operand_moves(state, operand_of(state, 0), loop) != operand_moves(state, operand_of(state, 1), loop);
}

/* The last of the loops before the lanes' that are taps, as many as are made at once. */
static void unroll_taps(opq_lower_state *state, int lanes)
{
    opq_lower_loops *l = &state->loops;
    int64_t terms = 1, turns = 1;
    for (int i = lanes + 1; i < l->count; i++)
        terms *= l->extent[i];
    for (int i = lanes - 1; i >= 0 && terms >= opq_trees.tap_terms_min && is_tap(state, i); i--) {
        turns *= l->extent[i];
        if (turns > OPQ_UNROLL_MAX || turns > terms)
            break;
        l->role[i] = OPQ_ROLE_tap;
    }
}

/* A product of one row, or one column, for each of many matrices, or a small one: a chain in each lane, without an engine. */
static bool order_chain(opq_lower_state *state, bool thin)
{
    static const uint8_t as[] = {[OPQ_ROLE_batch] = OPQ_ROLE_kept,
                                 [OPQ_ROLE_m] = OPQ_ROLE_kept,
                                 [OPQ_ROLE_n] = OPQ_ROLE_kept,
                                 [OPQ_ROLE_k] = OPQ_ROLE_k};
    bool small = !thin && opq_lower_is_small(state->graph, state->out->matmul) && !needs_chain(state, true);
    if (state->request->by_row || !(thin || small))
        return false;
    merge_loops(state, as);
    int lanes = chain_lanes(state, !needs_chain(state, thin));
    if (lanes < 0)
        return false;
    state->loops.role[lanes] = OPQ_ROLE_n;
    opq_lower_sort(state);
    state->out->direct = true;
    unroll_taps(state, state->loops.count - 1 - count_role(state, OPQ_ROLE_k));
    return true;
}

/* The batch dims are more rows, if every access walks them as rows: the right operand not at all. */
static void order_matmul(opq_lower_state *state)
{
    static const uint8_t as[] = {
        [OPQ_ROLE_batch] = OPQ_ROLE_m, [OPQ_ROLE_m] = OPQ_ROLE_m, [OPQ_ROLE_n] = OPQ_ROLE_n, [OPQ_ROLE_k] = OPQ_ROLE_k};
    bool reached = state->product >= 0, thin = opq_lower_is_thin(state->graph, state->out->matmul);
    if (reached && order_chain(state, thin))
        return;
    if (!reached || needs_chain(state, thin)) {
        opq_lower_refuse(state, OPQ_REFUSAL_view);
        return;
    }
    merge_loops(state, as);
    if (count_role(state, OPQ_ROLE_m) != 1)
        merge_loops(state, NULL);
    if (!columns_are_one(state))
        opq_lower_refuse(state, OPQ_REFUSAL_view);
}

/* Elements one by one: the last loop has the lanes. */
static void order_map(opq_lower_state *state)
{
    merge_loops(state, NULL);
    opq_lower_need(state, OPQ_ROLE_kept);
    state->loops.role[state->loops.count - 1] = OPQ_ROLE_lanes;
}

void opq_lower_order(opq_lower_state *state)
{
    bool reduces = false;
    for (int l = 0; l < state->space.rank; l++)
        reduces = reduces || opq_role_reduces(state->space.role[l]);
    if (state->out->matmul >= 0)
        order_matmul(state);
    else if (state->scans)
        order_scan(state);
    else if (reduces && state->column)
        order_column(state);
    else if (reduces)
        order_row(state);
    else
        order_map(state);
}
