/* Index maps through views: see affine.h. */
#include "fusion/affine.h"

#include <string.h>

bool opq_affine_equal(const opq_affine *a, const opq_affine *b) { return memcmp(a, b, sizeof *a) == 0; }

static void add_scaled(opq_affine *sum, const opq_affine *term, int64_t scale)
{
    sum->offset += term->offset * scale;
    for (int v = 0; v < OPQ_VARIABLES; v++)
        sum->coef[v] += term->coef[v] * scale;
}

opq_affine opq_affine_linear(const opq_index_map *map, const opq_type *type)
{
    opq_affine linear = {0};
    int64_t stride = 1;
    for (int d = type->rank - 1; d >= 0; d--) {
        add_scaled(&linear, &map->dim[d], stride);
        stride *= type->size[d];
    }
    return linear;
}

/* Each term belongs to the outermost dim whose stride divides it: a term that is smaller than a stride cannot be in that dim,
 * and one that a stride does not divide would carry. */
static int dim_of_term(int64_t coef, const opq_type *type, const int64_t *stride)
{
    for (int d = 0; d < type->rank; d++)
        if (type->size[d] > 1 && coef >= stride[d])
            return coef % stride[d] == 0 ? d : -1;
    return -1;
}

opq_affine opq_affine_forwards(const opq_affine *linear, const opq_space *space)
{
    opq_affine result = *linear;
    for (int v = 0; v < OPQ_VARIABLES; v++)
        if (linear->coef[v] < 0 && space->extent[v] > 1) {
            result.offset += linear->coef[v] * (space->extent[v] - 1);
            result.coef[v] = -linear->coef[v];
        }
    return result;
}

bool opq_affine_inside(const opq_affine *index, const opq_space *space, int64_t extent)
{
    int64_t low = index->offset, high = index->offset;
    for (int l = 0; l < space->rank; l++) {
        int64_t span = index->coef[l] * (space->extent[l] - 1);
        *(span < 0 ? &low : &high) += span;
    }
    return low >= 0 && high < extent && index->coef[OPQ_AT] == 0;
}

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* The offset goes to the dims as an element's number would; what is left of it below 0 is the outermost one's. */
static void split_offset(int64_t offset, const int64_t *stride, int first, const opq_type *type, opq_index_map *out_map)
{
    for (int d = 0; d < type->rank; d++)
        memset(&out_map->dim[d], 0, sizeof out_map->dim[d]);
    for (int d = first; d < type->rank; d++) {
        out_map->dim[d].offset = floor_div(offset, stride[d]);
        offset -= out_map->dim[d].offset * stride[d];
    }
}

bool opq_affine_split(const opq_affine *linear, const opq_space *space, const opq_type *type, opq_index_map *out_map)
{
    opq_affine forwards = opq_affine_forwards(linear, space);
    int64_t stride[OPQ_RANK_MAX], last[OPQ_RANK_MAX], step = 1;
    int first = type->rank; /* the outermost dim that moves */
    for (int d = type->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step *= type->size[d] > 0 ? type->size[d] : 1;
        first = type->size[d] > 1 ? d : first;
    }
    split_offset(forwards.offset, stride, first, type, out_map);
    for (int d = 0; d < type->rank; d++)
        last[d] = out_map->dim[d].offset;
    for (int v = 0; v < OPQ_VARIABLES && first < type->rank; v++) {
        int64_t coef = forwards.coef[v], span;
        if (coef == 0 || space->extent[v] <= 1)
            continue;
        int d = dim_of_term(coef, type, stride);
        if (d < 0)
            return false;
        coef /= stride[d];
        span = coef * (space->extent[v] - 1);
        last[d] += span;
        out_map->dim[d].coef[v] = linear->coef[v] < 0 ? -coef : coef;
        out_map->dim[d].offset += linear->coef[v] < 0 ? span : 0;
    }
    for (int d = first + 1; d < type->rank; d++)
        if (last[d] >= type->size[d] && type->size[d] > 0)
            return false;
    return true;
}

static void through_slice(const opq_node *view, const opq_index_map *map, opq_index_map *out_map)
{
    const opq_attr *start = opq_node_attr(view, OPQ_ATTR_start), *step = opq_node_attr(view, OPQ_ATTR_step);
    for (int d = 0; d < view->type.rank; d++) {
        memset(&out_map->dim[d], 0, sizeof out_map->dim[d]);
        add_scaled(&out_map->dim[d], &map->dim[d], step ? step->ints[d] : 1);
        out_map->dim[d].offset += start ? start->ints[d] : 0;
    }
}

/* Dims [from, to) of a shape. */
typedef struct dims {
    const opq_type *type;
    int from, to;
    int64_t count;
} dims;

static void take_dim(dims *d) { d->count *= d->type->size[d->to++]; }

/* The next dims of both shapes with one number of elements: an index of the ones is an index of the others. */
static bool next_dims(dims *a, dims *b)
{
    *a = (dims){a->type, a->to, a->to, 1};
    *b = (dims){b->type, b->to, b->to, 1};
    if (a->to == a->type->rank && b->to == b->type->rank)
        return false;
    do {
        bool left = a->to < a->type->rank, right = b->to < b->type->rank;
        take_dim(left && (a->count <= b->count || !right) ? a : b);
    } while (a->count != b->count && (a->to < a->type->rank || b->to < b->type->rank));
    return true;
}

static opq_type type_of_dims(const dims *d)
{
    return opq_type_make((opq_dtype)d->type->dtype, d->to - d->from, d->type->size + d->from);
}

/* Dims for dims, so that what a padding moves out of one of them carries into no other. */
static opq_through through_reshape(const opq_type *type, const opq_type *source, const opq_index_map *map,
                                   const opq_space *space, opq_index_map *out_map)
{
    dims to = {.type = type}, from = {.type = source};
    opq_through through = OPQ_THROUGH_map;
    while (next_dims(&to, &from)) {
        opq_type whole = type_of_dims(&to), parts = type_of_dims(&from);
        opq_index_map index, split;
        memcpy(index.dim, map->dim + to.from, (size_t)whole.rank * sizeof *index.dim);
        opq_affine linear = opq_affine_linear(&index, &whole);
        if (!opq_affine_split(&linear, space, &parts, &split))
            return OPQ_THROUGH_linear;
        memcpy(out_map->dim + from.from, split.dim, (size_t)parts.rank * sizeof *split.dim);
        through = parts.rank > 1 ? OPQ_THROUGH_split : through;
    }
    return through;
}

opq_affine opq_affine_strided(const opq_node *node, const opq_index_map *map, int rank)
{
    opq_affine address = {.offset = opq_node_int(node, OPQ_ATTR_offset, 0)};
    for (int d = 0; d < rank; d++)
        add_scaled(&address, &map->dim[d], opq_node_attr(node, OPQ_ATTR_strides)->ints[d]);
    return address;
}

opq_through opq_affine_view(const opq_graph *graph, const opq_node *view, const opq_index_map *map,
                            const opq_space *space, opq_index_map *out_map, opq_affine *out_linear)
{
    const opq_type *source = &opq_node_at(graph, view->operand[0])->type;
    switch ((int)view->op) {
    case OPQ_OP_permute: {
        const opq_attr *dims = opq_node_attr(view, OPQ_ATTR_dims);
        for (int d = 0; d < view->type.rank; d++)
            out_map->dim[dims->ints[d]] = map->dim[d];
        return OPQ_THROUGH_map;
    }
    case OPQ_OP_expand: opq_affine_broadcast(map, &view->type, source, out_map); return OPQ_THROUGH_map;
    case OPQ_OP_slice: through_slice(view, map, out_map); return OPQ_THROUGH_map;
    case OPQ_OP_pad:
        for (int d = 0; d < view->type.rank; d++) {
            out_map->dim[d] = map->dim[d];
            out_map->dim[d].offset -= opq_node_attr(view, OPQ_ATTR_start)->ints[d];
        }
        return OPQ_THROUGH_pad;
    case OPQ_OP_reshape:
        *out_linear = opq_affine_linear(map, &view->type);
        return through_reshape(&view->type, source, map, space, out_map);
    }
    *out_linear = opq_affine_strided(view, map, view->type.rank);
    return opq_affine_split(out_linear, space, source, out_map) ? OPQ_THROUGH_split : OPQ_THROUGH_linear;
}

void opq_affine_broadcast(const opq_index_map *map, const opq_type *result, const opq_type *operand,
                          opq_index_map *out_map)
{
    int shift = result->rank - operand->rank;
    for (int d = 0; d < operand->rank; d++) {
        if (operand->size[d] == 1)
            memset(&out_map->dim[d], 0, sizeof out_map->dim[d]);
        else
            out_map->dim[d] = map->dim[d + shift];
    }
}
