/* Shared by lower.c (what to build), lower_body.c (the body), lower_loops.c (the loops) and lower_tree.c (the tree of both). */
#ifndef OPAQUE_FUSION_LOWER_STATE_H
#define OPAQUE_FUSION_LOWER_STATE_H

#include "fusion/affine.h"
#include "fusion/loop_rewrite.h"
#include "fusion/lower.h"

enum { OPQ_MEMO_BITS = 10 };

_Static_assert(OPQ_LOOP_MAX <= 16, "a bit per loop");
_Static_assert(OPQ_SWEEP_MAX <= 8, "a bit per sweep");
_Static_assert(OPQ_BODY_MAX <= INT16_MAX, "a statement's number is an operand");

typedef struct opq_memo {
    opq_ref node;
    int16_t stmt, at; /* at: the index that its map's OPQ_AT stands for, -1 if unused */
    int16_t guard;
    int16_t next;
    opq_affine *dim;
} opq_memo;

/* What a loop is for: of the space, and then of the kernel, whose tree has the loops in this order, from outside in. */
typedef enum opq_role {
    OPQ_ROLE_blocks, /* of a row alone: counts blocks of all other loops */
    OPQ_ROLE_kept,
    OPQ_ROLE_inner_kept,
    OPQ_ROLE_batch,
    OPQ_ROLE_m,
    OPQ_ROLE_n, /* of a product made without the engine: the lanes */
    OPQ_ROLE_lanes,
    OPQ_ROLE_tap,  /* its turns are made at once */
    OPQ_ROLE_each, /* as if reduced: in each lane, one turn after the other */
    OPQ_ROLE_reduced_outer,
    OPQ_ROLE_reduced_lanes, /* of a row alone that is several loops */
    OPQ_ROLE_reduced_inner,
    OPQ_ROLE_scan,
    OPQ_ROLE_k,
    OPQ_ROLE_COUNT
} opq_role;
/* Of the space. */
static inline bool opq_role_reduces(int role)
{
    return role == OPQ_ROLE_reduced_outer || role == OPQ_ROLE_reduced_inner || role == OPQ_ROLE_k;
}
/* Does it stand inside of those that are kept? */
static inline bool opq_role_is_inside(int role) { return role >= OPQ_ROLE_each; }

/* Loops merged and ordered: the variables of the kernel, by roles, but the lanes' are the last. */
typedef struct opq_lower_loops {
    int count;
    int source[OPQ_LOOP_MAX]; /* innermost loop of the space that it is: its coefs are the strides; -1: made up */
    int64_t extent[OPQ_LOOP_MAX];
    uint8_t role[OPQ_LOOP_MAX]; /* opq_role */
} opq_lower_loops;
static inline uint16_t opq_lower_inside(const opq_lower_loops *loops)
{
    uint16_t mask = 0;
    for (int l = 0; l < loops->count; l++)
        mask |= (uint16_t)(opq_role_is_inside(loops->role[l]) << l);
    return mask;
}
static inline bool opq_lower_has_blocks(const opq_lower_loops *loops) { return loops->role[0] == OPQ_ROLE_blocks; }

/* Has an effect besides its value: never left out. */
static inline bool opq_stmt_is_root(int op)
{
    return op == OPQ_STMT_store || op == OPQ_STMT_store_add_at || op == OPQ_STMT_check || op == OPQ_STMT_nonzero;
}

/* The body is a kernel's statements without loops, each once and its operands before it, whatever loops there will be. Reductions split it in
 * sweeps: what needs the result of a reduction made in sweep s has a sweep above s. Sweep s runs all loops inside once, and computes what its
 * reductions and stores need: again from loads, or from what an earlier sweep kept. */
typedef struct opq_lower_state {
    const opq_lower_request *request;
    const opq_graph *graph;
    opq_arena *arena; /* of the kernel; NULL: none is made */
    opq_arena maps;   /* of memos */
    opq_lowered *out;
    opq_refusal refusal;
    bool no_memory; /* and that is why it is refused */
    opq_space space;
    bool column;            /* sums follow OPQ_TREE_column */
    bool serial;            /* because of a store_add_at, every loop runs in order */
    bool scans, scans_back; /* along the loops of OPQ_ROLE_scan; back: from their last turn to the first */
    int16_t at;             /* index behind OPQ_AT, -1 */
    int16_t guard;          /* says whether there is an element, under a padding; -1 */
    int16_t product;        /* the product's statement, -1 */
    opq_ref at_node;        /* that reads or adds at `at` */
    int nesting;            /* of opq_lower_emit */
    opq_lower_loops loops;
    int sweep_count;
    int body_count, access_count, buffer_count, scalar_count, memo_count;
    opq_stmt body[OPQ_BODY_MAX];
    uint16_t depends[OPQ_BODY_MAX]; /* bit l: varies along loop l of the kernel */
    uint8_t sweep[OPQ_BODY_MAX];    /* the first in which its operands are there */
    uint8_t sweeps[OPQ_BODY_MAX];   /* bit s: computed in sweep s, or read of its local */
    bool keeps[OPQ_BODY_MAX];       /* in a local, for later sweeps */
    opq_access accesses[OPQ_ACCESS_MAX];
    opq_affine affines[OPQ_ACCESS_MAX]; /* per access */
    int64_t at_extents[OPQ_ACCESS_MAX]; /* per access: bound of the index behind OPQ_AT */
    opq_ref buffers[OPQ_BUFFER_MAX];
    uint8_t written[OPQ_BUFFER_MAX]; /* opq_buffer_use */
    opq_ref scalars[OPQ_SCALAR_MAX];
    opq_memo memos[OPQ_BODY_MAX * 2];
    int16_t bucket[1 << OPQ_MEMO_BITS];
} opq_lower_state;

/* lower_stored.c. A stored view of a member: permutations and reshapes from `base`, the first one first. */
typedef struct opq_permuted {
    opq_ref base, view[OPQ_FOLLOWED_MAX];
    int count;
} opq_permuted;
bool opq_lower_permuted(const opq_lower_request *request, opq_ref stored, opq_permuted *out_permuted);
/* Statements that store what the request wants stored. */
void opq_lower_stored(opq_lower_state *state);
bool opq_lower_idle(const opq_lower_request *request); /* nothing to store: no element anywhere */

/* lower_space.c: the loops; needs state->request alone. */
opq_refusal opq_lower_space(opq_lower_state *state);

/* lower_body.c: statements for node `ref` under `map`. Who pushes gives the statement's number; -1 with state->refusal set. */
int opq_lower_emit(opq_lower_state *state, opq_ref ref, const opq_index_map *map);
/* Is every element of the node computed under the map? */
bool opq_lower_covers(const opq_lower_state *state, const opq_node *node, const opq_index_map *map);
int opq_lower_load(opq_lower_state *state, opq_ref memory, const opq_affine *linear);
opq_stmt opq_lower_stmt(int op, opq_dtype dtype, int x, int y); /* operands; -1: none */
int opq_lower_push(opq_lower_state *state, const opq_stmt *stmt);
int opq_lower_op(opq_lower_state *state, int op, opq_dtype dtype, int x, int y); /* -1 also where an operand is refused */
/* One with an access: to an element of `memory` (-1: a number), of `dtype` there. Gives `stmt` the access. */
int opq_lower_move(opq_lower_state *state, opq_stmt *stmt, opq_ref memory, opq_dtype dtype, const opq_affine *affine);
/* A row-major index over the loops that are kept, that are reduced, or all; out_turns: how many turns these have. */
opq_affine opq_lower_index(const opq_space *space, bool kept, bool reduced, int64_t *out_turns);
int opq_lower_const(opq_lower_state *state, const opq_node *node);
int opq_lower_cast(opq_lower_state *state, int operand, opq_dtype from, opq_dtype to);
int opq_lower_iota(opq_lower_state *state, const opq_node *iota, const opq_affine *linear); /* its element */
int opq_lower_refuse(opq_lower_state *state, opq_refusal refusal); /* -1; the first reason stays */
void opq_lower_lose(opq_lower_state *state, opq_refusal loss);     /* so does this one; a node alone loses nothing */

/* lower_view.c */
int opq_lower_view(opq_lower_state *state, const opq_node *node, const opq_index_map *map);
/* What is loaded from now on is there only where an index is in [0, extent): state->guard, which the caller puts back. False: refused. */
bool opq_lower_guard(opq_lower_state *state, const opq_affine *index, int64_t extent);
bool opq_pad_is_zero(const opq_node *pad);
/* It loses if a dear value is computed more often than it has elements: broadcast, in overlapping windows, at indices. */
void opq_lower_repeats(opq_lower_state *state, const opq_node *node, const opq_index_map *map);

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

/* lower_order.c: state->loops. */
void opq_lower_order(opq_lower_state *state);
int64_t opq_lower_stride(const opq_lower_state *state, int access, int l); /* elements from turn to turn of loop l */
bool opq_lower_is_own(const opq_lower_state *state, int access);           /* of results of blocks */
void opq_lower_need(opq_lower_state *state, opq_role role);                /* a loop of one turn, if there is none */
void opq_lower_sort(opq_lower_state *state);                               /* after roles were given */

/* lower_window.c: of the tree of a product that the kernel makes itself. */
void opq_lower_window(const opq_loops *k, const int64_t *dims);

/* lower_loops.c: fixes strides and sweeps, and which loops have lanes and blocks; fills state->out. */
opq_status opq_lower_finish(opq_lower_state *state) OPQ_MUST_CHECK;
/* From the loops' roles and the accesses' strides: what the body's statements depend on, and their sweeps. */
void opq_lower_place(opq_lower_state *state);
/* Then: in which sweeps they are computed. choose: a dear one that later sweeps need is kept. */
void opq_lower_sweeps(opq_lower_state *state, bool choose);

/* lower_tree.c: the tree. `arena` holds it. */
opq_status opq_lower_tree(const opq_lower_state *state, opq_arena *arena, opq_loops *out_loops) OPQ_MUST_CHECK;

#endif
