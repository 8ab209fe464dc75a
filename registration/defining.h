// Operators of define_op(): rows of the op table that were made at run time, as operators of PyTorch.
#pragma once

#include "python.h"

namespace opq
{

void bind_defining(py::module_ &m);

} // namespace opq
