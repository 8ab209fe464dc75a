// Tensors and windows: making them, looking at a cell through another window, changing window or cell in place. Nothing here
// records an op, except that a resized cell keeps its contents.
#include "adapter.h"

#include <ATen/ExpandUtils.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/empty.h>
#include <fstream>
#include <sys/sysinfo.h>

#include "below.h"
#include "capturing.h"
#include "journal.h"
#include "nested.h"

namespace opq
{

namespace
{

// malloc would give more than the machine has, and the kernel would end the process on first touch.
int64_t memory_limit()
{
    static const int64_t limit = [] {
        struct sysinfo info{};
        sysinfo(&info);
        int64_t bytes = static_cast<int64_t>((info.totalram + info.totalswap) * info.mem_unit);
        for (const char *file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
            int64_t group = 0;
            if (std::ifstream(file) >> group && group > 0)
                bytes = std::min(bytes, group);
        }
        return bytes;
    }();
    return limit;
}

Cell new_cell(size_t bytes)
{
    TORCH_CHECK_WITH(OutOfMemoryError, static_cast<int64_t>(bytes) <= memory_limit(),
                     "opaque out of memory. DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
                     " bytes.");
    opq_cell *cell = nullptr;
    check(opq_cell_create(context(), static_cast<int64_t>(bytes), &cell));
    if (C10_UNLIKELY(any_journal()))
        journal_made(cell);
    return Cell::take(cell);
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::kStrided, "only strided tensors are supported on device ",
                                device(), ", got ", *layout);
    TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
}

std::vector<int64_t> format_strides(IntArrayRef sizes, std::optional<at::MemoryFormat> format)
{
    switch (format.value_or(at::MemoryFormat::Contiguous)) {
    case at::MemoryFormat::ChannelsLast:
        TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
        return c10::get_channels_last_strides_2d(sizes);
    case at::MemoryFormat::ChannelsLast3d:
        TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
        return c10::get_channels_last_strides_3d(sizes);
    default: const Dims strides = ordered_strides(sizes, Order{}); return {strides.begin(), strides.end()};
    }
}

// torch.use_deterministic_algorithms(True), and torch.utils.deterministic.fill_uninitialized_memory as it is unless told.
bool fills_new_memory()
{
    const at::Context &context = at::globalContext();
    return context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory();
}

Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> where, std::optional<bool> pin_memory)
{
    if (where)
        check_index(*where);
    check_options(layout, pin_memory);
    at::detail::check_size_nonnegative(sizes);
    TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
                ") must match dimensionality of strides (", strides.size(), ")");
    const auto type = c10::scalarTypeToTypeMeta(dtype.value_or(c10::get_default_dtype_as_scalartype()));
    Tensor made =
        make_tensor(new_cell(at::detail::computeStorageNbytes(sizes, strides, type.itemsize())), type, sizes, strides);
    if (fills_new_memory())
        at::native::fill_empty_deterministic_(made);
    return made;
}

Tensor empty(IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> where, std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format)
{
    at::detail::check_size_nonnegative(sizes);
    return empty_strided(sizes, format_strides(sizes, format), dtype, layout, where, pin_memory);
}

// ---- other windows on the same cell

Tensor window(const Tensor &self, caffe2::TypeMeta dtype, IntArrayRef sizes, IntArrayRef strides, int64_t offset)
{
    Tensor result = make_view(self, dtype, sizes, strides, offset);
    note_view(self);
    note_reached(self);
    if (self.is_conj())
        result._set_conj(true);
    if (self.is_neg())
        result._set_neg(true);
    return result;
}

void check_inside(const Tensor &self, IntArrayRef sizes, IntArrayRef strides, int64_t offset)
{
    TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
    TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
    for (const int64_t stride : strides)
        TORCH_CHECK(stride >= 0, "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
    const auto needed = static_cast<int64_t>(
        at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), static_cast<size_t>(offset)));
    const int64_t have = opq_cell_bytes(impl_of(self)->cell());
    TORCH_CHECK(c10::multiply_integers(sizes) == 0 || needed <= have, "setStorage: sizes ", sizes, ", strides ",
                strides, ", storage offset ", offset, ", and itemsize ", self.itemsize(),
                " requiring a storage size of ", needed, " are out of bounds for storage of size ", have);
}

Tensor as_strided(const Tensor &self, IntArrayRef sizes, IntArrayRef strides, std::optional<int64_t> offset)
{
    const int64_t start = offset.value_or(self.storage_offset());
    at::detail::check_size_nonnegative(sizes);
    const Tensor owner = over_token(self);
    check_inside(owner, sizes, strides, start);
    return window(owner, self.dtype(), sizes, strides, start);
}

Tensor view(const Tensor &self, IntArrayRef size)
{
    const at::DimVector sizes = at::infer_size_dv(size, self.numel());
    const auto strides = at::detail::computeStride(self.sizes(), self.strides(), sizes);
    TORCH_CHECK(
        strides,
        "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
        "contiguous subspaces). Use .reshape(...) instead.");
    return window(self, self.dtype(), sizes, *strides, self.storage_offset());
}

Tensor reshape_alias(const Tensor &self, IntArrayRef sizes, IntArrayRef strides)
{
    return window(self, self.dtype(), sizes, strides, self.storage_offset());
}

Tensor alias(const Tensor &self)
{
    return window(self, self.dtype(), self.sizes(), self.strides(), self.storage_offset());
}

// Views that change the dtype or have rules of their own: the meta kernel says which window they are.
void view_like_meta(const OperatorHandle &op, Stack *stack)
{
    const size_t first = stack->size() - op.schema().arguments().size();
    const Tensor self = (*stack)[first].toTensor();
    const int64_t elements = opq_cell_bytes(impl_of(self)->cell()) / static_cast<int64_t>(self.itemsize());
    Tensor result;
    {
        const Below below;
        Tensor meta = at::empty({elements}, self.options().device(c10::kMeta))
                          .as_strided(self.sizes(), self.strides(), self.storage_offset());
        if (self.is_conj())
            meta._set_conj(true);
        if (self.is_neg())
            meta._set_neg(true);
        (*stack)[first] = std::move(meta);
        op.callBoxed(stack);
        note_view(self);
        note_reached(self);
        const Tensor seen = stack->back().toTensor();
        // view(dtype) of PyTorch is an inference tensor in that mode, whatever self is.
        result = op.schema().overload_name() == "dtype"
                     ? make_tensor(impl_of(self)->cell_ref(), seen.dtype(), seen.sizes(), seen.strides(),
                                   seen.storage_offset())
                     : make_view(self, seen.dtype(), seen.sizes(), seen.strides(), seen.storage_offset());
        if (seen.is_conj())
            result._set_conj(true);
        if (seen.is_neg())
            result._set_neg(true);
    }
    stack->back() = std::move(result);
}

// ---- changing a tensor's own window or cell

const Tensor &resize_(const Tensor &self, IntArrayRef sizes, std::optional<at::MemoryFormat> format)
{
    if (self.sizes() == sizes && !format)
        return self;
    check_options(std::nullopt, std::nullopt);
    at::detail::check_size_nonnegative(sizes);
    const auto strides = format_strides(sizes, format == at::MemoryFormat::Preserve ? std::nullopt : format);
    OpaqueImpl *const impl = impl_of(self);
    const auto needed = static_cast<int64_t>(
        at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), static_cast<size_t>(self.storage_offset())));
    const int64_t before = opq_cell_bytes(impl->cell());
    if (c10::multiply_integers(sizes) > 0 && needed > before) {
        TORCH_CHECK_WITH(OutOfMemoryError, needed <= memory_limit(),
                         "opaque out of memory. DefaultCPUAllocator: can't allocate memory: you tried to allocate ",
                         needed, " bytes.");
        check(opq_cell_resize(context(), impl->cell(), needed));
    }
    impl->set_sizes_and_strides(sizes, strides, self.storage_offset());
    if (needed > before && fills_new_memory()) {
        const int64_t size = static_cast<int64_t>(self.itemsize()), first = (before + size - 1) / size;
        Tensor grown = self.detach().as_strided({needed / size - first}, {1}, first);
        at::native::fill_empty_deterministic_(grown);
    }
    return self;
}

Tensor &take_cell(Tensor &self, Cell cell, int64_t offset, IntArrayRef sizes, IntArrayRef strides)
{
    OpaqueImpl *const impl = impl_of(self);
    const Dims contiguous = strides.empty() ? ordered_strides(sizes, Order{}) : Dims(strides.begin(), strides.end());
    const auto needed = static_cast<int64_t>(
        at::detail::computeStorageNbytes(sizes, contiguous, self.itemsize(), static_cast<size_t>(offset)));
    if (c10::multiply_integers(sizes) > 0 && needed > opq_cell_bytes(cell.get()))
        check(opq_cell_resize(context(), cell.get(), needed));
    impl->set_cell(std::move(cell));
    impl->set_sizes_and_strides(sizes, contiguous, offset);
    return self;
}

Tensor &set_storage_window(Tensor &self, at::Storage source, int64_t offset, IntArrayRef sizes, IntArrayRef strides)
{
    return take_cell(self, cell_of_storage(source), offset, sizes, strides);
}

Tensor &set_storage(Tensor &self, at::Storage source)
{
    Cell cell = cell_of_storage(source);
    const int64_t count = opq_cell_bytes(cell.get()) / static_cast<int64_t>(self.itemsize());
    return take_cell(self, std::move(cell), 0, {count}, {1});
}

Tensor &set_tensor(Tensor &self, const Tensor &source)
{
    check_device(source, "set_");
    TORCH_CHECK(self.dtype() == source.dtype(), "Could not set tensor of type ", source.dtype(),
                " to a tensor of type ", self.dtype());
    return take_cell(self, impl_of(source)->cell_ref(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor &set_nothing(Tensor &self) { return take_cell(self, new_cell(0), 0, {0}, {1}); }

bool is_set_to(const Tensor &self, const Tensor &other)
{
    return impl_or_null(other) && impl_of(self)->cell() == impl_of(other)->cell() &&
           self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
           self.strides() == other.strides();
}

// What x.data = y asks. PyTorch's own answer for a device it does not know is false for an inference tensor and a normal one.
bool same_kind(const Tensor &self, const Tensor &from)
{
    return (impl_or_null(self) && impl_or_null(from)) ||
           self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// PyTorch wants to read the indices on the CPU, and says so instead of copying them.
std::vector<Tensor> tensor_split(const Tensor &self, const Tensor &indices, int64_t dim)
{
    return at::native::tensor_split(self, indices.cpu(), dim);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library)
{
    library.impl("tensor_split.tensor_indices_or_sections", OPQ_KERNEL(tensor_split));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("tensor_split.tensor_indices_or_sections", OPQ_KERNEL(tensor_split));
    library.impl("empty.memory_format", OPQ_KERNEL(empty));
    library.impl("empty_strided", OPQ_KERNEL(empty_strided));
    library.impl("as_strided", OPQ_KERNEL(as_strided));
    library.impl("view", OPQ_KERNEL(view));
    library.impl("_unsafe_view", OPQ_KERNEL(view));
    library.impl("_reshape_alias", OPQ_KERNEL(reshape_alias));
    library.impl("alias", OPQ_KERNEL(alias));
    for (const char *name : {"view.dtype", "view_as_real", "view_as_complex", "unfold"})
        library.impl(name, boxed_kernel<&view_like_meta>());
    library.impl("resize_", OPQ_KERNEL(resize_));
    library.impl("set_.source_Storage_storage_offset", OPQ_KERNEL(set_storage_window));
    library.impl("set_.source_Storage", OPQ_KERNEL(set_storage));
    library.impl("set_.source_Tensor", OPQ_KERNEL(set_tensor));
    library.impl("set_", OPQ_KERNEL(set_nothing));
    library.impl("is_set_to", OPQ_KERNEL(is_set_to));
    library.impl("_has_compatible_shallow_copy_type", OPQ_KERNEL(same_kind));
}

} // namespace

} // namespace opq
