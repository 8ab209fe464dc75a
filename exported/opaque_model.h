/* A model that torch_opaque.export() made: open, run, close. Needs libc, libm and threads.
 *
 * A model's own header, NAME.h, has its functions with the types of its tensors; those here take any model. Tensors are dense and
 * row-major. Functions give 0, or one of the codes below; `error` (NAME_error) says what was wrong in words.
 */
#ifndef OPAQUE_MODEL_H
#define OPAQUE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OPAQUE_MODEL_OK,
    OPAQUE_MODEL_INVALID,     /* an argument, or a value in a tensor: an index out of range */
    OPAQUE_MODEL_UNSUPPORTED, /* this processor, or sizes that the model was not exported for */
    OPAQUE_MODEL_NO_MEMORY,
    OPAQUE_MODEL_FILE, /* the weights are not there, or not those that the model was made with */
    OPAQUE_MODEL_INTERNAL,
};

#define OPAQUE_MODEL_DERIVED (-INT64_MAX)

typedef struct opaque_model opaque_model;

typedef struct opaque_model_tensor {
    const char *name;
    const char *dtype; /* bool u8 i8 i16 i32 i64 f16 bf16 f32 f64 c64 c128 */
    int element_bytes, rank;
    const int64_t *size; /* per dim; -1 - k: the k-th of the model's sizes; OPAQUE_MODEL_DERIVED, of an output: what `shape` says */
} opaque_model_tensor;

typedef struct opaque_model_info {
    const char *name, *cpu; /* cpu: avx2 or avx512 */
    int input_count, output_count, weight_count, size_count;
    const opaque_model_tensor *inputs, *outputs;
    const opaque_model_tensor *weights; /* and what the model changes as it runs, which each opened one has for itself */
    const char *const *sizes;           /* names of those that calls choose */
} opaque_model_info;

/* weights: the file that was written beside the library. threads: that work on one call, at least 1. Any number of threads may call one
 * model at once; calls of a model with a state, or that draws random numbers, follow each other. */
typedef struct opaque_model_interface {
    const opaque_model_info *info;
    int (*open)(const char *weights, int threads, opaque_model **out_model);
    /* sizes: size_count of them. inputs and outputs in the order of info; outputs are written, and must not overlap anything. */
    int (*run)(opaque_model *model, const int64_t *sizes, const void *const *inputs, void *const *outputs);
    /* Of an output, by its number, at these sizes: `rank` sizes. */
    int (*shape)(const int64_t *sizes, int output, int64_t *out_size);
    /* Of a weight or of the model's state, by its number; valid until the next run. */
    const void *(*weight)(opaque_model *model, int index);
    /* Random numbers of a model that draws some begin anew; they go on from call to call, each opened model's for itself. */
    void (*seed)(opaque_model *model, uint64_t seed);
    void (*close)(opaque_model *model);
    const char *(*error)(void); /* of the last call of this thread that failed */
} opaque_model_interface;

/* What dlsym() finds under "opaque_model_library" in every exported library. */
typedef const opaque_model_interface *(*opaque_model_function)(void);

#ifdef __cplusplus
}
#endif
#endif
