/* Index maps: where an element of a node sits, as affine expressions over the loops of a kernel.
 *
 * A map gives, for each dim of a node, offset + sum of loop index * coef. Going from a node to its operand through a view rewrites the
 * map; a reshape linearises the index and splits it again, which succeeds when no carry can cross the new dims. One extra variable,
 * OPQ_AT, stands for an index read at run time (gather): its coefficient becomes the stride of an indirect load.
 */
#ifndef OPAQUE_FUSION_AFFINE_H
#define OPAQUE_FUSION_AFFINE_H

#include "fusion/limits.h"
#include "graph/graph.h"

enum { OPQ_AT = OPQ_SPACE_MAX, OPQ_VARIABLES = OPQ_SPACE_MAX + 1 };

typedef struct opq_affine {
    int64_t offset;
    int64_t coef[OPQ_VARIABLES];
} opq_affine;

typedef struct opq_index_map {
    opq_affine dim[OPQ_RANK_MAX];
} opq_index_map;

/* The loops: extent of each, and of the run-time index (0: unused). */
typedef struct opq_space {
    int rank;
    int64_t extent[OPQ_VARIABLES];
    uint8_t role[OPQ_SPACE_MAX]; /* opq_role: lower_state.h */
} opq_space;

bool opq_affine_equal(const opq_affine *a, const opq_affine *b);
/* sum over dims of map->dim[d] * row-major stride of `type` */
opq_affine opq_affine_linear(const opq_index_map *map, const opq_type *type);
/* The same by the offset and strides that a node has as attributes, for a map of so many dims. */
opq_affine opq_affine_strided(const opq_node *node, const opq_index_map *map, int rank);
/* The same elements with every loop that runs backwards (a negative coefficient) turned round. */
opq_affine opq_affine_forwards(const opq_affine *linear, const opq_space *space);
/* Is an index in [0, extent) at every turn of the loops? */
bool opq_affine_inside(const opq_affine *index, const opq_space *space, int64_t extent);
/* Inverse of linear: writes a row-major index of `type` as one expression per dim. False if a carry could cross a dim.
 *
 * At turns where `linear` is outside of [0, elements of `type`), as it is under a padding, nothing is there: a condition keeps them from
 * being used. At all others the map has the index of that element. At every turn all dims are inside but the outermost one of more than one
 * element, which takes what is outside, above and (rounding down: a negative offset) below; the map is then the same linear index. Of one
 * element or none the map is 0. */
bool opq_affine_split(const opq_affine *linear, const opq_space *space, const opq_type *type, opq_index_map *out_map);
/* Operand's map of a view node: right wherever `map` is inside of the view, and undefined elsewhere (under a padding). Not affine: instead of
 * it `out_linear` is set, of a reshape or `strided` that does not split: the operand's dense elements, usable only when it is memory. */
typedef enum opq_through {
    OPQ_THROUGH_map,
    OPQ_THROUGH_split, /* the same; under a padding an index of `out_map` may be outside by more than any index of `map` tells */
    OPQ_THROUGH_linear,
    OPQ_THROUGH_pad, /* `out_map` is outside of the operand in places, where the view has its number */
} opq_through;
opq_through opq_affine_view(const opq_graph *graph, const opq_node *view, const opq_index_map *map,
                            const opq_space *space, opq_index_map *out_map, opq_affine *out_linear);
/* Operand's map when it broadcasts into `result`. */
void opq_affine_broadcast(const opq_index_map *map, const opq_type *result, const opq_type *operand,
                          opq_index_map *out_map);

#endif
