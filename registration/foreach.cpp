// Lists of tensors. An operator _foreach_<name> whose <name> a row of the op table serves is that row for each element of the list,
// recorded here without a dispatcher call for each. From the first element on that is not simple, PyTorch's loop does it.
#include "adapter.h"

namespace opq
{

namespace
{

constexpr auto LOOP = c10::DispatchKey::CompositeExplicitAutograd; // what every device may have

// Argument i of element k, as an operand of the row.
class Operand
{
  public:
    Operand(const IValue &argument, at::ScalarType dtype)
    {
        if (argument.isTensorList())
            tensors_ = argument.toTensorVector();
        else if (argument.isTensor())
            tensor_ = argument.toTensor();
        else if (argument.isScalar())
            number_ = plain_number(argument.toScalar(), dtype);
        else
            for (const IValue &scalar : argument.toListRef())
                numbers_.push_back(plain_number(scalar.toScalar(), dtype));
    }
    // Of a list; any other argument stands beside as many as there are. One tensor is a number.
    bool has(size_t count) const
    {
        if (tensor_.defined())
            return tensor_.dim() == 0;
        return number_ || std::max(tensors_.size(), numbers_.size()) == count;
    }
    bool at(size_t k, Plain &out) const
    {
        if (!tensors_.empty())
            out = tensors_[k];
        else if (tensor_.defined())
            out = tensor_;
        else
            out = numbers_.empty() ? number_ : numbers_[k];
        return out.tensor || out.value;
    }

  private:
    std::vector<Tensor> tensors_;
    Tensor tensor_;
    std::vector<Value> numbers_;
    Value number_;
};

IValue behind(const IValue &argument, size_t first)
{
    if (argument.isTensorList()) {
        const auto list = argument.toTensorVector();
        return std::vector<Tensor>(list.begin() + static_cast<int64_t>(first), list.end());
    }
    if (!argument.isList())
        return argument;
    c10::impl::GenericList rest(argument.toList().elementType());
    for (size_t i = first; i < argument.toListRef().size(); ++i)
        rest.push_back(argument.toListRef()[i]);
    return rest;
}

struct Foreach final : c10::OperatorKernel {
    Foreach(const OperatorHandle &op, opq_op row_op)
        : row(row_op), count(op.schema().arguments().size()), inplace(op.schema().returns().empty()),
          has_alpha(count > 0 && op.schema().arguments().back().name() == "alpha")
    {
    }
    const opq_op row;
    const size_t count;
    const bool inplace, has_alpha;

    // Autograd, which has no version of these operators that writes, counts the writes of each element's own operator.
    bool write(opq_op op, const Tensor &tensor, c10::ArrayRef<Plain> plain, const Value &alpha) const
    {
        const bool done =
            alpha ? plain[1].tensor && write_scaled(row, tensor, *plain[1].tensor, alpha) : plain_write(op, plain);
        if (done)
            tensor.unsafeGetTensorImpl()->bump_version();
        return done;
    }

    // Elements from 0 on, as many as are simple; of those not in place the results.
    size_t record_simple(const IValue *args, size_t length, std::vector<Tensor> &results) const
    {
        const std::vector<Tensor> first = args[0].toTensorVector();
        const at::ScalarType dtype = first[0].scalar_type();
        const Value alpha = has_alpha ? plain_number(args[count - 1].toScalar(), dtype) : Value();
        const bool scaled =
            has_alpha && (args[count - 1].toScalar().isSymbolic() || !args[count - 1].toScalar().equal(1));
        if (has_alpha && !alpha)
            return 0;
        c10::SmallVector<Operand, 4> operands;
        for (size_t i = 0; i + has_alpha < count; ++i) {
            operands.emplace_back(args[i], dtype);
            if (!operands.back().has(length))
                return 0;
        }
        const opq_op op = row == OPQ_OP_lerp && args[count - 1].isScalar() ? lerp_row(args[count - 1].toScalar()) : row;
        for (size_t k = 0; k < length; ++k) {
            c10::SmallVector<Plain, 4> plain;
            Value product;
            if (first[k].scalar_type() != dtype)
                return k;
            for (const Operand &operand : operands) {
                plain.emplace_back(first[k]);
                if (!operand.at(k, plain.back()))
                    return k;
            }
            if (inplace) {
                if (!write(op, first[k], plain, scaled ? alpha : Value()))
                    return k;
                continue;
            }
            if (scaled) {
                if (!plain[1].tensor || !on_device(*plain[1].tensor) || plain[1].tensor->scalar_type() != dtype)
                    return k;
                product = record(OPQ_OP_mul, {read(*plain[1].tensor), alpha});
                plain[1] = product;
            }
            Tensor result = plain_result(op, plain);
            if (!result.defined())
                return k;
            results.push_back(std::move(result));
        }
        return length;
    }

    void rest(const OperatorHandle &op, Stack *stack, size_t done, std::vector<Tensor> &results) const
    {
        Stack left;
        for (size_t i = 0; i < count; ++i)
            left.push_back(done ? behind(stack->at(stack->size() - count + i), done)
                                : stack->at(stack->size() - count + i));
        op.callBoxedForDispatchKey(LOOP, left);
        if (!inplace)
            for (Tensor &tensor : left.back().toTensorVector())
                results.push_back(std::move(tensor));
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet, Stack *stack) const
    {
        note_line();
        const IValue *const args = stack->data() + (stack->size() - count);
        const size_t length = args[0].toListRef().size();
        std::vector<Tensor> results;
        results.reserve(inplace ? 0 : length);
        const size_t done = length == 0 ? 0 : guarded([&] { return record_simple(args, length, results); });
        if (done < length || length == 0)
            rest(op, stack, done, results);
        torch::jit::drop(*stack, count);
        if (!inplace)
            stack->emplace_back(std::move(results));
    }
};

// The row that serves an overload of aten::<name>; extern: none.
opq_op row_of(const std::string &name)
{
    for (int op = 0; op < OPQ_OP_COUNT; ++op) {
        const opq_op_info *const info = opq_op_info_of(static_cast<opq_op>(op));
        const std::string names = std::string(info->aten) + " ", signature = info->signature;
        const bool served = names.rfind(name + " ", 0) == 0 || names.rfind(name + ".", 0) == 0;
        if (served && (signature == "POINTWISE" || signature == "ALPHA"))
            return static_cast<opq_op>(op);
    }
    return OPQ_OP_extern;
}

// Lists, numbers and lists of numbers, one for each operand of the row; a tensor in the place of a number.
bool fits(const c10::FunctionSchema &schema, opq_op row)
{
    const auto &arguments = schema.arguments();
    const bool alpha = arguments.back().name() == "alpha",
               tensors =
                   arguments.back().name() == "scalars" && arguments.back().type()->kind() == c10::TypeKind::TensorType;
    return arguments.size() - alpha == static_cast<size_t>(opq_op_info_of(row)->arity) && !tensors &&
           opq_op_info_of(row)->class_ == OPQ_CLASS_EWISE;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library)
{
    auto &dispatcher = c10::Dispatcher::singleton();
    const std::string prefix = "aten::_foreach_";
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        if (name.name.rfind(prefix, 0) != 0 || name.overload_name.find("out") != std::string::npos)
            continue;
        std::string base = name.name.substr(prefix.size());
        if (base.back() == '_')
            base.pop_back();
        const auto op = dispatcher.findSchema(name);
        const opq_op row = row_of(base);
        if (!op || row == OPQ_OP_extern || !fits(op->schema(), row) || !op->hasKernelForDispatchKey(LOOP))
            continue;
        library.impl(toString(name).substr(6).c_str(),
                     torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Foreach>(*op, row)));
    }
}

} // namespace

} // namespace opq
