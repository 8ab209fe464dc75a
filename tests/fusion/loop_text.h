/* Texts of loops that are right, and such that are not. */
#ifndef OPAQUE_TESTS_FUSION_LOOP_TEXT_H
#define OPAQUE_TESTS_FUSION_LOOP_TEXT_H

#include "tests/support.h"

#include "fusion/loop.h"

typedef struct loop_text {
    const char *text, *error; /* NULL: it is right */
} loop_text;

static inline void expect_texts(const loop_text *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        opq_arena arena = {0};
        opq_loops loops;
        opq_status status = opq_loops_parse(texts[i].text, strlen(texts[i].text), &arena, &loops);
        if (texts[i].error == NULL)
            expect_ok(status);
        else if (status != OPQ_INVALID || strstr(opq_error(), texts[i].error) == NULL)
            fail_msg("%s\n%s, not %s", texts[i].text, status == OPQ_OK ? "accepted" : opq_error(), texts[i].error);
        opq_arena_drop(&arena);
    }
}

#endif
