/* See units.h, and emit_loops.c for what a unit is. */
#include "codegen_llvm/units.h"
#include "codegen_llvm/codegen.h"

opq_chain opq_nest_chain(const opq_loops *loops, int loop)
{
    opq_chain chain = {0};
    const opq_stmt *stmts = loops->stmts;
    for (int next = loop; next >= 0;) {
        int i = next + 1;
        loop = next;
        chain.loop[chain.count++] = loop;
        while (i < stmts[loop].end && stmts[i].op != OPQ_STMT_loop)
            i++;
        bool last = i < stmts[loop].end && stmts[i].end == stmts[loop].end && chain.count < OPQ_LOOP_MAX;
        next = last && stmts[i].role == stmts[loop].role ? i : -1;
    }
    return chain;
}

int opq_strip_of(const opq_loops *k, int from, int to)
{
    while (from < to && k->stmts[from].op != OPQ_STMT_loop)
        from++;
    bool last = from < to && k->stmts[from].end == to;
    return last && k->stmts[from].role == OPQ_LOOP_vector && opq_loop_has_loops(k, from) ? from : -1;
}

/* Lanes that lie apart cost more under a mask, which all of these vectors have, than is saved. */
static bool is_apart(const opq_loops *k, const opq_stmt *stmt, int vector)
{
    return stmt->op == OPQ_STMT_load && k->accesses[stmt->access].stride[vector] > OPQ_STRIDE_one;
}

bool opq_rows_fit(const opq_loops *k, const opq_chain *chain, int strip)
{
    bool chains = false, inside = false, apart = false;
    if (chain->count == 0 || strip < 0)
        return false;
    for (int i = chain->loop[chain->count - 1] + 1; i < k->stmts[strip].end; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        bool loop = stmt->op == OPQ_STMT_loop;
        if (loop && i > strip && stmt->role != OPQ_LOOP_chain && stmt->role != OPQ_LOOP_column && !stmt->by &&
            !(k->scheduled && stmt->within))
            return false;
        if (opq_op_checks(stmt->op) || stmt->op == OPQ_STMT_keep || stmt->op == OPQ_STMT_kept)
            return false;
        chains = chains || (loop && stmt->role == OPQ_LOOP_chain);
        inside = inside || stmt->op == OPQ_STMT_inside;
        apart = apart || is_apart(k, stmt, k->stmts[strip].variable);
    }
    return chains || (inside && !apart);
}

static int64_t units_of(const opq_loops *k, const int64_t *dims, int first, int end)
{
    int from = first, to = end;
    const opq_stmt *stmts = k->stmts;
    int64_t units = 1, rows = 0;
    opq_chain chain = {0};
    if (first == end || (stmts[first].role != OPQ_LOOP_parallel && stmts[first].role != OPQ_LOOP_vector))
        return 1;
    if (stmts[first].role == OPQ_LOOP_parallel) {
        chain = opq_nest_chain(k, first);
        for (int i = 0; i < chain.count; i++, units *= rows)
            rows = dims[stmts[chain.loop[i]].variable];
        from = chain.loop[chain.count - 1] + 1;
        to = stmts[from - 1].end;
    } else if (!opq_loop_has_loops(k, first)) {
        return dims[stmts[first].variable];
    }
    int strip = opq_strip_of(k, from, to);
    if (opq_rows_fit(k, &chain, strip))
        return rows == 0 ? 0 : units / rows * ((rows + OPQ_ROW_BLOCK - 1) / OPQ_ROW_BLOCK);
    return strip < 0 ? units : units * ((dims[stmts[strip].variable] + OPQ_LANES - 1) / OPQ_LANES);
}

int opq_loops_phases(const opq_loops *loops, const int64_t *dims, int64_t out_units[OPQ_PHASE_MAX])
{
    opq_phases p = opq_loops_find_phases(loops);
    for (int i = 0; i < p.count; i++)
        out_units[i] = loops->stmts[p.from[i]].op == OPQ_STMT_loop || p.from[i] == loops->stmt_count
                           ? units_of(loops, dims, p.from[i], p.from[i + 1])
                           : 1;
    return p.count;
}

int64_t opq_loops_units(const opq_loops *loops, const int64_t *dims)
{
    int64_t units[OPQ_PHASE_MAX], all = 0;
    for (int phase = 0, count = opq_loops_phases(loops, dims, units); phase < count; phase++)
        all += units[phase];
    return all;
}
