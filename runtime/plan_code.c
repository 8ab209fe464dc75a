/* The code of a plan's steps. It is made when all steps are there: what has to be compiled is, by all threads at once, and what a plan lacks at all is
 * known before anything is compiled. */
#include "codegen_llvm/allowance.h"
#include "runtime/plan_internal.h"

opq_status opq_planner_want_code(opq_planner *p, opq_step *step)
{
    opq_code_wanted *made = opq_arena_alloc(&p->scratch, sizeof *made);
    if (made == NULL)
        return opq_plan_no_memory();
    *made = (opq_code_wanted){step, p->failed, NULL};
    *(p->last_wanted ? &p->last_wanted->next : &p->wanted) = made;
    p->last_wanted = made;
    p->wanted_count++;
    return OPQ_OK;
}

/* The plan holds each code once, however many steps call it. Takes the reference, also on failure. */
static opq_status hold(opq_plan *plan, const opq_code *code)
{
    const opq_code_use *use = plan->codes;
    while (use && use->code != code)
        use = use->next;
    opq_code_use *made = use ? NULL : opq_arena_alloc(&plan->arena, sizeof *made);
    if (made) {
        *made = (opq_code_use){code, plan->codes};
        plan->codes = made;
    } else {
        opq_code_release(plan->jit, code);
    }
    return use || made ? OPQ_OK : opq_plan_no_memory();
}

static void count_compiled(opq_plan *plan, const opq_step *step)
{
    if (!step->fresh)
        return;
    if (step->code->loaded) {
        plan->loaded++;
        return;
    }
    plan->compiled++;
    plan->compile_seconds += step->code->seconds;
}

/* Those of several parts have the code of the one that is launched last: a block's second products, of products all at once. */
static void find_codes_of_parts(opq_plan *plan)
{
    for (int32_t i = 0; i < plan->step_count; i++) {
        opq_step *step = &plan->steps[i];
        for (int k = step->block ? 1 : 0; k < step->part_count; k++)
            step->fresh |= step->parts[k].fresh;
        if (step->part_count > 0)
            step->code = step->parts[step->block ? step->part_count - 1 : 0].code;
    }
}

/* Takes the references of all jobs. */
static opq_status give_codes(opq_planner *p, const opq_code_job *jobs)
{
    opq_status first = OPQ_OK;
    for (const opq_code_wanted *it = p->wanted; it; it = it->next, jobs++) {
        if (jobs->code == NULL)
            continue;
        opq_status status = hold(p->plan, jobs->code);
        first = first == OPQ_OK ? status : first;
        it->step->code = jobs->code;
        it->step->fresh = jobs->fresh;
        count_compiled(p->plan, it->step);
    }
    return first;
}

/* Where nothing is compiled, columns by rows are as good as in strips, and the other way round: the bits are the same. */
static void settle_for_what_is_there(const opq_planner *p)
{
    for (const opq_code_wanted *it = p->wanted; it && opq_compile_is_look(); it = it->next) {
        opq_loops *loops = &it->step->loops, other = *loops;
        other.by_rows = !loops->by_rows;
        if (it->step->kind == OPQ_KERNEL_column && opq_step_code_loops(it->step) == loops &&
            !opq_codegen_has(p->plan->jit, loops) && opq_codegen_has(p->plan->jit, &other))
            loops->by_rows = other.by_rows;
    }
}

opq_status opq_planner_compile(opq_planner *p)
{
    int count = 0, failed;
    opq_code_job *jobs = opq_arena_alloc(&p->scratch, ((size_t)p->wanted_count + 1) * sizeof *jobs);
    if (jobs == NULL)
        return opq_plan_no_memory();
    settle_for_what_is_there(p);
    for (const opq_code_wanted *it = p->wanted; it; it = it->next)
        jobs[count++].loops = opq_step_code_loops(it->step);
    opq_status status = opq_codegen_all(p->plan->jit, p->plan->host, jobs, count, &failed);
    for (const opq_code_wanted *it = p->wanted; it && failed >= 0; it = it->next, failed--)
        p->failed = it->kernel;
    opq_status held = give_codes(p, jobs);
    find_codes_of_parts(p->plan);
    return held == OPQ_OK ? status : held;
}
