/* A plan: what a fused graph does, as steps with function pointers. Immutable once built, refcounted; nothing of a run is in it.
 *
 * Storage is numbered: every value that is in memory has one number. Inputs come from the caller, outputs are fresh buffers that the
 * caller gets, temporaries are offsets in one arena whose layout is planned by lifetime. An update or scatter whose old value nobody
 * needs afterwards works in place; otherwise the old bytes are copied first. Steps write only what the run itself made.
 */
#ifndef OPAQUE_RUNTIME_PLAN_H
#define OPAQUE_RUNTIME_PLAN_H

#include "codegen_llvm/codegen.h"
#include "fusion/loop.h"
#include "fusion/lower.h"
#include "fusion/pass.h"
#include "graph/index_error.h"
#include "runtime/gemm.h"
#include "runtime/memory.h"

typedef struct opq_runtime {
    const opq_host *host;
    opq_pool *pool;
    opq_jit *jit;
    opq_gemm *gemm;
    opq_loops_run *run_loops; /* runs kernels as they stand, which are then not compiled: OPAQUE_EXECUTOR=reference; NULL: machine code */
} opq_runtime;

typedef enum opq_home {
    OPQ_HOME_input,
    OPQ_HOME_output,
    OPQ_HOME_temporary,
    OPQ_HOME_part /* of another storage; in joined plans */
} opq_home;

typedef struct opq_storage {
    opq_home home;
    int32_t index;  /* input: which; output: which distinct buffer; part: of which storage */
    int64_t offset; /* temporary, part */
    int64_t bytes;
    int32_t first, last; /* waves of its life */
} opq_storage;

/* What it is a part of, or itself. */
static inline int32_t opq_storage_base(const opq_storage *all, int32_t id)
{
    return id >= 0 && all[id].home == OPQ_HOME_part ? all[id].index : id;
}

typedef struct opq_matmul_step {
    opq_contract contract;
    int64_t batch;  /* what one engine call takes */
    int outer_rank; /* loops over calls around it */
    int64_t outer_extent[OPQ_LOOP_MAX];
    opq_matrix matrix[2]; /* data unset */
    int64_t outer_stride[2][OPQ_LOOP_MAX];
    opq_dtype dtype; /* accumulation */
} opq_matmul_step;

typedef struct opq_step opq_step;

/* Rows, products that make matrices for them, and products that take such, some rows at a time: see fusion/group_block.c. Parts of the step
 * are the rows, the first products and the second ones; the loops of the step are all of them. In theirs, what stays in cache has a number
 * below -1 in place of a storage. */
typedef struct opq_block {
    int first_count, second_count;
    int taken[OPQ_BLOCK_SECOND_MAX];            /* matrices; the first ones are what is made */
    bool sums_rows[OPQ_BLOCK_SECOND_MAX], sums; /* the left operand is the matrix transposed; any of them */
    struct {
        int buffer; /* of the rows; unit u of their loops is row u */
        int place;  /* in cache: what is taken may have that of what was made */
    } matrix[OPQ_BLOCK_MATRIX_MAX];
    int matrix_count, place_count;
    int64_t count;   /* of rows */
    int64_t columns; /* of matrices, whose rows are `row_stride` elements apart */
    int64_t row_stride;
    int64_t causal;  /* rows of a matrix, of which row i needs columns up to i; 0: all are needed */
    bool sampled;    /* if the element behind them is 0, and nothing is near overflow */
    int local_count; /* values of one element per row, numbered -2 - i */
} opq_block;

/* Of its products, the first ones and then the second ones: does number i sum over rows? */
static inline bool opq_block_product_sums(const opq_block *block, int i)
{
    return i >= block->first_count && block->sums_rows[i - block->first_count];
}

/* An op of the step that may fail on values: it reads or adds at an index, or divides integers. */
typedef struct opq_check {
    opq_ref node;
    const char *text; /* op and line */
    bool divides;
    const char *says;      /* of a divisor of 0, which thing does not hold; NULL: it is one */
    opq_index_words words; /* of an index */
} opq_check;

/* A value that the step's nodes take from memory. */
typedef struct opq_taken {
    opq_ref node;
    int32_t storage;
} opq_taken;

struct opq_step {
    opq_kernel_kind kind;
    int32_t order;        /* in the graph; waves reorder steps */
    opq_loops loops;      /* none for an extern call */
    const opq_code *code; /* of the loops, or of the epilogue; NULL: the loops are evaluated */
    int64_t *dims;
    int phases; /* of its loops, of which each has so many units (codegen.h); of a product that the engine makes none */
    int64_t units[OPQ_PHASE_MAX], scratch;
    int32_t *buffers;           /* storage per kernel argument */
    int32_t *scalars;           /* slot per kernel scalar */
    int32_t copy_from, copy_to; /* storage copied before, -1: none */
    opq_matmul_step *matmul;    /* the loops are a product that the engine makes */
    opq_block *block;
    opq_step *parts; /* of a block; or products side by side, which run at once; the loops of the step are all of theirs */
    int part_count;
    void *payload;           /* extern: the host's */
    const opq_node *routine; /* a function of the runtime: its node in this graph */
    const opq_graph *graph;
    int32_t *operands, *results;
    int operand_count, result_count;
    bool fresh; /* its code was compiled when the plan was built */
    int64_t bytes_read, bytes_written, flops;
    const char *name, *lines;
    const opq_type *largest; /* that its nodes have, in the plan's graph; NULL: they are views */
    const opq_check *checks; /* what an error of the kernel may be about, in order */
    int check_count, taken_count;
    const opq_taken *taken; /* of a kernel with checks */
};

/* Marks the storage of all that it writes. */
static inline void opq_step_mark_written(const opq_step *step, uint8_t *marks)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] >= 0 && step->loops.written[i])
            marks[step->buffers[i]] = 1;
    for (int i = 0; i < step->result_count; i++)
        if (step->results[i] >= 0)
            marks[step->results[i]] = 1;
}

/* What its code was made of. */
static inline const opq_loops *opq_step_code_loops(const opq_step *step)
{
    return step->matmul ? &step->matmul->contract.epilogue : &step->loops;
}

/* One launch: steps with the same code, none of which needs another. See plan_wave.c. */
typedef struct opq_wave {
    int32_t first, count; /* steps, its rows */
    /* of more than one row: */
    int phases;
    int64_t *ends; /* [phase][row]: units of the phase up to the row's end */
    int64_t work;
} opq_wave;

/* An output buffer may take the memory of this input. See plan_replace.c. */
typedef struct opq_replacement {
    int32_t input, next; /* next: of the same buffer, -1 */
    int32_t remembers;   /* 1: steps remember what they write over, which a run that fails gives back (undo.c) */
} opq_replacement;

/* One for each kernel whose code the plan's steps call. */
typedef struct opq_code_use {
    const opq_code *code;
    struct opq_code_use *next;
} opq_code_use;

/* A kernel of several ops that could not be made, and is one kernel for each of them: named as it was, a dot, and as each of them would be. */
typedef struct opq_fallback {
    const char *kernel, *reason;
    const struct opq_fallback *next;
} opq_fallback;

typedef struct opq_plan {
    atomic_int refs;
    opq_arena arena;
    struct opq_plan *like; /* of another size (plan_family.c), which holds all that is not a number, and a graph of its size; NULL: all is its own */
    struct opq_plan **parts; /* it is joined of these, which it holds (plan_join.c), and has no graph */
    int32_t part_count;
    opq_graph *graph; /* fused */
    opq_unfused unfused;
    const opq_fallback *fallbacks;
    int32_t fallback_count;
    opq_step *steps;
    int32_t step_count;
    opq_wave *waves;
    int32_t wave_count, row_max; /* row_max: of a wave */
    opq_storage *storage;
    int32_t storage_count;
    int32_t input_count, output_count, buffer_count; /* buffer_count: distinct output buffers */
    int32_t *output_storage;                         /* per graph output */
    int64_t *buffer_bytes;                           /* per distinct output buffer */
    int64_t arena_bytes, input_bytes;                /* input_bytes: of all inputs */
    opq_replacement *replacements;
    int32_t replacement_count, *first_replacement; /* first: per distinct output buffer, -1 */
    int32_t sure_wave;                             /* no step from it on can fail: only there is memory replaced */
    int32_t slot_count;
    int32_t *slot_source; /* per slot: number given by the caller at recording, or -1: slot_value */
    opq_number *slot_value;
    const opq_host *host;
    opq_jit *jit;        /* that compiled it */
    opq_code_use *codes; /* what it holds */
    bool dry;            /* to be looked at: it has no code and no payloads */
    int32_t compiled;    /* kernels compiled for it */
    int32_t loaded;      /* kernels loaded from disk for it */
    double compile_seconds;
    uint64_t lines; /* hash of the source lines that its steps name; who keeps plans sets it */
} opq_plan;

void opq_plan_retain(opq_plan *plan);
void opq_plan_release(opq_plan *plan);
/* NULL: the buffer may not. */
static inline const opq_replacement *opq_plan_replacement(const opq_plan *plan, int32_t buffer, int32_t input)
{
    for (int32_t i = plan->first_replacement[buffer]; i >= 0; i = plan->replacements[i].next)
        if (plan->replacements[i].input == input)
            return &plan->replacements[i];
    return NULL;
}
/* Memory of the plan: steps, graph, edges, and all its machine code, also what other plans share. Without payloads, which are the host's. */
size_t opq_plan_bytes(const opq_plan *plan);

/* Of one launch; 0 if the run is not timed. busy: opq_parallel_busy(). */
typedef struct opq_launch_times {
    double seconds, busy;
} opq_launch_times;

/* Of a run's launches, for statistics. */
typedef struct opq_run_counts {
    int64_t kernels, calls, bytes_read, bytes_written;
} opq_run_counts;

/* One launch of `count` steps from `step` on, for who looks at each. */
typedef void (*opq_step_note)(void *data, const opq_step *step, int32_t count, const opq_launch_times *times);

/* One run. Outputs get one reference each; output i is NULL where a failed step was needed. Status and message are the first failure's;
 * other outputs are good all the same. Without the GIL and without locks. */
typedef struct opq_run_call {
    opq_buffer *const *inputs;
    const int64_t *firsts;     /* per input: bytes of its buffer before it, of elements; NULL: none */
    const opq_number *scalars; /* as numbered at recording */
    opq_buffer **outputs;
    /* Per output: the input whose contents nobody needs any more once this output is there, -1: none. The output may then be that buffer,
     * which the caller alone has. NULL: none. */
    const int32_t *replaces;
    opq_buffer *const *into; /* per output: memory of its size for it, NULL: new memory. NULL: new memory for all */
    opq_run_counts *counts;  /* is added to; may be NULL */
    opq_step_note note;      /* may be NULL */
    void *note_data;
    bool timed, watched; /* watched: the host is told of launches, see opq_activity */
    /* The plan whose lines are shown for a failed step. Plans are shared by graphs that differ in their lines only; NULL: this one. */
    const opq_plan *(*lines_of)(void *data);
    void *lines_data;
    /* A missing output may need nothing that failed, no step ran or a kernel of several values failed, and may be computed again. May be NULL. */
    bool *out_mixed;
} opq_run_call;
opq_status opq_plan_run(opq_runtime *runtime, const opq_plan *plan, const opq_run_call *call) OPQ_MUST_CHECK;

/* As opq_plan_compile, but nothing is compiled: the plan is to be looked at. */
opq_status opq_plan_only(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion,
                         opq_plan **out_plan) OPQ_MUST_CHECK;
/* Bytes that running the graph would read and write. Nothing is compiled, so that explain() can ask for the other fusion mode too. */
opq_status opq_plan_traffic(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion,
                            int64_t *out_bytes) OPQ_MUST_CHECK;
/* Expands, simplifies, groups and builds. */
opq_status opq_plan_compile(opq_runtime *runtime, const opq_graph *graph, opq_fusion fusion,
                            opq_plan **out_plan) OPQ_MUST_CHECK;

#endif
