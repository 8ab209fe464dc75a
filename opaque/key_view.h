/* A canonical key (snapshot_key.c), read back: the graph that it stands for. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_KEY_VIEW_H
#define OPAQUE_OPAQUE_KEY_VIEW_H

#include "opaque/opaque.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct opq_key_node {
    int32_t op, attr_count, arity;
    opq_type type;
    const unsigned char *operands, *attrs;
    size_t attr_bytes;
} opq_key_node;

typedef struct opq_key_view {
    int32_t salt, node_count, leaf_count, scalar_count, output_count;
    opq_key_node *nodes;
    opq_type *leaves;
    const unsigned char *scalars, *outputs; /* words: dtypes; numbers of nodes */
} opq_key_view;

static inline int32_t opq_key_word(const unsigned char *words, int32_t i)
{
    int32_t word;
    memcpy(&word, words + (size_t)i * sizeof word, sizeof word);
    return word;
}

/* From one attribute of a node to the next. */
const unsigned char *opq_key_skip_attr(const unsigned char *at);
/* The view points into the key. False: no memory. */
bool opq_key_read(const unsigned char *key, opq_key_view *out_key);
void opq_key_drop(opq_key_view *key);

#endif
