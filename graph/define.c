/* Rows of the op table at run time: a signature and an expression become an opq_op_info and an opq_lowering, under a number from
 * OPQ_OP_DEFINED on.
 *
 * Rows are only ever added, and stay where they are: whoever has a number may read its row without a lock. Adding one claims the first
 * free place by comparing and swapping, and meets all rows before it on the way, so two threads that define one name agree. There is no
 * mutex that a fork could leave locked.
 *
 * What dtypes the row takes and gives is found by building the expression for operands of each kind: f32, i64, bool.
 */
#include "graph/define.h"

#include <ctype.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = OPQ_OP_LIMIT - OPQ_OP_DEFINED, NAME_MAX = 200, EXPRESSION_MAX = 1 << 16 };

static _Atomic(opq_defined_row *) rows[ROWS_MAX];

const opq_defined_row *opq_defined_row_of(opq_op op)
{
    return atomic_load_explicit(&rows[op - OPQ_OP_DEFINED], memory_order_acquire);
}

bool opq_defined_find(const char *name, size_t length, opq_op *out_op)
{
    const opq_defined_row *row;
    for (int i = 0; i < ROWS_MAX && (row = atomic_load_explicit(&rows[i], memory_order_acquire)); i++)
        if (strncmp(row->info.name, name, length) == 0 && row->info.name[length] == '\0') {
            *out_op = (opq_op)(OPQ_OP_DEFINED + i);
            return true;
        }
    return false;
}

void opq_text_signature(opq_text *text, const opq_op_info *info)
{
    opq_text_add(text, "%s(%s)", info->name, info->operands);
}

/* ---- the signature */

static opq_status wrong(const char *signature, const char *at, const char *what)
{
    return opq_fail(OPQ_INVALID, "signature '%.200s', column %d: %s", signature, (int)(at - signature) + 1, what);
}

static const char *blanks_end(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

/* A word of letters, digits and '_' that begins with no digit. Its end, or `at`: there is none. */
static const char *word_end(const char *at)
{
    if (isdigit((unsigned char)*at))
        return at;
    while (isalnum((unsigned char)*at) || *at == '_')
        at++;
    return at;
}

static opq_status read_name(const char *signature, const char **at)
{
    bool joined = false;
    for (;;) {
        const char *end = word_end(*at);
        if (end == *at)
            return wrong(signature, *at, "a name expected");
        *at = end;
        if (strncmp(end, "::", 2) != 0)
            break;
        joined = true;
        *at += 2;
    }
    if (!joined)
        return wrong(signature, *at, "the name wants a namespace, as in ns::name");
    return *at - signature > NAME_MAX ? wrong(signature, *at, "the name is too long") : OPQ_OK;
}

/* Fills in arity and operands, for which there is room. */
static opq_status read_operands(const char *signature, const char **at, opq_op_info *info, char *operands)
{
    size_t length = 0;
    do {
        const char *name = blanks_end(*at + 1), *end = word_end(name);
        size_t count = (size_t)(end - name);
        if (count == 0)
            return wrong(signature, name, "an operand's name expected");
        if ((count == 3 && !memcmp(name, "inf", 3)) || (count == 5 && !memcmp(name, "where", 5)))
            return wrong(signature, name, "this word has another meaning in expressions");
        if (info->arity == OPQ_OPERANDS_MAX)
            return wrong(signature, name, "too many operands");
        operands[length] = '\0';
        if (opq_op_operand(info, name, count) >= 0)
            return wrong(signature, name, "two operands of one name");
        if (length) {
            memcpy(operands + length, ", ", 2);
            length += 2;
        }
        memcpy(operands + length, name, count);
        length += count;
        info->arity++;
        *at = blanks_end(end);
    } while (**at == ',');
    operands[length] = '\0';
    return OPQ_OK;
}

/* Gives a row that knows its name, operands and expression, in one allocation. */
static opq_status read_row(const char *signature, const char *expression, opq_defined_row **out_row)
{
    const char *at = signature;
    size_t room = strlen(signature) * 2 + 2, length = strlen(expression);
    OPQ_TRY(read_name(signature, &at));
    size_t name_length = (size_t)(at - signature);
    if (length > EXPRESSION_MAX)
        return opq_fail(OPQ_INVALID, "%.*s: an expression of %zu characters, at most %d", (int)name_length, signature,
                        length, EXPRESSION_MAX);
    opq_defined_row *row = calloc(1, sizeof *row + name_length + 1 + room + length + 1);
    if (row == NULL)
        return opq_fail(OPQ_NO_MEMORY, "out of memory for a row of the op table");
    char *name = (char *)(row + 1), *operands = name + name_length + 1, *text = operands + room;
    memcpy(name, signature, name_length);
    for (size_t i = 0; i < length; i++)
        text[i] = expression[i] == '\t' || expression[i] == '\n' || expression[i] == '\r' ? ' ' : expression[i];
    row->info = (opq_op_info){
        .name = name, .class_ = OPQ_CLASS_EWISE, .aten = "", .signature = "POINTWISE", .expand = text, .operands = operands};
    row->lowering = (opq_lowering){.kind = OPQ_LOWER_EXPAND, .text = text};
    at = blanks_end(at);
    opq_status status =
        *at == '(' ? read_operands(signature, &at, &row->info, operands) : wrong(signature, at, "'(' expected");
    if (status == OPQ_OK && *at != ')')
        status = wrong(signature, at, "',' or ')' expected");
    else if (status == OPQ_OK && *blanks_end(at + 1) != '\0')
        status = wrong(signature, at + 1, "text behind the signature");
    if (status == OPQ_OK)
        *out_row = row;
    else
        free(row);
    return status;
}

/* ---- the expression */

static opq_status build(const opq_op_info *info, opq_dtype dtype, bool expand, opq_expression_use *out_use,
                        opq_graph **out_graph)
{
    opq_graph *graph;
    opq_ref refs[OPQ_OPERANDS_MAX], result;
    opq_type type = opq_type_make(dtype, 0, NULL);
    OPQ_TRY(opq_graph_create("expression", &graph));
    opq_status status = OPQ_OK;
    for (int i = 0; i < info->arity && status == OPQ_OK; i++)
        status = opq_graph_input(graph, &type, &refs[i]);
    if (status == OPQ_OK)
        status = opq_expression_build(graph, info, refs, dtype, expand, out_use, &result);
    if (status == OPQ_OK)
        status = opq_graph_output(graph, result);
    if (status == OPQ_OK)
        *out_graph = graph;
    else
        opq_graph_destroy(graph);
    return status;
}

typedef struct kind_of_result {
    bool is_there;
    opq_dtype dtype;
} kind_of_result;

static opq_status try_dtype(const opq_op_info *info, opq_dtype dtype, opq_expression_use *out_use, kind_of_result *out)
{
    opq_graph *graph;
    opq_status status = build(info, dtype, true, out_use, &graph);
    out->is_there = status == OPQ_OK;
    if (out->is_there) {
        out->dtype = (opq_dtype)opq_graph_output_type(graph, 0).dtype;
        opq_graph_destroy(graph);
    }
    return status;
}

static bool gives_float(const kind_of_result *result)
{
    return result->is_there && opq_dtype_kind_of(result->dtype) == OPQ_KIND_FLOAT;
}

/* Which dtypes the row computes in, and what it makes of them. */
static opq_status read_dtypes(opq_op_info *info)
{
    opq_expression_use use = {0}, same;
    kind_of_result of_float, of_int, of_bool;
    opq_status status = try_dtype(info, OPQ_i64, &use, &of_int);
    bool integers_only = of_int.is_there && (use.flags & OPQ_FLAG_NOFLOAT);
    if (status == OPQ_NO_MEMORY)
        return status;
    status = try_dtype(info, OPQ_f32, &use, &of_float);
    if (status != OPQ_OK && !integers_only)
        return status;
    status = try_dtype(info, OPQ_bool, &same, &of_bool);
    if (status == OPQ_NO_MEMORY)
        return status;
    info->flags = use.flags & (OPQ_FLAG_CHEAP | OPQ_FLAG_MATH32);
    if (!of_float.is_there)
        info->flags |= OPQ_FLAG_NOFLOAT;
    if (!of_int.is_there && (use.flags & OPQ_FLAG_NOINT))
        info->flags |= OPQ_FLAG_NOINT;
    bool is_test = of_float.is_there ? of_float.dtype == OPQ_bool : of_int.dtype == OPQ_bool;
    bool makes_floats = gives_float(&of_float) && (!of_int.is_there || gives_float(&of_int));
    info->rule = is_test                                           ? OPQ_RULE_BOOL
                 : makes_floats && !(info->flags & OPQ_FLAG_NOINT) ? OPQ_RULE_FLOAT
                                                                   : OPQ_RULE_SAME;
    if (info->rule != OPQ_RULE_FLOAT && !of_bool.is_there)
        info->flags |= OPQ_FLAG_NOBOOL;
    if (info->rule == OPQ_RULE_BOOL && !of_int.is_there)
        info->flags |= OPQ_FLAG_NOINT;
    return OPQ_OK;
}

/* ---- entry */

static bool same_words(const opq_op_info *a, const opq_op_info *b)
{
    return strcmp(a->operands, b->operands) == 0 && strcmp(a->expand, b->expand) == 0;
}

/* Takes over the row. */
static opq_status add_row(opq_defined_row *row, opq_op *out_op)
{
    for (int i = 0; i < ROWS_MAX; i++) {
        opq_defined_row *there = NULL;
        if (atomic_compare_exchange_strong(&rows[i], &there, row)) {
            *out_op = (opq_op)(OPQ_OP_DEFINED + i);
            return OPQ_OK;
        }
        if (strcmp(there->info.name, row->info.name) != 0)
            continue;
        opq_status status = OPQ_OK;
        if (!same_words(&there->info, &row->info))
            status = opq_fail(OPQ_INVALID, "%s is defined already, as (%s) = %.400s", row->info.name,
                              there->info.operands, there->info.expand);
        free(row);
        *out_op = (opq_op)(OPQ_OP_DEFINED + i);
        return status;
    }
    free(row);
    return opq_fail(OPQ_INVALID, "%d ops are defined, and there is no room for more", ROWS_MAX);
}

opq_status opq_define_op(const char *signature, const char *expression, opq_op *out_op)
{
    opq_defined_row *row;
    OPQ_TRY(read_row(signature, expression, &row));
    opq_status status = read_dtypes(&row->info);
    if (status == OPQ_OK)
        return add_row(row, out_op);
    free(row);
    return status;
}

opq_status opq_graph_expression(const char *signature, const char *expression, opq_dtype dtype, bool expand,
                                opq_graph **out_graph)
{
    opq_defined_row *row;
    opq_expression_use use;
    OPQ_TRY(read_row(signature, expression, &row));
    opq_status status = build(&row->info, dtype, expand, &use, out_graph);
    free(row);
    return status;
}
