/* What the C tests share: cmocka with its own headers in order, graphs from text and back, and expected failures. */
#ifndef OPAQUE_TESTS_SUPPORT_H
#define OPAQUE_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "opaque/opaque.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* How many random cases of `count`: OPAQUE_TEST_SAMPLE=n is every n-th part, for what has run whole without sanitizers. */
static inline int test_sample(int count)
{
    const char *part = getenv("OPAQUE_TEST_SAMPLE");
    return part && atoi(part) > 1 ? count / atoi(part) : count;
}

/* A failure names the row of its table. */
#define expect_text(actual, expected, ...)                                                                             \
    do {                                                                                                               \
        const char *expect_actual_ = (actual), *expect_expected_ = (expected);                                         \
        if (strcmp(expect_actual_, expect_expected_)) {                                                                \
            print_error(__VA_ARGS__);                                                                                  \
            print_error("\n");                                                                                         \
            assert_string_equal(expect_actual_, expect_expected_);                                                     \
        }                                                                                                              \
    } while (0)

#define expect_ok(call)                                                                                                \
    do {                                                                                                               \
        opq_status expect_status_ = (call);                                                                            \
        if (expect_status_ != OPQ_OK)                                                                                  \
            fail_msg("%s: status %d, %s", #call, expect_status_, opq_error());                                         \
    } while (0)

#define expect_failure(call, expected_status, expected_message)                                                        \
    do {                                                                                                               \
        assert_int_equal((call), (expected_status));                                                                   \
        assert_string_equal(opq_error(), (expected_message));                                                          \
    } while (0)

static inline opq_graph *graph_of_text(const char *text)
{
    opq_graph *graph = NULL;
    expect_ok(opq_graph_parse(text, strlen(text), &graph));
    return graph;
}

/* To be freed by the caller. */
static inline char *text_of_graph(const opq_graph *graph)
{
    char *text = NULL;
    expect_ok(opq_graph_print(graph, &text));
    return text;
}

#endif
