// Softmax, layer normalisation, dropout: one node each, with the derivatives that autograd asks for.
#include <cmath>

#include "adapter.h"
#include "below.h"
#include "checks.h"
#include "random.h"

namespace opq
{

namespace
{

// Records a row over one axis; a 0-d operand has an axis of one element.
Value along(opq_op op, Operands operands, int64_t axis, int64_t rank)
{
    const int64_t where = normal_axis(axis, std::max<int64_t>(rank, 1));
    if (rank != 0)
        return record(op, operands, {attr_ints(OPQ_ATTR_axes, where)});
    std::vector<Value> lifted;
    for (const Operand &operand : operands) {
        opq_value_retain(operand.value);
        lifted.push_back(reshape(Value::take(operand.value), {1}));
    }
    return reshape(record_list(op, lifted, {attr_ints(OPQ_ATTR_axes, where)}), {});
}

// _softmax, _log_softmax: (self, dim, half_to_float)
bool softmax(Call &call)
{
    const Tensor &self = call.tensor(0);
    if (!at::isFloatingType(self.scalar_type()))
        decline(opq_fail(OPQ_INVALID, "%s of this dtype", call.name()));
    const Value x = call.flag(2) ? cast(call.in(0), OPQ_f32) : call.in(0);
    const int64_t axis = normal_axis(call.integer(1), self.dim());
    call.give(self.numel() == 0 ? x : along(call.row, {x}, axis, self.dim()));
    return true;
}

// (grad_output, output, dim, input_dtype)
bool softmax_backward(Call &call)
{
    const Value result = along(call.row, {call.in(0), call.in(1)}, call.integer(2), call.tensor(0).dim());
    call.give(cast(result, core_dtype(*call.dtype(3))));
    return true;
}

// ---- layer normalisation

Dims last_axes(int64_t rank, size_t count)
{
    Dims axes;
    for (int64_t axis = rank - static_cast<int64_t>(count); axis < rank; ++axis)
        axes.push_back(axis);
    return axes;
}

const Tensor *optional_tensor(const Call &call, size_t i) { return call.none(i) ? nullptr : &call.tensor(i); }

// native_layer_norm(input, normalized_shape, weight, bias, eps) -> output, mean, rstd
bool layer_norm(Call &call)
{
    const Tensor &self = call.tensor(0);
    const Dims normalized = call.dims(1);
    const Tensor *const weight = optional_tensor(call, 2), *const bias = optional_tensor(call, 3);
    const auto tail = self.sizes().slice(std::max<int64_t>(self.dim() - static_cast<int64_t>(normalized.size()), 0));
    if (normalized.empty() || tail != IntArrayRef(normalized) || !same_dtype({&self, weight, bias}) || self.numel() == 0 ||
        (weight && weight->sizes() != IntArrayRef(normalized)) || (bias && bias->sizes() != IntArrayRef(normalized)))
        return false;
    const Value given = call.in(0), x = cast(given, computing(given.dtype())), eps = scalar(call.scalar(4), x.dtype());
    const Dims axes = last_axes(self.dim(), normalized.size());
    const opq_attr over = attr_ints(OPQ_ATTR_axes, axes);
    Value out;
    const auto parameter = [&](size_t i) { return cast(call.in(i), x.dtype()); };
    if (weight && bias) {
        out = record(OPQ_OP_layer_norm, {x, parameter(2), parameter(3), eps}, {over});
    } else {
        out = record(OPQ_OP_layer_norm_plain, {x, eps}, {over});
        if (weight)
            out = record(OPQ_OP_mul, {out, parameter(2)});
        if (bias)
            out = record(OPQ_OP_add, {out, parameter(3)});
    }
    for (const Value &value :
         {out, reduce(OPQ_OP_mean, {x}, axes, true), reduce(OPQ_OP_layer_norm_rstd, {x, eps}, axes, true)})
        call.give(cast(value, given.dtype()));
    return true;
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
bool layer_norm_backward(Call &call)
{
    const Tensor &self = call.tensor(1);
    const Dims normalized = call.dims(2);
    const Tensor *const weight = optional_tensor(call, 5), *const bias = optional_tensor(call, 6);
    if (!same_dtype({&call.tensor(0), &self, &call.tensor(3), weight, bias}) || self.numel() == 0)
        return false;
    const auto mask = call.args[7].toBoolList();
    const Value grad = call.in(0), x = call.in(1), mean = call.in(3), rstd = call.in(4);
    const int64_t rank = self.dim(), leading = rank - static_cast<int64_t>(normalized.size());
    const auto sum_leading = [&](const Value &value) {
        const Dims all = last_axes(leading, static_cast<size_t>(leading));
        return leading == 0 ? value : reduce(OPQ_OP_sum, {value}, all, false);
    };
    if (mask[0]) {
        const Value scaled = weight ? record(OPQ_OP_mul, {grad, call.in(5)}) : grad;
        call.give(record(OPQ_OP_layer_norm_backward, {scaled, x, mean, rstd},
                         {attr_ints(OPQ_ATTR_axes, last_axes(rank, normalized.size()))}));
    } else {
        call.give_none();
    }
    if (mask[1] && weight)
        call.give(sum_leading(record(OPQ_OP_mul, {grad, record(OPQ_OP_mul, {record(OPQ_OP_sub, {x, mean}), rstd})})));
    else
        call.give_none();
    if (mask[2] && bias)
        call.give(sum_leading(grad));
    else
        call.give_none();
    return true;
}

// ---- dropout

} // namespace

Value draw(opq_op op, IntArrayRef shape, const std::optional<at::Generator> &generator)
{
    const auto [seed, offset] = draw_numbers(generator, c10::multiply_integers(shape));
    return record_typed(op, OPQ_f32, shape, {seed, offset});
}

namespace
{

// native_dropout(input, p, train) -> output, mask
bool dropout(Call &call)
{
    const Tensor &self = call.tensor(0);
    const double p = call.real(1);
    TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
    const bool draws = call.none(2) || call.flag(2);
    if (draws && !is_float(core_dtype(
                     self.scalar_type()))) { // complex, or an error: the CPU kernel would draw from its own generator
        const Below below;
        const Tensor mask = at::empty(self.sizes(), self.options().dtype(at::kBool)).bernoulli_(1 - p);
        const Tensor output = at::mul(self, mask).mul_(p == 1 ? 0 : 1 / (1 - p));
        call.give(read_raw(output), output.scalar_type());
        call.give(read(mask));
        return true;
    }
    const auto [x, order] = in_memory(call, 0);
    if (!draws) {
        call.give(x, self.scalar_type(), order);
        call.give(full(true, OPQ_bool, shape_of(x)), at::kBool, order);
        return true;
    }
    const Value kept = record(OPQ_OP_lt, {draw(OPQ_OP_uniform, shape_of(x), std::nullopt), number(1 - p, OPQ_f32)});
    const double scale = p == 1 ? 0 : 1 / (1 - p);
    const Value masked = record(OPQ_OP_mul, {x, cast(kept, x.dtype())});
    call.give(record(OPQ_OP_mul, {masked, scalar(scale, x.dtype())}), self.scalar_type(), order);
    call.give(kept, at::kBool, order);
    return true;
}

// native_dropout_backward(grad_output, mask, scale)
bool dropout_backward(Call &call)
{
    const auto [values, order] = aligned(call, {0, 1});
    const opq_dtype dtype = values[0].dtype();
    if (!is_float(dtype)) // multiplied by a number: another dtype
        return false;
    const Value masked = record(OPQ_OP_mul, {values[0], cast(values[1], dtype)});
    call.give(record(OPQ_OP_mul, {masked, scalar(call.scalar(2), dtype)}), torch_dtype(dtype), order);
    return true;
}

// ---- random tensors. In place forms find their functional overload; all draw from the same two rows.

using MaybeGenerator = std::optional<at::Generator>;

MaybeGenerator generator_of(const Call &call, size_t i)
{
    return call.none(i) ? std::nullopt : std::optional(call.args[i].toGenerator());
}

Value times(const Value &value, double factor) { return record(OPQ_OP_mul, {value, number(factor, value.dtype())}); }

// The leading `bits` bits of numbers in [0, 1).
Value leading_bits(const Value &value, int bits)
{
    return times(record(OPQ_OP_floor, {times(value, std::ldexp(1, bits))}), std::ldexp(1, -bits));
}

} // namespace

// The core draws 24 bits at a time.
Value uniform_values(opq_dtype dtype, IntArrayRef shape, const MaybeGenerator &generator)
{
    const Value drawn = draw(OPQ_OP_uniform, shape, generator);
    if (dtype == OPQ_f16 || dtype == OPQ_bf16)
        return leading_bits(drawn, dtype == OPQ_f16 ? 11 : 8);
    if (dtype != OPQ_f64)
        return drawn;
    const Value middle = cast(draw(OPQ_OP_uniform, shape, generator), OPQ_f64);
    const Value last = cast(leading_bits(draw(OPQ_OP_uniform, shape, generator), 5), OPQ_f64);
    const Value low = record(OPQ_OP_add, {times(middle, 0x1p-24), times(last, 0x1p-48)});
    return record(OPQ_OP_add, {cast(drawn, OPQ_f64), low});
}

namespace
{

// Standard normal numbers, in f32, or in f64 for a result of that dtype. The method of Box and Muller in both; the logarithm
// and the cosine of f64 are calls of CPU kernels, because the core has them for f32 alone.
Value normal_values(opq_dtype dtype, IntArrayRef shape, const MaybeGenerator &generator)
{
    if (dtype != OPQ_f64)
        return draw(OPQ_OP_normal, shape, generator);
    const Below below;
    const Tensor u = wrap(uniform_values(OPQ_f64, shape, generator));
    const Tensor v = wrap(uniform_values(OPQ_f64, shape, generator));
    const Tensor radius = at::sqrt(at::mul(at::log1p(at::neg(u)), -2));
    return read(at::mul(radius, at::cos(at::mul(v, 2 * M_PI))));
}

bool draws_natively(const Tensor &tensor) { return is_float(core_dtype(tensor.scalar_type())); }

Value affine(const Value &drawn, double shift, double factor)
{
    return record(OPQ_OP_add, {times(drawn, factor), number(shift, drawn.dtype())});
}

double largest(at::ScalarType dtype)
{
    switch (dtype) {
    case at::kHalf: return std::numeric_limits<c10::Half>::max();
    case at::kBFloat16: return std::numeric_limits<c10::BFloat16>::max();
    case at::kFloat: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
    }
}

// uniform(self, from, to, *, generator)
bool uniform(Call &call)
{
    const double from = call.real(1), to = call.real(2);
    TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
    if (!draws_natively(call.tensor(0)))
        return false;
    const double most = largest(call.tensor(0).scalar_type());
    for (const auto &[name, bound] : {std::pair("from", from), std::pair("to", to)})
        TORCH_CHECK(std::abs(bound) <= most, name, " is out of bounds for ", call.tensor(0).dtype());
    TORCH_CHECK(to - from <= most, "uniform_ expects to-from <= std::numeric_limits<",
                c10::toString(call.tensor(0).scalar_type()), ">::max(), but found to=", to, " and from=", from,
                " which result in to-from to exceed the limit");
    const opq_dtype dtype = core_dtype(call.tensor(0).scalar_type());
    call.give(cast(affine(uniform_values(dtype, call.tensor(0).sizes(), generator_of(call, 3)), from, to - from), dtype));
    return true;
}

// normal_functional(self, mean, std, *, generator)
bool normal(Call &call)
{
    const double deviation = call.real(2);
    TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
    if (!draws_natively(call.tensor(0)))
        return false;
    const opq_dtype dtype = core_dtype(call.tensor(0).scalar_type());
    const Value drawn = normal_values(dtype, call.tensor(0).sizes(), generator_of(call, 3));
    call.give(cast(affine(drawn, call.real(1), deviation), dtype));
    return true;
}

// bernoulli.p(self, p, *, generator), bernoulli.Tensor(self, p, *, generator), bernoulli(self, *, generator)
bool bernoulli(Call &call)
{
    const Tensor &self = call.tensor(0);
    const opq_dtype dtype = core_dtype(self.scalar_type());
    if (is_raw(dtype))
        return false;
    Value p;
    const bool looked_at = call.count != 2 && !call.args[1].isTensor();
    if (!looked_at) {
        p = call.count == 2 ? call.in(0) : call.operand(1);
    } else {
        const double value = call.real(1);
        TORCH_CHECK(value >= 0 && value <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", value);
        p = number(value, OPQ_f32);
    }
    if (!is_float(p.dtype()))
        return false;
    const opq_dtype compared = p.dtype() == OPQ_f64 ? OPQ_f64 : OPQ_f32;
    const Value drawn = uniform_values(compared, self.sizes(), generator_of(call, call.count - 1));
    const Value bound = cast(p, compared);
    Value result = record(OPQ_OP_lt, {drawn, bound});
    if (!looked_at) {
        const Value inside = record(OPQ_OP_bitwise_and, {record(OPQ_OP_ge, {bound, number(0, compared)}),
                                                         record(OPQ_OP_le, {bound, number(1, compared)})});
        const char *words = "aten::bernoulli: Expected p_in >= 0 && p_in <= 1 to be true, but got false.";
        result = record(OPQ_OP_bitwise_and, {result, holding(inside, words)});
    }
    call.give(cast(result, dtype));
    return true;
}

// Both halves of a complex number have half of the variance, and the mean.
Tensor &normal_(Tensor &self, double mean, double deviation, MaybeGenerator generator)
{
    note_line();
    TORCH_CHECK(deviation >= 0, "normal expects std >= 0.0, but found std ", deviation);
    if (self.is_complex()) {
        const Below below;
        at::view_as_real(self).normal_(mean, deviation / std::sqrt(2.0), generator);
        return self;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(draws_natively(self), "\"normal_kernel_cpu\" not implemented for '", self.scalar_type(),
                                "'");
    const Dims flat{self.numel()};
    const Value drawn =
        normal_values(core_dtype(self.scalar_type()), is_wide(self) ? IntArrayRef(flat) : self.sizes(), generator);
    write(self, affine(drawn, mean, deviation));
    return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    adapt(library, "_softmax", &softmax, OPQ_OP_softmax);
    adapt(library, "_log_softmax", &softmax, OPQ_OP_log_softmax);
    adapt(library, "_softmax_backward_data", &softmax_backward, OPQ_OP_softmax_backward);
    adapt(library, "_log_softmax_backward_data", &softmax_backward, OPQ_OP_log_softmax_backward);
    adapt(library, "native_layer_norm", &layer_norm);
    adapt(library, "native_layer_norm_backward", &layer_norm_backward);
    adapt(library, "native_dropout", &dropout);
    adapt(library, "native_dropout_backward", &dropout_backward);
    adapt(library, "uniform", &uniform);
    adapt(library, "normal_functional", &normal);
    library.impl("normal_", OPQ_KERNEL(normal_));
    adapt(library, "bernoulli", &bernoulli);
    adapt(library, "bernoulli.p", &bernoulli);
    adapt(library, "bernoulli.Tensor", &bernoulli);
}

} // namespace

} // namespace opq
