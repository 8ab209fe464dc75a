/* What the tree of a thin product says of its window, `chain l { chain m { .. } }` around a product in each lane: how many turns a short innermost
 * loop has, which are then made without a loop; and that the window slides along the rows, whose next one it reads is its own next one, too:
 * a row of what is loaded serves as many rows of the result.
 */
#include "fusion/lower_state.h"

typedef struct window {
    const opq_loops *k;
    const int64_t *dims;
    uint16_t varies[OPQ_BODY_MAX * 2];
    int outer, inner, rows, lanes; /* loops: statements; variables */
} window;

static const opq_stmt *loop_of(const window *w, int stmt) { return &w->k->stmts[stmt]; }

/* The loops of the only chain, and those around it. False: it has not two loops in lanes of rows. */
static bool find_loops(window *w)
{
    int chains = 0;
    w->outer = w->inner = w->rows = w->lanes = -1;
    for (int i = 0; i < w->k->stmt_count; i++) {
        const opq_stmt *loop = loop_of(w, i);
        if (loop->op != OPQ_STMT_loop)
            continue;
        if (loop->role == OPQ_LOOP_parallel)
            w->rows = loop->variable;
        else if (loop->role == OPQ_LOOP_vector)
            w->lanes = loop->variable;
        else if (loop->role == OPQ_LOOP_chain && chains++ == 0)
            w->outer = i;
        else if (loop->role == OPQ_LOOP_chain)
            w->inner = i;
    }
    return chains == 2 && w->lanes >= 0;
}

static bool moves_with(const window *w, int stmt, int variable) { return w->varies[stmt] >> variable & 1; }

/* Is every value one that moves with the rows as with the window's, or not at all? */
static bool moves_alike(const window *w, int stmt)
{
    const opq_stmt *of = loop_of(w, stmt);
    int window = loop_of(w, w->outer)->variable;
    if (of->op == OPQ_STMT_load && opq_loops_stride(w->k, w->dims, of->access, w->lanes) > 1)
        return false; /* a stride, as of the rows */
    if (!moves_with(w, stmt, w->rows))
        return true;
    if (opq_stmt_walks(of) &&
        opq_loops_stride(w->k, w->dims, of->access, w->rows) != opq_loops_stride(w->k, w->dims, of->access, window))
        return false;
    for (int o = 0; o < 3 && !opq_op_contracts(of->op); o++)
        if (of->operand[o] > w->outer && !moves_with(w, of->operand[o], w->rows) && moves_with(w, of->operand[o], window))
            return false;
    return true;
}

/* One operand of the product moves with the rows, the other does not. */
static bool slides(const window *w)
{
    bool moves[2] = {false, false};
    if (w->rows < 0 || w->dims[loop_of(w, w->outer)->variable] != OPQ_WINDOW_MAX)
        return false;
    for (int i = w->outer + 1; i < loop_of(w, w->outer)->end; i++) {
        if (i != w->inner && !moves_alike(w, i))
            return false;
        for (int o = 0; o < 2 && opq_op_contracts(loop_of(w, i)->op); o++) {
            moves[o] = moves_with(w, loop_of(w, i)->operand[o], w->rows);
            if (moves[o] && loop_of(w, i)->operand[o] < w->outer) /* another for each row, but not for the window's */
                return false;
        }
    }
    return moves[0] != moves[1];
}

void opq_lower_window(const opq_loops *k, const int64_t *dims)
{
    window w = {.k = k, .dims = dims};
    if (k->stmt_count > (int)(sizeof w.varies / sizeof *w.varies) || !find_loops(&w) ||
        dims[loop_of(&w, w.inner)->variable] != OPQ_WINDOW_MAX)
        return;
    opq_loops_find_varies(k, w.varies);
    k->stmts[w.inner].value.i = OPQ_WINDOW_MAX;
    if (!slides(&w))
        return;
    k->stmts[w.outer].value.i = OPQ_WINDOW_MAX;
    k->stmts[w.outer].variables = (uint16_t)(1u << w.rows);
}
