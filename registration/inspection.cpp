// Class torch_opaque._C.Inspection: a pending graph as it was at one moment, and what would become of it. Python's Graph reads it.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>

#include "inspection.h"
#include "lines.h"
#include "modes.h"
#include "shim.h"

namespace py = pybind11;

namespace opq
{

namespace
{

template <class T, void (*drop)(T *)> struct Drop {
    void operator()(T *owned) const { drop(owned); }
};
using GraphHandle = std::unique_ptr<opq_graph, Drop<opq_graph, opq_graph_destroy>>;
using ProgramHandle = std::unique_ptr<opq_program, Drop<opq_program, opq_program_release>>;
using SnapshotHandle = std::unique_ptr<opq_snapshot, Drop<opq_snapshot, opq_snapshot_drop>>;

template <class Call> std::string text_of(Call call)
{
    char *out = nullptr;
    check(call(&out));
    const std::unique_ptr<char, decltype(&free)> holder(out, &free);
    return out;
}

// Holds no values: what is looked at may be computed, changed and freed meanwhile. Later stages are made when somebody asks; several threads may.
class Inspection
{
    std::mutex lock_;
    GraphHandle recorded_, simplified_;
    ProgramHandle program_;
    opq_fusion fusion_;

    const opq_graph *simplified()
    {
        opq_graph *made = nullptr;
        if (!simplified_) {
            check(opq_graph_passes(recorded_.get(), "expand,simplify", &made));
            simplified_.reset(made);
        }
        return simplified_.get();
    }

    const opq_program *program()
    {
        opq_program *made = nullptr;
        if (!program_) {
            check(opq_program_plan(context(), recorded_.get(), fusion_, &made));
            program_.reset(made);
        }
        return program_.get();
    }

    const opq_graph *graph(const std::string &stage)
    {
        if (stage == "recorded")
            return recorded_.get();
        return stage == "simplified" ? simplified() : nullptr;
    }

  public:
    Inspection(const std::vector<Value> &values, const std::vector<std::pair<std::string, Value>> &names)
        : fusion_((opq_modes_get() & OPQ_MODE_UNFUSED) ? OPQ_UNFUSED : OPQ_FUSED)
    {
        opq_snapshot *taken = nullptr;
        opq_graph *made = nullptr;
        check(opq_snapshot_take(context(), reinterpret_cast<opq_value *const *>(values.data()),
                                static_cast<int>(values.size()), &taken));
        const SnapshotHandle snapshot(taken);
        check(opq_snapshot_graph(taken, OPQ_OUTPUTS_all, &made));
        recorded_.reset(made);
        std::unordered_map<const opq_value *, const char *> name_of;
        for (const auto &[name, value] : names)
            name_of.emplace(value.get(), name.c_str());
        for (int i = 0; i < opq_snapshot_leaf_count(taken); ++i) {
            const auto found = name_of.find(opq_snapshot_leaf(taken, i));
            if (found != name_of.end())
                check(opq_graph_name_input(made, i, found->second));
        }
    }

    std::string text(const std::string &stage)
    {
        const std::lock_guard<std::mutex> guard(lock_);
        const opq_graph *const plain = graph(stage);
        return text_of([&](char **out) {
            return plain ? opq_graph_print(plain, out) : opq_program_print(program(), stage.c_str(), out);
        });
    }

    std::string json(const std::string &stage)
    {
        const std::lock_guard<std::mutex> guard(lock_);
        const opq_graph *const plain = graph(stage);
        return text_of(
            [&](char **out) { return plain ? opq_graph_json(plain, out) : opq_program_print(program(), "json", out); });
    }

    std::string kernel(int number, const std::string &stage)
    {
        const std::lock_guard<std::mutex> guard(lock_);
        return text_of([&](char **out) { return opq_program_print_kernel(program(), number, stage.c_str(), out); });
    }
};

// `inputs`: what a name stands for is what the tensor's cell holds, which is what a graph reads.
std::unique_ptr<Inspection> inspect(const std::vector<Tensor> &tensors,
                                    const std::vector<std::pair<std::string, Tensor>> &inputs)
{
    std::vector<Value> values;
    std::vector<std::pair<std::string, Value>> names;
    inherit_modes();
    for (const Tensor &tensor : tensors) {
        TORCH_CHECK_TYPE(impl_or_null(tensor), "expected a tensor on device ", device(), ", got one on ",
                         tensor.device());
        values.push_back(read_raw(tensor));
    }
    for (const auto &[name, tensor] : inputs)
        if (opq_value *const held = impl_or_null(tensor) ? opq_cell_value(impl_of(tensor)->cell()) : nullptr)
            names.emplace_back(name, Value::take(held));
    const py::gil_scoped_release unlocked;
    return std::make_unique<Inspection>(values, names);
}

// Text may hold what is no UTF-8: a line cut within a character.
template <class... Arguments> auto shown(std::string (Inspection::*method)(Arguments...))
{
    return torch::wrap_pybind_function([method](Inspection &self, std::decay_t<Arguments>... arguments) {
        std::string text;
        {
            const py::gil_scoped_release unlocked;
            text = (self.*method)(arguments...);
        }
        return py::reinterpret_steal<py::str>(
            PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    });
}

} // namespace

void bind_inspection(PyObject *module)
{
    auto m = py::reinterpret_borrow<py::module_>(module);
    m.def("add_scope", [](const std::string &name) { return opq_scope_add(name.c_str()); });
    m.def("set_scope", [](int id) { opq_scope_set(id); });
    py::class_<Inspection>(m, "Inspection")
        .def(py::init(torch::wrap_pybind_function(&inspect)))
        .def("text", shown(&Inspection::text))
        .def("json", shown(&Inspection::json))
        .def("kernel", shown(&Inspection::kernel));
}

} // namespace opq
