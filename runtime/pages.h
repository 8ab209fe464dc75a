/* Large blocks of memory from the system, in small pages or in huge ones (2 MiB).
 *
 * Huge pages save misses of the TLB as long as they live, 10 to 20 % of a copy that fits in no cache. At the first touch they cost a quarter of
 * what small ones cost (the system clears both), or several times as much: a virtual machine may have to ask its host for them, and has small ones
 * at hand. Nothing tells which, so the first touch of each new block is timed. What was mapped in small pages becomes huge piece by piece later.
 */
#ifndef OPAQUE_RUNTIME_PAGES_H
#define OPAQUE_RUNTIME_PAGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { OPQ_HUGE_PAGE = 2 << 20 };

/* Seconds, each a moving average; 0: not known. Thread-safe: of two samples at once one may be lost. */
typedef struct opq_pages {
    _Atomic(double) touch[2]; /* of 2 MiB for the first time; 1: in a huge page */
    _Atomic(double) collapse; /* of 2 MiB from small pages to a huge one */
    atomic_int mapped;
} opq_pages;

/* bytes: of whole huge pages, which may cost `worth` times what small ones do, or anything if it is 0; else so many bytes at the end are small ones.
 * NULL: the system has no memory. */
void *opq_pages_map(opq_pages *pages, size_t bytes, double worth, size_t *out_small);
void opq_pages_unmap(void *data, size_t bytes);
/* So many bytes at the end of the next block are to be small pages: none if huge ones are worth it, and now and then 2 MiB are of the others, to know. */
size_t opq_pages_choose_small(const opq_pages *pages, size_t bytes, double worth);
/* Makes the piece of 2 MiB at `data` a huge page, if the system can. Others may use it meanwhile. Returns seconds. */
double opq_pages_collapse(opq_pages *pages, void *data);

#endif
