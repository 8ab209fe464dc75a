/* Graphs compiled and run by hand: what opq-opt and plain C programs use. */
#include "codegen_c/codegen_c.h"
#include "fusion/schedule.h"
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

opq_status opq_program_plan(opq_ctx *ctx, const opq_graph *graph, opq_fusion fusion, opq_program **out_program)
{
    opq_plan *plan;
    OPQ_TRY(opq_graph_verify(graph));
    OPQ_TRY(opq_plan_only(&ctx->runtime, graph, fusion, &plan));
    *out_program = (opq_program *)plan;
    return OPQ_OK;
}

void opq_program_retain(opq_program *program) { opq_plan_retain(plan_of(program)); }
void opq_program_release(opq_program *program) { opq_plan_release(plan_of(program)); }

opq_status opq_run(opq_ctx *ctx, const opq_program *program, const void *const *inputs, void *const *outputs)
{
    const opq_plan *plan = plan_of(program);
    if (plan->dry)
        return opq_fail(OPQ_INVALID, "opq_run: the program was planned to be looked at, not compiled");
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

/* "schedule", or after one of its passes "schedule:reduce": what follows the word; NULL: it is another stage. */
static const char *schedule_of(const char *stage)
{
    static const char word[] = "schedule";
    const char *rest = strncmp(stage, word, strlen(word)) == 0 ? stage + strlen(word) : NULL;
    return rest && (*rest == 0 || *rest == ':') ? rest : NULL;
}

static opq_status print_loops(const opq_plan *plan, const opq_step *step, const char *stage, opq_text *out_text)
{
    if (strcmp(stage, "c") == 0)
        return opq_c_kernel(&step->loops, step->loops.name, out_text);
    if (strcmp(stage, "schedule_c") == 0)
        return opq_c_schedule(&step->loops, step->loops.name, out_text);
    const char *after = schedule_of(stage);
    if (after)
        return opq_schedule_print(opq_step_code_loops(step), *after ? after + 1 : NULL, out_text);
    if (strcmp(stage, "kernels") != 0)
        return opq_codegen_print(plan->jit, opq_step_code_loops(step), stage, out_text);
    opq_loops_print(&step->loops, out_text);
    return OPQ_OK;
}

/* Of a block's parts, what is made first has no code. */
static bool has_code(const opq_step *step, int part)
{
    return !step->block || part == 0 || part > step->block->first_count;
}

static opq_status print_step(const opq_plan *plan, const opq_step *step, const char *stage, opq_text *out_text)
{
    if (step->kind == OPQ_KERNEL_extern || step->kind == OPQ_KERNEL_routine)
        return OPQ_OK;
    bool code = schedule_of(stage) || strcmp(stage, "llvm") == 0 || strcmp(stage, "asm") == 0;
    if (code && !schedule_of(stage)) /* all functions have one name */
        opq_text_add(out_text, "%s kernel %d %s%s%s\n", strcmp(stage, "llvm") == 0 ? ";" : "#", step->order,
                     step->loops.name, *step->lines ? ": " : "", step->lines);
    for (int i = 0; i < step->part_count && code; i++)
        if (has_code(step, i))
            OPQ_TRY(print_loops(plan, &step->parts[i], stage, out_text));
    return step->parts && code ? OPQ_OK : print_loops(plan, step, stage, out_text);
}

static opq_status check_stage(const char *stage)
{
    static const char *const stages[] = {"kernels", "c", "schedule_c", "llvm", "asm"};
    if (schedule_of(stage))
        return OPQ_OK;
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (strcmp(stage, stages[i]) == 0)
            return OPQ_OK;
    return opq_fail(OPQ_INVALID,
                    "no stage is called \"%s\"; there are fused, json, kernels, schedule, c, schedule_c, llvm, asm",
                    stage);
}

/* Of steps [first, end) of the plan. */
static opq_status print_steps(const opq_plan *plan, int32_t first, int32_t end, const char *stage, char **out_text)
{
    opq_text text = {0};
    OPQ_TRY(check_stage(stage));
    if (strcmp(stage, "c") == 0 || strcmp(stage, "schedule_c") == 0)
        opq_c_begin(&text);
    opq_status status = OPQ_OK;
    for (int32_t s = first; s < end && status == OPQ_OK; s++)
        status = print_step(plan, &plan->steps[s], stage, &text);
    if (status == OPQ_OK)
        return opq_text_take(&text, out_text);
    opq_text_drop(&text);
    return status;
}

/* Waves reorder steps. */
static int32_t step_of(const opq_plan *plan, int32_t kernel)
{
    int32_t s = 0;
    while (s < plan->step_count && plan->steps[s].order != kernel)
        s++;
    return s;
}

opq_status opq_program_print_kernel(const opq_program *program, int32_t kernel, const char *stage, char **out_text)
{
    const opq_plan *plan = plan_of(program);
    int32_t step = step_of(plan, kernel);
    if (step == plan->step_count)
        return opq_fail(OPQ_INVALID, "no kernel has number %d; there are %d", kernel, plan->step_count);
    return print_steps(plan, step, step + 1, stage, out_text);
}

/* ---- JSON */

static void add_kernel(opq_text *text, const opq_plan *plan, int32_t launch, const opq_step *step)
{
    opq_json_kernel(text, plan->graph, step->order);
    opq_text_add(text, ", \"shape\": ");
    opq_json_string(text, opq_type_name(step->largest).text);
    opq_text_add(text, ", \"launch\": %d, \"bytes_read\": %lld, \"bytes_written\": %lld, \"flops\": %lld}", launch,
                 (long long)step->bytes_read, (long long)step->bytes_written, (long long)step->flops);
}

static void add_edge(opq_text *text, const opq_plan *plan, const opq_unfused_edge *edge)
{
    opq_text_add(text, "\n{\"producer\": %d, \"consumer\": %d, \"bytes\": %lld, \"saves\": %lld, \"refusal\": ",
                 edge->producer, edge->consumer,
                 (long long)opq_type_bytes(&opq_node_at(plan->graph, edge->producer)->type), (long long)edge->saves);
    opq_json_string(text, opq_refusal_name(edge->refusal));
    opq_text_add(text, ", \"reason\": ");
    opq_json_string(text, opq_refusal_text(edge->refusal));
    opq_text_add(text, ", \"remedy\": ");
    opq_json_string(text, opq_refusal_remedy(edge->refusal));
    opq_text_add(text, ", \"acts\": %s}", opq_refusal_acts(edge->refusal) ? "true" : "false");
}

static void add_fallback(opq_text *text, const opq_fallback *fallback)
{
    opq_text_add(text, "\n{\"kernel\": ");
    opq_json_string(text, fallback->kernel);
    opq_text_add(text, ", \"reason\": ");
    opq_json_string(text, fallback->reason);
    opq_text_add(text, fallback->next ? "}," : "}");
}

static opq_status print_json(const opq_plan *plan, char **out_text)
{
    opq_text text = {0};
    int32_t *launch = calloc((size_t)plan->step_count + 1, 2 * sizeof *launch), *step = launch + plan->step_count;
    if (launch == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    for (int32_t w = 0; w < plan->wave_count; w++)
        for (int32_t s = plan->waves[w].first; s < plan->waves[w].first + plan->waves[w].count; s++) {
            step[plan->steps[s].order] = s;
            launch[plan->steps[s].order] = w;
        }
    opq_json_begin(&text, plan->graph);
    opq_text_add(&text, ",\n\"kernels\": [");
    for (int32_t k = 0; k < plan->step_count; k++) {
        opq_text_add(&text, "%s", k ? "," : "");
        add_kernel(&text, plan, launch[k], &plan->steps[step[k]]);
    }
    opq_text_add(&text, "],\n\"unfused\": [");
    for (int i = 0; i < plan->unfused.count; i++) {
        opq_text_add(&text, "%s", i ? "," : "");
        add_edge(&text, plan, &plan->unfused.edges[i]);
    }
    opq_text_add(&text, "],\n\"fallbacks\": [");
    for (const opq_fallback *f = plan->fallbacks; f; f = f->next)
        add_fallback(&text, f);
    opq_text_add(&text, "]}\n");
    free(launch);
    return opq_text_take(&text, out_text);
}

opq_status opq_program_print(const opq_program *program, const char *stage, char **out_text)
{
    const opq_plan *plan = plan_of(program);
    if (strcmp(stage, "fused") == 0)
        return opq_graph_print(plan->graph, out_text);
    if (strcmp(stage, "json") == 0)
        return print_json(plan, out_text);
    return print_steps(plan, 0, plan->step_count, stage, out_text);
}
