#include "graph/index_error.h"

#include <string.h>

opq_index_words opq_index_words_of(const opq_node *node, const opq_type *indexed)
{
    const opq_attr *key = opq_node_attr(node, OPQ_ATTR_key);
    const char *name = key ? key->str : "aten::scatter";
    opq_index_words words = {.type = *indexed, .axis = (int)opq_node_int(node, OPQ_ATTR_axis, 0)};
    words.kind = strncmp(name, "aten::nll_loss", 14) == 0 ? OPQ_INDEX_target
                 : strcmp(name, "aten::one_hot") == 0     ? OPQ_INDEX_class
                                                          : OPQ_INDEX_place;
    words.wraps = strcmp(name, "aten::index") == 0 || strcmp(name, "aten::_index_put_impl") == 0 ||
                  strcmp(name, "aten::index_fill") == 0;
    words.sizes = opq_node_attr(node, OPQ_ATTR_sizes);
    /* and not one index for whole slices */
    bool by_element = strncmp(name, "aten::scatter", 13) == 0 || words.kind == OPQ_INDEX_class;
    words.by_position = by_element && (node->op == OPQ_OP_gather || opq_node_class(node) == OPQ_CLASS_SCATTER ||
                                       opq_node_class(node) == OPQ_CLASS_ROUTINE);
    return words;
}

void opq_index_subject(opq_text *text, const opq_node *node)
{
    const opq_attr *key = opq_node_attr(node, OPQ_ATTR_key);
    const char *name = key ? key->str : opq_node_info(node)->name,
               *end = strstr(name, ": "); /* "op: what does not hold" */
    opq_text_add(text, "%.*s%s%s%s", end ? (int)(end - name) : (int)strlen(name), name,
                 node->line ? " (recorded at " : "", node->line ? node->line : "", node->line ? ")" : "");
}

opq_status opq_index_fail(const opq_index_words *words, const char *subject, int64_t index, int64_t extent)
{
    enum { DIMS = 16 }; /* of an index that joins some: docs/ir.md, `sizes` */
    int64_t dim = index & (DIMS - 1);
    if (words->kind == OPQ_INDEX_target)
        return opq_fail(OPQ_OUT_OF_RANGE, "%s: Target %lld is out of bounds.", subject, (long long)index);
    if (words->kind == OPQ_INDEX_class)
        return opq_fail(OPQ_INVALID, "%s: Class values must be %s.", subject,
                        index < 0 ? "non-negative" : "smaller than num_classes");
    bool joins = words->sizes && index < 0 && dim < words->sizes->count;
    if (joins) {
        extent = words->sizes->ints[dim];
        index = (int64_t)((uint64_t)index << 1) >> 5; /* the sign bit goes, and the dim */
    }
    if (words->wraps && index < 0)
        index = (int64_t)((uint64_t)index - (uint64_t)extent);
    if (joins)
        return opq_fail(OPQ_OUT_OF_RANGE, "%s: index %lld is out of bounds for dimension %lld with size %lld", subject,
                        (long long)index, (long long)dim, (long long)extent);
    return opq_fail(words->by_position ? OPQ_INVALID : OPQ_OUT_OF_RANGE,
                    "%s: index %lld is out of bounds for dimension %d with size %lld of %s%s", subject,
                    (long long)index, words->axis, (long long)extent, opq_dtype_name((opq_dtype)words->type.dtype),
                    opq_shape_name(&words->type).text);
}
