/* A tree made of another: statements are copied in program order, and operands follow what theirs became. Internal to fusion/.
 *
 * Who rewrites says what becomes of each statement, and gives a copy what is not in the tree alone: the variable of a loop, the access, the
 * number of an argument. What is to stand there besides, or instead, is pushed.
 */
#ifndef OPAQUE_FUSION_LOOP_REWRITE_H
#define OPAQUE_FUSION_LOOP_REWRITE_H

#include "fusion/loop.h"

typedef enum opq_rewrite {
    OPQ_REWRITE_copy,
    OPQ_REWRITE_body,  /* of a loop its body alone */
    OPQ_REWRITE_drop,  /* nor its body; who pushed something in its place has noted that in `stmt` */
    OPQ_REWRITE_failed /* ends it */
} opq_rewrite;

typedef struct opq_rewriter {
    const opq_loops *from;
    opq_loops *to; /* its statements have room */
    int16_t *stmt; /* per statement of `from`: in `to` */
    void *data;
    opq_rewrite (*choose)(void *data, int stmt);        /* NULL: each is copied */
    void (*finish)(void *data, int stmt, opq_stmt *to); /* operands, and a local's number in keep and kept, are there */
} opq_rewriter;

/* Statements [begin, end), whole loops. False: one failed. */
bool opq_loops_rewrite(const opq_rewriter *rewriter, int begin, int end);
/* Without operands, an access or a node. */
opq_stmt opq_stmt_make(int op);
/* Appends a statement; gives its number. */
int16_t opq_loops_push(opq_loops *to, const opq_stmt *stmt);

#endif
