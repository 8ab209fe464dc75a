/* Graphs compiled and run by hand: what opq-opt and plain C programs use. */
#include "fusion/loop.h"
#include "opaque/context.h"

#include <stdlib.h>
#include <string.h>

/* A program is a plan under its public name. */
static opq_plan *plan_of(const opq_program *program) { return (opq_plan *)program; }

opq_status opq_compile(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, opq_program **out_program)
{
    opq_plan *plan;
    OPQ_TRY(opq_graph_verify(graph));
    OPQ_TRY(opq_plan_compile(&ctx->runtime, graph, fusion, &plan));
    *out_program = (opq_program *)plan;
    return OPQ_OK;
}

void opq_program_retain(opq_program *program) { opq_plan_retain(plan_of(program)); }
void opq_program_release(opq_program *program) { opq_plan_release(plan_of(program)); }

opq_status opq_run(opq_ctx *ctx, const opq_program *program, const void *const *inputs, void *const *outputs)
{
    const opq_plan *plan = plan_of(program);
    size_t count = (size_t)plan->input_count + (size_t)plan->output_count + 1;
    opq_buffer **buffers = calloc(count, sizeof *buffers), **results = buffers + plan->input_count;
    opq_status status = buffers ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int i = 0; i < plan->input_count && status == OPQ_OK; i++) {
        opq_type type = opq_graph_input_type(plan->graph, i);
        status =
            opq_pool_adopt(ctx->runtime.pool, (void *)inputs[i], (size_t)opq_type_bytes(&type), NULL, NULL, &buffers[i]);
    }
    if (status == OPQ_OK) {
        opq_run_call call = {.inputs = buffers, .outputs = results};
        status = opq_plan_run(&ctx->runtime, plan, &call);
    }
    for (int i = 0; i < plan->output_count && buffers; i++) {
        opq_type type = opq_graph_output_type(plan->graph, i);
        if (results[i])
            memcpy(outputs[i], results[i]->data, (size_t)opq_type_bytes(&type));
        opq_buffer_release(results[i]);
    }
    for (int i = 0; i < plan->input_count && buffers; i++)
        opq_buffer_release(buffers[i]);
    free(buffers);
    return status;
}

static opq_status print_loops(const opq_kernel *kernel, opq_text *out_text)
{
    opq_arena arena = {0};
    opq_loops loops;
    opq_status status = opq_loops_build(kernel, &arena, &loops);
    if (status == OPQ_OK)
        opq_loops_print(&loops, out_text);
    opq_arena_drop(&arena);
    return status;
}

opq_status opq_program_print(const opq_program *program, const char *stage, char **out_text)
{
    const opq_plan *plan = plan_of(program);
    opq_text text = {0};
    if (strcmp(stage, "fused") == 0)
        return opq_graph_print(plan->graph, out_text);
    bool kernels = strcmp(stage, "kernels") == 0, loops = strcmp(stage, "loops") == 0;
    if (!kernels && !loops && strcmp(stage, "llvm") != 0 && strcmp(stage, "asm") != 0)
        return opq_fail(OPQ_INVALID, "no stage is called \"%s\"; there are fused, kernels, loops, llvm, asm", stage);
    for (int32_t s = 0; s < plan->step_count; s++) {
        const opq_step *step = &plan->steps[s];
        if (step->kind == OPQ_KERNEL_extern)
            continue;
        if (kernels) {
            opq_kernel_print(&step->kernel, &text);
            continue;
        }
        opq_status status =
            loops ? print_loops(&step->kernel, &text) : opq_codegen_print(plan->jit, &step->kernel, stage, &text);
        if (status != OPQ_OK) {
            opq_text_drop(&text);
            return status;
        }
    }
    return opq_text_take(&text, out_text);
}
