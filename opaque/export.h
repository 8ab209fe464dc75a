/* Exported models: captured calls as C, which a linker makes a library of together with the objects of their kernels and the runtime of
 * exported/. See exported/exported.h for what the tables say.
 *
 * Deterministic: the same calls give the same files.
 */
#ifndef OPAQUE_OPAQUE_EXPORT_H
#define OPAQUE_OPAQUE_EXPORT_H

#include "opaque/capture.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct opq_exporter opq_exporter;

#define OPQ_EXPORT_DERIVED (-INT64_MAX) /* in place of a size: OPAQUE_MODEL_DERIVED */

/* What a caller passes or gets, or a weight. */
typedef struct opq_exported_name {
    const char *name; /* of C */
    opq_type type;
} opq_exported_name;

/* A cell that was met while a call was captured. */
typedef struct opq_exported_cell {
    int argument;     /* whose data it is; -1: it is a weight */
    const char *name; /* of the weight: equal ones are one weight in all calls */
    opq_type type;    /* of the weight */
} opq_exported_cell;

/* What a number of the caller, by its id, is at each call: as it is now, or what random numbers are made of. */
typedef struct opq_exported_number {
    enum { OPQ_EXPORTED_constant, OPQ_EXPORTED_seed, OPQ_EXPORTED_offset } kind;
    int64_t further; /* offset: than where the stream stands when the call begins */
} opq_exported_number;

typedef struct opq_export_call {
    opq_cell *const *results;
    const opq_type *outputs; /* per result */
    int result_count;
    const opq_exported_cell *cells; /* as opq_capturing_cell numbers them */
    const int64_t *sizes;           /* which tell this call from others; size_count of them */
    const opq_type *inputs;         /* per argument */
    int input_count;
    const opq_exported_number *numbers;
    int64_t drawn;         /* how far the stream goes in a call */
    uint64_t seed, offset; /* of the stream before it */
} opq_export_call;

/* level: avx2 or avx512; NULL: the context's. folder: where objects and C go; it is there, and empty. */
opq_status opq_exporter_open(opq_ctx *ctx, const char *level, const char *folder, int size_count,
                             opq_exporter **out_exporter) OPQ_MUST_CHECK;
const char *opq_exporter_level(const opq_exporter *exporter);
/* What was recorded since `capturing` began, which has not ended. Nothing is computed. Uploads of the caller are
 * constants, as they are now. OPQ_UNSUPPORTED: an op has no kernel, or something else of the call needs more than a plan; words tell the
 * op and its line. */
opq_status opq_exporter_add(opq_exporter *exporter, opq_capturing *capturing, const opq_export_call *call) OPQ_MUST_CHECK;
typedef struct opq_export_names {
    const char *model;                         /* an identifier of C */
    const opq_exported_name *inputs, *outputs; /* sizes below 0: as opaque_model.h has them */
    int input_count, output_count;
    const char *const *sizes;
} opq_export_names;
/* Writes the tables as FOLDER/tables.c, and the weights. */
opq_status opq_exporter_finish(opq_exporter *exporter, const opq_export_names *names, const char *weights) OPQ_MUST_CHECK;
void opq_exporter_close(opq_exporter *exporter);

#ifdef __cplusplus
}
#endif
#endif
