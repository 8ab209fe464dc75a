/* What it would save to make one kernel of two between which a value goes through memory.
 *
 *   read      what the kernel that needs the value reads of it; the copy of an update that is not in place is such reading
 *   written   what the kernel that makes it writes of it, if no third one and not the caller needs it. An update in place keeps that memory:
 *             it writes again what it covers, and nothing if the value before was an update itself, of other elements as a rule
 *
 * Each byte counted is one that the plan counts as moved, and of edges into different kernels no two count the same one.
 */
#include "runtime/plan_internal.h"

#include <string.h>

/* Per storage, as numbered before updates went in place: kernels that read it, of which two are told apart; -1. */
typedef struct reader {
    int32_t first, second;
    bool caller;
} reader;

typedef struct coster {
    const opq_planner *p;
    const opq_plan *plan;
    int32_t *step_of; /* per kernel: waves reorder steps */
    reader *readers;
} coster;

static void note_reader(reader *r, int32_t kernel)
{
    if (r->first < 0 || r->first == kernel)
        r->first = kernel;
    else if (r->second < 0)
        r->second = kernel;
}

static int32_t storage_of(const opq_planner *p, opq_ref ref)
{
    return opq_planner_storage(p, opq_lower_base(p->graph, p->group_of, ref));
}

static void find_readers(coster *c)
{
    const opq_graph *graph = c->p->graph;
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        for (int k = 0; k < node->arity && node->kernel >= 0; k++) {
            int32_t storage = storage_of(c->p, node->operand[k]);
            opq_ref base = opq_lower_base(graph, c->p->group_of, node->operand[k]);
            if (storage >= 0 && opq_node_at(graph, base)->kernel != node->kernel)
                note_reader(&c->readers[storage], node->kernel);
        }
    }
    for (int i = 0; i < graph->output_count; i++) {
        int32_t storage = opq_planner_storage(c->p, graph->outputs[i]);
        if (storage >= 0)
            c->readers[storage].caller = true;
    }
}

static int64_t bytes_of(const coster *c, const opq_step *step, int32_t storage, bool written)
{
    int64_t bytes = 0;
    for (int b = 0; b < step->loops.buffer_count; b++)
        if (step->buffers[b] == storage && step->loops.written[b] != OPQ_BUFFER_own &&
            (step->loops.written[b] == OPQ_BUFFER_out) == written)
            bytes += opq_step_buffer_bytes(c->plan, step, b);
    const int32_t *ids = written ? step->results : step->operands;
    int count = written ? step->result_count : step->operand_count;
    bool found = false;
    for (int i = 0; i < count; i++)
        found = found || ids[i] == storage;
    if (!written && step->copy_from == storage)
        found = true;
    return bytes + (found ? c->plan->storage[storage].bytes : 0);
}

/* Of one value between the two. `made`: the storage before updates went in place. */
static int64_t saved(const coster *c, const opq_unfused_edge *edge, int32_t made)
{
    const opq_node *from = opq_node_at(c->p->graph, edge->producer), *to = opq_node_at(c->p->graph, edge->consumer);
    const opq_step *writer = &c->plan->steps[c->step_of[from->kernel]];
    const opq_step *user = &c->plan->steps[c->step_of[to->kernel]];
    const reader *r = &c->readers[made];
    int32_t storage = opq_planner_final(c->p, made);
    int64_t read = bytes_of(c, user, storage, false), written = bytes_of(c, writer, storage, true);
    bool others = r->caller || r->second >= 0 || (r->first >= 0 && r->first != to->kernel);
    bool in_place =
        opq_op_changes_operand((opq_op)to->op) && user->copy_from < 0 && storage_of(c->p, to->operand[0]) == made;
    if (in_place) {
        int64_t again = opq_op_changes_operand((opq_op)from->op) ? 0 : bytes_of(c, user, storage, true);
        written = again < written ? again : written;
    }
    return read + (others && !in_place ? 0 : written);
}

/* Where operand k of a node is, if the edge's producer made it: an extern call makes several values. -1 otherwise. */
static int32_t made_by(const coster *c, opq_ref producer, const opq_node *to, int k)
{
    const opq_graph *graph = c->p->graph;
    opq_ref base = opq_strip_reshape(graph, opq_lower_base(graph, c->p->group_of, to->operand[k]));
    const opq_node *node = opq_node_at(graph, base);
    bool is_result = node->op == OPQ_OP_extern_result && node->operand[0] == producer;
    return base == producer || is_result ? opq_planner_storage(c->p, base) : -1;
}

static int64_t cost(const coster *c, const opq_unfused_edge *edge)
{
    const opq_node *to = opq_node_at(c->p->graph, edge->consumer);
    int64_t bytes = 0;
    for (int k = 0; k < to->arity; k++) {
        int32_t storage = made_by(c, edge->producer, to, k);
        for (int i = 0; i < k && storage >= 0; i++)
            storage = made_by(c, edge->producer, to, i) == storage ? -1 : storage;
        bytes += storage >= 0 ? saved(c, edge, storage) : 0;
    }
    return bytes;
}

opq_status opq_plan_edges(opq_planner *p)
{
    opq_plan *plan = p->plan;
    coster c = {.p = p, .plan = plan};
    if (plan->unfused.count == 0)
        return OPQ_OK;
    c.step_of = opq_arena_alloc(&p->scratch, (size_t)plan->step_count * sizeof *c.step_of);
    c.readers = opq_arena_alloc(&p->scratch, (size_t)plan->storage_count * sizeof *c.readers);
    if (c.step_of == NULL || c.readers == NULL)
        return opq_plan_no_memory();
    for (int32_t s = 0; s < plan->step_count; s++)
        c.step_of[plan->steps[s].order] = s;
    for (int32_t i = 0; i < plan->storage_count; i++)
        c.readers[i] = (reader){-1, -1, false};
    find_readers(&c);
    for (int i = 0; i < plan->unfused.count; i++)
        plan->unfused.edges[i].saves = cost(&c, &plan->unfused.edges[i]);
    return OPQ_OK;
}
