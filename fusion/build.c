/* Builds the fused graph: numbers first, then one block per kernel in an order in which each finds what it needs.
 *
 * Views, iota and extents are copied into every kernel that follows them, so that a block can be read, evaluated and lowered by
 * itself. Constants and scalars stay single: a scalar is a slot.
 */
#include "fusion/pass.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct builder {
    const opq_graph *in;
    const opq_grouping *grouping;
    opq_graph *out;
    opq_ref *renamed; /* members and numbers: for good */
    opq_ref *local;   /* free nodes of the block being built */
    opq_ref *user;    /* of a free node that waits for its operand */
    int32_t *stamp;   /* block for which `local` holds */
    int32_t block;
    int32_t *order, *first_member, *next_member; /* members of a group, and the results of a call, ascending */
    uint8_t *state;                              /* ordering: 0 new, 1 open, 2 done */
    int32_t ordered;
} builder;

static bool stays_single(const opq_node *node)
{
    return node->op == OPQ_OP_input || node->op == OPQ_OP_const || opq_node_class(node) == OPQ_CLASS_SCALAR ||
           node->op == OPQ_OP_undefined;
}

/* ---- order */

typedef struct frame {
    int32_t group;
    opq_ref member;
    int operand;
} frame;

/* The group that makes operand k's memory, or -1. */
static int32_t producer_group(const builder *b, const opq_node *node, int k)
{
    opq_ref ref = node->operand[k];
    for (;;) {
        const opq_node *at = opq_node_at(b->in, ref);
        if (b->grouping->group_of[ref] >= 0)
            return b->grouping->group_of[ref];
        if ((opq_node_class(at) != OPQ_CLASS_VIEW && at->op != OPQ_OP_extern_result) || at->arity == 0)
            return -1;
        ref = at->operand[0];
    }
}

static opq_status order_groups(builder *b)
{
    frame *stack = malloc(((size_t)b->grouping->group_count + 1) * sizeof *stack);
    if (stack == NULL)
        return opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    for (opq_ref n = 0; n < b->in->count; n++) {
        int32_t root = b->grouping->group_of[n];
        if (root < 0 || b->state[root] != 0)
            continue;
        int depth = 0;
        stack[depth++] = (frame){root, b->first_member[root], 0};
        b->state[root] = 1;
        while (depth > 0) {
            frame *top = &stack[depth - 1];
            if (top->member < 0) {
                b->state[top->group] = 2;
                b->order[b->ordered++] = top->group;
                depth--;
                continue;
            }
            const opq_node *node = opq_node_at(b->in, top->member);
            if (top->operand >= node->arity) {
                top->member = b->next_member[top->member];
                top->operand = 0;
                continue;
            }
            int32_t needed = producer_group(b, node, top->operand++);
            if (needed >= 0 && b->state[needed] == 0) {
                b->state[needed] = 1;
                stack[depth++] = (frame){needed, b->first_member[needed], 0};
            } else if (needed >= 0 && needed != top->group && b->state[needed] == 1) {
                free(stack);
                return opq_fail(OPQ_INTERNAL, "group: kernels need each other");
            }
        }
    }
    free(stack);
    return OPQ_OK;
}

/* ---- blocks */

static opq_status ensure(builder *b, opq_ref ref, opq_ref *out_ref);

static opq_status append(builder *b, opq_ref ref, opq_ref *out_ref)
{
    const opq_node *from = opq_node_at(b->in, ref);
    opq_ref few[8], *operands = from->arity <= 8 ? few : malloc((size_t)from->arity * sizeof *operands);
    opq_status status = operands ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    for (int k = 0; k < from->arity && status == OPQ_OK; k++)
        status = ensure(b, from->operand[k], &operands[k]);
    opq_node node = *from;
    node.operand = operands;
    node.kernel = b->block;
    if (status == OPQ_OK)
        status = opq_graph_append(b->out, &node, out_ref);
    if (operands != few)
        free(operands);
    return status;
}

static bool is_there(const builder *b, opq_ref ref) { return b->renamed[ref] >= 0 || b->stamp[ref] == b->block; }

/* Free nodes have at most one operand: down to the first one that is there, and up again. */
static opq_status ensure(builder *b, opq_ref ref, opq_ref *out_ref)
{
    if (!is_there(b, ref))
        b->user[ref] = -1;
    for (opq_ref at = ref; at >= 0 && !is_there(b, at);) {
        const opq_node *node = opq_node_at(b->in, at);
        if (node->arity > 1)
            return opq_fail(OPQ_INTERNAL, "group: %s %%%d is needed before it is made", opq_node_info(node)->name, at);
        if (node->arity == 1 && !is_there(b, node->operand[0])) {
            b->user[node->operand[0]] = at;
            at = node->operand[0];
            continue;
        }
        OPQ_TRY(append(b, at, &b->local[at]));
        b->stamp[at] = b->block;
        at = b->user[at];
    }
    *out_ref = b->renamed[ref] >= 0 ? b->renamed[ref] : b->local[ref];
    return OPQ_OK;
}

static opq_kernel_kind kind_of(const builder *b, int32_t group)
{
    opq_kernel_kind kind = OPQ_KERNEL_map;
    bool matmul = false, block = false;
    for (opq_ref n = b->first_member[group]; n >= 0; n = b->next_member[n]) {
        const opq_node *node = opq_node_at(b->in, n);
        switch (opq_node_class(node)) {
        case OPQ_CLASS_MATMUL:
            matmul = true;
            block = block || b->grouping->group_of[opq_strip_reshape(b->in, node->operand[0])] == group;
            break;
        case OPQ_CLASS_EXTERN: return OPQ_KERNEL_extern;
        case OPQ_CLASS_ROUTINE: return OPQ_KERNEL_routine;
        case OPQ_CLASS_UPDATE: return OPQ_KERNEL_update;
        case OPQ_CLASS_SCATTER: return OPQ_KERNEL_index;
        case OPQ_CLASS_CONCAT: return OPQ_KERNEL_concat;
        case OPQ_CLASS_REDUCE:
            kind = opq_node_int(node, OPQ_ATTR_tree, OPQ_TREE_lanes) == OPQ_TREE_column ? OPQ_KERNEL_column
                                                                                        : OPQ_KERNEL_row;
            break;
        case OPQ_CLASS_SCAN: kind = OPQ_KERNEL_scan; break;
        case OPQ_CLASS_INPUT:
        case OPQ_CLASS_CONST:
        case OPQ_CLASS_SCALAR:
        case OPQ_CLASS_IOTA:
        case OPQ_CLASS_RANDOM:
        case OPQ_CLASS_EWISE:
        case OPQ_CLASS_CAST:
        case OPQ_CLASS_VIEW:
        case OPQ_CLASS_INDEX:
        case OPQ_CLASS_COMPOSITE:
        case OPQ_CLASS_COUNT: break;
        }
    }
    return !matmul ? kind : block ? OPQ_KERNEL_block : OPQ_KERNEL_matmul;
}

/* "sort" of "aten::sort.stable(...)": what an extern node calls, as far as a name may hold it. */
static void called(const opq_node *node, char *out, size_t size)
{
    const opq_attr *key = opq_node_attr(node, OPQ_ATTR_key);
    const char *name = key ? key->str : "", *colons = strstr(name, "::");
    size_t length = 0;
    for (const char *c = colons ? colons + 2 : name; length + 1 < size && (isalnum((unsigned char)*c) || *c == '_'); c++)
        out[length++] = *c;
    out[length] = 0;
    if (length == 0)
        snprintf(out, size, "%s", opq_node_info(node)->name);
}

/* "word_", if there is room. */
static size_t add_word(const char *word, char *out, size_t size)
{
    size_t length = strlen(word);
    if (length + 1 >= size)
        return 0;
    memcpy(out, word, length);
    out[length] = '_';
    return length + 1;
}

/* A name a person recognises: the first few different ops, and the kernel's number. */
static void name_of(const builder *b, int32_t group, int number, char *out, size_t size)
{
    uint16_t seen[5];
    int count = 0, more = 0;
    size_t length = 0;
    for (opq_ref n = b->first_member[group]; n >= 0; n = b->next_member[n]) {
        const opq_node *node = opq_node_at(b->in, n);
        bool known = node->op == OPQ_OP_extern_result ||
                     (node->op == OPQ_OP_cast && b->next_member[b->first_member[group]] >= 0);
        for (int i = 0; i < count; i++)
            known = known || seen[i] == node->op;
        if (known)
            continue;
        if (count == 5) {
            more++;
            continue;
        }
        seen[count++] = node->op;
        char call[64];
        if (node->op == OPQ_OP_extern)
            called(node, call, sizeof call);
        length += add_word(node->op == OPQ_OP_extern ? call : opq_node_info(node)->name, out + length, size - length);
    }
    snprintf(out + length, size - length, more ? "etc_%d" : "%d", number);
}

static opq_status build_block(builder *b, int32_t group)
{
    char name[160];
    opq_ref first = b->out->count;
    b->block = b->out->kernel_count;
    for (opq_ref n = b->first_member[group]; n >= 0; n = b->next_member[n])
        OPQ_TRY(append(b, n, &b->renamed[n]));
    name_of(b, group, b->block, name, sizeof name);
    return opq_graph_add_kernel(b->out, kind_of(b, group), name, first, b->out->count - first);
}

static opq_status build_all(builder *b)
{
    const int32_t *group_of = b->grouping->group_of;
    int32_t count = b->grouping->group_count;
    for (int32_t i = 0; i < count; i++)
        b->first_member[i] = -1;
    for (opq_ref n = b->in->count - 1; n >= 0; n--) {
        b->renamed[n] = -1;
        b->stamp[n] = -2;
        const opq_node *node = opq_node_at(b->in, n);
        int32_t group = group_of[node->op == OPQ_OP_extern_result ? node->operand[0] : n];
        if (group >= 0) {
            b->next_member[n] = b->first_member[group];
            b->first_member[group] = n;
        }
    }
    b->block = -1;
    for (opq_ref n = 0; n < b->in->count; n++)
        if (stays_single(opq_node_at(b->in, n)) && group_of[n] < 0)
            OPQ_TRY(append(b, n, &b->renamed[n]));
    OPQ_TRY(order_groups(b));
    for (int32_t i = 0; i < b->ordered; i++)
        OPQ_TRY(build_block(b, b->order[i]));
    b->block = -1;
    for (int i = 0; i < b->in->output_count; i++) {
        opq_ref ref;
        OPQ_TRY(ensure(b, b->in->outputs[i], &ref));
        OPQ_TRY(opq_graph_output(b->out, ref));
    }
    return OPQ_OK;
}

opq_status opq_build_fused(const opq_graph *in, const opq_grouping *grouping, opq_graph *out, opq_ref *out_renamed)
{
    size_t nodes = (size_t)in->count + 1, groups = (size_t)grouping->group_count + 1;
    builder b = {.in = in, .grouping = grouping, .out = out, .renamed = out_renamed};
    int32_t *memory = malloc((nodes * 4 + groups * 2) * sizeof *memory + groups);
    opq_status status = memory ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "group: out of memory");
    if (status == OPQ_OK) {
        b.local = memory;
        b.stamp = memory + nodes;
        b.next_member = memory + nodes * 2;
        b.user = memory + nodes * 3;
        b.order = memory + nodes * 4;
        b.first_member = memory + nodes * 4 + groups;
        b.state = memset(memory + nodes * 4 + groups * 2, 0, groups);
        status = build_all(&b);
    }
    free(memory);
    return status;
}
