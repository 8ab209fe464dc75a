/* What grouping works with: groups, and the edges from placed nodes to the nodes whose values they need. */
#ifndef OPAQUE_FUSION_GROUP_STATE_H
#define OPAQUE_FUSION_GROUP_STATE_H

#include "fusion/pass.h"

typedef struct opq_group {
    opq_ref *members; /* descending */
    int count, capacity;
    int body, operands; /* upper estimates */
    bool plain;         /* one shape, elementwise, no views inside: joining another such node needs no trial */
    bool dead;          /* merged away */
    uint64_t *after;    /* bit set: groups that need results of this one, transitively */
    bool needs_some;    /* it is in such a set of another group */
} opq_group;

typedef struct opq_edge {
    opq_ref consumer;
    int32_t next;
    bool from_memory, direct; /* direct: no view between */
} opq_edge;

typedef struct opq_grouper {
    const opq_graph *in;
    opq_fusion fusion;
    opq_grouping result;
    opq_group *groups;
    int group_count, words; /* words of an `after` set */
    opq_edge *edges;
    int32_t edge_count, edge_capacity;
    int32_t *first_edge; /* per node, -1 */
    uint8_t *is_output;
    opq_refusal *refusal; /* per node: why it did not join its consumers */
    opq_arena scratch;
} opq_grouper;

/* Links a node that got its group to what it needs. Operands that are taken from dense memory: a view has to be stored for that, a
 * reshape shares its operand's memory. */
opq_status opq_add_edges_of(opq_grouper *g, opq_ref consumer) OPQ_MUST_CHECK;
/* Views of views of views get memory now and then, so that what looks through them has an end. Before the first node is placed. */
void opq_bound_views(opq_grouper *g);
/* Read without memory of its own, as long as some loops walk it. */
bool opq_is_computed_inside(const opq_grouper *g, opq_ref ref);
/* Views that no set of loops walks are stored: one under a reshape, which leaves one reshape of memory, else the operand itself. */
opq_status opq_store_views(opq_grouper *g, opq_ref n, bool *out_stored) OPQ_MUST_CHECK;

#endif
