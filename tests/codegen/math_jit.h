/* Compiles every opq_math_* function for one instruction set and one number of lanes, and loads the
 * object. */
#ifndef OPAQUE_TESTS_MATH_JIT_H
#define OPAQUE_TESTS_MATH_JIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MATH_UNARY = 22, MATH_COUNT = 25 }; /* the unary functions in the order of OPQ_MATH1, then pow, atan2, fmod */
enum { MATH_F64_UNARY = 12, MATH_F64_COUNT = 13 }; /* the first of them, then pow */

/* out[i] = f(x[i], y[i]); unary functions do not read y. count is a multiple of 64. */
typedef void math_function(const float *x, const float *y, float *out, int64_t count);
typedef void math_function_f64(const double *x, const double *y, double *out, int64_t count);
/* One vector: rows of `lanes` indices, seeds and offsets. */
typedef void uniform_function(const uint64_t *operands, float *out);

typedef struct math_jit {
    const char *label;
    int lanes;
    math_function *function[MATH_COUNT];
    math_function_f64 *function_f64[MATH_F64_COUNT];
    uniform_function *uniform;
    int undefined_symbols; /* in the object, by name */
    void *jit;
} math_jit;

extern const char *const math_names[MATH_COUNT], *const math_f64_names[MATH_F64_COUNT];

bool math_host_has_avx512(void);
/* Returns false, with a message on stderr, when anything in LLVM fails. */
bool math_jit_create(math_jit *jit, const char *label, bool avx512, int lanes);
void math_jit_destroy(math_jit *jit);

#endif
