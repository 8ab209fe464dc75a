/* Folds views of views, makes equal nodes one, drops what no output reaches. One forward walk numbers values, one backward walk marks.
 *
 *   reshape(reshape(x))   ->  reshape(x)             permute(permute(x))  ->  permute(x)
 *   a view that changes nothing, a cast to the same dtype  ->  its operand
 *   update(x, slice(x)) of one window  ->  x         what Python makes of x[i] += y ends so
 *   slice(slice(x))       ->  slice(x)
 *   matmul(x, cast(i8))   ->  matmul(x, i8)          a product widens i8 itself; of f32 the left one, if not the right one
 *   slice(update(x, y))   ->  slice(y) where the window has all of it, slice(x) where it has none: parts of a concat
 *
 * needs   verified graph
 * keeps   record order, lines, outputs, inputs (also unused ones: they are the caller's contract), every rounding
 * breaks  node numbers
 * not     arithmetic identities: x * 1 and x + 0 differ for NaN payloads and -0
 */
#define XXH_INLINE_ALL
#include "fusion/loop.h"
#include "fusion/pass.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct walk {
    const opq_graph *in;
    opq_graph *out;
    opq_ref *renamed;
    opq_ref *table; /* hash -> node of out, -1 empty */
    uint32_t mask;
} walk;

static bool same_attr(const opq_attr *a, const opq_attr *b)
{
    if (a->key != b->key || a->count != b->count || a->is_int != b->is_int)
        return false;
    switch (opq_attr_kind_of((opq_attr_key)a->key)) {
    case OPQ_ATTR_KIND_INTS: return memcmp(a->ints, b->ints, (size_t)a->count * sizeof *a->ints) == 0;
    case OPQ_ATTR_KIND_STR: return strcmp(a->str, b->str) == 0;
    case OPQ_ATTR_KIND_INT:
    case OPQ_ATTR_KIND_WORD:
    case OPQ_ATTR_KIND_NUMBER: break;
    }
    return a->i == b->i;
}

static bool same_node(const opq_node *a, const opq_node *b)
{
    if (a->op != b->op || a->arity != b->arity || a->attr_count != b->attr_count || !opq_type_equal(&a->type, &b->type))
        return false;
    for (int i = 0; i < a->attr_count; i++)
        if (!same_attr(&a->attr[i], &b->attr[i]))
            return false;
    return a->arity == 0 || memcmp(a->operand, b->operand, (size_t)a->arity * sizeof *a->operand) == 0;
}

static XXH64_hash_t hash_attr(const opq_attr *attr, XXH64_hash_t seed)
{
    switch (opq_attr_kind_of((opq_attr_key)attr->key)) {
    case OPQ_ATTR_KIND_INTS: return XXH3_64bits_withSeed(attr->ints, (size_t)attr->count * sizeof *attr->ints, seed);
    case OPQ_ATTR_KIND_STR: return XXH3_64bits_withSeed(attr->str, strlen(attr->str), seed);
    case OPQ_ATTR_KIND_INT:
    case OPQ_ATTR_KIND_WORD:
    case OPQ_ATTR_KIND_NUMBER: break;
    }
    return XXH3_64bits_withSeed(&attr->i, sizeof attr->i, seed);
}

static uint32_t hash_node(const opq_node *node)
{
    int64_t head[3] = {node->op, node->type.dtype, node->type.rank};
    XXH64_hash_t hash = XXH3_64bits(head, sizeof head);
    hash = XXH3_64bits_withSeed(node->type.size, (size_t)node->type.rank * sizeof *node->type.size, hash);
    hash = XXH3_64bits_withSeed(node->operand, (size_t)node->arity * sizeof *node->operand, hash);
    for (int i = 0; i < node->attr_count; i++)
        hash = hash_attr(&node->attr[i], hash);
    return (uint32_t)hash;
}

/* A slot is one value only with itself; what a call gives is its own. Of undefined memory nobody may rely on anything, so that equal
 * concats, which are written into it, are one. */
static bool may_merge(const opq_node *node)
{
    return node->op != OPQ_OP_input && node->op != OPQ_OP_scalar && node->op != OPQ_OP_extern;
}

/* Is the window that it writes the one that it read, of the same value? Dims of one element are none. */
static bool writes_back(const opq_graph *out, const opq_node *update)
{
    const opq_node *slice = opq_node_at(out, opq_strip_reshape(out, update->operand[1]));
    if (slice->op != OPQ_OP_slice || slice->operand[0] != update->operand[0])
        return false;
    const opq_attr *sizes = opq_node_attr(update, OPQ_ATTR_sizes), *strides = opq_node_attr(update, OPQ_ATTR_strides),
                   *start = opq_node_attr(slice, OPQ_ATTR_start), *step = opq_node_attr(slice, OPQ_ATTR_step);
    int64_t dense = 1, offset = opq_node_int(update, OPQ_ATTR_offset, 0);
    int at = sizes->count - 1;
    for (int d = slice->type.rank - 1; d >= 0; d--) {
        offset -= start->ints[d] * dense;
        while (at >= 0 && sizes->ints[at] == 1)
            at--;
        if (slice->type.size[d] != 1) {
            if (at < 0 || sizes->ints[at] != slice->type.size[d] || strides->ints[at] != step->ints[d] * dense)
                return false;
            at--;
        }
        dense *= update->type.size[d];
    }
    while (at >= 0 && sizes->ints[at] == 1)
        at--;
    return at < 0 && offset == 0;
}

/* All of the operand as it lies there, perhaps in another shape, is a reshape. */
static void name_reshape(const opq_graph *out, opq_node *node)
{
    if (node->op != OPQ_OP_strided ||
        opq_type_count(&node->type) != opq_type_count(&opq_node_at(out, node->operand[0])->type))
        return;
    const opq_attr *strides = opq_node_attr(node, OPQ_ATTR_strides);
    int64_t stride = 1;
    for (int d = node->type.rank - 1; d >= 0; stride *= node->type.size[d--])
        if (node->type.size[d] != 1 && strides->ints[d] != stride)
            return;
    node->op = OPQ_OP_reshape;
    node->attr_count = 0;
}

static opq_ref changes_nothing(const opq_graph *out, const opq_node *node)
{
    opq_class class_ = opq_node_class(node);
    if (node->op == OPQ_OP_update && writes_back(out, node))
        return node->operand[0];
    if ((class_ != OPQ_CLASS_VIEW && class_ != OPQ_CLASS_CAST) ||
        !opq_type_equal(&node->type, &opq_node_at(out, node->operand[0])->type))
        return -1;
    if (node->op == OPQ_OP_permute) {
        const opq_attr *dims = opq_node_attr(node, OPQ_ATTR_dims);
        for (int d = 0; d < node->type.rank; d++)
            if (dims->ints[d] != d)
                return -1;
    }
    if (node->op == OPQ_OP_slice) { /* the same shape: every step covers all, forwards or backwards */
        const opq_attr *step = opq_node_attr(node, OPQ_ATTR_step);
        for (int d = 0; d < node->type.rank; d++)
            if (node->type.size[d] > 1 && step->ints[d] != 1)
                return -1;
    }
    if (node->op == OPQ_OP_pad) { /* the same shape, moved */
        const opq_attr *start = opq_node_attr(node, OPQ_ATTR_start);
        for (int d = 0; d < node->type.rank; d++)
            if (start->ints[d] != 0)
                return -1;
    }
    if (node->op == OPQ_OP_strided) /* else name_reshape() had named it */
        return -1;
    return node->operand[0];
}

/* Two reshapes are one, two permutes are one. */
static void fold_view(const opq_graph *out, opq_node *node, opq_ref *operand, int64_t *dims, opq_attr *attr)
{
    const opq_node *inner = node->arity == 1 ? opq_node_at(out, *operand) : NULL;
    if (inner == NULL || inner->op != node->op)
        return;
    if (node->op == OPQ_OP_reshape || node->op == OPQ_OP_expand)
        *operand = inner->operand[0];
    if (node->op == OPQ_OP_permute) {
        const opq_attr *outer_dims = opq_node_attr(node, OPQ_ATTR_dims),
                       *inner_dims = opq_node_attr(inner, OPQ_ATTR_dims);
        for (int d = 0; d < node->type.rank; d++)
            dims[d] = inner_dims->ints[outer_dims->ints[d]];
        *attr = (opq_attr){.key = OPQ_ATTR_dims, .count = node->type.rank, .ints = dims};
        node->attr = attr;
        *operand = inner->operand[0];
    }
}

/* ---- slices of what was written */

/* The window's first index in each dim, if its dims and strides are those of the value that it is written into. */
static bool find_window(const opq_node *update, int64_t *out_first)
{
    const opq_attr *sizes = opq_node_attr(update, OPQ_ATTR_sizes), *strides = opq_node_attr(update, OPQ_ATTR_strides);
    int64_t offset = opq_node_int(update, OPQ_ATTR_offset, 0), dense = opq_type_count(&update->type);
    if (sizes->count != update->type.rank || dense == 0)
        return false;
    for (int d = 0; d < update->type.rank; d++) {
        dense /= update->type.size[d];
        out_first[d] = offset / dense;
        offset -= out_first[d] * dense;
        if ((sizes->ints[d] != 1 && strides->ints[d] != dense) || out_first[d] + sizes->ints[d] > update->type.size[d])
            return false;
    }
    return true;
}

typedef enum part { PART_none, PART_some, PART_all } part;

/* How much of the slice is in the window? */
static part part_inside(const opq_node *slice, const opq_node *update, const int64_t *first)
{
    const opq_attr *sizes = opq_node_attr(update, OPQ_ATTR_sizes), *start = opq_node_attr(slice, OPQ_ATTR_start),
                   *step = opq_node_attr(slice, OPQ_ATTR_step);
    part found = PART_all;
    for (int d = 0; d < slice->type.rank; d++) {
        int64_t one = start->ints[d], other = one + step->ints[d] * (slice->type.size[d] - 1);
        int64_t least = one < other ? one : other, most = one < other ? other : one;
        if (most < first[d] || least >= first[d] + sizes->ints[d])
            return PART_none;
        if (least < first[d] || most >= first[d] + sizes->ints[d])
            found = PART_some;
    }
    return found;
}

/* Room for the attributes of another slice. */
typedef struct slice_room {
    int64_t start[OPQ_RANK_MAX], step[OPQ_RANK_MAX];
    opq_attr attrs[2];
} slice_room;

static void read_slice(const opq_node *slice, slice_room *room)
{
    size_t bytes = (size_t)slice->type.rank * sizeof *room->start;
    memmove(room->start, opq_node_attr(slice, OPQ_ATTR_start)->ints, bytes);
    memmove(room->step, opq_node_attr(slice, OPQ_ATTR_step)->ints, bytes);
}

static void write_slice(opq_node *slice, slice_room *room)
{
    room->attrs[0] = (opq_attr){.key = OPQ_ATTR_start, .count = slice->type.rank, .ints = room->start};
    room->attrs[1] = (opq_attr){.key = OPQ_ATTR_step, .count = slice->type.rank, .ints = room->step};
    slice->attr = room->attrs;
    slice->attr_count = 2;
}

/* A slice of a slice is one. */
static void join_slices(opq_node *slice, const opq_node *of, slice_room *room)
{
    const opq_attr *start = opq_node_attr(of, OPQ_ATTR_start), *step = opq_node_attr(of, OPQ_ATTR_step);
    read_slice(slice, room);
    for (int d = 0; d < slice->type.rank; d++) {
        room->start[d] = start->ints[d] + room->start[d] * step->ints[d];
        room->step[d] *= step->ints[d];
    }
    write_slice(slice, room);
}

/* Looks through slices and updates. */
static void find_part(const opq_graph *out, opq_node *slice, opq_ref *operand, slice_room *room)
{
    int64_t first[OPQ_RANK_MAX];
    while (slice->op == OPQ_OP_slice && opq_type_count(&slice->type) > 0) {
        const opq_node *of = opq_node_at(out, *operand);
        if (of->op == OPQ_OP_slice) {
            join_slices(slice, of, room);
            *operand = of->operand[0];
            continue;
        }
        part inside = of->op == OPQ_OP_update && find_window(of, first) ? part_inside(slice, of, first) : PART_some;
        if (inside == PART_some)
            return;
        *operand = of->operand[inside == PART_all];
        if (inside == PART_none)
            continue;
        read_slice(slice, room);
        for (int d = 0; d < slice->type.rank; d++)
            room->start[d] -= first[d];
        write_slice(slice, room);
    }
}

/* ---- operands of products that are widened */

static bool is_widened(const opq_graph *out, const opq_node *node, opq_ref operand)
{
    const opq_node *cast = opq_node_at(out, operand);
    opq_dtype dtype = (opq_dtype)node->type.dtype;
    return cast->op == OPQ_OP_cast && cast->type.dtype == dtype &&
           opq_product_widens((opq_op)node->op, (opq_dtype)opq_node_at(out, cast->operand[0])->type.dtype, dtype);
}

/* Two of i8 would be summed in i32. */
static void widen_in_product(const opq_graph *out, const opq_node *node, opq_ref *operands)
{
    if (node->op != OPQ_OP_matmul || opq_compute_dtype((opq_dtype)node->type.dtype) != OPQ_f32)
        return;
    for (int k = 1; k >= 0; k--)
        if (is_widened(out, node, operands[k]) && opq_node_at(out, operands[1 - k])->type.dtype != OPQ_i8)
            operands[k] = opq_node_at(out, operands[k])->operand[0];
}

static opq_status number_node(walk *w, opq_ref n, opq_ref *operands)
{
    opq_node node = *opq_node_at(w->in, n);
    int64_t dims[OPQ_RANK_MAX];
    opq_attr attr;
    slice_room room;
    for (int k = 0; k < node.arity; k++)
        operands[k] = w->renamed[node.operand[k]];
    node.operand = operands;
    name_reshape(w->out, &node);
    fold_view(w->out, &node, operands, dims, &attr);
    find_part(w->out, &node, operands, &room);
    widen_in_product(w->out, &node, operands);
    opq_ref same = changes_nothing(w->out, &node);
    if (same >= 0) {
        w->renamed[n] = same;
        return OPQ_OK;
    }
    uint32_t slot = hash_node(&node) & w->mask;
    for (; may_merge(&node) && w->table[slot] >= 0; slot = (slot + 1) & w->mask)
        if (same_node(opq_node_at(w->out, w->table[slot]), &node)) {
            w->renamed[n] = w->table[slot];
            return OPQ_OK;
        }
    OPQ_TRY(opq_graph_append(w->out, &node, &w->renamed[n]));
    if (may_merge(&node))
        w->table[slot] = w->renamed[n];
    return OPQ_OK;
}

static opq_status number_values(const opq_graph *in, opq_graph *out)
{
    int32_t widest = 1;
    for (opq_ref n = 0; n < in->count; n++)
        widest = opq_node_at(in, n)->arity > widest ? opq_node_at(in, n)->arity : widest;
    walk w = {.in = in, .out = out, .mask = 15};
    while (w.mask < (uint32_t)in->count * 2)
        w.mask = w.mask * 2 + 1;
    w.renamed = malloc((size_t)(in->count + widest + 1) * sizeof *w.renamed);
    w.table = malloc((size_t)(w.mask + 1) * sizeof *w.table);
    opq_status status = w.renamed && w.table ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "simplify: out of memory");
    if (status == OPQ_OK)
        memset(w.table, 0xff, (size_t)(w.mask + 1) * sizeof *w.table);
    for (opq_ref n = 0; n < in->count && status == OPQ_OK; n++)
        status = number_node(&w, n, w.renamed + in->count);
    for (int i = 0; i < in->output_count && status == OPQ_OK; i++)
        status = opq_graph_output(out, w.renamed[in->outputs[i]]);
    free(w.renamed);
    free(w.table);
    return status;
}

/* Where the graph is, so that one without dead nodes is not copied. */
static opq_status drop_dead(opq_graph *graph)
{
    opq_ref *renamed = malloc((size_t)(graph->count + 1) * (sizeof *renamed + sizeof(bool)));
    bool *live = (bool *)(renamed + graph->count + 1);
    if (renamed == NULL)
        return opq_fail(OPQ_NO_MEMORY, "simplify: out of memory");
    memset(live, 0, (size_t)graph->count * sizeof *live);
    for (int i = 0; i < graph->output_count; i++)
        live[graph->outputs[i]] = true;
    for (opq_ref n = graph->count - 1; n >= 0; n--) {
        const opq_node *node = opq_node_at(graph, n);
        live[n] = live[n] || node->op == OPQ_OP_input;
        for (int k = 0; live[n] && k < node->arity; k++)
            live[node->operand[k]] = true;
    }
    opq_graph_keep(graph, live, renamed);
    free(renamed);
    return OPQ_OK;
}

opq_status opq_pass_simplify(const opq_graph *in, opq_graph *out)
{
    OPQ_TRY(number_values(in, out));
    return drop_dead(out);
}
