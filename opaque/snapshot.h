/* The pending graph of some values at one moment. Internal to opaque/; record.h has its public face.
 *
 * A snapshot is taken under the context's lock and never changes: nodes have numbers of its own, everything in it is pinned. Key, graph,
 * run and reports read it, so that other threads may record, run and drop the same values meanwhile. Of it, values have the code that
 * collecting gives them, which means nothing once the lock is let go.
 *
 *   nodes     pending values in record order; operands as codes
 *   leaves    computed values they read, by first use: two iterations of a loop whose tensors were made in another order are one graph
 *   scalars   numbers they read, by first use
 *   outputs   nodes to be stored, in record order, so that who asks in another order has the same plan: those asked for, and every other
 *             that a live cell holds. Else a loop x = f(x) would grow by one f at each look
 */
#ifndef OPAQUE_OPAQUE_SNAPSHOT_H
#define OPAQUE_OPAQUE_SNAPSHOT_H

#include "opaque/context.h"
#include "runtime/room.h"

/* Which values besides those asked for and what they need: none, or what this origin recorded and a live cell holds. */
typedef struct opq_scope {
    enum { OPQ_SCOPE_asked, OPQ_SCOPE_origin } kind;
    uint32_t origin;
    bool runs;     /* else nobody asks what is replaced */
    bool captured; /* they are what a captured function makes, whose plan is there */
} opq_scope;

/* Operands and values asked for: a set and the number there. */
enum { OPQ_SET_node, OPQ_SET_leaf, OPQ_SET_scalar, OPQ_SETS };
static inline int32_t opq_code_make(int set, int32_t number) { return number * OPQ_SETS + set; }
static inline int opq_code_set(int32_t code) { return code % OPQ_SETS; }
static inline int32_t opq_code_number(int32_t code) { return code / OPQ_SETS; }

typedef struct opq_list { /* of values, pinned */
    opq_value **items;
    int count;
} opq_list;

typedef struct opq_codes {
    int32_t *items;
    int count;
} opq_codes;

/* A view of a leaf as a leaf of its own, and what the node then is: `strided` of that, from its first element on. */
typedef struct opq_view {
    int64_t first, strides[OPQ_RANK_MAX]; /* in elements of the leaf */
    opq_type leaf;
    opq_attr attrs[2];
} opq_view;

struct opq_snapshot {
    opq_ctx *ctx;
    opq_room *room; /* all its memory */
    opq_list nodes, leaves, scalars;
    opq_codes operands;      /* of all nodes, one after the other */
    opq_codes first_operand; /* per node, and one more */
    opq_codes asked;         /* per value asked for: its code */
    opq_codes outputs;       /* numbers of nodes */
    opq_codes replaces;      /* per output: the leaf that nothing needs once the output is computed, -1 */
    bool *is_asked;          /* per node; other outputs are held */
    unsigned char *key;
    size_t key_bytes, key_capacity;
    opq_view **view_of_node,
        **view_of_leaf; /* per node, per leaf: NULL: as the value is. NULL: no views (snapshot_window.c) */
};

static inline opq_view *opq_snapshot_node_view(const opq_snapshot *s, int node)
{
    return s->view_of_node ? s->view_of_node[node] : NULL;
}
static inline opq_view *opq_snapshot_leaf_view(const opq_snapshot *s, int leaf)
{
    return s->view_of_leaf ? s->view_of_leaf[leaf] : NULL;
}
static inline const opq_type *opq_snapshot_leaf_type(const opq_snapshot *s, int leaf)
{
    const opq_view *view = opq_snapshot_leaf_view(s, leaf);
    return view ? &view->leaf : &s->leaves.items[leaf]->type;
}

/* Takes the lock. Fails with the error of a failed ancestor of a value asked for; what else depends on a failed value is left out. Its
 * memory is the caller's `room`, which outlives it; unpin lets its values go, also after a failure. */
opq_status opq_snapshot_collect(opq_ctx *ctx, opq_value *const *values, int count, const opq_scope *scope,
                                opq_room *room, opq_snapshot *out_snapshot) OPQ_MUST_CHECK;
/* Nodes, into record order: part of collecting. */
void opq_snapshot_sort(const opq_snapshot *snapshot);
void opq_snapshot_unpin(const opq_snapshot *snapshot);
/* Origins of what live cells wait for, each once; in `room`. */
opq_status opq_snapshot_origins(opq_ctx *ctx, opq_room *room, uint32_t **out_origins, int *out_count) OPQ_MUST_CHECK;
/* Canonical bytes: equal keys, equal plans. */
opq_status opq_snapshot_key(opq_snapshot *snapshot, unsigned salt) OPQ_MUST_CHECK;
/* Takes the sizes out of a key, and leaves zeros: those of types, and of attributes that are lists, in the order of the key. How many there are,
 * -1: more than `max`. */
int opq_key_take_sizes(unsigned char *key, int64_t *out_sizes, int max);
/* The same graph with other sizes, in the same room and with its key; to be planned, not to be run. The snapshot has a key. */
opq_status opq_snapshot_resized(const opq_snapshot *snapshot, const int64_t *sizes,
                                opq_snapshot *out_snapshot) OPQ_MUST_CHECK;
/* The same graph for any offsets of its views of leaves, in the same room and with the same pins, without a key. *out_any: has it any?
 * Else there is none. */
opq_status opq_snapshot_without_offsets(const opq_snapshot *snapshot, opq_snapshot *out_snapshot,
                                        bool *out_any) OPQ_MUST_CHECK;
/* The same graph as a captured function has it: for any offsets of its views of leaves, and what is equal of its numbers and of these views is one.
 * In the same room and with the same pins, without a key. (snapshot_share.c) */
opq_status opq_snapshot_captured(const opq_snapshot *snapshot, opq_snapshot *out_snapshot) OPQ_MUST_CHECK;
/* A view of an operand that is a value in memory (of: NULL), or itself the view `of` one: as one view of that. False: it is none by strides. */
bool opq_view_make(const opq_value *view, const opq_type *operand, const opq_view *of, opq_view *out_view);
bool opq_snapshot_replaces(const opq_snapshot *snapshot, int32_t leaf); /* by one of its outputs */
/* The line that recorded a node, in `out`, or NULL. */
const char *opq_snapshot_line(const opq_snapshot *snapshot, int32_t node, char *out, size_t size);
/* A hash of its ops, whatever their types. */
uint32_t opq_snapshot_kind(const opq_snapshot *snapshot);
/* A hash of the source lines of its nodes, which are no part of the key. */
uint64_t opq_snapshot_lines(const opq_snapshot *snapshot);
static inline opq_value *opq_snapshot_output(const opq_snapshot *s, int i)
{
    return s->nodes.items[s->outputs.items[i]];
}

#endif
