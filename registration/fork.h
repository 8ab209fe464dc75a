// See fork.cpp.
#pragma once

namespace opq
{

void guard_forks(); // once, when there is a context

} // namespace opq
