/* See tiers.h. */
#define XXH_INLINE_ALL
#include "opaque/tiers.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Of planning and compiling an op, before any was measured; what one more plan adds to the mean. */
static const double FIRST_SECONDS_PER_OP = 200e-6, WEIGHT = 0.1;

opq_status opq_tiers_init(opq_tiers *tiers)
{
    static const char *const names[] = {
        [OPQ_TIERS_model] = "model", [OPQ_TIERS_off] = "off", [OPQ_TIERS_lazy] = "lazy", [OPQ_TIERS_eager] = "eager"};
    const char *name = getenv("OPAQUE_TIERS");
    tiers->seconds_per_op = FIRST_SECONDS_PER_OP;
    tiers->mode = OPQ_TIERS_off;
    if (name == NULL || !*name)
        return OPQ_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            tiers->mode = (opq_tiers_mode)i;
            return OPQ_OK;
        }
    return opq_fail(OPQ_INVALID, "OPAQUE_TIERS is \"%s\"; known are model, off, lazy and eager", name);
}

bool opq_tiers_pays(opq_tiers *tiers, const void *key, size_t key_bytes, int ops, double seconds)
{
    uint64_t hash = XXH3_64bits(key, key_bytes);
    struct opq_seen *seen = &tiers->seen[hash % OPQ_TIERS_SEEN];
    if (seen->key != hash)
        *seen = (struct opq_seen){.key = hash};
    seen->lost += seconds;
    return seen->lost >= ops * tiers->seconds_per_op;
}

void opq_tiers_planned(opq_tiers *tiers, int ops, double seconds)
{
    enum { FEW = 4 }; /* which say little of what more of them take */
    if (ops > FEW)
        tiers->seconds_per_op += WEIGHT * (seconds / ops - tiers->seconds_per_op);
}
