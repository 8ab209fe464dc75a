// Nearest-neighbour upsampling. By whole factors it repeats elements: a view. Other factors read at places from a table.
#include "sources.h"

#include <ATen/native/UpSample.h>
#include <array>
#include <cmath>

namespace opq
{

namespace
{

constexpr int64_t kTerms = 16; // copies of an element whose gradients are added one by one; more are a reduction

// Which element PyTorch reads, by its arithmetic in T.
template <class T> int64_t source_of(int64_t index, int64_t size, T scale, bool exact)
{
    const T from = (static_cast<T>(index) + static_cast<T>(exact ? 0.5 : 0)) * scale;
    return std::min(static_cast<int64_t>(std::floor(from)), size - 1);
}

// Is every element of `size` repeated `factor` times? Rounding decides, and a scale that is given may be another.
template <class T> bool repeats(int64_t size, int64_t factor, const IValue &given, bool exact)
{
    const bool use = !given.isNone() && given.toDouble() > 0;
    const T scale = use ? static_cast<T>(1.0 / given.toDouble()) : static_cast<T>(size) / static_cast<T>(size * factor);
    for (int64_t i = 0; i < size * factor; ++i)
        if (source_of<T>(i, size, scale, exact) != i / factor)
            return false;
    return true;
}

// The factor of each dim; empty: not whole. `scales`: number of the first argument that gives one.
Dims factors(const Call &call, IntArrayRef from, IntArrayRef to, size_t scales, bool exact)
{
    Dims result;
    for (size_t i = 0; i < from.size(); ++i) {
        if (from[i] <= 0 || to[i] <= 0 || to[i] % from[i] != 0)
            return {};
        const int64_t factor = to[i] / from[i];
        want_table(to[i]);
        if (!repeats<float>(from[i], factor, call.args[scales + i], exact) ||
            !repeats<double>(from[i], factor, call.args[scales + i], exact))
            return {};
        result.push_back(factor);
    }
    return result;
}

// ---- other factors

int64_t read_by_gradients(int64_t index, int64_t from, int64_t to, std::optional<double> scale, bool exact)
{
    return exact ? at::native::nearest_exact_idx(index, from, to, scale)
                 : at::native::nearest_idx(index, from, to, scale);
}

// Which element of a dim each one reads. Empty: PyTorch has two kernels for channels-last, which round to different ones.
template <class T> Axis places_of(int64_t from, int64_t to, std::optional<double> given, bool exact, bool last)
{
    const auto scale = at::native::compute_scales_value<T>(given, from, to);
    Axis places;
    for (int64_t i = 0; i < to; ++i) {
        places.push_back(source_of<T>(i, from, scale, exact));
        if (last && places.back() != read_by_gradients(i, from, to, given, exact))
            return {};
    }
    return places;
}

// Contiguous tensors may be channels-last as well.
bool may_be_last(const Tensor &tensor)
{
    return tensor.dim() == 4   ? tensor.is_contiguous(at::MemoryFormat::ChannelsLast)
           : tensor.dim() == 5 ? tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d)
                               : false;
}

// Of each dim; empty: as above. `scales`: number of the first argument that gives one.
std::vector<Axis> all_places(const Call &call, IntArrayRef from, IntArrayRef to, size_t scales, bool exact, bool gradient)
{
    std::vector<Axis> result;
    const bool last = may_be_last(call.tensor(0));
    for (size_t i = 0; i < from.size(); ++i) {
        if (from[i] <= 0 || to[i] <= 0)
            return {};
        want_table(to[i]);
        const IValue &given = call.args[scales + i];
        const double scale = given.isNone() ? 0 : given.toDouble(); // 0 is as none
        Axis places;
        for (int64_t j = 0; gradient && j < to[i]; ++j)
            places.push_back(read_by_gradients(j, from[i], to[i], scale, exact));
        if (!gradient)
            places = call.tensor(0).scalar_type() == at::kDouble ? places_of<double>(from[i], to[i], scale, exact, last)
                                                                 : places_of<float>(from[i], to[i], scale, exact, last);
        if (places.empty())
            return {};
        result.push_back(std::move(places));
    }
    return result;
}

bool read_places(Call &call, const std::vector<Axis> &places)
{
    if (places.empty())
        return false;
    const auto [value, order] = moved(call, 0);
    std::vector<Value> tables;
    for (const Axis &each : places)
        tables.push_back(table(each));
    call.give(at_places(value, order.plain() ? 2 : 1, tables), call.tensor(0).scalar_type(), order);
    return true;
}

// Each element gets the sum of what those that read it were given.
bool give_back(Call &call, const std::vector<Axis> &places, IntArrayRef shape)
{
    if (places.empty())
        return false;
    const auto [given, order] = moved(call, 0);
    const size_t first = order.plain() ? 2 : 1;
    std::vector<Sources> readers;
    Dims taps;
    for (size_t i = 0; i < places.size(); ++i) {
        readers.push_back(readers_of({1, static_cast<int64_t>(places[i].size()), places[i]}, shape[i + 2]));
        taps.push_back(static_cast<int64_t>(first + i));
    }
    const Value read = read_sources(cast(given, computing(given.dtype())), first, readers, 0);
    call.give(cast(reduce(OPQ_OP_sum, {read}, taps, false), given.dtype()), call.tensor(0).scalar_type(), order);
    return true;
}

// (self, output_size, scales ..)
template <size_t spatial, bool exact> bool nearest(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Dims size = call.dims(1);
    if (self.dim() != spatial + 2 || self.numel() == 0 || size.size() != spatial)
        return false;
    const Dims factor = factors(call, self.sizes().slice(2), size, 2, exact);
    if (factor.empty())
        return read_places(call, all_places(call, self.sizes().slice(2), size, 2, exact, false));
    check_device(self, call.name());
    Dims shape{self.size(0), self.size(1)}, lifted = shape, repeated = shape;
    for (size_t i = 0; i < spatial; ++i) {
        const int64_t extent = self.size(static_cast<int64_t>(i) + 2);
        shape.push_back(extent * factor[i]);
        lifted.append({extent, 1});
        repeated.append({extent, factor[i]});
    }
    give_formatted(call, reshape(expand(reshape(read(self), lifted), repeated), shape), self);
    return true;
}

// The copies of each element, added one by one in the order of the CPU.
template <size_t spatial> Value add_copies(const Value &value, IntArrayRef shape, IntArrayRef factor)
{
    std::array<int64_t, spatial + 2> start{}, step{1, 1};
    for (size_t i = 0; i < spatial; ++i)
        step[i + 2] = factor[i];
    Value sum;
    for (int64_t k = 0; k < c10::multiply_integers(factor); ++k) {
        int64_t rest = k;
        for (size_t i = spatial; i-- > 0; rest /= factor[i])
            start[i + 2] = rest % factor[i];
        const Value copy = slice(value, shape, start, step);
        sum = sum ? record(OPQ_OP_add, {sum, copy}) : copy;
    }
    return sum;
}

// (grad_output, output_size, input_size, scales ..)
template <size_t spatial, bool exact> bool nearest_backward(Call &call)
{
    const Tensor &grad = call.tensor(0);
    const Dims size = call.dims(1), shape = call.dims(2);
    if (grad.dim() != spatial + 2 || grad.numel() == 0 || size.size() != spatial || shape.size() != spatial + 2 ||
        grad.size(0) != shape[0] || grad.size(1) != shape[1] || grad.sizes().slice(2) != IntArrayRef(size) ||
        !at::isFloatingType(grad.scalar_type()))
        return false;
    const Dims factor = factors(call, IntArrayRef(shape).slice(2), size, 3, exact);
    if (factor.empty())
        return give_back(call, all_places(call, IntArrayRef(shape).slice(2), size, 3, exact, true), shape);
    const Value given = call.in(0), value = cast(given, computing(given.dtype()));
    Value sum;
    if (c10::multiply_integers(factor) <= kTerms) {
        sum = add_copies<spatial>(value, shape, factor);
    } else {
        Dims split{shape[0], shape[1]}, axes;
        for (size_t i = 0; i < spatial; ++i) {
            split.append({shape[i + 2], factor[i]});
            axes.push_back(static_cast<int64_t>(2 * i + 3));
        }
        sum = reduce(OPQ_OP_sum, {reshape(value, split)}, axes, false);
    }
    give_formatted(call, cast(sum, given.dtype()), grad);
    return true;
}

template <size_t spatial, bool exact> void adapt_nearest(torch::Library &library)
{
    const std::string name =
        std::string(exact ? "_upsample_nearest_exact" : "upsample_nearest") + std::to_string(spatial) + "d";
    adapt(library, name.c_str(), &nearest<spatial, exact>);
    adapt(library, (name + "_backward").c_str(), &nearest_backward<spatial, exact>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt_nearest<1, false>(library);
    adapt_nearest<2, false>(library);
    adapt_nearest<3, false>(library);
    adapt_nearest<1, true>(library);
    adapt_nearest<2, true>(library);
    adapt_nearest<3, true>(library);
}

} // namespace

} // namespace opq
