/* Running a snapshot piece by piece, each with a plan of its own. Internal to opaque/; with run_lock held.
 *
 * A piece is some nodes in record order (piece_cut.c). Where one ends is decided by its neighbourhood alone: before a product of a leaf (a
 * weight), where something begins that needs nothing of the last piece, and after so many nodes; an elementwise op or a reduction that is the last
 * to need what an earlier piece made belongs to that. So graphs that differ in length, or in the order of equal parts, are made of equal pieces,
 * whose plans there are. Views and constants belong to each piece that needs them. A piece that has no plan runs
 * op by op, until a plan pays (tiers.h): what is fused and what is not has the same bits.
 */
#ifndef OPAQUE_OPAQUE_PIECES_H
#define OPAQUE_OPAQUE_PIECES_H

#include "opaque/execution.h"

/* False: what is fused decides how halves are rounded, or an extern call and its results stand apart. */
bool opq_pieces_possible(const opq_snapshot *snapshot);
/* Seconds that one plan for all of it would save in a run: launches, and what goes through memory. */
double opq_pieces_saving(const opq_snapshot *snapshot);
/* That, and what the plan takes: what its tier is chosen by. Its key was made. */
opq_tiers_graph opq_pieces_weighed(const opq_snapshot *snapshot);
/* What is there also after a failure. */
typedef struct opq_pieces_result {
    opq_buffer **outputs; /* per output of the snapshot, as of opq_run_call; the caller's */
    bool mixed;           /* too */
    bool planned;         /* there was a plan for each piece */
    bool join;            /* is wanted: */
    opq_plan *joined;     /* the plans of all pieces as one, which ran; a reference; NULL: they cannot be joined */
} opq_pieces_result;
/* tier: OPQ_TIER_background if a plan of the whole graph is being made; then pieces that have none get none. */
opq_status opq_pieces_run(const opq_runner *runner, const opq_snapshot *snapshot, opq_tier_kind tier,
                          opq_pieces_result *result) OPQ_MUST_CHECK;
/* Another run, by the plan that the pieces were joined to. False: it failed, and there are no outputs; the pieces say why, from what they are given,
 * which is still there. */
bool opq_pieces_run_joined(const opq_runner *runner, const opq_snapshot *snapshot, opq_plan *joined,
                           opq_buffer **outputs);

#endif
