/* Objects on disk: what was kept is found again, whole and under its whole key; what is not exactly that is not found and harms nobody. */
#include "tests/folder.h"

#include "codegen_llvm/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static opq_store *open_store(void)
{
    setenv("OPAQUE_CACHE", folder, 1);
    return opq_store_open();
}

static opq_store_key key_of(const char *text) { return (opq_store_key){"a processor", text, strlen(text)}; }

static void keep(opq_store *store, const char *key, const char *text)
{
    opq_store_object object = {.data = text, .bytes = strlen(text)};
    opq_store_key k = key_of(key);
    snprintf(object.symbol, sizeof object.symbol, "function");
    opq_store_keep(store, &k, &object);
}

static bool finds(opq_store *store, const char *key, const char *text)
{
    opq_store_object object;
    opq_store_key k = key_of(key);
    if (!opq_store_find(store, &k, &object))
        return false;
    assert_string_equal(object.symbol, "function");
    assert_int_equal(object.bytes, strlen(text));
    assert_memory_equal(object.data, text, object.bytes);
    free(object.memory);
    return true;
}

/* The path of the only file. */
static void only_file(char *path, size_t size)
{
    DIR *list = opendir(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list));)
        if (entry->d_name[0] != '.') {
            snprintf(path, size, "%s/%s", folder, entry->d_name);
            count++;
        }
    closedir(list);
    assert_int_equal(count, 1);
}

static void test_what_is_kept_is_found(void **state)
{
    (void)state;
    opq_store *store = open_store();
    assert_non_null(store);
    assert_false(finds(store, "one", "code"));
    keep(store, "one", "code");
    keep(store, "two", "other code");
    assert_true(finds(store, "one", "code"));
    opq_store_close(store);
    store = open_store(); /* another process */
    assert_true(finds(store, "two", "other code"));
    assert_false(finds(store, "three", ""));
    opq_store_key other = {"another processor", "one", 3};
    opq_store_object object;
    assert_false(opq_store_find(store, &other, &object));
    assert_int_equal(opq_store_counted(store).found, 1);
    assert_int_equal(opq_store_counted(store).missing, 2);
    opq_store_close(store);
}

static void test_off(void **state)
{
    (void)state;
    setenv("OPAQUE_CACHE", "off", 1);
    assert_null(opq_store_open());
    setenv("OPAQUE_CACHE", "/nowhere/at/all", 1);
    assert_null(opq_store_open());
}

static void write_at(const char *path, off_t at, unsigned char byte)
{
    int file = open(path, O_WRONLY);
    assert_true(pwrite(file, &byte, 1, at) == 1);
    close(file);
}

/* Each bit of the head and every one of the rest, one after the other. */
static void test_changed_bytes(void **state)
{
    (void)state;
    char path[600];
    struct stat info;
    opq_store *store = open_store();
    keep(store, "key", "a piece of code");
    only_file(path, sizeof path);
    assert_int_equal(stat(path, &info), 0);
    for (off_t at = 0; at < info.st_size; at++) {
        unsigned char byte = 0;
        int file = open(path, O_RDONLY);
        assert_true(pread(file, &byte, 1, at) == 1);
        close(file);
        write_at(path, at, (unsigned char)(byte ^ (1 << at % 8)));
        assert_false(finds(store, "key", "a piece of code"));
        write_at(path, at, byte);
    }
    assert_true(finds(store, "key", "a piece of code"));
    assert_int_equal(opq_store_counted(store).refused, info.st_size);
    opq_store_close(store);
}

static void test_torn_and_swapped_files(void **state)
{
    (void)state;
    char path[600], other[700];
    struct stat info;
    opq_store *store = open_store();
    keep(store, "key", "a piece of code");
    only_file(path, sizeof path);
    assert_int_equal(stat(path, &info), 0);
    for (off_t size = info.st_size; size > 0; size -= 7) {
        assert_int_equal(truncate(path, size - 1), 0);
        assert_false(finds(store, "key", "a piece of code"));
    }
    keep(store, "key", "a piece of code"); /* anew */
    assert_true(finds(store, "key", "a piece of code"));
    snprintf(other, sizeof other, "%s.kept", path);
    assert_int_equal(rename(path, other), 0);
    keep(store, "another key", "other code");
    DIR *list = opendir(folder);
    for (struct dirent *entry; (entry = readdir(list));) {
        char from[600];
        snprintf(from, sizeof from, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.' && strcmp(from, other) != 0)
            assert_int_equal(rename(from, path), 0); /* under the first one's name */
    }
    closedir(list);
    assert_false(finds(store, "key", "a piece of code"));
    opq_store_close(store);
}

static void test_links_and_others_files(void **state)
{
    (void)state;
    char path[600], target[700], linked[300];
    opq_store *store = open_store();
    keep(store, "key", "code");
    only_file(path, sizeof path);
    snprintf(target, sizeof target, "%s.target", path);
    assert_int_equal(rename(path, target), 0);
    assert_int_equal(symlink(target, path), 0);
    assert_false(finds(store, "key", "code"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rename(target, path), 0);
    assert_true(finds(store, "key", "code"));
    assert_int_equal(chmod(path, 0622), 0); /* others may write it */
    assert_false(finds(store, "key", "code"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(chmod(folder, 0755), 0); /* looked at by others, after it was opened */
    assert_false(finds(store, "key", "code"));
    opq_store_close(store);
    assert_null(open_store());
    assert_int_equal(chmod(folder, 0700), 0);
    snprintf(linked, sizeof linked, "%s-link", folder);
    assert_int_equal(symlink(folder, linked), 0);
    setenv("OPAQUE_CACHE", linked, 1);
    assert_null(opq_store_open());
    unlink(linked);
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 12345, 12345), 0);
        store = open_store();
        assert_false(finds(store, "key", "code"));
        opq_store_close(store);
    }
}

/* Processes that write and read the same keys: each finds nothing or what it should be. */
static void test_several_processes(void **state)
{
    (void)state;
    enum { PROCESSES = 4, ROUNDS = 300 };
    for (int p = 0; p < PROCESSES; p++)
        if (fork() == 0) {
            opq_store *store = open_store();
            bool good = store != NULL;
            for (int i = 0; i < ROUNDS && good; i++) {
                char key[32], text[64];
                snprintf(key, sizeof key, "key %d", i % 7);
                snprintf(text, sizeof text, "the code of key %d", i % 7);
                opq_store_object object;
                opq_store_key k = key_of(key);
                if (opq_store_find(store, &k, &object)) {
                    good = object.bytes == strlen(text) && memcmp(object.data, text, object.bytes) == 0;
                    free(object.memory);
                }
                keep(store, key, text);
            }
            good = good && opq_store_counted(store).refused == 0 && opq_store_counted(store).failed == 0;
            _exit(good ? 0 : 1);
        }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_kept_is_found, make_folder, drop_folder),
        cmocka_unit_test(test_off),
        cmocka_unit_test_setup_teardown(test_changed_bytes, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_torn_and_swapped_files, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_links_and_others_files, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_several_processes, make_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
