/* The graph: SSA nodes in one growable array, operands as int32 references to earlier nodes, everything else in an arena.
 *
 * Record order is a topological order: a node's operands come before it. Passes read one graph and build another.
 * A fused graph is a graph whose nodes carry a kernel number: the nodes of one kernel stand together, `kernels` names them.
 */
#ifndef OPAQUE_GRAPH_GRAPH_H
#define OPAQUE_GRAPH_GRAPH_H

#include "opaque/opaque.h"
#include "opaque/scalar.h"

/* ---- arena: bump allocation, zeroed, dropped whole. NULL after OPQ_NO_MEMORY. */
typedef struct opq_arena {
    struct opq_arena_block *blocks;
    size_t used;
} opq_arena;
bool opq_arena_begin(opq_arena *arena, size_t bytes); /* of an empty one: that much is known to come. False: no memory */
void *opq_arena_alloc(opq_arena *arena, size_t bytes);
void *opq_arena_room(opq_arena *arena, size_t bytes); /* not zeroed: an array that is filled from its beginning */
void *opq_arena_copy(opq_arena *arena, const void *data, size_t bytes);
char *opq_arena_text(opq_arena *arena, const char *text);
void opq_arena_drop(opq_arena *arena);
size_t opq_arena_bytes(const opq_arena *arena); /* taken from the C library */
size_t opq_arena_given(const opq_arena *arena); /* of these, all but what is left of the last block */

/* ---- growing text; `failed` sticks after an allocation failure */
typedef struct opq_text {
    char *data; /* NUL-terminated once anything was added */
    size_t length, capacity;
    bool failed;
} opq_text;
void opq_text_add(opq_text *text, const char *format, ...) OPQ_PRINTF(2, 3);
void opq_text_bytes(opq_text *text, const void *data, size_t length);
void opq_text_type(opq_text *text, const opq_type *type);  /* f32[2,3] */
void opq_text_shape(opq_text *text, const opq_type *type); /* [2,3] */
opq_status opq_text_take(opq_text *text, char **out_text); /* gives the malloc'd string, or OPQ_NO_MEMORY */
void opq_text_drop(opq_text *text);

/* [2,3] for messages: opq_fail(OPQ_INVALID, "%s", opq_shape_name(type).text) */
typedef struct opq_shape_text {
    char text[OPQ_RANK_MAX * 21 + 3];
} opq_shape_text;
opq_shape_text opq_shape_name(const opq_type *type);
/* f32[2,3] likewise; of NULL nothing. */
typedef struct opq_type_text {
    char text[sizeof(opq_shape_text) + 16];
} opq_type_text;
opq_type_text opq_type_name(const opq_type *type);

/* Dtype, rank and extents in range, bytes within int64. `op` begins the message. */
opq_status opq_type_check(const char *op, const opq_type *type) OPQ_MUST_CHECK;
/* Brings a number to what the dtype can hold: rounds floats, makes bool 0 or 1. OPQ_INVALID if an integer does not fit. */
opq_status opq_number_fit(const char *op, opq_dtype dtype, opq_number *number) OPQ_MUST_CHECK;

/* ---- lowering of a row, as graph/ and codegen_llvm/ read it */
typedef enum opq_lowering_kind {
    OPQ_LOWER_NATIVE,
    OPQ_LOWER_ARITH,
    OPQ_LOWER_CMP,
    OPQ_LOWER_CALL,
    OPQ_LOWER_FOLD,
    OPQ_LOWER_SCAN,
    OPQ_LOWER_EXPAND
} opq_lowering_kind;
typedef enum opq_arith {
    OPQ_ARITH_None,
    OPQ_ARITH_FAdd,
    OPQ_ARITH_FSub,
    OPQ_ARITH_FMul,
    OPQ_ARITH_FDiv,
    OPQ_ARITH_Add,
    OPQ_ARITH_Sub,
    OPQ_ARITH_Mul,
    OPQ_ARITH_And,
    OPQ_ARITH_Or,
    OPQ_ARITH_Xor
} opq_arith;
typedef enum opq_cmp {
    OPQ_CMP_None,
    OPQ_CMP_OEQ,
    OPQ_CMP_UNE,
    OPQ_CMP_OLT,
    OPQ_CMP_OLE,
    OPQ_CMP_OGT,
    OPQ_CMP_OGE,
    OPQ_CMP_EQ,
    OPQ_CMP_NE,
    OPQ_CMP_SLT,
    OPQ_CMP_SLE,
    OPQ_CMP_SGT,
    OPQ_CMP_SGE,
    OPQ_CMP_ULT,
    OPQ_CMP_ULE,
    OPQ_CMP_UGT,
    OPQ_CMP_UGE
} opq_cmp;
typedef enum opq_fold {
#define FOLD(name, identity, combine, held, takes) OPQ_FOLD_##name,
#include "opaque/folds.def"
#undef FOLD
} opq_fold;
typedef enum opq_identity {
    OPQ_IDENTITY_zero,
    OPQ_IDENTITY_one,
    OPQ_IDENTITY_least,
    OPQ_IDENTITY_greatest
} opq_identity;
typedef enum opq_held { OPQ_HELD_result, OPQ_HELD_operand, OPQ_HELD_truth } opq_held;
/* A row of folds.def. */
typedef struct opq_fold_info {
    const char *name;
    opq_identity identity;
    opq_op combine;
    opq_held held;
    opq_op takes; /* OPQ_OP_COUNT: none */
} opq_fold_info;
const opq_fold_info *opq_fold_info_of(opq_fold fold);
/* Its result is an index. */
static inline bool opq_fold_is_arg(opq_fold fold) { return opq_fold_info_of(fold)->takes != OPQ_OP_COUNT; }
static inline bool opq_fold_takes_equals(opq_fold fold)
{
    return opq_fold_info_of(fold)->takes == OPQ_OP_ge || opq_fold_info_of(fold)->takes == OPQ_OP_le;
}

typedef struct opq_lowering {
    opq_lowering_kind kind;
    int for_float, for_signed, for_unsigned; /* opq_arith or opq_cmp */
    opq_fold fold;                           /* SCAN: whose identity comes before the first element */
    opq_op combine;                          /* SCAN: the elementwise row */
    bool wide;                               /* SCAN: f32 is held in f64 */
    const char *text;                        /* CALL: function name; EXPAND: expression */
} opq_lowering;
const opq_lowering *opq_op_lowering(opq_op op);
/* Has a row this number, in ops.def or by opq_define_op? */
bool opq_op_exists(int op);
/* Is it a transcendental function: some tens of instructions, of floats only? */
bool opq_op_is_math(opq_op op);
/* Has an elementwise or composite row, whose rule allows it, a kernel that computes in this dtype? */
bool opq_op_computes(opq_op op, opq_dtype compute);
static inline bool opq_dtype_is_half(opq_dtype dtype) { return dtype == OPQ_f16 || dtype == OPQ_bf16; }
/* In which dtype a scan whose result is `dtype` holds what came before. */
static inline opq_dtype opq_scan_dtype(opq_op op, opq_dtype dtype)
{
    if (opq_dtype_is_half(dtype))
        return OPQ_f32;
    return dtype == OPQ_f32 && opq_op_lowering(op)->wide ? OPQ_f64 : dtype;
}
/* ARITH, CMP: the code for operands of this dtype; 0: not defined. */
int opq_lowering_code(const opq_lowering *lowering, opq_dtype dtype);

/* ---- attributes of a row: bit k stands for key k. `tree` may be left out for the builder to add. */
typedef struct opq_attr_set {
    unsigned required, optional;
} opq_attr_set;
opq_attr_set opq_op_attrs(opq_op op);
const char *opq_attr_name(opq_attr_key key);
opq_attr_kind opq_attr_kind_of(opq_attr_key key);
bool opq_attr_key_find(const char *name, size_t length, opq_attr_key *out_key);
const char *opq_tree_name(opq_tree tree);

/* ---- nodes */

/* Where a node comes from, for those who look: parts of its source line, NULL where there is none; the op that was recorded, of which it
 * became a part; by which call of the program, and that of the call whose gradient it is part of: 0 if it is none. */
typedef struct opq_provenance {
    const char *part[OPQ_LINE_PARTS];
    opq_op op;
    uint32_t call, forward;
} opq_provenance;

typedef struct opq_node {
    uint16_t op; /* opq_op */
    uint16_t attr_count;
    int32_t arity;
    int32_t kernel; /* index into graph->kernels, -1 outside */
    const opq_ref *operand;
    const opq_attr *attr;
    const char *line;                 /* "train.py:41", or NULL */
    const opq_provenance *provenance; /* of graphs that somebody looks at, else NULL */
    void *payload;                    /* extern: the host's */
    opq_type type;
} opq_node;

typedef enum opq_kernel_kind {
    OPQ_KERNEL_map,
    OPQ_KERNEL_row,
    OPQ_KERNEL_column,
    OPQ_KERNEL_scan,
    OPQ_KERNEL_index,
    OPQ_KERNEL_matmul,
    OPQ_KERNEL_concat,
    OPQ_KERNEL_update,
    OPQ_KERNEL_extern,
    OPQ_KERNEL_block,
    OPQ_KERNEL_routine,
    OPQ_KERNEL_KIND_COUNT
} opq_kernel_kind;
const char *opq_kernel_kind_name(opq_kernel_kind kind);

/* One kernel of a fused graph: nodes first .. first+count-1. A node used outside its kernel, or an output, is stored. */
typedef struct opq_kernel_group {
    opq_kernel_kind kind;
    opq_ref first;
    int32_t count;
    const char *name; /* "softmax_0": from its ops */
} opq_kernel_group;

struct opq_graph {
    const char *name;
    opq_node *nodes;
    int32_t count, capacity;
    opq_ref *outputs;
    int32_t output_count, output_capacity;
    opq_kernel_group *kernels; /* fused graphs only */
    int32_t kernel_count, kernel_capacity;
    opq_arena arena;
};

static inline const opq_node *opq_node_at(const opq_graph *graph, opq_ref ref) { return &graph->nodes[ref]; }
static inline const opq_op_info *opq_node_info(const opq_node *node) { return opq_op_info_of((opq_op)node->op); }
static inline opq_class opq_node_class(const opq_node *node) { return opq_node_info(node)->class_; }
/* Is the result operand 0 with elements set or combined at the indices of operand 1, by a routine? */
static inline bool opq_op_scatters(opq_op op) { return op >= OPQ_OP_scatter_prod && op <= OPQ_OP_index_set; }
/* Is the result operand 0 with some elements changed? It begins with a copy of it, or is done in place. */
static inline bool opq_op_changes_operand(opq_op op)
{
    opq_class class_ = opq_op_info_of(op)->class_;
    return class_ == OPQ_CLASS_UPDATE || class_ == OPQ_CLASS_SCATTER || opq_op_scatters(op);
}
/* Is it said in other rows, by its expression? */
static inline bool opq_node_is_composite(const opq_node *node)
{
    return opq_node_class(node) == OPQ_CLASS_COMPOSITE || opq_op_lowering((opq_op)node->op)->kind == OPQ_LOWER_EXPAND;
}
const opq_attr *opq_attr_find(const opq_attr *attrs, int count, opq_attr_key key);
static inline const opq_attr *opq_node_attr(const opq_node *node, opq_attr_key key)
{
    return opq_attr_find(node->attr, node->attr_count, key);
}
static inline int64_t opq_node_int(const opq_node *node, opq_attr_key key, int64_t otherwise)
{
    const opq_attr *attr = opq_node_attr(node, key);
    return attr ? attr->i : otherwise;
}
size_t opq_graph_bytes(const opq_graph *graph);        /* of memory, with everything that belongs to it */
bool opq_node_divides(const opq_node *node);           /* integers: fails where operand 1 is 0 */
bool opq_node_reduces(const opq_node *node, int axis); /* REDUCE and COMPOSITE rows with `axes` */
/* Elements of the innermost axes of the operand that are all reduced; extents of 1 do not count. A tree of lanes reduces each such
 * run, then their results; 0 if there is nothing to reduce. */
int64_t opq_node_run(const opq_node *node, const opq_type *operand);

/* "axes=[1]"; `dtype` is that of its number. */
void opq_text_attr(opq_text *text, opq_dtype dtype, const opq_attr *attr);
/* "axes=[1], tree=lanes": what stands between the braces of a node's text. */
void opq_text_attrs(opq_text *text, const opq_node *node);
/* Scalars that stand as numbers where they are an operand: per node; malloc'd, NULL: no memory. */
bool *opq_text_inlined(const opq_graph *graph);
/* "%4 = sum f32[128,1] %3 {axes=[1], tree=lanes}  # model.py:12" */
void opq_text_node(opq_text *text, const opq_graph *graph, opq_ref ref, const bool *inlined);

/* ---- json.c: JSON, as docs/ir.md has it */
void opq_json_string(opq_text *text, const char *string);
void opq_json_float(opq_text *text, double value);
/* The document up to its outputs; a kernel up to its name. */
void opq_json_begin(opq_text *text, const opq_graph *graph);
void opq_json_kernel(opq_text *text, const opq_graph *graph, int32_t kernel);

/* Appends a node as it is: the type is complete, operands and attributes are copied into the arena. No inference, no check.
 * The node belongs to no kernel; control characters in its line become '?', an empty line none. */
opq_status opq_graph_append(opq_graph *graph, const opq_node *node, opq_ref *out_ref) OPQ_MUST_CHECK;
/* Line and provenance of a node, in the arena of a graph. */
opq_status opq_graph_copy_origin(opq_graph *graph, const opq_node *node, const char **out_line,
                                 const opq_provenance **out_provenance) OPQ_MUST_CHECK;
/* Appends in's node n with operands renamed; lines and payloads come along. */
opq_status opq_graph_copy_node(opq_graph *graph, const opq_graph *in, opq_ref n, const opq_ref *renamed,
                               opq_ref *out_ref) OPQ_MUST_CHECK;
/* Drops all other nodes; what is kept, and outputs, need none of them. No node has a kernel. `renamed`: room for a number for each. */
void opq_graph_keep(opq_graph *graph, const bool *kept, opq_ref *renamed);
opq_status opq_graph_add_kernel(opq_graph *graph, opq_kernel_kind kind, const char *name, opq_ref first,
                                int32_t count) OPQ_MUST_CHECK;

/* Operand k of this node is taken from memory by its kernel, never computed in it. */
bool opq_operand_from_memory(const opq_node *node, int k);

/* The kernels' part of opq_graph_verify: cheap enough for every plan. */
opq_status opq_kernels_verify(const opq_graph *graph) OPQ_MUST_CHECK;
/* One node's part of opq_graph_verify: operands, attributes, type. The message begins with the op. */
opq_status opq_node_verify(const opq_graph *graph, opq_ref ref) OPQ_MUST_CHECK;
/* Names of graphs and kernels: letters, digits, '_', '.', '-', 1 to 255 of them. */
bool opq_name_valid(const char *name);

/* ---- rules: types in, type out, never nodes */

/* What an op makes of its operand types. `out_compute` is the dtype to which the promoted operands must be cast first
 * (operands that do not take part in promotion, such as indices and where's condition, keep theirs).
 * `given` is the result type for rows with rule GIVEN, for a matmul what is wanted if that is f32 of halves, else NULL. OPQ_INVALID with op and shapes in the message. */
opq_status opq_infer(opq_op op, const opq_type *operands, int arity, const opq_attr *attrs, int attr_count,
                     const opq_type *given, opq_type *out_type, opq_dtype *out_compute) OPQ_MUST_CHECK;
/* Does operand `index` of this op take part in promotion? */
bool opq_operand_promotes(opq_op op, int index);
/* Does a product widen such an operand itself: i8, and halves whose product is f32? */
bool opq_product_widens(opq_op op, opq_dtype operand, opq_dtype compute);
/* And is it not of the dtype in which it is computed with, nor widened by a product? */
bool opq_operand_needs_cast(opq_op op, int index, opq_dtype operand, opq_dtype compute);
/* PyTorch's promotion: dimensioned tensors, then 0-d tensors, then numbers; a lower group counts only if its kind is higher. */
opq_dtype opq_promote(const opq_type *types, int count);
opq_status opq_broadcast(const char *op, const opq_type *a, const opq_type *b, opq_type *out_type) OPQ_MUST_CHECK;
/* The order of additions for reducing `axes` of a value of this rank: see opq_tree. */
opq_tree opq_tree_for(int rank, const int64_t *axes, int count);

/* ---- expressions of composite rows */

/* Builds the expansion of `node` (a row with EXPAND) into `graph`; operands are already renamed references into `graph`.
 * Inner rows that expand themselves are expanded too. Every node made gets the line of `node`. */
opq_status opq_expand_node(opq_graph *graph, const opq_node *node, const opq_ref *operands,
                           opq_ref *out_ref) OPQ_MUST_CHECK;
/* What is known of an expression once it is built. */
typedef struct opq_expression_use {
    unsigned flags; /* OPQ_FLAG_NOINT, NOFLOAT, NOBOOL, MATH32 of any row in it, CHEAP if all are */
} opq_expression_use;
/* Builds the expression of a row that need not be in the table. `expand`: inner rows that expand themselves are expanded. Of what is wrong in
 * it the message has the column. */
opq_status opq_expression_build(opq_graph *graph, const opq_op_info *info, const opq_ref *operands, opq_dtype dtype,
                                bool expand, opq_expression_use *out_use, opq_ref *out_ref) OPQ_MUST_CHECK;
/* Which operand of the row's expression has this name; -1: none. */
int opq_op_operand(const opq_op_info *info, const char *name, size_t length);
/* "ns::softcap(x, c)", of a row of opq_define_op. */
void opq_text_signature(opq_text *text, const opq_op_info *info);
/* The same with f16 and bf16 operands widened first and the result rounded once at the end: sums of halves neither overflow nor
 * round at each step. This is what evaluator and compiler use. Overwrites `operands`. */
opq_status opq_expand_wide(opq_graph *graph, const opq_node *node, opq_ref *operands, opq_ref *out_ref) OPQ_MUST_CHECK;

#endif
