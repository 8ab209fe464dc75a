/* See tiers.h. */
#define XXH_INLINE_ALL
#include "opaque/tiers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Of planning and compiling an op, before any was measured; what one more plan adds to the mean. */
static const double FIRST_SECONDS_PER_OP = 200e-6, WEIGHT = 0.1;
/* Turns of a loop, before one has ended. */
static const double FIRST_LOOP_TURNS = 144;
/* Of planning one whose kernels are there. What was compiled is, so the price goes there a bit with each run without a plan: where plans are too
 * dear to be made, nothing else says that they no longer are. */
static const double LOADED_SECONDS_PER_OP = 15e-6, FADE = 1.0 / 256, PIECE_FADE = 1.0 / 32;

opq_status opq_tiers_init(opq_tiers *tiers)
{
    static const char *const names[] = {[OPQ_TIERS_model] = "model",
                                        [OPQ_TIERS_off] = "off",
                                        [OPQ_TIERS_lazy] = "lazy",
                                        [OPQ_TIERS_eager] = "eager",
                                        [OPQ_TIERS_random] = "random"};
    const char *name = getenv("OPAQUE_TIERS");
    tiers->seconds_per_op = tiers->piece_seconds_per_op = FIRST_SECONDS_PER_OP;
    tiers->near = tiers->regular = 1;
    tiers->loop_turns = FIRST_LOOP_TURNS;
    tiers->mode = OPQ_TIERS_model;
    if (name == NULL || !*name)
        return OPQ_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            tiers->mode = (opq_tiers_mode)i;
            return OPQ_OK;
        }
    return opq_fail(OPQ_INVALID, "OPAQUE_TIERS is \"%s\"; known are model, off, lazy, eager and random", name);
}

static struct opq_seen *look_up(opq_tiers *tiers, const void *key, size_t key_bytes)
{
    uint64_t hash = XXH3_64bits(key, key_bytes);
    struct opq_seen *seen = &tiers->seen[hash % OPQ_TIERS_SEEN];
    if (seen->key != hash)
        *seen = (struct opq_seen){.key = hash};
    return seen;
}

static void fade(double *seconds, double share)
{
    if (*seconds > LOADED_SECONDS_PER_OP)
        *seconds -= share * (*seconds - LOADED_SECONDS_PER_OP);
}

/* again: as often will the graph be seen. A plan that takes long is made in the background, unless this run alone is worth it, all its kernels
 * compiled: that is waited for. */
static opq_choice weigh(const opq_tiers *tiers, struct opq_seen *seen, const opq_tiers_graph *graph,
                        double seconds_per_op, double again)
{
    static const double LONG = 1e-3, COMPILED_SECONDS_PER_OP = 0.7e-3;
    double price = graph->ops * seconds_per_op + seen->missing, to_save = again * graph->seconds - seen->spent;
    to_save = to_save > 0 ? to_save : 0;
    seen->lost += graph->seconds;
    if (seen->refused || seen->lost + to_save < price)
        return (opq_choice){.tier = OPQ_TIER_pieces};
    if (graph->seconds >= graph->ops * COMPILED_SECONDS_PER_OP)
        return (opq_choice){.tier = OPQ_TIER_plan};
    double own = tiers->purse > 0 ? tiers->purse : 0;
    return (opq_choice){.tier = price > LONG ? OPQ_TIER_background : OPQ_TIER_plan,
                        .limited = true,
                        .allowance = {.seconds = own + to_save, .deposit = own}};
}

void opq_tiers_take(opq_tiers *tiers, const opq_allowance *allowance) { tiers->purse -= allowance->seconds; }

void opq_tiers_settle(opq_tiers *tiers, const void *key, size_t key_bytes, const opq_allowance *given,
                      const opq_allowance *left, double planning)
{
    struct opq_seen *seen = look_up(tiers, key, key_bytes);
    tiers->purse += left->seconds - planning;
    seen->spent += given->seconds - left->seconds;
    seen->missing = left->missing > 0 ? seen->lost + (given->seconds - given->deposit) + left->missing : 0;
}

/* A loop has ended with the first run that is not of it. */
static void note_loop(opq_tiers *tiers, int turns)
{
    static const double SHARE = 1.0 / 4;
    if (turns <= 1 && tiers->turns > 1)
        tiers->loop_turns += SHARE * (tiers->turns - tiers->loop_turns);
    tiers->turns = turns <= 1 ? 0 : turns > tiers->turns ? turns : tiers->turns;
}

/* How often a graph will be seen again, by when it was: what came a few runs ago comes some more times, as far as what came again before had
 * done so, too; and what came three times or more, each time as many runs after the time before, is of a loop, which goes on the longer the
 * longer it has gone on. If loops ended early lately, or much of what came three times came at other distances, it has only as many turns to come as
 * it had. */
static double to_come(opq_tiers *tiers, struct opq_seen *seen, uint64_t distance, bool is_new)
{
    enum { NEAR = 8, NEAR_TO_COME = 8, LOOP_TO_COME = 48 };
    static const double SHARE = 1.0 / 8, SHARE_OF_NEW = 1.0 / 64;
    bool near = distance > 0 && distance <= NEAR, third = distance > 0 && seen->distance > 0;
    if (third)
        tiers->regular += SHARE * ((distance == seen->distance) - tiers->regular);
    tiers->near += (is_new ? SHARE_OF_NEW : SHARE) * (near - tiers->near);
    seen->equal = distance > 0 && distance == seen->distance ? seen->equal + 1 : 1;
    seen->distance = distance;
    note_loop(tiers, seen->equal);
    double trust = tiers->regular * fmin(tiers->loop_turns / FIRST_LOOP_TURNS, 1);
    if (seen->equal > 1)
        return seen->equal + trust * trust * LOOP_TO_COME * (seen->equal + 1);
    return near ? NEAR_TO_COME * tiers->near : 0;
}

/* Of a run in pieces, of a graph that did so so many times: will it be one of several? */
static bool comes_again(opq_tiers *tiers, uint32_t kind, int runs)
{
    enum { LATELY = 32 };
    struct opq_kind *k = &tiers->kinds[kind % OPQ_TIERS_KINDS];
    if (k->kind != kind)
        *k = (struct opq_kind){.kind = kind};
    bool expected = k->again > 0 && 2 * k->again >= k->graphs;
    k->graphs += runs == 0;
    k->again += runs == 1;
    if (k->graphs >= LATELY) {
        k->graphs /= 2;
        k->again /= 2;
    }
    return runs > 0 || expected;
}

/* splitmix64 */
static opq_tier_kind by_chance(opq_tiers *tiers)
{
    uint64_t x = tiers->chance += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (opq_tier_kind[]){OPQ_TIER_plan, OPQ_TIER_pieces, OPQ_TIER_background}[(x ^ x >> 31) % 3];
}

static opq_choice choose_as_told(opq_tiers *tiers, const opq_tiers_graph *graph, bool found)
{
    bool random = tiers->mode == OPQ_TIERS_random;
    opq_choice choice = {.tier = random ? by_chance(tiers) : OPQ_TIER_pieces};
    if (!found)
        choice.again = look_up(tiers, graph->key, graph->key_bytes)->in_pieces++ > 0 ||
                       (random && by_chance(tiers) == OPQ_TIER_plan);
    return choice;
}

opq_choice opq_tiers_choose(opq_tiers *tiers, const opq_tiers_graph *graph, bool found)
{
    tiers->runs++;
    if (tiers->mode == OPQ_TIERS_off || (found && tiers->mode != OPQ_TIERS_random))
        return (opq_choice){.tier = OPQ_TIER_plan};
    if (tiers->mode != OPQ_TIERS_model)
        return choose_as_told(tiers, graph, found);
    fade(&tiers->seconds_per_op, FADE);
    fade(&tiers->piece_seconds_per_op, PIECE_FADE);
    enum { LOOP_MAX = 64 };
    static const double PURSE_MAX = 0.25,
                        PURSE_SHARE = 0.5; /* what may never be earned back is at most that much of what was lost */
    struct opq_seen *seen = look_up(tiers, graph->key, graph->key_bytes);
    bool is_new = seen->run == 0;
    uint64_t distance = !is_new && tiers->runs - seen->run <= LOOP_MAX ? tiers->runs - seen->run : 0;
    seen->run = tiers->runs;
    if (tiers->purse < PURSE_MAX) /* or a graph that is seen twice could spend what others lost in hours */
        tiers->purse += PURSE_SHARE * graph->seconds;
    opq_choice choice = weigh(tiers, seen, graph, tiers->seconds_per_op, to_come(tiers, seen, distance, is_new));
    if (choice.tier != OPQ_TIER_plan || choice.limited)
        choice.again = comes_again(tiers, graph->kind, seen->in_pieces++);
    return choice;
}

opq_choice opq_tiers_choose_piece(opq_tiers *tiers, const opq_tiers_graph *piece)
{
    switch (tiers->mode) {
    case OPQ_TIERS_lazy: return (opq_choice){.tier = OPQ_TIER_pieces};
    case OPQ_TIERS_random: return (opq_choice){.tier = by_chance(tiers)};
    case OPQ_TIERS_off:
    case OPQ_TIERS_eager: return (opq_choice){.tier = OPQ_TIER_plan};
    case OPQ_TIERS_model: break;
    }
    return weigh(tiers, look_up(tiers, piece->key, piece->key_bytes), piece, tiers->piece_seconds_per_op, 0);
}

void opq_tiers_refuse(opq_tiers *tiers, const void *key, size_t key_bytes)
{
    look_up(tiers, key, key_bytes)->refused = true;
}

void opq_tiers_planned(opq_tiers *tiers, int ops, double seconds, bool refused)
{
    static const double REFUSED_WEIGHT = 0.3; /* others will lack the same kernel */
    enum { FEW = 4 };                         /* which say little of what more of them take */
    if (ops > FEW || refused)
        tiers->seconds_per_op += (refused ? REFUSED_WEIGHT : WEIGHT) * (seconds / ops - tiers->seconds_per_op);
}

void opq_tiers_planned_piece(opq_tiers *tiers, int ops, double seconds, bool compiled)
{
    static const double COMPILED_WEIGHT = 0.5;
    tiers->piece_seconds_per_op += (compiled ? COMPILED_WEIGHT : WEIGHT) * (seconds / ops - tiers->piece_seconds_per_op);
}

/* ---- for who looks */

const char *opq_tier_kind_name(opq_tier_kind kind)
{
    static const char *const names[] = {
#define X(name) #name,
        OPQ_TIERS(X)
#undef X
    };
    return names[kind];
}

static opq_tier_kind kind_of(opq_tiers_mode mode)
{
    switch (mode) {
    case OPQ_TIERS_off: return OPQ_TIER_set_plan;
    case OPQ_TIERS_lazy:
    case OPQ_TIERS_eager:
    case OPQ_TIERS_random: return OPQ_TIER_set_pieces;
    case OPQ_TIERS_model: break;
    }
    return OPQ_TIER_pieces;
}

opq_tier opq_tiers_known(const opq_tiers *tiers, const opq_tiers_graph *graph, bool found)
{
    uint64_t hash = XXH3_64bits(graph->key, graph->key_bytes);
    const struct opq_seen *seen = &tiers->seen[hash % OPQ_TIERS_SEEN];
    return (opq_tier){.kind = found ? OPQ_TIER_plan : kind_of(tiers->mode),
                      .ops = graph->ops,
                      .in_pieces = seen->key == hash ? seen->in_pieces : 0,
                      .each = graph->seconds,
                      .price = graph->ops * tiers->seconds_per_op + (seen->key == hash ? seen->missing : 0)};
}

void opq_tiers_forget(opq_tiers *tiers, bool costs)
{
    memset(tiers->seen, 0, sizeof tiers->seen);
    memset(tiers->kinds, 0, sizeof tiers->kinds);
    tiers->near = tiers->regular = 1;
    tiers->loop_turns = FIRST_LOOP_TURNS;
    tiers->turns = 0;
    tiers->purse = 0;
    if (costs)
        tiers->seconds_per_op = tiers->piece_seconds_per_op = FIRST_SECONDS_PER_OP;
}
