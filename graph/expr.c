/* Composite rows, expanded: a recursive descent over the row's expression that builds nodes as it reads.
 *
 *   expression   binary [where name = binary {; name = binary}]      parts are built first, in their order
 *   binary       operators of C with C's precedence:  |  ^  &  == !=  < <= > >=  + -  * /
 *   unary        - ! primary
 *   primary      number | inf | operand | name | row(binary, ...) | ( binary )
 *
 * Operands are a, b, c, ... or, of rows made at run time, what their signature calls them. A number has no dtype of its own: it waits as a
 * number until it meets an operand, takes that operand's dtype and becomes a const, one for each value and dtype in an expansion. A comparison of integers with a number that is none (a == inf) is one
 * in f32. Operands are built from left to right, so that equal rows give equal text.
 *
 * A row that expands itself is expanded in place. Nothing here looks at what a node computes. What is wrong in a row of the table is
 * our fault, and in one made at run time its author's, who is told the column.
 */
#include "graph/expr_number.h"
#include "graph/recurrent.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 16, NESTING_MAX = 64, NAMES_MAX = 256, CONSTS_MAX = 16, ARITY_MAX = OPQ_OPERANDS_MAX };

typedef struct value {
    bool is_number;
    double number;
    opq_ref ref;
} value;

typedef struct builder {
    opq_graph *graph;
    const opq_op_info *info;
    const opq_node *node; /* whose axes reductions take; NULL: of a row that has none */
    const opq_ref *operands;
    opq_dtype dtype; /* of numbers that meet no operand */
    int depth, nesting;
    bool whole; /* inner rows that expand themselves stay as they are */
    opq_expression_use use;
    const char *text, *at;
    int name_count, const_count; /* all from here on is filled as it is needed */
    struct {
        const char *name;
        size_t length;
        value value;
    } names[NAMES_MAX];
    struct {
        opq_dtype dtype;
        int64_t bits;
        opq_ref ref;
    } consts[CONSTS_MAX];
} builder;

static opq_status expand(opq_graph *graph, const opq_node *node, const opq_ref *operands, int depth, opq_ref *out_ref);
static opq_status parse_binary(builder *b, int level, value *out_value);

static void begin(builder *b, opq_graph *graph, const opq_op_info *info, const opq_ref *operands, opq_dtype dtype)
{
    b->graph = graph;
    b->info = info;
    b->node = NULL;
    b->operands = operands;
    b->dtype = dtype;
    b->depth = b->nesting = 0;
    b->whole = false;
    b->use.flags = OPQ_FLAG_CHEAP;
    b->text = b->at = info->expand;
    b->name_count = b->const_count = 0;
}

static bool at_run_time(const builder *b) { return b->info->operands != NULL; }

static opq_status broken_at(const builder *b, const char *at, const char *format, ...) OPQ_PRINTF(3, 4);
static opq_status broken_at(const builder *b, const char *at, const char *format, ...)
{
    char what[400];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    return opq_fail(at_run_time(b) ? OPQ_INVALID : OPQ_INTERNAL, "%s: expression, column %d: %s", b->info->name,
                    (int)(at - b->text) + 1, what);
}

static opq_status broken(const builder *b, const char *what) { return broken_at(b, b->at, "%s", what); }

static opq_dtype dtype_of(const builder *b, opq_ref ref) { return (opq_dtype)opq_node_at(b->graph, ref)->type.dtype; }

/* ---- numbers */

static bool holds(opq_dtype dtype, double number)
{
    switch (opq_dtype_kind_of(dtype)) {
    case OPQ_KIND_FLOAT: return true;
    case OPQ_KIND_BOOL: return number == 0 || number == 1;
    case OPQ_KIND_UINT: return number >= 0 && number < 0x1p8 && number == floor(number);
    case OPQ_KIND_INT: {
        double limit = ldexp(1, 8 * opq_dtype_bytes(dtype) - 1);
        return number >= -limit && number < limit && number == floor(number);
    }
    case OPQ_KIND_RAW: break;
    }
    return false;
}

static opq_status make_const(builder *b, opq_dtype dtype, double number, opq_ref *out_ref)
{
    opq_number bits = {.f = number};
    if (!holds(dtype, number))
        return opq_fail(OPQ_INVALID, "%s: %g is not a value of %s", b->info->name, number, opq_dtype_name(dtype));
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT)
        bits.i = (int64_t)number;
    for (int i = 0; i < b->const_count; i++)
        if (b->consts[i].dtype == dtype && b->consts[i].bits == bits.i) {
            *out_ref = b->consts[i].ref;
            return OPQ_OK;
        }
    OPQ_TRY(opq_graph_const(b->graph, dtype, bits, out_ref));
    if (b->const_count < CONSTS_MAX) {
        b->consts[b->const_count].dtype = dtype;
        b->consts[b->const_count].bits = bits.i;
        b->consts[b->const_count++].ref = *out_ref;
    }
    return OPQ_OK;
}

static opq_status as_ref(builder *b, const value *v, opq_dtype dtype, opq_ref *out_ref)
{
    if (v->is_number)
        return make_const(b, dtype, v->number, out_ref);
    *out_ref = v->ref;
    return OPQ_OK;
}

static opq_status cast_to(opq_graph *graph, opq_dtype dtype, opq_ref *ref)
{
    opq_type type = opq_node_at(graph, *ref)->type;
    if (type.dtype == dtype)
        return OPQ_OK;
    type.dtype = (uint8_t)dtype;
    return opq_graph_op_typed(graph, OPQ_OP_cast, &type, ref, 1, NULL, 0, ref);
}

/* ---- nodes */

/* Reductions take the order of additions from the row that contains them. */
static int inherited_attrs(const opq_node *node, opq_op op, opq_attr out_attrs[2])
{
    static const opq_attr_key keys[] = {OPQ_ATTR_axes, OPQ_ATTR_tree};
    opq_class class_ = opq_op_info_of(op)->class_;
    int count = 0;
    if (node == NULL)
        return 0;
    if (class_ != OPQ_CLASS_REDUCE && class_ != OPQ_CLASS_COMPOSITE)
        return 0;
    for (int i = 0; i < 2; i++) {
        const opq_attr *attr = opq_node_attr(node, keys[i]);
        if (attr != NULL)
            out_attrs[count++] = *attr;
    }
    return count;
}

/* The node is only described, for its expansion takes its place. */
static opq_status expand_inner(opq_graph *graph, opq_op op, opq_ref *refs, int arity, const opq_attr *attrs,
                               int attr_count, int depth, opq_ref *out_ref)
{
    opq_type types[ARITY_MAX] = {{0}};
    opq_dtype compute;
    opq_node inner = {.op = (uint16_t)op, .attr_count = (uint16_t)attr_count, .arity = arity, .kernel = -1, .attr = attrs};
    for (int i = 0; i < arity; i++)
        types[i] = opq_node_at(graph, refs[i])->type;
    OPQ_TRY(opq_infer(op, types, arity, attrs, attr_count, NULL, &inner.type, &compute));
    for (int i = 0; i < arity; i++)
        if (opq_operand_promotes(op, i))
            OPQ_TRY(cast_to(graph, compute, &refs[i]));
    inner.operand = refs;
    return expand(graph, &inner, refs, depth + 1, out_ref);
}

static opq_status build(builder *b, opq_op op, opq_ref *refs, int arity, value *out_value)
{
    opq_attr attrs[2];
    int attr_count = inherited_attrs(b->node, op, attrs);
    out_value->is_number = false;
    if (opq_op_lowering(op)->kind == OPQ_LOWER_EXPAND && !b->whole)
        return expand_inner(b->graph, op, refs, arity, attrs, attr_count, b->depth, &out_value->ref);
    return opq_graph_op(b->graph, op, refs, arity, attrs, attr_count, &out_value->ref);
}

/* Applies a row, its numbers brought to the dtype of the first operand that has one. */
static opq_status apply(builder *b, opq_op op, const value *args, int count, value *out_value)
{
    opq_ref refs[ARITY_MAX];
    opq_dtype dtype = b->dtype;
    bool compares = opq_op_lowering(op)->kind == OPQ_LOWER_CMP, fits = true;
    for (int i = count - 1; i >= 0; i--)
        if (!args[i].is_number && opq_operand_promotes(op, i))
            dtype = dtype_of(b, args[i].ref);
    for (int i = 0; i < count; i++)
        fits = fits && (!args[i].is_number || holds(dtype, args[i].number));
    if (compares && !fits)
        dtype = OPQ_f32;
    for (int i = 0; i < count; i++) {
        OPQ_TRY(as_ref(b, &args[i], dtype, &refs[i]));
        if (compares && !fits)
            OPQ_TRY(cast_to(b->graph, OPQ_f32, &refs[i]));
    }
    return build(b, op, refs, count, out_value);
}

static bool is_truth(const builder *b, const value *v) { return !v->is_number && dtype_of(b, v->ref) == OPQ_bool; }

/* Operands of a row made at run time have one dtype, masks among them: where a truth value is due they are compared with 0. */
static opq_status as_truth(builder *b, opq_op op, value *args, int count)
{
    bool joins = op == OPQ_OP_bitwise_and || op == OPQ_OP_bitwise_or || op == OPQ_OP_bitwise_xor, any = false;
    for (int i = 0; i < count; i++)
        any = any || is_truth(b, &args[i]);
    for (int i = 0; i < count; i++) {
        bool is_float = !args[i].is_number && opq_dtype_kind_of(dtype_of(b, args[i].ref)) == OPQ_KIND_FLOAT;
        bool due = joins ? any && is_float : !opq_operand_promotes(op, i) && !is_truth(b, &args[i]);
        if (due)
            OPQ_TRY(apply(b, OPQ_OP_ne, (value[]){args[i], {.is_number = true}}, 2, &args[i]));
    }
    return OPQ_OK;
}

static void note_use(builder *b, const opq_op_info *info)
{
    b->use.flags |= info->flags & (OPQ_FLAG_NOINT | OPQ_FLAG_NOFLOAT | OPQ_FLAG_NOBOOL | OPQ_FLAG_MATH32);
    if (!(info->flags & OPQ_FLAG_CHEAP))
        b->use.flags &= ~(unsigned)OPQ_FLAG_CHEAP;
}

/* `at`: where its name stands. */
static opq_status apply_named(builder *b, const char *at, const char *name, size_t length, value *args, int count,
                              value *out_value)
{
    opq_op op;
    if (!opq_op_find(name, length, &op))
        return broken_at(b, at, "no function is named '%.*s'", (int)(length < 64 ? length : 64), name);
    const opq_op_info *info = opq_op_info_of(op);
    if (at_run_time(b) && info->class_ != OPQ_CLASS_EWISE)
        return broken_at(b, at, "%s is not elementwise", info->name);
    if (info->arity != count)
        return broken_at(b, at, "%s takes %d operands, not %d", info->name, info->arity, count);
    note_use(b, info);
    opq_status status = at_run_time(b) ? as_truth(b, op, args, count) : OPQ_OK;
    if (status == OPQ_OK)
        status = apply(b, op, args, count, out_value);
    if (status == OPQ_INVALID && at_run_time(b)) {
        char why[300];
        snprintf(why, sizeof why, "%s", opq_error());
        return broken_at(b, at, "%s", why);
    }
    return status;
}

/* ---- reading */

static char peek(builder *b)
{
    while (*b->at == ' ')
        b->at++;
    return *b->at;
}

static bool take(builder *b, const char *token)
{
    if (peek(b) != *token) /* most are another one */
        return false;
    size_t length = strlen(token);
    if (strncmp(b->at, token, length) != 0)
        return false;
    b->at += length;
    return true;
}

static opq_status parse_name(builder *b, const char *name, size_t length, value *out_value)
{
    for (int i = 0; i < b->name_count; i++)
        if (b->names[i].length == length && memcmp(b->names[i].name, name, length) == 0) {
            *out_value = b->names[i].value;
            return OPQ_OK;
        }
    int operand = opq_op_operand(b->info, name, length);
    if (operand < 0)
        return broken_at(b, name, "no operand or part is named '%.*s'", (int)(length < 64 ? length : 64), name);
    *out_value = (value){.ref = b->operands[operand]};
    return OPQ_OK;
}

static opq_status parse_call(builder *b, const char *name, size_t length, value *out_value)
{
    value args[ARITY_MAX];
    int count = 0;
    do {
        if (count == ARITY_MAX)
            return broken(b, "too many operands");
        OPQ_TRY(parse_binary(b, 0, &args[count++]));
    } while (take(b, ","));
    if (!take(b, ")"))
        return broken(b, "')' expected");
    return apply_named(b, name, name, length, args, count, out_value);
}

static opq_status parse_primary(builder *b, value *out_value)
{
    if (take(b, "(")) {
        OPQ_TRY(parse_binary(b, 0, out_value));
        return take(b, ")") ? OPQ_OK : broken(b, "')' expected");
    }
    if (isdigit((unsigned char)peek(b)) || (*b->at == '.' && isdigit((unsigned char)b->at[1]))) {
        *out_value = (value){.is_number = true};
        b->at = opq_expression_number(b->at, &out_value->number);
        return OPQ_OK;
    }
    const char *name = b->at;
    while (isalnum((unsigned char)*b->at) || *b->at == '_')
        b->at++;
    size_t length = (size_t)(b->at - name);
    if (length == 0)
        return broken(b, "operand expected");
    if (take(b, "("))
        return parse_call(b, name, length, out_value);
    if (length == 3 && memcmp(name, "inf", 3) == 0) {
        *out_value = (value){.is_number = true, .number = INFINITY};
        return OPQ_OK;
    }
    return parse_name(b, name, length, out_value);
}

static opq_status parse_unary(builder *b, value *out_value)
{
    bool minus = take(b, "-");
    const char *sign = b->at - 1;
    if (!minus && !(peek(b) == '!' && b->at[1] != '=' && take(b, "!")))
        return parse_primary(b, out_value);
    value arg;
    if (++b->nesting > NESTING_MAX)
        return broken(b, "nested too deeply");
    OPQ_TRY(parse_unary(b, &arg));
    b->nesting--;
    if (minus && arg.is_number) {
        *out_value = (value){.is_number = true, .number = -arg.number};
        return OPQ_OK;
    }
    return minus ? apply_named(b, sign, "neg", 3, &arg, 1, out_value)
                 : apply_named(b, sign, "logical_not", 11, &arg, 1, out_value);
}

static const struct {
    const char *token;
    int level; /* binds the tighter the higher */
    const char *row;
} operators[] = {
    {"|", 0, "bitwise_or"}, {"^", 1, "bitwise_xor"}, {"&", 2, "bitwise_and"}, {"==", 3, "eq"}, {"!=", 3, "ne"},
    {"<=", 4, "le"},        {">=", 4, "ge"},         {"<", 4, "lt"},          {">", 4, "gt"},  {"+", 5, "add"},
    {"-", 5, "sub"},        {"*", 6, "mul"},         {"/", 6, "div"},
};
enum { OPERATORS = sizeof operators / sizeof *operators };

static opq_status parse_binary(builder *b, int level, value *out_value)
{
    if (++b->nesting > NESTING_MAX)
        return broken(b, "nested too deeply");
    value args[2];
    OPQ_TRY(parse_unary(b, &args[0]));
    for (;;) {
        int found = 0;
        while (found < OPERATORS && !(operators[found].level >= level && take(b, operators[found].token)))
            found++;
        if (found == OPERATORS)
            break;
        const char *at = b->at - strlen(operators[found].token);
        OPQ_TRY(parse_binary(b, operators[found].level + 1, &args[1]));
        value result;
        OPQ_TRY(apply_named(b, at, operators[found].row, strlen(operators[found].row), args, 2, &result));
        args[0] = result;
    }
    b->nesting--;
    *out_value = args[0];
    return OPQ_OK;
}

static size_t word_length(const char *at)
{
    size_t length = 0;
    while (isalnum((unsigned char)at[length]) || at[length] == '_')
        length++;
    return length;
}

static bool is_free(const builder *b, const char *name, size_t length)
{
    for (int i = 0; i < b->name_count; i++)
        if (b->names[i].length == length && memcmp(b->names[i].name, name, length) == 0)
            return false;
    bool reserved = (length == 3 && memcmp(name, "inf", 3) == 0) || (length == 5 && memcmp(name, "where", 5) == 0);
    return length > 0 && !isdigit((unsigned char)*name) && !reserved && opq_op_operand(b->info, name, length) < 0;
}

static opq_status parse_parts(builder *b)
{
    do {
        peek(b);
        const char *name = b->at;
        size_t length = word_length(name);
        if (!is_free(b, name, length))
            return broken(b, "not a name for a part");
        if (b->name_count == NAMES_MAX)
            return broken(b, "too many parts");
        b->at += length;
        if (!take(b, "="))
            return broken(b, "'=' expected");
        value part;
        OPQ_TRY(parse_binary(b, 0, &part));
        b->names[b->name_count].name = name;
        b->names[b->name_count].length = length;
        b->names[b->name_count++].value = part;
    } while (take(b, ";"));
    return peek(b) == '\0' ? OPQ_OK : broken(b, "operator or ';' expected");
}

/* Behind the keyword stands `name =`; the function of this name has a parenthesis. */
static const char *find_parts(const char *text)
{
    static const char keyword[] = " where ";
    const char *where = strstr(text, keyword);
    for (; where != NULL; where = strstr(where + 1, keyword)) {
        const char *at = where + sizeof keyword - 1;
        while (*at == ' ')
            at++;
        if (*at != '(')
            return where;
    }
    return NULL;
}

static opq_status parse_expression(builder *b, value *out_value)
{
    const char *where = find_parts(b->text), *end = b->text + strlen(b->text);
    if (where != NULL) {
        b->at = where + strlen(" where ");
        OPQ_TRY(parse_parts(b));
        end = where + 1;
    }
    b->at = b->text;
    OPQ_TRY(parse_binary(b, 0, out_value));
    peek(b);
    return b->at == end ? OPQ_OK : broken(b, "operator expected");
}

/* ---- attention: softmax(q k^T * scale + mask) v, the softmax over the keys */

static opq_status expand_attention(opq_graph *graph, const opq_node *node, const opq_ref *operands, int depth,
                                   opq_ref *out_ref)
{
    opq_attr transpose = {.key = OPQ_ATTR_transpose_b, .i = 1};
    int64_t keys = opq_node_at(graph, operands[0])->type.rank - 1;
    opq_attr over_keys[] = {{.key = OPQ_ATTR_axes, .count = 1, .ints = &keys},
                            {.key = OPQ_ATTR_tree, .i = OPQ_TREE_lanes}};
    opq_ref scores, args[2];

    OPQ_TRY(opq_graph_op(graph, OPQ_OP_matmul, (opq_ref[]){operands[0], operands[1]}, 2, &transpose, 1, &scores));
    OPQ_TRY(opq_graph_op(graph, OPQ_OP_mul, (opq_ref[]){scores, operands[3]}, 2, NULL, 0, &scores));
    if (node->op == OPQ_OP_attention_mask)
        OPQ_TRY(opq_graph_op(graph, OPQ_OP_add, (opq_ref[]){scores, operands[4]}, 2, NULL, 0, &scores));
    OPQ_TRY(expand_inner(graph, OPQ_OP_softmax, &scores, 1, over_keys, 2, depth, &args[0]));
    args[1] = operands[2];
    return opq_graph_op(graph, OPQ_OP_matmul, args, 2, NULL, 0, out_ref);
}

/* ---- entry */

static opq_dtype compute_dtype(const opq_graph *graph, const opq_node *node, const opq_ref *operands)
{
    for (int i = 0; i < node->arity; i++)
        if (opq_operand_promotes((opq_op)node->op, i))
            return (opq_dtype)opq_node_at(graph, operands[i])->type.dtype;
    return (opq_dtype)node->type.dtype;
}

static opq_status expand(opq_graph *graph, const opq_node *node, const opq_ref *operands, int depth, opq_ref *out_ref)
{
    const opq_lowering *lowering = opq_op_lowering((opq_op)node->op);
    opq_ref ref;
    if (depth > DEPTH_MAX)
        return opq_fail(OPQ_INTERNAL, "%s: expands without end", opq_node_info(node)->name);
    if (node->op == OPQ_OP_attention || node->op == OPQ_OP_attention_mask) {
        OPQ_TRY(expand_attention(graph, node, operands, depth, &ref));
    } else if (opq_op_is_recurrent(node->op)) {
        OPQ_TRY(opq_expand_recurrent(graph, node, operands, &ref));
    } else if (lowering->kind == OPQ_LOWER_EXPAND) {
        builder b;
        value result;
        begin(&b, graph, opq_node_info(node), operands, compute_dtype(graph, node, operands));
        b.node = node;
        b.depth = depth;
        OPQ_TRY(parse_expression(&b, &result));
        OPQ_TRY(as_ref(&b, &result, (opq_dtype)node->type.dtype, &ref));
    } else {
        return opq_fail(OPQ_INVALID, "%s: not a composite row", opq_node_info(node)->name);
    }

    OPQ_TRY(cast_to(graph, (opq_dtype)node->type.dtype, &ref));
    if (!opq_shape_equal(&opq_node_at(graph, ref)->type, &node->type))
        OPQ_TRY(opq_graph_op_typed(graph, OPQ_OP_expand, &node->type, &ref, 1, NULL, 0, &ref));
    *out_ref = ref;
    return OPQ_OK;
}

opq_status opq_expand_node(opq_graph *graph, const opq_node *node, const opq_ref *operands, opq_ref *out_ref)
{
    opq_ref first = graph->count;
    OPQ_TRY(expand(graph, node, operands, 0, out_ref));
    const char *line;
    const opq_provenance *provenance;
    OPQ_TRY(opq_graph_copy_origin(graph, node, &line, &provenance));
    for (opq_ref n = first; n < graph->count; n++) {
        graph->nodes[n].line = line;
        graph->nodes[n].provenance = provenance;
    }
    return OPQ_OK;
}

opq_status opq_expression_build(opq_graph *graph, const opq_op_info *info, const opq_ref *operands, opq_dtype dtype,
                                bool expand, opq_expression_use *out_use, opq_ref *out_ref)
{
    builder b;
    value result;
    begin(&b, graph, info, operands, dtype);
    b.whole = !expand;
    opq_status status = parse_expression(&b, &result);
    *out_use = b.use;
    OPQ_TRY(status);
    return as_ref(&b, &result, dtype, out_ref);
}
