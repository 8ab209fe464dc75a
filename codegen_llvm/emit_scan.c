/* Scans: what is held goes from turn to turn in registers.
 *
 *   in a strip    lanes are rows, or columns: a turn is one combination of vectors
 *   outside       lanes are turns of one row: their vector goes through memory, and one lane after the other is combined
 */
#include "codegen_llvm/nest.h"

#include <string.h>

typedef struct scan {
    int stmt;
    opq_op combine;
    opq_fold fold;
    opq_dtype held, operand, result;
} scan;

typedef struct part {
    opq_nest *n;
    int loop, width, count; /* of scans; carried: [width][count] */
    scan scans[OPQ_REDUCTION_MAX];
    LLVMValueRef lanes[2][OPQ_REDUCTION_MAX]; /* of a row: memory for a vector of operands, and of what is held */
} part;

int opq_nest_scans(const opq_nest *n, int from, int to)
{
    int count = 0;
    for (int i = from; i < to; i++)
        count += opq_op_scans(opq_nest_stmt(n, i)->op);
    return count;
}

int opq_scan_width(const opq_nest *n, int strip, int loop)
{
    int end = opq_nest_stmt(n, loop)->end, scans = opq_nest_scans(n, loop + 1, end), width = OPQ_STRIP_MAX;
    for (int i = loop + 1; i < end && scans > 0; i++)
        if (opq_stmt_tiles(n->k, i, opq_nest_stmt(n, strip)->variable, opq_nest_stmt(n, loop)->variable))
            return n->e->lanes > 8 ? 2 : 1;
    while (width > 1 && scans * width > OPQ_STRIP_MAX)
        width /= 2;
    return width;
}

static void plan_part(part *p)
{
    opq_nest *n = p->n;
    for (int i = p->loop + 1; i < opq_nest_stmt(n, p->loop)->end; i++) {
        const opq_stmt *stmt = opq_nest_stmt(n, i);
        if (!opq_op_scans(stmt->op))
            continue;
        if (p->count == OPQ_REDUCTION_MAX) {
            opq_nest_fail(n, opq_fail(OPQ_UNSUPPORTED, "kernel %s: too many scans", n->k->name));
            return;
        }
        const opq_lowering *lowering = opq_op_lowering((opq_op)stmt->op);
        opq_dtype result = (opq_dtype)stmt->dtype;
        p->scans[p->count++] = (scan){.stmt = i,
                                      .combine = lowering->combine,
                                      .fold = lowering->fold,
                                      .held = (opq_dtype)stmt->value.i,
                                      .operand = (opq_dtype)opq_nest_stmt(n, stmt->operand[0])->dtype,
                                      .result = result};
    }
}

static void start(const part *p, LLVMValueRef *carried)
{
    for (int copy = 0; copy < p->width; copy++)
        for (int s = 0; s < p->count; s++)
            carried[copy * p->count + s] = opq_fold_identity(p->n->e, p->scans[s].fold, p->scans[s].held);
}

static LLVMValueRef combine(const part *p, const scan *s, LLVMValueRef held, LLVMValueRef x)
{
    LLVMValueRef value = held;
    opq_nest_fail(p->n, opq_emit_ewise(p->n->e, s->combine, s->held, (LLVMValueRef[]){held, x}, &value));
    return value;
}

/* The body for the current copy: `step` makes what each scan gives of its operand. */
static void run_body(part *p, LLVMValueRef *held, LLVMValueRef (*step)(part *, int, LLVMValueRef, LLVMValueRef *))
{
    opq_nest *n = p->n;
    int from = p->loop + 1;
    for (int i = 0; i < p->count; i++) {
        const scan *s = &p->scans[i];
        opq_nest_run_one(n, from, s->stmt);
        LLVMValueRef x =
            opq_emit_cast(n->e, s->operand, s->held, opq_nest_value(n, opq_nest_stmt(n, s->stmt)->operand[0]));
        opq_nest_define(n, s->stmt, opq_emit_cast(n->e, s->held, s->result, step(p, i, x, &held[i])));
        from = s->stmt + 1;
    }
    opq_nest_run_one(n, from, opq_nest_stmt(n, p->loop)->end);
}

/* ---- in a strip */

static LLVMValueRef step_lanes(part *p, int i, LLVMValueRef x, LLVMValueRef *held)
{
    *held = combine(p, &p->scans[i], *held, x);
    return *held;
}

/* `tiles` begin at turn `from`; NULL: every turn from memory. */
static void emit_turns(part *p, const opq_tiles *tiles, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    int variable = opq_nest_stmt(n, p->loop)->variable;
    opq_loop loop;
    opq_loop_begin(n, &loop, from, to, 1, carried, p->width * p->count);
    opq_places places = opq_nest_places(n);
    n->index[variable] = loop.index;
    opq_nest_bind(n, 1u << variable);
    if (tiles)
        opq_tiles_enter(n, tiles, LLVMBuildSub(n->e->builder, loop.index, from, ""));
    for (int copy = 0; copy < p->width; copy++) {
        opq_nest_use_copy(n, copy);
        run_body(p, carried + copy * p->count, step_lanes);
    }
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
    if (tiles)
        opq_tiles_enter(n, tiles, NULL);
    opq_loop_end(n, &loop, carried);
}

/* Turns [0, whole), tile after tile. */
static void emit_tiled(part *p, const opq_tiles *tiles, LLVMValueRef whole, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), whole, n->e->lanes, carried, p->width * p->count);
    opq_tiles_load(n, tiles, loop.index, NULL);
    emit_turns(p, tiles, loop.index, LLVMBuildAdd(n->e->builder, loop.index, opq_i64(n->e, n->e->lanes), ""), carried);
    opq_tiles_store(n, tiles, loop.index);
    opq_loop_end(n, &loop, carried);
}

void opq_emit_scan(opq_nest *n, int loop)
{
    part p = {.n = n, .loop = loop, .width = n->strip};
    LLVMValueRef carried[OPQ_CARRIED_MAX];
    int row = n->prefetch_row, variable = opq_nest_stmt(n, loop)->variable;
    LLVMValueRef from = opq_i64(n->e, 0);
    opq_tiles tiles;
    plan_part(&p);
    start(&p, carried);
    opq_tiles_open(n, loop, &tiles);
    if (tiles.count > 0) {
        from = LLVMBuildAnd(n->e->builder, n->extent[variable], opq_i64(n->e, -(int64_t)n->e->lanes), "");
        emit_tiled(&p, &tiles, from, carried);
    }
    n->prefetch_row = variable;
    n->prefetch = true;
    emit_turns(&p, NULL, from, n->extent[variable], carried);
    n->prefetch = false;
    n->prefetch_row = row;
}

/* ---- one row */

static LLVMValueRef lane_pointer(const part *p, int which, int i, LLVMValueRef lane)
{
    opq_emitter *e = p->n->e;
    return LLVMBuildGEP2(e->builder, opq_memory_type(e, p->scans[i].held), p->lanes[which][i], &lane, 1, "");
}

/* Lanes behind the last element are combined, too: nothing follows them. */
static LLVMValueRef step_row(part *p, int i, LLVMValueRef x, LLVMValueRef *held)
{
    opq_nest *n = p->n;
    opq_dtype dtype = p->scans[i].held;
    opq_loop loop;
    opq_memory_store(n, dtype, OPQ_STRIDE_one, NULL, p->lanes[0][i], NULL, x);
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), opq_i64(n->e, n->e->lanes), 1, held, 1);
    LLVMValueRef element = opq_memory_load(n, dtype, OPQ_STRIDE_zero, NULL, lane_pointer(p, 0, i, loop.index), NULL);
    *held = combine(p, &p->scans[i], *held, element);
    opq_memory_store(n, dtype, OPQ_STRIDE_zero, NULL, lane_pointer(p, 1, i, loop.index), NULL, *held);
    opq_loop_end(n, &loop, held);
    return opq_memory_load(n, dtype, OPQ_STRIDE_one, NULL, p->lanes[1][i], NULL);
}

static void run_row(opq_nest *n, void *data, LLVMValueRef *held)
{
    (void)n;
    run_body(data, held, step_row);
}

void opq_emit_scan_row(opq_nest *n, int loop)
{
    part p = {.n = n, .loop = loop, .width = 1};
    LLVMValueRef carried[OPQ_CARRIED_MAX];
    plan_part(&p);
    start(&p, carried);
    for (int i = 0; i < p.count; i++)
        for (int which = 0; which < 2; which++)
            p.lanes[which][i] =
                opq_nest_stack(n, LLVMArrayType2(opq_memory_type(n->e, p.scans[i].held), (uint64_t)n->e->lanes));
    opq_span span = {.loop = loop, .copies = 1, .rotate = 1, .carried = p.count, .run = run_row, .data = &p};
    opq_nest_span(n, &span, opq_i64(n->e, 0), n->extent[opq_nest_stmt(n, loop)->variable], carried);
}
