/* torch_opaque, the C core: a graph IR over dense tensors, a fusion pass, an LLVM JIT and a runtime. No PyTorch, no C++.
 *
 *   opq_graph *g;   opq_graph_create(ctx, "example", &g);            build a graph node by node
 *   opq_program *p; opq_compile(ctx, g, OPQ_FUSED, &p);              simplify, group, generate machine code
 *   opq_run(p, inputs, outputs);                                     run it on host memory
 *
 * Ownership. Three lifetimes: a context lives until opq_ctx_destroy; a graph is an arena, everything in it is dropped with
 * opq_graph_destroy; scratch lives for one call. Accessors borrow. create/retain gives a reference, release gives it back.
 * Programs are released before their context is destroyed.
 *
 * Errors. What can fail returns opq_status. The message is written once, where it happens; opq_error() reads the last one
 * of the calling thread. OPQ_UNSUPPORTED is a normal answer: the caller has another way.
 *
 * Threads. opq_ctx and opq_program are thread-safe, opq_graph is thread-compatible (one thread at a time).
 *
 * Values are dense, row-major, in host memory. Sizes and strides count elements, `bytes` counts bytes.
 */
#ifndef OPAQUE_OPAQUE_H
#define OPAQUE_OPAQUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define OPQ_API __attribute__((visibility("default")))
#define OPQ_MUST_CHECK __attribute__((warn_unused_result))
#define OPQ_PRINTF(a, b) __attribute__((format(printf, a, b)))
#else
#define OPQ_API
#define OPQ_MUST_CHECK
#define OPQ_PRINTF(a, b)
#endif

/* ---- status ------------------------------------------------------------------------------------------------------ */

typedef enum opq_status {
    OPQ_OK,
    OPQ_INVALID,      /* the caller's mistake: shapes, dtypes, text that does not parse, an index out of range */
    OPQ_OUT_OF_RANGE, /* such a mistake where PyTorch raises IndexError */
    OPQ_UNSUPPORTED,  /* right, but not done here; nothing has changed */
    OPQ_NO_MEMORY,
    OPQ_CODEGEN,  /* LLVM refused */
    OPQ_INTERNAL, /* a broken invariant: a bug in this library */
    OPQ_SINGULAR, /* the caller's mistake where PyTorch raises LinAlgError: a matrix without such factors */
} opq_status;

/* Message of the calling thread's last failure; never NULL, "" before the first. Valid until its next failure. */
OPQ_API const char *opq_error(void);
/* Writes the message and returns `status`. For code below this header and for host callbacks. */
OPQ_API opq_status opq_fail(opq_status status, const char *format, ...) OPQ_PRINTF(2, 3);

#define OPQ_TRY(call)                                                                                                  \
    do {                                                                                                               \
        opq_status opq_try_status_ = (call);                                                                           \
        if (opq_try_status_ != OPQ_OK)                                                                                 \
            return opq_try_status_;                                                                                    \
    } while (0)

/* ---- types ------------------------------------------------------------------------------------------------------- */

#define OPQ_RANK_MAX 12

typedef struct opq_raw128 {
    uint64_t half[2];
} opq_raw128;

typedef enum opq_dtype {
#define DTYPE(name, bits, kind, c_type, torch) OPQ_##name,
#include "opaque/dtypes.def"
#undef DTYPE
    OPQ_DTYPE_COUNT
} opq_dtype;

typedef enum opq_dtype_kind { OPQ_KIND_BOOL, OPQ_KIND_UINT, OPQ_KIND_INT, OPQ_KIND_FLOAT, OPQ_KIND_RAW } opq_dtype_kind;

typedef struct opq_type {
    uint8_t dtype; /* opq_dtype */
    uint8_t rank;
    uint8_t weak; /* operand of promotion only: a Python number, which never widens within its kind */
    int64_t size[OPQ_RANK_MAX];
} opq_type;

OPQ_API const char *opq_dtype_name(opq_dtype dtype);
OPQ_API bool opq_dtype_find(const char *name, size_t length, opq_dtype *out_dtype);
OPQ_API int opq_dtype_bytes(opq_dtype dtype);
OPQ_API opq_dtype_kind opq_dtype_kind_of(opq_dtype dtype);
OPQ_API int64_t opq_type_count(const opq_type *type); /* elements; 1 for rank 0 */
OPQ_API int64_t opq_type_bytes(const opq_type *type);
OPQ_API bool opq_type_equal(const opq_type *a, const opq_type *b);
OPQ_API bool opq_shape_equal(const opq_type *a, const opq_type *b);
OPQ_API opq_type opq_type_make(opq_dtype dtype, int rank, const int64_t *size);

/* A scalar's bits: f32 and f64 as their own kind of double, integers and bool as int64. */
typedef union opq_number {
    int64_t i;
    double f;
} opq_number;

/* ---- ops --------------------------------------------------------------------------------------------------------- */

typedef enum opq_op {
#define OP(name, arity, class_, dtype, flags, aten, lowering) OPQ_OP_##name,
#include "opaque/ops.def"
#undef OP
    OPQ_OP_COUNT,
    OPQ_OP_DEFINED = 0x1000, /* the first row of opq_define_op: rows are numbered from here on */
    OPQ_OP_LIMIT = 0x8000    /* beyond the last */
} opq_op;

typedef enum opq_class {
    OPQ_CLASS_INPUT,
    OPQ_CLASS_CONST,
    OPQ_CLASS_SCALAR, /* a kernel argument: its value is no part of any key */
    OPQ_CLASS_IOTA,
    OPQ_CLASS_RANDOM,
    OPQ_CLASS_EWISE,
    OPQ_CLASS_CAST,
    OPQ_CLASS_VIEW,
    OPQ_CLASS_UPDATE,
    OPQ_CLASS_REDUCE,
    OPQ_CLASS_SCAN, /* along attribute `axis`: element j is made of elements 0 to j */
    OPQ_CLASS_CONCAT,
    OPQ_CLASS_INDEX,
    OPQ_CLASS_SCATTER,
    OPQ_CLASS_MATMUL,
    OPQ_CLASS_ROUTINE,   /* a function of the runtime over whole buffers: it shares no kernel */
    OPQ_CLASS_COMPOSITE, /* expanded by a pass into other rows */
    OPQ_CLASS_EXTERN,
    OPQ_CLASS_COUNT
} opq_class;

/* How a result's dtype follows from its operands'. */
typedef enum opq_dtype_rule {
    OPQ_RULE_SAME,  /* operands promote to one dtype, the result has it */
    OPQ_RULE_FLOAT, /* as SAME, but integers and bool promote to f32 first */
    OPQ_RULE_BOOL,  /* operands promote, the result is bool */
    OPQ_RULE_WHERE, /* operand 0 is bool, the others promote */
    OPQ_RULE_FIRST, /* the dtype of operand 0; the others are left alone */
    OPQ_RULE_SUM,   /* integers and bool become i64 */
    OPQ_RULE_INDEX, /* i64 */
    OPQ_RULE_GIVEN, /* the type is given by who makes the node */
} opq_dtype_rule;

enum {
    OPQ_FLAG_COMM = 1,     /* operands 0 and 1 commute, bit for bit */
    OPQ_FLAG_CHEAP = 2,    /* worth computing twice rather than storing */
    OPQ_FLAG_MATH32 = 4,   /* lowered for f32 (and f16, bf16 through it) only */
    OPQ_FLAG_CHECKED = 8,  /* may fail on values: an index out of range, an integer divided by 0 */
    OPQ_FLAG_NOINT = 16,   /* integers and bool are an error (PyTorch has no such kernel) */
    OPQ_FLAG_NOFLOAT = 32, /* floats are an error */
    OPQ_FLAG_NOBOOL = 64,  /* bool is an error, as ATen has it */
};

typedef struct opq_op_info {
    const char *name;
    int arity; /* -1: any number */
    opq_class class_;
    opq_dtype_rule rule;
    unsigned flags;
    const char *aten;      /* ATen overloads this row serves, blank-separated; "" for none */
    const char *signature; /* how registration reads their arguments */
    const char *expand;    /* expression in other rows, or NULL */
    const char *operands;  /* their names in the expression, "x, c"; NULL: a, b, c, ... */
} opq_op_info;

OPQ_API const opq_op_info *opq_op_info_of(opq_op op);
OPQ_API bool opq_op_find(const char *name, size_t length, opq_op *out_op);

enum { OPQ_OPERANDS_MAX = 16 }; /* of a row with an expression */

/* An elementwise row of the op table, made at run time:
 *
 *   opq_op softcap;
 *   opq_define_op("ns::softcap(x, c)", "c * tanh(x / c)", &softcap)
 *   opq_graph_op(graph, softcap, (opq_ref[]){x, c}, 2, NULL, 0, &y)
 *
 * It is recorded as one node, with operands of any shapes that broadcast, and becomes the rows of its expression (the language of
 * ops.def) before it is grouped: it fuses as they would. `signature` is a name, of words joined by "::", and its operands' names.
 * Operands promote to one dtype, which the result has; integers become f32 first where the expression makes floats of them, and the
 * result of a comparison is bool. f16 and bf16 are computed in f32 and rounded once. A condition that is no truth value, as the mask in
 * where(mask, x, 0), is compared with 0.
 *
 * The row is there until the process ends, for all threads. To define it again with the same words gives the row that there is.
 * OPQ_INVALID, with the column, if the text is no such signature or expression, or holds rows that are not elementwise; if the name has
 * another meaning; if there are 28,672 rows. Thread-safe. */
OPQ_API opq_status opq_define_op(const char *signature, const char *expression, opq_op *out_op) OPQ_MUST_CHECK;

/* Attributes, in the order in which text prints them. */
#define OPQ_ATTRS(X)                                                                                                   \
    X(axes, INTS) /* reduced axes, ascending, never negative */                                                        \
    X(axis, INT)                                                                                                       \
    X(dims, INTS)    /* permute: result dim i is operand dim dims[i] */                                                \
    X(key, STR)      /* extern: what is called; index ops and divisions: what an error says, "op" or "op: words" */    \
    X(offset, INT)   /* strided, update: first element, in elements of the dense operand */                            \
    X(pairs, INT)    /* matmul of bf16, or rounded to it: summed by opq_pairs_steps of scalar.h, else a chain */       \
    X(result, INT)   /* extern_result: which one; extern: how many */                                                  \
    X(reverse, INT)  /* recurrent rows: the last step comes first */                                                   \
    X(sizes, INTS)   /* update: shape of the written window */                                                         \
    X(start, INTS)   /* slice: first index per dim */                                                                  \
    X(step, INTS)    /* slice: index step per dim, >= 1 */                                                             \
    X(strides, INTS) /* strided, update: in elements of the dense operand */                                           \
    X(transpose_a, INT)                                                                                                \
    X(transpose_b, INT)                                                                                                \
    X(tree, WORD)    /* reduce: the rule that fixes the order of additions, see opq_tree */                            \
    X(value, NUMBER) /* const, scalar */

typedef enum opq_attr_key {
#define X(name, kind) OPQ_ATTR_##name,
    OPQ_ATTRS(X)
#undef X
        OPQ_ATTR_COUNT
} opq_attr_key;

typedef enum opq_attr_kind {
    OPQ_ATTR_KIND_INT,
    OPQ_ATTR_KIND_INTS,
    OPQ_ATTR_KIND_STR,
    OPQ_ATTR_KIND_WORD,
    OPQ_ATTR_KIND_NUMBER, /* an integer or a hexadecimal float, by the node's dtype */
} opq_attr_kind;

/* Order of a reduction's operations. Fixed when the node is made, by shape and axes alone, so that every way of running it
 * gives the same bits. Both: partial results start from the identity and take elements in ascending logical order.
 *
 * lanes   the innermost axis is reduced. The reduced axes split into segments: runs of adjacent innermost reduced axes are
 *         one axis of extent K, cut in chunks of 4096; a segment is one chunk for one index of the other reduced axes, in
 *         row-major order. Within a segment element k goes to lane k mod 64; the 64 lanes are folded in halves (lane i with
 *         lane i+32, then i+16, ... i+1). Segment results are reduced by the same rule again (segment s to lane s mod 64).
 * column  the innermost axis is kept. Elements, in row-major order of the reduced axes, are taken in groups of 8: each group
 *         is added up from the identity on, its result is added to the block of 64 groups, each block to the total.
 */
typedef enum opq_tree { OPQ_TREE_lanes, OPQ_TREE_column } opq_tree;
enum { OPQ_LANES = 64, OPQ_CHUNK = 4096, OPQ_COLUMN_GROUP = 8, OPQ_COLUMN_BLOCK = 512 };

typedef struct opq_attr {
    uint8_t key;    /* opq_attr_key; a node's attributes are sorted by it */
    uint8_t is_int; /* NUMBER: which member */
    int32_t count;  /* INTS: how many */
    union {
        int64_t i; /* INT, WORD */
        const int64_t *ints;
        const char *str;
        opq_number number;
    };
} opq_attr;

/* ---- context and host -------------------------------------------------------------------------------------------- */

typedef struct opq_ctx opq_ctx;

typedef enum opq_line_part {
    OPQ_LINE_place,   /* "train.py:41" */
    OPQ_LINE_module,  /* "layer.3.attn": in whose forward() it is, while somebody looks */
    OPQ_LINE_source,  /* "/home/me/train.py:41" */
    OPQ_LINE_library, /* "modeling_bert.py:211": the line of an installed package that it called, if there is one */
    OPQ_LINE_PARTS
} opq_line_part;

enum { OPQ_ROOFLINE_SIZES = 3 };
typedef struct opq_roofline {
    int threads;
    double flops; /* of f32, a second */
    int pairs, pairs16,
        i8; /* as many times as that, of products by these rules and of i8: by the processor's instructions */
    int64_t size[OPQ_ROOFLINE_SIZES]; /* bytes read and written: in the second cache, the last one, memory */
    double bytes[OPQ_ROOFLINE_SIZES]; /* a second */
} opq_roofline;

/* Work that a profiler is told of while it lasts. */
typedef enum opq_activity_kind {
    OPQ_ACTIVITY_run,     /* all of one run; name: the reason */
    OPQ_ACTIVITY_plan,    /* a graph becomes a plan; its code is compiled within */
    OPQ_ACTIVITY_compile, /* LLVM makes code of one kernel; name: the kernel's */
    OPQ_ACTIVITY_kernel,  /* a launch, or a call of the host's; name: as graphs have it, "add_relu_0" */
} opq_activity_kind;
typedef struct opq_activity {
    opq_activity_kind kind;
    const char *name;
    /* of a launch: */
    const char *shape, *lines;                /* of what it makes, and blank-separated source lines */
    const opq_type *operands;                 /* what it reads from memory */
    int operand_count, rows;                  /* rows: kernels that are the launch */
    int64_t bytes_read, bytes_written, flops; /* of all of them */
} opq_activity;

/* What the core needs from the program it lives in. Any member may be NULL: then the core uses its own. */
typedef struct opq_host {
    void *self;
    /* Calls body(data, begin, end) over [0, count) in pieces of at least `grain`, perhaps on several threads; returns when all is done. */
    void (*parallel_for)(void *self, int64_t count, int64_t grain, void (*body)(void *data, int64_t begin, int64_t end),
                         void *data);
    int (*thread_count)(void *self);
    /* Runs an extern node. Buffers are dense; a result buffer must be filled; NULL: nobody needs that result. `payload` is the one
     * given at recording. */
    opq_status (*call_extern)(void *self, void *payload, const void *const *operands, void *const *results);
    void (*retain_payload)(void *self, void *payload);
    void (*release_payload)(void *self, void *payload);
    /* A part of what a source line's id stands for. Returns the length, 0 if unknown. */
    size_t (*line_text)(void *self, uint32_t line, opq_line_part part, char *out, size_t size);
    /* Does anybody look at this thread's activities now? Only then are they told. What begin gives is handed to end, in the same thread.
     * Asked only while the host's byte `watching` is not 0. */
    const unsigned char *watching;
    bool (*watched)(void *self);
    void *(*activity_begin)(void *self, const opq_activity *activity);
    void (*activity_end)(void *self, void *open);
    const char *versions; /* of the host's parts, for reports: "Python 3.11.2" */
} opq_host;
static inline bool opq_watched(const opq_host *host)
{
    return host && host->watching && __atomic_load_n(host->watching, __ATOMIC_RELAXED) && host->watched(host->self);
}

/* Live memory: one buffer. */
typedef struct opq_memory_block {
    const void *address;
    int64_t bytes, reserved; /* asked for; of its block */
    const char *op; /* of the value in it: "input" for what the host gave; NULL if it is none's, as a run's temporaries */
    uint32_t line; /* where that was recorded: the host's id, 0 if unknown */
} opq_memory_block;

OPQ_API opq_status opq_ctx_create(const opq_host *host, opq_ctx **out_ctx) OPQ_MUST_CHECK;
OPQ_API void opq_ctx_destroy(opq_ctx *ctx);

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef int32_t opq_ref; /* a node of one graph: its number in the text */

typedef struct opq_graph opq_graph;

OPQ_API opq_status opq_graph_create(const char *name, opq_graph **out_graph) OPQ_MUST_CHECK;
OPQ_API void opq_graph_destroy(opq_graph *graph);
OPQ_API opq_status opq_graph_input(opq_graph *graph, const opq_type *type, opq_ref *out_ref) OPQ_MUST_CHECK;
/* A 0-d constant: part of the graph. A scalar is an argument with a default value: kernels are the same for every value. */
OPQ_API opq_status opq_graph_const(opq_graph *graph, opq_dtype dtype, opq_number value, opq_ref *out_ref) OPQ_MUST_CHECK;
OPQ_API opq_status opq_graph_scalar(opq_graph *graph, opq_dtype dtype, opq_number value, opq_ref *out_ref) OPQ_MUST_CHECK;
/* Any other op. Operands promote (casts are inserted) and broadcast as the row says; the result type is inferred.
 * OPQ_INVALID with a message that names op and shapes if they do not fit. */
OPQ_API opq_status opq_graph_op(opq_graph *graph, opq_op op, const opq_ref *operands, int arity, const opq_attr *attrs,
                                int attr_count, opq_ref *out_ref) OPQ_MUST_CHECK;
/* As opq_graph_op with the result type given: cast, iota, uniform, normal, reshape, expand, slice, strided, extern. */
OPQ_API opq_status opq_graph_op_typed(opq_graph *graph, opq_op op, const opq_type *type, const opq_ref *operands,
                                      int arity, const opq_attr *attrs, int attr_count, opq_ref *out_ref) OPQ_MUST_CHECK;
OPQ_API opq_status opq_graph_output(opq_graph *graph, opq_ref ref) OPQ_MUST_CHECK;
OPQ_API opq_type opq_graph_type(const opq_graph *graph, opq_ref ref);
OPQ_API int opq_graph_input_count(const opq_graph *graph);
OPQ_API int opq_graph_output_count(const opq_graph *graph);
OPQ_API opq_type opq_graph_input_type(const opq_graph *graph, int index);
OPQ_API opq_type opq_graph_output_type(const opq_graph *graph, int index);
/* What text shows behind an input, where other nodes have the line that made them. */
OPQ_API opq_status opq_graph_name_input(opq_graph *graph, int index, const char *name) OPQ_MUST_CHECK;

/* Text. print gives a malloc'd string; parse(print(g)) prints back byte for byte. Parse errors name line and column. */
OPQ_API opq_status opq_graph_print(const opq_graph *graph, char **out_text) OPQ_MUST_CHECK;
/* As JSON, which docs/ir.md documents. A malloc'd string. */
OPQ_API opq_status opq_graph_json(const opq_graph *graph, char **out_text) OPQ_MUST_CHECK;
OPQ_API opq_status opq_graph_parse(const char *text, size_t length, opq_graph **out_graph) OPQ_MUST_CHECK;
/* Every invariant of the IR; OPQ_INVALID names the node. */
OPQ_API opq_status opq_graph_verify(const opq_graph *graph) OPQ_MUST_CHECK;
/* The reference evaluator: plain loops, the oracle of everything below. Buffers are dense. Extern nodes: OPQ_UNSUPPORTED. */
OPQ_API opq_status opq_graph_eval(const opq_graph *graph, const void *const *inputs, void *const *outputs) OPQ_MUST_CHECK;
/* What opq_define_op would define, as a graph of numbers: the operands are its inputs, all of this dtype, the result its output. `expand`:
 * composite rows in it are expanded, so that no row has an expression. Errors as of opq_define_op. */
OPQ_API opq_status opq_graph_expression(const char *signature, const char *expression, opq_dtype dtype, bool expand,
                                        opq_graph **out_graph) OPQ_MUST_CHECK;
/* Runs named passes, comma-separated ("expand,simplify,group"), and gives a new graph. */
OPQ_API opq_status opq_graph_passes(const opq_graph *graph, const char *passes, opq_graph **out_graph) OPQ_MUST_CHECK;

/* ---- programs ---------------------------------------------------------------------------------------------------- */

typedef enum opq_fusion { OPQ_FUSED, OPQ_UNFUSED } opq_fusion;
typedef struct opq_program opq_program; /* compiled: immutable, refcounted */

OPQ_API opq_status opq_compile(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion,
                               opq_program **out_program) OPQ_MUST_CHECK;
/* As opq_compile without machine code, to be looked at: opq_run refuses it. Nobody needs to be able to make its extern calls. */
OPQ_API opq_status opq_program_plan(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion,
                                    opq_program **out_program) OPQ_MUST_CHECK;
OPQ_API void opq_program_retain(opq_program *program);
OPQ_API void opq_program_release(opq_program *program);
/* Inputs and outputs are dense buffers in the graph's order; outputs must not overlap inputs. */
OPQ_API opq_status opq_run(opq_ctx *ctx, const opq_program *program, const void *const *inputs,
                           void *const *outputs) OPQ_MUST_CHECK;
/* What runs, as text; malloc'd. `stage`: "fused", the graph with its kernels; "json", this with bytes and launches of the kernels, and the edges
 * that were not fused; "kernels", their loops; "schedule", how those run; "c" and "schedule_c", both as C; "llvm", "asm". */
OPQ_API opq_status opq_program_print(const opq_program *program, const char *stage, char **out_text) OPQ_MUST_CHECK;
/* The kernels of a program for a processor that need not be this one: `target` is "avx2", "avx512" or "neon" ("aarch64"), as far as LLVM's code
 * generator for it is linked to the program. Of a product the whole tree, which an engine runs on the host. OPQ_UNSUPPORTED: there is no code for
 * a kernel's tree, as for several products in one; unfused, each node has a kernel of its own.
 * opq_program_print_for: "llvm" or "asm", malloc'd. opq_program_objects: writes FOLDER/kernel_N.o for kernel N, whose function is kernel_N. */
OPQ_API opq_status opq_program_print_for(const opq_program *program, const char *target, const char *stage,
                                         char **out_text) OPQ_MUST_CHECK;
OPQ_API opq_status opq_program_objects(const opq_program *program, const char *target, const char *folder) OPQ_MUST_CHECK;
/* The loops or code of one kernel of the fused graph. */
OPQ_API opq_status opq_program_print_kernel(const opq_program *program, int32_t kernel, const char *stage,
                                            char **out_text) OPQ_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
