/* Passes: a graph in, a new graph out. Each needs a verified graph and gives one.
 *
 *   expand     composite rows become primitives; concat becomes updates of one buffer; count becomes extent
 *   simplify   views of views fold, equal nodes become one, what no output reaches goes
 *   group      nodes get kernels: the fused graph
 *   unfused    as group, one kernel per node
 */
#ifndef OPAQUE_FUSION_PASS_H
#define OPAQUE_FUSION_PASS_H

#include "fusion/lower.h"

/* An edge between two kernels of the fused graph and why it stayed one. References are of the fused graph. */
typedef struct opq_unfused_edge {
    opq_ref producer, consumer;
    opq_refusal refusal;
    int64_t saves; /* bytes that one kernel of both would not move; a plan knows */
} opq_unfused_edge;
typedef struct opq_unfused {
    opq_unfused_edge *edges; /* malloc'd */
    int count, capacity;
} opq_unfused;

opq_status opq_pass_expand(const opq_graph *in, opq_graph *out) OPQ_MUST_CHECK;
/* Does expand make other nodes of this one? No pass behind it takes such a node. */
bool opq_expands(const opq_graph *graph, const opq_node *node);
bool opq_graph_expands(const opq_graph *graph); /* any of its nodes */
opq_status opq_pass_simplify(const opq_graph *in, opq_graph *out) OPQ_MUST_CHECK;
/* OPQ_INVALID: the graph was not expanded. `out_unfused` may be NULL. */
opq_status opq_pass_group(const opq_graph *in, opq_fusion fusion, opq_graph *out, opq_unfused *out_unfused) OPQ_MUST_CHECK;

/* A kernel for each node, views too: each reads memory alone. `out_renamed`, per node of `in`: in `out`. */
opq_status opq_pass_single(const opq_graph *in, opq_graph *out, opq_ref *out_renamed) OPQ_MUST_CHECK;
/* fusion/split.c. Can a kernel be divided into such? The fused graph with these in its place; `edges`, which are of `fused`, become those of
 * the new graph, also on failure. */
bool opq_kernel_splits(const opq_graph *fused, int32_t kernel);
opq_status opq_split_kernel(const opq_graph *fused, int32_t kernel, opq_unfused *edges,
                            opq_graph **out_graph) OPQ_MUST_CHECK;

/* What group decides, before the fused graph is built. */
typedef struct opq_grouping {
    int32_t *group_of;   /* per node of `in`, -1: none; a grouped view is stored */
    int32_t group_count; /* ids may be empty after merges */
    uint8_t *in_memory;  /* per node: must be in memory whatever its uses are */
} opq_grouping;

/* The graph with large values that several kernels need, and that cost little to compute, in each of these. NULL: there are none. The
 * caller destroys it, after a failure too. */
/* turn.c: with what several small products read across its rows turned once. */
opq_status opq_turn_operands(const opq_graph *in, opq_graph **out_copy) OPQ_MUST_CHECK;
opq_status opq_rematerialize_indices(const opq_graph *in, opq_graph **out_copy) OPQ_MUST_CHECK;
opq_status opq_rematerialize(const opq_graph *in, const opq_grouping *grouping, opq_graph **out_copy) OPQ_MUST_CHECK;

/* Has it at most one node that computes anything? */
bool opq_graph_is_one_op(const opq_graph *graph);
/* Follows reshapes: the node whose dense memory this one shares. */
opq_ref opq_strip_reshape(const opq_graph *graph, opq_ref ref);
/* Is it a window whose places overlap: with more elements than what it looks at? */
bool opq_window_overlaps(const opq_graph *graph, opq_ref ref);
static inline bool opq_class_is_elementwise(opq_class class_)
{
    return class_ == OPQ_CLASS_EWISE || class_ == OPQ_CLASS_CAST;
}
opq_status opq_build_fused(const opq_graph *in, const opq_grouping *grouping, opq_graph *out,
                           opq_ref *out_renamed) OPQ_MUST_CHECK;

#endif
