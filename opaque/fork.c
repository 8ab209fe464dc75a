/* Contexts in a child process.
 *
 * Only the forking thread lives on in the child. What another thread held at that moment would be held there for ever, so every lock
 * that is held for a bounded time without calling the host is taken before the fork and let go on both sides. The lock of runs is
 * not: a run may wait for the host (for Python's GIL, which the forking thread has). The child gets a new one; a run that another
 * thread had in flight never ends there, its values are still pending and are computed when they are needed. What it was writing over
 * (opq_buffer.taken) is neither the old value nor the new one: whoever needs it gets an error.
 *
 * The list of contexts is the process's: fork handlers have no argument.
 */
#include "opaque/context.h"

#include <stdlib.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static opq_ctx *contexts;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&list_lock);
    for (opq_ctx *ctx = contexts; ctx; ctx = ctx->next_context) {
        opq_background_lock(&ctx->background);
        opq_jit_lock(ctx->runtime.jit);
        opq_pool_lock(ctx->runtime.pool);
        opq_plan_cache_lock(ctx->plans);
        opq_spin_lock(&ctx->lock);
        opq_spin_lock(&ctx->values.lock);
    }
}

static void let_go(opq_ctx *ctx, bool in_child)
{
    opq_spin_unlock(&ctx->values.lock);
    opq_spin_unlock(&ctx->lock);
    opq_plan_cache_unlock(ctx->plans);
    opq_pool_unlock(ctx->runtime.pool);
    opq_jit_unlock(ctx->runtime.jit, in_child);
    opq_background_unlock(&ctx->background);
}

static void in_parent(void)
{
    for (opq_ctx *ctx = contexts; ctx; ctx = ctx->next_context)
        let_go(ctx, false);
    pthread_mutex_unlock(&list_lock);
}

static void in_child(void)
{
    for (opq_ctx *ctx = contexts; ctx; ctx = ctx->next_context) {
        for (const opq_job *job = ctx->background.working; job; job = job->next) /* lost here, with nothing spent */
            opq_tiers_settle(&ctx->tiers, job->key, job->key_bytes, &job->given, &job->given, 0);
        opq_background_in_child(&ctx->background);
        let_go(ctx, true);
        if (opq_running() != ctx)
            pthread_mutex_init(&ctx->run_lock, NULL);
    }
    pthread_mutex_unlock(&list_lock);
}

/* For who has not called opq_plans_end. */
static void at_exit(void)
{
    for (opq_ctx *ctx = contexts; ctx; ctx = ctx->next_context)
        opq_background_end(&ctx->background);
}

static void install(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
    atexit(at_exit);
}

void opq_fork_add(opq_ctx *ctx)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&list_lock);
    ctx->next_context = contexts;
    contexts = ctx;
    pthread_mutex_unlock(&list_lock);
}

void opq_fork_remove(opq_ctx *ctx)
{
    pthread_mutex_lock(&list_lock);
    opq_ctx **at = &contexts;
    while (*at && *at != ctx)
        at = &(*at)->next_context;
    if (*at)
        *at = ctx->next_context;
    pthread_mutex_unlock(&list_lock);
}
