/* Attributes: names and kinds from OPQ_ATTRS, and which keys a row carries. */
#include "graph/recurrent.h"

#include <string.h>

static const struct {
    const char *name;
    opq_attr_kind kind;
} attrs_table[OPQ_ATTR_COUNT] = {
#define X(name, kind) [OPQ_ATTR_##name] = {#name, OPQ_ATTR_KIND_##kind},
    OPQ_ATTRS(X)
#undef X
};

const char *opq_attr_name(opq_attr_key key) { return attrs_table[key].name; }

opq_attr_kind opq_attr_kind_of(opq_attr_key key) { return attrs_table[key].kind; }

bool opq_attr_key_find(const char *name, size_t length, opq_attr_key *out_key)
{
    for (int k = 0; k < OPQ_ATTR_COUNT; k++)
        if (strlen(attrs_table[k].name) == length && !memcmp(attrs_table[k].name, name, length)) {
            *out_key = (opq_attr_key)k;
            return true;
        }
    return false;
}

const char *opq_tree_name(opq_tree tree) { return tree == OPQ_TREE_lanes ? "lanes" : "column"; }

const opq_attr *opq_attr_find(const opq_attr *attrs, int count, opq_attr_key key)
{
    for (int i = 0; i < count; i++)
        if (attrs[i].key == key)
            return &attrs[i];
    return NULL;
}

bool opq_node_divides(const opq_node *node)
{
    opq_dtype_kind kind = opq_dtype_kind_of((opq_dtype)node->type.dtype);
    return opq_node_class(node) == OPQ_CLASS_EWISE && (opq_node_info(node)->flags & OPQ_FLAG_CHECKED) &&
           (kind == OPQ_KIND_INT || kind == OPQ_KIND_UINT);
}

bool opq_node_reduces(const opq_node *node, int axis)
{
    const opq_attr *axes = opq_node_attr(node, OPQ_ATTR_axes);
    for (int i = 0; axes && i < axes->count; i++)
        if (axes->ints[i] == axis)
            return true;
    return false;
}

int64_t opq_node_run(const opq_node *node, const opq_type *operand)
{
    int64_t run = 1, all = 1;
    bool inner = true;
    for (int d = operand->rank - 1; d >= 0; d--) {
        bool reduced = opq_node_reduces(node, d);
        inner = inner && (reduced || operand->size[d] == 1);
        run *= inner ? operand->size[d] : 1;
        all *= reduced ? operand->size[d] : 1;
    }
    return all == 0 ? 0 : run;
}

#define KEY(name) (1u << OPQ_ATTR_##name)

static unsigned view_keys(opq_op op)
{
    switch ((int)op) {
    case OPQ_OP_permute: return KEY(dims);
    case OPQ_OP_slice: return KEY(start) | KEY(step);
    case OPQ_OP_strided: return KEY(offset) | KEY(strides);
    case OPQ_OP_pad: return KEY(start) | KEY(value);
    }
    return 0; /* reshape, expand: the type says all */
}

opq_attr_set opq_op_attrs(opq_op op)
{
    const opq_op_info *info = opq_op_info_of(op);
    opq_attr_set set = {0, 0};
    switch (info->class_) {
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR: set.required = op == OPQ_OP_undefined ? 0 : KEY(value); break;
    case OPQ_CLASS_IOTA:
    case OPQ_CLASS_SCAN:
    case OPQ_CLASS_CONCAT: set.required = KEY(axis); break;
    case OPQ_CLASS_INDEX:
    case OPQ_CLASS_SCATTER:
        set.required = KEY(axis);
        set.optional = KEY(key) | KEY(sizes); /* for the words of an error */
        break;
    case OPQ_CLASS_VIEW: set.required = view_keys(op); break;
    case OPQ_CLASS_UPDATE: set.required = KEY(offset) | KEY(sizes) | KEY(strides); break;
    case OPQ_CLASS_REDUCE: set.required = KEY(axes) | KEY(tree); break;
    case OPQ_CLASS_COMPOSITE:
        set.required = info->expand ? KEY(axes) | KEY(tree) : 0;
        set.optional = opq_op_is_recurrent(op) ? KEY(pairs) | KEY(reverse) : 0;
        break;
    case OPQ_CLASS_MATMUL: set.optional = KEY(pairs) | KEY(transpose_a) | KEY(transpose_b); break;
    case OPQ_CLASS_ROUTINE:
        if (op == OPQ_OP_grouped_matmul)
            set.optional = KEY(transpose_a) | KEY(transpose_b) | KEY(key);
        else
            set = (opq_attr_set){.required = KEY(axis), .optional = KEY(key) | (op == OPQ_OP_index_set ? KEY(sizes) : 0)};
        break;
    case OPQ_CLASS_EXTERN:
        set.required = info->arity < 0 ? KEY(key) : KEY(result);
        set.optional = info->arity < 0 ? KEY(result) : 0;
        break;
    case OPQ_CLASS_EWISE: set.optional = info->flags & OPQ_FLAG_CHECKED ? KEY(key) : 0; break;
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_RANDOM:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_COUNT: break;
    }
    return set;
}
