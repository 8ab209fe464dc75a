// Elementwise operators straight from the op table: every row with a POINTWISE or ALPHA signature is registered here, for each
// of its overloads, in functional, in-place and out form.
#include "adapter.h"

#include <c10/core/DefaultDtype.h>
#include <cstring>

namespace opq
{

namespace
{

using Tensors = c10::SmallVector<const Tensor *, 6>;

struct Gathered {
    Tensors tensors; // in schema order; NULL where a scalar stands
    c10::SmallVector<at::Scalar, 6> scalars;
    bool has_float = false, float_scalar = false, float_number = false, sized_float = false;
};

// Sorts the arguments into tensors and scalars. False: not for the core.
bool gather(const Call &call, size_t count, Gathered &out)
{
    const auto &arguments = call.op.schema().arguments();
    for (size_t i = 0; i < count; ++i) {
        const IValue &value = call.args[i];
        if (value.isTensor()) {
            const Tensor &tensor = value.toTensor();
            if (!tensor.defined() || is_raw(tensor))
                return false;
            if (!on_device(tensor) && tensor.dim() != 0)
                check_device(tensor, call.name());
            out.tensors.push_back(&tensor);
            out.scalars.emplace_back();
            const bool is_float = at::isFloatingType(tensor.scalar_type());
            out.has_float |= is_float;
            // A number in a tensor's place: it has the default type only where no tensor has a floating type.
            out.float_number |= is_float && tensor.unsafeGetTensorImpl()->is_wrapped_number();
            out.sized_float |= is_float && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
        } else if (arguments[i].type()->kind() == c10::TypeKind::BoolType && call.row < OPQ_OP_DEFINED) {
            if (value.toBool())
                return false;
        } else if (value.isScalar()) { // complex ones are declined when they are made values
            out.tensors.push_back(nullptr);
            out.scalars.push_back(value.toScalar());
            out.float_scalar |= value.isDouble();
        } else {
            return false;
        }
    }
    return true;
}

// A Scalar argument promotes like an operand in `add.Scalar`; in `threshold` it is a parameter and takes the tensor's dtype;
// in `clamp_min` it is both. Rows made at run time have operands alone.
bool clamps(const Call &call)
{
    if (call.row != OPQ_OP_maximum && call.row != OPQ_OP_minimum)
        return false;
    const std::string &name = call.op.operator_name().name;
    return name == "aten::clamp_min" || name == "aten::clamp_max";
}

bool takes_parameters(const Call &call)
{
    const bool by_name =
        call.op.operator_name().overload_name.find("Scalar") == std::string::npos && call.row < OPQ_OP_DEFINED;
    return by_name || clamps(call) || call.row == OPQ_OP_lerp;
}

bool scalars_promote(const Call &call) { return !takes_parameters(call) || clamps(call); }

// False: they do not broadcast, which the core says in its words.
bool broadcast_shape(c10::ArrayRef<const Tensor *> tensors, Dims &shape)
{
    for (const Tensor *const tensor : tensors) {
        const auto rank = static_cast<size_t>(tensor->dim());
        if (rank > shape.size())
            shape.insert(shape.begin(), rank - shape.size(), 1);
        const size_t missing = shape.size() - rank;
        for (size_t i = 0; i < rank; ++i) {
            const int64_t size = tensor->sizes()[i];
            int64_t &have = shape[missing + i];
            if (size != 1 && have != 1 && have != size)
                return false;
            if (size != 1)
                have = size;
        }
    }
    return true;
}

at::Scalar negated(const at::Scalar &number)
{
    return number.isFloatingPoint() ? at::Scalar(-number.toDouble())
                                    : at::Scalar(static_cast<int64_t>(-static_cast<uint64_t>(number.toLong())));
}

// b * alpha in the dtype of the result.
bool scale(const Call &call, const at::Scalar &alpha, Value &b)
{
    if (alpha.isComplex() || alpha.type() == at::kUInt64) // which is beyond int64
        return false;
    if (!alpha.isFloatingPoint() && !alpha.isBoolean() && alpha.toLong() == 1)
        return true;
    if (alpha.isFloatingPoint() && alpha.toDouble() == 1.0)
        return true;
    const at::ScalarType common = common_type(call);
    TORCH_CHECK(common == at::kBool || !alpha.isBoolean(), "Boolean alpha only supported for Boolean results.");
    TORCH_CHECK(at::isFloatingType(common) || alpha.isIntegral(true),
                "For integral input tensors, argument alpha must not be a floating point number.");
    if (common == at::kBool)
        return false;
    const opq_dtype dtype = core_dtype(common);
    at::Scalar factor = alpha;
    if (call.row == OPQ_OP_sub) { // add with -alpha to PyTorch, which decides what fits
        factor = negated(alpha);
        check_fits(factor, dtype);
        factor = is_float(dtype) ? at::Scalar(-factor.toDouble()) : alpha;
    } else {
        check_fits(factor, dtype);
    }
    b = record(OPQ_OP_mul, {cast(b, dtype), scalar(factor)});
    return true;
}

// The core makes f32 where integers become floats; another default type is left to the CPU kernel.
bool float_is_default() { return c10::get_default_dtype() == caffe2::TypeMeta::Make<float>(); }

// CPU kernels compute f16 and bf16 in f32 and take most parameters as such.
opq_dtype parameter_dtype(const Call &call, size_t i, opq_dtype dtype)
{
    const bool as_elements = clamps(call) || call.row == OPQ_OP_hardtanh || (call.row == OPQ_OP_threshold && i == 2);
    return as_elements ? dtype : computing(dtype);
}

// As C has it, which multiplies 8 and 16 bits as int, takes the magnitude and cuts that.
Value common_multiple(const Value &x, const Value &y)
{
    const Value divisor = record(OPQ_OP_gcd, {x, y}), none = record(OPQ_OP_eq, {divisor, scalar(0)});
    const opq_dtype dtype = divisor.dtype();
    if (opq_dtype_bytes(dtype) >= 4)
        return record(OPQ_OP_lcm, {x, y});
    const Value a = cast(cast(x, dtype), OPQ_i32), b = cast(cast(y, dtype), OPQ_i32);
    const Value safe = cast(record(OPQ_OP_where, {none, scalar(1, dtype), divisor}), OPQ_i32);
    const Value multiple = times(record(OPQ_OP_div_trunc, {a, safe}), b);
    const Value magnitude = record(OPQ_OP_where, {none, scalar(0, OPQ_i32), record(OPQ_OP_abs, {multiple})});
    return cast(magnitude, dtype);
}

bool record_pointwise(Call &call, const Gathered &args, c10::SmallVector<Value, 6> &values, const Order &order)
{
    if (opq_op_info_of(call.row)->rule == OPQ_RULE_FLOAT && !args.has_float && !float_is_default())
        return false;
    const opq_dtype widened = clamps(call) ? OPQ_f32 : widen(call.row, args.tensors, args.scalars, values);
    Value result = call.row == OPQ_OP_lcm ? common_multiple(values[0], values[1]) : record_list(call.row, values);
    if (widened != OPQ_f32)
        result = cast(result, widened);
    for (size_t i = 0; i < args.tensors.size(); ++i)
        if (!args.tensors[i] && takes_parameters(call))
            check_fits(args.scalars[i], parameter_dtype(call, i, result.dtype()));
    const at::ScalarType dtype = torch_dtype(result.dtype());
    call.give(std::move(result), dtype, order);
    return true;
}

bool apply(Call &call, size_t count, bool alpha)
{
    Gathered args;
    if (!gather(call, count, args))
        return false;
    if ((args.float_scalar || args.float_number) && !args.sized_float && !float_is_default())
        return false;
    if (args.float_scalar && !args.has_float && !scalars_promote(call))
        return false;
    if (call.row == OPQ_OP_softshrink && !(args.scalars[1].toDouble() >= 0)) // an error that PyTorch words
        return false;
    if (call.row == OPQ_OP_lerp) // the one that does not promote
        for (const Tensor *const tensor : args.tensors)
            if (tensor && tensor->scalar_type() != args.tensors[0]->scalar_type())
                return false;
    auto [values, order] = aligned(args.tensors, args.scalars);
    if (alpha && !scale(call, call.scalar(count), values[1]))
        return false;
    return record_pointwise(call, args, values, order);
}

bool with_alpha(Call &call)
{
    if (call.row == OPQ_OP_sub) // PyTorch refuses a bool operand whatever the other is
        for (const size_t i : {size_t{0}, size_t{1}})
            if (call.args[i].isBool() || (call.args[i].isTensor() && call.tensor(i).scalar_type() == at::kBool))
                return false;
    return apply(call, call.count - 1, true);
}

Kernel kernel_of(const char *signature)
{
    if (std::strcmp(signature, "POINTWISE") == 0)
        return &opq::pointwise;
    return std::strcmp(signature, "ALPHA") == 0 ? &with_alpha : nullptr;
}

} // namespace

Aligned aligned(c10::ArrayRef<const Tensor *> tensors, c10::ArrayRef<at::Scalar> scalars)
{
    Aligned result;
    Tensors present;
    Dims shape;
    bool contiguous = true;
    for (const Tensor *const tensor : tensors)
        if (tensor && on_device(*tensor)) {
            present.push_back(tensor);
            contiguous = contiguous && tensor->is_contiguous();
        }
    if (!contiguous && broadcast_shape(present, shape))
        result.order = result_order(present, shape);
    for (size_t i = 0; i < tensors.size(); ++i)
        result.values.push_back(!tensors[i] ? scalar(scalars[i])
                                : on_device(*tensors[i])
                                    ? read_ordered(*tensors[i], static_cast<int>(shape.size()), result.order)
                                    : scalar_of(*tensors[i]));
    return result;
}

Aligned aligned(const Call &call, std::initializer_list<size_t> arguments)
{
    Tensors tensors;
    c10::SmallVector<at::Scalar, 6> scalars;
    for (const size_t i : arguments) {
        const Tensor *const tensor = call.args[i].isTensor() ? &call.tensor(i) : nullptr;
        if (tensor && (tensor->dim() != 0 || !tensor->device().is_cpu()))
            check_device(*tensor, call.name());
        if (tensor && is_raw(*tensor))
            decline(opq_fail(OPQ_UNSUPPORTED, "%s of this dtype", call.name()));
        tensors.push_back(tensor);
        scalars.push_back(tensor ? at::Scalar() : call.scalar(i));
    }
    return aligned(tensors, scalars);
}

at::ScalarType common_type(const Call &call)
{
    return call.args[1].isTensor() ? at::result_type(call.tensor(0), call.tensor(1))
                                   : at::result_type(call.tensor(0), call.scalar(1));
}

bool holds(at::ScalarType dtype, const Tensor &number)
{
    double value = 0;
    switch (number.scalar_type()) {
    case at::kDouble: value = *number.const_data_ptr<double>(); break;
    case at::kLong: value = static_cast<double>(*number.const_data_ptr<int64_t>()); break;
    case at::kBool: return true;
    default: return false;
    }
    return holds(dtype, value);
}

bool holds(at::ScalarType dtype, double number)
{
    const auto narrow = static_cast<float>(number);
    const float held =
        dtype == at::kHalf ? static_cast<float>(c10::Half(narrow)) : static_cast<float>(c10::BFloat16(narrow));
    return number != number || held == number;
}

opq_dtype widen(opq_op row, c10::ArrayRef<const Tensor *> tensors, c10::ArrayRef<at::Scalar> scalars,
                c10::SmallVector<Value, 6> &values)
{
    const auto is_number = [](const Tensor *tensor) {
        return !tensor || (!on_device(*tensor) && tensor->unsafeGetTensorImpl()->is_wrapped_number());
    };
    if (opq_op_info_of(row)->rule == OPQ_RULE_BOOL || row == OPQ_OP_remainder || row == OPQ_OP_fmod)
        return OPQ_f32;
    at::ScalarType narrow = at::ScalarType::Undefined;
    for (const Tensor *const tensor : tensors)
        if (!is_number(tensor) && tensor->dim() != 0)
            narrow = narrow == at::ScalarType::Undefined ? tensor->scalar_type()
                                                         : at::promoteTypes(narrow, tensor->scalar_type());
    if (narrow != at::kHalf && narrow != at::kBFloat16)
        return OPQ_f32;
    bool exact = true;
    for (size_t i = 0; i < tensors.size(); ++i)
        if (is_number(tensors[i]))
            exact &= tensors[i] ? holds(narrow, *tensors[i]) : holds(narrow, scalars[i].toDouble());
        else if (tensors[i]->dim() == 0)
            exact &= tensors[i]->scalar_type() == narrow || tensors[i]->scalar_type() == at::kBool;
    if (exact)
        return OPQ_f32;
    for (size_t i = 0; i < values.size(); ++i)
        if (tensors[i] && values[i].dtype() == core_dtype(narrow))
            values[i] = cast(values[i], OPQ_f32);
        else if (!is_number(tensors[i]) && tensors[i]->dim() == 0 && values[i].dtype() != OPQ_bool)
            values[i] = cast(values[i], OPQ_f32);
    return core_dtype(narrow);
}

Kernel pointwise_kernel(opq_op row) { return kernel_of(opq_op_info_of(row)->signature); }

bool pointwise(Call &call) { return apply(call, call.count, false); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    for (int op = 0; op < OPQ_OP_COUNT; ++op) {
        const opq_op_info *const info = opq_op_info_of(static_cast<opq_op>(op));
        const Kernel kernel = kernel_of(info->signature);
        const std::string names = info->aten;
        for (size_t begin = 0; kernel && begin < names.size();) {
            const size_t end = std::min(names.find(' ', begin), names.size());
            adapt(library, names.substr(begin, end - begin).c_str(), kernel, static_cast<opq_op>(op));
            begin = end + 1;
        }
    }
}

} // namespace opq
