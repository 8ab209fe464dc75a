// The tensor class of the device: a strided window on a cell of the core. It owns no storage and no data pointer.
//
// Sizes, strides and offset are truthful, so that autograd and the composite operators of PyTorch see an ordinary strided
// tensor. `storage()` gives an alias token: one StorageImpl per cell, made on first use, whose data pointer is a number that
// identifies the cell (opq_cell_address) and must never be dereferenced. Tensor -> cell, token -> cell; the cell does not know
// its token, a side table does.
//
// Thread-compatible like every TensorImpl; `storage()` may be called from several threads.
#pragma once

#include <ATen/OpaqueTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <typeinfo>

#include "opaque/record.h"

namespace opq
{

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
inline c10::Device device() { return {kDeviceType, 0}; }

// A counted reference to a cell.
class Cell
{
  public:
    Cell() = default;
    static Cell take(opq_cell *cell) // takes over the caller's reference
    {
        Cell result;
        result.cell_ = cell;
        return result;
    }
    Cell(const Cell &other) : cell_(other.cell_)
    {
        if (cell_)
            opq_cell_retain(cell_);
    }
    Cell(Cell &&other) noexcept : cell_(other.cell_) { other.cell_ = nullptr; }
    Cell &operator=(Cell other) noexcept
    {
        std::swap(cell_, other.cell_);
        return *this;
    }
    ~Cell()
    {
        if (cell_)
            opq_cell_release(cell_);
    }
    opq_cell *get() const { return cell_; }

  private:
    opq_cell *cell_ = nullptr;
};

class OpaqueImpl final : public at::OpaqueTensorImpl<Cell>
{
  public:
    using Base = at::OpaqueTensorImpl<Cell>;

    OpaqueImpl(c10::DispatchKeySet keys, caffe2::TypeMeta dtype, Cell cell, c10::IntArrayRef sizes,
               c10::IntArrayRef strides, int64_t offset);

    opq_cell *cell() const { return opaque_handle().get(); }
    const Cell &cell_ref() const { return opaque_handle(); }
    uint32_t made_in() const { return made_in_; } // opq_capturing_id, 0: by no function that was captured
    void set_cell(Cell cell);                     // for set_() and swaps of the underlying storage
    // Is a view of that tensor: an inference tensor if that is one, whatever mode there is now.
    void follow(const c10::TensorImpl &base);

    bool has_storage() const override { return false; }
    const c10::Storage &storage() const override;

    void set_size(int64_t dim, int64_t size) override { TensorImpl::set_size(dim, size); }
    void set_stride(int64_t dim, int64_t stride) override { TensorImpl::set_stride(dim, stride); }
    void set_storage_offset(int64_t offset) override { TensorImpl::set_storage_offset(offset); }

    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion &version,
                                                           bool allow_change) const override;
    c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion &&version,
                                                           bool allow_change) const override;
    void shallow_copy_from(const c10::intrusive_ptr<TensorImpl> &impl) override;
    void release_resources() override;

  private:
    void drop_token();
    mutable c10::Storage token_;
    const uint32_t made_in_;
};

// The implementation behind a tensor of this device, or NULL: meta and fake tensors, wrappers, other devices.
inline OpaqueImpl *impl_or_null(const at::Tensor &tensor)
{
    c10::TensorImpl *const impl = tensor.unsafeGetTensorImpl(); // a dynamic_cast takes longer than recording the op
    return typeid(*impl) == typeid(OpaqueImpl) ? static_cast<OpaqueImpl *>(impl) : nullptr;
}
// As above; an error that says what the tensor is instead.
OpaqueImpl *impl_of(const at::Tensor &tensor);

// The token of a cell, and back. A storage made by the device's allocator is a token as well.
c10::Storage storage_of(const Cell &cell);
Cell cell_of_storage(const c10::Storage &storage);
// What a token's DataPtr holds; used by the allocator.
c10::DataPtr token_pointer(const Cell &cell);

// A tensor over a cell. Sizes, strides and offset in elements of `dtype`.
at::Tensor make_tensor(Cell cell, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       int64_t offset = 0);
// Another window on the cell of `base`, whose view it is.
at::Tensor make_view(const at::Tensor &base, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     int64_t offset);

} // namespace opq
