/* A kernel of several products becomes one step: each product is a part, with its epilogue, and all run at once. See fusion/group_product.c. */
#include "runtime/plan_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct parts {
    opq_planner *p;
    opq_ref begin, end;
    int32_t kernel, first; /* first: id of the group that the first part is, while they are lowered */
    int count;
    opq_ref *stored;
} parts;

/* A node of a part takes others with it: what it needs, and what needs it. */
static bool spread(const parts *b, opq_ref n)
{
    const opq_node *node = opq_node_at(b->p->graph, n);
    int32_t *group_of = b->p->group_of;
    bool moved = false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref from = opq_lower_base(b->p->graph, group_of, node->operand[k]);
        if (from < b->begin || from >= b->end)
            continue;
        if (group_of[n] == b->kernel && group_of[from] >= b->first)
            group_of[n] = group_of[from];
        else if (group_of[n] >= b->first && group_of[from] == b->kernel)
            group_of[from] = group_of[n];
        else
            continue;
        moved = true;
    }
    return moved;
}

/* Parts are what hangs together. False: a node is of none. */
static bool split(parts *b)
{
    bool whole = true;
    for (opq_ref n = b->begin; n < b->end; n++)
        if (opq_node_class(opq_node_at(b->p->graph, n)) == OPQ_CLASS_MATMUL && b->p->group_of[n] == b->kernel)
            b->p->group_of[n] = b->first + b->count++;
    for (bool moved = true; moved;) {
        moved = false;
        for (opq_ref n = b->begin; n < b->end; n++)
            if (b->p->group_of[n] >= 0)
                moved = spread(b, n) || moved;
    }
    for (opq_ref n = b->begin; n < b->end; n++)
        whole = whole && b->p->group_of[n] != b->kernel;
    return whole;
}

static opq_status lower_part(parts *b, int i, opq_step *part)
{
    opq_planner *p = b->p;
    opq_lowered lowered;
    int stored_count = 0;
    for (opq_ref n = b->begin; n < b->end; n++)
        if (p->group_of[n] == b->first + i && p->stored[n])
            b->stored[stored_count++] = n;
    if (stored_count == 0)
        return opq_fail(OPQ_INTERNAL, "plan: product %d of kernel %s stores nothing", i, part->name);
    OPQ_TRY(opq_planner_lower(p, b->kernel, b->first + i, b->stored, stored_count, &lowered, part));
    return part->matmul ? OPQ_OK : opq_fail(OPQ_UNSUPPORTED, "plan: product %d of kernel %s is thin", i, part->name);
}

/* What the step computes, as one tree: what is printed, and what runs where there is no code. */
static opq_status join(parts *b, opq_step *step)
{
    opq_bound bound[OPQ_PRODUCTS_MAX], joined;
    for (int i = 0; i < b->count; i++)
        bound[i] = opq_step_bound(&step->parts[i]);
    OPQ_TRY(opq_loops_join(bound, b->count, &(opq_kept){0}, false, &b->p->plan->arena, &joined));
    opq_step_bind(step, &joined);
    OPQ_TRY(opq_planner_check(b->p, step));
    return b->p->runtime->run_loops && !b->p->dry ? opq_loops_verify(&step->loops) : OPQ_OK;
}

static opq_status build(parts *b, opq_step *step)
{
    bool whole = split(b);
    if (!whole || b->count > OPQ_PRODUCTS_MAX)
        return opq_fail(OPQ_UNSUPPORTED, "plan: kernel %s is not up to %d products", step->name, OPQ_PRODUCTS_MAX);
    step->part_count = b->count;
    step->parts = opq_arena_alloc(&b->p->plan->arena, (size_t)b->count * sizeof *step->parts);
    if (step->parts == NULL)
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    for (int i = 0; i < b->count; i++) {
        step->parts[i] = (opq_step){.kind = step->kind, .name = step->name, .copy_from = -1, .copy_to = -1};
        OPQ_TRY(lower_part(b, i, &step->parts[i]));
    }
    return join(b, step);
}

opq_status opq_plan_products_step(opq_planner *p, int32_t kernel, opq_step *step)
{
    const opq_kernel_group *group = &p->graph->kernels[kernel];
    parts b = {.p = p,
               .begin = group->first,
               .end = group->first + group->count,
               .kernel = kernel,
               .first = p->graph->kernel_count,
               .stored = malloc((size_t)group->count * sizeof *b.stored)};
    if (b.stored == NULL)
        return opq_fail(OPQ_NO_MEMORY, "plan: out of memory");
    opq_status status = build(&b, step);
    for (opq_ref n = b.begin; n < b.end; n++)
        if (p->group_of[n] >= b.first)
            p->group_of[n] = kernel;
    free(b.stored);
    return status;
}
