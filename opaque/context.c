/* A context: host table, runtime, statistics. */
#include "opaque/context.h"
#include "fusion/schedule.h"
#include "runtime/roofline.h"

#include <stdlib.h>
#include <string.h>

static const char *const reason_names[] = {
#define X(name) #name,
    OPQ_REASONS(X)
#undef X
};
const char *opq_reason_name(opq_reason reason) { return reason_names[reason]; }

bool opq_reason_hidden(opq_reason reason)
{
    switch (reason) {
    case OPQ_REASON_item:
    case OPQ_REASON_copy_to_host:
    case OPQ_REASON_print:
    case OPQ_REASON_bound:
    case OPQ_REASON_extern_now:
    case OPQ_REASON_collective:
    case OPQ_REASON_reinterpret: return true;
    case OPQ_REASON_synchronize:
    case OPQ_REASON_optimizer_step:
    case OPQ_REASON_inspect:
    case OPQ_REASON_eager:
    case OPQ_REASON_capture:
    case OPQ_REASON_COUNT: break;
    }
    return false;
}

static opq_status choose_executor(opq_runtime *runtime)
{
    const char *name = getenv("OPAQUE_EXECUTOR");
    if (name && strcmp(name, "reference") == 0)
        runtime->run_loops = opq_loops_eval;
    else if (name && strcmp(name, "schedule") == 0)
        runtime->run_loops = opq_schedule_eval;
    else
        runtime->run_loops = NULL;
    if (name && *name && !runtime->run_loops && strcmp(name, "jit") != 0)
        return opq_fail(OPQ_INVALID, "OPAQUE_EXECUTOR is \"%s\"; known are jit, reference and schedule", name);
    return OPQ_OK;
}

opq_status opq_ctx_create(const opq_host *host, opq_ctx **out_ctx)
{
    opq_ctx *ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory");
    if (host)
        ctx->host = *host;
    ctx->runtime.host = &ctx->host;
    pthread_mutex_init(&ctx->run_lock, NULL);
    opq_value_pool_init(&ctx->values);
    opq_status status = opq_plan_cache_create(OPQ_PLAN_MAX, OPQ_PLAN_BYTES_MAX, &ctx->plans);
    if (status == OPQ_OK)
        status = opq_repro_init(&ctx->repro);
    if (status == OPQ_OK)
        status = opq_tiers_init(&ctx->tiers);
    if (status == OPQ_OK)
        status = choose_executor(&ctx->runtime);
    if (status == OPQ_OK)
        status = opq_pool_create(&ctx->runtime.pool);
    if (status == OPQ_OK)
        status = opq_jit_create(&ctx->runtime.jit);
    if (status == OPQ_OK)
        status = opq_background_init(&ctx->background, &ctx->runtime);
    if (status == OPQ_OK)
        opq_jit_set_host(ctx->runtime.jit, &ctx->host);
    if (status == OPQ_OK)
        status = opq_gemm_create(opq_jit_cpu(ctx->runtime.jit), &ctx->host, &ctx->runtime.gemm);
    if (status != OPQ_OK) {
        opq_ctx_destroy(ctx);
        return status;
    }
    opq_fork_add(ctx);
    *out_ctx = ctx;
    return OPQ_OK;
}

void opq_ctx_destroy(opq_ctx *ctx)
{
    if (ctx == NULL)
        return;
    opq_fork_remove(ctx);
    opq_background_drop(&ctx->background);
    opq_sizes_forget(&ctx->sizes);
    opq_plan_cache_destroy(ctx->plans);
    opq_gemm_destroy(ctx->runtime.gemm);
    opq_jit_destroy(ctx->runtime.jit);
    opq_pool_destroy(ctx->runtime.pool);
    opq_value_pool_drop(&ctx->values);
    opq_repro_drop(&ctx->repro);
    opq_room_spares_drop(&ctx->spares);
    pthread_mutex_destroy(&ctx->run_lock);
    free(ctx);
}

opq_status opq_buffer_create(opq_ctx *ctx, size_t bytes, opq_buffer **out_buffer)
{
    return opq_pool_buffer(ctx->runtime.pool, bytes, out_buffer);
}

opq_status opq_buffer_adopt(opq_ctx *ctx, void *data, size_t bytes, void (*drop)(void *), void *arg,
                            opq_buffer **out_buffer)
{
    return opq_pool_adopt(ctx->runtime.pool, data, bytes, drop, arg, out_buffer);
}

void *opq_buffer_data(const opq_buffer *buffer) { return buffer->data; }
size_t opq_buffer_bytes(const opq_buffer *buffer) { return buffer->bytes; }
void opq_cache_empty(opq_ctx *ctx)
{
    opq_pool_trim(ctx->runtime.pool);
    opq_value_pool_trim(&ctx->values);
}

void opq_forget(opq_ctx *ctx, bool code)
{
    opq_plans_wait(ctx);
    pthread_mutex_lock(&ctx->run_lock);
    opq_plan_cache_clear(ctx->plans);
    opq_sizes_forget(&ctx->sizes);
    ctx->views = (opq_views){0};
    opq_tiers_forget(&ctx->tiers, code);
    if (code)
        opq_code_drop_idle(ctx->runtime.jit);
    pthread_mutex_unlock(&ctx->run_lock);
}

void opq_stats_read(opq_ctx *ctx, opq_stats *out)
{
    opq_memory_stats memory = opq_pool_stats(ctx->runtime.pool);
    *out = (opq_stats){
        .ops_recorded = atomic_load(&ctx->stats.ops_recorded),
        .kernels_run = atomic_load(&ctx->stats.kernels_run),
        .kernels_compiled = atomic_load(&ctx->stats.kernels_compiled),
        .kernels_loaded = atomic_load(&ctx->stats.kernels_loaded),
        .kernels_split = atomic_load(&ctx->stats.kernels_split),
        .runs_in_pieces = atomic_load(&ctx->stats.runs_in_pieces),
        .runs_joined = atomic_load(&ctx->stats.runs_joined),
        .captured_calls = atomic_load(&ctx->stats.captured_calls),
        .plans_built = atomic_load(&ctx->stats.plans_built),
        .plans_in_background = atomic_load(&ctx->stats.plans_in_background),
        .plans_failed = atomic_load(&ctx->stats.plans_failed),
        .plans_reused = atomic_load(&ctx->stats.plans_reused),
        .extern_calls = atomic_load(&ctx->stats.extern_calls),
        .bytes_read = atomic_load(&ctx->stats.bytes_read),
        .bytes_written = atomic_load(&ctx->stats.bytes_written),
        .bytes_allocated = memory.buffers[OPQ_MEMORY_all].bytes.current,
        .bytes_peak = memory.buffers[OPQ_MEMORY_all].bytes.peak,
        .bytes_reserved = memory.blocks[OPQ_MEMORY_all].bytes.current,
        .bytes_reserved_peak = memory.blocks[OPQ_MEMORY_all].bytes.peak,
        .bytes_packed = opq_packed_bytes(ctx->runtime.pool),
        .compile_seconds = (double)atomic_load(&ctx->stats.compile_nanoseconds) * 1e-9,
        .run_seconds = (double)atomic_load(&ctx->stats.run_nanoseconds) * 1e-9,
    };
    opq_code_usage(ctx->runtime.jit, &out->kernels_kept, &out->bytes_code);
    for (int r = 0; r < OPQ_REASON_COUNT; r++)
        out->flushes[r] = atomic_load(&ctx->stats.flushes[r]);
}

void opq_stats_reset(opq_ctx *ctx)
{
    atomic_llong *counters[] = {&ctx->stats.ops_recorded,    &ctx->stats.kernels_run,   &ctx->stats.kernels_compiled,
                                &ctx->stats.plans_built,     &ctx->stats.plans_reused,  &ctx->stats.extern_calls,
                                &ctx->stats.bytes_read,      &ctx->stats.bytes_written, &ctx->stats.compile_nanoseconds,
                                &ctx->stats.run_nanoseconds, &ctx->stats.kernels_split, &ctx->stats.kernels_loaded,
                                &ctx->stats.runs_in_pieces,  &ctx->stats.plans_failed,  &ctx->stats.plans_in_background,
                                &ctx->stats.runs_joined,     &ctx->stats.captured_calls};
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        atomic_store(counters[i], 0);
    for (int r = 0; r < OPQ_REASON_COUNT; r++)
        atomic_store(&ctx->stats.flushes[r], 0);
    opq_stats_reset_peak(ctx);
}

void opq_memory_info(int64_t *out_available, int64_t *out_total) { opq_machine_memory(out_available, out_total); }

opq_status opq_memory_blocks(opq_ctx *ctx, opq_memory_block **out_blocks, int *out_count)
{
    return opq_pool_blocks(ctx->runtime.pool, out_blocks, out_count);
}

void opq_stats_reset_peak(opq_ctx *ctx) { opq_pool_reset_peak(ctx->runtime.pool); }
opq_memory_stats opq_memory_stats_read(opq_ctx *ctx) { return opq_pool_stats(ctx->runtime.pool); }
void opq_memory_stats_reset(opq_ctx *ctx) { opq_pool_reset_totals(ctx->runtime.pool); }
void opq_memory_limit(opq_ctx *ctx, double fraction) { opq_pool_limit(ctx->runtime.pool, fraction); }
double opq_memory_fraction(opq_ctx *ctx) { return opq_pool_fraction(ctx->runtime.pool); }

opq_status opq_machine_roofline(opq_ctx *ctx, opq_roofline *out_roofline)
{
    return opq_roofline_measure(&ctx->runtime, out_roofline);
}
