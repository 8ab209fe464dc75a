// Between tensors and values: reading a strided window, writing through one, giving a value a tensor.
//
// A value is dense and row-major. A dense tensor in another memory order (transposed, channels last) is read and made in that
// order, so that the value is the memory and no element moves.
#include "capturing.h"
#include "adapter.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>
#include <ATen/native/Resize.h>
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "below.h"
#include "journal.h"
#include "movement.h"

namespace opq
{

namespace
{

bool contiguous(IntArrayRef sizes, IntArrayRef strides)
{
    int64_t expected = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
        if (sizes[i] == 1)
            continue;
        if (strides[i] != expected)
            return false;
        expected *= sizes[i];
    }
    return true;
}

Order by_stride(IntArrayRef strides)
{
    Order order;
    for (size_t i = 0; i < strides.size(); ++i)
        order.perm.push_back(static_cast<int64_t>(i));
    std::stable_sort(order.perm.begin(), order.perm.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
    return order;
}

bool identity(const Order &order)
{
    for (size_t i = 0; i < order.perm.size(); ++i)
        if (order.perm[i] != static_cast<int64_t>(i))
            return false;
    return true;
}

// A value without elements is data that exists, whatever its cell holds.
Value no_elements(opq_dtype dtype, IntArrayRef sizes)
{
    opq_buffer *buffer = nullptr;
    check(opq_buffer_create(context(), 0, &buffer));
    const Memory owner(buffer);
    const opq_type type = opq_type_make(dtype, static_cast<int>(sizes.size()), sizes.data());
    opq_value *out = nullptr;
    check(opq_value_leaf(context(), &type, buffer, &out));
    return Value::take(out);
}

Value read_window(const Tensor &tensor, IntArrayRef sizes, IntArrayRef strides)
{
    if (C10_UNLIKELY(sizes.size() > OPQ_RANK_MAX))
        decline(opq_fail(OPQ_UNSUPPORTED, "a tensor of %zu dimensions", sizes.size()));
    if (C10_UNLIKELY(tensor.numel() == 0))
        return no_elements(core_dtype(tensor.scalar_type()), sizes);
    const opq_geometry window{core_dtype(tensor.scalar_type()), static_cast<int>(sizes.size()), sizes.data(),
                              strides.data(), tensor.storage_offset()};
    note_reached(tensor);
    opq_value *out = nullptr;
    check(opq_cell_read(context(), impl_of(tensor)->cell(), &window, &out));
    return Value::take(out);
}

// ---- tensors of too many dims: their elements as one row of memory

// From the first element to the last, with whatever lies between.
int64_t span_of(const Tensor &tensor)
{
    int64_t span = 1;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim)
        span += (tensor.size(dim) - 1) * tensor.stride(dim);
    return span;
}

opq_geometry row_of(const Tensor &tensor, const int64_t &count)
{
    static const int64_t one = 1;
    return {core_dtype(tensor.scalar_type()), 1, &count, &one, tensor.storage_offset()};
}

Value read_row(const Tensor &tensor)
{
    const int64_t span = span_of(tensor);
    const opq_geometry row = row_of(tensor, span);
    opq_value *out = nullptr;
    if (tensor.numel() == 0)
        return no_elements(core_dtype(tensor.scalar_type()), {0});
    note_reached(tensor);
    check(opq_cell_read(context(), impl_of(tensor)->cell(), &row, &out));
    return Value::take(out);
}

Tensor wide_now(const Tensor &tensor, opq_reason reason)
{
    const Value value = read_row(tensor);
    materialize({value}, reason);
    return cpu_alias(value, tensor.scalar_type(), tensor.sizes(), tensor.strides());
}

// `value` has the tensor's elements, row-major.
void write_wide(const Tensor &tensor, Value value)
{
    int64_t count = tensor.numel();
    if (count == 0)
        return;
    if (!tensor.is_contiguous()) {
        const Tensor around = wide_now(tensor, OPQ_REASON_extern_now);
        materialize({value}, OPQ_REASON_extern_now);
        const Below below;
        const Tensor given =
            cpu_alias(value, tensor.scalar_type(), tensor.sizes(), ordered_strides(tensor.sizes(), Order{}));
        count = span_of(tensor);
        const Tensor row = around.as_strided({count}, {1}, 0).clone();
        row.as_strided(tensor.sizes(), tensor.strides(), 0).copy_(given);
        value = upload(row, Order{});
    }
    const opq_geometry row = row_of(tensor, count);
    check(opq_cell_write(context(), impl_of(tensor)->cell(), &row, reshape(value, {count}).get()));
}

Value complex_by(const char *name, const Value &value, at::ScalarType dtype)
{
    return extern_results(name, "", {wrap(value, dtype)})[0].value;
}

Value negated(const Tensor &tensor, Value value)
{
    return is_raw(value.dtype()) ? complex_by("aten::neg", value, tensor.scalar_type()) : record(OPQ_OP_neg, {value});
}

Value with_bits(const Tensor &tensor, Value value)
{
    if (C10_UNLIKELY(tensor.is_conj()))
        decline(opq_fail(OPQ_UNSUPPORTED, "conjugated operand"));
    return C10_UNLIKELY(tensor.is_neg()) ? negated(tensor, std::move(value)) : std::move(value);
}

} // namespace

std::optional<Order> dense_order(IntArrayRef sizes, IntArrayRef strides)
{
    if (contiguous(sizes, strides) || c10::multiply_integers(sizes) == 0)
        return Order{};
    Order order = by_stride(strides);
    int64_t expected = 1;
    for (size_t i = order.perm.size(); i-- > 0;) {
        const int64_t dim = order.perm[i];
        if (sizes[dim] == 1)
            continue;
        if (strides[dim] != expected)
            return std::nullopt;
        expected *= sizes[dim];
    }
    return identity(order) ? Order{} : order;
}

namespace
{

// The stride of a dim of what the tensor broadcasts to; 0: it says nothing about it.
int64_t broadcast_stride(const Tensor &tensor, IntArrayRef shape, size_t dim)
{
    const size_t missing = shape.size() - static_cast<size_t>(tensor.dim());
    if (dim < missing || (tensor.sizes()[dim - missing] == 1 && shape[dim] != 1))
        return 0;
    return tensor.strides()[dim - missing];
}

// Does the first operand that tells them apart have dim a inside dim b (-1), or outside of it (1)? 0: none does.
int compare_dims(c10::ArrayRef<const Tensor *> operands, IntArrayRef shape, size_t a, size_t b)
{
    for (const Tensor *const tensor : operands) {
        const int64_t of_a = broadcast_stride(*tensor, shape, a), of_b = broadcast_stride(*tensor, shape, b);
        if (of_a == 0 || of_b == 0)
            continue;
        if (of_a != of_b)
            return of_a < of_b ? -1 : 1;
        if (shape[a] > shape[b])
            return 1;
    }
    return 0;
}

} // namespace

// TensorIterator's: sorted from the innermost dim by insertion, because the comparison is no order.
Order result_order(c10::ArrayRef<const Tensor *> operands, IntArrayRef shape)
{
    bool contiguous = true;
    for (const Tensor *const tensor : operands)
        contiguous = contiguous && tensor->is_contiguous();
    if (contiguous)
        return {};
    Order order; // inside first, while it is sorted
    for (size_t dim = shape.size(); dim-- > 0;)
        order.perm.push_back(static_cast<int64_t>(dim));
    auto &perm = order.perm;
    for (size_t i = 1; i < perm.size(); ++i) {
        size_t at = i;
        for (size_t before = i; before-- > 0;) {
            const int found =
                compare_dims(operands, shape, static_cast<size_t>(perm[before]), static_cast<size_t>(perm[at]));
            if (found < 0)
                break;
            if (found > 0) {
                std::swap(perm[before], perm[at]);
                at = before;
            }
        }
    }
    std::reverse(perm.begin(), perm.end());
    return identity(order) ? Order{} : order;
}

Order inverse(const Order &order)
{
    Order result;
    result.perm.resize(order.perm.size());
    for (size_t i = 0; i < order.perm.size(); ++i)
        result.perm[static_cast<size_t>(order.perm[i])] = static_cast<int64_t>(i);
    return result;
}

Value logical(const Value &value, const Order &order)
{
    return order.plain() ? value : permute(value, inverse(order).perm);
}

Dims ordered(IntArrayRef logical, const Order &order)
{
    if (order.plain())
        return {logical.begin(), logical.end()};
    Dims result;
    for (const int64_t dim : order.perm)
        result.push_back(logical[dim]);
    return result;
}

Dims ordered_strides(IntArrayRef sizes, const Order &order)
{
    Dims strides(sizes.size());
    int64_t next = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
        const size_t dim = order.plain() ? i : static_cast<size_t>(order.perm[i]);
        strides[dim] = next;
        next *= std::max<int64_t>(sizes[dim], 1);
    }
    return strides;
}

bool on_device(const Tensor &tensor) { return tensor.device().type() == kDeviceType; }

bool overlaps_itself(const Tensor &tensor)
{
    if (tensor.is_non_overlapping_and_dense() || tensor.numel() == 0)
        return false;
    const opq_geometry window{core_dtype(tensor.scalar_type()), static_cast<int>(tensor.dim()), tensor.sizes().data(),
                              tensor.strides().data(), tensor.storage_offset()};
    return tensor.dim() <= OPQ_RANK_MAX && opq_geometry_overlaps(&window);
}

namespace
{

struct Reach { // in bytes of the cell
    int64_t begin, end;
};

Reach reach_of(const Tensor &tensor)
{
    const auto width = static_cast<int64_t>(tensor.itemsize());
    return {tensor.storage_offset() * width, (tensor.storage_offset() + span_of(tensor)) * width};
}

} // namespace

bool shares_memory(const Tensor &a, const Tensor &b)
{
    if (!a.defined() || !b.defined() || a.numel() == 0 || b.numel() == 0)
        return false;
    const OpaqueImpl *const left = impl_or_null(a), *const right = impl_or_null(b);
    if (!left || !right || left->cell() != right->cell())
        return false;
    const Reach of_a = reach_of(a), of_b = reach_of(b);
    return of_a.begin < of_b.end && of_b.begin < of_a.end;
}

bool overlaps_partly(const Tensor &a, const Tensor &b)
{
    if (a.is_same(b) || !shares_memory(a, b) || !a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense())
        return false;
    const Reach of_a = reach_of(a), of_b = reach_of(b);
    return of_a.begin != of_b.begin || of_a.end != of_b.end || a.strides() != b.strides();
}

Value read(const Tensor &tensor) { return with_bits(tensor, read_window(tensor, tensor.sizes(), tensor.strides())); }

Value read_raw(const Tensor &tensor)
{
    return C10_UNLIKELY(is_wide(tensor)) ? read_row(tensor) : read_window(tensor, tensor.sizes(), tensor.strides());
}

Value read_dense(const Tensor &tensor, const Order &order)
{
    if (order.plain() && tensor.is_contiguous())
        return read_window(tensor, tensor.sizes(), tensor.strides());
    return read_window(tensor, ordered(tensor.sizes(), order), ordered(tensor.strides(), order));
}

Value read_ordered(const Tensor &tensor, int rank, const Order &order)
{
    if (order.plain())
        return read(tensor);
    const size_t missing = static_cast<size_t>(rank) - static_cast<size_t>(tensor.dim());
    Dims sizes(missing, 1), strides(missing, 0);
    sizes.append(tensor.sizes().begin(), tensor.sizes().end());
    strides.append(tensor.strides().begin(), tensor.strides().end());
    return with_bits(tensor, read_window(tensor, ordered(sizes, order), ordered(strides, order)));
}

void write(const Tensor &tensor, const Value &given)
{
    at::assert_no_internal_overlap(tensor);
    Value value = cast(given, core_dtype(tensor.scalar_type()));
    if (C10_UNLIKELY(tensor.is_conj()))
        value = complex_by("aten::_conj_physical", value, tensor.scalar_type());
    if (C10_UNLIKELY(tensor.is_neg()))
        value = negated(tensor, std::move(value));
    if (C10_UNLIKELY(is_wide(tensor))) {
        note_reached(tensor);
        if (C10_UNLIKELY(any_journal()))
            journal_write(tensor);
        return write_wide(tensor, std::move(value));
    }
    const IntArrayRef shape = tensor.sizes();
    if (shape_of(value) != shape)
        value = expand(value, shape);
    Dims sizes(shape.begin(), shape.end()), strides(tensor.strides().begin(), tensor.strides().end());
    if (!tensor.is_contiguous())
        if (const auto order = dense_order(sizes, strides); order && !order->plain()) {
            value = permute(value, order->perm);
            sizes = ordered(shape, *order);
            strides = ordered(tensor.strides(), *order);
        }
    const opq_geometry window{core_dtype(tensor.scalar_type()), static_cast<int>(sizes.size()), sizes.data(),
                              strides.data(), tensor.storage_offset()};
    note_reached(tensor);
    if (C10_UNLIKELY(any_journal()))
        journal_write(tensor);
    check(opq_cell_write(context(), impl_of(tensor)->cell(), &window, value.get()));
}

namespace
{

Cell new_cell(const Value &value)
{
    opq_cell *cell = nullptr;
    check(opq_cell_from_value(context(), value.get(), &cell));
    Cell owner = Cell::take(cell);
    if (C10_UNLIKELY(any_journal()))
        journal_made(cell);
    return owner;
}

} // namespace

Tensor wrap_cpu(const Tensor &source, const Order &order)
{
    return make_tensor(new_cell(upload(source, order)), source.dtype(), source.sizes(),
                       ordered_strides(source.sizes(), order));
}

Tensor wrap(const Value &value, at::ScalarType dtype, const Order &order)
{
    const Dims memory = shape_of(value);
    // Without elements there is nothing to compute.
    const bool empty = std::find(memory.begin(), memory.end(), 0) != memory.end();
    Cell owner = new_cell(C10_UNLIKELY(empty) ? no_elements(value.dtype(), memory) : value);
    Dims sizes = memory;
    if (!order.plain())
        for (size_t i = 0; i < memory.size(); ++i)
            sizes[static_cast<size_t>(order.perm[i])] = memory[i];
    return make_tensor(std::move(owner), c10::scalarTypeToTypeMeta(dtype), sizes, ordered_strides(sizes, order));
}

Tensor wrap(const Value &value, at::ScalarType dtype) { return wrap(value, dtype, Order{}); }

Tensor wrap(const Value &value) { return wrap(value, torch_dtype(value.dtype()), Order{}); }

void check_device(const Tensor &tensor, const char *op)
{
    if (C10_UNLIKELY(!on_device(tensor)))
        TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", device(),
                    " and ", tensor.device(), "! (when checking arguments of ", op, ")");
}

// To a process of a launcher (torchrun) the one device is also that of its local rank.
void check_index(c10::Device where)
{
    if (C10_LIKELY(where.type() != kDeviceType || where.index() <= 0))
        return;
    const char *const rank = std::getenv("LOCAL_RANK");
    TORCH_CHECK(rank && std::to_string(where.index()) == rank, "opaque: invalid device index ",
                static_cast<int>(where.index()), ", there is 1 device",
                rank ? ", which is also that of LOCAL_RANK " : "", rank ? rank : "");
}

bool resize_output(const Tensor &out, IntArrayRef sizes) { return at::native::resize_output(out, sizes); }

void check_castable(at::ScalarType from, at::ScalarType to)
{
    TORCH_CHECK(c10::canCast(from, to), "result type ", from, " can't be cast to the desired output type ", to);
}

Tensor cpu_alias(const Value &value, at::ScalarType dtype, IntArrayRef sizes, IntArrayRef strides)
{
    opq_buffer *const buffer = opq_value_buffer(value.get());
    TORCH_INTERNAL_ASSERT(buffer, "opaque: value has not been computed");
    opq_buffer_retain(buffer);
    return at::from_blob(
        opq_buffer_data(buffer), sizes, strides, [buffer](void *) { opq_buffer_release(buffer); },
        at::TensorOptions().dtype(dtype).device(c10::kCPU));
}

std::optional<InPlace> in_place(const Tensor &tensor, opq_reason reason)
{
    forbid_capturing(opq_reason_name(reason));
    const Value value = Value::take(opq_cell_value(impl_of(tensor)->cell()));
    if (tensor.numel() == 0 || !value || value.dtype() != core_dtype(tensor.scalar_type()))
        return std::nullopt;
    if (tensor.storage_offset() + span_of(tensor) > c10::multiply_integers(shape_of(value)))
        return std::nullopt;
    materialize({value}, reason);
    opq_buffer *const buffer = opq_value_buffer(value.get());
    if (buffer == nullptr)
        return std::nullopt;
    opq_buffer_retain(buffer);
    return InPlace{Memory(buffer), static_cast<char *>(opq_buffer_data(buffer)) +
                                       tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())};
}

static std::optional<Tensor> cpu_in_place(const Tensor &tensor, opq_reason reason)
{
    std::optional<InPlace> there = in_place(tensor, reason);
    if (!there)
        return std::nullopt;
    return at::from_blob(
        there->data, tensor.sizes(), tensor.strides(),
        [buffer = there->memory.release()](void *) { opq_buffer_release(buffer); },
        at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU));
}

Tensor cpu_now(const Tensor &tensor, opq_reason reason)
{
    if (!on_device(tensor))
        return tensor;
    forbid_capturing(opq_reason_name(reason));
    const Tensor plain = tensor;
    const std::optional<Order> order = dense_order(tensor.sizes(), tensor.strides());
    const Order used = order.value_or(Order{});
    Tensor result;
    if (C10_UNLIKELY(is_wide(tensor))) {
        result = wide_now(tensor, reason);
    } else if (auto there = reason == OPQ_REASON_item || reason == OPQ_REASON_copy_to_host ? cpu_in_place(tensor, reason)
                                                                                           : std::nullopt) {
        result = *there;
    } else {
        const Value value = order ? read_dense(tensor, used) : read_window(tensor, tensor.sizes(), tensor.strides());
        materialize({value}, reason);
        result = cpu_alias(value, tensor.scalar_type(), tensor.sizes(), ordered_strides(tensor.sizes(), used));
    }
    if (tensor.is_conj())
        result._set_conj(true);
    if (tensor.is_neg())
        result._set_neg(true);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        result.unsafeGetTensorImpl()->set_wrapped_number(true);
    return result;
}

static bool few_bytes(const Tensor &cpu)
{
    constexpr size_t few = 1 << 16;
    return cpu.device().is_cpu() && cpu.layout() == at::kStrided && !cpu.is_neg() && !cpu.is_conj() &&
           !cpu._is_zerotensor() && cpu.numel() != 0 && cpu.nbytes() <= few;
}

bool few_bytes_in_order(const Tensor &cpu) { return few_bytes(cpu) && cpu.is_contiguous(); }

Order transposed(int64_t rank)
{
    Order order;
    for (int64_t dim = 0; dim < rank; ++dim)
        order.perm.push_back(dim);
    std::swap(order.perm.end()[-1], order.perm.end()[-2]);
    return order;
}

void copy_ordered(const Tensor &source, const Order &order, void *memory)
{
    const Dims strides = ordered_strides(source.sizes(), order);
    if (few_bytes(source) && (order.plain() ? source.is_contiguous() : source.strides() == IntArrayRef(strides)))
        std::memcpy(memory, source.const_data_ptr(), source.nbytes());
    else
        at::from_blob(memory, source.sizes(), strides, at::TensorOptions().dtype(source.scalar_type()).device(c10::kCPU))
            .copy_(source);
}

Value upload(const Tensor &source, const Order &order)
{
    const Dims memory = is_wide(source) ? Dims{source.numel()} : ordered(source.sizes(), order);
    const opq_dtype dtype = core_dtype(source.scalar_type());
    opq_buffer *buffer = nullptr;
    check(opq_buffer_create(context(), source.numel() * source.itemsize(), &buffer));
    const Memory owner(buffer);
    copy_ordered(source, order, opq_buffer_data(buffer));
    const opq_type type = opq_type_make(dtype, static_cast<int>(memory.size()), memory.data());
    opq_value *out = nullptr;
    check(opq_value_leaf(context(), &type, buffer, &out));
    Value leaf = Value::take(out);
    if (Capturing *const here = capturing_here())
        here->note_upload(source, order, leaf);
    return leaf;
}

} // namespace opq
