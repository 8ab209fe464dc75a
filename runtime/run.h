/* Launching: what a plan's steps need from threads and memory. Internal to runtime/. */
#ifndef OPAQUE_RUNTIME_RUN_H
#define OPAQUE_RUNTIME_RUN_H

#include "runtime/plan.h"

/* What the pieces of a step found, from several threads: kept is a failure of the kernel's earliest instruction. */
typedef struct opq_step_error {
    atomic_flag busy;
    int64_t found[2]; /* as opq_kernel_fn stores it; found[0] < 0: no memory for scratch */
} opq_step_error;
void opq_step_error_add(opq_step_error *error, const int64_t found[2]);

/* One run in progress. */
typedef struct opq_run {
    opq_runtime *runtime;
    const opq_plan *plan;
    const opq_run_call *call;
    opq_buffer *arena;
    opq_buffer **outputs; /* distinct; NULL: see `takes` */
    int32_t *takes;       /* per distinct output: the input whose buffer it takes when nothing can fail any more, -1 */
    uint8_t *bad;         /* per storage: a failed step left it undefined */
    opq_number *slots;
    opq_step_error *errors; /* per row of a wave */
    struct opq_undo *undo;  /* what was written over in inputs that outputs take */
} opq_run_state;

/* The packed copy of a matrix that is kept with its buffer, an input, made at the second use (in_run: in one run); a reference. NULL: to be read
 * as it is. */
struct opq_packed_key;
struct opq_buffer *opq_run_packed(const opq_run_state *run, int32_t storage, const struct opq_packed_key *key,
                                  int64_t bytes, bool in_run);
/* That of operand o of a product. out_turned: of the left one, whether it is packed for the transposed product. */
struct opq_buffer *opq_run_packed_operand(const opq_run_state *run, const opq_step *step, int o, bool *out_turned);
/* Bytes of the packed copy that a product would keep of operand o, 0: none; and what it is kept as. Of several products side by side the left operand
 * is packed by each run. */
int64_t opq_step_packed(const opq_gemm *gemm, const opq_plan *plan, const opq_step *step, int o,
                        struct opq_packed_key *out_key);
/* By one row or column, and the plan reads more than a cache keeps from run to run: from memory it may as well be read as it lies, unless the run
 * reads it again. Elsewhere a copy is three times as fast to read. */
bool opq_step_reads_once(const opq_plan *plan, const opq_step *step, int o);
/* Packs what is at `data`. */
opq_status opq_pack(opq_gemm *gemm, const struct opq_packed_key *key, const void *data, void *out) OPQ_MUST_CHECK;
/* Before it runs, and before anything is written: are its indices in range? */
opq_status opq_routine_check(const opq_run_state *run, const opq_step *step) OPQ_MUST_CHECK;
opq_status opq_run_routine(const opq_run_state *run, const opq_step *step) OPQ_MUST_CHECK;
/* fault.c. After the step failed: which of its checks an error is about, and the index. False: what it read is there no more, or no memory. */
bool opq_fault_find(const opq_run_state *run, const opq_step *step, int *out_check, int64_t *out_index);

void *opq_run_data(const opq_run_state *run, int32_t storage);
opq_buffer *opq_run_buffer(const opq_run_state *run, int32_t storage); /* inputs and outputs, NULL for temporaries */
int64_t opq_run_first(const opq_run_state *run, int32_t storage);      /* bytes of that buffer before it */
/* Fills in pointers and scalars of a step. Arrays hold buffer_count and scalar_count. */
void opq_run_bind(const opq_run_state *run, const opq_step *step, void **out_buffers, opq_number *out_scalars);

/* Units [begin, end) of the step's code, on this thread. */
void opq_run_code(const opq_step *step, void *const *buffers, const int64_t *dims, const opq_number *scalars,
                  int64_t begin, int64_t end, opq_step_error *error);

/* ---- run_outputs.c */
/* Memory of the run: its arena, outputs that take no input's place, numbers. */
opq_status opq_run_allocate(opq_run_state *run) OPQ_MUST_CHECK;
/* A distinct output lies where its input lay from now on; all of them, because no step can fail any more. */
void opq_run_take_input(const opq_run_state *run, int32_t output);
void opq_run_take_inputs(const opq_run_state *run);
/* After a failure: what the step writes has memory of its own. */
opq_status opq_run_own_outputs(const opq_run_state *run, const opq_step *step) OPQ_MUST_CHECK;
/* After a failure: what was written over in inputs, which are as before again. */
void opq_run_give_back(const opq_run_state *run);
/* To the caller, but for what is bad. */
opq_status opq_run_give_outputs(const opq_run_state *run) OPQ_MUST_CHECK;

/* The epilogue of a matmul step, per tile: data of opq_run_tile. */
typedef struct opq_tiles {
    const opq_step *step;
    void *buffers[OPQ_BUFFER_MAX];
    opq_number scalars[OPQ_SCALAR_MAX];
    int64_t first_batch, first_row; /* where the engine's batch 0 and row 0 are */
    opq_step_error *error;
} opq_tiles;
void opq_run_tile(void *data, int64_t batch, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  const void *tile, int64_t ld);
/* Operand o of a product from row `row` of matrix `batch` on; its batch stride is the engine's. */
void opq_run_operand(const opq_run_state *run, const opq_step *step, int o, int64_t batch, int64_t row,
                     opq_matrix *out_matrix);
opq_status opq_run_matmul(const opq_run_state *run, const opq_step *step, opq_step_error *error) OPQ_MUST_CHECK;

opq_status opq_run_products(const opq_run_state *run, const opq_step *step, opq_step_error *error) OPQ_MUST_CHECK;

opq_status opq_run_block(const opq_run_state *run, const opq_step *step, opq_step_error *error) OPQ_MUST_CHECK;

#endif
