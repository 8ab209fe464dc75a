/* graph/npy.c: what is written reads back bit by bit, headers are NumPy's, and files that are not what they should be are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char dir[] = "/tmp/opq_npy_XXXXXX";
static char path[64];

static int folder_make(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/t.npy", dir);
    return 0;
}

static int folder_drop(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

static void every_dtype_reads_back(void **state)
{
    (void)state;
    static const struct {
        int rank;
        int64_t size[3];
    } shapes[] = {{0, {0}}, {1, {5}}, {2, {3, 4}}, {3, {2, 0, 3}}, {3, {2, 3, 4}}};
    for (int dtype = 0; dtype < OPQ_DTYPE_COUNT; dtype++)
        for (size_t i = 0; i < COUNT(shapes); i++) {
            opq_type type = opq_type_make((opq_dtype)dtype, shapes[i].rank, shapes[i].size);
            unsigned char bytes[24 * 16];
            for (size_t k = 0; k < sizeof bytes; k++)
                bytes[k] = (unsigned char)(k * 37 + 1);
            void *data = NULL;
            assert_int_equal(opq_npy_write(path, &type, bytes), OPQ_OK);
            assert_int_equal(opq_npy_read(path, &type, &data), OPQ_OK);
            assert_memory_equal(data, bytes, (size_t)opq_type_bytes(&type));
            free(data);
        }
}

static void header_is_padded_and_exact(void **state)
{
    (void)state;
    int64_t size[] = {3};
    opq_type type = opq_type_make(OPQ_f32, 1, size);
    float data[3] = {1, 2, 3};
    assert_int_equal(opq_npy_write(path, &type, data), OPQ_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char text[256] = {0};
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
    assert_memory_equal(text, "\x93NUMPY\x01\x00", 8);
    assert_memory_equal(text + 10, dict, strlen(dict));
    size_t header = 10 + (size_t)(unsigned char)text[8];
    assert_int_equal(header % 64, 0);
    assert_int_equal(text[header - 1], '\n');
    assert_int_equal(length, header + sizeof data);
}

static void file_write(const char *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header; /* without magic and length */
        const char *error;  /* part of the message */
    } rows[] = {
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n", "dtype <f8, expected <f4"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }\n", "shape (4,) is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 1), }\n", "shape (3, 1) is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n", "shape () is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 3}\n", "shape"},
        {"{'shape': (3,)}\n", "no .npy header"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n", "fewer than 12 bytes"},
    };
    int64_t size[] = {3};
    opq_type type = opq_type_make(OPQ_f32, 1, size);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char bytes[256] = "\x93NUMPY\x01\x00";
        size_t length = strlen(rows[i].header);
        bytes[8] = (char)length;
        memcpy(bytes + 10, rows[i].header, length);
        file_write(bytes, 10 + length);
        void *data = NULL;
        assert_int_equal(opq_npy_read(path, &type, &data), OPQ_INVALID);
        assert_null(data);
        if (!strstr(opq_error(), rows[i].error))
            fail_msg("row %zu: %s", i, opq_error());
    }
    file_write("PK\x03\x04 and so on", 12);
    void *data = NULL;
    assert_int_equal(opq_npy_read(path, &type, &data), OPQ_INVALID);
    assert_non_null(strstr(opq_error(), "not a .npy file"));
    assert_int_equal(opq_npy_read("/nowhere/t.npy", &type, &data), OPQ_INVALID);
}

static uint64_t random_state = 1;

static uint64_t below(uint64_t limit)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % limit;
}

static void mutate(char *bytes, size_t *length, size_t room)
{
    static const char *const words[] = {"(",  ")",   ",",     "'",   "{", "}", "9223372036854775807",
                                        "-1", "<f8", "shape", "True"};
    size_t at = below(*length);
    const char *word = words[below(COUNT(words))];
    switch (below(4)) {
    case 0: bytes[at] = (char)below(256); break;
    case 1: *length = at + 1; break;
    case 2: bytes[6 + below(6)] = (char)below(256); break; /* version and length of the header */
    default:
        if (at + strlen(word) < room)
            memcpy(bytes + at, word, strlen(word));
    }
}

/* A file is read or refused with a message that names it, whatever is in it. OPAQUE_FUZZ_SECONDS=n: for so long. */
static void mutated_files_are_read_or_refused(void **state)
{
    (void)state;
    const int64_t size[] = {3};
    opq_type type = opq_type_make(OPQ_f32, 1, size);
    const char *seconds = getenv("OPAQUE_FUZZ_SECONDS");
    time_t end = time(NULL) + (seconds ? atoi(seconds) : 0);
    char original[512], bytes[sizeof original];
    assert_int_equal(opq_npy_write(path, &type, (float[]){1, 2, 3}), OPQ_OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t whole = fread(original, 1, sizeof original, file);
    fclose(file);
    for (int n = 0; n < 2000 || time(NULL) < end; n++) {
        size_t length = whole;
        void *data = NULL;
        memcpy(bytes, original, whole);
        for (uint64_t k = 1 + below(3); k > 0; k--)
            mutate(bytes, &length, whole);
        file_write(bytes, length);
        opq_status status = opq_npy_read(path, &type, &data);
        if (status != OPQ_OK && (status != OPQ_INVALID || data || strstr(opq_error(), path) == NULL))
            fail_msg("status %d, %s", status, opq_error());
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_reads_back),
        cmocka_unit_test(header_is_padded_and_exact),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(mutated_files_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_drop);
}
