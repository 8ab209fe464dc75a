/* Blocks of turns: which of them a loop runs. And phases.
 *
 * Nested loops in the same block are one sequence in row-major order. A turn of one of them stands for as many of its elements as the
 * loops inside have turns; a block has those that begin or end in it.
 */
#include "fusion/loop.h"

static bool is_in_block(const opq_stmt *stmt, int within)
{
    return stmt->op == OPQ_STMT_loop && stmt->within == within;
}

bool opq_loop_shares_block(const opq_loops *k, int loop, bool around)
{
    const opq_stmt *own = &k->stmts[loop];
    int from = around ? 0 : loop + 1, to = around ? loop : own->end;
    for (int i = from; i < to && own->op == OPQ_STMT_loop && own->within; i++)
        if (is_in_block(&k->stmts[i], own->within) && (!around || k->stmts[i].end >= own->end))
            return true;
    return false;
}

/* Turns of the loops in a loop that counts their blocks. */
static int64_t counted_by(const opq_loops *k, int loop, const int64_t *dims)
{
    int within = k->stmts[loop].variable + 1;
    int64_t turns = 1;
    for (int i = loop + 1; i < k->stmts[loop].end; i++) {
        if (!is_in_block(&k->stmts[i], within))
            continue;
        if (k->stmts[i].by)
            return counted_by(k, i, dims);
        turns *= dims[k->stmts[i].variable];
    }
    return turns;
}

int64_t opq_loop_block(const opq_loops *k, int loop)
{
    for (int i = loop - 1; i >= 0; i--)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].variable == k->stmts[loop].within - 1 && k->stmts[i].by)
            return k->stmts[i].by;
    return OPQ_CHUNK;
}

static void block_turns(const opq_loops *k, int loop, const int64_t *dims, const int64_t *index, int64_t *out_from,
                        int64_t *out_to)
{
    const opq_stmt *own = &k->stmts[loop];
    int64_t all = (counted_by(k, loop, dims) + own->by - 1) / own->by;
    *out_from = 0;
    *out_to = all;
    if (own->within) {
        int64_t blocks = opq_loop_block(k, loop) / own->by;
        *out_from = index[own->within - 1] * blocks;
        *out_to = *out_from + blocks < all ? *out_from + blocks : all;
    }
}

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }

void opq_loop_turns(const opq_loops *k, int loop, const int64_t *dims, const int64_t *index, int64_t *out_from,
                    int64_t *out_to)
{
    const opq_stmt *own = &k->stmts[loop];
    if (own->by) {
        block_turns(k, loop, dims, index, out_from, out_to);
        return;
    }
    int64_t extent = dims[own->variable], inside = 1, before = 0, block = own->within ? opq_loop_block(k, loop) : 0;
    *out_from = 0;
    *out_to = extent;
    if (!own->within)
        return;
    for (int i = loop + 1; i < own->end; i++)
        if (is_in_block(&k->stmts[i], own->within))
            inside *= dims[k->stmts[i].variable];
    int64_t around = inside * extent;
    for (int i = loop - 1; i >= 0; i--)
        if (is_in_block(&k->stmts[i], own->within) && k->stmts[i].end >= own->end) {
            before += index[k->stmts[i].variable] * around;
            around *= dims[k->stmts[i].variable];
        }
    int64_t first =
        index[own->within - 1] * block - before; /* may lie before this loop's first element, or behind its last */
    *out_from = inside > 0 ? clamp(first / inside, extent) : 0;
    *out_to = inside > 0 ? clamp((first + block + inside - 1) / inside, extent) : 0;
}

opq_phases opq_loops_find_phases(const opq_loops *k)
{
    int first = 0;
    while (first < k->stmt_count && k->stmts[first].op != OPQ_STMT_loop)
        first++;
    opq_phases p = {.count = 1, .from = {first}};
    bool parallel = false;
    for (int i = first; i < k->stmt_count; i = k->stmts[i].op == OPQ_STMT_loop ? k->stmts[i].end : i + 1) {
        bool next = k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].role == OPQ_LOOP_parallel;
        if (i > first && (next || parallel) && p.count++ < OPQ_PHASE_MAX)
            p.from[p.count - 1] = i;
        parallel = next;
    }
    if (p.count <= OPQ_PHASE_MAX)
        p.from[p.count] = k->stmt_count;
    return p;
}
