#include "lending.h"

#include <ATen/ops/from_blob.h>

#include "capturing.h"
#include "journal.h"
#include "lines.h"

namespace opq
{

BufferRef lend_memory(const Tensor &tensor, opq_reason reason)
{
    forbid_capturing(opq_reason_name(reason));
    if (any_journal())
        journal_write(tensor);
    opq_buffer *buffer = nullptr;
    const auto lend = [&] {
        const PythonUnlocked unlocked;
        return opq_cell_lend(context(), impl_of(tensor)->cell(), core_dtype(tensor.scalar_type()), reason, &buffer);
    };
    check(lend());
    return {buffer, &opq_buffer_release};
}

Tensor cpu_window(const Tensor &tensor, const BufferRef &buffer)
{
    char *const data = static_cast<char *>(opq_buffer_data(buffer.get())) +
                       tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
    Tensor cpu = at::from_blob(
        data, tensor.sizes(), tensor.strides(), [buffer](void *) {},
        at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU));
    cpu._set_conj(tensor.is_conj());
    cpu._set_neg(tensor.is_neg());
    return cpu;
}

} // namespace opq
