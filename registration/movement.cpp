// Operators that move elements by geometry: flips, rolls, triangles, shuffles. Each is a view, or an index_select whose places are
// computed in the kernel that reads through it, so that it fuses with what comes behind it.
#include "movement.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <algorithm>

namespace opq
{

int64_t Moved::at(int64_t dim) const
{
    return order.plain() ? dim : std::find(order.perm.begin(), order.perm.end(), dim) - order.perm.begin();
}

Order last_order(int64_t rank)
{
    Order order;
    order.perm.push_back(0);
    for (int64_t dim = 2; dim < rank; ++dim)
        order.perm.push_back(dim);
    order.perm.push_back(1);
    return order;
}

Order format_order(const Tensor &tensor)
{
    const bool row_major = is_raw(tensor) || tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
    return row_major ? Order{} : last_order(tensor.dim());
}

Moved moved(const Call &call, size_t i)
{
    const Tensor &tensor = call.tensor(i);
    check_device(tensor, call.name());
    Order order = format_order(tensor);
    Value value = read_ordered(tensor, static_cast<int>(tensor.dim()), order);
    return {std::move(value), std::move(order)};
}

Moved kept_as_it_lies(const Call &call, size_t i)
{
    const Tensor &tensor = call.tensor(i);
    check_device(tensor, call.name());
    Order order = result_order({&tensor}, tensor.sizes());
    Value value = read_ordered(tensor, static_cast<int>(tensor.dim()), order);
    return {std::move(value), std::move(order)};
}

void give_ordered(Call &call, const Value &value, at::ScalarType dtype, const Order &order)
{
    call.give(order.plain() ? value : permute(value, order.perm), dtype, order);
}

void give_formatted(Call &call, const Value &value, const Tensor &like)
{
    give_ordered(call, value, like.scalar_type(), format_order(like));
}

Value slice(const Value &value, IntArrayRef shape, IntArrayRef starts, IntArrayRef steps)
{
    return record_typed(OPQ_OP_slice, value.dtype(), shape, {value},
                        {attr_ints(OPQ_ATTR_start, starts), attr_ints(OPQ_ATTR_step, steps)});
}

Value slice(const Value &value, int64_t axis, int64_t start, int64_t count, int64_t step)
{
    const auto rank = static_cast<size_t>(value.rank());
    Dims shape = shape_of(value), starts(rank, 0), steps(rank, 1);
    shape[static_cast<size_t>(axis)] = count;
    starts[static_cast<size_t>(axis)] = start;
    steps[static_cast<size_t>(axis)] = step;
    return slice(value, shape, starts, steps);
}

Value concat(c10::ArrayRef<Value> parts, int64_t axis)
{
    return record_list(OPQ_OP_concat, parts, {attr_int(OPQ_ATTR_axis, axis)});
}

Value padded(const Value &value, const at::Scalar &number, IntArrayRef low, IntArrayRef high)
{
    const opq_dtype dtype = value.dtype();
    Dims shape = shape_of(value);
    for (size_t d = 0; d < low.size(); ++d)
        shape[d] += low[d] + high[d];
    opq_attr around{};
    around.key = OPQ_ATTR_value;
    around.is_int = !is_float(dtype);
    if (dtype == OPQ_f16)
        around.number.f = number.to<at::Half>();
    else if (dtype == OPQ_bf16)
        around.number.f = number.to<at::BFloat16>();
    else if (dtype == OPQ_f32)
        around.number.f = number.to<float>();
    else if (dtype == OPQ_f64)
        around.number.f = number.to<double>();
    else if (dtype == OPQ_bool)
        around.number.i = number.to<bool>();
    else
        around.number.i = number.to<int64_t>();
    return record_typed(OPQ_OP_pad, dtype, shape, {value}, {attr_ints(OPQ_ATTR_start, low), around});
}

Value iota(IntArrayRef shape, int64_t axis)
{
    return record_typed(OPQ_OP_iota, OPQ_i64, shape, {}, {attr_int(OPQ_ATTR_axis, axis)});
}

Value iota(int64_t count) { return iota({count}, 0); }

Value next_place(const Value &places, int64_t size, const Value &at)
{
    return places ? plus(times(places, scalar(size)), at) : at;
}

Value at_places(const Value &value, int64_t first, c10::ArrayRef<Value> places)
{
    const Dims whole = shape_of(value);
    Dims joined(whole.begin(), whole.begin() + first);
    Value linear;
    int64_t count = 1;
    for (size_t i = 0; i < places.size(); ++i) {
        Dims along(places.size(), 1);
        along[i] = shape_of(places[i])[0];
        const Value here = reshape(places[i], along);
        const int64_t size = whole[static_cast<size_t>(first) + i];
        linear = next_place(linear, size, here);
        count *= size;
    }
    joined.push_back(count);
    joined.append(whole.begin() + first + static_cast<int64_t>(places.size()), whole.end());
    return record(OPQ_OP_index_select, {reshape(value, joined), linear}, {attr_int(OPQ_ATTR_axis, first)});
}

Value updated(const Value &value, const Value &part, int64_t offset, IntArrayRef strides)
{
    const Dims sizes = shape_of(part);
    return record(
        OPQ_OP_update, {value, part},
        {attr_int(OPQ_ATTR_offset, offset), attr_ints(OPQ_ATTR_sizes, sizes), attr_ints(OPQ_ATTR_strides, strides)});
}

Value stored(const Value &value)
{
    const Dims shape = shape_of(value);
    return updated(record_typed(OPQ_OP_undefined, value.dtype(), shape, {}), value, 0, ordered_strides(shape, Order{}));
}

namespace
{

// ---- the same elements in another order

// flip(self, dims)
bool flip(Call &call)
{
    const Tensor &self = call.tensor(0);
    const auto flipped = at::dim_list_to_bitset(call.dims(1), self.dim());
    const auto [value, order] = kept_as_it_lies(call, 0);
    const Dims shape = shape_of(value);
    Dims starts(shape.size(), 0), steps(shape.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
        const auto dim = order.plain() ? i : static_cast<size_t>(order.perm[i]);
        if (!flipped[dim] || shape[i] == 0)
            continue;
        starts[i] = shape[i] - 1;
        steps[i] = -1;
    }
    const Value result = shape.empty() ? value : slice(value, shape, starts, steps);
    call.give(result, self.scalar_type(), order);
    return true;
}

// The element that comes first when an axis is rolled.
int64_t rolled_start(int64_t size, int64_t shift) { return ((size - shift % size) % size + size) % size; }

Value rolled_by_parts(const Value &value, int64_t axis, int64_t shift)
{
    const int64_t size = shape_of(value)[static_cast<size_t>(axis)], start = rolled_start(size, shift);
    if (start == 0)
        return value;
    return concat({slice(value, axis, start, size - start), slice(value, axis, 0, start)}, axis);
}

// Where the elements of a rolled axis come from.
Value rolled_places(int64_t size, int64_t shift)
{
    const int64_t start = rolled_start(size, shift);
    if (start == 0)
        return iota(size);
    const Value from = record(OPQ_OP_add, {iota(size), scalar(start)});
    return record(OPQ_OP_where,
                  {record(OPQ_OP_ge, {from, scalar(size)}), record(OPQ_OP_sub, {from, scalar(size)}), from});
}

// PyTorch rolls by joining two parts, and the result is channels-last if both are taken for that.
bool parts_are_last(const Tensor &self, int64_t dim, int64_t shift)
{
    const int64_t size = self.size(dim), moved = (shift % size + size) % size;
    Dims part(self.sizes().begin(), self.sizes().end());
    for (const int64_t count : {moved, size - moved}) {
        part[static_cast<size_t>(dim)] = count;
        if (self.dim() == 4 ? !c10::is_channels_last_strides_2d(IntArrayRef(part), self.strides())
                            : !c10::is_channels_last_strides_3d(IntArrayRef(part), self.strides()))
            return false;
    }
    return true;
}

// roll(self, shifts, dims); without dims the elements are one row
bool roll(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Dims shifts = call.dims(1), dims = call.dims(2);
    if (shifts.empty() || (dims.empty() ? shifts.size() != 1 : shifts.size() != dims.size()))
        return false;
    if (self.numel() == 0) {
        const Moved nothing = kept_as_it_lies(call, 0);
        for (const int64_t dim : dims)
            std::ignore = normal_axis(dim, self.dim());
        call.give(nothing.value, self.scalar_type(), nothing.order);
        return true;
    }
    Moved given = moved(call, 0);
    if (dims.empty()) {
        const Value row = reshape(read(self), {self.numel()});
        const Value result = worth_parts(self.numel()) ? rolled_by_parts(row, 0, shifts[0])
                                                       : at_places(row, 0, {rolled_places(self.numel(), shifts[0])});
        call.give(reshape(result, self.sizes()), self.scalar_type());
        return true;
    }
    if (self.dim() == 0)
        return false;
    for (size_t i = 0; i < dims.size() && !given.order.plain(); ++i)
        if (!parts_are_last(self, normal_axis(dims[i], self.dim()), shifts[i]))
            given = {read(self), {}};
    const Dims shape = shape_of(given.value);
    Dims shift(shape.size(), 0); // per dim of memory
    int64_t first = self.dim(), last = -1;
    for (size_t i = 0; i < dims.size(); ++i) {
        const int64_t axis = given.at(normal_axis(dims[i], self.dim()));
        shift[static_cast<size_t>(axis)] += shifts[i] % shape[static_cast<size_t>(axis)];
        first = std::min(first, axis);
        last = std::max(last, axis);
    }
    Value value = given.value;
    if (last == self.dim() - 1 && worth_parts(self.numel()))
        value = rolled_by_parts(value, last, shift.back()), --last;
    std::vector<Value> places;
    for (int64_t axis = first; axis <= last; ++axis)
        places.push_back(rolled_places(shape[static_cast<size_t>(axis)], shift[static_cast<size_t>(axis)]));
    call.give(places.empty() ? value : at_places(value, first, places), self.scalar_type(), given.order);
    return true;
}

// ---- triangles: tril(self, diagonal), triu(self, diagonal)

template <bool upper> bool triangle(Call &call)
{
    const Tensor &self = call.tensor(0);
    if (self.dim() < 2)
        return false;
    const int64_t diagonal = call.integer(1);
    const Value x = call.in(0);
    const Dims matrix{self.size(-2), self.size(-1)};
    const Value column = iota(matrix, 1);
    Value row = iota(matrix, 0);
    if (diagonal != 0)
        row = record(OPQ_OP_add, {row, scalar(diagonal)});
    const Value inside = record(upper ? OPQ_OP_ge : OPQ_OP_le, {column, row});
    call.give(record(OPQ_OP_where, {inside, x, scalar(0, x.dtype())}));
    return true;
}

// ---- shuffles: a dim becomes two, which change places with others

// PyTorch has no pixel shuffle of volumes laid out channels-last.
bool shuffles(const Tensor &self, int64_t factor)
{
    return self.dim() >= 3 && factor > 0 && factor <= 65536 &&
           self.suggest_memory_format() != at::MemoryFormat::ChannelsLast3d;
}

// pixel_shuffle(self, upscale_factor): [.., c r r, h, w] -> [.., c, h r, w r]; pixel_unshuffle is its inverse
bool pixel_shuffle(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t rank = self.dim(), r = call.integer(1);
    if (!shuffles(self, r) || self.size(-3) % (r * r) != 0)
        return false;
    check_device(self, call.name());
    const int64_t channels = self.size(-3) / (r * r), height = self.size(-2), width = self.size(-1);
    const int64_t outer = c10::multiply_integers(self.sizes().slice(0, static_cast<size_t>(rank - 3)));
    Dims shape(self.sizes().begin(), self.sizes().end() - 3);
    shape.append({channels, height * r, width * r});
    const Value split = reshape(read(self), {outer * channels, r, r, height, width});
    give_formatted(call, reshape(permute(split, {0, 3, 1, 4, 2}), shape), self);
    return true;
}

bool pixel_unshuffle(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t rank = self.dim(), r = call.integer(1);
    if (!shuffles(self, r) || self.size(-2) % r != 0 || self.size(-1) % r != 0)
        return false;
    check_device(self, call.name());
    if (self.numel() == 0) { // which PyTorch leaves in its shape
        call.give(read(self), self.scalar_type());
        return true;
    }
    const int64_t channels = self.size(-3), height = self.size(-2) / r, width = self.size(-1) / r;
    const int64_t outer = c10::multiply_integers(self.sizes().slice(0, static_cast<size_t>(rank - 3)));
    Dims shape(self.sizes().begin(), self.sizes().end() - 3);
    shape.append({channels * r * r, height, width});
    const Value split = reshape(read(self), {outer * channels, height, r, width, r});
    give_formatted(call, reshape(permute(split, {0, 2, 4, 1, 3}), shape), self);
    return true;
}

// channel_shuffle(self, groups): [n, g c, ..] -> [n, c g, ..]
bool channel_shuffle(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t groups = call.integer(1);
    if (self.dim() <= 2 || groups <= 0 || self.size(1) % groups != 0 || self.numel() == 0)
        return false;
    check_device(self, call.name());
    const int64_t inside = self.numel() / (self.size(0) * self.size(1));
    const Value split = reshape(read(self), {self.size(0), groups, self.size(1) / groups, inside});
    give_formatted(call, reshape(permute(split, {0, 2, 1, 3}), self.sizes()), self);
    return true;
}

// linalg_cross(self, other, *, dim): three parts of each along that dim, of size 3
bool cross(Call &call)
{
    const Tensor &self = call.tensor(0), &other = call.tensor(1);
    if (self.scalar_type() != other.scalar_type() || self.dim() != other.dim() || self.dim() == 0 || is_raw(self))
        return false;
    const int64_t axis = normal_axis(call.integer(2), self.dim());
    if (self.size(axis) != 3 || other.size(axis) != 3)
        return false;
    const Value a = call.in(0), b = call.in(1);
    c10::SmallVector<Value, 3> parts;
    for (int64_t i = 0; i < 3; ++i) {
        const int64_t j = (i + 1) % 3, k = (i + 2) % 3;
        const Value plus_part = times(slice(a, axis, j, 1), slice(b, axis, k, 1));
        parts.push_back(record(OPQ_OP_sub, {plus_part, times(slice(a, axis, k, 1), slice(b, axis, j, 1))}));
    }
    call.give(concat(parts, axis));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "linalg_cross", &cross);
    adapt(library, "flip", &flip);
    adapt(library, "roll", &roll);
    adapt(library, "tril", &triangle<false>);
    adapt(library, "triu", &triangle<true>);
    adapt(library, "pixel_shuffle", &pixel_shuffle);
    adapt(library, "pixel_unshuffle", &pixel_unshuffle);
    adapt(library, "channel_shuffle", &channel_shuffle);
}

} // namespace

} // namespace opq
