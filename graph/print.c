/* Graphs as text. What this writes, parse.c reads back to the same bytes: numbers are exact, order is record order.
 *
 *   %4 = sum f32[128,1] %3 {axes=[1], tree=lanes}  # model.py:12
 */
#include "graph/graph.h"

#include <inttypes.h>
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

static void print_attr(opq_text *text, const opq_attr *attr)
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
    case OPQ_ATTR_KIND_NUMBER:
        if (attr->is_int)
            opq_text_add(text, "%" PRId64, attr->number.i);
        else
            print_float(text, attr->number.f);
        break;
    }
}

void opq_text_attrs(opq_text *text, const opq_node *node)
{
    for (int i = 0; i < node->attr_count; i++) {
        if (i)
            opq_text_bytes(text, ", ", 2);
        print_attr(text, &node->attr[i]);
    }
}

void opq_text_node(opq_text *text, const opq_graph *graph, opq_ref ref)
{
    const opq_node *node = opq_node_at(graph, ref);
    opq_text_add(text, "%%%d = %s ", ref, opq_node_info(node)->name);
    opq_text_type(text, &node->type);
    for (int i = 0; i < node->arity; i++)
        opq_text_add(text, "%s%%%d", i ? ", " : " ", node->operand[i]);
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

opq_status opq_graph_print(const opq_graph *graph, char **out_text)
{
    opq_text text = {0};
    const opq_kernel_group *kernel = graph->kernels, *kernels_end = kernel + graph->kernel_count;
    opq_text_add(&text, "graph @%s {\n", graph->name);
    for (opq_ref n = 0; n < graph->count; n++) {
        if (kernel != kernels_end && kernel->first == n)
            opq_text_add(&text, "  kernel %s @%s {\n", opq_kernel_kind_name(kernel->kind), kernel->name);
        opq_text_add(&text, "%s  ", opq_node_at(graph, n)->kernel >= 0 ? "  " : "");
        opq_text_node(&text, graph, n);
        opq_text_bytes(&text, "\n", 1);
        if (kernel != kernels_end && kernel->first + kernel->count == n + 1) {
            opq_text_add(&text, "  }\n");
            kernel++;
        }
    }
    for (int i = 0; i < graph->output_count; i++)
        opq_text_add(&text, "%s%%%d", i ? ", " : "  output ", graph->outputs[i]);
    opq_text_add(&text, graph->output_count ? "\n}\n" : "}\n");
    return opq_text_take(&text, out_text);
}
