/* A kernel as codegen sees it: a loop nest and a straight-line body over it. Plain data; nothing in it depends on sizes.
 *
 * Loops run from outermost to innermost; the last one is the vector axis. `reduced[l]` marks reduction loops.
 *   map     no reduced loop
 *   row     [kept.., reduced..]: the vector axis is reduced; sums follow OPQ_TREE_lanes
 *   column  [kept.., reduced.., kept]: the vector axis is kept; sums follow OPQ_TREE_column
 *   scan    [kept.., scanned, kept], or [kept.., scanned] of few rows: the scanned loop counts as reduced, but nothing stands behind it
 *   matmul  [batch.., m.., n.., k..]: k is reduced, by one chain of multiply-adds; each is several loops where an operand is a window
 *   index   as map, but run serially in ascending order because of a store_add_at
 *
 * The body is SSA. An instruction lives as far inside as the loops its value depends on (`depends`). Reductions split the body in
 * sweeps: everything that needs the result of a reduction made in sweep s has sweep > s. Sweep s runs all reduced loops once,
 * computing what its reductions and stores need: again from loads, or from `spill` slots filled in an earlier sweep.
 *
 * Run-time arguments, all int64 in one array `dims`:
 *   dims[0..rank)                                     extents of the loops
 *   dims[rank + a * (rank + 3) ..]  for access a:     offset, stride per loop (elements), at_stride, at_extent
 */
#ifndef OPAQUE_FUSION_KERNEL_H
#define OPAQUE_FUSION_KERNEL_H

#include "fusion/limits.h"
#include "graph/graph.h"

/* Elements from turn to turn. Below `any` it is the number itself, which is baked, as -1 is: two to four elements are loaded as vectors that
 * are taken apart, one element backwards as a vector that is turned round. */
typedef enum opq_stride { OPQ_STRIDE_zero, OPQ_STRIDE_one, OPQ_STRIDE_any = 5, OPQ_STRIDE_back } opq_stride;

/* offset + sum over loops of index * stride: an element of a buffer, or (buffer < 0) just that number. */
typedef struct opq_access {
    int16_t buffer;
    uint8_t dtype;                /* in memory */
    uint8_t stride[OPQ_LOOP_MAX]; /* opq_stride */
} opq_access;

/* Instructions beyond the elementwise and reduce rows of the op table. */
typedef enum opq_instr_op {
    OPQ_INSTR_load = OPQ_OP_COUNT, /* access; where operand 0 (bool), if there is one, is false, 0 and nothing is read */
    OPQ_INSTR_load_at,      /* access + operand 0 * at_stride; operand 0 (i64) is checked against [0, at_extent) */
    OPQ_INSTR_check,        /* operand 0 (i64) is checked against [0, at_extent) of a bufferless access; no value */
    OPQ_INSTR_store,        /* access; operand 0 is the value */
    OPQ_INSTR_store_add_at, /* access + operand 0 * at_stride gets operand 1 added; checked; kernel kind index */
    OPQ_INSTR_number,       /* the access's number, i64 (iota, linear index, extent) */
    OPQ_INSTR_inside,       /* is the access's number in [0, at_extent)? bool */
    OPQ_INSTR_nonzero,      /* operand 0 (an integer of `dtype`), by which operand 1 is divided, is checked; no value */
} opq_instr_op;

/* What a dtype is computed in: f16 and bf16 in f32; raw words are moved as integers of their width. */
opq_dtype opq_compute_dtype(opq_dtype dtype);

/* dtype is what is computed in: f16 and bf16 are f32 here, loads widen and stores round. A cast to f16 or bf16 has dtype f32 and
 * `value.i` the narrow dtype: it rounds. A scan: `value.i` is the dtype in which it holds what came before. const: `value`. scalar: `value.i` is the slot. uniform, normal: operands are
 * (i64 linear index, i64 seed, i64 offset). */
typedef struct opq_instr {
    uint16_t op; /* opq_op or opq_instr_op */
    uint8_t dtype;
    uint8_t sweep;
    uint16_t depends;   /* bit l: varies along loop l */
    int16_t operand[3]; /* -1: none */
    int16_t access;
    int16_t spill; /* slot, or -1 */
    opq_number value;
    opq_ref node; /* that may fail here, for messages; not in the key */
} opq_instr;

typedef struct opq_kernel {
    uint8_t kind; /* opq_kernel_kind: map, row, column, scan, index, matmul */
    uint8_t rank;
    uint8_t reduced[OPQ_LOOP_MAX];
    uint8_t columns;             /* matmul: how many loops n is */
    bool pairs;                  /* matmul: by that rule, else a chain */
    uint8_t turns[OPQ_LOOP_MAX]; /* of a loop inside the lanes' whose turns are made at once; 0: any other */
    bool blocks; /* a row alone: loop 0 counts the blocks of all others, and buffers and accesses from these on are the kernel's own */
    int16_t own_buffer, own_access;
    bool across; /* rows (of a map: what its last loop runs over) are short, or scanned: the last loop is another, for lanes */
    bool by_rows; /* columns are best folded row by row, where rows are read whole */
    int16_t buffer_count, scalar_count, access_count, instr_count, sweep_count, spill_count;
    opq_access *accesses;
    opq_instr *instrs;
    const char *name; /* for people; not in the key */
} opq_kernel;

/* Where the arguments of an access begin in `dims`. */
static inline int opq_dims_of(int rank, int access) { return rank + access * (rank + 3); }
static inline uint16_t opq_kernel_reduced_mask(const opq_kernel *k)
{
    uint16_t mask = 0;
    for (int l = 0; l < k->rank; l++)
        mask |= (uint16_t)(k->reduced[l] << l);
    return mask;
}

/* Has an effect besides its value: never left out. */
static inline bool opq_instr_is_root(const opq_instr *instr)
{
    return instr->op == OPQ_INSTR_store || instr->op == OPQ_INSTR_store_add_at || instr->op == OPQ_INSTR_check ||
           instr->op == OPQ_INSTR_nonzero;
}
static inline bool opq_instr_has_access(const opq_instr *instr)
{
    return instr->op >= OPQ_OP_COUNT && instr->op != OPQ_INSTR_nonzero;
}
/* By the op alone: opq_op or opq_instr_op. A product of matrices is the sum of its operands' products: it reduces, too. */
static inline bool opq_op_contracts(int op)
{
    return op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_MATMUL;
}
static inline bool opq_op_reduces(int op)
{
    return opq_op_contracts(op) || (op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_REDUCE);
}
static inline bool opq_op_scans(int op)
{
    return op < OPQ_OP_COUNT && opq_op_info_of((opq_op)op)->class_ == OPQ_CLASS_SCAN;
}
static inline bool opq_instr_reduces(const opq_instr *instr) { return opq_op_reduces(instr->op); }
/* May find an index out of range: operand 0. */
static inline bool opq_op_checks(int op)
{
    return op == OPQ_INSTR_load_at || op == OPQ_INSTR_store_add_at || op == OPQ_INSTR_check;
}
static inline bool opq_instr_checks(const opq_instr *instr) { return opq_op_checks(instr->op); }

/* The first limit that the kernel does not keep, for a message; NULL: it keeps them all. */
const char *opq_kernel_excess(const opq_kernel *kernel);

/* The words of a kernel's text, in each of its forms: a loop's letter, an op's name, " 0x1p+0" of a constant, " s2" of a scalar, " to f16"
 * of a cast that rounds, nothing of any other op. */
char opq_loop_letter(int loop);
const char *opq_instr_name(int op);
void opq_instr_value_print(int op, opq_dtype dtype, opq_number value, opq_text *out_text);

#endif
