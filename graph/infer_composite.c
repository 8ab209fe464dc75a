/* Shapes of composite rows, read off their expressions.
 *
 * Every row inside an expression either broadcasts its operands or reduces over the node's axes, and broadcasting is
 * associative. So precedence does not matter: the shape of an expression is the broadcast of the names in it that no
 * reduction encloses and of the reduced shapes of those that one does. A scanner of names, commas and parentheses is
 * enough, and a new row needs nothing here. (A node's dtypes follow from its rule, not from its expression.)
 */
#include "graph/recurrent.h"

#include <ctype.h>
#include <string.h>

enum { PARTS_MAX = 8, ARGUMENTS_MAX = 8, DEPTH_MAX = 8 };

typedef struct part {
    const char *name;
    size_t length;
    opq_type type;
} part;

typedef struct scan {
    const opq_inference *call;
    const opq_type *operands;
    int arity, depth;
    part parts[PARTS_MAX];
    int part_count;
} scan;

static opq_status row_shape(const opq_inference *call, opq_op op, const opq_type *operands, int arity, int depth,
                            opq_type *out_type);
static opq_status group_shape(scan *s, const char **at, opq_type *out_type);

static opq_status broken(const scan *s)
{
    return opq_fail(OPQ_INTERNAL, "%s: expression without a shape", s->call->info->name);
}

static const char *skip_blanks(const char *at)
{
    while (*at == ' ')
        at++;
    return at;
}

static const char *name_end(const char *at)
{
    while (isalnum((unsigned char)*at) || *at == '_' || *at == '.')
        at++;
    return at;
}

static bool is_where(const char *name, size_t length) { return length == 5 && !memcmp(name, "where", 5); }

/* f(x, y, ...): `at` is behind the opening parenthesis, and afterwards behind the closing one. */
static opq_status call_shape(scan *s, const char *name, size_t length, const char **at, opq_type *out_type)
{
    opq_type arguments[ARGUMENTS_MAX];
    int count = 0;
    opq_op op;
    do {
        if (count == ARGUMENTS_MAX)
            return broken(s);
        OPQ_TRY(group_shape(s, at, &arguments[count++]));
    } while (*(*at)++ == ',');
    if ((*at)[-1] != ')' || !opq_op_find(name, length, &op))
        return broken(s);
    return row_shape(s->call, op, arguments, count, s->depth + 1, out_type);
}

/* A part, an operand, or inf and nan, which are numbers. Parts hide operands. */
static opq_status name_shape(const scan *s, const char *name, size_t length, opq_type *out_type)
{
    for (int i = 0; i < s->part_count; i++)
        if (s->parts[i].length == length && !memcmp(s->parts[i].name, name, length)) {
            *out_type = s->parts[i].type;
            return OPQ_OK;
        }
    *out_type = (opq_type){0};
    if (length == 1 && *name >= 'a' && *name - 'a' < s->arity)
        *out_type = s->operands[*name - 'a'];
    else if (length != 3 || (memcmp(name, "inf", 3) && memcmp(name, "nan", 3)))
        return broken(s);
    return OPQ_OK;
}

/* Up to a comma, semicolon or closing parenthesis of this level, to ` where `, or to the end; `at` is left there. */
static opq_status group_shape(scan *s, const char **at, opq_type *out_type)
{
    *out_type = (opq_type){0};
    while (**at && **at != ',' && **at != ';' && **at != ')') {
        opq_type term = {0};
        const char *start = *at, *end = name_end(start);
        size_t length = (size_t)(end - start);
        bool called = *skip_blanks(end) == '(';
        if (isdigit((unsigned char)*start)) {
            *at = end;
        } else if (length && called) {
            *at = skip_blanks(end) + 1;
            OPQ_TRY(call_shape(s, start, length, at, &term));
        } else if (length && is_where(start, length)) {
            break;
        } else if (length) {
            *at = end;
            OPQ_TRY(name_shape(s, start, length, &term));
        } else if (*(*at)++ == '(') {
            OPQ_TRY(group_shape(s, at, &term));
            if (*(*at)++ != ')')
                return broken(s);
        }
        OPQ_TRY(opq_broadcast(s->call->info->name, out_type, &term, out_type));
    }
    return OPQ_OK;
}

/* `m = ...; n = ...`, `at` behind the keyword. */
static opq_status scan_parts(scan *s, const char *at)
{
    while (*at) {
        if (s->part_count == PARTS_MAX)
            return broken(s);
        part *p = &s->parts[s->part_count];
        p->name = skip_blanks(at);
        p->length = (size_t)(name_end(p->name) - p->name);
        at = skip_blanks(p->name + p->length);
        if (!p->length || *at++ != '=')
            return broken(s);
        OPQ_TRY(group_shape(s, &at, &p->type));
        s->part_count++;
        if (*at && *at++ != ';')
            return broken(s);
    }
    return OPQ_OK;
}

static opq_status expression_shape(const opq_inference *call, const char *text, const opq_type *operands, int arity,
                                   int depth, opq_type *out_type)
{
    static const char keyword[] = " where ";
    scan s = {.call = call, .operands = operands, .arity = arity, .depth = depth};
    const char *parts = strstr(text, keyword);
    if (depth > DEPTH_MAX)
        return broken(&s);
    if (parts)
        OPQ_TRY(scan_parts(&s, parts + sizeof keyword - 1));
    OPQ_TRY(group_shape(&s, &text, out_type));
    return *text && (!parts || text != parts + 1) ? broken(&s) : OPQ_OK;
}

static opq_status row_shape(const opq_inference *call, opq_op op, const opq_type *operands, int arity, int depth,
                            opq_type *out_type)
{
    const opq_op_info *info = opq_op_info_of(op);
    if (info->class_ == OPQ_CLASS_REDUCE)
        return opq_infer_reduce(call, op, &operands[0], out_type);
    if (info->class_ == OPQ_CLASS_COMPOSITE && info->expand)
        return expression_shape(call, info->expand, operands, arity, depth, out_type);
    *out_type = operands[0];
    for (int i = 1; i < arity; i++)
        OPQ_TRY(opq_broadcast(call->info->name, out_type, &operands[i], out_type));
    return OPQ_OK;
}

/* q [.., S, D], k [.., T, D], v [.., T, E] give [.., S, E]; a mask broadcasts to the scores [.., S, T]. */
static opq_status attention_shape(const opq_inference *call, opq_type *out_type)
{
    const char *name = call->info->name;
    const opq_type *q = &call->operands[0], *k = &call->operands[1], *v = &call->operands[2];
    if (opq_dtype_kind_of(call->compute) != OPQ_KIND_FLOAT)
        return opq_fail(OPQ_INVALID, "%s: not implemented for %s", name, opq_dtype_name(call->compute));
    bool fits = q->rank >= 2 && k->rank >= 2 && v->rank >= 2 && q->size[q->rank - 1] == k->size[k->rank - 1] &&
                k->size[k->rank - 2] == v->size[v->rank - 2];
    if (!fits)
        return opq_fail(OPQ_INVALID, "%s: shapes %s, %s and %s do not fit", name, opq_shape_name(q).text,
                        opq_shape_name(k).text, opq_shape_name(v).text);
    if (call->operands[3].rank != 0)
        return opq_fail(OPQ_INVALID, "%s: the scale has no dimensions, got %s", name,
                        opq_shape_name(&call->operands[3]).text);
    opq_type batch[3] = {*q, *k, *v}, scores;
    for (int i = 0; i < 3; i++)
        batch[i].rank -= 2;
    OPQ_TRY(opq_broadcast(name, &batch[0], &batch[1], out_type));
    OPQ_TRY(opq_broadcast(name, out_type, &batch[2], out_type));
    scores = *out_type;
    scores.dtype = (uint8_t)call->compute;
    scores.size[scores.rank++] = q->size[q->rank - 2];
    scores.size[scores.rank++] = k->size[k->rank - 2];
    out_type->size[out_type->rank++] = q->size[q->rank - 2];
    out_type->size[out_type->rank++] = v->size[v->rank - 1];
    OPQ_TRY(opq_type_check(name, &scores));
    if (call->arity < 5)
        return OPQ_OK;
    const opq_type *mask = &call->operands[4];
    opq_type both;
    if (opq_dtype_kind_of((opq_dtype)mask->dtype) != OPQ_KIND_FLOAT)
        return opq_fail(OPQ_INVALID, "%s: the mask is added and must be a float, got %s", name,
                        opq_dtype_name((opq_dtype)mask->dtype));
    OPQ_TRY(opq_broadcast(name, mask, &scores, &both));
    if (!opq_shape_equal(&both, &scores))
        return opq_fail(OPQ_INVALID, "%s: mask %s does not broadcast to %s", name, opq_shape_name(mask).text,
                        opq_shape_name(&scores).text);
    return OPQ_OK;
}

/* ---- what was found last ------------------------------------------------------------------------------------------
 *
 * Reading an expression takes longer than all else of recording its row, and the layers of a net are alike. */

enum { MEMO_COUNT = 32, MEMO_ARITY = 4 };

typedef struct memo {
    opq_op op;
    int arity; /* 0: nothing yet */
    int axis_count;
    int64_t axes[OPQ_RANK_MAX];
    opq_type operands[MEMO_ARITY], result;
} memo;

static bool is_of(const memo *m, const opq_inference *call, const opq_attr *axes)
{
    if (m->op != call->op || m->arity != call->arity || m->axis_count != (axes ? axes->count : 0))
        return false;
    for (int i = 0; i < m->axis_count; i++)
        if (m->axes[i] != axes->ints[i])
            return false;
    for (int i = 0; i < m->arity; i++)
        if (!opq_type_equal(&m->operands[i], &call->operands[i]))
            return false;
    return true;
}

static void keep(memo *m, const opq_inference *call, const opq_attr *axes, const opq_type *result)
{
    m->op = call->op;
    m->arity = call->arity;
    m->axis_count = axes ? axes->count : 0;
    for (int i = 0; i < m->axis_count; i++)
        m->axes[i] = axes->ints[i];
    memcpy(m->operands, call->operands, (size_t)call->arity * sizeof *m->operands);
    m->result = *result;
}

static opq_status known_shape(const opq_inference *call, opq_type *out_type)
{
    static _Thread_local memo memos[MEMO_COUNT];
    memo *m = &memos[call->op % MEMO_COUNT];
    const opq_attr *axes = opq_infer_attr(call, OPQ_ATTR_axes);
    if (is_of(m, call, axes)) {
        *out_type = m->result;
        return OPQ_OK;
    }
    OPQ_TRY(row_shape(call, call->op, call->operands, call->arity, 0, out_type));
    if (call->arity <= MEMO_ARITY && (axes == NULL || axes->count <= OPQ_RANK_MAX))
        keep(m, call, axes, out_type);
    return OPQ_OK;
}

opq_status opq_infer_composite(const opq_inference *call, opq_type *out_type)
{
    if (opq_op_is_recurrent(call->op))
        return opq_infer_recurrent(call, out_type);
    if (!call->info->expand)
        return attention_shape(call, out_type);
    return known_shape(call, out_type);
}
