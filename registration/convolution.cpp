// Convolutions and their gradients. A window of a padded tensor is a strided view, so a convolution is a product of two matrices, and
// what follows it (bias, normalisation, activation) is that product's epilogue.
//
//   y[n, o, s] = sum over c, t of  w[o, c, t] * x[n, c, s * stride + t * dilation - padding]      c, then the taps t, ascending
//
// Tensors laid out channels-last are products of the same elements in another order: the taps, then c. Gradients of x with a stride are
// one such sum for each remainder that a place leaves by the stride, over the taps that reach it.
#include "sources.h"

#include <algorithm>
#include <numeric>

namespace opq
{

namespace
{

struct Convolution {
    int64_t batch, groups, spatial;
    int64_t inner, outer; // channels of a group of x, of y
    Axis x, y, taps;      // spatial sizes
    Axis stride, padding, dilation;
    bool last; // channels-last
    opq_dtype dtype;
};

int64_t product(IntArrayRef sizes) { return c10::multiply_integers(sizes); }

// ---- layout: [batch, groups, channels, space ..], or channels-last [batch, space .., groups, channels]

// Of a tensor [batch, channels, space ..]: what `groups` parts its channels are, and the space.
Value spread(const Tensor &tensor, int64_t groups, bool last)
{
    const auto sizes = tensor.sizes();
    Dims shape;
    if (last) {
        shape.push_back(sizes[0]);
        shape.append(sizes.begin() + 2, sizes.end());
        shape.append({groups, sizes[1] / groups});
    } else {
        shape.append({sizes[0], groups, sizes[1] / groups});
        shape.append(sizes.begin() + 2, sizes.end());
    }
    return reshape(read_ordered(tensor, static_cast<int>(tensor.dim()), last ? last_order(tensor.dim()) : Order{}),
                   shape);
}

size_t first_space(bool last) { return last ? 1 : 3; }

// Zeros around the space.
Value zeros_around(const Value &value, bool last, IntArrayRef low, IntArrayRef high)
{
    return around(value, 0, first_space(last), low, high);
}

// Every window of a padded value, as a matrix for each group: [batch, groups, channels * taps, places]; channels-last
// [batch, groups, places, taps * channels].
Value windows(const Value &value, bool last, const Window &w)
{
    const Dims shape = shape_of(value);
    const size_t spatial = w.start.size(), group = last ? spatial + 1 : 1;
    const int64_t places = product(w.count), terms = shape[group + 1] * product(w.taps);
    const Value view = windows_of(value, first_space(last), w, !last);
    if (!last)
        return reshape(view, {shape[0], shape[1], terms, places});
    Dims order{0, static_cast<int64_t>(2 * spatial + 1)};
    for (size_t d = 1; d <= 2 * spatial; ++d)
        order.push_back(static_cast<int64_t>(d));
    order.push_back(static_cast<int64_t>(2 * spatial + 2));
    return reshape(permute(view, order), {shape[0], shape[group], places, terms});
}

// One group is no batch dim.
Value ungrouped(const Value &value, size_t group)
{
    Dims shape = shape_of(value);
    if (shape[group] != 1)
        return value;
    shape.erase(shape.begin() + static_cast<ptrdiff_t>(group));
    return reshape(value, shape);
}

// weights [groups, outer, terms] over windows: [batch, groups, outer, places]; channels-last [batch, groups, places, outer], or with a
// channel for each group [batch, places, groups].
Value apply(const Value &weight, const Value &windowed, bool last)
{
    const Dims of = shape_of(weight), shape = shape_of(windowed);
    if (last && of[0] > 1 && of[1] == 1) {
        const Value beside = reshape(permute(windowed, {0, 2, 1, 3}), {shape[0], shape[2], shape[1], 1, shape[3]});
        const Value turned = stored(permute(reshape(weight, {of[0], of[2]}), {1, 0})); /* channels side by side */
        return matmul(beside, reshape(permute(turned, {1, 0}), {of[0], of[2], 1}));
    }
    const Value w = ungrouped(weight, 0), x = ungrouped(windowed, 1);
    return last ? matmul(x, w, false, true) : matmul(w, x);
}

// What apply() gives, as [batch, channels, space ..]; channels-last [batch, space .., channels].
Value gathered(const Value &value, const Convolution &c, int64_t channels, const Axis &space)
{
    Dims shape{c.batch};
    if (!c.last)
        shape.push_back(c.groups * channels);
    shape.append(space.begin(), space.end());
    if (!c.last)
        return reshape(value, shape);
    shape.push_back(c.groups * channels);
    if (c.groups == 1 || channels == 1)
        return reshape(value, shape);
    return reshape(permute(value, {0, 2, 1, 3}), shape);
}

void give_as_it_lies(Call &call, const Value &value, const Convolution &c, at::ScalarType dtype)
{
    call.give(value, dtype, c.last ? last_order(c.spatial + 2) : Order{});
}

// ---- weights

// [groups * outer, inner, taps ..] as [groups, outer, inner, taps ..].
Value weights(const Tensor &weight, const Convolution &c)
{
    Dims shape{c.groups, weight.size(0) / c.groups, weight.size(1)};
    shape.append(weight.sizes().begin() + 2, weight.sizes().end());
    return reshape(read(weight), shape);
}

// [groups, a, b, taps ..] as matrices [groups, a, terms] with terms in the order of windows(): b, taps, or channels-last taps, b. `turned`:
// [groups, b, a, taps ..] is given.
Value terms(const Value &weight, bool last, bool turned)
{
    Dims order{0, turned ? 2 : 1};
    const int64_t b = turned ? 1 : 2, rank = weight.rank();
    if (!last)
        order.push_back(b);
    for (int64_t d = 3; d < rank; ++d)
        order.push_back(d);
    if (last)
        order.push_back(b);
    const Value ordered = permute(weight, order);
    const Dims shape = shape_of(ordered);
    return reshape(ordered, {shape[0], shape[1], product(IntArrayRef(shape).slice(2))});
}

// ---- y from x

Value forward(const Tensor &x, const Tensor &weight, const Convolution &c)
{
    const Value windowed = windows(zeros_around(spread(x, c.groups, c.last), c.last, c.padding, c.padding), c.last,
                                   {Axis(static_cast<size_t>(c.spatial), 0), c.y, c.stride, c.taps, c.dilation});
    return gathered(apply(terms(weights(weight, c), c.last, false), windowed, c.last), c, c.outer, c.y);
}

// ---- x from y: the gradient, or a transposed convolution

// Along one dim, the places x = remainder + stride * i and the taps that reach them: tap first + j * step, from
// y[i + start + (taps - 1 - j) * move].
struct Phase {
    int64_t count, taps, first, step, start, move;
};

Phase phase_of(const Convolution &c, size_t i, int64_t remainder)
{
    const int64_t s = c.stride[i], d = c.dilation[i], shared = std::gcd(s, d), at = remainder + c.padding[i];
    Phase p{(c.x[i] - remainder + s - 1) / s, 0, 0, s / shared, 0, d / shared};
    while (p.first < p.step && (at - p.first * d) % s != 0)
        ++p.first;
    if (p.first < p.step && p.first < c.taps[i])
        p.taps = (c.taps[i] - p.first + p.step - 1) / p.step;
    if (p.taps > 0)
        p.start = (at - p.first * d) / s - (p.taps - 1) * p.move;
    return p;
}

// The taps of a phase, the last one first.
Value taps_of(const Value &weight, const std::vector<Phase> &phases)
{
    Dims shape = shape_of(weight), starts(shape.size(), 0), steps(shape.size(), 1);
    for (size_t i = 0; i < phases.size(); ++i) {
        shape[i + 3] = phases[i].taps;
        starts[i + 3] = phases[i].first + (phases[i].taps - 1) * phases[i].step;
        steps[i + 3] = phases[i].taps > 1 ? -phases[i].step : 1;
    }
    return slice(weight, shape, starts, steps);
}

struct Part {
    Dims remainder;
    std::vector<Phase> phases;
};

// Every combination of remainders; false if some places are out of any tap's reach.
bool parts_of(const Convolution &c, std::vector<Part> &out)
{
    bool all = true;
    int64_t parts = 1;
    for (const int64_t stride : c.stride)
        want_table(parts, stride), parts *= stride;
    for (int64_t n = 0; n < parts; ++n) {
        Part part{Dims(static_cast<size_t>(c.spatial), 0), {}};
        int64_t rest = n;
        for (size_t i = c.stride.size(); i-- > 0; rest /= c.stride[i])
            part.remainder[i] = rest % c.stride[i];
        bool any = true, reached = true;
        for (size_t i = 0; i < c.stride.size(); ++i) {
            part.phases.push_back(phase_of(c, i, part.remainder[i]));
            any = any && part.phases[i].count > 0;
            reached = reached && part.phases[i].taps > 0;
        }
        if (any && reached)
            out.push_back(std::move(part));
        all = all && (reached || !any);
    }
    return all;
}

// `value` with a part of its places replaced: [batch, channels, space ..], channels-last [batch, space .., channels].
Value placed(const Value &value, const Value &part, const Convolution &c, const Dims &remainder)
{
    Dims strides = ordered_strides(shape_of(value), Order{});
    int64_t offset = 0;
    for (size_t i = 0; i < remainder.size(); ++i) {
        const size_t d = i + (c.last ? 1 : 2);
        offset += remainder[i] * strides[d];
        strides[d] *= c.stride[i];
    }
    return updated(value, part, offset, strides);
}

// `bias` (or none), which broadcasts, is added to each part: the last one would see sums that are rounded already.
Value backward(const Value &y, const Value &weight, const Convolution &c, const Value &bias = Value())
{
    const auto biased = [&](const Value &sum) { return bias ? record(OPQ_OP_add, {sum, bias}) : sum; };
    const auto spatial = static_cast<size_t>(c.spatial);
    std::vector<Part> parts;
    const bool all = parts_of(c, parts);
    Axis low(spatial, 0), high(spatial, 0);
    for (const Part &part : parts)
        for (size_t i = 0; i < spatial; ++i) {
            const Phase &p = part.phases[i];
            low[i] = std::max(low[i], -p.start);
            high[i] = std::max(high[i], p.start + p.count + (p.taps - 1) * p.move - c.y[i]);
        }
    const Value wide = zeros_around(y, c.last, low, high);
    Dims shape{c.batch};
    if (!c.last)
        shape.push_back(c.groups * c.inner);
    shape.append(c.x.begin(), c.x.end());
    if (c.last)
        shape.push_back(c.groups * c.inner);
    Value result;
    if (!all || parts.empty())
        result = biased(expand(scalar(0, c.dtype), shape));
    else if (parts.size() > 1)
        result = record_typed(OPQ_OP_undefined, c.dtype, shape, {});
    for (const Part &part : parts) {
        Window w{Axis(spatial), Axis(spatial), Axis(spatial, 1), Axis(spatial), Axis(spatial)};
        for (size_t i = 0; i < spatial; ++i) {
            w.start[i] = part.phases[i].start + low[i];
            w.count[i] = part.phases[i].count;
            w.taps[i] = part.phases[i].taps;
            w.dilation[i] = part.phases[i].move;
        }
        const Value turned = terms(taps_of(weight, part.phases), c.last, true);
        const Value here = biased(gathered(apply(turned, windows(wide, c.last, w), c.last), c, c.inner, w.count));
        result = result ? placed(result, here, c, part.remainder) : here;
    }
    return result;
}

// ---- the gradient of weights: [groups, outer, inner, taps ..], channels-last [groups, outer, taps .., inner]

// With one channel for each group these are products of single numbers, which no engine can pack: a sum for each tap and lane. Lanes are
// channels, or the places along the last dim, whose sums are added up behind it.
Value depthwise_gradient(const Value &x, const Value &y, const Convolution &c, const Window &every)
{
    const int64_t places = product(c.y), taps = product(c.taps), along = c.y.back(), rest = places / along;
    const Value wide = zeros_around(x, c.last, c.padding, c.padding);
    Value windowed = windows_of(wide, first_space(c.last), every, false), grad, value;
    if (c.last) { // [batch, taps, groups, outer]
        windowed = permute(reshape(windowed, {c.batch, taps, places, c.groups}), {0, 1, 3, 2});
        grad = permute(reshape(y, {c.batch, places, c.groups, c.outer}), {0, 2, 3, 1});
        value = matmul(reshape(grad, {c.batch, 1, c.groups, c.outer, 1, places}),
                       reshape(windowed, {c.batch, taps, c.groups, 1, places, 1}));
        if (c.batch > 1)
            value = reduce(OPQ_OP_sum, {value}, {0}, false);
        return permute(reshape(value, {taps, c.groups, c.outer}), {1, 2, 0});
    }
    if (rest == 1) { // a row alone has no other places to add up in its lanes
        windowed = reshape(windowed, {c.batch, c.groups, 1, taps, along});
        grad = reshape(y, {c.batch, c.groups, c.outer, 1, along});
        value = reduce(OPQ_OP_sum, {record(OPQ_OP_mul, {grad, windowed})}, {4}, false);
        return c.batch > 1 ? reduce(OPQ_OP_sum, {value}, {0}, false) : value;
    }
    windowed = permute(reshape(windowed, {c.batch, c.groups, taps, rest, along}), {1, 2, 4, 0, 3});
    grad = permute(reshape(y, {c.batch, c.groups, c.outer, rest, along}), {1, 2, 4, 0, 3});
    value = matmul(reshape(grad, {c.groups, c.outer, 1, along, 1, c.batch * rest}),
                   reshape(windowed, {c.groups, 1, taps, along, c.batch * rest, 1}));
    return reduce(OPQ_OP_sum, {reshape(value, {c.groups, c.outer, taps, along})}, {3}, false);
}

Value weight_gradient(const Value &x, const Value &y, const Convolution &c)
{
    const auto spatial = static_cast<size_t>(c.spatial);
    const Window every{Axis(spatial, 0), c.taps, c.dilation, c.y, c.stride}; // places and taps change sides
    const int64_t places = product(c.y), taps = product(c.taps);
    if (c.groups > 1 && c.inner == 1)
        return depthwise_gradient(x, y, c, every);
    const Value wide = zeros_around(x, c.last, c.padding, c.padding);
    Value windowed = windows(wide, c.last, every), grad;
    if (c.last) { // [batch, groups, taps, places * inner] and [batch, places, groups, outer]
        windowed = reshape(windowed, {c.batch, c.groups, taps, places, c.inner});
        windowed = reshape(permute(windowed, {1, 0, 3, 2, 4}), {c.groups, c.batch * places, taps * c.inner});
        grad = permute(reshape(y, {c.batch * places, c.groups, c.outer}), {1, 0, 2});
        return matmul(grad, windowed, true, false);
    }
    // [batch, groups, inner * places, taps] and [batch, groups, outer, places]
    windowed = reshape(windowed, {c.batch, c.groups, c.inner, places, taps});
    windowed = reshape(permute(windowed, {1, 0, 3, 2, 4}), {c.groups, c.batch * places, c.inner * taps});
    grad = permute(reshape(y, {c.batch, c.groups, c.outer, places}), {1, 2, 0, 3});
    return matmul(reshape(grad, {c.groups, c.outer, c.batch * places}), windowed);
}

// ---- arguments

// PyTorch's own kernels of volumes of doubles are not channels-last.
bool wants_last(const Tensor &x, const Tensor &weight)
{
    return (channels_last(x) || channels_last(weight)) && !(x.dim() == 5 && x.scalar_type() == at::kDouble);
}

// Of x, y (or its sizes) and weight of a convolution from x to y. False: for PyTorch to judge, or not ours.
bool describe(const Tensor &x, IntArrayRef y, const Tensor &weight, Convolution &c)
{
    c.spatial = x.dim() - 2;
    c.batch = x.size(0);
    c.dtype = core_dtype(x.scalar_type());
    if (c.spatial < 1 || c.spatial > 3 || weight.dim() != x.dim() || static_cast<int64_t>(y.size()) != x.dim() ||
        c.groups < 1 || !is_float(c.dtype) || x.scalar_type() != weight.scalar_type() || x.numel() == 0 ||
        weight.numel() == 0 || product(y) == 0 || x.size(1) != weight.size(1) * c.groups ||
        weight.size(0) % c.groups != 0 || y[1] != weight.size(0))
        return false;
    c.inner = weight.size(1);
    c.outer = weight.size(0) / c.groups;
    c.x = Axis(x.sizes().begin() + 2, x.sizes().end());
    c.y = Axis(y.begin() + 2, y.end());
    c.taps = Axis(weight.sizes().begin() + 2, weight.sizes().end());
    for (size_t i = 0; i < c.x.size(); ++i)
        if (c.stride[i] < 1 || c.dilation[i] < 1 || c.padding[i] < 0 ||
            (c.x[i] + 2 * c.padding[i] - c.dilation[i] * (c.taps[i] - 1) - 1) / c.stride[i] + 1 < c.y[i])
            return false;
    return true;
}

// stride, padding, dilation from argument `at` on; then transposed, output_padding, groups.
bool read_numbers(const Call &call, size_t at, int64_t spatial, Convolution &c)
{
    c.stride = per_dim(call.dims(at), spatial);
    c.padding = per_dim(call.dims(at + 1), spatial);
    c.dilation = per_dim(call.dims(at + 2), spatial);
    c.groups = call.integer(at + 5);
    const auto count = static_cast<size_t>(spatial);
    return spatial > 0 && c.stride.size() == count && c.padding.size() == count && c.dilation.size() == count;
}

// What a transposed convolution of x, or another one, makes.
bool result_size(const Tensor &x, const Tensor &weight, bool transposed, const Dims &more, const Convolution &c, Dims &out)
{
    if (x.dim() != weight.dim() || x.dim() < 3)
        return false;
    out = {x.size(0), transposed ? weight.size(1) * c.groups : weight.size(0)};
    for (int64_t d = 2; d < x.dim(); ++d) {
        const auto i = static_cast<size_t>(d - 2);
        const int64_t reach = c.dilation[i] * (weight.size(d) - 1), extra = more.size() == 1  ? more[0]
                                                                            : i < more.size() ? more[i]
                                                                                              : 0;
        if (c.stride[i] < 1)
            return false;
        const int64_t size = x.size(d) + 2 * c.padding[i] - reach - 1;
        if (!transposed && size < 0)
            return false;
        if (transposed && (extra < 0 || extra >= std::max(c.stride[i], c.dilation[i])))
            return false;
        out.push_back(transposed ? (x.size(d) - 1) * c.stride[i] - 2 * c.padding[i] + reach + extra + 1
                                 : size / c.stride[i] + 1);
        if (out.back() < 1)
            return false;
    }
    return true;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool convolution(Call &call)
{
    const Tensor &x = call.tensor(0), &weight = call.tensor(1);
    const bool transposed = call.flag(6);
    Convolution c{};
    Dims size;
    for (size_t i = 0; i < 3; ++i)
        if (!call.none(i))
            check_device(call.tensor(i), call.name());
    if (x.dim() < 3 || !read_numbers(call, 3, x.dim() - 2, c) ||
        !result_size(x, weight, transposed, call.dims(7), c, size))
        return false;
    c.last = wants_last(x, weight);
    if (!call.none(2) &&
        (call.tensor(2).scalar_type() != x.scalar_type() || call.tensor(2).sizes() != IntArrayRef(size[1])))
        return false;
    Value y, bias;
    if (!call.none(2)) {
        Dims along{size[1]};
        along.resize(c.last ? 1 : x.dim() - 1, 1);
        bias = reshape(call.in(2), along);
    }
    if (transposed) { // y takes the part of x
        const Tensor like = at::empty(size, x.options().device(at::kMeta));
        if (!describe(like, x.sizes(), weight, c))
            return false;
        y = backward(spread(x, c.groups, c.last), weights(weight, c), c, bias);
    } else {
        if (!describe(x, size, weight, c))
            return false;
        y = forward(x, weight, c);
        if (bias)
            y = record(OPQ_OP_add, {y, bias});
    }
    give_as_it_lies(call, y, c, x.scalar_type());
    return true;
}

void give_weight_gradient(Call &call, const Value &value, const Convolution &c, const Tensor &weight)
{
    Dims shape{weight.size(0)};
    if (!c.last)
        shape.push_back(weight.size(1));
    shape.append(c.taps.begin(), c.taps.end());
    if (c.last)
        shape.push_back(weight.size(1));
    give_as_it_lies(call, reshape(value, shape), c, weight.scalar_type());
}

// The sum over all but channels, in the order in which the gradient lies: where channels come last, rows are added.
Value bias_gradient(const Tensor &grad, bool last)
{
    Dims order{0}, axes{0};
    for (int64_t d = 2; d < grad.dim(); ++d) {
        order.push_back(d);
        axes.push_back(last ? d - 1 : d);
    }
    order.push_back(1);
    return reduce(OPQ_OP_sum, {last ? permute(read(grad), order) : read(grad)}, axes, false);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// output_mask)
bool convolution_backward(Call &call)
{
    const Tensor &grad = call.tensor(0), &x = call.tensor(1), &weight = call.tensor(2);
    const bool transposed = call.flag(7);
    const auto mask = call.args[10].toBoolList();
    Convolution c{};
    for (size_t i = 0; i < 3; ++i)
        check_device(call.tensor(i), call.name());
    if (x.dim() < 3 || grad.dim() != x.dim() || grad.scalar_type() != x.scalar_type() ||
        !read_numbers(call, 4, x.dim() - 2, c))
        return false;
    // A transposed convolution goes from y to x of another one.
    const Tensor &wide = transposed ? grad : x, &narrow = transposed ? x : grad;
    c.last = wants_last(x, weight);
    if (!describe(wide, narrow.sizes(), weight, c))
        return false;
    if (mask[0] && !transposed)
        give_as_it_lies(call, backward(spread(grad, c.groups, c.last), weights(weight, c), c), c, x.scalar_type());
    else if (mask[0])
        give_as_it_lies(call, forward(grad, weight, c), c, x.scalar_type());
    else
        call.give_none();
    if (mask[1]) {
        const Value y = spread(narrow, c.groups, c.last);
        give_weight_gradient(call, weight_gradient(spread(wide, c.groups, c.last), y, c), c, weight);
    } else {
        call.give_none();
    }
    if (mask[2])
        call.give(bias_gradient(grad, c.last));
    else
        call.give_none();
    return true;
}

// Tracing records no convolution: where PyTorch's own kernel runs, it calls _convolution, and that is recorded. So a traced convolution
// of ours is a call of _convolution, too.
void traced(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack)
{
    static const auto recorded = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "");
    const size_t arguments = op.schema().arguments().size();
    const IValue &x = (*stack)[stack->size() - arguments];
    if (!x.isTensor() || !on_device(x.toTensor()))
        return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Tracer),
                                  stack);
    for (const bool flag : {false, false, true, true}) // of cuDNN: benchmark, deterministic, enabled, TF32
        stack->emplace_back(flag);
    recorded.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "convolution", &convolution);
    adapt(library, "_convolution", &convolution);
    adapt(library, "convolution_backward", &convolution_backward);
}

TORCH_LIBRARY_IMPL(aten, Tracer, library)
{
    library.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&traced>());
}

} // namespace

} // namespace opq
