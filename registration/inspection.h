#pragma once

#include <Python.h>

namespace opq
{

// Adds class Inspection to torch_opaque._C. Throws what pybind11 throws.
void bind_inspection(PyObject *module);

} // namespace opq
