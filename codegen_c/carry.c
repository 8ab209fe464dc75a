/* What schedules carry from turn to turn: a variable, or an array of partial results.
 *
 *   float v1 = 0;                                     %1 = carry sum f32
 *   v1 = v1 + v7;                                     fold f32 %1, %7
 *
 *   float v1[64];                                     %1 = carry sum f32 by 64
 *   for (int part = 0; part < 64; part++)
 *       v1[part] = 0;
 *   v1[i % 64] = v1[i % 64] + v7;                     fold f32 %1, %7
 *   for (int half = 32; half > 0; half /= 2)          %9 = halves f32 %1
 *       for (int part = 0; part < half; part++)
 *           v1[part] = v1[part] + v1[part + half];
 *   const float v9 = v1[0];
 *
 * The turn is the index of the loop where that tells; where several loops fold it is counted: turn1. An argmax has its turn beside it: at1.
 */
#include "codegen_c/printer.h"
#include "graph/eval.h"

#include <stdio.h>

static opq_fold fold_of(const opq_stmt *carry) { return opq_op_lowering((opq_op)carry->value.i)->fold; }
static bool is_arg(const opq_stmt *carry) { return opq_fold_is_arg(fold_of(carry)); }

/* The elementwise row that folds. */
static opq_op combining(const opq_stmt *carry)
{
    bool scans = opq_op_scans((int)carry->value.i);
    return scans ? opq_op_lowering((opq_op)carry->value.i)->combine : opq_fold_info_of(fold_of(carry))->combine;
}

/* The only one that folds into the carry; -1: none, or several. */
static int only_fold(const opq_loops *k, int carry)
{
    int fold = -1;
    for (int i = carry + 1; i < k->stmt_count; i++)
        if (k->stmts[i].op == OPQ_STMT_fold && k->stmts[i].access == carry) {
            if (fold >= 0)
                return -1;
            fold = i;
        }
    return fold;
}

/* The loop whose index is the turn, or, of partial results, has the same one of them; -1: none. It is alone between the carry and what
 * folds, but for loops that count its blocks, and begins at 0 or with a block. */
static int turning_loop(const opq_loops *k, int carry)
{
    int fold = only_fold(k, carry), loop = -1, by = k->stmts[carry].by;
    for (int i = carry + 1; i < fold; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (stmt->op != OPQ_STMT_loop || stmt->end <= fold)
            continue;
        bool begins = !stmt->within || (by && opq_loop_block(k, i) % by == 0);
        bool follows = loop >= 0 ? stmt->within == k->stmts[loop].variable + 1 : begins;
        if (!follows || opq_loop_shares_block(k, i, false) || opq_loop_shares_block(k, i, true))
            return -1;
        loop = i;
    }
    return loop;
}

/* "i", or "turn1" and true: the C counts it. */
static bool find_turn(const opq_loops *k, int carry, char out_turn[16])
{
    int loop = turning_loop(k, carry);
    if (loop >= 0)
        snprintf(out_turn, 16, "%c", opq_loop_letter(k->stmts[loop].variable));
    else
        snprintf(out_turn, 16, "turn%d", carry);
    return loop < 0 && (k->stmts[carry].by || is_arg(&k->stmts[carry]));
}

static void print_carry(opq_c_printer *p, int i)
{
    const opq_stmt *carry = &p->k->stmts[i];
    opq_dtype dtype = (opq_dtype)carry->dtype;
    char turn[16];
    opq_c_line(p);
    ADD(p, "%s v%d", opq_c_type(dtype), i);
    if (carry->by) {
        ADD(p, "[%d];\n", carry->by);
        opq_c_line(p);
        ADD(p, "for (int part = 0; part < %d; part++)\n", carry->by);
        p->depth++;
        opq_c_line(p);
        ADD(p, "v%d[part]", i);
        p->depth--;
    }
    ADD(p, " = ");
    opq_c_literal(p, dtype, opq_eval_identity(fold_of(carry), dtype));
    ADD(p, ";\n");
    if (is_arg(carry))
        opq_c_line(p), ADD(p, "int64_t at%d = 0;\n", i);
    if (find_turn(p->k, i, turn))
        opq_c_line(p), ADD(p, "int64_t %s = 0;\n", turn);
}

/* "opq_argmax_f32_better": of opaque/kernel.h */
static void print_better(opq_c_printer *p, const opq_stmt *fold, const char *turn)
{
    const opq_stmt *carry = &p->k->stmts[fold->access];
    int to = fold->access, from = fold->operand[0];
    ADD(p, "if (opq_%s_%s_better(v%d, v%d)) {\n", opq_fold_info_of(fold_of(carry))->name,
        opq_c_suffix((opq_dtype)carry->dtype), to, from);
    p->depth++;
    opq_c_line(p);
    ADD(p, "v%d = v%d;\n", to, from);
    opq_c_line(p);
    ADD(p, "at%d = %s;\n", to, turn);
    p->depth--;
    opq_c_line(p);
    ADD(p, "}\n");
}

static void print_fold(opq_c_printer *p, const opq_stmt *fold)
{
    const opq_stmt *carry = &p->k->stmts[fold->access];
    char turn[16], place[64], value[16];
    bool counts = find_turn(p->k, fold->access, turn);
    opq_c_line(p);
    if (is_arg(carry)) {
        print_better(p, fold, turn);
    } else {
        snprintf(place, sizeof place, carry->by ? "v%d[%s %% %d]" : "v%d", fold->access, turn, carry->by);
        snprintf(value, sizeof value, "v%d", fold->operand[0]);
        ADD(p, "%s = ", place);
        opq_c_combined(p, combining(carry), (opq_dtype)carry->dtype, place, value);
        ADD(p, ";\n");
    }
    if (counts)
        opq_c_line(p), ADD(p, "%s++;\n", turn);
}

static void print_halves(opq_c_printer *p, int i)
{
    int carry = p->k->stmts[i].access;
    const opq_stmt *of = &p->k->stmts[carry];
    char left[32], right[32];
    snprintf(left, sizeof left, "v%d[part]", carry);
    snprintf(right, sizeof right, "v%d[part + half]", carry);
    opq_c_line(p);
    ADD(p, "for (int half = %d; half > 0; half /= 2)\n", of->by / 2);
    p->depth++;
    opq_c_line(p);
    ADD(p, "for (int part = 0; part < half; part++)\n");
    p->depth++;
    opq_c_line(p);
    ADD(p, "%s = ", left);
    opq_c_combined(p, combining(of), (opq_dtype)of->dtype, left, right);
    ADD(p, ";\n");
    p->depth -= 2;
    opq_c_line(p);
    ADD(p, "const %s v%d = v%d[0];\n", opq_c_type((opq_dtype)of->dtype), i, carry);
}

void opq_c_carried(opq_c_printer *p, int stmt)
{
    const opq_stmt *s = &p->k->stmts[stmt];
    switch ((int)s->op) {
    case OPQ_STMT_carry: print_carry(p, stmt); break;
    case OPQ_STMT_fold: print_fold(p, s); break;
    case OPQ_STMT_halves: print_halves(p, stmt); break;
    case OPQ_STMT_at:
        opq_c_line(p);
        ADD(p, "const int64_t v%d = at%d;\n", stmt, s->access);
        break;
    }
}
