// CPU tensors on a tensor's own memory, for calls outside the core that write it. opq_cell_lend says what that means for other readers.
#pragma once

#include "shim.h"

namespace opq
{

using BufferRef = std::shared_ptr<opq_buffer>;

// The memory of the tensor's cell for a writer. What is pending of it runs. A second loan of one cell is a loan of other memory.
BufferRef lend_memory(const Tensor &tensor, opq_reason reason);
// The tensor's window on that memory.
Tensor cpu_window(const Tensor &tensor, const BufferRef &buffer);

} // namespace opq
