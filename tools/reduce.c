/* Delta debugging (Zeller and Hildebrandt, 2002) on the nodes of a graph.
 *
 *   a b c d e f g      what is computed: at first everything that an output needs
 *       c d e          a part of it: what it needs from outside (b) is an input with the value that the reference evaluator gives,
 *                      what nothing in it reads (e), and outputs of the whole graph, are its outputs
 *
 * The evaluator runs once, node by node, so that every part has its inputs and its expected outputs already. A part is tried in a process
 * of its own. First halves, by record order, as long as one goes wrong like the whole; then everything but an ever smaller piece; last
 * everything but one node, until no node can be left out.
 *
 * What is left is expanded, and shrunk again: of a softmax that goes wrong its exp may be the fault.
 *
 * What the evaluator has no value for (extern calls) is an input from the beginning, with a value that is made up, as is what has
 * undefined contents. Numbers (const, scalar, extent) go with the nodes that read them and are not counted.
 */
#include "reduce.h"

#include "attempt.h"
#include "graph/npy.h"
#include "inputs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct reduction {
    const opq_graph *graph;
    opq_fusion fusion;
    int seconds;
    void **values;  /* by node; NULL where nothing needs it */
    bool *given;    /* by node: never computed */
    bool *result;   /* by node: an output that may not go */
    opq_ref *parts; /* what is computed now, ascending */
    int32_t count;  /* of these */
    opq_ref *trial; /* room for another such list */
    attempt wrong;  /* what goes wrong */
} reduction;

/* A part as a graph; its arrays belong to the reduction. */
typedef struct part {
    opq_graph *graph;
    void **inputs, **expected;
} part;

static opq_status out_of_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory"); }

static bool is_number(const opq_node *node)
{
    opq_class class_ = opq_node_class(node);
    return class_ == OPQ_CLASS_SCALAR || (class_ == OPQ_CLASS_CONST && node->op != OPQ_OP_undefined);
}

/* ---- a part as a graph */

static opq_status add_input(const opq_node *node, opq_graph *graph, opq_ref *out_ref)
{
    char name[512];
    opq_node input = {.op = OPQ_OP_input, .kernel = -1, .type = node->type, .line = node->line};
    if (node->op != OPQ_OP_input) {
        snprintf(name, sizeof name, "%s%s%s", opq_node_info(node)->name, node->line ? ", " : "",
                 node->line ? node->line : "");
        input.line = name;
    }
    return opq_graph_append(graph, &input, out_ref);
}

enum { COMPUTED = 1, READ = 2 }; /* READ: by what is computed */

static void mark(const reduction *r, const opq_ref *nodes, int32_t count, uint8_t *marks)
{
    for (int32_t i = 0; i < count; i++)
        marks[nodes[i]] |= COMPUTED;
    for (int32_t i = 0; i < count; i++) {
        const opq_node *node = opq_node_at(r->graph, nodes[i]);
        for (int k = 0; k < node->arity; k++)
            marks[node->operand[k]] |= READ;
    }
}

static opq_status part_fill(const reduction *r, const uint8_t *marks, opq_ref *renamed, part *out)
{
    int inputs = 0, outputs = 0;
    for (opq_ref n = 0; n < r->graph->count; n++) {
        const opq_node *node = opq_node_at(r->graph, n);
        if (marks[n] & COMPUTED || (marks[n] & READ && is_number(node)))
            OPQ_TRY(opq_graph_copy_node(out->graph, r->graph, n, renamed, &renamed[n]));
        else if (marks[n] & READ) {
            OPQ_TRY(add_input(node, out->graph, &renamed[n]));
            out->inputs[inputs++] = r->values[n];
        }
    }
    for (opq_ref n = 0; n < r->graph->count; n++)
        if (marks[n] & COMPUTED && (!(marks[n] & READ) || r->result[n])) {
            OPQ_TRY(opq_graph_output(out->graph, renamed[n]));
            out->expected[outputs++] = r->values[n];
        }
    return OPQ_OK;
}

static void part_drop(part *p)
{
    opq_graph_destroy(p->graph);
    free(p->inputs);
    free(p->expected);
}

static opq_status part_make(const reduction *r, const opq_ref *nodes, int32_t count, part *out)
{
    size_t size = (size_t)r->graph->count + 1;
    uint8_t *marks = calloc(size, sizeof *marks);
    opq_ref *renamed = calloc(size, sizeof *renamed);
    *out = (part){.inputs = calloc(size, sizeof *out->inputs), .expected = calloc(size, sizeof *out->expected)};
    opq_status status = marks && renamed && out->inputs && out->expected ? OPQ_OK : out_of_memory();
    if (status == OPQ_OK)
        status = opq_graph_create(r->graph->name, &out->graph);
    if (status == OPQ_OK) {
        mark(r, nodes, count, marks);
        status = part_fill(r, marks, renamed, out);
    }
    free(marks);
    free(renamed);
    if (status != OPQ_OK)
        part_drop(out);
    return status;
}

/* ---- trying */

static opq_status attempt_part(const reduction *r, const opq_ref *nodes, int32_t count, attempt *out_attempt)
{
    part p;
    OPQ_TRY(part_make(r, nodes, count, &p));
    opq_status status = attempt_run(p.graph, r->fusion, p.inputs, p.expected, r->seconds, out_attempt);
    part_drop(&p);
    return status;
}

/* If r->trial goes wrong as the whole does, it is what is left. */
static opq_status try_trial(reduction *r, int32_t count, bool *out_smaller)
{
    attempt a;
    OPQ_TRY(attempt_part(r, r->trial, count, &a));
    *out_smaller = attempt_same(&a, &r->wrong);
    if (!*out_smaller)
        return OPQ_OK;
    opq_ref *before = r->parts;
    r->parts = r->trial;
    r->trial = before;
    if (count < r->count)
        fprintf(stderr, "%d nodes\n", count);
    r->count = count;
    r->wrong = a;
    return OPQ_OK;
}

/* The first half, the last, the middle one. */
static opq_status halve(reduction *r)
{
    bool smaller = true;
    while (smaller && r->count > 1) {
        int32_t half = (r->count + 1) / 2, first[] = {0, r->count - half, (r->count - half) / 2};
        smaller = false;
        for (int i = 0; i < 3 && !smaller; i++) {
            memcpy(r->trial, r->parts + first[i], (size_t)half * sizeof *r->trial);
            OPQ_TRY(try_trial(r, half, &smaller));
        }
    }
    return OPQ_OK;
}

/* Everything but `size` nodes, wherever these are, from the end on: what is computed last is read by nothing. */
static opq_status leave_out(reduction *r, int32_t size, bool *out_any)
{
    *out_any = false;
    for (int32_t end = r->count; end > 0 && r->count > size; end -= size) {
        int32_t begin = end > size ? end - size : 0;
        bool smaller;
        memcpy(r->trial, r->parts, (size_t)begin * sizeof *r->trial);
        memcpy(r->trial + begin, r->parts + end, (size_t)(r->count - end) * sizeof *r->trial);
        OPQ_TRY(try_trial(r, r->count - (end - begin), &smaller));
        *out_any = *out_any || smaller;
    }
    return OPQ_OK;
}

/* An output of the whole graph that something here reads need not be one here. */
static opq_status drop_outputs(reduction *r)
{
    for (int32_t i = 0; i < r->count; i++) {
        bool smaller;
        if (!r->result[r->parts[i]])
            continue;
        r->result[r->parts[i]] = false;
        memcpy(r->trial, r->parts, (size_t)r->count * sizeof *r->trial);
        OPQ_TRY(try_trial(r, r->count, &smaller));
        if (!smaller)
            r->result[r->parts[i]] = true;
    }
    return OPQ_OK;
}

static opq_status shrink(reduction *r)
{
    bool any;
    OPQ_TRY(halve(r));
    for (int32_t size = r->count / 4; size > 1; size = size > r->count / 2 ? r->count / 2 : size / 2) {
        OPQ_TRY(leave_out(r, size, &any));
        if (any)
            OPQ_TRY(halve(r));
    }
    OPQ_TRY(drop_outputs(r));
    for (any = true; any;)
        OPQ_TRY(leave_out(r, 1, &any));
    return OPQ_OK;
}

/* ---- values */

/* A graph of this node alone. */
static opq_status eval_alone(const reduction *r, opq_ref n, opq_graph *alone, const void **inputs, opq_ref *renamed)
{
    const opq_node *node = opq_node_at(r->graph, n);
    opq_node copy = *node;
    opq_ref made;
    for (int k = 0; k < node->arity; k++) {
        OPQ_TRY(add_input(opq_node_at(r->graph, node->operand[k]), alone, &renamed[k]));
        inputs[k] = r->values[node->operand[k]];
    }
    copy.operand = renamed;
    OPQ_TRY(opq_graph_append(alone, &copy, &made));
    OPQ_TRY(opq_graph_output(alone, made));
    OPQ_TRY(array_make(&node->type, &r->values[n]));
    return opq_graph_eval(alone, inputs, &r->values[n]);
}

static opq_status eval_node(const reduction *r, opq_ref n)
{
    size_t arity = (size_t)opq_node_at(r->graph, n)->arity + 1;
    opq_graph *alone = NULL;
    const void **inputs = calloc(arity, sizeof *inputs);
    opq_ref *renamed = calloc(arity, sizeof *renamed);
    opq_status status = inputs && renamed ? opq_graph_create("alone", &alone) : out_of_memory();
    if (status == OPQ_OK)
        status = eval_alone(r, n, alone, inputs, renamed);
    opq_graph_destroy(alone);
    free(inputs);
    free(renamed);
    return status;
}

static opq_status value_make(reduction *r, opq_ref n)
{
    const opq_node *node = opq_node_at(r->graph, n);
    opq_status status = OPQ_OK;
    if (!r->given[n])
        status = eval_node(r, n);
    if (status == OPQ_NO_MEMORY)
        return status;
    r->given[n] = r->given[n] || status != OPQ_OK; /* as an index out of range, which a run refuses with reason */
    if (!r->given[n] || r->values[n])
        return OPQ_OK;
    return node->op == OPQ_OP_undefined ? array_make(&node->type, &r->values[n])
                                        : input_invent(n, &node->type, &r->values[n]);
}

static void mark_needed(const opq_graph *graph, bool *needed)
{
    for (int i = 0; i < graph->output_count; i++)
        needed[graph->outputs[i]] = true;
    for (opq_ref n = graph->count - 1; n >= 0; n--) {
        const opq_node *node = opq_node_at(graph, n);
        for (int k = 0; k < node->arity && needed[n]; k++)
            needed[node->operand[k]] = true;
    }
}

static opq_status values_make(reduction *r, void *const *inputs, const bool *needed)
{
    int input = 0;
    for (opq_ref n = 0; n < r->graph->count; n++) {
        const opq_node *node = opq_node_at(r->graph, n);
        r->given[n] =
            node->op == OPQ_OP_input || opq_node_class(node) == OPQ_CLASS_EXTERN || node->op == OPQ_OP_undefined;
        if (node->op == OPQ_OP_input)
            r->values[n] = inputs[input++];
        else if (needed[n])
            OPQ_TRY(value_make(r, n));
        if (needed[n] && !r->given[n] && !is_number(node))
            r->parts[r->count++] = n;
    }
    for (int i = 0; i < r->graph->output_count; i++)
        r->result[r->graph->outputs[i]] = true;
    return OPQ_OK;
}

static opq_status reduction_make(reduction *r, void *const *inputs)
{
    size_t count = (size_t)r->graph->count + 1;
    bool *needed = calloc(count, sizeof *needed);
    r->values = calloc(count, sizeof *r->values);
    r->given = calloc(count, sizeof *r->given);
    r->result = calloc(count, sizeof *r->result);
    r->parts = calloc(count, sizeof *r->parts);
    r->trial = calloc(count, sizeof *r->trial);
    opq_status status = needed && r->values && r->given && r->result && r->parts && r->trial ? OPQ_OK : out_of_memory();
    if (status == OPQ_OK) {
        mark_needed(r->graph, needed);
        status = values_make(r, inputs, needed);
    }
    free(needed);
    return status;
}

static void reduction_drop(reduction *r)
{
    for (opq_ref n = 0; n < r->graph->count && r->values; n++)
        if (opq_node_at(r->graph, n)->op != OPQ_OP_input)
            free(r->values[n]);
    free(r->values);
    free(r->given);
    free(r->result);
    free(r->parts);
    free(r->trial);
}

/* ---- all of it */

static opq_status part_write(const part *p, const char *dir, const attempt *wrong)
{
    char folder[4096], path[4200], text[1200], *graph = NULL;
    snprintf(folder, sizeof folder, "%s/reduced", dir);
    snprintf(path, sizeof path, "%s/graph.ir", folder);
    attempt_print(wrong, text, sizeof text);
    OPQ_TRY(opq_graph_print(p->graph, &graph));
    printf("# %s\n%s", text, graph);
    FILE *file = mkdir(folder, 0777) && errno != EEXIST ? NULL : fopen(path, "w");
    bool written = file && fputs(graph, file) >= 0;
    if ((file && fclose(file)) || !written) {
        free(graph);
        return opq_fail(OPQ_INVALID, "%s: %s", path, strerror(errno));
    }
    free(graph);
    for (int i = 0; i < opq_graph_input_count(p->graph); i++) {
        opq_type type = opq_graph_input_type(p->graph, i);
        snprintf(path, sizeof path, "%s/input%d.npy", folder, i);
        OPQ_TRY(opq_npy_write(path, &type, p->inputs[i]));
    }
    int i = opq_graph_input_count(p->graph);
    do { /* those of an earlier, longer one */
        snprintf(path, sizeof path, "%s/input%d.npy", folder, i++);
    } while (unlink(path) == 0);
    return OPQ_OK;
}

static opq_status reduce_graph(const reduction *like, const opq_graph *graph, void *const *inputs, const char *dir);

/* What is left, or what is left of that with its composite ops expanded, if it goes wrong then as well. */
static opq_status reduce_further(const reduction *r, const char *dir)
{
    part p;
    opq_graph *expanded = NULL;
    OPQ_TRY(part_make(r, r->parts, r->count, &p));
    opq_status status = opq_graph_passes(p.graph, "expand", &expanded);
    if (status == OPQ_OK && expanded->count > p.graph->count)
        status = reduce_graph(r, expanded, p.inputs, dir);
    else
        status = OPQ_INVALID;
    if (status == OPQ_INVALID)
        status = part_write(&p, dir, &r->wrong);
    opq_graph_destroy(expanded);
    part_drop(&p);
    return status;
}

/* OPQ_INVALID: it does not go wrong, or not as in `like`. */
static opq_status reduce_parts(reduction *r, bool expanded, const char *dir)
{
    attempt a;
    char text[1200];
    OPQ_TRY(attempt_part(r, r->parts, r->count, &a));
    if (a.result == ATTEMPT_agrees || (expanded && !attempt_same(&a, &r->wrong)))
        return opq_fail(OPQ_INVALID, "%s: nothing goes wrong: the run and the reference evaluator agree", dir);
    r->wrong = a;
    attempt_print(&a, text, sizeof text);
    fprintf(stderr, "%d nodes%s, %s\n", r->count, expanded ? " expanded" : "", text);
    OPQ_TRY(shrink(r));
    if (!expanded)
        return reduce_further(r, dir);
    part p;
    OPQ_TRY(part_make(r, r->parts, r->count, &p));
    opq_status status = part_write(&p, dir, &r->wrong);
    part_drop(&p);
    return status;
}

/* `like`: of the graph before its composite ops were expanded. */
static opq_status reduce_graph(const reduction *like, const opq_graph *graph, void *const *inputs, const char *dir)
{
    reduction r = {.graph = graph, .fusion = like->fusion, .seconds = like->seconds, .wrong = like->wrong};
    opq_status status = reduction_make(&r, inputs);
    if (status == OPQ_OK)
        status = reduce_parts(&r, like->graph != NULL, dir);
    reduction_drop(&r);
    return status;
}

opq_status reduce(const opq_graph *graph, opq_fusion fusion, const char *dir, int seconds)
{
    int count = opq_graph_input_count(graph);
    reduction first = {.fusion = fusion, .seconds = seconds};
    void **inputs = calloc((size_t)count + 1, sizeof *inputs);
    opq_status status = inputs ? OPQ_OK : out_of_memory();
    for (int i = 0; i < count && status == OPQ_OK; i++) {
        opq_type type = opq_graph_input_type(graph, i);
        status = input_read(dir, i, &type, &inputs[i]);
    }
    if (status == OPQ_OK)
        status = reduce_graph(&first, graph, inputs, dir);
    for (int i = 0; i < count && inputs; i++)
        free(inputs[i]);
    free(inputs);
    return status;
}
