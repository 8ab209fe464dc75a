/* What the parts of the C printer share. Private to codegen_c/. */
#ifndef OPAQUE_CODEGEN_C_PRINTER_H
#define OPAQUE_CODEGEN_C_PRINTER_H

#include "codegen_c/codegen_c.h"

#define ADD(p, ...) opq_text_add(&(p)->text, __VA_ARGS__)

/* The body is printed first, which notes what it reads: only that is declared in front of it. */
typedef struct opq_c_printer {
    const opq_loops *k;
    opq_text text; /* of the body */
    bool *dims;    /* is d0, d1, .. read? */
    bool buffers[OPQ_BUFFER_MAX], scalars, error, locals;
    int depth;    /* of braces */
    int reducing; /* reducing loops around */
} opq_c_printer;

/* How C holds a value of the dtype in memory, and while computing. */
const char *opq_c_memory_type(opq_dtype dtype);
const char *opq_c_type(opq_dtype dtype);
/* "f32", "f64" or "i64": how functions that compute in the dtype end. */
const char *opq_c_suffix(opq_dtype dtype);

/* Begins a line of the body. */
void opq_c_line(opq_c_printer *p);
/* d7; notes that it is read. */
void opq_c_dim(opq_c_printer *p, int dim);
/* b0[d2 + i*d3 + j]; a load_at or its kin adds its index: + v4*d5 */
void opq_c_place(opq_c_printer *p, const opq_stmt *stmt);
/* e1[i*d1 + j]; `local` is its number. */
void opq_c_local_place(opq_c_printer *p, int local);
/* opq_inside(v4, d6, 5, error) */
void opq_c_inside(opq_c_printer *p, const opq_stmt *stmt);
/* What stands around a place to make a value of memory's form, and around a value to store it: "opq_f16_to_f32(" and ")". */
void opq_c_load(opq_c_printer *p, const opq_stmt *stmt);
void opq_c_store(opq_c_printer *p, const opq_stmt *stmt, const char *value);

/* Statements of a scan, by its number: before its loop, and in each turn before its value. */
void opq_c_scan_start(opq_c_printer *p, int scan);
void opq_c_scan_next(opq_c_printer *p, int scan);

/* A number of the dtype. */
void opq_c_literal(opq_c_printer *p, opq_dtype dtype, opq_number value);
/* Two values by an elementwise row: "a + b", "opq_maximum_f32(a, b)". */
void opq_c_combined(opq_c_printer *p, opq_op op, opq_dtype dtype, const char *a, const char *b);
/* for (int64_t i = 0; i < d0; i++) { */
void opq_c_for(opq_c_printer *p, int loop);
/* Lines of a carry, fold, halves or at, by its number. */
void opq_c_carried(opq_c_printer *p, int stmt);

/* The right side of a statement that has a value and does not fold. */
opq_status opq_c_expression(opq_c_printer *p, const opq_stmt *stmt) OPQ_MUST_CHECK;

#endif
