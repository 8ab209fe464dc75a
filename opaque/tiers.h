/* Whether a graph is worth a plan: what planning it costs against what it has cost to be without. Internal to opaque/; with run_lock held.
 *
 * What a graph is run without a plan for is added up under its key. When it is as much as the plan will cost, the plan is made: then at most
 * twice the time of who knows the future is spent (ski rental; Karlin et al., Competitive snoopy caching, 1988). What plans cost for each
 * op is measured as they are made.
 */
#ifndef OPAQUE_OPAQUE_TIERS_H
#define OPAQUE_OPAQUE_TIERS_H

#include "opaque/opaque.h"

#include <stddef.h>

/* model: as costs have it. off: every graph is planned before it runs. lazy: none is. eager: pieces are planned before they run. */
typedef enum opq_tiers_mode { OPQ_TIERS_model, OPQ_TIERS_off, OPQ_TIERS_lazy, OPQ_TIERS_eager } opq_tiers_mode;

enum { OPQ_TIERS_SEEN = 4096 };
typedef struct opq_tiers {
    opq_tiers_mode mode;
    double seconds_per_op; /* of planning and compiling graphs of several ops, lately */
    struct opq_seen {
        uint64_t key;
        double lost; /* seconds */
    } seen[OPQ_TIERS_SEEN];
} opq_tiers;

opq_status opq_tiers_init(opq_tiers *tiers) OPQ_MUST_CHECK; /* reads OPAQUE_TIERS */
/* A plan of so many ops would have saved `seconds` of this run. Is it worth its price now? */
bool opq_tiers_pays(opq_tiers *tiers, const void *key, size_t key_bytes, int ops, double seconds);
void opq_tiers_planned(opq_tiers *tiers, int ops, double seconds);

#endif
