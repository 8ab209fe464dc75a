/* Elements that are set or combined at indices, in ascending order along the axis. Lines along it need nothing of each other; several are
 * walked beside each other, as they lie in memory. index_set has one index for all lines: what is side by side is copied at once.
 *
 * Indices are looked at before anything is written, because the result may lie where operand 0 did.
 */
#include "runtime/routine.h"

#include "fusion/target.h"
#include "graph/eval.h"
#include "graph/index_error.h"
#include "opaque/scalar.h"
#include "runtime/parallel.h"

#include <string.h>

enum { LINES = 16 };

typedef struct scatter {
    const opq_routine *call;
    int axis;
    int64_t along, extent; /* of the index, of the result */
    int64_t stride[3];     /* along the axis, of result, index and source */
} scatter;

/* Places of the first elements of `line` in the result, the index and the source. */
static void place_line(const scatter *s, int64_t line, int64_t out_place[3])
{
    const opq_type *type[] = {&s->call->node->type, s->call->type[1], s->call->type[2]};
    int64_t step[3] = {1, 1, 1};
    memset(out_place, 0, 3 * sizeof *out_place);
    for (int d = type[0]->rank - 1; d >= 0; d--) {
        int64_t at = d == s->axis ? 0 : line % type[1]->size[d];
        line = d == s->axis ? line : line / type[1]->size[d];
        for (int o = 0; o < 3; o++) {
            out_place[o] += at * step[o];
            step[o] *= type[o]->size[d];
        }
    }
}

/* Of f16 and bf16, and integers that are not as common, number by number. */
static void combine_any(const scatter *s, int64_t to, int64_t from)
{
    opq_dtype dtype = (opq_dtype)s->call->node->type.dtype;
    opq_number a = opq_eval_load(dtype, s->call->out, to), b = opq_eval_load(dtype, s->call->data[2], from);
    int op = s->call->node->op;
    a = op == OPQ_OP_scatter_prod   ? opq_eval_mul(dtype, a, b)
        : op == OPQ_OP_scatter_amax ? opq_eval_max(dtype, a, b)
                                    : opq_eval_min(dtype, a, b);
    opq_eval_store(dtype, s->call->out, to, a);
}

#define WALK(combine)                                                                                                  \
    for (int64_t i = 0; i < s->along; i++)                                                                             \
        for (int64_t l = 0; l < count; l++) {                                                                          \
            int64_t at = index[place[l][1] + i * s->stride[1]];                                                        \
            int64_t to = place[l][0] + at * s->stride[0], from = place[l][2] + i * s->stride[2];                       \
            combine;                                                                                                   \
        }
#define WALK_AS(real, suffix, product)                                                                                 \
    {                                                                                                                  \
        real *out = s->call->out;                                                                                      \
        const real *source = s->call->data[2];                                                                         \
        if (s->call->node->op == OPQ_OP_scatter_prod)                                                                  \
            WALK(out[to] = product(out[to], source[from]))                                                             \
        else if (s->call->node->op == OPQ_OP_scatter_amax)                                                             \
            WALK(out[to] = opq_maximum_##suffix(out[to], source[from]))                                                \
        else                                                                                                           \
            WALK(out[to] = opq_minimum_##suffix(out[to], source[from]))                                                \
    }
#define TIMES(a, b) ((a) * (b))
#define WRAPPING(a, b) ((int64_t)((uint64_t)(a) * (uint64_t)(b)))

#define WALK_SET(integer)                                                                                              \
    {                                                                                                                  \
        integer *out = s->call->out;                                                                                   \
        const integer *source = s->call->data[2];                                                                      \
        WALK(out[to] = source[from])                                                                                   \
    }

static void walk_set(const scatter *s, int64_t (*place)[3], int64_t count)
{
    const int64_t *index = s->call->data[1];
    switch (opq_dtype_bytes((opq_dtype)s->call->node->type.dtype)) {
    case 1: WALK_SET(uint8_t) break;
    case 2: WALK_SET(uint16_t) break;
    case 4: WALK_SET(uint32_t) break;
    default: WALK_SET(uint64_t) break;
    }
}

static void walk(const scatter *s, int64_t (*place)[3], int64_t count)
{
    const int64_t *index = s->call->data[1];
    if (s->call->node->op == OPQ_OP_scatter_set) {
        walk_set(s, place, count);
        return;
    }
    switch ((opq_dtype)s->call->node->type.dtype) {
    case OPQ_f32: WALK_AS(float, f32, TIMES) break;
    case OPQ_f64: WALK_AS(double, f64, TIMES) break;
    case OPQ_i64: WALK_AS(int64_t, i64, WRAPPING) break;
    default: WALK(combine_any(s, to, from)) break;
    }
}

static void run_lines(void *data, int64_t begin, int64_t end)
{
    const scatter *s = data;
    for (int64_t first = begin; first < end; first += LINES) {
        int64_t place[LINES][3], count = end - first < LINES ? end - first : LINES;
        for (int64_t l = 0; l < count; l++)
            place_line(s, first + l, place[l]);
        walk(s, place, count);
    }
}

/* Lines [begin, end) of all, which lie side by side up to the end of a row of them. */
static void set_lines(void *data, int64_t begin, int64_t end)
{
    const scatter *s = data;
    const int64_t *index = s->call->data[1], inner = s->stride[0];
    int64_t bytes = opq_dtype_bytes((opq_dtype)s->call->node->type.dtype);
    while (begin < end) {
        int64_t row = begin / inner, line = begin % inner;
        int64_t count = end - begin < inner - line ? end - begin : inner - line;
        for (int64_t i = 0; i < s->along; i++)
            memcpy((char *)s->call->out + ((row * s->extent + index[i]) * inner + line) * bytes,
                   (const char *)s->call->data[2] + ((row * s->along + i) * inner + line) * bytes,
                   (size_t)(count * bytes));
        begin += count;
    }
}

opq_status opq_routine_scatter_check(const opq_routine *c)
{
    const int64_t *index = c->data[1], count = opq_type_count(c->type[1]);
    const int64_t extent = c->type[0]->size[opq_node_int(c->node, OPQ_ATTR_axis, 0)];
    int64_t i = 0;
    while (i < count && index[i] >= 0 && index[i] < extent)
        i++;
    if (i == count)
        return OPQ_OK;
    opq_index_words words = opq_index_words_of(c->node, c->type[0]);
    return opq_index_fail(&words, c->name, index[i], extent);
}

void opq_routine_scatter(const opq_routine *c)
{
    scatter s = {.call = c, .axis = (int)opq_node_int(c->node, OPQ_ATTR_axis, 0), .stride = {1, 1, 1}};
    const opq_type *type[] = {&c->node->type, c->type[1], c->type[2]};
    bool whole = c->node->op == OPQ_OP_index_set;
    int64_t count = opq_type_count(type[whole ? 2 : 1]);
    if (count == 0)
        return;
    s.along = type[1]->size[whole ? 0 : s.axis];
    s.extent = type[0]->size[s.axis];
    for (int o = 0; o < 3; o++)
        for (int d = s.axis + 1; d < type[o]->rank; d++)
            s.stride[o] *= type[o]->size[d];
    int64_t grain = opq_runs.grain / s.along;
    opq_parallel_for(c->run->runtime->host, count / s.along, grain < LINES ? LINES : grain,
                     whole ? set_lines : run_lines, &s);
}
