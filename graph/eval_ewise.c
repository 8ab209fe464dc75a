/* Elementwise ops: one result element at a time, the row's lowering applied to one element of each operand. */
#include "graph/eval.h"

#include <string.h>

enum { ARITY_MAX = 8 };

static bool compare(opq_cmp code, opq_number a, opq_number b)
{
    switch (code) {
    case OPQ_CMP_OEQ: return a.f == b.f;
    case OPQ_CMP_UNE: return a.f != b.f;
    case OPQ_CMP_OLT: return a.f < b.f;
    case OPQ_CMP_OLE: return a.f <= b.f;
    case OPQ_CMP_OGT: return a.f > b.f;
    case OPQ_CMP_OGE: return a.f >= b.f;
    case OPQ_CMP_EQ: return a.i == b.i;
    case OPQ_CMP_NE: return a.i != b.i;
    case OPQ_CMP_SLT:
    case OPQ_CMP_ULT: return a.i < b.i; /* loaded unsigned numbers are never negative */
    case OPQ_CMP_SLE:
    case OPQ_CMP_ULE: return a.i <= b.i;
    case OPQ_CMP_SGT:
    case OPQ_CMP_UGT: return a.i > b.i;
    case OPQ_CMP_SGE:
    case OPQ_CMP_UGE: return a.i >= b.i;
    case OPQ_CMP_None: break;
    }
    return false;
}

/* The lowering of one node, chosen once. */
typedef struct step {
    opq_lowering_kind kind;
    int code;
    opq_eval_fn *function;
    opq_dtype dtype; /* of the operands */
} step;

static opq_number apply(const step *step, const opq_number *x)
{
    switch (step->kind) {
    case OPQ_LOWER_ARITH: return opq_eval_arith((opq_arith)step->code, step->dtype, x[0], x[1]);
    case OPQ_LOWER_CMP: return (opq_number){.i = compare((opq_cmp)step->code, x[0], x[1])};
    case OPQ_LOWER_CALL: return step->function(step->dtype, x);
    case OPQ_LOWER_NATIVE:
    case OPQ_LOWER_FOLD:
    case OPQ_LOWER_SCAN:
    case OPQ_LOWER_EXPAND: break;
    }
    return (opq_number){.i = 0};
}

static opq_status choose(opq_op op, int arity, opq_dtype dtype, step *out_step)
{
    const opq_op_info *info = opq_op_info_of(op);
    const opq_lowering *lowering = opq_op_lowering(op);
    *out_step = (step){.kind = lowering->kind, .dtype = dtype};
    switch (lowering->kind) {
    case OPQ_LOWER_ARITH:
    case OPQ_LOWER_CMP:
        out_step->code = opq_lowering_code(lowering, dtype);
        if (out_step->code == 0 || arity != 2)
            return opq_fail(OPQ_INVALID, "%s: not defined for %s", info->name, opq_dtype_name(dtype));
        return OPQ_OK;
    case OPQ_LOWER_CALL:
        out_step->function = opq_eval_call(lowering->text);
        if (out_step->function == NULL)
            return opq_fail(OPQ_INTERNAL, "%s: no function named %s", info->name, lowering->text);
        if (opq_dtype_kind_of(dtype) == OPQ_KIND_RAW)
            return opq_fail(OPQ_INVALID, "%s: not defined for %s", info->name, opq_dtype_name(dtype));
        return OPQ_OK;
    case OPQ_LOWER_NATIVE:
    case OPQ_LOWER_FOLD:
    case OPQ_LOWER_SCAN:
    case OPQ_LOWER_EXPAND: break;
    }
    return opq_fail(OPQ_INTERNAL, "%s: elementwise without a lowering", info->name);
}

opq_status opq_eval_element(opq_op op, opq_dtype dtype, const opq_number *x, int arity, opq_number *out)
{
    step step;
    OPQ_TRY(choose(op, arity, dtype, &step));
    *out = apply(&step, x);
    return OPQ_OK;
}

/* Moves bytes, so that NaN payloads and raw dtypes come through. */
static opq_status where(const opq_node *node, const opq_eval_value *x, void *out)
{
    size_t bytes = (size_t)opq_dtype_bytes((opq_dtype)node->type.dtype);
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = opq_eval_broadcast(x[0].type, &node->type, i);
        opq_number condition = opq_eval_load((opq_dtype)x[0].type->dtype, x[0].data, at);
        const opq_eval_value *chosen = condition.i != 0 ? &x[1] : &x[2];
        int64_t from = opq_eval_broadcast(chosen->type, &node->type, i);
        memcpy((char *)out + (size_t)i * bytes, (const char *)chosen->data + (size_t)from * bytes, bytes);
    }
    return OPQ_OK;
}

opq_status opq_eval_ewise(const opq_node *node, const opq_eval_value *x, void *out)
{
    const opq_lowering *lowering = opq_op_lowering((opq_op)node->op);
    if (lowering->kind == OPQ_LOWER_CALL && strcmp(lowering->text, "where") == 0)
        return where(node, x, out);
    if (node->arity < 1 || node->arity > ARITY_MAX)
        return opq_fail(OPQ_INTERNAL, "%s: %d operands", opq_node_info(node)->name, (int)node->arity);

    step step;
    OPQ_TRY(choose((opq_op)node->op, node->arity, (opq_dtype)x[0].type->dtype, &step));
    bool divides = opq_node_divides(node);
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++) {
        opq_number element[ARITY_MAX];
        for (int k = 0; k < node->arity; k++)
            element[k] = opq_eval_load(step.dtype, x[k].data, opq_eval_broadcast(x[k].type, &node->type, i));
        if (divides && element[1].i == 0)
            return opq_fail(OPQ_INVALID, "%s: ZeroDivisionError", opq_node_info(node)->name);
        opq_eval_store((opq_dtype)node->type.dtype, out, i, apply(&step, element));
    }
    return OPQ_OK;
}
