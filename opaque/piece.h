/* Pieces of a snapshot as snapshots of their own. Internal to opaque/: piece_cut.c says where they end, pieces.c runs them. */
#ifndef OPAQUE_OPAQUE_PIECE_H
#define OPAQUE_OPAQUE_PIECE_H

#include "opaque/execution.h"

/* A range of nodes with its plan. */
typedef struct opq_piece {
    int32_t end; /* behind its last node */
    opq_snapshot snapshot;
    opq_execution execution;
    int32_t *leaf_from;   /* per leaf: its code in the whole */
    int32_t *scalar_from; /* per scalar: its number in the whole */
    int32_t *output_of;   /* per output: its node in the whole */
    struct opq_piece *next;
} opq_piece;

/* Of a node, leaf or scalar of the whole: its code in the piece that has this stamp. */
typedef struct opq_place {
    int32_t stamp, code;
} opq_place;

/* A snapshot that is cut, and what is known of it. Numbers of nodes and codes are the snapshot's. */
typedef struct opq_whole {
    const opq_runner *runner;
    const opq_snapshot *s;
    bool *inlined; /* per node: a view or a constant, which each piece that needs it has for itself */
    opq_view **view; /* per node: by strides over memory, through all views between, and inlined or such in the snapshot; else NULL */
    int32_t *base;                 /* of it: the code of that memory */
    int32_t *output;               /* per node: which output it is, -1 */
    int32_t *last_use, *leaf_last; /* per node, per leaf: the last node that needs it and is not inlined, -1 */
    opq_place *places[OPQ_SETS];   /* by opq_code_set */
    int32_t stamp, begin;          /* of the piece that is being made */
    opq_snapshot draft;            /* it, with room for all that can come */
    int32_t *leaf_from, *scalar_from, *output_of, *stack;
} opq_whole;

/* Its pieces: ranges of nodes, from the end of the one before. */
typedef struct opq_cuts {
    int32_t count, *end, *ops; /* ops: nodes that are not inlined */
} opq_cuts;

/* In the room of the run. */
opq_status opq_whole_make(const opq_runner *runner, const opq_snapshot *snapshot, opq_whole *out_whole) OPQ_MUST_CHECK;
/* The snapshot may become an equal one, whose nodes have another order. */
opq_status opq_whole_cut(opq_whole *whole, opq_cuts *out_cuts) OPQ_MUST_CHECK;
/* Can a node not do without the one before? An extern call goes with its results. */
bool opq_whole_follows(const opq_whole *whole, int32_t node, int32_t before);
/* The nodes from first to end that are not inlined, and what of others they need. */
opq_status opq_piece_make(opq_whole *whole, int32_t first, int32_t end, opq_piece **out_piece) OPQ_MUST_CHECK;

static inline opq_status opq_pieces_no_memory(void)
{
    return opq_fail(OPQ_NO_MEMORY, "out of memory for the pieces of a graph");
}
static inline void *opq_whole_take(const opq_whole *w, size_t count, size_t size)
{
    return opq_room_take(w->runner->room, count * size);
}
static inline bool opq_is_view(const opq_value *node)
{
    return opq_op_info_of((opq_op)node->op)->class_ == OPQ_CLASS_VIEW;
}
/* A view or a constant: what needs it has it for itself. */
static inline bool opq_costs_nothing(const opq_value *node)
{
    opq_class class_ = opq_op_info_of((opq_op)node->op)->class_;
    return opq_is_view(node) || class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR || class_ == OPQ_CLASS_IOTA;
}

static inline int32_t opq_whole_arity(const opq_whole *w, int32_t node)
{
    return w->s->first_operand.items[node + 1] - w->s->first_operand.items[node];
}
static inline int32_t opq_whole_operand(const opq_whole *w, int32_t node, int k)
{
    return w->s->operands.items[w->s->first_operand.items[node] + k];
}

#endif
