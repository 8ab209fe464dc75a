#include "opaque/tensor_impl.h"

#include <atomic>
#include <c10/core/Allocator.h>
#include <unordered_map>

#include "opaque/capture.h"
#include "opaque/fork_mutex.h"

namespace opq
{

namespace
{

// Tokens by cell. A token keeps its cell alive, so an entry's key cannot be reused while the entry's token lives; an entry whose
// token is gone is replaced. `serial` tells whether an entry is still the dying token's own.
struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> token;
    uint64_t serial;
};
struct Tokens {
    ForkMutex mutex;
    std::unordered_map<const opq_cell *, Entry> by_cell;
    uint64_t next_serial = 1;
};
Tokens &tokens()
{
    static Tokens *const instance = new Tokens; // outlives every tensor, also those dropped at exit
    return *instance;
}

struct TokenContext {
    Cell cell;
    uint64_t serial;
};

void drop_context(void *pointer)
{
    std::unique_ptr<TokenContext> context(static_cast<TokenContext *>(pointer));
    Tokens &all = tokens();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.by_cell.find(context->cell.get());
    if (found != all.by_cell.end() && found->second.serial == context->serial)
        all.by_cell.erase(found);
}

c10::DataPtr make_pointer(const Cell &cell, uint64_t serial)
{
    return {reinterpret_cast<void *>(opq_cell_address(cell.get())), new TokenContext{cell, serial}, &drop_context,
            device()};
}

TokenContext *context_of(const c10::StorageImpl *storage)
{
    auto &pointer = const_cast<c10::StorageImpl *>(storage)->_mutable_data_ptr_no_checks();
    TORCH_CHECK(pointer.get_deleter() == &drop_context, "this storage does not belong to device ", device());
    return static_cast<TokenContext *>(pointer.get_context());
}

} // namespace

c10::DataPtr token_pointer(const Cell &cell)
{
    Tokens &all = tokens();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return make_pointer(cell, all.next_serial++);
}

c10::Storage storage_of(const Cell &cell)
{
    Tokens &all = tokens();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.by_cell.find(cell.get());
    if (found != all.by_cell.end())
        if (auto token = found->second.token.lock())
            return c10::Storage(std::move(token));
    const uint64_t serial = all.next_serial++;
    auto token = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), opq_cell_bytes(cell.get()),
                                                       make_pointer(cell, serial), c10::GetAllocator(kDeviceType), true);
    all.by_cell.insert_or_assign(cell.get(), Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(token), serial});
    return c10::Storage(std::move(token));
}

Cell cell_of_storage(const c10::Storage &storage)
{
    TokenContext *const context = context_of(storage.unsafeGetStorageImpl());
    Tokens &all = tokens();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.by_cell.find(context->cell.get());
    if (found == all.by_cell.end()) // made by the allocator: from now on it is the cell's token
        all.by_cell.emplace(
            context->cell.get(),
            Entry{c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl()), context->serial});
    return context->cell;
}

static std::atomic<bool> halves{false};

bool seen_halves() { return halves.load(std::memory_order_relaxed); }

OpaqueImpl::OpaqueImpl(c10::DispatchKeySet keys, caffe2::TypeMeta dtype, Cell cell, c10::IntArrayRef sizes,
                       c10::IntArrayRef strides, int64_t offset)
    : Base(keys, dtype, opq::device(), std::move(cell), sizes), made_in_(opq_capturing_of(this->cell()))
{
    set_custom_sizes_strides(SizesStridesPolicy::Default);
    TensorImpl::set_sizes_and_strides(sizes, strides, offset);
    if (dtype.itemsize() == 2 && at::isReducedFloatingType(dtype.toScalarType()))
        halves.store(true, std::memory_order_relaxed);
}

void OpaqueImpl::drop_token()
{
    c10::Storage old;
    std::swap(old, token_);
}

void OpaqueImpl::set_cell(Cell cell)
{
    unsafe_opaque_handle() = std::move(cell);
    drop_token();
}

void OpaqueImpl::follow(const c10::TensorImpl &base)
{
    const c10::DispatchKeySet autograd = c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    key_set_ = (key_set_ - autograd) | (base.key_set() & autograd);
    version_counter_ = is_inference() ? c10::VariableVersion() : c10::VariableVersion(0);
}

void OpaqueImpl::release_resources()
{
    drop_token();
    Base::release_resources();
}

const c10::Storage &OpaqueImpl::storage() const
{
    static auto &mutex = *new ForkMutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!token_)
        token_ = storage_of(opaque_handle());
    token_.unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(opq_cell_bytes(cell())));
    return token_;
}

c10::intrusive_ptr<c10::TensorImpl> OpaqueImpl::shallow_copy_and_detach(const c10::VariableVersion &version,
                                                                        bool allow_change) const
{
    auto copy =
        c10::make_intrusive<OpaqueImpl>(key_set(), dtype(), opaque_handle(), sizes(), strides(), storage_offset());
    Base::copy_tensor_metadata(this, copy.get(), version, allow_change);
    return copy;
}

c10::intrusive_ptr<c10::TensorImpl> OpaqueImpl::shallow_copy_and_detach(c10::VariableVersion &&version,
                                                                        bool allow_change) const
{
    auto copy =
        c10::make_intrusive<OpaqueImpl>(key_set(), dtype(), opaque_handle(), sizes(), strides(), storage_offset());
    Base::copy_tensor_metadata(this, copy.get(), std::move(version), allow_change);
    return copy;
}

void OpaqueImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl> &impl)
{
    const auto *const other = dynamic_cast<const OpaqueImpl *>(impl.get());
    TORCH_CHECK(other, "a tensor on device ", opq::device(), " cannot take over a tensor with dispatch keys ",
                impl->key_set());
    Base::copy_tensor_metadata(other, this, version_counter(), allow_tensor_metadata_change());
    drop_token();
}

OpaqueImpl *impl_of(const at::Tensor &tensor)
{
    OpaqueImpl *const impl = impl_or_null(tensor);
    TORCH_CHECK(impl, "expected a strided tensor on device ", device(), ", got layout ", tensor.layout(), " on device ",
                tensor.device(), " with dispatch keys ", tensor.key_set());
    return impl;
}

at::Tensor make_tensor(Cell cell, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset)
{
    return at::Tensor(c10::make_intrusive<OpaqueImpl>(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype,
                                                      std::move(cell), sizes, strides, offset));
}

at::Tensor make_view(const at::Tensor &base, caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                     int64_t offset)
{
    at::Tensor result = make_tensor(impl_of(base)->cell_ref(), dtype, sizes, strides, offset);
    if (result.is_inference() != base.is_inference())
        impl_of(result)->follow(*base.unsafeGetTensorImpl());
    return result;
}

} // namespace opq
