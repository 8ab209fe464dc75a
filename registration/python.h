// What the files of the binding share.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "shim.h"

namespace py = pybind11;

namespace opq
{

// Throw a TypeError for what is no tensor of the device.
at::Tensor tensor_of(const py::handle &object);
std::vector<at::Tensor> tensors_of(const py::handle &list);
std::vector<Value> values_of(const std::vector<at::Tensor> &tensors);

// What looks at graphs and runs: class Inspection, reports, journals.
void bind_inspection(py::module_ &m);
// Class Contents.
void bind_contents(py::module_ &m);
// An Inspection of a graph, which it takes.
py::object inspection_of(opq_graph *graph);
// Classes CapturedFunction and Capturing.
void bind_capture(py::module_ &m);
void bind_borrowing(py::module_ &m);
void bind_exporting(py::module_ &m);

} // namespace opq
