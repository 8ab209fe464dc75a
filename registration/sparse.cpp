#include "sparse.h"

#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/permute_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>

#include "adapter.h"
#include "below.h"

namespace opq
{

using at::sparse::get_sparse_impl;

Tensor sparse_to_cpu(const Tensor &tensor, opq_reason reason)
{
    const Tensor indices = get_sparse_impl(tensor)->indices(), values = get_sparse_impl(tensor)->values();
    materialize({read_raw(indices), read_raw(values)}, reason); // one run
    const Below below;
    return at::native::new_with_dims_and_tensor_sparse_symint(
        tensor.sparse_dim(), tensor.dense_dim(), tensor.sym_sizes(), cpu_now(indices, reason), cpu_now(values, reason),
        tensor.scalar_type(), c10::kSparse, c10::Device(c10::kCPU), std::nullopt, tensor.is_coalesced());
}

Tensor sparse_from_cpu(const Tensor &cpu)
{
    const Below below;
    const auto *const impl = get_sparse_impl(cpu);
    return at::native::new_with_dims_and_tensor_sparse_symint(
        cpu.sparse_dim(), cpu.dense_dim(), cpu.sym_sizes(), wrap_cpu(impl->indices(), Order{}),
        wrap_cpu(impl->values(), Order{}), cpu.scalar_type(), c10::kSparse, device(), std::nullopt, cpu.is_coalesced());
}

void sparse_assign(const Tensor &tensor, const Tensor &cpu)
{
    const Below below;
    auto *const impl = get_sparse_impl(tensor);
    impl->raw_resize_(cpu.sparse_dim(), cpu.dense_dim(), cpu.sizes());
    impl->set_indices_and_values_unsafe(wrap_cpu(get_sparse_impl(cpu)->indices(), Order{}),
                                        wrap_cpu(get_sparse_impl(cpu)->values(), Order{}));
    impl->set_coalesced(cpu.is_coalesced());
}

namespace
{

// Between devices, and on the device: the parts are copied as the tensors they are.
Tensor &copy_sparse(Tensor &self, const Tensor &source, bool non_blocking)
{
    if (self.is_same(source))
        return self;
    const auto part = [&](const Tensor &tensor, const Tensor &like) {
        return tensor.to(like.options(), non_blocking, /*copy=*/true);
    };
    auto *const to = get_sparse_impl(self);
    const auto *const from = get_sparse_impl(source);
    const Tensor indices = part(from->indices(), to->indices()), values = part(from->values(), to->values());
    to->raw_resize_(source.sparse_dim(), source.dense_dim(), source.sizes());
    to->set_indices_and_values_unsafe(indices, values);
    to->set_coalesced(source.is_coalesced());
    return self;
}

// A composite kernel goes before a fallback. Where the CPU has a sparse kernel besides it, the composite one is for dense tensors.
void shadow_composites(torch::Library &library)
{
    auto &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::copy_" || name.name == "aten::_pin_memory" ||
            name.name == "aten::is_pinned")
            continue;
        const OperatorHandle op = *dispatcher.findOp(name);
        if (op.hasKernelForDispatchKey(c10::DispatchKey::SparseCPU) &&
            !op.hasKernelForDispatchKey(c10::DispatchKey::SparsePrivateUse1))
            library.impl(toString(name).c_str() + strlen("aten::"),
                         torch::CppFunction::makeFromBoxedFunction<&extern_now>());
    }
}

// What only looks at the parts or puts them together is PyTorch's own, and runs nothing.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library)
{
    library.impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
    library.impl("_indices", TORCH_FN(at::native::_indices_sparse));
    library.impl("_values", TORCH_FN(at::native::_values_sparse));
    library.impl("indices", TORCH_FN(at::native::indices_sparse));
    library.impl("values", TORCH_FN(at::native::values_sparse));
    library.impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
    library.impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
    library.impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
    library.impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
    library.impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
    library.impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));
    library.impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
    library.impl("_sparse_coo_tensor_with_dims_and_tensors",
                 TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
    library.impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
    library.impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
    library.impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
    library.impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
    library.impl("clone", TORCH_FN(at::native::clone_sparse));
    library.impl("copy_sparse_to_sparse_", TORCH_FN(copy_sparse));
    library.impl("permute", TORCH_FN(at::native::permute_sparse_coo));
    library.impl("unsqueeze", TORCH_FN(at::native::unsqueeze_sparse));
    shadow_composites(library);
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, library)
{
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&extern_now>());
}

} // namespace

} // namespace opq
