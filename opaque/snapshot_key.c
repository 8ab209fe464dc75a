/* The canonical key of a snapshot, written and read back: op, attributes, types and operand numbers of every node, and which ones are outputs. */
#include "opaque/key_view.h"
#include "opaque/snapshot.h"

#include <stdlib.h>
#include <string.h>

static opq_status reserve(opq_snapshot *s, size_t bytes)
{
    bool made = opq_room_extend(s->room, (void **)&s->key, s->key_bytes, &s->key_capacity, bytes);
    return made ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory for the key of a graph");
}

/* Behind what reserve() made room for. */
static void put_word(opq_snapshot *s, int32_t word)
{
    memcpy(s->key + s->key_bytes, &word, sizeof word);
    s->key_bytes += sizeof word;
}

static void put_words(opq_snapshot *s, const int32_t *words, int count)
{
    for (int i = 0; i < count; i++)
        put_word(s, words[i]);
}

enum { TYPE_BYTES_MAX = 2 * sizeof(int32_t) + sizeof((opq_type){0}.size) };

static void put_type(opq_snapshot *s, const opq_type *type)
{
    put_word(s, type->dtype);
    put_word(s, type->rank);
    for (int d = 0; d < type->rank; d++) {
        memcpy(s->key + s->key_bytes, &type->size[d], sizeof type->size[d]);
        s->key_bytes += sizeof type->size[d];
    }
}

static opq_status add_bytes(opq_snapshot *s, const void *data, size_t bytes)
{
    OPQ_TRY(reserve(s, bytes));
    if (bytes > 0) /* else there may be no array */
        memcpy(s->key + s->key_bytes, data, bytes);
    s->key_bytes += bytes;
    return OPQ_OK;
}

static opq_status add_attrs(opq_snapshot *s, const opq_attr *attrs, int count)
{
    for (int i = 0; i < count; i++) {
        const opq_attr *attr = &attrs[i];
        int32_t head[2] = {attr->key, attr->count};
        OPQ_TRY(add_bytes(s, head, sizeof head));
        switch (opq_attr_kind_of((opq_attr_key)attr->key)) {
        case OPQ_ATTR_KIND_INTS: OPQ_TRY(add_bytes(s, attr->ints, (size_t)attr->count * sizeof *attr->ints)); break;
        case OPQ_ATTR_KIND_STR: OPQ_TRY(add_bytes(s, attr->str, strlen(attr->str) + 1)); break;
        case OPQ_ATTR_KIND_INT:
        case OPQ_ATTR_KIND_WORD:
        case OPQ_ATTR_KIND_NUMBER: OPQ_TRY(add_bytes(s, &attr->i, sizeof attr->i)); break;
        }
    }
    return OPQ_OK;
}

/* Scalars carry their dtype and no value. */
opq_status opq_snapshot_key(opq_snapshot *s, unsigned salt)
{
    const int32_t head[] = {(int32_t)salt, s->nodes.count, s->leaves.count, s->scalars.count, s->outputs.count};
    OPQ_TRY(add_bytes(s, head, sizeof head));
    for (int i = 0; i < s->nodes.count; i++) {
        const opq_value *node = s->nodes.items[i];
        int32_t first = s->first_operand.items[i], arity = s->first_operand.items[i + 1] - first;
        OPQ_TRY(reserve(s, (2 + (size_t)arity) * sizeof(int32_t) + TYPE_BYTES_MAX));
        const opq_view *view = opq_snapshot_node_view(s, i);
        int attr_count = view ? 2 : node->attr_count;
        put_word(s, (view ? OPQ_OP_strided : node->op) | attr_count << 16);
        put_word(s, arity);
        put_type(s, &node->type);
        put_words(s, s->operands.items + first, arity);
        OPQ_TRY(add_attrs(s, view ? view->attrs : node->attrs, attr_count));
    }
    OPQ_TRY(reserve(s, (size_t)s->leaves.count * TYPE_BYTES_MAX +
                           (size_t)(s->scalars.count + s->outputs.count) * sizeof(int32_t)));
    for (int i = 0; i < s->leaves.count; i++)
        put_type(s, opq_snapshot_leaf_type(s, i));
    for (int i = 0; i < s->scalars.count; i++)
        put_word(s, s->scalars.items[i]->type.dtype);
    put_words(s, s->outputs.items, s->outputs.count);
    return OPQ_OK;
}

/* ---- its sizes */

typedef struct sizes {
    int64_t *items;
    int count, max;
} sizes;

static unsigned char *take_sizes(sizes *all, unsigned char *at, int32_t count)
{
    size_t bytes = (size_t)count * sizeof *all->items;
    if (all->count + count <= all->max)
        memcpy(all->items + all->count, at, bytes);
    all->count += count;
    memset(at, 0, bytes);
    return at + bytes;
}

static unsigned char *take_type(sizes *all, unsigned char *at)
{
    int32_t rank = opq_key_word(at, 1);
    return take_sizes(all, at + 2 * sizeof(int32_t), rank);
}

static unsigned char *take_node(sizes *all, unsigned char *at)
{
    int32_t attr_count = opq_key_word(at, 0) >> 16, arity = opq_key_word(at, 1);
    at = take_type(all, at + 2 * sizeof(int32_t)) + (size_t)arity * sizeof(int32_t);
    for (int32_t i = 0; i < attr_count; i++) {
        bool ints = opq_attr_kind_of((opq_attr_key)opq_key_word(at, 0)) == OPQ_ATTR_KIND_INTS;
        at = ints ? take_sizes(all, at + 2 * sizeof(int32_t), opq_key_word(at, 1))
                  : (unsigned char *)opq_key_skip_attr(at);
    }
    return at;
}

int opq_key_take_sizes(unsigned char *key, int64_t *out_sizes, int max)
{
    sizes all = {out_sizes, 0, max};
    int32_t nodes = opq_key_word(key, 1), leaves = opq_key_word(key, 2);
    unsigned char *at = key + 5 * sizeof(int32_t);
    for (int32_t i = 0; i < nodes; i++)
        at = take_node(&all, at);
    for (int32_t i = 0; i < leaves; i++)
        at = take_type(&all, at);
    return all.count <= max ? all.count : -1;
}

static void *room_copy(const opq_snapshot *s, const void *from, size_t bytes)
{
    void *made = opq_room_take(s->room, bytes);
    return made ? memcpy(made, from, bytes) : NULL;
}

static void give_sizes(const int64_t **from, int64_t *to, int count)
{
    memcpy(to, *from, (size_t)count * sizeof *to);
    *from += count;
}

static opq_attr *resized_attrs(const opq_snapshot *s, const opq_attr *attrs, int count, const int64_t **from)
{
    opq_attr *made = room_copy(s, attrs, (size_t)count * sizeof *made);
    for (int i = 0; i < count && made; i++) {
        int64_t *ints = NULL;
        if (opq_attr_kind_of((opq_attr_key)made[i].key) != OPQ_ATTR_KIND_INTS)
            continue;
        if ((ints = opq_room_take(s->room, (size_t)made[i].count * sizeof *ints)) == NULL)
            return NULL;
        give_sizes(from, ints, made[i].count);
        made[i].ints = ints;
    }
    return made;
}

static bool resize_node(opq_snapshot *s, int i, const int64_t **from)
{
    opq_value *made = room_copy(s, s->nodes.items[i], sizeof *made);
    opq_view *view = opq_snapshot_node_view(s, i);
    if (made == NULL)
        return false;
    s->nodes.items[i] = made;
    give_sizes(from, made->type.size, made->type.rank);
    opq_attr *attrs = resized_attrs(s, view ? view->attrs : made->attrs, view ? 2 : made->attr_count, from);
    if (attrs == NULL || view == NULL) {
        made->attrs = attrs;
        return attrs != NULL;
    }
    if ((s->view_of_node[i] = view = room_copy(s, view, sizeof *view)))
        memcpy(view->attrs, attrs, sizeof view->attrs);
    return view != NULL;
}

static bool resize_leaf(opq_snapshot *s, int i, const int64_t **from)
{
    opq_view *view = opq_snapshot_leaf_view(s, i);
    opq_value *made = room_copy(s, s->leaves.items[i], sizeof *made);
    if (made == NULL)
        return false;
    s->leaves.items[i] = made;
    if (view == NULL)
        give_sizes(from, made->type.size, made->type.rank);
    else if ((s->view_of_leaf[i] = view = room_copy(s, view, sizeof *view)))
        give_sizes(from, view->leaf.size, view->leaf.rank);
    else
        return false;
    return true;
}

/* Its lists are copies, and so are the values in them. */
opq_status opq_snapshot_resized(const opq_snapshot *s, const int64_t *sizes, opq_snapshot *out_snapshot)
{
    *out_snapshot = *s;
    opq_snapshot *made = out_snapshot;
    size_t nodes = (size_t)s->nodes.count, leaves = (size_t)s->leaves.count;
    made->key = NULL;
    made->key_bytes = made->key_capacity = 0;
    made->nodes.items = room_copy(s, s->nodes.items, nodes * sizeof *made->nodes.items);
    made->leaves.items = room_copy(s, s->leaves.items, leaves * sizeof *made->leaves.items);
    bool good = made->nodes.items && made->leaves.items;
    if (good && s->view_of_node) {
        made->view_of_node = room_copy(s, s->view_of_node, nodes * sizeof *made->view_of_node);
        made->view_of_leaf = room_copy(s, s->view_of_leaf, leaves * sizeof *made->view_of_leaf);
        good = made->view_of_node && made->view_of_leaf;
    }
    for (int i = 0; i < s->nodes.count && good; i++)
        good = resize_node(made, i, &sizes);
    for (int i = 0; i < s->leaves.count && good; i++)
        good = resize_leaf(made, i, &sizes);
    return good ? opq_snapshot_key(made, (unsigned)opq_key_word(s->key, 0))
                : opq_fail(OPQ_NO_MEMORY, "out of memory for a graph of another size");
}

uint32_t opq_snapshot_kind(const opq_snapshot *s)
{
    uint32_t kind = 2166136261u; /* FNV-1 */
    for (int i = 0; i < s->nodes.count; i++)
        kind = kind * 16777619u ^ s->nodes.items[i]->op;
    return kind;
}

uint64_t opq_snapshot_lines(const opq_snapshot *s)
{
    uint64_t hash = 0;
    for (int i = 0; i < s->nodes.count; i++)
        hash = (hash ^ s->nodes.items[i]->line) * 0x9e3779b97f4a7c15ull;
    return hash;
}

/* ---- reading one back */

static const unsigned char *read_type(const unsigned char *at, opq_type *out_type)
{
    *out_type = (opq_type){.dtype = (uint8_t)opq_key_word(at, 0), .rank = (uint8_t)opq_key_word(at, 1)};
    at += 2 * sizeof(int32_t);
    memcpy(out_type->size, at, (size_t)out_type->rank * sizeof *out_type->size);
    return at + (size_t)out_type->rank * sizeof *out_type->size;
}

const unsigned char *opq_key_skip_attr(const unsigned char *at)
{
    opq_attr_key key = (opq_attr_key)opq_key_word(at, 0);
    int32_t count = opq_key_word(at, 1);
    at += 2 * sizeof(int32_t);
    switch (opq_attr_kind_of(key)) {
    case OPQ_ATTR_KIND_INTS: return at + (size_t)count * sizeof(int64_t);
    case OPQ_ATTR_KIND_STR: return at + strlen((const char *)at) + 1;
    case OPQ_ATTR_KIND_INT:
    case OPQ_ATTR_KIND_WORD:
    case OPQ_ATTR_KIND_NUMBER: break;
    }
    return at + sizeof(int64_t);
}

static const unsigned char *read_node(const unsigned char *at, opq_key_node *out_node)
{
    int32_t head = opq_key_word(at, 0);
    *out_node = (opq_key_node){.op = head & 0xffff, .attr_count = head >> 16, .arity = opq_key_word(at, 1)};
    at = read_type(at + 2 * sizeof(int32_t), &out_node->type);
    out_node->operands = at;
    at += (size_t)out_node->arity * sizeof(int32_t);
    out_node->attrs = at;
    for (int32_t i = 0; i < out_node->attr_count; i++)
        at = opq_key_skip_attr(at);
    out_node->attr_bytes = (size_t)(at - out_node->attrs);
    return at;
}

bool opq_key_read(const unsigned char *at, opq_key_view *out_key)
{
    opq_key_view k = {opq_key_word(at, 0),
                      opq_key_word(at, 1),
                      opq_key_word(at, 2),
                      opq_key_word(at, 3),
                      opq_key_word(at, 4),
                      NULL,
                      NULL,
                      NULL,
                      NULL};
    at += 5 * sizeof(int32_t);
    k.nodes = malloc(((size_t)k.node_count + 1) * sizeof *k.nodes);
    k.leaves = malloc(((size_t)k.leaf_count + 1) * sizeof *k.leaves);
    if (k.nodes == NULL || k.leaves == NULL) {
        free(k.nodes);
        free(k.leaves);
        return false;
    }
    for (int32_t i = 0; i < k.node_count; i++)
        at = read_node(at, &k.nodes[i]);
    for (int32_t i = 0; i < k.leaf_count; i++)
        at = read_type(at, &k.leaves[i]);
    k.scalars = at;
    k.outputs = at + (size_t)k.scalar_count * sizeof(int32_t);
    *out_key = k;
    return true;
}

void opq_key_drop(opq_key_view *key)
{
    free(key->nodes);
    free(key->leaves);
    *key = (opq_key_view){0};
}
