/* What a kernel printed as C includes (graph(stage="c"), opq-opt --emit=c): its arguments, checked indices, folds by their rule.
 *
 *   cc -O2 -ffp-contract=off -I include -c kernels.c
 *
 *   void NAME(void *const *buffers, const int64_t *dims, const opq_number *scalars, int64_t error[2])
 *
 * buffers, dims and scalars are b0, d0 and s0 of the kernel's text (docs/ir.md). error is all zeros before, and afterwards {0, 0},
 * or {number of the first statement that failed + 1, the index that it met}, or {-1, 0}: no memory.
 */
#ifndef OPAQUE_KERNEL_H
#define OPAQUE_KERNEL_H

#include "opaque/opaque.h"
#include "opaque/scalar_math.h"

#include <stdlib.h>

/* ---- errors: of the statements that fail the first one is told, with the first index that it met */

static inline void opq_note(int64_t failed, int64_t index, int64_t error[2])
{
    if (error[0] != 0 && error[0] <= failed)
        return;
    error[0] = failed;
    error[1] = index;
}

/* Is the index in [0, extent)? */
static inline bool opq_inside(int64_t index, int64_t extent, int64_t failed, int64_t error[2])
{
    if (index >= 0 && index < extent)
        return true;
    opq_note(failed, index, error);
    return false;
}

static inline void opq_nonzero(int64_t divisor, int64_t failed, int64_t error[2])
{
    if (divisor == 0)
        opq_note(failed, 0, error);
}

/* ---- blocks of `size` elements */

static inline int64_t opq_blocks(int64_t elements, int64_t size) { return (elements + size - 1) / size; }

/* Turns of a loop in a block of a sequence, which nested loops are: from where to where it is done. `before`: elements before the loop;
 * `inside`: those of one turn. */
static inline int64_t opq_block_from(int64_t block, int64_t size, int64_t before, int64_t inside)
{
    int64_t first = block * size - before;
    return first > 0 && inside > 0 ? first / inside : 0;
}

static inline int64_t opq_block_to(int64_t block, int64_t size, int64_t before, int64_t inside, int64_t extent)
{
    int64_t end = block * size + size - before;
    int64_t turns = end > 0 && inside > 0 ? (end + inside - 1) / inside : 0;
    return turns < extent ? turns : extent;
}

/* ---- folds, one element after the other in row-major order; opq_tree in opaque.h has the rules
 *
 *   opq_lanes_sum_f32 fold = opq_lanes_sum_f32_begin(run);      run: elements of an innermost run of adjacent reduced axes
 *   opq_lanes_sum_f32_add(&fold, x);
 *   opq_lanes_sum_f32_end(&fold)
 *
 * A level reduces what the level before gave: chunks of 4096 elements by 64 lanes, whose results are the elements of the next. A chunk at
 * level 0 also ends with its run. The level that gives a single result gives the fold's.
 */
enum { OPQ_LEVELS = 6 }; /* 4096^6 elements */

#define OPQ_LANES_FOLD(name, real, identity, combined)                                                                 \
    typedef struct opq_lanes_##name {                                                                                  \
        int64_t run, left;                                  /* of the current run */                                   \
        int64_t filled[OPQ_LEVELS], given[OPQ_LEVELS];      /* elements of the open chunk, results */                  \
        real lane[OPQ_LEVELS][OPQ_LANES], last[OPQ_LEVELS]; /* last: the last result */                                \
    } opq_lanes_##name;                                                                                                \
    static inline real opq_##name##_combine(real a, real b) { return combined; }                                       \
    static inline opq_lanes_##name opq_lanes_##name##_begin(int64_t run)                                               \
    {                                                                                                                  \
        opq_lanes_##name fold;                                                                                         \
        fold.run = fold.left = run;                                                                                    \
        for (int level = 0; level < OPQ_LEVELS; level++)                                                               \
            fold.filled[level] = fold.given[level] = 0;                                                                \
        return fold;                                                                                                   \
    }                                                                                                                  \
    static inline real opq_lanes_##name##_close(opq_lanes_##name *fold, int level)                                     \
    {                                                                                                                  \
        real *lane = fold->lane[level];                                                                                \
        for (int half = OPQ_LANES / 2; half > 0; half /= 2)                                                            \
            for (int i = 0; i < half; i++)                                                                             \
                lane[i] = opq_##name##_combine(lane[i], lane[i + half]);                                               \
        fold->filled[level] = 0;                                                                                       \
        fold->given[level]++;                                                                                          \
        return fold->last[level] = lane[0];                                                                            \
    }                                                                                                                  \
    static inline void opq_lanes_##name##_push(opq_lanes_##name *fold, int level, real x)                              \
    {                                                                                                                  \
        for (; level < OPQ_LEVELS; level++) {                                                                          \
            real *lane = fold->lane[level];                                                                            \
            for (int i = 0; i < OPQ_LANES && fold->filled[level] == 0; i++)                                            \
                lane[i] = identity;                                                                                    \
            int64_t k = fold->filled[level]++ % OPQ_LANES;                                                             \
            lane[k] = opq_##name##_combine(lane[k], x);                                                                \
            bool ends = level == 0 && --fold->left == 0;                                                               \
            if (ends)                                                                                                  \
                fold->left = fold->run;                                                                                \
            if (!ends && fold->filled[level] < OPQ_CHUNK)                                                              \
                return;                                                                                                \
            x = opq_lanes_##name##_close(fold, level);                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static inline void opq_lanes_##name##_add(opq_lanes_##name *fold, real x) { opq_lanes_##name##_push(fold, 0, x); } \
    static inline real opq_lanes_##name##_end(opq_lanes_##name *fold)                                                  \
    {                                                                                                                  \
        for (int level = 0; level < OPQ_LEVELS; level++) {                                                             \
            if (fold->filled[level] > 0)                                                                               \
                opq_lanes_##name##_push(fold, level + 1, opq_lanes_##name##_close(fold, level));                       \
            if (fold->given[level] == 1)                                                                               \
                return fold->last[level];                                                                              \
        }                                                                                                              \
        return identity;                                                                                               \
    }

/* Groups of 8 elements into blocks of 64 groups into the total. */
#define OPQ_COLUMN_FOLD(name, real, identity, combined)                                                                \
    typedef struct opq_column_##name {                                                                                 \
        int64_t count;                                                                                                 \
        real group, block, total;                                                                                      \
    } opq_column_##name;                                                                                               \
    static inline opq_column_##name opq_column_##name##_begin(void)                                                    \
    {                                                                                                                  \
        return (opq_column_##name){0, identity, identity, identity};                                                   \
    }                                                                                                                  \
    static inline void opq_column_##name##_add(opq_column_##name *fold, real x)                                        \
    {                                                                                                                  \
        fold->group = opq_##name##_combine(fold->group, x);                                                            \
        if (++fold->count % OPQ_COLUMN_GROUP != 0)                                                                     \
            return;                                                                                                    \
        fold->block = opq_##name##_combine(fold->block, fold->group);                                                  \
        fold->group = identity;                                                                                        \
        if (fold->count % OPQ_COLUMN_BLOCK != 0)                                                                       \
            return;                                                                                                    \
        fold->total = opq_##name##_combine(fold->total, fold->block);                                                  \
        fold->block = identity;                                                                                        \
    }                                                                                                                  \
    static inline real opq_column_##name##_end(opq_column_##name *fold)                                                \
    {                                                                                                                  \
        if (fold->count % OPQ_COLUMN_GROUP != 0)                                                                       \
            fold->block = opq_##name##_combine(fold->block, fold->group);                                              \
        if (fold->count % OPQ_COLUMN_BLOCK != 0)                                                                       \
            fold->total = opq_##name##_combine(fold->total, fold->block);                                              \
        return fold->total;                                                                                            \
    }

/* What is folded, the type of partial results, what they start from, how two of them combine: row names of the op table. Sums and products
 * of integers wrap in i64 and are cut to their type at the end. */
/* clang-format off */
#define OPQ_FOLDS(X)                                                                                                   \
    X(sum_f32, float, 0, a + b)                                                                                        \
    X(sum_f64, double, 0, a + b)                                                                                       \
    X(sum_i64, int64_t, 0, opq_add_i64(a, b))                                                                          \
    X(prod_f32, float, 1, a * b)                                                                                       \
    X(prod_f64, double, 1, a * b)                                                                                      \
    X(prod_i64, int64_t, 1, opq_mul_i64(a, b))                                                                         \
    X(amax_f32, float, -INFINITY, opq_maximum_f32(a, b))                                                               \
    X(amax_f64, double, -INFINITY, opq_maximum_f64(a, b))                                                              \
    X(amax_i64, int64_t, INT64_MIN, a > b ? a : b)                                                                     \
    X(amax_i32, int32_t, INT32_MIN, a > b ? a : b)                                                                     \
    X(amax_i16, int16_t, INT16_MIN, a > b ? a : b)                                                                     \
    X(amax_i8, int8_t, INT8_MIN, a > b ? a : b)                                                                        \
    X(amax_u8, uint8_t, 0, a > b ? a : b)                                                                              \
    X(amax_bool, bool, 0, a | b)                                                                                       \
    X(amin_f32, float, INFINITY, opq_minimum_f32(a, b))                                                                \
    X(amin_f64, double, INFINITY, opq_minimum_f64(a, b))                                                               \
    X(amin_i64, int64_t, INT64_MAX, a < b ? a : b)                                                                     \
    X(amin_i32, int32_t, INT32_MAX, a < b ? a : b)                                                                     \
    X(amin_i16, int16_t, INT16_MAX, a < b ? a : b)                                                                     \
    X(amin_i8, int8_t, INT8_MAX, a < b ? a : b)                                                                        \
    X(amin_u8, uint8_t, UINT8_MAX, a < b ? a : b)                                                                      \
    X(amin_bool, bool, 1, a & b)                                                                                       \
    X(any_bool, bool, 0, a | b)                                                                                        \
    X(all_bool, bool, 1, a & b)
/* clang-format on */
OPQ_FOLDS(OPQ_LANES_FOLD)
OPQ_FOLDS(OPQ_COLUMN_FOLD)

/* ---- products by the rules pairs (1) and pairs16 (16): opq_pairs_steps */

typedef struct opq_pairs {
    float sum, x[OPQ_PAIRS_MAX], y[OPQ_PAIRS_MAX]; /* x, y: of a step that is not there yet */
    int count;
} opq_pairs;

static inline float opq_pairs_end(opq_pairs *fold, int pairs)
{
    if (fold->count > 0)
        fold->sum = opq_pairs_steps(pairs, fold->x, fold->y, fold->count, fold->sum);
    fold->count = 0;
    return fold->sum;
}

static inline void opq_pairs_add(opq_pairs *fold, float x, float y, int pairs)
{
    fold->x[fold->count] = x;
    fold->y[fold->count++] = y;
    if (fold->count == 2 * pairs)
        (void)opq_pairs_end(fold, pairs);
}

/* ---- folds whose result is a place, whatever the rule: rows of folds.def, as opq_argmax_f32; 0 if there are no elements */

#define OPQ_PLACE_FOLD(name, real, comparison, equals)                                                                 \
    typedef struct opq_##name {                                                                                        \
        int64_t count, at;                                                                                             \
        real best;                                                                                                     \
    } opq_##name;                                                                                                      \
    static inline bool opq_##name##_better(real best, real x)                                                          \
    {                                                                                                                  \
        return x != x ? equals || best == best : x comparison best;                                                    \
    }                                                                                                                  \
    static inline opq_##name opq_##name##_begin(void) { return (opq_##name){0}; }                                      \
    static inline void opq_##name##_add(opq_##name *fold, real x)                                                      \
    {                                                                                                                  \
        if (fold->count == 0 || opq_##name##_better(fold->best, x)) {                                                  \
            fold->best = x;                                                                                            \
            fold->at = fold->count;                                                                                    \
        }                                                                                                              \
        fold->count++;                                                                                                 \
    }                                                                                                                  \
    static inline int64_t opq_##name##_end(const opq_##name *fold) { return fold->at; }
#define OPQ_PLACE_FOLDS(name, comparison, equals)                                                                      \
    OPQ_PLACE_FOLD(name##_f32, float, comparison, equals)                                                              \
    OPQ_PLACE_FOLD(name##_f64, double, comparison, equals)                                                             \
    OPQ_PLACE_FOLD(name##_i64, int64_t, comparison, equals)
#define OPQ_TAKES_none(name)
#define OPQ_TAKES_gt(name) OPQ_PLACE_FOLDS(name, >, false)
#define OPQ_TAKES_lt(name) OPQ_PLACE_FOLDS(name, <, false)
#define OPQ_TAKES_ge(name) OPQ_PLACE_FOLDS(name, >=, true)
#define OPQ_TAKES_le(name) OPQ_PLACE_FOLDS(name, <=, true)
#define FOLD(name, identity, combine, held, takes) OPQ_TAKES_##takes(name)
#include "opaque/folds.def"
#undef FOLD

#endif
