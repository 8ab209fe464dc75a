// Nearest-neighbour upsampling by whole factors, which repeats elements: a view. Other factors are extern.
#include "movement.h"

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
        if (!repeats<float>(from[i], factor, call.args[scales + i], exact) ||
            !repeats<double>(from[i], factor, call.args[scales + i], exact))
            return {};
        result.push_back(factor);
    }
    return result;
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
        return false;
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
        return false;
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
