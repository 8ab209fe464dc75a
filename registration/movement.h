// Elements at other places: what files share that say an operator by views and computed places.
#pragma once

#include "adapter.h"

namespace opq
{

// A tensor that is moved and not computed with, of any dtype: its value as it lies in memory. PyTorch's operators of this kind keep
// the memory order of channels-last tensors and give others row-major.
struct Moved {
    Value value;
    Order order;
    int64_t at(int64_t dim) const; // where a logical dim is in memory
};
Moved moved(const Call &call, size_t i);
// In any memory order, as a copy of it would be.
Moved kept_as_it_lies(const Call &call, size_t i);
// The memory order of channels-last formats: [batch, space .., channels].
Order last_order(int64_t rank);
// The order of a tensor that PyTorch takes for channels-last; else row-major.
Order format_order(const Tensor &tensor);
// Gives a value in the logical order of its dims, laid out in this order, or as the tensor's format wants.
void give_ordered(Call &call, const Value &value, at::ScalarType dtype, const Order &order);
void give_formatted(Call &call, const Value &value, const Tensor &like);

// ---- between the device's memory and the host's
struct ReleaseBuffer {
    void operator()(opq_buffer *buffer) const { opq_buffer_release(buffer); }
};
using Memory = std::unique_ptr<opq_buffer, ReleaseBuffer>;
// A tensor's first element in memory, where its strides hold; while `memory` is kept nothing is written there.
struct InPlace {
    Memory memory;
    char *data;
};
// What lies in memory, or will when its cell's value is computed, is read there and not brought side by side first: looking at y[i]
// needs no kernel. Nothing: it is no part of a value of its dtype. Negation bits are left to the caller.
std::optional<InPlace> in_place(const Tensor &tensor, opq_reason reason);
// A CPU tensor whose bytes are its elements, row-major, and so few that a copy is not worth a kernel.
bool few_bytes_in_order(const Tensor &cpu);
Order transposed(int64_t rank); // the last two dims the other way round
// What a CPU tensor has, into memory for its elements in that order.
void copy_ordered(const Tensor &source, const Order &order, void *memory);

// An index tensor as i64; declines for other than integers.
Value index_values(const Call &call, const Tensor &index);

// Along all axes, or along one.
Value slice(const Value &value, IntArrayRef shape, IntArrayRef starts, IntArrayRef steps);
Value slice(const Value &value, int64_t axis, int64_t start, int64_t count, int64_t step = 1);
Value concat(c10::ArrayRef<Value> parts, int64_t axis);
// `number` around the value, or, where a count is negative, less of the value: per dim.
Value padded(const Value &value, const at::Scalar &number, IntArrayRef low, IntArrayRef high);
// 0, 1, .. as i64: of one axis, or along one axis of a shape.
Value iota(int64_t count);
Value iota(IntArrayRef shape, int64_t axis);
// Row-major places in the dims so far (none: no value), and in one more of this size.
Value next_place(const Value &places, int64_t size, const Value &at);
// The value with axes first, first + 1, .. read at these places, each i64[n]: a grid of places, read by one index_select.
Value at_places(const Value &value, int64_t first, c10::ArrayRef<Value> places);
// The value with the places offset + index * strides replaced by a part.
Value updated(const Value &value, const Value &part, int64_t offset, IntArrayRef strides);
// The same in memory of its own: what is read at several places is computed once, and not again for each of them.
Value stored(const Value &value);
// A gather along the innermost dim costs several times what copying its parts does. Few elements gain more from being one kernel with
// what follows; with more of them operators put that dim together from parts.
inline bool worth_parts(int64_t elements) { return elements > 1 << 14; }

} // namespace opq
