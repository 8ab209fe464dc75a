/* The head of a loop in C: which turns it runs, all of them or a block.
 *
 *   for (int64_t k = 0; k < opq_blocks(d0, 4096); k++)                                     serial k by 4096
 *   for (int64_t i = k*4096; i < opq_minimum_i64(k*4096 + 4096, d0); i++)                  vector i < d0 in k
 *
 * Nested loops in one block are one sequence, of which it begins and ends anywhere: opq_block_from and opq_block_to tell the turns.
 */
#include "codegen_c/printer.h"

#include <stdio.h>

static bool is_in_block(const opq_stmt *stmt, int within)
{
    return stmt->op == OPQ_STMT_loop && stmt->within == within;
}

static void print_all_turns(opq_c_printer *p, int loop);

/* "1", or "d2*d3": turns of the loops inside that are in the block `within`. */
static void print_inside(opq_c_printer *p, int loop, int within)
{
    bool any = false;
    for (int i = loop + 1, end = p->k->stmts[loop].end; i < end; i++) /* one in the other */
        if (is_in_block(&p->k->stmts[i], within)) {
            ADD(p, any ? "*" : "");
            print_all_turns(p, i);
            any = true;
            end = p->k->stmts[i].end;
        }
    ADD(p, any ? "" : "1");
}

static void print_all_turns(opq_c_printer *p, int loop)
{
    const opq_stmt *own = &p->k->stmts[loop];
    if (!own->by) {
        opq_c_dim(p, own->variable);
        return;
    }
    ADD(p, "opq_blocks(");
    print_inside(p, loop, own->variable + 1);
    ADD(p, ", %d)", own->by);
}

/* "0", or "i*d3 + j*1": elements before the loop; those of the block's loops around it. */
static void print_before(opq_c_printer *p, int loop)
{
    const opq_stmt *stmts = p->k->stmts;
    bool any = false;
    for (int i = 0; i < loop; i++)
        if (is_in_block(&stmts[i], stmts[loop].within) && stmts[i].end >= stmts[loop].end) {
            ADD(p, "%s%c*", any ? " + " : "", opq_loop_letter(stmts[i].variable));
            print_inside(p, i, stmts[loop].within);
            any = true;
        }
    ADD(p, any ? "" : "0");
}

/* "opq_block_from(k, 4096, i*d1, 1": its block, and where it stands in the sequence */
static void print_block(opq_c_printer *p, int loop, const char *which, const char *size)
{
    int within = p->k->stmts[loop].within;
    ADD(p, "opq_block_%s(%c, %s, ", which, opq_loop_letter(within - 1), size);
    print_before(p, loop);
    ADD(p, ", ");
    print_inside(p, loop, within);
}

static void print_turns_of_block(opq_c_printer *p, int i)
{
    const opq_stmt *loop = &p->k->stmts[i];
    char letter = opq_loop_letter(loop->variable), block = opq_loop_letter(loop->within - 1), size[24] = "OPQ_CHUNK";
    if (loop->within > p->k->rank)
        snprintf(size, sizeof size, "%d", (int)opq_loop_block(p->k, i));
    if (opq_loop_shares_block(p->k, i, false) || opq_loop_shares_block(p->k, i, true)) {
        print_block(p, i, "from", size);
        ADD(p, "), %c1 = ", letter);
        print_block(p, i, "to", size);
        ADD(p, ", ");
        print_all_turns(p, i);
        ADD(p, "); %c < %c1", letter, letter);
    } else {
        ADD(p, "%c*%s; %c < opq_minimum_i64(%c*%s + %s, ", block, size, letter, block, size, size);
        print_all_turns(p, i);
        ADD(p, ")");
    }
}

void opq_c_for(opq_c_printer *p, int loop)
{
    const opq_stmt *own = &p->k->stmts[loop];
    char letter = opq_loop_letter(own->variable);
    ADD(p, "for (int64_t %c = ", letter);
    if (own->within) {
        print_turns_of_block(p, loop);
    } else {
        ADD(p, "0; %c < ", letter);
        print_all_turns(p, loop);
    }
    ADD(p, "; %c++) { /* %s */\n", letter, opq_loop_role_name((opq_loop_role)own->role));
}
