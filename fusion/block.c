/* The parts of a block kernel: see group_block.c, which finds them, and plan_block.c, which makes a step of each. */
#include "fusion/lower.h"
#include "fusion/pass.h"

#include <string.h>

static bool is_product(const opq_graph *graph, opq_ref ref)
{
    return opq_node_class(opq_node_at(graph, ref)) == OPQ_CLASS_MATMUL;
}

/* Products whose left operand is made here come second. */
static bool find_products(const opq_graph *graph, const int32_t *group_of, const opq_ref *members, int count,
                          int32_t rows, opq_block_parts *out)
{
    for (int i = 0; i < count; i++) {
        opq_ref n = members[i];
        if (!is_product(graph, n))
            continue;
        bool second = group_of[opq_strip_reshape(graph, opq_node_at(graph, n)->operand[0])] == rows;
        if (second ? out->second_count == OPQ_BLOCK_SECOND_MAX : out->first_count == OPQ_BLOCK_FIRST_MAX)
            return false;
        if (second)
            out->second[out->second_count++] = n;
        else
            out->first[out->first_count++] = n;
    }
    return out->first_count > 0 && out->second_count > 0;
}

bool opq_block_split(const opq_graph *graph, int32_t *group_of, const opq_ref *members, int count, int32_t rows,
                     opq_block_parts *out)
{
    *out = (opq_block_parts){0};
    for (int i = 0; i < count; i++)
        group_of[members[i]] = rows;
    if (!find_products(graph, group_of, members, count, rows, out))
        return false;
    int32_t second = rows + 1 + out->first_count;
    for (int i = 0; i < out->first_count; i++)
        group_of[out->first[i]] = rows + 1 + i;
    for (int i = 0; i < out->second_count; i++)
        group_of[out->second[i]] = second + i;
    for (int i = 0; i < count; i++) {
        const opq_node *node = opq_node_at(graph, members[i]);
        for (int k = 0; k < node->arity && !is_product(graph, members[i]); k++) {
            int32_t of = group_of[opq_lower_base(graph, group_of, node->operand[k])];
            if (of >= second) /* its epilogue */
                group_of[members[i]] = of;
        }
    }
    return true;
}

opq_ref opq_block_product(const opq_block_parts *parts, int part)
{
    return part <= parts->first_count ? parts->first[part - 1] : parts->second[part - 1 - parts->first_count];
}

opq_ref opq_block_taken(const opq_graph *graph, const opq_block_parts *parts, int second)
{
    return opq_strip_reshape(graph, opq_node_at(graph, parts->second[second])->operand[0]);
}

bool opq_block_sums_rows(const opq_graph *graph, const opq_block_parts *parts, int second)
{
    return opq_node_int(opq_node_at(graph, parts->second[second]), OPQ_ATTR_transpose_a, 0) != 0;
}

bool opq_block_is_nested(const opq_graph *graph, const opq_block_parts *parts)
{
    return parts->first_count == 1 && parts->second_count == 1 && !opq_block_sums_rows(graph, parts, 0);
}

int opq_block_matrices(const opq_graph *graph, const opq_block_parts *parts, opq_ref *out)
{
    int count = parts->first_count;
    memcpy(out, parts->first, (size_t)count * sizeof *out);
    for (int i = 0; i < parts->second_count; i++) {
        opq_ref taken = opq_block_taken(graph, parts, i);
        bool known = false;
        for (int m = 0; m < count; m++)
            known = known || out[m] == taken;
        if (!known)
            out[count++] = taken;
    }
    return count;
}

opq_status opq_block_join(const opq_graph *graph, const opq_block_parts *parts, const opq_bound *part,
                          const opq_kept *kept, opq_arena *arena, opq_bound *out_joined)
{
    opq_bound order[OPQ_BLOCK_PARTS_MAX];
    int first = parts->first_count;
    memcpy(order, part + 1, (size_t)first * sizeof *order);
    order[first] = part[0];
    memcpy(order + first + 1, part + first + 1, (size_t)parts->second_count * sizeof *order);
    return opq_loops_join(order, opq_block_part_count(parts), kept, opq_block_is_nested(graph, parts), arena, out_joined);
}
