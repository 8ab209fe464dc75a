// The bits travel in ThreadLocalDebugInfo, the one thread-local slot that PyTorch hands on to autograd's threads and that
// extensions may add to. TEST_INFO_2 is a kind that PyTorch reserves for users outside itself.
#include "modes.h"

#include <atomic>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "opaque/record.h"

namespace opq
{

namespace
{

const auto kKind = c10::DebugInfoKind::TEST_INFO_2;

struct ModesInfo final : c10::DebugInfoBase {
    explicit ModesInfo(unsigned given) : modes(given) {}
    const unsigned modes;
};

std::atomic<unsigned> default_modes{0};
thread_local bool pushed = false; // this thread set modes itself

unsigned bits(const c10::DebugInfoBase *info)
{
    return info ? static_cast<const ModesInfo *>(info)->modes : default_modes.load(std::memory_order_relaxed);
}

} // namespace

void set_default_modes(unsigned modes) { default_modes.store(modes, std::memory_order_relaxed); }

void set_modes(unsigned modes)
{
    if (pushed)
        c10::ThreadLocalDebugInfo::_pop(kKind);
    c10::ThreadLocalDebugInfo::_push(kKind, std::make_shared<ModesInfo>(modes));
    pushed = true;
    opq_modes_set(modes);
}

void inherit_modes()
{
    const unsigned modes = bits(c10::ThreadLocalDebugInfo::get(kKind));
    if (modes != opq_modes_get())
        opq_modes_set(modes);
}

} // namespace opq
