// The boxed adapter, and how in-place and out overloads are found.
#include "adapter.h"

#include <ATen/WrapDimUtilsMulti.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>

#include "opaque/fork_mutex.h"

namespace opq
{

Dims Call::dims(size_t i) const
{
    if (args[i].isNone())
        return {};
    if (args[i].isInt())
        return {args[i].toInt()};
    const auto list = args[i].toDimVector();
    return {list.begin(), list.end()};
}

std::optional<at::ScalarType> Call::dtype(size_t i) const
{
    return args[i].isNone() ? std::nullopt : std::optional(args[i].toScalarType());
}

std::optional<at::ScalarType> Call::asked(size_t i) const
{
    const auto named = dtype(i);
    if (named)
        expect_into(*named);
    return named ? named : into;
}

void Call::expect_into(at::ScalarType dtype) const
{
    TORCH_CHECK(into.value_or(dtype) == dtype, "Expected out tensor to have dtype ", c10::scalarTypeToTypeMeta(dtype),
                ", but got ", c10::scalarTypeToTypeMeta(*into), " instead");
}

Value Call::in(const Tensor &tensor) const
{
    check_device(tensor, name());
    if (is_raw(tensor))
        decline(opq_fail(OPQ_UNSUPPORTED, "%s of this dtype", name()));
    return read(tensor);
}

Value Call::operand(size_t i) const
{
    const Tensor &given = tensor(i);
    return !on_device(given) && given.dim() == 0 && given.device().is_cpu() ? scalar_of(given) : in(given);
}

InMemory in_memory(const Call &call, size_t i)
{
    const Tensor &tensor = call.tensor(i);
    check_device(tensor, call.name());
    if (is_raw(tensor))
        decline(opq_fail(OPQ_UNSUPPORTED, "%s of this dtype", call.name()));
    Order order = result_order({&tensor}, tensor.sizes());
    Value value = read_ordered(tensor, static_cast<int>(tensor.dim()), order);
    return {std::move(value), std::move(order)};
}

bool same_dtype(std::initializer_list<const Tensor *> tensors)
{
    at::ScalarType first = at::ScalarType::Undefined;
    for (const Tensor *tensor : tensors) {
        if (!tensor || !tensor->defined())
            continue;
        if (first == at::ScalarType::Undefined)
            first = tensor->scalar_type();
        if (tensor->scalar_type() != first)
            return false;
    }
    return true;
}

Dims normal_axes(IntArrayRef axes, int64_t rank)
{
    const auto mask = axes.empty() ? std::bitset<64>().set() : at::dim_list_to_bitset(axes, rank);
    Dims result;
    for (int64_t i = 0; i < rank; ++i)
        if (mask[static_cast<size_t>(i)])
            result.push_back(i);
    return result;
}

namespace
{

// All overloads of an operator name, looked up once.
const std::vector<OperatorHandle> &overloads(const std::string &name)
{
    static const auto *const all = [] {
        auto *result = new std::unordered_map<std::string, std::vector<OperatorHandle>>;
        auto &dispatcher = c10::Dispatcher::singleton();
        for (const auto &op : dispatcher.getAllOpNames())
            if (op.name.rfind("aten::", 0) == 0)
                if (const auto handle = dispatcher.findSchema(op))
                    (*result)[op.name].push_back(*handle);
        return result;
    }();
    static const std::vector<OperatorHandle> none;
    const auto found = all->find(name);
    return found == all->end() ? none : found->second;
}

bool same_arguments(const c10::FunctionSchema &a, const c10::FunctionSchema &b, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (a.arguments()[i].name() != b.arguments()[i].name() || *a.arguments()[i].type() != *b.arguments()[i].type())
            return false;
    return true;
}

bool mutates(const c10::Argument &argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

bool functional_schema(const c10::FunctionSchema &schema)
{
    for (const auto &argument : schema.arguments())
        if (argument.alias_info())
            return false;
    for (const auto &result : schema.returns())
        if (result.alias_info())
            return false;
    return !schema.returns().empty();
}

size_t out_count(const c10::FunctionSchema &schema)
{
    size_t count = 0;
    for (const auto &argument : schema.arguments())
        count += argument.kwarg_only() && mutates(argument);
    return count;
}

bool is_inplace_of(const c10::FunctionSchema &schema, const c10::FunctionSchema &functional)
{
    return functional.returns().size() == 1 && schema.returns().size() == 1 &&
           schema.arguments().size() == functional.arguments().size() && !schema.arguments().empty() &&
           mutates(schema.arguments()[0]) && same_arguments(schema, functional, functional.arguments().size());
}

bool is_out_of(const c10::FunctionSchema &schema, const c10::FunctionSchema &functional)
{
    const size_t outs = out_count(schema);
    return outs > 0 && outs == functional.returns().size() &&
           schema.arguments().size() == functional.arguments().size() + outs &&
           same_arguments(schema, functional, functional.arguments().size());
}

std::optional<Target> find_target(const OperatorHandle &op)
{
    const auto &schema = op.schema();
    if (functional_schema(schema))
        return Target{op, Form::functional};
    std::string base = schema.name();
    const bool inplace = base.back() == '_' && out_count(schema) == 0;
    if (inplace)
        base.pop_back();
    for (const OperatorHandle &candidate : overloads(base))
        if (functional_schema(candidate.schema())) {
            if (inplace && is_inplace_of(schema, candidate.schema()))
                return Target{candidate, Form::inplace};
            if (!inplace && is_out_of(schema, candidate.schema()))
                return Target{candidate, Form::out};
        }
    return std::nullopt;
}

// Tensors, and perhaps a trailing alpha of 1, of a call that plain_result() or plain_write() can take. False: nothing has happened.
bool plainly(opq_op row, Form form, size_t count, Stack *stack)
{
    c10::SmallVector<Plain, 4> tensors;
    const IValue *const args = stack->data() + (stack->size() - count);
    for (size_t i = 0; i < count; ++i) {
        if (args[i].isTensor())
            tensors.push_back(args[i].toTensor());
        else if (tensors.empty() || i + 1 != count || !args[i].isInt() || args[i].toInt() != 1)
            return false;
    }
    if (form == Form::inplace) {
        if (!plain_write(row, tensors))
            return false;
        torch::jit::drop(*stack, count - 1); // self stays
        return true;
    }
    Tensor result = plain_result(row, tensors);
    if (!result.defined())
        return false;
    torch::jit::drop(*stack, count);
    stack->emplace_back(std::move(result));
    return true;
}

bool is_number(const c10::TypePtr &type)
{
    const auto optional = type->cast<c10::OptionalType>();
    return (optional ? optional->getElementType() : type)->kind() == c10::TypeKind::NumberType;
}

// Sizes, strides or paddings with which our arithmetic might overflow: PyTorch has the words for them.
bool beyond_geometry(const Call &call)
{
    constexpr int64_t most = int64_t{1} << 40;
    const auto beyond = [](int64_t size) { return size > most || size < -most; };
    for (size_t i = 0; i < call.count; ++i) {
        const IValue &value = call.args[i];
        if (value.isInt() ? beyond(value.toInt()) && !is_number(call.op.schema().arguments()[i].type()) &&
                                !call.op.hasTag(at::Tag::nondeterministic_seeded) /* bounds of what is drawn */
                          : value.isIntList() && std::any_of(value.toIntList().begin(), value.toIntList().end(), beyond))
            return true;
    }
    return false;
}

struct Adapter final : c10::OperatorKernel {
    Adapter(OperatorHandle functional_op, Form its_form, Kernel its_kernel, opq_op row_op)
        : functional(std::move(functional_op)), form(its_form), kernel(its_kernel), row(row_op),
          count(functional.schema().arguments().size()),
          may_be_plain(its_form != Form::out && std::strcmp(opq_op_info_of(row_op)->signature, "NONE") != 0)
    {
    }
    const OperatorHandle functional;
    const Form form;
    const Kernel kernel;
    const opq_op row;
    const size_t count;
    const bool may_be_plain;

    bool native(Call &call, opq_status &declined) const
    {
        try {
            return kernel(call);
        } catch (const Decline &why) {
            declined = why.status;
            return false;
        }
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet, Stack *stack) const
    {
        note_line();
        if (may_be_plain && plainly(row, form, count, stack))
            return;
        guarded([&] { run(op, stack); });
    }

    void run(const OperatorHandle &op, Stack *stack) const
    {
        const size_t total = form == Form::out ? op.schema().arguments().size() : count;
        Call call(functional, stack->data() + (stack->size() - total), count, row);
        if (form != Form::functional) {
            const IValue &written = call.args[form == Form::out ? count : 0];
            if (written.isTensor()) // and not a list of them
                call.into = written.toTensor().scalar_type();
            call.in_place = form == Form::inplace;
        }
        if (form != Form::functional &&
            writes_what_it_reads(op, call.args, opq_op_info_of(row)->class_ == OPQ_CLASS_EWISE))
            return extern_now(op, stack);
        uint64_t kind = 0;
        if (!accepted(op, call, total, kind)) {
            extern_now(op, stack);
            return accept_kind(kind);
        }
        opq_status declined = OPQ_UNSUPPORTED;
        if (C10_UNLIKELY(beyond_geometry(call) || !native(call, declined))) {
            call.results.clear();
            // What the core calls wrong but the meta kernels let pass is for the CPU kernel to refuse, here and now.
            if (!extern_record(call) || declined == OPQ_INVALID) {
                extern_now(op, stack);
                return prove(call.unproven);
            }
        }
        deliver(op, form, call, stack);
    }
};

Tensor &check_inplace(Call &call)
{
    Tensor &self = const_cast<Tensor &>(call.tensor(0));
    const Result &result = call.results[0];
    Dims shape = shape_of(result.value);
    if (!result.order.plain())
        shape = ordered(shape, inverse(result.order));
    check_device(self, call.name());
    TORCH_CHECK(self.sizes() == IntArrayRef(shape), "output with shape ", self.sizes(),
                " doesn't match the broadcast shape ", IntArrayRef(shape));
    check_castable(result.dtype, self.scalar_type());
    return self;
}

void write_out(const Tensor &out, const Result &result, const Call &call)
{
    Dims shape = shape_of(result.value);
    if (!result.order.plain())
        shape = ordered(shape, inverse(result.order));
    check_device(out, call.name());
    if (opq_op_info_of(call.row)->class_ == OPQ_CLASS_EWISE) // an operand does not grow
        for (size_t i = 0; i < call.count; ++i)
            TORCH_CHECK(!call.args[i].isTensor() || !call.tensor(i).is_same(out) || out.sizes() == IntArrayRef(shape),
                        "output with shape ", out.sizes(), " doesn't match the broadcast shape ", IntArrayRef(shape));
    check_castable(result.dtype, out.scalar_type());
    if (resize_output(out, shape) && !result.order.plain())
        out.as_strided_(shape, ordered_strides(shape, result.order));
    write_result(out, result);
}

} // namespace

void write_result(const Tensor &tensor, const Result &result)
{
    if (result.dtype != tensor.scalar_type() && (is_raw(result.value.dtype()) || is_raw(tensor))) {
        const Tensor given = wrap(result.value, result.dtype, result.order);
        return write(tensor, convert(given, tensor.scalar_type(), Order{}));
    }
    write(tensor, logical(result.value, result.order));
}

std::optional<Target> functional_of(const OperatorHandle &op)
{
    static auto &mutex = *new ForkMutex;
    static auto *const known = new std::unordered_map<c10::OperatorName, std::optional<Target>>;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = known->find(op.operator_name());
    if (found != known->end())
        return found->second;
    return known->emplace(op.operator_name(), find_target(op)).first->second;
}

bool is_hot(const std::string &overload)
{
    for (const char *hot :
         {"add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "relu", "mm", "bmm", "mv", "dot", "add_.Tensor",
          "sub_.Tensor", "mul_.Tensor", "div_.Tensor", "lerp_.Scalar", "addcmul_", "addcdiv_"})
        if (overload == hot)
            return true;
    return false;
}

static BoxedCall boxed_as(const OperatorHandle &op, const OperatorHandle &functional, Form form, Kernel kernel, opq_op row)
{
    return [op, adapter = std::make_shared<Adapter>(functional, form, kernel, row)](Stack *stack) {
        (*adapter)(op, c10::DispatchKeySet(), stack);
    };
}

BoxedCall boxed(const char *name, const char *overload, Kernel kernel, opq_op row)
{
    const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    return boxed_as(op, op, Form::functional, kernel, row);
}

BoxedCall boxed_inplace(const char *functional_name, const char *overload, Kernel kernel, opq_op row)
{
    auto &dispatcher = c10::Dispatcher::singleton();
    return boxed_as(dispatcher.findSchemaOrThrow((std::string(functional_name) + "_").c_str(), overload),
                    dispatcher.findSchemaOrThrow(functional_name, overload), Form::inplace, kernel, row);
}

void adapt_functional(torch::Library &library, const char *overload, Kernel kernel, opq_op row)
{
    const std::string text = overload;
    const size_t dot = text.find('.');
    const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + text.substr(0, dot)).c_str(), dot == std::string::npos ? "" : text.substr(dot + 1).c_str());
    library.impl(overload,
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Adapter>(op, Form::functional, kernel, row)));
}

void adapt(torch::Library &library, const char *overload, Kernel kernel, opq_op row)
{
    const std::string text = overload;
    const size_t dot = text.find('.');
    const std::string base = "aten::" + text.substr(0, dot);
    const auto handle =
        c10::Dispatcher::singleton().findSchema({base, dot == std::string::npos ? "" : text.substr(dot + 1)});
    TORCH_CHECK(handle, "this PyTorch has no operator ", text);
    const auto add = [&](const OperatorHandle &op, Form form) {
        const std::string name = toString(op.operator_name()).substr(6);
        if (is_hot(name))
            return;
        library.impl(name.c_str(),
                     torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Adapter>(*handle, form, kernel, row)));
    };
    add(*handle, Form::functional);
    for (const OperatorHandle &op : overloads(base + "_"))
        if (is_inplace_of(op.schema(), handle->schema()))
            add(op, Form::inplace);
    for (const OperatorHandle &op : overloads(base))
        if (is_out_of(op.schema(), handle->schema()))
            add(op, Form::out);
}

void deliver(const OperatorHandle &op, Form form, Call &call, Stack *stack)
{
    if (form == Form::functional) {
        c10::SmallVector<Tensor, 3> tensors;
        for (const Result &result : call.results)
            tensors.push_back(result.value ? wrap(result.value, result.dtype, result.order) : Tensor());
        torch::jit::drop(*stack, call.count);
        for (Tensor &tensor : tensors)
            stack->emplace_back(std::move(tensor));
    } else if (form == Form::inplace) {
        Tensor self = call.results.empty() ? call.tensor(0) : check_inplace(call);
        if (!call.results.empty())
            write_result(self, call.results[0]);
        torch::jit::drop(*stack, call.count);
        stack->emplace_back(std::move(self));
    } else {
        const size_t outs = op.schema().arguments().size() - call.count;
        std::vector<Tensor> tensors;
        for (size_t i = 0; i < outs; ++i) {
            tensors.push_back(call.args[call.count + i].toTensor());
            if (call.results[i].value)
                write_out(tensors.back(), call.results[i], call);
        }
        torch::jit::drop(*stack, call.count + outs);
        for (Tensor &tensor : tensors)
            stack->emplace_back(std::move(tensor));
    }
}

} // namespace opq
