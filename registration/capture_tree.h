// Arguments and results of captured functions: nests of tuples, lists, dicts and what torch.utils._pytree knows, with tensors at the leaves.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "shim.h"

namespace opq
{

namespace py = pybind11;

// What of a tensor of this device its graph depends on.
struct TensorShape {
    at::ScalarType dtype{};
    Dims sizes, strides;
    int64_t offset = 0;
    bool requires_grad = false, inference = false, negative = false, conjugate = false;
    c10::DispatchKeySet keys; // who has them is as much of an inference tensor, negative and conjugate
    bool whole = true;        // of this device: it is all of its cell

    explicit TensorShape(const at::Tensor &tensor);
    // "" if it is such a tensor, but for its offset if `shiftable`; else what is different, in words.
    std::string difference(const at::Tensor &tensor, bool shiftable) const;
    bool matches(const at::Tensor &tensor, bool shiftable) const;
};

// What a match collects, by the order of leaves. Borrowed.
struct Leaves {
    c10::SmallVector<PyObject *, 16> tensors; // of this device
    c10::SmallVector<PyObject *, 4> hosts;    // tensors of the CPU
    c10::SmallVector<PyObject *, 4> numbers;  // those that may be others
    std::vector<int> changed; // of what has to be equal: floats and integers that are not, by number among all such
    int equals = 0;
    std::vector<py::object> kept; // what holds some of them
};

class Tree
{
  public:
    // Appends the leaves to `leaves`. `free`: floats and integers that may be others, by number among what has to be equal. Raises what Python
    // raises.
    Tree(py::handle object, Leaves &leaves, const std::vector<int> &free = {});
    // The same nest with equal leaves, but for tensors, of which nothing is compared but the type. False, with `why` if that is asked for.
    bool matches(PyObject *object, Leaves &leaves, std::string *why) const;
    bool same_as(const Tree &other) const;
    int traverse(visitproc visit, void *arg) const;
    // A nest like it, of these tensors; numbers that may be others, and tensors of the CPU, are `numbers` and `hosts`.
    py::object build(const std::vector<py::object> &tensors, const std::vector<py::object> &numbers = {},
                     const std::vector<py::object> &hosts = {}) const;

  private:
    enum class Kind { tensor, host, number, equal, same, tuple, list, dict, node };
    bool differs(std::string *why, const std::string &what) const;
    bool match_items(PyObject *const *items, size_t count, Leaves &leaves, std::string *why) const;
    void add_items(PyObject *const *items, size_t count, Leaves &leaves, const std::vector<int> &free);

    Kind kind_ = Kind::same;
    PyTypeObject *type_ = nullptr; // held by object_ or, of leaves, by the tensor's class
    py::object object_;            // equal, same: what it is; dict: its keys, a tuple; node: the context
    size_t index_ = 0;             // tensor, host, number: which leaf
    std::optional<TensorShape> host_;
    std::vector<Tree> items_;
};

// Are they the same, or values that are equal: floats bit for bit?
bool same_value(PyObject *a, PyObject *b);
std::string short_text(PyObject *object); // its repr(), of 60 characters at most
// Classes of Python's numbers that are traced: in results they stand for what a call computes.
void set_number_types(const py::object &real, const py::object &integer);

} // namespace opq
