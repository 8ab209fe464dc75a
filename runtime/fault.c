/* Which value an error is about: of the op that stands first, the first one in row-major order. A kernel meets them in the order of its
 * loops, lanes and threads; so what is looked at is evaluated once more, op by op, from the memory that the kernel read.
 */
#include "runtime/run.h"
#include "graph/eval.h"

#include <stdlib.h>

/* What one operand is made of, as a graph. */
typedef struct source {
    const opq_run_state *run;
    const opq_step *step;
    const opq_graph *from;
    opq_graph *graph;
    opq_ref *renamed; /* per node of `from` */
    uint8_t *needed;
    const void **inputs;
    int input_count;
} source;

static bool is_inside(const source *s, opq_ref ref) { return opq_node_at(s->from, ref)->kernel == s->step->order; }

static void mark_needed(const source *s, opq_ref operand)
{
    s->needed[operand] = 1;
    for (opq_ref n = operand; n >= 0; n--)
        for (int k = 0; s->needed[n] && is_inside(s, n) && k < opq_node_at(s->from, n)->arity; k++)
            s->needed[opq_node_at(s->from, n)->operand[k]] = 1;
}

/* Slots are numbered in the order of their nodes. */
static opq_number scalar_of(const source *s, opq_ref ref)
{
    int slot = 0;
    for (opq_ref n = 0; n < ref; n++)
        slot += opq_node_class(opq_node_at(s->from, n)) == OPQ_CLASS_SCALAR;
    return s->run->slots[slot];
}

static opq_status take_outside(source *s, opq_ref ref)
{
    const opq_node *node = opq_node_at(s->from, ref);
    if (opq_node_class(node) == OPQ_CLASS_SCALAR)
        return opq_graph_const(s->graph, (opq_dtype)node->type.dtype, scalar_of(s, ref), &s->renamed[ref]);
    for (int i = 0; i < s->step->taken_count; i++)
        if (s->step->taken[i].node == ref) {
            s->inputs[s->input_count++] = opq_run_data(s->run, s->step->taken[i].storage);
            return opq_graph_input(s->graph, &node->type, &s->renamed[ref]);
        }
    return opq_graph_append(s->graph, node, &s->renamed[ref]); /* a number */
}

static opq_status make_graph(source *s, opq_ref operand)
{
    size_t count = (size_t)s->from->count;
    s->renamed = malloc(count * sizeof *s->renamed);
    s->needed = calloc(count, 1);
    s->inputs = malloc(((size_t)s->step->taken_count + 1) * sizeof *s->inputs);
    if (s->renamed == NULL || s->needed == NULL || s->inputs == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the words of an error");
    OPQ_TRY(opq_graph_create("operand", &s->graph));
    mark_needed(s, operand);
    for (opq_ref n = 0; n <= operand; n++)
        if (s->needed[n])
            OPQ_TRY(is_inside(s, n) ? opq_graph_copy_node(s->graph, s->from, n, s->renamed, &s->renamed[n])
                                    : take_outside(s, n));
    return opq_graph_output(s->graph, s->renamed[operand]);
}

/* The elements of an operand; NULL: they cannot be told. The caller frees them. */
static void *evaluate(const opq_run_state *run, const opq_step *step, opq_ref operand)
{
    source s = {.run = run, .step = step, .from = run->plan->graph};
    void *values = malloc((size_t)opq_type_bytes(&opq_node_at(s.from, operand)->type) + 1);
    bool good = values && make_graph(&s, operand) == OPQ_OK && opq_graph_eval(s.graph, s.inputs, &values) == OPQ_OK;
    opq_graph_destroy(s.graph);
    free(s.renamed);
    free(s.needed);
    free(s.inputs);
    if (good)
        return values;
    free(values);
    return NULL;
}

bool opq_fault_find(const opq_run_state *run, const opq_step *step, int *out_check, int64_t *out_index)
{
    for (int c = 0; c < step->check_count; c++) {
        const opq_check *check = &step->checks[c];
        opq_ref operand = opq_node_at(run->plan->graph, check->node)->operand[1];
        const opq_type *type = &opq_node_at(run->plan->graph, operand)->type;
        void *values = evaluate(run, step, operand);
        const opq_type *indexed = &check->words.type;
        int64_t extent = check->words.axis < indexed->rank ? indexed->size[check->words.axis] : 1;
        for (int64_t i = 0; values && i < opq_type_count(type); i++) {
            int64_t value = opq_eval_load((opq_dtype)type->dtype, values, i).i;
            if (check->divides ? value != 0 : value >= 0 && value < extent)
                continue;
            *out_check = c;
            *out_index = value;
            free(values);
            return true;
        }
        free(values);
    }
    return false;
}
