/* .npy: the magic "\x93NUMPY", two version bytes, the length of a header, the header (a Python dict as text, padded with blanks to
 * a multiple of 64 and ended by a newline), the elements. The header is compared key by key; nothing of it is evaluated.
 */
#include "graph/npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 65536 };

static const char *descr_of(opq_dtype dtype)
{
    static const char *const names[OPQ_DTYPE_COUNT] = {
        [OPQ_bool] = "|b1", [OPQ_u8] = "|u1",    [OPQ_i8] = "|i1",    [OPQ_i16] = "<i2",   [OPQ_i32] = "<i4",
        [OPQ_i64] = "<i8",  [OPQ_f16] = "<f2",   [OPQ_bf16] = "<u2",  [OPQ_f32] = "<f4",   [OPQ_f64] = "<f8",
        [OPQ_raw8] = "|u1", [OPQ_raw16] = "<u2", [OPQ_raw32] = "<u4", [OPQ_raw64] = "<c8", [OPQ_raw128] = "<c16",
    };
    return names[dtype];
}

/* A raw value of this width may come under any name of that width. */
static bool descr_matches(const char *descr, size_t length, opq_dtype dtype)
{
    const char *name = descr_of(dtype);
    if (strlen(name) == length && !memcmp(descr, name, length))
        return true;
    if (opq_dtype_kind_of(dtype) != OPQ_KIND_RAW || length < 3)
        return false;
    return atoi(descr + 2) == opq_dtype_bytes(dtype);
}

/* The text after `'key':`, or NULL. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (!at)
        return NULL;
    at += strlen(key);
    return at + strspn(at, " ");
}

/* `text` is "(2, 3)", "(2,)" or "()". */
static bool shape_matches(const char *text, const opq_type *type)
{
    if (*text++ != '(')
        return false;
    for (int axis = 0; axis < type->rank; axis++) {
        char *end;
        errno = 0;
        if (strtoll(text, &end, 10) != type->size[axis] || end == text || errno)
            return false;
        text = end + strspn(end, ", ");
    }
    return *text == ')';
}

static opq_status header_check(const char *path, const char *header, const opq_type *type)
{
    const char *descr = value_of(header, "'descr':");
    const char *order = value_of(header, "'fortran_order':");
    const char *shape = value_of(header, "'shape':");
    if (!descr || !order || !shape || *descr != '\'')
        return opq_fail(OPQ_INVALID, "%s: no .npy header", path);
    descr++;
    size_t length = strcspn(descr, "'");
    if (!descr_matches(descr, length, (opq_dtype)type->dtype))
        return opq_fail(OPQ_INVALID, "%s: dtype %.*s, expected %s", path, (int)length, descr,
                        descr_of((opq_dtype)type->dtype));
    if (strncmp(order, "False", 5) && type->rank > 1)
        return opq_fail(OPQ_INVALID, "%s: Fortran order, expected C order", path);
    if (!shape_matches(shape, type))
        return opq_fail(OPQ_INVALID, "%s: shape %.*s is not the input's", path, (int)strcspn(shape, ")") + 1, shape);
    return OPQ_OK;
}

/* Reads up to the first element. */
static opq_status header_read(FILE *file, const char *path, const opq_type *type)
{
    unsigned char start[12];
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) || start[6] < 1 || start[6] > 3)
        return opq_fail(OPQ_INVALID, "%s: not a .npy file", path);
    size_t length = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1) {
        if (fread(start + 10, 1, 2, file) != 2)
            return opq_fail(OPQ_INVALID, "%s: ends in its header", path);
        length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    }
    if (length > HEADER_MAX)
        return opq_fail(OPQ_INVALID, "%s: header of %zu bytes", path, length);
    char *header = malloc(length + 1);
    if (!header)
        return opq_fail(OPQ_NO_MEMORY, "%s: out of memory", path);
    header[length] = 0;
    opq_status status = OPQ_OK;
    if (fread(header, 1, length, file) != length)
        status = opq_fail(OPQ_INVALID, "%s: ends in its header", path);
    if (!status)
        status = header_check(path, header, type);
    free(header);
    return status;
}

opq_status opq_npy_read(const char *path, const opq_type *type, void **out_data)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return opq_fail(OPQ_INVALID, "%s: %s", path, strerror(errno));
    size_t bytes = (size_t)opq_type_bytes(type);
    void *data = NULL;
    opq_status status = header_read(file, path, type);
    if (!status) {
        data = aligned_alloc(64, (bytes + 127) / 64 * 64); /* never 0 bytes */
        if (!data)
            status = opq_fail(OPQ_NO_MEMORY, "%s: out of memory for %zu bytes", path, bytes);
        else if (fread(data, 1, bytes, file) != bytes)
            status = opq_fail(OPQ_INVALID, "%s: fewer than %zu bytes of elements", path, bytes);
    }
    fclose(file);
    if (status) {
        free(data);
        return status;
    }
    *out_data = data;
    return OPQ_OK;
}

opq_status opq_npy_write(const char *path, const opq_type *type, const void *data)
{
    char header[512];
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                          descr_of((opq_dtype)type->dtype));
    for (int axis = 0; axis < type->rank; axis++)
        length += snprintf(header + length, sizeof header - (size_t)length, "%lld,%s", (long long)type->size[axis],
                           axis + 1 < type->rank ? " " : "");
    length += snprintf(header + length, sizeof header - (size_t)length, "), }");
    while ((10 + length + 1) % 64)
        header[length++] = ' ';
    header[length++] = '\n';

    const unsigned char start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    size_t bytes = (size_t)opq_type_bytes(type);
    FILE *file = fopen(path, "wb");
    if (!file)
        return opq_fail(OPQ_INVALID, "%s: %s", path, strerror(errno));
    bool written = fwrite(start, 1, sizeof start, file) == sizeof start &&
                   fwrite(header, 1, (size_t)length, file) == (size_t)length && fwrite(data, 1, bytes, file) == bytes;
    if (fclose(file) || !written)
        return opq_fail(OPQ_INVALID, "%s: cannot be written", path);
    return OPQ_OK;
}
