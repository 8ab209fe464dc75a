/* Lowering: a set of nodes becomes one tree of loops. Legality is this function: what lowers can be one kernel, what does not has a
 * named reason. So has what can be one and would lose by it, which is for grouping to heed: whoever asks gets the same kernel.
 */
#ifndef OPAQUE_FUSION_LOWER_H
#define OPAQUE_FUSION_LOWER_H

#include "fusion/loop.h"

/* Why an edge was not fused, and what who wrote the program can do about it: `acts` is whether there is something. */
#define OPQ_REFUSALS(X)                                                                                                \
    X(none, "fused", false, "nothing: it is one kernel")                                                               \
    X(cycle, "a path leaves the group and comes back", false,                                                          \
      "nothing: what lies on that path needs the value in memory")                                                     \
    X(boundary, "this kind of kernel takes its operand from memory", false,                                            \
      "nothing: such kernels are fast because they read memory")                                                       \
    X(space, "the iteration spaces differ", true, "slice first and compute on the slice, or compute on equal sizes")   \
    X(view, "the view between them is not one stride per loop", true,                                                  \
      "reshape or permute before computing, or make it contiguous() where it is used more than once")                  \
    X(axes, "reduces over other axes than the group", true,                                                            \
      "reduce over one set of axes, in one call or one after the other; nothing, if both are needed")                  \
    X(two_matmuls, "a matmul has no other in its epilogue", true,                                                      \
      "make one product of the sum of two: cat([a, b], 1) @ cat([c, d])")                                              \
    X(scan, "a scan runs along one whole axis of the kernel, without reductions and products", true,                   \
      "scan along one axis only, and reduce what was scanned before or afterwards")                                    \
    X(after_matmul, "a reduction cannot follow a matmul in its tile", false,                                           \
      "nothing, unless it is attention: scaled_dot_product_attention is one kernel")                                   \
    X(streams, "a tile would go through many large tensors, a piece of a row of each at a time", false,                \
      "nothing: a kernel of its own goes through them in order, and writes where it reads")                            \
    X(recompute, "would be computed again for every broadcast element, or overlapping window", false,                  \
      "nothing: storing it is cheaper")                                                                                \
    X(part, "may fail on elements that are not used here", true, "slice before the op that may fail")                  \
    X(row_size, "a row does not stay in cache", true, "reduce in two steps: reshape a row into shorter ones")          \
    X(body_size, "the kernel body reached its limit", false, "nothing: the kernels are large as they are")             \
    X(buffers, "the kernel reached its limit of arguments", true,                                                      \
      "keep what is read in fewer tensors, or let go of results that nobody needs")                                    \
    X(reductions, "the kernel reached its limit of reductions", false, "nothing: the kernels are large as they are")   \
    X(other_use, "another use needs the value in memory first", true,                                                  \
      "let go of it, if it was kept to look at (`kept by`); nothing, if the backward pass or another op needs it")     \
    X(not_made, "their kernel could not be made: its ops run one by one", true,                                        \
      "report it: report_bug() writes what is needed")
typedef enum opq_refusal {
#define X(name, ...) OPQ_REFUSAL_##name,
    OPQ_REFUSALS(X)
#undef X
        OPQ_REFUSAL_COUNT
} opq_refusal;
const char *opq_refusal_name(opq_refusal refusal);
const char *opq_refusal_text(opq_refusal refusal);
const char *opq_refusal_remedy(opq_refusal refusal); /* begins with "nothing" where there is none */
bool opq_refusal_acts(opq_refusal refusal);

/* The question: `members`, in any order, which are the nodes n with group_of[n] == group, of which `stored` (in order) must be in memory
 * afterwards. Other nodes are memory, except the free ones (constants, scalars, iota, count, views that are not stored), which are followed in place. */
typedef struct opq_lower_request {
    const opq_graph *graph;
    const int32_t *group_of; /* per node; -1: none. A view with a group is stored by it. */
    int32_t group;
    const uint8_t *in_memory; /* per node, or NULL: views that will be stored although they have no group yet */
    const opq_ref *members, *stored;
    int member_count, stored_count;
    bool by_row; /* rows one after another, each whole: what a block kernel's are */
    bool counts; /* an iota is counted, also where it is stored */
} opq_lower_request;

/* The answer. Buffers, in kernel argument order, name the graph value whose dense memory they are. */
typedef struct opq_lowered {
    opq_refusal refusal; /* why it cannot be one kernel */
    opq_refusal loss;    /* why, of several nodes, it costs more than it saves */
    int argument_count;
    int fill; /* of OPQ_BODY_MAX: statements, or half of the values that became one, of which there may be twice as many */
    int load_count;
    opq_loops loops; /* without a name; empty, as the arrays are, if nobody asked for it */
    opq_ref *buffers;
    opq_ref *scalars;
    int64_t *dims;
    opq_ref matmul; /* the group's, or -1 */
    bool direct;    /* its product is made by the kernel itself */
} opq_lowered;

/* `arena` holds the kernel; NULL: whether there is one is all that is asked. OPQ_OK also for a refusal. */
opq_status opq_lower(const opq_lower_request *request, opq_arena *arena, opq_lowered *out_lowered) OPQ_MUST_CHECK;

/* Is unit u of the loops row u of the node's dense memory, of so many columns, and does every access walk it along its one other loop? Of
 * one column: once for each row. */
bool opq_lowered_walks_rows(const opq_lowered *lowered, opq_ref node, int64_t columns);

/* A block kernel: rows, products that make matrices for them, and products whose left operands they make. */
enum {
    OPQ_BLOCK_FIRST_MAX = 2,
    OPQ_BLOCK_SECOND_MAX = 3,
    OPQ_BLOCK_MATRIX_MAX = OPQ_BLOCK_FIRST_MAX + OPQ_BLOCK_SECOND_MAX,
};
_Static_assert(1 + OPQ_BLOCK_MATRIX_MAX <= OPQ_PRODUCTS_MAX, "rows and products are as many parts as products may be");
/* The products of a kernel of several: of a block the first ones, then the second ones. */
typedef struct opq_parts {
    opq_ref product[OPQ_PRODUCTS_MAX];
    int first_count, count;
} opq_parts;
/* Gives the members, descending, groups of their own: `rows`, then one for each product. With a product is what is computed of it, but of the first ones
 * in a block, which is the rows. No rows: products of one left operand, with all that their epilogues need. False: too many, or a node is of no part. */
bool opq_parts_split(const opq_graph *graph, int32_t *group_of, const opq_ref *members, int count, int32_t rows,
                     opq_parts *out);
/* What a second product takes of the rows, and whether it sums over them: then its left operand is transposed. */
opq_ref opq_block_taken(const opq_graph *graph, const opq_parts *parts, int product);
bool opq_block_sums_rows(const opq_graph *graph, const opq_parts *parts, int product);
/* The matrices that stay in cache: what the first products make, and what the second ones take. */
int opq_block_matrices(const opq_graph *graph, const opq_parts *parts, opq_ref *out);
/* Product, rows and product of one row before those of the next: one tree of locals. Else phases. */
bool opq_block_is_nested(const opq_graph *graph, const opq_parts *parts);
/* The tree of a kernel whose parts have these, the rows first. What is kept: those matrices, and values of one element per row. OPQ_UNSUPPORTED: as
 * opq_loops_join. `arena` holds the result. */
opq_status opq_parts_join(const opq_graph *graph, const opq_parts *parts, const opq_bound *part, const opq_kept *kept,
                          opq_arena *arena, opq_bound *out_joined) OPQ_MUST_CHECK;

/* Are the elements right of the diagonal 0 in all that is taken of the rows, whatever the scores are, and do all reductions come to the
 * same without them? `members` are nodes of the rows, ascending. *out_sampled: only if an element right of the diagonal is 0 in each row,
 * and the first products are far from overflow. (fusion/causal.c) */
bool opq_block_is_causal(const opq_graph *graph, const opq_ref *members, int count, const opq_parts *parts,
                         bool *out_sampled);

/* Follows views without a group, which have no memory of their own. */
opq_ref opq_lower_base(const opq_graph *graph, const int32_t *group_of, opq_ref ref);

/* Free nodes never are a kernel's own: they are followed wherever they are used. */
bool opq_node_is_free(const opq_graph *graph, opq_ref ref);

/* The dim of an operand that the product sums over. (fusion/lower_product.c) */
int opq_lower_summed_dim(const opq_graph *graph, opq_ref matmul, int operand);
/* By which rule it is summed: chain, or those of pairs, which only an engine has. */
opq_loop_role opq_lower_product_role(const opq_graph *graph, opq_ref matmul);
/* Is an operand i8? */
bool opq_lower_takes_bytes(const opq_graph *graph, opq_ref matmul);
/* Is it one that only an engine makes: summed by that rule, or with such an operand? */
bool opq_lower_needs_engine(const opq_graph *graph, opq_ref matmul);
/* Can a product read its operand from memory, through the views before it? Else they are stored. (fusion/lower_product.c) */
bool opq_lower_is_matrix(const opq_graph *graph, const int32_t *group_of, const uint8_t *in_memory, opq_ref matmul,
                         int operand);

#endif
