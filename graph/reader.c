/* Words, integers, types and attributes of text IR. Nothing is trusted: every length, digit and name is checked. */
#include "graph/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

opq_status opq_reader_fail(const opq_reader *r, opq_status status, size_t at, const char *format, ...)
{
    char text[800];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at && i < r->length; i++)
        if (r->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    return opq_fail(status, "line %zu, column %zu: %s", line, at - start + 1, text);
}

char opq_reader_peek(const opq_reader *r) { return r->at < r->length ? r->text[r->at] : 0; }

void opq_reader_blanks(opq_reader *r)
{
    while (opq_reader_peek(r) == ' ' || opq_reader_peek(r) == '\t')
        r->at++;
}

bool opq_reader_take(opq_reader *r, const char *token)
{
    size_t length = strlen(token);
    opq_reader_blanks(r);
    if (r->length - r->at < length || memcmp(r->text + r->at, token, length))
        return false;
    r->at += length;
    return true;
}

opq_status opq_reader_want(opq_reader *r, const char *token)
{
    if (opq_reader_take(r, token))
        return OPQ_OK;
    return opq_reader_fail(r, OPQ_INVALID, r->at, "expected '%s'", token);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

opq_status opq_reader_word(opq_reader *r, const char **out_word, size_t *out_length)
{
    opq_reader_blanks(r);
    size_t start = r->at;
    while (is_word(opq_reader_peek(r)))
        r->at++;
    if (r->at == start)
        return opq_reader_fail(r, OPQ_INVALID, start, "expected a word");
    *out_word = r->text + start;
    *out_length = r->at - start;
    return OPQ_OK;
}

opq_status opq_reader_op(opq_reader *r, const char **out_word, size_t *out_length)
{
    const char *last;
    size_t length;
    OPQ_TRY(opq_reader_word(r, out_word, out_length));
    while (r->length - r->at > 2 && r->text[r->at] == ':' && r->text[r->at + 1] == ':' && is_word(r->text[r->at + 2])) {
        r->at += 2;
        OPQ_TRY(opq_reader_word(r, &last, &length));
        *out_length += 2 + length;
    }
    return OPQ_OK;
}

opq_status opq_reader_name(opq_reader *r, char out_name[256])
{
    size_t start = r->at, length;
    while (is_word(opq_reader_peek(r)) || opq_reader_peek(r) == '.' || opq_reader_peek(r) == '-')
        r->at++;
    length = r->at - start;
    if (length == 0 || length > 255)
        return opq_reader_fail(r, OPQ_INVALID, start, "expected a name of 1 to 255 characters");
    memcpy(out_name, r->text + start, length);
    out_name[length] = 0;
    return OPQ_OK;
}

opq_status opq_reader_int(opq_reader *r, int64_t *out_value)
{
    opq_reader_blanks(r);
    size_t start = r->at;
    int64_t value = 0;
    bool negative = opq_reader_take(r, "-");
    size_t digits = r->at;
    for (char c; (c = opq_reader_peek(r)) >= '0' && c <= '9'; r->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_sub_overflow(value, c - '0', &value))
            return opq_reader_fail(r, OPQ_INVALID, start, "integer out of range");
    if (r->at == digits)
        return opq_reader_fail(r, OPQ_INVALID, start, "expected an integer");
    if (!negative && value == INT64_MIN)
        return opq_reader_fail(r, OPQ_INVALID, start, "integer out of range");
    *out_value = negative ? value : -value; /* collected below zero, where the range is larger */
    return OPQ_OK;
}

opq_status opq_reader_type(opq_reader *r, opq_type *out_type)
{
    const char *word;
    size_t length;
    opq_dtype dtype;
    opq_reader_blanks(r);
    size_t start = r->at;
    OPQ_TRY(opq_reader_word(r, &word, &length));
    if (!opq_dtype_find(word, length, &dtype))
        return opq_reader_fail(r, OPQ_INVALID, start, "no dtype is named '%.*s'", (int)(length < 64 ? length : 64), word);
    *out_type = opq_type_make(dtype, 0, NULL);
    OPQ_TRY(opq_reader_want(r, "["));
    if (!opq_reader_take(r, "]")) {
        do {
            if (out_type->rank == OPQ_RANK_MAX)
                return opq_reader_fail(r, OPQ_INVALID, r->at, "more than %d dimensions", OPQ_RANK_MAX);
            OPQ_TRY(opq_reader_int(r, &out_type->size[out_type->rank]));
            out_type->rank++;
        } while (opq_reader_take(r, ","));
        OPQ_TRY(opq_reader_want(r, "]"));
    }
    if (opq_type_check("type", out_type) != OPQ_OK)
        return opq_reader_fail(r, OPQ_INVALID, start, "%s", opq_error());
    return OPQ_OK;
}

/* ---- attributes */

static opq_status no_memory(void) { return opq_fail(OPQ_NO_MEMORY, "out of memory for a graph"); }

static opq_status read_ints(opq_reader *r, opq_attr *attr)
{
    int64_t ints[OPQ_READER_INTS_MAX];
    OPQ_TRY(opq_reader_want(r, "["));
    if (!opq_reader_take(r, "]")) {
        do {
            if (attr->count == OPQ_READER_INTS_MAX)
                return opq_reader_fail(r, OPQ_INVALID, r->at, "more than %d integers", OPQ_READER_INTS_MAX);
            OPQ_TRY(opq_reader_int(r, &ints[attr->count]));
            attr->count++;
        } while (opq_reader_take(r, ","));
        OPQ_TRY(opq_reader_want(r, "]"));
    }
    attr->ints = opq_arena_copy(r->arena, ints, (size_t)attr->count * sizeof *ints);
    return attr->ints ? OPQ_OK : no_memory();
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One character of a string literal, `at` on it. */
static opq_status read_character(opq_reader *r, char *out_character)
{
    size_t start = r->at++;
    *out_character = r->text[start];
    if ((unsigned char)*out_character < 0x20 || *out_character == 0x7f)
        return opq_reader_fail(r, OPQ_INVALID, start, "control character in a string");
    if (*out_character != '\\')
        return OPQ_OK;
    char c = opq_reader_peek(r);
    if (c == '"' || c == '\\') {
        *out_character = c;
        r->at++;
        return OPQ_OK;
    }
    if (c == 'x' && r->length - r->at > 2) {
        int high = hex_digit(r->text[r->at + 1]), low = hex_digit(r->text[r->at + 2]);
        if (high >= 0 && low >= 0 && high + low > 0) {
            *out_character = (char)(high * 16 + low);
            r->at += 3;
            return OPQ_OK;
        }
    }
    return opq_reader_fail(r, OPQ_INVALID, start, "no such escape in a string");
}

static opq_status read_string(opq_reader *r, const char **out_string)
{
    OPQ_TRY(opq_reader_want(r, "\""));
    size_t start = r->at, end = start, length = 0;
    while (end < r->length && r->text[end] != '"' && r->text[end] != '\n')
        end += 1 + (r->text[end] == '\\');
    if (end >= r->length || r->text[end] != '"')
        return opq_reader_fail(r, OPQ_INVALID, start - 1, "string without an end");
    char *string = opq_arena_alloc(r->arena, end - start + 1);
    if (!string)
        return no_memory();
    while (r->at < end)
        OPQ_TRY(read_character(r, &string[length++]));
    *out_string = string;
    return opq_reader_want(r, "\"");
}

static opq_status read_tree(opq_reader *r, int64_t *out_tree)
{
    const char *word;
    size_t length, start = r->at;
    OPQ_TRY(opq_reader_word(r, &word, &length));
    for (int tree = OPQ_TREE_lanes; tree <= OPQ_TREE_column; tree++) {
        const char *name = opq_tree_name((opq_tree)tree);
        if (strlen(name) == length && !memcmp(name, word, length)) {
            *out_tree = tree;
            return OPQ_OK;
        }
    }
    return opq_reader_fail(r, OPQ_INVALID, start, "expected lanes or column");
}

static opq_status read_value(opq_reader *r, opq_dtype dtype, opq_attr *attr)
{
    switch (opq_attr_kind_of((opq_attr_key)attr->key)) {
    case OPQ_ATTR_KIND_INT: return opq_reader_int(r, &attr->i);
    case OPQ_ATTR_KIND_INTS: return read_ints(r, attr);
    case OPQ_ATTR_KIND_STR: return read_string(r, &attr->str);
    case OPQ_ATTR_KIND_WORD: return read_tree(r, &attr->i);
    case OPQ_ATTR_KIND_NUMBER:
        attr->is_int = opq_dtype_kind_of(dtype) != OPQ_KIND_FLOAT;
        return opq_reader_number(r, dtype, &attr->number);
    }
    return opq_fail(OPQ_INTERNAL, "an attribute of no kind");
}

opq_status opq_reader_attrs(opq_reader *r, opq_dtype dtype, opq_attr out_attrs[OPQ_ATTR_COUNT], int *out_count)
{
    *out_count = 0;
    if (!opq_reader_take(r, "{"))
        return OPQ_OK;
    do {
        const char *word;
        size_t length;
        opq_attr_key key;
        opq_reader_blanks(r);
        size_t start = r->at;
        OPQ_TRY(opq_reader_word(r, &word, &length));
        if (!opq_attr_key_find(word, length, &key))
            return opq_reader_fail(r, OPQ_INVALID, start, "no attribute is named '%.*s'",
                                   (int)(length < 64 ? length : 64), word);
        if (opq_attr_find(out_attrs, *out_count, key))
            return opq_reader_fail(r, OPQ_INVALID, start, "attribute %s given twice", opq_attr_name(key));
        opq_attr attr = {.key = (uint8_t)key};
        OPQ_TRY(opq_reader_want(r, "="));
        OPQ_TRY(read_value(r, dtype, &attr));
        int at = (*out_count)++;
        for (; at > 0 && out_attrs[at - 1].key > key; at--)
            out_attrs[at] = out_attrs[at - 1];
        out_attrs[at] = attr;
    } while (opq_reader_take(r, ","));
    return opq_reader_want(r, "}");
}

opq_status opq_reader_line_end(opq_reader *r, const char **out_comment)
{
    *out_comment = NULL;
    if (opq_reader_take(r, "#")) {
        r->at += opq_reader_peek(r) == ' ';
        const char *start = r->text + r->at;
        const char *end = memchr(start, '\n', r->length - r->at);
        size_t length = end ? (size_t)(end - start) : r->length - r->at;
        r->at += length;
        if (length > 0 && start[length - 1] == '\r')
            length--;
        char *comment = opq_arena_alloc(r->arena, length + 1);
        if (!comment)
            return no_memory();
        for (size_t i = 0; i < length; i++)
            comment[i] = start[i] ? start[i] : '?';
        *out_comment = comment;
    }
    (void)opq_reader_take(r, "\r");
    if (r->at < r->length && r->text[r->at] != '\n')
        return opq_reader_fail(r, OPQ_INVALID, r->at, "expected the end of the line");
    r->at += r->at < r->length;
    return OPQ_OK;
}
