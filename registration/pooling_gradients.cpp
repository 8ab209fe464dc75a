// What windows give back to the elements under them.
//
// A gradient is a reduction over the windows that reach an element: with x + padding = stride * t + r these are t, t - 1, .., of which there are
// ceil(kernel / stride) in each dim, the same for all r. Windows that reach an element across a dilation are tables of places.
#include "pooling.h"

namespace opq
{

// ---- [.., windows per dim .., t, r, t, r, ..]

namespace
{

struct Reaching {
    Axis windows, t; // windows that may reach an element; values of t
    Axis low;        // the first is so many before t
    Axis before;     // elements of padding that t begins with
};

Reaching reaching(const Pooling &p)
{
    Reaching r;
    for (size_t i = 0; i < p.spatial; ++i) {
        r.windows.push_back((p.kernel[i] + p.stride[i] - 1) / p.stride[i]);
        r.t.push_back((p.x[i] + p.padding[i] + p.stride[i] - 1) / p.stride[i]);
        r.low.push_back(r.windows[i] - 1);
        r.before.push_back(p.padding[i]);
    }
    return r;
}

// Where t begins with the first element: nothing is cut off if whole strides are there.
Reaching reaching_elements(const Pooling &p)
{
    Reaching r;
    for (size_t i = 0; i < p.spatial; ++i) {
        const int64_t last = (p.stride[i] - 1 + p.padding[i]) / p.stride[i];
        r.low.push_back((p.kernel[i] - p.padding[i] + p.stride[i] - 1) / p.stride[i] - 1);
        r.windows.push_back(r.low[i] + last + 1);
        r.t.push_back((p.x[i] + p.stride[i] - 1) / p.stride[i]);
        r.before.push_back(0);
    }
    return r;
}

// A value of every window, `number` where t reaches others.
Value with_all(const Value &value, const Pooling &p, const Reaching &r, const at::Scalar &number)
{
    Axis high(p.spatial);
    for (size_t i = 0; i < p.spatial; ++i)
        high[i] = r.t[i] + r.windows[i] - 1 - r.low[i] - p.y[i];
    return around(value, number, p.first, r.low, high);
}

// [.., `in_front`.., t .., ..] for all r, too: [.., t, r, ..].
Value for_all_elements(const Value &value, const Pooling &p, const Reaching &r, size_t in_front)
{
    const Dims shape = shape_of(value);
    const size_t first = p.first + in_front;
    Dims one, all;
    for (size_t d = 0; d < first; ++d)
        one.push_back(shape[d]);
    for (size_t i = 0; i < p.spatial; ++i)
        one.append({r.t[i], 1});
    one.append(shape.begin() + static_cast<ptrdiff_t>(first + p.spatial), shape.end());
    all = one;
    for (size_t i = 0; i < p.spatial; ++i)
        all[first + 2 * i + 1] = p.stride[i];
    return expand(reshape(value, one), all);
}

// Of a value of every window: window t - low + j for each (j .., t, r, ..).
Value spread(const Value &value, const Pooling &p, const Reaching &r, const at::Scalar &number)
{
    const Value wide = windows_of(with_all(value, p, r, number), p.first,
                                  {Axis(p.spatial, 0), r.t, Axis(p.spatial, 1), r.windows, Axis(p.spatial, 1)}, true);
    return for_all_elements(wide, p, r, p.spatial);
}

// (t, r, ..) as a plane, without padding.
Value collected(const Value &value, const Pooling &p, const Reaching &r)
{
    const Dims shape = shape_of(value);
    Dims whole(shape.begin(), shape.begin() + static_cast<ptrdiff_t>(p.first)), starts(p.first, 0);
    for (size_t i = 0; i < p.spatial; ++i) {
        whole.push_back(r.t[i] * p.stride[i]);
        starts.push_back(r.before[i]);
    }
    whole.append(shape.begin() + static_cast<ptrdiff_t>(p.first + 2 * p.spatial), shape.end());
    starts.resize(whole.size(), 0);
    Dims kept = whole;
    for (size_t i = 0; i < p.spatial; ++i)
        kept[p.first + i] = p.x[i];
    return slice(reshape(value, whole), kept, starts, Dims(kept.size(), 1));
}

Value sum_over_windows(const Value &value, const Pooling &p, const Reaching &r)
{
    if (c10::multiply_integers(r.windows) > 1)
        return reduce(OPQ_OP_sum, {value}, tap_dims(p), false);
    const Dims shape = shape_of(value);
    Dims rest;
    for (size_t d = 0; d < shape.size(); ++d)
        if (d < p.first || d >= p.first + p.spatial)
            rest.push_back(shape[d]);
    return reshape(value, rest);
}

// Where in the plane an element (t, r, ..) is.
Value own_place(size_t rank, const Pooling &p, const Reaching &r, size_t first)
{
    const Axis steps = apart(p.x);
    Value place;
    int64_t before = 0;
    for (size_t i = 0; i < p.spatial; ++i) {
        const size_t dim = first + 2 * i;
        place = sum_of(
            place, plus(along(rank, dim, r.t[i], p.stride[i] * steps[i]), along(rank, dim + 1, p.stride[i], steps[i])));
        before += r.before[i] * steps[i];
    }
    return before ? record(OPQ_OP_sub, {place, scalar(before)}) : place;
}

} // namespace

Value give_to_all(const Value &value, const Pooling &p)
{
    const Reaching r = reaching(p);
    Value given = spread(value, p, r, 0);
    const auto rank = static_cast<size_t>(given.rank());
    for (size_t i = 0; i < p.spatial; ++i) { // window t - j reaches r if r + stride * j < kernel
        if (p.kernel[i] % p.stride[i] == 0)
            continue;
        const Value j = record(OPQ_OP_sub, {scalar(r.windows[i] - 1), along(rank, p.first + i, r.windows[i])});
        const Value tap = plus(times(j, scalar(p.stride[i])), along(rank, p.first + p.spatial + 2 * i + 1, p.stride[i]));
        given = record(OPQ_OP_where, {record(OPQ_OP_lt, {tap, scalar(p.kernel[i])}), given, scalar(0, value.dtype())});
    }
    return collected(sum_over_windows(given, p, r), p, r);
}

namespace
{

// [.., all places of a plane, ..]
Value flat(const Value &value, const Pooling &p)
{
    const Dims size = shape_of(value);
    Axis shape(size.begin(), size.begin() + static_cast<int64_t>(p.first));
    const auto after = size.begin() + static_cast<int64_t>(p.first + p.spatial);
    shape.push_back(c10::multiply_integers(size.begin() + static_cast<int64_t>(p.first), after));
    shape.insert(shape.end(), after, size.end());
    return reshape(value, shape);
}

// give_to_best() where windows have several sizes or gaps: what is given is few, and goes where it belongs.
void give_to_places(Call &call, const Tensor &grad, const Tensor &x, const Tensor &indices, const Pooling &p)
{
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const Value given = cast(in_order(grad, p), computing(dtype));
    const Dims size = shape_of(given);
    Axis shape(size.begin(), size.end());
    std::copy(p.x.begin(), p.x.end(), shape.begin() + static_cast<int64_t>(p.first));
    const Value sums = record(OPQ_OP_scatter_add,
                              {flat(full(0, computing(dtype), shape), p), flat(in_order(indices, p), p), flat(given, p)},
                              {attr_int(OPQ_ATTR_axis, static_cast<int64_t>(p.first))});
    give(call, cast(reshape(sums, shape), dtype), p, x.scalar_type());
}

} // namespace

// What elements get of the windows of which they are the best: as many additions, of which one kernel is made, if they are few.
static Value sum_of_chosen(const Value &indices, const Value &grad, const Pooling &p)
{
    constexpr int64_t few = 8;
    const Reaching r = reaching_elements(p);
    const int64_t count = c10::multiply_integers(r.windows);
    const auto rank = static_cast<size_t>(grad.rank()) + p.spatial;
    const Value zero = scalar(0, grad.dtype());
    const auto chosen = [&](const Value &from, const Value &own, const Value &given) {
        return record(OPQ_OP_where, {record(OPQ_OP_eq, {from, own}), given, zero});
    };
    if (count > few) {
        const Value own = own_place(rank + p.spatial, p, r, p.first + p.spatial);
        return collected(sum_over_windows(chosen(spread(indices, p, r, -1), own, spread(grad, p, r, 0)), p, r), p, r);
    }
    const Value own = own_place(rank, p, r, p.first), places = with_all(indices, p, r, -1),
                given = with_all(grad, p, r, 0);
    Dims shape = shape_of(given), starts(shape.size(), 0);
    const Dims ones(shape.size(), 1);
    for (size_t i = 0; i < p.spatial; ++i)
        shape[p.first + i] = r.t[i];
    Value sum;
    for (int64_t window = 0; window < count; ++window) {
        int64_t rest = window;
        for (size_t i = p.spatial; i-- > 0; rest /= r.windows[i])
            starts[p.first + i] = rest % r.windows[i];
        const auto part = [&](const Value &wide) { return for_all_elements(slice(wide, shape, starts, ones), p, r, 0); };
        sum = sum_of(sum, chosen(part(places), own, part(given)));
    }
    return collected(sum, p, r);
}

bool give_to_best(Call &call, const Tensor &grad, const Tensor &x, const Tensor &indices, const Pooling &p)
{
    if (!has_space(grad, x, p.y) || !has_space(indices, x, p.y) || grad.scalar_type() != x.scalar_type() ||
        indices.scalar_type() != at::kLong)
        return false;
    for (const Tensor *tensor : {&grad, &x, &indices})
        check_device(*tensor, call.name());
    if (p.kernel.empty() || p.dilation != Axis(p.spatial, 1)) {
        give_to_places(call, grad, x, indices, p);
        return true;
    }
    const opq_dtype dtype = core_dtype(x.scalar_type());
    const Value sum = sum_of_chosen(in_order(indices, p), cast(in_order(grad, p), computing(dtype)), p);
    give(call, cast(sum, dtype), p, x.scalar_type());
    return true;
}

} // namespace opq
