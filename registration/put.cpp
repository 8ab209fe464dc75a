// scatter, index_copy and index_fill: elements are set at indices. On the CPU the last of several writes to one place wins.
//
// A few indices are so many selects, where(place == index[k], source[k], ..), which fuse like any elementwise op. More of them, and few
// places of a large tensor, are a routine. Where all writes have one value it is enough to count them.
#include "put.h"

#include "below.h"
#include "movement.h"

namespace opq
{

namespace
{

constexpr int64_t kSelects = 8; // indices along the axis that are compared with each place

Value binary(opq_op op, const Value &a, const Value &b) { return record(op, {a, b}); }

// Indices along `axis` of a target: `index` has the target's rank, and along other dims its extents, or 1 for one index for all.
struct Put {
    const char *name;
    Value target;
    int64_t axis;
    Value index;
    IntArrayRef joined;     // sizes of the dims that the index joins, if it does
    bool in_memory = false; // a write in place to what lies in memory

    // For the op that looks at the index: what an error says.
    std::vector<opq_attr> attrs() const
    {
        std::vector<opq_attr> result{attr_int(OPQ_ATTR_axis, axis), attr_text(OPQ_ATTR_key, name)};
        if (!joined.empty())
            result.push_back(attr_ints(OPQ_ATTR_sizes, joined));
        return result;
    }
    size_t dim() const { return static_cast<size_t>(axis); }
    int64_t size() const { return shape_of(target)[dim()]; }
    int64_t count() const { return shape_of(index)[dim()]; }
    // Along the axis all places of the target, along other dims those of the index.
    Dims places() const
    {
        Dims shape = shape_of(index);
        shape[dim()] = size();
        return shape;
    }
};

// One where an index is in range; others fail the run: ones are read there, from a tensor like the target, which the error shows.
Value one_at(const Put &put, const Value &index)
{
    return record(OPQ_OP_gather, {full(1, put.target.dtype(), shape_of(put.target)), index}, put.attrs());
}

// Where the k-th write goes: bool over the places.
Value hit(const Put &put, int64_t k)
{
    const Value index = slice(put.index, put.axis, k, 1);
    const Value places = iota(put.places(), put.axis);
    return binary(OPQ_OP_bitwise_and, binary(OPQ_OP_eq, places, index), cast(one_at(put, index), OPQ_bool));
}

// What is added up at each place; an index out of range fails the run.
Value add_up(const Put &put, const Value &added)
{
    return record(OPQ_OP_scatter_add, {full(0, OPQ_i64, put.places()), put.index, added}, put.attrs());
}

// Has any write this place? bool over the places.
Value any_hit(const Put &put)
{
    if (put.count() > kSelects)
        return binary(OPQ_OP_ne, add_up(put, full(1, OPQ_i64, shape_of(put.index))), scalar(0));
    Value any = hit(put, 0);
    for (int64_t k = 1; k < put.count(); ++k)
        any = binary(OPQ_OP_bitwise_or, any, hit(put, k));
    return any;
}

// Is it in place, where memory is written whatever is recorded?
bool writes_to_memory(const Call &call) { return call.in_place && opq_cell_in_memory(impl_of(call.tensor(0))->cell()); }

// 0: its memory is no whole number of them.
int64_t elements_of_cell(const Tensor &tensor)
{
    const int64_t bytes = opq_cell_bytes(impl_of(tensor)->cell()), item = static_cast<int64_t>(tensor.itemsize());
    return bytes % item == 0 ? bytes / item : 0;
}

bool are_few(int64_t written, int64_t all)
{
    enum { FEW = 4 };
    return written <= all / FEW;
}

// Few places of a target that is in memory: written there, the others are left alone if nothing else needs the target as it was. Selects
// would read and write all of it, but fuse.
bool writes_few(const Put &put, const Value &source)
{
    return (put.in_memory || opq_value_buffer(put.target.get())) &&
           are_few(c10::multiply_integers(shape_of(source)), c10::multiply_integers(shape_of(put.target)));
}

// `source` has the shape of the index, but is as the target where one index is for all.
Value put_values(const Put &put, const Value &source)
{
    const bool whole = c10::multiply_integers(shape_of(put.index)) == put.count();
    if (put.count() > kSelects || (whole && writes_few(put, source)))
        return record(whole ? OPQ_OP_index_set : OPQ_OP_scatter_set,
                      {put.target, whole ? reshape(put.index, {put.count()}) : put.index, source}, put.attrs());
    Value result = put.target;
    for (int64_t k = 0; k < put.count(); ++k)
        result = record(OPQ_OP_where, {hit(put, k), slice(source, put.axis, k, 1), result});
    return result;
}

// As i64; what else the CPU kernel takes, it has to say itself.
Value index_value(const Call &call, const Tensor &index, bool narrow = false)
{
    if (index.scalar_type() != at::kLong && !(narrow && index.scalar_type() == at::kInt))
        decline(opq_fail(OPQ_UNSUPPORTED, "%s: index of this dtype", call.name()));
    return cast(call.in(index), OPQ_i64);
}

// ---- scatter: an index for each element

// The target is the part of self that the index covers. False: shapes for PyTorch to judge.
bool read_scatter(const Call &call, Put &out)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2);
    if (self.dim() != index.dim() || self.numel() == 0 || index.numel() == 0 || is_raw(self))
        return false;
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    Value covered = lifted(call.in(0));
    for (int64_t i = 0; i < self.dim(); ++i) {
        if (i != axis && index.size(i) > self.size(i))
            return false;
        if (i != axis && index.size(i) < self.size(i))
            covered = slice(covered, i, 0, index.size(i));
    }
    out = {call.name(), covered, axis, lifted(index_value(call, index, true)), {}};
    return true;
}

// Self with the covered part replaced.
Value put_back(const Call &call, const Value &part)
{
    const Tensor &self = call.tensor(0);
    if (self.dim() == 0 || self.sizes() == IntArrayRef(shape_of(part)))
        return reshape(part, self.sizes());
    return updated(call.in(0), part, 0, ordered_strides(self.sizes(), Order{}));
}

// scatter.value(self, dim, index, value)
bool scatter_value(Call &call)
{
    Put put;
    if (!read_scatter(call, put))
        return false;
    const Value value = scalar(call.scalar(3), put.target.dtype());
    call.give(put_back(call, record(OPQ_OP_where, {any_hit(put), value, put.target})));
    return true;
}

// scatter.src(self, dim, index, src): only the part of src under index is used
bool scatter_src(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2), &source = call.tensor(3);
    Put put;
    if (!same_dtype({&self, &source}) || source.dim() != index.dim())
        return false;
    for (int64_t i = 0; i < index.dim(); ++i)
        if (index.size(i) > source.size(i))
            return false;
    if (!read_scatter(call, put))
        return false;
    Value part = call.in(3);
    for (int64_t i = 0; i < index.dim(); ++i)
        if (index.size(i) != source.size(i))
            part = slice(part, i, 0, index.size(i));
    call.give(put_back(call, put_values(put, lifted(part))));
    return true;
}

// one_hot(self, num_classes). As many classes as there are is a shape that depends on data.
bool one_hot(Call &call)
{
    const Tensor &self = call.tensor(0);
    int64_t classes = call.integer(1);
    if (self.numel() == 0 || classes == 0 || classes < -1 || self.scalar_type() != at::kLong)
        return false;
    if (classes == -1) {
        const Below below;
        TORCH_CHECK(self.min().item<int64_t>() >= 0, "Class values must be non-negative.");
        classes = self.max().item<int64_t>() + 1;
    }
    Dims shape(self.sizes().begin(), self.sizes().end());
    shape.push_back(1);
    const Value index = reshape(call.in(0), shape);
    shape.back() = classes;
    const Put put{call.name(), full(0, OPQ_i64, shape), self.dim(), index, {}};
    call.give(cast(any_hit(put), OPQ_i64));
    return true;
}

// ---- index_copy, index_fill: one index for whole slices

Put along(const char *name, const Value &target, int64_t axis, const Value &index)
{
    Dims shape(static_cast<size_t>(target.rank()), 1);
    shape[static_cast<size_t>(axis)] = shape_of(index)[0];
    return {name, target, axis, reshape(index, shape), {}};
}

// Memory as a matrix of lines, each of which a write in place along this axis changes wholly or not at all: how long they are. 0: there are
// none, or self is all of its memory.
int64_t line_size(const Call &call, int64_t axis)
{
    const Tensor &self = call.tensor(0);
    if (self.dim() == 0 || !writes_to_memory(call) || is_wide(self) || self.is_conj() || self.is_neg())
        return 0;
    int64_t size = 1;
    for (int64_t d = self.dim() - 1; d > axis; --d) {
        if (self.size(d) != 1 && self.stride(d) != size)
            return 0;
        size *= self.size(d);
    }
    const int64_t all = elements_of_cell(self);
    bool fits = all > 0 && all % size == 0 && all != self.numel() && self.storage_offset() % size == 0;
    for (int64_t d = 0; d <= axis; ++d)
        fits = fits && (self.size(d) == 1 || (self.stride(d) != 0 && self.stride(d) % size == 0));
    return fits ? size : 0;
}

// index_copy(self, dim, index, source)
bool index_copy(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2), &source = call.tensor(3);
    if (self.numel() == 0 || index.dim() > 1 || index.numel() == 0 || source.dim() != self.dim() || is_raw(self) ||
        !same_dtype({&self, &source}))
        return false;
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    for (int64_t i = 0; i < self.dim(); ++i)
        if (source.size(i) != (i == axis ? index.numel() : self.size(i)))
            return false;
    if (self.dim() == 0 && index.numel() != 1)
        return false;
    const Value where = lifted(index_value(call, index)), given = lifted(call.in(3));
    if (!put_lines(call, axis, where, given))
        call.give(reshape(put_along(call, lifted(call.in(0)), axis, where, given), self.sizes()));
    return true;
}

// index_fill(self, dim, index, value): a number, or a tensor of one
bool index_fill(Call &call)
{
    const Tensor &self = call.tensor(0), &index = call.tensor(2);
    if (self.numel() == 0 || index.dim() > 1 || index.numel() == 0 || is_raw(self) ||
        (call.args[3].isTensor() && (call.tensor(3).dim() != 0 || is_raw(call.tensor(3)))))
        return false;
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    const auto [target, order] = in_memory(call, 0);
    const opq_dtype dtype = target.dtype();
    const Value value = call.args[3].isTensor() ? cast(call.operand(3), dtype) : scalar(call.scalar(3), dtype);
    const int64_t size = self.dim() == 0 ? 1 : self.size(axis);
    if (!on_device(index) && index.scalar_type() != at::kLong)
        return false;
    const Value given = lifted(on_device(index) ? index_value(call, index) : upload(index, Order{})); // as CUDA takes it
    const Value where = wrapped_index(given, size);
    int64_t in_order = axis;
    for (size_t i = 0; i < order.perm.size(); ++i)
        if (order.perm[i] == axis)
            in_order = static_cast<int64_t>(i);
    const Put put = along(call.name(), lifted(target), in_order, where);
    call.give(reshape(record(OPQ_OP_where, {any_hit(put), value, put.target}), shape_of(target)), self.scalar_type(),
              order);
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "scatter.value", &scatter_value);
    adapt(library, "scatter.src", &scatter_src);
    adapt(library, "one_hot", &one_hot);
    adapt(library, "index_copy", &index_copy);
    adapt(library, "index_fill.int_Scalar", &index_fill);
    adapt(library, "index_fill.int_Tensor", &index_fill);
}

} // namespace

Value lifted(const Value &value) { return value.rank() == 0 ? reshape(value, {1}) : value; }

bool put_lines(Call &call, int64_t axis, const Value &index, const Value &source)
{
    const Tensor &self = call.tensor(0);
    const int64_t size = line_size(call, axis);
    const Dims shape = shape_of(source);
    if (size == 0 || !are_few(c10::multiply_integers(shape), self.numel()))
        return false;
    const Put put = along(call.name(), call.in(0), axis, index);
    const Dims places(shape.begin(), shape.begin() + axis + 1);
    Dims beside(places.size(), 1);
    beside.back() = put.count();
    const auto in_lines = [&](const Value &count, int64_t elements) {
        return elements == size ? count : times(count, scalar(elements / size));
    };
    Value line = in_lines(reshape(times(put.index, cast(one_at(put, put.index), OPQ_i64)), beside), self.stride(axis));
    if (self.storage_offset() != 0)
        line = plus(line, scalar(self.storage_offset() / size));
    for (int64_t d = 0; d < axis; ++d)
        if (self.size(d) != 1)
            line = plus(line, in_lines(iota(places, d), self.stride(d)));
    const int64_t count = c10::multiply_integers(places);
    const Below below;
    const Tensor all = self.as_strided({elements_of_cell(self) / size, size}, {size, 1}, 0);
    write(all, record(OPQ_OP_index_set,
                      {call.in(all), reshape(expand(line, places), {count}), reshape(source, {count, size})},
                      {attr_int(OPQ_ATTR_axis, 0), attr_text(OPQ_ATTR_key, call.name())}));
    return true;
}

Value wrapped_index(const Value &index, int64_t size) { return record(OPQ_OP_wrap_index, {index, scalar(size)}); }

Value put_along(const Call &call, const Value &target, int64_t axis, const Value &index, const Value &source,
                IntArrayRef joined)
{
    Dims shape = shape_of(target);
    shape[static_cast<size_t>(axis)] = shape_of(index)[0];
    Put put = along(call.name(), target, axis, index);
    put.joined = joined;
    put.in_memory = writes_to_memory(call) && elements_of_cell(call.tensor(0)) == call.tensor(0).numel();
    return put_values(put, expand(source, shape));
}

} // namespace opq
