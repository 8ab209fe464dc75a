/* Products of matrices: two loads and a chain of multiply-adds over k, in loops [batch.., m, n, k].
 *
 *   %5 = matmul f32[8,128,64] %3, %4 {transpose_b=1}     a[batch, m, k] * b[batch, n, k]
 *
 * An operand is memory, seen through any views that are one stride per loop; what is not is stored before.
 */
#include "fusion/lower_state.h"
#include "fusion/pass.h"
#include "fusion/target.h"

#include <string.h>

bool opq_lower_has_memory(const int32_t *group_of, const uint8_t *in_memory, opq_ref ref)
{
    return group_of[ref] >= 0 || (in_memory && in_memory[ref]);
}

int opq_lower_summed_dim(const opq_graph *graph, opq_ref matmul, int operand)
{
    const opq_node *node = opq_node_at(graph, matmul);
    bool left = operand == 0;
    bool transposed = opq_node_int(node, left ? OPQ_ATTR_transpose_a : OPQ_ATTR_transpose_b, 0) != 0;
    return opq_node_at(graph, node->operand[operand])->type.rank - (left == transposed ? 2 : 1);
}

void opq_lower_matrix_dims(const opq_graph *graph, opq_ref matmul, int operand, int *out_from)
{
    const opq_node *node = opq_node_at(graph, matmul);
    int rank = opq_node_at(graph, node->operand[operand])->type.rank, more = node->type.rank - rank;
    int summed = opq_lower_summed_dim(graph, matmul, operand);
    for (int d = 0; d < rank - 2; d++)
        out_from[d] = d + more;
    out_from[summed] = node->type.rank;
    out_from[2 * rank - 3 - summed] = node->type.rank - (operand == 0 ? 2 : 1);
}

/* Which indices an operand's dims have, of those of the product and k. */
static void operand_map(const opq_graph *graph, opq_ref matmul, int operand, const opq_index_map *map,
                        const opq_affine *k, opq_index_map *out_map)
{
    const opq_node *node = opq_node_at(graph, matmul);
    const opq_type *type = &opq_node_at(graph, node->operand[operand])->type;
    int from[OPQ_RANK_MAX];
    memset(out_map, 0, sizeof *out_map);
    opq_lower_matrix_dims(graph, matmul, operand, from);
    for (int d = 0; d < type->rank; d++)
        if (from[d] == node->type.rank)
            out_map->dim[d] = *k;
        else if (type->size[d] != 1)
            out_map->dim[d] = map->dim[from[d]];
}

static int64_t summed_size(const opq_graph *graph, opq_ref matmul)
{
    return opq_node_at(graph, opq_node_at(graph, matmul)->operand[0])->type.size[opq_lower_summed_dim(graph, matmul, 0)];
}

bool opq_graph_is_one_op(const opq_graph *graph)
{
    int ops = 0;
    for (opq_ref n = 0; n < graph->count && ops < 2; n++)
        ops += opq_node_at(graph, n)->op != OPQ_OP_input && !opq_node_is_free(graph, n);
    return ops < 2;
}

bool opq_lower_is_smallest(const opq_graph *graph, opq_ref matmul)
{
    const opq_type *type = &opq_node_at(graph, matmul)->type;
    return type->size[type->rank - 2] <= opq_trees.smallest && type->size[type->rank - 1] <= opq_trees.smallest &&
           summed_size(graph, matmul) <= opq_trees.smallest;
}

opq_loop_role opq_lower_product_role(const opq_graph *graph, opq_ref matmul)
{
    int64_t pairs = opq_node_int(opq_node_at(graph, matmul), OPQ_ATTR_pairs, 0);
    return pairs == 16 ? OPQ_LOOP_pairs16 : pairs ? OPQ_LOOP_pairs : OPQ_LOOP_chain;
}

bool opq_lower_takes_bytes(const opq_graph *graph, opq_ref matmul)
{
    const opq_node *node = opq_node_at(graph, matmul);
    bool bytes = false;
    for (int k = 0; k < 2; k++)
        bytes = bytes || opq_node_at(graph, node->operand[k])->type.dtype == OPQ_i8;
    return bytes;
}

bool opq_lower_needs_engine(const opq_graph *graph, opq_ref matmul)
{
    return opq_lower_takes_bytes(graph, matmul) || opq_lower_product_role(graph, matmul) != OPQ_LOOP_chain;
}

/* So few multiply-adds that the way to the engine takes as long. Counted up to powers of two, and for one op up to the smallest sizes alone: plans of one op for other sizes are written down from those for
 * all between two powers of two, or for all that are no smallest ones, if these are alike. Of the smallest as many as there are: an engine takes
 * longer to begin with one than a chain to end it. */
bool opq_lower_is_small(const opq_graph *graph, opq_ref matmul)
{
    if (opq_lower_needs_engine(graph, matmul))
        return false;
    const opq_type *type = &opq_node_at(graph, matmul)->type;
    int64_t m = type->size[type->rank - 2], n = type->size[type->rank - 1], k = summed_size(graph, matmul);
    int64_t left = m == 1 || n == 1 ? opq_trees.vector_work : opq_trees.small_work;
    bool smallest = opq_lower_is_smallest(graph, matmul);
    for (int64_t turns = 1; turns < k; turns *= 2)
        left /= 2;
    for (int d = smallest ? type->rank - 2 : 0; d < type->rank; d++)
        for (int64_t turns = 1; turns < type->size[d] && left > 0; turns *= 2)
            left /= 2;
    return left > 0 && (smallest || !opq_graph_is_one_op(graph));
}

/* Rows, or columns, too few for what an engine packs to be used again, in many matrices; of numbers alone, however long their sums. */
bool opq_lower_is_thin(const opq_graph *graph, opq_ref matmul)
{
    const opq_type *type = &opq_node_at(graph, matmul)->type;
    int64_t m = type->size[type->rank - 2], n = type->size[type->rank - 1], count = opq_type_count(type);
    int64_t k = summed_size(graph, matmul);
    opq_ref right = opq_strip_reshape(graph, opq_node_at(graph, matmul)->operand[1]);
    bool many = count >= opq_trees.thin_batch_min * m * n || (m == 1 && opq_window_overlaps(graph, right));
    return !opq_lower_needs_engine(graph, matmul) && (m == 1 || n == 1) && (k <= opq_trees.thin_sum_max || m == n) &&
           many;
}

/* Indices that are in [0, extent) where there is an element, else it is 0. */
typedef struct guards {
    int count;
    opq_affine index[OPQ_MATRIX_GUARD_MAX];
    int64_t extent[OPQ_MATRIX_GUARD_MAX];
} guards;

/* An operand in memory. */
typedef struct matrix {
    opq_ref memory;
    opq_affine linear; /* where an element of it is */
    guards guards;
} matrix;

/* The engine packs zeros around what it computes with in f32. */
static bool add_guards(const opq_graph *graph, const opq_node *pad, const opq_index_map *map, const opq_space *space,
                       guards *out)
{
    const opq_type *source = &opq_node_at(graph, pad->operand[0])->type;
    opq_affine linear = opq_affine_linear(map, source);
    bool vectors = false; /* else it would pack element by element */
    for (int l = 0; l < space->rank; l++)
        vectors = vectors || (linear.coef[l] > 0 && linear.coef[l] <= 2 && space->extent[l] >= opq_trees.vector_min);
    if (!vectors || !opq_pad_is_zero(pad) || opq_compute_dtype((opq_dtype)pad->type.dtype) != OPQ_f32)
        return false;
    for (int d = 0; d < source->rank; d++) {
        if (opq_affine_inside(&map->dim[d], space, source->size[d]))
            continue;
        if (out->count == OPQ_MATRIX_GUARD_MAX)
            return false;
        out->index[out->count] = map->dim[d];
        out->extent[out->count++] = source->size[d];
    }
    return true;
}

/* Has every index that may be outside of `type` its guard? */
static bool is_guarded(const guards *guards, const opq_index_map *map, const opq_space *space, const opq_type *type)
{
    bool guarded = true;
    for (int d = 0; d < type->rank && guarded; d++) {
        guarded = opq_affine_inside(&map->dim[d], space, type->size[d]);
        for (int g = 0; g < guards->count && !guarded; g++)
            guarded = guards->extent[g] == type->size[d] && opq_affine_equal(&guards->index[g], &map->dim[d]);
    }
    return guarded;
}

/* From `out->memory` down to what is in memory; false: no stride per loop, or no memory. `thin`: for a product that is made without the
 * engine, which sees through any padding. */
static bool find_memory(const opq_graph *graph, const int32_t *group_of, const uint8_t *in_memory,
                        const opq_space *space, bool thin, opq_index_map *map, matrix *out)
{
    opq_index_map next;
    bool exact = true;
    out->guards.count = 0;
    out->linear = opq_affine_linear(map, &opq_node_at(graph, out->memory)->type);
    while (opq_node_class(opq_node_at(graph, out->memory)) == OPQ_CLASS_VIEW &&
           !opq_lower_has_memory(group_of, in_memory, out->memory)) {
        const opq_node *view = opq_node_at(graph, out->memory);
        out->memory = view->operand[0];
        if (!exact && view->op == OPQ_OP_reshape) /* the same dense elements */
            continue;
        if (!exact)
            return false;
        opq_through through = opq_affine_view(graph, view, map, space, &next, &out->linear);
        if (through == OPQ_THROUGH_pad && !thin && !add_guards(graph, view, &next, space, &out->guards))
            return false;
        if (through == OPQ_THROUGH_split && !thin &&
            !is_guarded(&out->guards, &next, space, &opq_node_at(graph, out->memory)->type))
            return false;
        exact = through != OPQ_THROUGH_linear;
        *map = next;
        if (exact)
            out->linear = opq_affine_linear(map, &opq_node_at(graph, out->memory)->type);
    }
    for (int v = 0; v < OPQ_VARIABLES; v++)
        if (out->linear.coef[v] < 0 && !thin) /* panels are packed forwards */
            return false;
    return !opq_node_is_free(graph, out->memory) || opq_lower_has_memory(group_of, in_memory, out->memory);
}

/* Of the rows and columns of one matrix, not of which matrix it is. */
static bool guards_stay(const guards *guards, const opq_index_map *map, int rank)
{
    for (int g = 0; g < guards->count; g++)
        for (int d = 0; d < rank - 2; d++)
            for (int v = 0; v < OPQ_VARIABLES; v++)
                if (guards->index[g].coef[v] != 0 && map->dim[d].coef[v] != 0)
                    return false;
    return true;
}

/* A row-major index over all loops that are reduced, or over all that are not. */
static opq_affine index_over(const opq_space *space, bool reduced)
{
    opq_affine index = {0};
    int64_t stride = 1;
    for (int l = space->rank - 1; l >= 0; l--)
        if (opq_role_reduces(space->role[l]) == reduced) {
            index.coef[l] = stride;
            stride *= space->extent[l];
        }
    return index;
}

bool opq_lower_is_matrix(const opq_graph *graph, const int32_t *group_of, const uint8_t *in_memory, opq_ref matmul,
                         int operand)
{
    opq_lower_request request = {.graph = graph, .group_of = group_of, .group = -2, .in_memory = in_memory};
    const opq_type *type = &opq_node_at(graph, matmul)->type;
    matrix found = {.memory = opq_node_at(graph, matmul)->operand[operand]};
    opq_space space;
    opq_index_map map, own;
    if (!opq_lower_product_space(&request, matmul, &space))
        return false;
    opq_affine kept = index_over(&space, false), k = index_over(&space, true);
    if (!opq_affine_split(&kept, &space, type, &map))
        return false;
    operand_map(graph, matmul, operand, &map, &k, &own);
    return find_memory(graph, group_of, in_memory, &space, opq_lower_is_thin(graph, matmul), &own, &found) &&
           guards_stay(&found.guards, &map, type->rank);
}

/* The loops are the product's dims, in order, and all of it: nothing at an index read at run time. */
static bool walks_in_order(const opq_lower_state *state, const opq_node *node, const opq_index_map *map)
{
    opq_affine linear = opq_affine_linear(map, &node->type);
    int64_t stride = 1;
    if (linear.offset != 0 || linear.coef[OPQ_AT] != 0)
        return false;
    for (int l = state->space.rank - 1; l >= 0; l--) {
        if (opq_role_reduces(state->space.role[l]))
            continue;
        if (state->space.extent[l] != 1 && linear.coef[l] != stride)
            return false;
        stride *= state->space.extent[l];
    }
    return true;
}

/* -1: refused. */
static int load_matrix(opq_lower_state *state, opq_ref operand, opq_index_map *own)
{
    const opq_lower_request *rq = state->request;
    opq_affine as_it_is = opq_affine_linear(own, &opq_node_at(state->graph, operand)->type);
    matrix found = {.memory = operand};
    if (!find_memory(state->graph, rq->group_of, rq->in_memory, &state->space, false, own, &found)) {
        if (rq->in_memory && !rq->by_row) /* grouping will store it */
            return opq_lower_load(state, operand, &as_it_is);
        return opq_lower_refuse(state, OPQ_REFUSAL_view);
    }
    int16_t outer = state->guard;
    for (int g = 0; g < found.guards.count; g++)
        if (!opq_lower_guard(state, &found.guards.index[g], found.guards.extent[g]))
            return -1;
    int load = opq_lower_load(state, found.memory, &found.linear);
    state->guard = outer;
    return load;
}

int opq_lower_product(opq_lower_state *state, opq_ref ref, const opq_index_map *map)
{
    const opq_node *node = opq_node_at(state->graph, ref);
    opq_dtype dtype = opq_compute_dtype((opq_dtype)node->type.dtype);
    if (!walks_in_order(state, node, map) || state->guard >= 0)
        return opq_lower_refuse(state, OPQ_REFUSAL_space);
    opq_stmt product = opq_lower_stmt(node->op, dtype, -1, -1);
    opq_affine k = index_over(&state->space, true);
    bool thin = !state->request->by_row && opq_lower_is_thin(state->graph, ref);
    for (int o = 0; o < 2; o++) {
        opq_index_map own;
        operand_map(state->graph, ref, o, map, &k, &own);
        int value = thin ? opq_lower_emit(state, node->operand[o], &own) : load_matrix(state, node->operand[o], &own);
        if (value >= 0)
            value =
                opq_lower_cast(state, value, (opq_dtype)opq_node_at(state->graph, node->operand[o])->type.dtype, dtype);
        if (value < 0)
            return -1;
        if (state->body[value].dtype != dtype)
            return opq_lower_refuse(state, OPQ_REFUSAL_boundary);
        product.operand[o] = (int16_t)value;
    }
    return state->product = (int16_t)opq_lower_push(state, &product);
}
