/* The log: words, levels, the file, and lines that are too long. */
#include "tests/support.h"

#include "opaque/log.h"

#include <stdio.h>
#include <unistd.h>

static void test_words(void **state)
{
    (void)state;
    expect_failure(opq_log_set("fast", "info"), OPQ_INVALID, "the log has no topic \"fast\"");
    expect_failure(opq_log_set("flush", "loud"), OPQ_INVALID,
                   "the log has no level \"loud\"; there are off, info, debug");
    expect_failure(opq_log_open("/no such folder/log"), OPQ_INVALID,
                   "cannot write the log to /no such folder/log: No such file or directory");
    for (int t = 0; t < OPQ_LOG_TOPIC_COUNT; t++)
        assert_false(opq_logs((opq_log_topic)t, OPQ_LOG_INFO));
}

static void test_levels(void **state)
{
    (void)state;
    expect_ok(opq_log_set("plan", "info"));
    assert_true(opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO) && !opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG));
    expect_ok(opq_log_set("plan", "debug"));
    assert_true(opq_logs(OPQ_LOG_plan, OPQ_LOG_DEBUG) && !opq_logs(OPQ_LOG_compile, OPQ_LOG_INFO));
    expect_ok(opq_log_set("plan", "off"));
    assert_false(opq_logs(OPQ_LOG_plan, OPQ_LOG_INFO));
}

static void test_lines(void **state)
{
    (void)state;
    char path[] = "/tmp/opq_log_XXXXXX", line[4096], longest[3000];
    close(mkstemp(path));
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    expect_ok(opq_log_open(path));
    opq_log("%d kernels", 3);
    opq_log("%s", longest);
    expect_ok(opq_log_open(""));
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line, "[opaque] 3 kernels\n");
    assert_non_null(fgets(line, sizeof line, file)); /* cut, and still a line */
    assert_int_equal(strlen(line), 1024);
    assert_int_equal(line[1023], '\n');
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
