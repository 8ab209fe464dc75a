/* What the parts of opq_emit_unroll share: the loops, and what tells which elements are there. Private to codegen_llvm/. */
#ifndef OPAQUE_CODEGEN_LLVM_EMIT_UNROLL_H
#define OPAQUE_CODEGEN_LLVM_EMIT_UNROLL_H

#include "codegen_llvm/nest.h"

enum { OPQ_UNROLL_HELD_MAX = 8, OPQ_UNROLL_SUMS_MAX = OPQ_FORK_MAX };

typedef struct opq_unroll {
    opq_nest *n;
    opq_chain turns, chain;
    int product, count;                             /* statement; turns in all */
    int from, to;                                   /* the block */
    LLVMValueRef sum[OPQ_UNROLL_SUMS_MAX];          /* [to - from][strip] */
    int held_count, held_stmt[OPQ_UNROLL_HELD_MAX]; /* what stands between the unrolled loops and the chain */
    LLVMValueRef held[OPQ_UNROLL_MAX][OPQ_UNROLL_HELD_MAX][OPQ_STRIP_MAX];
    opq_places rows[OPQ_UNROLL_MAX]; /* where each row of the block begins */
    LLVMValueRef before;             /* 1 if that holds which the innermost loop does not change; NULL: nothing */
    bool is_whole;                   /* all that is asked for holds but for what lanes ask for */
    bool has_lanes;                  /* that, too */
} opq_unroll;

static inline const opq_stmt *opq_unroll_loop(const opq_nest *n, const opq_chain *chain, int level)
{
    return opq_nest_stmt(n, chain->loop[level]);
}

static inline int opq_unroll_last(const opq_chain *chain) { return chain->loop[chain->count - 1]; }

static inline LLVMValueRef *opq_unroll_value(const opq_unroll *p, int copy, int stmt)
{
    return &p->n->values[(size_t)copy * ((size_t)p->n->k->stmt_count + 1) + (size_t)stmt];
}

/* The variables of unrolled loops: all, or all but the last one's. */
static inline unsigned opq_unroll_variables(const opq_unroll *p, bool places)
{
    unsigned variables = 0;
    for (int level = 0; level < p->turns.count - !places; level++)
        variables |= 1u << opq_unroll_loop(p->n, &p->turns, level)->variable;
    return variables;
}

static inline int opq_unroll_places(const opq_unroll *p)
{
    return (int)opq_nest_stmt(p->n, opq_unroll_last(&p->turns))->value.i;
}

/* The indices of a turn; nothing is bound. */
static inline void opq_unroll_set_turn(const opq_unroll *p, int turn)
{
    for (int level = p->turns.count - 1; level >= 0; level--) {
        const opq_stmt *loop = opq_unroll_loop(p->n, &p->turns, level);
        p->n->index[loop->variable] = opq_i64(p->n->e, turn % loop->value.i);
        turn /= (int)loop->value.i;
    }
}

static inline bool opq_unroll_is_own(const opq_unroll *p, int stmt)
{
    return (p->n->varies[stmt] & opq_unroll_variables(p, true)) != 0;
}

static inline bool opq_unroll_asks(const opq_unroll *p, int stmt)
{
    return opq_nest_stmt(p->n, stmt)->op == OPQ_STMT_inside;
}

/* Is it one of the conditions that is_whole is about? Those that differ from lane to lane are held, or asked always. */
static inline bool opq_unroll_asks_once(const opq_unroll *p, int stmt)
{
    return opq_unroll_asks(p, stmt) && !opq_nest_varies(p->n, stmt);
}

/* ---- unroll_conditions.c */
/* One statement; a load whose condition has the lanes' mask in it needs no other. */
void opq_unroll_run(opq_unroll *p, int stmt);
/* What stands before the chain is made once for all turns, and given to each. */
void opq_unroll_hold(opq_unroll *p);
void opq_unroll_use_held(opq_unroll *p, int turn);
bool opq_unroll_is_apart(const opq_unroll *p); /* loads have lanes that lie apart */
bool opq_unroll_lanes_are_places(const opq_unroll *p, int lanes);
LLVMValueRef opq_unroll_ask(opq_unroll *p, bool inner_ones);
LLVMValueRef opq_unroll_ask_for_lanes(opq_unroll *p);

#endif
