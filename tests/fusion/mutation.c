/* Texts that are nearly right: see mutation.h. */
#include "mutation.h"

#include <string.h>

uint64_t random_state;

uint64_t below(uint64_t limit)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % limit;
}

void splice(text *t, size_t at, size_t length, const char *with, size_t with_length)
{
    if (t->length - length + with_length >= TEXT_ROOM)
        return;
    memmove(t->data + at + with_length, t->data + at + length, t->length - at - length);
    memcpy(t->data + at, with, with_length);
    t->length += with_length - length;
}

/* A number becomes another: of a node, an extent, an attribute. */
static void change_number(text *t)
{
    static const char *const numbers[] = {
        "0", "1", "2", "3", "7", "8", "-1", "4294967296", "9223372036854775807", "99999999999999999999", "0x1p+3", ""};
    size_t at = below(t->length), end;
    while (at < t->length && !is_number(t->data[at]))
        at++;
    for (end = at; end < t->length && is_number(t->data[end]);)
        end++;
    const char *with = numbers[below(sizeof numbers / sizeof *numbers)];
    splice(t, at, end - at, with, strlen(with));
}

static void change_word(text *t, const char *const *words, size_t word_count)
{
    size_t at = below(t->length), end;
    const char *with = words[below(word_count)];
    for (end = at; end < t->length && (t->data[end] == '_' || (t->data[end] >= 'a' && t->data[end] <= 'z'));)
        end++;
    splice(t, at, end - at, with, strlen(with));
}

static void change_byte(text *t)
{
    char byte = (char)below(256);
    splice(t, below(t->length), below(2), &byte, 1);
}

static void drop_bytes(text *t)
{
    size_t at = below(t->length), most = t->length - at;
    splice(t, at, 1 + below(most < 20 ? most : 20), "", 0);
}

static size_t line_start(const text *t, size_t at)
{
    while (at > 0 && t->data[at - 1] != '\n')
        at--;
    return at;
}

/* A line is doubled, or stands in another place. */
static void copy_line(text *t)
{
    char line[256];
    size_t from = line_start(t, below(t->length)), length = 0;
    while (from + length < t->length && length < sizeof line && t->data[from + length] != '\n')
        length++;
    memcpy(line, t->data + from, length);
    if (length < sizeof line)
        line[length++] = '\n';
    splice(t, line_start(t, below(t->length)), 0, line, length);
}

static void cut(text *t) { t->length = below(t->length); }

void mutate(text *t, const char *const *words, size_t word_count)
{
    for (uint64_t n = 1 + below(3); n > 0 && t->length > 0; n--)
        switch (below(9)) {
        case 0:
        case 1:
        case 2: change_number(t); break;
        case 3:
        case 4: change_word(t, words, word_count); break;
        case 5: change_byte(t); break;
        case 6: drop_bytes(t); break;
        case 7: copy_line(t); break;
        case 8: cut(t); break;
        }
}
