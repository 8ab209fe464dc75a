/* The parts of a kernel of several products: see group_block.c and group_product.c, which find such, and runtime/plan_parts.c, which makes a step
 * of each part. */
#include "fusion/lower.h"
#include "fusion/pass.h"

#include <string.h>

static bool is_product(const opq_graph *graph, opq_ref ref)
{
    return opq_node_class(opq_node_at(graph, ref)) == OPQ_CLASS_MATMUL;
}

/* First products, then those whose left operand is made here. */
static bool find_products(const opq_graph *graph, const int32_t *group_of, const opq_ref *members, int count,
                          int32_t rows, opq_parts *out)
{
    for (int second = 0; second <= 1; second++) {
        for (int i = count - 1; i >= 0; i--) {
            opq_ref n = members[i];
            if (!is_product(graph, n) ||
                (group_of[opq_strip_reshape(graph, opq_node_at(graph, n)->operand[0])] == rows) != second)
                continue;
            if (out->count == OPQ_PRODUCTS_MAX)
                return false;
            out->product[out->count++] = n;
        }
        out->first_count = second ? out->first_count : out->count;
    }
    int second_count = out->count - out->first_count;
    return second_count == 0 ||
           (out->first_count > 0 && out->first_count <= OPQ_BLOCK_FIRST_MAX && second_count <= OPQ_BLOCK_SECOND_MAX);
}

/* A node of no part yet goes where what it needs is, if that is an epilogue; or the other way round. */
static bool spread(const opq_graph *graph, int32_t *group_of, opq_ref n, int32_t rows, int32_t epilogues, bool back)
{
    const opq_node *node = opq_node_at(graph, n);
    bool moved = false;
    for (int k = 0; k < node->arity; k++) {
        opq_ref from = opq_lower_base(graph, group_of, node->operand[k]);
        if (group_of[n] == rows && group_of[from] >= epilogues)
            group_of[n] = group_of[from];
        else if (back && group_of[n] >= epilogues && group_of[from] == rows)
            group_of[from] = group_of[n];
        else
            continue;
        moved = true;
    }
    return moved;
}

bool opq_parts_split(const opq_graph *graph, int32_t *group_of, const opq_ref *members, int count, int32_t rows,
                     opq_parts *out)
{
    *out = (opq_parts){0};
    for (int i = 0; i < count; i++)
        group_of[members[i]] = rows;
    if (!find_products(graph, group_of, members, count, rows, out))
        return false;
    for (int i = 0; i < out->count; i++)
        group_of[out->product[i]] = rows + 1 + i;
    bool has_rows = out->first_count < out->count, whole = true;
    int32_t epilogues = rows + 1 + (has_rows ? out->first_count : 0);
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = count - 1; i >= 0; i--)
            moved |= spread(graph, group_of, members[i], rows, epilogues, !has_rows);
    }
    for (int i = 0; i < count; i++)
        whole = whole && group_of[members[i]] != rows;
    return has_rows || whole;
}

opq_ref opq_block_taken(const opq_graph *graph, const opq_parts *parts, int product)
{
    return opq_strip_reshape(graph, opq_node_at(graph, parts->product[product])->operand[0]);
}

bool opq_block_sums_rows(const opq_graph *graph, const opq_parts *parts, int product)
{
    return product >= parts->first_count &&
           opq_node_int(opq_node_at(graph, parts->product[product]), OPQ_ATTR_transpose_a, 0) != 0;
}

bool opq_block_is_nested(const opq_graph *graph, const opq_parts *parts)
{
    return parts->first_count == 1 && parts->count == 2 && !opq_block_sums_rows(graph, parts, 1);
}

int opq_block_matrices(const opq_graph *graph, const opq_parts *parts, opq_ref *out)
{
    int count = parts->first_count;
    memcpy(out, parts->product, (size_t)count * sizeof *out);
    for (int i = parts->first_count; i < parts->count; i++) {
        opq_ref taken = opq_block_taken(graph, parts, i);
        bool known = false;
        for (int m = 0; m < count; m++)
            known = known || out[m] == taken;
        if (!known)
            out[count++] = taken;
    }
    return count;
}

opq_status opq_parts_join(const opq_graph *graph, const opq_parts *parts, const opq_bound *part, const opq_kept *kept,
                          opq_arena *arena, opq_bound *out_joined)
{
    opq_bound order[OPQ_PRODUCTS_MAX];
    int first = parts->first_count, count = parts->count;
    memcpy(order, part, (size_t)count * sizeof *order);
    if (first < count) { /* the rows come behind what makes them */
        memcpy(order, part + 1, (size_t)first * sizeof *order);
        order[first] = part[0];
        memcpy(order + first + 1, part + first + 1, (size_t)(count++ - first) * sizeof *order);
    }
    return opq_loops_join(order, count, kept, opq_block_is_nested(graph, parts), arena, out_joined);
}
