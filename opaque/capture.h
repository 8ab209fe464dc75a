/* Captured calls: what a function recorded, as a plan that is called without recording.
 *
 * While a function is captured, its origin records as ever, and the cells are noted that existed before and that it reads or writes. What it
 * recorded becomes one plan, with
 *
 *   cells     inputs: each as a whole, read anew at each call; a call may have other cells than the function had
 *   numbers   Python's, which the caller gives at each call, by an id: a learning rate, the state of a random generator
 *   sinks     where results go: back to cells (in-place writes), or to the caller
 *
 * A capture never changes; calls of several threads follow each other, as runs do. In the opaque context's terms a call is a run: it takes the
 * run lock, and failures leave everything as it was.
 */
#ifndef OPAQUE_OPAQUE_CAPTURE_H
#define OPAQUE_OPAQUE_CAPTURE_H

#include "opaque/record.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opq_capturing opq_capturing; /* in progress */
typedef struct opq_capture opq_capture;

/* ---- while the function runs, on its thread and those of autograd that work for it */

/* Computes what this origin has pending, then begins. host: what opq_capturing_host() gives, the caller's own. OPQ_INVALID if it is capturing already. */
opq_status opq_capturing_begin(opq_ctx *ctx, void *host, opq_capturing **out_capturing) OPQ_MUST_CHECK;
/* That of this origin, NULL: none. Until it ends, values cannot be looked at: opq_materialize and opq_synchronize fail. */
opq_capturing *opq_capturing_here(opq_ctx *ctx);
void *opq_capturing_host(const opq_capturing *capturing);
/* A number of its own, not 0; and that of this origin's in a cell's context, 0: nothing is captured. */
uint32_t opq_capturing_id(const opq_capturing *capturing);
uint32_t opq_capturing_of(const opq_cell *cell);
/* A number that the caller gives at each call, as opq_value_scalar makes one; number: what it is now. */
opq_status opq_value_number(opq_ctx *ctx, opq_dtype dtype, opq_number number, bool weak, int id,
                            opq_value **out_value) OPQ_MUST_CHECK;
/* The cells so far, by first use. Borrowed: they live until the capturing is dropped. */
int opq_capturing_cell_count(const opq_capturing *capturing);
opq_cell *opq_capturing_cell(const opq_capturing *capturing, int index);
/* A cell that was there before becomes one of them without being read; for tensors that look at it when the function is done. */
void opq_capturing_meet(opq_capturing *capturing, opq_cell *cell);
int opq_capturing_find(const opq_capturing *capturing, const opq_cell *cell);     /* -1: not met */
bool opq_capturing_made_it(const opq_capturing *capturing, const opq_cell *cell); /* the cell is none of these */
bool opq_capturing_wrote(const opq_capturing *capturing, int index);
/* `leaf` is a copy of host data, which calls give anew as number `id` of opq_capture_call.uploads. */
void opq_capturing_upload(opq_capturing *capturing, opq_value *leaf, int id);
/* Computes what the cells and `results` hold. */
opq_status opq_capture_first_run(opq_capturing *capturing, opq_cell *const *results, int count) OPQ_MUST_CHECK;
/* Ends it: values may be looked at again. Nothing is computed. */
void opq_capturing_end(opq_capturing *capturing);
/* Cells that live, were made meanwhile and hold something pending, but for `results`: what outlives the call unseen. How many; a reference to each of
 * the first `max`. */
int opq_capturing_escaped(opq_capturing *capturing, opq_cell *const *results, int count, opq_cell **out_cells, int max);
/* Cells hold again what they held before it began. */
void opq_capturing_restore(opq_capturing *capturing);
/* `cell` holds what `from`, of the same size, holds. */
opq_status opq_cell_take(opq_cell *cell, opq_cell *from) OPQ_MUST_CHECK;
/* The source line of what a cell holds, 0: unknown. */
uint32_t opq_cell_line(opq_cell *cell);
void opq_capturing_drop(opq_capturing *capturing);

/* ---- the capture */

/* Of what was recorded until now for the cells and `results`, cells made meanwhile. Makes the plan, if need be; runs nothing. Results that hold
 * the same value get it in one buffer. *out_graph: what was recorded, to be destroyed, NULL: nothing is computed; out_graph NULL: nobody asks. */
opq_status opq_capture_make(opq_capturing *capturing, opq_cell *const *results, int count, opq_capture **out_capture,
                            opq_graph **out_graph) OPQ_MUST_CHECK;
/* The same without a plan, for who makes one of the graph: its inputs are the leaves in order, its outputs those of the capture. */
opq_status opq_capture_read(opq_capturing *capturing, opq_cell *const *results, int count, opq_capture **out_capture,
                            opq_graph **out_graph) OPQ_MUST_CHECK;
/* Would a call of the one do what a call of the other does? OPQ_CAPTURE_number: *out_which is a number of the graphs, in order, that is not the same;
 * _constant: an input whose data are not. */
typedef enum opq_capture_difference {
    OPQ_CAPTURE_same,
    OPQ_CAPTURE_graph,
    OPQ_CAPTURE_number,
    OPQ_CAPTURE_constant,
    OPQ_CAPTURE_cells
} opq_capture_difference;
opq_capture_difference opq_capture_compare(const opq_capture *a, const opq_capture *b, int *out_which);
void opq_capture_drop(opq_capture *capture); /* no call of it is in progress */

/* Cells and results as they were when it was made. */
typedef struct opq_capture_call {
    opq_cell *const *cells;
    const int64_t *shifts;     /* per cell, in bytes: what it reads begins so much later than it did. NULL: nowhere */
    const opq_number *numbers; /* by id, as opq_value_number took them */
    opq_value *const *uploads; /* by id: computed values of the same types */
    opq_cell **results;        /* a reference each: new cells */
} opq_capture_call;
/* OPQ_UNSUPPORTED, and nothing happened: a cell holds something of another size or type than it did, so the function is to be recorded anew. */
opq_status opq_capture_run(opq_capture *capture, const opq_capture_call *call) OPQ_MUST_CHECK;
/* The same if it takes some microseconds and nobody has to be waited for, so that a caller may hold a lock of its own meanwhile. *out_ran: false, and
 * nothing happened, if not. */
opq_status opq_capture_run_now(opq_capture *capture, const opq_capture_call *call, bool *out_ran) OPQ_MUST_CHECK;

/* An adopted buffer that is borrowed for calls: of its memory nothing is kept, and what a call writes to its cell is written there if its plan can. */
void opq_buffer_borrow(opq_buffer *buffer);

/* Is the cell read by views alone, so that calls may shift them? */
bool opq_capture_shiftable(const opq_capture *capture, int cell);

typedef struct opq_capture_info {
    int cells, results, ops, kernels, constants;
} opq_capture_info;
opq_capture_info opq_capture_describe(const opq_capture *capture);

#ifdef __cplusplus
}
#endif
#endif
