// Class torch_opaque._C.Inspection: a pending graph as it was at one moment, and what would become of it. Python's Graph reads it.
#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <unordered_set>

#include "journal.h"
#include "lines.h"
#include "modes.h"
#include "python.h"

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

// Text may hold what is no UTF-8: a line cut within a character.
py::str decoded(const std::string_view text)
{
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

SnapshotHandle take(const std::vector<Value> &values)
{
    opq_snapshot *taken = nullptr;
    check(opq_snapshot_take(context(), reinterpret_cast<opq_value *const *>(values.data()),
                            static_cast<int>(values.size()), &taken));
    return SnapshotHandle(taken);
}

GraphHandle graph_of(const SnapshotHandle &snapshot, opq_outputs outputs)
{
    opq_graph *made = nullptr;
    check(opq_snapshot_graph(snapshot.get(), outputs, &made));
    return GraphHandle(made);
}

void name_inputs(const GraphHandle &graph, const SnapshotHandle &snapshot,
                 const std::vector<std::pair<std::string, Value>> &names)
{
    std::unordered_map<const opq_value *, const char *> name_of;
    for (const auto &[name, value] : names)
        name_of.emplace(value.get(), name.c_str());
    for (int i = 0; i < opq_snapshot_leaf_count(snapshot.get()); ++i) {
        const auto found = name_of.find(opq_snapshot_leaf(snapshot.get(), i));
        if (found != name_of.end())
            check(opq_graph_name_input(graph.get(), i, found->second));
    }
}

opq_fusion fusion_of_thread() { return (opq_modes_get() & OPQ_MODE_UNFUSED) ? OPQ_UNFUSED : OPQ_FUSED; }

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
        : fusion_(fusion_of_thread())
    {
        const SnapshotHandle snapshot = take(values);
        recorded_ = graph_of(snapshot, OPQ_OUTPUTS_all);
        name_inputs(recorded_, snapshot, names);
    }

    explicit Inspection(opq_graph *graph) : recorded_(graph), fusion_(fusion_of_thread()) {}

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

// What a name stands for is what the tensor's cell holds or, if that is not computed, held: a graph reads that.
std::vector<std::pair<std::string, Value>> named_values(const std::vector<std::pair<std::string, Tensor>> &inputs)
{
    std::vector<std::pair<std::string, Value>> names;
    for (const auto &[name, tensor] : inputs)
        if (opq_value *const held = impl_or_null(tensor) ? opq_cell_computed(impl_of(tensor)->cell()) : nullptr)
            names.emplace_back(name, Value::take(held));
    return names;
}

std::unique_ptr<Inspection> inspect(const py::object &tensors, const std::vector<std::pair<std::string, Tensor>> &inputs)
{
    const std::vector<Value> values = values_of(tensors_of(tensors));
    const std::vector<std::pair<std::string, Value>> names = named_values(inputs);
    inherit_modes();
    const py::gil_scoped_release unlocked;
    return std::make_unique<Inspection>(values, names);
}

template <class... Arguments> auto shown(std::string (Inspection::*method)(Arguments...))
{
    return torch::wrap_pybind_function([method](Inspection &self, std::decay_t<Arguments>... arguments) {
        std::string text;
        {
            const py::gil_scoped_release unlocked;
            text = (self.*method)(arguments...);
        }
        return decoded(text);
    });
}

// ---- what is pending

int64_t unfused_bytes(const py::object &list)
{
    const std::vector<Value> values = values_of(tensors_of(list));
    int64_t bytes = 0;
    const py::gil_scoped_release unlocked;
    check(opq_snapshot_bytes(take(values).get(), OPQ_UNFUSED, &bytes));
    return bytes;
}

py::tuple pending(const py::object &object)
{
    const SnapshotHandle snapshot = take({read_raw(tensor_of(object))});
    char line[256];
    const char *const last = opq_snapshot_last(snapshot.get(), line, sizeof line);
    return py::make_tuple(opq_snapshot_pending_count(snapshot.get()), opq_snapshot_leaf_count(snapshot.get()),
                          decoded(last ? last : ""), decoded(line));
}

// Tensors of the recorded graph's nodes, by number; none for its inputs and scalars.
std::vector<std::optional<Tensor>> recorded_values(const py::object &list)
{
    const SnapshotHandle snapshot = take(values_of(tensors_of(list)));
    std::vector<std::optional<Tensor>> tensors;
    for (int i = 0; i < opq_snapshot_node_count(snapshot.get()); ++i) {
        opq_value *const borrowed = opq_snapshot_node(snapshot.get(), i);
        if (borrowed)
            opq_value_retain(borrowed);
        const Value value = Value::take(borrowed);
        tensors.push_back(value ? std::optional(wrap(value, stand_in_dtype(value.dtype()))) : std::nullopt);
    }
    return tensors;
}

// Of its inputs, by number.
std::vector<Tensor> recorded_leaves(const py::object &list)
{
    const SnapshotHandle snapshot = take(values_of(tensors_of(list)));
    std::vector<Tensor> tensors;
    for (int i = 0; i < opq_snapshot_leaf_count(snapshot.get()); ++i) {
        opq_value *const borrowed = opq_snapshot_leaf(snapshot.get(), i);
        opq_value_retain(borrowed);
        const Value value = Value::take(borrowed);
        tensors.push_back(wrap(value, stand_in_dtype(value.dtype())));
    }
    return tensors;
}

at::ScalarType shown_dtype(opq_dtype dtype)
{
    switch (dtype) {
    case OPQ_raw8: return at::kByte;
    case OPQ_raw16: return at::kShort;
    case OPQ_raw32: return at::kInt;
    default: return torch_dtype(dtype);
    }
}

py::tuple capture(const py::object &list)
{
    const std::vector<Value> values = values_of(tensors_of(list));
    std::string graph;
    std::vector<Tensor> inputs;
    {
        const py::gil_scoped_release unlocked;
        const SnapshotHandle snapshot = take(values);
        const GraphHandle made = graph_of(snapshot, OPQ_OUTPUTS_asked);
        graph = text_of([&](char **out) { return opq_graph_print(made.get(), out); });
        for (int i = 0; i < opq_snapshot_leaf_count(snapshot.get()); ++i) {
            opq_value *const borrowed = opq_snapshot_leaf(snapshot.get(), i);
            opq_value_retain(borrowed);
            const Value leaf = Value::take(borrowed);
            const Dims sizes = shape_of(leaf);
            inputs.push_back(cpu_alias(leaf, shown_dtype(leaf.dtype()), sizes, ordered_strides(sizes, Order{})).clone());
        }
    }
    return py::make_tuple(decoded(graph), inputs);
}

// ---- reports of faults

void write_repro(const py::object &tensors, const std::vector<std::pair<std::string, Tensor>> &inputs,
                 const std::string &folder, bool inputs_too)
{
    const std::vector<Value> values = values_of(tensors_of(tensors));
    const std::vector<std::pair<std::string, Value>> names = named_values(inputs);
    inherit_modes();
    const py::gil_scoped_release unlocked;
    const SnapshotHandle snapshot = take(values);
    const GraphHandle graph = graph_of(snapshot, OPQ_OUTPUTS_all);
    name_inputs(graph, snapshot, names);
    check(opq_snapshot_write(snapshot.get(), graph.get(), fusion_of_thread(), folder.c_str(), inputs_too));
}

template <opq_status (*read)(opq_ctx *, char **)> py::str of_context()
{
    std::string text;
    {
        const py::gil_scoped_release unlocked;
        text = text_of([](char **out) { return read(context(), out); });
    }
    return decoded(text);
}

// ---- runs

py::dict launch_dict(const opq_launch &launch)
{
    using namespace py::literals;
    return py::dict("name"_a = launch.name, "kind"_a = launch.kind, "shape"_a = launch.shape,
                    "lines"_a = decoded(launch.lines), "rows"_a = launch.rows, "seconds"_a = launch.seconds,
                    "busy"_a = launch.busy, "compile_seconds"_a = launch.compile_seconds,
                    "bytes_read"_a = launch.bytes_read, "bytes_written"_a = launch.bytes_written,
                    "flops"_a = launch.flops, "fresh"_a = launch.fresh);
}

py::dict report_end()
{
    opq_report *report = nullptr;
    check(opq_report_end(context(), &report));
    const std::unique_ptr<opq_report, decltype(&opq_report_drop)> owner(report, &opq_report_drop);
    py::list launches;
    for (int i = 0; i < report->launch_count; ++i)
        launches.append(launch_dict(report->launches[i]));
    py::list runs;
    using namespace py::literals;
    for (int i = 0; i < report->run_count; ++i) {
        const opq_planned &run = report->runs[i];
        const opq_tier &tier = run.unwatched;
        const py::dict unwatched("kind"_a = opq_tier_kind_name(tier.kind), "ops"_a = tier.ops,
                                 "runs_in_pieces"_a = tier.in_pieces, "each_seconds"_a = tier.each,
                                 "price_seconds"_a = tier.price);
        runs.append(py::dict("why"_a = run.why ? py::object(decoded(run.why)) : py::none(), "kernels"_a = run.kernels,
                             "compiled"_a = run.compiled, "outputs"_a = run.outputs, "unwatched"_a = unwatched));
    }
    py::dict result;
    result["runs"] = runs;
    result["launches"] = launches;
    return result;
}

std::vector<Tensor> other_values(const py::object &list, const py::object &known)
{
    const std::vector<Value> all = values_of(tensors_of(known));
    std::unordered_set<const opq_value *> seen;
    for (const Value &value : all)
        seen.insert(value.get());
    std::vector<Tensor> others;
    for (const Tensor &tensor : tensors_of(list))
        if (seen.count(read_raw(tensor).get()) == 0)
            others.push_back(tensor);
    return others;
}

py::dict roofline()
{
    using namespace py::literals;
    opq_roofline measured{};
    {
        const py::gil_scoped_release unlocked;
        check(opq_machine_roofline(context(), &measured));
    }
    py::list bandwidth;
    for (int i = 0; i < OPQ_ROOFLINE_SIZES; ++i)
        bandwidth.append(py::make_tuple(measured.size[i], measured.bytes[i]));
    return py::dict("threads"_a = measured.threads, "flops_per_second"_a = measured.flops, "bandwidth"_a = bandwidth,
                    "products"_a =
                        py::dict("pairs"_a = measured.pairs, "pairs16"_a = measured.pairs16, "i8"_a = measured.i8));
}

// ---- before a run

py::object &watcher()
{
    static auto *const object = new py::object; // outlives Python
    return *object;
}

// The tensors are gone when the run begins: what they hold would be stored for them.
void tell(c10::ArrayRef<Value> asked, opq_reason reason, const std::string &line)
{
    const py::gil_scoped_acquire locked;
    const py::object watch = watcher();
    if (watch)
        watch(pending_tensors(asked), opq_reason_name(reason), decoded(line));
}

void set_watcher(const py::object &watch)
{
    watcher() = watch.is_none() ? py::object() : watch;
    watch_runs(watch.is_none() ? nullptr : &tell);
}

} // namespace

py::object inspection_of(opq_graph *graph) { return py::cast(std::make_unique<Inspection>(graph)); }

void bind_inspection(py::module_ &m)
{
    m.def("add_scope", [](const std::string &name) { return opq_scope_add(name.c_str()); });
    m.def("set_scope", &opq_scope_set);
    m.def("unfused_bytes", torch::wrap_pybind_function(&unfused_bytes));
    m.def("pending", torch::wrap_pybind_function(&pending));
    m.def("recorded_values", torch::wrap_pybind_function(&recorded_values));
    m.def("recorded_leaves", torch::wrap_pybind_function(&recorded_leaves));
    m.def("capture", torch::wrap_pybind_function(&capture));
    m.def("write_repro", torch::wrap_pybind_function(&write_repro));
    m.def("environment", torch::wrap_pybind_function(&of_context<opq_environment>));
    m.def("last_failure", torch::wrap_pybind_function(&of_context<opq_repro_last>));
    m.def("report_begin", [] { opq_report_begin(context()); });
    m.def("report_end", torch::wrap_pybind_function(&report_end));
    m.def("watch_runs", &set_watcher);
    m.def("journal_begin", torch::wrap_pybind_function(&journal_begin));
    m.def("journal_depth", &journal_depth);
    m.def("journal_held", torch::wrap_pybind_function(&journal_held));
    m.def("journal_cells", &journal_cells);
    m.def("journal_end", torch::wrap_pybind_function(&journal_end), py::arg("restore") = true);
    m.def("roofline", torch::wrap_pybind_function(&roofline));
    m.def("other_values", torch::wrap_pybind_function(&other_values));
    py::class_<Inspection>(m, "Inspection")
        .def(py::init(torch::wrap_pybind_function(&inspect)))
        .def("text", shown(&Inspection::text))
        .def("json", shown(&Inspection::json))
        .def("kernel", shown(&Inspection::kernel));
}

} // namespace opq
