/* One kernel of the fused graph becomes one step: lowered, compiled, its arguments bound to storage. */
#include "runtime/plan_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- what reports say about a step */

/* What the nodes of a kernel take from memory. */
static opq_status describe_taken(opq_planner *p, const opq_kernel_group *group, opq_step *step)
{
    int most = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        most += opq_node_at(p->graph, n)->arity;
    opq_taken *taken = opq_arena_alloc(&p->plan->arena, ((size_t)most + 1) * sizeof *taken);
    if (taken == NULL)
        return opq_plan_no_memory();
    step->taken = taken;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        for (int k = 0; k < opq_node_at(p->graph, n)->arity; k++) {
            opq_ref operand = opq_node_at(p->graph, n)->operand[k];
            int32_t storage =
                opq_node_at(p->graph, operand)->kernel == step->order ? -1 : opq_planner_storage(p, operand);
            if (storage >= 0)
                taken[step->taken_count++] = (opq_taken){operand, storage};
        }
    return OPQ_OK;
}

static bool may_fail(const opq_node *node)
{
    return (opq_node_info(node)->flags & OPQ_FLAG_CHECKED) &&
           (opq_node_class(node) != OPQ_CLASS_EWISE || opq_node_divides(node));
}

static opq_status describe_checks(opq_planner *p, const opq_kernel_group *group, opq_step *step)
{
    int32_t count = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        count += may_fail(opq_node_at(p->graph, n));
    if (count == 0)
        return OPQ_OK;
    opq_check *checks = opq_arena_alloc(&p->plan->arena, (size_t)count * sizeof *checks);
    if (checks == NULL)
        return opq_plan_no_memory();
    step->checks = checks;
    for (opq_ref n = group->first; n < group->first + group->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        bool divides = opq_node_divides(node);
        if (!may_fail(node))
            continue;
        const opq_attr *key = opq_node_attr(node, OPQ_ATTR_key);
        const char *says = divides && key ? strstr(key->str, ": ") : NULL;
        opq_text text = {0};
        opq_index_subject(&text, node);
        opq_check *check = &checks[step->check_count++];
        check->says = says ? opq_arena_text(&p->plan->arena, says + 2) : NULL;
        check->node = n;
        check->divides = divides;
        check->text = text.failed ? NULL : opq_arena_text(&p->plan->arena, text.data);
        check->words = opq_index_words_of(node, &opq_node_at(p->graph, node->operand[0])->type);
        opq_text_drop(&text);
        if (check->text == NULL || (says && check->says == NULL))
            return opq_plan_no_memory();
    }
    return describe_taken(p, group, step);
}

static opq_status describe(opq_planner *p, const opq_kernel_group *group, opq_step *step)
{
    opq_text lines = {0};
    const char *seen[16];
    int seen_count = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        /* a window has elements many times, and places are not what is computed */
        bool seen_through =
            !p->stored[n] && (opq_node_class(node) == OPQ_CLASS_VIEW || opq_node_class(node) == OPQ_CLASS_IOTA);
        if (!seen_through && (!step->largest || opq_type_count(&node->type) > opq_type_count(step->largest)))
            step->largest = &node->type;
        bool known = node->line == NULL || seen_count == 16;
        for (int i = 0; i < seen_count && !known; i++)
            known = strcmp(seen[i], node->line) == 0;
        if (!known) {
            seen[seen_count++] = node->line;
            opq_text_add(&lines, "%s%s", lines.length ? " " : "", node->line);
        }
    }
    step->name = group->name;
    step->lines = lines.data ? opq_arena_text(&p->plan->arena, lines.data) : "";
    bool failed = lines.failed || !step->lines;
    opq_text_drop(&lines);
    return failed ? opq_plan_no_memory() : describe_checks(p, group, step);
}

/* What cannot be counted will not be stored either: the plan's storage refuses it. */
static int64_t add_bytes(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

/* Distinct bytes an access walks: the turns of the loops that move it. */
static int64_t access_bytes(const opq_step *step, int access)
{
    const opq_access *a = &step->loops.accesses[access];
    int64_t bytes = opq_dtype_bytes((opq_dtype)a->dtype);
    for (int l = 0; l < step->loops.rank; l++)
        if (__builtin_mul_overflow(bytes, a->stride[l] == OPQ_STRIDE_zero ? 1 : step->dims[l], &bytes))
            return INT64_MAX;
    return bytes;
}

int64_t opq_step_buffer_bytes(const opq_plan *plan, const opq_step *step, int buffer)
{
    const opq_loops *k = &step->loops;
    int64_t bytes = 0, limit = plan->storage[step->buffers[buffer]].bytes;
    for (int a = 0; a < k->access_count; a++)
        if (k->accesses[a].buffer == buffer)
            bytes = add_bytes(bytes, access_bytes(step, a));
    return bytes > limit ? limit : bytes;
}

static void count_bytes(const opq_planner *p, opq_step *step)
{
    const opq_loops *k = &step->loops;
    for (int b = 0; b < k->buffer_count; b++)
        if (step->buffers[b] >= 0 && k->written[b] != OPQ_BUFFER_own) /* what stays in cache is not moved */
        {
            int64_t *count = k->written[b] ? &step->bytes_written : &step->bytes_read;
            *count = add_bytes(*count, opq_step_buffer_bytes(p->plan, step, b));
        }
}

/* Does it count the blocks of loops in it? */
static bool has_loops_within(const opq_loops *k, int loop)
{
    for (int i = loop + 1; i < k->stmts[loop].end; i++)
        if (k->stmts[i].op == OPQ_STMT_loop && k->stmts[i].within == k->stmts[loop].variable + 1)
            return true;
    return false;
}

/* Each op once for each turn of the loops around it: those of all blocks together are the loop's own. */
static int64_t count_flops(const opq_step *step, int from, int to)
{
    int64_t flops = 0;
    for (int i = from; i < to; i++) {
        const opq_stmt *stmt = &step->loops.stmts[i];
        if (stmt->op == OPQ_STMT_loop) {
            int64_t turns = has_loops_within(&step->loops, i) ? 1 : step->dims[stmt->variable];
            flops += turns * count_flops(step, i + 1, stmt->end);
            i = stmt->end - 1;
        }
        bool computes = stmt->op < OPQ_OP_COUNT && stmt->operand[0] >= 0 && stmt->dtype != OPQ_bool;
        flops += computes ? 1 + opq_op_contracts(stmt->op) : 0;
    }
    return flops;
}

/* ---- matmul */

/* Batch loops, innermost first, that both operands walk as one go to the engine as its batch; the rest are loops of calls. */
static void split_batch(opq_matmul_step *matmul)
{
    const opq_contract *c = &matmul->contract;
    int b = c->batch_rank - 1;
    matmul->batch = 1;
    for (; b >= 0; b--) {
        bool first = matmul->batch == 1, as_one = true;
        for (int o = 0; o < 2; o++) {
            if (first)
                matmul->matrix[o].batch_stride = c->operand[o].batch_stride[b];
            as_one = as_one && c->operand[o].batch_stride[b] == matmul->matrix[o].batch_stride * matmul->batch;
        }
        if (!first && !as_one)
            break;
        matmul->batch *= c->batch_extent[b];
    }
    for (int outer = 0; outer <= b; outer++) {
        matmul->outer_extent[outer] = c->batch_extent[outer];
        for (int o = 0; o < 2; o++)
            matmul->outer_stride[o][outer] = c->operand[o].batch_stride[outer];
    }
    matmul->outer_rank = b + 1;
}

/* alone: it is no part of a step, whose parts have operands in common. */
static opq_status bind_matmul(opq_planner *p, bool alone, opq_step *step)
{
    opq_matmul_step *matmul = opq_arena_alloc(&p->plan->arena, sizeof *matmul);
    if (matmul == NULL)
        return opq_plan_no_memory();
    memset(matmul, 0, sizeof *matmul);
    step->matmul = matmul;
    OPQ_TRY(opq_loops_contract(&step->loops, step->dims, alone, &p->plan->arena, &matmul->contract));
    for (int o = 0; o < 2; o++)
        matmul->matrix[o] = (opq_matrix){.row_stride = matmul->contract.operand[o].row_stride,
                                         .column_stride = matmul->contract.operand[o].column_stride,
                                         .dtype = matmul->contract.operand[o].dtype,
                                         .rows = matmul->contract.operand[o].rows,
                                         .columns = matmul->contract.operand[o].columns,
                                         .padded = matmul->contract.operand[o].padded};
    matmul->dtype = (opq_dtype)step->loops.stmts[matmul->contract.product].dtype;
    split_batch(matmul);
    return OPQ_OK;
}

/* ---- kernels and calls */

opq_status opq_planner_own(opq_planner *p, opq_step *step)
{
    const opq_loops *k = &step->loops;
    for (int b = 0; b < k->buffer_count; b++) {
        int64_t bytes = 0;
        for (int a = 0; a < k->access_count; a++)
            if (k->accesses[a].buffer == b)
                bytes = access_bytes(step, a);
        if (k->written[b] == OPQ_BUFFER_own)
            OPQ_TRY(opq_planner_add_storage(p, bytes, &step->buffers[b]));
    }
    return OPQ_OK;
}

static opq_status bind_arguments(opq_planner *p, const opq_lowered *lowered, opq_step *step)
{
    opq_arena *arena = &p->plan->arena;
    step->buffers = opq_arena_alloc(arena, ((size_t)step->loops.buffer_count + 1) * sizeof *step->buffers);
    step->scalars = opq_arena_alloc(arena, ((size_t)step->loops.scalar_count + 1) * sizeof *step->scalars);
    if (step->buffers == NULL || step->scalars == NULL)
        return opq_plan_no_memory();
    for (int i = 0; i < step->loops.buffer_count; i++) {
        if (step->loops.written[i] == OPQ_BUFFER_own)
            continue;
        step->buffers[i] = opq_planner_storage(p, lowered->buffers[i]);
        if (step->buffers[i] == -1)
            return opq_fail(OPQ_INTERNAL, "plan: %%%d is read from memory but never stored", lowered->buffers[i]);
    }
    for (int i = 0; i < step->loops.scalar_count; i++)
        step->scalars[i] = p->slot_of[lowered->scalars[i]];
    return opq_planner_own(p, step);
}

opq_status opq_step_verify_bounds(const opq_plan *plan, const opq_step *step)
{
    int64_t bytes[OPQ_BUFFER_MAX];
    for (int i = 0; i < step->loops.buffer_count; i++) /* rows that stay in cache are none of the plan's */
        bytes[i] = step->buffers[i] >= 0 ? plan->storage[step->buffers[i]].bytes : INT64_MAX;
    return opq_loops_verify_bounds(&step->loops, step->dims, bytes);
}

opq_status opq_planner_check(const opq_planner *p, opq_step *step)
{
    count_bytes(p, step);
    step->flops += count_flops(step, 0, step->loops.stmt_count);
    return opq_step_verify_bounds(p->plan, step);
}

void opq_step_measure(opq_step *step)
{
    const opq_loops *loops = opq_step_code_loops(step);
    const int64_t *dims = step->matmul ? step->matmul->contract.dims : step->dims;
    step->phases = step->matmul ? 0 : opq_loops_phases(loops, dims, step->units);
    step->scratch = opq_loops_scratch(loops, dims);
}

opq_status opq_planner_lower(opq_planner *p, int32_t kernel, int32_t group, opq_lowered *out_lowered, opq_step *step)
{
    const opq_kernel_group *nodes = &p->graph->kernels[kernel];
    opq_ref *members = opq_arena_alloc(&p->scratch, 2 * (size_t)nodes->count * sizeof *members);
    if (members == NULL)
        return opq_plan_no_memory();
    opq_ref *stored = members + nodes->count;
    opq_lower_request request = {.graph = p->graph,
                                 .group_of = p->group_of,
                                 .group = group,
                                 .members = members,
                                 .stored = stored,
                                 .by_row = nodes->kind == OPQ_KERNEL_block};
    for (opq_ref n = nodes->first; n < nodes->first + nodes->count; n++) {
        if (p->group_of[n] != group)
            continue;
        members[request.member_count++] = n;
        if (p->stored[n] || p->storage_of[n] < -1)
            stored[request.stored_count++] = n;
    }
    if (request.stored_count == 0)
        return opq_fail(OPQ_INTERNAL, "plan: kernel %s stores nothing", step->name);
    OPQ_TRY(opq_lower(&request, &p->plan->arena, out_lowered));
    /* Maybe it was grouped before somebody wanted to read an iota from memory. */
    if (out_lowered->refusal != OPQ_REFUSAL_none) {
        request.counts = true;
        OPQ_TRY(opq_lower(&request, &p->plan->arena, out_lowered));
    }
    if (out_lowered->refusal != OPQ_REFUSAL_none)
        return opq_fail(OPQ_UNSUPPORTED, "plan: kernel %s does not lower: %s", step->name,
                        opq_refusal_text(out_lowered->refusal));
    step->loops = out_lowered->loops;
    step->loops.name = step->name;
    step->dims = out_lowered->dims;
    OPQ_TRY(bind_arguments(p, out_lowered, step));
    OPQ_TRY(opq_planner_check(p, step));
    if (out_lowered->matmul >= 0 && !out_lowered->direct)
        OPQ_TRY(bind_matmul(p, group == kernel, step));
    opq_step_measure(step);
    if (p->dry)
        return OPQ_OK;
    return p->runtime->run_loops ? opq_loops_verify(&step->loops) : opq_planner_want_code(p, step);
}

static opq_status kernel_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    opq_ref n = group->first;
    opq_lowered lowered;
    OPQ_TRY(opq_planner_lower(p, kernel, kernel, &lowered, step));
    while (!p->stored[n])
        n++;
    const opq_node *node = opq_node_at(p->graph, n);
    if (opq_op_changes_operand((opq_op)node->op)) {
        step->copy_from = opq_planner_storage(p, node->operand[0]);
        step->copy_to = step->copy_from < 0 ? -1 : p->storage_of[n];
    }
    return OPQ_OK;
}

static opq_status bind_operands(opq_planner *p, const opq_node *call, int result_count, opq_step *step)
{
    step->operand_count = call->arity;
    step->result_count = result_count;
    step->operands = opq_arena_alloc(&p->plan->arena, ((size_t)call->arity + 1) * sizeof *step->operands);
    step->results = opq_arena_alloc(&p->plan->arena, ((size_t)result_count + 1) * sizeof *step->results);
    if (step->operands == NULL || step->results == NULL)
        return opq_plan_no_memory();
    for (int k = 0; k < call->arity; k++) {
        step->operands[k] = opq_planner_storage(p, call->operand[k]);
        if (step->operands[k] < 0)
            return opq_fail(OPQ_INTERNAL, "plan: operand %d of %s is not in memory", k, step->name);
        step->bytes_read += p->plan->storage[step->operands[k]].bytes;
    }
    return OPQ_OK;
}

static int64_t routine_flops(const opq_graph *graph, const opq_node *node)
{
    const opq_type *a = &opq_node_at(graph, node->operand[0])->type;
    return node->op == OPQ_OP_grouped_matmul ? 2 * opq_type_count(a) * node->type.size[node->type.rank - 1] : 0;
}

static opq_status routine_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    opq_ref n = p->graph->kernels[kernel].first;
    while (opq_node_class(opq_node_at(p->graph, n)) != OPQ_CLASS_ROUTINE)
        n++;
    step->routine = opq_node_at(p->graph, n);
    step->graph = p->graph;
    OPQ_TRY(bind_operands(p, step->routine, 1, step));
    step->results[0] = p->storage_of[n];
    step->bytes_written = p->plan->storage[step->results[0]].bytes;
    if (opq_op_changes_operand((opq_op)step->routine->op)) {
        step->copy_from = step->operands[0];
        step->copy_to = step->results[0];
        step->bytes_read -= p->plan->storage[step->copy_from].bytes; /* counted where it is a copy */
        step->bytes_written = p->plan->storage[step->operands[2]].bytes;
    }
    step->flops = routine_flops(p->graph, step->routine);
    return OPQ_OK;
}

static opq_status extern_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    const opq_host *host = p->runtime->host;
    const opq_node *call = opq_node_at(p->graph, group->first);
    for (opq_ref n = group->first; call->op != OPQ_OP_extern && n < group->first + group->count; n++)
        call = opq_node_at(p->graph, n);
    if (!p->dry && (host == NULL || host->call_extern == NULL || call->payload == NULL))
        return opq_fail(OPQ_UNSUPPORTED, "extern: nobody here can call %s",
                        opq_node_attr(call, OPQ_ATTR_key) ? opq_node_attr(call, OPQ_ATTR_key)->str : "it");
    int64_t result_count = opq_node_int(call, OPQ_ATTR_result, group->count);
    if (result_count < 0 || result_count > INT16_MAX)
        return opq_fail(OPQ_INVALID, "extern: a call with %lld results", (long long)result_count);
    OPQ_TRY(bind_operands(p, call, (int)result_count, step));
    for (int i = 0; i < step->result_count; i++)
        step->results[i] = -1; /* nobody needs it */
    for (opq_ref n = group->first; n < group->first + group->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        if (node->op != OPQ_OP_extern_result)
            continue;
        int64_t result = opq_node_int(node, OPQ_ATTR_result, 0);
        if (result < 0 || result >= result_count)
            return opq_fail(OPQ_INTERNAL, "plan: %s has no result %lld", group->name, (long long)result);
        step->results[result] = p->storage_of[n];
        step->bytes_written += p->plan->storage[p->storage_of[n]].bytes;
    }
    step->payload = p->dry ? NULL : call->payload;
    if (step->payload && host->retain_payload)
        host->retain_payload(host->self, step->payload);
    return OPQ_OK;
}

/* Those without elements are none: they join with anything. */
static int product_count(const opq_planner *p, const opq_kernel_group *group)
{
    int count = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++) {
        const opq_node *node = opq_node_at(p->graph, n);
        count += opq_node_class(node) == OPQ_CLASS_MATMUL && opq_type_count(&node->type) > 0;
    }
    return count;
}

opq_status opq_plan_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    memset(step, 0, sizeof *step);
    step->kind = group->kind;
    step->order = kernel;
    step->copy_from = step->copy_to = -1;
    OPQ_TRY(describe(p, group, step));
    switch (group->kind) {
    case OPQ_KERNEL_extern: return extern_step(p, kernel, step);
    case OPQ_KERNEL_routine: return routine_step(p, kernel, step);
    case OPQ_KERNEL_block: return opq_plan_parts_step(p, kernel, step);
    case OPQ_KERNEL_matmul:
        return product_count(p, group) > 1 ? opq_plan_parts_step(p, kernel, step) : kernel_step(p, kernel, step);
    default: return kernel_step(p, kernel, step);
    }
}
