// What the host table has for profilers: see opq_activity.
#pragma once

#include "shim.h"

namespace opq
{

extern unsigned char watching;
// Is there a profiler at all? Asking PyTorch for this thread's takes 10 ns of each run. True until somebody says otherwise.
void set_watched(bool on);
bool watched(void *);
void *activity_begin(void *, const opq_activity *activity) noexcept;
void activity_end(void *, void *open) noexcept;

} // namespace opq
