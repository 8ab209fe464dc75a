// Activations and losses whose gradients depend on more than the op table's rows say: what worked in place, and binary cross entropy.
#include "adapter.h"
#include "checks.h"

namespace opq
{

namespace
{

// Some arguments, tensors of one dtype that broadcast to one shape.
struct Terms : Aligned {
    at::ScalarType dtype = at::ScalarType::Undefined;
    Dims shape;

    void give(Call &call, const Value &result) { call.give(cast(result, core_dtype(dtype)), dtype, std::move(order)); }
};

// False: for PyTorch to judge.
bool align(const Call &call, std::initializer_list<size_t> arguments, Terms &out)
{
    out.dtype = call.tensor(*arguments.begin()).scalar_type();
    for (const size_t i : arguments) {
        check_device(call.tensor(i), call.name());
        if (call.tensor(i).scalar_type() != out.dtype)
            return false;
        out.shape = at::infer_size_dimvector(out.shape, call.tensor(i).sizes());
    }
    if (!at::isFloatingType(out.dtype) || is_raw(call.tensor(*arguments.begin())))
        return false;
    static_cast<Aligned &>(out) = aligned(call, arguments);
    return true;
}

// A result has the sign of what it was made of, if the slope has none.
void check_in_place(bool is_result, double slope, const char *name)
{
    TORCH_CHECK(!is_result || slope >= 0, "In-place ", name,
                " backward calculation is triggered with a negative slope which is not supported. "
                "This is caused by calling in-place forward function with a negative slope, "
                "please call out-of-place version instead.");
}

// leaky_relu_backward(grad_output, self, negative_slope, self_is_result)
bool leaky_relu_backward(Call &call)
{
    Terms x;
    check_in_place(call.flag(3), call.real(2), "leakyReLu");
    if (!align(call, {0, 1}, x))
        return false;
    x.give(call, record(OPQ_OP_leaky_relu_backward, {x[0], x[1], scalar(call.scalar(2))}));
    return true;
}

// elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result)
bool elu_backward(Call &call)
{
    const Value alpha = scalar(call.scalar(1)), factor = scalar(call.scalar(2)), inside = scalar(call.scalar(3));
    Terms x;
    check_in_place(call.flag(4), call.real(1), "elu");
    if (!align(call, {0, 5}, x))
        return false;
    if (!call.flag(4)) {
        x.give(call, record(OPQ_OP_elu_backward, {x[0], alpha, factor, inside, x[1]}));
        return true;
    }
    const opq_dtype dtype = computing(core_dtype(x.dtype));
    const Value grad = cast(x[0], dtype), result = cast(x[1], dtype);
    const Value below = times(times(grad, inside), plus(result, scalar(call.real(1) * call.real(2))));
    x.give(call, record(OPQ_OP_where, {record(OPQ_OP_gt, {result, scalar(0)}), times(grad, factor), below}));
    return true;
}

// Neighbours of halves are those of their own dtype, in which kernels do not compute.
bool nextafter(Call &call)
{
    const at::ScalarType common = common_type(call);
    return (common == at::kFloat || common == at::kDouble) && pointwise(call);
}

// binary_cross_entropy(self, target, weight, reduction)
bool binary_cross_entropy(Call &call)
{
    Terms x;
    const bool weighted = !call.none(2);
    if (call.tensor(0).sizes() != call.tensor(1).sizes() ||
        !(weighted ? align(call, {0, 1, 2}, x) : align(call, {0, 1}, x)) ||
        call.tensor(0).sizes() != IntArrayRef(x.shape))
        return false;
    const Value zero = number(0, x[0].dtype()), one = number(1, x[0].dtype());
    const auto inside = [&](const Value &value) {
        return record(OPQ_OP_bitwise_and, {record(OPQ_OP_ge, {value, zero}), record(OPQ_OP_le, {value, one})});
    };
    const Value known =
        record(OPQ_OP_bitwise_and,
               {holding(inside(x[0]), "aten::binary_cross_entropy: all elements of input should be between 0 and 1"),
                holding(inside(x[1]), "aten::binary_cross_entropy: all elements of target should be between 0 and 1")});
    Value losses = record(OPQ_OP_where, {known, record(OPQ_OP_bce, {x[0], x[1]}), zero});
    if (weighted)
        losses = times(losses, x[2]);
    const int64_t reduction = call.integer(3);
    const Dims axes = normal_axes({}, losses.rank());
    if (reduction == at::Reduction::None || axes.empty())
        x.give(call, losses);
    else
        call.give(reduce(reduction == at::Reduction::Mean ? OPQ_OP_mean : OPQ_OP_sum, {losses}, axes, false));
    return true;
}

// binary_cross_entropy_backward(grad_output, self, target, weight, reduction)
bool binary_cross_entropy_backward(Call &call)
{
    Terms x;
    const bool weighted = !call.none(3);
    if (!(weighted ? align(call, {0, 1, 2, 3}, x) : align(call, {0, 1, 2}, x)) ||
        call.tensor(1).sizes() != IntArrayRef(x.shape))
        return false;
    Value slope = record(OPQ_OP_bce_backward, {x[0], x[1], x[2]});
    if (weighted)
        slope = times(slope, x[3]);
    if (call.integer(4) == at::Reduction::Mean)
        slope = record(OPQ_OP_div, {slope, scalar(static_cast<double>(call.tensor(1).numel()))});
    x.give(call, slope);
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "leaky_relu_backward", &leaky_relu_backward);
    adapt(library, "elu_backward", &elu_backward);
    adapt(library, "nextafter", &nextafter, OPQ_OP_nextafter);
    adapt(library, "binary_cross_entropy", &binary_cross_entropy);
    adapt(library, "binary_cross_entropy_backward", &binary_cross_entropy_backward);
}

} // namespace

} // namespace opq
