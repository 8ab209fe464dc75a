// Windows of the space of a tensor: what convolutions and pooling share.
#pragma once

#include "movement.h"

namespace opq
{

using Axis = std::vector<int64_t>; // a number per spatial dim

// Place i and tap t of a window: element start + i * step + t * dilation, i < count, t < taps.
struct Window {
    Axis start, count, step, taps, dilation;
};

// A list of numbers for `spatial` dims; one stands for all.
Axis per_dim(const Dims &list, int64_t spatial);
bool channels_last(const Tensor &tensor);
// Has the tensor no empty dim, or none but a batch's, before the channels?
bool has_space_in(const Tensor &tensor, int64_t spatial);
// `number` around the space, whose dims are `first` and the following ones.
Value around(const Value &value, const at::Scalar &number, size_t first, IntArrayRef low, IntArrayRef high);
// All windows, a view: [.., taps .., places .., ..], or places before taps.
Value windows_of(const Value &value, size_t first, const Window &window, bool taps_first);

} // namespace opq
