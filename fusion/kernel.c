/* What the forms of a kernel share. */
#include "fusion/kernel.h"

#include <string.h>

_Static_assert(OPQ_LOOP_MAX <= 8 * sizeof((opq_instr){0}.depends), "a bit per loop");
_Static_assert(OPQ_SWEEP_MAX < 64, "a bit per sweep, in fusion/lower_loops.c");
_Static_assert(OPQ_BODY_MAX <= INT16_MAX, "an instruction's number is an operand");

opq_dtype opq_compute_dtype(opq_dtype dtype)
{
    switch (dtype) {
    case OPQ_f16:
    case OPQ_bf16: return OPQ_f32;
    case OPQ_raw8: return OPQ_u8;
    case OPQ_raw16: return OPQ_i16;
    case OPQ_raw32: return OPQ_i32;
    case OPQ_raw64: return OPQ_i64;
    case OPQ_bool:
    case OPQ_u8:
    case OPQ_i8:
    case OPQ_i16:
    case OPQ_i32:
    case OPQ_i64:
    case OPQ_f32:
    case OPQ_f64:
    case OPQ_raw128:
    case OPQ_DTYPE_COUNT: break;
    }
    return dtype;
}

const char *opq_kernel_excess(const opq_kernel *kernel)
{
    int reductions[OPQ_SWEEP_MAX] = {0};
    if (kernel->rank < 1 || kernel->rank > OPQ_LOOP_MAX)
        return "loops";
    if (kernel->instr_count > OPQ_BODY_MAX || kernel->access_count > OPQ_ACCESS_MAX)
        return "instructions";
    if (kernel->buffer_count > OPQ_BUFFER_MAX || kernel->scalar_count > OPQ_SCALAR_MAX)
        return "arguments";
    for (int i = 0; i < kernel->instr_count; i++) {
        if (kernel->instrs[i].sweep >= OPQ_SWEEP_MAX)
            return "sweeps";
        bool carried = opq_instr_reduces(&kernel->instrs[i]) || opq_op_scans(kernel->instrs[i].op);
        if (carried && ++reductions[kernel->instrs[i].sweep] > OPQ_REDUCTION_MAX)
            return "reductions in one sweep";
    }
    return NULL;
}

_Static_assert(OPQ_VARIABLE_MAX <= 20, "a letter per loop");
char opq_loop_letter(int loop) { return "ijklmnopqrstuvwxyzef"[loop]; }

const char *opq_instr_name(int op)
{
    if (op < OPQ_OP_COUNT)
        return opq_op_info_of((opq_op)op)->name;
    switch ((opq_instr_op)op) {
    case OPQ_INSTR_load: return "load";
    case OPQ_INSTR_load_at: return "load_at";
    case OPQ_INSTR_check: return "check";
    case OPQ_INSTR_store: return "store";
    case OPQ_INSTR_store_add_at: return "store_add_at";
    case OPQ_INSTR_number: return "number";
    case OPQ_INSTR_inside: return "inside";
    case OPQ_INSTR_nonzero: return "nonzero";
    }
    return "?";
}

void opq_instr_value_print(int op, opq_dtype dtype, opq_number value, opq_text *out_text)
{
    opq_class class_ = op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)op)->class_ : OPQ_CLASS_COUNT;
    if (class_ == OPQ_CLASS_SCALAR)
        opq_text_add(out_text, " s%lld", (long long)value.i);
    else if (class_ == OPQ_CLASS_CAST && (value.i == OPQ_f16 || value.i == OPQ_bf16))
        opq_text_add(out_text, " to %s", opq_dtype_name((opq_dtype)value.i));
    else if (class_ == OPQ_CLASS_SCAN && value.i != dtype)
        opq_text_add(out_text, " in %s", opq_dtype_name((opq_dtype)value.i));
    else if (class_ == OPQ_CLASS_CONST && opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT)
        opq_text_add(out_text, " %a", value.f);
    else if (class_ == OPQ_CLASS_CONST)
        opq_text_add(out_text, " %lld", (long long)value.i);
}
