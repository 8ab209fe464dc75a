// From what a function did while it was captured to a way in which it may be called.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "captured.h"
#include "lines.h"
#include "python.h"

namespace opq
{

std::string line_text(uint32_t line);

namespace
{

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
            source.cell = held(cell);
        }
        sources_.push_back(std::move(source));
    }
}

// A tensor whose history or need of gradients the function changed is no input of a plan, nor is one that
// another one now is (swap_tensors).
bool Captured::check_history(Capturing &capturing) const
{
    const auto is = [](const c10::TensorImpl *before, const Tensor &now) { return now.unsafeGetTensorImpl() == before; };
    if (!std::equal(capturing.arguments.begin(), capturing.arguments.end(), example_.begin(), example_.end(), is)) {
        capturing.refuse("it exchanges tensors that are arguments, or what a list or dict among these holds");
        return false;
    }
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

namespace
{

// Else it was there before, with the cell that it has now, and is given as it is.
bool is_made(const Tensor &tensor, const Capturing &capturing)
{
    return impl_of(tensor)->made_in() == opq_capturing_id(capturing.core) ||
           opq_capturing_made_it(capturing.core, cell_of(tensor));
}

// Its gradient, and what is written to it under a graph of its own, are the leaf's and not the plan's.
bool makes_leaves(const Leaves &results, Capturing &capturing)
{
    const bool makes = std::any_of(results.tensors.begin(), results.tensors.end(), [&](PyObject *const leaf) {
        const Tensor &tensor = THPVariable_Unpack(leaf);
        return tensor.requires_grad() && tensor.is_leaf() && is_made(tensor, capturing);
    });
    if (makes)
        capturing.refuse("a result is a leaf that it makes");
    return makes;
}

// Views that the function made of what was there before, and gives: of the cells that calls have.
void meet_viewed(const Leaves &results, const Capturing &capturing)
{
    for (PyObject *const leaf : results.tensors) {
        const Tensor &tensor = THPVariable_Unpack(leaf);
        if (is_made(tensor, capturing) && !opq_capturing_made_it(capturing.core, cell_of(tensor)))
            opq_capturing_meet(capturing.core, cell_of(tensor));
    }
}

} // namespace

ResultTensor Captured::describe(const Tensor &tensor, const Capturing &capturing)
{
    ResultTensor result(tensor);
    for (size_t i = 0; i < example_.size(); ++i)
        if (example_[i].is_same(tensor))
            return result.kind = ResultTensor::Kind::argument, result.index = i, result;
    for (size_t i = 0; i < kept_.size(); ++i)
        if (kept_[i].is_same(tensor))
            return result.kind = ResultTensor::Kind::kept, result.index = i, result;
    if (!is_made(tensor, capturing)) {
        result.kind = ResultTensor::Kind::kept;
        result.index = kept_.size();
        kept_shapes_.emplace_back(tensor);
        kept_cells_.push_back(cell_of(tensor));
        kept_.push_back(tensor);
        return result;
    }
    if (const int cell = opq_capturing_find(capturing.core, cell_of(tensor)); cell >= 0)
        return result.kind = ResultTensor::Kind::view, result.index = static_cast<size_t>(cell), result;
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
        Gradient gradient{true, 0, false, one.grad, -1, Gradient::After::same, {}, {}};
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
        if (gradient.any)
            gradient.before = Tensor();
        for (size_t i = 0; i < kept_.size() && gradient.before.defined() && gradient.read < 0; ++i)
            if (kept_[i].is_same(gradient.before))
                gradient.read = static_cast<int>(i);
        for_each_hook(tensor,
                      [&](PyObject *hook) { gradient.hooks.push_back(py::reinterpret_borrow<py::object>(hook)); });
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

void Captured::add_results(const Leaves &leaves, Capturing &capturing)
{
    add_host_results(leaves, capturing);
    for (size_t i = 0; i < leaves.tensors.size(); ++i) {
        const auto first = std::find(leaves.tensors.begin(), leaves.tensors.end(), leaves.tensors[i]);
        const auto before = static_cast<size_t>(first - leaves.tensors.begin());
        results_.push_back(describe(THPVariable_Unpack(leaves.tensors[i]), capturing));
        if (before < i) {
            results_[i].kind = ResultTensor::Kind::again;
            results_[i].index = before;
        }
    }
}

// What outlives the call and is no result: of results with a gradient their graph holds it.
bool Captured::check_escaped(Capturing &capturing)
{
    const std::vector<Cell> escaped = escaped_cells(capturing, made_);
    result_cells_ = made_.size();
    made_.insert(made_.end(), escaped.begin(), escaped.end());
    made_count_ = made_.size();
    if (escaped.empty() || !outputs_.empty())
        return true;
    if (capturing.refused.empty())
        capturing.refused =
            c10::str(escaped.size(), " tensors that it makes outlive the call and are no results, the first made at ",
                     line_text(opq_cell_line(escaped[0].get())));
    return false;
}

void Captured::find_differentiable(const Leaves &leaves, const Capturing &capturing)
{
    for (size_t i = 0; i < results_.size(); ++i) {
        const bool own = results_[i].kind == ResultTensor::Kind::made || results_[i].kind == ResultTensor::Kind::view;
        if (!own || !results_[i].requires_grad)
            continue;
        outputs_.push_back(THPVariable_Unpack(leaves.tensors[i]));
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
    Leaves leaves, given;
    made->result_.emplace(result, given);
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
    if (!capturing.refused.empty() || !made->check_history(capturing) || makes_leaves(given, capturing))
        return nullptr;
    meet_viewed(given, capturing);
    made->sort_tensors(capturing);
    made->add_sources(capturing);
    made->add_gradients(capturing);
    made->add_results(given, capturing);
    made->find_differentiable(given, capturing);
    if (!made->check_escaped(capturing) || !made->check_host(capturing, leaves))
        return nullptr;
    opq_graph *graph = nullptr;
    const std::vector<opq_cell *> results = pointers(made->made_);
    opq_status status = make_capture(capturing, made->made_, made->capture_, inspected ? &graph : nullptr);
    if (graph)
        made->inspection = inspection_of(graph);
    if (status == OPQ_OK) {
        const PythonUnlocked unlocked;
        status = opq_capture_first_run(capturing.core, results.data(), static_cast<int>(results.size()));
    }
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
        for (const ResultTensor &one : made->results_) // of other elements, which may lie at no whole number of them
            users += one.kind == ResultTensor::Kind::view && static_cast<int>(one.index) == cell &&
                     one.dtype != made->example_[i].scalar_type();
        made->shiftable_.push_back(users == 1 && (cell < 0 || opq_capture_shiftable(made->capture_.get(), cell)));
    }
    for (int i = 0; i < opq_capturing_cell_count(capturing.core); ++i)
        made->met_.push_back(opq_capturing_cell(capturing.core, i));
    made->first_.leaves = leaves;
    for (PyObject *const leaf : leaves.tensors)
        made->first_.arguments.push_back(py::reinterpret_borrow<py::object>(leaf));
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
    for (const Gradient &gradient : gradients_)
        for (const py::object &hook : gradient.hooks)
            Py_VISIT(hook.ptr());
    Py_VISIT(names_.ptr());
    Py_VISIT(traced.ptr());
    Py_VISIT(inspection.ptr());
    return 0;
}

bool Captured::leaks()
{
    const std::vector<Cell> made = std::move(made_);
    made_.clear();
    return std::any_of(made.begin() + static_cast<std::ptrdiff_t>(result_cells_), made.end(),
                       [](const Cell &cell) { return opq_cell_references(cell.get()) > 1; });
}

} // namespace opq
