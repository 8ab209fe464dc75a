// Batch normalisation over every axis but the second. The running statistics are arguments that the operator changes without its
// schema saying so; their new values are written like any in-place result.
#include "movement.h"

namespace opq
{

namespace
{

struct Norm {
    Value x;     // in the dtype to compute in, as it lies in memory if that is channels-last
    Order order; // of its dims there
    Dims axes;   // reduced
    Dims shape;  // of one number per channel, broadcastable against x
    int64_t channel_count;
    opq_dtype dtype;        // to compute in: float for halves
    opq_dtype inner, outer; // of parameters and statistics; of x and the result
    double count;           // elements per channel

    Value channels(const Value &value) const { return cast(reshape(value, shape), dtype); }
    Value statistic(const Value &value) const { return cast(reshape(value, {channel_count}), inner); }
    // A tensor of x's shape.
    Value read_like(const Tensor &tensor) const
    {
        return cast(read_ordered(tensor, static_cast<int>(tensor.dim()), order), dtype);
    }
};

// Parameters and statistics have one dtype: that of x, or float beside an x of half precision.
std::optional<Norm> read_norm(const Call &call, size_t input, std::initializer_list<size_t> parameters)
{
    const Tensor &x = call.tensor(input);
    if (x.dim() < 2 || x.numel() == 0 || !at::isFloatingType(x.scalar_type()))
        return std::nullopt;
    std::optional<at::ScalarType> inner;
    for (const size_t i : parameters) {
        if (call.none(i))
            continue;
        const Tensor &parameter = call.tensor(i);
        if (parameter.sizes() != IntArrayRef(x.size(1)) ||
            parameter.scalar_type() != inner.value_or(parameter.scalar_type()))
            return std::nullopt;
        inner = parameter.scalar_type();
    }
    const at::ScalarType outer = x.scalar_type(), dtype = inner.value_or(outer);
    if (dtype != outer && !(dtype == at::kFloat && at::isReducedFloatingType(outer)))
        return std::nullopt;
    const opq_dtype compute = computing(core_dtype(outer));
    check_device(x, call.name());
    const Order order = format_order(x);
    const int64_t channel = order.plain() ? 1 : x.dim() - 1;
    Norm norm{
        {}, order, {}, Dims(static_cast<size_t>(x.dim()), 1), x.size(1), compute, core_dtype(dtype), core_dtype(outer),
        0};
    norm.x = norm.read_like(x);
    for (int64_t axis = 0; axis < x.dim(); ++axis)
        if (axis != channel)
            norm.axes.push_back(axis);
    norm.shape[static_cast<size_t>(channel)] = x.size(1);
    norm.count = static_cast<double>(x.numel()) / static_cast<double>(x.size(1));
    return norm;
}

Value binary(opq_op op, const Value &a, const Value &b) { return record(op, {a, b}); }

Value inverse_deviation(const Value &variance, double eps)
{
    return record(OPQ_OP_rsqrt, {binary(OPQ_OP_add, variance, scalar(eps))});
}

// running = (1 - momentum) * running + momentum * seen
void update_running(const Norm &norm, const Tensor &running, const Value &seen, double momentum)
{
    const Value kept = binary(OPQ_OP_mul, norm.channels(read(running)), scalar(1 - momentum));
    write(running, norm.statistic(binary(OPQ_OP_add, kept, binary(OPQ_OP_mul, seen, scalar(momentum)))));
}

// native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps) -> output, save_mean, save_invstd
bool batch_norm(Call &call)
{
    const auto norm = read_norm(call, 0, {1, 2, 3, 4});
    const bool training = call.flag(5);
    if (!norm || (!training && (call.none(3) || call.none(4))))
        return false;
    const double momentum = call.real(6), eps = call.real(7);
    Value mean, inverse;
    if (training) {
        mean = reduce(OPQ_OP_mean, {norm->x}, norm->axes, true);
        const Value variance = reduce(OPQ_OP_var, {norm->x, scalar(0.0)}, norm->axes, true);
        inverse = inverse_deviation(variance, eps);
        if (!call.none(3))
            update_running(*norm, call.tensor(3), mean, momentum);
        if (!call.none(4)) {
            const Value unbiased = binary(OPQ_OP_mul, variance, scalar(norm->count / std::max(norm->count - 1, 1.0)));
            update_running(*norm, call.tensor(4), unbiased, momentum);
        }
    } else {
        mean = norm->channels(call.in(3));
        inverse = inverse_deviation(norm->channels(call.in(4)), eps);
    }
    Value out = binary(OPQ_OP_mul, binary(OPQ_OP_sub, norm->x, mean), inverse);
    if (!call.none(1))
        out = binary(OPQ_OP_mul, out, norm->channels(call.in(1)));
    if (!call.none(2))
        out = binary(OPQ_OP_add, out, norm->channels(call.in(2)));
    call.give(cast(out, norm->outer), call.tensor(0).scalar_type(), norm->order);
    call.give(training ? norm->statistic(mean) : full(0, norm->inner, {0}));
    call.give(training ? norm->statistic(inverse) : full(0, norm->inner, {0}));
    return true;
}

// native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask)
bool batch_norm_backward(Call &call)
{
    const auto norm = read_norm(call, 1, {2, 3, 4});
    const bool training = call.flag(7);
    if (!norm || !same_dtype({&call.tensor(0), &call.tensor(1)}) || call.tensor(0).sizes() != call.tensor(1).sizes() ||
        (training && (call.none(5) || call.none(6))))
        return false;
    const auto mask = call.args[9].toBoolList();
    check_device(call.tensor(0), call.name());
    const Value grad = norm->read_like(call.tensor(0));
    const Value mean = norm->channels(call.in(training ? 5 : 3));
    const Value inverse =
        training ? norm->channels(call.in(6)) : inverse_deviation(norm->channels(call.in(4)), call.real(8));
    const Value centred = binary(OPQ_OP_mul, binary(OPQ_OP_sub, norm->x, mean), inverse);
    const Value sum = reduce(OPQ_OP_sum, {grad}, norm->axes, true);
    const Value dot = reduce(OPQ_OP_sum, {binary(OPQ_OP_mul, grad, centred)}, norm->axes, true);
    if (mask[0]) {
        Value slope = grad;
        if (training) {
            const Value share = scalar(1 / norm->count);
            const Value drift = binary(OPQ_OP_add, sum, binary(OPQ_OP_mul, centred, dot));
            slope = binary(OPQ_OP_sub, grad, binary(OPQ_OP_mul, drift, share));
        }
        const Value factor = call.none(2) ? inverse : binary(OPQ_OP_mul, inverse, norm->channels(call.in(2)));
        call.give(cast(binary(OPQ_OP_mul, slope, factor), norm->outer), call.tensor(1).scalar_type(), norm->order);
    } else {
        call.give_none();
    }
    if (mask[1])
        call.give(norm->statistic(dot));
    else
        call.give_none();
    if (mask[2])
        call.give(norm->statistic(sum));
    else
        call.give_none();
    return true;
}

// What graphs of AOTAutograd have in its place.
using Maybe = std::optional<Tensor>;
using Normed = std::tuple<Tensor, Tensor, Tensor>;

Normed legit(const Tensor &x, const Maybe &weight, const Maybe &bias, Tensor &mean, Tensor &variance, bool training,
             double momentum, double eps)
{
    return at::native_batch_norm(x, weight, bias, mean, variance, training, momentum, eps);
}

Normed without_statistics(const Tensor &x, const Maybe &weight, const Maybe &bias, bool training, double momentum,
                          double eps)
{
    return at::native_batch_norm(x, weight, bias, {}, {}, training, momentum, eps);
}

Normed without_training(const Tensor &x, const Maybe &weight, const Maybe &bias, const Tensor &mean,
                        const Tensor &variance, double momentum, double eps)
{
    return at::native_batch_norm(x, weight, bias, mean, variance, false, momentum, eps);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> functional(const Tensor &x, const Maybe &weight, const Maybe &bias,
                                                              const Tensor &mean, const Tensor &variance, bool training,
                                                              double momentum, double eps)
{
    const Tensor new_mean = mean.clone(), new_variance = variance.clone();
    const auto [out, save_mean, save_inverse] =
        at::native_batch_norm(x, weight, bias, new_mean, new_variance, training, momentum, eps);
    return {out, save_mean, save_inverse, new_mean, new_variance};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "native_batch_norm", &batch_norm);
    adapt(library, "native_batch_norm_backward", &batch_norm_backward);
    library.impl("_native_batch_norm_legit", OPQ_KERNEL(legit));
    library.impl("_native_batch_norm_legit.no_stats", OPQ_KERNEL(without_statistics));
    library.impl("_native_batch_norm_legit_no_training", OPQ_KERNEL(without_training));
    library.impl("_native_batch_norm_legit_functional", OPQ_KERNEL(functional));
}

} // namespace

} // namespace opq
