/* The insides of a context: values and cells. Internal to opaque/.
 *
 * Locks, in this order: run_lock (one run at a time) before lock (cells and states of values). Reference counts are
 * atomic and need neither. Recording takes no lock but for cells. Nothing calls the host with `lock` held.
 */
#ifndef OPAQUE_OPAQUE_CONTEXT_H
#define OPAQUE_OPAQUE_CONTEXT_H

#include "opaque/background.h"
#include "opaque/plan_cache.h"
#include "opaque/record.h"
#include "opaque/repro.h"
#include "opaque/sizes.h"
#include "opaque/spin.h"
#include "opaque/tiers.h"
#include "opaque/value_pool.h"
#include "runtime/plan.h"
#include "runtime/room.h"

#include <pthread.h>

typedef enum opq_value_state { OPQ_VALUE_pending, OPQ_VALUE_computed, OPQ_VALUE_failed } opq_value_state;

struct opq_value {
    opq_ctx *ctx;
    atomic_int refs;
    uint16_t op;
    _Atomic(uint8_t) state; /* opq_value_state; what it says of the union is there before it */
    uint8_t attr_count;
    int32_t arity;
    uint32_t line;
    uint32_t call, forward; /* which call of the program recorded it; of whose gradient it is part: see opq_call_set */
    uint64_t sequence;      /* record order */
    opq_value **operands;   /* behind the struct; dropped when computed */
    opq_attr *attrs;
    opq_cell *holders; /* cells whose current value this is */
    union {
        opq_number scalar;  /* op scalar */
        opq_buffer *buffer; /* computed */
        char *error;        /* failed: message, malloc'd */
        void *payload;      /* pending extern */
    };
    uint32_t origin;     /* the thread that recorded it, see opq_origin_set */
    uint32_t collection; /* with `lock` held: the snapshot being collected, in which it is `code` */
    int32_t code;
    uint8_t error_status; /* opq_status */
    int8_t size_class;    /* of its memory */
    opq_value *next_free;
    opq_type type;
};

enum { OPQ_HISTORY_MAX = 8 };
struct opq_cell {
    opq_ctx *ctx;
    atomic_int refs;
    int64_t bytes;
    _Atomic(uint64_t) address; /* 0: nobody asked */
    opq_value *value;          /* NULL: undefined contents */
    opq_value *history[OPQ_HISTORY_MAX]; /* while `value` is pending: what a failure goes back to, oldest first; [0] may be computed */
    uint8_t history_count;
    bool history_lost;                       /* there were more writes than fit */
    uint32_t made_in;                        /* the capturing that made it, 0: none; see capturing.h */
    uint32_t met_in;                         /* the last one that met it */
    int32_t met;                             /* its number there */
    opq_cell *next_holder, *previous_holder; /* other cells with the same value */
    opq_cell **list, *next, *before; /* of the context, that it is in: pending_cells, copied_cells; NULL: none */
};

enum { OPQ_PLAN_MAX = 4096, OPQ_PLAN_BYTES_MAX = 256 << 20, OPQ_PENDING_MAX = 16384, OPQ_WINDOW = 16 };

struct opq_ctx {
    opq_host host;
    opq_runtime runtime;
    opq_spin lock;
    pthread_mutex_t run_lock;
    opq_cell *pending_cells;          /* they hold what is still to be computed */
    opq_cell *copied_cells;           /* that a capturing made, and which hold what is there: copies, tables */
    struct opq_capturing *capturings; /* with `lock` held */
    uint32_t collections;             /* snapshots taken; with `lock` held */
    atomic_ullong sequence;
    atomic_int pending;
    atomic_int products; /* opq_products */
    atomic_ullong window[OPQ_WINDOW]; /* hashes of the ops recorded last, for cutting repeated sequences alike; several threads' mix */
    atomic_uint window_at;
    atomic_ullong cut_window;
    opq_plan_cache *plans;
    opq_views views; /* with run_lock held */
    opq_repro repro; /* with run_lock held */
    opq_tiers tiers; /* with run_lock held */
    opq_sizes sizes; /* with run_lock held */
    opq_background background;
    opq_room_spares spares; /* of rooms of runs; with run_lock held */
    opq_value_pool values;
    opq_ctx *next_context; /* all of the process: fork.c */
    struct {
        atomic_llong ops_recorded, kernels_run, kernels_compiled, kernels_loaded, kernels_split, plans_built,
            plans_in_background, plans_failed, plans_reused, runs_in_pieces, runs_joined, captured_calls, extern_calls,
            bytes_read, bytes_written;
        atomic_llong flushes[OPQ_REASON_COUNT];
        atomic_llong compile_nanoseconds, run_nanoseconds;
    } stats;
};

/* value.c */
opq_status opq_value_new(opq_ctx *ctx, opq_op op, const opq_type *type, opq_value *const *operands, int arity,
                         const opq_attr *attrs, int attr_count, opq_value **out_value) OPQ_MUST_CHECK;
void opq_call_note(opq_value *value);           /* line and call of what this thread records */
void opq_value_drop_operands(opq_value *value); /* after it was computed; outside `lock` */
/* cell.c, with `lock` held */
void opq_cell_hold(opq_cell *cell, opq_value *value);
void opq_cells_settled(opq_value *value); /* its state changed: its cells wait for nothing */
/* Empties the history into out_drop[OPQ_HISTORY_MAX], to be released without the lock; their number. */
int opq_cell_forget(opq_cell *cell, opq_value **out_drop);
/* What it holds, as opq_cell_value, of which a function that is captured knows nothing. */
opq_value *opq_cell_value_unseen(opq_cell *cell);
/* Gives it a new value and takes the reference. False, and nothing happens, if it no longer holds what `expected` (NULL: anything) says: another
 * thread has written. */
bool opq_cell_replace(opq_cell *cell, opq_value *const *expected, opq_value *value);
/* The same, of which a function that is captured knows nothing. */
bool opq_cell_replace_unseen(opq_cell *cell, opq_value *const *expected, opq_value *value);

/* geometry.c: the view of `value` that a window describes, as the most telling op. */
opq_status opq_geometry_view(opq_ctx *ctx, opq_value *value, const opq_geometry *geometry,
                             opq_value **out_value) OPQ_MUST_CHECK;
bool opq_geometry_contiguous(const opq_geometry *geometry);
/* Does the window cover `count` elements, each once? order: dims by descending stride. */
bool opq_geometry_covers(const opq_geometry *geometry, int64_t count, int64_t *out_order);

/* inspect.c: the calling thread's report, NULL when off */
struct opq_recorder;
struct opq_recorder *opq_recorder_get(void);
void opq_recorder_launch(struct opq_recorder *recorder, const opq_step *step, int32_t count,
                         const opq_launch_times *times);
/* Of the launches that follow. Takes `why`, malloc'd; NULL: the plan was found. */
void opq_recorder_plan(struct opq_recorder *recorder, const opq_plan *plan, char *why, const opq_tier *unwatched);

/* environment.c. Members of JSON objects: those of a value (data NULL: of its type alone), the first ones of a report. */
void opq_statistics_add(opq_text *text, const opq_type *type, const void *data);
void opq_environment_add(opq_text *text, opq_ctx *ctx);

/* fork.c */
void opq_fork_add(opq_ctx *ctx);
void opq_fork_remove(opq_ctx *ctx);

/* materialize.c. The context whose run_lock the calling thread has, or NULL. */
opq_ctx *opq_running(void);
/* A run of these values and what the scope says, without asking whether it is allowed. run_lock not held, as below. */
struct opq_scope;
opq_status opq_run_pending(opq_ctx *ctx, opq_value *const *values, int count, const struct opq_scope *scope,
                           opq_reason reason) OPQ_MUST_CHECK;
/* As opq_materialize, of what a captured function recorded: by its plan. */
opq_status opq_materialize_captured(opq_ctx *ctx, opq_value *const *values, int count) OPQ_MUST_CHECK;
/* Around what runs under the run lock; plans that were made in the background are collected. */
void opq_run_enter(opq_ctx *ctx);
bool opq_run_try_enter(opq_ctx *ctx); /* false: another thread runs */
void opq_run_leave(opq_ctx *ctx);
opq_status opq_bound_check(opq_ctx *ctx, opq_op op, const opq_type *type) OPQ_MUST_CHECK;

#endif
