// An extern call between being recorded and being run, for the files that predict, record and run it.
#pragma once

#include <atomic>

#include "adapter.h"

namespace opq
{

struct Hole {
    size_t argument;
    int64_t element; // of a list argument; -1: the argument itself
    at::ScalarType dtype;
    Dims sizes, strides;
    bool wrapped, conj, neg;
};

struct Predicted {
    bool defined;
    at::ScalarType dtype;
    Dims sizes;
    Order order;
};

using Prediction = std::vector<Predicted>;

struct ExternCall {
    std::atomic<int> references{1};
    OperatorHandle op;
    std::vector<IValue> arguments;
    std::vector<Hole> holes;
    std::shared_ptr<const Prediction> prediction;
};

// The arguments, operand i replaced by fill(hole i), devices by `where`.
template <class Fill> Stack filled(const ExternCall &call, c10::DeviceType where, Fill fill)
{
    const std::vector<Hole> &holes = call.holes;
    Stack stack(call.arguments.begin(), call.arguments.end());
    for (IValue &value : stack)
        if (value.isDevice() && value.toDevice().type() == kDeviceType)
            value = c10::Device(where);
    for (size_t i = 0; i < holes.size();) {
        const size_t argument = holes[i].argument;
        if (holes[i].element < 0) {
            stack[argument] = fill(i);
            ++i;
            continue;
        }
        std::vector<std::optional<Tensor>> elements(call.arguments[argument].toListRef().size());
        for (; i < holes.size() && holes[i].argument == argument; ++i)
            elements[static_cast<size_t>(holes[i].element)] = fill(i);
        stack[argument] = list_for(call.op.schema().arguments()[argument], elements);
    }
    return stack;
}

void set_bits(const Tensor &tensor, const Hole &hole);

// Was there ever a tensor of f16 or bf16? What kernels round of these depends on where a graph ends, which must not follow from what ran before.
bool seen_halves(); // tensor_impl.cpp

// ---- predict.cpp
// What the call will give. NULL: not predictable, or it is not worth it, or the meta kernel refuses the arguments: then the CPU kernel says what is wrong
// with them, or that nothing is. Where it must not run now the meta kernel's words have to do. proven: rehearse() need not be asked.
std::shared_ptr<const Prediction> predict(const ExternCall &call, const std::string &key, bool &out_proven);
// Tensors of the wrong type exist by now, and this run can only fail. From the next call on the operator runs at once, which needs
// no prediction.
[[noreturn]] void mispredicted(const Predicted &expected, const Tensor &given, const OperatorHandle &op);
// Has the CPU kernel accepted a call of this kind, or does it now? False: it has to run now, on the operands themselves. `out_kind`
// is then what prove() wants to know if it accepts them. constants: the call without its operand types; types: these.
bool rehearse(const ExternCall &call, const std::string &constants, const std::string &types, std::string &out_kind);

// Raises for a CPU tensor with dimensions that the operator does not take beside tensors of the device. `listed`: it stands in a list.
void check_operand(const Tensor &tensor, const OperatorHandle &op, bool listed);

} // namespace opq
