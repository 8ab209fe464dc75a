// What the host table has for profilers: see opq_activity.
#pragma once

#include "shim.h"

namespace opq
{

bool watched(void *);
void *activity_begin(void *, const opq_activity *activity) noexcept;
void activity_end(void *, void *open) noexcept;

} // namespace opq
