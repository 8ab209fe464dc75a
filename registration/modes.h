// What autograd's threads inherit from the thread whose backward pass they run: the modes eager(), unfused(), forbid_sync() and
// strict(), which are bits of a thread, and the thread's origin number.
#pragma once

namespace opq
{

// Makes the object that carries both from thread to thread. With the interpreter lock, before anything is recorded.
void start_modes();
void set_modes(unsigned modes);
void set_default_modes(unsigned modes); // of threads that never called set_modes
// On a thread that works for another one: takes over that thread's modes and origin.
void inherit_modes();

} // namespace opq
