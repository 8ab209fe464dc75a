/* Shared by lower.c (what to build), lower_body.c (the body) and lower_loops.c (the loop nest). */
#ifndef OPAQUE_FUSION_LOWER_STATE_H
#define OPAQUE_FUSION_LOWER_STATE_H

#include "fusion/affine.h"
#include "fusion/lower.h"

enum { OPQ_MEMO_BITS = 10 };

typedef struct opq_memo {
    opq_ref node;
    int16_t instr, at; /* at: the index instruction its map's OPQ_AT stands for, -1 if unused */
    int16_t guard;
    int16_t next;
    opq_affine *dim;
} opq_memo;

typedef struct opq_lower_state {
    const opq_lower_request *request;
    const opq_graph *graph;
    opq_arena *arena; /* of the answer */
    opq_arena maps;   /* of memos */
    opq_lowered *out;
    opq_refusal refusal;
    bool no_memory; /* and that is why it is refused */
    opq_kernel kernel;
    opq_space space;
    uint8_t role[OPQ_SPACE_MAX]; /* opq_role, per loop */
    bool column;
    bool scans, scans_back; /* along the loops of OPQ_ROLE_scan; back: from their last turn to the first */
    int16_t at;             /* instruction behind OPQ_AT, -1 */
    int16_t guard;          /* instruction that says whether there is an element, under a padding; -1 */
    opq_ref at_node;        /* that reads or adds there */
    int nesting;            /* of opq_lower_emit */
    int instr_count, access_count, buffer_count, scalar_count, memo_count;
    opq_instr instrs[OPQ_BODY_MAX];
    opq_access accesses[OPQ_ACCESS_MAX];
    opq_affine affines[OPQ_ACCESS_MAX]; /* per access */
    int64_t at_extents[OPQ_ACCESS_MAX]; /* per access: bound of the index behind OPQ_AT */
    opq_ref buffers[OPQ_BUFFER_MAX];
    uint8_t written[OPQ_BUFFER_MAX];
    opq_ref scalars[OPQ_SCALAR_MAX];
    opq_memo memos[OPQ_BODY_MAX * 2];
    int16_t bucket[1 << OPQ_MEMO_BITS];
} opq_lower_state;

typedef enum opq_role {
    OPQ_ROLE_kept,
    OPQ_ROLE_reduced_outer,
    OPQ_ROLE_reduced_inner,
    OPQ_ROLE_inner_kept,
    OPQ_ROLE_scan,
    OPQ_ROLE_batch,
    OPQ_ROLE_m,
    OPQ_ROLE_n,
    OPQ_ROLE_k
} opq_role;

/* lower_stored.c. A stored view of a member: permutations and reshapes from `base`, the first one first. */
typedef struct opq_permuted {
    opq_ref base, view[OPQ_FOLLOWED_MAX];
    int count;
} opq_permuted;
bool opq_lower_permuted(const opq_lower_request *request, opq_ref stored, opq_permuted *out_permuted);
/* Instructions that store what the request wants stored. */
void opq_lower_stored(opq_lower_state *state);
bool opq_lower_idle(const opq_lower_request *request); /* nothing to store: no element anywhere */

/* lower_space.c: the loops; needs state->request alone. */
opq_refusal opq_lower_space(opq_lower_state *state);

/* lower_body.c: instructions for node `ref` under `map`; -1 with state->refusal set. */
int opq_lower_emit(opq_lower_state *state, opq_ref ref, const opq_index_map *map);
int opq_lower_load(opq_lower_state *state, opq_ref memory, const opq_affine *linear);
int opq_lower_push(opq_lower_state *state, const opq_instr *instr);
int opq_lower_access(opq_lower_state *state, opq_ref memory, opq_dtype dtype, bool written, const opq_affine *affine);
opq_instr opq_lower_blank(int op, opq_dtype dtype);
int opq_lower_const(opq_lower_state *state, const opq_node *node);
int opq_lower_cast(opq_lower_state *state, int operand, opq_dtype from, opq_dtype to);
int opq_lower_iota(opq_lower_state *state, const opq_node *iota, const opq_affine *linear); /* its element */
int opq_lower_refuse(opq_lower_state *state, opq_refusal refusal);                          /* -1 */

/* lower_view.c */
int opq_lower_view(opq_lower_state *state, const opq_node *node, const opq_index_map *map);
/* What is loaded from now on is there only where an index is in [0, extent): state->guard, which the caller puts back. False: refused. */
bool opq_lower_guard(opq_lower_state *state, const opq_affine *index, int64_t extent);
bool opq_pad_is_zero(const opq_node *pad);
/* Would a dear value be computed more often than it has elements: broadcast, in overlapping windows, at indices? */
bool opq_lower_repeats(const opq_lower_state *state, const opq_node *node, const opq_index_map *map);

/* The loops of a product alone; `request` has no members. */
bool opq_lower_product_space(const opq_lower_request *request, opq_ref product, opq_space *out_space);

/* lower_product.c: which dim of the product each dim of an operand runs along; its rank is the one that it sums over. */
void opq_lower_matrix_dims(const opq_graph *graph, opq_ref matmul, int operand, int *out_from);
/* Is it made without the engine, a chain in each lane, if its operands have a loop for the lanes or lie under a padding? */
bool opq_lower_is_thin(const opq_graph *graph, opq_ref matmul);
/* Has it so few multiply-adds that it is thin, whatever its rows and columns? */
bool opq_lower_is_small(const opq_graph *graph, opq_ref matmul);
/* Are rows, columns and the sum of each matrix so few that an engine takes longer to begin than a chain to end? */
bool opq_lower_is_smallest(const opq_graph *graph, opq_ref matmul);
/* The product at `map`. */
int opq_lower_product(opq_lower_state *state, opq_ref ref, const opq_index_map *map);
/* lower_scan.c: the scan at `map`; then, of a kernel whose scans run backwards, its loops turned round. */
int opq_lower_scan(opq_lower_state *state, const opq_node *node, const opq_index_map *map);
void opq_lower_turn_scans(opq_lower_state *state);
/* Is there memory for its value, or will there be when grouping is over? */
bool opq_lower_has_memory(const int32_t *group_of, const uint8_t *in_memory, opq_ref ref);

static inline bool opq_lower_is_stored(const opq_lower_state *state, opq_ref ref)
{
    bool counted = state->request->counts && opq_node_at(state->graph, ref)->op == OPQ_OP_iota;
    return !counted && opq_lower_has_memory(state->request->group_of, state->request->in_memory, ref);
}

/* lower_order.c: the loops of the kernel, from outside in. */
typedef struct opq_order {
    int count;
    int source[OPQ_LOOP_MAX]; /* innermost fine loop of this loop: its coefs are the strides; -1: made up */
    int64_t extent[OPQ_LOOP_MAX];
    uint8_t role[OPQ_LOOP_MAX];
} opq_order;
void opq_order_loops(opq_lower_state *state, bool reduces, opq_order *out);
int64_t opq_order_stride(const opq_lower_state *state, int access, int source);
void opq_order_need(opq_order *order, uint8_t role); /* a loop of one turn, if there is none */
void opq_order_take(opq_order *to, const opq_order *from, int i);

/* lower_window.c: of the tree of a product that the kernel makes itself. */
void opq_lower_window(const opq_loops *k, const int64_t *dims);

/* lower_loops.c: fixes strides, sweeps and spills; fills state->out. */
opq_status opq_lower_finish(opq_lower_state *state) OPQ_MUST_CHECK;

#endif
