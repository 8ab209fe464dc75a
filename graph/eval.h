/* What the parts of the reference evaluator share; but for the elements, private to graph/eval*.c.
 *
 * Every value is one dense buffer. An element travels as an opq_number: floats of every width as a double, which holds them
 * exactly, integers and bool as int64 (bool is 0 or 1). Arithmetic is done in the width of the dtype and not in that of the
 * carrier: f32 in float, f16 and bf16 in float with one rounding when stored, integers wrap in their width.
 */
#ifndef OPAQUE_GRAPH_EVAL_H
#define OPAQUE_GRAPH_EVAL_H

#include "graph/graph.h"

typedef struct opq_eval_value {
    const opq_type *type;
    const void *data;
} opq_eval_value;

/* ---- elements (eval_number.c). Not for raw dtypes. */
static inline bool opq_eval_is_float(opq_dtype dtype) { return opq_dtype_kind_of(dtype) == OPQ_KIND_FLOAT; }
opq_number opq_eval_load(opq_dtype dtype, const void *data, int64_t index);
/* Rounds a float to the dtype; keeps the low bits of an integer; bool is "not zero". */
void opq_eval_store(opq_dtype dtype, void *data, int64_t index, opq_number x);
/* The cast op. Float to integer truncates; see eval_number.c for what is out of range. */
opq_number opq_eval_cast(opq_dtype from, opq_dtype to, opq_number x);
/* What loading gives after storing: x rounded, wrapped or normalised to the dtype. */
opq_number opq_eval_rounded(opq_dtype dtype, opq_number x);

/* ---- arithmetic on loaded numbers of one dtype */
opq_number opq_eval_arith(opq_arith code, opq_dtype dtype, opq_number a, opq_number b);
opq_number opq_eval_add(opq_dtype dtype, opq_number a, opq_number b);
opq_number opq_eval_mul(opq_dtype dtype, opq_number a, opq_number b);
opq_number opq_eval_max(opq_dtype dtype, opq_number a, opq_number b);
opq_number opq_eval_min(opq_dtype dtype, opq_number a, opq_number b);
/* A CALL row's function by name, NULL if there is none; x[0..arity-1] have the operands' common dtype. */
typedef opq_number opq_eval_fn(opq_dtype dtype, const opq_number *x);
opq_eval_fn *opq_eval_call(const char *name);

/* One element of an elementwise op from operands of one dtype, of which a comparison gives a bool. OPQ_INVALID: not defined for it. */
opq_status opq_eval_element(opq_op op, opq_dtype dtype, const opq_number *x, int arity, opq_number *out) OPQ_MUST_CHECK;
/* uniform or normal: element `index` of the stream (seed, offset). */
opq_number opq_eval_random_element(opq_op op, int64_t index, int64_t seed, int64_t offset);

/* A fold of one result: its elements in row-major order of the reduced axes, in the dtype of partial results. */
typedef struct opq_eval_folding {
    opq_fold fold;
    opq_dtype dtype; /* in which partial results are held */
    opq_tree tree;
    int64_t run;   /* extent of the innermost run of adjacent reduced axes */
    int64_t count; /* elements */
} opq_eval_folding;
/* Overwrites the elements. */
opq_number opq_eval_fold(const opq_eval_folding *folding, opq_number *elements);
/* What combines with any element to that element; of an index 0. */
opq_number opq_eval_identity(opq_fold fold, opq_dtype dtype);
/* Of two partial results. */
opq_number opq_eval_combine(opq_fold fold, opq_dtype dtype, opq_number a, opq_number b);
/* Of a fold whose result is a place: does x, which comes later, take that of the best so far? */
bool opq_eval_better(opq_fold fold, opq_dtype dtype, opq_number best, opq_number x);
opq_dtype opq_eval_fold_dtype(opq_fold fold, opq_dtype operand, opq_dtype result);

/* What a scan holds, in the dtype `held`, before its first element; and after the next one, x of the dtype `from`. */
opq_number opq_eval_scan_start(opq_op op, opq_dtype held);
opq_status opq_eval_scan_next(opq_op op, opq_dtype held, opq_dtype from, opq_number x, opq_number *value) OPQ_MUST_CHECK;

/* ---- index arithmetic (eval_view.c). Coordinates are row-major. */
void opq_eval_coords(const opq_type *type, int64_t index, int64_t *out_coords);
int64_t opq_eval_index(const opq_type *type, const int64_t *coords);
/* The element of a broadcast operand that belongs to element `index` of the result; dims align at the end. */
int64_t opq_eval_broadcast(const opq_type *operand, const opq_type *result, int64_t index);

/* ---- classes. `out` has the bytes of node->type. */
opq_status opq_eval_ewise(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_view(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_update(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_concat(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_reduce(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_scan(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_select(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_scatter(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_matmul(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
/* OPQ_INVALID: not ends of groups of `extent` rows. */
opq_status opq_eval_groups(const char *name, const int64_t *ends, int64_t count, int64_t extent) OPQ_MUST_CHECK;
opq_status opq_eval_routine(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;
opq_status opq_eval_random(const opq_node *node, const opq_eval_value *x, void *out) OPQ_MUST_CHECK;

#endif
