// Linear, bilinear and trilinear upsampling, and their gradients.
//
// Along each dim an element lies between two others: y[j] = near[j] * x[from[j]] + far[j] * x[to[j]], by tables whose numbers are
// computed here with PyTorch's own arithmetic. Dims before the innermost one are blended in one kernel, which reads rows. The
// innermost one has its own: there a read at computed places is one for each lane, and whole factors are put together from slices.
//
// A gradient is blended dim by dim as well: each element of x sums up what the elements of y that read it were given.
#include "sources.h"

#include <ATen/native/UpSample.h>
#include <algorithm>

namespace opq
{

namespace
{

constexpr int64_t kParts = 8; // slices that are put together, a kernel each

struct Line {
    int64_t size;
    Axis from, to;
    std::vector<double> near, far;
    bool same; // y is x along this dim
};

template <class T> Line line_of(int64_t from, int64_t to, bool align_corners, const IValue &given)
{
    const T scale = at::native::area_pixel_compute_scale<T>(
        from, to, align_corners, given.isNone() ? std::nullopt : std::optional<double>(given.toDouble()));
    Line line{from, {}, {}, {}, {}, from == to};
    for (int64_t j = 0; j < to; ++j) {
        int64_t near = 0, far = 0;
        T near_weight = 0, far_weight = 0;
        at::native::compute_source_index_and_lambda<T, T>(near, far, near_weight, far_weight, scale, j, from, to,
                                                          align_corners);
        line.from.push_back(near);
        line.to.push_back(far);
        line.near.push_back(static_cast<double>(near_weight));
        line.far.push_back(static_cast<double>(far_weight));
    }
    return line;
}

// `scales`: number of the first argument that gives one.
std::vector<Line> lines_of(const Call &call, IntArrayRef from, IntArrayRef to, bool align_corners, size_t scales,
                           opq_dtype dtype)
{
    std::vector<Line> lines;
    for (const int64_t size : to)
        want_table(size);
    for (size_t i = 0; i < from.size(); ++i)
        lines.push_back(dtype == OPQ_f64 ? line_of<double>(from[i], to[i], align_corners, call.args[scales + i])
                                         : line_of<float>(from[i], to[i], align_corners, call.args[scales + i]));
    return lines;
}

// Numbers along a dim of a value of this rank.
Value along(const Value &numbers, size_t rank, size_t dim)
{
    Axis shape(rank, 1);
    shape[dim] = shape_of(numbers)[0];
    return reshape(numbers, shape);
}

struct Tables {
    Value from, to, near, far; // `from` alone: y is x
};

Tables tables_of(const Line &line, opq_dtype dtype)
{
    if (line.same)
        return {iota(line.size), {}, {}, {}};
    return {table(line.from), table(line.to), table(line.near, dtype), table(line.far, dtype)};
}

// The dims first, first + 1, .. blended at once: the corners around an element, each with the product of its weights, which is one
// number for a row.
Value blended(const Value &value, size_t first, c10::ArrayRef<Tables> tables, std::vector<Value> &places,
              const Value &weight)
{
    const size_t i = places.size();
    if (i == tables.size()) {
        const Value corner = at_places(value, static_cast<int64_t>(first), places);
        return weight ? times(corner, weight) : corner;
    }
    const Tables &t = tables[i];
    const auto at = [&](const Value &where, const Value &numbers) {
        Value all = weight;
        if (numbers) {
            const Value here = along(numbers, static_cast<size_t>(value.rank()), first + i);
            all = weight ? times(weight, here) : here;
        }
        places.push_back(where);
        Value result = blended(value, first, tables, places, all);
        places.pop_back();
        return result;
    };
    return t.to ? plus(at(t.from, t.near), at(t.to, t.far)) : at(t.from, {});
}

Value blended(const Value &value, size_t first, c10::ArrayRef<Line> lines)
{
    std::vector<Tables> tables;
    bool same = true;
    for (const Line &line : lines) {
        tables.push_back(tables_of(line, value.dtype()));
        same = same && line.same;
    }
    std::vector<Value> places;
    return same ? value : blended(value, first, tables, places, {});
}

// ---- whole factors along the innermost dim, where reading at computed places is slow: y[i * factor + r] lies between x[i + shift] and
// the next one, with a shift of 0 or -1 for all i, so that each r is a blend of two slices

// The shift for each r; empty: it is not so. Before the first element the table has the first and the second one, with all the weight
// on the first.
Axis shifts_of(const Line &line)
{
    const auto count = static_cast<int64_t>(line.from.size());
    if (line.same || line.size < 2 || count % line.size != 0 || count > kParts * line.size)
        return {};
    const int64_t factor = count / line.size;
    Axis shifts;
    for (int64_t r = 0; r < factor; ++r) {
        shifts.push_back(line.from[static_cast<size_t>(factor + r)] - 1);
        for (int64_t i = 0; i < line.size; ++i) {
            const int64_t from = i + shifts.back(), real = std::max<int64_t>(from, 0);
            const auto j = static_cast<size_t>(i * factor + r);
            if (shifts.back() < -1 || shifts.back() > 0 || line.from[j] != real ||
                line.to[j] != std::min(real + 1, line.size - 1) || (from < 0 && line.far[j] != 0))
                return {};
        }
    }
    return shifts;
}

// The weights of the two slices for remainder r. The zeros around the dim have none.
struct Weights {
    std::vector<double> left, right;
};

Weights weights_of(const Line &line, int64_t r, int64_t shift, int64_t factor)
{
    Weights weights;
    for (int64_t i = 0; i < line.size; ++i) {
        const auto j = static_cast<size_t>(i * factor + r);
        const bool before = i + shift < 0, behind = i + shift + 1 == line.size;
        weights.left.push_back(before ? 0 : behind ? line.near[j] + line.far[j] : line.near[j]);
        weights.right.push_back(before ? line.near[j] : behind ? 0 : line.far[j]);
    }
    return weights;
}

Value blended_by_slices(const Value &value, const Line &line, const Axis &shifts)
{
    const auto rank = static_cast<size_t>(value.rank());
    const auto factor = static_cast<int64_t>(shifts.size()), last = static_cast<int64_t>(rank) - 1;
    Dims one(rank, 0), shape = shape_of(value);
    one.back() = 1;
    shape.back() *= factor;
    Dims strides = ordered_strides(shape, Order{});
    strides.back() = factor;
    const Value around = padded(value, 0, one, one);
    Value result = record_typed(OPQ_OP_undefined, value.dtype(), shape, {});
    for (int64_t r = 0; r < factor; ++r) {
        const int64_t shift = shifts[static_cast<size_t>(r)];
        const auto [left, right] = weights_of(line, r, shift, factor);
        const Value from = slice(around, last, 1 + shift, line.size), to = slice(around, last, 2 + shift, line.size);
        const Value here = plus(times(from, table(left, value.dtype())), times(to, table(right, value.dtype())));
        result = updated(result, here, r, strides);
    }
    return result;
}

// In memory of its own if it is to be blended along other dims: else each of them would read through it again.
Value blended_innermost(const Value &value, const Line &line, bool alone)
{
    const Axis shifts = shifts_of(line);
    if (!shifts.empty())
        return blended_by_slices(value, line, shifts);
    const Value result = blended(value, static_cast<size_t>(value.rank()) - 1, {&line, 1});
    return alone || line.same ? result : stored(result);
}

// (self, output_size, align_corners, scales ..)
template <size_t spatial> bool linear(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Dims size = call.dims(1);
    if (self.dim() != spatial + 2 || self.numel() == 0 || size.size() != spatial ||
        !at::isFloatingType(self.scalar_type()) || *std::min_element(size.begin(), size.end()) < 1)
        return false;
    const auto [given, order] = moved(call, 0);
    const opq_dtype dtype = computing(given.dtype());
    const std::vector<Line> lines = lines_of(call, self.sizes().slice(2), size, call.flag(2), 3, dtype);
    const size_t first = order.plain() ? 2 : 1;
    Value value = cast(given, dtype);
    if (order.plain()) {
        value = blended_innermost(value, lines.back(), spatial == 1);
        value = blended(value, first, {lines.data(), spatial - 1});
    } else {
        value = blended(value, first, lines);
    }
    call.give(cast(value, given.dtype()), self.scalar_type(), order);
    return true;
}

// One dim of a gradient.
Value collected(const Value &value, size_t dim, const Line &line)
{
    if (line.same)
        return value;
    const auto count = static_cast<int64_t>(line.from.size());
    Sources both{2, count, line.from};
    both.places.insert(both.places.end(), line.to.begin(), line.to.end());
    Sources readers = readers_of(both, line.size);
    std::vector<double> weights;
    for (int64_t &reader : readers.places) {
        const auto n = static_cast<size_t>(std::max<int64_t>(reader, 0) % count);
        weights.push_back(reader < count ? line.near[n] : line.far[n]);
        reader = reader < 0 ? -1 : reader % count;
    }
    Axis shape(static_cast<size_t>(value.rank()) + 1, 1);
    shape[dim] = readers.taps;
    shape[dim + 1] = readers.size;
    const Value read = read_sources(value, dim, readers, 0);
    const int64_t taps[] = {static_cast<int64_t>(dim)};
    return reduce(OPQ_OP_sum, {times(read, reshape(table(weights, value.dtype()), shape))}, taps, false);
}

// (grad_output, output_size, input_size, align_corners, scales ..)
template <size_t spatial> bool linear_backward(Call &call)
{
    const Tensor &grad = call.tensor(0);
    const Dims size = call.dims(1), shape = call.dims(2);
    if (grad.dim() != spatial + 2 || grad.numel() == 0 || size.size() != spatial || shape.size() != spatial + 2 ||
        grad.size(0) != shape[0] || grad.size(1) != shape[1] || grad.sizes().slice(2) != IntArrayRef(size) ||
        !at::isFloatingType(grad.scalar_type()) || *std::min_element(shape.begin(), shape.end()) < 1)
        return false;
    const auto [given, order] = moved(call, 0);
    const opq_dtype dtype = computing(given.dtype());
    const std::vector<Line> lines = lines_of(call, IntArrayRef(shape).slice(2), size, call.flag(3), 4, dtype);
    const size_t first = order.plain() ? 2 : 1;
    Value value = cast(given, dtype);
    for (size_t i = 0; i < spatial; ++i)
        value = collected(value, first + i, lines[i]);
    call.give(cast(value, given.dtype()), grad.scalar_type(), order);
    return true;
}

template <size_t spatial> void adapt_linear(torch::Library &library, const std::string &name)
{
    adapt(library, name.c_str(), &linear<spatial>);
    adapt(library, (name + "_backward").c_str(), &linear_backward<spatial>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt_linear<1>(library, "upsample_linear1d");
    adapt_linear<2>(library, "upsample_bilinear2d");
    adapt_linear<3>(library, "upsample_trilinear3d");
}

} // namespace

} // namespace opq
