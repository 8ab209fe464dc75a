// Operators that cannot wait: what they give depends on data or on a generator, or they change their arguments in ways only the
// CPU kernel knows. Operands are materialised, the operator runs on CPU tensors over the same memory, results become values that
// exist. Arguments that are written to are copies, written back through their cells.
#include "adapter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>

#include "below.h"
#include "extern_call.h"
#include "fallbacks.h"
#include "lending.h"
#include "nested.h"
#include "random.h"
#include "sparse.h"

namespace opq
{

namespace
{

// A tensor argument and the CPU tensor that stands for it.
struct Pair {
    Tensor ours, cpu;
    bool written;
};

// A cell that a call writes through a window, and the CPU copy of all of it. Arguments that share the cell are windows on the
// copy, so that the CPU kernel sees which memory is the same.
struct Shared {
    Tensor ours, cpu; // flat
};

Tensor flat_cell(const Tensor &tensor)
{
    const int64_t count = opq_cell_bytes(impl_of(tensor)->cell()) / static_cast<int64_t>(tensor.itemsize());
    return make_tensor(impl_of(tensor)->cell_ref(), tensor.dtype(), {count}, {1});
}

// Does another argument than number `at` read the memory of `written`? Elementwise it may, if it is the same window. An `out`
// argument may grow into all of its cell.
bool reads_elsewhere(const Tensor &written, const IValue *args, const c10::FunctionSchema &schema, size_t at,
                     bool elementwise)
{
    const bool out = schema.arguments()[at].kwarg_only();
    const size_t count = schema.arguments().size();
    const auto reads = [&](const Tensor &other) {
        if (elementwise || !other.defined() || !impl_or_null(other))
            return overlaps_partly(written, other);
        return out ? impl_of(written)->cell() == impl_of(other)->cell() : shares_memory(written, other);
    };
    for (size_t i = 0; i < count; ++i) {
        if (i == at)
            continue;
        if (args[i].isTensor() && reads(args[i].toTensor()))
            return true;
        if (is_list_of_tensors(args[i]))
            for (const IValue &element : args[i].toListRef())
                if (element.isTensor() && reads(element.toTensor()))
                    return true;
    }
    return false;
}

struct Conversion {
    const OperatorHandle &op;
    const bool sparse; // an argument is a sparse tensor
    std::vector<Pair> pairs;
    std::vector<Shared> shared;

    void share(const Tensor &written)
    {
        const Tensor flat = flat_cell(written);
        shared.push_back({flat, cpu_now(flat, OPQ_REASON_extern_now).clone()});
    }

    void share_if_read(const Tensor &written, const Stack &arguments, const c10::FunctionSchema &schema, size_t at)
    {
        if (!written.defined() || !impl_or_null(written) || window(written).defined())
            return;
        if (overlaps_itself(written) || reads_elsewhere(written, arguments.data(), schema, at, false))
            share(written);
    }

    // The window of a tensor on the copy of its cell; undefined: its cell is not shared.
    Tensor window(const Tensor &tensor)
    {
        for (const Shared &cell : shared)
            if (impl_or_null(tensor) && impl_of(tensor)->cell() == impl_of(cell.ours)->cell() &&
                cell.cpu.nbytes() % tensor.itemsize() == 0) {
                const Tensor seen = cell.cpu.view(tensor.scalar_type())
                                        .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
                seen._set_conj(tensor.is_conj());
                seen._set_neg(tensor.is_neg());
                return seen;
            }
        return {};
    }

    Tensor convert_sparse(const Tensor &tensor, bool written)
    {
        check_device(tensor, op.operator_name().name.c_str());
        const Tensor cpu = sparse_to_cpu(tensor, OPQ_REASON_extern_now);
        pairs.push_back({tensor, written ? cpu.clone() : cpu, written}); // a kernel resizes what it writes
        return pairs.back().cpu;
    }

    // A dense tensor that a sparse operator changes in place: few of its elements change, so it is not copied.
    Tensor lend(const Tensor &tensor)
    {
        pairs.push_back({tensor, cpu_window(tensor, lend_memory(tensor, OPQ_REASON_extern_now)), false});
        return pairs.back().cpu;
    }

    Tensor convert(const Tensor &tensor, bool written)
    {
        if (!tensor.defined())
            return tensor;
        for (Pair &pair : pairs)
            if (pair.ours.is_same(tensor))
                return pair.cpu;
        if (is_sparse(tensor))
            return convert_sparse(tensor, written);
        if (tensor.is_nested() && on_device(tensor)) {
            pairs.push_back({tensor, nested_to_cpu(tensor, OPQ_REASON_extern_now, written), written});
            return pairs.back().cpu;
        }
        if (sparse && written && on_device(tensor) && op.operator_name().name.back() == '_')
            return lend(tensor);
        TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided, "only strided tensors are supported on device ",
                                    device(), ", got ", tensor.layout());
        Tensor cpu = window(tensor);
        const bool whole = cpu.defined();
        if (!whole)
            cpu = on_device(tensor) ? cpu_now(tensor, OPQ_REASON_extern_now) : tensor;
        if (!whole && written && on_device(tensor))
            cpu = cpu.clone();
        pairs.push_back({tensor, cpu, written && on_device(tensor) && !whole});
        return cpu;
    }

    void convert_argument(const c10::Argument &argument, bool written, IValue &value)
    {
        if (value.isTensor()) {
            value = convert(value.toTensor(), written);
        } else if (is_list_of_tensors(value)) {
            std::vector<std::optional<Tensor>> converted;
            for (const IValue &element : value.toListRef())
                converted.push_back(element.isTensor() ? std::optional(convert(element.toTensor(), written))
                                                       : std::nullopt);
            value = list_for(argument, converted);
        } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
            value = c10::Device(c10::kCPU);
        } else if (value.isGenerator() || (value.isNone() && argument.name() == "generator")) {
            value = cpu_generator(value.isNone() ? std::nullopt : std::optional(value.toGenerator()));
        } else if (value.isBool() && argument.name() == "pin_memory") {
            value = false;
        } else {
            TORCH_CHECK_NOT_IMPLEMENTED(!value.isStorage(), "storage arguments are not supported on device ", device());
        }
    }

    void write_back()
    {
        for (const Shared &cell : shared)
            write(cell.ours, upload(cell.cpu, Order{}));
        for (Pair &pair : pairs) {
            if (pair.ours.is_nested()) {
                if (pair.written)
                    nested_assign(pair.ours, pair.cpu);
                continue;
            }
            if (!pair.written && pair.ours.sizes() == pair.cpu.sizes())
                continue;
            if (is_sparse(pair.ours)) {
                sparse_assign(pair.ours, pair.cpu);
                continue;
            }
            if (pair.ours.sizes() != pair.cpu.sizes())
                pair.ours.resize_(pair.cpu.sizes());
            write(pair.ours, upload(pair.cpu, Order{}));
        }
    }

    Tensor back(const Tensor &result)
    {
        if (!result.defined())
            return result;
        for (const Pair &pair : pairs)
            if (pair.cpu.is_same(result))
                return pair.ours;
        if (is_sparse(result))
            return sparse_from_cpu(result);
        if (result.is_nested())
            return nested_from_cpu(result);
        TORCH_CHECK_NOT_IMPLEMENTED(!result.is_quantized(), op.operator_name(),
                                    " returns a quantized tensor, which device ", device(), " does not have");
        TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == c10::kStrided, op.operator_name(), " returns layout ",
                                    result.layout(), "; device ", device(),
                                    " has strided, sparse COO and nested tensors");
        const Tensor plain =
            result._is_zerotensor() ? at::zeros(result.sizes(), result.options()) : result.resolve_conj().resolve_neg();
        const Order order = dense_order(plain.sizes(), plain.strides()).value_or(Order{});
        return wrap_cpu(plain, order);
    }

    IValue back_value(const IValue &value)
    {
        if (value.isTensor())
            return back(value.toTensor());
        if (!value.isTensorList())
            return value;
        c10::List<Tensor> list;
        for (const Tensor &tensor : value.toTensorVector())
            list.push_back(back(tensor));
        return list;
    }
};

bool has_sparse(const Stack &arguments)
{
    for (const IValue &value : arguments) {
        if (value.isTensor() && is_sparse(value.toTensor()))
            return true;
        if (is_list_of_tensors(value))
            for (const IValue &element : value.toListRef())
                if (element.isTensor() && is_sparse(element.toTensor()))
                    return true;
    }
    return false;
}

} // namespace

bool is_list_of_tensors(const IValue &value)
{
    if (!value.isList())
        return false;
    for (const IValue &element : value.toListRef())
        if (element.isTensor())
            return true;
    return value.isTensorList() || value.isOptionalTensorList();
}

IValue list_for(const c10::Argument &argument, const std::vector<std::optional<Tensor>> &tensors)
{
    const auto type = argument.type()->cast<c10::ListType>();
    if (type && type->getElementType()->kind() == c10::TypeKind::OptionalType)
        return c10::List<std::optional<Tensor>>(tensors);
    c10::List<Tensor> list;
    for (const auto &tensor : tensors)
        list.push_back(tensor.value_or(Tensor()));
    return list;
}

void run_on_cpu(const OperatorHandle &op, Stack *stack)
{
    const auto &arguments = op.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    Stack cpu_stack(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
    Conversion conversion{op, has_sparse(cpu_stack), {}, {}};
    for (size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite() && cpu_stack[i].isTensor())
            conversion.share_if_read(cpu_stack[i].toTensor(), cpu_stack, op.schema(), i);
    for (const bool written : {true, false}) // an argument that is both read and written is one CPU tensor
        for (size_t i = 0; i < arguments.size(); ++i)
            if (written == (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()))
                conversion.convert_argument(arguments[i], written, cpu_stack[i]);
    {
        const Below below;
        op.callBoxed(cpu_stack);
    }
    conversion.write_back();
    torch::jit::drop(*stack, arguments.size());
    for (const IValue &value : cpu_stack)
        stack->push_back(conversion.back_value(value));
}

namespace
{

bool is_view(const c10::FunctionSchema &schema)
{
    for (const auto &result : schema.returns())
        if (result.alias_info() && !result.alias_info()->isWrite())
            return true;
    return false;
}

} // namespace

void extern_now(const OperatorHandle &op, Stack *stack)
{
    TORCH_CHECK_NOT_IMPLEMENTED(!is_view(op.schema()), op.operator_name(),
                                " returns a view and has no kernel on device ", device());
    const size_t count = op.schema().arguments().size();
    const std::string about = about_fallback(op, c10::ArrayRef<IValue>(*stack).slice(stack->size() - count));
    for (size_t i = stack->size() - count; i < stack->size(); ++i)
        if ((*stack)[i].isTensor() && (*stack)[i].toTensor().defined())
            check_operand((*stack)[i].toTensor(), op, false);
    try {
        run_on_cpu(op, stack);
    } catch (const Decline &why) {
        raise(why.status);
    }
    count_fallback(op, about); // not before: wrong arguments are an error of the user's and no fallback
}

namespace
{

// Is an `out` argument of another dtype than the result? Some CPU kernels convert, some refuse.
bool converts(const Target &target, const Call &call)
{
    for (size_t i = 0; target.form == Form::out && i < call.results.size(); ++i) {
        const IValue &out = call.args[call.count + i];
        if (out.isTensor() && out.toTensor().scalar_type() != call.results[i].dtype)
            return true;
    }
    return false;
}

} // namespace

bool writes_what_it_reads(const OperatorHandle &op, const IValue *args, bool elementwise)
{
    const auto &arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite() || !args[i].isTensor())
            continue;
        const Tensor &written = args[i].toTensor();
        if (written.defined() && on_device(written) &&
            (overlaps_itself(written) || reads_elsewhere(written, args, op.schema(), i, elementwise)))
            return true;
    }
    return false;
}

void fallback(const OperatorHandle &op, Stack *stack)
{
    note_line();
    const auto target = functional_of(op);
    const size_t total = op.schema().arguments().size();
    IValue *const args = stack->data() + (stack->size() - total);
    if (target && (target->form == Form::functional || !writes_what_it_reads(op, args, false))) {
        Call call(target->functional, args, target->functional.schema().arguments().size(), OPQ_OP_extern);
        bool recorded = false;
        try {
            recorded = extern_record(call);
        } catch (const Decline &) {
            call.results.clear();
        }
        if (recorded && !converts(*target, call))
            return deliver(op, target->form, call, stack);
        extern_now(op, stack);
        return prove(call.unproven);
    }
    extern_now(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(boxed_kernel<&fallback>()); }

} // namespace opq
