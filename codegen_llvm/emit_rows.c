/* Windows: a vector of some neighbouring rows at once. What tells which of a vector's elements are there, and the weights, are the same for
 * all of them.
 *
 *   unit        one index of the parallel loops around the rows, and OPQ_ROW_BLOCK rows
 *     rows      4 at a time, then 2, then 1: copies
 *       vector  under a mask
 */
#include "codegen_llvm/nest.h"

#include <string.h>

/* `count` rows from `first` on. */
static void emit_copies(opq_nest *n, int rows, int strip, int count, LLVMValueRef first)
{
    int variable = opq_nest_stmt(n, rows)->variable, row = n->prefetch_row, turns = n->prefetch_rows;
    size_t values = (size_t)n->k->stmt_count + 1;
    opq_places places = opq_nest_places(n), apart = places;
    n->strip = 1;
    n->rows = variable;
    for (int copy = 0; copy < count; copy++) {
        opq_nest_return(n, &places);
        n->index[variable] = LLVMBuildAdd(n->e->builder, first, opq_i64(n->e, copy), "");
        opq_nest_use_copy(n, 0);
        opq_nest_bind(n, 1u << variable);
        memcpy(apart.address[copy], n->addresses[0], sizeof apart.address[copy]);
        if (copy > 0)
            memcpy(n->values + (size_t)copy * values, n->values, values * sizeof *n->values);
    }
    opq_nest_return(n, &apart);
    n->strip = count;
    n->prefetch_row = variable;
    n->prefetch_rows = count;
    opq_nest_run(n, rows + 1, strip);
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[opq_nest_stmt(n, strip)->variable], n->e->lanes, NULL, 0);
    opq_nest_mask(n, LLVMBuildSub(n->e->builder, loop.to, loop.index, ""));
    opq_emit_inside(n, strip, loop.index);
    opq_nest_mask(n, NULL);
    opq_loop_end(n, &loop, NULL);
    n->strip = 1;
    n->rows = -1;
    n->prefetch_row = row;
    n->prefetch_rows = turns;
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
}

void opq_emit_rows(opq_nest *n, int rows, int strip, int width, int by, LLVMValueRef from, LLVMValueRef to)
{
    LLVMBuilderRef b = n->e->builder;
    for (; width > 0; width /= by > 1 ? by : 2) {
        LLVMValueRef whole = LLVMBuildAnd(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, -(int64_t)width), "");
        whole = LLVMBuildAdd(b, from, whole, "");
        opq_loop loop;
        opq_loop_begin(n, &loop, from, whole, width, NULL, 0);
        emit_copies(n, rows, strip, width, loop.index);
        opq_loop_end(n, &loop, NULL);
        from = whole;
    }
}
