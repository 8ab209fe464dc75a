/* The reference evaluator: every node on its own, in record order, by the plainest loop that does it. The oracle for whatever
 * runs graphs faster, so what it does is the definition, bit for bit.
 *
 * First composite rows are expanded into a copy of the graph, without the nodes that no output reaches: an index out of range
 * in one of those is no error. The expansion of f16 and bf16 rows is evaluated in f32 and rounded once, as a kernel that keeps
 * its intermediate values in registers does (and as PyTorch does): a count or a sum of squares may be too large for f16.
 *
 * Kernels of a fused graph are ignored. Nothing is tuned; a value is freed after its last use.
 */
#include "graph/eval.h"

#include <stdlib.h>
#include <string.h>

/* ---- the expanded copy */

/* For `node`. */
static opq_status cast_to(opq_graph *graph, opq_dtype dtype, const opq_node *node, opq_ref *ref)
{
    opq_node cast = {
        .op = OPQ_OP_cast, .arity = 1, .kernel = -1, .operand = ref, .line = node->line, .provenance = node->provenance};
    cast.type = opq_node_at(graph, *ref)->type;
    cast.type.dtype = (uint8_t)dtype;
    return opq_graph_append(graph, &cast, ref);
}

/* `operands` is the caller's scratch and is overwritten. */
opq_status opq_expand_wide(opq_graph *out, const opq_node *node, opq_ref *operands, opq_ref *out_ref)
{
    opq_node wide = *node;
    for (int k = 0; k < node->arity; k++)
        if (opq_dtype_is_half((opq_dtype)opq_node_at(out, operands[k])->type.dtype))
            OPQ_TRY(cast_to(out, OPQ_f32, node, &operands[k]));
    if (opq_dtype_is_half((opq_dtype)node->type.dtype))
        wide.type.dtype = OPQ_f32;
    OPQ_TRY(opq_expand_node(out, &wide, operands, out_ref));
    if (wide.type.dtype != node->type.dtype)
        OPQ_TRY(cast_to(out, (opq_dtype)node->type.dtype, node, out_ref));
    return OPQ_OK;
}

static void mark_live(const opq_graph *graph, bool *live)
{
    for (int i = 0; i < graph->output_count; i++)
        live[graph->outputs[i]] = true;
    for (opq_ref n = graph->count - 1; n >= 0; n--) {
        const opq_node *node = opq_node_at(graph, n);
        for (int k = 0; live[n] && k < node->arity; k++)
            live[node->operand[k]] = true;
        live[n] = live[n] || opq_node_class(node) == OPQ_CLASS_INPUT;
    }
}

/* `live` and `renamed` have an entry for each node of `in`, `operands` one for each operand of its widest node. */
static opq_status expand_into(opq_graph *out, const opq_graph *in, const bool *live, opq_ref *renamed, opq_ref *operands)
{
    for (opq_ref n = 0; n < in->count; n++) {
        const opq_node *node = opq_node_at(in, n);
        if (!live[n])
            continue;
        if (opq_node_class(node) == OPQ_CLASS_EXTERN)
            return opq_fail(OPQ_UNSUPPORTED, "%s: the reference evaluator has no host to call",
                            opq_node_info(node)->name);
        if (!opq_node_is_composite(node)) {
            OPQ_TRY(opq_graph_copy_node(out, in, n, renamed, &renamed[n]));
            continue;
        }
        for (int k = 0; k < node->arity; k++)
            operands[k] = renamed[node->operand[k]];
        OPQ_TRY(opq_expand_wide(out, node, operands, &renamed[n]));
    }
    for (int i = 0; i < in->output_count; i++)
        OPQ_TRY(opq_graph_output(out, renamed[in->outputs[i]]));
    return OPQ_OK;
}

static opq_status no_memory(void) { return opq_fail(OPQ_NO_MEMORY, "eval: out of memory"); }

static int widest(const opq_graph *graph)
{
    int arity = 1;
    for (opq_ref n = 0; n < graph->count; n++)
        arity = opq_node_at(graph, n)->arity > arity ? opq_node_at(graph, n)->arity : arity;
    return arity;
}

static opq_status expanded_copy(const opq_graph *in, opq_graph *out)
{
    size_t count = (size_t)in->count + 1;
    bool *live = calloc(count, sizeof *live);
    opq_ref *renamed = calloc(count, sizeof *renamed), *operands = calloc((size_t)widest(in), sizeof *operands);
    opq_status status = live && renamed && operands ? OPQ_OK : no_memory();
    if (status == OPQ_OK) {
        mark_live(in, live);
        status = expand_into(out, in, live, renamed, operands);
    }
    free(live);
    free(renamed);
    free(operands);
    return status;
}

/* ---- one node */

static opq_status eval_constant(const opq_node *node, void *out)
{
    const opq_attr *value = opq_node_attr(node, OPQ_ATTR_value);
    opq_dtype dtype = (opq_dtype)node->type.dtype;
    if (node->op == OPQ_OP_undefined) {
        memset(out, 0, (size_t)opq_type_bytes(&node->type));
        return OPQ_OK;
    }
    if (value == NULL)
        return opq_fail(OPQ_INTERNAL, "%s: no value", opq_node_info(node)->name);
    bool widen = value->is_int && opq_eval_is_float(dtype);
    opq_eval_store(dtype, out, 0, widen ? opq_eval_cast(OPQ_i64, dtype, value->number) : value->number);
    return OPQ_OK;
}

static opq_status eval_iota(const opq_node *node, void *out)
{
    int64_t count = opq_type_count(&node->type), axis = opq_node_int(node, OPQ_ATTR_axis, 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX] = {0};
        opq_eval_coords(&node->type, i, coords);
        opq_number index = {.i = coords[axis]};
        opq_eval_store((opq_dtype)node->type.dtype, out, i, opq_eval_cast(OPQ_i64, (opq_dtype)node->type.dtype, index));
    }
    return OPQ_OK;
}

static opq_status eval_cast(const opq_node *node, const opq_eval_value *x, void *out)
{
    opq_dtype from = (opq_dtype)x->type->dtype, to = (opq_dtype)node->type.dtype;
    int64_t count = opq_type_count(&node->type), bytes = opq_type_bytes(&node->type);
    if (from == to) {
        if (bytes > 0)
            memcpy(out, x->data, (size_t)bytes);
        return OPQ_OK;
    }
    if (opq_dtype_kind_of(from) == OPQ_KIND_RAW || opq_dtype_kind_of(to) == OPQ_KIND_RAW)
        return opq_fail(OPQ_INVALID, "cast: %s to %s", opq_dtype_name(from), opq_dtype_name(to));
    for (int64_t i = 0; i < count; i++)
        opq_eval_store(to, out, i, opq_eval_cast(from, to, opq_eval_load(from, x->data, i)));
    return OPQ_OK;
}

static opq_status eval_node(const opq_node *node, const opq_eval_value *x, void *out)
{
    switch (opq_node_class(node)) {
    case OPQ_CLASS_CONST:
    case OPQ_CLASS_SCALAR: return eval_constant(node, out);
    case OPQ_CLASS_IOTA: return eval_iota(node, out);
    case OPQ_CLASS_RANDOM: return opq_eval_random(node, x, out);
    case OPQ_CLASS_EWISE: return opq_eval_ewise(node, x, out);
    case OPQ_CLASS_CAST: return eval_cast(node, x, out);
    case OPQ_CLASS_VIEW: return opq_eval_view(node, x, out);
    case OPQ_CLASS_UPDATE: return opq_eval_update(node, x, out);
    case OPQ_CLASS_REDUCE: return opq_eval_reduce(node, x, out);
    case OPQ_CLASS_SCAN: return opq_eval_scan(node, x, out);
    case OPQ_CLASS_CONCAT: return opq_eval_concat(node, x, out);
    case OPQ_CLASS_INDEX: return opq_eval_select(node, x, out);
    case OPQ_CLASS_SCATTER: return opq_eval_scatter(node, x, out);
    case OPQ_CLASS_MATMUL: return opq_eval_matmul(node, x, out);
    case OPQ_CLASS_ROUTINE: return opq_eval_routine(node, x, out);
    case OPQ_CLASS_INPUT:
    case OPQ_CLASS_COMPOSITE:
    case OPQ_CLASS_EXTERN:
    case OPQ_CLASS_COUNT: break;
    }
    return opq_fail(OPQ_INTERNAL, "%s: not expanded", opq_node_info(node)->name);
}

/* ---- all of them */

typedef struct machine {
    const opq_graph *graph;
    const void **data;        /* by node; NULL before it is computed and after its last use */
    void **owned;             /* by node; NULL for inputs */
    opq_ref *last_use;        /* by node; the graph's count for outputs */
    opq_eval_value *operands; /* of the node being computed */
} machine;

static void find_last_uses(machine *m)
{
    for (opq_ref n = 0; n < m->graph->count; n++)
        for (int k = 0; k < opq_node_at(m->graph, n)->arity; k++)
            m->last_use[opq_node_at(m->graph, n)->operand[k]] = n;
    for (int i = 0; i < m->graph->output_count; i++)
        m->last_use[m->graph->outputs[i]] = m->graph->count;
}

static void release_dead(machine *m, opq_ref n)
{
    const opq_node *node = opq_node_at(m->graph, n);
    for (int k = 0; k < node->arity; k++)
        if (m->last_use[node->operand[k]] == n) {
            free(m->owned[node->operand[k]]);
            m->owned[node->operand[k]] = NULL;
        }
}

static opq_status run(machine *m, const void *const *inputs, void *const *outputs)
{
    int input = 0;
    find_last_uses(m);
    for (opq_ref n = 0; n < m->graph->count; n++) {
        const opq_node *node = opq_node_at(m->graph, n);
        if (opq_node_class(node) == OPQ_CLASS_INPUT) {
            m->data[n] = inputs[input++];
            continue;
        }
        for (int k = 0; k < node->arity; k++)
            m->operands[k] = (opq_eval_value){&opq_node_at(m->graph, node->operand[k])->type, m->data[node->operand[k]]};
        m->data[n] = m->owned[n] = malloc((size_t)opq_type_bytes(&node->type) + 1);
        if (m->owned[n] == NULL)
            return no_memory();
        OPQ_TRY(eval_node(node, m->operands, m->owned[n]));
        release_dead(m, n);
    }
    for (int i = 0; i < m->graph->output_count; i++) {
        int64_t bytes = opq_type_bytes(&opq_node_at(m->graph, m->graph->outputs[i])->type);
        if (bytes > 0)
            memcpy(outputs[i], m->data[m->graph->outputs[i]], (size_t)bytes);
    }
    return OPQ_OK;
}

static opq_status eval_expanded(const opq_graph *graph, const void *const *inputs, void *const *outputs)
{
    size_t count = (size_t)graph->count + 1;
    machine m = {.graph = graph,
                 .data = calloc(count, sizeof *m.data),
                 .owned = calloc(count, sizeof *m.owned),
                 .last_use = calloc(count, sizeof *m.last_use),
                 .operands = calloc((size_t)widest(graph), sizeof *m.operands)};
    opq_status status = m.data && m.owned && m.last_use && m.operands ? run(&m, inputs, outputs) : no_memory();
    for (opq_ref n = 0; m.owned && n < graph->count; n++)
        free(m.owned[n]);
    free(m.data);
    free(m.owned);
    free(m.last_use);
    free(m.operands);
    return status;
}

opq_status opq_graph_eval(const opq_graph *graph, const void *const *inputs, void *const *outputs)
{
    opq_graph *expanded;
    OPQ_TRY(opq_graph_create(graph->name, &expanded));
    opq_status status = expanded_copy(graph, expanded);
    if (status == OPQ_OK)
        status = eval_expanded(expanded, inputs, outputs);
    opq_graph_destroy(expanded);
    return status;
}
