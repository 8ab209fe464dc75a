/* What a capture is: a plan, and what goes in and out. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_CAPTURE_PLAN_H
#define OPAQUE_OPAQUE_CAPTURE_PLAN_H

#include "opaque/capture.h"
#include "opaque/context.h"

enum { OPQ_CAPTURE_CASTS = 4, OPQ_NOT_STORED = -2 };

typedef struct opq_capture_cell {
    int64_t bytes; /* of the value that is read, 0: none is */
    uint8_t dtype;
    bool nothing;   /* it holds nothing, which is read as such */
    bool written;   /* it is written to */
    bool shiftable; /* it is read by views alone, which may begin elsewhere */
} opq_capture_cell;

typedef struct opq_capture_leaf {
    int32_t cell;        /* -1: constant */
    opq_value *constant; /* what the function made of host data */
    int32_t upload;      /* the caller's, in place of the constant, -1 */
    int64_t first, bytes;
    bool whole; /* no view */
} opq_capture_leaf;

typedef struct opq_capture_number {
    int id;                              /* the caller's, -1: value */
    opq_number value;                    /* as it was */
    opq_dtype dtypes[OPQ_CAPTURE_CASTS]; /* of the number, then what it is cast to */
    int count;
} opq_capture_number;

typedef struct opq_capture_sink {
    int32_t cell;   /* or -1 - number of a result */
    int32_t output; /* of the plan, or -1: what the leaf is */
    int32_t leaf;   /* or -1 as well: a new cell of so many bytes, in which nothing is defined */
    int64_t bytes;
} opq_capture_sink;

struct opq_capture {
    opq_ctx *ctx;
    opq_plan *plan; /* NULL: nothing is computed */
    void *key;      /* of the snapshot, without a mode */
    size_t key_bytes;
    opq_capture_cell *cells;
    opq_capture_leaf *leaves;
    opq_capture_number *numbers;
    opq_capture_sink *sinks;
    opq_type *types;   /* per output */
    uint32_t *lines;   /* per output: what made it */
    uint16_t *ops;     /* likewise */
    int32_t *replaces; /* per output: the leaf whose memory it may take, -1 */
    int cell_count, result_count, leaf_count, number_count, sink_count, output_count, op_count;
    bool small;   /* some microseconds, and no call of the host */
    int id_count; /* of numbers that the caller gives */
};

#endif
