// Operators of define_op(): a row made at run time is recorded as rows of the table are, by their kernel and the boxed adapter. What
// autograd does stands here, because a call that needs no gradient must not enter Python; the gradient is a function of defining.py, which
// calls other such operators.
#include "defining.h"

#include <deque>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "adapter.h"
#include "lines.h"

namespace opq
{

namespace
{

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// As define_op() says it; lives as long as the process.
struct Definition {
    std::string name;
    opq_op row;
    std::string kinds;       // of the arguments: Tensor, float, int, bool, Scalar by their first letters
    std::vector<bool> saved; // which of them the gradient reads; it gets None for others
    std::string node;        // the name of its gradient's
    PyObject *gradient;      // gradient(needed, grad, arguments): one for each tensor among the arguments, or None
    PyObject *tangent;       // tangent(tangents, arguments, result): its own, of one for each tensor, or None
};

struct DefinedBackward final : torch::autograd::Node {
    const Definition *definition = nullptr;
    std::vector<IValue> arguments; // tensors are in `saved`
    std::vector<SavedVariable> saved;
    std::mutex mutex;
    bool released = false;

    std::string name() const override { return definition->node; }
    void release_variables() override
    {
        const std::lock_guard<std::mutex> lock(mutex);
        saved.clear();
        released = true;
    }
    variable_list apply(variable_list &&incoming) override;
};

py::object as_python(const IValue &value)
{
    if (value.isSymFloat())
        return py::cast(value.toSymFloat());
    if (value.isSymInt())
        return py::cast(value.toSymInt());
    if (value.isDouble())
        return py::float_(value.toDouble());
    if (value.isBool())
        return py::bool_(value.toBool());
    return value.isInt() ? py::object(py::int_(value.toInt())) : py::object(py::none());
}

// As autograd carries it from thread to thread.
[[noreturn]] void pass_on(py::error_already_set &raised)
{
    raised.restore();
    python_error error;
    error.persist();
    throw error;
}

variable_list DefinedBackward::apply(variable_list &&incoming)
{
    const size_t count = next_edges().size();
    variable_list result(count), tensors;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
        for (const SavedVariable &variable : saved)
            tensors.push_back(variable.unpack());
    }
    if (!incoming[0].defined())
        return result;
    const py::gil_scoped_acquire gil;
    try {
        py::list needed, values;
        size_t next = 0;
        for (size_t i = 0; i < count; ++i)
            needed.append(task_should_compute_output(i));
        for (const IValue &argument : arguments)
            values.append(!argument.isNone() ? as_python(argument) : py::cast(tensors[next++]));
        const auto function = py::reinterpret_borrow<py::object>(definition->gradient);
        const py::sequence given = function(needed, incoming[0], values);
        for (size_t i = 0; i < count; ++i)
            if (!py::object(given[i]).is_none())
                result[i] = py::cast<Tensor>(given[i]);
    } catch (py::error_already_set &raised) {
        pass_on(raised);
    }
    return result;
}

// The schema has Scalar where the user wrote float or int, because only that lets a number through which a captured function traces.
void check_numbers(const Definition &definition, IValue *args)
{
    for (size_t i = 0; i < definition.kinds.size(); ++i) {
        const bool is_float = args[i].isDouble() || args[i].isSymFloat();
        TORCH_CHECK_TYPE(definition.kinds[i] != 'i' || !is_float, definition.name, "(): argument ", i + 1,
                         " must be int, not float");
        if (definition.kinds[i] == 'f' && (args[i].isInt() || args[i].isBool()))
            args[i] = args[i].toScalar().toDouble();
    }
}

struct Differentiated final : c10::OperatorKernel {
    explicit Differentiated(const Definition &its_definition) : definition(its_definition) {}
    const Definition &definition;

    c10::intrusive_ptr<DefinedBackward> node_of(const variable_list &tensors, const IValue *args) const
    {
        auto node = c10::make_intrusive<DefinedBackward>();
        node->definition = &definition;
        node->set_next_edges(torch::autograd::collect_next_edges(tensors));
        for (size_t i = 0; i < definition.kinds.size(); ++i) {
            node->arguments.push_back(args[i].isTensor() ? IValue() : args[i]);
            if (args[i].isTensor())
                node->saved.emplace_back(definition.saved[i] ? args[i].toTensor() : Tensor(), false);
        }
        return node;
    }

    // Forward mode.
    Tensor tangent_of(const std::vector<IValue> &arguments, const Tensor &result) const
    {
        const py::gil_scoped_acquire gil;
        try {
            py::list tangents, values;
            for (const IValue &argument : arguments) {
                if (!argument.isTensor()) {
                    values.append(as_python(argument));
                    continue;
                }
                const Tensor &tensor = argument.toTensor();
                tangents.append(py::cast(tensor._fw_grad(0)));
                values.append(py::cast(tensor._fw_primal(0)));
            }
            return py::cast<Tensor>(py::reinterpret_borrow<py::object>(definition.tangent)(tangents, values, result));
        } catch (py::error_already_set &raised) {
            pass_on(raised);
        }
    }

    void operator()(const OperatorHandle &op, c10::DispatchKeySet keys, Stack *stack) const
    {
        IValue *const args = stack->data() + (stack->size() - definition.kinds.size());
        variable_list tensors;
        std::vector<IValue> arguments; // of forward mode
        check_numbers(definition, args);
        for (size_t i = 0; i < definition.kinds.size(); ++i)
            if (args[i].isTensor())
                tensors.push_back(args[i].toTensor());
        if (std::any_of(tensors.begin(), tensors.end(),
                        [](const Tensor &one) { return one.defined() && one._fw_grad(0).defined(); }))
            arguments.assign(args, args + definition.kinds.size());
        const bool wanted = torch::autograd::compute_requires_grad(tensors);
        const auto node = wanted ? node_of(tensors, args) : c10::intrusive_ptr<DefinedBackward>();
        {
            const at::AutoDispatchBelowAutograd guard;
            op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
        }
        Tensor result = stack->back().toTensor();
        if (!at::isFloatingType(result.scalar_type()))
            return;
        if (node)
            torch::autograd::set_history(result, node);
        if (!arguments.empty())
            result._set_fw_grad(tangent_of(arguments, result), 0, false);
    }
};

// The short way of a call on contiguous tensors of one floating dtype, and numbers. Undefined: nothing has happened.
Tensor plainly(opq_op row, const IValue *args, size_t count)
{
    c10::SmallVector<Plain, PLAIN_MAX> operands;
    c10::SmallVector<Value, PLAIN_MAX> numbers;
    if (count > PLAIN_MAX || !args[0].isTensor() || !args[0].toTensor().defined())
        return {};
    const at::ScalarType dtype = args[0].toTensor().scalar_type();
    for (size_t i = 0; i < count; ++i) {
        if (args[i].isTensor()) {
            operands.push_back(args[i].toTensor());
        } else {
            Value number = plain_number(args[i].toScalar(), dtype);
            if (!number)
                return {};
            numbers.push_back(std::move(number));
            operands.push_back(numbers.back());
        }
    }
    return plain_result(row, operands);
}

struct Recorded final : c10::OperatorKernel {
    explicit Recorded(const Definition &its_definition)
        : definition(its_definition),
          otherwise(boxed(definition.name.c_str(), "", pointwise_kernel(definition.row), definition.row))
    {
    }
    const Definition &definition;
    const BoxedCall otherwise;

    void operator()(const OperatorHandle &, c10::DispatchKeySet, Stack *stack) const
    {
        const size_t count = definition.kinds.size();
        IValue *const args = stack->data() + (stack->size() - count);
        note_line();
        check_numbers(definition, args);
        Tensor result = guarded([&] { return plainly(definition.row, args, count); });
        if (!result.defined())
            return otherwise(stack);
        torch::jit::drop(*stack, count);
        stack->emplace_back(std::move(result));
    }
};

opq_dtype dtype_named(const std::string &name)
{
    opq_dtype dtype = OPQ_f32;
    TORCH_CHECK_VALUE(opq_dtype_find(name.data(), name.size(), &dtype), "no dtype is named '", name, "'");
    return dtype;
}

// The expression as a graph, in JSON.
std::string expression(const std::string &signature, const std::string &text, const std::string &dtype, bool expand)
{
    opq_graph *graph = nullptr;
    char *json = nullptr;
    opq_status status = opq_graph_expression(signature.c_str(), text.c_str(), dtype_named(dtype), expand, &graph);
    if (status == OPQ_INVALID)
        throw py::value_error(opq_error());
    check(status);
    status = opq_graph_json(graph, &json);
    opq_graph_destroy(graph);
    check(status);
    const std::unique_ptr<char, decltype(&std::free)> owner(json, &std::free);
    return owner.get();
}

int define_row(const std::string &signature, const std::string &text)
{
    opq_op op = OPQ_OP_extern;
    const opq_status status = opq_define_op(signature.c_str(), text.c_str(), &op);
    if (status == OPQ_INVALID)
        throw py::value_error(opq_error());
    check(status);
    return op;
}

// Kernels of the operator `name`, which PyTorch knows: of this device, and of autograd.
void define_kernels(const std::string &name, int row, const std::string &kinds, const std::vector<bool> &saved,
                    const std::string &node, const py::object &gradient, const py::object &tangent)
{
    static auto *const libraries = new std::deque<torch::Library>;
    const auto *const definition = new Definition{
        name, static_cast<opq_op>(row), kinds, saved, node, gradient.inc_ref().ptr(), tangent.inc_ref().ptr()};
    torch::Library &library =
        libraries->emplace_back(torch::Library::IMPL, name.substr(0, name.find("::")), std::nullopt, __FILE__, __LINE__);
    library.impl(name.c_str(),
                 torch::dispatch(c10::DispatchKey::PrivateUse1,
                                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Recorded>(*definition))));
    library.impl(name.c_str(),
                 torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFromBoxedFunctor(
                                                                 std::make_unique<Differentiated>(*definition))));
}

} // namespace

void bind_defining(py::module_ &m)
{
    m.def("expression", torch::wrap_pybind_function(&expression));
    m.def("define_row", torch::wrap_pybind_function(&define_row));
    m.def("define_kernels", torch::wrap_pybind_function(&define_kernels));
}

} // namespace opq
