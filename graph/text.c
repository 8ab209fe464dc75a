/* Growing text. Failure sticks, so that a printer checks once, at the end. */
#include "graph/graph.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(opq_text *text, size_t more)
{
    if (text->failed)
        return false;
    size_t need = text->length + more + 1;
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity < 128 ? 256 : text->capacity * 2;
    if (capacity < need)
        capacity = need;
    char *data = realloc(text->data, capacity);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void opq_text_bytes(opq_text *text, const void *data, size_t length)
{
    if (!reserve(text, length))
        return;
    if (length)
        memcpy(text->data + text->length, data, length);
    text->length += length;
    text->data[text->length] = 0;
}

void opq_text_add(opq_text *text, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    size_t room = text->capacity - text->length;
    int length = vsnprintf(room ? text->data + text->length : NULL, room, format, list);
    if (length < 0)
        text->failed = true;
    else if ((size_t)length < room)
        text->length += (size_t)length;
    else if (reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
    va_end(list);
}

opq_shape_text opq_shape_name(const opq_type *type)
{
    opq_shape_text name;
    size_t at = 0;
    name.text[at++] = '[';
    for (int d = 0; d < type->rank && d < OPQ_RANK_MAX; d++)
        at += (size_t)sprintf(name.text + at, "%s%" PRId64, d ? "," : "", type->size[d]);
    name.text[at++] = ']';
    name.text[at] = 0;
    return name;
}

opq_type_text opq_type_name(const opq_type *type)
{
    opq_type_text name = {""};
    if (type)
        snprintf(name.text, sizeof name.text, "%s%s", opq_dtype_name((opq_dtype)type->dtype), opq_shape_name(type).text);
    return name;
}

void opq_text_shape(opq_text *text, const opq_type *type)
{
    opq_shape_text name = opq_shape_name(type);
    opq_text_bytes(text, name.text, strlen(name.text));
}

void opq_text_type(opq_text *text, const opq_type *type)
{
    const char *dtype = opq_dtype_name((opq_dtype)type->dtype);
    opq_text_bytes(text, dtype, strlen(dtype));
    opq_text_shape(text, type);
}

opq_status opq_text_take(opq_text *text, char **out_text)
{
    opq_text_bytes(text, "", 0);
    if (text->failed) {
        opq_text_drop(text);
        return opq_fail(OPQ_NO_MEMORY, "out of memory for text");
    }
    *out_text = text->data;
    *text = (opq_text){0};
    return OPQ_OK;
}

void opq_text_drop(opq_text *text)
{
    free(text->data);
    *text = (opq_text){0};
}
