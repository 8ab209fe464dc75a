/* Reductions, by the rule of opq_tree and nothing else.
 *
 * The elements of one result element are written out in row-major order of the reduced axes, then folded. Sums of f16 and bf16
 * and every other fold of them run in f32 and are rounded once, at the end.
 */
#include "graph/eval.h"

#include <math.h>
#include <stdlib.h>

/* What one reduction node does, chosen once. */
typedef struct plan {
    opq_eval_folding folding;
    int64_t *offsets; /* where the elements behind one result are, from the first one on */
    opq_number *elements;
} plan;

static int64_t int_min(opq_dtype dtype)
{
    opq_dtype_kind kind = opq_dtype_kind_of(dtype);
    return kind == OPQ_KIND_INT ? (int64_t)(UINT64_MAX << (8 * opq_dtype_bytes(dtype) - 1)) : 0;
}

static int64_t int_max(opq_dtype dtype)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_BOOL: return 1;
    case OPQ_KIND_UINT: return (int64_t)((UINT64_C(1) << (8 * opq_dtype_bytes(dtype))) - 1);
    case OPQ_KIND_INT: return ~int_min(dtype);
    case OPQ_KIND_FLOAT:
    case OPQ_KIND_RAW: break;
    }
    return 0;
}

opq_number opq_eval_identity(opq_fold fold, opq_dtype dtype)
{
    bool is_float = opq_eval_is_float(dtype);
    switch (opq_fold_info_of(fold)->identity) {
    case OPQ_IDENTITY_zero: break;
    case OPQ_IDENTITY_one: return is_float ? (opq_number){.f = 1} : (opq_number){.i = 1};
    case OPQ_IDENTITY_least: return is_float ? (opq_number){.f = -INFINITY} : (opq_number){.i = int_min(dtype)};
    case OPQ_IDENTITY_greatest: return is_float ? (opq_number){.f = INFINITY} : (opq_number){.i = int_max(dtype)};
    }
    return is_float ? (opq_number){.f = 0} : (opq_number){.i = 0};
}

opq_number opq_eval_combine(opq_fold fold, opq_dtype dtype, opq_number a, opq_number b)
{
    opq_number combined = a;
    opq_status status = opq_eval_element(opq_fold_info_of(fold)->combine, dtype, (opq_number[]){a, b}, 2, &combined);
    return status == OPQ_OK ? combined : a; /* floats have no bits to combine: a verifier refuses that */
}

static opq_number combine(const opq_eval_folding *p, opq_number a, opq_number b)
{
    return opq_eval_combine(p->fold, p->dtype, a, b);
}

static opq_number segment(const opq_eval_folding *p, const opq_number *e, int64_t count)
{
    opq_number lane[OPQ_LANES];
    for (int i = 0; i < OPQ_LANES; i++)
        lane[i] = opq_eval_identity(p->fold, p->dtype);
    for (int64_t k = 0; k < count; k++)
        lane[k % OPQ_LANES] = combine(p, lane[k % OPQ_LANES], e[k]);
    for (int half = OPQ_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = combine(p, lane[i], lane[i + half]);
    return lane[0];
}

/* Segment results overwrite the elements from the front, which have been read by then. */
static opq_number lanes(const opq_eval_folding *p, opq_number *e)
{
    int64_t count = p->count, run = p->run;
    if (count == 0)
        return opq_eval_identity(p->fold, p->dtype);
    do {
        int64_t segments = 0;
        for (int64_t row = 0; row < count; row += run)
            for (int64_t k = 0; k < run; k += OPQ_CHUNK)
                e[segments++] = segment(p, e + row + k, run - k < OPQ_CHUNK ? run - k : OPQ_CHUNK);
        count = run = segments;
    } while (count > 1);
    return e[0];
}

static opq_number column(const opq_eval_folding *p, const opq_number *e)
{
    opq_number total = opq_eval_identity(p->fold, p->dtype);
    for (int64_t b = 0; b < p->count; b += OPQ_COLUMN_BLOCK) {
        opq_number block = opq_eval_identity(p->fold, p->dtype);
        for (int64_t g = b; g < p->count && g < b + OPQ_COLUMN_BLOCK; g += OPQ_COLUMN_GROUP) {
            opq_number group = opq_eval_identity(p->fold, p->dtype);
            for (int64_t k = g; k < p->count && k < g + OPQ_COLUMN_GROUP; k++)
                group = combine(p, group, e[k]);
            block = combine(p, block, group);
        }
        total = combine(p, total, block);
    }
    return total;
}

bool opq_eval_better(opq_fold fold, opq_dtype dtype, opq_number best, opq_number x)
{
    bool is_float = opq_eval_is_float(dtype);
    opq_number takes = {.i = 0};
    if (is_float && x.f != x.f)
        return opq_fold_takes_equals(fold) || best.f == best.f;
    opq_status status = opq_eval_element(opq_fold_info_of(fold)->takes, dtype, (opq_number[]){x, best}, 2, &takes);
    return status == OPQ_OK && takes.i != 0;
}

/* Where the best is; 0 if there are no elements. */
static opq_number arg(const opq_eval_folding *p, const opq_number *e)
{
    int64_t best = 0;
    for (int64_t k = 1; k < p->count; k++)
        if (opq_eval_better(p->fold, p->dtype, e[best], e[k]))
            best = k;
    return (opq_number){.i = best};
}

opq_number opq_eval_fold(const opq_eval_folding *p, opq_number *elements)
{
    if (opq_fold_is_arg(p->fold))
        return arg(p, elements);
    return p->tree == OPQ_TREE_lanes ? lanes(p, elements) : column(p, elements);
}

opq_dtype opq_eval_fold_dtype(opq_fold fold, opq_dtype operand, opq_dtype result)
{
    switch (opq_fold_info_of(fold)->held) {
    case OPQ_HELD_result: operand = result; break;
    case OPQ_HELD_operand: break;
    case OPQ_HELD_truth: operand = OPQ_bool; break;
    }
    return opq_dtype_is_half(operand) ? OPQ_f32 : operand;
}

static opq_status make_plan(const opq_node *node, const opq_type *type, plan *p)
{
    const opq_attr *axes = opq_node_attr(node, OPQ_ATTR_axes), *tree = opq_node_attr(node, OPQ_ATTR_tree);
    int axis_count = axes ? axes->count : 0;
    opq_eval_folding *f = &p->folding;
    *p = (plan){.folding = {.fold = opq_op_lowering((opq_op)node->op)->fold, .count = 1}};
    f->dtype = opq_eval_fold_dtype(f->fold, (opq_dtype)type->dtype, (opq_dtype)node->type.dtype);
    f->tree = tree ? (opq_tree)tree->i : opq_tree_for(type->rank, axes ? axes->ints : NULL, axis_count);
    for (int i = 0; i < axis_count; i++)
        f->count *= type->size[axes->ints[i]];
    f->run = opq_node_run(node, type);
    p->offsets = malloc(((size_t)f->count + 1) * sizeof *p->offsets);
    p->elements = malloc(((size_t)f->count + 1) * sizeof *p->elements);
    if (p->offsets == NULL || p->elements == NULL)
        return opq_fail(OPQ_NO_MEMORY, "%s: out of memory", opq_node_info(node)->name);
    opq_type reduced = *type;
    for (int d = 0; d < type->rank; d++)
        if (!opq_node_reduces(node, d))
            reduced.size[d] = 1;
    for (int64_t k = 0; k < f->count; k++) {
        int64_t coords[OPQ_RANK_MAX];
        opq_eval_coords(&reduced, k, coords);
        p->offsets[k] = opq_eval_index(type, coords);
    }
    return OPQ_OK;
}

static void reduce(const opq_node *node, const opq_eval_value *x, const plan *p, void *out)
{
    const opq_eval_folding *f = &p->folding;
    opq_dtype from = (opq_dtype)x->type->dtype;
    int64_t count = opq_type_count(&node->type);
    for (int64_t i = 0; i < count; i++) {
        int64_t coords[OPQ_RANK_MAX];
        opq_eval_coords(&node->type, i, coords);
        int64_t first = opq_eval_index(x->type, coords);
        for (int64_t k = 0; k < f->count; k++)
            p->elements[k] = opq_eval_cast(from, f->dtype, opq_eval_load(from, x->data, first + p->offsets[k]));
        opq_eval_store((opq_dtype)node->type.dtype, out, i, opq_eval_fold(f, p->elements));
    }
}

opq_status opq_eval_reduce(const opq_node *node, const opq_eval_value *x, void *out)
{
    plan p;
    opq_status status = make_plan(node, x->type, &p);
    if (status == OPQ_OK && node->op == OPQ_OP_count)
        for (int64_t i = 0; i < opq_type_count(&node->type); i++)
            opq_eval_store((opq_dtype)node->type.dtype, out, i,
                           opq_eval_cast(OPQ_i64, (opq_dtype)node->type.dtype, (opq_number){.i = p.folding.count}));
    else if (status == OPQ_OK)
        reduce(node, x, &p, out);
    free(p.offsets);
    free(p.elements);
    return status;
}
