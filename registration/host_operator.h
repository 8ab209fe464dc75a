// An operator on tensors of the CPU as a captured function calls it: its arguments, of which tensors and numbers are others at each call.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <vector>

#include "shim.h"

namespace opq
{

namespace py = pybind11;

// A number as Python computes with it.
struct Register {
    bool integer;
    union {
        double f;
        int64_t i;
    };
    static Register of(const py::handle &number); // a float, or an integer of 64 bits
    py::object python() const;
    static Register of(double value) { return {false, {value}}; }
    static Register of(int64_t value)
    {
        Register made{true, {}};
        made.i = value;
        return made;
    }
    double real() const { return integer ? static_cast<double>(i) : f; }
    bool same(const Register &other) const { return integer == other.integer && i == other.i; } // bit for bit
};

class HostOperator
{
  public:
    // places: {argument, register} of numbers that are others at each call. slot: of a tensor among the arguments.
    HostOperator(const std::string &name, const std::string &overload, const py::tuple &args, const py::kwargs &kwargs,
                 std::vector<std::pair<size_t, int>> places, const std::function<int(const at::Tensor &)> &slot);
    // All tensors that it gives. With the interpreter lock.
    void call(const std::vector<at::Tensor> &slots, const std::vector<Register> &registers,
              std::vector<at::Tensor> &out) const;

  private:
    struct List {
        size_t argument;
        c10::TypePtr element;
        std::vector<int> slots; // -1: there is no tensor
    };
    c10::OperatorHandle op_;
    std::vector<c10::IValue> arguments_;
    std::vector<std::pair<size_t, int>> tensors_, numbers_; // argument and slot, argument and register
    std::vector<List> lists_;
};

} // namespace opq
