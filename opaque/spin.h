/* The context's lock: held for tens of nanoseconds by recording, for at most the walk of a graph by a flush. A mutex costs as much as
 * what it guards here; a thread that waits long gives up its processor. */
#ifndef OPAQUE_OPAQUE_SPIN_H
#define OPAQUE_OPAQUE_SPIN_H

#include <sched.h>
#include <stdatomic.h>

typedef struct opq_spin {
    atomic_int held;
} opq_spin;

static inline void opq_spin_lock(opq_spin *lock)
{
    for (int tries = 0; atomic_exchange_explicit(&lock->held, 1, memory_order_acquire); tries++) {
        while (atomic_load_explicit(&lock->held, memory_order_relaxed) && tries++ < 64)
            ;
        if (tries >= 64)
            sched_yield();
    }
}

static inline void opq_spin_unlock(opq_spin *lock) { atomic_store_explicit(&lock->held, 0, memory_order_release); }

#endif
