// The operators recorded most often, without boxing: plain operands go straight to the core, everything else takes the way that
// all operators take.
#include <cfloat>

#include "adapter.h"
#include "capturing.h"
#include "journal.h"

namespace opq
{

namespace
{

bool is_usual(const Tensor &tensor)
{
    return on_device(tensor) && !tensor.is_neg() && !tensor.is_conj() && !is_wide(tensor);
}

bool plain(const Tensor &tensor) { return is_usual(tensor) && tensor.is_contiguous(); }

// A column, say: with one like it, or a number, it gives a contiguous result.
bool is_line(const Tensor &tensor) { return tensor.dim() == 1 && tensor.stride(0) > 1 && is_usual(tensor); }

bool is_one(const at::Scalar &alpha) { return alpha.isIntegral(false) && alpha.equal(1); }

// An operand that needs no thought: a plain tensor, a line where it may be one, or a number. No value: think.
Value simple_operand(const Tensor &tensor, bool with_line)
{
    if (plain(tensor) || (with_line && is_line(tensor)))
        return read(tensor);
    if (tensor.device().is_cpu() && tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
        !is_raw(tensor))
        return scalar_of(tensor);
    return {};
}

// A number in a tensor's place. No value: think.
Value wrapped(const Tensor &tensor, at::ScalarType dtype)
{
    if (!tensor.device().is_cpu() || tensor.dim() != 0 || !tensor.unsafeGetTensorImpl()->is_wrapped_number())
        return {};
    if (tensor.scalar_type() == at::kDouble)
        return plain_number(*static_cast<const double *>(tensor.const_data_ptr()), dtype);
    if (tensor.scalar_type() == at::kLong)
        return plain_number(at::Scalar(*static_cast<const int64_t *>(tensor.const_data_ptr())), dtype);
    return {};
}

// The core's answer; undefined if it declines or the operands need thought.
Tensor simple_binary(opq_op op, const Tensor &a, const Tensor &b)
{
    const bool with_line = a.dim() == 1 && b.dim() <= 1 && (is_line(a) || is_line(b));
    if (!(plain(a) || (with_line && is_line(a))) || is_raw(a) || (on_device(b) && is_raw(b)) ||
        (opq_op_info_of(op)->rule == OPQ_RULE_FLOAT && !at::isFloatingType(a.scalar_type())))
        return {};
    // A number beside integers: it may have another default type than the core's.
    if (!on_device(b) && !at::isFloatingType(a.scalar_type()) && at::isFloatingType(b.scalar_type()))
        return {};
    note_line();
    if (!with_line)
        if (Tensor result = plain_result(op, {a, b}); result.defined())
            return result;
    if (b.dim() == 0 && (a.scalar_type() == at::kHalf || a.scalar_type() == at::kBFloat16) &&
        b.scalar_type() != a.scalar_type() && (on_device(b) || !holds(a.scalar_type(), b)))
        return {};
    if (const Value value = with_line ? Value() : wrapped(b, a.scalar_type()))
        if (Tensor result = plain_result(op, {a, value}); result.defined())
            return result;
    const Value left = read(a), right = simple_operand(b, with_line);
    if (!right)
        return {};
    opq_value *const operands[] = {left.get(), right.get()};
    opq_value *out = nullptr;
    if (opq_record(context(), op, operands, 2, nullptr, 0, &out) != OPQ_OK)
        return {};
    return wrap(Value::take(out));
}

Tensor through(const BoxedCall &call, std::initializer_list<IValue> arguments)
{
    Stack stack(arguments);
    call(&stack);
    return stack.back().toTensor();
}

template <opq_op row> Tensor slow(const char *name, std::initializer_list<IValue> arguments)
{
    static const auto *const call =
        new BoxedCall(boxed(name, row == OPQ_OP_relu ? "" : "Tensor", pointwise_kernel(row), row));
    return through(*call, arguments);
}

template <opq_op row> Tensor add_like(const char *name, const Tensor &a, const Tensor &b, const at::Scalar &alpha)
{
    if (is_one(alpha))
        if (Tensor result = simple_binary(row, a, b); result.defined())
            return result;
    return slow<row>(name, {a, b, alpha});
}

template <opq_op row> Tensor mul_like(const char *name, const Tensor &a, const Tensor &b)
{
    if (Tensor result = simple_binary(row, a, b); result.defined())
        return result;
    return slow<row>(name, {a, b});
}

Tensor add(const Tensor &a, const Tensor &b, const at::Scalar &alpha)
{
    return add_like<OPQ_OP_add>("aten::add", a, b, alpha);
}

Tensor sub(const Tensor &a, const Tensor &b, const at::Scalar &alpha)
{
    if (a.scalar_type() == at::kBool || b.scalar_type() == at::kBool) // an error that PyTorch words
        return slow<OPQ_OP_sub>("aten::sub", {a, b, alpha});
    return add_like<OPQ_OP_sub>("aten::sub", a, b, alpha);
}

Tensor mul(const Tensor &a, const Tensor &b) { return mul_like<OPQ_OP_mul>("aten::mul", a, b); }

Tensor div(const Tensor &a, const Tensor &b) { return mul_like<OPQ_OP_div>("aten::div", a, b); }

Tensor relu(const Tensor &a)
{
    if (!plain(a) || is_raw(a) || !at::isFloatingType(a.scalar_type()))
        return slow<OPQ_OP_relu>("aten::relu", {a});
    note_line();
    if (Tensor result = plain_result(OPQ_OP_relu, {a}); result.defined())
        return result;
    return guarded([&] { return wrap(record(OPQ_OP_relu, {read(a)})); });
}

template <Kernel kernel, int64_t rank_a, int64_t rank_b, opq_op row>
Tensor product(const char *name, const Tensor &a, const Tensor &b)
{
    if (Tensor result = plain_product(a, b, rank_a, rank_b); result.defined())
        return result;
    static const auto *const call = new BoxedCall(boxed(name, "", kernel, row));
    return through(*call, {a, b});
}

Tensor mm(const Tensor &a, const Tensor &b) { return product<&opq::mm, 2, 2, OPQ_OP_matmul>("aten::mm", a, b); }

Tensor bmm(const Tensor &a, const Tensor &b) { return product<&opq::mm, 3, 3, OPQ_OP_extern>("aten::bmm", a, b); }

Tensor mv(const Tensor &a, const Tensor &b) { return product<&opq::mv, 2, 1, OPQ_OP_extern>("aten::mv", a, b); }

Tensor dot(const Tensor &a, const Tensor &b) { return product<&opq::dot, 1, 1, OPQ_OP_extern>("aten::dot", a, b); }

// ---- in place. What is not simple takes the way of all operators.

// `name` with a trailing underscore is the operator; the row's operands are the arguments.
template <opq_op row> void slow_write(const char *name, const char *overload, std::initializer_list<IValue> arguments)
{
    static const auto *const call = new BoxedCall(boxed_inplace(name, overload, pointwise_kernel(row), row));
    through(*call, arguments);
}

template <opq_op row> Tensor &add_like_(const char *name, Tensor &self, const Tensor &other, const at::Scalar &alpha)
{
    note_line();
    if (is_one(alpha)) {
        const Value value = wrapped(other, self.scalar_type());
        if (value ? plain_write(row, {self, value}) : plain_write(row, {self, other}))
            return self;
    } else if (write_scaled(row, self, other, plain_number(alpha, self.scalar_type()))) {
        return self;
    }
    slow_write<row>(name, "Tensor", {self, other, alpha});
    return self;
}

template <opq_op row> Tensor &mul_like_(const char *name, Tensor &self, const Tensor &other)
{
    note_line();
    const Value value = wrapped(other, self.scalar_type());
    if (value ? !plain_write(row, {self, value}) : !plain_write(row, {self, other}))
        slow_write<row>(name, "Tensor", {self, other});
    return self;
}

Tensor &add_(Tensor &self, const Tensor &other, const at::Scalar &alpha)
{
    return add_like_<OPQ_OP_add>("aten::add", self, other, alpha);
}

Tensor &sub_(Tensor &self, const Tensor &other, const at::Scalar &alpha)
{
    return add_like_<OPQ_OP_sub>("aten::sub", self, other, alpha);
}

Tensor &mul_(Tensor &self, const Tensor &other) { return mul_like_<OPQ_OP_mul>("aten::mul", self, other); }

Tensor &div_(Tensor &self, const Tensor &other) { return mul_like_<OPQ_OP_div>("aten::div", self, other); }

Tensor &lerp_(Tensor &self, const Tensor &end, const at::Scalar &weight)
{
    note_line();
    const Value value = plain_number(weight, self.scalar_type());
    if (!value || !plain_write(lerp_row(weight), {self, end, value}))
        slow_write<OPQ_OP_lerp>("aten::lerp", "Scalar", {self, end, weight});
    return self;
}

Tensor &addcmul_(Tensor &self, const Tensor &a, const Tensor &b, const at::Scalar &factor)
{
    note_line();
    const Value value = plain_number(factor, self.scalar_type());
    if (!value || !plain_write(OPQ_OP_addcmul, {self, a, b, value}))
        slow_write<OPQ_OP_addcmul>("aten::addcmul", "", {self, a, b, factor});
    return self;
}

Tensor &addcdiv_(Tensor &self, const Tensor &a, const Tensor &b, const at::Scalar &factor)
{
    note_line();
    const Value value = plain_number(factor, self.scalar_type());
    if (!value || !plain_write(OPQ_OP_addcdiv, {self, a, b, value}))
        slow_write<OPQ_OP_addcdiv>("aten::addcdiv", "", {self, a, b, factor});
    return self;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("add_.Tensor", OPQ_KERNEL(add_));
    library.impl("sub_.Tensor", OPQ_KERNEL(sub_));
    library.impl("mul_.Tensor", OPQ_KERNEL(mul_));
    library.impl("div_.Tensor", OPQ_KERNEL(div_));
    library.impl("lerp_.Scalar", OPQ_KERNEL(lerp_));
    library.impl("addcmul_", OPQ_KERNEL(addcmul_));
    library.impl("addcdiv_", OPQ_KERNEL(addcdiv_));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    library.impl("add.Tensor", OPQ_KERNEL(add));
    library.impl("sub.Tensor", OPQ_KERNEL(sub));
    library.impl("mul.Tensor", OPQ_KERNEL(mul));
    library.impl("div.Tensor", OPQ_KERNEL(div));
    library.impl("relu", OPQ_KERNEL(relu));
    library.impl("mm", OPQ_KERNEL(mm));
    library.impl("bmm", OPQ_KERNEL(bmm));
    library.impl("mv", OPQ_KERNEL(mv));
    library.impl("dot", OPQ_KERNEL(dot));
}

} // namespace

namespace
{

// The core's answer for whole cells; the result goes where opq_cell_record says. The first operand is a tensor.
bool record_plain(opq_op row, c10::ArrayRef<Plain> operands, opq_cell **out_cell)
{
    opq_cell *cells[PLAIN_MAX];
    opq_value *values[PLAIN_MAX];
    if (operands.empty() || operands.size() > PLAIN_MAX || !operands[0].tensor || !operands[0].tensor->defined())
        return false;
    const Tensor &first = *operands[0].tensor;
    for (size_t i = 0; i < operands.size(); ++i) {
        values[i] = operands[i].value;
        cells[i] = nullptr;
        if (!operands[i].tensor)
            continue;
        const Tensor &tensor = *operands[i].tensor;
        const OpaqueImpl *const impl = tensor.defined() && tensor.is_privateuseone() ? impl_or_null(tensor) : nullptr;
        if (!impl || tensor.storage_offset() != 0 || !tensor.is_contiguous() || tensor.is_neg() ||
            tensor.scalar_type() != first.scalar_type())
            return false;
        cells[i] = impl->cell();
        note_reached(tensor);
        if (tensor.sizes() != first.sizes() && // but one element, of its own
            (tensor.dim() != 0 || opq_cell_bytes(cells[i]) != static_cast<int64_t>(tensor.itemsize())))
            return false;
    }
    if (!at::isFloatingType(first.scalar_type()) || first.dim() > OPQ_RANK_MAX || first.numel() == 0)
        return false;
    const opq_type type =
        opq_type_make(core_dtype(first.scalar_type()), static_cast<int>(first.dim()), first.sizes().data());
    if (C10_UNLIKELY(!out_cell && any_journal()))
        journal_write(first);
    const opq_status status =
        opq_cell_record(context(), row, cells, values, static_cast<int>(operands.size()), &type, out_cell);
    if (status != OPQ_OK && status != OPQ_UNSUPPORTED)
        raise(status);
    return status == OPQ_OK;
}

} // namespace

// The branch of lerp that this weight takes, rounded or not: its bits are those of a + (b - a) * c.
opq_op lerp_row(const at::Scalar &weight)
{
    const double rounded = static_cast<float>(weight.toDouble());
    return std::abs(rounded) < 0.5 && std::abs(weight.toDouble()) < 0.5 ? OPQ_OP_adam_m : OPQ_OP_lerp;
}

bool write_scaled(opq_op row, const Tensor &tensor, const Tensor &other, const Value &alpha)
{
    if (!alpha)
        return false;
    const Value sign = plain_number(row == OPQ_OP_sub ? -1.0 : 1.0, tensor.scalar_type());
    return plain_write(OPQ_OP_addcmul, {tensor, other, alpha, sign});
}

Value plain_number(double number, at::ScalarType dtype)
{
    const bool fits = dtype == at::kDouble || (dtype == at::kFloat && std::abs(number) <= FLT_MAX);
    return fits ? opq::number(number, core_dtype(dtype)) : Value();
}

Value plain_number(const at::Scalar &number, at::ScalarType dtype)
{
    constexpr int64_t exact = 1 << 24;
    if (C10_UNLIKELY(number.isSymbolic()) && (dtype == at::kFloat || dtype == at::kDouble))
        if (auto traced = traced_number(number, core_dtype(dtype)))
            return *traced;
    if (number.isFloatingPoint())
        return plain_number(number.toDouble(), dtype);
    if (!number.isIntegral(false) || number.type() == at::kUInt64 || std::abs(number.toLong()) > exact)
        return {};
    return plain_number(static_cast<double>(number.toLong()), dtype);
}

Tensor plain_result(opq_op row, c10::ArrayRef<Plain> operands)
{
    opq_cell *made = nullptr;
    if (!record_plain(row, operands, &made))
        return {};
    if (C10_UNLIKELY(any_journal()))
        journal_made(made);
    const Tensor &first = *operands[0].tensor;
    const bool tests = opq_op_info_of(row)->rule == OPQ_RULE_BOOL;
    return make_tensor(Cell::take(made), tests ? caffe2::TypeMeta::Make<bool>() : first.dtype(), first.sizes(),
                       first.strides());
}

bool plain_write(opq_op row, c10::ArrayRef<Plain> operands) { return record_plain(row, operands, nullptr); }

} // namespace opq
