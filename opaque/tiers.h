/* Whether a graph is worth a plan: what planning it costs against what it has cost to be without. Internal to opaque/; with run_lock held.
 *
 * What a graph loses by running without a plan is added up under its key. When it is as much as the plan will cost, the plan is made: then at
 * most twice the time of who knows the future is spent (ski rental; Karlin et al., Competitive snoopy caching, 1988). What plans cost for each
 * op is measured as they are made, and taken for less as runs go on without one. A graph that comes again within a few runs will come some more,
 * and one that comes for the third time, each time as many runs after the time before, is a loop's, which will go on.
 *
 * Whether a plan needs kernels that are nowhere is known only once it is made. So planning has an allowance for compiling (codegen_llvm/allowance.h): half of
 * what all graphs have lost by running without plans, less what was spent, and what this one will save. Where that is too little, the graph goes
 * on in pieces until it has lost what was missing.
 */
#ifndef OPAQUE_OPAQUE_TIERS_H
#define OPAQUE_OPAQUE_TIERS_H

#include "codegen_llvm/allowance.h"
#include "opaque/record.h"

#include <stddef.h>

/* model: as costs have it. off: every graph is planned before it runs. lazy: none is. eager: pieces are planned before they run. random: each
 * run and each piece has a plan or not by chance, for tests. */
typedef enum opq_tiers_mode {
    OPQ_TIERS_model,
    OPQ_TIERS_off,
    OPQ_TIERS_lazy,
    OPQ_TIERS_eager,
    OPQ_TIERS_random
} opq_tiers_mode;

enum { OPQ_TIERS_SEEN = 4096, OPQ_TIERS_KINDS = 512 };
typedef struct opq_tiers {
    opq_tiers_mode mode;
    double seconds_per_op; /* of planning graphs of several ops, lately, and of what was missing to compile them */
    double piece_seconds_per_op; /* of their pieces: much more once one had to be compiled, so that no run waits for many of these */
    double purse;                /* seconds lost by runs without a plan, less those spent on compiling */
    double near;                 /* share of the graphs that come again, lately, that do so within a few runs */
    double regular;              /* share of those that came three times, lately, that did so at equal distances */
    double loop_turns; /* of loops that have ended, lately */
    int turns;         /* of the loop that the last run was of; 0: it was of none */
    uint64_t runs, chance;
    struct opq_seen {
        uint64_t key, run; /* run: the last */
        uint64_t distance; /* runs from the time before to the last; 0: too many */
        int equal;         /* distances of late, all like the last */
        bool refused;      /* it has no plan */
        double lost;       /* seconds */
        double spent;      /* of these and of those that a plan will save, on compiling */
        double missing;    /* what a kernel that its plan needs takes beyond what there was for it */
        int in_pieces;     /* runs */
    } seen[OPQ_TIERS_SEEN];
    struct opq_kind {
        uint32_t kind, graphs, again; /* how many ran in pieces, lately; of these, more than once */
    } kinds[OPQ_TIERS_KINDS];
} opq_tiers;

/* A graph whose plan would save so many seconds of a run. */
typedef struct opq_tiers_graph {
    const void *key;
    size_t key_bytes;
    int ops;
    double seconds;
    uint32_t kind; /* hash of its ops, whatever their sizes */
} opq_tiers_graph;

opq_status opq_tiers_init(opq_tiers *tiers) OPQ_MUST_CHECK; /* reads OPAQUE_TIERS */
/* How a run goes: in pieces, or by a plan that is there or to be made, here or in the background. */
typedef struct opq_choice {
    opq_tier_kind tier;
    bool limited;            /* making it has an allowance, and may be refused; then the run goes in pieces */
    opq_allowance allowance; /* to be taken out of the purse when it is used */
    bool again;              /* it ran in pieces before, or will again, as most of its kind */
} opq_choice;
/* A plan of so many ops would save `seconds` of the run that comes; found: there is one, and nothing of the graph is asked. */
opq_choice opq_tiers_choose(opq_tiers *tiers, const opq_tiers_graph *graph, bool found);
/* And that of a piece of such a run, without a plan? */
opq_choice opq_tiers_choose_piece(opq_tiers *tiers, const opq_tiers_graph *piece);
/* Around the making of a plan that has an allowance: takes it out of the purse, and puts back what is left, and of that the seconds of planning,
 * without those of compiling. `given` is the one that was taken. */
void opq_tiers_take(opq_tiers *tiers, const opq_allowance *allowance);
void opq_tiers_settle(opq_tiers *tiers, const void *key, size_t key_bytes, const opq_allowance *given,
                      const opq_allowance *left, double planning);
/* The plan could not be made in the background: the graph goes on in pieces. */
void opq_tiers_refuse(opq_tiers *tiers, const void *key, size_t key_bytes);
/* Planning so many ops took so long, but for compiling; refused: with what was missing for that. */
void opq_tiers_planned(opq_tiers *tiers, int ops, double seconds, bool refused);
void opq_tiers_planned_piece(opq_tiers *tiers, int ops, double seconds, bool compiled);
/* What is known of a graph, but for what its thread and its ops say. Changes nothing. */
opq_tier opq_tiers_known(const opq_tiers *tiers, const opq_tiers_graph *graph, bool found);
/* No graph was seen; costs: nor was a plan made. */
void opq_tiers_forget(opq_tiers *tiers, bool costs);

#endif
