// Nested tensors of the strided layout: PyTorch's own class, whose storage is the token of a cell. An operator on them runs at once
// through its CPU kernel; views are PyTorch's own and only look at sizes, which are on the CPU on every device.
#pragma once

#include "shim.h"

namespace opq
{

// Over CPU memory of its own if `writable`, else over that of the tensor.
Tensor nested_to_cpu(const Tensor &tensor, opq_reason reason, bool writable);
Tensor nested_from_cpu(const Tensor &cpu);
// `tensor` becomes what `cpu` is: after an operator that writes.
void nested_assign(const Tensor &tensor, const Tensor &cpu);
// What PyTorch makes of a nested tensor's storage is a tensor of its own class over a token. This is ours; others as they are.
Tensor over_token(const Tensor &tensor);

} // namespace opq
