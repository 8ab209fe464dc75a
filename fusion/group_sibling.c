/* Siblings: groups that do not need each other, but read the same memory, become one kernel, which reads it once.
 *
 *        x                    sum   [rows]      one sweep over x: both reductions, two results
 *       / \
 *   sum(x) sum(x * x)
 *
 * Groups are candidates where they walk the same elements: through no view, or through one and the same. They are tried by twos, and a
 * trial says whether loads became one. What they share has to be much of what one of them reads: an optimizer's updates, which share a
 * number, stay apart. So do groups that were recorded far from each other: what one makes would wait for its reader, and to find out
 * whether one needs the other would take long.
 *
 * needs   all nodes placed, blocks made
 * keeps   every node, every rounding
 * not     groups over other numbers of elements, in-place writes, calls, what may fail; scans and reductions by columns with what is none: large
 *         results are not stored in strips
 */
#include "fusion/group_state.h"

#include <stdlib.h>
#include <string.h>

/* FAILURES_MAX bounds the trials of a group, OPEN_MAX those for one value. */
enum { SIBLINGS_MAX = 8, FAILURES_MAX = 4, OPEN_MAX = 4, NEAR_NODES = 64 };

/* What is known of a group. */
typedef struct sibling {
    bool fits, measured;
    bool scans, columns; /* columns: its rows are walked one after another, a strip of them at a time */
    int joined, failures;
    int64_t elements; /* that its loops walk */
    int64_t read;     /* bytes */
} sibling;

typedef struct reader {
    opq_ref node;
    int32_t group, next; /* group: of the node when it was found */
} reader;

typedef struct family {
    opq_grouper *g;
    sibling *of;     /* per group */
    int32_t *first;  /* per node: its readers, -1 */
    reader *readers; /* a node of each group that reads it */
    int32_t count;
} family;

/* ---- groups */

static bool takes_siblings(opq_class class_)
{
    static const unsigned classes = 1u << OPQ_CLASS_EWISE | 1u << OPQ_CLASS_CAST | 1u << OPQ_CLASS_REDUCE |
                                    1u << OPQ_CLASS_SCAN | 1u << OPQ_CLASS_RANDOM | 1u << OPQ_CLASS_IOTA |
                                    1u << OPQ_CLASS_VIEW;
    return classes >> class_ & 1;
}

/* A kernel that fails has no results: what divides by numbers of a tensor, or reads at indices, does not take others along. */
static bool may_fail(const opq_grouper *g, const opq_node *node)
{
    return opq_node_divides(node) && opq_node_class(opq_node_at(g->in, node->operand[1])) != OPQ_CLASS_SCALAR;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static bool is_followed(const opq_grouper *g, opq_ref ref)
{
    return opq_node_class(opq_node_at(g->in, ref)) == OPQ_CLASS_VIEW && !g->result.in_memory[ref] &&
           g->result.group_of[ref] < 0;
}

/* What the operand of a group's node walks: memory, all of it, or the view that stands for a part of it. -1: no memory. */
static opq_ref walked_by(const opq_grouper *g, const opq_node *node, int k, int32_t group)
{
    opq_ref ref = node->operand[k], base;
    for (; is_followed(g, ref); ref = opq_node_at(g->in, ref)->operand[0]) {
        opq_op op = (opq_op)opq_node_at(g->in, ref)->op;
        if (op != OPQ_OP_reshape && op != OPQ_OP_permute && op != OPQ_OP_expand)
            break;
    }
    for (base = ref; is_followed(g, base);)
        base = opq_node_at(g->in, base)->operand[0];
    bool number = opq_node_is_free(g->in, base) && !g->result.in_memory[base] && g->result.group_of[base] < 0;
    return number || g->result.group_of[base] == group ? -1 : ref;
}

static void look_at_node(family *f, opq_ref n, int32_t group)
{
    const opq_grouper *g = f->g;
    const opq_node *node = opq_node_at(g->in, n);
    sibling *s = &f->of[group];
    s->fits = s->fits && takes_siblings(opq_node_class(node)) && !may_fail(g, node);
    s->scans = s->scans || opq_node_class(node) == OPQ_CLASS_SCAN;
    s->columns = s->columns || (opq_node_class(node) == OPQ_CLASS_REDUCE &&
                                opq_node_int(node, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column);
    s->elements = larger(s->elements, opq_type_count(&node->type));
    if (opq_node_class(node) == OPQ_CLASS_REDUCE)
        s->elements = larger(s->elements, opq_type_count(&opq_node_at(g->in, node->operand[0])->type));
    for (int k = 0; k < node->arity && s->fits; k++) {
        opq_ref of = walked_by(g, node, k, group);
        if (of < 0 || opq_type_count(&opq_node_at(g->in, of)->type) == 1)
            continue;
        if (f->first[of] >= 0 && f->readers[f->first[of]].group == group)
            continue;
        s->read += opq_type_bytes(&opq_node_at(g->in, of)->type);
        f->readers[f->count] = (reader){n, group, f->first[of]};
        f->first[of] = f->count++;
    }
}

static void look_at_group(family *f, int32_t group)
{
    const opq_group *members = &f->g->groups[group];
    f->of[group] = (sibling){.fits = true, .joined = 1};
    for (int i = 0; i < members->count; i++)
        look_at_node(f, members->members[i], group);
}

/* ---- pairs */

bool opq_group_are_near(const opq_grouper *g, int32_t a, int32_t b)
{
    const opq_group *x = &g->groups[a], *y = &g->groups[b]; /* members descend */
    return x->members[x->count - 1] - y->members[0] <= NEAR_NODES &&
           y->members[y->count - 1] - x->members[0] <= NEAR_NODES;
}

static bool worth_trying(const family *f, int32_t a, int32_t b, int64_t shared)
{
    const sibling *x = &f->of[a], *y = &f->of[b];
    return x->elements == y->elements && x->scans == y->scans && x->columns == y->columns &&
           x->joined + y->joined <= SIBLINGS_MAX && 2 * shared >= (x->read < y->read ? x->read : y->read) &&
           opq_group_are_near(f->g, a, b);
}

/* How many loads has the group? Nodes that joined it without a trial were not counted. */
static opq_status measure(family *f, int32_t id)
{
    opq_refusal refusal;
    if (f->of[id].measured)
        return OPQ_OK;
    f->of[id].measured = true;
    OPQ_TRY(opq_group_try(f->g, -1, &id, 1, &f->g->groups[id].fill, &refusal));
    f->of[id].fits = refusal == OPQ_REFUSAL_none;
    return OPQ_OK;
}

static opq_status try_pair(family *f, int32_t a, int32_t b, int64_t shared, bool *out_joined)
{
    const int32_t ids[] = {a, b};
    opq_refusal refusal;
    opq_fill fill;
    *out_joined = false;
    if (!worth_trying(f, a, b, shared))
        return OPQ_OK;
    OPQ_TRY(measure(f, a));
    OPQ_TRY(measure(f, b));
    if (!f->of[a].fits || !f->of[b].fits)
        return OPQ_OK;
    OPQ_TRY(opq_group_try(f->g, -1, ids, 2, &fill, &refusal));
    if (refusal != OPQ_REFUSAL_none || fill.loads >= f->g->groups[a].fill.loads + f->g->groups[b].fill.loads) {
        f->of[a].failures++;
        f->of[b].failures++;
        return OPQ_OK;
    }
    sibling *x = &f->of[a], *y = &f->of[b];
    x->joined += y->joined;
    x->read += y->read - shared;
    *out_joined = true;
    return opq_group_join(f->g, -1, ids, 2, fill);
}

/* The readers of one value: each is tried with the last few groups that did not join. */
static opq_status join_readers(family *f, opq_ref of)
{
    int32_t open[OPEN_MAX];
    int count = 0;
    int64_t shared = opq_type_bytes(&opq_node_at(f->g->in, of)->type);
    for (int32_t r = f->first[of]; r >= 0; r = f->readers[r].next) {
        int32_t id = f->g->result.group_of[f->readers[r].node];
        bool joined = !f->of[id].fits || f->of[id].failures >= FAILURES_MAX;
        for (int i = 0; i < count; i++)
            joined = joined || open[i] == id;
        for (int i = count - 1; i >= 0 && !joined; i--)
            OPQ_TRY(try_pair(f, open[i], id, shared, &joined));
        if (joined)
            continue;
        if (count == OPEN_MAX)
            memmove(open, open + 1, (size_t)--count * sizeof *open);
        open[count++] = id;
    }
    return OPQ_OK;
}

opq_status opq_group_siblings(opq_grouper *g)
{
    size_t nodes = (size_t)g->in->count + 1, uses = (size_t)g->first_user[g->in->count] + 1;
    family f = {.g = g};
    f.of = malloc(((size_t)g->group_count + 1) * sizeof *f.of);
    f.first = malloc(nodes * sizeof *f.first);
    f.readers = malloc(uses * sizeof *f.readers);
    opq_status status = f.of && f.first && f.readers ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    if (status == OPQ_OK)
        memset(f.first, 0xff, nodes * sizeof *f.first);
    for (int32_t i = 0; i < g->group_count && status == OPQ_OK; i++)
        look_at_group(&f, i);
    for (opq_ref n = 0; n < g->in->count && status == OPQ_OK; n++)
        status = join_readers(&f, n);
    free(f.of);
    free(f.first);
    free(f.readers);
    return status;
}
