/* What an index out of range is told as, by whoever finds it: the words and the type of error are PyTorch's. */
#ifndef OPQ_GRAPH_INDEX_ERROR_H
#define OPQ_GRAPH_INDEX_ERROR_H

#include "graph/graph.h"

typedef enum opq_index_kind { OPQ_INDEX_place, OPQ_INDEX_target, OPQ_INDEX_class } opq_index_kind;

typedef struct opq_index_words {
    opq_type type; /* of what is indexed */
    int axis;
    opq_index_kind kind;
    bool wraps;            /* an index below 0 has had the extent added */
    const opq_attr *sizes; /* of the dims that the index joins, or NULL; the node's */
    bool by_position; /* gather, scatter and the additions at an index, where PyTorch raises RuntimeError and not IndexError */
} opq_index_words;

opq_index_words opq_index_words_of(const opq_node *node, const opq_type *indexed);
/* "index_select (recorded at train.py:3)": of a check of values, too. */
void opq_index_subject(opq_text *text, const opq_node *node);
opq_status opq_index_fail(const opq_index_words *words, const char *subject, int64_t index, int64_t extent);

#endif
