#include "nested.h"

#include <ATen/NestedTensorImpl.h>

#include "adapter.h"
#include "below.h"

namespace opq
{

using at::native::get_nested_tensor_impl;
using at::native::NestedTensorImpl;

namespace
{

// All elements of a nested tensor's storage.
Tensor buffer_of(const Tensor &tensor)
{
    return over_token(get_nested_tensor_impl(tensor)->get_unsafe_storage_as_tensor());
}

Tensor nested_over(const Tensor &buffer, const Tensor &like)
{
    const auto *const impl = get_nested_tensor_impl(like);
    return at::detail::make_tensor<NestedTensorImpl>(buffer, impl->get_nested_sizes(), impl->get_nested_strides(),
                                                     impl->get_storage_offsets());
}

} // namespace

Tensor over_token(const Tensor &tensor)
{
    if (impl_or_null(tensor) || !on_device(tensor) || !tensor.has_storage())
        return tensor;
    return make_tensor(cell_of_storage(tensor.storage()), tensor.dtype(), tensor.sizes(), tensor.strides(),
                       tensor.storage_offset());
}

Tensor nested_to_cpu(const Tensor &tensor, opq_reason reason, bool writable)
{
    const Below below;
    const Tensor buffer = cpu_now(buffer_of(tensor), reason);
    return nested_over(writable ? buffer.clone() : buffer, tensor);
}

Tensor nested_from_cpu(const Tensor &cpu)
{
    const Below below;
    return nested_over(wrap_cpu(get_nested_tensor_impl(cpu)->get_unsafe_storage_as_tensor(), Order{}), cpu);
}

void nested_assign(const Tensor &tensor, const Tensor &cpu)
{
    const Below below;
    write(buffer_of(tensor), upload(get_nested_tensor_impl(cpu)->get_unsafe_storage_as_tensor(), Order{}));
}

namespace
{

// The kernel for CPU tensors, on the tensors as they are: it looks at sizes alone. What it takes out of the storage becomes ours.
void as_on_cpu(const OperatorHandle &op, Stack *stack)
{
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::NestedTensorCPU), stack);
    if (stack->back().isTensor() && !stack->back().toTensor().is_nested())
        stack->back() = over_token(stack->back().toTensor());
}

// _to_copy(self, *, dtype, layout, device, pin_memory, non_blocking, memory_format)
Tensor to_copy(const Tensor &self, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
               std::optional<at::Device> where, std::optional<bool>, bool non_blocking, std::optional<at::MemoryFormat>)
{
    const Tensor buffer = buffer_of(self);
    return nested_over(buffer.to(where.value_or(self.device()), dtype.value_or(self.scalar_type()), non_blocking,
                                 /*copy=*/true),
                       self);
}

bool looks_at_sizes(const OperatorHandle &op)
{
    for (const char *name : {"aten::_nested_tensor_size", "aten::_nested_tensor_strides",
                             "aten::_nested_tensor_storage_offsets", "aten::is_same_size"})
        if (op.operator_name().name == name)
            return true;
    for (const auto &result : op.schema().returns())
        if (result.alias_info() && !result.alias_info()->isWrite())
            return true;
    return false;
}

// A composite kernel goes before a fallback, and would take a nested tensor apart: so each operator gets a kernel of its own.
TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, library)
{
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::_to_copy" || name.name == "aten::_pin_memory" ||
            name.name == "aten::is_pinned")
            continue;
        const OperatorHandle op = *dispatcher.findOp(name);
        if (op.hasKernelForDispatchKey(c10::DispatchKey::NestedTensorCPU))
            library.impl(toString(name).c_str() + strlen("aten::"),
                         looks_at_sizes(op) ? torch::CppFunction::makeFromBoxedFunction<&as_on_cpu>()
                                            : torch::CppFunction::makeFromBoxedFunction<&extern_now>());
    }
    library.impl("_to_copy", TORCH_FN(to_copy));
}

} // namespace

} // namespace opq
