/* Views of leaves without their offsets: each becomes a leaf of its own, which begins where the view does. So one plan serves y[0], y[1], ..,
 * and random crops, whose graphs differ in numbers that kernels take as arguments.
 *
 *   %1 = slice f32[1,3] %0 {start=[7,2], ..}, of %0 f32[9,5]      a leaf f32[3] at element 37 of %0
 *
 * A leaf whose memory an output is about to take stays as it is: what lies in its place is known to the plan alone. */
#include "opaque/snapshot.h"

#include <string.h>

static const opq_attr *attr_of(const opq_value *value, opq_attr_key key)
{
    for (int i = 0; i < value->attr_count; i++)
        if (value->attrs[i].key == key)
            return &value->attrs[i];
    return NULL;
}

/* ---- views of views, as strides over the first value */

static void dense_strides(const opq_type *type, int64_t *out_strides)
{
    int64_t stride = 1;
    for (int d = type->rank - 1; d >= 0; stride *= type->size[d--])
        out_strides[d] = stride;
}

static bool are_dense(const opq_type *type, const int64_t *strides)
{
    int64_t stride = 1;
    for (int d = type->rank - 1; d >= 0; stride *= type->size[d--])
        if (type->size[d] != 1 && strides[d] != stride)
            return false;
    return true;
}

/* Dims that lie one in the other are one; each of these becomes dims of the new shape, or none does. */
static bool reshape(const opq_type *from, int64_t *strides, const opq_type *to)
{
    int64_t made[OPQ_RANK_MAX], extent, covered, inner;
    int at = to->rank - 1;
    for (int d = from->rank - 1; d >= 0;) {
        inner = strides[d];
        for (extent = from->size[d--]; d >= 0 && (from->size[d] == 1 || strides[d] == extent * inner); d--)
            extent *= from->size[d];
        for (covered = 1; at >= 0 && (covered < extent || to->size[at] == 1); at--) {
            made[at] = covered * inner;
            covered *= to->size[at];
        }
        if (covered != extent)
            return false;
    }
    for (; at >= 0; at--) /* of one element */
        made[at] = 1;
    memcpy(strides, made, (size_t)to->rank * sizeof *made);
    return true;
}

/* From `out`, which describes the operand of this type, to its view. */
static bool look_through(const opq_value *view, const opq_type *type, opq_view *out)
{
    const opq_attr *strides = attr_of(view, OPQ_ATTR_strides), *offset = attr_of(view, OPQ_ATTR_offset),
                   *start = attr_of(view, OPQ_ATTR_start), *step = attr_of(view, OPQ_ATTR_step),
                   *dims = attr_of(view, OPQ_ATTR_dims);
    int64_t before[OPQ_RANK_MAX];
    int rank = view->type.rank, added = rank - type->rank;
    memcpy(before, out->strides, sizeof before);
    switch ((int)view->op) {
    case OPQ_OP_reshape: return reshape(type, out->strides, &view->type);
    case OPQ_OP_permute:
        for (int d = 0; d < rank; d++)
            out->strides[d] = before[dims->ints[d]];
        return true;
    case OPQ_OP_expand:
        for (int d = 0; d < rank; d++)
            out->strides[d] = d < added || type->size[d - added] != view->type.size[d] ? 0 : before[d - added];
        return true;
    case OPQ_OP_slice:
        for (int d = 0; d < rank; d++) {
            out->first += start->ints[d] * before[d];
            out->strides[d] = step->ints[d] * before[d];
        }
        return true;
    case OPQ_OP_strided:
        if (!are_dense(type, before))
            return false;
        out->first += offset->i;
        memcpy(out->strides, strides->ints, (size_t)rank * sizeof *before);
        return true;
    default: return false;
    }
}

/* What the view reads becomes a leaf of its own. Not of no element, and not backwards. */
static bool finish(const opq_value *view, opq_view *out)
{
    int64_t last = 0;
    for (int d = 0; d < view->type.rank; d++) {
        if (out->strides[d] < 0 || view->type.size[d] == 0)
            return false;
        last += (view->type.size[d] - 1) * out->strides[d];
    }
    out->attrs[0] = (opq_attr){.key = OPQ_ATTR_offset};
    out->attrs[1] = (opq_attr){.key = OPQ_ATTR_strides, .count = view->type.rank, .ints = out->strides};
    int64_t span = last + 1;
    out->leaf = opq_type_make((opq_dtype)view->type.dtype, 1, &span);
    return true;
}

bool opq_view_make(const opq_value *view, const opq_type *operand, const opq_view *of, opq_view *out_view)
{
    if (of) {
        out_view->first = of->first;
        memcpy(out_view->strides, of->strides, sizeof of->strides);
    } else {
        out_view->first = 0;
        dense_strides(operand, out_view->strides);
    }
    return look_through(view, operand, out_view) && finish(view, out_view);
}

bool opq_snapshot_replaces(const opq_snapshot *s, int32_t leaf)
{
    for (int i = 0; i < s->replaces.count; i++)
        if (s->replaces.items[i] == leaf)
            return true;
    return false;
}

/* The leaf that a node is a view of, -1. */
static int32_t viewed_by(const opq_snapshot *s, int node)
{
    const opq_value *value = s->nodes.items[node];
    if (value->op != OPQ_OP_slice && value->op != OPQ_OP_strided)
        return -1;
    int32_t code = s->operands.items[s->first_operand.items[node]];
    return opq_code_set(code) == OPQ_SET_leaf && !opq_snapshot_replaces(s, opq_code_number(code)) ? opq_code_number(code)
                                                                                                  : -1;
}

static opq_status copy_lists(const opq_snapshot *s, int views, opq_snapshot *out)
{
    size_t nodes = (size_t)s->nodes.count, leaves = (size_t)(s->leaves.count + views);
    out->leaves.items = opq_room_take(s->room, leaves * sizeof *s->leaves.items);
    out->operands.items = opq_room_take(s->room, (size_t)s->operands.count * sizeof *s->operands.items);
    out->view_of_node = opq_room_take(s->room, nodes * sizeof *out->view_of_node);
    out->view_of_leaf = opq_room_take(s->room, leaves * sizeof *out->view_of_leaf);
    if (!out->leaves.items || !out->operands.items || !out->view_of_node || !out->view_of_leaf)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the views of a graph");
    memcpy(out->leaves.items, s->leaves.items, (size_t)s->leaves.count * sizeof *s->leaves.items);
    memcpy(out->operands.items, s->operands.items, (size_t)s->operands.count * sizeof *s->operands.items);
    memset(out->view_of_node, 0, nodes * sizeof *out->view_of_node);
    memset(out->view_of_leaf, 0, leaves * sizeof *out->view_of_leaf);
    return OPQ_OK;
}

opq_status opq_snapshot_without_offsets(const opq_snapshot *s, opq_snapshot *out_snapshot, bool *out_any)
{
    int views = 0;
    for (int i = 0; i < s->nodes.count; i++)
        views += viewed_by(s, i) >= 0;
    *out_any = false;
    if (views == 0)
        return OPQ_OK;
    *out_snapshot = *s;
    out_snapshot->key = NULL;
    out_snapshot->key_bytes = out_snapshot->key_capacity = 0;
    OPQ_TRY(copy_lists(s, views, out_snapshot));
    opq_view *made = opq_room_take(s->room, (size_t)views * sizeof *made);
    if (made == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for the views of a graph");
    for (int i = 0; i < s->nodes.count; i++) {
        int32_t leaf = viewed_by(s, i), at = out_snapshot->leaves.count;
        if (leaf < 0 || !opq_view_make(s->nodes.items[i], &s->leaves.items[leaf]->type, NULL, made))
            continue;
        out_snapshot->leaves.items[at] = s->leaves.items[leaf];
        out_snapshot->view_of_leaf[at] = out_snapshot->view_of_node[i] = made++;
        out_snapshot->operands.items[s->first_operand.items[i]] = opq_code_make(OPQ_SET_leaf, at);
        out_snapshot->leaves.count++;
        *out_any = true;
    }
    return OPQ_OK;
}
