// Values, scalars and recording as C++ sees them.
#include "capturing.h"
#include "shim.h"

#include <ATen/Dispatch.h>
#include <c10/core/DefaultDtype.h>
#include <cmath>
#include <cstring>

namespace opq
{

void raise(opq_status status)
{
    const std::string text = opq_error();
    const auto has = [&](const char *part) { return text.find(part) != std::string::npos; };
    switch (status) {
    case OPQ_OUT_OF_RANGE: TORCH_CHECK_INDEX(false, text);
    case OPQ_INVALID:
        TORCH_CHECK_INDEX(!(has(" out of range for ") && has(" dimensions")), text); // an axis
        TORCH_CHECK(false, text);
    case OPQ_SINGULAR: TORCH_CHECK_LINALG(false, text);
    case OPQ_UNSUPPORTED: TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case OPQ_NO_MEMORY:
        // Programs that try again with less look for these words of PyTorch's allocators.
        TORCH_CHECK_WITH(OutOfMemoryError, !has("can't allocate"), "opaque out of memory. DefaultCPUAllocator: ", text);
        TORCH_CHECK_WITH(OutOfMemoryError, false, text.empty() ? "opaque out of memory." : text);
    case OPQ_OK:
    case OPQ_CODEGEN:
    case OPQ_INTERNAL: break;
    }
    TORCH_CHECK(false, text.empty() ? "opaque: internal error" : text);
}

void decline(opq_status status)
{
    if (status == OPQ_INVALID || status == OPQ_OUT_OF_RANGE || status == OPQ_UNSUPPORTED)
        throw Decline{status};
    raise(status);
}

opq_dtype core_dtype(at::ScalarType dtype)
{
    switch (dtype) {
#define DTYPE(name, bits, kind, c_type, torch) DTYPE_##kind(name, torch)
#define DTYPE_CASE(name, torch)                                                                                        \
    case at::ScalarType::torch: return OPQ_##name;
#define DTYPE_BOOL DTYPE_CASE
#define DTYPE_UINT DTYPE_CASE
#define DTYPE_INT DTYPE_CASE
#define DTYPE_FLOAT DTYPE_CASE
#define DTYPE_RAW(name, torch)
#include "opaque/dtypes.def"
#undef DTYPE
#undef DTYPE_CASE
#undef DTYPE_BOOL
#undef DTYPE_UINT
#undef DTYPE_INT
#undef DTYPE_FLOAT
#undef DTYPE_RAW
    default: // every other scalar type is moved, never computed with: its width decides
        break;
    }
    switch (at::elementSize(dtype)) {
    case 1: return OPQ_raw8;
    case 2: return OPQ_raw16;
    case 4: return OPQ_raw32;
    case 8: return OPQ_raw64;
    case 16: return OPQ_raw128;
    default: TORCH_CHECK_NOT_IMPLEMENTED(false, "dtype ", dtype, " is not supported on device ", device());
    }
}

at::ScalarType torch_dtype(opq_dtype dtype)
{
    static constexpr at::ScalarType table[] = {
#define DTYPE(name, bits, kind, c_type, torch) at::ScalarType::torch,
#include "opaque/dtypes.def"
#undef DTYPE
    };
    return table[dtype];
}

opq_attr attr_int(opq_attr_key key, int64_t value)
{
    opq_attr attr{};
    attr.key = key;
    attr.i = value;
    return attr;
}

opq_attr attr_text(opq_attr_key key, const char *text)
{
    opq_attr attr{};
    attr.key = key;
    attr.str = text;
    return attr;
}

opq_attr attr_ints(opq_attr_key key, IntArrayRef values)
{
    opq_attr attr{};
    attr.key = key;
    attr.count = static_cast<int32_t>(values.size());
    attr.ints = values.data();
    return attr;
}

namespace
{

opq_type make_type(opq_dtype dtype, IntArrayRef size)
{
    if (C10_UNLIKELY(size.size() > OPQ_RANK_MAX))
        decline(opq_fail(OPQ_UNSUPPORTED, "a tensor of %zu dimensions", size.size()));
    return opq_type_make(dtype, static_cast<int>(size.size()), size.data());
}

static_assert(sizeof(Operand) == sizeof(opq_value *) && sizeof(Value) == sizeof(opq_value *));
opq_value *const *pointers(const void *first) { return static_cast<opq_value *const *>(first); }

} // namespace

Value record(opq_op op, Operands operands, Attrs attrs)
{
    opq_value *out = nullptr;
    accept(opq_record(context(), op, pointers(operands.begin()), static_cast<int>(operands.size()), attrs.begin(),
                      static_cast<int>(attrs.size()), &out));
    return Value::take(out);
}

Value record_list(opq_op op, c10::ArrayRef<Value> operands, Attrs attrs)
{
    opq_value *out = nullptr;
    accept(opq_record(context(), op, pointers(operands.data()), static_cast<int>(operands.size()), attrs.begin(),
                      static_cast<int>(attrs.size()), &out));
    return Value::take(out);
}

Value record_typed(opq_op op, opq_dtype dtype, IntArrayRef size, Operands operands, Attrs attrs)
{
    const opq_type type = make_type(dtype, size);
    opq_value *out = nullptr;
    accept(opq_record_typed(context(), op, &type, pointers(operands.begin()), static_cast<int>(operands.size()),
                            attrs.begin(), static_cast<int>(attrs.size()), &out));
    return Value::take(out);
}

Value reduce(opq_op op, Operands operands, IntArrayRef axes, bool keepdim)
{
    opq_value *out = nullptr;
    accept(opq_record_reduce(context(), op, pointers(operands.begin()), static_cast<int>(operands.size()), axes.data(),
                             static_cast<int>(axes.size()), keepdim, &out));
    return Value::take(out);
}

Value cast(const Value &value, opq_dtype dtype)
{
    opq_value *out = nullptr;
    if (is_raw(dtype) != is_raw(value.dtype()))
        decline(opq_fail(OPQ_UNSUPPORTED, "no native conversion between %s and %s", opq_dtype_name(value.dtype()),
                         opq_dtype_name(dtype)));
    accept(opq_record_cast(context(), value.get(), dtype, &out));
    return Value::take(out);
}

Value reshape(const Value &value, IntArrayRef size)
{
    opq_value *out = nullptr;
    accept(opq_record_reshape(context(), value.get(), static_cast<int>(size.size()), size.data(), &out));
    return Value::take(out);
}

Value expand(const Value &value, IntArrayRef size)
{
    opq_value *out = nullptr;
    accept(opq_record_expand(context(), value.get(), static_cast<int>(size.size()), size.data(), &out));
    return Value::take(out);
}

Value permute(const Value &value, IntArrayRef dims)
{
    for (size_t i = 0; i < dims.size(); ++i)
        if (dims[i] != static_cast<int64_t>(i))
            return record(OPQ_OP_permute, {value}, {attr_ints(OPQ_ATTR_dims, dims)});
    return value;
}

namespace
{

Value make_scalar(opq_dtype dtype, opq_number number, bool weak)
{
    opq_value *out = nullptr;
    check(opq_value_scalar(context(), dtype, number, weak, &out));
    return Value::take(out);
}

} // namespace

Value number(double value, opq_dtype dtype)
{
    opq_number bits{};
    if (is_float(dtype))
        bits.f = value;
    else
        bits.i = static_cast<int64_t>(value);
    return make_scalar(dtype, bits, false);
}

Value number_i64(int64_t value)
{
    opq_number bits{};
    bits.i = value;
    return make_scalar(OPQ_i64, bits, false);
}

Value scalar(const at::Scalar &value)
{
    if (C10_UNLIKELY(value.isSymbolic()))
        if (const auto reg = register_of(value))
            return capturing_here()->number(*reg, value.isFloatingPoint() ? OPQ_f64 : OPQ_i64, true);
    opq_number bits{};
    if (value.isComplex())
        decline(opq_fail(OPQ_UNSUPPORTED, "complex numbers"));
    if (value.isFloatingPoint()) {
        bits.f = value.toDouble();
        return make_scalar(OPQ_f64, bits, true);
    }
    if (value.type() == at::kUInt64) // only what exceeds int64
        decline(opq_fail(OPQ_UNSUPPORTED, "a number beyond i64"));
    bits.i = value.isBoolean() ? static_cast<int64_t>(value.toBool()) : value.toLong();
    return make_scalar(value.isBoolean() ? OPQ_bool : OPQ_i64, bits, true);
}

namespace
{

// One that is traced; each call asks whether f32 can hold it, as it can now.
Value number_that_fits(int reg, opq_dtype dtype)
{
    Capturing *const here = capturing_here();
    const py::gil_scoped_acquire lock;
    if (dtype == OPQ_f32 && std::isfinite(here->program.now(reg).real()))
        here->program.guard_finite_f32(reg);
    return here->number(reg, dtype, false);
}

} // namespace

std::optional<Value> traced_number(const at::Scalar &value, opq_dtype dtype)
{
    const auto reg = value.isSymbolic() ? register_of(value) : std::nullopt;
    if (!reg || capturing_here()->program.now(*reg).integer)
        return std::nullopt;
    return number_that_fits(*reg, dtype);
}

void check_fits(const at::Scalar &value, opq_dtype dtype)
{
    AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, torch_dtype(dtype), "number",
                               [&] { std::ignore = value.to<scalar_t>(); });
}

Value scalar(const at::Scalar &value, opq_dtype dtype)
{
    opq_number bits{};
    if (value.isComplex() || is_raw(dtype))
        decline(opq_fail(OPQ_UNSUPPORTED, "complex numbers"));
    if (C10_UNLIKELY(value.isSymbolic()) && (dtype == OPQ_f32 || dtype == OPQ_f64))
        if (const auto reg = register_of(value)) {
            const Register now = capturing_here()->program.now(*reg);
            check_fits(now.integer ? at::Scalar(now.i) : at::Scalar(now.f), dtype);
            return number_that_fits(*reg, dtype);
        }
    check_fits(value, dtype);
    if (is_float(dtype))
        bits.f = value.toDouble();
    else if (dtype == OPQ_bool)
        bits.i = value.to<bool>() ? 1 : 0;
    else
        bits.i = value.to<int64_t>();
    return make_scalar(dtype, bits, false);
}

namespace
{

// Python numbers become tensors of these dtypes; reading them through the dispatcher would cost more than recording the op.
at::Scalar host_number(const Tensor &tensor)
{
    switch (tensor.scalar_type()) {
    case at::kDouble: return *static_cast<const double *>(tensor.const_data_ptr());
    case at::kLong: return *static_cast<const int64_t *>(tensor.const_data_ptr());
    case at::kFloat: return static_cast<double>(*static_cast<const float *>(tensor.const_data_ptr()));
    case at::kBool: return *static_cast<const bool *>(tensor.const_data_ptr());
    default: return tensor.item();
    }
}

} // namespace

Value scalar_of(const Tensor &tensor)
{
    const opq_dtype dtype = core_dtype(tensor.scalar_type());
    if (is_raw(dtype))
        decline(opq_fail(OPQ_UNSUPPORTED, "complex numbers"));
    if (Capturing *const here = capturing_here())
        if (const auto reg = here->item(tensor))
            return here->number(*reg, dtype, tensor.unsafeGetTensorImpl()->is_wrapped_number());
    const at::Scalar value = host_number(tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
        return scalar(value);
    return scalar(value, dtype);
}

Value full(const at::Scalar &value, opq_dtype dtype, IntArrayRef size)
{
    const Value one = scalar(value, dtype);
    return size.empty() ? cast(one, dtype) : expand(one, size);
}

Dims shape_of(const Value &value)
{
    const opq_type type = value.type();
    return {type.size, type.size + type.rank};
}

} // namespace opq
