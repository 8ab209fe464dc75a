/* A kernel under construction: the values at hand, where each access points, which lanes count. Private to this folder.
 *
 * A loop nest is emitted from outside in. Entering a loop binds it: its index goes into the address of every access,
 * and the body's instructions that vary no further inside are emitted there (their level), as splats if the vector axis
 * is not yet bound.
 *
 *                 map             row                               column
 *   entry         once            once                              once
 *   outer         per unit        per row, between sweeps           per unit
 *   strip                                                           per strip of vectors, between sweeps
 *   middle                        per index of outer reduced loops  per index of the reduced loops
 *   inner         per vector      per vector                        per vector
 *
 * The vector body may be emitted several times (copies) with consecutive vectors; `value` then holds those of the last
 * copy.
 */
#ifndef OPAQUE_CODEGEN_NEST_H
#define OPAQUE_CODEGEN_NEST_H

#include "codegen_llvm/emit_ops.h"
#include "fusion/kernel.h"

typedef enum opq_level {
    OPQ_LEVEL_entry,
    OPQ_LEVEL_outer,
    OPQ_LEVEL_strip,
    OPQ_LEVEL_middle,
    OPQ_LEVEL_inner,
} opq_level;

/* Carried: two values per reduction (an arg reduction's best and its index) for each of the vectors that take turns. */
enum { OPQ_TURN_MAX = 8, OPQ_CARRIED_MAX = 2 * OPQ_REDUCTION_MAX * OPQ_TURN_MAX, OPQ_PREFETCH_BYTES = 2048 };

typedef struct opq_nest {
    opq_emitter *e;
    const opq_kernel *kernel;
    opq_status status; /* of the first failure; emitting goes on with zeros, so that only the end has to look */

    LLVMValueRef buffers, dims, scalars, begin, end, scratch, error; /* the function's arguments */
    LLVMValueRef extent[OPQ_LOOP_MAX];
    LLVMValueRef index[OPQ_LOOP_MAX]; /* of the loops entered so far; the vector axis: of the first lane of copy 0 */

    uint16_t depends[OPQ_BODY_MAX];
    opq_level level[OPQ_BODY_MAX];
    bool has_at;
    LLVMValueRef value[OPQ_BODY_MAX]; /* vectors of e->lanes */

    LLVMValueRef address[OPQ_ACCESS_MAX]; /* pointer, or the number so far, with the bound loops */
    LLVMValueRef stride[OPQ_ACCESS_MAX][OPQ_LOOP_MAX];
    LLVMValueRef at_offset[OPQ_BODY_MAX]; /* load_at, store_add_at with a uniform index: index * at_stride */
    LLVMValueRef at_valid[OPQ_BODY_MAX];  /* a splat: was that index in range? */

    bool vector_bound; /* is the vector axis in the addresses? Else index[vector] is added at each access. */
    int copy;          /* vectors beyond index[vector] */
    LLVMValueRef remaining; /* lanes from copy's first one that count (i64, may exceed the lanes or be negative); NULL: all */
    LLVMValueRef mask; /* the same as <lanes x i1>; NULL: all */
    bool prefetch;
    LLVMValueRef prefetch_rows; /* column: indices of the innermost reduced loop to look ahead; NULL: OPQ_PREFETCH_BYTES */

    LLVMValueRef spill_slot[OPQ_BODY_MAX]; /* pointer per slot */
    LLVMValueRef spill_row;                /* element of the row at which the innermost reduced loop starts */
} opq_nest;

static inline int opq_nest_vector(const opq_nest *n) { return n->kernel->rank - 1; }
static inline const opq_instr *opq_nest_instr(const opq_nest *n, int i) { return &n->kernel->instrs[i]; }
static inline opq_class opq_instr_class(const opq_instr *instr)
{
    return instr->op < OPQ_OP_COUNT ? opq_op_info_of((opq_op)instr->op)->class_ : OPQ_CLASS_COUNT;
}
/* Along the vector axis; what does not is a splat. */
static inline bool opq_nest_varies(const opq_nest *n, int instr) { return n->depends[instr] >> opq_nest_vector(n) & 1; }

/* ---- nest.c */
/* Makes the function, returns from it if there are no units, reads extents and strides, points every access at its
 * offset. */
void opq_nest_open(opq_nest *n, opq_emitter *e, const opq_kernel *kernel, const char *name);
/* Adds index * stride of these loops (bit l: loop l) to every address. */
void opq_nest_bind(opq_nest *n, unsigned loops);
/* Lanes of this copy that count, out of `remaining` elements; NULL: all of them. */
void opq_nest_mask(opq_nest *n, LLVMValueRef remaining);
LLVMValueRef opq_nest_stack(opq_nest *n, LLVMTypeRef type); /* aligned to 64 bytes */
LLVMBasicBlockRef opq_nest_block(opq_nest *n, const char *name);
void opq_nest_fail(opq_nest *n, opq_status status);

/* ---- nest_memory.c */
LLVMValueRef opq_nest_load(opq_nest *n, int instr);
LLVMValueRef opq_nest_number(opq_nest *n, int instr);
void opq_nest_store(opq_nest *n, int instr);
void opq_nest_spill(opq_nest *n, int instr);
LLVMValueRef opq_nest_fill(opq_nest *n, int instr);
/* Element at `pointer` + this copy's lanes: stride class and step (elements) along the vector axis. */
LLVMValueRef opq_memory_load(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                             LLVMValueRef mask);
void opq_memory_store(opq_nest *n, opq_dtype dtype, opq_stride stride, LLVMValueRef step, LLVMValueRef pointer,
                      LLVMValueRef mask, LLVMValueRef value);
/* Where the access's first lane of this copy is. */
LLVMValueRef opq_nest_pointer(opq_nest *n, int access, LLVMValueRef extra_offset);

/* ---- nest_at.c */
/* Called when the index of a load_at or store_add_at is known and the same for all lanes. */
void opq_nest_settle(opq_nest *n, int instr);
LLVMValueRef opq_nest_load_at(opq_nest *n, int instr);
void opq_nest_check(opq_nest *n, int instr);
void opq_nest_nonzero(opq_nest *n, int instr);
void opq_nest_store_add_at(opq_nest *n, int instr);

/* ---- nest_body.c */
/* Sets depends[] and level[]; OPQ_INTERNAL for a kernel that breaks its contract. */
opq_status opq_nest_plan(opq_nest *n) OPQ_MUST_CHECK;
/* What sweep s must compute at levels middle and inner; false: nothing. */
bool opq_nest_needed(const opq_nest *n, int sweep, bool *out_needed);
/* Emits a level's instructions in order. `needed` NULL: those of this sweep (levels outside the sweeps). */
void opq_nest_emit(opq_nest *n, opq_level level, int sweep, const bool *needed);
/* An instruction's value is known (the result of a reduction). */
void opq_nest_define(opq_nest *n, int instr, LLVMValueRef value);
/* A rough count of vector instructions of the inner level. */
int opq_nest_cost(const opq_nest *n, const bool *needed);
/* Reductions made in a sweep; gives their number. */
int opq_nest_reductions(const opq_nest *n, int sweep, int *out_instrs);
opq_fold opq_nest_fold(const opq_nest *n, int instr);
opq_dtype opq_nest_fold_dtype(const opq_nest *n, int instr); /* of partial results */
int opq_nest_sweeps(const opq_nest *n);

/* ---- nest_loops.c */
/* for (index = from; index < to; index += step), tested at the end, with values carried round. */
typedef struct opq_loop {
    LLVMBasicBlockRef before, body, exit;
    LLVMValueRef index, to, step, initial[OPQ_CARRIED_MAX], phi[OPQ_CARRIED_MAX];
    int carried;
} opq_loop;
/* carried[]: in initial values, out the loop's phis */
void opq_loop_begin(opq_nest *n, opq_loop *loop, LLVMValueRef from, LLVMValueRef to, int64_t step,
                    LLVMValueRef *carried, int count);
/* carried[]: in the next iteration's values, out what they are after the loop */
void opq_loop_end(opq_nest *n, opq_loop *loop, LLVMValueRef *carried);

/* Row-major indices of several loops, counted up. */
typedef struct opq_odometer {
    int rank;
    LLVMValueRef extent[OPQ_LOOP_MAX];
} opq_odometer;
/* Those of the kernel's loops in the mask. */
opq_odometer opq_nest_odometer(const opq_nest *n, unsigned loops);
/* Sets index[] of the loops in the mask. */
void opq_nest_enter(opq_nest *n, unsigned loops, const LLVMValueRef *index);
LLVMValueRef opq_odometer_count(opq_nest *n, const opq_odometer *odometer);
void opq_odometer_split(opq_nest *n, const opq_odometer *odometer, LLVMValueRef linear, LLVMValueRef *out_index);
void opq_odometer_next(opq_nest *n, const opq_odometer *odometer, LLVMValueRef *index);

/* for every unit in [from, to), with its row-major indices in index[]. */
typedef struct opq_units {
    opq_loop loop;
    opq_odometer odometer;
    LLVMValueRef index[OPQ_LOOP_MAX];
} opq_units;
void opq_units_begin(opq_nest *n, opq_units *units, const opq_odometer *odometer, LLVMValueRef from, LLVMValueRef to);
void opq_units_end(opq_nest *n, opq_units *units);

/* Runs the inner level of a sweep over [from, to) of the vector axis: whole vectors, then masked ones. After each copy
 * `after` sees carried values in groups: with `rotate` > 0 the carried values are `rotate` groups of equal size, one
 * per consecutive vector, and the number of vectors, with masked ones at the end, is a multiple of it. */
typedef struct opq_span {
    int sweep;
    const bool *needed;
    int copies; /* vectors per iteration of the main loop; a power of two that divides `rotate` */
    int rotate;
    int carried; /* rotate * group size */
    void (*after)(opq_nest *n, void *data, LLVMValueRef *group);
    void *data;
} opq_span;
void opq_nest_span(opq_nest *n, const opq_span *span, LLVMValueRef from, LLVMValueRef to, LLVMValueRef *carried);

/* ---- codegen.c */
enum { OPQ_TILE_LINES = 16 };
/* kernel_map.c: is a unit a tile's worth of lines? */
bool opq_kernel_tiled(const opq_kernel *kernel);
/* Bytes of one element in a spill slot. */
int opq_spill_bytes(const opq_kernel *kernel, int slot);

/* ---- kernel_*.c */
void opq_emit_map(opq_nest *n);
void opq_emit_row(opq_nest *n);
void opq_emit_column(opq_nest *n);

#endif
