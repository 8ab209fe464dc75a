/* An export in progress. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_EXPORTER_H
#define OPAQUE_OPAQUE_EXPORTER_H

#include "codegen_llvm/gemm_kernel.h"
#include "codegen_llvm/cpu.h"
#include "opaque/context.h"
#include "opaque/export.h"
#include "opaque/export_steps.h"
#include "runtime/packed.h"

enum { OPQ_EXPORT_PATH_MAX = 4096 };

typedef struct opq_export_weight {
    char *name;
    opq_type type;
    opq_value *value; /* a reference; its data are what is written. NULL: zeros */
    int64_t bytes, offset;
    bool state;
} opq_export_weight;

typedef struct opq_export_window {
    int32_t weight;
    int64_t first, bytes;
} opq_export_window;

/* A packed copy of a window: what opq_step_packed says. */
typedef struct opq_export_packed {
    int32_t window;
    opq_packed_key key;
    int64_t offset, bytes;
} opq_export_packed;

struct opq_exporter {
    opq_ctx *ctx;
    opq_cpu cpu;
    struct opq_compiler *compiler;
    char *folder, level[16];
    opq_text calls; /* initialisers */
    opq_code_list codes;
    opq_step_kinds kinds;
    opq_plan **held; /* whose codes and steps these are, by number */
    int held_count, size_count;
    opq_export_weight *weights;
    int weight_count;
    opq_export_window *windows;
    int window_count;
    opq_export_packed *packed;
    int packed_count;
    uint64_t seed, offset;         /* of the random stream */
    bool tiles[OPQ_GEMM_ELEMENTS]; /* which kinds of tiles do the products need? */
};

#endif
