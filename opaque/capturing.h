/* What is noted while a function is captured. Internal to opaque/. */
#ifndef OPAQUE_OPAQUE_CAPTURING_H
#define OPAQUE_OPAQUE_CAPTURING_H

#include "opaque/capture.h"
#include "opaque/context.h"

/* A cell that was there before. */
typedef struct opq_met {
    opq_cell *cell;    /* a reference */
    opq_value *before; /* what it held; a reference, NULL: nothing */
    opq_value *leaf; /* what it held when it was read first: a value of its own, which no other cell holds; NULL: it was not read */
    bool written;
    bool nothing; /* it was read, and held nothing */
} opq_met;

struct opq_capturing {
    opq_ctx *ctx;
    void *host; /* the caller's */
    uint32_t id, origin;
    uint64_t began; /* sequence number: what is younger was made meanwhile */
    opq_met *met;
    int count, capacity;
    struct opq_upload {
        opq_value *leaf; /* a reference */
        int id;
    } *uploads;
    int upload_count, upload_capacity;
    bool lost; /* no memory for a note */
    bool ended;
    opq_capturing *next;
};

/* How many there are, of all contexts: the question of each read and write. */
extern atomic_int opq_capturings;

/* The id of an opq_value_number, -1: it is none. Its dtype, then what it was cast to, at most `max`; *out_count may be more. */
int opq_value_number_id(const opq_value *value, opq_dtype *out_dtypes, int max, int *out_count);

/* Before a cell's value is taken, and after it was replaced; `lock` not held. */
void opq_capturing_note(opq_cell *cell, bool write);
static inline void opq_capturing_read(opq_cell *cell)
{
    if (__builtin_expect(atomic_load_explicit(&opq_capturings, memory_order_relaxed) != 0, 0))
        opq_capturing_note(cell, false);
}
static inline void opq_capturing_write(opq_cell *cell)
{
    if (__builtin_expect(atomic_load_explicit(&opq_capturings, memory_order_relaxed) != 0, 0))
        opq_capturing_note(cell, true);
}
/* Is the capturing of this id in progress? `lock` held. */
bool opq_capturing_is_open(const opq_ctx *ctx, uint32_t id);
/* A new cell: no matter of the capturing that makes it. */
static inline void opq_capturing_made(opq_cell *cell)
{
    if (__builtin_expect(atomic_load_explicit(&opq_capturings, memory_order_relaxed) != 0, 0)) {
        const opq_capturing *here = opq_capturing_here(cell->ctx);
        cell->made_in = here ? here->id : 0;
    }
}
/* OPQ_INVALID if this origin is capturing: nothing is computed meanwhile. */
opq_status opq_capturing_forbids(opq_ctx *ctx, opq_reason reason) OPQ_MUST_CHECK;

#endif
