// Sparse COO tensors of the device: PyTorch's own class, whose indices and values are tensors of the device. They may be pending; an
// operator on them runs at once through its CPU kernel.
#pragma once

#include "shim.h"

namespace opq
{

inline bool is_sparse(const Tensor &tensor) { return tensor.defined() && tensor.layout() == c10::kSparse; }
// The same over CPU tensors on the memory of its indices and values; not to be written to.
Tensor sparse_to_cpu(const Tensor &tensor, opq_reason reason);
Tensor sparse_from_cpu(const Tensor &cpu);
// `tensor` becomes what `cpu` is: after an operator that writes.
void sparse_assign(const Tensor &tensor, const Tensor &cpu);

} // namespace opq
