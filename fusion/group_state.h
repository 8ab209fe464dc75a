/* What grouping works with: groups, their order, and the edges from placed nodes to the nodes whose values they need. */
#ifndef OPAQUE_FUSION_GROUP_STATE_H
#define OPAQUE_FUSION_GROUP_STATE_H

#include "fusion/pass.h"

enum { OPQ_LATER, OPQ_EARLIER, OPQ_DIRECTIONS };

/* What a group takes at most of OPQ_BODY_MAX, and of buffers and scalars together; how many loads it has, if it was lowered, else 0. */
typedef struct opq_fill {
    int body, operands, loads;
} opq_fill;

typedef struct opq_group {
    opq_ref *members; /* descending */
    int count, capacity;
    opq_fill fill;
    bool block; /* of products, rows and products of these */
    bool plain; /* one shape, elementwise, views of memory alone: joining another such node needs no trial */
    struct opq_group *before, *behind; /* in the line of groups */
    int64_t place;                     /* larger than the places of all groups whose results it needs */
    /* Numbers of searches: the last one that reached it in each direction, and that wanted to join it. */
    uint32_t reached[OPQ_DIRECTIONS], joining;
} opq_group;

typedef struct opq_edge {
    opq_ref producer, consumer;
    int32_t next, previous;           /* among those of the producer, -1 */
    bool from_memory, direct, viewed; /* direct: no view between; viewed: more than reshapes */
} opq_edge;

/* The groups that a search met in one direction, each once. */
typedef struct opq_front {
    opq_group **groups;
    int32_t count, expanded;
    int64_t work; /* edges looked at */
} opq_front;

typedef struct opq_order {
    opq_group ends; /* no group: before the first one and behind the last one */
    opq_front front[OPQ_DIRECTIONS];
    opq_group *lowest, *highest; /* what the search is bounded by */
    uint32_t search;             /* its number */
} opq_order;

typedef struct opq_grouper {
    const opq_graph *in;
    opq_fusion fusion;
    bool single; /* views and indices are kernels, too */
    opq_grouping result;
    opq_group *groups;
    int group_count;
    opq_order order;
    opq_edge *edges;
    int32_t edge_count, edge_capacity;
    int32_t *first_edge;             /* per node that is needed, -1 */
    int32_t *first_need, *needs_end; /* per placed node: its edges stand together */
    int32_t *first_user;             /* per node, and one more: where its users begin */
    opq_ref *users, *readers;        /* readers: room for all users and nodes */
    uint8_t *is_output, *searched;   /* per node; searched: for a reshape of a view */
    opq_refusal *refusal;            /* per node: why it did not join its consumers */
    opq_ref *trial;                  /* room for the members of a trial */
    int trial_capacity;
    opq_ref *renamed;          /* per node: in the fused graph */
    opq_arena memory, scratch; /* scratch: of a trial */
} opq_grouper;

/* ---- group_try.c */
bool opq_is_one_of(const int32_t *ids, int count, int32_t id);
/* Is n, of one of these groups, needed outside of them? */
bool opq_group_stores(const opq_grouper *g, opq_ref n, const int32_t *ids, int count);
void opq_group_sort(opq_ref *members, int count); /* descending */
/* In g->trial: the members that these groups and n (-1: nobody) have together. */
opq_status opq_group_collect(opq_grouper *g, opq_ref n, const int32_t *ids, int count, int *out_total) OPQ_MUST_CHECK;
/* Lowers those of the members, which descend, that are request.group; `arena` as in opq_lower. */
opq_status opq_group_lower(opq_grouper *g, const opq_ref *members, int count, opq_lower_request request,
                           opq_arena *arena, opq_lowered *out_lowered) OPQ_MUST_CHECK;
/* After a trial their members are theirs again. */
void opq_group_restore(opq_grouper *g, const int32_t *ids, int count);
/* Do they lower as one? `none`, or why not. */
opq_status opq_group_measure(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill *out_fill,
                             opq_refusal *out_refusal) OPQ_MUST_CHECK;
/* And may they be one kernel? */
opq_status opq_group_try(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill *out_fill,
                         opq_refusal *out_refusal) OPQ_MUST_CHECK;
/* They become one, right after opq_order_has_cycle said no: ids[0]. */
opq_status opq_group_join(opq_grouper *g, opq_ref n, const int32_t *ids, int count, opq_fill fill) OPQ_MUST_CHECK;

/* Before the first node is placed: is all of it one kernel? Then grouping is over, and there are no edges (group_whole.c). */
opq_status opq_group_whole(opq_grouper *g, bool *out_whole) OPQ_MUST_CHECK;
/* When all nodes are placed. Blocks first: kernels of products, rows and products of these (group_block.c). Then groups that read the same
 * memory (group_sibling.c). */
opq_status opq_group_blocks(opq_grouper *g) OPQ_MUST_CHECK;
opq_status opq_group_siblings(opq_grouper *g) OPQ_MUST_CHECK;
/* Then products of one left operand (group_product.c). */
opq_status opq_group_products(opq_grouper *g) OPQ_MUST_CHECK;

/* group_plain.c */
/* What a plain node adds at most to a group that already reads it: its instruction, a check of its divisor, and its operands, where the
 * group had it as one. */
opq_fill opq_group_fill_of(const opq_node *node);
bool opq_group_is_plain(const opq_grouper *g, opq_ref n);
/* Are these groups and n, as one, plain? */
bool opq_group_stays_plain(const opq_grouper *g, opq_ref n, const int32_t *ids, int count);
/* What a plain node adds to a plain group that alone reads it is known without a trial, and whether there is room. */
bool opq_group_joins_plainly(const opq_grouper *g, opq_ref n, int32_t id, opq_fill *out_fill);

/* Why n, which comes from a product, is the end of its epilogue: OPQ_REFUSAL_none if it may join what uses it (group_tile.c). */
opq_refusal opq_group_keeps_to_tile(const opq_grouper *g, opq_ref n);
/* Were they recorded near each other? Members stand in order. */
bool opq_group_are_near(const opq_grouper *g, int32_t a, int32_t b);

/* Links a node that got its group to what it needs. Operands that are taken from dense memory: a view has to be stored for that, a
 * reshape shares its operand's memory. */
opq_status opq_add_edges_of(opq_grouper *g, opq_ref consumer) OPQ_MUST_CHECK;
/* Views of views of views get memory now and then, so that what looks through them has an end. Before the first node is placed. */
void opq_bound_views(opq_grouper *g);
/* Who uses which node. Before the first node is placed. */
void opq_find_users(opq_grouper *g);
/* Read without memory of its own, as long as some loops walk it. */
bool opq_is_computed_inside(const opq_grouper *g, opq_ref ref);
/* Are all views that it is or looks through one stride per loop, whatever the loops are? Then it lowers alone. */
bool opq_reads_strides(const opq_grouper *g, opq_ref n);
/* Views that no set of loops walks are stored: one under a reshape, which leaves one reshape of memory, else the operand itself. */
opq_status opq_store_views(opq_grouper *g, opq_ref n, bool *out_stored) OPQ_MUST_CHECK;

void opq_order_begin(opq_order *order);
/* The place of a new group: before all others. */
void opq_order_new(opq_order *order, opq_group *group);
/* Would a group that needs another's results be needed by it, if n (-1: nobody) and these groups became one? */
bool opq_order_has_cycle(opq_grouper *g, opq_ref n, const int32_t *ids, int count);
/* They do, right after opq_order_has_cycle said no: ids[0] stands for all of them. */
void opq_order_join(opq_grouper *g, const int32_t *ids, int count);

#endif
