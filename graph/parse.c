/* Text to graph, one line at a time. Anyone may write the text, so nothing is trusted: sizes are limited, and every
 * node goes through the verifier before the next line is read.
 */
#include "graph/reader.h"

#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 64 << 20, NODES_MAX = 1000000, OPERANDS_MAX = 1 << 16, OUTPUTS_MAX = 1000000 };

typedef struct parser {
    opq_reader r;
    opq_graph *graph;
    opq_arena scratch; /* of one node */
    opq_ref *operands;
    int32_t operand_capacity;
    opq_ref *refs; /* by the number in the text; -1 in gaps */
    opq_ref *gaps; /* scalars whose number stands as an operand further on, in order; that many are filled */
    int32_t ref_count, gap_count, gaps_filled, ref_capacity;
    opq_kernel_kind kernel_kind;
    char kernel_name[256];
    size_t gap_at;        /* the line of the last gap */
    opq_ref kernel_first; /* -1 outside a kernel */
    bool kernel_is_empty; /* so far */
    size_t kernel_at;
} parser;

/* A failure without a position gets one; memory and bugs are not the text's fault and keep their status. */
static opq_status located(const parser *p, opq_status status, size_t at)
{
    return status == OPQ_OK ? OPQ_OK : opq_reader_fail(&p->r, status, at, "%s", opq_error());
}

/* Of a line whose comment means nothing. */
static opq_status line_end(parser *p)
{
    const char *dropped;
    return opq_reader_line_end(&p->r, &dropped);
}

/* Empty lines and lines with a comment only. */
static opq_status skip_lines(parser *p)
{
    while (p->r.at < p->r.length) {
        opq_reader_blanks(&p->r);
        char c = opq_reader_peek(&p->r);
        if (p->r.at < p->r.length && c != '#' && c != '\r' && c != '\n')
            return OPQ_OK;
        OPQ_TRY(line_end(p));
        opq_arena_drop(&p->scratch);
    }
    return OPQ_OK;
}

/* The number of %N of a line before this one. */
static opq_status read_ref(parser *p, opq_ref *out_ref)
{
    int64_t number;
    opq_reader_blanks(&p->r);
    size_t start = p->r.at;
    OPQ_TRY(opq_reader_want(&p->r, "%"));
    OPQ_TRY(opq_reader_int(&p->r, &number));
    if (number < 0 || number >= p->ref_count || p->refs[number] < 0)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "no node of that number before this line");
    *out_ref = p->refs[number];
    return OPQ_OK;
}

/* A scalar of value 0, which is filled in when its number is read. */
static opq_status add_scalar(parser *p, opq_ref *out_ref)
{
    if (p->graph->count == NODES_MAX)
        return opq_reader_fail(&p->r, OPQ_INVALID, p->r.at, "more than %d nodes", NODES_MAX);
    return opq_graph_scalar(p->graph, OPQ_i64, (opq_number){.i = 0}, out_ref);
}

/* Has the next line this number? A scalar for each that is missing, and room for it and one more. */
static opq_status leave_gap(parser *p, int32_t number, size_t start)
{
    if (number >= p->ref_capacity) {
        size_t capacity = number < 64 ? 128 : 2 * (size_t)number;
        opq_ref *refs = realloc(p->refs, capacity * sizeof *refs);
        p->refs = refs ? refs : p->refs;
        opq_ref *gaps = refs ? realloc(p->gaps, capacity * sizeof *gaps) : NULL;
        p->gaps = gaps ? gaps : p->gaps;
        if (gaps == NULL)
            return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph");
        p->ref_capacity = (int32_t)capacity;
    }
    while (p->ref_count < number) {
        p->gap_at = start;
        OPQ_TRY(add_scalar(p, &p->gaps[p->gap_count++]));
        p->refs[p->ref_count++] = -1;
    }
    if (p->kernel_is_empty)
        p->kernel_first = p->graph->count;
    p->kernel_is_empty = false;
    return OPQ_OK;
}

/* A number as operand: "1", or "i64 -100" of another dtype than `dtype`. */
static opq_status read_scalar(parser *p, opq_dtype dtype, opq_ref *out_ref)
{
    const char *word = p->r.text + p->r.at;
    size_t start = p->r.at, length;
    opq_attr value = {.key = OPQ_ATTR_value};
    if (start == p->r.length || !strchr("-0123456789abcdefghijklmnopqrstuvwxyz.", *word))
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "expected '%%' or a number");
    bool is_word = *word >= 'a' && *word <= 'z' && opq_reader_word(&p->r, &word, &length) == OPQ_OK;
    if (is_word && !opq_dtype_find(word, length, &dtype))
        p->r.at = start;
    OPQ_TRY(opq_reader_number(&p->r, dtype, &value.number));
    value.is_int = opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT;
    if (p->gaps_filled < p->gap_count)
        *out_ref = p->gaps[p->gaps_filled++];
    else
        OPQ_TRY(add_scalar(p, out_ref));
    opq_node *scalar = &p->graph->nodes[*out_ref];
    scalar->type.dtype = (uint8_t)dtype;
    scalar->attr = opq_arena_copy(&p->graph->arena, &value, sizeof value);
    return scalar->attr ? OPQ_OK : opq_fail(OPQ_NO_MEMORY, "out of memory for a graph");
}

static opq_status read_operands(parser *p, opq_dtype dtype, int32_t *out_arity)
{
    int32_t arity = 0;
    opq_reader_blanks(&p->r);
    if (p->r.at < p->r.length && !strchr("{#\r\n", opq_reader_peek(&p->r)))
        do {
            if (arity == OPERANDS_MAX)
                return opq_reader_fail(&p->r, OPQ_INVALID, p->r.at, "more than %d operands", OPERANDS_MAX);
            if (arity == p->operand_capacity) {
                int32_t capacity = arity ? arity * 2 : 16;
                opq_ref *moved = realloc(p->operands, (size_t)capacity * sizeof *moved);
                if (!moved)
                    return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph");
                p->operands = moved;
                p->operand_capacity = capacity;
            }
            opq_reader_blanks(&p->r);
            bool named = opq_reader_peek(&p->r) == '%';
            OPQ_TRY(named ? read_ref(p, &p->operands[arity]) : read_scalar(p, dtype, &p->operands[arity]));
            arity++;
        } while (opq_reader_take(&p->r, ","));
    *out_arity = arity;
    return OPQ_OK;
}

/* %N = op type operands {attributes}  # line */
static opq_status parse_node(parser *p)
{
    const char *word;
    size_t length, start = p->r.at, op_at;
    int64_t number;
    opq_node node = {0};
    opq_attr attrs[OPQ_ATTR_COUNT];
    int attr_count;
    opq_op op;
    opq_ref ref;
    OPQ_TRY(opq_reader_want(&p->r, "%"));
    OPQ_TRY(opq_reader_int(&p->r, &number));
    if (p->graph->count == NODES_MAX)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "more than %d nodes", NODES_MAX);
    if (number < p->ref_count || number >= NODES_MAX)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "expected %%%d", p->ref_count);
    OPQ_TRY(leave_gap(p, (int32_t)number, start));
    OPQ_TRY(opq_reader_want(&p->r, "="));
    opq_reader_blanks(&p->r);
    op_at = p->r.at;
    OPQ_TRY(opq_reader_op(&p->r, &word, &length));
    if (!opq_op_find(word, length, &op))
        return opq_reader_fail(&p->r, OPQ_INVALID, op_at, "no op is named '%.*s'", (int)(length < 64 ? length : 64),
                               word);
    OPQ_TRY(opq_reader_type(&p->r, &node.type));
    OPQ_TRY(read_operands(p, (opq_dtype)node.type.dtype, &node.arity));
    OPQ_TRY(opq_reader_attrs(&p->r, (opq_dtype)node.type.dtype, attrs, &attr_count));
    OPQ_TRY(opq_reader_line_end(&p->r, &node.line));
    node.op = (uint16_t)op;
    node.operand = p->operands;
    node.attr = attrs;
    node.attr_count = (uint16_t)attr_count;
    OPQ_TRY(opq_graph_append(p->graph, &node, &ref));
    p->refs[p->ref_count++] = ref;
    opq_arena_drop(&p->scratch);
    return located(p, opq_node_verify(p->graph, ref), op_at);
}

/* kernel row @softmax_0 { */
static opq_status parse_kernel(parser *p, size_t start)
{
    const char *word;
    size_t length;
    if (p->kernel_first >= 0)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "a kernel inside a kernel");
    OPQ_TRY(opq_reader_word(&p->r, &word, &length));
    int kind = 0;
    for (; kind < OPQ_KERNEL_KIND_COUNT; kind++) {
        const char *name = opq_kernel_kind_name((opq_kernel_kind)kind);
        if (strlen(name) == length && !memcmp(name, word, length))
            break;
    }
    if (kind == OPQ_KERNEL_KIND_COUNT)
        return opq_reader_fail(&p->r, OPQ_INVALID, (size_t)(word - p->r.text), "no kind of kernel is named '%.*s'",
                               (int)(length < 64 ? length : 64), word);
    OPQ_TRY(opq_reader_want(&p->r, "@"));
    OPQ_TRY(opq_reader_name(&p->r, p->kernel_name));
    OPQ_TRY(opq_reader_want(&p->r, "{"));
    p->kernel_kind = (opq_kernel_kind)kind;
    p->kernel_first = p->graph->count;
    p->kernel_is_empty = true;
    p->kernel_at = start;
    return line_end(p);
}

static opq_status parse_output(parser *p, size_t start)
{
    opq_ref ref = 0;
    if (p->kernel_first >= 0)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "output inside a kernel");
    do {
        if (p->graph->output_count == OUTPUTS_MAX)
            return opq_reader_fail(&p->r, OPQ_INVALID, start, "more than %d outputs", OUTPUTS_MAX);
        OPQ_TRY(read_ref(p, &ref));
        OPQ_TRY(opq_graph_output(p->graph, ref));
    } while (opq_reader_take(&p->r, ","));
    return line_end(p);
}

/* A closing brace: of the kernel, if one is open, else of the graph. */
static opq_status parse_close(parser *p, bool *out_done)
{
    *out_done = p->kernel_first < 0;
    OPQ_TRY(line_end(p));
    if (*out_done)
        return OPQ_OK;
    opq_ref first = p->kernel_first;
    p->kernel_first = -1;
    p->kernel_is_empty = false;
    return located(p, opq_graph_add_kernel(p->graph, p->kernel_kind, p->kernel_name, first, p->graph->count - first),
                   p->kernel_at);
}

static opq_status parse_body(parser *p)
{
    bool done = false;
    while (!done) {
        OPQ_TRY(skip_lines(p));
        size_t start = p->r.at;
        if (opq_reader_peek(&p->r) == '%')
            OPQ_TRY(parse_node(p));
        else if (opq_reader_take(&p->r, "kernel "))
            OPQ_TRY(parse_kernel(p, start));
        else if (opq_reader_take(&p->r, "output "))
            OPQ_TRY(parse_output(p, start));
        else if (opq_reader_take(&p->r, "}"))
            OPQ_TRY(parse_close(p, &done));
        else
            return opq_reader_fail(&p->r, OPQ_INVALID, start, "expected a node, a kernel, output or '}'");
    }
    return OPQ_OK;
}

/* define ns::softcap(x, c) = c * tanh(x / c) */
static opq_status parse_define(parser *p)
{
    opq_op op;
    opq_reader_blanks(&p->r);
    size_t start = p->r.at;
    while (p->r.at < p->r.length && !strchr("=\r\n", p->r.text[p->r.at]))
        p->r.at++;
    size_t end = p->r.at;
    OPQ_TRY(opq_reader_want(&p->r, "="));
    opq_reader_blanks(&p->r);
    size_t text = p->r.at;
    while (p->r.at < p->r.length && !strchr("#\r\n", p->r.text[p->r.at]))
        p->r.at++;
    size_t length = p->r.at - text;
    while (end > start && p->r.text[end - 1] == ' ')
        end--;
    while (length > 0 && p->r.text[text + length - 1] == ' ')
        length--;
    char *words = opq_arena_alloc(&p->scratch, end - start + length + 2); /* zeroed */
    if (words == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph");
    char *expression = words + (end - start) + 1;
    memcpy(words, p->r.text + start, end - start);
    memcpy(expression, p->r.text + text, length);
    if (strlen(words) < end - start || strlen(expression) < length)
        return opq_reader_fail(&p->r, OPQ_INVALID, start, "a character of value 0");
    OPQ_TRY(located(p, opq_define_op(words, expression, &op), start));
    return line_end(p);
}

static opq_status parse(parser *p)
{
    char name[256];
    OPQ_TRY(skip_lines(p));
    while (opq_reader_take(&p->r, "define ")) {
        OPQ_TRY(parse_define(p));
        OPQ_TRY(skip_lines(p));
    }
    OPQ_TRY(opq_reader_want(&p->r, "graph "));
    OPQ_TRY(opq_reader_want(&p->r, "@"));
    OPQ_TRY(opq_reader_name(&p->r, name));
    OPQ_TRY(opq_reader_want(&p->r, "{"));
    OPQ_TRY(line_end(p));
    OPQ_TRY(opq_graph_create(name, &p->graph));
    OPQ_TRY(parse_body(p));
    OPQ_TRY(skip_lines(p));
    if (p->r.at < p->r.length)
        return opq_reader_fail(&p->r, OPQ_INVALID, p->r.at, "text after the graph");
    if (p->gaps_filled < p->gap_count)
        return opq_reader_fail(&p->r, OPQ_INVALID, p->gap_at,
                               "%d numbers of nodes are left out up to here, but only %d scalars are operands",
                               p->gap_count, p->gaps_filled);
    return OPQ_OK;
}

opq_status opq_graph_parse(const char *text, size_t length, opq_graph **out_graph)
{
    if (length > TEXT_MAX)
        return opq_fail(OPQ_INVALID, "a text of %zu bytes is longer than %d", length, (int)TEXT_MAX);
    parser p = {.r = {.text = text, .length = length}, .kernel_first = -1};
    p.r.arena = &p.scratch;
    opq_status status = parse(&p);
    free(p.operands);
    free(p.refs);
    free(p.gaps);
    opq_arena_drop(&p.scratch);
    if (status == OPQ_OK)
        *out_graph = p.graph;
    else
        opq_graph_destroy(p.graph);
    return status;
}
