/* A block kernel of the fused graph becomes one step of three parts: first product, rows, second product with its epilogue. */
#include "runtime/plan_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct parts {
    opq_planner *p;
    opq_ref begin, end, first, second, weights;
    int32_t kernel, rows; /* ids of groups: the second product's and the rows' */
    opq_block *block;
    opq_ref *stored;
    int stored_count;
} parts;

static bool is_inside(const parts *b, opq_ref n) { return n >= b->begin && n < b->end; }

/* What needs the second product is its epilogue, the rest but the first product are rows. */
static void split(parts *b)
{
    const opq_graph *graph = b->p->graph;
    int32_t *group_of = b->p->group_of;
    b->first = -1;
    for (opq_ref n = b->begin; n < b->end; n++)
        if (opq_node_class(opq_node_at(graph, n)) == OPQ_CLASS_MATMUL) {
            b->second = n;
            b->first = b->first < 0 ? n : b->first;
        }
    b->weights = opq_strip_reshape(graph, opq_node_at(graph, b->second)->operand[0]);
    for (opq_ref n = b->begin; n < b->end; n++) {
        if (group_of[n] != b->kernel || n == b->second)
            continue;
        const opq_node *node = opq_node_at(graph, n);
        bool later = false;
        for (int k = 0; k < node->arity; k++) {
            opq_ref base = opq_lower_base(graph, group_of, node->operand[k]);
            later = later || (is_inside(b, base) && base >= b->second && group_of[base] == b->kernel);
        }
        if (!later)
            group_of[n] = n == b->first ? b->rows + 1 : b->rows;
    }
}

static bool second_needs(const parts *b, opq_ref ref)
{
    const opq_graph *graph = b->p->graph;
    for (opq_ref n = b->second; n < b->end; n++)
        for (int k = 0; k < opq_node_at(graph, n)->arity && b->p->group_of[n] == b->kernel; k++)
            if (opq_lower_base(graph, b->p->group_of, opq_node_at(graph, n)->operand[k]) == ref)
                return true;
    return false;
}

/* Scores, weights and what the epilogue needs of the rows stay in cache, unless somebody outside wants them. */
static opq_status number_locals(parts *b)
{
    opq_planner *p = b->p;
    int32_t next = -2;
    for (opq_ref n = b->begin; n < b->end; n++) {
        if (p->group_of[n] != b->rows)
            continue;
        bool local = !p->stored[n] && second_needs(b, n);
        if (local && n != b->weights && b->block->local_count++ == OPQ_BLOCK_LOCAL_MAX)
            return opq_fail(OPQ_UNSUPPORTED, "plan: the rows of %s have too many results",
                            p->graph->kernels[b->kernel].name);
        if (local && n != b->weights)
            p->storage_of[n] = next--;
        if (local || p->stored[n])
            b->stored[b->stored_count++] = n;
    }
    p->storage_of[b->weights] = next--;
    p->storage_of[b->first] = next;
    return OPQ_OK;
}

static int buffer_of(const opq_step *step, int32_t id)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == id)
            return i;
    return -1;
}

/* Is nothing read of the scores behind the loop that stores the weights? Both are walked alike. */
static bool works_in_place(const opq_step *rows, int scores, int weights)
{
    const opq_loops *k = &rows->loops;
    int end = k->stmt_count, loop_end = 0;
    for (int i = 0; i < k->stmt_count; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (stmt->op == OPQ_STMT_loop && stmt->role != OPQ_LOOP_parallel)
            loop_end = stmt->end;
        if (stmt->op == OPQ_INSTR_store && k->accesses[stmt->access].buffer == weights)
            end = loop_end;
        if (i >= end && stmt->op == OPQ_INSTR_load && k->accesses[stmt->access].buffer == scores)
            return false;
    }
    return true;
}

/* Scores and weights are laid out so that rows do not fall into the same sets of a cache. */
static void spread_rows(const opq_block *block)
{
    const opq_step *rows = block->rows;
    int rank = rows->loops.rank;
    for (int a = 0; a < rows->loops.access_count; a++)
        for (int l = 0; l < rank - 1; l++)
            if (rows->loops.accesses[a].buffer == block->scores || rows->loops.accesses[a].buffer == block->weights) {
                int64_t *stride = &rows->dims[opq_dims_of(rank, a) + 1 + l];
                *stride = *stride / block->columns * block->row_stride;
            }
}

static opq_status bind_rows(parts *b)
{
    opq_planner *p = b->p;
    opq_block *block = b->block;
    opq_lowered lowered;
    OPQ_TRY(opq_planner_lower(p, b->kernel, b->rows, b->stored, b->stored_count, &lowered, block->rows));
    const opq_type *type = &opq_node_at(p->graph, b->weights)->type;
    block->columns = type->size[type->rank - 1];
    block->count = opq_type_count(type) / block->columns;
    block->scores = buffer_of(block->rows, p->storage_of[b->first]);
    block->weights = buffer_of(block->rows, p->storage_of[b->weights]);
    bool walks = block->scores >= 0 && block->weights >= 0 &&
                 opq_lowered_walks_rows(&lowered, b->first, block->columns) &&
                 opq_lowered_walks_rows(&lowered, b->weights, block->columns);
    for (int i = 0; i < b->stored_count; i++)
        walks = walks && (p->storage_of[b->stored[i]] >= 0 || b->stored[i] == b->weights ||
                          opq_lowered_walks_rows(&lowered, b->stored[i], 1));
    if (!walks)
        return opq_fail(OPQ_UNSUPPORTED, "plan: %s is not walked row by row", block->rows->name);
    block->in_place = works_in_place(block->rows, block->scores, block->weights);
    block->row_stride = block->columns % 16 == 0 ? block->columns + 16 : block->columns;
    spread_rows(block);
    block->causal = opq_block_is_causal(p->graph, b->begin, b->second, b->weights) ? type->size[type->rank - 2] : 0;
    return OPQ_OK;
}

/* What the block computes, as one tree: what is printed, and what runs where there is no code. */
static opq_status join(parts *b, opq_step *step)
{
    const opq_step *of[] = {b->block->first, b->block->rows, b->block->second};
    opq_bound bound[3], joined;
    opq_kept kept = {.ids = {b->p->storage_of[b->first], b->p->storage_of[b->weights]}, .count = OPQ_KEPT_ROWS};
    for (int i = 0; i < b->block->local_count; i++)
        kept.ids[kept.count++] = -2 - i;
    for (int i = 0; i < 3; i++)
        bound[i] = opq_step_bound(of[i]);
    OPQ_TRY(opq_loops_join(bound, &kept, &b->p->plan->arena, &joined));
    opq_step_bind(step, &joined);
    step->code = b->block->second->code;
    step->fresh = b->block->second->fresh;
    return opq_planner_check(b->p, step);
}

static opq_status build(parts *b, opq_step *step)
{
    opq_planner *p = b->p;
    opq_lowered lowered;
    OPQ_TRY(number_locals(b));
    OPQ_TRY(bind_rows(b));
    bool dry = p->dry;
    p->dry = true; /* its result stays as it is: no code */
    opq_status status = opq_planner_lower(p, b->kernel, b->rows + 1, &b->first, 1, &lowered, b->block->first);
    p->dry = dry;
    OPQ_TRY(status);
    b->stored_count = 0;
    for (opq_ref n = b->begin; n < b->end; n++)
        if (p->stored[n] && p->group_of[n] == b->kernel)
            b->stored[b->stored_count++] = n;
    if (b->stored_count == 0)
        return opq_fail(OPQ_INTERNAL, "plan: kernel %s stores nothing", step->name);
    OPQ_TRY(opq_planner_lower(p, b->kernel, b->kernel, b->stored, b->stored_count, &lowered, b->block->second));
    OPQ_TRY(join(b, step));
    return p->runtime->run_loops ? opq_loops_verify(&step->loops) : OPQ_OK;
}

opq_status opq_plan_block_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    parts b = {.p = p,
               .begin = group->first,
               .end = group->first + group->count,
               .kernel = kernel,
               .rows = p->graph->kernel_count};
    b.block = opq_arena_alloc(&p->plan->arena, sizeof *b.block + 3 * sizeof *b.block->rows);
    b.stored = malloc((size_t)group->count * sizeof *b.stored);
    if (b.block == NULL || b.stored == NULL) {
        free(b.stored);
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    }
    memset(b.block, 0, sizeof *b.block);
    b.block->rows = (opq_step *)(b.block + 1);
    b.block->first = b.block->rows + 1;
    b.block->second = b.block->rows + 2;
    *b.block->rows = *b.block->first = *b.block->second = (opq_step){.name = step->name, .copy_from = -1, .copy_to = -1};
    split(&b);
    opq_status status = build(&b, step);
    for (opq_ref n = b.begin; n < b.end; n++)
        if (p->group_of[n] >= p->graph->kernel_count)
            p->group_of[n] = kernel;
    free(b.stored);
    step->block = b.block;
    return status;
}
