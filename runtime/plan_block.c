/* A block kernel of the fused graph becomes one step of its parts: rows, first products, second products with their epilogues. */
#include "runtime/plan_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct builder {
    opq_planner *p;
    int32_t kernel, rows; /* ids of groups: of the kernel, and of part 0 while they are lowered */
    opq_ref *members;     /* ascending */
    int member_count;
    opq_block_parts parts;
    opq_ref matrix[OPQ_BLOCK_MATRIX_MAX];
    opq_block *block;
    opq_step *step;
    opq_ref *stored, *own; /* room for a part's stored nodes, and its members */
} builder;

static int part_of(const builder *b, opq_ref n) { return b->p->group_of[n] - b->rows; }

/* Does a second product or its epilogue need it? */
static bool second_needs(const builder *b, opq_ref ref)
{
    for (int i = 0; i < b->member_count; i++) {
        const opq_node *node = opq_node_at(b->p->graph, b->members[i]);
        for (int k = 0; k < node->arity && part_of(b, b->members[i]) > b->parts.first_count; k++)
            if (opq_lower_base(b->p->graph, b->p->group_of, node->operand[k]) == ref)
                return true;
    }
    return false;
}

static int find_matrix(const builder *b, opq_ref ref)
{
    for (int m = 0; m < b->block->matrix_count; m++)
        if (b->matrix[m] == ref)
            return m;
    return -1;
}

/* Matrices and what the epilogues need of the rows stay in cache, unless somebody outside wants them. */
static opq_status number_locals(builder *b)
{
    opq_planner *p = b->p;
    int32_t next = -2;
    for (int i = 0; i < b->member_count; i++) {
        opq_ref n = b->members[i];
        if (part_of(b, n) != 0 || p->stored[n] || find_matrix(b, n) >= 0 || !second_needs(b, n))
            continue;
        if (b->block->local_count++ == OPQ_KEPT_MAX - b->block->matrix_count)
            return opq_fail(OPQ_UNSUPPORTED, "plan: the rows of %s have too many results", b->step->name);
        p->storage_of[n] = next--;
    }
    for (int m = 0; m < b->block->matrix_count; m++)
        p->storage_of[b->matrix[m]] = next--;
    return OPQ_OK;
}

/* What the part leaves in memory, or in cache for others. */
static int find_stored(const builder *b, int part)
{
    int count = 0;
    for (int i = 0; i < b->member_count; i++) {
        opq_ref n = b->members[i];
        if (part_of(b, n) == part && (b->p->stored[n] || b->p->storage_of[n] < -1))
            b->stored[count++] = n;
    }
    return count;
}

static int buffer_of(const opq_step *step, int32_t id)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == id)
            return i;
    return -1;
}

/* ---- places */

/* Is nothing read of what was made behind the store of what is taken, or behind the loop around it? All is walked alike. */
static bool may_replace(const opq_step *rows, int made, int taken)
{
    const opq_loops *k = &rows->loops;
    int end = k->stmt_count;
    for (int i = 0; i < k->stmt_count; i++) {
        const opq_stmt *stmt = &k->stmts[i];
        if (stmt->op == OPQ_STMT_store && k->accesses[stmt->access].buffer == taken)
            end = i;
        if (i >= end && stmt->op == OPQ_STMT_load && k->accesses[stmt->access].buffer == made)
            return false;
    }
    return true;
}

static void find_places(const builder *b)
{
    opq_block *block = b->block;
    bool replaced[OPQ_BLOCK_FIRST_MAX] = {false};
    for (int m = 0; m < block->matrix_count; m++) {
        int place = m;
        if (m >= block->first_count)
            place = block->place_count;
        for (int f = 0; f < block->first_count && m >= block->first_count && place == block->place_count; f++)
            if (!replaced[f] && may_replace(&b->step->parts[0], block->matrix[f].buffer, block->matrix[m].buffer)) {
                replaced[f] = true;
                place = f;
            }
        block->matrix[m].place = place;
        block->place_count += place == block->place_count;
    }
}

/* Rows are laid out so that they do not fall into the same sets of a cache. */
static void spread_rows(const builder *b)
{
    const opq_step *rows = &b->step->parts[0];
    const opq_block *block = b->block;
    int rank = rows->loops.rank;
    for (int a = 0; a < rows->loops.access_count; a++)
        for (int m = 0; m < block->matrix_count && rows->loops.accesses[a].buffer >= 0; m++)
            for (int l = 0; l < rank - 1 && rows->loops.accesses[a].buffer == block->matrix[m].buffer; l++) {
                int64_t *stride = &rows->dims[opq_dims_of(rank, a) + 1 + l];
                *stride = *stride / block->columns * block->row_stride;
            }
}

/* ---- parts */

static opq_status lower_rows(builder *b)
{
    opq_planner *p = b->p;
    opq_block *block = b->block;
    opq_step *rows = &b->step->parts[0];
    opq_lowered lowered;
    int stored_count = find_stored(b, 0), count = 0;
    OPQ_TRY(opq_planner_lower(p, b->kernel, b->rows, b->stored, stored_count, &lowered, rows));
    const opq_type *type = &opq_node_at(p->graph, b->matrix[0])->type;
    bool walks = true;
    block->columns = type->size[type->rank - 1];
    block->count = opq_type_count(type) / block->columns;
    for (int m = 0; m < block->matrix_count; m++) {
        block->matrix[m].buffer = buffer_of(rows, p->storage_of[b->matrix[m]]);
        walks = walks && block->matrix[m].buffer >= 0 && opq_lowered_walks_rows(&lowered, b->matrix[m], block->columns);
    }
    for (int i = 0; i < stored_count; i++)
        walks = walks && (p->storage_of[b->stored[i]] >= 0 || find_matrix(b, b->stored[i]) >= 0 ||
                          opq_lowered_walks_rows(&lowered, b->stored[i], 1));
    if (!walks)
        return opq_fail(OPQ_UNSUPPORTED, "plan: %s is not walked row by row", rows->name);
    find_places(b);
    block->row_stride = block->columns % 16 == 0 ? block->columns + 16 : block->columns;
    for (int i = 0; i < b->member_count; i++)
        if (part_of(b, b->members[i]) == 0)
            b->own[count++] = b->members[i];
    bool causal = opq_block_is_causal(p->graph, b->own, count, &b->parts, &block->sampled);
    for (int i = 0; i < stored_count; i++) /* what others see is there in all columns */
        causal = causal && (find_matrix(b, b->stored[i]) >= 0 || opq_lowered_walks_rows(&lowered, b->stored[i], 1));
    block->causal = causal ? type->size[type->rank - 2] : 0;
    return OPQ_OK;
}

static opq_status lower_product(builder *b, int part)
{
    opq_planner *p = b->p;
    opq_lowered lowered;
    opq_step *step = &b->step->parts[part];
    int stored_count = find_stored(b, part);
    bool dry = p->dry;
    if (stored_count == 0)
        return opq_fail(OPQ_INTERNAL, "plan: product %d of kernel %s stores nothing", part, step->name);
    p->dry = dry || part <= b->parts.first_count; /* what is made stays as it is: no code */
    opq_status status = opq_planner_lower(p, b->kernel, b->rows + part, b->stored, stored_count, &lowered, step);
    p->dry = dry;
    OPQ_TRY(status);
    int second = part - 1 - b->parts.first_count;
    if (step->matmul && second >= 0 && b->block->sums_rows[second] && step->matmul->contract.m != b->block->columns)
        return opq_fail(OPQ_UNSUPPORTED, "plan: product %d of kernel %s sums over several matrices", part, step->name);
    if (step->matmul && step->matmul->pairs)
        return opq_fail(OPQ_UNSUPPORTED, "plan: product %d of kernel %s goes by pairs", part, step->name);
    return step->matmul ? OPQ_OK : opq_fail(OPQ_UNSUPPORTED, "plan: product %d of kernel %s is thin", part, step->name);
}

/* What the block computes, as one tree: what is printed, and what runs where there is no code; then what stays in cache has memory. */
static opq_status join(builder *b)
{
    opq_planner *p = b->p;
    opq_step *step = b->step;
    opq_bound bound[OPQ_BLOCK_PARTS_MAX], joined;
    opq_kept kept = {.count = b->block->matrix_count};
    for (int m = 0; m < b->block->matrix_count; m++)
        kept.ids[m] = p->storage_of[b->matrix[m]];
    for (int i = 0; i < b->block->local_count; i++)
        kept.ids[kept.count++] = -2 - i;
    for (int i = 0; i < step->part_count; i++)
        bound[i] = opq_step_bound(&step->parts[i]);
    OPQ_TRY(opq_block_join(p->graph, &b->parts, bound, &kept, &p->plan->arena, &joined));
    opq_step_bind(step, &joined);
    if (p->runtime->run_loops && !p->dry)
        OPQ_TRY(opq_planner_own(p, step));
    return opq_planner_check(p, step);
}

static opq_status build(builder *b)
{
    opq_planner *p = b->p;
    opq_block *block = b->block;
    if (!opq_block_split(p->graph, p->group_of, b->members, b->member_count, b->rows, &b->parts))
        return opq_fail(OPQ_UNSUPPORTED, "plan: kernel %s has too many products", b->step->name);
    block->first_count = b->parts.first_count;
    block->second_count = b->parts.second_count;
    block->matrix_count = opq_block_matrices(p->graph, &b->parts, b->matrix);
    for (int i = 0; i < block->second_count; i++) {
        block->taken[i] = find_matrix(b, opq_block_taken(p->graph, &b->parts, i));
        block->sums_rows[i] = opq_block_sums_rows(p->graph, &b->parts, i);
        block->sums |= block->sums_rows[i];
    }
    b->step->part_count = opq_block_part_count(&b->parts);
    for (int i = 0; i < b->step->part_count; i++)
        b->step->parts[i] = (opq_step){.name = b->step->name, .copy_from = -1, .copy_to = -1};
    OPQ_TRY(number_locals(b));
    OPQ_TRY(lower_rows(b));
    for (int i = 1; i < b->step->part_count; i++)
        OPQ_TRY(lower_product(b, i));
    OPQ_TRY(join(b));
    spread_rows(b); /* the tree has them dense */
    return p->runtime->run_loops ? opq_loops_verify(&b->step->loops) : OPQ_OK;
}

opq_status opq_plan_block_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    size_t count = (size_t)group->count;
    builder b = {.p = p, .kernel = kernel, .rows = p->graph->kernel_count, .step = step};
    b.block = step->block = opq_arena_alloc(&p->plan->arena, sizeof *b.block);
    step->parts = opq_arena_alloc(&p->plan->arena, OPQ_BLOCK_PARTS_MAX * sizeof *step->parts);
    b.members = malloc(3 * count * sizeof *b.members);
    if (b.block == NULL || step->parts == NULL || b.members == NULL) {
        free(b.members);
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    }
    memset(b.block, 0, sizeof *b.block);
    b.stored = b.members + count;
    b.own = b.stored + count;
    for (opq_ref n = group->first; n < group->first + group->count; n++)
        if (p->group_of[n] == kernel)
            b.members[b.member_count++] = n;
    opq_status status = build(&b);
    for (int i = 0; i < b.member_count; i++)
        p->group_of[b.members[i]] = kernel;
    free(b.members);
    return status;
}
