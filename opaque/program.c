/* Graphs compiled and run by hand: what opq-opt and plain C programs use. */
#include "codegen_c/codegen_c.h"
#include "fusion/loop.h"
#include "opaque/context.h"

#include <stdio.h>
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

static opq_status print_loops(const opq_plan *plan, const opq_step *step, const char *stage, opq_text *out_text)
{
    if (strcmp(stage, "c") == 0)
        return opq_c_kernel(&step->loops, step->loops.name, out_text);
    if (strcmp(stage, "kernels") != 0)
        return opq_codegen_print(plan->jit, opq_step_code_loops(step), stage, out_text);
    opq_loops_print(&step->loops, out_text);
    return OPQ_OK;
}

static opq_status print_step(const opq_plan *plan, const opq_step *step, const char *stage, opq_text *out_text)
{
    if (step->kind == OPQ_KERNEL_extern)
        return OPQ_OK;
    bool code = strcmp(stage, "kernels") != 0 && strcmp(stage, "c") != 0;
    for (int i = 0; i < step->part_count && code; i++)
        if (step->parts[i].code) /* a block's first products have none */
            OPQ_TRY(print_loops(plan, &step->parts[i], stage, out_text));
    return step->parts && code ? OPQ_OK : print_loops(plan, step, stage, out_text);
}

opq_status opq_program_print(const opq_program *program, const char *stage, char **out_text)
{
    static const char *const stages[] = {"kernels", "c", "llvm", "asm"};
    const opq_plan *plan = plan_of(program);
    opq_text text = {0};
    bool known = false;
    if (strcmp(stage, "fused") == 0)
        return opq_graph_print(plan->graph, out_text);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        known |= strcmp(stage, stages[i]) == 0;
    if (!known)
        return opq_fail(OPQ_INVALID, "no stage is called \"%s\"; there are fused, kernels, c, llvm, asm", stage);
    if (strcmp(stage, "c") == 0)
        opq_c_begin(&text);
    opq_status status = OPQ_OK;
    for (int32_t s = 0; s < plan->step_count && status == OPQ_OK; s++)
        status = print_step(plan, &plan->steps[s], stage, &text);
    if (status == OPQ_OK)
        return opq_text_take(&text, out_text);
    opq_text_drop(&text);
    return status;
}
