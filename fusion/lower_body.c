/* The body of a kernel: walks from a stored node to memory, one statement per (node, index map).
 *
 * A node that is used under two maps becomes two statements: x + x.t() computes x twice rather than storing it. What is not in
 * the group is loaded; constants, scalars, iota and views that nobody stores are followed where they are used.
 */
#include "fusion/lower_state.h"

#include <string.h>

int opq_lower_refuse(opq_lower_state *state, opq_refusal refusal)
{
    if (state->refusal == OPQ_REFUSAL_none)
        state->refusal = refusal;
    return -1;
}

void opq_lower_lose(opq_lower_state *state, opq_refusal loss)
{
    if (state->out->loss == OPQ_REFUSAL_none && state->request->member_count > 1)
        state->out->loss = loss;
}

/* Moved, never computed with: raw words are integers of their width to codegen. */
static opq_dtype memory_dtype(opq_dtype dtype)
{
    return opq_dtype_kind_of(dtype) == OPQ_KIND_RAW ? opq_compute_dtype(dtype) : dtype;
}

opq_stmt opq_lower_stmt(int op, opq_dtype dtype, int x, int y)
{
    opq_stmt stmt = opq_stmt_make(op);
    stmt.dtype = (uint8_t)dtype;
    stmt.operand[0] = (int16_t)x;
    stmt.operand[1] = (int16_t)y;
    return stmt;
}

int opq_lower_push(opq_lower_state *state, const opq_stmt *stmt)
{
    if (state->body_count >= OPQ_BODY_MAX)
        return opq_lower_refuse(state, OPQ_REFUSAL_body_size);
    if (state->refusal != OPQ_REFUSAL_none) /* an operand was refused */
        return -1;
    state->keeps[state->body_count] = false;
    state->body[state->body_count] = *stmt;
    return state->body_count++;
}

int opq_lower_op(opq_lower_state *state, int op, opq_dtype dtype, int x, int y)
{
    opq_stmt stmt = opq_lower_stmt(op, dtype, x, y);
    return opq_lower_push(state, &stmt);
}

static int find_buffer(opq_lower_state *state, opq_ref memory, bool written)
{
    int buffer = 0;
    while (buffer < state->buffer_count && (state->buffers[buffer] != memory || state->written[buffer] != written))
        buffer++;
    if (buffer == OPQ_BUFFER_MAX)
        return opq_lower_refuse(state, OPQ_REFUSAL_buffers);
    if (buffer == state->buffer_count) {
        state->buffers[buffer] = memory;
        state->written[buffer] = written ? OPQ_BUFFER_out : OPQ_BUFFER_in;
        state->buffer_count++;
    }
    return buffer;
}

int opq_lower_move(opq_lower_state *state, opq_stmt *stmt, opq_ref memory, opq_dtype dtype, const opq_affine *affine)
{
    bool written = stmt->op == OPQ_STMT_store || stmt->op == OPQ_STMT_store_add_at;
    if (state->access_count >= OPQ_ACCESS_MAX)
        return opq_lower_refuse(state, OPQ_REFUSAL_body_size);
    int buffer = memory < 0 ? -1 : find_buffer(state, memory, written);
    state->accesses[state->access_count] = (opq_access){.buffer = (int16_t)buffer, .dtype = (uint8_t)memory_dtype(dtype)};
    state->affines[state->access_count] = *affine;
    state->at_extents[state->access_count] = affine->coef[OPQ_AT] ? state->space.extent[OPQ_AT] : 0;
    stmt->access = (int16_t)state->access_count++;
    return opq_lower_push(state, stmt);
}

static int push_number(opq_lower_state *state, const opq_affine *affine)
{
    opq_stmt number = opq_stmt_make(OPQ_STMT_number);
    number.dtype = OPQ_i64;
    return opq_lower_move(state, &number, -1, OPQ_i64, affine);
}

/* A number that moves with an index read at run time is the index times its stride and the rest. */
static int emit_number(opq_lower_state *state, const opq_affine *affine)
{
    opq_affine rest = *affine, stride = {.offset = affine->coef[OPQ_AT]};
    rest.coef[OPQ_AT] = 0;
    int number = push_number(state, &rest), moved = state->at;
    if (number < 0 || stride.offset == 0)
        return number;
    if (stride.offset != 1)
        moved = opq_lower_op(state, OPQ_OP_mul, OPQ_i64, moved, push_number(state, &stride));
    return opq_lower_op(state, OPQ_OP_add, OPQ_i64, moved, number);
}

static int push_size(opq_lower_state *state, int64_t size)
{
    opq_affine number = {.offset = size};
    return push_number(state, &number);
}

/* Element `linear` of a dense iota: its index along the axis by division, for views that are no stride per loop. */
int opq_lower_iota(opq_lower_state *state, const opq_node *iota, const opq_affine *linear)
{
    int axis = (int)opq_node_int(iota, OPQ_ATTR_axis, 0);
    int64_t inside = 1;
    for (int d = axis + 1; d < iota->type.rank; d++)
        inside *= iota->type.size[d];
    int value = emit_number(state, linear);
    if (value >= 0 && inside > 1)
        value = opq_lower_op(state, OPQ_OP_div_trunc, OPQ_i64, value, push_size(state, inside));
    if (value >= 0 && inside * iota->type.size[axis] < opq_type_count(&iota->type))
        value = opq_lower_op(state, OPQ_OP_remainder, OPQ_i64, value, push_size(state, iota->type.size[axis]));
    return value;
}

int opq_lower_cast(opq_lower_state *state, int operand, opq_dtype from, opq_dtype to)
{
    opq_dtype compute_from = opq_compute_dtype(from), compute_to = opq_compute_dtype(to);
    if (compute_from == compute_to && (to == compute_to || to == from))
        return operand;
    opq_stmt cast = opq_lower_stmt(OPQ_OP_cast, compute_to, operand, -1);
    cast.value.i = to;
    return opq_lower_push(state, &cast);
}

int opq_lower_load(opq_lower_state *state, opq_ref memory, const opq_affine *linear)
{
    const opq_type *type = &opq_node_at(state->graph, memory)->type;
    bool indirect = linear->coef[OPQ_AT] != 0;
    opq_stmt load = opq_lower_stmt(indirect ? OPQ_STMT_load_at : OPQ_STMT_load, opq_compute_dtype(type->dtype),
                                   indirect ? state->at : state->guard, -1);
    if (indirect && state->guard >= 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_boundary);
    load.node = indirect ? state->at_node : -1;
    return opq_lower_move(state, &load, memory, type->dtype, linear);
}

static int emit_scalar(opq_lower_state *state, opq_ref ref)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    int slot = 0;
    while (slot < state->scalar_count && state->scalars[slot] != ref)
        slot++;
    if (slot == state->scalar_count) {
        if (slot >= OPQ_SCALAR_MAX)
            return opq_lower_refuse(state, OPQ_REFUSAL_buffers);
        state->scalars[state->scalar_count++] = ref;
    }
    opq_stmt scalar = opq_lower_stmt(OPQ_OP_scalar, opq_compute_dtype(node->type.dtype), -1, -1);
    scalar.value.i = slot;
    return opq_lower_push(state, &scalar);
}

int opq_lower_const(opq_lower_state *state, const opq_node *node)
{
    const opq_attr *value = opq_node_attr(node, OPQ_ATTR_value);
    opq_stmt made = opq_lower_stmt(OPQ_OP_const, opq_compute_dtype(node->type.dtype), -1, -1);
    if (value)
        made.value = value->number;
    return opq_lower_push(state, &made);
}

void opq_lower_repeats(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    int64_t turns = 1;
    if (opq_node_info(node)->flags & OPQ_FLAG_CHEAP)
        return;
    for (int l = 0; l < state->space.rank; l++) {
        bool moves = false;
        for (int d = 0; d < node->type.rank; d++)
            moves = moves || map->dim[d].coef[l] != 0 || map->dim[d].coef[OPQ_AT] != 0;
        turns *= moves ? state->space.extent[l] : 1;
    }
    if (turns > opq_type_count(&node->type))
        opq_lower_lose(state, OPQ_REFUSAL_recompute);
}

static int emit_random(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    opq_affine linear = opq_affine_linear(map, &node->type);
    opq_index_map none = {0};
    opq_lower_repeats(state, node, map);
    int index = emit_number(state, &linear);
    int seed = index < 0 ? -1 : opq_lower_emit(state, node->operand[0], &none);
    int offset = seed < 0 ? -1 : opq_lower_emit(state, node->operand[1], &none);
    opq_stmt random = opq_lower_stmt(node->op, OPQ_f32, index, seed);
    random.operand[2] = (int16_t)offset;
    return opq_lower_push(state, &random);
}

/* Its row-major index must then run over the loops that move it without a gap. */
bool opq_lower_covers(const opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    opq_affine linear = opq_affine_linear(map, &node->type);
    linear = opq_affine_forwards(&linear, &state->space);
    int64_t count = opq_type_count(&node->type), seen = 1;
    if (count == 0)
        return true;
    if (linear.offset != 0 || linear.coef[OPQ_AT] != 0)
        return false;
    for (int l = 0; l < state->space.rank; l++)
        if (state->space.extent[l] > 1 && linear.coef[l] == seen) {
            seen *= state->space.extent[l];
            l = -1; /* the loop with the next stride may be any */
        }
    return seen == count;
}

/* Nothing that may fail is computed of what is not there. */
static bool push_nonzero(opq_lower_state *state, const opq_node *node, const opq_stmt *division)
{
    opq_stmt check =
        opq_lower_stmt(OPQ_STMT_nonzero, (opq_dtype)division->dtype, division->operand[1], division->operand[0]);
    if (state->guard >= 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_part) >= 0;
    check.node = (opq_ref)(node - state->graph->nodes);
    return opq_lower_push(state, &check) >= 0;
}

static int emit_elementwise(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    opq_stmt made = opq_lower_stmt(node->op, opq_compute_dtype(node->type.dtype), -1, -1);
    opq_index_map operand_map;
    opq_lower_repeats(state, node, map);
    if (opq_node_divides(node) && !opq_lower_covers(state, node, map))
        return opq_lower_refuse(state, OPQ_REFUSAL_part);
    for (int k = 0; k < node->arity; k++) {
        const opq_type *type = &opq_node_at(state->graph, node->operand[k])->type;
        opq_affine_broadcast(map, &node->type, type, &operand_map);
        int operand = opq_lower_emit(state, node->operand[k], &operand_map);
        if (operand < 0)
            return -1;
        made.operand[k] = (int16_t)operand;
    }
    if (opq_node_class(node) == OPQ_CLASS_CAST)
        return opq_lower_cast(state, made.operand[0], opq_node_at(state->graph, node->operand[0])->type.dtype,
                              node->type.dtype);
    if (opq_node_divides(node) && !push_nonzero(state, node, &made))
        return -1;
    return opq_lower_push(state, &made);
}

opq_affine opq_lower_index(const opq_space *space, bool kept, bool reduced, int64_t *out_turns)
{
    opq_affine index = {0};
    *out_turns = 1;
    for (int l = space->rank - 1; l >= 0; l--) {
        if (!(opq_role_reduces(space->role[l]) ? reduced : kept))
            continue;
        index.coef[l] = space->extent[l] == 1 ? 0 : *out_turns;
        *out_turns *= space->extent[l];
    }
    return index;
}

/* A reduction fits if its kept index runs over exactly the kept loops, in order; then its operand runs over all loops. */
static int emit_reduce(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    const opq_space *space = &state->space;
    const opq_type *type = &opq_node_at(state->graph, node->operand[0])->type;
    int64_t kept_turns, reduced_turns, run = 1;
    opq_affine index = opq_affine_linear(map, &node->type);
    opq_affine kept = opq_lower_index(space, true, false, &kept_turns),
               reduced = opq_lower_index(space, false, true, &reduced_turns);
    bool reduces = false; /* a reduction of extents of 1 needs its loop all the same */
    for (int l = 0; l < space->rank; l++) {
        reduces = reduces || opq_role_reduces(space->role[l]);
        run *= space->role[l] == OPQ_ROLE_reduced_inner ? space->extent[l] : 1;
    }
    if (!state->column && run != opq_node_run(node, type)) /* its partial results are others */
        return opq_lower_refuse(state, OPQ_REFUSAL_axes);
    if (!reduces || opq_type_count(type) != kept_turns * reduced_turns || opq_type_count(&node->type) != kept_turns ||
        (opq_node_int(node, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column) != state->column)
        return opq_lower_refuse(state, OPQ_REFUSAL_axes);
    if (!opq_affine_equal(&index, &kept))
        return opq_lower_refuse(state, OPQ_REFUSAL_space);

    opq_type reduced_type = *type; /* the reduced dims alone, others 1 */
    for (int d = 0; d < type->rank; d++)
        if (!opq_node_reduces(node, d))
            reduced_type.size[d] = 1;
    opq_index_map operand_map;
    if (!opq_affine_split(&reduced, space, &reduced_type, &operand_map))
        return opq_lower_refuse(state, OPQ_REFUSAL_axes);
    for (int d = 0; d < type->rank; d++)
        if (!opq_node_reduces(node, d))
            operand_map.dim[d] = map->dim[d];
    int16_t outer = state->guard;
    state->guard = -1; /* all that is reduced is there, whatever is made of the result */
    int operand = opq_lower_emit(state, node->operand[0], &operand_map);
    state->guard = outer;
    return opq_lower_op(state, node->op, opq_compute_dtype(node->type.dtype), operand, -1);
}

/* Nothing is read at the index in state->at where the operand is a constant or broadcast along the axis: the index is checked
 * all the same, as far as no load does it. */
static bool emit_check(opq_lower_state *state, int64_t extent)
{
    for (int i = state->body_count - 1; i > state->at; i--) {
        const opq_stmt *stmt = &state->body[i];
        if (opq_op_checks(stmt->op) && stmt->operand[0] == state->at && state->at_extents[stmt->access] == extent)
            return true;
    }
    opq_affine at = {0};
    at.coef[OPQ_AT] = 1;
    opq_stmt check = opq_lower_stmt(OPQ_STMT_check, OPQ_i64, state->at, -1);
    check.node = state->at_node;
    return opq_lower_move(state, &check, -1, OPQ_i64, &at) >= 0;
}

/* The operand is read with its `axis` index replaced by a value: the value becomes the variable OPQ_AT. */
static int emit_index(opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    const opq_type *source = &opq_node_at(state->graph, node->operand[0])->type;
    const opq_type *index = &opq_node_at(state->graph, node->operand[1])->type;
    int axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0);
    bool select = node->op == OPQ_OP_index_select;
    opq_index_map index_map, source_map;
    if (state->guard >= 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_boundary);
    for (int d = 0; d < index->rank; d++)
        index_map.dim[d] = map->dim[select ? axis + d : d];
    for (int d = 0; d < source->rank; d++) {
        if (d == axis) {
            memset(&source_map.dim[d], 0, sizeof source_map.dim[d]);
            source_map.dim[d].coef[OPQ_AT] = 1;
            continue;
        }
        source_map.dim[d] = map->dim[select && d > axis ? d + index->rank - 1 : d];
        if (source_map.dim[d].coef[OPQ_AT] != 0)
            return opq_lower_refuse(state, OPQ_REFUSAL_boundary);
    }
    int value = opq_lower_emit(state, node->operand[1], &index_map);
    if (value < 0)
        return -1;
    int16_t outer_at = state->at;
    opq_ref outer_node = state->at_node;
    int64_t outer_extent = state->space.extent[OPQ_AT];
    state->at = (int16_t)opq_lower_cast(state, value, index->dtype, OPQ_i64);
    state->at_node = (opq_ref)(node - state->graph->nodes);
    state->space.extent[OPQ_AT] = source->size[axis];
    int result = state->at < 0 ? -1 : opq_lower_emit(state, node->operand[0], &source_map);
    if (result >= 0 && !emit_check(state, source->size[axis]))
        result = -1;
    state->at = outer_at;
    state->at_node = outer_node;
    state->space.extent[OPQ_AT] = outer_extent;
    return result;
}

static int emit_node(opq_lower_state *state, opq_ref ref, const opq_index_map *map)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    opq_class class_ = opq_node_class(node);
    bool member = state->request->group_of[ref] == state->request->group;
    bool number = class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR;
    if (!member && !number && (!opq_node_is_free(state->graph, ref) || opq_lower_is_stored(state, ref))) {
        opq_affine linear = opq_affine_linear(map, &node->type);
        return opq_lower_load(state, ref, &linear);
    }
    switch (class_) {
    case OPQ_CLASS_CONST: return opq_lower_const(state, node);
    case OPQ_CLASS_SCALAR: return emit_scalar(state, ref);
    case OPQ_CLASS_IOTA: return emit_number(state, &map->dim[opq_node_int(node, OPQ_ATTR_axis, 0)]);
    case OPQ_CLASS_VIEW: return opq_lower_view(state, node, map);
    case OPQ_CLASS_RANDOM: return emit_random(state, node, map);
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST: return emit_elementwise(state, node, map);
    case OPQ_CLASS_REDUCE: return emit_reduce(state, node, map);
    case OPQ_CLASS_SCAN: return opq_lower_scan(state, node, map);
    case OPQ_CLASS_INDEX: return emit_index(state, node, map);
    case OPQ_CLASS_MATMUL: return opq_lower_product(state, ref, map);
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_UPDATE:
    case OPQ_CLASS_CONCAT:
    case OPQ_CLASS_SCATTER:
    case OPQ_CLASS_ROUTINE:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: break;
    }
    return opq_lower_refuse(state, OPQ_REFUSAL_boundary);
}

/* A node may be read at many places, sliced or at indices: then these differ in offsets or in the index. */
static int memo_bucket(opq_ref ref, int16_t at, const opq_index_map *map, int rank)
{
    uint32_t hash = (uint32_t)ref * 31 + (uint32_t)at;
    for (int d = 0; d < rank; d++)
        hash = hash * 31 + (uint32_t)map->dim[d].offset;
    return (int)((hash * 2654435761u) >> (32 - OPQ_MEMO_BITS));
}

int opq_lower_emit(opq_lower_state *state, opq_ref ref, const opq_index_map *map)
{
    int rank = opq_node_at(state->graph, ref)->type.rank;
    int16_t at = -1;
    for (int d = 0; d < rank; d++)
        if (map->dim[d].coef[OPQ_AT] != 0)
            at = state->at;
    int bucket = memo_bucket(ref, at, map, rank);
    for (int16_t i = state->bucket[bucket]; i >= 0; i = state->memos[i].next) {
        const opq_memo *memo = &state->memos[i];
        if (memo->node == ref && memo->at == at && memo->guard == state->guard &&
            memcmp(memo->dim, map->dim, (size_t)rank * sizeof *memo->dim) == 0)
            return memo->stmt;
    }
    if (state->nesting == OPQ_NESTING_MAX)
        return opq_lower_refuse(state, OPQ_REFUSAL_body_size);
    state->nesting++;
    int stmt = emit_node(state, ref, map);
    state->nesting--;
    if (stmt < 0)
        return -1;
    if (state->memo_count >= OPQ_BODY_MAX * 2)
        return opq_lower_refuse(state, OPQ_REFUSAL_body_size);
    opq_memo *memo = &state->memos[state->memo_count];
    *memo =
        (opq_memo){.node = ref, .stmt = (int16_t)stmt, .at = at, .guard = state->guard, .next = state->bucket[bucket]};
    memo->dim = opq_arena_copy(&state->maps, map->dim, (size_t)rank * sizeof *memo->dim);
    if (rank > 0 && memo->dim == NULL) {
        state->no_memory = true;
        return opq_lower_refuse(state, OPQ_REFUSAL_body_size);
    }
    state->bucket[bucket] = (int16_t)state->memo_count++;
    return stmt;
}
