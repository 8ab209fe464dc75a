// Unfold and fold: the windows of an image as columns, and the sum of what windows have for each element of an image.
//
// The first is a view. For the second each element reads the windows over it, by a table for each dim.
#include "sources.h"

#include <algorithm>

namespace opq
{

namespace
{

// im2col(self, kernel_size, dilation, padding, stride): [batch, channels * taps, places]
bool im2col(Call &call)
{
    const Tensor &x = call.tensor(0);
    const Axis kernel = per_dim(call.dims(1), 2), dilation = per_dim(call.dims(2), 2),
               padding = per_dim(call.dims(3), 2), stride = per_dim(call.dims(4), 2);
    if (x.dim() < 3 || x.dim() > 4 || !has_space_in(x, 2) || is_raw(x) || kernel.size() != 2 || dilation.size() != 2 ||
        padding.size() != 2 || stride.size() != 2)
        return false;
    Window w{Axis(2, 0), Axis(2), stride, kernel, dilation};
    for (size_t i = 0; i < 2; ++i) {
        if (kernel[i] < 1 || dilation[i] < 1 || padding[i] < 0 || stride[i] < 1)
            return false;
        const int64_t room =
            x.size(x.dim() - 2 + static_cast<int64_t>(i)) + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
        if (room < 0)
            return false;
        w.count[i] = room / stride[i] + 1;
    }
    check_device(x, call.name());
    const auto first = static_cast<size_t>(x.dim() - 2);
    const Value view = windows_of(around(read(x), 0, first, padding, padding), first, w, true);
    const int64_t rows = x.size(-3) * kernel[0] * kernel[1], places = w.count[0] * w.count[1];
    call.give(x.dim() == 4 ? reshape(view, {x.size(0), rows, places}) : reshape(view, {rows, places}), x.scalar_type());
    return true;
}

// col2im(self, output_size, kernel_size, dilation, padding, stride): [batch, channels, space]
bool col2im(Call &call)
{
    const Tensor &x = call.tensor(0);
    const Axis size = per_dim(call.dims(1), 2), kernel = per_dim(call.dims(2), 2), dilation = per_dim(call.dims(3), 2),
               padding = per_dim(call.dims(4), 2), stride = per_dim(call.dims(5), 2);
    if (x.dim() < 2 || x.dim() > 3 || !has_space_in(x, 1) || !at::isFloatingType(x.scalar_type()))
        return false;
    for (const Axis *axis : {&size, &kernel, &dilation, &padding, &stride})
        if (axis->size() != 2 || *std::min_element(axis->begin(), axis->end()) < (axis == &padding ? 0 : 1))
            return false;
    Axis count;
    std::vector<Sources> readers;
    for (size_t i = 0; i < 2; ++i) {
        const int64_t room = size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
        if (room < 0)
            return false;
        count.push_back(room / stride[i] + 1);
        readers.push_back(
            readers_of(sources_of(size[i], -padding[i], count[i], stride[i], kernel[i], dilation[i]), size[i]));
    }
    const int64_t taps = kernel[0] * kernel[1], batch = x.dim() == 3 ? x.size(0) : 1, channels = x.size(-2) / taps;
    if (x.size(-2) % taps != 0 || x.size(-1) != count[0] * count[1])
        return false;
    const Value given = call.in(0); // a dim's windows, numbered as their readers have it
    const Value apart = reshape(given, {batch, channels, kernel[0], kernel[1], count[0], count[1]});
    const Value numbered =
        reshape(permute(apart, {0, 1, 2, 4, 3, 5}), {batch, channels, kernel[0] * count[0], kernel[1] * count[1]});
    const Value read = read_sources(cast(numbered, computing(given.dtype())), 2, readers, 0);
    const Value sum = cast(reduce(OPQ_OP_sum, {read}, Dims{2, 3}, false), given.dtype());
    call.give(x.dim() == 3 ? sum : reshape(sum, {channels, size[0], size[1]}), x.scalar_type());
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "im2col", &im2col);
    adapt(library, "col2im", &col2im);
}

} // namespace

} // namespace opq
