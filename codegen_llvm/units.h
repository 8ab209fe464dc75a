/* Which loops of a tree threads divide, and in how many units: read off the tree, by who emits it and by who launches it. */
#ifndef OPAQUE_CODEGEN_UNITS_H
#define OPAQUE_CODEGEN_UNITS_H

#include "fusion/loop.h"

/* Loops of one role, each the last thing in the one around it. */
typedef struct opq_chain {
    int count, loop[OPQ_LOOP_MAX]; /* statements */
} opq_chain;
opq_chain opq_nest_chain(const opq_loops *loops, int loop);

/* The loop with which [from, to) ends, if it is the only one and makes strips; -1. */
int opq_strip_of(const opq_loops *loops, int from, int to);

enum { OPQ_ROW_BLOCK = 8 };
/* Is the loop `strip`, the only one in the last of the chain's loops, that of a window? */
bool opq_rows_fit(const opq_loops *loops, const opq_chain *chain, int strip);

#endif
