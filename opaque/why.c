/* Why a graph had no plan: what tells it from the nearest graph that has one. Both are known by their canonical keys
 * (key_view.h). Of several differences the causes come first: an input of another shape changes the type of all that follows, and
 * only the input is told.
 */
#include "opaque/why.h"

#include "opaque/key_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES_MAX = 64, TOLD_MAX = 3, LINE_SIZE = 256, NAME_SIZE = 320, INTS_MAX = 64 };

/* ---- how near */

static bool same_op(const opq_key_node *a, const opq_key_node *b) { return a->op == b->op && a->arity == b->arity; }

static bool same_operands(const opq_key_node *a, const opq_key_node *b)
{
    return memcmp(a->operands, b->operands, (size_t)a->arity * sizeof(int32_t)) == 0;
}

static bool same_attrs(const opq_key_node *a, const opq_key_node *b)
{
    return a->attr_bytes == b->attr_bytes && memcmp(a->attrs, b->attrs, a->attr_bytes) == 0;
}

static bool same_type(const opq_type *a, const opq_type *b) { return a->dtype == b->dtype && opq_shape_equal(a, b); }

/* Nodes that are the same at the beginning and, not counted twice, at the end. */
typedef struct overlap {
    int32_t first, last;
} overlap;

static overlap overlap_of(const opq_key_view *a, const opq_key_view *b)
{
    overlap o = {0};
    int32_t shorter = a->node_count < b->node_count ? a->node_count : b->node_count;
    while (o.first < shorter && same_op(&a->nodes[o.first], &b->nodes[o.first]) &&
           same_operands(&a->nodes[o.first], &b->nodes[o.first]))
        o.first++;
    while (o.last < shorter - o.first &&
           same_op(&a->nodes[a->node_count - 1 - o.last], &b->nodes[b->node_count - 1 - o.last]))
        o.last++;
    return o;
}

static int32_t longer_of(const opq_key_view *a, const opq_key_view *b)
{
    return a->node_count > b->node_count ? a->node_count : b->node_count;
}

/* Rows that were made at run time share places: this only weighs. */
static int32_t place_of(int32_t op) { return op < OPQ_OP_COUNT ? op : op % OPQ_OP_COUNT; }

/* Ops of one graph that the other has as well, in whatever order. */
static int32_t common_ops(const opq_key_view *a, const opq_key_view *b)
{
    int32_t count[OPQ_OP_COUNT] = {0}, common = 0;
    for (int32_t i = 0; i < a->node_count; i++)
        count[place_of(a->nodes[i].op)]++;
    for (int32_t i = 0; i < b->node_count; i++)
        common += count[place_of(b->nodes[i].op)]-- > 0;
    return common;
}

/* Larger is nearer: the same ops weigh most, then their order, then types and attributes. */
static double nearness(const opq_key_view *a, const opq_key_view *b)
{
    overlap o = overlap_of(a, b);
    int32_t longer = longer_of(a, b), equal = 0, leaves = 0;
    for (int32_t i = 0; i < o.first; i++)
        equal += same_type(&a->nodes[i].type, &b->nodes[i].type) && same_attrs(&a->nodes[i], &b->nodes[i]);
    for (int32_t i = 0; i < a->leaf_count && i < b->leaf_count; i++)
        leaves += same_type(&a->leaves[i], &b->leaves[i]);
    double detail = (double)(equal + leaves) / (1 + longer + a->leaf_count) + (a->salt == b->salt);
    return (common_ops(a, b) + (double)(o.first + o.last) / 16) / (longer ? longer : 1) + detail / 1024;
}

typedef struct search {
    const opq_key_view *wanted;
    opq_key_view best;
    double nearness;
    unsigned char *copy; /* of the best key: its entry may go */
    int seen;
    bool failed;
} search;

static bool look_at(void *data, const void *key, size_t bytes)
{
    search *s = data;
    int32_t nodes = opq_key_word(key, 1);
    if (nodes > 2 * s->wanted->node_count + 8 || s->wanted->node_count > 2 * nodes + 8)
        return true;
    opq_key_view view;
    unsigned char *copy = malloc(bytes);
    if (copy == NULL || !opq_key_read(memcpy(copy, key, bytes), &view)) {
        free(copy);
        s->failed = true;
        return false;
    }
    double nearness_here = nearness(s->wanted, &view);
    if (s->copy && nearness_here <= s->nearness) {
        opq_key_drop(&view);
        free(copy);
    } else {
        opq_key_drop(&s->best);
        free(s->copy);
        s->best = view;
        s->copy = copy;
        s->nearness = nearness_here;
    }
    return ++s->seen < CANDIDATES_MAX;
}

/* ---- in words */

typedef struct words {
    const opq_snapshot *snapshot;
    const opq_key_view *now, *before;
    opq_text *text;
    int told, left_out;
} words;

/* True: there is room for one more. */
static bool begin(words *w)
{
    if (w->told == TOLD_MAX) {
        w->left_out++;
        return false;
    }
    opq_text_add(w->text, "%s", w->told++ ? "; " : "");
    return true;
}

static const char *op_name(int32_t op) { return opq_op_info_of((opq_op)op)->name; }

/* " of mul at train.py:41" */
/* Lines are known of the graph there is now. */
static void name_node(const words *w, const opq_key_view *key, int32_t node, char out[NAME_SIZE])
{
    char line[LINE_SIZE];
    const char *place = key == w->now ? opq_snapshot_line(w->snapshot, node, line, sizeof line) : NULL;
    snprintf(out, NAME_SIZE, "%s%s%s", op_name(key->nodes[node].op), place ? " at " : "", place ? place : "");
}

static void add_node(const words *w, int32_t node)
{
    char name[NAME_SIZE];
    name_node(w, w->now, node, name);
    opq_text_add(w->text, "%s", name);
}

static bool find_use(const opq_key_view *key, int set, int32_t number, int32_t *out_node, int32_t *out_operand)
{
    for (int32_t n = 0; n < key->node_count; n++)
        for (int32_t k = 0; k < key->nodes[n].arity; k++)
            if (opq_key_word(key->nodes[n].operands, k) == opq_code_make(set, number)) {
                *out_node = n;
                *out_operand = k;
                return true;
            }
    return false;
}

static void tell_type(const words *w, const opq_type *before, const opq_type *now)
{
    const char *lead = "";
    if (before->dtype != now->dtype) {
        opq_text_add(w->text, "dtype %s -> %s", opq_dtype_name((opq_dtype)before->dtype),
                     opq_dtype_name((opq_dtype)now->dtype));
        lead = ", ";
    }
    if (!opq_shape_equal(before, now))
        opq_text_add(w->text, "%sshape %s -> %s", lead, opq_shape_name(before).text, opq_shape_name(now).text);
}

static void tell_leaves(words *w)
{
    for (int32_t i = 0; i < w->now->leaf_count && i < w->before->leaf_count; i++) {
        int32_t node, operand;
        if (same_type(&w->now->leaves[i], &w->before->leaves[i]) || !begin(w))
            continue;
        tell_type(w, &w->before->leaves[i], &w->now->leaves[i]);
        if (find_use(w->now, OPQ_SET_leaf, i, &node, &operand)) {
            opq_text_add(w->text, " of operand %d of ", operand);
            add_node(w, node);
        }
    }
}

static void tell_scalars(words *w)
{
    for (int32_t i = 0; i < w->now->scalar_count && i < w->before->scalar_count; i++) {
        int32_t node, operand, dtype = opq_key_word(w->now->scalars, i), old = opq_key_word(w->before->scalars, i);
        if (dtype == old || !begin(w))
            continue;
        opq_text_add(w->text, "number %s -> %s", opq_dtype_name((opq_dtype)old), opq_dtype_name((opq_dtype)dtype));
        if (find_use(w->now, OPQ_SET_scalar, i, &node, &operand)) {
            opq_text_add(w->text, " of ");
            add_node(w, node);
        }
    }
}

static void tell_attr(opq_text *text, opq_dtype dtype, const unsigned char *at)
{
    opq_attr attr = {.key = (uint8_t)opq_key_word(at, 0),
                     .is_int = opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT,
                     .count = opq_key_word(at, 1)};
    int64_t ints[INTS_MAX];
    const unsigned char *payload = at + 2 * sizeof(int32_t);
    switch (opq_attr_kind_of((opq_attr_key)attr.key)) {
    case OPQ_ATTR_KIND_INTS:
        attr.count = attr.count < INTS_MAX ? attr.count : INTS_MAX;
        memcpy(ints, payload, (size_t)attr.count * sizeof *ints);
        attr.ints = ints;
        break;
    case OPQ_ATTR_KIND_STR: attr.str = (const char *)payload; break;
    case OPQ_ATTR_KIND_INT:
    case OPQ_ATTR_KIND_WORD:
    case OPQ_ATTR_KIND_NUMBER: memcpy(&attr.i, payload, sizeof attr.i); break;
    }
    opq_text_attr(text, dtype, &attr);
}

/* The first attribute that differs; keys are in one order. */
static void tell_attrs(const words *w, const opq_key_node *before, const opq_key_node *now)
{
    const unsigned char *a = before->attrs, *b = now->attrs;
    for (int32_t i = 0; i < before->attr_count && i < now->attr_count; i++) {
        const unsigned char *a_end = opq_key_skip_attr(a), *b_end = opq_key_skip_attr(b);
        if (a_end - a != b_end - b || memcmp(a, b, (size_t)(a_end - a)) != 0) {
            tell_attr(w->text, (opq_dtype)before->type.dtype, a);
            opq_text_add(w->text, " -> ");
            tell_attr(w->text, (opq_dtype)now->type.dtype, b);
            return;
        }
        a = a_end;
        b = b_end;
    }
    opq_text_add(w->text, "other attributes");
}

/* Of nodes that do the same to the same operands. What follows from an operand's type is no cause. */
static void tell_nodes(words *w, bool operands_differ)
{
    for (int32_t i = 0; i < w->now->node_count && i < w->before->node_count; i++) {
        const opq_key_node *now = &w->now->nodes[i], *before = &w->before->nodes[i];
        bool attrs = !same_attrs(now, before), type = !operands_differ && !same_type(&now->type, &before->type);
        if (!same_op(now, before) || (operands_differ && opq_op_info_of((opq_op)now->op)->class_ == OPQ_CLASS_VIEW) ||
            (!attrs && !type) || !begin(w))
            continue;
        if (attrs)
            tell_attrs(w, before, now);
        else
            tell_type(w, &before->type, &now->type);
        opq_text_add(w->text, " of ");
        add_node(w, i);
        operands_differ = true;
    }
}

static bool has_output(const opq_key_view *key, int32_t node)
{
    for (int32_t i = 0; i < key->output_count; i++)
        if (opq_key_word(key->outputs, i) == node)
            return true;
    return false;
}

static void tell_outputs(words *w)
{
    for (int32_t i = 0; i < w->now->node_count; i++) {
        bool now = has_output(w->now, i), before = has_output(w->before, i);
        if (now == before || !begin(w))
            continue;
        add_node(w, i);
        opq_text_add(w->text, now ? " is kept: something holds it" : " is not kept: nothing holds it any more");
    }
}

static const char *set_name(int32_t code)
{
    switch (opq_code_set(code)) {
    case OPQ_SET_leaf: return "a tensor in memory";
    case OPQ_SET_scalar: return "a number";
    default: return "computed here";
    }
}

/* Of a node whose op is the same. */
static void tell_wiring(words *w, int32_t node)
{
    const opq_key_node *now = &w->now->nodes[node], *before = &w->before->nodes[node];
    for (int32_t k = 0; k < now->arity; k++) {
        int32_t a = opq_key_word(before->operands, k), b = opq_key_word(now->operands, k);
        if (a == b || !begin(w))
            continue;
        opq_text_add(w->text, "operand %d of ", k);
        add_node(w, node);
        if (opq_code_set(a) == opq_code_set(b))
            opq_text_add(w->text, " is another value");
        else
            opq_text_add(w->text, " is %s, was %s", set_name(b), set_name(a));
        return;
    }
}

enum { NAMED_MAX = 3, ALIGNED_MAX = 2048 };

static void add_times(const words *w, int32_t times)
{
    if (times > 1)
        opq_text_add(w->text, " x %d", times);
}

/* Those of nodes [first, end) that have no partner, the first ones by name; equal ones in a row share one. */
static void tell_ops(const words *w, const opq_key_view *key, const bool *paired, int32_t first, int32_t end)
{
    char name[NAME_SIZE], last[NAME_SIZE] = "";
    int32_t named = 0, times = 0, more = 0;
    for (int32_t i = first; i < end; i++) {
        if (paired[i - first])
            continue;
        name_node(w, key, i, name);
        if (strcmp(name, last) == 0) {
            times++;
        } else if (named == NAMED_MAX) {
            more++;
        } else {
            add_times(w, times);
            opq_text_add(w->text, "%s%s", named++ ? ", " : "", name);
            memcpy(last, name, sizeof last);
            times = 1;
        }
    }
    add_times(w, times);
    if (more)
        opq_text_add(w->text, " and %d more", more);
}

/* Pairs the same ops of a[0, n) and b[0, m) in order, as many as there are: their longest common subsequence. Without memory, and of
 * long sequences, none. Returns how many. */
static int32_t align(const opq_key_node *a, int32_t n, const opq_key_node *b, int32_t m, bool *a_paired, bool *b_paired)
{
    size_t columns = (size_t)m + 1;
    uint16_t *length = n < ALIGNED_MAX && m < ALIGNED_MAX ? calloc(((size_t)n + 1) * columns, sizeof *length) : NULL;
    if (length == NULL)
        return 0;
    for (int32_t i = n - 1; i >= 0; i--)
        for (int32_t j = m - 1; j >= 0; j--) {
            uint16_t *at = &length[(size_t)i * columns + (size_t)j];
            at[0] = at[1] > at[columns] ? at[1] : at[columns];
            if (same_op(&a[i], &b[j]))
                at[0] = at[columns + 1] + 1;
        }
    int32_t count = length[0];
    for (int32_t i = 0, j = 0; i < n && j < m;) {
        const uint16_t *at = &length[(size_t)i * columns + (size_t)j];
        bool pair = same_op(&a[i], &b[j]);
        a_paired[i] = a_paired[i] || pair;
        b_paired[j] = b_paired[j] || pair;
        bool down = !pair && at[columns] >= at[1];
        i += pair || down;
        j += pair || !down;
    }
    free(length);
    return count;
}

/* Graphs of other ops: what is between what is the same. */
static void tell_difference(words *w, overlap o)
{
    int32_t n = w->now->node_count - o.last - o.first, m = w->before->node_count - o.last - o.first;
    bool *now_paired = calloc((size_t)n + (size_t)m + 1, sizeof *now_paired), *before_paired = now_paired + n;
    if (now_paired == NULL || !begin(w)) {
        free(now_paired);
        return;
    }
    int32_t pairs = align(&w->now->nodes[o.first], n, &w->before->nodes[o.first], m, now_paired, before_paired);
    bool more = n > pairs, fewer = m > pairs;
    if (more)
        tell_ops(w, w->now, now_paired, o.first, o.first + n);
    if (more && fewer)
        opq_text_add(w->text, " instead of ");
    else
        opq_text_add(w->text, "%s", more ? (n - pairs > 1 ? " are new" : " is new") : "without ");
    if (fewer)
        tell_ops(w, w->before, before_paired, o.first, o.first + m);
    if (!more && o.last > 0) {
        opq_text_add(w->text, " before ");
        add_node(w, o.first + n);
    }
    free(now_paired);
}

static void tell(words *w)
{
    const opq_key_view *now = w->now, *before = w->before;
    overlap o = overlap_of(now, before);
    int32_t longer = longer_of(now, before), common = common_ops(now, before);
    if (now->salt != before->salt && begin(w))
        opq_text_add(w->text, now->salt ? "grouping is off (unfused), was on" : "grouping is on, was off (unfused)");
    if (2 * common < longer) {
        if (begin(w))
            opq_text_add(w->text, "a new graph: of its %d ops the nearest plan has %d", now->node_count, common);
        return;
    }
    if (o.first < longer && (now->node_count != before->node_count || o.first + o.last < longer)) {
        tell_difference(w, o);
        return;
    }
    if (o.first < longer) {
        tell_wiring(w, o.first);
        return;
    }
    int told = w->told;
    tell_leaves(w);
    tell_scalars(w);
    tell_nodes(w, w->told > told);
    tell_outputs(w);
}

opq_status opq_why(opq_plan_cache *plans, const opq_snapshot *snapshot, char **out_text)
{
    opq_text text = {0};
    opq_key_view now;
    if (!opq_key_read(snapshot->key, &now))
        return opq_fail(OPQ_NO_MEMORY, "out of memory for a reason");
    search s = {.wanted = &now};
    opq_plan_cache_each(plans, look_at, &s);
    words w = {.snapshot = snapshot, .now = &now, .before = &s.best, .text = &text};
    if (s.copy)
        tell(&w);
    else
        opq_text_add(&text, "the first graph of about %d ops", now.node_count);
    if (w.left_out)
        opq_text_add(&text, "; and %d more", w.left_out);
    opq_key_drop(&s.best);
    free(s.copy);
    opq_key_drop(&now);
    return opq_text_take(&text, out_text);
}
