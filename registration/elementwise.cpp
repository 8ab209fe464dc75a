// Elementwise operators whose arguments do not read as the op table's rows do: optional bounds, modes, exponents, reductions of
// losses.
#include <algorithm>
#include <limits>

#include "movement.h"

namespace opq
{

namespace
{

// ---- bounds and modes

bool clamp(Call &call)
{
    const bool low = !call.none(1), high = !call.none(2);
    TORCH_CHECK(low || high, "torch.clamp: At least one of 'min' or 'max' must not be None");
    const auto [values, order] = low && high ? aligned(call, {0, 1, 2}) : aligned(call, {0, low ? size_t{1} : 2});
    Value result = record_list(low && high ? OPQ_OP_clamp : low ? OPQ_OP_maximum : OPQ_OP_minimum, values);
    for (const size_t i : {size_t{1}, size_t{2}})
        if (!call.none(i) && !call.args[i].isTensor())
            check_fits(call.scalar(i), result.dtype());
    const at::ScalarType dtype = torch_dtype(result.dtype());
    call.give(std::move(result), dtype, order);
    return true;
}

void give_elementwise(Call &call, Value result, const Order &order)
{
    const at::ScalarType dtype = torch_dtype(result.dtype());
    call.give(std::move(result), dtype, order);
}

bool divide(Call &call)
{
    auto [operands, order] = aligned(call, {0, 1});
    if (call.none(2)) {
        give_elementwise(call, record_list(OPQ_OP_div, operands), order);
        return true;
    }
    const std::string &mode = call.args[2].toStringRef();
    TORCH_CHECK(mode == "trunc" || mode == "floor",
                "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", mode, "'");
    const opq_op row = mode == "trunc" ? OPQ_OP_div_trunc : OPQ_OP_div_floor;
    const bool number = !call.args[1].isTensor();
    const opq_dtype widened = widen(row, {&call.tensor(0), number ? nullptr : &call.tensor(1)},
                                    {at::Scalar(), number ? call.scalar(1) : at::Scalar()}, operands);
    const Value result = record_list(row, operands);
    give_elementwise(call, widened == OPQ_f32 ? result : cast(result, widened), order);
    return true;
}

bool rsub(Call &call)
{
    const at::Scalar alpha = call.scalar(2);
    if (alpha.isComplex() || call.args[1].isBool())
        return false;
    const at::ScalarType common = common_type(call);
    if (common == at::kBool || (!at::isFloatingType(common) && alpha.isFloatingPoint()))
        return false;
    const auto [values, order] = aligned(call, {1, 0}); // to PyTorch it is sub with its operands the other way round
    Value a = values[1];
    if (alpha.toDouble() != 1.0)
        a = record(OPQ_OP_mul, {a, scalar(alpha, core_dtype(common))});
    give_elementwise(call, record(OPQ_OP_rsub, {a, values[0]}), order);
    return true;
}

template <class T> std::pair<double, double> limits()
{
    return {static_cast<double>(std::numeric_limits<T>::lowest()), static_cast<double>(std::numeric_limits<T>::max())};
}

bool nan_to_num(Call &call)
{
    const auto [self, order] = in_memory(call, 0);
    const opq_dtype dtype = self.dtype();
    if (!is_float(dtype)) {
        call.give(self, call.tensor(0).scalar_type(), order);
        return true;
    }
    const auto [lowest, highest] = dtype == OPQ_f64   ? limits<double>()
                                   : dtype == OPQ_f32 ? limits<float>()
                                   : dtype == OPQ_f16 ? limits<c10::Half>()
                                                      : limits<c10::BFloat16>();
    const auto given = [&](size_t i, double otherwise) { return number(call.none(i) ? otherwise : call.real(i), dtype); };
    call.give(record(OPQ_OP_nan_to_num, {self, given(1, 0), given(2, highest), given(3, lowest)}),
              call.tensor(0).scalar_type(), order);
    return true;
}

// Exponents are attributes of the graph, unlike other scalars: each has its own arithmetic.
bool power(const Value &x, double exponent, Value &out)
{
    if (exponent == 1)
        out = x;
    else if (exponent == 2)
        out = record(OPQ_OP_square, {x});
    else if (exponent == 3)
        out = record(OPQ_OP_mul, {record(OPQ_OP_square, {x}), x});
    else if (exponent == 0.5)
        out = record(OPQ_OP_sqrt, {x});
    else if (exponent == -0.5)
        out = record(OPQ_OP_rsqrt, {x});
    else if (exponent == -1)
        out = record(OPQ_OP_reciprocal, {x});
    else if (exponent == -2)
        out = record(OPQ_OP_reciprocal, {record(OPQ_OP_square, {x})});
    else
        return false;
    return true;
}

bool pow_scalar(Call &call)
{
    const at::Scalar exponent = call.scalar(1);
    if (exponent.isComplex() || is_raw(call.tensor(0)))
        return false;
    const opq_dtype common = core_dtype(at::result_type(call.tensor(0), exponent));
    const auto [self, order] = in_memory(call, 0);
    const Value x = cast(self, common);
    const double e = exponent.toDouble();
    Value result;
    if (common == OPQ_bool || (!is_float(common) && (e < 1 || e > 3)))
        return false;
    if (common == OPQ_f16 || common == OPQ_bf16)
        check_fits(exponent, common);
    if (e == 0)
        result = full(1, common, shape_of(x));
    else if (!power(x, e, result))
        result = record(OPQ_OP_pow, {x, cast(scalar(exponent), common)});
    call.give(std::move(result), torch_dtype(common), order);
    return true;
}

// pow.Scalar(self, exponent): PyTorch lays the result out row-major, in whatever order the exponent is.
bool pow_of_scalar(Call &call)
{
    if (!pointwise(call))
        return false;
    Result &result = call.results.back();
    result.value = logical(result.value, result.order);
    result.order = {};
    return true;
}

// ---- activations with modes

bool is_tanh(const IValue &approximate)
{
    const std::string &text = approximate.toStringRef();
    TORCH_CHECK(text == "none" || text == "tanh", "approximate argument must be either none or tanh.");
    return text == "tanh";
}

bool gelu(Call &call)
{
    const auto [self, order] = in_memory(call, 0);
    call.give(record(is_tanh(call.args[1]) ? OPQ_OP_gelu_tanh : OPQ_OP_gelu, {self}), call.tensor(0).scalar_type(),
              order);
    return true;
}

bool gelu_backward(Call &call)
{
    const auto [values, order] = aligned(call, {0, 1});
    const opq_op row = is_tanh(call.args[2]) ? OPQ_OP_gelu_tanh_backward : OPQ_OP_gelu_backward;
    give_elementwise(call, record_list(row, values), order);
    return true;
}

bool log_sigmoid(Call &call)
{
    const auto [self, order] = in_memory(call, 0);
    give_elementwise(call, record(OPQ_OP_log_sigmoid, {self}), order);
    call.give(full(0, core_dtype(call.tensor(0).scalar_type()), {0})); // a buffer that only CPU kernels use
    return true;
}

bool log_sigmoid_backward(Call &call)
{
    const auto [values, order] = aligned(call, {0, 1});
    give_elementwise(call, record_list(OPQ_OP_log_sigmoid_backward, values), order);
    return true;
}

// logit(self, eps): with eps self is kept within [eps, 1 - eps]
bool logit(Call &call)
{
    const auto [self, order] = in_memory(call, 0);
    const bool real = is_float(self.dtype());
    Value x = cast(self, real ? computing(self.dtype()) : OPQ_f32);
    if (!real && c10::get_default_dtype() != caffe2::TypeMeta::Make<float>())
        return false;
    if (!call.none(1))
        x = record(OPQ_OP_clamp, {x, number(call.real(1), x.dtype()), number(1 - call.real(1), x.dtype())});
    const Value result = cast(record(OPQ_OP_logit, {x}), real ? self.dtype() : OPQ_f32);
    call.give(result, torch_dtype(result.dtype()), order);
    return true;
}

// logit_backward(grad_output, self, eps)
bool logit_backward(Call &call)
{
    if (!same_dtype({&call.tensor(0), &call.tensor(1)}))
        return false;
    const auto [values, order] = aligned(call, {0, 1});
    const opq_dtype given = values[0].dtype(), dtype = computing(given);
    const Value low = number(call.none(2) ? 0 : call.real(2), dtype);
    const Value outside = number(call.none(2) ? std::numeric_limits<double>::quiet_NaN() : 0, dtype);
    const Value slope = record(OPQ_OP_logit_backward, {cast(values[0], dtype), cast(values[1], dtype), low, outside});
    give_elementwise(call, cast(slope, given), order);
    return true;
}

// The halves of an axis, as they lie in memory.
struct Halves {
    Value a, b; // in the dtype to compute in
    int64_t axis;
};

// False: an error that PyTorch words.
bool halves(const Call &call, const Tensor &self, int64_t dim, const Order &order, Halves &out)
{
    if (self.dim() == 0 || !at::isFloatingType(self.scalar_type()))
        return false;
    out.axis = normal_axis(dim, self.dim());
    const int64_t count = self.size(out.axis) / 2;
    if (self.size(out.axis) % 2 != 0)
        return false;
    check_device(self, call.name());
    const auto found = std::find(order.perm.begin(), order.perm.end(), out.axis);
    if (!order.plain())
        out.axis = found - order.perm.begin();
    const Value whole = read_ordered(self, static_cast<int>(self.dim()), order);
    const Value x = cast(whole, computing(whole.dtype()));
    out.a = slice(x, out.axis, 0, count);
    out.b = slice(x, out.axis, count, count);
    return true;
}

// glu(self, dim)
bool glu(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Order order = result_order({&self}, self.sizes());
    Halves h;
    if (!halves(call, self, call.integer(1), order, h))
        return false;
    const Value result = record(OPQ_OP_mul, {h.a, record(OPQ_OP_sigmoid, {h.b})});
    call.give(cast(result, core_dtype(self.scalar_type())), self.scalar_type(), order);
    return true;
}

// glu_backward(grad_output, self, dim)
bool glu_backward(Call &call)
{
    Halves h;
    const Tensor &grad = call.tensor(0), &self = call.tensor(1);
    if (!same_dtype({&grad, &self}) || !halves(call, self, call.integer(2), {}, h))
        return false;
    const Value slope = cast(call.in(0), h.a.dtype());
    if (shape_of(slope) != shape_of(h.a))
        return false;
    const Value gate = record(OPQ_OP_sigmoid, {h.b}), of_a = record(OPQ_OP_mul, {gate, slope});
    const Value closed = record(OPQ_OP_sub, {scalar(1.0), gate});
    const Value of_b = record(OPQ_OP_mul, {record(OPQ_OP_mul, {closed, of_a}), h.a});
    call.give(cast(concat({of_a, of_b}, h.axis), core_dtype(self.scalar_type())));
    return true;
}

// _prelu_kernel_backward(grad_output, self, weight): slopes of self and of weight, which broadcasts to self
bool prelu_backward(Call &call)
{
    if (!same_dtype({&call.tensor(0), &call.tensor(1), &call.tensor(2)}) ||
        call.tensor(0).sizes() != call.tensor(1).sizes())
        return false;
    const auto [values, order] = aligned(call, {0, 1, 2});
    const Value &grad = values[0], &x = values[1], zero = scalar(0, grad.dtype());
    const Value positive = record(OPQ_OP_gt, {x, scalar(0)});
    give_elementwise(call, record(OPQ_OP_where, {positive, grad, record(OPQ_OP_mul, {values[2], grad})}), order);
    give_elementwise(call, record(OPQ_OP_where, {positive, zero, record(OPQ_OP_mul, {x, grad})}), order);
    return true;
}

bool masked_fill(Call &call)
{
    const Tensor &self = call.tensor(0), &mask = call.tensor(1);
    TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
                mask.scalar_type());
    if (is_raw(self))
        return false;
    const opq_dtype dtype = core_dtype(self.scalar_type());
    if (call.args[2].isTensor()) {
        TORCH_CHECK(call.tensor(2).dim() == 0,
                    "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
                    call.tensor(2).dim(), " dimension(s).");
        if (is_raw(call.tensor(2)))
            return false;
    }
    const Value value = call.args[2].isTensor() ? cast(call.operand(2), dtype) : scalar(call.scalar(2), dtype);
    const auto shape = at::infer_size_dimvector(self.sizes(), mask.sizes());
    // row-major whatever the operands are, as on the CPU
    call.give(record_typed(OPQ_OP_masked_fill, dtype, shape, {call.in(0), call.operand(1), value}), self.scalar_type());
    return true;
}

// ---- losses: an elementwise row and what `reduction` makes of it

bool reduce_loss(Call &call, const Value &losses, const Order &order, int64_t reduction)
{
    if (reduction == at::Reduction::None) {
        give_elementwise(call, losses, order);
        return true;
    }
    const Dims axes = normal_axes({}, losses.rank());
    call.give(axes.empty() ? losses
                           : reduce(reduction == at::Reduction::Mean ? OPQ_OP_mean : OPQ_OP_sum, {losses}, axes, false));
    return true;
}

bool mse_loss(Call &call)
{
    if (!same_dtype({&call.tensor(0), &call.tensor(1)}))
        return false;
    const auto [values, order] = aligned(call, {0, 1});
    return reduce_loss(call, record_list(OPQ_OP_mse_loss, values), order, call.integer(2));
}

// smooth_l1_loss(self, target, reduction, beta), huber_loss(self, target, reduction, delta)
bool smooth_loss(Call &call)
{
    const double bound = call.real(3);
    TORCH_CHECK(bound >= 0, "smooth_l1_loss does not support negative values for beta.");
    if (bound == 0 || !same_dtype({&call.tensor(0), &call.tensor(1)}))
        return false;
    const auto [values, order] = aligned(call, {0, 1});
    return reduce_loss(call, record(call.row, {values[0], values[1], scalar(bound)}), order, call.integer(2));
}

double loss_scale(const Call &call, int64_t reduction, double factor)
{
    return reduction == at::Reduction::Mean ? factor / static_cast<double>(call.tensor(1).numel()) : factor;
}

// (grad_output, self, target, reduction)
bool mse_loss_backward(Call &call)
{
    auto [values, order] = aligned(call, {0, 1, 2});
    values.push_back(scalar(loss_scale(call, call.integer(3), 2)));
    give_elementwise(call, record_list(OPQ_OP_mse_loss_backward, values), order);
    return true;
}

// (grad_output, self, target, reduction, beta or delta): the slope is x / beta (smooth l1) or x (huber) inside, constant outside.
bool smooth_loss_backward(Call &call)
{
    const double bound = call.real(4);
    if (bound == 0)
        return false;
    const bool huber = call.row == OPQ_OP_huber;
    const auto [values, order] = aligned(call, {0, 1, 2});
    const Value &grad = values[0], x = record(OPQ_OP_sub, {values[1], values[2]});
    const Value limit = scalar(bound);
    const Value clipped = record(OPQ_OP_maximum, {record(OPQ_OP_minimum, {x, limit}), scalar(-bound)});
    const Value slope = huber ? clipped : record(OPQ_OP_div, {clipped, limit});
    const Value scaled = record(OPQ_OP_mul, {slope, scalar(loss_scale(call, call.integer(3), 1))});
    give_elementwise(call, record(OPQ_OP_mul, {scaled, grad}), order);
    return true;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "clamp", &clamp);
    adapt(library, "clamp.Tensor", &clamp);
    adapt(library, "div.Tensor_mode", &divide);
    adapt(library, "div.Scalar_mode", &divide);
    adapt(library, "rsub.Tensor", &rsub);
    adapt(library, "rsub.Scalar", &rsub);
    adapt(library, "nan_to_num", &nan_to_num);
    adapt(library, "pow.Tensor_Scalar", &pow_scalar);
    adapt(library, "pow.Tensor_Tensor", &pointwise, OPQ_OP_pow);
    adapt(library, "pow.Scalar", &pow_of_scalar, OPQ_OP_pow);
    adapt(library, "where.self", &pointwise, OPQ_OP_where);
    adapt(library, "logit", &logit);
    adapt(library, "logit_backward", &logit_backward);
    adapt(library, "glu", &glu);
    adapt(library, "glu_backward", &glu_backward);
    adapt(library, "_prelu_kernel_backward", &prelu_backward);
    adapt(library, "masked_fill.Scalar", &masked_fill);
    adapt(library, "masked_fill.Tensor", &masked_fill);
    adapt(library, "gelu", &gelu);
    adapt(library, "gelu_backward", &gelu_backward);
    adapt(library, "log_sigmoid_forward", &log_sigmoid);
    adapt(library, "log_sigmoid_backward", &log_sigmoid_backward);
    adapt(library, "mse_loss", &mse_loss);
    adapt(library, "mse_loss_backward", &mse_loss_backward);
    adapt(library, "smooth_l1_loss", &smooth_loss, OPQ_OP_smooth_l1);
    adapt(library, "smooth_l1_loss_backward", &smooth_loss_backward, OPQ_OP_smooth_l1);
    adapt(library, "huber_loss", &smooth_loss, OPQ_OP_huber);
    adapt(library, "huber_loss_backward", &smooth_loss_backward, OPQ_OP_huber);
}

} // namespace

} // namespace opq
