/* Taking a snapshot, and its graph: see snapshot.h. */
#include "opaque/snapshot.h"

#include <stdlib.h>
#include <string.h>

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory while collecting the graph"); }

/* ---- collecting: from value to code. The lock is held, so the code stands in the value, with the number of this collection. */

enum { UNNUMBERED = -1 }; /* below: -2 - number of the failed value in `causes` */

/* Lists have room for all that can come: nodes for what is pending at all, the others for what the nodes refer to. */
typedef struct collector {
    opq_snapshot *snapshot;
    uint32_t number;
    opq_list causes; /* failed values, borrowed */
} collector;

static void push(opq_list *list, opq_value *value) { list->items[list->count++] = value; }

static void push_code(opq_codes *codes, int32_t code) { codes->items[codes->count++] = code; }

static bool make_list(opq_snapshot *s, opq_list *list, int64_t capacity)
{
    list->items = opq_room_take(s->room, (size_t)capacity * sizeof *list->items);
    return list->items != NULL;
}

static bool make_codes(opq_snapshot *s, opq_codes *codes, int64_t capacity)
{
    codes->items = opq_room_take(s->room, (size_t)capacity * sizeof *codes->items);
    return codes->items != NULL;
}

static bool is_known(const collector *c, const opq_value *value) { return value->collection == c->number; }

/* False: it is known. A new one has no number yet. */
static bool enter(const collector *c, opq_value *value)
{
    if (is_known(c, value))
        return false;
    value->collection = c->number;
    value->code = UNNUMBERED;
    return true;
}

static bool is_node(const opq_value *value) { return value->state == OPQ_VALUE_pending && value->op != OPQ_OP_scalar; }

static void visit(collector *c, opq_value *value)
{
    if (is_node(value) && enter(c, value))
        push(&c->snapshot->nodes, value);
}

/* Every pending ancestor, in record order. The list is its own queue, so nothing recurses. */
static opq_status walk(collector *c, opq_value *const *values, int count, const opq_scope *scope)
{
    opq_list *nodes = &c->snapshot->nodes;
    opq_ctx *ctx = c->snapshot->ctx;
    const opq_cell *held = scope->kind == OPQ_SCOPE_origin ? ctx->pending_cells : NULL;
    if (!make_list(c->snapshot, nodes, atomic_load(&ctx->pending)))
        return out_of_memory();
    for (int i = 0; i < count; i++)
        visit(c, values[i]);
    for (; held; held = held->next)
        if (held->value->origin == scope->origin)
            visit(c, held->value);
    for (int i = 0; i < nodes->count; i++)
        for (int k = 0; k < nodes->items[i]->arity; k++)
            visit(c, nodes->items[i]->operands[k]);
    opq_snapshot_sort(c->snapshot);
    return OPQ_OK;
}

/* The other lists, once the nodes are known. */
static opq_status make_lists(collector *c, int asked)
{
    opq_snapshot *s = c->snapshot;
    int64_t nodes = s->nodes.count, operands = asked;
    for (int i = 0; i < s->nodes.count; i++)
        operands += s->nodes.items[i]->arity;
    bool made = make_list(s, &s->leaves, operands) && make_list(s, &s->scalars, operands) &&
                make_codes(s, &s->operands, operands) && make_codes(s, &s->first_operand, nodes + 1) &&
                make_codes(s, &s->asked, asked) && make_codes(s, &s->outputs, nodes) &&
                make_codes(s, &s->replaces, nodes) && make_list(s, &c->causes, nodes);
    return made ? OPQ_OK : out_of_memory();
}

/* What depends on a failed value fails with it: the cause's code, or UNNUMBERED. */
static int32_t find_cause(collector *c, const opq_value *node)
{
    for (int k = 0; k < node->arity; k++) {
        opq_value *operand = node->operands[k];
        if (operand->state == OPQ_VALUE_failed) {
            push(&c->causes, operand);
            return -1 - c->causes.count;
        }
        if (c->causes.count > 0 && is_node(operand) && is_known(c, operand) && operand->code < UNNUMBERED)
            return operand->code;
    }
    return UNNUMBERED;
}

static void number_operand(collector *c, opq_value *operand)
{
    opq_snapshot *s = c->snapshot;
    if (enter(c, operand)) {
        bool leaf = operand->state == OPQ_VALUE_computed;
        opq_list *list = leaf ? &s->leaves : &s->scalars;
        operand->code = opq_code_make(leaf ? OPQ_SET_leaf : OPQ_SET_scalar, list->count);
        push(list, operand);
    }
    push_code(&s->operands, operand->code);
}

static void number_nodes(collector *c)
{
    opq_snapshot *s = c->snapshot;
    int count = s->nodes.count;
    s->nodes.count = 0;
    for (int i = 0; i < count; i++) {
        opq_value *node = s->nodes.items[i];
        int32_t cause = find_cause(c, node);
        if (cause != UNNUMBERED) {
            node->code = cause;
            continue;
        }
        push_code(&s->first_operand, s->operands.count);
        for (int k = 0; k < node->arity; k++)
            number_operand(c, node->operands[k]);
        node->code = opq_code_make(OPQ_SET_node, s->nodes.count);
        s->nodes.items[s->nodes.count++] = node;
    }
    push_code(&s->first_operand, s->operands.count);
}

static opq_status number_asked(collector *c, opq_value *value)
{
    opq_snapshot *s = c->snapshot;
    if (value->state == OPQ_VALUE_failed)
        return opq_fail(value->error_status, "%s", value->error);
    if (!is_node(value)) {
        number_operand(c, value);
        push_code(&s->asked, s->operands.items[--s->operands.count]);
        return OPQ_OK;
    }
    int32_t code = value->code;
    if (code < UNNUMBERED)
        return opq_fail(c->causes.items[-2 - code]->error_status, "%s", c->causes.items[-2 - code]->error);
    push_code(&s->asked, code);
    return OPQ_OK;
}

static opq_status find_outputs(opq_snapshot *s)
{
    s->is_asked = opq_room_take(s->room, (size_t)s->nodes.count);
    if (s->is_asked == NULL)
        return out_of_memory();
    memset(s->is_asked, 0, (size_t)s->nodes.count);
    for (int i = 0; i < s->asked.count; i++)
        if (opq_code_set(s->asked.items[i]) == OPQ_SET_node)
            s->is_asked[opq_code_number(s->asked.items[i])] = true;
    for (int i = 0; i < s->nodes.count; i++)
        if (s->is_asked[i] || (s->nodes.items[i]->holders && s->nodes.items[i]->op != OPQ_OP_extern))
            push_code(&s->outputs, i);
    return OPQ_OK;
}

/* ---- what is replaced */

/* References to the values of a snapshot, before it pins them: those that go when its outputs are computed. */
typedef struct tally {
    int32_t *nodes, *leaves; /* operands of nodes, and histories of cells that hold outputs */
    bool *stays;             /* per node: what may be computed later needs it */
    bool *needed;            /* per leaf: by a node that may be computed later, or as the place of an output */
} tally;

static int32_t *tally_of(const collector *c, const tally *t, const opq_value *value)
{
    if (!is_known(c, value) || value->code < 0)
        return NULL;
    switch (opq_code_set(value->code)) {
    case OPQ_SET_node: return &t->nodes[opq_code_number(value->code)];
    case OPQ_SET_leaf: return &t->leaves[opq_code_number(value->code)];
    default: return NULL;
    }
}

static void count_references(const collector *c, tally *t)
{
    const opq_snapshot *s = c->snapshot;
    for (int i = 0; i < s->operands.count; i++) {
        int32_t number = opq_code_number(s->operands.items[i]);
        if (opq_code_set(s->operands.items[i]) == OPQ_SET_node)
            t->nodes[number]++;
        else if (opq_code_set(s->operands.items[i]) == OPQ_SET_leaf)
            t->leaves[number]++;
    }
    for (int i = 0; i < s->outputs.count; i++)
        for (const opq_cell *cell = opq_snapshot_output(s, i)->holders; cell; cell = cell->next_holder)
            for (int h = 0; h < cell->history_count; h++) {
                int32_t *count = tally_of(c, t, cell->history[h]);
                if (count)
                    ++*count;
            }
}

/* What is not computed now but has a reference more than we know of may be computed later, from the leaves it is made of. */
static void find_needed(const opq_snapshot *s, tally *t)
{
    for (int i = s->nodes.count - 1; i >= 0; i--) {
        const opq_value *node = s->nodes.items[i];
        bool computed = node->holders != NULL;
        if (computed || (!t->stays[i] && atomic_load(&node->refs) == t->nodes[i]))
            continue;
        for (int k = s->first_operand.items[i]; k < s->first_operand.items[i + 1]; k++) {
            int32_t number = opq_code_number(s->operands.items[k]);
            if (opq_code_set(s->operands.items[k]) == OPQ_SET_node)
                t->stays[number] = true;
            else if (opq_code_set(s->operands.items[k]) == OPQ_SET_leaf)
                t->needed[number] = true;
        }
    }
}

/* The oldest value of the one cell that holds the output, if that is a leaf which nothing but this snapshot knows, and no other output
 * replaces: two cells hold one value after a copy. */
static int32_t replaced_by(const collector *c, tally *t, const opq_value *output)
{
    const opq_cell *cell = output->holders;
    if (cell == NULL || cell->next_holder || cell->history_count == 0)
        return -1;
    const opq_value *old = cell->history[0];
    if (old->state != OPQ_VALUE_computed || !is_known(c, old) || opq_code_set(old->code) != OPQ_SET_leaf)
        return -1;
    int32_t leaf = opq_code_number(old->code);
    opq_buffer *buffer = old->buffer;
    bool alone = old->holders == NULL && !t->needed[leaf] && atomic_load(&old->refs) == t->leaves[leaf] &&
                 atomic_load(&buffer->refs) == 1 && buffer->size_class >= 0 && !atomic_load(&buffer->lent) &&
                 (int64_t)buffer->bytes == opq_type_bytes(&output->type);
    if (!alone)
        return -1;
    t->needed[leaf] = true;
    return leaf;
}

static opq_status find_replaced(const collector *c)
{
    opq_snapshot *s = c->snapshot;
    size_t nodes = (size_t)s->nodes.count, leaves = (size_t)s->leaves.count;
    size_t bytes = (nodes + leaves) * (sizeof(int32_t) + sizeof(bool));
    tally t = {.nodes = opq_room_take(s->room, bytes)};
    if (t.nodes == NULL)
        return out_of_memory();
    memset(t.nodes, 0, bytes);
    t.leaves = t.nodes + nodes;
    t.stays = (bool *)(t.leaves + leaves);
    t.needed = t.stays + nodes;
    count_references(c, &t);
    find_needed(s, &t);
    for (int i = 0; i < s->outputs.count; i++)
        push_code(&s->replaces, replaced_by(c, &t, opq_snapshot_output(s, i)));
    return OPQ_OK;
}

static void pin(const opq_snapshot *s)
{
    const opq_list *lists[] = {&s->nodes, &s->leaves, &s->scalars};
    for (int l = 0; l < OPQ_SETS; l++)
        for (int i = 0; i < lists[l]->count; i++)
            opq_value_retain(lists[l]->items[i]);
}

static opq_status collect(collector *c, opq_value *const *values, int count, const opq_scope *scope)
{
    OPQ_TRY(walk(c, values, count, scope));
    OPQ_TRY(make_lists(c, count));
    number_nodes(c);
    for (int i = 0; i < count; i++)
        OPQ_TRY(number_asked(c, values[i]));
    OPQ_TRY(find_outputs(c->snapshot));
    return scope->runs ? find_replaced(c) : OPQ_OK;
}

opq_status opq_snapshot_collect(opq_ctx *ctx, opq_value *const *values, int count, const opq_scope *scope,
                                opq_room *room, opq_snapshot *out_snapshot)
{
    *out_snapshot = (opq_snapshot){.ctx = ctx, .room = room};
    collector c = {.snapshot = out_snapshot};
    opq_spin_lock(&ctx->lock);
    if (++ctx->collections == 0) /* a new value's */
        ctx->collections = 1;
    c.number = ctx->collections;
    opq_status status = collect(&c, values, count, scope);
    if (status == OPQ_OK)
        pin(out_snapshot);
    else
        *out_snapshot = (opq_snapshot){.ctx = ctx, .room = room}; /* nothing is pinned */
    opq_spin_unlock(&ctx->lock);
    return status;
}

void opq_snapshot_unpin(const opq_snapshot *s)
{
    const opq_list *lists[] = {&s->nodes, &s->leaves, &s->scalars};
    for (int l = 0; l < OPQ_SETS; l++)
        for (int i = 0; i < lists[l]->count; i++)
            opq_value_release(lists[l]->items[i]);
}

opq_status opq_snapshot_origins(opq_ctx *ctx, opq_room *room, uint32_t **out_origins, int *out_count)
{
    uint32_t *origins = NULL;
    size_t capacity = 0;
    int count = 0;
    bool made = true;
    opq_spin_lock(&ctx->lock);
    for (const opq_cell *cell = ctx->pending_cells; cell && made; cell = cell->next) {
        bool known = false;
        for (int i = count - 1; i >= 0 && !known; i--)
            known = origins[i] == cell->value->origin;
        size_t used = (size_t)count * sizeof *origins;
        made = known || opq_room_extend(room, (void **)&origins, used, &capacity, sizeof *origins);
        if (!known && made)
            origins[count++] = cell->value->origin;
    }
    opq_spin_unlock(&ctx->lock);
    *out_origins = origins;
    *out_count = count;
    return made ? OPQ_OK : out_of_memory();
}

/* ---- graph */

enum { PART_SIZE = 512 };

static const char *line_part(opq_ctx *ctx, uint32_t line, opq_line_part part, char *out, size_t size)
{
    if (line == 0 || ctx->host.line_text == NULL)
        return NULL;
    size_t length = ctx->host.line_text(ctx->host.self, line, part, out, size);
    return length > 0 && length < size ? out : NULL;
}

/* "train.py:41 in layer.3.attn via modeling_bert.py:211"; `size` has room for all parts. */
static const char *line_text(opq_ctx *ctx, uint32_t line, char *out, size_t size)
{
    static const struct {
        opq_line_part part;
        const char *lead;
    } others[] = {{OPQ_LINE_module, " in "}, {OPQ_LINE_library, " via "}};
    if (line_part(ctx, line, OPQ_LINE_place, out, size) == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        size_t length = strlen(out), lead = strlen(others[i].lead);
        if (length + lead < size && line_part(ctx, line, others[i].part, out + length + lead, size - length - lead))
            memcpy(out + length, others[i].lead, lead);
        else
            out[length] = 0;
    }
    return out;
}

const char *opq_snapshot_line(const opq_snapshot *s, int32_t node, char *out, size_t size)
{
    return line_text(s->ctx, s->nodes.items[node]->line, out, size);
}

const char *opq_snapshot_last(const opq_snapshot *s, char *out_line, size_t size)
{
    const opq_value *last = s->nodes.count ? s->nodes.items[s->nodes.count - 1] : NULL;
    if (last == NULL || line_text(s->ctx, last->line, out_line, size) == NULL)
        out_line[0] = 0;
    return last ? opq_op_info_of((opq_op)last->op)->name : NULL;
}

static opq_ref ref_of(const opq_snapshot *s, int32_t code)
{
    int32_t number = opq_code_number(code);
    switch (opq_code_set(code)) {
    case OPQ_SET_leaf: return number;
    case OPQ_SET_scalar: return s->leaves.count + number;
    default: return s->leaves.count + s->scalars.count + number;
    }
}

static opq_status add_leaves(const opq_snapshot *s, opq_graph *graph)
{
    opq_ref ref;
    for (int i = 0; i < s->leaves.count; i++)
        OPQ_TRY(opq_graph_input(graph, opq_snapshot_leaf_type(s, i), &ref));
    for (int i = 0; i < s->scalars.count; i++) {
        const opq_value *scalar = s->scalars.items[i];
        opq_number value = scalar->scalar;
        OPQ_TRY(opq_number_fit("scalar", (opq_dtype)scalar->type.dtype, &value));
        opq_attr attr = {.key = OPQ_ATTR_value,
                         .is_int = opq_dtype_kind_of((opq_dtype)scalar->type.dtype) != OPQ_KIND_FLOAT,
                         .number = value};
        opq_type type = scalar->type;
        type.weak = 0;
        opq_node node = {
            .op = OPQ_OP_scalar, .attr = &attr, .attr_count = 1, .type = type, .payload = (void *)(intptr_t)(i + 1)};
        OPQ_TRY(opq_graph_append(graph, &node, &ref));
    }
    return OPQ_OK;
}

/* `out` has room for all parts, one after the other. */
static opq_provenance provenance_of(const opq_value *value, char *out)
{
    opq_provenance p = {.op = (opq_op)value->op, .call = value->call, .forward = value->forward};
    for (int i = 0; i < OPQ_LINE_PARTS; i++)
        p.part[i] = line_part(value->ctx, value->line, (opq_line_part)i, out + (size_t)i * PART_SIZE, PART_SIZE);
    return p;
}

/* Payloads belong to the values: only a graph that is compiled while the snapshot stands has them. Where a node comes from is for graphs
 * that are looked at. */
static opq_status add_node(const opq_snapshot *s, int32_t number, opq_outputs outputs, opq_graph *graph, opq_ref *operands)
{
    const opq_value *value = s->nodes.items[number];
    int32_t first = s->first_operand.items[number], arity = s->first_operand.items[number + 1] - first;
    char line[PART_SIZE], parts[OPQ_LINE_PARTS * PART_SIZE];
    opq_provenance provenance = {0};
    opq_ref ref;
    if (outputs == OPQ_OUTPUTS_all)
        provenance = provenance_of(value, parts);
    for (int k = 0; k < arity; k++)
        operands[k] = ref_of(s, s->operands.items[first + k]);
    opq_view *view = opq_snapshot_node_view(s, number);
    opq_node node = {.op = view ? OPQ_OP_strided : value->op,
                     .arity = arity,
                     .operand = operands,
                     .attr = view ? view->attrs : value->attrs,
                     .attr_count = view ? 2 : value->attr_count,
                     .type = value->type,
                     .line = outputs == OPQ_OUTPUTS_bare ? NULL : line_text(s->ctx, value->line, line, sizeof line),
                     .provenance = outputs == OPQ_OUTPUTS_all ? &provenance : NULL,
                     .payload = outputs >= OPQ_OUTPUTS_stored && value->op == OPQ_OP_extern ? value->payload : NULL};
    return opq_graph_append(graph, &node, &ref);
}

/* Who looks sees first what was asked for, in that order. */
static opq_status add_outputs(const opq_snapshot *s, opq_outputs which, opq_graph *graph)
{
    bool looked_at = which < OPQ_OUTPUTS_stored;
    for (int i = 0; i < s->asked.count && looked_at; i++)
        OPQ_TRY(opq_graph_output(graph, ref_of(s, s->asked.items[i])));
    for (int i = 0; i < s->outputs.count && which != OPQ_OUTPUTS_asked; i++)
        if (!looked_at || !s->is_asked[s->outputs.items[i]])
            OPQ_TRY(opq_graph_output(graph, ref_of(s, opq_code_make(OPQ_SET_node, s->outputs.items[i]))));
    return OPQ_OK;
}

opq_status opq_snapshot_graph(const opq_snapshot *s, opq_outputs outputs, opq_graph **out_graph)
{
    opq_graph *graph = NULL;
    opq_ref *operands = malloc(((size_t)s->operands.count + 1) * sizeof *operands);
    opq_status status = operands ? opq_graph_create("g", &graph) : out_of_memory();
    if (status == OPQ_OK)
        status = add_leaves(s, graph);
    for (int32_t i = 0; i < s->nodes.count && status == OPQ_OK; i++)
        status = add_node(s, i, outputs, graph, operands);
    if (status == OPQ_OK)
        status = add_outputs(s, outputs, graph);
    free(operands);
    if (status != OPQ_OK) {
        opq_graph_destroy(graph);
        return status;
    }
    *out_graph = graph;
    return OPQ_OK;
}
