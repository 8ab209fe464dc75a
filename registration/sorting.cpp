// Order: sort, topk, kthvalue, median are the order of the elements, a routine of the runtime, and what is read at its places.
#include "below.h"
#include "movement.h"
#include "put.h"

namespace opq
{

namespace
{

constexpr int64_t kPicked = 1 << 10; // of longer rows the CPU kernel picks a few faster than they are sorted

struct Sorted {
    Value self, order; // of the same shape, a number is a row of one
    int64_t axis;

    void give(Call &call, const Value &places, const Dims &shape) const
    {
        call.give(reshape(read(places), shape));
        call.give(reshape(places, shape));
    }
    Value read(const Value &places) const
    {
        return record(OPQ_OP_gather, {self, places}, {attr_int(OPQ_ATTR_axis, axis)});
    }
    int64_t size() const { return shape_of(self)[static_cast<size_t>(axis)]; }
};

bool sorted(const Call &call, int64_t dim, bool descending, Sorted &out)
{
    const Tensor &self = call.tensor(0);
    if (is_raw(self) || self.numel() == 0)
        return false;
    out.self = lifted(call.in(0));
    out.axis = self.dim() == 0 ? (normal_axis(dim, 1), 0) : normal_axis(dim, self.dim());
    out.order =
        record(descending ? OPQ_OP_argsort_down : OPQ_OP_argsort, {out.self}, {attr_int(OPQ_ATTR_axis, out.axis)});
    return true;
}

Dims dims_of(const Tensor &tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

// sort(self, dim, descending); sort.stable(self, *, stable, dim, descending)
template <size_t dim> bool sort(Call &call)
{
    Sorted s;
    if (!sorted(call, call.integer(dim), call.flag(dim + 1), s))
        return false;
    s.give(call, s.order, dims_of(call.tensor(0)));
    return true;
}

// topk(self, k, dim, largest, sorted)
bool topk(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t k = call.integer(1);
    Sorted s;
    if (self.dim() == 0 || self.scalar_type() == at::kBool)
        return false;
    const int64_t axis = normal_axis(call.integer(2), self.dim());
    if (k < 1 || k > self.size(axis) || self.size(axis) > kPicked || !sorted(call, axis, call.flag(3), s))
        return false;
    Dims shape = dims_of(self);
    shape[static_cast<size_t>(axis)] = k;
    s.give(call, slice(s.order, axis, 0, k), shape);
    return true;
}

Dims without(const Tensor &self, int64_t axis, bool keepdim)
{
    Dims shape = dims_of(self);
    if (keepdim && self.dim() > 0)
        shape[static_cast<size_t>(axis)] = 1;
    else if (self.dim() > 0)
        shape.erase(shape.begin() + axis);
    return shape;
}

// kthvalue(self, k, dim, keepdim)
bool kthvalue(Call &call)
{
    const Tensor &self = call.tensor(0);
    const int64_t k = call.integer(1);
    Sorted s;
    if (self.dim() == 0 || self.scalar_type() == at::kBool ||
        self.size(normal_axis(call.integer(2), self.dim())) > kPicked || !sorted(call, call.integer(2), false, s) ||
        k < 1 || k > s.size())
        return false;
    s.give(call, slice(s.order, s.axis, k - 1, 1), without(self, s.axis, call.flag(3)));
    return true;
}

// The place of the lower median; of rows with a NaN that of the first one, unless they are passed over.
Value median_place(const Sorted &s, bool passes_nan)
{
    const int64_t size = s.size();
    const Value middle = slice(s.order, s.axis, (size - 1) / 2, 1);
    if (!is_float(s.self.dtype()))
        return middle;
    const int64_t axes[] = {s.axis};
    const Value is_nan = record(OPQ_OP_isnan, {s.self});
    const Value nans = reduce(OPQ_OP_sum, {cast(is_nan, OPQ_i64)}, axes, true);
    const Value numbers = record(OPQ_OP_sub, {number_i64(size), nans});
    if (passes_nan) {
        const Value half = record(OPQ_OP_div_floor, {record(OPQ_OP_sub, {numbers, number_i64(1)}), number_i64(2)});
        const Value at = record(OPQ_OP_maximum, {half, number_i64(0)});
        return record(OPQ_OP_gather, {s.order, at}, {attr_int(OPQ_ATTR_axis, s.axis)});
    }
    const Value first = record(OPQ_OP_minimum, {numbers, number_i64(size - 1)});
    const Value of_nan = record(OPQ_OP_gather, {s.order, first}, {attr_int(OPQ_ATTR_axis, s.axis)});
    return record(OPQ_OP_where, {record(OPQ_OP_gt, {nans, scalar(0)}), of_nan, middle});
}

// median.dim, nanmedian.dim(self, dim, keepdim)
template <bool passes_nan> bool median_along(Call &call)
{
    const Tensor &self = call.tensor(0);
    Sorted s;
    if (self.scalar_type() == at::kBool ||
        (self.dim() > 0 && self.size(normal_axis(call.integer(1), self.dim())) > kPicked) ||
        !sorted(call, call.integer(1), false, s))
        return false;
    s.give(call, median_place(s, passes_nan), without(self, s.axis, call.flag(2)));
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "sort", &sort<1>);
    adapt(library, "sort.stable", &sort<2>);
    adapt(library, "topk", &topk);
    adapt(library, "kthvalue", &kthvalue);
    adapt(library, "median.dim", &median_along<false>);
    adapt(library, "nanmedian.dim", &median_along<true>);
}

} // namespace

} // namespace opq
