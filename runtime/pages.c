/* See pages.h. */
#define _GNU_SOURCE
#include "runtime/pages.h"
#include "fusion/target.h"
#include "graph/clock.h"

#include <stdint.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
enum { SMALL_PAGE = 4096 };

static void learn(_Atomic(double) *seconds, double sample)
{
    double old = *seconds;
    *seconds = old > 0 ? (old + sample) / 2 : sample;
}

size_t opq_pages_choose_small(const opq_pages *pages, size_t bytes, double worth)
{
    double of_small = pages->touch[0], of_huge = pages->touch[1];
    if (of_small == 0 || of_huge == 0)
        return of_small == 0 ? bytes : 0;
    size_t others = pages->mapped % opq_runs.pages_explored == 0 ? OPQ_HUGE_PAGE : 0;
    return of_small * worth < of_huge ? bytes - others : others;
}

static void touch_first(opq_pages *pages, char *data, bool huge)
{
    double start = opq_now();
    for (int at = 0; at < OPQ_HUGE_PAGE; at += SMALL_PAGE)
        *(volatile char *)(data + at) = 0;
    learn(&pages->touch[huge], opq_now() - start);
}

void *opq_pages_map(opq_pages *pages, size_t bytes, double worth, size_t *out_small)
{
    char *base =
        mmap(NULL, bytes + OPQ_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)base + OPQ_HUGE_PAGE - 1) & ~(uintptr_t)(OPQ_HUGE_PAGE - 1));
    if (aligned > base)
        munmap(base, (size_t)(aligned - base));
    munmap(aligned + bytes, (size_t)(base + OPQ_HUGE_PAGE - aligned));
    bool can_collapse = madvise(aligned, 0, MADV_COLLAPSE) == 0; /* of nothing: does the system know it? */
    *out_small = worth > 0 && can_collapse ? opq_pages_choose_small(pages, bytes, worth) : 0;
    size_t huge = bytes - *out_small;
    if (huge > 0) {
        madvise(aligned, huge, MADV_HUGEPAGE);
        touch_first(pages, aligned, true);
    }
    if (huge < bytes) {
        madvise(aligned + huge, bytes - huge, MADV_NOHUGEPAGE);
        touch_first(pages, aligned + huge, false);
    }
    pages->mapped++;
    return aligned;
}

void opq_pages_unmap(void *data, size_t bytes) { munmap(data, bytes); }

double opq_pages_collapse(opq_pages *pages, void *data)
{
    double start = opq_now();
    madvise(data, OPQ_HUGE_PAGE, MADV_HUGEPAGE);
    madvise(data, OPQ_HUGE_PAGE, MADV_COLLAPSE);
    double seconds = opq_now() - start;
    learn(&pages->collapse, seconds);
    return seconds;
}
