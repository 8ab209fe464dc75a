// Operators without a native lowering, as nodes: what they are called with, and the call itself.
//
// predict.cpp says what they will give. The node's payload is that call with holes where the operands go. When it runs, the
// holes become CPU tensors over our buffers, the operator runs below autograd on CPU, and what it gives is checked against the
// prediction and copied into the result buffers.
#include <ATen/ops/from_blob.h>

#include "below.h"
#include "extern_call.h"
#include "fallbacks.h"
#include "movement.h"

namespace opq
{

void set_bits(const Tensor &tensor, const Hole &hole)
{
    if (hole.wrapped)
        tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (hole.conj)
        tensor._set_conj(true);
    if (hole.neg)
        tensor._set_neg(true);
}

// CUDA takes indices, which are lists, and lengths that lie on the CPU: its kernels move them, or read them there.
void check_operand(const Tensor &tensor, const OperatorHandle &op, bool listed)
{
    if (on_device(tensor) || tensor.dim() == 0)
        return;
    const std::string &name = op.operator_name().name;
    const auto begins = [&](const char *prefix) { return name.rfind(prefix, 0) == 0; };
    const bool indexes = name == "aten::index" || begins("aten::index_put") || begins("aten::_index_put") ||
                         begins("aten::_unsafe_index");
    if ((indexes && listed) || begins("aten::_pack_padded") || begins("aten::tensor_split") ||
        begins("aten::_ctc_loss") || begins("aten::_nested") || begins("aten::index_fill") || begins("aten::copy"))
        return;
    check_device(tensor, name.c_str());
}

namespace
{

// ---- reading the arguments

struct Reader {
    const Call &call;
    ExternCall &target;
    std::vector<Value> operands;
    std::string constants; // node key: the call without operand types
    std::string types;     // operand geometries, for the prediction

    void add_list(const char *open, IntArrayRef values)
    {
        constants += open;
        for (const int64_t value : values)
            constants += std::to_string(value) + ",";
        constants += "]";
    }

    void add_tensor(const Tensor &tensor, size_t argument, int64_t element)
    {
        Hole hole{argument,
                  element,
                  tensor.scalar_type(),
                  Dims(tensor.sizes().begin(), tensor.sizes().end()),
                  {},
                  tensor.unsafeGetTensorImpl()->is_wrapped_number(),
                  tensor.is_conj(),
                  tensor.is_neg()};
        Order order;
        if (on_device(tensor)) {
            const auto dense = dense_order(tensor.sizes(), tensor.strides());
            order = dense ? *dense : loose_order(tensor);
            operands.push_back(read_dense(tensor, order));
        } else {
            check_operand(tensor, call.op, element >= 0);
            hole.conj = hole.neg = false;
            operands.push_back(upload(tensor.resolve_conj().resolve_neg(), order));
        }
        hole.strides = ordered_strides(hole.sizes, order);
        constants += "%";
        if (is_raw(core_dtype(hole.dtype)))
            constants += c10::toString(hole.dtype);
        if (hole.wrapped || hole.conj || hole.neg)
            constants += std::string("'") + (hole.wrapped ? "w" : "") + (hole.conj ? "c" : "") + (hole.neg ? "n" : "");
        if (!order.plain()) {
            add_list("order[", order.perm);
            add_list("of[", hole.sizes);
        }
        types += c10::toString(hole.dtype);
        for (const int64_t size : hole.sizes)
            types += "," + std::to_string(size);
        types += ";";
        target.holes.push_back(std::move(hole));
    }

    // The order of what is not dense. Gradients of determinants ask whether the matrix is contiguous, which says whose factors the forward
    // gave, those of the matrix or of its transpose: the CPU's copy is not contiguous either, then.
    Order loose_order(const Tensor &tensor) const
    {
        const std::string &name = call.op.operator_name().name;
        if ((name != "aten::_linalg_det" && name != "aten::_linalg_slogdet") || tensor.dim() < 2)
            return result_order({&tensor}, tensor.sizes());
        return transposed(tensor.dim());
    }

    bool add_constant(const IValue &value)
    {
        char text[64];
        if (value.isNone())
            constants += "none";
        else if (value.isBool())
            constants += value.toBool() ? "true" : "false";
        else if (value.isInt())
            constants += std::to_string(value.toInt());
        else if (value.isDouble()) {
            snprintf(text, sizeof text, "%a", value.toDouble());
            constants += text;
        } else if (value.isComplexDouble()) {
            snprintf(text, sizeof text, "%a+%aj", value.toComplexDouble().real(), value.toComplexDouble().imag());
            constants += text;
        } else if (value.isString())
            constants += "\"" + value.toStringRef() + "\"";
        else if (value.isDevice()) {
            check_index(value.toDevice());
            constants += "device";
        } else if (value.isIntList())
            add_list("[", value.toDimVector());
        else if (value.isList())
            return add_elements(value.toListRef());
        else
            return false;
        return true;
    }

    bool add_elements(c10::ArrayRef<IValue> values)
    {
        constants += "[";
        for (const IValue &value : values) {
            if (!add_constant(value))
                return false;
            constants += ",";
        }
        constants += "]";
        return true;
    }

    bool add_tensors(const IValue &list, size_t argument)
    {
        constants += "[";
        const auto elements = list.toListRef();
        for (size_t i = 0; i < elements.size(); ++i) {
            if (elements[i].isTensor() && elements[i].toTensor().defined())
                add_tensor(elements[i].toTensor(), argument, static_cast<int64_t>(i));
            else
                constants += "none";
            constants += ",";
        }
        constants += "]";
        return true;
    }

    bool add(size_t argument)
    {
        const IValue &value = call.args[argument];
        if (value.isTensor() && !value.toTensor().defined())
            constants += "none";
        else if (value.isTensor())
            add_tensor(value.toTensor(), argument, -1);
        else if (is_list_of_tensors(value))
            return add_tensors(value, argument);
        else if (!add_constant(value))
            return false;
        return true;
    }

    bool read()
    {
        constants = call.op.operator_name().name;
        if (!call.op.operator_name().overload_name.empty())
            constants += "." + call.op.operator_name().overload_name;
        constants += "(";
        for (size_t i = 0; i < call.count; ++i) {
            if (!add(i))
                return false;
            constants += i + 1 < call.count ? ", " : ")";
            target.arguments.push_back(call.args[i]);
        }
        if (at::globalContext().deterministicAlgorithms())
            constants += " deterministic";
        return true;
    }
};

// Do meta kernel and CPU kernel give other shapes or dtypes?
bool wrong_meta(const Call &call)
{
    const std::string &name = call.op.operator_name().name;
    for (const char *known : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only",
                              "aten::multilabel_margin_loss_forward", "aten::_native_batch_norm_legit"})
        if (name == known)
            return true;
    if (name == "aten::native_batch_norm") // evaluation saves no statistics
        return !call.flag(5);
    return name == "aten::native_layer_norm" && at::isReducedFloatingType(call.tensor(0).scalar_type()) &&
           same_dtype({&call.tensor(0), call.none(2) ? nullptr : &call.tensor(2)}); // statistics of that dtype, not float
}

bool runs_late(const Call &call)
{
    const OperatorHandle &op = call.op;
    if (wrong_meta(call))
        return false;
    for (const at::Tag tag : op.getTags())
        if (tag == at::Tag::nondeterministic_seeded || tag == at::Tag::dynamic_output_shape ||
            tag == at::Tag::data_dependent_output)
            return false;
    for (const auto &result : op.schema().returns()) {
        const auto kind = result.type()->kind();
        if (kind != c10::TypeKind::TensorType || result.alias_info())
            return false;
    }
    return !op.schema().returns().empty();
}

// May the CPU kernel compute in the default dtype? That is one for the process: another may be set before the call would run, and
// must not be set for the time of the call, when other threads would see it.
bool follows_default(const Call &call, const ExternCall &target)
{
    const auto real = [](at::ScalarType dtype) { return at::isFloatingType(dtype) || at::isComplexType(dtype); };
    bool number = false;
    for (const Hole &hole : target.holes) {
        if (real(hole.dtype) && !hole.wrapped)
            return false;
        number = number || real(hole.dtype);
    }
    for (size_t i = 0; i < call.count; ++i) {
        if (call.op.schema().arguments()[i].name() == "dtype" && !call.args[i].isNone())
            return false;
        number = number || call.args[i].isDouble() || call.args[i].isComplexDouble() || call.args[i].isDoubleList();
    }
    return number || std::any_of(target.prediction->begin(), target.prediction->end(),
                                 [&](const Predicted &result) { return result.defined && real(result.dtype); });
}

bool takes_wide(const Call &call)
{
    const auto wide = [](const IValue &value) {
        return value.isTensor() && value.toTensor().defined() && is_wide(value.toTensor());
    };
    for (size_t i = 0; i < call.count; ++i) {
        if (wide(call.args[i]))
            return true;
        if (is_list_of_tensors(call.args[i]))
            for (const IValue &element : call.args[i].toListRef())
                if (wide(element))
                    return true;
    }
    return false;
}

// ---- calling with the holes filled

// The payload describes its operands, it does not keep them.
IValue hollow(const IValue &value)
{
    if (value.isTensor())
        return value.toTensor().defined() ? IValue() : value;
    if (!is_list_of_tensors(value))
        return value;
    c10::List<Tensor> list;
    for (size_t i = 0; i < value.toListRef().size(); ++i)
        list.push_back(Tensor());
    return list;
}

void store(const Predicted &expected, const Tensor &given, void *memory, const OperatorHandle &op)
{
    if (!given.defined() || given.sizes() != IntArrayRef(expected.sizes) || given.scalar_type() != expected.dtype)
        mispredicted(expected, given, op);
    copy_ordered(given, expected.order, memory);
}

void run(const ExternCall &call, const void *const *operands, void *const *results)
{
    const Below below;
    Stack stack = filled(call, c10::DeviceType::CPU, [&](size_t i) {
        const Hole &hole = call.holes[i];
        Tensor tensor = at::from_blob(const_cast<void *>(operands[i]), hole.sizes, hole.strides,
                                      at::TensorOptions().dtype(hole.dtype).device(c10::kCPU));
        set_bits(tensor, hole);
        return tensor;
    });
    call.op.callBoxed(stack);
    size_t next = 0;
    for (size_t i = 0; i < call.prediction->size(); ++i) {
        const Predicted &expected = (*call.prediction)[i];
        if (!expected.defined && stack[i].toTensor().defined())
            mispredicted(expected, stack[i].toTensor(), call.op);
        if (expected.defined) {
            if (results[next]) // NULL: nobody reads this result
                store(expected, stack[i].toTensor(), results[next], call.op);
            ++next;
        }
    }
}

} // namespace

opq_status run_extern(void *, void *payload, const void *const *operands, void *const *results) noexcept
{
    const ExternCall &call = *static_cast<const ExternCall *>(payload);
    const auto failed = [&](opq_status status, const c10::Error &error) {
        return opq_fail(status, "%s: %s", call.op.operator_name().name.c_str(), error.what_without_backtrace());
    };
    try {
        run(call, operands, results);
        return OPQ_OK;
    } catch (const c10::OutOfMemoryError &error) {
        return failed(OPQ_NO_MEMORY, error);
    } catch (const c10::IndexError &error) {
        return failed(OPQ_OUT_OF_RANGE, error);
    } catch (const c10::LinAlgError &error) {
        return failed(OPQ_SINGULAR, error);
    } catch (const c10::NotImplementedError &error) {
        return failed(OPQ_UNSUPPORTED, error);
    } catch (const c10::Error &error) {
        return failed(OPQ_INVALID, error);
    } catch (const std::exception &error) {
        return opq_fail(OPQ_INVALID, "%s: %s", call.op.operator_name().name.c_str(), error.what());
    } catch (...) {
        return opq_fail(OPQ_INTERNAL, "%s: unknown exception", call.op.operator_name().name.c_str());
    }
}

void retain_extern(void *, void *payload) noexcept
{
    static_cast<ExternCall *>(payload)->references.fetch_add(1, std::memory_order_relaxed);
}

void release_extern(void *, void *payload) noexcept
{
    auto *const call = static_cast<ExternCall *>(payload);
    if (call->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
        delete call;
}

bool extern_record(Call &call)
{
    TORCH_CHECK_NOT_IMPLEMENTED(call.op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), call.op.operator_name(),
                                " has no kernel for these operands on device ", device(), ", and no CPU kernel either");
    if (!runs_late(call) || takes_wide(call) || tries_fallback())
        return false;
    std::unique_ptr<ExternCall> target(new ExternCall{{1}, call.op, {}, {}, nullptr});
    Reader reader{call, *target, {}, {}, {}};
    if (!reader.read())
        return false;
    bool proven = false;
    target->prediction = predict(*target, reader.constants + reader.types, proven);
    if (!target->prediction || follows_default(call, *target) ||
        (!proven && !rehearse(*target, reader.constants, reader.types, call.unproven)))
        return false;
    count_fallback(call.op, about_fallback(call.op, c10::ArrayRef<IValue>(call.args, call.count)));
    for (IValue &value : target->arguments)
        value = hollow(value);
    std::vector<opq_type> types;
    for (const Predicted &result : *target->prediction)
        if (result.defined) {
            const Dims memory = ordered(result.sizes, result.order);
            types.push_back(opq_type_make(core_dtype(result.dtype), static_cast<int>(memory.size()), memory.data()));
        }
    std::vector<opq_value *> values(types.size());
    const auto prediction = target->prediction;
    check(opq_record_extern(context(), reader.constants.c_str(), target.release(),
                            reinterpret_cast<opq_value *const *>(reader.operands.data()),
                            static_cast<int>(reader.operands.size()), types.data(), static_cast<int>(types.size()),
                            values.data()));
    size_t next = 0;
    for (const Predicted &result : *prediction)
        if (result.defined)
            call.give(Value::take(values[next++]), result.dtype, result.order);
        else
            call.give_none();
    return true;
}

c10::SmallVector<Result, 3> extern_results(const char *name, const char *overload, std::vector<IValue> arguments)
{
    const OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    Call call(op, arguments.data(), arguments.size(), OPQ_OP_extern);
    if (extern_record(call))
        return std::move(call.results);
    Stack stack(arguments.begin(), arguments.end());
    extern_now(op, &stack);
    prove(call.unproven);
    for (const IValue &value : stack) {
        const Tensor &result = value.toTensor();
        if (!result.defined()) {
            call.give_none();
            continue;
        }
        const Order order = dense_order(result.sizes(), result.strides()).value_or(Order{});
        call.give(read_dense(result, order), result.scalar_type(), order);
    }
    return std::move(call.results);
}

Value convert(const Tensor &tensor, at::ScalarType dtype, const Order &order)
{
    const bool same = tensor.scalar_type() == dtype;
    if (!tensor.is_conj() && (same || (!is_raw(tensor) && !is_raw(core_dtype(dtype)))))
        return cast(read_ordered(tensor, static_cast<int>(tensor.dim()), order), core_dtype(dtype));
    const Result made =
        extern_results("aten::_to_copy", "", {tensor, dtype, IValue(), IValue(), IValue(), false, IValue()})[0];
    return order.plain() && made.order.plain() ? made.value : read_dense(wrap(made.value, made.dtype, made.order), order);
}

} // namespace opq
