/* Which elements the turns of an unrolled loop ask for are there: held for all turns, or asked at their corners. */
#include "codegen_llvm/emit_unroll.h"

/* ---- what stands before the chain */

static int held_number(const opq_unroll *p, int stmt)
{
    for (int h = 0; h < p->held_count; h++)
        if (p->held_stmt[h] == stmt)
            return h;
    return -1;
}

static bool asks_for_lanes(const opq_unroll *p, int stmt)
{
    return opq_unroll_asks(p, stmt) && opq_nest_varies(p->n, stmt);
}

/* Is a condition under the mask of the lanes already? Conditions are joined from the left. */
static bool is_masked(const opq_unroll *p, int stmt)
{
    for (;;) {
        const opq_stmt *of = opq_nest_stmt(p->n, stmt);
        int held = held_number(p, stmt) >= 0 ? stmt : of->op == OPQ_OP_bitwise_and ? of->operand[1] : -1;
        if (held >= 0 && held_number(p, held) >= 0 && asks_for_lanes(p, held))
            return true;
        if (held == stmt || of->op != OPQ_OP_bitwise_and)
            return false;
        stmt = of->operand[0];
    }
}

void opq_unroll_run(opq_unroll *p, int i)
{
    opq_nest *n = p->n;
    LLVMValueRef mask = n->mask;
    const opq_stmt *stmt = opq_nest_stmt(n, i);
    if (stmt->op == OPQ_STMT_load && stmt->operand[0] >= 0 && is_masked(p, stmt->operand[0]))
        n->mask = NULL;
    opq_nest_run(n, i, i + 1);
    n->mask = mask;
}

/* From block to block, code generation for AVX2 keeps lanes of a bit as 16, and each use widens them: they are kept as AVX2 masks. */
static LLVMValueRef packed(const opq_unroll *p, LLVMValueRef bits)
{
    LLVMTypeRef type = LLVMVectorType(LLVMInt32TypeInContext(p->n->e->context), (unsigned)p->n->e->lanes);
    return opq_cpu_has(p->n->e->cpu, OPQ_LEAF_bit_masks) ? bits : LLVMBuildSExt(p->n->e->builder, bits, type, "");
}

static LLVMValueRef unpacked(const opq_unroll *p, LLVMValueRef mask)
{
    if (opq_cpu_has(p->n->e->cpu, OPQ_LEAF_bit_masks))
        return mask;
    return LLVMBuildICmp(p->n->e->builder, LLVMIntSLT, mask, LLVMConstNull(LLVMTypeOf(mask)), "");
}

void opq_unroll_hold(opq_unroll *p)
{
    opq_nest *n = p->n;
    for (int turn = p->from; turn < p->to; turn++) {
        opq_places places = opq_nest_places(n);
        opq_unroll_set_turn(p, turn);
        opq_nest_bind(n, opq_unroll_variables(p, true));
        for (int h = 0; h < p->held_count; h++) {
            opq_unroll_run(p, p->held_stmt[h]);
            for (int copy = 0; copy < n->strip; copy++) {
                LLVMValueRef value = *opq_unroll_value(p, copy, p->held_stmt[h]);
                if (n->mask && is_masked(p, p->held_stmt[h]))
                    value = LLVMBuildAnd(n->e->builder, value, n->mask, "");
                p->held[turn - p->from][h][copy] = opq_unroll_asks(p, p->held_stmt[h]) ? packed(p, value) : value;
            }
        }
        opq_nest_return(n, &places);
    }
}

/* Are lanes places of what windows slide over (there is padding between some), and the innermost loop its rows? Else they are channels: a
 * strip has the lines of memory that it reads to itself, and is wide, if its turns are divided for that. */
bool opq_unroll_lanes_are_places(const opq_unroll *p, int lanes)
{
    for (int h = 0; h < p->held_count; h++)
        if (opq_unroll_asks(p, p->held_stmt[h]) && p->n->varies[p->held_stmt[h]] >> lanes & 1)
            return true;
    return false;
}

void opq_unroll_use_held(opq_unroll *p, int turn)
{
    for (int h = 0; h < p->held_count; h++)
        for (int copy = 0; copy < p->n->strip; copy++) {
            LLVMValueRef held = p->held[turn - p->from][h][copy];
            bool all = p->has_lanes && asks_for_lanes(p, p->held_stmt[h]);
            if (all)
                held = LLVMConstAllOnes(opq_vector_type(p->n->e, OPQ_bool));
            else if (opq_unroll_asks(p, p->held_stmt[h]))
                held = unpacked(p, held);
            *opq_unroll_value(p, copy, p->held_stmt[h]) = held;
        }
}

/* 1 if it holds where it is bound: in all lanes of all copies, if they differ. */
static LLVMValueRef holds_here(const opq_unroll *p, int stmt)
{
    opq_nest *n = p->n;
    return opq_nest_varies(n, stmt) ? opq_nest_ask_lanes(n, stmt, stmt + 1) : opq_lane(n->e, opq_nest_inside(n, stmt), 0);
}

/* 1 if a condition holds for all turns: it is linear, so that what holds at their corners does. `outside`: variables to bind with theirs. */
static LLVMValueRef ask_at_corners(opq_unroll *p, int stmt, unsigned outside)
{
    opq_nest *n = p->n;
    LLVMValueRef all = NULL;
    opq_places places = opq_nest_places(n);
    for (unsigned corner = 0; corner < 1u << p->turns.count; corner++) {
        unsigned variables = outside;
        bool another = false;
        for (int level = 0; level < p->turns.count; level++) {
            const opq_stmt *loop = opq_unroll_loop(n, &p->turns, level);
            bool end = corner >> level & 1;
            another = another || (end && !(n->varies[stmt] >> loop->variable & 1));
            n->index[loop->variable] = opq_i64(n->e, end ? loop->value.i - 1 : 0);
            variables |= 1u << loop->variable;
        }
        if (another)
            continue;
        opq_nest_bind(n, variables);
        all = opq_nest_both(p->n, all, holds_here(p, stmt));
        opq_nest_return(n, &places);
    }
    return all;
}

/* 1 if there is every element that these turns ask for. NULL: they ask for none. Of conditions that the innermost loop changes, or of the
 * others. */
LLVMValueRef opq_unroll_ask(opq_unroll *p, bool inner_ones)
{
    const opq_stmt *inner = opq_nest_stmt(p->n, opq_unroll_last(&p->chain));
    LLVMValueRef all = NULL;
    for (int i = p->chain.loop[0] + 1; i < inner->end; i++) {
        bool changes = p->n->varies[i] >> inner->variable & 1;
        if (opq_unroll_asks_once(p, i) && opq_unroll_is_own(p, i) && changes == inner_ones)
            all = opq_nest_both(p->n, all, ask_at_corners(p, i, changes ? 1u << inner->variable : 0));
    }
    return all;
}

/* The masks of such lanes cost as much as the loads do. */
bool opq_unroll_is_apart(const opq_unroll *p)
{
    const opq_nest *n = p->n;
    bool apart = false;
    for (int i = p->chain.loop[0] + 1; i < opq_nest_stmt(n, opq_unroll_last(&p->chain))->end; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_load && opq_nest_stmt(n, i)->operand[0] >= 0)
            apart = apart || opq_nest_stride(n, opq_nest_stmt(n, i)->access) > OPQ_STRIDE_one;
    return apart;
}

/* 1 if lanes are there for all turns; NULL: they have masks. */
LLVMValueRef opq_unroll_ask_for_lanes(opq_unroll *p)
{
    LLVMValueRef all = NULL;
    for (int h = 0; h < p->held_count && p->n->mask == NULL && opq_unroll_is_apart(p); h++)
        if (asks_for_lanes(p, p->held_stmt[h]))
            all = opq_nest_both(p->n, all, ask_at_corners(p, p->held_stmt[h], 0));
    return all;
}
