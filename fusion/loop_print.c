/* Loops as text. A number is an argument (d3) or nothing: what does not move an access is not written.
 *
 *   kernel @softmax_0(b0: f32, b1: out f32) over i, j {
 *     parallel i < d0 {
 *       lanes j < d1 {
 *         %3 = load f32 b0[d2 + i*d3 + j]
 */
#include "fusion/loop.h"

static const char variables[] = "ijklmnopqrstuvwx";

static void indent(opq_text *text, int depth)
{
    for (int i = 0; i < depth; i++)
        opq_text_add(text, "  ");
}

static const char *name_of(const opq_stmt *stmt)
{
    if (stmt->op < OPQ_OP_COUNT)
        return opq_op_info_of((opq_op)stmt->op)->name;
    switch ((int)stmt->op) {
    case OPQ_INSTR_load: return "load";
    case OPQ_INSTR_load_at: return "load_at";
    case OPQ_INSTR_check: return "check";
    case OPQ_INSTR_store: return "store";
    case OPQ_INSTR_store_add_at: return "store_add_at";
    case OPQ_INSTR_number: return "number";
    case OPQ_INSTR_nonzero: return "nonzero";
    case OPQ_STMT_keep: return "store";
    case OPQ_STMT_kept: return "load";
    }
    return "?";
}

/* b0[d2 + i*d3 + j], with the index of a load_at times its stride and its bound: b0[d2 + %4*d5 < d6] */
static void print_access(const opq_loops *k, const opq_stmt *stmt, opq_text *text)
{
    const opq_access *a = &k->accesses[stmt->access];
    int dims = k->rank + stmt->access * (k->rank + 3);
    bool at = stmt->op == OPQ_INSTR_load_at || stmt->op == OPQ_INSTR_store_add_at || stmt->op == OPQ_INSTR_check;
    if (a->buffer >= 0)
        opq_text_add(text, " b%d", a->buffer);
    opq_text_add(text, "%s[d%d", a->buffer >= 0 ? "" : " ", dims);
    for (int l = 0; l < k->rank; l++) {
        if (a->stride[l] == OPQ_STRIDE_one)
            opq_text_add(text, " + %c", variables[l]);
        else if (a->stride[l] == OPQ_STRIDE_any)
            opq_text_add(text, " + %c*d%d", variables[l], dims + 1 + l);
    }
    if (at)
        opq_text_add(text, " + %%%d*d%d < d%d", stmt->operand[0], dims + 1 + k->rank, dims + 2 + k->rank);
    opq_text_add(text, "]");
}

static void print_local(const opq_loops *k, const opq_stmt *local, int number, opq_text *text)
{
    opq_text_add(text, " e%d[", number);
    const char *before = "";
    for (int l = 0; l < k->rank; l++)
        if (local->variables >> l & 1) {
            opq_text_add(text, "%s%c", before, variables[l]);
            before = ", ";
        }
    opq_text_add(text, "]");
}

static void print_value(const opq_stmt *stmt, opq_text *text)
{
    opq_class class_ = stmt->op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)stmt->op)->class_ : OPQ_CLASS_COUNT;
    if (class_ == OPQ_CLASS_SCALAR)
        opq_text_add(text, " s%lld", (long long)stmt->value.i);
    else if (class_ == OPQ_CLASS_CAST && (stmt->value.i == OPQ_f16 || stmt->value.i == OPQ_bf16))
        opq_text_add(text, " to %s", opq_dtype_name((opq_dtype)stmt->value.i));
    else if (class_ == OPQ_CLASS_CONST && opq_dtype_kind_of((opq_dtype)stmt->dtype) == OPQ_KIND_FLOAT)
        opq_text_add(text, " %a", stmt->value.f);
    else if (class_ == OPQ_CLASS_CONST)
        opq_text_add(text, " %lld", (long long)stmt->value.i);
}

static bool has_value(const opq_stmt *stmt)
{
    return stmt->op != OPQ_INSTR_store && stmt->op != OPQ_INSTR_store_add_at && stmt->op != OPQ_INSTR_check &&
           stmt->op != OPQ_INSTR_nonzero && stmt->op != OPQ_STMT_keep;
}

static void print_stmt(const opq_loops *k, int i, opq_text *text)
{
    const opq_stmt *stmt = &k->stmts[i];
    bool local = stmt->op == OPQ_STMT_keep || stmt->op == OPQ_STMT_kept;
    if (has_value(stmt))
        opq_text_add(text, "%%%d = ", i);
    opq_text_add(text, "%s %s", name_of(stmt), opq_dtype_name((opq_dtype)stmt->dtype));
    if (local)
        print_local(k, &k->stmts[stmt->access], stmt->access, text);
    else if (stmt->access >= 0)
        print_access(k, stmt, text);
    bool at = stmt->op == OPQ_INSTR_load_at || stmt->op == OPQ_INSTR_store_add_at || stmt->op == OPQ_INSTR_check;
    const char *before = stmt->access >= 0 ? ", " : " ";
    for (int o = at ? 1 : 0; o < 3; o++)
        if (stmt->operand[o] >= 0) {
            opq_text_add(text, "%s%%%d", before, stmt->operand[o]);
            before = ", ";
        }
    print_value(stmt, text);
    opq_text_add(text, "\n");
}

static void print_body(const opq_loops *k, int from, int to, int depth, opq_text *text)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        indent(text, depth);
        if (stmt->op == OPQ_STMT_loop) {
            opq_text_add(text, "%s %c < d%d {\n", opq_loop_role_name((opq_loop_role)stmt->role),
                         variables[stmt->variable], stmt->variable);
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

static const char *dtype_of_buffer(const opq_loops *k, int buffer)
{
    for (int a = 0; a < k->access_count; a++)
        if (k->accesses[a].buffer == buffer)
            return opq_dtype_name((opq_dtype)k->accesses[a].dtype);
    return "raw8";
}

void opq_loops_print(const opq_loops *loops, opq_text *out_text)
{
    opq_text_add(out_text, "kernel @%s(", loops->name ? loops->name : "");
    for (int i = 0; i < loops->buffer_count; i++)
        opq_text_add(out_text, "%sb%d: %s%s", i ? ", " : "", i, loops->written[i] ? "out " : "",
                     dtype_of_buffer(loops, i));
    opq_text_add(out_text, ") over ");
    for (int l = 0; l < loops->rank; l++)
        opq_text_add(out_text, "%s%c", l ? ", " : "", variables[l]);
    opq_text_add(out_text, " {\n");
    print_body(loops, 0, loops->stmt_count, 1, out_text);
    opq_text_add(out_text, "}\n");
}
