/* A kernel of several products becomes one step of parts. Those of one left operand are a part each, with its epilogue, and run at once
 * (fusion/group_product.c). Those of a block (fusion/group_block.c) come behind the rows, which are part 0: first products, then second
 * ones with their epilogues.
 */
#include "runtime/plan_internal.h"

#include <string.h>

typedef struct builder {
    opq_planner *p;
    int32_t kernel, rows; /* ids of groups: of the kernel, and of the rows while parts are lowered */
    opq_ref *members;     /* descending */
    int member_count;
    opq_parts parts;
    opq_ref matrix[OPQ_BLOCK_MATRIX_MAX];
    opq_block *block; /* NULL: there are no rows */
    opq_step *step;
} builder;

static bool is_row(const builder *b, opq_ref n) { return b->p->group_of[n] == b->rows; }

static int find_matrix(const builder *b, opq_ref ref)
{
    for (int m = 0; m < b->block->matrix_count; m++)
        if (b->matrix[m] == ref)
            return m;
    return -1;
}

/* ---- the rows of a block */

/* Matrices and what the epilogues need of the rows stay in cache, unless somebody outside wants them. */
static opq_status number_locals(builder *b)
{
    opq_planner *p = b->p;
    int32_t next = -2;
    for (int i = b->member_count - 1; i >= 0; i--) {
        const opq_node *node = opq_node_at(p->graph, b->members[i]);
        for (int k = 0; k < node->arity && p->group_of[b->members[i]] > b->rows + b->parts.first_count; k++) {
            opq_ref ref = opq_lower_base(p->graph, p->group_of, node->operand[k]);
            if (!is_row(b, ref) || p->storage_of[ref] != -1 || find_matrix(b, ref) >= 0)
                continue;
            if (b->block->local_count++ == OPQ_KEPT_MAX - b->block->matrix_count)
                return opq_fail(OPQ_UNSUPPORTED, "plan: the rows of %s have too many results", b->step->name);
            p->storage_of[ref] = next--;
        }
    }
    for (int m = 0; m < b->block->matrix_count; m++)
        p->storage_of[b->matrix[m]] = next--;
    return OPQ_OK;
}

static opq_status begin_block(builder *b)
{
    const opq_graph *graph = b->p->graph;
    opq_block *block = b->block;
    const opq_parts *parts = &b->parts;
    block->first_count = parts->first_count;
    block->second_count = parts->count - parts->first_count;
    block->matrix_count = opq_block_matrices(graph, parts, b->matrix);
    for (int i = 0; i < block->second_count; i++) {
        block->taken[i] = find_matrix(b, opq_block_taken(graph, parts, parts->first_count + i));
        block->sums_rows[i] = opq_block_sums_rows(graph, parts, parts->first_count + i);
        block->sums |= block->sums_rows[i];
    }
    const opq_type *type = &opq_node_at(graph, b->matrix[0])->type;
    block->columns = type->size[type->rank - 1];
    block->count = opq_type_count(type) / block->columns;
    block->row_stride = block->columns % 16 == 0 ? block->columns + 16 : block->columns;
    return number_locals(b);
}

static int buffer_of(const opq_step *step, int32_t id)
{
    for (int i = 0; i < step->loops.buffer_count; i++)
        if (step->buffers[i] == id)
            return i;
    return -1;
}

/* Is nothing read of what was made behind the store of what is taken, or behind the loop around it? All is walked alike. */
static bool may_lie_on(const opq_step *rows, int made, int taken)
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
        int place = block->place_count;
        for (int f = 0; f < block->first_count && m >= block->first_count && place == block->place_count; f++)
            if (!replaced[f] && may_lie_on(&b->step->parts[0], block->matrix[f].buffer, block->matrix[m].buffer)) {
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

/* What others see of the rows is there in all columns, unless it is one for each row. */
static opq_status finish_rows(builder *b, const opq_lowered *lowered)
{
    const opq_planner *p = b->p;
    opq_block *block = b->block;
    opq_step *rows = &b->step->parts[0];
    const opq_type *type = &opq_node_at(p->graph, b->matrix[0])->type;
    opq_ref *own = opq_arena_alloc(&b->p->scratch, (size_t)b->member_count * sizeof *own);
    bool walks = true, causal = true;
    int count = 0;
    if (own == NULL)
        return opq_plan_no_memory();
    for (int m = 0; m < block->matrix_count; m++) {
        block->matrix[m].buffer = buffer_of(rows, p->storage_of[b->matrix[m]]);
        walks = walks && block->matrix[m].buffer >= 0 && opq_lowered_walks_rows(lowered, b->matrix[m], block->columns);
    }
    for (int i = b->member_count - 1; i >= 0; i--) {
        opq_ref n = b->members[i];
        if (!is_row(b, n))
            continue;
        own[count++] = n;
        bool by_row = p->storage_of[n] == -1 || find_matrix(b, n) >= 0 || opq_lowered_walks_rows(lowered, n, 1);
        walks = walks && (by_row || p->storage_of[n] >= 0);
        causal = causal && by_row;
    }
    if (!walks)
        return opq_fail(OPQ_UNSUPPORTED, "plan: %s is not walked row by row", rows->name);
    find_places(b);
    causal = opq_block_is_causal(p->graph, own, count, &b->parts, &block->sampled) && causal;
    block->causal = causal ? type->size[type->rank - 2] : 0;
    return OPQ_OK;
}

/* ---- parts */

static opq_status check_product(const builder *b, const opq_step *part, int product)
{
    const char *wrong = NULL;
    if (part->matmul == NULL)
        wrong = "is thin";
    else if (b->block && opq_block_sums_rows(b->p->graph, &b->parts, product) &&
             part->matmul->contract.m != b->block->columns)
        wrong = "sums over several matrices";
    return wrong ? opq_fail(OPQ_UNSUPPORTED, "plan: product %d of kernel %s %s", product, part->name, wrong) : OPQ_OK;
}

/* product: -1 of the rows. */
static opq_status lower_part(builder *b, int product, opq_step *part)
{
    opq_planner *p = b->p;
    opq_lowered lowered;
    bool dry = p->dry;
    *part = (opq_step){
        .kind = b->block ? OPQ_KERNEL_map : b->step->kind, .name = b->step->name, .copy_from = -1, .copy_to = -1};
    p->dry =
        dry || (b->block && product >= 0 && product < b->parts.first_count); /* what is made stays as it is: no code */
    opq_status status = opq_planner_lower(p, b->kernel, b->rows + 1 + product, &lowered, part);
    p->dry = dry;
    OPQ_TRY(status);
    return product < 0 ? finish_rows(b, &lowered) : check_product(b, part, product);
}

/* What the step computes, as one tree: what is printed, and what runs where there is no code; then what stays in cache has memory. */
static opq_status join(builder *b)
{
    opq_planner *p = b->p;
    opq_step *step = b->step;
    opq_bound bound[OPQ_PRODUCTS_MAX], joined;
    opq_kept kept = {.count = b->block ? b->block->matrix_count : 0};
    bool runs = p->runtime->run_loops && !p->dry;
    for (int m = 0; m < kept.count; m++)
        kept.ids[m] = p->storage_of[b->matrix[m]];
    for (int i = 0; b->block && i < b->block->local_count; i++)
        kept.ids[kept.count++] = -2 - i;
    for (int i = 0; i < step->part_count; i++)
        bound[i] = opq_step_bound(&step->parts[i]);
    OPQ_TRY(opq_parts_join(p->graph, &b->parts, bound, &kept, &p->plan->arena, &joined));
    opq_step_bind(step, &joined);
    if (runs)
        OPQ_TRY(opq_planner_own(p, step));
    OPQ_TRY(opq_planner_check(p, step));
    return runs ? opq_loops_verify(&step->loops) : OPQ_OK;
}

static opq_status build(builder *b)
{
    opq_step *step = b->step;
    bool split = opq_parts_split(b->p->graph, b->p->group_of, b->members, b->member_count, b->rows, &b->parts);
    if (!split || (b->parts.first_count < b->parts.count) != (b->block != NULL))
        return opq_fail(OPQ_UNSUPPORTED, "plan: kernel %s has too many products", step->name);
    int first = b->block ? -1 : 0;
    step->part_count = b->parts.count - first;
    step->parts = opq_arena_alloc(&b->p->plan->arena, (size_t)step->part_count * sizeof *step->parts);
    if (step->parts == NULL)
        return opq_plan_no_memory();
    if (b->block)
        OPQ_TRY(begin_block(b));
    for (int i = 0; i < step->part_count; i++)
        OPQ_TRY(lower_part(b, first + i, &step->parts[i]));
    OPQ_TRY(join(b));
    if (b->block)
        spread_rows(b); /* the tree has them dense */
    return OPQ_OK;
}

opq_status opq_plan_parts_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    builder b = {.p = p, .kernel = kernel, .rows = p->graph->kernel_count, .step = step};
    b.members = opq_arena_alloc(&p->scratch, (size_t)group->count * sizeof *b.members);
    if (group->kind == OPQ_KERNEL_block)
        b.block = step->block = opq_arena_alloc(&p->plan->arena, sizeof *b.block);
    if (b.members == NULL || (group->kind == OPQ_KERNEL_block && b.block == NULL))
        return opq_plan_no_memory();
    for (opq_ref n = group->first + group->count - 1; n >= group->first; n--)
        if (p->group_of[n] == kernel)
            b.members[b.member_count++] = n;
    opq_status status = build(&b);
    for (int i = 0; i < b.member_count; i++)
        p->group_of[b.members[i]] = kernel;
    return status;
}
