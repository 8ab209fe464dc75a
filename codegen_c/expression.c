/* The C of one value. An operand is v<its statement>; an integer's function computes in i64, and the declaration of the result cuts it. */
#include "codegen_c/printer.h"
#include "graph/eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- types */

const char *opq_c_memory_type(opq_dtype dtype)
{
    static const char *const types[OPQ_DTYPE_COUNT] = {
#define DTYPE(name, bits, kind, c_type, torch) #c_type,
#include "opaque/dtypes.def"
#undef DTYPE
    };
    return types[dtype];
}

const char *opq_c_type(opq_dtype dtype)
{
    if (dtype == OPQ_bool)
        return "bool";
    return dtype == OPQ_f16 || dtype == OPQ_bf16 ? "float" : opq_c_memory_type(dtype);
}

const char *opq_c_suffix(opq_dtype dtype)
{
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT)
        return "i64";
    return dtype == OPQ_f64 ? "f64" : "f32";
}

/* ---- places */

void opq_c_dim(opq_c_printer *p, int dim)
{
    p->dims[dim] = true;
    ADD(p, "d%d", dim);
}

/* d2 + i*d3 + j */
static void offset(opq_c_printer *p, const opq_stmt *stmt)
{
    const opq_access *a = &p->k->accesses[stmt->access];
    int dims = opq_dims_of(p->k->rank, stmt->access);
    opq_c_dim(p, dims);
    for (int l = 0; l < p->k->rank; l++) {
        if (a->stride[l] == OPQ_STRIDE_zero)
            continue;
        ADD(p, " %c %c", a->stride[l] == OPQ_STRIDE_back ? '-' : '+', opq_loop_letter(l));
        if (a->stride[l] > OPQ_STRIDE_one && a->stride[l] < OPQ_STRIDE_any)
            ADD(p, "*%d", a->stride[l]);
        if (a->stride[l] == OPQ_STRIDE_any) {
            ADD(p, "*");
            opq_c_dim(p, dims + 1 + l);
        }
    }
    if (opq_op_checks(stmt->op)) {
        ADD(p, " + v%d*", stmt->operand[0]);
        opq_c_dim(p, dims + 1 + p->k->rank);
    }
}

void opq_c_place(opq_c_printer *p, const opq_stmt *stmt)
{
    int buffer = p->k->accesses[stmt->access].buffer;
    p->buffers[buffer] = true;
    ADD(p, "b%d[", buffer);
    offset(p, stmt);
    ADD(p, "]");
}

void opq_c_local_place(opq_c_printer *p, int local)
{
    const char *before = "";
    ADD(p, "e%d[", local);
    for (int l = 0; l < p->k->rank; l++) {
        if (!(p->k->stmts[local].variables >> l & 1))
            continue;
        ADD(p, "%s%c", before, opq_loop_letter(l));
        for (int inner = l + 1; inner < p->k->rank; inner++)
            if (p->k->stmts[local].variables >> inner & 1) {
                ADD(p, "*");
                opq_c_dim(p, inner);
            }
        before = " + ";
    }
    ADD(p, "%s]", *before ? "" : "0");
}

void opq_c_inside(opq_c_printer *p, const opq_stmt *stmt)
{
    ADD(p, "opq_inside(v%d, ", stmt->operand[0]);
    opq_c_dim(p, opq_dims_of(p->k->rank, stmt->access) + 2 + p->k->rank);
    ADD(p, ", %d, error)", opq_loops_origin(p->k, (int)(stmt - p->k->stmts)) + 1);
    p->error = true;
}

static opq_dtype memory_dtype(const opq_c_printer *p, const opq_stmt *stmt)
{
    return (opq_dtype)p->k->accesses[stmt->access].dtype;
}

void opq_c_load(opq_c_printer *p, const opq_stmt *stmt)
{
    opq_dtype dtype = memory_dtype(p, stmt);
    bool half = dtype == OPQ_f16 || dtype == OPQ_bf16;
    if (half)
        ADD(p, "opq_%s_to_f32(", opq_dtype_name(dtype));
    opq_c_place(p, stmt);
    ADD(p, "%s", half ? ")" : dtype == OPQ_bool ? " != 0" : "");
}

void opq_c_store(opq_c_printer *p, const opq_stmt *stmt, const char *value)
{
    opq_dtype dtype = memory_dtype(p, stmt);
    bool half = dtype == OPQ_f16 || dtype == OPQ_bf16;
    opq_c_place(p, stmt);
    if (half)
        ADD(p, " = opq_f32_to_%s(%s);\n", opq_dtype_name(dtype), value);
    else
        ADD(p, " = %s;\n", value);
}

/* ---- numbers */

static opq_dtype operand_dtype(const opq_c_printer *p, const opq_stmt *stmt)
{
    return (opq_dtype)p->k->stmts[stmt->operand[0]].dtype;
}

void opq_c_literal(opq_c_printer *p, opq_dtype dtype, opq_number value)
{
    const char *suffix = dtype == OPQ_f64 ? "" : "f";
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT && value.i == INT64_MIN)
        ADD(p, "INT64_MIN");
    else if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT)
        ADD(p, "%lld", (long long)value.i);
    else if (value.f != value.f)
        ADD(p, "NAN");
    else if (isinf(value.f))
        ADD(p, "%sINFINITY", value.f < 0 ? "-" : "");
    else if (fabs(value.f) < 1e6 && value.f == (double)(int)value.f && !signbit(value.f))
        ADD(p, "%d", (int)value.f); /* easier to read, and exact */
    else
        ADD(p, "%a%s", value.f, suffix);
}

static void scalar(opq_c_printer *p, const opq_stmt *stmt)
{
    p->scalars = true;
    bool real = opq_dtype_kind_of((opq_dtype)stmt->dtype) == OPQ_KIND_FLOAT;
    ADD(p, "scalars[%lld].%c", (long long)stmt->value.i, real ? 'f' : 'i');
}

static void cast(opq_c_printer *p, const opq_stmt *stmt)
{
    opq_dtype from = operand_dtype(p, stmt), to = (opq_dtype)stmt->dtype;
    opq_dtype_kind kind = opq_dtype_kind_of(to);
    int x = stmt->operand[0];
    bool narrows = to == OPQ_f32 && (stmt->value.i == OPQ_f16 || stmt->value.i == OPQ_bf16);
    if (narrows)
        ADD(p, "opq_round_%s(", opq_dtype_name((opq_dtype)stmt->value.i));
    if (kind == OPQ_KIND_BOOL)
        ADD(p, "v%d != 0", x);
    else if (opq_dtype_kind_of(from) != OPQ_KIND_FLOAT || kind == OPQ_KIND_FLOAT)
        ADD(p, "(%s)v%d", opq_c_type(to), x);
    else /* u8 is the low bits of an i64, i8 and i16 of an i32 */
        ADD(p, "opq_f64_to_%s(v%d)", kind == OPQ_KIND_UINT || to == OPQ_i64 ? "i64" : "i32", x);
    if (narrows)
        ADD(p, ")");
}

/* ---- ops */

static const char *const arith_text[] = {[OPQ_ARITH_FAdd] = "+",
                                         [OPQ_ARITH_FSub] = "-",
                                         [OPQ_ARITH_FMul] = "*",
                                         [OPQ_ARITH_FDiv] = "/",
                                         [OPQ_ARITH_Add] = "opq_add_i64",
                                         [OPQ_ARITH_Sub] = "opq_sub_i64",
                                         [OPQ_ARITH_Mul] = "opq_mul_i64",
                                         [OPQ_ARITH_And] = "&",
                                         [OPQ_ARITH_Or] = "|",
                                         [OPQ_ARITH_Xor] = "^"};
static const char *const cmp_text[] = {
    [OPQ_CMP_OEQ] = "==", [OPQ_CMP_UNE] = "!=", [OPQ_CMP_OLT] = "<", [OPQ_CMP_OLE] = "<=",
    [OPQ_CMP_OGT] = ">",  [OPQ_CMP_OGE] = ">=", [OPQ_CMP_EQ] = "==", [OPQ_CMP_NE] = "!=",
    [OPQ_CMP_SLT] = "<",  [OPQ_CMP_SLE] = "<=", [OPQ_CMP_SGT] = ">", [OPQ_CMP_SGE] = ">=",
    [OPQ_CMP_ULT] = "<",  [OPQ_CMP_ULE] = "<=", [OPQ_CMP_UGT] = ">", [OPQ_CMP_UGE] = ">=",
};

/* An operator between two values, or a function of them. */
static void binary(opq_c_printer *p, const char *how, const opq_stmt *stmt)
{
    if (strncmp(how, "opq_", 4) == 0)
        ADD(p, "%s(v%d, v%d)", how, stmt->operand[0], stmt->operand[1]);
    else
        ADD(p, "v%d %s v%d", stmt->operand[0], how, stmt->operand[1]);
}

/* The identity of the fold that a scan begins with. */
void opq_c_scan_start(opq_c_printer *p, int scan)
{
    const opq_stmt *stmt = &p->k->stmts[scan];
    opq_dtype held = (opq_dtype)stmt->value.i;
    ADD(p, "%s scan%d = ", opq_c_type(held), scan);
    opq_c_literal(p, held, opq_eval_scan_start((opq_op)stmt->op, held));
    ADD(p, ";\n");
}

void opq_c_combined(opq_c_printer *p, opq_op op, opq_dtype dtype, const char *a, const char *b)
{
    const opq_lowering *lowering = opq_op_lowering(op);
    const char *how = lowering->kind == OPQ_LOWER_ARITH ? arith_text[opq_lowering_code(lowering, dtype)] : NULL;
    if (how == NULL)
        ADD(p, "opq_%s_%s(%s, %s)", lowering->text, opq_c_suffix(dtype), a, b);
    else if (strncmp(how, "opq_", 4) == 0)
        ADD(p, "%s(%s, %s)", how, a, b);
    else
        ADD(p, "%s %s %s", a, how, b);
}

/* scan5 = scan5 + (double)v4 */
void opq_c_scan_next(opq_c_printer *p, int scan)
{
    const opq_stmt *stmt = &p->k->stmts[scan];
    opq_dtype held = (opq_dtype)stmt->value.i;
    char value[16], next[32];
    snprintf(value, sizeof value, "scan%d", scan);
    snprintf(next, sizeof next, "%sv%d", held == stmt->dtype ? "" : "(double)", stmt->operand[0]);
    ADD(p, "%s = ", value);
    opq_c_combined(p, opq_op_lowering((opq_op)stmt->op)->combine, held, value, next);
    ADD(p, ";\n");
}

static opq_status call(opq_c_printer *p, const opq_stmt *stmt, const char *name, opq_dtype dtype)
{
    if (strcmp(name, "where") == 0) {
        ADD(p, "v%d ? v%d : v%d", stmt->operand[0], stmt->operand[1], stmt->operand[2]);
        return OPQ_OK;
    }
    if (!opq_op_computes((opq_op)stmt->op, dtype))
        return opq_fail(OPQ_UNSUPPORTED, "%s of %s is not printed as C", name, opq_dtype_name(dtype));
    bool logical = dtype == OPQ_bool && stmt->op == OPQ_OP_bitwise_not;
    ADD(p, "opq_%s_%s(", name, logical ? "bool" : opq_c_suffix(dtype));
    for (int o = 0; o < 3 && stmt->operand[o] >= 0; o++)
        ADD(p, "%sv%d", o ? ", " : "", stmt->operand[o]);
    ADD(p, ")");
    return OPQ_OK;
}

static opq_status elementwise(opq_c_printer *p, const opq_stmt *stmt)
{
    const opq_lowering *lowering = opq_op_lowering((opq_op)stmt->op);
    bool compares =
        lowering->kind == OPQ_LOWER_CMP || opq_op_info_of((opq_op)stmt->op)->rule == OPQ_RULE_BOOL; /* gives a bool */
    opq_dtype dtype = compares ? operand_dtype(p, stmt) : (opq_dtype)stmt->dtype;
    int code = opq_lowering_code(lowering, dtype);
    switch (lowering->kind) {
    case OPQ_LOWER_ARITH: binary(p, arith_text[code], stmt); return OPQ_OK;
    case OPQ_LOWER_CMP: binary(p, cmp_text[code], stmt); return OPQ_OK;
    case OPQ_LOWER_CALL: return call(p, stmt, lowering->text, dtype);
    case OPQ_LOWER_NATIVE:
    case OPQ_LOWER_FOLD:
    case OPQ_LOWER_SCAN:
    case OPQ_LOWER_EXPAND: break;
    }
    return opq_fail(OPQ_INTERNAL, "%s in a kernel", opq_op_info_of((opq_op)stmt->op)->name);
}

static void zero(opq_c_printer *p, const opq_stmt *stmt)
{
    ADD(p, "%s", stmt->dtype == OPQ_raw128 ? "(opq_raw128){{0}}" : "0");
}

/* A zero where the index is out of range. */
static void load_at(opq_c_printer *p, const opq_stmt *stmt)
{
    opq_c_inside(p, stmt);
    ADD(p, " ? ");
    opq_c_load(p, stmt);
    ADD(p, " : ");
    zero(p, stmt);
}

opq_status opq_c_expression(opq_c_printer *p, const opq_stmt *stmt)
{
    opq_dtype dtype = (opq_dtype)stmt->dtype;
    switch ((int)stmt->op) {
    case OPQ_STMT_load:
        if (stmt->operand[0] >= 0)
            ADD(p, "!v%d ? ", stmt->operand[0]), zero(p, stmt), ADD(p, " : ");
        opq_c_load(p, stmt);
        return OPQ_OK;
    case OPQ_STMT_inside:
        ADD(p, "(uint64_t)(");
        offset(p, stmt);
        ADD(p, ") < (uint64_t)");
        opq_c_dim(p, opq_dims_of(p->k->rank, stmt->access) + 2 + p->k->rank);
        return OPQ_OK;
    case OPQ_STMT_load_at: load_at(p, stmt); return OPQ_OK;
    case OPQ_STMT_number: offset(p, stmt); return OPQ_OK;
    case OPQ_STMT_kept: opq_c_local_place(p, stmt->access); return OPQ_OK;
    case OPQ_OP_undefined: zero(p, stmt); return OPQ_OK;
    case OPQ_OP_const: /* of bytes it is what was undefined */
        if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
            zero(p, stmt);
        else
            opq_c_literal(p, dtype, stmt->value);
        return OPQ_OK;
    }
    switch (opq_op_info_of((opq_op)stmt->op)->class_) {
    case OPQ_CLASS_SCALAR: scalar(p, stmt); return OPQ_OK;
    case OPQ_CLASS_CAST: cast(p, stmt); return OPQ_OK;
    case OPQ_CLASS_SCAN:
        ADD(p, "%sscan%d", stmt->value.i == dtype ? "" : "(float)", (int)(stmt - p->k->stmts));
        return OPQ_OK;
    case OPQ_CLASS_RANDOM:
        ADD(p, "opq_%s_f32(v%d, v%d, v%d)", opq_stmt_name(stmt->op), stmt->operand[0], stmt->operand[1],
            stmt->operand[2]);
        return OPQ_OK;
    default: return elementwise(p, stmt);
    }
}
