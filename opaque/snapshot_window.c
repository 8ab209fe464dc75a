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

/* In elements of the leaf; false: no such view, of no element, or backwards. */
static bool walk_of(const opq_value *view, const opq_type *leaf, opq_view *out)
{
    const opq_attr *strides = attr_of(view, OPQ_ATTR_strides), *offset = attr_of(view, OPQ_ATTR_offset);
    const opq_attr *start = attr_of(view, OPQ_ATTR_start), *step = attr_of(view, OPQ_ATTR_step);
    int64_t dense = 1, last = 0;
    out->first = 0;
    if (view->op == OPQ_OP_strided && strides && offset) {
        out->first = offset->i;
        memcpy(out->strides, strides->ints, (size_t)view->type.rank * sizeof *out->strides);
    } else if (view->op == OPQ_OP_slice && start && step) {
        for (int d = leaf->rank - 1; d >= 0; dense *= leaf->size[d--]) {
            out->first += start->ints[d] * dense;
            out->strides[d] = step->ints[d] * dense;
        }
    } else {
        return false;
    }
    for (int d = 0; d < view->type.rank; d++) {
        if (out->strides[d] < 0 || view->type.size[d] == 0)
            return false;
        last += (view->type.size[d] - 1) * out->strides[d];
    }
    out->attrs[0] = (opq_attr){.key = OPQ_ATTR_offset};
    out->attrs[1] = (opq_attr){.key = OPQ_ATTR_strides, .count = view->type.rank, .ints = out->strides};
    int64_t span = last + 1;
    out->leaf = opq_type_make((opq_dtype)leaf->dtype, 1, &span);
    return true;
}

static bool is_replaced(const opq_snapshot *s, int32_t leaf)
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
    return opq_code_set(code) == OPQ_SET_leaf && !is_replaced(s, opq_code_number(code)) ? opq_code_number(code) : -1;
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
        if (leaf < 0 || !walk_of(s->nodes.items[i], &s->leaves.items[leaf]->type, made))
            continue;
        out_snapshot->leaves.items[at] = s->leaves.items[leaf];
        out_snapshot->view_of_leaf[at] = out_snapshot->view_of_node[i] = made++;
        out_snapshot->operands.items[s->first_operand.items[i]] = opq_code_make(OPQ_SET_leaf, at);
        out_snapshot->leaves.count++;
        *out_any = true;
    }
    return OPQ_OK;
}
