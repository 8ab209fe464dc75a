// Mutexes of the process in a child: what another thread had locked at the moment of a fork would stay locked there for ever, so the
// forking thread has all of them over the fork (registration/fork.cpp).
#pragma once

#include <mutex>
#include <vector>

namespace opq
{

inline std::mutex fork_mutexes_guard;
inline std::vector<std::mutex *> &fork_mutexes()
{
    static auto *const all = new std::vector<std::mutex *>;
    return *all;
}

// One that is never destroyed, and whose holder does not wait for the interpreter.
class ForkMutex final : public std::mutex
{
  public:
    ForkMutex()
    {
        const std::lock_guard<std::mutex> lock(fork_mutexes_guard);
        fork_mutexes().push_back(this);
    }
};

} // namespace opq
