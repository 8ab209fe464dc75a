#include "captured.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "lines.h"
#include "modes.h"
#include "python.h"
#include "random.h"

namespace opq
{

std::string line_text(uint32_t line);

// ---- the thread

ThreadState ThreadState::now()
{
    inherit_modes();
    return {c10::GradMode::is_enabled(),
            c10::InferenceMode::is_enabled(),
            at::autocast::is_autocast_enabled(kDeviceType),
            at::autocast::is_autocast_enabled(c10::kCPU),
            at::autocast::get_autocast_dtype(kDeviceType),
            at::autocast::get_autocast_dtype(c10::kCPU),
            c10::get_default_dtype(),
            opq_modes_get(),
            at::globalContext().deterministicAlgorithms()};
}

const char *ThreadState::difference(const ThreadState &o) const
{
    if (grad != o.grad)
        return "gradients are on or off";
    if (inference != o.inference)
        return "inference mode";
    if (autocast != o.autocast || autocast_cpu != o.autocast_cpu || (autocast && autocast_dtype != o.autocast_dtype) ||
        (autocast_cpu && autocast_cpu_dtype != o.autocast_cpu_dtype))
        return "autocast";
    if (default_dtype != o.default_dtype)
        return "the default dtype";
    if (modes != o.modes)
        return "a mode of torch_opaque";
    return deterministic != o.deterministic ? "deterministic algorithms" : nullptr;
}

// ---- dicts

namespace
{

#if PY_VERSION_HEX < 0x030C0000
uint64_t version_of(const py::dict &dict) { return reinterpret_cast<PyDictObject *>(dict.ptr())->ma_version_tag; }
#else
uint64_t version_of(const py::dict &) { return 0; } // none to go by
#endif

bool same_item(PyObject *now, PyObject *before)
{
    if (now == before)
        return true;
    if (!now || Py_TYPE(now) != Py_TYPE(before) ||
        !(PyFloat_CheckExact(now) || PyLong_CheckExact(now) || PyUnicode_CheckExact(now) || PyTuple_CheckExact(now)))
        return false;
    const int equal = PyObject_RichCompareBool(now, before, Py_EQ);
    if (equal < 0)
        PyErr_Clear();
    return equal == 1;
}

} // namespace

WatchedDict::WatchedDict(py::dict dict, const py::object &keys, std::string what)
    : dict_(std::move(dict)), all_(keys.is_none()), version_(version_of(dict_)), what_(std::move(what))
{
    for (const py::handle key : all_ ? py::tuple(py::list(dict_)) : py::tuple(keys))
        items_.emplace_back(py::reinterpret_borrow<py::object>(key), dict_[key]);
}

namespace
{

std::string repr_of(PyObject *object)
{
    const std::string text = object ? std::string(py::repr(object)) : "missing";
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

} // namespace

bool WatchedDict::holds(std::string *why, py::object *out_changed)
{
    const uint64_t version = version_of(dict_);
    if (version == version_ && version != 0)
        return true;
    bool same = !all_ || static_cast<size_t>(PyDict_GET_SIZE(dict_.ptr())) == items_.size();
    if (!same && why)
        *why = what_ + " has other items";
    for (size_t i = 0; i < items_.size() && same; ++i) {
        same = same_item(PyDict_GetItem(dict_.ptr(), items_[i].first.ptr()), items_[i].second.ptr());
        if (!same && why)
            *why = what_ + "'s " + std::string(py::str(items_[i].first)) + " is " +
                   repr_of(PyDict_GetItem(dict_.ptr(), items_[i].first.ptr())) + ", not " +
                   repr_of(items_[i].second.ptr());
        const PyObject *const before = items_[i].second.ptr();
        if (!same && why && (PyFloat_CheckExact(before) || PyLong_CheckExact(before)))
            *out_changed = py::make_tuple(what_, items_[i].first);
    }
    version_ = same ? version : version_;
    return same;
}

// ---- numbers

Numbers::Numbers(const Capturing &capturing) : sources_(capturing.numbers)
{
    for (const Draws &draws : capturing.draws) {
        at::Generator generator = draws.generator;
        const std::lock_guard<std::mutex> lock(generator.mutex());
        const uint64_t now = generator.get_offset();
        generators_.push_back({generator, static_cast<int64_t>(now - draws.base)});
    }
}

std::vector<opq_number> Numbers::take(const HostProgram::Run &host) const
{
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (const Generator &one : generators_)
        taken.push_back(take_draws(one.generator, one.draws));
    std::vector<opq_number> numbers(sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i) {
        const NumberSource &source = sources_[i];
        switch (source.kind) {
        case NumberSource::Kind::seed: numbers[i].i = static_cast<int64_t>(taken[source.index].first); break;
        case NumberSource::Kind::offset:
            numbers[i].i = static_cast<int64_t>(taken[source.index].second + source.delta);
            break;
        case NumberSource::Kind::integer: numbers[i].i = host.registers[source.index].i; break;
        case NumberSource::Kind::real: numbers[i].f = host.registers[source.index].real(); break;
        }
    }
    return numbers;
}

void Numbers::give_back() const
{
    for (const Generator &one : generators_)
        take_draws(one.generator, -one.draws);
}

// ---- making one

namespace
{

opq_cell *cell_of(const Tensor &tensor) { return impl_of(tensor)->cell(); }

Tensor alive(const Reached &one)
{
    auto impl = one.impl.lock();
    return impl ? Tensor(std::move(impl)) : Tensor();
}

} // namespace

// What was reached: an argument, or a tensor that somebody else has, too.
void Captured::sort_tensors(Capturing &capturing)
{
    for (const Reached &one : capturing.reached) {
        Tensor tensor = alive(one);
        if (!tensor.defined() || !impl_or_null(tensor) || tensor.use_count() < 2)
            continue;
        bool argument = false;
        for (const Tensor &example : example_)
            argument = argument || example.is_same(tensor);
        if (argument)
            continue;
        kept_shapes_.emplace_back(tensor);
        kept_cells_.push_back(cell_of(tensor));
        kept_.push_back(std::move(tensor));
    }
    for (size_t i = 0; i < example_.size(); ++i) {
        size_t first = 0;
        while (cell_of(example_[first]) != cell_of(example_[i]))
            ++first;
        const auto kept = std::find(kept_cells_.begin(), kept_cells_.end(), cell_of(example_[i]));
        first_of_.push_back(static_cast<int>(first));
        in_kept_.push_back(kept == kept_cells_.end() ? -1 : static_cast<int>(kept - kept_cells_.begin()));
    }
}

void Captured::add_sources(const Capturing &capturing)
{
    const int count = opq_capturing_cell_count(capturing.core);
    for (int i = 0; i < count; ++i) {
        opq_cell *const cell = opq_capturing_cell(capturing.core, i);
        CellSource source{CellSource::Kind::cell, 0, {}, opq_capturing_wrote(capturing.core, i)};
        const auto kept = std::find(kept_cells_.begin(), kept_cells_.end(), cell);
        const auto example = std::find_if(example_.begin(), example_.end(),
                                          [&](const Tensor &tensor) { return cell_of(tensor) == cell; });
        if (example != example_.end()) {
            source.kind = CellSource::Kind::argument;
            source.index = static_cast<size_t>(example - example_.begin());
        } else if (kept != kept_cells_.end()) {
            source.kind = CellSource::Kind::kept;
            source.index = static_cast<size_t>(kept - kept_cells_.begin());
        } else {
            opq_cell_retain(cell);
            source.cell = Cell::take(cell);
        }
        sources_.push_back(std::move(source));
    }
}

// A tensor whose history or need of gradients the function changed is no input of a plan.
bool Captured::check_history(Capturing &capturing) const
{
    for (const Reached &one : capturing.reached) {
        const Tensor tensor = alive(one);
        if (!tensor.defined())
            continue;
        if (tensor.requires_grad() != one.requires_grad || torch::autograd::impl::grad_fn_unsafe(tensor) != one.grad_fn) {
            capturing.refuse("it changes whose gradient a tensor is part of that was there before");
            return false;
        }
    }
    return true;
}

ResultTensor Captured::describe(const Tensor &tensor, const Capturing &capturing)
{
    ResultTensor result{ResultTensor::Kind::made,
                        0,
                        tensor.scalar_type(),
                        {},
                        {},
                        tensor.storage_offset(),
                        tensor.requires_grad(),
                        tensor.is_neg(),
                        tensor.is_conj()};
    result.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    result.strides.assign(tensor.strides().begin(), tensor.strides().end());
    for (size_t i = 0; i < example_.size(); ++i)
        if (example_[i].is_same(tensor))
            return result.kind = ResultTensor::Kind::argument, result.index = i, result;
    for (size_t i = 0; i < kept_.size(); ++i)
        if (kept_[i].is_same(tensor))
            return result.kind = ResultTensor::Kind::kept, result.index = i, result;
    if (const int cell = opq_capturing_find(capturing.core, cell_of(tensor)); cell >= 0)
        return result.kind = ResultTensor::Kind::view, result.index = static_cast<size_t>(cell), result;
    if (!opq_capturing_made_it(capturing.core, cell_of(tensor))) { // it was there before, and nothing read it
        result.kind = ResultTensor::Kind::kept;
        result.index = kept_.size();
        kept_shapes_.emplace_back(tensor);
        kept_cells_.push_back(cell_of(tensor));
        kept_.push_back(tensor);
        return result;
    }
    for (; result.index < made_.size(); ++result.index)
        if (made_[result.index].get() == cell_of(tensor))
            return result;
    made_.push_back(impl_of(tensor)->cell_ref());
    return result;
}

void Captured::add_gradients(Capturing &capturing)
{
    for (const Reached &one : capturing.reached) {
        const Tensor tensor = alive(one);
        if (!tensor.defined() || !one.requires_grad || one.grad_fn)
            continue;
        Gradient gradient{true, 0, false, one.grad, Gradient::After::same, {}};
        while (gradient.index < kept_.size() && !kept_[gradient.index].is_same(tensor))
            ++gradient.index;
        if (gradient.index == kept_.size()) {
            gradient.kept = false;
            gradient.index = 0;
            while (gradient.index < example_.size() && !example_[gradient.index].is_same(tensor))
                ++gradient.index;
            if (gradient.index == example_.size())
                continue;
        }
        const Tensor &now = tensor.grad();
        const bool met = one.grad.defined() && opq_capturing_find(capturing.core, cell_of(one.grad)) >= 0;
        if (!now.defined() && one.grad.defined())
            gradient.after = Gradient::After::none;
        else if (now.defined() && !now.is_same(one.grad)) {
            gradient.after = Gradient::After::made;
            gradient.made = describe(now, capturing);
        }
        if (!one.asked && !met && gradient.after == Gradient::After::same)
            continue;
        gradient.any = one.grad.defined() && !met && gradient.after != Gradient::After::same;
        gradients_.push_back(std::move(gradient));
    }
}

void Captured::add_host_results(const Leaves &leaves, Capturing &capturing)
{
    for (PyObject *const number : leaves.numbers)
        result_numbers_.push_back(py::handle(number)
                                      .attr("node")
                                      .attr("register_in")(py::cast(&capturing, py::return_value_policy::reference))
                                      .cast<int>());
    for (PyObject *const object : leaves.hosts) {
        const Tensor &tensor = THPVariable_Unpack(object);
        HostResult made{false, -1, py::reinterpret_borrow<py::object>(object)};
        for (size_t k = 0; k < capturing.host_arguments.size() && made.index < 0; ++k)
            if (capturing.host_arguments[k].is_same(tensor))
                made = {true, static_cast<int>(k), {}};
        if (!made.argument)
            made.index = capturing.program.slot_of(tensor);
        host_results_.push_back(std::move(made));
    }
}

void Captured::add_results(const py::object &result, Capturing &capturing)
{
    Leaves leaves;
    result_.emplace(result, leaves);
    add_host_results(leaves, capturing);
    for (PyObject *const leaf : leaves.tensors)
        results_.push_back(describe(THPVariable_Unpack(leaf), capturing));
}

namespace
{

std::vector<opq_cell *> pointers(const std::vector<Cell> &cells)
{
    std::vector<opq_cell *> result;
    for (const Cell &cell : cells)
        result.push_back(cell.get());
    return result;
}

} // namespace

// What outlives the call and is no result: of results with a gradient their graph holds it.
bool Captured::check_escaped(Capturing &capturing)
{
    std::vector<opq_cell *> results = pointers(made_), escaped;
    const int known = static_cast<int>(results.size());
    result_cells_ = results.size();
    escaped.resize(static_cast<size_t>(opq_capturing_escaped(capturing.core, results.data(), known, nullptr, 0)));
    opq_capturing_escaped(capturing.core, results.data(), known, escaped.data(), static_cast<int>(escaped.size()));
    for (opq_cell *const cell : escaped)
        made_.push_back(Cell::take(cell));
    if (escaped.empty() || !outputs_.empty())
        return true;
    if (capturing.refused.empty())
        capturing.refused =
            c10::str(escaped.size(), " tensors that it makes outlive the call and are no results, the first made at ",
                     line_text(opq_cell_line(escaped[0])));
    return false;
}

void Captured::find_differentiable(const py::object &result, const Capturing &capturing)
{
    Leaves leaves;
    const Tree tree(result, leaves);
    for (size_t i = 0; i < results_.size(); ++i) {
        const bool own = results_[i].kind == ResultTensor::Kind::made || results_[i].kind == ResultTensor::Kind::view;
        if (!own || !results_[i].requires_grad)
            continue;
        outputs_.push_back(THPVariable_Unpack(leaves.tensors[i]));
        output_of_.push_back(i);
    }
    const auto add = [&](const Tensor &tensor, bool kept, size_t index) {
        if (!tensor.requires_grad() || opq_capturing_find(capturing.core, cell_of(tensor)) < 0)
            return;
        inputs_.push_back(tensor);
        input_of_.emplace_back(kept, index);
    };
    for (size_t i = 0; i < example_.size() && !outputs_.empty(); ++i)
        add(example_[i], false, i);
    for (size_t i = 0; i < kept_.size() && !outputs_.empty(); ++i)
        add(kept_[i], true, i);
}

std::unique_ptr<Captured> Captured::make(Capturing &capturing, const py::tuple &args, const py::dict &kwargs,
                                         const py::object &result, const std::vector<int> &free, bool inspected)
{
    std::unique_ptr<Captured> made(new Captured);
    Leaves leaves;
    made->state_ = ThreadState::now();
    made->positional_ = args.size();
    for (const py::handle one : args)
        made->arguments_.emplace_back(one, leaves, free);
    for (const auto &item : kwargs)
        made->arguments_.emplace_back(item.second, leaves, free);
    made->names_ = py::tuple(py::list(kwargs));
    for (PyObject *const leaf : leaves.tensors) {
        made->example_.push_back(THPVariable_Unpack(leaf));
        made->shapes_.emplace_back(made->example_.back());
    }
    if (!capturing.refused.empty() || !made->check_history(capturing))
        return nullptr;
    made->sort_tensors(capturing);
    made->add_sources(capturing);
    made->add_gradients(capturing);
    made->add_results(result, capturing);
    made->find_differentiable(result, capturing);
    if (!made->check_escaped(capturing) || !made->check_host(capturing, leaves))
        return nullptr;
    if (inspected)
        made->inspect(capturing);
    const std::vector<opq_cell *> results = pointers(made->made_);
    opq_capture *capture = nullptr;
    void *const python = opq_python_unlock();
    opq_status status = opq_capture_make(capturing.core, results.data(), static_cast<int>(results.size()), &capture);
    made->capture_.reset(capture);
    if (status == OPQ_OK)
        status = opq_capture_first_run(capturing.core, results.data(), static_cast<int>(results.size()));
    opq_python_lock(python);
    if (status == OPQ_UNSUPPORTED) {
        capturing.refused = opq_error();
        return nullptr;
    }
    check(status);
    made->numbers_ = Numbers(capturing);
    made->program_ = std::move(capturing.program);
    made->first_run_.registers = made->program_.registers();
    made->program_.finish();
    for (size_t i = 0; i < made->shapes_.size(); ++i) {
        size_t users = made->in_kept_[i] >= 0 ? 2 : 0;
        for (const int first : made->first_of_)
            users += first == made->first_of_[i];
        const int cell = opq_capturing_find(capturing.core, cell_of(made->example_[i]));
        made->shiftable_.push_back(users == 1 && (cell < 0 || opq_capture_shiftable(capture, cell)));
    }
    for (int i = 0; i < opq_capturing_cell_count(capturing.core); ++i)
        made->met_.push_back(opq_capturing_cell(capturing.core, i));
    made->first_.leaves = leaves;
    made->first_.arguments.append(made->example_.begin(), made->example_.end());
    made->bind(made->first_);
    made->first_.pin();
    return made;
}

py::object Captured::first_result()
{
    py::object result = build(first_, made_, first_run_);
    outputs_.clear();
    inputs_.clear();
    example_.clear();
    met_.clear();
    first_ = {};
    first_run_ = {};
    return result;
}

bool Captured::check_host(Capturing &capturing, const Leaves &leaves) const
{
    std::vector<Tensor> results;
    for (PyObject *const object : leaves.hosts)
        results.push_back(THPVariable_Unpack(object));
    for (const HostResult &one : host_results_)
        if (!one.argument && one.index >= 0)
            results.push_back(capturing.program.example(one.index));
    if (!capturing.program.escapes(results))
        return true;
    capturing.refused = "a tensor of the CPU that it makes outlives the call, and is no result";
    return false;
}

void Captured::inspect(Capturing &capturing)
{
    const std::vector<opq_cell *> results = pointers(made_);
    opq_graph *graph = nullptr;
    check(opq_capture_graph(capturing.core, results.data(), static_cast<int>(results.size()), &graph));
    if (graph)
        inspection = inspection_of(graph);
}

namespace
{

bool same(const ResultTensor &a, const ResultTensor &b)
{
    return a.kind == b.kind && a.index == b.index && a.dtype == b.dtype && a.sizes == b.sizes &&
           a.strides == b.strides && a.offset == b.offset && a.requires_grad == b.requires_grad;
}

} // namespace

std::string Captured::difference(const Captured &other) const
{
    int which = 0;
    switch (opq_capture_compare(capture_.get(), other.capture_.get(), &which)) {
    case OPQ_CAPTURE_same: break;
    case OPQ_CAPTURE_graph: return "graph";
    case OPQ_CAPTURE_number: return c10::str("number ", which);
    case OPQ_CAPTURE_constant: return c10::str("constant ", which);
    case OPQ_CAPTURE_cells: return "it reads or writes other tensors";
    }
    bool equal = sources_.size() == other.sources_.size() && results_.size() == other.results_.size() &&
                 gradients_.size() == other.gradients_.size();
    for (size_t i = 0; i < sources_.size() && equal; ++i)
        equal = sources_[i].kind == other.sources_[i].kind &&
                (sources_[i].kind == CellSource::Kind::cell ? sources_[i].cell.get() == other.sources_[i].cell.get()
                 : sources_[i].kind == CellSource::Kind::kept
                     ? kept_[sources_[i].index].is_same(other.kept_[other.sources_[i].index])
                     : sources_[i].index == other.sources_[i].index);
    if (!equal)
        return "it reads or writes other tensors";
    for (size_t i = 0; i < results_.size() && equal; ++i)
        equal = same(results_[i], other.results_[i]);
    if (!equal || !result_->same_as(*other.result_) || result_numbers_ != other.result_numbers_)
        return "it gives another result";
    if (!program_.same_as(other.program_))
        return "it computes other numbers on the host";
    return "";
}

int WatchedDict::traverse(visitproc visit, void *arg) const
{
    Py_VISIT(dict_.ptr());
    for (const auto &[key, value] : items_) {
        Py_VISIT(key.ptr());
        Py_VISIT(value.ptr());
    }
    return 0;
}

int Captured::traverse(visitproc visit, void *arg) const
{
    int stop = program_.traverse(visit, arg);
    for (const Tree &tree : arguments_)
        stop = stop ? stop : tree.traverse(visit, arg);
    for (const WatchedDict &dict : watched_)
        stop = stop ? stop : dict.traverse(visit, arg);
    if (result_ && !stop)
        stop = result_->traverse(visit, arg);
    if (stop)
        return stop;
    for (const HostResult &one : host_results_)
        Py_VISIT(one.object.ptr());
    Py_VISIT(names_.ptr());
    Py_VISIT(traced.ptr());
    Py_VISIT(inspection.ptr());
    return 0;
}

bool Captured::leaks() const
{
    for (size_t i = result_cells_; i < made_.size(); ++i)
        if (opq_cell_references(made_[i].get()) > 1)
            return true;
    return false;
}

// ---- matching

bool Captured::match_arguments(Match &match, std::string *why)
{
    for (size_t i = 0; i < shapes_.size(); ++i) {
        const Tensor &tensor = THPVariable_Unpack(match.leaves.tensors[i]);
        if (!shapes_[i].matches(tensor, shiftable_[i] != 0)) {
            if (why)
                *why = c10::str("tensor ", i, " of the arguments: ", shapes_[i].difference(tensor, shiftable_[i] != 0));
            return false;
        }
        match.arguments.push_back(tensor);
    }
    return true;
}

// A tensor may have got other memory (`p.data = q`).
bool Captured::match_kept(std::string *why)
{
    for (size_t i = 0; i < kept_.size(); ++i) {
        if (!kept_shapes_[i].matches(kept_[i], false)) {
            if (why)
                *why = c10::str("a tensor that it reads, ", kept_shapes_[i].difference(kept_[i], false));
            return false;
        }
        opq_cell *const cell = cell_of(kept_[i]);
        if (cell == kept_cells_[i])
            continue;
        for (size_t k = 0; k < kept_.size(); ++k)
            if ((kept_cells_[k] == kept_cells_[i]) != (cell_of(kept_[k]) == cell)) {
                if (why)
                    *why = "other tensors that it reads have one memory";
                return false;
            }
        kept_cells_[i] = cell;
    }
    return true;
}

const Tensor &Captured::leaf(const Gradient &gradient, const Match &match) const
{
    return gradient.kept ? kept_[gradient.index] : match.arguments[gradient.index];
}

bool Captured::match_gradients(const Match &match, std::string *why) const
{
    for (const Gradient &gradient : gradients_) {
        const Tensor &now = leaf(gradient, match).grad();
        if (gradient.any || (now.defined() ? now.is_same(gradient.before) : !gradient.before.defined()))
            continue;
        if (why)
            *why = now.defined() ? "a parameter has a gradient, or another one" : "a parameter has no gradient";
        return false;
    }
    return true;
}

// Which of the arguments share memory, with each other and with what is read otherwise.
bool Captured::match_sharing(const Match &match, std::string *why) const
{
    for (size_t i = 0; i < match.arguments.size(); ++i) {
        const opq_cell *const cell = cell_of(match.arguments[i]);
        size_t first = 0;
        while (cell_of(match.arguments[first]) != cell)
            ++first;
        bool same = static_cast<int>(first) == first_of_[i];
        const int kept = in_kept_[i];
        same = same && (kept < 0 ? std::find(kept_cells_.begin(), kept_cells_.end(), cell) == kept_cells_.end()
                                 : kept_cells_[static_cast<size_t>(kept)] == cell);
        if (same)
            continue;
        if (why)
            *why = c10::str("tensor ", i, " of the arguments shares memory with others than it did");
        return false;
    }
    return true;
}

bool Captured::matches(PyObject *const *args, size_t positional, PyObject *names, Match &match, std::string *why)
{
    const size_t named = names ? static_cast<size_t>(PyTuple_GET_SIZE(names)) : 0;
    if (positional != positional_ || positional + named != arguments_.size()) {
        if (why)
            *why = "other arguments are given";
        return false;
    }
    if (named > 0 && !py::reinterpret_borrow<py::object>(names).equal(names_)) {
        if (why)
            *why = "arguments of other names are given";
        return false;
    }
    if (const char *const difference = state_.difference(ThreadState::now())) {
        if (why)
            *why = difference;
        return false;
    }
    for (size_t i = 0; i < arguments_.size(); ++i)
        if (!arguments_[i].matches(args[i], match.leaves, why)) {
            if (why)
                *why = c10::str("argument ", i, ": ", *why);
            return false;
        }
    if (!match_arguments(match, why) || !match_kept(why) || !match_sharing(match, why) || !match_gradients(match, why))
        return false;
    for (WatchedDict &dict : watched_)
        if (!dict.holds(why, &match.item))
            return false;
    return match.leaves.changed.empty();
}

// ---- running

void Match::pin()
{
    for (opq_cell *const cell : cells)
        pins.push_back(held(cell));
}

void Captured::bind(Match &match) const
{
    for (const CellSource &source : sources_) {
        int64_t shift = 0;
        if (source.kind == CellSource::Kind::argument) {
            const Tensor &tensor = match.arguments[source.index];
            shift = (tensor.storage_offset() - shapes_[source.index].offset) * static_cast<int64_t>(tensor.itemsize());
            match.cells.push_back(cell_of(tensor));
        } else {
            match.cells.push_back(source.kind == CellSource::Kind::kept ? kept_cells_[source.index] : source.cell.get());
        }
        match.shifts.push_back(shift);
    }
}

Tensor Captured::tensor_of(const ResultTensor &result, const Match &match, const std::vector<Cell> &made) const
{
    switch (result.kind) {
    case ResultTensor::Kind::argument: return match.arguments[result.index];
    case ResultTensor::Kind::kept: return kept_[result.index];
    case ResultTensor::Kind::view:
    case ResultTensor::Kind::made: break;
    }
    Cell cell;
    if (result.kind == ResultTensor::Kind::view) {
        cell = held(match.cells[result.index]);
    } else {
        cell = made[result.index];
    }
    Tensor tensor = make_tensor(std::move(cell), c10::scalarTypeToTypeMeta(result.dtype), result.sizes, result.strides,
                                result.offset);
    if (result.negative)
        tensor._set_neg(true);
    if (result.conjugate)
        tensor._set_conj(true);
    return tensor;
}

namespace
{

// What backward() of a result meets whose graph the function has gone through.
void spend(Tensor &tensor)
{
    auto error =
        c10::make_intrusive<torch::autograd::Error>("Trying to backward through the graph a second time: it is the "
                                                    "result of a captured function, in which backward() "
                                                    "went through it already");
    torch::autograd::create_gradient_edge(tensor, std::move(error));
}

} // namespace

bool Captured::fits(const Match &match) const
{
    HostProgram::Run host;
    host.trial = true;
    const bool fits = !program_.guards() || program_.run(match.leaves, host, nullptr);
    HostProgram::undo(host);
    return fits;
}

py::object Captured::run(Match &match)
{
    bind(match);
    for (PyObject *const host : match.leaves.hosts) // a list that has it may lose it while another thread runs Python
        match.leaves.kept.push_back(py::reinterpret_borrow<py::object>(host));
    const auto info = opq_capture_describe(capture_.get());
    std::vector<opq_cell *> cells(static_cast<size_t>(info.results), nullptr);
    HostProgram::Run host;
    if (!program_.empty() && !program_.run(match.leaves, host, nullptr))
        return {};
    const std::vector<opq_number> numbers = numbers_.take(host);
    static_assert(sizeof(Value) == sizeof(opq_value *));
    const opq_capture_call call{match.cells.data(), match.shifts.data(), numbers.data(),
                                reinterpret_cast<opq_value *const *>(host.uploads.data()), cells.data()};
    bool ran = false;
    opq_status status = opq_capture_run_now(capture_.get(), &call, &ran);
    if (status == OPQ_OK && !ran) {
        match.pin();
        void *const python = opq_python_unlock();
        status = opq_capture_run(capture_.get(), &call);
        opq_python_lock(python);
    }
    if (status != OPQ_OK)
        numbers_.give_back();
    if (status == OPQ_UNSUPPORTED) {
        TORCH_CHECK(!program_.writes() || !host.before.empty(),
                    "a captured function found other tensors than before, after it had "
                    "written to tensors of the CPU: ",
                    opq_error());
        HostProgram::undo(host);
        return {};
    }
    check(status);
    std::vector<Cell> made;
    for (opq_cell *const cell : cells)
        made.push_back(Cell::take(cell));
    for (const CellSource &source : sources_)
        if (source.written && source.kind != CellSource::Kind::cell) {
            const Tensor &tensor =
                source.kind == CellSource::Kind::kept ? kept_[source.index] : match.arguments[source.index];
            if (!tensor.is_inference())
                tensor.unsafeGetTensorImpl()->bump_version();
        }
    for (const Gradient &gradient : gradients_)
        if (gradient.after != Gradient::After::same)
            leaf(gradient, match).mutable_grad() =
                gradient.after == Gradient::After::made ? tensor_of(gradient.made, match, made) : Tensor();
    return build(match, made, host);
}

py::object Captured::host_result(size_t i, const Match &match, const HostProgram::Run &host) const
{
    const HostResult &one = host_results_[i];
    if (one.argument)
        return py::reinterpret_borrow<py::object>(match.leaves.hosts[static_cast<size_t>(one.index)]);
    if (one.index < 0 || host.slots.empty())
        return one.object;
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(host.slots[static_cast<size_t>(one.index)]));
}

py::object Captured::build(const Match &match, const std::vector<Cell> &made, const HostProgram::Run &host)
{
    const auto node = backward_ ? make_node(match, made, host) : nullptr;
    std::vector<py::object> tensors;
    for (const ResultTensor &result : results_) {
        if (result.kind == ResultTensor::Kind::argument) {
            tensors.push_back(py::reinterpret_steal<py::object>(THPVariable_Wrap(match.arguments[result.index])));
            continue;
        }
        Tensor tensor = tensor_of(result, match, made);
        if (result.requires_grad && result.kind != ResultTensor::Kind::kept) {
            if (node)
                torch::autograd::create_gradient_edge(tensor, node);
            else
                spend(tensor);
        }
        tensors.push_back(py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor))));
    }
    std::vector<py::object> numbers, hosts;
    for (const int reg : result_numbers_) {
        const Register &value = host.registers[static_cast<size_t>(reg)];
        numbers.push_back(value.integer ? py::object(py::int_(value.i)) : py::object(py::float_(value.f)));
    }
    for (size_t i = 0; i < host_results_.size(); ++i)
        hosts.push_back(host_result(i, match, host));
    return result_->build(tensors, numbers, hosts);
}

} // namespace opq
