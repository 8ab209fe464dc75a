/* scatter_prod, scatter_amax, scatter_amin: every line along the axis by itself, in ascending order, several lines beside each other so that
 * what lies side by side in memory is walked so.
 */
#include "runtime/routine.h"

#include "graph/eval.h"
#include "opaque/scalar.h"
#include "runtime/parallel.h"

#include <stdatomic.h>
#include <string.h>

enum { LINES = 16, GRAIN = 4096 };

typedef struct scatter {
    const opq_routine *call;
    int axis;
    int64_t along, extent;    /* of the index, of the result */
    int64_t stride[3], lines; /* along the axis, of result, index and source */
    atomic_bool out_of_range;
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
            if (at < 0 || at >= s->extent) {                                                                           \
                atomic_store(&s->out_of_range, true);                                                                  \
                continue;                                                                                              \
            }                                                                                                          \
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

static void walk(scatter *s, int64_t (*place)[3], int64_t count)
{
    const int64_t *index = s->call->data[1];
    switch ((opq_dtype)s->call->node->type.dtype) {
    case OPQ_f32: WALK_AS(float, f32, TIMES) break;
    case OPQ_f64: WALK_AS(double, f64, TIMES) break;
    case OPQ_i64: WALK_AS(int64_t, i64, WRAPPING) break;
    default: WALK(combine_any(s, to, from)) break;
    }
}

static void run_lines(void *data, int64_t begin, int64_t end)
{
    scatter *s = data;
    for (int64_t first = begin; first < end; first += LINES) {
        int64_t place[LINES][3], count = end - first < LINES ? end - first : LINES;
        for (int64_t l = 0; l < count; l++)
            place_line(s, first + l, place[l]);
        walk(s, place, count);
    }
}

static opq_status out_of_range(const scatter *s)
{
    const int64_t *index = s->call->data[1];
    int64_t i = 0;
    while (index[i] >= 0 && index[i] < s->extent)
        i++;
    bool by_position = strncmp(s->call->name, "aten::index_reduce", 18) != 0; /* where PyTorch raises RuntimeError */
    return opq_fail(by_position ? OPQ_INVALID : OPQ_OUT_OF_RANGE,
                    "%s: index %lld is out of bounds for dimension %d with size %lld", s->call->name,
                    (long long)index[i], s->axis, (long long)s->extent);
}

opq_status opq_routine_scatter(const opq_routine *c)
{
    scatter s = {.call = c, .axis = (int)opq_node_int(c->node, OPQ_ATTR_axis, 0), .stride = {1, 1, 1}};
    const opq_type *type[] = {&c->node->type, c->type[1], c->type[2]};
    int64_t count = opq_type_count(type[1]);
    if (c->out != c->data[0])
        memcpy(c->out, c->data[0], (size_t)opq_type_bytes(type[0]));
    if (count == 0)
        return OPQ_OK;
    s.along = type[1]->size[s.axis];
    s.extent = type[0]->size[s.axis];
    for (int o = 0; o < 3; o++)
        for (int d = s.axis + 1; d < type[o]->rank; d++)
            s.stride[o] *= type[o]->size[d];
    atomic_init(&s.out_of_range, false);
    int64_t grain = GRAIN / s.along;
    opq_parallel_for(c->run->runtime->host, count / s.along, grain < LINES ? LINES : grain, run_lines, &s);
    return atomic_load(&s.out_of_range) ? out_of_range(&s) : OPQ_OK;
}
