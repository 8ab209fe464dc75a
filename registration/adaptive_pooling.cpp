// Adaptive pooling: windows by the size of what is to come out. Where y's sizes divide x's all are alike, and it is pooling as any
// other; else windows have several sizes and are tables of places.
#include "pooling.h"

#include <ATen/native/AdaptivePooling.h>
#include <algorithm>

namespace opq
{

namespace
{

// The windows of a dim. Where one is shorter than the longest: its last element again, or none.
Sources adaptive_windows(int64_t x, int64_t y, bool again)
{
    Sources windows{1, y, {}};
    const auto start = [&](int64_t i) { return at::native::start_index(i, y, x); };
    const auto end = [&](int64_t i) { return at::native::end_index(i, y, x); };
    want_table(y);
    for (int64_t i = 0; i < y; ++i)
        windows.taps = std::max(windows.taps, end(i) - start(i));
    want_table(windows.taps, y);
    windows.places = Axis(static_cast<size_t>(windows.taps * y), -1);
    for (int64_t t = 0; t < windows.taps; ++t)
        for (int64_t i = 0; i < y; ++i)
            if (start(i) + t < end(i) || again)
                windows.at(t, i) = std::min(start(i) + t, end(i) - 1);
    return windows;
}

// Of all dims; none, if y's sizes divide x's.
std::vector<Sources> adaptive_windows(const Pooling &p, bool again)
{
    std::vector<Sources> windows;
    for (size_t i = 0; i < p.spatial && p.kernel.empty(); ++i)
        windows.push_back(adaptive_windows(p.x[i], p.y[i], again));
    return windows;
}

// Divided by the number of elements of each window.
Value shared_out(const Value &value, const Pooling &p, c10::ArrayRef<Sources> windows)
{
    Value result = value;
    for (size_t i = 0; i < p.spatial; ++i) {
        Axis shape(static_cast<size_t>(value.rank()), 1);
        std::vector<double> counts(static_cast<size_t>(p.y[i]), 0);
        for (size_t n = 0; n < windows[i].places.size(); ++n)
            counts[n % counts.size()] += windows[i].places[n] >= 0;
        shape[p.first + i] = p.y[i];
        result = record(OPQ_OP_div, {result, reshape(table(counts, value.dtype()), shape)});
    }
    return result;
}

// (self, output_size). Sizes that do not divide x's leave the kernel empty.
bool read_adaptive(const Call &call, const Tensor &x, int64_t spatial, const Axis &size, Pooling &p)
{
    p.spatial = static_cast<size_t>(spatial);
    p.y = size;
    if (x.dim() < spatial + 1 || x.dim() > spatial + 2 || !has_space_in(x, spatial) ||
        !at::isFloatingType(x.scalar_type()) || p.y.size() != p.spatial)
        return false;
    p.last = x.dim() == 4 && spatial == 2 && channels_last(x);
    p.first = p.last ? 1 : static_cast<size_t>(x.dim() - spatial);
    bool whole = true;
    for (size_t i = 0; i < p.spatial; ++i) {
        p.x.push_back(x.size(x.dim() - spatial + static_cast<int64_t>(i)));
        if (p.y[i] < 1)
            return false;
        whole = whole && p.x[i] % p.y[i] == 0;
        p.kernel.push_back(p.x[i] / p.y[i]);
    }
    if (!whole)
        p.kernel.clear();
    p.stride = p.kernel;
    p.padding = Axis(p.spatial, 0);
    p.dilation = Axis(p.spatial, 1);
    check_device(x, call.name());
    return true;
}

// Divided by the number of elements of a window, of which all have as many.
Value averaged(const Value &value, const Pooling &p)
{
    const auto count = static_cast<double>(c10::multiply_integers(p.kernel));
    return record(OPQ_OP_div, {value, scalar(count, value.dtype())});
}

template <size_t spatial> bool adaptive_avg_pool(Call &call)
{
    const Tensor &x = call.tensor(0);
    Pooling p;
    if (!read_adaptive(call, x, spatial, per_dim(call.dims(1), spatial), p))
        return false;
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const std::vector<Sources> windows = adaptive_windows(p, false);
    if (!windows.empty()) {
        const Value read = read_sources(cast(in_order(x, p), computing(dtype)), p.first, windows, 0);
        const Value sum = reduce(OPQ_OP_sum, {read}, tap_dims(p), false);
        give(call, cast(shared_out(sum, p, windows), dtype), p, x.scalar_type());
        return true;
    }
    const Value taps = cast(taps_of(in_order(x, p), p, 0), computing(dtype));
    const Value sum = reduce(OPQ_OP_sum, {taps}, tap_dims(p), false);
    give(call, cast(averaged(sum, p), dtype), p, x.scalar_type());
    return true;
}

// Windows that read an element of a dim, instead of the numbers that readers_of() gives them.
Sources windows_over(const Sources &windows, int64_t count)
{
    Sources readers = readers_of(windows, count);
    for (int64_t &reader : readers.places)
        reader = reader < 0 ? -1 : reader % windows.size;
    return readers;
}

// (grad_output, self)
template <size_t spatial> bool adaptive_avg_pool_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &x = call.tensor(1);
    Pooling p;
    if (grad.dim() != x.dim() || x.dim() < static_cast<int64_t>(spatial) + 1 ||
        !read_adaptive(call, x, spatial, Axis(grad.sizes().end() - spatial, grad.sizes().end()), p) ||
        !has_space(grad, x, p.y) || grad.scalar_type() != x.scalar_type())
        return false;
    check_device(grad, call.name());
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const std::vector<Sources> windows = adaptive_windows(p, false);
    if (!windows.empty()) {
        std::vector<Sources> over;
        for (size_t i = 0; i < spatial; ++i)
            over.push_back(windows_over(windows[i], p.x[i]));
        const Value parts = shared_out(cast(in_order(grad, p), computing(dtype)), p, windows);
        const Value read = read_sources(parts, p.first, over, 0);
        give(call, cast(reduce(OPQ_OP_sum, {read}, tap_dims(p), false), dtype), p, x.scalar_type());
        return true;
    }
    const Value given = averaged(cast(in_order(grad, p), computing(dtype)), p);
    give(call, cast(give_to_all(given, p), dtype), p, x.scalar_type());
    return true;
}

Value adaptive_places(const Value &best, const Pooling &p, c10::ArrayRef<Sources> windows)
{
    Axis counts;
    for (const Sources &each : windows)
        counts.push_back(each.taps);
    const std::vector<Value> taps = split(best, counts);
    Value linear;
    for (size_t i = 0; i < p.spatial; ++i) {
        Axis shape(static_cast<size_t>(best.rank()), 1);
        shape[p.first + i] = p.y[i];
        const Axis starts(windows[i].places.begin(), windows[i].places.begin() + p.y[i]);
        const Value at = plus(reshape(table(starts), shape), taps[i]);
        linear = next_place(linear, p.x[i], at);
    }
    return linear;
}

template <size_t spatial> bool adaptive_max_pool(Call &call)
{
    const Tensor &x = call.tensor(0);
    Pooling p;
    if (!read_adaptive(call, x, spatial, per_dim(call.dims(1), spatial), p))
        return false;
    const std::vector<Sources> windows = adaptive_windows(p, true);
    if (!windows.empty()) { // an element that is there again is not the first of its value
        const Value taps = read_sources(in_order(x, p), p.first, windows, 0);
        give(call, reduce(OPQ_OP_amax, {taps}, tap_dims(p), false), p, x.scalar_type());
        const Value best = reduce(OPQ_OP_argmax, {taps}, tap_dims(p), false);
        give(call, adaptive_places(best, p, windows), p, at::kLong);
        return true;
    }
    const Value taps = taps_of(in_order(x, p), p, 0);
    give(call, reduce(OPQ_OP_amax, {taps}, tap_dims(p), false), p, x.scalar_type());
    give(call, best_places(reduce(OPQ_OP_argmax, {taps}, tap_dims(p), false), p), p, at::kLong);
    return true;
}

// (grad_output, self, indices)
template <size_t spatial> bool adaptive_max_pool_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &x = call.tensor(1);
    Pooling p;
    return grad.dim() == x.dim() && x.dim() > static_cast<int64_t>(spatial) &&
           read_adaptive(call, x, spatial, Axis(grad.sizes().end() - spatial, grad.sizes().end()), p) &&
           give_to_best(call, grad, x, call.tensor(2), p);
}

template <size_t spatial> void adapt_pools(torch::Library &library)
{
    const std::string dims = std::to_string(spatial) + "d";
    adapt(library, ("_adaptive_avg_pool" + dims).c_str(), &adaptive_avg_pool<spatial>);
    adapt(library, ("_adaptive_avg_pool" + dims + "_backward").c_str(), &adaptive_avg_pool_backward<spatial>);
    adapt(library, ("adaptive_max_pool" + dims).c_str(), &adaptive_max_pool<spatial>);
    adapt(library, ("adaptive_max_pool" + dims + "_backward").c_str(), &adaptive_max_pool_backward<spatial>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt_pools<2>(library);
    adapt_pools<3>(library);
}

} // namespace

} // namespace opq
