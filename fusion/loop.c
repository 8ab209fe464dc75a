/* Blocks of turns: which of them a loop runs. And phases.
 *
 * Nested loops in the same block are one sequence in row-major order. A turn of one of them stands for as many of its elements as the
 * loops inside have turns; a block has those that begin or end in it.
 */
#include "fusion/loop.h"

opq_dtype opq_compute_dtype(opq_dtype dtype)
{
    static const opq_dtype words[] = {[1] = OPQ_u8, [2] = OPQ_i16, [4] = OPQ_i32, [8] = OPQ_i64};
    int bytes = opq_dtype_bytes(dtype);
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW && bytes <= 8)
        return words[bytes];
    return opq_dtype_is_half(dtype) ? OPQ_f32 : dtype;
}

static bool is_in_block(const opq_stmt *stmt, int within)
{
    return stmt->op == OPQ_STMT_loop && stmt->within == within;
}

bool opq_tree_has_loops(const opq_loops *k, int from, int to)
{
    for (int i = from; i < to; i++)
        if (k->stmts[i].op == OPQ_STMT_loop)
            return true;
    return false;
}

bool opq_loop_has_loops(const opq_loops *k, int loop) { return opq_tree_has_loops(k, loop + 1, k->stmts[loop].end); }

bool opq_loop_shares_block(const opq_loops *k, int loop, bool around)
{
    const opq_stmt *own = &k->stmts[loop];
    int from = around ? 0 : loop + 1, to = around ? loop : own->end;
    for (int i = from; i < to && own->op == OPQ_STMT_loop && own->within; i++)
        if (is_in_block(&k->stmts[i], own->within) && (!around || k->stmts[i].end >= own->end))
            return true;
    return false;
}

int opq_loop_counted(const opq_loops *k, int loop, int64_t *out_turns)
{
    *out_turns = 1;
    while (k->stmts[loop].by) {
        int within = k->stmts[loop].variable + 1;
        *out_turns *= k->stmts[loop].by;
        do
            loop++;
        while (!is_in_block(&k->stmts[loop], within));
    }
    return loop;
}

int opq_local_blocks(const opq_loops *k, int local)
{
    for (int i = local - 1; i >= 0; i--) {
        int64_t turns;
        const opq_stmt *loop = &k->stmts[i];
        if (loop->op != OPQ_STMT_loop || !loop->by || loop->end <= local)
            continue;
        if (k->stmts[local].variables == 1u << k->stmts[opq_loop_counted(k, i, &turns)].variable)
            return i;
    }
    return -1;
}

int64_t opq_loop_block(const opq_loops *k, int loop)
{
    for (int i = loop - 1; i >= 0; i--)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].variable == k->stmts[loop].within - 1 && k->stmts[i].by)
            return k->stmts[i].by;
    return OPQ_CHUNK;
}

/* All turns of a loop, in blocks or not. */
static int64_t all_turns(const opq_loops *k, int loop, const int64_t *dims)
{
    const opq_stmt *own = &k->stmts[loop];
    int64_t turns = 1;
    if (!own->by)
        return dims[own->variable];
    for (int i = loop + 1, end = own->end; i < end; i++) /* one in the other */
        if (is_in_block(&k->stmts[i], own->variable + 1)) {
            turns *= all_turns(k, i, dims);
            end = k->stmts[i].end;
        }
    return (turns + own->by - 1) / own->by;
}

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }

void opq_loop_turns(const opq_loops *k, int loop, const int64_t *dims, const int64_t *index, int64_t *out_from,
                    int64_t *out_to)
{
    const opq_stmt *own = &k->stmts[loop];
    int64_t extent = all_turns(k, loop, dims), inside = 1, before = 0, block = own->within ? opq_loop_block(k, loop) : 0;
    *out_from = 0;
    *out_to = extent;
    if (!own->within)
        return;
    for (int i = loop + 1; i < own->end; i++)
        if (is_in_block(&k->stmts[i], own->within))
            inside *= all_turns(k, i, dims);
    int64_t around = inside * extent;
    for (int i = loop - 1; i >= 0; i--)
        if (is_in_block(&k->stmts[i], own->within) && k->stmts[i].end >= own->end) {
            before += index[k->stmts[i].variable] * around;
            around *= all_turns(k, i, dims);
        }
    int64_t first =
        index[own->within - 1] * block - before; /* may lie before this loop's first element, or behind its last */
    *out_from = inside > 0 ? clamp(first / inside, extent) : 0;
    *out_to = inside > 0 ? clamp((first + block + inside - 1) / inside, extent) : 0;
}

static uint16_t access_varies(const opq_loops *k, int access)
{
    uint16_t varies = 0;
    for (int l = 0; l < k->rank; l++)
        if (k->accesses[access].stride[l] != OPQ_STRIDE_zero)
            varies |= (uint16_t)(1u << l);
    return varies;
}

/* Of what stands in [from, to); a reduction's result no longer varies along the loops that it reduces. */
static void find_varies(const opq_loops *k, int from, int to, uint16_t reduced, uint16_t around, uint16_t *out)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (stmt->op == OPQ_STMT_loop) {
            bool reduces = opq_loop_reduces((opq_loop_role)stmt->role);
            out[i] = 0;
            find_varies(k, i + 1, stmt->end, reduces ? (uint16_t)(reduced | 1u << stmt->variable) : reduced,
                        (uint16_t)(around | 1u << stmt->variable), out);
            i = stmt->end - 1;
            continue;
        }
        out[i] = 0;
        for (int o = 0; o < 3; o++)
            if (stmt->operand[o] >= 0)
                out[i] |= out[stmt->operand[o]];
        if (stmt->op == OPQ_STMT_keep || stmt->op == OPQ_STMT_kept)
            out[i] |= k->stmts[stmt->access].variables;
        else if (opq_stmt_walks(stmt))
            out[i] |= access_varies(k, stmt->access);
        if (stmt->op == OPQ_STMT_store_add_at) /* once for each turn, also where every turn adds the same to the same place */
            out[i] = (uint16_t)-1;
        if (opq_op_reduces(stmt->op))
            out[i] &= (uint16_t)~reduced;
        if (stmt->op >= OPQ_STMT_carry)
            out[i] |= around;
        if (stmt->op == OPQ_STMT_carry && opq_op_scans((int)stmt->value.i)) /* it is read in the loops, too */
            out[i] = (uint16_t)-1;
    }
}

void opq_loops_find_varies(const opq_loops *k, uint16_t *out) { find_varies(k, 0, k->stmt_count, 0, 0, out); }

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
