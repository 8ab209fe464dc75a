/* A kernel as one C function: declarations of what the body reads, then its loops as they stand in the tree.
 *
 *   const float v7 = b0[d2 + i*d3 + j];      %7 = load f32 b0[d2 + i*d3 + j] in the tree's text
 *
 * Loops run in order whatever their role is. `omp simd` stands before a vector loop that holds no other loop, folds nothing and cannot fail:
 * its iterations are independent, and a lane computes what an iteration does, so no bit changes. Locals are arrays for the whole call.
 */
#include "codegen_c/printer.h"
#include "fusion/schedule.h"
#include "graph/eval.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

void opq_c_line(opq_c_printer *p) { ADD(p, "%*s", 4 * p->depth, ""); }

/* ---- folds */

/* "lanes_sum_f32", "column_amax_i8", "argmax_f32": of opaque/kernel.h */
static void fold_name(opq_c_printer *p, const opq_stmt *stmt, opq_loop_role role)
{
    opq_fold fold = opq_op_lowering((opq_op)stmt->op)->fold;
    opq_dtype operand = (opq_dtype)p->k->stmts[stmt->operand[0]].dtype;
    opq_dtype dtype = opq_eval_fold_dtype(fold, operand, (opq_dtype)stmt->dtype);
    if (opq_fold_is_arg(fold))
        ADD(p, "opq_%s_%s", opq_fold_info_of(fold)->name, opq_c_suffix(dtype));
    else
        ADD(p, "opq_%s_%s_%s", opq_loop_role_name(role), opq_stmt_name(stmt->op),
            opq_fold_info_of(fold)->held == OPQ_HELD_result ? opq_c_suffix(dtype) : opq_dtype_name(dtype));
}

/* The rule is that of the loop around; `loop` is any reducing one around the fold, all have the same. */
static void print_add(opq_c_printer *p, int i, opq_loop_role role)
{
    const opq_stmt *stmt = &p->k->stmts[i];
    opq_c_line(p);
    if (opq_loop_pairs(role)) {
        ADD(p, "opq_pairs_add(&fold%d, v%d, v%d, %d);\n", i, stmt->operand[0], stmt->operand[1], opq_loop_pairs(role));
        return;
    }
    if (opq_op_contracts(stmt->op) && stmt->dtype == OPQ_i32) {
        ADD(p, "v%d = (int32_t)((uint32_t)v%d + (uint32_t)v%d * (uint32_t)v%d);\n", i, i, stmt->operand[0],
            stmt->operand[1]);
        return;
    }
    if (opq_op_contracts(stmt->op)) {
        ADD(p, "v%d = %s(v%d, v%d, v%d);\n", i, stmt->dtype == OPQ_f64 ? "fma" : "fmaf", stmt->operand[0],
            stmt->operand[1], i);
        return;
    }
    fold_name(p, stmt, role);
    ADD(p, "_add(&fold%d, v%d);\n", i, stmt->operand[0]);
}

/* Of the folds in a nest of reducing loops: their states before it, their results behind it. */
static void print_folds(opq_c_printer *p, int loop, bool behind)
{
    const opq_stmt *stmts = p->k->stmts;
    opq_loop_role role = (opq_loop_role)stmts[loop].role;
    int innermost = loop;
    for (int i = loop + 1; i < stmts[loop].end; i++)
        if (stmts[i].op == OPQ_STMT_loop)
            innermost = i;
    for (int i = loop + 1; i < stmts[loop].end; i++) {
        if (!opq_op_reduces(stmts[i].op) || (behind && role == OPQ_LOOP_chain))
            continue;
        opq_c_line(p);
        if (role == OPQ_LOOP_chain) {
            ADD(p, "%s v%d = 0;\n", opq_c_type((opq_dtype)stmts[i].dtype), i);
            continue;
        }
        if (opq_loop_pairs(role)) {
            if (behind)
                ADD(p, "const float v%d = opq_pairs_end(&fold%d, %d);\n", i, i, opq_loop_pairs(role));
            else
                ADD(p, "opq_pairs fold%d = {0};\n", i);
            continue;
        }
        if (behind) {
            ADD(p, "const %s v%d = ", opq_c_type((opq_dtype)stmts[i].dtype), i);
            fold_name(p, &stmts[i], role);
            ADD(p, "_end(&fold%d);\n", i);
            continue;
        }
        fold_name(p, &stmts[i], role);
        ADD(p, " fold%d = ", i);
        fold_name(p, &stmts[i], role);
        ADD(p, "_begin(");
        opq_fold fold = opq_op_lowering((opq_op)stmts[i].op)->fold;
        if (role == OPQ_LOOP_lanes && !opq_fold_is_arg(fold) && stmts[loop].within)
            ADD(p, "OPQ_CHUNK"); /* a block is one run */
        else if (role == OPQ_LOOP_lanes && !opq_fold_is_arg(fold))
            opq_c_dim(p, stmts[innermost].variable);
        ADD(p, ");\n");
    }
}

/* ---- statements */

/* Once more than a sum: what stands there is read, added to in its computing type and rounded again. */
static void print_store_add_at(opq_c_printer *p, const opq_stmt *stmt)
{
    bool real = opq_dtype_kind_of((opq_dtype)stmt->dtype) == OPQ_KIND_FLOAT;
    ADD(p, "if (");
    opq_c_inside(p, stmt);
    ADD(p, ") {\n");
    p->depth++;
    opq_c_line(p);
    ADD(p, "const %s sum = %s", opq_c_type((opq_dtype)stmt->dtype), real ? "" : "opq_add_i64(");
    opq_c_load(p, stmt);
    ADD(p, real ? " + v%d;\n" : ", v%d);\n", stmt->operand[1]);
    opq_c_line(p);
    opq_c_store(p, stmt, "sum");
    p->depth--;
    opq_c_line(p);
    ADD(p, "}\n");
}

static opq_status print_stmt(opq_c_printer *p, int i)
{
    const opq_stmt *stmt = &p->k->stmts[i];
    char value[16];
    if (stmt->op >= OPQ_STMT_carry)
        return opq_c_carried(p, i), OPQ_OK;
    opq_c_line(p);
    snprintf(value, sizeof value, "v%d", stmt->operand[0]);
    switch ((int)stmt->op) {
    case OPQ_STMT_store: opq_c_store(p, stmt, value); return OPQ_OK;
    case OPQ_STMT_store_add_at: print_store_add_at(p, stmt); return OPQ_OK;
    case OPQ_STMT_keep:
        opq_c_local_place(p, stmt->access);
        ADD(p, " = %s;\n", value);
        return OPQ_OK;
    case OPQ_STMT_check:
        opq_c_inside(p, stmt);
        ADD(p, ";\n");
        return OPQ_OK;
    case OPQ_STMT_nonzero:
        ADD(p, "opq_nonzero(%s, %d, error);\n", value, opq_loops_origin(p->k, i) + 1);
        p->error = true;
        return OPQ_OK;
    }
    if (opq_op_scans(stmt->op)) {
        opq_c_scan_next(p, i);
        opq_c_line(p);
    }
    ADD(p, "const %s v%d = ", opq_c_type((opq_dtype)stmt->dtype), i);
    OPQ_TRY(opq_c_expression(p, stmt));
    ADD(p, ";\n");
    return OPQ_OK;
}

/* May its iterations be lanes in C, too? Not if they hold loops, fold into one place, or may note an error, of which the first one counts. */
static bool may_be_simd(const opq_loops *k, int loop)
{
    if (k->stmts[loop].role != OPQ_LOOP_vector || k->stmts[loop].end == loop + 1)
        return false;
    for (int i = loop + 1; i < k->stmts[loop].end; i++)
        if (k->stmts[i].op == OPQ_STMT_loop || k->stmts[i].op == OPQ_STMT_fold || k->stmts[i].op == OPQ_STMT_nonzero ||
            opq_op_checks(k->stmts[i].op))
            return false;
    return true;
}

static opq_status print_body(opq_c_printer *p, int from, int to, opq_loop_role role);

static opq_status print_loop(opq_c_printer *p, int i)
{
    const opq_stmt *loop = &p->k->stmts[i];
    opq_loop_role role = (opq_loop_role)loop->role;
    bool outermost = opq_loop_reduces(role) && p->reducing == 0;
    if (outermost)
        print_folds(p, i, false);
    for (int k = i + 1; k < loop->end && p->k->stmts[k].op != OPQ_STMT_loop; k++)
        if (opq_op_scans(p->k->stmts[k].op)) {
            opq_c_line(p);
            opq_c_scan_start(p, k);
        }
    if (may_be_simd(p->k, i))
        ADD(p, "#pragma omp simd\n");
    opq_c_line(p);
    opq_c_for(p, i);
    p->depth++;
    p->reducing += opq_loop_reduces(role);
    OPQ_TRY(print_body(p, i + 1, loop->end, role));
    p->reducing -= opq_loop_reduces(role);
    p->depth--;
    opq_c_line(p);
    ADD(p, "}\n");
    if (outermost)
        print_folds(p, i, true);
    return OPQ_OK;
}

/* `role`: of the loop around */
static opq_status print_body(opq_c_printer *p, int from, int to, opq_loop_role role)
{
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &p->k->stmts[i];
        if (stmt->op == OPQ_STMT_loop) {
            OPQ_TRY(print_loop(p, i));
            i = stmt->end - 1;
        } else if (stmt->op == OPQ_STMT_local) {
            p->locals = true;
        } else if (opq_op_reduces(stmt->op)) {
            print_add(p, i, role);
        } else {
            OPQ_TRY(print_stmt(p, i));
        }
    }
    return OPQ_OK;
}

/* ---- declarations */

/* "const int64_t d2 = dims[2], d3 = dims[3]; // b0: offset, stride of i" for those of dims [from, to) that are read */
static void print_dims(opq_c_printer *p, int from, int to, const char *what, opq_text *out)
{
    static const char *const of_index[] = {"stride of the index", "its bound"};
    int rank = p->k->rank, shown = 0;
    opq_text comment = {0};
    for (int d = from; d < to; d++) {
        if (!p->dims[d])
            continue;
        const char *between = shown++ ? ", " : "";
        int part = d - from;
        opq_text_add(out, "%sd%d = dims[%d]", *between ? between : "    const int64_t ", d, d);
        if (from == 0)
            opq_text_add(&comment, "%s%c", between, opq_loop_letter(d));
        else if (part == 0)
            opq_text_add(&comment, "%soffset", between);
        else if (part <= rank)
            opq_text_add(&comment, "%sstride of %c", between, opq_loop_letter(part - 1));
        else
            opq_text_add(&comment, "%s%s", between, of_index[part - rank - 1]);
    }
    if (shown)
        opq_text_add(out, "; /* %s%s */\n", what, comment.data ? comment.data : "");
    out->failed |= comment.failed;
    opq_text_drop(&comment);
}

static void print_declarations(opq_c_printer *p, opq_text *out)
{
    const opq_loops *k = p->k;
    for (int b = 0; b < k->buffer_count; b++)
        if (p->buffers[b])
            opq_text_add(out, "    %s%s *const b%d = buffers[%d];\n", k->written[b] ? "" : "const ",
                         opq_c_memory_type(opq_loops_buffer_dtype(k, b)), b, b);
    print_dims(p, 0, k->rank, "extents of ", out);
    for (int a = 0; a < k->access_count; a++) {
        char what[32] = "";
        if (k->accesses[a].buffer >= 0)
            snprintf(what, sizeof what, "b%d: ", k->accesses[a].buffer);
        print_dims(p, opq_dims_of(k->rank, a), opq_dims_of(k->rank, a + 1), what, out);
    }
    bool any = false, sized = false;
    for (int b = 0; b < k->buffer_count; b++)
        any |= p->buffers[b];
    for (int d = 0; d < opq_loops_dims_count(k); d++)
        sized |= p->dims[d];
    opq_text_add(out, "%s%s%s%s", any ? "" : "    (void)buffers;\n", sized ? "" : "    (void)dims;\n",
                 p->scalars ? "" : "    (void)scalars;\n", p->error || p->locals ? "" : "    (void)error;\n");
}

/* An array for each local, and the check that all were given. */
static void print_locals(const opq_c_printer *p, opq_text *out)
{
    const opq_loops *k = p->k;
    opq_text missing = {0};
    for (int i = 0; i < k->stmt_count; i++) {
        if (k->stmts[i].op != OPQ_STMT_local)
            continue;
        const char *type = opq_c_type((opq_dtype)k->stmts[i].dtype);
        opq_text_add(out, "    %s *const e%d = malloc(sizeof(%s)", type, i, type);
        for (int l = 0; l < k->rank; l++)
            if (k->stmts[i].variables >> l & 1)
                opq_text_add(out, " * (size_t)d%d", l);
        opq_text_add(out, " + 1);\n"); /* an empty one is given, too */
        opq_text_add(&missing, "%s!e%d", missing.length ? " || " : "", i);
    }
    if (missing.length)
        opq_text_add(out, "    if (%s) {\n        error[0] = -1;\n        goto done;\n    }\n", missing.data);
    out->failed |= missing.failed;
    opq_text_drop(&missing);
}

static void print_end(const opq_c_printer *p, opq_text *out)
{
    if (p->locals)
        opq_text_add(out, "done:\n");
    for (int i = 0; i < p->k->stmt_count; i++)
        if (p->k->stmts[i].op == OPQ_STMT_local)
            opq_text_add(out, "    free(e%d);\n", i);
    opq_text_add(out, "}\n");
}

/* ---- the function */

static void print_head(const char *name, opq_text *out)
{
    opq_text_add(out, "\nvoid %s", isdigit((unsigned char)*name) ? "_" : "");
    for (; *name; name++)
        opq_text_add(out, "%c", isalnum((unsigned char)*name) ? *name : '_');
    opq_text_add(out, "(void *const *buffers, const int64_t *dims, const opq_number *scalars, int64_t error[2])\n{\n");
}

void opq_c_begin(opq_text *out_text)
{
    opq_text_add(out_text, "/* cc -O2 -ffp-contract=off -fopenmp-simd: docs/ir.md tells what b0 and d0 are. */\n"
                           "#include \"opaque/kernel.h\"\n");
}

/* Locals are as large as the extents of their loops, which the body may not read otherwise. */
static void note_extents_of_locals(opq_c_printer *p)
{
    for (int i = 0; i < p->k->stmt_count; i++)
        for (int l = 0; l < p->k->rank; l++)
            if (p->k->stmts[i].op == OPQ_STMT_local && p->k->stmts[i].variables >> l & 1)
                p->dims[l] = true;
}

opq_status opq_c_kernel(const opq_loops *loops, const char *name, opq_text *out_text)
{
    opq_c_printer p = {.k = loops, .depth = 1};
    p.dims = calloc((size_t)opq_dims_of(loops->rank, loops->access_count) + 1, sizeof *p.dims);
    if (p.dims == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory while printing C");
    opq_status status = print_body(&p, 0, loops->stmt_count, OPQ_LOOP_serial);
    note_extents_of_locals(&p);
    if (status == OPQ_OK) {
        print_head(name, out_text);
        print_declarations(&p, out_text);
        print_locals(&p, out_text);
        opq_text_bytes(out_text, p.text.data, p.text.length);
        print_end(&p, out_text);
        out_text->failed |= p.text.failed;
    }
    opq_text_drop(&p.text);
    free(p.dims);
    return status;
}

opq_status opq_c_schedule(const opq_loops *loops, const char *name, opq_text *out_text)
{
    opq_arena arena = {0};
    opq_loops schedule;
    opq_status status = opq_schedule(loops, &arena, &schedule);
    if (status == OPQ_OK)
        status = opq_c_kernel(&schedule, name, out_text);
    opq_arena_drop(&arena);
    return status;
}
