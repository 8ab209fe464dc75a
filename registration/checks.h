// Values that a kernel of PyTorch checks before it computes with them.
#pragma once

#include "shim.h"

namespace opq
{

// A condition that is true for each element. Where it is not, the run fails for what depends on the result: "op: words", with the line
// between them.
Value holding(const Value &condition, const char *op_and_words);

} // namespace opq
