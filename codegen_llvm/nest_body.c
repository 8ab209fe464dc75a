/* Statements become instructions. */
#include "codegen_llvm/nest.h"

#include <stdlib.h>
#include <string.h>

void opq_nest_use_copy(opq_nest *n, int copy)
{
    n->copy = copy;
    n->address = n->addresses[n->rows >= 0 ? copy : 0];
    n->value = n->values + (size_t)copy * ((size_t)n->k->stmt_count + 1);
}

void opq_nest_copy_values(opq_nest *n, int copies)
{
    size_t row = (size_t)n->k->stmt_count + 1;
    for (int copy = 1; copy < copies; copy++)
        memcpy(n->values + (size_t)copy * row, n->values, row * sizeof *n->values);
}

void opq_nest_refuse(opq_nest *n, const opq_stmt *stmt)
{
    if (n->status == OPQ_OK)
        n->status = opq_fail(OPQ_UNSUPPORTED, "kernel %s: statement %d: there is no code for such a tree", n->k->name,
                             (int)(stmt - n->k->stmts));
}

LLVMValueRef opq_nest_value(opq_nest *n, int stmt)
{
    if (n->value[stmt])
        return n->value[stmt];
    opq_nest_refuse(n, opq_nest_stmt(n, stmt));
    return LLVMConstNull(opq_vector_type(n->e, (opq_dtype)opq_nest_stmt(n, stmt)->dtype));
}

/* Math functions are about 20 instructions, Philox and two of them 100; 64-bit lanes take two registers. */
static int cost_of(const opq_nest *n, int variable, int i)
{
    const opq_stmt *stmt = opq_nest_stmt(n, i);
    if (stmt->op == OPQ_STMT_loop || stmt->op == OPQ_STMT_keep || stmt->op >= OPQ_STMT_carry ||
        opq_op_reduces(stmt->op) || !(n->varies[i] >> variable & 1))
        return 0;
    const opq_op_info *info = stmt->op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)stmt->op) : NULL;
    int one = 1;
    if (info && info->class_ == OPQ_CLASS_CAST)
        return 2; /* of either width: there or back */
    if (info && info->class_ == OPQ_CLASS_RANDOM)
        one = 100;
    else if ((int)stmt->op == OPQ_STMT_load_at && n->varies[stmt->operand[0]] >> variable & 1)
        one = 24; /* lane by lane, with checks: memory is what is waited for */
    else if (info && (info->flags & OPQ_FLAG_CHECKED) && opq_dtype_kind_of((opq_dtype)stmt->dtype) != OPQ_KIND_FLOAT)
        one = 20; /* a division of integers, lane by lane */
    else if (info && opq_op_is_math((opq_op)stmt->op))
        one = 20;
    return opq_dtype_bytes((opq_dtype)stmt->dtype) == 8 ? 2 * one : one;
}

int opq_nest_cost(const opq_nest *n, int variable, int from, int to)
{
    int cost = 0;
    for (int i = from; i < to; i++)
        cost += cost_of(n, variable, i);
    return cost;
}

bool opq_nest_path(const opq_nest *n, int variable, int from, int to, int *out_path, int *out_live)
{
    size_t count = (size_t)(to - from);
    int *path = calloc(3 * count + 1, sizeof *path), *last = path + count, *ended = last + count, live = 0;
    *out_path = *out_live = 0;
    for (int i = 0; path && i < to - from; i++) {
        for (int o = 0; o < 3; o++) {
            int operand = opq_nest_stmt(n, from + i)->operand[o] - from;
            if (operand < 0)
                continue;
            last[operand] = i;
            path[i] = path[operand] > path[i] ? path[operand] : path[i];
        }
        int cost = cost_of(n, variable, from + i);
        path[i] += cost >= 20 ? cost / 2 : cost; /* what a function is made of needs half of it in turn */
        *out_path = path[i] > *out_path ? path[i] : *out_path;
    }
    for (int i = 0; path && i < to - from; i++) {
        bool counts = cost_of(n, variable, from + i) > 0 && last[i] > 0;
        live += counts - ended[i];
        if (counts)
            ended[last[i]]++;
        *out_live = live > *out_live ? live : *out_live;
    }
    free(path);
    return path != NULL;
}

static LLVMValueRef emit_scalar(opq_nest *n, const opq_stmt *stmt)
{
    LLVMBuilderRef b = n->e->builder;
    opq_dtype dtype = (opq_dtype)stmt->dtype;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context), f64 = LLVMDoubleTypeInContext(n->e->context);
    LLVMValueRef slot = opq_i64(n->e, stmt->value.i), pointer = LLVMBuildGEP2(b, i64, n->scalars, &slot, 1, "");
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        return opq_splat(n->e, LLVMBuildFPCast(b, LLVMBuildLoad2(b, f64, pointer, ""), opq_lane_type(n->e, dtype), ""));
    LLVMValueRef whole = LLVMBuildLoad2(b, i64, pointer, "");
    if (dtype == OPQ_bool)
        return opq_splat(n->e, LLVMBuildICmp(b, LLVMIntNE, whole, opq_i64(n->e, 0), ""));
    return opq_splat(n->e, LLVMBuildIntCast2(b, whole, opq_lane_type(n->e, dtype), true, ""));
}

static LLVMValueRef emit_cast(opq_nest *n, const opq_stmt *stmt, LLVMValueRef x)
{
    int operand = stmt->operand[0];
    opq_dtype from = (opq_dtype)opq_nest_stmt(n, operand)->dtype;
    if (!opq_cpu_has(n->e->cpu, OPQ_LEAF_i64_to_float) && (int)opq_nest_stmt(n, operand)->op == OPQ_STMT_number &&
        opq_dtype_kind_of((opq_dtype)stmt->dtype) == OPQ_KIND_FLOAT) {
        from = OPQ_f64;
        x = opq_nest_number_f64(n, operand);
    }
    x = opq_emit_cast(n->e, from, (opq_dtype)stmt->dtype, x);
    if (stmt->dtype == OPQ_f32 && opq_dtype_is_half((opq_dtype)stmt->value.i))
        return opq_emit_round(n->e, (opq_dtype)stmt->value.i, x);
    return x;
}

/* Operands of where: the condition, then the values that have the dtype. */
static LLVMValueRef emit_op(opq_nest *n, const opq_stmt *stmt, const LLVMValueRef *operands)
{
    opq_op op = (opq_op)stmt->op;
    if (op == OPQ_OP_undefined)
        return LLVMConstNull(opq_vector_type(n->e, (opq_dtype)stmt->dtype));
    switch (opq_op_info_of(op)->class_) {
    case OPQ_CLASS_CONST: return opq_splat_number(n->e, (opq_dtype)stmt->dtype, stmt->value);
    case OPQ_CLASS_SCALAR: return emit_scalar(n, stmt);
    case OPQ_CLASS_CAST: return emit_cast(n, stmt, operands[0]);
    case OPQ_CLASS_RANDOM: return opq_emit_random(n->e, op, operands);
    default: break;
    }
    LLVMValueRef compared = opq_nest_compare(n, stmt),
                 value = LLVMConstNull(opq_vector_type(n->e, (opq_dtype)stmt->dtype));
    if (compared)
        return compared;
    int typed = stmt->operand[op == OPQ_OP_where ? 1 : 0];
    opq_nest_fail(n, opq_emit_ewise(n->e, op, (opq_dtype)opq_nest_stmt(n, typed)->dtype, operands, &value));
    return value;
}

static LLVMValueRef emit_stmt(opq_nest *n, int i)
{
    const opq_stmt *stmt = opq_nest_stmt(n, i);
    LLVMValueRef operands[3] = {NULL, NULL, NULL};
    for (int o = 0; o < 3; o++)
        if (stmt->operand[o] >= 0)
            operands[o] = opq_nest_value(n, stmt->operand[o]);
    if (stmt->op < OPQ_OP_COUNT)
        return emit_op(n, stmt, operands);
    switch ((int)stmt->op) {
    case OPQ_STMT_load: return opq_nest_load(n, i);
    case OPQ_STMT_load_at: return opq_nest_load_at(n, i);
    case OPQ_STMT_check: opq_nest_check(n, i); break;
    case OPQ_STMT_store: opq_nest_store(n, i); break;
    case OPQ_STMT_store_add_at: opq_nest_store_add_at(n, i); break;
    case OPQ_STMT_number: return opq_nest_number(n, i);
    case OPQ_STMT_inside: return opq_nest_inside(n, i);
    case OPQ_STMT_nonzero: opq_nest_nonzero(n, i); break;
    case OPQ_STMT_keep: opq_nest_keep(n, i); break;
    case OPQ_STMT_kept: return opq_nest_kept(n, i);
    case OPQ_STMT_carry: return opq_emit_carry(n, i);
    case OPQ_STMT_fold: opq_emit_fold(n, i); break;
    case OPQ_STMT_halves: return opq_emit_halves(n, i);
    case OPQ_STMT_at: return n->turns[n->value - n->values + stmt->access];
    }
    return NULL;
}

void opq_nest_define(opq_nest *n, int stmt, LLVMValueRef value)
{
    n->value[stmt] = value;
    if (!n->has_at || opq_nest_varies(n, stmt))
        return;
    for (int i = stmt + 1; i < n->k->stmt_count; i++)
        if (opq_op_checks(opq_nest_stmt(n, i)->op) && opq_nest_stmt(n, i)->operand[0] == stmt)
            opq_nest_settle(n, i);
}

void opq_nest_run_one(opq_nest *n, int from, int to)
{
    for (int i = from; i < to && n->status == OPQ_OK; i++) {
        if (opq_nest_stmt(n, i)->op == OPQ_STMT_local || opq_op_reduces(opq_nest_stmt(n, i)->op))
            continue;
        if (n->copy > 0 && !opq_nest_differs(n, i)) {
            n->value[i] = n->values[i];
            continue;
        }
        LLVMValueRef value = emit_stmt(n, i);
        if (value)
            opq_nest_define(n, i, value);
    }
}

void opq_nest_run(opq_nest *n, int from, int to)
{
    for (int copy = 0; copy < n->strip; copy++) {
        opq_nest_use_copy(n, copy);
        opq_nest_run_one(n, from, to);
    }
    opq_nest_use_copy(n, 0);
}
