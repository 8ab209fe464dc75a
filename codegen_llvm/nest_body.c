/* The body: at which level each instruction is emitted, what a sweep has to compute, and the instructions themselves.
 */
#include "codegen_llvm/nest.h"

#include <string.h>

/* ---- levels ------------------------------------------------------------------------------------------------------ */

static uint16_t access_depends(const opq_nest *n, int access)
{
    uint16_t depends = 0;
    for (int l = 0; l < n->kernel->rank; l++)
        if (n->kernel->accesses[access].stride[l] != OPQ_STRIDE_zero)
            depends |= (uint16_t)(1 << l);
    return depends;
}

/* A store also depends on the loops its access moves along, whatever its value does. */
static uint16_t depends_of(const opq_nest *n, int i)
{
    const opq_instr *instr = opq_nest_instr(n, i);
    uint16_t depends = instr->depends;
    for (int o = 0; o < 3; o++)
        if (instr->operand[o] >= 0)
            depends |= n->depends[instr->operand[o]];
    if (opq_instr_has_access(instr))
        depends |= access_depends(n, instr->access);
    return opq_instr_reduces(instr) ? (uint16_t)(depends & ~opq_kernel_reduced_mask(n->kernel)) : depends;
}

static opq_level level_of(const opq_nest *n, int i)
{
    const opq_instr *instr = opq_nest_instr(n, i);
    uint16_t depends = n->depends[i], reduced = opq_kernel_reduced_mask(n->kernel);
    bool varies = opq_nest_varies(n, i), early = instr->sweep == 0 && !opq_instr_reduces(instr);
    switch ((opq_kernel_kind)n->kernel->kind) {
    case OPQ_KERNEL_map:
    case OPQ_KERNEL_index:
        if (varies)
            return OPQ_LEVEL_inner;
        return depends ? OPQ_LEVEL_outer : OPQ_LEVEL_entry;
    case OPQ_KERNEL_row:
        if (depends & reduced)
            return varies ? OPQ_LEVEL_inner : OPQ_LEVEL_middle;
        return depends || !early ? OPQ_LEVEL_outer : OPQ_LEVEL_entry;
    case OPQ_KERNEL_column:
        if (depends & reduced)
            return varies ? OPQ_LEVEL_inner : OPQ_LEVEL_middle;
        if (varies || !early)
            return OPQ_LEVEL_strip;
        return depends ? OPQ_LEVEL_outer : OPQ_LEVEL_entry;
    case OPQ_KERNEL_matmul:
    case OPQ_KERNEL_concat:
    case OPQ_KERNEL_update:
    case OPQ_KERNEL_extern:
    case OPQ_KERNEL_KIND_COUNT: break;
    }
    return OPQ_LEVEL_entry;
}

static opq_status check_instr(const opq_kernel *k, int i)
{
    const opq_instr *instr = &k->instrs[i];
    for (int o = 0; o < 3; o++)
        if (instr->operand[o] >= i)
            return opq_fail(OPQ_INTERNAL, "kernel %s: instruction %d has operand %d", k->name, i, instr->operand[o]);
    if (opq_instr_has_access(instr) && (instr->access < 0 || instr->access >= k->access_count))
        return opq_fail(OPQ_INTERNAL, "kernel %s: instruction %d has access %d", k->name, i, instr->access);
    if (instr->spill >= k->spill_count)
        return opq_fail(OPQ_INTERNAL, "kernel %s: instruction %d has spill slot %d", k->name, i, instr->spill);
    return OPQ_OK;
}

opq_status opq_nest_plan(opq_nest *n)
{
    const opq_kernel *k = n->kernel;
    for (int i = 0; i < k->instr_count; i++) {
        OPQ_TRY(check_instr(k, i));
        n->depends[i] = depends_of(n, i);
        n->level[i] = level_of(n, i);
        n->has_at |= opq_instr_checks(&k->instrs[i]);
    }
    return OPQ_OK;
}

int opq_nest_sweeps(const opq_nest *n)
{
    int count = n->kernel->sweep_count;
    for (int i = 0; i < n->kernel->instr_count; i++)
        if (n->kernel->instrs[i].sweep >= count)
            count = n->kernel->instrs[i].sweep + 1;
    return count;
}

/* ---- what a sweep needs ------------------------------------------------------------------------------------------ */

static bool is_inside(const opq_nest *n, int i)
{
    return n->level[i] == OPQ_LEVEL_middle || n->level[i] == OPQ_LEVEL_inner;
}

static bool is_filled(const opq_nest *n, int i, int sweep)
{
    return opq_nest_instr(n, i)->spill >= 0 && opq_nest_instr(n, i)->sweep < sweep && n->level[i] == OPQ_LEVEL_inner;
}

static bool is_root(const opq_nest *n, int i)
{
    const opq_instr *instr = opq_nest_instr(n, i);
    return opq_instr_is_root(instr) || instr->spill >= 0;
}

bool opq_nest_needed(const opq_nest *n, int sweep, bool *out_needed)
{
    bool any = false;
    memset(out_needed, 0, OPQ_BODY_MAX * sizeof *out_needed);
    for (int i = n->kernel->instr_count - 1; i >= 0; i--) {
        const opq_instr *instr = opq_nest_instr(n, i);
        bool reduces = opq_instr_reduces(instr) && instr->sweep == sweep;
        if (is_inside(n, i) && is_root(n, i) && instr->sweep == sweep)
            out_needed[i] = true;
        any |= reduces || out_needed[i];
        if (!reduces && (!out_needed[i] || is_filled(n, i, sweep)))
            continue;
        for (int o = 0; o < 3; o++)
            if (instr->operand[o] >= 0 && is_inside(n, instr->operand[o]))
                out_needed[instr->operand[o]] = true;
    }
    return any;
}

int opq_nest_reductions(const opq_nest *n, int sweep, int *out_instrs)
{
    int count = 0;
    for (int i = 0; i < n->kernel->instr_count; i++)
        if (opq_instr_reduces(opq_nest_instr(n, i)) && opq_nest_instr(n, i)->sweep == sweep)
            out_instrs[count++] = i;
    return count;
}

opq_fold opq_nest_fold(const opq_nest *n, int instr)
{
    return opq_op_lowering((opq_op)opq_nest_instr(n, instr)->op)->fold;
}

opq_dtype opq_nest_fold_dtype(const opq_nest *n, int instr)
{
    const opq_instr *reduce = opq_nest_instr(n, instr);
    opq_fold fold = opq_nest_fold(n, instr);
    return (opq_dtype)(opq_fold_is_arg(fold) ? opq_nest_instr(n, reduce->operand[0])->dtype : reduce->dtype);
}

/* Math functions are about 20 instructions, Philox and two of them 100; 64-bit lanes take two registers. */
int opq_nest_cost(const opq_nest *n, const bool *needed)
{
    int cost = 0;
    for (int i = 0; i < n->kernel->instr_count; i++) {
        const opq_instr *instr = opq_nest_instr(n, i);
        if (n->level[i] != OPQ_LEVEL_inner || !needed[i])
            continue;
        int one = 1;
        if (opq_instr_class(instr) == OPQ_CLASS_RANDOM)
            one = 100;
        else if (opq_instr_class(instr) == OPQ_CLASS_CAST)
            one = 2;
        else if (instr->op < OPQ_OP_COUNT && opq_op_info_of((opq_op)instr->op)->flags & OPQ_FLAG_MATH32)
            one = 20;
        cost += opq_dtype_bytes((opq_dtype)instr->dtype) == 8 ? 2 * one : one;
    }
    return cost;
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static LLVMValueRef emit_scalar(opq_nest *n, const opq_instr *instr)
{
    LLVMBuilderRef b = n->e->builder;
    opq_dtype dtype = (opq_dtype)instr->dtype;
    LLVMTypeRef i64 = LLVMInt64TypeInContext(n->e->context), f64 = LLVMDoubleTypeInContext(n->e->context);
    LLVMValueRef slot = opq_i64(n->e, instr->value.i), pointer = LLVMBuildGEP2(b, i64, n->scalars, &slot, 1, "");
    if (opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        return opq_splat(n->e, LLVMBuildFPCast(b, LLVMBuildLoad2(b, f64, pointer, ""), opq_lane_type(n->e, dtype), ""));
    LLVMValueRef whole = LLVMBuildLoad2(b, i64, pointer, "");
    if (dtype == OPQ_bool)
        return opq_splat(n->e, LLVMBuildICmp(b, LLVMIntNE, whole, opq_i64(n->e, 0), ""));
    return opq_splat(n->e, LLVMBuildIntCast2(b, whole, opq_lane_type(n->e, dtype), true, ""));
}

static LLVMValueRef emit_cast(opq_nest *n, const opq_instr *instr, LLVMValueRef x)
{
    x = opq_emit_cast(n->e, (opq_dtype)instr->from, (opq_dtype)instr->dtype, x);
    if (instr->dtype == OPQ_f32 && (instr->value.i == OPQ_f16 || instr->value.i == OPQ_bf16))
        return opq_emit_round(n->e, (opq_dtype)instr->value.i, x);
    return x;
}

/* Operands of where: the condition, then the values that have the dtype. */
static LLVMValueRef emit_op(opq_nest *n, const opq_instr *instr, const LLVMValueRef *operands)
{
    opq_class class_ = opq_instr_class(instr);
    opq_op op = (opq_op)instr->op;
    if (op == OPQ_OP_undefined)
        return LLVMConstNull(opq_vector_type(n->e, (opq_dtype)instr->dtype));
    if (class_ == OPQ_CLASS_CONST)
        return opq_splat_number(n->e, (opq_dtype)instr->dtype, instr->value);
    if (class_ == OPQ_CLASS_SCALAR)
        return emit_scalar(n, instr);
    if (class_ == OPQ_CLASS_CAST)
        return emit_cast(n, instr, operands[0]);
    if (class_ == OPQ_CLASS_RANDOM)
        return opq_emit_random(n->e, op, operands);
    LLVMValueRef value = LLVMConstNull(opq_vector_type(n->e, (opq_dtype)instr->dtype));
    if (class_ != OPQ_CLASS_EWISE) {
        opq_nest_fail(n, opq_fail(OPQ_INTERNAL, "kernel %s: %s in a body", n->kernel->name, opq_op_info_of(op)->name));
        return value;
    }
    int typed = instr->operand[op == OPQ_OP_where ? 1 : 0];
    opq_nest_fail(n, opq_emit_ewise(n->e, op, (opq_dtype)opq_nest_instr(n, typed)->dtype, operands, &value));
    return value;
}

/* A row that needs an operand of the wrong type would trip LLVM's assertions, or worse. */
static bool operands_fit(const opq_nest *n, const opq_instr *instr, const LLVMValueRef *operands)
{
    if (instr->op >= OPQ_OP_COUNT || opq_instr_class(instr) != OPQ_CLASS_EWISE || !operands[1])
        return true;
    if (instr->op == OPQ_OP_where)
        return opq_is_bool(operands[0]) && LLVMTypeOf(operands[1]) == LLVMTypeOf(operands[2]);
    (void)n;
    return LLVMTypeOf(operands[0]) == LLVMTypeOf(operands[1]);
}

static LLVMValueRef emit_instr(opq_nest *n, int i)
{
    const opq_instr *instr = opq_nest_instr(n, i);
    LLVMValueRef operands[3] = {NULL, NULL, NULL};
    for (int o = 0; o < 3; o++)
        if (instr->operand[o] >= 0)
            operands[o] = n->value[instr->operand[o]];
    if (!operands_fit(n, instr, operands)) {
        opq_nest_fail(
            n, opq_fail(OPQ_INTERNAL, "kernel %s: operands of instruction %d differ in dtype", n->kernel->name, i));
        return LLVMConstNull(opq_vector_type(n->e, (opq_dtype)instr->dtype));
    }
    if (instr->op < OPQ_OP_COUNT)
        return emit_op(n, instr, operands);
    switch ((opq_instr_op)instr->op) {
    case OPQ_INSTR_load: return opq_nest_load(n, i);
    case OPQ_INSTR_load_at: return opq_nest_load_at(n, i);
    case OPQ_INSTR_check: opq_nest_check(n, i); break;
    case OPQ_INSTR_store: opq_nest_store(n, i); break;
    case OPQ_INSTR_store_add_at: opq_nest_store_add_at(n, i); break;
    case OPQ_INSTR_number: return opq_nest_number(n, i);
    case OPQ_INSTR_nonzero: opq_nest_nonzero(n, i); break;
    }
    return NULL;
}

static void settle_users(opq_nest *n, int index)
{
    if (!n->has_at || opq_nest_varies(n, index))
        return;
    for (int i = index + 1; i < n->kernel->instr_count; i++)
        if (opq_instr_checks(opq_nest_instr(n, i)) && opq_nest_instr(n, i)->operand[0] == index)
            opq_nest_settle(n, i);
}

void opq_nest_define(opq_nest *n, int instr, LLVMValueRef value)
{
    n->value[instr] = value;
    settle_users(n, instr);
}

void opq_nest_emit(opq_nest *n, opq_level level, int sweep, const bool *needed)
{
    for (int i = 0; i < n->kernel->instr_count; i++) {
        const opq_instr *instr = opq_nest_instr(n, i);
        if (n->level[i] != level || opq_instr_reduces(instr) || !(needed ? needed[i] : instr->sweep == sweep))
            continue;
        if (is_filled(n, i, sweep)) {
            n->value[i] = opq_nest_fill(n, i);
            continue;
        }
        LLVMValueRef value = emit_instr(n, i);
        if (value)
            opq_nest_define(n, i, value);
        if (instr->spill >= 0 && level == OPQ_LEVEL_inner)
            opq_nest_spill(n, i);
    }
}
