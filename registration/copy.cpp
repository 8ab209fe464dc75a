// Copies: between host and device, between dtypes, clones; filling; writes into a copy through a view.
#include "adapter.h"

#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_to_copy_native.h>
#include <cstdint>
#include <cstring>

#include "below.h"
#include "movement.h"
#include "nested.h"

namespace opq
{

namespace
{

// The order in which a copy of this tensor should lie in memory.
Order copy_order(const Tensor &self, std::optional<at::MemoryFormat> format)
{
    switch (format.value_or(at::MemoryFormat::Preserve)) {
    case at::MemoryFormat::Preserve: {
        const auto dense = dense_order(self.sizes(), self.strides());
        return dense ? *dense : result_order({&self}, self.sizes());
    }
    case at::MemoryFormat::ChannelsLast:
        return dense_order(self.sizes(), c10::get_channels_last_strides_2d(self.sizes())).value_or(Order{});
    case at::MemoryFormat::ChannelsLast3d:
        return dense_order(self.sizes(), c10::get_channels_last_strides_3d(self.sizes())).value_or(Order{});
    default: return {};
    }
}

std::optional<at::MemoryFormat> format_of(const IValue &value)
{
    return value.isNone() ? std::nullopt : std::optional(value.toMemoryFormat());
}

bool clone(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Order order = copy_order(self, format_of(call.args[1]));
    call.give(convert(self, self.scalar_type(), order), self.scalar_type(), order);
    return true;
}

Tensor to_copy(const Tensor &self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
               std::optional<at::Device> where, std::optional<bool> pin_memory, bool non_blocking,
               std::optional<at::MemoryFormat> format)
{
    if (!on_device(self) || (where && where->type() != kDeviceType) || pin_memory.value_or(false) ||
        (layout && *layout != c10::kStrided))
        return at::native::_to_copy(self, dtype, layout, where, pin_memory, non_blocking, format);
    if (where)
        check_index(*where);
    note_line();
    return guarded([&] {
        const at::ScalarType to = dtype.value_or(self.scalar_type());
        const Order order = copy_order(self, format);
        if (C10_UNLIKELY(is_wide(self))) {
            const Tensor source = cpu_now(self, OPQ_REASON_extern_now);
            const Below below;
            return wrap_cpu(source.to(to).resolve_conj().resolve_neg(), order);
        }
        const Value value = convert(self, to, order);
        return wrap(value, to, order);
    });
}

// ---- copy_

void copy_in(const Tensor &source, const Tensor &target)
{
    const bool same_shape = source.sizes() == target.sizes() && !is_wide(target);
    const Order order = same_shape ? dense_order(target.sizes(), target.strides()).value_or(Order{}) : Order{};
    const Tensor shaped = is_wide(target) ? source.expand(target.sizes()) : source;
    write_result(target, {upload(shaped.to(target.scalar_type()), order), target.scalar_type(), order});
}

void copy_on_device(const Tensor &source, const Tensor &target)
{
    const bool same_shape = source.sizes() == target.sizes();
    const Order order = same_shape ? dense_order(target.sizes(), target.strides()).value_or(Order{}) : Order{};
    write_result(target, {convert(source, target.scalar_type(), order), target.scalar_type(), order});
}

// What `x[i] += 1` ends with: Python puts x[i] where it is.
bool lie_alike(const Tensor &a, const Tensor &b)
{
    return on_device(a) && on_device(b) && shares_memory(a, b) && a.sizes() == b.sizes() &&
           a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
           a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// A few contiguous elements, to a CPU tensor like them. False: nothing has happened.
bool copied_plainly(const Tensor &source, const Tensor &target)
{
    if (!on_device(source) || !few_bytes_in_order(target) || source.scalar_type() != target.scalar_type() ||
        source.sizes() != target.sizes() || !source.is_contiguous() || source.is_neg() || source.is_conj() ||
        !impl_or_null(source))
        return false;
    const auto there = in_place(source, OPQ_REASON_copy_to_host);
    if (there)
        std::memcpy(target.mutable_data_ptr(), there->data, target.nbytes());
    return there.has_value();
}

Tensor copy_from(const Tensor &source, const Tensor &given, bool)
{
    note_line();
    if (copied_plainly(source, given))
        return given;
    const Tensor self = over_token(source), target = over_token(given);
    const std::vector<int64_t> shape = at::infer_size(target.sizes(), self.sizes()); // throws in PyTorch's words
    TORCH_CHECK(target.sizes() == IntArrayRef(shape), "output with shape ", target.sizes(),
                " doesn't match the broadcast shape ", IntArrayRef(shape));
    if (lie_alike(self, target))
        return given;
    return guarded([&] {
        if (!on_device(target)) {
            const Below below;
            target.copy_(cpu_now(self, OPQ_REASON_copy_to_host));
        } else if (overlaps_itself(target) || overlaps_partly(target, self)) {
            static const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
            Stack stack{target, self, false};
            run_on_cpu(op, &stack);
        } else if (!on_device(self) || is_wide(target)) {
            const Tensor cpu = cpu_now(self, OPQ_REASON_extern_now);
            const Below below;
            copy_in(cpu, target);
        } else {
            copy_on_device(self, target);
        }
        return given;
    });
}

Tensor copy_from_and_resize(const Tensor &self, const Tensor &target)
{
    if (self.sizes() != target.sizes())
        target.resize_(self.sizes());
    return copy_from(self, target, false);
}

at::Scalar local_scalar_dense(const Tensor &self)
{
    note_line();
    if (self.numel() == 1 && !self.is_neg() && !self.is_conj() && impl_or_null(self))
        if (const auto there = in_place(self, OPQ_REASON_item))
            switch (self.scalar_type()) {
            case at::kFloat: return *reinterpret_cast<const float *>(there->data);
            case at::kDouble: return *reinterpret_cast<const double *>(there->data);
            case at::kLong: return *reinterpret_cast<const int64_t *>(there->data);
            case at::kInt: return *reinterpret_cast<const int32_t *>(there->data);
            case at::kBool: return *reinterpret_cast<const bool *>(there->data);
            default: break;
            }
    const Tensor cpu = cpu_now(self, OPQ_REASON_item);
    const Below below;
    return cpu.item();
}

bool equal(const Tensor &self, const Tensor &other)
{
    note_line();
    check_device(self, "equal");
    check_device(other, "equal");
    if (self.sizes() != other.sizes())
        return false;
    const Tensor a = cpu_now(self, OPQ_REASON_item);
    const Tensor b = cpu_now(other, OPQ_REASON_item);
    const Below below;
    return at::equal(a, b);
}

// ---- filling. Without a number, with zeros, which more dtypes have than numbers.

Value filled(const std::optional<at::Scalar> &value, const Tensor &like, const Order &order)
{
    if (C10_UNLIKELY(is_wide(like)))
        decline(opq_fail(OPQ_UNSUPPORTED, "a tensor of %lld dimensions", static_cast<long long>(like.dim())));
    const Dims memory = ordered(like.sizes(), order);
    const opq_dtype dtype = core_dtype(like.scalar_type());
    if (like.numel() == 1 && (dtype == OPQ_f16 || dtype == OPQ_bf16)) // as the CPU does it: there a large number is infinite
        return cast(full(value.value_or(0), OPQ_f64, memory), dtype);
    if (!is_raw(dtype))
        return full(value.value_or(0), dtype, memory);
    const Below below;
    const auto options = at::TensorOptions().device(c10::kCPU).dtype(like.scalar_type());
    return upload(value ? at::full(memory, *value, options) : at::zeros(memory, options), Order{});
}

bool fill_scalar(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Order order = copy_order(self, std::nullopt);
    const std::optional<at::Scalar> value = call.row == OPQ_OP_const ? std::nullopt : std::optional(call.scalar(1));
    call.give(filled(value, self, order), self.scalar_type(), order);
    return true;
}

bool fill_tensor(Call &call)
{
    const Tensor &self = call.tensor(0), &value = call.tensor(1);
    TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
                " dimensions.");
    if (is_raw(self) || is_raw(value))
        return false;
    const Value one = cast(call.operand(1), core_dtype(self.scalar_type()));
    call.give(self.dim() == 0 ? one : expand(one, self.sizes()), self.scalar_type());
    return true;
}

// Numbers that become tensors are converted as the CPU converts them; fill_() is stricter.
Tensor scalar_tensor(const at::Scalar &value, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device>, std::optional<bool> pin_memory)
{
    note_line();
    const Below below;
    const Tensor cpu = at::scalar_tensor(value, dtype, layout, c10::Device(c10::kCPU), pin_memory);
    return is_raw(cpu) ? wrap_cpu(cpu, Order{}) : wrap(scalar_of(cpu), cpu.scalar_type());
}

Tensor zero_tensor(IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                   std::optional<at::Device>, std::optional<bool>)
{
    return at::zeros(sizes, at::TensorOptions().dtype(dtype).device(device()));
}

Tensor &resize_and_copy(Tensor &out, const Tensor &cpu)
{
    if (out.numel() != cpu.numel())
        out.resize_(cpu.sizes());
    guarded([&] { write(out, reshape(upload(cpu, Order{}), out.sizes())); });
    return out;
}

bool is(const at::Scalar &number, int64_t value) { return number.isIntegral(false) && number.equal(value); }

// How many numbers there are from start to end by integers that every dtype counts alike; -1: PyTorch counts, or refuses.
int64_t whole_steps(const at::Scalar &start, const at::Scalar &end, const at::Scalar &step, opq_dtype dtype)
{
    for (const at::Scalar *const number : {&start, &end, &step})
        if (!number->isIntegral(false) || number->type() == at::kUInt64 || std::abs(number->toLong()) > INT32_MAX)
            return -1;
    const int64_t by = step.toLong(), way = end.toLong() - start.toLong();
    const bool counts = dtype == OPQ_i64 || dtype == OPQ_i32 || dtype == OPQ_f32 || dtype == OPQ_f64;
    if (!counts || by == 0 || (by > 0 ? way < 0 : way > 0))
        return -1;
    return (way + by - (by > 0 ? 1 : -1)) / by;
}

Tensor &arange_out(const at::Scalar &start, const at::Scalar &end, const at::Scalar &step, Tensor &out)
{
    note_line();
    const opq_dtype dtype = core_dtype(out.scalar_type());
    int64_t count = whole_steps(start, end, step, dtype);
    if (count < 0)
        try { // the length, and most error messages, from the meta kernel
            const Below below;
            Tensor meta = at::empty({0}, out.options().device(c10::kMeta));
            count = at::arange_out(meta, start, end, step).numel();
        } catch (const std::exception &) { // integers whose step is a fraction are for the CPU kernel to judge
            Tensor cpu = at::empty({0}, out.options().device(c10::kCPU));
            const Below below;
            return resize_and_copy(out, at::arange_out(cpu, start, end, step));
        }
    if (out.numel() != 0 && out.numel() != count)
        TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " which is ", out.numel(),
                   " does not match the computed number of elements ", count,
                   ". Note that this may occur as a result of ",
                   "rounding error. The out tensor will be resized to a tensor of shape (", count, ",).");
    if (out.numel() != count)
        out.resize_({count});
    guarded([&] {
        TORCH_CHECK_NOT_IMPLEMENTED(!is_raw(dtype) && dtype != OPQ_bool, "\"arange_cpu\" not implemented for '",
                                    out.scalar_type(), "'");
        const opq_dtype compute = is_float(dtype) ? (dtype == OPQ_f64 ? OPQ_f64 : OPQ_f32) : OPQ_i64;
        Value value = cast(iota(count), compute);
        if (!is(step, 1))
            value = record(OPQ_OP_mul, {value, scalar(step, compute)});
        if (!is(start, 0))
            value = record(OPQ_OP_add, {value, scalar(start, compute)});
        write(out, reshape(value, out.sizes())); // a tensor of as many elements keeps its shape
    });
    return out;
}

Tensor &eye_out(int64_t rows, int64_t columns, Tensor &out)
{
    note_line();
    TORCH_CHECK(rows >= 0, "n must be greater or equal to 0, got ", rows);
    TORCH_CHECK(columns >= 0, "m must be greater or equal to 0, got ", columns);
    out.resize_({rows, columns});
    guarded([&] {
        const Value row = iota({rows, columns}, 0);
        const Value column = iota({rows, columns}, 1);
        const Value diagonal = record(OPQ_OP_eq, {row, column});
        if (is_raw(out))
            copy_on_device(wrap(diagonal), out);
        else
            write(out, diagonal);
    });
    return out;
}

Tensor &eye_square_out(int64_t rows, Tensor &out) { return eye_out(rows, rows, out); }

// ---- a copy of self with one window replaced

template <class Window> Tensor scatter_into(const Tensor &self, const Tensor &source, Window window)
{
    const Below below;
    const Tensor result = self.clone();
    const Tensor slot = window(result);
    TORCH_CHECK(slot.sizes() == source.sizes(),
                "expected src to have a size equal to the slice of self. src size = ", source.sizes(),
                ", slice size = ", slot.sizes());
    slot.copy_(source);
    return result;
}

Tensor slice_scatter(const Tensor &self, const Tensor &source, int64_t dim, std::optional<int64_t> start,
                     std::optional<int64_t> end, int64_t step)
{
    return scatter_into(self, source, [&](const Tensor &t) { return t.slice(dim, start, end, step); });
}

Tensor select_scatter(const Tensor &self, const Tensor &source, int64_t dim, int64_t index)
{
    return scatter_into(self, source, [&](const Tensor &t) { return t.select(dim, index); });
}

Tensor diagonal_scatter(const Tensor &self, const Tensor &source, int64_t offset, int64_t dim1, int64_t dim2)
{
    return scatter_into(self, source, [&](const Tensor &t) { return t.diagonal(offset, dim1, dim2); });
}

Tensor as_strided_scatter(const Tensor &self, const Tensor &source, IntArrayRef size, IntArrayRef stride,
                          std::optional<int64_t> offset)
{
    return scatter_into(self, source, [&](const Tensor &t) { return t.as_strided(size, stride, offset); });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "clone", &clone);
    adapt(library, "fill.Scalar", &fill_scalar);
    adapt(library, "zero", &fill_scalar, OPQ_OP_const);
    adapt(library, "fill.Tensor", &fill_tensor);
    library.impl("_to_copy", OPQ_KERNEL(to_copy));
    library.impl("_copy_from", OPQ_KERNEL(copy_from));
    library.impl("_copy_from_and_resize", OPQ_KERNEL(copy_from_and_resize));
    library.impl("_local_scalar_dense", OPQ_KERNEL(local_scalar_dense));
    library.impl("scalar_tensor", OPQ_KERNEL(scalar_tensor));
    library.impl("equal", OPQ_KERNEL(equal));
    library.impl("_efficientzerotensor", OPQ_KERNEL(zero_tensor));
    library.impl("arange.start_out", OPQ_KERNEL(arange_out));
    library.impl("eye.out", OPQ_KERNEL(eye_square_out));
    library.impl("eye.m_out", OPQ_KERNEL(eye_out));
    library.impl("slice_scatter", OPQ_KERNEL(slice_scatter));
    library.impl("select_scatter", OPQ_KERNEL(select_scatter));
    library.impl("diagonal_scatter", OPQ_KERNEL(diagonal_scatter));
    library.impl("as_strided_scatter", OPQ_KERNEL(as_strided_scatter));
}

} // namespace

} // namespace opq
