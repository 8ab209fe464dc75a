/* See loop_rewrite.h. */
#include "fusion/loop_rewrite.h"

opq_stmt opq_stmt_make(int op)
{
    return (opq_stmt){.op = (uint16_t)op, .operand = {-1, -1, -1}, .access = -1, .node = -1};
}

int16_t opq_loops_push(opq_loops *to, const opq_stmt *stmt)
{
    to->stmts[to->stmt_count] = *stmt;
    return (int16_t)to->stmt_count++;
}

static int16_t copy(const opq_rewriter *r, int i)
{
    opq_stmt made = r->from->stmts[i];
    for (int o = 0; o < 3; o++)
        if (made.operand[o] >= 0)
            made.operand[o] = r->stmt[made.operand[o]];
    if (made.op >= OPQ_STMT_keep) /* of a local or a carry */
        made.access = r->stmt[made.access];
    r->finish(r->data, i, &made);
    return r->stmt[i] = opq_loops_push(r->to, &made);
}

bool opq_loops_rewrite(const opq_rewriter *r, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        const opq_stmt *stmt = &r->from->stmts[i];
        opq_rewrite what = r->choose ? r->choose(r->data, i) : OPQ_REWRITE_copy;
        if (what == OPQ_REWRITE_failed)
            return false;
        int at = what == OPQ_REWRITE_copy ? copy(r, i) : -1;
        if (stmt->op != OPQ_STMT_loop || what == OPQ_REWRITE_body)
            continue;
        i = stmt->end - 1;
        if (at < 0)
            continue;
        if (!opq_loops_rewrite(r, (int)(stmt - r->from->stmts) + 1, stmt->end))
            return false;
        r->to->stmts[at].end = r->to->stmt_count;
    }
    return true;
}
