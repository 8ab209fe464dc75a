/* Kernels as bytes and as text.
 *
 * The key holds every field that code generation reads, one by one: no padding, no name, no field that the instruction
 * does not use.
 */
#include "fusion/kernel.h"

#include <string.h>

_Static_assert(OPQ_LOOP_MAX <= 8 * sizeof((opq_instr){0}.depends), "a bit per loop");
_Static_assert(OPQ_SWEEP_MAX < 64, "a bit per sweep, in fusion/lower_loops.c");
_Static_assert(OPQ_BODY_MAX <= INT16_MAX, "an instruction's number is an operand");

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
        if (opq_instr_reduces(&kernel->instrs[i]) && ++reductions[kernel->instrs[i].sweep] > OPQ_REDUCTION_MAX)
            return "reductions in one sweep";
    }
    return NULL;
}

/* ---- key
 * ------------------------------------------------------------------------------------------------------------- */

static void put(opq_text *key, const void *data, size_t size) { opq_text_bytes(key, data, size); }

#define PUT(key, field) put(key, &(field), sizeof(field))

static bool has_value(const opq_instr *instr)
{
    if (instr->op >= OPQ_OP_COUNT)
        return false;
    opq_class class_ = opq_op_info_of((opq_op)instr->op)->class_;
    return class_ == OPQ_CLASS_CONST || class_ == OPQ_CLASS_SCALAR || class_ == OPQ_CLASS_CAST;
}

static bool has_from(const opq_instr *instr)
{
    return instr->op < OPQ_OP_COUNT && opq_op_info_of((opq_op)instr->op)->class_ == OPQ_CLASS_CAST;
}

static void put_instr(opq_text *key, const opq_instr *instr)
{
    PUT(key, instr->op);
    PUT(key, instr->dtype);
    PUT(key, instr->sweep);
    PUT(key, instr->depends);
    PUT(key, instr->operand);
    PUT(key, instr->spill);
    if (has_from(instr))
        PUT(key, instr->from);
    if (opq_instr_has_access(instr))
        PUT(key, instr->access);
    if (has_value(instr))
        PUT(key, instr->value);
}

void opq_kernel_key(const opq_kernel *kernel, opq_text *out_key)
{
    PUT(out_key, kernel->kind);
    PUT(out_key, kernel->rank);
    put(out_key, kernel->reduced, kernel->rank);
    PUT(out_key, kernel->access_count);
    PUT(out_key, kernel->instr_count);
    PUT(out_key, kernel->sweep_count);
    PUT(out_key, kernel->spill_count);
    for (int a = 0; a < kernel->access_count; a++) {
        PUT(out_key, kernel->accesses[a].buffer);
        PUT(out_key, kernel->accesses[a].dtype);
        put(out_key, kernel->accesses[a].stride, kernel->rank);
    }
    for (int i = 0; i < kernel->instr_count; i++)
        put_instr(out_key, &kernel->instrs[i]);
}

/* ---- text
 * ------------------------------------------------------------------------------------------------------------ */

static const char *instr_name(const opq_instr *instr)
{
    if (instr->op < OPQ_OP_COUNT)
        return opq_op_info_of((opq_op)instr->op)->name;
    switch ((opq_instr_op)instr->op) {
    case OPQ_INSTR_load: return "load";
    case OPQ_INSTR_load_at: return "load_at";
    case OPQ_INSTR_check: return "check";
    case OPQ_INSTR_store: return "store";
    case OPQ_INSTR_store_add_at: return "store_add_at";
    case OPQ_INSTR_number: return "number";
    case OPQ_INSTR_nonzero: return "nonzero";
    }
    return "?";
}

/* "b2.bf16[*,1,0]": buffer, dtype in memory, stride per loop */
static void print_access(const opq_kernel *k, int access, opq_text *text)
{
    const opq_access *a = &k->accesses[access];
    if (a->buffer >= 0)
        opq_text_add(text, " b%d.%s", a->buffer, opq_dtype_name((opq_dtype)a->dtype));
    opq_text_add(text, "[");
    for (int l = 0; l < k->rank; l++)
        opq_text_add(text, "%s%c", l ? "," : "", "01*"[a->stride[l]]);
    opq_text_add(text, "]");
}

static void print_value(const opq_instr *instr, opq_text *text)
{
    opq_class class_ = opq_op_info_of((opq_op)instr->op)->class_;
    if (class_ == OPQ_CLASS_SCALAR)
        opq_text_add(text, " s%lld", (long long)instr->value.i);
    else if (class_ == OPQ_CLASS_CAST && (instr->value.i == OPQ_f16 || instr->value.i == OPQ_bf16))
        opq_text_add(text, " to %s", opq_dtype_name((opq_dtype)instr->value.i));
    else if (class_ == OPQ_CLASS_CONST && opq_dtype_kind_of((opq_dtype)instr->dtype) == OPQ_KIND_FLOAT)
        opq_text_add(text, " %a", instr->value.f);
    else if (class_ == OPQ_CLASS_CONST)
        opq_text_add(text, " %lld", (long long)instr->value.i);
}

static void print_instr(const opq_kernel *k, int i, opq_text *text)
{
    const opq_instr *instr = &k->instrs[i];
    opq_text_add(text, "  %%%d %s = %s", i, opq_dtype_name((opq_dtype)instr->dtype), instr_name(instr));
    for (int o = 0; o < 3; o++)
        if (instr->operand[o] >= 0)
            opq_text_add(text, " %%%d", instr->operand[o]);
    if (opq_instr_has_access(instr))
        print_access(k, instr->access, text);
    if (has_value(instr))
        print_value(instr, text);
    if (instr->depends) {
        opq_text_add(text, " over ");
        for (int l = 0; l < k->rank; l++)
            if (instr->depends >> l & 1)
                opq_text_add(text, "%c", "ijklmnop"[l]);
    }
    if (instr->sweep)
        opq_text_add(text, " sweep %d", instr->sweep);
    if (instr->spill >= 0)
        opq_text_add(text, " spill %d", instr->spill);
    opq_text_add(text, "\n");
}

void opq_kernel_print(const opq_kernel *kernel, opq_text *out_text)
{
    opq_text_add(out_text, "%s %s (", opq_kernel_kind_name((opq_kernel_kind)kernel->kind),
                 kernel->name ? kernel->name : "");
    for (int l = 0; l < kernel->rank; l++)
        opq_text_add(out_text, "%s%s%c", l ? ", " : "", kernel->reduced[l] ? "reduced " : "", "ijklmnop"[l]);
    opq_text_add(out_text, ")\n");
    for (int i = 0; i < kernel->instr_count; i++)
        print_instr(kernel, i, out_text);
}
