/* What an exported model is made of: tables that opaque/export.c writes as C, and model.c runs. */
#ifndef OPAQUE_EXPORTED_EXPORTED_H
#define OPAQUE_EXPORTED_EXPORTED_H

#include "exported/opaque_model.h"
#include "runtime/gemm_internal.h"
#include "runtime/plan.h"

typedef struct opq_exported_weight {
    int64_t offset, bytes; /* in the file */
    bool state;            /* runs replace it */
} opq_exported_weight;

/* A part of a weight as runs read it: one buffer, which keeps its packed copies. */
typedef struct opq_exported_window {
    int32_t weight;
    int64_t first, bytes;
} opq_exported_window;

/* A packed copy of a window's matrix, in the file. */
typedef struct opq_exported_packed {
    int32_t window;
    opq_packed_key key;
    int64_t offset, bytes;
} opq_exported_packed;

typedef enum opq_exported_source { OPQ_FROM_argument, OPQ_FROM_window, OPQ_FROM_state } opq_exported_source;

/* An input of a plan. */
typedef struct opq_exported_leaf {
    opq_exported_source source;
    int32_t index; /* of the argument, window or weight */
    int64_t first, bytes;
} opq_exported_leaf;

/* Where an output of the plan goes, or a leaf that is given as it is. */
typedef struct opq_exported_sink {
    int32_t result, state; /* one of them, the other -1; state: a weight */
    int32_t output, leaf;  /* likewise; none: nothing is defined */
    int64_t bytes;
} opq_exported_sink;

/* A number of a plan that random numbers are made of: the seed, or where the stream stands and so many further. */
typedef struct opq_exported_draw {
    int32_t number;
    bool is_seed;
    int64_t further;
} opq_exported_draw;

/* A kind of step: one of them, and which of its numbers (runtime/step_numbers.h) others of the kind have otherwise; then -1. */
typedef struct opq_exported_step {
    const opq_step *like;
    const int32_t *varies;
} opq_exported_step;

/* What a call runs, for some sizes. */
typedef struct opq_exported_call {
    const int64_t *sizes;
    int plan; /* -1: nothing is computed */
    const opq_exported_leaf *leaves;
    int leaf_count;
    const opq_exported_sink *sinks;
    int sink_count;
    const opq_number *numbers; /* the plan's scalars */
    int number_count, draw_count;
    const opq_exported_draw *draws;
    int64_t drawn;               /* how far the stream goes in a call */
    const int32_t *replaces;     /* per output: a leaf of the state whose memory it may take, -1 */
    const int64_t *input_bytes;  /* per argument */
    const int64_t *output_sizes; /* of all results, one after the other */
} opq_exported_call;

typedef struct opq_exported {
    const opaque_model_info *info;
    const opq_exported_weight *weights;
    const opq_exported_window *windows;
    int window_count;
    const opq_exported_packed *packed;
    int packed_count;
    const opq_exported_step *steps;
    const int64_t *plans;           /* per plan: where it is among the numbers */
    const int32_t *numbers;         /* of all plans: see plans.c */
    const opq_exported_call *calls; /* in order of their sizes */
    int call_count;
    const opq_gemm_tiles *const *tiles; /* per opq_gemm_element; NULL: no product has any */
    uint64_t seed, offset;              /* of the random stream, where it begins */
    int64_t file_bytes;
    const char *digest; /* the last OPQ_EXPORTED_DIGEST bytes of the file */
} opq_exported;

enum { OPQ_EXPORTED_DIGEST = 32 };

/* plans.c: a plan as its steps' kinds and numbers tell it. What its arrays do not own is the library's. */
opq_status opq_exported_plan(const opq_exported *what, int plan, opq_plan **out_plan) OPQ_MUST_CHECK;

int opq_exported_open(const opq_exported *what, const char *weights, int threads, opaque_model **out_model);
int opq_exported_run(opaque_model *model, const int64_t *sizes, const void *const *inputs, void *const *outputs);
int opq_exported_shape(const opq_exported *what, const int64_t *sizes, int output, int64_t *out_size);
const void *opq_exported_weight_data(opaque_model *model, int index);
void opq_exported_seed(opaque_model *model, uint64_t seed);
void opq_exported_close(opaque_model *model);
const char *opq_exported_error(void);

/* threads.c: a host whose loop runs on so many threads, the caller's among them. */
typedef struct opq_threads opq_threads;
opq_status opq_threads_create(int count, opq_threads **out_threads) OPQ_MUST_CHECK;
void opq_threads_destroy(opq_threads *threads);
opq_host opq_threads_host(opq_threads *threads);

#endif
