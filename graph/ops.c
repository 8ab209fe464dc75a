/* The op table, expanded: what a row says (opq_op_info) and how it is computed (opq_lowering). */
#include "graph/define.h"

#include <pthread.h>
#include <string.h>

/* A row's flags column is an expression in these names. */
enum {
    COMM = OPQ_FLAG_COMM,
    CHEAP = OPQ_FLAG_CHEAP,
    MATH32 = OPQ_FLAG_MATH32,
    CHECKED = OPQ_FLAG_CHECKED,
    NOINT = OPQ_FLAG_NOINT,
    NOFLOAT = OPQ_FLAG_NOFLOAT,
    NOBOOL = OPQ_FLAG_NOBOOL,
};

/* How a scan holds f32. */
enum { HELD_SAME = false, HELD_F64 = true };

#define ATEN(overloads, reader) .aten = overloads, .signature = #reader
#define NATIVE NULL
#define ARITH(for_float, for_signed, for_unsigned) NULL
#define CMP(for_float, for_signed, for_unsigned) NULL
#define CALL(function) NULL
#define FOLD(combine) NULL
#define SCAN(combine, fold, held) NULL
#define EXPAND(expression) expression
static const opq_op_info infos[OPQ_OP_COUNT] = {
#define OP(name_, arity_, class__, dtype_, flags_, aten_, lowering_)                                                   \
    [OPQ_OP_##name_] = {.name = #name_,                                                                                \
                        .arity = arity_,                                                                               \
                        .class_ = OPQ_CLASS_##class__,                                                                 \
                        .rule = OPQ_RULE_##dtype_,                                                                     \
                        .flags = flags_,                                                                               \
                        aten_,                                                                                         \
                        .expand = lowering_},
#include "opaque/ops.def"
#undef OP
};
#undef ATEN
#undef NATIVE
#undef ARITH
#undef CMP
#undef CALL
#undef FOLD
#undef SCAN
#undef EXPAND

#define NATIVE {.kind = OPQ_LOWER_NATIVE}
#define ARITH(f, s, u)                                                                                                 \
    {.kind = OPQ_LOWER_ARITH, .for_float = OPQ_ARITH_##f, .for_signed = OPQ_ARITH_##s, .for_unsigned = OPQ_ARITH_##u}
#define CMP(f, s, u)                                                                                                   \
    {.kind = OPQ_LOWER_CMP, .for_float = OPQ_CMP_##f, .for_signed = OPQ_CMP_##s, .for_unsigned = OPQ_CMP_##u}
#define CALL(function) {.kind = OPQ_LOWER_CALL, .text = #function}
#define FOLD(combine) {.kind = OPQ_LOWER_FOLD, .fold = OPQ_FOLD_##combine}
#define SCAN(combine_, fold_, held)                                                                                    \
    {.kind = OPQ_LOWER_SCAN, .fold = OPQ_FOLD_##fold_, .combine = OPQ_OP_##combine_, .wide = HELD_##held}
#define EXPAND(expression) {.kind = OPQ_LOWER_EXPAND, .text = expression}
static const opq_lowering lowerings[OPQ_OP_COUNT] = {
#define OP(name, arity, class_, dtype, flags, aten, lowering) [OPQ_OP_##name] = lowering,
#include "opaque/ops.def"
#undef OP
};

#undef FOLD
enum { OPQ_OP_none = OPQ_OP_COUNT };
static const opq_fold_info folds[] = {
#define FOLD(name_, identity_, combine_, held_, takes_)                                                                \
    {#name_, OPQ_IDENTITY_##identity_, OPQ_OP_##combine_, OPQ_HELD_##held_, (opq_op)OPQ_OP_##takes_},
#include "opaque/folds.def"
#undef FOLD
};
const opq_fold_info *opq_fold_info_of(opq_fold fold) { return &folds[fold]; }

static const uint8_t name_lengths[OPQ_OP_COUNT] = {
#define OP(name, arity, class_, dtype, flags, aten, lowering) sizeof #name - 1,
#include "opaque/ops.def"
#undef OP
};

static bool in_table(opq_op op) { return __builtin_expect((unsigned)op < OPQ_OP_COUNT, 1); }

const opq_op_info *opq_op_info_of(opq_op op) { return in_table(op) ? &infos[op] : &opq_defined_row_of(op)->info; }

const opq_lowering *opq_op_lowering(opq_op op)
{
    return in_table(op) ? &lowerings[op] : &opq_defined_row_of(op)->lowering;
}

bool opq_op_exists(int op)
{
    return (op >= 0 && op < OPQ_OP_COUNT) ||
           (op >= OPQ_OP_DEFINED && op < OPQ_OP_LIMIT && opq_defined_row_of((opq_op)op));
}

bool opq_op_is_math(opq_op op)
{
    const opq_op_info *info = opq_op_info_of(op);
    return info->class_ == OPQ_CLASS_EWISE && opq_op_lowering(op)->kind == OPQ_LOWER_CALL &&
           !(info->flags & (CHEAP | CHECKED | NOFLOAT));
}

bool opq_op_computes(opq_op op, opq_dtype compute)
{
    bool narrow = compute == OPQ_f32 || opq_dtype_is_half(compute);
    return narrow || (!(opq_op_info_of(op)->flags & MATH32) && (compute == OPQ_f64 || !opq_op_is_math(op)));
}

int opq_lowering_code(const opq_lowering *lowering, opq_dtype dtype)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_FLOAT: return lowering->for_float;
    case OPQ_KIND_INT: return lowering->for_signed;
    case OPQ_KIND_UINT:
    case OPQ_KIND_BOOL: return lowering->for_unsigned;
    case OPQ_KIND_RAW: break;
    }
    return 0;
}

/* Ops by name: a slot has an op's number and one, or 0. Recording a composite row looks up the rows of its expression. */
enum { SLOTS = 2048 };
static uint16_t slots[SLOTS];
_Static_assert(OPQ_OP_COUNT < SLOTS / 2, "names need room");

static unsigned first_slot(const char *name, size_t length)
{
    unsigned hash = (unsigned)length;
    for (size_t i = 0; i < length; i++)
        hash = hash * 31 + (unsigned char)name[i];
    return hash;
}

static void fill_slots(void)
{
    for (int op = 0; op < OPQ_OP_COUNT; op++) {
        unsigned at = first_slot(infos[op].name, name_lengths[op]);
        while (slots[at % SLOTS])
            at++;
        slots[at % SLOTS] = (uint16_t)(op + 1);
    }
}

bool opq_op_find(const char *name, size_t length, opq_op *out_op)
{
    static pthread_once_t filled = PTHREAD_ONCE_INIT;
    pthread_once(&filled, fill_slots);
    for (unsigned at = first_slot(name, length); slots[at % SLOTS]; at++) {
        int op = slots[at % SLOTS] - 1;
        if (name_lengths[op] == length && !memcmp(infos[op].name, name, length)) {
            *out_op = (opq_op)op;
            return true;
        }
    }
    return opq_defined_find(name, length, out_op);
}

int opq_op_operand(const opq_op_info *info, const char *name, size_t length)
{
    if (info->operands == NULL)
        return length == 1 && *name >= 'a' && *name - 'a' < info->arity ? *name - 'a' : -1;
    const char *at = info->operands;
    for (int i = 0; i < info->arity; i++) {
        size_t here = strcspn(at, ",");
        if (here == length && !memcmp(at, name, length))
            return i;
        at += here + 2;
    }
    return -1;
}

bool opq_operand_from_memory(const opq_node *node, int k)
{
    switch (opq_node_class(node)) {
    case OPQ_CLASS_MATMUL:
    case OPQ_CLASS_ROUTINE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_CONCAT: return true;
    case OPQ_CLASS_UPDATE:
    case OPQ_CLASS_SCATTER: return k == 0;
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR:
    case OPQ_CLASS_IOTA:
    case OPQ_CLASS_RANDOM:
    case OPQ_CLASS_EWISE:
    case OPQ_CLASS_CAST:
    case OPQ_CLASS_VIEW:
    case OPQ_CLASS_REDUCE:
    case OPQ_CLASS_SCAN:
    case OPQ_CLASS_INDEX:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_COUNT: break;
    }
    return false;
}
