/* What a tensor is before it is data, and how it becomes data. The C side that registration/ talks to.
 *
 *   value   one node of the pending graph, or (once computed) a buffer: immutable, dense, row-major; refcounted
 *   cell    one storage: its size in bytes and its current value. All views of a tensor share its cell; a write gives the cell a
 *           new value, readers that came before keep the old one
 *   line    id of the source line that records, given by the host (0: unknown); a property of the calling thread
 *
 * Every function is thread-safe. None calls back into the host while holding the context's lock, except to release payloads
 * (after unlocking). Failures leave everything as it was.
 */
#ifndef OPAQUE_OPAQUE_RECORD_H
#define OPAQUE_OPAQUE_RECORD_H

#include "opaque/opaque.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opq_value opq_value;
typedef struct opq_cell opq_cell;

/* Strided window on a cell. Sizes, strides and offset in elements of `dtype`. */
typedef struct opq_geometry {
    opq_dtype dtype;
    int rank;
    const int64_t *size, *stride;
    int64_t offset;
} opq_geometry;

/* ---- buffers: host memory from the caching allocator, or adopted from the host */
typedef struct opq_buffer opq_buffer;
opq_status opq_buffer_create(opq_ctx *ctx, size_t bytes,
                             opq_buffer **out_buffer) OPQ_MUST_CHECK; /* uninitialised, 64-byte aligned */
/* Takes over foreign memory; `drop(arg)` is called when the last reference goes. */
opq_status opq_buffer_adopt(opq_ctx *ctx, void *data, size_t bytes, void (*drop)(void *), void *arg,
                            opq_buffer **out_buffer) OPQ_MUST_CHECK;
void *opq_buffer_data(const opq_buffer *buffer); /* non-NULL also for 0 bytes */
size_t opq_buffer_bytes(const opq_buffer *buffer);
void opq_buffer_retain(opq_buffer *buffer);
void opq_buffer_release(opq_buffer *buffer);

/* ---- values. Functions that give a value give a reference. */
void opq_value_retain(opq_value *value);
void opq_value_release(opq_value *value);
opq_type opq_value_type(const opq_value *value);
/* A 0-d run-time number. weak: a Python number for promotion. f32/f64/f16/bf16 read number.f, others number.i */
opq_status opq_value_scalar(opq_ctx *ctx, opq_dtype dtype, opq_number number, bool weak,
                            opq_value **out_value) OPQ_MUST_CHECK;
/* Data that exists: a leaf over `buffer` (one reference is taken). */
opq_status opq_value_leaf(opq_ctx *ctx, const opq_type *type, opq_buffer *buffer, opq_value **out_value) OPQ_MUST_CHECK;

/* Records one op. Operands promote and broadcast as the row says (casts are inserted). See opq_graph_op. */
opq_status opq_record(opq_ctx *ctx, opq_op op, opq_value *const *operands, int arity, const opq_attr *attrs,
                      int attr_count, opq_value **out_value) OPQ_MUST_CHECK;
/* The matmul of two matrices, or batches of them, each perhaps transposed, with the rule by which it is summed: see opq_products. `rounded`: operands
 * of f32 are of a computation in bf16, and may be rounded to that. */
opq_status opq_record_product(opq_ctx *ctx, opq_value *a, opq_value *b, bool transpose_a, bool transpose_b,
                              bool rounded, opq_value **out_value) OPQ_MUST_CHECK;
/* Rules of products of bf16, and of `rounded` ones, of more than one row and column and at least `pairs_work` (fusion/target.h) multiply-adds, in each matrix or, of those
 * of bf16, in all that have one right or one left matrix: pairs or pairs16, if so set or, left to the core (auto), if the processor has an instruction
 * for them. All others are chains. Of what is recorded from now on. */
typedef enum opq_products {
    OPQ_PRODUCTS_auto,
    OPQ_PRODUCTS_chain,
    OPQ_PRODUCTS_pairs,
    OPQ_PRODUCTS_pairs16
} opq_products;
/* What the attribute `pairs` of such a product is. */
int opq_products_pairs(const opq_ctx *ctx, const opq_type *a, const opq_type *b, bool transpose_a, bool transpose_b,
                       bool rounded);
void opq_products_set(opq_ctx *ctx, opq_products products);
opq_products opq_products_get(const opq_ctx *ctx);
/* With the result type given: cast, iota, uniform, normal, reshape, expand, slice, strided, masked_fill, causal_mask. */
opq_status opq_record_typed(opq_ctx *ctx, opq_op op, const opq_type *type, opq_value *const *operands, int arity,
                            const opq_attr *attrs, int attr_count, opq_value **out_value) OPQ_MUST_CHECK;
/* A call through the host. `key` describes op and constant arguments completely: equal keys, interchangeable payloads (the reference
 * to payload is taken over, also on failure). out_values gets result_count references; results are dense in the given types. */
opq_status opq_record_extern(opq_ctx *ctx, const char *key, void *payload, opq_value *const *operands, int arity,
                             const opq_type *result_types, int result_count, opq_value **out_values) OPQ_MUST_CHECK;
/* Conveniences used all over registration/. */
opq_status opq_record_cast(opq_ctx *ctx, opq_value *value, opq_dtype dtype,
                           opq_value **out_value) OPQ_MUST_CHECK; /* retains if equal */
opq_status opq_record_reshape(opq_ctx *ctx, opq_value *value, int rank, const int64_t *size,
                              opq_value **out_value) OPQ_MUST_CHECK;
opq_status opq_record_expand(opq_ctx *ctx, opq_value *value, int rank, const int64_t *size,
                             opq_value **out_value) OPQ_MUST_CHECK;
/* Reduces `axes` (ascending, normalised) of a REDUCE or COMPOSITE row; keepdim false drops them. */
opq_status opq_record_reduce(opq_ctx *ctx, opq_op op, opq_value *const *operands, int arity, const int64_t *axes,
                             int axis_count, bool keepdim, opq_value **out_value) OPQ_MUST_CHECK;

/* ---- cells */
opq_status opq_cell_create(opq_ctx *ctx, int64_t bytes, opq_cell **out_cell) OPQ_MUST_CHECK; /* contents undefined */
opq_status opq_cell_from_value(opq_ctx *ctx, opq_value *value, opq_cell **out_cell) OPQ_MUST_CHECK; /* retains value */
void opq_cell_retain(opq_cell *cell);
void opq_cell_release(opq_cell *cell);
int opq_cell_references(const opq_cell *cell);
int64_t opq_cell_bytes(const opq_cell *cell);
/* A number to compare where PyTorch compares addresses: the cell's own from here to its size as of the first call, the same each time.
 * Nothing can ever be mapped there. */
uint64_t opq_cell_address(opq_cell *cell);
opq_status opq_cell_resize(opq_ctx *ctx, opq_cell *cell, int64_t bytes) OPQ_MUST_CHECK; /* keeps the common prefix */
/* The value seen through a window, with shape geometry->size. The window must lie inside the cell. */
opq_status opq_cell_read(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value **out_value) OPQ_MUST_CHECK;
/* The short way of an elementwise op over whole cells: each operand's value is current, dense and of exactly `type`, which is the
 * result's as well (bool of that shape, if the op is a test; never in place); operands but the first may also be one element of its dtype.
 * Where cells[i] is NULL operand i is values[i], e.g. a number; `values` NULL: there are cells only. The result goes into a new cell, or
 * into cells[0] if `out_cell` is NULL. OPQ_UNSUPPORTED, without a message, if it is not that simple: take the long way. */
opq_status opq_cell_record(opq_ctx *ctx, opq_op op, opq_cell *const *cells, opq_value *const *values, int arity,
                           const opq_type *type, opq_cell **out_cell) OPQ_MUST_CHECK;
/* The window becomes `value`, which must have exactly its dtype and shape. Overlapping windows: OPQ_INVALID. */
opq_status opq_cell_write(opq_ctx *ctx, opq_cell *cell, const opq_geometry *geometry, opq_value *value) OPQ_MUST_CHECK;
/* May the window have one place for two elements? Windows with interleaved dims count as such. */
bool opq_geometry_overlaps(const opq_geometry *geometry);

/* ---- running */
#define OPQ_REASONS(X)                                                                                                 \
    X(item)                                                                                                            \
    X(copy_to_host)                                                                                                    \
    X(print)                                                                                                           \
    X(synchronize) X(optimizer_step) X(bound) X(extern_now) X(reinterpret) X(inspect) X(eager) X(collective) X(capture)
typedef enum opq_reason {
#define X(name) OPQ_REASON_##name,
    OPQ_REASONS(X)
#undef X
        OPQ_REASON_COUNT
} opq_reason;

/* Computes and stores the values, and with them every ancestor that a live cell still holds. Where a user looks at a value (item,
 * copy_to_host, print, extern_now, reinterpret), all that this thread recorded before and a live cell holds is computed too, as it would
 * have been by then without laziness: reading many values one by one is one run. On failure the values that depend on the
 * failed step keep the error (raised again when read), all others are as before. Call without the GIL. */
opq_status opq_materialize(opq_ctx *ctx, opq_value *const *values, int count, opq_reason reason) OPQ_MUST_CHECK;
/* Everything a live cell holds. Values that failed before are passed over. */
opq_status opq_synchronize(opq_ctx *ctx, opq_reason reason) OPQ_MUST_CHECK;
/* The buffer of a computed value (borrowed), NULL while pending. */
opq_buffer *opq_value_buffer(const opq_value *value);

/* ---- memory that a call outside the core reads or writes, perhaps after it has returned */
/* What the cell holds, NULL if nothing was ever written; gives a reference. For reading once it is computed. */
opq_value *opq_cell_value(opq_cell *cell);
/* Is what the cell holds computed, or to be made by writing to a part of memory? */
bool opq_cell_in_memory(opq_cell *cell);
/* A reference to the last value that is computed: before an in-place op runs, the one that it reads. NULL if there is none. */
opq_value *opq_cell_computed(opq_cell *cell);
/* For writing: computes the cell's value and gives a reference to the buffer it lies in, which is then no other value's. What is written
 * there is what the cell holds, as if by an in-place op; readers that came before keep what they took. The bytes are copied only if
 * somebody else may still read them. `dtype` is that of a value the cell does not have yet. Call without the GIL. */
opq_status opq_cell_lend(opq_ctx *ctx, opq_cell *cell, opq_dtype dtype, opq_reason reason,
                         opq_buffer **out_buffer) OPQ_MUST_CHECK;
/* The borrower has written the last time: from now on forms of the contents (a packed matrix) may be kept again. */
void opq_buffer_settle(opq_buffer *buffer);

/* ---- per-thread state */
enum { OPQ_MODE_EAGER = 1, OPQ_MODE_UNFUSED = 2, OPQ_MODE_FORBID_SYNC = 4, OPQ_MODE_STRICT = 8, OPQ_MODE_PLANNED = 16 };
void opq_line_set(uint32_t line); /* the source line of what this thread records next */
/* Which call of the program records next, and of which one it is the gradient: numbers of the host's, 0 for none, OPQ_CALL_UNKNOWN for one
 * that nobody knows. */
#define OPQ_CALL_UNKNOWN UINT32_MAX
void opq_call_set(uint32_t call, uint32_t forward);
void opq_modes_set(unsigned modes);
unsigned opq_modes_get(void);
/* For whom this thread records: a number that no other thread has, unless one that works for it was given its number. get makes
 * a new one on first use, and after opq_origin_set(0). */
void opq_origin_set(uint32_t origin);
uint32_t opq_origin_get(void);

/* ---- looking */
typedef struct opq_stats {
    int64_t ops_recorded, kernels_run, kernels_compiled, kernels_loaded, kernels_split, plans_built, plans_reused,
        extern_calls;
    int64_t plans_in_background,
        plans_failed; /* of those built: by other threads; there it could not be made, and the graph goes on in pieces */
    int64_t runs_in_pieces;                      /* of all runs; the others had one plan */
    int64_t runs_joined;                         /* of these: the pieces' plans were one */
    int64_t captured_calls;                      /* calls of captured functions that recorded nothing */
    int64_t bytes_read, bytes_written;           /* by kernels and extern calls */
    int64_t bytes_allocated, bytes_peak;         /* live now; highest since reset */
    int64_t bytes_reserved, bytes_reserved_peak; /* live and cached: what is taken from the system; highest since reset */
    int64_t bytes_packed;             /* copies of weights that matmuls keep: a cache, not counted as allocated */
    int64_t kernels_kept, bytes_code; /* machine code in memory now, of plans and of what is kept for plans to come */
    int64_t flushes[OPQ_REASON_COUNT];
    double compile_seconds, run_seconds;
} opq_stats;
const char *opq_reason_name(opq_reason reason);
bool opq_reason_hidden(opq_reason reason); /* the user asked for a value, not for a run: refused under OPQ_MODE_FORBID_SYNC */
void opq_stats_read(opq_ctx *ctx, opq_stats *out_stats);
void opq_stats_reset(opq_ctx *ctx);      /* counters and peaks */
void opq_stats_reset_peak(opq_ctx *ctx); /* bytes_peak and bytes_reserved_peak become what is now */
/* Memory of the machine, or of the control group this process lives in if that is less, in bytes. */
void opq_memory_info(int64_t *out_available, int64_t *out_total);
/* What the machine can do at most on the threads there are: operations a second of f32 multiply-adds, two each, and bytes read and written a
 * second by copies of some sizes, smallest first. Measured for some tens of milliseconds. */
opq_status opq_machine_roofline(opq_ctx *ctx, opq_roofline *out_roofline) OPQ_MUST_CHECK;
/* Live buffers but for packed copies, newest first: a malloc'd array. */
opq_status opq_memory_blocks(opq_ctx *ctx, opq_memory_block **out_blocks, int *out_count) OPQ_MUST_CHECK;
/* Drops packed copies of weights and returns cached free memory to the system. */
void opq_cache_empty(opq_ctx *ctx);
/* Until all plans are there that are being made in the background. run_lock not held. */
void opq_plans_wait(opq_ctx *ctx);
/* No plan is made in the background any more. Waits for kernels that are being compiled there: before the process ends, because what the compiler
 * keeps in static storage is gone before a handler of atexit() runs that was there first. */
void opq_plans_end(opq_ctx *ctx);
/* Plans, and what is known of graphs that have none, are made anew, as for graphs that never came; code: so is machine code, and what plans
 * cost is no longer known, as in a process that begins. Waits for a run to end. */
void opq_forget(opq_ctx *ctx, bool code);

/* What is pending for some values at one moment. It stays as it is while other threads record and run: everything in it is pinned. */
typedef struct opq_snapshot opq_snapshot;
/* Values that were computed before are inputs. Fails with the error of a failed ancestor. */
opq_status opq_snapshot_take(opq_ctx *ctx, opq_value *const *values, int count,
                             opq_snapshot **out_snapshot) OPQ_MUST_CHECK;
void opq_snapshot_drop(opq_snapshot *snapshot);
int opq_snapshot_pending_count(const opq_snapshot *snapshot); /* nodes: neither inputs nor numbers */
/* Inputs of the graph, in order; borrowed. */
int opq_snapshot_leaf_count(const opq_snapshot *snapshot);
opq_value *opq_snapshot_leaf(const opq_snapshot *snapshot, int index);
/* By the number of the graph's node; borrowed. NULL for inputs and numbers. */
int opq_snapshot_node_count(const opq_snapshot *snapshot);
opq_value *opq_snapshot_node(const opq_snapshot *snapshot, int node);
typedef enum opq_outputs {
    OPQ_OUTPUTS_asked,  /* the values asked for, in order */
    OPQ_OUTPUTS_all,    /* and behind them what a run would store as well, because a live cell holds it */
    OPQ_OUTPUTS_stored, /* each value that a run stores, once: what opq_materialize compiles */
    OPQ_OUTPUTS_bare,   /* the same, in a graph without source lines */
} opq_outputs;
/* Numbers the values recorded so far; what this origin recorded since then, is pending and a live cell holds: what an observation
 * computes besides what it asks for. One reference each, the array malloc'd. */
uint64_t opq_sequence(const opq_ctx *ctx);
opq_status opq_held_since(opq_ctx *ctx, uint64_t sequence, opq_value ***out_values, int *out_count) OPQ_MUST_CHECK;
/* Name of the op recorded last, and its source line ("" if unknown); NULL if nothing is pending. */
const char *opq_snapshot_last(const opq_snapshot *snapshot, char *out_line, size_t size);
/* What a run of it would read and write, fused or not. */
opq_status opq_snapshot_bytes(const opq_snapshot *snapshot, opq_fusion fusion, int64_t *out_bytes) OPQ_MUST_CHECK;
/* The graph as recorded. The caller destroys it. */
opq_status opq_snapshot_graph(const opq_snapshot *snapshot, opq_outputs outputs, opq_graph **out_graph) OPQ_MUST_CHECK;

/* What a report of a fault needs, written into a folder that is there: graph.ir (`graph` is of this snapshot), kernels.txt, inputs.json
 * (statistics; with `values` also input0.npy, ...), environment.json, and error.txt if there is no plan. */
opq_status opq_snapshot_write(const opq_snapshot *snapshot, const opq_graph *graph, opq_fusion fusion,
                              const char *folder, bool values) OPQ_MUST_CHECK;
/* Versions, processor, variables, command, as JSON; malloc'd. */
opq_status opq_environment(opq_ctx *ctx, char **out_text) OPQ_MUST_CHECK;
/* The folder of the last run that failed by a fault of ours, "" if there is none; malloc'd. Waits for a run to end. */
opq_status opq_repro_last(opq_ctx *ctx, char **out_folder) OPQ_MUST_CHECK;

/* One launched kernel, extern call or copy, as explain() shows it. Texts live until the report is dropped. */
typedef struct opq_launch {
    const char *name, *kind, *shape, *lines; /* lines: blank-separated source lines */
    int rows; /* of one code, that ran at once; shape is that of the first. Bytes and flops are of all */
    double seconds, compile_seconds;
    double busy; /* as seconds, without waiting for a processor that another program had; not of what extern calls do on other threads */
    int64_t bytes_read, bytes_written, flops;
    bool fresh; /* compiled by this run */
} opq_launch;
/* What a run of a graph does when nobody looks.
 *   plan         it runs by its plan, which is there
 *   pieces       it runs in pieces, until that has cost what its plan will
 *   background   the same, while a thread makes its plan
 *   set_pieces   it runs in pieces, because OPAQUE_TIERS says so, or by chance does not
 *   set_plan     it is planned before it runs, because OPAQUE_TIERS says so
 *   mode         it is planned before it runs, because a mode of the thread says so
 *   whole        it is planned before it runs, because it cannot be cut: of halves, or an extern call stands apart from its results */
#define OPQ_TIERS(X) X(plan) X(pieces) X(background) X(set_pieces) X(set_plan) X(mode) X(whole)
typedef enum opq_tier_kind {
#define X(name) OPQ_TIER_##name,
    OPQ_TIERS(X)
#undef X
} opq_tier_kind;
const char *opq_tier_kind_name(opq_tier_kind kind);
typedef struct opq_tier {
    opq_tier_kind kind;
    int ops;
    int in_pieces; /* runs that were, as far as is known */
    double each;   /* seconds that such a run is dearer than one by a plan; 0: there is one */
    double price;  /* seconds that planning it takes */
} opq_tier;
/* Of the last run of this thread that was in pieces while OPAQUE_LOG=flush is on. */
opq_tier opq_tier_logged(void);

/* A run found its plan, or made one because of `why`: the difference from the nearest plan. */
typedef struct opq_planned {
    const char *why;                    /* NULL: found */
    int32_t kernels, compiled, outputs; /* outputs: values stored for the program */
    opq_tier unwatched;                 /* before this run */
} opq_planned;
typedef struct opq_report {
    opq_launch *launches;
    int launch_count;
    opq_planned *runs;
    int run_count;
} opq_report;
/* While on, the calling thread's runs are timed step by step and kept; end gives them. */
void opq_report_begin(opq_ctx *ctx);
opq_status opq_report_end(opq_ctx *ctx, opq_report **out_report) OPQ_MUST_CHECK;
void opq_report_drop(opq_report *report);

#ifdef __cplusplus
}
#endif
#endif
