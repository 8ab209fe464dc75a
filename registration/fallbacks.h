// Telling of operators that run through PyTorch's CPU kernels (fallbacks.cpp), and where.
#pragma once

#include "adapter.h"

namespace opq
{

// Why this call is to go through the CPU kernel, where that is to be told: once for each operator. Raises in strict mode.
std::string about_fallback(const OperatorHandle &op, c10::ArrayRef<IValue> arguments);
// Once it does: counts it, and tells of it.
void count_fallback(const OperatorHandle &op, const std::string &about);
// Is it one that no arguments make native? (forced.cpp)
bool has_no_kernel(const OperatorHandle &op);
// Is this call one with which a reason is looked for?
bool tries_fallback();

std::string
line_text(uint32_t line); // "train.py:41 via trainer.py:7": the line of an installed package behind the program's own
std::string line_of_op(); // of what is being recorded: of a backward op, that of its forward op

// Operators of other libraries with one kernel for every device (forced.cpp): from here on theirs sees tensors of the CPU on threads, and
// while, set_as_on_cpu(true), which gives what was set before.
void take_as_on_cpu(const std::string &name, const std::string &overload);
bool set_as_on_cpu(bool value);

} // namespace opq
