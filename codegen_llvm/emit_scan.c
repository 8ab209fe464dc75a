/* Scans of one row: the lanes of a vector loop are its turns. What is folded goes through memory, one lane after the other, and the carry is in each lane
 * what the turns so far made of it. In a strip a turn is one combination of vectors: see emit_carried.c.
 */
#include "codegen_llvm/nest.h"

typedef struct row {
    int loop, carry[OPQ_REDUCTION_MAX], count;
    LLVMValueRef lanes[2][OPQ_REDUCTION_MAX]; /* memory for a vector of operands, and of what the carry is */
} row;

int opq_nest_scans(const opq_nest *n, int from, int to)
{
    int count = 0;
    for (int i = from; i < to; i++)
        count += opq_nest_stmt(n, i)->op == OPQ_STMT_fold && opq_carry_scans(n, opq_nest_stmt(n, i)->access);
    return count;
}

int opq_scan_width(const opq_nest *n, int strip, int loop)
{
    int end = opq_nest_stmt(n, loop)->end, scans = opq_nest_scans(n, loop + 1, end);
    int most = n->e->cpu->target->strip.vectors, width = most;
    if (scans == 0)
        return OPQ_STRIP_MAX;
    for (int i = loop + 1; i < end; i++)
        if (opq_stmt_tiles(n->k, i, opq_nest_stmt(n, strip)->variable, opq_nest_stmt(n, loop)->variable))
            return n->e->cpu->target->strip.scan_tiled;
    while (width > 1 && scans * width > most)
        width /= 2;
    return width;
}

static LLVMValueRef lane_pointer(opq_nest *n, const row *r, int which, int c, LLVMValueRef lane)
{
    return LLVMBuildGEP2(n->e->builder, opq_memory_type(n->e, opq_carry_dtype(n, r->carry[c])), r->lanes[which][c],
                         &lane, 1, "");
}

/* Lanes behind the last element are folded, too: nothing follows them. */
static void fold_lanes(opq_nest *n, const row *r, int c, LLVMValueRef x, LLVMValueRef *held)
{
    opq_dtype dtype = opq_carry_dtype(n, r->carry[c]);
    opq_loop loop;
    opq_memory_store(n, dtype, OPQ_STRIDE_one, NULL, r->lanes[0][c], NULL, x);
    opq_loop_begin(n, &loop, opq_i64(n->e, 0), opq_i64(n->e, n->e->lanes), 1, held, 1);
    LLVMValueRef element = opq_memory_load(n, dtype, OPQ_STRIDE_zero, NULL, lane_pointer(n, r, 0, c, loop.index), NULL);
    *held = opq_carry_combine(n, r->carry[c], *held, element);
    opq_memory_store(n, dtype, OPQ_STRIDE_zero, NULL, lane_pointer(n, r, 1, c, loop.index), NULL, *held);
    opq_loop_end(n, &loop, held);
    n->value[r->carry[c]] = opq_memory_load(n, dtype, OPQ_STRIDE_one, NULL, r->lanes[1][c], NULL);
}

static void run_vector(opq_nest *n, void *data, LLVMValueRef *held)
{
    const row *r = data;
    for (int i = r->loop + 1, c = 0; i < opq_nest_stmt(n, r->loop)->end; i++)
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_fold)
            fold_lanes(n, r, c, opq_nest_value(n, opq_nest_stmt(n, i)->operand[0]), &held[c]), c++;
        else
            opq_nest_run_one(n, i, i + 1);
}

void opq_emit_scan_row(opq_nest *n, int loop, LLVMValueRef from, LLVMValueRef to)
{
    row r = {.loop = loop};
    LLVMValueRef held[OPQ_CARRIED_MAX];
    for (int i = loop + 1; i < opq_nest_stmt(n, loop)->end; i++) {
        int carry = opq_nest_stmt(n, i)->access;
        if (opq_nest_stmt(n, i)->op != OPQ_STMT_fold)
            continue;
        if (r.count == OPQ_REDUCTION_MAX || !opq_carry_scans(n, carry)) {
            opq_nest_refuse(n, opq_nest_stmt(n, i));
            return;
        }
        LLVMTypeRef lanes = LLVMArrayType2(opq_memory_type(n->e, opq_carry_dtype(n, carry)), (uint64_t)n->e->lanes);
        for (int which = 0; which < 2; which++)
            r.lanes[which][r.count] = opq_nest_stack(n, lanes);
        held[r.count] = opq_nest_value(n, carry);
        r.carry[r.count++] = carry;
    }
    opq_span span = {.loop = loop, .copies = 1, .rotate = 1, .carried = r.count, .run = run_vector, .data = &r};
    opq_nest_span(n, &span, from, to, held);
}
