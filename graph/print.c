/* Graphs as text. What this writes, parse.c reads back to the same bytes: numbers are exact, order is record order.
 *
 *   %4 = sum f32[128,1] %3 {axes=[1], tree=lanes}  # model.py:12
 *
 * A scalar that is an operand once has no line of its own and stands there as a number, with its dtype where that is not the node's; the
 * numbers of lines leave a gap for it: %9 = ne bool[8] %6, i64 -100
 */
#include "graph/graph.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hexadecimal, not by printf: "%a" follows the program's locale and leaves the leading digit to the C library.
 * nan is the default quiet NaN; others give all their bits: nan(0x7ff8000000000001). */
static void print_float(opq_text *text, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const char *sign = bits >> 63 ? "-" : "";
    int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t fraction = bits & (((uint64_t)1 << 52) - 1);
    if (exponent == 0x7ff) {
        if (fraction == 0)
            opq_text_add(text, "%sinf", sign);
        else if (fraction == (uint64_t)1 << 51)
            opq_text_add(text, "%snan", sign);
        else
            opq_text_add(text, "nan(0x%016" PRIx64 ")", bits);
        return;
    }
    int digits = 13;
    for (uint64_t rest = fraction; digits > 0 && !(rest & 15); rest >>= 4)
        digits--;
    bool zero = exponent == 0 && fraction == 0;
    opq_text_add(text, "%s0x%d", sign, exponent != 0);
    if (digits)
        opq_text_add(text, ".%0*" PRIx64, digits, fraction >> (4 * (13 - digits)));
    opq_text_add(text, "p%+d", zero ? 0 : exponent == 0 ? -1022 : exponent - 1023);
}

/* The shortest decimal that the reader makes the same number of, for people; hexadecimal where there is none. */
static void print_decimal(opq_text *text, opq_dtype dtype, double value)
{
    char digits[40];
    locale_t plain = isfinite(value) ? newlocale(LC_ALL_MASK, "C", (locale_t)0) : (locale_t)0;
    bool exact = false;
    if (plain) {
        locale_t before = uselocale(plain);
        for (int precision = 1; precision <= 17 && !exact; precision++) {
            snprintf(digits, sizeof digits, "%.*g", precision, value);
            opq_number read = {.f = strtod(digits, NULL)};
            exact = opq_number_fit("number", dtype, &read) == OPQ_OK && memcmp(&read.f, &value, sizeof value) == 0;
        }
        uselocale(before);
        freelocale(plain);
    }
    if (exact)
        opq_text_add(text, "%s", digits);
    else
        print_float(text, value);
}

static void print_number(opq_text *text, opq_dtype dtype, const opq_attr *attr)
{
    if (attr->is_int)
        opq_text_add(text, "%" PRId64, attr->number.i);
    else
        print_decimal(text, dtype, attr->number.f);
}

static void print_string(opq_text *text, const char *string)
{
    opq_text_bytes(text, "\"", 1);
    for (const char *c = string; *c; c++) {
        if (*c == '"' || *c == '\\')
            opq_text_add(text, "\\%c", *c);
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            opq_text_add(text, "\\x%02x", *c);
        else
            opq_text_bytes(text, c, 1);
    }
    opq_text_bytes(text, "\"", 1);
}

void opq_text_attr(opq_text *text, opq_dtype dtype, const opq_attr *attr)
{
    opq_attr_key key = (opq_attr_key)attr->key;
    opq_text_add(text, "%s=", opq_attr_name(key));
    switch (opq_attr_kind_of(key)) {
    case OPQ_ATTR_KIND_INT: opq_text_add(text, "%" PRId64, attr->i); break;
    case OPQ_ATTR_KIND_INTS:
        opq_text_bytes(text, "[", 1);
        for (int i = 0; i < attr->count; i++)
            opq_text_add(text, "%s%" PRId64, i ? "," : "", attr->ints[i]);
        opq_text_bytes(text, "]", 1);
        break;
    case OPQ_ATTR_KIND_STR: print_string(text, attr->str); break;
    case OPQ_ATTR_KIND_WORD: opq_text_add(text, "%s", opq_tree_name((opq_tree)attr->i)); break;
    case OPQ_ATTR_KIND_NUMBER: print_number(text, dtype, attr); break;
    }
}

void opq_text_attrs(opq_text *text, const opq_node *node)
{
    for (int i = 0; i < node->attr_count; i++) {
        if (i)
            opq_text_bytes(text, ", ", 2);
        opq_text_attr(text, (opq_dtype)node->type.dtype, &node->attr[i]);
    }
}

static void print_operand(opq_text *text, const opq_node *user, const opq_node *scalar)
{
    opq_dtype dtype = (opq_dtype)scalar->type.dtype;
    if (dtype != user->type.dtype)
        opq_text_add(text, "%s ", opq_dtype_name(dtype));
    print_number(text, dtype, &scalar->attr[0]);
}

bool *opq_text_inlined(const opq_graph *graph)
{
    bool *inlined = calloc((size_t)graph->count + 1, 2 * sizeof *inlined), *used = inlined + graph->count;
    for (opq_ref n = 0; n < graph->count && inlined; n++)
        for (int k = 0; k < graph->nodes[n].arity; k++) {
            opq_ref operand = graph->nodes[n].operand[k];
            const opq_node *node = opq_node_at(graph, operand);
            inlined[operand] = node->op == OPQ_OP_scalar && node->type.rank == 0 && node->line == NULL && !used[operand];
            used[operand] = true;
        }
    for (int i = 0; i < graph->output_count && inlined; i++)
        inlined[graph->outputs[i]] = false;
    return inlined;
}

void opq_text_node(opq_text *text, const opq_graph *graph, opq_ref ref, const bool *inlined)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_text_add(text, "%%%d = %s ", ref, opq_node_info(node)->name);
    opq_text_type(text, &node->type);
    for (int i = 0; i < node->arity; i++) {
        opq_text_add(text, i ? ", " : " ");
        if (inlined[node->operand[i]])
            print_operand(text, node, opq_node_at(graph, node->operand[i]));
        else
            opq_text_add(text, "%%%d", node->operand[i]);
    }
    if (node->attr_count) {
        opq_text_bytes(text, " {", 2);
        opq_text_attrs(text, node);
        opq_text_bytes(text, "}", 1);
    }
    if (node->line) {
        opq_text_bytes(text, "  # ", 4);
        opq_text_bytes(text, node->line, strlen(node->line));
    }
}

/* Rows that were made at run time, in the order of their first nodes: another process does not have them. */
static opq_status print_defined(opq_text *text, const opq_graph *graph)
{
    bool *printed = NULL;
    for (opq_ref n = 0; n < graph->count; n++) {
        const opq_node *node = opq_node_at(graph, n);
        if (node->op < OPQ_OP_DEFINED)
            continue;
        if (printed == NULL)
            printed = calloc(OPQ_OP_LIMIT - OPQ_OP_DEFINED, sizeof *printed);
        if (printed == NULL)
            return opq_fail(OPQ_NO_MEMORY, "out of memory for text");
        if (printed[node->op - OPQ_OP_DEFINED])
            continue;
        printed[node->op - OPQ_OP_DEFINED] = true;
        opq_text_bytes(text, "define ", 7);
        opq_text_signature(text, opq_node_info(node));
        opq_text_add(text, " = %s\n", opq_node_info(node)->expand);
    }
    free(printed);
    return OPQ_OK;
}

opq_status opq_graph_print(const opq_graph *graph, char **out_text)
{
    opq_text text = {0};
    bool *inlined = opq_text_inlined(graph);
    if (inlined == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for text");
    const opq_kernel_group *kernel = graph->kernels, *kernels_end = kernel + graph->kernel_count;
    opq_status status = print_defined(&text, graph);
    if (status != OPQ_OK) {
        opq_text_drop(&text);
        free(inlined);
        return status;
    }
    opq_text_add(&text, "graph @%s {\n", graph->name);
    for (opq_ref n = 0; n < graph->count; n++) {
        if (kernel != kernels_end && kernel->first == n)
            opq_text_add(&text, "  kernel %s @%s {\n", opq_kernel_kind_name(kernel->kind), kernel->name);
        if (!inlined[n]) {
            opq_text_add(&text, "%s  ", opq_node_at(graph, n)->kernel >= 0 ? "  " : "");
            opq_text_node(&text, graph, n, inlined);
            opq_text_bytes(&text, "\n", 1);
        }
        if (kernel != kernels_end && kernel->first + kernel->count == n + 1) {
            opq_text_add(&text, "  }\n");
            kernel++;
        }
    }
    for (int i = 0; i < graph->output_count; i++)
        opq_text_add(&text, "%s%%%d", i ? ", " : "  output ", graph->outputs[i]);
    opq_text_add(&text, graph->output_count ? "\n}\n" : "}\n");
    free(inlined);
    return opq_text_take(&text, out_text);
}
