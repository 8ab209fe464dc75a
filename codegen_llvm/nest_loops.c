/* Loops: counted with carried values, row-major indices, and the vector loop with its masked end. */
#include "codegen_llvm/nest.h"

#include <string.h>

static void open_loop(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                      LLVMValueRef *carried, int count)
{
    LLVMBuilderRef b = n->e->builder;
    loop->before = LLVMGetInsertBlock(b);
    loop->body = opq_nest_block(n, "loop");
    loop->exit = opq_nest_block(n, "done");
    loop->to = to;
    loop->step = opq_i64(n->e, step);
    loop->carried = count;
    if (loop->sure)
        LLVMBuildBr(b, loop->body);
    else
        LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSLT, from, to, ""), loop->body, loop->exit);
    LLVMPositionBuilderAtEnd(b, loop->body);
    loop->index = LLVMBuildPhi(b, LLVMTypeOf(from), "");
    LLVMAddIncoming(loop->index, &from, &loop->before, 1);
    for (int i = 0; i < count; i++) {
        loop->initial[i] = carried[i];
        loop->phi[i] = LLVMBuildPhi(b, LLVMTypeOf(carried[i]), "");
        LLVMAddIncoming(loop->phi[i], &carried[i], &loop->before, 1);
        carried[i] = loop->phi[i];
    }
}

void opq_loop_begin(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                    LLVMValueRef *carried, int count)
{
    loop->sure = false;
    open_loop(n, loop, from, to, step, carried, count);
}

void opq_loop_begin_sure(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                         LLVMValueRef *carried, int count)
{
    loop->sure = true;
    open_loop(n, loop, from, to, step, carried, count);
}

void opq_loop_end(opq_nest *n, opq_loop *loop, LLVMValueRef *carried)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMBasicBlockRef latch = LLVMGetInsertBlock(b);
    LLVMValueRef next = LLVMBuildAdd(b, loop->index, loop->step, "");
    LLVMAddIncoming(loop->index, &next, &latch, 1);
    for (int i = 0; i < loop->carried; i++)
        LLVMAddIncoming(loop->phi[i], &carried[i], &latch, 1);
    LLVMBuildCondBr(b, LLVMBuildICmp(b, LLVMIntSLT, next, loop->to, ""), loop->body, loop->exit);
    LLVMPositionBuilderAtEnd(b, loop->exit);
    for (int i = 0; i < loop->carried && !loop->sure; i++) {
        LLVMValueRef phi = LLVMBuildPhi(b, LLVMTypeOf(carried[i]), "");
        LLVMAddIncoming(phi, (LLVMValueRef[]){loop->initial[i], carried[i]}, (LLVMBasicBlockRef[]){loop->before, latch},
                        2);
        carried[i] = phi;
    }
}

LLVMBasicBlockRef opq_nest_if(opq_nest *n, LLVMValueRef condition)
{
    LLVMBasicBlockRef then = opq_nest_block(n, "then"), next = opq_nest_block(n, "next");
    LLVMBuildCondBr(n->e->builder, condition, then, next);
    LLVMPositionBuilderAtEnd(n->e->builder, then);
    return next;
}

LLVMBasicBlockRef opq_nest_else(opq_nest *n, LLVMBasicBlockRef next)
{
    LLVMBasicBlockRef behind = opq_nest_block(n, "behind");
    LLVMBuildBr(n->e->builder, behind);
    LLVMPositionBuilderAtEnd(n->e->builder, next);
    return behind;
}

void opq_nest_end_if(opq_nest *n, LLVMBasicBlockRef next)
{
    LLVMBuildBr(n->e->builder, next);
    LLVMPositionBuilderAtEnd(n->e->builder, next);
}

void opq_fork_begin(opq_nest *n, opq_fork *f, LLVMValueRef condition, LLVMValueRef *values, int count)
{
    f->values = values;
    f->count = count;
    memcpy(f->start, values, (size_t)count * sizeof *values);
    f->next = opq_nest_if(n, condition);
}

void opq_fork_other(opq_nest *n, opq_fork *f)
{
    f->way[0] = LLVMGetInsertBlock(n->e->builder);
    f->next = opq_nest_else(n, f->next);
    memcpy(f->one, f->values, (size_t)f->count * sizeof *f->one);
    memcpy(f->values, f->start, (size_t)f->count * sizeof *f->start);
}

void opq_fork_end(opq_nest *n, opq_fork *f)
{
    f->way[1] = LLVMGetInsertBlock(n->e->builder);
    opq_nest_end_if(n, f->next);
    for (int i = 0; i < f->count; i++)
        f->values[i] = opq_fork_phi(n, f, f->one[i], f->values[i]);
}

LLVMValueRef opq_fork_phi(opq_nest *n, const opq_fork *f, LLVMValueRef one, LLVMValueRef other)
{
    LLVMValueRef phi = LLVMBuildPhi(n->e->builder, LLVMTypeOf(one), "");
    LLVMAddIncoming(phi, (LLVMValueRef[]){one, other}, (LLVMBasicBlockRef *)f->way, 2);
    return phi;
}

LLVMValueRef opq_nest_smaller(opq_nest *n, LLVMValueRef x, LLVMValueRef y)
{
    return LLVMBuildSelect(n->e->builder, LLVMBuildICmp(n->e->builder, LLVMIntSLT, x, y, ""), x, y, "");
}

LLVMValueRef opq_nest_larger(opq_nest *n, LLVMValueRef x, LLVMValueRef y)
{
    return LLVMBuildSelect(n->e->builder, LLVMBuildICmp(n->e->builder, LLVMIntSGT, x, y, ""), x, y, "");
}

/* ---- odometer ---------------------------------------------------------------------------------------------------- */

LLVMValueRef opq_odometer_count(opq_nest *n, const opq_odometer *odometer)
{
    LLVMValueRef count = opq_i64(n->e, 1);
    for (int i = 0; i < odometer->rank; i++)
        count = i == 0 ? odometer->extent[0] : LLVMBuildMul(n->e->builder, count, odometer->extent[i], "");
    return count;
}

/* Divides; extents are not zero where this runs. */
void opq_odometer_split(opq_nest *n, const opq_odometer *odometer, LLVMValueRef linear, LLVMValueRef *out_index)
{
    for (int i = odometer->rank - 1; i > 0; i--) {
        out_index[i] = LLVMBuildURem(n->e->builder, linear, odometer->extent[i], "");
        linear = LLVMBuildUDiv(n->e->builder, linear, odometer->extent[i], "");
    }
    if (odometer->rank > 0)
        out_index[0] = linear;
}

void opq_odometer_next(opq_nest *n, const opq_odometer *odometer, LLVMValueRef *index)
{
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef carry = opq_i64(n->e, 1), zero = opq_i64(n->e, 0);
    for (int i = odometer->rank - 1; i >= 0; i--) {
        LLVMValueRef next = LLVMBuildAdd(b, index[i], carry, "");
        if (i == 0) { /* never wraps before the end */
            index[i] = next;
            break;
        }
        LLVMValueRef wraps = LLVMBuildICmp(b, LLVMIntEQ, next, odometer->extent[i], "");
        index[i] = LLVMBuildSelect(b, wraps, zero, next, "");
        carry = LLVMBuildZExt(b, wraps, LLVMTypeOf(zero), "");
    }
}

opq_odometer opq_nest_odometer(const opq_nest *n, const opq_chain *chain)
{
    opq_odometer odometer = {.rank = chain->count};
    for (int i = 0; i < chain->count; i++) {
        odometer.variable[i] = opq_nest_stmt(n, chain->loop[i])->variable;
        odometer.extent[i] = n->extent[odometer.variable[i]];
    }
    return odometer;
}

void opq_nest_enter(opq_nest *n, const opq_odometer *odometer, const opq_chain *chain, const LLVMValueRef *index)
{
    unsigned variables = 0;
    for (int i = 0; i < odometer->rank; i++)
        if (odometer->variable[i] >= 0) {
            n->index[odometer->variable[i]] = index[i];
            variables |= 1u << odometer->variable[i];
        }
    opq_nest_bind(n, variables);
    for (int i = 0; i + 1 < chain->count; i++)
        opq_nest_run(n, chain->loop[i] + 1, chain->loop[i + 1]);
}

void opq_units_begin(opq_nest *n, opq_units *units, const opq_odometer *odometer, LLVMValueRef from, LLVMValueRef to)
{
    units->odometer = *odometer;
    opq_odometer_split(n, odometer, from, units->index);
    opq_loop_begin(n, &units->loop, from, to, 1, units->index, odometer->rank);
}

void opq_units_end(opq_nest *n, opq_units *units)
{
    opq_odometer_next(n, &units->odometer, units->index);
    opq_loop_end(n, &units->loop, units->index);
}

/* ---- the vector loop --------------------------------------------------------------------------------------------- */

/* Groups of carried values take turns: the first `copies` move behind the others. */
static void rotate(LLVMValueRef *carried, int count, int by)
{
    LLVMValueRef moved[OPQ_CARRIED_MAX];
    for (int i = 0; i < count; i++)
        moved[i] = carried[(i + by) % count];
    for (int i = 0; i < count; i++)
        carried[i] = moved[i];
}

/* Each statement for all copies. */
static void emit_beside(opq_nest *n, int from, int to, int copies)
{
    opq_nest_copy_values(n, copies);
    for (int i = from; i < to; i++)
        for (int copy = 0; copy < copies; copy++) {
            opq_nest_use_copy(n, copy);
            opq_nest_run_one(n, i, i + 1);
        }
    opq_nest_use_copy(n, 0);
}

static void emit_copies(opq_nest *n, const opq_span *span, int copies, LLVMValueRef *carried)
{
    int group = span->rotate ? span->carried / span->rotate : 0;
    if (span->beside) {
        emit_beside(n, span->loop + 1, opq_nest_stmt(n, span->loop)->end, copies);
        return;
    }
    for (n->copy = 0; n->copy < copies; n->copy++) {
        if (span->run)
            span->run(n, span->data, carried + n->copy * group);
        else
            opq_nest_run_one(n, span->loop + 1, opq_nest_stmt(n, span->loop)->end);
        if (span->after)
            span->after(n, span->data, carried + n->copy * group);
    }
    n->copy = 0;
    if (group && copies < span->rotate)
        rotate(carried, span->carried, copies * group);
}

void opq_nest_span(opq_nest *n, const opq_span *span, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried)
{
    LLVMBuilderRef b = n->e->builder;
    int before = n->vector, vector = opq_nest_stmt(n, span->loop)->variable, lanes = n->e->lanes;
    n->vector = vector;
    opq_nest_enter_locals(n, span->loop + 1, opq_nest_stmt(n, span->loop)->end);
    opq_nest_find_ahead(n, span->loop);
    int whole = (span->rotate ? span->rotate : span->copies) * lanes;
    LLVMValueRef length = LLVMBuildSub(b, to, from, "");
    LLVMValueRef main_end = LLVMBuildAdd(b, from, LLVMBuildAnd(b, length, opq_i64(n->e, -(int64_t)whole), ""), "");

    opq_loop loop;
    opq_loop_begin(n, &loop, from, main_end, (int64_t)span->copies * lanes, carried, span->carried);
    n->index[vector] = loop.index;
    n->prefetch = true;
    emit_copies(n, span, span->copies, carried);
    n->prefetch = false;
    opq_loop_end(n, &loop, carried);

    LLVMValueRef tail_end = to;
    if (span->rotate) { /* a full turn, so that the groups end where they began */
        LLVMValueRef more = LLVMBuildICmp(b, LLVMIntSLT, main_end, to, "");
        tail_end = LLVMBuildSelect(b, more, LLVMBuildAdd(b, main_end, opq_i64(n->e, whole), ""), main_end, "");
    }
    opq_loop_begin(n, &loop, main_end, tail_end, lanes, carried, span->carried);
    n->index[vector] = loop.index;
    opq_nest_mask(n, LLVMBuildSub(b, to, loop.index, ""));
    n->prefetch = true; /* rows may be so short that this is all of them */
    emit_copies(n, span, 1, carried);
    n->prefetch = false;
    opq_nest_mask(n, NULL);
    opq_loop_end(n, &loop, carried);
    memset(n->ahead, 0, sizeof n->ahead);
    n->vector = before;
}
