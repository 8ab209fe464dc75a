/* Loops as text. A number is an argument (d3) or nothing: what does not move an access is not written.
 *
 *   kernel @softmax_0(b0: f32, b1: out f32) over i, j {
 *     parallel i < d0 {
 *       lanes j < d1 {
 *         %3 = load f32 b0[d2 + i*d3 + j]
 */
#include "fusion/loop.h"

static const char *const role_names[] = {"parallel", "each",   "vector", "unroll", "serial",
                                         "lanes",    "column", "chain",  "pairs",  "pairs16"};
const char *opq_loop_role_name(opq_loop_role role) { return role_names[role]; }

_Static_assert(OPQ_VARIABLE_MAX <= 20, "a letter per loop");
char opq_loop_letter(int loop) { return "ijklmnopqrstuvwxyzef"[loop]; }

static const char *const stmt_names[] = {"load",         "load_at", "check",  "store",
                                         "store_add_at", "number",  "inside", "nonzero"};
_Static_assert(OPQ_OP_COUNT + sizeof stmt_names / sizeof *stmt_names == OPQ_STMT_loop, "a name for each with operands");
const char *opq_stmt_name(int op)
{
    return op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)op)->name : stmt_names[op - OPQ_OP_COUNT];
}

static void indent(opq_text *text, int depth)
{
    for (int i = 0; i < depth; i++)
        opq_text_add(text, "  ");
}

/* b0[d2 + i*d3 + j], with the index of a load_at times its stride and its bound: b0[d2 + %4*d5 < d6] */
static void print_access(const opq_loops *k, const opq_stmt *stmt, opq_text *text)
{
    const opq_access *a = &k->accesses[stmt->access];
    int dims = opq_dims_of(k->rank, stmt->access);
    if (a->buffer >= 0)
        opq_text_add(text, " b%d", a->buffer);
    opq_text_add(text, "%s[d%d", a->buffer >= 0 ? "" : " ", dims);
    for (int l = 0; l < k->rank; l++) {
        if (a->stride[l] == OPQ_STRIDE_one)
            opq_text_add(text, " + %c", opq_loop_letter(l));
        else if (a->stride[l] == OPQ_STRIDE_back)
            opq_text_add(text, " - %c", opq_loop_letter(l));
        else if (a->stride[l] > OPQ_STRIDE_one && a->stride[l] < OPQ_STRIDE_any)
            opq_text_add(text, " + %c*%d", opq_loop_letter(l), a->stride[l]);
        else if (a->stride[l] == OPQ_STRIDE_any)
            opq_text_add(text, " + %c*d%d", opq_loop_letter(l), dims + 1 + l);
    }
    if (opq_op_checks(stmt->op))
        opq_text_add(text, " + %%%d*d%d", stmt->operand[0], dims + 1 + k->rank);
    if (opq_op_checks(stmt->op) || stmt->op == OPQ_STMT_inside)
        opq_text_add(text, " < d%d", dims + 2 + k->rank);
    opq_text_add(text, "]");
}

static void print_local(const opq_loops *k, const opq_stmt *local, int number, opq_text *text)
{
    opq_text_add(text, " e%d[", number);
    const char *before = "";
    for (int l = 0; l < k->rank; l++)
        if (local->variables >> l & 1) {
            opq_text_add(text, "%s%c", before, opq_loop_letter(l));
            before = ", ";
        }
    opq_text_add(text, "]");
}

/* %2 = carry sum f32 by 64, fold f32 %2, %8, %9 = halves f32 %2 and %9 = at i64 %2 */
static void print_carried(const opq_stmt *stmt, int i, opq_text *text)
{
    const char *dtype = opq_dtype_name((opq_dtype)stmt->dtype);
    if (stmt->op == OPQ_STMT_carry)
        opq_text_add(text, stmt->by ? "%%%d = carry %s %s by %d\n" : "%%%d = carry %s %s\n", i,
                     opq_stmt_name((int)stmt->value.i), dtype, stmt->by);
    else if (stmt->op != OPQ_STMT_fold)
        opq_text_add(text, "%%%d = %s %s %%%d\n", i, stmt->op == OPQ_STMT_at ? "at" : "halves", dtype, stmt->access);
    else
        opq_text_add(text, "fold %s %%%d, %%%d\n", dtype, stmt->access, stmt->operand[0]);
}

/* " 0x1p+0" of a constant, " s2" of a scalar, " to f16" of a cast that rounds, nothing of any other op. */
static void print_value(int op, opq_dtype dtype, opq_number value, opq_text *text)
{
    opq_class class_ = op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)op)->class_ : OPQ_CLASS_COUNT;
    if (class_ == OPQ_CLASS_SCALAR)
        opq_text_add(text, " s%lld", (long long)value.i);
    else if (class_ == OPQ_CLASS_CAST && opq_dtype_is_half((opq_dtype)value.i))
        opq_text_add(text, " to %s", opq_dtype_name((opq_dtype)value.i));
    else if (class_ == OPQ_CLASS_SCAN && value.i != dtype)
        opq_text_add(text, " in %s", opq_dtype_name((opq_dtype)value.i));
    else if (class_ == OPQ_CLASS_CONST && opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        opq_text_add(text, " %a", value.f);
    else if (class_ == OPQ_CLASS_CONST)
        opq_text_add(text, " %lld", (long long)value.i);
}

static void print_stmt(const opq_loops *k, int i, opq_text *text)
{
    const opq_stmt *stmt = &k->stmts[i];
    if (stmt->op >= OPQ_STMT_carry) {
        print_carried(stmt, i, text);
        return;
    }
    bool local = stmt->op == OPQ_STMT_keep || stmt->op == OPQ_STMT_kept;
    int op = !local ? stmt->op : stmt->op == OPQ_STMT_keep ? OPQ_STMT_store : OPQ_STMT_load;
    if (opq_stmt_gives(op))
        opq_text_add(text, "%%%d = ", i);
    opq_text_add(text, "%s %s", opq_stmt_name(op), opq_dtype_name((opq_dtype)stmt->dtype));
    if (local)
        print_local(k, &k->stmts[stmt->access], stmt->access, text);
    else if (stmt->access >= 0)
        print_access(k, stmt, text);
    const char *before = stmt->access >= 0 ? ", " : " ";
    for (int o = opq_op_checks(op); o < 3; o++)
        if (stmt->operand[o] >= 0) {
            opq_text_add(text, "%s%%%d", before, stmt->operand[o]);
            before = ", ";
        }
    print_value(op, (opq_dtype)stmt->dtype, stmt->value, text);
    opq_text_add(text, "\n");
}

static void print_body(const opq_loops *k, int from, int to, int depth, opq_text *text)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        indent(text, depth);
        if (stmt->op == OPQ_STMT_loop) {
            bool fixed = stmt->value.i > 0;
            opq_text_add(text, "%s %c ", opq_loop_role_name((opq_loop_role)stmt->role), opq_loop_letter(stmt->variable));
            if (stmt->by)
                opq_text_add(text, "by %d", stmt->by);
            else
                opq_text_add(text, "< %s%d", fixed ? "" : "d", fixed ? (int)stmt->value.i : stmt->variable);
            if (stmt->variables)
                opq_text_add(text, " along %c", opq_loop_letter(__builtin_ctz(stmt->variables)));
            if (stmt->within)
                opq_text_add(text, " in %c", opq_loop_letter(stmt->within - 1));
            opq_text_add(text, " {\n");
            print_body(k, i + 1, stmt->end, depth + 1, text);
            indent(text, depth);
            opq_text_add(text, "}\n");
            i = stmt->end - 1;
        } else if (stmt->op == OPQ_STMT_local) {
            opq_text_add(text, "local %s", opq_dtype_name((opq_dtype)stmt->dtype));
            print_local(k, stmt, i, text);
            opq_text_add(text, "\n");
        } else {
            print_stmt(k, i, text);
        }
    }
}

void opq_loops_print(const opq_loops *loops, opq_text *out_text)
{
    static const char *const uses[] = {"", "out ", "own "};
    opq_text_add(out_text, "%s @%s(", loops->scheduled ? "schedule" : "kernel", loops->name ? loops->name : "");
    for (int i = 0; i < loops->buffer_count; i++)
        opq_text_add(out_text, "%sb%d: %s%s", i ? ", " : "", i, uses[loops->written[i]],
                     opq_dtype_name(opq_loops_buffer_dtype(loops, i)));
    opq_text_add(out_text, ") over ");
    for (int l = 0; l < loops->rank; l++)
        opq_text_add(out_text, "%s%c", l ? ", " : "", opq_loop_letter(l));
    opq_text_add(out_text, loops->by_rows ? " by rows {\n" : " {\n");
    print_body(loops, 0, loops->stmt_count, 1, out_text);
    opq_text_add(out_text, "}\n");
}
