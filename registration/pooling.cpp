// Maxima and averages over windows of one to three dims; what elements are given back: pooling_gradients.cpp.
//
// A pooling is a reduction over the taps of a window view.
#include "pooling.h"

#include <ATen/native/Pool.h>
#include <ATen/ops/max_pool1d_native.h>
#include <limits>

namespace opq
{

Value in_order(const Tensor &tensor, const Pooling &p)
{
    return read_ordered(tensor, static_cast<int>(tensor.dim()), p.last ? last_order(tensor.dim()) : Order{});
}

void give(Call &call, const Value &value, const Pooling &p, at::ScalarType dtype)
{
    call.give(value, dtype, p.last ? last_order(value.rank()) : Order{});
}

Value along(size_t rank, size_t dim, int64_t count, int64_t step)
{
    Axis shape(rank, 1);
    shape[dim] = (count - 1) * step + 1;
    const Value all = iota(shape, static_cast<int64_t>(dim));
    return step == 1 ? all : slice(all, static_cast<int64_t>(dim), 0, count, step);
}

Axis apart(const Axis &sizes)
{
    Axis steps(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;)
        steps[i - 1] = steps[i] * sizes[i];
    return steps;
}

Value sum_of(const Value &a, const Value &b) { return a ? plus(a, b) : b; }

namespace
{

// (self, kernel_size, stride, padding, dilation?, ceil_mode): arguments from `at` on. False: for PyTorch to judge.
bool read_pooling(const Call &call, const Tensor &x, size_t at, int64_t spatial, bool dilates, Pooling &p)
{
    const size_t ceil = at + (dilates ? 4 : 3);
    p.spatial = static_cast<size_t>(spatial);
    p.kernel = per_dim(call.dims(at), spatial);
    p.stride = per_dim(call.dims(at + 1), spatial);
    p.padding = per_dim(call.dims(at + 2), spatial);
    p.dilation = dilates ? per_dim(call.dims(at + 3), spatial) : Axis(p.spatial, 1);
    if (p.stride.empty())
        p.stride = p.kernel;
    if (x.dim() < spatial + 1 || x.dim() > spatial + 2 || x.numel() == 0 || !at::isFloatingType(x.scalar_type()) ||
        p.kernel.size() != p.spatial || p.stride.size() != p.spatial || p.padding.size() != p.spatial ||
        p.dilation.size() != p.spatial)
        return false;
    // As PyTorch's own kernels, of which those of volumes know channels-last for maxima alone.
    p.last = x.dim() == spatial + 2 && (spatial == 2 || (spatial == 3 && dilates)) && channels_last(x);
    p.first = p.last ? 1 : static_cast<size_t>(x.dim() - spatial);
    for (size_t i = 0; i < p.spatial; ++i) {
        p.x.push_back(x.size(x.dim() - spatial + static_cast<int64_t>(i)));
        if (p.kernel[i] < 1 || p.stride[i] < 1 || p.dilation[i] < 1 || p.padding[i] < 0 || p.padding[i] > p.kernel[i] / 2)
            return false;
        p.y.push_back(at::native::pooling_output_shape<int64_t>(p.x[i], p.kernel[i], p.padding[i], p.stride[i],
                                                                p.dilation[i], call.flag(ceil)));
        if (p.y[i] < 1 || (spatial == 3 && !dilates && p.x[i] < p.kernel[i])) // an average of a volume is of a whole kernel
            return false;
    }
    return true;
}

} // namespace

bool has_space(const Tensor &tensor, const Tensor &x, const Axis &space)
{
    const int64_t lead = x.dim() - static_cast<int64_t>(space.size());
    if (tensor.dim() != x.dim() ||
        tensor.sizes().slice(0, static_cast<size_t>(lead)) != x.sizes().slice(0, static_cast<size_t>(lead)))
        return false;
    return tensor.sizes().slice(static_cast<size_t>(lead)) == IntArrayRef(space);
}

Value taps_of(const Value &x, const Pooling &p, const at::Scalar &number)
{
    Axis high(p.spatial);
    for (size_t i = 0; i < p.spatial; ++i)
        high[i] = (p.y[i] - 1) * p.stride[i] + (p.kernel[i] - 1) * p.dilation[i] + 1 - p.padding[i] - p.x[i];
    return windows_of(around(x, number, p.first, p.padding, high), p.first,
                      {Axis(p.spatial, 0), p.y, p.stride, p.kernel, p.dilation}, true);
}

Dims tap_dims(const Pooling &p)
{
    Dims dims;
    for (size_t i = 0; i < p.spatial; ++i)
        dims.push_back(static_cast<int64_t>(p.first + i));
    return dims;
}

// ---- maxima

// A number below size * count, by size. A division of 64-bit integers is made lane by lane: few quotients are counted instead.
static Value quotient(const Value &number, int64_t size, int64_t count)
{
    constexpr int64_t counted = 8;
    if (count > counted)
        return record(OPQ_OP_div_floor, {number, scalar(size)});
    Value sum;
    for (int64_t q = 1; q < count; ++q) {
        const Value reached = cast(record(OPQ_OP_ge, {number, scalar(q * size)}), OPQ_i64);
        sum = sum_of(sum, reached);
    }
    return sum ? sum : times(number, scalar(0));
}

std::vector<Value> split(const Value &number, const Axis &counts)
{
    Value rest = number;
    std::vector<Value> taps(counts.size());
    int64_t left = c10::multiply_integers(counts);
    for (size_t i = counts.size(); i-- > 1;) {
        left /= counts[i];
        const Value above = quotient(rest, counts[i], left);
        taps[i] = record(OPQ_OP_sub, {rest, times(above, scalar(counts[i]))});
        rest = above;
    }
    taps[0] = rest;
    return taps;
}

// Where the best tap of each window is, behind where the window begins; `steps`: elements from a place to the next.
static Value best_tap(const Value &best, const Pooling &p, const Axis &steps)
{
    Value rest = best, sum;
    int64_t left = c10::multiply_integers(p.kernel);
    for (size_t i = p.spatial; i-- > 0;) {
        const int64_t step = steps[i] * p.dilation[i];
        const int64_t factor = i + 1 == p.spatial ? step : step - p.kernel[i + 1] * steps[i + 1] * p.dilation[i + 1];
        if (factor != 0)
            sum = sum_of(sum, factor == 1 ? rest : times(rest, scalar(factor)));
        left /= p.kernel[i];
        if (i > 0)
            rest = quotient(rest, p.kernel[i], left);
    }
    return sum;
}

Value best_places(const Value &best, const Pooling &p)
{
    const auto rank = static_cast<size_t>(best.rank());
    const Axis steps = apart(p.x);
    Value linear;
    if (p.padding == Axis(p.spatial, 0)) {
        for (size_t i = 0; i < p.spatial; ++i)
            linear = sum_of(linear, along(rank, p.first + i, p.y[i], p.stride[i] * steps[i]));
        return plus(linear, best_tap(best, p, steps));
    }
    const std::vector<Value> taps = split(best, p.kernel);
    for (size_t i = 0; i < p.spatial; ++i) {
        const Value start = record(OPQ_OP_sub, {along(rank, p.first + i, p.y[i], p.stride[i]), scalar(p.padding[i])});
        Value at = plus(start, p.dilation[i] == 1 ? taps[i] : times(taps[i], scalar(p.dilation[i])));
        if (p.padding[i] > 0) { // start + dilation * ceil(-start / dilation) is the first one inside
            const Value behind = record(OPQ_OP_remainder, {start, scalar(p.dilation[i])});
            at = record(OPQ_OP_where, {record(OPQ_OP_lt, {at, scalar(0)}), behind, at});
        }
        linear = next_place(linear, p.x[i], at);
    }
    return linear;
}

namespace
{

template <size_t spatial> bool max_pool(Call &call)
{
    const Tensor &x = call.tensor(0);
    Pooling p;
    if (!read_pooling(call, x, 1, spatial, true, p))
        return false;
    check_device(x, call.name());
    const Value taps = taps_of(in_order(x, p), p, -std::numeric_limits<double>::infinity());
    give(call, reduce(OPQ_OP_amax, {taps}, tap_dims(p), false), p, x.scalar_type());
    give(call, best_places(reduce(OPQ_OP_argmax, {taps}, tap_dims(p), false), p), p, at::kLong);
    return true;
}

// ---- gradients of maxima

// (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
template <size_t spatial> bool max_pool_backward(Call &call)
{
    const Tensor &x = call.tensor(1);
    Pooling p;
    if (!read_pooling(call, x, 2, spatial, true, p))
        return false;
    return give_to_best(call, call.tensor(0), x, call.tensor(7), p);
}

// ---- averages

// How many elements each window is divided by: one number, or [.., places .., ..].
struct Divisor {
    bool same;
    double number;
    Value counts;
};

// (.., ceil_mode, count_include_pad, divisor_override?) from argument `at` on.
bool read_divisor(const Call &call, size_t at, size_t rank, const Pooling &p, Divisor &out)
{
    const bool with_padding = call.flag(at + 1);
    out = {true, 1, {}};
    if (at + 2 < call.count && !call.none(at + 2)) {
        out.number = static_cast<double>(call.integer(at + 2));
        return out.number != 0;
    }
    for (size_t i = 0; i < p.spatial; ++i) {
        const int64_t end = (p.y[i] - 1) * p.stride[i] - p.padding[i] + p.kernel[i];
        out.number *= static_cast<double>(p.kernel[i]);
        out.same = out.same && (with_padding ? end <= p.x[i] + p.padding[i] : p.padding[i] == 0 && end <= p.x[i]);
    }
    for (size_t i = 0; i < p.spatial && !out.same; ++i) {
        Value start = times(along(rank, p.first + i, p.y[i]), scalar(p.stride[i]));
        start = record(OPQ_OP_sub, {start, scalar(p.padding[i])});
        const int64_t limit = p.x[i] + (with_padding ? p.padding[i] : 0);
        const Value end = record(OPQ_OP_minimum, {plus(start, scalar(p.kernel[i])), scalar(limit)});
        if (!with_padding)
            start = record(OPQ_OP_maximum, {start, scalar(0)});
        const Value count = record(OPQ_OP_sub, {end, start});
        out.counts = out.counts ? times(out.counts, count) : count;
    }
    return true;
}

Value divided(const Value &value, const Divisor &by)
{
    const opq_dtype dtype = value.dtype();
    return record(OPQ_OP_div, {value, by.same ? scalar(by.number, dtype) : cast(by.counts, dtype)});
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
template <size_t spatial> bool avg_pool(Call &call)
{
    const Tensor &x = call.tensor(0);
    Pooling p;
    Divisor by;
    if (spatial == 3 && at::isReducedFloatingType(x.scalar_type())) // of which the CPU has no kernel
        return false;
    if (!read_pooling(call, x, 1, spatial, false, p) || !read_divisor(call, 4, static_cast<size_t>(x.dim()), p, by))
        return false;
    check_device(x, call.name());
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const Value taps = cast(taps_of(in_order(x, p), p, 0), computing(dtype));
    give(call, cast(divided(reduce(OPQ_OP_sum, {taps}, tap_dims(p), false), by), dtype), p, x.scalar_type());
    return true;
}

// (grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
template <size_t spatial> bool avg_pool_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &x = call.tensor(1);
    Pooling p;
    Divisor by;
    if (!read_pooling(call, x, 2, spatial, false, p) || !has_space(grad, x, p.y) ||
        grad.scalar_type() != x.scalar_type() || !read_divisor(call, 5, static_cast<size_t>(x.dim()), p, by))
        return false;
    check_device(grad, call.name());
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const Value given = divided(cast(in_order(grad, p), computing(dtype)), by);
    give(call, cast(give_to_all(given, p), dtype), p, x.scalar_type());
    return true;
}

// Without gradients the CPU has a kernel of its own for one dim, which takes no integers.
Tensor max_pool1d(const Tensor &self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                  bool ceil_mode)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isIntegralType(self.scalar_type(), true),
                                "\"max_pool1d_impl\" not implemented for '", at::toString(self.scalar_type()), "'");
    return at::native::max_pool1d(self, kernel, stride, padding, dilation, ceil_mode);
}

template <size_t spatial> void adapt_pools(torch::Library &library)
{
    const std::string dims = std::to_string(spatial) + "d";
    adapt(library, ("max_pool" + dims + "_with_indices").c_str(), &max_pool<spatial>);
    adapt(library, ("max_pool" + dims + "_with_indices_backward").c_str(), &max_pool_backward<spatial>);
    adapt(library, ("avg_pool" + dims).c_str(), &avg_pool<spatial>);
    adapt(library, ("avg_pool" + dims + "_backward").c_str(), &avg_pool_backward<spatial>);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { library.impl("max_pool1d", OPQ_KERNEL(max_pool1d)); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("max_pool1d", OPQ_KERNEL(max_pool1d));
    adapt_pools<2>(library);
    adapt_pools<3>(library);
}

} // namespace

} // namespace opq
