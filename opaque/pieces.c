/* See pieces.h. */
#include "opaque/pieces.h"
#include "graph/recurrent.h"
#include "opaque/piece.h"
#include "runtime/plan_join.h"

#include <stdio.h>
#include <string.h>

typedef struct pieces {
    opq_whole whole;
    opq_tier_kind tier;
    opq_piece *first, **end;
    opq_buffer **made; /* per node */
} pieces;

bool opq_pieces_possible(const opq_snapshot *s)
{
    for (int i = 0; i < s->nodes.count; i++) {
        const opq_value *node = s->nodes.items[i];
        if (node->type.dtype == OPQ_f16 || node->type.dtype == OPQ_bf16)
            return false;
        if (node->op == OPQ_OP_extern_result && s->nodes.items[i - 1]->op != OPQ_OP_extern_result &&
            opq_code_number(s->operands.items[s->first_operand.items[i]]) != i - 1)
            return false;
    }
    return true;
}

/* ---- their plans */

/* Results of products and of what is no loop over elements are in memory with a plan, too. */
static bool is_stored_anyway(const opq_value *node)
{
    opq_class class_ = opq_op_info_of((opq_op)node->op)->class_;
    return class_ == OPQ_CLASS_MATMUL || class_ == OPQ_CLASS_ROUTINE || class_ == OPQ_CLASS_EXTERN ||
           opq_op_is_recurrent(node->op);
}

double opq_pieces_saving(const opq_snapshot *s)
{
    static const double LAUNCH = 1e-6, CACHED = 0.05e-9, UNCACHED = 0.2e-9; /* seconds; of a byte */
    enum { CACHE_BYTES = 1 << 20 };
    double seconds = 0;
    for (int i = 0; i < s->nodes.count; i++) {
        const opq_value *node = s->nodes.items[i];
        double bytes = is_stored_anyway(node) ? 0 : (double)opq_type_bytes(&node->type);
        if (!opq_costs_nothing(node))
            seconds += LAUNCH + bytes * (bytes > CACHE_BYTES ? UNCACHED : CACHED);
    }
    return seconds;
}

opq_tiers_graph opq_pieces_weighed(const opq_snapshot *s)
{
    return (opq_tiers_graph){s->key, s->key_bytes, opq_ops_to_plan(s), opq_pieces_saving(s), opq_snapshot_kind(s)};
}

static void append(pieces *p, opq_piece *made)
{
    *p->end = made;
    p->end = &made->next;
}

/* Op by op. */
static opq_status add_ops(pieces *p, int32_t first, int32_t end)
{
    for (int32_t i = first, stop; i < end; i = stop) {
        opq_piece *op;
        bool found;
        stop = i + 1;
        while (stop < end && (p->whole.inlined[stop] || opq_whole_follows(&p->whole, stop, i)))
            stop++;
        if (p->whole.inlined[i])
            continue;
        OPQ_TRY(opq_piece_make(&p->whole, i, stop, &op));
        if (op->snapshot.outputs.count == 0) /* who needs it has failed */
            continue;
        op->execution.one_op = true;
        OPQ_TRY(opq_execution_find(&op->execution, false, &found));
        if (!found)
            OPQ_TRY(opq_sizes_build(&p->whole.runner->ctx->sizes, &op->execution));
        append(p, op);
    }
    return OPQ_OK;
}

/* Is there a plan of the piece now? Where one of the whole graph is made, its pieces get none. */
static opq_status plan_piece(const pieces *p, opq_execution *piece, bool *out_planned)
{
    bool found;
    const opq_snapshot *s = piece->given;
    OPQ_TRY(opq_execution_find(piece, false, &found));
    *out_planned = found;
    opq_tiers *tiers = &p->whole.runner->ctx->tiers;
    bool weighed = tiers->mode == OPQ_TIERS_model && s->nodes.count == p->whole.s->nodes.count; /* it is the whole graph */
    if (found || weighed || p->tier == OPQ_TIER_background)
        return OPQ_OK;
    opq_tiers_graph graph = opq_pieces_weighed(s);
    opq_choice choice = opq_tiers_choose_piece(tiers, &graph);
    if (choice.tier == OPQ_TIER_pieces)
        return OPQ_OK;
    const opq_allowance *allowance = choice.limited ? &choice.allowance : NULL;
    bool taken = false;
    if (choice.tier == OPQ_TIER_background)
        OPQ_TRY(opq_execution_build_in_background(piece, &graph, allowance, &taken));
    if (taken)
        return OPQ_OK;
    piece->piece = true;
    piece->allowance = allowance;
    OPQ_TRY(opq_execution_build(piece));
    piece->allowance = NULL;
    *out_planned = piece->plan != NULL;
    return OPQ_OK;
}

static opq_status add_piece(pieces *p, int32_t first, int32_t end, int ops)
{
    opq_piece *made;
    bool planned;
    if (ops == 1 || p->whole.runner->ctx->tiers.mode == OPQ_TIERS_lazy)
        return add_ops(p, first, end);
    OPQ_TRY(opq_piece_make(&p->whole, first, end, &made));
    if (made->snapshot.outputs.count == 0)
        return OPQ_OK;
    opq_status status = plan_piece(p, &made->execution, &planned);
    if (status == OPQ_OK && planned) {
        append(p, made);
        return OPQ_OK;
    }
    opq_execution_drop(&made->execution);
    return status == OPQ_OK ? add_ops(p, first, end) : status;
}

static opq_status add_pieces(pieces *p)
{
    opq_cuts cuts;
    OPQ_TRY(opq_whole_cut(&p->whole, &cuts));
    for (int32_t i = 0, first = 0; i < cuts.count; first = cuts.end[i++])
        OPQ_TRY(add_piece(p, first, cuts.end[i], cuts.ops[i]));
    return OPQ_OK;
}

/* ---- running them */

/* False: something that it needs is not there. */
static bool find_memory(const pieces *p, opq_piece *it, opq_buffer **memory)
{
    for (int i = 0; i < it->snapshot.leaves.count; i++) {
        int32_t number = opq_code_number(it->leaf_from[i]);
        bool leaf = opq_code_set(it->leaf_from[i]) == OPQ_SET_leaf;
        memory[i] = leaf ? p->whole.s->leaves.items[number]->buffer : p->made[number];
        if (memory[i] == NULL)
            return false;
    }
    it->execution.memory = memory;
    return true;
}

static void release_used(const pieces *p, const opq_piece *it)
{
    for (int i = 0; i < it->snapshot.leaves.count; i++) {
        int32_t node = opq_code_number(it->leaf_from[i]);
        if (opq_code_set(it->leaf_from[i]) != OPQ_SET_node || p->whole.last_use[node] >= it->end ||
            p->whole.output[node] >= 0)
            continue;
        opq_buffer_release(p->made[node]);
        p->made[node] = NULL;
    }
}

/* What this one would replace may be memory of others: an earlier piece gave a leaf, or a part of it, as it is. */
static void keep_shared(const opq_piece *it, opq_buffer *const *memory)
{
    const opq_snapshot *s = &it->snapshot;
    for (int i = 0; i < s->replaces.count; i++) {
        int32_t leaf = s->replaces.items[i];
        const opq_buffer *buffer = leaf >= 0 ? memory[leaf] : NULL;
        if (buffer && (atomic_load(&buffer->refs) > 1 || buffer->size_class < 0 || atomic_load(&buffer->lent) ||
                       (int64_t)buffer->bytes != opq_type_bytes(&opq_snapshot_output(s, i)->type)))
            s->replaces.items[i] = -1;
    }
}

static opq_status run_piece(const pieces *p, opq_piece *it, bool *out_mixed)
{
    opq_buffer **memory = opq_room_take(p->whole.runner->room, (size_t)it->snapshot.leaves.count * sizeof *memory);
    if (memory == NULL)
        return opq_pieces_no_memory();
    if (!find_memory(p, it, memory))
        return OPQ_OK; /* what failed has said so */
    keep_shared(it, memory);
    opq_status status = opq_execution_run(&it->execution);
    *out_mixed = *out_mixed || (status != OPQ_OK && it->execution.mixed);
    for (int i = 0; i < it->snapshot.outputs.count && it->execution.results; i++)
        p->made[it->output_of[i]] = it->execution.results[i];
    release_used(p, it);
    return status;
}

/* From the last piece on that may fail, outputs may take the memory of what they replace: nothing is computed again then. */
static const opq_piece *last_to_fail(const pieces *p)
{
    const opq_piece *found = p->first;
    for (const opq_piece *it = p->first; it; it = it->next)
        if (it->execution.plan->sure_wave > 0)
            found = it;
    return found;
}

static opq_status run_all(const pieces *p, bool *out_mixed)
{
    opq_status first = OPQ_OK;
    char message[1024];
    bool in_place = false, replaced = false;
    const opq_piece *last = last_to_fail(p);
    for (opq_piece *it = p->first; it; it = it->next) {
        in_place = in_place || it == last;
        it->execution.in_place = in_place;
        opq_status status = run_piece(p, it, out_mixed);
        for (int i = 0; i < it->snapshot.replaces.count && in_place; i++)
            replaced = replaced || it->snapshot.replaces.items[i] >= 0;
        if (status == OPQ_OK || first != OPQ_OK)
            continue;
        first = status;
        snprintf(message, sizeof message, "%s", opq_error());
    }
    *out_mixed = *out_mixed && !replaced;
    return first == OPQ_OK ? OPQ_OK : opq_fail(first, "%s", message);
}

static void give_results(const pieces *p, opq_buffer **results)
{
    for (int i = 0; i < p->whole.s->nodes.count; i++)
        if (p->whole.output[i] >= 0)
            results[p->whole.output[i]] = p->made[i];
        else
            opq_buffer_release(p->made[i]);
}

/* ---- their plans as one */

/* Per node of the whole: which output of which piece it is. */
static opq_join_output *find_makers(const pieces *p, int *out_pieces)
{
    opq_join_output *makers = opq_whole_take(&p->whole, (size_t)p->whole.s->nodes.count, sizeof *makers);
    int32_t number = 0;
    for (const opq_piece *it = p->first; it && makers; it = it->next, number++)
        for (int32_t i = 0; i < it->snapshot.outputs.count; i++)
            makers[it->output_of[i]] = (opq_join_output){number, i};
    *out_pieces = number;
    return makers;
}

static opq_join_source source_of(const pieces *p, const opq_join_output *makers, const opq_piece *it, int leaf)
{
    const opq_snapshot *s = p->whole.s;
    int32_t code = it->leaf_from[leaf], number = opq_code_number(code);
    const opq_type *type = opq_snapshot_leaf_type(&it->snapshot, leaf);
    const opq_view *view = opq_snapshot_leaf_view(&it->snapshot, leaf);
    int64_t first = view ? view->first : 0;
    opq_join_source source = {.part = OPQ_JOIN_INPUTS, .number = number, .bytes = opq_type_bytes(type)};
    if (opq_code_set(code) == OPQ_SET_node) {
        source.part = makers[number].part;
        source.number = makers[number].number;
    } else if (opq_snapshot_leaf_view(s, number)) { /* the input begins there */
        first -= opq_snapshot_leaf_view(s, number)->first;
    }
    source.first = first * opq_dtype_bytes((opq_dtype)type->dtype);
    return source;
}

static bool add_parts(const pieces *p, const opq_join_output *makers, opq_join_part *parts)
{
    for (const opq_piece *it = p->first; it; it = it->next, parts++) {
        int leaves = it->snapshot.leaves.count;
        opq_join_source *inputs = opq_whole_take(&p->whole, (size_t)leaves, sizeof *inputs);
        if (inputs == NULL)
            return false;
        for (int i = 0; i < leaves; i++)
            inputs[i] = source_of(p, makers, it, i);
        *parts = (opq_join_part){it->execution.plan, inputs, it->scalar_from};
    }
    return true;
}

static opq_status join(const pieces *p, opq_plan **out_plan)
{
    const opq_snapshot *s = p->whole.s;
    int count, leaves = s->leaves.count, outputs = s->outputs.count;
    opq_join_output *makers = find_makers(p, &count), *made = opq_whole_take(&p->whole, (size_t)outputs, sizeof *made);
    opq_join_part *parts = opq_whole_take(&p->whole, (size_t)count, sizeof *parts);
    int64_t *bytes = opq_whole_take(&p->whole, (size_t)leaves, sizeof *bytes);
    if (!makers || !made || !parts || !bytes || !add_parts(p, makers, parts))
        return opq_pieces_no_memory();
    for (int i = 0; i < leaves; i++)
        bytes[i] = opq_type_bytes(opq_snapshot_leaf_type(s, i));
    for (int i = 0; i < outputs; i++)
        made[i] = makers[s->outputs.items[i]];
    opq_join all = {parts, count, bytes, leaves, made, outputs};
    return opq_plan_join(&p->whole.runner->ctx->runtime, &all, out_plan);
}

bool opq_pieces_run_joined(const opq_runner *runner, const opq_snapshot *snapshot, opq_plan *joined, opq_buffer **outputs)
{
    opq_execution all = {.runner = runner, .snapshot = snapshot, .plan = joined, .in_place = true};
    opq_status status = opq_execution_run(&all);
    atomic_fetch_add(&runner->ctx->stats.runs_joined, status == OPQ_OK);
    for (int i = 0; i < snapshot->outputs.count && all.results; i++)
        if (status == OPQ_OK)
            outputs[i] = all.results[i];
        else
            opq_buffer_release(all.results[i]);
    return status == OPQ_OK;
}

static bool join_and_run(const pieces *p, const opq_snapshot *snapshot, opq_pieces_result *result)
{
    if (join(p, &result->joined) == OPQ_OK)
        return opq_pieces_run_joined(p->whole.runner, snapshot, result->joined, result->outputs);
    result->joined = NULL;
    return false;
}

static opq_status run_made(pieces *p, const opq_snapshot *snapshot, opq_pieces_result *result)
{
    if (result->join && join_and_run(p, snapshot, result))
        return OPQ_OK;
    opq_status status = run_all(p, &result->mixed);
    give_results(p, result->outputs);
    return status;
}

opq_status opq_pieces_run(const opq_runner *runner, const opq_snapshot *snapshot, opq_tier_kind tier,
                          opq_pieces_result *result)
{
    pieces p = {.end = &p.first, .whole.s = snapshot, .tier = tier};
    size_t nodes = (size_t)snapshot->nodes.count;
    result->mixed = true;
    result->planned = false;
    result->joined = NULL;
    for (int i = 0; i < snapshot->outputs.count; i++)
        result->outputs[i] = NULL;
    p.made = opq_room_take(runner->room, nodes * sizeof *p.made);
    if (p.made == NULL)
        return opq_pieces_no_memory();
    memset(p.made, 0, nodes * sizeof *p.made);
    opq_status status = opq_execution_check_leaves(snapshot);
    if (status == OPQ_OK)
        status = opq_whole_make(runner, snapshot, &p.whole);
    if (status == OPQ_OK)
        status = add_pieces(&p);
    if (status == OPQ_OK) {
        result->mixed = false;
        result->planned = true;
        status = run_made(&p, snapshot, result);
    }
    for (const opq_piece *it = p.first; it; it = it->next)
        opq_execution_drop(&it->execution);
    return status;
}
