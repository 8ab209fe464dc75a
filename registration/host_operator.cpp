#include "host_operator.h"

#include <ATen/ScalarOps.h>
#include <torch/csrc/jit/python/pybind_utils.h>

namespace opq
{

Register Register::of(const py::handle &number)
{
    return PyFloat_Check(number.ptr()) ? of(number.cast<double>()) : of(number.cast<int64_t>());
}

py::object Register::python() const { return integer ? py::object(py::int_(i)) : py::object(py::float_(f)); }

namespace
{

std::vector<c10::IValue> read_arguments(const c10::OperatorHandle &op, const py::tuple &args, const py::kwargs &kwargs)
{
    const torch::jit::ToIValueAllowNumbersAsTensors allow(true);
    return torch::jit::createStackForSchema(op.schema(), args, kwargs, std::nullopt);
}

void add_tensors(const c10::IValue &value, std::vector<at::Tensor> &out)
{
    if (value.isTensor() && value.toTensor().defined())
        out.push_back(value.toTensor());
    else if (value.isList())
        for (const c10::IValue &one : value.toListRef())
            add_tensors(one, out);
}

} // namespace

HostOperator::HostOperator(const std::string &name, const std::string &overload, const py::tuple &args,
                           const py::kwargs &kwargs, std::vector<std::pair<size_t, int>> places,
                           const std::function<int(const at::Tensor &)> &slot)
    : op_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())),
      arguments_(read_arguments(op_, args, kwargs)), numbers_(std::move(places))
{
    const auto known = [](const c10::IValue &value) {
        return value.isTensor() && value.toTensor().defined() &&
               !value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
    };
    for (size_t i = 0; i < arguments_.size(); ++i) {
        c10::IValue &argument = arguments_[i];
        if (known(argument)) {
            tensors_.push_back({i, slot(argument.toTensor())});
            argument = c10::IValue(); // nobody may have it but the caller, who asks whether it outlives the call
        } else if (argument.isTensorList() || argument.isOptionalTensorList()) {
            const c10::List<c10::IValue> before = argument.toList();
            List made{i, before.elementType(), {}};
            for (const c10::IValue &element : before.vec())
                made.slots.push_back(known(element) ? slot(element.toTensor()) : -1);
            lists_.push_back(std::move(made));
            argument = c10::IValue();
        }
    }
}

void HostOperator::call(const std::vector<at::Tensor> &slots, const std::vector<Register> &registers,
                        std::vector<at::Tensor> &out) const
{
    torch::jit::Stack stack(arguments_);
    for (const auto &[at, slot] : tensors_)
        stack[at] = slots[static_cast<size_t>(slot)];
    for (const List &one : lists_) {
        c10::impl::GenericList list(one.element);
        for (const int slot : one.slots)
            list.push_back(slot >= 0 ? c10::IValue(slots[static_cast<size_t>(slot)]) : c10::IValue());
        stack[one.argument] = c10::IValue(std::move(list));
    }
    for (const auto &[at, number] : numbers_) {
        const Register &value = registers[static_cast<size_t>(number)];
        const c10::TypeKind kind = op_.schema().arguments()[at].type()->kind();
        if (kind == c10::TypeKind::TensorType)
            stack[at] =
                value.integer ? at::native::wrapped_scalar_tensor(value.i) : at::native::wrapped_scalar_tensor(value.f);
        else
            stack[at] = value.integer ? c10::IValue(value.i) : c10::IValue(value.f);
    }
    op_.callBoxed(stack);
    for (const c10::IValue &result : stack)
        add_tensors(result, out);
}

} // namespace opq
