/* See pages.h. */
#define _GNU_SOURCE
#include "runtime/pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
enum { SMALL_PAGE = 4096 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void learn(_Atomic(double) *seconds, double sample)
{
    double old = *seconds;
    *seconds = old > 0 ? (old + sample) / 2 : sample;
}

bool opq_pages_choose_small(const opq_pages *pages)
{
    enum { EXPLORE = 16 };
    double of_small = pages->touch[0], of_huge = pages->touch[1];
    if (of_small == 0 || of_huge == 0)
        return of_small == 0;
    bool small = of_small < of_huge;
    return pages->mapped % EXPLORE == 0 ? !small : small;
}

static void touch_first(opq_pages *pages, char *data, bool huge)
{
    double start = now();
    for (int at = 0; at < OPQ_HUGE_PAGE; at += SMALL_PAGE)
        *(volatile char *)(data + at) = 0;
    learn(&pages->touch[huge], now() - start);
}

static bool can_collapse(void)
{
    static char page[2 * SMALL_PAGE];
    void *aligned = (void *)(((uintptr_t)page + SMALL_PAGE - 1) & ~(uintptr_t)(SMALL_PAGE - 1));
    return madvise(aligned, 0, MADV_COLLAPSE) == 0;
}

void *opq_pages_map(opq_pages *pages, size_t bytes, bool small, bool *out_small)
{
    char *base =
        mmap(NULL, bytes + OPQ_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    char *aligned = (char *)(((uintptr_t)base + OPQ_HUGE_PAGE - 1) & ~(uintptr_t)(OPQ_HUGE_PAGE - 1));
    if (aligned > base)
        munmap(base, (size_t)(aligned - base));
    munmap(aligned + bytes, (size_t)(base + OPQ_HUGE_PAGE - aligned));
    *out_small = small && can_collapse() && opq_pages_choose_small(pages);
    madvise(aligned, bytes, *out_small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
    touch_first(pages, aligned, !*out_small);
    pages->mapped++;
    return aligned;
}

void opq_pages_unmap(void *data, size_t bytes) { munmap(data, bytes); }

double opq_pages_collapse(opq_pages *pages, void *data)
{
    double start = now();
    madvise(data, OPQ_HUGE_PAGE, MADV_HUGEPAGE);
    madvise(data, OPQ_HUGE_PAGE, MADV_COLLAPSE);
    double seconds = now() - start;
    learn(&pages->collapse, seconds);
    return seconds;
}
