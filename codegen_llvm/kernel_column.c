/* column kernels: the vector axis is kept, the loops just outside it are reduced.
 *
 * A unit is a strip of 64 elements of the last loop for one index of the outer kept loops. A strip is cut in parts of
 * `width` vectors, whose accumulators stay in registers, and masked parts of one vector at its end. Every part runs the
 * sweeps one after another:
 *
 *   total                             one per column
 *     block   of 512 rows             a row is one index of the reduced loops, in row-major order
 *       group   of 8 rows, then what is left of the last one
 *
 * Each level starts from the identity and its result goes to the next outer one. argmax and argmin are kept along, in
 * order.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

enum { WIDTH_MAX = 4, UNROLL_COST_MAX = 64 };

_Static_assert(2 * OPQ_REDUCTION_MAX * WIDTH_MAX + OPQ_LOOP_MAX <= OPQ_CARRIED_MAX, "what a loop over rows carries");

typedef struct reduction {
    int instr;
    opq_fold fold;
    opq_dtype dtype;
    bool is_arg;
} reduction;

/* Carried values: trees (a vector per reduction and copy), then args (value and index each), then the rows' odometer.
 */
typedef struct part {
    opq_nest *n;
    int width, sweep;
    unsigned reduced;
    opq_odometer odometer;
    bool needed[OPQ_BODY_MAX];
    reduction reductions[OPQ_REDUCTION_MAX];
    int count, trees, args;
    LLVMValueRef strip[WIDTH_MAX][OPQ_BODY_MAX]; /* values of level strip per copy */
} part;

static int carried_count(const part *p) { return p->trees + p->args + p->odometer.rank; }

/* ---- values of level strip
 * ------------------------------------------------------------------------------------------- */

static void use_copy(part *p, int copy)
{
    opq_nest *n = p->n;
    n->copy = copy;
    for (int i = 0; i < n->kernel->instr_count; i++)
        if (n->level[i] == OPQ_LEVEL_strip && p->strip[copy][i])
            n->value[i] = p->strip[copy][i];
}

static void emit_strip_values(part *p)
{
    opq_nest *n = p->n;
    for (int copy = 0; copy < p->width; copy++) {
        use_copy(p, copy);
        opq_nest_emit(n, OPQ_LEVEL_strip, p->sweep, NULL);
        for (int i = 0; i < n->kernel->instr_count; i++)
            if (n->level[i] == OPQ_LEVEL_strip && opq_nest_instr(n, i)->sweep == p->sweep &&
                !opq_instr_reduces(opq_nest_instr(n, i)))
                p->strip[copy][i] = n->value[i];
    }
    n->copy = 0;
}

/* ---- rows
 * ------------------------------------------------------------------------------------------------------------ */

static void accumulate(part *p, int copy, LLVMValueRef row, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMValueRef *tree = carried + copy, *arg = carried + p->trees + 2 * copy;
    for (int r = 0; r < p->count; r++) {
        const reduction *red = &p->reductions[r];
        int16_t from = opq_nest_instr(n, red->instr)->operand[0];
        const opq_instr *operand = opq_nest_instr(n, from);
        LLVMValueRef x = n->value[from];
        if (red->is_arg) {
            LLVMValueRef better = opq_fold_better(n->e, red->fold, red->dtype, arg[0], x);
            arg[0] = opq_select(n->e, better, x, arg[0]);
            arg[1] = opq_select(n->e, better, opq_splat(n->e, row), arg[1]);
            arg += 2 * p->width;
            continue;
        }
        x = opq_emit_cast(n->e, (opq_dtype)operand->dtype, red->dtype, x);
        tree[0] = opq_fold_combine(n->e, red->fold, red->dtype, tree[0], x);
        tree += p->width;
    }
}

/* One index of the reduced loops; moves the odometer on. */
static void emit_row(part *p, LLVMValueRef row, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMValueRef address[OPQ_ACCESS_MAX], *odometer = carried + p->trees + p->args;
    memcpy(address, n->address, sizeof address);
    opq_nest_enter(n, p->reduced, odometer);
    opq_nest_bind(n, p->reduced);
    opq_nest_emit(n, OPQ_LEVEL_middle, p->sweep, p->needed);
    for (int copy = 0; copy < p->width; copy++) {
        use_copy(p, copy);
        opq_nest_emit(n, OPQ_LEVEL_inner, p->sweep, p->needed);
        accumulate(p, copy, row, carried);
    }
    n->copy = 0;
    memcpy(n->address, address, sizeof address);
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
    bool small = opq_nest_cost(n, p->needed) * p->width * OPQ_COLUMN_GROUP <= UNROLL_COST_MAX;
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

/* ---- sweeps
 * ---------------------------------------------------------------------------------------------------------- */

static bool plan_sweep(part *p, int sweep)
{
    opq_nest *n = p->n;
    int instrs[OPQ_BODY_MAX];
    p->sweep = sweep;
    p->trees = p->args = 0;
    p->count = opq_nest_reductions(n, sweep, instrs);
    for (int r = 0; r < p->count; r++) {
        opq_fold fold = opq_nest_fold(n, instrs[r]);
        p->reductions[r] = (reduction){
            .instr = instrs[r], .fold = fold, .dtype = opq_nest_fold_dtype(n, instrs[r]), .is_arg = opq_fold_is_arg(fold)};
        p->trees += opq_fold_is_arg(fold) ? 0 : p->width;
        p->args += opq_fold_is_arg(fold) ? 2 * p->width : 0;
    }
    return opq_nest_needed(n, sweep, p->needed);
}

static void start_sweep(const part *p, LLVMValueRef *carried)
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
            if (p->reductions[r].is_arg)
                p->strip[copy][p->reductions[r].instr] = arg[1], arg += 2;
            else
                p->strip[copy][p->reductions[r].instr] = *tree++;
        }
}

static void emit_part(opq_nest *n, int width, LLVMValueRef first)
{
    int vector = opq_nest_vector(n), sweeps = opq_nest_sweeps(n);
    part p = {.n = n, .width = width, .reduced = opq_kernel_reduced_mask(n->kernel)};
    p.odometer = opq_nest_odometer(n, p.reduced);
    LLVMValueRef address[OPQ_ACCESS_MAX], carried[OPQ_CARRIED_MAX];
    memcpy(address, n->address, sizeof address);
    n->index[vector] = first;
    opq_nest_bind(n, 1u << vector);
    n->vector_bound = true;
    for (int s = 0; s < sweeps; s++) {
        bool runs = plan_sweep(&p, s);
        emit_strip_values(&p);
        if (!runs)
            continue;
        start_sweep(&p, carried);
        emit_rows(&p, carried);
        keep_results(&p, carried);
    }
    n->vector_bound = false;
    memcpy(n->address, address, sizeof address);
}

/* ---- the kernel
 * ------------------------------------------------------------------------------------------------------ */

/* Accumulators of three levels and the operands are to fit the registers. */
static int width_for(opq_nest *n)
{
    bool needed[OPQ_BODY_MAX];
    int instrs[OPQ_BODY_MAX], width = WIDTH_MAX;
    for (int s = 0; s < opq_nest_sweeps(n); s++) {
        if (!opq_nest_needed(n, s, needed))
            continue;
        int cost = opq_nest_cost(n, needed), reductions = opq_nest_reductions(n, s, instrs);
        while (width > 1 && (cost * width > 24 || reductions * width > 6))
            width /= 2;
    }
    return width;
}

void opq_emit_column(opq_nest *n)
{
    LLVMBuilderRef b = n->e->builder;
    int vector = opq_nest_vector(n), width = width_for(n);
    unsigned outer = ((1u << vector) - 1) & ~opq_kernel_reduced_mask(n->kernel);
    opq_nest_emit(n, OPQ_LEVEL_entry, 0, NULL);
    n->prefetch_rows = opq_i64(n->e, OPQ_COLUMN_GROUP);

    opq_odometer odometer = opq_nest_odometer(n, outer);
    LLVMValueRef strip = opq_i64(n->e, OPQ_LANES),
                 rounded = LLVMBuildAdd(b, n->extent[vector], opq_i64(n->e, OPQ_LANES - 1), "");
    odometer.extent[odometer.rank++] = LLVMBuildUDiv(b, rounded, strip, "");
    opq_units units;
    opq_units_begin(n, &units, &odometer, n->begin, n->end);
    LLVMValueRef address[OPQ_ACCESS_MAX];
    memcpy(address, n->address, sizeof address);
    opq_nest_enter(n, outer, units.index);
    opq_nest_bind(n, outer);
    opq_nest_emit(n, OPQ_LEVEL_outer, 0, NULL);

    LLVMValueRef from = LLVMBuildMul(b, units.index[odometer.rank - 1], strip, ""), to = LLVMBuildAdd(b, from, strip, "");
    to = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, to, n->extent[vector], ""), to, n->extent[vector], "");
    int64_t elements = (int64_t)width * n->e->lanes;
    LLVMValueRef whole = LLVMBuildAnd(b, LLVMBuildSub(b, to, from, ""), opq_i64(n->e, -elements), "");
    whole = LLVMBuildAdd(b, from, whole, "");
    opq_loop loop;
    opq_loop_begin(n, &loop, from, whole, elements, NULL, 0);
    emit_part(n, width, loop.index);
    opq_loop_end(n, &loop, NULL);
    opq_loop_begin(n, &loop, whole, to, n->e->lanes, NULL, 0);
    opq_nest_mask(n, LLVMBuildSub(b, to, loop.index, ""));
    emit_part(n, 1, loop.index);
    opq_nest_mask(n, NULL);
    opq_loop_end(n, &loop, NULL);

    memcpy(n->address, address, sizeof address);
    opq_units_end(n, &units);
}
