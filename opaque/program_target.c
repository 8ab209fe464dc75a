/* Kernels of a program as code for another processor. */
#include "codegen_llvm/codegen.h"
#include "codegen_llvm/cpu.h"
#include "runtime/plan.h"

#include <stdio.h>

typedef struct emission {
    opq_cpu cpu;
    struct opq_compiler *compiler;
    const char *stage, *folder;
    opq_text text; /* of all kernels */
} emission;

static opq_status add_text(emission *e, const opq_step *step)
{
    opq_text_add(&e->text, "%s kernel %d %s\n", e->stage[0] == 'l' ? ";" : "//", step->order, step->loops.name);
    return opq_codegen_text(e->compiler, &step->loops, e->stage, &e->text);
}

static opq_status write_object(emission *e, const opq_step *step)
{
    char symbol[32], path[4096];
    snprintf(symbol, sizeof symbol, "kernel_%d", step->order);
    if (snprintf(path, sizeof path, "%s/%s.o", e->folder, symbol) >= (int)sizeof path)
        return opq_fail(OPQ_INVALID, "%s: the name of the folder is too long", e->folder);
    return opq_codegen_object(e->compiler, &step->loops, symbol, path);
}

static opq_status each_kernel(const opq_program *program, const char *target, emission *e,
                              opq_status (*use)(emission *e, const opq_step *step))
{
    const opq_plan *plan = (const opq_plan *)program;
    OPQ_TRY(opq_cpu_foreign(target, &e->cpu));
    OPQ_TRY(opq_compiler_create(&e->cpu, &e->compiler));
    opq_status status = OPQ_OK;
    for (int32_t s = 0; s < plan->step_count && status == OPQ_OK; s++)
        if (plan->steps[s].kind != OPQ_KERNEL_extern && plan->steps[s].kind != OPQ_KERNEL_routine)
            status = use(e, &plan->steps[s]);
    opq_compiler_destroy(e->compiler);
    return status;
}

opq_status opq_program_print_for(const opq_program *program, const char *target, const char *stage, char **out_text)
{
    emission e = {.stage = stage};
    opq_status status = each_kernel(program, target, &e, add_text);
    if (status == OPQ_OK)
        return opq_text_take(&e.text, out_text);
    opq_text_drop(&e.text);
    return status;
}

opq_status opq_program_objects(const opq_program *program, const char *target, const char *folder)
{
    emission e = {.folder = folder};
    return each_kernel(program, target, &e, write_object);
}
