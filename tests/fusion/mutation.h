/* Texts that are nearly right: copies of one that is, with numbers, words, bytes and lines changed. Deterministic. */
#ifndef OPAQUE_TESTS_FUSION_MUTATION_H
#define OPAQUE_TESTS_FUSION_MUTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_ROOM = 1 << 16 };

typedef struct text {
    char data[TEXT_ROOM];
    size_t length;
} text;

extern uint64_t random_state;
uint64_t below(uint64_t limit);
static inline bool is_number(char c) { return c >= '0' && c <= '9'; }
/* `length` bytes at `at` become `with`, if there is room. */
void splice(text *t, size_t at, size_t length, const char *with, size_t with_length);
/* One to three changes; `words` are put in the place of others. */
void mutate(text *t, const char *const *words, size_t word_count);

#endif
