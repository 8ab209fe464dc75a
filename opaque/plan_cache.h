/* Plans by the canonical key of their graph. Internal to opaque/. Thread-safe.
 *
 * Bounded in number and in bytes: a loop whose sequence grows makes a plan of every iteration, and a plan of a long training step is
 * megabytes. The least recently used go first. A plan is refcounted, so one that is running outlives its entry. Its machine code
 * counts as its bytes, though plans share it: two mappings of the process belong to each kernel, of which the system allows about 65,000.
 */
#ifndef OPAQUE_OPAQUE_PLAN_CACHE_H
#define OPAQUE_OPAQUE_PLAN_CACHE_H

#include "runtime/plan.h"

struct opq_snapshot;

typedef struct opq_plan_cache opq_plan_cache;

/* The newest plan stays even if it alone is larger than max_bytes: otherwise a loop would build it in every iteration. */
opq_status opq_plan_cache_create(size_t max_count, size_t max_bytes, opq_plan_cache **out_cache) OPQ_MUST_CHECK;
void opq_plan_cache_destroy(opq_plan_cache *cache);

/* A reference to the plan under this key, or NULL. Keys are compared whole. */
opq_plan *opq_plan_cache_find(opq_plan_cache *cache, const void *key, size_t key_bytes);
/* Takes a reference of its own. Without memory for the entry nothing is kept and the plan is built again next time. A key that is
 * already there keeps its plan, unless that is joined of others and this is not. Plans that have to go are released here: the caller holds no lock that the host may want. */
void opq_plan_cache_keep(opq_plan_cache *cache, const void *key, size_t key_bytes, opq_plan *plan);
/* Calls `look` with the keys, those used last first, until it is false. The lock is held. */
void opq_plan_cache_each(opq_plan_cache *cache, bool (*look)(void *data, const void *key, size_t key_bytes), void *data);
/* The plan under a key that is there becomes this one, of which a reference is taken. */
void opq_plan_cache_replace(opq_plan_cache *cache, const void *key, size_t key_bytes, opq_plan *plan);
void opq_plan_cache_clear(opq_plan_cache *cache);

/* Entries, and their bytes with keys. */
size_t opq_plan_cache_count(opq_plan_cache *cache);
size_t opq_plan_cache_bytes(opq_plan_cache *cache);

/* Hashes of the keys of graphs for any offsets of their views, the last ones that were met, and those with the first offsets of each. Not
 * thread-safe. */
enum { OPQ_VIEWS = 256 };
typedef struct opq_views {
    uint64_t hash[OPQ_VIEWS], first[OPQ_VIEWS];
    unsigned at;
    uint32_t moving[OPQ_VIEWS]; /* kinds of graphs (opq_snapshot_kind) that had such a plan last */
} opq_views;
/* Was the graph met before, with other offsets than `given` has first? Now it was met. */
bool opq_views_moved(opq_views *views, const struct opq_snapshot *any, const struct opq_snapshot *given);

void opq_plan_cache_lock(opq_plan_cache *cache); /* around a fork */
void opq_plan_cache_unlock(opq_plan_cache *cache);

#endif
