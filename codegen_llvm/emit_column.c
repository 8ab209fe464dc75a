/* Reducing by the rule `column`: the vector axis is kept, and this runs for a strip of it, whose accumulators stay in registers.
 *
 *   total                             one per column
 *     block   of 512 rows             a row is one index of the reduced loops, in row-major order
 *       group   of 8 rows, then what is left of the last one
 *
 * Each level starts from the identity and its result goes to the next outer one. argmax and argmin are kept along, in order.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

enum { UNROLL_COST_MAX = 64 };

_Static_assert(2 * OPQ_REDUCTION_MAX * OPQ_STRIP_MAX + OPQ_LOOP_MAX <= OPQ_CARRIED_MAX,
               "what a loop over rows carries");

/* Carried values: trees (a vector per reduction and copy), then args (value and index each), then the rows' odometer. */
typedef struct part {
    opq_nest *n;
    int width;
    opq_chain chain;
    int leaf, cost; /* the innermost loop; of its body */
    opq_odometer odometer;
    opq_reduction reductions[OPQ_REDUCTION_MAX];
    int count, trees, args;
} part;

static int carried_count(const part *p) { return p->trees + p->args + p->odometer.rank; }

static void accumulate(part *p, int copy, LLVMValueRef row, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMValueRef *tree = carried + copy, *arg = carried + p->trees + 2 * copy;
    for (int r = 0; r < p->count; r++) {
        const opq_reduction *red = &p->reductions[r];
        LLVMValueRef x = opq_reduction_operand(n, red);
        if (red->is_arg) {
            LLVMValueRef better = opq_fold_better(n->e, red->fold, red->dtype, arg[0], x);
            arg[0] = opq_select(n->e, better, x, arg[0]);
            arg[1] = opq_select(n->e, better, opq_splat(n->e, row), arg[1]);
            arg += 2 * p->width;
            continue;
        }
        tree[0] = opq_fold_combine(n->e, red->fold, red->dtype, tree[0], x);
        tree += p->width;
    }
}

/* One index of the reduced loops; moves the odometer on. */
static void emit_row(part *p, LLVMValueRef row, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMValueRef *odometer = carried + p->trees + p->args;
    opq_places places = opq_nest_places(n);
    opq_nest_enter(n, &p->odometer, &p->chain, odometer);
    for (int copy = 0; copy < p->width; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_run_one(n, p->leaf + 1, opq_nest_stmt(n, p->leaf)->end);
        accumulate(p, copy, row, carried);
    }
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
    opq_odometer_next(n, &p->odometer, odometer);
}

static void start_trees(const part *p, LLVMValueRef *trees)
{
    for (int r = 0; r < p->count; r++)
        for (int copy = 0; copy < p->width && !p->reductions[r].is_arg; copy++)
            *trees++ = opq_fold_identity(p->n->e, p->reductions[r].fold, p->reductions[r].dtype);
}

/* outer tree = outer tree with inner; everything else comes from inner. */
static void finish_level(const part *p, LLVMValueRef *outer, const LLVMValueRef *inner)
{
    int at = 0;
    for (int r = 0; r < p->count; r++)
        for (int copy = 0; copy < p->width && !p->reductions[r].is_arg; copy++, at++)
            outer[at] = opq_fold_combine(p->n->e, p->reductions[r].fold, p->reductions[r].dtype, outer[at], inner[at]);
    memcpy(outer + p->trees, inner + p->trees, (size_t)(p->args + p->odometer.rank) * sizeof *outer);
}

static void start_level(const part *p, LLVMValueRef *inner, const LLVMValueRef *outer)
{
    memcpy(inner, outer, (size_t)carried_count(p) * sizeof *inner);
    start_trees(p, inner);
}

static void emit_row_loop(part *p, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried)
{
    opq_loop loop;
    opq_loop_begin(p->n, &loop, from, to, 1, carried, carried_count(p));
    emit_row(p, loop.index, carried);
    opq_loop_end(p->n, &loop, carried);
}

/* Rows [from, from + 8), which are all there. */
static void emit_group(part *p, LLVMValueRef from, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    bool small = p->cost * p->width * OPQ_COLUMN_GROUP <= UNROLL_COST_MAX;
    if (!small) {
        emit_row_loop(p, from, LLVMBuildAdd(b, from, opq_i64(n->e, OPQ_COLUMN_GROUP), ""), carried);
        return;
    }
    for (int k = 0; k < OPQ_COLUMN_GROUP; k++)
        emit_row(p, LLVMBuildAdd(b, from, opq_i64(n->e, k), ""), carried);
}

static void emit_block(part *p, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef group[OPQ_CARRIED_MAX];
    LLVMValueRef rows = LLVMBuildSub(b, to, from, "");
    LLVMValueRef whole = LLVMBuildAdd(b, from, LLVMBuildAnd(b, rows, opq_i64(n->e, -OPQ_COLUMN_GROUP), ""), "");
    opq_loop loop;
    opq_loop_begin(n, &loop, from, whole, OPQ_COLUMN_GROUP, carried, carried_count(p));
    start_level(p, group, carried);
    n->prefetch = true;
    emit_group(p, loop.index, group);
    n->prefetch = false;
    finish_level(p, carried, group);
    opq_loop_end(n, &loop, carried);

    start_level(p, group, carried);
    emit_row_loop(p, whole, to, group);
    finish_level(p, carried, group);
}

static void emit_rows(part *p, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef block[OPQ_CARRIED_MAX], count = opq_odometer_count(n, &p->odometer);
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), count, OPQ_COLUMN_BLOCK, carried, carried_count(p));
    LLVMValueRef end = LLVMBuildAdd(b, loop.index, opq_i64(n->e, OPQ_COLUMN_BLOCK), "");
    end = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, end, count, ""), end, count, "");
    start_level(p, block, carried);
    emit_block(p, loop.index, end, block);
    finish_level(p, carried, block);
    opq_loop_end(n, &loop, carried);
}

static void start(const part *p, LLVMValueRef *carried)
{
    opq_emitter *e = p->n->e;
    start_trees(p, carried);
    LLVMValueRef *arg = carried + p->trees;
    for (int r = 0; r < p->count; r++)
        for (int copy = 0; copy < p->width && p->reductions[r].is_arg; copy++) {
            *arg++ = opq_fold_identity(e, p->reductions[r].fold, p->reductions[r].dtype);
            *arg++ = opq_splat_int(e, opq_vector_type(e, OPQ_i64), 0);
        }
    for (int i = 0; i < p->odometer.rank; i++)
        carried[p->trees + p->args + i] = opq_i64(e, 0);
}

static void keep_results(part *p, const LLVMValueRef *carried)
{
    const LLVMValueRef *tree = carried, *arg = carried + p->trees;
    for (int r = 0; r < p->count; r++)
        for (int copy = 0; copy < p->width; copy++) {
            opq_nest_use_copy(p->n, copy);
            if (p->reductions[r].is_arg)
                opq_nest_define(p->n, p->reductions[r].stmt, arg[1]), arg += 2;
            else
                opq_nest_define(p->n, p->reductions[r].stmt, *tree++);
        }
    opq_nest_use_copy(p->n, 0);
}

void opq_emit_column(opq_nest *n, int loop)
{
    part p = {.n = n, .width = n->strip, .chain = opq_nest_chain(n->k, loop)};
    LLVMValueRef carried[OPQ_CARRIED_MAX];
    int row = n->prefetch_row, end;
    p.leaf = p.chain.loop[p.chain.count - 1];
    end = opq_nest_stmt(n, p.leaf)->end;
    p.cost = opq_nest_cost(n, n->vector, p.leaf + 1, end);
    p.odometer = opq_nest_odometer(n, &p.chain);
    p.count = opq_nest_reductions(n, p.leaf + 1, end, p.reductions);
    for (int r = 0; r < p.count; r++) {
        p.trees += p.reductions[r].is_arg ? 0 : p.width;
        p.args += p.reductions[r].is_arg ? 2 * p.width : 0;
    }
    n->prefetch_row = opq_nest_stmt(n, p.leaf)->variable;
    start(&p, carried);
    emit_rows(&p, carried);
    n->prefetch_row = row;
    keep_results(&p, carried);
}
