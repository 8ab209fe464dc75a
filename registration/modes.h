// eager(), unfused(), forbid_sync() and strict(): bits of the calling thread, inherited by autograd's threads.
#pragma once

namespace opq {

void set_modes(unsigned modes);
// On a thread that autograd runs for another one: takes over that thread's modes.
void inherit_modes();

} // namespace opq
