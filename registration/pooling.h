// Pooling: what windows of one size and adaptive ones share.
#pragma once

#include "sources.h"

namespace opq
{

struct Pooling {
    size_t spatial, first; // first: of the spatial dims, as the value lies
    bool last;             // channels-last
    Axis x, y, kernel, stride, padding, dilation;
};

// [batch .., space ..], or channels-last [batch, space .., channels].
Value in_order(const Tensor &tensor, const Pooling &p);
void give(Call &call, const Value &value, const Pooling &p, at::ScalarType dtype);
// Does `tensor` have x's shape with other sizes of the space?
bool has_space(const Tensor &tensor, const Tensor &x, const Axis &space);
// The windows of x with `number` around it: taps before places.
Value taps_of(const Value &x, const Pooling &p, const at::Scalar &number);
// The dims of taps.
Dims tap_dims(const Pooling &p);
// The tap along each dim of taps that are numbered row-major.
std::vector<Value> split(const Value &number, const Axis &counts);
// Where in the space the best tap of each window is: row-major. A window of nothing but -infinity has its first element.
Value best_places(const Value &best, const Pooling &p);

// 0, step, 2 * step, .. along a spatial dim of a value of this rank: a view, nothing is multiplied.
Value along(size_t rank, size_t dim, int64_t count, int64_t step = 1);
// Elements from one place of each dim to the next.
Axis apart(const Axis &sizes);
// a: may be none.
Value sum_of(const Value &a, const Value &b);

// ---- gradients: pooling_gradients.cpp
// Each element gets the sum of what the windows over it have.
Value give_to_all(const Value &value, const Pooling &p);
// Each element gets what the windows that it is the best of were given.
bool give_to_best(Call &call, const Tensor &grad, const Tensor &x, const Tensor &indices, const Pooling &p);

} // namespace opq
