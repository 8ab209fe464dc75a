/* The order of groups: each comes after all whose results it needs.
 *
 * Kernels that need each other's results in a circle cannot run. A path from one group to another passes only groups that stand
 * between them, so whether there is one is asked of few groups: the search goes from both ends at once and is over when one of them
 * has nothing left. Nodes are visited in reverse: a new group stands first. A node that joins an older group may be needed by groups
 * that stand before that one. Then the side that was searched to its end moves, in its order, over to the other one.
 *
 *     H  b  x  f  G       n joins G, and H needs n. b -> G, H -> f; x has to do with neither
 *     b  G  H  x  f       what G needs was found first, or
 *     b  x  G  H  f       what needs n
 *
 * The line is a list. Places are numbers with gaps between them; where a gap is used up, all get new ones.
 */
#include "fusion/group_state.h"

#include <stdlib.h>
#include <string.h>

static const int64_t PLACE_GAP = (int64_t)1 << 32;

/* ---- the line: a ring, whose first and last group stand beside `ends` */

static void unlink_group(opq_group *group)
{
    group->before->behind = group->behind;
    group->behind->before = group->before;
}

static void link_behind(opq_group *before, opq_group *group)
{
    group->before = before;
    group->behind = before->behind;
    before->behind->before = group;
    before->behind = group;
}

static void renumber(opq_order *order)
{
    int64_t place = 0;
    for (opq_group *group = order->ends.behind; group != &order->ends; group = group->behind)
        group->place = place += PLACE_GAP;
}

/* Puts groups that are not in the line behind one that is. */
static void insert(opq_order *order, opq_group *before, opq_group *const *groups, int32_t count)
{
    const opq_group *behind = before->behind, *ends = &order->ends;
    int64_t low = before == ends ? (behind == ends ? 0 : behind->place) - PLACE_GAP * (count + 1) : before->place;
    int64_t high = behind == ends ? low + PLACE_GAP * (count + 1) : behind->place, step = (high - low) / (count + 1);
    for (int32_t i = 0; i < count; i++) {
        link_behind(before, groups[i]);
        groups[i]->place = low += step;
        before = groups[i];
    }
    if (step == 0)
        renumber(order);
}

void opq_order_begin(opq_order *order) { order->ends.before = order->ends.behind = &order->ends; }

void opq_order_new(opq_order *order, opq_group *group) { insert(order, &order->ends, &group, 1); }

/* ---- searching */

static void reach(opq_grouper *g, int direction, opq_group *group)
{
    opq_front *front = &g->order.front[direction];
    group->reached[direction] = g->order.search;
    front->groups[front->count++] = group;
}

/* An edge from a group that was reached. True: it closes a circle. */
static bool follow(opq_grouper *g, int direction, opq_group *from, opq_group *to)
{
    uint32_t search = g->order.search;
    g->order.front[direction].work++;
    if (from == to)
        return false;
    if (to->joining == search)
        return from->joining != search; /* a path inside of what becomes one is none */
    if (to->reached[!direction] == search)
        return true;
    if (to->reached[direction] != search && to->place > g->order.lowest->place && to->place < g->order.highest->place)
        reach(g, direction, to);
    return false;
}

static bool expand(opq_grouper *g, int direction)
{
    opq_front *front = &g->order.front[direction];
    opq_group *group = front->groups[front->expanded++];
    for (int i = 0; i < group->count; i++) {
        opq_ref n = group->members[i];
        if (direction == OPQ_LATER) {
            for (int32_t e = g->first_edge[n]; e >= 0; e = g->edges[e].next)
                if (follow(g, direction, group, &g->groups[g->result.group_of[g->edges[e].consumer]]))
                    return true;
        } else {
            for (int32_t e = g->first_need[n]; e < g->needs_end[n]; e++) {
                int32_t producer = g->result.group_of[g->edges[e].producer];
                if (producer >= 0 && follow(g, direction, group, &g->groups[producer]))
                    return true;
            }
        }
    }
    return false;
}

static bool is_exhausted(const opq_front *front) { return front->expanded == front->count; }

bool opq_order_has_cycle(opq_grouper *g, opq_ref n, const int32_t *ids, int count)
{
    opq_order *order = &g->order;
    opq_front *later = &order->front[OPQ_LATER], *earlier = &order->front[OPQ_EARLIER];
    opq_group *lowest = &g->groups[ids[0]], *highest = lowest;
    order->search++;
    *later = (opq_front){.groups = later->groups};
    *earlier = (opq_front){.groups = earlier->groups};
    for (int i = 0; i < count; i++) {
        opq_group *group = &g->groups[ids[i]];
        group->joining = order->search;
        lowest = group->place < lowest->place ? group : lowest;
        highest = group->place > highest->place ? group : highest;
    }
    for (int32_t e = n < 0 ? -1 : g->first_edge[n]; e >= 0; e = g->edges[e].next) {
        opq_group *other = &g->groups[g->result.group_of[g->edges[e].consumer]];
        if (other->joining == order->search || other->reached[OPQ_LATER] == order->search || other->place > highest->place)
            continue;
        reach(g, OPQ_LATER, other);
        lowest = other->place < lowest->place ? other : lowest;
    }
    order->lowest = lowest;
    order->highest = highest;
    if (lowest == highest)
        return false;
    for (int i = 0; i < count; i++) {
        reach(g, OPQ_LATER, &g->groups[ids[i]]);
        reach(g, OPQ_EARLIER, &g->groups[ids[i]]);
    }
    while (!is_exhausted(later) && !is_exhausted(earlier))
        if (expand(g, later->work <= earlier->work ? OPQ_LATER : OPQ_EARLIER))
            return true;
    return false;
}

/* ---- joining */

static int by_place(const void *a, const void *b)
{
    const opq_group *x = *(opq_group *const *)a, *y = *(opq_group *const *)b;
    return (x->place > y->place) - (x->place < y->place);
}

void opq_order_join(opq_grouper *g, const int32_t *ids, int count)
{
    opq_order *order = &g->order;
    if (order->lowest == order->highest)
        return;
    int direction = is_exhausted(&order->front[OPQ_EARLIER]) ? OPQ_EARLIER : OPQ_LATER;
    opq_group **moved = order->front[direction].groups, *joined = &g->groups[ids[0]];
    opq_group *before = order->lowest->before, *behind = order->highest->behind;
    int32_t moved_count = 0;
    for (int32_t i = 0; i < order->front[direction].count; i++)
        if (moved[i]->joining != order->search)
            moved[moved_count++] = moved[i];
    qsort(moved, (size_t)moved_count, sizeof *moved, by_place);
    if (direction == OPQ_LATER)
        memmove(moved + 1, moved, (size_t)moved_count * sizeof *moved);
    moved[direction == OPQ_LATER ? 0 : moved_count] = joined;
    for (int i = 1; i < count; i++)
        unlink_group(&g->groups[ids[i]]);
    for (int32_t i = 0; i <= moved_count; i++)
        unlink_group(moved[i]);
    insert(order, direction == OPQ_LATER ? behind->before : before, moved, moved_count + 1);
}
