// Padding with a number, and padding that reads its own operand: reflection and replication of the last one, two or three dims, with
// their gradients.
//
// Padded elements are read at computed places, one index_select for all dims, so that what follows a padding is part of its kernel.
// Of a large tensor the innermost dim is put together from parts instead. A gradient goes the other way dim by dim: what was read for an end is added to where it came from. `padding` is
// {low, high} of the last dim, then of the one before.
#include "movement.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/select_backward_native.h>
#include <ATen/ops/slice_backward_native.h>
#include <algorithm>

namespace opq
{

namespace
{

enum class Kind { reflection, replication };

struct Padding {
    Dims low, high; // per padded dim, in the order of the dims
    int64_t first;  // of the padded dims
};

// False: arguments for PyTorch to judge. `spatial`: how many dims are padded.
bool read_padding(const Tensor &self, const Dims &padding, int64_t spatial, Kind kind, Padding &out)
{
    if (static_cast<int64_t>(padding.size()) != 2 * spatial || self.dim() < spatial + 1 || self.dim() > spatial + 2)
        return false;
    out.first = self.dim() - spatial;
    for (int64_t dim = 0; dim < self.dim(); ++dim) // of a batch alone there may be none
        if (self.size(dim) == 0 && (dim > 0 || self.dim() == spatial + 1))
            return false;
    for (int64_t i = 0; i < spatial; ++i) {
        const auto at = static_cast<size_t>(2 * (spatial - 1 - i));
        const int64_t low = padding[at], high = padding[at + 1], size = self.size(out.first + i);
        if (size + low + high < 1 || (kind == Kind::reflection && (low >= size || high >= size)))
            return false;
        out.low.push_back(low);
        out.high.push_back(high);
    }
    return true;
}

// Where padded elements of a dim come from.
Value places(Kind kind, int64_t size, int64_t low, int64_t high)
{
    const Value last = scalar(size - 1);
    Value at = iota(size + low + high);
    if (low != 0)
        at = record(OPQ_OP_sub, {at, scalar(low)});
    if (low == 0 && high == 0)
        return at;
    if (kind == Kind::replication)
        return record(OPQ_OP_minimum, {record(OPQ_OP_maximum, {at, scalar(0)}), last});
    const Value from_last = record(OPQ_OP_sub, {last, record(OPQ_OP_abs, {at})}); // past the end: negative
    return record(OPQ_OP_sub, {last, record(OPQ_OP_abs, {from_last})});
}

// The padded dim from parts.
Value padded(Kind kind, const Value &value, int64_t axis, int64_t low, int64_t high)
{
    const int64_t size = shape_of(value)[static_cast<size_t>(axis)], cut = std::max<int64_t>(-low, 0);
    std::vector<Value> parts;
    const auto repeat = [&](int64_t at, int64_t count) {
        Dims shape = shape_of(value);
        shape[static_cast<size_t>(axis)] = count;
        return expand(slice(value, axis, at, 1), shape);
    };
    if (low > 0)
        parts.push_back(kind == Kind::reflection ? slice(value, axis, low, low, -1) : repeat(0, low));
    const int64_t kept = size - cut - std::max<int64_t>(-high, 0);
    if (kept > 0)
        parts.push_back(slice(value, axis, cut, kept));
    if (high > 0)
        parts.push_back(kind == Kind::reflection ? slice(value, axis, size - 2, high, -1) : repeat(size - 1, high));
    return parts.size() == 1 ? parts[0] : concat(parts, axis);
}

// (self, padding)
template <Kind kind, int64_t spatial> bool pad(Call &call)
{
    const Tensor &self = call.tensor(0);
    Padding padding;
    if (!read_padding(self, call.dims(1), spatial, kind, padding))
        return false;
    check_device(self, call.name());
    // Channels-last dims are padded as they lie in memory; without a batch the first padded dim passes for channels.
    const bool batch = self.dim() == spatial + 2;
    const Moved given = batch ? moved(call, 0) : Moved{read(self), {}};
    Value result = given.value;
    int64_t computed = spatial;
    if (given.order.plain() && worth_parts(self.numel()))
        result = padded(kind, result, self.dim() - 1, padding.low.back(), padding.high.back()), --computed;
    std::vector<Value> from;
    for (int64_t i = 0; i < computed; ++i)
        from.push_back(places(kind, self.size(padding.first + i), padding.low[static_cast<size_t>(i)],
                              padding.high[static_cast<size_t>(i)]));
    if (computed > 0)
        result = at_places(result, given.at(padding.first), from);
    if (batch)
        call.give(result, self.scalar_type(), given.order);
    else
        give_formatted(call, result, self);
    return true;
}

// ---- numbers around the operand

// constant_pad_nd(self, pad, value)
bool constant_pad(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Dims padding = call.dims(1);
    const auto rank = static_cast<size_t>(self.dim());
    if (padding.size() % 2 != 0 || padding.size() > 2 * rank || is_raw(self))
        return false;
    if (rank == 0) {
        call.give(call.in(0));
        return true;
    }
    const bool grows = std::any_of(padding.begin(), padding.end(), [](int64_t count) { return count > 0; });
    const Moved given = grows ? moved(call, 0) : kept_as_it_lies(call, 0);
    Dims low(rank, 0), high(rank, 0);
    for (size_t i = 0; i < rank; ++i) {
        const size_t at = 2 * (rank - 1 - i), in_memory = static_cast<size_t>(given.at(static_cast<int64_t>(i)));
        const bool named = at < padding.size();
        low[in_memory] = named ? padding[at] : 0;
        high[in_memory] = named ? padding[at + 1] : 0;
        const int64_t size = self.size(static_cast<int64_t>(i)), left = size + low[in_memory] + high[in_memory];
        if (left < 0 || low[in_memory] < -size || high[in_memory] < -size) // errors that PyTorch words
            return false;
    }
    const at::Scalar number = grows ? call.scalar(2) : at::Scalar(0); // if it is written nowhere it may be any
    check_fits(number, given.value.dtype());
    call.give(padded(given.value, number, low, high), self.scalar_type(), given.order);
    return true;
}

// ---- gradients

// `added` on top of what `value` has from `start` on.
Value add_at(const Value &value, int64_t axis, int64_t start, const Value &added)
{
    const int64_t size = shape_of(value)[static_cast<size_t>(axis)];
    const int64_t count = shape_of(added)[static_cast<size_t>(axis)];
    std::vector<Value> parts;
    if (start > 0)
        parts.push_back(slice(value, axis, 0, start));
    parts.push_back(plus(slice(value, axis, start, count), added));
    if (start + count < size)
        parts.push_back(slice(value, axis, start + count, size - start - count));
    return concat(parts, axis);
}

// What the elements themselves get; those that negative padding cut off get zeros.
Value kept_back(const Value &grad, int64_t axis, int64_t size, int64_t low, int64_t high)
{
    const int64_t before = std::max<int64_t>(-low, 0), after = std::max<int64_t>(-high, 0);
    std::vector<Value> parts;
    const auto zeros = [&](int64_t count) {
        Dims shape = shape_of(grad);
        shape[static_cast<size_t>(axis)] = count;
        return full(0, grad.dtype(), shape);
    };
    if (before > 0)
        parts.push_back(zeros(before));
    if (size - before - after > 0)
        parts.push_back(slice(grad, axis, std::max<int64_t>(low, 0), size - before - after));
    if (after > 0)
        parts.push_back(zeros(after));
    return parts.size() == 1 ? parts[0] : concat(parts, axis);
}

Value reflected_back(const Value &grad, int64_t axis, int64_t size, int64_t low, int64_t high)
{
    Value result = kept_back(grad, axis, size, low, high);
    if (low > 0)
        result = add_at(result, axis, 1, slice(grad, axis, low - 1, low, -1));
    if (high > 0)
        result = add_at(result, axis, size - 1 - high,
                        slice(grad, axis, shape_of(grad)[static_cast<size_t>(axis)] - 1, high, -1));
    return result;
}

Value replicated_back(const Value &grad, int64_t axis, int64_t size, int64_t low, int64_t high)
{
    Value result = kept_back(grad, axis, size, low, high);
    const int64_t over[] = {axis};
    if (low > 0)
        result = add_at(result, axis, 0, reduce(OPQ_OP_sum, {slice(grad, axis, 0, low)}, over, true));
    if (high > 0)
        result = add_at(result, axis, size - 1,
                        reduce(OPQ_OP_sum, {slice(grad, axis, shape_of(grad)[static_cast<size_t>(axis)] - high, high)},
                               over, true));
    return result;
}

// (grad_output, self, padding)
template <Kind kind, int64_t spatial> bool pad_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &self = call.tensor(1);
    Padding padding;
    if (!read_padding(self, call.dims(2), spatial, kind, padding) || !same_dtype({&grad, &self}) ||
        !at::isFloatingType(self.scalar_type()) || grad.dim() != self.dim())
        return false;
    for (int64_t dim = 0; dim < self.dim(); ++dim) {
        const auto i = static_cast<size_t>(std::max<int64_t>(dim - padding.first, 0));
        const int64_t more = dim < padding.first ? 0 : padding.low[i] + padding.high[i];
        const int64_t cut =
            dim < padding.first ? 0 : std::min<int64_t>(padding.low[i], 0) + std::min<int64_t>(padding.high[i], 0);
        if (grad.size(dim) != self.size(dim) + more || self.size(dim) + cut < 0)
            return false;
    }
    check_device(self, call.name());
    const Value given = call.in(0);
    Value result = cast(given, computing(given.dtype()));
    for (int64_t i = 0; i < spatial; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t axis = padding.first + i, size = self.size(axis);
        result = kind == Kind::reflection ? reflected_back(result, axis, size, padding.low[at], padding.high[at])
                                          : replicated_back(result, axis, size, padding.low[at], padding.high[at]);
    }
    give_formatted(call, cast(result, given.dtype()), self);
    return true;
}

// ---- gradients of parts: zeros around them. PyTorch's kernels write into zeros, which is two sweeps and nothing that fuses.

// `part`, along `dim` from `start` on, in something of these sizes.
Tensor part_in_zeros(const Value &part, IntArrayRef sizes, int64_t dim, int64_t start)
{
    const Dims shape = shape_of(part);
    Dims low(sizes.size(), 0), high = low;
    const auto at = static_cast<size_t>(dim);
    low[at] = start;
    high[at] = sizes[at] - start - shape[at];
    return wrap(padded(part, 0, low, high));
}

bool is_ours(const Tensor &grad, IntArrayRef sizes)
{
    return on_device(grad) && !is_raw(grad) && sizes.size() <= OPQ_RANK_MAX;
}

Tensor select_backward(const Tensor &grad, c10::SymIntArrayRef sym_sizes, int64_t dim, c10::SymInt sym_index)
{
    const auto sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
    const int64_t index = sym_index.guard_int(__FILE__, __LINE__);
    if (!is_ours(grad, sizes) || sizes.size() != static_cast<size_t>(grad.dim()) + 1)
        return at::native::select_backward_symint(grad, sym_sizes, dim, std::move(sym_index));
    note_line();
    dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(sizes.size()));
    const int64_t size = sizes[static_cast<size_t>(dim)];
    Dims one(sizes.begin(), sizes.end());
    one[static_cast<size_t>(dim)] = 1;
    TORCH_CHECK_INDEX(index >= -size && index < size, "select(): index ", index, " out of range for a size of ", size);
    return part_in_zeros(reshape(read(grad), one), sizes, dim, index < 0 ? index + size : index);
}

Tensor slice_backward(const Tensor &grad, c10::SymIntArrayRef sym_sizes, int64_t dim, c10::SymInt sym_start,
                      c10::SymInt sym_end, c10::SymInt sym_step)
{
    const auto sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
    bool ours =
        is_ours(grad, sizes) && sizes.size() == static_cast<size_t>(grad.dim()) && grad.dim() > 0 && sym_step == 1;
    int64_t start = 0;
    if (ours) {
        dim = at::maybe_wrap_dim(dim, grad.dim());
        const int64_t size = sizes[static_cast<size_t>(dim)], given = sym_start.guard_int(__FILE__, __LINE__);
        start = std::clamp<int64_t>(given < 0 ? given + size : given, 0, size);
        ours = start + grad.size(dim) <= size;
    }
    if (!ours)
        return at::native::slice_backward(grad, sizes, dim, sym_start.guard_int(__FILE__, __LINE__),
                                          sym_end.guard_int(__FILE__, __LINE__), sym_step.guard_int(__FILE__, __LINE__));
    note_line();
    return part_in_zeros(read(grad), sizes, dim, start);
}

template <int64_t spatial> void adapt_pads(torch::Library &library)
{
    const std::string tail = "_pad" + std::to_string(spatial) + "d";
    adapt(library, ("reflection" + tail).c_str(), &pad<Kind::reflection, spatial>);
    adapt(library, ("replication" + tail).c_str(), &pad<Kind::replication, spatial>);
    adapt(library, ("reflection" + tail + "_backward").c_str(), &pad_backward<Kind::reflection, spatial>);
    adapt(library, ("replication" + tail + "_backward").c_str(), &pad_backward<Kind::replication, spatial>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "constant_pad_nd", &constant_pad);
    library.impl("select_backward", OPQ_KERNEL(select_backward));
    library.impl("slice_backward", OPQ_KERNEL(slice_backward));
    adapt_pads<1>(library);
    adapt_pads<2>(library);
    adapt_pads<3>(library);
}

} // namespace

} // namespace opq
