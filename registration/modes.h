// eager(), unfused(), forbid_sync() and strict(): bits of the calling thread, inherited by autograd's threads.
#pragma once

namespace opq
{

void set_modes(unsigned modes);
void set_default_modes(unsigned modes); // of threads that never called set_modes
// On a thread that autograd runs for another one: takes over that thread's modes.
void inherit_modes();

} // namespace opq
