/* The small parts of text IR: words, integers, types, attributes. Private to the parser and its tests. */
#ifndef OPAQUE_GRAPH_READER_H
#define OPAQUE_GRAPH_READER_H

#include "graph/graph.h"

/* Text need not be NUL-terminated and may hold any bytes. What attributes point to lives in `arena`. */
typedef struct opq_reader {
    const char *text;
    size_t at, length;
    opq_arena *arena;
} opq_reader;

enum { OPQ_READER_INTS_MAX = 4096 };

/* "line 3, column 7: ..." for byte `at`. */
opq_status opq_reader_fail(const opq_reader *r, opq_status status, size_t at, const char *format, ...) OPQ_PRINTF(4, 5);
char opq_reader_peek(const opq_reader *r); /* 0 at the end */
void opq_reader_blanks(opq_reader *r);     /* spaces and tabs, no line ends */
/* Takes `token` after blanks if it is there. */
bool opq_reader_take(opq_reader *r, const char *token);
opq_status opq_reader_want(opq_reader *r, const char *token) OPQ_MUST_CHECK;
/* After blanks: letters, digits, '_', and for names '.' and '-'. Never empty. */
opq_status opq_reader_word(opq_reader *r, const char **out_word, size_t *out_length) OPQ_MUST_CHECK;
/* Words joined by "::". */
opq_status opq_reader_op(opq_reader *r, const char **out_word, size_t *out_length) OPQ_MUST_CHECK;
opq_status opq_reader_name(opq_reader *r, char out_name[256]) OPQ_MUST_CHECK;
opq_status opq_reader_int(opq_reader *r, int64_t *out_value) OPQ_MUST_CHECK;
opq_status opq_reader_type(opq_reader *r, opq_type *out_type) OPQ_MUST_CHECK;
/* {key=value, ...} if there is one; sorted by key. `dtype` says how to read a number. */
opq_status opq_reader_attrs(opq_reader *r, opq_dtype dtype, opq_attr out_attrs[OPQ_ATTR_COUNT],
                            int *out_count) OPQ_MUST_CHECK;
/* Rest of the line: blanks, perhaps a comment, the line end. The comment is copied, or NULL. */
opq_status opq_reader_line_end(opq_reader *r, const char **out_comment) OPQ_MUST_CHECK;

/* reader_number.c: an integer for bool and integer dtypes, else a float: hexadecimal, decimal, inf, nan, nan(0x...). */
opq_status opq_reader_number(opq_reader *r, opq_dtype dtype, opq_number *out_number) OPQ_MUST_CHECK;

#endif
