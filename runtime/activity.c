/* Launches and plans as profilers and the log show them. */
#include "runtime/activity.h"
#include "opaque/log.h"

#include <string.h>

/* ---- launches */

enum { OPERANDS_MAX = 16 };

static bool is_operand(const opq_graph *graph, opq_ref ref, int32_t kernel)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_class class_ = opq_node_class(node);
    return node->kernel != kernel && class_ != OPQ_CLASS_CONST && class_ != OPQ_CLASS_SCALAR;
}

/* The values from outside that nodes of the kernel read, each once, in order of first use. */
static int operands_of(const opq_graph *graph, int32_t kernel, opq_type *out_types)
{
    const opq_kernel_group *group = &graph->kernels[kernel];
    opq_ref seen[OPERANDS_MAX];
    int count = 0;
    for (opq_ref n = group->first; n < group->first + group->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        for (int k = 0; k < node->arity && count < OPERANDS_MAX; k++) {
            bool known = !is_operand(graph, node->operand[k], kernel);
            for (int i = 0; i < count && !known; i++)
                known = seen[i] == node->operand[k];
            if (known)
                continue;
            out_types[count] = opq_node_at(graph, node->operand[k])->type;
            seen[count++] = node->operand[k];
        }
    }
    return count;
}

void *opq_activity_launch(const opq_host *host, const opq_plan *plan, const opq_step *rows, int32_t count)
{
    opq_type operands[OPERANDS_MAX];
    opq_type_text shape = opq_type_name(rows->largest);
    opq_activity activity = {.kind = OPQ_ACTIVITY_kernel,
                             .name = rows->name,
                             .shape = shape.text,
                             .lines = rows->lines,
                             .operands = operands,
                             .operand_count = operands_of(plan->graph, rows->order, operands),
                             .rows = count};
    for (int32_t i = 0; i < count; i++) {
        activity.bytes_read += rows[i].bytes_read;
        activity.bytes_written += rows[i].bytes_written;
        activity.flops += rows[i].flops;
    }
    return host->activity_begin(host->self, &activity);
}

/* ---- plans */

static void log_edges(const opq_plan *plan)
{
    for (int i = 0; i < plan->unfused.count; i++) {
        const opq_unfused_edge *edge = &plan->unfused.edges[i];
        const opq_node *producer = opq_node_at(plan->graph, edge->producer),
                       *consumer = opq_node_at(plan->graph, edge->consumer);
        opq_log("fusion: %%%d %s -> %%%d %s: %s (%s); %lld bytes%s%s", edge->producer, opq_node_info(producer)->name,
                edge->consumer, opq_node_info(consumer)->name, opq_refusal_name(edge->refusal),
                opq_refusal_text(edge->refusal), (long long)opq_type_bytes(&producer->type), producer->line ? ", " : "",
                producer->line ? producer->line : "");
    }
}

static void log_fusion(const opq_plan *plan)
{
    int64_t bytes = 0;
    int nodes = 0;
    for (int i = 0; i < plan->unfused.count; i++)
        bytes += opq_type_bytes(&opq_node_at(plan->graph, plan->unfused.edges[i].producer)->type);
    for (int32_t k = 0; k < plan->graph->kernel_count; k++)
        nodes += plan->graph->kernels[k].count;
    opq_log("fusion: %d nodes became %d kernels; %d edges are not fused, which store %lld bytes", nodes,
            plan->graph->kernel_count, plan->unfused.count, (long long)bytes);
    if (opq_logs(OPQ_LOG_fusion, OPQ_LOG_DEBUG))
        log_edges(plan);
}

void opq_plan_log(const opq_plan *plan, const char *why, double seconds)
{
    if (opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO))
        opq_log("plan: %d kernels in %d launches, %d compiled, %.3f ms of which %.3f ms compiling; %lld bytes of "
                "temporaries%s%s",
                plan->step_count, plan->wave_count, plan->compiled, 1e3 * seconds, 1e3 * plan->compile_seconds,
                (long long)plan->arena_bytes, why ? "; " : "", why ? why : "");
    for (const opq_fallback *f = plan->fallbacks; f && opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO); f = f->next)
        opq_log("plan: kernel %s could not be made, its ops are a kernel each: %s", f->kernel, f->reason);
    if (opq_logs(OPQ_LOG_fusion, OPQ_LOG_INFO))
        log_fusion(plan);
}
