/* Reducing short rows by the rule `lanes` with a row in each lane of a vector: this runs for a strip of rows.
 *
 *   slots   element k of each row      identity combined with it
 *   halves  8, 4, 2, 1                 slot i = slot i with slot i + half, as far as there are elements
 *
 * Slots beyond the row would hold identities, which are neutral: they are left out. argmax and argmin are kept along, in order.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

_Static_assert(2 * OPQ_REDUCTION_MAX * OPQ_STRIP_MAX <= OPQ_CARRIED_MAX, "what a loop over elements carries");

typedef struct part {
    opq_nest *n;
    int loop, width, count, args; /* args: carried values */
    opq_reduction reductions[OPQ_REDUCTION_MAX];
    LLVMValueRef slots[OPQ_REDUCTION_MAX]; /* [OPQ_ACROSS_MAX][width][lanes]; of arg reductions none */
} part;

static LLVMValueRef slot_pointer(const part *p, int r, LLVMValueRef slot, int copy)
{
    opq_emitter *e = p->n->e;
    LLVMValueRef at = LLVMBuildMul(e->builder, slot, opq_i64(e, (int64_t)p->width * e->lanes), "");
    at = LLVMBuildAdd(e->builder, at, opq_i64(e, (int64_t)copy * e->lanes), "");
    return LLVMBuildGEP2(e->builder, opq_memory_type(e, p->reductions[r].dtype), p->slots[r], &at, 1, "");
}

static LLVMValueRef load_slot(const part *p, int r, LLVMValueRef slot, int copy)
{
    return opq_memory_load(p->n, p->reductions[r].dtype, OPQ_STRIDE_one, NULL, slot_pointer(p, r, slot, copy), NULL);
}

static void store_slot(const part *p, int r, LLVMValueRef slot, int copy, LLVMValueRef value)
{
    opq_memory_store(p->n, p->reductions[r].dtype, OPQ_STRIDE_one, NULL, slot_pointer(p, r, slot, copy), NULL, value);
}

/* Element `at` of every row. */
static void accumulate(const part *p, int copy, LLVMValueRef at, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    LLVMValueRef *arg = carried + 2 * copy;
    for (int r = 0; r < p->count; r++) {
        const opq_reduction *red = &p->reductions[r];
        LLVMValueRef x = opq_reduction_operand(n, red);
        if (!red->is_arg) {
            LLVMValueRef identity = opq_fold_identity(n->e, red->fold, red->dtype);
            store_slot(p, r, at, copy, opq_fold_combine(n->e, red->fold, red->dtype, identity, x));
            continue;
        }
        LLVMValueRef better = opq_fold_better(n->e, red->fold, red->dtype, arg[0], x);
        arg[0] = opq_select(n->e, better, x, arg[0]);
        arg[1] = opq_select(n->e, better, opq_splat(n->e, at), arg[1]);
        arg += 2 * p->width;
    }
}

static void emit_elements(const part *p, LLVMValueRef *carried)
{
    opq_nest *n = p->n;
    const opq_stmt *stmt = opq_nest_stmt(n, p->loop);
    opq_loop loop;
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), n->extent[stmt->variable], 1, carried, p->args);
    opq_places places = opq_nest_places(n);
    n->index[stmt->variable] = loop.index;
    opq_nest_bind(n, 1u << stmt->variable);
    for (int copy = 0; copy < p->width; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_run_one(n, p->loop + 1, stmt->end);
        accumulate(p, copy, loop.index, carried);
    }
    opq_nest_use_copy(n, 0);
    opq_nest_return(n, &places);
    opq_loop_end(n, &loop, carried);
}

static void fold_slots(const part *p)
{
    opq_nest *n = p->n;
    LLVMBuilderRef b = n->e->builder;
    LLVMValueRef count = n->extent[opq_nest_stmt(n, p->loop)->variable];
    for (int half = OPQ_ACROSS_MAX / 2; half > 0; half /= 2) {
        LLVMValueRef more = LLVMBuildSub(b, count, opq_i64(n->e, half), ""), limit = opq_i64(n->e, half);
        LLVMValueRef to = LLVMBuildSelect(b, LLVMBuildICmp(b, LLVMIntSLT, more, limit, ""), more, limit, "");
        opq_loop loop;
        opq_loop_begin(n, &loop, opq_i64(n->e, 0), to, 1, NULL, 0);
        LLVMValueRef other = LLVMBuildAdd(b, loop.index, limit, "");
        for (int r = 0; r < p->count; r++)
            for (int copy = 0; copy < p->width && !p->reductions[r].is_arg; copy++)
                store_slot(p, r, loop.index, copy,
                           opq_fold_combine(n->e, p->reductions[r].fold, p->reductions[r].dtype,
                                            load_slot(p, r, loop.index, copy), load_slot(p, r, other, copy)));
        opq_loop_end(n, &loop, NULL);
    }
}

static void plan_part(part *p)
{
    opq_nest *n = p->n;
    p->count = opq_nest_reductions(n, p->loop + 1, opq_nest_stmt(n, p->loop)->end, p->reductions);
    for (int r = 0; r < p->count; r++) {
        LLVMTypeRef element = opq_memory_type(n->e, p->reductions[r].dtype);
        p->args += p->reductions[r].is_arg ? 2 * p->width : 0;
        if (!p->reductions[r].is_arg)
            p->slots[r] = opq_nest_stack(
                n, LLVMArrayType2(element, (uint64_t)OPQ_ACROSS_MAX * (uint64_t)p->width * (uint64_t)n->e->lanes));
    }
}

void opq_emit_across(opq_nest *n, int loop)
{
    part p = {.n = n, .loop = loop, .width = n->strip};
    LLVMValueRef carried[OPQ_CARRIED_MAX], *arg = carried;
    plan_part(&p);
    for (int r = 0; r < p.count; r++)
        for (int copy = 0; copy < p.width && p.reductions[r].is_arg; copy++) {
            *arg++ = opq_fold_identity(n->e, p.reductions[r].fold, p.reductions[r].dtype);
            *arg++ = opq_splat_int(n->e, opq_vector_type(n->e, OPQ_i64), 0);
        }
    emit_elements(&p, carried);
    fold_slots(&p);
    arg = carried;
    for (int r = 0; r < p.count; r++)
        for (int copy = 0; copy < p.width; copy++) {
            opq_nest_use_copy(n, copy);
            if (p.reductions[r].is_arg)
                opq_nest_define(n, p.reductions[r].stmt, arg[1]), arg += 2;
            else
                opq_nest_define(n, p.reductions[r].stmt, load_slot(&p, r, opq_i64(n->e, 0), copy));
        }
    opq_nest_use_copy(n, 0);
}
