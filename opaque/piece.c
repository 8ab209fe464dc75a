/* Makes pieces: see piece.h. */
#include "opaque/piece.h"

#include <string.h>

/* ---- the whole */

static bool make_draft(opq_whole *w, size_t nodes, size_t leaves, size_t scalars, size_t operands)
{
    opq_snapshot *t = &w->draft;
    t->nodes.items = opq_whole_take(w, nodes, sizeof *t->nodes.items);
    t->view_of_node = opq_whole_take(w, nodes, sizeof *t->view_of_node);
    t->leaves.items = opq_whole_take(w, nodes + leaves, sizeof *t->leaves.items);
    t->view_of_leaf = opq_whole_take(w, nodes + leaves, sizeof *t->view_of_leaf);
    t->scalars.items = opq_whole_take(w, scalars, sizeof *t->scalars.items);
    t->operands.items = opq_whole_take(w, operands, sizeof *t->operands.items);
    t->first_operand.items = opq_whole_take(w, nodes + 1, sizeof *t->first_operand.items);
    w->leaf_from = opq_whole_take(w, nodes + leaves, sizeof *w->leaf_from);
    w->scalar_from = opq_whole_take(w, scalars, sizeof *w->scalar_from);
    w->output_of = opq_whole_take(w, nodes, sizeof *w->output_of);
    w->stack = opq_whole_take(w, nodes + operands, sizeof *w->stack);
    return t->nodes.items && t->view_of_node && t->leaves.items && t->view_of_leaf && t->scalars.items &&
           t->operands.items && t->first_operand.items && w->leaf_from && w->scalar_from && w->output_of && w->stack;
}

static bool make_arrays(opq_whole *w)
{
    const opq_snapshot *s = w->s;
    size_t nodes = (size_t)s->nodes.count, leaves = (size_t)s->leaves.count, scalars = (size_t)s->scalars.count;
    size_t count[OPQ_SETS] = {[OPQ_SET_node] = nodes, [OPQ_SET_leaf] = leaves, [OPQ_SET_scalar] = scalars};
    for (int k = 0; k < OPQ_SETS; k++) {
        w->places[k] = opq_whole_take(w, count[k], sizeof **w->places);
        if (w->places[k] == NULL)
            return false;
        memset(w->places[k], 0, count[k] * sizeof **w->places);
    }
    w->inlined = opq_whole_take(w, nodes, sizeof *w->inlined);
    w->view = opq_whole_take(w, nodes, sizeof *w->view);
    w->base = opq_whole_take(w, nodes, sizeof *w->base);
    w->output = opq_whole_take(w, nodes, sizeof *w->output);
    w->last_use = opq_whole_take(w, nodes, sizeof *w->last_use);
    w->leaf_last = opq_whole_take(w, leaves, sizeof *w->leaf_last);
    return w->inlined && w->view && w->base && w->output && w->last_use && w->leaf_last &&
           make_draft(w, nodes, leaves, scalars, (size_t)s->operands.count);
}

/* The type of what a code stands for. */
static const opq_type *type_of(const opq_whole *w, int32_t code)
{
    int32_t number = opq_code_number(code);
    return opq_code_set(code) == OPQ_SET_leaf ? &w->s->leaves.items[number]->type : &w->s->nodes.items[number]->type;
}

/* Is a view one of memory, by strides? Not of memory that an output takes: what lies there then is known to the plan alone. */
static opq_status look_at_view(opq_whole *w, int32_t node)
{
    int32_t code = opq_whole_operand(w, node, 0), number = opq_code_number(code);
    bool of_node = opq_code_set(code) == OPQ_SET_node;
    const opq_view *of = of_node && w->inlined[number] ? w->view[number] : NULL;
    if (of_node ? w->inlined[number] && of == NULL
                : opq_code_set(code) != OPQ_SET_leaf || opq_snapshot_replaces(w->s, number))
        return OPQ_OK;
    opq_view *made = opq_whole_take(w, 1, sizeof *made);
    if (made == NULL)
        return opq_pieces_no_memory();
    if (opq_view_make(w->s->nodes.items[node], type_of(w, code), of, made)) {
        w->view[node] = made;
        w->base[node] = of ? w->base[number] : code;
    }
    return OPQ_OK;
}

/* A view that several need, and which strides do not say, is computed like any other. */
static opq_status look_at_nodes(opq_whole *w)
{
    const opq_snapshot *s = w->s;
    int32_t *uses = w->last_use; /* until look_at_uses() */
    memset(uses, 0, (size_t)s->nodes.count * sizeof *uses);
    for (int i = 0; i < s->operands.count; i++)
        if (opq_code_set(s->operands.items[i]) == OPQ_SET_node)
            uses[opq_code_number(s->operands.items[i])]++;
    for (int i = 0; i < s->nodes.count; i++)
        w->output[i] = -1;
    for (int i = 0; i < s->outputs.count; i++)
        w->output[s->outputs.items[i]] = i;
    for (int i = 0; i < s->nodes.count; i++) {
        const opq_value *node = s->nodes.items[i];
        w->view[i] = opq_snapshot_node_view(s, i);
        w->base[i] = w->view[i] ? opq_whole_operand(w, i, 0) : -1;
        w->inlined[i] = w->output[i] < 0 && opq_costs_nothing(node);
        if (!w->inlined[i] || !opq_is_view(node))
            continue;
        if (w->view[i] == NULL)
            OPQ_TRY(look_at_view(w, i));
        w->inlined[i] = w->view[i] || uses[i] < 2 || node->op == OPQ_OP_pad;
    }
    return OPQ_OK;
}

static void later(int32_t *last, int32_t use)
{
    if (*last < use)
        *last = use;
}

static void look_at_uses(opq_whole *w)
{
    const opq_snapshot *s = w->s;
    for (int i = 0; i < s->nodes.count; i++)
        w->last_use[i] = -1;
    for (int i = 0; i < s->leaves.count; i++)
        w->leaf_last[i] = -1;
    for (int i = s->nodes.count - 1; i >= 0; i--) {
        int32_t use = w->inlined[i] ? w->last_use[i] : i;
        for (int k = 0; k < opq_whole_arity(w, i); k++) {
            int32_t code = opq_whole_operand(w, i, k), number = opq_code_number(code);
            if (opq_code_set(code) == OPQ_SET_node)
                later(&w->last_use[number], use);
            else if (opq_code_set(code) == OPQ_SET_leaf)
                later(&w->leaf_last[number], use);
        }
    }
}

opq_status opq_whole_make(const opq_runner *runner, const opq_snapshot *snapshot, opq_whole *out_whole)
{
    *out_whole = (opq_whole){.runner = runner, .s = snapshot};
    if (!make_arrays(out_whole))
        return opq_pieces_no_memory();
    OPQ_TRY(look_at_nodes(out_whole));
    look_at_uses(out_whole);
    return OPQ_OK;
}

/* ---- a piece, in the draft */

static opq_place *place_of(const opq_whole *w, int32_t code)
{
    return &w->places[opq_code_set(code)][opq_code_number(code)];
}

static bool is_placed(const opq_whole *w, int32_t code) { return place_of(w, code)->stamp == w->stamp; }

static void put(opq_whole *w, int32_t code, int32_t placed) { *place_of(w, code) = (opq_place){w->stamp, placed}; }

/* What has this code in the whole becomes a leaf, or a view of it does; its new code. */
static int32_t put_leaf(opq_whole *w, int32_t code, opq_view *view)
{
    opq_snapshot *t = &w->draft;
    int32_t at = t->leaves.count++, number = opq_code_number(code);
    bool node = opq_code_set(code) == OPQ_SET_node;
    w->leaf_from[at] = code;
    t->leaves.items[at] = node ? w->s->nodes.items[number] : w->s->leaves.items[number];
    t->view_of_leaf[at] = view;
    return opq_code_make(OPQ_SET_leaf, at);
}

static void put_operand(opq_whole *w, int32_t code)
{
    opq_snapshot *t = &w->draft;
    if (!is_placed(w, code) && opq_code_set(code) == OPQ_SET_scalar) {
        put(w, code, opq_code_make(OPQ_SET_scalar, t->scalars.count));
        w->scalar_from[t->scalars.count] = opq_code_number(code);
        t->scalars.items[t->scalars.count++] = w->s->scalars.items[opq_code_number(code)];
    } else if (!is_placed(w, code)) {
        put(w, code, put_leaf(w, code, NULL));
    }
    t->operands.items[t->operands.count++] = place_of(w, code)->code;
}

/* As one view of memory; NULL: what it is of is made here, or it is none. */
static opq_view *view_of(const opq_whole *w, int32_t node)
{
    int32_t base = w->base[node];
    bool outside = w->view[node] && (opq_code_set(base) == OPQ_SET_leaf || opq_code_number(base) < w->begin);
    return outside ? w->view[node] : NULL;
}

static void put_node(opq_whole *w, int32_t node)
{
    opq_snapshot *t = &w->draft;
    opq_view *view = view_of(w, node);
    t->first_operand.items[t->nodes.count] = t->operands.count;
    if (view)
        t->operands.items[t->operands.count++] = put_leaf(w, w->base[node], view);
    for (int k = 0; k < opq_whole_arity(w, node) && !view; k++)
        put_operand(w, opq_whole_operand(w, node, k));
    put(w, opq_code_make(OPQ_SET_node, node), opq_code_make(OPQ_SET_node, t->nodes.count));
    t->view_of_node[t->nodes.count] = view;
    t->nodes.items[t->nodes.count++] = w->s->nodes.items[node];
}

/* Those inlined nodes that it needs and that are not there; they are made before it. */
static int32_t push_missing(const opq_whole *w, int32_t node, int32_t count)
{
    for (int k = view_of(w, node) ? -1 : opq_whole_arity(w, node) - 1; k >= 0; k--) {
        int32_t code = opq_whole_operand(w, node, k);
        if (opq_code_set(code) == OPQ_SET_node && w->inlined[opq_code_number(code)] && !is_placed(w, code))
            w->stack[count++] = opq_code_number(code);
    }
    return count;
}

static void put_with_inlined(opq_whole *w, int32_t node)
{
    int32_t count = 0;
    w->stack[count++] = node;
    while (count > 0) {
        int32_t top = w->stack[count - 1], more = push_missing(w, top, count);
        bool ready = more == count;
        count = ready ? count - 1 : more;
        if (ready && !is_placed(w, opq_code_make(OPQ_SET_node, top)))
            put_node(w, top);
    }
}

/* Is it a leaf here that no later piece reads? */
static bool ends_here(const opq_whole *w, int32_t code, int32_t end)
{
    int32_t number = opq_code_number(code);
    if (opq_code_set(code) == OPQ_SET_scalar || !is_placed(w, code) ||
        opq_code_set(place_of(w, code)->code) != OPQ_SET_leaf)
        return false;
    return opq_code_set(code) == OPQ_SET_leaf ? w->leaf_last[number] < end
                                              : w->last_use[number] < end && w->output[number] < 0;
}

/* Or a view of it is a leaf as well. */
static bool is_taken(const opq_piece *made, int32_t outputs, int32_t leaf)
{
    for (int32_t i = 0; i < made->snapshot.leaves.count; i++)
        if (i != leaf && made->leaf_from[i] == made->leaf_from[leaf])
            return true;
    for (int32_t i = 0; i < outputs; i++)
        if (made->snapshot.replaces.items[i] == leaf)
            return true;
    return false;
}

/* Which leaf nobody needs once output i is there: the one that it replaces in the whole, or an operand that an earlier piece made. What a later
 * output replaces is not lost before that is there: something else may fail. */
static int32_t replaced_by(const opq_whole *w, const opq_piece *made, int32_t i)
{
    int32_t node = made->output_of[i], output = w->output[node], leaf = -1;
    if (output >= 0 && w->s->replaces.count > 0)
        leaf = w->s->replaces.items[output];
    if (leaf >= 0 && ends_here(w, opq_code_make(OPQ_SET_leaf, leaf), made->end))
        return opq_code_number(place_of(w, opq_code_make(OPQ_SET_leaf, leaf))->code);
    for (int k = 0; k < opq_whole_arity(w, node); k++) {
        int32_t code = opq_whole_operand(w, node, k);
        if (opq_code_set(code) != OPQ_SET_node || !ends_here(w, code, made->end))
            continue;
        leaf = opq_code_number(place_of(w, code)->code);
        if (!is_taken(made, i, leaf))
            return leaf;
    }
    return -1;
}

/* ---- a piece as it stays */

static void *copy(const opq_whole *w, const void *from, size_t count, size_t size)
{
    void *made = opq_whole_take(w, count, size);
    if (made && count > 0)
        memcpy(made, from, count * size);
    return made;
}

static bool copy_views(const opq_whole *w, opq_snapshot *t)
{
    bool any = false;
    for (int i = 0; i < t->nodes.count; i++)
        any = any || w->draft.view_of_node[i];
    if (!any) {
        t->view_of_node = t->view_of_leaf = NULL;
        return true;
    }
    t->view_of_node = copy(w, t->view_of_node, (size_t)t->nodes.count, sizeof *t->view_of_node);
    t->view_of_leaf = copy(w, t->view_of_leaf, (size_t)t->leaves.count, sizeof *t->view_of_leaf);
    return t->view_of_node && t->view_of_leaf;
}

static bool copy_draft(const opq_whole *w, opq_piece *made)
{
    opq_snapshot *t = &made->snapshot;
    *t = w->draft;
    t->ctx = w->s->ctx;
    t->room = w->s->room;
    t->first_operand.count = t->nodes.count + 1;
    t->nodes.items = copy(w, t->nodes.items, (size_t)t->nodes.count, sizeof *t->nodes.items);
    t->leaves.items = copy(w, t->leaves.items, (size_t)t->leaves.count, sizeof *t->leaves.items);
    t->scalars.items = copy(w, t->scalars.items, (size_t)t->scalars.count, sizeof *t->scalars.items);
    t->operands.items = copy(w, t->operands.items, (size_t)t->operands.count, sizeof *t->operands.items);
    t->first_operand.items =
        copy(w, t->first_operand.items, (size_t)t->first_operand.count, sizeof *t->first_operand.items);
    made->leaf_from = copy(w, w->leaf_from, (size_t)t->leaves.count, sizeof *w->leaf_from);
    made->scalar_from = copy(w, w->scalar_from, (size_t)t->scalars.count, sizeof *w->scalar_from);
    return t->nodes.items && t->leaves.items && t->scalars.items && t->operands.items && t->first_operand.items &&
           made->leaf_from && made->scalar_from && copy_views(w, t);
}

static bool add_outputs(const opq_whole *w, opq_piece *made, int32_t first)
{
    opq_snapshot *t = &made->snapshot;
    int32_t count = 0;
    for (int32_t i = first; i < made->end; i++)
        if (!w->inlined[i] && w->s->nodes.items[i]->op != OPQ_OP_extern &&
            (w->output[i] >= 0 || w->last_use[i] >= made->end))
            w->output_of[count++] = i;
    made->output_of = copy(w, w->output_of, (size_t)count, sizeof *w->output_of);
    t->outputs.items = opq_whole_take(w, (size_t)count, sizeof *t->outputs.items);
    t->replaces.items = opq_whole_take(w, (size_t)count, sizeof *t->replaces.items);
    if (!made->output_of || !t->outputs.items || !t->replaces.items)
        return false;
    t->outputs.count = t->replaces.count = count;
    for (int32_t i = 0; i < count; i++) {
        int32_t node = made->output_of[i];
        t->outputs.items[i] = opq_code_number(place_of(w, opq_code_make(OPQ_SET_node, node))->code);
        t->replaces.items[i] = replaced_by(w, made, i);
    }
    return true;
}

opq_status opq_piece_make(opq_whole *w, int32_t first, int32_t end, opq_piece **out_piece)
{
    opq_piece *made = opq_whole_take(w, 1, sizeof *made);
    opq_snapshot *t = &w->draft;
    if (made == NULL)
        return opq_pieces_no_memory();
    w->stamp++;
    w->begin = first;
    t->nodes.count = t->leaves.count = t->scalars.count = t->operands.count = 0;
    for (int32_t i = first; i < end; i++)
        if (!w->inlined[i])
            put_with_inlined(w, i);
    t->first_operand.items[t->nodes.count] = t->operands.count;
    *made = (opq_piece){.end = end};
    if (!copy_draft(w, made) || !add_outputs(w, made, first))
        return opq_pieces_no_memory();
    made->execution = (opq_execution){.runner = w->runner, .given = &made->snapshot, .bare = !w->runner->watched};
    *out_piece = made;
    return OPQ_OK;
}
