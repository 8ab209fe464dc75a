/* Where pieces end: see pieces.h.
 *
 * Nodes come in record order, each to the last piece or to a new one, which is then the last. A loop over elements that is the last to need what
 * an earlier piece made goes there: ops over lists of tensors (an optimizer's) are recorded list by list, and are chains for all that.
 */
#include "graph/recurrent.h"
#include "opaque/piece.h"

#include <string.h>

enum { PIECE_OPS_MAX = 16 };

typedef struct cut {
    const opq_whole *w;
    int32_t *piece; /* per node: its piece; of one that is inlined the latest of what it is made of, -1: leaves alone */
    int32_t *sorted;       /* it, per node in the other order */
    int32_t *ops;          /* per piece */
    int32_t count, before; /* pieces; the node before that is not inlined */
    bool moved;            /* pieces are no ranges of nodes */
} cut;

static const opq_value *node_of(const opq_whole *w, int32_t node) { return w->s->nodes.items[node]; }

/* Rows of the same steps of a recurrent layer: one expansion has what all of them give. */
static bool are_siblings(const opq_whole *w, int32_t a, int32_t b)
{
    if (!opq_op_is_recurrent(node_of(w, a)->op) || !opq_op_is_recurrent(node_of(w, b)->op) ||
        opq_whole_arity(w, a) != opq_whole_arity(w, b))
        return false;
    for (int k = 0; k < opq_whole_arity(w, a); k++)
        if (opq_whole_operand(w, a, k) != opq_whole_operand(w, b, k))
            return false;
    return true;
}

bool opq_whole_follows(const opq_whole *w, int32_t node, int32_t before)
{
    return node_of(w, node)->op == OPQ_OP_extern_result || are_siblings(w, before, node);
}

/* The latest piece of those that made what it needs; -1: none. *out_weight: a product has an operand of leaves alone. */
static int32_t latest_of(const cut *c, int32_t i, bool *out_weight)
{
    bool product = opq_op_info_of((opq_op)node_of(c->w, i)->op)->class_ == OPQ_CLASS_MATMUL;
    int32_t latest = -1;
    *out_weight = false;
    for (int k = 0; k < opq_whole_arity(c->w, i); k++) {
        int32_t code = opq_whole_operand(c->w, i, k);
        int32_t from = opq_code_set(code) == OPQ_SET_node ? c->piece[opq_code_number(code)] : -1;
        *out_weight = *out_weight || (product && from < 0 && opq_code_set(code) != OPQ_SET_scalar);
        latest = from > latest ? from : latest;
    }
    return latest;
}

/* Nothing stays in memory for longer then. */
static bool is_last_to_need(const cut *c, int32_t i, int32_t piece)
{
    opq_class class_ = opq_op_info_of((opq_op)node_of(c->w, i)->op)->class_;
    if (class_ != OPQ_CLASS_EWISE && class_ != OPQ_CLASS_REDUCE)
        return false;
    for (int k = 0; k < opq_whole_arity(c->w, i); k++) {
        int32_t code = opq_whole_operand(c->w, i, k), number = opq_code_number(code);
        if (opq_code_set(code) == OPQ_SET_node && !c->w->inlined[number] && c->piece[number] == piece &&
            c->w->last_use[number] == i)
            return true;
    }
    return false;
}

/* The piece that node i goes to; c->count: a new one. */
static int32_t piece_for(const cut *c, int32_t i)
{
    bool weight;
    if (c->before >= 0 && opq_whole_follows(c->w, i, c->before))
        return c->piece[c->before];
    int32_t latest = latest_of(c, i, &weight);
    if (weight || latest < 0 || c->ops[latest] >= PIECE_OPS_MAX)
        return c->count;
    return latest == c->count - 1 || is_last_to_need(c, i, latest) ? latest : c->count;
}

static void assign(cut *c)
{
    bool weight;
    c->before = -1;
    for (int32_t i = 0; i < c->w->s->nodes.count; i++) {
        if (c->w->inlined[i]) {
            c->piece[i] = latest_of(c, i, &weight);
            continue;
        }
        int32_t piece = piece_for(c, i);
        if (piece == c->count)
            c->ops[c->count++] = 0;
        c->moved = c->moved || piece < c->count - 1;
        c->piece[i] = piece;
        c->ops[piece]++;
        c->before = i;
    }
}

/* ---- the nodes in another order */

/* By piece, in one piece as they were; what is made of leaves alone comes first. */
static bool find_order(const cut *c, int32_t *out_order)
{
    int32_t nodes = c->w->s->nodes.count, *next = opq_whole_take(c->w, (size_t)(c->count + 2), sizeof *next);
    if (next == NULL)
        return false;
    memset(next, 0, (size_t)(c->count + 2) * sizeof *next);
    for (int32_t i = 0; i < nodes; i++)
        next[c->piece[i] + 2]++;
    for (int32_t piece = 0; piece <= c->count; piece++)
        next[piece + 1] += next[piece];
    for (int32_t i = 0; i < nodes; i++)
        out_order[next[c->piece[i] + 1]++] = i;
    return true;
}

static void renumber(const opq_snapshot *s, const int32_t *order, const int32_t *number, opq_snapshot *t)
{
    int32_t count = 0;
    for (int32_t i = 0; i < s->nodes.count; i++) {
        int32_t from = order[i];
        t->nodes.items[i] = s->nodes.items[from];
        if (t->view_of_node)
            t->view_of_node[i] = s->view_of_node[from];
        t->first_operand.items[i] = count;
        for (int32_t k = s->first_operand.items[from]; k < s->first_operand.items[from + 1]; k++) {
            int32_t code = s->operands.items[k];
            bool node = opq_code_set(code) == OPQ_SET_node;
            t->operands.items[count++] = node ? opq_code_make(OPQ_SET_node, number[opq_code_number(code)]) : code;
        }
    }
    t->first_operand.items[s->nodes.count] = count;
    for (int i = 0; i < s->outputs.count; i++)
        t->outputs.items[i] = number[s->outputs.items[i]];
}

/* The same graph, its nodes so that each piece is a range. Outputs keep their places. */
static opq_snapshot *in_order(const cut *c)
{
    const opq_snapshot *s = c->w->s;
    bool views = s->view_of_node != NULL;
    int32_t nodes = s->nodes.count, *order = opq_whole_take(c->w, (size_t)nodes, sizeof *order),
            *number = opq_whole_take(c->w, (size_t)nodes, sizeof *number);
    opq_snapshot *t = opq_whole_take(c->w, 1, sizeof *t);
    if (!order || !number || !t || !find_order(c, order))
        return NULL;
    for (int32_t i = 0; i < nodes; i++)
        number[order[i]] = i;
    for (int32_t i = 0; i < nodes; i++)
        c->sorted[number[i]] = c->piece[i];
    *t = (opq_snapshot){.ctx = s->ctx,
                        .room = s->room,
                        .nodes = s->nodes,
                        .leaves = s->leaves,
                        .scalars = s->scalars,
                        .operands = s->operands,
                        .first_operand = s->first_operand,
                        .outputs = s->outputs,
                        .replaces = s->replaces,
                        .view_of_leaf = s->view_of_leaf};
    t->nodes.items = opq_whole_take(c->w, (size_t)nodes, sizeof *t->nodes.items);
    t->operands.items = opq_whole_take(c->w, (size_t)s->operands.count, sizeof *t->operands.items);
    t->first_operand.items = opq_whole_take(c->w, (size_t)(nodes + 1), sizeof *t->first_operand.items);
    t->outputs.items = opq_whole_take(c->w, (size_t)s->outputs.count, sizeof *t->outputs.items);
    t->view_of_node = views ? opq_whole_take(c->w, (size_t)nodes, sizeof *t->view_of_node) : NULL;
    if (!t->nodes.items || !t->operands.items || !t->first_operand.items || !t->outputs.items ||
        (views && !t->view_of_node))
        return NULL;
    renumber(s, order, number, t);
    return t;
}

/* Where each piece ends, of those in order. */
static void find_ends(const opq_whole *w, const int32_t *piece, opq_cuts *out_cuts)
{
    int32_t before = -1;
    for (int32_t i = 0; i < w->s->nodes.count; i++) {
        if (w->inlined[i])
            continue;
        if (before >= 0 && piece[i] != before)
            out_cuts->end[before] = i;
        before = piece[i];
    }
    if (before >= 0)
        out_cuts->end[before] = w->s->nodes.count;
}

opq_status opq_whole_cut(opq_whole *w, opq_cuts *out_cuts)
{
    int32_t nodes = w->s->nodes.count;
    cut c = {.w = w,
             .piece = opq_whole_take(w, (size_t)nodes, sizeof *c.piece),
             .sorted = opq_whole_take(w, (size_t)nodes, sizeof *c.sorted),
             .ops = opq_whole_take(w, (size_t)nodes, sizeof *c.ops)};
    int32_t *end = opq_whole_take(w, (size_t)nodes, sizeof *end);
    if (!c.piece || !c.sorted || !c.ops || !end)
        return opq_pieces_no_memory();
    assign(&c);
    *out_cuts = (opq_cuts){.count = c.count, .end = end, .ops = c.ops};
    if (c.moved) {
        const opq_snapshot *ordered = in_order(&c);
        if (ordered == NULL)
            return opq_pieces_no_memory();
        OPQ_TRY(opq_whole_make(w->runner, ordered, w));
    }
    find_ends(w, c.moved ? c.sorted : c.piece, out_cuts);
    return OPQ_OK;
}
