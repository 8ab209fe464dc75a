// Forks of a process that uses the device. A child may use it, with all threads.
//
// The pool of threads behind at::parallel_for belongs to the thread that asks for the loops. In a child that thread would wait for a pool
// that is not there, in PyTorch's own kernels as in ours. So the pool of the thread that forks is ended before (OpenMP's "pause"): parent
// and child make a new one when they need it. Where that cannot be done, the child computes on one thread.
#include <ATen/Parallel.h>
#include <algorithm>
#include <pthread.h>
#include <thread>

#include "fork.h"
#include "opaque/fork_mutex.h"
#include "random.h"
#include "shim.h"

extern "C" int omp_pause_resource_all(int kind) __attribute__((weak)); // OpenMP 5.0

namespace opq
{

namespace
{

constexpr int kPauseHard = 2;
bool paused;
std::vector<std::mutex *> held; // by the forking thread

// In no order, because others may have one and wait for another.
void lock_all()
{
    fork_mutexes_guard.lock();
    held = fork_mutexes();
    held.push_back(&default_generator().unsafeGetGeneratorImpl()->mutex_);
    for (size_t locked = 0; locked < held.size();) {
        if (held[locked]->try_lock()) {
            ++locked;
            continue;
        }
        while (locked > 0)
            held[--locked]->unlock();
        std::this_thread::yield();
    }
}

void unlock_all()
{
    for (std::mutex *const mutex : held)
        mutex->unlock();
    fork_mutexes_guard.unlock();
}

void before_fork()
{
    paused = omp_pause_resource_all && omp_pause_resource_all(kPauseHard) == 0;
    lock_all();
}

void in_child()
{
    unlock_all();
    if (!paused)
        at::set_num_threads(1);
}

} // namespace

// After the core's own handlers: ours then run before them. Who has one of these mutexes may want a lock of the core, never the other way.
void guard_forks() { pthread_atfork(&before_fork, &unlock_all, &in_child); }

} // namespace opq
